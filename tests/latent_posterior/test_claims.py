import numpy as np
import pytest

from attlas.errors import InputError
from attlas.lab.runner import run
from attlas.latent_posterior.claims.in_context import prefixes
from attlas.latent_posterior.claims.trained_transfer import (
    exact_number,
    masked_answers,
    probe_excess,
    slope_over_runs,
)
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
        ("bayes-ridge", {"noise": 2.0}, "noise <= 1"),
        ("probe-crossover", {"labels": 1000}, "5 dim"),
    ),
)
def test_where_a_statement_fails_it_is_outside(store, claim, settings, why):
    result = run(f"latent-posterior/{claim}", settings=settings, store=store)
    assert result.verdict.word == "outside" and why in result.verdict.reason


def test_too_few_draws_are_bad_input(store):
    with pytest.raises(InputError, match="draws >= 20"):
        run("latent-posterior/cme-error", settings={"draws": 5}, store=store)


def test_counts_of_prefixes_grow_by_a_word():
    words = np.array([[[0.2, 0.8], [1.0, 0.0]]])
    counts = prefixes(np.random.default_rng(0), words, 10, 400)
    assert counts.shape == (1, 2, 400, 10, 2)
    np.testing.assert_array_equal(counts.sum(-1)[0, 0, 0], np.arange(10))
    assert (np.diff(counts, axis=3) >= 0).all() and (counts[0, 1, ..., 1] == 0).all()
    assert abs(counts[0, 0, :, -1, 1].mean() / 9 - 0.8) < 0.03


@pytest.mark.parametrize("kappa", [1.0, 30.0, 1000.0])
def test_masked_answers_have_the_condition_number(kappa):
    answers = masked_answers(kappa)
    assert answers.min() > 0
    np.testing.assert_allclose(answers.sum(-1), 1)
    np.testing.assert_allclose(exact_number(kappa), kappa / 0.36, rtol=1e-9)


def test_a_probe_of_gaussian_features_has_its_exact_price():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8 * 20 + 500, 3))
    target = features @ np.array([1.0, -2.0, 0.5]) + 0.3
    labels = target + 0.7 * rng.normal(size=target.shape)
    found = probe_excess(features, labels, target, 20)
    # Least squares of p features and a constant: variance times (p + 1) / (n - p - 2), nearly.
    assert abs(found.mean() / (0.49 * 4 / (20 - 5)) - 1) < 0.15


def test_a_slope_is_that_of_a_power():
    values = 3.0 * np.array([[1.0], [2.0], [8.0]]) ** -1.5 * np.ones((1, 6))
    np.testing.assert_allclose(slope_over_runs([1, 2, 8], values), [-1.5, 0], atol=1e-12)
    noisy = values * np.exp(0.1 * np.random.default_rng(0).normal(size=(3, 6)))
    slope, error = slope_over_runs([1, 2, 8], noisy)
    assert abs(slope + 1.5) < 4 * error and 0.005 < error < 0.1
