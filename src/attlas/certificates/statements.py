r"""Statements that interval arithmetic proves: formulas, each written from its theorem, on balls.

It stands alone beside `checker`: python-flint's balls of real and complex numbers, and nothing of
the package, whose formulas the tests compare with these.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from flint import acb, arb

from attlas.certificates.balls import (
    Balls,
    bell,
    erf,
    erfc,
    interval,
    monotone,
    owen,
    owen_at,
    positive,
    times,
    widths,
    zeta,
)
from attlas.certificates.boxes import (
    Box,
    overlaps_and_points,
    point_sides,
    positive_sides,
    sharp_heads,
    weights_and_moves,
)


class Statement(NamedTuple):
    """What is proved on a box.

    `prove(balls, box)` gives enclosures of quantities if the statement holds on all of the box, and
    None if that is not seen; `defined(box)` says what is not defined there, or nothing.
    """

    words: str
    parameters: tuple[str, ...]
    prove: Callable[[Balls, Box], dict[str, Any] | None]
    defined: Callable[[Box], str] = lambda box: ""
    precision: int = 80
    split: tuple[str, ...] = ()
    """The sides that matter, if not all do: others need not be split."""
    whole: Callable[[list[tuple[Box, dict[str, Any]]]], str] = lambda leaves: ""
    """What is wrong with all leaves together, or nothing."""


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


ABOVE = "rates above 0 across the manifold"
CRITICAL = "critical lam"


def sides_of_critical(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""How many of the three rates have a real part above 0; not said in narrow boxes where it is
    not seen.

    The rates are the zeros of $z^3 + a_1z^2 + a_2z + a_3$. There is none above 0 if
    $a_1, a_3 > 0$ and $a_1a_2 > a_3$ (Hurwitz). With $a_3 < 0$ their product is positive, so that
    there are one or three, and with $a_1 > 0$ one, since their sum is negative.
    """
    trace, minors, determinant = across_oracle(x)
    if positive(trace) and positive(determinant) and positive(trace * minors - determinant):
        return {ABOVE: arb(0)}
    if positive(-determinant):
        return {ABOVE: arb(1) if positive(trace) else arb(1).union(arb(3))}
    narrow = all(high - low <= CROSSING * high for low, high in box.values())
    return {CRITICAL: x["lam"]} if narrow else None


def one_crossing(leaves: list[tuple[Box, dict[str, Any]]]) -> str:
    """Along lam the oracle attracts first, then comes the critical sharpness, then it repels.

    The leaves that do not say what it does lie between two values of lam, inside the box. No leaf
    where it repels reaches below the first and none where it attracts above the second: so it
    attracts below and repels above, at every dim, length and gamma of the box.
    """
    unknown = [box["lam"] for box, found in leaves if CRITICAL in found]
    known = [(box["lam"], found[ABOVE] == 0) for box, found in leaves if ABOVE in found]
    attracts = [lam for lam, stable in known if stable]
    repels = [lam for lam, stable in known if not stable]
    if not unknown:
        return "" if not (attracts and repels) else "the oracle attracts and repels, with no change"
    low, high = min(a for a, _ in unknown), max(b for _, b in unknown)
    sides = [box["lam"] for box, _ in leaves]
    if low == min(a for a, _ in sides) or high == max(b for _, b in sides):
        return "it is not seen whether the oracle attracts at an end of the box in lam"
    again = any(a < low for a, _ in repels) or any(b > high for _, b in attracts)
    return "the oracle attracts again where it had repelled" if again else ""


def swapped_below_oracle(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""The risk of the oracle less that of the swapped point, in units of $\gamma^2$; what other
    tokens and noise add is the same in both.

    With $u = 2s^2/D^2$, $\zeta(0, s) = \frac2\pi\arcsin u$ and the best $\theta$ inside
    $(-1, 1)$ the swapped point has $\zeta(0, s) - u/\arcsin u$; at $\theta = 1$ it has
    $\zeta(0, s) - \frac4{\sqrt\pi}A + A^2D^2\zeta(0, s)/s^2$. The first is the minimum over all
    $\theta$, the second that over $\theta \le 1$ where the best is beyond.
    """
    w = widths(x)
    ends = (2 * s**2 / (1 + 2 * s**2) for s in (w.s.abs_lower(), w.s.abs_upper()))
    u = next(ends).union(next(ends))
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


def ends(x: Any) -> tuple[Any, Any]:
    """The lower and the upper end of a ball."""
    return x.lower(), x.upper()


def sink_margins(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""With $g = e^{\beta/2} = cT$ a bit that decides has the weight $g^4$, [CLS] $g^3$, another
    bit $g^2$ or 1.

    If no bit decides, the T bits have $Tg^2$ at most, and the output is at least
    $\frac{g - T}{g + T} = \frac{c-1}{c+1}$, which is attained and grows in c; if one does, it is at
    least $\frac{g-1}{g+1}$ on the other side, and no less for $T \ge 1$. The scores have the size
    $\beta = 2\ln cT$.
    """
    t, c = x["length"], x["sharpness"]
    low, high = ((end - 1) / (end + 1) for end in ends(c))
    if not (positive(low) and t >= 1):
        return None
    least, most = (2 * (end * size).log() for end, size in zip(ends(c), ends(t), strict=True))
    return {"margin": low.union(high), "size of the scores": least.union(most)}


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
        return most_of_erf(wide) ** 2 + most_of_zeta(wide)

    found = agreement_on_disc(difference, most, acb(middle), radius)
    return {"error at most": found} if found < TOLERANCE else None


def most_of_zeta(wide: Any) -> Any:
    r"""$|\zeta(t, s)|$ where $|\mathrm{Im}\,t|$ is no more than `wide`: $\mathrm{Re}\,h^2 \ge
    -2\,\mathrm{wide}^2$ in Owen's T, and $1 + a^2u^2$ from 1 to 2."""
    return 1 + 8 / (2 * arb.pi()) * (2 * wide**2).exp()


TOLERANCE = arb("1e-12")
"""How near the two sides of an identity must be."""


Moments = Mapping[tuple[int, int], Any]
r"""$I_{pj} = E[\mathrm{erf}(t + sG)^pG^j]$ by (p, j), of one token."""


def parts_of_risk(x: Balls, here: Moments, there: Moments) -> tuple[Any, Any, Any]:
    r"""L, H, E of the excess risk $\gamma^2 + L + (\ell-1)E(2H + (\ell-2)E)$ of $\ell$ tokens.

    Given the projection on k the other two projections of a token are Gaussian with linear means:
    L, H and E are linear in the moments of the informative token (`here`, at $t = \lambda m\kappa,
    s = \lambda\gamma$) and of another (`there`, at $t = 0, s = \lambda$).
    """
    gamma, others = x["gamma"], x["length"] - 1
    nu, mu, eta, rho = x["nu"], (x["dim"] / 2).sqrt() * x["theta"], x["eta"], x["rho"]
    slope, rest = rho * gamma, 1 - rho * rho  # (a ball around 0) ** 2 is not a number
    signal = (
        gamma**2 * (nu - rho * eta) * here[1, 0]
        + mu * eta * gamma * here[1, 1]
        + slope * eta * gamma * here[1, 2]
    )
    square = (
        (mu * mu + gamma**2 * rest) * here[2, 0]
        + 2 * mu * slope * here[2, 1]
        + slope * slope * here[2, 2]
    )
    elsewhere = others * (rest * there[2, 0] + rho * rho * there[2, 2])
    linear = square - 2 * signal + elsewhere
    return linear, mu * here[1, 0] + slope * here[1, 1], rho * there[1, 1]


def risk_is_its_quadrature(x: Balls, box: Box) -> dict[str, Any] | None:
    r"""The closed-form risk against integrals over one Gaussian, for all overlaps of the box.

    How far the closed form of each moment is from its integral, for all t of the box, bounds how
    far the two risks are apart: L, H and E move by their values at these differences, and
    $|I_{pj}| \le E|G|^j \le 1$ bounds H and E.
    """
    at, s = x["lam"] * (x["dim"] / 2).sqrt() * x["kappa"], x["lam"] * x["gamma"]
    if at.rad() > WIDEST:
        return None
    here = moments_apart(acb(at.mid()), arb(at.rad()), s)
    there = moments_apart(acb(0), arb(0), x["lam"])
    linear, value, elsewhere = parts_of_risk(x, here, there)
    others, one = x["length"] - 1, {name: arb(1) + off.abs_upper() for name, off in here.items()}
    _, most_here, most_there = parts_of_risk(x, either_sign(one), either_sign(one))
    most = 2 * most_here + (others - 1) * most_there
    move = 2 * value + (others - 1) * elsewhere
    found = abs(linear + others * (elsewhere * most + most_there * move)).upper()
    return {"error at most": found} if found < TOLERANCE else None


WIDEST = arb("0.5")
"""The radius of a disc from which on no bound is small."""


def either_sign(sizes: Moments) -> Moments:
    """Balls around 0 of these radii."""
    return {name: arb(0).union(size).union(-size) for name, size in sizes.items()}


def moments_apart(middle: Any, radius: Any, s: Any) -> Moments:
    r"""Balls of what moments can be off from their closed forms for all t of a disc.

    By Stein's lemma the moments are $f, sf', f + s^2f''$ with f the mean of erf or of its square.
    """
    d, e = (1 + 2 * s**2).sqrt(), (1 + 4 * s**2).sqrt()
    root = 2 / arb.pi().sqrt()

    def means(t: Any) -> tuple[list[Any], list[Any]]:
        """The means of erf and of its square with two derivatives each, but zeta."""
        e1 = root / d * (-((t / d) ** 2)).exp()
        e2 = -2 * t / d**2 * e1
        far = (t / (d * e)).erf()
        z2 = 2 * (e2 * far + e1 * root / (d * e) * (-((t / (d * e)) ** 2)).exp())
        return [(t / d).erf(), e1, e2], [acb(0), 2 * e1 * far, z2]

    def closed(t: Any, p: int, j: int) -> Any:
        f = means(t)[p - 1]
        if p == 2 and j != 1:
            f[0] = zeta_by_owen(t, s)
        return (f[0], s * f[1], f[0] + s**2 * f[2])[j]

    found = {}
    for p, j in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)):

        def difference(t: Any, p: int = p, j: int = j) -> Any:
            most = most_of_erf(abs(t.imag).upper()) ** p
            return closed(t, p, j) - gaussian_mean(lambda g: (t + s * g).erf() ** p * g**j, most)

        def most(wide: Any, p: int = p, j: int = j) -> Any:
            ends = arb(0).union(wide.upper()).union(-wide.upper())
            f = [abs(v).upper() for v in means(acb(ends, ends) + middle)[p - 1]]
            f[0] = most_of_erf(wide) if p == 1 else most_of_zeta(wide)
            return most_of_erf(wide) ** p + (f[0], s * f[1], f[0] + s**2 * f[2])[j]

        found[p, j] = agreement_on_disc(difference, most, middle, radius).upper()
    return either_sign(found)


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
        " all overlaps and lengths of the box.",
        ("kappa", "nu", "theta", "eta", "rho", "lam", "dim", "length", "gamma"),
        risk_is_its_quadrature,
        overlaps_and_points,
        80,
        ("kappa", "dim"),
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
        positive_sides("lam", "dim", "gamma"),
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
        sharp_heads("sparsity"),
    ),
    "sparse-variables/sink-margin": Statement(
        "The head with a sink is right on all inputs, with this margin, however many bits decide.",
        ("length", "sharpness"),
        sink_margins,
        sharp_heads("length"),
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
