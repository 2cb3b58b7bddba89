"""Means over blocks."""

import numpy as np

from attlas.claims import check_forms


def test_blocks_make_the_mean_of_all(monkeypatch):
    monkeypatch.setattr(check_forms, "BLOCK", 7)
    values = np.random.default_rng(0).normal(size=(20, 3))
    found = check_forms.sampled_mean(lambda block, n: values[7 * block : 7 * block + n], 20, {})
    np.testing.assert_allclose(found.mean, values.mean(0))
    np.testing.assert_allclose(found.error, values.std(0, ddof=1) / np.sqrt(20))
