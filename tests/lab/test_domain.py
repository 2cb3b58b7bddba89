"""The domain of validity: words on a grid, a boundary with its uncertainty, a figure, a record."""

import dataclasses

import pytest

from attlas.claims import Hypothesis
from attlas.errors import InputError
from attlas.lab.domain import kept_domain, map_domain, ship_domain
from attlas.lab.store import Store
from tests.lab.planted import claim


@pytest.fixture(autouse=True)
def _forgotten(registry):
    """Planted claims leave the catalogue with the test."""


@pytest.fixture
def domain(tmp_path):
    small = Hypothesis("x <= 0.4", lambda cell: cell.x <= 0.4)
    real = Hypothesis("y <= 0.8", lambda cell: cell.y <= 0.8, defining=True)
    made = claim("approximation", "hypothesis", hypotheses=(small, real))
    over = {"x": "0:1", "y": "0:1"}
    return map_domain(made, over, seed=3, side=5, store=Store(tmp_path))


def test_words_hypotheses_and_boundary_are_found(domain):
    points = domain.points.set_index(["x", "y"])
    assert domain.axes == ("x", "y") and len(points) == 25
    assert points["word"][0.25, 0.5] == "confirmed" and points["inside"][0.25, 0.5]
    assert points["word"][0.5, 0.5] == "confirmed" and not points["inside"][0.5, 0.5]
    assert points["word"][1.0, 0.5] == "refuted"
    assert points["word"][0.25, 1.0] == "not defined"
    assert domain.counts()["not defined"] == 5
    edges = domain.edges[domain.edges["axis"] == "x"]
    assert len(edges) == 4 and set(domain.edges["axis"]) == {"x"}
    assert (edges["low"] <= 0.7).all() and (edges["high"] >= 0.7).all()
    assert (edges["high"] - edges["low"] < 0.04).all()  # 0.25 in three halvings


def test_it_is_drawn_and_kept(domain, tmp_path):
    spec = domain.figure().to_dict()
    assert spec["title"]["text"] == "Domain of validity" and len(spec["layer"]) == 3
    kept = kept_domain(domain.claim, Store(tmp_path))
    assert kept.points.equals(domain.points) and kept.edges.equals(domain.edges)
    domain.claim.code = "other"
    assert kept_domain(domain.claim, Store(tmp_path)) is None


def test_a_domain_that_comes_with_the_package_is_shown_where_the_store_has_none(domain, tmp_path):
    file, empty = tmp_path / "domains.json", Store(tmp_path / "empty")
    assert kept_domain(domain.claim, empty, file) is None
    ship_domain(domain, file)
    kept = kept_domain(domain.claim, empty, file)
    assert kept.points.equals(domain.points) and kept.edges.equals(domain.edges)
    wider = dataclasses.replace(domain.claim, hypotheses=())  # of which it says nothing
    assert kept_domain(wider, empty, file) is None


def test_it_needs_two_numbers(tmp_path):
    made = claim("agreement", "true")
    with pytest.raises(InputError, match="over two parameters with numbers"):
        map_domain(made, {"x": "0:1"}, store=Store(tmp_path))
