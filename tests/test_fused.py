import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.fused import LARGEST, one_kernel


def work(x, y):
    z = jnp.sqrt(1 + x * x) / (2 + jnp.sin(y))
    return z - x[:1], jnp.exp(-z) * jax.lax.erf(y)


@pytest.mark.parametrize("size", [1, 7, 1000, LARGEST])
def test_one_kernel_gives_the_same_numbers(size):
    x, y = np.random.default_rng(size).normal(size=(2, size)).astype(np.float32)
    for one, many in zip(jax.jit(one_kernel(work))(x, y), jax.jit(work)(x, y), strict=True):
        np.testing.assert_allclose(one, many, rtol=3e-6, atol=1e-7)


def test_within_a_loop_it_is_one_kernel():
    def loop(x):
        return jax.lax.fori_loop(0, 10, lambda _, x: one_kernel(work)(x, x)[0], x)

    text = jax.jit(loop).lower(np.ones(64, np.float32)).compile().as_text()
    calls = [line for line in text.splitlines() if " call(" in line]
    assert len(calls) == 1 and 'xla_cpu_small_call="true"' in calls[0]
