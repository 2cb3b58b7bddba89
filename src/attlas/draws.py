"""Random numbers of a measurement: a JAX key or a NumPy stream for each purpose."""

import zlib
from dataclasses import dataclass

import jax
import numpy as np

from attlas.gaussian import stream


@dataclass(frozen=True)
class Draws:
    """The random numbers of one measurement.

    Keys are folded from the seed, the measurement's name and a word for the purpose. Settings do
    not enter, so that cells share their random numbers (paired comparisons).

    Arguments:
        name: the id of the claim or measurement, as in "single-location/zeta".
        seed: a whole number.

    >>> from attlas.claims import Draws
    >>> draws = Draws("coins/fair", seed=0)
    >>> print(draws.stream("tosses").random() == draws.stream("tosses").random())
    True
    >>> print(draws.stream("tosses").random() == draws.stream("starts").random())
    False
    """

    name: str
    seed: int

    def __call__(self, purpose: str) -> jax.Array:
        """The JAX key (threefry) of one purpose."""
        key = jax.random.key(self.seed, impl="threefry2x32")
        for word in (self.name, purpose):
            key = jax.random.fold_in(key, zlib.crc32(word.encode()))
        return key

    def stream(self, purpose: str, *place: int) -> np.random.Generator:
        """The NumPy generator of one purpose; each `place` (a block, a cell) has its own."""
        return stream(self(purpose), *place)

    def integer(self, purpose: str) -> int:
        """A seed for functions that take an integer, from 0 to 2^31 - 1."""
        return int(jax.random.key_data(self(purpose))[0]) >> 1
