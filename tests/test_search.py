import jax
import jax.numpy as jnp
import numpy as np
from pytest import approx

from attlas.search import climb


def bump(point, centre):
    return -((point["x"] - centre) ** 2).sum()


def free(point, _):
    return point


def in_unit_ball(point, _):
    return {"x": point["x"] / jnp.maximum(1, jnp.linalg.norm(point["x"]))}


def test_a_summit_inside_is_found(float64):
    start = {"x": jax.random.normal(jax.random.key(0), (5, 3))}
    found = climb(bump, free, start, jnp.array([0.5, -1.0, 2.0]), steps=400)
    assert found.value.max() > -1e-3 and found.point["x"][found.value.argmax()] == approx(
        [0.5, -1, 2], abs=0.05
    )


def test_a_summit_on_the_boundary_is_found(float64):
    start = {"x": jax.random.normal(jax.random.key(1), (4, 2))}
    found = climb(bump, in_unit_ball, start, jnp.array([3.0, 4.0]), steps=300)
    assert found.point["x"] == approx(np.tile([0.6, 0.8], (4, 1)), abs=0.02)


def test_the_best_point_seen_is_kept_and_never_worse_than_the_start(float64):
    start = {"x": jnp.zeros((3, 2)) + 1e-9}
    found = climb(bump, free, start, jnp.zeros(2), steps=50, largest=10.0, least=10.0)
    assert (found.value >= -1e-12).all()
