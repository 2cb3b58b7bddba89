"""Kernels: functions from points [*s n d] and [*s m d] to the matrix [*s n m]."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attlas.errors import InputError, positive, whole

Kernel = Callable[[Any, Any], Array]
"""From points [*s n d] and [*s m d] to [*s n m]; symmetric and positive semi-definite.

One of the classes of this module, or the caller's own function.
"""

Numbers = Array | np.ndarray


def _as_parameter(value: Any) -> Any:
    """Plain numbers as NumPy arrays: JAX would round them to float32 here and compile them in."""
    return value if isinstance(value, jax.Array) else np.asarray(value, float)


def inner_products(x: Numbers, y: Numbers) -> Float[Array, "*s n m"]:
    """The inner products of the rows of `x` [*s n d] with those of `y` [*s m d]."""
    return jnp.asarray(x) @ jnp.swapaxes(y, -1, -2)


class _Tempered(eqx.Module):
    """A kernel with a temperature [*s], which may differ between leading axes."""

    temperature: Any = eqx.field(converter=_as_parameter)

    def __check_init__(self) -> None:
        positive("temperature", self.temperature)

    def _divide(self, x: Float[Array, "*s n m"]) -> Float[Array, "*s n m"]:
        return x / jnp.asarray(self.temperature, x.dtype)[..., None, None]


class Exponential(_Tempered):
    r"""$e^{(\langle x, y\rangle - 1)/\text{temperature}}$, the kernel of softmax attention.

    It is 1 at $x = y$ on the unit sphere, where it equals `RBF`. Without the $-1$ the same CME
    needs a ridge $e^{1/\text{temperature}}$ times as large.

    Arguments:
        temperature: a positive number, or one for each sequence.
    """

    def __call__(self, x: Numbers, y: Numbers) -> Float[Array, "*s n m"]:
        return jnp.exp(self._divide(inner_products(x, y) - 1))


class RBF(_Tempered):
    r"""$e^{-|x - y|^2 / (2\,\text{temperature})}$: the temperature is the squared bandwidth.

    Arguments:
        temperature: a positive number, or one for each sequence.

    >>> import numpy as np
    >>> from attlas.kernels import RBF, Exponential, Linear, Polynomial
    >>> x = np.array([[1.0, 0.0]])
    >>> [round(float(k(x, x[:, ::-1]).item()), 3)
    ...  for k in (RBF(0.5), Exponential(0.5), Linear(), Polynomial(2, 1.0))]
    [0.135, 0.135, 0.0, 1.0]
    """

    def __call__(self, x: Numbers, y: Numbers) -> Float[Array, "*s n m"]:
        norms = jnp.sum(x**2, -1)[..., :, None] + jnp.sum(y**2, -1)[..., None, :]
        squares = norms - 2 * inner_products(x, y)
        return jnp.exp(-self._divide(jnp.maximum(squares, 0)) / 2)


class Polynomial(eqx.Module):
    r"""$(\langle x, y\rangle + \text{offset})^{\text{degree}}$.

    Arguments:
        degree: a whole number. `offset`: 0 or larger.
    """

    degree: int = eqx.field(static=True, default=2)
    offset: Any = eqx.field(converter=_as_parameter, default=1.0)

    def __check_init__(self) -> None:
        whole("degree", self.degree, 1)

    def __call__(self, x: Numbers, y: Numbers) -> Float[Array, "*s n m"]:
        products = inner_products(x, y)
        return (products + jnp.asarray(self.offset, products.dtype)) ** self.degree


class Linear(eqx.Module):
    r"""$\langle x, y\rangle$: Bayesian linear regression."""

    def __call__(self, x: Numbers, y: Numbers) -> Float[Array, "*s n m"]:
        return inner_products(x, y)


def diagonal(kernel: Kernel, points: Numbers) -> Float[Array, "*s n"]:
    """k(x, x) of each point [*s n d]."""
    return jax.vmap(lambda x: kernel(x[..., None, :], x[..., None, :])[..., 0, 0], -2, -1)(points)


def check_kernel(kernel: Any) -> None:
    if not callable(kernel) or isinstance(kernel, type):
        raise InputError(
            f"kernel = {kernel!r}: it must be a function of two sets of rows, such as RBF(1.0)"
        )
