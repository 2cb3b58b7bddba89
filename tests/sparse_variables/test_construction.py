import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.capacity import (
    HeadNorms,
    class_of,
    collapsed_head,
    head_block,
    head_norms,
    read_out,
)
from attlas.covers import token_radius
from attlas.errors import InputError
from attlas.sparse_variables import (
    Orthonormal,
    RandomDirections,
    SparseBoolean,
    construction,
    head_for,
    sink_head,
    symmetric_head,
    table_head,
    threshold_head,
)
from attlas.sparse_variables.task import patterns
from tests.defaults import numbers_by_default

ALL = patterns(9)
EVERY = [
    (threshold_head, "and"),
    (threshold_head, "or"),
    (threshold_head, "majority"),
    (sink_head, "and"),
    (sink_head, "or"),
    (symmetric_head, "parity"),
    (symmetric_head, "majority"),
    (table_head, (0, 1, 1, 0, 0, 0, 1, 0)),
    (table_head, "parity"),
]


@pytest.mark.parametrize(
    "embedding", [None, RandomDirections(9, 300, 4)], ids=["orthonormal", "random"]
)
@pytest.mark.parametrize(("build", "function"), EVERY)
def test_every_input_is_right_and_the_worst_margin_is_the_least_there_is(
    build, function, embedding
):
    task = SparseBoolean(9, (7, 0, 4), function)
    head = build(task, embedding=embedding)
    label = np.asarray(task.label(ALL))
    assert (head.predict(ALL) == label).all()
    assert (
        ((2.0 * label - 1) * head(ALL)).min()
        == approx(head.worst_margin(), abs=1e-12)
        == approx(head.margin, abs=1e-9)
    )


@pytest.mark.parametrize(("build", "function"), EVERY)
def test_permuting_bits_and_support_together_leaves_the_output_unchanged(build, function):
    task, order = SparseBoolean(9, (7, 0, 4), function), np.array([2, 8, 5, 0, 7, 1, 4, 6, 3])
    moved = np.empty_like(ALL)
    moved[:, order] = ALL
    elsewhere = replace(task, support=tuple(int(order[place]) for place in task.support))
    assert build(elsewhere)(moved) == approx(build(task)(ALL), abs=1e-10)
    assert build(task)(moved) != approx(build(task)(ALL), abs=1e-2), "the support stays behind"


@pytest.mark.parametrize(
    "embedding", [None, RandomDirections(9, 300, 4)], ids=["orthonormal", "random"]
)
@pytest.mark.parametrize(("build", "function"), EVERY)
def test_the_module_computes_what_the_tables_do(build, function, embedding):
    head = build(SparseBoolean(9, (7, 0, 4), function), embedding=embedding)
    with jax.enable_x64(True):
        module = head.module()
        tokens = jnp.asarray(head.embed(ALL[::7]))
        assert np.asarray(jax.vmap(module)(tokens)) == approx(head(ALL[::7]), abs=1e-9)
        inner = module.block.head
        seen = jax.vmap(lambda x: inner.weights(x, module.context))(
            jnp.concatenate(
                [tokens, jnp.broadcast_to(module.context, (len(tokens), 1, head.embedding.dim))], 1
            )
        )
    if head.attend:
        assert head.weights(ALL[::7]) == approx(np.asarray(seen), abs=1e-12)
    norms = head_norms(inner, module.context)
    assert norms.score == approx(head.score_norm)
    assert norms.value_21 == approx(head.value_norms.sum()) and norms.out == approx(head.out_norm)


@pytest.mark.parametrize(("build", "function"), EVERY)
@pytest.mark.parametrize(
    "embedding", [None, RandomDirections(9, 300, 4)], ids=["orthonormal", "random"]
)
def test_the_capacity_is_that_of_the_norms(build, function, embedding):
    head = build(SparseBoolean(9, (7, 0, 4), function), embedding=embedding)
    assert head.radius == approx(token_radius(head.embed(np.stack([np.zeros(9), np.ones(9)]))))
    tokens, dim = 9 + head.attend, head.embedding.dim
    gram = head.embedding.gram(head.task.support)
    if head.relu:
        value = np.sqrt(2) * np.linalg.norm(np.linalg.cholesky(gram).T @ head.read @ head.mix, 2)
        norms = HeadNorms(
            value=value,
            value_21=head.value_norms.sum(),
            query_key=np.sqrt(2) * head.score_norm,
            query_key_21=np.sqrt(2) * head.score_norm,
            out=head.out_norm,
            out_21=head.out_norm,
            dim=dim,
            width=len(head.out),
            out_dim=1,
            score=head.score_norm,
        )
        expected = read_out(head_block(norms, tokens, "sharp"), 1.0, head.radius, out_dim=1)
    else:
        weight = head.read @ head.mix @ head.out
        value = np.sqrt(2 * weight @ gram @ weight)
        block = collapsed_head(head.score_norm, value, tokens, dim, "sharp")
        expected = class_of(block, head.radius)
    own = head.capacity("sharp")
    assert own.log_entropy(0.01, 100) == approx(expected.log_entropy(0.01, 100))
    assert head.capacity("sharp", count_parameters=False).log_entropy(0.01, 100) >= own.log_entropy(
        0.01, 100
    )


def test_stated_margins_and_norms():
    task = SparseBoolean(100, (1, 5, 9))
    head = threshold_head(task)
    assert head.margin == approx(1 / 14) and head.score_norm == approx(np.sqrt(6) * np.log(2 * 97))
    sink = sink_head(task)
    assert sink.margin == approx(0.6) and sink.score_norm == approx(2 * np.log(400) * np.sqrt(12.5))
    weights = head.weights(np.zeros(100, int))
    assert (
        weights[[1, 5, 9]] == approx([2 / 7] * 3)
        and weights.sum() == approx(1)
        and weights[-1] == 0
    )


@pytest.mark.parametrize(("length", "sparsity"), [(20, 2), (60, 3), (60, 5)])
def test_norms_in_closed_form_are_those_of_the_head(length, sparsity):
    t, s, c = length, sparsity, 2.0
    support = tuple(range(1, 3 * s, 3))
    beta, middle = np.log(c * (t - s)), (c * (s - 1) + (c + 1) / 2) / (s * c + 1)
    conjunction, parity = (SparseBoolean(t, support, name) for name in ("and", "parity"))
    head = threshold_head(conjunction, sharpness=c)
    assert head.score_norm == approx(np.sqrt(2 * s) * beta)
    assert head.value_norms[0] == approx(np.sqrt(2) * np.hypot(1 - middle, middle))
    sink = sink_head(conjunction, sharpness=c)
    assert sink.score_norm == approx(2 * np.log(c * t) * np.sqrt(2 * s + 6.5))
    assert sink.value_norms[0] == approx(np.sqrt(6)) and sink.margin == approx((c - 1) / (c + 1))
    symmetric = symmetric_head(parity, sharpness=c)
    assert symmetric.score_norm == approx(np.sqrt(2 * s) * beta)
    assert symmetric.out_norm == approx(np.sqrt(1 + 8 * s * ((s * c + 1) / (c - 1)) ** 2))
    scores = beta + np.arange(s) * np.log(2)
    assert table_head(parity, sharpness=c).score_norm == approx(np.sqrt(2) * np.linalg.norm(scores))


@pytest.mark.parametrize(
    ("length", "sparsity"), [(20, 2), (100, 3), (500, 5), (100_000, 3)], ids=str
)
def test_a_majority_takes_attention_just_sharper_than_the_logarithm_of_the_length(length, sparsity):
    task = SparseBoolean(length, tuple(range(sparsity)), "majority")
    above, below = (threshold_head(task, sharpness=c) for c in (1.01, 1 / 1.01))
    assert above.worst_margin() > 1e-4 and below.worst_margin() < -1e-4
    assert above.score_norm > np.sqrt(2 * sparsity) * np.log(length - sparsity) > below.score_norm


def test_below_the_threshold_some_filling_fools_the_head():
    task = SparseBoolean(9, (7, 0, 4), "majority")
    label = np.asarray(task.label(ALL))
    assert (threshold_head(task, sharpness=1.01).predict(ALL) == label).all()
    fooled = threshold_head(task, sharpness=0.99)
    assert fooled.margin < 0 and not (fooled.predict(ALL) == label).all()


def test_a_staircase_that_overshoots_is_seen():
    head = table_head(SparseBoolean(9, (7, 0, 4), (0, 1, 1, 0, 0, 0, 1, 0)))
    out = head.out.copy()
    out[1] *= 3
    assert replace(head, out=out).worst_error() > 0.5


def test_the_worst_error_of_a_staircase_is_that_of_a_fine_grid_of_levels():
    """Wherever it overshoots: at the first corner, the last, or between."""
    head = table_head(SparseBoolean(9, (7, 0, 4), (0, 1, 1, 0, 0, 0, 1, 0)))
    level, constant = np.eye(2)
    (low, high), ones = head.range_of(level), head.range_of(constant)[0]
    levels = low + np.linspace(0, 1, 20_001)[:, None] * (high - low)
    reads = np.stack([levels, np.broadcast_to(ones, levels.shape)], -1)
    for unit in range(1, len(head.out)):
        out = head.out.copy()
        out[unit] += 2000.0 * (-1) ** unit  # a kink at this unit's corner
        values = np.maximum(reads @ head.mix, 0) @ out
        dense = abs(values - (2.0 * head.task.table - 1)).max()
        assert replace(head, out=out).worst_error() == pytest.approx(dense, rel=2e-3)


@pytest.mark.parametrize("build", [threshold_head, sink_head])
@pytest.mark.parametrize("constant", ["paper", "sharp"])
def test_samples_asked_for_grow_no_faster_than_the_cube_of_the_logarithm_of_the_length(
    build, constant
):
    """One power for the points and two for the norm of the scores, at lengths for which no head can
    be written down: of all norms only that of the scores depends on the length."""
    head = build(SparseBoolean(60, (1, 5, 9)))
    lengths = [50, 200, 800, 10_000, 10**6, 10**12, 10**25, 10**50, 10**100]
    logs = np.array([math.log(length) for length in lengths])
    if build is threshold_head:
        scores = np.sqrt(6) * np.array([math.log(2 * (length - 3)) for length in lengths])
    else:
        scores = 2 * (math.log(4) + logs) * np.sqrt(12.5)
    asked = [
        class_of(
            collapsed_head(score, head.value_norms[0], float(length), constant=constant)
        ).log_samples_for(0.5, margin=head.margin, delta=0.05)
        for score, length in zip(scores, lengths, strict=True)
    ]
    slopes = np.diff(asked) / np.diff(np.log(logs))
    assert (slopes > 1).all() and (slopes < 3).all()


def test_samples_grow_with_the_logarithm_of_the_length_and_a_power_of_the_sparsity():
    def asked(length, sparsity, **options):
        head = threshold_head(SparseBoolean(length, tuple(range(sparsity))))
        return head.capacity(**options).log_samples_for(0.5, margin=head.margin)

    free = [asked(*size, count_parameters=False) for size in ((1000, 3), (2000, 3), (2000, 4))]
    assert 0.2 < (free[1] - free[0]) / np.log(2) < 0.35
    assert 2.5 < (free[2] - free[1]) / np.log(4 / 3) < 4
    assert asked(2000, 3) - asked(1000, 3) == approx(np.log(2), abs=0.1)


def test_a_hundred_thousand_bits():
    task = SparseBoolean(100_000, (17, 40_000, 99_999), "parity")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (20, 100_000)).astype(np.uint8)
    assert symmetric_head(task)(bits) == approx(2.0 * np.asarray(task.label(bits)) - 1, abs=1e-9)


def test_a_construction_says_what_it_is():
    head = symmetric_head(SparseBoolean(9, (1, 2), "parity"))
    assert repr(head).startswith(
        "symmetric_head(SparseBoolean(length=9"
    ) and "5 value units, margin 1" in repr(head)
    assert head == head and len({head, symmetric_head(head.task)}) == 2


def test_a_sink_reads_and_from_its_table():
    assert sink_head(SparseBoolean(9, (1, 2), (0, 0, 0, 1))).margin == approx(0.6)
    assert sink_head(SparseBoolean(9, (1, 2), (0, 1, 1, 1))).margin == approx(0.6)
    assert sink_head(SparseBoolean(9, (1,), "or")).margin == approx(0.6)


def test_the_simplest_construction_is_chosen():
    assert not head_for(SparseBoolean(9, (1, 2), "or")).relu
    assert head_for(SparseBoolean(9, (1, 2), "parity")).mix.shape[1] == 5
    assert head_for(SparseBoolean(9, (1, 2), (0, 1, 0, 0))).relu


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: threshold_head(SparseBoolean(9, (1, 2), "parity")),
            "a threshold head computes 'at least k ones' only",
        ),
        (
            lambda: sink_head(SparseBoolean(9, (1, 2, 3), "majority")),
            "a sink head computes and, or",
        ),
        (lambda: symmetric_head(SparseBoolean(9, (1, 2), (0, 1, 0, 0))), "it is not symmetric"),
        (
            lambda: symmetric_head(SparseBoolean(9, (1, 2)), sharpness=1.0),
            "sharpness = 1: it must exceed 1",
        ),
        (
            lambda: threshold_head(SparseBoolean(9, (1, 2)), sharpness=-1.0),
            "sharpness = -1: it must be a positive number",
        ),
        (
            lambda: threshold_head(SparseBoolean(2, (0, 1))),
            "length = 2: it must exceed the sparsity 2",
        ),
        (
            lambda: threshold_head(SparseBoolean(9, (1, 2)), embedding=Orthonormal(8)),
            "the embedding has 8 places: the task has 9",
        ),
        (
            lambda: threshold_head(
                SparseBoolean(300, (1, 2, 3)), embedding=RandomDirections(300, 8)
            ),
            "dim = 8: an irrelevant place has the product",
        ),
        (
            lambda: sink_head(SparseBoolean(30, (1, 2, 3)), embedding=RandomDirections(30, 36)),
            "the product 0.51 .* it must be below 0.5;",
        ),
        (
            lambda: threshold_head(SparseBoolean(9, (1, 2)))(np.zeros(8)),
            r"bits have the shape \(8,\)",
        ),
        (lambda: threshold_head(SparseBoolean(9, (1, 2)))(np.full(9, 0.5)), "bits have the value"),
        (
            lambda: threshold_head(SparseBoolean(50_000, (1, 2))).embed(np.zeros(50_000)),
            "the tokens are 2,500,150,000 numbers",
        ),
        (lambda: RandomDirections(9, 1), "dim = 1: it must be a whole number, at least 2"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_samples_are_found_where_the_bound_falls_by_a_leap():
    head = sink_head(SparseBoolean(50, (0, 1, 2), "and"))
    capacity = head.capacity("sharp")
    needed = capacity.samples_for(0.5, margin=head.margin)
    assert capacity.risk_bound(1.0001 * needed, margin=head.margin).value < 0.5
    assert capacity.risk_bound(0.9999 * needed, margin=head.margin).value > 0.5


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(construction) == [
        "threshold_head sharpness=2",
        "sink_head sharpness=4",
        "symmetric_head sharpness=2",
        "table_head sharpness=2",
        "head_for sharpness=2",
    ]


def test_a_relevant_place_weighs_as_all_others_together_times_the_sharpness():
    task, offsets = SparseBoolean(9, (7, 0, 4), "parity"), np.array([0.0, 0.7, 1.4])
    embedding, score, *_ = construction._levels(task, offsets, 3.0, RandomDirections(9, 300, 4))
    scores = embedding.products(task.support, score[:, None])[:9, 0]
    others = np.delete(scores, task.support)
    assert abs(others).min() > 1e-3  # no product is 0, as all are where places are orthonormal
    np.testing.assert_allclose(
        np.exp(scores[list(task.support)] - offsets), 3 * np.exp(others).sum(), rtol=1e-9
    )


def test_a_sink_outweighs_what_does_not_decide_by_the_sharpness():
    task = SparseBoolean(9, (7, 0, 4), "and")
    head = sink_head(task, sharpness=3.0, embedding=RandomDirections(9, 300, 4))
    places = head.embedding.products(task.support, head.score[:, None])[:9, 0]
    beta, others = places[7], np.delete(places, task.support)
    undecided = 3 * np.exp(beta) + np.exp(beta + others).sum()
    assert np.exp(1.5 * beta) == approx(3 * undecided)
