"""Tasks of encoders: what is drawn follows the model, and the best prediction is its posterior."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.errors import InputError
from attlas.kernels import RBF
from attlas.latent_posterior.latent_tasks import (
    Data,
    Locations,
    Mixtures,
    Pairs,
    Topics,
    draw_runs,
    fourier_sum,
    harmonics,
    rbf_powers,
)
from attlas.latent_posterior.models import (
    BayesianRegression,
    FiniteLatent,
    GaussianLocation,
    GaussianMixture,
)

LENGTHS = np.array([3, 6])
KEYS = jax.random.split(jax.random.key(2), 2)


def some_topics():
    rng = np.random.default_rng(5)
    words = (rng.dirichlet(np.ones(5), (2, 3)) + 0.05) / 1.25
    return Topics(rng.dirichlet(np.ones(3), 2), words, words[..., ::-1], LENGTHS)


def some_mixtures():
    rng = np.random.default_rng(6)
    return Mixtures(rng.dirichlet(np.ones(3), 2), rng.normal(size=(2, 3, 2)), LENGTHS / 3, LENGTHS)


LOCATIONS = Locations(np.zeros((2, 2)), np.array([0.5, 2.0]), np.array([1.0, 0.7]), LENGTHS)
PAIRS = Pairs(np.stack([rbf_powers(t, 16) for t in (0.5, 1.0)]), np.array([0.4, 0.2]), LENGTHS)


def of_run(seen, run):
    """The tokens that a run has."""
    return np.asarray(seen.tokens, float)[run, :, : LENGTHS[run]]


@pytest.mark.parametrize("task", [some_topics(), some_mixtures(), LOCATIONS, PAIRS])
def test_runs_have_their_own_lengths(task):
    seen = draw_runs(task, KEYS, 50)
    assert (np.asarray(seen.counts).sum(-1) == LENGTHS[:, None]).all()
    assert task.bayes(seen).shape == (2, 50, task.outputs)


@pytest.mark.parametrize("task", [some_topics(), some_mixtures()])
def test_the_best_law_of_an_answer_is_right_as_often_as_it_says(task):
    seen = draw_runs(task, KEYS, 20_000)
    bayes, target = task.bayes(seen), np.asarray(seen.target)
    hit = target[..., None] == np.arange(task.outputs)
    off = (hit - bayes).mean(1) / np.sqrt((bayes * (1 - bayes)).mean(1) / 20_000)
    assert abs(off).max() < 5
    likelier = bayes > bayes.mean(1, keepdims=True)  # told from the law without a context
    off = np.where(likelier, hit - bayes, 0).mean(1)
    assert abs(off / np.sqrt((likelier * bayes * (1 - bayes)).mean(1) / 20_000)).max() < 5


@pytest.mark.parametrize("task", [LOCATIONS._replace(centre=np.ones((2, 2))), PAIRS])
def test_the_best_mean_leaves_an_error_that_no_prediction_explains(task):
    seen = draw_runs(task, KEYS, 20_000)
    bayes = task.bayes(seen)
    left = np.asarray(seen.target, float) - bayes
    for said in (np.ones_like(left), bayes):
        off = (left * said).mean(1) / ((left * said).std(1) / np.sqrt(20_000))
        assert abs(off).max() < 5


def test_the_posterior_of_counts_is_that_of_the_model():
    topics = some_topics()
    seen = Data(np.array([[[3.0, 0, 1, 0, 2]], [[0.0, 1, 0, 0, 0]]]), None)
    for run in range(2):
        model = FiniteLatent(topics.prior[run], topics.words[run])
        posterior = model.posterior(np.repeat(np.arange(5), seen.counts[run, 0].astype(int)))
        np.testing.assert_allclose(topics.posterior(seen)[run, 0], posterior, rtol=1e-12)
        answer = posterior @ topics.answers[run]
        np.testing.assert_allclose(topics.bayes(seen)[run, 0], answer, rtol=1e-12)


def test_posteriors_of_tokens_are_those_of_the_models():
    mixtures = some_mixtures()
    drawn = [draw_runs(task, KEYS, 20) for task in (LOCATIONS, mixtures, PAIRS)]
    for run in range(2):
        location = GaussianLocation(2, LOCATIONS.noise[run], LOCATIONS.scale[run])
        mean = location.posterior(of_run(drawn[0], run)).mean
        np.testing.assert_allclose(LOCATIONS.bayes(drawn[0])[run], mean, rtol=1e-12)
        mixture = GaussianMixture(mixtures.prior[run], mixtures.means[run], mixtures.noise[run])
        law = mixture.posterior(of_run(drawn[1], run))
        np.testing.assert_allclose(mixtures.bayes(drawn[1])[run], law, rtol=1e-9)
        process = BayesianRegression(2, kernel=RBF([0.5, 1.0][run]), noise=PAIRS.noise[run])
        tokens, query = of_run(drawn[2], run), np.asarray(drawn[2].query, float)[run, :, None, :2]
        unit = tokens[..., :2] / np.linalg.norm(tokens[..., :2], axis=-1, keepdims=True)
        query /= np.linalg.norm(query, axis=-1, keepdims=True)  # float32 is not quite of norm 1
        mean = process.predictive(unit, tokens[..., 2:], query).mean[:, 0]
        np.testing.assert_allclose(PAIRS.bayes(drawn[2])[run], mean, rtol=0, atol=1e-8)


def test_a_centre_is_where_no_tokens_leave_the_mean():
    task = LOCATIONS._replace(centre=np.full((2, 2), 3.0))
    none = Data(np.zeros((2, 1, 4)), None, np.ones((2, 1, 4, 2)))
    np.testing.assert_allclose(task.bayes(none), 3)


def test_topics_of_a_latent_have_its_words():
    topics = some_topics()
    seen = draw_runs(topics, KEYS, 40_000)
    given = np.asarray(seen.counts)[0][np.asarray(seen.latent)[0] == 1].mean(0) / LENGTHS[0]
    assert abs(given - topics.words[0, 1]).max() < 0.02


def test_values_of_pairs_are_the_function_and_noise():
    seen = draw_runs(PAIRS, KEYS, 20_000)
    np.testing.assert_allclose(np.asarray(seen.target).var(1), 1, rtol=0.05)  # k(0) = 1
    np.testing.assert_allclose(
        np.asarray(seen.tokens)[..., 0, 2].var(1), 1 + PAIRS.noise**2, rtol=0.05
    )
    assert (np.asarray(seen.query)[..., 2] == 0).all()
    np.testing.assert_allclose(jnp.linalg.norm(seen.query, axis=-1), 1, atol=1e-6)


def test_a_sum_of_harmonics_is_that_by_horners_rule():
    rng = np.random.default_rng(3)
    angle, powers, z = rng.uniform(0, 7, (4, 6)), rng.uniform(0.1, 2, 5), rng.normal(size=(4, 10))
    even, odd = (np.sqrt(powers) * own for own in np.split(z, 2, -1))
    turned = angle[..., None] * np.arange(5)
    by_hand = (even[:, None] * np.cos(turned) + odd[:, None] * np.sin(turned)).sum(-1)
    features = harmonics(angle, powers) @ z[..., None]
    np.testing.assert_allclose(features[..., 0], by_hand, atol=1e-13)
    with jax.enable_x64():
        found = fourier_sum(*map(jnp.asarray, (np.cos(angle), np.sin(angle), even, odd)))
    np.testing.assert_allclose(found, by_hand, atol=1e-13)


def test_values_of_pairs_go_together_as_the_kernel_says():
    task = Pairs(rbf_powers(0.5, 12)[None], np.array([0.3]), np.array([2]))
    seen = draw_runs(task, KEYS[:1], 60_000)
    tokens = np.asarray(seen.tokens, float)[0]
    kernel = np.exp(((tokens[:, 0, :2] * tokens[:, 1, :2]).sum(-1) - 1) / 0.5)
    for weight in (1, kernel, 1 - kernel):
        off = weight * (tokens[:, 0, 2] * tokens[:, 1, 2] - kernel)
        assert abs(off.mean()) < 5 * off.std() / len(off) ** 0.5


def test_the_function_of_pairs_does_not_know_where_it_is_asked():
    """Given the place of the query its value has mean 0 and the same spread everywhere."""
    seen = draw_runs(PAIRS, KEYS, 40_000)
    value, place = np.asarray(seen.target)[..., 0], np.asarray(seen.query)
    for run in range(2):
        angle = np.arctan2(place[run, :, 1], place[run, :, 0])
        for octant in range(8):
            own = value[run, np.floor((angle / np.pi + 1) * 4) % 8 == octant]
            assert len(own) > 4000 and abs(own.mean()) < 5 / len(own) ** 0.5
            assert abs(own.var() - 1) < 5 * (2 / len(own)) ** 0.5


def test_keys_functions_and_noise_of_pairs_are_drawn_independently():
    """Numbers drawn with one key are alike place by place, whatever shape they are drawn in."""
    samples, noise = 4000, 0.4
    task = Pairs(np.ones((1, 1)), np.array([noise]), np.array([3]))  # the function is a constant
    (seen,) = [jax.tree.map(lambda x: np.asarray(x)[0], draw_runs(task, KEYS[:1], samples))]
    places = np.concatenate([seen.query[:, None, :2], seen.tokens[..., :2]], 1)
    angle = np.arctan2(places[..., 1], places[..., 0]).ravel() % (2 * np.pi)
    function = np.stack([seen.target[:, 0], np.full(samples, np.nan)], 1).ravel()  # sin 0 = 0
    error = (seen.tokens[..., 2] - seen.target).ravel() / noise
    for one, other in itertools.combinations((angle, function, error), 2):
        alike = min(len(one), len(other))
        both = np.isfinite(one[:alike]) & np.isfinite(other[:alike])
        assert both.sum() >= samples
        assert abs(np.corrcoef(one[:alike][both], other[:alike][both])[0, 1]) < 5 / samples**0.5
    # And row by row: the noise of a sequence knows nothing of its function.
    rows = error.reshape(samples, 3)
    assert abs(np.corrcoef(rows.T, seen.target[:, 0])[-1, :-1]).max() < 5 / samples**0.5


def test_powers_of_the_gaussian_kernel_sum_to_it():
    angle, powers = np.linspace(0, 3, 7), rbf_powers(0.5, 25)
    sums = np.cos(angle[:, None] * np.arange(25)) @ powers
    np.testing.assert_allclose(sums, np.exp((np.cos(angle) - 1) / 0.5), atol=1e-14)
    with pytest.raises(InputError, match="temperature = 0"):
        rbf_powers(0.0, 4)
