r"""A forward pass that shows what every head did, with one layer's weights in memory at a time.

    batch = embed(model, tokens)
    for step in trace(model, [batch]):             # each layer is read once for all batches
        step.attention  [b, heads, q, k]           # see `Step`

All layers share one compiled program for each shape of batch.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attlas.attention import softmax
from attlas.audit.architectures import Block, Model
from attlas.audit.rotary import rotate_pairs
from attlas.audit.texts import Tokens
from attlas.errors import InputError

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
}


class Batch(NamedTuple):
    """Embedded sequences; `mask` is False on padding."""

    states: Float[np.ndarray, "b n d"]
    mask: Bool[np.ndarray, "b n"]
    positions: Int[np.ndarray, "b n"]


class Step(NamedTuple):
    """What one layer did with one batch.

    - `layer`, `batch`: the number of the layer and that of the batch
    - `weights`: of the layer, by the words of `architectures`; emptied before the next is read
    - `states` [b, n, dim]: the residual stream that enters the layer
    - `inputs` [b, n, dim]: what the heads read, normalised where the norm comes first
    - `queries` [b, heads, n, width], `keys`, `values` [b, groups, n, width]: with biases, after
      rotary positions, before the division by the temperature
    - `attention` [b, heads, q, k]: weights; rows of padding are not meaningful
    - `outputs` [b, heads, n, width]: attention @ values, before `out`
    - `after` [b, n, dim]: the residual stream that leaves the layer
    - `scales` [b, n, 2]: what the two norms of the layer divided by, before their gains
    """

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
    """Token, position and type embeddings, added and, where the model does so, normalised and
    projected; all tokens are of the first type."""
    if model.vocabulary is None:
        raise InputError(f"{model.name} takes images, not texts")
    names = model.table["embedding"]
    states = _look_up(model, "tokens", tokens.ids)
    if "positions" in names:
        places = tokens.positions + names.get("first_position", 0)
        states = states + _look_up(model, "positions", places)
    elif model.longest is not None and tokens.positions.max() >= model.longest:
        raise InputError(
            f"a text has {tokens.positions.max() + 1} tokens: {model.name} takes at most"
            f" {model.longest}"
        )
    if "types" in names:
        states = states + _look_up(model, "types", np.zeros_like(tokens.ids))
    weights = model.load("embedding", ("norm", "projection"))
    if "norm" in weights:
        bias = weights.get("norm_bias", 0)
        states, _ = normalise(states, weights["norm"], bias, model.block)
    if "projection" in weights:
        states = states @ weights["projection"].T + weights.get("projection_bias", 0)
    return Batch(states, tokens.mask, tokens.positions)


def _look_up(model: Model, word: str, indices: np.ndarray) -> np.ndarray:
    """Rows of an embedding."""
    tensor = model.tensor("embedding", word)
    if tensor is None:
        raise InputError(f"{model.name} lacks {word}: {model.base('embedding', word)}")
    outside = indices[(indices < 0) | (indices >= tensor.shape[0])]
    if outside.size:
        raise InputError(f"{outside[0]} is none of the {tensor.shape[0]} {word} of {model.name}")
    return tensor.rows(indices.ravel()).reshape(*indices.shape, -1)


def normalise(x: Any, gain: Any, bias: Any, block: Block) -> tuple[Any, Any]:
    r"""Layer norm $g\,(x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + b$, or the rms norm
    $g\,x/\sqrt{\overline{x^2} + \epsilon} + b$, over the last axis; NumPy or JAX.

    Arguments:
        x: [..., d].
        gain, bias: $g$ and $b$, [d] or numbers.
        block: says which (`norm`), and $\epsilon$ (`eps`).

    Returns the normalised array and what was divided by, [..., 1].
    """
    centred = x - x.mean(-1, keepdims=True) if block.norm == "layer" else x
    scale = ((centred**2).mean(-1, keepdims=True) + block.eps) ** 0.5
    return centred / scale * gain + bias, scale


def trace(model: Model, batches: Sequence[Batch], dtype: DTypeLike = jnp.float32) -> Iterator[Step]:
    """Run the layers in turn, each on every batch.

    `dtype` is the precision of the computation; float64 needs `jax.enable_x64`.
    """
    states = [jnp.asarray(batch.states, dtype) for batch in batches]
    admitted = [jnp.asarray(admitted_pairs(model, batch)[:, None]) for batch in batches]
    rotations: list[list[Array] | None] = [None for _ in batches]
    if model.frequencies is not None:
        angles = [batch.positions[:, None, :, None] * model.frequencies for batch in batches]
        rotations = [[jnp.asarray(f(x), dtype) for f in (np.cos, np.sin)] for x in angles]
    for layer in range(model.layers):
        arrays = model.layer(layer)
        weights = {word: jnp.asarray(arrays.pop(word), dtype) for word in tuple(arrays)}
        for i, before in enumerate(states):
            with jax.default_matmul_precision("highest"):
                found = _run_layer(model.block, weights, before, admitted[i], rotations[i])
            states[i] = found[-2]
            if not np.isfinite(states[i]).all():
                raise InputError(
                    f"what leaves layer {layer} of {model.name} on this text is not finite"
                )
            yield Step(layer, i, weights, before, *found)
        weights.clear()  # before the next layer is read


def admitted_pairs(model: Model, batch: Batch) -> Bool[np.ndarray, "b q k"]:
    """Which query may attend to which key."""
    admitted = np.broadcast_to(batch.mask[:, None, :], (*batch.mask.shape, batch.mask.shape[1]))
    if model.block.causal:
        admitted = admitted & (batch.positions[:, None, :] <= batch.positions[:, :, None])
    return admitted


@partial(jax.jit, static_argnums=0)
def _run_layer(
    block: Block,
    weights: dict[str, Array],
    states: Array,
    admitted: Array,
    rotation: list[Array] | None,
) -> tuple[Array, ...]:
    """The fields of `Step` from `inputs` on."""
    scales: dict[str, Array] = {}

    def norm(x: Array, word: str) -> Array:
        bias = weights.get(f"{word}_bias", 0.0)
        normalised, scales[word] = normalise(x, weights[word], bias, block)
        return normalised

    def biased(x: Array, word: str) -> Array:
        return x + weights[f"{word}_bias"] if f"{word}_bias" in weights else x

    def project(x: Array, word: str) -> Array:
        heads = jnp.einsum("bnd,dhr->bhnr", x, weights[word])
        return heads + weights[f"{word}_bias"][:, None] if f"{word}_bias" in weights else heads

    norm_first, activate = block.order == "pre", ACTIVATIONS[block.activation]
    inputs = norm(states, "attention_norm") if norm_first else states
    queries, keys, values = (project(inputs, word) for word in ("query", "key", "value"))
    if rotation is not None:
        queries, keys = rotate_pairs(queries, *rotation), rotate_pairs(keys, *rotation)
    repeated = [jnp.repeat(x, block.heads // block.groups, axis=1) for x in (keys, values)]
    attention = softmax(queries @ jnp.swapaxes(repeated[0], -1, -2) / block.temperature, admitted)
    outputs = attention @ repeated[1]
    middle = states + biased(jnp.einsum("bhnr,hrd->bnd", outputs, weights["out"]), "out")
    middle = middle if norm_first else norm(middle, "attention_norm")
    hidden = norm(middle, "mlp_norm") if norm_first else middle
    up = biased(hidden @ weights["up"], "up")
    gated = "gate" in weights
    up = up * activate(biased(hidden @ weights["gate"], "gate")) if gated else activate(up)
    after = middle + biased(up @ weights["down"], "down")
    after = after if norm_first else norm(after, "mlp_norm")
    divided = jnp.concatenate([scales["attention_norm"], scales["mlp_norm"]], -1)
    return inputs, queries, keys, values, attention, outputs, after, divided
