import math

import numpy as np
import pytest
from pytest import approx

from attlas.capacity import (
    HeadNorms,
    PositionNorms,
    blocks,
    class_of,
    collapsed_head,
    head_block,
    multi_head,
    normalised,
    position_wise,
    projected,
    read_out,
    residual,
    stacked,
)
from attlas.capacity.blocks import Term
from attlas.covers import column_norm, spectral_norm
from attlas.errors import InputError
from tests.defaults import numbers_by_default

NORMS = HeadNorms(
    value=2.0,
    value_21=3.0,
    query_key=1.5,
    query_key_21=2.5,
    out=0.5,
    out_21=0.7,
    dim=8,
    width=4,
    out_dim=8,
)


def test_a_hundred_layers_do_not_overflow():
    deep = stacked(*[head_block(NORMS._replace(value=3000.0), 100)] * 100)
    capacity = read_out(deep, 1.0)
    assert np.isfinite(capacity.log_entropy(1.0, 100)) and capacity.log_entropy(1.0, 100) > 700
    assert capacity.rademacher(100) > 1e300
    assert (
        np.isfinite(capacity.log_samples_for(0.5, margin=1.0))
        and capacity.entropy(1.0, 100) == np.inf
    )


def test_one_layer_is_the_recursion_of_depth_one():
    one, stack = class_of(head_block(NORMS, 20)), class_of(stacked(head_block(NORMS, 20)))
    assert one.terms == stack.terms and one.log_entropy(0.1, 50) == stack.log_entropy(0.1, 50)


def test_the_recursion_by_hand():
    """Two layers with the read-out, on unit tokens, with the paper's constant: spec of Theorem
    4.7."""
    lip = 0.5 * 2.0 * (1 + 4 * 1.5)
    capacity = read_out(stacked(*[projected(head_block(NORMS, 20))] * 2), 3.0)
    sizes = {term.name: math.exp(term.log_size) for term in capacity.terms}
    assert sizes["layer 2: query-key"] == approx(3 * 2 * 0.5 * 2.0 * 2.5)
    assert sizes["layer 2: value"] == approx(3 * 0.5 * 3.0) and sizes["layer 2: out"] == approx(
        3 * 0.7 * 2.0
    )
    assert sizes["layer 1: value"] == approx(3 * lip * 0.5 * 3.0) and sizes["read-out"] == approx(
        3.0
    )
    assert capacity.scaling(0.1, 100)["depth"] == approx(2 * math.log(lip))


def test_every_factor_of_a_head_by_hand():
    """At a radius, a Lipschitz constant and norms that are all different from 1, and from each
    other."""
    norms = NORMS._replace(lipschitz=1.2, out=3.0, project=False)
    grown = head_block(norms, 20, "sharp")(math.log(1.7))
    sizes = {
        term.name: (math.exp(term.log_size), term.tokens, term.outputs, term.inputs)
        for term in grown.terms
    }
    assert sizes["query-key"] == (approx(1.2 * 3 * 2 * 2.5 * 1.7**3), 20, 8, 8)
    assert sizes["value"] == (approx(1.2 * 3 * 3.0 * 1.7), 20, 4, 8)
    assert sizes["out"] == (approx(0.7 * 1.2 * 2 * 1.7), 20, 8, 4)
    assert math.exp(grown.log_radius) == approx(1.2 * 3 * 2 * 1.7)
    assert math.exp(grown.log_lipschitz) == approx(1.2 * 3 * 2 * (1 + 2 * 1.5 * 1.7**2))
    inner = head_block(norms._replace(project=True), 20, "sharp")(math.log(1.7))
    assert math.exp(inner.log_radius) == approx(1.2 * 3) and math.exp(
        inner.terms[2].log_size
    ) == approx(0.7 * 1.2)
    fixed = head_block(norms._replace(score=5.0), 20)(math.log(1.7))
    assert (
        fixed.terms[0][1:] == (approx(math.log(2 * 1.2 * 3 * 2 * 5 * 1.7**2)), 20, 1, 8)
        and fixed.terms[2].tokens == 1
    )
    ball = projected(head_block(norms, 20))(math.log(1.7))
    assert ball.log_radius == 0 and ball.log_lipschitz == approx(
        math.log(1.2 * 3 * 2 * (1 + 4 * 1.5 * 1.7**2))
    )
    scalar = collapsed_head(5.0, 2.0, 20, 8)(math.log(1.7))
    assert [math.exp(term.log_size) for term in scalar.terms] == approx(
        [2 * 5 * 2 * 1.7**2, 2 * 1.7]
    )
    assert math.exp(scalar.log_lipschitz) == approx(2 * (1 + 2 * 5 * 1.7))


@pytest.mark.parametrize("gated", [False, True])
def test_every_factor_of_a_position_wise_map_by_hand(gated):
    norms = PositionNorms(
        up=2.0, up_21=3.0, down=0.5, down_21=0.7, dim=5, hidden=7, out_dim=4, lipschitz=1.2
    )
    gate = 1.3 * 1.7 if gated else 1.0
    grown = position_wise(norms._replace(gate=1.3, gate_21=1.9) if gated else norms, 20)(
        math.log(1.7)
    )
    expected = {
        "up": (1.2 * 0.5 * 3.0 * 1.7 * gate, 20, 7, 5),
        "down": (0.7 * 1.2 * 2.0 * 1.7 * gate, 20, 4, 7),
    } | ({"gate": (1.2 * 2.0 * 0.5 * 1.7 * 1.7 * 1.9, 20, 7, 5)} if gated else {})
    found = {term.name: (math.exp(term.log_size), *term[2:]) for term in grown.terms}
    assert found == {name: (approx(size), *rest) for name, (size, *rest) in expected.items()}
    assert math.exp(grown.log_lipschitz) == approx(1.2 * 2.0 * 0.5 * gate * (2 if gated else 1))
    assert math.exp(grown.log_radius) == approx(1.2 * 2.0 * 0.5 * 1.7 * gate)
    plain = norms._replace(lipschitz=1.0)
    default = PositionNorms(up=2.0, up_21=3.0, down=0.5, down_21=0.7, dim=5, hidden=7, out_dim=4)
    assert position_wise(default, 20)(0.3) == position_wise(plain, 20)(0.3)


def test_what_is_1_unless_it_is_given():
    inner, at = head_block(NORMS, 20), math.log(1.7)
    assert inner(at) == head_block(NORMS._replace(lipschitz=1.0), 20)(at)
    assert normalised(inner, 2.0)(at) == normalised(inner, 2.0, 1.0)(at)
    assert residual(inner)(at) == residual(inner, 1.0)(at)
    half = residual(inner, 0.5)(at)
    assert math.exp(half.log_radius) == approx(math.exp(inner(at).log_radius) + 0.5 * 1.7)
    assert math.exp(half.log_lipschitz) == approx(math.exp(inner(at).log_lipschitz) + 0.5)
    assert Term("weight", 0.3)[2:] == (1, 1, np.inf)
    assert Term("weight", 0.3).scaled(0.4).log_size == approx(0.7)


@pytest.mark.parametrize("name", ["value", "query_key_21", "lipschitz", "score"])
def test_a_norm_below_0_is_named(name):
    with pytest.raises(InputError, match=f"{name} = -1: a norm is a finite number, 0 or larger"):
        head_block(NORMS._replace(**{name: -1.0}), 20)


def test_residual_and_heads_are_bookkeeping():
    plain, extra = head_block(NORMS, 20)(0.0), residual(head_block(NORMS, 20))(0.0)
    assert math.exp(extra.log_lipschitz) == approx(math.exp(plain.log_lipschitz) + 1)
    assert (
        math.exp(extra.log_radius) == approx(math.exp(plain.log_radius) + 1)
        and extra.terms == plain.terms
    )
    two = multi_head(head_block(NORMS, 20), head_block(NORMS, 20))(0.0)
    assert (
        math.exp(two.log_lipschitz) == approx(2 * math.exp(plain.log_lipschitz))
        and len(two.terms) == 6
    )
    assert multi_head(head_block(NORMS, 20))(0.0) == plain
    # Equal heads cost the cube of their number, up to logarithms: the distance is shared.
    one = class_of(collapsed_head(2.0, 1.0, 20)).entropy(1e-4, 10)
    three = class_of(multi_head(*[collapsed_head(2.0, 1.0, 20)] * 3)).entropy(1e-4, 10)
    assert three / one == approx(27, rel=0.1)


@pytest.mark.parametrize("gated", [False, True])
def test_a_position_wise_map_moves_no_farther_than_its_bound(gated):
    bits = np.random.default_rng(3)
    up, gate, down = (
        bits.standard_normal((5, 7)),
        bits.standard_normal((5, 7)),
        bits.standard_normal((7, 4)),
    )
    norms = PositionNorms(
        up=spectral_norm(up),
        up_21=column_norm(up),
        down=spectral_norm(down),
        down_21=column_norm(down),
        dim=5,
        hidden=7,
        out_dim=4,
        gate=spectral_norm(gate) if gated else None,
        gate_21=column_norm(gate),
    )
    radius = 1.7

    def f(x, up=up, gate=gate, down=down):
        return (np.maximum(x @ gate, 0) * (x @ up) if gated else np.maximum(x @ up, 0)) @ down

    x, y = bits.standard_normal((2, 2000, 5))
    x, y = (radius * z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    y = x + 0.1 * (y - x)
    grown = position_wise(norms, 20)(math.log(radius))
    size = np.linalg.norm(f(x) - f(y), axis=1) / np.linalg.norm(x - y, axis=1)
    assert size.max() <= math.exp(grown.log_lipschitz)
    assert np.linalg.norm(f(x), axis=1).max() <= math.exp(grown.log_radius)
    moves = {"up": f(x, up=0 * up), "down": f(x, down=0 * down)} | (
        {"gate": f(x, gate=0 * gate)} if gated else {}
    )
    for term in grown.terms:
        assert np.linalg.norm(f(x) - moves[term.name], axis=1).max() <= math.exp(term.log_size)
    assert {term.name for term in grown.terms} == set(moves)


def test_a_block_behind_a_norm_does_not_see_how_long_its_tokens_were():
    inner = head_block(NORMS, 20)
    near, far = (normalised(inner, 2.0, 3.0)(log_radius) for log_radius in (0.0, 5.0))
    assert near == far
    assert near.log_lipschitz == approx(inner(math.log(2.0)).log_lipschitz + math.log(3.0))
    assert residual(inner, 0.5)(0.0).log_lipschitz == approx(
        np.logaddexp(inner(0.0).log_lipschitz, math.log(0.5))
    )


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(blocks) == [
        "Term tokens=1 outputs=1 inputs=inf",
        "HeadNorms lipschitz=1",
        "collapsed_head dim=inf",
        "PositionNorms lipschitz=1 gate_21=0",
        "residual skip=1",
        "normalised stretch=1",
    ]
