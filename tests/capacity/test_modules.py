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
    block_of,
    capacity_of,
    class_of,
    collapsed_head,
    head_block,
    head_norms,
    modules,
    occam_samples,
    read_out,
)
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


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(modules) == ["capacity_of radius=1"]
