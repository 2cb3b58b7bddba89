"""Claims about how attention finds the conditional mean: finite-length errors, rates, and limits."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float
from scipy.special import roots_jacobi

from attlas.attention import softmax
from attlas.claims.compat import (
    Agreement,
    Approximation,
    Bound,
    Control,
    Hypothesis,
    Order,
    Rate,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.kernels import Exponential
from attlas.latent_posterior.claims.shared import FIGURES, PAPER, SPHERE, powers_of
from attlas.latent_posterior.rates import (
    HEAD,
    PAIR,
    cme_error,
    difference_error,
    effective_dimension,
    funk_hecke,
    mercer,
    optimal_temperature,
    softmax_bias,
    softmax_error,
    softmax_limit,
    zonal,
)

WEIGHTS = (0.0, 1.0, 0.7, 0.5)
"""Of the zonal harmonics of degrees 0 to 3 in the conditional mean."""
LINEAR = (0.0, 1.0)

DRAWS = Hypothesis("draws >= 20", lambda s: s.draws >= 20, defining=True)
LADDER = Hypothesis(
    "length has at least two values, in ascending order",
    lambda s: len(s.length) >= 2 and list(s.length) == sorted(set(s.length)),
    defining=True,
)
NOISY = Hypothesis("noise > 0", lambda s: s.noise > 0, defining=True)
QUIET = Hypothesis("noise <= 1", lambda s: s.noise <= 1)
FLAT = Hypothesis("dim <= 6", lambda s: s.dim <= 6)
STRAIGHT = Hypothesis(
    "weights are those of a linear mean", lambda s: tuple(s.weights) == LINEAR, defining=True
)


def dimension_at(s: Setting) -> float:
    """The effective dimension at the shortest length."""
    return float(
        effective_dimension(min(s.length), ridge=s.noise**2, temperature=s.temperature, dim=s.dim)
    )


LONG = Hypothesis(
    "length >= 128, and 1.4 times the effective dimension",
    lambda s: min(s.length) >= max(128, 1.4 * dimension_at(s)),
)

AMPLE = Hypothesis(
    "length >= 4 times the effective dimension", lambda s: min(s.length) >= 4 * dimension_at(s)
)

# --- errors against length -------------------------------------------------------------------------------------------

BAYES, ROOT, PROOF, BEST, FIXED = MECHANISMS = (
    "CME, λ = σ²",
    "CME, λ = √L",
    "CME, λ = L^¾",
    "softmax, best γ",
    "softmax, fixed γ",
)
AMBIENT = 6
"""Spheres lie in a space of at least this many dimensions, so that one compiled program serves several."""


class Sphere(NamedTuple):
    """Of R^dim: which coordinates it has, the conditional mean as a polynomial of the first, and nodes and weights of Gauss and Jacobi's quadrature
    for the first coordinate of a query."""

    present: Float[Any, " ambient"]
    curve: Float[Any, " c"]
    nodes: Float[Any, " q"]
    law: Float[Any, " q"]


def sphere_of(dim: int, weights: Sequence[float], queries: int) -> Sphere:
    """With the mean that has these weights of zonal harmonics. Everything else is symmetric about its axis, so that errors at the nodes
    give the mean over uniform queries."""
    places = np.cos(np.pi * (np.arange(len(weights)) + 0.5) / len(weights))
    values = sum(w * zonal(l, dim, places) for l, w in enumerate(weights))
    nodes, law = roots_jacobi(queries, (dim - 3) / 2, (dim - 3) / 2)
    present = (np.arange(max(AMBIENT, dim)) < dim).astype(float)
    curve = np.polyfit(places, values, len(weights) - 1)
    curve = np.pad(
        curve, (max(0, len(WEIGHTS) - len(curve)), 0)
    )  # of one degree, for the same reason
    return Sphere(present, curve, nodes, law / law.sum())


def draw_contexts(
    key: Array, draws: int, length: int, sphere: Sphere
) -> Float[np.ndarray, "draw token ambient"]:
    """Normal numbers for queries and keys, each draw from a stream of its own."""
    shape = (len(sphere.nodes) + length, len(sphere.present))
    return np.stack([rng.standard_normal(shape) for rng in stream(key).spawn(draws)])


def parts_of(
    drawn: Float[np.ndarray, "draw token ambient"], length: int, sphere: Sphere
) -> Float[np.ndarray, "draw part short ambient"]:
    """The keys of each draw cut into contexts of this length, each with the draw's queries: a shorter context is judged on as many keys as the longest,
    and on the same ones."""
    queries, keys = np.split(drawn, [len(sphere.nodes)], 1)
    parts = keys.shape[1] // length
    keys = keys[:, : parts * length].reshape(len(drawn), parts, length, -1)
    return np.concatenate([np.repeat(queries[:, None], parts, 1), keys], 2)


def context_of(drawn: Float[Array, "token ambient"], sphere: Sphere) -> tuple[Array, Array]:
    """Queries at the nodes, each turned about the axis at random, and uniform keys."""
    queries = len(sphere.nodes)
    drawn = drawn * sphere.present
    across = drawn[:queries].at[:, 0].set(0)
    across, keys = (
        x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (across, drawn[queries:])
    )
    return (across * jnp.sqrt(1 - sphere.nodes[:, None] ** 2)).at[:, 0].set(sphere.nodes), keys


class Mix(NamedTuple):
    """Rows of factors of heads, those with a ridge first; and whether the row estimates the conditional mean, or 0."""

    factors: Float[np.ndarray, "row head"]
    aims: Float[np.ndarray, " row"]


def squared_errors(
    drawn: Float[np.ndarray, "draw token ambient"], length: int, sphere: Sphere, *rest: Any
) -> Float[np.ndarray, "draw row"]:
    """`squares_of` contexts of this length, the mean over those of a draw."""
    parts = parts_of(drawn, length, sphere)
    found = np.asarray(squares_of(parts.reshape(-1, *parts.shape[2:]), sphere, *rest))
    return found.reshape(*parts.shape[:2], -1).mean(1)


@eqx.filter_jit
def squares_of(
    contexts: Float[Any, "draw token ambient"],
    sphere: Sphere,
    noise: Float[Any, ""],
    kernel: Exponential,
    ridges: Float[Any, " r"],
    temperatures: Float[Any, " t"],
    mix: Mix,
) -> Float[Array, "draw row"]:
    r"""Mean squares over queries and noise, exactly, for each draw of the keys: $(w^\top m(K) - m(q))^2 + \sigma^2|w|^2$ for the weights w that each row of
    the mix makes of CME attention with each ridge and softmax attention at each temperature."""

    def one(drawn: Array) -> Array:
        queries, context = context_of(drawn, sphere)
        truth, means = (jnp.polyval(sphere.curve, x[:, 0]) for x in (queries, context))
        weights = jax.lax.map(lambda t: softmax(queries @ context.T / t), temperatures)
        if len(ridges):
            # One Gram matrix for all ridges.
            gram, cross, eye = (
                kernel(context, context),
                kernel(context, queries),
                jnp.eye(len(context)),
            )
            solved = jax.lax.map(
                lambda r: cho_solve((jnp.linalg.cholesky(gram + r * eye), True), cross).T, ridges
            )
            weights = jnp.concatenate([solved, weights])
        mixed = jnp.tensordot(mix.factors, weights, 1)
        squares = (mixed @ means - mix.aims[:, None] * truth) ** 2 + noise**2 * (mixed**2).sum(-1)
        return squares @ sphere.law

    return jax.lax.map(one, contexts)


def mean_of(squares: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Over draws, with its standard error."""
    return squares.mean("draw"), squares.std("draw", ddof=1) / np.sqrt(squares.sizes["draw"])


def root_of(squares: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """The root of the mean over draws, with its standard error."""
    mean, error = mean_of(squares)
    root = mean**0.5
    return root, error / (2 * root)


def schedules(length: Any, noise: float) -> list[Any]:
    return [noise**2 + 0 * length, np.sqrt(length), length**0.75]


def curves(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Root mean square errors of five mechanisms at each length; and what the formulas say."""
    (cell,) = cells
    lengths = np.array(cell.length, float)
    given: dict[str, Any] = {
        "dim": cell.dim,
        "powers": powers_of(cell.weights, cell.dim),
        "noise": cell.noise,
    }
    best = optimal_temperature(lengths, **given)
    sphere, kernel = sphere_of(cell.dim, cell.weights, cell.queries), Exponential(cell.temperature)
    key = key_for(seed, FORMULA, "contexts")
    mix = Mix(np.eye(5), np.ones(5))
    drawn, noise = draw_contexts(key, cell.draws, max(cell.length), sphere), np.asarray(cell.noise)
    found = []
    for length, temperature in zip(cell.length, best, strict=True):
        ridges, temperatures = (
            np.array(schedules(float(length), cell.noise)),
            np.array([temperature, cell.fixed]),
        )
        found.append(
            squared_errors(drawn, length, sphere, noise, kernel, ridges, temperatures, mix)
        )
    inferred = [
        cme_error(lengths, ridge=ridge, temperature=cell.temperature, **given)
        for ridge in schedules(lengths, cell.noise)
    ]
    smoothed = [softmax_error(lengths, temperature=t, **given) for t in (best, cell.fixed)]
    axes = ("cell", "length", "mechanism")
    return xr.Dataset(
        {
            "square": ((*axes[:2], "draw", axes[2]), np.array(found)[None]),
            "formula": (axes, np.sqrt(np.stack([*inferred, *smoothed], 1))[None]),
            "floor": ("cell", [softmax_bias(cell.fixed, cell.dim, given["powers"])]),
        },
        coords={
            "mechanism": list(MECHANISMS),
            "length": list(cell.length),
            "s": ("cell", [cell.dim - 1]),
        },
    )


FORMULA = "latent-posterior/cme-error"
SHORT = Setting(
    length=(128, 256),
    dim=(2, 3, 6),
    weights=WEIGHTS,
    temperature=0.5,
    fixed=0.25,
    noise=0.5,
    draws=48,
    queries=32,
)
CURVES: dict[str, Any] = {
    "quick": SHORT,
    "paper": SHORT.replace(length=(128, 256, 512, 1024)),
    "hypotheses": (SPHERE, DRAWS, LADDER, NOISY),
    "cells": together("dim"),
    "budget": "draws",
}


def of(mechanism: str, evidence: xr.Dataset) -> dict[str, Any]:
    """What the rules read of one mechanism."""
    one = evidence.sel(mechanism=mechanism, drop=True)
    measured, error = root_of(one["square"])
    return {
        "measured": measured,
        "error": error,
        "predicted": one["formula"],
        "repetitions": evidence["draws"].variable,
    }


claim(
    FORMULA,
    source="attlas",
    reference="finite-length error of CME attention",
    statement=r"For uniform keys on $S^{p-1}$ CME attention with $\lambda = \sigma^2$ has the mean square error"
    r" $\frac{\sigma^2}{L}\sum_l N_l\left(\frac{\mu_l}{\mu_l + \rho}\right)^2 + \sum_l\left(\frac{\rho}{\mu_l + \rho}\right)^2|m_l|^2$, $\rho = \lambda/L$, to 10 % of its root"
    r" for $p = 2, 3, 6$ where $L$ is at least 128 and 1.4 times the effective dimension.",
    words="The kernel's spectrum says how much attention still errs.",
    rule=Approximation(margin=0.1),
    fit=lambda e: e.assign(of(BAYES, e)),
    control=Control(
        "a root that is 20 % larger", lambda e: e.assign(predicted=1.2 * e["predicted"])
    ),
    figure=drawn_by(f"{FIGURES}.rates:errors"),
    needs=("latent-posterior/cme-is-posterior-mean",),
    origin="ours",
    **{**CURVES, "hypotheses": (*CURVES["hypotheses"], LONG)},
)(curves)


def sloped(mechanism: str, evidence: xr.Dataset) -> xr.Dataset:
    """What `Rate` reads of one mechanism. A draw's contexts of all lengths are made of the same tokens, so that errors are those of the slope
    itself, draw by draw, shared out evenly."""
    found = of(mechanism, evidence)
    lengths = evidence["length"].astype(float)
    centred = np.log(lengths) - np.log(lengths).mean()
    weights = centred / (centred**2).sum()
    squares = evidence["square"].sel(mechanism=mechanism, drop=True)
    _, error = mean_of((weights * squares / squares.mean("draw")).sum("length") / 2)
    found["error"] = found["measured"] * error / np.sqrt((weights**2).sum())
    return evidence.assign({**found, "x": lengths})


claim(
    "latent-posterior/cme-converges",
    source=PAPER,
    reference="CME attention tends to the conditional mean",
    statement=r"CME attention with $\lambda = \sigma^2$ tends to $m(q) = E[v \mid k = q]$: its root mean square error falls with the exponent of the finite-length formula, to 0.1 where $L$ is at least 128 and 1.4 times the effective dimension.",
    words="Given enough tokens, attention that infers the latent knows the conditional mean.",
    rule=Rate(margin=0.1, along="length"),
    fit=lambda e: sloped(BAYES, e),
    control=Control(
        "the exponent with $\\lambda = \\sqrt{L}$",
        lambda e: e.assign(predicted=e["formula"].sel(mechanism=ROOT, drop=True)),
    ),
    figure=drawn_by(f"{FIGURES}.rates:errors"),
    needs=(FORMULA,),
    origin="our reading",
    **{**CURVES, "hypotheses": (*CURVES["hypotheses"], LONG)},
)(curves)


def schedules_ordered(evidence: xr.Dataset, times: float = 1.0) -> xr.Dataset:
    """Mean squares of two schedules, so many `times`, below that of the proof, draw by draw."""
    lower = times * evidence["square"].sel(mechanism=[BAYES, ROOT]).drop_vars("mechanism").rename(
        mechanism="schedule"
    )
    upper = evidence["square"].sel(mechanism=PROOF, drop=True)
    return ordered(evidence, lower.mean("draw"), upper.mean("draw"), mean_of(upper - lower)[1])


claim(
    "latent-posterior/bayes-ridge",
    source="attlas",
    reference="ridges that grow with the length",
    statement=r"For $\sigma \le 1$ CME attention errs less with $\lambda = \sigma^2$, and with $\lambda = \sqrt{L}$, than with $\lambda = L^{3/4}$, at each of these lengths.",
    words="The ridge of the proof is a device: Bayes' own does not grow with the context.",
    rule=Order(),
    fit=schedules_ordered,
    control=Control("by a factor of two in mean square", lambda e: schedules_ordered(e, 2.0)),
    figure=drawn_by(f"{FIGURES}.rates:errors"),
    needs=(FORMULA,),
    origin="ours",
    **{**CURVES, "hypotheses": (*CURVES["hypotheses"], QUIET)},
)(curves)


def below_proof(evidence: xr.Dataset) -> xr.Dataset:
    r"""$\mathrm{RMSE}^2 \le \rho^2\sum_l|m_l|^2/\mu_l^2 + \sigma^2/(4\rho L)$, because $x^2/(1 + x)^2 \le x/4$ and $\sum_l N_l\mu_l = 1$; here $\rho = L^{-1/4}$."""
    powers = np.array([powers_of(LINEAR, dim)[1] for dim in evidence["dim"].values.tolist()])
    eigenvalues = np.array(
        [
            mercer(1, t, d)
            for t, d in zip(
                evidence["temperature"].values, evidence["dim"].values.tolist(), strict=True
            )
        ]
    )
    constant = xr.DataArray(
        np.sqrt(powers / eigenvalues**2 + evidence["noise"].values ** 2 / 4), dims="cell"
    )
    return evidence.assign(
        {
            **of(PROOF, evidence),
            "constant": constant,
            "bound": constant * evidence["length"] ** -0.25,
        }
    )


claim(
    "latent-posterior/proof-schedule",
    source=PAPER,
    reference="rate of CME attention",
    statement=r"With $\lambda = L^{3/4}$ CME attention errs by at most $C L^{-1/4}$ in root mean square, $C^2 = \sum_l|m_l|^2/\mu_l^2 + \sigma^2/4$, for a linear conditional mean.",
    words="The ridge with which the rate is proved keeps its promise.",
    rule=Bound(),
    fit=below_proof,
    control=Control("two fifths of the constant", lambda e: e.assign(bound=0.4 * e["bound"])),
    figure=drawn_by(f"{FIGURES}.rates:proof_schedule"),
    needs=(FORMULA,),
    origin="our reading",
    **{
        **CURVES,
        "quick": SHORT.replace(weights=LINEAR),
        "paper": CURVES["paper"].replace(weights=LINEAR),
        "hypotheses": (*CURVES["hypotheses"], STRAIGHT),
    },
)(curves)


# --- the difference --------------------------------------------------------------------------------------------------

APART = "softmax − CME"
DIFFERENCE = "latent-posterior/softmax-cme-difference"


def differences(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Root mean squares of the errors of softmax and CME attention and of their difference at each length, and what the formulas say."""
    (cell,) = cells
    lengths = np.array(cell.length, float)
    given: dict[str, Any] = {
        "dim": cell.dim,
        "powers": powers_of(cell.weights, cell.dim),
        "noise": cell.noise,
    }
    best, ridge = optimal_temperature(lengths, **given), cell.noise**2
    sphere, kernel = sphere_of(cell.dim, cell.weights, cell.queries), Exponential(cell.temperature)
    key = key_for(seed, DIFFERENCE, "contexts")
    mix = Mix(np.array([[1.0, 0], [0, 1], [-1, 1]]), np.array([1.0, 1, 0]))
    drawn = draw_contexts(key, cell.draws, max(cell.length), sphere)
    noise, ridges = np.asarray(cell.noise), np.array([ridge])
    found = []
    for length, temperature in zip(cell.length, best, strict=True):
        found.append(
            squared_errors(
                drawn, length, sphere, noise, kernel, ridges, np.array([temperature]), mix
            )
        )
    formula = [
        cme_error(lengths, ridge=ridge, temperature=cell.temperature, **given),
        softmax_error(lengths, temperature=best, **given),
        difference_error(lengths, ridge=ridge, kernel=cell.temperature, temperature=best, **given),
    ]
    axes = ("cell", "length", "mechanism")
    return xr.Dataset(
        {
            "square": ((*axes[:2], "draw", axes[2]), np.array(found)[None]),
            "formula": (axes, np.sqrt(np.stack(formula, 1))[None]),
        },
        coords={
            "mechanism": [BAYES, BEST, APART],
            "length": list(cell.length),
            "s": ("cell", [cell.dim - 1]),
        },
    )


COMPARED: dict[str, Any] = {
    **CURVES,
    "quick": SHORT.replace(length=(128, 512), dim=(2, 3), draws=112, queries=16),
    "paper": SHORT.replace(length=(128, 512, 1024), dim=(2, 3), draws=200),
    "hypotheses": (*CURVES["hypotheses"], AMPLE),
}

claim(
    DIFFERENCE,
    source="attlas",
    reference="finite-length difference of softmax and CME attention",
    statement=r"Softmax attention at the best temperature and CME attention with $\lambda = \sigma^2$ filter harmonics by $a_l$ and $c_l = \mu_l/(\mu_l + \rho)$, and differ in mean square by"
    r" $\sum_l(a_l - c_l)^2(|m_l|^2 + \sigma^2N_l/L)$ and the spread of $m$ among the tokens averaged, to 15 % of its root where $L$ is four times the effective dimension or more.",
    words="How far two ways to attend are apart is known too.",
    rule=Approximation(margin=0.15),
    fit=lambda e: e.assign(of(APART, e)),
    control=Control(
        "a root that is 35 % larger", lambda e: e.assign(predicted=1.35 * e["predicted"])
    ),
    figure=drawn_by(f"{FIGURES}.rates:apart"),
    needs=(FORMULA, "latent-posterior/softmax-rate"),
    origin="ours",
    **COMPARED,
)(differences)

claim(
    "latent-posterior/difference-vanishes",
    source=PAPER,
    reference="agreement of softmax and CME attention",
    statement=r"The difference of softmax attention at the best temperature and CME attention with $\lambda = \sigma^2$ vanishes with the exponent of its finite-length formula, to 0.08 where $L$ is four times the effective dimension or more;"
    r" at great length that is $-2/(s + 4)$.",
    words="The longer the context, the less it matters which of the two attends.",
    rule=Rate(margin=0.08, along="length"),
    fit=lambda e: sloped(APART, e),
    control=Control(
        "an exponent that is 0.16 larger",
        lambda e: e.assign(predicted=e["predicted"] * (e["length"] / 128) ** 0.16),
    ),
    figure=drawn_by(f"{FIGURES}.rates:apart"),
    needs=(DIFFERENCE,),
    origin="our reading",
    **COMPARED,
)(differences)

FALL = 0.92
"""What is left of an error, at most, each time the length is doubled."""


def ordered(
    evidence: xr.Dataset, lower: xr.DataArray, upper: xr.DataArray, error: Any
) -> xr.Dataset:
    """The evidence for an order, which replaces one of other axes."""
    return evidence.drop_vars(["lower", "upper", "error"], errors="ignore").assign(
        lower=lower, upper=upper, error=error, repetitions=evidence["draws"].variable
    )


def fallen(evidence: xr.Dataset, *mechanisms: str) -> xr.Dataset:
    squares = (
        evidence["square"]
        .sel(mechanism=list(mechanisms))
        .drop_vars("mechanism")
        .rename(mechanism="falling")
    )
    first, last = (squares.isel(length=end, drop=True) for end in (0, -1))
    before, after = (x.mean("draw") ** 0.5 for x in (first, last))
    lengths = evidence["length"].values
    left = FALL ** np.log2(lengths[-1] / lengths[0])
    # Draw by draw, because contexts of all lengths are made of the same tokens.
    _, error = mean_of(last / (2 * after) - left * first / (2 * before))
    return ordered(evidence, after, left * before, error)


claim(
    "latent-posterior/error-falls",
    source=PAPER,
    reference="approximation error",
    statement=r"Where $\sigma \le 1$ and the shortest context is at least 128 and 1.4 times the effective dimension, the error that is left without any error of learning falls with the length: from the shortest context to the longest by more than 8 % for each doubling, in spaces of up to six dimensions, for CME"
    r" attention with $\lambda = \sigma^2$ and for softmax attention at the best temperature.",
    words="Longer contexts make attention a better approximation.",
    rule=Order(),
    fit=lambda e: fallen(e, BAYES, BEST),
    control=Control("softmax attention at a fixed temperature, too", lambda e: fallen(e, FIXED)),
    figure=drawn_by(f"{FIGURES}.rates:errors"),
    needs=(FORMULA,),
    origin="our reading",
    **{**CURVES, "hypotheses": (*CURVES["hypotheses"], FLAT, QUIET, LONG)},
)(curves)

# --- softmax attention on long contexts ------------------------------------------------------------------------------

HEADS = {"one head, best γ": HEAD, "a pair, γ ~ L^(−2/(s+8))": PAIR, "one head, fixed γ": HEAD}
ONE, TWO, STILL = HEADS
RATE = "latent-posterior/softmax-rate"


def head_temperatures(cell: Setting, lengths: np.ndarray) -> Float[np.ndarray, "3 length"]:
    """Of each mechanism of `HEADS`: the pair's has the order at which its bias, of second order, balances the variance."""
    best = optimal_temperature(
        lengths, dim=cell.dim, powers=powers_of(cell.weights, cell.dim), noise=cell.noise
    )
    s = cell.dim - 1
    return np.stack([best, 0.5 * lengths ** (-2 / (s + 8)), np.full_like(lengths, cell.fixed)])


def head_curves(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Root mean square errors of heads and pairs of heads at each length, and what the formula says."""
    (cell,) = cells
    lengths = np.array(cell.length, float)
    powers = powers_of(cell.weights, cell.dim)
    chosen = head_temperatures(cell, lengths)
    key = key_for(seed, RATE, "contexts")
    sphere, kernel = sphere_of(cell.dim, cell.weights, cell.queries), Exponential(1.0)
    mix = Mix(np.array([[1.0, 0, 0, 0], [0, 2, -1, 0], [0, 0, 0, 1]]), np.ones(3))
    drawn, noise = draw_contexts(key, cell.draws, max(cell.length), sphere), np.asarray(cell.noise)
    found = []
    for length, (one, two, still) in zip(cell.length, chosen.T, strict=True):
        temperatures = np.array([one, two, 2 * two, still])
        found.append(
            squared_errors(drawn, length, sphere, noise, kernel, np.zeros(0), temperatures, mix)
        )
    formula = [
        softmax_error(
            lengths, temperature=t, dim=cell.dim, powers=powers, noise=cell.noise, heads=heads
        )
        for t, heads in zip(chosen, HEADS.values(), strict=True)
    ]
    axes = ("cell", "length", "mechanism")
    return xr.Dataset(
        {
            "square": ((*axes[:2], "draw", axes[2]), np.array(found)[None]),
            "formula": (axes, np.sqrt(np.stack(formula, 1))[None]),
            "floor": ("cell", [softmax_bias(cell.fixed, cell.dim, powers)]),
        },
        coords={
            "mechanism": list(HEADS),
            "length": list(cell.length),
            "s": ("cell", [cell.dim - 1]),
        },
    )


LONGER = Setting(
    length=(500, 8000), dim=(2, 3, 6), weights=WEIGHTS, fixed=0.25, noise=0.5, draws=64, queries=16
)
HEADED: dict[str, Any] = {
    "quick": LONGER,
    "paper": LONGER.replace(length=(500, 2000, 8000, 32_000), draws=64, queries=32),
    "hypotheses": (SPHERE, DRAWS, LADDER, NOISY),
    "cells": together("dim"),
    "budget": "draws",
}

claim(
    RATE,
    source="attlas",
    reference="rate of softmax attention",
    statement=r"With temperatures $\gamma \sim L^{-2/(s+4)}$ the root mean square error of softmax attention falls with the exponent of the finite-length formula to 0.02; at great length that is"
    r" $-2/(s + 4)$.",
    words="Softmax attention finds the conditional mean if its temperature falls with the length, more slowly on larger spheres.",
    rule=Rate(margin=0.02, along="length"),
    fit=lambda e: sloped(ONE, e),
    control=Control(
        "an exponent that is 0.04 larger",
        lambda e: e.assign(predicted=e["predicted"] * e["x"] ** 0.04),
    ),
    figure=drawn_by(f"{FIGURES}.rates:head_errors"),
    needs=("latent-posterior/softmax-is-nadaraya-watson",),
    origin="ours",
    **HEADED,
)(head_curves)

claim(
    "latent-posterior/softmax-floor",
    source="attlas",
    reference="softmax attention at a fixed temperature",
    statement=r"At a fixed temperature softmax attention keeps the error $\sqrt{\sum_l(1 - a_l)^2|m_l|^2}$, $a_l = I_{l+p/2-1}(1/\gamma)/I_{p/2-1}(1/\gamma)$, at any length: to 2 % at the longest.",
    words="Without a temperature that falls, more tokens do not help.",
    rule=Approximation(margin=0.02),
    fit=lambda e: e.assign({**of(STILL, e.isel(length=-1, drop=True)), "predicted": e["floor"]}),
    control=Control(
        "a floor that is 5 % higher", lambda e: e.assign(predicted=1.05 * e["predicted"])
    ),
    figure=drawn_by(f"{FIGURES}.rates:floor_and_spectrum"),
    needs=(RATE,),
    origin="ours",
    **HEADED,
)(head_curves)

claim(
    "latent-posterior/temperature-pairs",
    source="attlas",
    reference="two heads that cancel the leading bias",
    statement=r"$2\,\mathrm{attn}_\gamma - \mathrm{attn}_{2\gamma}$ with $\gamma \sim L^{-2/(s+8)}$ has an error that falls with the exponent of its finite-length formula"
    r" to 0.03, at great length $-4/(s + 8)$.",
    words="A second head of twice the temperature, subtracted, makes softmax attention converge faster.",
    rule=Rate(margin=0.03, along="length"),
    fit=lambda e: sloped(TWO, e),
    control=Control(
        "an exponent that is 0.06 larger",
        lambda e: e.assign(predicted=e["predicted"] * e["x"] ** 0.06),
    ),
    figure=drawn_by(f"{FIGURES}.rates:head_errors"),
    needs=(RATE,),
    origin="ours",
    **HEADED,
)(head_curves)


# --- limits, in closed form ------------------------------------------------------------------------------------------

FAR = 10.0 ** np.arange(16, 21)


@claim(
    "latent-posterior/exponents",
    source="attlas",
    reference="rates at great length",
    statement=r"By the finite-length formulas the root mean square error falls, at great length, like $L^{-2/(s+4)}$ for softmax attention, $L^{-4/(s+8)}$ for a pair of heads and"
    r" $L^{-1/4}$ for CME attention with $\lambda = L^{3/4}$: from $10^{16}$ tokens on the exponents are these to 0.01.",
    words="What the rates become when contexts are longer than any that will be read.",
    hypotheses=(SPHERE, NOISY),
    quick=Setting(dim=(2, 3, 6), weights=WEIGHTS, temperature=0.5, fixed=0.25, noise=0.5),
    paper=Setting(dim=(2, 3, 4, 5, 6, 8), weights=WEIGHTS, temperature=0.5, fixed=0.25, noise=0.5),
    rule=Rate(margin=0.01, along="length"),
    control=Control(
        "exponents that are 0.02 larger", lambda e: e.assign(predicted=e["predicted"] + 0.02)
    ),
    figure=drawn_by(f"{FIGURES}.rates:exponents"),
    cells=together("dim"),
    needs=(FORMULA, RATE),
    origin="ours",
)
def exponents(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    s = cell.dim - 1
    lengths = 10.0 ** np.arange(2, 21)
    given: dict[str, Any] = {
        "dim": cell.dim,
        "powers": powers_of(cell.weights, cell.dim),
        "noise": cell.noise,
    }
    one, two, _ = head_temperatures(cell, lengths)
    inferring = {"temperature": cell.temperature, **given}
    squares = {
        ONE: softmax_error(lengths, temperature=one, **given),
        TWO: softmax_error(lengths, temperature=two, heads=PAIR, **given),
        PROOF: cme_error(lengths, ridge=lengths**0.75, **inferring),
        BAYES: cme_error(lengths, ridge=cell.noise**2, **inferring),
    }
    found = np.sqrt(np.stack(list(squares.values()), 1))[None]
    axes = ("cell", "length", "mechanism")
    return xr.Dataset(
        {
            "x": ("length", FAR),
            "measured": (axes, found[:, -len(FAR) :, :3]),
            "local": (
                ("cell", "place", "every"),
                np.gradient(np.log(found), np.log(lengths), axis=1),
            ),
            "predicted": (("cell", "mechanism"), [[-2 / (s + 4), -4 / (s + 8), -1 / 4]]),
            "error": 0.0,
        },
        coords={
            "mechanism": list(squares)[:3],
            "every": list(squares),
            "place": np.log10(lengths),
            "s": ("cell", [s]),
        },
    )


ANGLES = np.cos(np.linspace(0.05, 3.09, 41))


def constant_between(limit: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """The best C in mean = C limit, and the share of the mean that it leaves."""
    best = limit @ mean / (limit @ limit)
    return float(best), float(np.linalg.norm(mean - best * limit) / np.linalg.norm(mean))


@claim(
    "latent-posterior/one-constant",
    source=PAPER,
    reference="the constant between the limits of softmax and CME attention",
    statement=r"The limits of CME and softmax attention at a fixed temperature are proportional, $m = C\lim\mathrm{attn}_\gamma$, where keys are uniform on the sphere and $m$ has a single degree"
    r" $l$; then $C = 1/a_l$.",
    words="One number turns softmax attention's limit into the conditional mean, but only for the simplest of means.",
    hypotheses=(SPHERE, Hypothesis("temperature > 0", lambda s: s.temperature > 0, defining=True)),
    quick=Setting(dim=(2, 3, 6), temperature=0.5),
    paper=Setting(dim=(2, 3, 4, 6, 10), temperature=0.5),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "two degrees, or keys of another density",
        lambda e: e.assign(measured=e["other"], predicted=0.0),
    ),
    figure=drawn_by(f"{FIGURES}.rates:constants"),
    cells=together("dim"),
    needs=("latent-posterior/softmax-is-nadaraya-watson",),
    origin="our reading",
)
def one_constant(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    given: dict[str, Any] = {"temperature": cell.temperature, "dim": cell.dim}

    def mean(*degrees: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda t: sum(zonal(l, cell.dim, t) for l in degrees)

    degrees = (1, 2, 3)
    single = [
        constant_between(softmax_limit(mean(l), ANGLES, **given), mean(l)(ANGLES)) for l in degrees
    ]
    others: dict[str, tuple[Any, Any]] = {
        "degrees 1 and 2": (mean(1, 2), np.ones_like),
        "degrees 1 and 3": (mean(1, 3), np.ones_like),
        "degree 1, denser keys at e": (mean(1), lambda t: 1 + 0.5 * t),
    }
    other = [
        constant_between(softmax_limit(m, ANGLES, density=f, **given), m(ANGLES))
        for m, f in others.values()
    ]
    axes = ("cell", "degree", "number")
    return xr.Dataset(
        {
            "measured": (axes, np.array([single])),
            "predicted": (
                axes,
                [[[1 / funk_hecke(l, cell.temperature, cell.dim), 0.0] for l in degrees]],
            ),
            "other": (("cell", "case"), [[left for _, left in other]]),
            "error": 0.0,
        },
        coords={"degree": list(degrees), "number": ["constant", "residual"], "case": list(others)},
    )


@claim(
    "latent-posterior/value-sphere",
    source=PAPER,
    reference="smoothing on the sphere of values",
    statement=r"$\int v\,e^{\langle v, b\rangle/\gamma}dv = A\,b\int e^{\langle v, b\rangle/\gamma}dv$ over the unit sphere of $\mathbb{R}^d$, $|b| = 1$, with"
    r" $A = I_{d/2}(1/\gamma)/I_{d/2-1}(1/\gamma)$, which tends to 1 as $\gamma \to 0$.",
    words="The constant that a kernel on the values brings, and why it disappears when the temperature does.",
    hypotheses=(SPHERE,),
    quick=Setting(dim=(2, 3, 6)),
    paper=Setting(dim=(2, 3, 4, 6, 10, 30)),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "the constant of one dimension more", lambda e: e.assign(predicted=e["beside"])
    ),
    figure=drawn_by(f"{FIGURES}.rates:value_constants"),
    cells=together("dim"),
    needs=("latent-posterior/one-constant",),
    origin="our reading",
)
def value_sphere(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    temperatures = np.array([2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02])
    nodes, weights = roots_jacobi(400, (cell.dim - 3) / 2, (cell.dim - 3) / 2)
    tilted = weights * np.exp((nodes - 1) / temperatures[:, None])
    axes = ("cell", "temperature")
    return xr.Dataset(
        {
            "measured": (axes, (tilted @ nodes / tilted.sum(1))[None]),
            "predicted": (axes, funk_hecke(1, temperatures, cell.dim)[None]),
            "beside": (axes, funk_hecke(1, temperatures, cell.dim + 1)[None]),
            "error": 0.0,
        },
        coords={"temperature": temperatures},
    )
