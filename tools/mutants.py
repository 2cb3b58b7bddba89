"""Mutants: one piece of the mathematics is changed at a time, and tests and claims must notice.

    make mutants N=60 SEED=1 MODULES="single_location gaussian"

An operator, constant, power, sign, comparison or term is drawn and changed in a copy of the
sources. The tests that mirror the module run first; where they pass, the claims run whose
measurements import the module and that `make test` runs. What passes all of it survives, and is
printed. `tools/mutant_sites.py` says what is changed and what is left as it is.

A run is a fork of a process that has imported the package and collected the tests; in it the code
of the changed function is exchanged. What is changed elsewhere, as a default, is imported anew.
What a run without a change takes is kept in `build/mutants` until sources or tests change. A mutant
may use three times the processor's time of that run, and ten seconds; one that exceeds it is
killed. The file that JSON names is written after every module; an interrupted drawing goes on from
there.
"""

import argparse
import contextlib
import functools
import gc
import hashlib
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tools.mutant_sites import Mutant, draw, modules_of

ROOT = Path(__file__).parents[1]
PRELOADED = (
    *("jax.numpy", "scipy.stats", "scipy.optimize", "equinox", "optax", "pandas", "xarray"),
    *("hypothesis", "beartype", "jaxtyping", "altair", "vl_convert", "pytest"),
)
"""What tests import beside the package."""
CLAIM_TEST = "test_claim_is_confirmed_and_its_control_refuted"
COLD = "to be imported anew"


@dataclass
class Outcome:
    """Of a run of pytest: the seconds of each test that ran, those that failed, what was wrong if
    it ended otherwise, and the processor's time."""

    took: dict[str, float]
    failed: list[str]
    trouble: str
    seconds: float


class _Plugin:
    """Judges mutants in forks of one session, by the tests that passed before the change, the
    fastest first; of the claims' tests, by those of claims that use the module."""

    def __init__(
        self, copy: "_Copy", mutants: Sequence[Mutant], before: Outcome | None, warm: bool
    ) -> None:
        self.copy, self.mutants, self.before, self.warm = copy, mutants, before, warm
        self.took, self.failed = dict[str, float](), list[str]()

    def pytest_runtestloop(self, session: Any) -> bool | None:
        if session.testsfailed:
            return None  # the tests could not be imported
        items = [item for item in session.items if _decides(item)]
        # A fork of a process in which JAX has threads would wait for them for ever.
        bridge = sys.modules.get("jax._src.xla_bridge")
        forks = self.warm and not (bridge and bridge.backends_are_initialized())
        run = self.copy.fork if forks else _here
        before = self.before or run(lambda: self._test(items, None), 3600.0)
        took = {n: t for n, t in before.took.items() if n not in before.failed}
        items = sorted((x for x in items if x.nodeid in took), key=lambda x: took[x.nodeid])
        limit, found = self.copy.least + 3 * before.seconds, []
        for mutant in self.mutants:
            if self.warm and not forks:
                found.append(Outcome({}, [], COLD, 0.0))
                continue
            used = [item for item in items if _uses(item, mutant.module)]
            with self.copy.changed(mutant) if self.warm else contextlib.nullcontext():
                found.append(run(functools.partial(self._test, used, mutant), limit))
        outcomes = [asdict(outcome) for outcome in (before, *found)]
        (self.copy.place / "outcomes.json").write_text(json.dumps(outcomes))
        return True

    def _test(self, items: Sequence[Any], mutant: Mutant | None) -> Outcome:
        if mutant is not None:
            sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
            if self.warm and not self.copy.exchange(mutant):
                return Outcome({}, [], COLD, 0.0)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if mutant is not None and self.failed:
                break
        return Outcome(self.took, self.failed, "", 0.0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def _here(work: Callable[[], Outcome], limit: float) -> Outcome:
    """What `work` returns, in this process, which ends if it uses more than `limit` seconds of the
    processor."""
    began = time.process_time()
    whole = math.ceil(began + limit)
    resource.setrlimit(resource.RLIMIT_CPU, (whole, resource.RLIM_INFINITY))
    return replace(work(), seconds=time.process_time() - began)


def _decides(item: Any) -> bool:
    if item.path.name != "test_claims.py":
        return True
    return getattr(item, "originalname", "") == CLAIM_TEST


def _uses(item: Any, module: str) -> bool:
    if item.path.name != "test_claims.py":
        return True
    from attlas.claims import catalogue
    from attlas.claims.digest import _closure

    claim = catalogue()[item.callspec.params["claim_id"]]
    return module in _closure(claim.module, False)


def _code(code: types.CodeType, name: str) -> types.CodeType | None:
    """The code of the function or method that is called `name`, if one alone is."""
    inside = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    found = [x for x in inside if x.co_qualname == name]
    found += [y for x in inside if name.startswith(f"{x.co_name}.") for y in [_code(x, name)] if y]
    return found[0] if len(found) == 1 else None


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
        # Programs that do not change need not be compiled again.
        self.kept, compiled = root / "build" / "mutants", root / "build" / "compiled"
        for folder in (self.kept, compiled):
            folder.mkdir(parents=True, exist_ok=True)
        (place / "build").mkdir()
        (place / "build" / "compiled").symlink_to(compiled)

    def run(self, files: Sequence[str], mutants: Sequence[Mutant]) -> tuple[Outcome, list[Outcome]]:
        """What tests say without a change, which is kept for as long as sources and these tests
        are the same, and with each mutant."""
        digest = hashlib.sha256("\n".join(files).encode())
        own = {self.place / file for file in files}
        for file in sorted(self.place.glob("*/**/*.py")):
            if file in own or not file.name.startswith("test_"):
                digest.update(file.read_bytes())
        kept = self.kept / f"{digest.hexdigest()[:24]}.json"
        before = Outcome(**json.loads(kept.read_text())) if kept.exists() else None
        before, *found = self.session(files, mutants, before)
        kept.write_text(json.dumps(asdict(before)))
        for place, mutant in enumerate(mutants):
            if found[place].trouble == COLD:
                with self.changed(mutant):
                    found[place] = self.session(files, [mutant], before, warm=False)[1]
        return before, found

    def session(
        self,
        files: Sequence[str],
        mutants: Sequence[Mutant],
        before: Outcome | None,
        warm: bool = True,
    ) -> list[Outcome]:
        """The outcome without a change and of each mutant, all from one collection of tests."""
        told = self.place / "outcomes.json"
        told.unlink(missing_ok=True)
        outcome = self.fork(lambda: self._collect(files, mutants, before, warm), math.inf)
        if told.exists():
            return [Outcome(**each) for each in json.loads(told.read_text())]
        return [before or outcome, *[outcome] * len(mutants)]

    def _collect(
        self, files: Sequence[str], mutants: Sequence[Mutant], before: Outcome | None, warm: bool
    ) -> Outcome:
        log = os.open(self.place / "log.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(log, 1), os.dup2(log, 2)
        os.chdir(self.place)
        source = str(self.place / "src")
        ours = {str(self.root), str(self.root / "src"), ""}
        sys.path[:] = [source, str(self.place), *(p for p in sys.path if p not in ours)]
        for name in [n for n in sys.modules if n.partition(".")[0] in ("tools", "tests")]:
            del sys.modules[name]
        os.environ["PYTHONPATH"] = source
        sys.dont_write_bytecode = not warm
        import pytest

        options = ["-m", "not long and not cluster", "-p", "no:cacheprovider"]
        status = pytest.main([*options, *files], [_Plugin(self, mutants, before, warm)])
        return Outcome({}, [], f"pytest ended with {int(status)}", 0.0)

    def fork(self, work: Callable[[], Outcome], limit: float) -> Outcome:
        """What `work` returns in a fork that may use `limit` seconds of the processor."""
        shutil.rmtree(self.place / ".hypothesis", ignore_errors=True)
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks; it has no threads yet
            child = os.fork()
        if child == 0:
            try:
                os.setsid()
                if limit < math.inf:
                    whole = math.ceil(limit)
                    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 5))
                told = json.dumps(asdict(work()))
                (self.place / f"{os.getpid()}.json").write_text(told)
            finally:
                os._exit(0)
        ended, status = 0, 0
        try:
            while not ended and time.monotonic() - began < 20 * limit:  # it may sleep for ever
                time.sleep(0.02)
                ended, status, used = os.wait4(child, os.WNOHANG)
        finally:
            if not ended:
                os.killpg(child, signal.SIGKILL)
                _, _, used = os.wait4(child, 0)
        seconds, answer = used.ru_utime + used.ru_stime, self.place / f"{child}.json"
        if not answer.exists():
            late = not ended or -os.waitstatus_to_exitcode(status) == signal.SIGXCPU
            return Outcome({}, [], "time limit" if late else "the process died", seconds)
        return Outcome(**json.loads(answer.read_text()) | {"seconds": seconds})

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """The file of the mutant is changed for a while."""
        target = self.place / mutant.file
        source = target.read_bytes()
        # Bytecode is told from another by size and second; a mutant may have both.
        for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
            stale.unlink()
        target.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            target.write_bytes(source)

    def exchange(self, mutant: Mutant) -> bool:
        """Whether the change could be made in the function that holds it, in this process."""
        path, name = str(self.place / mutant.file), mutant.function
        if mutant.module not in sys.modules:
            return True  # it is imported later, changed as it is
        code = _code(compile(Path(path).read_bytes(), path, "exec"), name) if name else None
        if code is None:
            return False
        functions = [x for x in gc.get_objects() if isinstance(x, types.FunctionType)]
        own = [
            x
            for x in functions
            if x.__code__.co_filename == path and x.__code__.co_qualname == name
        ]
        for function in own:
            function.__code__ = code
        return len(own) == 1

    def judge(self, mutants: Sequence[Mutant]) -> tuple[list[Mutant], list[str]]:
        """Mutants of one module with their fates, and remarks."""
        remarks, done, left = list[str](), list[Mutant](), list(mutants)
        file = mutants[0].file
        for fate, files in (("test", self._mirror(file)), ("claim", self._claims(file))):
            if not left or not files:
                continue
            before, found = self.run(files, left)
            if before.failed or before.trouble:
                why = before.trouble or ", ".join(before.failed)
                remarks.append(f"{file}: fails without a change, so it is left out: {why}")
            if not before.took:
                continue
            passed = []
            for mutant, outcome in zip(left, found, strict=True):
                mutant = replace(mutant, seconds=round(mutant.seconds + outcome.seconds, 2))
                by = outcome.trouble or next(iter(outcome.failed), "")
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
    files = dict.fromkeys(x.file for x in mutants)  # as drawn: what is done first is no choice
    groups = [[x for x in mutants if x.file == file] for file in files]
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
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
    done, spent = list[Mutant](), 0.0
    asked = len(mutants)
    if options.json and options.json.exists():
        earlier = json.loads(options.json.read_text())
        if earlier["drawn"] < earlier["asked"] and earlier["seed"] == options.seed:
            judged = {x.key: x for x in (Mutant(**x) for x in earlier["mutants"])}
            done, spent = [judged[x.key] for x in mutants if x.key in judged], earlier["seconds"]
            mutants = [x for x in mutants if x.key not in judged]
    began = time.monotonic() - spent
    for found, remarks in survey(
        root, mutants, options.jobs, options.least, not options.tests_only
    ):
        done += found
        fates, seconds = Counter(x.fate for x in done), time.monotonic() - began
        if options.json:
            told = {"seed": options.seed, "asked": asked, "drawn": len(done), "fates": fates}
            told |= {"share": fates["survived"] / len(done), "seconds": round(seconds, 1)}
            partly = options.json.with_suffix(".part")
            partly.write_text(json.dumps(told | {"mutants": [*map(asdict, done)]}, indent=1) + "\n")
            partly.replace(options.json)
        for mutant in found:
            if mutant.fate == "survived":
                remarks.append(f"{mutant}\n    {_line(root, mutant)}")
        print(*remarks, sep="\n", end="\n" if remarks else "", flush=True)
        print(f"{len(done)} of {asked}", file=sys.stderr, flush=True)
    fates, late = Counter(x.fate for x in done), sum(x.by == "time limit" for x in done)
    count = max(len(done), 1)
    print(
        f"{len(done)} mutants, seed {options.seed}: {fates['killed by a test']} killed by tests,"
        f" {fates['killed by a claim']} by claims ({late} of both by the time limit),"
        f" {fates['survived']} survived ({fates['survived'] / count:.1%});"
        f" {(time.monotonic() - began) / count:.1f} s each"
    )


if __name__ == "__main__":
    main()
