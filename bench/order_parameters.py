"""Benchmarks of descent on overlaps of any head: each returns one `Row`."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import numpy as np

from attlas.order_parameters import (
    Heads,
    Overlaps,
    Places,
    Problem,
    ValueSum,
    descend,
    descend_online,
    descend_online_vectors,
)
from attlas.single_location.descent import sphere_start
from attlas.single_location.online import descend_online as descend_five
from attlas.single_location.task import SingleLocation
from bench.timing import Row, compare

REPEATS, BATCH, STEPS = 30, 5, 20_000
TWO = Problem(Places(10, [4.0, 4.0]), ValueSum(), Heads())


def _vectors(repeats: int, dim: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((repeats, dim, 4)) / np.sqrt(dim)


def _online(dim: int, steps: int = STEPS) -> Callable[[], object]:
    start = Overlaps.of(_vectors(REPEATS, min(dim, 1000)), np.eye(min(dim, 1000))[:, :4])
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "step_size": 1e-3,
        "steps": steps,
        "record_every": steps,
    }
    return lambda: descend_online(TWO, start, dim=dim, points=0, **options)


def online_beside_the_special_case() -> Row:
    task = SingleLocation(100_000, noise=0.1)
    start = sphere_start(task, jax.random.key(0), REPEATS)
    return compare(
        f"{REPEATS} online descents of {STEPS:,} steps at d = 100,000: two softmax heads on two"
        " places by overlaps, against one erf head by the special case",
        _online(100_000),
        lambda: descend_five(
            task, start, batch_size=BATCH, lam=1.0, step_size=1e-3, steps=STEPS, record_every=STEPS
        ),
        expected="0.1 or more",
        rounds=1,
    )


def heads_across_dimensions() -> Row:
    return compare(
        f"{REPEATS} online descents of {STEPS:,} steps of two softmax heads by overlaps at"
        " d = 100, against d = 100,000",
        _online(100),
        _online(100_000),
        expected="about 1: flat in d",
        rounds=1,
    )


def online_beside_vectors() -> Row:
    some, few, dim = 20, 2, 10_000
    vectors, directions = _vectors(few, dim), np.eye(dim)[:, :4]
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "step_size": 1e-3,
        "steps": some,
        "record_every": some,
    }
    return compare(
        f"{REPEATS} online descents of {STEPS:,} steps of two softmax heads at d = {dim:,} by"
        f" overlaps, against vectors ({few} runs of {some} steps, scaled)",
        _online(dim),
        lambda: descend_online_vectors(TWO, vectors, directions, **options),
        expected="50 or more",
        scale=REPEATS / few * STEPS / some,
        rounds=1,
    )


def population_step() -> Row:
    start = Overlaps.of(_vectors(1, 1000), np.eye(1000)[:, :4])
    steps = 200

    def run(steps: int) -> float:
        begin = time.process_time()
        descend(TWO, start, steps=steps, step_size=1e-2, record_every=steps, points=10_000)
        return time.process_time() - begin

    run(1), run(steps)
    each = median((run(1 + steps) - run(1)) / steps for _ in range(5))
    return Row(
        "a step of population descent of two softmax heads on 10,112 quasi-random sequences, in"
        " seconds of one core, against a millisecond",
        each,
        1e-3,
        "about 1",
    )


BENCHMARKS: tuple[Callable[[], Row], ...] = (
    online_beside_the_special_case,
    heads_across_dimensions,
    online_beside_vectors,
    population_step,
)
