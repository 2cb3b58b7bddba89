import json
import os
import signal
import subprocess
import sys
import time

import pytest

from attlas.lab.records import Records
from tests.cli.conftest import FAST

ATTLAS = [sys.executable, "-m", "attlas.cli"]


def test_list_prints_the_catalogue(attlas):
    told = attlas("list").stdout
    assert "single-location/zeta" in told and not any(
        line.endswith(" ") for line in told.splitlines()
    )
    claims = json.loads(attlas("list", "--json").stdout)["claims"]
    assert {"id", "source", "reference", "statement"} <= set(claims[0]) and len(claims) >= 14
    assert {
        c["source"]
        for c in json.loads(attlas("list", "--source", "attlas", "--json").stdout)["claims"]
    } == {"attlas"}


def test_list_imports_neither_jax_nor_a_map():
    code = (
        "import sys; from attlas.cli.entry import commands;"
        "commands(['list', 'single-location'], standalone_mode=False);"
        "print([m for m in sys.modules if m in ('jax', 'numpy', 'attlas.single_location')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "single-location/zeta" in answer.stdout and answer.stdout.endswith("[]\n")


def test_run_twice_computes_once_and_show_remembers(attlas):
    first = attlas("run", FAST)
    assert (
        first.returncode == 0 and "confirmed" in first.stdout and "control refuted" in first.stdout
    )
    again = attlas("run", FAST, "--json")
    (claim,) = json.loads(again.stdout)["claims"]
    assert (
        claim["cached"] is True
        and claim["verdict"] == "confirmed"
        and claim["control"] == "refuted"
    )
    assert {"id", "reason", "statistic", "threshold", "seconds", "setting", "seed"} <= set(claim)
    assert "nothing was computed" in attlas("run", FAST).stdout
    shown = attlas("show", FAST).stdout
    assert "Last verdict" in shown and "smoothed error function" in shown and "points" in shown


def test_a_recorded_verdict_is_told_without_jax_and_only_by_the_package_that_made_it(
    attlas, tmp_path, monkeypatch
):
    first = attlas("run", FAST).stdout
    code = (
        "import sys; from attlas.cli.entry import commands\n"
        f"try: commands(['run', '{FAST}'], standalone_mode=False)\n"
        "except SystemExit as end: print(end.code, [m for m in sys.modules if m == 'jax'])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told, end = answer.stdout.rsplit("\n", 2)[:2]
    assert end == "0 []" and "nothing was computed" in told
    assert told.splitlines()[1:] == first.splitlines()[1:]
    records = Records()
    record = records.recorded(FAST)
    for change in (
        {"package": "another"},
        {"seed": 1},
        {"said": "no list"},
        {"setting": {**record["setting"], "points": 1}},
        {"verdict": "not run"},
    ):
        records.record(FAST, {**record, "kind": "told from the record", **change})
        assert "told from the record" not in attlas("run", FAST).stdout, change
    records.record(FAST, {**record, "kind": "told from the record"})
    assert "told from the record" in attlas("run", FAST).stdout
    assert "told from the record" not in attlas("run", FAST, "--fresh").stdout


def test_an_edited_claim_file_is_measured_again(attlas, file):
    assert attlas("run", "test/true", "--claims", file).returncode == 0
    file.write_text(file.read_text().replace('"measured": 1.0 + off', '"measured": 2.0 + off'))
    again = attlas("run", "test/true", "--claims", file)
    assert again.returncode != 0 and "nothing was computed" not in again.stdout


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png", ".html"])
def test_figures_in_every_format(attlas, tmp_path, suffix):
    answer = attlas("run", FAST, "--figure", f"figure{suffix}")
    content = (tmp_path / f"figure{suffix}").read_bytes()
    marks = {".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>"}
    assert answer.returncode == 0 and content.startswith(marks[suffix])
    assert not list(tmp_path.glob(".under-way*"))


def test_exit_codes_tell_the_verdicts(attlas, file):
    assert attlas("run", "test/true", "--claims", file).returncode == 0
    refuted = attlas("run", "test/false", "test/toothless", "--claims", file)
    assert refuted.returncode == 1 and "At first sight refuted" in refuted.stdout
    assert attlas("run", "test/toothless", "test/true", "--claims", file).returncode == 3
    outside = attlas("run", "test/true", "--claims", file, "--set", "size=-1", "--json")
    assert (
        outside.returncode == 0 and json.loads(outside.stdout)["claims"][0]["verdict"] == "outside"
    )


def test_a_parameter_that_some_claims_lack_is_said(attlas, file):
    answer = attlas("run", "test/true", "test/bug", "--claims", file, "--set", "size=-1")
    assert "size is a parameter of 1 of these claims" in answer.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_keeps_finished_batches(attlas, file, tmp_path, how):
    words = ["run", "test/true", "--claims", str(file), "--set", "wait=1.5"]
    environment = {**os.environ, "ATTLAS_STORE": str(tmp_path / "store")}
    process = subprocess.Popen(
        [*ATTLAS, *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    blocks = tmp_path / "store" / "blocks"
    while not list(blocks.rglob("*.json")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(how)
    _, told = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130 and told.strip().endswith(
            "Interrupted; finished batches are kept."
        )
    kept = len(list(blocks.rglob("*.json")))
    assert 1 <= kept < 3
    answer = attlas(*words, "--json")
    (claim,) = json.loads(answer.stdout)["claims"]
    assert claim["verdict"] == "confirmed" and claim["provenance"]["cells_from_store"] == kept


def test_damage_is_told_and_mended(attlas, tmp_path):
    attlas("run", FAST)
    data = next((tmp_path / "store").rglob("*.nc"))
    data.write_bytes(data.read_bytes()[:-100])
    answer = attlas("run", FAST, "--json")  # which reads evidence, not only the record
    assert answer.returncode == 0 and "damaged" in answer.stderr and "confirmed" in answer.stdout


@pytest.mark.parametrize("damage", ["data", "index", "verdict"])
def test_damage_is_told_wherever_the_store_is(attlas, tmp_path, damage):
    """The name of its folder is no markup."""
    store = ["--store", tmp_path / "[" / "bold]"]
    attlas("run", FAST, *store)
    kind = {"data": "blocks/**/*.nc", "index": "blocks/**/*.json", "verdict": "verdicts/**/*.json"}
    file = next((tmp_path / "[").rglob(kind[damage]))
    file.write_bytes(b"{" + file.read_bytes()[:-100])
    answer = attlas("show" if damage == "verdict" else "run", FAST, "--json", *store)
    assert answer.returncode == 0 and f"{file.with_suffix('.json')} is damaged" in answer.stderr
    answer = attlas("run", FAST, "--json", *store)
    assert answer.returncode == 0 and "damaged" not in answer.stderr


def test_cite_prints_bibtex(attlas):
    answer = attlas("cite", "single-location/closed-form-risk")
    assert "@inproceedings{marion2025" in answer.stdout and "@software{attlas" in answer.stdout
