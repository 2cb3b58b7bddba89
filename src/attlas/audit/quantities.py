"""The quantities of an audit and the hypotheses they bear on, as quantities.toml lists them."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from attlas.audit.architectures import Model


class Hypothesis(NamedTuple):
    """An assumption of a map, the variable that measures it, and the value at which it holds."""

    map: str
    hypothesis: str
    words: str
    exact: float
    variable: str


_LISTED = tomllib.loads((resources.files("attlas.audit") / "quantities.toml").read_text("utf-8"))
GROUPS = {
    group: tuple(words) for need in ("text", "weights") for group, words in _LISTED[need].items()
}
"""The quantities of a head, as the page offers them."""
FROM_TEXT, FROM_WEIGHTS = (
    {name: words for group in _LISTED[need].values() for name, words in group.items()}
    for need in ("text", "weights")
)
"""The quantities of a head that need a text, and those that do not, in words."""
OF_TOKENS: dict[str, str] = _LISTED["tokens"]
"""The quantities of the tokens of a layer, in words."""
SHARES, COLUMNS = tuple(_LISTED["shares"]), tuple(_LISTED["columns"])
HYPOTHESES = tuple(Hypothesis(**row) for row in _LISTED["hypotheses"])


def stack_layers(
    model: Model,
    layers: Sequence[Mapping[str, np.ndarray]],
    coordinates: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> xr.Dataset:
    """What was measured in each layer as a Dataset over `layer`, `head` and further coordinates."""
    coords = {"layer": np.arange(model.layers), "head": np.arange(model.heads)}
    coords |= coordinates or {}
    stacked = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    variables = {name: (tuple(coords)[: x.ndim], x.astype(float)) for name, x in stacked.items()}
    return xr.Dataset(variables, coords, {"model": model.name, **attributes})


def describe(measured: xr.Dataset) -> xr.Dataset:
    """The same with what each quantity is as its attribute `words`."""
    for name, words in (FROM_TEXT | FROM_WEIGHTS | OF_TOKENS).items():
        if name in measured:
            measured[name].attrs["words"] = words
    return measured
