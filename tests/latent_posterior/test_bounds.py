import jax
import numpy as np
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.latent_posterior.bounds import (
    deep_gap,
    head_entropy,
    head_rademacher,
    head_risk_gap,
    length_shift,
    weight_spread,
)

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


def test_entropy_is_that_of_two_balls_a_head():
    expected = 2 * 3 * (np.log(1 + 4 * 2 * 5 * 1.5 * 4 / 0.1) + np.log(1 + 4 * 2 * 1.5 * 2 / 0.1))
    assert head_entropy(0.1, dim=3, query_norm=5.0, value_norm=1.5, radius=2.0, heads=2) == approx(
        expected
    )


def test_bound_is_capped_and_falls_as_the_root_of_the_samples():
    norms = {"dim": 5, "query_norm": 5.0}
    assert head_rademacher(8, **norms) == 1.0
    measured = head_rademacher(np.array([512.0, 8192.0]), **norms)
    assert measured == approx([0.5, 0.139], rel=0.03)
    assert head_rademacher(8, **norms, value_norm=2.0, heads=3) == 6.0


def test_risk_gap_is_capped_and_vanishes():
    gap = head_risk_gap(np.array([1.0, 1e12]), dim=2, query_norm=1.0)
    assert gap[0] == 4.0 and 0 < gap[1] < 1e-3


def test_deep_form_falls_as_one_over_the_samples():
    options = {"depth": 2, "dim": 4, "hidden": 8, "head_dim": 4, "norms": (1.0, 2.0)}
    few, many = deep_gap(1e4, **options), deep_gap(1e6, **options)
    assert 50 < few / many < 100
    assert deep_gap(1e4, **options | {"depth": 3}) > few


def test_spread_is_the_most_that_weights_of_two_values_have():
    b = 0.8
    chance = np.linspace(0.01, 0.99, 999)
    mean = chance * np.exp(b) + (1 - chance) * np.exp(-b)
    square = chance * np.exp(2 * b) + (1 - chance) * np.exp(-2 * b)
    assert (square / mean**2).max() == approx(weight_spread(b), rel=1e-5)


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
