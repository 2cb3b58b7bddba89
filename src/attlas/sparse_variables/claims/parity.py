"""Claims about parity, learnt from fresh batches: at once, after a time at chance (Figure 4)."""

from typing import Any

import jax
import numpy as np
import xarray as xr

from attlas.claims import Control, Convergence, Draws, Setting, Values, together
from attlas.figure import Figure, Panels, row
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import FUNCTION, SPARSE
from attlas.sparse_variables.online import PARITY, train_online
from attlas.sparse_variables.task import SparseBoolean
from attlas.sparse_variables.training import fits_memory

CHANCE_LOSS, LEARNT_LOSS = 0.6, 0.1
"""Above the first a run is at chance, where the loss is ln 2; below the second it has learnt."""

PLATEAU = 0.5
"""The part of the time until a function is learnt that a run is at chance, at least."""

SHOWN = 10
"""Runs that are drawn, as many as in the paper; all are counted."""


@sparse_variables.measurement(
    "parity-arrives",
    quick=Setting(
        length=(10,),
        sparsity=(3,),
        function="parity",
        batch_size=128,
        steps=600,
        every=10,
        repeats=24,
    ),
    paper=dict(length=(10, 15), steps=1200, every=5),
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
    origin="our reading",
    reference="Figure 4",
    statement=r"A Transformer of one layer learns the parity of 3 among T bits from batches of 128"
    r" uniform sequences: in more than half of the runs every one of the $2^T$ sequences (of 10,000"
    r" where $T > 16$) gets its label at some evaluation within the steps given, for T = 10 and"
    r" 15.",
    words="From fresh batches a small Transformer learns a parity without one mistake.",
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
    panels = []
    for number in range(evidence.sizes["cell"]):
        cell = evidence.isel(cell=number)
        runs = cell.isel(repeat=slice(SHOWN))
        arrivals = runs[["arrival"]].assign(zero=0.0, one=1.0)
        counted = f"{int(cell['arrived'].sum())} of {cell.sizes['repeat']} runs arrive"
        title = f"T = {int(cell['length'])}, s = {int(cell['sparsity'])}: {counted}"
        loss = Figure(runs, title, x="step", y="loss on validation", width=290, height=170)
        loss.lines("step", "loss", color="repeat", legend=False, opacity=0.8)
        loss.points("arrival", "zero", color="repeat", legend=False, data=arrivals)
        loss.rule(float(np.log(2)), "chance, ln 2")
        accuracy = Figure(runs, x="step", y="accuracy", zero="-y", width=290, height=170)
        accuracy.lines("step", "accuracy", color="repeat", legend=False, opacity=0.8)
        accuracy.points("arrival", "one", color="repeat", legend=False, data=arrivals)
        panels += [loss, accuracy]
    return row(
        *panels,
        title="Parity is learnt at once, after a long time at chance",
        note=f"{min(SHOWN, evidence.sizes['repeat'])} runs; points: the first evaluation at which"
        " every sequence is right",
    )


@sparse_variables.claim(
    kind="training",
    measured_by=parity_runs,
    origin="our reading",
    reference="Figure 4",
    statement=r"The loss on parity stays at chance, $\ln(2) \approx 0.69$, and then falls fast: in"
    r" more than half of the runs more than half of the steps until the function is learnt (the"
    r" loss falls below 0.1, or every sequence is right) are over when the loss first falls below"
    r" 0.6.",
    words="For most of the time nothing seems to be learnt, and then everything is.",
    rule=Convergence(share=0.5),
    control=Control(
        "a majority of as many bits, each of which is correlated with the label",
        setting=dict(function="majority"),
    ),
    needs=("parity-arrives",),
)
def parity_plateau(evidence: xr.Dataset) -> Values:
    left, low = (first_below(evidence, level) for level in (CHANCE_LOSS, LEARNT_LOSS))
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
    size = "T = {length}, s = {sparsity}"
    losses = Figure(
        curves,
        x="step / step at which the function is learnt",
        y="loss on validation",
        height=240,
    )
    losses.lines("time", "loss", color=size, detail="repeat", opacity=0.7)
    losses.rule(float(np.log(2)), "chance, ln 2")
    parts = Figure(
        evidence.assign(part=part),
        x="part of that time with a loss above 0.6",
        y="",
        domain={"x": (0, 1)},
        height=34 * evidence.sizes["cell"],
    )
    parts.ticks("part", size, color=size, legend=False, theory=False)
    parts.rule(PLATEAU, axis="x")
    return row(
        losses,
        parts,
        columns=1,
        title="Nothing, and then everything",
        note=f"above: {min(SHOWN, evidence.sizes['repeat'])} runs a length; below: all runs, and"
        " the half that is claimed",
    )
