"""Claims about attention that infers: identities of CME and softmax attention, probes, solvers."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas import kernels
from attlas.attention import softmax_attention
from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.claims.rules import Agreement, Bound
from attlas.figure import Figure, agreement, floored
from attlas.gaussian import stream
from attlas.kernels import RBF, Exponential, Kernel, Linear, Polynomial, cme_attention, fit_cme
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.shared import SPHERE, TOKENS, on_sphere, zonal_mean
from attlas.latent_posterior.models import BayesianRegression, identity
from attlas.latent_posterior.rates import mercer, multiplicity

TEMPERATURE = 0.25
DEGREES = np.arange(48)
"""Beyond these the kernel of the temperature above has less than rounding on the circle."""

FLOOR = 1e-16
"""Where what is only rounding is drawn on a logarithmic axis."""


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
ROUTES = ("posterior", "attention", "Gaussian process", "least squares")


@latent_posterior.claim(
    kind="two routes",
    reference="attention from conditional mean embedding",
    origin="our reading",
    statement=r"Where $v = z^\top\phi(k) + \varepsilon$ with $z \sim N(0, \tau^2 I)$ and"
    r" $\varepsilon \sim N(0, \sigma^2 I)$, the posterior mean of $z$ applied to $\phi(q)$, CME"
    r" attention $V^\top(G + \lambda I)^{-1}g_q$ with $\lambda = \sigma^2/\tau^2$, the conditioned"
    r" Gaussian process and ridge regression are one; and so are their predictive variances, of CME"
    r" attention $\sigma^2 + \tau^2[k(q, q) - g_q^\top(G + \lambda I)^{-1}g_q]$.",
    words="Kernel attention with the right ridge is exact Bayesian inference of the latent, and"
    " knows how sure it is.",
    quick=Setting(length=(5, 60), noise=0.6, scale=1.3, queries=20),
    paper=dict(length=(5, 60, 300, 1000), queries=50),
    cells=together("length"),
    hypotheses=(TOKENS,),
    rule=Agreement(rounding=1e-8),
    control=Control(
        "λ as the ridge of the covariance operator, which is Lλ for the Gram matrix",
        lambda e: {"measured": e.other, "predicted": e.predicted.isel(moment=0)},
    ),
    needs=("predictive",),
)
def cme_is_posterior_mean(cell: Setting, draws: Draws) -> Values:
    """Predictive means and variances on the circle, by each route, for each kernel.

    `other` are the means of attention with the ridge of the other convention.
    """
    points = on_sphere(draws("places"), cell.length + cell.queries, 2)
    drawn = draws.stream("values").standard_normal((2 * len(DEGREES) + cell.length, 1))
    weights, noise = np.split(drawn, [2 * len(DEGREES)])
    means, variances, others = [], [], []
    for kernel, features in KERNELS.values():
        phi, gram = map(np.asarray, features_and_gram(kernel, features, points))
        phi, asked = np.split(phi, [cell.length])
        values = phi @ (cell.scale * weights[: phi.shape[1]]) + cell.noise * noise
        model = BayesianRegression(2, features=features, noise=cell.noise, scale=cell.scale)
        latent, covariance = model.posterior(points[: cell.length], values)
        posterior = (
            (asked @ latent)[:, 0],
            cell.noise**2 + np.einsum("qi,ij,qj->q", asked, covariance, asked),
        )
        attention, (other, _) = (
            by_attention(kernel, points, values, np.asarray(ridge), np.asarray(cell.scale**2))
            for ridge in (model.ridge, cell.length * model.ridge)
        )
        joint = cell.scale**2 * gram + cell.noise**2 * np.eye(len(gram))
        process = by_precision(joint, values[:, 0])
        least_squares = by_least_squares(phi, asked, values[:, 0], cell.noise, model.ridge)
        mean, variance = zip(posterior, attention, process, least_squares, strict=True)
        means.append(mean)
        variances.append(variance)
        others.append(other)
    moments = np.array([means, variances])
    return {
        **on("moment kernel query", predicted=moments[:, :, 0]),
        **on("moment kernel route query", measured=moments[:, :, 1:]),
        **on("kernel query", other=np.array(others)),
        "error": 0.0,
        "moment": ["mean", "variance"],
        "kernel": list(KERNELS),
        "route": list(ROUTES[1:]),
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
def features_and_gram(
    kernel: Kernel, features: Callable[[Array], Array], points: Any
) -> tuple[Array, Array]:
    return features(points), kernel(points, points)


@eqx.filter_jit
def by_attention(
    kernel: Kernel, points: Any, values: Any, ridge: Any, prior: Any
) -> tuple[Array, Array]:
    """Mean and variance at the points after those that have values."""
    keys, queries = points[: len(values)], points[len(values) :]
    mean = cme_attention(queries, keys, values, ridge=ridge, kernel=kernel)[:, 0]
    return mean, kernels.cme_variance(queries, keys, ridge=ridge, kernel=kernel, prior=prior)


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


Context = tuple[Float[np.ndarray, "q d"], Float[np.ndarray, "n d"], Float[np.ndarray, "n 1"]]


def random_context(key: Array, length: int, queries: int, dim: int, spread: float = 0.0) -> Context:
    """Queries on the sphere, keys of norms uniform within `spread` of 1, and normal values."""
    rng = stream(key)
    points = rng.standard_normal((queries + length, dim))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    sizes, values = 1 + spread * rng.uniform(-1, 1, (length, 1)), rng.standard_normal((length, 1))
    return points[:queries], sizes * points[queries:], values


@latent_posterior.claim(
    kind="identity",
    reference="softmax attention as a kernel smoother",
    origin="our reading",
    statement=r"For keys and queries on the unit sphere"
    r" $V^\top\mathrm{softmax}(Kq/\gamma) = \sum_i w_i v_i / \sum_i w_i$ with"
    r" $w_i = e^{-|q - k_i|^2/(2\gamma)}$.",
    words="On the sphere softmax attention is a local average, and its temperature the squared"
    " width of the window.",
    hypotheses=(
        SPHERE,
        Hypothesis("spread = 0, which puts the keys on the sphere", lambda s: s.spread == 0),
    ),
    quick=Setting(length=200, dim=(2, 3, 6), temperature=0.2, spread=0.0, queries=40),
    paper=dict(length=5000, dim=(2, 3, 6, 32), queries=100),
    cells=together("dim"),
    rule=Agreement(),
    control=Control("keys of norms between 0.7 and 1.3", setting=dict(spread=0.3)),
)
def softmax_is_nadaraya_watson(cell: Setting, draws: Draws) -> Values:
    queries, keys, values = random_context(
        draws("context"), cell.length, cell.queries, cell.dim, cell.spread
    )
    window = np.exp(-np.sum((queries[:, None] - keys) ** 2, -1) / (2 * cell.temperature))
    attention = jax.jit(softmax_attention)(queries, keys, values, temperature=cell.temperature)
    return {
        **on("query", predicted=(window @ values)[:, 0] / window.sum(1), measured=attention[:, 0]),
        "error": 0.0,
    }


@softmax_is_nadaraya_watson.figure
def attention_against_local_average(evidence: xr.Dataset) -> Figure:
    return agreement(
        evidence,
        "Softmax attention is a local average",
        what="output",
        color="dim",
        legend={"dim": "dimension p"},
    )


MAX_PROBES = 16
WIDTH = 9
"""Dimension of the quadratics on the sphere, where |x|^2 = 1 ties one of the ten monomials."""


@latent_posterior.claim(
    kind="two routes",
    reference="heads as probes of the posterior",
    origin="ours",
    statement=r"The outputs $A = \Phi(Q)\bar z$ of CME attention at $H$ probe queries give the"
    r" posterior mean up to what they cannot see,"
    r" $|\Phi(Q)^+A - \bar z| = |(I - \Phi(Q)^+\Phi(Q))\,\bar z|$: exactly if $H \ge D$, and not if"
    r" $H < D$.",
    words="As many heads as the latent has dimensions read off its posterior mean; one fewer does"
    " not.",
    hypotheses=(TOKENS, Hypothesis("probes <= 16", lambda s: s.probes <= 16, defining=True)),
    quick=Setting(probes=(2, 6, 8, 9, 10, 14), length=50, queries=20),
    paper=dict(probes=(2, 4, 6, 7, 8, 9, 10, 12, 16), length=1000, queries=200),
    cells=together("probes"),
    shape=("length", "queries"),
    batch=MAX_PROBES,
    rule=Agreement(rounding=1e-7),
    control=Control(
        "one probe fewer than the latent has dimensions is enough",
        lambda e: {"predicted": e.hoped},
    ),
    needs=("cme-is-posterior-mean",),
)
def probes(cells: Sequence[Setting], draws: Draws) -> Values:
    """`queries` counts the latents, each with a context and probes, of which a cell takes some."""
    latents, length = cells[0].queries, cells[0].length
    points = on_sphere(draws("points"), latents, length + MAX_PROBES, 3)
    drawn = draws.stream("values").standard_normal((latents, WIDTH + length, 1))
    outputs, seen, mean = map(np.asarray, probe_outputs(points, drawn[:, :WIDTH], drawn[:, WIDTH:]))
    size = np.linalg.norm(mean, axis=(1, 2))

    def read_off(heads: int) -> tuple[np.ndarray, ...]:
        inverse = np.linalg.pinv(seen[:, :heads], rcond=1e-10)
        lost, left = (
            np.linalg.norm(x, axis=(1, 2)) / size
            for x in (
                mean - inverse @ seen[:, :heads] @ mean,
                inverse @ outputs[:, :heads] - mean,
            )
        )
        return lost * (heads < WIDTH), lost * (heads < WIDTH - 1), left

    predicted, hoped, measured = np.swapaxes([read_off(cell.probes) for cell in cells], 0, 1)
    return {
        **on("cell latent", predicted=predicted, hoped=hoped, measured=measured),
        "error": 0.0,
    }


@probes.figure
def distance_by_probes(evidence: xr.Dataset) -> Figure:
    return (
        Figure(
            evidence.assign(measured=floored(evidence.measured, FLOOR)),
            "The posterior mean, read by probes",
            "each point is a context with probes of its own",
            x="probes H",
            y="relative distance to the posterior mean",
            log="y",
            zero="-x",
            format={"y": "~e"},
        )
        .points("probes", "measured", opacity=0.6)
        .rule(WIDTH, f"D = {WIDTH}", axis="x")
    )


def quadratics(x: Float[Array, "*n 3"]) -> Float[Array, "*n 9"]:
    """The harmonics of degrees 0, 1 and 2 on the sphere, up to their scale."""
    a, b, c = x[..., 0], x[..., 1], x[..., 2]
    second = a * b, b * c, c * a, (a**2 - b**2) / 2, (3 * c**2 - 1) / 12**0.5
    return jnp.stack([jnp.ones_like(a), a, b, c, *second], -1)


@jax.jit
def probe_outputs(points: Any, latent: Any, noise: Any) -> tuple[Array, Array, Array]:
    """CME attention at the last points of each context, their features, and the posterior mean."""
    model = BayesianRegression(3, features=quadratics, noise=0.4)
    keys, queries = points[:, :-MAX_PROBES], points[:, -MAX_PROBES:]
    values = quadratics(keys) @ latent + model.noise * noise
    outputs = cme_attention(queries, keys, values, ridge=model.ridge, kernel=model.gram)
    return outputs, quadratics(queries), model.posterior(keys, values).mean


CENTRES = (40, 80, 160, 320)
ROUGH = [f"{count} centres" for count in CENTRES]
PRECISE = ["Nystrom", "conjugate gradients"]
FACTOR = 2.0
"""By how much the error at the keys may exceed its estimate from a sample of them."""


@latent_posterior.measurement(
    "solvers-agree",
    quick=Setting(length=(1000,), temperature=0.2, noise=0.3, draws=2, queries=100),
    paper=dict(length=(1000, 4000), temperature=0.1, draws=4, queries=500),
    cells=together("length"),
    hypotheses=(
        Hypothesis(
            "length >= 1000: more tokens than centres", lambda s: s.length >= 1000, defining=True
        ),
    ),
)
def solvers(cell: Setting, draws: Draws) -> Values:
    """The exact solution at queries; of each other method its answers, its error at the keys and
    its own estimate of that error."""
    ridge, kernel = cell.noise**2, RBF(cell.temperature)
    answers, true, estimated, exact = [], [], [], []
    for draw in range(cell.draws):
        queries, keys, noise = random_context(
            draws(f"context {draw}"), cell.length, cell.queries, 3
        )
        values = zonal_mean((0.0, 1.0, 0.7, 0.5), keys) + cell.noise * noise
        reference = fit_cme(keys, values, ridge=ridge, kernel=kernel, method="exact")
        methods: list[dict[str, Any]] = [
            *({"method": "nystrom", "centres": count} for count in CENTRES),
            {"method": "nystrom"},
            {"method": "conjugate"},
        ]
        fits = [
            fit_cme(keys, values, ridge=ridge, kernel=kernel, tolerance=1e-9, **method)
            for method in methods
        ]
        here, scale = reference.mean(keys), np.sqrt(np.mean(values**2))
        exact.append(reference.mean(queries)[:, 0])
        answers.append([fit.mean(queries)[:, 0] for fit in fits])
        true.append([np.sqrt(np.mean((fit.mean(keys) - here) ** 2)) / scale for fit in fits])
        estimated.append([fit.error for fit in fits])
    return {
        **on("draw query", exact=np.array(exact)),
        **on("draw way query", answer=np.array(answers)),
        **on("draw way", true=np.array(true), estimated=np.array(estimated)),
        "error": 0.0,
        "way": ROUGH + PRECISE,
    }


@latent_posterior.claim(
    kind="two routes",
    measured_by=solvers,
    reference="CME attention on long contexts",
    origin="ours",
    statement=r"Asked for a tolerance of $10^{-9}$, Nystrom's method and conjugate gradients"
    r" preconditioned by it give the same outputs as the exact solution to $10^{-6}$.",
    words="The methods for long contexts compute the same attention.",
    rule=Agreement(rounding=1e-6),
    control=Control(
        "Nystrom's method with 40 centres", lambda e: {"measured": e.answer.isel(way=0)}
    ),
    needs=("cme-is-posterior-mean",),
)
def solvers_agree(evidence: xr.Dataset) -> Values:
    precise = evidence.answer.sel(way=PRECISE).rename(way="method")
    return {"predicted": evidence.exact, "measured": precise}


@solvers_agree.figure
def differences_to_the_exact_output(evidence: xr.Dataset) -> Figure:
    off = floored(abs(evidence.answer - evidence.exact).max("query"), FLOOR)
    return Figure(
        evidence.assign(off=off),
        "Solvers for long contexts against the exact one",
        "the last two are asked for a tolerance of 10⁻⁹",
        x="",
        y="largest difference to the exact output",
        log="y",
        format={"y": "~e"},
        legend={"length": "tokens L"},
        width=560,
    ).points("way", "off", size=60, color="length")


@latent_posterior.claim(
    kind="two routes",
    measured_by=solvers,
    reference="the estimated error of CME attention",
    origin="ours",
    statement=r"The root mean square error of Nystrom's method at the keys is at most twice what"
    r" its residual at 128 of them says, with 40 to 320 centres.",
    words="A method that is not exact says how far off it is.",
    rule=Bound(),
    control=Control("0.6 times in place of twice", lambda e: {"bound": 0.6 / FACTOR * e.bound}),
    needs=("solvers-agree",),
)
def solvers_tell(evidence: xr.Dataset) -> Values:
    # The precise methods have no error beyond rounding to be estimated.
    rough = evidence[["true", "estimated"]].sel(way=ROUGH).rename(way="centres")
    return {"bound": FACTOR * rough.estimated, "measured": rough.true}


@solvers_tell.figure
def errors_against_their_estimates(evidence: xr.Dataset) -> Figure:
    return (
        Figure(
            evidence.assign(estimate=evidence.bound / FACTOR),
            "What Nystrom's method says of its error",
            "dashed: the bound, twice the estimate",
            x="estimated error",
            y="true error at the keys",
            log="xy",
            format={"x": "~e", "y": "~e"},
            legend={"centres": None},
        )
        .lines("estimate", "bound", theory=True)
        .points("estimate", "measured", size=60, color="centres")
    )
