"""Claims about the population risk: its closed form, symmetries, gradient and sampler."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims import Control, Hypothesis, Setting, claim, drawn_by, key_for, together
from attlas.gaussian import BLOCK, stream, zeta_derivatives
from attlas.single_location.claims.shared import (
    FIGURES,
    HEAD,
    PAPER,
    ROOT_HALF,
    SAMPLES,
    TASK,
    column,
    constants_of,
    over_cells,
    overlaps_of,
    random_heads,
    sampled_over_cells,
    sequences,
    task_of,
)
from attlas.single_location.population import (
    Overlaps,
    draw_projected,
    partials_of_risk,
    terms_of_risk,
    total_risk,
)
from attlas.single_location.task import Constants
from attlas.statistics import Agreement, SameLaw

TASKS: dict[str, Any] = {
    "dim": (5, 4, 40, 200),
    "length": (2, 3, 6, 12),
    "gamma": (ROOT_HALF, 2.0, 1.3, 0.4),
    "noise": (0.0, 0.0, 0.1, 0.5),
    "lam": (1.5, 0.4, 0.5, 0.1),
}


@claim(
    "single-location/closed-form-risk",
    source=PAPER,
    reference="Theorem 1",
    statement=r"The risk $E\big(Y - \sum_l \mathrm{erf}(\lambda\langle X_l, k\rangle)\langle X_l, v\rangle\big)^2$ is a"
    r" closed-form function of $\kappa = \langle k, k^*\rangle$, $\nu = \langle v, v^*\rangle$,"
    r" $\theta = \langle v, k^*\rangle$, $\eta = \langle k, v^*\rangle$ and $\rho = \langle k, v\rangle$.",
    words="The expected error of the attention layer depends on five overlaps only, through an explicit formula.",
    hypotheses=(*TASK, HEAD, SAMPLES),
    quick=Setting(**TASKS, points=8, samples=100_000),
    paper=Setting(**TASKS, points=24, samples=1_000_000),
    rule=Agreement(),
    control=Control(
        r"the smallest of its terms is dropped, $\lambda^2\gamma^4\rho^2\zeta_{tt}$",
        lambda e: e.assign(predicted=e["predicted"] - e["smallest"]),
    ),
    figure=drawn_by(f"{FIGURES}.risk:risk_agreement"),
    cells=together("dim", "length", "gamma", "noise", "lam"),
    shape=("points", "samples"),
    budget="samples",
    needs=("single-location/zeta",),
)
def closed_form_risk(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    overlaps = overlaps_of(
        random_heads(key_for(seed, "single-location/closed-form-risk", "heads"), cells[0].points)
    )
    constants, lam = constants_of(cells), column(cells, "lam")
    key = key_for(seed, "single-location/closed-form-risk", "samples")
    sampled = sampled_over_cells(key, cells[0].samples, constants, overlaps, lam)
    terms = over_cells(terms_of_risk, constants, overlaps, lam)
    axes = ("cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, np.sum(np.stack(terms), axis=0)),
            "measured": (axes, sampled.mean),
            "error": (axes, sampled.error),
            "smallest": (axes, over_cells(smallest_term, constants, overlaps, lam)),
            **{name: ("point", value) for name, value in overlaps._asdict().items()},
        }
    )


@jax.jit
def smallest_term(c: Constants, overlaps: Overlaps, lam: Array) -> Array:
    """The term of the risk that is hardest to see, (lam gamma^2 rho)^2 zeta_tt: what a step of Stein's lemma leaves."""
    curvature = zeta_derivatives(lam * c.m * overlaps.kappa, lam * c.gamma)[1]
    return (lam * c.gamma**2 * overlaps.rho) ** 2 * curvature


def flipped(overlaps: Overlaps, *names: str) -> Overlaps:
    return overlaps._replace(**{name: -getattr(overlaps, name) for name in names})


@claim(
    "single-location/risk-symmetries",
    source="attlas",
    reference="symmetries of Theorem 1",
    statement=r"$R(\kappa,\nu,\theta,\eta,\rho) = R(-\kappa,-\nu,-\theta,-\eta,\rho) = R(\kappa,\nu,-\theta,-\eta,-\rho)$:"
    r" the head $(-k,-v)$ is as good as $(k,v)$, and so is the mirror image in the target's direction with $v$ reversed.",
    words="The optimum is a pair, and the risk is even across the manifold, which is why descent cannot leave it.",
    hypotheses=(*TASK, HEAD),
    quick=Setting(**TASKS, points=64),
    paper=Setting(**TASKS, points=64),
    rule=Agreement(rounding=1e-12),
    control=Control(
        "flipping the sign of k alone",
        lambda e: e.assign(measured=e["one_sign"] + 0 * e["measured"]),
    ),
    figure=drawn_by(f"{FIGURES}.risk:symmetry_agreement"),
    cells=together("dim", "length", "gamma", "noise", "lam"),
    shape=("points",),
    budget="points",
    needs=("single-location/closed-form-risk",),
    origin="ours",
)
def risk_symmetries(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    x = overlaps_of(
        random_heads(key_for(seed, "single-location/risk-symmetries", "heads"), cells[0].points)
    )
    constants, lam = constants_of(cells), column(cells, "lam")
    both, mirror = flipped(x, "kappa", "nu", "theta", "eta"), flipped(x, "theta", "eta", "rho")
    one_sign = over_cells(total_risk, constants, flipped(x, "kappa", "eta", "rho"), lam)
    return xr.Dataset(
        {
            "predicted": (("cell", "point"), over_cells(total_risk, constants, x, lam)),
            "measured": (
                ("symmetry", "cell", "point"),
                np.stack([over_cells(total_risk, constants, y, lam) for y in (both, mirror)]),
            ),
            "error": 0.0,
            "one_sign": (("cell", "point"), one_sign),
        },
        coords={"symmetry": ["(-k, -v)", "mirror"]},
    )


@claim(
    "single-location/risk-gradient",
    source="attlas",
    reference="gradient of Theorem 1",
    statement=r"The partial derivatives $R_\kappa, R_\nu, R_\theta, R_\eta, R_\rho$ in closed form equal those of the"
    r" closed-form risk, differentiated jointly in all five overlaps.",
    words="The gradient that descent follows is known exactly.",
    hypotheses=(*TASK, HEAD),
    quick=Setting(**TASKS, points=64),
    paper=Setting(**TASKS, points=64),
    rule=Agreement(rounding=1e-12),
    control=Control(
        r"every partial derivative 0.1 % too large",
        lambda e: e.assign(predicted=1.001 * e["predicted"]),
    ),
    figure=drawn_by(f"{FIGURES}.risk:gradient_agreement"),
    cells=together("dim", "length", "gamma", "noise", "lam"),
    shape=("points",),
    budget="points",
    needs=("single-location/closed-form-risk", "single-location/zeta-derivatives"),
    origin="ours",
)
def gradient_of_risk(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    x = overlaps_of(
        random_heads(key_for(seed, "single-location/risk-gradient", "heads"), cells[0].points)
    )
    constants, lam = constants_of(cells), column(cells, "lam")
    axes = ("overlap", "cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, np.stack(over_cells(partials_of_risk, constants, x, lam))),
            "measured": (axes, np.stack(over_cells(automatic_partials, constants, x, lam))),
            "error": 0.0,
        },
        coords={"overlap": list(Overlaps._fields)},
    )


@jax.jit
def automatic_partials(constants: Constants, overlaps: Overlaps, lam: Array) -> Overlaps:
    return jax.grad(lambda x: total_risk(constants, x, lam).sum())(overlaps)


@claim(
    "single-location/projected-sampler",
    source="attlas",
    reference="law of the loss",
    statement=r"The pair (prediction, target) of $L$ tokens in $\mathbf{R}^d$ has the law of the one drawn from the"
    r" projections of each token on $k$, $v$ and $v^*$ alone.",
    words="Losses can be sampled at a cost that does not know the dimension.",
    hypotheses=(*TASK, HEAD, Hypothesis("draws >= 1000", lambda s: s.draws >= 1000, defining=True)),
    quick=Setting(
        dim=(4, 30), length=6, gamma=ROOT_HALF, noise=0.1, lam=0.5, heads=3, draws=24_000
    ),
    paper=Setting(
        dim=(4, 30, 400), length=10, gamma=ROOT_HALF, noise=0.1, lam=0.5, heads=3, draws=100_000
    ),
    rule=SameLaw(),
    control=Control(
        "gamma is 20 % too large in the projections",
        lambda e: e.assign(sample_a=e["sample_c"]).drop_vars("sample_c"),
    ),
    figure=drawn_by(f"{FIGURES}.risk:quantile_agreement"),
    cells=together("dim"),
    budget="draws",
    origin="ours",
)
def projected_sampler(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "single-location/projected-sampler"
    task = task_of(cell)
    heads = random_heads(key_for(seed, id, "heads"), cell.heads)
    overlaps, lam = overlaps_of(heads), np.full(cell.heads, cell.lam)
    key = key_for(seed, id, "projections")
    wrong = task.constants._replace(gamma=1.2 * task.gamma)
    a, b, c = [], [], []
    # Blocks of the size that every other simulation draws, so that memory is bounded in the dimension too.
    for block in range(-(-cell.draws // BLOCK)):
        right_one, wrong_one = (
            draw_projected(stream(key, block), BLOCK, constants, overlaps, lam)
            for constants in (task.constants, wrong)
        )
        a.append(statistics_of(*right_one))
        c.append(statistics_of(*wrong_one))
        tokens, target = sequences(task, stream(key_for(seed, id, "tokens"), block), BLOCK)
        b.append(
            statistics_of(
                np.stack(
                    [token_predictions(tokens, k, v, cell.lam) for k, v in heads.swapaxes(0, 1)]
                ),
                target,
            )
        )
    axes = ("cell", "statistic", "head", "draw")
    joined = (np.concatenate(parts, -1)[None, ..., : cell.draws] for parts in (a, b, c))
    return xr.Dataset(
        {
            name: (axes, sample)
            for name, sample in zip(("sample_a", "sample_b", "sample_c"), joined, strict=True)
        },
        coords={"statistic": ["prediction", "target", "product", "squared error"]},
    )


def token_predictions(
    tokens: np.ndarray, k: np.ndarray, v: np.ndarray, lam: float
) -> Float[np.ndarray, " draw"]:
    """The head's answers from the definition; the vectors' further coordinates are 0."""
    here = tokens[..., : len(k)]
    return (special.erf(lam * (here @ k)) * (here @ v)).sum(-1)


def statistics_of(prediction: Any, target: Any) -> Float[np.ndarray, "statistic head draw"]:
    prediction, target = np.broadcast_arrays(prediction, target)
    return np.stack([prediction, target, prediction * target, (prediction - target) ** 2])
