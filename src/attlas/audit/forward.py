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
from attlas.audit.positions import admitted_pairs, relative_index, score_bias
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


BRANCHES = ("attention", "mlp")


class Batch(NamedTuple):
    """Embedded sequences; `mask` is False on padding. `memory` are the states of the encoder, on
    the same tokens, to which a decoder attends."""

    states: Float[np.ndarray, "b n d"]
    mask: Bool[np.ndarray, "b n"]
    positions: Int[np.ndarray, "b n"]
    memory: Float[np.ndarray, "b n d"] | None = None


class Step(NamedTuple):
    """What one layer did with one batch.

    - `layer`, `batch`: the number of the layer and that of the batch
    - `weights`: of the layer, by the words of `architectures`; emptied before the next is read
    - `states` [b, n, dim]: the residual stream that enters the layer
    - `inputs` [b, n, dim]: what the heads read, normalised where the norm comes first
    - `queries` [b, heads, n, width], `keys`, `values` [b, groups, n, width]: with biases, after
      rotary positions, before the division by the temperature
    - `scores` [b, heads, q, k]: what softmax reads, with caps and biases, before the mask
    - `attention` [b, heads, q, k]: weights; rows of padding are not meaningful
    - `outputs` [b, heads, n, width]: attention @ values, before `out`
    - `after` [b, n, dim]: the residual stream that leaves the layer
    - `scales` [b, n, 4]: what the norms of the layer divided by, before their gains: those before
      (or behind the sum of) the two branches, and of what these return; 1 where there is none
    """

    layer: int
    batch: int
    weights: dict[str, Array]
    states: Array
    inputs: Array
    queries: Array
    keys: Array
    values: Array
    scores: Array
    attention: Array
    outputs: Array
    after: Array
    scales: Array


def embed(model: Model, tokens: Tokens) -> Batch:
    """Token, position and type embeddings, added and, where the model does so, normalised and
    projected; all tokens are of the first type. The encoder of a decoder is run on the tokens."""
    if model.vocabulary is None:
        raise InputError(f"{model.name} takes {model.table['block']['takes']}, not texts")
    names, flags = model.table["embedding"], model.table["block"]
    weights = model.load("embedding", ("norm", "projection"))

    def project(x: np.ndarray) -> np.ndarray:
        if "projection" not in weights:
            return x
        return x @ weights["projection"].T + weights.get("projection_bias", 0)

    states = _look_up(model, "tokens", tokens.ids)
    if flags["scale"] == "root of the dimension":
        states = states * np.float32(model.dim**0.5)
    states = project(states) if flags["projected"] == "first" else states
    if model.find("embedding", "positions") is not None:
        places = tokens.positions + names.get("first_position", 0)
        states = states + _look_up(model, "positions", places)
    elif model.longest is not None and tokens.positions.max() >= model.longest:
        raise InputError(
            f"a text has {tokens.positions.max() + 1} tokens: {model.name} takes at most"
            f" {model.longest}"
        )
    if model.find("embedding", "types") is not None:
        states = states + _look_up(model, "types", np.zeros_like(tokens.ids))
    if "norm" in weights:
        bias = weights.get("norm_bias", 0)
        states, _ = normalise(states, weights["norm"], bias, model.block)
    states = project(states) if flags["projected"] == "last" else states
    memory = None
    if model.encoder is not None:
        for step in trace(model.encoder, [embed(model.encoder, tokens)]):
            memory = np.asarray(step.after)
        memory = final_states(model.encoder, memory)
    return Batch(states, tokens.mask, tokens.positions, memory)


def final_states(model: Model, states: Any) -> Any:
    """What leaves the model: the residual stream after the last norm, where there is one."""
    weights = model.load("final", ("norm",))
    if not weights:
        return states
    return normalise(states, weights["norm"], weights.get("norm_bias", 0), model.block)[0]


def _look_up(model: Model, word: str, indices: np.ndarray) -> np.ndarray:
    """Rows of an embedding."""
    tensor = model.tensor("embedding", word)
    if tensor is None:
        raise InputError(f"{model.name} lacks {word}: {model.bases('embedding', word)}")
    outside = indices[(indices < 0) | (indices >= tensor.shape[0])]
    if outside.size:
        raise InputError(f"{outside[0]} is none of the {tensor.shape[0]} {word} of {model.name}")
    return tensor.rows(indices.ravel()).reshape(*indices.shape, -1)


def normalise(
    x: Any, gain: Any, bias: Any, block: Block, axes: int | tuple[int, ...] = -1
) -> tuple[Any, Any]:
    r"""Layer norm $g\,(x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + b$, or the rms norm
    $g\,x/\sqrt{\overline{x^2} + \epsilon} + b$, over `axes`; NumPy or JAX.

    Arguments:
        x: [..., d].
        gain, bias: $g$ and $b$, [d] or numbers.
        block: says which (`norm`), and $\epsilon$ (`eps`).

    Returns the normalised array and what was divided by, [..., 1].
    """
    centred = x - x.mean(axes, keepdims=True) if block.norm == "layer" else x
    scale = ((centred**2).mean(axes, keepdims=True) + block.eps) ** 0.5
    return centred / scale * gain + bias, scale


def trace(model: Model, batches: Sequence[Batch], dtype: DTypeLike = jnp.float32) -> Iterator[Step]:
    """Run the layers in turn, each on every batch.

    `dtype` is the precision of the computation; float64 needs `jax.enable_x64`.
    """
    states = [jnp.asarray(batch.states, dtype) for batch in batches]
    aids = [_Aids(model, batch, dtype) for batch in batches]
    for layer in range(model.layers):
        arrays = model.layer(layer)
        weights = {word: jnp.asarray(arrays.pop(word), dtype) for word in tuple(arrays)}
        for i, before in enumerate(states):
            with jax.default_matmul_precision("highest"):
                found = _run_layer(model.block, weights, before, aids[i].of_layer(layer))
            states[i] = found[-2]
            if not np.isfinite(states[i]).all():
                raise InputError(
                    f"what leaves layer {layer} of {model.name} on this text is not finite"
                )
            yield Step(layer, i, weights, before, *found)
        weights.clear()  # before the next layer is read


def admitted_in(model: Model, batch: Batch, layer: int) -> Bool[np.ndarray, "b q k"]:
    """Which query may attend to which key in a layer."""
    return admitted_pairs(model.views[layer], model.block.causal, batch.mask, batch.positions)


class _Aids:
    """What the layers need besides states and weights, made once for every view of positions."""

    def __init__(self, model: Model, batch: Batch, dtype: DTypeLike) -> None:
        self.model, self.batch, self.dtype = model, batch, dtype
        self.views: dict[int, dict[str, Any]] = {}
        bias, index = score_bias(model, batch.positions), relative_index(model, batch.positions)
        self.shared: dict[str, Any] = {}
        if bias is not None:
            self.shared["bias"] = jnp.asarray(bias, dtype)
        if index is not None:
            weights = model.load("embedding", ("relative", "relative_norm"))
            relative = weights["relative"]
            if "relative_norm" in weights:
                offset = weights.get("relative_norm_bias", 0)
                relative, _ = normalise(relative, weights["relative_norm"], offset, model.block)
            self.shared |= {"relative": jnp.asarray(relative, dtype), "index": jnp.asarray(index)}
        if batch.memory is not None:
            self.shared["memory"] = jnp.asarray(batch.memory, dtype)
            self.shared["memory_mask"] = jnp.asarray(batch.mask[:, None, None, :])

    def of_layer(self, layer: int) -> dict[str, Any]:
        view = self.model.views[layer]
        if id(view) not in self.views:
            found = self.shared | {
                "admitted": jnp.asarray(admitted_in(self.model, self.batch, layer)[:, None])
            }
            if self.model.frequencies is not None:
                places = self.batch.positions[:, None, :]
                if view.rotation is None:  # one program for layers with and without rotation
                    half = np.ones((*places.shape, self.model.width // 2))
                    turns = (half, 0 * half)
                else:
                    turns = view.rotation.turn(places)
                found["rotation"] = [jnp.asarray(turn, self.dtype) for turn in turns]
            self.views[id(view)] = found
        return self.views[id(view)]


@partial(jax.jit, static_argnums=0)
def _run_layer(
    block: Block, weights: dict[str, Array], states: Array, aids: dict[str, Any]
) -> tuple[Array, ...]:
    """The fields of `Step` from `inputs` on."""
    scales: dict[str, Array] = {}

    def norm(x: Array, word: str) -> Array:
        if word not in weights:
            return x
        bias = weights.get(f"{word}_bias", 0.0)
        normalised, scales[word] = normalise(x, weights[word], bias, block)
        return normalised

    def biased(x: Array, word: str) -> Array:
        return x + weights[f"{word}_bias"] if f"{word}_bias" in weights else x

    def project(x: Array, word: str) -> Array:
        heads = jnp.einsum("bnd,dhr->bhnr", x, weights[word])
        return heads + weights[f"{word}_bias"][:, None] if f"{word}_bias" in weights else heads

    def norm_heads(x: Array, word: str) -> Array:
        """Queries or keys [b, h, n, r] normalised, each head or all heads together."""
        if word not in weights:
            return x
        whole = weights[word].ndim == 2
        gain = weights[word][:, None] if whole else weights[word]
        return normalise(x, gain, 0.0, block, (1, 3) if whole else -1)[0]

    def spread(x: Array) -> Array:
        return jnp.repeat(x, block.heads // block.groups, axis=1)

    def leave(outputs: Array, word: str) -> Array:
        return biased(jnp.einsum("bhnr,hrd->bnd", outputs, weights[word]), word)

    norm_first = block.order == "pre"
    inputs = norm(states, "attention_norm") if norm_first else states
    queries, keys, values = (project(inputs, word) for word in ("query", "key", "value"))
    queries, keys = norm_heads(queries, "query_norm"), norm_heads(keys, "key_norm")
    if "rotation" in aids:
        queries, keys = (rotate_pairs(x, *aids["rotation"]) for x in (queries, keys))
    scores = queries @ jnp.swapaxes(spread(keys), -1, -2)
    if "index" in aids:
        relative = {
            word: project(
                aids["relative"][None],
                f"position_{word}" if f"position_{word}" in weights else word,
            )[0]
            for word in ("query", "key")
        }
        scores = scores + _position_scores(block, queries, spread(keys), relative, aids["index"])
    scores = scores / block.temperature
    if block.cap is not None:
        scores = block.cap * jnp.tanh(scores / block.cap)
    if "bias" in aids:
        scores = scores + aids["bias"]
    attention = softmax(scores, aids["admitted"])
    outputs = attention @ spread(values)
    middle = states + norm(leave(outputs, "out"), "attention_after")
    middle = middle if norm_first else norm(middle, "attention_norm")
    if "cross_query" in weights:
        asked = project(norm(middle, "cross_norm"), "cross_query")
        known, told = (project(aids["memory"], f"cross_{word}") for word in ("key", "value"))
        across = asked @ jnp.swapaxes(spread(known), -1, -2) / block.temperature
        middle = middle + leave(softmax(across, aids["memory_mask"]) @ spread(told), "cross_out")
    hidden = states if block.parallel else middle
    if norm_first:
        hidden = norm(hidden, "mlp_norm") if "mlp_norm" in weights or not block.parallel else inputs
    after = middle + norm(_position_wise(block, weights, hidden), "mlp_after")
    after = after if norm_first else norm(after, "mlp_norm")
    one = jnp.ones_like(states[..., :1])
    divided = [scales.get(f"{word}_{kind}", one) for kind in ("norm", "after") for word in BRANCHES]
    return (
        inputs,
        queries,
        keys,
        values,
        scores,
        attention,
        outputs,
        after,
        jnp.concatenate(divided, -1),
    )


def _position_wise(block: Block, weights: dict[str, Array], hidden: Array) -> Array:
    """The position-wise map; with a router, the mean of the experts that it chose for each token,
    by their probabilities."""
    activate = ACTIVATIONS[block.activation]

    def apply(up: Array, gate: Array | None, down: Array, biases: dict[str, Array]) -> Array:
        x = hidden @ up + biases.get("up_bias", 0)
        if gate is None:
            x = activate(x)
        else:
            x = x * activate(hidden @ gate + biases.get("gate_bias", 0))
        return x @ down + biases.get("down_bias", 0)

    up, gate, down = weights["up"], weights.get("gate"), weights["down"]
    if "router" not in weights:
        return apply(up, gate, down, weights)
    shares = jax.nn.softmax(hidden @ weights["router"], -1)
    best, chosen = jax.lax.top_k(shares, block.chosen)
    picked = jax.nn.one_hot(chosen, shares.shape[-1], dtype=best.dtype)
    share = (picked * (best / best.sum(-1, keepdims=True))[..., None]).sum(-2)
    total = jnp.zeros_like(hidden)
    for expert in range(shares.shape[-1]):
        of_gate = None if gate is None else gate[expert]
        total = total + share[..., expert, None] * apply(up[expert], of_gate, down[expert], {})
    return total


def _position_scores(
    block: Block, queries: Array, keys: Array, relative: dict[str, Array], index: Array
) -> Array:
    """What content and position of a disentangled attention add to the scores [b, h, q, k], before
    the temperature: of queries with relative keys [h, s, r], and of keys with relative queries."""
    total = jnp.zeros(())
    shape = (*queries.shape[:2], *index.shape[1:])
    if "c2p" in block.terms:
        found = jnp.einsum("bhqr,hsr->bhqs", queries, relative["key"])
        total = total + jnp.take_along_axis(found, jnp.broadcast_to(index[:, None], shape), -1)
    if "p2c" in block.terms:
        found = jnp.einsum("bhkr,hsr->bhks", keys, relative["query"])
        turned = jnp.broadcast_to(jnp.swapaxes(index, -1, -2)[:, None], shape)
        total = total + jnp.swapaxes(jnp.take_along_axis(found, turned, -1), -1, -2)
    return total
