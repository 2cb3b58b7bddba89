"""Which theorem applies to a model: how far it is from each hypothesis of the maps.

shuffled = exchangeability(model, tokens)     # Dataset over `layer`
distances(norms, seen, shuffled)              # a `Distance` for every hypothesis measured
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import xarray as xr
from jax.typing import DTypeLike

from attlas.audit.architectures import Model
from attlas.audit.behaviour import token_roles
from attlas.audit.forward import embed, trace
from attlas.audit.quantities import HYPOTHESES, finite_quantiles
from attlas.audit.texts import Tokens


def exchangeability(
    model: Model, tokens: Tokens, seed: int = 0, dtype: DTypeLike = np.float32
) -> xr.Dataset:
    r"""How much the states of each layer change when the content tokens of each text are shuffled.

    Measured is $|f(\pi x) - \pi f(x)| / |f(x)|$ in root mean square over the content tokens: the
    states of a first token or a separator can be a thousand times as large, and would hide them.

    Arguments:
        tokens: of the texts, padded.
        seed: of the shuffles.
        dtype: the precision of the layers; float64 needs `jax.enable_x64`.

    Returns a Dataset over `layer`:
        together: tokens are shuffled with their positions. A transformer sees a set of pairs of
            token and position, so that this is 0 but for rounding.
        apart: tokens are shuffled, positions stay; 0 if tokens were exchangeable.
        reader: `apart` at the token where the text is read, which stays in its place.
    """
    order = shuffle_content(model, tokens, seed)
    rows = np.arange(len(order))[:, None]
    apart = replace(tokens, ids=tokens.ids[rows, order])
    together = replace(apart, positions=tokens.positions[rows, order])
    batches = [embed(model, each) for each in (tokens, together, apart)]
    roles = token_roles(model, tokens)
    reader = (rows[:, 0], roles.reader)
    found: dict[str, list[float]] = {"together": [], "apart": [], "reader": []}
    expected = np.zeros(0)
    for step in trace(model, batches, dtype):
        states = np.asarray(step.after, np.float64)
        if step.batch == 0:
            expected = states[rows, order]
            continue
        name = ("together", "apart")[step.batch - 1]
        found[name].append(_relative_change(states[roles.content], expected[roles.content]))
        if name == "apart":
            found["reader"].append(_relative_change(states[reader], expected[reader]))
    return xr.Dataset({name: ("layer", values) for name, values in found.items()})


def shuffle_content(model: Model, tokens: Tokens, seed: int = 0) -> np.ndarray:
    """Indices [b, n] that permute the content tokens of each text; the reader and others stay."""
    roles = token_roles(model, tokens)
    order = np.tile(np.arange(tokens.ids.shape[1]), (len(tokens.ids), 1))
    bits = np.random.default_rng(seed)
    for i, content in enumerate(roles.content):
        places = np.flatnonzero(content & (np.arange(len(content)) != roles.reader[i]))
        order[i, places] = bits.permutation(places)
    return order


def _relative_change(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(((a - b) ** 2).sum() / max((b**2).sum(), 1e-300)))


@dataclass(frozen=True)
class Distance:
    """How far a model is from a hypothesis.

    `least`, `middle` (median) and `most` are over layers or heads; `exact` is the value at which
    the hypothesis holds, `beside` the medians of the references.
    """

    map: str
    hypothesis: str
    words: str
    exact: float
    least: float
    middle: float
    most: float
    beside: Mapping[str, float] = field(default_factory=dict)


def distances(
    *measured: xr.Dataset, references: Mapping[str, Sequence[xr.Dataset]] = MappingProxyType({})
) -> list[Distance]:
    """The distance from every hypothesis that was measured.

    Arguments:
        measured: Datasets of `measure_weights`, `measure_behaviour` and `exchangeability`.
        references: the same of other models, by name.
    """
    own = _by_name(measured)
    others = {title: _by_name(found) for title, found in references.items()}
    found = []
    for hypothesis in HYPOTHESES:
        stated = dict(hypothesis)
        name = stated.pop("variable")
        if name in own:
            least, middle, most = map(float, finite_quantiles(own[name], (0.0, 0.5, 1.0)))
            beside = {
                title: float(finite_quantiles(its[name], (0.5,))[0])
                for title, its in others.items()
                if name in its
            }
            found.append(Distance(**stated, least=least, middle=middle, most=most, beside=beside))
    return found


def _by_name(measured: Sequence[xr.Dataset]) -> dict[str, np.ndarray]:
    return {str(name): x.values for found in measured for name, x in found.data_vars.items()}
