import os

import jax
import numpy as np
import pytest

from attlas.errors import InputError, available_memory, check_memory, near, positive, whole


def test_near_offers_the_closest_names_and_nothing_for_a_stranger():
    assert near("gama", ["gamma", "steps"]) == " Did you mean gamma?"
    assert near("gama", ["gamma", "gamma"]) == " Did you mean gamma?"
    assert near("xyzzy", ["gamma", "lam"]) == ""


@pytest.mark.parametrize("value", [0, 1.5, "3", True, None, -2])
def test_whole_names_the_thing_and_the_value(value):
    with pytest.raises(
        InputError, match=rf"steps = {value!r}: it must be a whole number, at least 1"
    ):
        whole("steps", value, 1)


def test_whole_takes_numpy_integers():
    assert whole("steps", np.int64(3), 1) == 3


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, [1.0, -2.0]])
def test_positive_refuses_what_is_not(value):
    with pytest.raises(InputError, match="lam = "):
        positive("lam", value)


def test_positive_lets_tracers_pass():
    assert float(jax.jit(lambda x: positive("lam", x))(-1.0)) == -1


def test_what_does_not_fit_into_memory_is_named_with_both_sizes(monkeypatch):
    monkeypatch.setattr("attlas.errors.available_memory", lambda: 1e10)
    check_memory("a small table", 1e10)
    with pytest.raises(InputError) as caught:
        check_memory("a large table", 2e10, ": make it smaller")
    assert str(caught.value) == (
        "a large table would take 20 GB of memory, and 10 GB are free: make it smaller"
    )


def test_free_memory_is_known_and_less_than_the_machine_has():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory() <= whole
