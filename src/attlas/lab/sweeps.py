"""A grid of settings of a claim, measured wherever there are processors, with nothing lost whatever dies.

The cells that the store lacks make a queue of the claim's own batches. Some seconds of them make a task; whoever carries a
task out writes its evidence into the store as one block and answers with what failed. What dies takes with it the tasks it
had under way: the next call finds the blocks that were written and queues the rest.
"""

import random
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import xarray as xr

from attlas.claims import Claim, Setting
from attlas.errors import InputError, whole
from attlas.lab.blocks import encoded, form, joined
from attlas.lab.grids import (
    DONE,
    FAILED,
    MISSING,
    OUTSIDE,
    STATUS,
    Grid,
    Values,
    gather,
    parse_grid,
    parse_seeds,
)
from attlas.lab.runner import measured, named
from attlas.lab.simulations import Simulation, simulation
from attlas.lab.store import Address, Cell, Store, write_whole

SECONDS = 2.0
"""How long a task should last: much longer than it takes to hand it out, and short enough to lose."""

CROWD = 200
"""So many workers one scheduler keeps busy with tasks of `SECONDS`; for more, tasks last longer in proportion."""

MOST = 1024
"""Cells in a task, at most."""

RETRIES = 2
"""How often a cell is tried again that raised or whose worker died."""

PACK = 256
"""After so many small blocks they are packed."""

LOOK = 2.0
"""Seconds between two looks for cells that another sweep has stored meanwhile; as many more for every 100,000 cells, so that
looking takes some hundredths of the time."""


# --- tasks -----------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Cells that a claim measures at once: their numbers in the grid, their settings, and the seed."""

    items: tuple[int, ...]
    settings: tuple[Setting, ...]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What became of a task: the seconds it took, those of them spent compiling, and the reasons of cells that failed.
    `died` says that its worker did, and why nothing else is known."""

    seconds: float = 0.0
    compiling: float = 0.0
    failed: Mapping[int, str] = field(default_factory=dict)
    died: str = ""


def carry_out(claim: Claim, batches: Sequence[Batch], store: Store) -> Outcome:
    """Measure `batches` and store their evidence, as one block where it is of one form. A cell that raises fails alone."""
    failed: dict[int, str] = {}
    groups: dict[Any, list[tuple[list[Cell], xr.Dataset]]] = {}
    seconds = compiling = 0.0
    facts: dict[str, Any] = {}
    for batch in batches:
        for part, evidence, facts in _measured(claim, batch, failed):
            address = Address.of(claim, part.seed)
            cells = [Cell(address, setting) for setting in part.settings]
            groups.setdefault(form(evidence), []).append((cells, evidence))
            seconds, compiling = seconds + facts["seconds"], compiling + facts["compile_seconds"]
    done = sum(len(cells) for group in groups.values() for cells, _ in group)
    for group in groups.values():
        cells = [cell for some, _ in group for cell in some]
        share = len(cells) / done
        costs = {"seconds": share * seconds, "compile_seconds": share * compiling}
        store.save(cells, joined([evidence for _, evidence in group]), {**facts, **costs})
    return Outcome(seconds, compiling, failed)


def _measured(
    claim: Claim, batch: Batch, failed: dict[int, str]
) -> Iterator[tuple[Batch, xr.Dataset, dict[str, Any]]]:
    try:
        yield batch, *measured(claim, list(batch.settings), batch.seed)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a claim raises, the other cells go on
        if len(batch.items) == 1:
            failed[batch.items[0]] = f"{type(error).__name__}: {error}"
            return
        for item, setting in zip(batch.items, batch.settings, strict=True):
            yield from _measured(claim, Batch((item,), (setting,), batch.seed), failed)


class Workers(Protocol):
    """Whoever carries out tasks: this process, or a cluster."""

    where: str

    @property
    def slots(self) -> int:
        """How many tasks should be under way."""

    @property
    def processes(self) -> int: ...

    def submit(self, number: int, batches: Sequence[Batch]) -> None: ...

    def finished(self) -> list[tuple[int, Outcome]]:
        """Wait for tasks that have finished, some seconds at most."""

    def pack(self, folder: str) -> None:
        """Pack the small blocks of a folder of the store, at once or meanwhile."""


class Stopped(Exception):
    """The workers are gone; finished cells are kept."""


class Here:
    """This process."""

    where = "this process"
    slots = processes = 1

    def __init__(self, claim: Claim, store: Store) -> None:
        self.claim, self.store = claim, store
        self._finished: list[tuple[int, Outcome]] = []

    def submit(self, number: int, batches: Sequence[Batch]) -> None:
        self._finished.append((number, carry_out(self.claim, batches, self.store)))

    def finished(self) -> list[tuple[int, Outcome]]:
        found, self._finished = self._finished, []
        return found

    def pack(self, folder: str) -> None:
        self.store.pack(folder)


# --- the sweep -------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How far a sweep is: cells in all, of which some were stored before, are done now, have failed or are outside."""

    cells: int
    stored: int = 0
    done: int = 0
    failed: int = 0
    outside: int = 0
    seconds: float = 0.0
    where: str = "this process"
    processes: int = 1

    @property
    def left(self) -> int:
        return self.cells - self.stored - self.done - self.failed - self.outside

    @property
    def rate(self) -> float:
        """Cells a second."""
        return (self.done + self.failed) / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float:
        return self.left / self.rate if self.rate else np.inf


class Estimate(NamedTuple):
    """What a sweep would take: seconds if nothing has to be compiled again, and if everything has, and what that rests on."""

    low: float
    high: float
    basis: str


class Sweep:
    """A grid, what of it is stored, and how the rest is measured. `notes` are sentences for the reader."""

    def __init__(
        self,
        grid: Grid,
        store: Store,
        *,
        fresh: bool = False,
        beyond: bool = False,
        retries: int = RETRIES,
    ) -> None:
        self.grid, self.store, self.retries = grid, store, whole("retries", retries, 0)
        self.notes: list[str] = []
        self.reasons: dict[int, str] = {}
        self.status = np.full(len(grid), MISSING, np.int8)
        self._skip(beyond)
        wanted = {grid.names[i] for i in np.flatnonzero(self.status == MISSING).tolist()}
        stored = {} if fresh else store.find(self.folder, wanted)
        for item in np.flatnonzero(self.status == MISSING).tolist():
            if grid.names[item] in stored:
                self.status[item] = DONE
        self.tally = Tally(
            len(grid), stored=len(stored), outside=int((self.status == OUTSIDE).sum())
        )
        self._shared = not fresh
        self._looked = time.monotonic()
        self._cost = self._stored_cost()
        self._largest = 1
        self._attempts: Counter[int] = Counter()
        self._deaths: Counter[int] = Counter()
        self._under_way = 0
        self._small = 0

    @property
    def folder(self) -> str:
        return self.grid.claim.evidence or self.grid.claim.id

    def _skip(self, beyond: bool) -> None:
        broken, undefined = self.grid.outside()
        if len(undefined) == len(self.grid.settings):
            raise InputError(next(iter(undefined.values())))
        seeds = len(self.grid.seeds)
        for number, reason in (undefined if beyond else {**broken, **undefined}).items():
            items = range(number * seeds, (number + 1) * seeds)
            self.status[items] = OUTSIDE
            self.reasons.update(dict.fromkeys(items, reason))
        if broken:
            count, words = len(broken) * seeds, "; ".join(dict.fromkeys(broken.values()))
            told = "are run all the same" if beyond else "are skipped; --beyond runs them"
            self.notes.append(f"{count:,} cells break a hypothesis ({words}) and {told}.")
        if undefined:
            reason = next(iter(undefined.values()))
            self.notes.append(
                f"{len(undefined) * seeds:,} cells are skipped in which nothing is defined ({reason})."
            )

    def queue(self) -> deque[Batch]:
        """The claim's batches of what is missing, those of one shape beside each other. It begins anywhere, so that two
        sweeps of one grid at the same time share the work instead of doing all of it twice."""
        grid, seeds = self.grid, len(self.grid.seeds)
        missing = (self.status == MISSING).reshape(-1, seeds)
        found = []
        for s, seed in enumerate(grid.seeds):
            numbers = np.flatnonzero(missing[:, s]).tolist()
            places = {id(grid.settings[number]): number for number in numbers}
            for settings in grid.claim.batches([grid.settings[number] for number in numbers]):
                cells = [places[id(setting)] for setting in settings]
                found.append(
                    (cells[0], s, Batch(tuple(n * seeds + s for n in cells), tuple(settings), seed))
                )
        queue = deque(batch for *_, batch in sorted(found, key=lambda item: item[:2]))
        queue.rotate(random.randrange(len(queue)) if queue else 0)
        return queue

    def run(self, workers: Workers, progress: Callable[[Tally], None] | None = None) -> None:
        """Measure what is missing. Cells that fail are tried again, up to `retries` times; those whose worker
        died twice, alone."""
        tell = progress or (lambda tally: None)
        queue, suspects = self.queue(), deque[Batch]()
        running: dict[int, list[Batch]] = {}
        start, number = time.monotonic(), 0
        self.tally.where = workers.where
        while queue or suspects or running:
            self.tally.seconds, self.tally.processes = time.monotonic() - start, workers.processes
            tell(self.tally)
            # As long as nobody knows what a cell takes, a worker has one batch and none waits.
            slots = workers.slots if self._cost is not None else max(1, workers.processes)
            while len(running) < slots and (
                task := self._next(queue, suspects, running, workers.processes)
            ):
                running[number] = task
                self._under_way += _cells(task)
                workers.submit(number, task)
                number += 1
            for finished, outcome in workers.finished() if running else ():
                task = running.pop(finished)
                self._under_way -= _cells(task)
                self._take(task, outcome, queue, suspects)
            if self._small >= PACK:
                self._small = 0
                workers.pack(self.folder)
        self.tally.seconds = time.monotonic() - start
        tell(self.tally)

    def _next(
        self,
        queue: deque[Batch],
        suspects: deque[Batch],
        running: Mapping[int, list[Batch]],
        processes: int,
    ) -> list[Batch]:
        """The next task: batches that take about `SECONDS`, less towards the end so that `processes` end together, as far as
        they can be handed out so fast; or one suspect if nothing else is under way."""
        self._look(running)
        task: list[Batch] = []
        cells = 0
        room = 1.0
        if self._cost is not None:
            crowded = processes / CROWD
            wanted = SECONDS * max(1.0, crowded) / max(self._cost, 1e-9)
            least = wanted * min(1.0, max(1 / 8, crowded))
            share = (
                (self.tally.left - self._under_way) / (2 * processes) if processes > 1 else np.inf
            )
            room = min(wanted, max(share, least), 4 * self._largest, MOST)
        while queue and (not task or cells + len(queue[0].items) <= room):
            batch = self._without_stored(queue.popleft())
            if batch is not None:
                task.append(batch)
                cells += len(batch.items)
        while not task and not queue and suspects and not running:
            batch = self._without_stored(suspects.popleft())
            task = [batch] if batch is not None else []
        return task

    def _without_stored(self, batch: Batch) -> Batch | None:
        left = [i for i, item in enumerate(batch.items) if self.status[item] == MISSING]
        if len(left) == len(batch.items):
            return batch
        kept = Batch(
            tuple(batch.items[i] for i in left), tuple(batch.settings[i] for i in left), batch.seed
        )
        return kept if left else None

    def _look(self, running: Mapping[int, list[Batch]]) -> None:
        """See what other sweeps have stored meanwhile."""
        if not self._shared or time.monotonic() - self._looked < LOOK * (1 + len(self.grid) / 1e5):
            return
        ours = {item for batches in running.values() for batch in batches for item in batch.items}
        missing = np.flatnonzero(self.status == MISSING).tolist()
        names = {self.grid.names[item]: item for item in missing if item not in ours}
        for name in self.store.find(self.folder, names):
            self.status[names[name]] = DONE
            self.tally.stored += 1
        self._looked = time.monotonic()

    def _take(
        self, task: list[Batch], outcome: Outcome, queue: deque[Batch], suspects: deque[Batch]
    ) -> None:
        if outcome.died:
            self._bury(task, outcome.died, queue, suspects)
            return
        cells = 0
        for batch in task:
            for item, setting in zip(batch.items, batch.settings, strict=True):
                reason = outcome.failed.get(item)
                if reason is None:
                    cells += bool(self.status[item] == MISSING)
                    self.status[item] = DONE
                elif self._is_hopeless(item, reason):
                    continue
                else:
                    queue.append(Batch((item,), (setting,), batch.seed))
        self.tally.done += cells
        if cells:
            cost = (outcome.seconds - outcome.compiling) / cells
            self._cost = cost if self._cost is None else 0.5 * (self._cost + cost)
            self._largest = max(self._largest, cells)
            self._small += 1

    def _bury(
        self, task: list[Batch], why: str, queue: deque[Batch], suspects: deque[Batch]
    ) -> None:
        """A worker died with a task. Workers also die of nothing, so that its cells come at the end of the queue; whose
        worker dies again is a suspect. A cell that was alone has had an attempt."""
        single = _cells(task) == 1
        for batch in task:
            for item, setting in zip(batch.items, batch.settings, strict=True):
                if not (single and self._is_hopeless(item, why)):
                    self._deaths[item] += 1
                    again = queue if self._deaths[item] == 1 else suspects
                    again.append(Batch((item,), (setting,), batch.seed))

    def _is_hopeless(self, item: int, reason: str) -> bool:
        """Whether a cell that has failed once more has failed for good, or another sweep has measured it meanwhile."""
        if self.status[item] != MISSING:
            return True
        self._attempts[item] += 1
        if self._attempts[item] <= self.retries:
            return False
        self.status[item], self.reasons[item] = FAILED, reason
        self.tally.failed += 1
        return True

    def gathered(self) -> xr.Dataset:
        """What the store has, with the axes of the grid. Cells whose block turns out to be damaged are missing from then on."""
        found = gather(self.grid, self.store, self.status, self.reasons)
        lost = (self.status == DONE) & (found["status"].values.ravel() == STATUS[MISSING])
        self.status[lost] = MISSING
        self.tally.stored -= int(lost.sum())
        return found

    def failures(self) -> list[dict[str, Any]]:
        """The cells that failed, as plain data: what differs between cells, the seed and the reason."""
        found = []
        for item in np.flatnonzero(self.status == FAILED).tolist():
            setting, seed = self.grid.item(item)
            point = {name: setting[name] for name in (*self.grid.axes,)}
            found.append({"cell": point, "seed": seed, "reason": self.reasons[item]})
        return found

    def estimate(self, processes: int = 1) -> Estimate:
        """What the rest would take, by what stored cells of the claim took; if there is none, one is measured now and kept."""
        costs = self.store.costs(self.folder)
        basis = "the stored cells of this claim"
        missing = np.flatnonzero(self.status == MISSING).tolist()
        if not costs and missing:
            item = missing[len(missing) // 2]
            setting, seed = self.grid.item(item)
            outcome = carry_out(self.grid.claim, [Batch((item,), (setting,), seed)], self.store)
            if outcome.failed:
                return Estimate(
                    np.nan,
                    np.nan,
                    f"nothing: the cell that was tried failed ({outcome.failed[item]})",
                )
            self.status[item] = DONE
            self.tally.stored += 1
            costs = self.store.costs(self.folder)
            basis = "one cell, measured now and kept"
        cells, seconds = sum(cost.cells for cost in costs), sum(cost.seconds for cost in costs)
        ran = seconds - sum(cost.compiling for cost in costs)
        share = self.tally.left / max(1, cells) / processes
        return Estimate(share * ran, share * seconds, basis)

    def _stored_cost(self) -> float | None:
        costs = self.store.costs(self.folder)
        return (costs[-1].seconds - costs[-1].compiling) / costs[-1].cells if costs else None


def _cells(task: Sequence[Batch]) -> int:
    return sum(len(batch.items) for batch in task)


def write_gathered(gathered: xr.Dataset, path: Path) -> None:
    """Write what was gathered as one netCDF file, whole or not at all."""
    try:
        write_whole(path, encoded(gathered))  # in memory first: HDF5 does not survive a full disk
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def sweep(
    claim: str | Claim | Simulation,
    grid: Mapping[str, Values] | Sequence[str] = (),
    *,
    seeds: int | Values = 0,
    scale: str = "quick",
    settings: Sequence[str] | Mapping[str, Any] = (),
    on: str = "local",
    store: Store | str | Path | None = None,
    fresh: bool = False,
    beyond: bool = False,
    retries: int = RETRIES,
    progress: Callable[[Tally], None] | None = None,
) -> xr.Dataset:
    """The evidence of a claim at every point of a grid: `sweep("single-location/basins", {"lam": "0.05:1:20log", "dim": [100, 400]})`.

    In place of a claim there may be a function that simulates, or where it is: `"file.py:function"`. The Dataset has the
    grid's names and `seed` as its axes. `status` says of each cell whether it is `done`, `failed`, `outside` (of the
    hypotheses: run with `beyond`) or `missing`, and `reason` why; their evidence is NaN. `on` is `"local"` (this process, with
    the threads it has), `"local:4"` (processes of one thread), the address of a Dask scheduler, or `"slurm"`. Finished cells
    are in the store, and the same call goes on where it stopped.
    """
    plan = plan_sweep(
        claim, grid, seeds, scale, settings, store, fresh=fresh, beyond=beyond, retries=retries
    )
    try:
        return finish(plan, on, progress)
    except Stopped as stopped:
        warnings.warn(str(stopped), stacklevel=2)
        return plan.gathered()


def finish(plan: Sweep, on: str, progress: Callable[[Tally], None] | None = None) -> xr.Dataset:
    """Measure what is missing and gather everything; what was damaged in the store is measured again."""
    for _ in range(2):
        with workers_for(on, plan) as workers:
            plan.run(workers, progress)
        gathered = plan.gathered()
        if not plan.tally.left:
            break
    return gathered


def plan_sweep(
    claim: str | Claim | Simulation,
    grid: Mapping[str, Values] | Sequence[str],
    seeds: int | Values,
    scale: str,
    settings: Sequence[str] | Mapping[str, Any],
    store: Store | str | Path | None,
    **options: Any,
) -> Sweep:
    """The sweep that `sweep` runs, with all that can be checked before work starts."""
    points = plan_grid(claim, grid, seeds, scale, settings)
    return Sweep(points, store if isinstance(store, Store) else Store(store), **options)


def plan_grid(
    claim: str | Claim | Simulation,
    grid: Mapping[str, Values] | Sequence[str],
    seeds: int | Values,
    scale: str,
    settings: Sequence[str] | Mapping[str, Any],
) -> Grid:
    """The cells of a sweep."""
    if isinstance(claim, Claim):
        made = claim
    else:
        made = named(claim) if isinstance(claim, str) and ":" not in claim else simulation(claim)
    setting = made.setting(scale)
    setting = (
        setting.replace(**settings) if isinstance(settings, Mapping) else setting.parse(settings)
    )
    axes = grid if isinstance(grid, Mapping) else parse_grid(grid)
    twice = set(axes) & set(settings if isinstance(settings, Mapping) else parse_grid(settings))
    if twice:
        raise InputError(f"{min(twice)} is both set and in the grid")
    return Grid.of(made, setting, axes, parse_seeds(seeds), scale)


@contextmanager
def workers_for(on: str, plan: Sweep) -> Iterator[Workers]:
    """Whoever is to carry out the tasks of a sweep; nobody is asked if there is nothing to do."""
    from attlas.lab import cluster

    where = cluster.parse_where(on)
    if where.kind == "local" or not (plan.status == MISSING).any():
        yield Here(plan.grid.claim, plan.store)
        return
    with cluster.hired(where, plan.grid.claim, plan.store) as crew:
        yield crew
