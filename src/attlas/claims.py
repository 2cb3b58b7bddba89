"""A claim: a statement, the evidence for it, a rule fixed beforehand, and a false variant that the rule must refute."""

import contextlib
import fnmatch
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import math
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Literal

import jax
import xarray as xr

from attlas.errors import InputError, near
from attlas.statistics import Rule, Verdict

__all__ = [
    "Claim",
    "Control",
    "Hypothesis",
    "Setting",
    "Verdict",
    "catalogue",
    "claim",
    "key_for",
    "load_file",
    "product",
    "select",
    "together",
]

Value = int | float | str | bool | tuple[Any, ...]
MAPS = ("single_location", "sparse_variables", "latent_posterior")
HOMES = (*MAPS, "audit")
"""The rooms of the package that have claims: the maps, and the audit, which tests one of theirs on a real model."""
GROUP = "attlas.claims"
Origin = Literal["paper", "our reading", "ours"]


class Setting(Mapping[str, Value]):
    """The parameters of a claim, by name: immutable, read as attributes, changed by `replace`.

    A whole number is a count and at least 1. A tuple lists values that the claim's cells run through.
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
            raise AttributeError(f"this setting has no parameter {name!r}") from None

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
        return type(self)(
            **{
                **self._values,
                **{name: self._typed(name, value) for name, value in changes.items()},
            }
        )

    def parse(self, assignments: Sequence[str]) -> "Setting":
        """`replace`, from texts like `"dim=100"` or, where a parameter is a list, `"dim=100,400"`."""
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
    """`value` as the type of `like`, from a Python value or from text; a whole number is at least `least`."""
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
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(like, int):
        if not number.is_integer() or number < least:
            bound = f", at least {least:g}" if math.isfinite(least) else ""
            raise InputError(f"{name} = {value!r}: it must be a whole number{bound}")
        return int(value) if isinstance(value, int) else int(number)
    if not math.isfinite(number):
        raise InputError(f"{name} = {value!r}: it must be a finite number")
    return number


def together(*names: str) -> Callable[[Setting], list[Setting]]:
    """Cells in which the lists `names` advance together; a list of one value is held fixed."""

    def cells(setting: Setting) -> list[Setting]:
        longest = max(len(setting[name]) for name in names)  # type: ignore[arg-type]
        lists = {}
        for name in names:
            values: tuple[Any, ...] = setting[name]  # type: ignore[assignment]
            if len(values) not in (1, longest):
                raise InputError(
                    f"{name} has {len(values)} values: the lists {', '.join(names)} must have 1 or {longest}"
                )
            lists[name] = values * longest if len(values) == 1 else values
        return [
            setting.at(**dict(zip(lists, point, strict=True)))
            for point in zip(*lists.values(), strict=True)
        ]

    return cells


def product(*names: str) -> Callable[[Setting], list[Setting]]:
    """Cells at every combination of the lists `names`."""

    def cells(setting: Setting) -> list[Setting]:
        points = itertools.product(*(setting[name] for name in names))  # type: ignore[arg-type]
        return [setting.at(**dict(zip(names, point, strict=True))) for point in points]

    return cells


@dataclass(frozen=True)
class Hypothesis:
    """A condition of the theorem, in words and as a test of a cell. Where it fails the verdict is `outside`; where it
    is `defining`, nothing is defined without it, and the setting is bad input."""

    words: str
    holds: Callable[[Setting], bool]
    defining: bool = False


@dataclass(frozen=True)
class Control:
    """A false variant of the statement, of a size said in `words`, that the rule must refute on the same budget.

    `alter` changes the evidence (`on="evidence"`: by preference, since the data are then the same) or the setting
    (`on="setting"`: a mechanism without the property, which is measured too).
    """

    words: str
    alter: Callable[[Any], Any]
    on: Literal["evidence", "setting"] = "evidence"


@dataclass(frozen=True)
class Claim:
    """A statement with all that is needed to test it; made by the decorator `claim`.

    `measure(cells, seed)` returns the evidence for a batch of cells, a Dataset with a leading axis `cell`. Cells that
    agree in the parameters `shape` have arrays of one shape and may be measured together; by default each is
    measured by itself. `fit` makes what the rule reads of the evidence of all cells, where that takes more than one of
    them. `budget` names the count that a repetition multiplies by four. What takes `long`, beside other claims, is begun first
    where several are measured at once. `code` is the digest of the sources that its
    numbers depend on, as they were when it was registered. Claims that are measured by one function share its
    evidence: it is kept under the id of the first of them, `evidence`.
    """

    id: str
    source: str
    reference: str
    statement: str
    words: str
    measure: Callable[[Sequence[Setting], int], xr.Dataset]
    quick: Setting
    paper: Setting
    rule: Rule
    control: Control
    figure: Callable[[xr.Dataset], Any] | None = None
    hypotheses: tuple[Hypothesis, ...] = ()
    needs: tuple[str, ...] = ()
    origin: Origin = "paper"
    cells: Callable[[Setting], list[Setting]] = field(default=lambda setting: [setting])
    shape: tuple[str, ...] | None = None
    batch: int = 8
    budget: str | None = None
    precision: Literal["float64", "float32"] = "float64"
    long: bool = False
    fit: Callable[[xr.Dataset], xr.Dataset] = field(default=lambda evidence: evidence)
    code: str = ""
    evidence: str = ""

    @property
    def map(self) -> str:
        return self.id.partition("/")[0]

    @property
    def slug(self) -> str:
        return self.id.partition("/")[2]

    @property
    def file(self) -> Path:
        """The file in which `measure` is defined."""
        return Path(sys.modules[self.measure.__module__].__file__ or "")

    @property
    def loaded(self) -> bool:
        """Whether `load_file` made it."""
        return self.measure.__module__.startswith(LOADED)

    def setting(self, scale: str = "quick") -> Setting:
        if scale not in ("quick", "paper"):
            raise InputError(f"scale {scale!r}: it must be quick or paper")
        return self.paper if scale == "paper" else self.quick

    def batches(self, cells: Sequence[Setting]) -> list[list[Setting]]:
        """`cells` in groups that `measure` takes at once."""
        if self.shape is None:
            return [[cell] for cell in cells]
        groups: dict[tuple[Value, ...], list[Setting]] = {}
        for cell in cells:
            groups.setdefault(tuple(cell[name] for name in self.shape), []).append(cell)
        return [
            group[i : i + self.batch]
            for group in groups.values()
            for i in range(0, len(group), self.batch)
        ]

    def broken(self, cells: Sequence[Setting]) -> list[str]:
        """Hypotheses that some cell breaks, in words; an `InputError` where a defining one is among them."""
        found = []
        # Whether anything is defined comes first: the others may take a computation.
        for hypothesis in sorted(self.hypotheses, key=lambda hypothesis: not hypothesis.defining):
            offender = next((cell for cell in cells if not hypothesis.holds(cell)), None)
            if offender is None:
                continue
            if hypothesis.defining:
                values = ", ".join(
                    f"{k} = {v!r}" for k, v in offender.items() if k in hypothesis.words
                )
                raise InputError(
                    f"{values or offender}: {self.id} is defined only where {hypothesis.words}"
                )
            found.append(hypothesis.words)
        return found


LOADED = "attlas_claims_"
"""How the names of modules begin that are made of claim files."""

_REGISTRY: dict[str, Claim] = {}


def claim(
    id: str, **parts: Any
) -> Callable[[Callable[[Sequence[Setting], int], xr.Dataset]], Claim]:
    """Register the decorated function as the measurement of a claim; the keywords are the fields of `Claim`."""

    def register(measure: Callable[[Sequence[Setting], int], xr.Dataset]) -> Claim:
        made = Claim(id=id, measure=measure, **parts)
        _check(made)
        first = next((known.id for known in _REGISTRY.values() if known.measure is measure), id)
        made = replace(made, code=_digest(made.file), evidence=first)
        _REGISTRY[id] = made
        return made

    return register


def _check(new: Claim) -> None:
    where = f"{new.file.name}: claim {new.id!r}"
    if (
        not (new.map and new.slug)
        or new.id != new.id.lower()
        or " " in new.id
        or new.id.count("/") != 1
    ):
        raise InputError(f"{where}: an id has the form map/slug, in lower case and without spaces")
    if new.id in _REGISTRY:
        raise InputError(f"{where} exists already, in {_REGISTRY[new.id].file}; choose another id")
    if set(new.quick) != set(new.paper):
        raise InputError(f"{where}: the scales quick and paper have different parameters")
    unknown = {*(new.shape or ()), *([new.budget] if new.budget else [])} - set(new.quick)
    if unknown:
        raise InputError(f"{where}: {', '.join(sorted(unknown))} is no parameter of its setting")


_SILENT = {"figures", "figures.py", "drawing.py", "cli.py", "terminal.py"}
"""Sources that draw and print, files or folders; no number depends on them."""


def _digest(file: Path) -> str:
    """Digest of what a claim's numbers depend on: the sources of its map and of the root modules, for a claim of somebody
    else's those of all maps and of every module loaded from beside it, and the versions of what computes."""
    package = Path(__file__).parent
    root = list(package.glob("*.py"))
    home = next((folder for folder in file.parents if folder.parent == package), None)
    if home is not None:
        own = list(home.rglob("*.py"))
    else:
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        beside = {Path(name) for name in loaded if name and Path(name).is_relative_to(file.parent)}
        own = [file, *beside, *(path for name in MAPS for path in (package / name).rglob("*.py"))]
    sources = sorted(
        {
            path
            for path in (*root, *own)
            if path.suffix == ".py" and not _SILENT & {path.name, path.parent.name}
        }
    )
    digest = hashlib.sha256(versions().encode())
    for path in sources:
        digest.update(_source_digest(path, path.stat().st_mtime_ns))
    return digest.hexdigest()


@functools.cache
def versions() -> str:
    """Of what computes."""
    return " ".join(version(name) for name in ("jax", "jaxlib", "numpy", "scipy"))


@functools.cache
def _source_digest(path: Path, changed: int) -> bytes:
    return hashlib.sha256(path.name.encode() + path.read_bytes()).digest()


def catalogue() -> dict[str, Claim]:
    """All claims by id: the package's maps, installed packages' (entry points `attlas.claims`), and loaded files'."""
    for name in HOMES:
        importlib.import_module(f"attlas.{name}.claims")
    for point in entry_points(group=GROUP):
        with _told_as_input_error(f"entry point {point.name!r} of {GROUP}"):
            point.load()
    return dict(sorted(_REGISTRY.items()))


class FromSource(importlib.machinery.SourceFileLoader):
    """Loads a file from its source always: bytecode knows it by its size and the second of its change, and a file that is edited and
    run again within that second would be the old one."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_file(path: str | Path) -> list[Claim]:
    """The claims of a Python file outside the package, added to the catalogue. A file with an error adds none."""
    path = Path(path).resolve()
    if not path.is_file():
        raise InputError(f"claim file {str(path)!r} does not exist")
    catalogue()
    before = dict(_REGISTRY)
    for id in [id for id, made in before.items() if made.file == path]:  # the file is loaded again
        del _REGISTRY[id]
    name = f"{LOADED}{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path, loader=FromSource(name, str(path)))
    if spec is None or spec.loader is None:
        raise InputError(f"claim file {str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _told_as_input_error(f"claim file {str(path)!r}", path):
            spec.loader.exec_module(module)
    except InputError:
        _REGISTRY.clear()
        _REGISTRY.update(before)
        del sys.modules[name]
        raise
    loaded = [made for made in _REGISTRY.values() if made.measure.__module__ == name]
    if not loaded:
        raise InputError(f"claim file {str(path)!r} defines no claim")
    return loaded


@contextlib.contextmanager
def _told_as_input_error(what: str, path: Path | None = None) -> Iterator[None]:
    """Other people's code may raise anything while it is imported; that is their input to us, and told as such."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
    except Exception as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        line = getattr(error, "lineno", None) or (frames[-1].lineno if frames else None)
        where = f"{what}, line {line}" if line else what
        raise InputError(f"{where}: {type(error).__name__}: {error}") from error


def select(patterns: Sequence[str], source: str | None = None) -> list[Claim]:
    """Claims whose id matches one of `patterns` (an id, a slug, a map, or a glob like `*risk*`); all if none is given."""
    known = catalogue()
    found: dict[str, Claim] = {}
    for pattern in patterns or ("*",):
        wanted = pattern.rstrip("/").replace("_", "-")
        matches = [
            i
            for i, c in known.items()
            if fnmatch.fnmatchcase(i, wanted) or wanted in (c.map, c.slug)
        ]
        if not matches:
            # By what follows the map: whole ids are near each other for no more than the map they share.
            meant = {
                **{c.map: c.map for c in known.values()},
                **{c.slug: i for i, c in known.items()},
            }
            close = near(wanted.rpartition("/")[2].strip("*"), meant, meant.__getitem__)
            raise InputError(f"no claim matches {pattern!r}.{close} `attlas list` shows all.")
        found.update((i, known[i]) for i in matches)
    if source is not None:
        sources = {c.source for c in known.values()}
        if source not in sources:
            raise InputError(
                f"no claim has the source {source!r}.{near(source, sources)} There are: {', '.join(sorted(sources))}."
            )
        found = {i: c for i, c in found.items() if c.source == source}
    return [found[i] for i in sorted(found)]


def drawn_by(path: str, **options: Any) -> Callable[[xr.Dataset], Any]:
    """The figure function at `path`, as in `"package.module:function"`, imported when it first draws; it is given `options`."""
    module, _, name = path.partition(":")

    def draw(evidence: xr.Dataset) -> Any:
        return getattr(importlib.import_module(module), name)(evidence, **options)

    return draw


def key_for(seed: int, claim_id: str, purpose: str) -> jax.Array:
    """The random key of one purpose of one claim. Settings do not enter, so that cells share their random numbers."""
    key = jax.random.key(seed, impl="threefry2x32")
    for word in (claim_id, purpose):
        key = jax.random.fold_in(key, zlib.crc32(word.encode()))
    return key
