r"""Training on few samples of a sparse function, many runs at once (Edelman et al. 2022, Section 5, Figures 2 and 3).

A run is a trial (a support, a training set, a start) at a number m of samples. Training sets of a trial are nested in m. Runs of
similar m share one compiled program through weights that are 0 on padding: it advances `LANES` runs by a number of steps, and a run
that is done gives its lane to one that waits. A run depends on nothing but its own numbers, so neither the grid of m nor the number of
trials changes it.

The recipe is what makes success rise with m. Adam, coordinate by coordinate, moves all positions equally fast however little they tell
of the label, and the model then fits its training set with whatever places lead by chance. `RECIPE_R` normalises the gradient of the
position table by one number, the mean square of its largest row, and moves everything else 300 times more slowly.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int, UInt8

from attlas.errors import InputError, positive, whole
from attlas.gaussian import stream
from attlas.scan import iterate
from attlas.sparse_variables.model import Architecture, Transformer, attention_weights, choose
from attlas.sparse_variables.task import Batch, SparseBoolean

LANES = 4
"""Runs that are advanced together."""

BLOCK = 1024
"""Sequences drawn at once, which bounds the memory that takes."""

ALIKE = 8
"""Training sets of at least one over this of a padded size are padded to it, if one of them needs it."""

SCREEN = 1000
"""Validation sequences that every evaluation looks at; only where all of these are right, the rest is looked at too."""

MASS = 256
"""Validation sequences on which attention is averaged."""

TRIES = 1000
"""Training sets drawn for a trial before its samples are called too few."""

NORMALISERS = ("row maximum", "coordinate")


# --- the data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSets:
    """Training sets of several trials, at most max(`samples`) sequences each, of which a run with m samples sees the first m; and
    validation sequences that are shared by all trials, only labels differ. `redrawn` counts the sets thrown away because the first
    min(`samples`) sequences were consistent with another support."""

    tasks: tuple[SparseBoolean, ...]
    samples: tuple[int, ...]
    bits: UInt8[np.ndarray, "trial m length"]
    label: UInt8[np.ndarray, "trial m"]
    redrawn: Int[np.ndarray, " trial"]
    validation: UInt8[np.ndarray, "n length"]
    validation_label: UInt8[np.ndarray, "trial n"]

    @property
    def length(self) -> int:
        return self.bits.shape[-1]


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
) -> TrainingSets:
    """Training sets of `trials` trials, with `support` or each with one of `sparsity` places, drawn uniformly. With `unique`, the
    smallest of a trial already singles out its support."""
    grid = tuple(sorted({whole("samples", m, 2) for m in samples}))
    if not grid:
        raise InputError("samples is empty: there must be at least one number of samples")
    whole("length", length, 1), whole("trials", trials, 1), whole("validation", validation, 1)
    rows = LANES * padded(grid[-1]) + SCREEN  # what is made of the bits for one compiled call
    what = f"{trials} training sets of {grid[-1]} sequences and {validation} of validation"
    fits(length, what, length * (trials * grid[-1] + validation) + 4 * (2 * length + 1) * rows)
    if support is None and not 1 <= whole("sparsity", sparsity, 1) <= length:
        raise InputError(f"sparsity = {sparsity}: it must be between 1 and {length}, of {length} bits")
    like = SparseBoolean(length, tuple(range(sparsity) if support is None else support), function)
    if unique and like.unique_probability(grid[0]) < 1e-3 / TRIES:
        raise InputError(f"samples = {grid[0]}: hardly a set singles out the support; ask for {like.floor()} or more")
    drawn = [_draw_trial(key, trial, like, grid, support is None, unique) for trial in range(trials)]
    tasks = tuple(task for task, *_ in drawn)
    shared = _draw_bits(stream(key), validation, like)
    labels = np.stack([_label(task, shared) for task in tasks])
    single = np.flatnonzero(labels.min(1) == labels.max(1))
    if single.size:
        raise InputError(
            f"validation = {validation}: all sequences of trial {single[0]} have the label {labels[single[0], 0]}; "
            "both labels must occur"
        )
    bits, label, redrawn = (np.array(x) for x in list(zip(*drawn, strict=True))[1:])
    return TrainingSets(tasks, grid, bits, label, redrawn, shared, labels)


def _draw_trial(
    key: Array, trial: int, like: SparseBoolean, grid: tuple[int, ...], anywhere: bool, unique: bool
) -> tuple[SparseBoolean, np.ndarray, np.ndarray, int]:
    """A task as `like`, with a support of its own if that may be `anywhere`, and its largest training set."""
    support = like.support
    if anywhere:
        support = tuple(sorted(stream(key, trial).choice(like.length, like.sparsity, replace=False).tolist()))
    task = SparseBoolean(like.length, support, like.function, like.bias)
    for attempt in range(TRIES):
        bits = _draw_bits(stream(key, trial, attempt), grid[-1], task)
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


def _draw_bits(draws: np.random.Generator, samples: int, task: SparseBoolean) -> UInt8[np.ndarray, "n length"]:
    """Sequences of bits, the first of them the same for every number of `samples`."""
    bits = np.empty((samples, task.length), np.uint8)
    for first in range(0, samples, BLOCK):
        part = bits[first : first + BLOCK]
        part[:] = draws.random(part.shape, np.float32) < task.bias
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
            raise InputError(f"normaliser = {self.normaliser!r}: it must be {' or '.join(NORMALISERS)}")
        for name in ("rate", "position_rate", "epsilon"):
            positive(name, getattr(self, name))
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)!r}: it must lie between 0 and 1, and not be 1")
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

    chosen: Any  # [lane, m, 2 length + 1]
    label: Any  # [lane, m]
    weight: Any  # [lane, m]
    screen: Any  # [lane, n], labels of the first validation sequences
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


def step(t: Array, state: State, args: tuple[Data, Recipe]) -> State:
    """One step of Adam in every lane."""
    data, recipe = args
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(data.key), state.step.astype(jnp.int32))
    gradient = jax.grad(lambda model: losses(model, data, keys).sum())(state.model)
    count = state.step + 1
    squares = jax.vmap(lambda g: jax.tree.map(jnp.square, _joined(g)))(gradient)
    rates = Weights(recipe.position_rate, recipe.rate)
    if squares.positions is None:
        rates = rates._replace(positions=None)
    elif recipe.normaliser == "row maximum":
        one = squares.positions.mean(-1, keepdims=True).max(-2, keepdims=True)
        squares = squares._replace(positions=one)

    def moved(x: Array, g: Array, square: Array, first: Array, second: Array, rate: Any) -> tuple[Array, Array, Array]:
        first = recipe.beta1 * first + (1 - recipe.beta1) * g
        second = recipe.beta2 * second + (1 - recipe.beta2) * square
        each = count.reshape(-1, *(1,) * (x.ndim - 1))
        size = jnp.sqrt(second / (1 - recipe.beta2**each)) + recipe.epsilon
        direction = first / ((1 - recipe.beta1**each) * size)
        return x - rate * (direction + recipe.decay * x), first, second

    x, g = jax.vmap(_joined)(state.model), jax.vmap(_joined)(gradient)
    found = jax.tree.map(moved, x, g, squares, state.first, state.second, rates)
    x, first, second = jax.tree.transpose(jax.tree.structure(x), jax.tree.structure((0, 0, 0)), found)
    return State(jax.vmap(_parted)(x, state.model), first, second, count)


def losses(model: Any, data: Data, keys: Array | None = None) -> Float[Array, " lane"]:
    """The mean cross-entropy of each lane."""
    logits = model.logits(data.chosen, keys)
    margin = (logits[..., 1] - logits[..., 0]) * (2.0 * data.label - 1)
    return (jax.nn.softplus(-margin) * data.weight).sum(-1)


def observe(t: Array, state: Any, args: Any) -> tuple[()]:
    """Nothing: a run is looked at between calls, and then on other sequences than it is trained on."""
    return ()


# --- evaluation ------------------------------------------------------------------------------------------------------


def right(model: Any, chosen: Float[Array, "*b m rows"], label: UInt8[Array, "*n m"]) -> Bool[Array, "*n m"]:
    """Whether each sequence is given its label; what is not finite is wrong."""
    logits = model.logits(chosen)
    return ((logits[..., 1] > logits[..., 0]) == label) & jnp.isfinite(logits).all(-1)


class Seen(NamedTuple):
    """What an evaluation of a run finds."""

    loss: float
    train_accuracy: float
    accuracy: float


@jax.jit
def _evaluate(model: Any, data: Data, bits: UInt8[Array, "n length"]) -> tuple[Array, Array, Array]:
    """The loss of each lane, and how many sequences are right among its own and among `bits`."""
    own = right(model, data.chosen, data.label) & (data.weight > 0)
    return losses(model, data), own.sum(-1), right(model, choose(bits), data.screen).sum(-1)


@jax.jit
def _count_right(model: Any, bits: UInt8[Array, "n length"], label: UInt8[Array, " n"]) -> Array:
    return right(model, choose(bits), label).sum()


def full_accuracy(model: Any, bits: UInt8[np.ndarray, "n length"], label: UInt8[np.ndarray, " n"]) -> float:
    """The accuracy of one model on many sequences, some at a time."""
    parts = [slice(i, i + SCREEN) for i in range(0, len(label), SCREEN)]
    return sum(int(_count_right(model, bits[part], label[part])) for part in parts) / len(label)


@jax.jit
def _masses(model: Transformer, bits: UInt8[Array, "n length"], relevant: Float[Array, " length"]) -> Array:
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
    everything was right, or nan), `best_accuracy` on validation (on its first 1,000 sequences unless these are all right),
    `train_accuracy` and `loss` at the end, `support_mass` (nan without `attention`) and `steps`; with `curves` also `loss_curve`, `train_accuracy_curve` and
    `accuracy_curve` over `step`. `progress(done, runs)` is called when a run ends, and `finished` with its outcome and model.
    """
    steps, every = whole("steps", steps, 1), whole("every", every, 1)
    if steps % every:
        raise InputError(f"steps = {steps}: it must be a multiple of every = {every}")
    fits_memory(recipe, sets.length, LANES)
    outcomes: dict[tuple[int, int], Outcome] = {}
    with jax.enable_x64(False):  # training is in single precision
        for outcome in run_all(sets, recipe, key, steps, every, enough if stop else np.inf):
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
    model = jax.eval_shape(lambda key: recipe.architecture.initialise(length, key), jax.random.key(0))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(model))
    fits(length, what, 16 * lanes * numbers)


def run_all(sets: TrainingSets, recipe: Recipe, key: Array, steps: int, every: int, enough: float) -> Iterator[Outcome]:
    """The outcome of every run, in the order in which they end, but for its `support_mass`."""
    waiting = list(sets.samples)
    while waiting:
        size = padded(waiting[-1])
        # To compile another program takes longer than to carry padding.
        similar = [m for m in waiting if ALIKE * m >= size]
        runs = [(trial, m) for trial in range(len(sets.tasks)) for m in similar]
        yield from _run_lanes(sets, recipe, key, runs, size, steps, every, enough)
        waiting = waiting[: -len(similar)]


def padded(samples: int) -> int:
    """The size to which a training set is padded, so that a sweep compiles a handful of programs: 64, or a power of two, or above 128 three halves of one."""
    power = 2 ** (max(samples, 64) - 1).bit_length()
    return 3 * power // 4 if power > 128 and samples <= 3 * power // 4 else power


def _run_lanes(
    sets: TrainingSets,
    recipe: Recipe,
    key: Array,
    runs: Sequence[tuple[int, int]],
    size: int,
    steps: int,
    every: int,
    enough: float,
) -> Iterator[Outcome]:
    """Runs padded to one size. A lane whose run has ended takes the next; at the very end some go on idly."""
    waiting = list(runs)
    start = functools.partial(_start, sets, recipe, key, size)
    active: list[tuple[int, int] | None] = [waiting.pop(0) for _ in range(min(LANES, len(waiting)))]
    state, data = jax.tree.map(lambda *x: np.stack(x), *(start(*run) for run in active if run is not None))
    curves: list[list[Seen]] = [[] for _ in active]
    while any(active):
        path = iterate(step, observe, state, (data, recipe), steps=every, record_every=every)
        state = path.last
        loss, own, screened = map(np.asarray, _evaluate(state.model, data, sets.validation[:SCREEN]))
        for lane, run in [(lane, run) for lane, run in enumerate(active) if run is not None]:
            finite = bool(path.survived[lane] == every)
            seen = Seen(float(loss[lane]), float(own[lane] / run[1]), float(screened[lane] / data.screen.shape[1]))
            if seen.accuracy == 1 and len(sets.validation) > SCREEN:
                label = sets.validation_label[run[0]]
                seen = seen._replace(accuracy=full_accuracy(_in_lane(state.model, lane), sets.validation, label))
            curves[lane].append(seen)
            if finite and len(curves[lane]) * every < steps and seen.accuracy < enough:
                continue
            yield _outcome(run, _in_lane(state.model, lane), curves[lane], every, finite)
            curves[lane], active[lane] = [], None
            if waiting:
                active[lane] = following = waiting.pop(0)
                state, data = _placed((state, data), lane, start(*following))


def first_model(recipe: Recipe, key: Array, trial: int, length: int) -> Any:
    """The model with which a trial of `train` begins."""
    with jax.enable_x64(False):
        return _begun(recipe, length, jax.random.split(jax.random.fold_in(key, trial))[0]).model


def _start(sets: TrainingSets, recipe: Recipe, key: Array, size: int, trial: int, samples: int) -> tuple[State, Data]:
    """State and data of a run at its beginning, padded to `size` samples."""
    padding = (0, size - samples)
    bits = np.pad(sets.bits[trial, :samples], (padding, (0, 0)))
    weight = np.pad(np.full(samples, 1 / samples, np.float32), padding)
    label, screen = np.pad(sets.label[trial, :samples], padding), sets.validation_label[trial, :SCREEN]
    start, dropout = jax.random.split(jax.random.fold_in(key, trial))
    state = _begun(recipe, sets.length, start)
    return state, Data(np.asarray(choose(bits)), label, weight, screen, np.asarray(jax.random.key_data(dropout)))


@functools.partial(jax.jit, static_argnums=1)
def _begun(recipe: Recipe, length: int, key: Array) -> State:
    return begin(recipe.architecture.initialise(length, key), recipe)


def _placed(lanes: Any, lane: int, run: Any) -> Any:
    """`lanes` with another run in one of them; by NumPy, which has nothing to compile."""
    return jax.tree.map(lambda x, new: np.concatenate([x[:lane], np.asarray(new)[None], x[lane + 1 :]]), lanes, run)


def _in_lane(model: Any, lane: int) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x[lane]), model)


def _outcome(run: tuple[int, int], model: Any, curve: list[Seen], every: int, finite: bool) -> Outcome:
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
    return support_mass(outcome.model, sets.validation[:MASS], sets.tasks[outcome.trial])


def _as_dataset(
    sets: TrainingSets,
    recipe: Recipe,
    outcomes: dict[tuple[int, int], Outcome],
    steps: Int[np.ndarray, " k"],
    curves: bool,
) -> xr.Dataset:
    grid = [[outcomes[trial, m] for m in sets.samples] for trial in range(len(sets.tasks))]
    names = ("status", "first_step", "best_accuracy", "train_accuracy", "loss", "support_mass", "steps")
    variables: dict[str, Any] = {
        name: (("trial", "samples"), np.array([[getattr(outcome, name) for outcome in row] for row in grid]))
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
    coords = {"samples": list(sets.samples), "trial": range(len(grid)), **({"step": steps} if curves else {})}
    task = sets.tasks[0]
    settings = {
        "length": sets.length,
        "sparsity": task.sparsity,
        "function": str(task.function),
        "recipe": " ".join(str(recipe).split()),
    }
    return xr.Dataset(variables, coords=coords, attrs=settings | {"validation": len(sets.validation)})
