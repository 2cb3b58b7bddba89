"""Ascent from many starts: how a bound is attacked, and a supremum estimated from below."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attlas.scan import iterate

Point = Any
"""A tree of arrays with a leading axis of repeats."""


class Summit(NamedTuple):
    """The best point that each start found, and its value [repeat]."""

    point: Point
    value: Float[np.ndarray, " repeat"]


class _State(NamedTuple):
    point: Point
    best: Point
    value: Array


def climb(
    objective: Callable[[Point, Any], Array],
    project: Callable[[Point, Any], Point],
    start: Point,
    args: Any,
    *,
    steps: int = 200,
    largest: float = 0.3,
    least: float = 1e-3,
    progress: Callable[[int, int], None] | None = None,
) -> Summit:
    """Maximise `objective(point, args)` over the points that `project(point, args)` leaves alone, from each start.

    Every array of a point moves by a step of given length along its own gradient, from `largest` to `least` times its own
    norm (or 1, if that is larger) in geometric progression; the best point seen is kept. The two functions take one repeat and
    must be module-level: then one compiled program serves all calls of one shape.
    """
    start = jax.vmap(project, (0, None))(start, args)
    value = jax.vmap(objective, (0, None))(start, args)
    ratio = (least / largest) ** (1 / max(1, steps - 1))
    step, observe = _steps(objective, project)
    path = iterate(step, observe, _State(start, start, value), (args, largest, ratio), steps=steps, record_every=max(1, steps), progress=progress)  # fmt: skip
    last = path.last.point
    ends = np.asarray(jax.vmap(objective, (0, None))(last, args))
    better = ends > path.last.value
    best = jax.tree.map(lambda new, old: np.where(_along(better, new), new, old), last, path.last.best)
    return Summit(best, np.maximum(ends, path.last.value))


@functools.cache
def _steps(objective: Any, project: Any) -> tuple[Any, Any]:
    ascend = jax.vmap(jax.value_and_grad(objective), (0, None))

    def step(t: Array, state: _State, args: Any) -> _State:
        args, largest, ratio = args
        value, gradient = ascend(state.point, args)
        better = value > state.value
        best = jax.tree.map(lambda new, old: jnp.where(_along(better, new), new, old), state.point, state.best)
        moved = jax.tree.map(lambda x, g: x + largest * ratio**t * _stride(x, g), state.point, gradient)
        return _State(jax.vmap(project, (0, None))(moved, args), best, jnp.maximum(value, state.value))

    def observe(t: Array, state: _State, args: Any) -> Array:
        return state.value

    return step, observe


def _along(flags: Any, like: Any) -> Any:
    return flags.reshape(-1, *[1] * (like.ndim - 1))


def _stride(x: Array, gradient: Array) -> Array:
    """A step along the gradient, as long as x, or 1 if x is shorter."""
    axes = tuple(range(1, x.ndim))
    size = jnp.sqrt((gradient**2).sum(axes, keepdims=True))
    length = jnp.maximum(1, jnp.sqrt((x**2).sum(axes, keepdims=True)))
    return length * gradient / jnp.where(size > 0, size, 1)
