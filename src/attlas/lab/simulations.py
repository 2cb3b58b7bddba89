"""A function that simulates, swept as a claim: its keyword parameters are the setting."""

import importlib
import importlib.util
import inspect
import math
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import xarray as xr

from attlas.claims import Agreement, Claim, Control, Draws, Setting
from attlas.claims.digest import forget_sources
from attlas.claims.registry import FromSource
from attlas.errors import InputError, near

Simulation = Callable[..., xr.Dataset]


class _FreeSetting(Setting):
    """The parameters of a function: a whole number need not be a count."""

    _least = -math.inf


def simulation(target: str | Simulation) -> Claim:
    """A claim without statement that measures a function, or the one at `"file.py:function"` or
    `"package.module:function"`.

    All parameters of the function have defaults: numbers, words, truth values or tuples of them.
    One is `seed`. It returns a Dataset, the evidence of one cell.
    """
    function = _find_function(target) if isinstance(target, str) else target
    module = sys.modules[function.__module__]
    file = Path(module.__file__ or "")
    setting = _setting_of(function)

    def measure(cell: Setting, draws: Draws) -> Any:
        found = function(**cell, seed=draws.seed)
        if not isinstance(found, xr.Dataset):
            raise InputError(
                f"{function.__name__} returned {type(found).__name__}: it must return a Dataset"
            )
        return found

    measure.__module__ = function.__module__
    measure.__qualname__ = function.__qualname__
    id = f"simulation/{file.stem}-{function.__name__}"
    words = (inspect.getdoc(function) or function.__name__).partition("\n")[0]
    return Claim(
        id=id,
        source="attlas",
        reference=f"{file.name}:{function.__name__}",
        statement="",
        words=words,
        function=measure,
        quick=setting,
        paper=setting,
        rule=Agreement(),
        control=Control("none", lambda evidence: {}),
        kind="simulation",
        evidence=id,
    )


def _setting_of(function: Simulation) -> Setting:
    parameters = dict(inspect.signature(function).parameters)
    if "seed" not in parameters:
        raise InputError(f"{function.__name__} has no parameter seed: a simulation has one")
    del parameters["seed"]
    for name, parameter in parameters.items():
        if not isinstance(parameter.default, int | float | str | tuple):
            raise InputError(
                f"{function.__name__}: the parameter {name} needs a default, a number, a word or a "
                f"tuple"
            )
    return _FreeSetting(**{name: parameter.default for name, parameter in parameters.items()})


def _find_function(target: str) -> Simulation:
    place, _, name = target.rpartition(":")
    try:
        is_file = place.endswith(".py")
        module = _load_file(Path(place)) if is_file else importlib.import_module(place)
    except ImportError as error:
        raise InputError(f"there is no module {place!r}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = inspect.getmembers(module, inspect.isfunction)
        known = [key for key, _ in functions if not key.startswith("_")]
        raise InputError(f"{place} has no function {name!r}.{near(name, known)}")
    return function


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"the file {str(path)!r} does not exist")
    name = f"attlas_simulation_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path, loader=FromSource(name, str(path)))
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    forget_sources()  # the file may have changed since it was loaded before
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{str(path)!r}: {type(error).__name__}: {error}") from error
    return module
