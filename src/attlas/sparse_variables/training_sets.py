"""Training sets of a sparse function, nested in their size, with validation sequences beside
them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, UInt8

from attlas.errors import InputError, check_memory, whole
from attlas.gaussian import stream
from attlas.padding import bucket
from attlas.sparse_variables.task import Batch, SparseBoolean, check_sparsity
from attlas.surface import public

LANES = 4
"""Runs that are trained together."""

SMALLEST_SET = 64
"""Samples to which a smaller training set is padded."""

BLOCK = 256
"""Sequences drawn at once, few enough for the processor's cache."""

VALIDATION_BATCH = 1024
"""Validation sequences that are drawn and evaluated at once."""

TRIES = 1000
"""Training sets drawn for a trial before its samples are called too few."""


@dataclass(frozen=True)
class TrainingSets:
    """Training sets of several trials.

    A run with m samples sees the first m of the max(`samples`) sequences of its trial. `validation`
    is the number of validation sequences of each trial. With `coins` labels are independent of the
    bits.

    Arguments:
        tasks: one for each trial. `bits`, `label`: the sequences [trial, m]. `key`: of the
            validation.
    """

    tasks: tuple[SparseBoolean, ...]
    samples: tuple[int, ...]
    bits: UInt8[np.ndarray, "trial m length"]
    label: UInt8[np.ndarray, "trial m"]
    validation: int
    key: Array
    coins: bool = False

    @property
    def length(self) -> int:
        """Of the sequences."""
        return self.bits.shape[-1]

    def validate(self, trial: int) -> Iterator[Batch]:
        """The validation sequences of a trial in batches, drawn only when they are asked for."""
        # No training set has the number TRIES.
        draws, task = stream(self.key, trial, TRIES), self.tasks[trial]
        for first in range(0, self.validation, VALIDATION_BATCH):
            bits = draw_bits(draws, VALIDATION_BATCH, task)[: self.validation - first]
            label = draws.integers(0, 2, len(bits), np.uint8) if self.coins else _label(task, bits)
            if first == 0 and label.min() == label.max():
                raise InputError(
                    f"validation = {self.validation}: the first {len(bits)} sequences of trial"
                    f" {trial} all have the label {label[0]}; both labels must occur"
                )
            yield Batch(bits, label)


@public
def draw_sets(
    key: Array,
    length: int,
    samples: Sequence[int],
    trials: int,
    *,
    function: str | tuple[int, ...] = "and",
    sparsity: int = 3,
    support: Sequence[int] | None = None,
    validation: int = 10_000,
    unique: bool = True,
    coins: bool = False,
) -> TrainingSets:
    """Training sets of `trials` trials on sequences of `length` bits.

    Arguments:
    - `samples`: the sizes of training sets that will be used.
    - `function`: of the bits in the support, a name or a truth table.
    - `support`: of all trials; if None, each trial has `sparsity` places, drawn uniformly.
    - `validation`: sequences of each trial.
    - `unique`: draw a trial again until its smallest set is consistent with its own support only.
    - `coins`: toss the labels; then no set is drawn again.
    - `key`: of JAX.
    """
    grid = tuple(sorted({whole("samples", m, 2) for m in samples}))
    if not grid:
        raise InputError("samples is empty: there must be at least one number of samples")
    whole("length", length, 1), whole("trials", trials, 1), whole("validation", validation, 1)
    if support is None:
        check_sparsity(sparsity, length)
    padded = LANES * bucket(grid[-1], SMALLEST_SET)
    check_memory(
        f"length = {length}: {trials} training sets of {grid[-1]} sequences and {padded} under way",
        length * (trials * grid[-1] + 9 * padded),
    )
    like = SparseBoolean(length, tuple(range(sparsity) if support is None else support), function)
    unique = unique and not coins
    if unique and like.unique_probability(grid[0]) < 1e-3 / TRIES:
        raise InputError(
            f"samples = {grid[0]}: hardly a set singles out the support; "
            f"ask for {like.floor()} or more"
        )
    drawn = [
        _draw_trial(key, trial, like, grid, support is None, unique) for trial in range(trials)
    ]
    tasks, bits, label = zip(*drawn, strict=True)
    if coins:
        label = [
            stream(key, trial, TRIES + 1).integers(0, 2, grid[-1], np.uint8)
            for trial in range(trials)
        ]
    sets = TrainingSets(tasks, grid, np.array(bits), np.array(label), validation, key, coins)
    next(sets.validate(0))  # a function with one label only is refused now
    return sets


def _draw_trial(
    key: Array, trial: int, like: SparseBoolean, grid: tuple[int, ...], anywhere: bool, unique: bool
) -> tuple[SparseBoolean, np.ndarray, np.ndarray]:
    """A task as `like`, with a random support if that may be `anywhere`, and its largest set."""
    support = like.support
    if anywhere:
        places = stream(key, trial).choice(like.length, like.sparsity, replace=False)
        support = tuple(sorted(places.tolist()))
    task = SparseBoolean(like.length, support, like.function, like.bias)
    for attempt in range(TRIES):
        bits = draw_bits(stream(key, trial, attempt), grid[-1], task)
        label = _label(task, bits)
        if not unique or task.consistent(Batch(bits[: grid[0]], label[: grid[0]]), most=2) == 1:
            return task, bits, label
    raise InputError(
        f"samples = {grid[0]}: none of {TRIES} sets singles out the support; "
        f"ask for {task.floor()} or more"
    )


def draw_bits(
    draws: np.random.Generator, samples: int, task: SparseBoolean
) -> UInt8[np.ndarray, "n length"]:
    """Sequences of bits; the first of them do not depend on the number of `samples`.

    A random byte decides each bit, but for one in 256 that takes a further number: the probability
    of a 1 is exact.
    """
    further, (least, part) = draws.spawn(1)[0], divmod(256 * task.bias, 1)
    bits = np.empty((samples, task.length), np.uint8)
    for first in range(0, samples, BLOCK):
        block = bits[first : first + BLOCK].reshape(-1)
        random = np.frombuffer(draws.bytes(block.size), np.uint8)
        np.less(random, np.uint8(least), out=block.view(bool))
        ties = np.flatnonzero(random == np.uint8(least))
        block[ties] = further.random(len(ties)) < part
    return bits


def _label(task: SparseBoolean, bits: UInt8[np.ndarray, "n length"]) -> UInt8[np.ndarray, " n"]:
    return task.table[bits[:, list(task.support)] @ (1 << np.arange(task.sparsity))]
