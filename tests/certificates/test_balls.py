import pytest
from flint import acb, arb

from attlas import gaussian
from attlas.certificates import balls


def test_zeta_is_the_packages():
    for t, s in ((0.3, 0.5), (1.7, 2.0)):
        found = float(balls.zeta(arb(repr(t)), arb(repr(s))).mid())
        assert found == pytest.approx(float(gaussian.float64(gaussian.zeta)(t, s)), abs=1e-14)
        at_0 = float(balls.zeta_at_0(arb(repr(s))).mid())
        assert at_0 == pytest.approx(float(gaussian.float64(gaussian.zeta)(0.0, s)), abs=1e-14)


def test_balls_that_reach_below_0_by_rounding_lose_no_values():
    # A product of wide positive balls is one that reaches below 0, as h does here.
    wide = arb("0.1").union(arb("1.9"))
    h = wide * wide
    assert h.lower() < 0
    found = balls.owen(h, arb(1))
    for value in ("0.01", "0.2", "1", "3.6"):
        inside = balls.owen_at(acb(value), acb(1)).real
        assert found.contains(inside), value


def test_widths_are_those_of_the_formulas():
    x = {name: arb(value) for name, value in {"dim": 18, "lam": "0.4", "gamma": "1.5"}.items()}
    found = [float(part.mid()) for part in balls.widths(x)]
    d, e = (1 + 2 * 0.6**2) ** 0.5, (1 + 4 * 0.6**2) ** 0.5
    assert found == pytest.approx([3, 0.6, d, e, 0.4 * 3 / d], abs=1e-15)
