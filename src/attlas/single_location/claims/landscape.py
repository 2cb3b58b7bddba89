"""Claims about the landscape: fixed points and their types, stability across the manifold, the swapped attractor."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from attlas.claims import Control, Hypothesis, Setting, claim, drawn_by, key_for, together
from attlas.scan import iterate
from attlas.single_location.claims.shared import FIGURES, HEAD, PAPER, ROOT_HALF, STEP, TASK, TIME, task_of
from attlas.single_location.descent import descend, gaussian_start, sphere_start
from attlas.single_location.landscape import (
    corner_rate,
    critical_lam,
    escape_rates,
    jacobian,
    stable_step,
    swapped_point,
    transverse_matrix,
    velocity,
)
from attlas.single_location.population import Overlaps, partials_of_risk, risk
from attlas.single_location.schedules import InverseDecay
from attlas.single_location.task import Constants, SingleLocation
from attlas.statistics import Agreement, Approximation, Convergence, Order, Rate

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
    statement=r"On the manifold the flow has the fixed points $(0,0)$, a saddle with rates $\frac12(-h \pm \sqrt{h^2+4c^2})$;"
    r" $\pm(1,1)$, which attract, and $\pm(1,-1)$, which repel, with rates $2\kappa R_\kappa$ and $2\nu R_\nu$, where"
    r" $c = \frac{4\gamma^2\lambda m}{\sqrt\pi D}$, $h = \frac{8\gamma^2\lambda^2m^2}{\pi D^2 E}$.",
    words="Five fixed points on the manifold: two good corners, two bad ones, and a saddle at which descent begins.",
    hypotheses=(*TASK, HEAD),
    quick=Setting(
        dim=(400, 400, 80), length=(10, 10, 4), gamma=(ROOT_HALF, ROOT_HALF, 1.2), noise=0.0, lam=(0.1, 0.5, 0.2)
    ),
    paper=Setting(
        dim=(400, 400, 80), length=(10, 10, 4), gamma=(ROOT_HALF, ROOT_HALF, 1.2), noise=0.0, lam=(0.1, 0.5, 0.2)
    ),
    rule=Agreement(rounding=1e-11),
    control=Control("the curvature h at the saddle 0.1 % too large", lambda e: e.assign(predicted=e["with_wrong_h"])),
    figure=drawn_by(f"{FIGURES}:fixed_point_rates"),
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
        speed.append([float(abs(v)) for v in velocity(task.constants, point, cell.lam)])
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


def closed_rates(task: SingleLocation, lam: float, place: tuple[float, float], scale: float = 1.0) -> list[float]:
    """The two rates of the flow on the manifold at a fixed point, ascending, in closed form."""
    if place == (0.0, 0.0):
        s = lam * task.gamma
        c = 4 * task.gamma**2 * lam * task.m / np.sqrt(np.pi * (1 + 2 * s**2))
        h = scale * 8 * (task.gamma * lam * task.m) ** 2 / (np.pi * (1 + 2 * s**2) * np.sqrt(1 + 4 * s**2))
        return [(-h - np.sqrt(h**2 + 4 * c**2)) / 2, (-h + np.sqrt(h**2 + 4 * c**2)) / 2]
    gradient = partials_of_risk(task.constants, on_manifold(*place), lam)
    return sorted([2 * place[0] * float(gradient.kappa), 2 * place[1] * float(gradient.nu)])


def step_flow(t: Array, x: tuple[Array, Array], args: tuple[Constants, Array, Array]) -> tuple[Array, Array]:
    """One classical Runge-Kutta step of the flow on the manifold; a negative step size runs it backwards."""
    constants, lam, h = args

    def field(x: tuple[Array, Array]) -> tuple[Array, Array]:
        v = velocity(constants, Overlaps(x[0], x[1], *(jnp.zeros_like(x[0]),) * 3), lam)
        return v.kappa, v.nu

    def ahead(x: tuple[Array, Array], v: tuple[Array, Array], h: Array) -> tuple[Array, Array]:
        return x[0] + h * v[0], x[1] + h * v[1]

    a = field(x)
    b = field(ahead(x, a, h / 2))
    c = field(ahead(x, b, h / 2))
    d = field(ahead(x, c, h))
    mean = tuple((a[i] + 2 * b[i] + 2 * c[i] + d[i]) / 6 for i in range(2))
    return ahead(x, mean, h)  # type: ignore[arg-type]


def observe_place(t: Array, x: tuple[Array, Array], args: tuple[Constants, Array, Array]) -> dict[str, Array]:
    return {"kappa": x[0], "nu": x[1]}


def stable_curve(task: SingleLocation, lam: float, steps: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """The curve on the manifold that runs into the saddle, found by running the flow backwards from beside it.

    Returns kappa (ascending) and nu along it.
    """
    slow, fast = closed_rates(task, lam, (0.0, 0.0))
    c = 4 * task.gamma**2 * lam * task.m / np.sqrt(np.pi * (1 + 2 * (lam * task.gamma) ** 2))
    direction = np.array([slow, c]) / np.hypot(slow, c)
    beside = 1e-6 * jnp.array([direction, -direction]).T
    args = (task.constants, jnp.asarray(lam), jnp.asarray(-0.02 / max(abs(slow), fast)))
    path = iterate(step_flow, observe_place, (beside[0], beside[1]), args, steps=steps, record_every=4)
    kappa, nu = (np.concatenate([path.observed[n][::-1, 0], path.observed[n][:, 1]]) for n in ("kappa", "nu"))
    order = np.argsort(kappa)
    return kappa[order], nu[order]


@claim(
    "single-location/manifold-basins",
    source=PAPER,
    reference="Theorem 5, Figure 5",
    statement=r"On the manifold the stable curve of the saddle separates the basins of $(1,1)$ and $(-1,-1)$, and no other"
    r" point attracts: a start above it ends at $(1,1)$, one below it at $(-1,-1)$, in more than 99 % of a grid.",
    words="Which of the two mirror optima is found is decided by one curve through the saddle.",
    hypotheses=(*TASK, HEAD, STEP),
    quick=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=0.1, step_size=4e-3, steps=12_000, side=40),
    paper=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=0.1, step_size=4e-3, steps=20_000, side=100),
    rule=Convergence(share=0.99),
    control=Control("the diagonal nu = -kappa in place of the curve", lambda e: e.assign(arrived=e["by_diagonal"])),
    figure=drawn_by(f"{FIGURES}:phase_portrait"),
    budget="side",
    needs=("single-location/manifold-fixed-points",),
)
def manifold_basins(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    # Jittered, so that no start lies on a symmetry line, and inside the square, whose edges are invariant.
    jitter = jax.random.uniform(key_for(seed, "single-location/manifold-basins", "grid"), (2, cell.side, cell.side))
    lattice = np.stack(np.meshgrid(np.arange(cell.side), np.arange(cell.side), indexing="ij"))
    kappa, nu = (0.98 * (2 * (lattice + np.asarray(jitter)) / cell.side - 1)).reshape(2, -1)
    zero = np.zeros_like(kappa)
    last = descend(
        task, Overlaps(kappa, nu, zero, zero, zero), lam=cell.lam, step_size=cell.step_size, steps=cell.steps,
        record_every=cell.steps,
    ).isel(step=-1)  # fmt: skip
    curve_kappa, curve_nu = stable_curve(task, cell.lam)
    above = nu > np.interp(kappa, curve_kappa, curve_nu)
    settled = (abs(last["kappa"].values) > 0.9) & (abs(last["nu"].values) > 0.9)
    sign = np.sign(last["kappa"].values) == np.sign(last["nu"].values)
    ends_up = last["nu"].values > 0
    field = velocity(task.constants, Overlaps(kappa, nu, zero, zero, zero), cell.lam)
    keep = np.linspace(0, len(curve_kappa) - 1, 200).astype(int)
    runs = ("cell", "repeat")
    return xr.Dataset(
        {
            "arrived": (runs, (settled & sign & (ends_up == above))[None]),
            "by_diagonal": (runs, (settled & sign & (ends_up == (nu > -kappa)))[None]),
            "kappa": (runs, kappa[None]),
            "nu": (runs, nu[None]),
            "ends_up": (runs, ends_up[None]),
            "velocity_kappa": (runs, np.asarray(field.kappa)[None]),
            "velocity_nu": (runs, np.asarray(field.nu)[None]),
            "curve_kappa": (("cell", "along"), curve_kappa[keep][None]),
            "curve_nu": (("cell", "along"), curve_nu[keep][None]),
        }
    )


# --- across the manifold --------------------------------------------------------------------------------------------

EXACT = Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.05, 0.1, 0.2, 0.5, 0.9, 1.0, 2.0))


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
    control=Control("the drift along the manifold is left out", lambda e: e.assign(predicted=e["without_drift"])),
    figure=drawn_by(f"{FIGURES}:transverse_spectrum"),
    cells=together("lam"),
    needs=("single-location/risk-gradient",),
    origin="ours",
)
def transverse_stability(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    places = [(0.0, 0.0), (0.3, 1.0), (0.6, 0.9), (1.0, 1.0)]
    closed = np.stack([transverse_matrix(task, *place, cell.lam) for place in places])
    automatic = np.stack([-np.asarray(jacobian(task.constants, on_manifold(*p), cell.lam))[2:, 2:] for p in places])
    axes = ("cell", "place", "row", "column")
    return xr.Dataset(
        {
            "predicted": (axes, closed[None]),
            "measured": (axes, automatic[None]),
            "without_drift": (axes, np.stack([closed_without_drift(task, *p, cell.lam) for p in places])[None]),
            "error": 0.0,
            "rate": (("cell", "place", "row"), np.sort(np.linalg.eigvals(closed).real)[None]),
        },
        coords={"place": [str(place) for place in places]},
    )


def closed_without_drift(task: SingleLocation, kappa: float, nu: float, lam: float) -> np.ndarray:
    gradient = partials_of_risk(task.constants, on_manifold(kappa, nu), lam)
    r_k, r_n = float(gradient.kappa), float(gradient.nu)
    drift = np.array([[-nu * r_n, 0, 0], [0, -kappa * r_k, 0], [r_k, r_n, -(kappa * r_k + nu * r_n)]])
    return np.asarray(transverse_matrix(task, kappa, nu, lam)) - drift


@claim(
    "single-location/critical-lambda",
    source="attlas",
    reference="threshold of the oracle's stability",
    statement=r"The oracle attracts across the manifold iff $\lambda < \lambda_c$ with $\sqrt{1+4\lambda_c^2} ="
    r" \frac{2(d + 2\gamma^2)}{d - 2\gamma^2(L-2)}$, once the gate has saturated; $\lambda_c \to \frac{\sqrt3}2$ as $d \to \infty$.",
    words="Above a sharpness of about 0.87 the right answer is not even a local minimum.",
    hypotheses=(
        *TASK,
        Hypothesis("dim > 2 gamma^2 (length - 2)", lambda s: s.dim > 2 * s.gamma**2 * (s.length - 2), defining=True),
        Hypothesis("the gate has saturated: dim >= 80", lambda s: s.dim >= 80),
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
    control=Control("the limit sqrt(3)/2 at every size", lambda e: e.assign(predicted=0 * e["predicted"] + 3**0.5 / 2)),
    figure=drawn_by(f"{FIGURES}:critical_sharpness"),
    cells=together("dim", "length", "gamma"),
    needs=("single-location/transverse-stability",),
    origin="ours",
)
def critical_lambda(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    from scipy.optimize import brentq

    (cell,) = cells
    task = task_of(cell)
    slowest = lambda lam: float(np.linalg.eigvals(transverse_matrix(task, 1.0, 1.0, lam)).real.min())  # noqa: E731
    formula = critical_lam(task)
    found = brentq(slowest, 0.8 * formula, 1.2 * formula, xtol=1e-13)
    return xr.Dataset(
        {
            "predicted": ("cell", [formula]),
            "measured": ("cell", [found]),
            "error": 0.0,
        }
    )


# --- the swapped attractor ------------------------------------------------------------------------------------------


@claim(
    "single-location/swapped-attractor",
    source="attlas",
    reference="the spurious solution",
    statement=r"Descent that leaves the origin towards $\eta$ ends at $\kappa = \nu = \rho = 0$, $\eta = 1$,"
    r" $\theta = \min\big(1, \frac{2\gamma^2\lambda}{\sqrt\pi D m \zeta(0,\lambda\gamma)}\big)$, up to a common sign.",
    words="There is a second solution in which key and value have changed places, and it attracts.",
    hypotheses=(*TASK, HEAD, STEP),
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
        "the small-lambda value sqrt(pi) / (2 lambda m) of theta", lambda e: e.assign(predicted=e["small_lambda"])
    ),
    figure=drawn_by(f"{FIGURES}:swapped_positions"),
    cells=together("dim", "lam", "step_size"),
    needs=("single-location/exact-reduction",),
    origin="ours",
)
def swapped_attractor(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/swapped-attractor", "start"), 1)
    leaning = Overlaps(*(0.02 * np.asarray(x) for x in start))._replace(eta=np.array([0.3]), theta=np.array([0.1]))
    path = descend(task, leaning, lam=cell.lam, step_size=cell.step_size, steps=cell.steps, record_every=cell.steps)
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
        Hypothesis("smallest >= 0.03 and lam <= 0.85", lambda s: s.smallest >= 0.03 and s.lam <= 0.85),
    ),
    quick=Setting(dim=(80, 400), length=10, gamma=ROOT_HALF, noise=0.0, smallest=0.03, lam=0.85, points=200),
    paper=Setting(dim=(80, 400, 1600), length=10, gamma=ROOT_HALF, noise=0.0, smallest=0.03, lam=0.85, points=1000),
    rule=Order(),
    control=Control("the saddle at the origin in its place", lambda e: e.assign(lower=e["at_origin"])),
    figure=drawn_by(f"{FIGURES}:swapped_spectrum"),
    cells=together("dim"),
    budget="points",
    needs=("single-location/swapped-attractor",),
    origin="ours",
)
def swapped_minimum(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    lams = np.geomspace(cell.smallest, cell.lam, cell.points)
    places = swapped_point(task, lams)
    each = functools.partial(jax.vmap(lambda x, lam: jacobian(task.constants, x, lam)))
    spectrum = np.linalg.eigvals(np.asarray(each(places, jnp.asarray(lams)))).real.max(-1)
    origin = Overlaps(*(jnp.zeros(cell.points),) * 5)
    at_origin = np.linalg.eigvals(np.asarray(each(origin, jnp.asarray(lams)))).real.max(-1)
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
    statement=r"For small $\lambda$ the swapped point has a lower risk than the oracle at the same $\lambda$.",
    words="Where the gate is soft the wrong solution is even the better one, so that risk alone does not tell them apart.",
    hypotheses=(*TASK, HEAD),
    quick=Setting(dim=(400, 400, 80, 80), length=10, gamma=ROOT_HALF, noise=0.0, lam=(1 / 13, 0.0638, 0.1, 0.05)),
    paper=Setting(dim=(400, 400, 80, 80), length=10, gamma=ROOT_HALF, noise=0.0, lam=(1 / 13, 0.0638, 0.1, 0.05)),
    rule=Order(),
    control=Control(
        "twice the sharpness, where the oracle wins", lambda s: s.at(lam=tuple(2 * x for x in s.lam)), on="setting"
    ),
    figure=drawn_by(f"{FIGURES}:swapped_risks"),
    cells=together("dim", "lam"),
    needs=("single-location/swapped-attractor", "single-location/closed-form-risk"),
    origin="ours",
)
def swapped_beats_oracle(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    sharpness = np.geomspace(0.02, 0.5, 80)
    curves = np.stack([risk(task, swapped_point(task, sharpness), sharpness), task.oracle_risk(sharpness)])
    return xr.Dataset(
        {
            "lower": ("cell", [float(risk(task, swapped_point(task, cell.lam), cell.lam))]),
            "upper": ("cell", [float(task.oracle_risk(cell.lam))]),
            "error": 0.0,
            "curve": (("cell", "solution", "sharpness"), curves[None]),
        },
        coords={"solution": ["swapped", "oracle"], "sharpness": sharpness},
    )


# --- why large lambda stalls, why the published step flips ----------------------------------------------------------


@claim(
    "single-location/corner-rate",
    source="attlas",
    reference="vanishing gradient at the oracle",
    statement=r"Near the oracle $1 - \kappa$ decays at the rate $\frac{4\gamma^2\lambda m}{D}\,\mathrm{erf}'(A)\,\mathrm{erfc}(A/E)$"
    r" with $A = \lambda m / D$, which falls like $e^{-(1 + E^{-2})A^2}$: the gradient vanishes as the gate saturates.",
    words="The sharper the gate, the slower the last stretch: at lambda = 0.5 it would take longer than the universe.",
    hypotheses=(*TASK, HEAD),
    quick=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)),
    paper=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)),
    rule=Approximation(margin=1e-9),
    control=Control("erfc(A) in place of erfc(A/E)", lambda e: e.assign(predicted=e["without_e"])),
    figure=drawn_by(f"{FIGURES}:corner_rates"),
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
    statement=r"At the published step size $\alpha = 4\cdot10^{-3} > 2/\lambda_{\max}$ the scheduled run loses the manifold by"
    r" period doubling: after a few thousand steps more than 70 % of runs alternate between two states.",
    words="The published step is too long: once the value is found the iterate flips from side to side.",
    hypotheses=(
        *TASK,
        HEAD,
        STEP,
        Hypothesis("steps >= 60", lambda s: s.steps >= 60, defining=True),
        Hypothesis("step_size is above the flip threshold", lambda s: s.step_size > stable_step(task_of(s), s.lam)),
    ),
    quick=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=1.0, step_size=4e-3, steps=2500, repeats=200),
    paper=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=1.0, step_size=4e-3, steps=2500, repeats=2000),
    rule=Convergence(share=0.7),
    control=Control("a stable step size, 1e-3", lambda s: s.replace(step_size=1e-3), on="setting"),
    figure=drawn_by(f"{FIGURES}:flips"),
    budget="repeats",
    needs=("single-location/transverse-stability",),
    origin="ours",
)
def period_two(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/period-two", "start"), cell.repeats)
    path = descend(task, start, lam=InverseDecay(cell.lam), step_size=cell.step_size, steps=cell.steps, record_every=1)
    rho = path["rho"].values
    one, two = abs(rho[:, -1] - rho[:, -2]), abs(rho[:, -1] - rho[:, -3])
    return xr.Dataset(
        {
            "arrived": (("cell", "repeat"), ((one > 1e-3) & (two < one / 10))[None]),
            "rho_path": (("cell", "run", "step"), rho[None, :4, -60:]),
        },
        coords={"step": path["step"].values[-60:]},
    )


# --- small steps, and how often a start fails -----------------------------------------------------------------------


@claim(
    "single-location/gradient-flow",
    source="attlas",
    reference="descent as a discretised flow",
    statement=r"As $\alpha \to 0$ with $\alpha t$ fixed, descent tends to the gradient flow on the two spheres, written in the five"
    r" overlaps, with an error of order $\alpha$.",
    words="Short steps follow the flow, and halving the step halves the distance to it.",
    hypotheses=(*TASK, HEAD, STEP, TIME),
    quick=Setting(
        dim=40, length=10, gamma=ROOT_HALF, noise=0.0, lam=0.5, step_size=(2e-3, 1e-3, 5e-4, 2.5e-4), time=2.0
    ),
    paper=Setting(
        dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=0.5, step_size=(8e-4, 4e-4, 2e-4, 1e-4, 5e-5), time=2.0
    ),
    rule=Rate(margin=0.1),
    control=Control(
        "a flow whose theta is twice as fast, which short steps do not approach",
        lambda e: e.assign(measured=e["from_wrong_flow"]),
    ),
    figure=drawn_by(f"{FIGURES}:flow_limit"),
    cells=together("step_size"),
    needs=("single-location/exact-reduction",),
    origin="ours",
)
def gradient_flow(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, "single-location/gradient-flow", "start"), 16)
    steps = round(cell.time / cell.step_size)
    last = descend(task, start, lam=cell.lam, step_size=cell.step_size, steps=steps, record_every=steps).isel(step=-1)
    reached = np.stack([last[name].values for name in Overlaps._fields])
    # Of order alpha^4 with the same step: exact beside an error of order alpha.
    flowed, wrong = (
        flow_for(task.constants, start, cell.lam, steps * cell.step_size, steps, jnp.asarray(speed))
        for speed in (1.0, 2.0)
    )
    off, far = (np.sqrt(((reached - np.stack(end)) ** 2).sum(0)).mean() for end in (flowed, wrong))
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
def flow_for(c: Constants, x: Overlaps, lam: Array, time: Array, steps: Array, theta_speed: Array) -> Overlaps:
    """Where the gradient flow takes `x` in `time`, by the classical Runge-Kutta rule; its theta at `theta_speed` times."""
    h = time / steps

    def slope(x: Overlaps) -> Overlaps:
        v = velocity(c, x, lam)
        return v._replace(theta=theta_speed * v.theta)

    def step(_: Array, x: Overlaps) -> Overlaps:
        k1 = slope(x)
        k2 = slope(along(x, k1, h / 2))
        k3 = slope(along(x, k2, h / 2))
        k4 = slope(along(x, k3, h))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
        return along(x, mean, h)

    def along(x: Overlaps, v: Overlaps, h: Array) -> Overlaps:
        return jax.tree.map(lambda x, v: x + h * v, x, v)

    return jax.lax.fori_loop(0, steps, step, Overlaps(*map(jnp.asarray, x)))


@claim(
    "single-location/failure-falls",
    source="attlas",
    reference="how often a random start fails",
    statement=r"The probability that descent from a random start takes the swapped branch falls as the constant sharpness"
    r" grows ($\lambda = 0.1, 0.5, 1$ at $d = 400$), and at $\lambda = 1$ as the dimension grows ($d = 40, 400$).",
    words="A sharper beginning and a higher dimension both help the right solution to win the race from the origin.",
    hypotheses=(*TASK, HEAD, TIME),
    quick=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=(0.5, 1.0, 1.0),
        than_dim=(400, 400, 40),
        than_lam=(0.1, 0.5, 1.0),
        time=15.0,
        repeats=1000,
    ),
    paper=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=(0.5, 1.0, 1.0),
        than_dim=(400, 400, 40),
        than_lam=(0.1, 0.5, 1.0),
        time=15.0,
        repeats=3000,
    ),
    rule=Order(),
    control=Control("the order turned round", lambda e: e.assign(lower=e["upper"], upper=e["lower"])),
    figure=drawn_by(f"{FIGURES}:failure_shares"),
    cells=together("lam", "than_dim", "than_lam"),
    shape=("repeats", "time"),
    budget="repeats",
    needs=("single-location/swapped-attractor",),
    origin="ours",
)
def failure_falls(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    key = key_for(seed, "single-location/failure-falls", "start")
    pairs = [
        ((task_of(cell), cell.lam), (task_of(cell.at(dim=cell.than_dim)), cell.than_lam)) for cell in cells
    ]  # the lower share first
    (repeats,), (time,) = {cell.repeats for cell in cells}, {cell.time for cell in cells}
    takes = {
        (task, lam): takes_swapped(task, sphere_start(task, key, repeats), lam, time)
        for task, lam in dict.fromkeys(side for pair in pairs for side in pair)
    }
    lower, upper, error = zip(*(paired_shares(takes[a], takes[b]) for a, b in pairs), strict=True)
    races = [[rates.oracle / rates.swapped for rates in (escape_rates(*side) for side in pair)] for pair in pairs]
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
    last = descend(task, start, lam=lam, step_size=alpha, steps=steps, record_every=steps).isel(step=-1)
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
    r" overlaps, $\kappa_0, \nu_0, \theta_0, \eta_0, \rho_0 \sim N(0, \frac1d)$ independent, to within $0.03$.",
    words="How often descent fails is the size of a region in five dimensions, whatever else is in the start.",
    hypotheses=(*TASK, HEAD, TIME),
    quick=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.5,), time=10.0, repeats=1000),
    paper=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.3, 0.5, 1.0), time=15.0, repeats=3000),
    rule=Approximation(margin=0.03, relative=False),
    control=Control("a share larger by 0.06", lambda e: e.assign(predicted=e["predicted"] + 0.06)),
    figure=drawn_by(f"{FIGURES}:basin_shares"),
    cells=together("lam"),
    budget="repeats",
    needs=("single-location/failure-falls",),
    origin="ours",
)
def basin_measure(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    key = key_for(seed, "single-location/basin-measure", "start")
    sphere, gaussian = sphere_start(task, key, cell.repeats), gaussian_start(task, key, cell.repeats)
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
