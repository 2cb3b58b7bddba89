"""Random 32-bit words made inside a compiled program, in many lanes at once.

NumPy's streams are scalar loops, whose words are then copied to the program: for a simulation that
does little else than draw, both together take as long as the rest of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

WARM_UP = 16
"""Words that are thrown away, so that lanes whose seeds differ in one bit have nothing in common
when they begin."""


class Lanes(NamedTuple):
    """States of as many generators as there are lanes."""

    a: UInt32[Array, " lane"]
    b: UInt32[Array, " lane"]
    c: UInt32[Array, " lane"]
    counter: UInt32[Array, ""]


def lanes_of(seeds: UInt32[Array, "3 lane"]) -> Lanes:
    """Lanes with seeds of their own, 96 bits each."""
    a, b, c = seeds
    state = Lanes(a, b, c, jnp.ones((), jnp.uint32))
    return jax.lax.fori_loop(0, WARM_UP, lambda _, state: next_words(state)[0], state)


def next_words(state: Lanes) -> tuple[Lanes, UInt32[Array, " lane"]]:
    """One word of each lane: Doty-Humphrey's Small Fast Counting generator of 32 bits (PractRand),
    whose brother of 64 bits is NumPy's `SFC64`."""
    a, b, c, counter = state
    word = a + b + counter
    turned = (c << 21) | (c >> 11)
    return Lanes(b ^ (b >> 9), c + (c << 3), turned + word, counter + jnp.uint32(1)), word
