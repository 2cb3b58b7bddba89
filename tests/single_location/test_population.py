import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from pytest import approx
from scipy import special

from attlas.errors import InputError
from attlas.single_location import (
    ORACLE,
    Overlaps,
    SingleLocation,
    predict,
    risk,
    risk_gradient,
    risk_terms,
    sampled_risk,
)
from attlas.single_location.gates import Gate
from attlas.single_location.population import _draw_informative, draw_projected, heads_with
from tests.sampling import assert_mean_is, of_sample


def random_overlaps(seed, points=8):
    pairs = np.random.default_rng(seed).normal(size=(2, points, 4))
    k, v = pairs / np.linalg.norm(pairs, axis=-1, keepdims=True)
    return Overlaps.of(k, v, SingleLocation(dim=4))


TASKS = [
    (SingleLocation(5, 2, 0.9, 0.3), 1.2),
    (SingleLocation(60, 12, 0.5**0.5, 0.0), 0.2),
    (SingleLocation(400, 4, 1.4, 0.1), 0.05),
]


@pytest.mark.parametrize("samples", [2_000, 30_000, 300_000])
@pytest.mark.parametrize(("task", "lam"), TASKS)
def test_risk_analytic_equals_sampled(task, lam, samples):
    overlaps = random_overlaps(3)
    sampled = sampled_risk(task, overlaps, lam, jax.random.key(21), samples)
    assert_mean_is(risk(task, overlaps, lam), *sampled, most=3 * samples**-0.5)


def test_risk_is_the_mean_squared_error_of_the_layer_in_dimension_d():
    task = SingleLocation(dim=12, length=5, gamma=0.8, noise=0.2, key=jax.random.key(9))
    pairs = np.random.default_rng(5).normal(size=(2, 12))
    k, v = pairs / np.linalg.norm(pairs, axis=-1, keepdims=True)
    batch = task.sample(jax.random.key(1), 200_000)
    loss = np.asarray((predict(batch.tokens, k, v, 0.6) - batch.target) ** 2, float)
    expected = float(risk(task, Overlaps.of(k, v, task), 0.6))
    assert_mean_is(expected, *of_sample(loss), most=0.005)


@pytest.mark.parametrize("head", [None, Gate("tanh", 0.3)])
def test_projected_sequences_are_mixed_by_their_weights(head):
    """From the same random numbers, with all tokens at once: scores a and values b of correlation
    rho, and weights that are a softmax or a gate of the scores."""
    (task, _), overlaps, lam = TASKS[1], random_overlaps(6), np.linspace(0.5, 20, 8)
    prediction, target = draw_projected(
        np.random.default_rng(5), 50, task.constants, overlaps, lam, head
    )
    same = np.random.default_rng(5)
    first, value, expected = _draw_informative(same, 50, task.constants, overlaps)
    a, g = same.standard_normal((11, 2, 50)).swapaxes(0, 1)
    rho = np.asarray(overlaps.rho)[:, None, None]
    scores = np.concatenate([first[:, None], np.broadcast_to(a, (8, 11, 50))], 1)
    values = np.concatenate([value[:, None], rho * a + np.sqrt(1 - rho**2) * g], 1)
    lam = lam[:, None, None]
    weights = np.tanh(lam * scores - 0.3) if head else special.softmax(lam * scores, axis=1)
    assert prediction == approx((weights * values).sum(1), rel=1e-9, abs=1e-12)
    assert target == approx(expected)


@pytest.mark.parametrize("gate", ["tanh", "step", Gate("erf", 0.4)])
def test_the_risk_of_a_gate_is_its_sampled_one_and_not_that_of_erf(gate):
    (task, lam), overlaps = TASKS[0], random_overlaps(3)
    sampled = sampled_risk(task, overlaps, lam, jax.random.key(22), 30_000, gate)
    assert_mean_is(risk(task, overlaps, lam, gate), *sampled, most=0.02)
    assert (abs(sampled.mean - risk(task, overlaps, lam)) > 6 * sampled.error).any()


def test_the_distance_to_the_manifold_is_euclidean():
    x = Overlaps(0.3, 0.2, np.array([0.5, -0.2]), np.array([-0.4, 0.1]), np.array([0.1, -0.6]))
    assert x.distance == approx(np.sqrt([0.25 + 0.16 + 0.01, 0.04 + 0.01 + 0.36]))


def test_terms_sum_to_the_risk():
    overlaps = random_overlaps(1)
    task, lam = TASKS[1]
    assert np.asarray(sum(risk_terms(task, overlaps, lam))) == approx(
        np.asarray(risk(task, overlaps, lam)), abs=1e-14
    )


@pytest.mark.parametrize(("task", "lam"), TASKS)
def test_the_risk_is_the_same_with_both_vectors_reversed_and_in_the_mirror(task, lam):
    x = random_overlaps(4)
    whole = np.asarray(risk(task, x, lam))

    def with_sign_changed(*names):
        return np.asarray(
            risk(task, x._replace(**{name: -getattr(x, name) for name in names}), lam)
        )

    assert with_sign_changed("kappa", "nu", "theta", "eta") == approx(whole, rel=1e-12)
    assert with_sign_changed("theta", "eta", "rho") == approx(whole, rel=1e-12)
    assert abs(with_sign_changed("kappa", "eta", "rho") - whole).max() > 1e-3  # k alone


def test_length_enters_as_a_polynomial_of_degree_two():
    overlaps = random_overlaps(2)
    values = [
        np.asarray(risk(SingleLocation(30, length, 0.7), overlaps, 0.5)) for length in (3, 4, 5, 6)
    ]
    assert np.diff(values, n=3, axis=0) == approx(0, abs=1e-12)
    assert np.abs(np.diff(values, n=2, axis=0)).max() > 1e-3


@given(
    seed=integers(0, 1000),
    lam=floats(0.02, 3),
    gamma=floats(0.1, 2),
    length=integers(2, 20),
    dim=integers(4, 1000),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_closed_gradient_is_the_gradient_jointly_in_all_overlaps(seed, lam, gamma, length, dim):
    task = SingleLocation(dim, length, gamma)
    overlaps = random_overlaps(seed)
    with jax.enable_x64(True):
        automatic = jax.grad(lambda x: risk(task, x, lam).sum())(overlaps)
    closed = risk_gradient(task, overlaps, lam)
    for mine, its in zip(closed, automatic, strict=True):
        assert np.broadcast_to(mine, np.shape(its)) == approx(np.asarray(its), rel=1e-10, abs=1e-9)


def test_the_oracle_on_the_manifold_has_the_papers_values():
    task = SingleLocation()
    assert float(risk(task, ORACLE, 0.1)) == approx(0.1135, abs=1e-4)
    assert float(risk(task, Overlaps(0.0, 0.0, 0.0, 0.0, 0.0), 0.1)) == approx(0.6155, abs=1e-4)
    assert float(risk(task, Overlaps(1.0, -1.0, 0.0, 0.0, 0.0), 0.1)) == approx(2.0203, abs=1e-4)


@pytest.mark.parametrize(
    "overlaps",
    [
        Overlaps(1.0, 1.0, 0.5, 0.0, 0.0),
        Overlaps(0.0, 0.0, 0.0, 0.0, 1.5),
        Overlaps(0.8, 0.0, 0.0, 0.8, 0.0),
        Overlaps(np.array([0.0, 0.9]), 0.9, 0.0, 0.0, 0.9),
    ],
)
def test_overlaps_that_no_unit_vectors_have_are_refused(overlaps):
    for call in (risk, risk_gradient, lambda *args: sampled_risk(*args, jax.random.key(0), 100)):
        with pytest.raises(InputError, match="belong to no unit vectors"):
            call(SingleLocation(), overlaps, 0.1)


def test_overlaps_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match=r"nu=nan.*not finite"):
        risk(SingleLocation(), Overlaps(0.0, np.nan, 0.0, 0.0, 0.0), 0.1)


@pytest.mark.parametrize("lam", [0.0, -0.1, np.inf])
def test_a_sharpness_that_is_not_positive_is_refused(lam):
    with pytest.raises(InputError, match="lam = "):
        risk(SingleLocation(), ORACLE, lam)


def test_singular_heads_can_be_sampled_too():
    # k = v makes the Gram matrix of the projections singular.
    head = Overlaps(0.6, 0.0, 0.6, 0.0, 1.0)
    task = SingleLocation(20, 4)
    sampled = sampled_risk(task, head, 0.5, jax.random.key(1), 100_000)
    assert_mean_is(risk(task, head, 0.5), *sampled, most=0.005)


def test_random_numbers_do_not_depend_on_the_company_of_a_point():
    overlaps = random_overlaps(7)
    task, lam = TASKS[0]
    together, _ = sampled_risk(task, overlaps, lam, jax.random.key(2), 20_000)
    alone, _ = sampled_risk(
        task, Overlaps(*(x[3:4] for x in overlaps)), lam, jax.random.key(2), 20_000
    )
    assert np.asarray(together)[3] == approx(np.asarray(alone)[0], rel=1e-13)


def test_heads_have_the_overlaps_they_were_made_for():
    pairs = np.random.default_rng(1).normal(size=(2, 7, 20))
    task, (k, v) = SingleLocation(dim=20), pairs / np.linalg.norm(pairs, axis=-1, keepdims=True)
    overlaps = Overlaps.of(k, v, task)
    np.testing.assert_allclose(
        Overlaps.of(*heads_with(overlaps, 20), task), overlaps, rtol=0, atol=1e-14
    )
