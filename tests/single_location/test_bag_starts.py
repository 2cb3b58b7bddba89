"""Moments are the moments, and those of the task point at its directions."""

import jax
import numpy as np
import pytest

from attlas.single_location import SingleLocation
from attlas.single_location.bag_heads import Bags
from attlas.single_location.bag_starts import moment_ratio, moments, start_pairs
from tests.conftest import SEED
from tests.single_location.test_bag_heads import ragged


@pytest.mark.parametrize("dim", [6, 500])
def test_moments_are_the_means_of_target_times_instance_and_its_square(dim):
    rng = np.random.default_rng(SEED)
    bags, y, w = ragged(rng, dim=dim, longest=9), rng.normal(size=23), rng.uniform(1, 2, 23)
    found = moments(Bags.of(bags), y, w)
    c = w * (y - w @ y / w.sum()) / w.sum()
    matrix = sum(ci * x.T @ x / len(x) for ci, x in zip(c, bags, strict=True))
    np.testing.assert_allclose(
        found.first, sum(ci * x.mean(0) for ci, x in zip(c, bags, strict=True)), atol=1e-12
    )
    values, vectors = np.linalg.eigh(matrix)
    assert found.size == pytest.approx(abs(values).max(), rel=1e-5)
    assert abs(found.high @ vectors[:, -1]) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(
        found.product(y[:1] * np.ones(dim)), matrix @ (y[:1] * np.ones(dim)), atol=1e-10
    )


def test_the_moments_of_the_task_point_at_its_stars():
    task = SingleLocation(dim=40, length=6, key=jax.random.key(SEED))
    batch = task.sample(jax.random.key(SEED + 1), 4000)
    laid = Bags.of(list(np.asarray(batch.tokens, float)))
    found = moments(laid, np.asarray(batch.target, float), np.ones(4000))
    u, v = start_pairs(found, np.random.default_rng(0))["moments"]
    assert u @ task.k_star / np.linalg.norm(u) > 0.95 and v @ task.v_star > 0.95
    swapped = start_pairs(found, np.random.default_rng(0))["swapped"]
    assert swapped[1] @ task.k_star > 0.95
    # m gamma^2 / L, since instances of a bag are averaged
    assert found.size == pytest.approx(task.m * task.gamma**2 / task.length, rel=0.2)


def test_the_ratio_of_moments_is_to_the_largest_of_four_shuffles():
    rng = np.random.default_rng(SEED)
    bags, y, w = ragged(rng, dim=4, longest=9), rng.normal(size=23), rng.uniform(1, 2, 23)
    laid, shuffles = Bags.of(bags), np.random.default_rng(7)
    sizes = [moments(laid, shuffles.permutation(y), w).size for _ in range(4)]
    expected = moments(laid, y, w).size / max(sizes)
    assert moment_ratio(laid, y, w, 7) == pytest.approx(expected)
    assert moment_ratio(laid, 0 * y + 2, w, 7) == 0
    assert moment_ratio(Bags.of(bags[:2]), y[:2], w[:2], 7) == np.inf
    assert moment_ratio(Bags.of(bags[:3]), y[:3], w[:3], 7) < np.inf
    assert moment_ratio(Bags.of([bag[:1] for bag in bags]), y, w, 7) == np.inf


def test_pairs_of_directions_to_begin_from():
    rng = np.random.default_rng(SEED)
    bags, y, w = ragged(rng, dim=4, longest=9), rng.normal(size=23), rng.uniform(1, 2, 23)
    found = moments(Bags.of(bags), y, w)
    pairs = start_pairs(found, np.random.default_rng(5))
    first = found.first / np.linalg.norm(found.first)
    for name, (u, v) in pairs.items():
        assert np.linalg.norm(v) == pytest.approx(1)
        assert np.linalg.norm(u) == pytest.approx(0 if name == "all alike" else 1.5)
    (u, v), swapped = pairs["moments"], pairs["swapped"]
    ends = [found.high + found.low, found.high - found.low]
    near = [abs(end @ first) / np.linalg.norm(end) for end in ends]
    assert v @ first == pytest.approx(max(near)) and abs(u @ first) == pytest.approx(
        1.5 * min(near)
    )
    assert u @ found.product(v) >= 0
    np.testing.assert_allclose(swapped, (1.5 * v, u / 1.5))
    np.testing.assert_allclose(pairs["same direction"], (1.5 * first, first))
    np.testing.assert_allclose(pairs["all alike"][1], first)
    same = np.random.default_rng(5).normal(size=(4, 4))
    drawn = (*pairs["first at random"], *pairs["second at random"])
    for number, size, x in zip(same, (1.5, 1, 1.5, 1), drawn, strict=True):
        np.testing.assert_allclose(x, size * number / np.linalg.norm(number))
