"""A grid of settings of a claim, measured wherever there are processors; a worker's death loses no
stored result.

The cells that the store lacks make a queue of the claim's own batches. Some seconds of them make a
task; the worker that carries it out writes its evidence into the store as one block and answers
with what failed. A worker that dies loses the tasks it had under way: the next call finds the
blocks that were written and queues the rest.
"""

import itertools
import random
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from attlas.claims import Claim, Setting
from attlas.errors import InputError, SchedulerLost, WorkersLost, whole
from attlas.lab.blocks import encode_block, join_blocks, join_key
from attlas.lab.cluster import RECONNECT_SECONDS, NoScheduler, Where, parse_where
from attlas.lab.files import write_whole
from attlas.lab.forecast import LEAST_RATIO, check_fits, excess
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
from attlas.lab.measurement import measure_batch
from attlas.lab.runner import RETRIES, find_one
from attlas.lab.simulations import Simulation, simulation
from attlas.lab.store import Address, Cell, Store
from attlas.lab.workers import InProcess, Progress, WorkerDied, Workers, open_workers
from attlas.progress import line_of

TASK_SECONDS = 2.0
"""How long a task should last: much longer than handing it out takes, and short enough to lose."""

WORKERS_PER_SCHEDULER = 200
"""So many workers a scheduler keeps busy with tasks of `TASK_SECONDS`; with more, tasks last longer
in proportion."""

MAX_CELLS_PER_TASK = 1024

BLOCKS_BEFORE_PACKING = 256
"""After so many tasks their small blocks are packed."""

GIVEN_UP_PACKING = (
    f"Packing small blocks has killed {RETRIES + 1} workers, as happens where memory is short, and "
    f"is given up: all cells are kept, and reading them takes longer."
)

SECONDS_BETWEEN_LOOKS = 2.0
"""Between two looks for cells that another sweep has stored meanwhile; as many more for every
100,000 cells, so that looking takes some hundredths of the time."""


Items = tuple[int, ...]
"""Cells that are measured at once, by their numbers in the grid."""


class Batch(NamedTuple):
    """Cells that a claim measures at once, as they travel to whoever measures them."""

    items: Items
    settings: list[Setting]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What became of a task: its seconds without compiling, and why cells failed."""

    seconds: float = 0.0
    failed: Mapping[int, str] = field(default_factory=dict)


class MeasureCells(NamedTuple):
    """The job to measure batches and store their evidence. A cell that raises fails alone."""

    batches: Sequence[Batch]

    def carry_out(self, claim: Claim, store: Store, progress: Progress | None = None) -> Outcome:
        """Store the evidence as one block for each layout that it has."""
        failed: dict[int, str] = {}
        groups: dict[Any, list[tuple[list[Cell], xr.Dataset, dict[str, Any]]]] = {}
        batches = deque(self.batches)
        while batches:
            batch = batches.popleft()
            try:
                evidence, facts = measure_batch(claim, batch.settings, batch.seed)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - other cells go on
                if len(batch.items) == 1:
                    failed[batch.items[0]] = f"{type(error).__name__}: {error}"
                    continue
                for item, setting in zip(batch.items, batch.settings, strict=True):
                    batches.append(Batch((item,), [setting], batch.seed))
            else:
                address = Address.of(claim, batch.seed)
                cells = [Cell(address, setting) for setting in batch.settings]
                groups.setdefault(join_key(evidence), []).append((cells, evidence, facts))
        seconds = 0.0
        for group in groups.values():
            names = ("seconds", "compile_seconds")
            costs = {name: sum(facts[name] for *_, facts in group) for name in names}
            seconds += costs["seconds"] - costs["compile_seconds"]
            cells = [cell for some, *_ in group for cell in some]
            joined = join_blocks([evidence for _, evidence, _ in group])
            store.save(cells, joined, {**group[-1][-1], **costs})
        return Outcome(seconds, failed)


class PackBlocks:
    """The job to pack the small blocks of a claim."""

    def carry_out(self, claim: Claim, store: Store, progress: Progress | None = None) -> None:
        store.pack(claim.evidence or claim.id)


@dataclass
class Tally:
    """How far a sweep is, in cells: `stored` before, `done` now, `failed`, or `outside`."""

    cells: int
    stored: int = 0
    done: int = 0
    failed: int = 0
    outside: int = 0
    seconds: float = 0.0
    where: str = InProcess.where
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
    """Seconds that a sweep would take, `low` if nothing has to be compiled again and `high` if
    everything has, and the `basis` of that."""

    low: float
    high: float
    basis: str


class Sweep:
    """A grid, what of it is stored, and how the rest is measured.

    `status` has a number of `STATUS` for each cell, `reasons` say why a cell failed or is outside,
    and `notes` are sentences for the reader.
    """

    def __init__(
        self,
        grid: Grid,
        store: Store | str | Path | None,
        *,
        fresh: bool = False,
        beyond: bool = False,
        retries: int = RETRIES,
    ) -> None:
        self.grid, self.retries = grid, whole("retries", retries, 0)
        self.store = store if isinstance(store, Store) else Store(store)
        self.notes: list[str] = []
        self.reasons: dict[int, str] = {}
        self.status = np.full(len(grid), MISSING, np.int8)
        self._skip_outside(beyond)
        wanted = {grid.names[item]: item for item in self._items(MISSING)}
        stored = {} if fresh else self.store.find(self.folder, wanted)
        self.status[[wanted[name] for name in stored]] = DONE
        outside = int((self.status == OUTSIDE).sum())
        self.tally = Tally(len(grid), stored=len(stored), outside=outside)
        self._shared = not fresh
        self._looked = time.monotonic()
        last = self.store.costs(self.folder)[-1:]
        self._cell_seconds = (last[0].seconds - last[0].compiling) / last[0].cells if last else None
        self._largest_task = 1
        self._attempts: Counter[int] = Counter()
        self._deaths: Counter[int] = Counter()
        self._unpacked_blocks = self._deaths_of_packing = 0

    @property
    def folder(self) -> str:
        return self.grid.claim.evidence or self.grid.claim.id

    def _items(self, status: int) -> list[int]:
        found: list[int] = np.flatnonzero(self.status == status).tolist()
        return found

    def _skip_outside(self, beyond: bool) -> None:
        broken, impossible = self.grid.outside()
        if len(impossible) == len(self.grid.settings):
            raise InputError(next(iter(impossible.values())))
        seeds = len(self.grid.seeds)
        for number, reason in (impossible if beyond else {**broken, **impossible}).items():
            items = range(number * seeds, (number + 1) * seeds)
            self.status[items] = OUTSIDE
            self.reasons.update(dict.fromkeys(items, reason))
        if broken:
            count, words = len(broken) * seeds, "; ".join(dict.fromkeys(broken.values()))
            fate = "are run all the same" if beyond else "are skipped; --beyond runs them"
            self.notes.append(f"{count:,} cells break a hypothesis ({words}) and {fate}.")
        if impossible:
            count, reason = len(impossible) * seeds, next(iter(impossible.values()))
            self.notes.append(f"{count:,} cells are skipped that cannot be measured ({reason}).")

    def missing_batches(self) -> deque[Items]:
        """The claim's batches of what is missing, those of one shape beside each other.

        The queue begins at a random place, so that two sweeps of one grid at the same time share
        the work instead of doing all of it twice.
        """
        settings, seeds = self.grid.settings, len(self.grid.seeds)
        missing = (self.status == MISSING).reshape(-1, seeds)
        found = []
        for s in range(seeds):
            numbers = np.flatnonzero(missing[:, s]).tolist()
            places = {id(settings[number]): number * seeds + s for number in numbers}
            for batch in self.grid.claim.batches([settings[number] for number in numbers]):
                found.append(tuple(places[id(setting)] for setting in batch))
        batches = deque(sorted(found))
        batches.rotate(random.randrange(len(batches)) if batches else 0)
        return batches

    def check_fits(self, processes: int) -> None:
        """Note how long cells take that are larger than the claim's own; refuse what is too large
        for so many processes."""
        grid = self.grid
        if excess(grid.claim, grid.base.at(**grid.axes)) < LEAST_RATIO:
            return
        settings = [grid.item(item)[0] for item in self._items(MISSING)]
        time = check_fits(grid.claim, grid.claim.batches(settings), grid.seeds[0], processes)
        if time:
            self.store.notes.append(f"The sweep takes {time}.")

    def job(self, task: Sequence[Items]) -> MeasureCells:
        """The job to measure batches of cells, which are given by their numbers."""
        batches = []
        for items in task:
            settings, seeds = zip(*map(self.grid.item, items), strict=True)
            batches.append(Batch(items, list(settings), seeds[0]))
        return MeasureCells(batches)

    def measure_missing(
        self, workers: Workers, progress: Callable[[Tally], None] | None = None
    ) -> None:
        """Measure what is missing.

        Cells that fail are tried again, up to `retries` times; those whose worker died twice,
        alone.
        """
        report = progress or (lambda tally: None)
        self._queue, self._suspects = self.missing_batches(), deque[Items]()
        self._running: dict[int, list[Items]] = {}
        self._cells_under_way = 0
        start, number = time.monotonic(), 0
        packing: int | None = None
        self.tally.where = workers.where
        while self._queue or self._suspects or self._running:
            self.tally.seconds, self.tally.processes = time.monotonic() - start, workers.processes
            report(self.tally)
            # Before a cell's cost is known, each worker has one batch and none waits.
            slots = max(1, workers.processes) if self._cell_seconds is None else workers.slots
            while len(self._running) < slots and (task := self._next_task(workers.processes)):
                self._running[number] = task
                self._cells_under_way += sum(map(len, task))
                workers.submit(number, self.grid.claim, self.job(task))
                number += 1
            many = self._unpacked_blocks >= BLOCKS_BEFORE_PACKING
            # Blocks that stay small only take longer to read: give up if packing kills workers.
            if packing is None and many and self._deaths_of_packing <= RETRIES:
                self._unpacked_blocks, packing = 0, number
                workers.submit(number, self.grid.claim, PackBlocks())
                number += 1
            for finished, outcome in workers.finished() if self._running else ():
                died = isinstance(outcome, WorkerDied)
                if finished == packing:
                    packing = None
                    self._deaths_of_packing += died
                    if died and self._deaths_of_packing > RETRIES:
                        self.store.note(GIVEN_UP_PACKING)
                    continue
                task = self._running.pop(finished)
                self._cells_under_way -= sum(map(len, task))
                if died:
                    self._requeue_after_death(task, outcome.reason)
                else:
                    self._record_outcome(task, outcome)
        self.tally.seconds = time.monotonic() - start
        report(self.tally)

    def stop(self) -> None:
        """Hand out nothing more: `measure_missing` ends with what is under way."""
        self._queue.clear()
        self._suspects.clear()

    def _next_task(self, processes: int) -> list[Items]:
        """Batches for about `TASK_SECONDS`, or one suspect if nothing else is under way.

        Tasks are shorter towards the end, so that `processes` end together, but not so short that
        they cannot be handed out as fast.
        """
        self._notice_stored_by_others()
        task: list[Items] = []
        room = 1.0
        if self._cell_seconds is not None:
            crowding = processes / WORKERS_PER_SCHEDULER
            wanted = TASK_SECONDS * max(1.0, crowding) / max(self._cell_seconds, 1e-9)
            least = wanted * min(1.0, max(1 / 8, crowding))
            left = self.tally.left - self._cells_under_way
            share = left / (2 * processes) if processes > 1 else np.inf
            room = min(wanted, max(share, least), 4 * self._largest_task, MAX_CELLS_PER_TASK)
        cells = 0
        while self._queue and (not task or cells + len(self._queue[0]) <= room):
            for batch in self._still_missing(self._queue.popleft()):
                task.append(batch)
                cells += len(batch)
        while not task and not self._queue and self._suspects and not self._running:
            task = self._still_missing(self._suspects.popleft())
        return task

    def _still_missing(self, batch: Items) -> list[Items]:
        left = tuple(item for item in batch if self.status[item] == MISSING)
        return [left] if left else []

    def _notice_stored_by_others(self) -> None:
        """See what other sweeps have stored meanwhile."""
        pause = SECONDS_BETWEEN_LOOKS * (1 + len(self.grid) / 1e5)
        if not self._shared or time.monotonic() - self._looked < pause:
            return
        ours = {item for task in self._running.values() for batch in task for item in batch}
        names = {self.grid.names[i]: i for i in self._items(MISSING) if i not in ours}
        for name in self.store.find(self.folder, names):
            self.status[names[name]] = DONE
            self.tally.stored += 1
        self._looked = time.monotonic()

    def _record_outcome(self, task: list[Items], outcome: Outcome) -> None:
        cells = 0
        for item in itertools.chain(*task):
            reason = outcome.failed.get(item)
            if reason is None:
                cells += bool(self.status[item] == MISSING)
                self.status[item] = DONE
            elif not self._is_hopeless(item, reason):
                self._queue.append((item,))
        self.tally.done += cells
        if cells:
            seconds, known = outcome.seconds / cells, self._cell_seconds
            self._cell_seconds = seconds if known is None else 0.5 * (known + seconds)
            self._largest_task = max(self._largest_task, cells)
            self._unpacked_blocks += 1

    def _requeue_after_death(self, task: list[Items], reason: str) -> None:
        """Queue the cells of a worker that died.

        Workers also die for other reasons than their cells. So cells come to the end of the queue
        after a first death, and are suspects after a second. A cell that was alone has had an
        attempt.
        """
        items = list(itertools.chain(*task))
        for item in items:
            if not (len(items) == 1 and self._is_hopeless(item, reason)):
                self._deaths[item] += 1
                (self._queue if self._deaths[item] == 1 else self._suspects).append((item,))

    def _is_hopeless(self, item: int, reason: str) -> bool:
        """Whether a cell that failed again has failed for good, or another sweep has stored it."""
        if self.status[item] != MISSING:
            return True
        self._attempts[item] += 1
        if self._attempts[item] <= self.retries:
            return False
        self.status[item], self.reasons[item] = FAILED, reason
        self.tally.failed += 1
        return True

    def gathered(self) -> xr.Dataset:
        """What the store has, with the axes of the grid; cells of damaged blocks become missing."""
        found = gather(self.grid, self.store, self.status, self.reasons)
        lost = (self.status == DONE) & (found["status"].values.ravel() == STATUS[MISSING])
        self.status[lost] = MISSING
        self.tally.stored -= int(lost.sum())
        return found

    def failures(self) -> list[dict[str, Any]]:
        """The cells that failed, as plain data: their values of the axes, the seed, the reason."""
        found = []
        for item in self._items(FAILED):
            setting, seed = self.grid.item(item)
            point = {name: setting[name] for name in self.grid.axes}
            found.append({"cell": point, "seed": seed, "reason": self.reasons[item]})
        return found

    def estimate(self, processes: int = 1) -> Estimate:
        """What the rest would take, by what stored cells of the claim took.

        If there is none, one is measured now and kept.
        """
        costs, basis = self.store.costs(self.folder), "the stored cells of this claim"
        missing = self._items(MISSING)
        if not costs and missing:
            item = missing[len(missing) // 2]
            failed = self.job([(item,)]).carry_out(self.grid.claim, self.store).failed
            if failed:
                reason = f"nothing: the cell that was tried failed ({failed[item]})"
                return Estimate(np.nan, np.nan, reason)
            self.status[item] = DONE
            self.tally.stored += 1
            costs, basis = self.store.costs(self.folder), "one cell, measured now and kept"
        cells, seconds = sum(cost.cells for cost in costs), sum(cost.seconds for cost in costs)
        running = seconds - sum(cost.compiling for cost in costs)
        share = self.tally.left / max(1, cells) / processes
        return Estimate(share * running, share * seconds, basis)


def write_gathered(gathered: xr.Dataset, path: Path) -> None:
    """Write what was gathered as one netCDF file, whole or not at all."""
    try:
        # Encoded in memory first: HDF5 crashes on a full disk.
        write_whole(path, encode_block(gathered))
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
    """The evidence of a claim at every point of a grid.

    `sweep("single-location/basins", {"lam": "0.05:1:20log", "dim": [100, 400]})`

    Arguments:
    - `claim`: a claim or its id; or a function that simulates, or `"file.py:function"`.
    - `grid`: values by parameter, as a mapping or as texts `"name=values"`.
    - `on`: `"local"` (this process, with the threads it has), `"local:4"` (processes of one
      thread), the address of a Dask scheduler, or `"slurm"`.
    - `beyond`: also measure cells outside the hypotheses.
    - `seeds`: one, or several as in the grid. `scale`, `settings`, `store`, `fresh`: as in `run`.
    - `retries`: of a cell whose process died. `progress`: called with a `Tally` now and then.

    Returns a Dataset with the grid's names and `seed` as its axes. `status` says of each cell
    whether it is `done`, `failed`, `outside` or `missing`, and `reason` why; evidence that is not
    there is NaN. Finished cells are in the store, and the same call goes on where it stopped.
    On a terminal and in a notebook a long sweep says how long it will take, unless `progress` is
    given.

    >>> import attlas
    >>> found = attlas.sweep("single-location/zeta", {"reach": [2.0, 3.0]}, seeds=[0, 1])
    >>> set(found.status.dims) >= {"reach", "seed"}
    True
    """
    points = plan_grid(claim, grid, seeds, scale, settings)
    plan = Sweep(points, store, fresh=fresh, beyond=beyond, retries=retries)
    try:
        with line_of("cells") as line:
            report = progress or (lambda tally: line(tally.cells - tally.left, tally.cells))
            return complete_sweep(plan, on, report)
    except WorkersLost as lost:
        warnings.warn(str(lost), stacklevel=2)
        return plan.gathered()


def complete_sweep(
    plan: Sweep, on: str, progress: Callable[[Tally], None] | None = None
) -> xr.Dataset:
    """Measure what is missing and gather everything; damaged blocks are measured again."""
    where = parse_where(on)
    if where.kind in ("local", "processes"):  # others have memory of their own
        plan.check_fits(where.number)
    for _ in range(2):
        _measure_missing(plan, where, progress)
        gathered = plan.gathered()
        if not plan.tally.left:
            break
    return gathered


def _measure_missing(
    plan: Sweep, where: Where, progress: Callable[[Tally], None] | None = None
) -> None:
    """Measure what is missing there; a scheduler that was out of reach is called again."""
    lost: SchedulerLost | None = None
    deadline = 0.0
    while (plan.status == MISSING).any():
        before = plan.tally.done
        try:
            with ExitStack() as stack:
                try:
                    opened = open_workers(where, plan.grid.claim, plan.store)
                    workers = stack.enter_context(opened)
                except NoScheduler as error:
                    raise lost or error from error
                plan.measure_missing(workers, progress)
        except SchedulerLost as error:
            if lost is None or plan.tally.done > before:
                plan.store.notes.append("The scheduler was out of reach.")
                lost, deadline = error, time.monotonic() + RECONNECT_SECONDS
            if where.kind != "scheduler" or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    if progress is not None:
        progress(plan.tally)


def plan_grid(
    claim: str | Claim | Simulation,
    grid: Mapping[str, Values] | Sequence[str],
    seeds: int | Values = 0,
    scale: str = "quick",
    settings: Sequence[str] | Mapping[str, Any] = (),
) -> Grid:
    """The cells of a sweep, with all that can be checked before work starts.

    Arguments: as in `sweep`; `settings` are parameters to change at every point, as a mapping or as
    texts `"name=value"`.
    """
    if isinstance(claim, Claim):
        found = claim
    elif isinstance(claim, str) and ":" not in claim:
        found = find_one(claim)
    else:
        found = simulation(claim)
    setting = found.setting(scale)
    if isinstance(settings, Mapping):
        setting = setting.replace(**settings)
    else:
        setting = setting.parse(settings)
    axes = grid if isinstance(grid, Mapping) else parse_grid(grid)
    twice = {text.partition("=")[0].strip() for text in settings} & set(axes)
    if twice:
        raise InputError(f"{min(twice)} is both set and in the grid")
    return Grid.of(found, setting, axes, parse_seeds(seeds), scale)
