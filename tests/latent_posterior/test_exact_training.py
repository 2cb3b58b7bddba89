"""The excess risk of encoders on topics: training finds minima of the exact risks, and the tangent
space says what a sample costs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.latent_posterior.encoders import random_encoder
from attlas.latent_posterior.exact_training import (
    excess_by_place,
    predictions,
    tangent_price,
    train_on_risk,
)
from attlas.latent_posterior.models import FiniteLatent
from attlas.latent_posterior.trained_attention import Risk, topics

WORDS = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])


@pytest.fixture(scope="module")
def law():
    model = FiniteLatent(np.array([0.4, 0.6]), WORDS, np.array([[-1.0], [1.0]]))
    return topics(model, 5, 0.3)


def encoders(runs, width=4, size=1.0):
    made = [random_encoder(jax.random.key(i), 3, 1, width=width, heads=1, mlp=False) for i in runs]
    read = [size * jax.random.normal(jax.random.key(100 + i), (width, 1)) for i in runs]
    made = [dataclasses.replace(one, read=r) for one, r in zip(made, read, strict=True)]
    return jax.tree.map(lambda *x: jnp.stack(x), *made)


def test_training_on_the_exact_risk_lowers_it_towards_the_bayes_predictor(law):
    start, runs = encoders(range(2), size=0.1), 2
    risk = Risk(*(np.stack([np.asarray(x)] * runs) for x in law.risk))
    path = train_on_risk(start, risk, law.counts, steps=300, rate=0.03, record_every=100)
    before, after = (
        risk(np.asarray(predictions(x, law.counts), float)) - law.risk(law.risk.target)
        for x in (start, path.last)
    )
    assert (after >= 0).all() and (after < 0.05 * before).all()


def test_runs_in_groups_are_trained_as_all_together(law):
    start = encoders(range(4), size=0.1)
    risk = Risk(*(np.stack([np.asarray(x)] * 4) for x in law.risk))
    how = {"steps": 20, "rate": 0.03, "record_every": 10}
    paths = [train_on_risk(start, risk, law.counts, lanes=n, **how) for n in (None, 2)]
    for one, other in zip(
        *map(jax.tree.leaves, (paths[0].observed, paths[1].observed)), strict=True
    ):
        assert one.shape[:2] == (3, 4)
        np.testing.assert_allclose(one, other, atol=1e-6)
    said = [predictions(paths[0].last, law.counts, lanes=n) for n in (None, 2)]
    assert said[0].shape == (4, len(law.counts))
    np.testing.assert_allclose(*said, atol=1e-6)


def test_the_tangent_price_is_the_trace_by_differences_of_weights(law):
    start = encoders([3])
    square = np.linspace(0.2, 0.7, len(law.counts))[None]
    weight = np.asarray(law.risk.weight)[None]
    price, dimension = tangent_price(start, law.counts, weight, square)
    with jax.enable_x64(True):
        flat, back = jax.flatten_util.ravel_pytree(
            jax.tree.map(lambda x: jnp.asarray(x[0], float), start)
        )

        def outputs(theta):
            return np.asarray(
                predictions(jax.tree.map(lambda x: x[None], back(theta)), law.counts)
            )[0]

        step = 1e-5
        phi = np.stack(
            [
                (outputs(flat.at[i].add(step)) - outputs(flat.at[i].add(-step))) / (2 * step)
                for i in range(len(flat))
            ],
            1,
        )
    sigma = (phi.T * weight[0]) @ phi
    noisy = (phi.T * (weight * square)[0]) @ phi
    expected = np.trace(np.linalg.pinv(sigma, rcond=1e-8, hermitian=True) @ noisy)
    np.testing.assert_allclose(price, expected, rtol=1e-3)
    assert np.round(dimension) == np.linalg.matrix_rank(sigma, tol=1e-8 * np.trace(sigma))
    assert dimension < len(flat) / 3  # most directions of the weights leave the function


def test_equal_noise_costs_its_variance_in_every_direction(law):
    start, weight = encoders([4]), np.asarray(law.risk.weight)[None]
    price, dimension = tangent_price(start, law.counts, weight, np.full(weight.shape, 0.25))
    np.testing.assert_allclose(price, dimension / 4, rtol=1e-10)


def test_a_weight_for_each_place_costs_the_number_of_places(law):
    keys = jax.random.split(jax.random.key(5), 200)
    found = np.array([excess_by_place(key, law, WORDS, 2000) for key in keys])
    mean, error = found.mean(), found.std() / np.sqrt(len(found))
    # 5 places with 2 words beside the first, and a constant; the noise about the best linear map.
    prior = np.array([0.4, 0.6])
    counts = np.asarray(law.counts)[:, 1:]
    design = np.column_stack([counts, np.ones(len(counts))])
    root = np.sqrt(law.risk.weight)
    fitted = design @ np.linalg.lstsq(root[:, None] * design, root * law.risk.target)[0]
    values = np.array([-1.0, 1.0])
    left = prior @ values**2 - law.risk.weight @ fitted**2 + 0.09
    assert abs(mean - 11 * left / 2000) < 4 * error + 0.03 * mean
