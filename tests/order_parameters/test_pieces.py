import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.errors import InputError
from attlas.order_parameters import (
    WEIGHTS,
    ChosenValue,
    Heads,
    Network,
    Overlaps,
    Places,
    Pooled,
    Problem,
    Readout,
    SignedPlace,
    Tokens,
    ValueSum,
    label,
    logistic,
    pieces,
    risk,
)
from tests.defaults import numbers_by_default


def tokens_of(law, count=2000):
    return jax.vmap(law)(jnp.asarray(np.random.default_rng(0).uniform(size=(count, law.uniforms))))


def test_informative_tokens_have_their_means_spreads_and_places():
    law = Places(5, [2.0, 3.0], spread=0.5, background=[0, 0, 0, 0, 0.7], extra=1, shuffled=True)
    found = tokens_of(law)
    places = np.asarray(found.latent)
    assert (places[:, 0] != places[:, 1]).all()
    assert np.bincount(places[:, 0], minlength=5).min() > 300
    for i in range(20):
        mean = np.tile([0, 0, 0, 0, 0.7], (5, 1))
        mean[places[i, 0], 0] += 2
        mean[places[i, 1], 2] += 3
        np.testing.assert_allclose(found.mean[i], mean, atol=1e-6)
        assert set(np.flatnonzero(np.asarray(found.root[i]) == 0.5)) == set(places[i].tolist())


def test_correlated_tokens_have_their_covariance():
    root = np.asarray(Places(4, [1.0], spread=0.5, correlation=0.3)(jnp.array([0.5])).root)
    spreads = np.array([0.5, 1, 1, 1])
    wanted = (0.7 * np.eye(4) + 0.3) * np.outer(spreads, spreads)
    np.testing.assert_allclose(root @ root.T, wanted, atol=1e-6)


def test_lengths_are_uniform_and_places_present():
    found = tokens_of(Places(6, [1.0], shortest=3, shuffled=True))
    lengths = np.asarray(found.present).sum(1).astype(int)
    assert np.bincount(lengths)[3:].min() > 400 and len(np.bincount(lengths)) == 7
    assert np.take_along_axis(np.asarray(found.present), np.asarray(found.latent), 1).all()


@pytest.mark.parametrize("name", WEIGHTS)
def test_absent_tokens_have_no_weight(name):
    student = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)))
    present = np.array([1.0, 1, 1, 0, 0, 0])
    head = Heads(name, 1.2)
    short = head(student[:3], present[:3], None)
    np.testing.assert_allclose(head(student, present, None), short, rtol=1e-5)


def test_heads_are_the_formula_written_out():
    student = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    a, v, b, w = np.asarray(student).T
    ones = np.ones(3)
    first, second = (np.exp(x) / np.exp(x).sum() for x in (2 * a - 0.3 * a**2, 2 * b - 0.3 * b**2))
    given = Heads("softmax", 2.0, norm=0.6, offset=5.0)(student, ones, None)
    assert float(given) == pytest.approx(first @ v + second @ w, rel=1e-5)
    extra = np.exp(a) / (1 + np.exp(a).sum())
    assert float(Heads("softmax-1")(student[:, :2], ones, None)) == pytest.approx(
        extra @ v, rel=1e-5
    )
    two = Heads("linear", values=3)(student, ones, None)
    np.testing.assert_allclose(two, a @ student[:, 1:], rtol=1e-5)
    read = Readout(Heads("linear", values=3))
    parameters = {"scale": jnp.ones((2, 3)), "constant": jnp.array([1.0, 2])}
    out = (a @ student[:, 1:]).sum()
    np.testing.assert_allclose(read(student, ones, parameters), [out + 1, out + 2], rtol=1e-5)
    assert float(Pooled()(student, ones, None)) == pytest.approx(a.sum(), rel=1e-5)


def test_a_network_reads_each_place_through_columns_of_its_own():
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(3, 7)), rng.normal(size=(3, 2, 7))  # place, unit
    parameters = {"bias": np.array([0.1, 0.2]), "readout": np.array([1.0, -2]), "constant": 0.5}
    hidden = np.tanh(np.einsum("ld,ljd->j", x, u) + parameters["bias"])
    given = Network()(x @ u.reshape(6, 7).T, np.ones(3), parameters)
    assert float(given) == pytest.approx(hidden @ parameters["readout"] + 0.5, rel=1e-5)


def test_a_token_is_chosen_with_the_odds_of_a_softmax():
    teacher = np.array([[0.3, 1.0], [1.0, 2.0], [-0.5, 3.0]])
    noise = np.random.default_rng(0).normal(size=(20_000, 1))
    chosen = jax.vmap(lambda n: ChosenValue(2.0)(jnp.asarray(teacher), None, n))(noise)
    odds = np.exp(2 * teacher[:, 0]) / np.exp(2 * teacher[:, 0]).sum()
    shares = np.bincount(np.asarray(chosen).astype(int), minlength=4)[1:] / 20_000
    assert abs(shares - odds).max() < 4 * 0.5 / np.sqrt(20_000)


def test_labels_and_their_loss():
    found = tokens_of(SignedPlace(3.0, 4))
    signs = np.asarray(found.latent)
    np.testing.assert_allclose(np.asarray(found.mean)[:, 0, 0], 3 * signs)
    assert abs(signs.mean()) < 0.1 and set(signs.tolist()) == {-1.0, 1.0}
    assert (np.asarray(found.present) == 1).all() and (np.asarray(found.root) == 1).all()
    assert (np.asarray(found.mean)[:, 1:] == 0).all()
    assert label(None, Tokens(0, 0, 0, 1.0), None) == 1.0
    assert float(logistic(2.0, -1.0)) == pytest.approx(np.log1p(np.exp(2)))


def test_linear_attention_on_one_place_has_the_risk_of_its_formula():
    # 1 - 2 c s + c^2 (s^2 + L) for c times the key and value of the teacher.
    problem = Problem(Places(5, [2.0]), ValueSum(0.3), Heads("linear", 0.2))
    oracle = Overlaps(np.eye(2)[None], np.eye(2)[None])
    value, error = risk(problem, oracle, points=1 << 15)
    assert abs(value[0] - (1 - 0.8 + 0.04 * 9 + 0.09)) < 5 * error[0] < 0.03


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(pieces) == [
        "Places spread=1 background=0 values=1 extra=0",
        "SignedPlace uniforms=1",
        "ValueSum noise=0 values=1",
        "Heads lam=1 norm=0 offset=0 values=1",
    ]


@pytest.mark.parametrize("length", [2, 5])
def test_weights_without_what_divides_them_are_refused(length):
    def weights_only(scores, present):
        return jax.nn.softmax(scores, 0)

    problem = Problem(Places(length, [2.0]), ValueSum(), Heads(weights_only))
    with pytest.raises(InputError, match=rf"a pair: .* one array of shape \({length}, 1\)"):
        risk(problem, Overlaps(np.eye(2)[None], np.eye(2)[None]), points=64)
