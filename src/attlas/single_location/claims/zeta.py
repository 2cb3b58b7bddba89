"""Claims about zeta, the one special function of the risk."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims.compat import (
    Agreement,
    Control,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import sampled_zeta, stream, zeta, zeta_derivatives
from attlas.single_location.claims.shared import FIGURES, SAMPLES, column

ARGUMENTS = (
    Hypothesis("spread > 0", lambda s: s.spread > 0, defining=True),
    Hypothesis("reach > 0", lambda s: s.reach > 0, defining=True),
)


def zeta_points(
    cells: Sequence[Setting], key: Array
) -> tuple[Float[np.ndarray, "cell point"], Float[np.ndarray, "cell point"]]:
    """Arguments (t, s) of zeta: s the cell's spread, t random in even strata up to `reach` widths of the smoothed step."""
    spread = np.repeat(column(cells, "spread")[:, None], cells[0].points, axis=1)
    points = cells[0].points
    uniform = (np.arange(points) + stream(key).random(points)) / points
    return column(cells, "reach")[:, None] * (2 * uniform - 1) * np.sqrt(1 + 2 * spread**2), spread


def wrong_slope(evidence: xr.Dataset) -> xr.Dataset:
    t, spread = evidence["t"], evidence["s"]
    owen = special.owens_t(
        np.sqrt(2) * t / np.sqrt(1 + 2 * spread**2), 1.05 / np.sqrt(1 + 4 * spread**2)
    )
    return evidence.assign(predicted=1 - 8 * owen + 0 * evidence["predicted"])


@claim(
    "single-location/zeta",
    source="attlas",
    reference="the function zeta of Theorem 1",
    statement=r"$\zeta(t, s) = E[\mathrm{erf}(t + sG)^2] = 1 - 8\,T\Big(\frac{\sqrt2\,t}{\sqrt{1+2s^2}},"
    r" \frac{1}{\sqrt{1+4s^2}}\Big)$ with $G \sim N(0,1)$ and Owen's $T$.",
    words="The mean square of a smoothed error function has a closed form.",
    hypotheses=(
        *ARGUMENTS,
        SAMPLES,
        Hypothesis(
            "reach <= 2: beyond it plain sampling does not see the rare events that are left",
            lambda s: s.reach <= 2,
        ),
    ),
    quick=Setting(spread=(0.1, 0.5, 1.0, 2.0), reach=1.5, points=32, samples=100_000),
    paper=Setting(spread=(0.1, 0.5, 1.0, 2.0), reach=1.5, points=32, samples=2_000_000),
    rule=Agreement(rounding=1e-13),
    control=Control("the second argument of Owen's T is 5 % too large", wrong_slope),
    figure=drawn_by(f"{FIGURES}.risk:zeta_curves"),
    cells=together("spread"),
    shape=("points", "samples"),
    budget="samples",
    origin="ours",
)
def closed_zeta(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    t, spread = zeta_points(cells, key_for(seed, "single-location/zeta", "points"))
    sampled = sampled_zeta(
        t, spread, key_for(seed, "single-location/zeta", "samples"), cells[0].samples
    )
    # The trapezoidal rule is exact to rounding for an entire integrand with Gaussian decay.
    g = np.linspace(-10, 10, 4001)
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    integrand = special.erf(t[..., None] + spread[..., None] * g) ** 2 * density
    quadrature = scipy.integrate.trapezoid(integrand, g)
    return xr.Dataset(
        {
            "predicted": (("cell", "point"), zeta(t, spread)),
            "measured": (("route", "cell", "point"), np.stack([quadrature, sampled.mean])),
            "error": (("route", "cell", "point"), np.stack([0 * quadrature, sampled.error])),
            "t": (("cell", "point"), t),
            "s": (("cell", "point"), spread),
        },
        coords={"route": ["quadrature", "simulation"]},
    )


def one_cross_term(evidence: xr.Dataset) -> xr.Dataset:
    return evidence.assign(predicted=evidence["predicted"] - evidence["cross_term"])


@claim(
    "single-location/zeta-derivatives",
    source="attlas",
    reference="derivatives of zeta",
    statement=r"With $u = t/D$, $D^2 = 1 + 2s^2$, $E^2 = 1 + 4s^2$: $\zeta_t = \frac2D\,\mathrm{erf}'(u)\,\mathrm{erf}(u/E)$,"
    r" and $\zeta_{tt}, \zeta_{ttt}$ follow by Leibniz' rule.",
    words="The derivatives of zeta that the gradient of the risk needs are elementary.",
    hypotheses=ARGUMENTS,
    quick=Setting(spread=(0.1, 0.5, 1.0, 2.0), reach=4.0, points=64),
    paper=Setting(spread=(0.1, 0.5, 1.0, 2.0), reach=4.0, points=64),
    rule=Agreement(rounding=1e-12),
    control=Control(
        "the mixed term of the third derivative is counted once instead of twice", one_cross_term
    ),
    figure=drawn_by(f"{FIGURES}.risk:zeta_derivative_curves"),
    cells=together("spread"),
    shape=("points",),
    budget="points",
    needs=("single-location/zeta",),
    origin="ours",
)
def derivatives_of_zeta(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    t, spread = zeta_points(cells, key_for(seed, "single-location/zeta-derivatives", "points"))
    derivative: Callable[..., Array] = zeta
    automatic = []
    for _ in range(3):
        derivative = jax.grad(derivative)
        automatic.append(jax.jit(jnp.vectorize(derivative))(t, spread))
    d, e = np.sqrt(1 + 2 * spread**2), np.sqrt(1 + 4 * spread**2)
    u = t / d
    bell = 4 / np.pi * np.exp(-(u**2) * (1 + e**-2))
    cross = 2 / d**3 * -2 * u * bell / e  # erf''(u) erf'(u/E) / E
    zero = np.zeros_like(t)
    axes = ("order", "cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, np.stack(zeta_derivatives(t, spread))),
            "measured": (axes, np.stack(automatic)),
            "error": 0.0,
            "cross_term": (axes, np.stack([zero, zero, cross])),
            "t": (("cell", "point"), t),
        },
        coords={"order": [1, 2, 3]},
    )


@claim(
    "single-location/heat-identity",
    source="attlas",
    reference="heat equation of zeta",
    statement=r"$\zeta_s(t, s) = s\,\zeta_{tt}(t, s)$, differentiating jointly in both arguments.",
    words="Smoothing by a Gaussian is diffusion, so one derivative of zeta gives the other.",
    hypotheses=ARGUMENTS,
    quick=Setting(spread=(0.1, 0.5, 1.0, 2.0), reach=4.0, points=64),
    paper=Setting(spread=(0.1, 0.5, 1.0, 2.0), reach=4.0, points=64),
    rule=Agreement(rounding=1e-12),
    control=Control(
        "the heat equation with its constant 0.1 % off",
        lambda e: e.assign(predicted=1.001 * e["predicted"]),
    ),
    figure=drawn_by(f"{FIGURES}.risk:heat_curves"),
    cells=together("spread"),
    shape=("points",),
    budget="points",
    needs=("single-location/zeta", "single-location/zeta-derivatives"),
    origin="ours",
)
def heat_identity(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    t, spread = zeta_points(cells, key_for(seed, "single-location/heat-identity", "points"))
    _, in_spread = jax.jit(jnp.vectorize(jax.grad(zeta, argnums=(0, 1))))(t, spread)
    axes = ("cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, spread * np.asarray(zeta_derivatives(t, spread)[1])),
            "measured": (axes, in_spread),
            "error": 0.0,
            "t": (axes, t),
        }
    )
