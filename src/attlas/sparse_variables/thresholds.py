r"""How many samples a learner needs (Edelman et al. 2022, Section 5, Figure 2).

A trial with m samples is a support, a training set that no other support explains, and a start; it
is solved if all validation sequences are right at some evaluation. The threshold is where the share
of solved trials is 80 %.

Each trial is trained with one m: trials of different m are then independent, and all that lie near
the threshold tell where it is, whereas the same trials at another m would hardly tell more. Blocks
of trials go, one after the other, to sizes around the threshold as it is known by then, and the
share is fitted there by a logistic curve in ln m.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from attlas.errors import InputError, check_memory, near, whole
from attlas.progress import watched
from attlas.sparse_variables.rival_learners import MLP, UNIFORM, l1_path, screen_by_covariance
from attlas.sparse_variables.task import SparseBoolean, check_sparsity
from attlas.sparse_variables.training import ADAM, RECIPE_R, Recipe, train
from attlas.sparse_variables.training_sets import TrainingSets, draw_sets
from attlas.surface import public

LEVEL = 0.8
"""The share of trials that must be solved."""

FIRST, RATIO = 10, 1.2
"""The sizes of training sets that are looked at: ceil(FIRST RATIO^k)."""

BLOCK = 8
"""Trials between two looks at where the threshold is."""

AROUND = 3
"""Sizes on either side of the threshold that blocks go to. With fewer, sizes that had bad luck are
not seen again, and the share seems to rise faster than it does."""

FURTHER = 2
"""Sizes beyond those that were looked at that a block may go to."""

SLOPES = (1.0, 40.0)
"""Slopes of the logit of the share in ln m that a fit may have."""

SEARCH_SLOPE = 2.0
"""That with which blocks find the threshold: a slope fitted to the first few would mislead."""

SEARCHED = 1.2
"""By what errors are enlarged where sizes were chosen on the way: in simulated searches thresholds
spread by so much more than fits tell, because shares seem to rise too fast."""

Learner = Callable[[TrainingSets, Array, int], Bool[np.ndarray, " trial"]]
"""From training sets of one size, a key and a number of steps to the trials that are solved."""


def trained_by(recipe: Recipe, accuracy: float = 1.0) -> Learner:
    """Trials are solved if they reach `accuracy` on validation at some evaluation and are finite
    until then."""

    def solve(sets: TrainingSets, key: Array, steps: int) -> Bool[np.ndarray, " trial"]:
        ends = train(sets, recipe, key=key, steps=steps, enough=accuracy).isel(samples=0)
        return ((ends["best_accuracy"] >= accuracy) & (ends["status"] != "diverged")).values

    return solve


LEARNERS: dict[str, Learner] = {
    "attention": trained_by(RECIPE_R),
    "plain Adam": trained_by(ADAM),
    "uniform attention": trained_by(UNIFORM),
    "MLP": trained_by(MLP),
    "L1 logistic": lambda sets, key, steps: l1_path(sets) == 1,
    "screening": lambda sets, key, steps: screen_by_covariance(sets),
}
"""What solves trials, by name: heads trained in several ways, and what they are compared with."""


def sizes(most: int) -> list[int]:
    """Sizes of training sets in steps of a fifth, up to `most`."""
    count = 1 + math.floor(math.log(whole("most", most, FIRST) / FIRST, RATIO) + 1e-9)
    return [math.ceil(FIRST * RATIO**k - 1e-9) for k in range(count)]


@dataclass(frozen=True)
class ThresholdSearch:
    """How many trials were made at those of `sizes` that were looked at, in rising order, and how
    many of them were solved.

    Arguments:
        length: of the sequences. `samples`: the sizes. `trials`, `solved`: counts at each [size].
        most: the largest size that was allowed.
    """

    length: int
    samples: tuple[int, ...]
    trials: Int[np.ndarray, " size"]
    solved: Int[np.ndarray, " size"]
    most: int

    @property
    def share(self) -> Float[np.ndarray, " size"]:
        """Of solved trials, at each size."""
        return self.solved / self.trials

    @property
    def censored(self) -> bool:
        """Whether the threshold lies beyond the largest size, which is then a lower limit."""
        return self._fitted[0] > math.log(self.most)

    @property
    def log_threshold(self) -> float:
        """Logarithm of the size at which four of five trials are solved."""
        return min(self._fitted[0], math.log(self.most))

    @property
    def threshold(self) -> float:
        """The size at which four of five trials are solved."""
        return math.exp(self.log_threshold)

    @property
    def error(self) -> float:
        """Standard error of `log_threshold`."""
        return self._fitted[1]

    @property
    def _fitted(self) -> tuple[float, float]:
        place, covariance = fit_thresholds(
            np.log([self.samples]), self.trials[None], self.solved[None]
        )
        return float(place[0]), SEARCHED * math.sqrt(covariance[0, 0])


def fit_thresholds(
    log_samples: Float[np.ndarray, "length size"],
    trials: Num[np.ndarray, "length size"],
    solved: Num[np.ndarray, "length size"],
    slope: float | None = None,
) -> tuple[Float[np.ndarray, " length"], Float[np.ndarray, "length length"]]:
    r"""Where the share of solved trials is `LEVEL`, with the covariance, at several lengths T whose
    curves have one slope: $\mathrm{logit}\,p = \mathrm{logit}(0.8) + b\,(\ln m - \ln m_T)$.

    Likelihood with the penalty of Firth (1993), half the logarithm of the determinant of Fisher's
    information, with which a fit is finite where all trials below a size fail and all above
    succeed. One slope for all lengths makes the errors dependable with few trials at each: they
    rest on all trials together. Sizes without trials do not count. A `slope` that is given is not
    fitted.
    """
    lengths = len(log_samples)
    level = math.log(LEVEL / (1 - LEVEL))
    middle = (trials * log_samples).sum(1) / trials.sum(1)
    seen = trials.ravel() > 0
    away = (log_samples - middle[:, None]).ravel()[seen]
    n, k = trials.ravel()[seen], solved.ravel()[seen]
    design = np.repeat(np.eye(lengths), log_samples.shape[1], 0)[seen]
    free = slope is None
    weights = np.full(lengths + free, level)
    if free:
        design = np.concatenate([design, away[:, None]], 1)
    fixed = 0.0 if slope is None else slope * away
    for _ in range(200):
        share = 1 / (1 + np.exp(-(fixed + design @ weights)))
        information = n * share * (1 - share)
        covariance = np.linalg.inv((design.T * information) @ design + 1e-9 * np.eye(len(weights)))
        leverage = information * ((design @ covariance) * design).sum(1)
        move = covariance @ (design.T @ (k - n * share + leverage * (0.5 - share)))
        weights = weights + move / max(1.0, abs(move).max())
        if free:
            weights[-1] = np.clip(weights[-1], *SLOPES)
        if abs(move).max() < 1e-8:
            break
    rises = weights[-1] if slope is None else slope
    shift = (level - weights[:lengths]) / rises
    gradient = -np.concatenate([np.eye(lengths), shift[:, None]], 1)[:, : len(weights)] / rises
    return middle + shift, gradient @ covariance @ gradient.T


@public
def find_threshold(
    key: Array,
    length: int,
    solve: Learner | str = "attention",
    *,
    trials: int = 40,
    most: int = 2000,
    start: int | None = None,
    steps: int = 500,
    function: Any = "and",
    sparsity: int = 3,
    validation: int = 10_000,
) -> ThresholdSearch:
    """Trials at the sizes around the threshold, `BLOCK` at a time.

    The first block has `start` samples, or 1.5 times the statistical floor. Each further one goes
    to a size near the threshold as the earlier blocks estimate it, to the one with the fewest
    trials, and at most `FURTHER` sizes beyond those tried. Sizes at which a random set singles out
    its support with probability 0.02 or less are not tried.

    Arguments:
    - `length`, `function`, `sparsity`: of the task, as in `draw_sets`.
    - `solve`: a learner, or its name in `LEARNERS`.
    - `trials`: at all sizes together, rounded up to blocks. `most`: the largest size.
    - `steps`: of training. `validation`: sequences of each trial.
    - `key`: of JAX.

    >>> import jax
    >>> from attlas.sparse_variables import LEARNERS, find_threshold
    >>> list(LEARNERS)
    ['attention', 'plain Adam', 'uniform attention', 'MLP', 'L1 logistic', 'screening']
    >>> found = find_threshold(jax.random.key(0), 12, "screening", trials=16, most=200)
    >>> print(found.length, found.trials.sum() >= 16, found.threshold > 0)
    12 True True
    """
    if isinstance(solve, str):
        if solve not in LEARNERS:
            raise InputError(
                f"learner = {solve!r}: there is none of that name.{near(solve, LEARNERS)} There"
                f" are: {', '.join(LEARNERS)}."
            )
        solve = LEARNERS[solve]
    whole("trials", trials, 1)
    check_sparsity(sparsity, length)
    check_memory(f"length = {length}: {trials} training sets", length * trials)
    grid = sizes(most)
    task = SparseBoolean(length, tuple(range(sparsity)), function)
    bottom = next(
        (k for k, m in enumerate(grid) if task.unique_probability(m) > 0.02), len(grid) - 1
    )
    top = len(grid) - 1
    options = {"function": function, "sparsity": sparsity, "validation": validation}
    logs, counts = np.log(grid), np.zeros((2, len(grid)), int)  # trials, and those solved
    at = int(np.searchsorted(grid, start or 1.5 * task.floor()))
    for block in watched(range(math.ceil(trials / BLOCK)), f"blocks of {BLOCK} trials"):
        at = min(max(at, bottom), top)
        data, weights = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, length), block))
        sets = draw_sets(data, length, [grid[at]], BLOCK, **options)
        counts[:, at] += BLOCK, solve(sets, weights, steps).sum()
        seen = np.flatnonzero(counts[0])
        (threshold,), _ = fit_thresholds(logs[None], counts[:1], counts[1:], SEARCH_SLOPE)
        least, largest = max(bottom, seen[0] - FURTHER), min(top, seen[-1] + FURTHER)
        above = min(max(int(np.searchsorted(logs, threshold)), least), largest)
        around = range(max(least, above - AROUND), min(largest + 1, above + AROUND))
        at = min(around, key=lambda k: (counts[0, k], abs(logs[k] - threshold)))
    tried, right = counts[:, seen]
    return ThresholdSearch(length, tuple(grid[k] for k in seen), tried, right, grid[-1])
