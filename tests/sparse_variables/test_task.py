import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists
from pytest import approx

from attlas.errors import InputError
from attlas.sparse_variables import SparseBoolean, task
from attlas.sparse_variables.task import SUPPORTS_PER_CHUNK, Batch, patterns, probabilities
from tests.defaults import numbers_by_default


@pytest.mark.parametrize(
    ("function", "values"),
    [
        ("and", (0, 0, 0, 1)),
        ("or", (0, 1, 1, 1)),
        ("majority", (0, 0, 1, 1)),
        ("parity", (0, 1, 0, 1)),
    ],
)
def test_named_functions_by_their_number_of_ones(function, values):
    task = SparseBoolean(9, (4, 0, 7), function)
    assert task.by_count() == values and task.symmetric
    bits = patterns(9)
    assert np.asarray(task.label(bits)).tolist() == [
        values[int(row[[4, 0, 7]].sum())] for row in bits
    ]


def test_a_truth_table_reads_the_first_place_of_the_support_fastest():
    task = SparseBoolean(5, (3, 1), (0, 1, 0, 0))
    assert not task.symmetric
    assert int(task.label(np.array([0, 0, 0, 1, 0], np.uint8))) == 1
    assert int(task.label(np.array([0, 1, 0, 0, 0], np.uint8))) == 0


@pytest.mark.parametrize("function", ["and", "or", "majority", "parity"])
@pytest.mark.parametrize("sparsity", [1, 3, 5])
def test_labels_are_balanced(function, sparsity):
    task = SparseBoolean(20, tuple(range(sparsity)), function)
    assert probabilities(sparsity, task.bias) @ task.table == approx(0.5, abs=1e-12)
    if function == "and":
        assert task.bias == approx(2 ** (-1 / sparsity))
    batch = task.sample(jax.random.key(11), 20_000)
    assert float(batch.label.mean()) == approx(0.5, abs=0.02) and batch.bits.shape == (20_000, 20)


def test_a_function_that_cannot_be_balanced_comes_as_near_as_it_can():
    always = SparseBoolean(4, (0, 1), (1, 1, 1, 1))
    assert always.bias == approx(0.5)
    rare = SparseBoolean(4, (0, 1, 2), (0, 1, 0, 0, 0, 0, 0, 0))
    assert rare.bias == approx(1 / 3, abs=0.01)
    assert SparseBoolean(4, (0,), "and", bias=0.9).bias == 0.9


def test_a_random_junta_is_drawn_from_its_key():
    a, b = (SparseBoolean.random(jax.random.key(11), 100, 4) for _ in range(2))
    assert (
        a == b
        and len(a.support) == 4
        and a.support == tuple(sorted(a.support))
        and len(a.function) == 16
    )
    assert SparseBoolean.random(jax.random.key(11), 100, 4, "parity").function == "parity"


@settings(max_examples=20, deadline=None)
@given(table=lists(integers(0, 1), min_size=4, max_size=4), seed=integers(0, 100))
def test_consistent_functions_are_counted_as_by_brute_force(table, seed):
    task = SparseBoolean(6, (1, 4), tuple(table))
    batch = task.sample(jax.random.key(seed), 4)
    bits, label = (np.asarray(x) for x in batch)
    functions = set()
    for places in itertools.permutations(range(6), 2):
        values = tuple(table[int(row[places[0]] + 2 * row[places[1]])] for row in patterns(6))
        pairs = frozenset(places)
        agrees = all(
            table[int(r[places[0]] + 2 * r[places[1]])] == y
            for r, y in zip(bits, label, strict=True)
        )
        if agrees:
            functions.add((pairs, values))
    assert task.consistent(batch) == len(functions) >= 1
    assert task.consistent(batch, most=1) == 1


@pytest.mark.parametrize("function", ["and", "or"])
def test_the_short_cut_for_and_and_or_misses_nothing(function):
    task = SparseBoolean(12, (2, 5, 9), function)
    slow = SparseBoolean(12, (2, 5, 9), tuple(task.table.tolist()), bias=task.bias)
    for seed in range(5):
        batch = task.sample(jax.random.key(seed), 9)
        assert task.consistent(batch) == slow.consistent(batch)


def test_more_candidates_than_one_chunk_holds_are_all_looked_through():
    """There are 91,390 supports, so that the last chunk is not full."""
    task = SparseBoolean(40, (36, 37, 38, 39), "majority")
    batch = task.sample(jax.random.key(3), 9)
    bits, label = (np.asarray(x).astype(int) for x in batch)
    sets = np.array(list(itertools.combinations(range(40), 4)))
    assert len(sets) > SUPPORTS_PER_CHUNK
    right = ((bits[:, sets].sum(-1) >= 3) == label[:, None]).all(0)
    assert task.consistent(batch) == right.sum() and right[SUPPORTS_PER_CHUNK:].any()
    assert task.consistent(batch, most=5) == 5


def test_rivals_are_counted_as_by_brute_force():
    """The expected number of agreeing rivals with m samples, over all supports and orders, against
    its definition."""
    for function in ("and", "parity", (0, 1, 0, 0)):
        task = SparseBoolean(6, (0, 3), function)
        law, bits = probabilities(6, task.bias), patterns(6)
        own = np.asarray(task.label(bits))
        total = 0.0
        for places in itertools.combinations(range(6), 2):
            for variant in task.variants:
                other = np.asarray(variant)[bits[:, list(places)].astype(int) @ [1, 2]]
                if places == (0, 3) and variant == task.variants[0]:
                    continue
                total += float(law @ (other == own)) ** 7
        assert math.exp(task.log_rivals(7)) == approx(total)


def test_the_floor_of_the_paper_and_of_its_first_moment():
    for length, first_moment in ((50, 28), (100, 31), (300, 36), (800, 40)):
        task = SparseBoolean(length, (1, 5, 9))
        assert first_moment - 2 <= task.floor() <= first_moment
        assert (
            task.unique_probability(task.floor()) >= 0.8 > task.unique_probability(task.floor() - 1)
        )
        assert task.log_hypotheses == approx(math.log(math.comb(length, 3)))


def test_the_probability_of_a_unique_support_against_simulation():
    task = SparseBoolean(30, (1, 5, 9))
    seen = [task.consistent(task.sample(jax.random.key(i), 26), most=2) == 1 for i in range(300)]
    assert np.mean(seen) == approx(task.unique_probability(26), abs=0.09)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: SparseBoolean(5, (1, 5)),
            r"support = \(1, 5\): place 5 lies outside a context of 5 bits, 0 to 4",
        ),
        (lambda: SparseBoolean(5, (1, 1)), "place 1 is repeated"),
        (
            lambda: SparseBoolean(5, (-1,)),
            "a place of the support = -1: it must be a whole number, at least 0",
        ),
        (lambda: SparseBoolean(5, ()), "it must hold between 1 and 20 places"),
        (
            lambda: SparseBoolean(5, (1, 2), (0, 1, 1)),
            "the truth table has 3 entries: a function of 2 bits has 4",
        ),
        (
            lambda: SparseBoolean(5, (1,), (0, 2)),
            "the truth table has the entry 2: it must be 0 or 1",
        ),
        (
            lambda: SparseBoolean(5, (1,), "xor"),
            "function = 'xor': it must be and, or, majority, parity or a truth table",
        ),
        (lambda: SparseBoolean(5, (1,), "party"), "Did you mean parity"),
        (lambda: SparseBoolean(5, (1,), bias=1.0), "bias = 1.0: it must lie between 0 and 1"),
        (lambda: SparseBoolean(0, (0,)), "length = 0: it must be a whole number, at least 1"),
        (
            lambda: SparseBoolean.random(jax.random.key(11), 3, 4),
            "sparsity = 4: it must be between 1 and 3, of 3 bits",
        ),
        (
            lambda: SparseBoolean(5, (1,)).label(np.zeros((2, 4), np.uint8)),
            r"bits have the shape \(2, 4\)",
        ),
        (
            lambda: SparseBoolean(9, (1, 2), (0, 1, 0, 1)).floor(),
            "does not depend on every place of its support",
        ),
        (
            lambda: SparseBoolean(9, (1, 2)).floor(1.0),
            "probability = 1.0: it must lie between 0 and 1",
        ),
        (
            lambda: SparseBoolean(30, tuple(range(11))).floor(),
            "sparsity = 11: the rivals of such a function are too many",
        ),
        (
            lambda: SparseBoolean(900, (1, 2, 3, 4), "parity").consistent(
                Batch(np.zeros((1, 900), np.uint8), np.zeros(1, np.uint8))
            ),
            "at most 200,000,000 can be looked through",
        ),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(task) == [
        "SparseBoolean.unique_probability draws=4096",
        "SparseBoolean.floor probability=0.8",
    ]


def test_where_all_bits_are_relevant_one_sample_is_the_floor():
    assert SparseBoolean(3, (0, 1, 2), "and").floor() == 1
