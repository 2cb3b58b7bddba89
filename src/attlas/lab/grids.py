"""Grids of settings: their values, the cells they make, and the evidence as one Dataset."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

import attlas
from attlas.claims import Claim, Setting, Value
from attlas.errors import InputError, check_memory
from attlas.lab.measurement import claim_errors_named
from attlas.lab.store import Address, Store

STATUS = ("missing", "done", "failed", "outside")
MISSING, DONE, FAILED, OUTSIDE = range(4)

MAX_CELLS = 10_000_000
"""Of one sweep."""

BYTES_PER_CELL = 1100
"""Of whoever hands out, at most; `python -m bench.sweeps_memory` measures it."""

Values = str | Sequence[Any]
"""Values of a parameter: a sequence, or a text like `"100,200"`, `"0.05:1:20log"` or `"0:100"`."""

_RANGE = re.compile(r"([^:]+):([^:]+)(?::(\d+)(log)?)?")
_DIGITS = 12


def expand(name: str, values: Any, *, words: bool = False) -> list[Any]:
    """The values that a text lists: single ones and ranges between commas.

    `a:b` are the whole numbers from a to b - 1, `a:b:n` n numbers from a to b in equal steps, and
    `a:b:nlog` in equal ratios, rounded to twelve digits. With `words`, no part is a range.
    """
    if not isinstance(values, str):
        return list(values) if isinstance(values, Iterable) else [values]
    if not values.strip():
        raise InputError(f"{name} is empty: it needs at least one value")
    found: list[Any] = []
    for part in map(str.strip, values.split(",")):
        found += [part] if words or ":" not in part else _range(name, part)
    return found


def _range(name: str, text: str) -> list[float]:
    found = _RANGE.fullmatch(text)
    try:
        first, last = map(float, found.groups()[:2]) if found else (math.nan, math.nan)
    except ValueError:
        first = last = math.nan
    if found is None or not (math.isfinite(first) and math.isfinite(last)):
        raise InputError(f"{name} = {text!r}: a range is a:b (whole numbers), a:b:n or a:b:nlog")
    if found[3] is None:
        if not (first.is_integer() and last.is_integer() and first < last):
            raise InputError(
                f"{name} = {text!r}: a range a:b is of whole numbers with a < b; a:b:n takes any"
            )
        count, numbers = int(last - first), np.arange(first, min(last, first + MAX_CELLS + 1))
    else:
        count = int(found[3])
        if count < 2 or first == last:
            raise InputError(
                f"{name} = {text!r}: a range a:b:n has two or more values, and a differs from b"
            )
        if found[4] and not (first > 0 and last > 0):
            raise InputError(f"{name} = {text!r}: equal ratios need positive ends")
        numbers = (np.geomspace if found[4] else np.linspace)(
            first, last, min(count, MAX_CELLS + 1)
        )
    if count > MAX_CELLS:
        raise InputError(
            f"{name} = {text!r}: {count:,} values; at most {MAX_CELLS:,} cells make a sweep"
        )
    # So many digits are the same on every machine, and they are enough to write a value down.
    return [float(f"{number:.{_DIGITS}g}") for number in numbers]


def parse_grid(texts: Sequence[str]) -> dict[str, str]:
    """From texts like `"dim=100,200"` to a mapping."""
    grid: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise InputError(f"{text!r}: a grid is given as name=values")
        if name.strip() in grid:
            raise InputError(f"the grid has {name.strip()} twice")
        grid[name.strip()] = values
    return grid


def parse_seeds(seeds: int | Values) -> tuple[int, ...]:
    """Seeds from a number, a sequence or a text such as `"0:100"`."""
    numbers = []
    for seed in expand("seeds", seeds):
        try:
            number = float(seed)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(seed, bool) or not number.is_integer() or not 0 <= number < 2**31:
            raise InputError(f"seed = {seed!r}: it must be a whole number from 0 to {2**31 - 1}")
        numbers.append(int(number))
    return _distinct("seeds", numbers)


def _distinct(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if not values:
        raise InputError(f"{name} is empty: it needs at least one value")
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise InputError(f"{name} has the value {value!r} twice")
    return tuple(values)


def _axis(setting: Setting, name: str, values: Values) -> tuple[Value, ...]:
    """The values of one axis; a tuple is a whole list where the parameter is one."""
    if name not in setting:
        setting.replace(**{name: ()})  # raises, and lists the names there are
    old = setting[name]
    like = old[0] if isinstance(old, tuple) else old
    rounded = type(like) is int and isinstance(values, str)  # ranges are of floats
    typed = []
    for value in expand(name, values, words=isinstance(like, str)):
        given = round(value) if rounded and isinstance(value, float) else value
        new = setting.replace(**{name: given})[name]
        single = isinstance(new, tuple) and not isinstance(value, tuple | list)
        typed.append(new[0] if single else new)  # type: ignore[index]
    return _distinct(name, typed)


@dataclass(frozen=True)
class Grid:
    """The cells of a claim at every point of a product of axes, and at every seed.

    A point is the claim's setting with one value of each axis in it. It has the claim's own cells:
    one where all lists are on axes, several where some are not, which then lie along a further axis
    `cell`. Item number `number * len(seeds) + s` is cell `number` of `settings`, in the order of
    the axes, at seed s.
    """

    claim: Claim
    scale: str
    base: Setting
    axes: dict[str, tuple[Value, ...]]
    seeds: tuple[int, ...]
    settings: list[Setting]
    cells: int
    names: list[str] = field(repr=False)

    @classmethod
    def of(
        cls,
        claim: Claim,
        base: Setting,
        grid: Mapping[str, Values],
        seeds: tuple[int, ...],
        scale: str = "quick",
    ) -> "Grid":
        """The grid of a claim, with the cells of every point named.

        Arguments:
            base: the setting that the points change.
            grid: values of each axis by the parameter's name.
            scale: of `base`; kept for the record.
        """
        taken = {"seed", "status", "reason"} & set(base)
        if taken:
            raise InputError(
                f"{claim.id} has a parameter {min(taken)!r}: a sweep keeps something else under "
                f"that name"
            )
        axes = {name: _axis(base, name, values) for name, values in grid.items()}
        points = math.prod(len(values) for values in axes.values())
        count = points * len(seeds)
        if count > MAX_CELLS:
            raise InputError(f"{count:,} cells; at most {MAX_CELLS:,} make a sweep")
        check_memory(f"a sweep of {count:,} cells", BYTES_PER_CELL * count)
        lists = [name for name in axes if isinstance(base[name], tuple)]
        settings: list[Setting] = []
        cells = 0
        with claim_errors_named(claim, "its cells"):
            for values in itertools.product(*axes.values()):
                point = dict(zip(axes, values, strict=True))
                for name in lists:
                    if not isinstance(point[name], tuple):
                        point[name] = (point[name],)
                found = claim.cells(base.at(**point))
                if len(found) > 1:
                    found = list(dict.fromkeys(found))
                if cells and len(found) != cells:
                    raise InputError(
                        f"{claim.id} has {cells} cells at some points of the grid and {len(found)} "
                        f"at {point}"
                    )
                cells = len(found)
                settings += found
        texts = [setting.canonical() for setting in settings]
        addresses = [Address.of(claim, seed) for seed in seeds]
        names = [address.named(text) for text in texts for address in addresses]
        return cls(claim, scale, base, axes, seeds, settings, cells, names)

    def __len__(self) -> int:
        return len(self.names)

    def item(self, number: int) -> tuple[Setting, int]:
        """The setting and the seed of an item."""
        cell, seed = divmod(number, len(self.seeds))
        return self.settings[cell], self.seeds[seed]

    def outside(self) -> tuple[dict[int, str], dict[int, str]]:
        """Cells that break a hypothesis, and cells that cannot be measured, with the reasons.

        Numbers are places in `settings`. A cell cannot be measured where nothing is defined or
        something is not there that the claim needs.
        """
        broken, impossible = {}, {}
        with claim_errors_named(self.claim, "its hypotheses"):
            for number, setting in enumerate(self.settings):
                try:
                    needs = self.claim.unmet([setting])
                    words = [] if needs else self.claim.broken([setting])
                except InputError as error:
                    impossible[number] = str(error)
                    continue
                if needs:
                    impossible[number] = f"{self.claim.id} needs {'; '.join(needs)}"
                elif words:
                    broken[number] = "; ".join(words)
        return broken, impossible

    @property
    def shape(self) -> dict[str, int]:
        """The axes of the gathered Dataset with their lengths."""
        axes = {name: len(values) for name, values in self.axes.items()}
        cells = {"cell": self.cells} if self.cells > 1 else {}
        return {**axes, **cells, "seed": len(self.seeds)}

    def coordinates(self) -> dict[str, Any]:
        axes = {name: (name, _labels(values)) for name, values in self.axes.items()}
        coords: dict[str, Any] = {**axes, "seed": ("seed", list(self.seeds))}
        if self.cells > 1:
            for name in self.base:
                along = [setting[name] for setting in self.settings[: self.cells]]
                if name not in coords and len(set(along)) > 1:
                    coords[name] = ("cell", _labels(along))
        return coords


def _labels(values: Sequence[Value]) -> Any:
    """Values as a coordinate: lists as text, and whole numbers beyond 64 bits as floats."""
    if any(isinstance(value, tuple) for value in values):
        return [json.dumps(value) for value in values]
    if any(isinstance(value, int) and abs(value) >= 2**63 for value in values):
        return [float(value) for value in values]  # type: ignore[arg-type]
    return list(values)


def gather(grid: Grid, store: Store, status: np.ndarray, reasons: Mapping[int, str]) -> xr.Dataset:
    """The stored evidence of all items whose `status` is DONE, with the axes of the grid.

    What an item lacks is NaN, or an empty text: `status` and `reason` say why. Evidence that has
    the name of an axis is called `evidence_<name>`. Arrays that are longer in some cells than in
    others are filled up with NaN at their ends.

    Arguments:
        status: an index into `STATUS` for each item; DONE counts as MISSING where the store
            lacks it.
        reasons: why an item is not done, by its number.
    """
    numbers = {grid.names[number]: number for number in np.flatnonzero(status == DONE).tolist()}
    parts: list[Part] = []
    left = set(numbers)
    for evidence, rows in store.read(grid.claim.evidence or grid.claim.id, left):
        wanted = list(rows.values())
        whole = wanted == list(range(evidence.sizes["cell"]))
        some = evidence if whole else evidence.isel(cell=wanted)
        parts.append((dict(some.variables), [numbers[name] for name in rows]))
        left -= set(rows)
    status = status.copy()
    status[[numbers[name] for name in left]] = MISSING
    axes, shape = tuple(grid.shape), tuple(grid.shape.values())
    coordinates = grid.coordinates()
    variables = align(parts, {*axes, *coordinates, "status", "reason"}, grid.shape)
    why = np.full(len(grid), "", object)
    why[list(reasons)] = list(reasons.values())
    variables["status"] = (axes, np.array(STATUS)[status].reshape(shape))
    variables["reason"] = (axes, why.reshape(shape))
    gathered = xr.Dataset(variables, coordinates)
    fixed = {name: value for name, value in grid.base.items() if name not in gathered.coords}
    return gathered.assign_attrs(
        attlas=attlas.__version__,
        claim=grid.claim.id,
        words=grid.claim.words,
        scale=grid.scale,
        setting=json.dumps(fixed),
        precision=grid.claim.precision,
        code=grid.claim.code,
    )


Part = tuple[dict[Hashable, xr.Variable], list[int]]
"""Evidence of some cells, and the items of the grid that they are."""


def align(
    parts: Sequence[Part], taken: set[str], axes: Mapping[str, int]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Variables of all items, under names that are not `taken`, from `parts`, which it empties.

    A variable without the axis `cell` that is the same in all parts stays as it is; all others get
    the `axes` of the grid.
    """

    def free(name: str) -> str:
        return f"evidence_{name}" if name in taken else name

    items, found = math.prod(axes.values()), {}
    for name in dict.fromkeys(str(name) for variables, _ in parts for name in variables):
        dims, values, shared = _take(name, parts, items)
        if shared:
            found[free(name)] = (tuple(map(free, dims)), values)
        else:
            # Labels of an axis that differ between cells are no coordinate of it.
            kept = f"{free(name)}_label" if name in dims else free(name)
            shape = (*axes.values(), *values.shape[1:])
            found[kept] = ((*axes, *map(free, dims)), values.reshape(shape))
    return found


def _take(name: str, parts: Sequence[Part], items: int) -> tuple[tuple[str, ...], np.ndarray, bool]:
    """A variable's axes but `cell`, its values, and whether all parts share them.

    If not, they lie along `items`, and are NaN or "" where it has none. The parts lose it, so that
    one variable is twice in memory, not all.
    """
    own = [
        (variables.pop(name).transpose("cell", ..., missing_dims="ignore"), rows)
        for variables, rows in parts
        if name in variables
    ]
    first = own[0][0]
    dims, *others = {tuple(str(dim) for dim in v.dims if dim != "cell"): None for v, _ in own}
    same = "cell" not in first.dims and all(first.equals(variable) for variable, _ in own)
    if same and len(own) == len(parts):
        return dims, first.values, True
    if others:
        raise InputError(
            f"{name} has the axes {dims} in some cells and {others[0]} in others: they do not fit "
            f"together"
        )
    sizes = [tuple(variable.sizes[dim] for dim in dims) for variable, _ in own]
    shape = tuple(map(max, zip(*sizes, strict=True)))
    # Texts of one width would all take as much memory as the longest.
    dtype = np.result_type(*(object if v.dtype.kind == "U" else v.dtype for v, _ in own))
    if dtype.kind not in "fcO" and (set(sizes) != {shape} or sum(len(r) for _, r in own) < items):
        dtype = np.result_type(dtype, np.float32)  # so that truth values and NaN take four bytes
    missing: Any = "" if dtype.kind == "O" else np.nan if dtype.kind in "fc" else 0
    column = np.full((items, *shape), missing, dtype)
    for (variable, rows), size in zip(own, sizes, strict=True):
        place: Any = (rows, *map(slice, size))
        column[place] = variable.values
    return dims, column.astype(str) if dtype.kind == "O" else column, False
