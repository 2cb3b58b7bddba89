"""Claims about the speed of descent: vanishing gradients, steps too long, the short-step limit."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from scipy import special

from attlas.claims import (
    Approximation,
    Control,
    Convergence,
    Draws,
    Hypothesis,
    Rate,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure
from attlas.single_location import landscape
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import paper_task, task_of
from attlas.single_location.descent import descend, sphere_start
from attlas.single_location.population import Overlaps
from attlas.single_location.schedules import InverseDecay
from attlas.single_location.task import Constants, SingleLocation


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="vanishing gradient at the oracle",
    statement=r"Near the oracle $1 - \kappa$ decays at the rate"
    r" $\frac{4\gamma^2\lambda m}{D}\,\mathrm{erf}'(A)\,\mathrm{erfc}(A/E)$ with"
    r" $A = \lambda m / D$, which falls like $e^{-(1 + E^{-2})A^2}$: the gradient vanishes as the"
    r" gate saturates.",
    words="The sharper the gate, the slower the last stretch: at lambda = 0.5 it would take longer"
    " than the universe is old.",
    quick=paper_task(lam=(0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)),
    cells=together("lam"),
    rule=Approximation(margin=1e-9),
    control=Control("erfc(A) in place of erfc(A/E)", lambda e: {"predicted": e.without_e}),
    needs=("manifold-fixed-points",),
)
def corner_rate(cell: Setting, draws: Draws) -> Values:
    task, s = task_of(cell), cell.lam * cell.gamma
    a = cell.lam * task.m / np.sqrt(1 + 2 * s**2)
    e = np.sqrt(1 + 4 * s**2)
    closed = float(landscape.corner_rate(task, cell.lam))
    return {
        "predicted": closed,
        "measured": corner_rate_by_quadrature(task, cell.lam),
        "error": 0.0,
        "without_e": closed * special.erfc(a) / special.erfc(a / e),
    }


@corner_rate.figure
def rates_against_sharpness(evidence: xr.Dataset) -> Figure:
    note = "line: closed form; points: quadrature of the definition"
    return (
        Figure(evidence, "The last stretch slows down", note, x="λ", y="rate of 1 − κ", log="xy")
        .lines("lam", "predicted", theory="solid")
        .points("lam", "measured")
    )


def corner_rate_by_quadrature(task: SingleLocation, lam: float) -> float:
    r"""Rate at the oracle from the definition of the risk on the manifold, $2|R_\kappa|$.

    $R_\kappa = -2\gamma^2 E[\mathrm{erf}'(x)\lambda m\,(1 - \mathrm{erf}(x))]$ with
    $x = \lambda m + \lambda\gamma G$, by the trapezoidal rule, centred at the integrand's maximum
    so that its smallness costs no digits.
    """
    s = lam * task.gamma
    g = np.linspace(-12, 12, 8001) - 2 * lam * task.m * s / (1 + 4 * s**2)
    x = lam * task.m + s * g
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    integrand = 2 / np.sqrt(np.pi) * np.exp(-(x**2)) * special.erfc(x) * density
    return float(2 * 2 * task.gamma**2 * lam * task.m * np.sum(integrand) * (g[1] - g[0]))


@single_location.claim(
    kind="training",
    origin="ours",
    reference="instability of the published step size",
    statement=r"At the published step size $\alpha = 4\cdot10^{-3} > 2/\Lambda$, $\Lambda$ the"
    r" largest eigenvalue across the manifold at the oracle, the scheduled run loses the manifold"
    r" by period doubling: after a few thousand steps more than 70 % of runs alternate between two"
    r" states.",
    words="The published step is too long: once the value is found the iterate flips from side to"
    " side.",
    hypotheses=(
        Hypothesis("steps >= 60", lambda s: s.steps >= 60, defining=True),
        Hypothesis(
            "step_size is above the flip threshold",
            lambda s: s.step_size > landscape.stable_step(task_of(s), s.lam),
        ),
    ),
    quick=paper_task(lam=1.0, step_size=4e-3, steps=2500, repeats=128),
    paper=dict(repeats=2000),
    budget="repeats",
    rule=Convergence(share=0.7),
    control=Control("a stable step size, 1e-3", setting=dict(step_size=1e-3)),
    needs=("transverse-stability",),
)
def period_two(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    path = descend(
        task,
        sphere_start(task, draws("start"), cell.repeats),
        lam=InverseDecay(cell.lam),
        step_size=cell.step_size,
        steps=cell.steps,
        record_every=1,
    )
    rho = path["rho"].values
    one, two = abs(rho[:, -1] - rho[:, -2]), abs(rho[:, -1] - rho[:, -3])
    return {
        **on("repeat", arrived=(one > 1e-3) & (two < one / 10)),
        **on("run step", rho_path=rho[:4, -60:]),
        "step": path["step"].values[-60:],
    }


@period_two.figure
def alternating_paths(evidence: xr.Dataset) -> Figure:
    note = "the last sixty steps of four runs; on the manifold ρ = 0"
    return Figure(evidence, "Two states in turn", note, x="step", y="ρ = ⟨k, v⟩", zero="-x").lines(
        "step", "rho_path", points=True, color="run"
    )


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="descent as a discretised flow",
    statement=r"As $\alpha \to 0$ with $\alpha t$ fixed, descent tends to the gradient flow on the"
    r" two spheres, written in the five overlaps, with an error of order $\alpha$.",
    words="Short steps follow the flow, and halving the step halves the distance to it.",
    quick=paper_task(dim=40, lam=0.5, step_size=(2e-3, 1e-3, 5e-4, 2.5e-4), time=2.0),
    paper=dict(dim=400, step_size=(8e-4, 4e-4, 2e-4, 1e-4, 5e-5)),
    cells=together("step_size"),
    rule=Rate(margin=0.1),
    control=Control(
        "a flow whose theta is twice as fast, which short steps do not approach",
        lambda e: {"measured": e.from_wrong_flow},
    ),
    needs=("exact-reduction",),
)
def gradient_flow(cell: Setting, draws: Draws) -> Values:
    task, steps = task_of(cell), round(cell.time / cell.step_size)
    start = sphere_start(task, draws("start"), 16)
    path = descend(
        task, start, lam=cell.lam, step_size=cell.step_size, steps=steps, record_every=steps
    )
    reached = np.stack([path[name].values[:, -1] for name in Overlaps._fields])
    # The flow's own error is of order alpha^4: exact beside an error of order alpha.
    both = Overlaps(*(np.stack([x, x]) for x in start))
    speeds = np.array([[1.0], [2.0]])
    ends = follow_flow(task.constants, both, cell.lam, steps * cell.step_size, steps, speeds)
    right, wrong = np.sqrt(((reached[:, None] - np.stack(ends)) ** 2).sum(0)).mean(-1)
    return {
        "x": cell.step_size,
        "measured": right,
        "from_wrong_flow": wrong,
        "error": 0.0,
        "exponent": 1.0,
    }


@gradient_flow.figure
def distance_to_the_flow(evidence: xr.Dataset) -> Figure:
    last = evidence.isel(cell=-1)
    return (
        Figure(
            evidence.assign(first_order=last["measured"] * evidence["x"] / last["x"]),
            "Descent follows the flow",
            "dashed: proportional to α",
            x="step size α",
            y="distance to the flow",
            log="xy",
        )
        .lines("x", "first_order", theory=True)
        .points("x", "measured")
    )


@jax.jit
def follow_flow(
    c: Constants, x: Overlaps, lam: Array, time: Array, steps: Array, theta_speed: Array
) -> Overlaps:
    """Where the gradient flow takes `x` in `time`, by the classical Runge-Kutta rule.

    The velocity of theta is multiplied by `theta_speed`.
    """
    h = time / steps
    reach, weight = jnp.array([0, 1 / 2, 1 / 2, 1]), jnp.array([1, 2, 2, 1]) / 6

    def along(x: Overlaps, v: Overlaps, h: Array) -> Overlaps:
        return jax.tree.map(lambda x, v: x + h * v, x, v)

    def step(_: Array, x: Overlaps) -> Overlaps:
        def stage(i: Array, slopes: tuple[Overlaps, Overlaps]) -> tuple[Overlaps, Overlaps]:
            v = landscape.velocity(c, along(x, slopes[0], h * reach[i]), lam)
            v = v._replace(theta=theta_speed * v.theta)
            return v, along(slopes[1], v, weight[i])

        zero = jax.tree.map(jnp.zeros_like, x)
        return along(x, jax.lax.fori_loop(0, 4, stage, (zero, zero))[1], h)

    return jax.lax.fori_loop(0, steps, step, x)
