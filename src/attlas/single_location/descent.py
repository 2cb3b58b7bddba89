r"""Projected gradient descent on two spheres (Marion et al. 2025, Definition 1).

$$k^+ = N(k - \alpha (I - kk^\top) \nabla_k R),\quad v^+ = N(v - \alpha (I - vv^\top) \nabla_v R)$$

with $N$ the normalisation. Because $R$ depends on the five overlaps alone, so does the next value
of each of them: a step costs the same in every dimension.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, ArrayLike, Float

from attlas.errors import InputError, whole
from attlas.gaussian import Real, draw_gamma, float64
from attlas.order_parameters.paths import recorded
from attlas.padding import pad_axis
from attlas.scan import Trajectory, in_groups, iterate
from attlas.schedules import Schedule, as_schedule
from attlas.single_location.gates import Activation, Gate, as_gate
from attlas.single_location.population import (
    Overlaps,
    gate_unless_erf,
    partials_of_risk,
    total_risk,
    unit_vectors,
)
from attlas.single_location.task import Constants, SingleLocation
from attlas.surface import described, public


@float64
@public
def descend(
    task: SingleLocation,
    start: Overlaps,
    *,
    lam: Real | Schedule,
    step_size: Real | Schedule,
    steps: int,
    record_every: int = 100,
    penalty: float = 0.0,
    activation: str | Activation | Gate = "erf",
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    r"""Descend the population risk on the five overlaps, from each of `start`.

    The path is the d-dimensional one to rounding where descent is stable (a step size below
    `landscape.stable_step`, a sharpness at which the oracle attracts); elsewhere rounding grows.

    Arguments:
        start: overlaps [repeat].
        lam, step_size: numbers, arrays [repeat], or schedules $t \mapsto \lambda_t$
            (`InverseDecay`, `GeometricDecay`, or a function that JAX can trace).
        penalty: multiple of $\langle v, E[\tfrac1L\sum_l X_l]\rangle^2 = (m\theta/L)^2$ that is
            added to what is descended, not to what is reported.
        record_every: records are taken before the first step, after every so many steps, and after
            the last.
        activation: the head's gate, as in `risk`.
        progress: called with the steps done and all steps.
        task: the task; its risk is descended.
        steps: how many.

    Returns: a Dataset over (repeat, step) with the overlaps, `risk` and `distance`, all after the
    same number of steps and at that step's $\lambda_t$; `status` over repeat, "completed" or
    "diverged", and the steps `survived`. Each says in its attribute `long_name` what it is.

    >>> from attlas.single_location import InverseDecay, Overlaps, SingleLocation, descend
    >>> task = SingleLocation(dim=100, length=5)
    >>> start, lam = Overlaps(0.1, 0.1, 0, 0, 0), InverseDecay(0.6)
    >>> path = descend(task, start, lam=lam, step_size=0.02, steps=1000)
    >>> print(*(round(float(x), 3) for x in path.kappa.isel(repeat=0, step=[0, 5, -1])))
    0.1 0.502 0.548
    >>> path.status.item()
    'completed'
    """
    gate, overlaps = gate_unless_erf(as_gate(activation)), as_starts(start)
    if not (np.isfinite(penalty) and penalty >= 0):
        raise InputError(f"penalty = {penalty!r}: it must be a number, 0 or larger")
    steps = whole("steps", steps, 0)
    for name, value in (("lam", lam), ("step_size", step_size)):
        if not callable(value) and np.shape(value) not in ((), (1,), overlaps.kappa.shape):
            raise InputError(
                f"{name} has the shape {np.shape(value)}: one value, or one for each of "
                f"{len(overlaps.kappa)} starts"
            )
    weight = np.asarray(2 * penalty * (task.m / task.length) ** 2)
    schedules = (as_schedule("lam", lam, steps), as_schedule("step_size", step_size, steps))
    args = (task.constants, *schedules, weight, gate)
    repeats = len(overlaps.kappa)

    def descend_group(_: int, rows: np.ndarray, progress: Any) -> Trajectory:
        start, settings = jax.tree.map(
            lambda x: x[rows] if np.shape(x) == (repeats,) else x, (overlaps, args)
        )
        options = {"steps": steps, "record_every": record_every, "progress": progress}
        return iterate(step_overlaps, observe_overlaps, start, settings, **options)

    lanes = next((lanes for lanes in LANES if repeats <= lanes), LANES[-1])
    path = in_groups(descend_group, repeats, lanes, steps, progress)
    return with_settings(as_dataset(path), task, lam=lam, step_size=step_size)


LANES = (16, 32, 64)
"""Starts that descend together: the fewest that hold them all, or as many groups of the most as
it takes, so that three compiled programs serve every number of starts. A step of 128 takes three
to four times the CPU of a step of 64."""


def as_starts(start: Overlaps) -> Overlaps:
    """`start`, checked, as NumPy float64 arrays [repeat], in any precision context."""
    arrays = (np.atleast_1d(np.asarray(x, float)) for x in start.checked())
    return Overlaps(*np.broadcast_arrays(*arrays))


def as_vectors(task: SingleLocation, k: ArrayLike, v: ArrayLike, dtype: Any) -> tuple[Array, Array]:
    """`k` and `v` as arrays [repeat, dim], checked to have unit length and the task's width.

    Arguments:
        k, v: [dim] or [repeat, dim].
        dtype: the precision of what comes back.
    """
    k, v = (jnp.atleast_2d(jnp.asarray(x, dtype)) for x in (k, v))
    widths = k.shape[-1], v.shape[-1]
    if widths != (task.dim, task.dim):
        raise InputError(
            f"k and v have widths {widths[0]} and {widths[1]}: the task has dim = {task.dim}"
        )
    unit_vectors(k, v)
    return k, v


def with_settings(data: xr.Dataset, task: SingleLocation, **settings: Any) -> xr.Dataset:
    words = {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in settings.items()
    }
    return data.assign_attrs(
        dim=task.dim, length=task.length, gamma=task.gamma, noise=task.noise, **words
    )


@float64
@public
def descend_vectors(
    task: SingleLocation,
    k: Float[ArrayLike, "repeat dim"],
    v: Float[ArrayLike, "repeat dim"],
    *,
    lam: Real | Schedule,
    step_size: Real | Schedule,
    steps: int,
    record_every: int = 100,
    direction: str = "gradient",
) -> xr.Dataset:
    """The same descent on vectors, by automatic differentiation: the reference.

    Arguments:
        direction: "gradient", or "sign", which moves each coordinate by the sign of its gradient
            and does not commute with rotations.
        k, v: starts [repeat, dim] of unit length.
        others: as in `descend`.

    >>> from attlas.single_location import SingleLocation, descend_vectors
    >>> import numpy as np
    >>> task = SingleLocation(dim=6, length=5)
    >>> k, v = np.eye(6)[[2]], np.eye(6)[[3]]
    >>> path = descend_vectors(task, k, v, lam=0.6, step_size=0.05, steps=200)
    >>> print(path.sizes["step"], path.status.item())
    3 completed
    """
    if direction not in _DIRECTIONS:
        raise InputError(f"direction = {direction!r}: it must be one of {', '.join(_DIRECTIONS)}")
    vectors = (*as_vectors(task, k, v, float), task.k_star, task.v_star)
    # Zeros stay zeros, and one compiled program serves every dimension up to a whole width.
    wide: list[Any] = [pad_axis(x, task.dim + -task.dim % WIDTH, -1) for x in vectors]
    steps = whole("steps", steps, 0)
    schedules = as_schedule("lam", lam, steps), as_schedule("step_size", step_size, steps)
    path = iterate(
        _DIRECTIONS[direction],
        observe_vectors,
        (wide[0], wide[1]),
        (task.constants, *wide[2:], *schedules),
        steps=steps,
        record_every=record_every,
    )
    return as_dataset(path)


WIDTH = 400


class Tangents(NamedTuple):
    """Inner products of the tangential gradients u_k, u_v with the stars, k, v and each other."""

    k_kstar: Array
    k_vstar: Array
    k_v: Array
    v_kstar: Array
    v_vstar: Array
    v_k: Array
    k_k: Array
    v_v: Array
    k_u: Array  # u_k with u_v


def tangents(
    constants: Constants, x: Overlaps, lam: Real, penalty: Real = 0.0, gate: Gate | None = None
) -> Tangents:
    r"""Inner products of the tangential gradients at `x` of the risk plus `penalty` times
    $\theta^2/2$.

    $u_k = (I - kk^\top)\nabla_k$ and $u_v = (I - vv^\top)\nabla_v$. In the code `a, b, c, e, f` are
    the partial derivatives in the order of `Overlaps`.

    Arguments:
        constants, x, lam: of shapes that broadcast.
        penalty: the multiple of $\theta^2/2$ that is added to the risk.
        gate: the head's gate, as in `terms_of_risk`.
    """
    kappa, nu, theta, eta, rho = x
    a, b, c, e, f = partials_of_risk(constants, x, lam, gate)
    c = c + penalty * theta
    along_k = kappa * a + eta * e + rho * f
    along_v = nu * b + theta * c + rho * f
    k_kstar = a + f * theta - along_k * kappa
    k_vstar = e + f * nu - along_k * eta
    k_v = a * theta + e * nu + f - along_k * rho
    v_kstar = c + f * kappa - along_v * theta
    v_vstar = b + f * eta - along_v * nu
    v_k = b * eta + c * kappa + f - along_v * rho
    return Tangents(
        k_kstar,
        k_vstar,
        k_v,
        v_kstar,
        v_vstar,
        v_k,
        k_k=a * k_kstar + e * k_vstar + f * k_v,
        v_v=b * v_vstar + c * v_kstar + f * v_k,
        k_u=b * k_vstar + c * k_kstar - along_v * k_v,
    )


def step_overlaps(t: Array, x: Overlaps, args: Any) -> Overlaps:
    """One step of descent, written in the five overlaps."""
    constants, lam, step_size, penalty, gate = args
    kappa, nu, theta, eta, rho = x
    alpha = step_size(t)
    u = tangents(constants, x, lam(t), penalty, gate)
    norm_k, norm_v = jnp.sqrt(1 + alpha**2 * u.k_k), jnp.sqrt(1 + alpha**2 * u.v_v)
    return Overlaps(
        kappa=(kappa - alpha * u.k_kstar) / norm_k,
        nu=(nu - alpha * u.v_vstar) / norm_v,
        theta=(theta - alpha * u.v_kstar) / norm_v,
        eta=(eta - alpha * u.k_vstar) / norm_k,
        rho=(rho - alpha * (u.k_v + u.v_k) + alpha**2 * u.k_u) / (norm_k * norm_v),
    )


def observe_overlaps(t: Array, x: Overlaps, args: Any) -> dict[str, Array]:
    return {
        **x._asdict(),
        "risk": total_risk(args[0], x, args[1](t), args[-1]),
        "distance": x.distance,
    }


def observe_vectors(t: Array, x: tuple[Array, Array], args: Any) -> dict[str, Array]:
    constants, k_star, v_star, lam, _ = args
    return observe_overlaps(t, Overlaps._of(x[0], x[1], k_star, v_star), (constants, lam, None))


def move(x: Array, direction: Array, alpha: Real) -> Array:
    alpha = jnp.asarray(alpha)[..., None]
    moved = x - alpha * (direction - (x * direction).sum(-1, keepdims=True) * x)
    return moved / jnp.linalg.norm(moved, axis=-1, keepdims=True)


def step_vectors(
    t: Array, x: tuple[Array, Array], args: Any, sign: bool = False
) -> tuple[Array, Array]:
    """One step of descent on vectors, by automatic differentiation of the risk.

    Arguments:
        t: steps done.
        x: $k$ and $v$, each [repeat, dim].
        args: the task's constants, $k^*$, $v^*$, and the schedules of lam and of the step size.
        sign: move by the signs of the gradients' coordinates.
    """
    constants, k_star, v_star, lam, step_size = args
    gradients = jax.grad(
        lambda x: total_risk(constants, Overlaps._of(x[0], x[1], k_star, v_star), lam(t)).sum()
    )(x)
    in_k, in_v = (jnp.sign(g) if sign else g for g in gradients)
    return move(x[0], in_k, step_size(t)), move(x[1], in_v, step_size(t))


_DIRECTIONS: dict[str, Any] = {
    "gradient": step_vectors,
    "sign": functools.partial(step_vectors, sign=True),
}


def as_dataset(path: Trajectory) -> xr.Dataset:
    """What was observed, over (repeat, step)."""
    variables = {name: (("repeat", "step"), values.T) for name, values in path.observed.items()}
    return in_words(recorded(path, variables))


def in_words(data: xr.Dataset) -> xr.Dataset:
    """A run of five overlaps whose variables say what they are."""
    return described(
        data,
        step="steps done",
        kappa="product of k with k*",
        nu="product of v with v*",
        theta="product of v with k*",
        eta="product of k with v*",
        rho="product of k with v",
        risk="risk, noise included",
        distance="distance to the manifold theta = eta = rho = 0",
        status="whether all steps were finite",
        survived="steps after which all was finite",
    )


@public
def sphere_start(task: SingleLocation, key: Array, repeats: int) -> Overlaps:
    """Overlaps of k and v uniform on the sphere: exact in law, at a cost independent of dim.

    Arguments:
        task: whose dimension and stars count. `key`: of JAX. `repeats`: starts.

    >>> import jax
    >>> from attlas.single_location import SingleLocation, sphere_start
    >>> start = sphere_start(SingleLocation(dim=400), jax.random.key(0), repeats=1000)
    >>> print(start.kappa.shape, round(float(start.kappa.std() * 400**0.5), 1))
    (1000,) 1.0
    """
    return _overlaps_in_frame(*_frame(key, repeats, task.dim))


@public
def manifold_start(task: SingleLocation, key: Array, repeats: int) -> Overlaps:
    """The paper's start on the manifold.

    k is uniform among the unit vectors orthogonal to v*, then v among those orthogonal to k* and k.

    Arguments:
        others: as in `sphere_start`.

    >>> import jax
    >>> from attlas.single_location import SingleLocation, manifold_start
    >>> start = manifold_start(SingleLocation(dim=50), jax.random.key(0), repeats=3)
    >>> print(start.theta, start.eta, start.rho)
    [0. 0. 0.] [0. 0. 0.] [0. 0. 0.]
    """
    k, v = _frame(key, repeats, task.dim)
    k[1] = v[0] = v[2] = 0
    return _overlaps_in_frame(k, v)


@float64
def _frame(key: Array, repeats: int, dim: int) -> Float[np.ndarray, "2 4 repeat"]:
    """Gaussian k and v in coordinates (k*, v*, the rest of k, the rest of v)."""
    blocks = range(-(-whole("repeats", repeats, 1) // FRAMES))
    frames = np.concatenate([np.asarray(_frames(key, block, dim)) for block in blocks], -1)
    return frames[..., :repeats]


FRAMES = 128
"""Frames drawn at a time, from a key of their own: one compiled program serves every number of
repeats, and a frame's numbers do not depend on it."""


@jax.jit
def _frames(key: Array, block: int | Array, dim: int | Array) -> Float[Array, "2 4 block"]:
    planes, rest = jax.random.split(jax.random.fold_in(key, block))
    g = jax.random.normal(planes, (5, FRAMES))
    chi = jnp.sqrt(2 * draw_gamma(rest, (dim - jnp.array([[2], [3]])) / 2, (2, FRAMES)))
    zero = jnp.zeros(FRAMES)
    return jnp.array([[g[0], g[1], chi[0], zero], [g[2], g[3], g[4], chi[1]]])


def _overlaps_in_frame(k: np.ndarray, v: np.ndarray) -> Overlaps:
    k, v = k / np.linalg.norm(k, axis=0), v / np.linalg.norm(v, axis=0)
    return Overlaps(k[0], v[1], v[0], k[1], (k * v).sum(0))
