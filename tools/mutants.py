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
import functools
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
from concurrent.futures import ProcessPoolExecutor, as_completed
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
        inside, given = list(ast.walk(node)), {arg.arg for arg in node.args.args}
        returned = [n.value for n in inside if isinstance(n, ast.Return) and n.value]
        unchanged = all(isinstance(x, ast.Name) and x.id in given for x in returned)
        if unchanged and any(isinstance(n, ast.Raise) for n in inside):
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
    """Of a run of pytest: the seconds of each test that ran, those that failed, and what was wrong
    if it ended otherwise."""

    took: dict[str, float]
    failed: list[str]
    trouble: str
    seconds: float


class _Plugin:
    """Of the tests, those that passed before the change, the fastest first; of the claims' tests,
    those of claims that use `module`."""

    def __init__(self, module: str, before: Outcome | None) -> None:
        self.module, self.before = module, before
        self.took, self.failed = dict[str, float](), list[str]()

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if self.before is None:
            kept = [item for item in items if self._uses(item)]
        else:
            took = {n: t for n, t in self.before.took.items() if n not in self.before.failed}
            kept = sorted((x for x in items if x.nodeid in took), key=lambda x: took[x.nodeid])
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def _uses(self, item: Any) -> bool:
        if "claim_id" not in getattr(item, "fixturenames", ()):
            return item.path.name != "test_claims.py"
        from attlas.claims import catalogue
        from attlas.claims.digest import _closure

        claim = catalogue()[item.callspec.params["claim_id"]]
        return item.originalname == CLAIM_TEST and self.module in _closure(claim.module, False)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


class _Copy:
    """A copy of the sources and tests in which one file at a time is changed."""

    def __init__(self, root: Path, place: Path, least: float, claims: bool) -> None:
        self.root, self.place, self.least, self.claims = root, place, least, claims
        place.mkdir(parents=True)
        for part in root.iterdir():
            if part.name in ("src", "tests"):
                shutil.copytree(part, place / part.name)
            elif part.name not in (".git", "build") and not part.name.endswith("_cache"):
                (place / part.name).symlink_to(part.resolve())
        (place / "build").symlink_to(place.parents[1] / "build")

    def run(
        self, files: Sequence[str], module: str, mutant: Mutant | None, before: Outcome | None
    ) -> Outcome:
        """pytest on `files`, in a fork; with a mutant to the first failure, and no longer than
        the run without it allows."""
        limit = 3600.0 if before is None else self.least + 3 * before.seconds
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
            self._test(files, told, mutant is not None, _Plugin(module, before))
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
        if not ended or not told.exists():
            return Outcome({}, [], "the process died" if ended else "time limit", seconds)
        status, took, failed = json.loads(told.read_text())
        trouble = "" if status in (0, 1, 5) else f"pytest ended with {status}"
        return Outcome(took, failed, trouble, seconds)

    def _test(self, files: Sequence[str], told: Path, stop: bool, plugin: _Plugin) -> None:
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

            options = ["-m", "not long and not cluster", "-p", "no:cacheprovider"]
            status = pytest.main([*options, *(["-x"] if stop else []), *files], [plugin])
            told.write_text(json.dumps([int(status), plugin.took, plugin.failed]))
        finally:
            os._exit(int(status))

    def judge(self, mutants: Sequence[Mutant]) -> tuple[list[Mutant], list[str]]:
        """Mutants of one module with their fates, and remarks."""
        remarks, done, left = list[str](), list[Mutant](), list(mutants)
        file = mutants[0].file
        module = ".".join(Path(file).with_suffix("").parts[1:])
        for fate, files in (("test", self._mirror(file)), ("claim", self._claims(file))):
            if not left or not files:
                continue
            before = self.run(files, module, None, None)
            if before.failed or before.trouble:
                why = before.trouble or ", ".join(before.failed)
                remarks.append(f"{file}: fails without a change, so it is left out: {why}")
            if not before.took:
                continue
            passed = []
            for mutant in left:
                found = self.run(files, module, mutant, before)
                mutant = replace(mutant, seconds=round(mutant.seconds + found.seconds, 2))
                by = found.trouble or next(iter(found.failed), "")
                if by:
                    done.append(replace(mutant, fate=f"killed by a {fate}", by=by))
                else:
                    passed.append(mutant)
            left = passed
        return done + [replace(mutant, fate="survived") for mutant in left], remarks

    def _mirror(self, file: str) -> list[str]:
        *folders, name = Path(file).parts[2:]
        mirror = Path("tests", *folders, f"test_{name}")
        return [str(mirror)] if (self.place / mirror).exists() else []

    def _claims(self, file: str) -> list[str]:
        """The tests of the map's claims; of all maps, for a module that they share."""
        if not self.claims:
            return []
        _, _, folder, *rest = Path(file).parts
        own = Path("tests", folder, "test_claims.py") if rest else Path()
        if (self.place / own).is_file():
            return [str(own)]
        every = (self.place / "tests").glob("*/test_claims.py")
        return sorted(f"tests/{x.parent.name}/{x.name}" for x in every if x.parent.name != "audit")


def _judge(
    root: Path, place: Path, least: float, claims: bool, mutants: Sequence[Mutant]
) -> tuple[list[Mutant], list[str]]:
    with tempfile.TemporaryDirectory(dir=place) as here:
        return _Copy(root, Path(here) / "copy", least, claims).judge(mutants)


def survey(
    root: Path, mutants: Sequence[Mutant], jobs: int = 1, least: float = 10.0, claims: bool = True
) -> Iterator[tuple[list[Mutant], list[str]]]:
    """Mutants with their fates, and remarks, module by module."""
    groups = [[x for x in mutants if x.file == file] for file in sorted({x.file for x in mutants})]
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        # Programs that do not change need not be compiled again.
        compiled = root / "build" / "compiled"
        (Path(place) / "build").mkdir()
        if compiled.exists():
            shutil.copytree(compiled, Path(place) / "build" / "compiled")
        task = functools.partial(_judge, root, Path(place), least, claims)
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            for ended in as_completed([pool.submit(task, group) for group in groups]):
                yield ended.result()


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
    parser.add_argument("--tests-only", action="store_true", help="without the claims")
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
    for name in PRELOADED if (root / "src" / "attlas").exists() else ("pytest",):
        __import__(name)
    began, done = time.monotonic(), list[Mutant]()
    for found, remarks in survey(
        root, mutants, options.jobs, options.least, not options.tests_only
    ):
        done += found
        for mutant in found:
            if mutant.fate == "survived":
                remarks.append(f"{mutant}\n    {_line(root, mutant)}")
        print(*remarks, sep="\n", end="\n" if remarks else "", flush=True)
        print(f"{len(done)} of {len(mutants)}", file=sys.stderr, flush=True)
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
