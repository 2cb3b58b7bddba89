import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats
from pytest import approx
from scipy import special, stats

from attlas import gaussian
from attlas.gaussian import (
    BLOCK,
    averaged,
    draw_gamma,
    erf_derivatives,
    float64,
    monte_carlo,
    sampled_zeta,
    smoothed_derivatives,
    smoothed_erf,
    stream,
    zeta,
    zeta_derivatives,
)
from tests.defaults import numbers_by_default

arguments = given(t=floats(-12, 12), spread=floats(0.01, 3))
quickly = settings(max_examples=50, deadline=None, derandomize=True)


def test_zeta_is_owens_t_to_the_last_digit(float64):
    rng = np.random.default_rng(1)
    t, spread = rng.uniform(-15, 15, 10_000), rng.uniform(0.01, 2, 10_000)
    owen = 1 - 8 * special.owens_t(
        np.sqrt(2) * t / np.sqrt(1 + 2 * spread**2), 1 / np.sqrt(1 + 4 * spread**2)
    )
    assert np.abs(np.asarray(zeta(t, spread)) - owen).max() < 2e-15


def test_zeta_serves_both_precisions_in_one_process():
    for scoped in (True, False, True):
        with jax.enable_x64(scoped):
            value = zeta(jnp.asarray(0.5), jnp.asarray(1.0))
            assert value.dtype == (jnp.float64 if scoped else jnp.float32)
            assert float(value) == pytest.approx(0.5100, abs=1e-4)


def test_zeta_at_zero_is_an_arcsine(float64):
    spread = np.linspace(0.01, 5, 100)
    assert np.asarray(zeta(np.zeros(100), spread)) == approx(
        2 / np.pi * np.arcsin(2 * spread**2 / (1 + 2 * spread**2)), abs=1e-15
    )
    assert np.all(np.asarray(zeta(np.zeros(100), spread)) <= 4 * spread**2 / np.pi)


def test_zeta_is_even_and_tends_to_one(float64):
    t = np.linspace(0, 40, 200)
    assert np.array_equal(zeta(t, 0.7), zeta(-t, 0.7))
    assert float(zeta(1e6, 0.7)) == 1.0


@arguments
@quickly
def test_zeta_solves_the_heat_equation(t, spread):
    with jax.enable_x64(True):
        in_spread = jax.grad(zeta, 1)(t, spread)
        assert float(in_spread) == approx(
            spread * float(jax.grad(jax.grad(zeta))(t, spread)), abs=1e-12
        )


@arguments
@quickly
def test_derivatives_of_zeta_are_those_of_zeta(t, spread):
    with jax.enable_x64(True):
        derivative = zeta
        for closed in zeta_derivatives(t, spread):
            derivative = jax.grad(derivative)
            assert float(closed) == approx(float(derivative(t, spread)), abs=1e-11)


def test_zeta_differentiates_jointly_in_both_arguments(float64):
    t, spread, h = 0.8, 0.6, 1e-5
    both = jax.grad(lambda x: zeta(x[0], x[1]))(jnp.array([t, spread]))
    finite = [
        float(zeta(t + h, spread) - zeta(t - h, spread)) / (2 * h),
        float(zeta(t, spread + h) - zeta(t, spread - h)) / (2 * h),
    ]
    assert np.asarray(both) == approx(finite, abs=1e-9)


def test_erf_and_its_smoothing_have_these_derivatives(float64):
    for function in (erf_derivatives, lambda x: smoothed_erf(x, 0.4)[0]):
        derivative = lambda x: function(x)[0]  # noqa: E731, B023
        for closed in function(0.3)[1:]:
            derivative = jax.grad(derivative)
            assert float(closed) == approx(float(derivative(0.3)), abs=1e-13)


@pytest.mark.parametrize("spread", [0.01, 0.7, 20.0, 1e4])
def test_the_smoothed_derivatives_of_erf_are_their_quadrature(float64, spread):
    mean = np.array([-2.0, 0.0, 0.3, 5.0])
    closed, numeric = smoothed_erf(mean, spread), smoothed_derivatives(jax.lax.erf, mean, spread)
    for j in range(4):
        atol = 1e-11 * max(1, spread**-j)
        np.testing.assert_allclose([closed[0][j], closed[1][j]], numeric[:, j], atol=atol)


@pytest.mark.parametrize("samples", [1_000, 30_000, 400_000])
def test_zeta_analytic_equals_sampled(float64, samples):
    t, spread = np.array([0.0, 0.5, 1.0, -1.5]), np.array([0.3, 1.0, 0.5, 2.0])
    mean, error = sampled_zeta(t, spread, jax.random.key(11), samples)
    assert np.all(np.abs(np.asarray(mean - zeta(t, spread))) < 4.5 * np.asarray(error))
    assert np.all(np.asarray(error) < 0.5 / np.sqrt(samples))


def _normals(key, block, shift):
    return shift + jax.random.normal(key, (block,))


def test_monte_carlo_reports_the_error_it_makes(float64):
    keys = jax.random.split(jax.random.key(3), 400)
    mean, error = jax.vmap(lambda key: monte_carlo(_normals, key, 500, 2.0))(keys)
    z = (np.asarray(mean) - 2) / np.asarray(error)
    assert np.asarray(error).mean() == approx(1 / np.sqrt(500), rel=0.02)
    assert z.std() == approx(1, abs=0.15)


def test_monte_carlo_counts_exactly_as_many_samples_as_asked(float64):
    key = jax.random.key(5)
    drawn = [np.asarray(_normals(jax.random.fold_in(key, i), BLOCK, 0.0)) for i in range(2)]
    for samples in (10, BLOCK, BLOCK + 7):
        expected = np.concatenate(drawn)[:samples]
        mean, error = monte_carlo(_normals, key, samples, 0.0)
        assert float(mean) == approx(expected.mean(), abs=1e-14)
        assert float(error) == approx(expected.std(ddof=1) / np.sqrt(samples), rel=1e-10)
    means, errors = monte_carlo(_normals, key, samples, jnp.array([[2.0], [-5.0], [0.5]]))
    assert means == approx(expected.mean() + np.array([2.0, -5.0, 0.5]))
    assert errors == approx(np.full(3, error), rel=1e-10)


def test_monte_carlo_keeps_the_error_of_a_small_spread_around_a_large_mean(float64):
    _, error = monte_carlo(_normals, jax.random.key(6), 50_000, 1e8)
    assert float(error) == approx(1 / np.sqrt(50_000), rel=0.02)


def test_precision_is_scoped():
    assert float64(lambda: jnp.ones(()).dtype)() == jnp.float64
    assert jnp.ones(()).dtype == jnp.float32


@pytest.mark.parametrize(
    ("mean", "spread"), [(0.3, 0.01), (-1.2, 1.0), (5.0, 30.0), (0.0, 1000.0), (40.0, 0.5)]
)
def test_smoothed_derivatives_of_a_jump_and_a_kink(float64, mean, spread):
    z = -mean / spread
    tail, bell = special.ndtr(-z), np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    jump = smoothed_derivatives(lambda x: (x > 0) * 1.0, mean, spread)
    exact = [tail, bell, z * bell, (z**2 - 1) * bell]
    for power in range(2):
        scaled = jump[power] * spread ** np.arange(4)
        np.testing.assert_allclose(scaled, exact, rtol=0, atol=1e-11)
    kink = smoothed_derivatives(lambda x: jnp.maximum(x, 0), mean, spread)[0]
    np.testing.assert_allclose(kink[0], mean * tail + spread * bell, rtol=1e-10, atol=1e-12)


def test_smoothed_derivatives_are_those_in_the_mean(float64):
    smoothed = lambda mean: smoothed_derivatives(jnp.tanh, mean, 0.7)  # noqa: E731
    slope = (smoothed(0.4 + 1e-5) - smoothed(0.4 - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope[:, :3], smoothed(0.4)[:, 1:], atol=1e-8)


def test_averaging_on_the_host_counts_as_asked_and_reports_the_error_it_makes():
    def draw(generator, block, mean):
        return mean + generator.standard_normal((2, block))

    found = [averaged(draw, jax.random.key(seed), 500, 1e6) for seed in range(200)]
    means, errors = (np.stack(x) for x in zip(*found, strict=True))
    assert means.std() == approx(errors.mean(), rel=0.12)
    whole = np.concatenate(
        [draw(stream(jax.random.key(7), block), BLOCK, 0.0) for block in range(3)], -1
    )[:, :40_000]
    mean, error = averaged(draw, jax.random.key(7), 40_000, 0.0)
    assert mean == approx(whole.mean(-1), abs=1e-15)
    assert error == approx(whole.std(-1, ddof=1) / 200, rel=1e-12)


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.5, 12.0])
def test_gamma_variables_have_the_law_of_their_parameter(float64, shape):
    drawn = np.asarray(draw_gamma(jax.random.key(8), shape, (100_000,)))
    assert stats.kstest(drawn, stats.gamma(shape).cdf).pvalue > 1e-4


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(gaussian) == [
        "smoothed_derivatives panels=8 reach=11",
        "gaussian_nodes panels=8 reach=11",
    ]
