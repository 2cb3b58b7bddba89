r"""Training on few samples of a sparse function, many runs at once (Edelman et al. 2022, Section 5, Figures 2 and 3).

A run is a trial (a support, a training set, a start, validation sequences of its own) at a number m of samples. Training sets of a trial
are nested in m. Runs of similar m share one compiled program through weights that are 0 on padding: it advances `LANES` runs by a number of
steps, and a run that is done gives its lane to one that waits. A run depends on nothing but its own numbers, so neither the grid of m nor the
number of trials changes it.

The recipe is what makes success rise with m. Adam, coordinate by coordinate, moves all positions equally fast however little they tell
of the label, and the model then fits its training set with whatever places lead by chance. `RECIPE_R` normalises the gradient of the
position table by one number, the mean square of its largest row, and moves everything else 300 times more slowly.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt8

from attlas.errors import InputError, positive, whole
from attlas.gaussian import stream
from attlas.scan import Trajectory, iterate
from attlas.sparse_variables.model import Architecture, Transformer, attention_weights
from attlas.sparse_variables.task import Batch, SparseBoolean

LANES = 4
"""Runs that are advanced together."""

BLOCK = 256
"""Sequences drawn at once, few enough for the processor's cache."""

LOOK = 1024
"""Validation sequences that are looked at together; more only where all of these are right."""

MASS = 256
"""Validation sequences on which attention is averaged."""

ALIKE = 8
"""Training sets of at least one over this of a padded size are padded to it, if one of them needs it."""

TRIES = 1000
"""Training sets drawn for a trial before its samples are called too few."""

NORMALISERS = ("row maximum", "coordinate")


# --- the data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSets:
    """Training sets of several trials, at most max(`samples`) sequences each, of which a run with m samples sees the first m; and the
    number of validation sequences that each trial has besides. `redrawn` counts the sets thrown away because the first min(`samples`) sequences
    were consistent with another support. With `coins` labels have nothing to do with the bits."""

    tasks: tuple[SparseBoolean, ...]
    samples: tuple[int, ...]
    bits: UInt8[np.ndarray, "trial m length"]
    label: UInt8[np.ndarray, "trial m"]
    redrawn: Int[np.ndarray, " trial"]
    validation: int
    key: Array
    coins: bool = False

    @property
    def length(self) -> int:
        return self.bits.shape[-1]

    def validate(self, trial: int) -> Iterator[Batch]:
        """The validation sequences of a trial, `LOOK` at a time, drawn when they are asked for: few runs are looked at with all of them."""
        draws, task = (
            stream(self.key, trial, TRIES),
            self.tasks[trial],
        )  # no training set has this number
        for first in range(0, self.validation, LOOK):
            bits = draw_bits(draws, LOOK, task)[: self.validation - first]
            label = draws.integers(0, 2, len(bits), np.uint8) if self.coins else _label(task, bits)
            if first == 0 and label.min() == label.max():
                raise InputError(
                    f"validation = {self.validation}: the first {len(bits)} sequences of trial {trial} all have the label {label[0]}; "
                    "both labels must occur"
                )
            yield Batch(bits, label)


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
    """Training sets of `trials` trials, with `support` or each with one of `sparsity` places, drawn uniformly. With `unique`, the
    smallest of a trial already singles out its support; with `coins` labels are tossed, and none is thrown away."""
    grid = tuple(sorted({whole("samples", m, 2) for m in samples}))
    if not grid:
        raise InputError("samples is empty: there must be at least one number of samples")
    whole("length", length, 1), whole("trials", trials, 1), whole("validation", validation, 1)
    what = (
        f"{trials} training sets of {grid[-1]} sequences and {LANES * padded(grid[-1])} under way"
    )
    fits(length, what, length * (trials * grid[-1] + 9 * LANES * padded(grid[-1])))
    if support is None and not 1 <= whole("sparsity", sparsity, 1) <= length:
        raise InputError(
            f"sparsity = {sparsity}: it must be between 1 and {length}, of {length} bits"
        )
    like = SparseBoolean(length, tuple(range(sparsity) if support is None else support), function)
    if unique and not coins and like.unique_probability(grid[0]) < 1e-3 / TRIES:
        raise InputError(
            f"samples = {grid[0]}: hardly a set singles out the support; ask for {like.floor()} or more"
        )
    drawn = [
        _draw_trial(key, trial, like, grid, support is None, unique and not coins)
        for trial in range(trials)
    ]
    tasks, bits, label, redrawn = zip(*drawn, strict=True)
    if coins:
        label = [
            stream(key, trial, TRIES + 1).integers(0, 2, grid[-1], np.uint8)
            for trial in range(trials)
        ]
    sets = TrainingSets(
        tasks, grid, np.array(bits), np.array(label), np.array(redrawn), validation, key, coins
    )
    next(sets.validate(0))  # what is wrong with the function is wrong with all trials
    return sets


def _draw_trial(
    key: Array, trial: int, like: SparseBoolean, grid: tuple[int, ...], anywhere: bool, unique: bool
) -> tuple[SparseBoolean, np.ndarray, np.ndarray, int]:
    """A task as `like`, with a support of its own if that may be `anywhere`, and its largest training set."""
    support = like.support
    if anywhere:
        support = tuple(
            sorted(stream(key, trial).choice(like.length, like.sparsity, replace=False).tolist())
        )
    task = SparseBoolean(like.length, support, like.function, like.bias)
    for attempt in range(TRIES):
        bits = draw_bits(stream(key, trial, attempt), grid[-1], task)
        label = _label(task, bits)
        if not unique or task.consistent(Batch(bits[: grid[0]], label[: grid[0]]), most=2) == 1:
            return task, bits, label, attempt
    raise InputError(
        f"samples = {grid[0]}: none of {TRIES} sets singles out the support; ask for {task.floor()} or more"
    )


def fits(length: int, what: str, size: int) -> None:
    """Bad input if so many bytes are more than there are; where a system does not say, nothing is refused."""
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if size > memory:
            raise InputError(
                f"length = {length}: {what} would take {size / 1e9:,.0f} GB, and there are {memory / 1e9:,.0f} GB of memory"
            )


def draw_bits(
    draws: np.random.Generator, samples: int, task: SparseBoolean
) -> UInt8[np.ndarray, "n length"]:
    """Sequences of bits, the first of them the same for every number of `samples`. A random byte decides each but for one in 256, for which
    it takes a further number: the probability of a 1 is exact."""
    further, (least, part) = draws.spawn(1)[0], divmod(256 * task.bias, 1)
    bits = np.empty((samples, task.length), np.uint8)
    for first in range(0, samples, BLOCK):
        block = bits[first : first + BLOCK].reshape(-1)
        drawn = np.frombuffer(draws.bytes(block.size), np.uint8)
        np.less(drawn, np.uint8(least), out=block.view(bool))
        ties = np.flatnonzero(drawn == np.uint8(least))
        block[ties] = further.random(len(ties)) < part
    return bits


def _label(task: SparseBoolean, bits: UInt8[np.ndarray, "n length"]) -> UInt8[np.ndarray, " n"]:
    return task.table[bits[:, list(task.support)] @ (1 << np.arange(task.sparsity))]


# --- the recipe ------------------------------------------------------------------------------------------------------


class Recipe(eqx.Module):
    r"""An architecture and how it is trained: Adam with the whole training set at each step.

    $g_1 \leftarrow \beta_1g_1 + (1-\beta_1)g$, $g_2 \leftarrow \beta_2g_2 + (1-\beta_2)q$, $x \leftarrow x - \text{rate}\,(\hat g_1/(\sqrt{\hat g_2} + \epsilon) + \text{decay}\,x)$,
    with $q = g^2$ for each coordinate; but for the position table, if `normaliser` is "row maximum", with one
    $q = \max_t \frac1d\sum_j g_{tj}^2$. Positions have the rate `position_rate`.
    """

    architecture: Any = eqx.field(static=True)
    rate: float = 1e-3
    position_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 1e-4
    normaliser: str = eqx.field(static=True, default="coordinate")

    def __check_init__(self) -> None:
        if self.normaliser not in NORMALISERS:
            raise InputError(
                f"normaliser = {self.normaliser!r}: it must be {' or '.join(NORMALISERS)}"
            )
        for name in ("rate", "position_rate", "epsilon"):
            positive(name, getattr(self, name))
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} = {getattr(self, name)!r}: it must lie between 0 and 1, and not be 1"
                )
        if not 0 <= self.decay < np.inf:
            raise InputError(f"decay = {self.decay!r}: it must be a finite number, at least 0")


RECIPE_R = Recipe(
    Architecture(pairs=True, weight_scale=0.2, token_scale=0.5, position_scale=0.0),
    rate=1e-4,
    position_rate=3e-2,
    beta2=0.9,
    normaliser="row maximum",
)
"""Success rises with the samples: positions begin at 0 and share one normaliser; weights are large and slow."""

ADAM = Recipe(Architecture(heads=16, hidden=256, norms=True))
"""Common practice, after minGPT: small weights everywhere and Adam with one rate. Success is erratic in the samples."""


class State(NamedTuple):
    """The model of each lane, moving averages of its gradient and of what normalises it, and its number of steps."""

    model: Any
    first: Any  # as `Weights`
    second: Any
    step: Float[Array, " lane"]


class Data(NamedTuple):
    """What each lane is trained on; `weight` is 1/m on its samples and 0 on padding."""

    bits: Any  # [lane, m, length], or the same for all lanes, [m, length]
    label: Any  # [lane, m] or [m]
    weight: Any  # [lane, m]
    key: Any  # [lane, words], for dropout


class Weights(NamedTuple):
    """The weights of a run as few arrays, or something of the same shapes: a step with one array for each layer compiles for long."""

    positions: Any  # [places, d], if there are any
    others: Any  # [n]


def begin(model: Any, recipe: Recipe) -> State:
    """The state of one run before its first step."""
    zero = jax.tree.map(jnp.zeros_like, _joined(model))
    second = zero
    if zero.positions is not None and recipe.normaliser == "row maximum":
        second = zero._replace(positions=jnp.zeros((1, 1)))
    return State(model, zero, second, jnp.zeros(()))


def _joined(model: Any) -> Weights:
    leaves = jax.tree_util.tree_leaves_with_path(model)
    others = jnp.concatenate([leaf.ravel() for path, leaf in leaves if not _of_positions(path)])
    return Weights(getattr(model, "positions", None), others)


def _parted(weights: Weights, like: Any) -> Any:
    """A model as `like` with these weights."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    ends = np.cumsum([0 if _of_positions(path) else leaf.size for path, leaf in leaves])
    parts = jnp.split(weights.others, ends[:-1])
    found = [
        weights.positions if _of_positions(path) else part.reshape(leaf.shape)
        for (path, leaf), part in zip(leaves, parts, strict=True)
    ]
    return jax.tree.unflatten(structure, found)


def _of_positions(path: Any) -> bool:
    return path[-1].name == "positions"


def step(t: Array, state: State, args: tuple[Data, Recipe], careful: bool = False) -> State:
    """One step of Adam in every lane."""
    data, recipe = args
    keys = jax.vmap(jax.random.fold_in)(
        jax.random.wrap_key_data(data.key), state.step.astype(jnp.int32)
    )
    gradient = jax.grad(lambda model: losses(model, data, keys, careful).sum())(state.model)
    count = state.step + 1
    squares = jax.vmap(lambda g: jax.tree.map(jnp.square, _joined(g)))(gradient)
    rates = Weights(recipe.position_rate, recipe.rate)
    if squares.positions is None:
        rates = rates._replace(positions=None)
    elif recipe.normaliser == "row maximum":
        one = squares.positions.mean(-1, keepdims=True).max(-2, keepdims=True)
        squares = squares._replace(positions=one)

    def moved(
        x: Array, g: Array, square: Array, first: Array, second: Array, rate: Any
    ) -> tuple[Array, Array, Array]:
        first = recipe.beta1 * first + (1 - recipe.beta1) * g
        second = recipe.beta2 * second + (1 - recipe.beta2) * square
        each = count.reshape(-1, *(1,) * (x.ndim - 1))
        size = jnp.sqrt(second / (1 - recipe.beta2**each)) + recipe.epsilon
        direction = first / ((1 - recipe.beta1**each) * size)
        return x - rate * (direction + recipe.decay * x), first, second

    x, g = jax.vmap(_joined)(state.model), jax.vmap(_joined)(gradient)
    found = jax.tree.map(moved, x, g, squares, state.first, state.second, rates)
    x, first, second = jax.tree.transpose(
        jax.tree.structure(x), jax.tree.structure((0, 0, 0)), found
    )
    return State(jax.vmap(_parted)(x, state.model), first, second, count)


careful_step = functools.partial(step, careful=True)


def advance(steps: tuple[Any, Any], state: State, args: Any, every: int) -> Trajectory:
    """So many of the first of `steps`; where a lane comes to an end that is no number, of the second, careful ones, which are slower and take a
    program of their own: what is then not finite has diverged."""
    quick, careful = (
        functools.partial(iterate, step, observe, steps=every, record_every=every) for step in steps
    )
    begun = np.isfinite(np.asarray(state.first.others)).all(1)
    path = quick(state, args)
    return path if (path.survived == every)[begun].all() else careful(state, args)


def losses(
    model: Any, data: Data, keys: Array | None = None, careful: bool = True
) -> Float[Array, " lane"]:
    """The mean cross-entropy of each lane."""
    return (cross_entropy(model.logits(data.bits, keys, careful), data.label) * data.weight).sum(-1)


def cross_entropy(logits: Float[Array, "*n m 2"], label: ArrayLike) -> Float[Array, "*n m"]:
    return jax.nn.softplus((logits[..., 0] - logits[..., 1]) * (2.0 * jnp.asarray(label) - 1))


def observe(t: Array, state: Any, args: Any) -> tuple[()]:
    """Nothing: a run is looked at between calls, and then on other sequences than it is trained on."""
    return ()


# --- evaluation ------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What an evaluation of a run finds."""

    loss: float
    train_accuracy: float
    accuracy: float


def right(logits: Float[Array, "*n m 2"], label: ArrayLike) -> Bool[Array, "*n m"]:
    """Whether each sequence is given its label; what is not finite is wrong."""
    return ((logits[..., 1] > logits[..., 0]) == jnp.asarray(label)) & jnp.isfinite(logits).all(-1)


@jax.jit
def _judged(
    model: Any, bits: UInt8[Array, "n length"], label: UInt8[Array, " n"]
) -> tuple[Array, Array]:
    logits = model.logits(bits)
    return right(logits, label), cross_entropy(logits, label)


def judge(model: Any, batch: Batch) -> tuple[Bool[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Which sequences one model has right, and its loss on each; `LOOK` at a time, so that there is one program."""
    count = len(batch.label)
    bits, label = (np.pad(x, [(0, -count % LOOK), *[(0, 0)] * (x.ndim - 1)]) for x in batch)
    found = [_judged(model, bits[i : i + LOOK], label[i : i + LOOK]) for i in range(0, count, LOOK)]
    correct, loss = (np.concatenate(x)[:count] for x in zip(*found, strict=True))
    return correct, loss


def accuracy_until_wrong(model: Any, batches: Iterable[Batch]) -> float:
    """The accuracy of one model on all sequences, or on the first batches of them up to one with a mistake: a run may be nearly right for long."""
    seen = correct = 0
    for batch in batches:
        seen, correct = seen + len(batch.label), correct + int(judge(model, batch)[0].sum())
        if correct < seen:
            break
    return correct / seen


@jax.jit
def _masses(
    model: Transformer, bits: UInt8[Array, "n length"], relevant: Float[Array, " length"]
) -> Array:
    return (attention_weights(model, bits)[..., :-1] @ relevant).mean(0)


def support_mass(model: Any, bits: UInt8[np.ndarray, "n length"], task: SparseBoolean) -> float:
    """The largest share of attention that a head puts on the support, on average over sequences; none without heads."""
    if not isinstance(model, Transformer):
        return float("nan")
    relevant = np.zeros(task.length, np.float32)
    relevant[list(task.support)] = 1
    return float(_masses(model, bits, relevant).max())


# --- runs ------------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How a run ended: `status` is solved, unsolved or diverged."""

    trial: int
    samples: int
    status: str
    first_step: float
    best_accuracy: float
    train_accuracy: float
    loss: float
    support_mass: float
    steps: int
    curve: list[Seen]  # at each evaluation
    model: Any


def train(
    sets: TrainingSets,
    recipe: Recipe = RECIPE_R,
    *,
    key: Array,
    steps: int = 500,
    every: int = 25,
    stop: bool = True,
    enough: float = 1.0,
    attention: bool = True,
    curves: bool = False,
    progress: Callable[[int, int], None] | None = None,
    finished: Callable[[Outcome], None] | None = None,
) -> xr.Dataset:
    """Train on every set with every number of samples; the start of a trial is the same for all of them.

    A run is evaluated every `every` steps and, with `stop`, ends as soon as all validation sequences, or the share `enough` of them, are right. The Dataset over
    (trial, samples) has `status` (solved, unsolved, or diverged: something was not finite), `first_step` (the first evaluation at which
    everything was right, or nan), `best_accuracy` on validation (on its first 1,024 sequences, or as many as it takes to find a mistake),
    `train_accuracy` and `loss` at the end, `support_mass` (nan without `attention`) and `steps`; with `curves` also `loss_curve`, `train_accuracy_curve` and
    `accuracy_curve` over `step`. `progress(done, runs)` is called when a run ends, and `finished` with its outcome and model.
    """
    steps, every = whole("steps", steps, 1), whole("every", every, 1)
    if steps % every:
        raise InputError(f"steps = {steps}: it must be a multiple of every = {every}")
    fits_memory(recipe, sets.length, LANES)
    outcomes: dict[tuple[int, int], Outcome] = {}
    with jax.enable_x64(False):  # training is in single precision
        for outcome in run_all(sets, recipe, key, steps, every, enough if stop else np.inf, curves):
            if attention:
                outcome = outcome._replace(support_mass=_attended(sets, outcome))
            outcomes[outcome.trial, outcome.samples] = outcome._replace(model=None)
            if finished is not None:
                finished(outcome)
            if progress is not None:
                progress(len(outcomes), len(sets.tasks) * len(sets.samples))
    return _as_dataset(sets, recipe, outcomes, np.arange(every, steps + every, every), curves)


def fits_memory(recipe: Recipe, length: int, lanes: int) -> None:
    """Bad input if the state of so many lanes, three numbers for each parameter, and a gradient do not fit into memory."""
    what = f"{lanes} tables of tokens and their moments"
    fits(length, what, 16 * lanes * length)  # before JAX is asked for a shape that it cannot count
    model = jax.eval_shape(
        lambda key: recipe.architecture.initialise(length, key), jax.random.key(0)
    )
    numbers = sum(leaf.size for leaf in jax.tree.leaves(model))
    fits(length, what, 16 * lanes * numbers)


def run_all(
    sets: TrainingSets,
    recipe: Recipe,
    key: Array,
    steps: int,
    every: int,
    enough: float,
    curves: bool,
) -> Iterator[Outcome]:
    """The outcome of every run, in the order in which they end, but for its `support_mass`. Loss and training accuracy are looked at when a run
    ends, or for `curves` always."""
    waiting = list(sets.samples)
    while waiting:
        size = padded(waiting[-1])
        # To compile another program takes longer than to carry padding.
        similar = [m for m in waiting if ALIKE * m >= size]
        runs = [(trial, m) for trial in range(len(sets.tasks)) for m in similar]
        yield from _run_lanes(sets, recipe, key, runs, size, steps, every, enough, curves)
        waiting = waiting[: -len(similar)]


def padded(samples: int) -> int:
    """The size to which a training set is padded, so that a sweep compiles a handful of programs: 64, or a power of two, or three halves of one."""
    power = 2 ** (max(samples, 64) - 1).bit_length()
    return 3 * power // 4 if power > 64 and samples <= 3 * power // 4 else power


def _run_lanes(
    sets: TrainingSets,
    recipe: Recipe,
    key: Array,
    runs: Sequence[tuple[int, int]],
    size: int,
    steps: int,
    every: int,
    enough: float,
    curves: bool,
) -> Iterator[Outcome]:
    """Runs padded to one size. A lane whose run has ended takes the next; at the very end some go on idly."""
    waiting = list(runs)
    start = functools.partial(_start, sets, recipe, key, size)
    active: list[tuple[int, int] | None] = [waiting.pop(0) for _ in range(min(LANES, len(waiting)))]
    state, data = jax.tree.map(
        lambda *x: np.stack(x), *(start(*run) for run in active if run is not None)
    )
    seen: list[list[Seen]] = [[] for _ in active]
    while any(active):
        path = advance((step, careful_step), state, (data, recipe), every)
        state = path.last
        for lane, run in [(lane, run) for lane, run in enumerate(active) if run is not None]:
            trial, m = run
            model, finite = _in_lane(state.model, lane), bool(path.survived[lane] == every)
            accuracy = accuracy_until_wrong(model, sets.validate(trial))
            ends = not finite or len(seen[lane]) + 1 == steps // every or accuracy >= enough
            own, loss = np.nan, np.nan
            if ends or curves:
                own, loss = (
                    x.mean()
                    for x in judge(model, Batch(sets.bits[trial, :m], sets.label[trial, :m]))
                )
            seen[lane].append(Seen(float(loss), float(own), accuracy))
            if not ends:
                continue
            yield _outcome(run, model, seen[lane], every, finite)
            seen[lane], active[lane] = [], None
            if waiting:
                active[lane] = following = waiting.pop(0)
                state, data = _placed((state, data), lane, start(*following))


def first_model(recipe: Recipe, key: Array, trial: int, length: int) -> Any:
    """The model with which a trial of `train` begins."""
    with jax.enable_x64(False):
        return _begun(recipe, length, jax.random.split(jax.random.fold_in(key, trial))[0]).model


def _start(
    sets: TrainingSets, recipe: Recipe, key: Array, size: int, trial: int, samples: int
) -> tuple[State, Data]:
    """State and data of a run at its beginning, padded to `size` samples."""
    padding = (0, size - samples)
    bits, label = (
        np.pad(sets.bits[trial, :samples], (padding, (0, 0))),
        np.pad(sets.label[trial, :samples], padding),
    )
    weight = np.pad(np.full(samples, 1 / samples, np.float32), padding)
    start, dropout = jax.random.split(jax.random.fold_in(key, trial))
    return _begun(recipe, sets.length, start), Data(
        bits, label, weight, np.asarray(jax.random.key_data(dropout))
    )


@functools.partial(jax.jit, static_argnums=1)
def _begun(recipe: Recipe, length: int, key: Array) -> State:
    return begin(recipe.architecture.initialise(length, key), recipe)


def _placed(lanes: Any, lane: int, run: Any) -> Any:
    """`lanes` with another run in one of them; by NumPy, which has nothing to compile."""
    return jax.tree.map(
        lambda x, new: np.concatenate([x[:lane], np.asarray(new)[None], x[lane + 1 :]]), lanes, run
    )


def _in_lane(model: Any, lane: int) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x[lane]), model)


def _outcome(
    run: tuple[int, int], model: Any, curve: list[Seen], every: int, finite: bool
) -> Outcome:
    trial, samples = run
    accuracy = np.array([seen.accuracy for seen in curve])
    solved = bool((accuracy == 1).any())
    return Outcome(
        trial,
        samples,
        status="diverged" if not finite else "solved" if solved else "unsolved",
        first_step=float(every * (1 + accuracy.argmax())) if solved else float("nan"),
        best_accuracy=float(accuracy.max()),
        train_accuracy=curve[-1].train_accuracy,
        loss=curve[-1].loss,
        support_mass=float("nan"),
        steps=every * len(curve),
        curve=curve,
        model=model,
    )


def _attended(sets: TrainingSets, outcome: Outcome) -> float:
    return support_mass(
        outcome.model, next(sets.validate(outcome.trial)).bits[:MASS], sets.tasks[outcome.trial]
    )


def _as_dataset(
    sets: TrainingSets,
    recipe: Recipe,
    outcomes: dict[tuple[int, int], Outcome],
    steps: Int[np.ndarray, " k"],
    curves: bool,
) -> xr.Dataset:
    grid = [[outcomes[trial, m] for m in sets.samples] for trial in range(len(sets.tasks))]
    names = (
        "status",
        "first_step",
        "best_accuracy",
        "train_accuracy",
        "loss",
        "support_mass",
        "steps",
    )
    variables: dict[str, Any] = {
        name: (
            ("trial", "samples"),
            np.array([[getattr(outcome, name) for outcome in row] for row in grid]),
        )
        for name in names
    }
    if curves:
        for name in Seen._fields:
            values = np.full((len(grid), len(sets.samples), len(steps)), np.nan)
            for i, j in np.ndindex(*values.shape[:2]):
                curve = grid[i][j].curve
                values[i, j, : len(curve)] = [getattr(seen, name) for seen in curve]
            variables[f"{name}_curve"] = (("trial", "samples", "step"), values)
    variables["support"] = (("trial", "place"), np.array([task.support for task in sets.tasks]))
    variables["redrawn"] = ("trial", sets.redrawn)
    coords = {
        "samples": list(sets.samples),
        "trial": range(len(grid)),
        **({"step": steps} if curves else {}),
    }
    task = sets.tasks[0]
    settings = {
        "length": sets.length,
        "sparsity": task.sparsity,
        "function": str(task.function),
        "recipe": " ".join(str(recipe).split()),
    }
    return xr.Dataset(variables, coords=coords, attrs=settings | {"validation": sets.validation})
