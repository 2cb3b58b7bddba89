r"""What the weights alone say of every head: norms of its two products, and what the capacity bounds make of them.

    weighed = weigh(model)          # Dataset over (layer, head), rotary positions also over `offset`; `MEANING` says what each word is
    ladder = depth(weighed)         # the whole model by the depth recursion, a Dataset over `layer`, in logarithms

A head reads tokens that a norm made, $x = g \odot \hat x + b$ with $|\hat x| \le \sqrt e$. The convention, exact for what softmax and the
output see:

- gains g are folded into the matrices that follow, and a projection of the embedding (ALBERT) too; after a layer norm, where the
  coordinates of $\hat x$ sum to 0, matrices lose the mean of their rows;
- biases of queries (b and $b_Q$) are a further coordinate of the token, always 1: the row $q_0$ of $\tilde W_Q$;
- biases of keys shift all scores of a query alike, which softmax does not see: they are left out, except with rotary positions;
- biases of values come out as a constant, whatever attention does: they are left out.

So a head is $W_{QK} = \tilde W_K\tilde W_Q^\top/\text{temperature}$ and $W_{OV} = \tilde W_V W_O$, of rank at most its width. Neither is ever formed: norms come through
roots of their Gram matrices. With rotary positions there is a $W_{QK}$ for every offset between query and key; `offset` runs over some, and the words
without it take the largest. The bounds take $|\tilde W_K||\tilde W_Q|$, which holds at every offset.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from scipy.sparse.linalg import svds
from threadpoolctl import threadpool_limits

from attlas.audit.architectures import Model
from attlas.capacity import (
    Block,
    Capacity,
    HeadNorms,
    PositionNorms,
    class_of,
    head_block,
    multi_head,
    normalised,
    position_wise,
    residual,
    stacked,
)
from attlas.errors import InputError

MEANING = {
    "qk_spectral": "spectral norm of the query-key product: the largest score of two tokens, over their squared length",
    "qk_frobenius": "Frobenius norm of the query-key product: the spread of the scores of unrelated tokens",
    "qk_21": "2,1 norm of the query-key product, by columns or rows, whichever is smaller",
    "qk_stable_rank": "squared Frobenius over squared spectral norm of the query-key product",
    "qk_effective_rank": "exponential of the entropy of the singular values of the query-key product",
    "qk_gate": "share of the scores' spread that does not depend on the query: 1 for a gate by one direction",
    "ov_spectral": "spectral norm of the output-value product: how far the output moves with a token at most",
    "ov_frobenius": "Frobenius norm of the output-value product",
    "ov_21": "2,1 norm of the output-value product, by columns",
    "ov_stable_rank": "squared Frobenius over squared spectral norm of the output-value product",
    "ov_effective_rank": "exponential of the entropy of the singular values of the output-value product",
    "log10_lipschitz": "logarithm to base 10 of the bound on how far the head's output moves with its tokens",
    "log10_nats": "logarithm to base 10 of the head's bound on the entropy of its class, by norms alone",
    "qk_share": "share of the query-key product in that bound; the rest is the output-value product's",
}
"""The quantities of a head that need no text, in words."""

LIPSCHITZ = {"gelu": 1.1290, "gelu_tanh": 1.1290, "silu": 1.0999, "quick_gelu": 1.0999, "relu": 1.0}
"""The steepest slopes of the activations, rounded up. All vanish at 0."""

LENGTH, SAMPLES, DISTANCE = 128, 10_000, 0.1
"""Bounds are for so many tokens at most and so many samples, at this share of the largest output; they depend little on the first two."""


@dataclass(frozen=True, eq=False)
class Entrance:
    r"""What a block reads its tokens through: $x = P^\top(g \odot \hat x) + c$ with `gain` g [e], `offset` c [dim] and, where there is one,
    `projection` P [e, dim]; where `centred`, the coordinates of $\hat x$ sum to 0."""

    gain: Float[np.ndarray, " e"]
    offset: Float[np.ndarray, " dim"]
    projection: Float[np.ndarray, "e dim"] | None
    centred: bool

    @property
    def radius(self) -> float:
        """The length of a token, with its constant coordinate."""
        return math.sqrt(len(self.gain) + 1)

    @property
    def skip(self) -> float:
        """The largest factor by which tokens leave the norm."""
        if self.projection is None:
            return float(np.abs(self.gain).max())
        return largest_singular(self.gain[:, None] * self.projection)

    def fold(self, w: np.ndarray, bias: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """A matrix [dim, ...] with its bias [...] as a matrix [e, ...] on normalised tokens, and the row of the constant [...]."""
        flat = np.asarray(w, np.float64).reshape(len(w), -1)
        row = self.offset @ flat + (0 if bias is None else np.asarray(bias, np.float64).ravel())
        folded = self.gain[:, None] * (flat if self.projection is None else self.projection @ flat)
        if self.centred:
            folded -= folded.mean(0)
        return folded.reshape(-1, *w.shape[1:]), row.reshape(w.shape[1:])


def entrances(
    model: Model, weights: dict[str, np.ndarray], before: dict[str, np.ndarray] | None
) -> tuple[Entrance, Entrance]:
    """What the heads and the position-wise map of a layer read through: their own norms where norms come first, else those of the
    blocks before, the first of which is the embedding's. `before` are the weights of the layer before."""
    if model.block.order == "pre":
        return _entrance(model, weights, "attention_norm"), _entrance(model, weights, "mlp_norm")
    first = _embedding_entrance(model) if before is None else _entrance(model, before, "mlp_norm")
    return first, _entrance(model, weights, "attention_norm")


def _entrance(model: Model, weights: dict[str, np.ndarray], word: str) -> Entrance:
    offset = weights.get(f"{word}_bias", np.zeros(model.dim))
    return Entrance(_double(weights[word]), _double(offset), None, model.block.norm == "layer")


def _embedding_entrance(model: Model) -> Entrance:
    """The norm of the embedding, a projection after it included; without a norm, tokens are taken as they are."""

    def loaded(word: str, part: str = "weight") -> np.ndarray | None:
        tensor = model.tensor("embedding", word, part)
        return None if tensor is None else _double(tensor.load())

    projection, gain = loaded("projection"), loaded("norm")
    size = model.dim if projection is None else projection.shape[1]
    bias = loaded("norm", "bias")
    offset = np.zeros(size) if bias is None else bias
    if projection is not None:
        constant = loaded("projection", "bias")
        offset = projection @ offset + (0 if constant is None else constant)
    centred = gain is not None and model.block.norm == "layer"
    return Entrance(
        np.ones(size) if gain is None else gain,
        offset,
        None if projection is None else projection.T,
        centred,
    )


def _double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)


def largest_singular(w: Float[np.ndarray, "m n"]) -> float:
    """The spectral norm of a large matrix, by Lanczos' method."""
    if min(w.shape) < 8 or not w.any():
        return float(np.linalg.norm(w, 2))
    start = np.full(min(w.shape), min(w.shape) ** -0.5)
    return float(svds(w, k=1, v0=start, tol=1e-6, return_singular_vectors=False)[0])


class Norms(NamedTuple):
    """Norms of the products $AB^\top$ of a batch of thin factors, [...]; `columns` and `rows` are the two 2,1 norms."""

    spectral: np.ndarray
    frobenius: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    stable_rank: np.ndarray
    effective_rank: np.ndarray


def product_norms(a: Float[np.ndarray, "*s m r"], b: Float[np.ndarray, "*s n r"]) -> Norms:
    r"""Norms of $AB^\top$ through roots $R^\top R$ of the Gram matrices [r, r] of its factors: the singular values are those of $R_AR_B^\top$, and
    column j has the length of $R_Ab_j$."""
    return _factored_norms(a, root(a), b, root(b))


def root(a: Float[np.ndarray, "*s m r"]) -> Float[np.ndarray, "*s r r"]:
    r"""A matrix R with $R^\top R = A^\top A$. What is below 1e-8 of the largest singular value is lost, which no quantity here can tell from 0."""
    squares, directions = np.linalg.eigh(np.swapaxes(a, -1, -2) @ a)
    return np.sqrt(squares.clip(0))[..., None] * np.swapaxes(directions, -1, -2)


def _factored_norms(a: np.ndarray, by_a: np.ndarray, b: np.ndarray, by_b: np.ndarray) -> Norms:
    core = by_a @ np.swapaxes(by_b, -1, -2)
    squares = np.linalg.eigvalsh(core @ np.swapaxes(core, -1, -2)).clip(0)[..., ::-1]
    singular = np.sqrt(squares)
    total = squares.sum(-1)
    weights = singular / np.maximum(singular.sum(-1, keepdims=True), np.finfo(float).tiny)
    entropy = -(weights * np.log(np.maximum(weights, np.finfo(float).tiny))).sum(-1)
    return Norms(
        spectral=singular[..., 0],
        frobenius=np.sqrt(total),
        columns=np.linalg.norm(by_a @ np.swapaxes(b, -1, -2), axis=-2).sum(-1),
        rows=np.linalg.norm(by_b @ np.swapaxes(a, -1, -2), axis=-2).sum(-1),
        stable_rank=total / np.maximum(squares[..., 0], np.finfo(float).tiny),
        effective_rank=np.exp(entropy),
    )


def offsets_for(model: Model, length: int = LENGTH) -> Int[np.ndarray, " offset"]:
    """Offsets between query and key at which rotary positions are looked at: 0 and the powers of 2; 0 alone without them."""
    if model.frequencies is None:
        return np.zeros(1, int)
    return np.array(
        [0, *(2**i for i in range((min(length, model.longest or length) - 1).bit_length()))]
    )


def _turned(w: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rows [..., r] with the pairs (i, i + r/2) turned by `angles` [r/2]."""
    if not angles.any():
        return w
    a, b = np.split(w, 2, -1)
    return np.concatenate(
        [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1
    )


def weigh(model: Model, length: int = LENGTH) -> xr.Dataset:
    """The quantities of `MEANING` over (layer, head), spectral and Frobenius norms of the query-key product over `offset` too, and norms of
    the position-wise maps over `layer`. One layer is in memory at a time."""
    length = min(length, model.longest or length)
    offsets = offsets_for(model, length)
    distinct: dict[tuple[int, int | None], dict[str, np.ndarray]] = {}
    keys = [
        (model.group(layer), model.group(layer - 1) if layer else None)
        for layer in range(model.layers)
    ]
    before: dict[str, np.ndarray] | None = None
    with threadpool_limits(1):  # matrices are small: threads would wait for each other
        for layer, key in enumerate(keys):
            if key not in distinct:
                weights = model.layer(layer)
                for word, array in weights.items():
                    if not np.isfinite(array).all():
                        raise InputError(
                            f"{word} of layer {layer} of {model.name} has an entry that is not finite"
                        )
                distinct[key] = _weigh_layer(model, weights, before, offsets)
                before = {
                    word: weights[word] for word in ("mlp_norm", "mlp_norm_bias") if word in weights
                }
    axes = ("layer", "head", "offset")
    stacked_up = {
        name: np.stack([distinct[key][name] for key in keys]) for name in distinct[keys[0]]
    }
    found = xr.Dataset(
        {name: (axes[: values.ndim], values) for name, values in stacked_up.items()},
        {"layer": np.arange(model.layers), "head": np.arange(model.heads), "offset": offsets},
        {"model": model.name, "length": length, "order": model.block.order, "dim": model.dim},
    )
    found = found.assign(head_capacity(found))
    for name, words in MEANING.items():
        found[name].attrs["words"] = words
    return found


def _weigh_layer(
    model: Model,
    weights: dict[str, np.ndarray],
    before: dict[str, np.ndarray] | None,
    offsets: np.ndarray,
) -> dict[str, np.ndarray]:
    attends, maps = entrances(model, weights, before)
    size = model.heads // model.groups
    query, constant = attends.fold(weights["query"], weights.get("query_bias"))
    key, shift = attends.fold(weights["key"], weights.get("key_bias"))
    value = np.moveaxis(attends.fold(weights["value"])[0], 1, 0)
    query = np.moveaxis(np.concatenate([query, constant[None]]), 1, 0)
    key = np.moveaxis(
        np.concatenate([key, shift[None]]) if model.frequencies is not None else key, 1, 0
    )
    key = key / model.block.temperature
    by_query, by_key, by_value = root(query), root(key), root(value)
    key, by_key, value, by_value = (
        np.repeat(x, size, axis=0) for x in (key, by_key, value, by_value)
    )
    turns = (
        np.zeros((1, model.width // 2))
        if model.frequencies is None
        else offsets[:, None] * model.frequencies
    )
    scores = [
        _factored_norms(key, by_key, _turned(query, turn), _turned(by_query, turn))
        for turn in turns
    ]
    envelope = Norms(*(np.stack(each, -1) for each in zip(*scores, strict=True)))
    out = np.swapaxes(_double(weights["out"]), -1, -2)
    moved = _factored_norms(value, by_value, out, root(out))
    free = np.linalg.norm(by_key @ constant[..., None], axis=(-2, -1))
    head: dict[str, np.ndarray] = {
        "qk_spectral": envelope.spectral.max(-1),
        "qk_frobenius": envelope.frobenius.max(-1),
        "qk_21": np.minimum(envelope.columns, envelope.rows).max(-1),
        "qk_stable_rank": envelope.stable_rank[..., 0],
        "qk_effective_rank": envelope.effective_rank[..., 0],
        "qk_gate": (free / np.maximum(envelope.frobenius[..., 0], np.finfo(float).tiny)) ** 2,
        "qk_bound": envelope.spectral[..., 0],
        "qk_bound_21": np.minimum(envelope.columns, envelope.rows)[..., 0],
        "ov_spectral": moved.spectral,
        "ov_frobenius": moved.frobenius,
        "ov_21": moved.columns,
        "ov_stable_rank": moved.stable_rank,
        "ov_effective_rank": moved.effective_rank,
    }
    if model.frequencies is not None:
        keys, queries = (np.linalg.norm(x, 2, axis=(-2, -1)) for x in (by_key, by_query))
        head["qk_bound"] = keys * queries
        head["qk_bound_21"] = np.minimum(
            keys * np.linalg.norm(query, axis=-1).sum(-1),
            queries * np.linalg.norm(key, axis=-1).sum(-1),
        )
    layer = {
        "attention_radius": attends.radius,
        "attention_skip": attends.skip,
        **_weigh_maps(model, weights, maps),
    }
    at = {"qk_spectral_at": envelope.spectral, "qk_frobenius_at": envelope.frobenius}
    return head | at | {name: np.asarray(value, float) for name, value in layer.items()}


def _weigh_maps(model: Model, weights: dict[str, np.ndarray], maps: Entrance) -> dict[str, float]:
    """Norms of the position-wise map, its biases as the row of a constant."""
    found = {
        "mlp_radius": maps.radius,
        "mlp_skip": maps.skip,
        "mlp_constant": LIPSCHITZ[model.block.activation],
    }
    for word in ("up", "gate"):
        if word in weights:
            folded, row = maps.fold(weights[word], weights.get(f"{word}_bias"))
            matrix = np.concatenate([folded, row[None]])
            found |= {
                word: largest_singular(matrix),
                f"{word}_21": np.linalg.norm(matrix, axis=0).sum(),
            }
    down = _double(weights["down"])
    return found | {
        "down": largest_singular(down),
        "down_21": np.linalg.norm(down, axis=0).sum(),
        "hidden": model.hidden,
    }


# --- capacity ------------------------------------------------------------------------------------------------------


def _norms_of(weighed: xr.Dataset) -> HeadNorms:
    """Heads as the bounds know them: the query-key product and, in place of $W_V$, the output-value product."""
    dim = weighed.attrs["dim"]
    return HeadNorms(
        value=weighed.ov_spectral.values,
        value_21=weighed.ov_21.values,
        query_key=weighed.qk_bound.values,
        query_key_21=weighed.qk_bound_21.values,
        out=1.0,
        out_21=0.0,
        dim=dim,
        width=dim,
        out_dim=dim,
    )


def head_capacity(weighed: xr.Dataset) -> dict[str, xr.Variable]:
    """The bound of each head by itself: its Lipschitz constant, the nats of its class, and the share of the query-key product in them.

    By norms and points alone, as in the paper: a bound that counts parameters would say the same of every head.
    """
    radius = np.broadcast_to(weighed.attention_radius.values[:, None], weighed.qk_spectral.shape)
    block = head_block(_norms_of(weighed), weighed.attrs["length"])
    capacity = class_of(block, radius).dimension_free()
    logs, _ = capacity.log_entropies(
        DISTANCE * np.exp(np.maximum(capacity.log_reach, -600.0)), SAMPLES
    )
    total = np.logaddexp.reduce(logs, -1)
    found = {
        "log10_lipschitz": np.asarray(capacity.layers[0]) / math.log(10),
        "log10_nats": total / math.log(10),
        "qk_share": np.exp(logs[..., 0] - np.maximum(total, -1e300)),
    }
    return {name: xr.Variable(("layer", "head"), values) for name, values in found.items()}


def blocks_of(
    weighed: xr.Dataset, stretch: Float[np.ndarray, "layer two"] | None = None
) -> list[Block]:
    """The blocks of the model in turn, heads and position-wise map of each layer, as the capacity bounds know them.

    Norms are the paper's projections unless `stretch` says how much they stretch, before each block. Where norms come first they are inside
    the residual, else around it.
    """
    norms, length, pre = (
        _norms_of(weighed),
        weighed.attrs["length"],
        weighed.attrs["order"] == "pre",
    )
    fields = ("value", "value_21", "query_key", "query_key_21")
    blocks = []
    for i in range(weighed.sizes["layer"]):
        layer = weighed.isel(layer=i)
        heads = [
            norms._replace(**{name: getattr(norms, name)[i, h] for name in fields})
            for h in range(weighed.sizes["head"])
        ]
        gated = "gate" in weighed
        position = PositionNorms(
            up=float(layer.up),
            up_21=float(layer.up_21),
            down=float(layer.down),
            down_21=float(layer.down_21),
            dim=weighed.attrs["dim"],
            hidden=float(layer.hidden),
            out_dim=weighed.attrs["dim"],
            lipschitz=float(layer.mlp_constant),
            gate=float(layer.gate) if gated else None,
            gate_21=float(layer.gate_21) if gated else 0.0,
        )
        for j, (block, radius, skip) in enumerate(
            (
                (
                    multi_head(*(head_block(n, length) for n in heads)),
                    layer.attention_radius,
                    layer.attention_skip,
                ),
                (position_wise(position, length), layer.mlp_radius, layer.mlp_skip),
            )
        ):
            by = 1.0 if stretch is None else float(stretch[i, j])
            inside = (
                residual(normalised(block, float(radius), by))
                if pre
                else normalised(residual(block, float(skip)), float(radius), by)
            )
            blocks.append(inside)
    return blocks


def depth(weighed: xr.Dataset, stretch: Float[np.ndarray, "layer two"] | None = None) -> xr.Dataset:
    """The whole model by the depth recursion, over `layer`: logarithms to base 10 of the Lipschitz constant of each layer and of all up to
    it, and of the nats that each layer, and the query-key, output-value and position-wise weights in it, add to the bound of the model. The
    model ends at its last norm, which projects; of that norm's gain and stretch nothing is counted."""
    blocks = blocks_of(weighed, stretch)
    grown = stacked(*blocks)(math.log(float(weighed.attention_radius[0])))
    reach = math.log(math.sqrt(weighed.attrs["dim"]))
    capacity = Capacity(grown.terms, reach, grown.constant, grown.layers).dimension_free()
    logs, _ = capacity.log_entropies(DISTANCE * math.exp(reach), SAMPLES)
    layers, heads = weighed.sizes["layer"], weighed.sizes["head"]
    steps = np.asarray(grown.layers, float).reshape(layers, 2).sum(1)
    logs = logs.reshape(layers, -1)
    attends = logs[:, : 3 * heads].reshape(layers, heads, 3)
    parts = {
        "nats": logs,
        "nats_query_key": attends[..., 0],
        "nats_output_value": attends[..., 1],
        "nats_position_wise": logs[:, 3 * heads :],
    }
    found = {"lipschitz": steps, "lipschitz_so_far": np.cumsum(steps)}
    found |= {name: np.logaddexp.reduce(part, -1) for name, part in parts.items()}
    return xr.Dataset(
        {f"log10_{name}": ("layer", values / math.log(10)) for name, values in found.items()},
        attrs={
            "log10_lipschitz": float(steps.sum() / math.log(10)),
            "log10_nats": float(np.logaddexp.reduce(logs, None) / math.log(10)),
            "distance": DISTANCE,
            "samples": SAMPLES,
            "length": weighed.attrs["length"],
        },
    )
