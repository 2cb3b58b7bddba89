"""Claims for the benchmarks of sweeps, loaded by every process: one computes, two do nothing."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attlas.claims import Agreement, Control, Draws, Map, Setting, Values, on, together

sweeps = Map("bench", source="attlas")

PARTS: dict[str, Any] = {
    "kind": "identity",
    "reference": "benchmarks",
    "statement": "$x = x$.",
    "words": "It is.",
    "rule": Agreement(),
    "control": Control("off by one", lambda e: {"predicted": e.predicted + 1}),
    "cells": together("n"),
}


@sweeps.claim(quick=Setting(n=(1,), steps=20_000), **PARTS)
def computes(cell: Setting, draws: Draws) -> Values:
    """A compiled loop that leaves nothing to wait for."""
    start = jnp.linspace(0.0, cell.n + draws.seed, 500)
    found = np.asarray(_iterate_cosine(start, jnp.asarray(cell.steps)))
    return {**on("point", measured=found), "predicted": 0.0, "error": 0.0}


@jax.jit
def _iterate_cosine(x: jax.Array, steps: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, steps, lambda _, y: jnp.cos(y) + 0.1 * x, x)


@sweeps.claim(quick=Setting(n=(1,), lam=1.0), shape=(), batch=100, **PARTS)
def nothing(cells: Sequence[Setting], draws: Draws) -> Values:
    values = np.array([cell.n * cell.lam + draws.seed for cell in cells])
    return {**on("cell", measured=values, predicted=values), "error": 0.0}


@sweeps.claim(quick=Setting(n=(1,), lam=1.0), **PARTS)
def alone(cell: Setting, draws: Draws) -> Values:
    value = cell.n * cell.lam + draws.seed
    return {"measured": value, "predicted": value, "error": 0.0}
