"""Balls of real numbers, and the functions of them that statements are made of."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from flint import acb, arb, fmpq

Balls = Mapping[str, Any]
"""The sides of a box as balls."""


def interval(low: Fraction, high: Fraction) -> Any:
    """The smallest ball that is sure to hold both ends."""
    ends = [arb(fmpq(x.numerator, x.denominator)) for x in (low, high)]
    return ends[0].union(ends[1])


def positive(x: Any) -> bool:
    """Whether all of a ball is above 0."""
    return bool(x > 0)


# The single-location task on the manifold: m = sqrt(dim / 2), s = lam gamma, D^2 = 1 + 2 s^2,
# E^2 = 1 + 4 s^2, A = lam m / D.


class Widths(NamedTuple):
    m: Any
    s: Any
    d: Any
    e: Any
    a: Any


def widths(x: Balls) -> Widths:
    m, s = (x["dim"] / 2).sqrt(), x["lam"] * x["gamma"]
    d, e = (1 + 2 * s**2).sqrt(), (1 + 4 * s**2).sqrt()
    return Widths(m, s, d, e, x["lam"] * m / d)


def monotone(function: Callable[[Any], Any], x: Any) -> Any:
    """The values of a rising or falling function on a ball, from those at its ends."""
    return function(x.lower()).union(function(x.upper()))


Ends = tuple[Any, Any]
"""A lower and an upper end, where a ball would lose the sign of what is small."""


def times(*factors: Any) -> Ends:
    """A product of positive balls, from their ends."""
    low, high = arb(1), arb(1)
    for factor in factors:
        low, high = low * factor.lower(), high * factor.upper()
    return low, high


def erf(x: Any) -> Any:
    return monotone(arb.erf, x)


def erfc(x: Any) -> Any:
    return monotone(arb.erfc, x)


def bell(x: Any) -> Any:
    """The derivative of erf, which falls with the modulus of x."""
    root = 2 / arb.pi().sqrt()
    nearest, furthest = x.abs_lower(), x.abs_upper()
    return root * (-(nearest**2)).exp().union((-(furthest**2)).exp())


def owen(h: Any, a: Any) -> Any:
    r"""Owen's $T(h, a) = \frac1{2\pi}\int_0^a e^{-h^2(1+x^2)/2}\frac{dx}{1+x^2}$, h and a >= 0.

    It falls in h and grows in a: the values at two corners enclose it on balls.
    """
    # A ball of a product of positive ones may reach below 0, where T is even in h.
    ends = (h.abs_upper(), a.abs_lower()), (h.abs_lower(), a.abs_upper())
    low, high = (owen_at(acb(h), acb(a)).real for h, a in ends)
    return low.union(high)


def owen_at(h: Any, a: Any) -> Any:
    """Owen's T at complex points."""

    def integrand(u: Any, analytic: bool) -> Any:
        wide = 1 + (a * u) ** 2
        return (-(h**2) * wide / 2).exp() / wide

    return a / (2 * acb.pi()) * acb.integral(integrand, 0, 1)


def zeta(t: Any, s: Any) -> Any:
    """E erf(t + s G)^2 by Owen's T, on balls of real numbers with t >= 0."""
    d, e = (1 + 2 * s**2).sqrt(), (1 + 4 * s**2).sqrt()
    return 1 - 8 * owen(arb(2).sqrt() * t / d, 1 / e)


def zeta_at_0(s: Any) -> Any:
    """E erf(s G)^2."""
    square = 2 * s**2
    return 2 / arb.pi() * (square / (1 + square)).asin()
