"""Claims about the reduction itself, and about softmax heads that learn their sharpness."""

import numpy as np
import xarray as xr

from attlas.claims import Control, Convergence, Draws, Hypothesis, SameLaw, Setting, Values, on
from attlas.claims.rules import Agreement
from attlas.claims.setting import together, whole
from attlas.figure import Figure
from attlas.order_parameters import (
    Heads,
    Overlaps,
    Places,
    Pooled,
    Problem,
    ValueSum,
    descend_online,
    descend_online_vectors,
    gradient,
)
from attlas.order_parameters.population import Gradient
from attlas.several_locations.claims import several_locations
from attlas.several_locations.task import heads_problem


def no_target(teacher, tokens, noise):  # type: ignore[no-untyped-def]
    return 0 * noise[0]


def prediction_itself(prediction, target):  # type: ignore[no-untyped-def]
    return prediction


RUNS = {
    "two softmax heads": (Problem(Places(4, [1.5, 1.0]), ValueSum(0.1), Heads()), 4, 4),
    "softmax-1, spread 0.7": (
        Problem(Places(4, [1.5], spread=0.7), ValueSum(), Heads("softmax-1", 1.5)),
        2,
        2,
    ),
    "erf, correlated": (
        Problem(Places(3, [1.0], correlation=0.5), ValueSum(), Heads("erf", 0.7)),
        2,
        2,
    ),
    "random lengths": (
        Problem(Places(4, [1.0], shortest=2, shuffled=True), ValueSum(), Heads("tanh")),
        2,
        2,
    ),
    "sum of fields": (Problem(Places(3, [1.0]), no_target, Pooled(), prediction_itself), 1, 2),
}
"""Problems, columns p and directions r. The gradient of a sum of fields is a Gaussian vector, in
which a missing dimension is seen best."""


@several_locations.claim(
    kind="simulation",
    origin="ours",
    reference="order parameters in online descent",
    statement=r"For tokens that are Gaussian given a latent, online descent of a head that reads"
    r" them through $U \in R^{d \times p}$ moves $M = U^\top W^*$ and $Q = U^\top U$ as a Markov"
    r" chain: entries of both have the law of descent on $d$-dimensional tokens, with the part of"
    r" the gradient outside all spans drawn as a Wishart matrix of $d - r - p$ degrees of freedom,"
    r" for several laws, heads and constraints.",
    words="A run on whole sequences and a run on two small matrices have the same law, for any head"
    " that reads tokens through few directions.",
    hypotheses=(
        Hypothesis("draws >= 200", lambda s: s.draws >= 200, defining=True),
        Hypothesis(
            "step_size <= 0.2 in more than one step: longer ones diverge, and rounding decides",
            lambda s: s.steps == 1 or s.step_size <= 0.2,
            defining=True,
        ),
    ),
    quick=Setting(
        run=("two softmax heads", "sum of fields"),
        constraint=("none", "none"),
        size=(8, 4),
        steps=(8, 1),
        step_size=(0.15, 2.0),
        draws=1536,
    ),
    paper=dict(
        run=tuple(RUNS),
        constraint=("unit", "orthonormal", "none", "unit", "none"),
        size=(16, 12, 5, 9, 4),
        steps=(20, 20, 8, 10, 1),
        step_size=(0.1, 0.1, 0.15, 0.15, 2.0),
        draws=8192,
    ),
    cells=together("run", "constraint", "size", "steps", "step_size"),
    budget="draws",
    rule=SameLaw(),
    control=Control("a degree of freedom too few", lambda e: {"sample_a": e.one_fewer}),
)
def reduction_law(cell: Setting, draws: Draws) -> Values:
    problem, p, r = RUNS[cell.run]
    rng = draws.stream("start")
    directions = np.linalg.qr(rng.standard_normal((cell.size, r)))[0]
    vectors = 1.2 * rng.standard_normal((cell.size, p)) / np.sqrt(cell.size)
    if cell.constraint == "unit":
        vectors /= np.linalg.norm(vectors, axis=0)
    elif cell.constraint == "orthonormal":
        vectors = np.linalg.qr(vectors)[0]
    vectors = np.repeat(vectors[None], cell.draws, 0)
    start = Overlaps.of(vectors, directions)
    options = {
        "batch_size": 2 if p > 1 else 1,
        "step_size": cell.step_size,
        "steps": cell.steps,
        "constraint": cell.constraint,
        "record_every": cell.steps,
    }
    reduced, fewer = (
        descend_online(
            problem,
            start,
            dim=cell.size,
            points=0,
            seed=draws.integer(f"batches {extra}"),
            extra_freedom=extra,
            **options,
        )
        for extra in (0, -1)
    )
    walked = descend_online_vectors(
        problem, vectors, directions, seed=draws.integer("batches"), **options
    )
    samples = {"sample_a": reduced, "sample_b": walked, "one_fewer": fewer}
    return {
        **on("statistic draw", **{name: some_entries(data) for name, data in samples.items()}),
        "statistic": ["M first", "M last", "Q first", "Q sum", "Q trace"],
    }


def some_entries(data: xr.Dataset) -> np.ndarray:
    """Five entries and sums of M and Q at the end [statistic, draw], to five digits."""
    m, q = data["m"].values[:, -1], data["q"].values[:, -1]
    values = [m[:, 0, 0], m[:, -1, -1], q[:, 0, 0], q.sum((1, 2)), np.trace(q, axis1=1, axis2=2)]
    return np.stack(values).round(5)


@reduction_law.figure
def quantiles_of_entries(evidence: xr.Dataset) -> Figure:
    one = evidence.isel(cell=-1)
    shown = {"sample_a": "on overlaps", "one_fewer": "a degree of freedom too few"}
    quantiles = one[[*shown, "sample_b"]].quantile(np.linspace(0.01, 0.99, 50), "draw")
    title = "Online descent on vectors and on overlaps"
    note = f"quantiles from 1 % to 99 %: {one['run'].item()}, d = {int(one['size'])}"
    figure = Figure(quantiles, title, note, x="quantile, vectors", y="quantile, overlaps")
    figure.diagonal("sample_b", "sample_b").points("sample_b", shown, size=12)
    return figure.facet("statistic", columns=3, independent="xy", width=150, height=120)


@several_locations.claim(
    kind="simulation",
    origin="ours",
    reference="which step of the proof breaks for a softmax",
    statement=r"The manifold of Marion et al. ($\langle v, k^*\rangle = \langle k, v^*\rangle ="
    r" \langle k, v\rangle = 0$) is invariant under gradient descent of a softmax head too: the"
    r" derivatives of the risk across it are 0 there.",
    words="Turning the sign of all values of a sequence turns those of target and prediction, and"
    " leaves the weights: so no gradient points off the manifold, whatever the weights are. What a"
    " softmax does not have is the symmetry in the sign of the key.",
    quick=Setting(length=8, signal=3.0, heads=6, points=1024),
    paper=dict(heads=24, points=16_384),
    cells=whole,
    budget="points",
    rule=Agreement(),
    control=Control(
        "keys with an overlap of 0.3 with the value direction", lambda e: {"measured": e.off}
    ),
)
def softmax_keeps_manifold(cell: Setting, draws: Draws) -> Values:
    rng = draws.stream("heads")
    kappa, nu = rng.uniform(-0.8, 0.8, (2, cell.heads))  # at 0.9 no vectors have `moved`
    m = np.zeros((cell.heads, 2, 2))
    m[:, 0, 0], m[:, 1, 1] = kappa, nu
    q = np.tile(np.eye(2), (cell.heads, 1, 1))
    moved = m.copy()
    moved[:, 0, 1] = 0.3
    problem = heads_problem(cell.length, cell.signal, lam=2.0)

    def across(found: Gradient) -> np.ndarray:
        return np.stack([found.m[:, 1, 0], found.m[:, 0, 1], 2 * found.q[:, 0, 1]])

    on_it, off_it = (
        gradient(problem, Overlaps(x, q), points=16 * cell.points, seed=draws.integer("points"))
        for x in (m, moved)
    )
    return {
        **on("direction head", measured=across(on_it), error=across(on_it.error)),
        **on("direction head", off=across(off_it), predicted=0 * across(on_it)),
        "direction": ["θ", "η", "ρ"],
        "repetitions": 16,
    }


@softmax_keeps_manifold.figure
def derivatives_across(evidence: xr.Dataset) -> Figure:
    title = "Derivatives across the manifold, softmax head"
    note = "each dot a head on the manifold, two standard errors; grey: keys off it by 0.3"
    shown = evidence.isel(cell=0)
    figure = Figure(shown, title, note, x="head", y="derivative", legend={"direction": None})
    shown["head"] = np.arange(shown.sizes["head"])
    figure.points("head", "off", ink="#aaaaaa", size=24)
    return figure.points("head", "measured", color="direction", error=True).rule(0)


@several_locations.claim(
    kind="training",
    origin="ours",
    reference="softmax instead of erf, sharpness learnt",
    statement=r"One softmax head with free norms, from starts uniform on the sphere at $d ="
    r" 100$ (400 at the paper's scale) with the signal $\sqrt{d/2}$, in online descent with"
    r" steps of $1/d$: more than 0.8 of the runs end with a risk below 0.1 of the target's"
    r" variance.",
    words="With a softmax whose sharpness is the length of the key, most random starts find the"
    " informative token.",
    quick=Setting(
        dim=100, length=10, batch_size=8, step_size=0.01, runs=64, steps=1500, sharpness=1.0
    ),
    paper=dict(dim=400, step_size=0.0025, runs=256, steps=6000),
    cells=whole,
    budget="runs",
    rule=Convergence(share=0.8),
    control=Control(
        "heads as they are before training",
        lambda e: {"arrived": (e.risk.isel(step=0) < 0.1).astype(int)},
    ),
    needs=("softmax-keeps-manifold",),
)
def softmax_from_sphere(cell: Setting, draws: Draws) -> Values:
    rng = draws.stream("start")
    u = rng.standard_normal((cell.runs, cell.dim, 2))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    data = descend_online(
        heads_problem(cell.length, (cell.dim / 2) ** 0.5, lam=cell.sharpness),
        Overlaps.of(u, np.eye(cell.dim)[:, :2]),
        dim=cell.dim,
        batch_size=cell.batch_size,
        step_size=cell.step_size,
        steps=cell.steps,
        seed=draws.integer("batches"),
        record_every=max(1, cell.steps // 30),
        points=256,
    )
    length = np.sqrt(data["q"].isel(column=0, other=0))
    return {
        **on("repeat", arrived=(data["risk"].isel(step=-1) < 0.1).astype(int)),
        **on("repeat step", risk=data["risk"], key=length),
        **on("repeat step", aligned=data["m"].isel(column=0, direction=0) / length),
        "step": data["step"].values,
    }


@softmax_from_sphere.figure
def runs_from_the_sphere(evidence: xr.Dataset) -> Figure:
    title, note = "A softmax head that learns its sharpness", "some runs, coloured by their end"
    shown = evidence.isel(cell=0, repeat=slice(0, 40))
    ends = np.where(shown["arrived"] > 0, "arrives", "does not")
    shown = shown.assign_coords(end=("repeat", ends))
    figure = Figure(shown, title, note, x="step", y="risk", legend={"end": None}, zero="y")
    return figure.lines("step", "risk", detail="repeat", color="end", opacity=0.5)
