"""What the claims of this map share: settings as tasks, random heads, hypotheses."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from attlas.claims import Hypothesis, Setting
from attlas.gaussian import Estimate, averaged, stream
from attlas.single_location.landscape import stability, stable_step
from attlas.single_location.population import ORACLE, Overlaps, at_points, draw_loss
from attlas.single_location.task import Constants, SingleLocation

ROOT_HALF = 0.5**0.5

# Fewer would not give a standard error that can be taken as known.
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


def paper_task(**changes: Any) -> Setting:
    """The paper's task of ten tokens in 400 dimensions, with further and other parameters."""
    return Setting(**{"dim": 400, "length": 10, "gamma": ROOT_HALF, "noise": 0.0, **changes})


def task_of(cell: Setting, key: Array | None = None) -> SingleLocation:
    """The task of a cell; where it has a `ratio`, each place is that many times as likely as the one before."""
    prior = None
    if cell.get("ratio", 1.0) != 1:
        weights = cell.ratio ** np.arange(cell.length)
        prior = tuple(weights / weights.sum())
    return SingleLocation(cell.dim, cell.length, cell.gamma, cell.noise, key, prior)


def step_options(cell: Setting, records: int = 1) -> dict[str, Any]:
    """How `descend` walks in a cell, with so many records of the path beside its start."""
    every = max(1, cell.steps // records)
    return dict(lam=cell.lam, step_size=cell.step_size, steps=cell.steps, record_every=every)


def constants_of(cells: Sequence[Setting]) -> Constants:
    """The cells' tasks as one, with arrays [cell]."""
    return Constants(
        *(
            np.asarray(column)
            for column in zip(*(task_of(cell).constants for cell in cells), strict=True)
        )
    )


def column(cells: Sequence[Setting], name: str) -> Float[np.ndarray, " cell"]:
    return np.asarray([cell[name] for cell in cells], float)


def random_heads(key: Array, points: int, dim: int = 4) -> Float[np.ndarray, "2 points dim"]:
    """Unit vectors k and v, uniform on the sphere; a point's do not depend on how many there are. In R^4, around the stars
    e_1, e_2, they have overlaps far from the manifold, which some pair has in every dimension from 4 on."""
    pairs = stream(key).standard_normal((points, 2, dim)).swapaxes(0, 1)
    return pairs / np.linalg.norm(pairs, axis=-1, keepdims=True)


def overlaps_of(heads: Float[np.ndarray, "2 points 4"]) -> Overlaps:
    k, v = heads
    return Overlaps(k[:, 0], v[:, 1], v[:, 0], k[:, 1], (k * v).sum(-1))


def sampled_over_cells(
    key: Array,
    samples: int,
    constants: Constants,
    overlaps: Overlaps,
    lam: Float[np.ndarray, " cell"],
) -> Estimate:
    """Mean losses on simulated sequences: [cell], or [cell, point] where the overlaps are arrays."""
    overlaps = Overlaps(*(np.asarray(x, float) for x in overlaps))
    found = [
        averaged(draw_loss, key, samples, Constants(*c), overlaps, np.asarray(sharp))
        for *c, sharp in zip(*constants, lam, strict=True)
    ]
    return Estimate(*(np.stack(x) for x in zip(*found, strict=True)))


def over_cells(
    formula: Callable[..., Any],
    constants: Constants,
    overlaps: Overlaps,
    lam: Float[np.ndarray, " cell"],
) -> Any:
    """`formula(constants, overlaps, lam)` for each cell: [cell], or [cell, point] where the overlaps are arrays."""
    points = [1] * np.ndim(overlaps.kappa)
    tasks = Constants(*(column.reshape(-1, *points) for column in constants))
    return at_points(formula, tasks, overlaps, lam.reshape(-1, *points))


def sequences(
    task: SingleLocation, generator: np.random.Generator, samples: int
) -> tuple[Float[np.ndarray, "n length dim"], Float[np.ndarray, " n"]]:
    """Whole sequences and their targets, from the definition of the task."""
    tokens = generator.standard_normal((samples, task.length, task.dim))
    place = (np.arange(samples), generator.choice(task.length, samples, p=task.location_law))
    tokens[place] = task.m * task.k_star + task.gamma * tokens[place]
    return tokens, tokens[place] @ task.v_star + task.noise * generator.standard_normal(samples)
