"""Claims about where descent at a constant sharpness ends: a phase diagram over sharpness and dimension."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attlas.claims.compat import (
    Control,
    Convergence,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import float64
from attlas.single_location.claims.runs import outcomes
from attlas.single_location.claims.shared import FIGURES, HEAD, ROOT_HALF, TASK, TIME, task_of
from attlas.single_location.descent import LANES, descend, sphere_start
from attlas.single_location.landscape import critical_lam, escape_rates, stable_step
from attlas.single_location.population import Overlaps, partials_of_risk
from attlas.single_location.task import Constants, SingleLocation


@claim(
    "single-location/basins",
    source="attlas",
    reference="three ends of descent",
    statement=r"Descent at a constant $\lambda < \lambda_c$ from a random start ends, after a time $T$, at the oracle, at the swapped"
    r" point, or on its way along $\nu = \pm1$, where since $|\nu| > 0.9999$ it has moved in $|\kappa|$ as far as the flow"
    r" $\dot\kappa = -(1-\kappa^2)R_\kappa(\kappa, 1)$ on the manifold, to 5 %: in more than 80 % of runs at every $\lambda$ and $d$"
    r" tested, with ten tokens.",
    words="A start finds the token, mistakes the value for the place, or learns the value and then hardly moves.",
    hypotheses=(
        *TASK,
        HEAD,
        TIME,
        Hypothesis("lam < lambda_c", lambda s: s.lam < critical_lam(task_of(s))),
    ),
    quick=Setting(
        dim=(100, 100, 100, 400, 400, 400),
        lam=(0.1, 0.3, 0.7, 0.1, 0.3, 0.7),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        time=40.0,
        repeats=128,
    ),
    paper=Setting(
        dim=(40,) * 5 + (100,) * 5 + (400,) * 5 + (1600,) * 5,
        lam=(0.05, 0.1, 0.2, 0.4, 0.8) * 4,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        time=60.0,
        repeats=500,
    ),
    rule=Convergence(share=0.8),
    control=Control(
        "a flow along the manifold that is twice as fast",
        lambda e: e.assign(arrived=e["oracle"] | e["swapped"] | e["twice_as_fast"]),
    ),
    figure=drawn_by(f"{FIGURES}.landscape:basin_diagram"),
    cells=together("dim", "lam"),
    budget="repeats",
    needs=("single-location/swapped-attractor", "single-location/failure-falls"),
    origin="ours",
)
def three_ends(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/basins", "start"), cell.repeats)
    alpha = 0.5 * stable_step(task, cell.lam)
    steps = round(cell.time / alpha)
    path = descend(
        task, start, lam=cell.lam, step_size=alpha, steps=steps, record_every=max(1, steps // 100)
    )
    ends = outcomes(path)
    sliding, faster = (slides(task, path, cell.lam, alpha, speed) for speed in (1.0, 2.0))
    rates = escape_rates(task, cell.lam)
    runs = ("cell", "repeat")
    return xr.Dataset(
        {
            "oracle": (runs, ends["oracle"].values[None]),
            "swapped": (runs, ends["swapped"].values[None]),
            "sliding": (runs, sliding[None]),
            "twice_as_fast": (runs, faster[None]),
            "arrived": (runs, (ends["oracle"].values | ends["swapped"].values | sliding)[None]),
            "nu_start": (runs, abs(np.asarray(start.nu))[None]),
            "eta_start": (runs, abs(np.asarray(start.eta))[None]),
            "race": ("cell", [float(rates.oracle / rates.swapped)]),
        }
    )


def slides(
    task: SingleLocation, path: xr.Dataset, lam: float, alpha: float, speed: float
) -> np.ndarray:
    """Whether each run, since it came to |nu| > 0.9999 in the first four fifths of its time, has moved in |kappa| as far as
    the flow at nu = 1 would in `speed` times the time that was left, to 5 %."""
    kappa, nu = abs(path["kappa"].values), abs(path["nu"].values)
    there = nu > 0.9999
    first, runs, steps = there.argmax(1), np.arange(len(kappa)), path["step"].values
    left = (steps[-1] - steps[first]) * alpha
    moved = kappa[:, -1] - kappa[runs, first]
    predicted = slid(task, kappa[runs, first], lam, speed * left) - kappa[runs, first]
    return there[:, -1] & (first < 0.8 * len(steps)) & (abs(predicted - moved) < 0.05 * moved)


@float64
def slid(task: SingleLocation, kappa: np.ndarray, lam: float, time: np.ndarray) -> np.ndarray:
    """Where the flow along nu = 1 takes each kappa in its time."""
    lanes = LANES[-1]
    rows = np.pad([kappa, time], ((0, 0), (0, -len(kappa) % lanes)), "edge").reshape(2, -1, lanes)
    parts = [_slid(task.constants, *row, jnp.asarray(lam)) for row in rows.swapaxes(0, 1)]
    return np.concatenate(parts)[: len(kappa)]


@jax.jit
def _slid(c: Constants, kappa: jax.Array, time: jax.Array, lam: jax.Array) -> jax.Array:
    """By Heun's rule, to three digits or more."""

    def speed(kappa: jax.Array) -> jax.Array:
        zero = jnp.zeros_like(kappa)
        return (
            -(1 - kappa**2)
            * partials_of_risk(c, Overlaps(kappa, zero + 1, zero, zero, zero), lam).kappa
        )

    def step(_: jax.Array, kappa: jax.Array) -> jax.Array:
        h = time / 4000
        return kappa + h * (speed(kappa) + speed(kappa + h * speed(kappa))) / 2

    return jax.lax.fori_loop(0, 4000, step, kappa)
