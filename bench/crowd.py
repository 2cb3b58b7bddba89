"""A sweep on a thousand workers that are played on a clock that only counts, for `docs/scaling.md`.

    python -m bench.crowd [--cells 1000000] [--workers 1000] [--seed 0]

What hands out is the sweep itself. Played are a scheduler that passes on so many tasks a second,
workers that take a second a cell and die once an hour on average with all that they were given,
and others that take their places at once.
"""

import argparse
import heapq
import itertools
import math
import random
import resource
import sys
import time
from collections import Counter
from typing import Any

from attlas.claims import Claim
from attlas.lab.sweeps import MeasureCells, Outcome, Sweep, plan_grid
from attlas.lab.workers import WorkerDied
from bench.soak import temporary_store
from bench.sweeps import claims

TASKS_PER_SECOND = 150.0
CELL_SECONDS, PACKING_SECONDS = 1.0, 0.0085
"""Of a cell that is measured, and of a block that is packed."""
SECONDS_BETWEEN_DEATHS = 3600.0


class PlayedWorkers:
    """Workers that are played: `now` is the time, `counts` are the tasks, cells and deaths."""

    where = "a played cluster"

    def __init__(self, workers: int, seed: int) -> None:
        self.processes, self.slots = workers, 3 * workers
        self.now, self.counts = 0.0, Counter[str]()
        self._random, self._order = random.Random(seed), itertools.count()
        self._passed_on, self._unpacked = 0.0, 0
        self._tasks: list[dict[int, int]] = [{} for _ in range(workers)]
        self._free = [(0.0, worker) for worker in range(workers)]
        self._free_at = [0.0] * workers
        self._events: list[tuple[float, int, int, int | None]] = []
        for worker in range(workers):
            self._await_death(worker)

    def _await_death(self, worker: int) -> None:
        at = self.now + self._random.expovariate(1 / SECONDS_BETWEEN_DEATHS)
        heapq.heappush(self._events, (at, next(self._order), worker, None))

    def submit(self, number: int, claim: Claim, job: Any, group: str = "") -> None:
        """The scheduler passes tasks on one by one, each to the worker that is free first."""
        measures = isinstance(job, MeasureCells)
        cells = sum(len(batch.items) for batch in job.batches) if measures else 0
        self.counts["tasks" if measures else "packings"] += 1
        self.counts["cells"] += cells
        seconds = CELL_SECONDS * cells if measures else PACKING_SECONDS * self._unpacked
        self._unpacked = self._unpacked + 1 if measures else 0
        self._passed_on = max(self._passed_on, self.now) + 1 / TASKS_PER_SECOND
        free, worker = heapq.heappop(self._free)
        while free != self._free_at[worker]:  # it has died since
            free, worker = heapq.heappop(self._free)
        end = max(free, self._passed_on) + seconds
        self._occupy(worker, end)
        self._tasks[worker][number] = cells
        heapq.heappush(self._events, (end, next(self._order), worker, number))

    def _occupy(self, worker: int, until: float) -> None:
        self._free_at[worker] = until
        heapq.heappush(self._free, (until, worker))

    def finished(self) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        while not found:
            self.now, _, worker, number = heapq.heappop(self._events)
            if number is None:
                self.counts["deaths"] += 1
                found = [(lost, WorkerDied()) for lost in self._tasks[worker]]
                self._tasks[worker] = {}
                self._occupy(worker, self.now)
                self._await_death(worker)
            elif number in self._tasks[worker]:
                cells = self._tasks[worker].pop(number)
                found = [(number, Outcome(CELL_SECONDS * cells) if cells else None)]
        return found


def play(cells: int, workers: int, seed: int) -> dict[str, float]:
    """Seconds of the played clock, and processor seconds and memory of what hands out."""
    side = math.isqrt(cells)
    with temporary_store() as store:
        start = time.process_time()
        grid = {"n": f"1:{side + 1}", "lam": f"1:{cells // side + 1}"}
        plan = Sweep(plan_grid(claims()["alone"], grid), store)
        planned = time.process_time()
        played = PlayedWorkers(workers, seed)
        plan.measure_missing(played)
        ended = time.process_time()
    assert plan.tally.done == plan.tally.cells and plan.tally.left == 0
    return {
        "cells": plan.tally.cells,
        "workers": workers,
        "seconds on the played clock": played.now,
        "seconds if nobody ever waited": plan.tally.cells * CELL_SECONDS / workers,
        "tasks": played.counts["tasks"],
        "packings": played.counts["packings"],
        "deaths": played.counts["deaths"],
        "cells measured again": played.counts["cells"] - plan.tally.cells,
        "processor seconds to plan": planned - start,
        "processor seconds to hand out": ended - planned,
        "GB of memory at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    for what, value in play(**vars(parser.parse_args())).items():
        sys.stdout.write(f"{what:34s} {value:12,.6g}\n")
