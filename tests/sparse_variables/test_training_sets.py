import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.sparse_variables import training_sets
from attlas.sparse_variables.task import Batch, SparseBoolean
from attlas.sparse_variables.training_sets import draw_bits, draw_sets
from tests.defaults import numbers_by_default

SETS = draw_sets(jax.random.key(0), 12, [16, 24], 5, sparsity=2, validation=1200)


def test_training_sets_are_nested_and_single_out_their_support():
    more = draw_sets(jax.random.key(0), 12, [16, 24, 100], 3, sparsity=2, validation=70)
    np.testing.assert_array_equal(more.bits[:, :24], SETS.bits[:3])
    for trial in range(3):
        few, many = (next(sets.validate(trial)) for sets in (more, SETS))
        np.testing.assert_array_equal(few.bits, many.bits[:70])
    assert len({task.support for task in SETS.tasks}) > 1
    for trial, task in enumerate(SETS.tasks):
        smallest = Batch(SETS.bits[trial, :16], SETS.label[trial, :16])
        np.testing.assert_array_equal(task.label(jnp.asarray(smallest.bits)), smallest.label)
        for batch in SETS.validate(trial):
            np.testing.assert_array_equal(task.label(jnp.asarray(batch.bits)), batch.label)
        assert task.consistent(smallest) == 1


def test_every_trial_has_validation_sequences_of_its_own_always_the_same():
    first, second = (
        np.concatenate([batch.bits for batch in SETS.validate(trial)]) for trial in (0, 1)
    )
    assert len(first) == len(second) == SETS.validation
    assert 0.3 < (first == second).mean() < 0.8  # neither equal nor shifted
    np.testing.assert_array_equal(first, np.concatenate([batch.bits for batch in SETS.validate(0)]))


def test_bits_are_ones_with_the_probability_of_the_task():
    """Beyond what a byte resolves: the bias lies between two multiples of 1/256."""
    for bias in (0.5 ** (1 / 3), 0.0013, 0.999):
        task = SparseBoolean(1000, (0, 1), "and", bias)
        share = draw_bits(np.random.default_rng(5), 20_000, task).mean()
        assert share == approx(bias, abs=4.5 * (bias * (1 - bias) / 2e7) ** 0.5)


def test_coins_have_nothing_to_do_with_the_bits():
    sets = draw_sets(jax.random.key(0), 12, [40], 3, sparsity=2, validation=600, coins=True)
    drawn = [Batch(sets.bits[0], sets.label[0]), *sets.validate(0)]
    assert (
        0.3
        < np.mean([np.mean(sets.tasks[0].label(batch.bits) == batch.label) for batch in drawn])
        < 0.7
    )


def test_a_support_may_be_given():
    sets = draw_sets(jax.random.key(0), 50, [40], 2, support=(5, 20, 30), validation=100)
    assert [task.support for task in sets.tasks] == [(5, 20, 30)] * 2
    np.testing.assert_array_equal(sets.label, sets.bits[..., [5, 20, 30]].all(-1))
    assert not np.array_equal(sets.bits[0], sets.bits[1])


def test_impossible_sets_are_named(monkeypatch):
    monkeypatch.setattr(training_sets, "TRIES", 3)
    with pytest.raises(InputError, match="samples is empty"):
        draw_sets(jax.random.key(0), 12, [], 2)
    with pytest.raises(InputError, match="trials = 0: it must be a whole number, at least 1"):
        draw_sets(jax.random.key(0), 12, [16], 0)
    with pytest.raises(
        InputError, match=r"samples = 2: hardly a set singles out the support; ask for \d+ or more"
    ):
        draw_sets(jax.random.key(0), 12, [2], 1, validation=10)
    with pytest.raises(
        InputError,
        match=r"samples = 10: none of 3 sets singles out the support; ask for \d+ or more",
    ):
        draw_sets(jax.random.key(0), 20, [10], 1, validation=10)
    with pytest.raises(InputError, match="samples = 1: it must be a whole number, at least 2"):
        draw_sets(jax.random.key(0), 12, [1, 16], 1)
    with pytest.raises(InputError, match="sparsity = 4: it must be between 1 and 3, of 3 bits"):
        draw_sets(jax.random.key(0), 3, [16], 1, sparsity=4)
    with pytest.raises(
        InputError,
        match=r"validation = 1: the first 1 sequences of trial 0 all have the label [01]; both"
        r" labels must occur",
    ):
        draw_sets(jax.random.key(0), 12, [40], 1, validation=1)
    with pytest.raises(
        InputError, match="sequences of trial 0 all have the label 1; both labels must occur"
    ):
        draw_sets(jax.random.key(0), 12, [40], 1, function=(1,) * 8, unique=False)
    with pytest.raises(
        InputError,
        match=r"length = 1000000000: 10 training sets of 100 .* would take [\d,]+ GB of"
        r" memory, and \d+ GB are free",
    ):
        draw_sets(jax.random.key(0), 10**9, [100], 10)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(training_sets) == ["draw_sets sparsity=3 validation=10000"]
