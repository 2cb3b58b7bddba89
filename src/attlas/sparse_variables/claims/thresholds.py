"""Claims about how many samples training needs (Figure 2): how they grow with the length, for attention and for learners without it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims.compat import (
    Bound,
    Control,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    product,
)
from attlas.sparse_variables.claims.shared import FIGURES, PAPER
from attlas.sparse_variables.rival_learners import MLP
from attlas.sparse_variables.task import FUNCTIONS, SparseBoolean
from attlas.sparse_variables.thresholds import (
    LAWS,
    LEARNERS,
    Learner,
    Sweep,
    fit_law,
    sizes,
    sweep,
    trained_by,
)
from attlas.sparse_variables.training import ADAM, RECIPE_R, Outcome, first_model, train
from attlas.sparse_variables.training_sets import draw_sets

CURVE = "sparse-variables/samples-exponent"
NATS = 3.0
SMALLEST, LEAD = 0.1, 1.25
BESIDE = ("L1 logistic", "screening")
UNIFORM_TRIALS, UNIFORM_LENGTHS = 8, range(25, 51)
"""Uniform attention is tried where it is easiest, at the shortest lengths of the paper's scale: it takes programs of its own."""

FUNCTION = Hypothesis(
    f"function is one of {', '.join(FUNCTIONS)}", lambda s: s.function in FUNCTIONS, defining=True
)
LONG_ENOUGH = Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True)
KNOWN = Hypothesis(
    f"learner is one of {', '.join(LEARNERS)}", lambda s: s.learner in LEARNERS, defining=True
)
TRIALS = Hypothesis("trials >= 8", lambda s: s.trials >= 8, defining=True)


def as_evidence(sweeps: dict[str, Sweep], most: int) -> dict[str, Any]:
    """What sweeps of one length found, each under the name of its learner, at those of all sizes that were looked at."""
    grid = sizes(most)
    share = np.full((len(sweeps), len(grid)), np.nan)
    for row, found in zip(share, sweeps.values(), strict=True):
        row[[grid.index(m) for m in found.samples]] = found.share
    axes = ("cell", "learner")
    replicates = np.array([found.replicates() for found in sweeps.values()])
    errors = [found.error for found in sweeps.values()]
    return {
        "share": ((*axes, "size"), share[None]),
        "samples": ("size", grid),
        "threshold": (axes, [[found.threshold for found in sweeps.values()]]),
        "log_threshold": (axes, [[found.log_threshold for found in sweeps.values()]]),
        "log_error": (axes, [errors]),
        "replicates": ((*axes, "replicate"), replicates[None]),
        "censored": (axes, [[found.censored for found in sweeps.values()]]),
    }


def steps_at(cell: Setting) -> int:
    """Longer contexts take more steps: `cell.steps` up to the length 800, and beyond it in proportion to the root of the length."""
    return 25 * math.ceil(cell.steps * max(1.0, math.sqrt(cell.length / 800)) / 25)


def sweeps_of(
    cell: Setting, learners: dict[str, Learner], key: Array, **start: int
) -> dict[str, Sweep]:
    """The sweep of each learner; the size at which it begins may be given by its name."""
    options: dict[str, Any] = {
        name: cell[name] for name in ("trials", "most", "function", "sparsity")
    }
    options["steps"] = steps_at(cell)
    return {
        name: sweep(key, cell.length, solve, start=start.get(name), **options)
        for name, solve in learners.items()
    }


def threshold_curve(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Thresholds of one learner and, on the same training sets, of those that need no training; and uniform attention where the
    learner succeeds, if the length is small."""
    (cell,) = cells
    key = key_for(seed, CURVE, "trials")
    sweeps = sweeps_of(cell, {name: LEARNERS[name] for name in (cell.learner, *BESIDE)}, key)
    task = SparseBoolean(cell.length, tuple(range(cell.sparsity)), cell.function)
    uniform = (
        uniform_share(cell, sweeps[cell.learner], key) if cell.length in UNIFORM_LENGTHS else np.nan
    )
    return xr.Dataset(
        as_evidence(sweeps, cell.most)
        | {"floor": ("cell", [task.floor()]), "uniform": ("cell", [uniform])},
        coords={"learner": list(sweeps)},
    )


def uniform_share(cell: Setting, found: Sweep, key: Array) -> float:
    """The share of trials that uniform attention solves with as many samples as the learner needs."""
    data, start = jax.random.split(jax.random.fold_in(key, cell.length))
    options = {"function": cell.function, "sparsity": cell.sparsity}
    few = draw_sets(
        data, cell.length, [math.ceil(found.threshold)], min(UNIFORM_TRIALS, cell.trials), **options
    )
    return float(LEARNERS["uniform attention"](few, start, steps_at(cell)).mean())


def pulls(evidence: xr.Dataset) -> xr.DataArray:
    """What each length adds to the slope of a learner's log threshold in the log length, for a unit of it: least squares weighted by the errors."""
    logs, weights = np.log(evidence["length"]), evidence["log_error"] ** -2.0
    weights = weights * (logs - (weights * logs).sum("cell") / weights.sum("cell"))
    return weights / (weights * logs).sum("cell")


def exponents(evidence: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """The exponent of each learner's threshold in the length, and its standard error."""
    pull = pulls(evidence)
    slope = (pull * evidence["log_threshold"]).sum("cell", skipna=False)
    return slope, ((pull * evidence["log_error"]) ** 2).sum("cell", skipna=False) ** 0.5


def unless_censored(value: Any, evidence: xr.Dataset, learner: int = 0) -> Any:
    """`value`, or nan if it rests on a threshold that is only known to be larger."""
    return np.nan if evidence["censored"].isel(learner=learner).any() else value


def as_lower_limit(slope: xr.DataArray, evidence: xr.Dataset, learner: int) -> Any:
    """The exponent of a learner some of whose thresholds may be lower limits: it is one too if these are at lengths that add to it."""
    wrong = evidence["censored"].isel(learner=learner) & (
        pulls(evidence).isel(learner=learner) <= 0
    )
    return np.nan if wrong.any() else slope[learner]


# --- the curve -------------------------------------------------------------------------------------------------------

CURVE_PARTS: dict[str, Any] = {
    "source": PAPER,
    "reference": "Figure 2",
    "origin": "our reading",
    "hypotheses": (LONG_ENOUGH, FUNCTION, KNOWN, TRIALS),
    "cells": product("length"),
    "budget": "trials",
    "long": True,
}
SHORT = Setting(
    length=(16, 64, 400),
    trials=36,
    most=400,
    steps=350,
    function="and",
    sparsity=3,
    learner="attention",
)
LONG = SHORT.replace(length=(25, 50, 100, 200, 400, 800), trials=48, steps=500)
WIDE = LONG.replace(length=(25, 50, 100, 200, 400, 800, 1600))


def below_a_square_root(evidence: xr.Dataset) -> xr.Dataset:
    slope, error = exponents(evidence)
    return evidence.assign(bound=0.5, measured=unless_censored(slope[0], evidence), error=error[0])


def in_proportion(evidence: xr.Dataset) -> xr.Dataset:
    """The same evidence if thresholds were proportional to the length."""
    return below_a_square_root(
        evidence.assign(
            log_threshold=xr.zeros_like(evidence["log_threshold"]) + np.log(evidence["length"])
        )
    )


claim(
    CURVE,
    statement=r"The number of samples with which 80 % of trained one-layer Transformers learn an AND of 3 of T bits without a single error grows"
    r" like $T^\alpha$ with $\alpha < 0.5$, if positions begin at 0 and their gradient has one normaliser (500 steps, 350 at quick scale; beyond T = 800 more, in proportion to $\sqrt T$).",
    words="A context that is thirty times longer asks attention for some twice the examples, not for thirty times as many.",
    quick=SHORT,
    paper=LONG,
    rule=Bound(),
    fit=below_a_square_root,
    control=Control("samples in proportion to the length, with the same errors", in_proportion),
    figure=drawn_by(f"{FIGURES}.thresholds:threshold_curve"),
    **CURVE_PARTS,
)(threshold_curve)


def above_floor(evidence: xr.Dataset) -> xr.Dataset:
    """Means over the lengths, whose trials are independent."""
    main = evidence.isel(learner=0)
    error = np.sqrt((main["log_error"] ** 2).sum()) / main.sizes["cell"]
    upper = main["log_threshold"].mean()  # of which a censored one is a lower limit
    return evidence.assign(lower=np.log(evidence["floor"]).mean(), upper=upper, error=error)


claim(
    "sparse-variables/above-the-floor",
    statement=r"In the geometric mean over the lengths, training needs more samples than the statistical floor, the number with which independent samples single out"
    r" the support with probability 0.8. Training is given only sets that do, so that this is no lower limit: an exhaustive search needs fewer, and of short sequences L1 logistic regression does too.",
    words="Training needs more samples than it takes to tell the support from every other; what it lacks is not information.",
    quick=SHORT,
    paper=LONG,
    rule=Order(level=1e-2),
    fit=above_floor,
    control=Control(
        "a floor of twice the samples", lambda e: e.assign(lower=e["lower"] + math.log(2))
    ),
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
    curves = xr.DataArray(
        [found[law][1] for law in LAWS], dims=("law", "cell"), coords={"law": list(LAWS)}
    )
    return evidence.assign(
        bound=NATS, measured=unless_censored(behind, evidence), error=spread, log_curve=curves
    )


def steeper(evidence: xr.Dataset) -> xr.Dataset:
    moved = 0.75 * np.log(evidence["length"])
    names = ("log_threshold", "replicates")
    return laws_compared(evidence.assign({name: evidence[name] + moved for name in names}))


claim(
    "sparse-variables/samples-law",
    statement=r"$a + b\ln(T)$ describes the samples that training needs as well as a power $cT^\alpha$ does: its log-likelihood is less than 3 below"
    r" (at the paper's scale over lengths from 25 to 1600).",
    words="A logarithm is enough to describe the growth. A power would do too: over these lengths a logarithm could not be told from powers up to some T^0.4.",
    quick=SHORT,
    paper=WIDE,
    rule=Bound(level=1e-2),
    fit=laws_compared,
    control=Control("samples that grow by a further factor of $T^{3/4}$", steeper),
    figure=drawn_by(f"{FIGURES}.thresholds:laws_compared"),
    needs=(CURVE,),
    **CURVE_PARTS,
)(threshold_curve)


# --- a learner without attention -------------------------------------------------------------------------------------

RIVALS = "sparse-variables/mlp-exponent"
ACCURACY = 0.99


def exponents_compared(evidence: xr.Dataset) -> xr.Dataset:
    slope, error = exponents(evidence)
    return evidence.assign(
        lower=unless_censored(slope[0], evidence),
        upper=as_lower_limit(slope, evidence, 1),
        error=np.hypot(error[0], error[1]),
        exponent=slope,
        exponent_error=error,
    )


@claim(
    RIVALS,
    long=True,
    source=PAPER,
    reference="Section 5, inductive bias",
    origin="our reading",
    statement=r"The exponent of T in the number of samples with which 80 % of trials are right on 99 % of validation is larger for an MLP on the bits than for attention"
    r" (lengths 16 and 64; at the paper's scale 16 to 128).",
    words="What attention gains is not a constant: a network without it pays for a longer context in proportion.",
    hypotheses=(
        LONG_ENOUGH,
        TRIALS,
        Hypothesis("length >= 16: shorter ones can be learnt by heart", lambda s: s.length >= 16),
    ),
    quick=Setting(length=(16, 64), trials=40, most=1200, steps=200, function="and", sparsity=3),
    paper=Setting(
        length=(16, 32, 64, 128), trials=40, most=2400, steps=400, function="and", sparsity=3
    ),
    rule=Order(),
    fit=exponents_compared,
    control=Control(
        "attention that needs a further factor of $T^2$", lambda e: e.assign(lower=e["lower"] + 2)
    ),
    figure=drawn_by(f"{FIGURES}.thresholds:rivals"),
    cells=product("length"),
    budget="trials",
    needs=(CURVE,),
)
def rival_curves(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    rivals = {"attention": trained_by(RECIPE_R, ACCURACY), "MLP": trained_by(MLP, ACCURACY)}
    sweeps = sweeps_of(cell, rivals, key_for(seed, RIVALS, "trials"), MLP=6 * cell.length)
    return xr.Dataset(as_evidence(sweeps, cell.most), coords={"learner": list(sweeps)})


# --- one normaliser --------------------------------------------------------------------------------------------------

NORMALISER = "sparse-variables/one-normaliser"
ONE, EACH = "one normaliser", "one per coordinate"
RECIPES = {
    ONE: RECIPE_R,
    EACH: dataclasses.replace(RECIPE_R, normaliser="coordinate"),
    "plain Adam": ADAM,
}
EARLY = 25


def lead_of_support(
    moved: Float[np.ndarray, "trial length d"], supports: Sequence[tuple[int, ...]]
) -> Float[np.ndarray, " trial"]:
    """How much further than other places those of the support have moved: a ratio of root mean squares."""
    squares = (moved**2).mean(-1)
    relevant = np.zeros(squares.shape, bool)
    for row, support in zip(relevant, supports, strict=True):
        row[list(support)] = True
    return np.sqrt(np.mean(squares, 1, where=relevant) / np.mean(squares, 1, where=~relevant))


def normalisers_compared(evidence: xr.Dataset) -> xr.Dataset:
    """Paired differences: of the trials that are solved, and of the logarithm of the lead."""
    both = xr.Dataset(
        {"solved": evidence["solved"].astype(float), "lead": np.log(evidence["lead"])}
    ).to_array("difference")
    differences = (both.sel(recipe=ONE) - both.sel(recipe=EACH)).drop_vars("difference")
    n = differences.sizes["repeat"]
    # Where no pair differs from another, the error is that of the least that could have been seen.
    error = np.sqrt(np.maximum(differences.var("repeat", ddof=1), 1 / n) / n)
    lower = xr.DataArray([SMALLEST, math.log(LEAD)], dims="difference")
    return evidence.assign(lower=lower, upper=differences.mean("repeat"), error=error)


@claim(
    NORMALISER,
    long=True,
    source="attlas",
    reference="why trials memorise",
    statement=r"With one normaliser for the position table, $\max_t|g_t|^2/d$, in place of one for every coordinate, $g_{tj}^2$, everything else being equal, the relevant places are"
    r" 1.25 times or more further ahead of the others after 25 steps, and near the threshold at least 0.1 more of the trials are solved.",
    words="Adam moves every place equally fast; what tells a relevant bit from noise is the size of its gradient, and that is divided away.",
    hypotheses=(
        LONG_ENOUGH,
        TRIALS,
        Hypothesis(
            f"recipe is among {', '.join(RECIPES)}, with the first two",
            lambda s: {ONE, EACH} <= set(s.recipe) <= set(RECIPES),
            defining=True,
        ),
    ),
    quick=Setting(
        length=64,
        samples=(43,),
        recipe=(ONE, EACH),
        trials=30,
        sparsity=3,
        function="and",
        steps=150,
    ),
    paper=Setting(
        length=300,
        samples=(62, 90, 155),
        recipe=tuple(RECIPES),
        trials=40,
        sparsity=3,
        function="and",
        steps=500,
    ),
    rule=Order(),
    fit=normalisers_compared,
    control=Control(
        "0.95 more of the trials, and five times further ahead",
        lambda e: e.assign(lower=("difference", [0.95, math.log(5)])),
    ),
    figure=drawn_by(f"{FIGURES}.thresholds:normalisers"),
    cells=product("samples"),
    budget="trials",
    needs=(CURVE,),
    origin="ours",
)
def one_normaliser(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    data, start = (key_for(seed, NORMALISER, purpose) for purpose in ("data", "start"))
    sets = draw_sets(
        data,
        cell.length,
        [cell.samples],
        cell.trials,
        function=cell.function,
        sparsity=cell.sparsity,
    )
    solved, lead = [], []
    for recipe in (RECIPES[name] for name in cell.recipe):
        solved.append(
            train(sets, recipe, key=start, steps=cell.steps, attention=False)["status"].values[:, 0]
            == "solved"
        )
        early: list[Outcome] = []
        train(
            sets,
            recipe,
            key=start,
            steps=EARLY,
            every=EARLY,
            stop=False,
            attention=False,
            finished=early.append,
        )
        moved = [
            outcome.model.positions
            - first_model(recipe, start, outcome.trial, cell.length).positions
            for outcome in early
        ]
        lead.append(
            lead_of_support(
                np.array(moved)[:, :-1], [sets.tasks[outcome.trial].support for outcome in early]
            )
        )
    axes = ("cell", "recipe", "repeat")
    variables = {"solved": (axes, np.array(solved)[None]), "lead": (axes, np.array(lead)[None])}
    return xr.Dataset(variables, coords={"recipe": list(cell.recipe)})
