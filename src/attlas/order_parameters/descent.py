r"""Gradient flow, descent and online descent on overlaps; descent on vectors as the reference.

A batch of sequences $X_i$ gives the gradient $G = \sum_i X_i^\top D_i$ with $D_i$ the derivatives
of the loss in the fields $H_i$. Its part along the teacher is $\sum D_i^\top T_i$, its part along
the student $\sum D_i^\top E_i$, and given those its part in the other $d - r - p$ dimensions is
Gaussian: its Gram matrix is $ABA^\top$ with $AA^\top = \sum D_i^\top K_iD_i$ and
$B \sim \mathrm{Wishart}_p(d - r - p)$, drawn by Bartlett's triangular root. The overlaps so are a
Markov chain with exactly the law of the run in d dimensions, for every $d \ge r + p$.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.errors import InputError, whole
from attlas.gaussian import Real, float64
from attlas.order_parameters.paths import recorded
from attlas.order_parameters.population import (
    Points,
    draw_points,
    keep,
    loss_and_gradient,
    mean_loss,
    prepare,
    repeated,
    root,
    sequences,
    tangent,
)
from attlas.order_parameters.problem import (
    Draw,
    Drawn,
    Overlaps,
    Problem,
    Shape,
    State,
    at_step,
    draw_sequences,
    for_each,
    has_schedules,
    head_losses,
)
from attlas.order_parameters.refusals import refuse_unfit, refuse_vectors
from attlas.scan import Trajectory, drive, in_groups, iterate
from attlas.schedules import Schedule, as_schedule
from attlas.surface import public, refusing
from attlas.words import Lanes, lanes_of, next_words

LANES = 16
"""Repeats that move together, so that one compiled program serves every number of them."""
ROOM = 1 << 22
"""Normals that online descent has in memory at a time."""
SHORT = 16
"""Steps of a block of short runs; they begin with the same numbers."""
WIDE = 1 << 14
"""Generators of normals that run side by side, as many as a step has numbers, but no more."""


def move(state: State, step: State, constraint: str, outside: Array | None = None) -> State:
    """A state after a step, which is a `State` too, projected along the constraint.

    Arguments:
        step: what is subtracted, the step size included.
        outside: [p, n], the coordinates of the step's part in further dimensions.
    """
    u = state.u - tangent(state.u, step.u, constraint)
    r = state.m.shape[-1]
    parameters = jax.tree.map(jnp.subtract, state.parameters, step.parameters)
    if outside is None:
        return keep(State(u[..., :r], u[..., r:], parameters), constraint)
    beyond = jnp.concatenate([u[..., r:], outside], -1)
    whole_step = keep(State(u[..., :r], beyond, parameters), constraint)
    c = root(whole_step.c @ whole_step.c.swapaxes(-1, -2))
    return State(whole_step.m, c, parameters)


def _rates(value: Any, repeats: int, steps: int) -> Any:
    """The step size as a schedule with values [repeat]."""
    if not callable(value) and np.shape(value) not in ((), (1,), (repeats,)):
        raise InputError(
            f"step_size has the shape {np.shape(value)}: one value, or one for each of {repeats}"
            " starts"
        )
    schedule = as_schedule("step_size", value, steps)
    return jax.tree.map(lambda x: np.broadcast_to(np.asarray(x, float), (repeats,)), schedule)


# --- on the population ----------------------------------------------------------------------------


@functools.cache
def _population_steps(constraint: str, flow: bool) -> tuple[Any, Any]:
    def slope(problem: Problem, state: State, points: Points, rate: Array) -> State:
        _, g = loss_and_gradient(points, problem, state)
        return jax.tree.map(lambda x: rate * x, g)

    def one(points: Points, problem: Problem, state: State, rate: Array) -> State:
        if not flow:
            return move(state, slope(problem, state, points, rate), constraint)

        def velocity(state: State) -> State:
            g, r = slope(problem, state, points, rate), state.m.shape[-1]
            along = tangent(state.u, g.u, constraint)
            return State(-along[..., :r], -along[..., r:], jax.tree.map(jnp.negative, g.parameters))

        def ahead(share: float, v: State) -> State:
            return jax.tree.map(lambda x, y: x + share * y, state, v)

        v1 = velocity(state)
        v2 = velocity(ahead(0.5, v1))
        v3 = velocity(ahead(0.5, v2))
        v4 = velocity(ahead(1.0, v3))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, v1, v2, v3, v4)
        return keep(ahead(1.0, mean), constraint)

    def step(t: Array, state: State, args: Any) -> State:
        problems, rates, points = args
        return repeated(one, points, at_step(problems, t), state, rates(t))

    def observe(t: Array, state: State, args: Any) -> Any:
        problems, _, points = args
        values = repeated(mean_loss, points, at_step(problems, t), state)
        return state.m, state.q, state.parameters, values

    return step, observe


@float64
@public
@refusing(refuse_unfit)
def descend(
    problem: Problem | Sequence[Problem],
    start: Overlaps,
    *,
    step_size: Real | Schedule,
    steps: int,
    parameters: Any = None,
    constraint: str = "none",
    flow: bool = False,
    points: int = 1 << 12,
    seed: int = 0,
    record_every: int = 100,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Descent of the population risk on overlaps, from each of `start`.

    The gradient is exact where the problem has a closed form, else that of a mean over `points`
    quasi-random sequences, the same at all steps and for all starts. Sequences are in single
    precision, overlaps and sums in double.

    Arguments:
        problem: one, or one for each start; they may differ in their numbers.
        start: overlaps [repeat, ...]. `parameters`: of the head [repeat, ...], descended too.
        step_size: a number, one for each start, or a schedule.
        constraint: "none", "unit" (each column on its sphere: the gradient's tangential part, then
            division by the length) or "orthonormal" (tangential part, then Gram-Schmidt).
        flow: gradient flow, by Runge-Kutta steps of `step_size` in time.
        steps: how many. `seed`: of the quasi-random sequences.
        record_every: steps between two records. `progress`: called with the steps done and all
            steps.

    Returns: a Dataset over (repeat, step) with `m`, `q`, `risk` and parameters; `status` over
    repeat, "completed" or "diverged", and the steps `survived`.

    >>> import numpy as np
    >>> from attlas.order_parameters import Heads, Overlaps, Places, Problem, ValueSum, descend
    >>> problem = Problem(Places(4, [3.0]), ValueSum(), Heads("softmax", lam=2.0))
    >>> start = Overlaps(0.1 * np.eye(2)[None], np.eye(2)[None])
    >>> path = descend(problem, start, step_size=0.1, steps=200, constraint="unit", points=256)
    >>> bool(path.risk.values[0, -1] < path.risk.values[0, 0])
    True
    """
    problems, state, shape = prepare(problem, start, parameters, constraint, scheduled=True)
    repeats, steps = len(state.m), whole("steps", steps, 0)
    rates = _rates(step_size, repeats, steps)
    drawn = draw_points(problems, shape, points if problems.exact is None else 1, seed)
    points_drawn: Points = Draw(*(x.astype(np.float32) for x in drawn))
    if isinstance(problem, Problem) and not has_schedules((problem.law, problem.target)):
        points_drawn = sequences(problem, points_drawn)  # the same at all steps of all starts
    step, observe = _population_steps(constraint, flow)

    def run(_: int, rows: np.ndarray, progress: Any) -> Trajectory:
        state_here, problems_here, rates_here = jax.tree.map(
            lambda x: x[rows], (state, problems, rates)
        )
        path = iterate(
            step,
            observe,
            state_here,
            (problems_here, rates_here, points_drawn),
            steps=steps,
            record_every=record_every,
            progress=progress,
        )
        return _repeats_last(path)

    lanes = min(LANES, 1 << (repeats - 1).bit_length())
    path = in_groups(run, repeats, lanes, steps, progress)
    m, q, found, values = path.observed
    data = _dataset(path, m, q, found)
    return data.assign(risk=(("repeat", "step"), np.moveaxis(values, -1, 0)))


def _repeats_last(path: Trajectory) -> Trajectory:
    """With the axis of repeats last, along which groups are joined."""
    observed = jax.tree.map(lambda x: np.moveaxis(x, 1, -1), path.observed)
    last = jax.tree.map(lambda x: np.moveaxis(x, 0, -1), path.last)
    return path._replace(observed=observed, last=last)


def _dataset(path: Trajectory, m: Any, q: Any, parameters: Any) -> xr.Dataset:
    """Records [record, ..., repeat] as a Dataset over (repeat, step)."""
    turned = jax.tree.map(lambda x: np.moveaxis(x, -1, 0), (m, q, parameters))
    more = {
        f"parameter_{i}": (
            ("repeat", "step", *(f"parameter_{i}_{j}" for j in range(x.ndim - 2))),
            x,
        )
        for i, x in enumerate(jax.tree.leaves(turned[2]))
    }
    return recorded(
        path,
        {
            "m": (("repeat", "step", "column", "direction"), turned[0]),
            "q": (("repeat", "step", "column", "other"), turned[1]),
            **more,
        },
    )


# --- on fresh batches -----------------------------------------------------------------------------


class Raw(NamedTuple):
    """Random numbers of a block of steps: `seeds` [3, ...] of the normals that fields are made of,
    of which a step has the axes [LANES, r + p, L, b], without as many leading ones as make more
    than `WIDE`; uniforms and noise [step, LANES, ..., b], Bartlett's roots [step, LANES, p, p]; the
    steps done before each, and 1 [step], or 0 beyond the last."""

    seeds: Any
    uniforms: Any
    noise: Any
    bartlett: Any
    time: Any
    active: Any


class Inputs(NamedTuple):
    """What steps take: the numbers of `Raw`, those of sequences [step, LANES, ..., b]."""

    draw: Draw
    bartlett: Any
    time: Any
    active: Any


class Args(NamedTuple):
    problems: Problem
    rates: Any
    columns: Any  # [r + p, L], for its shape


def _inputs(raw: Raw, args: Args) -> Inputs:
    """Normals are made by the compiled program, three times faster than by NumPy."""
    each = raw.seeds.shape[1:]
    sizes = (*raw.uniforms.shape[:2], *args.columns.shape, raw.uniforms.shape[-1])

    def one(state: Lanes, _: None) -> tuple[Lanes, Array]:
        state, word = next_words(state)
        # The middles of 2^23 intervals, so that none is 0 or 1.
        uniform = ((word >> 9).astype(jnp.float32) + np.float32(0.5)) * np.float32(2**-22) - 1
        return state, np.float32(2**0.5) * jax.lax.erf_inv(uniform)

    seeds = lanes_of(raw.seeds.reshape(3, -1))
    normals = jax.lax.scan(one, seeds, length=math.prod(sizes) // math.prod(each))[1]
    draw = Draw(normals.reshape(sizes), raw.uniforms, raw.noise)
    return Inputs(draw, raw.bartlett, raw.time, raw.active)


@functools.cache
def _online_step(constraint: str) -> Any:
    def one(problem: Problem, state: State, draw: Draw, bartlett: Array, rate: Array) -> State:
        # Sequences in single precision, overlaps in double.
        small, problem = jax.tree.map(lambda x: x.astype(jnp.float32), (state, problem))
        drawn = draw_sequences(problem, draw)

        def total(student: Array, parameters: Any) -> Array:
            return head_losses(problem, student, parameters, drawn).sum()

        in_fields, in_parameters = jax.grad(total, argnums=(0, 1))(
            jnp.tensordot(small.u, drawn.x, 1), small.parameters
        )
        scale = rate / draw.normals.shape[-1]
        g = scale * jnp.einsum("pln,kln->pk", in_fields, drawn.x).astype(float)
        r = state.m.shape[-1]
        step = State(
            g[:, :r],
            g[:, r:],
            jax.tree.map(lambda x: scale * x.astype(float), in_parameters),
        )
        spread = drawn.tokens.root
        across = "ln,pln->pln" if spread.ndim == 2 else "lkn,pln->pkn"
        turned = jnp.einsum(across, spread, in_fields)
        square = jnp.einsum("pln,qln->pq", turned, turned).astype(float)
        return move(state, step, constraint, scale * root(square) @ bartlett)

    def step(state: State, inputs: Inputs, args: Args) -> State:
        problems = at_step(args.problems, inputs.time)
        rates, draw = args.rates(inputs.time), inputs.draw
        moved = jax.vmap(one)(problems, state, draw, inputs.bartlett, rates)
        return jax.tree.map(lambda new, old: jnp.where(inputs.active, new, old), moved, state)

    return step


def _draw_block(
    seed: int,
    group: int,
    size: int,
    batch: int,
    steps: int,
    problem: Problem,
    shape: Shape,
    freedom: np.ndarray,
    block: int,
) -> Raw:
    """The numbers of one block of `size` steps, each kind from a stream of its own.

    A Wishart matrix of n degrees of freedom has a lower triangular root with independent entries:
    chi variables of n, n - 1, ... degrees on the diagonal and normals below; where none are left
    the column is 0.
    """
    words, *streams = (
        np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(group, block, use)))
        for use in range(5)
    )
    latents, noise, chi, below = map(np.random.Generator, streams)
    left = np.maximum(freedom[:, None] - np.arange(shape.p), 0)
    roots = np.tril(below.standard_normal((size, LANES, shape.p, shape.p)), -1)
    roots *= (left > 0)[:, None, :]
    diagonal = np.arange(shape.p)
    roots[..., diagonal, diagonal] = np.sqrt(2 * chi.standard_gamma(left / 2, (size, *left.shape)))
    each: tuple[int, ...] = (LANES, shape.r + shape.p, shape.length, batch)
    while len(each) > 1 and math.prod(each) > WIDE:
        each = each[1:]
    count = 3 * math.prod(each)
    seeds = words.random_raw(-(-count // 2)).view(np.uint32)[:count]
    time = block * size + np.arange(size)
    return Raw(
        seeds.reshape(3, *each),
        latents.random((size, LANES, problem.uniforms, batch), np.float32),
        noise.standard_normal((size, LANES, problem.noises, batch), np.float32),
        roots,
        time,
        time < steps,
    )


@public
@refusing(refuse_unfit)
def descend_online(
    problem: Problem | Sequence[Problem],
    start: Overlaps,
    *,
    dim: int | Sequence[int],
    batch_size: int,
    step_size: Real | Schedule,
    steps: int,
    parameters: Any = None,
    constraint: str = "none",
    seed: int = 0,
    record_every: int = 100,
    points: int = 512,
    progress: Callable[[int, int], None] | None = None,
    extra_freedom: int = 0,
) -> xr.Dataset:
    """Stochastic descent with a fresh batch of sequences at each step, exact in law.

    Arguments:
        dim: the dimension d, at least r + p (directions and columns): one, or one for each start.
        batch_size: sequences in a step.
        points: quasi-random sequences on which the risk of what was recorded is measured.
        extra_freedom: degrees of freedom added to the law of the part of the tokens outside the
            span of students and directions; other than 0 the law is wrong, for controls.
        others: as in `descend`.

    Returns: what `descend` does.

    >>> import numpy as np
    >>> from attlas.order_parameters import (
    ...     Heads, Overlaps, Places, Problem, ValueSum, descend_online)
    >>> problem = Problem(Places(4, [3.0]), ValueSum(), Heads("softmax", lam=2.0))
    >>> start = Overlaps(0.1 * np.eye(2)[None], np.eye(2)[None])
    >>> path = descend_online(problem, start, dim=50, batch_size=8, step_size=0.02, steps=100)
    >>> print(path.m.sizes, path.status.item())
    Frozen({'repeat': 1, 'step': 2, 'column': 2, 'direction': 2}) completed
    """
    with jax.enable_x64(True):
        problems, state, shape = prepare(problem, start, parameters, constraint, dim, True)
    repeats = len(state.m)
    steps, batch = whole("steps", steps, 0), whole("batch_size", batch_size, 1)
    record_every, seed = whole("record_every", record_every, 1), whole("seed", seed, 0)
    rates = _rates(step_size, repeats, steps)
    freedom = np.broadcast_to(np.asarray(dim), (repeats,)) - shape.r - shape.p + extra_freedom
    numbers = LANES * batch * shape.length * (shape.r + shape.p)
    size = max(1, min(500, ROOM // numbers))
    size = SHORT if steps <= SHORT < size else size
    columns = np.zeros((shape.r + shape.p, shape.length), np.float32)

    def run(number: int, rows: np.ndarray, progress: Any) -> Trajectory:
        state_here, problems_here, rates_here = jax.tree.map(
            lambda x: x[rows], (state, problems, rates)
        )
        draw = functools.partial(
            _draw_block, seed, number, size, batch, steps, problems, shape, freedom[rows]
        )
        path = drive(
            _online_step(constraint),
            _inputs,
            state_here,
            Args(problems_here, rates_here, columns),
            draw,
            steps=steps,
            block=size,
            record_every=record_every,
            progress=progress,
        )
        return _repeats_last(path)

    with jax.enable_x64(True):
        path = in_groups(run, repeats, LANES, steps, progress)
        m, c, found = path.observed
        q = np.einsum("sprn,sqrn->spqn", m, m) + np.einsum("sprn,sqrn->spqn", c, c)
        data = _dataset(path, m, q, found)
        if not points:
            return data
        turned = jax.tree.map(lambda x: np.moveaxis(x, -1, 1), (m, c, found))
        drawn = draw_points(problems, shape, points, seed)
        values = _recorded_risks(problems, State(*turned), path.steps, drawn)
    return data.assign(risk=(("repeat", "step"), np.asarray(values).T))


@jax.jit
def _recorded_risks(problems: Problem, states: State, steps: Array, points: Draw) -> Array:
    """Risks [record, repeat] of states [record, repeat, ...], a record at a time."""
    return jax.lax.map(
        lambda record: repeated(mean_loss, points, at_step(problems, record[1]), record[0]),
        (states, steps),
    )


# --- on vectors -----------------------------------------------------------------------------------


class Vectors(NamedTuple):
    u: Any  # [repeat, dim, p]
    parameters: Any
    number: Any  # [repeat], which of the repeats it is


def vector_losses(
    problem: Problem, u: Array, parameters: Any, directions: Array, noise: Array, draw: Draw
) -> Array:
    """Losses [n] on sequences of whole tokens; `noise` is Z [n, L, dim]."""
    tokens = jax.vmap(problem.law, -1, -1)(draw.uniforms)
    across = "ln,nld->nld" if tokens.root.ndim == 2 else "ljn,njd->nld"
    spread = jnp.einsum(across, tokens.root, noise)
    x = jnp.einsum("lrn,dr->nld", tokens.mean, directions) + spread
    teacher = jnp.einsum("nld,dr->lrn", x, directions)
    drawn = Drawn(x, tokens, for_each(problem.target)(teacher, tokens, draw.noise))
    return head_losses(problem, jnp.einsum("nld,dp->pln", x, u), parameters, drawn)


def draw_vectors(key: Array, problem: Problem, count: int, length: int, dim: int) -> Any:
    """Z [count, L, dim] and the other numbers of `count` sequences."""
    keys = jax.random.split(key, 3)
    z = jax.random.normal(keys[0], (count, length, dim))
    uniforms = jax.random.uniform(keys[1], (problem.uniforms, count))
    noise = jax.random.normal(keys[2], (problem.noises, count))
    return z, Draw(jnp.zeros((0, count)), uniforms, noise)


@functools.cache
def _vector_steps(constraint: str, batch: int, length: int) -> tuple[Any, Any]:
    def one(
        problem: Problem, state: Vectors, rate: Array, directions: Array, key: Array
    ) -> Vectors:
        z, draw = draw_vectors(key, problem, batch, length, len(directions))

        def loss(u: Array, parameters: Any) -> Array:
            return vector_losses(problem, u, parameters, directions, z, draw).mean()

        in_u, in_parameters = jax.grad(loss, argnums=(0, 1))(state.u, state.parameters)
        turned = State(state.u.T[:, :0], state.u.T, state.parameters)
        step = State(turned.m, rate * in_u.T, jax.tree.map(lambda x: rate * x, in_parameters))
        moved = move(turned, step, constraint)
        return Vectors(moved.c.T, moved.parameters, state.number)

    def step(t: Array, state: Vectors, args: Any) -> Vectors:
        problems, rates, directions, key = args
        keys = jax.vmap(lambda n: jax.random.fold_in(jax.random.fold_in(key, t), n))(state.number)
        several = jax.vmap(one, (0, 0, 0, None, 0))
        return several(at_step(problems, t), state, rates(t), directions, keys)

    def observe(t: Array, state: Vectors, args: Any) -> Any:
        turned = state.u.swapaxes(1, 2)
        return turned @ args[2], turned @ state.u, state.parameters

    return step, observe


@float64
@public
@refusing(refuse_vectors)
def descend_online_vectors(
    problem: Problem | Sequence[Problem],
    vectors: Float[Any, "repeat dim p"],
    directions: Float[Any, "dim r"],
    *,
    batch_size: int,
    step_size: Real | Schedule,
    steps: int,
    parameters: Any = None,
    constraint: str = "none",
    seed: int = 0,
    record_every: int = 100,
) -> xr.Dataset:
    """`descend_online` on vectors, with whole tokens and automatic gradients: the reference.

    Arguments:
        vectors: starts U. `directions`: $W^*$.
        others: as in `descend_online`.

    >>> import numpy as np
    >>> from attlas.order_parameters import Heads, Places, Problem, ValueSum, descend_online_vectors
    >>> problem = Problem(Places(4, [3.0]), ValueSum(), Heads("softmax", lam=2.0))
    >>> vectors, directions = np.eye(10)[None, :, :2], np.eye(10)[:, 2:4]
    >>> path = descend_online_vectors(
    ...     problem, vectors, directions, batch_size=8, step_size=0.02, steps=100)
    >>> path.status.item()
    'completed'
    """
    vectors, directions = np.asarray(vectors, float), np.asarray(directions, float)
    overlaps = Overlaps.of(vectors, directions)
    dim = len(directions)
    problems, state, shape = prepare(problem, overlaps, parameters, constraint, dim, True)
    repeats, steps = len(vectors), whole("steps", steps, 0)
    step, observe = _vector_steps(constraint, whole("batch_size", batch_size, 1), shape.length)
    path = iterate(
        step,
        observe,
        Vectors(vectors, state.parameters, np.arange(repeats)),
        (problems, _rates(step_size, repeats, steps), directions, jax.random.key(seed)),
        steps=steps,
        record_every=record_every,
    )
    m, q, found = jax.tree.map(lambda x: np.moveaxis(x, 1, -1), path.observed)
    return _dataset(path, m, q, found)
