"""Verdicts on many seeds: counted, shipped, read back with suspicion."""

import json
from collections import Counter

import pytest
from click.testing import CliRunner
from tools.soak import soak, table_lines

from attlas.claims import select
from attlas.lab.soak import Soaked, read_soak, soak_digest, write_soak

ZETA = "single-location/zeta"


@pytest.fixture
def zeta():
    (claim,) = select([ZETA])
    return claim


def counts_of(claim, **changes):
    good = {"code": soak_digest(claim), "verdicts": {"confirmed": 3}}
    return {**good, "controls": {"refuted": 3}, "repeated": 0, **changes}


def test_a_soak_counts_verdicts_and_goes_on_where_it_stopped(tmp_path, zeta, monkeypatch):
    monkeypatch.setattr("tools.soak.compile_quickly", lambda: None)
    file = tmp_path / "soak.json"
    file.write_text(json.dumps({"other/claim": counts_of(zeta)}))
    options = ["--store", str(tmp_path / "store"), "--file", str(file), "--first", "7"]
    for seeds in (1, 2):
        result = CliRunner().invoke(soak, ["--seeds", str(seeds), *options, ZETA])
        assert result.exit_code == 0, result.output
        assert f"{ZETA}: confirmed {seeds} of {seeds}; control refuted" in result.output
    found = read_soak([zeta], file)[ZETA]
    assert found.seeds == 2 and not found.stale
    assert found.controls == {"refuted": 2}
    assert "other/claim" in json.loads(file.read_text())


def test_a_soak_tells_bad_input():
    result = CliRunner().invoke(soak, ["single-location/zetaa"])
    assert result.exit_code == 2
    assert "zeta" in result.output


def test_the_last_line_adds_up(zeta):
    found = Soaked("", Counter(confirmed=3, undecided=1), Counter(refuted=4), repeated=2)
    each, all_of_them = table_lines({zeta: found})
    assert "confirmed 3 of 4, undecided 1 of 4" in each and "first sight 2" in each
    assert all_of_them.startswith("all: confirmed 3 of 4")


def test_counts_of_other_code_are_stale(tmp_path, zeta):
    file = tmp_path / "soak.json"
    write_soak([(zeta, Soaked("other code", Counter(confirmed=1)))], file)
    assert read_soak([zeta], file)[ZETA].stale


@pytest.mark.parametrize(
    "changes",
    [
        {"code": 5},
        {"verdicts": {"confirmed": "3"}},
        {"verdicts": {}},
        {"verdicts": None},
        {"controls": {"refuted": -1}},
        {"repeated": 0.5},
    ],
)
def test_counts_that_are_no_counts_are_not_shown(tmp_path, zeta, changes):
    file = tmp_path / "soak.json"
    file.write_text(json.dumps({ZETA: counts_of(zeta, **changes)}))
    assert read_soak([zeta], file) == {}


def test_a_file_that_is_missing_or_damaged_has_no_counts(tmp_path, zeta):
    file = tmp_path / "soak.json"
    assert read_soak([zeta], file) == {}
    file.write_text("[")
    assert read_soak([zeta], file) == {}
