import jax
import numpy as np
import pytest

from attlas.draws import Draws


def same(a, b):
    return bool((jax.random.key_data(a) == jax.random.key_data(b)).all())


def test_keys_depend_on_seed_name_and_purpose_alone():
    key = Draws("map/claim", 0)("heads")
    assert same(key, Draws("map/claim", 0)("heads"))
    others = [Draws("map/claim", 1)("heads"), Draws("map/other", 0)("heads")]
    assert not any(same(key, other) for other in [*others, Draws("map/claim", 0)("tokens")])


def test_streams_differ_by_place_and_integers_fit_31_bits():
    draws = Draws("map/claim", 3)
    first, second = (draws.stream("x", block).standard_normal(4) for block in (0, 1))
    assert not np.allclose(first, second)
    assert draws.stream("x", 1).standard_normal(4) == pytest.approx(second)
    assert 0 <= draws.integer("x") < 2**31
