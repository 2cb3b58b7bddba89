"""The task: a Boolean function of a few bits among many (Edelman et al. 2022, Sections 4 and 5)."""

import bisect
import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int, UInt8

from attlas.errors import InputError, near, whole
from attlas.gaussian import Real, stream
from attlas.surface import public

FUNCTIONS = {
    "and": lambda ones, s: ones == s,
    "or": lambda ones, s: ones >= 1,
    "majority": lambda ones, s: ones >= s // 2 + 1,
    "parity": lambda ones, s: ones % 2 == 1,
}
"""Functions of the number of ones among s bits."""

SUPPORTS_PER_CHUNK = 1 << 16
"""Supports that are compared with a batch at once."""

MAX_SPARSITY = 20
"""The largest sparsity: a truth table has two to that power entries."""


class Batch(NamedTuple):
    """Sequences of bits and the function's values on them.

    Arguments:
        bits: [n, length]. `label`: [n]; zeros and ones.
    """

    bits: UInt8[Any, "n length"]
    label: UInt8[Any, " n"]


@dataclass(frozen=True)
class SparseBoolean:
    r"""$y = f(b_{i_1}, \dots, b_{i_s})$ for independent bits $b_1, \dots, b_T$.

    Arguments:
        length: T, the number of bits.
        support: $i_1, \dots, i_s$, counted from 0.
        function: and, or, majority or parity, or a truth table of $2^s$ zeros and ones, in which
            the entry $\sum_j 2^{j-1} b_{i_j}$ is the value.
        bias: the probability of a 1; by default the one that balances the labels, $2^{-1/s}$ for
            and, 1/2 for parity; where none does, the one that comes nearest, closest to 1/2.

    >>> import jax
    >>> from attlas.sparse_variables import SparseBoolean
    >>> task = SparseBoolean(length=40, support=(3, 8, 21), function="majority")
    >>> batch = task.sample(jax.random.key(0), 100)
    >>> print(batch.bits.shape, task.sparsity, task.floor(), f"{task.log_hypotheses:.1f}")
    (100, 40) 3 22 9.2
    """

    length: int
    support: tuple[int, ...]
    function: str | tuple[int, ...] = "and"
    bias: float = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        if not isinstance(self.support, Iterable):
            raise InputError(f"support = {self.support!r}: it must be a list of places")
        support = tuple(whole("a place of the support", i, 0) for i in self.support)
        object.__setattr__(self, "support", support)
        if not 1 <= len(support) <= MAX_SPARSITY:
            raise InputError(
                f"support = {support}: it must hold between 1 and {MAX_SPARSITY} places"
            )
        if len(set(support)) < len(support):
            twice = next(i for i in support if support.count(i) > 1)
            raise InputError(f"support = {support}: place {twice} is repeated")
        if max(support) >= self.length:
            raise InputError(
                f"support = {support}: place {max(support)} lies outside a context of"
                f" {self.length} bits, 0 to {self.length - 1}"
            )
        if isinstance(self.function, str):
            if self.function not in FUNCTIONS:
                raise InputError(
                    f"function = {self.function!r}: it must be {', '.join(FUNCTIONS)} or a truth"
                    f" table.{near(self.function, FUNCTIONS)}"
                )
        else:
            self._check_table()
        if self.bias is None:
            object.__setattr__(self, "bias", self._balancing_bias())
        if not 0 < self.bias < 1:
            raise InputError(f"bias = {self.bias!r}: it must lie between 0 and 1")

    def _check_table(self) -> None:
        support = self.support
        values = tuple(
            int(v) if v in (0, 1) else v for v in np.asarray(self.function).ravel().tolist()
        )
        object.__setattr__(self, "function", values)
        if len(values) != 2 ** len(support):
            raise InputError(
                f"the truth table has {len(values)} entries: a function of {len(support)} bits has"
                f" {2 ** len(support)}"
            )
        if set(values) - {0, 1}:
            wrong = next(v for v in values if v not in (0, 1))
            raise InputError(f"the truth table has the entry {wrong!r}: it must be 0 or 1")

    @classmethod
    @public
    def random(
        cls, key: Array, length: int, sparsity: int, function: str | tuple[int, ...] | None = None
    ) -> "SparseBoolean":
        """A random junta: a uniform support in increasing order, and a table of fair coins.

        Arguments:
            key: of the draw.
            length, sparsity: T and s.
            function: in place of the random table.
        """
        check_sparsity(sparsity, length)
        draws = stream(key)
        support = np.sort(draws.choice(length, sparsity, replace=False))
        if function is None:
            function = tuple(draws.integers(0, 2, 2**sparsity).tolist())
        return cls(length, tuple(support.tolist()), function)

    @property
    def sparsity(self) -> int:
        """$s$, the number of bits that count."""
        return len(self.support)

    @functools.cached_property
    def table(self) -> UInt8[np.ndarray, " patterns"]:
        """The function's values, [2^s], by the code of the relevant bits."""
        if isinstance(self.function, str):
            ones = patterns(self.sparsity).sum(1)
            return FUNCTIONS[self.function](ones, self.sparsity).astype(np.uint8)
        return np.asarray(self.function, np.uint8)

    @property
    def symmetric(self) -> bool:
        """Whether the value depends on the number of ones alone."""
        return self.by_count() is not None

    def by_count(self) -> tuple[int, ...] | None:
        """The values at 0, ..., s ones, if that is all they depend on."""
        ones = patterns(self.sparsity).sum(1)
        values = [set(self.table[ones == k].tolist()) for k in range(self.sparsity + 1)]
        return tuple(v.pop() for v in values) if all(len(v) == 1 for v in values) else None

    def label(self, bits: Array | np.ndarray) -> UInt8[Array, "*n"]:
        """The function's value on each sequence of bits [*n, length]."""
        self.check_shape(bits)
        code = sum(bits[..., i].astype(jnp.int32) << j for j, i in enumerate(self.support))
        return jnp.asarray(self.table)[code]

    def check_shape(self, bits: Array | np.ndarray) -> None:
        """Refuse bits that are not [..., length]."""
        if bits.shape[-1:] != (self.length,):
            raise InputError(
                f"bits have the shape {bits.shape}: the last axis must be {self.length} long"
            )

    def _balancing_bias(self) -> float:
        def excess(p: float) -> float:
            return float(probabilities(self.sparsity, p) @ self.table) - 0.5

        grid = np.linspace(0, 1, 201)[1:-1]
        values = np.array([excess(p) for p in grid])
        exact = grid[abs(values) < 1e-12]
        signs = np.flatnonzero(values[:-1] * values[1:] < 0)
        roots = [
            *exact,
            *(scipy.optimize.brentq(excess, grid[i], grid[i + 1], xtol=1e-15) for i in signs),
        ]
        nearest = grid[abs(values) <= abs(values).min() + 1e-12]
        return float(min(roots or nearest, key=lambda p: abs(p - 0.5)))

    @public
    def sample(self, key: Array, samples: int) -> Batch:
        """Independent sequences of bits, with their labels."""
        bits = draw_bits(key, whole("samples", samples, 1), self.length, self.bias)
        return Batch(bits, self.label(bits))

    @functools.cached_property
    def variants(self) -> list[tuple[int, ...]]:
        """The truth tables with permuted arguments, this one first; one table if symmetric."""
        codes = patterns(self.sparsity)
        weights = 1 << np.arange(self.sparsity)
        if self.sparsity > 7 and not self.symmetric:
            raise InputError(
                f"sparsity = {self.sparsity}: the orders of the support of a function that is not"
                " symmetric are looked through up to 7 places"
            )
        places = range(self.sparsity)
        orders = [places] if self.symmetric else itertools.permutations(places)
        tables = (self.table[codes[:, list(order)] @ weights].tolist() for order in orders)
        return list(dict.fromkeys(map(tuple, tables)))

    @property
    def log_hypotheses(self) -> float:
        r"""Logarithm of the number of functions that differ from this one in their support alone.

        It is $\ln\binom Ts$ for a symmetric one.
        """
        s, t = self.sparsity, self.length
        return math.log(math.comb(t, s)) + math.log(len(self.variants))

    def consistent(self, batch: Batch, most: int | None = None) -> int:
        """How many of those functions agree with all of `batch`; counting stops at `most`."""
        bits, label = np.asarray(batch.bits), np.asarray(batch.label)
        columns, answer = _pack_bits(bits.T), _pack_bits(label[None])[0]
        found = 0
        for places in self._candidates(bits, label):
            for table in self.variants:
                alive = places
                # A word of 64 samples at a time: most candidates are gone after the first.
                for column, right in zip(columns.T, answer, strict=True):
                    alive = alive[_evaluate_words(column[alive], table) == right]
                found += len(alive)
            if most is not None and found >= most:
                return most
        return found

    def _candidates(self, bits: np.ndarray, label: np.ndarray) -> Iterator[Int[np.ndarray, "k s"]]:
        """Supports that may be consistent, in chunks.

        For `and` (`or`) only of places that are 1 (0) wherever the label is.
        """
        places = np.arange(self.length)
        if self.function == "and":
            places = places[bits[label == 1].all(0)]
        if self.function == "or":
            places = places[~bits[label == 0].any(0)]
        count = math.comb(len(places), self.sparsity)
        if count > 2e8:
            raise InputError(
                f"{count:,} supports may be consistent with the batch: at most 200,000,000 can be"
                " looked through"
            )
        sets = itertools.chain.from_iterable(itertools.combinations(places.tolist(), self.sparsity))
        for first in range(0, count, SUPPORTS_PER_CHUNK):
            size = min(SUPPORTS_PER_CHUNK, count - first)
            yield np.fromiter(sets, np.intp, size * self.sparsity).reshape(size, self.sparsity)

    @functools.cached_property
    def _rivals(self) -> tuple[Float[np.ndarray, " r"], Float[np.ndarray, "r patterns"]]:
        """How many rivals there are of each kind, and the probability that one agrees.

        Kinds differ in the places that they share with this function; the probability is given for
        each pattern of the relevant bits.
        """
        s, tables = self.sparsity, np.asarray(self.variants, float)
        if 4**s * len(tables) > 4e6:
            raise InputError(
                f"sparsity = {s}: the rivals of such a function are too many to be told apart; it"
                f" may be at most {10 if self.symmetric else 6}"
            )
        codes, law = patterns(s).astype(int), probabilities(s, self.bias)
        own = self.table.astype(float)
        counts, agree = [np.zeros(0)], [np.zeros((0, 2**s))]
        for kept in range(2**s):
            shared = [j for j in range(s) if kept >> j & 1]
            count = math.comb(self.length - s, s - len(shared))
            others = tables[1:] if len(shared) == s else tables
            if count == 0 or not len(others):
                continue
            # What a rival says is a coin given the bits that both see.
            group = codes[:, shared] @ (1 << np.arange(len(shared)))
            coin = np.stack(
                [np.bincount(group, law * other) / np.bincount(group, law) for other in others]
            )[:, group]
            counts.append(np.full(len(others), float(count)))
            agree.append(np.where(own == 1, coin, 1 - coin))
        found = np.concatenate(agree)
        if (found @ law > 1 - 1e-12).any():
            raise InputError(
                f"the function does not depend on every place of its support {self.support}: no"
                " sample singles it out"
            )
        return np.concatenate(counts), found

    def log_rivals(self, samples: Real) -> float:
        r"""Logarithm of the expected number of rivals that agree with all of `samples` samples.

        $\ln\sum_r n_r a_r^m$, with $a_r$ the probability to agree with one sample.
        """
        counts, agree = self._rivals
        mean = agree @ probabilities(self.sparsity, self.bias)
        with np.errstate(divide="ignore"):
            return float(
                np.logaddexp.reduce(np.log(counts) + samples * np.log(mean), initial=-np.inf)
            )

    def unique_probability(self, samples: int, draws: int = 4096) -> float:
        r"""Approximate probability that no other support is consistent with `samples` samples.

        $E\exp\big(-\sum_r n_r\prod_{i \le m} a_r(x_i)\big)$ over the relevant bits $x_i$, given
        which rivals are nearly independent. The mean is over `draws` sets of samples, always the
        same ones.

        Without the condition, $\exp(-\sum_r n_ra_r^m)$ is too small by up to a third: rivals agree
        together when a place happens not to decide any sample. With it, the value is too small by
        up to a tenth near a half and below, and by less above.
        """
        counts, agree = self._rivals
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(agree), -1e9)
        drawn = np.random.default_rng(0).multinomial(
            whole("samples", samples, 1), probabilities(self.sparsity, self.bias), draws
        )
        return float(np.exp(-(np.exp(drawn @ logs.T) @ counts)).mean())

    def floor(self, probability: float = 0.8) -> int:
        """The statistical floor: the fewest samples that single out the support.

        Fewest for which it is the only consistent one with the given probability.
        """
        if not 0 < probability < 1:
            raise InputError(f"probability = {probability!r}: it must lie between 0 and 1")
        high = 1
        while self.unique_probability(high) < probability:
            high *= 2
        return bisect.bisect_left(
            range(high), probability, high // 2 + 1, key=self.unique_probability
        )


def check_sparsity(sparsity: int, length: int) -> None:
    most = min(whole("length", length, 1), MAX_SPARSITY)
    if whole("sparsity", sparsity, 1) > most:
        raise InputError(
            f"sparsity = {sparsity}: it must be between 1 and {most}, of {length} bits"
        )


def _pack_bits(bits: UInt8[np.ndarray, "rows m"]) -> np.ndarray:
    """Rows of bits as words of 64, [rows, words], filled up with copies of the last sample."""
    filled = np.pad(np.ascontiguousarray(bits), ((0, 0), (0, -bits.shape[1] % 64)), mode="edge")
    return np.ascontiguousarray(np.packbits(filled, axis=1)).view(np.uint64)


def _evaluate_words(words: np.ndarray, table: tuple[int, ...]) -> np.ndarray:
    """The values of a function of s bits for words of 64 of each, [k, s], as words [k]."""
    result = np.zeros(len(words), np.uint64)
    for code in np.flatnonzero(table):
        literals = (words[:, j] if code >> j & 1 else ~words[:, j] for j in range(words.shape[1]))
        result |= functools.reduce(np.bitwise_and, literals)
    return result


def patterns(bits: int) -> UInt8[np.ndarray, "patterns bits"]:
    """All patterns of so many bits, the first bit fastest."""
    return (np.arange(2**bits)[:, None] >> np.arange(bits) & 1).astype(np.uint8)


def probabilities(bits: int, bias: float) -> Float[np.ndarray, " patterns"]:
    """The probability of each of `patterns`."""
    ones = patterns(bits).sum(1).astype(float)
    return bias**ones * (1 - bias) ** (bits - ones)


@functools.partial(jax.jit, static_argnums=(1, 2))
def draw_bits(key: Array, samples: int, length: int, bias: Real) -> UInt8[Array, "n length"]:
    """Independent bits, each 1 with probability `bias`.

    Arguments:
        samples, length: n sequences of so many bits; static under `jit`.
        bias: a number between 0 and 1; may be traced.
    """
    return jax.random.bernoulli(key, bias, (samples, length)).astype(jnp.uint8)
