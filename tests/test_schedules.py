import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas import schedules
from attlas.errors import InputError
from attlas.schedules import (
    Constant,
    Decay,
    GeometricDecay,
    InverseDecay,
    as_schedule,
    named_schedule,
)
from tests.defaults import numbers_by_default


def test_the_published_schedule_and_the_geometric_one():
    assert float(InverseDecay(1.0)(jnp.asarray(120_000))) == approx(1 / 13)
    ours = GeometricDecay(3.0, 0.03, 100)
    assert [float(ours(jnp.asarray(t))) for t in (0, 50, 100, 500)] == approx(
        [3.0, 0.3, 0.03, 0.03], rel=1e-5
    )


@pytest.mark.parametrize(
    "schedule", [Constant(2.5), InverseDecay(2.0, 3e-3), GeometricDecay(3.0, 0.2, 70)]
)
def test_the_shared_form_is_the_schedule(schedule, float64):
    t = jnp.arange(0.0, 200.0, 7.0)
    assert Decay.of(schedule)(t) == approx(np.broadcast_to(schedule(t), t.shape), rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (-0.1, "lam = -0.1: it must be a positive number"),
        (np.array([0.1, np.nan]), "lam = nan"),
        (lambda t: 0.995 - 0.01 * t, "at step 100"),
        (lambda t: jnp.where(t == 7, -1.0, 1.0), "lam = -1 at step 7"),
        ("soft", "lam = 'soft': it must be a positive number or a schedule"),
        (lambda t: jnp.where(t > 150, jnp.inf, 1.0), "lam = inf at step 151"),
        (InverseDecay(-1.0), "lam = -1 at step 0"),
        (Constant(0.0), "lam = 0: it must be"),
    ],
)
def test_a_schedule_that_turns_bad_is_refused_before_anything_is_computed(schedule, says):
    with pytest.raises(InputError, match=says):
        as_schedule("lam", schedule, 200)


def test_schedules_have_names():
    options = {"end": 0.1, "rate": 1e-3, "steps": 10}
    assert named_schedule("constant", 2.0, **options) == Constant(2.0)
    assert named_schedule("inverse", 2.0, **options) == InverseDecay(2.0, 1e-3)
    assert named_schedule("geometric", 2.0, **options) == GeometricDecay(2.0, 0.1, 10)
    with pytest.raises(InputError, match=r"schedule = 'inverted'.*Did you mean inverse"):
        named_schedule("inverted", 2.0, **options)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(schedules) == [
        "InverseDecay rate=0.0001",
        "Decay rate=0 ratio=1 steps=1",
    ]
