"""Where claims are found: by importing a map, or in a file outside the package."""

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import sys
import traceback
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attlas.claims.claim import LOADED, Claim
from attlas.claims.digest import beside, forget_sources
from attlas.claims.map import REGISTRY, Map
from attlas.errors import InputError, near
from attlas.index import GROUP, Entry, foreign_points, matching, package_index

if TYPE_CHECKING:
    import pandas as pd


def entry_of(claim: Claim) -> Entry:
    """What the index says about a claim."""
    return Entry(
        claim.id,
        claim.module,
        claim.kind,
        claim.source,
        claim.reference,
        claim.origin,
        claim.statement,
        claim.words,
        str(claim.rule),
        claim.control.said(),
        tuple(hypothesis.words for hypothesis in claim.hypotheses),
        claim.needs,
        dict(claim.quick),
        dict(claim.paper),
    )


def index_text(claims: Iterable[Claim]) -> str:
    """The index of these claims, as the file holds it."""
    return json.dumps([asdict(entry_of(claim)) for claim in claims], indent=1) + "\n"


def entries(files: Sequence[str | Path] = ()) -> dict[str, Entry]:
    """All claims as entries by id; maps of the package are not imported for it."""
    found = dict(package_index())
    _load(foreign_points())
    for file in files:
        load_file(file)
    found |= {id: entry_of(claim) for id, claim in REGISTRY.items()}
    return dict(sorted(found.items()))


class Catalogue(dict[str, Claim]):
    """Claims by id, which a notebook shows as a table."""

    def frame(self) -> "pd.DataFrame":
        """One row a claim: what its evidence is, where it is stated, and what it says."""
        import pandas as pd

        rows = {
            id: (claim.kind, f"{claim.source}, {claim.reference}", claim.words)
            for id, claim in self.items()
        }
        columns = ["evidence", "reference", "in words"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns)

    def _repr_html_(self) -> str:
        return str(self.frame().style.set_properties(**{"text-align": "left"}).to_html())


def catalogue(pattern: str | None = None) -> Catalogue:
    """Claims by id: the package's, installed packages' (entry points), and loaded files'; all, or
    those that match an id, a map, or a glob such as "*risk*".

    Arguments:
        pattern: what to match.

    >>> import attlas
    >>> found = attlas.catalogue("*risk*")
    >>> print("single-location/closed-form-risk" in found, list(found.frame().columns))
    True ['evidence', 'reference', 'in words']
    """
    if pattern is not None:
        return Catalogue({claim.id: claim for claim in select([pattern])})
    _load(entry_points(group=GROUP))
    return Catalogue(sorted(REGISTRY.items()))


def _load(points: Iterable[EntryPoint]) -> None:
    for point in points:
        with _reported_as_input(f"entry point {point.name!r} of {GROUP}"):
            offered = point.load()
            if isinstance(offered, Map):
                offered.load()


def find_claim(id: str) -> Claim:
    """The claim of that id, importing only the module that states it.

    Arguments:
        id: "map/slug".
    """
    known = package_index().get(id)
    if id not in REGISTRY and known is not None:
        importlib.import_module(known.module)
    return REGISTRY[id] if id in REGISTRY else catalogue()[id]


def select(patterns: Sequence[str], source: str | None = None) -> list[Claim]:
    """Claims that match (see `matching`); only the modules that state them are imported.

    Arguments:
        patterns: ids, maps or globs. `source`: only claims of this paper's BibTeX key.

    >>> from attlas.claims import load_file, select
    >>> [claim.slug for claim in select(["sparse-variables/threshold-*"])][:2]
    ['threshold-margin']
    >>> load_file("no-such-file.py")
    Traceback (most recent call last):
    attlas.errors.InputError: claim file '...no-such-file.py' does not exist
    """
    known = entries()
    try:
        ids = matching(patterns, known, source)
    except InputError:
        # A claim that the index does not know yet.
        ids = matching(patterns, {id: entry_of(c) for id, c in catalogue().items()}, source)
    return [find_claim(id) for id in ids]


class FromSource(importlib.machinery.SourceFileLoader):
    """Loads a file from its source always.

    Bytecode is matched by the file's size and the second of its change: a file that is edited and
    run again within that second would be the old one.
    """

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_file(path: str | Path) -> list[Claim]:
    """The claims of a file outside the package, added to the catalogue; none if it has an error.

    Arguments:
        path: of a Python file that makes a `Map` and claims.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise InputError(f"claim file {str(path)!r} does not exist")
    before = dict(REGISTRY)
    for id in [id for id, claim in before.items() if claim.file == path]:  # loaded again
        del REGISTRY[id]
    name = f"{LOADED}{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    for helper in beside(name):  # edited ones would otherwise stay as they were
        sys.modules.pop(helper, None)
    forget_sources()
    spec = importlib.util.spec_from_file_location(name, path, loader=FromSource(name, str(path)))
    if spec is None or spec.loader is None:
        raise InputError(f"claim file {str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _reported_as_input(f"claim file {str(path)!r}", path):
            spec.loader.exec_module(module)
            made = [claim for claim in REGISTRY.values() if claim.module == name]
            if not made:
                raise InputError("it defines no claim")
            _check_against_package(made)
    except InputError:
        for id in [id for id, claim in REGISTRY.items() if claim.module == name]:
            del REGISTRY[id]
        REGISTRY.update(before)
        del sys.modules[name]
        raise
    return made


def _check_against_package(made: list[Claim]) -> None:
    """Ids are new, and the claims that these rest on exist."""
    known = {*package_index(), *(claim.id for claim in made)}
    for claim in made:
        if claim.id in package_index():
            raise InputError(f"{claim.where} exists already in the package; choose another name")
        lacking = [need for need in claim.needs if need not in known]
        if lacking and lacking[0] not in catalogue():
            raise InputError(
                f"{claim.where} needs {lacking[0]!r}, which is no claim.{near(lacking[0], known)}"
            )


@contextlib.contextmanager
def _reported_as_input(what: str, path: Path | None = None) -> Iterator[None]:
    """Other people's code may raise anything while it is imported: reported as their input."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        where = f"{what}, line {line}" if line else what
        if not isinstance(error, InputError):
            raise InputError(f"{where}: {type(error).__name__}: {error}") from error
        if path is None or line is None or ", line " in str(error):
            raise InputError(f"{what}: {error}") from error
        raise InputError(f"{where}{_claim_at(path, line)}: {error}") from error


def _claim_at(path: Path, line: int) -> str:
    """Which function a decorator on this line belongs to, in words."""
    functions = [
        node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.FunctionDef)
    ]
    for node in functions:
        if any(part.lineno <= line <= (part.end_lineno or 0) for part in node.decorator_list):
            return f", claim {node.name.replace('_', '-')!r}"
    return ""
