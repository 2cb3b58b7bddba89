"""From a claim to a verdict: measure what is not stored, judge it, and judge the control alike."""

import hashlib
import html
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import attlas
from attlas.claims import Claim, Setting, Verdict, select
from attlas.errors import InputError
from attlas.lab.forecast import check_fits
from attlas.lab.judging import judging_digest
from attlas.lab.measurement import claim_errors_named, machine, measure_batch, now
from attlas.lab.store import Address, Cell, Store
from attlas.lab.workers import InProcess, Processes, Progress, WorkerDied, Workers
from attlas.progress import line_of
from attlas.provenance import package_digest

BUDGET_FACTOR = 4
"""How much more is spent on a repetition than on the first sight of a refutation."""

RETRIES = 2
"""How often a claim or a cell is tried again that raised or whose worker died."""

PROCESSES = 2
MIN_CLAIMS_FOR_PROCESSES = 8
"""Fewer claims are measured in this process: they are not worth the start of others."""

_LOCKS: defaultdict[Address, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True, repr=False)
class Result:
    """A claim's verdict with all it rests on.

    `verdict` is the answer; `first` is the refutation at first sight, where there was one, which
    `verdict` repeats with a fresh seed and `BUDGET_FACTOR` times the budget. `control` is the
    verdict on the false variant, and `resolution` the size of it from which on it is refuted,
    where it has a size. `evidence` is what `verdict` was read from; `figure()` draws
    it. `seconds` and `compile_seconds` are of this run, `spent` of this and earlier ones.

    Arguments:
        claim, scale, setting, seed: what was run. `cached`: whether all was read from the store.
        provenance: of the evidence: versions, times, machine. `notes`: sentences for the reader.
    """

    claim: Claim
    scale: str
    setting: Setting
    seed: int
    verdict: Verdict
    control: Verdict | None = None
    resolution: float | None = None
    evidence: xr.Dataset = field(default_factory=xr.Dataset)
    first: Verdict | None = None
    seconds: float = 0.0
    compile_seconds: float = 0.0
    spent: float = 0.0
    cached: bool = False
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        words = f"{self.claim.id}: {self.verdict.word}. {self.verdict.reason}"
        if self.control is None:
            return words
        return f"{words}; control {self.control.word}: {self.claim.control.said()}"

    def figure(self) -> Any:
        """The claim's figure, an Altair chart, drawn from the evidence alone."""
        if self.claim.drawing is None or not self.evidence:
            reason = "" if self.evidence else ": nothing was measured"
            raise InputError(f"{self.claim.id} has no figure{reason}")
        with claim_errors_named(self.claim, "its figure"):
            return self.claim.draw(self.evidence)

    def plot(self) -> Any:
        """`figure()`, by the name that a notebook's user tries first."""
        return self.figure()

    def _repr_html_(self) -> str:
        """Verdict, strength and figure, for a notebook."""
        parts = [repr(self), f"{self.verdict.strength} ({self.scale} scale)"]
        told = "".join(f"<p>{html.escape(part)}</p>" for part in parts if part.strip())
        if self.claim.drawing is None or not self.evidence:
            return told
        import vl_convert

        return told + vl_convert.vegalite_to_svg(self.figure().to_dict())

    @property
    def said(self) -> list[str]:
        """The verdict in sentences: why, how strong, and what became of the control."""
        verdict, control = self.verdict, self.claim.control
        lines = [verdict.reason]
        if verdict.strength:
            lines.append(f"{verdict.strength} ({self.scale} scale).")
        if self.first:
            budget = " and four times the budget" if self.claim.budget else ""
            first = f"At first sight refuted: {self.first.reason}"
            lines.append(f"{first} Repeated with a fresh seed{budget}.")
        if self.control:
            lines.append(f"control {self.control.word}: {control.said()}.")
        if self.resolution and self.resolution < control.size:
            smallest = control.said(self.resolution)
            lines.append(f"resolution, from which on all are refuted: {smallest}.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "id": self.claim.id,
            "verdict": self.verdict.word,
            "control": self.control.word if self.control else None,
            **{key: value for key, value in self.verdict.to_dict().items() if key != "word"},
            "kind": self.claim.kind,
            "resolution": self.resolution,
            "control_reason": self.control.reason if self.control else None,
            "first_sight": self.first.to_dict() if self.first else None,
            "scale": self.scale,
            "setting": dict(self.setting),
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "compile_seconds": round(self.compile_seconds, 3),
            "seconds_spent": round(self.spent, 3),
            "cached": self.cached,
            "notes": list(self.notes),
            "said": self.said,
            "provenance": self.provenance,
        }


def run(
    claim: str | Claim,
    *,
    scale: str = "quick",
    seed: int = 0,
    settings: Sequence[str] | dict[str, Any] = (),
    store: Store | str | Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Test one claim: `run("single-location/zeta")`.

    Arguments:
    - `settings`: parameters to change, as a dict or as texts `"name=value"`.
    - `store`: where evidence is kept. What it holds is not computed again unless `fresh`; what is
      computed is stored batch by batch, so that an interruption loses one batch.
    - `progress`: called with the claim's id, the cells done and the cells to do. Without it a long
      run says on a terminal and in a notebook how long it will take.
    - `claim`: a claim or its id. `scale`: "quick" or "paper". `seed`: of the random numbers.

    >>> import attlas
    >>> result = attlas.run("single-location/zeta", seed=3)
    >>> print(result.verdict.word, result.control.word, result.figure().to_dict()["$schema"][-4:])
    confirmed refuted json
    """
    if isinstance(claim, str):
        claim = find_one(claim)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise InputError(f"seed = {seed!r}: it must be a whole number from 0 to {2**31 - 1}")
    setting = claim.setting(scale)
    setting = setting.replace(**settings) if isinstance(settings, dict) else setting.parse(settings)
    opened = store if isinstance(store, Store) else Store(store)
    job = RunClaim(scale, setting, seed, fresh)
    with line_of(f"{claim.id}, cells") as line:
        report = progress or (lambda _, done, cells: line(done, cells))
        return next(outcomes(InProcess(opened, report), [(claim, job)]))


def run_all(
    claims: Sequence[Claim],
    *,
    scale: str,
    seed: int,
    store: Store,
    fresh: bool = False,
    settings: Mapping[str, Sequence[str]] | None = None,
    progress: Progress | None = None,
    min_for_processes: int = MIN_CLAIMS_FOR_PROCESSES,
) -> Generator[Result]:
    """The results of `claims` as they come; those that the store holds come first.

    Arguments:
    - `scale`, `seed`, `store`, `fresh`, `progress`: as in `run`, the same for all.
    - `settings`: texts `"name=value"` by the id of the claim that they change.
    - `min_for_processes`: if at least so many have to be measured, processes do it. They end with
      the iterator, and what they have stored stays.
    """
    tasks = []
    for claim in claims:
        changes = (settings or {}).get(claim.id, ())
        options: dict[str, Any] = {"scale": scale, "seed": seed, "settings": changes}
        known = None if fresh else recall(claim, store=store, **options)
        if known is None:
            setting = claim.setting(scale).parse(changes)
            tasks.append((claim, RunClaim(scale, setting, seed, fresh)))
        else:
            yield _record(known, store)
    if len(tasks) < min_for_processes:
        yield from outcomes(InProcess(store, progress), tasks)
        return
    threads = max(1, (os.cpu_count() or 1) // PROCESSES)
    # A process has its next group already, so that it never waits while this one draws a figure.
    with Processes(PROCESSES, store, threads=threads, groups_each=2, progress=progress) as workers:
        for result in outcomes(workers, in_groups(tasks)):
            store.notes.extend(result.notes)
            yield result


def recall(
    claim: Claim, *, scale: str, seed: int, store: Store, settings: Sequence[str] = ()
) -> Result | None:
    """The result of a claim if the store holds all its evidence, else None.

    Arguments: as in `run`; `settings` are texts `"name=value"`.
    """
    job = RunClaim(scale, claim.setting(scale).parse(settings), seed, fresh=False)
    test = _ClaimTest(claim, store, job, may_measure=False)
    if not test.is_stored():  # quicker than to check hypotheses
        return None
    try:
        return test.result()
    except _NotStored:
        return None


def find_one(pattern: str) -> Claim:
    """The one claim with that id, or that matches."""
    if pattern.endswith(".py"):
        raise InputError(
            f"{pattern!r} is a file: name the function that simulates too, as in {pattern}:FUNCTION"
        )
    matches = select([pattern])
    found = [claim for claim in matches if claim.id == pattern] or matches
    if len(found) > 1:
        some = ", ".join(claim.id for claim in found[:5]) + (", ..." if len(found) > 5 else "")
        raise InputError(f"{pattern!r} matches {len(found)} claims; name one: {some}")
    return found[0]


class RunClaim(NamedTuple):
    """The job to test a claim."""

    scale: str
    setting: Setting
    seed: int
    fresh: bool

    def carry_out(self, claim: Claim, store: Store, progress: Progress | None) -> Result:
        """The result, without the claim, which has no pickle."""
        result = _ClaimTest(claim, store, self, progress).result()
        return replace(_record(result, store), claim=None)  # type: ignore[arg-type]


def outcomes(workers: Workers, tasks: Sequence[tuple[Claim, RunClaim]]) -> Iterator[Result]:
    """The results of `tasks` as `workers` finish them; neighbours that share evidence stay
    together."""
    for number, (claim, job) in enumerate(tasks):
        workers.submit(number, claim, job, group=claim.evidence)
    left, deaths = len(tasks), Counter[int]()
    while left:
        for number, outcome in workers.finished():
            claim, job = tasks[number]
            if isinstance(outcome, WorkerDied):
                deaths[number] += 1
                if deaths[number] > RETRIES:
                    raise InputError(
                        f"{claim.id} could not be measured: its process was killed "
                        f"{deaths[number]} times, as happens where memory is short"
                    )
                workers.submit(number, claim, job, group=claim.evidence)
                continue
            left -= 1
            again = f"The process that measured {claim.id} was killed; another has measured it."
            notes = (*outcome.notes, again) if deaths[number] else outcome.notes
            yield replace(outcome, claim=claim, notes=notes)


def in_groups(tasks: Sequence[tuple[Claim, RunClaim]]) -> list[tuple[Claim, RunClaim]]:
    """`tasks` in an order in which two processes that begin at its ends finish together.

    Claims that share evidence are neighbours: it is measured once. Groups with `long` claims come
    last, where the second process begins, so that short ones are left when both near their end.
    """
    groups: dict[str, list[tuple[Claim, RunClaim]]] = {}
    for claim, job in tasks:
        groups.setdefault(claim.evidence, []).append((claim, job))
    ordered = sorted(groups.values(), key=lambda group: sum(claim.long for claim, _ in group))
    return [task for group in ordered for task in group]


def _record(result: Result, store: Store) -> Result:
    """Remember a claim's last result. One that was only recalled keeps its record's time."""
    new = {
        "attlas": attlas.__version__,
        "package": package_digest(),
        "judged_by": judging_digest(result.claim, result.scale),
        "when": now(),
        **result.to_dict(),
    }
    known = store.recorded(result.claim.id)
    if known is None or not result.cached or _content(known) != _content(new):
        store.record(result.claim.id, new)
    return result


def _content(record: dict[str, Any]) -> str:
    """All of a record but time and cost."""
    judged = ("verdict", "control", "reason", "control_reason", "strength", "resolution")
    names = ("attlas", "package", "judged_by", "scale", "setting", "seed", *judged)
    code = record.get("provenance", {}).get("code")
    return json.dumps([*(record.get(name) for name in names), code])


class _NotStored(Exception):
    """Evidence would have to be measured."""


class _Gathered(NamedTuple):
    """Evidence of one setting and seed, and its cost; `stored` of its `cells` were in the store."""

    evidence: xr.Dataset
    address: Address
    seconds: float
    compile_seconds: float
    spent: float
    stored: int
    cells: int


@dataclass
class _ClaimTest:
    """One claim under test."""

    claim: Claim
    store: Store
    job: RunClaim
    progress: Progress | None = None
    may_measure: bool = True

    def result(self) -> Result:
        old_notes = len(self.store.notes)
        cells = self._cells(self.job.setting)
        unmet = self._unmet_needs(cells)
        if unmet:
            return self._without_evidence(Verdict("not run", f"It needs {'; '.join(unmet)}."))
        with claim_errors_named(self.claim, "its hypotheses"):
            broken = self.claim.broken(cells)
        if broken:
            reason = f"The setting breaks a hypothesis: {'; '.join(broken)}."
            return self._without_evidence(Verdict("outside", reason))
        setting, first = self.job.setting, None
        gathered = [self._gather(setting, self.job.seed)]
        verdict = self._judge(gathered[0].evidence)
        if verdict.word == "refuted" and not verdict.exact:
            first, budget = verdict, self.claim.budget
            if budget is not None:
                setting = setting.replace(**{budget: BUDGET_FACTOR * setting[budget]})
            gathered.append(self._gather(setting, fresh_seed(self.job.seed)))
            verdict = self._judge(gathered[-1].evidence)
        evidence, control, resolution = gathered[-1].evidence, None, None
        if self._is_complete(evidence):
            control = self._judge_control(gathered, setting)
            if verdict.word == "confirmed" and control.word == "refuted":
                resolution = self._resolution(evidence)
            if control.word != "refuted":
                reason = (
                    f"The control was not refuted on this budget ({control.reason}), so the "
                    f"evidence says nothing."
                )
                verdict = replace(verdict, word="undecided", reason=reason, strength="")
        return replace(
            self._without_evidence(verdict),
            control=control,
            resolution=resolution,
            evidence=evidence,
            first=first,
            seconds=sum(g.seconds for g in gathered),
            compile_seconds=sum(g.compile_seconds for g in gathered),
            spent=sum(g.spent for g in gathered),
            cached=all(g.stored == g.cells for g in gathered),
            provenance={
                **machine(),
                "code": gathered[-1].address.code[:16],
                "precision": self.claim.precision,
                "seed": gathered[-1].address.seed,
                "cells": sum(g.cells for g in gathered),
                "cells_from_store": sum(g.stored for g in gathered),
            },
            notes=tuple(self.store.notes[old_notes:]),
        )

    def _resolution(self, evidence: xr.Dataset) -> float | None:
        """The claim's resolution; of the last record, if that is of the same test: to find it takes
        as long as all the rest of a recalled result."""
        known, job = self.store.recorded(self.claim.id), self.job
        if known and not job.fresh:
            code = Address.of(self.claim, job.seed).code[:16]
            judged_by = judging_digest(self.claim, job.scale)
            same = {"scale": job.scale, "setting": dict(job.setting), "seed": job.seed}
            same |= {"judged_by": judged_by, "verdict": "confirmed", "first_sight": None}
            same |= {"package": package_digest()}
            alike = json.dumps({name: known.get(name) for name in same}) == json.dumps(same)
            if alike and known.get("provenance", {}).get("code") == code:
                return known["resolution"]
        with claim_errors_named(self.claim, "its control"):
            return self.claim.resolution(evidence)

    def is_stored(self) -> bool:
        """Whether the store has the evidence of all cells at first sight."""
        address = Address.of(self.claim, self.job.seed)
        names = {address.cell(cell) for cell in self._cells(self.job.setting)}
        return len(self.store.find(address.claim, names)) == len(names)

    def _cells(self, setting: Setting) -> list[Setting]:
        with claim_errors_named(self.claim, "its cells"):
            return self.claim.cells(setting)

    def _unmet_needs(self, cells: Sequence[Setting]) -> list[str]:
        """What a measurement needs and lacks; nothing if all evidence is stored."""
        with claim_errors_named(self.claim, "its needs"):
            unmet = self.claim.unmet(cells)
        return unmet if unmet and (self.job.fresh or not self.is_stored()) else []

    def _without_evidence(self, verdict: Verdict) -> Result:
        return Result(self.claim, self.job.scale, self.job.setting, self.job.seed, verdict)

    def _judge(self, evidence: xr.Dataset) -> Verdict:
        with claim_errors_named(self.claim, "its rule"):
            return self.claim.rule.judge(evidence)

    def _is_complete(self, evidence: xr.Dataset) -> bool:
        """Whether the rule finds numbers, all of them finite; else it says so itself."""
        read = [evidence[name].values for name in self.claim.rule.variables(evidence)]
        return all(values.size and np.isfinite(values).all() for values in read)

    def _judge_control(self, gathered: list[_Gathered], setting: Setting) -> Verdict:
        """The verdict on the false variant; if it has to be measured, `gathered` has it then."""
        control = self.claim.control
        with claim_errors_named(self.claim, "its control"):
            if control.alter is not None:
                return self._judge(self.claim.control_evidence(gathered[-1].evidence))
            altered = control.altered_setting(setting)
        gathered.append(self._gather(altered, gathered[-1].address.seed))
        return self._judge(gathered[-1].evidence)

    def _gather(self, setting: Setting, seed: int) -> _Gathered:
        """The evidence of all cells, from the store or measured now and stored batch by batch."""
        address = Address.of(self.claim, seed)
        # A claim whose evidence another thread is measuring waits, and then finds it stored.
        with _LOCKS[address]:
            report = self.progress or (lambda *_: None)
            cells = self._cells(setting)
            names = {cell: address.cell(cell) for cell in cells}
            places = {} if self.job.fresh else self.store.find(address.claim, names.values())
            known = self.store.load(address.claim, places)
            stored = len(known)
            if stored < len(cells) and not self.may_measure:
                raise _NotStored
            earlier = sum(places[name].seconds for name in known)
            seconds = compiling = 0.0
            report(self.claim.id, stored, len(cells))
            batches = self.claim.batches([cell for cell in cells if names[cell] not in known])
            time = check_fits(self.claim, batches, address.seed)
            said = f"{self.claim.id} ({time})" if time else self.claim.id
            if time:
                report(said, stored, len(cells))
            for batch in batches:
                with claim_errors_named(self.claim, "its measurement"):
                    evidence, facts = measure_batch(self.claim, batch, address.seed)
                self.store.save([Cell(address, cell) for cell in batch], evidence, facts)
                known |= {names[cell]: evidence.isel({"cell": [i]}) for i, cell in enumerate(batch)}
                seconds += facts["seconds"]
                compiling += facts["compile_seconds"]
                report(said, len(known), len(cells))
            joined = join_cells([known[names[cell]] for cell in cells], cells)
            with claim_errors_named(self.claim, "its fit"):
                fitted = self.claim.fit(joined)
            return _Gathered(
                fitted, address, seconds, compiling, earlier + seconds, stored, len(cells)
            )


def join_cells(parts: list[xr.Dataset], cells: Sequence[Setting]) -> xr.Dataset:
    """The cells' evidence along one axis, in their order; their parameters become coordinates."""
    try:
        joined = xr.concat(
            parts, dim="cell", data_vars="all", coords="minimal", compat="equals", join="exact"
        )
    except ValueError as error:
        raise InputError(
            f"the evidence of {len(parts)} cells does not fit together: their arrays must have the "
            f"same axes, of the same lengths: {error}"
        ) from error
    coordinates = {}
    for name in cells[0]:
        values = [cell[name] for cell in cells]
        lists = any(isinstance(value, tuple) for value in values)
        if not lists and name not in joined and name not in joined.dims:
            coordinates[name] = ("cell", values)
    return joined.assign_coords(coordinates)


def fresh_seed(seed: int) -> int:
    """The seed of a repetition: fixed by the first, and unlike those a user would try next."""
    return int.from_bytes(hashlib.sha256(f"again {seed}".encode()).digest()[:4], "little") % 2**31
