"""Benchmarks of sweeps: a second process, the cost of a batch, a look at a finished sweep."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attlas.claims import Claim, load_file
from attlas.lab import sweeps
from attlas.lab.cluster import parse_where
from attlas.lab.store import Store
from attlas.lab.sweeps import Sweep, plan_grid
from attlas.lab.workers import InProcess, Workers, open_workers
from bench.timing import Row, compare, seconds, temporary_store


def claims() -> dict[str, Claim]:
    return {claim.slug: claim for claim in load_file(Path(__file__).with_name("cells.py"))}


def two_processes() -> Row:
    """One worker and two, with their programs compiled, which work in turn."""
    claim = claims()["computes"]
    with ExitStack() as stack:
        store = stack.enter_context(temporary_store())
        one, two = (
            stack.enter_context(_workers(f"local:{count}", claim, store)) for count in (1, 2)
        )
        fresh = itertools.count(100, 120)

        def cells(workers: Workers) -> None:
            start = next(fresh)
            _plan(claim, {"n": f"{start}:{start + 120}"}, store).measure_missing(workers)

        what = "120 compute-bound cells on two local processes of one thread, against one"
        return compare(
            what,
            lambda: cells(two),
            lambda: cells(one),
            expected="1.7 or more, on two idle cores",
            rounds=5,
        )


def overhead() -> Row:
    """Cells that do nothing, a batch and a block each: handing out, writing and answering."""
    batches = 200
    with (
        temporary_store() as store,
        _workers("local:1", claims()["alone"], store) as workers,
        _one_batch_a_task(),
    ):
        _plan(claims()["alone"], {"n": "1:9"}, store).measure_missing(workers)
        took = seconds(
            lambda: _plan(claims()["alone"], {"n": f"100:{100 + batches}"}, store).measure_missing(
                workers
            )
        )
    return Row(
        "a batch on a local process: handed out, stored, answered, against 20 ms",
        took / batches,
        0.02,
        "1 or more",
    )


def here() -> Row:
    batches = 200
    with temporary_store() as store, _one_batch_a_task():
        claim = claims()["alone"]
        _plan(claim, {"n": "1:9"}, store).measure_missing(InProcess(store))
        took = seconds(
            lambda: _plan(claim, {"n": f"100:{100 + batches}"}, store).measure_missing(
                InProcess(store)
            )
        )
    return Row(
        "a batch in this process: measured and stored, against 20 ms",
        took / batches,
        0.02,
        "1 or more",
    )


def resume() -> Row:
    """10^4 cells of a finished sweep, blocks of one cell each, packed as they came."""
    claim, grid = claims()["alone"], {"n": "1:101", "lam": "1:101"}
    with temporary_store() as store, _one_batch_a_task():
        _plan(claim, grid, store).measure_missing(InProcess(store))
        took = seconds(lambda: _finish(claim, grid, Store(store.folder)).gathered())
    return Row(
        "resuming and gathering a finished sweep of 10^4 cells, against 3 s", took, 3.0, "1 or more"
    )


def gather() -> Row:
    claim, grid = claims()["nothing"], {"n": "1:1001", "lam": "1:101"}
    with temporary_store() as store:
        _plan(claim, grid, store).measure_missing(InProcess(store))
        took = seconds(lambda: _finish(claim, grid, Store(store.folder)).gathered())
    return Row(
        "planning and gathering a finished sweep of 10^5 cells, against 10 s",
        took,
        10.0,
        "1 or more",
    )


def _plan(claim: Claim, grid: dict[str, str], store: Store) -> Sweep:
    return Sweep(plan_grid(claim, grid), store)


def _finish(claim: Claim, grid: dict[str, str], store: Store) -> Sweep:
    plan = _plan(claim, grid, store)
    plan.measure_missing(InProcess(store))
    assert plan.tally.done == 0 and plan.tally.left == 0
    return plan


@contextmanager
def _workers(on: str, claim: Claim, store: Store) -> Iterator[Workers]:
    with open_workers(parse_where(on), claim, store) as workers:
        time.sleep(1)  # the last worker has told the scheduler of itself
        yield workers


@contextmanager
def _one_batch_a_task() -> Iterator[None]:
    before = sweeps.TASK_SECONDS
    sweeps.TASK_SECONDS = 0.0
    try:
        yield
    finally:
        sweeps.TASK_SECONDS = before


BENCHMARKS: tuple[Callable[[], Row], ...] = (two_processes, overhead, here, resume, gather)
