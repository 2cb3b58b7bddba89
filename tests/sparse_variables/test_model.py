import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.sparse_variables import model
from attlas.sparse_variables.model import (
    Architecture,
    attention_weights,
    choose,
    logits,
    logits_full,
    logits_query,
    mixture,
    tables,
)
from tests.defaults import numbers_by_default

SMALL = Architecture(
    dim=16, heads=4, hidden=8, weight_scale=0.3, token_scale=0.5, position_scale=0.5
)
LENGTH, SEQUENCES = 9, 14


def drawn(architecture=SMALL, stretch=1.0, trials=3, seed=0):
    """Models whose scores are multiplied by `stretch`, and bits; without an axis of trials if there
    are none."""
    keys = jax.random.split(jax.random.key(seed), max(trials, 1))
    model = jax.jit(jax.vmap(lambda key: architecture.initialise(LENGTH, key)))(keys)
    bits = np.random.default_rng(seed).integers(0, 2, (max(trials, 1), SEQUENCES, LENGTH))
    model = eqx.tree_at(lambda m: m.query, model, stretch * model.query)
    return (model, bits) if trials else (jax.tree.map(lambda x: x[0], model), bits[0])


@functools.partial(jax.jit, static_argnames="forms")
def every_form(model, bits, forms=(logits, logits_query, logits_full)):
    """Logits, and the gradient of a function of them that is different for each sequence."""
    factor = jnp.cos(jnp.arange(bits.shape[-2] * 2.0)).reshape(-1, 2)

    def value(model, form):
        found = form(model, bits)
        return (jnp.tanh(found) * factor).sum(), found

    both = [
        jax.value_and_grad(lambda m, f=form: value(m, f), has_aux=True)(model) for form in forms
    ]
    return [(found, slope) for (_, found), slope in both]


def apart(a, b):
    """The largest difference, relative to the largest number."""
    leaves = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    return max(float(abs(x - y).max()) for x, y in leaves) / max(
        float(abs(y).max()) for _, y in leaves
    )


@pytest.mark.parametrize(
    ("settings", "trials"),
    [({}, 3), ({"norms": True}, 3), ({"mlp": False, "heads": 1, "uniform": True}, 0)],
    ids=["plain", "norms", "one uniform head without MLP"],
)
def test_the_three_forms_are_one_map(settings, trials, float64):
    model, bits = drawn(dataclasses.replace(SMALL, **settings), trials=trials)
    *others, (reference, slope) = every_form(model, bits)
    for found, own_slope in others:
        assert apart(found, reference) < 1e-13
        assert apart(own_slope, slope) < 1e-12


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("stretch", [3.0, 30.0, 300.0, 6000.0])
def test_the_table_is_right_however_far_apart_the_scores_are(norms, stretch):
    """A gradient through scores that are `stretch` times larger has errors that are as much
    larger."""
    architecture = dataclasses.replace(SMALL, norms=norms)
    with jax.enable_x64(True):
        model, bits = drawn(architecture, stretch)
        scores = tables(model)[0]
        assert stretch < 6000 or float((scores.max(-2) - scores.min(-2)).max()) > 1e4
        (found, own_slope), _, (reference, slope) = every_form(model, bits)
        assert apart(found, reference) < 1e-10
        assert apart(own_slope, slope) < 1e-15 * max(stretch, 100)
    with jax.enable_x64(False):
        single = jax.tree.map(lambda x: x.astype(jnp.float32), model)
        (found, own_slope), (reference, slope) = every_form(single, bits, (logits, logits_query))
        # The scores themselves are rounded, to a millionth of their size or so.
        assert apart(found, reference) < 1e-7 * max(stretch, 50)
        assert apart(own_slope, slope) < 1e-6 * max(stretch, 10)


@pytest.mark.parametrize("gap", [10.0, 110.0, 125.0, 1e4])
def test_a_score_that_no_sequence_has_may_be_as_large_as_it_likes(gap):
    random = np.random.default_rng(0)
    scores = jnp.zeros((2 * LENGTH + 1, 2)).at[0].set(jnp.array([gap, 1.0])).at[3].set(5.0)
    values = jnp.asarray(random.normal(size=(2 * LENGTH + 1, 2, 3)), jnp.float32)
    bits = random.integers(0, 2, (SEQUENCES, LENGTH))
    bits[:, 0] = 1  # so that the row of the large score is never chosen
    ours, theirs = mixtures(scores, values, bits)
    assert apart(ours, theirs) < 3e-6


@jax.jit
def mixtures(scores, values, bits):
    """The sum of squares of the mixture and its gradients: by the table, and by a softmax over the
    rows of each sequence."""
    rows = jnp.where(bits == 1, LENGTH, 0) + jnp.arange(LENGTH)
    rows = jnp.concatenate([rows, jnp.full((SEQUENCES, 1), 2 * LENGTH)], 1)

    def direct(scores, values):
        return (
            jnp.einsum("mrh,mrhk->mhk", jax.nn.softmax(scores[rows], 1), values[rows]) ** 2
        ).sum()

    def table(scores, values):
        return (mixture(scores, values, choose(bits)) ** 2).sum()

    return [jax.value_and_grad(form, (0, 1))(scores, values) for form in (table, direct)]


@pytest.mark.parametrize("norms", [False, True])
def test_without_care_scores_that_are_too_far_apart_are_not_numbers(norms):
    model, bits = drawn(dataclasses.replace(SMALL, norms=norms))
    wild = eqx.tree_at(lambda m: m.query, model, model.query.at[1].multiply(1e4))
    quick = jax.jit(lambda model: model.logits(bits, careful=False))
    np.testing.assert_array_equal(np.isnan(quick(wild)).any((1, 2)), [False, True, False])
    assert apart(quick(model), jax.jit(logits)(model, bits)) < 1e-6


def test_trials_do_not_touch_each_other_even_if_one_has_scores_beyond_the_table():
    model, bits = drawn(dataclasses.replace(SMALL, norms=True))
    wild = eqx.tree_at(lambda m: m.query, model, model.query.at[1].multiply(1e4))
    calm, mixed = jax.jit(logits)(model, bits), jax.jit(logits)(wild, bits)
    np.testing.assert_array_equal(mixed[np.array([0, 2])], calm[np.array([0, 2])])
    assert np.isfinite(mixed).all()


def test_shared_bits_serve_every_trial():
    model, bits = drawn()
    repeated = np.broadcast_to(bits[0], bits.shape)
    assert apart(jax.jit(logits)(model, bits[0]), jax.jit(logits)(model, repeated)) < 1e-6


def test_attention_weights_are_shares():
    model, bits = drawn()
    weights = jax.jit(attention_weights)(model, bits)
    assert weights.shape == (3, SEQUENCES, 4, LENGTH + 1)
    assert weights.sum(-1) == approx(np.ones(weights.shape[:-1]), rel=1e-5)


def test_a_layer_norm_by_hand():
    x = np.array([[1.0, 4.0, -2.0], [0.5, 0.0, 0.1]])
    gain, shift = np.array([2.0, 0.5, -3.0]), np.array([0.1, 0.2, 0.3])
    spread = np.sqrt(x.var(1, keepdims=True) + 1e-5)
    wanted = (x - x.mean(1, keepdims=True)) / spread * gain + shift
    norm = model.Norm(jnp.asarray(gain), jnp.asarray(shift))
    np.testing.assert_allclose(norm(jnp.asarray(x)), wanted, rtol=1e-5)


def test_the_largest_score_that_every_sequence_has_sets_the_range():
    """Two places with a score of 100 whatever their bits: the rest, at 0, counts for nothing, and
    one at 200 that no sequence has is in range, without care."""
    scores = jnp.zeros((2 * LENGTH + 1, 1)).at[jnp.array([4, 5, LENGTH + 4, LENGTH + 5])].set(100.0)
    scores = scores.at[0].set(200.0)
    values = jnp.arange(2.0 * LENGTH + 1)[:, None, None]
    bits = np.zeros((2, LENGTH), int)
    bits[:, 0], bits[1, 4] = 1, 1
    found = mixture(scores, values, choose(bits, scores.dtype), careful=False)[:, 0, 0]
    np.testing.assert_allclose(found, [4.5, (LENGTH + 4 + 5) / 2], rtol=1e-6)


def test_heads_in_pairs_cancel_at_the_start():
    model, bits = drawn(dataclasses.replace(SMALL, pairs=True, position_scale=0.0), trials=0)
    assert (model.positions == 0).all()
    np.testing.assert_array_equal(model.value[:, :2], model.value[:, 2:])
    np.testing.assert_array_equal(model.out[:2], -model.out[2:])
    heads = eqx.tree_at(lambda m: (m.query, m.key), model, (0 * model.query, 0 * model.key))
    assert np.ptp(jax.jit(logits)(heads, bits), axis=0) == approx(
        0, abs=1e-6
    )  # equal scores: the bits are not seen


def test_weights_are_the_same_at_every_length():
    short, long = (SMALL.initialise(length, jax.random.key(3)) for length in (5, 11))
    for name in ("query", "out", "tokens", "read"):
        np.testing.assert_array_equal(getattr(short, name), getattr(long, name))
    np.testing.assert_array_equal(short.positions, long.positions[:6])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dim": 10, "heads": 4}, "heads = 4: they must divide the dimension 10"),
        ({"heads": 1, "pairs": True}, "heads = 1: pairs of heads need an even number"),
        ({"hidden": 0}, "hidden = 0: it must be a whole number, at least 1"),
        ({"token_scale": -1.0}, "token_scale = -1.0: it must be a finite number, at least 0"),
    ],
)
def test_impossible_architectures_are_named(settings, sentence):
    with pytest.raises(InputError) as caught:
        Architecture(**settings)
    assert str(caught.value) == sentence


def test_bits_of_another_length_are_named():
    model, bits = drawn(trials=0)
    with pytest.raises(
        InputError, match=r"bits have the shape \(14, 8\): they must be \[sequences, 9\]"
    ):
        logits(model, bits[:, :-1])


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(model) == [
        "Architecture dim=64 heads=4 hidden=64"
        " weight_scale=0.02 token_scale=0.02 position_scale=0.02"
    ]
