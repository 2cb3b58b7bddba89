"""Claims about trained models: overfitting, and what a trained head attends to (Figure 3)."""

import dataclasses
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims import Control, Draws, Hypothesis, Order, Setting, Values, on, whole
from attlas.figure import Figure, Panels, row
from attlas.rademacher import mean_of
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import SHOWN, floored_error, one_of
from attlas.sparse_variables.model import Transformer, attention_weights
from attlas.sparse_variables.task import SparseBoolean, draw_bits, patterns, probabilities
from attlas.sparse_variables.training import ADAM, RECIPE_R, Outcome, train
from attlas.sparse_variables.training_sets import VALIDATION_BATCH, draw_sets

RECIPES = {"adam": ADAM, "R": RECIPE_R}

EXAMPLES = 28
"""Sequences of which the attention is kept for a figure."""

FILLINGS = 64
"""Fillings of the irrelevant places that attention is averaged over, for each pattern."""


@sparse_variables.claim(
    kind="training",
    reference="Figure 3, left",
    origin="our reading",
    statement="Trained with Adam on a 3-sparse AND of $T = 300$ bits (64 at quick scale), more"
    " trials overfit, with all training sequences right and not all of validation, with 50"
    " samples (32) than with 200 (128) that contain them and from the same starts.",
    words="Below the threshold the training set is learnt as well as above it, but not the"
    " function.",
    hypotheses=(
        Hypothesis("repeats >= 8", lambda s: s.repeats >= 8, defining=True),
        Hypothesis(
            "samples are two different numbers", lambda s: len(set(s.samples)) == 2, defining=True
        ),
        one_of("recipe", RECIPES),
    ),
    quick=Setting(
        length=64,
        samples=(32, 128),
        recipe=("adam",),
        steps=150,
        every=25,
        validation=2000,
        repeats=28,
    ),
    paper=dict(
        length=300,
        samples=(50, 200),
        recipe=("adam", "R"),
        steps=200,
        validation=10_000,
        repeats=30,
    ),
    cells=whole,
    budget="repeats",
    long=True,
    rule=Order(),
    control=Control(
        "more trials learn the function with the fewer samples",
        lambda e: {"lower": e.solved_many, "upper": e.solved_few},
    ),
    needs=("statistical-floor",),
)
def overfits_below(cell: Setting, draws: Draws) -> Values:
    """The first recipe is judged, others are shown beside it."""
    sets = draw_sets(
        draws("sets"), cell.length, cell.samples, cell.repeats, validation=cell.validation
    )
    options = {"steps": cell.steps, "every": cell.every, "curves": True}
    runs = [train(sets, RECIPES[name], key=draws("starts"), **options) for name in cell.recipe]
    found = xr.concat(runs, "recipe").assign_coords(recipe=list(cell.recipe))
    found = found.rename(trial="repeat").drop_vars("repeat")
    overfit = (found["train_accuracy"] == 1) & (found["status"] != "solved")
    few, many = overfit.isel(recipe=0).transpose("samples", ...).values.astype(float)
    solved_few, solved_many = (found["status"] == "solved").isel(recipe=0).mean("repeat").values
    return {
        "lower": many.mean(),
        "upper": few.mean(),
        "error": floored_error(few - many),
        "solved_few": solved_few,
        "solved_many": solved_many,
        "repetitions": cell.repeats,
        "overfit": overfit,
        **{name: found[name] for name in ("train_accuracy_curve", "accuracy_curve")},
    }


@overfits_below.figure
def accuracy_curves(evidence: xr.Dataset) -> Figure:
    """Figure 3, left: accuracy in training and on validation, above and below the threshold."""
    cell, recipes = evidence.isel(cell=0), {"adam": "Adam", "R": "one normaliser"}
    names = [recipes[name] for name in cell["recipe"].values]
    shown = cell.assign_coords(recipe=names, overfit=cell["overfit"].sum("repeat"))
    curves = {"accuracy_curve": "validation", "train_accuracy_curve": "training"}
    return (
        Figure(
            shown.isel(repeat=slice(SHOWN)),
            f"Too few samples are learnt by heart, T = {int(cell['length'])}",
            f"{min(SHOWN, cell.sizes['repeat'])} trials on nested training sets; a curve ends when"
            " all of validation is right",
            x="step",
            y="accuracy",
            domain={"y": (0.4, 1)},
        )
        .lines("step", curves, detail="repeat", opacity=0.7)
        .facet("{recipe}, m = {samples}: {overfit} of {repeats} overfit", width=270, height=180)
    )


@sparse_variables.claim(
    kind="training",
    reference="Figure 3, right",
    origin="our reading",
    statement=r"The head of a model trained on a 3-sparse AND attends to the relevant bits that are"
    r" 0: on average over trials a relevant 0 has more than twice the weight of a relevant 1, and"
    r" the support more than 0.8 of the attention. A head that attends to the relevant zeros alone,"
    r" and to relevant bits where there are none, would give"
    r" $\frac{1 - p^s}{s(1 - p)} \approx 0.808$ and $p^{s-1}/s \approx 0.210$, $p = 2^{-1/s}$ the"
    r" chance of a 1.",
    words="One zero among the relevant bits makes the function false, and that is the bit the head"
    " looks at.",
    hypotheses=(
        Hypothesis(
            "support lies within length", lambda s: max(s.support) < s.length, defining=True
        ),
        Hypothesis("heads divide 64", lambda s: 64 % s.heads == 0, defining=True),
    ),
    quick=Setting(length=20, samples=100, support=(2, 8, 12), heads=1, steps=200, repeats=32),
    paper=dict(length=50, samples=300, support=(5, 20, 30), repeats=20),
    cells=whole,
    budget="repeats",
    long=True,
    rule=Order(),
    control=Control(
        "a relevant 0 that has {size:.2f} less of the attention, which leaves the support",
        lambda e, size: {"upper": e.upper - size},
        size=0.4,
    ),
)
def falsifying_zeros(cell: Setting, draws: Draws) -> Values:
    """Of several heads, the one with the largest share of its attention on the support."""
    # Validation is for the figure only.
    size: dict[str, Any] = {"support": cell.support, "validation": VALIDATION_BATCH}
    sets = draw_sets(draws("sets"), cell.length, [cell.samples], cell.repeats, **size)
    architecture = dataclasses.replace(ADAM.architecture, heads=cell.heads)
    recipe = dataclasses.replace(ADAM, architecture=architecture)
    ends: list[Outcome] = []
    options: dict[str, Any] = {"steps": cell.steps, "every": cell.steps, "stop": False}
    train(sets, recipe, key=draws("starts"), finished=ends.append, **options)
    models, task = {end.trial: end.model for end in ends}, sets.tasks[0]
    with jax.enable_x64(False):
        read = np.stack(
            [mean_weights(models[i], task, draws("fillings")) for i in range(cell.repeats)]
        )
        bits, label = next(sets.validate(0))
        shown = np.concatenate([bits[label == y][: EXAMPLES // 2] for y in (0, 1)])
        weights = np.asarray(attention_of(models[0], shown))
    head = weights[..., list(task.support)].sum(-1).mean(0).argmax()
    zero, one, support = read.T
    s, p = task.sparsity, task.bias
    return {
        **on(
            "comparison",
            lower=[2 * one.mean(), 0.8],
            upper=[zero.mean(), support.mean()],
            error=[mean_of(x).error for x in (zero - 2 * one, support)],
        ),
        "repetitions": cell.repeats,
        "read": (("repeat", "quantity"), read),
        "ideal": ("quantity", [(1 - p**s) / (s * (1 - p)), p ** (s - 1) / s, 1.0]),
        **on("example place", weights=weights[:, head, :-1], bits=shown),
        "relevant": ("place", np.isin(range(cell.length), task.support)),
        "comparison": ["zeros and ones", "support"],
        "quantity": ["a relevant 0", "a relevant 1", "the support"],
        "place": range(cell.length),
    }


@falsifying_zeros.figure
def attention_map(evidence: xr.Dataset) -> Panels:
    """Figure 3, right: the attention in some sequences, and the mean weights of all trials."""
    cell = evidence.isel(cell=0)
    digits = xr.where(cell["relevant"], cell["bits"].astype(int).astype(str), "")
    tall, legend = 12 * cell.sizes["example"], {"weights": "attention"}
    sequences = Figure(
        cell.assign(digit=digits), y="sequence", legend=legend, width=500, height=tall
    )
    means = Figure(cell, x="", y="mean weight", domain={"y": (0, 1)}, width=240, height=tall)
    means.points("quantity", "read", size=18, opacity=0.6).ticks("quantity", "ideal", size=34)
    return row(
        sequences.squares("place", "example", "weights", text="digit"),
        means,
        title="The head looks at the zeros that make the function false",
        note=f"first panel: one trial, T = {cell.sizes['place']}, digits are the relevant bits,"
        f" the upper half is false; second panel: {cell.sizes['repeat']} trials, dashes: attention"
        " to relevant zeros alone",
    )


attention_of = jax.jit(attention_weights)


def mean_weights(
    model: Transformer, task: SparseBoolean, key: jax.Array
) -> Float[np.ndarray, " quantity"]:
    """The mean weight of a relevant 0, of a relevant 1 and of the support.

    Exact over the relevant bits, averaged over fillings of the other places.
    """
    codes, law = patterns(task.sparsity), probabilities(task.sparsity, task.bias)
    bits = np.tile(np.asarray(draw_bits(key, FILLINGS, task.length, task.bias)), (len(codes), 1, 1))
    bits[..., task.support] = codes[:, None]
    weights = np.asarray(attention_of(model, bits.reshape(-1, task.length)))
    weights = weights[..., list(task.support)]
    by_pattern = weights.reshape(len(codes), FILLINGS, *weights.shape[1:]).mean(1)
    head = by_pattern[:, (law @ by_pattern.sum(-1)).argmax()]
    zero, one = ((law @ (head * (codes == b)).sum(1)) / (law @ (codes == b).sum(1)) for b in (0, 1))
    return np.array([zero, one, law @ head.sum(1)])
