"""Claims about how fast descent moves: why a sharp gate stalls, why the published step flips, and the limit of small steps."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from attlas.claims.compat import (
    Approximation,
    Control,
    Convergence,
    Hypothesis,
    Rate,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.single_location.claims.shared import FIGURES, HEAD, ROOT_HALF, STEP, TASK, TIME, task_of
from attlas.single_location.descent import descend, sphere_start
from attlas.single_location.landscape import corner_rate, stable_step, velocity
from attlas.single_location.population import Overlaps
from attlas.single_location.schedules import InverseDecay
from attlas.single_location.task import Constants, SingleLocation


@claim(
    "single-location/corner-rate",
    source="attlas",
    reference="vanishing gradient at the oracle",
    statement=r"Near the oracle $1 - \kappa$ decays at the rate $\frac{4\gamma^2\lambda m}{D}\,\mathrm{erf}'(A)\,\mathrm{erfc}(A/E)$"
    r" with $A = \lambda m / D$, which falls like $e^{-(1 + E^{-2})A^2}$: the gradient vanishes as the gate saturates.",
    words="The sharper the gate, the slower the last stretch: at lambda = 0.5 it would take longer than the universe is old.",
    hypotheses=(*TASK, HEAD),
    quick=Setting(
        dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
    ),
    paper=Setting(
        dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
    ),
    rule=Approximation(margin=1e-9),
    control=Control("erfc(A) in place of erfc(A/E)", lambda e: e.assign(predicted=e["without_e"])),
    figure=drawn_by(f"{FIGURES}.landscape:corner_rates"),
    cells=together("lam"),
    needs=("single-location/manifold-fixed-points",),
    origin="ours",
)
def vanishing_gradient(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    from scipy import special

    (cell,) = cells
    task = task_of(cell)
    d = np.sqrt(1 + 2 * (cell.lam * task.gamma) ** 2)
    a = cell.lam * task.m / d
    e = np.sqrt(1 + 4 * (cell.lam * task.gamma) ** 2)
    closed = float(corner_rate(task, cell.lam))
    return xr.Dataset(
        {
            "predicted": ("cell", [closed]),
            "measured": ("cell", [measured_corner_rate(task, cell.lam)]),
            "error": 0.0,
            "without_e": ("cell", [closed * special.erfc(a) / special.erfc(a / e)]),
        }
    )


def measured_corner_rate(task: SingleLocation, lam: float) -> float:
    r"""Rate at the oracle from the definition of the risk on the manifold: $2|R_\kappa|$ with
    $R_\kappa = -2\gamma^2 E[\mathrm{erf}'(x)\lambda m\,(1 - \mathrm{erf}(x))]$, $x = \lambda m + \lambda\gamma G$, by the trapezoidal
    rule, centred where the integrand is largest so that its smallness costs no digits."""
    from scipy import special

    s = lam * task.gamma
    g = np.linspace(-12, 12, 8001) - 2 * lam * task.m * s / (1 + 4 * s**2)
    x = lam * task.m + s * g
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    integrand = 2 / np.sqrt(np.pi) * np.exp(-(x**2)) * special.erfc(x) * density
    return float(2 * 2 * task.gamma**2 * lam * task.m * np.sum(integrand) * (g[1] - g[0]))


@claim(
    "single-location/period-two",
    source="attlas",
    reference="instability of the published step size",
    statement=r"At the published step size $\alpha = 4\cdot10^{-3} > 2/\Lambda$, $\Lambda$ the largest eigenvalue across the manifold at the oracle, the scheduled run"
    r" loses the manifold by period doubling: after a few thousand steps more than 70 % of runs alternate between two states.",
    words="The published step is too long: once the value is found the iterate flips from side to side.",
    hypotheses=(
        *TASK,
        HEAD,
        STEP,
        Hypothesis("steps >= 60", lambda s: s.steps >= 60, defining=True),
        Hypothesis(
            "step_size is above the flip threshold",
            lambda s: s.step_size > stable_step(task_of(s), s.lam),
        ),
    ),
    quick=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=1.0,
        step_size=4e-3,
        steps=2500,
        repeats=128,
    ),
    paper=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=1.0,
        step_size=4e-3,
        steps=2500,
        repeats=2000,
    ),
    rule=Convergence(share=0.7),
    control=Control("a stable step size, 1e-3", lambda s: s.replace(step_size=1e-3), on="setting"),
    figure=drawn_by(f"{FIGURES}.landscape:flips"),
    budget="repeats",
    needs=("single-location/transverse-stability",),
    origin="ours",
)
def period_two(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/period-two", "start"), cell.repeats)
    path = descend(
        task,
        start,
        lam=InverseDecay(cell.lam),
        step_size=cell.step_size,
        steps=cell.steps,
        record_every=1,
    )
    rho = path["rho"].values
    one, two = abs(rho[:, -1] - rho[:, -2]), abs(rho[:, -1] - rho[:, -3])
    return xr.Dataset(
        {
            "arrived": (("cell", "repeat"), ((one > 1e-3) & (two < one / 10))[None]),
            "rho_path": (("cell", "run", "step"), rho[None, :4, -60:]),
        },
        coords={"step": path["step"].values[-60:]},
    )


@claim(
    "single-location/gradient-flow",
    source="attlas",
    reference="descent as a discretised flow",
    statement=r"As $\alpha \to 0$ with $\alpha t$ fixed, descent tends to the gradient flow on the two spheres, written in the five"
    r" overlaps, with an error of order $\alpha$.",
    words="Short steps follow the flow, and halving the step halves the distance to it.",
    hypotheses=(*TASK, HEAD, STEP, TIME),
    quick=Setting(
        dim=40,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=0.5,
        step_size=(2e-3, 1e-3, 5e-4, 2.5e-4),
        time=2.0,
    ),
    paper=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=0.5,
        step_size=(8e-4, 4e-4, 2e-4, 1e-4, 5e-5),
        time=2.0,
    ),
    rule=Rate(margin=0.1),
    control=Control(
        "a flow whose theta is twice as fast, which short steps do not approach",
        lambda e: e.assign(measured=e["from_wrong_flow"]),
    ),
    figure=drawn_by(f"{FIGURES}.landscape:flow_limit"),
    cells=together("step_size"),
    needs=("single-location/exact-reduction",),
    origin="ours",
)
def gradient_flow(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/gradient-flow", "start"), 16)
    steps = round(cell.time / cell.step_size)
    last = descend(
        task, start, lam=cell.lam, step_size=cell.step_size, steps=steps, record_every=steps
    ).isel(step=-1)
    reached = np.stack([last[name].values for name in Overlaps._fields])
    # Of order alpha^4 with the same step: exact beside an error of order alpha.
    both = Overlaps(*(np.stack([x, x]) for x in start))
    ends = flow_for(
        task.constants, both, cell.lam, steps * cell.step_size, steps, np.array([[1.0], [2.0]])
    )
    off, far = np.sqrt(((reached[:, None] - np.stack(ends)) ** 2).sum(0)).mean(-1)
    return xr.Dataset(
        {
            "x": ("cell", [cell.step_size]),
            "measured": ("cell", [off]),
            "from_wrong_flow": ("cell", [far]),
            "error": 0.0,
            "predicted": 1.0,
        }
    )


@jax.jit
def flow_for(
    c: Constants, x: Overlaps, lam: Array, time: Array, steps: Array, theta_speed: Array
) -> Overlaps:
    """Where the gradient flow takes `x` in `time`, by the classical Runge-Kutta rule; its theta at `theta_speed` times."""
    h = time / steps
    reach, weight = jnp.array([0, 1 / 2, 1 / 2, 1]), jnp.array([1, 2, 2, 1]) / 6

    def along(x: Overlaps, v: Overlaps, h: Array) -> Overlaps:
        return jax.tree.map(lambda x, v: x + h * v, x, v)

    def step(_: Array, x: Overlaps) -> Overlaps:
        def stage(i: Array, slopes: tuple[Overlaps, Overlaps]) -> tuple[Overlaps, Overlaps]:
            v = velocity(c, along(x, slopes[0], h * reach[i]), lam)
            v = v._replace(theta=theta_speed * v.theta)
            return v, along(slopes[1], v, weight[i])

        zero = jax.tree.map(jnp.zeros_like, x)
        return along(x, jax.lax.fori_loop(0, 4, stage, (zero, zero))[1], h)

    return jax.lax.fori_loop(0, steps, step, x)
