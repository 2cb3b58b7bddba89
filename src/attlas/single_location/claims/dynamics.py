"""Claims about projected gradient descent: the exact reduction, the manifold, convergence."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims.compat import (
    Agreement,
    Control,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.single_location.claims.shared import (
    FIGURES,
    HEAD,
    PAPER,
    ROOT_HALF,
    STABLE,
    STEP,
    TASK,
    random_heads,
    task_of,
)
from attlas.single_location.descent import descend, descend_vectors
from attlas.single_location.population import Overlaps


def reduced_path(
    start: Overlaps, cell: Setting, step_size: float, every: int
) -> Float[np.ndarray, "overlap repeat step"]:
    path = descend(
        task_of(cell),
        start,
        lam=cell.lam,
        step_size=step_size,
        steps=cell.steps,
        record_every=every,
    )
    return np.stack([path[name].values for name in Overlaps._fields])


@claim(
    "single-location/exact-reduction",
    source="attlas",
    reference="Definition 1 in five dimensions",
    statement=r"Projected gradient descent on $(k, v) \in (S^{d-1})^2$ closes on $(\kappa,\nu,\theta,\eta,\rho)$ for every"
    r" $d \ge 4$: the five overlaps of the next iterate are functions of the present five.",
    words="Descent in any dimension is a map of five numbers, exactly.",
    hypotheses=(*TASK, HEAD, STEP, *STABLE),
    quick=Setting(
        dim=(4, 400),
        step_size=(1e-2, 1e-3),
        lam=0.7,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        repeats=8,
        steps=400,
    ),
    paper=Setting(
        dim=(4, 5, 40, 400),
        step_size=(1e-2, 1e-2, 4e-3, 1e-3),
        lam=0.7,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        repeats=30,
        steps=2000,
    ),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "a step size 0.1 % larger on the overlaps", lambda e: e.assign(predicted=e["larger_step"])
    ),
    figure=drawn_by(f"{FIGURES}.descent:path_agreement"),
    cells=together("dim", "step_size"),
    budget="repeats",
    needs=("single-location/risk-gradient",),
    origin="ours",
)
def exact_reduction(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "single-location/exact-reduction"
    task = task_of(cell, key_for(seed, id, "stars"))
    k, v = random_heads(key_for(seed, id, "start"), cell.repeats, cell.dim)
    every = max(1, cell.steps // 40)
    walked = descend_vectors(
        task, k, v, lam=cell.lam, step_size=cell.step_size, steps=cell.steps, record_every=every
    )
    start = Overlaps.of(k, v, task)
    axes = ("cell", "overlap", "repeat", "step")
    return xr.Dataset(
        {
            "predicted": (axes, reduced_path(start, cell, cell.step_size, every)[None]),
            "measured": (axes, np.stack([walked[name].values for name in Overlaps._fields])[None]),
            "larger_step": (axes, reduced_path(start, cell, 1.001 * cell.step_size, every)[None]),
            "error": 0.0,
        },
        coords={"overlap": list(Overlaps._fields), "step": walked["step"].values},
    )


def without(x: np.ndarray, *directions: np.ndarray) -> np.ndarray:
    """Unit vectors along the part of `x` [repeat, dim] orthogonal to `directions`, orthonormal among themselves."""
    for direction in directions:
        x = x - (x * direction).sum(-1, keepdims=True) * direction
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@claim(
    "single-location/manifold-invariant",
    source=PAPER,
    reference="Lemma 4",
    statement=r"The manifold $\{\theta = \eta = \rho = 0\}$ is invariant under projected gradient descent.",
    words="If at the start neither vector looks where the other should, this stays so for ever.",
    hypotheses=(
        *TASK,
        HEAD,
        STEP,
        *STABLE,
        Hypothesis(
            "direction is gradient or sign",
            lambda s: s.direction in ("gradient", "sign"),
            defining=True,
        ),
        Hypothesis(
            "descent follows the gradient (direction = gradient)",
            lambda s: s.direction == "gradient",
        ),
    ),
    quick=Setting(
        dim=(4, 400),
        lam=0.1,
        step_size=4e-3,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        repeats=8,
        steps=1000,
        direction="gradient",
    ),
    paper=Setting(
        dim=(4, 400),
        lam=0.1,
        step_size=4e-3,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        repeats=30,
        steps=20_000,
        direction="gradient",
    ),
    rule=Agreement(rounding=1e-12),
    control=Control(
        "descent by the sign of each coordinate's gradient, which no rotation commutes with",
        lambda s: s.replace(direction="sign"),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.descent:distance_curves"),
    cells=together("dim"),
    budget="repeats",
    needs=("single-location/exact-reduction", "single-location/risk-symmetries"),
    origin="our reading",
)
def manifold_invariant(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "single-location/manifold-invariant"
    task = task_of(cell, key_for(seed, id, "stars"))
    k, v = random_heads(key_for(seed, id, "start"), cell.repeats, cell.dim)
    k = without(k, task.v_star)
    v = without(v, task.k_star, without(k, task.k_star))
    every = max(1, cell.steps // 40)
    options = {
        "lam": cell.lam,
        "step_size": cell.step_size,
        "steps": cell.steps,
        "record_every": every,
    }
    walked = descend_vectors(task, k, v, **options, direction=cell.direction)
    start = Overlaps.of(k, v, task)
    zero = np.zeros(cell.repeats)
    reduced = descend(task, start._replace(theta=zero, eta=zero, rho=zero), **options)
    distance = np.stack([walked["distance"].values, reduced["distance"].values])
    return xr.Dataset(
        {
            "predicted": 0.0,
            "measured": (("cell", "route", "repeat", "step"), distance[None]),
            "error": 0.0,
        },
        coords={"route": ["vectors", "overlaps"], "step": walked["step"].values},
    )
