"""Padding is not seen in what comes back, and few programs are compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas import padding
from attlas.padding import bucket, map_chunks, pad_axis, padded_jit
from tests.defaults import numbers_by_default


def test_buckets_are_few_and_not_wasteful():
    sizes = {bucket(n) for n in range(1, 3000)}
    assert len(sizes) < 24
    assert all(n <= bucket(n) < 1.5 * n + 4 for n in range(1, 3000))


def test_the_smallest_bucket_is_a_choice():
    sizes = [bucket(m, 64) for m in (1, 64, 65, 128, 129, 200, 300, 2000)]
    assert sizes == [64, 64, 96, 128, 192, 256, 384, 2048]
    assert all(m <= bucket(m, 64) <= max(64, 2 * m) for m in range(1, 3000))


def test_an_axis_is_padded_with_zeros_or_with_its_last_entry():
    x = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(pad_axis(x, 3), [[0, 1, 2], [3, 4, 5], [0, 0, 0]])
    np.testing.assert_array_equal(pad_axis(x, 4, 1, repeat=True), [[0, 1, 2, 2], [3, 4, 5, 5]])


@pytest.mark.parametrize("count", [1, 4, 5, 8, 11])
def test_chunks_are_joined_without_what_filled_the_last(count):
    traces = []

    @jax.jit
    def function(x, y):
        traces.append(x.shape)
        return x + y, {"product": x * y}

    x, y = np.arange(count, dtype=np.float32), np.full(count, 2, np.float32)
    total, parts = map_chunks(function, (x, y), 4)
    np.testing.assert_array_equal(total, x + 2)
    np.testing.assert_array_equal(parts["product"], 2 * x)
    assert traces == [(4,)]


def test_a_padded_function_is_the_function_and_compiles_once_for_each_bucket():
    traces = []

    @padded_jit({"x": "n", "y": "m", "right": "m"}, "n", least=8, zeros=("right",))
    def mixed(scale, x, y, right):
        traces.append((x.shape, y.shape))
        return jnp.exp(-scale * jnp.abs(x[:, None] - y)) @ right

    rng = np.random.default_rng(0)
    for n, m in ((3, 5), (8, 1), (1, 8), (7, 9), (5, 12)):
        x, y, right = (rng.normal(size=size).astype(np.float32) for size in (n, m, m))
        expected = np.exp(-0.5 * np.abs(x[:, None] - y)) @ right
        np.testing.assert_allclose(mixed(0.5, x, y=y, right=right), expected, rtol=1e-4, atol=1e-5)
    assert traces == [((8,), (8,)), ((8,), (12,))]


def test_two_axes_of_a_result_are_cut():
    @padded_jit({"x": "n", "y": "m"}, "nm", least=4)
    def products(x, y):
        return x[:, None] * y

    x, y = np.arange(3.0, dtype=np.float32), np.arange(5.0, dtype=np.float32)
    np.testing.assert_array_equal(products(x, y), np.outer(x, y))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(padding) == ["bucket least=4", "pad_axis axis=0"]
