import jax
import jax.numpy as jnp
import numpy as np
from pytest import approx

from attlas import search
from attlas.search import climb
from tests.defaults import numbers_by_default


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


def tilted(point, centre):
    return -((point["x"] - centre) ** 2).sum() - 0.3 * jnp.abs(point["y"] @ centre).sum()


def small(point, _):
    return point | {"y": jnp.clip(point["y"], -0.6, 0.9)}


def test_every_array_moves_along_its_gradient_by_steps_in_geometric_progression(float64):
    rng, steps, centre = np.random.default_rng(2), 5, np.array([0.5, -1.0, 2.0])
    start = {"x": rng.normal(size=(3, 3)), "y": 3 * rng.normal(size=(3, 2, 3))}
    found = climb(tilted, small, start, centre, steps=steps, largest=0.7, least=0.02)
    for lane in range(3):
        x, y, best = start["x"][lane], start["y"][lane], -np.inf
        for t in range(steps + 1):
            y = np.clip(y, -0.6, 0.9)
            value = -((x - centre) ** 2).sum() - 0.3 * abs(y @ centre).sum()
            if value > best:
                best, at = value, (x, y)
            slopes = -2 * (x - centre), -0.3 * np.sign(y @ centre)[:, None] * centre
            share = 0.7 * (0.02 / 0.7) ** (t / (steps - 1))
            x, y = (
                z + share * max(1, np.linalg.norm(z)) * g / np.linalg.norm(g)
                for z, g in zip((x, y), slopes, strict=True)
            )
        assert found.value[lane] == approx(best)
        assert found.point["x"][lane] == approx(at[0]) and found.point["y"][lane] == approx(at[1])


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(search) == ["climb steps=200 largest=0.3 least=0.001"]
