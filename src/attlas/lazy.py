"""Attributes of a module that are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def exports(
    module: str, names: Mapping[str, str], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` (PEP 562) of a module that imports what it exports on first use.

        __getattr__, __dir__ = exports(__name__, {"run": "attlas.lab.runner"}, ("kernels",))

    `dir(module)` then shows these names and those of the module's `__all__`, and nothing else.

    Arguments:

    - `module`: the `__name__` of the module.
    - `names`: for each exported name, the module that defines it under the same name. A name must
      not be that of a submodule, because importing the submodule would overwrite the attribute.
    - `submodules`: names of submodules that are attributes without having been imported.
    """

    def get(name: str) -> Any:
        if name in names:
            return getattr(import_module(names[name]), name)
        if name in submodules:
            return import_module(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)

    def list_names() -> list[str]:
        own = getattr(sys.modules[module], "__all__", ())
        return sorted({*own, *names, *submodules})

    return get, list_names
