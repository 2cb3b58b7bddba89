"""Claims about trained models: how few samples are too few, and what a trained head attends to (Figure 3)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims.compat import Control, Hypothesis, Order, Setting, claim, drawn_by, key_for
from attlas.sparse_variables.claims.shared import FIGURES, PAPER
from attlas.sparse_variables.model import Transformer, attention_weights
from attlas.sparse_variables.task import SparseBoolean, draw_bits, patterns, probabilities
from attlas.sparse_variables.training import ADAM, LOOK, RECIPE_R, draw_sets, train

RECIPES = {"adam": ADAM, "R": RECIPE_R}

EXAMPLES = 28
"""Sequences of which the attention is kept for a figure."""

FILLINGS = 64
"""Fillings of the irrelevant places over which attention is averaged, for each pattern of the relevant bits."""


@claim(
    "sparse-variables/overfits-below",
    long=True,
    source=PAPER,
    reference="Figure 3, left",
    statement=r"Trained with Adam on a 3-sparse AND of T = 300 bits (64 at quick scale), more trials overfit, with all training sequences right and not all of validation,"
    r" with 50 samples (32) than with 200 (128) that contain them and from the same starts.",
    words="Below the threshold the training set is learnt as well as above it, but not the function.",
    hypotheses=(
        Hypothesis("repeats >= 8", lambda s: s.repeats >= 8, defining=True),
        Hypothesis(
            "samples are two different numbers", lambda s: len(set(s.samples)) == 2, defining=True
        ),
        Hypothesis(
            f"recipe is one of {', '.join(RECIPES)}",
            lambda s: set(s.recipe) <= set(RECIPES),
            defining=True,
        ),
    ),
    quick=Setting(
        length=64,
        samples=(32, 128),
        recipe=("adam",),
        steps=150,
        every=25,
        validation=2000,
        repeats=16,
    ),
    paper=Setting(
        length=300,
        samples=(50, 200),
        recipe=("adam", "R"),
        steps=200,
        every=25,
        validation=10_000,
        repeats=30,
    ),
    rule=Order(),
    control=Control(
        "the numbers of samples change places",
        lambda e: e.assign(lower=e["upper"], upper=e["lower"]),
    ),
    figure=drawn_by(f"{FIGURES}.learning:accuracy_curves"),
    budget="repeats",
    needs=("sparse-variables/statistical-floor", "sparse-variables/table-form"),
    origin="our reading",
)
def overfits_below(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """The first recipe is judged, others are shown beside it."""
    (cell,) = cells
    id = "sparse-variables/overfits-below"
    sets = draw_sets(
        key_for(seed, id, "sets"),
        cell.length,
        cell.samples,
        cell.repeats,
        validation=cell.validation,
    )
    key = key_for(seed, id, "starts")
    found = xr.concat(
        [
            train(
                sets,
                RECIPES[name],
                key=key,
                steps=cell.steps,
                every=cell.every,
                attention=False,
                curves=True,
            )
            for name in cell.recipe
        ],
        "recipe",
    )
    found = found.assign_coords(recipe=list(cell.recipe)).rename(trial="repeat").drop_vars("repeat")
    overfit = (found["train_accuracy"] == 1) & (found["status"] != "solved")
    few, many = (overfit.isel(recipe=0, samples=i).values.astype(float) for i in range(2))
    variables = {
        "lower": many.mean(),
        "upper": few.mean(),
        # Where no pair differs from another, the error is that of the least that could have been seen.
        "error": np.sqrt(max((few - many).var(ddof=1), 1 / cell.repeats) / cell.repeats),
        "overfit": overfit,
        **{name: found[name] for name in ("train_accuracy_curve", "accuracy_curve")},
    }
    return xr.Dataset(variables).expand_dims("cell").assign_coords(length=("cell", [cell.length]))


@claim(
    "sparse-variables/falsifying-zeros",
    long=True,
    source=PAPER,
    reference="Figure 3, right",
    statement=r"The head of a model trained on a 3-sparse AND attends to the relevant bits that are 0: on average over trials a relevant 0 has more than twice the weight of a"
    r" relevant 1, and the support more than 0.8 of the attention. A head that attends to the relevant zeros alone, and to relevant bits where"
    r" there are none, would give $\frac{1 - p^s}{s(1 - p)} \approx 0.808$ and $p^{s-1}/s \approx 0.210$, $p = 2^{-1/s}$ the chance of a 1.",
    words="One zero among the relevant bits makes the function false, and that is the bit the head looks at.",
    hypotheses=(
        Hypothesis(
            "support lies within length", lambda s: max(s.support) < s.length, defining=True
        ),
        Hypothesis("heads divide 64", lambda s: 64 % s.heads == 0, defining=True),
    ),
    quick=Setting(length=20, samples=100, support=(2, 8, 12), heads=1, steps=200, repeats=16),
    paper=Setting(length=50, samples=300, support=(5, 20, 30), heads=1, steps=200, repeats=20),
    rule=Order(),
    control=Control(
        "the same attention spread over the relevant bits alike, whatever they are",
        lambda e: e.assign(lower=e["alike_lower"], upper=e["alike_upper"]),
    ),
    figure=drawn_by(f"{FIGURES}.learning:attention_map"),
    budget="repeats",
    needs=("sparse-variables/table-form",),
    origin="our reading",
)
def falsifying_zeros(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Of several heads, the one with the largest share of its attention on the support."""
    (cell,) = cells
    id = "sparse-variables/falsifying-zeros"
    options: dict[str, Any] = {"support": cell.support, "validation": LOOK}  # for the figure only
    sets = draw_sets(
        key_for(seed, id, "sets"), cell.length, [cell.samples], cell.repeats, **options
    )
    recipe = dataclasses.replace(
        ADAM, architecture=dataclasses.replace(ADAM.architecture, heads=cell.heads)
    )
    models: dict[int, Any] = {}
    train(
        sets,
        recipe,
        key=key_for(seed, id, "starts"),
        steps=cell.steps,
        every=cell.steps,
        stop=False,
        attention=False,
        finished=lambda outcome: models.update({outcome.trial: outcome.model}),
    )
    task = sets.tasks[0]
    with jax.enable_x64(False):
        key = key_for(seed, id, "fillings")
        read = np.stack([head_reads(models[trial], task, key) for trial in range(cell.repeats)])
        bits, label = next(sets.validate(0))
        shown = np.concatenate([bits[label == y][: EXAMPLES // 2] for y in (0, 1)])
        weights = np.asarray(seen_by(models[0], shown))
    head = weights[..., list(task.support)].sum(-1).mean(0).argmax()
    zero, one, support = read.T
    s, p = task.sparsity, task.bias
    ideal = [(1 - p**s) / (s * (1 - p)), p ** (s - 1) / s, 1.0]
    axes = ("cell", "comparison")
    return xr.Dataset(
        {
            "lower": (axes, [[2 * one.mean(), 0.8]]),
            "upper": (axes, [[zero.mean(), support.mean()]]),
            "error": (axes, [[x.std(ddof=1) / np.sqrt(len(x)) for x in (zero - 2 * one, support)]]),
            "repetitions": ("cell", [cell.repeats]),
            "alike_lower": (axes, [[2 * support.mean() / s, 0.8]]),
            "alike_upper": (axes, [[support.mean() / s, support.mean()]]),
            "read": (("cell", "repeat", "quantity"), read[None]),
            "ideal": (("cell", "quantity"), [ideal]),
            "weights": (("cell", "example", "place"), weights[None, :, head, :-1]),
            "bits": (("cell", "example", "place"), shown[None]),
            "places": (("cell", "relevant"), [task.support]),
        },
        coords={
            "comparison": ["zeros and ones", "support"],
            "quantity": ["a relevant 0", "a relevant 1", "the support"],
            "place": range(cell.length),
        },
    )


seen_by = jax.jit(attention_weights)


def head_reads(
    model: Transformer, task: SparseBoolean, key: jax.Array
) -> Float[np.ndarray, " quantity"]:
    """The mean weight of a relevant 0, of a relevant 1 and of the support, exact over the relevant bits, averaged over fillings."""
    codes, law = patterns(task.sparsity), probabilities(task.sparsity, task.bias)
    bits = np.tile(np.asarray(draw_bits(key, FILLINGS, task.length, task.bias)), (len(codes), 1, 1))
    bits[..., task.support] = codes[:, None]
    weights = np.asarray(seen_by(model, bits.reshape(-1, task.length)))[..., list(task.support)]
    weights = weights.reshape(len(codes), FILLINGS, *weights.shape[1:]).mean(
        1
    )  # [pattern, head, relevant]
    head = weights[:, (law @ weights.sum(-1)).argmax()]
    zero, one = ((law @ (head * (codes == b)).sum(1)) / (law @ (codes == b).sum(1)) for b in (0, 1))
    return np.array([zero, one, law @ head.sum(1)])
