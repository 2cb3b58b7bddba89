"""Pointwise gates, and the weights that they give to tokens."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


@functools.cache
def gate_weights(function: Callable[[Array], Array]) -> Callable[[Array, Array], tuple[Any, Any]]:
    """The weights that a pointwise gate gives to present tokens, and 1, which divides them.

    Arguments:
        function: the gate, of scores.

    >>> import numpy as np
    >>> from attlas.order_parameters import gate_weights
    >>> weights, total = gate_weights(abs)(np.array([[-2.0], [3.0]]), np.array([1.0, 0.0]))
    >>> print(weights.ravel().tolist(), total)
    [2.0, 0.0] 1
    """
    return lambda scores, present: (present[:, None] * function(scores), 1)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "erf": jax.lax.erf,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "step": lambda x: (x > 0).astype(x.dtype),
    "identity": lambda x: x,
}
"""Pointwise gates."""
