"""What a verdict is worth: the smallest deviation that its budget would have shown, and a grade."""

import functools
import math
from typing import Any

import numpy as np
from scipy import special

from attlas.claims.verdict import Verdict

POWER = 0.95
"""The probability with which a deviation of the size called `detectable` is refuted."""

GRADES = {"fine": 0.01, "fair": 0.1}
"""The largest deviation that may pass unseen, by the grade of a verdict; beyond it is coarse."""
MIN_SIZES = 5
"""An exponent from fewer sizes is coarse evidence."""

MOST = "in half of them "
SEEN = f"{MOST}a deviation of {{}}%s would have been seen"


@functools.cache
def student_reach(quantile: float, count: float = math.inf) -> float:
    """The distance of a mean from a border, in its standard errors, at which its statistic exceeds
    `quantile` with probability `POWER`.

    With a standard error from `count` values the statistic has the noncentral law of Student: the
    distance solves $E\\,\\Phi(\\text{distance} - \\text{quantile}\\,\\chi/\\sqrt{n-1})$ = `POWER`.
    """
    if math.isinf(count):
        return float(quantile + special.ndtri(POWER))
    shares = (np.arange(4000) + 0.5) / 4000
    error = np.sqrt(2 / (count - 1) * special.gammaincinv((count - 1) / 2, shares))
    low, high = 0.0, float(quantile * error[-1] + 10)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        enough = special.ndtr(middle - quantile * error).mean() >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def relative_deviation(shift: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """The deviation of a verdict, and how its strength calls it: relative to predictions, of which
    half have a smaller one, or absolute where all of them are 0."""
    told = predicted != 0
    if told.any():
        return {"deviation": float(np.median(shift[told] / abs(predicted[told])))}
    return {"deviation": float(np.median(shift)), "strength": SEEN % " from 0"}


def described(verdict: Verdict, seen: str, counts: str) -> str:
    """Grade, points and the smallest deviation that would have been seen, in words.

    Arguments:
        seen: what would not have passed, with `{}` for the deviation.
        counts: what the points are.
    """
    if verdict.word != "confirmed" or not math.isfinite(verdict.deviation):
        return ""
    few = counts == "size" and verdict.points < MIN_SIZES
    grades = [word for word, most in GRADES.items() if verdict.deviation <= most and not few]
    seen = (verdict.strength or seen).format(f"{verdict.deviation:.2g}")
    seen = seen.removeprefix(MOST) if verdict.points == 1 else seen
    return f"{(*grades, 'coarse')[0]}: {counted(verdict.points, counts)}; {seen}"


def counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def which(extreme: str, noun: str, n: int) -> str:
    """The one that decided: "The worst of 3 comparisons", or "The comparison"."""
    return f"The {extreme} of {counted(n, noun)}" if n > 1 else f"The {noun}"
