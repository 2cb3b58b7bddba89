r"""How many samples a learner needs (Edelman et al. 2022, Section 5, Figure 2).

A trial with m samples is a support, a training set that no other support explains, and a start; it
is solved if all validation sequences are right at some evaluation. The threshold is where the share
of solved trials, by the likeliest rising curve, whatever its form, is 80 %. Whether a trial is
solved at m depends on nothing but the key, the length, m and its number: which m are looked at may
be decided on the way.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.optimize import isotonic_regression

from attlas.errors import InputError, check_memory, near, whole
from attlas.sparse_variables.rival_learners import MLP, UNIFORM, l1_path, screen_by_covariance
from attlas.sparse_variables.task import SparseBoolean, check_sparsity
from attlas.sparse_variables.training import ADAM, RECIPE_R, Recipe, train
from attlas.sparse_variables.training_sets import TrainingSets, draw_sets

LEVEL = 0.8
"""The share of trials that must be solved."""

CLEARLY = 0.1
"""How far from it a share must be for a size to lie beyond the threshold."""

FIRST, RATIO = 10, 1.2
"""The sizes of training sets that are looked at: ceil(FIRST RATIO^k)."""

REPLICATES = 400
"""Bootstrap samples of the trials."""

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


def sizes(most: int) -> list[int]:
    """Sizes of training sets in steps of a fifth, up to `most`."""
    count = 1 + math.floor(math.log(whole("most", most, FIRST) / FIRST, RATIO) + 1e-9)
    return [math.ceil(FIRST * RATIO**k - 1e-9) for k in range(count)]


@dataclass(frozen=True)
class ThresholdSearch:
    """Which trials are solved at those of `sizes` that were looked at, in rising order."""

    length: int
    samples: tuple[int, ...]
    solved: Bool[np.ndarray, "trial size"]

    @property
    def share(self) -> Float[np.ndarray, " size"]:
        return self.solved.mean(0)

    @property
    def censored(self) -> bool:
        """Whether fewer are solved even with the largest size: the threshold is then a lower
        limit."""
        return bool(self.share[-1] < LEVEL)

    @property
    def log_threshold(self) -> float:
        return float(crossing(self.samples, self.share))

    @property
    def threshold(self) -> float:
        return math.exp(self.log_threshold)

    def replicates(self, seed: int = 0) -> Float[np.ndarray, " replicate"]:
        """`log_threshold` of trials drawn with replacement; a trial keeps its outcomes at all
        sizes."""
        trials = len(self.solved)
        counts = np.random.default_rng([self.length, seed]).multinomial(
            trials, np.full(trials, 1 / trials), REPLICATES
        )
        return crossing(self.samples, counts @ self.solved / trials)

    @property
    def error(self) -> float:
        """Standard error of `log_threshold`, no finer than the sizes are apart."""
        return max(float(self.replicates().std()), math.log(RATIO) / math.sqrt(12))


def crossing(
    samples: Sequence[int], share: Float[np.ndarray, "*n size"]
) -> Float[np.ndarray, "*n"]:
    """Logarithm of the size at which the rising curve that is likeliest for `share` reaches
    `LEVEL`, linear in it between sizes; the first or the last size if it is always or never there.

    No form is asked for: where the share of solved trials levels off below 1, a curve that must
    tend to 1 is drawn away from the crossing by what happens far above it.
    """

    def one(share: Float[np.ndarray, " size"]) -> float:
        rising = isotonic_regression(share).x
        above = int(np.searchsorted(rising, LEVEL - 1e-9))
        beside = slice(max(above - 1, 0), above + 1)
        return float(np.interp(LEVEL, rising[beside], np.log(samples)[beside]))

    return np.asarray(np.apply_along_axis(one, -1, share))


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
    """Trials at the sizes around the threshold.

    From `start`, or a quarter above the statistical floor, with strides that double until `LEVEL`
    is passed, up to a size where clearly more and down to one where clearly fewer are solved; then
    sizes between, until neighbours enclose the threshold. Sizes at which hardly any set singles out
    its support are not tried: there is hardly a training set to be had.

    Arguments:
    - `length`, `function`, `sparsity`: of the task, as in `draw_sets`.
    - `solve`: a learner, or its name in `LEARNERS`.
    - `trials`: at each size. `most`: the largest size.
    - `steps`: of training. `validation`: sequences of each trial.
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
    found: dict[int, np.ndarray] = {}
    options = {"function": function, "sparsity": sparsity, "validation": validation}

    def share(k: int) -> float:
        if k not in found:
            data, weights = jax.random.split(jax.random.fold_in(key, length))
            found[k] = solve(draw_sets(data, length, [grid[k]], trials, **options), weights, steps)
        return float(found[k].mean())

    low = high = min(max(bottom, int(np.searchsorted(grid, start or 1.25 * task.floor()))), top)
    stride = 1
    while share(high) < LEVEL + CLEARLY and high < top:
        high = min(top, high + stride)
        stride = 2 * stride if share(high) < LEVEL else 2
    stride = 1
    while share(low) > LEVEL - CLEARLY and low > bottom:
        low = max(bottom, low - stride)
        stride = 2 * stride if share(low) > LEVEL else 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if share(middle) >= LEVEL else (middle, high)
    order = sorted(found)
    return ThresholdSearch(
        length, tuple(grid[k] for k in order), np.stack([found[k] for k in order], 1)
    )


LAWS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "logarithm": (lambda logs, t: np.log(logs - logs.min() + t), np.geomspace(1e-2, 1e3, 600)),
    "power": (lambda logs, t: t * logs, np.linspace(-0.5, 2.0, 600)),
}
"""ln m of m = b (ln T - ln T_0 + t) and of m = b T^t, but for ln b, with the t that are tried."""


def fit_law(
    law: str,
    lengths: Float[np.ndarray, " length"],
    log_thresholds: Float[np.ndarray, "*n length"],
    errors: Float[np.ndarray, " length"],
) -> tuple[Float[np.ndarray, "*n"], Float[np.ndarray, "*n length"]]:
    r"""The smallest $\sum_T (\ln m_T - \ln m(T))^2/\mathrm{error}_T^2$, minus twice the
    log-likelihood of `law`, and $\ln m(T)$ where it is attained. ln b is the weighted mean of what
    the shape leaves; the shape runs through a grid.

    Arguments:
    - `law`: a name in `LAWS`.
    - `lengths`: T, [length].
    - `log_thresholds`: $\ln m_T$, [*n, length]; each row is fitted by itself.
    - `errors`: standard errors of these, [length], the same for all rows.
    """
    shape, values = LAWS[law]
    weights = errors**-2.0 / (errors**-2.0).sum()
    curves = shape(np.log(lengths), values[:, None])
    left = log_thresholds[..., None, :] - curves
    left = left - (left * weights).sum(-1, keepdims=True)
    misfit = ((left / errors) ** 2).sum(-1)
    best = misfit.argmin(-1)[..., None]
    residual = np.take_along_axis(left, best[..., None], -2)[..., 0, :]
    return np.asarray(np.take_along_axis(misfit, best, -1)[..., 0]), log_thresholds - residual
