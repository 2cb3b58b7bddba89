r"""A sparse function learnt from examples: attention proposes positions, and a truth table is
chosen.

Several runs of the recipe of `training`, half of them on resampled examples, are lanes of one
program. Positions that a head attends to are candidates. The best of their subsets S is the one
whose table describes the labels in the fewest nats,

$$\ln\binom T{|S|} + \ln(T + 1)
- \sum_c \ln\frac{B(a_c + \frac12, b_c + \frac12)}{B(\frac12, \frac12)},$$

with $a_c$ zeros and $b_c$ ones among the examples that have the pattern c on S: the support, then
the code of Krichevsky and Trofimov (1981) for every pattern. Predictions average over the best
tables with their posterior weights.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8
from scipy import special

from attlas.gaussian import stream
from attlas.padding import bucket, pad_axis
from attlas.progress import told
from attlas.sparse_variables.model import attention_weights
from attlas.sparse_variables.training import (
    RECIPE_R,
    Data,
    advance,
    begin_runs,
    careful_step,
    fits_memory,
    losses,
    step,
)
from attlas.sparse_variables.training_sets import SMALLEST_SET
from attlas.surface import public

Bits = UInt8[np.ndarray, "m length"]
Labels = UInt8[np.ndarray, " m"]
Positions = Float[np.ndarray, " length"]

CANDIDATES, VOTES = 16, 6
"""Positions among which supports are searched, and positions a run votes for at each evaluation."""
BEAM = 32
"""Supports of one size that are extended to the next size."""
SETTLED_LOSS = 0.02
"""Training ends when every run has less."""
EVERY, RESAMPLES = 25, 20
"""Steps between evaluations, and sets of resampled examples."""


@dataclass(frozen=True)
class Table:
    """How often each label occurs with each pattern of a support, the first position fastest,
    and the length of this description in nats."""

    support: tuple[int, ...]
    counts: Float[np.ndarray, "patterns 2"]
    nats: float

    @property
    def probability(self) -> Float[np.ndarray, " patterns"]:
        """Of the label 1 on each pattern; 1/2 where there was no example."""
        return (self.counts[:, 1] + 0.5) / (self.counts.sum(1) + 1)

    def code(self, bits: UInt8[np.ndarray, "n length"]) -> Int[np.ndarray, " n"]:
        return bits[:, list(self.support)].astype(int) @ (1 << np.arange(len(self.support)))


@dataclass(frozen=True)
class SparseFit:
    """A sparse function found by `fit_sparse`.

    - `best`: the shortest table, and `by_size` that for each size of the support.
    - `tables`, `weights`: what predictions average over.
    - `stability`: how often each position is in the support when examples are resampled, among the
      same `candidates`.
    - `attention`: the largest share of each position in a head, averaged over runs.
    - `steps`: of training. `empty_nats`: the length of the description by a constant.
    """

    best: Table
    by_size: dict[int, Table]
    tables: tuple[Table, ...]
    weights: Float[np.ndarray, " k"]
    stability: Positions
    attention: Positions
    candidates: tuple[int, ...]
    steps: int
    empty_nats: float

    def probability(self, bits: UInt8[np.ndarray, "n length"]) -> Float[np.ndarray, " n"]:
        """Of the label 1 for each sequence."""
        return sum(
            w * t.probability[t.code(bits)] for w, t in zip(self.weights, self.tables, strict=True)
        )


@public
def fit_sparse(
    bits: Bits,
    label: Labels,
    *,
    weight: Float[np.ndarray, " m"] | None = None,
    most: int = 5,
    sparsity: int | None = None,
    runs: int = 8,
    steps: int = 400,
    key: Array,
) -> SparseFit:
    """Learn a function of a few bits from examples.

    Arguments:
    - `bits`, `label`, `weight`: the examples; one of weight w counts as w.
    - `most`: bits in the support at most, or exactly `sparsity` if that is given.
    - `runs`, `steps`: of training. `key`: of starts and resampling.
    """
    weight = np.ones(len(label)) if weight is None else np.asarray(weight, float)
    rng = stream(key)
    count = max(1, round(weight.sum()))
    draws = rng.multinomial(count, weight / weight.sum(), RESAMPLES).astype(float)
    lanes = np.stack([weight if i % 2 == 0 else draws[(i // 2) % RESAMPLES] for i in range(runs)])
    votes, attention, taken = vote(bits, label, lanes, steps=steps, key=key)
    candidates = np.argsort(-votes, kind="stable")[:CANDIDATES]
    largest = min(most if sparsity is None else sparsity, len(candidates))
    size = None if sparsity is None else largest
    found = describe(bits, label, weight, candidates, largest)
    allowed = _of_size(found, size)
    shares = special.softmax([-table.nats for table in allowed])
    order = np.argsort(-shares)
    order = order[: np.searchsorted(np.cumsum(shares[order]), 0.999) + 1]
    stability = np.zeros(bits.shape[1])
    for draw in draws:
        resampled = _of_size(describe(bits, label, draw, candidates, largest), size)
        stability[list(_shortest(resampled).support)] += 1 / len(draws)
    zeros_and_ones = np.array([[weight[label == 0].sum(), weight[label == 1].sum()]])
    return SparseFit(
        _shortest(allowed),
        {s: _shortest(_of_size(found, s)) for s in range(1, largest + 1)},
        tuple(allowed[i] for i in order),
        shares[order] / shares[order].sum(),
        stability,
        attention,
        tuple(sorted(candidates.tolist())),
        taken,
        float(_nats(zeros_and_ones)) + math.log(bits.shape[1] + 1),
    )


@public
def vote(
    bits: Bits,
    label: Labels,
    weight: Float[np.ndarray, "lane m"],
    *,
    steps: int,
    key: Array,
) -> tuple[Positions, Positions, int]:
    """Train runs on weighted examples and count which positions they attend to.

    Arguments: bits, label, and for each lane, or run, a weight of each example.

    Returns votes for each position over all evaluations and runs; the largest share of each
    position in a head at the end, averaged over runs; and the number of steps. Examples and
    positions are padded; a padded position has no token.
    """
    samples, length = bits.shape
    size, wide = (bucket(n, SMALLEST_SET) for n in bits.shape)
    fits_memory(RECIPE_R, wide, len(weight))
    tokens = np.full((size, wide), 2, np.uint8)
    tokens[:samples, :length] = bits
    shares = (weight / weight.sum(1, keepdims=True)).astype(np.float32)
    with jax.enable_x64(False):
        state = begin_runs(RECIPE_R, wide, jax.random.split(key, len(weight)))
        data = Data(tokens, pad_axis(label, size), pad_axis(shares, size, 1))
        votes, taken = np.zeros(length), 0
        for _ in range(0, steps, EVERY):
            path = advance((step, careful_step), state, (data, RECIPE_R), EVERY)
            if not (path.survived == EVERY).all():
                break  # a run diverged: use the votes so far
            state, taken = path.last, taken + EVERY
            loss, mass = map(
                np.asarray,
                told(
                    _evaluate(state.model, tokens, data),
                    lambda x, steps: f"after {steps} steps: losses up to {x[0].max():.2g}",
                    taken,
                ),
            )
            mass = mass[:, :length]
            places = np.argsort(-mass, axis=1, kind="stable")[:, :VOTES]
            ratios = np.take_along_axis(mass, places, 1) / mass.max(1, keepdims=True)
            np.add.at(votes, places, ratios)
            if (loss < SETTLED_LOSS).all():
                break
        mass = np.asarray(_evaluate(state.model, tokens, data)[1])[:, :length]
    return votes + 1e-6 * mass.mean(0), mass.mean(0), taken


@jax.jit
def _evaluate(model: Any, tokens: Array, data: Data) -> tuple[Array, Array]:
    """The loss of each lane, and the largest mean share of attention over heads and labels of each
    position, [lane, length]."""
    shares = attention_weights(
        model, jnp.broadcast_to(tokens, (model.tokens.shape[0], *tokens.shape))
    )[..., :-1]
    weight = jnp.stack([data.weight * (data.label == y) for y in (0, 1)])
    weight = weight / jnp.maximum(weight.sum(-1, keepdims=True), 1e-9)
    mean = jnp.einsum("yam,amht->yaht", weight, shares)
    return losses(model, data), mean.max((0, 2))


def describe(
    bits: Bits,
    label: Labels,
    weight: Float[np.ndarray, " m"],
    candidates: Int[np.ndarray, " c"],
    most: int,
) -> list[Table]:
    """Tables of supports among the candidates of each size up to `most`, found by beam search:
    the best `BEAM` of one size, extended by each further position, compete at the next.

    Arguments:
        bits, label: examples [m, length] and [m].
        weight: how often each example counts, [m].
        candidates: positions [c].
        most: the largest size of a support.
    """
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
        nats = _nats(counts) + math.log(math.comb(length, size)) + math.log(length + 1)
        order = np.argsort(nats, kind="stable")[:BEAM]
        beam = subsets[order]
        for i in order:
            places = np.asarray(candidates)[subsets[i]]
            inner = np.argsort(places)
            tables.append(
                Table(tuple(places[inner].tolist()), _reorder(counts[i], inner), float(nats[i]))
            )
    return tables


def _of_size(tables: list[Table], size: int | None) -> list[Table]:
    return [table for table in tables if size is None or len(table.support) == size]


def _shortest(tables: list[Table]) -> Table:
    return min(tables, key=lambda table: table.nats)


def _counts(columns: Any, label: Labels, weight: Any, subsets: Int[np.ndarray, "k s"]) -> Any:
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


def _reorder(counts: Float[np.ndarray, "patterns 2"], order: Int[np.ndarray, " s"]) -> np.ndarray:
    """The counts with the positions of the support in another order."""
    s = len(order)
    cube = counts.reshape(*[2] * s, 2)  # the first place is the last but one axis
    axes = [s - 1 - order[s - 1 - a] for a in range(s)]
    return cube.transpose(*axes, s).reshape(-1, 2)


def disagreement(table: Table, bits: Bits, label: Labels) -> Bool[np.ndarray, " m"]:
    """Whether each example contradicts the majority of those with its pattern."""
    counts = table.counts[table.code(bits)]
    return (counts[:, 1] * 2 > counts.sum(1)) != label
