r"""The landscape of the risk on two spheres: gradient flow, fixed points, and what is stable where.

The flow is the limit of descent for small steps, $\dot k = -(I - kk^\top)\nabla_k R$ and likewise
for $v$, written in the five overlaps. On the manifold $\theta = \eta = \rho = 0$ it is
two-dimensional (Marion et al. 2025, Section 4, Figure 5); what happens across the manifold the
paper does not say, and is derived here.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from scipy import special

from attlas.errors import InputError, positive
from attlas.gaussian import Real, float64
from attlas.single_location.descent import tangents
from attlas.single_location.population import ORACLE, Overlaps, at_points
from attlas.single_location.task import Constants, SingleLocation
from attlas.surface import public


@float64
@public
def flow(task: SingleLocation, overlaps: Overlaps, lam: Float[ArrayLike, "*#s"]) -> Overlaps:
    """Velocity of the gradient flow in the five overlaps."""
    return at_points(velocity, task.constants, overlaps.checked(), positive("lam", lam))


@jax.jit
def velocity(c: Constants, x: Overlaps, lam: Real) -> Overlaps:
    u = tangents(c, x, lam)
    return Overlaps(-u.k_kstar, -u.v_vstar, -u.v_kstar, -u.k_vstar, -(u.k_v + u.v_k))


@jax.jit
def jacobian(c: Constants, x: Overlaps, lam: Real) -> Float[Array, "5 5"]:
    """Derivative of the velocity at one point; rows and columns as in `Overlaps`."""
    point = jnp.stack([jnp.asarray(value, float) for value in x])
    return jax.jacfwd(lambda y: jnp.stack(velocity(c, Overlaps(*y), lam)))(point)


@public
def critical_lam(task: SingleLocation) -> float:
    r"""The sharpness above which the manifold repels at the oracle, for a saturated gate.

    $\sqrt{1 + 4\lambda_c^2} = 2(d + 2\gamma^2) / (d - 2\gamma^2(L - 2))$, so
    $\lambda_c \to \sqrt3/2$ as $d \to \infty$. Above it the oracle is not even a local minimum:
    turning k against v lowers the noise of the other tokens.
    """
    room = task.dim - 2 * task.gamma**2 * (task.length - 2)
    if room <= 0:
        raise InputError(
            f"dim = {task.dim}: a critical lam exists for dim above 2 gamma^2 (length - 2) = "
            f"{task.dim - room:g} only"
        )
    ratio = 2 * (task.dim + 2 * task.gamma**2) / room
    return math.sqrt(ratio**2 - 1) / 2


@public
def swapped_point(task: SingleLocation, lam: Float[ArrayLike, "*#s"]) -> Overlaps:
    r"""The spurious attractor: k carries the value, v the location.

    $\kappa = \nu = \rho = 0$, $\eta = 1$,
    $\theta = \min\big(1, \frac{2\gamma^2\lambda}{\sqrt\pi D m\,\zeta(0, \lambda\gamma)}\big)$ with
    $D^2 = 1 + 2\lambda^2\gamma^2$ and `attlas.gaussian.zeta`; its mirror image has both signs
    changed.
    """
    lam = positive("lam", lam)
    s = lam * task.gamma
    theta = 2 * task.gamma * s / (np.sqrt(np.pi * (1 + 2 * s**2)) * task.m * _zeta_at_0(s))
    zero = 0 * theta
    return Overlaps(zero, zero, np.minimum(1.0, theta), zero + 1, zero)


def _zeta_at_0(s: Real) -> Real:
    return 2 / np.pi * np.arcsin(2 * s**2 / (1 + 2 * s**2))


class Escape(NamedTuple):
    """Exponential rates of the flow from the origin, to the oracle and to the swapped point."""

    oracle: Real
    swapped: Real


@public
def escape_rates(task: SingleLocation, lam: Float[ArrayLike, "*#s"]) -> Escape:
    r"""The rates at which the flow leaves the origin.

    $\frac12(-h + \sqrt{h^2 + 4c^2})$ with $c = 4\gamma^2\lambda m / (\sqrt\pi D)$; for the oracle
    $h = 8\gamma^2\lambda^2m^2 / (\pi D^2 E)$, for the swapped point
    $h = 2m^2\zeta(0, \lambda\gamma)$, with `attlas.gaussian.zeta`,
    $D^2 = 1 + 2\lambda^2\gamma^2$ and $E^2 = 1 + 4\lambda^2\gamma^2$.
    """
    lam = positive("lam", lam)
    m, g2, s = task.m, task.gamma**2, lam * task.gamma
    d2, e = 1 + 2 * s**2, np.sqrt(1 + 4 * s**2)
    c = 4 * g2 * lam * m / np.sqrt(np.pi * d2)
    rate = lambda h: (-h + np.sqrt(h**2 + 4 * c**2)) / 2  # noqa: E731
    return Escape(rate(8 * g2 * (lam * m) ** 2 / (np.pi * d2 * e)), rate(2 * m**2 * _zeta_at_0(s)))


@public
def corner_rate(task: SingleLocation, lam: Float[ArrayLike, "*#s"]) -> Real:
    r"""Rate at which $1 - \kappa$ decays near the oracle.

    $\frac{4\gamma^2\lambda m}{D}\mathrm{erf}'(A)\,\mathrm{erfc}(A/E)$ with $A = \lambda m/D$,
    $D^2 = 1 + 2\lambda^2\gamma^2$ and $E^2 = 1 + 4\lambda^2\gamma^2$. It vanishes like
    $e^{-(1 + E^{-2})A^2}$, so that descent stalls at a large constant sharpness.
    """
    lam = positive("lam", lam)
    s = lam * task.gamma
    d, e = np.sqrt(1 + 2 * s**2), np.sqrt(1 + 4 * s**2)
    a = lam * task.m / d
    bell = 2 / np.sqrt(np.pi) * np.exp(-(a**2))
    return 4 * task.gamma**2 * lam * task.m / d * bell * special.erfc(a / e)


@float64
@public
def stability(task: SingleLocation, overlaps: Overlaps, lam: float) -> Float[np.ndarray, " 5"]:
    """Real parts of the eigenvalues of the flow's derivative at a fixed point, ascending.

    All are negative where it attracts.
    """
    return np.sort(
        np.linalg.eigvals(np.asarray(jacobian(task.constants, overlaps.checked(), lam))).real
    )


@public
def stable_step(task: SingleLocation, lam: float) -> float:
    """The largest step size at which descent near the oracle does not flip.

    Two over the fastest rate of decay there.
    """
    lam = float(positive("lam", lam))
    return -2 / float(stability(task, ORACLE, lam)[0])
