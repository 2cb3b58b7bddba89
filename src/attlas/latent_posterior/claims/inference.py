"""Claims about attention that infers: what CME attention and softmax attention are."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.attention import softmax_attention
from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.claims.rules import Agreement
from attlas.figure import Figure, agreement
from attlas.kernels import Exponential, Kernel, Linear, Polynomial, cme_attention, cme_variance
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.shared import LEGENDS, TOKENS, on_sphere
from attlas.latent_posterior.models import BayesianRegression, identity
from attlas.latent_posterior.rates import mercer, multiplicity

TEMPERATURE = 0.25
DEGREES = np.arange(48)
"""Beyond these the kernel of the temperature above has less than rounding on the circle."""


def monomials(x: Float[Array, "*n d"]) -> Float[Array, "*n D"]:
    r"""$(1, x) \otimes (1, x)$, whose inner products are $(1 + \langle x, y\rangle)^2$."""
    raised = jnp.concatenate([jnp.ones((*x.shape[:-1], 1)), x], -1)
    return (raised[..., :, None] * raised[..., None, :]).reshape(*x.shape[:-1], -1)


def harmonics(x: Float[Array, "*n 2"]) -> Float[Array, "*n D"]:
    r"""$\sqrt{N_l\,\mu_l}\,(\cos l\theta, \sin l\theta)$ on the circle.

    Their inner products are the exponential kernel (Mercer).
    """
    angles = jnp.arctan2(x[..., 1], x[..., 0])[..., None] * DEGREES
    sizes = np.sqrt(multiplicity(DEGREES, 2) * mercer(DEGREES, TEMPERATURE, 2))
    return jnp.concatenate([sizes * jnp.cos(angles), sizes * jnp.sin(angles)], -1)


KERNELS: dict[str, tuple[Kernel, Callable[[Array], Array]]] = {
    "linear": (Linear(), identity),
    "quadratic": (Polynomial(2), monomials),
    "exponential": (Exponential(TEMPERATURE), harmonics),
}


@latent_posterior.claim(
    kind="two routes",
    reference="attention from conditional mean embedding",
    origin="our reading",
    statement=r"Where $v = z^\top\phi(k) + \varepsilon$ with $z \sim N(0, \tau^2 I)$ and"
    r" $\varepsilon \sim N(0, \sigma^2 I)$, the posterior mean of $z$ applied to $\phi(q)$, CME"
    r" attention $V^\top(G + \lambda I)^{-1}g_q$ with $\lambda = \sigma^2/\tau^2$, the"
    r" conditioned Gaussian process and ridge regression are the same; and so are their"
    r" predictive variances, which are $\sigma^2 + \tau^2[k(q, q) - g_q^\top(G + \lambda"
    r" I)^{-1}g_q]$.",
    words="Kernel attention with the right ridge is exact Bayesian inference of the latent,"
    " with the posterior mean and the variance.",
    quick=Setting(length=(5, 60), noise=0.6, scale=1.3, queries=20),
    paper=dict(length=(5, 60, 300, 1000), queries=50),
    cells=together("length"),
    hypotheses=(TOKENS,),
    rule=Agreement(rounding=1e-8),
    control=Control(
        "λ as the ridge of the covariance operator, which is Lλ for the Gram matrix",
        lambda e: {"measured": e.other},
    ),
    needs=("predictive",),
)
def cme_is_posterior_mean(cell: Setting, draws: Draws) -> Values:
    """Predictive means and variances on the circle, by each route, for each kernel.

    `other` are those of attention with the ridge of the other convention.
    """
    points = on_sphere(draws.stream("places"), cell.length + cell.queries, 2)
    drawn = draws.stream("values").standard_normal((2 * len(DEGREES) + cell.length, 1))
    weights, noise = np.split(drawn, [2 * len(DEGREES)])
    found, others = [], []
    for kernel, features in KERNELS.values():
        phi, asked = np.split(np.asarray(features(jnp.asarray(points))), [cell.length])
        values = phi @ (cell.scale * weights[: phi.shape[1]]) + cell.noise * noise
        model = BayesianRegression(2, features=features, noise=cell.noise, scale=cell.scale)
        latent, covariance = model.posterior(points[: cell.length], values)
        posterior = (
            (asked @ latent)[:, 0],
            cell.noise**2 + np.einsum("qi,ij,qj->q", asked, covariance, asked),
        )
        attention, other = (
            by_attention(kernel, points, values, np.asarray(ridge), np.asarray(cell.scale**2))
            for ridge in (model.ridge, cell.length * model.ridge)
        )
        gram = np.asarray(kernel(points, points))
        process = by_precision(
            cell.scale**2 * gram + cell.noise**2 * np.eye(len(gram)), values[:, 0]
        )
        least_squares = by_least_squares(phi, asked, values[:, 0], cell.noise, model.ridge)
        found.append([posterior, attention, process, least_squares])
        others.append(other)
    moments = np.array(found)
    return {
        **on("kernel moment query", predicted=moments[:, 0], other=np.array(others)),
        **on("kernel route moment query", measured=moments[:, 1:]),
        "error": 0.0,
        "moment": ["mean", "variance"],
        "kernel": list(KERNELS),
        "route": ["attention", "Gaussian process", "least squares"],
    }


@cme_is_posterior_mean.figure
def moments_by_route(evidence: xr.Dataset) -> Figure:
    return agreement(
        evidence,
        "CME attention is the posterior mean, and its variance the posterior's",
        what="mean or variance",
        color="route",
    )


@eqx.filter_jit
def by_attention(
    kernel: Kernel, points: Any, values: Any, ridge: Any, prior: Any
) -> tuple[Array, Array]:
    """Mean and variance at the points after those that have values."""
    keys, queries = points[: len(values)], points[len(values) :]
    mean = cme_attention(queries, keys, values, ridge=ridge, kernel=kernel)[:, 0]
    return mean, cme_variance(queries, keys, ridge=ridge, kernel=kernel, prior=prior)


Law = tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]]
"""Means and variances at the queries."""


def by_precision(covariance: Float[np.ndarray, "m m"], values: Float[np.ndarray, " n"]) -> Law:
    r"""The law of what comes after the n given values, from the joint precision $\Lambda$.

    Mean $-\Lambda_{qq}^{-1}\Lambda_{qv}V$, and the diagonal of $\Lambda_{qq}^{-1}$.
    """
    precision = np.linalg.inv(covariance)[len(values) :]
    spread = np.linalg.inv(precision[:, len(values) :])
    return -spread @ precision[:, : len(values)] @ values, np.diagonal(spread)


def by_least_squares(
    phi: Float[np.ndarray, "n D"],
    asked: Float[np.ndarray, "q D"],
    values: Float[np.ndarray, " n"],
    noise: float,
    ridge: float,
) -> Law:
    """Least squares with the ridge as further rows; variances by the factor R of its matrix."""
    width = phi.shape[1]
    lifted = np.concatenate([phi, np.sqrt(ridge) * np.eye(width)])
    latent = np.linalg.lstsq(lifted, np.append(values, np.zeros(width)), rcond=None)[0]
    half = np.linalg.lstsq(np.linalg.qr(lifted)[1].T, asked.T, rcond=None)[0]
    return asked @ latent, noise**2 * (1 + np.sum(half**2, 0))


@latent_posterior.claim(
    kind="identity",
    reference="softmax attention as a kernel smoother",
    origin="our reading",
    statement=r"For keys and queries on the unit sphere $V^\top\mathrm{softmax}(Kq/\gamma) = \sum_i"
    r" w_i v_i / \sum_i w_i$ with $w_i = e^{-|q - k_i|^2/(2\gamma)}$.",
    words="On the sphere softmax attention is a local average, and its temperature the squared"
    " width of the window.",
    hypotheses=(
        Hypothesis("spread = 0, which puts the keys on the sphere", lambda s: s.spread == 0),
    ),
    quick=Setting(length=200, dim=(2, 3, 6), temperature=0.2, spread=0.0, queries=40),
    paper=dict(length=5000, dim=(2, 3, 6, 32), queries=100),
    cells=together("dim"),
    rule=Agreement(),
    control=Control("keys of norms between 0.7 and 1.3", setting=dict(spread=0.3)),
)
def softmax_is_nadaraya_watson(cell: Setting, draws: Draws) -> Values:
    rng = draws.stream("context")
    queries, keys = np.split(on_sphere(rng, cell.queries + cell.length, cell.dim), [cell.queries])
    keys = (1 + cell.spread * rng.uniform(-1, 1, (cell.length, 1))) * keys
    values = rng.standard_normal((cell.length, 1))
    window = np.exp(-np.sum((queries[:, None] - keys) ** 2, -1) / (2 * cell.temperature))
    attention = jax.jit(softmax_attention)(queries, keys, values, temperature=cell.temperature)
    return {
        **on("query", predicted=(window @ values)[:, 0] / window.sum(1), measured=attention[:, 0]),
        "error": 0.0,
    }


@softmax_is_nadaraya_watson.figure
def attention_against_local_average(evidence: xr.Dataset) -> Figure:
    title = "Softmax attention is a local average"
    return agreement(evidence, title, what="output", color="dim", legend=LEGENDS)
