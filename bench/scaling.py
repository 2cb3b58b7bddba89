"""What a cell, a task and a block cost, for `docs/scaling.md`: `python -m bench.scaling`.

Seconds belong to a machine and its load; the document says which.
"""

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from attlas.claims import Claim
from attlas.lab.cluster import parse_where
from attlas.lab.grids import DONE, Grid, gather
from attlas.lab.store import Address, Cell, Store
from attlas.lab.sweeps import MeasureCells, Outcome, Sweep, plan_grid, write_gathered
from attlas.lab.workers import Workers, open_workers
from bench.sweeps import claims
from bench.timing import temporary_store

BLOCKS = 300


def measure() -> dict[str, float]:
    """Milliseconds by what they are spent on, and a few other numbers, whose names say so."""
    found: dict[str, float] = {}
    nothing, alone = claims()["nothing"], claims()["alone"]
    with temporary_store() as store:
        found |= _blocks(alone, store)
    with temporary_store() as store:
        found |= _cells(nothing, store)
    with temporary_store() as store:
        found |= _crowd(alone, store)
    with temporary_store() as store:
        found |= _tasks(alone, store)
    return found


def _blocks(claim: Claim, store: Store) -> dict[str, float]:
    """Blocks of one cell: written, found, read, packed."""
    settings = [claim.quick.at(n=n) for n in range(1, BLOCKS + 1)]
    address = Address.of(claim, 0)
    evidence = [claim.measure([setting], 0) for setting in settings]

    def write() -> None:
        for setting, one in zip(settings, evidence, strict=True):
            store.save([Cell(address, setting)], one, {"seconds": 0.0})

    names = {address.cell(setting) for setting in settings}
    found = {"write a block": _each(write, BLOCKS)}
    found["bytes of a block on disk"] = (
        sum(p.stat().st_blocks * 512 for p in store.folder.rglob("*.*")) / BLOCKS
    )
    found["find a block, first look"] = _each(
        lambda: Store(store.folder).find(address.claim, names), BLOCKS
    )
    found["find a block, next look"] = _each(lambda: store.find(address.claim, names), BLOCKS)
    found["read a block of one cell"] = _each(
        lambda: list(store.read(address.claim, names)), BLOCKS
    )
    found["pack a block"] = _each(lambda: store.pack(address.claim), BLOCKS)
    return found


def _cells(claim: Claim, store: Store) -> dict[str, float]:
    """10^5 cells in large blocks: planned, looked for, gathered, written as one file."""
    count = 100_000
    base = claim.quick
    grids: list[Grid] = []
    memory = _memory()
    axes = {"n": "1:1001", "lam": "1:101"}
    found = {"plan a cell": _each(lambda: grids.append(Grid.of(claim, base, axes, (0,))), count)}
    found["bytes of a planned cell in memory"] = (_memory() - memory) / count
    grid = grids[0]
    found["check a cell's hypotheses"] = _each(grid.outside, count)
    address = Address.of(claim, 0)
    for first in range(0, count, 1000):
        some = grid.settings[first : first + 1000]
        store.save(
            [Cell(address, setting) for setting in some], claim.measure(some, 0), {"seconds": 1.0}
        )
    status = np.full(count, DONE)
    kept: list[xr.Dataset] = []
    found["find a cell"] = _each(
        lambda: Store(store.folder).find(claim.evidence, set(grid.names)), count
    )
    found["gather a cell"] = _each(
        lambda: kept.append(gather(grid, Store(store.folder), status, {})), count
    )
    found["write a gathered cell"] = _each(
        lambda: write_gathered(kept[0], store.folder / "all.nc"), count
    )
    return found


class Crowd:
    """A thousand workers that cost nothing: what is left is the cost of handing out."""

    where, processes, slots = "nowhere", 1000, 3000

    def __init__(self) -> None:
        self.tasks, self._running = 0, deque[tuple[int, Outcome]]()

    def submit(self, number: int, claim: Claim, job: Any, group: str = "") -> None:
        self.tasks += 1
        cells = len(job.batches) if isinstance(job, MeasureCells) else 0
        self._running.append((number, Outcome(seconds=float(cells))))

    def finished(self) -> list[tuple[int, Outcome]]:
        return [self._running.popleft() for _ in range(min(100, len(self._running)))]


def _crowd(claim: Claim, store: Store) -> dict[str, float]:
    plan = Sweep(plan_grid(claim, {"n": "1:1001", "lam": "1:101"}), store)
    look = _each(
        lambda: plan.store.find(plan.folder, dict.fromkeys(plan.grid.names, 0)), len(plan.grid)
    )
    crowd = Crowd()
    took = _each(lambda: plan.measure_missing(crowd), 1)
    return {
        "look for a missing cell": look,
        "queue and hand out a task, thousands under way": took / crowd.tasks,
    }


def _tasks(claim: Claim, store: Store) -> dict[str, float]:
    """Tasks on one process: empty ones measure the connection, those of a sweep all of it."""
    found: dict[str, float] = {}
    start = time.perf_counter()
    with open_workers(parse_where("local:1"), claim, store) as workers:
        found["start one process"] = 1e3 * (time.perf_counter() - start)
        plan = Sweep(plan_grid(claim, {"n": "1:9"}), store)
        plan.measure_missing(workers)

        def empty(first: int, count: int) -> Callable[[], None]:
            def run() -> None:
                for number in range(first, first + count):
                    workers.submit(number, claim, MeasureCells([]))
                left = count
                while left:
                    left -= len(workers.finished())

            return run

        found["hand out an empty task, many at once"] = _each(empty(10**6, 1000), 1000)
        one_by_one = [_each(empty(2 * 10**6 + number, 1), 1) for number in range(50)]
        found["hand out an empty task, one at a time"] = float(np.median(one_by_one))
        plan = Sweep(plan_grid(claim, {"n": f"100:{100 + BLOCKS}"}), store)
        found["a task of one empty cell, in a sweep"] = _each(
            lambda: _one_by_one(plan, workers), BLOCKS
        )
    return found


def _one_by_one(plan: Sweep, workers: Workers) -> None:
    """Every batch as a task, all handed out at once."""
    batches = list(plan.missing_batches())
    for number, batch in enumerate(batches):
        workers.submit(number, plan.grid.claim, plan.job([batch]))
    left = len(batches)
    while left:
        left -= len(workers.finished())


def _each(work: Callable[[], object], count: int) -> float:
    """Milliseconds for each of `count`."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start) / count


def _memory() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    numbers = measure()
    if "--json" in sys.argv:
        print(json.dumps(numbers, indent=1))
    else:
        for what, value in numbers.items():
            print(f"{what:48s} {value:12.4g}{'' if what.startswith('bytes') else ' ms'}")
