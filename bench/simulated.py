"""How good the estimators are on the papers' own tasks, over fresh draws: `python -m
bench.simulated [SEED]` prints it.

A draw has its own task, training examples and test examples. The same figures are bounds in
`tests/estimators/test_bags.py` and `test_sparse.py`, on seeds of their own, in the long tests.
"""

import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from attlas.estimators import SingleLocationRegressor, SparseAttentionClassifier
from attlas.single_location import SingleLocation
from attlas.sparse_variables import SparseBoolean

NOISE = 0.1
TESTED = 5000


class Located(NamedTuple):
    """Of one draw: risk less noise of the estimator and of the best linear predictor, and the share
    of bags whose instance it finds."""

    excess: float
    linear: float
    found: float


def located(dim: int, samples: int, seed: int) -> Located:
    """The single-location task with ten instances, gamma² = 1/2 and noise 0.1; the linear predictor
    is the population's best."""
    task = SingleLocation(dim=dim, noise=NOISE, key=jax.random.key(seed))
    seen, new = (
        task.sample(jax.random.fold_in(jax.random.key(seed), i), n)
        for i, n in ((1, samples), (2, TESTED))
    )
    model = SingleLocationRegressor(random_state=seed).fit(
        np.asarray(seen.tokens), np.asarray(seen.target)
    )
    tokens = np.asarray(new.tokens)
    excess = np.mean((model.predict(tokens) - np.asarray(new.target)) ** 2) - NOISE**2
    found = np.mean(model.predict_location(tokens) == np.asarray(new.location))
    return Located(float(excess), task.linear_risk() - NOISE**2, float(found))


def recovered(length: int, samples: int, seed: int) -> bool:
    """Whether the support of an AND of three bits, drawn anew, is found exactly; bits are 1 with
    the probability at which labels are even."""
    places = np.random.default_rng(seed).choice(length, 3, replace=False)
    task = SparseBoolean(length, tuple(int(i) for i in np.sort(places)))
    seen = task.sample(jax.random.key(seed), samples)
    model = SparseAttentionClassifier(random_state=seed).fit(
        np.asarray(seen.bits), np.asarray(seen.label)
    )
    return model.support_.tolist() == np.sort(places).tolist()


def mean_located(dim: int, samples: int, seeds: Iterable[int]) -> Located:
    return Located(*np.mean([located(dim, samples, seed) for seed in seeds], 0).tolist())


def main(seed: int = 0) -> None:
    for dim in (20, 80):
        start = time.perf_counter()
        seen = np.array([located(dim, 1000, seed + i) for i in range(20)])
        mean, error = seen.mean(0), seen.std(0, ddof=1) / 20**0.5
        print(
            f"bags of dimension {dim}, 1,000 of them: excess risk {mean[0]:.4f} ± {error[0]:.4f},"
            f" {mean[1] / mean[0]:.0f} times below the best linear predictor;"
            f" instance found in {mean[2]:.1%} (20 draws from {seed},"
            f" {time.perf_counter() - start:.0f} s)",
            flush=True,
        )
    start = time.perf_counter()
    found = [recovered(300, 70, seed + i) for i in range(50)]
    print(
        f"AND of 3 of 300 bits, 70 examples: support found in {np.mean(found):.0%} (50 draws from"
        f" {seed}, {time.perf_counter() - start:.0f} s)"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
