from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import xarray as xr

from attlas.claims import Agreement, Claim, Control, Hypothesis, Need, Rate, Setting, load_file
from attlas.claims.map import REGISTRY
from attlas.errors import InputError
from attlas.lab.runner import fresh_seed, in_groups, recall, run


def made(measure, **parts):
    setting = Setting(n=(1, 2, 3), samples=10)
    whole = {
        "id": "test/claim",
        "source": "attlas",
        "kind": "identity",
        "reference": "here",
        "statement": "s.",
        "words": "w.",
        "function": measure,
        "quick": setting,
        "paper": setting,
        "rule": Agreement(),
        "budget": "samples",
        "control": Control("off by one", lambda e: {"predicted": e.predicted + 1}),
        "cells": lambda s: [s.at(n=n) for n in s.n],
        "shape": ("samples",),
        "batch": 2,
    }
    return Claim(**{**whole, **parts})


class Measure:
    """Evidence that agrees, or disagrees where `wrong` says so; remembers what it was asked."""

    def __init__(self, wrong=lambda cell, seed: False, error=0.0):
        self.wrong, self.error, self.calls = wrong, error, []

    def __call__(self, cells, draws):
        self.calls.append(([cell.n for cell in cells], draws.seed, cells[0].samples))
        off = [0.5 * self.wrong(cell, draws.seed) for cell in cells]
        return {"predicted": 1.0, "measured": ("cell", 1 + np.array(off)), "error": self.error}


def test_a_rate_with_an_exponent_needs_no_prediction(store):
    def falling(cells, draws):
        sizes = np.array([float(cell.n) for cell in cells])
        return {"x": ("cell", sizes), "measured": ("cell", 1 / sizes), "exponent": -1, "error": 0}

    steeper = Control("an exponent of -2", lambda e: {"exponent": e.exponent - 1})
    result = run(made(falling, rule=Rate(margin=0.01), control=steeper), store=store)
    assert (result.verdict.word, result.control.word) == ("confirmed", "refuted")


def test_a_true_claim_is_confirmed_in_batches_and_the_second_run_computes_nothing(store):
    measure = Measure()
    first = run(made(measure), seed=5, store=store)
    assert (first.verdict.word, first.control.word, first.cached) == ("confirmed", "refuted", False)
    assert measure.calls == [([1, 2], 5, 10), ([3], 5, 10)]
    assert first.evidence["n"].values.tolist() == [1, 2, 3]
    second = run(made(measure), seed=5, store=store)
    assert second.cached
    assert second.seconds == 0
    assert second.spent == pytest.approx(first.spent)
    assert len(measure.calls) == 2
    xr.testing.assert_identical(first.evidence.drop_attrs(), second.evidence.drop_attrs())


def test_a_resolution_is_found_once_for_a_control(store, monkeypatch):
    found, measure = [], Measure()
    monkeypatch.setattr(Claim, "resolution", lambda self, evidence: found.append(self) or 0.5)
    half = Control("off by a half", lambda e: {"predicted": e.predicted + 0.5})
    for parts in ({}, {}, {"control": half}, {"control": half}):
        assert run(made(measure, **parts), seed=5, store=store).resolution == 0.5
    assert [claim.control.said() for claim in found] == ["off by one", "off by a half"]
    assert run(made(measure, control=half), seed=5, store=store, fresh=True).resolution == 0.5
    assert len(found) == 3


def test_what_is_stored_is_recalled_and_nothing_is_measured(store):
    measure = Measure()
    claim = made(measure, paper=Setting(n=(1, 2, 3), samples=20))
    result = run(claim, store=store)
    recalled = recall(claim, scale="quick", seed=0, store=store)
    assert recalled.verdict == result.verdict and recalled.control == result.control
    assert recall(claim, scale="paper", seed=0, store=store) is None
    assert recall(claim, scale="quick", seed=1, store=store) is None and len(measure.calls) == 2


def test_fresh_another_seed_and_another_setting_compute_again(store):
    measure = Measure()
    for options in ({}, {"fresh": True}, {"seed": 1}, {"settings": {"samples": 20}}):
        assert not run(made(measure), store=store, **options).cached
    assert len(measure.calls) == 8


def test_only_missing_cells_are_computed(store):
    measure = Measure()
    run(made(measure), store=store, settings={"n": (2,)})
    run(made(measure), store=store)
    assert [call[0] for call in measure.calls] == [[2], [1, 3]]


def test_a_refutation_at_first_sight_is_repeated_with_a_fresh_seed_and_four_times_the_budget(store):
    fluke = Measure(wrong=lambda cell, seed: seed == 0, error=0.01)
    result = run(made(fluke), store=store)
    assert result.first.word == "refuted" and result.verdict.word == "confirmed"
    assert fluke.calls[-1][1:] == (fresh_seed(0), 40)
    always = Measure(wrong=lambda cell, seed: True, error=0.01)
    result = run(made(always, id="test/false"), store=store)
    assert result.first.word == result.verdict.word == "refuted"
    assert result.to_dict()["first_sight"]["word"] == "refuted"


def test_a_computed_counterexample_is_not_looked_away_from(store):
    once = Measure(wrong=lambda cell, seed: seed == 0)
    result = run(made(once), store=store)
    assert result.verdict.word == "refuted" and result.first is None and len(once.calls) == 2


def test_evidence_of_cells_with_other_axes_does_not_fit_together(store):
    def longer(cells, draws):
        (cell,) = cells
        values = ("cell", "point"), np.ones((1, cell.n))
        return {"predicted": values, "measured": values, "error": 0.0}

    with pytest.raises(InputError, match="does not fit together"):
        run(made(longer, batch=1), store=store)


def test_a_setting_that_does_not_fit_into_memory_is_bad_input(store):
    def greedy(cells, draws):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with pytest.raises(InputError, match="does not fit into memory"):
        run(made(greedy), store=store)


def test_a_refuted_claim_whose_control_is_not_is_undecided_too(store):
    control = Control("true", lambda e: {"predicted": e.measured})
    result = run(made(Measure(wrong=lambda cell, seed: True), control=control), store=store)
    assert result.verdict.word == "undecided"


def test_a_result_reads_in_one_line(store):
    assert repr(run(made(Measure()), store=store)).startswith("test/claim: confirmed. ")


def test_a_claim_whose_control_is_not_refuted_is_undecided(store):
    toothless = Control("nothing changes", lambda evidence: {})
    result = run(made(Measure(), control=toothless), store=store)
    assert result.verdict.word == "undecided" and "control was not refuted" in result.verdict.reason
    assert result.control.word == "confirmed"


def test_a_control_may_be_another_setting(store):
    measure = Measure(wrong=lambda cell, seed: cell.n == 9)
    result = run(made(measure, control=Control("n is 9", setting={"n": (9,)})), store=store)
    assert (result.verdict.word, result.control.word) == ("confirmed", "refuted")
    assert [call[0] for call in measure.calls] == [[1, 2], [3], [9]]


def test_outside_the_hypotheses_nothing_is_measured(store):
    measure = Measure()
    claim = made(measure, hypotheses=(Hypothesis("n < 3", lambda s: s.n < 3),))
    result = run(claim, store=store)
    assert result.verdict.word == "outside" and result.control is None and measure.calls == []
    with pytest.raises(InputError, match="nothing was measured"):
        result.figure()


def test_an_interruption_keeps_finished_batches(store):
    def interrupted(cells, draws):
        if cells[0].n == 3:
            raise KeyboardInterrupt
        return Measure()(cells, draws)

    with pytest.raises(KeyboardInterrupt):
        run(made(interrupted), store=store)
    measure = Measure()
    assert run(made(measure), store=store).verdict.word == "confirmed"
    assert measure.calls == [([3], 0, 10)]


def test_damaged_blocks_are_computed_again_and_told(store):
    run(made(Measure()), store=store)
    for data in (store.folder / "blocks").rglob("*.nc"):
        data.write_bytes(data.read_bytes()[:100])
    measure = Measure()
    result = run(made(measure), store=store)
    assert result.verdict.word == "confirmed" and len(result.notes) == 2 and len(measure.calls) == 2


@pytest.mark.parametrize("returned", [None, {"x": ("cell", [1.0])}])
def test_evidence_of_the_wrong_form_is_an_input_error(store, returned):
    with pytest.raises(InputError, match=r"axis 'cell'|returns a dict"):
        run(made(lambda cells, draws: returned), store=store)


@pytest.mark.parametrize("seed", [-1, 1.5, 2**31, True])
def test_a_seed_is_a_whole_number(store, seed):
    with pytest.raises(InputError, match="seed = "):
        run(made(Measure()), store=store, seed=seed)


def test_progress_counts_cells(store):
    seen = []
    run(made(Measure()), store=store, progress=lambda *told: seen.append(told))
    assert seen == [("test/claim", 0, 3), ("test/claim", 2, 3), ("test/claim", 3, 3)]


def test_a_pattern_must_name_one_claim(store):
    with pytest.raises(InputError, match="matches"):
        run("single-location", store=store)
    with pytest.raises(InputError, match="Did you mean"):
        run("single-location/zetta", store=store)


def test_provenance_says_what_the_numbers_depend_on(store):
    result = run(made(Measure()), store=store)
    assert {"jax", "numpy", "python", "device", "precision", "seed", "code"} <= set(
        result.provenance
    )
    assert store.recorded("test/claim")["verdict"] == "confirmed"


def test_claims_of_one_measurement_share_its_evidence(store):
    measure = Measure()
    first, second = (
        made(measure, id=id, evidence="test/first") for id in ("test/first", "test/second")
    )
    assert not run(first, store=store).cached
    assert run(second, store=store).cached and len(measure.calls) == 2


def test_claims_of_one_measurement_that_are_tested_at_once_measure_it_once(store):
    measure = Measure()
    claims = [made(measure, id=f"test/{i}", evidence="test/0") for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda claim: run(claim, store=store), claims))
    assert len(measure.calls) == 2 and sum(not result.cached for result in results) == 1


def test_the_rule_reads_what_is_fitted_to_all_cells(store):
    def mean(evidence):
        return {"measured": evidence.measured.mean("cell"), "predicted": 1.0}

    wrong = Measure(wrong=lambda cell, seed: (cell.n - 2) / 0.5)
    assert run(made(wrong), store=store).verdict.word == "refuted"
    fitted = run(made(wrong, read=mean), store=store)
    assert fitted.verdict.word == "confirmed" and "cell" not in fitted.evidence["measured"].dims


def test_claims_that_share_evidence_stay_together_and_long_ones_come_last():
    evidence = {"a": "m/a", "b": "m/b", "c": "m/a", "d": "m/d", "e": "m/b"}
    tasks = [
        (made(Measure(), id=f"m/{slug}", evidence=kept, long=slug in "ace"), None)
        for slug, kept in evidence.items()
    ]
    assert [claim.slug for claim, _ in in_groups(tasks)] == ["d", "b", "e", "a", "c"]


def test_a_claim_whose_need_is_unmet_is_not_run_unless_its_evidence_is_stored(store):
    here = []
    need = Need("the model tiny", lambda cell: bool(here), "attlas fetch tiny")
    measure = Measure()
    claim = made(measure, requires=(need,))
    result = run(claim, store=store)
    reason = "It needs the model tiny (attlas fetch tiny)."
    assert (result.verdict.word, result.verdict.reason, result.control) == ("not run", reason, None)
    assert measure.calls == [] and store.recorded("test/claim")["verdict"] == "not run"
    here.append("model")
    assert run(claim, store=store).verdict.word == "confirmed"
    here.clear()
    assert run(claim, store=store).verdict.word == "confirmed"
    assert run(claim, store=store, fresh=True).verdict.word == "not run"


@pytest.mark.parametrize(
    ("value", "says"), [(np.nan, "are not finite"), (None, "Nothing was measured")]
)
def test_evidence_that_is_empty_or_not_finite_is_not_held_against_the_control(store, value, says):
    def broken(cells, draws):
        values = ("cell", "point"), np.full((len(cells), 0 if value is None else 1), value or 0.0)
        return {"predicted": values, "measured": values, "error": 0.0}

    result = run(made(broken), store=store)
    assert result.verdict.word == "undecided" and says in result.verdict.reason
    assert result.control is None and "control" not in result.verdict.reason


FILE = """
from attlas.claims import Agreement, Control, Hypothesis, Map, Setting

def alter(evidence):
    WHERE == "control" and WRONG
    return {"predicted": evidence.predicted + 1}

def holds(cell):
    return WHERE != "hypothesis" or WRONG

@Map("mine", source="attlas").claim(
    kind="identity", reference="here", statement="s.", words="w.", quick=Setting(n=1),
    rule=Agreement(), control=Control("off", alter), hypotheses=[Hypothesis("it holds", holds)],
)
def one(cell, draws):
    wrong = WRONG if WHERE == "measure" else cell.m if WHERE == "parameter" else 1.0
    return {"predicted": wrong, "measured": 1.0, "error": 0.0}

@one.figure
def figure(evidence):
    return WRONG if WHERE == "figure" else "no chart"
"""


@pytest.fixture
def claim_file(tmp_path):
    """Loads the claim of `FILE`, in which one place divides by 0."""

    def load(where):
        path = tmp_path / "mine.py"
        path.write_text(FILE.replace("WHERE", repr(where)).replace("WRONG", "(1 / 0)"))
        return load_file(path)[0]

    yield load
    REGISTRY.pop("mine/one", None)


DIVISION = "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("where", "line", "part", "error"),
    [
        ("measure", 16, "its measurement", DIVISION),
        ("parameter", 16, "its measurement", "UnknownParameter: this setting has no parameter 'm'"),
        ("control", 5, "its control", DIVISION),
        ("hypothesis", 9, "its hypotheses", DIVISION),
        ("figure", 21, "its figure", DIVISION),
    ],
)
def test_an_exception_in_a_claim_file_names_file_line_and_claim(
    claim_file, store, where, line, part, error
):
    says = f"mine.py, line {line}: claim 'mine/one', {part}: {error}"
    with pytest.raises(InputError, match=says):
        run(claim_file(where), store=store).figure()


def test_a_figure_that_is_no_chart_names_claim_and_function(claim_file, store):
    with pytest.raises(InputError, match=r"'mine/one': its figure figure returned str"):
        run(claim_file("nowhere"), store=store).figure()


def test_a_notebook_shows_verdict_strength_and_figure(store):
    result = run("single-location/zeta", store=store)
    shown = result._repr_html_()
    assert "confirmed" in shown and "(quick scale)" in shown and "<svg" in shown
