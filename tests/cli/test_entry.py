import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import FAST


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
            "attlas.cli.atlas.run_all", lambda *_, **__: pytest.fail("run before the check")
        )
    answer = attlas(*words)
    assert (
        answer.returncode == 2
        and says in answer.stderr
        and answer.stdout == ""
        and "Traceback" not in answer.stderr
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_module_is_the_command():
    words = [sys.executable, "-m", "attlas.cli", "--version"]
    assert subprocess.run(words, capture_output=True, text=True).stdout.startswith(
        "attlas, version"
    )
