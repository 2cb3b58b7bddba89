import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.single_location import Gate, responses
from attlas.single_location.gates import as_head


@pytest.mark.parametrize("activation", ["erf", Gate("sigmoid", 1.0), "tanh", "softmax"])
@pytest.mark.parametrize("length", [2, 10, 40])
def test_sums_over_the_other_tokens_are_those_of_the_tokens_one_by_one(activation, length):
    head, n, lam = as_head(activation), 5000, 1.7
    rng = np.random.default_rng(length)
    x1, x2 = rng.normal(size=(2, length, n))
    rho = rng.uniform(-1, 1, n)
    q = np.sqrt(1 - rho**2)
    b = rho * x1 + q * x2

    def predict(x1, b):
        weights = jax.nn.softmax(lam * x1, 0) if head is None else head(x1, lam)
        return (weights * b).sum(0), weights

    with jax.enable_x64(True):
        prediction, e = map(np.asarray, predict(x1, b))
        d = np.asarray(jax.grad(lambda x1: predict(x1, b)[0].sum())(x1))
    others = np.s_[1:]
    twin = responses.Response(
        prediction,
        e[0],
        d[0],
        (d * x2)[others].sum(0),
        (e * (rho * x2 - q * x1))[others].sum(0),
        *((x * y)[others].sum(0) for x, y in ((d, d), (d, e), (e, e))),
    )
    single = [jnp.asarray(x, jnp.float32) for x in (x1, x2, b, rho, q, lam)]
    arguments = single[0][0], single[2][0]
    rest = single[0][1:], single[1][1:], single[-1]
    if head is None:
        found = responses.softmax_response(*arguments, responses.softmax_sums(*rest), *single[3:])
    else:
        found = responses.gate_response(
            head, *arguments, responses.gate_sums(head, *rest), *single[3:]
        )
    for name, one, other in zip(twin._fields, found, twin, strict=True):
        scale = np.sqrt(np.mean(np.asarray(other) ** 2))
        assert np.abs(np.asarray(one) - other).max() < 3e-5 * scale, name


def test_a_dominant_token_does_not_cancel_itself():
    # Its derivative is tiny, and a sum of squares about 0 would leave nothing but rounding.
    x1, x2 = jnp.array([[0.0], [9.0], [-1.0]]), jnp.array([[0.0], [1.0], [0.5]])
    lam, rho, q = jnp.array([2.0, 0.6, 0.8])
    sums = responses.softmax_sums(x1[1:], x2[1:], lam)
    found = responses.softmax_response(x1[0], rho * x1[0] + q * x2[0], sums, rho, q, lam)
    with jax.enable_x64(True):
        x1, x2 = np.asarray(x1, float), np.asarray(x2, float)
        b = 0.6 * x1 + 0.8 * x2
        d = np.asarray(jax.grad(lambda x: (jax.nn.softmax(2 * x, 0) * b).sum())(x1))
    assert float(found.dd[0]) == approx(float((d[1:] ** 2).sum()), rel=1e-4) and found.dd[0] < 1e-10
