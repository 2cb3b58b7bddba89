r"""A problem on Gaussian tokens, as four small functions of fields, and the overlaps it reduces to.

Given a latent, a sequence is matrix normal, $X = \mu W^{*\top} + K^{1/2}Z$ with directions
$W^* \in R^{d \times r}$ (orthonormal columns), $\mu \in R^{L \times r}$ and $Z$ standard normal.
The target is a function of the teacher's fields $T = XW^*$, the prediction one of the student's
fields $H = XU$, $U \in R^{d \times p}$. With $M = U^\top W^*$, $Q = U^\top U$ and
$CC^\top = Q - MM^\top$,

$$T = \mu + K^{1/2}Z_1,\qquad H = TM^\top + K^{1/2}Z_2C^\top,$$

so that the law of all fields, and with it every risk, depends on $(M, Q)$ alone. The rows of
$(M, C)$ are coordinates of the student's columns: $U = W^*M^\top + VC^\top$ with some orthonormal
$V$ outside the span of $W^*$.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attlas.errors import InputError
from attlas.gaussian import Real
from attlas.schedules import SCHEDULES
from attlas.surface import refusing

CONSTRAINTS = ("none", "unit", "orthonormal")
"""What the columns of U keep to: nothing, unit length, or an orthonormal frame."""


class Tokens(NamedTuple):
    """The law of a sequence given its latent.

    - `mean`: $\\mu$ [L, r]. `root`: $K^{1/2}$ [L, L], or the spreads [L] of independent tokens.
    - `present`: which tokens there are [L], 1 or 0; a head gives the others no weight.
    - `latent`: whatever the target has to know, such as the place of the informative token.
    """

    mean: Any
    root: Any
    present: Any
    latent: Any = ()


def _refuse_vectors(vectors: Any, directions: Any) -> None:
    """A sentence for what are no columns [..., d, p] and [d, r]."""
    both = (("vectors", vectors, "..., d, p"), ("directions", directions, "d, r"))
    for name, value, axes in both:
        try:
            array = np.asarray(value, float)
        except (TypeError, ValueError):
            raise InputError(f"{name} are no array of numbers: [{axes}] is wanted") from None
        if array.ndim < 2 or (name == "directions" and array.ndim > 2):
            raise InputError(f"{name} have the shape {array.shape}: it must be [{axes}]")


class Overlaps(NamedTuple):
    """Products of the student's columns with the teacher's directions, $M$ [..., p, r], and with
    each other, $Q$ [..., p, p].

    Arguments:
        m: $M$. `q`: $Q$.
    """

    m: Real
    q: Real

    @classmethod
    @refusing(_refuse_vectors)
    def of(cls, vectors: Float[Any, "*s dim p"], directions: Float[Any, "width r"]) -> "Overlaps":
        """The overlaps of `vectors` with `directions`, which must be orthonormal."""
        vectors, directions = np.asarray(vectors, float), np.asarray(directions, float)
        if vectors.shape[-2] != len(directions):
            raise InputError(
                f"vectors have width {vectors.shape[-2]} and directions {len(directions)}: they"
                " must be of one width"
            )
        off = abs(directions.T @ directions - np.eye(directions.shape[-1])).max()
        if not off < 1e-6:
            raise InputError(
                f"directions are {off:.2g} off orthonormal columns: the teacher's directions must"
                " be orthonormal"
            )
        turned = np.swapaxes(vectors, -1, -2)
        return cls(turned @ directions, turned @ vectors)

    def checked(self, constraint: str = "none") -> "Overlaps":
        """These overlaps as arrays [repeat, ...]; an `InputError` if no such vectors have them."""
        if constraint not in CONSTRAINTS:
            raise InputError(
                f"constraint = {constraint!r}: it must be one of {', '.join(CONSTRAINTS)}"
            )
        m, q = (np.asarray(x, float) for x in self)
        m, q = (x[None] if x.ndim == 2 else x for x in (m, q))
        if m.ndim != 3 or q.shape != (len(m), m.shape[1], m.shape[1]):
            raise InputError(
                f"overlaps have the shapes {m.shape} and {q.shape}: M is [repeat, p, r] and Q"
                " [repeat, p, p]"
            )
        if not (np.isfinite(m).all() and np.isfinite(q).all()):
            raise InputError("overlaps are not finite")
        if abs(q - q.swapaxes(1, 2)).max() > 1e-9 * max(1, abs(q).max()):
            raise InputError("Q is not symmetric: it holds products of vectors with each other")
        least = np.linalg.eigvalsh(q - m @ m.swapaxes(1, 2))[:, 0]
        if (worst := least.min()) < -1e-9 * max(1, abs(q).max()):
            raise InputError(
                f"overlaps belong to no vectors: Q - M M' has the eigenvalue {worst:.2g}, and it"
                " must be positive semidefinite"
            )
        wanted = {"none": q, "unit": q * (1 - np.eye(m.shape[1])) + np.eye(m.shape[1])}.get(
            constraint, np.broadcast_to(np.eye(m.shape[1]), q.shape)
        )
        if (off := abs(q - wanted).max()) > 1e-6:
            raise InputError(
                f"Q is {off:.2g} off {constraint} columns: the start must satisfy the constraint"
            )
        return Overlaps(m, q)

    def coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        """$M$ and a root $C$ of $Q - MM^\\top$, that also exists where this is singular."""
        values, vectors = np.linalg.eigh(self.q - self.m @ np.swapaxes(self.m, -1, -2))
        return self.m, vectors * np.sqrt(np.maximum(values, 0))[..., None, :]


class Plain(eqx.Module):
    """A function without settings as a piece of a problem."""

    function: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def _as_piece(function: Any) -> Any:
    if function is None or isinstance(function, eqx.Module):
        return function
    if not callable(function):
        raise InputError(f"{function!r} is not a function: a problem is made of four functions")
    return Plain(function)


class Problem(eqx.Module):
    """Law of the tokens, target, head and loss, each a function of one sequence.

    A piece is a module-level function, or an `equinox.Module` whose numbers may then differ
    between the problems of one compiled program, and may be schedules (`attlas.schedules`). A
    target, head or loss with the attribute `trailing` takes arrays of many sequences, along a
    last axis beyond those named here.

    Arguments:
        law: `law(uniforms [uniforms])` gives `Tokens`; the latent is made of uniform numbers.
        target: `target(teacher [L, r], tokens, noise [noises])` gives the target, of any shape.
        head: `head(student [L, p], present [L], parameters)` gives a prediction of that shape.
        loss: `loss(prediction, target)` gives a number.
        exact: `exact(m, q)` is the risk in closed form, if there is one.
        uniforms, noises: uniform and standard normal numbers that law and target take.

    >>> from attlas.order_parameters import Heads, Places, Problem, ValueSum
    >>> problem = Problem(Places(4, [3.0, 2.0]), ValueSum(noise=0.1), Heads("softmax"))
    >>> problem.law.directions
    4
    """

    law: Any
    target: Any
    head: Any
    loss: Any
    exact: Any
    uniforms: int = eqx.field(static=True)
    noises: int = eqx.field(static=True)

    def __init__(
        self,
        law: Any,
        target: Any,
        head: Any,
        loss: Any = None,
        *,
        exact: Any = None,
        uniforms: int | None = None,
        noises: int = 1,
    ) -> None:
        self.law, self.target, self.head, self.exact = map(_as_piece, (law, target, head, exact))
        self.loss = _as_piece(squared if loss is None else loss)
        self.uniforms = getattr(law, "uniforms", 1) if uniforms is None else uniforms
        self.noises = noises


class Draw(NamedTuple):
    """The random numbers of a sequence: normals [r + p, L] of its fields, uniforms of its latent,
    normals of its target's noise. Those of many have the axis of sequences last, so that programs
    run along contiguous memory."""

    normals: Any
    uniforms: Any
    noise: Any


class State(NamedTuple):
    """The student's coordinates (M, C), and further parameters of the head."""

    m: Any
    c: Any
    parameters: Any = None

    @property
    def u(self) -> Any:
        """$(M, C)$ [p, r + p]: the columns in coordinates."""
        return jnp.concatenate([self.m, self.c], -1)

    @property
    def q(self) -> Any:
        return self.m @ self.m.swapaxes(-1, -2) + self.c @ self.c.swapaxes(-1, -2)


class Squared(eqx.Module):
    """The squared error, summed over the components of a vector."""

    trailing: bool = eqx.field(static=True, default=True)

    def __call__(self, prediction: Array, target: Array) -> Array:
        square = (prediction - target) ** 2
        return square.sum(0) if square.ndim > 1 else square


squared = Squared()


def fields(tokens: Tokens, normals: Array, state: State) -> tuple[Array, Array]:
    """The teacher's fields T [L, r] and the student's H [L, p] of one sequence.

    Arguments:
        tokens: the law of the sequence given its latent. `normals`: [L, r + p], standard normal.
        state: the student's coordinates (M, C).

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from attlas.order_parameters import Overlaps, Tokens, fields
    >>> from attlas.order_parameters.problem import State
    >>> tokens = Tokens(mean=jnp.zeros((3, 1)), root=jnp.ones(3), present=jnp.ones(3))
    >>> m, c = Overlaps(np.array([[0.6]]), np.array([[1.0]])).coordinates()
    >>> teacher, student = fields(tokens, jnp.ones((3, 2)), State(m, c))
    >>> print(teacher.shape, student.shape)
    (3, 1) (3, 1)
    """
    r = state.m.shape[-1]
    spread = tokens.root
    x = spread @ normals if spread.ndim == 2 else spread[:, None] * normals
    teacher = tokens.mean + x[:, :r]
    return teacher, teacher @ state.m.T + x[:, r:] @ state.c.T


class Drawn(NamedTuple):
    """Sequences in coordinates: `x` [r + p, L, n], the teacher's fields and below them those of the
    noise, $K^{1/2}Z_2$; their `tokens` and `target`, with n last. The student's fields are
    $(M, C)x$."""

    x: Any
    tokens: Tokens
    target: Any


def for_each(piece: Any) -> Any:
    """A piece as a function of sequences along a last axis. Pieces that say `trailing` are such
    functions: a mapped one would move the axis to the front, which is several times slower."""
    return piece if getattr(piece, "trailing", False) else jax.vmap(piece, -1, -1)


def draw_sequences(problem: Problem, draw: Draw) -> Drawn:
    """Sequences [..., n] from random numbers [..., n]."""
    tokens = jax.vmap(problem.law, -1, -1)(draw.uniforms)
    r = tokens.mean.shape[1]
    across = "ln,kln->kln" if tokens.root.ndim == 2 else "ljn,kjn->kln"
    mean = jnp.pad(tokens.mean.swapaxes(0, 1), ((0, len(draw.normals) - r), (0, 0), (0, 0)))
    x = jnp.einsum(across, tokens.root, draw.normals) + mean
    target = for_each(problem.target)(x[:r].swapaxes(0, 1), tokens, draw.noise)
    return Drawn(x, tokens, target)


def head_losses(problem: Problem, student: Array, parameters: Any, drawn: Drawn) -> Array:
    """Losses [n] of the head on sequences [..., n], from the student's fields [p, L, n]."""
    head = problem.head
    if not getattr(head, "trailing", False):
        head = jax.vmap(head, (-1, -1, None), -1)
    prediction = head(student.swapaxes(0, 1), drawn.tokens.present, parameters)
    return for_each(problem.loss)(prediction, drawn.target)


def student_fields(u: Any, x: Any) -> Any:
    """$(M, C)x$ [p, L, n] of sequences x [r + p, L, n], as one product of two matrices."""
    return (u @ x.reshape(len(x), -1)).reshape(-1, *x.shape[1:])


def sequence_losses(problem: Problem, state: State, sequences: Draw | Drawn) -> Array:
    """Losses [n] on sequences [..., n], or on those of random numbers [..., n]."""
    drawn = sequences if isinstance(sequences, Drawn) else draw_sequences(problem, sequences)
    return head_losses(problem, student_fields(state.u, drawn.x), state.parameters, drawn)


def covariance_root(covariance: Any) -> Float[np.ndarray, "L L"]:
    """A root of the covariance [L, L] of tokens, for `Tokens`; an `InputError` if it is none.

    Arguments:
        covariance: $K$ [L, L], symmetric and positive semidefinite.

    >>> import numpy as np
    >>> from attlas.order_parameters import Tokens, covariance_root
    >>> root = covariance_root([[1.0, 0.5], [0.5, 1.0]])
    >>> print(np.round(root @ root.T, 6).tolist())
    [[1.0, 0.5], [0.5, 1.0]]
    >>> tokens = Tokens(mean=np.zeros((2, 1)), root=root, present=np.ones(2))
    """
    try:
        covariance = np.asarray(covariance, float)
    except (TypeError, ValueError):
        raise InputError("a covariance that is no array of numbers: [L, L] is wanted") from None
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise InputError(f"a covariance of shape {covariance.shape}: it must be a square matrix")
    if not np.allclose(covariance, covariance.T, atol=1e-9):
        raise InputError("a covariance that is not symmetric: no tokens have it")
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-9 * max(1, values[-1]):
        raise InputError(
            f"a covariance with the eigenvalue {values[0]:.2g}: no tokens have it, it must be"
            " positive semidefinite"
        )
    return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T


def _is_schedule(x: Any) -> bool:
    return isinstance(x, SCHEDULES)


def has_schedules(tree: Any) -> bool:
    """Whether a number of a problem, or of a piece of one, changes with the step."""
    return any(map(_is_schedule, jax.tree.leaves(tree, is_leaf=_is_schedule)))


def at_step(problem: Problem, t: Any) -> Problem:
    """The problem after t steps: each schedule among its numbers is replaced by its value."""
    return jax.tree.map(lambda x: x(t) if _is_schedule(x) else x, problem, is_leaf=_is_schedule)


def as_problems(problems: Problem | Sequence[Problem], repeats: int) -> Problem:
    """One problem with a leading axis [repeat] on its numbers, from one or from one a repeat."""
    if isinstance(problems, Problem):
        return jax.tree.map(
            lambda x: np.broadcast_to(np.asarray(x, float), (repeats, *np.shape(x))), problems
        )
    if len(problems) != repeats:
        raise InputError(f"{len(problems)} problems for {repeats} starts: one, or one for each")
    structures = {str(jax.tree.structure(problem)) for problem in problems}
    shapes = {str(jax.tree.map(np.shape, problem)) for problem in problems}
    if len(structures) + len(shapes) > 2:
        raise InputError("problems of one run must differ in their numbers only, not in form")
    return jax.tree.map(lambda *x: np.stack([np.asarray(y, float) for y in x]), *problems)


class Shape(NamedTuple):
    """Tokens L, the teacher's directions r, the student's columns p."""

    length: int
    r: int
    p: int


def check_problem(problem: Problem, state: State, dim: int | None = None) -> Shape:
    """The sizes of a problem; an `InputError` with one sentence if its pieces do not fit.

    Arguments:
        problem: one, without an axis of repeats.
        state: one start, likewise.
        dim: the dimension d, where it matters.
    """
    rng = np.random.default_rng(0)
    p, r = state.m.shape[-2:]
    law = jax.eval_shape(problem.law, np.zeros(problem.uniforms))
    length = law.mean.shape[0]
    if law.mean.shape != (length, r):
        raise InputError(
            f"the law's mean has the shape {law.mean.shape} and M {r} columns: it must be [L, {r}]"
        )
    if law.root.shape not in ((length,), (length, length)):
        raise InputError(
            f"the law's root has the shape {law.root.shape}: a [{length}] or [{length}, {length}]"
            f" is a root of a covariance of {length} tokens"
        )
    if dim is not None and dim < r + p:
        raise InputError(
            f"dim = {dim}: the span of {r} directions and {p} columns needs at least {r + p}"
        )
    draw = Draw(
        rng.normal(size=(r + p, length, 8)),
        rng.uniform(size=(problem.uniforms, 8)),
        rng.normal(size=(problem.noises, 8)),
    )
    wanted = jax.eval_shape(draw_sequences, problem, draw).target.shape[:-1]
    student, present = np.zeros((length, p)), np.ones(length)
    try:
        given = jax.eval_shape(problem.head, student, present, state.parameters).shape
    except (TypeError, ValueError) as error:
        raise InputError(f"the head cannot read fields of shape {(length, p)}: {error}") from error
    if given != wanted:
        raise InputError(
            f"the head's output has the shape {given}: the target has the shape {wanted}"
        )
    root, losses = map(np.asarray, _tried(problem, state, draw))
    if not np.isfinite(root).all():
        raise InputError(
            f"the law's root is not finite: a finite one is a root of a covariance of {length}"
            " tokens"
        )
    if losses.shape != (8,) or not np.isfinite(losses).all():
        raise InputError(
            f"the losses of sequences are {losses.tolist()}: each must be one finite number"
        )
    return Shape(length, r, p)


@jax.jit
def _tried(problem: Problem, state: State, draw: Draw) -> tuple[Array, Array]:
    """The law's roots and the losses on some sequences."""
    drawn = draw_sequences(problem, draw)
    student = student_fields(state.u, drawn.x)
    return drawn.tokens.root, head_losses(problem, student, state.parameters, drawn)
