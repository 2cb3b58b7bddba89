"""What a measurement returns, and how it becomes a Dataset with a leading axis `cell`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attlas.errors import InputError
from attlas.gaussian import Estimate

CELL = "cell"

Values = Mapping[str, Any] | xr.Dataset
"""What a measurement returns, by name: see `as_evidence`."""


def on(axes: str, **values: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Values that share their axes, for a measurement to return.

    `on("point", predicted=p, measured=m)` is `{"predicted": ("point", p), "measured": ("point",
    m)}`. An `Estimate` stays one.

    Arguments:
        axes: names of the axes, separated by spaces.
        values: arrays of that many axes, by name.
    """
    return {name: (tuple(axes.split()), value) for name, value in values.items()}


def as_evidence(values: Values, cells: int, batched: bool) -> xr.Dataset:
    """A measurement's values as a Dataset in which every variable has the leading axis `cell`.

    A value is a number, a pair (axes, array), a DataArray, or an `Estimate`: "measured" then brings
    the variable "error", any other name "NAME_error". A list of words or numbers under the name of
    an axis labels that axis.

    Arguments:
        values: by name.
        cells: how many cells were measured.
        batched: whether arrays have the axis `cell` already, as those of a measurement of many
            cells do; a variable without it is the same in all cells.
    """
    if not values:
        raise InputError("a measurement returned nothing: it returns what the rule reads, by name")
    flat: dict[str, Any] = {}
    for name, value in values.items():
        name = str(name)
        pair = isinstance(value, tuple) and not isinstance(value, Estimate)
        axes, content = value if pair else ((), value)
        if isinstance(content, Estimate):
            flat[name] = (axes, content.mean)
            flat["error" if name == "measured" else f"{name}_error"] = (axes, content.error)
        else:
            flat[name] = value
    if not batched and any(CELL in _axes(name, value) for name, value in flat.items()):
        raise InputError("the axis 'cell' is added to what one cell returns: name another axis")
    named = {axis for name in flat for axis in _axes(name, flat[name])}
    variables, labels = {}, {}
    for name, value in flat.items():
        if name in named and name != CELL:
            labels[name] = _content(value)
        else:
            variables[name] = _variable(name, value)
    evidence = xr.Dataset(variables, labels)
    if batched and CELL in evidence.dims and evidence.sizes[CELL] != cells:
        raise InputError(
            f"{cells} cells were measured and {evidence.sizes[CELL]} came back: the axis 'cell'"
            f" must"
            " have the length of the batch"
        )
    return evidence.assign(
        {
            name: variable if CELL in variable.dims else variable.expand_dims({CELL: cells})
            for name, variable in evidence.data_vars.items()
        }
    ).transpose(CELL, ...)


def _axes(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, xr.DataArray | xr.Variable):
        return tuple(map(str, value.dims))
    if isinstance(value, tuple) and len(value) == 2:
        axes = (value[0],) if isinstance(value[0], str) else tuple(value[0])
        return () if axes == (name,) else axes
    return ()


def _content(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else getattr(value, "values", value)


def _variable(name: str, value: Any) -> Any:
    if isinstance(value, xr.DataArray | xr.Variable):
        return value
    if isinstance(value, tuple):
        axes = (value[0],) if isinstance(value[0], str) else tuple(value[0])
        array = np.asarray(value[1])
        if array.ndim != len(axes):
            raise InputError(
                f"{name} has {array.ndim} axes of sizes {array.shape}, and {len(axes)} names:"
                f" {', '.join(axes) or 'none'}"
            )
        return (axes, array)
    array = np.asarray(value)
    if array.ndim:
        raise InputError(
            f"{name} is an array of shape {array.shape} whose axes have no names: return"
            f" on('AXIS', {name}=...)"
        )
    return ((), array)


def read_as(evidence: xr.Dataset, found: Values) -> xr.Dataset:
    """The evidence with what was `found` in it: a whole Dataset, or variables to assign."""
    if isinstance(found, xr.Dataset):
        return found
    # A variable that is replaced may have had another size along the same axis.
    replaced = [name for name in found if name in evidence.data_vars]
    return evidence.drop_vars(replaced).assign(**dict(found))
