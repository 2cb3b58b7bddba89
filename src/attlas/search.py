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
    """The present point of each start, not yet projected, and the best that was evaluated."""

    point: Point
    best: Point
    value: Any


def climb(
    objective: Callable[[Point, Any], Array],
    project: Callable[[Point, Any], Point],
    start: Point,
    args: Any,
    *,
    steps: int = 200,
    largest: float = 0.3,
    least: float = 1e-3,
) -> Summit:
    """Maximise `objective(point, args)` from each start over the points that `project(point, args)`
    keeps.

    Every array of a point moves along its own gradient by a step of given length: `largest` times
    its norm (or 1, if that is larger) at first, `least` times at last, in geometric progression.
    The best point seen is kept.

    Arguments:
    - `objective`, `project`: module-level functions of one repeat, so that one compiled program
      serves all calls of one shape.
    - `start`: a tree of arrays with a leading axis of repeats.
    """
    start = jax.tree.map(np.asarray, start)
    value = np.full(len(jax.tree.leaves(start)[0]), -np.inf)
    ratio = (least / largest) ** (1 / max(1, steps - 1))
    step, observe = _steps(objective, project)
    # One step more, which evaluates the last point.
    path = iterate(
        step,
        observe,
        _State(start, start, value),
        (args, largest, ratio),
        steps=steps + 1,
        record_every=steps + 1,
    )
    return Summit(path.last.best, path.last.value)


@functools.cache
def _steps(objective: Any, project: Any) -> tuple[Any, Any]:
    ascend = jax.vmap(jax.value_and_grad(objective), (0, None))

    def step(t: Array, state: _State, args: Any) -> _State:
        args, largest, ratio = args
        point = jax.vmap(project, (0, None))(state.point, args)
        value, gradient = ascend(point, args)
        better = value > state.value
        choose = jax.vmap(jnp.where)
        best = jax.tree.map(lambda new, old: choose(better, new, old), point, state.best)
        moved = jax.tree.map(
            lambda x, g: x + largest * ratio**t * _step_along(x, g), point, gradient
        )
        return _State(moved, best, jnp.where(better, value, state.value))

    def observe(t: Array, state: _State, args: Any) -> Array:
        return state.value

    return step, observe


def _step_along(x: Array, gradient: Array) -> Array:
    """A step along the gradient, as long as x, or 1 if x is shorter."""
    axes = tuple(range(1, x.ndim))
    size = jnp.sqrt((gradient**2).sum(axes, keepdims=True))
    length = jnp.maximum(1, jnp.sqrt((x**2).sum(axes, keepdims=True)))
    return length * gradient / jnp.where(size > 0, size, 1)
