"""Two ways to do one thing, timed in turn. Only their ratio means anything: seconds belong to a
machine and its load."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from attlas.lab.store import Store


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of this library, seconds of the other way for the same work, and what
    to expect."""

    what: str
    this: float
    against: float
    expected: str

    @property
    def ratio(self) -> float:
        """How many times faster this is."""
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
    meets both. `against` may do a part of the work: its seconds are multiplied by `scale`, and
    `what` has to say so.
    """
    this()
    against()
    times = [(seconds(this), seconds(against)) for _ in range(rounds)]
    mine, theirs = map(median, zip(*times, strict=True))
    return Row(what, mine, scale * theirs, expected)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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
