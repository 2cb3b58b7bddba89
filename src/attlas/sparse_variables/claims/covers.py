"""Claims about covers: of linear classes against packings, and of a head by those of its parts."""

import math
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims import Bound, Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.covers import best_split, linear_entropy
from attlas.figure import Figure, row
from attlas.gaussian import stream
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import unit_tokens

DISTANCE = Hypothesis("0 < eps < 1", lambda s: 0 < s.eps < 1, defining=True)


@sparse_variables.claim(
    reference="Lemma 4.6 and Zhang 2002, Theorem 4",
    origin="our reading",
    statement=r"$\{x \mapsto \langle w, x\rangle : |w| \le a\}$ has covers at distance $\epsilon$"
    r" on n points $|x| \le b$ of $\min\{36\frac{a^2b^2}{\epsilon^2}"
    r"\ln(2\lceil\frac{4ab}\epsilon + 2\rceil n + 1),\ d\ln(1 + \frac{2ab}\epsilon)\}$ nats or"
    r" less, which is never below the logarithm of a number of members that are pairwise further"
    r" apart than $2\epsilon$.",
    words="The covers that the bounds rest on are at least as large as the packings that can be"
    " exhibited.",
    hypotheses=(DISTANCE, Hypothesis("points >= 8", lambda s: s.points >= 8, defining=True)),
    quick=Setting(eps=(0.05, 0.1, 0.2, 0.4), points=64, members=4000),
    paper=dict(eps=(0.03, 0.05, 0.1, 0.2, 0.4), points=256, members=6000),
    cells=together("eps"),
    budget="members",
    rule=Bound(),
    control=Control(
        "weights ten times as long as the bound assumes", lambda e: {"measured": e.longer}
    ),
)
def linear_cover(cell: Setting, draws: Draws) -> Values:
    angles = np.pi * np.arange(cell.points) / cell.points
    circle = np.stack([np.cos(angles), np.sin(angles)])
    members = disc(draws("members"), cell.members)

    def packed(size: float) -> list[float]:
        planar = packing_number(size * members @ circle, 2 * cell.eps)
        return [math.log(planar), sparse_packing(size, cell.eps, cell.points)]

    covers = [linear_entropy(1, cell.eps, cell.points, dim) for dim in (2, np.inf)]
    return {
        **on("class", bound=covers, measured=packed(1.0), longer=packed(10.0)),
        "error": 0.0,
        "class": ["in the plane", "as many dimensions as points"],
    }


@linear_cover.figure
def covers_and_packings(evidence: xr.Dataset) -> Figure:
    return Figure(
        evidence,
        "Covers of linear classes, and packings",
        "no cover can be smaller than the packing; what lies between is slack of the bound",
        x="distance ε",
        y="nats",
        log="xy",
    ).lines(
        "eps", {"bound": "cover, bound", "measured": "packing, found"}, color="class", points=True
    )


def disc(key: Array, members: int) -> Float[np.ndarray, "n 2"]:
    """Points uniform on the unit disc."""
    square, turn = stream(key).random((2, members))
    angle = 2 * np.pi * turn
    return np.sqrt(square)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)


def packing_number(values: Float[np.ndarray, "members points"], apart: float) -> int:
    """How many members, chosen greedily, pairwise differ by more than `apart` somewhere."""
    left, count = values, 0
    while len(left):
        left = left[abs(left - left[0]).max(1) > apart]
        count += 1
    return count


def sparse_packing(size: float, eps: float, points: int) -> float:
    r"""Nats of an explicit packing on n orthonormal points.

    Weights with k entries $\pm a/\sqrt k$ differ by that much or more somewhere, which exceeds
    $2\epsilon$ while $k < a^2/4\epsilon^2$; there are $\binom nk2^k$ of them.
    """
    most = min(points, math.ceil(size**2 / (4 * eps**2)) - 1)
    return max(
        math.lgamma(points + 1) - math.lgamma(k + 1) - math.lgamma(points - k + 1) + k * math.log(2)
        for k in range(most + 1)
    )


@sparse_variables.claim(
    reference="Theorem 4.2",
    origin="our reading",
    statement=r"A cover of the scores at $\alpha\epsilon/(C B_{in}B_X)$ and one of the values at"
    r" $(1-\alpha)\epsilon$, on all tokens, make a cover of the heads"
    r" $v^\top X^\top\mathrm{softmax}(Xu)$ at $\epsilon$: for every u and v some pair of centres is"
    r" within $\epsilon$ on every sequence.",
    words="Finitely many heads, built from finitely many scores and values, come near to every"
    " head.",
    hypotheses=(DISTANCE,),
    quick=Setting(eps=(0.3, 0.5), length=6, samples=24, members=1500),
    paper=dict(eps=(0.2, 0.3, 0.5), length=12, samples=64, members=6000),
    cells=together("eps"),
    budget="members",
    rule=Bound(),
    control=Control("scores covered four times as coarsely", lambda e: {"measured": e.coarse}),
    needs=("head-lipschitz",),
)
def cover_composition(cell: Setting, draws: Draws) -> Values:
    tokens = unit_tokens(draws("tokens"), cell.samples, cell.length, 2)
    # A head is most sensitive where tokens alternate between two opposite directions.
    tokens[0] = np.where(np.arange(cell.length)[:, None] % 2, [1.0, 0.0], [-1.0, 0.0])
    scores, values = 4.0, 1.0
    alpha = best_split([scores * values, values])[1][0]
    score_distance, value_distance = alpha * cell.eps / values, (1 - alpha) * cell.eps
    value_net = net(values, value_distance)
    u = scores * disc(draws("scores"), cell.members)
    v = values * disc(draws("values"), cell.members)

    def furthest(distance: float) -> float:
        # The members hardest to reach lie where four centres meet.
        members = np.concatenate([u, corners(scores, distance)])
        partners = np.concatenate([v, corners(values, value_distance)])
        partners = np.resize(partners, (len(members), 2))
        return worst_distance(tokens, members, partners, net(scores, distance), value_net)

    return {
        "bound": cell.eps,
        "measured": furthest(score_distance),
        "coarse": furthest(4 * score_distance),
        "error": 0.0,
        "nats_built": math.log(len(net(scores, score_distance))) + math.log(len(value_net)),
        "nats_bound": linear_entropy(scores * values, alpha * cell.eps, 1, 2)
        + linear_entropy(values, value_distance, 1, 2),
    }


@cover_composition.figure
def composed_covers(evidence: xr.Dataset) -> Any:
    size: dict[str, Any] = {"x": "distance ε asked for", "zero": "-x", "width": 300, "height": 260}
    distances = {"measured": "as the theorem says", "coarse": "scores four times as coarse"}
    sizes = {"nats_built": "net that was built", "nats_bound": "bound"}
    return row(
        Figure(evidence, y="distance of the worst head found", **size)
        .lines("eps", "bound", theory=True)
        .points("eps", distances, size=70),
        Figure(evidence, y="nats of the product net", **size).lines("eps", sizes, points=True),
        title="A net of scores times a net of values covers the heads",
        note="dashed: the distance that must not be exceeded",
    )


def net(radius: float, distance: float) -> Float[np.ndarray, "n 2"]:
    """Centres of a grid of squares, one of them within `distance` of every point of the disc."""
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
    """The largest distance of a head (u, v) from the nearest with centres `scores` x `values`.

    Only the 16 centres nearest to u and to v are looked at, so the result is an upper bound.
    """

    def attended(directions: np.ndarray) -> np.ndarray:
        weights = special.softmax(np.einsum("mnd,kd->kmn", tokens, directions), axis=-1)
        return np.einsum("kmn,mnd->kmd", weights, tokens, optimize=True)

    near_u, near_v = (
        np.argsort(((member[:, None] - centres) ** 2).sum(-1), 1)[:, :16]
        for member, centres in ((u, scores), (v, values))
    )
    target = np.einsum("kmd,kd->km", attended(u), v)
    candidates = np.einsum("kcmd,kbd->kcbm", attended(scores)[near_u], values[near_v])
    return float(abs(candidates - target[:, None, None]).max(-1).min((1, 2)).max())
