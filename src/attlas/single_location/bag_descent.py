r"""L-BFGS from many starts at once, in NumPy: for fits so small that a compiled program would take
longer to make than to run.

As in `attlas.quasi_newton`, whose rules these are, every lane minimises a function of its own, all
are evaluated together, and none waits for the line search of another; here a lane that has settled
is evaluated no more. Nocedal and Wright 2006, Algorithms 7.4 and 3.1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from attlas.quasi_newton import DECREASE, MEMORY, SHORTEST, STEEP

Points = Float[np.ndarray, "lane p"]
PerLane = Float[np.ndarray, " lane"]


class Descent(NamedTuple):
    """Where each lane ended: the point, its value, the steps that were taken, and whether it
    stopped before trips ran out."""

    point: Points
    value: PerLane
    steps: Int[np.ndarray, " lane"]
    settled: Bool[np.ndarray, " lane"]


class _Lanes:
    """What is known of the lanes that still move; every array has them as its first axis."""

    def __init__(self, point: Points, value: PerLane, gradient: Points) -> None:
        self.name = np.arange(len(point))
        self.point, self.value, self.gradient = point, value, gradient
        self.direction = -gradient
        self.curvature = np.zeros_like(value)
        """1 over that of the last step, as the first guess of the inverse Hessian; 0 without."""
        self.length = self.first_length()
        self.steps = np.zeros(len(point), int)
        self.memory: list[tuple[Points, Points, PerLane]] = []
        """Moves, what they bent the gradient by, and 1 over their product, 0 where it is empty."""

    def first_length(self) -> PerLane:
        """Of a step: 1, or without memory no longer than 1 in space."""
        size = np.sqrt(_dot(self.gradient, self.gradient)) + 1e-30
        return np.where(self.curvature > 0, 1, np.minimum(1, 1 / size)).astype(size.dtype)

    def keep(self, some: Bool[np.ndarray, " lane"]) -> None:
        for field, held in vars(self).items():
            if field != "memory":
                setattr(self, field, held[some])
        self.memory = [tuple(x[some] for x in entry) for entry in self.memory]

    def remember(self, move: Points, bend: Points, curved: Bool[np.ndarray, " lane"]) -> None:
        product = np.where(curved, _dot(move, bend), 1)
        rate = np.where(curved, 1 / product, 0).astype(product.dtype)
        size = np.where(curved, _dot(bend, bend), 1)
        self.curvature = np.where(curved, product / size, self.curvature)
        self.memory = [*self.memory[-MEMORY + 1 :], (move, bend, rate)]

    def forget(self, lost: Bool[np.ndarray, " lane"]) -> None:
        self.curvature = np.where(lost, 0, self.curvature)
        for _, _, rate in self.memory:
            rate[lost] = 0

    def newton(self) -> Points:
        """Minus the inverse Hessian, estimated from the memory, times the gradient."""
        x, shares = self.gradient.copy(), []
        for move, bend, rate in reversed(self.memory):
            shares.append(rate * _dot(move, x))
            x -= shares[-1][:, None] * bend
        x *= np.where(self.curvature > 0, self.curvature, 1)[:, None]
        for (move, bend, rate), share in zip(self.memory, reversed(shares), strict=True):
            x += (share - rate * _dot(bend, x))[:, None] * move
        return -x


def minimise_lanes(
    objective: Callable[[Points, Int[np.ndarray, " some"]], tuple[PerLane, Points]],
    start: Points,
    *,
    trips: int,
    tolerance: float,
) -> Descent:
    """Minimise in every lane.

    Arguments:
    - `objective`: of points [some, p] in the lanes of the given numbers: values and gradients.
    - `start` [lane, p].
    - `trips`: evaluations at most.
    - `tolerance`: a lane stops where no derivative exceeds it, relative to the value or 1, or where
      a step brings less than its square.
    """
    end = Descent(
        start.copy(), np.empty(len(start)), np.zeros(len(start), int), np.zeros(len(start), bool)
    )
    lanes = _Lanes(start, *objective(start, np.arange(len(start))))
    for _ in range(trips - 1):
        done = _advance(lanes, objective, tolerance)
        if done.any():
            _write(end, lanes, done, True)
            lanes.keep(~done)
            if not len(lanes.name):
                return end
    _write(end, lanes, np.ones(len(lanes.name), bool), False)
    return end


def _advance(lanes: _Lanes, objective: Any, tolerance: float) -> Bool[np.ndarray, " lane"]:
    """One evaluation: a lane takes the step that it tried, or shortens it. Which have settled."""
    move = lanes.length[:, None] * lanes.direction
    value, gradient = objective(lanes.point + move, lanes.name)
    ahead = _dot(lanes.gradient, lanes.direction)
    predicted, gain = lanes.length * ahead, lanes.value - value
    taken = (gain >= -DECREASE * predicted) & np.isfinite(_dot(gradient, gradient))
    steep = taken & (_dot(gradient, lanes.direction) < STEEP * ahead)
    bend = gradient - lanes.gradient
    curved = taken & (_dot(move, bend) > 1e-10 * _dot(bend, bend))
    if curved.any():
        lanes.remember(move, bend, curved)
    # No step brings a decrease: forget the curvature, or end the lane if there is none.
    lost = ~taken & (lanes.length < SHORTEST)
    stuck = lost & (lanes.curvature == 0)
    if lost.any():
        lanes.forget(lost)
    lanes.point = np.where(taken[:, None], lanes.point + move, lanes.point)
    lanes.gradient = np.where(taken[:, None], gradient, lanes.gradient)
    lanes.value = np.where(taken, value, lanes.value)
    lanes.steps += taken
    # The minimum of the parabola through both values and the slope.
    with np.errstate(invalid="ignore", divide="ignore"):
        fit = predicted / (2 * (predicted + gain))
    shorter = lanes.length * np.clip(np.where(np.isfinite(fit), fit, 0.1), 0.1, 0.5)
    fresh = np.where(steep, 2 * lanes.length, lanes.first_length())
    turned = (taken & ~steep) | lost
    lanes.length = np.where(taken | lost, fresh, shorter).astype(move.dtype)
    lanes.direction = np.where(turned[:, None], lanes.newton(), lanes.direction)
    scale = np.maximum(1, abs(lanes.value))
    flat = (gain <= tolerance**2 * scale) | (abs(lanes.gradient).max(1) <= tolerance * scale)
    return (taken & flat) | stuck


def _write(end: Descent, lanes: _Lanes, some: Bool[np.ndarray, " lane"], settled: bool) -> None:
    at = lanes.name[some]
    end.point[at], end.value[at] = lanes.point[some], lanes.value[some]
    end.steps[at], end.settled[at] = lanes.steps[some], settled


def _dot(x: Points, y: Points) -> PerLane:
    return np.einsum("ap,ap->a", x, y)
