"""What the head is measured against: the constant, the best linear, the softmax and the Bayes predictor, whose risks are
far too small for plain sampling, and an explicit bound."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attlas.errors import positive, whole
from attlas.gaussian import Estimate, Real, draw_gamma, float64, monte_carlo
from attlas.single_location.task import Constants, SingleLocation, best_weights


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
    `constant_risk`. Costs O(length) a sample: norms enter through their chi-square law. Where the Bayes predictor
    errs too rarely to be seen so, `bayes_gap` sees it.
    """
    args = (task.constants, task.dim, jnp.asarray(task.location_law), jnp.asarray(positive("lam", lam), float))
    mean, error = monte_carlo(draw_baselines, key, whole("samples", samples, 2), *args)
    return {name: Estimate(mean[i], error[i]) for i, name in enumerate(Baselines._fields)}


def draw_baselines(key: Array, block: int, c: Constants, dim: Real, law: Array, lam: Array) -> Array:
    """Losses [4, n] in the order of `Baselines`."""
    place = places(key, block, law)
    mean, scale = first(len(law), c.m, 0.0), first(len(law), c.gamma, 1.0)
    along_k, along_v, rest = projections(key, block, dim, mean, scale)
    noise = jax.random.normal(jax.random.fold_in(key, len(law)), (block,))
    target = along_v[0] + c.noise * noise
    logits = log_odds(c, along_k, along_k**2 + along_v**2 + rest) + jnp.log(law)[place]
    weights = best_weights(law, c.gamma)[place]
    predictions = Baselines(
        bayes=(jax.nn.softmax(logits, axis=0) * along_v).sum(0),
        oracle=(jax.lax.erf(lam * along_k) * along_v).sum(0),
        linear=(weights * along_v).sum(0),
        constant=jnp.zeros(block),
    )
    return (jnp.stack(predictions) - target) ** 2


def log_odds(c: Constants, along_k: Array, square: Array) -> Array:
    r"""Log likelihood ratio of a token to be the informative one, up to a constant."""
    return c.m / c.gamma**2 * along_k - (c.gamma**-2 - 1) / 2 * square


def first(length: int, here: Real, elsewhere: Real, count: int = 1) -> Array:
    """One value for the first `count` of `length` tokens and another for the rest: [length]."""
    return jnp.where(jnp.arange(length) < count, here, elsewhere)


def projections(key: Array, block: int, dim: Real, mean: Array, scale: Array) -> tuple[Array, Array, Array]:
    """Of tokens N(mean k*, scale^2 I): their products with k* and v*, and the square of what is left, each [length, n].
    A token's numbers do not depend on how many there are."""

    def one(cell: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        token, mean, scale = cell
        plane, rest = jax.random.split(jax.random.fold_in(key, token))
        a, b = jax.random.normal(plane, (2, block))
        return mean + scale * a, scale * b, scale**2 * 2 * draw_gamma(rest, (dim - 2) / 2, (block,))

    return jax.lax.map(one, (jnp.arange(len(mean)), mean, scale))


def places(key: Array, block: int, law: Array) -> Array:
    """Where in the sequence each token stands, [length, n]: the first at a place drawn from `law`, since it is the
    informative one, the second at any other, the rest behind it."""
    length = len(law)
    u, w = jax.random.uniform(jax.random.fold_in(key, length + 1), (2, block))
    location = (jnp.cumsum(law)[:-1, None] <= u).sum(0)
    shift = (w * (length - 1)).astype(int)
    behind = 1 + (jnp.arange(length - 1)[:, None] + shift) % (length - 1)
    return jnp.concatenate([location[None], (location + behind) % length])


class LogEstimate(NamedTuple):
    """Natural logarithm of a Monte-Carlo mean, and its standard error, which is the mean's relative one."""

    log: Real
    error: Real


@float64
def bayes_gap(task: SingleLocation, key: Array, samples: int) -> LogEstimate:
    r"""Risk of the Bayes predictor less $\varepsilon^2$, however small, in logarithm.

    It errs where another token looks as informative as the informative one. So both are drawn from the geometric
    mean of the two laws, $N(\frac{m}{1+\gamma^2} k^*, \frac{2\gamma^2}{1+\gamma^2} I)$, and reweighted by
    $Z^2 e^{(\ell_0 - \ell_1)/2}$, with the log odds $\ell$ and $Z$ the Bhattacharyya coefficient of the laws. The
    other token can be the second one throughout: $E f = (L - 1)\,E\big[f\,\frac{w_1}{1 - w_0}\big]$ for every loss $f$
    that does not depend on their order.
    """
    law = task.location_law
    if np.max(law) == 1:  # nothing to find out
        return LogEstimate(-math.inf, 0.0)
    return log_bayes_gap(key, whole("samples", samples, 2), task.constants, np.asarray(task.dim, float), law)


@float64
def softmax_gap(task: SingleLocation, key: Array, samples: int, beta: float | None = None) -> LogEstimate:
    r"""Risk of the softmax head $\sum_l \mathrm{softmax}(\beta\langle x, k^*\rangle)_l \langle x_l, v^*\rangle$ less
    $\varepsilon^2$, in logarithm; $\beta = m$ unless given.

    As in `bayes_gap`, with the law tilted by $e^{-\tau(a_0 - a_1)}$ in the projections $a$ on $k^*$ alone: no other
    direction matters. $\tau = \min(\frac{m}{1+\gamma^2}, 2\beta)$ is where the exponent is stationary.
    """
    beta = task.m if beta is None else positive("beta", beta)
    # By the program that searches for the best beta, at one point.
    betas, tokens = np.full(BETAS, beta, float), np.arange(task.length)
    log, error = map(np.asarray, log_softmax_gaps(key, whole("samples", samples, 2), task.constants, tokens, betas))
    return LogEstimate(log[0], error[0])


BETAS = 9
"""Points at which a curve over inverse temperatures is computed."""


@float64
def tuned_softmax(task: SingleLocation, key: Array, samples: int) -> tuple[float, LogEstimate]:
    """The inverse temperature at which the softmax head's risk is least, and its gap there, from other samples than those
    that chose it."""
    search, final = jax.random.split(key)
    tokens, low, high = np.arange(task.length), math.log(task.m / 20), math.log(4 * task.m * max(1, task.gamma**-2))
    for _ in range(3):  # common random numbers: the curve is smooth, and each pass narrows it threefold
        betas = np.exp(np.linspace(low, high, BETAS))
        logs = np.asarray(log_softmax_gaps(search, whole("samples", samples, 2), task.constants, tokens, betas).log)
        best = math.log(betas[int(np.argmin(logs))])
        low, high = best - (high - low) / 6, best + (high - low) / 6
    return math.exp(best), softmax_gap(task, final, samples, math.exp(best))


def linear_attention(task: SingleLocation) -> tuple[float, float]:
    r"""The best linear attention $\lambda\sum_l \langle x_l, k^*\rangle\langle x_l, v^*\rangle$: its
    $\lambda = \frac{\gamma^2 m}{\gamma^2(m^2 + \gamma^2) + L - 1}$ and its excess risk
    $\gamma^2 \frac{\gamma^4 + L - 1}{\gamma^2(m^2 + \gamma^2) + L - 1}$."""
    square, others = task.gamma**2, task.length - 1
    whole_square = square * (task.m**2 + square) + others
    return square * task.m / whole_square, square * (square**2 + others) / whole_square


@jax.jit
def log_bayes_gap(key: Array, samples: int | Array, c: Constants, dim: Array, law: Array) -> LogEstimate:
    mean, error = monte_carlo(draw_bayes_gap, key, samples, c, dim, law)
    return LogEstimate(jnp.log(mean) + jnp.log(c.length - 1) - dim * bayes_exponent(c.gamma), error / mean)


def draw_bayes_gap(key: Array, block: int, c: Constants, dim: Array, law: Array) -> Array:
    spread = 1 + c.gamma**2
    mean = first(len(law), c.m / spread, 0.0, count=2)
    scale = first(len(law), jnp.sqrt(2 / spread) * c.gamma, 1.0, count=2)
    along_k, along_v, rest = projections(key, block, dim, mean, scale)
    odds = log_odds(c, along_k, along_k**2 + along_v**2 + rest)
    # The sign of <x, v*> is independent of all else, so that products of two of them vanish in the mean.
    return _reweighted(odds + jnp.log(law)[places(key, block, law)], along_v**2, (odds[0] - odds[1]) / 2)


@jax.jit
def log_softmax_gaps(key: Array, samples: int | Array, c: Constants, tokens: Array, betas: Array) -> LogEstimate:
    """The gap at each of `betas`, on the same samples."""
    tilts = jnp.minimum(c.m / (1 + c.gamma**2), 2 * betas)
    mean, error = monte_carlo(draw_softmax_gaps, key, samples, c, tokens, betas, tilts)
    log_scale = jnp.log(c.length - 1) - tilts * c.m + tilts**2 * (1 + c.gamma**2) / 2
    return LogEstimate(jnp.log(mean) + log_scale, error / mean)


def draw_softmax_gaps(key: Array, block: int, c: Constants, tokens: Array, betas: Array, tilts: Array) -> Array:
    noise = jax.lax.map(lambda token: jax.random.normal(jax.random.fold_in(key, token), (block,)), tokens)
    scale = first(len(tokens), c.gamma, 1.0)[:, None]

    def at(point: tuple[Array, Array]) -> Array:
        beta, tilt = point
        mean = jnp.where(tokens == 0, c.m - c.gamma**2 * tilt, jnp.where(tokens == 1, tilt, 0.0))
        along_k = mean[:, None] + scale * noise
        return _reweighted(beta * along_k, scale**2, tilt * (along_k[0] - along_k[1]))

    return jax.lax.map(at, (betas, tilts))


def _reweighted(logits: Array, squares: Array, log_weight: Array) -> Array:
    r"""$\big[(1 - w_0)^2 y_0^2 + \sum_{l>0} w_l^2 y_l^2\big]\,\frac{w_1}{1 - w_0}\,e^{\text{log\_weight}}$, w the softmax of
    the logits [length, n]: the squared error of $\sum_l w_l y_l$ for $y_0$, in logarithms until the end."""
    log_w = jax.nn.log_softmax(logits, axis=0)
    missed = jax.nn.logsumexp(log_w[1:], axis=0)
    parts = jnp.concatenate([missed[None], log_w[1:]])
    loss = jax.nn.logsumexp(2 * parts + jnp.log(squares), axis=0)
    return jnp.exp(loss + log_w[1] - missed + log_weight)


@jax.jit
def bayes_exponent(gamma: Real) -> Real:
    r"""Rate in d at which the Bayes gap vanishes, $\frac{1}{4(1+\gamma^2)} + \ln\frac{1+\gamma^2}{2\gamma}$: twice the
    Bhattacharyya distance of the two tokens' laws, a dimension."""
    return softmax_exponent(gamma) + jnp.log((1 + gamma**2) / (2 * gamma))


def softmax_exponent(gamma: Real) -> Real:
    r"""Rate in d at which the softmax gap vanishes, $\frac{1}{4(1+\gamma^2)}$, for every $\beta \ge \frac{m}{2(1+\gamma^2)}$."""
    return 1 / (4 * (1 + gamma**2))


@jax.jit
def log_bayes_asymptote(c: Constants, dim: Real) -> Real:
    r"""The Bayes gap for large d, with its constant, in logarithm: $(L-1)\,\frac{4\gamma^2}{1+\gamma^2}\,\frac\pi2\,
    (2\pi V)^{-1/2} e^{-rd}$, $r$ the `bayes_exponent` and $V = 2d\big[\frac{4\gamma^2}{(1+\gamma^2)^3} +
    \frac{2(1-\gamma^2)^2}{(1+\gamma^2)^2}\big]$ the variance of $\ell_0 - \ell_1$ where both tokens look alike."""
    square = c.gamma**2
    variance = 2 * dim * (4 * square / (1 + square) ** 3 + 2 * ((1 - square) / (1 + square)) ** 2)
    constant = (c.length - 1) * 2 * jnp.pi * square / (1 + square) / jnp.sqrt(2 * jnp.pi * variance)
    return jnp.log(constant) - dim * bayes_exponent(c.gamma)


@jax.jit
def log_softmax_asymptote(c: Constants, dim: Real) -> Real:
    r"""The softmax gap at $\beta = m$ for large d, with its constant, in logarithm: $(L-1)\,\sqrt{\frac{1+\gamma^2}{2\pi}}\,
    \frac{B(q, 2-q)}{m} e^{-rd}$, $q = \frac{1}{1+\gamma^2}$, $r = \frac q4$ and Euler's $B$."""
    q = 1 / (1 + c.gamma**2)
    beta = jax.scipy.special.betaln(q, 2 - q)
    return jnp.log((c.length - 1) / c.m) + beta - jnp.log(2 * jnp.pi * q) / 2 - dim * q / 4


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
