"""Claims about how good the head can be: baselines and asymptotic optimality."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims.compat import (
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
from attlas.gaussian import BLOCK, Estimate, averaged, stream, zeta
from attlas.single_location.baselines import Baselines, draw_baselines, excess_bound
from attlas.single_location.claims.bayes import bayes_gaps
from attlas.single_location.claims.shared import (
    FIGURES,
    PAPER,
    PRIOR,
    ROOT_HALF,
    SAMPLES,
    TASK,
    column,
    constants_of,
    over_cells,
    sampled_over_cells,
    sequences,
    task_of,
)
from attlas.single_location.population import ORACLE, total_risk
from attlas.single_location.task import Constants, SingleLocation


@claim(
    "single-location/best-linear",
    source=PAPER,
    reference="Proposition 3",
    statement=r"The best linear predictor has risk $\varepsilon^2 + \gamma^2 - \sum_l \frac{p_l^2\gamma^4}{p_l\gamma^2 + 1 - p_l}$"
    r" where $p$ is the law of the place, and the paper's $\varepsilon^2 + \gamma^2 - \frac{\gamma^4}{\gamma^2 + L - 1}$ where it is uniform;"
    r" least squares on fresh samples comes within 2 % of it.",
    words="A linear model cannot know where to look, and gains ever less over predicting nothing as the sequence grows.",
    hypotheses=(*TASK, PRIOR, SAMPLES),
    quick=Setting(
        dim=(4,),
        length=(3,),
        gamma=(ROOT_HALF, 1.3, 1.0),
        ratio=(1.0, 1.0, 0.5),
        noise=0.1,
        samples=400_000,
    ),
    paper=Setting(
        dim=(4, 6, 8, 6),
        length=(2, 3, 5, 4),
        gamma=(ROOT_HALF, 1.0, 1.3, 1.0),
        ratio=(1.0, 1.0, 1.0, 0.5),
        noise=0.1,
        samples=1_000_000,
    ),
    rule=Approximation(margin=0.02),
    control=Control(
        "one uninformative token more, 1 in place of 1 - p_l in the denominator",
        lambda e: e.assign(predicted=e["one_token_more"]),
    ),
    figure=drawn_by(f"{FIGURES}.baselines:linear_risks"),
    cells=together("dim", "length", "gamma", "ratio"),
    budget="samples",
    origin="our reading",
)
def best_linear(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    train, test = (
        key_for(seed, "single-location/best-linear", purpose) for purpose in ("train", "test")
    )
    gram, product, *_ = least_squares(
        task, train, cell.samples, np.zeros(task.length * task.dim + 1)
    )
    mean, error = least_squares(task, test, cell.samples, np.linalg.solve(gram, product))[2:]
    p, gamma2 = task.location_law, task.gamma**2
    variables = {
        "predicted": task.linear_risk(),
        "measured": mean,
        "error": error,
        "constant": task.constant_risk(),
        "one_token_more": task.constant_risk() - (p**2 * gamma2**2 / (p * gamma2 + 1)).sum(),
    }
    return xr.Dataset({name: ("cell", [float(value)]) for name, value in variables.items()})


class Regression(NamedTuple):
    """Means over samples of products of the coordinates with each other and with the target, and the mean loss."""

    gram: np.ndarray
    product: np.ndarray
    mean: np.ndarray
    error: np.ndarray


def least_squares(
    task: SingleLocation, key: Array, samples: int, weights: np.ndarray
) -> Regression:
    """On `samples`, rounded up to whole blocks: the means that least squares on all L d coordinates and an intercept needs,
    and the loss with these `weights`."""
    blocks, sums = -(-samples // BLOCK), []
    for block in range(blocks):
        tokens, y = sequences(task, stream(key, block), BLOCK)
        x = np.pad(tokens.reshape(BLOCK, -1), ((0, 0), (0, 1)), constant_values=1)
        loss = (x @ weights - y) ** 2
        sums.append((x.T @ x, x.T @ y, loss.mean(), (loss**2).mean()))
    gram, product, loss, square = (sum(parts) / blocks for parts in zip(*sums, strict=True))
    return Regression(gram, product, loss, np.sqrt((square - loss**2) / (blocks * BLOCK)))


@claim(
    "single-location/linear-oracle-bayes",
    source="attlas",
    reference="three predictors in order",
    statement=r"At the $\lambda$ that suits it, the oracle head has a risk below that of the best linear predictor and"
    r" above that of the Bayes predictor $E[Y \mid X]$, which knows $k^*$ and $v^*$ but not the place.",
    words="Attention beats every linear model, and at finite dimension it is not yet optimal.",
    hypotheses=(
        *TASK,
        SAMPLES,
        Hypothesis("sharpness > 0", lambda s: s.sharpness > 0, defining=True),
        Hypothesis(
            "gamma <= 1 and dim >= 10: elsewhere a linear predictor can be better",
            lambda s: s.gamma <= 1 and s.dim >= 10,
        ),
        Hypothesis("lam is the oracle's best (sharpness = 1)", lambda s: s.sharpness == 1),
    ),
    quick=Setting(
        dim=(10, 20, 40, 80), length=10, gamma=ROOT_HALF, noise=0.0, sharpness=1.0, samples=16_000
    ),
    paper=Setting(
        dim=(10, 20, 40, 80, 400),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        sharpness=1.0,
        samples=300_000,
    ),
    rule=Order(),
    control=Control(
        "a head twenty times too sharp, whose gate passes every token",
        lambda s: s.replace(sharpness=20.0),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.baselines:ordered_risks"),
    cells=together("dim"),
    shape=("length", "samples"),
    budget="samples",
    needs=("single-location/closed-form-risk", "single-location/best-linear"),
    origin="ours",
)
def linear_oracle_bayes(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    lam = np.asarray([cell.sharpness * task_of(cell).best_lam() for cell in cells])
    key = key_for(seed, "single-location/linear-oracle-bayes", "samples")
    found = [
        contest(task_of(cell), sharp, key, cell.samples)
        for cell, sharp in zip(cells, lam, strict=True)
    ]
    mean, error = (np.stack(x, -1) for x in zip(*found, strict=True))
    risks = Baselines(*mean[:4])
    rare = bayes_gaps(key_for(seed, "single-location/linear-oracle-bayes", "rare"), cells)
    gap = np.exp(rare.log)
    return xr.Dataset(
        {
            "lower": (("pair", "cell"), np.stack([risks.bayes, risks.oracle])),
            "upper": (("pair", "cell"), np.stack([risks.oracle, risks.linear])),
            "error": (("pair", "cell"), error[4:]),
            "risk": (
                ("predictor", "cell"),
                np.stack([column(cells, "noise") ** 2 + gap, *risks[1:]]),
            ),
            "risk_error": (("predictor", "cell"), np.stack([gap * rare.error, *error[1:4]])),
            "oracle_formula": ("cell", over_cells(total_risk, constants_of(cells), ORACLE, lam)),
            "linear_formula": ("cell", [task_of(cell).linear_risk() for cell in cells]),
        },
        coords={
            "pair": ["Bayes below oracle", "oracle below linear"],
            "predictor": list(Baselines._fields),
        },
    )


def contest(task: SingleLocation, lam: float, key: Array, samples: int) -> Estimate:
    """Mean losses of the four baselines and their paired differences, [6]."""
    return averaged(draw_contest, key, samples, task.constants, task.dim, task.location_law, lam)


def draw_contest(
    generator: np.random.Generator, block: int, *args: Any
) -> Float[np.ndarray, "6 n"]:
    losses = draw_baselines(generator, block, *args)
    bayes, oracle, linear, _ = losses
    return np.concatenate([losses, [oracle - bayes, linear - oracle]])


LADDER = (
    Hypothesis("dim >= 4", lambda s: s.dim >= 4, defining=True),
    Hypothesis("gamma > 0", lambda s: s.gamma > 0, defining=True),
    Hypothesis("growth >= 0", lambda s: s.growth >= 0, defining=True),
    SAMPLES,
)


@claim(
    "single-location/oracle-optimality",
    source=PAPER,
    reference="Corollary 2",
    statement=r"Along $d \to \infty$ with $L = o(d)$, $\lambda\sqrt d \to \infty$ and $\lambda\sqrt L \to 0$ the oracle's"
    r" excess risk vanishes. On the ladder $L = d^{1/4}$, $\lambda = (dL)^{-1/4}$ it falls with the exponent of the closed"
    r" form to 0.01, which tends to that of $\frac4\pi\sqrt{L/d}$.",
    words="The wider the tokens, the closer attention comes to the best possible prediction.",
    hypotheses=(
        *LADDER,
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
    paper=Setting(
        dim=(100, 400, 1600, 6400, 25_600, 102_400, 409_600, 1_638_400),
        growth=0.25,
        power=0.25,
        gamma=ROOT_HALF,
        samples=1_000_000,
    ),
    rule=Rate(margin=0.01),
    control=Control(
        "the noise of L uninformative tokens, where there are L - 1",
        lambda e: e.assign(predicted=e["predicted"] + e["token_noise"]),
    ),
    figure=drawn_by(f"{FIGURES}.baselines:ladder_rate"),
    cells=together("dim"),
    shape=("samples",),
    budget="samples",
    needs=("single-location/closed-form-risk",),
)
def oracle_optimality(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    constants, lam = on_ladder(cells[0], column(cells, "dim"))
    mean, error = sampled_oracle(
        cells[0], seed, "single-location/oracle-optimality", constants, lam
    )
    dims, tokens = column(cells, "dim"), constants.length
    return xr.Dataset(
        {
            "x": ("cell", dims),
            "measured": ("cell", mean),
            "error": ("cell", error),
            "predicted": ("cell", over_cells(total_risk, constants, ORACLE, lam)),
            "tokens": ("cell", tokens),
            "lam": ("cell", lam),
            "token_noise": ("cell", zeta(np.zeros_like(lam), lam)),
            "limit": ("cell", 4 / np.pi * (tokens / dims) ** 0.5),
        }
    )


def on_ladder(
    cell: Setting, dims: Float[np.ndarray, " cell"]
) -> tuple[Constants, Float[np.ndarray, " cell"]]:
    """Tasks with L = d^growth tokens (two at least) and lam = (d L)^(-power)."""
    tokens = np.maximum(2, np.round(dims**cell.growth)).astype(int)
    constants = Constants(
        np.sqrt(dims / 2), np.full(len(dims), cell.gamma), tokens, np.zeros(len(dims))
    )
    return constants, (dims * tokens) ** -cell.power


def sampled_oracle(
    cell: Setting, seed: int, id: str, constants: Constants, lam: np.ndarray
) -> Estimate:
    return sampled_over_cells(key_for(seed, id, "samples"), cell.samples, constants, ORACLE, lam)


@claim(
    "single-location/oracle-improves",
    source=PAPER,
    reference="Corollary 2",
    statement=r"Along a ladder with $L = d^{1/4}$ and $\lambda = (dL)^{-1/4}$, so that $L = o(d)$, $\lambda\sqrt d \to \infty$ and"
    r" $\lambda\sqrt L \to 0$, every fourfold increase of $d$ lowers the oracle's excess risk.",
    words="On the way that the corollary describes the excess risk does fall, rung by rung.",
    hypotheses=LADDER,
    quick=Setting(
        dim=(100, 400, 1600, 6400), growth=0.25, power=0.25, gamma=ROOT_HALF, samples=16_000
    ),
    paper=Setting(
        dim=(100, 400, 1600, 6400, 25_600),
        growth=0.25,
        power=0.25,
        gamma=ROOT_HALF,
        samples=300_000,
    ),
    rule=Order(),
    control=Control(
        "a ladder that breaks a hypothesis, L = d^(1/2) and lambda = (dL)^(-1/10), where lambda sqrt(L) grows",
        lambda s: s.replace(growth=0.5, power=0.1),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.baselines:ladder_order"),
    cells=together("dim"),
    shape=("samples",),
    budget="samples",
    needs=("single-location/oracle-optimality",),
)
def oracle_improves(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    id, dims = "single-location/oracle-improves", column(cells, "dim")
    rungs = np.unique([dims, 4 * dims])  # a rung above one cell is the next one's own
    mean, error = sampled_oracle(cells[0], seed, id, *on_ladder(cells[0], rungs))
    here, above = (np.searchsorted(rungs, d) for d in (dims, 4 * dims))
    return xr.Dataset(
        {
            "lower": ("cell", mean[above]),
            "upper": ("cell", mean[here]),
            "error": ("cell", np.hypot(error[here], error[above])),
        }
    )


@claim(
    "single-location/oracle-excess-bound",
    source="attlas",
    reference="explicit form of Corollary 2",
    statement=r"The oracle's excess risk is at most $\gamma^2\big[\frac1E e^{-2\lambda^2m^2/E^2} + 4\Phi(-\frac m\gamma)\big]"
    r" + \frac4\pi(L-1)\lambda^2$ with $m^2 = \frac d2$, $E^2 = 1 + 4\lambda^2\gamma^2$, for all $d, L, \gamma, \lambda$: each of"
    r" its two parts bounds its own.",
    words="How far the oracle is from perfect, in one line that holds at every size.",
    quick=Setting(points=512, generations=40),
    paper=Setting(points=4096, generations=200),
    hypotheses=(Hypothesis("points >= 64", lambda s: s.points >= 64, defining=True),),
    rule=Bound(),
    control=Control("a bound that is 5 % smaller", lambda e: e.assign(bound=0.95 * e["bound"])),
    figure=drawn_by(f"{FIGURES}.baselines:bound_scatter"),
    budget="points",
    needs=("single-location/closed-form-risk",),
    origin="ours",
)
def bound_on_excess(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "single-location/oracle-excess-bound", "points")
    generator = stream(key, 1)
    parts, places = [], []
    for i, (part, box) in enumerate(PARTS.items()):
        uniform = stream(key, i + 2).random((2, cell.points))
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
        searched = np.concatenate([points, worst.population.T, worst.x[:, None]], axis=1)
        parts.append(part(searched))
        places.append(np.exp(searched))
    found = np.repeat(["at random", "by search"], [cell.points, places[0].shape[1] - cell.points])
    excess, bound = (np.stack(column)[None] for column in zip(*parts, strict=True))
    axes = ("cell", "part", "point")
    return xr.Dataset(
        {
            "bound": (axes, bound),
            "measured": (axes, excess),
            "error": 0.0,
            "place": (("cell", "part", "axis", "point"), np.stack(places)[None]),
        },
        coords={"part": ["informative token", "another token"], "found": ("point", found)},
    )


def informative_part(log_place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$E[(1 - \mathrm{erf}(x))^2]$ with $x = u + \frac ur G$, $u = \lambda m$, $r = \frac m\gamma$, by the trapezoidal rule, and
    its bound. All of $d, \gamma, \lambda$ that matters is in (r, u)."""
    r, u = np.exp(np.atleast_2d(log_place.T).T)
    g = np.linspace(-12, 12, 2001)
    x = u[..., None] * (1 + g / r[..., None])
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    excess = scipy.integrate.trapezoid(special.erfc(x) ** 2 * density, g)
    return excess, excess_bound(Constants(r, 1.0, 1, 0.0), u / r)


def background_part(log_place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$\zeta(0, \lambda)$, and its bound $4\lambda^2/\pi$."""
    lam = np.exp(np.atleast_2d(log_place.T).T)[1]
    square = 2 / np.pi * np.arcsin(2 * lam**2 / (1 + 2 * lam**2))
    return square, 4 / np.pi * lam**2


# In logarithms: (m / gamma, lam m) for the informative token, (unused, lam) for another.
PARTS = {
    informative_part: np.log([[0.2, 8.0], [0.01, 5.0]]),
    background_part: np.log([[0.5, 1.0], [1e-3, 5.0]]),
}
