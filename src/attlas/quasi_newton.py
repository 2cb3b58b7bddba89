r"""L-BFGS from many starts at once, in one compiled program.

Every lane minimises a function of its own. A trip of the loop evaluates value and gradient of all
lanes once, and a lane either takes the step that it tried or shortens it, so that no lane waits for
the line search of another. Nocedal and Wright 2006, Algorithms 7.4 and 3.1.

`optax.lbfgs` under `jax.vmap` waits for the slowest line search in each step: on the fits of
`single_location.bags` it takes 3 to 18 times as long, and twice as long to compile.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

MEMORY = 10
"""Steps from which the curvature is estimated."""
DECREASE, STEEP = 1e-4, 0.9
"""A step must bring this share of the decrease that the slope predicts, and is doubled if more than
this share of the slope is left."""
SHORTEST = 1e-12
"""Length at which a step without a decrease is given up."""


class Minimum(NamedTuple):
    """Where each lane ended.

    - `point`: a tree like the start. `value`: of the objective. `slope`: the largest derivative.
    - `steps`: that were taken. `settled`: whether the lane stopped before trips ran out.
    """

    point: Any
    value: Float[np.ndarray, " lane"]
    slope: Float[np.ndarray, " lane"]
    steps: Int[np.ndarray, " lane"]
    settled: Bool[np.ndarray, " lane"]


class _State(NamedTuple):
    point: Array  # [lane, p]
    value: Array
    gradient: Array
    direction: Array
    length: Array  # of the step to try, in directions
    moves: Array  # [memory, lane, p], the oldest first
    bends: Array
    steps: Array
    done: Array
    trip: Array


def minimise(
    objective: Callable[[Any, Any], Array],
    start: Any,
    args: Any,
    *,
    trips: int = 300,
    tolerance: float = 1e-6,
) -> Minimum:
    """Minimise `objective(point, args)` in every lane.

    Arguments:
    - `objective`: a module-level function, so that one program serves all calls of one shape.
      Returns [lane]; the value of a lane may depend on its own point only.
    - `start`: a tree of arrays with a leading axis of lanes.
    - `trips`: evaluations at most.
    - `tolerance`: a lane stops where no derivative exceeds it, relative to the value or 1, or where
      a step brings less than its square.
    """
    point, value, gradient, steps, done = _minimise(
        objective, start, args, jnp.asarray(trips), jnp.asarray(tolerance)
    )
    return Minimum(
        *(jax.tree.map(np.asarray, x) for x in (point, value, abs(gradient).max(-1), steps, done))
    )


@functools.partial(jax.jit, static_argnums=0)
def _minimise(objective: Any, start: Any, args: Any, trips: Array, tolerance: Array) -> Any:
    unpacked = jax.vmap(ravel_pytree(jax.tree.map(lambda x: x[0], start))[1])

    def total(x: Float[Array, "lane p"]) -> tuple[Array, Array]:
        values = objective(unpacked(x), args)
        return values.sum(), values

    def advance(state: _State) -> _State:
        tried = state.point + state.length[:, None] * state.direction
        (_, value), gradient = jax.value_and_grad(total, has_aux=True)(tried)
        predicted = state.length * _dot(state.gradient, state.direction)
        good = (value <= state.value + DECREASE * predicted) & jnp.isfinite(gradient).all(-1)
        taken = good & ~state.done

        move, bend = tried - state.point, gradient - state.gradient
        # Never at the first trip, which has not moved.
        curved = taken & (_dot(move, bend) > 1e-10 * _dot(bend, bend))
        moves, bends = (
            jnp.where(curved[:, None], jnp.concatenate([old[1:], new[None]]), old)
            for old, new in ((state.moves, move), (state.bends, bend))
        )
        # No step brings a decrease: forget the curvature, or end the lane if there is none.
        lost = ~good & (state.length < SHORTEST)
        moves, bends = (jnp.where(lost[:, None], 0, x) for x in (moves, bends))

        point = jnp.where(taken[:, None], tried, state.point)
        here = jnp.where(taken[:, None], gradient, state.gradient)
        ahead = -_apply_inverse_hessian(here, moves, bends)
        steep = taken & (
            _dot(gradient, state.direction) < STEEP * _dot(state.gradient, state.direction)
        )
        fresh = (moves == 0).all((0, 2))
        first = jnp.where(fresh, jnp.minimum(1, 1 / jnp.sqrt(_dot(here, here) + 1e-300)), 1.0)
        # The minimum of the parabola through both values and the slope.
        fit = predicted / (2 * (predicted - (value - state.value)))
        shorter = state.length * jnp.clip(jnp.where(jnp.isfinite(fit), fit, 0.1), 0.1, 0.5)
        length = jnp.where(
            taken, jnp.where(steep, 2 * state.length, first), jnp.where(lost, first, shorter)
        )
        direction = jnp.where((taken & ~steep)[:, None] | lost[:, None], ahead, state.direction)

        gain = state.value - value
        scale = jnp.maximum(1, jnp.abs(value))
        flat = taken & (
            (gain <= tolerance**2 * scale) | (jnp.abs(gradient).max(-1) <= tolerance * scale)
        )
        stuck = lost & (state.moves == 0).all((0, 2))
        return _State(
            point,
            jnp.where(taken, value, state.value),
            here,
            direction,
            length,
            moves,
            bends,
            state.steps + taken,
            state.done | flat | stuck,
            state.trip + 1,
        )

    point = jax.vmap(lambda lane: ravel_pytree(lane)[0])(start)
    lanes, zero = point.shape[:1], jnp.zeros_like(point)
    empty = jnp.zeros((MEMORY, *point.shape), point.dtype)
    # The first trip does not move and is always taken: it computes the first gradient.
    begun = _State(
        point,
        jnp.full(lanes, jnp.inf, point.dtype),
        zero,
        zero,
        jnp.ones(lanes, point.dtype),
        empty,
        empty,
        jnp.zeros(lanes, jnp.int32) - 1,
        jnp.zeros(lanes, bool),
        jnp.zeros((), jnp.int32),
    )
    last = jax.lax.while_loop(
        lambda state: (state.trip < trips) & ~state.done.all(), advance, begun
    )
    return unpacked(last.point), last.value, last.gradient, last.steps, last.done


def _dot(x: Array, y: Array) -> Array:
    return (x * y).sum(-1)


def _apply_inverse_hessian(
    gradient: Float[Array, "lane p"],
    moves: Float[Array, "memory lane p"],
    bends: Float[Array, "memory lane p"],
) -> Float[Array, "lane p"]:
    """The inverse Hessian, estimated from the memory, times the gradient; empty entries are
    skipped."""
    products = _dot(moves, bends)
    rates = jnp.where(products > 0, 1 / jnp.where(products > 0, products, 1), 0)

    def back(x: Array, parts: Any) -> tuple[Array, Array]:
        move, bend, rate = parts
        share = rate * _dot(move, x)
        return x - share[:, None] * bend, share

    def forth(x: Array, parts: Any) -> tuple[Array, None]:
        move, bend, rate, share = parts
        return x + (share - rate * _dot(bend, x))[:, None] * move, None

    x, shares = jax.lax.scan(back, gradient, (moves, bends, rates), reverse=True)
    size = _dot(bends[-1], bends[-1])
    x = x * jnp.where(size > 0, products[-1] / jnp.where(size > 0, size, 1), 1)[:, None]
    return jax.lax.scan(forth, x, (moves, bends, rates, shares))[0]
