"""Claims about attention that infers: identities of CME and softmax attention, probes, bounds, and solvers for long contexts."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.attention import linear_attention, softmax_attention
from attlas.claims.compat import (
    Agreement,
    Bound,
    Control,
    Hypothesis,
    Rate,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.kernels import (
    RBF,
    Exponential,
    Kernel,
    Linear,
    Polynomial,
    cme_attention,
    cme_variance,
    cme_weights,
    fit_cme,
)
from attlas.latent_posterior.claims.shared import (
    FIGURES,
    PAPER,
    SPHERE,
    TOKENS,
    on_sphere,
    zonal_mean,
)
from attlas.latent_posterior.models import BayesianRegression, identity
from attlas.latent_posterior.rates import mercer, multiplicity

NORMALISED = Hypothesis("spread = 0, which puts the keys on the sphere", lambda s: s.spread == 0)
NOISY = Hypothesis("noise > 0 and scale > 0", lambda s: s.noise > 0 and s.scale > 0, defining=True)
WARM = Hypothesis("temperature > 0", lambda s: s.temperature > 0, defining=True)

# --- conditioning, by four routes ------------------------------------------------------------------------------------

TEMPERATURE = 0.25
DEGREES = np.arange(48)
"""Beyond these the kernel of the temperature above has less than rounding on the circle."""


def monomials(x: Float[Array, "*n d"]) -> Float[Array, "*n D"]:
    r"""$(1, x) \otimes (1, x)$, whose inner products are $(1 + \langle x, y\rangle)^2$."""
    raised = jnp.concatenate([jnp.ones((*x.shape[:-1], 1)), x], -1)
    return (raised[..., :, None] * raised[..., None, :]).reshape(*x.shape[:-1], -1)


def harmonics(x: Float[Array, "*n 2"]) -> Float[Array, "*n D"]:
    r"""$\sqrt{N_l\,\mu_l}\,(\cos l\theta, \sin l\theta)$, whose inner products are the exponential kernel on the circle (Mercer)."""
    angles = jnp.arctan2(x[..., 1], x[..., 0])[..., None] * DEGREES
    sizes = np.sqrt(multiplicity(DEGREES, 2) * mercer(DEGREES, TEMPERATURE, 2))
    return jnp.concatenate([sizes * jnp.cos(angles), sizes * jnp.sin(angles)], -1)


KERNELS: dict[str, tuple[Kernel, Callable[[Array], Array]]] = {
    "linear": (Linear(), identity),
    "quadratic": (Polynomial(2), monomials),
    "exponential": (Exponential(TEMPERATURE), harmonics),
}
ROUTES = ("posterior", "attention", "Gaussian process", "least squares")


def by_precision(
    covariance: Float[np.ndarray, "m m"], values: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    r"""Mean $-\Lambda_{qq}^{-1}\Lambda_{qv}V$ and variances, the diagonal of $\Lambda_{qq}^{-1}$, of what comes after the n given values, from the joint precision $\Lambda$."""
    precision = np.linalg.inv(covariance)[len(values) :]
    spread = np.linalg.inv(precision[:, len(values) :])
    return -spread @ precision[:, : len(values)] @ values, np.diagonal(spread)


@eqx.filter_jit
def attended(
    kernel: Kernel, keys: Any, values: Any, queries: Any, ridge: Any, prior: Any
) -> tuple[Array, Array]:
    """Mean and variance by attention."""
    mean = cme_attention(queries, keys, values, ridge=ridge, kernel=kernel)[:, 0]
    return mean, cme_variance(queries, keys, ridge=ridge, kernel=kernel, prior=prior)


@eqx.filter_jit
def seen_as(kernel: Kernel, features: Callable[[Array], Array], points: Any) -> tuple[Array, Array]:
    """Features of the points, and their kernel."""
    return features(points), kernel(points, points)


def conditioning(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Predictive means and variances on the circle, by each route; and means with the ridge of the other convention."""
    (cell,) = cells
    variance, prior = cell.noise**2, cell.scale**2
    points = on_sphere(key_for(seed, GAUSSIAN, "places"), cell.length + cell.queries, 2)
    drawn = stream(key_for(seed, GAUSSIAN, "values")).standard_normal(
        (2 * len(DEGREES) + cell.length, 1)
    )
    weights, noise = np.split(drawn, [2 * len(DEGREES)])
    means, variances, others = [], [], []
    for kernel, features in KERNELS.values():
        model = BayesianRegression(2, features=features, noise=cell.noise, scale=cell.scale)
        phi, gram = map(np.asarray, seen_as(kernel, features, points))
        phi, asked = np.split(phi, [cell.length])
        keys, queries = np.split(points, [cell.length])
        values = phi @ (cell.scale * weights[: phi.shape[1]]) + cell.noise * noise
        latent, covariance = model.posterior(keys, values)
        by_posterior = (
            (asked @ latent)[:, 0],
            variance + np.einsum("qi,ij,qj->q", asked, covariance, asked),
        )
        by_attention, (other, _) = (
            map(
                np.asarray,
                attended(kernel, keys, values, queries, np.asarray(ridge), np.asarray(prior)),
            )
            for ridge in (model.ridge, cell.length * model.ridge)
        )
        values = values[:, 0]
        process = by_precision(prior * gram + variance * np.eye(len(gram)), values)
        lifted = np.concatenate([phi, np.sqrt(variance / prior) * np.eye(phi.shape[1])])
        least = np.linalg.lstsq(lifted, np.append(values, np.zeros(phi.shape[1])), rcond=None)[0]
        narrow = np.sum(
            np.linalg.lstsq(np.transpose(np.linalg.qr(lifted)[1]), asked.T, rcond=None)[0] ** 2, 0
        )
        ways = by_posterior, by_attention, process, (asked @ least, variance * (1 + narrow))
        mean, spread = zip(*ways, strict=True)
        means.append(mean)
        variances.append(spread)
        others.append(other)
    axes = ("cell", "kernel", "route", "query")
    return xr.Dataset(
        {
            "mean": (axes, np.array(means)[None]),
            "variance": (axes, np.array(variances)[None]),
            "other": (("cell", "kernel", "query"), np.array(others)[None]),
            "error": 0.0,
        },
        coords={"kernel": list(KERNELS), "route": list(ROUTES)},
    )


GAUSSIAN = "latent-posterior/cme-is-posterior-mean"
CONDITIONING = {
    "hypotheses": (TOKENS, NOISY),
    "quick": Setting(length=(5, 60), noise=0.6, scale=1.3, queries=20),
    "paper": Setting(length=(5, 60, 300, 1000), noise=0.6, scale=1.3, queries=50),
    "rule": Agreement(rounding=1e-8),
    "cells": together("length"),
}


def routes_compared(evidence: xr.Dataset, what: str) -> xr.Dataset:
    found = evidence[what]
    others = found.drop_sel(route="posterior").rename(route="by")
    return evidence.assign(predicted=found.sel(route="posterior", drop=True), measured=others)


claim(
    GAUSSIAN,
    source=PAPER,
    reference="attention from conditional mean embedding",
    statement=r"Where $v = z^\top\phi(k) + \varepsilon$ with $z \sim N(0, \tau^2 I)$ and $\varepsilon \sim N(0, \sigma^2 I)$, the posterior mean of $z$ applied to $\phi(q)$, CME attention"
    r" $V^\top(G + \lambda I)^{-1}g_q$ with $\lambda = \sigma^2/\tau^2$, the conditioned Gaussian process and ridge regression are one.",
    words="Kernel attention with the right ridge is exact Bayesian inference of the latent.",
    fit=lambda e: routes_compared(e, "mean"),
    control=Control(
        "λ as the ridge of the covariance operator, which is Lλ for the Gram matrix",
        lambda e: e.assign(measured=e["other"]),
    ),
    figure=drawn_by(f"{FIGURES}.inference:routes"),
    needs=("latent-posterior/predictive",),
    origin="our reading",
    **CONDITIONING,
)(conditioning)

claim(
    "latent-posterior/cme-variance",
    source="attlas",
    reference="predictive variance of CME attention",
    statement=r"$\mathrm{Var}(v \mid q, X) = \sigma^2 + \tau^2[k(q, q) - g_q^\top(G + \lambda I)^{-1}g_q]$ is the posterior's $\sigma^2 + \phi(q)^\top\Sigma\,\phi(q)$, the inverse of"
    r" the joint precision, and what least squares gives.",
    words="CME attention also knows how sure it is.",
    fit=lambda e: routes_compared(e, "variance"),
    control=Control(
        "the noise counted twice", lambda e: e.assign(measured=e["measured"] + e["noise"] ** 2)
    ),
    figure=drawn_by(f"{FIGURES}.inference:variances"),
    needs=(GAUSSIAN,),
    origin="ours",
    **CONDITIONING,
)(conditioning)


# --- softmax and linear attention ------------------------------------------------------------------------------------


Context = tuple[Float[np.ndarray, "q d"], Float[np.ndarray, "n d"], Float[np.ndarray, "n 1"]]


def context(key: Array, length: int, queries: int, dim: int, spread: float = 0.0) -> Context:
    """Queries on the sphere, keys whose lengths are uniform within `spread` of 1, and normal values."""
    rng = stream(key)
    points = rng.standard_normal((queries + length, dim))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    sizes, values = 1 + spread * rng.uniform(-1, 1, (length, 1)), rng.standard_normal((length, 1))
    return points[:queries], sizes * points[queries:], values


AMBIENT = 6
"""Coordinates that points are given at least, the last of them 0, so that one compiled program serves several dimensions."""


def embedded(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n a"]:
    return np.pad(points, ((0, 0), (0, max(0, AMBIENT - points.shape[1]))))


@jax.jit
def smoothed(queries: Any, keys: Any, values: Any, temperature: Any) -> Array:
    return softmax_attention(queries, keys, values, temperature=temperature)


SMOOTHER = Setting(length=200, dim=(2, 3, 6), temperature=0.2, spread=0.0, queries=40)


@claim(
    "latent-posterior/softmax-is-nadaraya-watson",
    source=PAPER,
    reference="softmax attention as a kernel smoother",
    statement=r"For keys and queries on the unit sphere $V^\top\mathrm{softmax}(Kq/\gamma) = \sum_i w_i v_i / \sum_i w_i$ with $w_i = e^{-|q - k_i|^2/(2\gamma)}$.",
    words="On the sphere softmax attention is a local average, and its temperature the squared width of the window.",
    hypotheses=(SPHERE, WARM, NORMALISED),
    quick=SMOOTHER,
    paper=SMOOTHER.replace(length=5000, dim=(2, 3, 6, 32), queries=100),
    rule=Agreement(),
    control=Control(
        "keys of lengths between 0.7 and 1.3", lambda s: s.replace(spread=0.3), on="setting"
    ),
    figure=drawn_by(f"{FIGURES}.inference:smoother"),
    cells=together("dim"),
    origin="our reading",
)
def nadaraya_watson(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "latent-posterior/softmax-is-nadaraya-watson", "context")
    queries, keys, values = context(key, cell.length, cell.queries, cell.dim, cell.spread)
    distances = np.sum((queries[:, None] - keys) ** 2, -1)
    window = np.exp(-distances / (2 * cell.temperature))
    axes = ("cell", "query")
    return xr.Dataset(
        {
            "predicted": (axes, (window @ values / window.sum(1, keepdims=True)).T),
            "measured": (
                axes,
                smoothed(embedded(queries), embedded(keys), values, np.asarray(cell.temperature)).T,
            ),
            "error": 0.0,
        }
    )


@claim(
    "latent-posterior/one-kernel",
    source="attlas",
    reference="the exponential kernel on the sphere",
    statement=r"On the unit sphere CME attention with the Gaussian kernel and ridge $\lambda$ is that with $e^{\langle k, k'\rangle/\gamma}$ and ridge $\lambda e^{1/\gamma}$.",
    words="Softmax's kernel and the Gaussian one are the same, once the ridge is scaled.",
    hypotheses=(SPHERE, WARM, NORMALISED),
    quick=SMOOTHER,
    paper=SMOOTHER.replace(length=1000, dim=(2, 3, 6, 32), queries=100),
    rule=Agreement(rounding=1e-8),
    control=Control(
        "keys of lengths between 0.7 and 1.3", lambda s: s.replace(spread=0.3), on="setting"
    ),
    figure=drawn_by(f"{FIGURES}.inference:kernels"),
    cells=together("dim"),
    needs=("latent-posterior/softmax-is-nadaraya-watson",),
    origin="ours",
)
def one_kernel(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "latent-posterior/one-kernel", "context")
    queries, keys, values = context(key, cell.length, cell.queries, cell.dim, cell.spread)
    gaussian, bare = by_both_kernels(
        embedded(queries), embedded(keys), values, np.asarray(cell.temperature)
    )
    axes = ("cell", "query")
    return xr.Dataset({"predicted": (axes, gaussian.T), "measured": (axes, bare.T), "error": 0.0})


@jax.jit
def by_both_kernels(queries: Any, keys: Any, values: Any, temperature: Any) -> tuple[Array, Array]:
    ridge, scale = 0.3, jnp.exp(1 / temperature)

    def bare(x: Array, y: Array) -> Array:
        return scale * Exponential(temperature)(x, y)

    gaussian = cme_attention(queries, keys, values, ridge=ridge, kernel=RBF(temperature))
    return gaussian, cme_attention(queries, keys, values, ridge=scale * ridge, kernel=bare)


MECHANISMS = ("CME", "CME's variance", "softmax")


@claim(
    "latent-posterior/masks",
    source="attlas",
    reference="padding",
    statement=r"Attention with a mask is attention to the tokens that it admits: $G_{ij}m_im_j$ and $(g_q)_im_i$ for CME attention and its variance, logits $-\infty$ for"
    r" softmax, whatever the other tokens hold.",
    words="A padded token leaves no trace.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(64,), queries=20),
    paper=Setting(length=(8, 64, 1000), queries=50),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "padded values set to 0 and nothing else", lambda e: e.assign(measured=e["blanked"])
    ),
    figure=drawn_by(f"{FIGURES}.inference:masked"),
    cells=together("length"),
    needs=(GAUSSIAN,),
    origin="ours",
)
def masks(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "latent-posterior/masks", "context")
    queries, keys, values = context(key, cell.length, cell.queries, 3)
    mask = np.arange(cell.length) % 3 != 1
    seen = mask[:, None]
    axes = ("cell", "mechanism", "query")
    return xr.Dataset(
        {
            "predicted": (axes, answers(queries, keys[mask], values[mask])),
            "measured": (
                axes,
                answers(queries, np.where(seen, keys, 50.0), np.where(seen, values, np.nan), mask),
            ),
            "blanked": (
                axes,
                answers(queries, keys, np.where(seen, values, 0.0), np.ones_like(mask)),
            ),
            "error": 0.0,
        },
        coords={"mechanism": list(MECHANISMS)},
    )


@jax.jit
def answers(queries: Any, keys: Any, values: Any, mask: Any = None) -> Float[Array, "1 3 q"]:
    options: dict[str, Any] = {"ridge": 0.2, "kernel": RBF(0.3), "mask": mask}
    mean = cme_attention(queries, keys, values, **options)
    softmax = softmax_attention(queries, keys, values, temperature=0.3, mask=mask)
    return jnp.stack([mean[:, 0], cme_variance(queries, keys, **options), softmax[:, 0]])[None]


LADDER = 10.0 ** np.arange(3, 9)


@claim(
    "latent-posterior/linear-limit",
    source="attlas",
    reference="CME attention with a large ridge",
    statement=r"$\lambda\,\mathrm{CME}_\lambda(q) \to \sum_i k(q, k_i)\,v_i$ as $\lambda \to \infty$, and the difference falls like $1/\lambda$: with the linear kernel the limit is linear"
    r" attention.",
    words="Linear attention is what inference becomes when the values are hardly believed.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(8, 64), dim=3, queries=20),
    paper=Setting(length=(8, 64, 512), dim=3, queries=50),
    rule=Rate(margin=0.02, along="ridge"),
    control=Control(
        "the mean in place of the sum of the values", lambda e: e.assign(measured=e["normalised"])
    ),
    figure=drawn_by(f"{FIGURES}.inference:linear_limit"),
    cells=together("length"),
    needs=(GAUSSIAN,),
    origin="ours",
)
def linear_limit(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "latent-posterior/linear-limit", "context")
    queries, keys, values = context(key, cell.length, cell.queries, cell.dim)
    ladder = LADDER * cell.length
    found, limit = map(np.asarray, towards_linear(queries, keys, values, ladder))
    found = ladder[:, None, None] * found

    def distance(to: np.ndarray) -> np.ndarray:
        return np.sqrt(((found - to) ** 2).mean((1, 2)) / (limit**2).mean())[None]

    axes = ("cell", "ridge")
    return xr.Dataset(
        {
            "x": (axes, ladder[None]),
            "measured": (axes, distance(limit)),
            "normalised": (axes, distance(limit / cell.length)),
            "predicted": ("cell", [-1.0]),
            "error": 0.0,
        }
    )


@jax.jit
def towards_linear(queries: Any, keys: Any, values: Any, ridges: Any) -> tuple[Array, Array]:
    """CME attention with each of the ridges, and linear attention."""
    found = jax.lax.map(
        lambda ridge: cme_attention(queries, keys, values, ridge=ridge, kernel=Linear()), ridges
    )
    return found, linear_attention(queries, keys, values)


# --- what the outputs say, and how large they are --------------------------------------------------------------------


MOST_PROBES = 16


@claim(
    "latent-posterior/probes",
    source="attlas",
    reference="heads as probes of the posterior",
    statement=r"The outputs $A = \Phi(Q)\bar z$ of CME attention at $H$ probe queries give the posterior mean up to what they cannot see,"
    r" $|\Phi(Q)^+A - \bar z| = |(I - \Phi(Q)^+\Phi(Q))\,\bar z|$: exactly if $H \ge D$, and not if $H < D$.",
    words="As many heads as the latent has dimensions read off its posterior mean; one fewer does not.",
    hypotheses=(TOKENS, Hypothesis("probes <= 16", lambda s: s.probes <= 16, defining=True)),
    quick=Setting(probes=(2, 6, 8, 9, 10, 14), length=50, queries=20),
    paper=Setting(probes=(2, 4, 6, 7, 8, 9, 10, 12, 16), length=1000, queries=200),
    rule=Agreement(rounding=1e-7),
    control=Control(
        "one probe fewer than the latent has dimensions is enough",
        lambda e: e.assign(predicted=e["hoped"]),
    ),
    figure=drawn_by(f"{FIGURES}.inference:probes"),
    cells=together("probes"),
    shape=("length", "queries"),
    batch=MOST_PROBES,
    needs=(GAUSSIAN,),
    origin="ours",
)
def probes(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """`queries` is the number of latents, each with a context and probes of its own, of which each cell takes some."""
    latents, length = cells[0].queries, cells[0].length
    id = "latent-posterior/probes"
    points = on_sphere(key_for(seed, id, "points"), latents, length + MOST_PROBES, 3)
    drawn = stream(key_for(seed, id, "values")).standard_normal((latents, WIDTH + length, 1))
    outputs, seen, mean = map(np.asarray, probed(points, drawn[:, :WIDTH], drawn[:, WIDTH:]))
    size = np.linalg.norm(mean, axis=(1, 2))

    def read_off(heads: int) -> tuple[np.ndarray, ...]:
        inverse = np.linalg.pinv(seen[:, :heads], rcond=1e-10)
        found = inverse @ outputs[:, :heads] - mean
        lost, left = (
            np.linalg.norm(x, axis=(1, 2)) / size
            for x in (mean - inverse @ seen[:, :heads] @ mean, found)
        )
        return lost * (heads < WIDTH), lost * (heads < WIDTH - 1), left

    names = ("predicted", "hoped", "measured")
    found = np.swapaxes([read_off(cell.probes) for cell in cells], 0, 1)
    return xr.Dataset(
        {
            **{name: (("cell", "latent"), x) for name, x in zip(names, found, strict=True)},
            "error": 0.0,
        }
    )


WIDTH = 9
"""Of the features below on the sphere of three dimensions, where $|x|^2 = 1$ ties one of the ten monomials of degree at most 2."""


def quadratics(x: Float[Array, "*n 3"]) -> Float[Array, "*n 9"]:
    """The harmonics of degrees 0, 1 and 2 on the sphere, up to their scale."""
    a, b, c = x[..., 0], x[..., 1], x[..., 2]
    return jnp.stack(
        [
            jnp.ones_like(a),
            a,
            b,
            c,
            a * b,
            b * c,
            c * a,
            (a**2 - b**2) / 2,
            (3 * c**2 - 1) / 12**0.5,
        ],
        -1,
    )


@jax.jit
def probed(points: Any, latent: Any, noise: Any) -> tuple[Array, Array, Array]:
    """Outputs of CME attention at the last points of each context, their features, and the posterior mean."""
    model = BayesianRegression(3, features=quadratics, noise=0.4)
    keys, queries = points[:, :-MOST_PROBES], points[:, -MOST_PROBES:]
    values = quadratics(keys) @ latent + model.noise * noise
    outputs = cme_attention(queries, keys, values, ridge=model.ridge, kernel=of_features)
    return outputs, quadratics(queries), model.posterior(keys, values).mean


def of_features(x: Array, y: Array) -> Array:
    return quadratics(x) @ jnp.swapaxes(quadratics(y), -1, -2)


@claim(
    "latent-posterior/output-norm",
    source="attlas",
    reference="how large an output of CME attention can be",
    statement=r"$\sup_{|v_i| \le 1}|\mathrm{CME}(q)| = |(G + \lambda I)^{-1}g_q|_1 \le \sqrt{L\,k(q, q)/(4\lambda)}$, with equality where all keys are $q$ and $\lambda = L\,k(q, q)$.",
    words="Signed weights may add up to more than one, but not to more than the root of the length over four times the ridge.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(16, 128), dim=3, queries=200),
    paper=Setting(length=(16, 128, 1024), dim=3, queries=500),
    rule=Bound(rounding=1e-9),
    control=Control("a bound that is 5 % smaller", lambda e: e.assign(bound=0.95 * e["bound"])),
    figure=drawn_by(f"{FIGURES}.inference:output_norms"),
    cells=together("length"),
    needs=(GAUSSIAN,),
    origin="ours",
)
def output_norm(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """The largest over queries and a grid of temperatures, for keys of the whole sphere, of half of it, and all equal."""
    (cell,) = cells
    key = key_for(seed, "latent-posterior/output-norm", "context")
    queries, keys, _ = context(key, cell.length, cell.queries, cell.dim)
    half = np.concatenate([abs(keys[:, :1]), keys[:, 1:]], 1)
    supports = {
        "sphere": keys,
        "half sphere": half,
        "one point": np.broadcast_to(queries[0], keys.shape),
    }
    ridges = np.array([0.01, 0.09, 1.0, cell.length])
    temperatures = np.array([0.1, 0.25, 1.0])
    norms = [
        np.asarray(largest_norms(queries, keys, ridges, temperatures)) for keys in supports.values()
    ]
    axes = ("cell", "support", "ridge")
    return xr.Dataset(
        {
            "measured": (axes, np.array([norms])),
            "bound": (("cell", "ridge"), np.sqrt(cell.length / (4 * ridges))[None]),
            "error": 0.0,
        },
        coords={"support": list(supports), "ridge": ["0.01", "0.09", "1", "L"]},
    )


@jax.jit
def largest_norms(
    queries: Any, keys: Any, ridges: Any, temperatures: Any
) -> Float[Array, " ridge"]:
    """Of the weights, over queries and temperatures."""

    def norm(ridge: Array, temperature: Array) -> Array:
        return abs(cme_weights(queries, keys, ridge=ridge, kernel=RBF(temperature))).sum(-1).max()

    return jax.lax.map(lambda r: jax.lax.map(lambda t: norm(r, t), temperatures).max(), ridges)


@claim(
    "latent-posterior/clipping",
    source="attlas",
    reference="CME attention brought back into a ball",
    statement=r"Where $|m(q)| \le r$, the output of CME attention brought onto the ball of radius $r$ is nowhere further from $m(q)$:"
    r" $|\Pi_r\mathrm{CME}(q) - m(q)| \le |\mathrm{CME}(q) - m(q)|$ for every context and query.",
    words="Cutting off what cannot be true never adds error.",
    hypotheses=(
        TOKENS,
        Hypothesis("clip >= 1, which contains the conditional mean", lambda s: s.clip >= 1),
    ),
    quick=Setting(length=(16, 64), clip=1.0, noise=1.0, draws=20, queries=50),
    paper=Setting(length=(16, 64, 256, 1024), clip=1.0, noise=1.0, draws=40, queries=200),
    rule=Bound(),
    control=Control("a ball of half the radius", lambda s: s.replace(clip=0.5), on="setting"),
    figure=drawn_by(f"{FIGURES}.inference:clipped"),
    cells=together("length"),
    budget="draws",
    needs=(GAUSSIAN,),
    origin="ours",
)
def clipping(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "latent-posterior/clipping", "contexts")
    queries, keys, noise = (
        x.reshape(cell.draws, -1, x.shape[1])
        for x in context(key, cell.draws * cell.length, cell.draws * cell.queries, 3)
    )
    keys[..., 0] = abs(keys[..., 0])  # half of the sphere, so that outputs elsewhere are large
    truth, signal = (np.cos(3 * x[..., :1]) for x in (queries, keys))
    found = clipped(queries, keys, signal + cell.noise * noise, np.asarray(cell.clip))
    whole, cut = (abs(np.asarray(output) - truth).reshape(-1) for output in found)
    axes = ("cell", "query")
    return xr.Dataset({"bound": (axes, whole[None]), "measured": (axes, cut[None]), "error": 0.0})


@jax.jit
def clipped(queries: Any, keys: Any, values: Any, clip: Any) -> tuple[Array, Array]:
    """Outputs of CME attention on each context, as they are and within the ball."""

    def one(given: Any) -> Any:
        return tuple(
            cme_attention(*given, ridge=0.09, kernel=RBF(0.25), clip=radius)
            for radius in (None, clip)
        )

    return jax.lax.map(one, (queries, keys, values))


# --- long contexts ---------------------------------------------------------------------------------------------------

SOLVERS = "latent-posterior/solvers-agree"
CENTRES = (40, 80, 160, 320)
FACTOR = 2.0
"""By how much the error at the keys may exceed its estimate from a sample of them."""


def solvers(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """The exact solution at queries; and of every other method its answers, its error at the keys and what it says of it."""
    (cell,) = cells
    kernel, ridge = RBF(cell.temperature), cell.noise**2
    answers, true, told, exact = [], [], [], []
    for draw in range(cell.draws):
        queries, keys, noise = context(
            key_for(seed, SOLVERS, f"context {draw}"), cell.length, cell.queries, 3
        )
        values = zonal_mean((0.0, 1.0, 0.7, 0.5), keys) + cell.noise * noise
        reference = fit_cme(keys, values, ridge=ridge, kernel=kernel, method="exact")
        here = reference.mean(keys)
        scale = np.sqrt(np.mean(values**2))
        precise = {"ridge": ridge, "kernel": kernel, "tolerance": 1e-9}
        fits = [
            fit_cme(keys, values, method="nystrom", centres=count, **precise) for count in CENTRES
        ]
        fits += [
            fit_cme(keys, values, method=method, **precise) for method in ("nystrom", "conjugate")
        ]
        exact.append(reference.mean(queries)[:, 0])
        answers.append([fit.mean(queries)[:, 0] for fit in fits])
        true.append([np.sqrt(np.mean((fit.mean(keys) - here) ** 2)) / scale for fit in fits])
        told.append([fit.error for fit in fits])
    axes = ("cell", "draw", "way")
    return xr.Dataset(
        {
            "exact": (("cell", "draw", "query"), np.array(exact)[None]),
            "answer": ((*axes, "query"), np.array(answers)[None]),
            "true": (axes, np.array(true)[None]),
            "told": (axes, np.array(told)[None]),
            "error": 0.0,
        },
        coords={
            "way": [*(f"{count} centres" for count in CENTRES), "Nystrom", "conjugate gradients"]
        },
    )


SOLVING = {
    "source": "attlas",
    "hypotheses": (
        Hypothesis(
            "length >= 1000: more tokens than centres", lambda s: s.length >= 1000, defining=True
        ),
        WARM,
    ),
    "quick": Setting(length=(1000,), temperature=0.2, noise=0.3, draws=2, queries=100),
    "paper": Setting(length=(1000, 4000), temperature=0.1, noise=0.3, draws=4, queries=500),
    "cells": together("length"),
    "origin": "ours",
}

claim(
    SOLVERS,
    reference="CME attention on long contexts",
    statement=r"Asked for a tolerance of $10^{-9}$, Nystrom's method and conjugate gradients preconditioned by it give the same outputs as the exact solution to $10^{-6}$.",
    words="The methods for long contexts compute the same attention.",
    rule=Agreement(rounding=1e-6),
    fit=lambda e: e.assign(
        predicted=e["exact"],
        measured=e["answer"].isel(way=slice(len(CENTRES), None)).rename(way="method"),
    ),
    control=Control(
        "Nystrom's method with 40 centres", lambda e: e.assign(measured=e["answer"].isel(way=0))
    ),
    figure=drawn_by(f"{FIGURES}.inference:solvers"),
    needs=(GAUSSIAN,),
    **SOLVING,
)(solvers)


def honest(evidence: xr.Dataset) -> xr.Dataset:
    """Where a method is exact but for rounding there is no error to be told."""
    rough = evidence[["true", "told"]].isel(way=slice(0, len(CENTRES))).rename(way="centres")
    return evidence.assign(bound=FACTOR * rough["told"], measured=rough["true"])


claim(
    "latent-posterior/solvers-tell",
    reference="the estimated error of CME attention",
    statement=r"The root mean square error of Nystrom's method at the keys is at most twice what its residual at 128 of them says, with 40 to 320 centres.",
    words="A method that is not exact says how far off it is.",
    rule=Bound(),
    fit=honest,
    control=Control(
        "0.6 times in place of twice", lambda e: e.assign(bound=0.6 / FACTOR * e["bound"])
    ),
    figure=drawn_by(f"{FIGURES}.inference:told_errors"),
    needs=(SOLVERS,),
    **SOLVING,
)(solvers)
