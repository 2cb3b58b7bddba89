"""The certificate is the formula by hand, and holds as often as it says."""

import math

import numpy as np
import pytest
from pytest import approx
from scipy.stats import norm

from attlas import InputError
from attlas.capacity.pac_bayes import SHARPNESS, kl_inverse, margin_certificate


def relative_entropy(q, p):
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


def test_the_inverse_of_the_binary_divergence():
    p = kl_inverse(0.13, 0.07)
    assert p > 0.13 and relative_entropy(0.13, p) == approx(0.07)
    assert kl_inverse(0.0, 0.3) == approx(1 - math.exp(-0.3))
    assert kl_inverse(1.0, 0.3) == 1
    with pytest.raises(InputError, match="between 0 and 1"):
        kl_inverse(1.2, 0.1)


def test_a_certificate_is_the_formula_by_hand_at_the_best_sharpness():
    margins = np.array([0.3, 0.5, -0.1, 0.4, 0.6] * 60)
    options = {}
    for mu in SHARPNESS:
        error = norm.cdf(-mu * margins).mean()
        nats = mu**2 / 2 + math.log(7)
        budget = (nats + math.log(2 * math.sqrt(300) / 0.1)) / 300
        options[mu] = kl_inverse(error, budget), error, nats
    best = min(options, key=lambda mu: options[mu][0])
    found = margin_certificate(margins, choices=7, delta=0.1)
    assert found.sharpness == best
    assert (found.bound, found.error, found.nats) == approx(options[best])


def test_many_rules_are_certified_in_one_call():
    margins = np.random.default_rng(0).uniform(-0.2, 1, (3, 2, 80))
    found = margin_certificate(margins)
    assert found.bound.shape == (3, 2)
    assert found.bound[2, 1] == approx(margin_certificate(margins[2, 1]).bound)


def test_it_holds_on_fitted_rules_and_says_something():
    """200 samples of a noisy plane in ten dimensions; the rule is fitted on them."""
    rng = np.random.default_rng(1)
    truth = np.eye(10)[0]
    population = rng.standard_normal((20_000, 10)) + 3 * rng.choice([-1, 1], (20_000, 1)) * truth
    labels = np.sign(population @ truth)
    failures, bounds = 0, []
    for _ in range(60):
        chosen = rng.choice(len(population), 200, replace=False)
        x, y = population[chosen], labels[chosen]
        w = np.linalg.solve(x.T @ x + np.eye(10), x.T @ y)

        def margins(x, y, w=w):
            return y * (x @ w) / np.linalg.norm(x, axis=1) / np.linalg.norm(w)

        found = margin_certificate(margins(x, y))
        error = norm.cdf(-found.sharpness * margins(population, labels)).mean()
        failures += error > found.bound
        bounds.append(found.bound)
    assert failures == 0
    assert np.mean(bounds) < 0.25


def test_labels_of_coins_are_never_certified():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((300, 20)), rng.choice([-1, 1], 300)
    w = np.linalg.solve(x.T @ x + np.eye(20), x.T @ y)
    margins = y * (x @ w) / np.linalg.norm(x, axis=1) / np.linalg.norm(w)
    assert (margins > 0).mean() > 0.55  # it fits the sample
    assert margin_certificate(margins).bound > 0.5
