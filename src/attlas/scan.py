"""A step repeated many times: the one place with a loop over steps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attlas.errors import whole
from attlas.fused import one_kernel
from attlas.padding import pad_axis

State = TypeVar("State")
CHUNK = 32
"""Records of a compiled call; the last call is filled up with records without steps."""


class Trajectory(NamedTuple):
    """What `iterate` recorded.

    - `steps` [record]: when. `observed`: arrays [record, repeat, ...]. `last`: the last state.
    - `survived` [repeat]: the steps after which a repeat was still finite, all unless it diverged.
    """

    steps: Int[np.ndarray, " record"]
    observed: Any
    last: Any
    survived: Int[np.ndarray, " repeat"]


def iterate(
    step: Callable[[Array, State, Any], State],
    observe: Callable[[Array, State, Any], Any],
    state: State,
    args: Any,
    *,
    steps: int,
    record_every: int,
    progress: Callable[[int, int], None] | None = None,
) -> Trajectory:
    """Apply `state = step(t, state, args)` for t = 0, ..., steps - 1 and record `observe(t, state,
    args)`.

    Records are taken before the first step, after every `record_every` steps and after the last.

    Arguments:
    - `step`, `observe`: module-level functions, with their settings in `args`. Then one compiled
      program serves every setting, number of steps and way of recording.
    - `state`: each leaf has a leading axis of repeats.
    - `progress(done, steps)`: called after each compiled chunk.
    - `args`: what the functions take besides. `steps`: how many. `record_every`: steps between
      records.

    >>> import numpy as np
    >>> from attlas.scan import iterate
    >>> def halve(t, x, args):
    ...     return x / 2
    >>> def look(t, x, args):
    ...     return x
    >>> path = iterate(halve, look, np.array([1.0, 8.0]), None, steps=3, record_every=1)
    >>> print(path.steps, path.observed[:, 1], path.survived)
    [0 1 2 3] [8. 4. 2. 1.] [3 3]
    """
    steps, record_every = whole("steps", steps, 0), whole("record_every", record_every, 1)
    times = np.unique(np.append(np.arange(0, steps, record_every), steps))
    trips = pad_axis(np.diff(times, prepend=0), len(times) + -len(times) % CHUNK)

    survived = np.zeros(jax.tree.leaves(state)[0].shape[:1], np.int32)
    chunks, t = [], 0
    for chunk in np.split(trips, len(trips) // CHUNK):
        state, survived, observed = _chunk(step, observe, state, survived, args, t, chunk)
        chunks.append(jax.tree.map(np.asarray, observed))
        t += int(chunk.sum())
        if progress is not None:
            progress(t, steps)
    joined = jax.tree.map(lambda *parts: np.concatenate(parts)[: len(times)], *chunks)
    return Trajectory(times, joined, jax.tree.map(np.asarray, state), np.asarray(survived))


def in_groups(
    run: Callable[[int, Int[np.ndarray, " size"], Any], Trajectory],
    repeats: int,
    size: int,
    steps: int,
    progress: Any = None,
) -> Trajectory:
    """Runs of groups of `size` repeats, joined, so that one shape serves every number of repeats.

    Arguments:
    - `run(number, rows, progress)`: the run of a group with the repeats `rows`. The last group is
      filled up with copies of the last repeat, which are cut off again.
    - `steps`: of each run. `progress(done, steps)`: counts those of all groups.
    - `repeats`: of all groups. `size`: repeats of a group.

    >>> import numpy as np
    >>> from attlas.scan import in_groups, iterate
    >>> def halve(t, x, args):
    ...     return x / 2
    >>> def look(t, x, args):
    ...     return x
    >>> def run(number, rows, progress):
    ...     return iterate(halve, look, rows * 1.0, None, steps=2, record_every=1)
    >>> print(in_groups(run, repeats=5, size=2, steps=2).last)
    [0.   0.25 0.5  0.75 1.  ]
    """
    firsts = range(0, repeats, size)
    paths = []
    for number, first in enumerate(firsts):
        rows = np.minimum(first + np.arange(size), repeats - 1)
        report = progress and (
            lambda done, _, n=number: progress(n * steps + done, len(firsts) * steps)
        )
        paths.append(run(number, rows, report))
    joined = jax.tree.map(
        lambda *parts: np.concatenate(parts, -1)[..., :repeats], *(path[1:] for path in paths)
    )
    return Trajectory(paths[0].steps, *joined)


@functools.partial(jax.jit, static_argnames=("step", "observe"))
def _chunk(
    step: Any, observe: Any, state: Any, survived: Array, args: Any, start: Array, trips: Array
) -> Any:
    def advance(t: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, survived = carry
        state = step(t, state, args)
        return state, survived + _finite(state)

    def record(
        carry: tuple[Any, Array, Array], trips: Array
    ) -> tuple[tuple[Any, Array, Array], Any]:
        state, survived, t = carry
        state, survived = jax.lax.fori_loop(t, t + trips, advance, (state, survived))
        return (state, survived, t + trips), observe(t + trips, state, args)

    (state, survived, _), observed = jax.lax.scan(record, (state, survived, start), trips)
    return state, survived, observed


def drive(
    step: Callable[[State, Any, Any], State],
    prepare: Callable[[Any, Any], Any],
    state: State,
    args: Any,
    draw: Callable[[int], Any],
    *,
    steps: int,
    block: int,
    record_every: int,
    progress: Callable[[int, int], None] | None = None,
    at_once: bool = False,
) -> Trajectory:
    """Apply `state = step(state, inputs[t], args)` to inputs drawn on the host and record the
    state.

    Arguments:
    - `draw(i)`: the raw numbers of block i, drawn while the compiled program works on the block
      before. The last block is whole: its numbers beyond the last step must leave the state as it
      is.
    - `prepare(raw, args)`: turns them into inputs with a leading axis [block].
    - `block`: steps of a compiled call. Records are taken as in `iterate`.
    - `progress(done, steps)`: called after each block.
    - `step`: a module-level function. `state`, `args`: as in `iterate`.
    - `steps`: how many. `record_every`: steps between records.
    - `at_once`: compile the loop over a block as one kernel, for a `step` that `fused.one_kernel`
      takes: a third less time where a step is many operations on few numbers.

    >>> import numpy as np
    >>> from attlas.scan import drive
    >>> def add(x, number, args):
    ...     return x + number
    >>> def as_is(raw, args):
    ...     return raw
    >>> path = drive(add, as_is, np.zeros(1), None, lambda i: np.ones((4, 1)) * (i == 0),
    ...              steps=4, block=4, record_every=2)
    >>> print(path.last)
    [4.]
    """
    times = np.unique(np.append(np.arange(0, steps, record_every), steps))
    survived = np.zeros(jax.tree.leaves(state)[0].shape[:1], np.int32)
    rows, waiting = [jax.tree.map(lambda x: np.asarray(x)[None], state)], []

    def collect(first: int, path: Any) -> None:
        wanted = times[(times > first) & (times <= first + block)] - first - 1
        rows.append(jax.tree.map(lambda x: np.asarray(x)[wanted], path))

    for first in range(0, steps, block):
        raw = draw(first // block)
        state, survived, path = _driven(step, prepare, at_once, state, survived, args, raw)
        waiting.append((first, path))
        if len(waiting) > 1:  # more of them would only fill the memory
            collect(*waiting.pop(0))
        if progress is not None:
            progress(min(first + block, steps), steps)
    for part in waiting:
        collect(*part)
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
    return Trajectory(
        times, joined, jax.tree.map(np.asarray, state), np.minimum(np.asarray(survived), steps)
    )


@functools.partial(jax.jit, static_argnames=("step", "prepare", "at_once"))
def _driven(
    step: Any,
    prepare: Any,
    at_once: bool,
    state: Any,
    survived: Array,
    args: Any,
    raw: Any,
) -> Any:
    def steps(state: Any, survived: Array, args: Any, inputs: Any) -> Any:
        def advance(carry: tuple[Any, Array], inputs: Any) -> tuple[tuple[Any, Array], Any]:
            state = step(carry[0], inputs, args)
            return (state, carry[1] + _finite(state)), state

        return jax.lax.scan(advance, (state, survived), inputs)

    loop = one_kernel(steps) if at_once else steps
    (state, survived), path = loop(state, survived, args, prepare(raw, args))
    return state, survived, path


def _finite(state: Any) -> Array:
    """Whether each repeat is finite [repeat], as 0 or 1."""
    # NaN and infinity propagate through 0 * x, and XLA sums numbers much faster than truth values.
    zeros = [(0 * leaf).reshape(leaf.shape[0], -1).sum(1) for leaf in jax.tree.leaves(state)]
    return jnp.isfinite(sum(zeros)).astype(jnp.int32)
