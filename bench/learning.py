"""Benchmarks of training attention on sequences with a latent: each returns one `Row`."""

from collections.abc import Callable

import jax
import numpy as np

from attlas.latent_posterior import FiniteLatent
from attlas.latent_posterior.trained_attention import topics, train_heads
from bench.timing import Row, compare

RUNS, SOME, STEPS, LENGTH = 256, 8, 300, 5


def heads_together() -> Row:
    alone = [_trained(1, seed) for seed in range(SOME)]
    return compare(
        f"the ledger of {RUNS} training runs of two heads on topics, {STEPS} steps, L = {LENGTH},"
        f" in one program, against one run at a time ({SOME}, scaled)",
        _trained(RUNS),
        lambda: [one() for one in alone],
        expected="10 or more",
        scale=RUNS / SOME,
        rounds=3,
    )


def _trained(repeats: int, seed: int = 0) -> Callable[[], object]:
    words = np.random.default_rng(0).dirichlet(np.ones(3), 3)
    population = topics(
        FiniteLatent(np.full(3, 1 / 3), words, np.array([[-1.0], [0.0], [1.0]])), LENGTH, 0.3
    )
    drawn = population.sample(jax.random.key(seed), 200, repeats)
    return lambda: train_heads(population, drawn, jax.random.key(seed + 1), steps=STEPS)


BENCHMARKS: tuple[Callable[[], Row], ...] = (heads_together,)
