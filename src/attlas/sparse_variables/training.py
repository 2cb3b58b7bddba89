r"""Training on few samples of a sparse function, many runs at once.

A run is a trial (a support, a training set, a start, validation sequences of its own) at a number m
of samples. Runs of similar m share one compiled program through weights that are 0 on padding: it
advances `LANES` runs by a number of steps, and the lane of a run that has ended goes to one that
waits. A run depends on its own numbers only, neither on the grid of m nor on the number of trials.

The recipe decides whether success rises with m. Adam, coordinate by coordinate, moves all positions
equally fast, however little they tell about the label, and the model then fits its training set
with positions that lead by chance. `RECIPE_R` normalises the gradient of the position table by one
number, the mean square of its largest row, and moves everything else 300 times more slowly. Edelman
et al. 2022, Section 5, Figures 2 and 3.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt8

from attlas.errors import InputError, check_memory, positive, whole
from attlas.gaussian import Real
from attlas.padding import bucket, map_chunks, pad_axis
from attlas.scan import Trajectory, iterate
from attlas.sparse_variables.model import Architecture, Transformer, attention_weights
from attlas.sparse_variables.task import Batch, SparseBoolean
from attlas.sparse_variables.training_sets import (
    LANES,
    SMALLEST_SET,
    VALIDATION_BATCH,
    TrainingSets,
)

Lanes = Float[Array, " lane"]
Bits = UInt8[Array, "n length"]

ATTENTION_SAMPLES = 256
"""Validation sequences over which attention is averaged."""

WASTE = 8
"""Sets are padded to the size of the largest if they have at least one `WASTE`th of it: to compile
another program would take longer."""

NORMALISERS = ("row maximum", "coordinate")


class Recipe(eqx.Module):
    r"""An architecture and how it is trained: AdamW with the whole training set at each step.

    $g_1 \leftarrow \beta_1g_1 + (1-\beta_1)g$, $g_2 \leftarrow \beta_2g_2 + (1-\beta_2)q$,
    $x \leftarrow x - \text{rate}\,(\hat g_1/(\sqrt{\hat g_2} + \epsilon) + \text{decay}\,x)$.

    Arguments:
    - `architecture`: its `initialise(length, key)` makes a model with `logits(bits, key, careful)`.
    - `rate`, and `position_rate` for the position table.
    - `beta1`, `beta2`, `epsilon`, `decay`: as in the formula.
    - `normaliser`: "coordinate" takes $q = g^2$ everywhere; "row maximum" takes one number for the
      position table, $q = \max_t \frac1d\sum_j g_{tj}^2$.
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

    def optimiser(self) -> optax.GradientTransformation:
        """Of `Weights`, for one run."""
        betas = self.beta1, self.beta2, self.epsilon
        shared = self.normaliser == "row maximum"
        scales = {
            "positions": scale_by_largest_row(*betas) if shared else optax.scale_by_adam(*betas),
            "others": optax.scale_by_adam(*betas),
        }
        rates = {"positions": self.position_rate, "others": self.rate}
        groups = {
            name: optax.chain(
                scale, optax.add_decayed_weights(self.decay), optax.scale(-rates[name])
            )
            for name, scale in scales.items()
        }
        return optax.partition(
            groups, lambda weights: jax.tree.map_with_path(lambda path, _: path[0].name, weights)
        )


def scale_by_largest_row(beta1: Real, beta2: Real, epsilon: Real) -> optax.GradientTransformation:
    """`optax.scale_by_adam` of a table [rows, d] with one normaliser, the largest row's mean
    square."""

    def begin(table: Any) -> optax.ScaleByAdamState:
        first, second = (jax.tree.map(f, table) for f in (jnp.zeros_like, lambda _: jnp.zeros(())))
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), first, second)

    def scale(gradient: Any, state: optax.ScaleByAdamState, table: Any = None) -> Any:
        square = jax.tree.map(lambda g: jnp.square(g).mean(-1).max(), gradient)
        first = optax.tree.update_moment(gradient, state.mu, beta1, 1)
        second = optax.tree.update_moment(square, state.nu, beta2, 1)
        count = optax.safe_increment(state.count)
        scaled = jax.tree.map(
            lambda m, v: m / (jnp.sqrt(v) + epsilon),
            optax.tree.bias_correction(first, beta1, count),
            optax.tree.bias_correction(second, beta2, count),
        )
        return scaled, optax.ScaleByAdamState(count, first, second)

    return optax.GradientTransformation(begin, scale)


RECIPE_R = Recipe(
    Architecture(pairs=True, weight_scale=0.2, token_scale=0.5, position_scale=0.0),
    rate=1e-4,
    position_rate=3e-2,
    beta2=0.9,
    normaliser="row maximum",
)
"""Success rises with the samples: positions begin at 0 and share one normaliser; weights are large
and slow."""

ADAM = Recipe(Architecture(heads=16, hidden=256, norms=True))
"""Common practice, after minGPT: small weights everywhere and Adam with one rate. Success is
erratic in the samples."""


class State(NamedTuple):
    """The model of each lane, the state of its optimiser, and its number of steps."""

    model: Any
    optimiser: Any
    step: Int[Array, " lane"]


class Data(NamedTuple):
    """What each lane is trained on; `weight` is 1/m on its samples and 0 on padding."""

    bits: Any  # [lane, m, length], or the same for all lanes, [m, length]
    label: Any  # [lane, m] or [m]
    weight: Any  # [lane, m]
    key: Any  # [lane, words], for dropout


class Weights(NamedTuple):
    """The weights of a run in two arrays: a step of one array for each layer compiles for long."""

    positions: Any  # [places, d], or None
    others: Any  # [n]


def join_weights(model: Any) -> Weights:
    leaves = jax.tree_util.tree_leaves_with_path(model)
    others = jnp.concatenate([leaf.ravel() for path, leaf in leaves if not _is_position(path)])
    return Weights(getattr(model, "positions", None), others)


def split_weights(weights: Weights, like: Any) -> Any:
    """A model as `like` with these weights."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    ends = np.cumsum([0 if _is_position(path) else leaf.size for path, leaf in leaves])
    parts = jnp.split(weights.others, ends[:-1])
    found = [
        weights.positions if _is_position(path) else part.reshape(leaf.shape)
        for (path, leaf), part in zip(leaves, parts, strict=True)
    ]
    return jax.tree.unflatten(structure, found)


def _is_position(path: Any) -> bool:
    return path[-1].name == "positions"


def begin(model: Any, recipe: Recipe) -> State:
    """The state of one run before its first step."""
    return State(model, recipe.optimiser().init(join_weights(model)), jnp.zeros((), jnp.int32))


@functools.partial(jax.jit, static_argnums=1)
def begin_runs(recipe: Recipe, length: int, keys: Array) -> State:
    """The states of several runs before their first steps, a key for each."""
    return jax.vmap(lambda key: begin(recipe.architecture.initialise(length, key), recipe))(keys)


def step(t: Array, state: State, args: tuple[Data, Recipe], careful: bool = False) -> State:
    """One step of the optimiser in every lane."""
    data, recipe = args
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(data.key), state.step)
    gradient = jax.grad(lambda model: losses(model, data, keys, careful).sum())(state.model)
    weights, slopes = jax.vmap(join_weights)(state.model), jax.vmap(join_weights)(gradient)
    moves, moments = jax.vmap(recipe.optimiser().update)(slopes, state.optimiser, weights)
    model = jax.vmap(split_weights)(optax.apply_updates(weights, moves), state.model)
    return State(model, moments, state.step + 1)


careful_step = functools.partial(step, careful=True)


def advance(steps: tuple[Any, Any], state: State, args: Any, every: int) -> Trajectory:
    """Take `every` steps, by the first of two step functions if that stays finite.

    The second, careful one is slower and is compiled only when a lane that began finite did not end
    so. What is not finite after it has diverged.
    """
    quick, careful = (
        functools.partial(iterate, step, observe, steps=every, record_every=every) for step in steps
    )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.model)]
    begun = np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in leaves], 0)
    path = quick(state, args)
    return path if (path.survived == every)[begun].all() else careful(state, args)


def losses(model: Any, data: Data, keys: Array | None = None, careful: bool = True) -> Lanes:
    """The mean cross-entropy of each lane."""
    return (cross_entropy(model.logits(data.bits, keys, careful), data.label) * data.weight).sum(-1)


def cross_entropy(logits: Float[Array, "*n m 2"], label: ArrayLike) -> Float[Array, "*n m"]:
    return jax.nn.softplus((logits[..., 0] - logits[..., 1]) * (2.0 * jnp.asarray(label) - 1))


def observe(t: Array, state: Any, args: Any) -> tuple[()]:
    """Nothing: a run is evaluated between calls, on other sequences than it is trained on."""
    return ()


class Evaluation(NamedTuple):
    """What one evaluation of a run found."""

    loss: float
    train_accuracy: float
    accuracy: float


def right(logits: Float[Array, "*n m 2"], label: ArrayLike) -> Bool[Array, "*n m"]:
    """Whether each sequence is given its label; what is not finite is wrong."""
    return ((logits[..., 1] > logits[..., 0]) == jnp.asarray(label)) & jnp.isfinite(logits).all(-1)


@jax.jit
def _judge_batch(model: Any, bits: Bits, label: UInt8[Array, " n"]) -> tuple[Array, Array]:
    logits = model.logits(bits)
    return right(logits, label), cross_entropy(logits, label)


def judge(model: Any, batch: Batch) -> tuple[Bool[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Which sequences one model has right, and its loss on each."""
    return map_chunks(functools.partial(_judge_batch, model), batch, VALIDATION_BATCH)


def accuracy_until_wrong(model: Any, batches: Iterable[Batch]) -> float:
    """The accuracy of one model on all batches, or up to the first with a mistake.

    Most evaluations end at the first batch.
    """
    seen = correct = 0
    for batch in batches:
        seen, correct = seen + len(batch.label), correct + int(judge(model, batch)[0].sum())
        if correct < seen:
            break
    return correct / seen


@jax.jit
def _mean_mass(model: Transformer, bits: Bits, relevant: Float[Array, " length"]) -> Array:
    return (attention_weights(model, bits)[..., :-1] @ relevant).mean(0)


def support_mass(model: Any, bits: UInt8[np.ndarray, "n length"], task: SparseBoolean) -> float:
    """The largest share of a head's attention on the support, averaged over sequences.

    NaN for a model without heads.
    """
    if not isinstance(model, Transformer):
        return float("nan")
    relevant = np.zeros(task.length, np.float32)
    relevant[list(task.support)] = 1
    return float(_mean_mass(model, bits, relevant).max())


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
    curve: list[Evaluation]
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
    """Train on every set with every number of samples; a trial has one start for all of them.

    Arguments:
    - `key`: of the starts and of dropout.
    - `steps`: at most; a run is evaluated every `every` steps.
    - `stop`: end a run as soon as the share `enough` of validation sequences is right.
    - `attention`: compute `support_mass`.
    - `curves`: return all evaluations.
    - `progress(done, runs)` is called when a run ends, and `finished(outcome)` with its model.

    Returns a Dataset over (trial, samples):
    - `status`: solved, unsolved, or diverged (something was not finite);
    - `first_step`: the first evaluation at which every validation sequence was right, or NaN;
    - `best_accuracy` on validation (its first 1,024 sequences, or as many as it takes to find a
      mistake);
    - `train_accuracy`, `loss`, `steps` and `support_mass` at the end;
    - with `curves` also `loss_curve`, `train_accuracy_curve` and `accuracy_curve` over `step`.
    """
    steps, every = whole("steps", steps, 1), whole("every", every, 1)
    if steps % every:
        raise InputError(f"steps = {steps}: it must be a multiple of every = {every}")
    fits_memory(recipe, sets.length, LANES)
    outcomes: dict[tuple[int, int], Outcome] = {}
    with jax.enable_x64(False):  # training is in single precision
        for outcome in run_all(sets, recipe, key, steps, every, enough if stop else np.inf, curves):
            if attention:
                bits = next(sets.validate(outcome.trial)).bits[:ATTENTION_SAMPLES]
                mass = support_mass(outcome.model, bits, sets.tasks[outcome.trial])
                outcome = outcome._replace(support_mass=mass)
            outcomes[outcome.trial, outcome.samples] = outcome._replace(model=None)
            if finished is not None:
                finished(outcome)
            if progress is not None:
                progress(len(outcomes), len(sets.tasks) * len(sets.samples))
    return _as_dataset(sets, recipe, outcomes, np.arange(every, steps + every, every), curves)


def fits_memory(recipe: Recipe, length: int, lanes: int) -> None:
    """Bad input if three numbers for each parameter of all lanes, and a gradient, do not fit."""
    what = f"length = {length}: {lanes} tables of tokens and their moments"
    check_memory(what, 16 * lanes * length)  # before JAX is asked for a shape it cannot count
    model = jax.eval_shape(
        lambda key: recipe.architecture.initialise(length, key), jax.random.key(0)
    )
    check_memory(what, 16 * lanes * sum(leaf.size for leaf in jax.tree.leaves(model)))


def run_all(
    sets: TrainingSets,
    recipe: Recipe,
    key: Array,
    steps: int,
    every: int,
    enough: float,
    curves: bool,
) -> Iterator[Outcome]:
    """The outcome of every run but for its `support_mass`, in the order in which they end.

    Loss and training accuracy are computed when a run ends, and with `curves` at each evaluation.
    """
    waiting = list(sets.samples)
    while waiting:
        size = bucket(waiting[-1], SMALLEST_SET)
        similar = [m for m in waiting if WASTE * m >= size]
        runs = [(trial, m) for trial in range(len(sets.tasks)) for m in similar]
        yield from _run_lanes(sets, recipe, key, runs, size, steps, every, enough, curves)
        waiting = waiting[: -len(similar)]


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
    """Runs padded to one size. A lane whose run has ended takes the next, or idles when none is
    left."""
    waiting = list(runs)
    start = functools.partial(_start, sets, recipe, key, size)
    active: list[tuple[int, int] | None] = [waiting.pop(0) for _ in range(min(LANES, len(waiting)))]
    state, data = jax.tree.map(
        lambda *x: np.stack(x), *(start(*run) for run in active if run is not None)
    )
    curve: list[list[Evaluation]] = [[] for _ in active]
    while any(active):
        path = advance((step, careful_step), state, (data, recipe), every)
        state = path.last
        for lane, run in [(lane, run) for lane, run in enumerate(active) if run is not None]:
            trial, m = run
            model = jax.tree.map(lambda x, lane=lane: jnp.asarray(x[lane]), state.model)
            finite = bool(path.survived[lane] == every)
            accuracy = accuracy_until_wrong(model, sets.validate(trial))
            ends = not finite or len(curve[lane]) + 1 == steps // every or accuracy >= enough
            own, loss = np.nan, np.nan
            if ends or curves:
                seen = Batch(sets.bits[trial, :m], sets.label[trial, :m])
                own, loss = (x.mean() for x in judge(model, seen))
            curve[lane].append(Evaluation(float(loss), float(own), accuracy))
            if not ends:
                continue
            yield _outcome(run, model, curve[lane], every, finite)
            curve[lane], active[lane] = [], None
            if waiting:
                active[lane] = following = waiting.pop(0)
                state, data = _place((state, data), lane, start(*following))


def first_model(recipe: Recipe, key: Array, trial: int, length: int) -> Any:
    """The model with which a trial of `train` begins."""
    with jax.enable_x64(False):
        return _first_state(recipe, length, key, trial)[0].model


def _first_state(recipe: Recipe, length: int, key: Array, trial: int) -> tuple[State, Array]:
    start, dropout = jax.random.split(jax.random.fold_in(key, trial))
    return jax.tree.map(lambda x: x[0], begin_runs(recipe, length, start[None])), dropout


def _start(
    sets: TrainingSets, recipe: Recipe, key: Array, size: int, trial: int, samples: int
) -> tuple[State, Data]:
    """State and data of a run at its beginning, padded to `size` samples."""
    state, dropout = _first_state(recipe, sets.length, key, trial)
    weight = np.full(samples, 1 / samples, np.float32)
    seen = (sets.bits[trial, :samples], sets.label[trial, :samples], weight)
    bits, label, weight = (pad_axis(x, size) for x in seen)
    return state, Data(bits, label, weight, np.asarray(jax.random.key_data(dropout)))


def _place(lanes: Any, lane: int, run: Any) -> Any:
    """`lanes` with another run in one of them; by NumPy, which compiles nothing."""
    return jax.tree.map(
        lambda x, new: np.concatenate([x[:lane], np.asarray(new)[None], x[lane + 1 :]]), lanes, run
    )


def _outcome(
    run: tuple[int, int], model: Any, curve: list[Evaluation], every: int, finite: bool
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


def _as_dataset(
    sets: TrainingSets,
    recipe: Recipe,
    outcomes: dict[tuple[int, int], Outcome],
    steps: Int[np.ndarray, " k"],
    curves: bool,
) -> xr.Dataset:
    grid = [[outcomes[trial, m] for m in sets.samples] for trial in range(len(sets.tasks))]
    axes = ("trial", "samples")
    names = [name for name in Outcome._fields if name not in (*axes, "curve", "model")]
    variables: dict[str, Any] = {
        name: (axes, np.array([[getattr(outcome, name) for outcome in row] for row in grid]))
        for name in names
    }
    if curves:
        for name in Evaluation._fields:
            values = np.full((len(grid), len(sets.samples), len(steps)), np.nan)
            for i, j in np.ndindex(*values.shape[:2]):
                curve = grid[i][j].curve
                values[i, j, : len(curve)] = [getattr(seen, name) for seen in curve]
            variables[f"{name}_curve"] = ((*axes, "step"), values)
    variables["support"] = (("trial", "place"), np.array([task.support for task in sets.tasks]))
    variables["redrawn"] = ("trial", sets.redrawn)
    coords: dict[str, Any] = {"samples": list(sets.samples), "trial": range(len(grid))}
    task = sets.tasks[0]
    settings = {
        "length": sets.length,
        "sparsity": task.sparsity,
        "function": str(task.function),
        "recipe": " ".join(str(recipe).split()),
        "validation": sets.validation,
    }
    return xr.Dataset(variables, coords | ({"step": steps} if curves else {}), settings)
