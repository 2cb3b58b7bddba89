"""Quantiles and limits that decisions rest on: normal, Student, binomial, and slopes of
logarithms."""

import math
from typing import Any

import numpy as np
from scipy import special


def normal_quantile(level: float, comparisons: int = 1, sides: int = 2) -> float:
    """The z beyond which a standard normal falls with probability `level` in any of `comparisons`
    draws (Bonferroni)."""
    return float(-special.ndtri(level / (sides * comparisons)))


def student_quantile(
    level: float, comparisons: int = 1, sides: int = 2, count: float = math.inf
) -> float:
    """`normal_quantile` for a mean in units of its estimated standard error: that of Student's law.

    Arguments:
        level: the probability to be beyond it in any of the comparisons.
        comparisons: how many are made at once (Bonferroni).
        sides: 2 if both tails count, 1 for one.
        count: normal values that mean and error are made of; infinite gives the normal quantile.
    """
    if math.isinf(count):
        return normal_quantile(level, comparisons, sides)
    return float(-special.stdtrit(count - 1, level / (sides * comparisons)))


def binomial_limits(successes: Any, trials: Any, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Clopper-Pearson limits of a probability; each is wrong with probability at most `level`."""
    k, n = np.asarray(successes, float), np.asarray(trials, float)
    with np.errstate(invalid="ignore"):
        lower = np.where(k > 0, special.betaincinv(k, n - k + 1, level), 0.0)
        upper = np.where(k < n, special.betaincinv(k + 1, n - k, 1 - level), 1.0)
    return lower, upper


def log_slope(x: np.ndarray, y: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares slope of log y against log x along the first axis, and its standard error from
    those of y."""
    lx = np.log(x)
    weights = (lx - lx.mean(0)) / ((lx - lx.mean(0)) ** 2).sum(0)
    return (weights * np.log(y)).sum(0), np.sqrt(((weights * error / y) ** 2).sum(0))
