"""Claims about the order in which two heads take two tokens."""

import numpy as np
import xarray as xr

from attlas.claims import Control, Convergence, Draws, Hypothesis, Setting, Values, on
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.order_parameters import descend
from attlas.several_locations.claims import several_locations
from attlas.several_locations.task import heads_problem, random_starts

DIM = 400
"""Of the vectors that starts are made of; descent of the exact risk does not know it."""


def values_read(cell: Setting, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """What each head reads of each value [run, step, head, token] in descent of the risk, and the
    times [step]."""
    data = descend(
        heads_problem(cell.length, (cell.signal, cell.ratio * cell.signal), lam=cell.lam),
        random_starts(draws.stream("start"), cell.runs, 4, 4, DIM, cell.start),
        step_size=cell.step_size,
        steps=round(cell.time / cell.step_size),
        points=cell.points,
        seed=draws.integer("points"),
        record_every=round(0.1 / cell.step_size),
    )
    read = data["m"].isel(column=[1, 3], direction=[1, 3]).values
    return read, data["step"].values * cell.step_size


def first_time(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The first of `times` [step] at which values [run, step] are above a half; inf if never."""
    above = values > 0.5
    return np.where(above.any(1), times[above.argmax(1)], np.inf)


def times_alone(read: np.ndarray, times: np.ndarray) -> np.ndarray:
    """When some head first reads each token [token, run] by a half more than the other one."""
    alone = read - abs(read[..., ::-1])
    return np.stack([first_time(alone[..., token].max(-1), times) for token in (0, 1)])


@several_locations.claim(
    kind="training",
    origin="ours",
    reference="specialisation of heads, in which order",
    statement=r"Two softmax heads with free norms descend the exact risk of two informative tokens"
    r" of the signals $s$ and $3s/4$ from Gaussian starts of size $10^{-2}$. In more than half of"
    r" the runs a head reads the stronger token by more than $1/2$ above the weaker one before any"
    r" head reads the weaker one so.",
    words="The stronger of two tokens mostly gets a head of its own first. This is about the exact"
    " risk: in online descent the noise decides as well.",
    hypotheses=(
        Hypothesis("ratio <= 0.75", lambda s: s.ratio <= 0.75),
        Hypothesis("start <= 0.01", lambda s: s.start <= 0.01),
        Hypothesis("signal = 4 and lam = 1", lambda s: s.signal == 4 and s.lam == 1),
        Hypothesis("length = 6", lambda s: s.length == 6),
        Hypothesis("time >= 12", lambda s: s.time >= 12),
        Hypothesis("step_size <= 0.02", lambda s: s.step_size <= 0.02),
    ),
    quick=Setting(
        signal=4.0,
        ratio=0.75,
        length=6,
        lam=1.0,
        start=0.01,
        runs=64,
        step_size=0.02,
        time=12.0,
        points=512,
    ),
    paper=dict(runs=256, points=1024),
    cells=whole,
    budget="runs",
    rule=Convergence(share=0.5),
    control=Control("the weaker first", lambda e: {"arrived": 1 - e.arrived}),
    needs=("two-heads-suffice",),
)
def stronger_first(cell: Setting, draws: Draws) -> Values:
    first, second = times_alone(*values_read(cell, draws))
    return {
        **on("repeat", arrived=(first < second).astype(int)),
        **on("repeat", first=np.minimum(first, cell.time), second=np.minimum(second, cell.time)),
    }


@stronger_first.figure
def shares_by_time(evidence: xr.Dataset) -> Figure:
    title = "The stronger token first"
    note = "runs in which some head reads a token by 1/2 more than the other one"
    shown, names = evidence.isel(cell=0), {"first": "stronger token", "second": "weaker token"}
    moments = np.arange(0, float(shown["time"]), 0.1)
    shares = {
        name: ("moment", [float((shown[name] <= moment).mean()) for moment in moments])
        for name in names
    }
    data = xr.Dataset(shares, {"moment": moments})
    figure = Figure(data, title, note, x="time", y="share of runs", zero="y")
    return figure.lines("moment", names)
