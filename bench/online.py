"""Benchmarks of online descent: each returns one `Row`."""

from collections.abc import Callable

import jax

from attlas.schedules import InverseDecay
from attlas.single_location.descent import sphere_start
from attlas.single_location.online import descend_online, descend_online_vectors
from attlas.single_location.population import heads_with
from attlas.single_location.task import SingleLocation
from bench.timing import Row, compare

REPEATS, BATCH, STEPS = 30, 5, 200_000
SCHEDULE = InverseDecay(2.0, 1e-4)


def figure_4() -> Row:
    task, some = SingleLocation(80, noise=0.1), 200
    k, v = heads_with(sphere_start(task, jax.random.key(0), REPEATS), task.dim)
    return compare(
        f"Figure 4 of the paper: {REPEATS} online descents of {STEPS:,} steps at d = 80 on five"
        f" overlaps, against vectors "
        f"(vectorised; {some} steps, scaled)",
        figure_4_run,
        lambda: descend_online_vectors(
            task,
            k,
            v,
            batch_size=BATCH,
            lam=SCHEDULE,
            step_size=1e-3,
            steps=some,
            record_every=some,
        ),
        expected="10 or more; 3.5 seconds",
        scale=STEPS / some,
        rounds=3,
    )


def figure_4_run() -> None:
    _run(80, STEPS)()


def online_across_dimensions() -> Row:
    steps, small, large = 10_000, 80, 10**6
    return compare(
        f"{REPEATS} online descents of {steps:,} steps on five overlaps at d = {small}, against d"
        f" = {large:,}",
        _run(small, steps),
        _run(large, steps),
        expected="about 1: flat in d",
    )


def _run(dim: int, steps: int) -> Callable[[], object]:
    task = SingleLocation(dim, noise=0.1)
    start = sphere_start(task, jax.random.key(0), REPEATS)
    return lambda: descend_online(
        task, start, batch_size=BATCH, lam=SCHEDULE, step_size=1e-3, steps=steps, record_every=500
    )


BENCHMARKS: tuple[Callable[[], Row], ...] = (figure_4, online_across_dimensions)
