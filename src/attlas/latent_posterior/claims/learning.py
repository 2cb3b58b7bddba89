"""Claims about learning attention: the ledger of the excess risk, complexity without the length, training, and other lengths than that of training."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy.linalg import cho_solve
from scipy.special import softmax, xlog1py, xlogy

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
    log_slope,
    product,
    together,
)
from attlas.kernels import RBF
from attlas.latent_posterior.bounds import head_rademacher, length_shift
from attlas.latent_posterior.claims.shared import FIGURES, PAPER, on_sphere, random_topics
from attlas.latent_posterior.learning import (
    MECHANISMS,
    Topics,
    absorbed,
    compare,
    descend_linearised,
    draw_training,
    length_curves,
    random_heads,
    topics,
    train,
    train_heads,
)
from attlas.latent_posterior.models import BayesianRegression, FiniteLatent, log_ways
from attlas.latent_posterior.rates import (
    cme_error,
    mercer,
    multiplicity,
    softmax_bias,
    softmax_error,
)
from attlas.rademacher import (
    concatenated_complexity,
    draw_signs,
    head_complexity,
    mean_of,
    planar_complexity,
)

LABELS = Hypothesis("noise > 0", lambda s: s.noise > 0, defining=True)
CLASSES = Hypothesis(
    "vocabulary >= 2 and latents >= 2",
    lambda s: s.vocabulary >= 2 and s.latents >= 2,
    defining=True,
)

# --- the ledger ------------------------------------------------------------------------------------------------------

LEDGER = "latent-posterior/ledger"


def labelled_topics(cell: Setting, key: Array) -> Topics:
    """Random topics, with labels that run from -1 to 1 over the latents."""
    drawn = random_topics(key, cell.latents, cell.vocabulary)
    model = FiniteLatent(drawn.prior, drawn.words, np.linspace(-1, 1, cell.latents)[:, None])
    return topics(model, cell.length, cell.noise)


@claim(
    LEDGER,
    source=PAPER,
    reference="excess risk: generalisation, optimisation, approximation",
    statement=r"$E|f_T - f^*|^2 = \{[R - R_n](f_T) + R_n(\hat f) - R_n(f^\circ) + [R_n - R](f^\circ)\} + \{R_n(f_T) - R_n(\hat f)\} + \{R(f^\circ) - R(f^*)\}$ for softmax heads trained on n"
    r" sequences of L words, at every step of training: generalisation, optimisation and approximation make up the distance to the Bayes predictor $f^* = \int E[y \mid z]\,d\pi_X(z)$.",
    words="What a trained model lacks is what the sample misled it by, what training left undone and what its class cannot do, to the last digit.",
    hypotheses=(CLASSES, LABELS),
    quick=Setting(
        length=(3, 10),
        samples=(40, 640),
        latents=3,
        vocabulary=3,
        heads=2,
        noise=0.3,
        steps=300,
        every=50,
        repeats=8,
    ),
    paper=Setting(
        length=(3, 10, 30),
        samples=(40, 160, 640, 2560),
        latents=3,
        vocabulary=3,
        heads=2,
        noise=0.3,
        steps=1000,
        every=50,
        repeats=16,
    ),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "the value of the most probable latent in place of the Bayes predictor",
        lambda e: e.assign(predicted=e["mode_distance"], measured=e["mode_excess"]),
    ),
    figure=drawn_by(f"{FIGURES}.learning:ledger"),
    cells=product("length", "samples"),
    needs=("latent-posterior/bayes-risk",),
    origin="our reading",
)
def ledger_closes(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    population = labelled_topics(cell, key_for(seed, LEDGER, "topics"))
    drawn = population.sample(key_for(seed, LEDGER, "samples"), cell.samples, cell.repeats)
    found = train_heads(
        population,
        drawn,
        key_for(seed, LEDGER, "starts"),
        heads=cell.heads,
        steps=cell.steps,
        record_every=cell.every,
    )
    risk, terms = population.risk, found.ledger
    mode = population.values[population.posterior.argmax(1)]
    each = ("cell", "step", "repeat")
    parts = {
        name: (each, np.broadcast_to(getattr(terms, name), found.distance.shape)[None])
        for name in ("generalisation", "optimisation", "approximation")
    }
    return xr.Dataset(
        {
            "predicted": (each, found.distance[None]),
            "measured": (each, terms.excess[None]),
            "mode_distance": (each, (risk.weight * (found.predictions - mode) ** 2).sum(-1)[None]),
            "mode_excess": (each, (risk(found.predictions) - risk(mode))[None]),
            "error": 0.0,
            **parts,
        },
        coords={"step": found.steps},
    )


LINEAR = "latent-posterior/optimisation-error"


@claim(
    LINEAR,
    source=PAPER,
    reference="optimisation error",
    statement=r"In the class that is linear in the values of fixed random heads, descent $\theta \leftarrow \theta - \frac\eta2\nabla R_n$ leaves $R_n(\theta_T) - R_n(\hat\theta) = \sum_j w_j(1 - \eta w_j)^{2T}c_j^2$,"
    r" w the eigenvalues of the covariance of the heads' outputs and $c = U^\top(\theta_0 - \hat\theta)$.",
    words="What training leaves undone in a linear class is read off the spectrum of its features.",
    hypotheses=(
        CLASSES,
        LABELS,
        Hypothesis("0 < step_size < 2", lambda s: 0 < s.step_size < 2, defining=True),
    ),
    quick=Setting(
        length=(4, 12),
        samples=200,
        latents=3,
        vocabulary=3,
        heads=6,
        noise=0.3,
        step_size=1.0,
        steps=2000,
        every=100,
        repeats=16,
    ),
    paper=Setting(
        length=(4, 12, 30),
        samples=200,
        latents=4,
        vocabulary=4,
        heads=8,
        noise=0.3,
        step_size=1.0,
        steps=20_000,
        every=500,
        repeats=32,
    ),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "the gradient flow, with $e^{-2\\eta w_jT}$", lambda e: e.assign(predicted=e["flow"])
    ),
    figure=drawn_by(f"{FIGURES}.learning:optimisation"),
    cells=together("length"),
    needs=(LEDGER,),
    origin="our reading",
)
def linearised(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    population = labelled_topics(cell, key_for(seed, LINEAR, "topics"))
    drawn = population.sample(key_for(seed, LINEAR, "samples"), cell.samples, cell.repeats)
    heads = random_heads(key_for(seed, LINEAR, "heads"), cell.repeats, cell.heads, cell.vocabulary)
    features = heads.features(population.counts)
    found = descend_linearised(
        features, drawn, step_size=cell.step_size, steps=cell.steps, record_every=cell.every
    )
    sizes, inside = found.eigenvalues, found.distances
    relative = cell.step_size * sizes / sizes[:, :1]
    flow = [(sizes * np.exp(-2 * relative * t) * inside**2).sum(-1) for t in found.steps]
    axes = ("cell", "step", "repeat")
    return xr.Dataset(
        {
            "predicted": (axes, found.predicted[None]),
            "measured": (axes, found.measured[None]),
            "flow": (axes, np.array(flow)[None]),
            "error": 0.0,
        },
        coords={"step": found.steps},
    )


APPROXIMATION = "latent-posterior/approximation"
GRID = np.geomspace(0.02, 2, 40)
"""Temperatures among which the best head is sought."""


def softmax_excess(
    points: Float[np.ndarray, "draw token dim"],
    queries: int,
    kernel: float,
    noise: float,
    temperatures: Float[Any, " t"],
) -> Float[np.ndarray, "draw t"]:
    r"""$E|\mathrm{attn}_\gamma - f^*|^2 = (w - w^*)^\top(G + \sigma^2I)(w - w^*)$ in the mean over queries, exactly, for each draw of the points, the first of
    which are the `queries` and the others the keys: w the weights of softmax attention, $w^*$ those of the Bayes predictor, over random functions with
    covariance $e^{(\langle k, k'\rangle - 1)/\text{kernel}}$ and noise."""
    found = []
    for drawn in points:
        products = drawn @ drawn[queries:].T
        cross, covariance = np.split(np.exp((products - 1) / kernel), [queries])
        covariance[np.diag_indices(len(covariance))] += noise**2
        factor = np.linalg.cholesky(covariance)
        bayes = cho_solve((factor, True), cross.T, check_finite=False).T
        off = softmax(products[:queries] / temperatures[:, None, None], axis=-1) - bayes
        found.append(((off @ factor) ** 2).sum(-1).mean(-1))
    return np.stack(found)


@claim(
    APPROXIMATION,
    source=PAPER,
    reference="approximation error",
    statement=r"Over random functions with covariance $e^{(\langle k, k'\rangle - 1)/\gamma_0}$ on the sphere the best softmax head has $R(f^\circ) - R(f^*) = \min_\gamma \mathrm{MSE}_{softmax}(L, \gamma) - \mathrm{MSE}_{CME}(L)$, the"
    r" finite-length errors of the two mechanisms at the mean powers $|m_l|^2 = N_l\mu_l$, to 15 % of its root for $L \ge 128$.",
    words="What a class of attention cannot do, at each length, is the difference of two formulas, and it falls as contexts grow.",
    hypotheses=(
        LABELS,
        Hypothesis(
            "draws >= 40, half of which choose the temperature",
            lambda s: s.draws >= 40,
            defining=True,
        ),
        Hypothesis("dim >= 2", lambda s: s.dim >= 2, defining=True),
        Hypothesis("length >= 128: above the effective dimension", lambda s: s.length >= 128),
    ),
    quick=Setting(length=(128, 256), dim=3, temperature=0.5, noise=0.5, draws=128, queries=32),
    paper=Setting(
        length=(128, 256, 512, 1024, 2048), dim=3, temperature=0.5, noise=0.5, draws=64, queries=64
    ),
    rule=Approximation(margin=0.15),
    control=Control("the bias of the head's limit alone", lambda e: e.assign(predicted=e["bias"])),
    figure=drawn_by(f"{FIGURES}.learning:approximation"),
    cells=together("length"),
    budget="draws",
    needs=(LEDGER, "latent-posterior/cme-error", "latent-posterior/softmax-rate"),
    origin="our reading",
)
def approximation(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, APPROXIMATION, "contexts")
    points = on_sphere(key, cell.draws, cell.queries + cell.length, cell.dim)
    asked = cell.queries, cell.temperature, cell.noise
    # Chosen on half of the draws and measured on the others.
    choosing, measuring = np.array_split(points, 2)
    best = softmax_excess(choosing, *asked, GRID).mean(0).argmin()
    measured = softmax_excess(measuring, *asked, GRID[[best]])
    mean, error = measured.mean(), measured.std(ddof=1) / np.sqrt(len(measured))
    degrees = np.arange(40)
    powers = multiplicity(degrees, cell.dim) * mercer(degrees, cell.temperature, cell.dim)
    given: dict[str, Any] = {"dim": cell.dim, "powers": powers, "noise": cell.noise}
    smoothed = softmax_error(cell.length, temperature=GRID, **given)
    bayes = cme_error(cell.length, ridge=cell.noise**2, temperature=cell.temperature, **given)
    values = {
        "measured": mean**0.5,
        "error": error / (2 * mean**0.5),
        "predicted": (smoothed.min() - bayes) ** 0.5,
        "bias": softmax_bias(GRID[smoothed.argmin()], cell.dim, powers),
        "bayes": bayes**0.5,
        "repetitions": len(measured),
    }
    return xr.Dataset({name: ("cell", [float(value)]) for name, value in values.items()})


# --- generalisation without the length -------------------------------------------------------------------------------

NORM = Hypothesis("query_norm > 0", lambda s: s.query_norm > 0, defining=True)
DRAWS = Hypothesis("draws >= 8", lambda s: s.draws >= 8, defining=True)
CERTIFIED = "latent-posterior/head-complexity-bound"


@claim(
    CERTIFIED,
    source=PAPER,
    reference="generalisation that does not depend on the length",
    statement=r"$\mathrm{Rad}_n\{X \mapsto \sum_i\mathrm{softmax}_i(\langle u, x_i\rangle)\langle v, x_i\rangle : |u| \le B_u, |v| \le B_v\} \le \min\{M, \inf_\epsilon[\epsilon + M\sqrt{2\ln(N(\epsilon))/n}]\}$ with $M = B_vR$ and"
    r" $\ln(N) = d\ln(1 + 4B_uB_vR^2/\epsilon) + d\ln(1 + 4B_vR/\epsilon)$, for sequences of any length; the supremum is certified in the plane.",
    words="How well heads of given norms can fit coin flips has a bound in which the length of the sequences does not occur.",
    hypotheses=(NORM, DRAWS),
    quick=Setting(length=(4, 128), samples=(128, 256), query_norm=2.0, draws=32, rings=8),
    paper=Setting(length=(4, 32, 128), samples=(128, 256, 512), query_norm=2.0, draws=32, rings=24),
    rule=Bound(),
    control=Control(
        "a linear map of the concatenated sequence, of the same norm for each token",
        lambda e: e.assign(measured=e["concatenated"], error=e["spread"]),
    ),
    figure=drawn_by(f"{FIGURES}.learning:complexity_bound"),
    cells=product("length", "samples"),
    budget="draws",
    origin="our reading",
)
def certified(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    tokens = on_sphere(key_for(seed, CERTIFIED, "tokens"), cell.samples, cell.length, 2)
    signs = draw_signs(key_for(seed, CERTIFIED, "signs"), cell.draws, cell.samples)
    found = planar_complexity(tokens, signs, query_norm=cell.query_norm, rings=cell.rings)
    upper, other = mean_of(found.upper), mean_of(concatenated_complexity(tokens, signs))
    bound = head_rademacher(cell.samples, dim=2, query_norm=cell.query_norm)
    return xr.Dataset(
        {
            "bound": ("cell", [float(bound)]),
            "measured": ("cell", [upper.mean]),
            "error": ("cell", [upper.error]),
            "repetitions": ("cell", [cell.draws]),
            "lower": ("cell", [found.lower.mean()]),
            "concatenated": ("cell", [other.mean]),
            "spread": ("cell", [other.error]),
        }
    )


IN_SAMPLES = "latent-posterior/complexity-in-samples"
COMPLEXITY: dict[str, Any] = {
    "source": PAPER,
    "reference": "generalisation that does not depend on the length",
    "hypotheses": (NORM, DRAWS),
    "cells": together("length", "samples"),
    "budget": "draws",
    "needs": (CERTIFIED,),
    "origin": "our reading",
}


def complexity(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Complexity of heads in five dimensions by ascent, of linear maps of the concatenated sequence, and the bound."""
    (cell,) = cells
    tokens = on_sphere(key_for(seed, IN_SAMPLES, "tokens"), cell.samples, cell.length, cell.dim)
    signs = draw_signs(key_for(seed, IN_SAMPLES, "signs"), cell.draws, cell.samples)
    key = key_for(seed, IN_SAMPLES, "starts")
    options = {
        "query_norm": cell.query_norm,
        "key": key,
        "starts": cell.starts,
        "steps": cell.steps,
    }
    found = mean_of(head_complexity(tokens, signs, **options))
    other = mean_of(concatenated_complexity(tokens, signs))
    bound = head_rademacher(cell.samples, dim=cell.dim, query_norm=cell.query_norm)
    values = {
        "heads": found.mean,
        "error": found.error,
        "concatenated": other.mean,
        "spread": other.error,
        "bound": bound,
    }
    return xr.Dataset({name: ("cell", [float(value)]) for name, value in values.items()})


HEADS = Setting(
    length=(16,), samples=(16, 256), dim=5, query_norm=5.0, draws=480, starts=2, steps=12
)

claim(
    IN_SAMPLES,
    statement=r"The Rademacher complexity of heads with $|u| \le 5$, $|v| \le 1$ on n sequences of 16 random directions in five dimensions falls as $n^{-1/2}$: the exponent is within 0.07 of $-\frac12$.",
    words="Four times the sequences halve what heads can fit by chance.",
    quick=HEADS,
    paper=HEADS.replace(samples=(16, 64, 256, 512), draws=800, steps=30),
    rule=Rate(margin=0.07),
    fit=lambda e: e.assign(x=e["samples"].astype(float), measured=e["heads"], predicted=-0.5),
    control=Control("an exponent of -0.65", lambda e: e.assign(predicted=-0.65)),
    figure=drawn_by(f"{FIGURES}.learning:complexity_in_samples"),
    **COMPLEXITY,
)(complexity)

IN_LENGTH = "latent-posterior/complexity-in-length"


def exponent_below(evidence: xr.Dataset, measured: str, error: str) -> xr.Dataset:
    """The exponent in the length, to be below a twentieth."""
    slope, deviation = log_slope(
        evidence["length"].values.astype(float), evidence[measured].values, evidence[error].values
    )
    return evidence.drop_vars("error").assign(
        lower=slope, upper=0.05, error=deviation, repetitions=evidence["draws"].variable
    )


@claim(
    IN_LENGTH,
    statement=r"The Rademacher complexity of heads with $|u| \le 2$, $|v| \le 1$ on 4 sequences of L random directions in the plane does not grow with L, from 4 tokens on: its exponent is below 0.05. The"
    r" mean over all signs is exact, and the supremum is enclosed. It falls slightly, towards $\sup_u|E_u x|$ times the complexity of a constant.",
    words="Longer sequences let heads fit no more by chance.",
    quick=Setting(length=(4, 32, 256), samples=4, query_norm=2.0, draws=32, rings=8),
    paper=Setting(length=(4, 16, 64, 256, 1024), samples=4, query_norm=2.0, draws=64, rings=24),
    rule=Order(),
    fit=lambda e: exponent_below(e, "heads", "error"),
    control=Control(
        "a linear map of the concatenated sequence, whose exponent is a half",
        lambda e: exponent_below(e, "concatenated", "spread"),
    ),
    figure=drawn_by(f"{FIGURES}.learning:complexity_in_length"),
    **{
        **COMPLEXITY,
        "cells": together("length"),
        "hypotheses": (NORM, Hypothesis("draws >= 20", lambda s: s.draws >= 20, defining=True)),
    },
)
def complexity_in_length(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """`draws` of the sequences; all signs of each, up to their common one."""
    (cell,) = cells
    n = cell.samples
    tokens = on_sphere(key_for(seed, IN_LENGTH, "tokens"), cell.draws * n, cell.length, 2)
    signs = np.array([(1, *rest) for rest in itertools.product((1.0, -1.0), repeat=n - 1)])
    # Draws stand side by side as one sample, of which each row of signs sees its own.
    every = np.kron(np.eye(cell.draws), cell.draws * signs)
    upper = planar_complexity(tokens, every, query_norm=cell.query_norm, rings=cell.rings).upper
    found, other = (
        mean_of(x.reshape(cell.draws, -1).mean(1))
        for x in (upper, concatenated_complexity(tokens, every))
    )
    values = {
        "heads": found.mean,
        "error": found.error,
        "concatenated": other.mean,
        "spread": other.error,
        "bound": head_rademacher(n, dim=2, query_norm=cell.query_norm),
    }
    return xr.Dataset({name: ("cell", [float(value)]) for name, value in values.items()})


# --- a longer context ------------------------------------------------------------------------------------------------

SHIFT = "latent-posterior/length-shift"
CHANCES = 1 / (1 + np.exp(-np.linspace(-8, 8, 33)))
NORMS = (0.25, 1.0, 3.0)


def two_points(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    r"""Root mean square distance to the limit of a head on tokens that are e with the given chance and -e otherwise, $u = B_ue$, $v = e$: exact, by the law of
    the count of e."""
    (cell,) = cells
    count = np.arange(cell.length + 1)
    chance, norm = CHANCES[:, None], np.array(NORMS)[:, None, None]
    log_law = (
        log_ways(np.stack([count, cell.length - count], 1))
        + xlogy(count, chance)
        + xlog1py(cell.length - count, -chance)
    )
    law = np.exp(log_law)
    tilt = np.exp(-2 * norm)

    def output(up: Any, down: Any) -> Any:
        return (up - tilt * down) / (up + tilt * down)

    limit = output(chance, 1 - chance)
    square = (law * (output(count, cell.length - count) - limit) ** 2).sum(-1)
    axes = ("cell", "norm", "chance")
    return xr.Dataset(
        {
            "distance": (axes, np.sqrt(square)[None]),
            "bound": (
                ("cell", "norm"),
                length_shift(cell.length, query_norm=np.array(NORMS))[None],
            ),
            "error": 0.0,
        },
        coords={"norm": list(NORMS), "chance": CHANCES},
    )


SHIFTED: dict[str, Any] = {
    "source": "attlas",
    "reference": "self-normalised weights",
    "quick": Setting(length=(16, 64, 256, 1024)),
    "paper": Setting(length=(16, 64, 256, 1024, 4096, 16_384)),
    "cells": together("length"),
    "origin": "ours",
}

claim(
    SHIFT,
    statement=r"$\sqrt{E|f(X_L) - f(X_\infty)|^2} \le 2B_vR\sqrt{\rho_w/L}$ with $\rho_w = \cosh^2(B_uR)$ for a softmax head on independent tokens of norm R, here of two values with any"
    r" chances.",
    words="A head's output settles as its context grows, so that what it was trained for at one length it does at another.",
    rule=Bound(),
    fit=lambda e: e.assign(measured=e["distance"]),
    control=Control("the constant 1 in place of 2", lambda e: e.assign(bound=e["bound"] / 2)),
    figure=drawn_by(f"{FIGURES}.learning:shift_bound"),
    **SHIFTED,
)(two_points)

claim(
    "latent-posterior/length-shift-rate",
    statement=r"The distance $\sqrt{E|f(X_L) - f(X_\infty)|^2}$ falls as $L^{-1/2}$ where both values are equally likely: the exponent is within 0.03 from 64 tokens on.",
    words="Four times the context halve the distance to the limit.",
    rule=Rate(margin=0.03),
    fit=lambda e: e.sel(chance=0.5).assign(
        x=e["length"].astype(float), measured=e["distance"].sel(chance=0.5), predicted=-0.5
    ),
    control=Control("an exponent of -0.56", lambda e: e.assign(predicted=-0.56)),
    figure=drawn_by(f"{FIGURES}.learning:shift_rate"),
    needs=(SHIFT,),
    **{
        **SHIFTED,
        "quick": Setting(length=(64, 256, 1024)),
        "paper": Setting(length=(64, 256, 1024, 4096, 16_384)),
    },
)(two_points)


# --- trained on functions --------------------------------------------------------------------------------------------

TEMPERATURE, NOISE = 0.3, 0.3


@functools.cache
def functions() -> BayesianRegression:
    """Gaussian processes on the sphere in three dimensions."""
    return BayesianRegression(3, kernel=RBF(TEMPERATURE), noise=NOISE)


SUPERVISED = "latent-posterior/supervised-fast-rate"


@claim(
    SUPERVISED,
    source=PAPER,
    reference="supervised learning of attention",
    statement=r"CME attention with learnt temperature and ridge, trained on n contexts of random functions, nears the Bayes predictor faster than $n^{-1/2}$: with 16 times the contexts"
    r" $E|f_n - f^*|^2$ is less than a quarter, in geometric mean over training sets. The Bayes predictor is in its class, and the expected rate is $\frac1n$.",
    words="Where the class holds the Bayes predictor, training finds it at the fast rate.",
    quick=Setting(samples=4, length=8, queries=4, steps=30, rate=0.2, repeats=128, contexts=64),
    paper=Setting(samples=16, length=16, queries=4, steps=80, rate=0.15, repeats=128, contexts=128),
    rule=Order(),
    control=Control(
        "an exponent below -1.75", lambda e: e.assign(upper=e["few"] - 1.75 * np.log(16))
    ),
    figure=drawn_by(f"{FIGURES}.learning:supervised"),
    budget="repeats",
    needs=("latent-posterior/cme-is-posterior-mean",),
    origin="our reading",
)
def supervised(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    model = functions()
    fresh = model.sample(
        key_for(seed, SUPERVISED, "test"), cell.contexts, cell.length, cell.queries
    )
    sizes = [cell.samples, 16 * cell.samples]
    key = key_for(seed, SUPERVISED, "training")
    data = draw_training(model, key, sizes, cell.repeats, cell.length, cell.queries)
    found = train("CME", data, steps=cell.steps, rate=cell.rate)
    excess = compare("CME", found, model, fresh).excess.mean(1).reshape(2, cell.repeats)
    # Logarithms, because some small training sets err by far more than others; the two sizes of a repeat share their contexts.
    few, many = np.log(excess)
    error = (few - many).std(ddof=1) / np.sqrt(cell.repeats)
    return xr.Dataset(
        {
            "lower": ("cell", [many.mean()]),
            "upper": ("cell", [few.mean() - np.log(4)]),
            "error": ("cell", [error]),
            "few": ("cell", [few.mean()]),
            "excess": (("cell", "size", "repeat"), excess[None]),
        },
        coords={"size": sizes},
    )


IN_CONTEXT = "latent-posterior/supervised-in-length"
PLACES = "a weight for each place"


def longer_is_better(e: xr.Dataset, learner: str) -> xr.Dataset:
    """Logarithms of the error at each length, to be below those at the length before."""
    of = e[["logarithm", "deviation"]].sel(learner=learner).transpose("cell", "size")
    logs, deviations = of["logarithm"].values, of["deviation"].values
    lower, upper, error = logs[1:], logs[:-1], np.hypot(deviations[1:], deviations[:-1])
    found = {
        name: (("pair", "size"), x)
        for name, x in (("lower", lower), ("upper", upper), ("error", error))
    }
    return e.assign({**found, "repetitions": e["repeats"].variable})


@claim(
    IN_CONTEXT,
    source=PAPER,
    reference="supervised learning of attention, with an error that does not grow with the length",
    statement=r"Softmax attention with learnt maps of queries and keys and a learnt temperature, trained on n contexts of L tokens of random functions: at every n $E|f_n - f^*|^2$ falls when L is taken four times as long, in geometric"
    r" mean over training sets. It is approximation and generalisation together; the number of parameters does not depend on L.",
    words="Trained on as many contexts, attention comes nearer to the Bayes predictor the longer they are.",
    hypotheses=(
        Hypothesis(
            "samples >= 2 length, for the control",
            lambda s: min(s.samples) >= 2 * s.length,
            defining=True,
        ),
        Hypothesis("repeats >= 20", lambda s: s.repeats >= 20, defining=True),
    ),
    quick=Setting(
        length=(4, 16), samples=(32, 128), queries=4, steps=30, rate=0.2, repeats=48, contexts=768
    ),
    paper=Setting(
        length=(4, 16, 64),
        samples=(128, 512),
        queries=4,
        steps=80,
        rate=0.15,
        repeats=32,
        contexts=768,
    ),
    rule=Order(),
    fit=lambda e: longer_is_better(e, "softmax"),
    control=Control(
        "least squares with a weight for each place",
        lambda e: longer_is_better(e.drop_vars(["lower", "upper", "error"]), PLACES),
    ),
    figure=drawn_by(f"{FIGURES}.learning:supervised_in_length"),
    cells=together("length"),
    budget="repeats",
    needs=(SUPERVISED,),
    origin="our reading",
)
def supervised_in_length(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    model = functions()
    fresh = model.sample(
        key_for(seed, IN_CONTEXT, f"test {cell.length}"), cell.contexts, cell.length, cell.queries
    )
    data = draw_training(
        model,
        key_for(seed, IN_CONTEXT, f"training {cell.length}"),
        cell.samples,
        cell.repeats,
        cell.length,
        cell.queries,
    )
    found = train("softmax", data, steps=cell.steps, rate=cell.rate)
    excess = np.stack(
        [compare("softmax", found, model, fresh).excess, by_place(model, data, fresh)]
    )
    excess = excess.reshape(2, len(cell.samples), cell.repeats, cell.contexts)
    logs, over = np.log(excess.mean(-1)), excess.mean(-2)
    # Training sets and test contexts are both draws.
    sets = logs.std(-1, ddof=1) / np.sqrt(cell.repeats)
    tests = over.std(-1, ddof=1) / np.sqrt(cell.contexts) / over.mean(-1)
    axes = ("cell", "learner", "size")
    return xr.Dataset(
        {
            "logarithm": (axes, logs.mean(-1)[None]),
            "deviation": (axes, np.hypot(sets, tests)[None]),
        },
        coords={"learner": ["softmax", PLACES], "size": list(cell.samples)},
    )


def by_place(
    model: BayesianRegression, data: tuple[Any, Any], fresh: Any
) -> Float[np.ndarray, "lane n"]:
    """Mean square distance to the Bayes predictor of least squares of the target on the values, one weight for each place in the context."""
    contexts, weight = jax.tree.map(np.asarray, data)
    values, targets = contexts.values[..., 0], contexts.targets[..., 0].mean(-1)
    gram = np.einsum("rn,rni,rnj->rij", weight, values, values)
    moment = np.einsum("rn,rni->ri", weight * targets, values)
    fitted = np.linalg.solve(gram, moment[..., None])[..., 0]
    mean = np.asarray(model.predictive(*fresh[:3])[0])[..., 0]
    found = fitted @ np.asarray(fresh.values)[..., 0].T
    return ((found[..., None] - mean) ** 2).mean(-1)


LENGTHS = "latent-posterior/length-generalisation"


def other_lengths(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Every mechanism, trained at one length: its risk over the Bayes risk at others."""
    (cell,) = cells
    model = functions()
    data = draw_training(
        model, key_for(seed, LENGTHS, "training"), [cell.samples], cell.repeats, cell.trained, 4
    )
    found: dict[str, Any] = {}
    for name, mechanism in MECHANISMS.items():
        first = next(other for other in MECHANISMS if MECHANISMS[other].attend is mechanism.attend)
        if name == first:
            found[name] = train(name, data, steps=cell.steps, rate=cell.rate)
        else:
            found[name] = absorbed(first, name, found[first], data[0])
    ratios, errors = [], []
    curves = length_curves(
        found, model, cell.length, key_for(seed, LENGTHS, "test"), contexts=cell.contexts
    )
    for curve in curves.values():
        for at in curve:
            ratio = at.excess.mean(1) / at.bayes.mean()
            left = at.excess.mean(0) - ratio.mean() * at.bayes
            chance = left.std(ddof=1) / np.sqrt(cell.contexts) / at.bayes.mean()
            ratios.append(1 + ratio.mean())
            errors.append(np.hypot(chance, ratio.std(ddof=1) / np.sqrt(cell.repeats)))
    axes, shape = ("cell", "mechanism", "tokens"), (1, len(MECHANISMS), len(cell.length))
    return xr.Dataset(
        {
            "ratio": (axes, np.reshape(ratios, shape)),
            "deviation": (axes, np.reshape(errors, shape)),
        },
        coords={
            "mechanism": list(MECHANISMS),
            "tokens": list(cell.length),
            "trained": ("cell", [cell.trained]),
        },
    )


FAILING = [name for name in MECHANISMS if name not in ("CME", "softmax, temperature by the length")]
TRAINED: dict[str, Any] = {
    "source": PAPER,
    "reference": "invariance to the input size",
    "hypotheses": (
        Hypothesis(
            "trained is among length, which is in ascending order",
            lambda s: s.trained in s.length and list(s.length) == sorted(s.length),
            defining=True,
        ),
        Hypothesis("repeats >= 20", lambda s: s.repeats >= 20, defining=True),
    ),
    "quick": Setting(
        trained=8, length=(4, 8, 128), samples=512, steps=30, rate=0.2, repeats=20, contexts=96
    ),
    "paper": Setting(
        trained=32,
        length=(8, 32, 128, 512),
        samples=256,
        steps=80,
        rate=0.15,
        repeats=20,
        contexts=64,
    ),
    "budget": "contexts",
    "needs": (SUPERVISED,),
    "origin": "our reading",
}


def ratio_of(e: xr.Dataset, name: str) -> xr.Dataset:
    return e.assign(
        measured=e["ratio"].sel(mechanism=name, drop=True),
        error=e["deviation"].sel(mechanism=name, drop=True),
        repetitions=e["repeats"].variable,
    )


claim(
    LENGTHS,
    long=True,
    statement=r"CME attention whose temperature and constant ridge were learnt at one length has a risk within 5 % of the Bayes risk at shorter contexts and at longer ones, here four times or more.",
    words="Kernel attention that was trained on contexts of one length is as good as can be on others.",
    rule=Bound(),
    fit=lambda e: ratio_of(e, "CME").assign(bound=1.05),
    control=Control(
        "a ridge in proportion to the length",
        lambda e: ratio_of(e, "CME, ridge in proportion to the length"),
    ),
    figure=drawn_by(f"{FIGURES}.learning:length_curve"),
    **TRAINED,
)(other_lengths)


def failing(e: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    chosen = e.sel(mechanism=list(names)).rename(mechanism="failing")
    here = int(e["trained"].values[0])
    near, far = ({"tokens": n} for n in (here, int(e["tokens"].max())))
    ratio, error = chosen["ratio"], chosen["deviation"]
    gap = np.hypot(error.sel(far, drop=True), 1.4 * error.sel(near, drop=True))
    return e.assign(
        lower=1.4 * ratio.sel(near, drop=True),
        upper=ratio.sel(far, drop=True),
        error=gap,
        repetitions=e["repeats"].variable,
    )


claim(
    "latent-posterior/length-failures",
    statement=r"At the longest of these lengths the risk of CME attention with ridge $cL$, of softmax attention of a learnt temperature and of linear attention, averaged or summed, is"
    r" more than 1.4 times as many Bayes risks as at the length of training.",
    words="A ridge that grows with the length, a fixed temperature and a plain sum do not carry over to longer contexts.",
    rule=Order(),
    fit=lambda e: failing(e, FAILING),
    control=Control(
        "CME attention with a constant ridge",
        lambda e: failing(e.drop_vars(["lower", "upper", "error", "failing"]), ["CME"]),
    ),
    figure=drawn_by(f"{FIGURES}.learning:length_curve"),
    **TRAINED,
)(other_lengths)
