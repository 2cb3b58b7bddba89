r"""What the weights say of every head: norms of its two products, and the capacity bounds.

    norms = measure_weights(model)      # Dataset over (layer, head); `words` explain each variable
    capacity_by_layer(norms)            # bounds of the whole model, over `layer`, in logarithms

A head reads tokens that a norm made, $x = g \odot \hat x + b$ with $|\hat x| \le \sqrt e$. The
following is exact for what softmax and the output see:

- Gains g, and a projection of the embedding (ALBERT), are folded into the matrices that follow.
  After a layer norm, where the coordinates of $\hat x$ sum to 0, matrices lose their row means.
- Biases of queries (b and $b_Q$) are a further coordinate of the token that is always 1: the row
  $q_0$ of $\tilde W_Q$.
- Biases of keys shift all scores of a query alike, which softmax does not see: they are left out,
  except with rotary positions.
- Biases of values add a constant to the output, whatever attention does: they are left out.

So a head is $W_{QK} = \tilde W_K\tilde W_Q^\top/\text{temperature}$ and
$W_{OV} = \tilde W_V W_O$, of rank at most its width. Neither is ever formed: norms come from roots
of the Gram matrices of the factors. With rotary positions there is a $W_{QK}$ for every offset
between query and key: `offset` runs over some of them, and variables without it take the largest.
The capacity bounds take $|\tilde W_K||\tilde W_Q|$, which holds at every offset.

Norms of queries and keys, and of what a branch returns, are taken as projections, like the others:
gains of the first are folded into $W_Q$ and $W_K$, those of the second count by the largest. Of
experts the one with the largest norm counts. A branch that reads the residual stream as it is reads
tokens no longer than the embedding and the norms of all branches below make them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from scipy.sparse.linalg import svds
from scipy.special import entr
from threadpoolctl import threadpool_limits

from attlas import capacity
from attlas.audit.architectures import Model
from attlas.audit.quantities import describe, stack_layers
from attlas.audit.rotary import Rotation, rotate_pairs
from attlas.capacity.spectra import INDICES, log_powers
from attlas.errors import InputError

LIPSCHITZ = {"gelu": 1.1290, "gelu_tanh": 1.1290, "silu": 1.0999, "quick_gelu": 1.0999, "relu": 1.0}
"""The steepest slopes of the activations, rounded up. All vanish at 0."""

LENGTH, SAMPLES, DISTANCE = 128, 10_000, 0.1
"""The bounds are for at most so many tokens and for so many samples, at this share of the largest
output; they depend little on the first two."""
KEPT = (1.0, 0.5, 0.25, 0.125)
"""Shares of the singular values of a head's matrices that are kept where the rest is pruned."""
TINY = np.finfo(float).tiny
EMBEDDING_ROWS = 8192
"""Rows of an embedding that are in memory at a time."""

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class InputNorm:
    r"""The norm through which a block reads its tokens: $x = P^\top(g \odot \hat x) + c$.

    `gain` is g [e], `offset` c [dim], `projection` P [e, dim] where there is one. Where `centred`,
    the coordinates of $\hat x$ sum to 0.
    """

    gain: Float[np.ndarray, " e"]
    offset: Float[np.ndarray, " dim"]
    projection: Float[np.ndarray, "e dim"] | None
    centred: bool
    longest: float | None = None

    @property
    def radius(self) -> float:
        """The length of a token, with its constant coordinate; `longest` where no norm sets it."""
        longest = math.sqrt(len(self.gain)) if self.longest is None else self.longest
        return math.hypot(longest, 1.0)

    @property
    def skip(self) -> float:
        """The largest factor by which the gain stretches a token."""
        if self.projection is None:
            return float(np.abs(self.gain).max())
        return largest_singular(self.gain[:, None] * self.projection)

    def fold(self, w: np.ndarray, bias: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """A matrix [dim, ...] as one on normalised tokens.

        Returns the matrix [e, ...] and the row [...] of the constant coordinate, `bias` included.
        """
        flat = np.asarray(w, np.float64).reshape(len(w), -1)
        row = self.offset @ flat + (0 if bias is None else np.asarray(bias, np.float64).ravel())
        folded = self.gain[:, None] * (flat if self.projection is None else self.projection @ flat)
        if self.centred:
            folded -= folded.mean(0)
        return folded.reshape(-1, *w.shape[1:]), row.reshape(w.shape[1:])


def input_norms(
    model: Model, weights: Weights, before: Weights | None, stream: float = math.inf
) -> tuple[InputNorm, InputNorm]:
    """The norms through which the heads and the position-wise map of a layer read.

    Their own where norms come first; else those of the blocks before, the first of which is the
    embedding's; else the residual stream as it is.

    Arguments:
        weights: of the layer.
        before: of the layer before; None for the first layer.
        stream: the largest length of the tokens that enter the layer, where no norm sets it.
    """
    if model.block.order == "post":
        first = _embedding_norm(model) if before is None else _norm_of(model, before, "mlp_norm")
        return first, _norm_of(model, weights, "attention_norm")
    if "attention_norm" in weights:
        first = _norm_of(model, weights, "attention_norm")
    elif before is None and "norm" in model.table["embedding"]:
        first = _embedding_norm(model)
    else:
        first = _no_norm(model, stream)
    if "mlp_norm" in weights:
        return first, _norm_of(model, weights, "mlp_norm")
    if model.block.parallel:
        return first, first
    return first, _no_norm(model, stream + _longest_return(model, weights, "attention_after"))


def _no_norm(model: Model, longest: float) -> InputNorm:
    return InputNorm(np.ones(model.dim), np.zeros(model.dim), None, False, longest)


def _longest_return(model: Model, weights: Weights, word: str) -> float:
    """The largest length of what a branch returns behind a norm; infinite without one."""
    if word not in weights:
        return math.inf
    bias = float(np.linalg.norm(weights.get(f"{word}_bias", np.zeros(1))))
    return math.sqrt(model.dim) * float(np.abs(weights[word]).max()) + bias


def longest_embedding(model: Model) -> float:
    """The largest length of a token embedding."""
    tensor = model.tensor("embedding", "tokens")
    if tensor is None:
        return math.inf
    starts = range(0, tensor.shape[0], EMBEDDING_ROWS)
    parts = (tensor.fetch(i, min(i + EMBEDDING_ROWS, tensor.shape[0])) for i in starts)
    longest = max(float(np.linalg.norm(part, axis=-1).max()) for part in parts)
    rooted = model.table["block"]["scale"] == "root of the dimension"
    return longest * math.sqrt(model.dim) if rooted else longest


def _norm_of(model: Model, weights: Weights, word: str) -> InputNorm:
    offset = weights.get(f"{word}_bias", np.zeros(model.dim))
    centred = model.block.norm == "layer"
    return InputNorm(weights[word].astype(float), offset.astype(float), None, centred)


def _embedding_norm(model: Model) -> InputNorm:
    """The norm of the embedding with the projection after it; gain 1 where there is no norm."""
    loaded = model.load("embedding", ("norm", "projection"))
    weights = {word: array.astype(float) for word, array in loaded.items()}
    projection = weights.get("projection")
    size = model.dim if projection is None else projection.shape[1]
    offset = weights.get("norm_bias", np.zeros(size))
    if projection is not None:
        offset = projection @ offset + weights.get("projection_bias", 0)
        projection = projection.T
    centred = "norm" in weights and model.block.norm == "layer"
    return InputNorm(weights.get("norm", np.ones(size)), offset, projection, centred)


def largest_singular(w: Float[np.ndarray, "m n"]) -> float:
    """The spectral norm of a large matrix, by Lanczos' method."""
    if min(w.shape) < 8 or not w.any():
        return float(np.linalg.norm(w, 2))
    start = np.full(min(w.shape), min(w.shape) ** -0.5)
    return float(svds(w, k=1, v0=start, tol=1e-6, return_singular_vectors=False)[0])


class Factor(NamedTuple):
    r"""Thin matrices A [..., m, r], with roots R [..., r, r]: $R^\top R = A^\top A$."""

    matrix: np.ndarray
    root: np.ndarray


def factor(a: Float[np.ndarray, "*s m r"]) -> Factor:
    """A factor with the root of its Gram matrix, which loses singular values below 1e-8 of the
    largest."""
    squares, directions = np.linalg.eigh(np.swapaxes(a, -1, -2) @ a)
    return Factor(a, np.sqrt(squares.clip(0))[..., None] * np.swapaxes(directions, -1, -2))


class Norms(NamedTuple):
    r"""Norms of products $AB^\top$, [...]; `columns` and `rows` are the two 2,1 norms."""

    spectral: np.ndarray
    frobenius: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    stable_rank: np.ndarray
    effective_rank: np.ndarray


def product_norms(a: Factor, b: Factor) -> Norms:
    r"""Norms of $AB^\top$ from the roots of its factors.

    The singular values are those of $R_AR_B^\top$, and column j has the length of $R_Ab_j$.
    """
    core = a.root @ np.swapaxes(b.root, -1, -2)
    squares = np.linalg.eigvalsh(core @ np.swapaxes(core, -1, -2)).clip(0)[..., ::-1]
    singular = np.sqrt(squares)
    total = squares.sum(-1)
    weights = singular / np.maximum(singular.sum(-1, keepdims=True), TINY)
    return Norms(
        spectral=singular[..., 0],
        frobenius=np.sqrt(total),
        columns=np.linalg.norm(a.root @ np.swapaxes(b.matrix, -1, -2), axis=-2).sum(-1),
        rows=np.linalg.norm(b.root @ np.swapaxes(a.matrix, -1, -2), axis=-2).sum(-1),
        stable_rank=total / np.maximum(squares[..., 0], TINY),
        effective_rank=np.exp(entr(weights).sum(-1)),
    )


def pruned_norms(a: Factor, b: Factor, kept: Sequence[float] = KEPT) -> dict[str, np.ndarray]:
    r"""Products $AB^\top$ of which the largest singular values are kept, for each share of them.

    Returns [h, kept]: the `spectral` norm; `columns` and `rows`, the two 2,1 norms; `entries`, the
    1,1 norm; `energy`, the share of the squared Frobenius norm; and `powers` [h, kept, index], as
    `log_powers`.
    """
    left, spectrum, right = np.linalg.svd(a.root @ np.swapaxes(b.root, -1, -2))
    left = _orthonormal(a) @ left * spectrum[..., None, :]
    right = _orthonormal(b) @ np.swapaxes(right, -1, -2)
    squares, rank = spectrum**2, spectrum.shape[-1]
    found: dict[str, list[np.ndarray]] = {}
    for k in (max(1, round(share * rank)) for share in kept):
        u, v, s = left[..., :k], right[..., :k], spectrum[..., :k]
        each = {
            "spectral": s[..., 0],
            "columns": np.sqrt(((v * s[..., None, :]) ** 2).sum(-1)).sum(-1),
            "rows": np.sqrt((u**2).sum(-1)).sum(-1),
            "entries": _entry_norms(u, v),
            "energy": squares[..., :k].sum(-1) / np.maximum(squares.sum(-1), TINY),
            "powers": log_powers(s),
        }
        for name, values in each.items():
            found.setdefault(name, []).append(values)
    return {name: np.stack(values, 1) for name, values in found.items()}


def _orthonormal(a: Factor) -> np.ndarray:
    """U of A = UR [..., m, r]; 0 along directions that A has not."""
    squares = (a.root**2).sum(-1)
    there = squares > 1e-16 * squares.max(-1, keepdims=True)
    inverse = np.where(there, 1 / np.where(there, squares, 1), 0)
    return a.matrix @ (np.swapaxes(a.root, -1, -2) * inverse[..., None, :])


def _entry_norms(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Sums of the absolute entries of products [h, m, k] [h, n, k], one product in memory."""
    pairs = zip(u.astype(np.float32), v.astype(np.float32), strict=True)
    return np.array([np.abs(x @ y.T).sum(dtype=np.float64) for x, y in pairs])


def rotary_offsets(model: Model, length: int) -> Int[np.ndarray, " offset"]:
    """Offsets at which rotary positions are measured: 0 and the powers of 2; 0 without them."""
    powers = range(0 if model.frequencies is None else (length - 1).bit_length())
    return np.array([0, *(2**i for i in powers)])


def measure_weights(model: Model, kept: Sequence[float] = KEPT) -> xr.Dataset:
    """The quantities of `FROM_WEIGHTS` over (layer, head), with one layer in memory at a time.

    Spectral and Frobenius norms of the query-key product are also given over `offset`, norms of the
    position-wise maps over `layer`, and those of `pruned_norms` over `kept`: of the products, with
    rotary positions of the query and the key matrix by themselves.
    """
    length = min(LENGTH, model.longest or LENGTH)
    offsets = rotary_offsets(model, length)
    # Layers that repeat the same weights behind the same norm are measured once.
    keys = [
        (model.group(layer), model.group(layer - 1) if layer else None, id(model.views[layer]))
        for layer in range(model.layers)
    ]
    distinct: dict[tuple[int, int | None, int], tuple[dict[str, np.ndarray], ...]] = {}
    before: Weights | None = None
    unnormalised = model.block.order == "pre" and "attention_norm" not in model.table["layer"]
    stream = longest_embedding(model) if unnormalised else math.inf
    with threadpool_limits(1):  # matrices are small: threads would wait for each other
        for layer, key in enumerate(keys):
            if key not in distinct:
                weights = model.layer(layer)
                for word, array in weights.items():
                    if not np.isfinite(array).all():
                        raise InputError(
                            f"{word} of layer {layer} of {model.name} has an entry that is not"
                            " finite"
                        )
                rotation = model.views[layer].rotation
                distinct[key] = _measure_layer(
                    model, weights, before, stream, rotation, offsets, kept
                )
                for word in ("attention_after", "mlp_after"):
                    stream += _longest_return(model, weights, word)
                words = ("mlp_norm", "mlp_norm_bias")
                before = {word: weights[word] for word in words if word in weights}
    attributes = {"length": length, "order": model.block.order, "dim": model.dim}
    attributes |= {"parallel": model.block.parallel, "width": model.width}
    layers, pruned = ([distinct[key][i] for key in keys] for i in range(2))
    found = stack_layers(model, layers, {"offset": offsets}, **attributes)
    found = found.assign(stack_layers(model, pruned, {"kept": list(kept), "index": list(INDICES)}))
    return describe(found.assign(head_capacity(found)))


def _measure_layer(
    model: Model,
    weights: Weights,
    before: Weights | None,
    stream: float,
    rotation: Rotation | None,
    offsets: np.ndarray,
    kept: Sequence[float],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Norms of the layer's matrices, and those of its heads' when they are pruned."""
    heads_norm, map_norm = input_norms(model, weights, before, stream)
    q, constant = heads_norm.fold(weights["query"], weights.get("query_bias"))
    k, shift = heads_norm.fold(weights["key"], weights.get("key_bias"))
    v, _ = heads_norm.fold(weights["value"])
    q, constant = (x * weights.get("query_norm", 1.0) for x in (q, constant))
    k, shift = (x * weights.get("key_norm", 1.0) for x in (k, shift))
    if rotation is not None:  # both are stretched; pairs keep their factors when they turn
        q, constant = (x * np.tile(rotation.factors**2, 2) for x in (q, constant))
    rotary, size = rotation is not None, model.heads // model.groups
    shifted = rotary or "key_norm" in weights  # else softmax does not see it
    k = (np.concatenate([k, shift[None]]) if shifted else k) / model.block.temperature
    query = factor(np.moveaxis(np.concatenate([q, constant[None]]), 1, 0))
    key, value = (
        Factor(*(np.repeat(x, size, axis=0) for x in factor(np.moveaxis(w, 1, 0)))) for w in (k, v)
    )
    rotated = [query] * len(offsets)
    if rotation is not None:
        angles = offsets[:, None] * rotation.frequencies
        rotated = [
            Factor(*(rotate_pairs(x, np.cos(angle), np.sin(angle)) for x in query))
            for angle in angles
        ]
    by_offset = zip(*(product_norms(key, each) for each in rotated), strict=True)
    qk = Norms(*(np.stack(each, -1) for each in by_offset))
    out = weights["out"].astype(float) * np.abs(weights.get("attention_after", np.ones(1))).max()
    outward = factor(np.swapaxes(out, -1, -2))
    ov = product_norms(value, outward)
    gate = np.linalg.norm(key.root @ constant[..., None], axis=(-2, -1))
    smaller_21 = np.minimum(qk.columns, qk.rows)
    bound, bound_21 = qk.spectral[..., 0], smaller_21[..., 0]
    if rotary:
        keys, queries = (np.linalg.norm(x.root, 2, axis=(-2, -1)) for x in (key, query))
        bound = keys * queries
        bound_21 = np.minimum(
            keys * np.linalg.norm(query.matrix, axis=-1).sum(-1),
            queries * np.linalg.norm(key.matrix, axis=-1).sum(-1),
        )
    parts = {"output_value": (value, outward)}
    # All layers alike, where some turn queries and keys and some do not.
    if any(view.rotation is not None for view in model.views):
        alone = Factor(*(np.broadcast_to(np.eye(model.width), key.root.shape) for _ in range(2)))
        parts |= {"key": (key, alone), "query": (query, alone)}
    else:
        parts |= {"query_key": (key, query)}
    pruned = {
        f"{part}_{name}": values
        for part, factors in parts.items()
        for name, values in pruned_norms(*factors, kept).items()
    }
    return {
        "qk_spectral": qk.spectral.max(-1),
        "qk_frobenius": qk.frobenius.max(-1),
        "qk_21": smaller_21.max(-1),
        "qk_stable_rank": qk.stable_rank[..., 0],
        "qk_effective_rank": qk.effective_rank[..., 0],
        "qk_gate": (gate / np.maximum(qk.frobenius[..., 0], TINY)) ** 2,
        "qk_bound": bound,
        "qk_bound_21": bound_21,
        "ov_spectral": ov.spectral,
        "ov_frobenius": ov.frobenius,
        "ov_21": ov.columns,
        "ov_stable_rank": ov.stable_rank,
        "ov_effective_rank": ov.effective_rank,
        "qk_spectral_at": qk.spectral,
        "qk_frobenius_at": qk.frobenius,
        "attention_radius": np.asarray(heads_norm.radius),
        "attention_skip": np.asarray(heads_norm.skip),
        **_position_wise_norms(model, weights, map_norm),
    }, pruned


def _position_wise_norms(model: Model, weights: Weights, norm: InputNorm) -> dict[str, np.ndarray]:
    """Spectral, 2,1, Frobenius and 1,1 norms of the position-wise map, its biases as the row of a
    constant."""
    found = {
        "mlp_radius": norm.radius,
        "mlp_skip": norm.skip,
        "mlp_constant": LIPSCHITZ[model.block.activation],
    }
    returned = np.abs(weights.get("mlp_after", np.ones(1))).max()
    for word in (word for word in ("up", "gate", "down") if word in weights):
        norms: list[Any] = []
        for matrix in weights[word].astype(float).reshape(-1, *weights[word].shape[-2:]):
            if word != "down":
                folded, row = norm.fold(matrix, weights.get(f"{word}_bias"))
                matrix = np.concatenate([folded, row[None]])
            columns = np.linalg.norm(matrix, axis=0)
            sizes = (columns.sum(), np.linalg.norm(columns), np.abs(matrix).sum())
            norms.append((largest_singular(matrix), *sizes))
        largest = np.max(norms, 0) * (returned if word == "down" else 1.0)
        names = (word, *(f"{word}_{norm}" for norm in ("21", "frobenius", "entries")))
        found |= dict(zip(names, largest, strict=True))
    found["hidden"] = model.hidden
    return {name: np.asarray(value, float) for name, value in found.items()}


# --- capacity ------------------------------------------------------------------------------------


def _bounded_norms(norms: xr.Dataset) -> capacity.HeadNorms:
    """Norms of all heads [layer, head]; the output-value product stands for $W_V$."""
    dim = norms.attrs["dim"]
    return capacity.HeadNorms(
        value=norms.ov_spectral.values,
        value_21=norms.ov_21.values,
        query_key=norms.qk_bound.values,
        query_key_21=norms.qk_bound_21.values,
        out=1.0,
        out_21=0.0,
        dim=dim,
        width=dim,
        out_dim=dim,
    )


def head_class(norms: xr.Dataset) -> capacity.Capacity:
    """The class of each head by itself, [layer, head], by the norms of its products."""
    radius = np.broadcast_to(norms.attention_radius.values[:, None], norms.qk_spectral.shape)
    block = capacity.head_block(_bounded_norms(norms), norms.attrs["length"])
    return capacity.class_of(block, radius)


def distance_in(bound: capacity.Capacity) -> Any:
    """The distance at which a class is covered: `DISTANCE` of its largest output."""
    return DISTANCE * np.exp(np.maximum(bound.log_reach, -600.0))


def head_capacity(norms: xr.Dataset) -> dict[str, xr.Variable]:
    """The bounds of each head by itself, [layer, head].

    Lipschitz constant, nats of its class, and the share of the query-key product in them; by norms
    alone, because a bound that counts parameters is the same for every head.
    """
    bound = head_class(norms).dimension_free()
    logs, _ = bound.log_entropies(distance_in(bound), SAMPLES)
    total = np.logaddexp.reduce(logs, -1)
    found = {
        "log10_lipschitz": np.asarray(bound.layers[0]) / math.log(10),
        "log10_nats": total / math.log(10),
        "qk_share": np.exp(logs[..., 0] - np.maximum(total, -1e300)),
    }
    return {name: xr.Variable(("layer", "head"), values) for name, values in found.items()}


def capacity_blocks(
    norms: xr.Dataset, stretch: Float[np.ndarray, "layer two"] | None = None
) -> list[capacity.Block]:
    """The blocks of the model in turn, heads and position-wise map of each layer.

    Arguments:
        norms: what `measure_weights` returned.
        stretch: how much the norms before the two blocks of each layer stretch tokens. Without it,
            norms are the paper's projections.
    """
    length, dim = norms.attrs["length"], norms.attrs["dim"]
    words = [word for word in ("up", "down", "gate") if word in norms]
    of_layers = {str(name): x.values for name, x in norms.items() if x.dims == ("layer",)}
    of_heads = _bounded_norms(norms)
    measured = ("value", "value_21", "query_key", "query_key_21")
    blocks = []
    for i in range(norms.sizes["layer"]):
        numbers = {name: float(values[i]) for name, values in of_layers.items()}
        heads = [
            of_heads._replace(**{name: getattr(of_heads, name)[i, h] for name in measured})
            for h in range(norms.sizes["head"])
        ]
        position = capacity.PositionNorms(
            **{name: numbers[name] for word in words for name in (word, f"{word}_21")},
            dim=dim,
            hidden=numbers["hidden"],
            out_dim=dim,
            lipschitz=numbers["mlp_constant"],
        )
        attention = capacity.multi_head(*(capacity.head_block(head, length) for head in heads))
        pair = {"attention": attention, "mlp": capacity.position_wise(position, length)}
        if norms.attrs["parallel"]:
            pair = {"attention": capacity.multi_head(*pair.values())}
        for j, (word, block) in enumerate(pair.items()):
            radius, skip = numbers[f"{word}_radius"], numbers[f"{word}_skip"]
            seen = (
                stretch if stretch is None else stretch[i, j] if len(pair) > 1 else stretch[i].max()
            )
            stretched = 1.0 if seen is None else float(seen)
            if norms.attrs["order"] == "pre":
                block = capacity.residual(capacity.normalised(block, radius, stretched))
            else:
                block = capacity.normalised(capacity.residual(block, skip), radius, stretched)
            blocks.append(block)
    return blocks


def model_class(
    norms: xr.Dataset, stretch: Float[np.ndarray, "layer two"] | None = None
) -> capacity.Capacity:
    """The class of the whole model by the depth recursion; its terms are those of `capacity_blocks`
    in turn, three of every head and then those of the position-wise map.

    Arguments: as for `capacity_blocks`.
    """
    model = capacity.stacked(*capacity_blocks(norms, stretch))
    grown = model(math.log(float(norms.attention_radius[0])))
    reach = math.log(math.sqrt(norms.attrs["dim"]))
    return capacity.Capacity(grown.terms, reach, grown.constant, grown.layers)


def capacity_by_layer(
    norms: xr.Dataset, stretch: Float[np.ndarray, "layer two"] | None = None
) -> xr.Dataset:
    """The bounds of the whole model by the depth recursion, over `layer`, in logarithms to base 10.

    Lipschitz constants of each layer and of all up to it, and the nats that each layer, and the
    query-key, output-value and position-wise weights in it, add to the bound of the model. The
    attributes hold the totals. The gain and stretch of the last norm are not counted.

    Arguments: as for `capacity_blocks`.
    """
    bound = model_class(norms, stretch).dimension_free()
    logs, _ = bound.log_entropies(distance_in(bound), SAMPLES)
    layers, heads = norms.sizes["layer"], norms.sizes["head"]
    steps = np.asarray(bound.layers, float).reshape(layers, -1).sum(1)
    logs = logs.reshape(layers, -1)
    of_heads = logs[:, : 3 * heads].reshape(layers, heads, 3)
    parts = {
        "nats": logs,
        "nats_query_key": of_heads[..., 0],
        "nats_output_value": of_heads[..., 1],
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
            "length": norms.attrs["length"],
        },
    )
