"""Claims about samples: how many any learner needs, and how many training does (Figure 2)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, product, together
from attlas.claims.rules import Approximation, Bound, Order
from attlas.figure import Figure, Panels, row
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import (
    FUNCTION,
    LENGTH,
    SAMPLES,
    SPARSE,
    first_places,
    floored_error,
    one_of,
)
from attlas.sparse_variables.rival_learners import MLP
from attlas.sparse_variables.task import Batch, SparseBoolean
from attlas.sparse_variables.thresholds import (
    LEARNERS,
    SEARCHED,
    ThresholdSearch,
    find_threshold,
    fit_thresholds,
    sizes,
    trained_by,
)
from attlas.sparse_variables.training import ADAM, RECIPE_R, Outcome, Recipe, first_model, train
from attlas.sparse_variables.training_sets import TrainingSets, draw_sets

ONE, EACH = "one normaliser", "one per coordinate"
RECIPES = {
    ONE: RECIPE_R,
    EACH: dataclasses.replace(RECIPE_R, normaliser="coordinate"),
    "plain Adam": ADAM,
}

AND: dict[str, Any] = {"function": "and", "sparsity": 3}

FURTHER_POWER = Control(
    "samples that grow by a further factor of $T^{{{size:.2g}}}$",
    lambda e, size: {"bound": e.bound - size},
    size=0.75,
)

RIVAL = "MLP, 99 %"
"""A learner of whose trials 99 % of validation is asked."""

TRIALS = Hypothesis("trials >= 8", lambda s: s.trials >= 8, defining=True)


@sparse_variables.claim(
    kind="simulation",
    reference="Section 5, unique consistent hypothesis",
    origin="ours",
    source="edelman2022",
    statement=r"The support of an AND of $s$ of $T$ bits is the only one consistent with $m$"
    r" balanced samples with probability $E\exp(-\sum_r n_r\prod_{i \le m} a_r(x_i))$, to 0.1:"
    r" $n_r$ rivals of kind $r$ agree with a sample whose relevant bits are $x_i$ with"
    r" probability $a_r(x_i)$; where that is a half or more.",
    words="No learner can be sure of the support before the data single it out. That takes a"
    " number of samples that grows like the logarithm of the length.",
    hypotheses=(
        SPARSE,
        Hypothesis(
            "samples make it a half or more",
            lambda s: first_places(s).unique_probability(s.samples) >= 0.5,
        ),
    ),
    quick=Setting(length=(50, 300), samples=(34, 44), sparsity=3, repeats=1200),
    paper=dict(length=(50, 300, 800), samples=(34, 38, 42, 50), repeats=2000),
    cells=product("length", "samples"),
    budget="repeats",
    rule=Approximation(margin=0.1, relative=False),
    control=Control("bits that are fair coins", lambda e: {"predicted": e.fair}),
)
def statistical_floor(cell: Setting, draws: Draws) -> Values:
    task = SparseBoolean.random(draws("support"), cell.length, cell.sparsity, "and")
    fair = SparseBoolean(task.length, task.support, "and", bias=0.5)
    source, unique = draws.stream("bits"), np.empty(cell.repeats)
    for r in range(cell.repeats):
        bits = (source.random((cell.samples, cell.length), np.float32) < task.bias).astype(np.uint8)
        unique[r] = task.consistent(Batch(bits, bits[:, list(task.support)].min(1)), most=2) == 1
    share = unique.mean()
    return {
        "predicted": task.unique_probability(cell.samples),
        "fair": fair.unique_probability(cell.samples),
        "measured": share,
        # With a share of 0 or 1 the error is that of the least that could have been seen.
        "error": math.sqrt(max(share * (1 - share), 1 / cell.repeats) / cell.repeats),
        "independent": math.exp(-math.exp(task.log_rivals(cell.samples))),
    }


@statistical_floor.figure
def unique_support(evidence: xr.Dataset) -> Figure:
    formulas = {"predicted": "given the relevant bits", "independent": "rivals independent"}
    return (
        Figure(
            evidence,
            "When the data single out the support",
            "AND of three bits; points: simulated, two standard errors",
            x=SAMPLES,
            y="probability of a unique support",
            zero="-x-y",
            legend={"length": LENGTH, "series": "formula"},
        )
        .lines("samples", formulas, color="length")
        .points("samples", "measured", error="error", color="length", size=50)
    )


@sparse_variables.measurement(
    "samples-exponent",
    quick=Setting(
        length=(16, 28, 52, 90, 160, 400),
        most=400,
        steps=300,
        learner="attention",
        trials=24,
        effort=(3, 1, 1, 1, 1, 3),
        rival_length=160,
        **AND,
    ),
    paper=dict(
        length=(25, 35, 50, 100, 200, 400, 800),
        trials=96,
        effort=(1,),
        steps=500,
        rival_length=200,
    ),
    origin="our reading",
    hypotheses=(SPARSE, FUNCTION, TRIALS, one_of("learner", LEARNERS)),
    cells=together("length", "effort"),
    budget="trials",
    long=True,
)
def threshold_curve(cell: Setting, draws: Draws) -> Values:
    """Trials of a learner, of two that are not trained, and up to `rival_length` of an MLP, around
    their thresholds; what uniform attention solves.

    The learner has `effort` times `trials`: an exponent is decided by its shortest and longest.
    """
    key, steps = draws("trials"), steps_at(cell)
    task: dict[str, Any] = {"function": cell.function, "sparsity": cell.sparsity}
    options = {**task, "most": cell.most, "trials": cell.trials}
    more = options | {"trials": cell.trials * cell.effort, "steps": steps}
    found = {cell.learner: find_threshold(key, cell.length, cell.learner, **more)}
    for name in ("L1 logistic", "screening"):
        found.setdefault(name, find_threshold(key, cell.length, name, **options))
    if cell.length <= cell.rival_length:
        # The MLP has fitted its training set in half of the steps.
        options = {"start": 7 * cell.length, "most": 16 * cell.length}
        options |= {"trials": max(24, cell.trials // 3), "steps": 25 * math.ceil(cell.steps / 50)}
        found[RIVAL] = find_threshold(key, cell.length, trained_by(MLP, 0.99), **task, **options)
    uniform = uniform_share(cell, found[cell.learner].threshold, key)
    names = list(dict.fromkeys((*found, RIVAL)))
    return {**count_trials(cell, found, names), "uniform": uniform}


def count_trials(
    cell: Setting, found: Mapping[str, ThresholdSearch], names: Sequence[str]
) -> dict[str, Any]:
    """Trials and how many are solved by learner and size, of those that were `found`; the threshold
    of each alone."""
    grid = sizes(max(cell.most, 16 * cell.get("rival_length", 1)))
    tried, solved = np.zeros((2, len(names), len(grid)), int)
    alone, most = np.full((2, len(names)), np.nan)
    for name, each in found.items():
        i, places = names.index(name), [grid.index(m) for m in each.samples]
        tried[i, places], solved[i, places] = each.trials, each.solved
        alone[i], most[i] = each.threshold, each.most
    with np.errstate(invalid="ignore"):
        share = solved / np.where(tried > 0, tried, np.nan)
    return {
        **on("learner", threshold=alone, most_samples=most),
        **on("learner size", tried=tried, solved=solved, share=share),
        "samples": ("size", grid),
        "learner": list(names),
        "floor": first_places(cell, cell.function).floor(),
    }


def steps_at(cell: Setting) -> int:
    """`cell.steps` up to the length 800, and beyond it in proportion to the root of the length."""
    return 25 * math.ceil(cell.steps * max(1.0, math.sqrt(cell.length / 800)) / 25)


def uniform_share(cell: Setting, samples: float, key: Array) -> float:
    """The share of trials, eight at most, that uniform attention solves with so many samples; nan
    but for lengths from 30 to 50, since it compiles programs of its own."""
    if not 30 <= cell.length <= 50:
        return math.nan
    data, start = jax.random.split(jax.random.fold_in(key, cell.length))
    sets = draw_trials(data, cell, math.ceil(samples), min(8, cell.trials))
    return float(LEARNERS["uniform attention"](sets, start, steps_at(cell)).mean())


def draw_trials(key: Array, cell: Setting, samples: int, trials: int) -> TrainingSets:
    task: dict[str, Any] = {"function": cell.function, "sparsity": cell.sparsity}
    return draw_sets(key, cell.length, [samples], trials, **task)


@sparse_variables.claim(
    kind="training",
    measured_by=threshold_curve,
    reference="Figure 2",
    statement=r"The number of samples with which 80 % of trained one-layer Transformers learn"
    r" an AND of 3 of $T$ bits without a single error grows like $T^\alpha$ with $\alpha <"
    r" 0.5$, if positions begin at 0 and their gradient has one normaliser (500 steps, 300 at"
    r" quick scale; beyond $T = 800$ more, in proportion to $\sqrt T$).",
    words="Measured, a context that is thirty times longer asks attention for about twice the"
    " examples, not for thirty times as many.",
    rule=Bound(),
    control=FURTHER_POWER,
)
def samples_exponent(evidence: xr.Dataset) -> Values:
    return {"bound": 0.5, **first_exponent(evidence)}


@sparse_variables.measurement(
    "plain-adam",
    quick=Setting(
        length=(16, 25, 40, 63, 100),
        most=400,
        steps=150,
        trials=16,
        effort=(3, 1, 1, 1, 3),
        **AND,
    ),
    paper=dict(length=(25, 50, 100, 200, 300), steps=300, trials=48, effort=(1,)),
    origin="our reading",
    hypotheses=(SPARSE, FUNCTION, TRIALS),
    cells=together("length", "effort"),
    budget="trials",
    long=True,
)
def adam_curve(cell: Setting, draws: Draws) -> Values:
    """Trials of the same network, trained with Adam as it is."""
    options: dict[str, Any] = {name: cell[name] for name in ("most", "function", "sparsity")}
    options |= {"steps": steps_at(cell), "trials": cell.trials * cell.effort}
    name = "plain Adam"
    found = {name: find_threshold(draws("trials"), cell.length, name, **options)}
    return count_trials(cell, found, [name])


@sparse_variables.claim(
    kind="training",
    measured_by=adam_curve,
    reference="Figure 2, with plain Adam",
    statement=r"With plain Adam (one rate, a normaliser for every coordinate, small weights),"
    r" as the paper trains, the number of samples with which 80 % of trials learn an AND of 3"
    r" of $T$ bits without a single error grows like $T^\alpha$ with $\alpha < 1$ (five"
    r" lengths, from 16 to 100; at the paper's scale from 25 to 300).",
    words="Trained as in the paper, samples also grow more slowly than the context. More of"
    " them are needed, and the exponent is less certain, because Adam learns some training sets"
    " by heart.",
    rule=Bound(),
    control=dataclasses.replace(FURTHER_POWER, size=1.5),
    needs=("samples-exponent", "one-normaliser"),
)
def plain_adam(evidence: xr.Dataset) -> Values:
    return {"bound": 1.0, **first_exponent(evidence)}


@samples_exponent.figure
@plain_adam.figure
def thresholds_and_success(evidence: xr.Dataset) -> Panels:
    slope, error = float(evidence["measured"]), float(evidence["error"])
    power = f"T to the power {slope:.2f} ± {2 * error:.2f}; " if np.isfinite(slope) else ""
    solved = np.nanmax(evidence["uniform"].values, initial=-1) if "uniform" in evidence else -1
    some = f"up to {solved:.0%}" if solved else "none"
    uniform = f"uniform attention solves {some} with as many samples; " if solved >= 0 else ""
    shown = evidence.isel(learner=evidence["learner"].values != RIVAL)
    success = draw_success(shown.isel(learner=0), "length", width=300, log="x")
    return row(
        draw_thresholds(shown).lines("length", "floor", theory=True),
        success.rule(0.8, "80 %"),
        title="Samples that training needs, against the length",
        note=f"task: {describe_task(evidence)}; {power}{uniform}bars: two standard errors; ≥: lower"
        " limits; dashed: statistical floor",
    )


def draw_success(evidence: xr.Dataset, color: str, **options: Any) -> Figure:
    """The share of trials that are solved with each number of samples."""
    options |= {"domain": {"y": (0, 1)}, "legend": {"length": LENGTH, "recipe": None}}
    figure = Figure(evidence, x=SAMPLES, y="share of trials solved", **options)
    return figure.lines("samples", "share", color=color, points=True)


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
    axes: dict[str, Any] = {"x": LENGTH, "y": "samples for 80 % of trials", "log": log}
    return (
        Figure(shown, title, note, legend={"learner": None}, **axes)
        .lines("length", "threshold", color="learner")
        .spans("length", "low", "high", color="learner", width=1)
        .points("length", "threshold", color="learner", size=55)
        .texts("length", "threshold", "limit", color="learner")
    )


def describe_task(evidence: xr.Dataset) -> str:
    names = ("function", "sparsity", "trials")
    function, sparsity, trials = (evidence[name].values[0] for name in names)
    return f"{function} of {sparsity} bits, {trials} trials a length or more"


def fit_lengths(evidence: xr.Dataset) -> xr.Dataset:
    """Thresholds at all lengths and the exponent of the length in them, by learner.

    Returns log thresholds and their errors over (cell, learner), nan where there were no trials,
    whether they are lower limits, and the weight of each in the exponent (least squares, weighted
    by errors); the exponent, its error, and the fewest trials behind a threshold, over learner.
    """
    shape = evidence["threshold"].transpose("cell", "learner").shape
    logs, error, weight = (np.full(shape, np.nan) for _ in range(3))
    slope, slope_error, fewest = (np.full(shape[1], np.nan) for _ in range(3))
    censored = np.zeros(shape, bool)
    grid = np.log(evidence["samples"].values.reshape(-1, evidence.sizes["size"])[0])
    lengths = np.log(evidence["length"].values)
    for i in range(shape[1]):
        tried, solved = (evidence[n].isel(learner=i).values for n in ("tried", "solved"))
        used = np.flatnonzero(tried.sum(1))
        if len(used) == 0:
            continue
        at = np.broadcast_to(grid, tried.shape)[used]
        fitted, covariance = fit_thresholds(at, tried[used], solved[used])
        covariance = SEARCHED**2 * covariance
        limit = np.log(evidence["most_samples"].isel(learner=i).values[used])
        logs[used, i], censored[used, i] = np.minimum(fitted, limit), fitted > limit
        error[used, i], fewest[i] = np.sqrt(np.diag(covariance)), tried[used].sum(1).min()
        if len(used) > 1:
            shares = 1 / np.diag(covariance)
            shares *= lengths[used] - np.average(lengths[used], weights=shares)
            weight[used, i] = w = shares / (shares @ lengths[used])
            slope[i], slope_error[i] = w @ logs[used, i], np.sqrt(w @ covariance @ w)
    by_length = {"log_threshold": logs, "log_error": error, "weight": weight, "censored": censored}
    of_learners = {"exponent": slope, "exponent_error": slope_error, "fewest": fewest}
    return evidence.assign(
        {name: (("cell", "learner"), x) for name, x in by_length.items()}
        | {name: ("learner", x) for name, x in of_learners.items()}
    )


FITTED = ["log_threshold", "log_error", "censored"]


def first_exponent(evidence: xr.Dataset) -> dict[str, Any]:
    """That of the first learner and its error, as the rule reads them, beside the thresholds."""
    found = fit_lengths(evidence)
    main = found.isel(learner=0)
    return {
        **{name: found[name] for name in FITTED},
        "measured": unless_censored(main["exponent"], main),
        "error": main["exponent_error"],
        "repetitions": main["fewest"],
    }


def unless_censored(value: Any, learner: xr.Dataset) -> Any:
    """`value`, or nan if a threshold of the learner is only known to be larger."""
    return np.nan if learner["censored"].any() else value


@sparse_variables.claim(
    kind="training",
    measured_by=threshold_curve,
    reference="Figure 2",
    statement=r"The samples that training needs grow with $T$ as the statistical floor does,"
    r" samples that single out the support, a logarithm of $T$: the exponent of $T$ in their"
    r" number lies within 0.25 of the floor's over the same lengths (0.15 from 16 to 400; 0.13"
    r" at the paper's scale, from 25 to 1600), which excludes $\sqrt T$. A small power is not"
    r" told from a logarithm. Training sets are drawn again until they single out the support.",
    words="The growth is near that of the samples that single out the support, a logarithm, and"
    " not a square root. Powers of the length with exponents up to about 0.4 would fit too.",
    paper=dict(length=(25, 35, 50, 100, 200, 400, 800, 1600)),
    rule=Approximation(margin=0.25, relative=False, level=1e-2),
    control=Control(
        FURTHER_POWER.words, lambda e, size: {"predicted": e.predicted - size}, size=0.75
    ),
    needs=("samples-exponent", "statistical-floor"),
)
def samples_law(evidence: xr.Dataset) -> Values:
    main = fit_lengths(evidence).isel(learner=0)
    logs, precision = main["log_threshold"].values, main["log_error"].values ** -2.0
    lengths = np.log(main["length"].values)
    laws = {"law": np.log(main["floor"].values), "root": lengths / 2}
    curves = {name: x + np.average(logs - x, weights=precision) for name, x in laws.items()}
    return {
        **first_exponent(evidence),
        "predicted": main["weight"].values @ laws["law"],
        **{f"log_{name}": ("cell", curve) for name, curve in curves.items()},
    }


@samples_law.figure
def laws_compared(evidence: xr.Dataset) -> Figure:
    slope, error, law = (float(evidence[name]) for name in ("measured", "error", "predicted"))
    figure = draw_thresholds(
        evidence.isel(learner=[0]),
        "A logarithm of the length",
        f"task: {describe_task(evidence)}; T to the power {slope:.2f} ± {2 * error:.2f}, the floor"
        f" {law:.2f}",
    )
    names = {"law": "in proportion to the statistical floor", "root": "to √T"}
    curves = evidence.assign({name: np.exp(evidence[f"log_{name}"]) for name in names})
    return figure.lines("length", names, dash="series", color="", theory="solid", data=curves)


@sparse_variables.claim(
    kind="training",
    measured_by=threshold_curve,
    reference="Section 5, inductive bias",
    statement="The exponent of $T$ in the number of samples is larger for an MLP on the bits,"
    " 80 % of whose trials are right on 99 % of validation, than for attention without a single"
    " error (five lengths, from 16 to 160; at the paper's scale from 25 to 200).",
    words="The samples that an MLP needs grow with a larger power of the length than those that"
    " attention needs: its disadvantage is not a constant factor.",
    hypotheses=(
        Hypothesis("length >= 16: shorter ones can be learnt by heart", lambda s: s.length >= 16),
    ),
    rule=Order(),
    control=Control(
        FURTHER_POWER.words + " with attention",
        lambda e, size: {"lower": e.lower + size},
        size=1.5,
    ),
    needs=("samples-exponent",),
)
def mlp_exponent(evidence: xr.Dataset) -> Values:
    both = beside_mlp(evidence)
    attention, mlp = (both.isel(learner=i) for i in range(2))
    # The MLP's exponent is a lower limit if thresholds that are ones have a positive weight in it.
    below = (mlp["censored"] & (mlp["weight"] <= 0)).any()
    return {
        "lower": unless_censored(attention["exponent"], attention),
        "upper": np.nan if below else mlp["exponent"],
        "error": np.hypot(attention["exponent_error"], mlp["exponent_error"]),
        "repetitions": both["fewest"].min(),
        **{name: ("network", both[name].values) for name in ("exponent", "exponent_error")},
    }


def beside_mlp(evidence: xr.Dataset) -> xr.Dataset:
    """The thresholds of the first learner and of an MLP, at lengths at which both were trained."""
    rival = list(evidence["learner"].values).index(RIVAL)
    both = evidence.isel(learner=[0, rival])
    return fit_lengths(both.isel(cell=both["tried"].sum("size").isel(learner=1).values > 0))


@mlp_exponent.figure
def rivals(evidence: xr.Dataset) -> Figure:
    shown = beside_mlp(evidence)
    names = (shown["learner"], evidence["exponent"], evidence["exponent_error"])
    found = zip(*(each.values for each in names), strict=True)
    words = ", ".join(f"{learner} {slope:.2f} ± {2 * error:.2f}" for learner, slope, error in found)
    return draw_thresholds(
        shown,
        "A network without attention needs ever more samples as the length grows",
        f"attention without an error, the MLP to 99 % of validation; exponents: {words};"
        " ≥: lower limits",
        log="xy",
    )


@sparse_variables.claim(
    kind="training",
    reference="why trials memorise",
    origin="ours",
    statement=r"With one normaliser for the position table, $\max_t|g_t|^2/d$, in place of one for"
    r" every coordinate, $g_{tj}^2$, everything else being equal, the relevant places are 1.25"
    r" times or more further ahead of the others after 25 steps, and near the threshold at least"
    r" 0.1 more of the trials are solved.",
    words="Adam divides the gradient of every place by its own size, and so removes what tells"
    " a relevant bit from noise early in training. One normaliser for all places keeps it.",
    hypotheses=(
        SPARSE,
        TRIALS,
        Hypothesis(
            f"recipe is among {', '.join(RECIPES)}, with the first two",
            lambda s: {ONE, EACH} <= set(s.recipe) <= set(RECIPES),
            defining=True,
        ),
    ),
    quick=Setting(length=64, samples=(43,), steps=150, recipe=(ONE, EACH), trials=56, **AND),
    paper=dict(length=300, samples=(62, 90, 155), recipe=tuple(RECIPES), trials=40, steps=500),
    cells=product("samples"),
    budget="trials",
    long=True,
    rule=Order(),
    control=Control(
        "ahead by a further factor of $e^{{{size:.2f}}}$",
        lambda e, size: {"lower": e.lower + size * xr.DataArray([0, 1], dims="difference")},
        size=0.85,
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
    one, each = cell.recipe.index(ONE), cell.recipe.index(EACH)
    pairs = np.array([x[one] - x[each] for x in (solved.astype(float), np.log(lead))])
    least = [0.1, math.log(1.25)]
    return {
        **on("difference", lower=least, upper=pairs.mean(1), error=floored_error(pairs)),
        "repetitions": cell.trials,
        **on("recipe repeat", solved=solved, lead=lead),
        "recipe": list(cell.recipe),
    }


@one_normaliser.figure
def normalisers(evidence: xr.Dataset) -> Panels:
    shares = evidence.assign(share=evidence["solved"].astype(float).mean("repeat"))
    moves = "relevant over irrelevant movement, 25 steps"
    leads = Figure(evidence.isel(cell=[0]), x=moves, y="", log="x", width=300)
    return row(
        draw_success(shares, "recipe", width=340, zero="-x"),
        leads.ticks("lead", "recipe", color="recipe", legend=False, theory=False),
        title="One normaliser for the position table",
        note=f"T = {int(evidence['length'].values.flat[0])}, the same training sets; a tick is a"
        " trial",
    )


def early_lead(sets: TrainingSets, recipe: Recipe, start: Array) -> Float[np.ndarray, " trial"]:
    """`lead_of_support` after 25 steps."""
    found: list[Outcome] = []
    options: dict[str, Any] = {"steps": 25, "every": 25, "stop": False}
    train(sets, recipe, key=start, finished=found.append, **options)
    lead = np.empty(len(found))
    for end in found:
        first = first_model(recipe, start, end.trial, sets.length)
        moved = np.asarray(end.model.positions - first.positions)[:-1]
        lead[end.trial] = lead_of_support(moved, sets.tasks[end.trial].support)
    return lead


def lead_of_support(moved: Float[np.ndarray, "length d"], support: tuple[int, ...]) -> float:
    """How much further the support's places have moved than others: ratio of root mean squares."""
    squares = (moved**2).mean(-1)
    return float(np.sqrt(squares[list(support)].mean() / np.delete(squares, support).mean()))
