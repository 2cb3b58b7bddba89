import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.attention import (
    GeneralHead,
    Layer,
    MultiHead,
    Projected,
    ReadOut,
    Residual,
    Stack,
    TransformerHead,
    identity,
    random_head,
)
from attlas.capacity import (
    HeadNorms,
    PositionNorms,
    block_of,
    capacity_of,
    class_of,
    collapsed_head,
    head_block,
    head_norms,
    multi_head,
    normalised,
    occam_samples,
    position_wise,
    projected,
    read_out,
    residual,
    stacked,
)
from attlas.covers import column_norm, log_entropy_at, spectral_norm
from attlas.errors import InputError

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


def test_the_split_of_a_capacity_is_where_no_other_is_better():
    for capacity in (
        class_of(collapsed_head(9.0, 1.2, 50)),
        class_of(collapsed_head(9.0, 1.2, 50, 7)),
        class_of(head_block(NORMS, 30)),
    ):
        logs, shares = capacity.log_entropies(0.05, 1000)
        best = np.logaddexp.reduce(logs)
        assert shares.sum() == approx(1)
        sizes, tokens, outputs, inputs = capacity._stacked()
        rng = np.random.default_rng(0)
        for _ in range(50):
            other = shares * np.exp(0.3 * rng.standard_normal(len(shares)))
            other /= other.sum()
            worse = np.logaddexp.reduce(
                log_entropy_at(sizes - np.log(0.05 * other), np.log(1000 * tokens), outputs, inputs)
            )
            assert worse >= best - 1e-6


def test_dudley_is_near_its_closed_form_where_the_entropy_is_a_square():
    """With H = C/eps^2: a = 3 sqrt(C/m) and R = 12 sqrt(C/m)(1 + ln(A/a)); ours has the logarithm of the points in it and an upper sum."""
    capacity = class_of(collapsed_head(0.0, 1.0, 1))
    m = 1e9
    c = 36 * math.log(2 * 7 * m + 1)
    root = math.sqrt(c / m)
    closed = 12 * root * (1 + math.log(1 / (3 * root)))
    assert closed <= capacity.rademacher(m) <= 1.4 * closed


def test_dudley_is_the_integral_and_is_capped():
    capacity = class_of(collapsed_head(3.0, 2.0, 40, 5))
    m = 50_000
    eps = np.geomspace(1e-7, 2, 4000)
    roots = np.sqrt(capacity.entropy(eps, m))
    tails = np.cumsum((np.diff(eps) * (roots[1:] + roots[:-1]) / 2)[::-1])[::-1]
    integral = (4 * eps[:-1] + 12 / math.sqrt(m) * tails).min()
    assert integral <= capacity.rademacher(m) <= 1.1 * integral < 2
    assert capacity.rademacher(10) == approx(2.0) and capacity.risk_bound(10, margin=0.1).vacuous


def test_samples_for_is_where_the_bound_reaches_the_gap():
    for capacity in (
        class_of(collapsed_head(9.0, 1.2, 50)),
        class_of(collapsed_head(9.0, 1.2, 50, 4, "sharp")),
    ):
        samples = capacity.samples_for(0.5, margin=0.1)
        assert capacity.risk_bound(samples, margin=0.1).value == approx(0.5, rel=1e-6)
        assert (
            capacity.risk_bound(2 * samples, margin=0.1).value
            < 0.5
            < capacity.risk_bound(samples / 2, margin=0.1).value
        )


def test_samples_for_holds_far_out_too():
    """Tiny gaps and margins, and stacks whose values may be astronomically larger than the margin."""
    for gap, margin in ((1e-4, 1e-4), (0.5, 1e-9), (1e-9, 1.0)):
        capacity = class_of(collapsed_head(2.0, 1.0, 30, 6))
        samples = capacity.samples_for(gap, margin=margin)
        assert capacity.risk_bound(samples, margin=margin).value == approx(gap, rel=1e-6)
    deep = read_out(stacked(*[residual(head_block(NORMS, 20))] * 8), 1.0)
    assert deep.risk_bound(deep.samples_for(0.5, margin=0.1), margin=0.1).value == approx(
        0.5, rel=1e-6
    )


def test_a_grid_of_settings_is_the_settings_one_by_one():
    lengths, norms = np.array([10.0, 100.0, 1e6])[:, None], np.array([0.5, 8.0])
    grid = class_of(collapsed_head(norms, 1.0, lengths, constant="sharp"))
    found, samples = grid.rademacher(1e9), grid.samples_for(0.3, margin=0.2)
    for i, j in np.ndindex(3, 2):
        one = class_of(collapsed_head(norms[j], 1.0, lengths[i, 0], constant="sharp"))
        # The grid of distances is as fine as the hardest setting needs: others have it finer than by themselves.
        assert found[i, j] == approx(one.rademacher(1e9), rel=0.02)
        assert samples[i, j] == approx(one.samples_for(0.3, margin=0.2), rel=0.04)


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
    """Two layers with the read-out, on unit tokens, with the paper's constant: spec of Theorem 4.7."""
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
    """At a radius, a Lipschitz constant and norms that are all different from 1, and from each other."""
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


def test_the_risk_bound_by_hand():
    capacity = class_of(collapsed_head(0.5, 1.0, 9, 2, "sharp"))
    bound = capacity.risk_bound(20_000, margin=0.4, delta=0.1)
    assert bound.complexity == approx(2 * capacity.rademacher(20_000) / 0.4)
    assert bound.confidence == approx(3 * math.sqrt(math.log(20) / 40_000))
    assert (
        bound.value == approx(bound.complexity + bound.confidence) and capacity.constant == "sharp"
    )
    wide = class_of(
        collapsed_head(3.0, 1.0, 100)
    )  # a margin so large that the trivial bound decides
    assert wide.risk_bound(wide.samples_for(0.25, margin=10.0), margin=10.0).value == approx(0.25)


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
    # Equal heads cost the cube of their number, up to logarithms: the distance is shared.
    one = class_of(collapsed_head(2.0, 1.0, 20)).entropy(1e-4, 10)
    three = class_of(multi_head(*[collapsed_head(2.0, 1.0, 20)] * 3)).entropy(1e-4, 10)
    assert three / one == approx(27, rel=0.1)


def test_the_length_enters_by_a_logarithm():
    scaling = class_of(collapsed_head(5.0, 1.0, 1000)).scaling(0.05, 1000)
    assert 0 < scaling["length"] < 0.1 and scaling["length"] == approx(scaling["samples"], rel=0.05)
    assert scaling["1/eps"] == approx(2, abs=0.15)


def test_norms_of_a_head_never_form_the_product():
    head = random_head(jax.random.key(0), 6, 2)
    norms = head_norms(head, np.ones(6))
    product = np.asarray(head.key, float) @ np.asarray(head.query, float).T
    assert norms.query_key == approx(spectral_norm(product), rel=1e-6)
    assert norms.query_key_21 == approx(min(column_norm(product), column_norm(product.T)), rel=1e-6)
    assert norms.score == approx(np.linalg.norm(product @ np.ones(6)), rel=1e-6)
    assert (norms.dim, norms.width, norms.out_dim) == (6, 2, 6)


def test_the_bound_of_a_module_is_that_of_its_norms():
    key = jax.random.key(1)
    head = random_head(key, 6)
    cls, weight = np.ones(6) / 3, np.arange(6.0)
    module = ReadOut(Layer(head), jnp.asarray(cls), jnp.asarray(weight))
    norms = head_norms(head, cls)
    expected = read_out(head_block(norms, 21), float(np.linalg.norm(weight)), out_dim=6)
    assert capacity_of(module, 20).entropy(0.1, 30) == approx(expected.entropy(0.1, 30), rel=1e-6)
    linear = TransformerHead(head.key, head.query, head.value, head.out, identity)
    collapsed = capacity_of(
        ReadOut(Layer(linear), jnp.asarray(cls), jnp.asarray(weight), attend=False), 20
    )
    v = np.asarray(head.value, float) @ np.asarray(head.out, float) @ weight
    by_hand = class_of(collapsed_head(norms.score, np.linalg.norm(v), 20, 6))
    assert collapsed.entropy(0.1, 30) == approx(by_hand.entropy(0.1, 30), rel=1e-6)


def test_modules_of_every_kind_have_a_bound():
    a, b, c = (random_head(key, 4) for key in jax.random.split(jax.random.key(2), 3))
    deep = Stack((Residual(Layer(MultiHead((a, b)))), Projected(Layer(c))))
    capacity = capacity_of(ReadOut(deep, jnp.ones(4) / 2, jnp.ones(4)), 10, constant="sharp")
    assert len(capacity.terms) == 10 and capacity.constant == "sharp"
    text = capacity.report(0.1, 100)
    assert "parameters" in text and "norms" in capacity.dimension_free().report(0.1, 100)
    longer = [
        capacity_of(
            ReadOut(deep, jnp.ones(4) / 2, jnp.ones(4)), t, count_parameters=False
        ).log_entropy(0.1, 100)
        for t in (10, 1000)
    ]
    assert longer[1] > longer[0]
    assert (
        "layer 1: head 2: query-key" in text
        and "constant of softmax: 1 (sharp)" in text
        and "depth" in text
    )
    paper = capacity_of(ReadOut(deep, jnp.ones(4) / 2, jnp.ones(4)), 10)
    assert paper.log_entropy(0.1, 100) > capacity.log_entropy(0.1, 100)


def test_lipschitz_constants_hold_on_random_blocks():
    a, b = (random_head(key, 4) for key in jax.random.split(jax.random.key(5)))
    for block in (
        Layer(a),
        Layer(MultiHead((a, b))),
        Residual(Layer(a)),
        Stack((Layer(a), Layer(b))),
    ):
        bound = math.exp(block_of(block, 9, constant="sharp")(0.0).log_lipschitz)
        x = jax.random.normal(jax.random.key(6), (9, 4)) / 4
        y = x + 0.01 * jax.random.normal(jax.random.key(7), (9, 4))
        moved = np.linalg.norm(np.asarray(block(x) - block(y)), axis=1).max()
        assert moved <= bound * np.linalg.norm(np.asarray(x - y), axis=1).max()


def test_occam():
    assert occam_samples(math.log(1000), 0.1, 0.05) == approx((math.log(1000) + math.log(20)) / 0.1)


def read(size):
    return ReadOut(Layer(random_head(jax.random.key(0), 4)), size * jnp.ones(4), jnp.ones(4))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: head_block(NORMS._replace(value=-1.0), 10),
            "value = -1: a norm is a finite number, 0 or larger",
        ),
        (lambda: collapsed_head(np.inf, 1.0, 10), "score = inf: a norm is"),
        (lambda: collapsed_head(1.0, 1.0, 0), "length = 0: it must be a positive number"),
        (
            lambda: collapsed_head(1.0, 1.0, 10, constant="papers"),
            "constant = 'papers': it must be paper or sharp",
        ),
        (
            lambda: class_of(collapsed_head(1.0, 1.0, 10)).risk_bound(100, margin=0.0),
            "margin = 0: it must be a positive",
        ),
        (
            lambda: class_of(collapsed_head(1.0, 1.0, 10)).risk_bound(100, margin=0.1, delta=1.0),
            "delta = 1: it must lie between 0 and 1",
        ),
        (
            lambda: class_of(collapsed_head(1.0, 1.0, 10)).samples_for(2.0, margin=0.1),
            "gap = 2: it must lie between 0 and 1",
        ),
        (
            lambda: class_of(collapsed_head(1.0, 1.0, 10)).entropy(-1.0, 10),
            "eps = -1: it must be a positive number",
        ),
        (lambda: occam_samples(-3.0, 0.1), "log_hypotheses = -3: a norm"),
        (
            lambda: class_of(collapsed_head(1.0, 1.0, 10)).rademacher("many"),
            "samples = 'many': it must be a positive number",
        ),
        (
            lambda: class_of(collapsed_head(1.0, 1.0, np.ones(3))).report(0.1, 10),
            "a report is for one setting",
        ),
        (
            lambda: class_of(collapsed_head(1.0, 1.0, 10)).report(2.0, 10),
            "eps = 2.0: it must be below the largest value of the class, 1",
        ),
        (
            lambda: capacity_of(read(4.0), 10),
            r"radius = 1: \[CLS\] is a token too, and has the length 8",
        ),
        (lambda: capacity_of(read(0.1), -3), "length = -3: it must be a whole number, at least 1"),
        (
            lambda: capacity_of(random_head(jax.random.key(0), 4, activation=jax.nn.gelu), 10),
            "the activation has a slope of 1.129",
        ),
        (
            lambda: capacity_of(random_head(jax.random.key(0), 4, activation=jax.nn.sigmoid), 10),
            "activation is 0.5 at 0",
        ),
        (
            lambda: capacity_of(
                Stack(
                    (
                        Layer(random_head(jax.random.key(0), 4)),
                        Layer(random_head(jax.random.key(0), 5)),
                    )
                ),
                10,
            ),
            "tokens have the dimension 4: this head takes 5",
        ),
        (
            lambda: capacity_of(
                ReadOut(Layer(random_head(jax.random.key(0), 4)), jnp.ones(4) / 4, jnp.ones(3)), 10
            ),
            "the weights of this ReadOut do not fit each other",
        ),
        (lambda: occam_samples(3.0, 0.0), "error = 0: it must lie between 0 and 1"),
        (lambda: capacity_of(3, 10), "int has no known norms"),
        (
            lambda: capacity_of(
                ReadOut(
                    Layer(GeneralHead(jnp.dot, identity, identity)), jnp.ones(2) / 2, jnp.ones(2)
                ),
                3,
            ),
            "GeneralHead has no known norms",
        ),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(InputError, match=says):
        call()


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
