import equinox as eqx
import jax
import numpy as np
import pytest

from attlas import order_parameters
from attlas.schedules import InverseDecay
from attlas.single_location import Gate, Overlaps, SingleLocation, descend, risk, sampled_risk
from attlas.single_location.reduction import as_matrices, as_problem, five_overlaps

TASK = SingleLocation(dim=9, length=4, gamma=0.8, noise=0.2)


@pytest.fixture(scope="module")
def heads():
    k, v = np.random.default_rng(1).normal(size=(2, 3, 9))
    k, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (k, v))
    return Overlaps.of(k, v, TASK)


def sampled(problem):
    return eqx.tree_at(lambda x: x.exact, problem, None)


@pytest.mark.parametrize("activation", ["erf", Gate("sigmoid", 0.7), "tanh"])
def test_the_closed_form_is_the_risk_and_so_is_that_on_fields(heads, activation):
    problem = as_problem(TASK, 0.7, activation)
    wanted = np.asarray(risk(TASK, heads, 0.7, activation))
    there = as_matrices(heads)
    np.testing.assert_allclose(order_parameters.risk(problem, there).mean, wanted, rtol=1e-12)
    value, error = order_parameters.risk(sampled(problem), there, points=1 << 14)
    assert (abs(value - wanted) < 5 * error).all() and (error < 0.05).all()


def test_a_softmax_has_no_closed_form(heads):
    problem = as_problem(TASK, 1.5, "softmax")
    assert problem.exact is None
    value, error = order_parameters.risk(problem, as_matrices(heads), points=1 << 14)
    wanted, spread = sampled_risk(TASK, heads, 1.5, jax.random.key(0), 40_000, "softmax")
    assert (abs(value - wanted) < 5 * np.hypot(error, spread)).all()


def test_descent_with_schedules_is_that_of_the_special_case(heads):
    lam, size = InverseDecay(0.9, 0.01), InverseDecay(0.02, 0.005)
    options = {"step_size": size, "steps": 60, "record_every": 20}
    wanted = descend(TASK, heads, lam=lam, **options)
    given = order_parameters.descend(
        as_problem(TASK, lam), as_matrices(heads), constraint="unit", **options
    )
    five = five_overlaps(given)
    for name in Overlaps._fields:
        np.testing.assert_allclose(five[name], wanted[name], atol=1e-12)
    np.testing.assert_allclose(given["risk"], wanted["risk"], atol=1e-12)
    assert list(five["status"]) == ["completed"] * 3
