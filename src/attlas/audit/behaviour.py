r"""What every head does with a text: where its attention lies, and how near the three maps' models come to it.

    seen = watch(model, tokens)        # Dataset over (layer, head), and over `layer` for the tokens; `MEANING` says what each word is

**Where attention lies.** A query's attention is cut into four shares that sum to 1. `sink` is what lies on the first token and on separators
(special tokens, punctuation). Of a weight $a$ on any other token, $\min(a, u)$ is `broad`, with $u$ one over the number of tokens admitted; what is
above that but below $p$ is `positional`, where $p$ is the mean weight of this head at the same offset or at the same place in the *other* texts
(in the same one, where no other is so long), whichever is larger; and what is above both is `content`: neither spread out, nor a habit of place, nor a sink.

**Single location.** $\max_t\,[a_t - \max(p_t, u)]_+$ over tokens that are no sink, averaged over queries: 1 for a head that puts all
its weight on one token that its place does not betray; 0 for one that looks at the previous token, at the first, or at all alike.

**The first paper's model** reads once a text: at [CLS], in causal models at the last token. Its gate depends on a token through one direction k,
what it reads through one direction v. Here k is what the mean reading query asks for, v what moves the head's output most (its first principal
direction); `softmax_gate` and `erf_gate` are the shares of the variance of the head's output over texts that are then explained, by a line fitted with each
text left out in turn. At [CLS] of the first layer softmax is exact along v, since there is one query.

**The third paper's view.** Attention as regression of values on keys: how far the head's output is from `cme_attention` at the same queries,
keys on the sphere, values about their mean, over a grid of ridges and temperatures; 1 is as far as the plain mean of the values.
`sphere_distance` is the same for softmax on the sphere, so that one sees what the sphere alone costs.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int
from scipy.special import erf
from threadpoolctl import threadpool_limits

from attlas.attention import softmax
from attlas.audit.architectures import Block, Model
from attlas.audit.forward import Step, embed, trace
from attlas.audit.texts import Tokens
from attlas.errors import InputError
from attlas.kernels import RBF, Kernel, cme_attention

MEANING = {
    "single_location": "how far a query picks one token by content: 1 for one token whose place does not betray it, 0 for sinks and habits of place",
    "reader_location": "the same at the token that the model is read at: [CLS], or the last of a causal model",
    "content": "share of attention that neither place, sinks nor evenness explain",
    "positional": "share of attention that the offset or the place alone explains",
    "broad": "share of attention that is spread evenly",
    "sink": "share of attention on the first token and on separators",
    "first": "share of attention on the first token",
    "entropy": "entropy of attention, over the logarithm of the number of tokens",
    "support": "exponential of the entropy: how many tokens attention is spread over",
    "largest": "largest weight of a query, on average",
    "best_offset": "the offset from the query that gets most attention",
    "best_offset_mass": "share of attention at that offset",
    "query_free": "share of the scores' variance over tokens that does not depend on the query: 1 for a gate by one direction",
    "read_direction": "share of the variance of what is read that lies along one direction",
    "softmax_gate": "share of the variance of what is read that softmax gating by one direction and reading by one direction reproduce",
    "erf_gate": "the same for erf gating, the first paper's model",
    "cme_distance": "distance of the head's output from ridge regression of values on keys at the same queries, at the best ridge and temperature",
    "cme_ridge": "the ridge at which they are closest",
    "cme_temperature": "the temperature at which they are closest, over the head's own",
    "sphere_distance": "distance of the head's output from softmax on normalised queries and keys, at the best temperature",
    "key_spread": "coefficient of variation of the lengths of keys: 0 on a sphere",
}
"""The quantities of a head that need a text, in words."""

OF_TOKENS = {
    "token_spread": "coefficient of variation of the lengths of the tokens that the heads read",
    "token_cosine": "mean cosine of two different tokens of a text: 0 where they are orthogonal",
    "token_overlap": "root mean square of that cosine, over one over the root of the dimension: 1 for independent directions",
    "excess_kurtosis": "median over coordinates of the tokens' excess kurtosis: 0 for Gaussian tokens",
    "largest_coordinate": "share of the tokens' mean square that lies in one coordinate: one over the dimension where all are alike",
    "attention_stretch": "largest factor by which the norm before the heads stretched a token",
    "mlp_stretch": "largest factor by which the norm before the position-wise map stretched a token",
}
"""The quantities of the tokens of a layer, in words."""

SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>"}
TINY = 1e-30
RIDGES = (1e-4, 1e-2, 1e-1, 1.0, 10.0, 100.0)
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
GATES = (0.1, 0.3, 1.0, 3.0)
"""Grids: ridges, temperatures over the head's own, and sharpness of the erf gate over the spread of its scores."""
FEWEST = 4
"""A query of a causal model counts from so many tokens on."""


class Roles(NamedTuple):
    """Which tokens are what, [b, n]: attended to as `content`, asking as `query`; `reader` [b] is where the model is read."""

    content: Bool[np.ndarray, "b n"]
    query: Bool[np.ndarray, "b n"]
    reader: Int[np.ndarray, " b"]


def roles(model: Model, tokens: Tokens) -> Roles:
    """Content are tokens that are not the first and no separators: special tokens, and pieces without a letter or a digit."""
    content = np.zeros_like(tokens.mask)
    for i, pieces in enumerate(tokens.pieces):
        for j, piece in enumerate(pieces[: content.shape[1]]):
            special = piece in SPECIAL or piece.startswith("<|")
            content[i, j] = j > 0 and not special and any(letter.isalnum() for letter in piece)
    query = content & (tokens.positions >= FEWEST - 1) if model.block.causal else content
    if not query.any():
        raise InputError(
            f"the text has no token to ask from: there must be one beyond the first {FEWEST} of a text, of letters or digits"
        )
    reader = tokens.mask.sum(1) - 1 if model.block.causal else np.zeros(len(tokens.mask), int)
    return Roles(content, query, reader)


def watch(
    model: Model, tokens: Tokens, also: Callable[[Step], None] = lambda step: None
) -> xr.Dataset:
    """The quantities of `MEANING` over (layer, head) and those of `OF_TOKENS` over `layer`, for all texts together; `also` sees every step."""
    batch, who, rows = embed(model, tokens), roles(model, tokens), []
    with threadpool_limits(
        1
    ):  # NumPy's matrices here are small: its threads would wait for each other
        for step in trace(model, [batch]):
            if not np.isfinite(step.after).all():
                raise InputError(
                    f"what leaves layer {step.layer} of {model.name} on this text is not finite"
                )
            rows.append(measure(model, step, tokens.mask, who))
            also(step)
    return gathered(model, rows)


def gathered(model: Model, rows: list[dict[str, np.ndarray]]) -> xr.Dataset:
    found = {name: np.stack([row[name] for row in rows]).astype(float) for name in rows[0]}
    if model.block.order == "post":  # the norm before a layer's heads belongs to the layer before
        stretch = found["attention_stretch"], found["mlp_stretch"]
        found["attention_stretch"] = np.concatenate([[1.0], stretch[1][:-1]])
        found["mlp_stretch"] = stretch[0]
    axes = ("layer", "head")
    seen = xr.Dataset(
        {name: (axes[: values.ndim], values) for name, values in found.items()},
        {"layer": np.arange(model.layers), "head": np.arange(model.heads)},
        {"model": model.name},
    )
    for name, words in (MEANING | OF_TOKENS).items():
        seen[name].attrs["words"] = words
    return seen


def measure(
    model: Model, step: Step, mask: Bool[np.ndarray, "b n"], who: Roles
) -> dict[str, np.ndarray]:
    """What one layer did: arrays over heads, and numbers for its tokens. Most of it is small enough for NumPy, which need not compile."""
    block = model.block
    size = block.heads // block.groups
    queries, attention, outputs = (
        np.asarray(x) for x in (step.queries, step.attention, step.outputs)
    )
    keys, values = (np.repeat(np.asarray(x), size, axis=1) for x in (step.keys, step.values))
    admitted = np.broadcast_to(mask[:, None, :], (*mask.shape, mask.shape[1]))
    if block.causal:
        admitted = admitted & np.tri(mask.shape[1], dtype=bool)
    asked = admitted & who.query[:, :, None]
    looked = []
    for head in range(block.heads):
        scores = queries[:, head] @ np.swapaxes(keys[:, head], -1, -2) / block.temperature
        looked.append(
            _shares(attention[:, head], admitted, who) | {"query_free": _query_free(scores, asked)}
        )
    lengths = np.linalg.norm(keys, axis=-1)
    spread = [_variation(lengths[:, head][mask]) for head in range(block.heads)]
    read = _read(
        _at(queries, who),
        _at(outputs, who),
        keys / block.temperature,
        values,
        _at(admitted[:, None], who),
        np.asarray(step.weights["out"]),
    )
    # Last, when the layer has come out: decompositions under way at the same time can wait for each other's threads for ever.
    some = max(
        8, 32 * 32**2 // mask.shape[1] ** 2
    )  # of long texts a few, as the cost grows with the cube of the length
    regressed = _regressed(
        block,
        *(
            jnp.asarray(x[:some])
            for x in (step.queries, step.keys, step.values, step.outputs, mask, *who[1:])
        ),
    )
    return {
        **{name: np.array([head[name] for head in looked]) for name in looked[0]},
        **read,
        "key_spread": np.array(spread),
        **{name: np.asarray(values) for name, values in regressed.items()},
        **_tokens(step, mask),
    }


def _at(x: np.ndarray, who: Roles) -> np.ndarray:
    """The rows of [b, h, q, ...] that belong to each text's reader, [b, h, ...]."""
    return np.take_along_axis(x, who.reader[:, None, None, None], 2)[:, :, 0]


def _mean(
    x: np.ndarray, where: np.ndarray, axis: int | tuple[int, ...] | None = None
) -> np.ndarray:
    """The mean of `x` where `where` admits it; 0 where it admits nothing."""
    where = np.broadcast_to(where, x.shape)
    return np.where(where, x, 0).sum(axis) / np.maximum(where.sum(axis), 1)


def _variation(lengths: np.ndarray) -> float:
    """Coefficient of variation."""
    return float(lengths.std() / max(lengths.mean(), TINY))


# --- where attention lies ------------------------------------------------------------------------------------------


def _shares(
    attention: Float[np.ndarray, "b q k"], admitted: Bool[np.ndarray, "b q k"], who: Roles
) -> dict[str, float]:
    """One head's."""
    entropy = -(attention * np.log(np.maximum(attention, TINY))).sum(-1)
    even = 1 / np.maximum(admitted.sum(-1), 1)
    target = admitted & who.content[:, None, :]
    weights = np.where(target, attention, 0)
    by_offset, habit = _habits(weights, target & who.query[:, :, None])
    broad = np.minimum(weights, even[..., None])
    above = np.maximum(weights - np.maximum(habit, even[..., None]), 0)
    texts = np.arange(len(weights))
    reading, seen = weights[texts, who.reader], target[texts, who.reader]
    placed = np.maximum(_left_out(reading, seen), even[texts, who.reader][:, None])
    per_query = {
        "single_location": above.max(-1),
        "content": above.sum(-1),
        "positional": (weights - above - broad).sum(-1),
        "broad": broad.sum(-1),
        "sink": 1 - weights.sum(-1),
        "first": attention[..., 0],
        "entropy": entropy / np.log(np.maximum(admitted.sum(-1), 2)),
        "support": np.exp(entropy),
        "largest": attention.max(-1),
    }
    best = int(by_offset.argmax())
    return {name: float(values[who.query].mean()) for name, values in per_query.items()} | {
        "reader_location": float(np.maximum(reading - placed, 0).max(-1).mean()),
        "best_offset": best - (attention.shape[-1] - 1),
        "best_offset_mass": float(by_offset[best]),
    }


def _sheared(x: np.ndarray) -> np.ndarray:
    """[..., q, k] with k - q + n - 1 in place of k, [..., q, 2n - 1], rows in reverse."""
    n = x.shape[-1]
    wide = np.concatenate([x[..., ::-1, :], np.zeros_like(x)], -1)
    return wide.reshape(*x.shape[:-2], 2 * n * n)[..., : n * (2 * n - 1)].reshape(
        *x.shape[:-2], n, 2 * n - 1
    )


def _habits(weights: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of a query's attention at each offset [2n - 1], and for each pair of tokens the mean weight at their offset or at the key's place in
    the other texts, as `_left_out` has it, whichever is larger, [b, q, k]."""
    n = weights.shape[-1]
    used = np.where(pairs, weights, 0)
    mass, count = _sheared(used).sum(-2), _sheared(pairs).sum(-2)
    offset = np.arange(n)[None, :] - np.arange(n)[:, None] + n - 1
    at_offset = _left_out(mass, count)[:, offset]
    at_place = _left_out(used.sum(1), pairs.sum(1))[:, None, :]
    return mass.sum(0) / max(pairs.any(-1).sum(), 1), np.maximum(at_offset, at_place)


def _left_out(mass: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Means over all texts but one, [b, ...]; where only that one has any, as in the tail of the longest text, its own: of one text alone, place and
    content cannot be told apart."""
    others = count.sum(0) - count
    return np.where(
        others > 0, (mass.sum(0) - mass) / np.maximum(others, 1), mass / np.maximum(count, 1)
    )


def _query_free(scores: Float[np.ndarray, "b q k"], where: Bool[np.ndarray, "b q k"]) -> float:
    """Scores about each query's mean, and the share of their variance that is the token's alone, text by text."""
    centred = np.where(where, scores - _mean(scores, where, -1)[..., None], 0)
    alone = _mean(centred, where, -2)[:, None, :]
    return float(np.where(where, alone**2, 0).sum() / max((centred**2).sum(), TINY))


# --- the first paper's model ---------------------------------------------------------------------------------------


def _read(
    query: Float[np.ndarray, "b h r"],
    output: Float[np.ndarray, "b h r"],
    keys: Float[np.ndarray, "b h n r"],
    values: Float[np.ndarray, "b h n r"],
    admitted: Bool[np.ndarray, "b 1 n"],
    out: Float[np.ndarray, "h r d"],
) -> dict[str, np.ndarray]:
    """How well one direction to gate by and one to read by reproduce what is read."""
    # In the residual stream: variance is measured behind `out`, and the direction that moves most is a functional of the values.
    square, turn = np.linalg.eigh(out @ np.swapaxes(out, -1, -2))
    behind = turn * np.sqrt(square.clip(0))[:, None, :]
    spread = np.einsum("bhr,hrs->hbs", output - output.mean(0), behind)
    variances, directions = np.linalg.eigh(np.swapaxes(spread, -1, -2) @ spread)
    functional = np.einsum("hrs,hs->hr", behind, directions[..., -1])
    share = variances[:, -1] / np.maximum(variances.clip(0).sum(-1), TINY)
    target = np.einsum("bhr,hr->bh", output, functional)
    read = np.einsum("bhnr,hr->bhn", values, functional)
    scores = np.einsum("bhnr,hr->bhn", keys, query.mean(0))
    weights = np.where(
        admitted, np.exp(scores - np.where(admitted, scores, -np.inf).max(-1, keepdims=True)), 0
    )
    by_softmax = (weights / weights.sum(-1, keepdims=True) * read).sum(-1)
    centred = scores - _mean(scores, admitted, (0, 2))[:, None]
    sharpness = 1 / np.sqrt(np.maximum(_mean(centred**2, admitted, (0, 2)), TINY))[:, None]
    by_erf = [np.where(admitted, erf(c * sharpness * centred) * read, 0).sum(-1) for c in GATES]
    answers = {
        "read_direction": share,
        "softmax_gate": share * _explained(target, by_softmax),
        "erf_gate": share * np.max([_explained(target, guess) for guess in by_erf], 0),
    }
    known = (variances[:, -1] > 0) & (len(target) > 3)
    return {name: np.where(known, value, np.nan) for name, value in answers.items()}


def _explained(
    target: Float[np.ndarray, "b h"], guess: Float[np.ndarray, "b h"]
) -> Float[np.ndarray, " h"]:
    """Share of the variance of `target` that a line through `guess` predicts for a text left out; 0 where the mean is better."""
    y, x = target - target.mean(0), guess - guess.mean(0)
    square = np.maximum((x**2).sum(0), TINY)
    leverage = 1 / len(y) + x**2 / square
    miss = (y - x * (x * y).sum(0) / square) / np.maximum(1 - leverage, 1e-6)
    plain = y / max(1 - 1 / len(y), 1e-6)
    return np.maximum(1 - (miss**2).sum(0) / np.maximum((plain**2).sum(0), TINY), 0)


# --- the third paper's view ----------------------------------------------------------------------------------------


class _Lifted(eqx.Module):
    """A kernel and a little constant, lest numbers become so small that processors slow down."""

    kernel: Kernel

    def __call__(self, x: Array, y: Array) -> Array:
        return self.kernel(x, y) + 1e-6


@partial(jax.jit, static_argnums=0)
def _regressed(
    block: Block,
    queries: Array,
    keys: Array,
    values: Array,
    outputs: Array,
    mask: Array,
    asked: Array,
    reader: Array,
) -> dict[str, Array]:
    """Ridge regression of values on keys at the head's own queries: all of them, or in causal models at each text's last token, which
    alone sees the whole text."""
    b, r, groups, size = len(mask), block.width, block.groups, block.heads // block.groups
    if block.causal:
        queries, outputs = (
            jnp.take_along_axis(x, reader[:, None, None, None], 2) for x in (queries, outputs)
        )
        asked = jnp.ones((b, 1), bool)
    count = queries.shape[2]
    lengths = [jnp.sqrt((x**2).sum(-1)) for x in (queries, keys)]
    asks = (queries / jnp.maximum(lengths[0], TINY)[..., None]).reshape(b, groups, size * count, r)
    keys = keys / jnp.maximum(lengths[1], TINY)[..., None]

    def typical(length: Array, where: Array) -> Array:
        """The mean length in each group."""
        length, where = (
            length.reshape(b, groups, -1),
            jnp.tile(where, (1, length.size // where.size // groups))[:, None],
        )
        return jnp.where(where, length, 0).sum((0, 2)) / jnp.maximum(where.sum(), 1)

    own = block.temperature / (
        typical(lengths[0], asked) * typical(lengths[1], mask)
    )  # on the sphere, scores of the usual size
    here = mask[:, None, :]
    mean = (
        jnp.where(here[..., None], values, 0).sum(2, keepdims=True) / here.sum(-1)[..., None, None]
    )
    values = values - mean
    wanted = outputs.reshape(b, groups, size * count, r) - mean

    def missed(guess: Array) -> Array:
        """Squared distance of each head, [h]."""
        square = ((guess - wanted) ** 2).sum(-1).reshape(b, block.heads, count)
        return jnp.where(asked[:, None], square, 0).sum((0, 2))

    def regressed(setting: Array) -> Array:
        kernel = _Lifted(RBF(jnp.broadcast_to(setting[0] * own, (b, groups))))
        return missed(cme_attention(asks, keys, values, ridge=setting[1], kernel=kernel, mask=here))

    def smoothed(setting: Array) -> Array:
        scores = asks @ jnp.swapaxes(keys, -1, -2) / (setting * own)[:, None, None]
        return missed(softmax(scores, here[:, :, None, :]) @ values)

    settings = jnp.asarray([(t, ridge) for t in TEMPERATURES for ridge in RIDGES])
    total = jnp.maximum(missed(jnp.zeros_like(wanted)), TINY)
    far = jax.lax.map(regressed, settings)
    best = far.argmin(0)
    plain = jax.lax.map(smoothed, jnp.asarray(TEMPERATURES)).min(0)
    return {
        "cme_distance": jnp.sqrt(far.min(0) / total),
        "cme_temperature": settings[best, 0],
        "cme_ridge": settings[best, 1],
        "sphere_distance": jnp.sqrt(plain / total),
    }


# --- tokens --------------------------------------------------------------------------------------------------------


def _tokens(step: Step, mask: Bool[np.ndarray, "b n"]) -> dict[str, np.ndarray]:
    """The tokens that the heads read: their lengths, angles and coordinates; and what the norms did to them."""
    x = np.asarray(step.inputs)
    here = x[mask]  # [tokens, dim]
    length = np.linalg.norm(x, axis=-1)
    unit = x / np.maximum(length, TINY)[..., None]
    cosine = unit @ np.swapaxes(unit, -1, -2)
    pairs = mask[:, :, None] & mask[:, None, :] & ~np.eye(mask.shape[1], dtype=bool)
    cosines = cosine[pairs] if pairs.any() else np.zeros(1)
    squares = (here - here.mean(0)) ** 2
    power = (here**2).mean(0)
    found = {
        "token_spread": _variation(length[mask]),
        "token_cosine": cosines.mean(),
        "token_overlap": np.sqrt((cosines**2).mean() * x.shape[-1]),
        "excess_kurtosis": np.median((squares**2).mean(0) / np.maximum(squares.mean(0), TINY) ** 2)
        - 3,
        "largest_coordinate": power.max() / max(power.sum(), TINY),
    }
    stretch = 1 / np.asarray(step.scales)[mask].min(0)
    found |= {"attention_stretch": stretch[0], "mlp_stretch": stretch[1]}
    return {name: np.asarray(value) for name, value in found.items()}


def kinds(seen: xr.Dataset) -> xr.DataArray:
    """What each head mostly does: the largest of its four shares if it is above a half, else "mixed"."""
    words = np.array(["sink", "positional", "content", "broad"])
    shares = np.stack([seen[word].values for word in words], -1)
    kind = np.where(shares.max(-1) > 0.5, words[shares.argmax(-1)], "mixed")
    return xr.DataArray(kind, dims=("layer", "head"))
