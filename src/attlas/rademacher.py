r"""Empirical Rademacher complexity of attention heads, measured.

For the scalar head $f(X) = v^\top X^\top\mathrm{softmax}(Xu)$ with $|u| \le B_u$, $|v| \le B_v$ and
signs $\sigma$, the supremum over v is explicit:
$$\frac1m\sup_{u, v}\sum_i \sigma_i f(X_i) =
B_v\sup_{|u| \le B_u}\Big|\frac1m\sum_i\sigma_i X_i^\top\mathrm{softmax}(X_iu)\Big|.$$
Ascent over u estimates it from below in any dimension; in the plane a polar grid and the Lipschitz
constant of the mixture in u, which is $B_X^2$ at most, enclose it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attlas.errors import InputError, whole
from attlas.gaussian import Estimate, Real, float64, stream
from attlas.search import climb
from attlas.surface import public


class Enclosure(NamedTuple):
    """A supremum for each draw of the signs, from below and from above [draw].

    Arguments:
        lower, upper: the ends.
    """

    lower: Float[np.ndarray, " draw"]
    upper: Float[np.ndarray, " draw"]


@public
def draw_signs(key: Array, draws: int, samples: int) -> Float[np.ndarray, "draws samples"]:
    """Fair coins, -1 or 1, for each of m = `samples` sequences.

    Arguments:
        key: of JAX. `draws`: how many.
    """
    return stream(key).choice([-1.0, 1.0], (whole("draws", draws, 1), whole("samples", samples, 1)))


@public
def correlation(
    u: Float[Array, " d"], tokens: Float[Array, "m n d"], signs: Float[Array, " m"]
) -> Float[Array, ""]:
    r"""$|\frac1m\sum_i\sigma_i X_i^\top\mathrm{softmax}(X_iu)|$.

    Arguments:
        u: the query [d]. `tokens`: m sequences [m, n, d]. `signs`: [m].
    """
    mixture = jnp.einsum("mn,mnd->md", jax.nn.softmax(tokens @ u), tokens)
    mean = signs @ mixture / len(signs)
    return jnp.sqrt(jnp.maximum(mean @ mean, 1e-300))


@float64
@public
def head_complexity(
    tokens: Float[Any, "m n d"],
    signs: Float[Any, "draws m"],
    *,
    query_norm: Real,
    value_norm: Real = 1.0,
    key: Array,
    starts: int = 8,
    steps: int = 150,
) -> Float[np.ndarray, " draws"]:
    r"""The supremum from below, for each draw of the signs $\sigma$, by ascent over u:
    $\frac{B_v}m\sup_{|u| \le B_u}|\sum_i\sigma_iX_i^\top\mathrm{softmax}(X_iu)|$.

    Arguments:
    - `tokens`: m sequences of n tokens of dimension d. `signs`: draws of m signs.
    - `query_norm`, `value_norm`: $B_u$ and $B_v$, the largest |u| and |v|.
    - `key`: of the starts. `starts`: ascents, the first from the origin; the best counts.
    - `steps`: of each ascent.

    >>> import jax
    >>> from attlas.rademacher import draw_signs, head_complexity, mean_of, planar_complexity
    >>> key = jax.random.key(0)
    >>> tokens = jax.random.normal(key, (20, 5, 2))
    >>> signs = draw_signs(key, draws=4, samples=20)
    >>> below = head_complexity(tokens, signs, query_norm=2.0, key=key, starts=2, steps=20)
    >>> found = planar_complexity(tokens, signs, query_norm=2.0)
    >>> print(bool((below <= found.upper + 1e-6).all()), float(mean_of(found.upper).mean) < 1)
    True True
    """
    tokens, signs = np.asarray(tokens, float), np.asarray(signs, float)
    draws, dim = len(signs), tokens.shape[-1]
    direction = stream(key).standard_normal((draws, starts, dim))
    radius = query_norm * np.linspace(0, 1, starts)[:, None]
    start = radius * direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    point = {"u": start.reshape(draws * starts, dim)}
    which = {"signs": np.repeat(signs, starts, axis=0)}
    found = climb(_objective, _into_ball, point | which, (tokens, query_norm), steps=steps)
    return value_norm * found.value.reshape(draws, starts).max(1)


def _objective(point: Any, args: Any) -> Array:
    return correlation(point["u"], args[0], jax.lax.stop_gradient(point["signs"]))


def _into_ball(point: Any, args: Any) -> Any:
    u, radius = point["u"], args[1]
    length = jnp.sqrt(jnp.maximum(u @ u, 1e-300))
    return {"u": u * jnp.minimum(1, radius / length), "signs": point["signs"]}


@float64
@public
def planar_complexity(
    tokens: Float[Any, "m n d"],
    signs: Float[Any, "draws m"],
    *,
    query_norm: Real,
    value_norm: Real = 1.0,
    rings: int = 64,
) -> Enclosure:
    r"""The supremum of `head_complexity` in the plane, from both sides: its value at the best node
    of a polar grid, and that plus $B_v B_X^2$ times the largest distance to the nearest node, with
    $B_X$ the length of the longest token.

    Arguments: as for `head_complexity`, with d = 2; `rings` of the grid, each with some
    $2\pi\,\text{rings}$ nodes.
    """
    tokens = np.asarray(tokens, float)
    if tokens.shape[-1] != 2:
        raise InputError(
            f"tokens have the dimension {tokens.shape[-1]}: the certificate is for the plane, 2"
        )
    rings = whole("rings", rings, 1)
    spokes = max(8, int(np.ceil(2 * np.pi * rings)))
    radii = query_norm * (np.arange(rings) + 0.5) / rings
    angles = 2 * np.pi * np.arange(spokes) / spokes
    nodes = (radii[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], -1)).reshape(-1, 2)
    distance = np.hypot(query_norm / rings / 2, query_norm * np.pi / spokes)
    radius = np.linalg.norm(tokens, axis=-1).max()
    lower = value_norm * np.asarray(_best_node(nodes, tokens, np.asarray(signs, float)))
    return Enclosure(lower, lower + value_norm * radius**2 * distance)


SCORES = 1 << 15
"""Scores that are computed at once: as many as the processor keeps at hand."""


@jax.jit
def _best_node(nodes: Array, tokens: Array, signs: Array) -> Array:
    (draws, samples), (length, dim) = signs.shape, tokens.shape[1:]
    rows = _divisor(samples, SCORES // length)
    together = _divisor(len(nodes), SCORES // (rows * length))
    parts = tokens.reshape(-1, rows, length, dim), signs.reshape(draws, -1, rows).swapaxes(0, 1)

    def largest(nodes: Array) -> Array:
        def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
            weights = jax.nn.softmax(jnp.einsum("mnd,kd->kmn", part[0], nodes))
            mixtures = jnp.einsum("kmn,mnd->kmd", weights, part[0])
            return total + jnp.einsum("sm,kmd->ksd", part[1], mixtures), None

        total, _ = jax.lax.scan(add, jnp.zeros((together, draws, dim)), parts)
        return jnp.linalg.norm(total, axis=-1).max(0) / samples

    return jax.lax.map(largest, nodes.reshape(-1, together, dim)).max(0)


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is at most `most`, or 1."""
    return next(size for size in range(max(1, min(most, number)), 0, -1) if number % size == 0)


@public
def concatenated_complexity(
    tokens: Float[Any, "m n d"], signs: Float[Any, "draws m"], *, norm: Real = 1.0
) -> Float[np.ndarray, " draws"]:
    r"""The supremum for a linear map on the concatenated sequence,
    $\frac{B}{m}|\sum_i\sigma_iX_i|_F$: about $B B_X\sqrt{n/m}$ for tokens of length $B_X$.

    Arguments: `tokens` and `signs` as for `head_complexity`; `norm` of the map, B.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from attlas.rademacher import concatenated_complexity, correlation, draw_signs
    >>> tokens, signs = jnp.ones((20, 5, 2)), draw_signs(jax.random.key(0), draws=3, samples=20)
    >>> print(concatenated_complexity(tokens, signs).shape)
    (3,)
    >>> bool(correlation(jnp.zeros(2), tokens, jnp.asarray(signs[0], float)) <= 2**0.5)
    True
    """
    tokens = np.asarray(tokens)
    flat = tokens.reshape(len(tokens), -1)
    return norm * np.linalg.norm(np.asarray(signs) @ flat, axis=1) / len(tokens)


def mean_of(draws: Any) -> Estimate:
    """The complexity from draws of the signs: mean and standard error over the last axis of
    [..., draw].

    Arguments:
        draws: an array.
    """
    draws = np.asarray(draws)
    return Estimate(draws.mean(-1), draws.std(-1, ddof=1) / np.sqrt(draws.shape[-1]))
