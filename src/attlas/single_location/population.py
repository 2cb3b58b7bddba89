"""The population risk as a function of five overlaps (Marion et al. 2025, Theorem 1)."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from attlas.errors import InputError, positive, whole
from attlas.gaussian import (
    REACH,
    Estimate,
    Quadrature,
    Real,
    averaged,
    float64,
    smoothed_derivatives,
    smoothed_erf,
)
from attlas.padding import map_chunks
from attlas.single_location.gates import Activation, Gate, as_gate, as_head
from attlas.single_location.task import Constants, SingleLocation
from attlas.surface import public


def unit_vectors(k: Any, v: Any) -> None:
    """Refuse k and v that are not of unit length; traced values are not checked."""
    for name, x in (("k", k), ("v", v)):
        if isinstance(x, jax.core.Tracer):
            continue
        norms = np.atleast_1d(np.linalg.norm(np.asarray(x), axis=-1))
        worst = norms[np.argmax(abs(norms - 1))]
        if not abs(worst - 1) < 1e-5:
            raise InputError(f"{name} has length {worst:g}: it must be a unit vector")


class Overlaps(NamedTuple):
    r"""Inner products of a head's unit vectors with the stars and each other, arrays of one shape.

    $\kappa = \langle k, k^*\rangle$, $\nu = \langle v, v^*\rangle$,
    $\theta = \langle v, k^*\rangle$, $\eta = \langle k, v^*\rangle$, $\rho = \langle k, v\rangle$.
    The manifold of the paper is $\theta = \eta = \rho = 0$.

    >>> import numpy as np
    >>> from attlas.single_location import Overlaps, SingleLocation
    >>> task = SingleLocation(dim=4)
    >>> k, v = np.array([[0.6, 0.0, 0.8, 0.0], [0.0, 0.6, 0.0, 0.8]])
    >>> overlaps = Overlaps.of(k, v, task)
    >>> print(*map(float, overlaps), float(overlaps.distance))
    0.6 0.6 0.0 0.0 0.0 0.0
    """

    kappa: Real
    nu: Real
    theta: Real
    eta: Real
    rho: Real

    @classmethod
    @float64
    @public
    def of(
        cls, k: Float[ArrayLike, "*s dim"], v: Float[ArrayLike, "*s dim"], task: SingleLocation
    ) -> "Overlaps":
        """The overlaps of vectors `k` and `v` with the stars of `task`."""
        k, v = (x if isinstance(x, jax.core.Tracer) else np.asarray(x, float) for x in (k, v))
        unit_vectors(k, v)
        return cls._of(k, v, task.k_star, task.v_star)

    @classmethod
    def _of(cls, k: Any, v: Any, k_star: Any, v_star: Any) -> "Overlaps":
        return cls(k @ k_star, v @ v_star, v @ k_star, k @ v_star, (k * v).sum(-1))

    @property
    @float64
    def distance(self) -> Real:
        r"""Distance to the manifold, $\sqrt{\theta^2 + \eta^2 + \rho^2}$."""
        square = self.theta**2 + self.eta**2 + self.rho**2
        return jnp.sqrt(square) if isinstance(square, jax.Array) else np.sqrt(square)

    def gram(self) -> Float[np.ndarray, "*s 4 4"]:
        """Gram matrix of (k*, v*, k, v)."""
        kappa, nu, theta, eta, rho = np.broadcast_arrays(*(np.asarray(x, float) for x in self))
        one, zero = np.ones_like(kappa), np.zeros_like(kappa)
        rows = [
            [one, zero, kappa, theta],
            [zero, one, eta, nu],
            [kappa, eta, one, rho],
            [theta, nu, rho, one],
        ]
        return np.moveaxis(np.array(rows), (0, 1), (-2, -1))

    def checked(self) -> "Overlaps":
        """These overlaps; an `InputError` with the offender if no unit vectors have them."""
        if any(isinstance(x, jax.core.Tracer) for x in self):
            return self
        gram = self.gram()
        if not np.isfinite(gram).all():
            raise InputError(
                f"overlaps {_show(self, ~np.isfinite(gram).all((-2, -1)))} are not finite"
            )
        # Rounding in the last digits of unit vectors moves an eigenvalue by as much.
        broken = np.linalg.eigvalsh(gram)[..., 0] < -1e-9
        if broken.any():
            raise InputError(
                f"overlaps {_show(self, broken)} belong to no unit vectors k and v: "
                "the Gram matrix of (k*, v*, k, v) must be positive semidefinite"
            )
        return self


@public
def heads_with(
    overlaps: Overlaps, dim: int
) -> tuple[Float[np.ndarray, "*s dim"], Float[np.ndarray, "*s dim"]]:
    """Unit vectors k and v with the given overlaps around the stars e_1 and e_2."""
    gram = overlaps.checked().gram()
    kappa, nu, theta, eta, rho = np.broadcast_arrays(*(np.asarray(x, float) for x in overlaps))
    k, v = np.zeros((2, *gram.shape[:-2], whole("dim", dim, 4)))
    k[..., 0], k[..., 1], v[..., 0], v[..., 1] = kappa, eta, theta, nu
    k[..., 2] = np.sqrt(np.maximum(1 - kappa**2 - eta**2, 0))
    rest = rho - kappa * theta - eta * nu  # where k has no third coordinate, neither has this
    v[..., 2] = np.divide(rest, k[..., 2], out=np.zeros_like(rest), where=k[..., 2] > 1e-12)
    v[..., 3] = np.sqrt(np.maximum(1 - (v**2).sum(-1), 0))
    return k, v


ORACLE = Overlaps(1.0, 1.0, 0.0, 0.0, 0.0)
"""The head whose vectors are the stars."""


def _show(overlaps: Overlaps, where: np.ndarray | np.bool_) -> str:
    """The first of the overlaps at which `where` holds."""
    values = (np.broadcast_to(x, where.shape)[where][0] for x in overlaps)
    shown = (f"{name}={x:g}" for name, x in zip(overlaps._fields, values, strict=True))
    return f"({', '.join(shown)})"


class RiskTerms(NamedTuple):
    """The parts of the risk, which sum to it."""

    target: Array  # predicting 0
    signal: Array  # product of the target with the informative token's contribution
    informative: Array  # square of the informative token's contribution
    background: Array  # squares of the other tokens' contributions
    coupling: Array  # products of contributions of two different tokens


@float64
@public
def risk(
    task: SingleLocation,
    overlaps: Overlaps,
    lam: Float[ArrayLike, "*#s"],
    activation: str | Activation | Gate = "erf",
) -> Real:
    r"""Expected squared error $E(Y - \sum_l g(\lambda\langle X_l,k\rangle)\langle X_l,v\rangle)^2$.

    In closed form for $g = \mathrm{erf}$ (Theorem 1), by quadrature for another gate, whose error
    `risk_quadrature` reports. `sampled_risk` is its twin, `risk_terms` its parts.

    Arguments:
        overlaps, lam: arrays of any shapes that broadcast.
        activation: a name, a function that JAX can trace, or a `Gate` with an offset.
        task: the task, of which dimension, length, spread and noise count.

    Returns: the risk, noise included.

    >>> import numpy as np
    >>> from attlas.single_location import ORACLE, Overlaps, SingleLocation, risk
    >>> task = SingleLocation(dim=400, length=10)
    >>> print(f"{risk(task, ORACLE, lam=0.1):.4f}, and {task.constant_risk():.4f} for predicting 0")
    0.1135, and 0.5000 for predicting 0
    >>> kappa = np.linspace(0, 1, 5)
    >>> risk(task, Overlaps(kappa, 1.0, 0.0, 0.0, 0.0), lam=0.1).shape
    (5,)
    """
    if gate_unless_erf(as_gate(activation)) is None:
        return _evaluate(total_risk, task, overlaps, lam, activation)
    value, error = risk_quadrature(task, overlaps, lam, activation)
    if not isinstance(value, jax.core.Tracer) and not (error <= 1e-6 * (1 + abs(value))).all():
        warnings.warn(
            f"the quadrature of this gate is off by up to {float(jnp.max(error)):.1g}", stacklevel=3
        )
    return value


@float64
@public
def risk_quadrature(
    task: SingleLocation,
    overlaps: Overlaps,
    lam: Float[ArrayLike, "*#s"],
    activation: str | Activation | Gate,
) -> Quadrature:
    """`risk` by quadrature, for erf too, with an estimate of the quadrature's error.

    The estimate is three times the change under other nodes and a wider interval. It misses a jump
    far from 0, where no node is placed for it.

    Arguments: as in `risk`.

    >>> from attlas.single_location import ORACLE, SingleLocation, risk, risk_quadrature
    >>> task = SingleLocation(dim=40, length=10)
    >>> value, error = risk_quadrature(task, ORACLE, 0.3, "erf")
    >>> bool(abs(value - risk(task, ORACLE, 0.3)) <= error + 1e-12)
    True
    """
    gate, lam = as_gate(activation), positive("lam", lam)
    fine, *others = (
        at_points(total_risk, task.constants, overlaps.checked(), lam, gate, nodes)
        for nodes in (FINE, *CHECKS)
    )
    return Quadrature(fine, 3 * sum(abs(fine - other) for other in others))


@float64
@public
def risk_terms(
    task: SingleLocation,
    overlaps: Overlaps,
    lam: Float[ArrayLike, "*#s"],
    activation: str | Activation | Gate = "erf",
) -> RiskTerms:
    """The parts of `risk`, which sum to it.

    Arguments: as in `risk`.

    >>> from attlas.single_location import ORACLE, SingleLocation, risk_terms
    >>> terms = risk_terms(SingleLocation(dim=400, length=10), ORACLE, lam=0.1)
    >>> print({name: round(float(x), 3) for name, x in terms._asdict().items()})
    {'target': 0.5, 'signal': -0.953, 'informative': 0.455, 'background': 0.112, 'coupling': 0.0}
    """
    return _evaluate(terms_of_risk, task, overlaps, lam, activation)


@float64
@public
def risk_gradient(
    task: SingleLocation,
    overlaps: Overlaps,
    lam: Float[ArrayLike, "*#s"],
    activation: str | Activation | Gate = "erf",
) -> Overlaps:
    """Partial derivatives of `risk` in the five overlaps, in closed form or by quadrature.

    Arguments: as in `risk`.

    >>> from attlas.single_location import Overlaps, SingleLocation, risk_gradient
    >>> task = SingleLocation(dim=400, length=10)
    >>> slope = risk_gradient(task, Overlaps(0.5, 0.5, 0.0, 0.0, 0.0), lam=0.1)
    >>> print(f"{slope.kappa:.3f} {slope.nu:.3f} {slope.theta:.3f}")
    0.170 -0.680 0.000
    """
    return _evaluate(partials_of_risk, task, overlaps, lam, activation)


def _evaluate(
    formula: Callable[..., Any], task: SingleLocation, overlaps: Overlaps, lam: Any, activation: Any
) -> Any:
    gate = gate_unless_erf(as_gate(activation))
    return at_points(formula, task.constants, overlaps.checked(), positive("lam", lam), gate)


def gate_unless_erf(gate: Gate) -> Gate | None:
    """The gate, or None where the closed forms of erf apply."""
    plain = isinstance(gate.offset, int | float) and gate.offset == 0
    return None if gate.activation == "erf" and plain else gate


Nodes = tuple[int, float]
FINE: Nodes = (8, REACH)
CHECKS: tuple[Nodes, ...] = ((6, REACH), (13, 1.5 * REACH))
"""Panels and ends of the quadrature, and of the two others that its error is read from."""

CHUNK = 256
"""Points at which a formula is computed at a time."""


@float64
def at_points(
    formula: Callable[..., Any],
    c: Constants,
    overlaps: Overlaps,
    lam: Real,
    gate: Gate | None = None,
    *nodes: Nodes,
) -> Any:
    """`formula(c, overlaps, lam, gate, *nodes)`, which works point by point, on arrays that
    broadcast.

    Points are computed `CHUNK` at a time. Traced values, and gates with an array of offsets, are
    passed on unchanged.

    Arguments:
        formula: such as `total_risk`, `terms_of_risk` or `partials_of_risk`.
        c, overlaps, lam: of shapes that broadcast.
        gate, nodes: passed on unless `gate` is None.

    Returns: the tree of the formula, with arrays of the common shape.
    """
    options = () if gate is None else (gate, *nodes)
    inputs = (*c, *overlaps, lam)
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((inputs, gate)))
    if traced or (gate is not None and np.ndim(gate.offset)):
        return formula(c, overlaps, lam, *options)
    arrays = np.broadcast_arrays(*(np.asarray(x, float) for x in inputs))
    found = map_chunks(
        lambda *x: formula(Constants(*x[:4]), Overlaps(*x[4:9]), x[9], *options),
        [x.ravel() for x in arrays],
        CHUNK,
    )
    return jax.tree.map(lambda x: x.reshape(arrays[0].shape), found)


@functools.partial(jax.jit, static_argnames="nodes")
def total_risk(
    c: Constants, overlaps: Overlaps, lam: Real, gate: Gate | None = None, nodes: Nodes = FINE
) -> Array:
    """The risk, the sum of `terms_of_risk`.

    Arguments: as in `terms_of_risk`.
    """
    return sum(terms_of_risk(c, overlaps, lam, gate, nodes), start=jnp.zeros(()))


@functools.partial(jax.jit, static_argnames="nodes")
def terms_of_risk(
    c: Constants, overlaps: Overlaps, lam: Real, gate: Gate | None = None, nodes: Nodes = FINE
) -> RiskTerms:
    r"""The parts of the risk (Theorem 1): condition on the place, then Stein's lemma.

    The informative token gives $(a, b, y)$ with means $(m\kappa, m\theta, 0)$ and covariance
    $\gamma^2$ times $(\rho, \eta, \nu)$; another token gives $(a, b)$ of correlation $\rho$;
    products of two tokens factor. With $e_j$ and $z_j$ the smoothed derivatives of $g$ and $g^2$
    at the informative token, $s = \lambda\gamma^2$ and $\mu = m\theta$:
    $E[gby] = \gamma^2(\nu e_0 + \lambda\eta(\mu e_1 + s\rho e_2))$,
    $E[g^2b^2] = (\mu^2 + \gamma^2)z_0 + 2s\rho\mu z_1 + (s\rho)^2z_2$.

    Arguments:
        c, overlaps, lam: of shapes that broadcast.
        gate: $g$; None is erf, in closed form.
        nodes: panels and reach of the quadrature (`gaussian_nodes`), for a gate.
    """
    (e, z), (mean, square) = smoothed_gate(c, overlaps.kappa, lam, gate, nodes)
    _, nu, theta, eta, rho = (jnp.asarray(x) for x in overlaps)
    others, s, mu = c.length - 1, lam * c.gamma**2, c.m * theta
    here, elsewhere = mu * e[0] + s * rho * e[1], lam * mean[1] * rho
    return RiskTerms(
        target=jnp.asarray(c.noise**2 + c.gamma**2 + 0 * nu),
        signal=-2 * c.gamma**2 * (nu * e[0] + lam * eta * (mu * e[1] + s * rho * e[2])),
        informative=(mu**2 + c.gamma**2) * z[0] + 2 * s * rho * mu * z[1] + (s * rho) ** 2 * z[2],
        background=others * (square[0] + (lam * rho) ** 2 * square[2]),
        coupling=others * elsewhere * (2 * here + (others - 1) * elsewhere),
    )


@jax.jit
def partials_of_risk(
    c: Constants, overlaps: Overlaps, lam: Real, gate: Gate | None = None
) -> Overlaps:
    """Partial derivatives of `total_risk` in the five overlaps.

    That in kappa uses the smoothed derivatives of the gate, which exist for a threshold too.

    Arguments: as in `terms_of_risk`.
    """
    (e, z), (mean, square) = smoothed_gate(c, overlaps.kappa, lam, gate)
    _, nu, theta, eta, rho = (jnp.asarray(x) for x in overlaps)
    mu, s, g2 = c.m * theta, lam * c.gamma**2, c.gamma**2
    elsewhere = lam * mean[1]
    others = (c.length - 1) * elsewhere
    in_mean = (
        -2 * g2 * (nu * e[1] + lam * eta * (mu * e[2] + s * rho * e[3]))
        + (mu**2 + g2) * z[1]
        + 2 * s * mu * rho * z[2]
        + (s * rho) ** 2 * z[3]
        + 2 * others * rho * (mu * e[1] + s * rho * e[2])
    )
    return Overlaps(
        kappa=lam * c.m * in_mean,
        nu=-2 * g2 * e[0],
        theta=2 * c.m * (-s * eta * e[1] + mu * z[0] + s * rho * z[1] + others * rho * e[0]),
        eta=-2 * s * (mu * e[1] + s * rho * e[2]),
        rho=2
        * (
            s * (-s * eta * e[2] + mu * z[1] + s * rho * z[2])
            + rho * ((c.length - 1) * lam**2 * square[2] + (c.length - 2) * others * elsewhere)
            + others * (mu * e[0] + 2 * s * rho * e[1])
        ),
    )


def smoothed_gate(
    c: Constants, kappa: Real, lam: Real, gate: Gate | None, nodes: Nodes = FINE
) -> tuple[Any, Any]:
    r"""`smoothed_derivatives` of the gate at the informative token and at another.

    Their means and spreads are $(\lambda m\kappa, \lambda\gamma)$ and $(0, \lambda)$; the gate's
    offset is subtracted from the means.

    Arguments:
        kappa, lam: of shapes that broadcast.
        c, gate, nodes: as in `terms_of_risk`.

    Returns: for each of the two tokens, $g$ and $g^2$ with three derivatives each.
    """
    lam = jnp.asarray(lam, float)
    mean, spread = lam * c.m * kappa, lam * c.gamma
    if gate is None:
        return smoothed_erf(mean, spread), smoothed_erf(0 * lam, lam)
    here = smoothed_derivatives(gate.function, mean - gate.offset, spread, *nodes)
    return here, smoothed_derivatives(gate.function, 0 * lam - gate.offset, lam, *nodes)


@float64
@public
def sampled_risk(
    task: SingleLocation,
    overlaps: Overlaps,
    lam: ArrayLike,
    key: Array,
    samples: int,
    activation: str | Activation | Gate = "erf",
) -> Estimate:
    """`risk` by simulation of the projections on k, v and v*, which is exact in law.

    Costs O(length) a sample. All points share their random numbers, so that differences between
    them are more precise than either.

    Arguments:
        activation: as in `risk`, or "softmax", whose risk has no formula; `lam` is then the inverse
            temperature.
        task, overlaps, lam: as in `risk`, of shapes that broadcast.
        key: of JAX. `samples`: sequences.

    >>> import jax
    >>> from attlas.single_location import ORACLE, SingleLocation, risk, sampled_risk
    >>> task = SingleLocation(dim=400, length=10)
    >>> found = sampled_risk(task, ORACLE, 0.1, jax.random.key(0), samples=100_000)
    >>> bool(abs(found.mean - risk(task, ORACLE, 0.1)) < 4 * found.error)
    True
    """
    head = as_head(activation)
    arrays = np.broadcast_arrays(
        *(np.asarray(x, float) for x in (*overlaps.checked(), positive("lam", lam)))
    )
    args = (task.constants, Overlaps(*arrays[:5]), arrays[5])
    return averaged(draw_loss, key, whole("samples", samples, 2), *args, head)


def draw_loss(generator: np.random.Generator, block: int, *args: Any) -> Float[np.ndarray, "*s n"]:
    """The squared errors of `draw_projected`."""
    prediction, target = draw_projected(generator, block, *args)
    return (prediction - target) ** 2


def draw_projected(
    generator: np.random.Generator,
    block: int,
    c: Constants,
    overlaps: Overlaps,
    lam: np.ndarray,
    head: Gate | None,
) -> tuple[Float[np.ndarray, "*s n"], Float[np.ndarray, "*s n"]]:
    """Predictions and targets of `block` sequences, from projections on k, v and v*.

    Softmax sums are kept relative to the largest score so far.

    Arguments:
        block: sequences, n.
        overlaps, lam: arrays of one shape [*s].
        head: the gate; None is softmax, with the inverse temperature `lam`.

    Returns: predictions and targets [*s, n]; all points share their random numbers.
    """
    lam, rho = lam[..., None], overlaps.rho[..., None]
    a, b, target = _draw_informative(generator, block, c, overlaps)
    slope = np.sqrt(np.maximum(1 - rho**2, 0))
    weighted, total, top = (
        (b, np.ones(()), lam * a) if head is None else (head.values(a, lam) * b, 0, 0)
    )
    for _ in range(1, int(c.length)):
        a, g = generator.standard_normal((2, block))
        b = rho * a + slope * g
        if head is None:
            new = np.maximum(top, lam * a)
            old, here = np.exp(top - new), np.exp(lam * a - new)
            top, total, weighted = new, total * old + here, weighted * old + here * b
        else:
            weighted = weighted + head.values(a, lam) * b
    return (weighted / total if head is None else weighted), target


def _draw_informative(
    generator: np.random.Generator, block: int, c: Constants, overlaps: Overlaps
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Products of the informative token with k and v, and the target."""
    products = [2, 3, 1]  # with k, v and v*
    gram = overlaps.gram()[..., products, :][..., products]
    # A root that also exists where the Gram matrix is singular.
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
    a, b, y = np.moveaxis(c.gamma * root @ generator.standard_normal((3, block)), -2, 0)
    noise = c.noise * generator.standard_normal(block)
    kappa, theta = overlaps.kappa[..., None], overlaps.theta[..., None]
    return c.m * kappa + a, c.m * theta + b, y + noise
