"""Two ways to do one thing, timed in turn. Only their ratio means anything: seconds belong to a
machine and its load."""

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from attlas.lab.store import Store

BUDGET = 12.0
"""Seconds after which a comparison that has been made once is not repeated."""


class Times(NamedTuple):
    """Seconds on the clock, and of all cores."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of this library, seconds of the other way for the same work, and what
    to expect; the ratio of their seconds of CPU, if they were taken, and how often it was made."""

    what: str
    this: float
    against: float
    expected: str
    cpu: float | None = None
    rounds: int = 1

    @property
    def ratio(self) -> float:
        """How many times faster this is, on the clock."""
        return self.against / self.this


def compare(
    what: str,
    this: Callable[[], object],
    against: Callable[[], object],
    *,
    expected: str,
    scale: float = 1.0,
    rounds: int = 5,
) -> Row:
    """Median seconds of `this` and `against`, each of which must return only when its work is done.

    Both run once unseen, to compile; then they alternate, so that a change in the machine's load
    meets both, `rounds` times or until `BUDGET` is spent. `against` may do a part of the work: its
    seconds are multiplied by `scale`, and `what` has to say so.
    """
    this()
    against()
    start = time.perf_counter()
    times: list[tuple[Times, Times]] = []
    while len(times) < rounds and not (times and time.perf_counter() - start > BUDGET):
        times.append((timed(this), timed(against)))
    return row_of(what, times, expected=expected, scale=scale)


def row_of(what: str, times: list[tuple[Times, Times]], *, expected: str, scale: float = 1) -> Row:
    """The row of what was timed, this and the other in turn."""
    (wall, cpu), (their_wall, their_cpu) = (
        (median(t.wall for t in side), median(t.cpu for t in side))
        for side in zip(*times, strict=True)
    )
    ratio = scale * their_cpu / max(cpu, 1e-9)
    return Row(what, wall, scale * their_wall, expected, ratio, len(times))


def timed(work: Callable[[], object]) -> Times:
    """Of this process and of those that it started and that ended meanwhile."""
    wall, cpu = time.perf_counter(), _cpu()
    work()
    return Times(time.perf_counter() - wall, _cpu() - cpu)


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def seconds(work: Callable[[], object]) -> float:
    return timed(work).wall


@contextmanager
def temporary_store() -> Iterator[Store]:
    """A store that is deleted at the end, with JAX's compiled programs kept in it as long as it
    lives."""
    with tempfile.TemporaryDirectory(prefix="attlas-bench-") as folder:
        settings = {
            "jax_compilation_cache_dir": f"{folder}/compiled",
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }
        before = {name: getattr(jax.config, name) for name in settings}
        try:
            _configure(settings)
            yield Store(f"{folder}/store")
        finally:
            _configure(before)


def _configure(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()  # JAX looks at its cache's folder once, at the first program it compiles
