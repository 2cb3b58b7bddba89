import numpy as np
import pytest
from pytest import approx

import attlas.kernels.fit as fit_module
from attlas.kernels import RBF, cme_attention, cme_variance, fit_cme
from tests.defaults import numbers_by_default
from tests.kernels.problems import PRIOR, RIDGE, long_problem, problem


def test_the_exact_fit_is_the_attention_and_its_error_is_rounding(float64):
    queries, keys, values = problem(200)
    mask = np.arange(200) < 150
    settings = {"ridge": RIDGE, "kernel": RBF(0.3), "mask": mask}
    fit = fit_cme(keys, values, **settings)
    assert fit.method == "exact" and fit.reached and fit.error < 1e-12
    assert fit.mean(queries) == approx(
        np.asarray(cme_attention(queries, keys, values, **settings)), abs=1e-11
    )
    assert fit.variance(queries, PRIOR) == approx(
        np.asarray(cme_variance(queries, keys, **settings, prior=PRIOR)), abs=1e-11
    )
    rough = fit_cme(keys.astype(np.float32), values, **settings, method="exact")
    assert 1e-9 < rough.error < 1e-4 and rough.mean(queries) == approx(fit.mean(queries), abs=1e-4)


@pytest.mark.parametrize("method", ["nystrom", "conjugate"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_approximations_are_as_close_as_they_say(method, tolerance):
    queries, keys, values = long_problem(2000)
    exact = fit_cme(keys, values, ridge=0.09, kernel=RBF(0.2), method="exact")
    fit = fit_cme(keys, values, ridge=0.09, kernel=RBF(0.2), method=method, tolerance=tolerance)
    scale = np.sqrt(np.mean(values**2))
    true = np.sqrt(np.mean((fit.mean(keys) - exact.mean(keys)) ** 2)) / scale
    assert fit.reached and fit.error <= tolerance
    # A bound over all keys, and here over a sample of them; it is not far above what it bounds.
    assert true <= 1.3 * fit.error and fit.error <= 20 * true
    assert abs(fit.mean(queries) - exact.mean(queries)).max() <= 10 * tolerance * scale
    assert fit.variance(queries) == approx(exact.variance(queries), abs=0.03)


def test_enough_centres_give_the_exact_answer():
    queries, keys, values = long_problem(1000)
    settings = {"ridge": 0.09, "kernel": RBF(0.2)}
    exact = fit_cme(keys, values, **settings, method="exact")
    fit = fit_cme(
        keys, values, **settings, method="nystrom", centres=800
    )  # more than the numerical rank
    assert len(fit.centres) < 800 and fit.mean(queries) == approx(exact.mean(queries), abs=1e-6)
    assert fit.variance(queries) == approx(exact.variance(queries), abs=1e-6)
    errors = [
        fit_cme(keys, values, **settings, method="nystrom", centres=m).error for m in (32, 64, 128)
    ]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-2 * errors[0]


def test_the_residual_of_conjugate_gradients_falls_and_a_tolerance_that_is_missed_is_said():
    _, keys, values = long_problem(1500)
    values = np.concatenate([values, np.zeros_like(values), values**2], 1)
    settings = {"ridge": 0.09, "kernel": RBF(0.1), "method": "conjugate", "centres": 150}
    fit = fit_cme(keys, values, **settings, tolerance=1e-9)
    assert fit.reached and np.all(np.diff(np.log(fit.residuals[1:])) < -np.log(2))
    early = fit_cme(keys, values, **settings, tolerance=1e-9, iterations=2)
    assert not early.reached and early.error == approx(early.residuals[-1], rel=0.5)
    assert "2 conjugate gradients" in str(early) and "misses the tolerance 1e-09" in str(early)
    single = fit_cme(keys.astype(np.float32), values, **settings, tolerance=1e-4)
    assert single.reached and single.coefficients == approx(fit.coefficients, abs=1e-2)


def test_auto_chooses_by_size_memory_and_tolerance(monkeypatch):
    _, keys, values = long_problem(1200)
    settings = {"ridge": 0.09, "kernel": RBF(0.2)}
    assert fit_cme(keys, values, **settings).method == "exact"
    monkeypatch.setattr(fit_module, "MAX_EXACT", 500)
    assert fit_cme(keys, values, **settings).method == "nystrom"
    monkeypatch.setattr(fit_module, "MAX_CENTRES", 64)
    assert fit_cme(keys, values, **settings).method == "exact"
    small = fit_cme(keys, values, **settings, memory=1e6)
    assert small.method == "conjugate" and small.reached
    monkeypatch.setattr(fit_module, "MAX_CONJUGATE", 1000)
    short = fit_cme(keys, values, **settings, memory=1e6)
    assert short.method == "nystrom" and not short.reached and "misses" in str(short)


@pytest.mark.parametrize("method", ["exact", "nystrom", "conjugate"])
def test_tiles_are_parts_of_one_sum_and_weights_give_the_mean(method, monkeypatch):
    queries, keys, values = long_problem(300)
    values = np.concatenate([values, values**2], 1)
    settings = {"ridge": 0.4, "kernel": RBF(0.3), "method": method, "centres": 250}
    whole = fit_cme(keys, values, **settings)
    monkeypatch.setattr(fit_module, "TILE", 128)
    cut = fit_cme(keys, values, **settings)
    assert cut.mean(queries) == approx(whole.mean(queries), abs=1e-4)
    gram, cross = (np.asarray(RBF(0.3)(x, keys), float) for x in (keys, queries))
    weights = cross @ np.linalg.inv(gram + 0.4 * np.eye(300))
    assert cut.weights(queries, keys) == approx(weights, abs=1e-4)
    assert cut.mean(queries) == approx(weights @ values, abs=1e-4)
    variance = 2.5 * (0.4 + 1 - (weights * cross).sum(1))
    assert cut.variance(queries, 2.5) == approx(variance, abs=1e-3)


def test_the_error_is_the_size_of_what_the_system_leaves():
    _, keys, values = long_problem(300)
    fit = fit_cme(keys, values, ridge=0.4, kernel=RBF(0.1), method="nystrom", centres=20)
    fitted = fit.mean(keys)
    alpha = (values - fitted) / 0.4
    missed = values - np.asarray(RBF(0.1)(keys, keys), float) @ alpha - 0.4 * alpha
    size = np.sqrt((missed**2).mean() / (values**2).mean())
    assert size > 1e-3 and fit.error == approx(size, rel=1e-3)


def test_centres_are_counted_by_the_next_pivot():
    system = fit_module._System(
        RBF(0.1), np.zeros((900, 3)), np.zeros((900, 1)), 0.3, 1.0, *[np.arange(0)] * 2
    )
    pivots = 0.5 ** (np.arange(300) / 9)
    for tolerance in (0.5, 1e-2, 1e-12):
        enough = (
            m for m in range(32, 300, 32) if np.sqrt(900 / m) * pivots[m] / 0.3 <= 3 * tolerance
        )
        assert system.count_centres(pivots, tolerance) == next(enough, 300)


def test_a_fit_depends_on_its_seed_alone():
    queries, keys, values = long_problem(800)
    one, two, other = (
        fit_cme(
            keys, values, ridge=0.1, kernel=RBF(0.1), method="nystrom", centres=40, seed=s
        ).mean(queries)
        for s in (1, 1, 2)
    )
    assert np.array_equal(one, two) and not np.allclose(one, other, atol=1e-6)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(fit_module) == [
        "CME.variance prior=1",
        "fit_cme tolerance=0.001 memory=1.5e+09 iterations=100 seed=0",
    ]
