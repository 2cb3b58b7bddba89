"""Claims about where descent at a constant sharpness ends: a phase diagram over sharpness and dimension."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attlas.claims import Control, Hypothesis, Setting, claim, drawn_by, key_for, together
from attlas.gaussian import float64
from attlas.single_location.claims.runs import outcomes
from attlas.single_location.claims.shared import FIGURES, HEAD, ROOT_HALF, TASK, TIME, task_of
from attlas.single_location.descent import descend, sphere_start
from attlas.single_location.landscape import critical_lam, escape_rates, stable_step
from attlas.single_location.population import Overlaps, partials_of_risk
from attlas.single_location.task import SingleLocation
from attlas.statistics import Convergence


@claim(
    "single-location/basins",
    source="attlas",
    reference="three ends of descent",
    statement=r"Descent at a constant $\lambda < \lambda_c$ from a random start ends, after a time $T$, at the oracle, at the swapped"
    r" point, or on its way along $\nu = \pm1$, where $|\kappa|$ is within 0.05 of the flow $\dot\kappa = -(1-\kappa^2)R_\kappa(\kappa,"
    r" 1)$ on the manifold: in more than 90 % of runs at every $\lambda$ and $d$ tested.",
    words="A start finds the token, mistakes the value for the place, or learns the value and then hardly moves.",
    hypotheses=(
        *TASK,
        HEAD,
        TIME,
        Hypothesis("lam < lambda_c", lambda s: s.lam < critical_lam(task_of(s))),
    ),
    quick=Setting(
        dim=(100, 100, 100, 400, 400, 400), lam=(0.1, 0.3, 0.7, 0.1, 0.3, 0.7), length=10, gamma=ROOT_HALF, noise=0.0,
        time=40.0, repeats=120,
    ),
    paper=Setting(
        dim=(40,) * 5 + (100,) * 5 + (400,) * 5 + (1600,) * 5, lam=(0.05, 0.1, 0.2, 0.4, 0.8) * 4, length=10,
        gamma=ROOT_HALF, noise=0.0, time=60.0, repeats=500,
    ),
    rule=Convergence(share=0.9),
    control=Control(
        "no third end: every run has reached one of the two points",
        lambda e: e.assign(arrived=e["oracle"] | e["swapped"]),
    ),
    figure=drawn_by(f"{FIGURES}:basin_diagram"),
    cells=together("dim", "lam"),
    budget="repeats",
    needs=("single-location/swapped-attractor", "single-location/failure-falls"),
    origin="ours",
)  # fmt: skip
def three_ends(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/basins", "start"), cell.repeats)
    alpha = 0.5 * stable_step(task, cell.lam)
    steps = round(cell.time / alpha)
    path = descend(task, start, lam=cell.lam, step_size=alpha, steps=steps, record_every=max(1, steps // 100))
    ends, sliding = outcomes(path), slides(task, path, cell.lam, alpha)
    rates = escape_rates(task, cell.lam)
    runs = ("cell", "repeat")
    return xr.Dataset(
        {
            "oracle": (runs, ends["oracle"].values[None]),
            "swapped": (runs, ends["swapped"].values[None]),
            "sliding": (runs, sliding[None]),
            "arrived": (runs, (ends["oracle"].values | ends["swapped"].values | sliding)[None]),
            "nu_start": (runs, abs(np.asarray(start.nu))[None]),
            "eta_start": (runs, abs(np.asarray(start.eta))[None]),
            "race": ("cell", [float(rates.oracle / rates.swapped)]),
        }
    )


def slides(task: SingleLocation, path: xr.Dataset, lam: float, alpha: float) -> np.ndarray:
    """Whether each run that has come to |nu| > 0.98 has since moved in |kappa| as the flow on the manifold at nu = 1."""
    kappa, nu = abs(path["kappa"].values), abs(path["nu"].values)
    on_edge = nu > 0.98
    first = np.where(on_edge.any(1), on_edge.argmax(1), len(path["step"]) - 1)
    runs = np.arange(len(kappa))
    left = (path["step"].values[-1] - path["step"].values[first]) * alpha
    predicted = slid(task, kappa[runs, first], lam, left)
    return on_edge[:, -1] & (abs(predicted - kappa[:, -1]) < 0.05) & (first < len(path["step"]) - 10)


@float64
def slid(task: SingleLocation, kappa: np.ndarray, lam: float, time: np.ndarray) -> np.ndarray:
    """Where the flow along nu = 1 takes each kappa in its time; by Heun's rule, fine enough for two digits."""

    @jax.jit
    def integrate(kappa: jax.Array, time: jax.Array) -> jax.Array:
        def speed(kappa: jax.Array) -> jax.Array:
            zero = jnp.zeros_like(kappa)
            at = Overlaps(kappa, zero + 1, zero, zero, zero)
            return -(1 - kappa**2) * partials_of_risk(task.constants, at, lam).kappa

        def step(_: int, kappa: jax.Array) -> jax.Array:
            h = time / 4000
            return kappa + h * (speed(kappa) + speed(kappa + h * speed(kappa))) / 2

        return jax.lax.fori_loop(0, 4000, step, kappa)

    return np.asarray(integrate(jnp.asarray(kappa), jnp.asarray(time)))
