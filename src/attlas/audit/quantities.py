"""The quantities of an audit and the hypotheses they bear on, as quantities.toml lists them."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
import xarray as xr

from attlas.audit.architectures import Model

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
NAMES: dict[str, str] = _LISTED["names"]
"""What the page calls the quantities of a head."""
OF_TOKENS: dict[str, str] = _LISTED["tokens"]
"""The quantities of the tokens of a layer, in words."""
SHARES, COLUMNS = tuple(_LISTED["shares"]), tuple(_LISTED["columns"])
BOUNDS: dict[str, dict[str, str]] = _LISTED["bounds"]
"""The bounds on capacity: what each is called, what it depends on and where it is from."""
HYPOTHESES: list[dict[str, Any]] = _LISTED["hypotheses"]
"""The assumptions of the maps: the `variable` that measures each, `exact` where it holds."""


def stack_layers(
    model: Model,
    layers: Sequence[Mapping[str, np.ndarray]],
    coordinates: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> xr.Dataset:
    """What was measured in each layer as a Dataset over `layer`, `head` and further coordinates.

    Arguments:
        layers: for each layer arrays by name, with the axes head and those of `coordinates`, or
            the first of them.
        coordinates: labels of further axes, by name.
        attributes: of the Dataset, beside the model's name.
    """
    coords = {"layer": np.arange(model.layers), "head": np.arange(model.heads)}
    coords |= coordinates or {}
    stacked = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    variables = {name: (tuple(coords)[: x.ndim], x.astype(float)) for name, x in stacked.items()}
    return xr.Dataset(variables, coords, {"model": model.name, **attributes})


def finite_quantiles(values: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Quantiles of those of `values` that are finite; NaN where none is."""
    numbers = np.asarray(values, float)
    numbers = numbers[np.isfinite(numbers)]
    return np.quantile(numbers, shares) if numbers.size else np.full(len(shares), np.nan)


def describe(measured: xr.Dataset) -> xr.Dataset:
    """The same with what each quantity is as its attribute `words`."""
    for name, words in (FROM_TEXT | FROM_WEIGHTS | OF_TOKENS).items():
        if name in measured:
            measured[name].attrs["words"] = words
    return measured
