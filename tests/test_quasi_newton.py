"""L-BFGS in lanes finds what SciPy's finds, and lanes do not disturb each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from attlas import quasi_newton
from attlas.quasi_newton import minimise
from tests.conftest import SEED
from tests.defaults import numbers_by_default

pytestmark = pytest.mark.usefixtures("float64")


def rosenbrock(point, scale):
    x = jnp.concatenate([point["a"], point["b"].reshape(point["b"].shape[0], -1)], 1)
    return (scale * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(-1)


def quadratic(x, args):
    matrix, vector = args
    return jnp.einsum("ai,aij,aj->a", x, matrix, x) / 2 - (x * vector).sum(-1)


def start(lanes):
    x = np.random.default_rng(SEED).normal(size=(lanes, 8))
    return {"a": x[:, :2], "b": x[:, 2:].reshape(lanes, 3, 2)}


def test_every_lane_ends_where_scipy_does():
    begun = start(5)
    found = minimise(rosenbrock, begun, 100.0, trips=1000, tolerance=1e-8)
    assert found.settled.all() and (found.slope < 1e-5).all()
    for lane in range(5):
        x0 = np.concatenate([begun["a"][lane], begun["b"][lane].ravel()])
        theirs = optimize.minimize(
            optimize.rosen,
            x0,
            jac=optimize.rosen_der,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        assert found.value[lane] == pytest.approx(theirs.fun, abs=1e-9)
        assert found.steps[lane] < 2 * theirs.nit


def test_a_lane_is_the_same_alone_and_among_others():
    # Few trips: on the way to the valley's floor rounding grows with each.
    together = minimise(rosenbrock, start(5), 100.0, trips=15)
    for lane in range(5):
        alone = minimise(
            rosenbrock,
            jax.tree.map(lambda x, lane=lane: x[lane : lane + 1], start(5)),
            100.0,
            trips=15,
        )
        np.testing.assert_allclose(alone.point["b"][0], together.point["b"][lane], rtol=1e-6)


def test_a_quadratic_is_solved():
    rng = np.random.default_rng(SEED)
    root = rng.normal(size=(3, 12, 12))
    matrix = root @ root.swapaxes(1, 2) + 0.1 * np.eye(12)
    vector = rng.normal(size=(3, 12))
    found = minimise(quadratic, np.zeros((3, 12)), (matrix, vector), trips=500, tolerance=1e-7)
    np.testing.assert_allclose(
        found.point, np.linalg.solve(matrix, vector[..., None])[..., 0], atol=1e-3
    )


def test_trips_bound_the_work_and_are_told_from_settling():
    found = minimise(rosenbrock, start(3), 100.0, trips=5, tolerance=1e-12)
    assert not found.settled.any() and (found.steps <= 5).all()


def test_a_start_at_the_bottom_stays_there():
    point = {"a": np.ones((2, 2)), "b": np.ones((2, 3, 2))}
    found = minimise(rosenbrock, point, 100.0)
    assert found.settled.all() and (found.value == 0).all()
    np.testing.assert_array_equal(found.point["a"], point["a"])


def kinked(x, slope):
    """A corner at the origin, from which no step leads down, and not a number beyond 3."""
    return jnp.where(x.max(-1) > 3, jnp.nan, slope * jnp.abs(x).sum(-1))


def by_hand(here, x, trips, tolerance):
    """One lane: Nocedal and Wright, Algorithms 7.4 and 3.1, an evaluation a trip."""
    memory, trip, steps = [], 1, 0
    value, slope = here(x)
    scale = max(1, abs(value))
    done = np.abs(slope).max() <= tolerance * scale
    first = min(1, 1 / np.sqrt(slope @ slope + 1e-300))
    length, ahead = first, -slope
    while trip < trips and not done:
        trip += 1
        there, gradient = here(x + length * ahead)
        predicted = length * slope @ ahead
        if there <= value + 1e-4 * predicted and np.isfinite(gradient).all():
            move, bend = length * ahead, gradient - slope
            if move @ bend > 1e-10 * bend @ bend:
                memory = [*memory, (move, bend)][-10:]
            scale, steps = max(1, abs(there)), steps + 1
            done = value - there <= tolerance**2 * scale
            done |= np.abs(gradient).max() <= tolerance * scale
            steep = gradient @ ahead < 0.9 * (slope @ ahead)
            x, value, slope = x + length * ahead, there, gradient
            if steep:
                length *= 2
                continue
        elif length >= 1e-12:
            fit = predicted / (2 * (predicted - (there - value)))
            length *= np.clip(fit if np.isfinite(fit) else 0.1, 0.1, 0.5)
            continue
        else:
            memory, done = [], not memory
        ahead, shares = -slope, []
        for move, bend in memory[::-1]:
            shares.append(move @ ahead / (move @ bend))
            ahead = ahead - shares[-1] * bend
        if memory:
            move, bend = memory[-1]
            ahead = ahead * (move @ bend) / (bend @ bend)
        for move, bend in memory:
            ahead = ahead + (shares.pop() - bend @ ahead / (move @ bend)) * move
        first = min(1, 1 / np.sqrt(slope @ slope + 1e-300))
        length = 1.0 if memory else first
    return x, value, np.abs(slope).max(), steps, done


def flat_rosenbrock(x, scale):
    return rosenbrock({"a": x[:, :2], "b": x[:, 2:]}, scale)


@pytest.mark.parametrize(
    ("objective", "args", "factor"),
    [(flat_rosenbrock, 100.0, 1.0), (flat_rosenbrock, 3e-7, 2.0), (kinked, 0.3, 3.0)],
)
def test_a_lane_takes_the_steps_of_the_algorithm(objective, args, factor):
    begun = factor * np.random.default_rng(SEED).normal(size=(3, 4))
    compiled = jax.jit(jax.value_and_grad(lambda x: objective(x[None], args)[0]))

    def here(x):
        return [np.asarray(part) for part in compiled(x)]

    for trips, tolerance in ((1, 1e-6), (2, 1e-6), (4, 1e-6), (17, 1e-6), (200, 1e-3)):
        found = minimise(objective, begun, args, trips=trips, tolerance=tolerance)
        for lane in range(3):
            told = by_hand(here, begun[lane], trips, tolerance)
            for ours, theirs in zip(found, told, strict=True):
                np.testing.assert_allclose(ours[lane], theirs, rtol=1e-6, atol=1e-9)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(quasi_newton) == ["minimise trips=300 tolerance=1e-06"]
