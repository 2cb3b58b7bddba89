"""Encoders: attention over counted tokens is attention over the tokens, training learns, probes
are judged on other sequences than they were fitted to."""

import dataclasses

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
    PairHead,
    Recipe,
    cme_counted,
    excess_of_few,
    excess_risk,
    explained,
    random_encoder,
    random_encoders,
    represent,
    softmax_counted,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import (
    Data,
    Locations,
    Pairs,
    Topics,
    draw_runs,
    rbf_powers,
)
from attlas.latent_posterior.models import BayesianRegression
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


def test_one_query_of_cme_attention_is_solved_for_as_many_are(rows):
    queries, keys, values = rows
    with jax.enable_x64(True):
        given = keys, values, jnp.asarray(COUNTS, float), 0.7, 0.3
        alone = [cme_counted(query[None], *given) for query in queries]
        every = cme_counted(queries, *given)
        np.testing.assert_allclose(jnp.concatenate(alone), every, rtol=0, atol=1e-14)
        check_grads(
            lambda k, v: cme_counted(queries[:1], k, v, *given[2:]),
            (jnp.asarray(keys), jnp.asarray(values)),
            order=1,
            modes=["rev"],
            rtol=1e-5,
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
        counted = encoder.states(Data(jnp.asarray(COUNTS, float), None))
        tokens = Data(jnp.ones(6), None, jnp.asarray(repeated(np.eye(4))))
        every = dataclasses.replace(encoder, offset=jnp.zeros(16)).states(tokens)
        np.testing.assert_allclose(counted, every, rtol=0, atol=1e-12)
        assert abs(counted - encoder.states(Data(jnp.ones(4), None))).max() > 1e-2


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
        seen = Data(jnp.asarray(COUNTS, float), 0, jnp.asarray(tokens))
        found = encoder.states(seen)
        gelu = jax.nn.gelu
        inputs = repeated(tokens) @ encoder.embed + encoder.offset
        states = np.append(inputs, encoder.blank[None], 0)
        for layer, here in zip(encoder.layers, found, strict=True):
            x = scaled(states)
            for h in range(3):
                q, k, v = (x @ w[h] for w in (layer.query, layer.key, layer.value))
                temperature = np.exp(layer.log_temperature[h])
                if attention == "softmax":
                    shares = np.exp(q @ k.T / temperature)
                    states = states + shares / shares.sum(1, keepdims=True) @ v
                else:
                    k, v = k[:-1], v[:-1]  # the token that is read is none of CME attention's
                    cross, own = (
                        np.exp(-((y[:, None] - k) ** 2).sum(-1) / 2 / temperature) for y in (q, k)
                    )
                    ridge = np.exp(layer.log_ridge[h]) * np.eye(len(k))
                    states = states + cross @ np.linalg.solve(own + ridge, v)
            states = states + gelu(scaled(states) @ layer.inner) @ layer.outer
            np.testing.assert_allclose(here, scaled(states)[-1], atol=1e-10)


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


def test_many_encoders_are_those_of_their_keys():
    keys = jax.random.split(jax.random.key(4), 3)
    every = random_encoders(keys, 5, 2, width=6, layers=2, heads=3)
    for run, key in enumerate(keys):
        one = random_encoder(key, 5, 2, width=6, layers=2, heads=3)
        assert jax.tree.structure(one) == jax.tree.structure(every)
        for many, leaf in zip(*map(jax.tree.leaves, (every, one)), strict=True):
            np.testing.assert_allclose(many[run], leaf, rtol=1e-6)
    first = jax.random.normal(jax.random.split(keys[0], 13)[0], (5, 6))
    np.testing.assert_allclose(every.embed[0], first, rtol=1e-6)


def test_an_encoder_is_read_at_its_query():
    encoder = random_encoder(jax.random.key(1), 4, 4)
    seen = Data(jnp.ones(3), None, jnp.eye(4)[:3], jnp.zeros(4))
    blank = encoder.states(seen._replace(query=None))
    np.testing.assert_array_equal(encoder.states(seen), blank)
    assert abs(encoder.states(seen._replace(query=jnp.eye(4)[3])) - blank).max() > 1e-2


def test_a_head_of_pairs_is_attention_over_them(rows):
    queries, keys, values = rows
    with jax.enable_x64(True):
        learnt = np.random.default_rng(0).normal(size=(2, 3, 2))
        tokens = jnp.concatenate([jnp.asarray(keys), jnp.asarray(values)], 1)
        query = jnp.append(jnp.asarray(queries[0]), jnp.zeros(2))
        seen = Data(jnp.ones(4), None, tokens, query)
        maps = [jnp.asarray(x) for x in (learnt[0], learnt[1], np.eye(2), np.log(0.7), np.log(0.3))]
        asked = [queries[:1] @ learnt[0], keys @ learnt[1], values]
        cme = cme_attention(*map(jnp.asarray, asked), ridge=0.3, kernel=RBF(0.7))
        np.testing.assert_allclose(PairHead(*maps, "CME").states(seen), cme, rtol=0, atol=1e-13)
        softmax = softmax_attention(*map(jnp.asarray, asked), temperature=0.7)
        found = PairHead(*maps, "softmax").states(seen)
        np.testing.assert_allclose(found, softmax, rtol=0, atol=1e-13)


def head_of(attention, temperature=0.5, ridge=0.16):
    maps = jnp.eye(2), jnp.eye(2), jnp.ones((1, 1))
    return PairHead(*maps, jnp.log(temperature), jnp.log(ridge), attention)


def test_a_head_with_the_kernel_and_ridge_of_the_task_is_its_posterior_mean():
    task = Pairs(rbf_powers(0.5, 30)[None], np.array([0.4]), np.array([12]))
    with jax.enable_x64(True):
        seen = draw_runs(task, jax.random.split(jax.random.key(2), 1), 50)
        one = jax.tree.map(lambda x: x[0], seen)
        found = jax.vmap(head_of("CME").states)(one)[:, 0]
        np.testing.assert_allclose(found, task.bayes(seen)[0], rtol=0, atol=1e-8)
        off = jax.vmap(head_of("CME", ridge=0.2).states)(one)[:, 0] - task.bayes(seen)[0]
        assert abs(off).max() > 1e-2


@pytest.mark.parametrize("attention", ["softmax", "CME"])
def test_gradients_of_heads_are_those_of_differences(attention, rows):
    _, keys, values = rows
    with jax.enable_x64(True):
        tokens = jnp.concatenate([jnp.asarray(keys)[:, :2], jnp.asarray(values)[:, :1]], 1)
        seen = Data(jnp.ones(4), None, tokens, jnp.array([0.3, -0.2, 0.0]))
        head = head_of(attention)
        weights, form = jax.tree.flatten(head)

        def total(*leaves):
            return (jax.tree.unflatten(form, leaves).states(seen) ** 2).sum()

        check_grads(total, weights, order=1, modes=["rev"], rtol=1e-5)
        slopes = jax.grad(lambda h: (h.states(seen) ** 2).sum())(head)
        assert (slopes.log_ridge != 0) == (attention == "CME") and slopes.log_temperature != 0


def some_topics(runs, length=8):
    rng = np.random.default_rng(5)
    words = (rng.dirichlet(np.ones(5), (runs, 3)) + 0.05) / 1.25
    return Topics(rng.dirichlet(np.ones(3), runs), words, words, np.full(runs, length))


def some_counts(runs, n=500):
    counts = np.random.default_rng(0).multinomial(8, np.full(5, 0.2), (runs, n)).astype(float)
    return Data(counts, np.zeros((runs, n), int))


def encoders_of(runs, outputs=5, **options):
    keys = jax.random.split(jax.random.key(7), runs)
    return jax.vmap(lambda key: random_encoder(key, 5, outputs, width=8, **options))(keys)


@pytest.mark.parametrize("attention", ["softmax", "CME"])
def test_training_approaches_the_bayes_predictor(attention):
    topics, start = some_topics(2), encoders_of(2, attention=attention)
    keys = jax.random.split(jax.random.key(3), 2)
    seen = some_counts(2)
    found = train_encoders(start, topics, keys, Recipe(300, 32, 0.02), record_every=150)
    assert found.finite.all()
    before, after = (excess_risk(e, topics, seen) for e in (start, found.encoders))
    assert (before > 0).all() and (after > 0).all()
    assert (after < 0.3 * before).all()
    np.testing.assert_array_equal(found.path.read[-1], found.encoders.read)


def test_answers_that_say_nothing_teach_nothing():
    topics = some_topics(2)
    blind = topics._replace(answers=np.broadcast_to(np.full(5, 0.2), (2, 3, 5)))
    keys = jax.random.split(jax.random.key(3), 2)
    seen = some_counts(2)
    found = train_encoders(encoders_of(2), blind, keys, Recipe(300, 32, 0.02))
    assert (excess_risk(found.encoders, blind, seen) < 0.05).all()
    assert (excess_risk(found.encoders, topics, seen) > 0.1).all()


def test_a_run_that_diverges_is_marked_and_the_others_go_on():
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    start = encoders_of(2)
    rate = np.array([0.01, 1e38])
    found = train_encoders(start, topics, keys, Recipe(5, 8, rate), record_every=1)
    alone = train_encoders(start, topics, keys, Recipe(5, 8, 0.01), record_every=1)
    assert found.finite.tolist() == [True, False]
    for leaf, good, first in zip(
        *map(jax.tree.leaves, (found.path, alone.path, start)), strict=True
    ):
        np.testing.assert_array_equal(leaf[:, 0], good[:, 0])
        assert (leaf[:, 1] == first[1]).all()  # counted as not trained


def test_a_run_without_noise_and_dropout_is_as_if_no_run_had_them():
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    noise, dropout = np.array([0.0, 0.5]), np.array([0.0, 0.2])
    recipe = Recipe(5, 8, 0.01, noise=noise, dropout=dropout)
    found = train_encoders(encoders_of(2), topics, keys, recipe).encoders
    bare = train_encoders(encoders_of(2), topics, keys, Recipe(5, 8, 0.01)).encoders
    np.testing.assert_allclose(found.read[0], bare.read[0], atol=1e-6)
    assert abs(found.read[1] - bare.read[1]).max() > 1e-3


@pytest.mark.parametrize("dropout", [-0.1, 1.0, np.nan])
def test_a_share_that_leaves_nothing_is_refused(dropout):
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    with pytest.raises(InputError, match=f"dropout = {dropout}: it must be at least 0 and less"):
        train_encoders(encoders_of(2), topics, keys, Recipe(5, 8, 0.01, dropout=dropout))


def test_training_on_a_sample_reads_that_sample_only():
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    data = draw_runs(topics, keys, 16)
    found = train_encoders(encoders_of(2), topics, keys, Recipe(300, 16, 0.02), data=data)
    logits = np.asarray(represent(found.encoders, data)[:, -1] @ found.encoders.read)
    right = (logits.argmax(-1) == np.asarray(data.target)).mean()
    assert right > 0.7  # memorised: the Bayes predictor is right far less often


def test_vectors_are_learnt_by_their_squares():
    task = Locations(np.full((2, 5), 0.5), np.ones(2), np.full(2, 0.7), np.full(2, 4))
    start, keys = encoders_of(2, mlp=False), jax.random.split(jax.random.key(3), 2)
    seen = draw_runs(task, keys, 500)
    found = train_encoders(start, task, keys, Recipe(400, 32, 0.02))
    before, after = (excess_risk(e, task, seen) for e in (start, found.encoders))
    assert (after < 0.1 * before).all()


def test_weights_move_as_adamw_says_with_a_rate_that_falls_as_a_cosine():
    """The outputs' weights, on one sequence and noise whose first draws are known."""
    rng, rates, decays = np.random.default_rng(6), (0.02, 0.05), (0.3, 0.8)
    noises, shares, batch, steps, runs = (0.7, 1.9), (0.2, 0.5), 8, 2, range(2)
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    start = encoders_of(2)
    start = eqx.tree_at(lambda e: e.read, start, jnp.asarray(rng.normal(size=(2, 8, 5))))
    one = Data(np.full((2, 1, 5), [0, 2, 1, 4, 1.0]), np.full((2, 1), 3))
    recipe = Recipe(steps, batch, *(np.array(x) for x in (rates, decays, noises, shares)))
    found = train_encoders(start, topics, keys, recipe, data=one, record_every=1)
    assert found.steps.tolist() == [0, 1, 2]
    for run in runs:
        first = second = 0.0
        for t in range(steps):
            before = jax.tree.map(lambda x, t=t: x[t], found.path)
            read = np.asarray(before.read[run], float)
            state = np.asarray(represent(before, one)[run, -1, 0], float)
            noise = jax.random.split(jax.random.fold_in(keys[run], t))[1]
            seen = state + noises[run] * np.asarray(jax.random.normal(noise, (batch, 8)), float)
            place = np.asarray(jax.random.uniform(jax.random.fold_in(noise, 1), (batch, 8)))
            seen = np.where(place >= shares[run], seen / (1 - shares[run]), 0)
            chances = np.exp(seen @ read)
            chances /= chances.sum(1, keepdims=True)
            slope = seen.T @ (chances - np.eye(5)[3]) / batch
            first = 0.9 * first + 0.1 * slope
            second = 0.99 * second + 0.01 * slope**2
            move = first / (1 - 0.9 ** (t + 1)) / np.sqrt(second / (1 - 0.99 ** (t + 1)))
            rate = rates[run] * (1 + np.cos(np.pi * t / steps)) / 2
            np.testing.assert_allclose(
                found.path.read[t + 1, run], read - rate * (move + decays[run] * read), atol=5e-5
            )


def test_the_excess_is_the_divergence_from_the_bayes_predictor():
    topics, encoders = some_topics(2), encoders_of(2)
    read = 3 * np.random.default_rng(8).normal(size=(2, 8, 5))
    encoders = eqx.tree_at(lambda e: e.read, encoders, jnp.asarray(read))
    counts = np.random.default_rng(0).multinomial(8, np.full(5, 0.2), (2, 6)).astype(float)
    seen = Data(counts, np.zeros((2, 6), int))
    states = np.asarray(represent(encoders, seen)[:, -1], float)
    for run, said in enumerate(excess_risk(encoders, topics, seen)):
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


def test_a_probe_of_gaussian_features_has_its_exact_price():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8 * 20 + 500, 3))
    target = features @ np.array([[1.0, 0.0], [-2.0, 0.1], [0.5, 3.0]]) + 0.3
    labels = target + 0.7 * rng.normal(size=target.shape)
    found = excess_of_few(features, labels, target, 20, 8)
    # Least squares of p features and a constant: variance times (p + 1) / (n - p - 2), nearly.
    assert abs(found.mean() / (0.49 * 4 / (20 - 5)) - 1) < 0.15


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


def test_targets_that_do_not_fit_are_refused():
    topics, keys = some_topics(2), jax.random.split(jax.random.key(3), 2)
    with pytest.raises(InputError, match="5 outputs and the encoders 4"):
        train_encoders(encoders_of(2, outputs=4), topics, keys, Recipe(5, 8, 0.01))
    seen = some_counts(2)
    for target, said in (
        (np.zeros((2, 500, 5)), "float64: those of this task have 2 axes and the type int32"),
        (np.full((2, 500), 5), "a target is 5: it must be from 0 to 4"),
        (np.zeros((2, 500, 1), int), "shape .2, 500, 1."),
    ):
        with pytest.raises(InputError, match=said):
            data = seen._replace(target=target)
            train_encoders(encoders_of(2), topics, keys, Recipe(5, 8, 0.01), data=data)


def test_sequences_whose_scores_do_not_fit_into_memory_are_refused():
    keys = jax.random.split(jax.random.key(3), 2)
    task = Locations(np.zeros((2, 5)), np.ones(2), np.ones(2), np.full(2, 10**6))
    with pytest.raises(InputError, match="1,000,000 tokens, in 2 runs of 8 sequences, would take"):
        train_encoders(encoders_of(2), task, keys, Recipe(5, 8, 0.01))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(encoders) == [
        "PairHead heads=1",
        "random_encoder width=16 layers=1 heads=2",
        "Recipe steps=1000 batch=32 rate=0.01 decay=0 noise=0 dropout=0",
        "explained ridge=1e-06",
    ]
