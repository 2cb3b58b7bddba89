"""The parameters of a claim, and how they become cells."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attlas.errors import InputError, near

Value = int | float | str | bool | tuple[Any, ...]


class UnknownParameter(AttributeError):
    """A setting was asked for a parameter that it does not have."""


class Setting(Mapping[str, Value]):
    """The parameters of a claim, by name: immutable, read as attributes, changed by `replace`.

    A whole number is a count and at least 1. A tuple lists values; `cells` says which of the lists
    the claim's cells run through.

    >>> from attlas.claims import Setting, product, together, whole
    >>> setting = Setting(dim=(10, 20), lam=(0.1, 0.5), samples=100)
    >>> print(len(product("dim", "lam")(setting)), len(together("dim", "lam")(setting)))
    4 2
    >>> print(whole(setting)[0].dim, setting.replace(samples=7).samples)
    (10, 20) 7
    """

    _least: float = 1

    def __init__(self, **values: Value) -> None:
        taken = [name for name in values if hasattr(type(self), name)]
        if taken:
            raise InputError(
                f"a parameter cannot be called {taken[0]!r}: a setting has a method of that name"
            )
        object.__setattr__(self, "_values", values)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            known = self.__dict__.get("_values", {})
            raise UnknownParameter(
                f"this setting has no parameter {name!r}.{near(name, known)}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a setting is immutable; use replace")

    def __repr__(self) -> str:
        return f"Setting({', '.join(f'{k}={v!r}' for k, v in self.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def replace(self, **changes: Any) -> "Setting":
        """A setting with some values changed; each must have the type of the one it replaces."""
        typed = {name: self._typed(name, value) for name, value in changes.items()}
        return type(self)(**{**self._values, **typed})

    def parse(self, assignments: Sequence[str]) -> "Setting":
        """`replace`, from texts like `"dim=100"` or, where a parameter is a list,
        `"dim=100,400"`."""
        changes = {}
        for text in assignments:
            name, equals, value = text.partition("=")
            if not equals:
                raise InputError(f"{text!r}: a parameter is set as name=value")
            if name.strip() in changes:
                raise InputError(f"{name.strip()} is set twice")
            changes[name.strip()] = value.strip()
        return self.replace(**changes)

    def at(self, **point: Value) -> "Setting":
        """One cell: this setting with some of its lists replaced by one of their values."""
        return type(self)(**{**self._values, **point})

    def canonical(self) -> str:
        """One text for equal settings, whatever the order of their names."""
        return json.dumps(dict(self), sort_keys=True)

    def _typed(self, name: str, value: Any) -> Value:
        if name not in self:
            raise InputError(
                f"unknown parameter {name!r}.{near(name, self)} There are: {', '.join(self)}."
            )
        old = self._values[name]
        if not isinstance(old, tuple):
            return _coerce(name, value, old, self._least)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")] if value.strip() else []
        values = value if isinstance(value, list | tuple) else (value,)
        if not values:
            raise InputError(f"{name} is empty: it needs at least one value")
        return tuple(_coerce(name, item, old[0], self._least) for item in values)


def _coerce(name: str, value: Any, like: Value, least: float) -> Value:
    """`value` as the type of `like`, from a Python value or from text."""
    if isinstance(like, bool):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise InputError(f"{name} = {value!r}: it must be true or false")
    if isinstance(like, str):
        if isinstance(value, str):
            return value
        raise InputError(f"{name} = {value!r}: it must be a word")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(like, int):
        if not number.is_integer() or number < least:
            bound = f", at least {least:g}" if math.isfinite(least) else ""
            raise InputError(f"{name} = {value!r}: it must be a whole number{bound}")
        return int(value) if isinstance(value, int) else int(number)
    if not math.isfinite(number):
        raise InputError(f"{name} = {value!r}: it must be a finite number")
    return number


Cells = Callable[[Setting], list[Setting]]
"""How a setting becomes cells, each of which is measured by itself or in a batch with others."""


def whole(setting: Setting) -> list[Setting]:
    """One cell, the setting itself; the measurement reads its lists.

    Arguments:
        setting: of the claim.
    """
    return [setting]


def together(*names: str) -> Cells:
    """Cells in which the lists `names` advance together; a list of one value is held fixed."""

    def cells(setting: Setting) -> list[Setting]:
        columns: dict[str, Any] = {name: getattr(setting, name) for name in names}
        longest = max(map(len, columns.values()))
        for name, values in columns.items():
            if len(values) not in (1, longest):
                raise InputError(
                    f"{name} has {len(values)} values: the lists {', '.join(names)} must have 1 or"
                    f" {longest}"
                )
            columns[name] = values * longest if len(values) == 1 else values
        return [
            setting.at(**dict(zip(columns, point, strict=True)))
            for point in zip(*columns.values(), strict=True)
        ]

    return cells


def product(*names: str) -> Cells:
    """Cells at every combination of the lists `names`."""

    def cells(setting: Setting) -> list[Setting]:
        points = itertools.product(*(getattr(setting, name) for name in names))
        return [setting.at(**dict(zip(names, point, strict=True))) for point in points]

    return cells
