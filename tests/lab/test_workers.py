import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from attlas.errors import InputError, WorkersLost
from attlas.lab import workers
from attlas.lab.runner import MIN_CLAIMS_FOR_PROCESSES
from attlas.lab.sweeps import Sweep, plan_grid, sweep
from attlas.lab.workers import (
    ClaimSource,
    InProcess,
    Processes,
    WorkerDied,
    fingerprint,
    load_claim,
)

TOYS = Path(__file__).parent / "toys" / "square.py"

CLAIMS = f"""
import os, time
import jax.numpy as jnp
from attlas.claims import Agreement, Control, Map, Setting, product
from attlas.errors import InputError

PARTS = dict(
    kind="identity", reference="here", statement="$x = x$.", words="It is.",
    quick=Setting(n=(1, 2, 3), wait=0.0),
    rule=Agreement(), cells=product("n"),
    control=Control("off by one", lambda e: {{"predicted": e.predicted + 1}}),
)
many, odd = Map("many", source="attlas"), Map("odd", source="attlas")

for i in range({MIN_CLAIMS_FOR_PROCESSES}):
    def measure(cell, draws, i=i):
        time.sleep(cell.wait)
        x = jnp.sin(cell.n + i + draws.seed).item()
        return {{"predicted": x, "measured": x, "error": 0.0}}

    measure.__name__ = f"a{{i}}"
    many.claim(**PARTS)(measure)

@odd.claim(**PARTS)
def bug(cell, draws):
    raise LookupError("broken inside")

@odd.claim(**PARTS)
def bad(cell, draws):
    raise InputError("n = 1: it is never right")

@odd.claim(**PARTS)
def dies(cell, draws):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def start(tmp_path):
    """Starts the command line in a process of its own, with a store of its own."""
    (tmp_path / "mine.py").write_text(CLAIMS)

    def started(*words, store="store"):
        environment = {**os.environ, "ATTLAS_STORE": str(tmp_path / store)}
        command = [sys.executable, "-m", "attlas.cli", "run", *words]
        command += ["--claims", str(tmp_path / "mine.py")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    return started


def claims_of(process):
    out, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    return {claim["id"]: claim for claim in json.loads(out)["claims"]}


def test_processes_measure_what_one_does(start):
    many = claims_of(start("many", "--json"))
    assert list(many) == [f"many/a{i}" for i in range(MIN_CLAIMS_FOR_PROCESSES)]
    assert not any(claim["cached"] for claim in many.values())
    few = claims_of(start("many/a0", "many/a7", "--json", store="another"))
    for id, claim in few.items():
        for part in ("verdict", "control", "statistic", "provenance"):
            assert many[id][part] == claim[part]
    assert all(claim["cached"] for claim in claims_of(start("many", "--json")).values())


@pytest.mark.parametrize(
    ("odd", "code", "says"),
    [
        ("odd/bug", 2, "mine.py, line 26: claim 'odd/bug', its measurement: LookupError: broken"),
        ("odd/bad", 2, "n = 1: it is never right"),
        ("odd/dies", 2, "odd/dies could not be measured: its process was killed 3 times"),
    ],
)
def test_what_goes_wrong_in_a_process_is_told_here(start, odd, code, says):
    process = start("many", odd)
    _, told = process.communicate(timeout=120)
    assert process.returncode == code and says in told and "Traceback" not in told


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_keeps_finished_batches_and_ends_the_processes(start, tmp_path, how):
    process = start("many", "--set", "wait=0.25")
    blocks = tmp_path / "store" / "blocks"
    while not list(blocks.rglob("*.json")) and process.poll() is None:
        time.sleep(0.02)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: all of them receive it
    else:
        process.send_signal(how)
    _, told = process.communicate(timeout=120)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert told.strip().endswith("Interrupted; finished batches are kept.")
    deadline = time.monotonic() + 60
    while _session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _session(process.pid)
    kept = len(list(blocks.rglob("*.json")))
    assert 1 <= kept < 3 * MIN_CLAIMS_FOR_PROCESSES
    found = claims_of(start("many", "--set", "wait=0.25", "--json"))
    assert sum(claim["provenance"]["cells_from_store"] for claim in found.values()) == kept


def _session(leader):
    """The processes of a session that run, and are not only waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


def test_a_source_loads_the_claim_it_was_made_of(toy):
    source = ClaimSource.of(toy)
    assert source.file == str(TOYS)
    assert load_claim(source).id == "toy/square"
    assert load_claim(source).code == toy.code


def test_a_claim_of_other_sources_is_refused(toy):
    with pytest.raises(InputError, match="they must be the same"):
        load_claim(replace(ClaimSource.of(toy), fingerprint="other"))


def test_a_worker_that_compiles_with_other_flags_is_refused(toy):
    with pytest.raises(InputError, match=r"XLA_FLAGS=.*'--other'.*must be the same"):
        load_claim(replace(ClaimSource.of(toy), flags="--other"))


def test_the_fingerprint_depends_on_the_claim_file(tmp_path):
    file = tmp_path / "claims.py"
    found = []
    for text in ("a = 1", "a = 2"):
        file.write_text(text)
        found.append(fingerprint(str(file)))
    assert len({*found, fingerprint(None)}) == 3
    with pytest.raises(InputError, match="cannot be read"):
        fingerprint(str(tmp_path / "gone.py"))


GRID = {"n": "1:13", "dim": [5], "wait": [0.05]}


@pytest.fixture
def short_tasks(monkeypatch):
    monkeypatch.setattr("attlas.lab.sweeps.TASK_SECONDS", 0.2)


def test_processes_find_the_same_numbers_and_a_deadly_cell_fails_alone(
    toy, store, tmp_path, short_tasks
):
    plan = Sweep(plan_grid(toy, {**GRID, "kills": [7.0], "raises": [3.0]}), store, retries=1)
    with Processes(2, store) as workers:
        plan.measure_missing(workers)
        assert workers.processes == 2
    found = plan.gathered()
    status = found["status"].stack(all=["dim", "wait", "kills", "raises", "seed"])
    assert (status.sel(n=[3, 7]) == "failed").all() and (status.drop_sel(n=[3, 7]) == "done").all()
    assert set(found["reason"].sel(n=7).values.ravel()) == {"its worker died"}
    assert set(found["reason"].sel(n=3).values.ravel()) == {"RuntimeError: 3 is too much"}
    clean = sweep(toy, {**GRID, "kills": [0.0], "raises": [0.0]}, store=tmp_path / "undisturbed")
    for name in ("measured", "arrived", "count"):
        others = [n for n in found["n"].values if n not in (3, 7)]
        assert (found[name].sel(n=others).values == clean[name].sel(n=others).values).all()


class Sleep(NamedTuple):
    """A job that waits, and can kill its process."""

    seconds: float
    kills: bool = False

    def carry_out(self, claim, store, progress):
        progress(claim.id, os.getpid(), 1)
        time.sleep(self.seconds)
        if self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()


def outcomes(workers, count):
    found = []
    while len(found) < count:
        found += workers.finished()
    return found


def test_processes_work_from_both_ends_and_keep_groups_together(toy, store):
    seen = []
    with Processes(2, store, groups_each=2, progress=lambda *told: seen.append(told)) as workers:
        for number, group in enumerate("aabbccdd"):
            workers.submit(number, toy, Sleep(0.3), group)
        found = outcomes(workers, 8)
    pids = dict(found)
    assert all(pids[n] == pids[n + 1] for n in (0, 2, 4, 6)) and pids[0] != pids[7]
    assert {number for number, _ in found[:2]} <= {0, 1, 6, 7}
    assert sorted(pid for _, pid, _ in seen) == sorted(pids.values())


def test_a_death_is_the_outcome_of_one_task_and_the_others_go_on_elsewhere(toy, store):
    with Processes(1, store, groups_each=3) as workers:
        for number in range(3):
            workers.submit(number, toy, Sleep(0.0, kills=number == 0))
        found = dict(outcomes(workers, 3))
    assert found[0] == WorkerDied() and found[1] == found[2] != os.getpid()


@pytest.fixture
def deadly(monkeypatch):
    """Kills the first processes of this machine before they are ready; how many."""

    def kill(count, how=signal.SIGKILL):
        def started(self, *arguments):
            start(self, *arguments)
            if next(numbers) < count:
                time.sleep(0.1)
                os.kill(self.process.pid, how)

        start, numbers = workers._Process.__init__, itertools.count()
        monkeypatch.setattr(workers._Process, "__init__", started)

    return kill


def test_a_process_that_is_killed_as_it_starts_is_replaced_and_named(toy, store, deadly):
    deadly(2)
    with Processes(1, store, groups_each=2) as some:
        for number in range(2):
            some.submit(number, toy, Sleep(0.0))
        found = outcomes(some, 2)
    assert [number for number, _ in found] == [0, 1] and found[0][1] == found[1][1]
    says = "A process was killed by SIGKILL as it started; another takes its place."
    assert store.notes == [says, says]


def test_processes_that_never_start_are_lost_and_no_mistake_of_a_script(toy, store, deadly):
    deadly(workers.STARTS, signal.SIGTERM)
    with (
        Processes(1, store) as some,
        pytest.raises(WorkersLost, match=r"4 processes in a row did not start: .* SIGTERM"),
    ):
        some.submit(0, toy, Sleep(0.0))
        outcomes(some, 1)


def test_a_process_that_cannot_start_is_a_mistake_and_not_tried_again(toy, store, monkeypatch):
    monkeypatch.setattr(workers, "_serve", workers.sys.exit)  # with what it is given, which is 1
    with Processes(1, store) as some, pytest.raises(InputError, match="ended with code 1 as it"):
        some.submit(0, toy, Sleep(0.0))
        outcomes(some, 1)
    assert store.notes == []


def test_a_process_that_is_stopped_is_replaced(toy, store, deadly, monkeypatch):
    monkeypatch.setattr(workers, "STOPPED_SECONDS", 1.0)
    deadly(1, signal.SIGSTOP)
    with Processes(1, store) as some:
        some.submit(0, toy, Sleep(0.0))
        assert [number for number, _ in outcomes(some, 1)] == [0]
    assert store.notes[0].startswith("A process that had been stopped was ended")


def test_processes_end_though_one_is_stopped(toy, store, deadly):
    deadly(1, signal.SIGSTOP)
    with Processes(1, store) as some:
        some.submit(0, toy, Sleep(0.0))
        assert some.finished() == []
    assert not some._running[0].process.is_alive()


def test_a_claim_whose_process_died_is_measured_again_and_that_is_said(start, tmp_path):
    process = start("many", "--set", "wait=0.25")
    blocks = tmp_path / "store" / "blocks"
    while not list(blocks.rglob("*.json")) and process.poll() is None:
        time.sleep(0.02)
    os.kill(max(_session(process.pid)), signal.SIGKILL)
    out, told = process.communicate(timeout=120)
    assert process.returncode == 0 and f"{MIN_CLAIMS_FOR_PROCESSES} confirmed" in out
    assert "was killed; another has measured it." in told and "Traceback" not in told


def test_this_process_carries_out_a_task_when_it_is_asked_for_its_outcome(toy, store):
    workers = InProcess(store, lambda *told: None)
    for number in range(2):
        workers.submit(number, toy, Sleep(0.0))
    assert workers.finished() == [(0, os.getpid())] and workers.finished() == [(1, os.getpid())]
    assert workers.finished() == []


def test_a_claim_that_is_in_no_file_cannot_leave_this_process(toy):
    with pytest.raises(InputError, match="defined in no file"):
        ClaimSource.of(replace(toy, function=eval("lambda: 0", {"__name__": "__main__"})))


def test_sweeps_on_processes_need_no_dask(toy, store, monkeypatch, short_tasks):
    monkeypatch.setitem(sys.modules, "distributed", None)
    found = sweep(toy, {"n": [1, 2], "dim": [5]}, store=store, on="local:1")
    assert (found["status"] == "done").all()
