"""Claims about how good a head can be: linear and Bayes predictors, and gaps that close."""

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Float
from scipy import special

from attlas.claims import (
    Agreement,
    Approximation,
    Bound,
    Control,
    Draws,
    Hypothesis,
    Rate,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, Panels, row
from attlas.gaussian import BLOCK, Estimate, zeta
from attlas.single_location.baselines import (
    bayes_exponent,
    bayes_gap,
    excess_bound,
    log_bayes_asymptote,
    log_softmax_asymptote,
    softmax_exponent,
    softmax_gap,
)
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import (
    ROOT_HALF,
    SAMPLES,
    against_formula,
    capped,
    paper_task,
    sequences,
    task_of,
)
from attlas.single_location.population import ORACLE, sampled_risk
from attlas.single_location.task import Constants, SingleLocation


@single_location.claim(
    kind="simulation",
    origin="our reading",
    reference="Proposition 3",
    statement=r"The best linear predictor has risk"
    r" $\varepsilon^2 + \gamma^2 - \sum_l \frac{p_l^2\gamma^4}{p_l\gamma^2 + 1 - p_l}$ where $p$ is"
    r" the law of the place, and the paper's"
    r" $\varepsilon^2 + \gamma^2 - \frac{\gamma^4}{\gamma^2 + L - 1}$ where it is uniform; least"
    r" squares on fresh samples comes within 2 % of it.",
    words="A linear model has one weight vector for each place, and gains ever less over"
    " predicting 0 as the sequence grows.",
    hypotheses=(SAMPLES,),
    quick=Setting(
        dim=(4,),
        length=(3,),
        gamma=(ROOT_HALF, 1.3, 1.0),
        ratio=(1.0, 1.0, 0.5),
        noise=0.1,
        samples=400_000,
    ),
    paper=dict(
        dim=(4, 6, 8, 6),
        length=(2, 3, 5, 4),
        gamma=(ROOT_HALF, 1.0, 1.3, 1.0),
        ratio=(1.0, 1.0, 1.0, 0.5),
        samples=1_000_000,
    ),
    cells=together("dim", "length", "gamma", "ratio"),
    budget="samples",
    rule=Approximation(margin=0.02),
    control=Control(
        "its gain over predicting 0 is {size:.0%} smaller",
        lambda e, size: {"predicted": e.predicted + size * (e.constant - e.predicted)},
        size=0.25,
    ),
)
def best_linear(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    unfitted = np.zeros(task.length * task.dim + 1)
    gram, product, _ = linear_regression(task, draws, "train", cell.samples, unfitted)
    weights = np.linalg.solve(gram, product)
    return {
        "predicted": task.linear_risk(),
        "measured": linear_regression(task, draws, "test", cell.samples, weights)[2],
        "constant": task.constant_risk(),
    }


@best_linear.figure
def risks_by_task(evidence: xr.Dataset) -> Figure:
    task = "L={length}, γ={gamma:.2g}, ratio {ratio:g}"
    theory = {"predicted": "Proposition 3", "constant": "predicting 0"}
    figure = Figure(evidence, "The best linear predictor", x="", y="risk")
    figure.ticks(task, theory, theory=False, size=70)
    return figure.points(task, {"measured": "least squares"}, error=True, size=50)


def linear_regression(
    task: SingleLocation, draws: Draws, purpose: str, samples: int, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Estimate]:
    """What least squares on all L d coordinates and an intercept needs, in blocks of samples.

    Returns: means of products of the coordinates with each other and with the target, and the mean
    loss with `weights`.
    """
    blocks, sums = -(-samples // BLOCK), []
    for block in range(blocks):
        tokens, y = sequences(task, draws.stream(purpose, block), BLOCK)
        x = np.pad(tokens.reshape(BLOCK, -1), ((0, 0), (0, 1)), constant_values=1)
        loss = (x @ weights - y) ** 2
        sums.append((x.T @ x, x.T @ y, loss.mean(), (loss**2).mean()))
    gram, product, loss, square = (sum(parts) / blocks for parts in zip(*sums, strict=True))
    return gram, product, Estimate(loss, np.sqrt((square - loss**2) / (blocks * BLOCK)))


@single_location.claim(
    kind="simulation",
    reference="Corollary 2",
    statement=r"Along $d \to \infty$ with $L = o(d)$, $\lambda\sqrt d \to \infty$ and"
    r" $\lambda\sqrt L \to 0$ the oracle's excess risk vanishes. On the ladder $L = d^{1/4}$,"
    r" $\lambda = (dL)^{-1/4}$ it falls with the exponent of the closed form to 0.01, which tends"
    r" to that of $\frac4\pi\sqrt{L/d}$.",
    words="The wider the tokens, the closer attention comes to the best possible prediction.",
    hypotheses=(
        SAMPLES,
        Hypothesis("growth >= 0", lambda s: s.growth >= 0, defining=True),
        Hypothesis("growth < 1: L = o(d)", lambda s: s.growth < 1),
        Hypothesis(
            "power (1 + growth) < 1/2: lam sqrt(d) grows", lambda s: s.power * (1 + s.growth) < 0.5
        ),
        Hypothesis(
            "power (1 + growth) > growth/2: lam sqrt(L) vanishes",
            lambda s: s.power * (1 + s.growth) > s.growth / 2,
        ),
    ),
    quick=Setting(
        dim=(100, 400, 1600, 6400, 25_600),
        growth=0.25,
        power=0.25,
        gamma=ROOT_HALF,
        samples=200_000,
    ),
    paper=dict(dim=(100, 400, 1600, 6400, 25_600, 102_400, 409_600, 1_638_400), samples=1_000_000),
    cells=together("dim"),
    budget="samples",
    rule=Rate(margin=0.01),
    control=Control(
        "a number of uninformative tokens that exceeds L - 1 by {size:.2g}",
        lambda e, size: {"predicted": e.predicted + size * e.token_noise},
    ),
    needs=("closed-form-risk",),
)
def oracle_optimality(cell: Setting, draws: Draws) -> Values:
    length = max(2, round(cell.dim**cell.growth))
    task, lam = SingleLocation(cell.dim, length, cell.gamma), (cell.dim * length) ** -cell.power
    return {
        "x": float(cell.dim),
        "predicted": float(task.oracle_risk(lam)),
        "measured": sampled_risk(task, ORACLE, lam, draws("samples"), cell.samples),
        "token_noise": zeta(0.0, lam),
        "limit": 4 / np.pi * (length / cell.dim) ** 0.5,
    }


@oracle_optimality.figure
def excess_on_the_ladder(evidence: xr.Dataset) -> Figure:
    title, y = "The oracle becomes optimal", "excess risk of the oracle"
    note = "points: simulation, whose errors are smaller than a point"
    figure = Figure(evidence, title, note, x="dimension d", y=y, log="xy")
    figure.lines("x", {"predicted": "closed form", "limit": "4/π √(L/d)"})
    return figure.points("x", {"measured": "simulation"})


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="explicit form of Corollary 2",
    statement=r"The oracle's excess risk is at most $\gamma^2\big[\frac1E"
    r" e^{-2\lambda^2m^2/E^2} + 4\Phi(-\frac m\gamma)\big] + \frac4\pi(L-1)\lambda^2$ with $m^2"
    r" = \frac d2$, $E^2 = 1 + 4\lambda^2\gamma^2$, for all $d, L, \gamma, \lambda$: the first"
    r" term bounds the part of the informative token, the second that of all others.",
    words="A bound on the excess risk of the oracle that holds for every dimension, length,"
    " spread and sharpness.",
    hypotheses=(Hypothesis("points >= 64", lambda s: s.points >= 64, defining=True),),
    quick=Setting(points=512, generations=40),
    paper=dict(points=4096, generations=200),
    budget="points",
    ranges={"generations": (5, 200)},
    rule=Bound(),
    control=Control(
        "a bound that is smaller by {size:.2g} of its value",
        lambda e, size: {"bound": (1 - size) * e.bound},
        size=1e-3,
    ),
    needs=("closed-form-risk",),
)
def oracle_excess_bound(cell: Setting, draws: Draws) -> Values:
    generator, found = draws.stream("points", 1), []
    for i, (part, box) in enumerate(PARTS.values()):
        uniform = draws.stream("points", i + 2).random((2, cell.points))
        points = box[:, :1] + (box[:, 1:] - box[:, :1]) * uniform
        worst = scipy.optimize.differential_evolution(
            lambda x, part=part: -np.divide(*part(x)),
            box,
            init=points[:, :64].T,
            maxiter=cell.generations,
            tol=0,
            rng=generator,
            polish=False,
            vectorized=True,
            updating="deferred",
        )
        found.append(part(np.hstack([points, worst.population.T, worst.x[:, None]])))
    excess, bound = np.transpose(found, (1, 0, 2))
    searched = excess.shape[1] - cell.points
    return {
        **on("part point", bound=bound, measured=excess),
        **on("point", found=["at random"] * cell.points + ["by search"] * searched),
        "error": 0.0,
        "part": list(PARTS),
    }


@oracle_excess_bound.figure
def excess_against_bound(evidence: xr.Dataset) -> Figure:
    title, note = "The bound and what it bounds", "on the line the bound would be attained"
    y, legend = "excess risk of the oracle", {"found": "place chosen"}
    figure = Figure(evidence, title, note, x="bound", y=y, log="xy", legend=legend)
    figure.points("bound", "measured", color="part", shape="found", size=16, opacity=0.6)
    return figure.diagonal("bound", "measured")


def informative_part(log_place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$E[(1 - \mathrm{erf}(x))^2]$ and its bound, at logarithms of $(r, u)$.

    $x = u + \frac ur G$, $u = \lambda m$, $r = \frac m\gamma$, by the trapezoidal rule; nothing
    else of $d, \gamma, \lambda$ matters.
    """
    r, u = np.exp(np.atleast_2d(log_place.T).T)
    g = np.linspace(-12, 12, 2001)
    x = u[..., None] * (1 + g / r[..., None])
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    excess = scipy.integrate.trapezoid(special.erfc(x) ** 2 * density, g)
    return excess, excess_bound(Constants(r, 1.0, 1, 0.0), u / r)


def background_part(log_place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$\zeta(0, \lambda)$ and its bound $4\lambda^2/\pi$, at logarithms of (unused, lambda)."""
    lam = np.exp(np.atleast_2d(log_place.T).T)[1]
    square = 2 / np.pi * np.arcsin(2 * lam**2 / (1 + 2 * lam**2))
    return square, 4 / np.pi * lam**2


PARTS = {
    "informative token": (informative_part, np.log([[0.2, 8.0], [0.01, 5.0]])),
    "another token": (background_part, np.log([[0.5, 1.0], [1e-3, 5.0]])),
}
"""The two parts of the excess, and the box in logarithms in which each is searched."""


@single_location.claim(
    kind="identity",
    origin="ours",
    reference="Bayes' rule for the place",
    statement=r"$E[Y \mid X]$ is softmax attention, sequence by sequence:"
    r" $\sum_l \mathrm{softmax}(\ell)_l \langle x_l, v^*\rangle$ with"
    r" $\ell_l = \log p_l + \frac{m}{\gamma^2}\langle x_l, k^*\rangle -"
    r" \frac12(\gamma^{-2} - 1)|x_l|^2$. At $\gamma = 1$ it needs no norm term, only the inverse"
    r" temperature $\sqrt{d/2}$.",
    words="Attention with the right temperature, and a term for the tokens' norms, is the best"
    " possible predictor.",
    quick=paper_task(
        dim=(400, 20, 20, 20, 20),
        gamma=(ROOT_HALF, 1.0, ROOT_HALF, 1.3, ROOT_HALF),
        ratio=(1.0, 1.0, 1.0, 1.0, 0.7),
        samples=500,
    ),
    paper=dict(
        dim=(400, 1600, 20, 20, 20, 20, 8),
        gamma=(ROOT_HALF, 1.0, 1.0, ROOT_HALF, 1.3, ROOT_HALF, 1.0),
        ratio=(1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.5),
        samples=2000,
    ),
    cells=together("dim", "gamma", "ratio"),
    budget="samples",
    rule=Agreement(rounding=1e-9),
    control=Control(
        "{size:.2g} of the way to a softmax without the norm term",
        lambda e, size: {"measured": e.measured + size * (e.without_norms - e.measured)},
        size=1e-6,
    ),
)
def softmax_is_bayes(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    tokens, _ = sequences(task, draws.stream("sequences"), cell.samples)
    scores = task.m / task.gamma**2 * tokens @ task.k_star + np.log(task.location_law)
    without_norms = (special.softmax(scores, axis=-1) * (tokens @ task.v_star)).sum(-1)
    # At gamma = 1 the statement says that no norm term is needed.
    measured = without_norms if cell.gamma == 1 else np.asarray(task.bayes_predict(tokens))
    predicted = posterior_mean(task, tokens)
    return {
        **on("sequence", predicted=predicted, measured=measured, without_norms=without_norms),
        "error": 0.0,
    }


@softmax_is_bayes.figure
def difference_by_sequence(evidence: xr.Dataset) -> Figure:
    differences = {
        "without": evidence["without_norms"] - evidence["predicted"],
        "with_norms": evidence["measured"] - evidence["predicted"],
    }
    title, note = "Softmax attention is the Bayes predictor", "one point a sequence"
    x, y = "E[Y | X] from the densities", "softmax less E[Y | X]"
    figure = Figure(evidence.assign(differences), title, note, x=x, y=y)
    names = {"without": "no norm term", "with_norms": "with the norm term"}
    figure.points("predicted", names, size=16)
    return figure.facet("d={dim}, γ={gamma:.2g}, ratio {ratio:g}", height=150)


def posterior_mean(
    task: SingleLocation, tokens: Float[np.ndarray, "n length dim"]
) -> Float[np.ndarray, " n"]:
    """E[Y | X] from the definition: the density of the whole sequence for each place.

    Each density is multiplied by the place's probability and leaves out the common factor.
    """
    square = ((tokens - task.m * task.k_star) ** 2).sum(-1)
    informative = -square / (2 * task.gamma**2) - task.dim * np.log(task.gamma)
    other = -(tokens**2).sum(-1) / 2
    here = np.eye(task.length, dtype=bool)
    joint = np.where(here, informative[:, None], other[:, None]).sum(-1) + np.log(task.location_law)
    return (special.softmax(joint, axis=-1) * (tokens @ task.v_star)).sum(-1)


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="large deviations of the softmax head and the Bayes predictor",
    statement=r"The excess risk falls exponentially in $d$, both of softmax attention with"
    r" $k = k^*$, $v = v^*$ and inverse temperature $m$, with the exponent"
    r" $\frac{1}{4(1+\gamma^2)}$, and of the Bayes predictor, with the exponent"
    r" $\frac{1}{4(1+\gamma^2)} + \ln\frac{1+\gamma^2}{2\gamma}$, twice the Bhattacharyya distance"
    r" of an informative and another token: to 0.2 %, beside the power of $d$ in their sharp"
    r" asymptotics.",
    words="The excess risk of softmax attention and that of the best possible predictor fall"
    " exponentially in the dimension; that of erf attention falls like a power.",
    hypotheses=(
        SAMPLES,
        Hypothesis(
            "80 <= dim <= 1600, gamma <= 1, length <= 20: a third token hardly matters, and float64"
            " holds the risk",
            lambda s: 80 <= s.dim <= 1600 and s.gamma <= 1 and s.length <= 20,
        ),
    ),
    quick=paper_task(dim=(80, 120, 200, 320, 640), samples=60_000),
    paper=dict(dim=(80, 120, 200, 320, 640, 1600), samples=1_000_000),
    cells=together("dim"),
    budget="samples",
    rule=Rate(margin=0.002),
    control=Control(
        "an exponent {size:.2%} larger",
        lambda e, size: {"predicted": e.predicted * e.x**-size},
        size=0.004,
    ),
    needs=("softmax-is-bayes",),
)
def gap_exponents(cell: Setting, draws: Draws) -> Values:
    task, key = task_of(cell), draws("samples")
    gaps = [gap(task, key, cell.samples) for gap in (softmax_gap, bayes_gap)]
    formulas = [f(task.constants, task.dim) for f in (log_softmax_asymptote, log_bayes_asymptote)]
    exponents = np.array([softmax_exponent(task.gamma), bayes_exponent(task.gamma)])
    mean = np.exp([gap.log for gap in gaps])
    return {
        **on("predictor", x=np.exp(task.dim * exponents), predicted=np.exp(formulas)),
        **on("predictor", measured=Estimate(mean, mean * [gap.error for gap in gaps])),
        "erf": float(task.oracle_risk(task.best_lam())) - task.noise**2,
        "predictor": ["softmax", "Bayes"],
    }


@gap_exponents.figure
def gaps_against_dimension(evidence: xr.Dataset) -> Panels:
    formats, color = {"y": ".0e"}, "predictor"
    gaps = against_formula(
        evidence,
        "dim",
        color=color,
        x="dimension d",
        y="excess risk",
        log="y",
        zero="-x",
        format=formats,
    ).lines("dim", "erf", theory=True)
    ratio, spread = (evidence[name] / evidence["predicted"] for name in ("measured", "error"))
    ratios = evidence.assign(ratio=ratio, spread=spread)
    below = Figure(ratios, x="dimension d", y="sampled / formula", zero="-x-y", height=90)
    below.lines("dim", "ratio", points=True, error="spread", color=color).rule(1)
    note = "lines: formulas; points: tilted sampling; dashed: erf attention"
    title = "Exponentially small gaps"
    return row(gaps, below, title=title, note=note, columns=1, shared="color")


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="Theorem 1 at the oracle's best sharpness",
    statement=r"With $k = k^*$, $v = v^*$ and the best $\lambda$, erf attention has the excess"
    r" risk $\gamma^2[1 - 2\,\mathrm{erf}(\lambda m/D) + \zeta(\lambda m, \lambda\gamma)] +"
    r" (L-1)\,\zeta(0, \lambda)$, which at $d = 400$ with ten tokens is 0.067 and not 0.",
    words="The excess risk of erf attention at the oracle, in closed form: at its best"
    " sharpness it vanishes as the dimension grows, and is still 0.067 at the paper's 400.",
    hypotheses=(SAMPLES,),
    quick=paper_task(dim=(10, 80, 400, 6400, 100_000), samples=100_000),
    paper=dict(dim=(10, 20, 80, 400, 1600, 6400, 100_000, 1_000_000), samples=2_000_000),
    cells=together("dim"),
    budget="samples",
    rule=Agreement(),
    control=Control(
        "a number of uninformative tokens that falls short of L - 1 by {size:.2g}",
        lambda e, size: {"predicted": e.predicted - size * e.token_noise},
    ),
    needs=("closed-form-risk",),
)
def erf_gap(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    lam, square = task.best_lam(), task.noise**2
    predicted = float(task.oracle_risk(lam))
    sampled = sampled_risk(task, ORACLE, lam, draws("samples"), cell.samples)
    mean, error = capped(sampled, predicted, cell.samples)
    return {
        "predicted": predicted - square,
        "measured": Estimate(mean - square, error),
        "token_noise": zeta(0.0, lam),
    }


@erf_gap.figure
def gap_of_erf_attention(evidence: xr.Dataset) -> Figure:
    title = "How far erf attention is from perfect"
    note = "line: closed form; points: simulation, with errors smaller than a point"
    y = "excess risk at the best λ"
    return against_formula(evidence, "dim", title, note, x="dimension d", y=y, log="xy")
