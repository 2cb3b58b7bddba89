"""Mutants: one piece of the mathematics is changed at a time, and tests and claims must notice.

    make mutants N=60 SEED=1 MODULES="single_location gaussian"

An operator, constant, power, sign, comparison or term is drawn and changed in a copy of the
sources. The tests that mirror the module run first; where they pass, the claims run whose
measurements import the module and that `make test` runs. What passes all of it survives, and is
printed. Checks of input, messages, docstrings, type hints and settings of the computation
(constants in capitals, guards against rounding) are left as they are.

Every run is a fork of a process that has imported JAX but nothing of the package. Its time limit is
three times the time without a change, and ten seconds; a mutant that exceeds it is killed.
"""

import argparse
import ast
import copy
import fnmatch
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("claims", "lab", "estimators", "audit", "atlas", "cli", "pages")
"""Folders without mathematics of their own."""
OTHERS = ("__init__", "checks", "errors", "figure", "figure_style", "index", "lazy", "references")
"""Modules without mathematics."""
PRELOADED = (
    *("jax.numpy", "scipy.stats", "scipy.optimize", "equinox", "optax", "pandas", "xarray"),
    *("hypothesis", "beartype", "jaxtyping", "altair", "vl_convert", "pytest"),
)
"""What tests import beside the package."""
CLAIM_TEST = "test_claim_is_confirmed_and_its_control_refuted"

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
    fate: str = ""
    by: str = ""
    seconds: float = 0.0

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


# --- what can be changed -------------------------------------------------------------------------


class _Sites(ast.NodeVisitor):
    """Nodes of the mathematics, each with the nodes that may stand in its place."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[tuple[Any, list[Any]]] = []
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
        returns = any(isinstance(n, ast.Return) and n.value for n in ast.walk(node))
        if not returns and any(isinstance(n, ast.Raise) for n in ast.walk(node)):
            return  # it only checks
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for part in node.body:
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

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
            self.found.append((node, [_with(node, op=other())]))
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
            self.found.append((node.func, [_with(node.func, **named)]))
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
            self.found.append((node, variants))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.generic_visit(node)
        if not isinstance(node.op, ast.UAdd):
            self.found.append((node, [node.operand]))

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        other = COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            self.found.append((node, [_with(node, ops=[other(), *node.ops[1:]])]))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.generic_visit(node)
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        self.found.append((node, [_with(node, op=other())]))

    def visit_Constant(self, node: ast.Constant) -> None:
        x = node.value
        if isinstance(x, bool) or not isinstance(x, int | float) or 0 < abs(x) <= 1e-4:
            return
        if isinstance(x, float):
            values = [1.0] if x == 0 else [round(1.1 * x, 12), -x]
        else:
            values = [x + 1] if x == 0 else [x + 1, x - 1]
        self.found.append((node, [ast.Constant(value) for value in values]))


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
    for file, source, starts, node, variants in rng.sample(sites, len(sites)):
        if len(drawn) == count:
            break
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(rng.choice(variants))
        if not isinstance(node, ast.stmt | ast.Attribute | ast.Name | ast.Constant):
            after = f"({after})"
        mutant = Mutant(file, node.lineno, start, end, ast.unparse(node), after)
        try:
            tree = ast.parse(mutant.applied(source))
        except SyntaxError:
            continue
        if ast.dump(tree) != ast.dump(ast.parse(source)):
            drawn.append(mutant)
    return drawn


# --- how it is judged ----------------------------------------------------------------------------


@dataclass
class Outcome:
    """Of a run of pytest: tests that failed (all of them if it did not stop at the first), and what
    was wrong if it ended otherwise."""

    failed: list[str]
    trouble: str
    seconds: float


class _Plugin:
    """Keeps the claims that use a module, leaves out what fails without a change, and notes what
    fails."""

    def __init__(self, module: str | None, left: Sequence[str]) -> None:
        self.module, self.left, self.failed = module, set(left), list[str]()

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        kept = [item for item in items if item.nodeid not in self.left and self._uses(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def _uses(self, item: Any) -> bool:
        if self.module is None:
            return True
        from attlas.claims import catalogue
        from attlas.claims.digest import _closure

        if item.originalname != CLAIM_TEST:
            return False
        return self.module in _closure(catalogue()[item.callspec.params["claim_id"]].module, False)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class _Copy:
    """A copy of the sources and tests in which one file at a time is changed."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.place = root, place
        place.mkdir(parents=True)
        for part in root.iterdir():
            if part.name in ("src", "tests"):
                shutil.copytree(part, place / part.name)
            elif part.name not in (".git", "build") and not part.name.endswith("_cache"):
                (place / part.name).symlink_to(part.resolve())
        compiled = place.parent / "build"
        compiled.mkdir(exist_ok=True)
        (place / "build").symlink_to(compiled)  # programs that do not change are compiled once

    def run(
        self, files: Sequence[str], limit: float, mutant: Mutant | None = None, **plugin: Any
    ) -> Outcome:
        """pytest on `files`, in a fork; all of them without a mutant, to the first failure with
        one."""
        target = None if mutant is None else self.place / mutant.file
        source = b"" if target is None else target.read_bytes()
        if target is not None and mutant is not None:
            target.write_bytes(mutant.applied(source))
            # Bytecode is told from another by size and second; a mutant may have both.
            for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
                stale.unlink()
        shutil.rmtree(self.place / ".hypothesis", ignore_errors=True)
        began, told = time.monotonic(), self.place / "outcome.json"
        told.unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks; it has no threads yet
            child = os.fork()
        if child == 0:
            self._test(files, told, mutant is not None, plugin)
        ended = 0
        try:
            while not ended and time.monotonic() - began < limit:
                time.sleep(0.02)
                ended, _ = os.waitpid(child, os.WNOHANG)
        finally:
            if not ended:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if target is not None:
                target.write_bytes(source)
        seconds = time.monotonic() - began
        if not ended:
            return Outcome([], "time limit", seconds)
        if not told.exists():
            return Outcome([], "the process died", seconds)
        status, failed = json.loads(told.read_text())
        return Outcome(failed, "" if status in (0, 1, 5) or failed else f"pytest {status}", seconds)

    def _test(self, files: Sequence[str], told: Path, stop: bool, plugin: dict[str, Any]) -> None:
        """In the child; it does not return."""
        status = 3
        try:
            os.setsid()
            log = os.open(self.place / "log.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(log, 1), os.dup2(log, 2)
            os.chdir(self.place)
            source = str(self.place / "src")
            ours = {str(self.root), str(self.root / "src"), ""}
            sys.path[:] = [source, str(self.place), *(p for p in sys.path if p not in ours)]
            for name in [n for n in sys.modules if n.partition(".")[0] in ("tools", "tests")]:
                del sys.modules[name]
            os.environ["PYTHONPATH"] = source
            if stop:
                sys.dont_write_bytecode = True
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            import pytest

            plugins = _Plugin(**plugin)
            options = ["-m", "not long and not cluster", "-p", "no:cacheprovider", "-p", "no:xdist"]
            status = pytest.main([*options, *(["-x"] if stop else []), *files], [plugins])
            told.write_text(json.dumps([int(status), plugins.failed]))
        finally:
            os._exit(int(status))


_copy: _Copy
_least: float


def _start(root: Path, place: Path, least: float) -> None:
    global _copy, _least
    _least = least
    _copy = _Copy(root, place / str(os.getpid()))


def _dotted(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[1:])


def _unchanged(module: str, claims: bool) -> tuple[Outcome, list[str]]:
    """The run without a change, and the files it consists of."""
    parts = Path(module).parts[2:]
    if claims:
        tests = _copy.place / "tests"
        own = tests.joinpath(*parts[:-1], "test_claims.py")
        found = [own] if len(parts) > 1 and own.exists() else sorted(tests.glob("*/test_claims.py"))
        files = [
            str(file.relative_to(_copy.place)) for file in found if file.parent.name != "audit"
        ]
    else:
        mirror = Path("tests", *parts[:-1], f"test_{parts[-1]}")
        files = [str(mirror)] if (_copy.place / mirror).exists() else []
    if not files:
        return Outcome([], "", 0.0), []
    return _copy.run(files, 3600, module=_dotted(module) if claims else None, left=()), files


def _judge(
    mutant: Mutant, claims: bool, files: Sequence[str], before: Outcome
) -> tuple[Mutant, Outcome]:
    name = _dotted(mutant.file) if claims else None
    limit = _least + 3 * before.seconds
    return mutant, _copy.run(files, limit, mutant, module=name, left=before.failed)


def survey(
    root: Path, mutants: Sequence[Mutant], jobs: int, place: Path, least: float
) -> Iterator[Mutant | str]:
    """Each mutant with its fate, as it is found; a string is a remark."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, context, _start, (root, place, least)) as pool:
        left, spent = list(mutants), Counter[Mutant]()
        for claims in (False, True):
            modules = sorted({mutant.file for mutant in left})
            plain = dict(
                zip(modules, pool.map(_unchanged, modules, [claims] * len(modules)), strict=True)
            )
            for module, (outcome, files) in plain.items():
                if outcome.failed or outcome.trouble:
                    why = outcome.failed or outcome.trouble
                    yield f"{module}: fails unchanged, left out: {why}"
                if not files and not claims:
                    yield f"{module}: no test mirrors it"
            told = [plain[mutant.file] for mutant in left]
            tested = [x for x, (_, files) in zip(left, told, strict=True) if files]
            passed = [x for x, (_, files) in zip(left, told, strict=True) if not files]
            for mutant, outcome in pool.map(
                _judge,
                tested,
                [claims] * len(tested),
                [plain[mutant.file][1] for mutant in tested],
                [plain[mutant.file][0] for mutant in tested],
            ):
                spent[mutant] += outcome.seconds  # type: ignore[assignment]
                by = outcome.trouble or next(iter(outcome.failed), "")
                if by:
                    fate = "killed by a claim" if claims else "killed by a test"
                    yield replace(mutant, fate=fate, by=by, seconds=round(spent[mutant], 2))
                else:
                    passed.append(mutant)
            left = passed
        for mutant in left:
            yield replace(mutant, fate="survived", seconds=round(spent[mutant], 2))


def _line(root: Path, mutant: Mutant) -> str:
    return (root / mutant.file).read_text().splitlines()[mutant.line - 1].strip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, default=60, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", nargs="*", default=[], help="as in gaussian kernels/* kernels")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--least", type=float, default=10.0, help="seconds added to a time limit")
    parser.add_argument("--json", type=Path, help="a file for the result")
    parser.add_argument("--again", type=Path, help="such a file: only what survived in it")
    parser.add_argument("--list", action="store_true", help="print what is drawn, and end")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    mutants = draw(root, modules_of(root, options.modules), options.n, options.seed)
    if options.again:
        fields = ("file", "before", "after")
        survivors = [
            tuple(x[f] for f in fields)
            for x in json.loads(options.again.read_text())["mutants"]
            if x["fate"] == "survived"
        ]
        mutants = [x for x in mutants if tuple(getattr(x, f) for f in fields) in survivors]
    if options.list:
        print(*mutants, sep="\n")
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in PRELOADED:
        __import__(name)
    began, done = time.monotonic(), list[Mutant]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        for found in survey(root, mutants, options.jobs, Path(place), options.least):
            if isinstance(found, str):
                print(found, flush=True)
                continue
            done.append(found)
            if found.fate == "survived":
                print(f"{found}\n    {_line(root, found)}", flush=True)
            elif sys.stderr.isatty():
                print(f"{len(done)} of {len(mutants)}", end="\r", file=sys.stderr, flush=True)
    fates = Counter(mutant.fate for mutant in done)
    seconds = time.monotonic() - began
    count = max(len(done), 1)
    share = fates["survived"] / count
    print(
        f"{len(done)} mutants, seed {options.seed}: {fates['killed by a test']} killed by tests,"
        f" {fates['killed by a claim']} by claims, {fates['survived']} survived"
        f" ({share:.1%}); {seconds / count:.1f} s each"
    )
    if options.json:
        told = {"seed": options.seed, "drawn": len(done), "fates": fates, "share": share}
        told |= {"seconds": round(seconds, 1), "mutants": [asdict(mutant) for mutant in done]}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
