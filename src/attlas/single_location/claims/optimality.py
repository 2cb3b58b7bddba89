"""Claims about how good the head can be: baselines and asymptotic optimality."""

from collections.abc import Callable

import numpy as np
import scipy
import xarray as xr
from scipy import special

from attlas.claims import (
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
from attlas.figure import Figure
from attlas.gaussian import BLOCK, Estimate, zeta
from attlas.single_location.baselines import excess_bound
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import ROOT_HALF, SAMPLES, sequences, task_of
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
    words="A linear model cannot know where to look, and gains ever less over predicting 0 as the"
    " sequence grows.",
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
        "one uninformative token more, 1 in place of 1 - p_l in the denominator",
        lambda e: {"predicted": e.one_token_more},
    ),
)
def best_linear(cell: Setting, draws: Draws) -> Values:
    task, p, gamma2 = task_of(cell), task_of(cell).location_law, cell.gamma**2
    unfitted = np.zeros(task.length * task.dim + 1)
    gram, product, _ = linear_regression(task, draws, "train", cell.samples, unfitted)
    weights = np.linalg.solve(gram, product)
    return {
        "predicted": task.linear_risk(),
        "measured": linear_regression(task, draws, "test", cell.samples, weights)[2],
        "constant": task.constant_risk(),
        "one_token_more": task.constant_risk() - (p**2 * gamma2**2 / (p * gamma2 + 1)).sum(),
    }


@best_linear.figure
def risks_by_task(evidence: xr.Dataset) -> Figure:
    task = "L={length}, γ={gamma:.2g}, ratio {ratio:g}"
    theory = {"predicted": "Proposition 3", "constant": "predicting 0"}
    return (
        Figure(evidence, "The best linear predictor", x="", y="risk")
        .ticks(task, theory, theory=False, size=70)
        .points(task, {"measured": "least squares"}, error=True, size=50)
    )


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
        "the noise of L uninformative tokens, where there are L - 1",
        lambda e: {"predicted": e.predicted + e.token_noise},
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
    note = "points: simulation, whose errors are smaller than a point"
    y = "excess risk of the oracle"
    return (
        Figure(evidence, "The oracle becomes optimal", note, x="d", y=y, log="xy")
        .lines("x", {"predicted": "closed form", "limit": "4/π √(L/d)"})
        .points("x", {"measured": "simulation"})
    )


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="explicit form of Corollary 2",
    statement=r"The oracle's excess risk is at most"
    r" $\gamma^2\big[\frac1E e^{-2\lambda^2m^2/E^2} + 4\Phi(-\frac m\gamma)\big]"
    r" + \frac4\pi(L-1)\lambda^2$ with $m^2 = \frac d2$, $E^2 = 1 + 4\lambda^2\gamma^2$, for all"
    r" $d, L, \gamma, \lambda$: each of its two parts bounds its own.",
    words="How far the oracle is from perfect, in one line that holds at every size.",
    hypotheses=(Hypothesis("points >= 64", lambda s: s.points >= 64, defining=True),),
    quick=Setting(points=512, generations=40),
    paper=dict(points=4096, generations=200),
    budget="points",
    rule=Bound(),
    control=Control("a bound that is 5 % smaller", lambda e: {"bound": 0.95 * e.bound}),
    needs=("closed-form-risk",),
)
def oracle_excess_bound(cell: Setting, draws: Draws) -> Values:
    generator, found = draws.stream("points", 1), []
    for i, (part, box) in enumerate(PARTS.items()):
        uniform = draws.stream("points", i + 2).random((2, cell.points))
        points = box[:, :1] + (box[:, 1:] - box[:, :1]) * uniform
        searched = search_maximum(part, box, points[:, :64], cell.generations, generator)
        found.append(part(np.concatenate([points, searched], axis=1)))
    excess, bound = zip(*found, strict=True)
    return {
        **on("part point", bound=np.stack(bound), measured=np.stack(excess)),
        **on("point", found=["at random"] * cell.points + ["by search"] * searched.shape[1]),
        "error": 0.0,
        "part": ["informative token", "another token"],
    }


@oracle_excess_bound.figure
def excess_against_bound(evidence: xr.Dataset) -> Figure:
    note = "on the line the bound would be attained"
    return (
        Figure(
            evidence,
            "The bound and what it bounds",
            note,
            x="bound",
            y="excess risk of the oracle",
            log="xy",
            legend={"found": "place chosen"},
        )
        .points("bound", "measured", color="part", shape="found", size=16, opacity=0.6)
        .diagonal("bound", "measured")
    )


Part = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def search_maximum(
    part: Part, box: np.ndarray, start: np.ndarray, generations: int, generator: np.random.Generator
) -> np.ndarray:
    """Points [2, n] that a search for the largest ratio of excess to bound ends with."""
    worst = scipy.optimize.differential_evolution(
        lambda x: -np.divide(*part(x)),
        box,
        init=start.T,
        maxiter=generations,
        tol=0,
        rng=generator,
        polish=False,
        vectorized=True,
        updating="deferred",
    )
    return np.concatenate([worst.population.T, worst.x[:, None]], axis=1)


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


PARTS: dict[Part, np.ndarray] = {
    informative_part: np.log([[0.2, 8.0], [0.01, 5.0]]),
    background_part: np.log([[0.5, 1.0], [1e-3, 5.0]]),
}
"""The two parts of the excess, and the box in logarithms in which each is searched."""
