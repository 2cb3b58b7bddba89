"""The package's claims as a generated index knows them, without importing one.

`index.json` holds all that `attlas list` and `attlas show` print, so that these import neither JAX
nor a map; `make index` writes it, and a test compares it with the claims.
"""

import fnmatch
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

from attlas.errors import InputError, near

GROUP = "attlas.claims"
"""Entry points that offer claims, this package's among them: a `Map`, or a module that registers
some."""


@dataclass(frozen=True)
class Entry:
    """A claim as the index knows it: what `list` and `show` print."""

    id: str
    module: str
    kind: str
    source: str
    reference: str
    origin: str
    statement: str
    words: str
    rule: str
    control: str
    hypotheses: tuple[str, ...]
    needs: tuple[str, ...]
    quick: dict[str, Any]
    paper: dict[str, Any]

    @property
    def map(self) -> str:
        return self.id.partition("/")[0]

    @property
    def slug(self) -> str:
        return self.id.partition("/")[2]


@functools.cache
def package_index() -> dict[str, Entry]:
    """The package's claims by id, from the generated index."""
    text = files("attlas").joinpath("index.json").read_text(encoding="utf-8")
    entries = [Entry(**_as_tuples(item)) for item in json.loads(text)]
    return {entry.id: entry for entry in entries}


def _as_tuples(value: Any) -> Any:
    """JSON has lists where settings have tuples."""
    if isinstance(value, list):
        return tuple(map(_as_tuples, value))
    if isinstance(value, dict):
        return {name: _as_tuples(item) for name, item in value.items()}
    return value


def foreign_points() -> list[EntryPoint]:
    """The entry points of other installed packages that offer claims."""
    points = entry_points(group=GROUP)
    return [point for point in points if not point.value.startswith("attlas.")]


def matching(
    patterns: Sequence[str], known: dict[str, Entry], source: str | None = None
) -> list[str]:
    """Ids that match one of `patterns` (an id, a slug, a map, or a glob); all if none is given."""
    found: set[str] = set()
    for pattern in patterns or ("*",):
        wanted = pattern.rstrip("/").replace("_", "-")
        matches = [
            id
            for id, entry in known.items()
            if fnmatch.fnmatchcase(id, wanted) or wanted in (entry.map, entry.slug)
        ]
        if not matches:
            # By what follows the map: whole ids are near each other for the map they share.
            meant = {entry.map: entry.map for entry in known.values()}
            meant |= {entry.slug: id for id, entry in known.items()}
            close = near(wanted.rpartition("/")[2].strip("*"), meant, meant.__getitem__)
            raise InputError(f"no claim matches {pattern!r}.{close} `attlas list` shows all.")
        found.update(matches)
    if source is not None:
        sources = {entry.source for entry in known.values()}
        if source not in sources:
            raise InputError(
                f"no claim has the source {source!r}.{near(source, sources)} There are:"
                f" {', '.join(sorted(sources))}."
            )
        found = {id for id in found if known[id].source == source}
    return sorted(found)
