"""A search for settings at which a claim fails, inside the region in which it says it holds.

A setting is a point of a box, one side for each parameter that is searched. The search starts with
the claim's own cells and a Sobol sequence, and goes on with differential evolution on `nearness`,
how near a verdict is to a refutation. What is close is measured again on a fresh seed with four
times the budget, what is close then with sixteen and sixty-four times; the last measurement counts.
A refutation is repeated on a fresh seed with four times the budget or more, and then made simpler.
All cells go through the store: the same call looks at the same settings, and measures only what is
missing.
"""

import itertools
import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy import optimize
from scipy.stats import qmc

from attlas.claims import (
    Agreement,
    Claim,
    Convergence,
    Order,
    Rule,
    SameLaw,
    Setting,
    Value,
    Verdict,
)
from attlas.errors import InputError
from attlas.lab.cluster import parse_where
from attlas.lab.grids import FAILED, Grid
from attlas.lab.measurement import claim_errors_named
from attlas.lab.regions import DIGITS, Region, rounded, values_said
from attlas.lab.runner import BUDGET_FACTOR, fresh_seed, join_cells
from attlas.lab.store import Address, Store
from attlas.lab.sweeps import Sweep, Tally
from attlas.lab.workers import Workers, open_workers

GENERATION = 32
"""Settings that are measured between two looks at what was found."""

FILLING = 1 / 3
"""The share of the time that goes to the space-filling start, and to settings of it at most
`MAX_FILLING`."""
MAX_FILLING = 256

CLOSE = 0.5
"""From this nearness on a setting is worth four times the budget; of each generation the nearest
two."""

VERY_CLOSE = 0.9
"""From this nearness on, with four times the budget, it is worth four times as much again, and once
more, if there is time."""
MOST = BUDGET_FACTOR**3

MAX_DRAWS = 2**13
"""Points of the box that are tried for settings inside the hypotheses, before it is said that there
are none."""

IDLE = 3
"""Evolutions, each with new points, that find no new setting before the box counts as looked
through: one of few whole numbers or words."""

LARGEST = 1 / 16
"""The share of the time that a setting with counts beyond the quick ones may take by what cells
took so far, in proportion to its counts; those of ranges that were asked for may take any."""

OUTSIDE_VALUE = -1.0
"""The nearness that the search sees where nothing can be judged."""


def nearness(rule: Rule, evidence: xr.Dataset, verdict: Verdict) -> float:
    """How near a verdict is to a refutation: 1 or more is at or beyond the rule's threshold.

    It is the statistic in units of the threshold (Agreement, Approximation, Bound, Rate), the share
    of runs that do not arrive in units of those that need not, the smaller quantity in units of the
    larger one, or the logarithm of the p-value in units of that which rejects.
    """
    statistic, threshold = verdict.statistic, verdict.threshold
    if not (math.isfinite(statistic) and math.isfinite(threshold)):
        return 0.0 if verdict.word != "refuted" else math.inf
    if isinstance(rule, Convergence):
        return (1 - statistic) / max(1 - threshold, 1e-9)
    if isinstance(rule, Order):
        lower, upper = (v.values for v in xr.broadcast(evidence["lower"], evidence["upper"]))
        scale = np.maximum(np.maximum(abs(lower), abs(upper)), 1e-300)
        return float((1 - (upper - lower) / scale).max())
    if isinstance(rule, SameLaw):
        return math.log(max(statistic, 1e-300)) / math.log(threshold)
    return statistic / threshold if threshold else math.inf


class Trial(NamedTuple):
    """What was found at a setting on a seed: the verdict and its nearness, or why there is none.

    `times` is the budget, in units of the claim's own, and `seconds` what the measurement took.
    """

    setting: Setting
    seed: int
    verdict: Verdict | None
    nearness: float
    reason: str = ""
    times: int = 1
    seconds: float = 0.0

    @property
    def refuted(self) -> bool:
        return self.verdict is not None and self.verdict.word == "refuted"

    @property
    def exact(self) -> bool:
        """Whether no sampling error entered: what was found is so on this seed, whatever others
        say."""
        return self.verdict is not None and self.verdict.exact

    @property
    def judged(self) -> bool:
        """Whether there is a verdict on numbers: not where what was measured is not finite."""
        return self.refuted or (self.verdict is not None and not math.isnan(self.verdict.statistic))


@dataclass(frozen=True)
class Violation:
    """A setting inside the hypotheses at which the rule refutes the claim on fresh seeds.

    `first` is what the search came upon, `last` the simplest of its like that was confirmed, with
    four times the budget; `changed` are the parameters in which that differs from the claim's own
    setting.
    """

    first: Trial
    last: Trial
    changed: dict[str, Value]

    def to_dict(self) -> dict[str, Any]:
        assert self.last.verdict is not None
        return {
            "changed": self.changed,
            "setting": dict(self.last.setting),
            "seed": self.last.seed,
            "verdict": self.last.verdict.to_dict(),
            "first": {"setting": dict(self.first.setting), "seed": self.first.seed},
        }


@dataclass
class Search:
    """What a search has looked at, and what it found.

    `too_large` counts settings that were left out because they would have taken too long.
    """

    region: Region
    seed: int
    settings: int = 0
    cells: int = 0
    too_large: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    refuted_at_first: int = 0
    nearest: Trial | None = None
    violation: Violation | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        nearest = self.nearest
        found = nearest and {
            "nearness": nearest.nearness if math.isfinite(nearest.nearness) else None,
            "values": self.region.values(nearest.setting),
            "seed": nearest.seed,
            "verdict": nearest.verdict and nearest.verdict.word,
        }
        return {
            "claim": self.region.claim.id,
            "refuted": self.violation is not None,
            "violation": self.violation and self.violation.to_dict(),
            "nearest": found,
            "settings": self.settings,
            "cells": self.cells,
            "refuted_at_first": self.refuted_at_first,
            "too_large": self.too_large,
            "failed": self.failed,
            "over": self.region.box(),
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
        }


class _Stop(Exception):
    """The time is over, or a violation was found."""


class _Scattered(Grid):
    """Cells anywhere, whose hypotheses were looked at before."""

    def outside(self) -> tuple[dict[int, str], dict[int, str]]:
        return {}, {}


def find_violation(
    claim: Claim,
    *,
    minutes: float = 1.0,
    most: int = 2**31,
    over: Mapping[str, str] | None = None,
    seed: int = 0,
    store: Store | None = None,
    on: str = "local",
    progress: Callable[[Search], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Search:
    """Look for a setting inside the hypotheses of a claim at which its rule refutes it.

    Arguments:
        minutes: of the search; a violation that it came upon is confirmed and made simpler after.
        most: settings after which it ends in any case.
        over: ranges by name in place of the default ones, as `{"lam": "0.1:2"}`.
        seed: of the measurements and of the search.
        on: where cells are measured, as in `sweep`.
        progress: called after each generation.
        clock: what the minutes are of; `time.process_time` on a machine that others use.
    """
    opened = Store() if store is None else store
    region = Region(claim, over)
    if not (math.isfinite(minutes) and minutes > 0):
        raise InputError(f"minutes = {minutes!r}: it must be a positive number")
    unmet = claim.unmet(claim.cells(claim.quick))
    if unmet:
        raise InputError(f"{claim.id} needs {'; '.join(unmet)}")
    with open_workers(parse_where(on), claim, opened) as workers:
        return Hunt(region, seed, opened, workers, 60 * minutes, most, progress, clock).run()


class Hunt:
    """A search under way."""

    def __init__(
        self,
        region: Region,
        seed: int,
        store: Store,
        workers: Workers,
        seconds: float,
        most: int,
        progress: Callable[[Search], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.region, self.claim, self.store, self.workers = region, region.claim, store, workers
        self.found = Search(region, seed)
        self.report = progress or (lambda found: None)
        self.most, self.clock, self.start = most, clock, clock()
        self.seconds, self.deadline = seconds, self.start + seconds
        self.known: dict[Setting, float] = {}
        self.best: list[Trial] = []

    def run(self) -> Search:
        points = self.inside_points()
        with suppress(_Stop):
            self.generation([s for s in self.region.own if self.region.searches(s)])
            last = self.start + FILLING * self.seconds
            for _ in range(0, MAX_FILLING, GENERATION):
                self.generation([self.region.setting(p) for p in next_points(points, GENERATION)])
                if self.clock() > last:
                    break
            idle = 0
            for attempt in itertools.count():
                looked_at = len(self.known)
                self.evolve(points, attempt)
                idle = 0 if len(self.known) > looked_at else idle + 1
                if idle == IDLE:
                    break
        self.found.seconds = self.clock() - self.start
        if self.found.failed and not self.best:
            listed = ", ".join(map(str, self.region.ranges))
            where, reason = next(iter(self.found.failed.items()))
            raise InputError(
                f"{listed}: {self.claim.id} could be measured at none of"
                f" {self.found.settings:,} settings in this range; at {where}:"
                f" {' '.join(reason.split())}"
            )
        return self.found

    def inside_points(self) -> Iterator[np.ndarray]:
        """Points of a Sobol sequence at which the claim speaks.

        Where it does not, some coordinates take the values of one of the claim's own settings: a
        hypothesis may hold on a surface only.
        """
        sides = len(self.region.ranges)
        generator = np.random.default_rng(self.found.seed)
        sequence = qmc.Sobol(sides, rng=generator)
        own = np.array([self.region.point(setting) for setting in self.region.own])
        since = 0
        while True:
            for point in sequence.random(GENERATION):
                since += 1
                kept = generator.random(sides) < generator.random()
                mixed = np.where(kept, own[generator.integers(len(own))], point)
                for candidate in (point, mixed):
                    if self.region.admits(self.region.setting(candidate)):
                        since = 0
                        yield candidate
                        break
            if since >= MAX_DRAWS:
                listed = ", ".join(map(str, self.region.ranges))
                raise InputError(
                    f"{listed}: {self.claim.id} is not defined, or its hypotheses fail, at all of"
                    f" {since:,} settings in this range"
                )

    def evolve(self, points: Iterator[np.ndarray], attempt: int) -> None:
        """Differential evolution from the nearest settings so far and new ones."""
        size = min(max(4 * len(self.region.ranges), 16), GENERATION)
        kept = [self.region.point(t.setting) for t in self.best[: size // 2 if attempt < 3 else 1]]
        start = np.array([*kept, *next_points(points, size - len(kept))])

        def objective(population: np.ndarray) -> np.ndarray:
            settings = [self.region.setting(point) for point in population.T]
            inside = [s for s in settings if s in self.known or self.region.admits(s)]
            self.generation(inside)
            values = [self.known.get(setting, OUTSIDE_VALUE) for setting in settings]
            return -np.clip(values, OUTSIDE_VALUE, 1e6)

        optimize.differential_evolution(
            objective,
            [(0.0, 1.0)] * len(self.region.ranges),
            init=start,
            vectorized=True,
            updating="deferred",
            polish=False,
            maxiter=12,
            tol=0,
            rng=np.random.default_rng([self.found.seed, attempt]),
        )

    def generation(self, settings: Sequence[Setting]) -> None:
        """Measure settings, pursue what is close, and stop if the time is over."""
        new = self.affordable([s for s in dict.fromkeys(settings) if s not in self.known])
        trials = self.measure(new, self.found.seed, in_time=True)
        self.pursue(trials)
        self.report(self.found)
        if self.clock() > self.deadline or self.found.settings >= self.most:
            raise _Stop

    def affordable(self, settings: Sequence[Setting]) -> list[Setting]:
        """Those settings that leave time for others."""
        costs = [] if self.region.chosen else self.store.costs(self.claim.evidence or self.claim.id)
        seconds = sum(c.seconds - c.compiling for c in costs)
        each = seconds / max(1, sum(c.cells for c in costs)) / self.seconds
        kept = []
        for setting in settings:
            size = self.region.size(setting) if each else 1.0
            if size > 1 and size * each * len(self.claim.cells(setting)) > LARGEST:
                self.known[setting] = OUTSIDE_VALUE
                self.found.too_large += 1
            else:
                kept.append(setting)
        return kept

    def pursue(self, trials: Sequence[Trial]) -> None:
        """Repeat what is refuted at first sight, and look closer at what is near."""
        self.rank(trials)
        refuted = [t for t in trials if t.refuted]
        self.found.refuted_at_first += len(refuted)
        for trial in sorted(refuted, key=lambda t: -t.nearness):
            self.confirm(trial)
        if self.claim.budget is None:
            return
        for trial in [t for t in self.best if self.is_close(t)][:2]:
            times = BUDGET_FACTOR * trial.times
            raised, start = self.more(trial.setting, times), self.clock()
            for found in self.measure([raised], self.seed_of(times), in_time=True):
                took = self.clock() - start
                closer = found._replace(setting=trial.setting, times=times, seconds=took)
                self.rank([closer])
                if closer.refuted:
                    self.confirm(closer)

    def rank(self, trials: Sequence[Trial]) -> None:
        """Remember trials: of a setting the last one, which has the largest budget; where both are
        exact, the nearer one."""
        latest = {trial.setting: trial for trial in trials}
        for before in self.best:
            now = latest.get(before.setting)
            if now and now.exact and before.exact and before.nearness > now.nearness:
                latest[now.setting] = before._replace(times=now.times, seconds=now.seconds)
        self.known |= {setting: trial.nearness for setting, trial in latest.items()}
        others = [t for t in self.best if t.setting not in latest]
        judged = [t for t in latest.values() if t.judged]
        self.best = sorted([*others, *judged], key=lambda t: -t.nearness)[:GENERATION]
        self.found.nearest = self.best[0] if self.best else None

    def is_close(self, trial: Trial) -> bool:
        """Whether a setting is worth a larger budget: it is near, and more samples may decide."""
        if trial.times == 1:
            return trial.nearness >= CLOSE
        open_still = isinstance(self.claim.rule, Agreement | SameLaw) or (
            trial.verdict is not None and trial.verdict.word == "undecided"
        )
        in_time = self.clock() + BUDGET_FACTOR * trial.seconds < self.deadline
        return open_still and in_time and trial.nearness >= VERY_CLOSE and trial.times < MOST

    def seed_of(self, times: int) -> int:
        """The seed of measurements with a budget: fresh for each."""
        seed = self.found.seed
        while times > 1:
            seed, times = fresh_seed(seed), times // BUDGET_FACTOR
        return seed

    def more(self, setting: Setting, times: int = BUDGET_FACTOR) -> Setting:
        """The setting with so many times the budget."""
        budget = self.claim.budget
        if budget is None:
            return setting
        value: Any = setting[budget]
        return setting.at(**{budget: times * value})

    def confirm(self, trial: Trial) -> None:
        """Repeat a refutation on a fresh seed with four times the budget, or with its own if that
        is larger; stop if it stands, or if it was exact: a counterexample, which no repetition
        takes back."""
        times = max(BUDGET_FACTOR, trial.times)
        seed = self.seed_of(BUDGET_FACTOR * trial.times)
        (repeated,) = self.measure([self.more(trial.setting, times)], seed)
        if not repeated.refuted:
            if not trial.exact:
                self.rank([repeated._replace(setting=trial.setting, times=times)])
                return
            repeated = trial._replace(setting=self.more(trial.setting, trial.times))
        last = self.simplify(repeated)
        self.found.violation = Violation(trial, last, self.changed(last.setting))
        self.found.nearest = last
        raise _Stop

    def changed(self, setting: Setting) -> dict[str, Value]:
        """In what a setting differs from that of the claim's own which is most like it."""
        values = self.region.values(setting)
        owns = [self.region.values(own) for own in self.region.own]
        differ = [{n: v for n, v in values.items() if own[n] != v} for own in owns]
        return min(differ, key=len)

    def simplify(self, trial: Trial) -> Trial:
        """The same refutation with fewer changed parameters, and round numbers.

        First parameters go back to the claim's own values, one at a time; then numbers lose digits.
        Each step must be refuted with the budget with which the first was confirmed, on its seed
        and on a fresh one.
        """
        region, until = self.region, self.clock() + max(10.0, self.seconds)
        seed, fresh = trial.seed, fresh_seed(trial.seed)

        def first_refuted(variants: Iterable[dict[str, Value]]) -> Trial | None:
            settings = [s for v in variants if region.admits(s := region.at(v))]
            keep = (
                {}
                if self.claim.budget is None
                else {self.claim.budget: trial.setting[self.claim.budget]}
            )
            tried = [t for t in self.measure([s.at(**keep) for s in settings], seed) if t.refuted]
            for found in sorted(tried, key=lambda t: -t.nearness):
                (again,) = self.measure([found.setting], fresh)
                if again.refuted:
                    return again
            return None

        while self.clock() < until:
            values, changed = region.values(trial.setting), self.changed(trial.setting)
            owns = [region.values(own) for own in region.own]
            resets = [{**values, name: own[name]} for name in changed for own in owns]
            simpler = [r for r in resets if len(self.changed(region.at(r))) < len(changed)]
            found = first_refuted(dict(t) for t in dict.fromkeys(tuple(r.items()) for r in simpler))
            if found is None:
                break
            trial = found
        for name in self.changed(trial.setting):
            value = region.values(trial.setting)[name]
            if isinstance(value, str | bool) or self.clock() > until:
                continue
            for digits in range(1, DIGITS):
                shorter = type(value)(rounded(value, digits))  # type: ignore[arg-type]
                if shorter == value:
                    break
                found = first_refuted([{**region.values(trial.setting), name: shorter}])
                if found is not None:
                    trial = found
                    break
        return trial

    def measure(self, settings: Sequence[Setting], seed: int, in_time: bool = False) -> list[Trial]:
        """Trials of settings, measured together where the store lacks them.

        With `in_time` the measurement ends with the time of the search, and what was not measured
        is left out.
        """
        claim, address = self.claim, Address.of(self.claim, seed)
        with claim_errors_named(claim, "its cells"):
            cells = {setting: claim.cells(setting) for setting in settings}
        every = list(dict.fromkeys(itertools.chain(*cells.values())))
        if not every:
            return []
        names = {cell: address.cell(cell) for cell in every}
        grid = _Scattered(
            claim, "quick", claim.quick, {}, (seed,), every, len(every), list(names.values())
        )
        plan = Sweep(grid, self.store, retries=0)

        def check(tally: Tally) -> None:
            if in_time and self.clock() > self.deadline:
                plan.stop()

        plan.measure_missing(self.workers, check)
        known = self.store.load(plan.folder, set(names.values()))
        failed = {every[i]: plan.reasons[i] for i in np.flatnonzero(plan.status == FAILED).tolist()}
        self.found.cells += len(known)
        trials = []
        for setting, own in cells.items():
            if all(names[cell] in known for cell in own):
                evidence = join_cells([known[names[cell]] for cell in own], own)
                trials.append(self.judge(setting, seed, evidence))
            elif reasons := [failed[cell] for cell in own if cell in failed]:
                trials.append(Trial(setting, seed, None, OUTSIDE_VALUE, reasons[0]))
        for trial in trials:
            if not trial.judged:
                reason = trial.verdict.reason if trial.verdict else trial.reason
                self.found.failed[values_said(self.region.values(trial.setting))] = reason
        self.found.settings += len(trials)
        return trials

    def judge(self, setting: Setting, seed: int, evidence: xr.Dataset) -> Trial:
        try:
            with claim_errors_named(self.claim, "its rule"):
                fitted = self.claim.fit(evidence)
                verdict = self.claim.rule.judge(fitted)
        except InputError as error:
            return Trial(setting, seed, None, OUTSIDE_VALUE, str(error))
        return Trial(setting, seed, verdict, nearness(self.claim.rule, fitted, verdict))


def command(id: str, violation: Violation, files: Sequence[str] = ()) -> str:
    """The command that shows a violation again; `files` are those that claims came from."""
    claim_setting, last = violation.first.setting, violation.last
    told = {
        n: v for n, v in last.setting.items() if n in violation.changed or claim_setting[n] != v
    }
    lists = {n: v if isinstance(v, tuple) else (v,) for n, v in told.items()}
    sets = [f"--set {n}={','.join(map(str, v))}" for n, v in lists.items()]
    sources = [f"--claims {shlex.quote(file)}" for file in files]
    return " ".join(["attlas run", id, *sets, f"--seed {last.seed}", *sources])


def next_points(points: Iterator[np.ndarray], count: int) -> list[np.ndarray]:
    """The next so many points."""
    return list(itertools.islice(points, count))
