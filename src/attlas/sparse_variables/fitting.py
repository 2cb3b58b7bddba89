r"""A sparse function learnt from given examples: attention finds where to look, and a table says what is there.

Several runs of the recipe of `training`, half of them on resampled examples, are lanes of one program. Places that a head comes to look at are
candidates. Among their subsets S those are best whose table describes the labels in the fewest nats,

$$\ln\binom T{|S|} + \ln(T + 1) - \sum_c \ln\frac{B(a_c + \frac12, b_c + \frac12)}{B(\frac12, \frac12)},$$

with $a_c$ zeros and $b_c$ ones among the examples that have the pattern c on S: the code of Krichevsky and Trofimov (1981) for every cell, after the
support. Predictions average over the best tables with their posterior weights.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8
from scipy import special

from attlas.gaussian import stream
from attlas.sparse_variables.model import attention_weights
from attlas.sparse_variables.training import (
    RECIPE_R,
    Data,
    Recipe,
    advance,
    begin,
    careful_step,
    fits_memory,
    losses,
    padded,
    step,
)

CANDIDATES, VOTES = 16, 6
"""Places among which supports are looked for, and those to which a run gives its vote at each look."""
BEAM = 32
"""Supports of one size that are carried on to the next."""
SETTLED = 0.02
"""Loss below which a run has stopped moving."""
RESAMPLES = 20


@dataclass(frozen=True)
class Table:
    """What the labels are on each pattern of a support: counts [2^s, 2] of zeros and ones, the first place fastest, and the length of the
    description in nats."""

    support: tuple[int, ...]
    counts: Float[np.ndarray, "patterns 2"]
    nats: float

    @property
    def probability(self) -> Float[np.ndarray, " patterns"]:
        """Of a one on each pattern; a half where nothing was seen."""
        return (self.counts[:, 1] + 0.5) / (self.counts.sum(1) + 1)

    def code(self, bits: UInt8[np.ndarray, "n length"]) -> Int[np.ndarray, " n"]:
        return bits[:, list(self.support)].astype(int) @ (1 << np.arange(len(self.support)))


@dataclass(frozen=True)
class SparseFit:
    """What was learnt: the best table for each size of the support, the tables that predictions average over with their weights, how often each place
    is in the support when examples are resampled (among the same candidates), its share of attention, the candidates, and the steps of training."""

    best: Table
    by_size: dict[int, Table]
    tables: tuple[Table, ...]
    weights: Float[np.ndarray, " k"]
    stability: Float[np.ndarray, " length"]
    attention: Float[np.ndarray, " length"]
    candidates: tuple[int, ...]
    steps: int
    empty_nats: float
    """Length of the description by a constant."""

    def probability(self, bits: UInt8[np.ndarray, "n length"]) -> Float[np.ndarray, " n"]:
        """Of a one."""
        return sum(
            w * t.probability[t.code(bits)] for w, t in zip(self.weights, self.tables, strict=True)
        )


def fit_sparse(
    bits: UInt8[np.ndarray, "m length"],
    label: UInt8[np.ndarray, " m"],
    *,
    weight: Float[np.ndarray, " m"] | None = None,
    most: int = 5,
    sparsity: int | None = None,
    runs: int = 8,
    steps: int = 400,
    recipe: Recipe = RECIPE_R,
    key: Array,
) -> SparseFit:
    """Learn a function of at most `most` of the bits, or of `sparsity` of them, from examples; one of weight w counts as w."""
    weight = np.ones(len(label)) if weight is None else np.asarray(weight, float)
    rng = stream(key)
    draws = rng.multinomial(max(1, round(weight.sum())), weight / weight.sum(), RESAMPLES).astype(
        float
    )
    lanes = np.stack([weight if i % 2 == 0 else draws[(i // 2) % RESAMPLES] for i in range(runs)])
    votes, attention, taken = look_around(bits, label, lanes, steps=steps, recipe=recipe, key=key)
    candidates = np.argsort(-votes, kind="stable")[:CANDIDATES]
    sizes = (
        range(1, min(most, len(candidates)) + 1)
        if sparsity is None
        else range(1, min(sparsity, len(candidates)) + 1)
    )
    found = describe(bits, label, weight, candidates, max(sizes))
    allowed = [table for table in found if sparsity is None or len(table.support) == max(sizes)]
    best = min(allowed, key=lambda table: table.nats)
    by_size = {
        s: min((t for t in found if len(t.support) == s), key=lambda t: t.nats) for s in sizes
    }
    nats = np.array([table.nats for table in allowed])
    shares = special.softmax(-nats)
    order = np.argsort(-shares)
    order = order[: np.searchsorted(np.cumsum(shares[order]), 0.999) + 1]
    return SparseFit(
        best,
        by_size,
        tuple(allowed[i] for i in order),
        shares[order] / shares[order].sum(),
        _stability(bits, label, draws, candidates, max(sizes), sparsity),
        attention,
        tuple(sorted(candidates.tolist())),
        taken,
        float(_nats(np.array([[weight[label == 0].sum(), weight[label == 1].sum()]])))
        + math.log(bits.shape[1] + 1),
    )


# --- where to look ---------------------------------------------------------------------------------------------------


def look_around(
    bits: UInt8[np.ndarray, "m length"],
    label: UInt8[np.ndarray, " m"],
    weight: Float[np.ndarray, "lane m"],
    *,
    steps: int,
    recipe: Recipe = RECIPE_R,
    key: Array,
    every: int = 25,
) -> tuple[Float[np.ndarray, " length"], Float[np.ndarray, " length"], int]:
    """Votes for the places that heads come to look at, counted at every look of every run; the largest share of attention that a head
    puts on each place at the end, averaged over runs; and the steps taken. Examples and places are padded to few sizes; a padded place has no token."""
    samples, length = bits.shape
    wide = padded(length)
    fits_memory(recipe, wide, len(weight))
    size = padded(samples)
    tokens = np.full((size, wide), 2, np.uint8)
    tokens[:samples, :length] = bits
    with jax.enable_x64(False):
        keys = jax.random.split(key, len(weight))
        state = _begun(recipe, wide, keys)
        data = Data(
            tokens,
            np.pad(label, (0, size - samples)),
            np.pad(weight / weight.sum(1, keepdims=True), ((0, 0), (0, size - samples))).astype(
                np.float32
            ),
            np.asarray(jax.random.key_data(keys)),
        )
        votes, taken = np.zeros(length), 0
        for _ in range(0, steps, every):
            path = advance((step, careful_step), state, (data, recipe), every)
            if not (path.survived == every).all():
                break  # a run that is no longer finite has said what it can
            state, taken = path.last, taken + every
            loss, mass = map(np.asarray, _looked(state.model, tokens, data))
            places = np.argsort(-mass[:, :length], axis=1, kind="stable")[:, :VOTES]
            np.add.at(
                votes,
                places,
                np.take_along_axis(mass, places, 1) / mass[:, :length].max(1, keepdims=True),
            )
            if (loss < SETTLED).all():
                break
        mass = np.asarray(_looked(state.model, tokens, data)[1])[:, :length]
    return votes + 1e-6 * mass.mean(0), mass.mean(0), taken


@jax.jit
def _looked(model: Any, tokens: Array, data: Data) -> tuple[Array, Array]:
    """The loss of each lane, and the largest mean share of attention over heads and labels that each place has, [lane, length]."""
    shares = attention_weights(
        model, jnp.broadcast_to(tokens, (model.tokens.shape[0], *tokens.shape))
    )[..., :-1]
    of = jnp.stack([data.weight * (data.label == y) for y in (0, 1)])
    mean = jnp.einsum("yam,amht->yaht", of / jnp.maximum(of.sum(-1, keepdims=True), 1e-9), shares)
    return losses(model, data), mean.max((0, 2))


@functools.partial(jax.jit, static_argnums=1)
def _begun(recipe: Recipe, length: int, keys: Array) -> Any:
    return jax.vmap(lambda key: begin(recipe.architecture.initialise(length, key), recipe))(keys)


# --- what is there ---------------------------------------------------------------------------------------------------


def describe(
    bits: UInt8[np.ndarray, "m length"],
    label: UInt8[np.ndarray, " m"],
    weight: Float[np.ndarray, " m"],
    candidates: Int[np.ndarray, " c"],
    most: int,
) -> list[Table]:
    """Tables of supports among the candidates, of each size up to `most`: those that come of the best `BEAM` of the size before by one place more."""
    length = bits.shape[1]
    columns = bits[:, candidates].astype(np.int64)
    beam, tables = np.zeros((1, 0), int), []
    for size in range(1, most + 1):
        grown = {
            tuple(sorted((*row, c)))
            for row in beam.tolist()
            for c in range(len(candidates))
            if c not in row
        }
        subsets = np.array(sorted(grown))
        counts = _counts(columns, label, weight, subsets)
        nats = _nats(counts) + _log_choices(length, size) + math.log(length + 1)
        order = np.argsort(nats, kind="stable")[:BEAM]
        beam = subsets[order]
        for i in order:
            places = np.asarray(candidates)[subsets[i]]
            inner = np.argsort(places)
            tables.append(
                Table(tuple(places[inner].tolist()), _turned(counts[i], inner), float(nats[i]))
            )
    return tables


def _counts(
    columns: np.ndarray, label: np.ndarray, weight: np.ndarray, subsets: Int[np.ndarray, "k s"]
) -> np.ndarray:
    """Weights of zeros and ones on each pattern of each subset, [k, 2^s, 2]."""
    k, s = subsets.shape
    codes = sum(columns[:, subsets[:, j]] << j for j in range(s))  # [m, k]
    cells = (np.arange(k) << (s + 1)) + 2 * codes + label[:, None]
    flat = np.bincount(cells.ravel(), np.repeat(weight, k), minlength=k << (s + 1))
    return flat.reshape(k, 1 << s, 2)


def _nats(counts: Float[np.ndarray, "*k patterns 2"]) -> Float[Any, "*k"]:
    return (
        special.betaln(0.5, 0.5) - special.betaln(counts[..., 0] + 0.5, counts[..., 1] + 0.5)
    ).sum(-1)


def _log_choices(length: int, size: int) -> float:
    return math.lgamma(length + 1) - math.lgamma(size + 1) - math.lgamma(length - size + 1)


def _turned(counts: Float[np.ndarray, "patterns 2"], order: Int[np.ndarray, " s"]) -> np.ndarray:
    """The counts with the places in another order."""
    s = len(order)
    cube = counts.reshape(*[2] * s, 2)  # the first place is the last but one axis
    axes = [s - 1 - order[s - 1 - a] for a in range(s)]
    return cube.transpose(*axes, s).reshape(-1, 2)


def _stability(
    bits: np.ndarray,
    label: np.ndarray,
    draws: np.ndarray,
    candidates: np.ndarray,
    most: int,
    sparsity: int | None,
) -> Float[np.ndarray, " length"]:
    """The share of resampled sets of examples whose best support has each place."""
    share = np.zeros(bits.shape[1])
    for draw in draws:
        tables = [
            t
            for t in describe(bits, label, draw, candidates, most)
            if sparsity is None or len(t.support) == most
        ]
        share[list(min(tables, key=lambda table: table.nats).support)] += 1 / len(draws)
    return share


def disagreement(
    table: Table, bits: UInt8[np.ndarray, "m length"], label: UInt8[np.ndarray, " m"]
) -> Bool[np.ndarray, " m"]:
    """Whether each example contradicts most of those with its pattern."""
    return (table.counts[table.code(bits), 1] * 2 > table.counts[table.code(bits)].sum(1)) != label
