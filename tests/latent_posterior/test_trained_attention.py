import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy import stats

from attlas.attention import softmax_attention
from attlas.errors import InputError
from attlas.kernels import RBF, cme_attention
from attlas.latent_posterior import BayesianRegression, FiniteLatent, trained_attention
from attlas.latent_posterior.inference import likelihoods, sequences
from attlas.latent_posterior.trained_attention import (
    MECHANISMS,
    Heads,
    Parameters,
    absorbed,
    begin,
    compare,
    descend_linearised,
    draw_training,
    ledger,
    length_curves,
    minimise,
    optimisation_error,
    random_heads,
    topics,
    train,
)
from tests.defaults import numbers_by_default
from tests.sampling import assert_mean_is, of_sample

RNG = np.random.default_rng(5)
MODEL = FiniteLatent(
    [0.5, 0.3, 0.2], RNG.dirichlet(np.ones(3), 3), np.array([[1.0], [-1.0], [0.5]])
)
TEMPERATURE = 0.3


def kernel(x, y):
    return RBF(TEMPERATURE)(x, y)


FUNCTIONS = BayesianRegression(3, kernel=kernel, noise=0.3)


def test_risk_over_counts_is_that_over_all_sequences():
    length, noise = 4, 0.2
    population = topics(MODEL, length, noise)
    law = likelihoods(MODEL, length) * MODEL.prior
    prediction = RNG.normal(size=len(population.counts))
    counts = (sequences(3, length)[..., None] == np.arange(3)).sum(1)
    place = {tuple(row): i for i, row in enumerate(population.counts.astype(int))}
    at = prediction[[place[tuple(row)] for row in counts]]
    brute = (law * (at[:, None] - MODEL.values[:, 0]) ** 2).sum() + noise**2
    assert population.risk(prediction) == approx(brute, rel=1e-12)
    assert population.risk(population.risk.target) == approx(
        MODEL.bayes_risk(length) + noise**2, rel=1e-12
    )


def test_empirical_risk_has_the_population_risk_as_its_mean():
    population = topics(MODEL, 5, 0.3)
    prediction = RNG.normal(size=len(population.counts))
    risks = population.sample(jax.random.key(0), 40, 3000)(prediction)
    assert_mean_is(population.risk(prediction), *of_sample(risks), most=0.005, sigmas=5)


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_drawn_risks_have_the_law_of_those_of_samples(samples):
    """Of few samples, of which some come with the same counts and some do not."""
    repeats, noise = 4000, 0.8
    population = topics(MODEL, 2, noise)
    drawn, size = population.sample(jax.random.key(9), samples, repeats), len(population.counts)
    rng = np.random.default_rng(11)
    seen = rng.choice(size, (repeats, samples), p=population.risk.weight)
    steps = np.cumsum(population.posterior, 1)[seen]
    latent = (rng.random((repeats, samples, 1)) > steps[..., :-1]).sum(-1)
    labels = population.values[latent] + noise * rng.normal(size=(repeats, samples))
    at = seen[..., None] == np.arange(size)
    number = at.sum(1)
    target = (at * labels[..., None]).sum(1) / np.maximum(number, 1)
    rest = (labels**2).mean(1) - (number * target**2).sum(1) / samples
    prediction = RNG.normal(size=size)
    pairs = [
        (drawn(prediction), ((labels - prediction[seen]) ** 2).mean(1)),
        (drawn.rest, rest),
        (drawn.target.sum(1), target.sum(1)),
        ((drawn.weight**2).sum(1), (number**2).sum(1) / samples**2),
    ]
    for ours, theirs in pairs:
        assert stats.ks_2samp(ours, theirs).statistic < 2.2 * np.sqrt(2 / repeats)


def parabola(parameters, data, shared):
    return shared * ((parameters["x"] - data) ** 2).sum()


def test_lanes_descend_by_adam_with_a_rate_that_falls_as_a_cosine(float64):
    start, data = np.array([[1.0, -2.0], [0.3, 4.0]]), np.array([[0.2, 1.0], [2.0, 3.7]])
    path = minimise(parabola, {"x": start}, data, 0.7, steps=3, rate=0.4, record_every=1)
    x, first, second = start, 0.0, 0.0
    for t in range(3):
        slope = 2 * 0.7 * (x - data)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        move = first / (1 - 0.9 ** (t + 1)) / np.sqrt(second / (1 - 0.99 ** (t + 1)))
        x = x - 0.4 * (1 + np.cos(np.pi * t / 3)) / 2 * move
        assert np.asarray(path.observed["x"][t + 1]) == approx(x, rel=1e-9)
    assert np.asarray(path.last["x"]) == approx(x, rel=1e-9)


def test_the_descent_of_a_linear_class_by_hand(float64):
    population = topics(MODEL, 3, 0.3)
    drawn = population.sample(jax.random.key(3), 80, 2)
    features = np.random.default_rng(2).normal(size=(2, len(population.counts), 4))
    found = descend_linearised(features, drawn, step_size=0.6, steps=3, record_every=1)
    for run, phi in enumerate(features):
        weight, target = drawn.weight[run], drawn.target[run]
        covariance = phi.T @ (weight[:, None] * phi)
        sizes = np.linalg.eigvalsh(covariance)[::-1]
        assert found.eigenvalues[run] == approx(sizes, rel=1e-9)
        best = np.linalg.solve(covariance, phi.T @ (weight * target))
        assert found.minimiser[run] == approx(phi @ best, rel=1e-8)
        theta = np.zeros(4)
        for t in range(4):
            assert found.predictions[t, run] == approx(phi @ theta, rel=1e-9, abs=1e-12)
            left = (weight * (phi @ theta - target) ** 2).sum()
            least = (weight * (phi @ best - target) ** 2).sum()
            assert found.measured[t, run] == approx(left - least, rel=1e-9)
            assert found.predicted[t, run] == approx(left - least, rel=1e-9)
            theta = theta - 0.6 / sizes[0] * phi.T @ (weight * (phi @ theta - target))


def test_heads_on_counts_are_softmax_attention_on_tokens(float64):
    heads = Heads(RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3)))
    words = np.array([0, 2, 2, 1, 2])
    one_hot = np.eye(3)[words]
    attended = sum(
        softmax_attention(
            jnp.asarray(s[None]),
            jnp.asarray(one_hot),
            jnp.asarray(one_hot @ v[:, None]),
            temperature=1.0,
        )
        for s, v in zip(heads.scores, heads.values, strict=True)
    )
    counts = one_hot.sum(0, keepdims=True)
    assert float(heads.predict(counts)[0]) == approx(float(attended[0, 0]), rel=1e-12)
    assert float((heads.features(counts) @ heads.values.ravel())[0]) == approx(
        float(heads.predict(counts)[0]), rel=1e-12
    )
    for module in (np, jnp):  # softmax does not see what is added to all scores
        far = Heads(module.asarray(heads.scores + 900), module.asarray(heads.values))
        assert far.predict(counts) == approx(heads.predict(counts), rel=1e-10)


def test_ledger_closes_and_its_terms_have_their_signs():
    population = topics(MODEL, 6, 0.3)
    risk, drawn = population.risk, population.sample(jax.random.key(1), 60, 6)
    (phi,) = random_heads(jax.random.key(2), 1, 2, 3).features(population.counts)
    found = descend_linearised(
        np.broadcast_to(phi, (6, *phi.shape)), drawn, step_size=1.0, steps=120, record_every=40
    )
    root = np.sqrt(risk.weight)
    terms = ledger(
        risk,
        drawn,
        trained=found.predictions,
        minimiser=found.minimiser,
        best=phi @ np.linalg.lstsq(root[:, None] * phi, root * risk.target)[0],
        bayes=risk.target,
    )
    distance = (risk.weight * (found.predictions - risk.target) ** 2).sum(-1)
    assert terms.excess == approx(distance, abs=1e-12)
    assert terms.optimisation == approx(found.predicted, abs=1e-12)
    assert terms.generalisation + terms.optimisation + terms.approximation == approx(
        terms.excess, abs=1e-15
    )
    assert (
        (terms.optimisation >= 0).all()
        and (terms.advantage <= 0).all()
        and terms.approximation.min() >= 0
    )
    assert distance[0].mean() > distance[-1].mean()


def test_ledger_takes_any_predictors():
    terms = ledger(
        lambda f: 2 * f, lambda f: f + 1, trained=5.0, minimiser=3.0, best=2.0, bayes=1.0
    )
    assert tuple(terms) == (4.0, 2.0, 1.0, -1.0, 2.0) and terms.excess == 8.0


def test_optimisation_error_of_a_linear_class(float64):
    population = topics(MODEL, 5, 0.3)
    drawn = population.sample(jax.random.key(3), 80, 4)
    features = np.asarray(random_heads(jax.random.key(4), 4, 3, 3).features(population.counts))
    found = descend_linearised(features, drawn, step_size=1.5, steps=60, record_every=20)
    assert found.measured == approx(found.predicted, abs=1e-12)
    assert (np.diff(found.measured, axis=0) < 0).all()
    assert optimisation_error(np.array([2.0]), np.array([3.0]), 0.25, 2) == approx(2 * 0.5**4 * 9)


def test_mechanism_is_cme_attention_and_its_gradient_that_of_differences(float64):
    contexts = FUNCTIONS.sample(jax.random.key(0), 3, 7, 2)
    p = begin(1, 3)._replace(temperature=jnp.array([-1.0]), ridge=jnp.array([-2.0]))
    one = jax.tree.map(lambda x: x[0], p)
    exact = cme_attention(
        *(contexts[i] for i in (2, 0, 1)), ridge=np.exp(-2.0), kernel=RBF(np.exp(-1.0))
    )
    attend = MECHANISMS["CME"].attend
    assert attend(one, contexts, 1.0) == approx(np.asarray(exact), abs=1e-10)

    def loss(t, r):
        return (attend(Parameters(t, r, one.query, one.key), contexts, 1.0) ** 2).sum()

    slopes = jax.grad(loss, (0, 1))(-1.0, -2.0)
    h = 1e-5
    assert float(slopes[0]) == approx(
        float(loss(-1 + h, -2.0) - loss(-1 - h, -2.0)) / (2 * h), rel=1e-6
    )
    assert float(slopes[1]) == approx(
        float(loss(-1.0, -2 + h) - loss(-1.0, -2 - h)) / (2 * h), rel=1e-6
    )


def test_training_nears_the_bayes_predictor_and_runs_do_not_depend_on_their_neighbours(float64):
    data = draw_training(FUNCTIONS, jax.random.key(1), [16, 64], 2, 6, 4)
    found = train("CME", data, steps=60, rate=0.15)
    alone = train("CME", jax.tree.map(lambda x: x[2:3], data), steps=60, rate=0.15)
    assert alone.temperature[0] == approx(found.temperature[2], rel=1e-9)
    fresh = FUNCTIONS.sample(jax.random.key(2), 64, 6, 4)
    trained, untrained = (compare("CME", p, FUNCTIONS, fresh) for p in (found, begin(4, 3)))
    assert (trained.excess.mean(1) < untrained.excess.mean(1)).all()
    exact = begin(1, 3)._replace(
        temperature=jnp.log(jnp.array([TEMPERATURE])), ridge=jnp.log(jnp.array([0.09]))
    )
    assert compare("CME", exact, FUNCTIONS, fresh).excess == approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "pair",
    [
        ("CME", "CME, ridge in proportion to the length"),
        ("softmax", "softmax, temperature by the length"),
        ("linear, mean", "linear, sum"),
    ],
)
def test_mechanisms_that_differ_by_a_power_of_the_length_are_one_at_each_length(float64, pair):
    contexts = FUNCTIONS.sample(jax.random.key(0), 3, 7, 2)
    one = begin(1, 3)._replace(temperature=np.array([-1.0]), ridge=np.array([-2.0]))
    other = absorbed(*pair, one, contexts)
    found = [
        compare(name, p, FUNCTIONS, contexts).excess
        for name, p in zip(pair, (one, other), strict=True)
    ]
    assert found[0] == approx(found[1], rel=1e-12)


def test_mechanisms_and_their_loss_by_hand(float64):
    rng, length = np.random.default_rng(1), 7
    model = BayesianRegression(3, kernel=kernel, noise=0.3, outputs=2)
    contexts = model.sample(jax.random.key(0), 3, length, 4)
    p = Parameters(-0.4, -1.3, *rng.normal(size=(2, 3, 3)))
    lanes = jax.tree.map(lambda x: np.asarray(x)[None], p)
    mean, variance = map(np.asarray, model.predictive(*contexts[:3]))
    weight = jnp.array([0.2, 0.5, 0.3])
    q, k = contexts.queries @ p.query, contexts.keys @ p.key
    scores = q @ k.swapaxes(1, 2) / np.exp(-0.4)

    def softmax(factor):
        shares = np.exp(scores / factor)
        return shares / shares.sum(-1, keepdims=True)

    def cme(factor):
        gram, cross = (
            np.exp(-((x[:, :, None] - contexts.keys[:, None]) ** 2).sum(-1) / 2 / np.exp(-0.4))
            for x in (contexts.keys, contexts.queries)
        )
        return cross @ np.linalg.inv(gram + factor * np.exp(-1.3) * np.eye(length))

    shares = {
        "CME": cme(1),
        "CME, ridge in proportion to the length": cme(length),
        "softmax": softmax(1),
        "softmax, temperature by the length": softmax(length ** (-2 / 6)),
        "linear, mean": scores / length,
        "linear, sum": scores,
    }
    assert shares.keys() == MECHANISMS.keys()
    for name, weights in shares.items():
        found, chosen = weights @ contexts.values, MECHANISMS[name]
        said = compare(name, lanes, model, contexts)
        assert said.excess[0] == approx(((found - mean) ** 2).sum(-1).mean(-1), rel=1e-9)
        assert said.bayes == approx(2 * (variance - 0.09).mean(-1), rel=1e-9)
        data = jax.tree.map(jnp.asarray, (contexts, weight))
        loss = chosen.loss(p, data, chosen.factor(contexts))
        missed = ((found - contexts.targets) ** 2).sum(-1).mean(-1)
        assert float(loss) == approx(float(weight @ missed), rel=1e-9)


def test_targets_of_training_are_noisy_and_lengths_are_beginnings(float64):
    model = BayesianRegression(3, kernel=kernel, noise=0.7, scale=0.01)  # the rest is noise
    contexts, _ = draw_training(model, jax.random.key(1), [300], 2, 3, 4)
    assert contexts.targets.shape == (2, 300, 4, 1)
    assert np.std(contexts.targets) == approx(0.7, rel=4 / np.sqrt(2 * 2400))
    assert draw_training(model, jax.random.key(1), [2], 1, 3)[0].queries.shape == (1, 2, 1, 3)
    lanes = begin(2, 3)._replace(temperature=np.array([-1.0, 0.5]))
    curves = length_curves({"softmax": lanes}, FUNCTIONS, [2, 5], jax.random.key(3), contexts=6)
    whole = FUNCTIONS.sample(jax.random.key(3), 6, 5, 4)
    for size, found in zip((2, 5), curves["softmax"], strict=True):
        here = whole._replace(keys=whole.keys[:, :size], values=whole.values[:, :size])
        expected = compare("softmax", lanes, FUNCTIONS, here)
        assert found.excess == approx(expected.excess) and found.bayes == approx(expected.bayes)


def test_training_takes_100_steps_from_temperature_and_ridge_1(float64):
    data = draw_training(FUNCTIONS, jax.random.key(1), [4], 1, 3)
    start, chosen = begin(1, 3), MECHANISMS["linear, mean"]
    assert not start.temperature.any() and not start.ridge.any()
    assert (start.query[0] == np.eye(3)).all() and (start.key[0] == np.eye(3)).all()
    by_hand = minimise(chosen.loss, start, data, 3.0, steps=100, rate=0.1).last
    found = train("linear, mean", data)
    assert np.asarray(found.query) == approx(np.asarray(by_hand.query), rel=1e-9)


def test_weights_beyond_a_sample_are_zero():
    contexts, weight = draw_training(FUNCTIONS, jax.random.key(1), [2, 4], 3, 5)
    assert contexts.keys.shape == (6, 4, 5, 3) and weight.shape == (6, 4)
    assert weight.sum(1) == approx(1) and (weight[:3, 2:] == 0).all()
    assert (contexts.keys[0] == contexts.keys[3]).all()


def test_bad_input_is_told():
    with pytest.raises(InputError, match="Did you mean softmax"):
        train("sofmax", draw_training(FUNCTIONS, jax.random.key(0), [2], 1, 2))
    with pytest.raises(InputError, match="length = 0"):
        length_curves({"CME": begin(1, 3)}, FUNCTIONS, [0], jax.random.key(0), contexts=2)
    with pytest.raises(InputError, match="more than a power"):
        absorbed("CME", "softmax", begin(1, 3), FUNCTIONS.sample(jax.random.key(0), 1, 2))
    with pytest.raises(InputError, match="length = 0"):
        topics(MODEL, 0, 0.1)
    with pytest.raises(InputError, match="samples is empty"):
        draw_training(FUNCTIONS, jax.random.key(0), [], 1, 2)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(trained_attention) == [
        "draw_training queries=1",
        "train steps=100 rate=0.1",
        "length_curves queries=4",
    ]
