"""Claims about how many samples training needs (Figure 2): how they grow with the length, for attention and for learners without it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims import Control, Hypothesis, Setting, claim, drawn_by, key_for, product
from attlas.sparse_variables.claims.shared import FIGURES, PAPER
from attlas.sparse_variables.task import SparseBoolean
from attlas.sparse_variables.thresholds import LAWS, LEARNERS, Sweep, fit_law, sizes, sweep
from attlas.sparse_variables.training import ADAM, RECIPE_R, Outcome, draw_sets, train
from attlas.statistics import Bound, Order, log_slope

CURVE = "sparse-variables/samples-exponent"
NATS = 3.0
HALF = 0.5
SMALLEST = 0.1
BESIDE = ("L1 logistic", "screening")
UNIFORM_TRIALS = 8
STARTS = {"MLP": 250}
"""Where a search begins, for a learner that needs many more samples than the floor."""

LONG_ENOUGH = Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True)
KNOWN = Hypothesis(f"learner is one of {', '.join(LEARNERS)}", lambda s: s.learner in LEARNERS, defining=True)
TRIALS = Hypothesis("trials >= 8", lambda s: s.trials >= 8, defining=True)


def as_evidence(sweeps: dict[str, Sweep], most: int) -> dict[str, Any]:
    """What sweeps of one length found, each under the name of its learner, at those of all sizes that were looked at."""
    grid = sizes(most)
    share = np.full((len(sweeps), len(grid)), np.nan)
    for row, found in zip(share, sweeps.values(), strict=True):
        row[[grid.index(m) for m in found.samples]] = found.share
    axes = ("cell", "learner")
    replicates = np.array([found.replicates() for found in sweeps.values()])
    return {
        "share": ((*axes, "size"), share[None]),
        "samples": ("size", grid),
        "log_threshold": (axes, [[found.log_threshold for found in sweeps.values()]]),
        "log_error": (axes, replicates.std(-1)[None]),
        "replicates": ((*axes, "replicate"), replicates[None]),
        "censored": (axes, [[found.censored for found in sweeps.values()]]),
    }


def steps_at(cell: Setting) -> int:
    """Longer contexts take more steps: `cell.steps` up to the length 800, and beyond it in proportion to the root of the length."""
    return 25 * math.ceil(cell.steps * max(1.0, math.sqrt(cell.length / 800)) / 25)


def sweeps_of(cell: Setting, names: Sequence[str], key: Array) -> dict[str, Sweep]:
    options: dict[str, Any] = {name: cell[name] for name in ("trials", "most", "function", "sparsity")}
    options["steps"] = steps_at(cell)
    return {name: sweep(key, cell.length, name, start=STARTS.get(name), **options) for name in names}


def threshold_curve(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Thresholds of one learner and, on the same training sets, of those that need no training; and uniform attention where the
    learner succeeds."""
    (cell,) = cells
    key = key_for(seed, CURVE, "trials")
    sweeps = sweeps_of(cell, (cell.learner, *BESIDE), key)
    task = SparseBoolean(cell.length, tuple(range(cell.sparsity)), cell.function)
    enough = math.ceil(math.exp(sweeps[cell.learner].log_threshold))
    data, start = jax.random.split(jax.random.fold_in(key, cell.length))
    options = {"function": cell.function, "sparsity": cell.sparsity}
    few = draw_sets(data, cell.length, [enough], min(UNIFORM_TRIALS, cell.trials), **options)
    return xr.Dataset(
        as_evidence(sweeps, cell.most)
        | {
            "floor": ("cell", [task.floor()]),
            "uniform": ("cell", [LEARNERS["uniform attention"](few, start, steps_at(cell)).mean()]),
        },
        coords={"learner": list(sweeps)},
    )


def exponents(evidence: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """The exponent of each learner's threshold in the length, and its standard error. The threshold of a censored one is a lower limit:
    if its length is above the mean, so is the exponent."""
    lengths = np.broadcast_to(evidence["length"].values[:, None], evidence["log_threshold"].shape)
    values = np.exp(evidence["log_threshold"].values)
    with np.errstate(invalid="ignore"):
        slope, error = log_slope(lengths, values, values * evidence["log_error"].values)
    above = np.log(lengths) > np.log(lengths).mean(0)
    slope = np.where((evidence["censored"].values & ~above).any(0), np.nan, slope)
    return xr.DataArray(slope, dims="learner"), xr.DataArray(error, dims="learner")


# --- the curve -------------------------------------------------------------------------------------------------------

CURVE_PARTS: dict[str, Any] = {
    "source": PAPER,
    "reference": "Figure 2",
    "hypotheses": (LONG_ENOUGH, KNOWN, TRIALS),
    "cells": product("length"),
    "budget": "trials",
}
SHORT = Setting(length=(10, 60, 360), trials=32, most=400, steps=500, function="and", sparsity=3, learner="attention")
LONG = SHORT.replace(length=(25, 50, 100, 200, 400, 800), trials=40)
WIDE = LONG.replace(length=(25, 50, 100, 200, 400, 800, 1600, 3200, 6400))


def below_a_square_root(evidence: xr.Dataset) -> xr.Dataset:
    slope, error = exponents(evidence)
    return evidence.assign(bound=0.5, measured=slope[0], error=error[0])


claim(
    CURVE,
    statement=r"The number of samples with which 80 % of trained one-layer Transformers learn an and of 3 of T bits without a single error grows"
    r" like $T^\alpha$ with $\alpha < 0.5$, if positions begin at 0 and their gradient has one normaliser.",
    words="A context that is a hundred times longer asks attention for two or three times the examples.",
    quick=SHORT,
    paper=LONG,
    rule=Bound(),
    fit=below_a_square_root,
    control=Control("samples that grow by a further factor T", lambda e: e.assign(measured=e["measured"] + 1)),
    figure=drawn_by(f"{FIGURES}.thresholds:threshold_curve"),
    **CURVE_PARTS,
)(threshold_curve)


def above_floor(evidence: xr.Dataset) -> xr.Dataset:
    """Means over the lengths, whose trials are independent."""
    main = evidence.isel(learner=0)
    error = np.sqrt((main["log_error"] ** 2).sum()) / main.sizes["cell"]
    return evidence.assign(lower=np.log(evidence["floor"]).mean(), upper=main["log_threshold"].mean(), error=error)


claim(
    "sparse-variables/above-the-floor",
    statement=r"In the geometric mean over the lengths, training needs more samples than the statistical floor, below which another support explains the"
    r" data too with probability 0.2 or more.",
    words="Training cannot know more than the data do.",
    quick=SHORT,
    paper=LONG,
    rule=Order(),
    fit=above_floor,
    control=Control("a floor of three times the samples", lambda e: e.assign(lower=e["lower"] + math.log(3))),
    figure=drawn_by(f"{FIGURES}.thresholds:above_floor"),
    needs=("sparse-variables/statistical-floor",),
    **CURVE_PARTS,
)(threshold_curve)


def laws_compared(evidence: xr.Dataset) -> xr.Dataset:
    """Half the difference of the misfits, of the thresholds and of their replicates."""
    main = evidence.isel(learner=0)
    lengths, errors = main["length"].values.astype(float), main["log_error"].values
    found = {}
    for law in LAWS:
        misfit, curve = fit_law(law, lengths, main["log_threshold"].values, errors)
        again, _ = fit_law(law, lengths, main["replicates"].values.T, errors)
        found[law] = (misfit, curve, again)
    behind = (found["logarithm"][0] - found["power"][0]) / 2
    spread = ((found["logarithm"][2] - found["power"][2]) / 2).std()
    curves = xr.DataArray([found[law][1] for law in LAWS], dims=("law", "cell"), coords={"law": list(LAWS)})
    return evidence.assign(bound=NATS, measured=behind, error=spread, log_curve=curves)


def steeper(evidence: xr.Dataset) -> xr.Dataset:
    moved = 0.5 * np.log(evidence["length"])
    names = ("log_threshold", "replicates")
    return laws_compared(evidence.assign({name: evidence[name] + moved for name in names}))


claim(
    "sparse-variables/samples-law",
    statement=r"$a + b\ln(T)$ describes the samples that training needs as well as a power $cT^\alpha$ does: its log-likelihood is less than 3 below"
    r" (at the paper's scale over lengths from 25 to 6400).",
    words="A logarithm is enough: the data do not ask for a power of the length.",
    quick=SHORT,
    paper=WIDE,
    rule=Bound(level=1e-2),
    fit=laws_compared,
    control=Control("samples that grow by a further square root of the length", steeper),
    figure=drawn_by(f"{FIGURES}.thresholds:laws_compared"),
    needs=(CURVE,),
    **CURVE_PARTS,
)(threshold_curve)


# --- a learner without attention -------------------------------------------------------------------------------------

RIVALS = "sparse-variables/mlp-exponent"


def exponents_compared(evidence: xr.Dataset) -> xr.Dataset:
    slope, error = exponents(evidence)
    spread = np.hypot(error[0], error[1])
    return evidence.assign(lower=slope[0] + HALF, upper=slope[1], error=spread, exponent=slope, exponent_error=error)


@claim(
    RIVALS,
    source=PAPER,
    reference="Section 5, inductive bias",
    statement=r"Where an MLP on the bits succeeds at all, at short lengths, the exponent of T in the number of samples that it needs exceeds that of"
    r" attention by more than a half.",
    words="What attention gains is not a constant: a network without it pays ever more for a longer context.",
    hypotheses=(LONG_ENOUGH, TRIALS),
    quick=Setting(length=(8, 12, 16), trials=20, most=1200, steps=400, function="and", sparsity=3),
    paper=Setting(length=(8, 11, 16, 22), trials=32, most=2400, steps=400, function="and", sparsity=3),
    rule=Order(),
    fit=exponents_compared,
    control=Control("by more than ten", lambda e: e.assign(lower=e["lower"] + 10 - HALF)),
    figure=drawn_by(f"{FIGURES}.thresholds:rivals"),
    cells=product("length"),
    budget="trials",
    needs=(CURVE,),
)  # fmt: skip
def rival_curves(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    sweeps = sweeps_of(cell, ("attention", "MLP"), key_for(seed, RIVALS, "trials"))
    return xr.Dataset(as_evidence(sweeps, cell.most), coords={"learner": list(sweeps)})


# --- one normaliser --------------------------------------------------------------------------------------------------

NORMALISER = "sparse-variables/one-normaliser"
RECIPES = {
    "one normaliser": RECIPE_R,
    "one per coordinate": dataclasses.replace(RECIPE_R, normaliser="coordinate"),
    "plain Adam": ADAM,
}
EARLY = 25


def lead_of_support(runs: Sequence[Outcome], supports: Sequence[tuple[int, ...]]) -> Float[np.ndarray, " trial"]:
    """How much further than other places those of the support have moved: a ratio of root mean squares."""
    rows = np.array([np.linalg.norm(run.model.positions[:-1], axis=-1) for run in runs])
    relevant = np.zeros(rows.shape, bool)
    for row, support in zip(relevant, supports, strict=True):
        row[list(support)] = True
    squares = rows**2
    return np.sqrt(np.mean(squares, 1, where=relevant) / np.mean(squares, 1, where=~relevant))


def normalisers_compared(evidence: xr.Dataset) -> xr.Dataset:
    solved = evidence["solved"].astype(float)
    difference = solved.sel(recipe="one normaliser") - solved.sel(recipe="one per coordinate")
    error = difference.std("repeat", ddof=1) / math.sqrt(difference.sizes["repeat"])
    return evidence.assign(lower=SMALLEST, upper=difference.mean("repeat"), error=error)


@claim(
    NORMALISER,
    source="attlas",
    reference="why trials memorise",
    statement=r"Near the threshold, with m samples, a step $g_t/\max_u|g_u|$ of all positions by one normaliser solves at least 0.1 more of the trials than a step in which every"
    r" coordinate has its own, everything else being equal.",
    words="Adam moves every place equally fast; what tells a relevant bit from noise is the size of its gradient, and that is divided away.",
    hypotheses=(LONG_ENOUGH, TRIALS),
    quick=Setting(length=100, samples=(50,), trials=60, sparsity=3, function="and", steps=300),
    paper=Setting(length=300, samples=(62, 90, 155), trials=40, sparsity=3, function="and", steps=500),
    rule=Order(),
    fit=normalisers_compared,
    control=Control("at least 0.95 more", lambda e: e.assign(lower=0.95)),
    figure=drawn_by(f"{FIGURES}.thresholds:normalisers"),
    cells=product("samples"),
    budget="trials",
    needs=(CURVE,),
    origin="ours",
)  # fmt: skip
def one_normaliser(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    data, start = (key_for(seed, NORMALISER, purpose) for purpose in ("data", "start"))
    sets = draw_sets(data, cell.length, [cell.samples], cell.trials, function=cell.function, sparsity=cell.sparsity)
    supports = [task.support for task in sets.tasks]
    solved, lead = [], []
    for recipe in RECIPES.values():
        solved.append(train(sets, recipe, key=start, steps=cell.steps)["status"].values[:, 0] == "solved")
        early: list[Outcome] = []
        train(sets, recipe, key=start, steps=EARLY, every=EARLY, finished=early.append)
        lead.append(lead_of_support(sorted(early, key=lambda outcome: outcome.trial), supports))
    axes = ("cell", "recipe", "repeat")
    variables = {"solved": (axes, np.array(solved)[None]), "lead": (axes, np.array(lead)[None])}
    return xr.Dataset(variables, coords={"recipe": list(RECIPES)})
