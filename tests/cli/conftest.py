"""The command line, called in this process, and a file of claims for it."""

import sys
from typing import NamedTuple

import jax
import pytest

from attlas import claims, cli
from attlas.claims import catalogue

FAST = "single-location/heat-identity"


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def attlas(tmp_path, monkeypatch, capsys):
    """The command line, called as its entry point calls it, with a store of its own."""
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
        source="attlas", reference="here", statement="$x = x$.", words="It is.",
        quick=Setting(n=(1, 2, 3), wait=0.0, size=1.0),
        paper=Setting(n=(1, 2, 3), wait=0.0, size=1.0),
        rule=Agreement(), cells=lambda s: [s.at(n=n) for n in s.n],
        control=Control("off by one", lambda e: e.assign(predicted=e["predicted"] + 1)),
        hypotheses=(Hypothesis("size > 0", lambda s: s.size > 0),),
    )
    @claim(f"test/{slug}", **{**parts, **more})
    def measure(cells, seed):
        time.sleep(cells[0].wait)
        found = {"predicted": ("cell", [1.0]), "measured": ("cell", [1.0 + off])}
        return xr.Dataset({**found, "error": off / 100})

register("true")
register("false", off=0.1)
register("toothless", control=Control("nothing", lambda e: e))

@claim("test/bug", source="attlas", reference="here", statement="x.", words="x.",
       quick=Setting(n=1), paper=Setting(n=1), rule=Agreement(),
       control=Control("none", lambda e: e))
def bug(cells, seed):
    raise RuntimeError("broken\\ninside")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CLAIMS)
    return path
