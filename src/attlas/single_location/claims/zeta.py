"""Claims about zeta, the one special function of the risk."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas import gaussian
from attlas.claims import Agreement, Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.figure import Figure
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import SAMPLES

SPREADS = (0.1, 0.5, 1.0, 2.0)


@single_location.claim(
    kind="simulation",
    reference="the function zeta of Theorem 1",
    origin="ours",
    statement=r"$\zeta(t, s) = E[\mathrm{erf}(t + sG)^2] ="
    r" 1 - 8\,T\Big(\frac{\sqrt2\,t}{\sqrt{1+2s^2}}, \frac{1}{\sqrt{1+4s^2}}\Big)$"
    r" with $G \sim N(0,1)$ and Owen's $T$.",
    words="The mean square of a smoothed error function has a closed form.",
    hypotheses=(
        SAMPLES,
        Hypothesis(
            "reach <= 2: beyond it plain sampling does not see the rare events that are left",
            lambda s: s.reach <= 2,
        ),
    ),
    quick=Setting(spread=SPREADS, reach=1.5, points=32, samples=100_000),
    paper=dict(samples=2_000_000),
    cells=together("spread"),
    budget="samples",
    rule=Agreement(rounding=1e-13),
    control=Control(
        "the second argument of Owen's T is 5 % too large",
        lambda e: {"predicted": zeta_by_owen(e.t, e.spread, 1.05) + 0 * e.predicted},
    ),
)
def zeta(cell: Setting, draws: Draws) -> Values:
    t = zeta_points(cell, draws("points"))
    sampled = gaussian.sampled_zeta(t, cell.spread, draws("samples"), cell.samples)
    # The trapezoidal rule is exact to rounding for an entire integrand with Gaussian decay.
    g = np.linspace(-10, 10, 4001)
    density = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    quadrature = scipy.integrate.trapezoid(
        special.erf(t[:, None] + cell.spread * g) ** 2 * density, g
    )
    return {
        **on("point", predicted=gaussian.zeta(t, np.full_like(t, cell.spread)), t=t),
        **on(
            "route point",
            measured=np.stack([quadrature, sampled.mean]),
            error=np.stack([0 * quadrature, sampled.error]),
        ),
        "route": ["quadrature", "simulation"],
    }


@zeta.figure
def zeta_curves(evidence: xr.Dataset) -> Figure:
    return (
        Figure(
            evidence.sel(route="simulation"),
            "Mean square of a smoothed erf",
            "lines: Owen's T; points: simulation",
            y="ζ(t, s)",
            legend={"spread": "s"},
        )
        .lines("t", "predicted", color="spread")
        .points("t", "measured", error=True, color="spread", size=28)
    )


def zeta_by_owen(t: xr.DataArray, spread: xr.DataArray, factor: float) -> xr.DataArray:
    """Zeta by SciPy's Owen's T, whose second argument is multiplied by `factor`."""
    wide, wider = np.sqrt(1 + 2 * spread**2), np.sqrt(1 + 4 * spread**2)
    return 1 - 8 * special.owens_t(np.sqrt(2) * t / wide, factor / wider)


def zeta_points(cell: Setting, key: Array) -> Float[np.ndarray, " point"]:
    """First arguments of zeta, random in even strata up to `reach` widths of the smoothed step."""
    uniform = (np.arange(cell.points) + gaussian.stream(key).random(cell.points)) / cell.points
    return cell.reach * (2 * uniform - 1) * np.sqrt(1 + 2 * cell.spread**2)


@single_location.claim(
    kind="two routes",
    reference="heat equation of zeta",
    origin="ours",
    statement=r"$\zeta_s(t, s) = s\,\zeta_{tt}(t, s)$, differentiating jointly in both arguments.",
    words="Smoothing by a Gaussian is diffusion, so one derivative of zeta gives the other.",
    quick=Setting(spread=SPREADS, reach=4.0, points=64),
    cells=together("spread"),
    budget="points",
    rule=Agreement(rounding=1e-12),
    control=Control(
        "the heat equation with its constant 0.1 % off",
        lambda e: {"predicted": 1.001 * e.predicted},
    ),
    needs=("zeta",),
)
def heat_identity(cell: Setting, draws: Draws) -> Values:
    t = zeta_points(cell, draws("points"))
    spread = np.full_like(t, cell.spread)
    in_spread = jax.jit(jnp.vectorize(jax.grad(gaussian.zeta, argnums=1)))(t, spread)
    in_place = cell.spread * np.asarray(gaussian.zeta_derivatives(t, spread)[1])
    return {**on("point", predicted=in_place, measured=in_spread, t=t), "error": 0.0}


@heat_identity.figure
def heat_curves(evidence: xr.Dataset) -> Figure:
    return (
        Figure(
            evidence,
            "The heat equation of zeta",
            "lines: s ∂²ζ/∂t²; points: ∂ζ/∂s by automatic differentiation",
            y="∂ζ/∂s",
            legend={"spread": "s"},
        )
        .lines("t", "predicted", color="spread")
        .points("t", "measured", color="spread", size=14)
    )
