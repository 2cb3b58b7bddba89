"""Claims about the spurious solution in which key and value have changed places, and how often a start ends there."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from attlas.claims.compat import (
    Agreement,
    Approximation,
    Control,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.single_location.claims.shared import FIGURES, HEAD, ROOT_HALF, STEP, TASK, TIME, task_of
from attlas.single_location.descent import descend, gaussian_start, sphere_start
from attlas.single_location.landscape import escape_rates, stability, stable_step, swapped_point
from attlas.single_location.population import Overlaps, risk
from attlas.single_location.task import SingleLocation


def swapped_spectrum(cell: Setting) -> np.ndarray:
    """Real parts of the eigenvalues of the flow at the swapped point, ascending."""
    task = task_of(cell)
    return stability(task, Overlaps(*(float(x) for x in swapped_point(task, cell.lam))), cell.lam)


@claim(
    "single-location/swapped-attractor",
    source="attlas",
    reference="the spurious solution",
    statement=r"Where it attracts and the step is below the flip threshold there, descent that leaves the origin towards $\eta$ ends at $\kappa = \nu = \rho = 0$, $\eta = 1$,"
    r" $\theta = \min\big(1, \frac{2\gamma^2\lambda}{\sqrt\pi D m \zeta(0,\lambda\gamma)}\big)$, up to a common sign.",
    words="There is a second solution in which key and value have changed places, and it attracts.",
    hypotheses=(
        *TASK,
        HEAD,
        STEP,
        Hypothesis(
            "step_size is below the flip threshold at the swapped point",
            lambda s: s.step_size * -swapped_spectrum(s)[0] < 2,
        ),
        Hypothesis(
            "the swapped point attracts, and steps are enough: step_size * steps times its slowest rate is at least 20",
            lambda s: s.step_size * s.steps * -swapped_spectrum(s)[-1] >= 20,
        ),
    ),
    quick=Setting(
        dim=(400, 400, 400, 80),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=(1 / 13, 0.1, 0.3, 0.1),
        step_size=(4e-3, 4e-3, 2e-3, 1e-2),
        steps=40_000,
    ),
    paper=Setting(
        dim=(400, 400, 400, 80),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=(1 / 13, 0.1, 0.3, 0.1),
        step_size=(4e-3, 4e-3, 2e-3, 1e-2),
        steps=120_000,
    ),
    rule=Agreement(rounding=1e-7),
    control=Control(
        "the small-lambda value sqrt(pi) / (2 lambda m) of theta",
        lambda e: e.assign(predicted=e["small_lambda"]),
    ),
    figure=drawn_by(f"{FIGURES}.landscape:swapped_positions"),
    cells=together("dim", "lam", "step_size"),
    needs=("single-location/exact-reduction",),
    origin="ours",
)
def swapped_attractor(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/swapped-attractor", "start"), 1)
    leaning = Overlaps(*(0.02 * np.asarray(x) for x in start))._replace(
        eta=np.array([0.3]), theta=np.array([0.1])
    )
    path = descend(
        task,
        leaning,
        lam=cell.lam,
        step_size=cell.step_size,
        steps=cell.steps,
        record_every=cell.steps,
    )
    closed = swapped_point(task, cell.lam)
    small = closed._replace(theta=min(1.0, np.sqrt(np.pi) / (2 * cell.lam * task.m)))
    axes = ("cell", "overlap")
    return xr.Dataset(
        {
            "predicted": (axes, np.array([closed])),
            "measured": (axes, np.array([[float(path[name][0, -1]) for name in Overlaps._fields]])),
            "small_lambda": (axes, np.array([small])),
            "error": 0.0,
        },
        coords={"overlap": list(Overlaps._fields)},
    )


@claim(
    "single-location/swapped-minimum",
    source="attlas",
    reference="stability of the spurious solution",
    statement=r"At $L = 10$ and $\gamma^2 = \frac12$ the swapped point is a strict local minimum: every eigenvalue of the flow there"
    r" has a negative real part, for $\lambda$ from $0.03$ to $0.85$ but for the one value at which $\theta$ reaches $1$, where one"
    r" vanishes.",
    words="The wrong solution is stable, not a saddle: descent that gets there stays.",
    hypotheses=(
        *TASK,
        HEAD,
        Hypothesis("0 < smallest < lam", lambda s: 0 < s.smallest < s.lam, defining=True),
        Hypothesis(
            "length = 10 and gamma^2 = 1/2: with more tokens or a wider one it loses stability earlier",
            lambda s: s.length == 10 and abs(s.gamma**2 - 0.5) < 1e-9,
        ),
        Hypothesis(
            "smallest >= 0.03 and lam <= 0.85", lambda s: s.smallest >= 0.03 and s.lam <= 0.85
        ),
    ),
    quick=Setting(
        dim=(80, 400), length=10, gamma=ROOT_HALF, noise=0.0, smallest=0.03, lam=0.85, points=200
    ),
    paper=Setting(
        dim=(80, 400, 1600),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        smallest=0.03,
        lam=0.85,
        points=1000,
    ),
    rule=Order(),
    control=Control(
        "the saddle at the origin in its place", lambda e: e.assign(lower=e["at_origin"])
    ),
    figure=drawn_by(f"{FIGURES}.landscape:swapped_spectrum"),
    cells=together("dim"),
    budget="points",
    needs=("single-location/swapped-attractor",),
    origin="ours",
)
def swapped_minimum(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    lams = np.geomspace(cell.smallest, cell.lam, cell.points)
    places = np.stack(swapped_point(task, lams))
    spectrum, at_origin = (
        np.array(
            [
                stability(task, Overlaps(*x), lam)[-1]
                for *x, lam in np.vstack([points, lams]).T.tolist()
            ]
        )
        for points in (places, 0 * places)
    )
    axes = ("cell", "point")
    return xr.Dataset(
        {
            "lower": (axes, spectrum[None]),
            "upper": 0.0,
            "error": 0.0,
            "at_origin": (axes, at_origin[None]),
            "sharpness": (axes, lams[None]),
        }
    )


@claim(
    "single-location/swapped-beats-oracle",
    source="attlas",
    reference="risk of the spurious solution",
    statement=r"For $\lambda m \le 1.06$ and $\gamma \le \frac m8$ the swapped point has a lower risk than the oracle at the same $\lambda$;"
    r" which is the lower depends on $\lambda m$ and $\frac\gamma m$ alone.",
    words="Where the gate is soft the wrong solution is even the better one, so that risk alone does not tell them apart.",
    hypotheses=(
        *TASK,
        HEAD,
        Hypothesis("lam sqrt(dim / 2) <= 1.06", lambda s: s.lam * task_of(s).m <= 1.06),
        Hypothesis(
            "gamma <= sqrt(dim / 2) / 8: beyond, the oracle wins earlier",
            lambda s: s.gamma <= task_of(s).m / 8,
        ),
    ),
    quick=Setting(
        dim=(400, 400, 80, 80),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=(0.0749, 0.0638, 0.1, 0.05),
    ),
    paper=Setting(
        dim=(400, 400, 80, 80),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=(0.0749, 0.0638, 0.1, 0.05),
    ),
    rule=Order(),
    control=Control(
        "a sharpness 30 % larger, where the oracle wins",
        lambda s: s.at(lam=tuple(1.3 * x for x in s.lam)),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.landscape:swapped_risks"),
    cells=together("dim", "lam"),
    needs=("single-location/swapped-attractor", "single-location/closed-form-risk"),
    origin="ours",
)
def swapped_beats_oracle(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    sharpness = np.geomspace(0.02, 0.5, 80)
    curves = np.stack(
        [risk(task, swapped_point(task, sharpness), sharpness), task.oracle_risk(sharpness)]
    )
    return xr.Dataset(
        {
            "lower": ("cell", [float(risk(task, swapped_point(task, cell.lam), cell.lam))]),
            "upper": ("cell", [float(task.oracle_risk(cell.lam))]),
            "error": 0.0,
            "curve": (("cell", "solution", "sharpness"), curves[None]),
        },
        coords={"solution": ["swapped", "oracle"], "sharpness": sharpness},
    )


FAILURES = Setting(
    dim=400,
    length=10,
    gamma=ROOT_HALF,
    noise=0.0,
    lam=(0.5, 1.0, 1.0),
    than_dim=(400, 400, 40),
    than_lam=(0.1, 0.5, 1.0),
    time=15.0,
    repeats=768,
)


def to_two_fifths(evidence: xr.Dataset) -> xr.Dataset:
    """The errors of the difference and of the multiple are added: they share their starts."""
    share = evidence["lower"]
    alone = np.sqrt(np.maximum(share * (1 - share), 1 / evidence["repeats"]) / evidence["repeats"])
    return evidence.assign(lower=2.5 * share, error=evidence["error"] + 1.5 * alone)


@claim(
    "single-location/failure-falls",
    source="attlas",
    reference="how often a random start fails",
    statement=r"The probability that descent from a random start takes the swapped branch falls as the constant sharpness"
    r" grows ($\lambda = 0.1, 0.5, 1$ at $d = 400$), and at $\lambda = 1$ as the dimension grows ($d = 40, 400$).",
    words="A sharper beginning and a higher dimension both help the right solution to win the race from the origin.",
    hypotheses=(*TASK, HEAD, TIME),
    quick=FAILURES,
    paper=FAILURES.replace(repeats=3000),
    rule=Order(),
    control=Control("each time to less than two fifths", to_two_fifths),
    figure=drawn_by(f"{FIGURES}.landscape:failure_shares"),
    cells=together("lam", "than_dim", "than_lam"),
    shape=("repeats", "time"),
    budget="repeats",
    needs=("single-location/swapped-attractor",),
    origin="ours",
)
def failure_falls(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    key = key_for(seed, "single-location/failure-falls", "start")
    pairs = [
        ((task_of(cell), cell.lam), (task_of(cell.at(dim=cell.than_dim)), cell.than_lam))
        for cell in cells
    ]  # the lower share first
    (repeats,), (time,) = {cell.repeats for cell in cells}, {cell.time for cell in cells}
    takes = {
        (task, lam): takes_swapped(task, sphere_start(task, key, repeats), lam, time)
        for task, lam in dict.fromkeys(side for pair in pairs for side in pair)
    }
    lower, upper, error = zip(*(paired_shares(takes[a], takes[b]) for a, b in pairs), strict=True)
    races = [
        [rates.oracle / rates.swapped for rates in (escape_rates(*side) for side in pair)]
        for pair in pairs
    ]
    return xr.Dataset(
        {
            "lower": ("cell", list(lower)),
            "upper": ("cell", list(upper)),
            "error": ("cell", list(error)),
            "race": (("cell", "side"), races),
        },
        coords={"side": ["lower", "upper"]},
    )


def takes_swapped(task: SingleLocation, start: Overlaps, lam: float, time: float) -> np.ndarray:
    """Whether each start is on the swapped branch (|eta| > |nu|) after descent has run for `time`."""
    alpha = 0.5 * stable_step(task, lam)
    steps = round(time / alpha)
    last = descend(task, start, lam=lam, step_size=alpha, steps=steps, record_every=steps).isel(
        step=-1
    )
    return np.asarray(abs(last["eta"]) > abs(last["nu"]), float)


def paired_shares(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Means of two indicators on the same starts, and the standard error of their difference.

    One start is added on which they differ, so that complete agreement is not taken for certainty.
    """
    gap = np.append(b - a, 1.0)
    return float(a.mean()), float(b.mean()), float(gap.std(ddof=1) / np.sqrt(len(a)))


@claim(
    "single-location/basin-measure",
    source="attlas",
    reference="failure as the measure of a basin",
    statement=r"The share of failing starts is the measure of the swapped branch's basin under the Gaussian law of the first"
    r" overlaps, $\kappa_0, \nu_0, \theta_0, \eta_0, \rho_0 \sim N(0, \frac1d)$ independent, to within $0.025$.",
    words="How often descent fails is the size of a region in five dimensions, whatever else is in the start.",
    hypotheses=(*TASK, HEAD, TIME),
    quick=Setting(
        dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.5,), time=5.0, repeats=1536
    ),
    paper=Setting(
        dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.3, 0.5, 1.0), time=15.0, repeats=3000
    ),
    rule=Approximation(margin=0.025, relative=False),
    control=Control("a share larger by 0.05", lambda e: e.assign(predicted=e["predicted"] + 0.05)),
    figure=drawn_by(f"{FIGURES}.landscape:basin_shares"),
    cells=together("lam"),
    budget="repeats",
    needs=("single-location/failure-falls",),
    origin="ours",
)
def basin_measure(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    key = key_for(seed, "single-location/basin-measure", "start")
    sphere, gaussian = (
        sphere_start(task, key, cell.repeats),
        gaussian_start(task, key, cell.repeats),
    )
    takes = [takes_swapped(task, start, cell.lam, cell.time) for start in (gaussian, sphere)]
    predicted, measured, error = paired_shares(*takes)
    rates = escape_rates(task, cell.lam)
    law = (abs(gaussian.nu) < abs(gaussian.eta) ** (rates.oracle / rates.swapped)).mean()
    return xr.Dataset(
        {
            "predicted": ("cell", [predicted]),
            "measured": ("cell", [measured]),
            "error": ("cell", [error]),
            "leading_order": ("cell", [float(law)]),
        }
    )
