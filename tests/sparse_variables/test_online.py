import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.sparse_variables import online, training
from attlas.sparse_variables.model import Architecture, logits_full
from attlas.sparse_variables.online import PARITY, train_online, validate_on
from attlas.sparse_variables.task import SparseBoolean, draw_bits
from attlas.sparse_variables.training import accuracy_until_wrong, join_weights
from tests.defaults import numbers_by_default

SMALL = dataclasses.replace(
    PARITY,
    architecture=Architecture(
        dim=16,
        heads=4,
        hidden=32,
        norms=True,
        weight_scale=0.25,
        token_scale=0.5,
        position_scale=0.5,
    ),
    rate=4e-3,
    position_rate=4e-3,
)
TASKS = [
    SparseBoolean(6, (1, 4), "parity"),
    SparseBoolean(6, (0, 5), "parity"),
    SparseBoolean(6, (2, 3), "parity"),
]


@pytest.fixture(scope="module")
def runs():
    return train_online(TASKS, SMALL, key=jax.random.key(3), batch_size=64, steps=600, every=20)


def test_parity_of_two_bits_is_learnt_from_fresh_batches(runs):
    assert runs["loss"].dims == ("trial", "step")
    assert (runs["status"] == "solved").all()
    for trial in runs["trial"].values:
        one = runs.sel(trial=trial)
        reached = one["step"].values[one["accuracy"].values == 1]
        assert one["arrival"] == reached[0]
    assert abs(runs["loss"][:, 0] - np.log(2)).max() < 0.1 and runs["loss"].min() < 0.1


def test_runs_end_when_all_have_arrived(runs):
    last = int(runs["arrival"].max())
    np.testing.assert_array_equal(runs["step"], np.arange(20, 620, 20))
    assert runs["loss"].sel(step=slice(None, last)).notnull().all()
    assert runs["loss"].sel(step=slice(last + 20, None)).isnull().all()


def test_a_run_does_not_depend_on_the_others(runs):
    alone = train_online(TASKS[:1], SMALL, key=jax.random.key(3), batch_size=64, steps=40, every=20)
    assert alone["loss"].values[0] == approx(runs["loss"].values[0, :2], rel=1e-4)
    assert alone["status"][0] == "unsolved" and np.isnan(alone["arrival"][0])


def test_a_step_is_a_step_of_training_on_a_batch_with_the_labels_of_its_lane():
    with jax.enable_x64(False):
        state, stream = online._start(TASKS, SMALL, jax.random.key(3), 64)
        moved = jax.jit(online.step)(jnp.asarray(0), state, (stream, SMALL))
        keys = jax.vmap(jax.random.fold_in)(
            jax.random.wrap_key_data(stream.key), jnp.zeros(3, jnp.int32)
        )
        for lane, task in enumerate(TASKS):
            bits = draw_bits(jax.random.split(keys[lane])[0], 64, 6, 0.5)
            assert 0.3 < bits.mean() < 0.7
            model = jax.tree.map(lambda x, lane=lane: x[lane], state.model)

            def loss(model, bits=bits, task=task):
                logs = jax.nn.log_softmax(logits_full(model, bits))
                return -jnp.take_along_axis(logs, task.label(bits)[:, None].astype(int), 1).mean()

            gradient, _ = join_weights(jax.grad(loss)(model))
            for path, first in optax.tree.get_all_with_path(moved.optimiser, "mu"):
                name = next(entry.key for entry in path if hasattr(entry, "key"))
                (mean,), (slope,) = map(jax.tree.leaves, (first, getattr(gradient, name)))
                np.testing.assert_allclose(mean[lane], 0.1 * slope, rtol=1e-3, atol=1e-6)


def test_labels_are_those_of_the_tasks():
    tasks = [
        SparseBoolean(7, support, (0, 1, 1, 0, 1, 1, 0, 0)) for support in ((0, 3, 5), (6, 2, 1))
    ]
    stream = online._start(tasks, SMALL, jax.random.key(3), 4)[1]
    bits = draw_bits(jax.random.key(3), 40, 7, 0.5)
    np.testing.assert_array_equal(online.labels(stream, bits), [task.label(bits) for task in tasks])


def test_validation_is_on_every_sequence_of_bits():
    task = SparseBoolean(11, (0, 1), "and")
    found = validate_on(task, jax.random.key(3))
    assert {tuple(row) for row in found.bits.tolist()} == set(itertools.product((0, 1), repeat=11))
    ones = found.bits[: online.SCREEN].sum(1)
    expected = task.bias**ones * (1 - task.bias) ** (11 - ones)
    assert found.weight == approx(expected / expected.sum(), rel=1e-5)
    drawn = validate_on(SparseBoolean(20, (0, 1), "and"), jax.random.key(3))
    assert drawn.bits.shape == (online.SAMPLED, 20) and drawn.bits.mean() == approx(
        0.5**0.5, abs=0.01
    )


def test_the_loss_is_exact_where_all_sequences_are_seen():
    with jax.enable_x64(False):
        state, stream = online._start(TASKS, SMALL, jax.random.key(3), 4)
        seen = validate_on(TASKS[0], jax.random.key(3))
        loss, right = online._look(state.model, stream, seen.bits, seen.weight)
        every = np.array(list(itertools.product((0, 1), repeat=6)), np.uint8)
        for lane, task in enumerate(TASKS):
            model = jax.tree.map(lambda x, lane=lane: x[lane], state.model)
            logs = np.asarray(jax.nn.log_softmax(logits_full(model, every)))
            label = np.asarray(task.label(every)).astype(int)
            assert loss[lane] == approx(-logs[np.arange(64), label].mean(), rel=1e-4)
            assert right[lane].mean() == approx((logs.argmax(1) == label).mean())


def test_a_mistake_is_found_wherever_it_is():
    with jax.enable_x64(False):
        state, _ = online._start([SparseBoolean(12, (1, 4), "parity")], SMALL, jax.random.key(3), 4)
        model = jax.tree.map(lambda x: x[0], state.model)
        bits = validate_on(SparseBoolean(12, (1, 4), "parity"), jax.random.key(3)).bits
        said = np.asarray(logits_full(model, bits).argmax(-1)).astype(np.uint8)
        assert accuracy_until_wrong(model, online._in_parts(bits, said)) == 1
        for place, seen in ((10, 1024), (2500, 3072), (4095, 4096)):
            other = np.where(np.arange(4096) == place, 1 - said, said).astype(np.uint8)
            assert accuracy_until_wrong(model, online._in_parts(bits, other)) == approx(
                1 - 1 / seen
            )


def test_runs_that_are_not_finite_are_recorded():
    wild = dataclasses.replace(SMALL, rate=1e30)
    data = train_online(TASKS, wild, key=jax.random.key(3), batch_size=64, steps=40, every=20)
    assert (data["status"] == "diverged").all() and data["arrival"].isnull().all()


def test_impossible_runs_are_named():
    with pytest.raises(InputError, match="tasks is empty"):
        train_online([], key=jax.random.key(3))
    with pytest.raises(
        InputError,
        match="the tasks have 2 values of length: they may differ in their supports only",
    ):
        train_online([TASKS[0], SparseBoolean(7, (1, 2), "parity")], key=jax.random.key(3))
    with pytest.raises(InputError, match="steps = 30: it must be a multiple of every = 20"):
        train_online(TASKS, key=jax.random.key(3), steps=30, every=20)
    with pytest.raises(InputError, match="batch_size = 0: it must be a whole number, at least 1"):
        train_online(TASKS, key=jax.random.key(3), batch_size=0)
    wide = training.Recipe(Architecture(dim=2**30, heads=1, hidden=1))
    with pytest.raises(
        InputError, match="length = 6: 3 tables of tokens and their moments would take"
    ):
        train_online(TASKS, wide, key=jax.random.key(3))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(online) == ["train_online batch_size=128 steps=1000 every=10"]
