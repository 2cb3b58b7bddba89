import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.attention import softmax_attention
from attlas.gaussian import stream
from attlas.kernels import Exponential, cme_attention
from attlas.latent_posterior.claims.shared import on_sphere
from attlas.latent_posterior.rates import zonal
from attlas.latent_posterior.sphere import Mix, draw_contexts, sphere_of, squared_errors
from tests.sampling import assert_mean_is

WEIGHTS = (0.0, 1.0, 0.7, 0.5)


def zonal_mean(x):
    return sum(w * zonal(l, x.shape[-1], x[..., :1]) for l, w in enumerate(WEIGHTS))


@pytest.mark.parametrize("dim", (2, 3, 6))
def test_errors_are_exact_in_the_noise_and_in_the_query(float64, dim):
    """The reductions of the claims against plain sampling with the library's own attention."""
    length, queries, draws = 60, 40, 400
    sphere = sphere_of(dim, WEIGHTS, 32)
    mix = Mix(np.eye(2), np.ones(2))
    contexts = draw_contexts(jax.random.key(1), draws, length, sphere)
    kernel = Exponential(0.5)
    exact = np.asarray(
        squared_errors(
            contexts,
            length,
            sphere,
            noise=0.5,
            kernel=kernel,
            ridges=[0.3],
            temperatures=[0.2],
            mix=mix,
        )
    )

    drawn = jax.random.split(jax.random.key(2), 3)
    asked, context = (
        jnp.asarray(on_sphere(stream(key), draws, n, dim))
        for key, n in zip(drawn, (queries, length), strict=False)
    )
    values = zonal_mean(context) + 0.5 * jax.random.normal(drawn[2], (draws, length, 1))
    truth = zonal_mean(asked)
    outputs = [
        jax.lax.map(
            lambda one: cme_attention(*one, ridge=0.3, kernel=kernel), (asked, context, values)
        ),
        softmax_attention(asked, context, values, temperature=0.2),
    ]
    plain = np.stack([np.asarray(((output - truth) ** 2).mean((1, 2))) for output in outputs], 1)
    error = np.hypot(plain.std(0), exact.std(0)) / np.sqrt(draws)
    assert_mean_is(exact.mean(0), plain.mean(0), error, most=0.04, sigmas=4)
    assert np.all(exact.std(0) < 0.8 * plain.std(0))


def test_rows_with_means_of_their_own_are_as_each_alone():
    means, mix = np.array([[0.2, 1, 0.7], [0, 1, 0]]), Mix(np.eye(2), np.array([1.0, 0.5]))
    contexts = draw_contexts(jax.random.key(3), 3, 20, sphere_of(3, means, 8))
    options = {"noise": 0.5, "ridges": [0.3], "temperatures": [0.2]}
    both = squared_errors(contexts, 20, sphere_of(3, means, 8), mix=mix, **options)
    alone = [squared_errors(contexts, 20, sphere_of(3, m, 8), mix=mix, **options) for m in means]
    np.testing.assert_allclose(both, np.stack([alone[0][:, 0], alone[1][:, 1]], 1), rtol=1e-5)
    assert not np.allclose(alone[0], alone[1], rtol=0.01)


def test_errors_of_drawn_contexts_by_hand(float64):
    """Two contexts of 5 keys from 12, and rows that mix one CME head and two softmax heads."""
    length, noise, queries = 5, 0.7, 4
    weights = np.array([[0.2, 1, 0.7], [0.4, -0.3, 1.5]])
    sphere = sphere_of(3, weights, queries)
    mix = Mix(np.array([[1.0, -0.5, 2.0], [0.3, 0.8, 0.4]]), np.array([1.0, 0.6]))
    drawn = draw_contexts(jax.random.key(3), 2, 12, sphere)
    assert drawn.shape == (2, queries + 12, 6)
    options = {"ridges": [0.3], "temperatures": [0.2, 0.9], "kernel": Exponential(0.4)}
    found = squared_errors(drawn, length, sphere, noise=noise, mix=mix, **options)
    nodes, law = np.polynomial.legendre.leggauss(queries)  # uniform along an axis in 3 dimensions
    for here, said in zip(drawn[..., :3], found, strict=True):
        around = here[:queries, 1:] / np.linalg.norm(here[:queries, 1:], axis=1, keepdims=True)
        asked = np.column_stack([nodes, around * np.sqrt(1 - nodes**2)[:, None]])
        errors = []
        for part in (here[queries : queries + 5], here[queries + 5 : queries + 10]):
            keys = part / np.linalg.norm(part, axis=1, keepdims=True)
            gram, cross = (np.exp((x @ keys.T - 1) / 0.4) for x in (keys, asked))
            heads = [cross @ np.linalg.inv(gram + 0.3 * np.eye(5))]
            for temperature in (0.2, 0.9):
                powers = np.exp(asked @ keys.T / temperature)
                heads.append(powers / powers.sum(1, keepdims=True))
            for factors, aim, own in zip(mix.factors, mix.aims, weights, strict=True):
                mixed = np.tensordot(factors, heads, 1)
                truth, values = (
                    sum(w * zonal(l, 3, x[:, 0]) for l, w in enumerate(own)) for x in (asked, keys)
                )
                bias = mixed @ values - aim * truth
                errors.append((bias**2 + noise**2 * (mixed**2).sum(1)) @ law / 2)
        np.testing.assert_allclose(said, np.mean(np.reshape(errors, (2, 2)), 0), rtol=1e-9)
