import numpy as np
import pytest
from scipy.stats import norm

from attlas.claims.rules import LEVEL
from attlas.claims.strength import POWER, student_reach, which
from attlas.statistics import student_quantile


@pytest.mark.parametrize(("count", "level"), [(2, 0.05), (4, LEVEL), (24, LEVEL), (200, LEVEL)])
def test_a_mean_of_few_values_at_its_reach_is_told_with_the_stated_power(count, level):
    rng, claims = np.random.default_rng(1), 100_000
    z = student_quantile(level, count=count)
    values = rng.normal(student_reach(z, count) / np.sqrt(count), size=(claims, count))
    statistic = values.mean(1) * np.sqrt(count) / values.std(1, ddof=1)
    assert (statistic > z).mean() == pytest.approx(POWER, abs=0.003)
    # By the power of the normal law it would have been told less often than stated.
    short = values + (z + norm.ppf(POWER) - student_reach(z, count)) / np.sqrt(count)
    told = short.mean(1) * np.sqrt(count) / short.std(1, ddof=1) > z
    assert count == 200 or told.mean() < 0.93


def test_with_many_values_the_reach_is_that_of_the_normal_law():
    assert student_reach(4.0) == 4 + norm.ppf(POWER)
    assert student_reach(4.0, 10**6) == pytest.approx(4 + norm.ppf(POWER), abs=1e-3)


def test_one_of_one_is_not_called_the_worst():
    assert which("worst", "comparison", 1) == "The comparison"
    assert which("worst", "comparison", 2) == "The worst of 2 comparisons"
