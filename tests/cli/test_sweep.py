import json
import os
import signal
import subprocess
import sys
import time

import pytest
import xarray as xr

ATTLAS = [sys.executable, "-m", "attlas.cli"]
SWEEP = ["sweep", "test/true", "--grid", "n=1:5", "--grid", "size=0.5,1,-1"]


def test_a_sweep_says_what_it_did_and_the_next_finds_it_done(attlas, file, tmp_path):
    dry = attlas(*SWEEP, "--claims", file, "--dry-run")
    assert (
        dry.returncode == 0
        and "12 cells, 0 stored, 4 outside the hypotheses, 8 to do." in dry.stdout
    )
    assert (
        "one is measured now" in dry.stdout
        and "About" in dry.stdout
        and "size > 0" in dry.stderr
        and "--beyond" in dry.stderr
    )
    first = attlas(
        *SWEEP, "--claims", file, "--out", "all.nc", "--figure", "all.md", "--show", "measured"
    )
    assert (
        first.returncode == 0
        and first.stdout == "12 cells: 7 done, 1 stored before, 4 outside\nall.nc\n"
    )
    with xr.open_dataset(tmp_path / "all.nc", engine="h5netcdf") as found:
        assert found["status"].sel(n=2).values.ravel().tolist() == ["done", "done", "outside"]
    assert (
        "Table: all.md" in first.stderr and (tmp_path / "all.md").read_text().count("| done |") == 8
    )
    again = json.loads(attlas(*SWEEP, "--claims", file, "--beyond", "--json").stdout)
    assert again["done"] == 4 and again["stored"] == 8 and again["left"] == again["failed"] == 0
    told = json.loads(attlas(*SWEEP, "--claims", file, "--dry-run", "--json").stdout)
    assert told["left"] == 0 and told["seconds"] == [0.0, 0.0]


def test_a_sweep_with_a_failed_cell_exits_with_1(attlas, file):
    answer = attlas("sweep", "test/bug", "--grid", "n=1,2", "--claims", file, "--retries", "0")
    assert answer.returncode == 1 and answer.stdout == "2 cells: 2 failed\n"
    assert "Failed: n = 1, seed 0: RuntimeError: broken inside" in answer.stderr
    (failure, _) = json.loads(
        attlas("sweep", "test/bug", "--grid", "n=1,2", "--claims", file, "--json").stdout
    )["failures"]
    assert failure == {"cell": {"n": 1}, "seed": 0, "reason": "RuntimeError: broken\ninside"}


@pytest.mark.parametrize("name", ["a.svg", "a.png", "a.csv"])
def test_a_sweep_is_drawn(attlas, file, tmp_path, name):
    attlas(*SWEEP, "--claims", file, "--figure", name, "--show", "measured", "--kind", "lines")
    assert (tmp_path / name).stat().st_size > 100


def test_an_interrupted_sweep_goes_on_where_it_stopped(attlas, file, tmp_path):
    words = ["sweep", "test/true", "--claims", str(file), "--grid", "n=1:7", "--set", "wait=1.0"]
    environment = {**os.environ, "ATTLAS_STORE": str(tmp_path / "store")}
    process = subprocess.Popen(
        [*ATTLAS, *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    blocks = tmp_path / "store" / "blocks"
    while not list(blocks.rglob("*.json")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and told.strip().endswith(
        "Interrupted; finished batches are kept."
    )
    answer = json.loads(attlas(*words, "--set", "size=1", "--json").stdout)
    assert answer["stored"] >= 1 and answer["stored"] + answer["done"] == 6
