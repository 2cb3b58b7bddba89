r"""What a head makes of sequences, with the tokens other than the informative one as few sums.

In the frame of online descent a token has the coordinates $x_1, x_2$ and the products
$a = x_1$ with $k$ and $b = \rho x_1 + qx_2$ with $v$. The state enters the sums over the others as
a polynomial in $\rho$ and $q$ alone.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attlas.single_location.gates import Gate


class GateSums(NamedTuple):
    r"""Sums over the other tokens of a sequence for $E = g(\lambda x_1 - c)$ and
    $S = \lambda g'(\lambda x_1 - c)$; with $b = \rho x_1 + qx_2$ the derivative is $D = Sb$."""

    e1: Array  # of E x_1
    e2: Array
    s12: Array  # of S x_1 x_2
    s22: Array
    ee: Array
    es1: Array  # of E S x_1
    es2: Array
    ss11: Array  # of S^2 x_1^2
    ss12: Array
    ss22: Array


def gate_sums(head: Gate, x1: Array, x2: Array, lam: Array) -> GateSums:
    """The sums over tokens with the coordinates `x1`, `x2` [token, ...]."""
    e, slope = _gate(head, x1, lam)
    s1, s2 = slope * x1, slope * x2
    pairs = (
        *((e, x1), (e, x2), (s1, x2), (s2, x2)),
        *((e, e), (e, s1), (e, s2), (s1, s1), (s1, s2), (s2, s2)),
    )
    return GateSums(*(added(x * y) for x, y in pairs))


def _gate(head: Gate, x1: Array, lam: Array) -> tuple[Array, Array]:
    """E and S of tokens."""
    x = lam * x1 - head.offset
    e, slope = jax.jvp(head.function, (x,), (jnp.ones_like(x),))
    return e.astype(x1.dtype), lam * slope.astype(x1.dtype)


class SoftmaxSums(NamedTuple):
    r"""Sums over the other tokens of a sequence for $u = e^{\lambda x_1 - t}$ with the largest
    exponent $t$, around their weighted means $\bar x$, lest a dominant token cancels itself."""

    top: Array
    u: Array
    mean1: Array
    mean2: Array
    u12: Array  # of u (x_1 - mean_1) x_2
    u22: Array
    uu: Array
    uu1: Array  # of u^2 (x_1 - mean_1)
    uu2: Array
    uu11: Array
    uu12: Array
    uu22: Array


def softmax_sums(x1: Array, x2: Array, lam: Array) -> SoftmaxSums:
    """`gate_sums` for softmax, whose weights are known up to the informative token's."""
    top = lam * added(x1, jnp.maximum)
    u = jnp.exp(lam * x1 - top)
    whole = added(u)
    mean1, mean2 = added(u * x1) / whole, added(u * x2) / whole
    y1, y2 = u * (x1 - mean1), u * (x2 - mean2)
    rest = (y1 * x2, y2 * x2, u * u, u * y1, u * y2, y1 * y1, y1 * y2, y2 * y2)
    return SoftmaxSums(top, whole, mean1, mean2, *map(added, rest))


def added(x: Array, add: Callable[[Array, Array], Array] = jnp.add) -> Array:
    """The sum over axis 0 by additions alone, which `one_kernel` asks for.

    XLA's own reduction over a leading axis takes five times as long where it is a kernel by itself.

    Arguments:
        add: another operation in place of addition.
    """
    odd = []
    while len(x) > 16:
        half = len(x) // 2
        if len(x) % 2:
            odd.append(x[-1])
        x = add(x[:half], x[half : 2 * half])
    return functools.reduce(add, [*x, *odd])


class Response(NamedTuple):
    """What a head makes of sequences: its `prediction` sum(E b), weight E and derivative D of the
    informative token, and sums over the others."""

    prediction: Array
    e: Array
    d: Array
    d2: Array  # of D x_2
    e_turned: Array  # of E (rho x_2 - q x_1)
    dd: Array
    de: Array
    ee: Array


def gate_response(
    head: Gate, x1: Array, b: Array, sums: GateSums, rho: Array, q: Array, lam: Array
) -> Response:
    """The response to sequences whose informative token has the products `x1` and `b`."""
    e, slope = _gate(head, x1, lam)
    return Response(
        e * b + rho * sums.e1 + q * sums.e2,
        e,
        slope * b,
        rho * sums.s12 + q * sums.s22,
        rho * sums.e2 - q * sums.e1,
        rho**2 * sums.ss11 + 2 * rho * q * sums.ss12 + q**2 * sums.ss22,
        rho * sums.es1 + q * sums.es2,
        sums.ee,
    )


def softmax_response(
    x1: Array, b: Array, sums: SoftmaxSums, rho: Array, q: Array, lam: Array
) -> Response:
    r"""`gate_response` for softmax.

    With the informative token's weight $E_0$ and the others' mean $\bar b$ the prediction is
    $T = \bar b + E_0(b_0 - \bar b)$, and the others' $D = \lambda E(b - \bar b + \bar b - T)$.
    """
    top = jnp.maximum(lam * x1, sums.top)
    own, scale = jnp.exp(lam * x1 - top), jnp.exp(sums.top - top)
    whole = own + scale * sums.u
    e, scale = own / whole, scale / whole
    mean = rho * sums.mean1 + q * sums.mean2
    shift = e * (mean - b)  # of the mean from the prediction
    uu1 = rho * sums.uu1 + q * sums.uu2
    uu11 = rho**2 * sums.uu11 + 2 * rho * q * sums.uu12 + q**2 * sums.uu22
    return Response(
        mean - shift,
        e,
        lam * e * scale * sums.u * (b - mean),
        lam * scale * (rho * sums.u12 + q * sums.u22 + shift * sums.u * sums.mean2),
        scale * sums.u * (rho * sums.mean2 - q * sums.mean1),
        (lam * scale) ** 2 * (uu11 + shift * (2 * uu1 + shift * sums.uu)),
        lam * scale**2 * (uu1 + shift * sums.uu),
        scale**2 * sums.uu,
    )
