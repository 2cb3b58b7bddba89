"""Claims about the population risk: its closed form, gradient and sampler."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims import (
    Agreement,
    Control,
    Draws,
    Hypothesis,
    SameLaw,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, agreement, greek
from attlas.gaussian import BLOCK, zeta_derivatives
from attlas.single_location import population
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import (
    ROOT_HALF,
    SAMPLES,
    overlaps_of,
    random_heads,
    sequences,
    task_of,
)
from attlas.single_location.population import (
    Overlaps,
    at_points,
    draw_projected,
    risk_terms,
    sampled_risk,
    total_risk,
)
from attlas.single_location.task import Constants

TASKS: dict[str, Any] = {
    "dim": (5, 4, 40, 200),
    "length": (2, 3, 6, 12),
    "gamma": (ROOT_HALF, 2.0, 1.3, 0.4),
    "noise": (0.0, 0.0, 0.1, 0.5),
    "lam": (1.5, 0.4, 0.5, 0.1),
}
TASK_LABEL = "d={dim}, L={length}, γ={gamma:.2g}, λ={lam:g}"


@single_location.claim(
    reference="Theorem 1",
    statement=r"The risk $E\big(Y - \sum_l \mathrm{erf}(\lambda\langle X_l, k\rangle)"
    r"\langle X_l, v\rangle\big)^2$ is a closed-form function of $\kappa = \langle k, k^*\rangle$,"
    r" $\nu = \langle v, v^*\rangle$, $\theta = \langle v, k^*\rangle$,"
    r" $\eta = \langle k, v^*\rangle$ and $\rho = \langle k, v\rangle$.",
    words="The expected error of the attention layer depends on five overlaps only, through an"
    " explicit formula.",
    hypotheses=(SAMPLES,),
    quick=Setting(**TASKS, points=8, samples=100_000),
    paper=dict(points=24, samples=1_000_000),
    cells=together(*TASKS),
    budget="samples",
    rule=Agreement(),
    control=Control(
        r"the smallest of its terms is dropped, $\lambda^2\gamma^4\rho^2\zeta_{tt}$",
        lambda e: {"predicted": e.predicted - e.smallest},
    ),
    needs=("zeta",),
)
def closed_form_risk(cell: Setting, draws: Draws) -> Values:
    task, lam = task_of(cell), cell.lam
    overlaps = overlaps_of(random_heads(draws("heads"), cell.points))
    return on(
        "point",
        predicted=sum(risk_terms(task, overlaps, lam)),
        measured=sampled_risk(task, overlaps, lam, draws("samples"), cell.samples),
        smallest=at_points(smallest_term, task.constants, overlaps, lam),
    )


@closed_form_risk.figure
def measured_against_predicted(evidence: xr.Dataset) -> Figure:
    return agreement(
        evidence, "Risk: closed form against simulation", what="risk", color=TASK_LABEL
    )


@jax.jit
def smallest_term(c: Constants, overlaps: Overlaps, lam: Array) -> Array:
    """The term that is hardest to see, (lam gamma^2 rho)^2 zeta_tt, from Stein's lemma."""
    curvature = zeta_derivatives(lam * c.m * overlaps.kappa, lam * c.gamma)[1]
    return (lam * c.gamma**2 * overlaps.rho) ** 2 * curvature


@single_location.claim(
    reference="gradient of Theorem 1",
    origin="ours",
    source="attlas",
    statement=r"The partial derivatives $R_\kappa, R_\nu, R_\theta, R_\eta, R_\rho$ in closed form"
    r" equal those of the closed-form risk, differentiated jointly in all five overlaps.",
    words="The gradient that descent follows is known exactly.",
    quick=Setting(**TASKS, points=64),
    cells=together(*TASKS),
    budget="points",
    rule=Agreement(),
    control=Control(
        "every partial derivative 0.1 % too large", lambda e: {"predicted": 1.001 * e.predicted}
    ),
    needs=("closed-form-risk",),
)
def risk_gradient(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    overlaps = overlaps_of(random_heads(draws("heads"), cell.points))
    automatic = at_points(automatic_partials, task.constants, overlaps, cell.lam)
    return {
        **on(
            "overlap point",
            predicted=np.stack(population.risk_gradient(task, overlaps, cell.lam)),
            measured=np.stack(automatic),
        ),
        "error": 0.0,
        "overlap": list(Overlaps._fields),
    }


@risk_gradient.figure
def partial_derivatives(evidence: xr.Dataset) -> Figure:
    return agreement(
        greek(evidence, "overlap"),
        "Gradient: closed form against automatic differentiation",
        what="partial derivative",
        color="overlap",
    )


@jax.jit
def automatic_partials(constants: Constants, overlaps: Overlaps, lam: Array) -> Overlaps:
    return jax.grad(lambda x: total_risk(constants, x, lam).sum())(overlaps)


@single_location.claim(
    reference="law of the loss",
    origin="ours",
    source="attlas",
    statement=r"The pair (prediction, target) of $L$ tokens in $\mathbf{R}^d$ has the law of the"
    r" one drawn from the projections of each token on $k$, $v$ and $v^*$ alone.",
    words="Sampling a loss costs O(L), independent of d.",
    hypotheses=(Hypothesis("draws >= 1000", lambda s: s.draws >= 1000, defining=True),),
    quick=Setting(
        dim=(4, 30), length=6, gamma=ROOT_HALF, noise=0.1, lam=0.5, heads=3, draws=24_000
    ),
    paper=dict(dim=(4, 30, 400), length=10, draws=100_000),
    cells=together("dim"),
    budget="draws",
    rule=SameLaw(),
    control=Control(
        "gamma is 20 % too large in the projections", lambda e: {"sample_a": e.sample_c}
    ),
)
def projected_sampler(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    heads = random_heads(draws("heads"), cell.heads)
    overlaps, lam = overlaps_of(heads), np.full(cell.heads, cell.lam)
    wider = task.constants._replace(gamma=1.2 * task.gamma)
    samples: dict[str, list[np.ndarray]] = {"sample_a": [], "sample_b": [], "sample_c": []}
    # Blocks of the size that every other simulation draws: memory is bounded in the dimension too.
    for block in range(-(-cell.draws // BLOCK)):
        for name, constants in (("sample_a", task.constants), ("sample_c", wider)):
            projected = draw_projected(
                draws.stream("projections", block), BLOCK, constants, overlaps, lam
            )
            samples[name].append(statistics_of(*projected))
        tokens, target = sequences(task, draws.stream("tokens", block), BLOCK)
        predictions = [token_predictions(tokens, k, v, cell.lam) for k, v in heads.swapaxes(0, 1)]
        samples["sample_b"].append(statistics_of(np.stack(predictions), target))
    joined = {name: np.concatenate(parts, -1)[..., : cell.draws] for name, parts in samples.items()}
    return {
        **on("statistic head draw", **joined),
        "statistic": ["prediction", "target", "product", "squared error"],
    }


@projected_sampler.figure
def quantiles(evidence: xr.Dataset) -> Figure:
    levels = np.linspace(0.01, 0.99, 50)
    both = evidence[["sample_a", "sample_b", "sample_c"]].isel(head=0).quantile(levels, "draw")
    return (
        Figure(
            both,
            "Losses from tokens and from projections",
            "quantiles from 1 % to 99 %; line: equal laws",
            x="quantile, tokens",
            y="quantile, projections",
        )
        .diagonal("sample_b", "sample_b")
        .points("sample_b", {"sample_a": "projections", "sample_c": "γ 20 % too large"}, size=12)
        .facet("statistic", columns=4, independent="xy", width=150, height=120)
    )


def token_predictions(
    tokens: np.ndarray, k: np.ndarray, v: np.ndarray, lam: float
) -> Float[np.ndarray, " draw"]:
    """The head's answers from the definition; the vectors' further coordinates are 0."""
    projected = tokens[..., : len(k)]
    return (special.erf(lam * (projected @ k)) * (projected @ v)).sum(-1)


def statistics_of(prediction: Any, target: Any) -> Float[np.ndarray, "statistic head draw"]:
    prediction, target = np.broadcast_arrays(prediction, target)
    return np.stack([prediction, target, prediction * target, (prediction - target) ** 2])
