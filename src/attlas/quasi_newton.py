r"""L-BFGS from many starts at once, in one compiled program.

Every lane minimises a function of its own. A trip of the loop evaluates value and gradient of all lanes once, and a lane either takes the
step that it tried or shortens it, so that no lane waits for another's line search. Nocedal and Wright 2006, Algorithms 7.4 and 3.1.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

MEMORY = 10
"""Steps from which the curvature is read."""
DECREASE, STEEP = 1e-4, 0.9
"""A step must bring this share of the decrease that the slope promises, and is made longer where this share of the slope is left."""
LEAST = 1e-12
"""Length at which a step that still brings nothing is given up."""


class Minimum(NamedTuple):
    """Where each lane ended: a tree like `start`, its value and its largest derivative, the steps that it took, and whether it stopped of
    its own accord rather than because trips ran out."""

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
    """Minimise `objective(point, args)`, which returns a value for each lane, from `start`, a tree of arrays with a leading axis of lanes.

    The objective must be a module-level function, and a lane's value may depend on its own point alone: then one program serves all calls of
    one shape. A lane stops where no derivative exceeds `tolerance`, relative to the value or 1, where a step brings less than
    `tolerance` squared, or after `trips` evaluations.
    """
    point, value, gradient, steps, done = _minimise(
        objective, start, args, jnp.asarray(trips), jnp.asarray(tolerance)
    )
    return Minimum(
        *(jax.tree.map(np.asarray, x) for x in (point, value, abs(gradient).max(-1), steps, done))
    )


@functools.partial(jax.jit, static_argnums=0)
def _minimise(objective: Any, start: Any, args: Any, trips: Array, tolerance: Array) -> Any:
    shapes = [leaf.shape for leaf in jax.tree.leaves(start)]
    ends = np.cumsum([np.prod(shape[1:], dtype=int) for shape in shapes])[:-1]

    def unpacked(x: Float[Array, "lane p"]) -> Any:
        parts = [
            part.reshape(shape) for part, shape in zip(jnp.split(x, ends, 1), shapes, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(start), parts)

    def total(x: Array) -> tuple[Array, Array]:
        values = objective(unpacked(x), args)
        return values.sum(), values

    def measured(x: Array) -> tuple[Array, Array]:
        (_, values), gradient = jax.value_and_grad(total, has_aux=True)(x)
        return values, gradient

    def advance(state: _State) -> _State:
        tried = state.point + state.length[:, None] * state.direction
        value, gradient = measured(tried)
        promised = state.length * _dot(state.gradient, state.direction)
        good = (value <= state.value + DECREASE * promised) & jnp.isfinite(gradient).all(-1)
        taken = good & ~state.done

        move, bend = tried - state.point, gradient - state.gradient
        curved = taken & (
            _dot(move, bend) > 1e-10 * _dot(bend, bend)
        )  # never at the first trip, which has not moved
        moves, bends = (
            jnp.where(curved[:, None], jnp.concatenate([old[1:], new[None]]), old)
            for old, new in ((state.moves, move), (state.bends, bend))
        )
        # Steps that bring nothing: the curvature is forgotten, and if that was so already, the lane ends.
        lost = ~good & (state.length < LEAST)
        moves, bends = (jnp.where(lost[:, None], 0, x) for x in (moves, bends))

        point = jnp.where(taken[:, None], tried, state.point)
        here = jnp.where(taken[:, None], gradient, state.gradient)
        ahead = -_scaled(here, moves, bends)
        steep = taken & (
            _dot(gradient, state.direction) < STEEP * _dot(state.gradient, state.direction)
        )
        fresh = (moves == 0).all((0, 2))
        first = jnp.where(fresh, jnp.minimum(1, 1 / jnp.sqrt(_dot(here, here) + 1e-300)), 1.0)
        fit = promised / (
            2 * (promised - (value - state.value))
        )  # where a parabola through value, slope and value has its bottom
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

    point = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(start)], 1)
    lanes, still = point.shape[:1], jnp.zeros_like(point)
    empty = jnp.zeros((MEMORY, *point.shape), point.dtype)
    # The first trip stays where it is and is always taken: it finds the first gradient, in the one place that is compiled.
    begun = _State(
        point,
        jnp.full(lanes, jnp.inf, point.dtype),
        still,
        still,
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


def _scaled(
    gradient: Float[Array, "lane p"],
    moves: Float[Array, "memory lane p"],
    bends: Float[Array, "memory lane p"],
) -> Float[Array, "lane p"]:
    """The gradient times what the last steps say of the inverse Hessian; an empty place of the memory says nothing."""
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
