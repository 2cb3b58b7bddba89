"""What holds of every rule, and the edges where one could be misled."""

import json
import re
from math import comb

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import kolmogi
from scipy.stats import norm

from attlas import InputError
from attlas.claims.rules import (
    LEVEL,
    POWER,
    Agreement,
    Approximation,
    Bound,
    Convergence,
    Order,
    Rate,
    SameLaw,
)
from attlas.claims.strength import student_reach
from attlas.statistics import student_quantile
from tests.claims.worlds import (
    CLAIMS,
    DEEP,
    INTERVALS,
    MARGIN,
    RAISED,
    SIZES,
    agreeing,
    around_an_exponent,
    arrivals,
    at_least,
    compared,
    count,
    evidence,
    places,
    samples,
)

# Every rule

EVERY = {
    "agreement": (Agreement(), agreeing(np.random.default_rng(16), np.zeros(4))),
    **{
        name: (make(LEVEL), world(DEEP - np.arange(4)))
        for name, (make, world, _) in INTERVALS.items()
    },
    "convergence": (Convergence(0.8), arrivals(400, 395, runs=400)),
    "same law": (SameLaw(), samples(*np.random.default_rng(17).normal(size=(2, 300, 2)))),
}
VIVIDLY_FALSE = {
    "agreement": compared([1.0, 2.0], [1.0, 2.1], 0.01),
    **{name: world(places(8, deep=3)) for name, (_, world, _) in INTERVALS.items()},
    "convergence": arrivals(400, 200, runs=400),
    "same law": samples(*np.random.default_rng(18).normal([[[0, 0]], [[0, 1]]], size=(2, 300, 2))),
}
READ = [(name, variable) for name, (rule, _) in EVERY.items() for variable in rule.reads]
by_every_rule = pytest.mark.parametrize("name", EVERY)
by_every_rule_and_variable = pytest.mark.parametrize(("name", "variable"), READ)


@by_every_rule
def test_at_the_default_level_the_vividly_true_is_confirmed_and_the_vividly_false_refuted(name):
    rule, true = EVERY[name]
    assert rule.level == LEVEL == 1e-4
    assert rule.judge(true).word == "confirmed"
    assert rule.judge(VIVIDLY_FALSE[name]).word == "refuted"


@by_every_rule
def test_nothing_measured_confirms_nothing(name):
    rule, true = EVERY[name]
    empty = true.isel({dim: slice(0, 0) for dim in true.dims})
    assert rule.judge(empty).word == "undecided"
    for dim in true.dims:
        assert rule.judge(true.isel({dim: slice(0, 0)})).word == "undecided"


@by_every_rule_and_variable
def test_what_is_not_finite_confirms_nothing(name, variable):
    rule, true = EVERY[name]
    broken = true.astype(float).copy(deep=True)
    for value in (np.nan, np.inf, -np.inf):
        broken[variable].values.flat[-1] = value
        verdict = rule.judge(broken)
        assert verdict.word == "undecided"
        assert verdict.reason == "1 value of the evidence is not finite."


@by_every_rule_and_variable
def test_evidence_that_lacks_a_variable_is_bad_input_that_names_it(name, variable):
    rule, true = EVERY[name]
    with pytest.raises(InputError, match=rf"lacks {variable}:.*{type(rule).__name__}"):
        rule.judge(true.drop_vars(variable))


@pytest.mark.parametrize(
    "name", [name for name, (rule, _) in EVERY.items() if "error" in rule.reads]
)
def test_a_negative_error_is_bad_input(name):
    rule, true = EVERY[name]
    with pytest.raises(InputError, match="negative error"):
        rule.judge(true.assign(error=true["error"] - true["error"].mean()))


@by_every_rule
@settings(derandomize=True, max_examples=3, deadline=None)
@given(data=st.data())
def test_a_verdict_does_not_depend_on_the_order_of_the_evidence(name, data):
    rule, true = EVERY[name]
    for seen in (true, VIVIDLY_FALSE[name]):
        order = {dim: data.draw(st.permutations(range(size))) for dim, size in seen.sizes.items()}
        before, after = rule.judge(seen), rule.judge(seen.isel(order))
        assert after.word == before.word
        assert after.statistic == pytest.approx(before.statistic)


@by_every_rule
def test_a_verdict_does_not_depend_on_how_the_axes_are_laid_out(name):
    rule, true = EVERY[name]
    assert rule.judge(true.transpose(*reversed(list(true.dims)))) == rule.judge(true)


@pytest.mark.parametrize("name", ["agreement", "approximation", "bound", "order"])
def test_a_verdict_does_not_depend_on_how_many_axes_the_comparisons_have(name):
    rule, true = EVERY[name]
    table = true.assign_coords(row=("cell", [0, 0, 1, 1]), column=("cell", [0, 1, 0, 1]))
    assert rule.judge(table.set_index(cell=["row", "column"]).unstack("cell")) == rule.judge(true)


@pytest.mark.parametrize("name", ["approximation", "order"])
@settings(derandomize=True, max_examples=10, deadline=None)
@given(distances=st.lists(st.floats(-8, 8), min_size=1, max_size=6), power=st.integers(-300, 300))
def test_units_do_not_enter_a_relative_margin_or_an_order(name, distances, power):
    make, world, _ = INTERVALS[name]
    seen = world(np.array(distances))
    scaled = make(LEVEL).judge(seen * 2.0**power)
    assert scaled.word == make(LEVEL).judge(seen).word
    if name == "approximation":
        assert scaled.statistic == make(LEVEL).judge(seen).statistic


@settings(derandomize=True, max_examples=10, deadline=None)
@given(distance=st.floats(-8, 8), of_x=st.floats(1e-6, 1e6), of_y=st.floats(1e-6, 1e6))
def test_units_do_not_enter_an_exponent(distance, of_x, of_y):
    seen = around_an_exponent(np.array([distance]))
    scaled = seen.assign(
        x=seen["x"] * of_x, measured=seen["measured"] * of_y, error=seen["error"] * of_y
    )
    assert Rate(MARGIN).judge(scaled).statistic == pytest.approx(
        Rate(MARGIN).judge(seen).statistic, abs=1e-9
    )


@by_every_rule
def test_a_verdict_is_plain_data_that_json_can_hold(name):
    rule, true = EVERY[name]
    nothing = true.isel({dim: slice(0, 0) for dim in true.dims})
    for seen in (true, VIVIDLY_FALSE[name], nothing):
        verdict = rule.judge(seen)
        plain = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
        assert plain["word"] == verdict.word == str(verdict)
        assert plain["reason"] == verdict.reason
        assert all(plain[key] is not None for key in ("statistic", "threshold")) or seen is nothing


@by_every_rule
def test_a_rule_says_itself_in_a_sentence_with_its_level(name):
    rule, _ = EVERY[name]
    assert str(rule).startswith(type(rule).__name__ + ": ")
    assert "0.0001" in str(rule)


# Quantiles, limits, slopes


@pytest.mark.parametrize("rule", [Agreement(), Approximation(0.1), Order(), Bound()])
def test_evidence_that_rests_on_few_repetitions_decides_less(rule):
    # 4.5 standard errors: enough if they are known, too few for Student's quantile with 19
    # degrees of freedom.
    sure = xr.Dataset(
        {
            "predicted": 1.0,
            "measured": 1.145,
            "bound": 1.0,
            "lower": 1.145,
            "upper": 1.0,
            "error": 0.01,
        }
    )
    if isinstance(rule, Agreement | Order | Bound):
        sure = sure.assign(measured=1.045, lower=1.045)
    assert rule.judge(sure).word == "refuted"
    assert rule.judge(sure.assign(repetitions=20)).word != "refuted"
    # What is detectable grows by the power that few repetitions cost, beside the quantile.
    deviations = [rule.judge(sure.assign(repetitions=n)).detectable for n in (20, 10**6)]
    few, many = (float(re.search(r"[\d.]+", words)[0]) for words in deviations)
    reaches = [
        student_reach(student_quantile(LEVEL, sides=sides, count=n), n)
        for sides in (1 if isinstance(rule, Bound) else 2,)
        for n in (20, 10**6)
    ]
    margin = 0.1 if isinstance(rule, Approximation) else 0.0
    assert (few - margin) / (many - margin) == pytest.approx(reaches[0] / reaches[1], rel=0.2)
    with pytest.raises(InputError, match="two repetitions"):
        rule.judge(sure.assign(repetitions=1))


# Edges: where rounding, few draws, noise or bad values could mislead a rule.


@pytest.mark.parametrize("draws", [1, 2, 4, 8])
def test_samples_that_lie_apart_by_chance_more_often_than_the_level_are_not_told_apart(draws):
    apart = samples(np.arange(draws)[:, None], draws + np.arange(draws)[:, None])
    assert 2 / comb(2 * draws, draws) > LEVEL
    assert SameLaw().judge(apart).word != "refuted"


def test_samples_are_paired_by_the_names_of_their_axes():
    rng = np.random.default_rng(20)
    a, b = rng.normal(np.arange(4.0).reshape(2, 2, 1), size=(2, 2, 2, 300))
    seen = xr.Dataset(
        {"sample_a": (("row", "column", "draw"), a), "sample_b": (("row", "column", "draw"), b)}
    )
    assert SameLaw().judge(seen).word == "confirmed"
    seen["sample_b"] = seen["sample_b"].transpose("column", "row", "draw")
    assert SameLaw().judge(seen).word == "confirmed"


def test_one_sample_is_compared_with_each_of_several():
    one, several = np.random.default_rng(21).normal(size=(2, 300, 3))
    assert SameLaw().judge(samples(one[:, 0], several)).word == "confirmed"


def test_two_laws_at_the_distance_called_detectable_are_told_apart_with_the_stated_power():
    rng, claims, draws = np.random.default_rng(22), CLAIMS, 400
    distance = (kolmogi(RAISED) + norm.ppf(POWER) / 2) * np.sqrt(2 / draws)
    shift = 2 * norm.ppf((1 + distance) / 2)
    words = count(
        SameLaw(level=RAISED),
        (samples(g[0] + shift, g[1]) for g in rng.normal(size=(claims, 2, draws, 1))),
    )
    assert at_least(words["refuted"], claims, POWER)


@pytest.mark.parametrize("relative", [0.05, 0.2])
def test_a_rate_holds_its_level_where_one_size_is_measured_badly(relative):
    x, error = np.array([1.0, 2.0, 4.0]), np.array([0, 0, relative])

    def refuted(g):
        measured = x**MARGIN * (1 + error * np.array([0, 0, g]))
        return (
            Rate(MARGIN)
            .judge(evidence(x=x, measured=measured, error=error * x**MARGIN, predicted=0.0))
            .word
            == "refuted"
        )

    # The true exponent is at the margin and the noise is one normal variable: the chance is
    # the tail beyond `high`.
    low, high = 0.0, 8.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    assert norm.sf(high) <= LEVEL


def test_agreement_without_rounding_sees_every_difference():
    assert Agreement(rounding=0).judge(compared([1.0, 2.0], [1.0, 3.0], 0.0)).word == "refuted"


def test_numbers_far_below_one_are_held_to_their_own_scale():
    assert Agreement().judge(compared([1e-14], [2e-13], [1e-16])).word == "refuted"
    assert Bound().judge(evidence(bound=[1e-14], measured=[5e-13], error=[1e-16])).word == "refuted"


@pytest.mark.parametrize("margin", [0.05, 0.1])
def test_an_exact_deviation_equal_to_the_margin_is_not_refuted(margin):
    assert Approximation(margin).judge(compared([1.0], [1 + margin], [0.0])).word != "refuted"


def test_rounding_puts_nothing_in_order():
    assert Order().judge(evidence(lower=[0.3], upper=[0.1 + 0.2], error=[0.0])).word == "undecided"


def test_the_statistic_of_a_refuted_bound_exceeds_its_threshold():
    verdict = Bound().judge(evidence(bound=[-1.0, 10.0], measured=[0.0, 5.0], error=0.0))
    assert verdict.word == "refuted"
    assert verdict.statistic > verdict.threshold


def test_a_run_arrives_or_does_not():
    with pytest.raises(InputError, match="arrived"):
        Convergence(0.9).judge(evidence("repeat", arrived=np.repeat([0.0, 2.0], 500)))


def test_what_is_not_real_confirms_nothing():
    with pytest.raises(InputError, match="measured"):
        Agreement().judge(compared([1.0], [1 + 5j], [0.0]))


def test_a_bound_says_in_words_how_near_it_is():
    def reason(measured):
        return (
            Bound()
            .judge(xr.Dataset({"bound": 2.0, "measured": ("n", [measured]), "error": 0.0}))
            .reason
        )

    assert "reaches 0.5 of the bound" in reason(1.0) and "reaches 1 of the bound" in reason(2.0)
    assert "is 1.5 times the bound" in reason(3.0) and "of the other sign" in reason(-1.0)


def test_an_order_shows_the_digits_that_tell_its_sides_apart():
    found = Order().judge(
        xr.Dataset({"lower": ("n", [1.000001]), "upper": ("n", [1.000002]), "error": 0.0})
    )
    assert found.predicted == "1.000001 < 1.000002" and found.measured.startswith(
        "difference 1e-06"
    )
    assert found.detectable == "any inversion"


def test_a_rate_has_one_exponent():
    seen = evidence(
        "cell", measured=SIZES, error=1e-3 * SIZES, x=SIZES, exponent=np.ones(SIZES.size)
    )
    assert Rate(MARGIN).judge(seen).word == "confirmed"
    with pytest.raises(InputError, match="exponent varies along 'cell'"):
        Rate(MARGIN).judge(seen.assign(exponent=("cell", SIZES)))


@pytest.mark.parametrize(
    ("rule", "data", "deviation", "strength"),
    (
        (
            Agreement(),
            compared([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], [0.02, 0.02, 0.02]),
            (norm.isf(LEVEL / 6) + norm.ppf(POWER)) * 0.01,
            "fair: 3 comparisons; in half of them a deviation of 0.058 of the prediction",
        ),
        (Agreement(), compared([1.0, 2.0], [1.0, 2.0], [0.0, 0.0]), 1e-12, "fine: 2 comparisons"),
        (
            Agreement(),  # rounding is of max(1, |predicted|); a prediction of 0 has no share
            compared([0.0, 1e-9, 1e-9], [0.0, 1e-9, 1e-9], [0.0, 0.0, 0.0]),
            1e-3,
            "fine: 3 comparisons; in half of them a deviation of 0.001 of the prediction",
        ),
        (
            Agreement(),
            compared([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
            1e-12,
            "fine: 2 comparisons; in half of them a deviation of 1e-12 from 0 would have been seen",
        ),
        (
            Approximation(margin=0.2),
            compared([2.0], [2.1], [0.0]),
            0.2,
            "coarse: 1 comparison; a deviation of 0.2 of the prediction",
        ),
        (
            Approximation(margin=1.0, relative=False),  # as of logarithms, which any unit shifts
            compared([12.0, 14.0], [12.1, 14.1], [0.0, 0.0]),
            1.0,
            "coarse: 2 comparisons; in half of them a deviation of 1 would have been seen",
        ),
        (
            Bound(),
            evidence(bound=[1.0, 2.0], measured=[0.25, 1.9], error=[0.0, 0.0]),
            0.05,
            "fair: 2 comparisons; a bound smaller by 0.05 of it would have been broken",
        ),
        (
            Bound(),
            evidence(bound=[1.0], measured=[-0.5], error=[0.0]),
            1.0,
            "coarse: 1 comparison; no smaller bound would have been broken",
        ),
        (
            Order(),
            evidence(lower=[1.0], upper=[2.0], error=[0.1]),
            (norm.isf(LEVEL / 2) + norm.ppf(POWER)) / 10,
            "coarse: 1 comparison; a gap of 0.55 of the measured one would have been told from 0",
        ),
    ),
)
def test_strength_says_how_small_a_deviation_would_have_been_seen(rule, data, deviation, strength):
    verdict = rule.judge(data)
    assert verdict.deviation == pytest.approx(deviation, rel=1e-3)
    assert verdict.strength.startswith(strength)


@pytest.mark.parametrize(("sizes", "grade"), ((4, "coarse"), (5, "fair")))
def test_an_exponent_from_fewer_than_five_sizes_is_coarse(sizes, grade):
    x = 2.0 ** np.arange(sizes)
    found = Rate(margin=0.05).judge(evidence(x=x, measured=1 / x, error=0 * x, exponent=-1.0))
    assert found.word == "confirmed" and found.points == sizes
    assert found.strength == (
        f"{grade}: {sizes} sizes; an exponent off by 0.05 would have been seen"
    )


def test_what_is_not_confirmed_has_no_strength():
    refuted = Bound().judge(evidence(bound=[1.0], measured=[2.0], error=[0.0]))
    assert refuted.word == "refuted" and refuted.strength == ""


def test_runs_that_could_refute_nothing_have_no_strength():
    few = Convergence(share=0.5).judge(evidence(("cell", "repeat"), arrived=[[True] * 5]))
    assert few.strength == "" and np.isnan(few.deviation)
    many = Convergence(share=0.5).judge(evidence(("cell", "repeat"), arrived=[[True] * 2000]))
    assert many.strength.startswith("fair: 2,000 runs; a share of runs that is 0.0")
