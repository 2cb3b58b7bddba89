"""The command line, called in this process, and a file of claims for it."""

import sys
from typing import NamedTuple

import jax
import pytest

from attlas import cli

FAST = "single-location/zeta"


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def attlas(tmp_path, monkeypatch, capsys, registry):
    """The command line, called as its entry point calls it, with a store of its own."""
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
from attlas.claims import Agreement, Control, Hypothesis, Map, Setting, together

test = Map("test", source="attlas")
OFF_BY_ONE = Control("off by one", lambda e: {"predicted": e["predicted"] + 1})

def register(slug, off=0.0, control=OFF_BY_ONE):
    def measure(cell, draws):
        time.sleep(cell.wait)
        return {"predicted": 1.0, "measured": 1.0 + off, "error": off / 100}
    measure.__name__ = slug
    test.claim(
        kind="identity", reference="here", statement="$x = x$.", words="It is.",
        quick=Setting(n=(1, 2, 3), wait=0.0, size=1.0), rule=Agreement(), cells=together("n"),
        control=control, hypotheses=(Hypothesis("size > 0", lambda s: s.size > 0),),
    )(measure)

register("true")
register("false", off=0.1)
register("toothless", control=Control("nothing", lambda e: {}))

@test.claim(kind="identity", reference="here", statement="x.", words="x.",
            quick=Setting(n=1), rule=Agreement(), control=Control("none", lambda e: {}))
def bug(cell, draws):
    raise RuntimeError("broken\\ninside")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CLAIMS)
    return path
