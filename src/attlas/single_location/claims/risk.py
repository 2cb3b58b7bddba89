"""Claims about the population risk: its closed form, gradient and sampler."""

from typing import Any

import jax
import xarray as xr
from jaxtyping import Array

from attlas.claims import (
    Agreement,
    Control,
    Draws,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, agreement
from attlas.gaussian import zeta_derivatives
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import (
    ROOT_HALF,
    SAMPLES,
    overlaps_of,
    random_heads,
    task_of,
)
from attlas.single_location.population import (
    Overlaps,
    at_points,
    risk_terms,
    sampled_risk,
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
    kind="simulation",
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
