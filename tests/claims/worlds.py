"""Evidence whose truth is known, for the rules.

For the rules with an interval a *world* makes evidence at a stated place: `distance` standard
errors beyond the border between true and false, one entry a comparison, so that 0 is the least
favourable true case and the least favourable false one. Shares are held against their level by an
exact binomial tail.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binomtest, norm

from attlas.claims.rules import (
    Approximation,
    Bound,
    Order,
    Rate,
    Rule,
)

RAISED = 0.1
"""A level at which a hundred claims or two show whether it holds."""
CLAIMS = 100
"""How many: a verdict costs two or three milliseconds."""
COMPARISONS = 6
DEEP = -15.0
"""A distance, in standard errors, at which a statement is true beyond doubt."""
SIZES = np.geomspace(4, 256, 7)
MARGIN = 0.1
RUNS = 40
"""Runs of a cell."""

World = Callable[..., xr.Dataset]


def evidence(dims: str | tuple[str, ...] = "cell", **values: object) -> xr.Dataset:
    """A Dataset in which a variable with m axes has the first m of `dims`."""
    dims = (dims,) if isinstance(dims, str) else dims
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return xr.Dataset({name: (dims[: array.ndim], array) for name, array in arrays.items()})


def compared(predicted, measured, error) -> xr.Dataset:
    return evidence(predicted=predicted, measured=measured, error=error)


def count(rule: Rule, claims: Iterable[xr.Dataset]) -> Counter[str]:
    return Counter(rule.judge(claim).word for claim in claims)


def at_most(hits: int, trials: int, share: float) -> bool:
    return binomtest(hits, trials, share, alternative="greater").pvalue > 1e-4


def at_least(hits: int, trials: int, share: float) -> bool:
    return binomtest(hits, trials, share, alternative="less").pvalue > 1e-4


def noise(rng: np.random.Generator | None, *shape: int) -> np.ndarray:
    return np.zeros(shape) if rng is None else rng.normal(size=shape)


def signs(n: int) -> np.ndarray:
    return (-1.0) ** np.arange(n)


def around_a_prediction(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n = distance.size
    predicted = -signs(n) * 10.0 ** (np.arange(n) % 7 - 3)
    error = np.abs(predicted) * MARGIN / (40 + np.arange(n))
    away = signs(n // 2 + 1).repeat(2)[:n] * (
        MARGIN * np.abs(predicted) + error * (distance + noise(rng, n))
    )
    return compared(predicted, predicted + away, error)


def around_a_bound(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n = distance.size
    bound = 10.0 ** (np.arange(n) % 7 - 3)
    error = bound / (20 + np.arange(n))
    return evidence(bound=bound, measured=bound + error * (distance + noise(rng, n)), error=error)


def around_a_tie(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n = distance.size
    lower = signs(n) * 10.0 ** (np.arange(n) % 7 - 3)
    error = np.abs(lower) / (20 + np.arange(n))
    return evidence(lower=lower, upper=lower - error * (distance + noise(rng, n)), error=error)


def around_an_exponent(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n, relative, x = distance.size, 0.003, SIZES[:, None]
    slope_error = relative / np.sqrt(((np.log(x) - np.log(x).mean()) ** 2).sum())
    predicted = -0.5 * np.arange(n)
    true = x ** (predicted + signs(n) * (MARGIN + slope_error * distance))
    measured = true * (1 + relative * noise(rng, SIZES.size, n))
    both = ("cell", "series")
    values = {"measured": (both, measured), "error": (both, relative * true)}
    return xr.Dataset({"x": ("cell", SIZES), "predicted": ("series", predicted), **values})


# Rule at a level, its world, and the tails that its quantile is shared over.
INTERVALS: dict[str, tuple[Callable[[float], Rule], World, int]] = {
    "approximation": (lambda level: Approximation(MARGIN, level=level), around_a_prediction, 2),
    "bound": (lambda level: Bound(level=level), around_a_bound, 1),
    "order": (lambda level: Order(level=level), around_a_tie, 2),
    "rate": (lambda level: Rate(MARGIN, level=level), around_an_exponent, 2),
}
with_an_interval = pytest.mark.parametrize(
    ("make", "world", "sides"), INTERVALS.values(), ids=INTERVALS
)


def quantile(level: float, comparisons: int, sides: int) -> float:
    return float(norm.isf(level / (sides * comparisons)))


def places(*distances: float, deep: int = 0) -> np.ndarray:
    return np.array([*distances, *[DEEP] * deep])


def agreeing(rng: np.random.Generator, shift: np.ndarray) -> xr.Dataset:
    """Predictions of several magnitudes and measurements `shift` standard errors away, and normal
    errors."""
    n = shift.size
    predicted = signs(n) * 10.0 ** (np.arange(n) % 7 - 3)
    error = np.abs(predicted) / (10 + np.arange(n))
    return compared(predicted, predicted + error * (shift + rng.normal(size=n)), error)


def arrivals(*arrived: int, runs: int = RUNS) -> xr.Dataset:
    """Cells in which so many of the runs arrive."""
    return evidence(("repeat", "cell"), arrived=np.arange(runs)[:, None] < np.array(arrived))


def samples(a: np.ndarray, b: np.ndarray) -> xr.Dataset:
    return evidence(("draw", "statistic"), sample_a=a, sample_b=b)
