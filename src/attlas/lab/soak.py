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
from attlas.lab.files import add_entries, fits, read_entries
from attlas.lab.judging import judging_digest
from attlas.lab.runner import PROCESSES, Result, RunClaim, in_groups, outcomes
from attlas.lab.shipped import FOLDER
from attlas.lab.store import Store
from attlas.lab.workers import Processes

FILE = FOLDER / "soak.json"
_COUNTS = {"code": str, "verdicts": {str: int}, "controls": {str: int}, "repeated": int}
"""The form of the counts of a claim."""
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


def soak_digest(claim: Claim) -> str:
    """Digest of what the verdicts on a claim at quick scale depend on."""
    return judging_digest(claim, "quick")


def write_soak(found: Iterable[tuple[Claim, Soaked]], path: Path = FILE) -> None:
    """Write counts, beside those of other claims that are in the file."""
    names = ("code", "verdicts", "controls", "repeated")
    new = {claim.id: {name: getattr(counts, name) for name in names} for claim, counts in found}
    add_entries(path, new)


def read_soak(claims: Iterable[Claim], path: Path = FILE) -> dict[str, Soaked]:
    """The counts of those claims that the file has sound ones of, by their ids."""
    known, found = read_entries(path), {}
    for claim in claims:
        counts: Any = known.get(claim.id)
        if _are_sound(counts):
            stale = counts["code"] != soak_digest(claim)
            found[claim.id] = Soaked(
                counts["code"],
                Counter[str](counts["verdicts"]),
                Counter[str](counts["controls"]),
                counts["repeated"],
                stale,
            )
    return found


def _are_sound(counts: Any) -> bool:
    if not fits(counts, _COUNTS):
        return False
    numbers = [*counts["verdicts"].values(), *counts["controls"].values(), counts["repeated"]]
    return min(numbers) >= 0 and sum(counts["verdicts"].values()) > 0
