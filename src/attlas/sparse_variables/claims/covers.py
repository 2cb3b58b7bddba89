"""Claims about covers: of linear classes against packings, of a head by those of its parts, and how to split the distance."""

import math
from collections.abc import Sequence

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims.compat import (
    Agreement,
    Bound,
    Control,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    product,
    together,
)
from attlas.covers import best_split, linear_entropy
from attlas.gaussian import stream
from attlas.sparse_variables.claims.shared import FIGURES, PAPER, unit_tokens

DISTANCE = Hypothesis("0 < eps < 1", lambda s: 0 < s.eps < 1, defining=True)


@claim(
    "sparse-variables/best-split",
    source=PAPER,
    reference="Theorem 4.2, the infimum over the split",
    statement=r"$\min\{\sum_k A_k^2/\beta_k^2 : \beta_k \ge 0,\ \sum_k\beta_k = 1\} = \big(\sum_k A_k^{2/3}\big)^3$, at $\beta_k \propto A_k^{2/3}$.",
    words="The distance is best shared among the weights by the two-thirds power of what each can move.",
    hypotheses=(Hypothesis("terms >= 2", lambda s: s.terms >= 2, defining=True),),
    quick=Setting(terms=(2, 3, 6), points=12),
    paper=Setting(terms=(2, 3, 6, 13), points=32),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "the distance is shared in proportion to the sizes themselves",
        lambda e: e.assign(predicted=e["proportional"]),
    ),
    figure=drawn_by(f"{FIGURES}.bounds:split_agreement"),
    cells=together("terms"),
    budget="points",
    origin="our reading",
)
def split_by_search(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "sparse-variables/best-split", "sizes")
    sizes = np.exp(2 * stream(key).standard_normal((cell.points, cell.terms)))
    found = np.array([searched_split(a) for a in sizes])
    scale = sizes.max(1) ** 2
    axes = ("cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, (best_split(sizes)[0] / scale)[None]),
            "measured": (axes, (found / scale)[None]),
            "proportional": (axes, (cell.terms * sizes.sum(1) ** 2 / scale)[None]),
            "error": 0.0,
        }
    )


def searched_split(sizes: Float[np.ndarray, " k"]) -> float:
    """The least sum by Newton's method on the logarithms of the shares, from equal ones."""

    def total(logits: np.ndarray) -> tuple[float, np.ndarray]:
        shares = np.exp(logits - np.logaddexp.reduce(logits))
        terms = (sizes / shares) ** 2 / sizes.max() ** 2
        return float(np.log(terms.sum())), 2 * (shares - terms / terms.sum())

    best = scipy.optimize.minimize(
        total, np.zeros(len(sizes)), jac=True, method="BFGS", options={"gtol": 1e-12}
    )
    return float(np.exp(best.fun) * sizes.max() ** 2)


@claim(
    "sparse-variables/linear-cover",
    source=PAPER,
    reference="Lemma 4.6 and Zhang 2002, Theorem 4",
    statement=r"$\{x \mapsto \langle w, x\rangle : |w| \le a\}$ has covers at distance $\epsilon$ on n points $|x| \le b$ of"
    r" $\min\{36\frac{a^2b^2}{\epsilon^2}\ln(2\lceil\frac{4ab}\epsilon + 2\rceil n + 1),\ d\ln(1 + \frac{2ab}\epsilon)\}$ nats or less, which is never below the logarithm of a number of"
    r" members that are pairwise further apart than $2\epsilon$.",
    words="The covers that the bounds rest on are at least as large as the packings that can be exhibited.",
    hypotheses=(DISTANCE, Hypothesis("points >= 8", lambda s: s.points >= 8, defining=True)),
    quick=Setting(eps=(0.05, 0.1, 0.2, 0.4), points=64, members=4000),
    paper=Setting(eps=(0.03, 0.05, 0.1, 0.2, 0.4), points=256, members=6000),
    rule=Bound(),
    control=Control(
        "weights ten times as long as the bound was told", lambda e: e.assign(measured=e["longer"])
    ),
    figure=drawn_by(f"{FIGURES}.bounds:packings"),
    cells=together("eps"),
    budget="members",
    origin="our reading",
)
def linear_cover(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "sparse-variables/linear-cover", "members")
    angles = np.pi * np.arange(cell.points) / cell.points
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    members = disc(key, cell.members)
    found, longer = (packing(size * members @ circle.T, 2 * cell.eps) for size in (1.0, 10.0))
    axes = ("cell", "class")
    return xr.Dataset(
        {
            "bound": (
                axes,
                [
                    [
                        linear_entropy(1, cell.eps, cell.points, 2),
                        linear_entropy(1, cell.eps, cell.points),
                    ]
                ],
            ),
            "measured": (axes, [[math.log(found), sparse_packing(1.0, cell.eps, cell.points)]]),
            "longer": (axes, [[math.log(longer), sparse_packing(10.0, cell.eps, cell.points)]]),
            "error": 0.0,
        },
        coords={"class": ["in the plane", "as many dimensions as points"]},
    )


def disc(key: Array, members: int) -> Float[np.ndarray, "n 2"]:
    """Points uniform on the unit disc."""
    square, turn = stream(key).random((2, members))
    angle = 2 * np.pi * turn
    return np.sqrt(square)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)


def packing(values: Float[np.ndarray, "members points"], apart: float) -> int:
    """How many members a greedy choice finds that are pairwise further than `apart` from each other at some point."""
    left, count = values, 0
    while len(left):
        left = left[abs(left - left[0]).max(1) > apart]
        count += 1
    return count


def sparse_packing(size: float, eps: float, points: int) -> float:
    r"""Nats of an explicit packing on n orthonormal points: weights with k entries $\pm a/\sqrt k$ differ by that much or more somewhere, which
    exceeds $2\epsilon$ while $k < a^2/4\epsilon^2$; there are $\binom nk2^k$ of them."""
    k = min(points, math.ceil(size**2 / (4 * eps**2)) - 1)
    counts = [
        math.lgamma(points + 1) - math.lgamma(j + 1) - math.lgamma(points - j + 1) + j * math.log(2)
        for j in range(k + 1)
    ]
    return max(counts)


# --- composition ---------------------------------------------------------------------------------------------------


@claim(
    "sparse-variables/cover-composition",
    source=PAPER,
    reference="Theorem 4.2",
    statement=r"A cover of the scores at $\alpha\epsilon/(C B_{in}B_X)$ and one of the values at $(1-\alpha)\epsilon$, on all tokens, make a cover of the heads"
    r" $v^\top X^\top\mathrm{softmax}(Xu)$ at $\epsilon$: for every u and v some pair of centres is within $\epsilon$ on every sequence.",
    words="Finitely many heads, built from finitely many scores and values, come near to every head.",
    hypotheses=(DISTANCE,),
    quick=Setting(eps=(0.3, 0.5), length=6, samples=24, members=1500),
    paper=Setting(eps=(0.2, 0.3, 0.5), length=12, samples=64, members=6000),
    rule=Bound(),
    control=Control(
        "scores covered four times as coarsely", lambda e: e.assign(measured=e["coarse"])
    ),
    figure=drawn_by(f"{FIGURES}.bounds:composed_covers"),
    cells=product("eps"),
    budget="members",
    needs=("sparse-variables/head-lipschitz", "sparse-variables/best-split"),
    origin="our reading",
)
def cover_composition(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/cover-composition"
    tokens = polar_tokens(key_for(seed, id, "tokens"), cell.samples, cell.length)
    scores, values = 4.0, 1.0
    alpha = best_split([scores * values, values])[1][0]
    fine, coarse = alpha * cell.eps / values, 4 * alpha * cell.eps / values
    value_net = net(values, (1 - alpha) * cell.eps)
    u, v = (
        scores * disc(key_for(seed, id, "scores"), cell.members),
        values * disc(key_for(seed, id, "values"), cell.members),
    )
    # The members hardest to reach lie where four centres meet.
    found = []
    for width in (fine, coarse):
        members = np.concatenate([u, corners(scores, width)])
        partner = np.resize(
            np.concatenate([v, corners(values, (1 - alpha) * cell.eps)]), (len(members), 2)
        )
        found.append(worst_distance(tokens, members, partner, net(scores, width), value_net))
    size = math.log(len(net(scores, fine))) + math.log(len(value_net))
    bound = linear_entropy(scores * values, alpha * cell.eps, 1, 2) + linear_entropy(
        values, (1 - alpha) * cell.eps, 1, 2
    )
    return xr.Dataset(
        {
            "bound": ("cell", [cell.eps]),
            "measured": ("cell", [found[0]]),
            "coarse": ("cell", [found[1]]),
            "error": 0.0,
            "nats_built": ("cell", [size]),
            "nats_bound": ("cell", [bound]),
            "alpha": ("cell", [alpha]),
        }
    )


def polar_tokens(key: Array, samples: int, length: int) -> Float[np.ndarray, "m n 2"]:
    """Sequences of directions in the plane; in the first, two opposite ones, between which a head is most sensitive."""
    tokens = unit_tokens(key, samples, length, 2)
    tokens[0] = np.where(np.arange(length)[:, None] % 2, [1.0, 0.0], [-1.0, 0.0])
    return tokens


def net(radius: float, distance: float) -> Float[np.ndarray, "n 2"]:
    r"""Centres of squares of half-diagonal `distance` that meet the disc: every point of the disc is that near to one."""
    half = distance / math.sqrt(2)
    ticks = 2 * half * np.arange(-math.ceil(radius / half), math.ceil(radius / half) + 1)
    grid = np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2)
    nearest = np.maximum(abs(grid) - half, 0)
    return grid[np.linalg.norm(nearest, axis=1) <= radius]


def corners(radius: float, distance: float) -> Float[np.ndarray, "n 2"]:
    """Points of the disc that are as far from every centre of `net` as can be."""
    grid = net(radius, distance) + distance / math.sqrt(2)
    return grid[np.linalg.norm(grid, axis=1) <= radius]


def worst_distance(
    tokens: np.ndarray, u: np.ndarray, v: np.ndarray, scores: np.ndarray, values: np.ndarray
) -> float:
    """The largest distance of a member (u, v) from the nearest of the heads with centres `scores` x `values`.

    Only centres of scores near u are looked at: others could only make the distance smaller, so that the result is from above.
    """
    of_centres, of_members = (
        np.einsum(
            "kmn,mnd->kmd",
            special.softmax(np.einsum("mnd,kd->kmn", tokens, w), axis=-1),
            tokens,
            optimize=True,
        )
        for w in (scores, u)
    )
    near = np.argsort(((u[:, None] - scores) ** 2).sum(-1), 1)[:, :16]
    close = np.argsort(((v[:, None] - values) ** 2).sum(-1), 1)[:, :16]
    target = np.einsum("kmd,kd->km", of_members, v)
    candidates = np.einsum("kcmd,kbd->kcbm", of_centres[near], values[close])
    return float(abs(candidates - target[:, None, None]).max(-1).min((1, 2)).max())
