from dataclasses import replace

import jax
import numpy as np
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.latent_posterior import FiniteLatent, condition_number, pretraining
from attlas.latent_posterior.pretraining import (
    LinearGaussian,
    least_squares,
    masked_operator,
    masked_topics,
    on_simplex,
    tangent,
    unconstrained,
)
from tests.defaults import numbers_by_default
from tests.sampling import assert_mean_is, of_sample

RNG = np.random.default_rng(3)
WORDS = RNG.dirichlet(np.ones(4), 3)
TOPICS = FiniteLatent([0.5, 0.3, 0.2], WORDS)


def gaussian(**options):
    given = {
        "mixing": RNG.normal(size=(5, 3)),
        "masked": np.diag([1.0, 0.5, 0.2]),
        "task": np.array([[0.0, 0.0, 1.0], [0.6, 0.3, -1.5]]),
        "length": 8,
        "noise": 1.7,
        "target_noise": 0.8,
    }
    return LinearGaussian(**given | options)


def test_gain_is_the_posterior_mean():
    model = gaussian()
    z, x = model.draw(jax.random.key(0), 200_000, 1)
    fitted = least_squares(x[0], z[0]).T
    assert fitted == approx(model.gain, abs=0.02)
    left = z[0] - x[0] @ model.gain.T
    assert left.T @ left / len(left) == approx(model.spread, abs=0.01)


def test_tokens_are_the_mixed_latent_and_noise_and_their_mean_is_sufficient():
    model = gaussian()
    z, x = model.draw(jax.random.key(0), 50_000, 2)
    assert z.var((0, 1)) == approx(1, rel=0.03)
    noise = x - z @ model.mixing.T
    assert (noise**2).mean((0, 1)) == approx(np.full(5, 1.7**2 / 8), rel=0.03)
    # The posterior given all tokens, by the rule for normal laws.
    precision = np.eye(3) + 8 * model.mixing.T @ model.mixing / 1.7**2
    assert model.spread == approx(np.linalg.inv(precision), rel=1e-9)
    assert model.gain == approx(np.linalg.solve(precision, 8 * model.mixing.T / 1.7**2), rel=1e-9)
    assert model.covariance == approx(
        model.mixing @ model.mixing.T + 1.7**2 / 8 * np.eye(5), rel=1e-12
    )


def test_excess_is_the_mean_square_distance():
    model = gaussian()
    coefficients = RNG.normal(size=(3, 5))
    _, x = model.draw(jax.random.key(1), 200_000, 1)
    off = x[0] @ (coefficients - model.masked @ model.gain).T
    assert model.excess(coefficients, model.masked) == approx((off**2).sum(1).mean(), rel=0.02)


def test_mean_of_both_excess_risks():
    model = gaussian()
    found = model.pretrain(jax.random.key(2), 30, 4000)
    for runs, expected in zip(
        (found.pretraining, found.downstream), model.expected(30), strict=True
    ):
        assert_mean_is(expected, *of_sample(runs), most=0.02, sigmas=5)
    assert (
        found.downstream
        <= condition_number(model.masked, model.task).value * found.pretraining * (1 + 1e-9)
    ).all()


def test_equal_operators_have_equal_risks():
    found = gaussian(masked=np.eye(3), task=np.eye(3)).pretrain(jax.random.key(2), 30, 10)
    assert found.downstream == approx(found.pretraining, rel=1e-10)


def test_blind_pretraining_keeps_a_floor():
    model = gaussian(masked=np.diag([1.0, 1.0, 0.0]), task=np.eye(3)[2:])
    k = model.gain[2]
    assert model.expected(10**9)[1] == approx(k @ model.covariance @ k, rel=1e-6)


def test_probe_on_random_features_has_the_random_design_risk():
    model = gaussian()
    runs = model.probe(None, jax.random.key(4), 20, 4000, 0.5)
    exact = 5 / (20 - 6) * (np.trace(model.task @ model.spread @ model.task.T) + 2 * 0.25)
    assert_mean_is(exact, *of_sample(runs), most=0.02, sigmas=5)
    assert model.expected_probe(None, 20, 0.5) == approx(exact)
    invertible = np.broadcast_to(RNG.normal(size=(5, 5)), (4000, 5, 5))
    assert model.probe(invertible, jax.random.key(4), 20, 4000, 0.5) == approx(runs, rel=1e-5)
    assert model.expected_probe(invertible[:2], 20, 0.5) == approx(np.full(2, exact))


def test_probe_on_two_features_pays_for_what_they_miss():
    model, features = gaussian(), RNG.normal(size=(2, 5))
    runs = model.probe(np.broadcast_to(features, (4000, 2, 5)), jax.random.key(5), 20, 4000, 0.5)
    expected = model.expected_probe(features, 20, 0.5)
    assert_mean_is(expected, *of_sample(runs), most=0.02, sigmas=5)
    # With all the labels there are, what is left is the distance of the best combination of
    # the features to the task's mean.
    wanted = model.task @ model.gain
    root = np.linalg.cholesky(model.covariance)
    best = np.linalg.lstsq((features @ root).T, (wanted @ root).T)[0]
    assert model.expected_probe(features, 10**12, 0.5) == approx(
        model.excess(best.T @ features, model.task), rel=1e-6
    )


def test_masked_topics_have_the_singular_values_asked_for():
    masked = masked_topics(TOPICS, 5, [1.0, 0.1], 0.2)
    assert np.linalg.svd(masked.operator @ tangent(3))[1] == approx([1.0, 0.1])
    assert masked.law.sum() == approx(1) and masked.posterior.sum(1) == approx(1)
    assert masked_operator(TOPICS) == approx(WORDS.T)


def test_both_representations_recover_the_posterior_without_sampling():
    masked = masked_topics(TOPICS, 4, [1.0, 0.5], 0.2)
    target = (masked.posterior @ masked.operator.T)[None]
    assert unconstrained(masked, masked.law[None], target)[0] == approx(masked.posterior, abs=1e-8)
    found = on_simplex(masked, masked.law[None], target, steps=1500)[0]
    assert found == approx(masked.posterior, abs=0.05)


def test_hidden_tokens_share_the_latent():
    model = gaussian(hidden=4)
    runs = model.pretrain(jax.random.key(2), 40, 4000)
    for expected, found in zip(
        model.expected(40), (runs.pretraining, runs.downstream), strict=True
    ):
        assert_mean_is(expected, *of_sample(found), most=0.02, sigmas=5)
    one, many = (replace(model, hidden=h).expected(40)[0] for h in (1, 10**9))
    assert model.expected(40)[0] == approx(many + (one - many) / 4)


def test_training_with_half_of_the_words_hidden_finds_the_posterior_of_those_left():
    masked = masked_topics(TOPICS, 6, [1.0, 0.5], 0.2, hidden=3)
    assert masked.counts.sum(1) == approx(3)
    share, target = masked.sample(jax.random.key(3), 200_000, 2, WORDS)
    assert share == approx(np.broadcast_to(masked.law, share.shape), abs=0.01)
    assert (share[..., None] * (target - masked.posterior @ masked.operator.T) ** 2).sum() < 2e-3
    trained = on_simplex(masked, share, target, steps=600)
    assert np.sqrt(masked.excess(trained - masked.posterior, masked.operator)) == approx(
        0, abs=0.03
    )


def test_hidden_words_are_drawn_with_their_noise():
    """One sequence a repeat: the second moment of the mean of two hidden words of one latent."""
    masked = masked_topics(TOPICS, 5, [1.0, 0.5], 0.9, hidden=2)
    share, target = masked.sample(jax.random.key(6), 1, 40_000, WORDS)
    assert (share.sum(1) == 1).all() and ((share == 0) | (share == 1)).all()
    drawn = (share[..., None] * target).sum(1)
    means, squares = WORDS @ masked.embedding.T, WORDS @ (masked.embedding.T**2)
    one = TOPICS.prior @ means
    two = TOPICS.prior @ (means**2 + (squares - means**2 + 0.9**2) / 2)
    for moment, expected in ((drawn, one), (drawn**2, two)):
        found, error = of_sample(moment)
        assert (abs(found - expected) < 4.5 * np.sqrt(two.max() / 10_000)).all()
        assert (abs(found - expected) < 4.5 * error).all()
    off = RNG.normal(size=(len(masked.law), 3))
    by_hand = sum(
        p * ((masked.operator @ x) ** 2).sum() for p, x in zip(masked.law, off, strict=True)
    )
    assert masked.excess(off, masked.operator) == approx(by_hand)


def test_given_embeddings_of_hidden_words_are_read_with_the_posterior():
    embedding = RNG.normal(size=(2, 4))
    assert masked_operator(TOPICS, embedding) == approx(embedding @ WORDS.T)


def test_the_linear_representation_is_least_squares_on_the_plane():
    masked = masked_topics(TOPICS, 4, [1.3, 0.5], 0.2)
    share, target = masked.sample(jax.random.key(3), 50, 2, WORDS)
    for run, found in enumerate(unconstrained(masked, share, target)):
        root = np.sqrt(share[run])[:, None]
        fitted = np.linalg.lstsq(root * masked.posterior, root * target[run])[0]
        assert found.sum(1) == approx(1)
        assert found @ masked.operator.T == approx(masked.posterior @ fitted, rel=1e-6)


def test_bad_input_is_told():
    with pytest.raises(InputError, match="hidden = 4 of 4 words"):
        masked_topics(TOPICS, 4, [1.0, 0.5], 0.2, hidden=4)
    with pytest.raises(InputError, match="hidden = 0"):
        gaussian(hidden=0)
    with pytest.raises(InputError, match="3 labels for 5 features"):
        least_squares(np.ones((3, 5)), np.ones((3, 1)))
    with pytest.raises(InputError, match="collinear"):
        least_squares(np.ones((6, 2)), np.ones((6, 1)))
    with pytest.raises(InputError, match="there must be one label for each"):
        least_squares(np.ones((6, 5)), np.ones((7, 1)))
    with pytest.raises(InputError, match="a column for each latent coordinate"):
        gaussian(task=np.eye(4))
    with pytest.raises(InputError, match="length = 0"):
        gaussian(length=0)
    with pytest.raises(InputError, match="more than 6"):
        gaussian().expected(6)
    with pytest.raises(InputError, match="labels = 6: with 5 features"):
        gaussian().expected_probe(None, 6, 0.5)
    with pytest.raises(InputError, match="a column for each of 4 words"):
        masked_operator(TOPICS, np.ones((2, 3)))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(pretraining) == [
        "LinearGaussian noise=1 target_noise=0.5 hidden=1",
        "Masked hidden=1",
        "masked_topics hidden=1",
        "on_simplex steps=300",
    ]
