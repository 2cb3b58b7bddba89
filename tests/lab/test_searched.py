"""What is kept of a search for violations."""

import dataclasses
import json

import pytest

from attlas.claims import Hypothesis
from attlas.lab import searched
from attlas.lab.refute import find_violation
from attlas.lab.store import Store
from tests.lab.planted import claim


@pytest.fixture(autouse=True)
def _forgotten(registry):
    """Planted claims leave the catalogue with the test."""


def test_what_was_found_is_kept_and_read_back_with_suspicion(tmp_path):
    made, file = claim("agreement", "constant"), tmp_path / "refute.json"
    store = Store(tmp_path / "store")
    found = find_violation(made, minutes=5.0, store=store, most=300)
    searched.write_summary({made.id: searched.summary(made, found)}, file)
    kept = searched.read_summary([made], file)[made.id]
    assert kept.word == "refuted" and kept.at == found.violation.changed and not kept.stale
    content = json.loads(file.read_text())
    content[made.id]["code"] = "other"
    file.write_text(json.dumps(content))
    assert searched.read_summary([made], file)[made.id].stale
    content[made.id]["settings"] = "many"
    file.write_text(json.dumps(content))
    assert searched.read_summary([made], file) == {}


def test_a_search_of_another_box_is_kept_with_its_box(tmp_path, registry):
    made, file = claim("agreement", "true"), tmp_path / "refute.json"
    found = find_violation(made, minutes=5.0, store=Store(tmp_path / "store"), most=40)
    searched.write_summary({made.id: searched.summary(made, found)}, file)
    kept = searched.read_summary([made], file)[made.id]
    assert kept.covers(made) and kept.box_said().startswith("x 0 to 1; y 0 to 1")
    wider = dataclasses.replace(made, ranges={**made.ranges, "x": (0.0, 2.0)})
    kept = searched.read_summary([wider], file)[wider.id]
    assert not kept.stale and not kept.covers(wider)
    assert kept.over["x"] == [0, 1]


def test_another_hypothesis_makes_a_kept_search_stale(registry):
    bare = claim("agreement", "true")
    code = searched.search_digest(bare)
    inside = Hypothesis("x <= 0.7", lambda cell: cell.x <= 0.7)
    assert searched.search_digest(dataclasses.replace(bare, hypotheses=(inside,))) != code
    assert searched.search_digest(bare) == code
