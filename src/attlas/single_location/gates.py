r"""Other gates than erf: heads $\sum_l g(\lambda\langle X_l, k\rangle - c)\langle X_l, v\rangle$.

For every pointwise gate $g$ the risk depends on the same five overlaps. Given its product with $k$,
a token's products with $v$ and $v^*$ are Gaussian with known means and variances, so what is left
is a one-dimensional integral.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, ArrayLike, Float
from scipy import special

from attlas.errors import InputError, near, positive
from attlas.gaussian import REACH, Real, float64, gaussian_moments, gaussian_nodes
from attlas.padding import map_chunks
from attlas.single_location.baselines import linear_attention
from attlas.single_location.task import Constants, SingleLocation

Activation = Callable[[Array], Array]

ACTIVATIONS: dict[str, Activation] = {
    "erf": jax.lax.erf,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "step": lambda x: (x > 0).astype(x.dtype),
    "identity": lambda x: x,
}


_BY_NUMPY: dict[Any, Callable[[np.ndarray], np.ndarray]] = {
    "erf": special.erf,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "relu": lambda x: np.maximum(x, 0),
    "step": lambda x: (x > 0).astype(float),
    "identity": lambda x: x,
}


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["offset"], meta_fields=["activation"]
)
@dataclass(frozen=True)
class Gate:
    r"""A pointwise gate $a \mapsto g(\lambda a - c)$.

    Arguments:
        activation: $g$, a name in `ACTIVATIONS` or a function that JAX can trace.
        offset: $c$. Odd gates need none; the others pass every token halfway or more without one.
    """

    activation: str | Activation
    offset: Real = field(default=0.0)

    @property
    def function(self) -> Activation:
        return ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation

    def values(self, along_k: np.ndarray, lam: Real) -> np.ndarray:
        """The gate on NumPy arrays, by NumPy where the activation is a name."""
        x = lam * along_k - self.offset
        return (
            _BY_NUMPY[self.activation](x)
            if self.activation in _BY_NUMPY
            else np.asarray(self.function(x))
        )

    def __call__(self, along_k: Array, lam: Real) -> Array:
        return self.function(lam * along_k - self.offset)


def kind_of(name: str) -> int:
    """The index of a named activation."""
    return list(ACTIVATIONS).index(name)


def named_gate(kind: int | Array, offset: Real) -> Gate:
    """The gate with the named activation of index `kind`, for use inside traced functions.

    The kind is data there, so that one compiled program serves all names.
    """
    return Gate(lambda x: jax.lax.switch(kind, tuple(ACTIVATIONS.values()), x), offset)


SOFTMAX = "softmax"


def as_gate(activation: "str | Activation | Gate") -> Gate:
    """`activation` as a gate, checked to map finite numbers to as many finite numbers."""
    gate = activation if isinstance(activation, Gate) else Gate(activation)
    if isinstance(gate.activation, str) and gate.activation == SOFTMAX:
        raise InputError(
            'softmax is no pointwise gate and its risk has no formula: say activation="softmax" in'
            " sampled_risk or descend_online"
        )
    if isinstance(gate.activation, str) and gate.activation not in ACTIVATIONS:
        raise InputError(
            f"unknown activation {gate.activation!r}.{near(gate.activation, ACTIVATIONS)} There "
            f"are: {', '.join(ACTIVATIONS)}."
        )
    if not callable(gate.function):
        raise InputError(f"activation = {activation!r}: it must be a name or a function")
    offset = gate.offset
    if not isinstance(offset, jax.core.Tracer | jax.Array | np.ndarray | int | float | np.number):
        raise InputError(f"offset = {offset!r}: it must be a finite number")
    if not isinstance(offset, jax.core.Tracer) and not np.isfinite(offset).all():
        raise InputError(f"offset = {offset!r}: it must be a finite number")
    _probed(gate.function)
    return gate


@functools.cache
def _probed(function: Activation) -> None:
    probe = np.linspace(-30, 30, 121).astype(np.float32)
    try:
        traced = jax.eval_shape(function, probe)  # as it will be called: on an array without values
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"activation cannot be traced by JAX ({str(error).splitlines()[0]}): use jax.numpy"
        ) from None
    if getattr(traced, "shape", None) != probe.shape:
        raise InputError(
            f"activation maps {probe.shape} to {getattr(traced, 'shape', traced)}: it must act on "
            "each number by itself"
        )
    with jax.ensure_compile_time_eval():
        value, turned, alone = (
            np.asarray(function(jnp.asarray(x))) for x in (probe, probe[::-1], probe[40:41])
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(
            f"activation gives values of the type {value.dtype}: they must be real numbers"
        )
    if not np.isfinite(value).all():
        raise InputError(
            f"activation is not finite at {probe[~np.isfinite(value)][0]:g}: it must be on all of "
            "[-30, 30]"
        )
    if not (
        np.allclose(turned[::-1], value, atol=1e-5) and np.allclose(alone, value[40:41], atol=1e-5)
    ):
        raise InputError(
            "activation looks at other numbers than its own: it must act on each number by itself"
        )


ERF = Gate("erf")


def as_head(activation: "str | Activation | Gate") -> Gate | None:
    """`as_gate`, or None for the softmax head, whose weights are not pointwise."""
    if not isinstance(activation, str):
        return as_gate(activation)
    if activation not in (known := (*ACTIVATIONS, SOFTMAX)):
        raise InputError(
            f"unknown activation {activation!r}.{near(activation, known)} There are: "
            f"{', '.join(known)}."
        )
    return None if activation == SOFTMAX else as_gate(activation)


Nodes = tuple[int, float]
FINE: Nodes = (8, REACH)
CHECKS: tuple[Nodes, ...] = ((6, REACH), (13, 1.5 * REACH))
"""Panels and ends of the quadrature, and of the two others that its error is read from."""


def gated_terms(
    c: Constants, overlaps: Any, lam: Real, gate: Gate, nodes: Nodes = FINE
) -> tuple[Array, ...]:
    r"""The risk's five parts, in the order of `RiskTerms`.

    With $G_{ij} = E[g^i Z^j]$ at the informative token, $H_{ij}$ at another, and $\mu = m\theta$:
    $E[gby] = \gamma\eta(\mu G_{11} + \gamma\rho G_{12}) + \gamma^2(\nu - \rho\eta) G_{10}$,
    $E[g^2b^2] = (\mu^2 + \gamma^2(1-\rho^2))G_{20} + 2\mu\gamma\rho G_{21} + \gamma^2\rho^2G_{22}$.
    """
    (g1, g2), (h1, h2) = _moments(c, overlaps.kappa, lam, gate, nodes)
    _, nu, theta, eta, rho = (jnp.asarray(x) for x in overlaps)
    gamma, length, mu = c.gamma, c.length, c.m * theta
    product = gamma * eta * (mu * g1[1] + gamma * rho * g1[2]) + gamma**2 * (nu - rho * eta) * g1[0]
    square = (
        (mu**2 + gamma**2 * (1 - rho**2)) * g2[0]
        + 2 * mu * gamma * rho * g2[1]
        + (gamma * rho) ** 2 * g2[2]
    )
    here, elsewhere = mu * g1[0] + gamma * rho * g1[1], rho * h1[1]
    return (
        jnp.asarray(c.noise**2 + gamma**2 + 0 * nu),
        -2 * product,
        square,
        (length - 1) * ((1 - rho**2) * h2[0] + rho**2 * h2[2]),
        (length - 1) * elsewhere * (2 * here + (length - 2) * elsewhere),
    )


def gated_partials(
    c: Constants, overlaps: Any, lam: Real, gate: Gate, nodes: Nodes = FINE
) -> tuple[Array, ...]:
    r"""Partial derivatives of the risk, in the order of `Overlaps`.

    In $\kappa$ by parts, $\partial_\kappa G_{ij} = \frac m\gamma(G_{i,j+1} - jG_{i,j-1})$, which
    exists for a threshold too.
    """
    (g1, g2), (h1, h2) = _moments(c, overlaps.kappa, lam, gate, nodes)
    _, nu, theta, eta, rho = (jnp.asarray(x) for x in overlaps)
    gamma, m, length, mu = c.gamma, c.m, c.length, c.m * theta
    d1, d2 = (m / gamma * jnp.stack([g[1], g[2] - g[0], g[3] - 2 * g[1]]) for g in (g1, g2))
    square = gamma**2 * (1 - rho**2) + mu**2
    here = mu * g1[0] + gamma * rho * g1[1]
    others = 2 * (length - 1)
    return (
        -2
        * (gamma * eta * (mu * d1[1] + gamma * rho * d1[2]) + gamma**2 * (nu - rho * eta) * d1[0])
        + square * d2[0]
        + 2 * mu * gamma * rho * d2[1]
        + (gamma * rho) ** 2 * d2[2]
        + others * rho * h1[1] * (mu * d1[0] + gamma * rho * d1[1]),
        -2 * gamma**2 * g1[0],
        2
        * m
        * (
            -gamma * eta * g1[1]
            + mu * g2[0]
            + gamma * rho * g2[1]
            + (length - 1) * rho * h1[1] * g1[0]
        ),
        -2 * (gamma * (mu * g1[1] + gamma * rho * g1[2]) - gamma**2 * rho * g1[0]),
        -2 * gamma**2 * eta * (g1[2] - g1[0])
        + 2 * mu * gamma * g2[1]
        + 2 * gamma**2 * rho * (g2[2] - g2[0])
        + others
        * (
            rho * (h2[2] - h2[0])
            + h1[1] * (here + rho * gamma * g1[1] + (length - 2) * rho * h1[1])
        ),
    )


def _moments(c: Constants, kappa: Real, lam: Real, gate: Gate, nodes: Nodes) -> tuple[Array, Array]:
    lam = jnp.asarray(lam, float)
    here = gaussian_moments(gate.function, lam * c.m * kappa - gate.offset, lam * c.gamma, *nodes)
    return here, gaussian_moments(gate.function, -gate.offset + 0 * lam, lam, *nodes)


@float64
def oracle_excess(task: SingleLocation, lam: Real, activation: str | Activation | Gate) -> Real:
    r"""Risk at the oracle less $\varepsilon^2$.

    $\gamma^2 E[(1 - g(\lambda a_1 - c))^2] + (L - 1) E[g(\lambda a_0 - c)^2]$ with
    $a_1 \sim N(m, \gamma^2)$ and $a_0 \sim N(0, 1)$: a sum without cancellation, accurate to all
    digits down to about 1e-25; below, errors come from further out than the quadrature reaches.
    """
    return gate_excess(task.constants, positive("lam", lam), as_gate(activation))


def gate_excess(c: Constants, lam: Real, gate: Gate) -> Real:
    if not isinstance(gate.activation, str) or any(
        isinstance(x, jax.core.Tracer) for x in (*c, lam, gate.offset)
    ):
        return _gate_excess(c, lam, gate)
    lam, offset = np.broadcast_arrays(np.asarray(lam, float), np.asarray(gate.offset, float))
    kind = kind_of(gate.activation)
    found = map_chunks(
        lambda lam, offset: _named_excess(c, lam, kind, offset),
        (lam.ravel(), offset.ravel()),
        CHUNK,
    )
    return found.reshape(lam.shape)[()]


CHUNK = 21 * 13
"""Gates whose risk is computed at a time: the grid of `tuned_gate`."""


@jax.jit
def _named_excess(c: Constants, lam: Real, kind: int | Array, offset: Real) -> Array:
    return _gate_excess(c, lam, named_gate(kind, offset))


@jax.jit
def _gate_excess(c: Constants, lam: Real, gate: Gate) -> Array:
    lam = jnp.asarray(lam, float)
    here, _, informative = gaussian_nodes(lam * c.m - gate.offset, lam * c.gamma)
    there, _, other = gaussian_nodes(0 * lam - gate.offset, lam)
    missed, passed = (
        (informative * (1 - gate.function(here)) ** 2).sum(-1),
        (other * gate.function(there) ** 2).sum(-1),
    )
    return c.gamma**2 * missed + (c.length - 1) * passed


class Tuned(NamedTuple):
    """The best gate of its kind, its sharpness, and the oracle's excess risk with it."""

    gate: Gate
    lam: float
    excess: float


@float64
def tuned_gate(task: SingleLocation, activation: str | Activation, offset: bool = True) -> Tuned:
    """The sharpness and threshold at which the oracle's risk is least, by a narrowing grid.

    Arguments:
        offset: whether to tune the threshold offset / lam too, between 0 and about m.
    """
    c, activation = task.constants, as_gate(activation).activation
    # From a tenth of the best linear gate's sharpness, the softest that can be best, to four times
    # the log odds'.
    softest = linear_attention(task)[0] / 10
    low, high = (
        np.array([math.log(softest), 0.0]),
        np.array([math.log(4 * task.m / task.gamma**2), 1.5 * task.m + 2]),
    )
    sides = (21, 13) if offset else (CHUNK, 1)
    for _ in range(7):  # each narrows the box fivefold
        lam = np.linspace(low[0], high[0], sides[0])
        threshold = np.linspace(low[1], high[1], sides[1]) if offset else np.zeros(1)
        lams, thresholds = np.meshgrid(np.exp(lam), threshold, indexing="ij")
        flat = lams.ravel()
        excess = np.asarray(
            gate_excess(c, flat, Gate(activation, flat * thresholds.ravel()))
        ).reshape(lams.shape)
        i, j = np.unravel_index(np.argmin(excess), excess.shape)
        best = Tuned(
            Gate(activation, float(lams[i, j] * thresholds[i, j])),
            float(lams[i, j]),
            float(excess[i, j]),
        )
        width = (high - low) / 10
        centre = np.array([lam[i], thresholds[i, j]])
        low, high = centre - width, centre + width
    return best


@float64
def best_gate_excess(task: SingleLocation) -> float:
    r"""Excess risk at the oracle of the best of all pointwise gates.

    $\int\frac{\gamma^2 p_1\,(L-1) p_0}{\gamma^2 p_1 + (L-1) p_0}$ with $p_1 = N(m, \gamma^2)$ and
    $p_0 = N(0, 1)$ the laws of $\langle x, k^*\rangle$. It is attained by
    $g(a) = \frac{\gamma^2 p_1(a)}{\gamma^2 p_1(a) + (L-1) p_0(a)}$, a sigmoid of their log odds,
    which are linear in $a$ at $\gamma = 1$, where $\lambda = m$ and $c = \frac{m^2}{2} + \ln(L-1)$.
    """
    m, gamma, others = task.m, task.gamma, task.length - 1
    a = np.linspace(-12, m + 12 * max(gamma, 1.0), 20_001)
    log_p1 = -(((a - m) / gamma) ** 2) / 2 + math.log(gamma)  # times gamma^2
    log_p0 = -(a**2) / 2 + math.log(others)
    product = np.exp(-np.logaddexp(-log_p1, -log_p0)) / math.sqrt(2 * math.pi)
    return float(scipy.integrate.simpson(product, x=a))


def predict(
    tokens: Float[Array, "*n length dim"],
    k: Float[ArrayLike, " dim"],
    v: Float[ArrayLike, " dim"],
    lam: ArrayLike,
    activation: str | Activation | Gate = "erf",
) -> Float[Array, "*n"]:
    r"""The attention layer $\sum_l g(\lambda \langle x_l, k\rangle) \langle x_l, v\rangle$.

    Arguments:
        activation: $g$, erf unless given; "softmax" stands for the weights
            $\mathrm{softmax}_l(\lambda \langle x_l, k\rangle)$.
    """
    head = as_head(activation)
    k, v = jnp.asarray(k, tokens.dtype), jnp.asarray(v, tokens.dtype)
    along_k = tokens @ k
    weights = jax.nn.softmax(lam * along_k, axis=-1) if head is None else head(along_k, lam)
    return (weights * (tokens @ v)).sum(-1)
