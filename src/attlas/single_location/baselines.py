"""What the head is compared with: the constant, best linear, softmax and Bayes predictors.

The risks of the last two are far too small for plain sampling and are sampled by tilting.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from attlas.errors import positive, whole
from attlas.gaussian import Estimate, Real, averaged
from attlas.single_location.task import Constants, SingleLocation, best_weights
from attlas.surface import public

BASELINES = ("bayes", "oracle", "linear", "constant")


@public
def sampled_baselines(
    task: SingleLocation, lam: float, key: Array, samples: int
) -> dict[str, Estimate]:
    """Risks of the Bayes, oracle, best linear and constant predictor, on the same samples.

    The Bayes risk has no closed form; the others are the twins of `SingleLocation.oracle_risk`,
    `linear_risk` and `constant_risk`. Costs O(length) a sample: norms enter through their
    chi-square law. Where the Bayes predictor errs too rarely for plain sampling, use `bayes_gap`.

    Arguments:
        lam: sharpness of the oracle head.

    Returns: estimates by name.
    """
    args = (task.constants, task.dim, task.location_law, positive("lam", lam))
    mean, error = averaged(draw_baselines, key, whole("samples", samples, 2), *args)
    return {name: Estimate(mean[i], error[i]) for i, name in enumerate(BASELINES)}


def draw_baselines(
    generator: np.random.Generator, block: int, c: Constants, dim: Real, law: np.ndarray, lam: Real
) -> np.ndarray:
    """Losses [4, n] in the order of `BASELINES`."""
    numbers, elsewhere, noise = generator.spawn(3)
    place = places(elsewhere, block, law)
    mean, scale = fill_first(len(law), c.m, 0.0), fill_first(len(law), c.gamma, 1.0)
    along_k, along_v, rest = projections(numbers, block, dim, mean, scale)
    target = along_v[0] + c.noise * noise.standard_normal(block)
    logits = log_odds(c, along_k, along_k**2 + along_v**2 + rest) + _log(law)[place]
    weights = best_weights(law, c.gamma)[place]
    each = np.stack([special.softmax(logits, axis=0), special.erf(lam * along_k), weights])
    predictions = np.append((each * along_v).sum(1), np.zeros((1, block)), 0)
    return (predictions - target) ** 2


def _log(law: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # a place may be impossible
        return np.log(law)


def log_odds(c: Constants, along_k: np.ndarray, square: np.ndarray) -> np.ndarray:
    r"""Log likelihood ratio of a token to be the informative one, up to a constant."""
    return c.m / c.gamma**2 * along_k - (c.gamma**-2 - 1) / 2 * square


def fill_first(length: int, here: Real, elsewhere: Real, count: int = 1) -> np.ndarray:
    """One value for the first `count` of `length` tokens and another for the rest: [length]."""
    return np.asarray(np.where(np.arange(length) < count, here, elsewhere))


def projections(
    generator: np.random.Generator, block: int, dim: Real, mean: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of tokens N(mean k*, scale^2 I): products with k* and v*, and the square of what is left.

    Each is [length, n]. A token's numbers do not depend on how many there are.
    """
    mean, scale = mean[:, None], scale[:, None]
    plane, rest = generator.spawn(2)
    a, b = plane.standard_normal((len(mean), 2, block)).swapaxes(0, 1)
    return mean + scale * a, scale * b, scale**2 * rest.chisquare(dim - 2, (len(mean), block))


def places(generator: np.random.Generator, block: int, law: np.ndarray) -> np.ndarray:
    """Where in the sequence each token stands, [length, n].

    The first token is the informative one and stands at a place drawn from `law`, the second at any
    other place, the rest behind it.
    """
    length = len(law)
    u, w = generator.random((2, block))
    location = np.searchsorted(np.cumsum(law)[:-1], u, side="right")
    shift = (w * (length - 1)).astype(int)
    behind = 1 + (np.arange(length - 1)[:, None] + shift) % (length - 1)
    return np.concatenate([location[None], (location + behind) % length])


class LogEstimate(NamedTuple):
    """Natural logarithm of a Monte-Carlo mean, and the mean's relative standard error."""

    log: Real
    error: Real


@public
def bayes_gap(task: SingleLocation, key: Array, samples: int) -> LogEstimate:
    r"""Risk of the Bayes predictor less $\varepsilon^2$, however small, in logarithm.

    It errs where another token looks as informative as the informative one. So both are drawn from
    the geometric mean of the two laws,
    $N(\frac{m}{1+\gamma^2} k^*, \frac{2\gamma^2}{1+\gamma^2} I)$, and reweighted by
    $Z^2 e^{(\ell_0 - \ell_1)/2}$, with the log odds $\ell$ and $Z$ the Bhattacharyya coefficient of
    the laws. The other token can be the second one throughout:
    $E f = (L - 1)\,E\big[f\,\frac{w_1}{1 - w_0}\big]$ for every loss $f$ that does not depend on
    the order of the other tokens.
    """
    law = task.location_law
    if np.max(law) == 1:  # nothing to find out
        return LogEstimate(-math.inf, 0.0)
    args = (task.constants, task.dim, law)
    mean, error = averaged(draw_bayes_gap, key, whole("samples", samples, 2), *args)
    scale = np.log(task.length - 1) - task.dim * bayes_exponent(task.gamma)
    return LogEstimate(np.log(mean) + scale, error / mean)


@public
def softmax_gap(
    task: SingleLocation, key: Array, samples: int, beta: float | None = None
) -> LogEstimate:
    r"""Risk of the softmax head less $\varepsilon^2$, however small, in logarithm.

    The head is $\sum_l \mathrm{softmax}(\beta\langle x, k^*\rangle)_l \langle x_l, v^*\rangle$.
    As in `bayes_gap`, with the law tilted by $e^{-\tau(a_0 - a_1)}$ in the projections $a$ on $k^*$
    alone: no other direction matters. $\tau = \min(\frac{m}{1+\gamma^2}, 2\beta)$ is where the
    exponent is stationary.

    Arguments:
        beta: inverse temperature, $m$ unless given.
    """
    beta = task.m if beta is None else positive("beta", beta)
    log, error = log_softmax_gaps(
        key, whole("samples", samples, 2), task.constants, np.array([beta])
    )
    return LogEstimate(log[0], error[0])


@public
def tuned_softmax(task: SingleLocation, key: Array, samples: int) -> tuple[float, LogEstimate]:
    """The inverse temperature at which the softmax head's risk is least, and its gap there.

    The gap comes from other samples than those that chose the temperature.
    """
    search, final = jax.random.split(key)
    low, high = math.log(task.m / 20), math.log(4 * task.m * max(1, task.gamma**-2))
    # Common random numbers: the curve is smooth, and each pass narrows it threefold.
    for _ in range(3):
        betas = np.exp(np.linspace(low, high, 9))
        logs = log_softmax_gaps(search, whole("samples", samples, 2), task.constants, betas).log
        best = math.log(betas[int(np.argmin(logs))])
        low, high = best - (high - low) / 6, best + (high - low) / 6
    return math.exp(best), softmax_gap(task, final, samples, math.exp(best))


@public
def linear_attention(task: SingleLocation) -> tuple[float, float]:
    r"""The best linear attention $\lambda\sum_l \langle x_l, k^*\rangle\langle x_l, v^*\rangle$.

    Returns: $\lambda = \frac{\gamma^2 m}{\gamma^2(m^2 + \gamma^2) + L - 1}$, and the excess risk
    $\gamma^2 \frac{\gamma^4 + L - 1}{\gamma^2(m^2 + \gamma^2) + L - 1}$.
    """
    square, others = task.gamma**2, task.length - 1
    whole_square = square * (task.m**2 + square) + others
    return square * task.m / whole_square, square * (square**2 + others) / whole_square


def draw_bayes_gap(
    generator: np.random.Generator, block: int, c: Constants, dim: Real, law: np.ndarray
) -> Float[np.ndarray, " n"]:
    numbers, elsewhere = generator.spawn(2)
    spread = 1 + c.gamma**2
    mean = fill_first(len(law), c.m / spread, 0.0, count=2)
    scale = fill_first(len(law), np.sqrt(2 / spread) * c.gamma, 1.0, count=2)
    along_k, along_v, rest = projections(numbers, block, dim, mean, scale)
    odds = log_odds(c, along_k, along_k**2 + along_v**2 + rest)
    # The sign of <x, v*> is independent of all else, so that products of two of them vanish in the
    # mean.
    return _reweighted(
        odds + _log(law)[places(elsewhere, block, law)], along_v**2, (odds[0] - odds[1]) / 2
    )


def log_softmax_gaps(
    key: Array, samples: int, c: Constants, betas: Float[np.ndarray, " beta"]
) -> LogEstimate:
    """The gap at each of `betas`, on the same samples."""
    tilts = np.minimum(c.m / (1 + c.gamma**2), 2 * betas)
    mean, error = averaged(draw_softmax_gaps, key, samples, c, betas, tilts)
    log_scale = np.log(c.length - 1) - tilts * c.m + tilts**2 * (1 + c.gamma**2) / 2
    return LogEstimate(np.log(mean) + log_scale, error / mean)


def draw_softmax_gaps(
    generator: np.random.Generator, block: int, c: Constants, betas: np.ndarray, tilts: np.ndarray
) -> Float[np.ndarray, "beta n"]:
    noise = generator.standard_normal((int(c.length), block))
    scale = fill_first(len(noise), c.gamma, 1.0)[:, None]
    noise *= scale
    found = []
    for beta, tilt in zip(betas, tilts, strict=True):
        along_k = noise.copy()
        along_k[0] += c.m - c.gamma**2 * tilt
        along_k[1] += tilt
        found.append(_reweighted(beta * along_k, scale**2, tilt * (along_k[0] - along_k[1])))
    return np.stack(found)


def _reweighted(
    logits: np.ndarray, squares: np.ndarray, log_weight: np.ndarray
) -> Float[np.ndarray, " n"]:
    r"""Squared error of $\sum_l w_l y_l$ for $y_0$, with the weight of the tilted law.

    $\big[(1 - w_0)^2 y_0^2 + \sum_{l>0} w_l^2 y_l^2\big]\,\frac{w_1}{1 - w_0}$ times the
    exponential of `log_weight`, $w$ the softmax of the logits [length, n]. The other weights
    are computed relative to the largest of them, since all may underflow.
    """
    top = logits[1:].max(0)
    others = np.exp(logits[1:] - top)
    missed = others.sum(0)
    loss = missed**2 * squares[0] + (others**2 * squares[1:]).sum(0)
    whole = np.logaddexp(logits[0], top + np.log(missed))
    return loss * others[0] / missed * np.exp(2 * (top - whole) + log_weight)


def bayes_exponent(gamma: Real) -> Real:
    r"""Rate in d at which the Bayes gap vanishes.

    $\frac{1}{4(1+\gamma^2)} + \ln\frac{1+\gamma^2}{2\gamma}$, twice the Bhattacharyya distance of
    the two tokens' laws, per dimension.
    """
    return softmax_exponent(gamma) + np.log((1 + gamma**2) / (2 * gamma))


def softmax_exponent(gamma: Real) -> Real:
    r"""Rate in d at which the softmax gap vanishes, $\frac{1}{4(1+\gamma^2)}$.

    It is the same for every $\beta \ge \frac{m}{2(1+\gamma^2)}$.
    """
    return 1 / (4 * (1 + gamma**2))


def log_bayes_asymptote(c: Constants, dim: Real) -> Real:
    r"""The Bayes gap for large d, with its constant, in logarithm.

    $(L-1)\,\frac{4\gamma^2}{1+\gamma^2}\,\frac\pi2\,(2\pi V)^{-1/2} e^{-rd}$ with $r$ the
    `bayes_exponent` and
    $V = 2d\big[\frac{4\gamma^2}{(1+\gamma^2)^3} + \frac{2(1-\gamma^2)^2}{(1+\gamma^2)^2}\big]$ the
    variance of $\ell_0 - \ell_1$ where both tokens look alike.
    """
    square = c.gamma**2
    variance = 2 * dim * (4 * square / (1 + square) ** 3 + 2 * ((1 - square) / (1 + square)) ** 2)
    constant = (c.length - 1) * 2 * np.pi * square / (1 + square) / np.sqrt(2 * np.pi * variance)
    return np.log(constant) - dim * bayes_exponent(c.gamma)


def log_softmax_asymptote(c: Constants, dim: Real) -> Real:
    r"""The softmax gap at $\beta = m$ for large d, with its constant, in logarithm.

    $(L-1)\,\sqrt{\frac{1+\gamma^2}{2\pi}}\,\frac{B(q, 2-q)}{m} e^{-rd}$ with
    $q = \frac{1}{1+\gamma^2}$, $r = \frac q4$ and Euler's $B$.
    """
    q = 1 / (1 + c.gamma**2)
    beta = special.betaln(q, 2 - q)
    return np.log((c.length - 1) / c.m) + beta - np.log(2 * np.pi * q) / 2 - dim * q / 4


def excess_bound(c: Constants, lam: Real) -> Real:
    r"""An explicit bound on the oracle's excess risk, from which Corollary 2 follows at once.

    $$\gamma^2\Big[\tfrac1E e^{-2\lambda^2 m^2/E^2} + 4\Phi(-m/\gamma)\Big]
      + \tfrac4\pi (L-1)\lambda^2,\qquad E^2 = 1 + 4\lambda^2\gamma^2,$$

    by $1 - \mathrm{erf}(x) \le e^{-x^2}$ for $x \ge 0$, $\le 2$ elsewhere, and
    $\mathrm{erf}(x)^2 \le 4x^2/\pi$.
    """
    square = 1 + 4 * (lam * c.gamma) ** 2
    faint = np.exp(-2 * (lam * c.m) ** 2 / square) / np.sqrt(square)
    missed = faint + 4 * special.ndtr(-c.m / c.gamma)
    return c.gamma**2 * missed + 4 / np.pi * (c.length - 1) * lam**2
