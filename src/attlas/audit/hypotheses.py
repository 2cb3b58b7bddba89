r"""Which theorem speaks about this model: for each hypothesis of the maps, how far the model is from it.

apart = exchangeability(model, tokens)       # Dataset over `layer`: what becomes of a layer's output when tokens are shuffled
distances(weighed, seen, apart)              # Distance: hypothesis, who needs it, measured, where it would hold exactly
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import xarray as xr
from jax.typing import DTypeLike

from attlas.audit.architectures import Model
from attlas.audit.behaviour import roles
from attlas.audit.forward import embed, trace
from attlas.audit.texts import Tokens


def exchangeability(
    model: Model, tokens: Tokens, seed: int = 0, dtype: DTypeLike = np.float32
) -> xr.Dataset:
    r"""Shuffle the content tokens of each text and compare every layer's states with the shuffled states of the text as it was, as
    $|f(\pi x) - \pi f(x)| / |f(x)|$ in root mean square.

    `together`: tokens and their positions are shuffled alike, which changes nothing in a transformer (0 but for rounding): it sees a set of pairs
    of token and position. `apart`: tokens are shuffled and positions stay, which is what exchangeable tokens would not notice. `reader` is `apart` at
    [CLS], which stays in its place; in causal models, at the last token.
    """
    order = shuffled(model, tokens, seed)
    rows = np.arange(len(order))[:, None]
    apart = replace(tokens, ids=tokens.ids[rows, order], types=tokens.types[rows, order])
    together = replace(apart, positions=tokens.positions[rows, order])
    batches = [embed(model, each) for each in (tokens, together, apart)]
    reader = roles(model, tokens).reader
    found: dict[str, list[float]] = {"together": [], "apart": [], "reader": []}
    plain = np.zeros(0)
    for step in trace(model, batches, dtype):
        states = np.asarray(step.after, np.float64)
        if step.batch == 0:
            plain = states[rows, order]
            continue
        found[("together", "apart")[step.batch - 1]].append(
            _relative(states[tokens.mask], plain[tokens.mask])
        )
        if step.batch == 2:
            found["reader"].append(_relative(states[rows[:, 0], reader], plain[rows[:, 0], reader]))
    return xr.Dataset({name: ("layer", values) for name, values in found.items()})


def shuffled(model: Model, tokens: Tokens, seed: int = 0) -> np.ndarray:
    """Places [b, n] such that each text's content tokens are shuffled among themselves and the others stay; the reader stays too."""
    who = roles(model, tokens)
    order = np.tile(np.arange(tokens.ids.shape[1]), (len(tokens.ids), 1))
    bits = np.random.default_rng(seed)
    for i, content in enumerate(who.content):
        places = np.flatnonzero(content & (np.arange(len(content)) != who.reader[i]))
        order[i, places] = bits.permutation(places)
    return order


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(((a - b) ** 2).sum() / max((b**2).sum(), 1e-300)))


@dataclass(frozen=True)
class Distance:
    """How far a model is from a hypothesis: `least`, `middle` and `most` over layers or heads; `exact` is where the hypothesis holds, `beside` the
    medians of the references."""

    map: str
    hypothesis: str
    words: str
    exact: float
    least: float
    middle: float
    most: float
    beside: Mapping[str, float] = field(default_factory=dict)


HYPOTHESES = (
    (
        "single location",
        "tokens are nearly orthogonal",
        "root mean square cosine of two tokens, over that of independent ones",
        1.0,
        "token_overlap",
    ),
    (
        "single location",
        "tokens are Gaussian",
        "excess kurtosis of their coordinates",
        0.0,
        "excess_kurtosis",
    ),
    (
        "single location",
        "one direction gates",
        "share of the scores' variance that the query does not touch",
        1.0,
        "query_free",
    ),
    (
        "single location",
        "one token is looked at, by content",
        "single-location score of a head",
        1.0,
        "single_location",
    ),
    (
        "single location",
        "one direction is read",
        "share of the variance of what is read that lies along one direction",
        1.0,
        "read_direction",
    ),
    (
        "sparse variables",
        "heads are Lipschitz with a small constant",
        "logarithm to base 10 of the bound",
        0.0,
        "log10_lipschitz",
    ),
    (
        "sparse variables",
        "tokens are of one length",
        "coefficient of variation of their lengths",
        0.0,
        "token_spread",
    ),
    (
        "sparse variables",
        "norms do not stretch",
        "largest factor by which the norm before the position-wise map stretched a token",
        1.0,
        "mlp_stretch",
    ),
    (
        "sparse variables",
        "attention lies on few tokens",
        "entropy of attention over its largest value",
        0.0,
        "entropy",
    ),
    (
        "latent posterior",
        "keys lie on a sphere",
        "coefficient of variation of their lengths",
        0.0,
        "key_spread",
    ),
    (
        "latent posterior",
        "a head conditions: ridge regression of values on keys",
        "relative distance of its output, at the best ridge and temperature",
        0.0,
        "cme_distance",
    ),
    (
        "latent posterior",
        "pairs of token and position are exchangeable",
        "relative change of the states when both are shuffled",
        0.0,
        "together",
    ),
    (
        "latent posterior",
        "tokens are exchangeable",
        "relative change of the states when tokens are shuffled and positions stay",
        0.0,
        "apart",
    ),
)
"""Which map needs what, how it is measured, the value at which it holds, and the variable."""


def distances(
    *measured: xr.Dataset, references: Mapping[str, Sequence[xr.Dataset]] = MappingProxyType({})
) -> list[Distance]:
    """Every hypothesis that `measured` has something to say about: Datasets of `heads.weigh`, `behaviour.watch` and `exchangeability`; and the
    same of `references`, by name."""
    own, others = _by_name(measured), {name: _by_name(found) for name, found in references.items()}
    return [
        Distance(
            *(map, hypothesis, words, exact, *_spread(own[name].values)),
            beside={
                title: _spread(known[name].values)[1]
                for title, known in others.items()
                if name in known
            },
        )
        for map, hypothesis, words, exact, name in HYPOTHESES
        if name in own
    ]


def _by_name(measured: Sequence[xr.Dataset]) -> dict[str, xr.DataArray]:
    return {str(name): values for found in measured for name, values in found.data_vars.items()}


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    """Least, median and most."""
    numbers = values[np.isfinite(values)]
    if not numbers.size:
        return (float("nan"),) * 3
    return float(numbers.min()), float(np.median(numbers)), float(numbers.max())
