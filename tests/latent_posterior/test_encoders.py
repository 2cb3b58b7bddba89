"""Encoders: attention over counted tokens is attention over the tokens, training learns, probes
are judged on other sequences than they were fitted to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attlas.attention import softmax_attention
from attlas.errors import InputError
from attlas.kernels import RBF, cme_attention
from attlas.latent_posterior.encoders import (
    Recipe,
    Topics,
    cme_counted,
    draw_topics,
    excess_nats,
    explained,
    random_encoder,
    represent,
    softmax_counted,
    train_encoders,
)
from attlas.latent_posterior.models import BayesianRegression, FiniteLatent

COUNTS = np.array([2, 0, 3, 1])


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    return rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), rng.normal(size=(4, 2))


def repeated(x):
    return np.repeat(x, COUNTS, axis=0)


def test_counted_attention_is_attention_over_all_tokens(rows):
    queries, keys, values = rows
    with jax.enable_x64(True):
        counts = jnp.asarray(COUNTS, float)
        softmax = softmax_counted(queries, keys, values, counts, 0.7)
        cme = cme_counted(queries, keys, values, counts, 0.7, 0.3)
        every = [jnp.asarray(x) for x in (queries, repeated(keys), repeated(values))]
        np.testing.assert_allclose(
            softmax, softmax_attention(*every, temperature=0.7), rtol=0, atol=1e-14
        )
        np.testing.assert_allclose(
            cme, cme_attention(*every, ridge=0.3, kernel=RBF(0.7)), rtol=0, atol=1e-14
        )


def test_cme_with_the_kernel_and_ridge_of_the_model_is_the_posterior_mean():
    model = BayesianRegression(3, kernel=RBF(0.5), noise=0.4, scale=1.5)
    with jax.enable_x64(True):
        drawn = model.sample(jax.random.key(0), 1, 12, 4)
        keys, values, queries = drawn.keys[0], drawn.values[0], drawn.queries[0]
        found = cme_counted(queries, keys, values, jnp.ones(12), 0.5, model.ridge)
        exact = model.predictive(keys, values, queries).mean
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-8)


def test_gradients_of_counted_attention_are_those_of_differences(rows):
    queries, keys, values = rows
    with jax.enable_x64(True):
        counts = jnp.asarray(COUNTS, float)

        def total(keys, temperature, ridge):
            attended = cme_counted(queries, keys, values, counts, temperature, ridge)
            return (attended**2).sum() + softmax_counted(
                queries, keys, values, counts, temperature
            ).sum()

        check_grads(total, (keys, 0.7, 0.3), order=1, modes=["rev"], rtol=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "CME"])
def test_an_encoder_sees_a_sequence_as_a_set(attention):
    with jax.enable_x64(True):
        encoder = random_encoder(jax.random.key(1), 4, 4, layers=2, attention=attention)
        counted = encoder.states(jnp.eye(4), jnp.asarray(COUNTS, float))
        every = encoder.states(jnp.asarray(repeated(np.eye(4))), jnp.ones(6))
        np.testing.assert_allclose(counted, every, rtol=0, atol=1e-12)
        assert abs(counted - encoder.states(jnp.eye(4), jnp.ones(4))).max() > 1e-2


def some_topics(runs, length=8):
    rng = np.random.default_rng(5)
    words = (rng.dirichlet(np.ones(5), (runs, 3)) + 0.05) / 1.25
    return Topics(rng.dirichlet(np.ones(3), runs), words, words, np.full(runs, length))


def test_the_posterior_of_counts_is_that_of_the_model():
    topics = some_topics(2)
    counts = np.array([[[3.0, 0, 1, 0, 2]], [[0.0, 1, 0, 0, 0]]])
    for run in range(2):
        model = FiniteLatent(topics.prior[run], topics.words[run])
        tokens = np.repeat(np.arange(5), counts[run, 0].astype(int))
        np.testing.assert_allclose(
            topics.posterior(counts)[run, 0], model.posterior(tokens), rtol=1e-12
        )


def test_draws_follow_the_topics():
    topics = some_topics(1, length=3)
    one = jax.tree.map(lambda x: jnp.asarray(x[0]), topics)
    drawn = draw_topics(jax.random.key(2), one, 40_000, 6)
    assert (np.asarray(drawn.counts).sum(-1) == 3).all()
    law = topics.prior[0] @ topics.words[0]
    spread = np.sqrt(law * (1 - law) / 40_000)
    assert (abs(np.bincount(drawn.answer, minlength=5) / 40_000 - law) < 5 * spread).all()
    seen = np.asarray(drawn.counts).mean(0) / 3
    assert (abs(seen - law) < 5 * spread).all()  # words of a sequence are alike, given the latent
    given = np.asarray(drawn.counts)[np.asarray(drawn.latent) == 1].mean(0) / 3
    assert abs(given - topics.words[0, 1]).max() < 0.02


def encoders_of(runs, outputs=5, **options):
    keys = jax.random.split(jax.random.key(7), runs)
    return jax.vmap(lambda key: random_encoder(key, 5, outputs, width=8, **options))(keys)


@pytest.mark.parametrize("attention", ["softmax", "CME"])
def test_training_approaches_the_bayes_predictor(attention):
    topics, start = some_topics(2), encoders_of(2, attention=attention)
    keys = jax.random.split(jax.random.key(3), 2)
    counts = np.random.default_rng(0).multinomial(8, np.full(5, 0.2), (2, 500)).astype(float)
    found = train_encoders(start, topics, keys, Recipe(300, 32, 0.02), record_every=150)
    assert found.finite.all()
    before, after = (excess_nats(e, topics, counts) for e in (start, found.encoders))
    assert (before > 0).all() and (after > 0).all()
    assert (after < 0.3 * before).all()
    np.testing.assert_array_equal(found.path.read[-1], found.encoders.read)


def test_answers_that_say_nothing_teach_nothing():
    topics = some_topics(2)
    blind = topics._replace(answers=np.broadcast_to(np.full(5, 0.2), (2, 3, 5)))
    keys = jax.random.split(jax.random.key(3), 2)
    counts = np.random.default_rng(0).multinomial(8, np.full(5, 0.2), (2, 500)).astype(float)
    found = train_encoders(encoders_of(2), blind, keys, Recipe(300, 32, 0.02))
    assert (excess_nats(found.encoders, blind, counts) < 0.05).all()
    assert (excess_nats(found.encoders, topics, counts) > 0.1).all()


def test_a_run_that_diverges_is_marked_and_the_others_go_on():
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    start = encoders_of(2)
    broken = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), start)
    found = train_encoders(broken, topics, keys, Recipe(5, 8, 0.01))
    assert found.finite.tolist() == [True, False]


def test_training_on_a_sample_reads_that_sample_only():
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    single = jax.tree.map(jnp.asarray, topics)
    data = jax.vmap(lambda key, one: draw_topics(key, one, 16, 8))(keys, single)
    found = train_encoders(encoders_of(2), topics, keys, Recipe(300, 16, 0.02), data=data)
    logits = np.asarray(represent(found.encoders, data.counts)[:, -1] @ found.encoders.read)
    right = (logits.argmax(-1) == np.asarray(data.answer)).mean()
    assert right > 0.7  # memorised: the Bayes predictor is right far less often


def test_a_probe_is_judged_on_other_sequences():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(2, 400, 3))
    targets = inputs @ rng.normal(size=(3, 2)) + 1.0
    np.testing.assert_allclose(explained(inputs, targets), 1, atol=1e-4)
    noise = rng.normal(size=(2, 400, 2))
    half = explained(inputs, targets / targets.std((1, 2), keepdims=True) * 0 + noise)
    assert (half < 0.05).all()
    memorised = explained(rng.normal(size=(2, 100, 49)), rng.normal(size=(2, 100, 1)))
    assert (memorised < 0).all()  # 49 weights fit 50 targets, which says nothing of the others


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 0}, "heads = 0"),
        ({"layers": 0}, "layers = 0"),
        ({"attention": "linear"}, "'linear'"),
    ],
)
def test_encoders_that_cannot_be_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        random_encoder(jax.random.key(0), 4, 4, **options)


def test_answers_that_do_not_fit_the_outputs_are_refused():
    keys = jax.random.split(jax.random.key(3), 2)
    with pytest.raises(InputError, match="5 values and the encoders 4 outputs"):
        train_encoders(encoders_of(2, outputs=4), some_topics(2), keys, Recipe(5, 8, 0.01))
