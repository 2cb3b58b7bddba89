"""Points at which the gradient of a risk in overlaps vanishes, and whether they attract."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from attlas.gaussian import float64
from attlas.order_parameters.population import (
    SETS,
    draw_points,
    keep,
    loss_and_gradient,
    prepare,
    risk,
    tangent,
)
from attlas.order_parameters.problem import Draw, Overlaps, Problem, State, check_problem
from attlas.order_parameters.refusals import refuse_unfit
from attlas.quasi_newton import minimise
from attlas.surface import public, refusing


def _velocity(problem: Problem, u: Array, r: int, points: Draw, constraint: str) -> Array:
    _, g = loss_and_gradient(points, problem, State(u[:, :r], u[:, r:]))
    return -tangent(u, jnp.concatenate([g.m, g.c], -1), constraint)


@functools.partial(jax.jit, static_argnames=("r", "constraint"))
def _linearised(problem: Problem, u: Array, r: int, points: Draw, constraint: str) -> Any:
    def velocity(u: Array) -> Array:
        return _velocity(problem, u, r, points, constraint)

    return velocity(u), jax.jacfwd(velocity)(u)


@float64
@public
@refusing(refuse_unfit)
def stability(
    problem: Problem,
    overlaps: Overlaps,
    *,
    constraint: str = "none",
    points: int = 1 << 13,
    seed: int = 0,
) -> xr.Dataset:
    """Whether overlaps [repeat, ...] are fixed points of gradient flow, and of which kind.

    The flow is linearised in r + p + 1 dimensions, one more than students span. Rotations outside
    the teacher's span, which change no overlap, and moves across the constraint are projected out.

    Arguments:
        problem: one. `overlaps`: [repeat, ...].
        points, seed: as in `risk`. `constraint`: as in `descend`.

    Returns: a Dataset over `repeat` with `speed`, the length of the gradient along the constraint,
    growth rates `rate` (repeat, mode), the largest first (above 0: unstable), and `directions`.

    >>> import numpy as np
    >>> from attlas.order_parameters import Heads, Overlaps, Places, Problem, ValueSum, stability
    >>> problem = Problem(Places(3, [3.0]), ValueSum(), Heads("erf", lam=0.5))
    >>> oracle = Overlaps(np.eye(2)[None], np.eye(2)[None])
    >>> found = stability(problem, oracle, constraint="unit", points=128)
    >>> print(sorted(found.data_vars))
    ['directions', 'rate', 'speed']
    """
    overlaps = overlaps.checked(constraint)
    m, c = overlaps.coordinates()
    p, r = m.shape[-2:]
    shape = check_problem(problem, State(m[0], c[0]))
    wider = shape._replace(p=p + 1)
    drawn = draw_points(problem, wider, points, seed)
    speeds, rates, modes = [], [], []
    for one_m, one_c in zip(m, c, strict=True):
        u = np.concatenate([one_m, one_c, np.zeros((p, 1))], -1)
        velocity, jacobian = _linearised(problem, u, r, drawn, constraint)
        basis = _free_directions(u, r, constraint)
        matrix = basis.T @ np.asarray(jacobian).reshape(u.size, u.size) @ basis
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        speeds.append(np.linalg.norm(velocity))
        rates.append(values[::-1])
        modes.append((basis @ vectors[:, ::-1]).T.reshape(-1, *u.shape))
    most = max(map(len, rates))
    padded = [np.pad(x, (0, most - len(x)), constant_values=np.nan) for x in rates]
    wide = [np.pad(x, ((0, most - len(x)), (0, 0), (0, 0))) for x in modes]
    return xr.Dataset(
        {
            "speed": ("repeat", np.array(speeds)),
            "rate": (("repeat", "mode"), np.stack(padded)),
            "directions": (("repeat", "mode", "column", "coordinate"), np.stack(wide)),
        }
    )


def _free_directions(u: np.ndarray, r: int, constraint: str) -> np.ndarray:
    """An orthonormal basis [p n, k] of moves that keep the constraint and change an overlap."""
    p, n = u.shape
    fixed = []
    for i in range(r, n):
        for j in range(i):
            if j >= r:
                turn = np.zeros((n, n))
                turn[i, j], turn[j, i] = 1, -1
                fixed.append(u @ turn)
    for i in range(p):
        for j in range(i + 1):
            if constraint == "orthonormal" or (constraint == "unit" and i == j):
                normal = np.zeros((p, n))
                normal[i] += u[j]
                normal[j] += u[i]
                fixed.append(normal)
    if not fixed:
        return np.eye(u.size)
    _, sizes, axes = np.linalg.svd(np.stack([x.ravel() for x in fixed]))
    return axes[int((sizes > 1e-9).sum()) :].T


@functools.cache
def _speed(constraint: str) -> Any:
    def objective(states: State, args: Any) -> Array:
        problems, points = args

        def of(problem: Problem, state: State) -> Array:
            u = state.u
            return (_velocity(problem, u, state.m.shape[-1], points, constraint) ** 2).sum()

        kept = jax.vmap(lambda state: keep(state, constraint))(states)
        return jax.vmap(of)(problems, kept)

    return objective


@float64
@public
@refusing(refuse_unfit)
def fixed_points(
    problem: Problem,
    start: Overlaps,
    *,
    constraint: str = "none",
    points: int = 1 << 11,
    trips: int = 300,
    seed: int = 0,
) -> xr.Dataset:
    """Fixed points of gradient flow near starts [repeat], saddles too: least squared gradients with
    `m`, `q`, `risk` and what `stability` says. One not reached has a `speed` well above 0.

    Arguments:
        problem: one. `start`: overlaps [repeat, ...].
        constraint, points, seed: as in `descend`. `trips`: evaluations at most.

    >>> import numpy as np
    >>> from attlas.order_parameters import Heads, Overlaps, Places, Problem, ValueSum, fixed_points
    >>> problem = Problem(Places(3, [3.0]), ValueSum(), Heads("erf", lam=0.5))
    >>> start = Overlaps(0.9 * np.eye(2)[None], np.eye(2)[None])
    >>> found = fixed_points(problem, start, constraint="unit", points=128, trips=40)
    >>> print(sorted(found.data_vars))
    ['directions', 'error', 'm', 'q', 'rate', 'risk', 'speed']
    """
    problems, state, shape = prepare(problem, start, None, constraint)
    drawn = draw_points(problem, shape, points, seed)
    found = minimise(_speed(constraint), state, (problems, drawn), trips=trips, tolerance=1e-9)
    kept = keep(jax.tree.map(jnp.asarray, found.point), constraint)
    overlaps = Overlaps(np.asarray(kept.m), np.asarray(kept.q))
    data = stability(problem, overlaps, constraint=constraint, points=points, seed=seed)
    value, error = risk(problem, overlaps, points=SETS * points, seed=seed)
    return data.assign(
        speed=("repeat", np.sqrt(np.maximum(found.value, 0))),
        m=(("repeat", "column", "direction"), overlaps.m),
        q=(("repeat", "column", "other"), overlaps.q),
        risk=("repeat", value),
        error=("repeat", error),
    )
