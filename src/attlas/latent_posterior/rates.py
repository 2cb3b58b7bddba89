r"""How fast attention finds the conditional mean: limits and finite-length errors on the sphere, in
closed form.

Keys are uniform on the sphere $S^{p-1}$ of $\mathbb R^p$, p = `dim` and $s = p - 1$ its own
dimension; values are $m(k)$ plus noise of the standard deviation `noise`. Both mechanisms are then
diagonal in spherical harmonics: only `powers`, $|m_l|^2$ for $l = 0, 1, \dots$, the mean square of
the degree-l part of m, enter their mean square error over a uniform query. `temperature` is that of
the kernel $e^{(t - 1)/\text{temperature}}$, $t = \langle q, k\rangle$. Everything is NumPy's, in
double precision, and broadcasts over `length`. Zhang et al. 2022; the constants are ours.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import comb, gamma, ive, roots_jacobi

from attlas.errors import InputError, positive, whole
from attlas.gaussian import Real

Heads = tuple[tuple[float, float], ...]
"""Heads of softmax attention that are added: the factor of each, and its temperature as a multiple
of the common one."""

HEAD: Heads = ((1.0, 1.0),)
PAIR: Heads = ((2.0, 1.0), (-1.0, 2.0))
"""Twice a head less one of double temperature: the bias of first order in the temperature
cancels."""

NODES = 128
"""Of each quadrature over the sphere."""

DEGREES = 1000
"""Degrees of the expansion at most; beyond them a kernel must have nothing left."""


def multiplicity(degree: Real, dim: int) -> Real:
    r"""$N_l = \binom{l+p-1}{p-1} - \binom{l+p-3}{p-1}$ independent harmonics of degree l on
    $S^{p-1}$; 1 for l = 0."""
    above = np.asarray(degree) + whole("dim", dim, 2) - 1
    return comb(above, dim - 1) - comb(above - 2, dim - 1)


def zonal(degree: int, dim: int, t: Any) -> Any:
    r"""$P_l(t)$, the harmonic of degree l that depends on $t = \langle x, e\rangle$ alone, with
    $P_l(1) = 1$ and mean square $1/N_l$.

    Gegenbauer's polynomial over its value at 1, or $\cos(l \arccos t)$ for p = 2, by
    $(l + p - 2)P_{l+1} = (2l + p - 2)\,t\,P_l - l\,P_{l-1}$. NumPy's arrays or JAX's.
    """
    whole("dim", dim, 2)
    before, here = 1 + 0 * t, t
    if whole("degree", degree, 0) == 0:
        return before
    for l in range(1, degree):
        before, here = here, ((2 * l + dim - 2) * t * here - l * before) / (l + dim - 2)
    return here


def mercer(degree: Real, temperature: Real, dim: int) -> Real:
    r"""Eigenvalue of the kernel on harmonics of degree l under the uniform law,
    $\mu_l = \Gamma(p/2)\,(2\gamma)^{p/2-1}\,e^{-1/\gamma}\,I_{l+p/2-1}(1/\gamma)$ with $\gamma$ the
    temperature; $\sum_l N_l\,\mu_l = 1$."""
    temperature = np.asarray(positive("temperature", temperature), float)
    half = whole("dim", dim, 2) / 2
    scale = gamma(half) * (2 * temperature) ** (half - 1)
    return scale * ive(np.asarray(degree) + half - 1, 1 / temperature)


def funk_hecke(degree: Real, temperature: Real, dim: int) -> Real:
    r"""What softmax attention over infinitely many uniform keys makes of a harmonic of degree l: it
    multiplies it by $a_l = I_{l+p/2-1}(1/\gamma) / I_{p/2-1}(1/\gamma) = 1 - \gamma\,l(l+p-2)/2 +
    O(\gamma^2)$.

    $a_1$ is also the constant of smoothing on a sphere of values: $\int v\,e^{\langle v,
    b\rangle/\gamma}dv = a_1\,b \int e^{\langle v, b\rangle/\gamma}dv$ for $|b| = 1$.
    """
    order = whole("dim", dim, 2) / 2 - 1
    inverse = 1 / np.asarray(positive("temperature", temperature), float)
    return ive(np.asarray(degree) + order, inverse) / ive(order, inverse)


def softmax_limit(
    mean: Callable[[np.ndarray], np.ndarray],
    at: Float[np.ndarray, " q"],
    *,
    temperature: float,
    dim: int,
    density: Callable[[np.ndarray], np.ndarray] = np.ones_like,
) -> Float[np.ndarray, " q"]:
    r"""$\frac{\int e^{\langle q, k\rangle/\gamma} m(k)\,f(k)\,dk}{\int e^{\langle q,
    k\rangle/\gamma} f(k)\,dk}$, what softmax attention tends to as the context grows.

    By quadrature: $k = tq + \sqrt{1 - t^2}\,u$ with $u \perp q$, Gauss and Jacobi's in t and in the
    cosine of u with e's part across q.

    Arguments:
        mean, density: m and f as functions of $\langle k, e\rangle$, elementwise; e is a fixed
            axis. The density need not be normalised; the uniform one by default.
        at: $\langle q, e\rangle$ of each query, [q].
        temperature, dim: $\gamma$ and p.
    """
    order = (whole("dim", dim, 2) - 3) / 2
    t, across = roots_jacobi(NODES, order, order)
    c, around = np.array([-1.0, 1.0]), np.ones(2)
    if dim > 2:
        c, around = roots_jacobi(NODES, order - 0.5, order - 0.5)
    at = np.asarray(at, float)[:, None, None]
    places = t[:, None] * at + np.sqrt((1 - t**2)[:, None] * (1 - at**2)) * c
    across = across * np.exp((t - 1) / positive("temperature", temperature))
    weights = density(places) * across[:, None] * around
    return (weights * mean(places)).sum((1, 2)) / weights.sum((1, 2))


def effective_dimension(
    length: Real, *, ridge: Real, temperature: float, dim: int, power: int = 1
) -> Real:
    r"""$\sum_l N_l\,(\mu_l / (\mu_l + \rho))^{\text{power}}$ with $\rho = \text{ridge} /
    \text{length}$.

    Arguments:
        length, ridge: $L$ and $\lambda$, of shapes [...] that broadcast.
        temperature, dim: of the kernel, and p.
        power: 1 for the number of directions that CME attention takes from the data, 2 for the
            noise that they pass on, of variance $\sigma^2/L$ times the sum.
    """
    degrees = np.arange(DEGREES)
    counts, mu = multiplicity(degrees, dim), mercer(degrees, temperature, dim)
    rho = _rho(length, ridge)[..., None]
    terms = counts * (mu / (mu + rho)) ** power
    if np.any(terms[..., -1] > 1e-12 * terms.sum(-1)):
        raise InputError(
            f"temperature = {temperature:g}: it is too small for {DEGREES} degrees at this ridge"
            f" and length"
        )
    return terms.sum(-1)


def effective_ridge(length: Real, *, ridge: Real, temperature: float, dim: int) -> Real:
    r"""The ridge that the population's covariance would need to filter as a sample's does:
    $\lambda_* = \lambda + \frac{\lambda_*}{L}\sum_l N_l\frac{\mu_l}{\mu_l + \lambda_*/L}$.

    Between $\lambda$ and $\lambda + 1$; by bisection. Arguments: as in `effective_dimension`.
    """
    length, low = np.broadcast_arrays(
        np.asarray(length, float), np.asarray(positive("ridge", ridge), float)
    )
    ridge, high = low, low + 1
    for _ in range(60):
        middle = (low + high) / 2
        known = effective_dimension(length, ridge=middle, temperature=temperature, dim=dim)
        short = middle * (1 - known / length) < ridge
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high


def cme_error(
    length: Real, *, ridge: Real, temperature: float, dim: int, powers: Real, noise: float
) -> Real:
    r"""Mean square error of CME attention,
    $\frac{\frac{\sigma^2}{L}d_2 + \sum_l\left(\frac{\kappa}{\mu_l + \kappa}\right)^2|m_l|^2}
    {1 - d_2/L}$ with $d_2 = \sum_l N_l\left(\frac{\mu_l}{\mu_l + \kappa}\right)^2$ and
    $\kappa = \lambda_*/L$ of the `effective_ridge`.

    The deterministic equivalent of kernel ridge regression (Canatar, Bordelon, Pehlevan 2021):
    good to per cent at lengths below the effective dimension too.

    Arguments:
        length, ridge: $L$ and $\lambda$, of shapes [...] that broadcast.
        temperature, dim: of the kernel, and p.
        powers: $|m_l|^2$ for $l = 0, 1, \dots$, [degree].
        noise: $\sigma$.
    """
    powers = _powers(powers)
    kernel: Any = {"temperature": temperature, "dim": dim}
    star = effective_ridge(length, ridge=ridge, **kernel)
    mu, kappa = mercer(np.arange(len(powers)), **kernel), _rho(length, star)[..., None]
    passed = effective_dimension(length, ridge=star, power=2, **kernel) / np.asarray(length)
    bias = np.sum((kappa / (mu + kappa)) ** 2 * powers, -1)
    return (noise**2 * passed + bias) / (1 - passed)


def softmax_error(
    length: Real, *, temperature: Real, dim: int, powers: Real, noise: float, heads: Heads = HEAD
) -> Real:
    r"""Mean square error of softmax attention, with every term of order 1 / length; at infinite
    length the floor of a fixed temperature.

    With $\mu_l, a_l$ of the kernel and $\nu_l$ those of its square, that is of half the
    temperature, a head has $\sum_l (1 - a_l)^2|m_l|^2 + \frac{1}{L\mu_0^2}\left[\sigma^2\nu_0 +
    \sum_l |m_l|^2\{\nu_0(1 + a_l^2) - 2a_l\nu_l + 2(1 - a_l)(\nu_l - a_l\nu_0)\}\right]$: the
    limit's bias; the noise, and the spread of m among the tokens that are averaged; and the bias of
    a ratio of two averages. Several `heads` take the same with one kernel's square replaced by the
    product of two.

    Arguments:
        length, temperature: $L$ and $\gamma$, of shapes [...] that broadcast; `length` may be
            infinite.
        dim, powers, noise: p, $|m_l|^2$ [degree] and $\sigma$.
        heads: the factor of each head, and the multiple of `temperature` that is its own.
    """
    powers, length = _powers(powers), np.asarray(length, float)[..., None]
    temperature = np.asarray(positive("temperature", temperature), float)[..., None]
    degrees = np.arange(len(powers))
    parts = [(c, m, funk_hecke(degrees, m * temperature, dim)) for c, m in heads]
    bias = 1 - sum(factor * a for factor, _, a in parts)
    spread: Any = 0
    for (one, first, a), (other, second, b) in itertools.product(parts, repeat=2):
        # The product of two exponential kernels is one of their harmonic mean temperature, halved.
        nu = mercer(degrees, temperature / (1 / first + 1 / second), dim)
        scale = mercer(0, first * temperature, dim) * mercer(0, second * temperature, dim)
        tokens = powers * (nu[..., :1] * (1 + a * b) - (a + b) * nu)
        spread += one * other * (noise**2 * nu[..., :1] / len(powers) + tokens) / scale
    for factor, multiple, a in parts:
        nu = mercer(degrees, multiple * temperature / 2, dim)
        drift = (nu - a * nu[..., :1]) / mercer(0, multiple * temperature, dim) ** 2
        spread += 2 * factor * bias * drift * powers
    return np.sum(bias**2 * powers + spread / length, -1)


def difference_error(
    length: Real,
    *,
    ridge: Real,
    kernel: float,
    temperature: Real,
    dim: int,
    powers: Real,
    noise: float,
) -> Real:
    r"""Mean square of the difference of softmax attention and CME attention with the kernel's
    temperature `kernel`.

    CME attention is a function $f$ whose residuals at the tokens have the harmonics
    $\frac{\lambda}{L\mu_l}f_l$. Softmax attention smooths $f$ at the tokens and the residuals: the
    two differ by $\{a_l(1 + \frac{\lambda}{L\mu_l}) - 1\}f_l$, and by what a finite number of
    tokens adds when $f$ is smoothed, as in `softmax_error` without noise. Here
    $|f_l|^2 = \left(\frac{\mu_l}{\mu_l + \kappa}\right)^2\left(|m_l|^2 +
    \frac{N_l}{L}(\sigma^2 + \mathrm{MSE})\right)$ with $\kappa$ and the error of `cme_error`.

    Arguments:
        length, ridge, temperature: [...], of shapes that broadcast; `temperature` is that of
            softmax.
        kernel: temperature of the kernel of CME attention.
        dim, powers, noise: p, $|m_l|^2$ [degree] and $\sigma$.
    """
    given: Any = {"ridge": ridge, "temperature": kernel, "dim": dim}
    error = cme_error(length, powers=powers, noise=noise, **given)[..., None]
    kappa = _rho(length, effective_ridge(length, **given))[..., None]
    rho, length = _rho(length, ridge)[..., None], np.asarray(length, float)[..., None]
    temperature = np.asarray(positive("temperature", temperature), float)[..., None]
    degrees = np.arange(DEGREES)
    padded = np.pad(_powers(powers), (0, DEGREES - len(powers)))
    seen = padded + multiplicity(degrees, dim) / length * (noise**2 + error)
    mu, nu = mercer(degrees, kernel, dim), mercer(degrees, temperature / 2, dim)
    a = funk_hecke(degrees, temperature, dim)
    first = nu[..., :1]
    spread = first * (1 + a**2) - 2 * a * nu + 2 * (1 - a) * (nu - a * first)
    filtered = (a * (mu + rho) - mu) ** 2 + mu**2 * spread / length / mercer(
        0, temperature, dim
    ) ** 2
    return np.sum(filtered / (mu + kappa) ** 2 * seen, -1)


def softmax_bias(temperature: Real, dim: int, powers: Real, heads: Heads = HEAD) -> Real:
    r"""$\sqrt{\sum_l (1 - a_l)^2|m_l|^2}$: the root mean square error that softmax attention of a
    fixed temperature keeps at any length.

    Arguments: as in `softmax_error`; with several heads $a_l$ is the sum of theirs, each times its
    factor.
    """
    given: dict[str, Any] = {"temperature": temperature, "dim": dim, "powers": powers}
    return np.sqrt(softmax_error(np.inf, noise=0.0, heads=heads, **given))


def optimal_temperature(length: Real, *, dim: int, powers: Real, noise: float) -> Real:
    r"""The temperature that minimises the error of a softmax head at great length,
    $\gamma = \left[\frac{s\,\sigma^2 |S^s| (4\pi)^{-s/2}}{4 B^2 L}\right]^{2/(s+4)}$, $B^2 = \sum_l
    \left(\frac{l(l+p-2)}{2}\right)^2 |m_l|^2$, $|S^s|$ the sphere's area.

    It balances the squared bias $\gamma^2B^2$ and the variance
    $\sigma^2|S^s|(4\pi\gamma)^{-s/2}/L$; the error then falls as $L^{-4/(s+4)}$.

    Arguments:
        length: $L$, [...].
        dim, powers, noise: p, $|m_l|^2$ [degree] and $\sigma$.
    """
    powers, s = _powers(powers), whole("dim", dim, 2) - 1
    degrees = np.arange(len(powers))
    curvature = np.sum((degrees * (degrees + s - 1) / 2) ** 2 * powers)
    if not curvature > 0:
        raise InputError("powers are those of a constant: the best temperature is then infinite")
    area = 2 * np.pi ** (dim / 2) / gamma(dim / 2)
    variance = s * positive("noise", noise) ** 2 * area * (4 * np.pi) ** (-s / 2)
    return (variance / (4 * curvature * np.asarray(length, float))) ** (2 / (s + 4))


def _rho(length: Real, ridge: Real) -> np.ndarray:
    return np.asarray(np.asarray(positive("ridge", ridge), float) / np.asarray(length, float))


def _powers(powers: Real) -> np.ndarray:
    powers = np.asarray(powers, float)
    if powers.ndim != 1 or not len(powers) or not np.all(powers >= 0):
        raise InputError(
            f"powers = {powers}: they must be numbers, 0 or more, one for each degree from 0"
        )
    return powers
