import jax
import numpy as np
import pytest
from pytest import approx
from scipy import optimize

from attlas.errors import InputError
from attlas.latent_posterior import bounds
from attlas.latent_posterior.bounds import head_rademacher, length_shift
from tests.defaults import numbers_by_default

RNG = np.random.default_rng(7)


def head(tokens, u, v):
    scores = np.exp(tokens @ u)
    return (scores @ (tokens @ v)) / scores.sum()


@pytest.mark.parametrize("length", [2, 50])
def test_the_lipschitz_constant_behind_the_cover_holds(length):
    worst = 0.0
    for _ in range(500):
        tokens = RNG.normal(size=(length, 3))
        tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
        u, u2 = RNG.normal(size=(2, 3)) * 2
        v, v2 = RNG.normal(size=(2, 3))
        v, v2 = v / np.linalg.norm(v), v2 / np.linalg.norm(v2)
        worst = max(
            worst,
            abs(head(tokens, u, v) - head(tokens, u2, v2))
            / (np.linalg.norm(u - u2) + np.linalg.norm(v - v2)),
        )
    assert 0.1 < worst <= 1


def test_bound_is_the_least_over_covers_by_two_balls_a_head():
    def bound(eps):
        entropy = 2 * 3 * (np.log(1 + 4 * 2 * 5 * 1.5 * 4 / eps) + np.log(1 + 4 * 2 * 3 / eps))
        return eps + 6 * np.sqrt(2 * entropy / 1e4)

    options = {"query_norm": 5.0, "value_norm": 1.5, "radius": 2.0, "heads": 2}
    least = optimize.minimize_scalar(bound, bounds=(1e-6, 6), method="bounded").fun
    assert head_rademacher(1e4, dim=3, **options) == approx(least, rel=1e-3)


def test_bound_is_capped_and_falls_as_the_root_of_the_samples():
    norms = {"dim": 5, "query_norm": 5.0}
    assert head_rademacher(8, **norms) == 1.0
    measured = head_rademacher(np.array([512.0, 8192.0]), **norms)
    assert measured == approx([0.5, 0.139], rel=0.03)
    assert head_rademacher(8, **norms, value_norm=2.0, heads=3) == 6.0


def test_spread_is_the_most_that_weights_of_two_values_have():
    b = 0.8
    chance = np.linspace(0.01, 0.99, 999)
    mean = chance * np.exp(b) + (1 - chance) * np.exp(-b)
    square = chance * np.exp(2 * b) + (1 - chance) * np.exp(-2 * b)
    # The bound at length 1 is twice the root of the spread.
    assert (square / mean**2).max() == approx((length_shift(1, query_norm=b) / 2) ** 2, rel=1e-5)


def test_length_shift_is_its_formula():
    r = np.exp(2 * 0.6 * 1.5)
    expected = 2 * 1.3 * 1.5 * np.sqrt((1 + r) ** 2 / (4 * r) / 40)
    found = length_shift(40, query_norm=0.6, value_norm=1.3, radius=1.5)
    assert found == approx(expected, rel=1e-12)


def test_length_shift_bounds_sampled_heads():
    key = jax.random.key(0)
    u, v = np.array([2.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0])
    tokens = np.array(jax.random.normal(key, (400, 64, 3)))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    limit = 1 / np.tanh(2.0) - 1 / 2.0
    distance = np.sqrt(np.mean([(head(x, u, v) - limit) ** 2 for x in tokens]))
    assert 0.01 < distance < length_shift(64, query_norm=2.0)


def test_bad_input_is_told():
    with pytest.raises(InputError, match="length = 0"):
        length_shift(0, query_norm=1.0)
    with pytest.raises(InputError, match="samples"):
        head_rademacher(0, dim=2, query_norm=1.0)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(bounds) == [
        "head_rademacher value_norm=1 radius=1 heads=1",
        "length_shift value_norm=1 radius=1",
    ]
