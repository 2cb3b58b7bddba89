"""On the real thing: processes of Dask that are killed while a sweep is under way."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import attlas
from attlas.errors import InputError, WorkersLost
from attlas.lab import ONE_THREAD, cluster, workers
from attlas.lab.cluster import Where, parse_where
from attlas.lab.sweeps import MeasureCells, Outcome, Sweep, plan_grid, sweep
from attlas.lab.workers import open_workers

pytest.importorskip("distributed")
pytestmark = pytest.mark.xdist_group("cluster")
TOYS = Path(__file__).parent / "toys" / "square.py"
GRID = {"n": "1:13", "dim": [5, 10], "wait": [0.05]}


@pytest.fixture(autouse=True)
def short_tasks(monkeypatch):
    monkeypatch.setattr("attlas.lab.sweeps.TASK_SECONDS", 0.2)


@pytest.fixture
def undisturbed(toy, tmp_path):
    return lambda grid, **options: sweep(toy, grid, store=tmp_path / "undisturbed", **options)


def wait_for(ready, seconds=300):
    for _ in range(10 * seconds):
        if ready():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen in time")


def _answers(port):
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


class Scheduler:
    """A scheduler with workers, as a site would start them: in processes of their own."""

    def __init__(self, folder, workers=2, extra=None, scheduler=None):
        self.folder, self.workers = folder, []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.process = self._start(
            *("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"),
            **(scheduler or {}),
        )
        self.environment = {**ONE_THREAD, **(extra or {})}
        for _ in range(workers):
            self.add()
        wait_for(lambda: _answers(port))

    def add(self):
        more = ["--nthreads", "1", "--no-dashboard", "--no-nanny", "--death-timeout", "30"]
        self.workers.append(self._start("worker", self.address, *more, **self.environment))

    def _start(self, what, *words, **environment):
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{what}", *words],
            cwd=self.folder,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def close(self):
        for process in (*self.workers, self.process):
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A scheduler with two workers, which the last test that uses it kills."""
    made = Scheduler(tmp_path_factory.mktemp("site"))
    yield made
    made.close()


@pytest.fixture
def scheduler(tmp_path):
    made = []

    def start(**options):
        made.append(Scheduler(tmp_path, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def when(ready, then):
    """Do something once a sweep has come so far; a progress callback."""
    done = []

    def progress(tally):
        if not done and ready(tally):
            done.append(True)
            then()

    return progress


def test_where():
    assert parse_where("local") == Where("local")
    assert parse_where("local:3") == Where("processes", 3)
    assert parse_where("tcp://host:8786") == Where("scheduler", 1, "tcp://host:8786")
    assert parse_where("slurm") == Where("slurm", 1)
    assert parse_where("slurm:40") == Where("slurm", 40)
    for bad in (
        "",
        "local:0",
        "local:x",
        "slurm:-1",
        "host:8786",
        "http://host",
        "tcp://",
        "tcp://host",
        "tcp://host:",
    ):
        with pytest.raises(InputError, match="it must be local"):
            parse_where(bad)


def test_an_unreachable_scheduler_is_one_sentence(toy, store):
    with pytest.raises(InputError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"):
        sweep(toy, GRID, store=store, on="tcp://127.0.0.1:9")


def test_slurm_that_is_not_there_is_one_sentence(toy, store, monkeypatch):
    monkeypatch.setattr(cluster.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="sbatch is not found"):
        sweep(toy, GRID, store=store, on="slurm")


def test_dask_that_is_not_there_is_one_sentence(toy, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"attlas\[cluster\]"):
        sweep(toy, GRID, store=store, on="tcp://127.0.0.1:9")


def test_no_workers_are_asked_for_a_finished_sweep(toy, store):
    first = sweep(toy, {"n": [1, 2], "dim": [5]}, store=store)
    xr.testing.assert_identical(
        sweep(toy, {"n": [1, 2], "dim": [5]}, store=store, on="tcp://127.0.0.1:9"), first
    )


def test_a_killed_worker_loses_nothing(toy, store, site, undisturbed):
    def kill():
        site.workers[0].kill()
        site.add()

    killing = when(lambda t: t.done > 4, kill)
    found = sweep(toy, GRID, seeds="0:3", store=store, on=site.address, progress=killing)
    xr.testing.assert_identical(found, undisturbed(GRID, seeds="0:3"))


def test_two_sweeps_on_one_store_and_one_cluster(toy, store, site, undisturbed):
    found = []

    def other():
        found.append(sweep(toy, GRID, seeds="0:3", store=store.folder, on=site.address))

    beside = threading.Thread(target=other)
    beside.start()
    found.append(sweep(toy, GRID, seeds="0:3", store=store.folder, on=site.address))
    beside.join()
    for one in found:
        xr.testing.assert_identical(one, undisturbed(GRID, seeds="0:3"))


def test_a_worker_packs_small_blocks(toy, store, site, undisturbed, monkeypatch):
    monkeypatch.setattr("attlas.lab.sweeps.BLOCKS_BEFORE_PACKING", 4)
    monkeypatch.setattr("attlas.lab.sweeps.TASK_SECONDS", 0.0)
    monkeypatch.setattr(store, "pack", None)  # not in this process
    found = sweep(toy, GRID, seeds="0:3", store=store, on=site.address)
    xr.testing.assert_identical(found, undisturbed(GRID, seeds="0:3"))

    def packed():
        indices = store.folder.glob("blocks/**/*.json")
        return any(len(json.loads(path.read_text())["cells"]) > 4 for path in indices)

    wait_for(packed)


class Wire:
    """A connection to a scheduler that can be cut."""

    def __init__(self, address):
        self.there = ("127.0.0.1", int(address.rpartition(":")[2]))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.whole, self.ends = True, []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if not self.whole:
                    near.close()
                    continue
                far = socket.create_connection(self.there)
                self.ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self, seconds):
        self.whole = False
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        threading.Timer(seconds, lambda: setattr(self, "whole", True)).start()


def test_a_sweep_goes_on_after_the_scheduler_was_out_of_reach(toy, store, site, undisturbed):
    wire = Wire(site.address)
    cutting = when(lambda t: t.done > 4, lambda: wire.cut(3))
    grid = GRID | {"wait": [0.2]}  # so that cells are left when it is noticed
    found = sweep(toy, grid, seeds="0:2", store=store, on=wire.address, progress=cutting)
    wire.listener.close()
    xr.testing.assert_identical(found, undisturbed(grid, seeds="0:2"))
    assert store.notes == ["The scheduler was out of reach."]


def test_a_worker_that_dies_while_it_is_asked_is_no_mistake_of_a_site(toy, store, site):
    source = workers.ClaimSource.of(toy)
    with open_workers(parse_where(site.address), toy, store) as dask:
        ask, dead = dask.client.run, {"tcp://127.0.0.1:1": OSError("Timed out")}
        dask.client.run = lambda *words, **options: dead | ask(*words, **options)
        dask.refuse_unlike(source)
        assert store.notes == ["The worker tcp://127.0.0.1:1 died before work started."]
        dask.client.run = lambda *words, **options: dead
        with pytest.raises(WorkersLost, match="The workers died while they were asked"):
            dask.refuse_unlike(source)
        dask.client.run = lambda *words, **options: {"tcp://a:1": ImportError("no attlas")}
        with pytest.raises(InputError, match=r"tcp://a:1 cannot run Attlas .*: no attlas"):
            dask.refuse_unlike(source)


@pytest.mark.long
def test_the_cells_of_a_worker_that_hangs_are_measured_by_another(
    toy, store, scheduler, undisturbed
):
    site = scheduler(extra={}, scheduler={"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s"})
    hanging = when(lambda t: t.done > 4, lambda: site.workers[0].send_signal(signal.SIGSTOP))
    found = sweep(toy, GRID, seeds="0:3", store=store, on=site.address, progress=hanging)
    xr.testing.assert_identical(found, undisturbed(GRID, seeds="0:3"))


def test_a_killed_scheduler_keeps_what_is_finished_and_the_next_call_goes_on(
    toy, store, site, undisturbed, monkeypatch
):
    monkeypatch.setattr("attlas.lab.sweeps.RECONNECT_SECONDS", 2)
    killing = when(lambda t: t.done > 4, site.process.kill)
    with pytest.warns(UserWarning, match="The scheduler is gone"):
        found = sweep(toy, GRID, seeds="0:3", store=store, on=site.address, progress=killing)
    done = int((found["status"] == "done").sum())
    assert 4 < done < 72 and (found["status"] == "missing").sum() == 72 - done
    plan = Sweep(plan_grid(toy, GRID, "0:3"), store)
    assert plan.tally.stored >= done  # a worker may have finished what it had under way
    xr.testing.assert_identical(
        sweep(toy, GRID, seeds="0:3", store=store, on="local"), undisturbed(GRID, seeds="0:3")
    )


@pytest.mark.long
def test_a_sweep_whose_workers_are_all_gone_says_so(toy, store, scheduler, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS_BETWEEN_COUNTS", 0.2)
    site = scheduler(workers=1)
    plan = Sweep(plan_grid(toy, GRID, "0:3"), store)
    with (
        open_workers(parse_where(site.address), toy, store) as dask_workers,
        pytest.raises(WorkersLost, match="All workers are gone"),
    ):
        dask_workers.patience = 0.5
        plan.measure_missing(dask_workers, when(lambda t: t.done > 4, site.workers[0].kill))
    assert 4 < plan.tally.done < 72


@pytest.mark.long
def test_an_answer_that_died_with_its_worker_is_given_by_the_next(toy, store, scheduler):
    site = scheduler(workers=1)
    with open_workers(parse_where(site.address), toy, store) as dask_workers:
        dask_workers.submit(0, toy, MeasureCells([]))
        wait_for(lambda: not dask_workers._done.empty())
        site.workers[0].kill()
        wait_for(lambda: not dask_workers.client.nthreads())
        assert dask_workers.finished() == []
        site.add()
        found = []
        wait_for(lambda: found.extend(dask_workers.finished()) or found)
    assert found == [(0, Outcome())]


def test_a_worker_with_another_version_is_refused_before_work_starts(
    toy, store, scheduler, tmp_path
):
    package = Path(attlas.__file__).parent
    shutil.copytree(
        package, tmp_path / "other" / "attlas", ignore=shutil.ignore_patterns("__pycache__")
    )
    face = tmp_path / "other" / "attlas" / "__init__.py"
    face.write_text(face.read_text().replace(f'"{attlas.__version__}"', '"9.9.9"'))
    site = scheduler(workers=1, extra={"PYTHONPATH": str(tmp_path / "other")})
    with pytest.raises(InputError, match=r"a worker has Attlas 9\.9\.9 .* they must be the same"):
        sweep(toy, GRID, store=store, on=site.address)
    assert not list(store.folder.rglob("*.nc"))


def test_a_scheduler_without_workers_is_one_sentence(toy, store, scheduler, monkeypatch):
    monkeypatch.setattr(cluster, "WORKER_TIMEOUT", 1)
    site = scheduler(workers=0)
    with pytest.raises(InputError, match="has no worker after 1 seconds"):
        sweep(toy, GRID, store=store, on=site.address)


def test_workers_that_are_lost_are_no_bad_input():
    assert not issubclass(WorkersLost, InputError)


DRIVER = """
import sys
from attlas.claims import load_file
from attlas.lab import sweeps
sweeps.TASK_SECONDS = 0.2
if __name__ == "__main__":
    toy = load_file(sys.argv[1])[0]
    sweeps.sweep(toy, {grid!r}, seeds="0:3", store=sys.argv[2], on=sys.argv[3])
"""


@pytest.mark.long
def test_a_script_that_does_not_guard_itself_is_told_how(store, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(
        DRIVER.replace("{grid!r}", repr(GRID)).replace('__name__ == "__main__"', "True")
    )
    words = [sys.executable, str(script), str(TOYS), str(store.folder), "local:1"]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.strip().endswith("sweep under `if __name__ == '__main__':`")
    assert told.stderr.count("freeze_support") == 0


@pytest.mark.parametrize("on", ["local", pytest.param("local:2", marks=pytest.mark.long)])
def test_a_killed_driver_keeps_what_is_finished_and_its_workers_leave(
    toy, store, undisturbed, tmp_path, on
):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.replace("{grid!r}", repr(GRID)))
    driver = subprocess.Popen(
        [sys.executable, str(script), str(TOYS), str(store.folder), on], start_new_session=True
    )
    group = os.getpgid(driver.pid)
    while len(list(store.folder.rglob("*.json"))) < 3 and driver.poll() is None:
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not _alive(group))
    plan = Sweep(plan_grid(toy, GRID, "0:3"), store)
    assert 3 <= plan.tally.stored < plan.tally.cells == 72
    xr.testing.assert_identical(
        sweep(toy, GRID, seeds="0:3", store=store), undisturbed(GRID, seeds="0:3")
    )


def _alive(group):
    """Processes of a group that have not ended; those that nobody has waited for have."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("on", ["local", pytest.param("local:1", marks=pytest.mark.long)])
def test_a_full_disk_is_one_sentence_and_the_next_call_goes_on(toy, small_disk, undisturbed, on):
    grid = {"n": "1:41", "dim": [5], "repeats": [2000], "wait": [0.01]}
    (small_disk / "ballast").write_bytes(b"0" * 600_000)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        sweep(toy, grid, store=small_disk / "store", on=on)
    (small_disk / "ballast").unlink()
    kept = len(list(small_disk.rglob("*.json")))
    assert kept >= 1 and not list(small_disk.rglob(".under-way*"))
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    found = sweep(toy, grid, store=small_disk / "store", on=on)
    xr.testing.assert_identical(found, undisturbed(grid))


def test_a_gathered_file_that_does_not_fit_is_one_sentence(small_disk, tmp_path):
    """HDF5 itself would crash with tens of tracebacks, hence the process of its own."""
    found = xr.Dataset({f"v{i}": ("n", np.random.default_rng(i).random(20_000)) for i in range(20)})
    found.to_netcdf(tmp_path / "found.nc", engine="h5netcdf")
    script = "import sys, xarray; from pathlib import Path; "
    script += "from attlas.lab.sweeps import write_gathered; "
    script += "write_gathered(xarray.load_dataset(sys.argv[1]), Path(sys.argv[2]))"
    words = [sys.executable, "-c", script, str(tmp_path / "found.nc"), str(small_disk / "out.nc")]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.strip().endswith("cannot be written: No space left on device")
    assert "Exception ignored" not in told.stderr and not list(small_disk.iterdir())
