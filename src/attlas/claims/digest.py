"""Digests of what a number or a figure depends on: syntax trees of what is used, and versions.

Of the file of a claim, and of files beside it, all counts; of the package's other files the
definitions that it uses and what those use in turn: an edit of a function makes stale what calls
it, not all that imports its module. A tree is taken without docstrings, comments and what only
states or draws: decorators that register claims, figures, and `Map` and `Hypothesis` objects; and
without what only welcomes a caller or shows progress (`attlas.surface`, `attlas.progress`). An edit
of these throws no measurement away.
"""

import ast
import contextlib
import functools
import gc
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from attlas.provenance import versions

PASSING = ("attlas.surface", "attlas.progress")
"""Modules whose decorators and calls pass on what they are given: `@public` and `@refusing(check)`
a function, `described(data, ...)` its data, `watched(x, ...)` what x yields."""

SILENT = (
    "attlas.claims",
    "attlas.figure",
    "attlas.errors",
    "attlas.references",
    "attlas.lazy",
    *PASSING,
)
"""Modules that state, draw and report; no number depends on them."""

COMPUTING = ("attlas.claims.evidence", "attlas.draws")
"""Every measurement passes through these."""


HARMLESS = ("functools", "jax", "eqx", "dataclass", "padded_jit")
"""Where decorators come from that register nothing."""


def code_digest(module: str) -> str:
    """Digest of what the measurements of a module depend on: its sources, and versions."""
    return hashlib.sha256(f"{versions()} {source_digest(module)}".encode()).hexdigest()


def source_digest(module: str) -> str:
    """Digest of the sources alone: on every machine the same."""
    return _closure_digest(module, figures=False)


def figure_digest(module: str) -> str:
    """Digest of what the figures of a module depend on."""
    return f"{versions()} {_closure_digest(module, figures=True)}"


def function_digest(function: Any) -> str:
    """Digest of one function as it is written, with what it closes over, on whatever line it is;
    of another value, of how it prints."""
    code = getattr(function, "__code__", None)
    if code is None:
        return hashlib.sha256(repr(function).encode()).hexdigest()
    path = Path(code.co_filename)
    written = code.co_code.hex()
    if path.is_file():
        stat = path.stat()
        known = _functions(path, stat.st_mtime_ns, stat.st_size)
        written = known.get(code.co_firstlineno, written)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    closed = [function_digest(v) for v in cells if callable(v) or isinstance(v, _PLAIN)]
    return hashlib.sha256(" ".join([written, *closed]).encode()).hexdigest()


_PLAIN = (str, int, float, tuple)


@functools.cache
def _functions(path: Path, changed: int, size: int) -> dict[int, str]:
    """Arguments and bodies of the functions in a file by the line on which they begin."""
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            line, body = node.lineno, cast(Any, node.body)
            if isinstance(node, ast.FunctionDef):
                line = min([line, *(part.lineno for part in node.decorator_list)])
                body = [part for part in node.body if not _is_text(part)]
            found[line] = found.get(line, "") + _dump(node.args) + _dump(body)
    return found


def beside(module: str) -> list[str]:
    """Modules that a loaded claim file imports from beside it."""
    names = _closure(module, figures=True) if module in sys.modules else {}
    return [name for name in names if name != module and not name.startswith("attlas")]


def forget_sources() -> None:
    """Read sources again at the next call: a claim file may have changed and been loaded anew."""
    _closure_digest.cache_clear()


@functools.cache
def _closure_digest(module: str, figures: bool) -> str:
    """Of the sources as they were at the first call, when they were imported."""
    digest = hashlib.sha256()
    if not figures:
        for text in sorted(_Used(module).texts):
            digest.update(hashlib.sha256(text.encode()).digest())
        return digest.hexdigest()
    for name, path in sorted(_closure(module, figures).items()):
        stat = path.stat()
        digest.update(name.encode() + _tree(path, stat.st_mtime_ns, stat.st_size)[0])
    return digest.hexdigest()


def _closure(module: str, figures: bool) -> dict[str, Path]:
    """The files of `module` and of all that it uses (with `figures`: imports), of its package or
    from beside it, by name."""
    if not figures:
        return _Used(module).files
    start = _file(module)
    if start is None:
        return {}
    found: dict[str, Path] = {}
    waiting = [(module, start), *((name, _file(name)) for name in COMPUTING)]
    while waiting:
        name, path = waiting.pop()
        if path is None or name in found:
            continue
        found[name] = path
        stat = path.stat()
        for other in _tree(path, stat.st_mtime_ns, stat.st_size)[1]:
            if (full := _absolute(other, name, path)) and not _is_silent(full, figures):
                waiting.append((full, _place(full, module, start)))
    return found


def _absolute(other: str, module: str, path: Path) -> str:
    """The name of a module that `module` imports as `other`; empty if it has no package."""
    if not other.startswith("."):
        return other
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return importlib.util.resolve_name(other, package) if package else ""


def _is_silent(module: str, figures: bool) -> bool:
    drawing = figures and module.startswith("attlas.figure")
    silent = module.startswith(SILENT) and not drawing and module not in COMPUTING
    return module == "attlas" or silent


def _place(other: str, module: str, start: Path) -> Path | None:
    """The file of a module of the package, of the package that a claim belongs to, or from beside
    a claim file."""
    inside = other.partition(".")[0] in ("attlas", module.partition(".")[0])
    return _file(other) if inside else _beside(start, other)


class _Used:
    """What a module uses: `texts` of definitions, and the `files` that they are in, by name."""

    def __init__(self, module: str) -> None:
        self.module, self.start = module, _file(module)
        self.texts: set[str] = set()
        self.files: dict[str, Path] = {}
        self.seen: set[tuple[str, str]] = set()
        self.waiting: list[tuple[str, str]] = []
        for name in (module, *COMPUTING) if self.start else ():
            self.waiting.append((name, ""))
        while self.waiting:
            self._visit(*self.waiting.pop())

    def _ask(self, module: str, names: Sequence[str]) -> bool:
        """Whether `module` is one that counts; if so `names[0]` of it is visited, or what a module
        below it has under the name behind that; all of it if there is no name."""
        while names and self._parts(f"{module}.{names[0]}"):
            module, names = f"{module}.{names[0]}", names[1:]
        if not self._parts(module):
            return False
        self.waiting.append((module, names[0] if names else ""))
        return True

    def _parts(self, module: str) -> "_Parts | None":
        if module in ("", "attlas"):
            return None
        path = self.files.get(module) or _place(module, self.module, cast(Path, self.start))
        if path is None or (_is_silent(module, False) and module != self.module):
            return None
        stat = path.stat()
        return _parts(path, stat.st_mtime_ns, stat.st_size)

    def _visit(self, module: str, name: str) -> None:
        """Count a definition of a module, or all of them if no name is given."""
        parts = self._parts(module)
        if parts is None or (module, name) in self.seen:
            return
        self.seen.add((module, name))
        if name and not module.startswith("attlas."):  # somebody else's, of whatever style: whole
            self.waiting.append((module, ""))
        if module not in self.files:
            self.files[module] = cast(Path, _place(module, self.module, cast(Path, self.start)))
            for part in parts.loose:
                self._count(module, parts, part)
            for star, _ in parts.imported.get("*", ()):
                self._ask(_absolute(star, module, self.files[module]), ())
        if not name:
            self.waiting += [(module, each) for each in parts.defined]
            for each in parts.imported:
                self._follow(module, parts, (each,))
        elif name in parts.defined:
            for part in parts.defined[name]:
                self._count(module, parts, part)
        elif name in parts.imported:
            self._follow(module, parts, (name,))
        else:
            self.waiting.append((module, ""))

    def _count(self, module: str, parts: "_Parts", part: "_Part") -> None:
        self.texts.add(f"{module}: {part.text}")
        for names in part.names:
            if names[0] in parts.defined:
                self.waiting.append((module, names[0]))
            if names[0] in parts.imported:
                self._follow(module, parts, names)

    def _follow(self, module: str, parts: "_Parts", names: tuple[str, ...]) -> None:
        """Visit what an imported name stands for."""
        for other, within in parts.imported[names[0]]:
            full = _absolute(other, module, self.files[module])
            path = (*((within,) if within else ()), *names[1:])
            if full == "attlas" and path:
                full, path = ".".join((full, path[0])), path[1:]
            if not self._ask(full, path):
                self.texts.add(f"{module}: {names[0]} is {other} {within}")


class _Part(NamedTuple):
    """A statement, as a text, and the names `a.b.c` in it."""

    text: str
    names: tuple[tuple[str, ...], ...]


class _Parts(NamedTuple):
    """The statements of a file by the names that they define, others, and where imported names
    come from: modules, and names in them."""

    defined: dict[str, list[_Part]]
    loose: list[_Part]
    imported: dict[str, list[tuple[str, str]]]


@functools.cache
def _parts(path: Path, changed: int, size: int) -> _Parts:
    with _uncollected():
        tree = ast.parse(path.read_bytes())
        stripped = _Stripped(tree).visit(tree)
        found = _Parts({}, [], {})
        for node in ast.walk(stripped):
            for name, place in _imported(node):
                found.imported.setdefault(name, []).append(place)
        for node in stripped.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                continue
            part = _Part(_dump(node), tuple(dict.fromkeys(_names(node))))
            defined = _defined(node)
            for name in defined:
                earlier = found.defined.setdefault(name, [])
                # In which order a name is given its values counts too.
                again = part._replace(text=f"{len(earlier)} {part.text}") if earlier else part
                earlier.append(again)
            if not defined or _does_more(node):
                found.loose.append(part)
    return found


def _imported(node: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    """Names that a statement imports, each with its module and its name there."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, (alias.name, "")
            else:
                yield alias.name.partition(".")[0], (alias.name.partition(".")[0], "")
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, ("." * node.level + (node.module or ""), alias.name)


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement gives a value, if it does nothing else."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets = [x for t in node.targets for x in (t.elts if isinstance(t, ast.Tuple) else [t])]
    else:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if len(names) == len(targets) else []


def _does_more(node: ast.stmt) -> bool:
    """Whether a statement does more than to define a name: its decorator may register it, as
    `@f.defjvp` or `@register("name")` of the same file, or it names a value within another."""
    decorators = getattr(node, "decorator_list", [])
    roots = [_dotted(d.func if isinstance(d, ast.Call) else d) for d in decorators]
    registers = any(
        names and names[0] not in HARMLESS and (len(names) > 1 or isinstance(decorator, ast.Call))
        for names, decorator in zip(roots, decorators, strict=True)
    )
    defines = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    return registers or (not defines and any(isinstance(x, ast.NamedExpr) for x in ast.walk(node)))


def _names(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """All `a.b.c` in a tree, the longest of each."""
    dotted = _dotted(node)
    if dotted:
        yield dotted
        return
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def _file(module: str) -> Path | None:
    """The source of a module that is loaded, or that could be."""
    known = getattr(sys.modules.get(module), "__file__", None)
    if known is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):  # a name of a module, not a module
            return None
        known = spec.origin if spec else None
    return Path(known) if known and known.endswith(".py") else None


def _beside(start: Path, module: str) -> Path | None:
    path = start.parent.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: a tree is a hundred thousand objects, none of them garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def _tree(path: Path, changed: int, size: int) -> tuple[bytes, tuple[str, ...]]:
    """Digest of a file's syntax tree, and the names of modules that it may import."""
    with _uncollected():
        tree = ast.parse(path.read_bytes())
        names = tuple(dict.fromkeys(_imports(tree)))
        return hashlib.sha256(_dump(tree).encode()).digest(), names


def _dump(node: Any) -> str:
    """A tree as a text without empty fields, of which versions of Python have more or fewer."""
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        parts = (f"{name}={_dump(v)}" for name, v in fields if v is not None and v != [])
        return f"{type(node).__name__}({','.join(parts)})"
    return f"[{','.join(map(_dump, node))}]" if isinstance(node, list) else repr(node)


def _imports(tree: ast.Module) -> Iterator[str]:
    """Names of modules that a file may import, relative ones with their dots."""
    nodes = list(ast.walk(tree))
    whole = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            whole |= {alias.asname or alias.name for alias in node.names if alias.name == "attlas"}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield start
            join = "" if start.endswith(".") else "."
            yield from (f"{start}{join}{alias.name}" for alias in node.names)
    # `import attlas`, whose rooms are imported where they are used: attlas.covers.f(...).
    for node in nodes:
        names = _dotted(node)
        if len(names) > 1 and names[0] in whole:
            yield ".".join(("attlas", *names[1:]))


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """The names of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        start = _dotted(node.value)
        return (*start, node.attr) if start else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


class _Stripped(ast.NodeTransformer):
    """A tree without docstrings, figures, and what only states.

    A decorator counts as stating if it is that of a `Map`, made in the file or imported from a
    package of claims, and a function as drawing if it is decorated by such a claim. A decorator
    imported from a module of `PASSING` is left out, and a call is replaced by its first argument.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.maps: set[str] = set()
        self.passing: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.Assign) and _called(node.value) == "Map":
                self.maps |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("claims"):
                self.maps |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module in PASSING:
                self.passing |= {alias.asname or alias.name for alias in node.names}
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.claims = {
            function.name
            for function in functions
            if any(self._states(decorator) for decorator in function.decorator_list)
        }

    def _states(self, decorator: ast.expr) -> bool:
        call = decorator.func if isinstance(decorator, ast.Call) else None
        names = _dotted(call) if call else ()
        return len(names) == 2 and names[0] in self.maps and names[1] in ("claim", "measurement")

    def _draws(self, decorator: ast.expr) -> bool:
        names = _dotted(decorator)
        return len(names) == 2 and names[0] in self.claims and names[1] == "figure"

    def _passes(self, called: ast.expr) -> bool:
        return isinstance(called, ast.Name) and called.id in self.passing

    def _welcomes(self, decorator: ast.expr) -> bool:
        return self._passes(decorator.func if isinstance(decorator, ast.Call) else decorator)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(
            node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
        ):
            node.body = [part for part in body if not _is_text(part)]
        return super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        if any(self._draws(decorator) for decorator in node.decorator_list):
            return None
        node.decorator_list = [
            d for d in node.decorator_list if not (self._states(d) or self._welcomes(d))
        ]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if not self._welcomes(d)]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        passed = node.args[0] if node.args and self._passes(node.func) else node
        return self.visit(passed) if passed is not node else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if _called(node.value) in ("Map", "Hypothesis") else self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if (node.module or "").startswith(SILENT) else node


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _called(node: ast.expr) -> str:
    """The last name of what is called or named: `claim` of `map.claim(...)`."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
