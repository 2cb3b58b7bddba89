"""How often a claim would have said something else: its verdicts at quick scale on many seeds.

The counts come with the package in `evidence/soak.json`, which `make soak` writes and the atlas
shows. Counts of a claim whose code, setting, rule or control has changed since are stale.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attlas.claims import Claim
from attlas.lab.records import read_json, write_json
from attlas.lab.runner import PROCESSES, Result, RunClaim, in_groups, outcomes
from attlas.lab.shipped import FOLDER, verdict_digest
from attlas.lab.store import Store
from attlas.lab.workers import Processes

FILE = FOLDER / "soak.json"
SEEDS_IN_A_ROW = 10
"""Seeds of a claim that one process takes, so that it compiles once for them."""


@dataclass
class Soaked:
    """How often each verdict fell on a claim and on its control, over as many seeds as were run.

    `repeated` counts the refutations at first sight, which a repetition then decided; `stale` says
    that other code, or another setting, rule or control, would be used today.
    """

    code: str
    verdicts: Counter[str] = field(default_factory=Counter)
    controls: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    stale: bool = False

    @property
    def seeds(self) -> int:
        return self.verdicts.total()

    def add(self, result: Result) -> None:
        """Count the result of one more seed."""
        self.verdicts[result.verdict.word] += 1
        if result.control:
            self.controls[result.control.word] += 1
        self.repeated += result.first is not None


def run_seeds(claims: Sequence[Claim], seeds: Sequence[int], store: Store) -> Iterator[Result]:
    """The results of every claim at quick scale on every seed, as two processes finish them."""
    with Processes(PROCESSES, store, groups_each=2) as workers:
        for start in range(0, len(seeds), SEEDS_IN_A_ROW):
            row = seeds[start : start + SEEDS_IN_A_ROW]
            jobs = ((c, RunClaim("quick", c.quick, s, fresh=False)) for c in claims for s in row)
            yield from outcomes(workers, in_groups(list(jobs)))


def write_soak(found: Iterable[tuple[Claim, Soaked]], path: Path = FILE) -> None:
    """Write counts, beside those of other claims that are in the file."""
    names = ("code", "verdicts", "controls", "repeated")
    new = {claim.id: {name: getattr(counts, name) for name in names} for claim, counts in found}
    write_json(path, dict(sorted({**(read_json(path) or {}), **new}.items())))


def read_soak(claims: Iterable[Claim], path: Path = FILE) -> dict[str, Soaked]:
    """The counts of those claims that the file has sound ones of, by their ids."""
    known, found = read_json(path) or {}, {}
    for claim in claims:
        counts = known.get(claim.id)
        if isinstance(counts, dict) and _are_sound(counts):
            stale = counts["code"] != verdict_digest(claim, "quick")
            found[claim.id] = Soaked(
                counts["code"],
                Counter[str](counts["verdicts"]),
                Counter[str](counts["controls"]),
                counts["repeated"],
                stale,
            )
    return found


def _are_sound(counts: dict[str, Any]) -> bool:
    words: list[Any] = [
        counts.get("verdicts"),
        counts.get("controls"),
        {"": counts.get("repeated")},
    ]
    return (
        isinstance(counts.get("code"), str)
        and all(isinstance(value, dict) for value in words)
        and all(type(n) is int and n >= 0 for value in words for n in value.values())
        and sum(words[0].values()) > 0
    )
