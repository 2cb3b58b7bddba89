"""The formulas that certificates rest on, against the package's."""

import numpy as np
import pytest
from flint import acb, arb

from attlas import gaussian
from attlas.certificates import checker, statements
from attlas.single_location import ORACLE, SingleLocation, risk
from attlas.single_location.landscape import corner_rate, jacobian, stability, swapped_point
from attlas.single_location.population import Overlaps
from attlas.sparse_variables import SparseBoolean
from attlas.sparse_variables.construction import threshold_head


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


def test_closed_form_and_quadrature_are_the_packages_risk(monkeypatch):
    seen = []
    monkeypatch.setattr(
        statements, "agreement_on_disc", lambda f, most, middle, radius: seen.append(f) or arb(0)
    )
    overlaps = {"kappa": 0.4, "nu": 0.5, "theta": 0.25, "eta": -0.3, "rho": 0.2}
    values = {"lam": 0.5, "dim": 8, "length": 6, "gamma": 1.25}
    box = {name: (statements.Fraction(repr(v)),) * 2 for name, v in (overlaps | values).items()}
    statements.risk_is_its_quadrature(balls(**overlaps, **values), box)
    closure = dict(zip(seen[0].__code__.co_freevars, seen[0].__closure__, strict=True))
    closed = closure["closed"].cell_contents(acb("0.4"))
    task = SingleLocation(dim=8, length=6, gamma=1.25)
    expected = risk(task, Overlaps(**overlaps), 0.5) - task.gamma**2
    assert float(closed.real.mid()) == pytest.approx(expected, rel=1e-12)
    assert abs(seen[0](acb("0.4"))) < arb("1e-12")


def test_zeta_is_the_packages():
    for t, s in ((0.3, 0.5), (1.7, 2.0)):
        found = float(statements.zeta(arb(repr(t)), arb(repr(s))).mid())
        assert found == pytest.approx(float(gaussian.float64(gaussian.zeta)(t, s)), abs=1e-14)
        at_0 = float(statements.zeta_at_0(arb(repr(s))).mid())
        assert at_0 == pytest.approx(float(gaussian.float64(gaussian.zeta)(0.0, s)), abs=1e-14)


def test_the_margin_is_that_of_the_constructed_head():
    task = SparseBoolean(length=20, support=(2, 5, 11), function="majority")
    found = statements.threshold_margins(balls(sparsity=3, sharpness=2.0), {})["margin"]
    made = threshold_head(task, sharpness=2.0).worst_margin()
    assert float(found.mid()) == pytest.approx(made, rel=1e-12)


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
