"""The formulas that certificates rest on, against the package's."""

import numpy as np
import pytest
from flint import acb, arb
from scipy.special import erf

from attlas import gaussian
from attlas.certificates import checker, statements
from attlas.single_location import ORACLE, SingleLocation, risk
from attlas.single_location.landscape import corner_rate, jacobian, stability, swapped_point
from attlas.single_location.population import Overlaps
from attlas.sparse_variables import SparseBoolean
from attlas.sparse_variables.construction import sink_head, threshold_head


def balls(**values):
    return {name: arb(repr(value)) for name, value in values.items()}


TASKS = [
    {"lam": 0.1, "dim": 400, "length": 10, "gamma": 0.5**0.5},
    {"lam": 0.9, "dim": 80, "length": 5, "gamma": 1.2},
    {"lam": 0.4, "dim": 20, "length": 3, "gamma": 0.6},
]


def task_of(values):
    return SingleLocation(**{name: v for name, v in values.items() if name != "lam"})


@pytest.mark.parametrize("values", TASKS)
def test_formulas_are_those_of_the_package(values):
    x, task, lam = balls(**values), task_of(values), values["lam"]
    found = statements.five_fixed_points(x, {})
    rates = np.linalg.eigvals(np.asarray(gaussian.float64(jacobian)(task.constants, ORACLE, lam)))
    middle = {name: v[0] if isinstance(v, tuple) else v for name, v in found.items()}
    in_kappa = float(middle["rate at (1, 1) in kappa"].mid())
    assert in_kappa == pytest.approx(-corner_rate(task, lam), rel=1e-9)
    assert abs(rates - float(middle["rate at (1, 1) in nu"].mid())).min() < 1e-8
    origin = stability(task, Overlaps(0.0, 0.0, 0.0, 0.0, 0.0), lam)
    for name in ("rate out of the saddle", "rate into the saddle"):
        assert abs(origin - float(middle[name].mid())).min() < 1e-8 * abs(origin).max()
    trace, minors, determinant = (float(v.mid()) for v in statements.across_oracle(x))
    across = -np.asarray(gaussian.float64(jacobian)(task.constants, ORACLE, lam))[2:, 2:]
    assert trace == pytest.approx(np.trace(across), rel=1e-9)
    assert determinant == pytest.approx(np.linalg.det(across), rel=1e-7)
    assert minors == pytest.approx((trace**2 - np.trace(across @ across)) / 2, rel=1e-8)


@pytest.mark.parametrize("values", [TASKS[0] | {"lam": 0.05}, TASKS[0] | {"lam": 0.07}])
def test_the_gap_is_that_of_the_risks(values):
    task, lam = task_of(values), values["lam"]
    found = statements.swapped_below_oracle(balls(**values), {})["gap in units of gamma^2"]
    gap = risk(task, ORACLE, lam) - risk(task, swapped_point(task, lam), lam)
    assert float(found.mid()) == pytest.approx(gap / task.gamma**2, rel=1e-9)


def test_the_slope_of_the_corner_rate_is_a_difference():
    task, h = task_of(TASKS[0]), 1e-6
    found = statements.falling_corner_rate(balls(**TASKS[0]), {})["logarithmic slope in lam"]
    ends = [np.log(corner_rate(task, 0.1 + x)) for x in (-h, h)]
    assert float(found.mid()) == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=1e-6)


def quadrature(t, s):
    """The moments of a token by Gauss and Hermite's rule."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    moment = lambda p, j: float(weights @ (erf(t + s * nodes) ** p * nodes**j))  # noqa: E731
    return {(p, j): moment(p, j) for p in (1, 2) for j in (0, 1, 2)}


def test_the_parts_of_the_risk_are_the_packages_risk():
    overlaps = {"kappa": 0.4, "nu": 0.5, "theta": 0.25, "eta": -0.3, "rho": 0.2}
    task, lam = SingleLocation(dim=8, length=6, gamma=1.25), 0.5
    x = balls(**overlaps, lam=lam, dim=8, length=6, gamma=1.25)
    here = quadrature(lam * task.m * overlaps["kappa"], lam * task.gamma)
    linear, value, elsewhere = statements.parts_of_risk(x, here, quadrature(0, lam))
    found = task.gamma**2 + linear + 5 * elsewhere * (2 * value + 4 * elsewhere)
    assert float(found.mid()) == pytest.approx(risk(task, Overlaps(**overlaps), lam), rel=1e-10)


def test_what_risks_are_apart_by_is_seen(monkeypatch):
    off = {(1, 0): arb("1e-3"), (1, 1): arb("2e-3"), (1, 2): arb(0)}
    off |= {(2, 0): arb("1e-3"), (2, 1): arb(0), (2, 2): arb("3e-3")}
    monkeypatch.setattr(statements, "TOLERANCE", arb(100))
    monkeypatch.setattr(statements, "moments_apart", lambda *place: statements.either_sign(off))
    overlaps = {"kappa": 0.4, "nu": 0.5, "theta": 0.25, "eta": -0.3, "rho": 0.2}
    x = balls(**overlaps, lam=0.5, dim=8, length=6, gamma=1.25)
    most = statements.risk_is_its_quadrature(x, {})["error at most"]
    here, there = quadrature(0.4, 0.625), quadrature(0.0, 0.5)

    def excess(moved):
        shifted = [{n: v + moved * float(off[n]) for n, v in m.items()} for m in (here, there)]
        linear, value, elsewhere = statements.parts_of_risk(x, *shifted)
        return float((linear + 5 * elsewhere * (2 * value + 4 * elsewhere)).mid())

    for moved in (-1, 1):
        assert 0 < abs(excess(moved) - excess(0)) <= most


@pytest.mark.parametrize("t, s", [("0.4", "0.625"), ("-1.4", "0.07"), ("0", "0.5")])
def test_moments_are_their_closed_forms(t, s):
    with checker.precision(80):
        found = statements.moments_apart(acb(t), arb("0.01"), arb(s))
    assert set(found) == {(p, j) for p in (1, 2) for j in (0, 1, 2)}
    assert all(abs(v).upper() < arb("1e-18") for v in found.values())


def test_a_moment_that_is_not_its_closed_form_is_seen(monkeypatch):
    right = statements.zeta_by_owen
    monkeypatch.setattr(statements, "zeta_by_owen", lambda t, s: right(t, s) + arb("1e-9"))
    found = statements.moments_apart(acb("0.4"), arb("0.01"), arb("0.5"))
    seen = {name for name, off in found.items() if abs(off).upper() > arb("1e-9")}
    assert seen == {(2, 0), (2, 2)}


def test_the_margin_is_that_of_the_constructed_head():
    task = SparseBoolean(length=20, support=(2, 5, 11), function="majority")
    found = statements.threshold_margins(balls(sparsity=3, sharpness=2.0), {})["margin"]
    made = threshold_head(task, sharpness=2.0).worst_margin()
    assert float(found.mid()) == pytest.approx(made, rel=1e-12)


def test_the_margin_of_the_head_with_a_sink_is_that_of_the_constructed_one():
    task = SparseBoolean(length=20, support=(2, 5, 11), function="or")
    found = statements.sink_margins(balls(length=20, sharpness=4.0), {})["margin"]
    made = sink_head(task, sharpness=4.0).worst_margin()
    assert float(found.mid()) == pytest.approx(made, rel=1e-12)
    assert statements.sink_margins(balls(length=20, sharpness=0.9), {}) is None
    assert statements.sink_margins(balls(length=0.5, sharpness=4.0), {}) is None


def test_the_rest_of_the_softmax_bound_vanishes_at_balance():
    q = np.exp(0.7)
    for p, least in ((1 / (q + 1), 0.0), (0.2, 0.003)):
        low, high = statements.sharp_softmax(balls(weight=float(p), distance=0.7), {})["rest"]
        gained = p * q**2 / (p * q**2 + 1 - p) - p
        assert float(low) >= 0 and float(high) >= least
        assert float(high) == pytest.approx(np.tanh(0.35) - gained, abs=1e-15)


def test_a_bound_on_the_disc_holds_for_a_known_function():
    with checker.precision(64):
        found = statements.agreement_on_disc(
            lambda z: z * acb("1e-9"), lambda wide: arb("1e-9") * wide, acb(0), arb("0.5")
        )
    assert arb("0.5e-9") < found < arb("1e-7")


LEAF = {"dim": (400, 400)}


@pytest.mark.parametrize(
    "words, wrong",
    [
        ("aa?rr", ""),
        ("aaa", ""),
        ("rrr", ""),
        ("a?", "not seen"),
        ("?r", "not seen"),
        ("?", "not seen"),
        ("ar", "no change"),
        ("ra", "no change"),
        ("ar?r", "again"),
        ("a?ar?r", ""),  # all of it between the first and the last that are not known
        ("a?ra", "again"),
        ("r?a", "again"),
    ],
)
def test_the_critical_sharpness_lies_between_leaves_that_attract_and_that_repel(words, wrong):
    found = {"a": {statements.ABOVE: arb(0)}, "r": {statements.ABOVE: arb(1)}}
    found["?"] = {statements.CRITICAL: arb(1)}
    leaves = [(LEAF | {"lam": (i, i + 1)}, found[word]) for i, word in enumerate(words)]
    assert wrong in statements.one_crossing(leaves) and bool(wrong) == bool(
        statements.one_crossing(leaves)
    )
