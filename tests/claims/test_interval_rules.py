"""The rules that read an interval: approximation, bound, order, rate."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from attlas.claims.rules import (
    LEVEL,
    POWER,
    Approximation,
    Bound,
    Order,
    Rate,
)
from tests.claims.worlds import (
    CLAIMS,
    COMPARISONS,
    MARGIN,
    RAISED,
    SIZES,
    at_least,
    at_most,
    compared,
    count,
    evidence,
    places,
    quantile,
    with_an_interval,
)

# Intervals: Approximation, Bound, Order, Rate


@with_an_interval
def test_a_true_statement_at_its_border_is_refuted_no_more_often_than_the_joint_level(
    make, world, sides
):
    rng, claims = np.random.default_rng(1), CLAIMS
    words = count(make(RAISED), (world(np.zeros(COMPARISONS), rng) for _ in range(claims)))
    assert at_most(words["refuted"], claims, RAISED)
    # What is left of the level where both tails are paid for and one is used; less would be
    # power thrown away.
    assert at_least(words["refuted"], claims, 0.9 * RAISED / sides)
    assert at_least(words["undecided"], claims, 1 - RAISED)


@with_an_interval
def test_a_false_statement_at_its_border_is_confirmed_no_more_often_than_the_level(
    make, world, sides
):
    rng, claims = np.random.default_rng(2), CLAIMS // 2
    words = count(make(RAISED), (world(places(1e-6), rng) for _ in range(claims)))
    assert at_most(words["confirmed"], claims, RAISED)


@with_an_interval
def test_one_deviation_of_the_detectable_size_is_refuted_with_the_stated_power(make, world, sides):
    rng, claims = np.random.default_rng(4), CLAIMS // 2
    detectable = quantile(RAISED, COMPARISONS, sides) + norm.ppf(POWER)
    distance = places(detectable, deep=COMPARISONS - 1)
    words = count(make(RAISED), (world(rng.permutation(distance), rng) for _ in range(claims)))
    assert at_least(words["refuted"], claims, POWER)


@with_an_interval
def test_a_statement_true_beyond_doubt_is_confirmed(make, world, sides):
    rng = np.random.default_rng(5)
    assert count(make(LEVEL), (world(places(deep=COMPARISONS), rng) for _ in range(15))) == {
        "confirmed": 15
    }


@with_an_interval
@pytest.mark.parametrize("level", [0.5, RAISED, LEVEL])
@settings(derandomize=True, max_examples=6, deadline=None)
@given(distances=st.lists(st.floats(-8, 8), min_size=1, max_size=9))
def test_the_word_is_decided_by_the_distance_from_the_border_in_standard_errors(
    make, world, sides, level, distances
):
    z = quantile(level, len(distances), sides)
    # The border itself belongs to rounding.
    distance = np.array([d + 1e-6 * (abs(abs(d) - z) < 1e-6) for d in distances])
    expected = (
        "refuted" if (distance > z).any() else "confirmed" if (distance < -z).all() else "undecided"
    )
    assert make(level).judge(world(distance)).word == expected


@with_an_interval
@settings(derandomize=True, max_examples=8, deadline=None)
@given(distances=st.lists(st.floats(-8, 8), min_size=1, max_size=6), shrink=st.floats(0, 1))
def test_a_decision_stays_as_the_error_shrinks(make, world, sides, distances, shrink):
    before = world(np.array(distances))
    after = before.assign(error=before["error"] * shrink)
    word = make(LEVEL).judge(before).word
    assert word in ("undecided", make(LEVEL).judge(after).word)


@with_an_interval
def test_repeating_one_comparison_takes_nothing_from_the_level_and_costs_power(make, world, sides):
    one, many = quantile(RAISED, 1, sides), quantile(RAISED, COMPARISONS, sides)
    between = (one + many) / 2
    assert make(RAISED).judge(world(places(between))).word == "refuted"
    assert make(RAISED).judge(world(np.full(COMPARISONS, between))).word == "undecided"


def test_a_refutation_shows_the_comparison_that_refutes_not_a_vaguer_one_further_off():
    verdict = Approximation(MARGIN).judge(compared([1.0, 1.0], [9.0, 1.5], [5.0, 0.01]))
    assert (verdict.word, verdict.statistic) == ("refuted", 0.5)
    verdict = Order().judge(evidence(lower=[9.0, 1.5], upper=[1.0, 1.0], error=[5.0, 0.01]))
    assert (verdict.word, verdict.statistic) == ("refuted", -0.5)
    measured = SIZES[:, None] ** [3, 1]
    seen = evidence(("cell", "series"), x=SIZES, measured=measured, error=measured * [0.02, 1e-4])
    verdict = Rate(2.99).judge(seen.assign(predicted=("series", [0.0, -1.995])))
    assert (verdict.word, verdict.statistic) == ("refuted", pytest.approx(2.995))


def test_a_rate_without_a_margin_is_never_confirmed_and_attains_its_level():
    rng, claims, relative = np.random.default_rng(6), CLAIMS // 2, 0.01
    rule = Rate(0.0, level=RAISED)
    power_law = SIZES**-1.5
    words = count(
        rule,
        (
            evidence(
                x=SIZES,
                measured=power_law * (1 + relative * rng.normal(size=SIZES.size)),
                error=relative * power_law,
                predicted=-1.5,
            )
            for _ in range(claims)
        ),
    )
    assert words["confirmed"] == 0
    # Without a margin both tails are used, and the level is attained.
    assert at_most(words["refuted"], claims, RAISED)
    assert at_least(words["refuted"], claims, 0.9 * RAISED)


# Exact evidence


def test_a_bound_that_is_attained_exactly_is_confirmed_and_one_exceeded_is_refuted():
    bound = np.array([1e-6, 1.0, 3e5])
    assert Bound().judge(evidence(bound=bound, measured=bound, error=0.0)).word == "confirmed"
    verdict = Bound().judge(evidence(bound=bound, measured=bound / 4, error=0.0))
    assert (verdict.word, verdict.statistic) == ("confirmed", 0.25)
    assert (
        Bound()
        .judge(evidence(bound=bound, measured=bound * np.array([1, 1 + 1e-9, 1]), error=0.0))
        .word
        == "refuted"
    )


def test_exact_quantities_are_in_order_only_where_they_differ():
    def word(lower, upper):
        return Order().judge(evidence(lower=lower, upper=upper, error=0.0)).word

    assert word([1.0, 2.0], [1.0, 2.0]) == "undecided"
    assert word([1.0, 2.0], [1.0, 3.0]) == "undecided"
    assert word([1.0, 2.0], [1.5, 3.0]) == "confirmed"
    assert word([1.0, 2.0], [0.5, 3.0]) == "refuted"


@pytest.mark.parametrize(("relative", "word"), [(True, "confirmed"), (False, "refuted")])
def test_a_margin_is_relative_to_the_prediction_or_absolute(relative, word):
    assert (
        Approximation(0.05, relative=relative).judge(compared([10.0], [10.4], [0.0])).word == word
    )


def test_a_margin_relative_to_zero_decides_nothing():
    assert (
        Approximation(0.05).judge(compared([0.0, 1.0], [0.0, 1.0], [0.0, 0.0])).word == "undecided"
    )
    assert (
        Approximation(0.05, relative=False).judge(compared([0.0, 1.0], [0.04, 1.0], 0.0)).word
        == "confirmed"
    )


@pytest.mark.parametrize(
    ("exponent", "word"), [(-1.5, "confirmed"), (-1.59, "confirmed"), (-1.61, "refuted")]
)
def test_the_exponent_of_exact_values_is_decided_without_an_interval(exponent, word):
    verdict = Rate(MARGIN).judge(
        evidence(x=SIZES, measured=7 * SIZES**exponent, error=0.0, predicted=-1.5)
    )
    assert verdict.word == word
    assert verdict.statistic == pytest.approx(abs(exponent + 1.5), abs=1e-12)


# Rate


def test_a_finite_size_prediction_confirms_where_the_exponent_alone_is_refuted():
    finite = (1 + 3 / SIZES) / SIZES
    rng = np.random.default_rng(15)
    measured = finite * (1 + 1e-3 * rng.normal(size=SIZES.size))
    seen = evidence(x=SIZES, measured=measured, error=1e-3 * finite)
    assert Rate(0.02).judge(seen.assign(predicted=-1.0)).word == "refuted"
    assert Rate(0.02).judge(seen.assign(predicted=("cell", finite))).word == "confirmed"
    assert Rate(0.02).judge(seen.assign(predicted=("cell", finite * SIZES**0.05))).word == "refuted"


def test_a_finite_size_prediction_holds_whatever_its_constant():
    finite = (1 + 3 / SIZES) / SIZES
    seen = evidence(x=SIZES, measured=finite, error=1e-4 * finite, predicted=17 * finite)
    assert Rate(0.02).judge(seen).word == "confirmed"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("size", "word"), [(8, "confirmed"), (2, "confirmed"), (1, "undecided")])
def test_a_rate_needs_two_sizes(size, word):
    x = 2.0 ** np.arange(size)
    assert Rate(MARGIN).judge(evidence(x=x, measured=x, error=0 * x, predicted=1.0)).word == word


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "value"), [("measured", 0.03), ("measured", -1.0), ("x", 0.0), ("predicted", 0.0)]
)
def test_what_is_not_positive_beyond_its_error_has_no_exponent(name, value):
    values = {"x": SIZES, "measured": SIZES, "predicted": SIZES**3}
    assert Rate(MARGIN).judge(evidence(**values, error=0.01)).word == "refuted"
    values[name] = np.array([value, *values[name][1:]])
    assert Rate(MARGIN).judge(evidence(**values, error=0.01)).word == "undecided"


def test_a_rate_runs_along_the_axis_it_names():
    measured = np.stack([SIZES, SIZES**2])
    seen = evidence(("kind", "length"), measured=measured, error=1e-3 * measured)
    seen = seen.assign(x=("length", SIZES), predicted=("kind", [1.0, 2.0]))
    assert Rate(MARGIN, along="length").judge(seen).word == "confirmed"
    assert (
        Rate(MARGIN, along="length").judge(seen.assign(predicted=("kind", [1.0, 1.0]))).word
        == "refuted"
    )
    assert Rate(MARGIN).judge(seen).word == "undecided"
    with_axis = seen.drop_vars("predicted").assign(
        exponent=(("length", "kind"), np.tile([1.0, 2.0], (SIZES.size, 1)))
    )
    assert Rate(MARGIN, along="length").judge(with_axis).word == "confirmed"
    assert Rate(MARGIN, along="length").judge(with_axis * 1.2).word == "refuted"
    seen["x"] = seen["x"] * xr.DataArray([1.0, 3.0], dims="kind").rename("x")
    assert Rate(MARGIN, along="length").judge(seen.transpose("kind", "length")).word == "confirmed"
