import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm, t

from attlas import statistics
from attlas.statistics import binomial_limits, log_slope, normal_quantile, student_quantile
from tests.defaults import numbers_by_default

LEVEL = 1e-4
SIZES = np.geomspace(4, 256, 7)


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("comparisons", [1, 7, 10_000])
@pytest.mark.parametrize("level", [0.1, LEVEL, 1e-12])
def test_the_quantile_is_passed_in_any_of_the_comparisons_with_the_level(level, comparisons, sides):
    z = normal_quantile(level, comparisons, sides)
    assert z == pytest.approx(norm.isf(level / (sides * comparisons)))
    passed = -np.expm1(comparisons * np.log1p(-sides * norm.sf(z)))
    # Bonferroni gives away at most half the square of the level.
    assert level - level**2 / 2 <= passed * (1 + 1e-9) and passed <= level * (1 + 1e-9)


@pytest.mark.parametrize("count", [2, 3, 20])
def test_student_has_one_degree_of_freedom_less_than_values(count):
    expected = t.isf(0.01 / (2 * 5), count - 1)
    assert student_quantile(0.01, 5, count=count) == pytest.approx(expected)
    assert student_quantile(0.01, 5, 1, count) == pytest.approx(t.isf(0.01 / 5, count - 1))


def test_few_repetitions_keep_the_level():
    """With 20 repetitions a normal quantile is passed several times as often as the level says."""
    rng = np.random.default_rng(0)
    runs = rng.standard_normal((100_000, 20))
    mean, error = runs.mean(1), runs.std(1, ddof=1) / np.sqrt(20)
    assert np.mean(abs(mean) > student_quantile(0.001, count=20) * error) == pytest.approx(
        0.001, abs=4e-4
    )
    assert np.mean(abs(mean) > student_quantile(0.001) * error) > 0.003
    assert student_quantile(LEVEL, 4, 1) == normal_quantile(LEVEL, 4, 1)


@pytest.mark.parametrize("level", [0.2, 0.025, LEVEL, 1e-9])
@pytest.mark.parametrize("trials", [1, 2, 17, 1000])
def test_binomial_limits_are_those_of_clopper_and_pearson(trials, level):
    successes = np.unique([0, 1, trials // 3, trials - 1, trials])
    lower, upper = binomial_limits(successes, trials, level)
    exact = [
        binomtest(int(k), trials).proportion_ci(1 - 2 * level, method="exact") for k in successes
    ]
    assert lower == pytest.approx([ci.low for ci in exact], rel=1e-6)
    assert upper == pytest.approx([ci.high for ci in exact], rel=1e-6)
    assert (lower[0], upper[-1]) == (0, 1)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.97])
def test_each_binomial_limit_is_wrong_with_probability_at_most_the_level(p):
    k = np.arange(81)
    lower, upper = binomial_limits(k, 80, 0.03)
    chance = binom.pmf(k, 80, p)
    assert chance[lower > p].sum() <= 0.03
    assert chance[upper < p].sum() <= 0.03
    assert (np.diff(lower) > 0).all() and (np.diff(upper) > 0).all()


@settings(derandomize=True, max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.integers(2, 12), series=st.integers(1, 4))
def test_the_slope_is_that_of_least_squares(seed, sizes, series):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(1, 100, size=sizes)) + np.arange(sizes)
    y = np.exp(rng.normal(size=(sizes, series)))
    slope, error = log_slope(x[:, None], y, np.zeros_like(y))
    assert slope == pytest.approx(np.polyfit(np.log(x), np.log(y), 1)[0], abs=1e-9)
    assert not error.any()


def test_the_error_of_the_slope_is_its_spread_over_repetitions():
    rng, repetitions, x = np.random.default_rng(19), 20_000, SIZES[:, None]
    error = np.array([1, 2, 1, 3, 5, 1, 2])[:, None] * 1e-2 * x**-0.5
    slopes, claimed = log_slope(
        x, x**-0.5 + error * rng.normal(size=(SIZES.size, repetitions)), error
    )
    assert slopes.mean() == pytest.approx(-0.5, abs=5e-3)
    assert slopes.std() == pytest.approx(np.median(claimed), rel=0.02)


def test_the_error_of_a_slope_through_two_points_is_that_of_their_ratio():
    slope, error = log_slope(np.array([1.0, np.e]), np.array([2.0, 2.0]), np.array([0.06, 0.08]))
    assert (slope, error) == (0, pytest.approx(0.05))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(statistics) == [
        "normal_quantile comparisons=1 sides=2",
        "student_quantile comparisons=1 sides=2 count=inf",
    ]
