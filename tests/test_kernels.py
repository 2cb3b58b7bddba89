import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

import attlas.kernels as module
from attlas.attention import linear_attention
from attlas.errors import InputError
from attlas.kernels import (
    RBF,
    Exponential,
    Linear,
    Polynomial,
    cme_attention,
    cme_variance,
    cme_weights,
    fit_cme,
)

NOISE, PRIOR = 0.3, 1.7
RIDGE = NOISE / PRIOR


def sphere(rng, *shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def problem(length=60, queries=9, dim=3, width=2, leading=(), seed=0):
    rng = np.random.default_rng(seed)
    return (
        sphere(rng, *leading, queries, dim),
        sphere(rng, *leading, length, dim),
        rng.normal(size=(*leading, length, width)),
    )


def long_problem(length, seed=1):
    rng = np.random.default_rng(seed)
    keys = sphere(rng, length, 3)
    values = keys[:, :1] + 0.7 * keys[:, 1:2] * keys[:, 2:] + 0.3 * rng.normal(size=(length, 1))
    return sphere(rng, 40, 3), keys, values


def plain(queries, keys, values, kernel, ridge):
    gram, cross = (np.asarray(kernel(x, keys)) for x in (keys, queries))
    return cross @ np.linalg.solve(gram + ridge * np.eye(len(keys)), values)


def own(x, y):
    return 1 / (1 + ((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1))


KERNELS = [Exponential(0.25), RBF(0.5), Linear(), Polynomial(3, 0.5), own]


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        (Exponential(0.3), lambda x, y: np.exp((x @ y - 1) / 0.3)),
        (RBF(0.3), lambda x, y: np.exp(-((x - y) ** 2).sum() / 0.6)),
        (Linear(), lambda x, y: x @ y),
        (Polynomial(3, 0.5), lambda x, y: (x @ y + 0.5) ** 3),
    ],
)
def test_kernels_are_their_formulas(float64, kernel, formula):
    x, y, _ = problem(5, 4)
    assert kernel(x, y) == approx(np.array([[formula(a, b) for b in y] for a in x]), abs=1e-13)


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
    assert cme_variance(queries, keys, **settings, joint=True) == approx(covariance, abs=1e-8)
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
    weights = np.asarray(cme_weights(queries, dirty, **settings, mask=mask))
    assert weights[:, mask] == approx(
        np.asarray(cme_weights(queries, keys[mask], **settings)), abs=1e-11
    )
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


def test_weights_give_the_mean_and_as_a_law_lie_on_the_simplex(float64):
    queries, keys, values = problem()
    settings = {"ridge": 0.01, "kernel": RBF(0.3)}
    weights = np.asarray(cme_weights(queries, keys, **settings))
    assert weights.min() < -0.01
    assert weights @ values == approx(
        np.asarray(cme_attention(queries, keys, values, **settings)), abs=1e-11
    )
    # |f|^2 <= |v|^2 / (4 ridge) in the kernel's norm
    assert abs(weights).sum(1).max() <= np.sqrt(60 / (4 * 0.01))
    law = np.asarray(cme_weights(queries, keys, **settings, law=True))
    assert law.min() >= 0 and law.sum(1) == approx(np.ones(9))
    assert law == approx(
        np.maximum(weights, 0) / np.maximum(weights, 0).sum(1, keepdims=True), abs=1e-12
    )


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
    monkeypatch.setattr(module, "SHORT", 500)
    assert fit_cme(keys, values, **settings).method == "nystrom"
    monkeypatch.setattr(module, "MOST", 64)
    assert fit_cme(keys, values, **settings).method == "exact"
    small = fit_cme(keys, values, **settings, memory=1e6)
    assert small.method == "conjugate" and small.reached
    monkeypatch.setattr(module, "LONGEST", 1000)
    short = fit_cme(keys, values, **settings, memory=1e6)
    assert short.method == "nystrom" and not short.reached and "misses" in str(short)


def test_a_fit_depends_on_its_seed_alone():
    queries, keys, values = long_problem(800)
    one, two, other = (
        fit_cme(
            keys, values, ridge=0.1, kernel=RBF(0.1), method="nystrom", centres=40, seed=s
        ).mean(queries)
        for s in (1, 1, 2)
    )
    assert np.array_equal(one, two) and not np.allclose(one, other, atol=1e-6)


ONES = np.eye(3)
BAD = [
    (
        {"keys": np.ones((0, 3)), "values": np.ones((0, 2))},
        r"keys has the shape \(0, 3\): the context is empty",
    ),
    ({"mask": np.zeros(3, bool)}, "the mask admits no token"),
    ({"mask": np.ones(4, bool)}, r"the mask has the shape \(4,\)"),
    ({"values": np.ones((4, 2))}, "there are 4 values and 3 keys"),
    ({"ridge": -1.0}, "ridge = -1: it must be a number, 0 or more"),
    ({"ridge": np.nan}, "ridge = nan"),
    ({"ridge": 0.0, "keys": np.ones((3, 3))}, "ridge = 0: the Gram matrix of the keys is singular"),
    ({"keys": np.diag([1.0, np.nan, 1.0])}, "keys has a NaN or an infinity in row 1"),
    ({"values": np.full((3, 2), np.inf)}, "values has a NaN or an infinity in row 0"),
    ({"ridge": 0.1, "kernel": lambda x, y: -jnp.exp(x @ y.T)}, "not positive definite"),
]


@pytest.mark.parametrize(("change", "says"), BAD)
def test_bad_input_is_named(float64, change, says):
    good = {"keys": ONES, "values": np.ones((3, 2)), "ridge": 0.1, "kernel": RBF(0.5)}
    with pytest.raises(InputError, match=says):
        cme_attention(ONES, **(good | change))
    with pytest.raises(InputError, match=says):
        fit_cme(**(good | change))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RBF(0.0), "temperature = 0: it must be a positive number"),
        (lambda: Exponential(-1.0), "temperature = -1"),
        (lambda: Polynomial(0), "degree = 0"),
        (
            lambda: cme_attention(ONES[:, :2], ONES, ONES, ridge=1.0, kernel=Linear()),
            "queries have the width 2 and keys 3",
        ),
        (
            lambda: cme_attention(ONES, ONES[0], ONES, ridge=1.0, kernel=Linear()),
            r"keys has the shape \(3,\)",
        ),
        (
            lambda: cme_attention(ONES, ONES, ONES, ridge=1.0, kernel=Linear(), clip="hull"),
            "clip = 'hull'",
        ),
        (
            lambda: cme_attention(
                ONES, ONES, ONES, ridge=1.0, kernel=lambda x, y: jnp.ones((2, 2))
            ),
            "the kernel gives the shape",
        ),
        (
            lambda: cme_attention(
                np.ones((2, 3, 3)), np.ones((4, 3, 3)), ONES, ridge=1.0, kernel=Linear()
            ),
            "leading axes",
        ),
        (
            lambda: fit_cme(ONES, ONES, ridge=1.0, kernel=Linear(), method="nistrom"),
            "Did you mean nystrom",
        ),
        (
            lambda: fit_cme(ONES, ONES, ridge=0.0, kernel=Linear(), method="nystrom"),
            "ridge = 0: it must be a positive number",
        ),
        (
            lambda: fit_cme(ONES, ONES, ridge=1.0, kernel=Linear()).mean(np.ones((1, 2))),
            "rows of 3 numbers",
        ),
    ],
)
def test_other_bad_input_is_named(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_no_ridge_interpolates_where_the_gram_matrix_allows(float64):
    _, keys, values = problem(10)
    assert cme_attention(keys, keys, values, ridge=0.0, kernel=RBF(0.1)) == approx(values, abs=1e-8)
    assert fit_cme(keys, values, ridge=0.0, kernel=RBF(0.1)).mean(keys) == approx(values, abs=1e-8)


def test_nothing_is_checked_while_jax_traces(float64):
    queries, keys, values = problem(10)
    attend = jax.jit(
        lambda k, ridge, mask: cme_attention(
            queries, k, values, ridge=ridge, kernel=RBF(0.3), mask=mask
        )
    )
    assert not attend(keys, 0.1, jnp.zeros(10, bool)).any()
    assert np.isnan(attend(jnp.full_like(keys, jnp.nan), 0.1, jnp.ones(10, bool))).all()


def test_the_ball_has_a_gradient_where_the_mean_is_nothing():
    keys = jax.random.normal(jax.random.key(0), (5, 2))
    slope = jax.grad(
        lambda v: cme_attention(keys, keys, v, ridge=0.1, kernel=RBF(1.0), clip=1.0).sum()
    )(jnp.zeros((5, 1)))
    assert np.isfinite(slope).all() and abs(slope).max() > 0


@pytest.mark.parametrize("call", [cme_attention, None])
def test_masks_kernels_and_traced_contexts_that_mean_something_else_are_told(call):
    keys, values = np.eye(4), np.ones((4, 1))

    def solve(mask=None, values=values, **options):
        options = {"ridge": 0.1, "kernel": RBF(1.0), "mask": mask, **options}
        return call(keys, keys, values, **options) if call else fit_cme(keys, values, **options)

    with pytest.raises(InputError, match="mask == 0"):
        solve(mask=np.array([0, -np.inf, 0, 0]))
    with pytest.raises(InputError, match="a function of two sets of rows"):
        solve(kernel=RBF)
    if call is None:
        with pytest.raises(InputError, match="use cme_attention"):
            jax.grad(lambda v: solve(values=v).mean(keys).sum())(values)
        with pytest.raises(InputError, match="positive semi-definite"):
            fit_cme(keys, values, ridge=0.1, kernel=lambda x, y: -x @ y.T, method="nystrom")
        with pytest.raises(InputError, match="prior = -1"):
            solve().variance(keys, prior=-1.0)
        assert "array" not in repr(solve())
