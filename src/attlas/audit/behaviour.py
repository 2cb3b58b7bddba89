r"""What every head does with a text: where its attention lies, and how near the three maps' models come to it.

    seen = watch(model, tokens)        # Dataset over (layer, head), and over `layer` for the tokens; `MEANING` says what each word is

**Where attention lies.** A query's attention is cut into four shares that sum to 1. `sink` is what lies on the first token and on separators
(special tokens, punctuation). Of a weight $a$ on any other token, $\min(a, u)$ is `broad`, with $u$ one over the number of tokens admitted; what is
above that but below $p$ is `positional`, where $p$ is the mean weight of this head at the same offset or at the same place in the *other* texts,
whichever is larger; and what is above both is `content`: neither spread out, nor a habit of place, nor a sink.

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

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.scipy.special import erf
from jaxtyping import Array, Bool, Int

from attlas.attention import softmax
from attlas.audit.architectures import Block, Model
from attlas.audit.forward import Step, embed, trace
from attlas.audit.texts import Tokens
from attlas.errors import InputError
from attlas.kernels import RBF, cme_attention

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
    "offset": "the offset from the query that gets most attention",
    "offset_mass": "share of attention at that offset",
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
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
GATES = (0.1, 0.3, 1.0, 3.0)
"""Grids: ridges, temperatures over the head's own, and sharpness of the erf gate over the spread of its scores."""
FEWEST = 4
"""A query of a causal model counts from so many tokens on."""


class Roles(NamedTuple):
    """Which tokens are what, [b, n]: attended to as `content`, asking as `query`; `reader` [b] is where the model is read."""

    content: Bool[Array, "b n"]
    query: Bool[Array, "b n"]
    reader: Int[Array, " b"]


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
    return Roles(jnp.asarray(content), jnp.asarray(query), jnp.asarray(reader))


def watch(model: Model, tokens: Tokens) -> xr.Dataset:
    """The quantities of `MEANING` over (layer, head) and those of `OF_TOKENS` over `layer`, for all texts together."""
    batch, who = embed(model, tokens), roles(model, tokens)
    rows = [measure(model, step, tokens.mask, who) for step in trace(model, [batch])]
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


def measure(model: Model, step: Step, mask: Bool[np.ndarray, "b n"], who: Roles) -> dict[str, np.ndarray]:
    """What one layer did: arrays over heads, and numbers for its tokens."""
    step = step._replace(layer=0, batch=0)
    found: dict[str, Array] = {}
    with jax.default_matmul_precision("highest"):
        for part in (_looked, _read, _regressed):
            # One after the other, on arrays that are there: decompositions that run at the same time can wait for each other's
            # threads for ever, where there are few.
            jax.block_until_ready((step, found))
            found |= part(model.block, step, jnp.asarray(mask), who)
    return {name: np.asarray(values) for name, values in found.items()}


def _admitted(block: Block, mask: Array) -> Array:
    """Which token may attend to which, [b, q, k]."""
    admitted = jnp.broadcast_to(mask[:, None, :], (*mask.shape, mask.shape[1]))
    return admitted & jnp.tri(mask.shape[1], dtype=bool) if block.causal else admitted


@partial(jax.jit, static_argnums=0)
def _looked(block: Block, step: Step, mask: Array, who: Roles) -> dict[str, Array]:
    keys = jnp.repeat(step.keys, block.heads // block.groups, axis=1)
    scores = step.queries @ jnp.swapaxes(keys, -1, -2) / block.temperature
    admitted = _admitted(block, mask)
    return {
        **_shares(step.attention, admitted, who),
        "query_free": _query_free(scores, admitted & who.query[:, :, None]),
        "key_spread": _variation(jnp.linalg.norm(keys, axis=-1), mask[:, None]),
        **_tokens(step, mask),
    }


def _mean(x: Array, where: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """The mean of `x` where `where` admits it; 0 where it admits nothing."""
    where = jnp.broadcast_to(where, x.shape)
    return jnp.where(where, x, 0).sum(axis) / jnp.maximum(where.sum(axis), 1)


def _variation(lengths: Array, where: Array) -> Array:
    """Coefficient of variation over texts and tokens of [b, h, n]."""
    mean = _mean(lengths, where, (0, 2))
    spread = jnp.sqrt(_mean((lengths - mean[None, :, None]) ** 2, where, (0, 2)))
    return spread / jnp.maximum(mean, 1e-30)


# --- where attention lies ------------------------------------------------------------------------------------------


def _shares(attention: Array, admitted: Array, who: Roles) -> dict[str, Array]:
    asking = who.query[:, None]
    per_query = partial(_mean, where=asking, axis=(0, 2))
    entropy = -jnp.where(attention > 0, attention * jnp.log(jnp.maximum(attention, 1e-37)), 0).sum(-1)
    count = jnp.maximum(admitted.sum(-1), 1)[:, None]
    target = (admitted & who.content[:, None, :])[:, None]
    weights = jnp.where(target, attention, 0)
    pairs = target[:, 0] & who.query[:, :, None]
    by_offset, habit = _habits(weights, pairs)
    even = 1 / count[..., None]
    broad = jnp.minimum(weights, even)
    above = jnp.maximum(weights - jnp.maximum(habit, even), 0)
    reading = _at(weights, who.reader)
    placed = jnp.maximum(_others(reading, _at(target, who.reader), 0), _at(even, who.reader))
    best = jnp.argmax(by_offset, -1)
    return {
        "single_location": per_query(above.max(-1)),
        "reader_location": jnp.maximum(reading - placed, 0).max(-1).mean(0),
        "content": per_query(above.sum(-1)),
        "positional": per_query((weights - above - broad).sum(-1)),
        "broad": per_query(broad.sum(-1)),
        "sink": per_query(1 - weights.sum(-1)),
        "first": per_query(attention[..., 0]),
        "entropy": per_query(entropy / jnp.log(jnp.maximum(count, 2))),
        "support": per_query(jnp.exp(entropy)),
        "largest": per_query(attention.max(-1)),
        "offset": best - (attention.shape[-1] - 1),
        "offset_mass": jnp.take_along_axis(by_offset, best[:, None], -1)[:, 0],
    }


def _at(x: Array, reader: Array) -> Array:
    """The rows of [b, h, q, k] that belong to each text's reader, [b, h, k]."""
    return jnp.take_along_axis(x, reader[:, None, None, None], 2)[:, :, 0]


def _others(x: Array, where: Array, axis: int) -> Array:
    """The mean of `x` over the other entries along `axis` that `where` admits; over this one too where there are no others."""
    where = jnp.broadcast_to(where, x.shape)
    kept = jnp.where(where, x, 0)
    alone = x.shape[axis] == 1
    total, count = kept.sum(axis, keepdims=True), where.sum(axis, keepdims=True)
    return total / jnp.maximum(count, 1) if alone else (total - kept) / jnp.maximum(count - where, 1)


def _sheared(x: Array) -> Array:
    """[..., q, k] with k - q + n - 1 in place of k, [..., q, 2n - 1], rows in reverse."""
    n = x.shape[-1]
    wide = jnp.pad(x[..., ::-1, :], [(0, 0)] * (x.ndim - 1) + [(0, n)])
    return wide.reshape(*x.shape[:-2], 2 * n * n)[..., : n * (2 * n - 1)].reshape(*x.shape[:-2], n, 2 * n - 1)


def _habits(weights: Array, pairs: Array) -> tuple[Array, Array]:
    """The mean weight at each offset [h, 2n - 1] (of all a query gives), and for each pair of tokens the mean weight at their offset or at the
    key's place in the other texts, whichever is larger, [b, h, q, k]."""
    n = weights.shape[-1]
    used = jnp.where(pairs[:, None], weights, 0)
    mass, count = _sheared(used).sum(-2), _sheared(pairs[:, None].astype(weights.dtype)).sum(-2)
    offset = jnp.arange(n)[None, :] - jnp.arange(n)[:, None] + n - 1
    at_offset = _left_out(mass, count)[..., offset]
    at_place = _left_out(used.sum(-2), pairs.sum(1)[:, None])[:, :, None, :]
    asked = jnp.maximum(pairs.any(-1).sum(), 1)
    return mass.sum(0) / asked, jnp.maximum(at_offset, at_place)


def _left_out(mass: Array, count: Array) -> Array:
    """Means along the last axis over all texts but one, [b, ...]; of a single text, its own."""
    if len(mass) == 1:
        return mass / jnp.maximum(count, 1)
    return (mass.sum(0) - mass) / jnp.maximum(count.sum(0) - count, 1)


def _query_free(scores: Array, where: Array) -> Array:
    """Scores about each query's mean, and the share of their variance that is the token's alone, text by text."""
    where = where[:, None]
    centred = jnp.where(where, scores - _mean(scores, where, -1)[..., None], 0)
    alone = _mean(centred, where, -2)[..., None, :]
    return jnp.where(where, alone**2, 0).sum((0, 2, 3)) / jnp.maximum((centred**2).sum((0, 2, 3)), 1e-30)


# --- the first paper's model ---------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def _read(block: Block, step: Step, mask: Array, who: Roles) -> dict[str, Array]:
    """How well one direction to gate by and one to read by reproduce what is read."""
    keys, values = (jnp.repeat(x, block.heads // block.groups, axis=1) for x in (step.keys, step.values))
    rows = jnp.take_along_axis(_admitted(block, mask), who.reader[:, None, None], 1)[:, 0][:, None]  # [b, 1, n]
    query, output = _at(step.queries, who.reader), _at(step.outputs, who.reader)  # [b, h, r]
    out = jnp.einsum("hrd,hsd->hrs", step.weights["out"], step.weights["out"])
    centred = output - output.mean(0)
    # In the residual stream: variance is measured behind `out`, and the direction that moves most is a functional of the values.
    square, turn = jnp.linalg.eigh(out)
    behind = turn * jnp.sqrt(jnp.maximum(square, 0))[:, None, :]
    spread = jnp.einsum("bhr,hrs->bhs", centred, behind)
    variances, directions = jnp.linalg.eigh(jnp.einsum("bhr,bhs->hrs", spread, spread))
    functional = jnp.einsum("hrs,hs->hr", behind, directions[..., -1])
    share = variances[:, -1] / jnp.maximum(variances.clip(0).sum(-1), 1e-30)
    target = jnp.einsum("bhr,hr->bh", output, functional)
    read = jnp.einsum("bhnr,hr->bhn", values, functional)
    scores = jnp.einsum("bhnr,hr->bhn", keys, query.mean(0)) / block.temperature
    by_softmax = (softmax(scores, rows) * read).sum(-1)
    mean = _mean(scores, rows, (0, 2))[None, :, None]
    sharp = jnp.sqrt(_mean((scores - mean) ** 2, rows, (0, 2)))[None, :, None]
    gates = [erf(c * (scores - mean) / jnp.maximum(sharp, 1e-30)) for c in GATES]
    by_erf = jnp.stack([jnp.where(rows, gate * read, 0).sum(-1) for gate in gates])
    explained = jax.vmap(_explained, (None, 0))(target, by_erf).max(0)
    known = (variances[:, -1] > 0) & (len(target) > 3)
    answers = {
        "read_direction": share,
        "softmax_gate": share * _explained(target, by_softmax),
        "erf_gate": share * explained,
    }
    return {name: jnp.where(known, value, jnp.nan) for name, value in answers.items()}


def _explained(target: Array, guess: Array) -> Array:
    """Share of the variance of `target` [b, h] that a line through `guess` predicts for a text left out; 0 where the mean is better."""
    y, x = target - target.mean(0), guess - guess.mean(0)
    square = jnp.maximum((x**2).sum(0), 1e-30)
    leverage = 1 / len(y) + x**2 / square
    miss = (y - x * (x * y).sum(0) / square) / jnp.maximum(1 - leverage, 1e-6)
    plain = y / (1 - 1 / len(y))
    return jnp.maximum(1 - (miss**2).sum(0) / jnp.maximum((plain**2).sum(0), 1e-30), 0)


# --- the third paper's view ----------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def _regressed(block: Block, step: Step, mask: Array, who: Roles) -> dict[str, Array]:
    """Ridge regression of values on keys at the head's own queries: all of them, or in causal models at each text's last token, which
    alone sees the whole text."""
    b, r = len(mask), block.width
    size = block.heads // block.groups
    queries, outputs = step.queries, step.outputs
    asked = who.query
    if block.causal:
        queries, outputs = (_at(x, who.reader)[:, :, None] for x in (queries, outputs))
        asked = jnp.ones((b, 1), bool)
    count = queries.shape[2]
    lengths = [jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, step.keys)]
    asks = (queries / jnp.maximum(lengths[0], 1e-30)).reshape(b, block.groups, size * count, r)
    keys = step.keys / jnp.maximum(lengths[1], 1e-30)
    own = block.temperature / (
        _mean(lengths[0][..., 0].reshape(b, block.groups, -1), jnp.tile(asked, (1, size))[:, None], (0, 2))
        * _mean(lengths[1][..., 0], mask[:, None], (0, 2))
    )  # [groups]: on the sphere, scores of the usual size
    here = mask[:, None, :]
    mean = _mean(step.values, here[..., None], 2)[:, :, None]
    values = step.values - mean
    wanted = outputs.reshape(b, block.groups, size * count, r) - mean

    def missed(guess: Array) -> Array:
        """Squared distance of each head, [h]."""
        square = ((guess - wanted) ** 2).sum(-1).reshape(b, block.heads, count)
        return jnp.where(asked[:, None], square, 0).sum((0, 2))

    def regressed(setting: Array) -> Array:
        kernel = RBF(jnp.broadcast_to(setting[0] * own, (b, block.groups)))
        return missed(cme_attention(asks, keys, values, ridge=setting[1], kernel=kernel, mask=here))

    def smoothed(setting: Array) -> Array:
        scores = asks @ jnp.swapaxes(keys, -1, -2) / (setting * own)[:, None, None]
        return missed(softmax(scores, here[:, :, None, :]) @ values)

    settings = jnp.asarray([(t, ridge) for t in TEMPERATURES for ridge in RIDGES])
    total = jnp.maximum(missed(jnp.zeros_like(wanted)), 1e-30)
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


def _tokens(step: Step, mask: Array) -> dict[str, Array]:
    """The tokens that the heads read: their lengths, angles and coordinates; and what the norms did to them."""
    x = step.inputs
    length = jnp.linalg.norm(x, axis=-1)
    unit = x / jnp.maximum(length[..., None], 1e-30)
    cosine = unit @ jnp.swapaxes(unit, -1, -2)
    pairs = mask[:, :, None] & mask[:, None, :] & ~jnp.eye(mask.shape[1], dtype=bool)
    here = mask[..., None]
    middle = _mean(x, here, (0, 1))
    square = _mean((x - middle) ** 2, here, (0, 1))
    fourth = _mean((x - middle) ** 4, here, (0, 1)) / jnp.maximum(square, 1e-30) ** 2
    power = _mean(x**2, here, (0, 1))
    stretch = 1 / jnp.where(here, step.scales, jnp.inf).min((0, 1))
    return {
        "token_spread": _variation(length[:, None], mask[:, None])[0],
        "token_cosine": _mean(cosine, pairs),
        "token_overlap": jnp.sqrt(_mean(cosine**2, pairs) * x.shape[-1]),
        "excess_kurtosis": jnp.median(fourth) - 3,
        "largest_coordinate": power.max() / power.sum(),
        "attention_stretch": stretch[0],
        "mlp_stretch": stretch[1],
    }


def kinds(seen: xr.Dataset) -> xr.DataArray:
    """What each head mostly does: the largest of its four shares if it is above a half, else "mixed"."""
    words = np.array(["sink", "positional", "content", "broad"])
    shares = np.stack([seen[word].values for word in words], -1)
    kind = np.where(shares.max(-1) > 0.5, words[shares.argmax(-1)], "mixed")
    return xr.DataArray(kind, dims=("layer", "head"))
