"""Descriptions are as short as the code says, tables are counted right, and attention finds the
places."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import special

from attlas.gaussian import stream
from attlas.sparse_variables import fitting
from attlas.sparse_variables.fitting import describe, disagreement, fit_sparse, vote
from attlas.sparse_variables.task import SparseBoolean
from tests.conftest import SEED
from tests.defaults import numbers_by_default


def drawn(task, samples, seed=SEED):
    batch = task.sample(jax.random.key(seed), samples)
    return np.asarray(batch.bits), np.asarray(batch.label)


def nats(bits, label, support):
    """By hand."""
    total = math.log(math.comb(bits.shape[1], len(support))) + math.log(bits.shape[1] + 1)
    for pattern in itertools.product((0, 1), repeat=len(support)):
        here = (bits[:, list(support)] == pattern).all(1)
        a, b = (label[here] == 0).sum(), (label[here] == 1).sum()
        total -= special.betaln(a + 0.5, b + 0.5) - special.betaln(0.5, 0.5)
    return total


def test_tables_and_descriptions_are_right_and_the_best_is_found():
    task = SparseBoolean(9, (7, 2, 4), (0, 1, 1, 1, 0, 0, 1, 0))
    bits, label = drawn(task, 90)
    tables = describe(bits, label, np.ones(90), np.array([8, 4, 7, 0, 2, 1]), 3)
    for table in tables[::5]:
        assert table.support == tuple(sorted(table.support))
        assert table.nats == pytest.approx(nats(bits, label, table.support))
        for pattern in range(len(table.counts)):
            here = table.code(bits) == pattern
            np.testing.assert_array_equal(
                table.counts[pattern], [(label[here] == y).sum() for y in (0, 1)]
            )
    best = min(tables, key=lambda t: t.nats)
    assert best.support == (2, 4, 7)
    assert best.nats == pytest.approx(
        min(nats(bits, label, s) for s in itertools.combinations((0, 1, 2, 4, 7, 8), 3))
    )
    assert not disagreement(best, bits, label).any()


def test_attention_comes_to_the_support():
    task = SparseBoolean(60, (5, 20, 41))
    bits, label = drawn(task, 80)
    votes, attention, steps = vote(
        bits, label, np.ones((4, 80)), steps=200, key=jax.random.key(SEED)
    )
    assert 0 < steps <= 200
    assert set(np.argsort(-votes)[:6]) >= {5, 20, 41}
    assert votes.shape == attention.shape == (60,)


def test_an_and_is_learnt_with_its_table_and_its_stability():
    task = SparseBoolean(60, (5, 20, 41))
    bits, label = drawn(task, 80)
    found = fit_sparse(bits, label, key=jax.random.key(SEED), runs=4)
    assert found.best.support == (5, 20, 41)
    np.testing.assert_array_equal(found.best.probability > 0.5, np.arange(8) == 7)
    assert found.stability[[5, 20, 41]].min() > 0.7 and found.stability.sum() < 4
    new, truth = drawn(task, 2000, SEED + 1)
    assert ((found.probability(new) > 0.5) == truth).mean() > 0.99
    assert found.weights.sum() == pytest.approx(1)
    assert found.best.nats < found.empty_nats


@pytest.mark.parametrize("sparsity", [None, 2])
def test_a_fit_averages_tables_and_resamples_among_the_candidates(monkeypatch, sparsity):
    """By hand, from votes that are given."""
    rng = np.random.default_rng(SEED)
    bits, label = rng.integers(0, 2, (60, 20), np.uint8), rng.integers(0, 2, 60).astype(np.uint8)
    label = np.where(rng.random(60) < 0.8, bits[:, 3] & bits[:, 11], label).astype(np.uint8)
    weight, votes, asked = rng.choice([1.0, 2.0, 0.5], 60), rng.random(20), []

    def voted(*args, **options):
        asked.append((args, options))
        return votes, votes / 2, 75

    monkeypatch.setattr(fitting, "vote", voted)
    key = jax.random.key(SEED)
    found = fit_sparse(bits, label, weight=weight, most=3, sparsity=sparsity, runs=5, key=key)
    draws = stream(key).multinomial(round(weight.sum()), weight / weight.sum(), 20)
    (((_, _, lanes), options),) = asked
    np.testing.assert_array_equal(lanes, [weight, draws[0], weight, draws[1], weight])
    assert options["steps"] == 400 and found.steps == 75
    chosen = np.argsort(-votes)[:16]
    assert found.candidates == tuple(sorted(chosen))
    np.testing.assert_array_equal(found.attention, votes / 2)

    def tables(weights):
        made = describe(bits, label, weights, chosen, sparsity or 3)
        return [t for t in made if sparsity in (None, len(t.support))]

    ranked = sorted(tables(weight), key=lambda t: t.nats)
    shares = special.softmax([-t.nats for t in ranked])
    kept = next(k for k in range(1, len(ranked) + 1) if shares[:k].sum() >= 0.999)
    assert [t.support for t in found.tables] == [t.support for t in ranked[:kept]]
    np.testing.assert_allclose(found.weights, shares[:kept] / shares[:kept].sum())
    assert found.best.support == ranked[0].support
    for size, table in found.by_size.items():
        assert len(table.support) == size
    assert list(found.by_size) == list(range(1, (sparsity or 3) + 1))
    stability = np.zeros(20)
    for draw in draws:
        stability[list(min(tables(draw.astype(float)), key=lambda t: t.nats).support)] += 1 / 20
    np.testing.assert_allclose(found.stability, stability)
    a, b = weight[label == 0].sum(), weight[label == 1].sum()
    empty = special.betaln(0.5, 0.5) - special.betaln(a + 0.5, b + 0.5) + math.log(21)
    assert found.empty_nats == pytest.approx(empty)
    said = sum(
        w * ((t.counts[:, 1] + 0.5) / (t.counts.sum(1) + 1))[t.code(bits)]
        for w, t in zip(found.weights, found.tables, strict=True)
    )
    np.testing.assert_allclose(found.probability(bits), said)


def test_an_example_disagrees_with_the_majority_of_its_pattern():
    bits = np.array([[0], [0], [0], [1], [1], [1]], np.uint8)
    label = np.array([1, 1, 0, 0, 1, 0], np.uint8)
    (table,) = describe(bits, label, np.ones(6), np.array([0]), 1)
    assert disagreement(table, bits, label).tolist() == [False, False, True, False, True, False]
    np.testing.assert_allclose(table.probability, [2.5 / 4, 1.5 / 4])


def test_weights_are_repetitions():
    task = SparseBoolean(12, (1, 5))
    bits, label = drawn(task, 40)
    one = describe(bits, label, np.full(40, 2.0), np.arange(12), 2)
    two = describe(np.tile(bits, (2, 1)), np.tile(label, 2), np.ones(80), np.arange(12), 2)
    assert [t.support for t in one] == [t.support for t in two]
    np.testing.assert_allclose([t.nats for t in one], [t.nats for t in two])


def test_coins_are_described_by_no_table():
    rng = np.random.default_rng(SEED)
    bits, label = rng.integers(0, 2, (100, 30), np.uint8), rng.integers(0, 2, 100).astype(np.uint8)
    found = fit_sparse(bits, label, key=jax.random.key(SEED), runs=2, steps=50)
    assert found.best.nats > found.empty_nats
    given = fit_sparse(bits, label, key=jax.random.key(SEED), runs=2, steps=50, sparsity=3)
    assert all(len(table.support) == 3 for table in given.tables)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(fitting) == ["fit_sparse most=5 runs=8 steps=400"]
