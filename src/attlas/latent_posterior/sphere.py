r"""Contexts of keys on a sphere, and exact mean squared errors of attention on them.

Keys are uniform on the unit sphere of R^p; values have the conditional mean $m(k) = \sum_l w_l
P_l(k_1)$, a sum of zonal harmonics, and Gaussian noise. Errors are averaged over noise and queries
exactly, so that a simulation draws keys only.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float
from scipy.special import roots_jacobi

from attlas.attention import softmax
from attlas.gaussian import Real, stream
from attlas.kernels import Exponential
from attlas.latent_posterior.rates import zonal
from attlas.surface import public

AMBIENT = 6
"""Spheres lie in at least this many dimensions, so that one compiled program serves several."""


class Sphere(NamedTuple):
    """The unit sphere of R^dim, with conditional means and nodes for queries.

    Arguments:
        present: 1 for each of the dim coordinates, 0 for the padding.
        curves: of each row of a mix, or one for all, the conditional mean as a polynomial of the
            first coordinate, highest degree first.
        nodes, law: Gauss-Jacobi nodes and weights for the first coordinate of a uniform query.
    """

    present: Float[Any, " ambient"]
    curves: Float[Any, "#row c"]
    nodes: Float[Any, " q"]
    law: Float[Any, " q"]


def sphere_of(dim: int, weights: Any, queries: int) -> Sphere:
    """The sphere of R^dim with means that have these weights, [c] or [row, c], of zonal harmonics.

    Everything else is symmetric about the axis, so errors at the nodes give the mean over uniform
    queries.
    """
    weights = np.atleast_2d(weights)
    degrees = weights.shape[1]
    places = np.cos(np.pi * (np.arange(degrees) + 0.5) / degrees)
    values = np.stack([zonal(l, dim, places) for l in range(degrees)], 1) @ weights.T
    nodes, law = roots_jacobi(queries, (dim - 3) / 2, (dim - 3) / 2)
    present = (np.arange(max(AMBIENT, dim)) < dim).astype(float)
    curves = np.polyfit(places, values, degrees - 1).T
    return Sphere(present, curves, nodes, law / law.sum())


@public
def draw_contexts(
    key: Array, draws: int, length: int, sphere: Sphere
) -> Float[np.ndarray, "draw token ambient"]:
    """Normal numbers from which `squared_errors` makes queries and keys; each draw has its own
    stream.

    Arguments:
        length: keys of each draw.
        sphere: gives the number of queries, one for each node, and the width.

    Returns: [draw, queries + length, ambient], the queries first.
    """
    shape = (len(sphere.nodes) + length, len(sphere.present))
    return np.stack([rng.standard_normal(shape) for rng in stream(key).spawn(draws)])


class Mix(NamedTuple):
    """Linear combinations of heads.

    Arguments:
        factors: of each head in each row; heads with a ridge come first.
        aims: 1 where the row estimates the conditional mean, 0 where it estimates 0.
    """

    factors: Float[np.ndarray, "row head"]
    aims: Float[np.ndarray, " row"]


def squared_errors(
    drawn: Float[np.ndarray, "draw token ambient"],
    length: int,
    sphere: Sphere,
    *,
    noise: float,
    temperatures: Real,
    mix: Mix,
    kernel: Exponential | None = None,
    ridges: Real = (),
) -> Float[np.ndarray, "draw row"]:
    r"""Mean squared errors at each draw of the keys, exact in the noise and the query.

    $(w^\top m(K) - m(q))^2 + \sigma^2|w|^2$, for the weights w that each row of the mix makes of
    CME attention with each ridge and softmax attention at each temperature. The keys of a draw are
    cut into as many contexts of this length as they hold, and the mean is over these: a shorter
    context is judged on the same keys as the longest.

    Arguments:
        drawn: from `draw_contexts`.
        length: of a context.
        temperatures, ridges: of softmax heads and of CME heads, lists of numbers.
        kernel: of the CME heads.
    """
    queries, keys = np.split(drawn, [len(sphere.nodes)], 1)
    parts = keys.shape[1] // length
    keys = keys[:, : parts * length].reshape(len(drawn), parts, length, -1)
    contexts = np.concatenate([np.repeat(queries[:, None], parts, 1), keys], 2)
    found = _errors_of_contexts(
        contexts.reshape(-1, *contexts.shape[2:]),
        sphere,
        np.asarray(noise),
        kernel or Exponential(1.0),
        np.array(ridges, float),
        np.array(temperatures, float),
        mix,
    )
    return np.asarray(found).reshape(len(drawn), parts, -1).mean(1)


@eqx.filter_jit
def _errors_of_contexts(
    contexts: Float[Any, "draw token ambient"],
    sphere: Sphere,
    noise: Float[Any, ""],
    kernel: Exponential,
    ridges: Float[Any, " r"],
    temperatures: Float[Any, " t"],
    mix: Mix,
) -> Float[Array, "draw row"]:
    def one(drawn: Array) -> Array:
        queries, context = _on_sphere(drawn, sphere)
        degrees = sphere.curves.shape[1]
        truth, means = (sphere.curves @ jnp.vander(x[:, 0], degrees).T for x in (queries, context))
        weights = jax.lax.map(lambda t: softmax(queries @ context.T / t), temperatures)
        if len(ridges):
            # One Gram matrix for all ridges.
            gram, cross = kernel(context, context), kernel(context, queries)
            eye = jnp.eye(len(context))
            solved = jax.lax.map(
                lambda r: cho_solve((jnp.linalg.cholesky(gram + r * eye), True), cross).T, ridges
            )
            weights = jnp.concatenate([solved, weights])
        mixed = jnp.tensordot(mix.factors, weights, 1)
        bias = (mixed @ means[..., None])[..., 0] - mix.aims[:, None] * truth
        return (bias**2 + noise**2 * (mixed**2).sum(-1)) @ sphere.law

    return jax.lax.map(one, contexts)


def _on_sphere(drawn: Float[Array, "token ambient"], sphere: Sphere) -> tuple[Array, Array]:
    """Queries at the nodes, each rotated about the axis at random, and uniform keys."""
    queries = len(sphere.nodes)
    drawn = drawn * sphere.present
    across = drawn[:queries].at[:, 0].set(0)
    across, keys = (
        x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (across, drawn[queries:])
    )
    return (across * jnp.sqrt(1 - sphere.nodes[:, None] ** 2)).at[:, 0].set(sphere.nodes), keys
