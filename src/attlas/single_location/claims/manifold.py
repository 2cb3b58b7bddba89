"""Claims about projected gradient descent and its flow: five overlaps, the manifold, stability."""

from typing import Any

import numpy as np
import pandas as pd
import scipy
import xarray as xr
from scipy import special

from attlas.claims import (
    Agreement,
    Approximation,
    Control,
    Convergence,
    Draws,
    Hypothesis,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, floored, greek
from attlas.gaussian import float64
from attlas.single_location import landscape
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import (
    ROOT_HALF,
    SQUARE,
    STABLE,
    against_formula,
    on_manifold,
    one_of,
    outcomes,
    paper_task,
    random_heads,
    step_options,
    task_of,
)
from attlas.single_location.descent import descend, descend_vectors
from attlas.single_location.landscape import critical_lam, jacobian, velocity
from attlas.single_location.population import ORACLE, Overlaps, at_points, partials_of_risk
from attlas.single_location.task import SingleLocation


@single_location.claim(
    kind="two routes",
    reference="Definition 1 in five dimensions",
    origin="ours",
    statement=r"Projected gradient descent on $(k, v) \in (S^{d-1})^2$ closes on"
    r" $(\kappa,\nu,\theta,\eta,\rho)$ for every $d \ge 4$: the five overlaps of the next iterate"
    r" are functions of the present five.",
    words="Descent in any dimension is a map of five numbers, exactly.",
    hypotheses=(
        *STABLE,
        Hypothesis(
            "step_size is below the flip threshold at the swapped point too",
            lambda s: (
                -2 / s.step_size
                < landscape.stability(
                    task_of(s), landscape.swapped_point(task_of(s), s.lam), s.lam
                )[0]
            ),
        ),
    ),
    quick=paper_task(dim=(4, 400), step_size=(1e-2, 1e-3), lam=0.7, repeats=8, steps=400),
    paper=dict(dim=(4, 5, 40, 400), step_size=(1e-2, 1e-2, 4e-3, 1e-3), repeats=30, steps=2000),
    cells=together("dim", "step_size"),
    budget="repeats",
    rule=Agreement(rounding=1e-10),
    control=Control(
        "a step size of the overlaps that is larger by {size:.2g} of its value",
        lambda e, size: {"predicted": e.predicted + size / 1e-3 * (e.larger_step - e.predicted)},
        size=1e-8,
    ),
)
def exact_reduction(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell, draws("stars"))
    k, v = random_heads(draws("start"), cell.repeats, cell.dim)
    start, options = Overlaps.of(k, v, task), step_options(cell, 40)
    walked = descend_vectors(task, k, v, **options)
    reduced = descend(task, start, **options)
    faster = descend(task, start, **options | {"step_size": 1.001 * cell.step_size})
    fields = list(Overlaps._fields)
    return {
        "predicted": reduced[fields].to_array("overlap"),
        "measured": walked[fields].to_array("overlap"),
        "larger_step": faster[fields].to_array("overlap"),
        "error": 0.0,
    }


@exact_reduction.figure
def paths(evidence: xr.Dataset) -> Figure:
    title = "Descent in d dimensions and on five overlaps"
    note = "lines: five overlaps; points: vectors; one start each"
    shown = greek(evidence, "overlap").isel(repeat=0)
    figure = against_formula(shown, "step", title, note, color="overlap", size=16, y="overlap")
    return figure.facet("d = {dim}")


@single_location.claim(
    kind="training",
    reference="Lemma 4",
    origin="our reading",
    statement=r"The manifold $\{\theta = \eta = \rho = 0\}$ is invariant under projected gradient"
    r" descent.",
    words="If the key starts without a part along v*, the value without one along k*, and the"
    " two orthogonal, descent keeps it so.",
    hypotheses=(
        *STABLE,
        one_of("direction", ("gradient", "sign")),
        Hypothesis(
            "descent follows the gradient (direction = gradient)",
            lambda s: s.direction == "gradient",
        ),
        Hypothesis(
            "gamma <= 1: with a wider token rounding exceeds 1e-12 on rare starts that pass by the"
            " saddle",
            lambda s: s.gamma <= 1,
        ),
    ),
    quick=paper_task(
        dim=(4, 400), lam=0.1, step_size=4e-3, repeats=8, steps=1000, direction="gradient"
    ),
    paper=dict(repeats=30, steps=20_000),
    cells=together("dim"),
    budget="repeats",
    rule=Agreement(rounding=1e-12),
    control=Control(
        "descent by the sign of each coordinate's gradient, which no rotation commutes with",
        setting=dict(direction="sign"),
    ),
    needs=("exact-reduction",),
)
def manifold_invariant(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell, draws("stars"))
    k, v = random_heads(draws("start"), cell.repeats, cell.dim)
    k = unit_part_orthogonal(k, task.v_star)
    v = unit_part_orthogonal(v, task.k_star, unit_part_orthogonal(k, task.k_star))
    options = step_options(cell, 40)
    walked = descend_vectors(task, k, v, **options, direction=cell.direction)
    zero = np.zeros(cell.repeats)
    start = Overlaps.of(k, v, task)._replace(theta=zero, eta=zero, rho=zero)
    reduced = descend(task, start, **options)
    distance = np.stack([walked["distance"].values, reduced["distance"].values])
    return {
        **on("route repeat step", measured=distance),
        "predicted": 0.0,
        "error": 0.0,
        "route": ["vectors", "overlaps"],
        "step": walked["step"].values,
    }


@manifold_invariant.figure
def distances(evidence: xr.Dataset) -> Figure:
    largest = floored(evidence["measured"].max("repeat"), 1e-20).to_dataset(name="distance")
    title, note = "Starts on the manifold stay on it", "exact zeros are drawn at 1e-20"
    y, domain = "largest distance to the manifold", {"y": (1e-20, 10)}
    figure = Figure(largest, title, note, y=y, log="y", domain=domain, legend={"dim": "d"})
    figure.lines("step", "distance", points=True, color="dim", dash="route")
    return figure.rule(1e-12, "what the rule allows")


def unit_part_orthogonal(x: np.ndarray, *directions: np.ndarray) -> np.ndarray:
    """The part of `x` [repeat, dim] orthogonal to the orthonormal `directions`, normalised."""
    for direction in directions:
        x = x - (x * direction).sum(-1, keepdims=True) * direction
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


FIXED_POINTS = {
    "origin": (0.0, 0.0),
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
    r" $c = \frac{4\gamma^2\lambda m}{\sqrt\pi D}$, $h = \frac{8\gamma^2\lambda^2m^2}{\pi D^2 E}$;"
    r" a scan of the square and its edges finds no others.",
    words="Five fixed points on the manifold and no more: two corners that attract, two that"
    " repel, and a saddle at the origin, near which random heads start.",
    hypotheses=(
        Hypothesis(
            "lam sqrt(dim / 2) <= 5 sqrt(1 + 2 lam^2 gamma^2) sqrt(1 + 4 lam^2 gamma^2): beyond it"
            " the speed along the edges is lost in rounding",
            lambda s: widths_at(task_of(s), s.lam)[2] <= 5,
        ),
    ),
    quick=paper_task(
        dim=(400, 400, 80),
        length=(10, 10, 4),
        gamma=(ROOT_HALF, ROOT_HALF, 1.2),
        lam=(0.1, 0.45, 0.2),
        side=200,
    ),
    paper=dict(side=1000),
    cells=together("dim", "length", "gamma", "lam"),
    budget="side",
    rule=Agreement(rounding=1e-11),
    control=Control(
        "a curvature h at the saddle that is larger by {size:.2g} of its value",
        lambda e, size: {"predicted": e.predicted + size / 1e-3 * (e.with_wrong_h - e.predicted)},
        size=1e-8,
    ),
    needs=("manifold-invariant",),
)
def manifold_fixed_points(cell: Setting, draws: Draws) -> Values:
    task, lam = task_of(cell), cell.lam
    kappa, nu = np.transpose(list(FIXED_POINTS.values()))
    speed = at_points(velocity, task.constants, on_manifold(kappa, nu), lam)
    # From the definition of the risk on the manifold, by quadrature.
    slopes = [slopes_by_quadrature(task, *x, lam) for x in FIXED_POINTS.values()]
    at_corners = np.sort(2 * np.array(list(FIXED_POINTS.values())) * slopes)[1:]
    flows = [jacobian(task.constants, on_manifold(*x), lam) for x in FIXED_POINTS.values()]
    rates = np.sort(np.linalg.eigvals(np.stack(flows)[:, :2, :2]).real)
    c, h = saddle_constants(task, lam)
    found = count_zeros(task, lam, draws.stream("scan"), cell.side)
    # Nothing moves at a fixed point, and there is one at each of these places.
    rest = np.tile([0.0] * len(Overlaps._fields) + [1.0], (len(kappa), 1))
    return {
        **on(
            "place quantity",
            predicted=np.hstack([[saddle_rates(c, h), *at_corners], rest]),
            measured=np.hstack([rates, np.abs(speed).T, found[:, None]]),
            with_wrong_h=np.hstack([[saddle_rates(c, 1.001 * h), *at_corners], rest]),
        ),
        "error": 0.0,
        "place": list(FIXED_POINTS),
        "quantity": [
            "slow rate",
            "fast rate",
            *(f"speed in {name}" for name in Overlaps._fields),
            "fixed points here",
        ],
    }


@manifold_fixed_points.figure
def rates_at_fixed_points(evidence: xr.Dataset) -> Figure:
    rates = evidence.sel(quantity=["slow rate", "fast rate"])
    shown = rates.assign(kind=("place", ["saddle", *["corners"] * 4]))
    note = "ticks: closed form; points: automatic differentiation; below 0 attracts"
    title, task = "Fixed points on the manifold", "λ={lam:g}, d={dim}"
    figure = Figure(shown, title, note, x="fixed point (κ, ν)", y="rate of the flow").rule(0)
    figure.ticks("place", "predicted", size=36).points("place", "measured", color=task)
    return figure.facet("kind", independent="xy")


def slopes_by_quadrature(
    task: SingleLocation, kappa: float, nu: float, lam: float
) -> tuple[float, float]:
    r"""$R_\kappa$ and $R_\nu$ on the manifold, from the definition.

    There the risk is $\gamma^2E[1 - 2\nu\,\mathrm{erf}(x) + \mathrm{erf}(x)^2]$ and a constant,
    with $x = \lambda m\kappa + \lambda\gamma G$.
    """
    g = np.linspace(-10, 10, 4001)
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    x = lam * task.m * kappa + lam * task.gamma * g
    bell = 2 / np.sqrt(np.pi) * np.exp(-(x**2))
    integrands = [lam * task.m * bell * (special.erf(x) - nu), -special.erf(x)]
    in_kappa, in_nu = 2 * task.gamma**2 * scipy.integrate.trapezoid(integrands * density, g)
    return float(in_kappa), float(in_nu)


def count_zeros(
    task: SingleLocation, lam: float, generator: np.random.Generator, side: int
) -> np.ndarray:
    """How many fixed points a scan of the manifold finds, at each of `FIXED_POINTS`.

    The flow is (1 - kappa^2) and (1 - nu^2) times the slopes of the risk, so that the corners are
    fixed. Zeros of the slopes inside the square are counted by `turns` of the cells of a random
    lattice, at the origin; on an edge by changes of sign of the slope along it, at its two ends.
    """
    lines = (np.arange(side) + generator.random((2, side))) / side * 2 - 1
    kappa, nu = (np.concatenate([[-1.0], line, [1.0]]) for line in lines)
    slopes = at_points(partials_of_risk, task.constants, on_manifold(kappa[:, None], nu), lam)
    edges = {-1.0: 0, 1.0: -1}
    found = [abs(turns(slopes.kappa, slopes.nu)).sum()]
    for at_kappa, at_nu in list(FIXED_POINTS.values())[1:]:
        along = slopes.kappa[:, edges[at_nu]], slopes.nu[edges[at_kappa]]
        found.append(1 + sum((np.diff(np.sign(slope)) != 0).sum() for slope in along))
    return np.array(found)


def turns(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How often the field (x, y) [i, j] turns around each cell of a lattice.

    It does where a cell holds a zero, +1 or -1 times at a simple one.
    """
    angle = np.arctan2(y, x)
    corners = [angle[:-1, :-1], angle[1:, :-1], angle[1:, 1:], angle[:-1, 1:], angle[:-1, :-1]]
    steps = (np.diff(corners, axis=0) + np.pi) % (2 * np.pi) - np.pi
    return np.round(steps.sum(0) / (2 * np.pi)).astype(int)


def saddle_constants(task: SingleLocation, lam: float) -> tuple[float, float]:
    """The coupling c and the curvature h of the flow at the origin of the manifold."""
    s = lam * task.gamma
    c = 4 * task.gamma**2 * lam * task.m / np.sqrt(np.pi * (1 + 2 * s**2))
    h = 8 * (s * task.m) ** 2 / (np.pi * (1 + 2 * s**2) * np.sqrt(1 + 4 * s**2))
    return float(c), float(h)


def saddle_rates(c: float, h: float) -> list[float]:
    root = np.sqrt(h**2 + 4 * c**2)
    return [(-h - root) / 2, (-h + root) / 2]


@single_location.claim(
    kind="training",
    reference="Theorem 5, Figure 5",
    origin="our reading",
    statement=r"On the manifold the stable curve of the saddle separates the basins of $(1,1)$ and"
    r" $(-1,-1)$, and no other point attracts: a start above it ends at $(1,1)$, one below it at"
    r" $(-1,-1)$, in more than 99 % of a grid.",
    words="Which of the two mirror optima is found is decided by one curve through the saddle.",
    hypotheses=(
        *STABLE,
        Hypothesis(
            "steps are enough: step_size * steps times the rate at the oracle is at least 0.75, and"
            " times the rate at which descent leaves the saddle at least 25",
            lambda s: (
                s.step_size * s.steps
                >= max(
                    0.75 / float(landscape.corner_rate(task_of(s), s.lam)),
                    25 / saddle_rates(*saddle_constants(task_of(s), s.lam))[1],
                )
            ),
        ),
    ),
    quick=paper_task(lam=0.1, step_size=4e-3, steps=9_000, side=40),
    paper=dict(steps=20_000, side=100),
    budget="side",
    rule=Convergence(share=0.99),
    control=Control(
        "the curve {size:.2g} higher",
        lambda e, size: {"arrived": e.at_optimum & (e.ends_up == (e.height > size))},
        size=0.1,
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
    path = descend(task, start, **step_options(cell))
    at_optimum, ends_up = outcomes(path)["oracle"].values, path["nu"].values[:, -1] > 0
    curve_kappa, curve_nu = stable_curve(task, cell.lam)
    height = nu - np.interp(kappa, curve_kappa, curve_nu)
    field = at_points(velocity, task.constants, start, cell.lam)
    shown = np.linspace(0, len(curve_kappa) - 1, 200).astype(int)
    return {
        **on(
            "repeat",
            arrived=at_optimum & (ends_up == (height > 0)),
            at_optimum=at_optimum,
            height=height,
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
    types = ["saddle", "minimum", "minimum", "maximum", "maximum"]
    points = pd.DataFrame(FIXED_POINTS.values(), columns=["kappa", "nu"]).assign(type=types)
    figure = Figure(
        frame.iloc[:: max(1, len(frame) // 500)].round(4),
        "The flow on the manifold",
        "line: the stable curve of the saddle, which separates the basins",
        x="κ = ⟨k, k*⟩",
        y="ν = ⟨v, v*⟩",
        domain=SQUARE,
        legend={"type": "fixed point"},
        width=420,
        height=420,
    )
    figure.points("kappa", "nu", color="ends at", size=150, opacity=0.25)
    figure.lines("curve_kappa", "curve_nu", data=one, theory="solid", order="curve_kappa")
    figure.points("kappa", "nu", data=points, shape="type", size=160, ink="#009E73")
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
    reference="threshold of the oracle's stability",
    origin="ours",
    statement=r"The oracle attracts across the manifold iff $\lambda < \lambda_c$ with"
    r" $\sqrt{1+4\lambda_c^2} = \frac{2(d + 2\gamma^2)}{d - 2\gamma^2(L-2)}$, once the gate has"
    r" saturated, $\lambda_cm/D \ge 4.48$ with $\lambda_c \le 10$ and $\gamma \le 3$;"
    r" $\lambda_c \to \frac{\sqrt3}2$ as $d \to \infty$.",
    words="Above a critical sharpness, which tends to 0.87 in high dimension, the oracle is not"
    " even a local minimum of the risk.",
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
    quick=paper_task(
        dim=(400, 80, 1600, 400, 400, 100_000),
        length=(10, 10, 10, 40, 10, 10),
        gamma=(ROOT_HALF, ROOT_HALF, ROOT_HALF, ROOT_HALF, 1.0, ROOT_HALF),
    ),
    cells=together("dim", "length", "gamma"),
    rule=Agreement(rounding=1e-6),
    control=Control(
        "L - 2 replaced by a number that is larger by {size:.2g}",
        lambda e, size: {"predicted": lam_of_ratio(e.dim, e.length + size, e.gamma)},
        size=0.1,
    ),
    needs=("manifold-invariant",),
)
def critical_lambda(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)

    def growth(lam: float) -> float:
        """The largest rate at which the flow leaves the manifold near the oracle."""
        across = at_oracle(task, lam)[2:, 2:]  # theta, eta, rho
        return float(np.linalg.eigvals(across).real.max())

    found = scipy.optimize.brentq(growth, 0.3, 11.0, xtol=1e-13)
    return {"predicted": critical_lam(task), "measured": found, "error": 0.0}


@critical_lambda.figure
def critical_sharpness(evidence: xr.Dataset) -> Figure:
    task = "d={dim:,}, L={length}, γ={gamma:.2g}"
    note = "ticks: formula; points: zero of the smallest eigenvalue"
    title, x = "Where the oracle stops attracting", "critical λ"
    figure = Figure(evidence, title, note, x=x, y="", zero="-x", height=200)
    figure.ticks("predicted", task, size=18).points("measured", task)
    return figure.rule(3**0.5 / 2, "√3/2", axis="x")


@float64
def at_oracle(task: SingleLocation, lam: float) -> np.ndarray:
    """Derivative of the flow at the oracle, by automatic differentiation."""
    return np.asarray(jacobian(task.constants, ORACLE, lam))


def lam_of_ratio(dim: Any, length: Any, gamma: Any) -> Any:
    """The formula of the statement, for any real number of tokens."""
    ratio = 2 * (dim + 2 * gamma**2) / (dim - 2 * gamma**2 * (length - 2))
    return np.sqrt(ratio**2 - 1) / 2


def saturation(task: SingleLocation) -> float:
    """lam_c m / D: how far in the gate's flat part the informative token lies at lam_c."""
    return widths_at(task, critical_lam(task))[0]


def widths_at(task: SingleLocation, lam: float) -> tuple[float, float, float]:
    """A = lam m / D, E and A / E, with D^2 = 1 + 2 lam^2 gamma^2 and E^2 = 1 + 4 lam^2 gamma^2."""
    square = (lam * task.gamma) ** 2
    a, e = lam * task.m / np.sqrt(1 + 2 * square), np.sqrt(1 + 4 * square)
    return float(a), float(e), float(a / e)


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="vanishing gradient at the oracle",
    statement=r"Near the oracle $1 - \kappa$ decays at the rate"
    r" $\frac{4\gamma^2\lambda m}{D}\,\mathrm{erf}'(A)\,\mathrm{erfc}(A/E)$ with"
    r" $A = \lambda m / D$, which falls like $e^{-(1 + E^{-2})A^2}$: the gradient vanishes as the"
    r" gate saturates.",
    words="Near the oracle the rate at which the key aligns falls like a Gaussian tail as the"
    " gate is made sharper.",
    hypotheses=(
        Hypothesis(
            "A^2 + (A / E)^2 <= 600: beyond it the rate is below what floating-point numbers hold",
            lambda s: sum(widths_at(task_of(s), s.lam)[i] ** 2 for i in (0, 2)) <= 600,
        ),
    ),
    quick=paper_task(lam=(0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)),
    cells=together("lam"),
    rule=Approximation(margin=1e-9),
    control=Control(
        "E too large by {size:.2g} of its value, in erfc(A/E) alone",
        lambda e, size: {"predicted": e.predicted * wider_tail(e.reach, 1 + size)},
        size=1e-8,
    ),
    needs=("manifold-fixed-points",),
)
def corner_rate(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    return {
        "predicted": float(landscape.corner_rate(task, cell.lam)),
        "measured": corner_rate_by_quadrature(task, cell.lam),
        "error": 0.0,
        "reach": widths_at(task, cell.lam)[2],
    }


@corner_rate.figure
def rates_against_sharpness(evidence: xr.Dataset) -> Figure:
    title = "The last stretch slows down"
    note = "line: closed form; points: quadrature of the definition"
    return against_formula(evidence, "lam", title, note, x="λ", y="rate of 1 − κ", log="xy")


def wider_tail(reach: Any, factor: float) -> Any:
    """erfc at a reach that is divided by `factor`, as a multiple of erfc there."""
    return special.erfc(reach / factor) / special.erfc(reach)


def corner_rate_by_quadrature(task: SingleLocation, lam: float) -> float:
    r"""Rate at the oracle from the definition of the risk on the manifold, $2|R_\kappa|$.

    $R_\kappa = -2\gamma^2 E[\mathrm{erf}'(x)\lambda m\,(1 - \mathrm{erf}(x))]$ with
    $x = \lambda m + sG$, $s = \lambda\gamma$, by the trapezoidal rule around the integrand's
    maximum. Its logarithm $-x^2 + \ln\mathrm{erfc}(x) - g^2/2$ has a slope that vanishes where
    $g = -2s(x + \pi^{-1/2}/\mathrm{erfcx}(x))$ (near $-4\lambda ms/(1 + 4s^2)$ where erfc falls,
    near $-2\lambda ms/(1 + 2s^2)$ where it is flat), and a curvature of $1 + 2s^2$ at least, since
    erfc is log-concave: what lies beyond 12 of these widths is below $e^{-72}$ of the maximum.
    """
    s, mean = lam * task.gamma, lam * task.m

    def fall(g: float) -> float:
        x = mean + s * g
        return g + 2 * s * (x + float(np.pi**-0.5) / float(special.erfcx(x)))

    top = scipy.optimize.brentq(fall, -fall(0.0), 0.0)
    g = top + np.linspace(-12, 12, 4001) / np.sqrt(1 + 2 * s**2)
    x = mean + s * g
    integrand = np.sqrt(2) / np.pi * np.exp(-(x**2) - g**2 / 2) * special.erfc(x)
    return float(2 * 2 * task.gamma**2 * mean * np.sum(integrand) * (g[1] - g[0]))
