"""Claims about the solution in which key and value have changed places, and who ends there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy
import xarray as xr

from attlas.claims import (
    Agreement,
    Control,
    Convergence,
    Draws,
    Hypothesis,
    Order,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, Panels, agreement, greek, row
from attlas.single_location.claims import single_location
from attlas.single_location.claims.runs import takes_swapped
from attlas.single_location.claims.shared import (
    on_manifold,
    outcomes,
    paper_task,
    share_error,
    step_options,
    task_of,
)
from attlas.single_location.descent import descend, sphere_start
from attlas.single_location.gates import oracle_excess
from attlas.single_location.landscape import (
    critical_lam,
    escape_rates,
    stability,
    stable_step,
    swapped_point,
    velocity,
)
from attlas.single_location.population import Overlaps, at_points, risk
from attlas.single_location.task import SingleLocation


@single_location.claim(
    kind="training",
    reference="the spurious solution",
    origin="ours",
    statement=r"Where the swapped point attracts and the step is below the flip threshold"
    r" there, descent that leaves the origin towards $\eta$ ends at $\kappa = \nu = \rho = 0$,"
    r" $\eta = 1$, $\theta = \min\big(1, \frac{2\gamma^2\lambda}{\sqrt\pi D m"
    r" \zeta(0,\lambda\gamma)}\big)$, up to a common sign.",
    words="There is a second solution in which key and value have changed places, and it attracts.",
    hypotheses=(
        Hypothesis(
            "step_size is below the flip threshold at the swapped point",
            lambda s: s.step_size * -swapped_spectrum(s)[0] < 2,
        ),
        Hypothesis(
            "the swapped point attracts, and steps are enough: step_size * steps times its slowest"
            " rate is at least 20",
            lambda s: s.step_size * s.steps * -swapped_spectrum(s)[-1] >= 20,
        ),
    ),
    quick=paper_task(
        dim=(400, 400, 400, 80),
        lam=(1 / 13, 0.1, 0.3, 0.1),
        step_size=(4e-3, 4e-3, 2e-3, 1e-2),
        steps=40_000,
    ),
    paper=dict(steps=120_000),
    cells=together("dim", "lam", "step_size"),
    rule=Agreement(rounding=1e-7),
    control=Control(
        "theta too small by {size:.2g} of its value",
        lambda e, size: {"predicted": e.predicted * (1 - size * (e.overlap == "theta"))},
        size=1e-4,
    ),
    needs=("exact-reduction",),
)
def swapped_attractor(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    near_origin = [0.02 * np.asarray(x) for x in sphere_start(task, draws("start"), 1)]
    start = Overlaps(*near_origin)._replace(eta=np.array([0.3]), theta=np.array([0.1]))
    last = descend(task, start, **step_options(cell)).isel(repeat=0, step=-1)
    return {
        **on("overlap", predicted=np.array(swapped_point(task, cell.lam))),
        "measured": last[list(Overlaps._fields)].to_array("overlap"),
        "error": 0.0,
    }


@swapped_attractor.figure
def swapped_positions(evidence: xr.Dataset) -> Figure:
    shown, title = greek(evidence, "overlap"), "The swapped attractor: formula and end of descent"
    return agreement(shown, title, what="overlap", color="overlap")


def swapped_spectrum(cell: Setting) -> np.ndarray:
    """Real parts of the eigenvalues of the flow at the swapped point, ascending."""
    task = task_of(cell)
    return stability(task, Overlaps(*(float(x) for x in swapped_point(task, cell.lam))), cell.lam)


@single_location.claim(
    kind="two routes",
    reference="stability of the spurious solution",
    origin="ours",
    statement=r"At $L = 10$ and $\gamma^2 = \frac12$ the swapped point is a strict local minimum:"
    r" every eigenvalue of the flow there has a negative real part, for $\lambda$ from $0.03$ to"
    r" $0.85$ but for the one value at which $\theta$ reaches $1$, where one vanishes.",
    words="The swapped point is stable, not a saddle: descent that gets near it ends there.",
    hypotheses=(
        Hypothesis("0 < smallest < lam", lambda s: 0 < s.smallest < s.lam, defining=True),
        Hypothesis(
            "length = 10 and gamma^2 = 1/2: with more tokens or a wider one it loses stability"
            " earlier",
            lambda s: s.length == 10 and abs(s.gamma**2 - 0.5) < 1e-9,
        ),
        Hypothesis(
            "smallest >= 0.03 and lam <= 0.85", lambda s: s.smallest >= 0.03 and s.lam <= 0.85
        ),
    ),
    quick=paper_task(dim=(80, 400), smallest=0.03, lam=0.85, points=200),
    paper=dict(dim=(80, 400, 1600), points=1000),
    cells=together("dim"),
    budget="points",
    rule=Order(),
    control=Control("the saddle at the origin in its place", lambda e: {"lower": e.at_origin}),
    needs=("swapped-attractor",),
)
def swapped_minimum(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    lams = np.geomspace(cell.smallest, cell.lam, cell.points)
    places = np.stack(swapped_point(task, lams))

    def largest_rate(places: np.ndarray) -> np.ndarray:
        rows = np.vstack([places, lams]).T.tolist()
        return np.array([stability(task, Overlaps(*place), lam)[-1] for *place, lam in rows])

    lower, at_origin = largest_rate(places), largest_rate(0 * places)
    return {
        **on("point", lower=lower, at_origin=at_origin, sharpness=lams),
        "upper": 0.0,
        "error": 0.0,
    }


@swapped_minimum.figure
def largest_real_part(evidence: xr.Dataset) -> Figure:
    title, y = "The swapped point is a minimum", "largest real part of the spectrum"
    figure = Figure(evidence, title, x="λ", y=y, log="x", legend={"dim": "d"})
    figure.lines("sharpness", "lower", points=True, color="dim")
    return figure.rule(0, "above this it would be unstable")


@single_location.claim(
    kind="two routes",
    reference="risk of the spurious solution",
    origin="ours",
    statement=r"For $\lambda m \le 1.06$ and $\gamma \le \frac m8$ the swapped point has a lower"
    r" risk than the oracle at the same $\lambda$.",
    words="Where the gate is soft the swapped point has a lower risk than the oracle, so that a"
    " low risk alone does not show that the right solution was found.",
    hypotheses=(
        Hypothesis("lam sqrt(dim / 2) <= 1.06", lambda s: s.lam * task_of(s).m <= 1.06),
        Hypothesis(
            "gamma <= sqrt(dim / 2) / 8: beyond, the oracle wins earlier",
            lambda s: s.gamma <= task_of(s).m / 8,
        ),
    ),
    quick=paper_task(dim=(400, 400, 80, 80), lam=(0.0749, 0.0638, 0.1, 0.05)),
    cells=together("dim", "lam"),
    rule=Order(),
    control=Control(
        "a sharpness 30 % larger, where the oracle wins",
        setting=lambda s: {"lam": tuple(1.3 * x for x in s.lam)},
    ),
    needs=("swapped-attractor", "closed-form-risk"),
)
def swapped_beats_oracle(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    sharpness = np.geomspace(0.02, 0.5, 80)
    curves = risk(task, swapped_point(task, sharpness), sharpness), task.oracle_risk(sharpness)
    return {
        "lower": float(risk(task, swapped_point(task, cell.lam), cell.lam)),
        "upper": float(oracle_excess(task, cell.lam, "erf")) + cell.noise**2,
        "error": 0.0,
        **on("solution sharpness", curve=np.stack(curves)),
        "solution": ["swapped", "oracle"],
        "sharpness": sharpness,
    }


@swapped_beats_oracle.figure
def risks_of_both(evidence: xr.Dataset) -> Figure:
    title, note = "Oracle and swapped solution", "bars: where the claim compares them"
    shown = evidence.isel(cell=[0, -1])
    figure = Figure(shown, title, note, x="λ", y="risk", log="xy", legend={"dim": "d"})
    figure.lines("sharpness", "curve", color="solution", dash="dim")
    return figure.spans("lam", "lower", "upper", data=evidence, theory="solid")


@single_location.claim(
    kind="training",
    reference="how often a random start fails",
    origin="ours",
    statement=r"The probability that descent from a random start takes the swapped branch falls as"
    r" the constant sharpness grows ($\lambda = 0.1, 0.5, 1$ at $d = 400$), and at $\lambda = 1$ as"
    r" the dimension grows ($d = 40, 400$).",
    words="Random starts take the swapped branch less often at a larger constant sharpness, and"
    " in a higher dimension.",
    hypotheses=(
        Hypothesis(
            "length = 10 and gamma^2 = 1/2",
            lambda s: s.length == 10 and abs(s.gamma**2 - 0.5) < 1e-9,
        ),
        Hypothesis(
            "than_lam < lam <= 1 at than_dim = dim = 400, or than_dim < dim at than_lam = lam = 1",
            lambda s: (
                (s.than_lam < s.lam <= 1 and s.than_dim == s.dim == 400)
                or (s.than_dim < s.dim and s.than_lam == s.lam == 1)
            ),
        ),
    ),
    quick=paper_task(
        lam=(0.5, 1.0, 1.0),
        than_dim=(400, 400, 40),
        than_lam=(0.1, 0.5, 1.0),
        time=15.0,
        repeats=768,
    ),
    paper=dict(repeats=3000),
    cells=together("lam", "than_dim", "than_lam"),
    shape=("repeats", "time"),
    budget="repeats",
    rule=Order(),
    control=Control(
        "each time by more than a factor of {size:.2g}",
        lambda e, size: falls_by(e, size),
        size=2.5,
    ),
    needs=("swapped-attractor",),
)
def failure_falls(cells: Sequence[Setting], draws: Draws) -> Values:
    repeats, time = cells[0].repeats, cells[0].time
    pairs = [
        ((task_of(cell), cell.lam), (task_of(cell.at(dim=cell.than_dim)), cell.than_lam))
        for cell in cells
    ]  # the lower share first; pairs have sides in common, each of which descends once
    takes = {
        (task, lam): takes_swapped(
            descend_for(task, sphere_start(task, draws("start"), repeats), lam, time)[0]
        )
        for task, lam in dict.fromkeys(side for pair in pairs for side in pair)
    }
    lower, upper, error = np.transpose([paired_shares(takes[a], takes[b]) for a, b in pairs])
    return on("cell", lower=lower, upper=upper, error=error)


@failure_falls.figure
def failure_shares(evidence: xr.Dataset) -> Figure:
    pair = "λ={than_lam:g}, d={than_dim} → λ={lam:g}, d={dim}"
    title = "Failures fall with sharpness and with dimension"
    figure = Figure(evidence, title, x="", y="share of starts on the swapped branch", width=620)
    figure.spans(pair, "lower", "upper", width=3, opacity=0.3)
    return figure.points(pair, {"upper": "left of the arrow", "lower": "right of it"}, size=70)


def falls_by(evidence: xr.Dataset, factor: float) -> dict[str, xr.DataArray]:
    """The errors of the difference and of the multiple are added: they share their starts."""
    share = evidence["lower"]
    error = evidence["error"] + abs(factor - 1) * share_error(share, evidence["repeats"])
    return {"lower": factor * share, "error": error}


def descend_for(
    task: SingleLocation, start: Overlaps, lam: float, time: float, records: int = 1
) -> tuple[xr.Dataset, float]:
    """Descent for `time` at half the flip threshold's step size: the path, and the step size."""
    alpha = 0.5 * stable_step(task, lam)
    steps = round(time / alpha)
    every = max(1, steps // records)
    return descend(task, start, lam=lam, step_size=alpha, steps=steps, record_every=every), alpha


def paired_shares(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Means of two indicators on the same starts, and the standard error of their difference.

    One start is added on which they differ, so that complete agreement is not taken for certainty.
    """
    gap = np.append(b - a, 1.0)
    return float(a.mean()), float(b.mean()), float(gap.std(ddof=1) / np.sqrt(len(a)))


@single_location.claim(
    kind="training",
    reference="three ends of descent",
    origin="ours",
    statement=r"Descent at a constant $\lambda < \lambda_c$ from a random start ends, after a time"
    r" $T$, at the oracle, at the swapped point, or on its way along $\nu = \pm1$, where since"
    r" $|\nu| > 0.9999$ it has moved in $|\kappa|$ as far as the flow"
    r" $\dot\kappa = -(1-\kappa^2)R_\kappa(\kappa, 1)$ on the manifold, to 5 %: in more than 80 %"
    r" of runs at every $\lambda$ and $d$ tested, with ten tokens.",
    words="Descent from a random start finds the informative token, ends at the swapped point,"
    " or learns the value and then moves slowly along the manifold.",
    hypotheses=(
        Hypothesis("lam < lambda_c", lambda s: s.lam < critical_lam(task_of(s))),
        Hypothesis(
            "length = 10 and gamma^2 = 1/2",
            lambda s: s.length == 10 and abs(s.gamma**2 - 0.5) < 1e-9,
        ),
    ),
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
        "a flow along the manifold that goes {size:.0%} further",
        lambda e, size: {"arrived": e.oracle | e.swapped | follows(e.on_way, e.ratio, 1 + size)},
        size=0.1,
    ),
    needs=("swapped-attractor", "failure-falls"),
)
def basins(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    start = sphere_start(task, draws("start"), cell.repeats)
    path, alpha = descend_for(task, start, cell.lam, cell.time, records=100)
    ends = outcomes(path)[["oracle", "swapped"]]
    on_way, ratio = along_flow(task, path, cell.lam, alpha)
    sliding = follows(on_way, ratio)
    rates = escape_rates(task, cell.lam)
    flows = on("repeat", on_way=on_way, ratio=ratio, sliding=sliding)
    starts = on("repeat", nu_start=abs(start.nu), eta_start=abs(start.eta))
    arrived = ends["oracle"] | ends["swapped"] | sliding
    return ends.assign(flows | starts).assign(arrived=arrived, race=rates.oracle / rates.swapped)


@basins.figure
def basin_diagram(evidence: xr.Dataset) -> Panels:
    names = ["oracle", "swapped", "on its way", "none of these"]
    conditions = [evidence["oracle"], evidence["swapped"], evidence["sliding"]]
    end = xr.apply_ufunc(lambda *where: np.select(where, names[:3], names[3]), *conditions)
    shares = (end == xr.DataArray(names, {"end": names}, "end")).mean("repeat")
    bars = Figure(shares.to_dataset(name="share"), x="λ", y="share of starts", domain={"y": (0, 1)})
    bars.bars("{lam:g}", "share", color="end").facet("d = {dim}", width=150, height=170)
    one = evidence.assign(end=end).isel(
        cell=int(np.argmin(abs(shares.sel(end="oracle") - 0.5).values))
    )
    eta = np.geomspace(float(one["eta_start"].min()), float(one["eta_start"].max()), 40)
    race = pd.DataFrame({"eta_start": eta, "nu_start": eta ** float(one["race"])})
    starts = Figure(
        one.isel(repeat=slice(400)).sortby("end"),
        f"d = {int(one['dim'])}, λ = {float(one['lam']):g}: which starts end where",
        x="|ν| at the start",
        y="|η| at the start",
        log="xy",
        width=360,
        height=240,
    ).points("nu_start", "eta_start", color="end", size=22)
    inside = race[race["nu_start"] > float(one["nu_start"].min())]
    starts.lines("nu_start", "eta_start", data=inside, theory=True)
    title = "Where descent at a constant sharpness ends"
    note = "dashed: |ν| = |η|ʳ, r the ratio of the rates at which ν and η grow at the origin"
    return row(bars, starts, title=title, note=note, columns=1, shared="color")


def along_flow(
    task: SingleLocation, path: xr.Dataset, lam: float, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Which runs are on their way along nu = 1, and how far the flow takes each beside its run.

    A run is on its way if it came to |nu| > 0.9999 in the first four fifths of its time and is
    there still. The ratio is of the flow's move in |kappa| at nu = 1, since then, to the run's.
    """
    kappa, nu = abs(path["kappa"].values), abs(path["nu"].values)
    there = nu > 0.9999
    first, runs, steps = there.argmax(1), np.arange(len(kappa)), path["step"].values
    came, left = kappa[runs, first], (steps[-1] - steps[first]) * alpha
    moved = kappa[:, -1] - came
    on_way = there[:, -1] & (first < 0.8 * len(steps)) & (moved > 0)
    flow = flow_along_edge(task, came, lam, left) - came
    return on_way, np.divide(flow, moved, out=np.zeros_like(flow), where=on_way)


def follows(on_way: Any, ratio: Any, factor: float = 1.0) -> Any:
    """Whether a run moves as far as the flow, times `factor`, to 5 %."""
    return on_way & (abs(factor * ratio - 1) < 0.05)


def flow_along_edge(
    task: SingleLocation, kappa: np.ndarray, lam: float, time: np.ndarray
) -> np.ndarray:
    """Where the flow along nu = 1 takes each kappa in its time."""

    def speed(_: float, kappa: np.ndarray) -> np.ndarray:
        place = on_manifold(kappa, np.ones_like(kappa))
        return time * at_points(velocity, task.constants, place, lam).kappa

    return scipy.integrate.solve_ivp(speed, (0, 1), kappa, rtol=1e-6, atol=1e-10).y[:, -1]
