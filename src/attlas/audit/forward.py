r"""A forward pass, one layer's weights in memory at a time, that shows what every head did.

    batch = embed(model, tokens)                   # tokens from texts.encode; or embed_images(model, pixels)
    for step in trace(model, [batch]):             # layer by layer; each layer is read once for all batches
        step.layer, step.batch                     # which layer, which of the batches
        step.weights                               # the layer's, by the words of `architectures`; gone when the next is asked for
        step.states     [b, n, dim]                # the residual stream that enters the layer
        step.inputs     [b, n, dim]                # what the heads read: normalised where the norm comes first
        step.queries    [b, heads, n, width]       # as used: with biases, after rotary positions, before 1/temperature
        step.keys       [b, groups, n, width]
        step.values     [b, groups, n, width]
        step.attention  [b, heads, q, k]           # softmax(<q, k> / model.block.temperature); rows of padding are not meaningful
        step.outputs    [b, heads, n, width]       # attention @ values, before `out`
        step.after      [b, n, dim]                # the residual stream that leaves the layer
        step.scales     [b, n, 2]                  # what the two norms of the layer divided by, before their gains
    final_states(model, step.after)                # the last norm, where there is one
    logits(model, final_states(...))               # of the next token, for causal models

All layers share one compiled program for each shape of batch.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attlas.attention import softmax
from attlas.audit.architectures import Block, Model
from attlas.audit.texts import Tokens
from attlas.errors import InputError


class Batch(NamedTuple):
    """Embedded sequences. `mask` is False on padding; positions order the sequence and turn rotary pairs."""

    states: Float[np.ndarray, "b n d"]
    mask: Bool[np.ndarray, "b n"]
    positions: Int[np.ndarray, "b n"]


class Step(NamedTuple):
    """What one layer did with one batch; shapes in the module's docstring."""

    layer: int
    batch: int
    weights: dict[str, Array]
    states: Array
    inputs: Array
    queries: Array
    keys: Array
    values: Array
    attention: Array
    outputs: Array
    after: Array
    scales: Array


def embed(model: Model, tokens: Tokens) -> Batch:
    """Token, position and type embeddings, added and, where the model does so, normalised and projected."""
    if model.vocabulary is None:
        raise InputError(f"{model.name} takes images, not texts")
    names = model.table["embedding"]
    states = _look_up(model, "tokens", tokens.ids)
    if "positions" in names:
        states = states + _look_up(
            model, "positions", tokens.positions + names.get("first_position", 0)
        )
    elif model.longest is not None and tokens.positions.max() >= model.longest:
        raise InputError(
            f"a text has {tokens.positions.max() + 1} tokens: {model.name} takes at most {model.longest}"
        )
    if "types" in names:
        states = states + _look_up(model, "types", tokens.types)
    if "norm" in names:
        states = _normalised(model, "embedding", states)
    if "projection" in names:
        states = states @ _loaded(model, "embedding", "projection").T + _loaded(
            model, "embedding", "projection", "bias"
        )
    return Batch(states, tokens.mask, tokens.positions)


def embed_images(model: Model, pixels: Float[np.ndarray, "b channel row column"]) -> Batch:
    """Patches of images, each times one matrix, behind a class token; then positions."""
    if model.vocabulary is not None:
        raise InputError(f"{model.name} takes texts, not images")
    kernel = _loaded(model, "embedding", "patches")
    (dim, channels, height, width), (count, *size) = kernel.shape, pixels.shape
    if len(size) != 3 or size[0] != channels or size[1] % height or size[2] % width:
        raise InputError(
            f"pixels have the shape {pixels.shape}: {model.name} takes [b, {channels}, rows, columns], cut into {height} x {width}"
        )
    rows, columns = size[1] // height, size[2] // width
    cut = np.asarray(pixels, np.float32).reshape(count, channels, rows, height, columns, width)
    patches = cut.transpose(0, 2, 4, 1, 3, 5).reshape(count, rows * columns, -1)
    states = patches @ kernel.reshape(dim, -1).T + _loaded(model, "embedding", "patches", "bias")
    first = np.broadcast_to(
        _loaded(model, "embedding", "class_token").reshape(1, 1, dim), (count, 1, dim)
    )
    places = _loaded(model, "embedding", "positions").reshape(1, -1, dim)
    if places.shape[1] != rows * columns + 1:
        raise InputError(
            f"images of {rows} x {columns} patches: {model.name} has positions for {places.shape[1] - 1} patches"
        )
    states = np.concatenate([first, states], 1) + places
    shape = states.shape[:2]
    return Batch(states, np.ones(shape, bool), np.broadcast_to(np.arange(shape[1]), shape))


def _loaded(model: Model, section: str, word: str, part: str = "weight") -> np.ndarray:
    tensor = model.tensor(section, word, part)
    if tensor is None:
        if part == "bias":
            return np.zeros(1, np.float32)
        raise InputError(f"{model.name} lacks {word}: {model.names.base(section, word)}")
    return tensor.load()


def _look_up(model: Model, word: str, indices: np.ndarray) -> np.ndarray:
    tensor = model.tensor("embedding", word)
    if tensor is None:
        raise InputError(f"{model.name} lacks {word}: {model.names.base('embedding', word)}")
    if indices.min() < 0 or indices.max() >= tensor.shape[0]:
        wrong = indices[(indices < 0) | (indices >= tensor.shape[0])].flat[0]
        raise InputError(f"{wrong} is none of the {tensor.shape[0]} {word} of {model.name}")
    return tensor.rows(indices.ravel()).reshape(*indices.shape, -1)


def _normalised(model: Model, section: str, states: np.ndarray) -> np.ndarray:
    gain, bias = _loaded(model, section, "norm"), _loaded(model, section, "norm", "bias")
    return normalise(states, gain, bias, model.block.norm, model.block.eps)


def normalise(x: Any, gain: Any, bias: Any, kind: str, eps: float) -> Any:
    r"""$g\,(x - \bar x) / \sqrt{\mathrm{var}(x) + \epsilon} + b$, or $g\,x / \sqrt{\overline{x^2} + \epsilon} + b$ (rms); of NumPy or JAX."""
    centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    return centred / norm_scale(x, kind, eps) * gain + bias


def norm_scale(x: Any, kind: str, eps: float) -> Any:
    """What a norm divides by."""
    centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    return ((centred**2).mean(-1, keepdims=True) + eps) ** 0.5


def trace(model: Model, batches: Sequence[Batch], dtype: DTypeLike = jnp.float32) -> Iterator[Step]:
    """The layers in turn, each on every batch; in float64 where JAX is told to allow it and `dtype` says so."""
    states = [jnp.asarray(batch.states, dtype) for batch in batches]
    admitted = [_admitted(model, batch) for batch in batches]
    turns = [_turns(model, batch, dtype) for batch in batches]
    for layer in range(model.layers):
        arrays = model.layer(layer)
        weights = {word: jnp.asarray(arrays.pop(word), dtype) for word in tuple(arrays)}
        for i, before in enumerate(states):
            with jax.default_matmul_precision("highest"):
                found = _layer(model.block, weights, before, admitted[i], turns[i])
            states[i] = found[-2]
            yield Step(layer, i, weights, before, *found)
        weights.clear()  # before the next layer is read


def _admitted(model: Model, batch: Batch) -> Array:
    """Which token may attend to which, [b, 1, q, k]."""
    admitted = np.broadcast_to(batch.mask[:, None, :], (*batch.mask.shape, batch.mask.shape[1]))
    if model.block.causal:
        admitted = admitted & (batch.positions[:, None, :] <= batch.positions[:, :, None])
    return jnp.asarray(admitted[:, None])


def _turns(model: Model, batch: Batch, dtype: DTypeLike) -> tuple[Array, Array] | None:
    """Cosines and sines of the angles by which rotary positions turn each pair, [b, 1, n, width / 2]."""
    if model.frequencies is None:
        return None
    angles = batch.positions[:, None, :, None] * model.frequencies
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


@partial(jax.jit, static_argnums=0)
def _layer(
    block: Block,
    weights: dict[str, Array],
    states: Array,
    admitted: Array,
    turns: tuple[Array, Array] | None,
) -> tuple[Array, ...]:
    scales: dict[str, Array] = {}

    def norm(x: Array, word: str) -> Array:
        scales[word] = norm_scale(x, block.norm, block.eps)
        return normalise(x, weights[word], weights.get(f"{word}_bias", 0.0), block.norm, block.eps)

    def projected(x: Array, word: str) -> Array:
        heads = jnp.einsum("bnd,dhr->bhnr", x, weights[word])
        return heads + weights[f"{word}_bias"][:, None] if f"{word}_bias" in weights else heads

    first = block.order == "pre"
    inputs = norm(states, "attention_norm") if first else states
    queries, keys, values = (projected(inputs, word) for word in ("query", "key", "value"))
    if turns is not None:
        queries, keys = turned(queries, *turns), turned(keys, *turns)
    repeated = [jnp.repeat(x, block.heads // block.groups, axis=1) for x in (keys, values)]
    attention = softmax(queries @ jnp.swapaxes(repeated[0], -1, -2) / block.temperature, admitted)
    outputs = attention @ repeated[1]
    middle = states + _biased(jnp.einsum("bhnr,hrd->bnd", outputs, weights["out"]), weights, "out")
    middle = middle if first else norm(middle, "attention_norm")
    hidden = norm(middle, "mlp_norm") if first else middle
    up = _biased(hidden @ weights["up"], weights, "up")
    if "gate" in weights:
        up = up * activate(_biased(hidden @ weights["gate"], weights, "gate"), block.activation)
    else:
        up = activate(up, block.activation)
    after = middle + _biased(up @ weights["down"], weights, "down")
    after = after if first else norm(after, "mlp_norm")
    divided = jnp.concatenate([scales["attention_norm"], scales["mlp_norm"]], -1)
    return inputs, queries, keys, values, attention, outputs, after, divided


def _biased(x: Array, weights: dict[str, Array], word: str) -> Array:
    return x + weights[f"{word}_bias"] if f"{word}_bias" in weights else x


def turned(x: Array, cosine: Array, sine: Array) -> Array:
    """Rotary positions: each pair (i, i + width/2) turned by its angle."""
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def activate(x: Array, name: str) -> Array:
    match name:
        case "gelu":
            return jax.nn.gelu(x, approximate=False)
        case "gelu_tanh":
            return jax.nn.gelu(x, approximate=True)
        case "silu":
            return jax.nn.silu(x)
        case "quick_gelu":
            return x * jax.nn.sigmoid(1.702 * x)
    return jax.nn.relu(x)


def final_states(model: Model, states: Array | np.ndarray) -> np.ndarray:
    """What leaves the model: the last norm of the residual stream, where there is one."""
    found = np.asarray(states)
    return _normalised(model, "final", found) if "norm" in model.table["final"] else found


def logits(
    model: Model, states: Float[np.ndarray, "*s d"], rows: int = 4096
) -> Float[np.ndarray, "*s v"]:
    """What the final states say of the next token, with `rows` of the vocabulary in memory at a time."""
    tensor = model.tensor("final", "unembedding") or model.tensor("embedding", "tokens")
    if tensor is None or not model.block.causal:
        raise InputError(f"{model.name} predicts no next token")
    blocks = (
        tensor.fetch(start, min(start + rows, tensor.shape[0]))
        for start in range(0, tensor.shape[0], rows)
    )
    return np.concatenate([states @ block.T for block in blocks], -1)
