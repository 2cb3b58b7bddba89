"""Embeddings of places, bits and [CLS]: an orthonormal basis, or random directions."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attlas.errors import whole

SPECIAL = 3
"""The embeddings beside those of the places: bit 0, bit 1, [CLS]."""

CHUNK = 4096
"""Places per block; fixed, because the block's number enters the random key of its embeddings."""


class Embedding(ABC):
    """Unit vectors for T places, two bits and [CLS]."""

    length: int
    dim: int

    @abstractmethod
    def special(self) -> Float[np.ndarray, "3 dim"]:
        """The vectors of bit 0, bit 1 and [CLS]."""

    @abstractmethod
    def places(self, first: int, last: int) -> Float[np.ndarray, "n dim"]:
        """The vectors of the places `first`, ..., `last` - 1."""

    def anchors(self, support: Sequence[int]) -> Float[np.ndarray, "anchors dim"]:
        """The vectors of the places of `support` and the three special ones, which span weights."""
        return np.concatenate([*(self.places(i, i + 1) for i in support), self.special()])

    def gram(self, support: Sequence[int]) -> Float[np.ndarray, "anchors anchors"]:
        """Inner products of the anchors of `support` [s + 3, s + 3]."""
        anchors = self.anchors(support)
        return anchors @ anchors.T

    def products(
        self, support: Sequence[int], coefficients: Float[np.ndarray, "anchors n"]
    ) -> Float[np.ndarray, "rows n"]:
        """Inner products of combinations of the anchors with all places and the special vectors."""
        weights = self.anchors(support).T @ coefficients
        chunks = [
            self.places(i, min(i + CHUNK, self.length)) @ weights
            for i in range(0, self.length, CHUNK)
        ]
        return np.concatenate([*chunks, self.special() @ weights])


@dataclass(frozen=True)
class Orthonormal(Embedding):
    """The standard basis of dimension T + 3; never written out unless asked for.

    Arguments:
        length: $T$.
    """

    length: int

    def __post_init__(self) -> None:
        whole("length", self.length, 1)

    @property
    def dim(self) -> int:  # type: ignore[override]
        """$T + 3$."""
        return self.length + SPECIAL

    def special(self) -> Float[np.ndarray, "3 dim"]:
        return np.eye(SPECIAL, self.dim, self.length)

    def places(self, first: int, last: int) -> Float[np.ndarray, "n dim"]:
        return np.eye(last - first, self.dim, first)

    def gram(self, support: Sequence[int]) -> Float[np.ndarray, "anchors anchors"]:
        return np.eye(len(support) + SPECIAL)

    def products(
        self, support: Sequence[int], coefficients: Float[np.ndarray, "anchors n"]
    ) -> Float[np.ndarray, "rows n"]:
        found = np.zeros((self.length + SPECIAL, coefficients.shape[1]))
        found[[*support, *range(self.length, self.length + SPECIAL)]] = coefficients
        return found


@dataclass(frozen=True)
class RandomDirections(Embedding):
    r"""Independent uniform directions; products between them are of size $1/\sqrt{d}$.

    Arguments:
        length: T, the number of places.
        dim: d.
        seed: of the draw.
    """

    length: int
    dim: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        whole("dim", self.dim, 2)

    def special(self) -> Float[np.ndarray, "3 dim"]:
        return _directions(self.seed, 0, SPECIAL, self.dim)

    def places(self, first: int, last: int) -> Float[np.ndarray, "n dim"]:
        parts = []
        for block in range(first // CHUNK, -(-last // CHUNK)):
            start = block * CHUNK
            rows = _directions(self.seed, 1 + block, min(CHUNK, self.length - start), self.dim)
            parts.append(rows[max(first - start, 0) : last - start])
        return np.concatenate(parts)


@functools.lru_cache(maxsize=8)
def _directions(seed: int, block: int, rows: int, dim: int) -> Float[np.ndarray, "rows dim"]:
    """One block of random directions; the last few are kept, others are drawn again."""
    generator = np.random.Generator(np.random.Philox(key=[seed, block]))
    draws = generator.standard_normal((rows, dim))
    return draws / np.linalg.norm(draws, axis=1, keepdims=True)
