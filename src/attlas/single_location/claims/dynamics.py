"""Claims about projected gradient descent: the exact reduction and the invariant manifold."""

import numpy as np
import xarray as xr

from attlas.claims import Agreement, Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.figure import Figure, floored, greek
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import (
    STABLE,
    paper_task,
    random_heads,
    step_options,
    task_of,
)
from attlas.single_location.descent import descend, descend_vectors
from attlas.single_location.population import Overlaps


@single_location.claim(
    kind="two routes",
    reference="Definition 1 in five dimensions",
    origin="ours",
    statement=r"Projected gradient descent on $(k, v) \in (S^{d-1})^2$ closes on"
    r" $(\kappa,\nu,\theta,\eta,\rho)$ for every $d \ge 4$: the five overlaps of the next iterate"
    r" are functions of the present five.",
    words="Descent in any dimension is a map of five numbers, exactly.",
    hypotheses=STABLE,
    quick=paper_task(dim=(4, 400), step_size=(1e-2, 1e-3), lam=0.7, repeats=8, steps=400),
    paper=dict(dim=(4, 5, 40, 400), step_size=(1e-2, 1e-2, 4e-3, 1e-3), repeats=30, steps=2000),
    cells=together("dim", "step_size"),
    budget="repeats",
    rule=Agreement(rounding=1e-10),
    control=Control(
        "a step size 0.1 % larger on the overlaps", lambda e: {"predicted": e.larger_step}
    ),
)
def exact_reduction(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell, draws("stars"))
    k, v = random_heads(draws("start"), cell.repeats, cell.dim)
    start, options = Overlaps.of(k, v, task), step_options(cell, 40)
    walked = descend_vectors(task, k, v, **options)
    reduced = descend(task, start, **options)
    faster = descend(task, start, **options | {"step_size": 1.001 * cell.step_size})
    return {
        **on(
            "overlap repeat step",
            predicted=stacked_overlaps(reduced),
            measured=stacked_overlaps(walked),
            larger_step=stacked_overlaps(faster),
        ),
        "error": 0.0,
        "overlap": list(Overlaps._fields),
        "step": walked["step"].values,
    }


@exact_reduction.figure
def paths(evidence: xr.Dataset) -> Figure:
    return (
        Figure(
            greek(evidence, "overlap").isel(repeat=0),
            "Descent in d dimensions and on five overlaps",
            "lines: five overlaps; points: vectors; one start each",
            y="overlap",
        )
        .lines("step", "predicted", color="overlap")
        .points("step", "measured", color="overlap", size=16)
        .facet("d = {dim}")
    )


def stacked_overlaps(path: xr.Dataset) -> np.ndarray:
    return np.stack([path[name].values for name in Overlaps._fields])


@single_location.claim(
    kind="two routes",
    reference="Lemma 4",
    origin="our reading",
    statement=r"The manifold $\{\theta = \eta = \rho = 0\}$ is invariant under projected gradient"
    r" descent.",
    words="If at the start neither vector looks where the other should, this stays so for ever.",
    hypotheses=(
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
    largest = evidence["measured"].max("repeat")
    return (
        Figure(
            floored(largest, 1e-20).to_dataset(name="distance"),
            "Starts on the manifold stay on it",
            "exact zeros are drawn at 1e-20",
            y="largest distance to the manifold",
            log="y",
            domain={"y": (1e-20, 10)},
            legend={"dim": "d"},
        )
        .lines("step", "distance", points=True, color="dim", dash="route")
        .rule(1e-12, "what the rule allows")
    )


def unit_part_orthogonal(x: np.ndarray, *directions: np.ndarray) -> np.ndarray:
    """The part of `x` [repeat, dim] orthogonal to the orthonormal `directions`, normalised."""
    for direction in directions:
        x = x - (x * direction).sum(-1, keepdims=True) * direction
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
