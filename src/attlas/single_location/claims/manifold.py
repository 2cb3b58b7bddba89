"""Claims about the flow on the manifold and across it: fixed points, basins, stability, the critical sharpness."""

from collections.abc import Sequence

import numpy as np
import scipy
import xarray as xr

from attlas.claims.compat import (
    Agreement,
    Control,
    Convergence,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.single_location.claims.shared import (
    FIGURES,
    HEAD,
    PAPER,
    ROOT_HALF,
    STEP,
    TASK,
    task_of,
)
from attlas.single_location.descent import descend
from attlas.single_location.landscape import critical_lam, jacobian, transverse_matrix, velocity
from attlas.single_location.population import Overlaps, at_points, partials_of_risk
from attlas.single_location.task import SingleLocation

PLACES = {
    "origin": (0.0, 0.0),
    "(1, 1)": (1.0, 1.0),
    "(-1, -1)": (-1.0, -1.0),
    "(1, -1)": (1.0, -1.0),
    "(-1, 1)": (-1.0, 1.0),
}


def on_manifold(kappa: float, nu: float) -> Overlaps:
    return Overlaps(kappa, nu, 0.0, 0.0, 0.0)


@claim(
    "single-location/manifold-fixed-points",
    source=PAPER,
    reference="Figure 5",
    origin="our reading",
    statement=r"On the manifold the flow has the fixed points $(0,0)$, a saddle with rates $\frac12(-h \pm \sqrt{h^2+4c^2})$;"
    r" $\pm(1,1)$, which attract, and $\pm(1,-1)$, which repel, with rates $2\kappa R_\kappa$ and $2\nu R_\nu$, where"
    r" $c = \frac{4\gamma^2\lambda m}{\sqrt\pi D}$, $h = \frac{8\gamma^2\lambda^2m^2}{\pi D^2 E}$.",
    words="Five fixed points on the manifold: two good corners, two bad ones, and a saddle at which descent begins.",
    hypotheses=(*TASK, HEAD),
    quick=Setting(
        dim=(400, 400, 80),
        length=(10, 10, 4),
        gamma=(ROOT_HALF, ROOT_HALF, 1.2),
        noise=0.0,
        lam=(0.1, 0.5, 0.2),
    ),
    paper=Setting(
        dim=(400, 400, 80),
        length=(10, 10, 4),
        gamma=(ROOT_HALF, ROOT_HALF, 1.2),
        noise=0.0,
        lam=(0.1, 0.5, 0.2),
    ),
    rule=Agreement(rounding=1e-11),
    control=Control(
        "the curvature h at the saddle 0.1 % too large",
        lambda e: e.assign(predicted=e["with_wrong_h"]),
    ),
    figure=drawn_by(f"{FIGURES}.landscape:fixed_point_rates"),
    cells=together("dim", "length", "gamma", "lam"),
    needs=("single-location/manifold-invariant", "single-location/risk-gradient"),
)
def manifold_fixed_points(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    closed = {name: closed_rates(task, cell.lam, place) for name, place in PLACES.items()}
    wrong = {**closed, "origin": closed_rates(task, cell.lam, (0.0, 0.0), 1.001)}
    measured, speed = [], []
    for place in PLACES.values():
        point = on_manifold(*place)
        block = np.asarray(jacobian(task.constants, point, cell.lam))[:2, :2]
        measured.append(np.sort(np.linalg.eigvals(block).real))
        speed.append([float(abs(v)) for v in at_points(velocity, task.constants, point, cell.lam)])
    axes = ("cell", "place", "quantity")
    join = lambda rates, speeds: np.concatenate([np.array(rates), np.array(speeds)], axis=1)[None]  # noqa: E731
    return xr.Dataset(
        {
            "predicted": (axes, join(list(closed.values()), np.zeros((5, 5)))),
            "measured": (axes, join(measured, speed)),
            "with_wrong_h": (axes, join(list(wrong.values()), np.zeros((5, 5)))),
            "error": 0.0,
        },
        coords={
            "place": list(PLACES),
            "quantity": ["slow rate", "fast rate", *(f"speed in {n}" for n in Overlaps._fields)],
        },
    )


def closed_rates(
    task: SingleLocation, lam: float, place: tuple[float, float], scale: float = 1.0
) -> list[float]:
    """The two rates of the flow on the manifold at a fixed point, ascending, in closed form."""
    if place == (0.0, 0.0):
        s = lam * task.gamma
        c = 4 * task.gamma**2 * lam * task.m / np.sqrt(np.pi * (1 + 2 * s**2))
        h = (
            scale
            * 8
            * (task.gamma * lam * task.m) ** 2
            / (np.pi * (1 + 2 * s**2) * np.sqrt(1 + 4 * s**2))
        )
        return [(-h - np.sqrt(h**2 + 4 * c**2)) / 2, (-h + np.sqrt(h**2 + 4 * c**2)) / 2]
    gradient = at_points(partials_of_risk, task.constants, on_manifold(*place), lam)
    return sorted([2 * place[0] * float(gradient.kappa), 2 * place[1] * float(gradient.nu)])


def stable_curve(task: SingleLocation, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """The curve on the manifold that runs into the saddle, found by running the flow backwards from beside it.

    Returns kappa (ascending) and nu along it.
    """
    slow, fast = closed_rates(task, lam, (0.0, 0.0))
    c = 4 * task.gamma**2 * lam * task.m / np.sqrt(np.pi * (1 + 2 * (lam * task.gamma) ** 2))
    direction = np.array([slow, c]) / np.hypot(slow, c)

    def backwards(_: float, x: np.ndarray) -> np.ndarray:
        v = at_points(velocity, task.constants, on_manifold(*x), lam)
        return -np.array([v.kappa, v.nu])

    time = 80 / max(abs(slow), fast)
    half = scipy.integrate.solve_ivp(
        backwards,
        (0, time),
        1e-6 * direction,
        rtol=1e-9,
        atol=1e-12,
        t_eval=np.linspace(0, time, 1001),
    ).y
    curve = np.hstack([-half, half])  # the flow is odd
    return tuple(curve[:, np.argsort(curve[0])])


@claim(
    "single-location/manifold-basins",
    source=PAPER,
    reference="Theorem 5, Figure 5",
    origin="our reading",
    statement=r"On the manifold the stable curve of the saddle separates the basins of $(1,1)$ and $(-1,-1)$, and no other"
    r" point attracts: a start above it ends at $(1,1)$, one below it at $(-1,-1)$, in more than 99 % of a grid.",
    words="Which of the two mirror optima is found is decided by one curve through the saddle.",
    hypotheses=(*TASK, HEAD, STEP),
    quick=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=0.1,
        step_size=4e-3,
        steps=9_000,
        side=40,
    ),
    paper=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=0.1,
        step_size=4e-3,
        steps=20_000,
        side=100,
    ),
    rule=Convergence(share=0.99),
    control=Control(
        "the diagonal nu = -kappa in place of the curve",
        lambda e: e.assign(arrived=e["by_diagonal"]),
    ),
    figure=drawn_by(f"{FIGURES}.landscape:phase_portrait"),
    budget="side",
    needs=("single-location/manifold-fixed-points",),
)
def manifold_basins(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    # Jittered, so that no start lies on a symmetry line, and inside the square, whose edges are invariant.
    jitter = stream(key_for(seed, "single-location/manifold-basins", "grid")).random(
        (2, cell.side, cell.side)
    )
    lattice = np.stack(np.meshgrid(np.arange(cell.side), np.arange(cell.side), indexing="ij"))
    kappa, nu = (0.98 * (2 * (lattice + jitter) / cell.side - 1)).reshape(2, -1)
    zero = np.zeros_like(kappa)
    last = descend(
        task,
        Overlaps(kappa, nu, zero, zero, zero),
        lam=cell.lam,
        step_size=cell.step_size,
        steps=cell.steps,
        record_every=cell.steps,
    ).isel(step=-1)
    curve_kappa, curve_nu = stable_curve(task, cell.lam)
    above = nu > np.interp(kappa, curve_kappa, curve_nu)
    settled = (abs(last["kappa"].values) > 0.9) & (abs(last["nu"].values) > 0.9)
    sign = np.sign(last["kappa"].values) == np.sign(last["nu"].values)
    ends_up = last["nu"].values > 0
    field = at_points(velocity, task.constants, Overlaps(kappa, nu, zero, zero, zero), cell.lam)
    keep = np.linspace(0, len(curve_kappa) - 1, 200).astype(int)
    runs = ("cell", "repeat")
    return xr.Dataset(
        {
            "arrived": (runs, (settled & sign & (ends_up == above))[None]),
            "by_diagonal": (runs, (settled & sign & (ends_up == (nu > -kappa)))[None]),
            "kappa": (runs, kappa[None]),
            "nu": (runs, nu[None]),
            "ends_up": (runs, ends_up[None]),
            "velocity_kappa": (runs, field.kappa[None]),
            "velocity_nu": (runs, field.nu[None]),
            "curve_kappa": (("cell", "along"), curve_kappa[keep][None]),
            "curve_nu": (("cell", "along"), curve_nu[keep][None]),
        }
    )


EXACT = Setting(
    dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.05, 0.1, 0.2, 0.5, 0.9, 1.0, 2.0)
)


@claim(
    "single-location/transverse-stability",
    source="attlas",
    reference="stability across the manifold",
    statement=r"Near the manifold $x = (\theta, \eta, \rho)$ obeys $\dot x = -(BH + K)x$ with the metric $B$, the Hessian $H$ of"
    r" the risk and the drift $K$ of the flow along the manifold, all in closed form at every $(\kappa, \nu)$.",
    words="Whether a small step off the manifold grows or dies is the spectrum of a three by three matrix.",
    hypotheses=(*TASK, HEAD),
    quick=EXACT,
    paper=EXACT,
    rule=Agreement(rounding=1e-11),
    control=Control(
        "the drift along the manifold is left out", lambda e: e.assign(predicted=e["without_drift"])
    ),
    figure=drawn_by(f"{FIGURES}.landscape:transverse_spectrum"),
    cells=together("lam"),
    needs=("single-location/risk-gradient",),
    origin="ours",
)
def transverse_stability(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    places = [(0.0, 0.0), (0.3, 1.0), (0.6, 0.9), (1.0, 1.0)]
    closed = np.stack([transverse_matrix(task, *place, cell.lam) for place in places])
    automatic = np.stack(
        [-np.asarray(jacobian(task.constants, on_manifold(*p), cell.lam))[2:, 2:] for p in places]
    )
    axes = ("cell", "place", "row", "column")
    return xr.Dataset(
        {
            "predicted": (axes, closed[None]),
            "measured": (axes, automatic[None]),
            "without_drift": (
                axes,
                np.stack([closed_without_drift(task, *p, cell.lam) for p in places])[None],
            ),
            "error": 0.0,
            "rate": (("cell", "place", "row"), np.sort(np.linalg.eigvals(closed).real)[None]),
        },
        coords={"place": [str(place) for place in places]},
    )


def closed_without_drift(task: SingleLocation, kappa: float, nu: float, lam: float) -> np.ndarray:
    gradient = at_points(partials_of_risk, task.constants, on_manifold(kappa, nu), lam)
    r_k, r_n = float(gradient.kappa), float(gradient.nu)
    drift = np.array(
        [[-nu * r_n, 0, 0], [0, -kappa * r_k, 0], [r_k, r_n, -(kappa * r_k + nu * r_n)]]
    )
    return np.asarray(transverse_matrix(task, kappa, nu, lam)) - drift


def saturation(task: SingleLocation) -> float:
    r"""$\lambda_cm/D$ with $D^2 = 1 + 2\lambda_c^2\gamma^2$: how far the informative token lies in the gate's flat part."""
    lam = critical_lam(task)
    return float(lam * task.m / np.sqrt(1 + 2 * (lam * task.gamma) ** 2))


@claim(
    "single-location/critical-lambda",
    source="attlas",
    reference="threshold of the oracle's stability",
    statement=r"The oracle attracts across the manifold iff $\lambda < \lambda_c$ with $\sqrt{1+4\lambda_c^2} ="
    r" \frac{2(d + 2\gamma^2)}{d - 2\gamma^2(L-2)}$, once the gate has saturated, $\lambda_cm/D \ge 4.48$ with $\lambda_c \le 10$ and $\gamma \le 3$; $\lambda_c \to \frac{\sqrt3}2$ as $d \to \infty$.",
    words="Above a sharpness of about 0.87 the right answer is not even a local minimum.",
    hypotheses=(
        *TASK,
        Hypothesis(
            "dim > 2 gamma^2 (length - 2)",
            lambda s: s.dim > 2 * s.gamma**2 * (s.length - 2),
            defining=True,
        ),
        Hypothesis(
            "the gate has saturated: lam_c sqrt(dim / 2) >= 4.48 sqrt(1 + 2 lam_c^2 gamma^2), with lam_c <= 10 and gamma <= 3",
            lambda s: (
                saturation(task_of(s)) >= 4.48 and critical_lam(task_of(s)) <= 10 and s.gamma <= 3
            ),
        ),
    ),
    quick=Setting(
        dim=(400, 80, 1600, 400, 400, 100_000),
        length=(10, 10, 10, 40, 10, 10),
        gamma=(ROOT_HALF, ROOT_HALF, ROOT_HALF, ROOT_HALF, 1.0, ROOT_HALF),
        noise=0.0,
    ),
    paper=Setting(
        dim=(400, 80, 1600, 400, 400, 100_000),
        length=(10, 10, 10, 40, 10, 10),
        gamma=(ROOT_HALF, ROOT_HALF, ROOT_HALF, ROOT_HALF, 1.0, ROOT_HALF),
        noise=0.0,
    ),
    rule=Agreement(rounding=1e-6),
    control=Control(
        "the limit sqrt(3)/2 at every size",
        lambda e: e.assign(predicted=0 * e["predicted"] + 3**0.5 / 2),
    ),
    figure=drawn_by(f"{FIGURES}.landscape:critical_sharpness"),
    cells=together("dim", "length", "gamma"),
    needs=("single-location/transverse-stability",),
    origin="ours",
)
def critical_lambda(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    from scipy.optimize import brentq

    (cell,) = cells
    task = task_of(cell)

    def slowest(lam):
        return float(np.linalg.eigvals(transverse_matrix(task, 1.0, 1.0, lam)).real.min())

    formula = critical_lam(task)
    found = brentq(slowest, 0.8 * formula, 1.2 * formula, xtol=1e-13)
    return xr.Dataset(
        {"predicted": ("cell", [formula]), "measured": ("cell", [found]), "error": 0.0}
    )
