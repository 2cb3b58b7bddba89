"""Claims about learning attention: the ledger of the excess risk, complexity without length."""

import itertools
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.linalg import cho_solve
from scipy.special import softmax

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, product, together
from attlas.claims.rules import Agreement, Approximation, Bound, Order, Rate
from attlas.figure import Figure
from attlas.latent_posterior import rates
from attlas.latent_posterior.bounds import head_rademacher
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.rates import larger_root
from attlas.latent_posterior.claims.shared import (
    DRAWS,
    defining,
    log_figure,
    on_sphere,
    random_topics,
    root,
)
from attlas.latent_posterior.models import FiniteLatent, posterior_variance
from attlas.latent_posterior.trained_attention import (
    Topics,
    descend_linearised,
    random_heads,
    topics,
)
from attlas.latent_posterior.trained_attention import ledger as split
from attlas.rademacher import (
    concatenated_complexity,
    draw_signs,
    head_complexity,
    mean_of,
    planar_complexity,
)
from attlas.statistics import log_slope

# --- the ledger --------------------------------------------------------------------------------


TOPICS = Setting(latents=3, vocabulary=3, noise=0.3)
CLASSES = defining("vocabulary >= 2 and latents >= 2", lambda s: min(s.vocabulary, s.latents) >= 2)


def labelled_topics(cell: Setting, draws: Draws) -> Topics:
    """Random topics without rare words, with labels that run from -1 to 1 over the latents."""
    drawn = random_topics(draws.stream("topics"), cell.latents, cell.vocabulary)
    words = (drawn.words + 1 / cell.vocabulary) / 2
    model = FiniteLatent(drawn.prior, words, np.linspace(-1, 1, cell.latents)[:, None])
    return topics(model, cell.length, cell.noise)


PARTS = ["generalisation", "optimisation", "approximation"]


@latent_posterior.claim(
    kind="simulation",
    origin="our reading",
    reference="excess risk: generalisation, optimisation, approximation",
    statement=r"$E|f_T - f^*|^2 = \{[R - R_n](f_T) + R_n(\hat f) - R(f^\circ)\} + \{R_n(f_T) -"
    r" R_n(\hat f)\} + \{R(f^\circ) - R(f^*)\}$ for softmax heads of fixed scores and learnt"
    r" values $\theta$ on $n$ sequences, $f = \phi^\top\theta$, where every word has at least"
    r" half of the uniform probability. In mean and to 12 % the parts are: generalisation, of"
    r" $\hat f$, $\frac1n\mathrm{tr}(\Sigma^+E[e^2\phi\phi^\top])$ with $\Sigma ="
    r" E[\phi\phi^\top]$ and $e = y - f^\circ$; optimisation, after $T$ steps, $\sum_jw_j(1 -"
    r" \eta w_j)^{2T}c_j^2$; approximation, $E f^{*2} - b^\top\Sigma^+b$ with $b = E[\phi"
    r" f^*]$. The first and the last make up the distance of $\hat f$ to the Bayes predictor"
    r" $f^* = \int E[y \mid z]\,d\pi_X(z)$. In this class, linear in what is learnt, each part"
    r" has a formula of its own; the claim `trained-ledger` has the parts of whole networks.",
    words="The excess risk of a trained model is the sum of its generalisation error, its"
    " optimisation error and its approximation error. For a linear class each has a formula.",
    hypotheses=(
        CLASSES,
        defining("repeats >= 100", lambda s: s.repeats >= 100),
        Hypothesis(
            "vocabulary >= 3: of two words the heads can say all, and a part of size 0 is left",
            lambda s: s.vocabulary >= 3,
        ),
    ),
    quick=Setting(
        length=(3, 10), samples=(4000, 12_000), heads=2, steps=400, every=40, repeats=8000, **TOPICS
    ),
    paper=dict(length=(3, 10, 30), samples=(4000, 12_000, 36_000), every=200),
    cells=product("length", "samples"),
    budget="repeats",
    rule=Approximation(margin=0.12),
    control=Control(
        "random functions in place of the trained ones", lambda e: {"measured": e.random}
    ),
    needs=("predictive",),
)
def ledger(cell: Setting, draws: Draws) -> Values:
    """Each part by a formula of the population, and by training on samples."""
    population = labelled_topics(cell, draws)
    risk, drawn = population.risk, population.sample(draws("samples"), cell.samples, cell.repeats)
    heads = random_heads(draws("heads"), 1, cell.heads, cell.vocabulary)
    (phi,) = heads.features(population.counts)
    found = descend_linearised(
        np.broadcast_to(phi, (cell.repeats, *phi.shape)),
        drawn,
        step_size=1.0,
        steps=cell.steps,
        record_every=cell.every,
    )
    root_weight = np.sqrt(risk.weight)
    weighted = root_weight[:, None] * phi
    best = phi @ np.linalg.lstsq(weighted, root_weight * risk.target)[0]
    size = risk.weight @ risk.target**2
    noise = draws.stream("random").normal(0, np.sqrt(size), found.minimiser.shape)

    def parts(trained: Any) -> Float[np.ndarray, "part ... repeat"]:
        """The three parts, and the distance that they add up to."""
        terms = split(
            risk.__call__,
            drawn.__call__,
            trained=trained,
            minimiser=found.minimiser,
            best=best,
            bayes=risk.target,
        )
        three = [np.broadcast_to(getattr(terms, name), trained.shape[:-1]) for name in PARTS]
        return np.array([*three, (risk.weight * (trained - risk.target) ** 2).sum(-1)])

    curves, random, ends = map(parts, (found.predictions, noise, found.minimiser))
    inverse = np.linalg.pinv(weighted.T @ weighted, rcond=1e-10, hermitian=True)
    spread = posterior_variance(population.posterior, population.values[:, None]) + cell.noise**2
    square = risk.weight * (spread + (risk.target - best) ** 2)
    moment = phi.T @ (risk.weight * risk.target)
    misled = np.trace(inverse @ (phi.T * square) @ phi) / cell.samples
    undone, lacking = found.predicted[1].mean(), size - moment @ inverse @ moment
    measured = mean_of(ends)
    return {
        **on(
            "part",
            predicted=[misled, undone, lacking, misled + lacking],
            measured=[measured.mean[0], curves[1, 1].mean(), *measured.mean[2:]],
            # Descent and its formula are of the same samples.
            error=measured.error * [1, 0, 0, 1],
            random=random.mean(-1),
        ),
        **on("term step", terms=curves[:3].mean(-1)),
        "part": [*PARTS, "distance"],
        "term": PARTS,
        "step": found.steps,
    }


@ledger.figure
def terms_of_the_excess(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence.sel(step=evidence["step"] > 0).clip(min=1e-6),
        "The ledger of the excess risk",
        "lines: means over samples; points: each part by its formula",
        x="steps of training",
        y="excess risk, term by term",
    )
    step = evidence["step"].values
    alone = evidence[["predicted", "length", "samples"]].sel(part=PARTS).rename(part="term")
    alone = alone.assign(at=("term", step[[-1, 1, -1]]))
    figure.lines("step", "terms", color="term")
    figure.points("at", "predicted", color="term", data=alone, size=60)
    return figure.facet("L = {length}, n = {samples}", width=190, height=130)


@latent_posterior.claim(
    kind="two routes",
    origin="our reading",
    reference="optimisation error",
    statement=r"In the class that is linear in the values of fixed random heads, descent"
    r" $\theta \leftarrow \theta - \frac\eta2\nabla R_n$ leaves $R_n(\theta_T) -"
    r" R_n(\hat\theta) = \sum_j w_j(1 - \eta w_j)^{2T}c_j^2$, $w$ the eigenvalues of the"
    r" covariance of the heads' outputs and $c = U^\top(\theta_0 - \hat\theta)$.",
    words="For a linear class the optimisation error after T steps is a sum over the eigenvalues of"
    " the covariance of its features.",
    hypotheses=(
        CLASSES,
        defining("0 < step_size < 2", lambda s: 0 < s.step_size < 2),
        Hypothesis(
            "vocabulary >= 3 and heads <= 12: with two words, or with more heads, features are"
            " nearly collinear, and rounding shows",
            lambda s: s.vocabulary >= 3 and s.heads <= 12,
        ),
    ),
    quick=Setting(
        length=(4, 12),
        samples=200,
        heads=6,
        step_size=1.0,
        steps=2000,
        every=100,
        repeats=16,
        **TOPICS,
    ),
    paper=dict(
        length=(4, 12, 30), latents=4, vocabulary=4, heads=8, steps=20_000, every=500, repeats=32
    ),
    cells=together("length"),
    rule=Agreement(rounding=1e-10),
    control=Control("the gradient flow, with $e^{-2\\eta w_jT}$", lambda e: {"predicted": e.flow}),
    needs=("ledger",),
)
def optimisation_error(cell: Setting, draws: Draws) -> Values:
    population = labelled_topics(cell, draws)
    drawn = population.sample(draws("samples"), cell.samples, cell.repeats)
    heads = random_heads(draws("heads"), cell.repeats, cell.heads, cell.vocabulary)
    features = heads.features(population.counts)
    found = descend_linearised(
        features, drawn, step_size=cell.step_size, steps=cell.steps, record_every=cell.every
    )
    sizes, inside = found.eigenvalues, found.distances
    relative = cell.step_size * sizes / sizes[:, :1]
    flow = [(sizes * np.exp(-2 * relative * t) * inside**2).sum(-1) for t in found.steps]
    curves = {"predicted": found.predicted, "measured": found.measured, "flow": np.array(flow)}
    return {**on("step repeat", **curves), "error": 0.0, "step": found.steps}


@optimisation_error.figure
def errors_of_descent(evidence: xr.Dataset) -> Figure:
    mean = evidence[["predicted", "measured"]].mean("repeat").clip(min=1e-12)
    figure = log_figure(
        mean.sel(step=mean["step"] > 0),
        "What training leaves undone",
        "lines: from the spectrum of the features; dots: by descent",
        x="steps of descent",
        y="optimisation error",
    )
    figure.lines("step", "predicted", color="length")
    return figure.points("step", "measured", color="length")


GRID = np.geomspace(0.02, 2, 40)
"""Temperatures among which the best head is sought."""


@latent_posterior.claim(
    kind="simulation",
    origin="our reading",
    reference="approximation error",
    statement=r"Over random functions with covariance $e^{(\langle k, k'\rangle - 1)/\gamma_0}$"
    r" on the sphere the best softmax head has $R(f^\circ) - R(f^*) = \min_\gamma"
    r" E|\mathrm{attn}_\gamma - \mathrm{CME}|^2$, the finite-length difference of the two"
    r" mechanisms at the mean powers $|m_l|^2 = N_l\mu_l$, to 10 % of its root for $L \ge 64$.",
    words="The excess risk of the best softmax head over the Bayes predictor has a formula in"
    " the length, and falls as contexts grow.",
    hypotheses=(
        defining("draws >= 40, half of which choose the temperature", lambda s: s.draws >= 40),
        Hypothesis("length >= 64: above the effective dimension", lambda s: s.length >= 64),
    ),
    quick=Setting(length=(64, 128, 256), dim=3, temperature=0.5, noise=0.5, draws=128, queries=32),
    paper=dict(length=(64, 128, 256, 512, 1024, 2048), queries=64),
    cells=together("length"),
    budget="draws",
    rule=Approximation(margin=0.1),
    control=larger_root(0.2),
    needs=("ledger", "softmax-cme-difference"),
)
def approximation(cell: Setting, draws: Draws) -> Values:
    points = on_sphere(draws.stream("contexts"), cell.draws, cell.queries + cell.length, cell.dim)
    asked = cell.queries, cell.temperature, cell.noise
    # The temperature is chosen on half of the draws and measured on the others.
    choosing, measuring = np.array_split(points, 2)
    best = softmax_excess(choosing, *asked, GRID).mean(0).argmin()
    measured = softmax_excess(measuring, *asked, GRID[[best]])
    degrees = np.arange(40)
    powers = rates.multiplicity(degrees, cell.dim) * rates.mercer(
        degrees, cell.temperature, cell.dim
    )
    given: dict[str, Any] = {"dim": cell.dim, "powers": powers, "noise": cell.noise}
    given["ridge"] = cell.noise**2
    apart = rates.difference_error(cell.length, kernel=cell.temperature, temperature=GRID, **given)
    bayes = rates.cme_error(cell.length, temperature=cell.temperature, **given)
    return {
        "measured": root(mean_of(measured[:, 0])),
        "predicted": float(apart.min() ** 0.5),
        "bayes": float(bayes**0.5),
        "repetitions": float(len(measured)),
    }


def softmax_excess(
    points: Float[np.ndarray, "draw token dim"],
    queries: int,
    kernel: float,
    noise: float,
    temperatures: Float[Any, " t"],
) -> Float[np.ndarray, "draw t"]:
    r"""$E|\mathrm{attn}_\gamma - f^*|^2 = (w - w^*)^\top(G + \sigma^2I)(w - w^*)$ for each draw.

    The mean over queries, exact over random functions with covariance
    $e^{(\langle k, k'\rangle - 1)/\text{kernel}}$ and noise; w are the weights of softmax attention
    and $w^*$ those of the Bayes predictor.

    Arguments:
        points: of each draw first the `queries`, then the keys.
    """
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


@approximation.figure
def distances_to_bayes(evidence: xr.Dataset) -> Figure:
    formulas = {"predicted": "the best softmax head, to Bayes", "bayes": "Bayes, to the function"}
    figure = log_figure(
        evidence,
        "What softmax heads cannot do",
        "points: measured; lines: the finite-length formulas",
        y="root mean square distance",
    )
    figure.lines("length", formulas)
    return figure.points("length", "measured", error="error", size=45)


# --- generalisation without the length ---------------------------------------------------------

FEW_DRAWS = defining("draws >= 8", lambda s: s.draws >= 8)
COMPLEXITY = "Rademacher complexity"
CLASS_NAMES = {
    "heads": "heads",
    "concatenated": "linear maps of the sequence",
    "bound": "the bound",
}


@latent_posterior.claim(
    kind="simulation",
    origin="our reading",
    reference="generalisation that does not depend on the length",
    statement=r"$\mathrm{Rad}_n\{X \mapsto \sum_i\mathrm{softmax}_i(\langle u, x_i\rangle)\langle"
    r" v, x_i\rangle : |u| \le B_u, |v| \le B_v\} \le \min\{M, \inf_\epsilon[\epsilon +"
    r" M\sqrt{2\ln(N(\epsilon))/n}]\}$ with $M = B_vR$ and $\ln(N) = d\ln(1 +"
    r" 4B_uB_vR^2/\epsilon) + d\ln(1 + 4B_vR/\epsilon)$, for sequences of any length;"
    r" the supremum is certified in the plane.",
    words="How well heads of given norms can fit coin flips has a bound in which the length of the"
    " sequences does not occur. It is not sharp: on random sequences of four tokens a search"
    " finds a sixth of it.",
    hypotheses=(
        FEW_DRAWS,
        defining(
            "rings >= 4 query_norm: a coarser certificate of the supremum is far above it",
            lambda s: s.rings >= 4 * s.query_norm,
        ),
    ),
    quick=Setting(length=(4, 128), samples=(128, 256), query_norm=2.0, draws=32, rings=8),
    paper=dict(length=(4, 32, 128), samples=(128, 256, 512), rings=24),
    cells=product("length", "samples"),
    budget="draws",
    rule=Bound(),
    control=Control(
        "a linear map of the concatenated sequence, of the same norm for each token",
        lambda e: {"measured": e.concatenated, "error": e.concatenated_error},
    ),
)
def head_complexity_bound(cell: Setting, draws: Draws) -> Values:
    tokens = on_sphere(draws.stream("tokens"), cell.samples, cell.length, 2)
    signs = draw_signs(draws("signs"), cell.draws, cell.samples)
    found = planar_complexity(tokens, signs, query_norm=cell.query_norm, rings=cell.rings)
    return {
        "bound": float(head_rademacher(cell.samples, dim=2, query_norm=cell.query_norm)),
        "measured": mean_of(found.upper),
        "concatenated": mean_of(concatenated_complexity(tokens, signs)),
        "repetitions": cell.draws,
    }


@head_complexity_bound.figure
def complexities_and_their_bound(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence.rename(measured="heads"),
        "A bound without the length",
        "heads in the plane, of query norm 2, certified from above",
        y=COMPLEXITY,
    )
    return figure.lines("length", CLASS_NAMES, points=True).facet("n = {samples}")


@latent_posterior.claim(
    kind="simulation",
    origin="our reading",
    reference="generalisation that does not depend on the length",
    statement=r"The Rademacher complexity of heads with $|u| \le 5$, $|v| \le 1$ on $n$"
    r" sequences of 16 random directions in five dimensions falls as $n^{-1/2}$: the exponent"
    r" is within 0.06 of $-\frac12$.",
    words="The Rademacher complexity of heads falls like one over the root of the number of"
    " sequences: four times the sequences halve it.",
    hypotheses=(FEW_DRAWS,),
    quick=Setting(
        length=(16,),
        samples=(16, 32, 64, 128, 256),
        dim=5,
        query_norm=5.0,
        draws=400,
        starts=2,
        steps=12,
    ),
    paper=dict(samples=(16, 32, 64, 128, 256, 512), draws=800, steps=30),
    cells=together("length", "samples"),
    budget="draws",
    rule=Rate(margin=0.06),
    control=Control(
        "an exponent that is {size:.2g} smaller",
        lambda e, size: {"exponent": e.exponent - size},
        size=0.14,
    ),
    needs=("head-complexity-bound",),
)
def complexity_in_samples(cell: Setting, draws: Draws) -> Values:
    """Heads in five dimensions by ascent, linear maps of the concatenated sequence, the bound."""
    tokens = on_sphere(draws.stream("tokens"), cell.samples, cell.length, cell.dim)
    signs = draw_signs(draws("signs"), cell.draws, cell.samples)
    found = head_complexity(
        tokens,
        signs,
        query_norm=cell.query_norm,
        key=draws("starts"),
        starts=cell.starts,
        steps=cell.steps,
    )
    return {
        "x": float(cell.samples),
        "measured": mean_of(found),
        "exponent": -0.5,
        "concatenated": mean_of(concatenated_complexity(tokens, signs)),
        "bound": float(head_rademacher(cell.samples, dim=cell.dim, query_norm=cell.query_norm)),
    }


@complexity_in_samples.figure
def complexities_against_samples(evidence: xr.Dataset) -> Figure:
    first = evidence.isel(cell=0)
    guide = first["measured"] * (evidence["x"] / first["x"]) ** -0.5
    figure = log_figure(
        evidence.rename(measured="heads").assign(guide=guide),
        "Complexity falls as the root of the samples",
        "dashed: the exponent -0.5",
        x="sequences n",
        y=COMPLEXITY,
    )
    figure.lines("samples", "guide", theory=True)
    return figure.lines("samples", CLASS_NAMES, points=True)


@latent_posterior.measurement(
    "complexity-in-length",
    quick=Setting(length=(4, 8, 16, 64, 256), samples=4, query_norm=2.0, draws=32, rings=8),
    paper=dict(length=(4, 16, 64, 256, 1024), draws=64, rings=24),
    hypotheses=(DRAWS,),
    cells=together("length"),
    budget="draws",
)
def complexities_by_length(cell: Setting, draws: Draws) -> Values:
    """`draws` of the sequences; all signs of each, up to their common one."""
    n = cell.samples
    tokens = on_sphere(draws.stream("tokens"), cell.draws * n, cell.length, 2)
    signs = np.array([(1, *rest) for rest in itertools.product((1.0, -1.0), repeat=n - 1)])
    # Draws stand side by side as one sample, of which each row of signs sees its own.
    every = np.kron(np.eye(cell.draws), cell.draws * signs)
    upper = planar_complexity(tokens, every, query_norm=cell.query_norm, rings=cell.rings).upper
    heads, concatenated = (
        mean_of(x.reshape(cell.draws, -1).mean(1))
        for x in (upper, concatenated_complexity(tokens, every))
    )
    bound = float(head_rademacher(n, dim=2, query_norm=cell.query_norm))
    return {"heads": heads, "concatenated": concatenated, "bound": bound}


@latent_posterior.claim(
    kind="simulation",
    measured_by=complexities_by_length,
    origin="our reading",
    reference="generalisation that does not depend on the length",
    statement=r"The Rademacher complexity of heads with $|u| \le 2$, $|v| \le 1$ on 4 sequences"
    r" of $L$ random directions in the plane does not grow with $L$, from 4 tokens on: its"
    r" exponent is below 0.05. The mean over all signs is exact, and the supremum is enclosed."
    r" It falls slightly, towards $\sup_u|E[xe^{\langle u, x\rangle}]/E[e^{\langle u,"
    r" x\rangle}]|$ times the complexity of a constant.",
    words="The Rademacher complexity of heads of given norms, how well they fit coin flips,"
    " does not grow with the length of the sequences.",
    rule=Order(),
    control=Control(
        "a linear map of the concatenated sequence, whose exponent is a half",
        lambda e: exponent_of(e, "concatenated"),
    ),
    needs=("head-complexity-bound",),
)
def complexity_in_length(evidence: xr.Dataset) -> Values:
    return exponent_of(evidence, "heads")


def exponent_of(evidence: xr.Dataset, name: str) -> Values:
    """The exponent in the length, to be below a twentieth."""
    lengths = evidence["length"].values.astype(float)
    slope, error = log_slope(lengths, evidence[name].values, evidence[f"{name}_error"].values)
    repetitions = evidence["draws"].variable
    return {"lower": slope, "upper": 0.05, "error": error, "repetitions": repetitions}


@complexity_in_length.figure
def complexities_against_length(evidence: xr.Dataset) -> Figure:
    figure = log_figure(evidence, "Complexity does not grow with the length", y=COMPLEXITY)
    return figure.lines("length", CLASS_NAMES, points=True)
