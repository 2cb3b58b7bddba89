"""Schedules: the sharpness, or the step size, as a function of the number of steps done."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attlas.errors import InputError, near
from attlas.gaussian import Real
from attlas.padding import map_chunks

Schedule = Callable[[Array], Real]


class Constant(NamedTuple):
    """A constant value.

    Arguments:
        value: at every step.

    >>> import jax.numpy as jnp
    >>> from attlas.single_location import Constant, GeometricDecay, InverseDecay
    >>> [round(float(schedule(jnp.array(1000))), 3) for schedule in
    ...  (Constant(0.6), InverseDecay(0.6, rate=1e-3), GeometricDecay(0.6, 0.1, steps=2000))]
    [0.6, 0.3, 0.245]
    """

    value: Real

    def __call__(self, t: Array) -> Real:
        return self.value


class InverseDecay(NamedTuple):
    r"""The paper's schedule, $\lambda_t = \lambda_0 / (1 + \text{rate}\cdot t)$.

    Arguments:
        start: $\lambda_0$. `rate`: the larger, the sooner it falls.
    """

    start: Real
    rate: Real = 1e-4

    def __call__(self, t: Array) -> Real:
        return self.start / (1 + self.rate * t)


class GeometricDecay(NamedTuple):
    r"""From `start` to `end` over `steps` by equal factors, then constant.

    $\lambda_t = \lambda_0 (\lambda_1/\lambda_0)^{\min(t/n, 1)}$.
    """

    start: Real
    end: Real
    steps: Real

    def __call__(self, t: Array) -> Real:
        return self.start * (self.end / self.start) ** jnp.minimum(t / self.steps, 1.0)


class Decay(NamedTuple):
    """The form that the three above share, so that one compiled program serves them all."""

    start: Real
    rate: Real = 0.0
    ratio: Real = 1.0
    steps: Real = 1.0

    @classmethod
    def of(cls, schedule: Schedule) -> Any:
        """`schedule` in this form; a function that is none of the three unchanged."""
        if isinstance(schedule, Constant):
            decay = cls(schedule.value)
        elif isinstance(schedule, InverseDecay):
            decay = cls(schedule.start, schedule.rate)
        elif isinstance(schedule, GeometricDecay):
            ratio = np.asarray(schedule.end, float) / np.asarray(schedule.start, float)
            decay = cls(schedule.start, ratio=ratio, steps=schedule.steps)
        else:
            return schedule
        return cls(*(np.asarray(x, float) for x in decay))

    def __call__(self, t: Any) -> Real:
        return self.start / (1 + self.rate * t) * self.ratio ** (t / self.steps).clip(max=1.0)


SCHEDULES = (Constant, InverseDecay, GeometricDecay, Decay, jax.tree_util.Partial)
"""The forms that a schedule has inside a compiled program."""


def as_schedule(name: str, value: Any, steps: int) -> Any:
    """`value` as a schedule that `jit` accepts: numbers and arrays as data.

    It is checked to be positive and finite at every step before anything else is computed.
    """
    try:
        schedule: Any = value if callable(value) else Constant(np.asarray(value, float))
    except (TypeError, ValueError):
        raise InputError(
            f"{name} = {value!r}: it must be a positive number or a schedule"
        ) from None
    constant, decay = isinstance(schedule, Constant), Decay.of(schedule)
    here = values_at(decay, np.arange(1 if constant else steps + 1))
    wrong = np.argwhere(~(np.isfinite(here) & (here > 0)))
    if wrong.size:
        where = "" if constant else f" at step {wrong[0][0]}"
        raise InputError(f"{name} = {here[tuple(wrong[0])]:g}{where}: it must be a positive number")
    return decay if isinstance(decay, Decay) else jax.tree_util.Partial(decay)


CHUNK = 2048


@jax.jit
def _values(schedule: Any, times: Array) -> Array:
    return jax.lax.map(lambda t: jnp.asarray(schedule(t), float), times)


def values_at(schedule: Any, times: np.ndarray) -> np.ndarray:
    """The values of the schedule at these steps, [step] or [step, repeat]."""
    decay = Decay.of(schedule)
    if isinstance(decay, Decay):
        return decay(times.reshape(-1, *[1] * np.ndim(decay.start)))
    values = functools.partial(_values, jax.tree_util.Partial(schedule))
    return map_chunks(values, (times,), CHUNK).astype(float)


def named_schedule(kind: str, start: float, *, end: float, rate: float, steps: int) -> Schedule:
    """The schedule called `kind`: "constant", "inverse" or "geometric".

    Arguments:
        start: the value at step 0.
        end, steps: of `GeometricDecay`, not read by the others.
        rate: of `InverseDecay`, not read by the others.
    """
    kinds: dict[str, Any] = {
        "constant": Constant(start),
        "inverse": InverseDecay(start, rate),
        "geometric": GeometricDecay(start, end, steps),
    }
    if kind not in kinds:
        raise InputError(
            f"schedule = {kind!r}: it must be one of {', '.join(kinds)}.{near(kind, kinds)}"
        )
    return kinds[kind]
