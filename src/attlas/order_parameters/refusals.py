"""What problems, starts and dimensions must be, said in one sentence before anything runs.

These checks stand over what is called from outside (`attlas.surface.refusing`), and only raise: no
number depends on them. What the engine needs itself is in `check_problem` and `Overlaps.checked`.
"""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from attlas.errors import InputError, whole
from attlas.order_parameters.pieces import ChosenValue, Heads, Places, ValueSum
from attlas.order_parameters.problem import (
    Draw,
    Overlaps,
    Problem,
    State,
    Tokens,
    _tried,
    as_problems,
    at_step,
    draw_sequences,
    for_each,
)


def refuse_unfit(
    problem: Any,
    overlaps: Overlaps | None = None,
    start: Overlaps | None = None,
    parameters: Any = None,
    dim: Any = None,
    points: Any = 1,
    seed: Any = 0,
    quasi: bool = True,
    trips: Any = 1,
    extra_freedom: Any = 0,
) -> None:
    """Each of several problems, and the parameters of each start, must give finite losses."""
    whole("points", points, 0)  # 0 where `descend_online` measures no risk
    if not quasi and points < 2:
        raise InputError(f"points = {points}: an error of plain random numbers needs at least 2")
    whole("seed", seed, 0), whole("trips", trips, 1)
    whole("extra_freedom", extra_freedom, -(2**31))
    at = overlaps if start is None else start
    if at is None or np.shape(at.m)[:1] == (0,):
        raise InputError("no overlaps are given: at least one start is wanted")
    for name, matrices in zip(("M", "Q"), at, strict=True):
        if np.asarray(matrices).dtype.kind not in "biuf":
            raise InputError(f"{name} = {_short(matrices)}: overlaps are matrices of real numbers")
    at = at.checked()
    repeats = len(at.m)
    if dim is not None:
        _refuse_dim(dim, repeats)
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(parameters)]
    if any(leaf.shape[:1] != (repeats,) for leaf in leaves):
        return  # `prepare` says which
    for leaf in leaves:
        wrong = np.flatnonzero(~np.isfinite(leaf).reshape(repeats, -1).all(1))
        if len(wrong):
            raise InputError(f"parameters of start {wrong[0]} are not finite: numbers are wanted")
    problems = _listed(problem)
    if len(problems) in (1, repeats):
        _refuse_problems(problems, State(*at.coordinates(), parameters))


def refuse_vectors(problem: Any, vectors: Any, directions: Any, parameters: Any = None) -> None:
    """`refuse_unfit` for starts that are vectors."""
    if np.ndim(vectors) != 3:
        raise InputError(f"vectors have the shape {np.shape(vectors)}: it must be [repeat, d, p]")
    refuse_unfit(problem, Overlaps.of(vectors, directions), parameters=parameters)


def refuse_search(
    problem: Any, columns: Any, directions: Any, parameters: Any = None, seed: Any = 0
) -> None:
    """Each of several problems must give finite losses at some overlaps."""
    whole("seed", seed, 0)
    if not all(isinstance(x, int | np.integer) and x > 0 for x in (columns, directions)):
        return  # `best_overlaps` says which
    problems, count = _listed(problem), len(_listed(problem))
    u = np.random.default_rng(0).standard_normal((count, columns, directions + columns))
    repeated = jax.tree.map(
        lambda x: np.broadcast_to(np.asarray(x, float), (count, *np.shape(x))), parameters
    )
    _refuse_problems(problems, State(u[..., :directions], u[..., directions:], repeated))


def refuse_product(self: Any, vectors: Any, directions: Any) -> None:
    """Vectors [..., d, p] and directions [d, r] must be those of a gradient in [p, r]."""
    p, r = np.shape(self.m)[-2:]
    width = np.shape(directions)[0]
    if np.shape(directions) != (width, r) or np.shape(vectors)[-2:] != (width, p):
        raise InputError(
            f"vectors of shape {np.shape(vectors)} and directions of shape {np.shape(directions)}:"
            f" those of this gradient are [..., d, {p}] and [d, {r}]"
        )


def _listed(problem: Any) -> list[Problem]:
    problems = [problem] if isinstance(problem, Problem) else list(problem)
    if not problems:
        raise InputError("no problems are given: at least one is wanted")
    for one in problems:
        if not isinstance(one, Problem):
            raise InputError(f"{one!r} is not a Problem: one is wanted, or a list of them")
    return problems


def _refuse_dim(dim: Any, repeats: int) -> None:
    values = np.asarray(dim)
    numbers = values.dtype.kind in "iu" or (
        values.dtype.kind == "f" and bool((values == np.floor(values)).all())
    )
    if not numbers or values.shape not in ((), (1,), (repeats,)):
        raise InputError(
            f"dim = {dim}: it must be a whole number, or one for each of {repeats} starts"
        )


def _refuse_problems(problems: Sequence[Problem], state: State) -> None:
    """Their pieces must fit each other, and losses of all but the first be finite: those of the
    first `check_problem` tries itself."""
    for one in problems:
        _refuse_numbers(one)
    with jax.enable_x64(True):
        stacked = at_step(as_problems(problems, len(problems)), 0)
        one, here = jax.tree.map(lambda x: x[0], (stacked, state))
        length = _refuse_pieces(one, here)
        if len(problems) == 1 or not length:
            return
        draw = _some_numbers(one, here, length)
        for i in range(1, len(problems)):
            one, here = jax.tree.map(lambda x, i=i: x[i], (stacked, state))
            root, losses = map(np.asarray, _tried(one, here, draw))
            if not (np.isfinite(root).all() and np.isfinite(losses).all()):
                raise InputError(
                    f"the losses of problem {i} of {len(problems)}, counted from 0, are"
                    f" {losses.tolist()}: each must be one finite number"
                )


def _some_numbers(problem: Problem, state: State, length: int) -> Draw:
    rng = np.random.default_rng(0)
    return Draw(
        rng.normal(size=(state.u.shape[-1], length, 8)),
        rng.uniform(size=(problem.uniforms, 8)),
        rng.normal(size=(problem.noises, 8)),
    )


def _refuse_pieces(problem: Problem, state: State) -> int:
    """The tokens of a problem whose ready pieces fit each other; 0 if `check_problem` will refuse
    it for the shapes of its law."""
    law, target = problem.law, problem.target
    for name in ("uniforms", "noises"):
        whole(name, getattr(problem, name), 0)
    if problem.uniforms < (asked := getattr(law, "uniforms", 0)):
        raise InputError(
            f"uniforms = {problem.uniforms}: the law makes its latent of {asked} uniform numbers"
        )
    with _refused(f"the law cannot make tokens of {problem.uniforms} uniform numbers"):
        tokens = jax.eval_shape(law, np.zeros(problem.uniforms))
    if not isinstance(tokens, Tokens):
        raise InputError(
            f"the law gives {_short(tokens)}: it must give Tokens(mean, root, present)"
        )
    (p, r), shape = state.m.shape, np.shape(tokens.mean)
    if len(shape) != 2 or shape[1] != r:
        return 0
    length = int(shape[0])
    if np.shape(tokens.root) not in ((length,), (length, length)):
        return 0
    if np.shape(tokens.present) != (length,):
        raise InputError(
            f"the law's present has the shape {np.shape(tokens.present)}: it says of each of"
            f" {length} tokens whether it is there"
        )
    _refuse_target(target, law, r)
    draw = _some_numbers(problem, state, length)
    with _refused(f"the target cannot be made of fields of shape {(length, r)}"):
        drawn = jax.eval_shape(draw_sequences, problem, draw)
    if isinstance(inner := getattr(problem.head, "head", problem.head), Heads):
        _refuse_weights(inner, p, length)
    with _refused(f"the head cannot read fields of shape {(length, p)}"):
        found = jax.eval_shape(problem.head, np.zeros((length, p)), np.ones(length), state[2])
    if not hasattr(found, "shape"):
        raise InputError(f"the head gives {_short(found)}: it must give one array")
    if found.shape != drawn.target.shape[:-1]:
        return length  # `check_problem` says so
    with _refused("the loss cannot compare a prediction with a target"):
        jax.eval_shape(for_each(problem.loss), drawn.target, drawn.target)
    if problem.exact is not None:
        _refuse_exact(problem, state)
    return length


@contextlib.contextmanager
def _refused(said: str) -> Iterator[None]:
    """Whatever a function of the caller's raises is told in one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(". ")
        by_jax = isinstance(
            error, jax.errors.TracerArrayConversionError | jax.errors.ConcretizationTypeError
        )
        hint = "; JAX traces it, so that jax.numpy and jnp.where replace numpy and if"
        raise InputError(f"{said}: {told}{hint * by_jax}") from error


def _refuse_exact(problem: Problem, state: State) -> None:
    """A closed form gives one finite number."""
    with _refused("the closed form cannot be read at M and Q"):
        value = np.asarray(_exact_value(problem, state))
    if value.shape or not np.isfinite(value):
        raise InputError(f"the closed form gives {_short(value)}: it must be one finite number")


@jax.jit
def _exact_value(problem: Problem, state: State) -> Any:
    return problem.exact(state.m, state.q)


def _refuse_numbers(problem: Problem) -> None:
    """The numbers of a problem are numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(problem):
        value = np.asarray(leaf)
        if value.dtype.kind not in "biuf" or np.isnan(value).any():
            name = jax.tree_util.keystr(path).lstrip(".")
            raise InputError(f"{name} of a problem is {_short(leaf)}: it must be a number")


def _short(value: Any) -> str:
    """A value on one line."""
    return textwrap.shorten(repr(value), 80, placeholder=" ...")


def _refuse_target(target: Any, law: Any, r: int) -> None:
    """What a ready target reads must be there: an index beyond the last is one that JAX clamps."""
    if isinstance(target, ChosenValue) and r < 2:
        raise InputError(f"ChosenValue reads two directions: the law has {r}")
    if isinstance(target, ValueSum) and isinstance(law, Places):
        count = law.signals.shape[-1]
        if law.values < target.values or (count > 1 and law.values != target.values):
            raise InputError(
                f"ValueSum(values={target.values}) on Places(values={law.values}): each place must"
                " have as many values as are summed"
            )


def _refuse_weights(head: Heads, p: int, length: int) -> None:
    """Weights [L, heads, n] and a divisor [heads, n], or one that is broadcast to it."""
    heads = p // (1 + head.values)
    if not heads or p % (1 + head.values):
        return  # the head says so
    length += length == heads  # else a divisor [L, n] could not be told from one [heads, n]
    scores, present = np.zeros((length, heads, length + 2)), np.ones((length, length + 2))
    try:
        found = jax.eval_shape(head.weights, scores, present)
    except (
        TypeError,
        ValueError,
        IndexError,
    ):  # for one length only, or refused by `check_problem`
        return
    if not isinstance(found, tuple) or len(found) != 2:
        return  # the head says so
    wanted = (heads, length + 2)
    weights, total = (np.shape(x) for x in found)
    try:
        fits = np.broadcast_shapes(total, wanted) == wanted
    except ValueError:
        fits = False
    if weights != scores.shape or not fits:
        raise InputError(
            "weights of a head must be a pair: the weights of the tokens [L, heads, ...] and what"
            f" divides their sum [heads, ...]; for scores of shape {scores.shape} the function"
            f" gives the shapes {weights} and {total}"
        )
