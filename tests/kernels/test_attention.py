import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.attention import linear_attention
from attlas.kernels import RBF, Exponential, Linear, attention, cme_attention, cme_variance
from tests.defaults import numbers_by_default
from tests.kernels.problems import KERNELS, NOISE, PRIOR, RIDGE, plain, problem, sphere


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: getattr(k, "__name__", type(k).__name__))
def test_cme_is_the_gaussian_process_conditioned_on_the_context(float64, kernel):
    queries, keys, values = problem()
    both = np.concatenate([keys, queries])
    joint = PRIOR * np.asarray(kernel(both, both)) + NOISE * np.eye(len(both))
    seen, cross, there = joint[:60, :60], joint[60:, :60], joint[60:, 60:]
    assert cme_attention(queries, keys, values, ridge=RIDGE, kernel=kernel) == approx(
        cross @ np.linalg.solve(seen, values), abs=1e-8
    )
    covariance = there - cross @ np.linalg.solve(seen, cross.T)
    settings = {"ridge": RIDGE, "kernel": kernel, "prior": PRIOR}
    assert cme_variance(queries, keys, **settings) == approx(np.diagonal(covariance), abs=1e-8)


def test_cme_is_bayesian_regression_in_weight_space(float64):
    queries, keys, values = problem()
    precision = keys.T @ keys / NOISE + np.eye(3) / PRIOR
    z = np.linalg.solve(precision, keys.T @ values / NOISE)
    settings = {"ridge": RIDGE, "kernel": Linear()}
    assert cme_attention(queries, keys, values, **settings) == approx(queries @ z, abs=1e-10)
    spread = NOISE + np.einsum("qd,de,qe->q", queries, np.linalg.inv(precision), queries)
    assert cme_variance(queries, keys, **settings, prior=PRIOR) == approx(spread, abs=1e-10)


def test_order_of_the_tokens_is_nothing(float64):
    queries, keys, values = problem()
    order = np.random.default_rng(3).permutation(60)
    settings = {"ridge": RIDGE, "kernel": RBF(0.3)}
    assert cme_attention(queries, keys[order], values[order], **settings) == approx(
        np.asarray(cme_attention(queries, keys, values, **settings)), abs=1e-11
    )


def test_on_the_sphere_the_exponential_kernel_is_the_gaussian_one_and_a_scale_is_a_ridge(float64):
    queries, keys, values = problem()
    gaussian = np.asarray(cme_attention(queries, keys, values, ridge=RIDGE, kernel=RBF(0.25)))
    assert cme_attention(queries, keys, values, ridge=RIDGE, kernel=Exponential(0.25)) == approx(
        gaussian, abs=1e-10
    )
    bare = cme_attention(
        queries,
        keys,
        values,
        ridge=RIDGE * np.exp(1 / 0.25),
        kernel=lambda x, y: jnp.exp(x @ y.T / 0.25),
    )
    assert bare == approx(gaussian, abs=1e-10)


def test_a_large_ridge_leaves_linear_attention(float64):
    queries, keys, values = problem()
    far = 1e9 * cme_attention(queries, keys, values, ridge=1e9, kernel=Linear())
    assert far == approx(
        np.asarray(linear_attention(*map(jnp.asarray, (queries, keys, values)))), rel=1e-6, abs=1e-6
    )


def test_equal_keys_average_the_values(float64):
    _queries, keys, values = problem()
    keys = np.broadcast_to(keys[:1], keys.shape)
    expected = np.broadcast_to(values.sum(0) / (60 + RIDGE), (1, 2))
    assert cme_attention(keys[:1], keys, values, ridge=RIDGE, kernel=RBF(0.3)) == approx(
        expected, abs=1e-12
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: getattr(k, "__name__", type(k).__name__))
def test_a_masked_token_is_as_if_it_were_not_there_whatever_it_holds(float64, kernel):
    queries, keys, values = problem()
    mask = np.random.default_rng(4).random(60) < 0.7
    dirty, noisy = np.where(mask[:, None], keys, np.nan), np.where(mask[:, None], values, np.inf)
    settings = {"ridge": RIDGE, "kernel": kernel}
    for clip in (None, 0.5, "values"):
        short = cme_attention(queries, keys[mask], values[mask], **settings, clip=clip)
        assert cme_attention(queries, dirty, noisy, **settings, mask=mask, clip=clip) == approx(
            np.asarray(short), abs=1e-11
        )
    assert cme_variance(queries, dirty, **settings, mask=mask) == approx(
        np.asarray(cme_variance(queries, keys[mask], **settings)), abs=1e-11
    )
    weights = np.asarray(cme_attention(queries, dirty, np.eye(60), **settings, mask=mask))
    short_weights = cme_attention(queries, keys[mask], np.eye(mask.sum()), **settings)
    assert weights[:, mask] == approx(np.asarray(short_weights), abs=1e-11)
    assert not weights[:, ~mask].any()
    # Values set to 0 are not a mask: their keys still count.
    assert (
        abs(cme_attention(queries, keys, values * mask[:, None], **settings) - short).max() > 1e-2
    )


def test_sequences_and_heads_are_leading_axes_each_with_its_ridge_and_temperature(float64):
    queries, keys, values = problem(20, 5, leading=(2, 2))
    mask = np.random.default_rng(5).random((2, 1, 20)) < 0.8
    ridge, temperature = np.array([[0.1], [0.4]]), np.array([0.3, 0.6])
    together = cme_attention(queries, keys, values, ridge=ridge, kernel=RBF(temperature), mask=mask)
    spread = cme_variance(queries, keys, ridge=ridge, kernel=RBF(temperature), mask=mask)
    assert together.shape == (2, 2, 5, 2) and spread.shape == (2, 2, 5)
    for i in range(2):
        for h in range(2):
            one = {"ridge": ridge[i, 0], "kernel": RBF(temperature[h]), "mask": mask[i, 0]}
            assert together[i, h] == approx(
                np.asarray(cme_attention(queries[i, h], keys[i, h], values[i, h], **one)), abs=1e-11
            )
            assert spread[i, h] == approx(
                np.asarray(cme_variance(queries[i, h], keys[i, h], **one)), abs=1e-11
            )
    shared = cme_attention(queries, keys[0, 0], values[0, 0], ridge=0.1, kernel=Linear())
    assert shared[1, 1] == approx(
        np.asarray(
            cme_attention(queries[1, 1], keys[0, 0], values[0, 0], ridge=0.1, kernel=Linear())
        )
    )


def test_a_mask_with_a_row_for_each_query_is_causal(float64):
    _, keys, values = problem(8)
    causal = np.tril(np.ones((8, 8), bool))
    rows = cme_attention(keys[:, None], keys, values, ridge=0.2, kernel=RBF(0.5), mask=causal)[:, 0]
    assert rows[4] == approx(plain(keys[4:5], keys[:5], values[:5], RBF(0.5), 0.2)[0], abs=1e-11)


def test_values_that_are_the_unit_matrix_give_the_weights(float64):
    queries, keys, values = problem()
    settings = {"ridge": 0.01, "kernel": RBF(0.3)}
    weights = np.asarray(cme_attention(queries, keys, np.eye(60), **settings))
    assert weights.min() < -0.01
    assert weights @ values == approx(
        np.asarray(cme_attention(queries, keys, values, **settings)), abs=1e-11
    )
    # |f|^2 <= |v|^2 / (4 ridge) in the kernel's norm
    assert abs(weights).sum(1).max() <= np.sqrt(60 / (4 * 0.01))


def test_clipping_to_a_ball_that_holds_the_truth_never_adds_error(float64):
    rng = np.random.default_rng(6)
    keys, queries = sphere(rng, 50, 3), sphere(rng, 200, 3)
    keys[:, 0] = abs(keys[:, 0])  # half the sphere has no keys
    truth, values = sphere(rng, 200, 2), sphere(rng, 50, 2)
    free, held = (
        np.asarray(cme_attention(queries, keys, values, ridge=0.001, kernel=RBF(1.0), clip=c))
        for c in (None, 1.0)
    )
    assert (
        np.linalg.norm(free, axis=1).max() > 2 and np.linalg.norm(held, axis=1).max() <= 1 + 1e-12
    )
    assert np.all(((held - truth) ** 2).sum(1) <= ((free - truth) ** 2).sum(1) + 1e-12)
    boxed = cme_attention(queries, keys, values, ridge=0.001, kernel=RBF(1.0), clip="values")
    assert boxed == approx(np.clip(free, values.min(0), values.max(0)))


def test_gradients_are_those_of_finite_differences(float64):
    queries, keys, values = problem(12, 3)
    mask = jnp.arange(12) < 10

    def loss(queries, keys, values, ridge, temperature):
        settings = {"ridge": ridge, "kernel": RBF(temperature), "mask": mask}
        mean = cme_attention(queries, keys, values, **settings)
        return (mean**2).sum() + cme_variance(queries, keys, **settings).sum()

    args = (queries, keys, values, 0.2, 0.4)
    slopes = jax.jit(jax.grad(loss, tuple(range(5))))(*args)
    rng = np.random.default_rng(7)
    for i, slope in enumerate(slopes):
        along = rng.normal(size=np.shape(args[i]))
        ends = [loss(*args[:i], args[i] + h * along, *args[i + 1 :]) for h in (1e-5, -1e-5)]
        assert float(np.sum(slope * along)) == approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-6)
    dirty = jnp.asarray(keys).at[11].set(jnp.nan)
    assert np.isfinite(jax.grad(loss, 1)(queries, dirty, values, 0.2, 0.4)[:10]).all()


def test_single_precision():
    queries, keys, values = (x.astype(np.float32) for x in problem(300))
    mean = cme_attention(queries, keys, values, ridge=0.3, kernel=Exponential(0.25))
    assert mean.dtype == jnp.float32
    assert mean == approx(
        plain(queries, keys, values, lambda x, y: np.exp((x @ y.T - 1.0) / 0.25), 0.3), abs=1e-4
    )


def test_the_ball_has_a_gradient_where_the_mean_is_nothing():
    keys = jax.random.normal(jax.random.key(0), (5, 2))
    slope = jax.grad(
        lambda v: cme_attention(keys, keys, v, ridge=0.1, kernel=RBF(1.0), clip=1.0).sum()
    )(jnp.zeros((5, 1)))
    assert np.isfinite(slope).all() and abs(slope).max() > 0


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(attention) == ["cme_variance prior=1"]
