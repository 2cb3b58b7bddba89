import dataclasses
import json

import pytest

from attlas.claims.map import REGISTRY
from attlas.lab import judging, shipped
from attlas.lab.runner import run
from attlas.lab.store import Store
from tests.cli.conftest import CLAIMS


@pytest.fixture
def evidence(attlas, file, tmp_path, monkeypatch):
    """Evidence of two claims and a function that reads and writes the file of one."""
    file.write_text(CLAIMS.partition("@test.claim")[0])
    assert attlas("list", "test", "--claims", file).returncode == 0
    folder = tmp_path / "files"
    monkeypatch.setattr(shipped, "FOLDER", folder)
    for slug in ("true", "toothless"):
        shipped.ship(run(f"test/{slug}", scale="paper", seed=5, store=Store(tmp_path / "own")))
    return folder / "test" / "true.nc"


def test_evidence_that_agrees_exits_with_0(attlas, evidence, tmp_path):
    answer = attlas("verify", "test", "--share", "1", "--seed", "7")
    assert answer.returncode == 0 and "2 agree, 0 differ" in answer.stdout
    assert "2 of 2 again (--seed 7)" in answer.stderr
    assert not (tmp_path / "store").exists()  # it is measured in a scratch store


def test_a_part_is_chosen_by_the_seed(attlas, evidence):
    answers = [
        json.loads(attlas("verify", "test", "--share", ".1", "--seed", n, "--json").stdout)
        for n in (1, 1, 2, 3, 4, 5)
    ]
    parts = [tuple(answer["verified"]) for answer in answers]
    assert parts[0] == parts[1] and len(set(parts)) == 2 and all(len(p) == 1 for p in parts)


def test_a_changed_value_exits_with_1(attlas, evidence):
    known = shipped.read_shipped(REGISTRY["test/true"], [])
    other = known.result.evidence + 1e-3  # both sides: the verdict is the same
    shipped.ship(dataclasses.replace(known.result, evidence=other))
    answer = attlas("verify", "test/true", "--share", "1")
    assert answer.returncode == 1 and "measured differs by 0.001, of 1" in answer.stdout


def test_stale_evidence_is_left_out_and_a_damaged_file_exits_with_1(attlas, evidence, monkeypatch):
    content = evidence.read_bytes()
    evidence.write_bytes(content[:-1])
    answer = attlas("verify", "test", "--share", "1")
    assert answer.returncode == 1 and "1 agree, 0 differ, 1 damaged" in answer.stdout
    assert "true.nc is ignored" in answer.stderr
    evidence.write_bytes(content)
    monkeypatch.setattr(judging, "source_digest", lambda module: "other")
    answer = attlas("verify", "test")
    assert answer.returncode == 3 and "0 agree, 0 differ, 2 stale" in answer.stdout
    assert "test/true is stale" in answer.stderr and "Nothing was verified" in answer.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing-like-it",), "nothing-like-it"),
        (("test/false",), "has evidence at the paper's scale"),
        (("test", "--share", "0"), "share"),
        (("test", "--share", "nan"), "it must be a number above 0"),
        (("test", "--share", "2"), "share"),
        (("test", "--share", "much"), "share"),
        (("test", "--seed", "-1"), "seed"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(attlas, evidence, words, says):
    answer = attlas("verify", *words)
    assert answer.returncode == 2 and says in answer.stderr and answer.stdout == ""
    assert answer.stderr.startswith("attlas: ") and answer.stderr.count("\n") == 1
