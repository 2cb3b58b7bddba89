"""What the head is measured against: the constant, the best linear and the Bayes predictor, and an explicit bound."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attlas.errors import positive, whole
from attlas.gaussian import Estimate, Real, float64, monte_carlo
from attlas.single_location.task import Constants, SingleLocation


class Baselines(NamedTuple):
    """Squared errors of four predictors on the same sequences, in one order everywhere."""

    bayes: Array
    oracle: Array
    linear: Array
    constant: Array


@float64
def sampled_baselines(task: SingleLocation, lam: float, key: Array, samples: int) -> dict[str, Estimate]:
    """Risks of the Bayes predictor, the oracle head, the best linear and the constant predictor, on the same samples.

    The Bayes risk has no closed form; the others are the twins of `SingleLocation.oracle_risk`, `linear_risk` and
    `constant_risk`. Costs O(length) a sample: norms enter through their chi-square law.
    """
    args = (task.constants, task.dim, jnp.arange(task.length), jnp.asarray(positive("lam", lam), float))
    mean, error = monte_carlo(draw_baselines, key, whole("samples", samples, 2), *args)
    return {name: Estimate(mean[i], error[i]) for i, name in enumerate(Baselines._fields)}


def draw_baselines(key: Array, block: int, c: Constants, dim: Real, tokens: Array, lam: Array) -> Array:
    """Losses [4, n] in the order of `Baselines`; the informative token is `tokens[0]`, which no predictor uses."""

    def projections(token: Array) -> tuple[Array, Array, Array]:
        plane, rest = jax.random.split(jax.random.fold_in(key, token))
        a, b = jax.random.normal(plane, (2, block))
        scale = jnp.where(token == 0, c.gamma, 1.0)
        square = 2 * jax.random.gamma(rest, (dim - 2) / 2, (block,))
        return jnp.where(token == 0, c.m, 0.0) + scale * a, scale * b, scale**2 * square

    along_k, along_v, rest = jax.vmap(projections)(tokens)
    noise = jax.random.normal(jax.random.fold_in(key, len(tokens)), (block,))
    target = along_v[0] + c.noise * noise
    logits = c.m / c.gamma**2 * along_k - (c.gamma**-2 - 1) / 2 * (along_k**2 + along_v**2 + rest)
    predictions = Baselines(
        bayes=(jax.nn.softmax(logits, axis=0) * along_v).sum(0),
        oracle=(jax.lax.erf(lam * along_k) * along_v).sum(0),
        linear=c.gamma**2 / (c.gamma**2 + c.length - 1) * along_v.sum(0),
        constant=jnp.zeros(block),
    )
    return (jnp.stack(predictions) - target) ** 2


@float64
def oracle_excess_bound(task: SingleLocation, lam: Real) -> Real:
    r"""An explicit bound on the oracle's excess risk, from which Corollary 2 follows at once:

    $$\gamma^2\Big[\tfrac1E e^{-2\lambda^2 m^2/E^2} + 4\Phi(-m/\gamma)\Big] + \tfrac4\pi (L-1)\lambda^2,\qquad E^2 = 1 + 4\lambda^2\gamma^2,$$

    by $1 - \mathrm{erf}(x) \le e^{-x^2}$ for $x \ge 0$, $\le 2$ elsewhere, and $\mathrm{erf}(x)^2 \le 4x^2/\pi$.
    """
    return excess_bound(task.constants, positive("lam", lam))


@jax.jit
def excess_bound(c: Constants, lam: Real) -> Array:
    square = 1 + 4 * (lam * c.gamma) ** 2
    missed = jnp.exp(-2 * (lam * c.m) ** 2 / square) / jnp.sqrt(square) + 4 * jax.scipy.special.ndtr(-c.m / c.gamma)
    return c.gamma**2 * missed + 4 / jnp.pi * (c.length - 1) * lam**2
