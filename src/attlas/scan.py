"""A step repeated many times: the one place with a loop over steps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attlas.errors import whole

State = TypeVar("State")
CHUNK = 32
"""Records a compiled call makes. Every call makes this many, the last with idle ones, so that one program serves all."""


class Trajectory(NamedTuple):
    """What `iterate` saw: `steps` [record], observations with axes [record, repeat, ...], the last state, and `survived`
    [repeat], the number of steps after which a repeat was still finite (all of them unless it diverged)."""

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
    """Apply `state = step(t, state, args)` for t = 0, ..., steps - 1 and record `observe(t, state, args)`.

    Records are taken before the first step, after every `record_every` steps and after the last. Each leaf of
    `state` has a leading axis of repeats. `step` and `observe` must be module-level functions, whose settings travel
    in `args`: then one compiled program serves every setting, number of steps and way of recording.
    `progress(done, steps)` is called after each compiled chunk.
    """
    steps, record_every = whole("steps", steps, 0), whole("record_every", record_every, 1)
    times = np.unique(np.append(np.arange(0, steps, record_every), steps))
    trips = np.diff(times, prepend=0)
    trips = np.pad(trips, (0, -len(trips) % CHUNK))

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
    progress: Callable[[int], None] | None = None,
) -> Trajectory:
    """Apply `state = step(state, inputs[t], args)` to inputs that come from outside, `block` steps at a time, and record
    the state as `iterate` does.

    `draw(i)` makes the raw numbers of block i on the host, while the compiled program works on the block before;
    `prepare(raw, args)` turns them into inputs with a leading axis [block], all at once. The last block is whole: `draw`
    has to see to it that steps beyond the last leave the state alone.
    """
    times = np.unique(np.append(np.arange(0, steps, record_every), steps))
    survived = np.zeros(jax.tree.leaves(state)[0].shape[:1], np.int32)
    rows, waiting = [jax.tree.map(lambda x: np.asarray(x)[None], state)], []

    def collect(first: int, path: Any) -> None:
        wanted = times[(times > first) & (times <= first + block)] - first - 1
        rows.append(jax.tree.map(lambda x: np.asarray(x)[wanted], path))

    for first in range(0, steps, block):
        raw = draw(first // block)
        state, survived, path = _driven(step, prepare, state, survived, args, raw)
        waiting.append((first, path))
        if len(waiting) > 1:  # more in flight would only fill the memory
            collect(*waiting.pop(0))
        if progress is not None:
            progress(min(block, steps - first))
    for part in waiting:
        collect(*part)
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
    return Trajectory(
        times, joined, jax.tree.map(np.asarray, state), np.minimum(np.asarray(survived), steps)
    )


@functools.partial(jax.jit, static_argnames=("step", "prepare"))
def _driven(step: Any, prepare: Any, state: Any, survived: Array, args: Any, raw: Any) -> Any:
    def advance(carry: tuple[Any, Array], inputs: Any) -> tuple[tuple[Any, Array], Any]:
        state = step(carry[0], inputs, args)
        return (state, carry[1] + _finite(state)), state

    (state, survived), path = jax.lax.scan(advance, (state, survived), prepare(raw, args))
    return state, survived, path


def _finite(state: Any) -> Array:
    """Whether each repeat is finite [repeat], as 0 or 1."""
    # Nothing times a finite number is nothing; XLA adds numbers up much faster than it joins truth values.
    nothing = [(0 * leaf).reshape(leaf.shape[0], -1).sum(1) for leaf in jax.tree.leaves(state)]
    return jnp.isfinite(sum(nothing)).astype(jnp.int32)
