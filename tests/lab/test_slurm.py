"""On Debian's own SLURM, which `tools/slurm.sh` installs and starts: `make test-cluster`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import dask
import dask_jobqueue  # noqa: F401 - with the defaults of its configuration
import pytest
import xarray as xr

from attlas.errors import InputError
from attlas.lab.sweeps import Sweep, plan_grid, sweep
from tests.lab.test_cluster import DRIVER, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]
TOP = Path(__file__).parents[2]
TOYS = Path(__file__).parent / "toys" / "square.py"
GRID = {"n": "1:25", "dim": [5, 10], "wait": [0.1]}
JOB = """
jobqueue:
  slurm:
    name: attlas
    cores: 1
    processes: 1
    memory: 1GiB
    interface: lo
    queue: main
    walltime: '00:20:00'
    death-timeout: 20
    local-directory: {folder}
    log-directory: {folder}
"""


@pytest.fixture(scope="module")
def slurm():
    script = str(TOP / "tools" / "slurm.sh")
    started = subprocess.run([script, "start"], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    yield {**os.environ, "SLURM_CONF": started.stdout.strip().splitlines()[-1]}
    subprocess.run([script, "stop"], check=True)


@pytest.fixture
def driver(slurm, tmp_path, store):
    """A sweep on two jobs in a process of its own, with a site's file for dask-jobqueue."""
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "jobqueue.yaml").write_text(JOB.format(folder=tmp_path))
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.replace("{grid!r}", repr(GRID)))
    started = []

    def start():
        environment = {**slurm, "DASK_CONFIG": str(tmp_path / "dask")}
        words = [sys.executable, str(script), str(TOYS), str(store.folder), "slurm:2"]
        started.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def jobs(slurm, state="RUNNING"):
    command = ["squeue", "-h", "-o", "%A", "-t", state]
    told = subprocess.run(command, env=slurm, capture_output=True, text=True, check=True)
    return told.stdout.split()


def test_a_job_that_slurm_refuses_is_one_sentence(slurm, toy, store, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    settings = {"cores": 1, "memory": "1GiB", "interface": "lo", "queue": "nowhere"}
    described = dask.config.set(
        {f"jobqueue.slurm.{name}": value for name, value in settings.items()}
    )
    with described, pytest.raises(InputError, match=r"SLURM refuses the job .*[Pp]artition"):
        sweep(toy, GRID, store=store, on="slurm")
    with pytest.raises(
        InputError, match="does not describe a job: You must specify how much cores and memory"
    ):
        sweep(toy, GRID, store=store, on="slurm")


def test_a_sweep_survives_a_cancelled_job_and_a_killed_driver(slurm, driver, toy, store, tmp_path):
    blocks = store.folder / "blocks"
    first = driver()
    wait_for(lambda: len(list(blocks.rglob("*.json"))) > 3 or first.poll() is not None)
    assert first.poll() is None, first.stderr.read()
    before = len(list(blocks.rglob("*.json")))
    subprocess.run(["scancel", jobs(slurm)[0]], env=slurm, check=True)
    wait_for(lambda: len(list(blocks.rglob("*.json"))) > before + 2 or first.poll() is not None)
    assert first.poll() is None, first.stderr.read()
    first.send_signal(signal.SIGKILL)
    first.wait()
    stored = Sweep(plan_grid(toy, GRID, "0:3"), store).tally.stored
    assert 0 < stored < 144
    wait_for(lambda: not jobs(slurm))  # workers without a scheduler leave
    second = driver()
    assert second.wait(timeout=300) == 0, second.stderr.read()
    plan = Sweep(plan_grid(toy, GRID, "0:3"), store)
    assert plan.tally.left == 0
    xr.testing.assert_identical(
        plan.gathered(), sweep(toy, GRID, seeds="0:3", store=tmp_path / "undisturbed")
    )
    wait_for(lambda: not jobs(slurm))
