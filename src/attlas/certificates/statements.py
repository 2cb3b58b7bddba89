r"""Statements that interval arithmetic proves: formulas, each written from its theorem, on balls.

It stands alone beside `checker`: python-flint's balls of real and complex numbers, and nothing of
the package, whose formulas the tests compare with these.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from flint import acb, arb, fmpq

Box = dict[str, tuple[Fraction, Fraction]]
"""Ends of each side, by the parameter's name."""

Balls = Mapping[str, Any]
"""The sides as balls of real numbers."""


class Statement(NamedTuple):
    """What is proved on a box.

    `prove(balls, box)` gives enclosures of quantities if the statement holds on all of the box, and
    None if that is not seen; `defined(balls)` says what is not defined there, or nothing.
    """

    words: str
    parameters: tuple[str, ...]
    prove: Callable[[Balls, Box], dict[str, Any] | None]
    defined: Callable[[Balls], str] = lambda balls: ""
    precision: int = 80
    split: tuple[str, ...] = ()
    """The sides that matter, if not all do: others need not be split."""
    whole: Callable[[list[tuple[Box, dict[str, Any]]]], str] = lambda leaves: ""
    """What is wrong with all leaves together, or nothing."""


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
    ends = (h.upper(), a.lower()), (h.lower(), a.upper())
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


def five_fixed_points(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""Exactly five zeros of the flow on $[-1, 1]^2$, and their types.

    $\dot\kappa = -(1-\kappa^2)R_\kappa$ and $\dot\nu = -(1-\nu^2)R_\nu$ with $R_\kappa$ a positive
    multiple of $F_1 = \mathrm{erf}(A\kappa/E) - \nu$ and $R_\nu$ a negative one of
    $F_2 = \mathrm{erf}(A\kappa)$. The corners are zeros. On the edges no other is, since $F_2$ does
    not vanish at $\kappa = \pm1$ nor $F_1$ at $\nu = \pm1$. Inside, $F_2$ excludes
    $|\kappa| \ge r$, and $F_1$ excludes $|\kappa| \le r, |\nu| \ge q$; in the rest Krawczyk's
    operator maps the box into its interior, so that it holds one zero, the origin.
    """
    w = widths(x)
    if not w.a.rad() < w.a / 8:  # so that the enclosures are narrow
        return None
    r, q = arb((1 / (4 * w.a.upper())).mid()), arb("0.5")
    if not (positive(w.a) and positive(erfc(w.a / w.e)) and positive(1 - r)):
        return None
    inner = arb(0).union(r).union(-r)
    # erf grows: the ends of kappa decide.
    if not (positive(erf(w.a.lower() * r)) and positive(q - erf(w.a.upper() * r / w.e.lower()))):
        return None
    # Krawczyk at the origin, where F = 0: K(X) = (I - C J(X)) X with C the inverse of a midpoint J.
    first, second = w.a / w.e * bell(w.a * inner / w.e), w.a * bell(w.a * inner)
    c1, c2 = arb((w.a / w.e * bell(arb(0))).mid()), arb((w.a * bell(arb(0))).mid())
    in_kappa = abs(1 - second / c2) * r
    in_nu = abs(first - c1 * second / c2) * r
    if not (positive(r - in_kappa) and positive(q - in_nu)):
        return None
    g2, near, far = 4 * x["gamma"] ** 2, bell(w.a), w.a / w.e
    if not all(map(positive, (g2, near, far, erfc(far)))):
        return None
    along_nu = times(g2, erf(w.a))
    attracts, repels = (times(g2, w.a, near, x) for x in (erfc(far), 1 + erf(far)))
    # The saddle's rates (-h - root) / 2 and (-h + root) / 2 = 2 c^2 / (h + root).
    c, h = (times(g2, *x, bell(arb(0)) / 2) for x in ((w.a,), (w.a, far, bell(arb(0)))))
    sums = [h + (h**2 + 4 * c**2).sqrt() for c, h in zip(c, h, strict=True)]
    out = [2 * c**2 / (h + (h**2 + 4 * c**2).sqrt()) for c, h in ((c[0], h[1]), (c[1], h[0]))]
    return {
        "fixed points": arb(5),
        "rate at (1, 1) in kappa": (-attracts[1], -attracts[0]),
        "rate at (1, 1) in nu": (-along_nu[1], -along_nu[0]),
        "rate at (1, -1) in kappa": repels,
        "rate at (1, -1) in nu": along_nu,
        "rate out of the saddle": (out[0], out[1]),
        "rate into the saddle": (-sums[1] / 2, -sums[0] / 2),
    }


def across_oracle(x: Balls) -> tuple[Any, Any, Any]:
    r"""Coefficients $a_1, a_2, a_3$ of $\det(z + BH + K)$, $\dot x = -(BH + K)x$ across the
    manifold at the oracle, $x = (\theta, \eta, \rho)$.

    From the risk by Stein's lemma: the second derivatives H, the metric B of the two spheres, and
    the slopes K along them.
    """
    w, lam, g2 = widths(x), x["lam"], x["gamma"] ** 2
    others = x["length"] - 1
    e0, e1 = erf(w.a), bell(w.a) / w.d
    e2 = -2 * w.a / w.d * e1
    far = erf(w.a / w.e)
    z0 = zeta(lam * w.m, w.s)
    z1 = 2 * e1 * far
    z2 = 2 * (e2 * far + e1 * bell(w.a / w.e) / (w.d * w.e))
    wide, wider = (1 + 2 * lam**2).sqrt(), (1 + 4 * lam**2).sqrt()
    c = lam * bell(arb(0)) / wide
    q = lam**2 * 2 * bell(arb(0)) ** 2 / (wide**2 * wider)
    slope_k, slope_n = lam * w.m * g2 * 2 * e1 * (far - 1), -2 * g2 * e0
    tt, te = 2 * w.m**2 * z0, -2 * g2 * lam * w.m * e1
    tr = 2 * lam * g2 * w.m * z1 + 2 * others * c * w.m * e0
    er = -2 * (g2 * lam) ** 2 * e2
    rr = (
        2 * (lam * g2) ** 2 * z2
        + 2 * others * (q + (others - 1) * c**2)
        + 4 * others * c * g2 * lam * e1
    )
    hessian = [[tt, te, tr], [te, arb(0), er], [tr, er, rr]]
    metric = [[1, 0, 1], [0, 1, 1], [1, 1, 2]]
    slopes = [[-slope_n, 0, 0], [0, -slope_k, 0], [slope_k, slope_n, -(slope_k + slope_n)]]
    n = [
        [sum(metric[i][k] * hessian[k][j] for k in range(3)) + slopes[i][j] for j in range(3)]
        for i in range(3)
    ]
    minors = sum(n[i][i] * n[j][j] - n[i][j] * n[j][i] for i, j in ((0, 1), (0, 2), (1, 2)))
    determinant = sum(
        n[0][i] * (n[1][(i + 1) % 3] * n[2][(i + 2) % 3] - n[1][(i + 2) % 3] * n[2][(i + 1) % 3])
        for i in range(3)
    )
    return n[0][0] + n[1][1] + n[2][2], minors, determinant


CROSSING = Fraction(1, 10**5)
"""How wide, relative to its ends, each side of a box may be that holds the critical sharpness."""


def sides_of_critical(x: Balls, box: Box) -> dict[str, Any] | None:
    """Whether the oracle attracts across the manifold (Hurwitz), or a rate is positive; in narrow
    boxes either."""
    trace, minors, determinant = across_oracle(x)
    if positive(trace) and positive(determinant) and positive(trace * minors - determinant):
        return {"_attracts": arb(1)}
    if positive(-determinant):
        return {"_repels": arb(1)}
    narrow = all(high - low <= CROSSING * high for low, high in box.values())
    return {"critical lam": x["lam"]} if narrow else None


def one_crossing(leaves: list[tuple[Box, dict[str, Any]]]) -> str:
    """Along lam the oracle attracts first, then comes the critical sharpness, then it repels."""
    order = {"_attracts": 0, "critical lam": 1, "_repels": 2}
    ranks = [order[next(iter(found))] for _, found in sorted(leaves, key=lambda x: x[0]["lam"])]
    return "" if ranks == sorted(ranks) else "the oracle attracts again where it had repelled"


def swapped_below_oracle(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""The risk of the oracle less that of the swapped point, in units of $\gamma^2$; what other
    tokens and noise add is the same in both.

    With $u = 2s^2/D^2$, $\zeta(0, s) = \frac2\pi\arcsin u$ and the best $\theta$ inside
    $(-1, 1)$ the swapped point has $\zeta(0, s) - u/\arcsin u$; at $\theta = 1$ it has
    $\zeta(0, s) - \frac4{\sqrt\pi}A + A^2D^2\zeta(0, s)/s^2$. The first is the minimum over all
    $\theta$, the second that over $\theta \le 1$ where the best is beyond.
    """
    w = widths(x)
    u = monotone(lambda s: 2 * s**2 / (1 + 2 * s**2), w.s)
    arc = monotone(arb.asin, u)
    at_0 = 2 / arb.pi() * arc
    curvature = 4 / arb.pi() * monotone(lambda v: v.asin() / v, u)  # D^2 zeta(0, s) / s^2
    best = bell(arb(0)) / (w.a * curvature)
    inside = at_0 - monotone(lambda v: v / v.asin(), u)
    at_end = at_0 - 2 * w.a * bell(arb(0)) + w.a**2 * curvature
    if best < 1:
        swapped = inside
    elif best > 1:
        swapped = at_end
    else:  # theta is 1 or inside: where it is inside the value is no larger than at the end
        swapped = at_end.union(inside)
    oracle = 1 - 8 * owen(arb(2).sqrt() * w.a, 1 / w.e) - 2 * erf(w.a)
    gap = oracle - swapped
    return {"gap in units of gamma^2": gap} if positive(gap) else None


def threshold_margins(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""The head's level with k relevant ones is $(kc + \psi)/(sc + 1)$, where $\psi$ from 0 to 1 is
    the share of irrelevant ones. Between two numbers of ones it rises by at least
    $(c - 1)/(sc + 1)$, twice the margin, over all inputs; that grows in c and falls in s.
    """
    s, c = x["sparsity"], x["sharpness"]
    ends = (s.upper(), c.lower()), (s.lower(), c.upper())
    low, high = ((c - 1) / (2 * (s * c + 1)) for s, c in ends)
    return {"margin": low.union(high)} if positive(low) else None


def sharp_softmax(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""How far a set of tokens of weight p can gain when scores move by d at most, below
    $\tanh\frac d2$.

    It gains most if its scores rise by d and the others fall by d:
    $p' = pq^2/(pq^2 + 1 - p)$ with $q = e^d$, and the move in $\ell_1$ is $2(p' - p)$. The rest
    $\tanh\frac d2 - (p' - p) = \frac{q-1}{q+1}\frac{(p(q+1) - 1)^2}{pq^2 + 1 - p}$ is never
    negative, and 0 at $p = 1/(q+1)$: a polynomial identity of degree 3 at most in each, which
    holds if it does at four values of each.
    """
    for p, q in ((Fraction(i), Fraction(j)) for i in range(2, 6) for j in range(2, 6)):
        gained = p * (1 - p) * (q**2 - 1)
        left = (q - 1) * (p * q**2 + 1 - p) - gained * (q + 1)
        if left != (q - 1) * (p * (q + 1) - 1) ** 2:
            return None
    p, q = x["weight"], x["distance"].exp()
    total = p * q**2 + 1 - p
    off = p * (q + 1) - 1
    factor = (q - 1) / ((q + 1) * total)
    if not positive(total):
        return None
    low, high = arb(0).max(factor.lower()), factor.upper()
    rest = low * off.abs_lower() ** 2, high * off.abs_upper() ** 2
    return {"rest": rest} if rest[1] < 2 else None  # so that it is narrow


def falling_corner_rate(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""The rate $4\gamma^2A\,\mathrm{erf}'(A)\,\mathrm{erfc}(A/E)$ at the corner falls in lam: its
    logarithmic derivative is below 0."""
    w, lam = widths(x), x["lam"]
    b = w.a / w.e
    da = 1 / (lam * w.d**2)  # of log A in lam, since A = lam m / D
    db = da - 4 * lam * x["gamma"] ** 2 / w.e**2
    tail = monotone(lambda v: v * bell(v) / v.erfc(), b)  # Mills' ratio falls: its inverse grows
    slope = da * (1 - 2 * w.a**2) - tail * db
    return {"logarithmic slope in lam": slope} if positive(-slope) else None


# Two analytic functions that agree at points of a circle agree on the disc, up to a rest.

POINTS, RATIO = 32, 6


def agreement_on_disc(
    difference: Callable[[Any], Any], most: Callable[[Any], Any], middle: Any, radius: Any
) -> Any:
    r"""A bound on |f| over the disc around `middle`.

    With $|f| \le M$ on the disc that is `RATIO` times as wide, the Taylor coefficients beyond N are
    below $M\rho^{-k}$, and those below N are means of f over N points of the circle, up to such
    rests: $|f| \le N\max_j|f(w_j)| + \frac{2M\rho^{-N}}{1 - 1/\rho}$. f is real on the real line:
    half of the points suffice.
    """
    roots = (acb(0, 2 * arb.pi() * j / POINTS).exp() for j in range(POINTS // 2 + 1))
    at_points = [abs(difference(middle + radius * root)) for root in roots]
    seen = at_points[0]
    for value in at_points[1:]:
        seen = seen.max(value)
    rest = 2 * most(RATIO * radius) * arb(RATIO) ** -POINTS / (1 - arb(1) / RATIO)
    return POINTS * seen.upper() + rest


REACH = 16
"""Where integrals against the Gaussian end: the rest is bounded."""


def gaussian_mean(function: Callable[[Any], Any], most: Any) -> Any:
    """The mean of an entire function of a standard normal, which on the real line is at most
    `most` (1 + g^4) in modulus."""

    def integrand(g: Any, analytic: bool) -> Any:
        return function(g) * (-(g**2) / 2).exp()

    # From REACH on, (1 + g^4) exp(-g^2 / 2) is below g exp(-g^2 / 4).
    rest = 4 * most * (-(arb(REACH) ** 2) / 4).exp()
    found = acb.integral(integrand, -REACH, REACH)
    off = acb(arb(0, rest.upper()), arb(0, rest.upper()))
    return (found + off) / (2 * arb.pi()).sqrt()


def most_of_erf(imaginary: Any) -> Any:
    r"""$|\mathrm{erf}(u + iv)| \le 1 + \frac2{\sqrt\pi}|v|e^{v^2}$."""
    return 1 + 2 / arb.pi().sqrt() * imaginary * (imaginary**2).exp()


def zeta_by_owen(t: Any, s: Any) -> Any:
    """Zeta at complex t."""
    d, e = (1 + 2 * s**2).sqrt(), (1 + 4 * s**2).sqrt()
    return 1 - 8 * owen_at(acb(2).sqrt() * t / d, acb(1 / e))


def zeta_is_its_integral(x: Balls, box: Box) -> dict[str, Any] | None:
    """Zeta by Owen's T against the integral that defines it, for all t of the box at one spread."""
    s, (low, high) = x["spread"], box["t"]
    middle, radius = (
        interval((low + high) / 2, (low + high) / 2),
        interval(high - low, high - low) / 2,
    )

    def difference(t: Any) -> Any:
        most = most_of_erf(radius.upper()) ** 2
        return zeta_by_owen(t, s) - gaussian_mean(lambda g: (t + s * g).erf() ** 2, most)

    def most(wide: Any) -> Any:
        # Re h^2 >= -2 wide^2 / D^2, and 1 + a^2 u^2 from 1 to 1 + 1/E^2 <= 2.
        return most_of_erf(wide) ** 2 + 1 + 8 / (2 * arb.pi()) * (2 * wide**2).exp()

    found = agreement_on_disc(difference, most, acb(middle), radius)
    return {"error at most": found} if found < TOLERANCE else None


TOLERANCE = arb("1e-12")
"""How near the two sides of an identity must be."""


def risk_is_its_quadrature(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""The closed-form risk against integrals over one Gaussian, for all kappa of the box.

    Given $a = \langle X, k\rangle$ the other two projections of a token are Gaussian with linear
    means, so that the risk is a sum of integrals of erf and its square against polynomials in a.
    """
    low, high = box["kappa"]
    middle, radius = (
        interval((low + high) / 2, (low + high) / 2),
        interval(high - low, high - low) / 2,
    )
    m, lam, gamma = (x["dim"] / 2).sqrt(), x["lam"], x["gamma"]
    nu, theta, eta, rho = (x[name] for name in ("nu", "theta", "eta", "rho"))
    others, g2 = x["length"] - 1, gamma**2
    mu, s = m * theta, lam * g2

    def smoothed(t: Any, spread: Any) -> tuple[list[Any], list[Any]]:
        """The means of erf and of its square at t with two derivatives each, closed form."""
        d, e = (1 + 2 * spread**2).sqrt(), (1 + 4 * spread**2).sqrt()
        root = 2 / arb.pi().sqrt()
        e1 = root / d * (-((t / d) ** 2)).exp()
        e2 = -2 * t / d**2 * e1
        far = (t / (d * e)).erf()
        z2 = 2 * (e2 * far + e1 * root / (d * e) * (-((t / (d * e)) ** 2)).exp())
        return [(t / d).erf(), e1, e2], [zeta_by_owen(t, spread), 2 * e1 * far, z2]

    (_, b1, _), (q0, _, q2) = smoothed(acb(0), lam)

    def closed(kappa: Any) -> Any:
        (e0, e1, e2), (z0, z1, z2) = smoothed(lam * m * kappa, lam * gamma)
        here, elsewhere = mu * e0 + s * rho * e1, lam * b1 * rho
        signal = g2 * (nu * e0 + lam * eta * (mu * e1 + s * rho * e2))
        square = (mu**2 + g2) * z0 + 2 * s * rho * mu * z1 + (s * rho) ** 2 * z2
        rest = others * (q0 + (lam * rho) ** 2 * q2)
        return (
            square - 2 * signal + rest + others * elsewhere * (2 * here + (others - 1) * elsewhere)
        )

    weight = (m + 2 * gamma + 2) ** 2 * (2 + abs(nu))

    def quadrature(kappa: Any, erf_most: Any) -> Any:
        def mean(power: int, polynomial: Callable[[Any], Any]) -> Any:
            gate = lambda g: (lam * (m * kappa + gamma * g)).erf() ** power  # noqa: E731
            return gaussian_mean(lambda g: gate(g) * polynomial(g), weight * erf_most**2)

        def elsewhere(power: int, polynomial: Callable[[Any], Any]) -> Any:
            return gaussian_mean(lambda g: (lam * g).erf() ** power * polynomial(g), arb(4))

        value = lambda g: mu + rho * gamma * g  # noqa: E731
        signal = mean(1, lambda g: value(g) * eta * gamma * g + g2 * (nu - rho * eta))
        square = mean(2, lambda g: value(g) ** 2 + g2 * (1 - rho**2))
        here, there = mean(1, value), elsewhere(1, lambda g: rho * g)
        rest = others * elsewhere(2, lambda g: (rho * g) ** 2 + 1 - rho**2)
        return square - 2 * signal + rest + others * there * (2 * here + (others - 1) * there)

    def difference(kappa: Any) -> Any:
        return closed(kappa) - quadrature(kappa, most_of_erf(lam * m * radius.upper()))

    def most(wide: Any) -> Any:
        disc = acb(arb(0, wide.upper()), arb(0, wide.upper())) + acb(middle)
        moved = lam * m * wide
        count = 16 * (1 + others) ** 2 * weight
        zeta_most = 1 + 8 / (2 * arb.pi()) * (2 * moved**2).exp()
        (e0, e1, e2), (_, z1, z2) = smoothed_bounds(disc)
        powers = (1 + mu.abs_upper() + g2 + s.abs_upper() + lam) ** 4
        total = zeta_most + sum(abs(v).upper() for v in (e0, e1, e2, z1, z2))
        return count * most_of_erf(moved) ** 2 + 8 * (1 + others) ** 2 * powers * total

    def smoothed_bounds(disc: Any) -> tuple[list[Any], list[Any]]:
        d, e = (1 + 2 * (lam * gamma) ** 2).sqrt(), (1 + 4 * (lam * gamma) ** 2).sqrt()
        t, root = lam * m * disc, 2 / arb.pi().sqrt()
        e1 = root / d * (-((t / d) ** 2)).exp()
        e2 = -2 * t / d**2 * e1
        far = (t / (d * e)).erf()
        z2 = 2 * (e2 * far + e1 * root / (d * e) * (-((t / (d * e)) ** 2)).exp())
        return [(t / d).erf(), e1, e2], [acb(0), 2 * e1 * far, z2]

    found = agreement_on_disc(difference, most, acb(middle), radius)
    return {"error at most": found} if found < TOLERANCE else None


def positive_sides(*names: str) -> Callable[[Balls], str]:
    def defined(x: Balls) -> str:
        wrong = [name for name in names if not positive(x[name])]
        return f"{wrong[0]} must be above 0" if wrong else ""

    return defined


def point_sides(free: str, *names: str) -> Callable[[Balls], str]:
    """All sides but one are single numbers."""

    def defined(x: Balls) -> str:
        wide = [n for n in x if n != free and x[n].rad() > abs(x[n]).upper() * arb(2) ** -60]
        wrong = positive_sides(*names)(x)
        return f"{wide[0]} must be a single number" if wide else wrong

    return defined


def overlaps_and_points(x: Balls) -> str:
    """Overlaps are from -1 to 1, and there are two tokens or more."""
    wrong = point_sides("kappa", "lam", "dim", "gamma")(x)
    names = ("kappa", "nu", "theta", "eta", "rho")
    large = [name for name in names if not x[name].abs_upper() < 1 + arb(2) ** -40]
    few = "" if x["length"].lower() > arb(2) - arb(2) ** -40 else "length must be 2 or more"
    return wrong or (f"{large[0]} must be from -1 to 1" if large else few)


def weights_and_moves(x: Balls) -> str:
    inside = x["weight"].lower() >= 0 and x["weight"].upper() <= 1
    wrong = "" if inside else "weight must be from 0 to 1"
    return wrong or ("" if x["distance"].lower() > 0 else "distance must be above 0")


def sharp_heads(x: Balls) -> str:
    wrong = positive_sides("sparsity")(x)
    return wrong or ("" if positive(x["sharpness"] - 1) else "sharpness must be above 1")


STATEMENTS: dict[str, Statement] = {
    "single-location/zeta": Statement(
        "The closed form of zeta and the integral that defines it differ by no more than the error"
        " for all t of the box.",
        ("t", "spread"),
        zeta_is_its_integral,
        point_sides("t", "spread"),
        64,
    ),
    "single-location/closed-form-risk": Statement(
        "The closed-form risk and integrals over one Gaussian differ by no more than the error for"
        " all kappa of the box.",
        ("kappa", "nu", "theta", "eta", "rho", "lam", "dim", "length", "gamma"),
        risk_is_its_quadrature,
        overlaps_and_points,
        64,
    ),
    "single-location/manifold-fixed-points": Statement(
        "On the manifold the flow has exactly five fixed points: (1, 1) and (-1, -1) attract,"
        " (1, -1) and (-1, 1) repel, and the origin is a saddle.",
        ("lam", "dim", "length", "gamma"),
        five_fixed_points,
        positive_sides("lam", "dim", "gamma"),
        split=("lam", "dim", "gamma"),
    ),
    "single-location/critical-lambda": Statement(
        "The oracle attracts across the manifold below the critical sharpness and repels above it.",
        ("lam", "dim", "length", "gamma"),
        sides_of_critical,
        point_sides("lam", "lam", "dim", "gamma"),
        whole=one_crossing,
    ),
    "single-location/swapped-beats-oracle": Statement(
        "The swapped point has a lower risk than the oracle.",
        ("lam", "dim", "gamma"),
        swapped_below_oracle,
        positive_sides("lam", "dim", "gamma"),
    ),
    "single-location/corner-rate": Statement(
        "The rate at the oracle's corner falls as the sharpness grows.",
        ("lam", "dim", "gamma"),
        falling_corner_rate,
        positive_sides("lam", "dim", "gamma"),
    ),
    "sparse-variables/threshold-margin": Statement(
        "The threshold head is right on all inputs, with this margin, whatever the length.",
        ("sparsity", "sharpness"),
        threshold_margins,
        sharp_heads,
    ),
    "sparse-variables/softmax-sharp": Statement(
        "When scores move by the distance, no set of tokens of this weight gains more than"
        " tanh(distance / 2); what is left of that is the rest.",
        ("weight", "distance"),
        sharp_softmax,
        weights_and_moves,
    ),
}
"""By the claim that they prove a part of."""
