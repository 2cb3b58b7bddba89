"""What a check compares at one point of its grid, and the false variants that it must refute.

Claim files that begin as checks use these too. A simulation is asked for `BLOCK` samples at once at
most, so that memory does not grow with the sample.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy import optimize

from attlas.claims.claim import Control
from attlas.claims.evidence import CELL, Values, on
from attlas.claims.setting import Setting
from attlas.draws import Draws
from attlas.errors import InputError
from attlas.gaussian import Estimate

BLOCK = 2**16
SEARCHED = 60
"""Generations of the search for the arguments at which a bound is nearest to being broken."""


# --- false variants -------------------------------------------------------------------------------


def formula_off(size: float = 1.0) -> Control:
    """A formula that is too large, by a share of it or, where it is 0, of 1."""

    def alter(evidence: xr.Dataset, size: float) -> Values:
        predicted = evidence["predicted"]
        return {"predicted": predicted + size * xr.where(predicted == 0, 1.0, abs(predicted))}

    return Control("a formula that is {size:.1%} larger", alter, size=size)


def smaller_bound(size: float = 0.999) -> Control:
    return Control(
        "a bound that is {size:.1%} smaller",
        lambda e, size: {"bound": e.bound - size * abs(e.bound)},
        size=size,
    )


def exponent_off(size: float = 3.0) -> Control:
    return Control(
        "an exponent that is {size:.2g} larger",
        lambda e, size: {"exponent": e.exponent + size},
        size=size,
    )


def smaller_gap(size: float = 2.0) -> Control:
    return Control(
        "a lower side that is raised by {size:.0%} of the gap",
        lambda e, size: {"lower": e.lower + size * (e.upper - e.lower)},
        size=size,
    )


def laws_apart(size: float = 3.0) -> Control:
    return Control(
        "a law that is shifted by {size:.2g} standard deviations",
        lambda e, size: {"sample_b": e.sample_b + size * e.sample_b.std("draw")},
        size=size,
    )


def fewer_arrive(size: float = 1.0) -> Control:
    def alter(evidence: xr.Dataset, size: float) -> Values:
        runs = evidence.sizes["repeat"]
        stays = xr.DataArray(np.arange(runs) >= round(size * runs), dims=["repeat"])
        return {"arrived": (evidence["arrived"].astype(bool) & stays).transpose(CELL, ...)}

    return Control("{size:.0%} of the runs that do not arrive", alter, size=size)


# --- measurements, which claim files use too ------------------------------------------------------


def compare(
    formula: Callable[..., Any], simulate: Callable[..., Any], cell: Setting, draws: Draws
) -> Values:
    """`predicted` by the formula, `measured` by the mean of the simulation, at one cell."""
    given = _parameters(cell)
    stated = _called("the formula", formula, **given)
    pair = isinstance(stated, Estimate)
    predicted = _array("the formula", stated.mean if pair else stated, given)
    mean, error = _mean(simulate, given, draws, cell.samples)
    if predicted.shape != mean.shape:
        raise InputError(
            f"the formula gives the shape {predicted.shape} and the simulation"
            f" {mean.shape} after its axis of samples{_at(given)}: they must be the same"
        )
    if pair:
        error = np.hypot(error, _array("the formula's error", stated.error, given))
    axes = _axes(mean.ndim)
    return {
        **on(axes, predicted=predicted, measured=mean, error=error),
        "repetitions": cell.samples,
    }


def stay_below(
    bound: Callable[..., Any],
    simulate: Callable[..., Any],
    cell: Setting,
    draws: Draws,
    free: Mapping[str, Sequence[float]] | None = None,
) -> Values:
    """`bound` and `measured` at one cell, at the worst of the free arguments that was found."""
    given, free = _parameters(cell), dict(free or {})

    def excess(point: np.ndarray) -> float:
        at = given | dict(zip(free, map(float, point), strict=True))
        block = min(cell.samples, 1000)
        mean = float(_samples(simulate, at, draws, "search", 0, block).mean())
        most = float(_array("the bound", _called("the bound", bound, **at), at))
        return -(mean - most) / max(abs(most), 1e-300)

    found: dict[str, float] = {}
    if free:
        best = optimize.differential_evolution(
            excess,
            list(free.values()),
            maxiter=SEARCHED,
            popsize=8,
            polish=False,
            seed=draws.integer("search"),
        )
        found = dict(zip(free, map(float, best.x), strict=True))
    at = given | found
    mean, error = _mean(simulate, at, draws, cell.samples, exact=True)
    stated = _array("the bound", _called("the bound", bound, **at), at)
    if stated.shape != mean.shape:
        raise InputError(
            f"the bound has the shape {stated.shape} and the simulation {mean.shape} after its axis"
            f" of samples{_at(at)}: they must be the same"
        )
    axes = _axes(mean.ndim)
    return {
        **on(axes, bound=stated, measured=mean, error=error),
        **found,
        "repetitions": max(2, cell.samples),
    }


def scale(
    simulate: Callable[..., Any],
    cell: Setting,
    draws: Draws,
    along: str,
    values: Sequence[Any],
    exponent: float,
) -> Values:
    """What `Rate` reads of the mean of a simulation along one axis, at one cell."""
    given = _parameters(cell)
    pairs = [_mean(simulate, given | {along: v}, draws, cell.samples) for v in values]
    means, errors = (np.array([pair[i] for pair in pairs]) for i in range(2))
    if means.ndim != 1:
        raise InputError(f"the simulation gives {means[0].size} values a sample: a rate is of one")
    return {
        **on(along, x=np.array(values, float), measured=means, error=errors),
        "exponent": exponent,
        along: list(values),
        "repetitions": cell.samples,
    }


def put_in_order(
    lower: Callable[..., Any], upper: Callable[..., Any], cell: Setting, draws: Draws
) -> Values:
    """What `Order` reads of two simulations with the same random numbers, at one cell."""
    given = _parameters(cell)

    def both(block: int, n: int) -> np.ndarray:
        below, above = (
            _samples(side, given, draws, "samples", block, n).astype(float)
            for side in (lower, upper)
        )
        if below.shape != above.shape:
            raise InputError(
                f"the two sides have the shapes {below.shape[1:]} and {above.shape[1:]}"
                f"{_at(given)}: they must be the same"
            )
        return np.stack([below, above, above - below], axis=1)

    mean, error = sampled_mean(both, cell.samples, given)
    axes = _axes(mean.ndim - 1)
    return {**on(axes, lower=mean[0], upper=mean[1], error=error[2]), "repetitions": cell.samples}


def compare_laws(
    first: Callable[..., Any], second: Callable[..., Any], cell: Setting, draws: Draws
) -> Values:
    """Samples of two simulations with independent random numbers, at one cell."""
    given = _parameters(cell)
    a = _samples(first, given, draws, "first", 0, cell.samples)
    b = _samples(second, given, draws, "second", 0, cell.samples)
    if a.shape != b.shape:
        raise InputError(
            f"the two simulations have the shapes {a.shape[1:]} and {b.shape[1:]} after their axis"
            f" of samples{_at(given)}: they must be the same"
        )
    return on(" ".join(["draw", _axes(a.ndim - 1)]), sample_a=a, sample_b=b)


def count_arrivals(runs: Callable[..., Any], cell: Setting, draws: Draws) -> Values:
    """Which runs arrive, at one cell."""
    given = _parameters(cell)
    arrived = _samples(runs, given, draws, "samples", 0, cell.samples)
    if arrived.ndim != 1 or not np.isin(arrived, (0, 1)).all():
        raise InputError(f"the runs give other values than true and false{_at(given)}")
    return on("repeat", arrived=arrived.astype(bool))


# --- sampling -------------------------------------------------------------------------------------


def sampled_mean(
    block_of: Callable[[int, int], np.ndarray],
    samples: int,
    given: Mapping[str, Any],
    exact: bool = False,
) -> Estimate:
    """The mean of samples and its standard error, over blocks.

    Arguments:
        block_of: `block_of(block, n)`, n samples, [n, ...].
        given: the cell, for messages.
        exact: whether the samples may have no spread.
    """
    total, mean, squares = 0, np.zeros(()), np.zeros(())
    for block in range(math.ceil(samples / BLOCK)):
        n = min(BLOCK, samples - block * BLOCK)
        values = block_of(block, n).astype(float)
        here = values.mean(0)
        gap, both = here - mean, total + n
        squares = squares + ((values - here) ** 2).sum(0) + gap**2 * total * n / both
        mean, total = mean + gap * n / both, both
    squares = np.where(squares > total * (1e-13 * mean) ** 2, squares, 0.0)  # more than rounding
    if not exact and not squares.any():
        raise InputError(
            f"the simulation gives one value, {np.ravel(mean)[0]:g}, in all {samples:,}"
            f" samples{_at(given)}: nothing was sampled"
        )
    return Estimate(mean, np.sqrt(squares / max(1, total - 1) / total))


def _mean(
    simulate: Callable[..., Any],
    given: Mapping[str, Any],
    draws: Draws,
    samples: int,
    exact: bool = False,
) -> Estimate:
    block_of = functools.partial(_samples, simulate, given, draws, "samples")
    return sampled_mean(block_of, samples, given, exact)


def _samples(
    simulate: Callable[..., Any],
    given: Mapping[str, Any],
    draws: Draws,
    purpose: str,
    block: int,
    n: int,
) -> np.ndarray:
    """One block of samples, [n, ...], checked."""
    import jax

    first = next(iter(inspect.signature(simulate).parameters), "rng")
    wants_key = first in ("key", "prng_key")
    source = (
        jax.random.fold_in(draws(purpose), block) if wants_key else draws.stream(purpose, block)
    )
    values = _array(
        "the simulation", _called("the simulation", simulate, source, n, **given), given
    )
    if values.ndim == 0 or len(values) != n:
        raise InputError(
            f"the simulation returned the shape {values.shape}{_at(given)}: it was asked for"
            f" n = {n:,} samples, which are the first axis"
        )
    return values


def _called(what: str, function: Callable[..., Any], *first: Any, **given: Any) -> Any:
    """`function(*first, **given)`, if it takes these arguments."""
    try:
        inspect.signature(function).bind(*first, **given)
    except TypeError as error:
        names = ", ".join((*("rng", "n")[: len(first)], *given))
        raise InputError(f"{what} cannot be called with ({names}): {error}") from None
    return function(*first, **given)


def _array(what: str, value: Any, given: Mapping[str, Any]) -> np.ndarray:
    """A number, list, NumPy, JAX or torch array as a NumPy array of finite numbers."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    array = np.asarray(value)
    array = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    if array.dtype.kind not in "buif":
        raise InputError(
            f"{what} gives values of the type {array.dtype}{_at(given)}: they must be real numbers"
        )
    broken = int((~np.isfinite(array)).sum())
    if broken:
        raise InputError(
            f"{what} gives {broken:,} of {array.size:,} values that are not finite{_at(given)}"
        )
    return array


def _parameters(cell: Setting) -> dict[str, Any]:
    return {name: value for name, value in cell.items() if name != "samples"}


def _at(given: Mapping[str, Any]) -> str:
    return f" at {', '.join(f'{k} = {v}' for k, v in given.items())}" if given else ""


def _axes(count: int) -> str:
    return " ".join(f"axis{i}" for i in range(count))
