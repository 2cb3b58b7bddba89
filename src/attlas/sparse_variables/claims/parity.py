"""Claims about parity, learnt from fresh batches: it is found at once, after a time in which nothing seems to happen (Figure 4)."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

from attlas.claims.compat import (
    Control,
    Convergence,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.sparse_variables.claims.shared import FIGURES, PAPER
from attlas.sparse_variables.online import PARITY, train_online
from attlas.sparse_variables.task import FUNCTIONS, SparseBoolean
from attlas.sparse_variables.training import fits_memory

CHANCE, LEARNT = 0.6, 0.1
"""Losses: above the first a run is at chance, where the loss is ln 2; below the second the function is learnt."""

PLATEAU = 0.5
"""The part of the time until a function is learnt that a run is at chance, at least."""

HYPOTHESES = (
    Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True),
    Hypothesis(
        f"function is one of {', '.join(FUNCTIONS)}",
        lambda s: s.function in FUNCTIONS,
        defining=True,
    ),
)
RUNS = Setting(
    length=(10,), sparsity=(3,), function="parity", batch_size=128, steps=600, every=10, repeats=18
)
PAPER_RUNS = RUNS.replace(length=(10, 15), steps=1200, every=5, repeats=24)


ARRIVES = "sparse-variables/parity-arrives"
PARTS: dict[str, Any] = {
    "source": PAPER,
    "reference": "Figure 4",
    "hypotheses": HYPOTHESES,
    "quick": RUNS,
    "paper": PAPER_RUNS,
    "rule": Convergence(share=0.5),
    "cells": together("length", "sparsity"),
    "budget": "repeats",
    "origin": "our reading",
}


def parity_runs(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Runs from starts of their own, each with a support of its own."""
    (cell,) = cells
    fits_memory(PARITY, cell.length, cell.repeats)
    places = jax.random.split(key_for(seed, ARRIVES, "supports"), cell.repeats)
    tasks = [SparseBoolean.random(key, cell.length, cell.sparsity, cell.function) for key in places]
    options: dict[str, Any] = {name: cell[name] for name in ("batch_size", "steps", "every")}
    found = train_online(tasks, key=key_for(seed, ARRIVES, "runs"), **options)
    kept = found[["loss", "accuracy", "arrival"]].rename(trial="repeat").drop_vars("repeat")
    return kept.expand_dims("cell").assign_coords(
        length=("cell", [cell.length]), sparsity=("cell", [cell.sparsity])
    )


claim(
    ARRIVES,
    long=True,
    statement=r"A Transformer of one layer learns the parity of 3 among T bits from batches of 128 uniform sequences: in more than half of the runs every one of the"
    r" $2^T$ sequences (of 10,000 where $T > 16$) gets its label at some evaluation within the steps given, for T = 10 and 15.",
    words="From fresh batches a small Transformer learns a parity without one mistake.",
    fit=lambda e: e.assign(arrived=e["arrival"].notnull()),
    control=Control(
        "a tenth of the steps",
        lambda e: e.assign(arrived=e["arrival"] <= int(e["step"].max()) / 10),
    ),
    figure=drawn_by(f"{FIGURES}.learning:parity_runs"),
    needs=("sparse-variables/table-form",),
    **PARTS,
)(parity_runs)


def first_below(found: xr.Dataset, level: float) -> xr.DataArray:
    """The first evaluation with a loss below `level`, nan if there is none."""
    below = found["loss"] < level
    return found["step"][below.argmax("step")].where(below.any("step")).drop_vars("step")


def plateau(found: xr.Dataset) -> xr.Dataset:
    left = first_below(found, CHANCE)
    # Runs end with the last arrival, when that one's loss may still be falling.
    learnt: xr.DataArray = xr.apply_ufunc(np.fmin, first_below(found, LEARNT), found["arrival"])
    return found.assign(left=left, learnt=learnt, arrived=left > PLATEAU * learnt)


claim(
    "sparse-variables/parity-plateau",
    statement=r"The loss on parity stays at chance, $\ln(2) \approx 0.69$, and then falls fast: in more than half of the runs more than half of the steps until the function"
    r" is learnt (the loss falls below 0.1, or every sequence is right) are over when the loss first falls below 0.6.",
    words="For most of the time nothing seems to be learnt, and then everything is.",
    fit=plateau,
    control=Control(
        "a majority of as many bits, each of which is correlated with the label",
        lambda s: s.replace(function="majority"),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.learning:parity_plateaus"),
    needs=(ARRIVES,),
    **PARTS,
)(parity_runs)
