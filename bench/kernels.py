"""Benchmarks of CME attention on long contexts: each returns one `Row`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import scipy.linalg
from threadpoolctl import threadpool_limits

from attlas.figure import HEIGHT, WIDTH, finish_chart
from attlas.kernels import CME, RBF, fit_cme
from bench.timing import Row, Times, compare, row_of, timed

TEMPERATURE, RIDGE, QUERIES = 0.1, 0.09, 500
EXACT = 4_000
LADDERS = {
    "exact": (1_000, 2_000, 4_000, 8_000),
    "nystrom": (10_000, 100_000, 1_000_000),
    "conjugate": (2_000, 4_000, 8_000, 16_000),
}
FIGURE = Path("build/bench/cme.svg")
ALONE = " (one BLAS thread each)"
"""More of them, on a busy machine, wait in a loop for those that do not run."""
LENGTHY = 20.0
"""Seconds of which compiling is a small part."""


def context(length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Uniform keys on the sphere in three dimensions, noisy values of a smooth function of them,
    and queries."""
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
    with threadpool_limits(1, "blas"):
        return compare(
            f"exact CME attention of {EXACT:,} tokens at {QUERIES} queries, against scikit-learn's"
            f" KernelRidge{ALONE}",
            lambda: _fit(keys, values, "exact").mean(queries),
            lambda: peer.fit(keys, values).predict(queries),
            expected="1.25 or more",
        )


def against_bare_cholesky() -> Row:
    keys, values, _ = context(EXACT)
    with threadpool_limits(1, "blas"):
        return compare(
            f"exact CME attention of {EXACT:,} tokens, its error estimated, against the Gram matrix"
            f" and its Cholesky factor in one buffer{ALONE}",
            lambda: _fit(keys, values, "exact"),
            lambda: _bare(keys),
            expected="0.87 or more",
        )


def _bare(keys: np.ndarray) -> np.ndarray:
    squares = np.sum(keys**2, 1)
    gram = keys @ keys.T
    gram *= 2
    gram -= squares
    gram -= squares[:, None]
    gram /= 2 * TEMPERATURE
    np.exp(gram, out=gram)
    gram[np.diag_indices(len(keys))] += RIDGE
    return scipy.linalg.cho_factor(gram.T, lower=True, overwrite_a=True, check_finite=False)[0]


PEERS = {10**5: 400, 10**6: 420}
"""Random centres with which scikit-learn's error is that of ours; they were searched for."""


def hundred_thousand() -> Row:
    return _beside_nystroem(10**5)


def million() -> Row:
    return _beside_nystroem(10**6)


def cme_growth() -> Row:
    """Draws time and memory against the length to `FIGURE`."""
    found = pd.DataFrame(
        [
            {"method": m, "length": n, **_told(n, m)}
            for m, lengths in LADDERS.items()
            for n in lengths
        ]
    )
    exponents = {m: _exponent(found[found["method"] == m]) for m in LADDERS}
    found["way"] = [f"{m}: L^{exponents[m]:.1f}" for m in found["method"]]
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    drawn(found).save(FIGURE)
    long = found[found["method"] == "nystrom"]
    return Row(
        f"CME attention, {', '.join(found['way'].unique())} in the longest half of each"
        f" ({FIGURE}); here {long['length'].iloc[0]:,} tokens by Nystrom's"
        f" method against {long['length'].iloc[-1]:,}",
        long["seconds"].iloc[0],
        long["seconds"].iloc[-1],
        "exponents of at most 3, 1 and 2",
    )


def _exponent(found: pd.DataFrame) -> float:
    """Of the longer half: in short contexts overheads count."""
    late = np.log(found[["length", "seconds"]].iloc[len(found) // 2 - 1 :])
    return float(np.polyfit(late["length"], late["seconds"], 1)[0])


def drawn(found: pd.DataFrame) -> alt.HConcatChart:
    x = alt.X(
        "length:Q",
        title="tokens L",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~s", tickCount=4),
    )
    panels = [
        alt.Chart(found, width=WIDTH // 2, height=HEIGHT)
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=40))
        .encode(
            x=x,
            y=alt.Y(
                f"{what}:Q",
                title=title,
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format="~g", tickCount=5),
            ),
            color=alt.Color("way:N", title=None, sort=None),
        )
        for what, title in (
            ("seconds", "seconds, second fit"),
            ("gigabytes", "peak memory (GB), interpreter included"),
        )
    ]
    return finish_chart(
        alt.hconcat(*panels),
        "CME attention on long contexts",
        "beside each method the exponent of its time",
    )


def _fit(keys: np.ndarray, values: np.ndarray, method: str = "auto") -> CME:
    return fit_cme(keys, values, ridge=RIDGE, kernel=RBF(TEMPERATURE), method=method)


def _beside_nystroem(length: int) -> Row:
    """In processes of their own, in turn, the second fit of each; the error is that at queries."""
    told = [
        (_told(length, "nystrom"), _told(length, "scikit-learn")) for _ in range(ROUNDS[length])
    ]
    this, other = told[0]
    times = [(Times(a["seconds"], a["cpu"]), Times(b["seconds"], b["cpu"])) for a, b in told]
    what = (
        f"CME attention of {length:,} tokens, {this['said']}, peak memory {this['gigabytes']:.2f}"
        f" GB, against scikit-learn's Nystroem and Ridge with {PEERS[length]} centres, error"
        f" {other['error']:.1e} at the queries where this has {this['error']:.1e}, peak memory"
        f" {other['gigabytes']:.2f} GB{ALONE}"
    )
    return row_of(what, times, expected="2 or more")


ROUNDS = {10**5: 3, 10**6: 1}


def _told(length: int, method: str) -> dict[str, Any]:
    """By a process of its own, whose peak memory is that of these fits."""
    command = [sys.executable, "-m", "bench.kernels", str(length), method]
    one = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=one)
    return json.loads(done.stdout)


def _by_nystroem(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge

    features = Nystroem(
        gamma=1 / (2 * TEMPERATURE), n_components=PEERS[len(keys)], random_state=0
    ).fit(keys)
    ridge = Ridge(RIDGE, fit_intercept=False, solver="cholesky")
    ridge.fit(features.transform(keys), values)
    return ridge.predict(features.transform(queries)).reshape(len(queries), -1)


def main(length: int, method: str) -> None:
    keys, values, queries = context(length)
    found: list[tuple[str, np.ndarray]] = []

    def work() -> None:
        if method == "scikit-learn":
            found.append((method, _by_nystroem(keys, values, queries)))
        else:
            fit = _fit(keys, values, method)
            found.append((str(fit), fit.mean(queries)))

    first = timed(work)
    # Linux's own mark: a child begins with the largest that `getrusage` saw of its parent.
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 2**20  # type: ignore[index]
    again = first if first.wall > LENGTHY else timed(work)
    told = {"said": found[0][0], "gigabytes": peak, "seconds": again.wall, "cpu": again.cpu}
    if length in PEERS:
        finer = fit_cme(
            keys, values, ridge=RIDGE, kernel=RBF(TEMPERATURE), method="nystrom", tolerance=1e-5
        )
        told["error"] = float(np.sqrt(np.mean((found[0][1] - finer.mean(queries)) ** 2)))
    print(json.dumps(told))


BENCHMARKS: tuple[Callable[[], Row], ...] = (
    against_kernel_ridge,
    against_bare_cholesky,
    hundred_thousand,
    million,
    cme_growth,
)

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
