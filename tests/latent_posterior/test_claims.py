import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.attention import softmax_attention
from attlas.errors import InputError
from attlas.kernels import Exponential, cme_attention
from attlas.lab.runner import run
from attlas.latent_posterior.claims import rates
from attlas.latent_posterior.claims.shared import on_sphere, zonal_mean
from tests.maps import *  # noqa: F403

MAP = "latent-posterior"


def test_keys_off_the_sphere_are_outside(store):
    result = run(
        "latent-posterior/softmax-is-nadaraya-watson",
        settings={"spread": 0.2, "dim": (3,)},
        store=store,
    )
    assert result.verdict.word == "outside" and "on the sphere" in result.verdict.reason


@pytest.mark.parametrize(
    ("claim", "settings", "why"),
    (
        ("cme-converges", {"temperature": 0.2}, "effective dimension"),
        ("error-falls", {"noise": 2.0}, "noise <= 1"),
        ("probe-crossover", {"labels": 1000}, "5 dim"),
    ),
)
def test_where_a_statement_fails_it_is_outside(store, claim, settings, why):
    result = run(f"latent-posterior/{claim}", settings=settings, store=store)
    assert result.verdict.word == "outside" and why in result.verdict.reason


def test_too_few_draws_are_bad_input(store):
    with pytest.raises(InputError, match="draws >= 20"):
        run("latent-posterior/cme-error", settings={"draws": 5}, store=store)


@pytest.mark.parametrize("dim", (2, 3, 6))
def test_errors_are_exact_in_the_noise_and_in_the_query(float64, dim):
    """The reductions of the claims against plain sampling with the library's own attention."""
    length, queries, draws = 60, 40, 400
    sphere = rates.sphere_of(dim, rates.WEIGHTS, 32)
    mix = rates.Mix(np.eye(2), np.ones(2))
    contexts = rates.draw_contexts(jax.random.key(1), draws, length, sphere)
    kernel, noise = Exponential(0.5), np.asarray(0.5)
    exact = np.asarray(
        rates.squared_errors(
            contexts, length, sphere, noise, kernel, np.array([0.3]), np.array([0.2]), mix
        )
    )

    drawn = jax.random.split(jax.random.key(2), 3)
    asked, context = (
        jnp.asarray(on_sphere(key, draws, n, dim))
        for key, n in zip(drawn, (queries, length), strict=False)
    )
    values = zonal_mean(rates.WEIGHTS, context) + 0.5 * jax.random.normal(
        drawn[2], (draws, length, 1)
    )
    truth = zonal_mean(rates.WEIGHTS, asked)
    outputs = [
        jax.lax.map(
            lambda one: cme_attention(*one, ridge=0.3, kernel=kernel), (asked, context, values)
        ),
        softmax_attention(asked, context, values, temperature=0.2),
    ]
    plain = np.stack([np.asarray(((output - truth) ** 2).mean((1, 2))) for output in outputs], 1)
    error = np.hypot(plain.std(0), exact.std(0)) / np.sqrt(draws)
    assert np.all(abs(plain.mean(0) - exact.mean(0)) < 4 * error)
    assert np.all(exact.std(0) < 0.8 * plain.std(0))
