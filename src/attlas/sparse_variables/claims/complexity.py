"""Claims about the Rademacher complexity of heads: its bound, its growth with norm and length."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int

from attlas.capacity import class_of, collapsed_head
from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, product, whole
from attlas.claims.rules import Bound
from attlas.figure import Figure
from attlas.gaussian import Estimate
from attlas.rademacher import concatenated_complexity, draw_signs, mean_of, planar_complexity
from attlas.search import climb
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import LENGTH, unit_tokens
from attlas.statistics import log_slope

AXES: dict[str, Any] = {"x": LENGTH, "y": "Rademacher complexity", "log": "xy"}
MAP = {"concatenated": "linear map of the sequence"}

DRAWS = Hypothesis("draws >= 8", lambda s: s.draws >= 8, defining=True)


def planar_bound(cell: Setting) -> float:
    head = collapsed_head(cell.query_norm, 1.0, cell.length, 2, "sharp")
    return float(class_of(head).rademacher(cell.samples))


@sparse_variables.claim(
    reference="Lemma 2.2 and Corollary 4.5, with constants",
    origin="our reading",
    statement=r"The Rademacher complexity of"
    r" $\{v^\top X^\top\mathrm{softmax}(Xu) : |u| \le B_u, |v| \le 1\}$ on m sequences of unit"
    r" tokens is at most $\inf_a\{4a + \frac{12}{\sqrt m}\int_a^1\sqrt{H(\epsilon)}\,d\epsilon\}$"
    r" with the entropy H of the head, a number without T in the plane.",
    words="How well a head can fit coin flips stays below the bound that its norms give, where the"
    " bound says something.",
    hypotheses=(
        DRAWS,
        Hypothesis(
            "samples is large enough for the bound to be below the trivial one",
            lambda s: planar_bound(s) < 1,
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
    reference="Corollary 4.5, the length",
    origin="our reading",
    statement=r"At fixed norms the Rademacher complexity of heads on T random bits, each token"
    r" $(v_t + e_{b_t})/\sqrt2$, grows with T by an exponent below 0.2; $\sqrt{\ln T}$ has 0.1"
    r" there.",
    words="A longer context makes a head of given norms hardly richer.",
    hypotheses=(DRAWS,),
    quick=Setting(length=(16, 256), query_norm=20.0, samples=32, draws=16, starts=4, steps=80),
    paper=dict(length=(16, 64, 256, 1024), samples=64, draws=32),
    cells=whole,
    budget="draws",
    rule=Bound(),
    control=Control(
        "a linear map of the concatenated sequence, whose exponent is a half",
        lambda e: {"measured": e.map_exponent, "error": e.map_exponent_error},
    ),
    needs=("complexity-bound",),
)
def complexity_length(cell: Setting, draws: Draws) -> Values:
    signs = draw_signs(draws("signs"), cell.draws, cell.samples)
    heads, maps = [], []
    for length in cell.length:
        bits = draws.stream("bits").integers(0, 2, (cell.samples, length))
        heads.append(mean_of(place_complexity(bits, signs, draws("starts"), cell)))
        # Bits as tokens of one number: the part that all sequences share is fitted by nobody.
        maps.append(mean_of(concatenated_complexity((2.0 * bits - 1)[..., None], signs)))
    of_heads, of_maps = (Estimate(*np.array(found, float).T) for found in (heads, maps))
    tokens = np.array(cell.length, float)
    return {
        "bound": 0.2,
        "measured": Estimate(*log_slope(tokens, *of_heads)),
        "map_exponent": Estimate(*log_slope(tokens, *of_maps)),
        **on("size", complexity=of_heads, concatenated=of_maps.mean, tokens=tokens),
    }


@complexity_length.figure
def growth_with_length(evidence: xr.Dataset) -> Figure:
    root = np.sqrt(np.log(evidence.tokens))
    evidence = evidence.assign(root=evidence.complexity.isel(size=0) * root / root.isel(size=0))
    head, linear = (float(evidence[name][0]) for name in ("measured", "map_exponent"))
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
    bits, signs = args[0], jax.lax.stop_gradient(point["signs"])
    scores = (point["u"] + point["bit"][bits]) / jnp.sqrt(2)
    weights = signs[:, None] * jax.nn.softmax(scores)
    ones = (weights * bits).sum()
    square = (weights.sum(0) ** 2).sum() + ones**2 + (weights.sum() - ones) ** 2
    return jnp.sqrt(jnp.maximum(square / 2, 1e-300)) / len(signs)


def into_joint_ball(point: Any, args: Any) -> Any:
    length = jnp.sqrt((point["u"] ** 2).sum() + (point["bit"] ** 2).sum() + 1e-300)
    scale = jnp.minimum(1, args[1] / length)
    return {"u": point["u"] * scale, "bit": point["bit"] * scale, "signs": point["signs"]}


def place_complexity(
    bits: Int[np.ndarray, "m length"],
    signs: Float[np.ndarray, "draws m"],
    key: Array,
    cell: Setting,
) -> Float[np.ndarray, " draws"]:
    """The supremum over heads on sequences of bits, from below, for each draw of the signs.

    The ascent starts at the places that agree best with the signs, and at random directions.
    """
    draws, length, starts = len(signs), bits.shape[1], cell.starts
    agreement = abs(signs @ (2.0 * bits - 1))
    chosen = np.eye(length)[np.argsort(-agreement, kind="stable")[:, : starts // 2]]
    random = unit_tokens(key, draws, starts - starts // 2, length)
    start = {
        "u": cell.query_norm * np.concatenate([chosen, random], 1).reshape(-1, length),
        "bit": np.zeros((draws * starts, 2)),
        "signs": np.repeat(signs, starts, axis=0),
    }
    args = (bits, cell.query_norm)
    found = climb(place_correlation, into_joint_ball, start, args, steps=cell.steps)
    return found.value.reshape(draws, starts).max(1)
