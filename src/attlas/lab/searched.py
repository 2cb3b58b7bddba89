"""What is kept of searches for violations: one entry a claim, in a file of the package."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from attlas.claims import Claim, Value
from attlas.errors import InputError
from attlas.lab.files import add_entries, fits, read_entries
from attlas.lab.records import PLAIN
from attlas.lab.refute import Search
from attlas.lab.regions import Region, rounded
from attlas.lab.shipped import FOLDER
from attlas.lab.soak import soak_digest

FILE = FOLDER / "refute.json"
_SUMMARY = {
    "code": str,
    "over?": {str: [PLAIN]},
    "word": str,
    "settings": int,
    "cells": int,
    "seconds": int | float,
    "seed": int,
    "nearness": int | float | None,
    "at": {str: PLAIN},
    "reason": str,
    "failed": int,
    "at_first?": int,
}
"""The form of what is kept of the search of a claim."""


class Searched(NamedTuple):
    """What is kept of a search: its `word`, `not refuted`, `refuted` or `not searched`, what was
    looked at, and where it came nearest; `at_first` counts what was refuted at first sight; `stale`
    if the claim has changed since. `over` is the box that was searched, by parameter: two ends, or
    words; of a box that is no longer the default one it still says what it says."""

    word: str
    settings: int
    cells: int
    seconds: float
    seed: int
    nearness: float | None
    at: dict[str, Value]
    reason: str
    failed: int
    stale: bool
    at_first: int = 0
    over: Mapping[str, list[Value]] = MappingProxyType({})

    def box_said(self) -> str:
        """The box, as a sentence has it."""
        return "; ".join(
            f"{name} {', '.join(map(str, ends))}"
            if any(isinstance(end, str | bool) for end in ends) or len(ends) != 2
            else f"{name} {ends[0]:.6g} to {ends[1]:.6g}"
            for name, ends in self.over.items()
        )

    def why_not(self) -> str:
        """Of a claim that was not searched, why not."""
        return self.reason.rpartition("could be searched: ")[2]

    def covers(self, claim: Claim) -> bool:
        """Whether it searched the default box of today."""
        return self.over == default_box(claim)


def search_digest(claim: Claim) -> str:
    """Digest of what a search depends on: what verdicts do, and the hypotheses. The box is kept
    beside what was found in it: a wider one takes back nothing."""
    words = json.dumps([hypothesis.words for hypothesis in claim.hypotheses])
    return f"{soak_digest(claim)}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"


def default_box(claim: Claim) -> dict[str, list[Value]]:
    """The ranges that are searched of a claim by default; none if it has nothing to search."""
    try:
        return Region(claim).box()
    except InputError:
        return {}


def summary(claim: Claim, found: Search | InputError) -> dict[str, Any]:
    """A search as it is kept, or why there was none."""
    code = search_digest(claim)
    if isinstance(found, InputError):
        empty: dict[str, Any] = dict.fromkeys(("settings", "cells", "seconds", "seed", "failed"), 0)
        said = {"code": code, "word": "not searched", "reason": str(found), "at": {}, "over": {}}
        return {**said, **empty, "nearness": None}
    violation, nearest = found.violation, found.nearest
    at = violation.changed if violation else nearest and found.region.values(nearest.setting)
    verdict = nearest.verdict if nearest else None  # of the violation, if there is one
    number = nearest.nearness if nearest else math.nan
    return {
        "code": code,
        "over": found.region.box(),
        "word": "refuted" if violation else "not refuted",
        "settings": found.settings,
        "cells": found.cells,
        "seconds": round(found.seconds, 1),
        "seed": found.seed,
        "nearness": rounded(number, 4) if math.isfinite(number) else None,
        "at": at or {},
        "reason": verdict.reason if verdict else "",
        "failed": len(found.failed),
        "at_first": found.refuted_at_first,
    }


def write_summary(new: Mapping[str, dict[str, Any]], path: Path = FILE) -> None:
    """Write what was found, beside that of other claims that is in the file."""
    add_entries(path, new)


def read_summary(claims: Iterable[Claim], path: Path = FILE) -> dict[str, Searched]:
    """What was found of those claims of which the file has a sound entry, by their ids."""
    known, found = read_entries(path), {}
    for claim in claims:
        entry: Any = known.get(claim.id)
        if fits(entry, _SUMMARY):
            stale = entry["code"] != search_digest(claim)
            kept = {name: value for name, value in entry.items() if name != "code"}
            found[claim.id] = Searched(**kept, stale=stale)
    return found
