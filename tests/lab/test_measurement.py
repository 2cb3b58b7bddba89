from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attlas.claims import catalogue
from attlas.errors import InputError
from attlas.lab.measurement import claim_errors_named, drop_compiled_programs, measure_batch


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists memory maps")
@pytest.mark.parametrize(("allowed", "forgotten"), [(10**9, []), (10, [True])])
def test_compiled_programs_are_forgotten_where_there_are_too_many(monkeypatch, allowed, forgotten):
    found = []
    monkeypatch.setattr("attlas.lab.measurement.MAX_MEMORY_MAPS", allowed)
    monkeypatch.setattr("attlas.lab.measurement.jax.clear_caches", lambda: found.append(True))
    drop_compiled_programs()
    assert found == forgotten


@pytest.mark.parametrize("values", [np.array([object()]), np.array([1j])])
def test_evidence_that_no_block_can_hold_is_told(toy, values):
    odd = replace(toy, function=lambda cells, draws: {"odd": ("cell", values)})
    with pytest.raises(
        InputError, match=r"returned odd of type .*: it must be numbers, truth values or words"
    ):
        measure_batch(odd, [odd.quick], 0)


def test_a_parameter_that_a_setting_lacks_is_an_input_error_for_any_claim():
    zeta = catalogue()["single-location/zeta"]
    with (
        pytest.raises(InputError, match=r"'single-location/zeta', its measurement: UnknownParam"),
        claim_errors_named(zeta, "its measurement"),
    ):
        zeta.quick.nothing  # noqa: B018


def test_another_exception_in_a_claim_of_the_package_is_a_bug():
    zeta = catalogue()["single-location/zeta"]
    with pytest.raises(KeyError), claim_errors_named(zeta, "its measurement"):
        raise KeyError("x")


def test_an_input_error_of_a_claim_file_names_the_claim(toy):
    with (
        pytest.raises(InputError, match=r"square\.py, line \d+: claim 'toy/square': n = 1: never"),
        claim_errors_named(toy, "its measurement"),
    ):
        raise InputError("n = 1: never")


def test_a_measurement_that_cannot_take_its_arguments_is_named_by_its_first_line(toy):
    with (
        pytest.raises(InputError, match=r"square\.py, line \d+: claim 'toy/square'.*TypeError"),
        claim_errors_named(toy, "its measurement"),
    ):
        toy.function()
