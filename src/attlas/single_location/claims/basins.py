"""Claims about where descent at a constant sharpness ends, over sharpness and dimension."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr

from attlas.claims import Control, Convergence, Draws, Hypothesis, Setting, Values, on, together
from attlas.figure import Figure, Panels, row
from attlas.gaussian import float64
from attlas.single_location.claims import single_location
from attlas.single_location.claims.runs import outcomes
from attlas.single_location.claims.shared import paper_task, task_of
from attlas.single_location.claims.swapped import descend_for
from attlas.single_location.descent import LANES, sphere_start
from attlas.single_location.landscape import critical_lam, escape_rates
from attlas.single_location.population import Overlaps, partials_of_risk
from attlas.single_location.task import Constants, SingleLocation


@single_location.claim(
    kind="training",
    reference="three ends of descent",
    origin="ours",
    statement=r"Descent at a constant $\lambda < \lambda_c$ from a random start ends, after a time"
    r" $T$, at the oracle, at the swapped point, or on its way along $\nu = \pm1$, where since"
    r" $|\nu| > 0.9999$ it has moved in $|\kappa|$ as far as the flow"
    r" $\dot\kappa = -(1-\kappa^2)R_\kappa(\kappa, 1)$ on the manifold, to 5 %: in more than 80 %"
    r" of runs at every $\lambda$ and $d$ tested, with ten tokens.",
    words="A start finds the token, mistakes the value for the place, or learns the value and then"
    " hardly moves.",
    hypotheses=(Hypothesis("lam < lambda_c", lambda s: s.lam < critical_lam(task_of(s))),),
    quick=paper_task(dim=(100,) * 3 + (400,) * 3, lam=(0.1, 0.3, 0.7) * 2, time=40.0, repeats=128),
    paper=dict(
        dim=(40,) * 5 + (100,) * 5 + (400,) * 5 + (1600,) * 5,
        lam=(0.05, 0.1, 0.2, 0.4, 0.8) * 4,
        time=60.0,
        repeats=500,
    ),
    cells=together("dim", "lam"),
    budget="repeats",
    rule=Convergence(share=0.8),
    control=Control(
        "a flow along the manifold that is twice as fast",
        lambda e: {"arrived": e.oracle | e.swapped | e.twice_as_fast},
    ),
    needs=("swapped-attractor", "failure-falls"),
)
def basins(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    start = sphere_start(task, draws("start"), cell.repeats)
    path, alpha = descend_for(task, start, cell.lam, cell.time, records=100)
    ends = outcomes(path)
    sliding, faster = (follows_flow(task, path, cell.lam, alpha, speed) for speed in (1.0, 2.0))
    rates = escape_rates(task, cell.lam)
    return {
        **on(
            "repeat",
            oracle=ends["oracle"].values,
            swapped=ends["swapped"].values,
            sliding=sliding,
            twice_as_fast=faster,
            arrived=ends["oracle"].values | ends["swapped"].values | sliding,
            nu_start=abs(np.asarray(start.nu)),
            eta_start=abs(np.asarray(start.eta)),
        ),
        "race": float(rates.oracle / rates.swapped),
    }


@basins.figure
def basin_diagram(evidence: xr.Dataset) -> Panels:
    names = ["oracle", "swapped", "on its way", "none of these"]
    conditions = [evidence["oracle"], evidence["swapped"], evidence["sliding"]]
    end = xr.apply_ufunc(lambda *where: np.select(where, names[:3], names[3]), *conditions)
    shares = xr.concat(
        [(end == name).mean("repeat") for name in names], pd.Index(names, name="end")
    )
    bars = (
        Figure(shares.to_dataset(name="share"), x="λ", y="share of starts", domain={"y": (0, 1)})
        .bars("{lam:g}", "share", color="end")
        .facet("d = {dim}", width=150, height=170)
    )
    one = evidence.assign(end=end).isel(cell=int(np.argmin(abs(shares[0] - 0.5).values)))
    eta = np.geomspace(float(one["eta_start"].min()), float(one["eta_start"].max()), 40)
    race = pd.DataFrame({"eta_start": eta, "nu_start": eta ** float(one["race"])})
    starts = (
        Figure(
            one.isel(repeat=slice(400)).sortby("end"),
            f"d = {int(one['dim'])}, λ = {float(one['lam']):g}: which starts end where",
            x="|ν| at the start",
            y="|η| at the start",
            log="xy",
            width=360,
            height=240,
        )
        .points("nu_start", "eta_start", color="end", size=22)
        .lines(
            "nu_start",
            "eta_start",
            data=race[race["nu_start"] > float(one["nu_start"].min())],
            theory=True,
        )
    )
    return row(
        bars,
        starts,
        title="Where descent at a constant sharpness ends",
        note="dashed: |ν| = |η|ʳ, the race from the origin to leading order",
        columns=1,
        shared="color",
    )


def follows_flow(
    task: SingleLocation, path: xr.Dataset, lam: float, alpha: float, speed: float
) -> np.ndarray:
    """Whether each run moves along nu = 1 as the flow does, `speed` times as fast.

    A run does if, since it came to |nu| > 0.9999 in the first four fifths of its time, it has moved
    in |kappa| as far as the flow at nu = 1 in `speed` times the time that was left, to 5 %.
    """
    kappa, nu = abs(path["kappa"].values), abs(path["nu"].values)
    there = nu > 0.9999
    first, runs, steps = there.argmax(1), np.arange(len(kappa)), path["step"].values
    left = (steps[-1] - steps[first]) * alpha
    moved = kappa[:, -1] - kappa[runs, first]
    predicted = flow_along_edge(task, kappa[runs, first], lam, speed * left) - kappa[runs, first]
    return there[:, -1] & (first < 0.8 * len(steps)) & (abs(predicted - moved) < 0.05 * moved)


@float64
def flow_along_edge(
    task: SingleLocation, kappa: np.ndarray, lam: float, time: np.ndarray
) -> np.ndarray:
    """Where the flow along nu = 1 takes each kappa in its time."""
    lanes = LANES[-1]  # padded, so that one compiled program serves
    rows = np.pad([kappa, time], ((0, 0), (0, -len(kappa) % lanes)), "edge").reshape(2, -1, lanes)
    parts = [_integrate_edge(task.constants, *row, jnp.asarray(lam)) for row in rows.swapaxes(0, 1)]
    return np.concatenate(parts)[: len(kappa)]


@jax.jit
def _integrate_edge(c: Constants, kappa: jax.Array, time: jax.Array, lam: jax.Array) -> jax.Array:
    """By Heun's rule, to three digits or more."""

    def speed(kappa: jax.Array) -> jax.Array:
        zero = jnp.zeros_like(kappa)
        gradient = partials_of_risk(c, Overlaps(kappa, zero + 1, zero, zero, zero), lam)
        return -(1 - kappa**2) * gradient.kappa

    def step(_: jax.Array, kappa: jax.Array) -> jax.Array:
        h = time / 4000
        return kappa + h * (speed(kappa) + speed(kappa + h * speed(kappa))) / 2

    return jax.lax.fori_loop(0, 4000, step, kappa)
