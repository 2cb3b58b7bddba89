import numpy as np
import pytest

from attlas.order_parameters import (
    Heads,
    Overlaps,
    Places,
    Problem,
    ValueSum,
    equilibria,
    fixed_points,
    stability,
)
from attlas.order_parameters.equilibria import _free_directions
from attlas.single_location import SingleLocation
from attlas.single_location.reduction import as_problem
from tests.defaults import numbers_by_default


def test_the_oracle_of_linear_attention_is_a_minimum_and_zero_is_a_saddle():
    problem = Problem(Places(4, [2.0]), ValueSum(), Heads("linear"))
    size = (2 / 8) ** 0.5  # minimises 1 - 4 x + 8 x^2 in x = |k||v|, shared evenly
    m = np.stack([size * np.eye(2), 0 * np.eye(2)])
    found = stability(problem, Overlaps(m, m @ m.swapaxes(1, 2)), points=1 << 15)
    assert (found.speed < 0.05).all()
    top = found.rate.max("mode")
    assert top[0] < 0.05 and top[1] == pytest.approx(4, abs=0.1)
    start = Overlaps(m + 0.05, (m + 0.05) @ (m + 0.05).swapaxes(1, 2) + 0.01 * np.eye(2))
    near = fixed_points(problem, start, points=1 << 9)
    assert (near.speed < 1e-3).all() and near.risk[0] < 0.6 < near.risk[1]


def test_moves_that_keep_a_constraint_are_free_and_turns_outside_are_not():
    """Orthonormal columns: moves D with U D^T + D U^T = 0, less rotations outside the teacher's
    span."""
    rng = np.random.default_rng(0)
    u = np.linalg.qr(rng.normal(size=(5, 2)))[0].T
    basis = _free_directions(u, 2, "orthonormal").T.reshape(-1, *u.shape)
    for move in basis:
        np.testing.assert_allclose(u @ move.T + move @ u.T, 0, atol=1e-12)
    # 10 coordinates, 3 conditions, and 3 rotations of the other three dimensions.
    assert len(basis) == 10 - 3 - 3
    assert len(_free_directions(u, 2, "unit").T) == 10 - 2 - 3
    assert len(_free_directions(u, 2, "none").T) == 10 - 3


def test_growth_rates_come_with_the_largest_first():
    problem = Problem(Places(4, [2.0]), ValueSum(), Heads("linear"))
    m = 0 * np.eye(2)[None]
    rates = stability(problem, Overlaps(m, m), points=1 << 9).rate.values[0]
    assert (np.diff(rates[np.isfinite(rates)]) <= 0).all() and rates[0] > 3


def test_the_speed_of_a_fixed_point_is_the_length_of_its_gradient():
    """With a closed form, so that both are exact, and few trips, so that it is not at rest."""
    problem = as_problem(SingleLocation(dim=12, length=4), 0.8)
    start = Overlaps(0.4 * np.eye(2)[None], np.eye(2)[None])
    near = fixed_points(problem, start, constraint="unit", points=1, trips=3)
    here = Overlaps(near.m.values, near.q.values)
    wanted = stability(problem, here, constraint="unit", points=1).speed[0]
    assert wanted > 0.01 and near.speed[0] == pytest.approx(float(wanted))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(equilibria) == [
        "stability points=8192 seed=0",
        "fixed_points points=2048 trips=300 seed=0",
    ]
