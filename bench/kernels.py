"""Benchmarks of CME attention on long contexts: each returns one `Row`."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attlas.figure import HEIGHT, WIDTH, finish_chart
from attlas.kernels import CME, RBF, fit_cme
from bench.timing import Row, compare, seconds

TEMPERATURE, RIDGE, QUERIES = 0.1, 0.09, 500
EXACT = 4_000
LADDERS = {
    "exact": (1_000, 2_000, 4_000, 8_000),
    "nystrom": (1_000, 10_000, 100_000, 1_000_000),
    "conjugate": (2_000, 4_000, 8_000, 16_000, 32_000),
}
FIGURE = Path("build/bench/cme.svg")
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
    return compare(
        f"exact CME attention of {EXACT:,} tokens at {QUERIES} queries, against scikit-learn's"
        f" KernelRidge",
        lambda: _fit(keys, values, "exact").mean(queries),
        lambda: peer.fit(keys, values).predict(queries),
        expected="1 or more",
    )


def hundred_thousand() -> Row:
    return _alone(10**5, "under 10 s")


def million() -> Row:
    return _alone(10**6, "under a minute and 2 GB")


def growth() -> Row:
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


def _alone(length: int, expected: str) -> Row:
    run = _told(length)
    keys, values, _ = context(EXACT)
    exact = seconds(lambda: _fit(keys, values, "exact")) * (length / EXACT) ** 3
    what = (
        f"CME attention of {length:,} tokens, {run['said']}; peak memory {run['gigabytes']:.2f}"
        f" GB; against the exact one"
        f" ({EXACT:,} tokens, scaled by the cube)"
    )
    return Row(what, run["first"], exact, f"thousands; {expected}")


def _told(length: int, method: str = "auto") -> dict[str, Any]:
    """By a process of its own, whose peak memory is that of these fits; compiling counts in the
    `first`."""
    command = [sys.executable, "-m", "bench.kernels", str(length), method]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(length: int, method: str) -> None:
    keys, values, queries = context(length)

    def work() -> str:
        fit = _fit(keys, values, method)
        fit.mean(queries)
        return str(fit)

    said: list[str] = []
    first = seconds(lambda: said.append(work()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    again = first if first > LENGTHY else seconds(work)
    print(json.dumps({"first": first, "seconds": again, "said": said[0], "gigabytes": peak}))


BENCHMARKS: tuple[Callable[[], Row], ...] = (
    against_kernel_ridge,
    hundred_thousand,
    million,
    growth,
)

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
