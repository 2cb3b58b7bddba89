"""A search for violations: it finds planted ones, says nothing of true claims, and is resumable."""

import dataclasses
import math
import time

import pytest

from attlas.claims import (
    Agreement,
    Approximation,
    Bound,
    Control,
    Convergence,
    Hypothesis,
    Order,
    SameLaw,
    Setting,
    Verdict,
    on,
    together,
)
from attlas.claims.evidence import as_evidence
from attlas.errors import InputError
from attlas.lab import refute, searched
from attlas.lab.refute import find_violation, nearness
from attlas.lab.regions import Range, Region
from attlas.lab.store import Store
from tests.lab.planted import KINDS, RULES, claim, off, planted


@pytest.fixture(autouse=True)
def _forgotten(registry):
    """Planted claims leave the catalogue with the test."""


def search(found, tmp_path, **options):
    return find_violation(found, **{"minutes": 5.0, "store": Store(tmp_path), **options})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_planted_false_statement_is_found_where_it_fails(rule, kind, tmp_path):
    found = search(claim(rule, kind), tmp_path, most=400, seed=20_260)
    assert found.violation is not None, found.nearest
    last = found.violation.last
    assert last.verdict.word == "refuted"
    assert off(kind, last.setting) > 0
    assert last.setting.samples >= 4 * RULES[rule][2]
    assert last.seed not in (20_260, found.violation.first.seed)
    assert "z" not in found.violation.changed  # which has nothing to do with it


@pytest.mark.parametrize("rule", RULES)
def test_a_true_statement_is_not_refuted(rule, tmp_path):
    found = search(claim(rule, "true"), tmp_path, most=100, seed=20_261)
    assert found.violation is None and found.settings >= 100
    assert 0 < found.nearest.nearness < 1.5


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS[1:])
def test_planted_statements_are_found_in_nineteen_of_twenty_runs(rule, kind, tmp_path):
    made = claim(rule, kind)
    hits = sum(
        search(made, tmp_path / str(seed), most=1000, seed=seed).violation is not None
        for seed in range(20_300, 20_320)
    )
    assert hits >= 19


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_true_statements_are_refuted_in_none_of_thirty_runs(rule, tmp_path):
    made = claim(rule, "true")
    for seed in range(20_400, 20_430):
        assert search(made, tmp_path / str(seed), most=1000, seed=seed).violation is None


def test_a_search_goes_on_where_it_stopped(tmp_path, monkeypatch):
    made = claim("agreement", "true")
    first = search(made, tmp_path, most=60, seed=1)
    measured = []
    real = refute.Sweep.measure_missing

    def counted(plan, *options):
        measured.append(plan.tally.left)
        return real(plan, *options)

    monkeypatch.setattr(refute.Sweep, "measure_missing", counted)
    again = search(made, tmp_path, most=60, seed=1)
    assert sum(measured) == 0 and again.settings == first.settings
    assert again.nearest.setting == first.nearest.setting
    search(made, tmp_path, most=100, seed=1)
    assert sum(measured) > 0


def test_a_search_ends_in_time_and_keeps_what_it_measured(tmp_path):
    ticks = iter(range(10**6))
    made = claim("agreement", "constant")
    found = search(made, tmp_path, minutes=5 / 60, seed=2, clock=lambda: float(next(ticks)))
    assert 1 <= found.settings < 100 and found.cells >= found.settings
    assert found.violation is None or found.violation.last.verdict.word == "refuted"


def measured_as(name, measure, rule):
    """A claim with an x that is searched and a budget of 1000, measured as given."""

    def function(cell, draws):
        return measure(cell, draws)

    function.__name__ = name
    return planted.claim(
        kind="simulation",
        origin="ours",
        reference="a test",
        statement="planted",
        words="planted",
        quick=Setting(x=0.5, samples=1000),
        budget="samples",
        ranges={"x": (0.0, 1.0)},
        rule=rule,
        control=Control("nothing", lambda e: e),
    )(function)


def test_what_is_near_and_undecided_is_measured_with_up_to_sixty_four_times_the_budget(tmp_path):
    def measure(cell, draws):  # beyond the margin by half of the first interval
        error = 0.1 / cell.samples**0.5
        return {"predicted": 1.0, "measured": 1.056, "error": error}

    rule = Approximation(margin=0.05)
    found = search(measured_as("barely_beyond", measure, rule), tmp_path, most=200)
    assert found.refuted_at_first == 0 and found.violation is not None
    assert found.violation.first.times == 16
    assert found.violation.last.setting.samples == 16_000


def test_the_last_measurement_of_a_setting_counts(tmp_path):
    def measure(cell, draws):  # wrong on the first seed only
        first = draws.seed == 7
        return {"predicted": 0.0, "measured": 8.0 * first + cell.x, "error": 1.0}

    made = measured_as("wrong_once", measure, Agreement())
    found = search(made, tmp_path, most=40, seed=7)
    assert found.violation is None and found.refuted_at_first >= 32
    assert found.nearest.times == 4 and found.nearest.nearness < 0.3
    entry = searched.summary(made, found)
    searched.write_summary({made.id: entry}, tmp_path / "refute.json")
    kept = searched.read_summary([made], tmp_path / "refute.json")[made.id]
    assert kept.at_first == found.refuted_at_first and kept.nearness < 0.3


def test_a_counterexample_needs_no_second_seed(tmp_path):
    def measure(cell, draws):
        wrong = draws.seed == 7 and cell.x > 0.8
        return {"predicted": 0.0, "measured": 1e-3 * wrong, "error": 0.0}

    made = measured_as("exactly_wrong_once", measure, Agreement())
    violation = search(made, tmp_path, most=100, seed=7).violation
    assert violation.last.seed == 7 and violation.last.setting.x > 0.8
    assert violation.last.verdict.exact and violation.last.setting.samples == 1000


def test_a_declared_range_of_a_list_is_searched_one_value_at_a_time(registry):
    listed = {"quick": Setting(size=(1.0, 2.0), count=(3, 4)), "cells": together("size", "count")}

    @planted.measurement("in-pairs", **listed)
    def pairs(cell, draws):
        return {"measured": cell.size, "bound": 5.0, "error": 0.0}

    def stated(name, rule, **parts):
        def read(evidence):
            return {}

        read.__name__ = name
        return planted.claim(
            kind="two routes",
            origin="ours",
            reference="a test",
            statement="planted",
            words="planted",
            measured_by=pairs,
            rule=rule,
            control=Control("nothing", lambda e: e),
            **parts,
        )(read)

    with pytest.raises(InputError, match="no parameter that could be searched"):
        Region(stated("compared", Bound()))
    region = Region(stated("one_by_one", Bound(), ranges={"size": (1.0, 9.0)}))
    assert {r.name: (r.low, r.high) for r in region.ranges}["size"] == (1.0, 9.0)
    assert region.at({"size": 9.0}).size == (9.0,)
    assert [own.size for own in region.own] == [(1.0,), (2.0,)]


def test_hypotheses_bound_the_search(tmp_path):
    inside = Hypothesis("x <= 0.7", lambda cell: cell.x <= 0.7)
    made = claim("agreement", "hypothesis", hypotheses=(inside,))
    assert search(made, tmp_path, most=100, seed=5).violation is None
    region = Region(made)
    assert region.status(region.at({"x": 0.8})) == "outside"
    assert region.admits(region.at({"x": 0.6}))


def test_batches_and_lists_of_cells_are_searched_one_value_at_a_time(tmp_path):
    @planted.claim(
        kind="two routes",
        origin="ours",
        reference="a test",
        statement="planted",
        words="planted",
        quick=Setting(size=(1.0, 2.0), count=(3, 4), word=("a", "b")),
        cells=together("size", "count", "word"),
        shape=("word",),
        rule=Agreement(),
        control=Control("nothing", lambda e: e),
    )
    def lists_of_cells(cells, draws):
        wrong = [0.5 * (c.size > 3 and c.word == "b") for c in cells]
        return (
            on("cell", predicted=[c.count for c in cells])
            | on("cell", measured=[c.count + w for c, w in zip(cells, wrong, strict=True)])
            | {"error": 0.0}
        )

    region = Region(lists_of_cells)
    assert {r.name: (r.low, r.high, r.words) for r in region.ranges} == {
        "size": (0.25, 8.0, ()),
        "count": (1.0, 16.0, ()),
        "word": (0.0, 0.0, ("a", "b")),
    }
    found = search(lists_of_cells, tmp_path, most=200)
    assert list(found.violation.changed) == ["size"] and found.violation.changed["size"] > 3
    assert found.violation.last.setting.word == ("b",)


def verdict(statistic, threshold, word="confirmed"):
    return Verdict(word, "", statistic, threshold)


def test_nearness_is_one_at_the_threshold():
    none = as_evidence({"nothing": 0.0}, 1, False)
    assert nearness(Agreement(), none, verdict(2.0, 4.0)) == 0.5
    assert nearness(Approximation(0.1), none, verdict(0.2, 0.1)) == 2
    assert nearness(Bound(), none, verdict(0.7, 1.0)) == 0.7
    assert nearness(Convergence(0.9), none, verdict(0.95, 0.9)) == pytest.approx(0.5)
    assert nearness(SameLaw(), none, verdict(1e-4, 1e-4)) == 1
    pair = as_evidence({"lower": 3.0, "upper": 4.0, "error": 0.0}, 1, False)
    assert nearness(Order(), pair, verdict(1.0, 0.0)) == 0.75
    assert nearness(Agreement(), none, verdict(math.nan, 1.0)) == 0


@pytest.mark.parametrize(
    "over, message",
    [
        ({"q": "0:1"}, "unknown parameter 'q'"),
        ({"x": "1:0"}, "x = '1:0': the range is empty"),
        ({"x": "5"}, "x = '5': a range is given as low:high"),
        ({"x": "0:inf"}, "x = '0:inf': a range is given as low:high"),
        ({"samples": "1:10"}, "samples is the budget"),
        ({"x": "2:3"}, "x = 2 to 3: planted/.* is not defined, or its hypotheses fail"),
    ],
)
def test_bad_ranges_are_refused_in_one_sentence(over, message, tmp_path, monkeypatch):
    monkeypatch.setattr(refute, "MAX_DRAWS", 64)
    inside = Hypothesis("x <= 1", lambda cell: cell.x <= 1, defining=True)
    made = claim("agreement", "true", hypotheses=(inside,))
    with pytest.raises(InputError, match=message):
        search(made, tmp_path, over=over, most=10)


def test_a_range_in_which_nothing_can_be_measured_is_refused_in_one_sentence(tmp_path):
    made = claim("agreement", "true")

    def measure(cell, draws):
        raise InputError("x is too large")

    failing = dataclasses.replace(made, function=measure)
    with pytest.raises(
        InputError, match=r"at none of \d+ settings in this range; .*x is too large"
    ):
        search(failing, tmp_path, over={"x": "2:3"}, most=10)


def test_a_setting_of_the_claims_own_outside_the_range_is_not_looked_at(tmp_path):
    region = Region(claim("agreement", "true"), {"x": "0.6:0.9"})
    assert not any(region.searches(own) for own in region.own)
    assert region.searches(region.at({"x": 0.7}))


def test_a_box_of_few_settings_ends_when_it_is_looked_through(tmp_path):
    @planted.claim(
        kind="two routes",
        origin="ours",
        reference="a test",
        statement="planted",
        words="planted",
        quick=Setting(count=4),
        rule=Agreement(),
        control=Control("nothing", lambda e: e),
    )
    def few_settings(cell, draws):
        return {"predicted": 1.0, "measured": 1.0, "error": 0.0}

    assert search(few_settings, tmp_path).settings == 16  # 1 to 16


def test_settings_that_would_take_most_of_the_time_are_left_out_unless_asked_for(tmp_path):
    counts = []

    @planted.claim(
        kind="two routes",
        origin="ours",
        reference="a test",
        statement="planted",
        words="planted",
        quick=Setting(count=4, x=1.0),
        rule=Agreement(),
        control=Control("nothing", lambda e: e),
    )
    def slow_counts(cell, draws):
        counts.append(cell.count)
        time.sleep(0.005 * cell.count)
        return {"predicted": 1.0, "measured": 1.0, "error": 0.0}

    found = search(slow_counts, tmp_path, minutes=1 / 60)
    assert found.too_large > 0 and 1 <= max(counts) < 16
    assert found.to_dict()["too_large"] == found.too_large
    asked = search(slow_counts, tmp_path, minutes=1 / 60, over={"count": "15:16"}, most=3)
    assert asked.too_large == 0 and max(counts) >= 15


def test_a_declared_range_is_checked():
    with pytest.raises(InputError, match="the range x = "):
        claim("agreement", "true", needs=()) and planted.claim(
            kind="simulation",
            reference="a",
            statement="a",
            words="a",
            quick=Setting(x=0.5),
            ranges={"x": (1.0, 0.0)},
            rule=Agreement(),
            control=Control("nothing", lambda e: e),
        )(lambda_named())


def lambda_named():
    def wrong_range(cell, draws):
        return {}

    return wrong_range


def test_settings_at_which_what_was_measured_is_not_finite_are_told(tmp_path):
    def measure(cell, draws):
        return {"predicted": 1.0, "measured": math.nan if cell.x > 0.7 else 1.0, "error": 0.0}

    often_finite = dataclasses.replace(claim("agreement", "true"), function=measure)
    found = search(often_finite, tmp_path, most=60)
    assert found.violation is None and 0 < len(found.failed) < found.settings
    assert set(found.failed.values()) == {"1 value of the evidence is not finite."}
    assert found.nearest.setting.x <= 0.7
    with pytest.raises(InputError, match=r"could be measured at none of .* is not finite"):
        search(often_finite, tmp_path, most=60, over={"x": "0.8:0.9"})


@pytest.mark.parametrize(
    "low, high", [(1e-300, 1e300), (-1.5e308, 1.5e308), (0.1, 2.0), (1.0, 2.0)]
)
def test_ranges_of_any_width_are_searched_throughout(low, high):
    side = Range("x", low, high)
    values = [side.value(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert values == sorted(set(values)) and (values[0], values[-1]) == (low, high)
    assert [side.share(v) for v in values] == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=1e-4)


def test_the_command_that_shows_a_violation_again_names_the_files_of_claims(tmp_path):
    found = search(claim("agreement", "constant"), tmp_path, most=400, seed=20_260)
    said = refute.command("planted/x", found.violation, ["my claims.py"])
    assert said.endswith("--claims 'my claims.py'") and "--seed" in said
