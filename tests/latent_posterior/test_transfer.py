import numpy as np
import pytest
from pytest import approx
from scipy import linalg

from attlas.errors import InputError
from attlas.latent_posterior import condition_number, coverage_number
from attlas.latent_posterior.transfer import _fitted

RNG = np.random.default_rng(12)
T, D = RNG.normal(size=(7, 5)), RNG.normal(size=(3, 5))


def ratio(direction, t=T, d=D):
    return ((d @ direction) ** 2).sum() / ((t @ direction) ** 2).sum()


def test_it_is_the_largest_generalised_eigenvalue_and_its_witness_attains_it():
    found = condition_number(T, D)
    assert found.value == approx(linalg.eigh(D.T @ D, T.T @ T, eigvals_only=True)[-1], rel=1e-10)
    assert ratio(found.witness) == approx(found.value, rel=1e-10)
    assert max(ratio(direction) for direction in RNG.normal(size=(5000, 5))) <= found.value
    assert found.loose >= found.value and found.rank == found.dim == 5 and not found.reason
    assert found.loose == approx(np.linalg.norm(D, 2) ** 2 / np.linalg.svd(T)[1][-1] ** 2)


def test_downstream_is_the_pretraining_times_a_matrix_of_that_norm():
    short = RNG.normal(size=(2, 5))
    found = condition_number(short, np.array([[2.0, -1.0]]) @ short)
    assert found.value == approx(5.0) and found.rank == 2 and found.loose == np.inf
    assert ratio(found.witness, short, np.array([[2.0, -1.0]]) @ short) == approx(5.0)


def test_equal_operators_have_the_condition_number_one():
    assert condition_number(T, T).value == approx(1.0)


def test_blind_pretraining_has_an_infinite_one_with_the_reason():
    blind = T @ np.diag([1.0, 1, 1, 1, 0])
    found = condition_number(blind, D)
    assert found.value == np.inf and "4 of 5 directions" in found.reason
    assert abs(blind @ found.witness).max() < 1e-12 < abs(D @ found.witness).max()
    assert np.isfinite(condition_number(blind, D @ np.diag([1.0, 1, 1, 1, 0])).value)
    assert condition_number(np.zeros((2, 3)), np.eye(3)).value == np.inf
    assert condition_number(np.zeros((2, 3)), np.zeros((1, 3))).value == 0


@pytest.mark.parametrize("units", [(1e-9, 1e9), (1e9, 1e-9), (1e12, 1e12)])
def test_units_do_not_matter(units):
    turned = np.linalg.qr(RNG.normal(size=(5, 5)))[0] @ np.diag([1.0, 1, 1, 1, 0])
    turned = turned @ np.linalg.qr(RNG.normal(size=(5, 5)))[0]  # blind to rounding only
    blind, reads = T @ turned, D @ turned
    plain, scaled = condition_number(blind, reads), condition_number(*_scaled(units, blind, reads))
    assert plain.rank == scaled.rank == 4 and np.isfinite(plain.value)
    assert scaled.value == approx(plain.value * (units[1] / units[0]) ** 2, rel=1e-6)
    assert np.isinf(condition_number(*_scaled(units, blind, D)).value)


def _scaled(units, *operators):
    return [unit * operator for unit, operator in zip(units, operators, strict=True)]


def test_on_the_simplex_only_directions_that_sum_to_zero_count():
    # Both see the total, which two probability vectors share.
    t = np.vstack([RNG.normal(size=(3, 4)), 1e-6 * np.ones(4)])
    d = np.ones((1, 4))
    assert condition_number(t, d).value > 1e-3
    found = condition_number(t, d, simplex=True)
    assert found.value == approx(0, abs=1e-20) and found.dim == 3
    found = condition_number(t, np.eye(4), simplex=True)
    assert found.witness.sum() == approx(0, abs=1e-12)
    tangent = linalg.null_space(np.ones((1, 4)))
    expected = linalg.eigh(np.eye(3), (t @ tangent).T @ (t @ tangent), eigvals_only=True)[-1]
    assert found.value == approx(expected, rel=1e-8)


def test_it_can_be_estimated_from_targets_given_features():
    features = RNG.normal(size=(40, 5))
    exact = condition_number(features @ T.T, features @ D.T, features=features)
    assert exact.value == approx(condition_number(T, D).value, rel=1e-8)
    many = RNG.normal(size=(100_000, 5))
    noisy = condition_number(many @ T.T + RNG.normal(size=(100_000, 7)), many @ D.T, features=many)
    assert noisy.value == approx(exact.value, rel=0.05)


def test_the_coverage_number_bounds_every_loss():
    before, after = RNG.dirichlet(np.ones(6), 2)
    number = coverage_number(before, after)
    losses = RNG.exponential(size=(1000, 6))
    assert (losses @ after <= number * (losses @ before)).all()
    assert number == approx((after / before).max())
    assert coverage_number([1.0, 0.0], [0.5, 0.5]) == np.inf
    assert coverage_number([0.5, 0.5], [1.0, 0.0]) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: condition_number(T, D[:, :4]), "reads 5 entries and downstream 4"),
        (lambda: condition_number(T, np.full((1, 5), np.nan)), "downstream has an entry"),
        (lambda: condition_number(np.ones((0, 5)), D), "must be a matrix"),
        (
            lambda: condition_number(np.ones((6, 2)), np.ones((5, 2)), features=np.ones((6, 1))),
            "downstream has 5 rows",
        ),
        (
            lambda: condition_number(
                np.ones((3, 2)), np.ones((3, 2)), features=RNG.normal(size=(3, 4))
            ),
            "not full rank",
        ),
        (lambda: coverage_number([1.0], [0.5, 0.5]), "two lists of one length"),
        (lambda: coverage_number([0.5, 0.5], [0.5, 0.6]), "downstream has the least entry"),
    ],
)
def test_bad_input_is_told_in_a_sentence(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_noisy_targets_that_do_not_show_a_direction_are_blind_to_it():
    features = RNG.normal(size=(1000, 4))
    shown, reads = np.diag([1.0, 1, 1, 0]), np.array([[0.0, 0, 0, 1]])
    found = condition_number(
        features @ shown + 0.1 * RNG.normal(size=(1000, 4)), features @ reads.T, features=features
    )
    assert np.isinf(found.value) and "sees 3 of 4" in found.reason
    seen = condition_number(
        features @ shown, features[:, 0] + 0.1 * RNG.normal(size=1000), features=features
    )
    assert seen.value == approx(1, abs=0.1)


def test_what_chance_alone_makes_of_an_operator_by_hand():
    features, targets = RNG.normal(size=(50, 4)), RNG.normal(size=(50, 9))
    operator, blur = _fitted(features, targets)
    assert approx(np.linalg.inv(features.T @ features) @ features.T @ targets) == operator.T
    residual = np.sqrt(((targets - features @ operator.T) ** 2).sum() / (46 * 9))
    least = np.sqrt(np.linalg.eigvalsh(features.T @ features)[0])
    assert blur == approx(2 * residual * (2 + 3) / least)
