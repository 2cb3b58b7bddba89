"""Claims about parity, learnt from fresh batches: at once, after a time at chance (Figure 4)."""

import math
from typing import Any

import jax
import numpy as np
import xarray as xr

from attlas.claims import Control, Convergence, Draws, Setting, Values, together
from attlas.figure import Figure, Panels, row
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import FUNCTION, SHOWN, SIZE, SPARSE
from attlas.sparse_variables.online import PARITY, train_online
from attlas.sparse_variables.task import SparseBoolean
from attlas.sparse_variables.training import fits_memory

LOSS, CHANCE = "loss on validation", (math.log(2), "chance, ln 2")

PLATEAU = 0.5
"""The part of the time until a function is learnt that a run is at chance, at least."""


@sparse_variables.measurement(
    "parity-arrives",
    quick=Setting(
        length=(10,),
        sparsity=(3,),
        function="parity",
        batch_size=128,
        steps=600,
        every=10,
        repeats=32,
    ),
    paper=dict(length=(10, 15), steps=1200, every=5),
    origin="our reading",
    hypotheses=(SPARSE, FUNCTION),
    cells=together("length", "sparsity"),
    budget="repeats",
)
def parity_runs(cell: Setting, draws: Draws) -> Values:
    """Runs from starts of their own, each with a support of its own."""
    fits_memory(PARITY, cell.length, cell.repeats)
    keys = jax.random.split(draws("supports"), cell.repeats)
    tasks = [SparseBoolean.random(key, cell.length, cell.sparsity, cell.function) for key in keys]
    options: dict[str, Any] = {name: cell[name] for name in ("batch_size", "steps", "every")}
    found = train_online(tasks, key=draws("runs"), **options)
    return found[["loss", "accuracy", "arrival"]].rename(trial="repeat").drop_vars("repeat")


@sparse_variables.claim(
    kind="training",
    measured_by=parity_runs,
    reference="Figure 4",
    statement="A Transformer of one layer learns the parity of 3 among $T$ bits from batches of"
    " 128 uniform sequences: in more than half of the runs every one of the $2^T$ sequences (of"
    " 10,000 where $T > 16$) gets its label at some evaluation within the steps given, for $T ="
    " 10$ and 15.",
    words="From fresh batches a small Transformer learns a parity without one mistake, in more"
    " than half of the runs.",
    long=True,
    rule=Convergence(share=0.5),
    control=Control(
        "a tenth of the steps", lambda e: {"arrived": e.arrival <= int(e.step.max()) / 10}
    ),
)
def parity_arrives(evidence: xr.Dataset) -> Values:
    return {"arrived": evidence["arrival"].notnull()}


@parity_arrives.figure
def losses_and_accuracies(evidence: xr.Dataset) -> Panels:
    """Loss and accuracy of each run, and when every sequence was right for the first time."""
    counted = evidence.assign_coords(count=evidence["arrived"].sum("repeat"))
    runs = counted.assign(zero=0.0, one=1.0).isel(repeat=slice(SHOWN))
    style: dict[str, Any] = {"color": "repeat", "legend": False, "opacity": 0.8}
    label = SIZE + ": {count} of {repeats} runs arrive"

    def panels(curve: str, title: str, end: str, zero: str = "") -> Figure:
        figure = Figure(runs, x="step", y=title, zero=zero)
        figure.lines("step", curve, **style).points("arrival", end, **style)
        return figure.facet(label, columns=1, width=290, height=170)

    return row(
        panels("loss", LOSS, "zero").rule(*CHANCE),
        panels("accuracy", "accuracy", "one", zero="-y"),
        title="Parity is learnt at once, after a long time at chance",
        note=f"{min(SHOWN, evidence.sizes['repeat'])} runs; points: the first evaluation at which"
        " every sequence is right",
    )


@sparse_variables.claim(
    kind="training",
    measured_by=parity_runs,
    reference="Figure 4",
    statement=r"The loss on parity stays at chance, $\ln(2) \approx 0.69$, and then falls fast: in"
    r" more than half of the runs more than half of the steps until the function is learnt (the"
    r" loss falls below 0.1, or every sequence is right) are over when the loss first falls below"
    r" 0.6.",
    words="In most runs the loss stays at chance for more than half of the time that a parity"
    " takes to be learnt, and then falls fast.",
    rule=Convergence(share=0.5),
    control=Control(
        "a majority of as many bits, each of which is correlated with the label",
        setting=dict(function="majority"),
    ),
    needs=("parity-arrives",),
)
def parity_plateau(evidence: xr.Dataset) -> Values:
    left, low = (first_below(evidence, level) for level in (0.6, 0.1))
    # Runs end with the last arrival, when that one's loss may still be falling.
    learnt: xr.DataArray = xr.apply_ufunc(np.fmin, low, evidence["arrival"])
    return {"left": left, "learnt": learnt, "arrived": left > PLATEAU * learnt}


def first_below(evidence: xr.Dataset, level: float) -> xr.DataArray:
    """The first evaluation with a loss below `level`, nan if there is none."""
    below = evidence["loss"] < level
    return evidence["step"][below.argmax("step")].where(below.any("step")).drop_vars("step")


@parity_plateau.figure
def losses_in_own_time(evidence: xr.Dataset) -> Panels:
    """The loss against each run's own time, and how long each run was at chance."""
    time = evidence["step"] / evidence["learnt"]
    part = (evidence["left"] / evidence["learnt"]).isel(step=0, missing_dims="ignore")
    curves = evidence.assign(time=time.where(time <= 1.5)).isel(repeat=slice(SHOWN))
    losses = Figure(curves, x="step / step at which the function is learnt", y=LOSS, height=240)
    parts = Figure(
        evidence.assign(part=part),
        x="part of that time with a loss above 0.6",
        y="",
        domain={"x": (0, 1)},
        height=34 * evidence.sizes["cell"],
    )
    return row(
        losses.lines("time", "loss", color=SIZE, detail="repeat", opacity=0.7).rule(*CHANCE),
        parts.ticks("part", SIZE, color=SIZE, legend=False, theory=False).rule(PLATEAU, axis="x"),
        columns=1,
        title="Nothing, and then everything",
        note=f"above: {min(SHOWN, evidence.sizes['repeat'])} runs a length; below: all runs, and"
        " the half that is claimed",
    )
