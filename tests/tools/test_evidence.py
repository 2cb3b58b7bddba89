import re

import pytest
from click.testing import CliRunner
from tools.evidence import evidence

from attlas.lab import judging, shipped


@pytest.fixture
def make(toy, tmp_path, monkeypatch):
    """The tool, called with words, with a folder and a store of its own."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    places = ["--folder", str(tmp_path / "files"), "--store", str(tmp_path / "kept")]
    monkeypatch.setattr("attlas.lab.measurement.keep_compiled", lambda store: None)
    return lambda *words: CliRunner().invoke(evidence, [*words, *places])


def test_what_is_missing_stale_or_damaged_is_measured_and_nothing_else(
    make, toy, tmp_path, monkeypatch
):
    path = tmp_path / "files" / "toy" / "square.nc"
    assert "1 of 1: toy/square confirmed" in make("toy").output
    first = path.read_bytes()
    again = make("toy")
    assert again.exit_code == 0 and "1 of 1 are there and current." in again.output
    assert "0 written" in again.output and path.read_bytes() == first
    path.write_bytes(first[:-1])
    assert re.search("is ignored: .*1 written", make("toy").output, re.S)
    monkeypatch.setattr(judging, "source_digest", lambda module: "other")
    assert re.search("measured by other code.*1 written", make("toy").output, re.S)
    assert not shipped.read_shipped(toy, [], tmp_path / "files").stale
    assert list((tmp_path / "files").rglob("*.*")) == [path]


def test_evidence_of_a_claim_that_is_no_more_is_removed_when_all_are_asked_for(
    make, tmp_path, monkeypatch
):
    make("toy")
    path = tmp_path / "files" / "toy" / "square.nc"
    other = path.with_name("cube.nc")
    other.write_bytes(path.read_bytes())
    make("toy")
    assert other.exists()
    monkeypatch.setattr("attlas.lab.runner.run_all", lambda *_, **__: iter(()))
    assert "toy/cube is no claim any more: removed." in make().output
    assert not other.exists() and path.exists()


def test_bad_input_is_answered_in_a_sentence(make):
    answer = make("nothing-like-it")
    assert answer.exit_code == 2 and "nothing-like-it" in answer.output
