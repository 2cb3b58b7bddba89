r"""Encoders that are trained: does the state at a masked token hold the latent posterior?

A sequence is a set of different tokens with the number of times that each occurs, `counts`. For
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

from attlas.errors import InputError, positive, whole
from attlas.gaussian import Real
from attlas.kernels import RBF
from attlas.scan import iterate

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
    solved = jax.lax.custom_linear_solve(  # cheaper than the gradient of the factor
        lambda x: system @ x,
        root[:, None] * values,
        lambda _, y: cho_solve((factor, True), y),
        symmetric=True,
    )
    return (kernel(queries, keys) * root) @ solved


class EncoderLayer(eqx.Module):
    """$x + \\sum_h \\mathrm{attention}_h(x)$, then $x + \\mathrm{MLP}(x)$ where there is one.

    Both see the states divided by their root mean square. Heads have learnt maps to queries, keys
    [heads, width, r] and values [heads, width, width], and logarithms of temperature and ridge.
    """

    query: Float[Array, "h width r"]
    key: Float[Array, "h width r"]
    value: Float[Array, "h width width"]
    log_temperature: Float[Array, " h"]
    log_ridge: Float[Array, " h"]
    inner: Float[Array, "width hidden"] | None
    outer: Float[Array, "hidden width"] | None
    attention: str = eqx.field(static=True)

    def __call__(self, states: States, counts: Counts) -> States:
        states = states + self.attend(_normalised(states), counts)
        if self.inner is None or self.outer is None:
            return states
        return states + jax.nn.gelu(_normalised(states) @ self.inner) @ self.outer

    def attend(self, states: States, counts: Counts) -> States:
        """The sum of the heads at every token."""

        def head(query: Any, key: Any, value: Any, temperature: Any, ridge: Any) -> States:
            inputs = (states @ query, states @ key, states @ value, counts, jnp.exp(temperature))
            if self.attention == "softmax":
                return softmax_counted(*inputs)
            return cme_counted(*inputs, jnp.exp(ridge))

        learnt = (self.query, self.key, self.value, self.log_temperature, self.log_ridge)
        return jax.vmap(head)(*learnt).sum(0)


class Encoder(eqx.Module):
    """Tokens and a masked one, at whose state after the last layer the network is read.

    Arguments:
        embed: [dim, width], of the tokens. blank: [width], of the masked token.
        layers: one after the other.
        read: [width, outputs], from the representation to the outputs.
    """

    embed: Float[Array, "dim width"]
    blank: Float[Array, " width"]
    layers: tuple[EncoderLayer, ...]
    read: Float[Array, "width o"]

    def states(self, tokens: Float[Array, "n dim"], counts: Counts) -> Float[Array, "layers width"]:
        """The state at the masked token after each layer; the last is the representation."""
        states = jnp.concatenate([tokens @ self.embed, self.blank[None]])
        counts, found = jnp.append(counts, 1.0), []
        for layer in self.layers:
            states = layer(states, counts)
            found.append(_normalised(states[-1]))
        return jnp.stack(found)

    def __call__(self, tokens: Float[Array, "n dim"], counts: Counts) -> Float[Array, " o"]:
        return self.states(tokens, counts)[-1] @ self.read


def _normalised(states: Float[Array, "*n width"]) -> Float[Array, "*n width"]:
    return states * jax.lax.rsqrt((states**2).mean(-1, keepdims=True) + 1e-6)


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
        attention: "softmax" or "CME". mlp: whether layers have one, four times as wide.
    """
    if attention not in ("softmax", "CME"):
        raise InputError(f"attention = {attention!r}: it must be 'softmax' or 'CME'")
    sizes = {"dim": dim, "outputs": outputs, "width": width, "layers": layers, "heads": heads}
    for name, size in sizes.items():
        whole(name, size, 1)
    keys = iter(jax.random.split(key, 2 + 5 * layers))

    def normal(*shape: int) -> Array:
        return jax.random.normal(next(keys), shape) / math.sqrt(shape[-2])

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

    embed, blank = normal(dim, width) * math.sqrt(dim), normal(1, width)[0]
    return Encoder(embed, blank, tuple(layer() for _ in range(layers)), jnp.zeros((width, outputs)))


# --- training -------------------------------------------------------------------------------------


class Topics(NamedTuple):
    """The tasks of runs, each with topics of its own: a latent z of law `prior`, `length` words of
    law `words`[z] and an answer of law `answers`[z], the next word or anything else that depends on
    the latent alone."""

    prior: Float[Any, "run m"]
    words: Float[Any, "run m vocabulary"]
    answers: Float[Any, "run m o"]
    length: Int[Any, " run"]

    def posterior(self, counts: Float[Any, "run n vocabulary"]) -> Float[np.ndarray, "run n m"]:
        """The exact law of the latent given the counts of the words, in double precision."""
        scores = np.log(self.prior)[:, None] + counts @ np.log(self.words).swapaxes(1, 2)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


class Data(NamedTuple):
    """Sequences as counts of their words, with their latents and answers."""

    counts: Float[Any, "*n vocabulary"]
    latent: Int[Any, "*n"]
    answer: Int[Any, "*n"]


def draw_topics(key: Array, topics: Topics, samples: int, longest: int) -> Data:
    """Sequences of one run, whose `topics` have no axis of runs.

    Arguments:
        key, samples: of the draws, and how many.
        longest: at least the run's length, the same for all runs of a program.
    """
    keys = jax.random.split(key, 3)
    z = _quantile(jax.random.uniform(keys[0], (samples,)), topics.prior)
    place = jax.random.uniform(keys[1], (samples, longest))
    words = _quantile(place, topics.words[z][:, None])
    seen = jnp.arange(longest) < topics.length
    one_hot = words[..., None] == jnp.arange(topics.words.shape[-1])
    counts = (one_hot & seen[:, None]).sum(1).astype(place.dtype)
    answer = _quantile(jax.random.uniform(keys[2], (samples,)), topics.answers[z])
    return Data(counts, z, answer)


def _quantile(place: Float[Array, "*#n"], law: Float[Array, "*#n m"]) -> Int[Array, "*n"]:
    return (place[..., None] > jnp.cumsum(law, -1)[..., :-1]).sum(-1)


class Recipe(NamedTuple):
    """How encoders are trained: `steps` of AdamW on batches, with a rate that falls to 0 as a
    cosine, weight decay, and normal `noise` on the representation before it is read."""

    steps: Any = 1000
    batch: int = 32
    rate: Any = 1e-2
    decay: Any = 0.0
    noise: Any = 0.0


class Trained(NamedTuple):
    """Encoders [run] after training, their weights every so many `steps` [record, run], and whether
    a run stayed finite."""

    encoders: Encoder
    path: Encoder
    steps: Int[np.ndarray, " record"]
    finite: Any


def train_encoders(
    encoders: Encoder,
    topics: Topics,
    keys: Array,
    recipe: Recipe,
    *,
    data: Data | None = None,
    record_every: int | None = None,
) -> Trained:
    """Minimise the cross-entropy of the answers in every run, all runs in one program.

    Arguments:
        encoders, topics, keys: with a leading axis of runs.
        recipe: steps, batch and the rest; rate, decay and noise may differ between runs, [run].
        data: [run, n] sequences to learn from; without them every batch is drawn afresh.
        record_every: steps between two records of the weights.

    A run that diverges is marked, and the others go on.
    """
    runs = len(keys)
    steps, batch = whole("steps", recipe.steps, 1), whole("batch", recipe.batch, 1)
    rates = [np.broadcast_to(np.asarray(x, np.float32), (runs,)) for x in recipe[2:]]
    positive("rate", rates[0])
    if topics.answers.shape[-1] != encoders.read.shape[-1]:
        raise InputError(
            f"the answers have {topics.answers.shape[-1]} values and the encoders"
            f" {encoders.read.shape[-1]} outputs: they must be as many"
        )
    longest = int(np.max(topics.length))
    learnt = (encoders, jax.vmap(_optimiser(1.0, 0.0, steps).init)(encoders))
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), topics)
    args = (single, keys, data, *rates, steps)
    path = iterate(
        _step_of(longest, batch),
        _weights,
        learnt,
        args,
        steps=steps,
        record_every=record_every or steps,
    )
    return Trained(path.last[0], path.observed, path.steps, path.survived == steps)


def _optimiser(rate: Any, decay: Any, steps: Any) -> optax.GradientTransformation:
    return optax.adamw(
        lambda t: rate * (1 + jnp.cos(jnp.pi * t / steps)) / 2, 0.9, 0.99, 1e-8, weight_decay=decay
    )


@functools.cache
def _step_of(longest: int, batch: int) -> Any:
    def loss(encoder: Encoder, seen: Data, noise: Any, key: Array) -> Array:
        words = jnp.eye(seen.counts.shape[-1])
        states = jax.vmap(lambda counts: encoder.states(words, counts)[-1])(seen.counts)
        states = states + noise * jax.random.normal(key, states.shape)
        chosen = jax.nn.log_softmax(states @ encoder.read)
        return -jnp.take_along_axis(chosen, seen.answer[:, None], 1).mean()

    def one(
        t: Any, learnt: Any, topics: Any, key: Any, data: Any, rate: Any, decay: Any, noise: Any,
        steps: Any,
    ) -> Any:  # fmt: skip
        encoder, moments = learnt
        draw, noises = jax.random.split(jax.random.fold_in(key, t))
        if data is None:
            seen = draw_topics(draw, topics, batch, longest)
        else:
            rows = jax.random.randint(draw, (batch,), 0, data.answer.shape[0])
            seen = jax.tree.map(lambda x: x[rows], data)
        slope = jax.grad(loss)(encoder, seen, noise, noises)
        moves, moments = _optimiser(rate, decay, steps).update(slope, moments, encoder)
        return optax.apply_updates(encoder, moves), moments

    def step(t: Array, learnt: Any, args: Any) -> Any:
        over = (None, 0, 0, 0, None if args[2] is None else 0, 0, 0, 0, None)
        return jax.vmap(one, over)(t, learnt, *args)

    return step


def _weights(t: Array, learnt: Any, args: Any) -> Encoder:
    return learnt[0]


# --- what a representation holds ------------------------------------------------------------------


@jax.jit
def represent(
    encoders: Encoder, counts: Float[Any, "run n vocabulary"]
) -> Float[Array, "run layer n width"]:
    """The states at the masked token after each layer, of sequences with these counts."""
    words = jnp.eye(counts.shape[-1])

    def run(encoder: Encoder, some: Array) -> Array:
        return jax.vmap(lambda one: encoder.states(words, one), out_axes=1)(some)

    return jax.vmap(run)(encoders, counts)


def excess_nats(
    encoders: Encoder, topics: Topics, counts: Float[Any, "run n vocabulary"]
) -> Float[np.ndarray, " run"]:
    r"""Mean divergence $E\,KL(P(y \mid X)\,\|\,\mathrm{network})$ in nats: what the network's
    cross-entropy exceeds that of the Bayes predictor by."""
    logits = np.asarray(represent(encoders, counts)[:, -1] @ encoders.read, float)
    log_network = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))[..., None]
        - logits.max(-1, keepdims=True)
    )
    bayes = topics.posterior(counts) @ topics.answers
    return (bayes * (np.log(bayes) - log_network)).sum(-1).mean(-1)


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
