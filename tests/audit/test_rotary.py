"""Rotary positions rotate pairs, and a config that describes them wrongly is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas import InputError
from attlas.audit.architectures import as_model
from attlas.audit.rotary import rotate_pairs
from tests.audit.conftest import changed


def test_pairs_are_rotated_as_complex_numbers_are():
    bits = np.random.default_rng(0)
    x, angles = bits.standard_normal((5, 3, 8)), bits.standard_normal((3, 4))
    expected = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)
    found = rotate_pairs(x, np.cos(angles), np.sin(angles))
    assert found == approx(np.concatenate([expected.real, expected.imag], -1))
    arrays = (jnp.asarray(array) for array in (x, np.cos(angles), np.sin(angles)))
    assert np.asarray(rotate_pairs(*arrays)) == approx(found, abs=1e-5)


def frequencies(**scaling):
    model = as_model(changed("llama", {"rope_parameters": {"rope_theta": 100.0, **scaling}}))
    return model.frequencies


def test_frequencies_fall_geometrically_and_are_stretched_as_the_config_says():
    plain = frequencies()
    assert plain == approx(100.0 ** -np.linspace(0, 1, len(plain), endpoint=False))
    assert frequencies(rope_type="linear", factor=4.0) == approx(plain / 4)
    ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    stretched = frequencies(
        rope_type="llama3", factor=8.0, original_max_position_embeddings=8, **ends
    )
    turns = 8 * plain / (2 * np.pi)
    assert stretched[turns < 1] == approx(plain[turns < 1] / 8)
    assert ((stretched <= plain) & (stretched >= plain / 8)).all()
    with pytest.raises(InputError, match="the first must be the smaller"):
        frequencies(
            rope_type="llama3",
            original_max_position_embeddings=8,
            factor=8.0,
            **dict.fromkeys(ends, 2.0),
        )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rotary_pct": 0.5}, "rotary_pct"),
        ({"rope_parameters": {"rope_type": "sand"}}, "sand"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "original_max_position_embeddings = None"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        ({"rope_parameters": {"more": 1.0}}, "more, which is not known"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor = None"),
        ({"rope_scaling": 3}, "rotary scaling"),
        ({"rope_theta": -1}, "base"),
    ],
)
def test_rotary_positions_that_cannot_be_read_are_refused(config, words):
    with pytest.raises(InputError, match=words):
        as_model(changed("llama", config))
