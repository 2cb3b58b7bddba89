import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from attlas.words import WARM_UP, Lanes, lanes_of, next_words

LANES = 1000


def by_hand(a, b, c, words):
    """Doty-Humphrey's sfc32, a word at a time, with Python's integers."""
    mask, found = 2**32 - 1, []
    for count in range(1, WARM_UP + words + 1):
        word = (a + b + count) & mask
        a, b, c = b ^ (b >> 9), (c + (c << 3)) & mask, (((c << 21) | (c >> 11)) + word) & mask
        found.append(word)
    return found[WARM_UP:]


@pytest.fixture(scope="module")
def seeds():
    return np.random.SFC64(7).random_raw(3 * LANES // 2).view(np.uint32).reshape(3, LANES)


@pytest.fixture(scope="module")
def words(seeds):
    """Words [400, LANES], as many of a lane as a block of online descent takes."""
    draw = jax.jit(
        lambda seeds: jax.lax.scan(lambda x, _: next_words(x), lanes_of(seeds), length=400)[1]
    )
    return np.asarray(draw(jnp.asarray(seeds)))


def test_each_lane_is_the_generator_of_its_seed(seeds, words):
    for lane in (0, 1, LANES - 1):
        assert words[:, lane].tolist() == by_hand(*(int(x) for x in seeds[:, lane]), 400)


def test_words_are_uniform_in_their_high_and_their_low_bytes(words):
    for shift in (0, 8, 16, 24):
        counts = np.bincount(((words >> shift) & 255).ravel(), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.kstest(words.ravel() / 2**32, "uniform").pvalue > 1e-4


def test_words_of_a_lane_and_of_neighbours_are_uncorrelated(words):
    x = words / 2**32 - 0.5
    bound = 5 / 12 / np.sqrt(x.size)  # five standard errors of a mean of products
    for here, there in [
        *((x[lag:], x[:-lag]) for lag in (1, 2, 3, 20)),
        *((x[:, lag:], x[:, :-lag]) for lag in (1, 2, 32, 160)),
    ]:
        assert abs((here * there).mean()) < bound


def test_lanes_whose_seeds_differ_in_one_bit_begin_with_nothing_in_common():
    seeds = np.zeros((3, 97), np.uint32)
    for bit in range(96):
        seeds[bit // 32, bit + 1] = np.uint32(1) << (bit % 32)
    first = np.asarray(next_words(lanes_of(jnp.asarray(seeds)))[1])
    changed = np.bitwise_count(first[1:] ^ first[0])
    assert abs(changed.mean() - 16) < 5 * np.sqrt(8 / 96) and changed.min() > 2
    # Without the warm-up it would not be so.
    cold = np.asarray(next_words(Lanes(*jnp.asarray(seeds), jnp.uint32(1)))[1])
    assert np.bitwise_count(cold[1:] ^ cold[0]).mean() < 8
