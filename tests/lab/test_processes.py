import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attlas.claims import Claim, Control, Setting
from attlas.lab.processes import WORTH, grouped
from attlas.statistics import Agreement

CLAIMS = f"""
import os, time
import jax.numpy as jnp
import xarray as xr
from attlas.claims import Control, Setting, claim
from attlas.errors import InputError
from attlas.statistics import Agreement

PARTS = dict(
    source="attlas", reference="here", statement="$x = x$.", words="It is.", quick=Setting(n=(1, 2, 3), wait=0.0),
    paper=Setting(n=(1, 2, 3), wait=0.0), rule=Agreement(), cells=lambda s: [s.at(n=n) for n in s.n],
    control=Control("off by one", lambda e: e.assign(predicted=e["predicted"] + 1)),
)

for i in range({WORTH}):
    @claim(f"many/a{{i}}", **PARTS)
    def measure(cells, seed, i=i):
        time.sleep(cells[0].wait)
        x = jnp.sin(cells[0].n + i + seed).item()
        return xr.Dataset({{"predicted": ("cell", [x]), "measured": ("cell", [x]), "error": 0.0}})

def bug(cells, seed):
    raise LookupError("broken inside")

def bad(cells, seed):
    raise InputError("n = 1: it is never right")

def dies(cells, seed):
    os.kill(os.getpid(), 9)

claim("odd/bug", **PARTS)(bug)
claim("odd/bad", **PARTS)(bad)
claim("odd/dies", **PARTS)(dies)
"""


@pytest.fixture
def start(tmp_path):
    """Starts the command line in a process of its own, with a store of its own."""
    (tmp_path / "mine.py").write_text(CLAIMS)

    def started(*words, store="store"):
        environment = {**os.environ, "ATTLAS_STORE": str(tmp_path / store)}
        command = [
            sys.executable,
            "-m",
            "attlas.cli",
            "run",
            *words,
            "--claims",
            str(tmp_path / "mine.py"),
        ]
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return started


def claims_of(process):
    out, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    return {claim["id"]: claim for claim in json.loads(out)["claims"]}


def test_processes_measure_what_one_does(start):
    many = claims_of(start("many", "--json"))
    assert list(many) == [f"many/a{i}" for i in range(WORTH)] and not any(
        claim["cached"] for claim in many.values()
    )
    few = claims_of(start("many/a0", "many/a7", "--json", store="another"))
    for id, claim in few.items():
        for part in ("verdict", "control", "statistic", "provenance"):
            assert many[id][part] == claim[part]
    assert all(claim["cached"] for claim in claims_of(start("many", "--json")).values())


@pytest.mark.parametrize(
    ("odd", "code", "says"),
    [
        ("odd/bug", 70, "A bug, in Attlas or in a claim file: LookupError: broken inside"),
        ("odd/bad", 2, "n = 1: it is never right"),
        ("odd/dies", 2, "odd/dies could not be measured: its process was killed"),
    ],
)
def test_what_goes_wrong_in_a_process_is_told_here(start, odd, code, says):
    process = start("many", odd)
    _, told = process.communicate(timeout=120)
    assert process.returncode == code and says in told and "Traceback" not in told


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_keeps_finished_batches_and_ends_the_processes(start, tmp_path, how):
    process = start("many", "--set", "wait=0.6")
    blocks = tmp_path / "store" / "blocks"
    while not list(blocks.rglob("*.json")) and process.poll() is None:
        time.sleep(0.02)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: all of them receive it
    else:
        process.send_signal(how)
    _, told = process.communicate(timeout=120)
    if how == signal.SIGINT:
        assert process.returncode == 130 and told.strip().endswith(
            "Interrupted; finished batches are kept."
        )
    deadline = time.monotonic() + 60
    while _alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(process.pid)
    kept = len(list(blocks.rglob("*.json")))
    assert 1 <= kept < 3 * WORTH
    found = claims_of(start("many", "--set", "wait=0.6", "--json"))
    assert sum(claim["provenance"]["cells_from_store"] for claim in found.values()) == kept


def _alive(session):
    """Whether a process of the session runs, and is not only waited for."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                return True
    return False


def test_claims_that_share_evidence_stay_together_and_long_ones_come_last():
    setting = Setting(n=1)
    parts = {
        "source": "attlas",
        "reference": "here",
        "statement": "s.",
        "words": "w.",
        "measure": print,
        "quick": setting,
        "paper": setting,
        "rule": Agreement(),
        "control": Control("none", lambda e: e),
    }
    evidence = {"a": "m/a", "b": "m/b", "c": "m/a", "d": "m/d", "e": "m/b"}
    made = [
        Claim(f"m/{slug}", **parts, evidence=of, long=slug in "ace")
        for slug, of in evidence.items()
    ]
    assert [[claim.slug for claim in group] for group in grouped(made)] == [
        ["d"],
        ["b", "e"],
        ["a", "c"],
    ]
