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
import pandas as pd
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt8

from attlas.errors import InputError, check_memory, positive, whole
from attlas.gaussian import Real
from attlas.padding import bucket, map_chunks, pad_axis
from attlas.progress import watched
from attlas.scan import Trajectory, iterate
from attlas.sparse_variables.model import Architecture
from attlas.sparse_variables.task import Batch
from attlas.sparse_variables.training_sets import (
    LANES,
    SMALLEST_SET,
    VALIDATION_BATCH,
    TrainingSets,
)
from attlas.surface import public

CURVES = ("loss", "train_accuracy", "accuracy")
"""What an evaluation of a run finds: loss and accuracy in training, accuracy on validation."""

WASTE = 8
"""Sets are padded to the size of the largest if they have at least one `WASTE`th of it: to compile
another program would take longer."""

NORMALISERS = ("row maximum", "coordinate")


class Recipe(eqx.Module):
    r"""An architecture and how it is trained: AdamW with the whole training set at each step.

    $g_1 \leftarrow \beta_1g_1 + (1-\beta_1)g$, $g_2 \leftarrow \beta_2g_2 + (1-\beta_2)q$,
    $x \leftarrow x - \text{rate}\,(\hat g_1/(\sqrt{\hat g_2} + \epsilon) + \text{decay}\,x)$.

    Arguments:
    - `architecture`: its `initialise(length, key)` makes a model with `logits(bits, careful)`.
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

        def group(scale: Any, rate: Real) -> optax.GradientTransformation:
            scaled = scale(self.beta1, self.beta2, self.epsilon)
            return optax.chain(scaled, optax.add_decayed_weights(self.decay), optax.scale(-rate))

        shared = scale_by_largest_row if self.normaliser == "row maximum" else optax.scale_by_adam
        return optax.partition(
            {
                "positions": group(shared, self.position_rate),
                "others": group(optax.scale_by_adam, self.rate),
            },
            lambda weights: jax.tree.map_with_path(lambda path, _: path[0].name, weights),
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


class Weights(NamedTuple):
    """The weights of a run in two arrays: a step of one array for each layer compiles for long."""

    positions: Any  # the model with its position table alone, if it has one
    others: Any  # [n]


def join_weights(model: Any) -> tuple[Weights, Callable[[Weights], Any]]:
    """The weights of a model, and the function that makes such a model of weights."""
    named = jax.tree.map_with_path(lambda path, _: path[-1].name == "positions", model)
    positions, others = eqx.partition(model, named)
    flat, unravel = ravel_pytree(others)
    return Weights(positions, flat), lambda w: eqx.combine(w.positions, unravel(w.others))


def begin(model: Any, recipe: Recipe) -> State:
    """The state of one run before its first step."""
    return State(model, recipe.optimiser().init(join_weights(model)[0]), jnp.zeros((), jnp.int32))


@functools.partial(jax.jit, static_argnums=1)
def begin_runs(recipe: Recipe, length: int, keys: Array) -> State:
    """The states of several runs before their first steps, a key for each."""
    return jax.vmap(lambda key: begin(recipe.architecture.initialise(length, key), recipe))(keys)


def step(t: Array, state: State, args: tuple[Data, Recipe], careful: bool = False) -> State:
    """One step of the optimiser in every lane.

    Arguments:
    - `t`: not read: `state.step` counts the steps of each lane.
    - `args`: the data and the recipe.
    - `careful`: as in `mixture`: right for any finite scores, or faster and NaN for wide ones.
    """
    data, recipe = args

    def move(model: Any, gradient: Any, moments: Any) -> tuple[Any, Any]:
        weights, rebuild = join_weights(model)
        moves, moments = recipe.optimiser().update(join_weights(gradient)[0], moments, weights)
        return rebuild(optax.apply_updates(weights, moves)), moments

    gradient = jax.grad(lambda model: losses(model, data, careful).sum())(state.model)
    model, moments = jax.vmap(move)(state.model, gradient, state.optimiser)
    return State(model, moments, state.step + 1)


careful_step = functools.partial(step, careful=True)


def advance(steps: tuple[Any, Any], state: State, args: Any, every: int) -> Trajectory:
    """Take `every` steps, by the first of two step functions if that stays finite.

    The second, careful one is slower and is compiled only when a lane that began finite did not end
    so. What is not finite after it has diverged.

    Arguments:
    - `steps`: the quick step function and the careful one.
    - `state`: of all lanes.
    - `args`: passed to the step functions.
    - `every`: the number of steps.

    Returns a Trajectory: `last` is the state, `survived` [lane] is `every` where a lane is finite.
    """
    quick, careful = (
        functools.partial(iterate, step, observe, steps=every, record_every=every) for step in steps
    )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.model)]
    begun = np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in leaves], 0)
    path = quick(state, args)
    return path if (path.survived == every)[begun].all() else careful(state, args)


def losses(model: Any, data: Data, careful: bool = True) -> Float[Array, " lane"]:
    """The mean cross-entropy of each lane."""
    return (cross_entropy(model.logits(data.bits, careful), data.label) * data.weight).sum(-1)


def cross_entropy(logits: Float[Array, "*n m 2"], label: ArrayLike) -> Float[Array, "*n m"]:
    return jax.nn.softplus((logits[..., 0] - logits[..., 1]) * (2.0 * jnp.asarray(label) - 1))


def observe(t: Array, state: Any, args: Any) -> tuple[()]:
    """Nothing: a run is evaluated between calls, on other sequences than it is trained on."""
    return ()


def right(logits: Float[Array, "*n m 2"], label: ArrayLike) -> Bool[Array, "*n m"]:
    """Whether each sequence is given its label; what is not finite is wrong."""
    return ((logits[..., 1] > logits[..., 0]) == jnp.asarray(label)) & jnp.isfinite(logits).all(-1)


@jax.jit
def _judge_batch(
    model: Any, bits: UInt8[Array, "n length"], label: UInt8[Array, " n"]
) -> tuple[Array, Array]:
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


class Outcome(NamedTuple):
    """How a run ended: `status` is solved, unsolved or diverged; `curve` has the `CURVES`."""

    trial: int
    samples: int
    status: str
    first_step: float
    best_accuracy: float
    train_accuracy: float
    loss: float
    steps: int
    curve: Float[np.ndarray, "evaluation 3"]
    model: Any


@public
def train(
    sets: TrainingSets,
    recipe: Recipe = RECIPE_R,
    *,
    key: Array,
    steps: int = 500,
    every: int = 25,
    stop: bool = True,
    enough: float = 1.0,
    curves: bool = False,
    finished: Callable[[Outcome], None] | None = None,
) -> xr.Dataset:
    """Train on every set with every number of samples; a trial has one start for all of them.

    Arguments:
    - `key`: of the starts.
    - `steps`: at most; a run is evaluated every `every` steps.
    - `stop`: end a run as soon as the share `enough` of validation sequences is right.
    - `curves`: return all evaluations.
    - `finished(outcome)` is called when a run ends, with its model.
    - `sets`: the training sets. `recipe`: architecture and optimiser.

    Returns a Dataset over (trial, samples):
    - `status`: solved, unsolved, or diverged (something was not finite);
    - `first_step`: the first evaluation at which every validation sequence was right, or NaN;
    - `best_accuracy` on validation (its first 1,024 sequences, or as many as it takes to find a
      mistake);
    - `train_accuracy`, `loss` and `steps` at the end;
    - with `curves` also `loss_curve`, `train_accuracy_curve` and `accuracy_curve` over `step`.

    >>> import jax
    >>> from attlas.sparse_variables import ADAM, RECIPE_R, Recipe, draw_sets, train
    >>> sets = draw_sets(jax.random.key(0), 8, samples=[40], trials=2, sparsity=2, validation=256)
    >>> runs = train(sets, RECIPE_R, key=jax.random.key(1), steps=50)
    >>> print(dict(runs.status.sizes), isinstance(ADAM, Recipe))
    {'trial': 2, 'samples': 1} True
    """
    times = evaluation_times(steps, every)
    fits_memory(recipe, sets.length, LANES)
    ends: list[Outcome] = []
    waiting, limit = list(sets.samples), enough if stop else np.inf
    with jax.enable_x64(False):  # training is in single precision
        while waiting:
            size = bucket(waiting[-1], SMALLEST_SET)
            similar = [m for m in waiting if WASTE * m >= size]
            runs = [(trial, m) for trial in range(len(sets.tasks)) for m in similar]
            for end in watched(
                _run_lanes(sets, recipe, key, runs, size, times, limit, curves),
                f"trainings on about {size} sequences",
                total=len(runs),
            ):
                ends.append(end._replace(model=None))
                if finished is not None:
                    finished(end)
            waiting = waiting[: -len(similar)]
    columns = pd.DataFrame(ends).drop(columns=["curve", "model"])
    found = columns.set_index(["trial", "samples"]).to_xarray()
    if not curves:
        return found
    values = np.full((len(CURVES), *found["status"].shape, len(times)), np.nan)
    for end in ends:
        column = sets.samples.index(end.samples)
        values[:, end.trial, column, : len(end.curve)] = end.curve.T
    axes = ("trial", "samples", "step")
    named = {f"{name}_curve": (axes, x) for name, x in zip(CURVES, values, strict=True)}
    return found.assign(named).assign_coords(step=times)


def evaluation_times(steps: int, every: int) -> Int[np.ndarray, " evaluation"]:
    """The steps after which a run is evaluated."""
    steps, every = whole("steps", steps, 1), whole("every", every, 1)
    if steps % every:
        raise InputError(f"steps = {steps}: it must be a multiple of every = {every}")
    return np.arange(every, steps + every, every)


def fits_memory(recipe: Recipe, length: int, lanes: int) -> None:
    """Bad input if three numbers for each parameter of all lanes, and a gradient, do not fit."""
    what = f"length = {length}: {lanes} tables of tokens and their moments"
    check_memory(what, 16 * lanes * length)  # before JAX is asked for a shape it cannot count
    model = jax.eval_shape(
        lambda key: recipe.architecture.initialise(length, key), jax.random.key(0)
    )
    check_memory(what, 16 * lanes * sum(leaf.size for leaf in jax.tree.leaves(model)))


def _run_lanes(
    sets: TrainingSets,
    recipe: Recipe,
    key: Array,
    runs: Sequence[tuple[int, int]],
    size: int,
    times: Int[np.ndarray, " evaluation"],
    enough: float,
    curves: bool,
) -> Iterator[Outcome]:
    """The outcomes of runs padded to one size, in the order in which they end.

    A lane whose run has ended takes the next, or idles when none is left. Loss and training
    accuracy are computed when a run ends, and with `curves` at each evaluation.
    """
    waiting, every = list(runs), int(times[0])
    start = functools.partial(_start, sets, recipe, key, size)
    active: list[tuple[int, int] | None] = [waiting.pop(0) for _ in range(min(LANES, len(waiting)))]
    state, data = jax.tree.map(
        lambda *x: np.stack(x), *(start(*run) for run in active if run is not None)
    )
    curve: list[list[tuple[float, float, float]]] = [[] for _ in active]
    while any(active):
        path = advance((step, careful_step), state, (data, recipe), every)
        state = path.last
        for lane, run in [(lane, run) for lane, run in enumerate(active) if run is not None]:
            trial, m = run
            model = jax.tree.map(lambda x, lane=lane: jnp.asarray(x[lane]), state.model)
            finite = bool(path.survived[lane] == every)
            accuracy = accuracy_until_wrong(model, sets.validate(trial))
            ends = not finite or len(curve[lane]) + 1 == len(times) or accuracy >= enough
            own, loss = np.nan, np.nan
            if ends or curves:
                seen = Batch(sets.bits[trial, :m], sets.label[trial, :m])
                own, loss = (x.mean() for x in judge(model, seen))
            curve[lane].append((float(loss), float(own), accuracy))
            if not ends:
                continue
            yield _outcome(run, model, np.array(curve[lane]), times, finite)
            curve[lane], active[lane] = [], None
            if waiting:
                active[lane] = following = waiting.pop(0)
                # By NumPy, which compiles nothing.
                state, data = jax.tree.map(
                    lambda x, new, lane=lane: np.concatenate(
                        [x[:lane], np.asarray(new)[None], x[lane + 1 :]]
                    ),
                    (state, data),
                    start(*following),
                )


@public
def first_model(recipe: Recipe, key: Array, trial: int, length: int) -> Any:
    """The model with which a trial of `train` begins.

    Arguments:
    - `recipe`, `key`: as `train` got them.
    - `trial`: its number.
    - `length`: of the sequences.
    """
    with jax.enable_x64(False):
        return _first_state(recipe, length, key, trial).model


def _first_state(recipe: Recipe, length: int, key: Array, trial: int) -> State:
    start = jax.random.split(jax.random.fold_in(key, trial))[:1]
    return jax.tree.map(lambda x: x[0], begin_runs(recipe, length, start))


def _start(
    sets: TrainingSets, recipe: Recipe, key: Array, size: int, trial: int, samples: int
) -> tuple[State, Data]:
    """State and data of a run at its beginning, padded to `size` samples."""
    weight = np.full(samples, 1 / samples, np.float32)
    seen = (sets.bits[trial, :samples], sets.label[trial, :samples], weight)
    data = Data(*(pad_axis(x, size) for x in seen))
    return _first_state(recipe, sets.length, key, trial), data


def _outcome(
    run: tuple[int, int],
    model: Any,
    curve: Float[np.ndarray, "seen 3"],
    times: Int[np.ndarray, " evaluation"],
    finite: bool,
) -> Outcome:
    loss, train_accuracy, accuracy = curve.T
    solved = bool((accuracy == 1).any())
    return Outcome(
        *run,
        status="diverged" if not finite else "solved" if solved else "unsolved",
        first_step=float(times[accuracy.argmax()]) if solved else float("nan"),
        best_accuracy=float(accuracy.max()),
        train_accuracy=float(train_accuracy[-1]),
        loss=float(loss[-1]),
        steps=int(times[len(curve) - 1]),
        curve=curve,
        model=model,
    )
