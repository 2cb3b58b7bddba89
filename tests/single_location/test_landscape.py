import jax
import numpy as np
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.single_location import ORACLE, Overlaps, SingleLocation, descend, risk, sphere_start
from attlas.single_location.landscape import (
    corner_rate,
    critical_lam,
    escape_rates,
    flow,
    jacobian,
    stability,
    stable_step,
    swapped_point,
)

TASK = SingleLocation()


def test_the_flow_is_the_limit_of_small_steps():
    start = sphere_start(SingleLocation(30), jax.random.key(1), 5)
    task, alpha = SingleLocation(30), 1e-7
    after = descend(task, start, lam=0.7, step_size=alpha, steps=1).isel(step=-1)
    for name, speed in flow(task, start, 0.7)._asdict().items():
        assert (after[name].values - getattr(start, name)) / alpha == approx(
            speed, rel=1e-4, abs=1e-4
        )


def test_the_flow_lowers_the_risk():
    task = SingleLocation(60)
    start = sphere_start(task, jax.random.key(2), 20)
    speed = flow(task, start, 0.4)
    ahead = Overlaps(*(x + 1e-6 * v for x, v in zip(start, speed, strict=True)))
    assert np.all(risk(task, ahead, 0.4) < risk(task, start, 0.4))


@pytest.mark.parametrize(
    ("lam", "place", "expected"),
    [
        (1.0, (1.0, 1.0), [-0.293, 1.0, 869]),
        (0.5, (0.3, 1.0), [0.45, 2.8, 535]),
        (0.1, (0.0, 0.0), [-0.77, 3.3, 5.0]),
    ],
)
def test_spectra_across_the_manifold(lam, place, expected):
    with jax.enable_x64(True):
        across = np.asarray(jacobian(TASK.constants, Overlaps(*place, 0.0, 0.0, 0.0), lam))[2:, 2:]
    assert np.sort(np.linalg.eigvals(-across).real) == approx(expected, rel=0.02)


def test_the_critical_sharpness_and_its_limit():
    for task, expected in (
        (TASK, 0.892438),
        (SingleLocation(80), 1.007782),
        (SingleLocation(400, 40), 0.988472),
    ):
        assert critical_lam(task) == approx(expected, abs=1e-6)
        assert (
            stability(task, ORACLE, 0.99 * expected)[-1]
            < 0
            < stability(task, ORACLE, 1.01 * expected)[-1]
        )
    assert critical_lam(SingleLocation(10**9)) == approx(3**0.5 / 2, abs=1e-6)
    with pytest.raises(InputError, match="dim = 4: a critical lam exists for dim above"):
        critical_lam(SingleLocation(4, 10))


def test_the_swapped_point_is_fixed_stable_and_sometimes_better():
    for lam, swapped, oracle in (
        (1 / 13, 0.06889, 0.07501),
        (0.0638, 0.0476, 0.0671),
        (0.1, 0.1155, 0.1135),
    ):
        place = swapped_point(TASK, lam)
        assert max(abs(speed) for speed in flow(TASK, place, lam)) < 1e-12
        assert stability(TASK, place, lam)[-1] < 0
        assert float(risk(TASK, place, lam)) == approx(swapped, abs=1e-4)
        assert float(TASK.oracle_risk(lam)) == approx(oracle, abs=1e-4)


def test_the_race_from_the_origin():
    rates = escape_rates(TASK, np.array([0.05, 0.1, 0.5, 1.0, 2.0]))
    assert rates.oracle / rates.swapped == approx([1.001, 1.006, 1.222, 1.786, 3.35], rel=1e-3)
    with jax.enable_x64(True):
        spectrum = np.linalg.eigvals(
            np.asarray(jacobian(TASK.constants, Overlaps(0.0, 0.0, 0.0, 0.0, 0.0), 0.5))
        ).real
    assert sorted(spectrum)[-2:] == approx(sorted([rates.oracle[2], rates.swapped[2]]), rel=1e-10)


def test_the_rate_at_the_corner_is_an_eigenvalue_there():
    for lam in (0.05, 0.1):
        assert abs(stability(TASK, ORACLE, lam) + corner_rate(TASK, lam)).min() < 1e-10


@pytest.mark.parametrize("task", [SingleLocation(30, 5, 1.3), SingleLocation(12, 3, 0.4)])
def test_formulas_are_those_of_the_flow_for_other_tokens(task):
    lam = 0.3
    origin = Overlaps(0.0, 0.0, 0.0, 0.0, 0.0)
    with jax.enable_x64(True):
        spectrum = np.linalg.eigvals(np.asarray(jacobian(task.constants, origin, lam))).real
        corner = np.linalg.eigvals(np.asarray(jacobian(task.constants, ORACLE, lam))).real
    for rate in escape_rates(task, lam):
        assert abs(spectrum - rate).min() < 1e-10
    assert abs(corner + corner_rate(task, lam)).min() < 1e-10
    assert stable_step(task, lam) == approx(2 / -corner.min())
    place = swapped_point(task, 0.02)
    assert 0 < place.theta <= 1 and abs(np.stack(flow(task, place, 0.02))).max() < 1e-12


def test_the_published_step_is_above_the_flip_threshold_and_the_others_are_below():
    assert (
        stable_step(TASK, 1.0) < 4e-3
        and stable_step(TASK, 0.1) > 4e-3
        and stable_step(TASK, 0.9) > 1e-3
    )


def test_the_penalty_lowers_the_location_overlap_of_the_value():
    start = sphere_start(TASK, jax.random.key(3), 10)
    ends = [
        descend(TASK, start, lam=0.1, step_size=4e-3, steps=3000, penalty=w).isel(step=-1)
        for w in (0.0, 5.0)
    ]
    assert abs(ends[1]["theta"]).max() < 0.05 < abs(ends[0]["theta"]).max()
    with pytest.raises(InputError, match="penalty = -1"):
        descend(TASK, start, lam=0.1, step_size=4e-3, steps=1, penalty=-1.0)
