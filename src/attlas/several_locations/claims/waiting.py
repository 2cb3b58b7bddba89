"""Claims about when two heads part."""

import numpy as np
import xarray as xr

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on
from attlas.claims.rules import Order
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.order_parameters import Overlaps, descend
from attlas.several_locations.claims import several_locations
from attlas.several_locations.claims.order import DIM, first_time
from attlas.several_locations.claims.parting import parted_by
from attlas.several_locations.task import heads_problem, random_starts


@several_locations.claim(
    kind="training",
    origin="ours",
    reference="specialisation of heads, when",
    statement=r"Two softmax heads with free norms descend the exact risk of two equally strong"
    r" informative tokens from Gaussian starts of size $10^{-1}$, $10^{-2}$ and $10^{-3}$ that"
    r" differ in nothing else. In runs that part from all three, each factor of ten delays the"
    r" parting on average, by less than the time that the larger start takes.",
    words="The smaller the start, the longer both heads stay alike: a hundred times smaller, they"
    " part later, but less than four times as late.",
    hypotheses=(
        Hypothesis("sizes = 0.1, 0.01, 0.001", lambda s: s.sizes == (0.1, 0.01, 0.001)),
        Hypothesis("signal = 4 and lam = 1", lambda s: s.signal == 4 and s.lam == 1),
        Hypothesis("length = 6", lambda s: s.length == 6),
        Hypothesis("time >= 14", lambda s: s.time >= 14),
        Hypothesis("step_size <= 0.02", lambda s: s.step_size <= 0.02),
    ),
    quick=Setting(
        signal=4.0,
        length=6,
        lam=1.0,
        sizes=(0.1, 0.01, 0.001),
        runs=48,
        step_size=0.02,
        time=14.0,
        points=512,
    ),
    paper=dict(runs=192, points=1024),
    cells=whole,
    budget="runs",
    rule=Order(),
    control=Control(
        "delays that are longer by {size:.0%}, as for times in proportion to 1/size",
        lambda e, size: {"lower": (1 + size) * e.lower},
        size=9.0,
    ),
    needs=("two-heads-suffice",),
)
def smaller_starts_wait(cell: Setting, draws: Draws) -> Values:
    starts = [
        random_starts(draws.stream("start"), cell.runs, 4, 4, DIM, size) for size in cell.sizes
    ]
    data = descend(
        heads_problem(cell.length, (cell.signal, cell.signal), lam=cell.lam),
        Overlaps(*map(np.concatenate, zip(*starts, strict=True))),
        step_size=cell.step_size,
        steps=round(cell.time / cell.step_size),
        points=cell.points,
        seed=draws.integer("points"),
        record_every=round(0.1 / cell.step_size),
    )
    times = data["step"].values * cell.step_size
    at = first_time(parted_by(data), times).reshape(len(starts), -1)
    part = np.isfinite(at)
    first, second = np.diff(at[:, part.all(0)], axis=0)
    comparison = {
        "a delay from 0.1 to 0.01": (0, first),
        "from 0.01 to 0.001": (0, second),
        "the first delay and the time before": (first, at[0, part.all(0)]),
        "the second delay and the time before": (second, at[1, part.all(0)]),
    }
    lower, upper = (
        np.array([np.mean(pair[side]) for pair in comparison.values()]) for side in (0, 1)
    )
    spread = np.array([np.std(high - low, ddof=1) for low, high in comparison.values()])
    return {
        **on("comparison", lower=lower, upper=upper, error=spread / np.sqrt(len(first))),
        **on("size repeat", at=np.minimum(at, cell.time)),
        **on("size", share=part.mean(1)),
        "comparison": list(comparison),
        "size": list(cell.sizes),
        "repetitions": len(first),
    }


@smaller_starts_wait.figure
def shares_by_start(evidence: xr.Dataset) -> Figure:
    title, note = "Smaller starts part later", "share of runs that have parted, by size of start"
    shown = evidence.isel(cell=0)
    moments = np.arange(0, float(shown["time"]), 0.1)
    shares = [[float((at <= moment).mean()) for moment in moments] for at in shown["at"].values]
    data = xr.Dataset(
        {"share": (("size", "moment"), shares)},
        {"moment": moments, "size": [f"{size:g}" for size in shown["size"].values]},
    )
    figure = Figure(data, title, note, x="time", y="share of runs", zero="y")
    return figure.lines("moment", "share", color="size")
