"""Claims about the population risk: its closed form, zeta in it, and other gates than erf."""

from typing import Any

import numpy as np
import scipy
import xarray as xr
from scipy import special

from attlas import gaussian
from attlas.claims import Agreement, Control, Draws, Setting, Values, on, together
from attlas.figure import Figure, agreement
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import (
    ROOT_HALF,
    SAMPLES,
    against_formula,
    capped,
    one_of,
    random_overlaps,
    task_of,
)
from attlas.single_location.gates import ACTIVATIONS, Gate
from attlas.single_location.population import risk_terms, sampled_risk


@single_location.claim(
    kind="two routes",
    reference="the function zeta of Theorem 1",
    origin="ours",
    statement=r"$\zeta(t, s) = E[\mathrm{erf}(t + sG)^2] ="
    r" 1 - 8\,T\Big(\frac{\sqrt2\,t}{\sqrt{1+2s^2}}, \frac{1}{\sqrt{1+4s^2}}\Big)$"
    r" with $G \sim N(0,1)$ and Owen's $T$.",
    words="The mean square of a smoothed error function has a closed form.",
    quick=Setting(spread=(0.1, 0.5, 1.0, 2.0), reach=4.0, points=32),
    paper=dict(points=1000),
    cells=together("spread"),
    budget="points",
    rule=Agreement(rounding=1e-13),
    control=Control(
        "a second argument of Owen's T that is too large by {size:.2g} of its value",
        lambda e, size: {"predicted": zeta_by_owen(e.t, e.spread, 1 + size) + 0 * e.predicted},
        size=1e-10,
    ),
)
def zeta(cell: Setting, draws: Draws) -> Values:
    # Random in even strata, up to `reach` widths of the smoothed step.
    uniform = (np.arange(cell.points) + draws.stream("points").random(cell.points)) / cell.points
    t = cell.reach * (2 * uniform - 1) * np.sqrt(1 + 2 * cell.spread**2)
    # The trapezoidal rule is exact to rounding for an entire integrand with Gaussian decay.
    g = np.linspace(-10, 10, 4001)
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    squares = special.erf(t[:, None] + cell.spread * g) ** 2
    return {
        **on("point", predicted=gaussian.zeta(t, np.full_like(t, cell.spread)), t=t),
        **on("point", measured=scipy.integrate.trapezoid(squares * density, g)),
        "error": 0.0,
    }


@zeta.figure
def zeta_curves(evidence: xr.Dataset) -> Figure:
    title, note = "Mean square of a smoothed erf", "lines: Owen's T; points: quadrature"
    return against_formula(evidence, "t", title, note, color="s = {spread:g}", y="ζ(t, s)")


def zeta_by_owen(t: xr.DataArray, spread: xr.DataArray, factor: float) -> xr.DataArray:
    """Zeta by SciPy's Owen's T, whose second argument is multiplied by `factor`."""
    wide, wider = np.sqrt(1 + 2 * spread**2), np.sqrt(1 + 4 * spread**2)
    return 1 - 8 * special.owens_t(np.sqrt(2) * t / wide, factor / wider)


TASKS: dict[str, Any] = {
    "dim": (5, 4, 40, 200),
    "length": (2, 3, 6, 12),
    "gamma": (ROOT_HALF, 2.0, 1.3, 0.4),
    "noise": (0.0, 0.0, 0.1, 0.5),
    "lam": (1.5, 0.4, 0.5, 0.1),
}


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
        "its part that is smallest beside the sampling error, of four, {size:.0%} too large",
        lambda e, size: {"predicted": e.predicted + size * least_seen(e)},
        size=0.25,
    ),
    needs=("zeta",),
)
def closed_form_risk(cell: Setting, draws: Draws) -> Values:
    task, lam = task_of(cell), cell.lam
    overlaps = random_overlaps(draws("heads"), cell.points)
    terms = risk_terms(task, overlaps, lam)
    predicted = sum(terms)
    sampled = sampled_risk(task, overlaps, lam, draws("samples"), cell.samples)
    parts = terms._asdict()
    del parts["target"]  # known, and the same for every head
    return {
        **on("point", predicted=predicted, measured=capped(sampled, predicted, cell.samples)),
        **on("part point", parts=np.stack(list(parts.values()))),
        "part": list(parts),
    }


@closed_form_risk.figure
def measured_against_predicted(evidence: xr.Dataset) -> Figure:
    task = "d={dim}, L={length}, γ={gamma:.2g}, λ={lam:g}"
    return agreement(evidence, "Risk: closed form against simulation", what="risk", color=task)


def least_seen(evidence: xr.Dataset) -> xr.DataArray:
    """The part of the risk that is smallest beside the sampling error where it is largest."""
    size = abs(evidence["parts"] / evidence["error"]).max(["cell", "point"])
    return evidence["parts"].isel(part=int(size.values.argmin()), drop=True)


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="Theorem 1 for any gate",
    statement=r"For every pointwise gate $g$ the risk of"
    r" $\sum_l g(\lambda\langle X_l, k\rangle - c)\langle X_l, v\rangle$ depends on the five"
    r" overlaps alone; for a sigmoid, ReLU, a threshold and others the quadrature agrees with"
    r" simulation.",
    words="The risk of a head with any gate that looks at one token at a time is a function of"
    " the same five overlaps.",
    hypotheses=(SAMPLES, one_of("activation", ACTIVATIONS)),
    quick=Setting(
        dim=40,
        length=5,
        gamma=0.8,
        noise=0.1,
        lam=0.7,
        offset=0.5,
        points=12,
        samples=60_000,
        activation=("sigmoid", "relu", "step"),
    ),
    paper=dict(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        points=16,
        samples=1_000_000,
        activation=("tanh", "sigmoid", "relu", "step", "identity"),
    ),
    cells=together("activation"),
    budget="samples",
    rule=Agreement(),
    control=Control(
        "the term that couples two tokens is {size:.0%} smaller",
        lambda e, size: {"predicted": e.predicted - size * e.coupling},
        size=0.3,
    ),
    needs=("closed-form-risk",),
)
def gate_risk(cell: Setting, draws: Draws) -> Values:
    overlaps = random_overlaps(draws("heads"), cell.points)
    task, gate = task_of(cell), Gate(cell.activation, cell.offset)
    terms = risk_terms(task, overlaps, cell.lam, gate)
    predicted = sum(terms)
    sampled = sampled_risk(task, overlaps, cell.lam, draws("samples"), cell.samples, gate)
    measured = capped(sampled, predicted, cell.samples)
    return on("point", predicted=predicted, measured=measured, coupling=terms.coupling)


@gate_risk.figure
def risks_of_gates(evidence: xr.Dataset) -> Figure:
    title, legend = "Risk of other gates against simulation", {"activation": "gate"}
    return agreement(evidence, title, what="risk", color="activation", legend=legend)
