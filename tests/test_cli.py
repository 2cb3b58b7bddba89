import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
import xarray as xr

from attlas import claims, cli
from attlas.claims import catalogue

ATTLAS = [sys.executable, "-m", "attlas.cli"]
FAST = "single-location/heat-identity"


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def attlas(tmp_path, monkeypatch, capsys):
    """The command line, called in this process as its entry point calls it, with a store of its own."""
    catalogue()
    monkeypatch.setattr(claims, "_REGISTRY", dict(claims._REGISTRY))
    monkeypatch.setenv("ATTLAS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    kept = {name: getattr(jax.config, name) for name in names}

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["attlas", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as exit:
            code = int(exit.code or 0)
        return Answer(code, *capsys.readouterr())

    yield call
    for name, value in kept.items():
        jax.config.update(name, value)


CLAIMS = """
import time
from pathlib import Path
import xarray as xr
from attlas.claims import Control, Hypothesis, Setting, claim
from attlas.statistics import Agreement

def register(slug, off=0.0, **more):
    parts = dict(
        source="attlas", reference="here", statement="$x = x$.", words="It is.", quick=Setting(n=(1, 2, 3), wait=0.0, size=1.0),
        paper=Setting(n=(1, 2, 3), wait=0.0, size=1.0), rule=Agreement(), cells=lambda s: [s.at(n=n) for n in s.n],
        control=Control("off by one", lambda e: e.assign(predicted=e["predicted"] + 1)),
        hypotheses=(Hypothesis("size > 0", lambda s: s.size > 0),),
    )
    @claim(f"test/{slug}", **{**parts, **more})
    def measure(cells, seed):
        time.sleep(cells[0].wait)
        return xr.Dataset({"predicted": ("cell", [1.0]), "measured": ("cell", [1.0 + off]), "error": off / 100})

register("true")
register("false", off=0.1)
register("toothless", control=Control("nothing", lambda e: e))

@claim("test/bug", source="attlas", reference="here", statement="x.", words="x.", quick=Setting(n=1), paper=Setting(n=1),
       rule=Agreement(), control=Control("none", lambda e: e))
def bug(cells, seed):
    raise RuntimeError("broken\\ninside")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CLAIMS)
    return path


def test_help_names_the_verbs(attlas):
    answer = attlas("--help")
    assert answer.returncode == 0 and all(
        verb in answer.stdout for verb in ("list", "show", "run", "atlas", "sweep", "cite")
    )


def test_without_a_verb_the_help_keeps_its_lines(attlas):
    answer = attlas()
    assert (
        answer.returncode == 2
        and answer.stderr.startswith("Usage: attlas")
        and answer.stderr.count("\n") > 8
    )


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
    assert "Last verdict" in shown and "heat" in shown and "points" in shown


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


def test_an_exception_in_a_claim_file_is_one_sentence(attlas, file):
    answer = attlas("run", "test/bug", "--claims", file)
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1
    says = "claim 'test/bug', its measurement: RuntimeError: broken inside"
    assert "mine.py, line " in answer.stderr and says in answer.stderr


def test_a_bug_leaves_its_traceback_in_a_file(attlas, monkeypatch):
    def broken(*_):
        raise RuntimeError("broken\ninside")

    monkeypatch.setattr("attlas.lab.runner.machine", broken)
    answer = attlas("run", FAST)
    assert answer.returncode == 70 and "Traceback" not in answer.stderr
    log = Path(answer.stderr.rsplit(" ", 1)[1].strip().rstrip("."))
    assert "broken\ninside" in log.read_text()
    log.unlink()


BAD = [
    (["run", "single-location/zetta"], "Did you mean single-location/zeta"),
    (["run", FAST, "--set", "point=3"], "unknown parameter 'point'. Did you mean points"),
    (["run", FAST, "--set", "points=many"], "points = 'many'"),
    (["run", FAST, "--set", "points=-3"], "points = '-3'"),
    (["run", FAST, "--set", "spread=-1"], "spread = -1.0"),
    (["run", "single-location/closed-form-risk", "--set", "gamma=0"], "gamma = 0.0"),
    (["run", "single-location/closed-form-risk", "--set", "samples=10"], "samples = 10"),
    (["run", "single-location/manifold-invariant", "--set", "direction=up"], "direction = 'up'"),
    (["run", FAST, "--set", "points=3", "--set", "points=4"], "points is set twice"),
    (["run", FAST, "--set", "spread=1,,2"], "spread = ''"),
    (["run", "single-location/closed-form-risk", "--set", "length=1"], "length = 1"),
    (["run", "single-location/exact-reduction", "--set", "dim=3"], "dim = 3"),
    (["run", "single-location/exact-reduction", "--set", "steps=-1"], "steps = '-1'"),
    (["run", "single-location/exact-reduction", "--set", "dim=5,6,7"], "must have 1 or 3"),
    (["run", FAST, "--seed", "-1"], "--seed"),
    (["run", FAST, "--scale", "huge"], "--scale"),
    (["run", FAST, "--figure", "figure.bmp"], "must end in one of"),
    (["run", FAST, "--figure", "nowhere/figure.svg"], "does not exist"),
    (["run", "single-location", "--figure", "figure.svg"], "draws one claim"),
    (["run", FAST, "--claims", "gone.py"], "does not exist"),
    (["run", FAST, "--store", "/proc/nowhere"], "cannot be written"),
    (["run"], "Missing argument"),
    (["show", "single-location"], "name one"),
    (["list", "--source", "marion"], "no claim has the source 'marion'"),
    (["cite", "single-location/zetta"], "Did you mean"),
    (["atlas", "--out", "/proc/nowhere"], "cannot be written"),
    (["dance"], "No such command"),
    (["sweep", FAST, "--grid", "spred=1,2"], "unknown parameter 'spred'. Did you mean spread"),
    (["sweep", FAST, "--grid", "spread=wide"], "spread = 'wide'"),
    (["sweep", FAST, "--grid", "spread"], "name=values"),
    (
        ["sweep", FAST, "--grid", "spread=1:2:3log", "--grid", "spread=1"],
        "the grid has spread twice",
    ),
    (["sweep", FAST, "--grid", "points=0:3"], "points = 0"),
    (
        ["sweep", FAST, "--grid", "spread=1", "--set", "spread=2"],
        "spread is both set and in the grid",
    ),
    (["sweep", FAST, "--seeds", "a:b"], "seeds = 'a:b'"),
    (["sweep", FAST, "--on", "moon"], "on = 'moon'"),
    (["sweep", FAST, "--on", "tcp://127.0.0.1:9"], "no scheduler answers"),
    (["sweep", FAST, "--out", "result.csv"], "must end in .nc"),
    (["sweep", FAST, "--out", "nowhere/result.nc"], "does not exist"),
    (["sweep", FAST, "--figure", "figure.bmp"], "must end in one of"),
    (["sweep", FAST, "--at", "spread"], "name=values"),
    (["sweep", FAST, "--at", "spread=1"], "--at needs --figure"),
    (["sweep", FAST, "--kind", "lines"], "--kind needs --figure"),
    (["sweep", FAST, "--show", "measured"], "--show needs --figure"),
    (
        ["sweep", FAST, "--figure", "a.svg", "--grid", "spread=1,2", "--at", "spread=3"],
        "it is one of 1, 2",
    ),
    (
        ["sweep", FAST, "--figure", "a.svg", "--grid", "spread=1,2", "--kind", "phase"],
        "needs two axes",
    ),
    (["sweep", FAST, "--figure", "a.svg", "--grid", "spread=1"], "nothing to draw"),
    (["sweep", FAST, "--store", "/proc/nowhere"], "cannot be written"),
    (["sweep", "single-location/zetta"], "Did you mean single-location/zeta"),
    (["sweep", "single-location"], "name one"),
    (["sweep", "gone.py:walk"], "does not exist"),
    (["sweep", "single-location/closed-form-risk", "--grid", "length=1"], "length = 1"),
]


@pytest.mark.parametrize(("words", "says"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(attlas, words, says, tmp_path, monkeypatch):
    if words[0] == "atlas":
        monkeypatch.setattr(
            cli, "_run_all", lambda *_, **__: pytest.fail("run before the folder was checked")
        )
    answer = attlas(*words)
    assert (
        answer.returncode == 2
        and says in answer.stderr
        and answer.stdout == ""
        and "Traceback" not in answer.stderr
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


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


def test_damage_is_told_and_mended(attlas, tmp_path):
    attlas("run", FAST)
    (data,) = (tmp_path / "store").rglob("*.nc")
    data.write_bytes(data.read_bytes()[:-100])
    answer = attlas("run", FAST)
    assert answer.returncode == 0 and "damaged" in answer.stderr and "confirmed" in answer.stdout


def test_cite_prints_bibtex(attlas):
    answer = attlas("cite", "single-location/closed-form-risk")
    assert "@inproceedings{marion2025" in answer.stdout and "@software{attlas" in answer.stdout


def test_atlas_writes_pages_and_exits_by_the_verdicts_only_when_strict(
    attlas, file, tmp_path, monkeypatch
):
    monkeypatch.setattr(claims, "HOMES", ())
    file.write_text(CLAIMS.partition('@claim("test/bug"')[0])
    claims._REGISTRY.clear()
    for words, code in (((), 0), (("--strict",), 1)):
        answer = attlas("atlas", "--claims", file, "--out", tmp_path / "out", *words)
        assert answer.returncode == code and answer.stdout.strip().endswith("index.html")
        assert "1 confirmed, 1 refuted, 1 undecided" in answer.stdout
    assert {path.stem for path in (tmp_path / "out" / "test").iterdir()} == {
        "false",
        "toothless",
        "true",
    }
    content = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert [c["verdict"] for c in content["claims"]] == ["refuted", "undecided", "confirmed"]


def test_evidence_of_an_older_version_is_told(capsys):
    (claim, *_) = catalogue().values()
    for code, told in (("0" * 16, "older version for 1 claim"), (claim.code[:16], "")):
        cli._tell_of_older(
            [claim],
            type(
                "Store",
                (),
                {"recorded": lambda self, id, code=code: {"provenance": {"code": code}}},
            )(),
        )
        assert told in capsys.readouterr().err


MODELS = Path(__file__).parent / "audit" / "data"


@pytest.fixture
def ids(tmp_path):
    (tmp_path / "ids.txt").write_text(
        "".join(f"{i + 3} 9 21 {40 - i} 3 7 11 {i + 12}\n" for i in range(6))
    )
    return tmp_path / "ids.txt"


def test_an_audit_tells_its_findings_and_writes_a_page(attlas, ids, tmp_path):
    answer = attlas("audit", MODELS / "bert", "--tokens", ids, "--probes", "none")
    assert (
        answer.returncode == 0 and "spectral norm" in answer.stdout and "Left out" in answer.stdout
    )
    assert (tmp_path / "audit.html").read_text().startswith("<!doctype html>")


def test_an_audit_as_json_is_one_object_and_no_page(attlas, ids, tmp_path):
    answer = attlas(
        "audit", MODELS / "llama", MODELS / "llama", "--tokens", ids, "--probes", "none", "--json"
    )
    found = json.loads(answer.stdout)
    assert answer.returncode == 0 and [each["model"] for each in found["audits"]] == [
        "llama",
        "llama",
    ]
    assert found["difference"]["heads"]["qk_21"][0][0] == 0
    assert not (tmp_path / "audit.html").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["audit", "nowhere"], "there is no 'nowhere'"),
        (["audit", MODELS], "models"),
        (["audit", MODELS / "bert", "--text", "nothing.txt"], "cannot be read"),
        (["audit", MODELS / "bert", "--out", "page.pdf"], "must end in .html"),
        (["audit", MODELS / "bert", "--out", "no/where.html"], "existing folder"),
        (["audit", MODELS / "bert", "--map", "none.toml"], "cannot be read"),
        (["audit", MODELS / "bert", "--labels", "none.tsv"], "cannot be read"),
        (["audit", "a", "b", "c"], "one, or of two"),
    ],
)
def test_an_audit_of_bad_input_is_one_sentence_and_no_page(attlas, words, sentence, tmp_path):
    answer = attlas(*words)
    assert answer.returncode == 2 and sentence in answer.stderr and answer.stdout == ""
    assert not list(tmp_path.glob("*.html"))
