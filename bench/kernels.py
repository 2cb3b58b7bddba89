"""Benchmarks of CME attention on long contexts: each returns one `Row`."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from attlas.kernels import CME, RBF, fit_cme
from bench.timing import Row, compare, seconds

TEMPERATURE, RIDGE, QUERIES = 0.1, 0.09, 500
EXACT = 4_000


def context(length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Uniform keys on the sphere in three dimensions, noisy values of a smooth function of them, and queries."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(length + QUERIES, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    keys = points[:length]
    values = keys[:, :1] + keys[:, 1:2] * keys[:, 2:] + RIDGE**0.5 * rng.normal(size=(length, 1))
    return keys, values, points[length:]


def against_kernel_ridge() -> Row:
    from sklearn.kernel_ridge import KernelRidge

    keys, values, queries = context(EXACT)
    peer = KernelRidge(alpha=RIDGE, kernel="rbf", gamma=1 / (2 * TEMPERATURE))
    return compare(
        f"exact CME attention of {EXACT:,} tokens at {QUERIES} queries, against scikit-learn's KernelRidge",
        lambda: _fit(keys, values, "exact").mean(queries),
        lambda: peer.fit(keys, values).predict(queries),
        expected="1 or more",
    )


def hundred_thousand() -> Row:
    return _alone(10**5, "under 10 s")


def million() -> Row:
    return _alone(10**6, "under a minute and 2 GB")


def growth() -> Row:
    short, long = (context(length) for length in (30_000, 300_000))
    return compare(
        "approximate CME attention of 30,000 tokens, against 300,000: the exponent of its time is the ratio's logarithm to base 10",
        lambda: _fit(*short[:2]),
        lambda: _fit(*long[:2]),
        expected="about 10: linear in the length",
        rounds=1,
    )


def _fit(keys: np.ndarray, values: np.ndarray, method: str = "auto") -> CME:
    return fit_cme(keys, values, ridge=RIDGE, kernel=RBF(TEMPERATURE), method=method)


def _alone(length: int, expected: str) -> Row:
    """A process of its own, whose peak memory is that of this one fit; compiling counts."""
    told = subprocess.run(
        [sys.executable, "-m", "bench.kernels", str(length)], capture_output=True, text=True, check=True
    )
    run = json.loads(told.stdout)
    keys, values, _ = context(EXACT)
    exact = seconds(lambda: _fit(keys, values, "exact")) * (length / EXACT) ** 3
    what = (
        f"CME attention of {length:,} tokens, {run['said']}; peak memory {run['gigabytes']:.2f} GB; against the exact one"
        f" ({EXACT:,} tokens, scaled by the cube)"
    )
    return Row(what, run["seconds"], exact, f"thousands; {expected}")


def main(length: int) -> None:
    keys, values, queries = context(length)
    said = []
    taken = seconds(lambda: said.append(_told(_fit(keys, values), queries)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": taken, "said": said[0], "gigabytes": peak}))


def _told(fit: CME, queries: np.ndarray) -> str:
    fit.mean(queries)
    return str(fit)


BENCHMARKS: tuple[Callable[[], Row], ...] = (against_kernel_ridge, hundred_thousand, million, growth)

if __name__ == "__main__":
    main(int(sys.argv[1]))
