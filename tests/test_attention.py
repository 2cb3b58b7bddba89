import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import vmap
from pytest import approx

from attlas import attention
from attlas.attention import (
    GeneralHead,
    Layer,
    MultiHead,
    Projected,
    ReadOut,
    Residual,
    Stack,
    TransformerHead,
    linear_attention,
    onto_ball,
    random_head,
    softmax,
    softmax_attention,
)
from attlas.errors import InputError
from tests.defaults import numbers_by_default

KEYS = jax.random.split(jax.random.key(3), 4)
TOKENS = np.asarray(jax.random.normal(KEYS[0], (7, 5)))
MASK = jnp.array([True, True, False, True, False, True, True])


def test_softmax_attention_is_the_weighted_mean_of_the_values(float64):
    q, k, v = (
        jax.random.normal(key, shape)
        for key, shape in zip(KEYS, ((3, 5), (7, 5), (7, 2)), strict=False)
    )
    powers = np.exp(np.asarray(q @ k.T) / 2.0)
    expected = powers @ np.asarray(v) / powers.sum(1, keepdims=True)
    assert softmax_attention(q, k, v, temperature=2.0) == approx(expected, abs=1e-12)


@pytest.mark.parametrize("attend", [softmax_attention, linear_attention])
def test_the_temperature_is_1_unless_it_is_given(float64, attend):
    q, k, v = (jax.random.normal(key, (7, 5)) for key in KEYS[:3])
    scores = np.asarray(q @ k.T)
    powers = np.exp(scores)
    weights = powers / powers.sum(1, keepdims=True) if attend is softmax_attention else scores
    assert attend(q, k, v) == approx(weights @ np.asarray(v), abs=1e-12)


def test_the_projection_leaves_what_is_inside_the_ball(float64):
    x = jnp.array([[0.3, -0.4], [3.0, -4.0], [0.6, 0.8]])
    assert onto_ball(x) == approx(np.array([[0.3, -0.4], [0.6, -0.8], [0.6, 0.8]]))


def test_on_the_sphere_softmax_attention_is_nadaraya_watson(float64):
    q, k = (onto_ball(100 * jax.random.normal(key, (6, 4))) for key in KEYS[:2])
    v = jax.random.normal(KEYS[2], (6, 2))
    square = ((q[:, None] - k) ** 2).sum(-1)
    kernel = jnp.exp(-square / (2 * 0.3))
    assert softmax_attention(q, k, v, temperature=0.3) == approx(
        np.asarray(kernel @ v / kernel.sum(1, keepdims=True))
    )


@pytest.mark.parametrize("attend", [softmax_attention, linear_attention])
def test_a_masked_token_is_as_if_it_were_not_there(float64, attend):
    q, k, v = (jax.random.normal(key, (7, 5)) for key in KEYS[:3])
    kept = np.asarray(MASK)
    assert attend(q, k, v, mask=MASK) == approx(np.asarray(attend(q, k[kept], v[kept])), abs=1e-12)
    rows = jnp.broadcast_to(MASK, (7, 7))
    assert attend(q, k, v, mask=rows) == approx(np.asarray(attend(q, k[kept], v[kept])), abs=1e-12)


def test_a_mask_that_admits_nothing_gives_no_weight_and_a_finite_gradient(float64):
    nothing = jnp.zeros(3, bool)
    assert softmax(jnp.ones(3), nothing) == approx(np.zeros(3))
    assert np.isfinite(jax.grad(lambda s: softmax(s, nothing).sum())(jnp.ones(3))).all()


def test_linear_attention_of_batches(float64):
    q, k, v = (jax.random.normal(key, (2, 7, 5)) for key in KEYS[:3])
    by_hand = np.einsum("bqd,bnd,bnk->bqk", q, k, v) / 4
    assert linear_attention(q, k, v, temperature=4.0) == approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("attend", [softmax_attention, linear_attention])
def test_each_head_may_have_its_temperature(float64, attend):
    q, k, v = (jax.random.normal(key, (2, 7, 5)) for key in KEYS[:3])
    both = attend(q, k, v, temperature=np.array([0.5, 3.0]))
    for i, temperature in enumerate((0.5, 3.0)):
        assert both[i] == approx(
            np.asarray(attend(q[i], k[i], v[i], temperature=temperature)), abs=1e-12
        )


@pytest.mark.parametrize("length", [2, 8, 64])
def test_the_entries_of_the_jacobian_of_softmax_add_up_to_less_than_two(float64, length):
    scores = 2 * jax.random.normal(jax.random.key(length), (32, length))
    p = softmax(scores)
    sums = abs(jax.vmap(jax.jacfwd(softmax))(scores)).sum((1, 2))
    assert np.asarray(sums) == approx(2 * (1 - np.asarray((p**2).sum(-1))), rel=1e-12)


def test_large_scores_neither_overflow_nor_lose_the_largest():
    assert softmax(jnp.array([1e4, 0.0, -1e4])) == approx([1, 0, 0])
    assert softmax(jnp.array([1e4, 0.0, -1e4]), jnp.array([False, True, True])) == approx([0, 1, 0])


def test_a_transformer_head_is_a_general_head(float64):
    head = random_head(KEYS[1], 5, 3)
    general = GeneralHead(
        score=lambda x, z: x @ head.key @ head.query.T @ z,
        phi_in=lambda x: head.value.T @ x,
        phi_out=lambda y: head.out.T @ jax.nn.relu(y),
    )
    x, z = jnp.asarray(TOKENS), jnp.arange(5.0)
    assert head(x, z, MASK) == approx(np.asarray(general(x, z, MASK)), abs=1e-12)


def test_a_random_head_has_weights_of_variance_scale_squared_over_dim(float64):
    plain, scaled = random_head(KEYS[1], 40), random_head(KEYS[1], 40, 30, scale=3.0)
    weights = np.concatenate(
        [np.ravel(w) for w in (plain.key, plain.query, plain.value, plain.out)]
    )
    assert weights.std() == approx(40**-0.5, rel=0.03) and abs(weights.mean()) < 0.01
    assert [w.shape for w in (scaled.key, scaled.query, scaled.value, scaled.out)] == [
        *[(40, 30)] * 3,
        (30, 40),
    ]
    parts = [np.ravel(w) for w in (scaled.key, scaled.query, scaled.value, scaled.out)]
    assert [part.std() for part in parts] == approx([3 * 40**-0.5] * 4, rel=0.08)
    assert abs(np.corrcoef(parts) - np.eye(4)).max() < 0.1, "each matrix has its own key"
    assert plain.lipschitz == 1 and random_head(KEYS[1], 5, lipschitz=0.5).lipschitz == 0.5
    assert TransformerHead(plain.key, plain.query, plain.value, plain.out).lipschitz == 1


def test_a_layer_is_the_head_at_each_token_and_a_causal_mask_hides_the_future(float64):
    layer = Layer(random_head(KEYS[1], 5))
    x = jnp.asarray(TOKENS)
    assert layer(x)[3] == approx(np.asarray(layer.head(x, x[3])), abs=1e-12)
    causal = jnp.tril(jnp.ones((7, 7), bool))
    assert layer(x, causal)[2] == approx(np.asarray(layer(x[:3], causal[:3, :3])[2]), abs=1e-12)


def test_a_layer_commutes_with_permutations_of_its_tokens(float64):
    layer, x = Layer(random_head(KEYS[1], 5)), jnp.asarray(TOKENS)
    order = np.array([3, 0, 6, 1, 5, 2, 4])
    assert layer(x[order]) == approx(np.asarray(layer(x)[order]), abs=1e-12)


def test_blocks_compose(float64):
    a, b = random_head(KEYS[1], 5), random_head(KEYS[2], 5)
    x = jnp.asarray(TOKENS)
    both = Layer(MultiHead((a, b)))(x)
    assert both == approx(np.asarray(Layer(a)(x) + Layer(b)(x)), abs=1e-12)
    assert Residual(Layer(a))(x) == approx(np.asarray(x + Layer(a)(x)), abs=1e-12)
    assert np.linalg.norm(Projected(Layer(a))(x), axis=1).max() <= 1 + 1e-12
    assert Stack((Layer(a), Layer(b)))(x) == approx(np.asarray(Layer(b)(Layer(a)(x))), abs=1e-12)


@pytest.mark.parametrize("attend", [True, False])
def test_the_read_out_of_one_layer_is_the_whole_layer_at_cls(float64, attend):
    head, cls, weight = random_head(KEYS[1], 5), jnp.arange(5.0) / 5, jnp.ones(5)
    x = jnp.asarray(TOKENS)
    fast = ReadOut(Layer(head), cls, weight, attend)(x, MASK)
    sequence = jnp.concatenate([x, cls[None]])
    slow = Layer(head)(sequence, jnp.append(MASK, attend))[-1] @ weight
    assert fast == approx(float(slow), abs=1e-12)
    deep = ReadOut(Stack((Layer(head),)), cls, weight, attend)
    assert deep(x, MASK) == approx(float(slow), abs=1e-12)
    causal = jnp.tril(jnp.ones((7, 7), bool))
    assert deep(x, causal) == approx(
        float(ReadOut(Layer(head), cls, weight, attend)(x, causal)), abs=1e-12
    )


def test_the_activation_sees_the_projected_mixture(float64):
    head = random_head(KEYS[1], 5, scale=9.0, project=True)
    x = jnp.asarray(TOKENS)
    mixture = head.weights(x, x[0]) @ x @ head.value
    assert np.linalg.norm(mixture) > 1
    expected = jax.nn.relu(mixture / jnp.linalg.norm(mixture)) @ head.out
    assert head(x, x[0]) == approx(np.asarray(expected), abs=1e-12)


def test_modules_are_batched_with_vmap_and_differentiate(float64):
    module = ReadOut(Layer(random_head(KEYS[1], 5)), jnp.ones(5), jnp.ones(5))
    many = jax.random.normal(KEYS[3], (4, 7, 5))
    assert vmap(module)(many).shape == (4,)
    slopes = jax.grad(lambda m: vmap(m)(many).sum())(module)
    assert slopes.block.head.key.shape == (5, 5) and np.isfinite(slopes.block.head.key).all()


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (
            ((5, 2), (4, 2), (5, 3), (3, 5)),
            r"key \(5, 2\), query \(4, 2\) and value \(5, 3\) do not fit",
        ),
        (((5, 2), (5, 2), (4, 3), (3, 5)), "value as many rows"),
        (((5, 2), (5, 2), (5, 3), (2, 5)), "out has a row for each value"),
        (((5,), (5, 2), (5, 3), (3, 5)), r"key has the shape \(5,\)"),
    ],
)
def test_weights_that_do_not_fit(shapes, says):
    with pytest.raises(InputError, match=says):
        TransformerHead(*(jnp.ones(shape) for shape in shapes))


def test_nothing_to_compose_and_a_bad_temperature():
    with pytest.raises(InputError, match="heads is empty"):
        MultiHead(())
    with pytest.raises(InputError, match="blocks is empty"):
        Stack(())
    with pytest.raises(InputError, match="temperature = 0: it must be a positive number"):
        softmax_attention(jnp.ones((1, 2)), jnp.ones((3, 2)), jnp.ones((3, 1)), temperature=0.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda h: h(jnp.ones((3, 4)), jnp.ones(4)),
            "tokens have the dimension 4: this head takes 5",
        ),
        (
            lambda h: h(jnp.ones((3, 5)), jnp.ones(5), jnp.ones(4, bool)),
            r"the mask has the shape \(4,\): its last axis must be 3",
        ),
        (
            lambda h: ReadOut(Layer(h), jnp.ones(5), jnp.ones((5, 1))),
            r"weight has the shape \(5, 1\): it must be a vector",
        ),
        (
            lambda h: ReadOut(Layer(h), jnp.ones(5), jnp.ones(5))(jnp.ones((3, 4))),
            "the context has 5",
        ),
    ],
)
def test_inputs_that_do_not_fit(call, says):
    with pytest.raises(InputError, match=says):
        call(random_head(KEYS[1], 5))


def test_padded_values_may_hold_anything_and_some_token_must_be_admitted():
    queries, keys, values = (jax.random.normal(jax.random.key(i), (4, 3)) for i in range(3))
    mask = jnp.array([True, True, False, True])
    padded = values.at[2].set(jnp.nan)
    found = softmax_attention(queries, keys, padded, mask=mask)
    np.testing.assert_allclose(
        found, softmax_attention(queries, keys[mask], values[mask]), rtol=1e-5
    )
    with pytest.raises(InputError, match="admits no token"):
        softmax_attention(queries, keys, values, mask=jnp.zeros(4, bool))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(attention) == [
        "softmax_attention temperature=1",
        "linear_attention temperature=1",
        "TransformerHead lipschitz=1",
        "random_head scale=1",
    ]
