r"""Risk of a problem as a function of overlaps, its gradients and its minima.

Where there is no closed form, a risk is a mean over quasi-random sequences that all overlaps share
(scrambled Sobol points), differentiated point by point. In the coordinates $U = W^*M^\top +
VC^\top$ the gradient is $W^*(\partial_MR)^\top + V(\partial_CR)^\top$ with the other held fixed: no
root of $Q - MM^\top$ is differentiated, which would fail where the student reaches the teacher.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.errors import InputError, whole
from attlas.gaussian import Estimate, float64
from attlas.order_parameters.problem import (
    CONSTRAINTS,
    Draw,
    Drawn,
    Overlaps,
    Problem,
    Shape,
    State,
    Tokens,
    as_problems,
    at_step,
    check_problem,
    draw_sequences,
    sequence_losses,
)
from attlas.order_parameters.refusals import refuse_product, refuse_search, refuse_unfit
from attlas.quasi_newton import minimise
from attlas.surface import public, refusing

BLOCK = 128
"""Sequences whose fields are in memory at a time, for each repeat: they fit into a core's cache."""
Points = Draw | Drawn
"""Sequences in blocks [block, ..., n], or the random numbers that they are made of."""
SETS = 16
"""Independent scrambled sets of points, from which the error of a mean is read."""


def draw_points(
    problem: Problem, shape: Shape, points: int, seed: int, place: int = 0, quasi: bool = True
) -> Draw:
    """Random numbers of `points` sequences, in blocks: normals [block, r + p, L, n] and so on.

    Arguments:
        problem, shape: as `check_problem` gives it. `seed, place`: each pair has its own numbers.
        points: rounded up to a power of two, beyond `BLOCK` to a multiple of it, each block a net.
        quasi: scrambled Sobol points; plain random numbers otherwise.
    """
    count = whole("points", points, 1)
    count = -(-count // BLOCK) * BLOCK if count > BLOCK else 1 << (count - 1).bit_length()
    width = shape.length * (shape.r + shape.p)
    sizes = (width, problem.uniforms, problem.noises)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(place,)))
    if quasi:
        engine = scipy.stats.qmc.Sobol(sum(sizes), seed=rng)  # loaded where it is used
        nets = [engine.random(min(count, BLOCK)) for _ in range(-(-count // BLOCK))]
        u = np.concatenate(nets)
        u = (np.floor(u * 2**30) + 0.5) / 2**30  # never 0
        normals, uniforms, noise = np.split(u, np.cumsum(sizes)[:2], axis=1)
        normals, noise = special.ndtri(normals), special.ndtri(noise)
    else:
        normals, noise = (rng.standard_normal((count, n)) for n in (sizes[0], sizes[2]))
        uniforms = rng.uniform(size=(count, sizes[1]))
    blocks = -(-count // BLOCK)
    parts = (normals.reshape(count, -1, shape.length), uniforms, noise)
    split = (x.reshape(blocks, -1, *x.shape[1:]) for x in parts)
    return Draw(*(np.ascontiguousarray(np.moveaxis(x, 1, -1)) for x in split))


@jax.jit
def sequences(problem: Problem, points: Draw) -> Drawn:
    """Sequences [block, ..., n] in the precision of their numbers, without means and roots."""
    here = in_precision(problem, points)

    def of_block(block: Draw) -> Drawn:
        drawn = draw_sequences(here, block)
        return drawn._replace(tokens=Tokens(None, None, drawn.tokens.present))

    return jax.lax.map(of_block, points)


@functools.partial(jax.jit, static_argnames="count")
def _each_sequences(problems: Problem, points: Draw, count: int) -> Drawn:
    """Sequences [problem, block, ..., n]; problems of plain functions have no numbers to map."""
    return jax.vmap(sequences, (0, None), axis_size=count)(problems, points)


def mean_loss(points: Points, problem: Problem, state: State) -> Array:
    """The risk of one state: exact, or the mean over points [block, ..., n], in their precision."""
    if problem.exact is not None:
        return problem.exact(state.m, state.q)
    here, there = in_precision((problem, state), points)

    def add(total: Array, block: Any) -> tuple[Array, None]:
        return total + sequence_losses(here, there, block).mean().astype(float), None

    return jax.lax.scan(add, jnp.zeros((), float), points)[0] / len(points[0])


def loss_and_gradient(points: Points, problem: Problem, state: State) -> tuple[Array, State]:
    """`mean_loss` and its derivatives in (M, C) and the parameters, block by block."""
    if problem.exact is not None:
        return jax.value_and_grad(lambda s: problem.exact(s.m, s.q))(state)
    here, there = in_precision((problem, state), points)

    def block_loss(state: State, block: Any) -> Array:
        return sequence_losses(here, state, block).mean()

    def add(total: Any, block: Any) -> tuple[Any, None]:
        found = jax.value_and_grad(block_loss)(there, block)
        return jax.tree.map(lambda x, y: x + y.astype(float), total, found), None

    zero = (jnp.zeros((), float), jax.tree.map(lambda x: jnp.zeros(x.shape, float), state))
    total, _ = jax.lax.scan(add, zero, points)
    return jax.tree.map(lambda x: x / len(points[0]), total)


def in_precision(tree: Any, points: Points) -> Any:
    """The numbers of a tree in the precision of the points."""
    return jax.tree.map(lambda x: jnp.asarray(x, points[0].dtype), tree)


def repeated(function: Any, points: Points, problems: Problem, *others: Any) -> Any:
    """`function(points, problem, ...)` of each repeat: samples one after the other."""
    if problems.exact is not None:
        return jax.vmap(functools.partial(function, points))(problems, *others)
    return jax.lax.map(lambda one: function(points, *one), (problems, *others))


class Prepared(NamedTuple):
    """Checked input of a computation, everything with a leading axis [repeat]."""

    problems: Problem
    state: State
    shape: Shape


def prepare(
    problem: Problem | Sequence[Problem],
    overlaps: Overlaps,
    parameters: Any = None,
    constraint: str = "none",
    dim: Any = None,
    scheduled: bool = False,
) -> Prepared:
    """Check that overlaps, parameters and problem fit, before anything runs. Schedules of the
    problem have their values at step 0 unless it is `scheduled`; the rest is as in `descend`."""
    overlaps = overlaps.checked(constraint)
    repeats = len(overlaps.m)
    problems = as_problems(problem, repeats)
    parameters = jax.tree.map(lambda x: np.asarray(x, float), parameters)
    for leaf in jax.tree.leaves(parameters):
        if np.shape(leaf)[:1] != (repeats,):
            raise InputError(
                f"parameters have the shape {np.shape(leaf)}: their first axis is that of"
                f" {repeats} starts"
            )
    state = State(*overlaps.coordinates(), parameters)
    at_start = at_step(problems, 0)
    one, start = jax.tree.map(lambda x: x[0], (at_start, state))
    least = None if dim is None else int(np.min(dim))
    shape = check_problem(one, start, least)
    return Prepared(problems if scheduled else at_start, state, shape)


@float64
@public
@refusing(refuse_unfit)
def risk(
    problem: Problem | Sequence[Problem],
    overlaps: Overlaps,
    parameters: Any = None,
    *,
    points: int = 1 << 14,
    seed: int = 0,
    quasi: bool = True,
) -> Estimate:
    """The expected loss at overlaps [repeat, ...], and its standard error: exact, with error 0,
    where there is a closed form, else a mean over `points` sequences.

    Arguments:
        problem: one, or one for each repeat. `overlaps`: [repeat, ...].
        parameters: of the head, a tree of arrays [repeat, ...].
        points: sequences. `seed`: of them. `quasi`: 16 scrambled quasi-random sets, or plain ones.

    >>> import numpy as np
    >>> from attlas.order_parameters import Heads, Overlaps, Places, Problem, ValueSum, risk
    >>> problem = Problem(Places(4, [3.0]), ValueSum(), Heads("softmax", lam=3.0))
    >>> found = risk(problem, Overlaps(np.eye(2)[None], np.eye(2)[None]))
    >>> bool(0 < found.mean[0] < 1 and found.error[0] < 0.01)
    True
    """
    problems, state, shape = prepare(problem, overlaps, parameters)
    if problems.exact is not None:
        return Estimate(_risks(_none(problems, shape), problems, state), np.zeros(len(state.m)))
    if quasi:
        sets = [
            _risks(draw_points(problems, shape, -(-points // SETS), seed, place), problems, state)
            for place in range(SETS)
        ]
        values = np.stack(sets)
        return Estimate(values.mean(0), values.std(0, ddof=1) / np.sqrt(SETS))
    drawn = draw_points(problems, shape, points, seed, quasi=False)
    losses = np.asarray(_losses(problems, state, drawn))
    count = losses.shape[1]
    return Estimate(losses.mean(1), losses.std(1, ddof=1) / np.sqrt(count))


def _none(problem: Problem, shape: Shape) -> Draw:
    sizes = ((shape.r + shape.p, shape.length), (problem.uniforms,), (problem.noises,))
    return Draw(*(np.zeros((1, *size, 1)) for size in sizes))


_risks = jax.jit(functools.partial(repeated, mean_loss))


@jax.jit
def _losses(problems: Problem, states: State, points: Draw) -> Array:
    """Losses [repeat, sample]."""

    def of(problem: Problem, state: State) -> Array:
        return jax.lax.map(lambda block: sequence_losses(problem, state, block), points).ravel()

    return jax.vmap(of)(problems, states)


class Gradient(NamedTuple):
    r"""Derivatives of the risk in $M$ and $Q$ as free matrices [repeat, ...], that in $Q$
    symmetric, and in the head's parameters.

    Arguments:
        m: $\partial_MR$ [repeat, p, r]. `q`: $\partial_QR$ [repeat, p, p]. `parameters`: a tree as
            theirs.
        sets: the same on each of 16 independent sets of sequences [set, repeat, ...], of which the
            others are means; None where they are exact.
    """

    m: Any
    q: Any
    parameters: Any
    sets: Any = None

    @property
    def error(self) -> "Gradient":
        """The standard errors; 0 where the risk has a closed form."""
        if self.sets is None:
            return jax.tree.map(np.zeros_like, self)
        return jax.tree.map(lambda x: x.std(0, ddof=1) / np.sqrt(SETS), self.sets)

    @refusing(refuse_product)
    def of_vectors(
        self, vectors: Float[Any, "*s dim p"], directions: Float[Any, "dim r"]
    ) -> Float[np.ndarray, "*repeat dim p"]:
        r"""$\nabla_UR = W^*(\partial_MR)^\top + U(\partial_QR + \partial_QR^\top)$.

        Its standard error is read from `sets.of_vectors(...)` along the first axis.
        """
        return directions @ np.swapaxes(self.m, -1, -2) + np.asarray(vectors) @ (2 * self.q)


@float64
@public
@refusing(refuse_unfit)
def gradient(
    problem: Problem | Sequence[Problem],
    overlaps: Overlaps,
    parameters: Any = None,
    *,
    points: int = 1 << 14,
    seed: int = 0,
) -> Gradient:
    r"""Derivatives of `risk` in the overlaps, at which $Q - MM^\top = CC^\top$ must be regular.

    From $\partial_CR = 2(\partial_QR)C$ and $\partial_MR|_C = \partial_MR + 2(\partial_QR)M$, as
    means over 16 sets of sequences, from which `error` is read.

    Arguments:
        problem, overlaps, parameters, points, seed: as in `risk`.

    >>> import numpy as np
    >>> from attlas.order_parameters import Heads, Overlaps, Places, Problem, ValueSum, gradient
    >>> problem = Problem(Places(3, [3.0]), ValueSum(), Heads("softmax"))
    >>> found = gradient(problem, Overlaps(0.5 * np.eye(2)[None], np.eye(2)[None]), points=256)
    >>> print(found.m.shape, found.error.q.shape, bool((found.error.m < 0.2).all()))
    (1, 2, 2) (1, 2, 2) True
    """
    problems, state, shape = prepare(problem, overlaps, parameters)
    if np.linalg.cond(state.c).max() > 1e8:
        raise InputError("Q - M M' is singular: derivatives in the overlaps do not exist there")

    def on(drawn: Draw) -> Gradient:
        _, g = _gradients(drawn, problems, state)
        half = np.asarray(g.c) @ np.linalg.inv(state.c) / 2
        half = (half + np.swapaxes(half, 1, 2)) / 2
        return Gradient(
            np.asarray(g.m) - 2 * half @ state.m, half, jax.tree.map(np.asarray, g.parameters)
        )

    if problems.exact is not None:
        return on(_none(problems, shape))
    each = -(-points // SETS)
    found = [on(draw_points(problems, shape, each, seed, place)) for place in range(SETS)]
    sets = jax.tree.map(lambda *x: np.stack(x), *found)
    return jax.tree.map(lambda x: x.mean(0), sets)._replace(sets=sets)


_gradients = jax.jit(functools.partial(repeated, loss_and_gradient))


def keep(state: State, constraint: str) -> State:
    """A state whose columns satisfy the constraint: divided by their lengths, or orthonormal."""
    if constraint == "none":
        return state
    u = state.u
    if constraint == "unit":
        u = u / jnp.sqrt((u**2).sum(-1, keepdims=True))
    else:
        u = jax.scipy.linalg.solve_triangular(root(u @ u.swapaxes(-1, -2)), u, lower=True)
    r = state.m.shape[-1]
    return State(u[..., :r], u[..., r:], state.parameters)


def root(s: Float[Array, "*b p p"]) -> Float[Array, "*b p p"]:
    """The lower triangular root of a semidefinite matrix, 0 in directions of no variance."""
    p = s.shape[-1]
    columns: list[Array] = []
    for j in range(p):
        column = s[..., :, j]
        for before in columns:
            column = column - before * before[..., j : j + 1]
        pivot = column[..., j]
        sound = pivot > 1e-13 * s[..., j, j]
        scale = jnp.where(sound, jax.lax.rsqrt(jnp.where(sound, pivot, 1)), 0)
        columns.append(column * scale[..., None] * (np.arange(p) >= j))
    return jnp.stack(columns, -1)


@jax.custom_vjp
def _descended(state: State, problem: Problem, points: Points) -> Array:
    """`mean_loss` with the derivatives of `loss_and_gradient`, which keep nothing of a block."""
    return mean_loss(points, problem, state)


_descended.defvjp(
    lambda state, problem, points: loss_and_gradient(points, problem, state),
    lambda slope, scale: (jax.tree.map(lambda x: scale * x, slope), None, None),
)


@functools.cache
def _objective(constraint: str) -> Any:
    def objective(states: State, args: Any) -> Array:
        """Values [lane] of the lanes of each problem in turn, from problems and points
        [problem, ...]."""
        problems, points = args
        kept = jax.vmap(lambda state: keep(state, constraint))(states)
        by_problem = jax.tree.map(lambda x: x.reshape(len(points[0]), -1, *x.shape[1:]), kept)
        starts = jax.vmap(_descended, (0, None, None))
        return jax.vmap(starts)(by_problem, problems, points).ravel()

    return objective


@float64
@public
@refusing(refuse_search)
def best_overlaps(
    problem: Problem | Sequence[Problem],
    columns: int,
    *,
    directions: int,
    starts: int = 16,
    scale: float = 1.0,
    constraint: str = "none",
    parameters: Any = None,
    points: int = 1 << 12,
    trips: int = 300,
    seed: int = 0,
) -> xr.Dataset:
    """The least risk that quasi-Newton descent finds from random starts.

    Each start descends the risk on the same `points` sequences. The best is chosen on as many
    others, lest one that has fitted its points win, and measured on four times as many again.

    Arguments:
        problem: one, or several, each of which gets its own starts in the same program.
        columns, directions: p and r. `constraint`: as in `descend`.
        starts: random coordinates for each problem. `scale`: their size.
        parameters: start of the head's parameters, the same for all. `trips`: evaluations at most.
        points: sequences of the sampled risk that is descended. `seed`: of them and of the starts.

    Returns: a Dataset over (problem, start) with `m`, `q`, `found` (the value that was descended
    to) and `fresh` (the value on other points), and over problem with those of the best start,
    `best_m`, `best_q`, its `risk` and `error`, read from `repetitions` sets of points.

    >>> from attlas.order_parameters import Heads, Places, Problem, ValueSum, best_overlaps
    >>> problem = Problem(Places(4, [3.0]), ValueSum(), Heads("softmax", lam=2.0))
    >>> best = best_overlaps(problem, 2, directions=2, starts=2, points=256, trips=50)
    >>> bool(best.risk.item() < 1)
    True
    """
    if constraint not in CONSTRAINTS:
        raise InputError(f"constraint = {constraint!r}: it must be one of {', '.join(CONSTRAINTS)}")
    starts, columns = whole("starts", starts, 1), whole("columns", columns, 1)
    directions, trips = whole("directions", directions, 1), whole("trips", trips, 1)
    problems = [problem] if isinstance(problem, Problem) else list(problem)
    count = len(problems)
    rng = np.random.default_rng(seed)
    u = scale * rng.standard_normal((starts, columns, directions + columns))
    u = np.tile(u, (count, 1, 1))
    spread_parameters = jax.tree.map(
        lambda x: np.tile(np.asarray(x, float), (count * starts,) + (1,) * np.ndim(x)), parameters
    )
    state = State(u[..., :directions], u[..., directions:], spread_parameters)
    stacked = at_step(as_problems(problems, count), 0)
    shape = check_problem(*jax.tree.map(lambda x: x[0], (stacked, state)))
    drawn, others = (
        _each_sequences(stacked, draw_points(stacked, shape, points, seed, SETS + i), count)
        for i in range(2)
    )
    objective = _objective(constraint)
    found = minimise(objective, state, (stacked, drawn), trips=trips)
    kept = keep(jax.tree.map(jnp.asarray, found.point), constraint)
    values, fresh = (
        np.where(np.isfinite(x), x, np.inf).reshape(count, starts)
        for x in (found.value, np.asarray(jax.jit(objective)(kept, (stacked, others))))
    )
    chosen = fresh.argmin(1) + starts * np.arange(count)
    best = jax.tree.map(lambda x: np.asarray(x)[chosen], kept)
    measured = risk(
        problems, Overlaps(best.m, best.q), best.parameters, points=4 * points, seed=seed + 1
    )
    m, q = (np.asarray(x).reshape(count, starts, columns, -1) for x in (kept.m, kept.q))
    more = {
        f"parameter_{i}": (("problem", *(f"parameter_{i}_{j}" for j in range(leaf.ndim - 1))), leaf)
        for i, leaf in enumerate(jax.tree.leaves(best.parameters))
    }
    return xr.Dataset(
        {
            "m": (("problem", "start", "column", "direction"), m),
            "q": (("problem", "start", "column", "other"), q),
            "found": (("problem", "start"), values),
            "fresh": (("problem", "start"), fresh),
            "best_m": (("problem", "column", "direction"), best.m),
            "best_q": (("problem", "column", "other"), np.asarray(best.q)),
            "risk": ("problem", measured.mean),
            "error": ("problem", measured.error),
            "repetitions": ("problem", np.full(count, SETS)),
            **more,
        }
    )


def tangent(u: Array, g: Array, constraint: str) -> Array:
    """The part of g [p, n] along the constraint at u [p, n]."""
    if constraint == "none":
        return g
    if constraint == "unit":
        return g - (g * u).sum(-1, keepdims=True) * u
    products = g @ u.swapaxes(-1, -2)
    return g - (products + products.swapaxes(-1, -2)) / 2 @ u
