"""What mutants change: operators, constants, powers, signs, comparisons and terms of formulas.

Checks of input, messages, docstrings, type hints and settings of the computation (constants in
capitals, guards against rounding) are left as they are.
"""

import ast
import copy
import fnmatch
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ELSEWHERE = ("claims", "lab", "estimators", "audit", "atlas", "cli", "pages")
"""Folders without mathematics of their own."""
OTHERS = ("__init__", "checks", "errors", "figure", "figure_style", "index", "lazy", "references")
"""Modules without mathematics."""

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
PAIRS = (
    *(("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("floor", "ceil")),
    *(("sin", "cos"), ("any", "all"), ("sum", "mean")),
)
FUNCTIONS = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
"""Functions that are taken for one another."""
SHAPES = ("reshape", "moveaxis", "swapaxes", "expand_dims", "concatenate", "stack", "split")
"""Functions whose constants are axes and shapes."""
REDUCTIONS = ("sum", "mean", "max", "min", "any", "all", "std", "cumsum", "argmax", "argmin")
KEYWORDS = {"axis", "dtype", "static_argnums", "maxsize", "stacklevel", "optimize", "ddof"}


@dataclass(frozen=True)
class Mutant:
    """One change: `before` at [start, end) of the bytes of `file` becomes `after`."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str
    function: str = ""
    fate: str = ""
    by: str = ""
    seconds: float = 0.0

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    @property
    def module(self) -> str:
        return ".".join(Path(self.file).with_suffix("").parts[1:])

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.file, self.start, self.end, self.after

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


class _Sites(ast.NodeVisitor):
    """Nodes of the mathematics, each with the nodes that may stand in its place."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[tuple[Any, list[Any], str]] = []
        self.names: list[str] = []
        self.checks = {"warn"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("errors"):
                self.checks |= {alias.asname or alias.name for alias in node.names}
        for part in tree.body:
            if not (isinstance(part, ast.Assign | ast.AnnAssign) and _in_capitals(part)):
                self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if "check" in node.name or node.name in ("__repr__", "__str__"):
            return
        inside, given = list(ast.walk(node)), {arg.arg for arg in node.args.args}
        returned = [n.value for n in inside if isinstance(n, ast.Return) and n.value]
        unchanged = all(isinstance(x, ast.Name) and x.id in given for x in returned)
        if unchanged and any(isinstance(n, ast.Raise) for n in inside):
            return  # it only checks
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.names.append(("" if isinstance(node, ast.ClassDef) else "()") + node.name)
        for part in node.body:
            self.visit(part)
        self.names.pop()

    def _add(self, node: Any, *variants: Any) -> None:
        """With the name of the outermost function in whose body the node is."""
        ends = [i for i, name in enumerate(self.names) if name.startswith("()")]
        name = ".".join(self.names[: ends[0] + 1]).replace("()", "") if ends else ""
        self.found.append((node, list(variants), name))

    def visit_If(self, node: ast.If) -> None:
        if not any(isinstance(n, ast.Raise) for part in node.body for n in ast.walk(part)):
            self.visit(node.test)
            for part in node.body:
                self.visit(part)
        for part in node.orelse:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        other = OPERATORS.get(type(node.op))
        if other is not None:
            self._add(node, _with(node, op=other()))
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None: ...

    def visit_Raise(self, node: ast.Raise) -> None: ...

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in KEYWORDS:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in self.checks or "check" in name:
            return
        other = FUNCTIONS.get(name)
        if other is not None and not (isinstance(node.func, ast.Name) and name in ("sum", "mean")):
            named = {"attr": other} if isinstance(node.func, ast.Attribute) else {"id": other}
            self._add(node.func, _with(node.func, **named))
        self.visit(node.func)
        for place, argument in enumerate(node.args):
            axis = name in SHAPES or (name in REDUCTIONS and _is_number(argument))
            if not (axis and (place or _is_number(argument))):
                self.visit(argument)
        for keyword in node.keywords:
            self.visit(keyword)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        if any(
            isinstance(x, ast.List | ast.Tuple | ast.JoinedStr) or _is_text(x) for x in _of(node)
        ):
            return
        other = OPERATORS.get(type(node.op))
        variants: list[Any] = [] if other is None else [_with(node, op=other())]
        if isinstance(node.op, ast.Add | ast.Mult):
            variants += [node.left, node.right]
        elif isinstance(node.op, ast.Sub | ast.Div | ast.Pow):
            variants.append(node.left)
        if variants:
            self._add(node, *variants)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.generic_visit(node)
        if not isinstance(node.op, ast.UAdd):
            self._add(node, node.operand)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        other = COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            self._add(node, _with(node, ops=[other(), *node.ops[1:]]))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.generic_visit(node)
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        self._add(node, _with(node, op=other()))

    def visit_Constant(self, node: ast.Constant) -> None:
        x = node.value
        if isinstance(x, bool) or not isinstance(x, int | float) or 0 < abs(x) <= 1e-4:
            return
        if isinstance(x, float):
            values = [1.0] if x == 0 else [round(1.1 * x, 12), -x]
        else:
            values = [x + 1] if x == 0 else [x + 1, x - 1]
        self._add(node, *(ast.Constant(value) for value in values))


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _of(node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return node.left, node.right


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_number(node: ast.AST) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _in_capitals(node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return all(isinstance(t, ast.Name) and t.id.isupper() for t in targets)


def modules_of(root: Path, patterns: Sequence[str] = ()) -> list[str]:
    """The files of mathematics below `root`; those that match one of the patterns, if any."""
    names = {}
    for file in sorted(root.glob("src/**/*.py")):
        _, _, *folders, name = file.relative_to(root).with_suffix("").parts
        if name not in OTHERS and not set(folders) & set(ELSEWHERE):
            names[str(file.relative_to(root))] = "/".join((*folders, name))

    def matching(pattern: str) -> list[str]:
        both = (pattern, f"{pattern}/*")
        return [file for file, name in names.items() if any(fnmatch.fnmatch(name, p) for p in both)]

    unknown = [pattern for pattern in patterns if not matching(pattern)]
    if unknown:
        sys.exit(f"no module of mathematics is called {', '.join(unknown)}")
    return sorted({file for pattern in patterns for file in matching(pattern)} or names)


def draw(root: Path, modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """At most `count` mutants, at different places; what does not compile is redrawn."""
    sites = []
    for file in modules:
        source = (root / file).read_bytes()
        starts = [0]
        for row in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(row))
        sites += [(file, source, starts, *found) for found in _Sites(ast.parse(source)).found]
    rng, drawn = random.Random(seed), list[Mutant]()
    for file, source, starts, node, variants, function in rng.sample(sites, len(sites)):
        if len(drawn) == count:
            break
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(rng.choice(variants))
        if not isinstance(node, ast.stmt | ast.Attribute | ast.Name | ast.Constant):
            after = f"({after})"
        mutant = Mutant(file, node.lineno, start, end, ast.unparse(node), after, function)
        try:
            tree = ast.parse(mutant.applied(source))
        except SyntaxError:
            continue
        if ast.dump(tree) != ast.dump(ast.parse(source)):
            drawn.append(mutant)
    return drawn
