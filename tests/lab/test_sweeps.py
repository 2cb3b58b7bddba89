import errno
import json
import os
import sys
import time

import numpy as np
import pytest
import xarray as xr

import attlas
from attlas.claims import Need
from attlas.errors import InputError
from attlas.lab import sweeps
from attlas.lab.runner import run
from attlas.lab.store import Store
from attlas.lab.sweeps import (
    Batch,
    MeasureCells,
    Outcome,
    PackBlocks,
    Sweep,
    plan_grid,
    sweep,
    write_gathered,
)
from attlas.lab.workers import InProcess, WorkerDied

GRID = {"n": "1:8", "dim": [5, 10, 20]}


def calls(toy, monkeypatch):
    """What is measured, in a list."""
    seen = []

    def remembered(claim, batch, seed):
        seen.append(([(cell.n, cell.dim) for cell in batch], seed))
        return measure(claim, batch, seed)

    measure = sweeps.measure_batch
    monkeypatch.setattr(sweeps, "measure_batch", remembered)
    return seen


def test_a_sweep_equals_runs_of_its_cells(toy, store):
    found = sweep(toy, GRID, seeds=[3, 4], store=store)
    for n, dim, seed in ((1, 5, 3), (7, 20, 4)):
        result = run(toy, settings={"n": n, "dim": dim}, seed=seed, store=store)
        assert result.cached
        np.testing.assert_array_equal(
            found["measured"].sel(n=n, dim=dim, seed=seed).values,
            result.evidence["measured"].values[0],
        )


def test_what_is_stored_is_not_measured_again(toy, store, monkeypatch):
    run(toy, settings={"n": 3, "dim": 5}, store=store)
    seen = calls(toy, monkeypatch)
    first = sweep(toy, GRID, store=store)
    assert (3, 5) not in [cell for cells, _ in seen for cell in cells]
    assert sum(len(cells) for cells, _ in seen) == 20
    again = sweep(toy, GRID, store=store)
    assert sum(len(cells) for cells, _ in seen) == 20
    xr.testing.assert_identical(first, again)
    sweep(toy, GRID, store=store, fresh=True)
    assert sum(len(cells) for cells, _ in seen) == 41


def test_the_claims_own_batches_are_used(toy, store, monkeypatch):
    seen = calls(toy, monkeypatch)
    sweep(toy, {**GRID, "repeats": [2, 3]}, store=store)
    assert {len(cells) for cells, _ in seen} <= {1, 4}
    assert max(len(cells) for cells, _ in seen) == toy.batch


def test_a_task_is_one_block_and_grows_to_seconds(toy, store):
    sweep(toy, {"n": "1:101", "dim": [5]}, store=store)
    blocks = list(store.folder.rglob("*.json"))
    assert len(blocks) < 8


def test_slow_cells_are_blocks_of_their_own(toy, store, monkeypatch):
    monkeypatch.setattr(sweeps, "TASK_SECONDS", 0.01)
    sweep(toy, {"n": "1:9", "dim": [5], "wait": [0.01]}, store=store)
    assert len(list(store.folder.rglob("*.json"))) == 2


def test_cells_outside_the_hypotheses_are_skipped_unless_beyond(toy, store):
    grid = {"n": [1, 2, 5000], "dim": [5], "lam": [0.5, 1.5]}
    plan = Sweep(plan_grid(toy, grid), store)
    assert plan.tally.outside == 4
    assert "lam < 1" in plan.notes[0]
    assert "--beyond" in plan.notes[0]
    assert len(plan.notes) == 2
    found = sweep(toy, grid, store=store)
    assert found["status"].sel(lam=1.5).values.ravel().tolist() == ["outside"] * 3
    assert found["reason"].sel(n=1, lam=1.5).item() == "lam < 1"
    assert np.isnan(found["measured"].sel(lam=1.5)).all()
    beyond = sweep(toy, grid, store=store, beyond=True)
    assert beyond["status"].sel(lam=1.5).values.ravel().tolist() == ["done", "done", "outside"]
    # What was run beyond the hypotheses is not shown to whoever did not ask for it.
    xr.testing.assert_identical(sweep(toy, grid, store=store), found)


def test_a_grid_in_which_nothing_is_defined_is_bad_input(toy, store):
    with pytest.raises(InputError, match="n < 1000"):
        sweep(toy, {"n": [5000, 6000]}, store=store)


def test_a_cell_that_raises_fails_alone_with_its_reason(toy, store, monkeypatch):
    seen = calls(toy, monkeypatch)
    found = sweep(toy, {"n": "1:9", "dim": [5], "raises": [3.0]}, store=store, retries=1)
    assert found["status"].values.ravel().tolist() == ["done", "done", "failed", *["done"] * 5]
    assert found["reason"].sel(n=3).item() == "RuntimeError: 3 is too much"
    assert sum(cells == [(3, 5)] for cells, _ in seen) == 2  # once, and one retry
    assert np.isnan(found["measured"].sel(n=3)).all()
    clean = sweep(toy, {"n": "1:9", "dim": [5], "raises": [100.0]}, store=store)
    np.testing.assert_array_equal(
        found["measured"].sel(n=[1, 2, 8]), clean["measured"].sel(n=[1, 2, 8])
    )


def test_a_cell_that_leaves_the_interpreter_fails_alone(toy, store, monkeypatch):
    def leaving(claim, batch, seed):
        if any(cell.n == 2 for cell in batch):
            sys.exit(5)
        return before(claim, batch, seed)

    before = sweeps.measure_batch
    monkeypatch.setattr(sweeps, "measure_batch", leaving)
    found = sweep(toy, {"n": "1:4", "dim": [5]}, store=store, retries=0)
    assert found["status"].values.ravel().tolist() == ["done", "failed", "done"]


def test_a_cell_that_raises_once_is_tried_again(toy, store, tmp_path):
    found = sweep(
        toy, {"n": [1], "dim": [5], "once": [str(tmp_path / "once")]}, store=store, retries=1
    )
    assert found["status"].item() == "done"
    found = sweep(
        toy, {"n": [1], "dim": [5], "once": [str(tmp_path / "other")]}, store=store, retries=0
    )
    assert found["status"].item() == "failed"
    assert found["reason"].item() == "RuntimeError: the first time"
    other = {"n": [1], "dim": [5], "once": [str(tmp_path / "other")]}
    assert sweep(toy, other, store=store)["status"].item() == "done"


class Many(InProcess):
    """Eight workers that take a second a cell, and how many cells they are given at a time."""

    slots, processes = 8, 8

    def __init__(self, store):
        super().__init__(store)
        self.given, self.answers = [], []

    def submit(self, number, claim, job, group=""):
        self.given.append(sum(len(batch.items) for batch in job.batches))
        job.carry_out(claim, self.store)
        self.answers.append((number, Outcome(seconds=float(self.given[-1]))))

    def finished(self):
        found, self.answers = self.answers, []
        return found


def test_tasks_become_smaller_towards_the_end_so_that_workers_end_together(toy, store, monkeypatch):
    monkeypatch.setattr(sweeps, "TASK_SECONDS", 100.0)
    plan = Sweep(plan_grid(toy, {"n": "1:513", "dim": [5]}), store)
    plan._cell_seconds, plan._largest_task = 1.0, 512  # a hundred cells would make a task
    workers = Many(store)
    plan.measure_missing(workers)
    assert plan.tally.left == 0 and workers.given[0] == 32 and max(workers.given[-4:]) <= 16


def test_a_crowd_of_workers_has_tasks_as_long_as_one_scheduler_can_hand_out_to_the_very_end(
    toy, store, monkeypatch
):
    """40 workers, where a scheduler serves 8 with tasks of two seconds, have tasks of ten."""
    monkeypatch.setattr(sweeps, "WORKERS_PER_SCHEDULER", 8)
    monkeypatch.setattr(Many, "processes", 40)
    monkeypatch.setattr(Many, "slots", 120)
    plan = Sweep(plan_grid(toy, {"n": "1:801", "dim": [5], "repeats": [1]}), store)
    plan._cell_seconds, plan._largest_task = 1.0, 512
    workers = Many(store)
    plan.measure_missing(workers)
    assert plan.tally.left == 0
    assert set(workers.given) == {8}  # two batches of four: a third would be more than ten


def test_while_nobody_knows_what_a_cell_takes_no_task_waits_behind_another(toy, store):
    plan = Sweep(plan_grid(toy, {"n": "1:201", "dim": [5]}), store)
    workers = Many(store)
    workers.slots, many = 24, []
    finished = workers.finished
    workers.finished = lambda: (many.append(len(workers.given)), finished())[1]
    plan.measure_missing(workers)
    assert many[0] == 8 and plan.tally.left == 0


def test_cells_that_a_worker_has_stored_and_not_told_of_are_not_taken_for_those_of_others(
    toy, store, monkeypatch
):
    monkeypatch.setattr(sweeps, "SECONDS_BETWEEN_LOOKS", 0.0)
    plan = Sweep(plan_grid(toy, {"n": "1:41", "dim": [5]}), store)
    plan.measure_missing(Many(store))
    assert (plan.tally.done, plan.tally.stored) == (40, 0)


class Dies:
    """A job of which its worker dies."""

    def carry_out(self, claim, store, progress):
        return WorkerDied()


class Mortal(InProcess):
    """Workers that die of cells with n = 3, and take along whatever is beside it."""

    slots = 2

    def submit(self, number, claim, job, group=""):
        deadly = any(cell.n == 3 for batch in job.batches for cell in batch.settings)
        super().submit(number, claim, Dies() if deadly else job)


def test_a_cell_that_kills_its_worker_fails_and_those_beside_it_do_not(toy, store):
    plan = Sweep(plan_grid(toy, {"n": "1:9", "dim": [5]}), store, retries=1)
    plan.measure_missing(Mortal(store))
    found = plan.gathered()
    assert found["status"].values.ravel().tolist() == ["done", "done", "failed", *["done"] * 5]
    assert found["reason"].sel(n=3).item() == "its worker died"
    assert plan.tally.failed == 1
    assert plan.tally.left == 0
    assert plan.failures() == [{"cell": {"n": 3, "dim": 5}, "seed": 0, "reason": "its worker died"}]


class Unlucky(InProcess):
    """Workers of which the first dies of nothing."""

    slots = 2

    def __init__(self, store):
        super().__init__(store)
        self.given = []

    def submit(self, number, claim, job, group=""):
        self.given.append(sum(len(batch.items) for batch in job.batches))
        super().submit(number, claim, job if number else Dies())


def test_cells_whose_worker_died_of_nothing_are_not_tried_one_at_a_time(toy, store):
    plan = Sweep(plan_grid(toy, {"n": "1:41", "dim": [5]}), store)
    workers = Unlucky(store)
    plan.measure_missing(workers)
    assert plan.tally.done == 40 and workers.given[0] == workers.given[-1] == toy.batch


def test_an_interruption_keeps_what_is_finished(toy, store, monkeypatch):
    undisturbed = sweep(toy, GRID, seeds="0:3", store=store.folder / "other")
    plan = Sweep(plan_grid(toy, GRID, "0:3"), store)

    def interrupt(tally):
        if tally.done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.measure_missing(InProcess(store), interrupt)
    seen = calls(toy, monkeypatch)
    xr.testing.assert_identical(sweep(toy, GRID, seeds="0:3", store=store), undisturbed)
    assert 0 < sum(len(cells) for cells, _ in seen) < 63


def test_two_sweeps_at_once_share_the_work(toy, store, monkeypatch):
    monkeypatch.setattr(sweeps, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(sweeps, "TASK_SECONDS", 0.0)
    first, second = (Sweep(plan_grid(toy, {"n": "1:41", "dim": [5]}), store) for _ in range(2))

    def beside(tally):
        if tally.done == 20:
            second.measure_missing(InProcess(store))

    first.measure_missing(InProcess(store), beside)
    assert first.tally.done == 20
    assert first.tally.stored == 20
    assert second.tally.done == 20
    assert second.tally.stored == 20
    xr.testing.assert_identical(first.gathered(), second.gathered())


def test_a_disk_that_is_full_stops_the_sweep_and_the_next_goes_on(toy, store, monkeypatch):
    writes, save = [], store.save

    def full(*arguments):
        writes.append(1)
        if len(writes) > 1:
            raise InputError("the store cannot be written: No space left on device")
        save(*arguments)

    monkeypatch.setattr(store, "save", full)
    with pytest.raises(InputError, match="No space left"):
        sweep(toy, GRID, store=store)
    monkeypatch.undo()
    plan = Sweep(plan_grid(toy, GRID), store)
    assert 0 < plan.tally.stored < plan.tally.cells
    xr.testing.assert_identical(
        sweep(toy, GRID, store=store), sweep(toy, GRID, store=store.folder / "other")
    )


@pytest.mark.parametrize(("what", "times"), [("os.fsync", 1), ("os.fsync", 3), ("os.listdir", 2)])
def test_a_disk_that_fails_now_and_then_is_asked_again(toy, store, monkeypatch, what, times):
    monkeypatch.setattr("attlas.lab.files.PAUSES", (0.0, 0.0, 0.0))
    left, work = [OSError(errno.EIO, "Input/output error")] * times, getattr(os, what[3:])

    def failing(*arguments):
        if left:
            raise left.pop()
        return work(*arguments)

    monkeypatch.setattr(what, failing)
    found = sweep(toy, GRID, store=store)
    assert not left and (found["status"] == "done").all()


def test_a_block_that_was_damaged_is_measured_again_in_the_same_call(toy, store):
    undisturbed = sweep(toy, GRID, store=store)
    block = next(store.folder.rglob("*.nc"))
    block.write_bytes(block.read_bytes()[:-100])
    again = Store(store.folder)
    xr.testing.assert_identical(sweep(toy, GRID, store=again), undisturbed)
    assert len(again.notes) == 1 and "do not match their checksum" in again.notes[0]


def test_small_blocks_are_packed_on_the_way(toy, store, monkeypatch):
    monkeypatch.setattr(sweeps, "TASK_SECONDS", 0.0)
    monkeypatch.setattr(sweeps, "BLOCKS_BEFORE_PACKING", 5)
    sweep(toy, {"n": "1:101", "dim": [5]}, store=store)
    assert len(list(store.folder.rglob("*.json"))) < 10


class Packers(InProcess):
    """Workers whose packing ends as they are told; how often it was begun."""

    def __init__(self, store, ending):
        super().__init__(store)
        self.ending, self.packed = ending, 0

    def submit(self, number, claim, job, group=""):
        if isinstance(job, PackBlocks):
            self.packed += 1
            job = self.ending
        super().submit(number, claim, job)


def test_packing_that_kills_its_workers_is_given_up_and_what_else_it_raises_is_told(
    toy, store, monkeypatch
):
    monkeypatch.setattr(sweeps, "TASK_SECONDS", 0.0)
    monkeypatch.setattr(sweeps, "BLOCKS_BEFORE_PACKING", 2)
    grid = {"n": "1:61", "dim": [5]}
    workers = Packers(store, Dies())
    plan = Sweep(plan_grid(toy, grid), store)
    plan.measure_missing(workers)
    assert workers.packed == 1 + sweeps.RETRIES and plan.tally.done == 60
    assert store.notes == [sweeps.GIVEN_UP_PACKING] and "has killed 3 workers" in store.notes[0]

    class Full:
        def carry_out(self, claim, store, progress):
            raise InputError("the disk is full")

    plan = Sweep(plan_grid(toy, grid), store, fresh=True)
    with pytest.raises(InputError, match="disk is full"):
        plan.measure_missing(Packers(store, Full()))


def test_cells_whose_needs_are_unmet_are_skipped_with_the_reason(toy, store, monkeypatch):
    need = Need("the model tiny", lambda cell: cell.n != 2, "make models")
    monkeypatch.setattr(toy, "requires", (need,))
    plan = Sweep(plan_grid(toy, {"n": [1, 2], "dim": [5]}), store, beyond=True)
    assert plan.tally.outside == 1 and "make models" in plan.notes[0]
    with pytest.raises(InputError, match="make models"):
        sweep(toy, {"n": [2]}, store=store)


def test_progress_tells_cells_rate_and_time_left(toy, store):
    seen = []
    grid = {"n": "1:9", "dim": [5], "raises": [3.0], "wait": [0.01]}

    def remember(tally):
        seen.append((tally.done, tally.failed, tally.left, tally.rate, tally.seconds_left))

    sweep(toy, grid, store=store, retries=0, progress=remember)
    assert seen[0] == (0, 0, 8, 0.0, np.inf)
    assert seen[-1][:3] == (7, 1, 0)
    assert seen[-1][3] > 0
    assert seen[-1][4] == 0


def test_an_estimate_rests_on_stored_cells_or_on_one_that_is_measured_and_kept(toy, store):
    settings = {"wait": 0.02}
    plan = Sweep(plan_grid(toy, {"n": "1:101", "dim": [5]}, 0, "quick", settings), store)
    estimate = plan.estimate()
    assert 2 < estimate.low <= estimate.high < 20
    assert "measured now" in estimate.basis
    assert plan.tally.stored == 1
    again = Sweep(plan_grid(toy, {"n": "1:101", "dim": [5]}, 0, "quick", settings), store)
    assert "stored" in again.estimate().basis and again.tally.left == 99
    assert again.estimate(processes=4).low == pytest.approx(again.estimate().low / 4)
    failing = Sweep(
        plan_grid(toy, {"n": [3], "dim": [5]}, 0, "quick", {"raises": 3.0}), store.folder / "other"
    ).estimate()
    assert np.isnan(failing.low) and "3 is too much" in failing.basis


def test_a_task_whose_evidence_is_of_two_forms_is_two_blocks(toy, store):
    settings = [toy.quick.at(n=1, dim=5, repeats=r) for r in (2, 3)]
    batches = [Batch((i,), [setting], 0) for i, setting in enumerate(settings)]
    outcome = MeasureCells(batches).carry_out(toy, store)
    assert outcome.failed == {} and len(list(store.folder.rglob("*.json"))) == 2


def test_the_gathered_result_is_one_file(toy, store, tmp_path):
    found = sweep(toy, {"n": [1, 2], "dim": [5], "raises": [2.0]}, store=store)
    write_gathered(found, tmp_path / "out.nc")
    with xr.open_dataset(tmp_path / "out.nc", engine="h5netcdf") as opened:
        xr.testing.assert_equal(opened.load(), found)
        assert json.loads(opened.attrs["setting"])["word"] == "a"
    with pytest.raises(InputError, match="cannot be written"):
        write_gathered(found, tmp_path / "no" / "out.nc")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on": "moon"}, "on = 'moon'"),
        ({"on": "local:0"}, "on = 'local:0'"),
        ({"retries": -1}, "retries"),
        ({"settings": {"n": (1, 2)}}, "both set and in the grid"),
        ({"settings": ["word"]}, "name=value"),
        ({"scale": "huge"}, "scale"),
        ({"seeds": "x"}, "seed"),
        ({"store": "/proc/nowhere"}, "cannot be written"),
    ],
)
def test_bad_input_is_told_before_work_starts(toy, store, options, says):
    with pytest.raises(InputError, match=says):
        sweep(toy, {"n": [1]}, **{"store": store, **options})


def test_the_public_face(store):
    found = attlas.sweep("single-location/zeta", ["spread=0.2,0.4"], store=store)
    assert found.sizes["spread"] == 2 and issubclass(Sweep, object)


def test_a_look_at_a_large_finished_sweep_is_quick(toy, store, monkeypatch):
    grid = {"n": "1:101", "dim": "1:21"}
    sweep(toy, grid, store=store)
    start = time.process_time()
    sweep(toy, grid, store=store)
    assert time.process_time() - start < 3
