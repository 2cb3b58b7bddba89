"""The descent without a compiler goes where the compiled one goes."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from attlas.quasi_newton import minimise
from attlas.single_location import bag_descent
from attlas.single_location.bag_descent import minimise_lanes
from tests.conftest import SEED
from tests.defaults import numbers_by_default


def bowls(point, args):
    """Quadratics with eigenvalues from 1 to 300 around centres of their own, and a quartic."""
    apart = (point - args["centre"]) @ args["turn"]
    return (args["size"] * apart**2).sum(-1) / 2 + (apart**4).sum(-1) / 10


def drawn(lanes=5, dim=7):
    rng = np.random.default_rng(SEED)
    centre, start = rng.normal(size=(2, lanes, dim))
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    return {"centre": centre, "turn": turn, "size": np.geomspace(1, 300, dim)}, start


def with_gradient(args):
    def objective(point, lanes):
        some = args | {"centre": args["centre"][lanes]}
        apart = (point - some["centre"]) @ args["turn"]
        slope = (args["size"] * apart + 0.4 * apart**3) @ args["turn"].T
        return bowls(point, some), slope

    return objective


def test_every_lane_comes_to_its_own_minimum():
    args, start = drawn()
    end = minimise_lanes(with_gradient(args), start, trips=300, tolerance=1e-7)
    assert end.settled.all()
    np.testing.assert_allclose(end.point, args["centre"], atol=1e-4)
    np.testing.assert_allclose(end.value, 0, atol=1e-8)


def test_it_takes_the_steps_of_the_compiled_descent(float64):
    args, start = drawn()
    inside = {name: jnp.asarray(x) for name, x in args.items()}
    for trips in (2, 5, 9, 14):
        compiled = minimise(bowls, jnp.asarray(start), inside, trips=trips, tolerance=1e-9)
        end = minimise_lanes(with_gradient(args), start, trips=trips, tolerance=1e-9)
        np.testing.assert_allclose(end.value, compiled.value, rtol=1e-6)
        np.testing.assert_allclose(end.point, compiled.point, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(end.steps, compiled.steps)


def test_a_valley_is_followed_as_far_as_scipy_follows_it():
    def objective(point, lanes):
        pairs = [(optimize.rosen(x), optimize.rosen_der(x)) for x in point]
        value, slope = zip(*pairs, strict=True)
        return np.array(value), np.array(slope)

    start = np.random.default_rng(SEED).normal(size=(4, 3))  # with four there are two minima
    end = minimise_lanes(objective, start, trips=400, tolerance=1e-6)
    theirs = [optimize.minimize(optimize.rosen, x, jac=optimize.rosen_der).fun for x in start]
    np.testing.assert_allclose(end.value, theirs, atol=1e-8)


def test_a_lane_that_has_settled_is_evaluated_no_more_and_keeps_its_place():
    args, start = drawn(lanes=3)
    start[1] = args["centre"][1]
    seen = []

    def objective(point, lanes):
        seen.append(lanes.tolist())
        return with_gradient(args)(point, lanes)

    end = minimise_lanes(objective, start, trips=200, tolerance=1e-6)
    assert seen[0] == [0, 1, 2] and [0, 2] in seen and seen.count([0, 1, 2]) <= 2
    np.testing.assert_allclose(end.point, args["centre"], atol=1e-3)
    assert end.steps[1] <= 1 and min(end.steps[[0, 2]]) > 3


def test_trips_that_run_out_are_told():
    args, start = drawn()
    assert not minimise_lanes(with_gradient(args), start, trips=3, tolerance=1e-9).settled.any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_function_that_is_nowhere_finite_but_at_the_start_ends_there(value):
    def objective(point, lanes):
        away = (point != 1).any(1)
        return np.where(away, value, 2.0), np.where(away[:, None], value, 1.0) * point

    end = minimise_lanes(objective, np.ones((2, 3)), trips=100, tolerance=1e-6)
    np.testing.assert_array_equal(end.point, 1)
    np.testing.assert_array_equal(end.value, 2)
    assert end.settled.all()


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(bag_descent) == []
