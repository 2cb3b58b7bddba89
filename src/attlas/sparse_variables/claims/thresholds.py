"""Claims about the samples that training needs (Figure 2), with attention and without."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float

from attlas.claims import Bound, Control, Draws, Hypothesis, Order, Setting, Values, on, product
from attlas.figure import Figure, Panels, row
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import FUNCTION, LENGTH, SPARSE, first_places
from attlas.sparse_variables.rival_learners import MLP
from attlas.sparse_variables.thresholds import (
    LAWS,
    LEARNERS,
    Learner,
    ThresholdSearch,
    find_threshold,
    fit_law,
    sizes,
    trained_by,
)
from attlas.sparse_variables.training import ADAM, RECIPE_R, Outcome, Recipe, first_model, train
from attlas.sparse_variables.training_sets import TrainingSets, draw_sets

MAX_LIKELIHOOD_LOSS = 3.0
"""By how much the logarithm's log-likelihood may be below the power's."""

UNTRAINED = ("L1 logistic", "screening")
"""Learners without training, on the same training sets."""

UNIFORM_TRIALS, UNIFORM_LENGTHS = 8, range(25, 51)
"""Uniform attention compiles programs of its own: it is tried at short lengths only."""

VALIDATION_SHARE = 0.99
"""The part of validation that attention and the MLP must get right."""

ONE, EACH = "one normaliser", "one per coordinate"
RECIPES = {
    ONE: RECIPE_R,
    EACH: dataclasses.replace(RECIPE_R, normaliser="coordinate"),
    "plain Adam": ADAM,
}
EARLY_STEPS = 25

TRIALS = Hypothesis("trials >= 8", lambda s: s.trials >= 8, defining=True)


@sparse_variables.measurement(
    "samples-exponent",
    quick=Setting(
        length=(16, 64, 400),
        trials=36,
        most=400,
        steps=350,
        function="and",
        sparsity=3,
        learner="attention",
    ),
    paper=dict(length=(25, 50, 100, 200, 400, 800), trials=48, steps=500),
    origin="our reading",
    hypotheses=(
        SPARSE,
        FUNCTION,
        TRIALS,
        Hypothesis(
            f"learner is one of {', '.join(LEARNERS)}",
            lambda s: s.learner in LEARNERS,
            defining=True,
        ),
    ),
    cells=product("length"),
    budget="trials",
    long=True,
)
def threshold_curve(cell: Setting, draws: Draws) -> Values:
    """Thresholds of a learner and of `UNTRAINED`, and uniform attention's success if T is short."""
    key = draws("trials")
    sweeps = run_sweeps(cell, {name: LEARNERS[name] for name in (cell.learner, *UNTRAINED)}, key)
    short = cell.length in UNIFORM_LENGTHS
    return {
        **summarise_sweeps(sweeps, cell.most),
        "floor": first_places(cell, cell.function).floor(),
        "uniform": uniform_share(cell, sweeps[cell.learner], key) if short else np.nan,
    }


def run_sweeps(
    cell: Setting, learners: dict[str, Learner], key: Array, **start: int
) -> dict[str, ThresholdSearch]:
    """The sweep of each learner; the size at which it begins may be given by its name."""
    names = ("trials", "most", "function", "sparsity")
    options: dict[str, Any] = {name: cell[name] for name in names} | {"steps": steps_at(cell)}
    return {
        name: find_threshold(key, cell.length, solve, start=start.get(name), **options)
        for name, solve in learners.items()
    }


def steps_at(cell: Setting) -> int:
    """`cell.steps` up to the length 800, and beyond it in proportion to the root of the length."""
    return 25 * math.ceil(cell.steps * max(1.0, math.sqrt(cell.length / 800)) / 25)


def summarise_sweeps(sweeps: dict[str, ThresholdSearch], most: int) -> dict[str, Any]:
    """Thresholds by learner, and the share of solved trials at the sizes that were tried."""
    grid, found = sizes(most), list(sweeps.values())
    share = np.full((len(found), len(grid)), np.nan)
    for line, each in zip(share, found, strict=True):
        line[[grid.index(m) for m in each.samples]] = each.share
    return {
        **on(
            "learner",
            threshold=[each.threshold for each in found],
            log_threshold=[each.log_threshold for each in found],
            log_error=[each.error for each in found],
            censored=[each.censored for each in found],
        ),
        "replicates": (("learner", "replicate"), [each.replicates() for each in found]),
        "share": (("learner", "size"), share),
        "samples": ("size", grid),
        "learner": list(sweeps),
    }


def uniform_share(cell: Setting, found: ThresholdSearch, key: Array) -> float:
    """The share of trials that uniform attention solves with the samples that `found` needs."""
    data, start = jax.random.split(jax.random.fold_in(key, cell.length))
    trials = min(UNIFORM_TRIALS, cell.trials)
    sets = draw_trials(data, cell, math.ceil(found.threshold), trials)
    return float(LEARNERS["uniform attention"](sets, start, steps_at(cell)).mean())


def draw_trials(key: Array, cell: Setting, samples: int, trials: int) -> TrainingSets:
    task: dict[str, Any] = {"function": cell.function, "sparsity": cell.sparsity}
    return draw_sets(key, cell.length, [samples], trials, **task)


@sparse_variables.claim(
    measured_by=threshold_curve,
    reference="Figure 2",
    statement=r"The number of samples with which 80 % of trained one-layer Transformers learn an"
    r" AND of 3 of T bits without a single error grows like $T^\alpha$ with $\alpha < 0.5$, if"
    r" positions begin at 0 and their gradient has one normaliser (500 steps, 350 at quick scale;"
    r" beyond T = 800 more, in proportion to $\sqrt T$).",
    words="A context that is thirty times longer asks attention for about twice the examples, not"
    " for thirty times as many.",
    rule=Bound(),
    control=Control(
        "samples in proportion to the length, with the same errors",
        lambda e: compare_exponent(
            e.assign(log_threshold=xr.zeros_like(e.log_threshold) + np.log(e.length))
        ),
    ),
)
def samples_exponent(evidence: xr.Dataset) -> Values:
    return compare_exponent(evidence)


def compare_exponent(evidence: xr.Dataset) -> Values:
    slope, error = exponents(evidence)
    return {"bound": 0.5, "measured": unless_censored(slope[0], evidence), "error": error[0]}


@samples_exponent.figure
def thresholds_and_success(evidence: xr.Dataset) -> Panels:
    slope, error = float(evidence["measured"]), float(evidence["error"])
    power = f"T to the power {slope:.2f} ± {2 * error:.2f}; " if np.isfinite(slope) else ""
    solved = np.nanmax(evidence["uniform"].values, initial=-1)
    some = f"up to {solved:.0%}" if solved else "none"
    uniform = f"uniform attention solves {some} with as many samples; " if solved >= 0 else ""
    success = Figure(
        evidence.isel(learner=0),
        x="samples m",
        y="share of trials solved",
        log="x",
        domain={"y": (0, 1)},
        legend={"length": LENGTH},
        width=300,
    )
    return row(
        draw_thresholds(evidence).lines("length", "floor", theory=True),
        success.lines("samples", "share", color="length", points=True).rule(0.8, "80 %"),
        title="Samples that training needs, against the length",
        note=f"{describe_task(evidence)}: {power}{uniform}bars: two standard errors; ≥: lower"
        " limits; dashed: statistical floor",
    )


def draw_thresholds(
    evidence: xr.Dataset, title: str = "", note: str = "", log: str = "x"
) -> Figure:
    """Thresholds against the length, a line for each learner."""
    logs, error = evidence["log_threshold"], evidence["log_error"]
    shown = evidence.assign(
        threshold=np.exp(logs),
        low=np.exp(logs - 2 * error),
        high=np.exp(logs + 2 * error),
        limit=xr.where(evidence["censored"], "≥", ""),
    )
    return (
        Figure(
            shown,
            title,
            note,
            x=LENGTH,
            y="samples for 80 % of trials",
            log=log,
            legend={"learner": None},
        )
        .lines("length", "threshold", color="learner")
        .spans("length", "low", "high", color="learner", width=1)
        .points("length", "threshold", color="learner", size=55)
        .texts("length", "threshold", "limit", color="learner")
    )


def describe_task(evidence: xr.Dataset) -> str:
    first = evidence.isel(cell=0)
    task = f"{first['function'].item()} of {first['sparsity'].item()} bits"
    return f"{task}, {first['trials'].item()} trials a point"


def slope_weights(evidence: xr.Dataset) -> xr.DataArray:
    """The weight of each length's log threshold in the slope: least squares, weighted by errors."""
    logs, weights = np.log(evidence["length"]), evidence["log_error"] ** -2.0
    weights = weights * (logs - (weights * logs).sum("cell") / weights.sum("cell"))
    return weights / (weights * logs).sum("cell")


def exponents(evidence: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """The exponent of each learner's threshold in the length, and its standard error."""
    weights = slope_weights(evidence)
    slope = (weights * evidence["log_threshold"]).sum("cell", skipna=False)
    return slope, ((weights * evidence["log_error"]) ** 2).sum("cell", skipna=False) ** 0.5


def unless_censored(value: Any, evidence: xr.Dataset) -> Any:
    """`value`, or nan if a threshold of the first learner is only known to be larger."""
    return np.nan if evidence["censored"].isel(learner=0).any() else value


@sparse_variables.claim(
    measured_by=threshold_curve,
    reference="Figure 2",
    statement=r"$a + b\ln(T)$ describes the samples that training needs as well as a power"
    r" $cT^\alpha$ does: its log-likelihood is less than 3 below (at the paper's scale over lengths"
    r" from 25 to 1600).",
    words="A logarithm is enough to describe the growth. A power would do too: over these lengths a"
    " logarithm could not be told from powers up to about T^0.4.",
    paper=dict(length=(25, 50, 100, 200, 400, 800, 1600)),
    rule=Bound(level=1e-2),
    control=Control(
        "samples that grow by a further factor of $T^{3/4}$",
        lambda e: compare_laws(
            e.assign({n: e[n] + 0.75 * np.log(e.length) for n in ("log_threshold", "replicates")})
        ),
    ),
    needs=("samples-exponent",),
)
def samples_law(evidence: xr.Dataset) -> Values:
    return compare_laws(evidence)


def compare_laws(evidence: xr.Dataset) -> Values:
    """Half the difference of the misfits, of the thresholds and of their replicates."""
    main = evidence.isel(learner=0)
    lengths, errors = main["length"].values.astype(float), main["log_error"].values
    fits = {law: fit_law(law, lengths, main["log_threshold"].values, errors) for law in LAWS}
    again = {law: fit_law(law, lengths, main["replicates"].values.T, errors)[0] for law in LAWS}
    behind = (fits["logarithm"][0] - fits["power"][0]) / 2
    return {
        "bound": MAX_LIKELIHOOD_LOSS,
        "measured": unless_censored(behind, evidence),
        "error": ((again["logarithm"] - again["power"]) / 2).std(),
        **{f"log_{law}": ("cell", fits[law][1]) for law in LAWS},
    }


@samples_law.figure
def laws_compared(evidence: xr.Dataset) -> Figure:
    behind, error = float(evidence["measured"]), float(evidence["error"])
    figure = draw_thresholds(
        evidence.isel(learner=[0]),
        "A logarithm or a power of the length",
        f"{describe_task(evidence)}: the logarithm's log-likelihood is {abs(behind):.2g}"
        f" {'behind' if behind > 0 else 'ahead of'} the power's (standard error {error:.2g})",
    )
    curves = evidence.assign({law: np.exp(evidence[f"log_{law}"]) for law in LAWS})
    names = {"logarithm": "a + b ln T", "power": "c Tᵅ"}
    return figure.lines("length", names, dash="series", color="", theory="solid", data=curves)


@sparse_variables.measurement(
    "mlp-exponent",
    quick=Setting(length=(16, 64), trials=40, most=1200, steps=200, function="and", sparsity=3),
    paper=dict(length=(16, 32, 64, 128), most=2400, steps=400),
    hypotheses=(SPARSE, TRIALS),
    cells=product("length"),
    budget="trials",
    long=True,
)
def rival_curves(cell: Setting, draws: Draws) -> Values:
    """Thresholds of attention and of an MLP, to `VALIDATION_SHARE`."""
    recipes = {"attention": RECIPE_R, "MLP": MLP}
    learners = {name: trained_by(recipe, VALIDATION_SHARE) for name, recipe in recipes.items()}
    sweeps = run_sweeps(cell, learners, draws("trials"), MLP=6 * cell.length)
    return summarise_sweeps(sweeps, cell.most)


@sparse_variables.claim(
    measured_by=rival_curves,
    reference="Section 5, inductive bias",
    origin="our reading",
    statement=r"The exponent of T in the number of samples with which 80 % of trials are right on"
    r" 99 % of validation is larger for an MLP on the bits than for attention (lengths 16 and 64;"
    r" at the paper's scale 16 to 128).",
    words="What attention gains is not a constant factor: a network without it needs ever more"
    " samples in comparison as the context grows.",
    hypotheses=(
        Hypothesis("length >= 16: shorter ones can be learnt by heart", lambda s: s.length >= 16),
    ),
    rule=Order(),
    control=Control(
        "attention that needs a further factor of $T^2$", lambda e: {"lower": e.lower + 2}
    ),
    needs=("samples-exponent",),
)
def mlp_exponent(evidence: xr.Dataset) -> Values:
    slope, error = exponents(evidence)
    # The MLP's exponent is a lower limit if thresholds that are ones have a positive weight in it.
    limits, weights = (x.isel(learner=1) for x in (evidence["censored"], slope_weights(evidence)))
    return {
        "lower": unless_censored(slope[0], evidence),
        "upper": np.nan if (limits & (weights <= 0)).any() else slope[1],
        "error": np.hypot(error[0], error[1]),
        "exponent": slope,
        "exponent_error": error,
    }


@mlp_exponent.figure
def rivals(evidence: xr.Dataset) -> Figure:
    slopes = zip(
        evidence["learner"].values,
        evidence["exponent"].values,
        evidence["exponent_error"].values,
        strict=True,
    )
    words = ", ".join(f"{name} {slope:.2f} ± {2 * error:.2f}" for name, slope, error in slopes)
    return draw_thresholds(
        evidence,
        "A network without attention needs ever more samples as the length grows",
        f"to 99 % of validation; exponents: {words}; ≥: lower limits",
        log="xy",
    )


@sparse_variables.claim(
    source="attlas",
    reference="why trials memorise",
    origin="ours",
    statement=r"With one normaliser for the position table, $\max_t|g_t|^2/d$, in place of one for"
    r" every coordinate, $g_{tj}^2$, everything else being equal, the relevant places are 1.25"
    r" times or more further ahead of the others after 25 steps, and near the threshold at least"
    r" 0.1 more of the trials are solved.",
    words="Adam moves every place equally fast; what tells a relevant bit from noise is the size of"
    " its gradient, and that is divided away.",
    hypotheses=(
        SPARSE,
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
    paper=dict(length=300, samples=(62, 90, 155), recipe=tuple(RECIPES), trials=40, steps=500),
    cells=product("samples"),
    budget="trials",
    long=True,
    rule=Order(),
    control=Control(
        "0.95 more of the trials, and five times further ahead",
        lambda e: {"lower": ("difference", [0.95, math.log(5)])},
    ),
    needs=("samples-exponent",),
)
def one_normaliser(cell: Setting, draws: Draws) -> Values:
    """Paired differences of the trials that are solved and of the logarithm of the lead."""
    sets = draw_trials(draws("data"), cell, cell.samples, cell.trials)
    start, recipes = draws("start"), [RECIPES[name] for name in cell.recipe]
    ends = [train(sets, recipe, key=start, steps=cell.steps) for recipe in recipes]
    solved = np.array([end["status"].values[:, 0] == "solved" for end in ends])
    lead = np.array([early_lead(sets, recipe, start) for recipe in recipes])
    pair = [cell.recipe.index(ONE), cell.recipe.index(EACH)]
    upper, error = paired_differences(solved[pair], lead[pair])
    return {
        **on("difference", lower=[0.1, math.log(1.25)], upper=upper, error=error),
        **on("recipe repeat", solved=solved, lead=lead),
        "recipe": list(cell.recipe),
    }


def paired_differences(
    solved: Bool[np.ndarray, "2 trial"], lead: Float[np.ndarray, "2 trial"]
) -> tuple[np.ndarray, np.ndarray]:
    """Of two recipes: means over trials of what is solved and of the log of the lead; errors."""
    differences = np.array([x[0] - x[1] for x in (solved.astype(float), np.log(lead))])
    trials = solved.shape[1]
    # Where no pair differs from another, the error is that of the least that could have been seen.
    variance = np.maximum(differences.var(1, ddof=1), 1 / trials)
    return differences.mean(1), np.sqrt(variance / trials)


@one_normaliser.figure
def normalisers(evidence: xr.Dataset) -> Panels:
    shares = evidence.assign(share=evidence["solved"].astype(float).mean("repeat"))
    solved = Figure(
        shares,
        x="samples m",
        y="share of trials solved",
        zero="-x",
        domain={"y": (0, 1)},
        legend={"recipe": None},
        width=340,
    )
    leads = Figure(
        evidence.isel(cell=[0]),
        x="relevant over irrelevant movement, 25 steps",
        y="",
        log="x",
        width=300,
    )
    return row(
        solved.lines("samples", "share", color="recipe").points(
            "samples", "share", color="recipe", size=60
        ),
        leads.ticks("lead", "recipe", color="recipe", legend=False, theory=False),
        title="One normaliser for the position table",
        note=f"T = {int(evidence['length'].values.flat[0])}, the same training sets; a tick is a"
        " trial",
    )


def early_lead(sets: TrainingSets, recipe: Recipe, start: Array) -> Float[np.ndarray, " trial"]:
    """`lead_of_support` after `EARLY_STEPS`."""
    found: list[Outcome] = []
    options: dict[str, Any] = {"steps": EARLY_STEPS, "every": EARLY_STEPS, "stop": False}
    train(sets, recipe, key=start, finished=found.append, **options)
    moved = [
        end.model.positions - first_model(recipe, start, end.trial, sets.tasks[0].length).positions
        for end in found
    ]
    supports = [sets.tasks[end.trial].support for end in found]
    return lead_of_support(np.array(moved)[:, :-1], supports)


def lead_of_support(
    moved: Float[np.ndarray, "trial length d"], supports: Sequence[tuple[int, ...]]
) -> Float[np.ndarray, " trial"]:
    """How much further the support's places have moved than others: ratio of root mean squares."""
    squares = (moved**2).mean(-1)
    relevant = np.zeros(squares.shape, bool)
    for line, support in zip(relevant, supports, strict=True):
        line[list(support)] = True
    return np.sqrt(np.mean(squares, 1, where=relevant) / np.mean(squares, 1, where=~relevant))
