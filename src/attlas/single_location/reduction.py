"""Single-location regression as a problem of `attlas.order_parameters`: two directions, k* and v*,
and two columns, k and v, on spheres.

Population and online descent of this task keep steps of their own, written in five numbers: they
are several times faster than those of any head on any law (`bench`), and checked against them.
"""

from typing import Any

import equinox as eqx
import numpy as np
import xarray as xr
from jaxtyping import Array

from attlas import order_parameters
from attlas.order_parameters import Heads, Places, Problem, ValueSum, gate_weights
from attlas.single_location.gates import Activation, Gate, as_head
from attlas.single_location.population import Overlaps, gate_unless_erf, total_risk
from attlas.single_location.task import Constants, SingleLocation


class ClosedForm(eqx.Module):
    """`risk` as a function of M and Q."""

    constants: Constants
    lam: Any
    gate: Gate | None

    def __call__(self, m: Array, q: Array) -> Array:
        overlaps = Overlaps(m[0, 0], m[1, 1], m[1, 0], m[0, 1], q[0, 1])
        return total_risk(self.constants, overlaps, self.lam, self.gate)


def as_problem(
    task: SingleLocation, lam: Any, activation: str | Activation | Gate = "erf"
) -> Problem:
    """The task and a head of sharpness `lam`, a number or a schedule, with the risk in closed form
    unless the head is a softmax."""
    gate = as_head(activation)
    law = Places(task.length, [task.m], spread=task.gamma)
    if gate is None:
        return Problem(law, ValueSum(task.noise), Heads("softmax", lam))
    head = Heads(gate_weights(gate.function), lam, offset=gate.offset)
    constants = Constants(*(float(x) for x in task.constants))
    exact = ClosedForm(constants, lam, gate_unless_erf(gate))
    return Problem(law, ValueSum(task.noise), head, exact=exact)


def as_matrices(overlaps: Overlaps) -> order_parameters.Overlaps:
    """M and Q [*s, 2, 2] of five overlaps of shape [*s]."""
    gram = overlaps.gram()
    return order_parameters.Overlaps(gram[..., 2:, :2], gram[..., 2:, 2:])


def five_overlaps(data: xr.Dataset) -> xr.Dataset:
    """The five overlaps, status and steps survived, from a Dataset with `m` and `q`."""
    m, q = data["m"].values, data["q"].values
    five = Overlaps(m[..., 0, 0], m[..., 1, 1], m[..., 1, 0], m[..., 0, 1], q[..., 0, 1])
    named = {name: (("repeat", "step"), np.asarray(x)) for name, x in five._asdict().items()}
    return data[["status", "survived"]].assign(named)
