"""What the claims of this map share: settings as tasks, random heads, hypotheses, figures."""

from collections.abc import Collection
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims import Hypothesis, Setting
from attlas.figure import Figure
from attlas.gaussian import Estimate, stream
from attlas.single_location.landscape import stability, stable_step
from attlas.single_location.population import ORACLE, Overlaps
from attlas.single_location.task import SingleLocation

ROOT_HALF = 0.5**0.5
SQUARE = {"x": (-1, 1), "y": (-1, 1)}
"""Axes of kappa and nu."""

# A standard error needs a sample that is not small.
SAMPLES = Hypothesis("samples >= 1000", lambda s: s.samples >= 1000, defining=True)

# Where descent is unstable rounding grows to any size, and a path says nothing about a theorem.
STABLE = (
    Hypothesis(
        "step_size is below the flip threshold at the oracle",
        lambda s: s.step_size < stable_step(task_of(s), s.lam),
    ),
    Hypothesis(
        "the oracle attracts at this lam",
        lambda s: float(stability(task_of(s), ORACLE, s.lam)[-1]) < 0,
    ),
)


def one_of(name: str, words: Collection[str]) -> Hypothesis:
    """The parameter `name` must be one of `words`."""
    return Hypothesis(
        f"{name} is one of {', '.join(words)}", lambda s: s[name] in words, defining=True
    )


def paper_task(**changes: Any) -> Setting:
    """The paper's task of ten tokens in 400 dimensions, with further and other parameters."""
    return Setting(**{"dim": 400, "length": 10, "gamma": ROOT_HALF, "noise": 0.0, **changes})


def task_of(cell: Setting, key: Array | None = None) -> SingleLocation:
    """The task of a cell.

    Where it has a `ratio`, each place is that many times as likely as the one before.
    """
    prior = None
    if cell.get("ratio", 1.0) != 1:
        weights = cell.ratio ** np.arange(cell.length)
        prior = tuple(weights / weights.sum())
    return SingleLocation(cell.dim, cell.length, cell.gamma, cell.noise, key, prior)


def step_options(cell: Setting, records: int = 1) -> dict[str, Any]:
    """How `descend` walks in a cell, with so many records of the path beside its start."""
    every = max(1, cell.steps // records)
    return dict(lam=cell.lam, step_size=cell.step_size, steps=cell.steps, record_every=every)


def random_heads(key: Array, points: int, dim: int = 4) -> Float[np.ndarray, "2 points dim"]:
    """Unit vectors k and v, uniform on the sphere; no pair depends on how many there are."""
    pairs = stream(key).standard_normal((points, 2, dim)).swapaxes(0, 1)
    return pairs / np.linalg.norm(pairs, axis=-1, keepdims=True)


def random_overlaps(key: Array, points: int) -> Overlaps:
    """Overlaps of random heads in R^4 with the stars e_1 and e_2.

    They are far from the manifold; in every dimension from 4 on some pair has the same ones.
    """
    k, v = random_heads(key, points)
    return Overlaps(k[:, 0], v[:, 1], v[:, 0], k[:, 1], (k * v).sum(-1))


def capped(sampled: Estimate, predicted: Any, samples: int) -> Estimate:
    r"""A sampled risk whose error is at most three times that of a Gaussian residual.

    That is $\sqrt{2/n}$ of the risk predicted. Without it a broken sampler would be excused by the
    spread of its own sample; the heads of this map have up to 1.7 times it.
    """
    return Estimate(sampled.mean, np.minimum(sampled.error, 3 * np.sqrt(2 / samples) * predicted))


def on_manifold(kappa: Any, nu: Any) -> Overlaps:
    zero = np.zeros_like(kappa)
    return Overlaps(kappa, nu, zero, zero, zero)


def outcomes(path: xr.Dataset, reach: float = 0.9) -> xr.Dataset:
    """Where each run ends: at the oracle, at the swapped point, or at neither."""
    last = path.isel(step=-1, drop=True)
    kappa, nu, eta = (abs(last[name]) for name in ("kappa", "nu", "eta"))
    oracle = (last["kappa"] * last["nu"] > 0) & (kappa > reach) & (nu > reach)
    swapped = (last["theta"] * last["eta"] > 0) & (eta > reach) & (nu < 1 - reach)
    return xr.Dataset({"oracle": oracle, "swapped": swapped, "neither": ~(oracle | swapped)})


def share_error(share: Any, runs: Any) -> Any:
    """Standard error of a share of runs; where it is 0 or 1, of the least that could be seen."""
    return np.sqrt(np.maximum(share * (1 - share), 1 / runs) / runs)


def sequences(
    task: SingleLocation, generator: np.random.Generator, samples: int
) -> tuple[Float[np.ndarray, "n length dim"], Float[np.ndarray, " n"]]:
    """Whole sequences and their targets, from the definition of the task."""
    tokens = generator.standard_normal((samples, task.length, task.dim))
    place = (np.arange(samples), generator.choice(task.length, samples, p=task.location_law))
    tokens[place] = task.m * task.k_star + task.gamma * tokens[place]
    return tokens, tokens[place] @ task.v_star + task.noise * generator.standard_normal(samples)


def stacked(data: xr.Dataset, names: dict[str, str], axis: str) -> xr.DataArray:
    """Some variables along a new axis, with the names that a legend gives them."""
    return data[list(names)].rename(names).to_array(axis)


def against_formula(
    evidence: xr.Dataset,
    along: str,
    title: str = "",
    note: str = "",
    *,
    color: str | None = None,
    error: bool = False,
    size: int = 36,
    **options: Any,
) -> Figure:
    """`predicted` as lines, one in ink or several in colours, and `measured` as points."""
    figure = Figure(evidence, title, note, **options)
    figure.lines(along, "predicted", color=color, theory=None if color else "solid")
    return figure.points(along, "measured", color=color, error=error, size=size)
