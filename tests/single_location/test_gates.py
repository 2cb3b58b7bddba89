import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy import optimize, special

from attlas.errors import InputError
from attlas.single_location import (
    ORACLE,
    Gate,
    Overlaps,
    SingleLocation,
    descend,
    gates,
    predict,
    risk,
    risk_gradient,
    risk_quadrature,
    risk_terms,
    sampled_risk,
    sphere_start,
)
from attlas.single_location.gates import ACTIVATIONS, best_gate_excess, oracle_excess, tuned_gate
from attlas.single_location.population import heads_with
from tests.defaults import numbers_by_default
from tests.sampling import assert_mean_is, of_sample

HEADS = Overlaps(
    *(np.array(x) for x in ([0.3, -0.5], [0.6, 0.2], [0.2, 0.4], [-0.4, 0.3], [0.1, -0.3]))
)
TASK = SingleLocation(dim=30, length=6, gamma=0.9, noise=0.2)


@functools.cache
def drawn():
    """Sequences for every gate: drawing them takes longer than all that is done with them."""
    return TASK.sample(jax.random.key(1), 200_000)


def _steep(x):
    return 8 * x


def test_a_gate_is_tuned_for_long_sequences_too():
    from attlas.single_location.baselines import linear_attention

    task = SingleLocation(40, 1000)
    for activation in ("identity", _steep):
        assert tuned_gate(task, activation, offset=False).excess == approx(
            linear_attention(task)[1], rel=1e-8
        )
    assert tuned_gate(task, "erf", offset=False).excess == approx(
        float(task.oracle_risk(task.best_lam())), rel=1e-6
    )


def test_the_quadrature_sees_its_own_tails():
    value, error = risk_quadrature(SingleLocation(10, 3), HEADS, 6.0, jnp.exp)
    assert not (error < 0.1 * abs(value)).any()


@pytest.mark.parametrize("lam", [0.001, 0.1, 3.0, 300.0])
def test_the_quadrature_of_erf_is_the_closed_form(lam):
    value, error = risk_quadrature(TASK, HEADS, lam, "erf")
    assert value == approx(risk(TASK, HEADS, lam), rel=1e-11)
    assert (error < 1e-7).all()
    closed, numeric = (
        risk_gradient(TASK, HEADS, lam),
        risk_gradient(TASK, HEADS, lam, Gate("erf", np.zeros(2))),
    )
    for name in Overlaps._fields:
        assert getattr(numeric, name) == approx(getattr(closed, name), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "step", "identity", jnp.sin])
def test_the_risk_of_a_gate_is_the_mean_loss_on_tokens(activation):
    gate = Gate(activation, 0.4)
    k, v = heads_with(HEADS, TASK.dim)
    batch = drawn()
    for i in range(2):
        loss = np.asarray((predict(batch.tokens, k[i], v[i], 0.8, gate) - batch.target) ** 2, float)
        exact = risk(TASK, HEADS, 0.8, gate)[i]
        assert_mean_is(exact, *of_sample(loss), most=0.007)


def test_the_sampled_twin_draws_projections_of_the_same_law():
    sampled = sampled_risk(TASK, HEADS, 0.8, jax.random.key(2), 200_000, Gate("relu", 0.2))
    assert_mean_is(risk(TASK, HEADS, 0.8, Gate("relu", 0.2)), *sampled, most=0.007)
    k, v = heads_with(HEADS, TASK.dim)
    batch = drawn()
    softmax = sampled_risk(TASK, HEADS, 2.0, jax.random.key(4), 200_000, "softmax")
    for i in range(2):
        loss = np.asarray(
            (predict(batch.tokens, k[i], v[i], 2.0, "softmax") - batch.target) ** 2, float
        )
        mean, error = of_sample(loss)
        assert_mean_is(mean, softmax.mean[i], np.hypot(error, softmax.error[i]), most=0.007)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "step"])
def test_derivatives_are_those_of_the_risk_for_a_jump_too(activation):
    gate, h = Gate(activation, 0.3), 1e-5
    partials = risk_gradient(TASK, HEADS, 0.7, gate)
    for name in Overlaps._fields:
        there, back = (HEADS._replace(**{name: getattr(HEADS, name) + s * h}) for s in (1, -1))
        slope = (risk(TASK, there, 0.7, gate) - risk(TASK, back, 0.7, gate)) / (2 * h)
        assert getattr(partials, name) == approx(slope, rel=1e-6, abs=1e-6)


def test_terms_sum_to_the_risk():
    assert sum(risk_terms(TASK, HEADS, 0.7, "tanh")) == approx(
        risk(TASK, HEADS, 0.7, "tanh"), rel=1e-12
    )


def test_linear_attention_is_a_gate_in_closed_form():
    from attlas.single_location.baselines import linear_attention

    for task in (SingleLocation(80, 10), SingleLocation(20, 4, 1.3)):
        lam, excess = linear_attention(task)
        assert risk(task, ORACLE, lam, "identity") == approx(excess, rel=1e-10)
        assert (
            risk(task, ORACLE, 1.01 * lam, "identity")
            > excess
            < risk(task, ORACLE, 0.99 * lam, "identity")
        )
        assert tuned_gate(task, "identity", offset=False).excess == approx(excess, rel=1e-8)


def test_linear_attention_does_not_tell_its_two_vectors_apart():
    # Its prediction is symmetric in k and v: the swapped point is a second optimum.
    swapped = Overlaps(HEADS.theta, HEADS.eta, HEADS.kappa, HEADS.nu, HEADS.rho)
    assert risk(TASK, swapped, 0.3, "identity") == approx(
        risk(TASK, HEADS, 0.3, "identity"), rel=1e-11
    )
    assert (abs(risk(TASK, swapped, 0.3) - risk(TASK, HEADS, 0.3)) > 0.04).all()


def test_a_threshold_has_a_closed_form_at_the_oracle():
    # Missed with probability Phi(-(m - t)/gamma), passed by another token with Phi(-t).
    task, t = SingleLocation(80, 10), 3.5
    exact = task.gamma**2 * special.ndtr(-(task.m - t) / task.gamma) + 9 * special.ndtr(-t)
    assert oracle_excess(task, 2.0, Gate("step", 2.0 * t)) == approx(exact, rel=1e-10)
    best = tuned_gate(task, "step")
    grid = task.gamma**2 * special.ndtr(
        -(task.m - np.linspace(2, 6, 4001)) / task.gamma
    ) + 9 * special.ndtr(-np.linspace(2, 6, 4001))
    assert best.excess == approx(grid.min(), rel=1e-6)


def test_the_oracle_excess_is_the_risk_without_cancellation():
    for name in ACTIVATIONS:
        gate = Gate(name, 1.0)
        assert oracle_excess(TASK, 0.6, gate) + TASK.noise**2 == approx(
            risk(TASK, ORACLE, 0.6, gate), rel=1e-10
        )


def test_no_gate_beats_the_best():
    for gamma in (0.5**0.5, 1.0, 1.4):
        task = SingleLocation(40, 10, gamma)
        best = best_gate_excess(task)
        for name in ("sigmoid", "relu", "step", "erf", "tanh"):
            assert tuned_gate(task, name).excess >= best * (1 - 1e-9)
    at_one = SingleLocation(40, 10, 1.0)
    sigmoid = oracle_excess(at_one, at_one.m, Gate("sigmoid", at_one.m**2 / 2 + math.log(9)))
    assert sigmoid == approx(best_gate_excess(at_one), rel=1e-10)


def test_gates_that_are_sharper_than_the_log_odds_are_found():
    """With a wide informative token the best sigmoid is 2.5 times as sharp as the log odds."""
    task = SingleLocation(100, 3, 3.0)
    odds, best = task.m / task.gamma**2, tuned_gate(task, "sigmoid")

    def excess(place):
        lam = math.exp(place[0])
        return float(oracle_excess(task, lam, Gate("sigmoid", lam * place[1])))

    start, options = [math.log(2 * odds), 0.2 * task.m], {"xatol": 1e-9, "fatol": 1e-12}
    found = optimize.minimize(excess, start, method="Nelder-Mead", options=options)
    assert best.lam > 2.4 * odds and best.lam == approx(math.exp(found.x[0]), rel=1e-3)
    assert best.excess == approx(found.fun, rel=1e-6)


def test_descent_works_with_a_gate_and_goes_downhill():
    task = SingleLocation(40, 5)
    best = tuned_gate(task, "sigmoid")
    start = sphere_start(task, jax.random.key(0), 3)
    path = descend(task, start, lam=1.0, step_size=2e-3, steps=400, activation=Gate("sigmoid", 2.0))
    assert (path["risk"].isel(step=-1) < path["risk"].isel(step=0)).all()
    assert (np.diff(path["risk"].values, axis=1) <= 1e-9).all()
    near = Overlaps(*(np.array([x]) for x in (0.99, 0.99, 0.0, 0.0, 0.0)))
    path = descend(task, near, lam=best.lam, step_size=1e-3, steps=2000, activation=best.gate)
    assert path["risk"].isel(step=-1).item() < 1.05 * best.excess + 1e-3


@pytest.mark.parametrize(
    ("activation", "says"),
    [
        ("tahn", "unknown activation 'tahn'. Did you mean tanh"),
        ("softmax", "softmax is no pointwise gate"),
        (lambda x: x.sum(), r"maps \(121,\) to \(\)"),
        (lambda x: 1 / (x - 0.5), "not finite at 0.5"),
        (lambda x: x > 0, "values of the type bool"),
        (jax.nn.softmax, "looks at other numbers than its own"),
        (lambda x: x / jnp.abs(x).max(), "looks at other numbers"),
        (np.tanh, "cannot be traced by JAX.*use jax.numpy"),
        (math.tanh, "cannot be traced by JAX"),
        (lambda x, y: x, "cannot be traced by JAX"),
        (Gate("tanh", "a"), "offset = 'a'"),
        (Gate("tanh", float("nan")), "offset = nan"),
    ],
)
def test_a_bad_activation_is_one_sentence(activation, says):
    with pytest.raises(InputError, match=says):
        risk(TASK, HEADS, 0.5, activation)


def test_a_gate_too_rough_for_the_quadrature_is_told():
    with pytest.warns(UserWarning, match="quadrature of this gate is off"):
        risk(TASK, HEADS, 5.0, lambda x: jnp.sin(40 * x) + jnp.where(x > 7.3, 1.0, 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        risk(TASK, HEADS, 5.0, "step")


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(gates) == ["Gate offset=0"]
