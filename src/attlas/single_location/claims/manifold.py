"""Claims about the flow on the manifold and across it: fixed points, basins, stability."""

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
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import ROOT_HALF, paper_task, step_options, task_of
from attlas.single_location.descent import descend
from attlas.single_location.landscape import critical_lam, jacobian, transverse_matrix, velocity
from attlas.single_location.population import Overlaps, at_points, partials_of_risk
from attlas.single_location.task import SingleLocation

CORNERS = {
    "(1, 1)": (1.0, 1.0),
    "(-1, -1)": (-1.0, -1.0),
    "(1, -1)": (1.0, -1.0),
    "(-1, 1)": (-1.0, 1.0),
}


@single_location.claim(
    kind="two routes",
    reference="Figure 5",
    origin="our reading",
    statement=r"On the manifold the flow has the fixed points $(0,0)$, a saddle with rates"
    r" $\frac12(-h \pm \sqrt{h^2+4c^2})$; $\pm(1,1)$, which attract, and $\pm(1,-1)$, which repel,"
    r" with rates $2\kappa R_\kappa$ and $2\nu R_\nu$, where"
    r" $c = \frac{4\gamma^2\lambda m}{\sqrt\pi D}$, $h = \frac{8\gamma^2\lambda^2m^2}{\pi D^2 E}$.",
    words="Five fixed points on the manifold: two good corners, two bad ones, and a saddle at which"
    " descent begins.",
    quick=Setting(
        dim=(400, 400, 80),
        length=(10, 10, 4),
        gamma=(ROOT_HALF, ROOT_HALF, 1.2),
        noise=0.0,
        lam=(0.1, 0.5, 0.2),
    ),
    cells=together("dim", "length", "gamma", "lam"),
    rule=Agreement(rounding=1e-11),
    control=Control(
        "the curvature h at the saddle 0.1 % too large", lambda e: {"predicted": e.with_wrong_h}
    ),
    needs=("manifold-invariant",),
)
def manifold_fixed_points(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    c, h = saddle_constants(task, cell.lam)
    corners = [corner_rates(task, cell.lam, *place) for place in CORNERS.values()]
    measured = []
    for place in ((0.0, 0.0), *CORNERS.values()):
        point = on_manifold(*place)
        block = np.asarray(jacobian(task.constants, point, cell.lam))[:2, :2]
        speed = np.abs(at_points(velocity, task.constants, point, cell.lam))
        measured.append([*np.sort(np.linalg.eigvals(block).real), *speed])
    rest = ((0, 0), (0, len(Overlaps._fields)))  # nothing moves at a fixed point
    return {
        **on(
            "place quantity",
            predicted=np.pad([saddle_rates(c, h), *corners], rest),
            measured=np.array(measured),
            with_wrong_h=np.pad([saddle_rates(c, 1.001 * h), *corners], rest),
        ),
        "error": 0.0,
        "place": ["origin", *CORNERS],
        "quantity": ["slow rate", "fast rate", *(f"speed in {n}" for n in Overlaps._fields)],
    }


@manifold_fixed_points.figure
def rates_at_fixed_points(evidence: xr.Dataset) -> Figure:
    rates = evidence.sel(quantity=["slow rate", "fast rate"])
    return (
        Figure(
            rates.assign(kind=("place", ["saddle", *["corners"] * 4])),
            "Fixed points on the manifold",
            "ticks: closed form; points: automatic differentiation; below 0 attracts",
            x="fixed point (κ, ν)",
            y="rate of the flow",
        )
        .ticks("place", "predicted", size=36)
        .points("place", "measured", color="λ={lam:g}, d={dim}")
        .rule(0)
        .facet("kind", independent="xy")
    )


def on_manifold(kappa: Any, nu: Any) -> Overlaps:
    zero = np.zeros_like(kappa)
    return Overlaps(kappa, nu, zero, zero, zero)


def saddle_constants(task: SingleLocation, lam: float) -> tuple[float, float]:
    """The coupling c and the curvature h of the flow at the origin of the manifold."""
    s = lam * task.gamma
    c = 4 * task.gamma**2 * lam * task.m / np.sqrt(np.pi * (1 + 2 * s**2))
    h = 8 * (s * task.m) ** 2 / (np.pi * (1 + 2 * s**2) * np.sqrt(1 + 4 * s**2))
    return float(c), float(h)


def saddle_rates(c: float, h: float) -> list[float]:
    root = np.sqrt(h**2 + 4 * c**2)
    return [(-h - root) / 2, (-h + root) / 2]


def corner_rates(task: SingleLocation, lam: float, kappa: float, nu: float) -> list[float]:
    """The two rates of the flow on the manifold at one of its corners, ascending."""
    gradient = at_points(partials_of_risk, task.constants, on_manifold(kappa, nu), lam)
    return sorted([2 * kappa * float(gradient.kappa), 2 * nu * float(gradient.nu)])


@single_location.claim(
    kind="training",
    reference="Theorem 5, Figure 5",
    origin="our reading",
    statement=r"On the manifold the stable curve of the saddle separates the basins of $(1,1)$ and"
    r" $(-1,-1)$, and no other point attracts: a start above it ends at $(1,1)$, one below it at"
    r" $(-1,-1)$, in more than 99 % of a grid.",
    words="Which of the two mirror optima is found is decided by one curve through the saddle.",
    quick=paper_task(lam=0.1, step_size=4e-3, steps=9_000, side=40),
    paper=dict(steps=20_000, side=100),
    budget="side",
    rule=Convergence(share=0.99),
    control=Control(
        "the diagonal nu = -kappa in place of the curve", lambda e: {"arrived": e.by_diagonal}
    ),
    needs=("manifold-fixed-points",),
)
def manifold_basins(cell: Setting, draws: Draws) -> Values:
    task, side = task_of(cell), cell.side
    # Jittered, so that no start lies on a symmetry line; inside the edges, which are invariant.
    jitter = draws.stream("grid").random((2, side, side))
    lattice = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"))
    kappa, nu = (0.98 * (2 * (lattice + jitter) / side - 1)).reshape(2, -1)
    start = on_manifold(kappa, nu)
    last = descend(task, start, **step_options(cell)).isel(step=-1)
    end_kappa, end_nu = last["kappa"].values, last["nu"].values
    at_optimum = (abs(end_kappa) > 0.9) & (abs(end_nu) > 0.9) & (end_kappa * end_nu > 0)
    ends_up = end_nu > 0
    curve_kappa, curve_nu = stable_curve(task, cell.lam)
    above = nu > np.interp(kappa, curve_kappa, curve_nu)
    field = at_points(velocity, task.constants, start, cell.lam)
    shown = np.linspace(0, len(curve_kappa) - 1, 200).astype(int)
    return {
        **on(
            "repeat",
            arrived=at_optimum & (ends_up == above),
            by_diagonal=at_optimum & (ends_up == (nu > -kappa)),
            kappa=kappa,
            nu=nu,
            ends_up=ends_up,
            velocity_kappa=field.kappa,
            velocity_nu=field.nu,
        ),
        **on("along", curve_kappa=curve_kappa[shown], curve_nu=curve_nu[shown]),
    }


@manifold_basins.figure
def phase_portrait(evidence: xr.Dataset) -> Any:
    """The paper's Figure 5: field, fixed points by type, the stable curve of the saddle, basins."""
    import altair as alt

    one = evidence.isel(cell=0)
    frame = one[["kappa", "nu", "velocity_kappa", "velocity_nu", "ends_up"]].to_dataframe()
    frame["ends at"] = np.where(frame["ends_up"], "(1, 1)", "(−1, −1)")
    frame["angle"] = np.degrees(np.arctan2(frame["velocity_kappa"], frame["velocity_nu"]))
    frame["speed"] = np.hypot(frame["velocity_kappa"], frame["velocity_nu"])
    curve = pd.DataFrame({"kappa": one["curve_kappa"].values, "nu": one["curve_nu"].values})
    types = ["saddle", "minimum", "minimum", "maximum", "maximum"]
    points = pd.DataFrame([(0, 0), *CORNERS.values()], columns=["kappa", "nu"]).assign(type=types)
    figure = (
        Figure(
            frame.iloc[:: max(1, len(frame) // 500)].round(4),
            "The flow on the manifold",
            "line: the stable curve of the saddle, which separates the basins",
            x="κ = ⟨k, k*⟩",
            y="ν = ⟨v, v*⟩",
            domain={"x": (-1, 1), "y": (-1, 1)},
            legend={"type": "fixed point"},
            width=420,
            height=420,
        )
        .points("kappa", "nu", color="ends at", size=150, opacity=0.25)
        .lines("kappa", "nu", data=curve, theory="solid", order="kappa")
        .points("kappa", "nu", data=points, shape="type", size=160, ink="#009E73")
    )
    arrows = (
        alt.Chart(frame.iloc[:: max(1, len(frame) // 250)].round(4))
        .mark_point(shape="wedge", filled=True, style="theory-solid")
        .encode(
            x="kappa:Q",
            y="nu:Q",
            angle=alt.Angle("angle:Q", scale=alt.Scale(domain=[0, 360], range=[0, 360])),
            size=alt.Size("speed:Q", title="speed", scale=alt.Scale(type="log", range=[30, 260])),
        )
    )
    figure.layers.insert(1, lambda: arrows)
    return figure


def stable_curve(task: SingleLocation, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """The curve on the manifold that runs into the saddle: kappa (ascending) and nu along it.

    Found by running the flow backwards from beside the saddle.
    """
    c, h = saddle_constants(task, lam)
    slow, fast = saddle_rates(c, h)
    direction = np.array([slow, c]) / np.hypot(slow, c)

    def backwards(_: float, x: np.ndarray) -> np.ndarray:
        v = at_points(velocity, task.constants, on_manifold(*x), lam)
        return -np.array([v.kappa, v.nu])

    times = np.linspace(0, 80 / max(abs(slow), fast), 1001)
    half = scipy.integrate.solve_ivp(
        backwards, (0, times[-1]), 1e-6 * direction, rtol=1e-9, atol=1e-12, t_eval=times
    ).y
    curve = np.hstack([-half, half])  # the flow is odd
    return tuple(curve[:, np.argsort(curve[0])])


@single_location.claim(
    kind="two routes",
    reference="stability across the manifold",
    origin="ours",
    statement=r"Near the manifold $x = (\theta, \eta, \rho)$ obeys $\dot x = -(BH + K)x$ with the"
    r" metric $B$, the Hessian $H$ of the risk and the drift $K$ of the flow along the manifold,"
    r" all in closed form at every $(\kappa, \nu)$.",
    words="Whether a small step off the manifold grows or dies is the spectrum of a three by three"
    " matrix.",
    quick=paper_task(lam=(0.05, 0.1, 0.2, 0.5, 0.9, 1.0, 2.0)),
    cells=together("lam"),
    rule=Agreement(rounding=1e-11),
    control=Control(
        "the drift along the manifold is left out", lambda e: {"predicted": e.without_drift}
    ),
)
def transverse_stability(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    places = [(0.0, 0.0), (0.3, 1.0), (0.6, 0.9), (1.0, 1.0)]
    closed = np.stack([transverse_matrix(task, *place, cell.lam) for place in places])
    drift = np.stack([drift_matrix(task, *place, cell.lam) for place in places])
    automatic = [jacobian(task.constants, on_manifold(*place), cell.lam) for place in places]
    return {
        **on(
            "place row column",
            predicted=closed,
            measured=-np.stack(automatic)[:, 2:, 2:],
            without_drift=closed - drift,
        ),
        **on("place row", rate=np.sort(np.linalg.eigvals(closed).real)),
        "error": 0.0,
        "place": [str(place) for place in places],
    }


@transverse_stability.figure
def slowest_decay(evidence: xr.Dataset) -> Figure:
    return (
        Figure(
            evidence.isel(row=0),
            "Stability across the manifold",
            "below 0 the manifold repels",
            x="λ",
            y="slowest decay off the manifold",
            log="x",
            legend={"place": "(κ, ν)"},
        )
        .lines("lam", "rate", points=True, color="place")
        .rule(0)
    )


def drift_matrix(task: SingleLocation, kappa: float, nu: float, lam: float) -> np.ndarray:
    """The part K of the transverse matrix that the flow along the manifold contributes."""
    gradient = at_points(partials_of_risk, task.constants, on_manifold(kappa, nu), lam)
    r_k, r_n = float(gradient.kappa), float(gradient.nu)
    return np.array(
        [[-nu * r_n, 0, 0], [0, -kappa * r_k, 0], [r_k, r_n, -(kappa * r_k + nu * r_n)]]
    )


@single_location.claim(
    kind="two routes",
    reference="threshold of the oracle's stability",
    origin="ours",
    statement=r"The oracle attracts across the manifold iff $\lambda < \lambda_c$ with"
    r" $\sqrt{1+4\lambda_c^2} = \frac{2(d + 2\gamma^2)}{d - 2\gamma^2(L-2)}$, once the gate has"
    r" saturated, $\lambda_cm/D \ge 4.48$ with $\lambda_c \le 10$ and $\gamma \le 3$;"
    r" $\lambda_c \to \frac{\sqrt3}2$ as $d \to \infty$.",
    words="Above a sharpness of about 0.87 the right answer is not even a local minimum.",
    hypotheses=(
        Hypothesis(
            "dim > 2 gamma^2 (length - 2)",
            lambda s: s.dim > 2 * s.gamma**2 * (s.length - 2),
            defining=True,
        ),
        Hypothesis(
            "the gate has saturated: lam_c sqrt(dim / 2) >= 4.48 sqrt(1 + 2 lam_c^2 gamma^2), with"
            " lam_c <= 10 and gamma <= 3",
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
    cells=together("dim", "length", "gamma"),
    rule=Agreement(rounding=1e-6),
    control=Control(
        "the limit sqrt(3)/2 at every size", lambda e: {"predicted": 0 * e.predicted + 3**0.5 / 2}
    ),
    needs=("transverse-stability",),
)
def critical_lambda(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)

    def slowest(lam: float) -> float:
        return float(np.linalg.eigvals(transverse_matrix(task, 1.0, 1.0, lam)).real.min())

    formula = critical_lam(task)
    found = scipy.optimize.brentq(slowest, 0.8 * formula, 1.2 * formula, xtol=1e-13)
    return {"predicted": formula, "measured": found, "error": 0.0}


@critical_lambda.figure
def critical_sharpness(evidence: xr.Dataset) -> Figure:
    task = "d={dim:,}, L={length}, γ={gamma:.2g}"
    return (
        Figure(
            evidence,
            "Where the oracle stops attracting",
            "ticks: formula; points: zero of the smallest eigenvalue",
            x="critical λ",
            y="",
            zero="-x",
            height=200,
        )
        .ticks("predicted", task, size=18)
        .points("measured", task)
        .rule(3**0.5 / 2, "√3/2", axis="x")
    )


def saturation(task: SingleLocation) -> float:
    """lam_c m / D: how far in the gate's flat part the informative token lies at lam_c."""
    lam = critical_lam(task)
    return float(lam * task.m / np.sqrt(1 + 2 * (lam * task.gamma) ** 2))
