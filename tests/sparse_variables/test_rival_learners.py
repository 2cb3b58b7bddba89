import dataclasses

import jax
import numpy as np
import pytest

from attlas.errors import InputError
from attlas.scan import iterate
from attlas.sparse_variables import rival_learners
from attlas.sparse_variables.model import attention_weights
from attlas.sparse_variables.rival_learners import (
    MLP,
    PENALTIES,
    UNIFORM,
    Dense,
    Iterate,
    Regression,
    descend_l1,
    l1_path,
    leaders,
    screen_by_covariance,
)
from attlas.sparse_variables.training import observe, train
from attlas.sparse_variables.training_sets import draw_sets
from tests.defaults import numbers_by_default

SETS = draw_sets(jax.random.key(0), 40, [30, 300], 8, validation=1500)
FEW = dataclasses.replace(SETS, samples=(30,), bits=SETS.bits[:, :30], label=SETS.label[:, :30])


def test_screening_finds_the_support_with_many_samples():
    assert screen_by_covariance(SETS).all() and screen_by_covariance(FEW).mean() < 0.8


def test_leaders_leave_ties_out():
    size = np.array([[3.0, 1, 2, 5], [1, 1, 1, 1]])
    np.testing.assert_array_equal(leaders(size, SETS), [[True, False, True, True], [False] * 4])


def test_few_samples_are_enough_for_an_l1_penalty():
    few = l1_path(FEW)
    assert (l1_path(SETS) == 1).all() and (few > 0.7).all()
    assert (few == 1).mean() > screen_by_covariance(FEW).mean()


def test_the_path_ends_where_the_gradient_is_within_the_penalty():
    """The optimality conditions: |slope| at most the penalty, and equal to it, with the other sign,
    at weights that are not 0."""
    bits = np.random.default_rng(0).integers(0, 2, (1, 30, 6)).astype(np.float32) - 0.5
    bits[..., -1] = 1
    sign = np.where(bits[..., 0] + bits[..., 1] > 0, 1, -1).astype(np.float32)
    penalty = 0.1 * PENALTIES * np.append(np.ones(5), 0)[:, None]
    args = Regression(
        bits,
        sign,
        np.full(30, 1 / 30),
        penalty[None],
        np.array([4 * 30 / np.linalg.norm(bits[0], 2) ** 2]),
    )
    zero = np.zeros((1, 6, len(PENALTIES)))
    with jax.enable_x64(True):
        start = Iterate(zero, zero, np.ones(1))
        weights = iterate(
            descend_l1, observe, start, args, steps=4000, record_every=4000
        ).last.weights[0]
    margin = (bits[0] @ weights) * sign[0, :, None]
    slope = -(bits[0] * sign[0, :, None]).T @ (1 / (1 + np.exp(margin))) / 30
    assert (abs(slope) <= penalty + 1e-6).all()
    used = abs(weights) > 1e-6
    np.testing.assert_allclose(slope[used], (-np.sign(weights) * penalty)[used], atol=1e-6)


def test_an_mlp_memorises():
    dense = train(FEW, MLP, key=jax.random.key(1), steps=50)
    assert (dense["train_accuracy"] == 1).all() and (dense["status"] == "unsolved").all()


@pytest.mark.long
def test_uniform_attention_learns_nothing():
    models = []
    uniform = train(
        SETS,
        UNIFORM,
        key=jax.random.key(1),
        steps=100,
        finished=lambda outcome: models.append(outcome.model),
    )
    assert (uniform["status"] == "unsolved").all() and (uniform["best_accuracy"] < 0.8).all()
    weights = np.asarray(attention_weights(models[0], SETS.bits[0]))
    np.testing.assert_allclose(weights, 1 / 41, rtol=1e-5)


def test_impossible_learners_are_named():
    with pytest.raises(InputError, match="hidden = 0: it must be a whole number, at least 1"):
        Dense(0)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(rival_learners) == ["Dense hidden=64"]


def test_the_penalised_regression_by_hand(monkeypatch):
    """What is descended, and the accuracy of its best penalty up to where each has erred."""
    kept = []

    def spied(step, observe, start, args, **options):
        kept.extend([start, args, iterate(step, observe, start, args, **options)])
        return kept[-1]

    monkeypatch.setattr(rival_learners, "iterate", spied)
    found = l1_path(FEW)
    start, args, path = kept
    assert not start.weights.any() and not start.ahead.any() and (start.momentum == 1).all()
    bias = FEW.tasks[0].bias
    for trial, (bits, label) in enumerate(zip(FEW.bits, FEW.label, strict=True)):
        rows = np.column_stack([bits - bias, np.ones(30)])
        np.testing.assert_allclose(args.bits[trial, :30], rows, rtol=1e-5)
        np.testing.assert_array_equal(args.sign[trial, :30], 2.0 * label - 1)
        largest = abs(np.cov(bits.T, label, ddof=0)[-1, :-1]).max()
        expected = largest * PENALTIES * np.append(np.ones(40), 0)[:, None]
        np.testing.assert_allclose(args.penalty[trial], expected, rtol=1e-4)
        steepest = np.linalg.norm(rows, 2) ** 2 / 30 / 4  # no curvature of the loss is larger
        assert args.step_size[trial] == pytest.approx(1 / steepest, rel=1e-4)
        slopes, level = path.last.weights[trial, :-1], path.last.weights[trial, -1]
        right, seen = np.zeros(12), 0
        for batch in FEW.validate(trial):
            right += (((batch.bits - bias) @ slopes + level > 0) == batch.label[:, None]).sum(0)
            seen += len(batch.label)
            if right.max() < seen:
                break
        assert found[trial] == pytest.approx(right.max() / seen)
    np.testing.assert_allclose(args.weight, np.where(np.arange(64) < 30, 1 / 30, 0), rtol=1e-6)
