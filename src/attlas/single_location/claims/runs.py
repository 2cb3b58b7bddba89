"""The paper's population runs (Figures 3a, 3b and the appendix), what they do and what they do not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from attlas.claims.compat import (
    Approximation,
    Control,
    Convergence,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
)
from attlas.single_location.claims.shared import (
    FIGURES,
    HEAD,
    PAPER,
    ROOT_HALF,
    STABLE,
    STEP,
    TASK,
    task_of,
)
from attlas.single_location.descent import descend, manifold_start, sphere_start
from attlas.single_location.landscape import corner_rate, critical_lam, stable_step, swapped_point
from attlas.single_location.population import ORACLE, Overlaps, risk
from attlas.single_location.schedules import (
    GeometricDecay,
    InverseDecay,
    Schedule,
    named_schedule,
    values_at,
)
from attlas.single_location.task import SingleLocation

STARTS = {"manifold": manifold_start, "sphere": sphere_start}
KINDS = ("constant", "inverse", "geometric")

RUN = (
    *TASK,
    HEAD,
    STEP,
    Hypothesis("end > 0", lambda s: s.end > 0, defining=True),
    Hypothesis("rate >= 0", lambda s: s.rate >= 0, defining=True),
    Hypothesis(
        f"schedule is one of {', '.join(KINDS)}", lambda s: s.schedule in KINDS, defining=True
    ),
    Hypothesis("start is manifold or sphere", lambda s: s.start in STARTS, defining=True),
)
CONSTANT = Hypothesis("lam is constant (schedule = constant)", lambda s: s.schedule == "constant")
ENOUGH = Hypothesis(
    "steps are enough: step_size * steps times the rate at the oracle is at least 1",
    lambda s: s.step_size * s.steps * float(corner_rate(task_of(s), s.lam)) >= 1,
)
ENDS = ("oracle", "swapped", "neither")
SHOWN = 10
"""Runs whose path a figure draws."""


def run_setting(**changes: Any) -> Setting:
    """The setting that the paper's runs share, with what distinguishes one."""
    values: dict[str, Any] = {
        "dim": 400,
        "length": 10,
        "gamma": ROOT_HALF,
        "noise": 0.0,
        "schedule": "constant",
        "lam": 0.1,
        "end": 0.0638,
        "rate": 1e-4,
        "step_size": 4e-3,
        "steps": 20_000,
        "repeats": 300,
        "start": "sphere",
    }
    return Setting(**{**values, **changes})


def schedule_of(cell: Setting) -> Schedule:
    return named_schedule(cell.schedule, cell.lam, end=cell.end, rate=cell.rate, steps=cell.steps)


def outcomes(path: xr.Dataset, reach: float = 0.9) -> xr.Dataset:
    """Where each run ends: at the oracle, at the swapped point, or at neither."""
    last = path.isel(step=-1, drop=True)
    oracle = (
        (last["kappa"] * last["nu"] > 0) & (abs(last["kappa"]) > reach) & (abs(last["nu"]) > reach)
    )
    swapped = (
        (last["theta"] * last["eta"] > 0)
        & (abs(last["eta"]) > reach)
        & (abs(last["nu"]) < 1 - reach)
    )
    return xr.Dataset({"oracle": oracle, "swapped": swapped, "neither": ~(oracle | swapped)})


def panels(path: xr.Dataset, task: SingleLocation, lam: Schedule) -> xr.Dataset:
    """What the paper's panels show: bands of excess risk, alignments and distance over runs, single paths, and the
    risks of the oracle, the swapped point and the origin at each step's sharpness."""
    curves = {
        "excess_risk": path["risk"] - task.noise**2,
        "kappa_size": abs(path["kappa"]),
        "nu_size": abs(path["nu"]),
        "distance": path["distance"],
    }
    axes = ("band", "step")
    bands = {name: (axes, band(curve)) for name, curve in curves.items()}
    lams = values_at(lam, path["step"].values)
    places = (ORACLE, swapped_point(task, lams), Overlaps(0.0, 0.0, 0.0, 0.0, 0.0))
    columns = (
        np.stack([np.broadcast_to(x, lams.shape) for x in column])
        for column in zip(*places, strict=True)
    )
    names = ("oracle_level", "swapped_level", "origin_level")
    levels = dict(zip(names, risk(task, Overlaps(*columns), lams), strict=True))
    few = (
        path[["kappa", "nu"]]
        .isel(repeat=slice(SHOWN))
        .rename(repeat="run", kappa="kappa_path", nu="nu_path")
    )
    theory = {name: ("step", level - task.noise**2) for name, level in levels.items()}
    return few.assign({**bands, **theory}).assign_coords(band=["low", "mean", "high"])


def band(curves: Any) -> np.ndarray:
    """Lower end of the 95 % band over runs, mean, upper end: [3, step], as the paper draws them."""
    low, high = np.quantile(curves, (0.025, 0.975), axis=0)
    return np.stack([low, np.mean(curves, axis=0), high])


def run_once(
    cell: Setting, seed: int, id: str, **options: Any
) -> tuple[xr.Dataset, SingleLocation, Schedule]:
    task, lam = task_of(cell), schedule_of(cell)
    start = STARTS[cell.start](task, key_for(seed, id, "start"), cell.repeats)
    every = max(1, cell.steps // 60)
    path = descend(
        task,
        start,
        lam=lam,
        step_size=cell.step_size,
        steps=cell.steps,
        record_every=every,
        **options,
    )
    return path, task, lam


def population_run(cell: Setting, seed: int, id: str) -> tuple[xr.Dataset, xr.Dataset]:
    """The run of a cell: its last states with their outcomes, and its panels."""
    path, task, lam = run_once(cell, seed, id)
    last = path.isel(step=-1, drop=True)
    return xr.merge([last, outcomes(path)]), panels(path, task, lam)


@claim(
    "single-location/manifold-convergence",
    source=PAPER,
    reference="Theorem 5, Figure 3b",
    statement=r"From almost every start on the manifold, projected gradient descent with constant $\lambda$ and small"
    r" $\alpha$ tends to $\pm(k^*, v^*)$; here: $\kappa\nu > 0$ and $|\kappa|, |\nu| > 0.95$ at the last step in more"
    r" than 95 % of runs.",
    words="Gradient descent from the manifold finds the decisive token.",
    hypotheses=(
        *RUN,
        Hypothesis(
            "the start lies on the manifold (start = manifold)", lambda s: s.start == "manifold"
        ),
        CONSTANT,
        *STABLE,
        ENOUGH,
    ),
    quick=run_setting(start="manifold", repeats=256),
    paper=run_setting(start="manifold", repeats=1000),
    rule=Convergence(share=0.95),
    control=Control(
        "starts uniform on the sphere, at the same lambda",
        lambda s: s.replace(start="sphere"),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.descent:run_panels", level=0.95),
    budget="repeats",
    needs=("single-location/exact-reduction", "single-location/manifold-invariant"),
    origin="our reading",
)
def manifold_convergence(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    last, shown = population_run(cells[0], seed, "single-location/manifold-convergence")
    arrived = last["oracle"] & (abs(last["kappa"]) > 0.95) & (abs(last["nu"]) > 0.95)
    return shown.assign(arrived=arrived).expand_dims("cell")


@claim(
    "single-location/schedule-run",
    source=PAPER,
    reference="Figure 3a",
    statement=r"From starts uniform on the sphere, with $\lambda_t = 1/(1 + 10^{-4}t)$ and $\alpha = 4\cdot10^{-3}$, descent"
    r" ends at the oracle in more than 80 % of runs.",
    words="With a sharpness that shrinks, nearly every random start finds the decisive token; a few end swapped.",
    hypotheses=RUN,
    quick=run_setting(schedule="inverse", lam=1.0, steps=90_000, repeats=256),
    paper=run_setting(schedule="inverse", lam=1.0, steps=120_000, repeats=1000),
    rule=Convergence(share=0.8),
    control=Control(
        "the same run at a small constant sharpness, lambda = 0.1",
        lambda s: s.replace(schedule="constant", lam=0.1, steps=20_000),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.descent:run_panels"),
    budget="repeats",
    needs=("single-location/exact-reduction",),
    origin="our reading",
)
def schedule_run(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    last, shown = population_run(cells[0], seed, "single-location/schedule-run")
    return shown.assign(arrived=last["oracle"], swapped=last["swapped"]).expand_dims("cell")


@claim(
    "single-location/large-lambda-stalls",
    source=PAPER,
    reference="appendix run, large constant lambda",
    statement=r"At constant $\lambda = 0.9 > \lambda_c$ descent does not find the oracle: in more than 90 % of runs $|\kappa|$"
    r" stalls below $\frac12$.",
    words="A gate that is too sharp gives no gradient, and beyond a threshold the manifold even repels.",
    hypotheses=(
        *RUN,
        CONSTANT,
        Hypothesis("lam > lambda_c", lambda s: s.lam > critical_lam(task_of(s))),
    ),
    quick=run_setting(lam=0.9, step_size=1e-3, steps=40_000, repeats=128),
    paper=run_setting(lam=0.9, step_size=1e-3, steps=120_000, repeats=300),
    rule=Convergence(share=0.9),
    control=Control(
        "the same run with lambda shrinking, which does find it",
        lambda s: s.replace(schedule="inverse"),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.descent:run_panels", level=0.5, told="|κ| stalls below"),
    budget="repeats",
    needs=(
        "single-location/exact-reduction",
        "single-location/critical-lambda",
        "single-location/corner-rate",
    ),
    origin="our reading",
)
def large_lambda_stalls(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    last, shown = population_run(cells[0], seed, "single-location/large-lambda-stalls")
    stalled = abs(last["kappa"]) < 0.5
    return shown.assign(arrived=stalled, oracle=last["oracle"]).expand_dims("cell")


@claim(
    "single-location/small-lambda-coin",
    source=PAPER,
    reference="appendix run, small constant lambda",
    statement=r"At constant $\lambda = 0.1$ a random start ends at the oracle and at the swapped point, where $k$ carries the"
    r" value and $v$ the location, with probability $\frac12$ each and nowhere else, to within $0.05$.",
    words="A soft gate cannot tell key from value: which of two mirror solutions is found is the toss of a coin.",
    hypotheses=(*RUN, CONSTANT, ENOUGH),
    quick=run_setting(steps=12_000, repeats=6000),
    paper=run_setting(repeats=10_000),
    rule=Approximation(margin=0.05, relative=False),
    control=Control(
        "five runs out of eight at the oracle and three at the swapped point",
        lambda e: e.assign(predicted=("outcome", [0.625, 0.375, 0.0])),
    ),
    figure=drawn_by(f"{FIGURES}.descent:run_panels"),
    budget="repeats",
    needs=("single-location/exact-reduction", "single-location/swapped-attractor"),
    origin="our reading",
)
def small_lambda_coin(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    last, shown = population_run(cells[0], seed, "single-location/small-lambda-coin")
    shares = np.array([last[name].mean() for name in ENDS])
    # With a share of 0 or 1 the error is that of the least that could have been seen.
    error = np.sqrt(np.maximum(shares * (1 - shares), 1 / cells[0].repeats) / cells[0].repeats)
    return (
        shown.assign(
            predicted=("outcome", [0.5, 0.5, 0.0]),
            measured=("outcome", shares),
            error=("outcome", error),
            arrived=last["oracle"],
            swapped=last["swapped"],
        )
        .expand_dims("cell")
        .assign_coords(outcome=list(ENDS))
    )


@claim(
    "single-location/penalty-cure",
    source="attlas",
    reference="penalty on the mean token",
    statement=r"Adding $5\,\langle v, E[\frac1L\sum_l X_l]\rangle^2 = 5 (m\theta/L)^2$ to the risk removes the swapped branch:"
    r" at $\lambda = 0.1$ more than 95 % of random starts end at the oracle.",
    words="A value that must not look at the average token cannot take the key's place.",
    hypotheses=(*RUN, Hypothesis("penalty >= 0", lambda s: s.penalty >= 0, defining=True)),
    quick=run_setting(penalty=5.0, repeats=256),
    paper=run_setting(penalty=5.0, repeats=2000),
    rule=Convergence(share=0.95),
    control=Control("no penalty", lambda s: s.replace(penalty=0.0), on="setting"),
    figure=drawn_by(f"{FIGURES}.descent:run_panels"),
    budget="repeats",
    needs=("single-location/small-lambda-coin",),
    origin="ours",
)
def penalty_cure(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    path, task, lam = run_once(cell, seed, "single-location/penalty-cure", penalty=cell.penalty)
    return panels(path, task, lam).assign(arrived=outcomes(path)["oracle"]).expand_dims("cell")


RECOMMENDED = Setting(
    dim=400,
    length=10,
    gamma=ROOT_HALF,
    noise=0.0,
    largest=3.0,
    step_size=1.5e-3,
    steps=10_000,
    published_steps=10_000,
    repeats=1200,
)


@claim(
    "single-location/recommended-schedule",
    source="attlas",
    reference="large start, stable step, best end",
    statement=r"From the same starts, $\lambda_t$ falling geometrically from $3$ to the oracle's best value with a step size"
    r" below the flip threshold takes the swapped branch ($|\eta| > |\nu|$ at the end) less often than the published"
    r" $\lambda_t = 1/(1 + 10^{-4}t)$, $\alpha = 4\cdot10^{-3}$, on which it is settled within 10,000 steps.",
    words="Start sharp to win the race against the swapped solution, end soft to let the key align.",
    hypotheses=(
        *TASK,
        Hypothesis("largest > 0", lambda s: s.largest > 0, defining=True),
        STEP,
        Hypothesis(
            "step_size is below the flip threshold",
            lambda s: s.step_size < stable_step(task_of(s), s.largest),
        ),
        Hypothesis(
            "published_steps >= 10,000: the branch is settled",
            lambda s: s.published_steps >= 10_000,
        ),
    ),
    quick=RECOMMENDED,
    paper=RECOMMENDED.replace(steps=120_000, published_steps=120_000, repeats=2000),
    rule=Order(),
    control=Control(
        "the same steps from a soft start, lambda = 0.3",
        lambda e: e.assign(lower=e["soft"], error=e["soft_error"]),
    ),
    figure=drawn_by(f"{FIGURES}.descent:schedule_comparison"),
    budget="repeats",
    needs=("single-location/schedule-run",),
    origin="ours",
)
def recommended_schedule(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(
        task, key_for(seed, "single-location/recommended-schedule", "start"), cell.repeats
    )
    ours, soft = (
        (GeometricDecay(largest, task.best_lam(), cell.steps), cell.step_size, cell.steps)
        for largest in (cell.largest, 0.3)
    )
    published = (InverseDecay(1.0, 1e-4), 4e-3, cell.published_steps)
    failed, risks = [], []
    for lam, step_size, steps in (ours, published, soft):
        last = descend(
            task, start, lam=lam, step_size=step_size, steps=steps, record_every=steps
        ).isel(step=-1)
        failed.append((abs(last["eta"]) > abs(last["nu"])).values)
        risks.append(last["risk"].values - task.noise**2)
    shares = np.mean(failed, axis=1)
    error, soft_error = (
        (failed[1].astype(float) - failed[i]).std(ddof=1) / np.sqrt(cell.repeats) for i in (0, 2)
    )
    axes = ("cell", "schedule", "repeat")
    return xr.Dataset(
        {
            "lower": ("cell", [shares[0]]),
            "upper": ("cell", [shares[1]]),
            "error": ("cell", [error]),
            "soft": ("cell", [shares[2]]),
            "soft_error": ("cell", [soft_error]),
            "failed": (axes, np.stack(failed[:2])[None]),
            "final_risk": (axes, np.stack(risks[:2])[None]),
        },
        coords={"schedule": ["recommended", "published"]},
    )
