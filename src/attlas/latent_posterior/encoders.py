r"""Encoders that are trained: does the state at a masked token hold the latent posterior?

A sequence is a set of different tokens with the number of times that each occurs, `counts`, and a
token at which the network is read: a masked one, or a query with a key and without a value. For
attention this is exact: equal tokens have equal states, softmax weights are $N_t e^{s_t} / \sum_u
N_u e^{s_u}$, and CME attention has the ridge $\lambda/N_t$ at a token that occurs $N_t$ times. So
the cost of a network does not depend on the length of the sequences, and a count of 0 is a mask.
Runs are the leading axis of one compiled program. Zhang et al. 2022 ask what such a network holds;
the networks and their training are ours.
"""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int
from scipy import special

from attlas.errors import InputError, check_memory, positive, whole
from attlas.gaussian import Real
from attlas.kernels import RBF
from attlas.latent_posterior.latent_tasks import Data, Task
from attlas.scan import iterate
from attlas.surface import public

Counts = Float[Array, " n"]
States = Float[Array, "n width"]


def softmax_counted(
    queries: Float[Any, "q r"],
    keys: Float[Any, "n r"],
    values: Float[Any, "n k"],
    counts: Counts,
    temperature: Real,
) -> Float[Array, "q k"]:
    r"""Softmax attention over tokens of which the t-th occurs $N_t$ times:
    $\sum_t N_t e^{\langle q, k_t\rangle/\gamma} v_t / \sum_t N_t e^{\langle q, k_t\rangle/\gamma}$.

    Arguments:
        queries, keys, values: [q, r], [n, r] and [n, k].
        counts: [n], N; tokens with count 0 are masked, and one must not be.
        temperature: $\gamma > 0$.
    """
    seen = counts > 0
    scores = queries @ jnp.asarray(keys).T / temperature + jnp.log(jnp.where(seen, counts, 1))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ values


def cme_counted(
    queries: Float[Any, "q r"],
    keys: Float[Any, "n r"],
    values: Float[Any, "n k"],
    counts: Counts,
    temperature: Real,
    ridge: Real,
) -> Float[Array, "q k"]:
    r"""CME attention, $V^\top(G + \lambda I)^{-1}g_q$, over tokens of which the t-th occurs $N_t$
    times: $V^\top(G + \lambda\,\mathrm{diag}(1/N))^{-1}g_q$ over the different ones.

    Arguments are those of `softmax_counted`, with the ridge $\lambda > 0$ of the Gram matrix of all
    tokens; the kernel is Gaussian, of squared bandwidth `temperature`.
    """
    kernel, root = RBF(temperature), jnp.sqrt(counts)
    # Scaled by the roots of the counts on both sides, so that a count of 0 leaves the ridge.
    system = root[:, None] * kernel(keys, keys) * root + ridge * jnp.eye(len(keys))
    factor = jnp.linalg.cholesky(jax.lax.stop_gradient(system))
    asked, known = kernel(queries, keys) * root, root[:, None] * values
    few = len(queries) < known.shape[1]  # the side with fewer columns is the cheaper one to solve
    solved = jax.lax.custom_linear_solve(  # cheaper than the gradient of the factor
        lambda x: system @ x,
        asked.T if few else known,
        lambda _, y: cho_solve((factor, True), y),
        symmetric=True,
    )
    return solved.T @ known if few else asked @ solved


class EncoderLayer(eqx.Module):
    """$x + \\sum_h \\mathrm{attention}_h(x)$, then $x + \\mathrm{MLP}(x)$ where there is one.

    Both see the states divided by their root mean square. Heads have learnt maps to queries, keys
    [heads, width, r] and values [heads, width, width], and logarithms of temperature and ridge. The
    last token, at which an encoder is read, is a key of softmax attention; it is none of CME
    attention, for which it would be one more observation.
    """

    query: Float[Array, "h width r"]
    key: Float[Array, "h width r"]
    value: Float[Array, "h width width"]
    log_temperature: Float[Array, " h"]
    log_ridge: Float[Array, " h"]
    inner: Float[Array, "width hidden"] | None
    outer: Float[Array, "hidden width"] | None
    attention: str = eqx.field(static=True)

    def __call__(
        self, states: States, counts: Counts, first: int = 0, *, shared: bool = False
    ) -> Float[Array, "asking width"]:
        """The states of the tokens from number `first` on, after this layer; `shared` says that all
        sequences have these states, and differ in their counts alone."""
        seen = _normalised(states)
        states = states[first:] + self.attend(seen[first:], seen, counts, shared=shared)
        if self.inner is None or self.outer is None:
            return states
        return states + jax.nn.gelu(_normalised(states) @ self.inner) @ self.outer

    def attend(
        self,
        asking: Float[Array, "asking width"],
        states: States,
        counts: Counts,
        *,
        shared: bool = False,
    ) -> Float[Array, "asking width"]:
        """The sum of the heads at the tokens that ask."""
        counts = counts if self.attention == "softmax" else counts.at[-1].set(0)
        # Attention is linear in the values and its scores in the keys. A single token that asks
        # is mapped to what it compares with states, and the mean of the states to a value: states
        # are not mapped at all. Those that sequences share are mapped once.
        single = len(asking) == 1 and not shared

        def head(query: Any, key: Any, value: Any, temperature: Any, ridge: Any) -> Array:
            softmax = self.attention == "softmax"
            values = states if single else states @ value
            if softmax and single:
                asked, keys = asking @ query @ key.T, states
            else:
                asked, keys = asking @ query, states @ key
            inputs = (asked, keys, values, counts, jnp.exp(temperature))
            found = softmax_counted(*inputs) if softmax else cme_counted(*inputs, jnp.exp(ridge))
            return found @ value if single else found

        learnt = (self.query, self.key, self.value, self.log_temperature, self.log_ridge)
        return jax.vmap(head)(*learnt).sum(0)


class Encoder(eqx.Module):
    """Tokens and one more, at whose state after the last layer the network is read.

    Arguments:
        embed, offset: [dim, width] and [width], of the tokens; words have no offset.
        blank: [width], what the token that is read has in place of what it lacks.
        layers: one after the other.
        read: [width, outputs], from the representation to the outputs.
    """

    embed: Float[Array, "dim width"]
    offset: Float[Array, " width"]
    blank: Float[Array, " width"]
    layers: tuple[EncoderLayer, ...]
    read: Float[Array, "width o"]

    @property
    def heads(self) -> int:
        return self.layers[0].log_ridge.shape[-1]

    def states(self, seen: Data) -> Float[Array, "layers width"]:
        """The state at the token that is read after each layer, of one sequence; the last is the
        representation."""
        tokens = self.embed if seen.tokens is None else seen.tokens @ self.embed + self.offset
        query = self.blank if seen.query is None else seen.query @ self.embed + self.blank
        states, counts = jnp.concatenate([tokens, query[None]]), jnp.append(seen.counts, 1.0)
        found: list[Array] = []
        for layer in self.layers:
            # What the last layer makes of the other tokens is not read.
            first = len(tokens) if layer is self.layers[-1] else 0
            shared = seen.tokens is None and seen.query is None and not found
            states = layer(states, counts, first, shared=shared)
            found.append(_normalised(states[-1]))
        return jnp.stack(found)


class PairHead(eqx.Module):
    """One head over pairs of a key and a value, read at a query: attention and nothing else.

    Arguments:
        query, key: [dim of keys, r], from keys to what is compared; `read`: [dim of values, o].
        log_temperature, log_ridge: their logarithms; softmax attention has no use for the ridge.
        attention: "softmax" or "CME".
    """

    query: Float[Array, "k r"]
    key: Float[Array, "k r"]
    read: Float[Array, "v o"]
    log_temperature: Float[Array, ""]
    log_ridge: Float[Array, ""]
    attention: str = eqx.field(static=True)
    heads: int = eqx.field(static=True, default=1)

    def states(self, seen: Data) -> Float[Array, "1 v"]:
        """What the query attends to, of one sequence."""
        keys, values = jnp.split(seen.tokens, [len(self.key)], -1)  # type: ignore[arg-type]
        asked = seen.query[None, : len(self.key)] @ self.query  # type: ignore[index]
        inputs = (asked, keys @ self.key, values, seen.counts, jnp.exp(self.log_temperature))
        if self.attention == "softmax":
            return softmax_counted(*inputs)
        return cme_counted(*inputs, jnp.exp(self.log_ridge))


def _normalised(states: Float[Array, "*n width"]) -> Float[Array, "*n width"]:
    return states * jax.lax.rsqrt((states**2).mean(-1, keepdims=True) + 1e-6)


@public
def random_encoder(
    key: Array,
    dim: int,
    outputs: int,
    *,
    width: int = 16,
    layers: int = 1,
    heads: int = 2,
    attention: str = "softmax",
    mlp: bool = True,
) -> Encoder:
    r"""An encoder with normal weights of variance 1 / fan-in, embeddings of variance 1, zero
    outputs, temperature $\sqrt{\text{width}/\text{heads}}$ and ridge 1.

    Arguments:
        key: of the weights.
        dim, outputs: width of a token, and number of outputs.
        width, layers, heads: of the states, and how many there are.
        attention: "softmax" or "CME".
        mlp: whether layers have a perceptron of hidden width 4 `width`.
    """
    if attention not in ("softmax", "CME"):
        raise InputError(f"attention = {attention!r}: it must be 'softmax' or 'CME'")
    sizes = {"dim": dim, "outputs": outputs, "width": width, "layers": layers, "heads": heads}
    for name, size in sizes.items():
        whole(name, size, 1)
    # Arrays of normal numbers begin alike whatever their size, and one is compiled in less time.
    largest = width * max(dim, 4 * width, heads * width)
    keys = jax.random.split(key, 3 + 5 * layers)
    drawn = iter(jax.vmap(lambda one: jax.random.normal(one, (largest,)))(keys))

    def normal(*shape: int) -> Array:
        return next(drawn)[: math.prod(shape)].reshape(shape) / math.sqrt(shape[-2])

    def layer() -> EncoderLayer:
        rank = max(1, width // heads)
        return EncoderLayer(
            normal(heads, width, rank),
            normal(heads, width, rank),
            normal(heads, width, width) / heads,
            jnp.full(heads, math.log(rank) / 2),
            jnp.zeros(heads),
            normal(width, 4 * width) if mlp else None,
            normal(4 * width, width) if mlp else None,
            attention,
        )

    embed, blank, offset = (normal(n, width) * math.sqrt(n) for n in (dim, 1, 1))
    depth = tuple(layer() for _ in range(layers))
    return Encoder(embed, offset[0], blank[0], depth, jnp.zeros((width, outputs)))


@functools.partial(
    jax.jit,
    static_argnames=("dim", "outputs", "width", "layers", "heads", "attention", "mlp"),
)
def random_encoders(keys: Array, dim: int, outputs: int, **shape: Any) -> Encoder:
    """`random_encoder` for every key, in one compiled program: with a leading axis of runs."""
    return jax.vmap(lambda key: random_encoder(key, dim, outputs, **shape))(keys)


class Form(NamedTuple):
    """How weights lie in one vector a run: XLA starts a kernel for every array of an update."""

    kind: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, encoders: Any) -> tuple["Form", Float[np.ndarray, "run p"]]:
        """The form of encoders with a leading axis of runs, and their weights."""
        leaves, kind = jax.tree.flatten(encoders)
        rows = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in leaves]
        return cls(kind, tuple(leaf.shape[1:] for leaf in leaves)), np.concatenate(rows, 1)

    def encoders(self, flat: Any) -> Any:
        """Encoders with the leading axes of `flat` [*n, p]."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = zip([0, *ends[:-1].tolist()], ends.tolist(), self.shapes, strict=True)
        axes = flat.shape[:-1]
        leaves = [flat[..., start:end].reshape(*axes, *shape) for start, end, shape in parts]
        return jax.tree.unflatten(self.kind, leaves)


# --- training -------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """How encoders are trained: `steps` of AdamW on batches, with a rate that falls to 0 as a
    cosine, weight decay, and normal `noise` on the representation before it is read, of which
    `dropout` sets a random share to 0 and scales the rest up by what is missing."""

    steps: Any = 1000
    batch: int = 32
    rate: Any = 1e-2
    decay: Any = 0.0
    noise: Any = 0.0
    dropout: Any = 0.0


class Trained(NamedTuple):
    """Encoders [run] after training, their weights every so many `steps` [record, run], and whether
    a run stayed finite; the weights of one that did not are those that it began with."""

    encoders: Any
    path: Any
    steps: Int[np.ndarray, " record"]
    finite: Any


def train_encoders(
    encoders: Any,
    task: Task,
    keys: Array,
    recipe: Recipe,
    *,
    data: Data | None = None,
    record_every: int | None = None,
) -> Trained:
    """Minimise the cross-entropy of answers, or the squared error of vectors, in every run, all
    runs in one program.

    Arguments:
        encoders, task, keys: with a leading axis of runs; `Encoder`s or `PairHead`s.
        recipe: steps, batch and the rest, which may differ between runs, [run].
        data: [run, n] sequences to learn from; without them every batch is drawn afresh.
        record_every: steps between two records of the weights.

    A run that diverges is marked, and the others go on.
    """
    runs = len(keys)
    steps, batch = whole("steps", recipe.steps, 1), whole("batch", recipe.batch, 1)
    rates = [np.broadcast_to(np.asarray(x, np.float32), (runs,)) for x in recipe[2:]]
    positive("rate", rates[0])
    if not np.all((rates[3] >= 0) & (rates[3] < 1)):
        raise InputError(f"dropout = {recipe.dropout}: it must be at least 0 and less than 1")
    # What no run has is not drawn.
    noises = [x if x.any() else None for x in rates[2:]]
    outputs, longest = encoders.read.shape[-1], int(np.max(task.length))
    if task.outputs != outputs:
        raise InputError(
            f"the task has {task.outputs} outputs and the encoders {outputs}: they must be as many"
        )
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), task)
    drawn = jax.eval_shape(jax.vmap(lambda one, k: one.draw(k, batch, longest)), single, keys)
    _check_scores(encoders, drawn.counts.shape)
    if data is not None:
        _check_targets(data.target, drawn.target, outputs)
    form, start = Form.of(encoders)
    learnt = (start, jax.vmap(_optimiser(1.0, 0.0, steps).init)(start))
    path = iterate(
        _step_of(longest, batch, form),
        _weights,
        learnt,
        (steps, single, keys, data, (*rates[:2], *noises)),
        steps=steps,
        record_every=record_every or steps,
    )
    finite = path.survived == steps
    last, observed = (
        form.encoders(np.where(finite[:, None], x, start)) for x in (path.last[0], path.observed)
    )
    return Trained(last, observed, path.steps, finite)


def _check_targets(given: Any, drawn: Any, outputs: int) -> None:
    """Bad input if targets are not such as the task draws."""
    whole_numbers = jnp.issubdtype(given.dtype, jnp.integer)
    if whole_numbers != jnp.issubdtype(drawn.dtype, jnp.integer) or given.ndim != drawn.ndim:
        raise InputError(
            f"targets have the shape {given.shape} and the type {given.dtype}: those of this task"
            f" have {drawn.ndim} axes and the type {drawn.dtype}"
        )
    least, most = (0, outputs - 1) if whole_numbers else (-np.inf, np.inf)
    wrong = np.asarray(given)[~((np.asarray(given) >= least) & (np.asarray(given) <= most))]
    if wrong.size:
        raise InputError(f"a target is {wrong[0]}: it must be from {least} to {most}")


def _check_scores(encoders: Any, shape: tuple[int, ...]) -> None:
    """Bad input if the scores of all tokens with all need more memory than there is."""
    runs, samples, tokens = shape
    check_memory(
        f"the scores of {tokens:,} tokens, in {runs:,} runs of {samples:,} sequences,",
        4.0 * runs * samples * encoders.heads * (tokens + 1) ** 2,
        ": take shorter or fewer ones",
    )


def _optimiser(rate: Any, decay: Any, steps: Any) -> optax.GradientTransformation:
    return optax.adamw(
        lambda t: rate * (1 + jnp.cos(jnp.pi * t / steps)) / 2, 0.9, 0.99, 1e-8, weight_decay=decay
    )


@functools.cache
def _step_of(longest: int, batch: int, form: Form) -> Any:
    def loss(encoder: Any, seen: Data, noise: Any, dropout: Any, key: Array) -> Array:
        states = jax.vmap(lambda one: encoder.states(one)[-1])(seen)
        if noise is not None:
            states = states + noise * jax.random.normal(key, states.shape)
        if dropout is not None:
            kept = jax.random.uniform(jax.random.fold_in(key, 1), states.shape) >= dropout
            states = jnp.where(kept, states / (1 - dropout), 0)
        outputs = states @ encoder.read
        if not jnp.issubdtype(seen.target.dtype, jnp.integer):
            return ((outputs - seen.target) ** 2).sum(-1).mean()
        chosen = jax.nn.log_softmax(outputs)
        return -jnp.take_along_axis(chosen, seen.target[:, None], 1).mean()

    def step(t: Array, learnt: Any, args: Any) -> Any:
        steps, *of_runs = args

        def one(learnt: Any, task: Any, key: Any, data: Any, rates: Any) -> Any:
            (weights, moments), (rate, decay, noise, dropout) = learnt, rates
            draw, noises = jax.random.split(jax.random.fold_in(key, t))
            if data is None:
                seen = task.draw(draw, batch, longest)
            else:
                rows = jax.random.randint(draw, (batch,), 0, data.counts.shape[0])
                seen = jax.tree.map(lambda x: x[rows], data)
            slopes = jax.grad(loss)(form.encoders(weights), seen, noise, dropout, noises)
            slope = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(slopes)])
            moves, moments = _optimiser(rate, decay, steps).update(slope, moments, weights)
            return weights + moves, moments

        return jax.vmap(one)(learnt, *of_runs)

    return step


def _weights(t: Array, learnt: Any, args: Any) -> Any:
    return learnt[0]


# --- what a representation holds ------------------------------------------------------------------


def represent(encoders: Any, seen: Data) -> Float[Array, "run layer n width"]:
    """The states at the token that is read after each layer, of sequences [run, n]."""
    _check_scores(encoders, (1, *seen.counts.shape[1:]))
    return _represent(encoders, seen)


@jax.jit
def _represent(encoders: Any, seen: Data) -> Array:
    def run(both: Any) -> Array:
        return jax.vmap(both[0].states, out_axes=1)(both[1])

    return jax.lax.map(run, (encoders, seen))  # one run at a time: their scores take much memory


def excess_risk(encoders: Any, task: Task, seen: Data) -> Float[np.ndarray, " run"]:
    r"""What the networks' risk exceeds that of the Bayes predictor by: the mean of
    $KL(P(y \mid X)\,\|\,\mathrm{network})$ in nats, or of $|E[y \mid X] - \mathrm{network}|^2$.

    Arguments:
        encoders, task: of the runs.
        seen: [run, n], sequences of the task; their targets are not read.
    """
    outputs = np.asarray(represent(encoders, seen)[:, -1] @ encoders.read, float)
    bayes = task.bayes(seen)
    if jnp.issubdtype(seen.target.dtype, jnp.integer):
        gained = special.entr(bayes) + bayes * special.log_softmax(outputs, -1)
        return -gained.sum(-1).mean(-1)
    return ((bayes - outputs) ** 2).sum(-1).mean(-1)


def explained(
    inputs: Float[Any, "run n p"], targets: Float[Any, "run n q"], ridge: float = 1e-6
) -> Float[np.ndarray, " run"]:
    """The share of the targets' variance, $R^2$, that a linear probe explains: fitted to the first
    half of the sequences and judged on the second.

    Arguments:
        inputs, targets: [run, n, p] and [run, n, q]; R^2 is of all q columns together.
        ridge: of the probe, for columns of the inputs that are scaled to variance 1.
    """
    inputs, targets = np.asarray(inputs, float), np.asarray(targets, float)
    half = inputs.shape[1] // 2
    x, y = (values - values[:, :half].mean(1, keepdims=True) for values in (inputs, targets))
    spread = x[:, :half].std(1, keepdims=True)
    x = x / np.where(spread > 0, spread, 1)
    seen, asked = x[:, :half], x[:, half:]
    system = seen.swapaxes(1, 2) @ seen + ridge * half * np.eye(x.shape[-1])
    weights = np.linalg.solve(system, seen.swapaxes(1, 2) @ y[:, :half])
    left = ((y[:, half:] - asked @ weights) ** 2).sum((1, 2))
    return 1 - left / (y[:, half:] ** 2).sum((1, 2))


def excess_of_few(
    features: Float[Any, "run n p"],
    labels: Float[Any, "run n k"],
    target: Float[Any, "run n k"],
    size: int,
    sets: int,
) -> Float[np.ndarray, " run"]:
    """The mean excess risk of least squares on `size` labels, over `sets` of them at the start and
    over k tasks; the sequences that are left judge.

    Arguments:
        features, labels: of all sequences.
        target: what a label is in mean given the sequence.
    """
    x = np.concatenate([features, np.ones((*features.shape[:2], 1))], -1)
    first, later = sets * size, slice(sets * size, None)
    shape = (len(x), sets, size, -1)
    a, y = x[:, :first].reshape(shape), labels[:, :first].reshape(shape)
    fitted = np.linalg.pinv(a, rcond=1e-6) @ y  # states may lie in fewer directions than there are
    predicted = x[:, None, later] @ fitted
    return ((predicted - target[:, None, later]) ** 2).mean((1, 2, 3))
