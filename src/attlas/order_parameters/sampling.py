"""The gradient of a risk on whole tokens of d dimensions: the reference for that in overlaps."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attlas.gaussian import float64
from attlas.order_parameters.descent import draw_vectors, vector_losses
from attlas.order_parameters.problem import (
    Draw,
    Overlaps,
    Problem,
    State,
    as_problems,
    check_problem,
)


@float64
def sampled_gradient(
    problem: Problem,
    vectors: Float[Any, "dim p"],
    directions: Float[Any, "dim r"],
    parameters: Any = None,
    *,
    samples: int,
    seed: int = 0,
) -> tuple[Any, Any]:
    """The gradient of the risk in U [dim, p] and in the head's parameters, by automatic
    differentiation on sampled tokens of d dimensions, the twin of `gradient`; and its standard
    errors. Both are pairs of an array and a tree like the parameters."""
    vectors, directions = np.asarray(vectors, float), np.asarray(directions, float)
    overlaps = Overlaps.of(vectors, directions).checked()
    parameters = jax.tree.map(lambda x: np.asarray(x, float), parameters)
    m, c = (x[0] for x in overlaps.coordinates())
    shape = check_problem(problem, State(m, c, parameters), len(directions))
    first = jax.tree.map(lambda x: x[0], as_problems(problem, 1))
    blocks = -(-samples // 512)
    mean, square = jax.tree.map(
        np.asarray,
        _summed_gradients(
            first, (vectors, parameters), directions, jax.random.key(seed), shape.length, blocks
        ),
    )
    return mean, jax.tree.map(
        lambda x, y: np.sqrt(np.maximum(y - x**2, 0) / (512 * blocks)), mean, square
    )


@functools.partial(jax.jit, static_argnames=("length", "blocks"))
def _summed_gradients(
    problem: Problem, at: Any, directions: Array, key: Array, length: int, blocks: int
) -> Any:
    def add(total: Any, number: Array) -> tuple[Any, None]:
        here = jax.random.fold_in(key, number)
        z, draw = draw_vectors(here, problem, 512, length, len(directions))

        def loss(at: Any, z: Array, draw: Draw) -> Array:
            u, parameters = at
            alone = jax.tree.map(lambda x: x[..., None], draw)
            return vector_losses(problem, u, parameters, directions, z[None], alone).sum()

        found = jax.vmap(jax.grad(loss), (None, 0, -1))(at, z, draw)
        both = tuple(jax.tree.map(lambda x, n=n: (x**n).mean(0), found) for n in (1, 2))
        return jax.tree.map(jnp.add, total, both), None

    zero = jax.tree.map(jnp.zeros_like, (at, at))
    total, _ = jax.lax.scan(add, zero, jnp.arange(blocks))
    return jax.tree.map(lambda x: x / blocks, total)
