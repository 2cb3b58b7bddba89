"""CME attention and its variance: exact, differentiable, batched over leading axes."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Shaped

from attlas.errors import InputError, positive
from attlas.gaussian import Real
from attlas.kernels.checks import as_sequences, check_pivots, check_ridge
from attlas.kernels.functions import Kernel, Numbers, check_kernel, diagonal
from attlas.surface import public

Rows = Shaped[Numbers, "..."]
"""Queries [*s q d], keys [*s n d] or values [*s n k]; the functions check that they fit."""


@public
def cme_attention(
    queries: Rows,
    keys: Rows,
    values: Rows,
    *,
    ridge: Real,
    kernel: Kernel,
    mask: Rows | None = None,
    clip: Real | Literal["values"] | None = None,
) -> Float[Array, "*s q k"]:
    r"""$V^\top(G + \text{ridge}\,I)^{-1}g_q$ for each query: the conditional mean of the values.

    Arguments:
    - `queries` [*s q d], `keys` [*s n d], `values` [*s n k]: leading axes broadcast. With the unit
      matrix [n n] for values the result is the weight of each token.
    - `ridge` [*s] and the kernel's temperature [*s] may differ between sequences or heads.
    - `mask` [*s n]: a token outside it has no influence, whatever it holds, NaN included.
    - `clip`: weights are signed, and off the support of the keys the sum of their sizes grows as
      $\sqrt{n/(4\,\text{ridge})}$. A number projects the mean on the ball of that radius, which
      never adds error if the true mean lies in it; "values" clips each coordinate to the range of
      the context's.
    - `kernel`: `RBF(temperature)` or another of this module, or a function of two sets of points.

    Zhang et al. 2022. For more than some thousands of tokens use `fit_cme`.

    >>> import numpy as np
    >>> from attlas.kernels import RBF, cme_attention, cme_variance
    >>> keys = np.linspace(0, 1, 20)[:, None]
    >>> kernel, query = RBF(0.1), np.array([[0.5]])
    >>> mean = cme_attention(query, keys, np.sin(3 * keys), ridge=1e-3, kernel=kernel)
    >>> print(f"{mean.item():.3f} for {np.sin(1.5):.3f}")
    0.996 for 0.997
    >>> bool(cme_variance(query, keys, ridge=1e-3, kernel=kernel).item() < 0.01)
    True
    """
    check_kernel(kernel)
    queries, keys, values, mask = as_sequences(queries, keys, values, mask)
    if mask is not None:
        values = jnp.where(mask[..., None], values, 0)
    cross, factor = _condition(kernel, queries, keys, ridge, mask)
    mean = cross @ jax.scipy.linalg.cho_solve((factor, True), values)
    if clip is None:
        return mean
    if isinstance(clip, str):
        if clip != "values":
            raise InputError(f"clip = {clip!r}: it must be a positive number or 'values'")
        seen = True if mask is None else mask[..., None]
        low = jnp.min(values, -2, keepdims=True, where=seen, initial=jnp.inf)
        high = jnp.max(values, -2, keepdims=True, where=seen, initial=-jnp.inf)
        return jnp.clip(mean, low, high)
    square = jnp.sum(mean**2, -1, keepdims=True)
    size = jnp.sqrt(jnp.where(square > 0, square, 1))  # the gradient of sqrt at 0 is infinite
    return mean * jnp.where(square > positive("clip", clip) ** 2, clip / size, 1)


@public
def cme_variance(
    queries: Rows,
    keys: Rows,
    *,
    ridge: Real,
    kernel: Kernel,
    prior: Real = 1.0,
    mask: Rows | None = None,
) -> Float[Array, "*s q"]:
    r"""Predictive variance of each coordinate of a value at each query,
    $\tau^2[\text{ridge} + k(q, q) - g_q^\top(G + \text{ridge}\,I)^{-1}g_q]$.

    Arguments:
    - `prior` [*s]: $\tau^2$; the noise has the variance $\tau^2\,\text{ridge}$. Without the first
      term the formula is the variance of the conditional mean.
    - the others as in `cme_attention`.

    Coordinates of a value are independent.
    """
    queries, keys, _, mask = as_sequences(queries, keys, None, mask)
    cross, factor = _condition(kernel, queries, keys, ridge, mask)
    known = jax.lax.linalg.triangular_solve(
        factor, cross, left_side=False, lower=True, transpose_a=True
    )
    left = jnp.asarray(ridge)[..., None] + diagonal(kernel, queries) - jnp.sum(known**2, -1)
    return jnp.asarray(positive("prior", prior))[..., None] * left


@eqx.filter_jit
def _factorise(
    kernel: Kernel, queries: Numbers, keys: Numbers, ridge: Numbers, mask: Numbers | None
) -> tuple[Array, Array]:
    gram, cross = kernel(keys, keys), kernel(queries, keys)
    lift = jnp.broadcast_to(ridge[..., None], gram.shape[:-1])
    if mask is not None:
        gram = jnp.where(mask[..., :, None] & mask[..., None, :], gram, 0)
        cross = jnp.where(mask[..., None, :], cross, 0)
        lift = jnp.where(mask, lift, 1)  # any positive pivot: masked tokens have no weight
    return cross, jnp.linalg.cholesky(
        gram + lift[..., None] * jnp.eye(gram.shape[-1], dtype=gram.dtype)
    )


def _condition(
    kernel: Kernel, queries: Numbers, keys: Numbers, ridge: Real, mask: Numbers | None
) -> tuple[Float[Array, "*s q n"], Float[Array, "*s n n"]]:
    r"""$g$ for each query, and the lower factor of $G + \text{ridge}\,I$."""
    if mask is not None:  # before the kernel: its gradient at NaN would be NaN
        keys = jnp.where(mask[..., None], keys, 0)
    ridge = check_ridge(ridge)
    cross, factor = _factorise(kernel, queries, keys, jnp.asarray(ridge, keys.dtype), mask)
    wanted = (*queries.shape[:-1], keys.shape[-2])
    if cross.shape != wanted:
        raise InputError(
            f"the kernel gives the shape {cross.shape}: it must be {wanted}, queries by keys"
        )
    if not isinstance(factor, Tracer):
        pivots = np.diagonal(np.asarray(factor), axis1=-2, axis2=-1)
        pivots = pivots if mask is None else np.where(mask, pivots, pivots.max(-1, keepdims=True))
        check_pivots(pivots, ridge)
    return cross, factor
