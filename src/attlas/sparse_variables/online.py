"""Training with a fresh batch at every step, several runs at once (Edelman et al. 2022, Section 5,
Figure 4).

A parity of s bits is independent of any s - 1 of them, so the loss hardly falls at first; batches
are fresh, so no run fits by memorising samples. A run arrives when every sequence of bits gets its
label, where the length is short enough to look at all of them.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, UInt8

from attlas.errors import InputError, whole
from attlas.progress import watched
from attlas.sparse_variables import training
from attlas.sparse_variables.model import Architecture
from attlas.sparse_variables.task import Batch, SparseBoolean, draw_bits, patterns, probabilities
from attlas.sparse_variables.training import (
    Data,
    Recipe,
    State,
    accuracy_until_wrong,
    advance,
    begin_runs,
    cross_entropy,
    evaluation_times,
    fits_memory,
    right,
)
from attlas.surface import public

PARITY = Recipe(
    Architecture(
        heads=16, hidden=256, norms=True, weight_scale=0.125, token_scale=0.5, position_scale=0.5
    ),
    decay=0.0,
)
"""As `training.ADAM`, but weights begin at the size one over the square root of the dimension: from
small ones parity takes long."""

EXHAUSTIVE = 16
"""Up to this length every sequence is looked at."""

SAMPLED = 10_000
"""Sequences that are looked at beyond it."""

SCREEN = 1024
"""Of these, in random order, what every evaluation sees; only where all of it is right, the rest is
looked at too."""


class Stream(NamedTuple):
    """Where the batches of each lane come from."""

    support: Any  # [lane, sparsity]
    table: Any  # [2^sparsity], the function's values
    bias: Any
    weight: Any  # [batch], one over the size of a batch
    key: Any  # [lane, words]


class Validation(NamedTuple):
    """Sequences in random order, the first of which are the screen, and the weights of the
    screen."""

    bits: UInt8[np.ndarray, "n length"]
    weight: Float[np.ndarray, " screen"]


def step(t: Array, state: State, args: tuple[Stream, Recipe], careful: bool = False) -> State:
    """One step of Adam in every lane, on a batch of its own.

    Arguments:
        t: not read: `state.step` counts the steps of each lane.
        args: where batches come from, and the recipe.
        careful: as in `training.step`.
    """
    stream, recipe = args
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(stream.key), state.step)
    batch = jax.vmap(jax.random.split)(keys)[:, 0]
    shape = stream.weight.shape[0], state.model.length
    bits = jax.vmap(lambda key: draw_bits(key, *shape, stream.bias))(batch)
    data = Data(bits, labels(stream, bits), stream.weight)
    return training.step(t, state, (data, recipe), careful)


careful_step = functools.partial(step, careful=True)


def labels(stream: Stream, bits: UInt8[Array, "*lane m length"]) -> UInt8[Array, "lane m"]:
    """The values of each lane's function, on sequences of its own or on the same for all."""
    lanes, sparsity = stream.support.shape
    bits = jnp.broadcast_to(bits, (lanes, *bits.shape[-2:]))
    relevant = jnp.take_along_axis(bits, stream.support[:, None, :], -1).astype(jnp.int32)
    return jnp.asarray(stream.table)[(relevant << jnp.arange(sparsity)).sum(-1)]


@jax.jit
def _look(
    model: Any, stream: Stream, bits: UInt8[Array, "n length"], weight: Float[Array, " n"]
) -> tuple[Float[Array, " lane"], Bool[Array, "lane n"]]:
    """The loss of each lane on weighted sequences, and which of them are right."""
    logits, label = model.logits(bits), labels(stream, bits)
    return (cross_entropy(logits, label) * weight).sum(-1), right(logits, label)


@public
def train_online(
    tasks: Sequence[SparseBoolean],
    recipe: Recipe = PARITY,
    *,
    key: Array,
    batch_size: int = 128,
    steps: int = 1000,
    every: int = 10,
) -> xr.Dataset:
    """Train on each task, from starts and on batches of their own.

    Arguments:
    - `tasks`: a run for each; they may differ in their supports only.
    - `key`: of starts, batches and validation.
    - `batch_size`: fresh sequences at each step.
    - `steps`: at most; all runs are evaluated every `every` steps, until each has arrived.
    - `recipe`: architecture and optimiser. `every`: steps between evaluations.

    Returns a Dataset:
    - over (trial, step) `loss` and `accuracy` on validation (its first 1,024 sequences, or as many
      as it takes to find a mistake; nan after the end). Validation is on all sequences up to the
      length 16, and on 10,000 beyond;
    - over trial `arrival`, the first evaluation at which all sequences were right, or nan, and
      `status`: solved, unsolved or diverged.

    >>> import jax
    >>> from attlas.sparse_variables import SparseBoolean, train_online
    >>> runs = train_online([SparseBoolean(6, (0, 1))], key=jax.random.key(0), steps=20)
    >>> print(runs.sizes["trial"], runs.status.item() in ("solved", "unsolved"))
    1 True
    """
    times = evaluation_times(steps, every)
    _alike(tasks)
    fits_memory(recipe, tasks[0].length, len(tasks))
    loss, accuracy = np.full((2, len(tasks), len(times)), np.nan)
    arrival, finite = np.full(len(tasks), np.nan), np.ones(len(tasks), bool)
    with jax.enable_x64(False):  # training is in single precision
        validation = validate_on(tasks[0], jax.random.fold_in(key, 0))
        state, stream = _start(
            tasks, recipe, jax.random.fold_in(key, 1), whole("batch_size", batch_size, 1)
        )
        for i, time in enumerate(watched(times, "evaluations")):
            path = advance((step, careful_step), state, (stream, recipe), every)
            state, finite = path.last, finite & (path.survived == every)
            loss[:, i], found = map(
                np.asarray, _look(state.model, stream, validation.bits[:SCREEN], validation.weight)
            )
            accuracy[:, i] = np.where(found.all(1), 1, found @ validation.weight)
            for lane in np.flatnonzero(found.all(1) & np.isnan(arrival)):
                model = jax.tree.map(lambda x, lane=lane: x[lane], state.model)
                label = np.asarray(tasks[int(lane)].label(validation.bits))
                accuracy[lane, i] = accuracy_until_wrong(model, _in_parts(validation.bits, label))
                arrival[lane] = time if accuracy[lane, i] == 1 else np.nan
            if (~finite | ~np.isnan(arrival)).all():
                break
    arrival[~finite] = np.nan  # what ends in no number has failed, whatever it was on the way
    status = np.where(~finite, "diverged", np.where(np.isnan(arrival), "unsolved", "solved"))
    return xr.Dataset(
        {
            "loss": (("trial", "step"), loss),
            "accuracy": (("trial", "step"), accuracy),
            "arrival": ("trial", arrival),
            "status": ("trial", status),
        },
        coords={"trial": range(len(tasks)), "step": times},
    )


def _alike(tasks: Sequence[SparseBoolean]) -> None:
    if not tasks:
        raise InputError("tasks is empty: there must be at least one")
    for name in ("length", "sparsity", "function", "bias"):
        found = {getattr(task, name) for task in tasks}
        if len(found) > 1:
            raise InputError(
                f"the tasks have {len(found)} values of {name}: they may differ in their supports"
                f" only"
            )


@public
def validate_on(task: SparseBoolean, key: Array) -> Validation:
    """All sequences of bits in random order, weighted by their probabilities, up to the length 16;
    beyond, 10,000 sequences drawn from the task's law."""
    if task.length > EXHAUSTIVE:
        bits = np.asarray(draw_bits(key, SAMPLED, task.length, task.bias))
        weight = np.ones(SCREEN)
    else:
        order = np.asarray(jax.random.permutation(key, 2**task.length))
        bits = patterns(task.length)[order]
        weight = probabilities(task.length, task.bias)[order][:SCREEN]
    return Validation(bits, (weight / weight.sum()).astype(np.float32))


def _in_parts(
    bits: UInt8[np.ndarray, "n length"], label: UInt8[np.ndarray, " n"]
) -> Iterator[Batch]:
    return (
        Batch(bits[i : i + SCREEN], label[i : i + SCREEN]) for i in range(0, len(label), SCREEN)
    )


def _start(
    tasks: Sequence[SparseBoolean], recipe: Recipe, key: Array, batch_size: int
) -> tuple[State, Stream]:
    """Each lane with a key of its own, whatever their number."""
    keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(jnp.arange(len(tasks)))
    stream = Stream(
        support=np.array([task.support for task in tasks]),
        table=tasks[0].table,
        bias=np.float32(tasks[0].bias),
        weight=np.full(batch_size, 1 / batch_size, np.float32),
        key=np.asarray(jax.random.key_data(keys[:, 1])),
    )
    return begin_runs(recipe, tasks[0].length, keys[:, 0]), stream
