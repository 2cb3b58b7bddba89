import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy.integrate import quad
from scipy.special import eval_gegenbauer

from attlas.attention import softmax_attention
from attlas.errors import InputError
from attlas.kernels import Exponential, cme_attention
from attlas.latent_posterior import rates
from attlas.latent_posterior.rates import (
    PAIR,
    cme_error,
    difference_error,
    effective_dimension,
    effective_ridge,
    funk_hecke,
    mercer,
    multiplicity,
    optimal_temperature,
    softmax_bias,
    softmax_error,
    softmax_limit,
    zonal,
)
from tests.defaults import numbers_by_default
from tests.sampling import of_sample

DIMS = (2, 3, 6)
WEIGHTS = (0.0, 1.0, 0.7, 0.5)


def powers_of(dim):
    """Of the sum of the zonal harmonics of degrees 1, 2, 3 with the weights above."""
    return np.square(WEIGHTS) / multiplicity(np.arange(4), dim)


def mean_of(f, dim):
    """Of f(t) over t = <x, e>, x uniform on the sphere."""
    ends = (0, np.pi)
    area = quad(lambda a: np.sin(a) ** (dim - 2), *ends)[0]
    return quad(lambda a: f(np.cos(a)) * np.sin(a) ** (dim - 2), *ends, epsabs=1e-13)[0] / area


def test_multiplicities_count_the_harmonics():
    assert multiplicity(np.arange(5), 2) == approx([1, 2, 2, 2, 2])
    assert multiplicity(np.arange(5), 3) == approx([1, 3, 5, 7, 9])
    assert multiplicity(np.arange(3), 6) == approx([1, 6, 20])


@pytest.mark.parametrize("dim", DIMS)
def test_zonal_harmonics_are_gegenbauers_and_orthogonal(dim):
    t = np.linspace(-1, 1, 9)
    for l in range(6):
        half = (dim - 2) / 2
        expected = (
            np.cos(l * np.arccos(t))
            if dim == 2
            else eval_gegenbauer(l, half, t) / eval_gegenbauer(l, half, 1.0)
        )
        assert zonal(l, dim, t) == approx(expected, abs=1e-12)
        for other in range(l + 1):
            inner = mean_of(
                lambda t, l=l, other=other: zonal(l, dim, t) * zonal(other, dim, t), dim
            )
            assert inner == approx(1 / multiplicity(l, dim) if l == other else 0, abs=1e-10)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("temperature", [1.0, 0.25, 0.04])
def test_eigenvalues_are_the_kernels_projections_and_sum_to_its_trace(dim, temperature):
    for l in range(4):
        projected = mean_of(lambda t, l=l: np.exp((t - 1) / temperature) * zonal(l, dim, t), dim)
        assert mercer(l, temperature, dim) == approx(projected, rel=1e-8)
    degrees = np.arange(200)
    assert np.sum(multiplicity(degrees, dim) * mercer(degrees, temperature, dim)) == approx(
        1, abs=1e-12
    )


@pytest.mark.parametrize("dim", DIMS)
def test_multipliers_are_what_softmax_attention_does_to_harmonics(float64, dim):
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(200_000, dim))
    keys = jnp.asarray(keys / np.linalg.norm(keys, axis=1, keepdims=True))
    values = jnp.stack([zonal(1, dim, keys[:, 0]), zonal(2, dim, keys[:, 0])], 1)
    for temperature in (1.0, 0.25, 0.04):
        seen = softmax_attention(jnp.eye(dim)[:1], keys, values, temperature=temperature)[0]
        assert np.asarray(seen) == approx(funk_hecke(np.array([1, 2]), temperature, dim), abs=0.01)


@pytest.mark.parametrize("dim", DIMS)
def test_the_bias_is_first_order_in_the_temperature_and_no_temperature_is_too_small(dim):
    degrees = np.arange(1, 4)
    slopes = degrees * (degrees + dim - 2) / 2
    assert (1 - funk_hecke(degrees, 1e-4, dim)) / 1e-4 == approx(slopes, rel=1e-2)
    assert np.isfinite(funk_hecke(degrees, 1e-6, dim)).all()
    single = np.array([0.0, 0.0, 1.0])
    ratio = softmax_bias(1e-3, dim, single, PAIR) / softmax_bias(5e-4, dim, single, PAIR)
    assert np.log2(ratio) == approx(2, abs=0.05)


def test_the_first_multiplier_is_the_constant_of_a_sphere_of_values():
    for width in (2, 3, 5):
        total = mean_of(lambda t: np.exp(t / 0.3), width)
        assert mean_of(lambda t: t * np.exp(t / 0.3), width) / total == approx(
            funk_hecke(1, 0.3, width), rel=1e-10
        )


def draws(dim, length, count, seed=0, queries=200):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(count, length, dim))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    asked = rng.normal(size=(count, queries, dim))
    asked /= np.linalg.norm(asked, axis=-1, keepdims=True)

    def mean(x):
        return sum(w * zonal(l, dim, x[..., :1]) for l, w in enumerate(WEIGHTS))

    return asked, keys, mean(keys) + 0.5 * rng.normal(size=(count, length, 1)), mean(asked)


@pytest.mark.parametrize(("dim", "temperature"), [(2, 0.25), (3, 0.25), (3, 0.05), (6, 0.3)])
@pytest.mark.parametrize("heads", [((1.0, 1.0),), PAIR], ids=["head", "pair"])
def test_predicted_error_of_softmax_attention(float64, dim, temperature, heads):
    length, count = 1000, 60
    queries, keys, values, truth = (jnp.asarray(x) for x in draws(dim, length, count))
    seen = sum(
        c * softmax_attention(queries, keys, values, temperature=m * temperature) for c, m in heads
    )
    errors = np.asarray(((seen - truth) ** 2).mean((1, 2)))
    predicted = softmax_error(
        length, temperature=temperature, dim=dim, powers=powers_of(dim), noise=0.5, heads=heads
    )
    mean, error = of_sample(errors)
    assert error < 0.1 * predicted and abs(mean - predicted) < 4 * error + 0.02 * predicted


@pytest.mark.parametrize(("dim", "length"), [(2, 300), (3, 300), (6, 40)])
def test_predicted_error_of_cme_attention(float64, dim, length):
    count = 60
    queries, keys, values, truth = draws(dim, length, count, seed=4, queries=100)
    seen = cme_attention(queries, keys, values, ridge=0.25, kernel=Exponential(0.5))
    errors = np.asarray(((seen - truth) ** 2).mean((1, 2)))
    predicted = cme_error(
        length, ridge=0.25, temperature=0.5, dim=dim, powers=powers_of(dim), noise=0.5
    )
    mean, error = of_sample(errors)
    assert error < 0.1 * predicted and abs(mean - predicted) < 4 * error + 0.01 * predicted


def test_error_of_cme_attention_at_great_length():
    """The specification's table, to leading order: gamma = 0.5, noise = 0.5, ridge = noise^2."""
    for dim, rmse in ((2, 0.0273), (3, 0.0478), (6, 0.1127)):
        settings = {
            "ridge": 0.25,
            "temperature": 0.5,
            "dim": dim,
            "powers": powers_of(dim),
            "noise": 0.5,
        }
        assert np.sqrt(cme_error(4096, **settings)) == approx(rmse, rel=0.015)
        near, far = (
            cme_error(np.array([2e3, 4e3]), **settings),
            cme_error(np.array([1e6, 1e7]), **settings),
        )
        assert 0.5 * np.log2(near[1] / near[0]) == approx(
            {2: -0.456, 3: -0.411, 6: -0.306}[dim], abs=0.01
        )
        assert 0.5 * np.log10(far[1] / far[0]) == approx(
            {2: -0.476, 3: -0.453, 6: -0.389}[dim], abs=0.01
        )


def test_the_effective_ridge_solves_its_equation_and_tends_to_the_ridge():
    given = {"temperature": 0.4, "dim": 5}
    lengths = np.array([10.0, 300.0, 1e9])
    star = effective_ridge(lengths, ridge=0.7, **given)
    known = effective_dimension(lengths, ridge=star, **given)
    assert star == approx(0.7 + star * known / lengths, rel=1e-12)
    assert star[-1] == approx(0.7, rel=1e-4)


def test_effective_dimension_is_the_trace_of_the_smoother(float64):
    rng = np.random.default_rng(2)
    keys = rng.normal(size=(800, 3))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    spectrum = np.linalg.eigvalsh(np.asarray(Exponential(0.5)(keys, keys)))
    predicted = effective_dimension(800, ridge=0.25, temperature=0.5, dim=3)
    assert np.sum(spectrum / (spectrum + 0.25)) == approx(float(predicted), rel=0.03)


def test_the_optimal_temperature_minimises_the_predicted_error_at_great_length():
    for dim in DIMS:
        length, powers = 1e12, powers_of(dim)
        best = optimal_temperature(length, dim=dim, powers=powers, noise=0.5)
        grid = best * np.geomspace(0.5, 2, 81)
        errors = softmax_error(length, temperature=grid, dim=dim, powers=powers, noise=0.5)
        assert grid[np.argmin(errors)] == approx(best, rel=0.1)
        s = dim - 1
        variance = 0.25 * (4 * np.pi * best) ** (-s / 2) * mean_area(dim) / length
        limit = softmax_bias(best, dim, powers) ** 2 + variance
        assert errors.min() == approx(float(limit), rel=0.05)


def mean_area(dim):
    return {2: 2 * np.pi, 3: 4 * np.pi, 6: np.pi**3}[dim]


def test_zonal_harmonics_take_jax_arrays(float64):
    assert jax.jit(lambda t: zonal(3, 3, t))(0.5) == approx((5 * 0.125 - 3 * 0.5) / 2)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mercer(1, 0.0, 3), "temperature = 0"),
        (lambda: funk_hecke(1, -1.0, 3), "temperature = -1"),
        (lambda: mercer(1, 0.5, 1), "dim = 1: it must be a whole number, at least 2"),
        (lambda: softmax_error(9, temperature=0.1, dim=3, powers=[-1.0], noise=1.0), "powers"),
        (lambda: optimal_temperature(9, dim=3, powers=[1.0], noise=1.0), "infinite"),
        (lambda: effective_dimension(1e6, ridge=0.1, temperature=1e-7, dim=3), "too small"),
        (
            lambda: cme_error(9, ridge=0.0, temperature=0.5, dim=3, powers=[1.0], noise=1.0),
            "ridge = 0",
        ),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(InputError, match=says):
        call()


@pytest.mark.parametrize("dim", DIMS)
def test_the_limit_by_quadrature_is_funk_and_heckes(dim):
    at = np.array([-0.9, 0.1, 0.7])
    for degree in (1, 2, 3):
        limit = softmax_limit(lambda t, l=degree: zonal(l, dim, t), at, temperature=0.3, dim=dim)
        assert limit == approx(funk_hecke(degree, 0.3, dim) * zonal(degree, dim, at), abs=1e-12)


def test_the_limit_sees_the_density_of_the_keys(float64):
    at, draws = np.array([0.6]), np.random.default_rng(2)
    keys = draws.normal(size=(400_000, 3))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    weights = np.exp(keys @ [0.6, 0.8, 0.0] / 0.3) * (1 + 0.5 * keys[:, 0])
    limit = softmax_limit(lambda t: t, at, temperature=0.3, dim=3, density=lambda t: 1 + 0.5 * t)
    assert limit[0] == approx(weights @ keys[:, 0] / weights.sum(), abs=0.004)


@pytest.mark.parametrize("dim", (2, 3))
def test_predicted_difference_of_softmax_and_cme_attention(float64, dim):
    length, count = 300, 60
    queries, keys, values, _ = (
        jnp.asarray(x) for x in draws(dim, length, count, seed=7, queries=100)
    )
    inferred = cme_attention(queries, keys, values, ridge=0.25, kernel=Exponential(0.5))
    smoothed = softmax_attention(queries, keys, values, temperature=0.1)
    squares = np.asarray(((inferred - smoothed) ** 2).mean((1, 2)))
    predicted = difference_error(
        length, ridge=0.25, kernel=0.5, temperature=0.1, dim=dim, powers=powers_of(dim), noise=0.5
    )
    mean, error = of_sample(squares)
    assert error < 0.1 * predicted and abs(mean - predicted) < 4 * error + 0.05 * predicted


def test_the_error_of_heads_is_the_delta_methods_on_the_circle():
    """Averages of weights and weighted values over tokens, expanded to the order 1 / length, by
    sums over a grid of angles: two heads, whose factors do not add up to 1."""
    heads, temperature, noise, length = ((1.7, 0.8), (-0.5, 2.3)), 0.35, 0.6, 90.0
    angles = 2 * np.pi * np.arange(128) / 128
    powers = np.array([0.49, 0.8, 0.3])
    mean = 0.7 + sum(
        np.sqrt(2 * powers[l]) * np.cos(l * angles + phase) for l, phase in ((1, 0.4), (2, 1.9))
    )
    towards = np.cos(angles[:, None] - angles) - 1
    weights = [np.exp(towards / (multiple * temperature)) for _, multiple in heads]
    weights = [w / w.mean(1, keepdims=True) for w in weights]
    limits = [(w * mean).mean(1) for w in weights]
    apart = [w * (mean - limit[:, None]) for w, limit in zip(weights, limits, strict=True)]
    factors = [factor for factor, _ in heads]
    bias = sum(c * limit for c, limit in zip(factors, limits, strict=True)) - mean
    drift = -sum(c * (w * a).mean(1) for c, w, a in zip(factors, weights, apart, strict=True))
    spread = sum(c * a for c, a in zip(factors, apart, strict=True)) ** 2
    spread += noise**2 * sum(c * w for c, w in zip(factors, weights, strict=True)) ** 2
    expected = (bias**2 + (spread.mean(1) + 2 * bias * drift) / length).mean()
    settings = {"temperature": temperature, "dim": 2, "powers": powers, "noise": noise}
    assert softmax_error(length, **settings, heads=heads) == approx(expected, rel=1e-11)


@pytest.mark.parametrize("dim", (2, 5))
def test_the_difference_is_that_of_smoothing_what_cme_attention_finds(dim):
    length, ridge, noise, temperature = 70.0, 0.8, 0.6, 0.2
    cme = {"ridge": ridge, "temperature": 0.4, "dim": dim}
    degrees, powers = np.arange(30), powers_of(dim)
    mu = mercer(degrees, 0.4, dim)
    kappa = effective_ridge(length, **cme) / length
    unknown = noise**2 + cme_error(length, powers=powers, noise=noise, **cme)
    found = np.pad(powers, (0, 26)) + multiplicity(degrees, dim) * unknown / length
    found *= (mu / (mu + kappa)) ** 2
    settings = {"temperature": temperature, "dim": dim, "powers": found, "noise": 0.0}
    finite = softmax_error(length, **settings) - softmax_error(np.inf, **settings)
    residual = funk_hecke(degrees, temperature, dim) * (1 + ridge / length / mu) - 1
    assert difference_error(
        length,
        ridge=ridge,
        kernel=0.4,
        temperature=temperature,
        dim=dim,
        powers=powers,
        noise=noise,
    ) == approx((residual**2 * found).sum() + finite, rel=1e-9)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(rates) == ["effective_dimension power=1"]
