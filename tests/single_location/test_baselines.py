import jax
import numpy as np
import pytest
from pytest import approx
from scipy import integrate, special

from attlas.single_location import ORACLE, SingleLocation, baselines, predict, risk
from attlas.single_location.baselines import (
    bayes_gap,
    excess_bound,
    linear_attention,
    log_bayes_asymptote,
    log_softmax_asymptote,
    places,
    sampled_baselines,
    softmax_gap,
    tuned_softmax,
)
from tests.defaults import numbers_by_default
from tests.sampling import assert_mean_is, of_sample


@pytest.mark.parametrize("samples", [3_000, 30_000, 300_000])
def test_sampled_baselines_are_the_closed_forms(samples):
    task = SingleLocation(dim=30, length=6, gamma=0.9, noise=0.2)
    found = sampled_baselines(task, 0.2, jax.random.key(5), samples)
    expected = {
        "constant": task.constant_risk(),
        "linear": task.linear_risk(),
        "oracle": float(task.oracle_risk(0.2)),
    }
    for name, value in expected.items():
        assert_mean_is(value, *found[name], most=3 * samples**-0.5)


def test_the_projected_bayes_risk_is_that_of_the_bayes_predictor():
    task = SingleLocation(dim=10, length=5, gamma=0.7, noise=0.1)
    batch = task.sample(jax.random.key(6), 200_000)
    losses = {
        "bayes": np.asarray((task.bayes_predict(batch.tokens) - batch.target) ** 2, float),
        "linear": np.asarray((task.linear_predict(batch.tokens) - batch.target) ** 2, float),
        "oracle": np.asarray(
            (predict(batch.tokens, task.k_star, task.v_star, 0.3) - batch.target) ** 2, float
        ),
    }
    found = sampled_baselines(task, 0.3, jax.random.key(7), 200_000)
    for name, loss in losses.items():
        mean, error = of_sample(loss)
        error = np.hypot(error, float(found[name].error))
        assert_mean_is(mean, found[name].mean, error, most=0.02)


def test_bayes_risk_at_known_sizes():
    # At gamma = 1, L = 10, d = 20 the Bayes excess is .1116; at gamma^2 = 1/2, d = 10 it is .1086.
    found = sampled_baselines(SingleLocation(20, 10, 1.0), 0.1, jax.random.key(8), 400_000)["bayes"]
    assert float(found.mean) == approx(0.1116, abs=0.003)
    found = sampled_baselines(SingleLocation(10, 10), 0.1, jax.random.key(8), 400_000)["bayes"]
    assert float(found.mean) == approx(0.1086, abs=0.003)


def test_the_excess_bound_fails_with_any_smaller_constant():
    # Where gamma >> m, the term 4 Phi(-m/gamma) is needed nearly whole.
    task = SingleLocation(4, 2, 5.0)
    excess, bound = float(risk(task, ORACLE, 1.0)), float(excess_bound(task.constants, 1.0))
    tail = 25.0 * special.ndtr(-task.m / 5.0)
    assert bound - 0.8 * tail < excess < bound
    # And for a soft gate the other tokens' term is attained.
    soft = SingleLocation(10**6, 1000, 0.01)
    assert float(risk(soft, ORACLE, 0.01)) > 0.99 * float(excess_bound(soft.constants, 0.01))


def test_the_excess_bound_by_hand():
    task = SingleLocation(16, 7, 0.6)
    spread = 1 + 4 * (0.3 * 0.6) ** 2
    faint = np.exp(-2 * (0.3 * task.m) ** 2 / spread) / np.sqrt(spread)
    expected = 0.36 * (faint + 4 * special.ndtr(-task.m / 0.6)) + 4 * 6 * 0.09 / np.pi
    assert float(excess_bound(task.constants, 0.3)) == approx(expected)


def test_linear_attention_by_moments():
    """With s the sum over tokens of <x, k*><x, v*> and y = <x_0, v*>: E[sy] = gamma^2 m and
    E[s^2] = gamma^2(m^2 + gamma^2) + L - 1."""
    task = SingleLocation(16, 7, 0.6)
    product, square = 0.36 * task.m, 0.36 * (task.m**2 + 0.36) + 6
    lam, excess = linear_attention(task)
    assert lam == approx(product / square) and excess == approx(0.36 - product**2 / square)


def test_the_best_linear_weight_is_that_of_least_squares():
    task = SingleLocation(dim=4, length=3, gamma=1.0)
    batch = task.sample(jax.random.key(12), 400_000)
    summed = np.asarray(batch.tokens.sum(1), float)
    fitted = np.linalg.lstsq(summed, np.asarray(batch.target, float), rcond=None)[0]
    assert fitted == approx(
        task.gamma**2 / (task.gamma**2 + task.length - 1) * task.v_star, abs=0.006
    )
    ones = np.asarray(task.linear_predict(batch.tokens), float)
    assert ones == approx(summed @ task.v_star / 3, abs=1e-4)


def oracle_excess_on_ladder(growth, power):
    """At d = 100, 400, ..., with L = d^growth tokens and lam = (d L)^-power."""
    excess = []
    for dim in 100 * 4 ** np.arange(6):
        length = round(dim**growth)
        task = SingleLocation(int(dim), length)
        excess.append(float(task.oracle_risk((dim * length) ** -power)))
    return np.array(excess)


def test_the_oracle_improves_along_corollary_2_and_not_where_lam_sqrt_length_grows():
    assert (np.diff(oracle_excess_on_ladder(growth=0.25, power=0.25)) < 0).all()
    assert (np.diff(oracle_excess_on_ladder(growth=0.5, power=0.1)) > 0).all()


def test_the_oracle_lies_between_the_bayes_and_the_linear_predictor():
    for dim in (10, 20, 40):
        task = SingleLocation(dim, 10)
        gap, _ = bayes_gap(task, jax.random.key(3), 20_000)
        assert np.exp(gap) < float(task.oracle_risk(task.best_lam())) < task.linear_risk()


def test_the_oracle_is_below_the_linear_predictor_for_narrow_tokens():
    for dim in (10, 20, 100):
        for length in (2, 5, 30):
            for gamma in (0.1, 0.5, 1.0):
                task = SingleLocation(dim, length, gamma)
                assert float(task.oracle_risk(task.best_lam())) < task.linear_risk()


def test_the_excess_bound_holds_and_its_parts_do():
    for dim, length, gamma, lam in (
        (4, 2, 0.3, 1.0),
        (400, 10, 0.7, 0.06),
        (10**6, 100, 1.0, 0.002),
    ):
        task = SingleLocation(dim, length, gamma)
        assert float(risk(task, ORACLE, lam)) <= float(excess_bound(task.constants, lam))


@pytest.mark.parametrize("prior", [None, (0.4, 0.3, 0.2, 0.05, 0.05)])
def test_the_tilted_bayes_risk_is_that_of_plain_sampling_where_both_see_it(prior):
    task = SingleLocation(14, 5, 0.8, prior=prior)
    plain = sampled_baselines(task, 0.1, jax.random.key(5), 400_000)["bayes"]
    log, error = bayes_gap(task, jax.random.key(6), 200_000)
    assert error < 0.01
    assert_mean_is(np.exp(log), plain.mean, np.hypot(plain.error, np.exp(log) * error), most=0.02)


def test_rare_risks_at_known_sizes():
    # At d = 80 and gamma^2 = 1/2, by an independent sampler: 9.24e-9 +- 8e-11 and 1.300e-6 +- 5e-9.
    task = SingleLocation(80, 10)
    for gap, value, error in ((bayes_gap, 9.24e-9, 8e-11), (softmax_gap, 1.300e-6, 5e-9)):
        log, relative = gap(task, jax.random.key(9), 300_000)
        assert_mean_is(value, np.exp(log), np.hypot(error, relative * value), most=0.02, sigmas=4)


@pytest.mark.parametrize("dim, beta", [(40, None), (40, 0.3), (400, None), (400, 2.0)])
def test_the_softmax_gap_of_two_tokens_is_one_integral(dim, beta):
    task = SingleLocation(dim, 2, 0.7)
    spread = np.sqrt(1 + 0.7**2)

    def loss(x):  # of the difference of the two scores, N(m, spread^2)
        return (
            spread**2
            * special.expit(-(beta or task.m) * x) ** 2
            * np.exp(-(((x - task.m) / spread) ** 2) / 2)
        )

    at = [0.0, max(task.m - 2 * (beta or task.m) * spread**2, 0.0)]
    area = (
        integrate.quad(loss, -30, 60, points=at, limit=500, epsabs=0)[0]
        / np.sqrt(2 * np.pi)
        / spread
    )
    log, error = softmax_gap(task, jax.random.key(2), 200_000, beta)
    assert_mean_is(1, np.exp(log) / area, error, most=0.02)


def test_large_dimension_formulas_have_the_right_constant():
    # What is left is of order 1/d: 5 % at d = 80, half a percent at d = 640.
    for gamma in (0.5**0.5, 1.0, 1.3):
        task = SingleLocation(1280, 10, gamma)
        for gap, asymptote in (
            (bayes_gap, log_bayes_asymptote),
            (softmax_gap, log_softmax_asymptote),
        ):
            log, error = gap(task, jax.random.key(10), 400_000)
            assert error < 0.01
            assert abs(log - float(asymptote(task.constants, 1280.0))) < 4 * error + 0.01


def test_large_dimension_formulas_by_hand():
    task, square = SingleLocation(50, 7, 1.3), 1.3**2
    variance = 100 * (4 * square / (1 + square) ** 3 + 2 * ((1 - square) / (1 + square)) ** 2)
    rate = 1 / (4 + 4 * square) + np.log((1 + square) / 2.6)
    constant = 6 * 4 * square / (1 + square) * np.pi / 2 / np.sqrt(2 * np.pi * variance)
    bayes = log_bayes_asymptote(task.constants, 50.0)
    assert bayes == approx(np.log(constant) - 50 * rate, rel=1e-12)
    q = 1 / (1 + square)
    constant = 6 * np.sqrt((1 + square) / (2 * np.pi)) * special.beta(q, 2 - q) / task.m
    softmax = log_softmax_asymptote(task.constants, 50.0)
    assert softmax == approx(np.log(constant) - 50 * q / 4, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.6, 1.4])
def test_the_temperature_of_softmax_is_the_best_of_a_narrowing_grid(gamma):
    task, key = SingleLocation(30, 4, gamma), jax.random.key(4)
    search, final = jax.random.split(key)
    low, high = np.log(task.m / 20), np.log(4 * task.m / min(1, gamma**2))
    for _ in range(3):
        betas = np.exp(np.linspace(low, high, 9))
        gaps = [softmax_gap(task, search, 2000, beta).log for beta in betas]
        best, width = np.log(betas[np.argmin(gaps)]), (high - low) / 6
        low, high = best - width, best + width
    beta, gap = tuned_softmax(task, key, 2000)
    assert beta == approx(np.exp(best))
    assert gap == approx(softmax_gap(task, final, 2000, beta))


def test_every_place_is_taken_and_the_informative_token_stands_as_often_as_its_law_says():
    law = np.array([0.1, 0.4, 0.2, 0.3])
    found = places(np.random.default_rng(3), 20_000, law)
    assert (np.sort(found, 0) == np.arange(4)[:, None]).all()
    assert np.bincount(found[0]) / 20_000 == approx(law, abs=0.015)
    # The second token stands at each of the other places equally often.
    joint = np.bincount(4 * found[0] + found[1], minlength=16).reshape(4, 4) / 20_000
    assert joint == approx(law[:, None] * (1 - np.eye(4)) / 3, abs=0.01)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(baselines) == ["fill_first count=1"]
