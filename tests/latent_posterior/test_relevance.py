"""Each feature has the bandwidth of largest evidence, where that is worth it."""

import numpy as np
import pytest
from scipy import stats

from attlas.latent_posterior import laws, regression, relevance
from attlas.latent_posterior.regression import choose_kernel, fit_regression
from attlas.latent_posterior.relevance import SPREAD, fit_lengths, lost
from tests.conftest import SEED


@pytest.fixture
def rows():
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(40, 3))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=40)


def test_the_loss_is_the_evidence_and_the_prior(rows):
    """A row of weight 2 is that row twice."""
    x, y = rows
    logs, ridge = np.array([0.1, 0.7, -0.2]), 0.3

    def by_hand(x, y):
        apart = (((x[:, None] - x[None]) / np.exp(logs)) ** 2).sum(-1)
        matrix = np.exp(-apart / 2) + ridge * np.eye(len(x))
        prior = y @ np.linalg.solve(matrix, y) / len(x)
        return -stats.multivariate_normal.logpdf(y, cov=prior * matrix)

    def without_constant(x, y, weight):
        total = weight.sum()
        value = lost(np.append(logs, np.log(ridge)), x, y, weight)[0]
        return value + total / 2 * (1 + np.log(2 * np.pi / total))

    prior = ((logs - logs.mean()) ** 2).sum() / (2 * SPREAD**2)
    assert without_constant(x, y, np.ones(40)) == pytest.approx(by_hand(x, y) + prior, rel=1e-9)
    weight = 1.0 + (np.arange(40) < 7)
    twice = np.append(x, x[:7], 0), np.append(y, y[:7])
    assert without_constant(x, y, weight) == pytest.approx(by_hand(*twice) + prior, rel=1e-9)


def test_the_slope_is_that_of_the_loss(rows):
    x, y = rows
    weight, point = 0.5 + np.arange(40) % 3, np.array([0.1, 0.7, -0.2, -1.0])
    _, slope = lost(point, x, y, weight)
    for i, step in enumerate(1e-5 * np.eye(4)):
        up, down = (lost(point + s, x, y, weight)[0] for s in (step, -step))
        assert slope[i] == pytest.approx((up - down) / 2e-5, rel=1e-5)


def test_features_that_matter_are_told_from_others():
    rng = np.random.default_rng(SEED)
    x, noise = rng.normal(size=(150, 10)), 0.2 * rng.normal(size=150)
    lengths = fit_lengths(x, np.sin(2 * x[:, 3]) + noise, np.ones(150), 4.0, 0.1)
    assert lengths is not None and lengths.argmin() == 3
    assert (np.delete(lengths, 3) > 8 * lengths[3]).all()
    best = choose_kernel(x, noise, np.ones(150))
    assert fit_lengths(x, noise, np.ones(150), best.temperature, best.ridge) is None
    assert fit_lengths(x[:15], noise[:15], np.ones(15), 4.0, 0.1) is None  # too few rows


@pytest.mark.parametrize("most", [800, 100])
def test_a_law_with_bandwidths_is_that_of_scaled_features(monkeypatch, most):
    """Everything that is asked of a fit is asked of features divided by lengths; of many rows, some
    decide that features have lengths of their own."""
    monkeypatch.setattr(regression, "MAX_SPECTRUM", most)
    monkeypatch.setattr(regression, "MAX_FOLDED", 0)
    rng = np.random.default_rng(SEED)
    x, new = rng.normal(size=(200, 6)), rng.normal(size=(20, 6))
    y = np.sin(2 * x[:, 0]) + (0.1 + 0.2 * (x[:, 0] > 0)) * rng.normal(size=200)
    found, one = fit_regression(x, y), fit_regression(x, y, relevance=False)
    assert (one.lengths == 1).all() and found.lengths.min() == found.lengths[0] == 1
    truth = np.sin(2 * new[:, 0])
    errors = [np.mean((fit.mean(new) - truth) ** 2) for fit in (found, one)]
    assert errors[0] < 0.3 * errors[1] and found.likelihood > one.likelihood
    how = {"temperature": found.temperature, "ridge": found.ridge}
    by_hand, scaled = fit_regression(x / found.lengths, y, **how), new / found.lengths
    for name, more in (
        ("mean", ()),
        ("spread", ()),
        ("attention", ()),
        ("log_density", (truth,)),
        ("distribution", (truth,)),
        ("quantile", (np.array([0.1, 0.5]),)),
        ("interval", (0.9,)),
    ):
        said, right = getattr(found, name)(new, *more), getattr(by_hand, name)(scaled, *more)
        np.testing.assert_allclose(said, right, rtol=1e-8, atol=1e-10)
    draws = (
        fit.draw(q, 3, np.random.default_rng(0)) for fit, q in ((found, new), (by_hand, scaled))
    )
    np.testing.assert_allclose(*draws, rtol=1e-8)


def test_the_likelihood_is_that_of_rows_left_out(monkeypatch):
    """Of a Gaussian process with one scale for all, by leaving out each row in turn."""
    monkeypatch.setattr(laws, "SPREADS", (np.inf,))
    monkeypatch.setattr(laws, "SMOOTHINGS", ())
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(30, 2))
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=30)
    found = fit_regression(x, y, temperature=1.0, ridge=0.2)
    gram = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 2) + 0.2 * np.eye(30)
    centred, logs = y - y.mean(), []
    residuals = []
    for i in range(30):
        rest = np.arange(30) != i
        solved = np.linalg.solve(gram[np.ix_(rest, rest)], np.c_[centred[rest], gram[rest, i]])
        mean, known = gram[i, rest] @ solved[:, 0], gram[i, rest] @ solved[:, 1]
        spread = found.deviation * np.sqrt(gram[i, i] - known)
        residuals.append((centred[i] - mean) / spread)
        logs.append(np.log(spread))
    # One scale for all, the root of the mean square of the others, and of all as one row more.
    z = np.array(residuals)
    others = ((z**2).sum() - z**2) / 29
    scale = np.exp((29 * np.log(others) + np.log(np.mean(z**2))) / 30 / 2)
    by_hand = stats.norm.logpdf(z, scale=scale).mean() - np.mean(logs)
    assert found.likelihood == pytest.approx(by_hand, rel=1e-8)


def test_lengths_stay_within_reach(rows):
    x, y = rows
    far = fit_lengths(1e-3 * x, y, np.ones(40), 1e-9, 1e-9)
    assert far is None or (abs(np.log(far)) <= relevance.REACH).all()
