"""Claims for the benchmarks of sweeps, loaded from this file by every process: one that computes, one that does nothing."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attlas.claims import Control, Setting, claim, together
from attlas.statistics import Agreement

PARTS: dict[str, Any] = {
    "source": "attlas",
    "reference": "benchmarks",
    "statement": "$x = x$.",
    "words": "It is.",
    "rule": Agreement(),
    "control": Control("off by one", lambda e: e.assign(predicted=e["predicted"] + 1)),
    "cells": together("n"),
}


@jax.jit
def _powers(x: jax.Array, steps: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, steps, lambda _, y: jnp.cos(y) + 0.1 * x, x)


@claim(
    "bench/computes",
    quick=Setting(n=(1,), steps=20_000),
    paper=Setting(n=(1,), steps=20_000),
    **PARTS,
)
def computes(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """A compiled loop that leaves nothing to wait for."""
    (cell,) = cells
    found = np.asarray(_powers(jnp.linspace(0.0, cell.n + seed, 500), jnp.asarray(cell.steps)))
    return xr.Dataset(
        {"measured": (("cell", "point"), found[None]), "predicted": 0.0, "error": 0.0}
    )


@claim(
    "bench/nothing",
    quick=Setting(n=(1,), lam=1.0),
    paper=Setting(n=(1,), lam=1.0),
    shape=(),
    batch=100,
    **PARTS,
)
def nothing(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    values = np.array([cell.n * cell.lam + seed for cell in cells])
    return xr.Dataset({"measured": ("cell", values), "predicted": ("cell", values), "error": 0.0})


@claim("bench/alone", quick=Setting(n=(1,), lam=1.0), paper=Setting(n=(1,), lam=1.0), **PARTS)
def alone(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    return nothing.measure(cells, seed)
