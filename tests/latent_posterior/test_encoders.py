"""Encoders: attention over counted tokens is attention over the tokens, training learns, probes
are judged on other sequences than they were fitted to."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attlas.attention import softmax_attention
from attlas.errors import InputError
from attlas.kernels import RBF, cme_attention
from attlas.latent_posterior import encoders
from attlas.latent_posterior.encoders import (
    Data,
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
from tests.defaults import numbers_by_default

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


def scaled(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("attention", ["softmax", "CME"])
def test_an_encoder_is_its_formula(attention):
    rng = np.random.default_rng(4)
    tokens = rng.normal(size=(4, 5))
    with jax.enable_x64(True):
        encoder = random_encoder(
            jax.random.key(1), 5, 2, width=6, layers=2, heads=3, attention=attention
        )
        leaves, kind = jax.tree.flatten(encoder)
        encoder = kind.unflatten([jnp.asarray(0.5 * rng.normal(size=x.shape)) for x in leaves])
        found = encoder.states(jnp.asarray(tokens), jnp.asarray(COUNTS, float))
        said = encoder(jnp.asarray(tokens), jnp.asarray(COUNTS, float))
        gelu = jax.nn.gelu
        states = np.append(repeated(tokens) @ encoder.embed, encoder.blank[None], 0)
        for layer, here in zip(encoder.layers, found, strict=True):
            x = scaled(states)
            for h in range(3):
                q, k, v = (x @ w[h] for w in (layer.query, layer.key, layer.value))
                temperature = np.exp(layer.log_temperature[h])
                if attention == "softmax":
                    shares = np.exp(q @ k.T / temperature)
                    states = states + shares / shares.sum(1, keepdims=True) @ v
                else:
                    cross, own = (
                        np.exp(-((y[:, None] - k) ** 2).sum(-1) / 2 / temperature) for y in (q, k)
                    )
                    ridge = np.exp(layer.log_ridge[h]) * np.eye(len(k))
                    states = states + cross @ np.linalg.solve(own + ridge, v)
            states = states + gelu(scaled(states) @ layer.inner) @ layer.outer
            np.testing.assert_allclose(here, scaled(states)[-1], atol=1e-10)
        np.testing.assert_allclose(said, scaled(states)[-1] @ encoder.read, atol=1e-10)


def test_encoders_start_with_normal_weights_of_variance_1_over_fan_in():
    encoder = random_encoder(jax.random.key(2), 50, 3, width=40, layers=3, heads=4)
    deviations = [(encoder.embed, 1), (encoder.blank[None], 1)]
    for layer in encoder.layers:
        assert layer.query.shape == layer.key.shape == (4, 40, 10)
        assert layer.inner.shape == (40, 160) and layer.outer.shape == (160, 40)
        np.testing.assert_allclose(np.exp(layer.log_temperature), np.full(4, 10**0.5), rtol=1e-6)
        assert not layer.log_ridge.any()
        deviations += [(layer.query, 40**-0.5), (layer.key, 40**-0.5), (layer.value, 40**-0.5 / 4)]
        deviations += [(layer.inner, 40**-0.5), (layer.outer, 160**-0.5)]
    for weights, deviation in deviations:
        assert np.std(weights) == pytest.approx(deviation, rel=4 / np.sqrt(2 * weights.size))
    assert encoder.read.shape == (40, 3) and not encoder.read.any()
    drawn = [np.asarray(w).ravel() for w, _ in deviations]
    assert len({w[0] for w in drawn}) == len(drawn) == 17  # each is a draw of its own
    bare = random_encoder(jax.random.key(2), 5, 3, mlp=False)
    (layer,) = bare.layers
    assert layer.inner is None and layer.value.shape == (2, 16, 16)
    assert random_encoder(jax.random.key(2), 5, 3, width=2, heads=3).layers[0].key.shape[-1] == 1


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


def test_weights_move_as_adamw_says_with_a_rate_that_falls_as_a_cosine():
    """The outputs' weights, on one sequence and noise whose first draws are known."""
    rng, rates, decays = np.random.default_rng(6), (0.02, 0.05), (0.3, 0.8)
    noises, batch, steps, runs = (0.7, 1.9), 8, 2, range(2)
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    start = encoders_of(2)
    start = eqx.tree_at(lambda e: e.read, start, jnp.asarray(rng.normal(size=(2, 8, 5))))
    one = Data(np.full((2, 1, 5), [0, 2, 1, 4, 1.0]), np.zeros((2, 1), int), np.full((2, 1), 3))
    recipe = Recipe(steps, batch, *(np.array(x) for x in (rates, decays, noises)))
    found = train_encoders(start, topics, keys, recipe, data=one, record_every=1)
    assert found.steps.tolist() == [0, 1, 2]
    for run in runs:
        first = second = 0.0
        for t in range(steps):
            before = jax.tree.map(lambda x, t=t: x[t], found.path)
            read = np.asarray(before.read[run], float)
            state = np.asarray(represent(before, one.counts)[run, -1, 0], float)
            noise = jax.random.split(jax.random.fold_in(keys[run], t))[1]
            seen = state + noises[run] * np.asarray(jax.random.normal(noise, (batch, 8)), float)
            chances = np.exp(seen @ read)
            chances /= chances.sum(1, keepdims=True)
            slope = seen.T @ (chances - np.eye(5)[3]) / batch
            first = 0.9 * first + 0.1 * slope
            second = 0.99 * second + 0.01 * slope**2
            move = first / (1 - 0.9 ** (t + 1)) / np.sqrt(second / (1 - 0.99 ** (t + 1)))
            rate = rates[run] * (1 + np.cos(np.pi * t / steps)) / 2
            np.testing.assert_allclose(
                found.path.read[t + 1, run], read - rate * (move + decays[run] * read), atol=1e-5
            )


def test_the_excess_is_the_divergence_from_the_bayes_predictor():
    topics, encoders = some_topics(2), encoders_of(2)
    read = 3 * np.random.default_rng(8).normal(size=(2, 8, 5))
    encoders = eqx.tree_at(lambda e: e.read, encoders, jnp.asarray(read))
    counts = np.random.default_rng(0).multinomial(8, np.full(5, 0.2), (2, 6)).astype(float)
    states = np.asarray(represent(encoders, counts)[:, -1], float)
    for run, said in enumerate(excess_nats(encoders, topics, counts)):
        network = np.exp(states[run] @ np.float32(read[run]).astype(float))
        network /= network.sum(1, keepdims=True)
        posterior = topics.prior[run] * np.exp(counts[run] @ np.log(topics.words[run]).T)
        bayes = posterior / posterior.sum(1, keepdims=True) @ topics.answers[run]
        assert said == pytest.approx((bayes * np.log(bayes / network)).sum(1).mean(), rel=1e-5)


def test_a_probe_is_ridge_regression_on_scaled_columns():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(1, 31, 3)) * [0.1, 5, 0] + [2, -1, 3]
    targets = rng.normal(size=(1, 31, 2)) + inputs[..., :2] + 7
    (said,) = explained(inputs, targets, 0.4)
    x, y = inputs[0, :, :2], targets[0]
    centre, deviation, middle = x[:15].mean(0), x[:15].std(0), y[:15].mean(0)
    x, y = (x - centre) / deviation, y - middle
    weights = np.linalg.solve(x[:15].T @ x[:15] / 15 + 0.4 * np.eye(2), x[:15].T @ y[:15] / 15)
    left = ((y[15:] - x[15:] @ weights) ** 2).sum() / (y[15:] ** 2).sum()
    assert 0.1 < left < 0.9 and said == pytest.approx(1 - left, rel=1e-10)


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


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(encoders) == [
        "random_encoder width=16 layers=1 heads=2",
        "Recipe steps=1000 batch=32 rate=0.01 decay=0 noise=0",
        "explained ridge=1e-06",
    ]
