r"""What every head does with a text: where it attends, and how close the maps' models come to it.

    seen = measure_behaviour(model, tokens)      # Dataset over (layer, head), and over `layer`

**Where attention lies.** The attention of a query is split into four shares that sum to 1. `sink`
is the weight on the first token and on separators (special tokens, punctuation). Of a weight $a$ on
any other token, $\min(a, u)$ is `broad`, with $u$ one over the number of tokens admitted. What is
above $u$ but below $p$ is `positional`, where $p$ is the mean weight of this head at the same
offset or at the same position in the *other* texts (in this text, if no other is long enough),
whichever is larger. What is above both is `content`.

**Single location.** $\max_t\,[a_t - \max(p_t, u)]_+$ over tokens that are no sink, averaged over
queries: 1 for a head that puts all its weight on one token whose position varies between texts, 0
for one that attends to the previous token, to the first, or to all alike.

**The model of Marion et al. 2025** reads each text once: at [CLS], in causal models at the last
token. Its gate depends on a token through one direction k, its output through one direction v. Here
k is given by the mean query of the reader, v is the first principal direction of the head's output.
`softmax_gate` and `erf_gate` are the shares of the variance of the head's output over texts that
are explained, by a line fitted with each text left out in turn. At [CLS] of the first layer softmax
is exact along v, since all texts have the same query.

**The view of Zhang et al. 2022.** Attention as regression of values on keys: the distance of the
head's output from `cme_attention` at the same queries, with keys on the sphere and values centred,
at the best of a grid of ridges and temperatures; the plain mean of the values is at distance 1.
`sphere_distance` is the same for softmax on the sphere.
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
from scipy import special
from threadpoolctl import threadpool_limits

from attlas.attention import softmax
from attlas.audit.architectures import Block, Model
from attlas.audit.forward import Step, admitted_in, embed, trace
from attlas.audit.quantities import describe, stack_layers
from attlas.audit.texts import Tokens
from attlas.errors import InputError
from attlas.kernels import RBF, Kernel, cme_attention

SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>"}
KINDS = ("sink", "positional", "content", "broad")
TINY = 1e-30
RIDGES = (1e-4, 1e-2, 1e-1, 1.0, 10.0, 100.0)
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
"""Relative to the head's own temperature."""
SHARPNESS = (0.1, 0.3, 1.0, 3.0)
"""Of the erf gate, relative to the standard deviation of its scores."""
MIN_CONTEXT = 4
"""A query of a causal model counts if it sees at least so many tokens."""
REGRESSED_TEXTS, REGRESSED_PAIRS = 8, 32 * 32**2
"""Regression is compared on so many texts at least, on more while they have so few pairs of tokens;
its cost grows with the cube of the length."""


class Roles(NamedTuple):
    """Which tokens count as attended content and as queries; `reader` is where a text is read."""

    content: Bool[np.ndarray, "b n"]
    query: Bool[np.ndarray, "b n"]
    reader: Int[np.ndarray, " b"]


def token_roles(model: Model, tokens: Tokens) -> Roles:
    """The roles of tokens: content are all but the first token and separators.

    Separators are special tokens, and pieces without a letter or a digit. The reader is [CLS], in
    causal models the last token.
    """
    content = np.zeros_like(tokens.mask)
    for i, pieces in enumerate(tokens.pieces):
        for j, piece in enumerate(pieces[: content.shape[1]]):
            special = piece in SPECIAL or piece.startswith("<|")
            content[i, j] = j > 0 and not special and any(letter.isalnum() for letter in piece)
    causal = model.block.causal
    query = content & (tokens.positions >= MIN_CONTEXT - 1) if causal else content
    if not query.any():
        raise InputError(
            f"the text has no token to ask from: there must be one beyond the first {MIN_CONTEXT}"
            " of a text, of letters or digits"
        )
    return Roles(content, query, reader_positions(model, tokens.mask))


def reader_positions(model: Model, mask: Bool[np.ndarray, "b n"]) -> Int[np.ndarray, " b"]:
    """Where each text is read: at the first token, in causal models at the last."""
    return mask.sum(1) - 1 if model.block.causal else np.zeros(len(mask), int)


def measure_behaviour(
    model: Model, tokens: Tokens, on_step: Callable[[Step], None] = lambda step: None
) -> xr.Dataset:
    """The quantities of `FROM_TEXT` over (layer, head) and those of `OF_TOKENS` over `layer`.

    `on_step` is called with every step of the forward pass.
    """
    batch, roles, layers = embed(model, tokens), token_roles(model, tokens), []
    with threadpool_limits(1):  # matrices are small: threads would wait for each other
        for step in trace(model, [batch]):
            admitted = admitted_in(model, batch, step.layer)
            layers.append(_measure_layer(model, step, tokens.mask, admitted, roles))
            on_step(step)
    seen = stack_layers(model, layers)
    if model.block.order == "post":  # what the heads read was normalised by the layer before
        before = np.concatenate([[1.0], seen.mlp_stretch.values[:-1]])
        seen["mlp_stretch"] = seen.attention_stretch
        seen["attention_stretch"] = ("layer", before)
    return describe(seen)


def _measure_layer(
    model: Model,
    step: Step,
    mask: Bool[np.ndarray, "b n"],
    admitted: Bool[np.ndarray, "b q k"],
    roles: Roles,
) -> dict[str, np.ndarray]:
    """Arrays over heads, and scalars for the tokens of the layer."""
    block = model.block
    queries, scores, attention, outputs = map(
        np.asarray, (step.queries, step.scores, step.attention, step.outputs)
    )
    size = block.heads // block.groups
    keys, values = (np.repeat(np.asarray(x), size, axis=1) for x in (step.keys, step.values))
    asked = admitted & roles.query[:, :, None]
    heads = []
    for head in range(block.heads):
        lengths = np.linalg.norm(keys[:, head], axis=-1)[mask]
        heads.append(
            _attention_shares(attention[:, head], admitted, roles)
            | {
                "query_free": _query_free_share(scores[:, head], asked),
                "key_spread": _variation(lengths),
            }
        )

    def at_reader(x: np.ndarray) -> np.ndarray:
        """The rows of [b, h, q, ...] at the reader of each text, [b, h, ...]."""
        return np.take_along_axis(x, roles.reader[:, None, None, None], 2)[:, :, 0]

    gates = _gate_shares(
        at_reader(queries),
        at_reader(outputs),
        keys / block.temperature,
        values,
        at_reader(admitted[:, None]),
        np.asarray(step.weights["out"]),
    )
    # After the layer has been computed: LAPACK calls that run at the same time can deadlock.
    some = max(REGRESSED_TEXTS, REGRESSED_PAIRS // mask.shape[1] ** 2)
    arrays = (step.queries, step.keys, step.values, step.outputs, mask, roles.query, roles.reader)
    regression = _regression_distances(block, *(jnp.asarray(x[:some]) for x in arrays))
    return {
        **{name: np.array([head[name] for head in heads]) for name in heads[0]},
        **gates,
        **{name: np.asarray(values) for name, values in regression.items()},
        **_token_quantities(step, mask),
    }


def _mean(
    x: np.ndarray, where: np.ndarray, axis: int | tuple[int, ...] | None = None
) -> np.ndarray:
    """The mean of `x` where `where` is true; 0 where it is nowhere."""
    where = np.broadcast_to(where, x.shape)
    return np.where(where, x, 0).sum(axis) / np.maximum(where.sum(axis), 1)


def _variation(lengths: np.ndarray) -> float:
    """Coefficient of variation."""
    return float(lengths.std() / max(lengths.mean(), TINY))


# --- where attention lies ------------------------------------------------------------------------


def _attention_shares(
    attention: Float[np.ndarray, "b q k"], admitted: Bool[np.ndarray, "b q k"], roles: Roles
) -> dict[str, float]:
    """The quantities of one head that depend on its attention alone."""
    entropy = -(attention * np.log(np.maximum(attention, TINY))).sum(-1)
    even = 1 / np.maximum(admitted.sum(-1), 1)
    target = admitted & roles.content[:, None, :]
    weights = np.where(target, attention, 0)
    by_offset, typical = _positional_means(weights, target & roles.query[:, :, None])
    broad = np.minimum(weights, even[..., None])
    above = np.maximum(weights - np.maximum(typical, even[..., None]), 0)
    reader = np.arange(len(weights)), roles.reader
    typical_at_reader = _mean_over_other_texts(weights[reader], target[reader])
    above_at_reader = weights[reader] - np.maximum(typical_at_reader, even[reader][:, None])
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
    return {name: float(values[roles.query].mean()) for name, values in per_query.items()} | {
        "reader_location": float(np.maximum(above_at_reader, 0).max(-1).mean()),
        "best_offset": best - (attention.shape[-1] - 1),
        "best_offset_mass": float(by_offset[best]),
    }


def _sum_by_offset(x: np.ndarray) -> np.ndarray:
    """Sums of [..., q, k] over pairs with the same k - q, which runs from 1 - n to n - 1."""
    n, batch = x.shape[-1], x.shape[:-2]
    # Rows of width 2n that are read with width 2n - 1 are shifted right, each by one column more
    # than the row before: with the last query first, every column then holds one offset.
    wide = np.concatenate([x[..., ::-1, :], np.zeros_like(x)], -1).reshape(*batch, 2 * n * n)
    return wide[..., : n * (2 * n - 1)].reshape(*batch, n, 2 * n - 1).sum(-2)


def _positional_means(weights: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the position of a key explains of its weight.

    Returns the share of a query's attention at each offset [2n - 1]; and for each pair of tokens
    [b, q, k] the mean weight in the other texts at the same offset or at the same position of the
    key, whichever is larger.
    """
    n = weights.shape[-1]
    used = np.where(pairs, weights, 0)
    mass, count = _sum_by_offset(used), _sum_by_offset(pairs)
    offset = np.arange(n)[None, :] - np.arange(n)[:, None] + n - 1
    at_offset = _mean_over_other_texts(mass, count)[:, offset]
    at_position = _mean_over_other_texts(used.sum(1), pairs.sum(1))[:, None, :]
    return mass.sum(0) / max(pairs.any(-1).sum(), 1), np.maximum(at_offset, at_position)


def _mean_over_other_texts(mass: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Means over all texts but one, [b, ...], from sums and counts of each text.

    Where no other text has any, as in the tail of the longest, the mean of the text itself: in a
    single text, position and content cannot be separated.
    """
    others = count.sum(0) - count
    of_others = (mass.sum(0) - mass) / np.maximum(others, 1)
    return np.where(others > 0, of_others, mass / np.maximum(count, 1))


def _query_free_share(
    scores: Float[np.ndarray, "b q k"], where: Bool[np.ndarray, "b q k"]
) -> float:
    """The share of the scores' variance, about the mean of each query, that is the key's alone."""
    centred = np.where(where, scores - _mean(scores, where, -1)[..., None], 0)
    alone = _mean(centred, where, -2)[:, None, :]
    return float(np.where(where, alone**2, 0).sum() / max((centred**2).sum(), TINY))


# --- the model of Marion et al. 2025 -------------------------------------------------------------


def _gate_shares(
    query: Float[np.ndarray, "b h r"],
    output: Float[np.ndarray, "b h r"],
    keys: Float[np.ndarray, "b h n r"],
    values: Float[np.ndarray, "b h n r"],
    admitted: Bool[np.ndarray, "b 1 n"],
    out: Float[np.ndarray, "h r d"],
) -> dict[str, np.ndarray]:
    """How well one direction to gate by and one to read by reproduce the output at the reader."""
    # Variances are those in the residual stream, behind `out`.
    square, turn = np.linalg.eigh(out @ np.swapaxes(out, -1, -2))
    behind = turn * np.sqrt(square.clip(0))[:, None, :]
    spread = np.einsum("bhr,hrs->hbs", output - output.mean(0), behind)
    variances, directions = np.linalg.eigh(np.swapaxes(spread, -1, -2) @ spread)
    functional = np.einsum("hrs,hs->hr", behind, directions[..., -1])
    share = variances[:, -1] / np.maximum(variances.clip(0).sum(-1), TINY)
    target = np.einsum("bhr,hr->bh", output, functional)
    read = np.einsum("bhnr,hr->bhn", values, functional)
    scores = np.einsum("bhnr,hr->bhn", keys, query.mean(0))
    by_softmax = (special.softmax(np.where(admitted, scores, -np.inf), -1) * read).sum(-1)
    centred = scores - _mean(scores, admitted, (0, 2))[:, None]
    scale = 1 / np.sqrt(np.maximum(_mean(centred**2, admitted, (0, 2)), TINY))[:, None]
    gates = (special.erf(c * scale * centred) for c in SHARPNESS)
    by_erf = [np.where(admitted, gate * read, 0).sum(-1) for gate in gates]
    answers = {
        "read_direction": share,
        "softmax_gate": share * _explained_variance(target, by_softmax),
        "erf_gate": share * np.max([_explained_variance(target, guess) for guess in by_erf], 0),
    }
    known = (variances[:, -1] > 0) & (len(target) > 3)
    return {name: np.where(known, value, np.nan) for name, value in answers.items()}


def _explained_variance(
    target: Float[np.ndarray, "b h"], guess: Float[np.ndarray, "b h"]
) -> Float[np.ndarray, " h"]:
    """The share of the variance of `target` that a line through `guess` predicts.

    Each text is predicted by the line through the others; 0 where their mean is better.
    """
    y, x = target - target.mean(0), guess - guess.mean(0)
    square = np.maximum((x**2).sum(0), TINY)
    leverage = 1 / len(y) + x**2 / square
    miss = (y - x * (x * y).sum(0) / square) / np.maximum(1 - leverage, 1e-6)
    plain = y / max(1 - 1 / len(y), 1e-6)
    return np.maximum(1 - (miss**2).sum(0) / np.maximum((plain**2).sum(0), TINY), 0)


# --- the view of Zhang et al. 2022 ---------------------------------------------------------------


class _RaisedKernel(eqx.Module):
    """A kernel plus a small constant: arithmetic on subnormal numbers is slow."""

    kernel: Kernel

    def __call__(self, x: Array, y: Array) -> Array:
        return self.kernel(x, y) + 1e-6


@partial(jax.jit, static_argnums=0)
def _regression_distances(
    block: Block,
    queries: Array,
    keys: Array,
    values: Array,
    outputs: Array,
    mask: Array,
    asked: Array,
    reader: Array,
) -> dict[str, Array]:
    """Distances of the heads' outputs from ridge regression of values on keys, [h].

    At all queries, in causal models at the last token, which alone sees the whole text.
    """
    b, r, groups, size = len(mask), block.width, block.groups, block.heads // block.groups
    if block.causal:
        at = reader[:, None, None, None]
        queries, outputs = (jnp.take_along_axis(x, at, 2) for x in (queries, outputs))
        asked = jnp.ones((b, 1), bool)
    count = queries.shape[2]
    lengths = [jnp.sqrt((x**2).sum(-1)) for x in (queries, keys)]
    asks = (queries / jnp.maximum(lengths[0], TINY)[..., None]).reshape(b, groups, size * count, r)
    keys = keys / jnp.maximum(lengths[1], TINY)[..., None]

    def mean_length(length: Array, where: Array) -> Array:
        """The mean length in each group."""
        where = jnp.tile(where, (1, length.size // where.size // groups))[:, None]
        total = jnp.where(where, length.reshape(b, groups, -1), 0).sum((0, 2))
        return total / jnp.maximum(where.sum(), 1)

    # On the sphere, this temperature gives scores of the head's usual size.
    own = block.temperature / (mean_length(lengths[0], asked) * mean_length(lengths[1], mask))
    here = mask[:, None, :]
    total_value = jnp.where(here[..., None], values, 0).sum(2, keepdims=True)
    mean = total_value / here.sum(-1)[..., None, None]
    values = values - mean
    wanted = outputs.reshape(b, groups, size * count, r) - mean

    def squared_distance(guess: Array) -> Array:
        square = ((guess - wanted) ** 2).sum(-1).reshape(b, block.heads, count)
        return jnp.where(asked[:, None], square, 0).sum((0, 2))

    def by_regression(setting: Array) -> Array:
        kernel = _RaisedKernel(RBF(jnp.broadcast_to(setting[0] * own, (b, groups))))
        guess = cme_attention(asks, keys, values, ridge=setting[1], kernel=kernel, mask=here)
        return squared_distance(guess)

    def by_softmax(setting: Array) -> Array:
        scores = asks @ jnp.swapaxes(keys, -1, -2) / (setting * own)[:, None, None]
        return squared_distance(softmax(scores, here[:, :, None, :]) @ values)

    settings = jnp.asarray([(t, ridge) for t in TEMPERATURES for ridge in RIDGES])
    total = jnp.maximum(squared_distance(jnp.zeros_like(wanted)), TINY)
    far = jax.lax.map(by_regression, settings)
    best = far.argmin(0)
    on_sphere = jax.lax.map(by_softmax, jnp.asarray(TEMPERATURES)).min(0)
    return {
        "cme_distance": jnp.sqrt(far.min(0) / total),
        "cme_temperature": settings[best, 0],
        "cme_ridge": settings[best, 1],
        "sphere_distance": jnp.sqrt(on_sphere / total),
    }


# --- tokens --------------------------------------------------------------------------------------


def _token_quantities(step: Step, mask: Bool[np.ndarray, "b n"]) -> dict[str, np.ndarray]:
    """Lengths, angles and coordinates of the tokens that the heads read, and how the norms
    stretched them."""
    x = np.asarray(step.inputs)
    here = x[mask]  # [tokens, dim]
    length = np.linalg.norm(x, axis=-1)
    unit = x / np.maximum(length, TINY)[..., None]
    cosine = unit @ np.swapaxes(unit, -1, -2)
    pairs = mask[:, :, None] & mask[:, None, :] & ~np.eye(mask.shape[1], dtype=bool)
    cosines = cosine[pairs] if pairs.any() else np.zeros(1)
    squares = (here - here.mean(0)) ** 2
    kurtosis = (squares**2).mean(0) / np.maximum(squares.mean(0), TINY) ** 2
    power = (here**2).mean(0)
    stretch = 1 / np.asarray(step.scales, np.float64)[mask].min(0)
    stretch = stretch[:2] * stretch[2:]  # of the norms before a branch, and behind it
    if "mlp_norm" not in step.weights and "mlp_after" not in step.weights:
        stretch[1] = stretch[0]
    found = {
        "token_spread": _variation(length[mask]),
        "token_cosine": cosines.mean(),
        "token_overlap": np.sqrt((cosines**2).mean() * x.shape[-1]),
        "excess_kurtosis": np.median(kurtosis) - 3,
        "largest_coordinate": power.max() / max(power.sum(), TINY),
        "attention_stretch": stretch[0],
        "mlp_stretch": stretch[1],
    }
    return {name: np.asarray(value) for name, value in found.items()}


def classify_heads(seen: xr.Dataset) -> xr.DataArray:
    """The largest of the four shares of each head if it is above a half, else "mixed"."""
    shares = np.stack([seen[kind].values for kind in KINDS], -1)
    kind = np.where(shares.max(-1) > 0.5, np.array(KINDS)[shares.argmax(-1)], "mixed")
    return xr.DataArray(kind, dims=("layer", "head"))
