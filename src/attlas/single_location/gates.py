r"""Other gates than erf: heads $\sum_l g(\lambda\langle X_l, k\rangle - c)\langle X_l, v\rangle$.

For every pointwise gate $g$ the risk depends on the same five overlaps. Given its product with $k$,
a token's products with $v$ and $v^*$ are Gaussian with known means and variances, so what is left
is a one-dimensional integral.
"""

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, ArrayLike, Float

from attlas.errors import InputError, near, positive
from attlas.gaussian import Real, float64, gaussian_nodes
from attlas.order_parameters.gates import ACTIVATIONS
from attlas.single_location.baselines import linear_attention
from attlas.single_location.task import SingleLocation
from attlas.surface import public

Activation = Callable[[Array], Array]


@public
@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["offset"], meta_fields=["activation"]
)
@dataclass(frozen=True)
class Gate:
    r"""A pointwise gate $a \mapsto g(\lambda a - c)$.

    Arguments:
        activation: $g$, a name in `ACTIVATIONS` or a function that JAX can trace.
        offset: $c$. Odd gates need none; the others pass every token halfway or more without one.

    >>> from attlas.single_location import ORACLE, Gate, SingleLocation, risk
    >>> task = SingleLocation(dim=40, length=10)
    >>> print(f"{risk(task, ORACLE, 4.0, Gate('sigmoid', offset=10.0)):.4f}")
    0.0445
    """

    activation: str | Activation
    offset: Real = 0.0

    @property
    def function(self) -> Activation:
        """The activation $g$ as a function that JAX can trace."""
        return ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation

    @float64
    def values(self, along_k: np.ndarray, lam: Real) -> np.ndarray:
        """The gate on NumPy arrays, in double precision."""
        return np.asarray(self(along_k, lam))

    def __call__(self, along_k: Real, lam: Real) -> Real:
        return self.function(lam * along_k - self.offset)


SOFTMAX = "softmax"


def as_gate(activation: "str | Activation | Gate") -> Gate:
    """`activation` as a gate, checked to map finite numbers to as many finite numbers."""
    gate = activation if isinstance(activation, Gate) else Gate(activation)
    if isinstance(gate.activation, str) and gate.activation == SOFTMAX:
        raise InputError(
            'softmax is no pointwise gate and its risk has no formula: say activation="softmax" in'
            " sampled_risk or descend_online"
        )
    _known(gate.activation, ACTIVATIONS)
    if not callable(gate.function):
        raise InputError(f"activation = {activation!r}: it must be a name or a function")
    offset = gate.offset
    number = isinstance(offset, jax.Array | np.ndarray | int | float | np.number)
    if not (isinstance(offset, jax.core.Tracer) or (number and np.isfinite(offset).all())):
        raise InputError(f"offset = {offset!r}: it must be a finite number")
    _probed(gate.function)
    return gate


def _known(activation: Any, names: Collection[str]) -> None:
    if isinstance(activation, str) and activation not in names:
        raise InputError(
            f"unknown activation {activation!r}.{near(activation, names)} There are: "
            f"{', '.join(names)}."
        )


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


def as_head(activation: "str | Activation | Gate") -> Gate | None:
    """`as_gate`, or None for the softmax head, whose weights are not pointwise."""
    _known(activation, (*ACTIVATIONS, SOFTMAX))
    return None if isinstance(activation, str) and activation == SOFTMAX else as_gate(activation)


@float64
@public
def oracle_excess(task: SingleLocation, lam: Real, activation: str | Activation | Gate) -> Real:
    r"""Risk at the oracle less $\varepsilon^2$.

    $\gamma^2 E[(1 - g(\lambda a_1 - c))^2] + (L - 1) E[g(\lambda a_0 - c)^2]$ with
    $a_1 \sim N(m, \gamma^2)$ and $a_0 \sim N(0, 1)$: a sum without cancellation, accurate to nine
    digits down to about 1e-17; below, errors come from further out than the quadrature reaches: a
    hundredth of it at 1e-25.
    """
    gate, lam = as_gate(activation), jnp.asarray(positive("lam", lam), float)
    here, _, informative = gaussian_nodes(lam * task.m - gate.offset, lam * task.gamma)
    there, _, other = gaussian_nodes(0 * lam - gate.offset, lam)
    missed = (informative * (1 - gate.function(here)) ** 2).sum(-1)
    passed = (other * gate.function(there) ** 2).sum(-1)
    return task.gamma**2 * missed + (task.length - 1) * passed


class Tuned(NamedTuple):
    """The best gate of its kind, its sharpness, and the oracle's excess risk with it."""

    gate: Gate
    lam: float
    excess: float


@float64
@public
def tuned_gate(task: SingleLocation, activation: str | Activation, offset: bool = True) -> Tuned:
    """The sharpness and threshold at which the oracle's risk is least, by a narrowing grid.

    Arguments:
        offset: whether to tune the threshold offset / lam too, between 0 and about m.
    """
    activation = as_gate(activation).activation
    # From a tenth of the best linear gate's sharpness, the softest that can be best, to four times
    # the log odds'.
    softest, sharpest = linear_attention(task)[0] / 10, 4 * task.m / task.gamma**2
    low = np.array([math.log(softest), 0.0])
    high = np.array([math.log(sharpest), 1.5 * task.m + 2 if offset else 0.0])
    sides = (21, 13) if offset else (273, 1)
    for _ in range(7):  # each narrows the box fivefold
        axes = map(np.linspace, low, high, sides)
        log_lam, threshold = (x.ravel() for x in np.meshgrid(*axes, indexing="ij"))
        lam = np.exp(log_lam)
        excess = oracle_excess(task, lam, Gate(activation, lam * threshold))
        best = np.argmin(excess)
        centre, width = np.array([log_lam[best], threshold[best]]), (high - low) / 10
        low, high = centre - width, centre + width
    gate = Gate(activation, float(lam[best] * threshold[best]))
    return Tuned(gate, float(lam[best]), float(excess[best]))


@float64
@public
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


@public
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
        tokens: [..., length, dim]. `k`, `v`: the head's two vectors [dim].
        lam: the sharpness.

    >>> import jax
    >>> from attlas.single_location import SingleLocation, predict
    >>> task = SingleLocation(dim=50, length=4)
    >>> batch = task.sample(jax.random.key(0), 1000)
    >>> predicted = predict(batch.tokens, task.k_star, task.v_star, lam=0.3)
    >>> print(f"{((predicted - batch.target) ** 2).mean():.2f} of {task.constant_risk():.2f}")
    0.28 of 0.50
    """
    head = as_head(activation)
    k, v = jnp.asarray(k, tokens.dtype), jnp.asarray(v, tokens.dtype)
    along_k = tokens @ k
    weights = jax.nn.softmax(lam * along_k, axis=-1) if head is None else head(along_k, lam)
    return (weights * (tokens @ v)).sum(-1)
