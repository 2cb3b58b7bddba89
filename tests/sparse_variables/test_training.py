import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.scan import iterate
from attlas.sparse_variables import training
from attlas.sparse_variables.model import Architecture, attention_weights
from attlas.sparse_variables.task import Batch
from attlas.sparse_variables.training import (
    ADAM,
    LANES,
    RECIPE_R,
    Recipe,
    accuracy_until_wrong,
    first_model,
    judge,
    train,
)
from attlas.sparse_variables.training_sets import VALIDATION_BATCH, draw_sets
from tests.defaults import numbers_by_default

TINY = dataclasses.replace(
    RECIPE_R, architecture=dataclasses.replace(RECIPE_R.architecture, dim=8, hidden=8)
)
SETS = draw_sets(jax.random.key(0), 12, [16, 24], 5, sparsity=2, validation=1200)
START = jax.random.key(1)


@pytest.fixture(scope="module")
def short():
    """A few steps on every set, and the models that came of them."""
    outcomes = []
    data = train(
        SETS, TINY, key=START, steps=20, every=10, stop=False, curves=True, finished=outcomes.append
    )
    return data, {(outcome.trial, outcome.samples): outcome.model for outcome in outcomes}


def subset(sets, trials, samples):
    """The same sets of some trials, at some numbers of samples."""
    return dataclasses.replace(
        sets,
        tasks=tuple(sets.tasks[i] for i in trials),
        samples=samples,
        bits=sets.bits[trials],
        label=sets.label[trials],
    )


def test_tables_that_do_not_fit_are_refused_before_training():
    wide = dataclasses.replace(ADAM, architecture=Architecture(dim=2**30, heads=1, hidden=1))
    with pytest.raises(
        InputError, match="length = 12: 4 tables of tokens and their moments would take"
    ):
        train(SETS, wide, key=START)


def test_a_run_does_not_depend_on_the_others(short):
    """One lane or several, whichever other trials and numbers of samples there are."""
    assert len(SETS.tasks) * len(SETS.samples) > LANES
    data, _ = short
    alone = train(
        subset(SETS, [0], (24,)), TINY, key=START, steps=20, every=10, stop=False, curves=True
    )
    for name in ("loss_curve", "accuracy_curve"):
        assert alone[name].values[0, 0] == approx(data[name].values[0, 1], rel=1e-5)


def test_padding_changes_nothing(short):
    """Samples with weight 0 may be anything."""
    state, data = training._start(SETS, TINY, START, 64, 0, 24)
    state, data = jax.tree.map(lambda x: np.asarray(x)[None], (state, data))
    other = data._replace(bits=np.concatenate([data.bits[:, :24], 1 - data.bits[:, 24:]], 1))
    args = [(x, TINY) for x in (data, other)]
    ours, theirs = (jax.jit(training.step)(jnp.asarray(0), state, x) for x in args)
    assert data.bits.shape[1] == 64
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def test_the_loss_is_a_mean_over_the_samples():
    weight = training._start(SETS, TINY, START, 64, 0, 24)[1].weight
    np.testing.assert_allclose(weight, np.where(np.arange(64) < 24, 1 / 24, 0))


def test_sets_of_very_different_sizes_are_trained_as_each_alone():
    """They are padded to different sizes, the largest first."""
    sets = draw_sets(jax.random.key(3), 12, [16, 150], 2, sparsity=2, validation=1200)
    options = {"key": START, "steps": 10, "every": 10, "stop": False, "curves": True}
    both = train(sets, TINY, **options)
    for column, samples in enumerate(sets.samples):
        alone = train(dataclasses.replace(sets, samples=(samples,)), TINY, **options)
        found = both["loss_curve"].values[:, column]
        assert found == approx(alone["loss_curve"].values[:, 0], rel=1e-5)


def test_a_trial_begins_with_its_first_model(float64):
    with jax.enable_x64(False):  # as `train` does
        begun = training._start(SETS, TINY, START, 64, 2, 24)[0].model
    for ours, theirs in zip(
        jax.tree.leaves(first_model(TINY, START, 2, 12)), jax.tree.leaves(begun), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_is_reported_is_what_the_models_do(short):
    data, models = short
    assert data["accuracy_curve"].dims == ("trial", "samples", "step")
    assert (
        (data["steps"] == 20).all()
        and (data["status"] == "unsolved").all()
        and data["first_step"].isnull().all()
    )
    for (trial, samples), model in models.items():
        here = data.sel(trial=trial, samples=samples)
        correct, loss = judge(model, Batch(SETS.bits[trial, :samples], SETS.label[trial, :samples]))
        assert here["train_accuracy"] == correct.mean() and here["loss"] == approx(loss.mean())
        validation = list(SETS.validate(trial))
        counts = [judge(model, batch)[0].sum() for batch in validation]
        assert (
            here["accuracy_curve"][-1]
            == accuracy_until_wrong(model, validation)
            == counts[0] / VALIDATION_BATCH
        )
        assert here["best_accuracy"] == here["accuracy_curve"].max()


def test_the_step_is_adam_with_one_normaliser_for_the_positions():
    state, data = jax.tree.map(
        lambda x: jnp.asarray(x)[None], training._start(SETS, TINY, START, 64, 0, 16)
    )
    g = jax.jit(jax.grad(lambda model: training.losses(model, data).sum()))(state.model)
    first = None
    for recipe in (TINY, dataclasses.replace(TINY, normaliser="coordinate")):
        begun = training.begin(jax.tree.map(lambda x: x[0], state.model), recipe)
        begun = jax.tree.map(lambda x: np.asarray(x)[None], begun)
        moved = jax.jit(training.step)(jnp.asarray(0), begun, (data, recipe))
        # After one step both moving averages, corrected, are the gradient and its square.
        size = np.sqrt((g.positions**2).mean(-1).max()) if recipe is TINY else np.abs(g.positions)
        assert moved.model.positions == approx(
            np.asarray(-recipe.position_rate * g.positions / (size + 1e-8)), rel=1e-4, abs=1e-9
        )
        expected = state.model.key - recipe.rate * (
            g.key / (abs(g.key) + 1e-8) + recipe.decay * state.model.key
        )
        clear = abs(g.key) > 1e-5
        assert np.asarray(moved.model.key)[clear] == approx(np.asarray(expected)[clear], rel=1e-5)
        assert first is None or not np.array_equal(first, moved.model.positions)
        first = moved.model.positions


def test_the_recipe_learns_and_a_run_stops_when_it_does():
    sets = draw_sets(jax.random.key(2), 20, [48], 4, validation=2000)
    outcomes = []
    data = train(sets, key=START, steps=250, finished=outcomes.append)
    assert (data["status"] == "solved").sum() >= 3
    solved = data.where(data["status"] == "solved")
    assert (solved["steps"] == solved["first_step"]).sum() >= 3 and solved[
        "best_accuracy"
    ].max() == 1
    assert sorted(outcome.trial for outcome in outcomes) == [0, 1, 2, 3]
    masses = []
    for outcome in outcomes:
        bits = next(sets.validate(outcome.trial)).bits[:256]
        weights = np.asarray(attention_weights(outcome.model, bits)).mean(0)
        masses.append(weights[:, list(sets.tasks[outcome.trial].support)].sum(-1).max())
    assert np.median(masses) > 0.4


def test_runs_that_are_not_finite_are_recorded_and_leave_the_others_alone(short):
    wild = dataclasses.replace(TINY, rate=1e30)
    data = train(SETS, wild, key=START, steps=20, every=10)
    assert (data["status"] == "diverged").all() and (data["steps"] == 10).all()
    assert data["first_step"].isnull().all()


def test_scores_that_are_far_apart_are_trained_on_with_care(short):
    """Where sums are out of range the careful step takes over, and the run is not lost."""
    state, data = jax.tree.map(
        lambda x: np.asarray(x)[None], training._start(SETS, TINY, START, 64, 0, 24)
    )
    state = eqx.tree_at(lambda s: s.model.tokens, state, 300 * state.model.tokens)
    quick = iterate(training.step, training.observe, state, (data, TINY), steps=2, record_every=2)
    assert (quick.survived < 2).all()
    path = training.advance((training.step, training.careful_step), state, (data, TINY), 2)
    assert (path.survived == 2).all()


class Pair(NamedTuple):
    positions: Any
    others: Any


def test_common_practice_is_adamw_with_its_usual_constants(float64):
    weights, *gradients = (
        Pair(*(jnp.asarray(x) for x in pair))
        for pair in np.random.default_rng(0).normal(size=(3, 2, 4, 3))
    )
    rules = ADAM.optimiser(), optax.adamw(1e-3, 0.9, 0.999, 1e-8, weight_decay=1e-4)
    states = [rule.init(weights) for rule in rules]
    for gradient in gradients:
        updates, states = zip(
            *(r.update(gradient, s, weights) for r, s in zip(rules, states, strict=True)),
            strict=True,
        )
        for ours, theirs in zip(*map(jax.tree.leaves, updates), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_positions_share_the_normaliser_of_their_largest_row(float64):
    recipe = dataclasses.replace(
        ADAM,
        position_rate=0.3,
        beta1=0.7,
        beta2=0.8,
        epsilon=0.05,
        decay=0.2,
        normaliser="row maximum",
    )
    table, *gradients = np.random.default_rng(1).normal(size=(3, 4, 3))
    rule, first, second = recipe.optimiser(), 0.0, 0.0
    state = rule.init(Pair(jnp.asarray(table), jnp.zeros(2)))
    for t, g in enumerate(gradients, 1):
        moved, state = rule.update(
            Pair(jnp.asarray(g), jnp.ones(2)), state, Pair(jnp.asarray(table), jnp.zeros(2))
        )
        first, second = 0.7 * first + 0.3 * g, 0.8 * second + 0.2 * (g**2).mean(1).max()
        scaled = first / (1 - 0.7**t) / (np.sqrt(second / (1 - 0.8**t)) + 0.05)
        np.testing.assert_allclose(moved.positions, -0.3 * (scaled + 0.2 * table), rtol=1e-12)


def test_an_outcome_tells_the_first_evaluation_at_which_all_was_right():
    curve = np.array([[0.7, 0.5, 0.6], [0.2, 0.9, 1.0], [0.3, 0.8, 0.9], [0.1, 1.0, 1.0]])
    times = training.evaluation_times(25, 5)
    np.testing.assert_array_equal(times, [5, 10, 15, 20, 25])
    found = training._outcome((3, 24), None, curve, times, True)
    assert found[:8] == (3, 24, "solved", 10.0, 1.0, 1.0, 0.1, 20)
    found = training._outcome((3, 24), None, curve[:1], times, True)
    assert np.isnan(found.first_step)
    assert (found.status, found.best_accuracy, found.train_accuracy) == ("unsolved", 0.6, 0.5)
    assert (found.loss, found.steps) == (0.7, 5)
    assert training._outcome((3, 24), None, curve, times, False).status == "diverged"


def test_losses_and_labels_by_hand():
    logits, label = jnp.array([[0.3, -1.2], [2.0, 2.5], [np.inf, 1.0]]), np.array([0, 0, 0])
    expected = -np.log(np.exp([0.3, 2.0]) / np.exp(logits[:2]).sum(1))
    np.testing.assert_allclose(training.cross_entropy(logits[:2], label[:2]), expected, rtol=1e-5)
    one = training.cross_entropy(logits[:2], 1 - label[:2])
    np.testing.assert_allclose(one, -np.log(1 - np.exp(-expected)), rtol=1e-5)
    assert training.right(logits, label).tolist() == [True, False, False]


def test_a_run_is_repeatable():
    recipe = dataclasses.replace(ADAM, architecture=Architecture(dim=8, heads=2, hidden=8))
    some = subset(SETS, [0, 1], (16,))
    a, b, c = (
        train(some, recipe, key=jax.random.key(k), steps=10, every=10)["loss"] for k in (0, 0, 1)
    )
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"normaliser": "rows"}, "normaliser = 'rows': it must be row maximum or coordinate"),
        ({"rate": 0.0}, "rate = 0: it must be a positive number"),
        ({"beta2": 1.0}, "beta2 = 1.0: it must lie between 0 and 1, and not be 1"),
        ({"decay": -1.0}, "decay = -1.0: it must be a finite number, at least 0"),
    ],
)
def test_impossible_recipes_are_named(settings, sentence):
    with pytest.raises(InputError) as caught:
        Recipe(Architecture(), **settings)
    assert str(caught.value) == sentence


def test_steps_are_whole_numbers_of_evaluations():
    with pytest.raises(InputError, match="steps = 30: it must be a multiple of every = 20"):
        train(SETS, key=START, steps=30, every=20)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(training) == [
        "Recipe rate=0.001 position_rate=0.001 beta1=0.9 beta2=0.999 epsilon=1e-08 decay=0.0001",
        "train steps=500 every=25 enough=1",
    ]
