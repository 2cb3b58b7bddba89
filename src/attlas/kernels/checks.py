"""What may be wrong with queries, keys, values, masks and ridges, named in one sentence each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from attlas.errors import InputError
from attlas.gaussian import Real


def check_ridge(ridge: Real) -> Real:
    """`ridge`, if it is 0 or more; what JAX is tracing passes unseen."""
    if isinstance(ridge, Tracer):
        return ridge
    try:
        numbers = np.asarray(ridge, float)
    except (TypeError, ValueError) as error:
        raise InputError(f"ridge = {ridge!r}: it must be a number, 0 or more") from error
    wrong = numbers[~(np.isfinite(numbers) & (numbers >= 0))]
    if wrong.size:
        raise InputError(
            f"ridge = {wrong[0]:g}: it must be a number, 0 or more, and 0 only where no key's "
            "kernel is a combination of the others'"
        )
    return ridge


def check_pivots(pivots: np.ndarray, ridge: Real) -> None:
    """Refuse a Cholesky factor with this diagonal [..., n] if it failed.

    Without a ridge it has failed too where the least pivot is rounding of the largest.
    """
    pivots = np.atleast_2d(pivots)
    least, largest = pivots.min(-1), pivots.max(-1)
    bare = False if isinstance(ridge, Tracer) else np.asarray(ridge) == 0
    rounding = pivots.shape[-1] * np.finfo(pivots.dtype).eps * largest**2
    if np.any(np.broadcast_to(bare, least.shape) & ~(least**2 > rounding)):
        raise InputError(
            "ridge = 0: the Gram matrix of the keys is singular, so that ridge must be positive"
        )
    if not np.isfinite(least).all():
        raise InputError(
            f"ridge = {np.min(np.asarray(ridge)):g}: the Gram matrix with it is not positive"
            f" definite in {pivots.dtype}; ridge must be larger, or the kernel is not positive"
            " semi-definite"
        )


def check_finite(name: str, x: np.ndarray, mask: np.ndarray | None = None) -> None:
    """Refuse rows [..., n, d] that are not finite, but for those outside `mask` [..., n]."""
    good = np.isfinite(x).all(-1)
    bad = np.argwhere(~good if mask is None else ~good & mask)
    if len(bad):
        where = ", ".join(map(str, bad[0]))
        raise InputError(
            f"{name} has a NaN or an infinity in row {where}: all numbers must be finite"
        )


def as_sequences(queries: Any, keys: Any, values: Any, mask: Any) -> tuple[Any, Array, Any, Any]:
    """The arrays in floating point, with their leading axes broadcast, after all checks.

    Arguments: queries [*s q d], keys [*s n d], values [*s n k], mask [*s n]; all but keys may be
    None. Returns them in that order.
    """
    given = {"queries": queries, "keys": keys, "values": values}
    arrays = {name: _as_rows(name, x) for name, x in given.items() if x is not None}
    length = arrays["keys"].shape[-2]
    _check_shapes({name: x.shape for name, x in arrays.items()}, mask)
    try:
        leading = jnp.broadcast_shapes(
            *(x.shape[:-2] for x in arrays.values()), () if mask is None else jnp.shape(mask)[:-1]
        )
    except ValueError as error:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
        raise InputError(
            f"the leading axes of {shapes} do not fit: they must be equal, or 1"
        ) from error
    if mask is not None:
        if not isinstance(mask, Tracer) and not np.isin(np.asarray(mask), (0, 1)).all():
            raise InputError(
                "the mask has other entries than true and false: it must be true where a token"
                " counts (of one that is added to scores, mask == 0)"
            )
        mask = jnp.broadcast_to(jnp.asarray(mask, bool), (*leading, length))
        if not isinstance(mask, Tracer) and not np.asarray(mask).any(-1).all():
            raise InputError(
                "the mask admits no token: it must admit at least one of each sequence"
            )
    arrays = {name: jnp.broadcast_to(x, (*leading, *x.shape[-2:])) for name, x in arrays.items()}
    for name, x in arrays.items():
        if not isinstance(x, Tracer) and not isinstance(mask, Tracer):
            admitted = None if mask is None or name == "queries" else np.asarray(mask)
            check_finite(name, np.asarray(x), admitted)
    return arrays.get("queries"), arrays["keys"], arrays.get("values"), mask


def _as_rows(name: str, x: Any) -> Array:
    x = jnp.asarray(x)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        empty = name == "keys" and x.ndim > 1 and x.shape[-2] == 0
        what = "the context is empty" if empty else "it must be rows of numbers"
        raise InputError(f"{name} has the shape {x.shape}: {what}")
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def _check_shapes(shapes: dict[str, tuple[int, ...]], mask: Any) -> None:
    length, width = shapes["keys"][-2:]
    if "queries" in shapes and shapes["queries"][-1] != width:
        raise InputError(
            f"queries have the width {shapes['queries'][-1]} and keys {width}: they must be equal"
        )
    if "values" in shapes and shapes["values"][-2] != length:
        raise InputError(
            f"there are {shapes['values'][-2]} values and {length} keys: "
            "there must be one value for each key"
        )
    if mask is not None and (jnp.ndim(mask) == 0 or jnp.shape(mask)[-1] != length):
        raise InputError(
            f"the mask has the shape {jnp.shape(mask)}: its last axis must be {length} long, "
            "one for each token"
        )


def as_context(keys: Any, values: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """The keys [n d] and values [n k] of one context that `mask` [n] admits, as NumPy arrays.

    Keys in float32 stay so; everything else becomes float64.
    """
    if isinstance(keys, Tracer) or isinstance(values, Tracer):
        raise InputError(
            "fit_cme takes numbers, not what is traced: inside jit or grad use cme_attention"
        )
    single = np.asarray(keys).dtype == np.float32
    with jax.enable_x64(True):
        _, keys, values, mask = as_sequences(None, keys, values, mask)
    keys, values = np.asarray(keys, np.float32 if single else float), np.asarray(values, float)
    if keys.ndim > 2:
        raise InputError(f"keys has the shape {keys.shape}: one context is [tokens, dim]")
    return (keys, values) if mask is None else (keys[np.asarray(mask)], values[np.asarray(mask)])
