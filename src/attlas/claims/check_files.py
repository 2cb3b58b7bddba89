"""What a check becomes: a claim file that says the same."""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attlas.claims.checks import Check
from attlas.errors import InputError

_PLAIN = (bool, int, float, str, tuple, type(None))


def write_claim(check: Check, path: Any) -> Path:
    """Write the file, which must not exist yet; returns its path."""
    path = Path(path)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise InputError(f"{str(path)!r}: a claim file is called NAME.py, with a name for Python")
    text = claim_text(check, path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{str(path)!r} exists already: name another file") from None
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error}") from error
    return path


def claim_text(check: Check, name: str) -> str:
    """The source of the claim file."""
    form, functions = check.form, check.form.functions
    given = _Sources()
    for function in functions:
        given.add(function)
    claim = "_".join(["check", *(function.__name__ for function in functions)])
    slug = name.replace("_", "-")
    grid = ", ".join(f"{key}={values!r}" for key, values in check.grid.items())
    listed = ", ".join(repr(key) for key in check.grid)
    cells = f"product({listed})" if listed else "whole"
    rule = re.sub(r", level=[^,)]*|level=[^,)]*, |level=[^,)]*", "", repr(form.rule))
    arguments = "".join(f", {key}={value!r}" for key, value in form.arguments.items())
    called = ", ".join(function.__name__ for function in functions)
    control, measured = form.variant.__name__, form.measure_cell.__name__
    names = [function.__name__.replace("_", " ") for function in functions]
    statement = form.words.format(*names)
    lines = [
        f'"""A claim that began as a check: `attlas run {slug}/* --claims {name}.py`."""',
        "",
        *given.imports,
        "",
        f"from attlas.claims import {type(form.rule).__name__}, Map, Setting, "
        f"{cells.partition('(')[0]}",
        f"from attlas.claims.check_forms import {', '.join(sorted((control, measured)))}",
        "",
        f'{name} = Map("{slug}", source="attlas")',
        "",
        *given.constants,
        *given.functions,
        f"@{name}.claim(",
        '    kind="simulation",',
        '    reference="a check",',
        '    origin="ours",',
        f'    statement=r"{statement}",',
        f'    words="{statement}",',
        f"    quick=Setting({grid}{', ' if grid else ''}samples={check.samples}),",
        f"    paper=dict(samples={4 * check.samples}),",
        f"    cells={cells},",
        '    budget="samples",',
        f"    rule={rule},",
        f"    control={control}({_control_size(check):.4g}),",
        ")",
        f"def {claim}(cell, draws):",
        f"    return {measured}({called}, cell, draws{arguments})",
        "",
    ]
    return "\n".join(lines)


def _control_size(check: Check) -> float:
    """Twice what was still refuted, or the whole way."""
    whole = check.form.control.size
    return whole if check.resolution is None else min(whole, 2 * check.resolution)


class _Sources:
    """Sources of functions with what they use: modules, plain values and other functions."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.functions: list[str] = []
        self._known: set[str] = set()

    def add(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__name__", "")
        if not name.isidentifier() or name == "<lambda>" or not inspect.isfunction(function):
            raise InputError(
                f"{name or function!r} has no name of its own: a claim file takes functions that"
                " are defined by def"
            )
        if name in self._known:
            return
        self._known.add(name)
        if function.__closure__:
            raise InputError(
                f"{name} uses {', '.join(function.__code__.co_freevars)} of the function around it:"
                " a claim file takes functions that stand by themselves"
            )
        try:
            source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError) as error:
            raise InputError(f"the source of {name} cannot be read: {error}") from error
        for used in sorted(_names(source) - {name}):
            if used in function.__globals__:
                self._add_global(name, used, function.__globals__[used])
        self.functions += [source.rstrip(), "", ""]

    def _add_global(self, user: str, name: str, value: Any) -> None:
        if name in self._known:
            return
        if isinstance(value, types.ModuleType):
            line = f"import {value.__name__} as {name}"
            self.imports.append(
                line.removesuffix(f" as {name}") if value.__name__ == name else line
            )
        elif isinstance(value, _PLAIN):
            self.constants += [f"{name} = {value!r}", ""]
        elif hasattr(value, "__module__") and hasattr(value, "__qualname__"):
            if value.__module__ == "__main__" or "." in value.__qualname__:
                self.add(value)
                return
            called = f" as {name}" if value.__qualname__ != name else ""
            self.imports.append(f"from {value.__module__} import {value.__qualname__}{called}")
        else:
            raise InputError(
                f"{user} uses {name}, a {type(value).__name__}: a claim file can hold functions,"
                " modules, numbers, words and tuples"
            )
        self._known.add(name)


def _names(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
