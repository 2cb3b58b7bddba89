import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.single_location import SingleLocation, predict, task
from tests.defaults import numbers_by_default


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gamma": 0.0}, "gamma = 0: it must be a positive number"),
        ({"gamma": -1.0}, "gamma = -1"),
        ({"gamma": float("nan")}, "gamma = nan"),
        ({"length": 1}, "length = 1: it must be a whole number, at least 2"),
        ({"dim": 3}, "dim = 3: it must be a whole number, at least 4"),
        ({"noise": -0.1}, "noise = -0.1"),
    ],
)
def test_a_task_that_does_not_exist_is_refused(options, says):
    with pytest.raises(InputError, match=says):
        SingleLocation(**options)


def test_a_task_is_the_papers_unless_told_otherwise():
    assert SingleLocation() == SingleLocation(400, 10, gamma=0.5**0.5, noise=0.0, prior=None)


def test_tokens_have_the_law_of_the_definition():
    task = SingleLocation(dim=6, length=3, gamma=0.5, noise=0.2, key=jax.random.key(4))
    batch = task.sample(jax.random.key(0), 200_000)
    tokens, location = np.asarray(batch.tokens), np.asarray(batch.location)
    decisive = tokens[np.arange(len(tokens)), location]
    assert np.bincount(location) / len(tokens) == approx([1 / 3] * 3, abs=0.006)
    assert decisive.mean(0) == approx(task.m * task.k_star, abs=0.006)
    assert np.cov(decisive.T) == approx(0.25 * np.eye(6), abs=0.006)
    others = tokens[np.arange(len(tokens)), (location + 1) % 3]
    assert np.cov(others.T) == approx(np.eye(6), abs=0.02)
    residual = np.asarray(batch.target) - decisive @ task.v_star
    assert residual.std() == approx(0.2, rel=0.01)


def test_stars_are_orthonormal_and_by_default_the_first_two_axes():
    plain, drawn = SingleLocation(dim=5), SingleLocation(dim=5, key=jax.random.key(1))
    assert plain.k_star.tolist() == [1, 0, 0, 0, 0] and plain.v_star.tolist() == [0, 1, 0, 0, 0]
    stars = np.stack([drawn.k_star, drawn.v_star])
    assert stars @ stars.T == approx(np.eye(2), abs=1e-15)


def test_norms_do_not_give_the_place_away_at_the_papers_gamma():
    task = SingleLocation(dim=50, length=4)
    batch = task.sample(jax.random.key(2), 40_000)
    norms = (np.asarray(batch.tokens) ** 2).sum(-1)
    chosen = np.asarray(batch.location)[:, None] == np.arange(4)
    assert norms[chosen].mean() == approx(50, rel=0.01) and norms[~chosen].mean() == approx(
        50, rel=0.01
    )


def test_the_layer_is_a_sum_of_gated_readings(float64):
    tokens = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3, 4)))
    k, v = jnp.eye(4)[0], jnp.eye(4)[2]
    by_hand = sum(jax.lax.erf(0.3 * tokens[:, i, 0]) * tokens[:, i, 2] for i in range(3))
    assert np.asarray(predict(tokens, k, v, 0.3)) == approx(np.asarray(by_hand), abs=1e-15)
    assert np.asarray(predict(tokens, -k, -v, 0.3)) == approx(np.asarray(by_hand), abs=1e-15)


def test_the_bayes_predictor_is_the_posterior_mean(float64):
    task = SingleLocation(dim=5, length=4, gamma=0.6, key=jax.random.key(8))
    tokens = task.sample(jax.random.key(3), 50, jnp.float64).tokens
    squares = np.asarray((tokens**2).sum(-1))
    shifted = np.asarray(((tokens - task.m * task.k_star) ** 2).sum(-1))
    log_density = -5 * np.log(0.6) - shifted / (2 * 0.36) + squares / 2
    posterior = np.exp(log_density - log_density.max(1, keepdims=True))
    posterior /= posterior.sum(1, keepdims=True)
    expected = (posterior * np.asarray(tokens @ task.v_star)).sum(1)
    assert np.asarray(task.bayes_predict(tokens)) == approx(expected, abs=1e-12)


def test_at_gamma_one_the_bayes_predictor_is_softmax_attention(float64):
    task = SingleLocation(dim=8, length=5, gamma=1.0)
    tokens = task.sample(jax.random.key(3), 20, jnp.float64).tokens
    weights = jax.nn.softmax(task.m * tokens @ task.k_star, axis=-1)
    assert np.asarray(task.bayes_predict(tokens)) == approx(
        np.asarray((weights * (tokens @ task.v_star)).sum(-1)), abs=1e-12
    )


def test_reference_risks():
    task = SingleLocation(dim=400, length=10, noise=0.1)
    assert task.constant_risk() == approx(0.51)
    assert task.linear_risk() == approx(0.01 + 0.5 * 9 / 9.5)
    assert float(task.oracle_risk(0.1)) == approx(0.01 + 0.11350, abs=1e-5)
    # The best sharpness and its excess at two sizes.
    for dim, lam, excess in ((400, 0.0638, 0.0671), (6400, 0.0240, 0.0081)):
        best = SingleLocation(dim=dim).best_lam()
        assert best == approx(lam, abs=1e-4) and float(
            SingleLocation(dim=dim).oracle_risk(best)
        ) == approx(excess, abs=1e-4)


def test_the_best_sharpness_is_a_minimum():
    task = SingleLocation(dim=37, length=5, gamma=1.1)
    best = task.best_lam()
    risks = np.asarray(task.oracle_risk(best * np.array([0.99, 1.0, 1.01])))
    assert risks[1] < risks[0] and risks[1] < risks[2]


def test_the_place_follows_its_prior():
    prior = (0.5, 0.3, 0.0, 0.2)
    task = SingleLocation(dim=6, length=4, prior=prior)
    location = np.asarray(task.sample(jax.random.key(4), 20_000).location)
    counts = np.bincount(location, minlength=4)
    assert counts[2] == 0 and counts / 20_000 == approx(np.array(prior), abs=0.015)


def test_with_a_prior_the_bayes_predictor_leaves_out_impossible_places(float64):
    task = SingleLocation(dim=6, length=3, gamma=0.8, prior=(0.0, 1.0, 0.0))
    tokens = task.sample(jax.random.key(4), 10, jnp.float64).tokens
    assert np.asarray(task.bayes_predict(tokens)) == approx(
        np.asarray(tokens[:, 1] @ task.v_star), abs=1e-12
    )
    assert np.asarray(task.linear_predict(tokens)) == approx(
        np.asarray(tokens[:, 1] @ task.v_star), abs=1e-12
    )
    assert task.linear_risk() == approx(0.0, abs=1e-15)


def test_a_uniform_prior_is_none():
    plain, said = SingleLocation(20, 4), SingleLocation(20, 4, prior=(0.25,) * 4)
    assert said.linear_risk() == plain.linear_risk()
    assert plain.linear_risk() == approx(0.5 - 0.25 / 3.5, abs=1e-15)


@pytest.mark.parametrize(
    "prior, words",
    [
        ((0.5, 0.5), "one probability for each of 3 places"),
        ((0.5, 0.6, 0.1), "with the sum 1"),
        ((1.5, -0.5, 0.0), "0 or larger"),
        ((float("nan"), 0.5, 0.5), "must be probabilities"),
    ],
)
def test_a_prior_that_is_none_is_refused(prior, words):
    with pytest.raises(InputError, match=words):
        SingleLocation(20, 3, prior=prior)


def test_without_noise_the_target_is_the_value_of_the_informative_token():
    task = SingleLocation(dim=6, length=5, noise=0.0)
    batch = task.sample(jax.random.key(3), 40)
    tokens, location = np.asarray(batch.tokens), np.asarray(batch.location)
    decisive = tokens[np.arange(40), location]
    assert np.asarray(batch.target) == pytest.approx(decisive @ np.asarray(task.v_star), abs=1e-5)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(task) == ["SingleLocation dim=400 length=10 gamma=0.707107 noise=0"]
