"""Claims about how rich heads are: covers, and the Rademacher complexity that they bound."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int
from scipy import special

from attlas.attention import softmax
from attlas.capacity import class_of, collapsed_head
from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, product, together, whole
from attlas.claims.rules import Bound, Order
from attlas.covers import best_split, linear_entropy
from attlas.figure import Figure, Panels, row
from attlas.gaussian import Estimate, stream
from attlas.padding import bucket, pad_axis
from attlas.rademacher import concatenated_complexity, draw_signs, mean_of, planar_complexity
from attlas.search import climb
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import LENGTH, unit_tokens
from attlas.statistics import log_slope

AXES: dict[str, Any] = {"x": LENGTH, "y": "Rademacher complexity", "log": "xy"}
MAP = {"concatenated": "linear map of the sequence"}

DRAWS = Hypothesis("draws >= 8", lambda s: s.draws >= 8, defining=True)
DISTANCE = Hypothesis("0 < eps < 1", lambda s: 0 < s.eps < 1, defining=True)


@sparse_variables.claim(
    kind="simulation",
    reference="Lemma 4.6 and Zhang 2002, Theorem 4",
    origin="our reading",
    statement=r"$\{x \mapsto \langle w, x\rangle : |w| \le a\}$ has covers at distance"
    r" $\epsilon$ on $n$ points $|x| \le b$ of"
    r" $\min\{36\frac{a^2b^2}{\epsilon^2}\ln(2\lceil\frac{4ab}\epsilon + 2\rceil n +"
    r" 1),\ d\ln(1 + \frac{2ab}\epsilon)\}$ nats or less, which is never below the logarithm of"
    r" a number of members that are pairwise further apart than $2\epsilon$.",
    words="The covering numbers in the bounds are at least as large as the packings that were"
    " found, as they must be.",
    hypotheses=(DISTANCE, Hypothesis("points >= 8", lambda s: s.points >= 8, defining=True)),
    quick=Setting(eps=(0.05, 0.1, 0.2, 0.4), points=64, members=4000),
    paper=dict(eps=(0.03, 0.05, 0.1, 0.2, 0.4), points=256, members=6000),
    cells=together("eps"),
    budget="members",
    rule=Bound(),
    control=Control(
        "covers {size:.0%} smaller", lambda e, size: {"bound": (1 - size) * e.bound}, size=0.5
    ),
)
def linear_cover(cell: Setting, draws: Draws) -> Values:
    angles = np.pi * np.arange(cell.points) / cell.points
    circle = np.stack([np.cos(angles), np.sin(angles)])
    planar = packing_number(disc(draws("members"), cell.members) @ circle, 2 * cell.eps)
    packed = [math.log(planar), sparse_packing(cell.eps, cell.points)]
    covers = [linear_entropy(1, cell.eps, cell.points, dim) for dim in (2, np.inf)]
    return {
        **on("class", bound=covers, measured=packed),
        "error": 0.0,
        "class": ["in the plane", "as many dimensions as points"],
    }


@linear_cover.figure
def covers_and_packings(evidence: xr.Dataset) -> Figure:
    sizes = {"bound": "cover, bound", "measured": "packing, found"}
    return Figure(
        evidence,
        "Covers of linear classes, and packings",
        "no cover can be smaller than the packing; what lies between is slack of the bound",
        x="distance ε",
        y="nats",
        log="xy",
    ).lines("eps", sizes, color="class", points=True)


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


def sparse_packing(eps: float, points: int) -> float:
    r"""Nats of an explicit packing of unit weights on n orthonormal points.

    Weights with k entries $\pm1/\sqrt k$ differ by that much or more somewhere, which exceeds
    $2\epsilon$ while $k < 1/4\epsilon^2$; there are $\binom nk2^k$ of them.
    """
    k = np.arange(min(points, math.ceil(1 / (4 * eps**2)) - 1) + 1)
    log_binomial = -special.betaln(points - k + 1, k + 1) - math.log(points + 1)
    return float((log_binomial + k * math.log(2)).max())


@sparse_variables.claim(
    kind="simulation",
    reference="Theorem 4.2",
    origin="our reading",
    statement=r"A cover of the scores at $\alpha\epsilon/(C B_{in}B_X)$ and one of the values"
    r" at $(1-\alpha)\epsilon$, on all tokens, make a cover of the heads $v^\top"
    r" X^\top\mathrm{softmax}(Xu)$ at $\epsilon$: for every $u$ and $v$ some pair of centres is"
    r" within $\epsilon$ on every sequence.",
    words="Finitely many heads, built from finitely many scores and values, come within the"
    " given distance of every head. The worst head that was found is at about half of it, since"
    " scores matter most where the tokens balance and values where they do not.",
    hypotheses=(DISTANCE,),
    quick=Setting(eps=(0.3, 0.5), length=6, samples=24, members=800),
    paper=dict(eps=(0.2, 0.3, 0.5), length=12, samples=64, members=6000),
    cells=together("eps"),
    budget="members",
    rule=Bound(),
    control=Control(
        "a distance {size:.0%} smaller", lambda e, size: {"bound": (1 - size) * e.bound}, size=0.6
    ),
    needs=("head-lipschitz",),
)
def cover_composition(cell: Setting, draws: Draws) -> Values:
    tokens = unit_tokens(draws("tokens"), cell.samples, cell.length, 2)
    # Scores matter most where tokens alternate between two opposite directions, values where all
    # are the same.
    third = cell.samples // 3
    angles = np.pi * np.arange(third) / third
    sides = np.stack([np.cos(angles), np.sin(angles)], 1)[:, None]
    tokens[:third] = np.where(np.arange(cell.length)[:, None] % 2, sides, -sides)
    tokens[third : 2 * third] = sides
    scores, values = 4.0, 1.0
    alpha = best_split([scores * values, values])[1][0]
    score_distance, value_distance = alpha * cell.eps / values, (1 - alpha) * cell.eps
    score_net, value_net = net(scores, score_distance), net(values, value_distance)
    # The members hardest to reach: scores that hardly differ, where four centres meet, and long
    # values.
    hard = corners(2 * score_distance, score_distance)
    turn = 2 * np.pi * np.arange(cell.members) / cell.members
    long = values * np.stack([np.cos(turn), np.sin(turn)], 1)
    u = np.concatenate([scores * disc(draws("scores"), cell.members), np.resize(hard, long.shape)])
    v = np.concatenate([values * disc(draws("values"), cell.members), long])
    return {
        "bound": cell.eps,
        "measured": worst_distance(tokens, u, v, score_net, value_net),
        "error": 0.0,
        "nats_built": math.log(len(score_net)) + math.log(len(value_net)),
        "nats_bound": linear_entropy(scores * values, alpha * cell.eps, 1, 2)
        + linear_entropy(values, value_distance, 1, 2),
    }


@cover_composition.figure
def composed_covers(evidence: xr.Dataset) -> Panels:
    size: dict[str, Any] = {"x": "distance ε asked for", "zero": "-x", "width": 300, "height": 260}
    sizes = {"nats_built": "net that was built", "nats_bound": "bound"}
    return row(
        Figure(evidence, y="distance of the worst head found", **size)
        .lines("eps", "bound", theory=True)
        .points("eps", "measured", size=70),
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


def planar_bound(cell: Setting) -> float:
    head = collapsed_head(cell.query_norm, 1.0, cell.length, 2, "sharp")
    return float(class_of(head).rademacher(cell.samples))


@sparse_variables.claim(
    kind="simulation",
    reference="Lemma 2.2 and Corollary 4.5, with constants",
    origin="our reading",
    statement=r"The Rademacher complexity of $\{v^\top X^\top\mathrm{softmax}(Xu) : |u| \le"
    r" B_u, |v| \le 1\}$ on $m$ sequences of unit tokens is at most $\inf_a\{4a +"
    r" \frac{12}{\sqrt m}\int_a^1\sqrt{H(\epsilon)}\,d\epsilon\}$ with the entropy $H$ of the"
    r" head, which in the plane does not depend on $T$.",
    words="How well a head can fit coin flips stays below the bound that its norms give, where"
    " that bound is below the trivial one. The bound is not sharp: the largest complexity that a"
    " search finds, on random sequences of four tokens, is a sixtieth of it; what is compared with"
    " it is an enclosure from above, which a coarse grid makes larger.",
    hypotheses=(
        DRAWS,
        Hypothesis(
            "samples is large enough for the bound to be below the trivial one",
            lambda s: planar_bound(s) < 1,
        ),
        Hypothesis(
            "rings >= 1.5 query_norm: a coarser certificate of the supremum is far above it",
            lambda s: s.rings >= 1.5 * s.query_norm,
            defining=True,
        ),
    ),
    quick=Setting(length=(4, 1536), query_norm=(0.5,), samples=2048, draws=32, rings=2),
    paper=dict(length=(4, 64, 2048), query_norm=(0.5, 2.0), samples=4096, rings=3),
    cells=product("length", "query_norm"),
    budget="draws",
    rule=Bound(),
    control=Control(
        "a linear map of the concatenated sequence, of the same norm",
        lambda e: {"measured": e.concatenated, "error": e.concatenated_error},
    ),
    needs=("cover-composition", "linear-cover"),
)
def complexity_bound(cell: Setting, draws: Draws) -> Values:
    tokens = unit_tokens(draws("tokens"), cell.samples, cell.length, 2)
    signs = draw_signs(draws("signs"), cell.draws, cell.samples)
    found = planar_complexity(tokens, signs, query_norm=cell.query_norm, rings=cell.rings)
    return {
        "bound": planar_bound(cell),
        "measured": mean_of(found.upper),
        "lower": found.lower.mean(),
        "concatenated": mean_of(concatenated_complexity(tokens, signs)),
        "repetitions": cell.draws,
    }


@complexity_bound.figure
def complexity_and_bound(evidence: xr.Dataset) -> Figure:
    heads = {"measured": "head, from above", "lower": "head, from below"}
    return (
        Figure(
            evidence,
            "Complexity of heads in the plane, and its bound",
            f"m = {evidence.samples.values.flat[0]:,} sequences; 'from above' has the slack of a"
            " grid; the linear map breaks the bound of the heads",
            **AXES,
        )
        .lines("length", {"bound": "bound", **heads, **MAP}, detail="query_norm", points=True)
        .rule(1, "trivial")
    )


@sparse_variables.claim(
    kind="simulation",
    reference="Corollary 4.5, the length",
    origin="our reading",
    statement=r"At fixed norms the Rademacher complexity of heads on $T$ random bits, each"
    r" token $(v_t + e_{b_t})/\sqrt2$, grows with $T$ by a smaller exponent than $\sqrt{\ln T}$"
    r" over the same lengths.",
    words="A longer context makes a head of given norms hardly richer: an ascent finds a third of"
    " the growth that the bound allows.",
    hypotheses=(DRAWS,),
    quick=Setting(length=(16, 32, 64, 128, 256), query_norm=20.0, samples=16, draws=64, steps=40),
    paper=dict(length=(16, 32, 64, 256, 1024), samples=64, steps=160),
    cells=whole,
    budget="draws",
    rule=Order(),
    control=Control(
        "an exponent larger by {size:.2f}, as that of a linear map of the concatenated sequence is",
        lambda e, size: {"lower": e.lower + size},
        size=0.4,
    ),
    needs=("complexity-bound",),
)
def complexity_length(cell: Setting, draws: Draws) -> Values:
    signs = draw_signs(draws("signs"), cell.draws, cell.samples)
    lengths = np.array(cell.length, float)
    heads, maps = [], []
    for length in cell.length:
        bits = draws.stream("bits").integers(0, 2, (cell.samples, length))
        heads.append(place_complexity(bits, signs, cell))
        # Bits as tokens of one number: the part that all sequences share is fitted by nobody.
        maps.append(concatenated_complexity((2.0 * bits - 1)[..., None], signs))
    growth = paired_exponent(lengths, np.array(heads))
    return {
        "lower": growth.mean,
        "upper": float(log_slope(lengths, np.sqrt(np.log(lengths)), 0 * lengths)[0]),
        "error": growth.error,
        "repetitions": cell.draws,
        "map_exponent": paired_exponent(lengths, np.array(maps)).mean,
        **on("size", complexity=mean_of(heads), concatenated=mean_of(maps).mean, tokens=lengths),
    }


def paired_exponent(x: Float[np.ndarray, " n"], values: Float[np.ndarray, "n draws"]) -> Estimate:
    """The exponent of x in the mean over draws, by least squares; draws are the same for all x."""
    logs, mean = np.log(x), values.mean(1)
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    # To first order a draw moves the logarithm of the mean by its value over the mean.
    spread = (weights @ (values / mean[:, None])).std(ddof=1)
    return Estimate(float(weights @ np.log(mean)), float(spread / math.sqrt(values.shape[1])))


@complexity_length.figure
def growth_with_length(evidence: xr.Dataset) -> Figure:
    root = np.sqrt(np.log(evidence.tokens))
    evidence = evidence.assign(root=evidence.complexity.isel(size=0) * root / root.isel(size=0))
    head, linear = (float(evidence[name][0]) for name in ("lower", "map_exponent"))
    return (
        Figure(
            evidence,
            "A longer context makes a head hardly richer",
            f"exponents {head:.3f} and {linear:.3f}; dashed: the root of ln T through the first"
            " point",
            **AXES,
        )
        .lines("tokens", "root", theory=True)
        .points("tokens", "complexity", error="complexity_error")
        .lines("tokens", {"complexity": "head", **MAP}, points=True)
    )


def place_correlation(point: Any, args: Any) -> Array:
    r"""$|\frac1m\sum_i\sigma_iX_i^\top p_i|$ for tokens $x_t = (v_t + e_{b_t})/\sqrt2$ with
    orthonormal embeddings: sums over places and over bits."""
    (bits, mask, _), signs = args, jax.lax.stop_gradient(point["signs"])
    zero, one = point["bit"]
    scores = (point["u"] + zero + (one - zero) * bits) / jnp.sqrt(2)
    weights = signs[:, None] * softmax(scores, mask)
    ones = (weights * bits).sum()
    square = (weights.sum(0) ** 2).sum() + ones**2 + (weights.sum() - ones) ** 2
    return jnp.sqrt(jnp.maximum(square / 2, 1e-300)) / len(signs)


def into_joint_ball(point: Any, args: Any) -> Any:
    length = jnp.sqrt((point["u"] ** 2).sum() + (point["bit"] ** 2).sum() + 1e-300)
    scale = jnp.minimum(1, args[2] / length)
    return {"u": point["u"] * scale, "bit": point["bit"] * scale, "signs": point["signs"]}


def place_complexity(
    bits: Int[np.ndarray, "m length"], signs: Float[np.ndarray, "draws m"], cell: Setting
) -> Float[np.ndarray, " draws"]:
    """The supremum over heads on sequences of bits, from below, for each draw of the signs.

    The ascent starts at the two, and at the four, places that agree best with the signs, looking
    for ones or for zeros there. Sequences are padded, to share a program.
    """
    wide = bucket(bits.shape[1], 64)
    best = np.argsort(-abs(signs @ (2.0 * bits - 1)), kind="stable")
    start: dict[str, list[np.ndarray]] = {"u": [], "bit": [], "signs": []}
    for places, side in itertools.product((2, 4), (-0.2, 0.2)):
        chosen = np.eye(wide)[best[:, :places]].sum(1)
        start["u"].append(cell.query_norm * np.sqrt((1 - 2 * side**2) / places) * chosen)
        start["bit"].append(np.tile(cell.query_norm * np.array([-side, side]), (len(signs), 1)))
        start["signs"].append(signs)
    padded = pad_axis(bits, wide, 1).astype(float), np.arange(wide) < bits.shape[1], cell.query_norm
    together = {name: np.concatenate(parts) for name, parts in start.items()}
    found = climb(place_correlation, into_joint_ball, together, padded, steps=cell.steps)
    return found.value.reshape(-1, len(signs)).max(0)
