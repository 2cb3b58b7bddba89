"""Benchmarks of the descent and of the function zeta inside it: each returns one `Row`."""

from collections.abc import Callable
from statistics import median

import jax
import numpy as np
import xarray as xr

from attlas.gaussian import float64, zeta
from attlas.schedules import InverseDecay
from attlas.single_location.descent import descend, descend_vectors, manifold_start, sphere_start
from attlas.single_location.population import Overlaps, heads_with
from attlas.single_location.task import SingleLocation
from bench import plain
from bench.online import figure_4_run
from bench.timing import Row, compare, timed

DIM, REPEATS, STEPS = 400, 30, 20_000
LAM, STEP_SIZE = 0.1, 4e-3
LOOP_STEPS = 30
POINTS, QUADRATURES = 10_000, 100


def against_vectors() -> Row:
    task, start = _start(DIM)
    k, v = heads_with(start, DIM)
    return compare(
        f"{REPEATS} descents of {STEPS:,} steps at d = {DIM} on five overlaps, against the same on"
        f" vectors (vectorised)",
        _descent(DIM),
        lambda: descend_vectors(task, k, v, lam=LAM, step_size=STEP_SIZE, steps=STEPS),
        expected="15 or more",
    )


def across_dimensions() -> Row:
    small, large = 100, 10**6
    return compare(
        f"{REPEATS} descents of {STEPS:,} steps on five overlaps at d = {small}, against d ="
        f" {large:,}",
        _descent(small),
        _descent(large),
        expected="about 1: flat in d",
    )


def against_plain_loop() -> Row:
    task, start = _start(DIM)
    k, v = (np.asarray(x[0]) for x in heads_with(start, DIM))
    return compare(
        f"{REPEATS} descents of {STEPS:,} steps at d = {DIM} on five overlaps, against a NumPy"
        f" loop with quadrature "
        f"(1 descent of {LOOP_STEPS} steps, scaled)",
        _descent(DIM),
        lambda: plain.plain_descent(task, k, v, lam=LAM, step_size=STEP_SIZE, steps=LOOP_STEPS),
        expected="500 or more",
        scale=REPEATS * STEPS / LOOP_STEPS,
    )


POPULATION_RUNS = (  # the paper's: start, lam, step size, steps
    (manifold_start, 0.1, 4e-3, 20_000),
    (sphere_start, 0.1, 4e-3, 20_000),
    (sphere_start, 0.9, 1e-3, 120_000),
    (sphere_start, InverseDecay(1.0, 1e-4), 4e-3, 120_000),
)


def four_population_runs() -> Row:
    task, some = SingleLocation(DIM), 500
    total = sum(steps for *_, steps in POPULATION_RUNS)
    k, v = heads_with(sphere_start(task, jax.random.key(0), REPEATS), DIM)

    return compare(
        f"the four population runs of the paper, {REPEATS} repeats each, {total:,} steps in all,"
        f" against the same on "
        f"vectors ({some} steps, scaled)",
        _population_runs,
        lambda: descend_vectors(task, k, v, lam=LAM, step_size=STEP_SIZE, steps=some),
        expected="15 or more; about a second",
        scale=total / some,
        rounds=3,
    )


def _population_runs() -> None:
    task = SingleLocation(DIM)
    for start, lam, step_size, steps in POPULATION_RUNS:
        heads = start(task, jax.random.key(0), REPEATS)
        descend(task, heads, lam=lam, step_size=step_size, steps=steps, record_every=200)


def ensemble() -> Row:
    task, repeats, steps, some = SingleLocation(DIM), 512, 20_000, 20
    start = sphere_start(task, jax.random.key(1), repeats)
    k, v = heads_with(start, DIM)
    schedule = InverseDecay(1.0, 1e-4)
    return compare(
        f"{repeats:,} starts of the {steps:,}-step scheduled run on five overlaps, against vectors"
        f" ({some} steps, scaled)",
        lambda: descend(
            task, start, lam=schedule, step_size=STEP_SIZE, steps=steps, record_every=steps
        ),
        lambda: descend_vectors(task, k, v, lam=LAM, step_size=STEP_SIZE, steps=some),
        expected="15 or more",
        scale=steps / some,
        rounds=1,
    )


AUTHORS = 3679.0
"""CPU seconds of the authors' `main.py`, run once on the machine that the first table is of."""


def whole_first_paper() -> Row:
    """All runs of the authors' `main.py`, with compiled programs at hand; its seconds are kept."""

    def runs() -> None:
        _population_runs()
        figure_4_run()

    runs()
    taken = [timed(runs).cpu for _ in range(3)]
    return Row(
        f"the four population runs and Figure 4 of the paper in seconds of CPU, against the"
        f" authors' main.py ({AUTHORS:,.0f}, measured once)",
        median(taken),
        AUTHORS,
        "1,000",
        AUTHORS / median(taken),
        len(taken),
    )


def zeta_against_quadrature() -> Row:
    rng = np.random.default_rng(0)
    t, spread = rng.uniform(-4, 4, POINTS), rng.uniform(0.01, 2, POINTS)
    few = list(zip(t[:QUADRATURES].tolist(), spread[:QUADRATURES].tolist(), strict=True))
    return compare(
        f"zeta at {POINTS:,} points in closed form, against adaptive quadrature ({QUADRATURES}"
        f" points, scaled)",
        lambda: jax.block_until_ready(float64(zeta)(t, spread)),
        lambda: [plain.zeta(*point) for point in few],
        expected="hundreds",
        scale=POINTS / QUADRATURES,
        rounds=21,  # each takes milliseconds
    )


BENCHMARKS: tuple[Callable[[], Row], ...] = (
    against_vectors,
    across_dimensions,
    against_plain_loop,
    four_population_runs,
    ensemble,
    whole_first_paper,
    zeta_against_quadrature,
)


def _start(dim: int) -> tuple[SingleLocation, Overlaps]:
    task = SingleLocation(dim)
    return task, manifold_start(task, jax.random.key(0), REPEATS)


def _descent(dim: int) -> Callable[[], xr.Dataset]:
    task, start = _start(dim)
    return lambda: descend(task, start, lam=LAM, step_size=STEP_SIZE, steps=STEPS)
