import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy import integrate, linalg, stats

from attlas.attention import softmax_attention
from attlas.errors import InputError
from attlas.gaussian import BLOCK, stream
from attlas.kernels import cme_attention
from attlas.latent_posterior import (
    BayesianRegression,
    FiniteLatent,
    GaussianLocation,
    GaussianMixture,
    models,
)
from attlas.latent_posterior.models import (
    compositions,
    draw_counts,
    log_multinomial,
    mean_by_count,
    posterior_of,
    simulated_mean,
)
from tests.defaults import numbers_by_default
from tests.sampling import assert_mean_is, of_sample

RNG = np.random.default_rng(5)
TOPICS = FiniteLatent([0.5, 0.3, 0.2], RNG.dirichlet(np.ones(4), 3))
CLUSTERS = GaussianMixture([0.6, 0.4], [[0.0, 0.0], [1.0, -0.5]], 1.3)
LOCATION = GaussianLocation(3, noise=0.8, scale=1.7)
POINTS = RNG.normal(size=(3, 2))


def features(k):
    return jnp.concatenate([k, k[..., :1] * k[..., 1:], jnp.ones_like(k[..., :1])], -1)


def rbf(a, b):
    return jnp.exp(-((a[..., :, None, :] - b[..., None, :, :]) ** 2).sum(-1) / 2)


LINEAR = BayesianRegression(2, features, outputs=2, noise=0.4, scale=1.5, points=POINTS)
PROCESS = BayesianRegression(2, kernel=rbf, noise=0.4, scale=1.5, points=POINTS)
MODELS = {
    "location": LOCATION,
    "linear": LINEAR,
    "process": PROCESS,
    "topics": TOPICS,
    "clusters": CLUSTERS,
}

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, 4, 9])
def test_the_exact_bayes_risk_is_the_sampled_one(name, length):
    model = MODELS[name]
    sampled = model.sampled_bayes_risk(length, jax.random.key(23), 40_000)
    assert_mean_is(model.bayes_risk(length), *sampled, most=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_more_tokens_tell_more(name):
    risks = [float(MODELS[name].bayes_risk(length)) for length in (1, 2, 4, 8, 16)]
    assert (np.diff(risks) < 0).all()


def test_the_posterior_of_a_location_is_the_conditional_of_the_joint_gaussian():
    x = LOCATION.sample(jax.random.key(23), 1, 5).tokens[0]
    # One coordinate of z and of the five tokens, jointly.
    cross = np.full(5, 1.7**2)
    joint = 1.7**2 * np.ones((5, 5)) + 0.8**2 * np.eye(5)
    mean, variance = LOCATION.posterior(x)
    np.testing.assert_allclose(mean, cross @ np.linalg.solve(joint, x), atol=1e-14)
    assert float(variance) == approx(1.7**2 - cross @ np.linalg.solve(joint, cross), abs=1e-14)
    assert float(LOCATION.predictive(x).variance) == approx(float(variance) + 0.64)


def test_a_location_is_a_regression_on_a_constant_feature():
    x = LOCATION.sample(jax.random.key(23), 4, 6).tokens
    constant = BayesianRegression(
        3, lambda k: jnp.ones_like(k[..., :1]), outputs=3, noise=0.8, scale=1.7
    )
    mean, covariance = constant.posterior(x, x)
    np.testing.assert_allclose(mean[:, 0], LOCATION.posterior(x).mean, atol=1e-14)
    np.testing.assert_allclose(covariance[:, 0, 0], LOCATION.posterior(x).variance, atol=1e-14)


def test_a_location_posterior_is_proportional_to_prior_times_likelihood():
    x = LOCATION.sample(jax.random.key(23), 1, 4).tokens[0]
    z = RNG.normal(size=(7, 3))
    mean, variance = LOCATION.posterior(x)
    likelihood = stats.norm.logpdf(x, z[:, None], 0.8).sum((1, 2))
    log_joint = likelihood + stats.norm.logpdf(z, 0, 1.7).sum(1)
    log_posterior = stats.norm.logpdf(z, mean, np.sqrt(variance)).sum(1)
    assert np.ptp(log_joint - log_posterior) < 1e-12


def test_pooling_errs_more_than_the_posterior_mean_by_the_formula():
    drawn = LOCATION.sample(jax.random.key(23), 100_000, 5)
    pooled = ((drawn.tokens.mean(1) - drawn.latent) ** 2).sum(-1) - LOCATION.squared_errors(drawn)
    excess = 3 * 0.8**4 / (5 * (0.8**2 + 5 * 1.7**2))
    assert_mean_is(excess, *of_sample(pooled), most=0.02)


def test_weights_and_functions_are_two_views_of_one_regression():
    drawn = LINEAR.sample(jax.random.key(23), 3, 6, queries=4)
    mean, covariance = LINEAR.posterior(drawn.keys, drawn.values)
    phi = features(drawn.queries)
    law = LINEAR.predictive(*drawn[:3])
    np.testing.assert_allclose(law.mean, phi @ mean, atol=1e-12)
    np.testing.assert_allclose(
        law.variance, 0.4**2 + jnp.einsum("nqa,nab,nqb->nq", phi, covariance, phi), atol=1e-12
    )


def test_attention_at_as_many_queries_as_the_latent_has_coordinates_gives_its_posterior_mean():
    model = BayesianRegression(2, features, outputs=2, noise=0.4, scale=1.5)
    keys, values, queries, _ = model.sample(jax.random.key(23), 3, 12, queries=4)
    outputs = cme_attention(queries, keys, values, ridge=model.ridge, kernel=model.gram)
    latent = np.linalg.solve(features(queries), outputs)
    np.testing.assert_allclose(latent, model.posterior(keys, values).mean, atol=1e-7)


def test_the_posterior_of_a_regression_is_proportional_to_prior_times_likelihood():
    model = BayesianRegression(2, features, outputs=2, noise=0.4, scale=1.5)
    keys, values, *_ = model.sample(jax.random.key(23), 1, 12)
    mean, covariance = model.posterior(keys[0], values[0])
    z = RNG.normal(size=(5, 4, 2))
    likelihood = stats.norm.logpdf(values[0], np.asarray(features(keys[0])) @ z, 0.4).sum((1, 2))
    log_joint = likelihood + stats.norm.logpdf(z, 0, 1.5).sum((1, 2))
    log_posterior = sum(
        stats.multivariate_normal.logpdf(z[:, :, j], np.asarray(mean[:, j]), np.asarray(covariance))
        for j in range(2)
    )
    assert np.ptp(log_joint - log_posterior) < 1e-10


def test_a_kernel_regression_conditions_the_joint_gaussian():
    free = BayesianRegression(2, kernel=rbf, noise=0.4, scale=1.5)
    keys, values, queries, _ = (
        np.asarray(a[0]) for a in free.sample(jax.random.key(23), 1, 12, queries=5)
    )
    assert np.linalg.norm(keys, axis=-1) == approx(np.ones(12))
    places = np.concatenate([keys, queries])
    joint = 1.5**2 * np.asarray(rbf(places, places)) + 0.4**2 * np.eye(17)
    # The law of a block given the rest, from the inverse of the whole covariance.
    precision = np.linalg.inv(joint)
    law = free.predictive(*map(jnp.asarray, (keys, values, queries)))
    np.testing.assert_allclose(
        law.mean, -np.linalg.solve(precision[12:, 12:], precision[12:, :12] @ values), atol=1e-11
    )
    np.testing.assert_allclose(
        law.variance, np.diag(np.linalg.inv(precision[12:, 12:])), atol=1e-11
    )


def test_arrays_of_numpy_are_answered_in_double_precision_whatever_the_callers():
    free = BayesianRegression(2, kernel=rbf, noise=0.4)
    linear = BayesianRegression(2, features, noise=0.4)
    drawn, other = (
        free.sample(jax.random.key(23), 2, 40, queries=5),
        linear.sample(jax.random.key(23), 2, 40),
    )
    law, posterior = free.predictive(*drawn[:3]), linear.posterior(*other[:2])
    with jax.enable_x64(False):
        found = free.sample(jax.random.key(23), 2, 40, queries=5)
        for one, same in zip(found, drawn, strict=True):
            np.testing.assert_allclose(one, same, rtol=1e-12, atol=1e-12)
        for one, same in zip(
            (*free.predictive(*found[:3]), *linear.posterior(*other[:2])),
            (*law, *posterior),
            strict=True,
        ):
            np.testing.assert_allclose(one, same, rtol=1e-10, atol=1e-10)


def test_drawn_functions_have_the_covariance_of_the_kernel():
    keys, values, queries, targets = PROCESS.sample(jax.random.key(23), 40_000, 1, queries=1)
    product = np.asarray(values[:, 0, 0] * targets[:, 0, 0] - 1.5**2 * rbf(keys, queries)[:, 0, 0])
    mean, error = of_sample(product)
    assert error < 0.02 * 1.5**2 and abs(mean) < 4.5 * error
    assert float((values[:, 0] ** 2).mean()) == approx(1.5**2 + 0.4**2, rel=0.05)


def test_the_order_of_pairs_of_key_and_value_changes_neither_posterior_nor_attention():
    keys, values, queries = (RNG.normal(size=(n, 2)) for n in (30, 30, 7))
    order = RNG.permutation(30)
    for answer in (
        lambda k, v: PROCESS.predictive(k, v, queries).mean,
        lambda k, v: softmax_attention(*map(jnp.asarray, (queries, k, v))),
    ):
        found = np.asarray(answer(keys, values))
        np.testing.assert_allclose(answer(keys[order], values[order]), found, atol=1e-11)
        assert abs(answer(keys, values[order]) - found).max() > 0.01


def test_contexts_with_equal_statistics_have_equal_predictive_laws():
    keys, values, queries = (RNG.normal(size=(n, 2)) for n in (30, 30, 7))
    turn = np.linalg.qr(RNG.normal(size=(30, 30)))[0]
    model = BayesianRegression(2, outputs=2, noise=0.5)
    for found, expected in zip(
        model.predictive(turn @ keys, turn @ values, queries),
        model.predictive(keys, values, queries),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_risk_of_a_regression_is_the_mean_over_all_sequences_of_points():
    total = 0.0
    for places in itertools.product(range(3), repeat=3):
        law = LINEAR.predictive(
            jnp.asarray(POINTS[list(places)]), jnp.zeros((3, 2)), jnp.asarray(POINTS)
        )
        total += 2 * float((law.variance - 0.4**2).mean()) / 27
    assert LINEAR.bayes_risk(3) == approx(total, abs=1e-12)


def test_the_posterior_of_a_topic_is_bayes_rule_word_by_word():
    drawn = TOPICS.sample(jax.random.key(23), 5, 6)
    for row, posterior in zip(
        np.asarray(drawn.tokens), TOPICS.posterior(drawn.tokens), strict=True
    ):
        joint = np.array([0.5, 0.3, 0.2]) * TOPICS.words[:, row].prod(1)
        np.testing.assert_allclose(posterior, joint / joint.sum(), atol=1e-14)
        following = [(joint * TOPICS.words[:, word]).sum() / joint.sum() for word in range(4)]
        np.testing.assert_allclose(TOPICS.predictive(row), following, atol=1e-14)


def test_counts_moved_where_no_contrast_sees_it_leave_the_posterior_of_a_topic():
    counts = RNG.multinomial(8, np.full(4, 0.25), 6).astype(float)
    unseen = linalg.null_space(np.log(TOPICS.words[1:] / TOPICS.words[0]))
    assert unseen.shape == (4, 4 - 3 + 1)
    moved = counts + RNG.normal(size=(6, 2)) @ unseen.T
    before, after = (
        posterior_of(TOPICS.prior, n @ np.log(TOPICS.words).T) for n in (counts, moved)
    )
    np.testing.assert_allclose(after, before, atol=1e-13)


@pytest.mark.parametrize("length", [2, 32])
def test_attention_averages_the_evidence_and_the_posterior_needs_its_length_too(length):
    tokens = TOPICS.sample(jax.random.key(23), 6, length).tokens
    equal = jnp.zeros((6, length, 1))
    evidence = jnp.asarray(np.log(TOPICS.words).T[tokens])
    mean = softmax_attention(equal[:, :1], equal, evidence)[:, 0]
    posterior = TOPICS.posterior(tokens)
    np.testing.assert_allclose(posterior_of(TOPICS.prior, length * mean), posterior, atol=1e-12)
    assert abs(posterior_of(TOPICS.prior, mean) - posterior).max() > 0.01


def test_the_risk_of_a_topic_is_the_mean_over_all_sequences():
    tokens = np.array(list(itertools.product(range(4), repeat=5)))
    joint = np.array([0.5, 0.3, 0.2]) * TOPICS.words[:, tokens].prod(-1).T
    posterior = joint / joint.sum(1, keepdims=True)
    assert TOPICS.bayes_risk(5) == approx(
        1 - (joint.sum(1) * (posterior**2).sum(1)).sum(), abs=1e-13
    )
    values = RNG.normal(size=(3, 2))
    read = FiniteLatent(TOPICS.prior, TOPICS.words, values)
    expected = (joint[..., None] * (values - (posterior @ values)[:, None]) ** 2).sum()
    assert read.bayes_risk(5) == approx(expected, abs=1e-13)


def test_a_word_that_a_topic_never_says_rules_it_out():
    model = FiniteLatent([0.5, 0.5], [[0.0, 1.0], [0.5, 0.5]])
    np.testing.assert_array_equal(model.posterior(np.array([0, 1, 1])), [0, 1])
    assert float(model.posterior(np.array([1, 1]))[0]) == approx(0.8)
    assert model.bayes_risk(2) == approx(0.625 * 2 * 0.8 * 0.2)


def test_words_are_drawn_with_their_probabilities():
    drawn = TOPICS.sample(jax.random.key(23), 20_000, 3)
    for z in range(3):
        said = np.asarray(drawn.tokens)[np.asarray(drawn.latent) == z].ravel()
        assert np.bincount(said, minlength=4) / said.size == approx(TOPICS.words[z], abs=0.02)


def test_the_risk_of_two_clusters_is_scipys_integral():
    for length in (1, 7, 60):
        a = math.sqrt(length * 1.25) / 1.3

        def integrand(g, a=a):
            odds = [0.6 * stats.norm.pdf(g), 0.4 * stats.norm.pdf(g - a)]
            return 2 * odds[0] * odds[1] / sum(odds)

        expected = integrate.quad(
            integrand, -9, a + 9, points=[0, a / 2, a], epsabs=1e-14, epsrel=1e-12
        )[0]
        assert CLUSTERS.bayes_risk(length) == approx(expected, abs=1e-12)


def test_clusters_see_the_sum_in_the_span_of_their_differences():
    rng = np.random.default_rng(23)  # its own: the risk of these clusters depends on it
    model = GaussianMixture([0.2, 0.3, 0.5], 0.6 * rng.normal(size=(3, 4)), 0.7)
    x = model.sample(jax.random.key(23), 6, 5).tokens
    direct = np.log(model.prior) + stats.norm.logpdf(
        np.asarray(x)[:, :, None], model.means, 0.7
    ).sum((1, 3))
    odds = np.exp(direct - direct.max(1, keepdims=True))
    np.testing.assert_allclose(model.posterior(x), odds / odds.sum(1, keepdims=True), atol=1e-13)
    unseen = np.linalg.svd(model.means[1:] - model.means[0])[2][2:]
    moved = x + (rng.normal(size=(6, 5, 2)) @ unseen)
    np.testing.assert_allclose(model.posterior(moved), model.posterior(x), atol=1e-12)
    sampled = model.sampled_bayes_risk(2, jax.random.key(23), 40_000)
    assert_mean_is(model.bayes_risk(2), *sampled, most=0.02)


def test_the_predictive_law_of_clusters_is_a_mixture_with_the_posterior_as_weights():
    x = CLUSTERS.sample(jax.random.key(23), 4, 3).tokens
    following = jnp.asarray(RNG.normal(size=(4, 2)))
    longer = jnp.concatenate([x, following[:, None]], 1)
    evidence = [
        jax.nn.logsumexp(jnp.log(CLUSTERS.prior) + CLUSTERS.log_likelihood(s), axis=-1)
        for s in (x, longer)
    ]
    np.testing.assert_allclose(
        CLUSTERS.predictive(x).log_density(following), evidence[1] - evidence[0], atol=1e-12
    )


def test_models_are_axes_of_arrays():
    tokens = TOPICS.sample(jax.random.key(23), 8, 5).tokens
    priors = jnp.asarray(RNG.dirichlet(np.ones(3), 4))
    many = jax.vmap(lambda p: FiniteLatent(p, TOPICS.words).posterior(tokens))(priors)
    np.testing.assert_allclose(
        many[2], FiniteLatent(priors[2], TOPICS.words).posterior(tokens), atol=1e-14
    )


def test_a_simulated_mean_is_that_of_all_blocks():
    def draw(key, count):
        return stream(key).exponential(size=count)

    samples = BLOCK + 7
    mean, error = simulated_mean(draw, jax.random.key(4), samples)
    values = np.concatenate(
        [draw(jax.random.fold_in(jax.random.key(4), i), n) for i, n in ((0, BLOCK), (BLOCK, 7))]
    )
    assert mean == approx(values.mean(), rel=1e-12)
    assert error == approx(values.std(ddof=1) / math.sqrt(samples), rel=1e-12)


def test_drawn_counts_and_latents_have_their_joint_law():
    law, posterior = np.array([3.0, 1.0]), np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    k, z = draw_counts(np.random.default_rng(2), law, posterior, 5000, 4)
    assert k.shape == z.shape == (4, 5000)
    seen = np.bincount((3 * k + z).ravel(), minlength=6).reshape(2, 3) / k.size
    assert seen == approx(law[:, None] / 4 * posterior, abs=0.015)


def test_means_by_count():
    values = np.array([[[1.0, 5.0], [2.0, 6.0], [4.0, 9.0]], [[3.0, 3.0]] * 3])
    share, mean = mean_by_count(np.array([[2, 0, 2], [1, 1, 1]]), values, 4)
    assert share == approx(np.array([[1 / 3, 0, 2 / 3, 0], [0, 1, 0, 0]]))
    assert mean[0] == approx(np.array([[2, 6], [0, 0], [2.5, 7], [0, 0]]))
    assert mean[1] == approx(np.array([[0, 0], [3, 3], [0, 0], [0, 0]]))


def test_counts_are_all_there():
    counts = compositions(5, 3)
    assert len(counts) == math.comb(7, 2) and (counts.sum(1) == 5).all() and (counts >= 0).all()
    assert len(np.unique(counts, axis=0)) == len(counts)
    assert np.exp(log_multinomial(counts)).sum() == approx(3**5)
    assert compositions(4, 1).tolist() == [[4]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GaussianLocation(0), "dim = 0"),
        (lambda: GaussianLocation(2, noise=-1.0), "noise = -1"),
        (lambda: LOCATION.bayes_risk(0), "length = 0"),
        (lambda: LOCATION.sample(jax.random.key(23), 3, 0), "length = 0"),
        (lambda: FiniteLatent([0.5, 0.6], np.eye(2)), "sum 1.1"),
        (lambda: FiniteLatent([0.5, 0.5], [[1.0, 0.0]]), "shape \\(1, 2\\)"),
        (lambda: FiniteLatent([0.5, 0.5], [[2.0, -1.0], [1.0, 0.0]]), "least entry -1"),
        (lambda: FiniteLatent([0.5, 0.5], [["a", "b"]]), "must be numbers"),
        (lambda: GaussianMixture([1.0], [[math.nan]]), "not a finite number"),
        (lambda: GaussianMixture(np.full(9, 1 / 9), np.eye(9)).bayes_risk(4), "8 dimensions"),
        (lambda: TOPICS.bayes_risk(10_000), "10000 tokens of 4 kinds"),
        (lambda: BayesianRegression(2).bayes_risk(3), "no finite law"),
        (lambda: BayesianRegression(2, features, rbf), "both given"),
        (lambda: BayesianRegression(2, points=np.ones((4, 3))), "width 2"),
        (lambda: PROCESS.posterior(jnp.ones((2, 2)), jnp.ones((2, 1))), "is a function"),
    ],
)
def test_bad_input_is_told_in_a_sentence(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(models) == [
        "GaussianLocation noise=1 scale=1",
        "BayesianRegression outputs=1 noise=0.3 scale=1",
        "BayesianRegression.sample queries=1",
        "GaussianMixture noise=1",
    ]
