"""Shares of rows make a law: its centres have the moments that it says."""

import numpy as np

from attlas.latent_posterior import laws
from tests.conftest import SEED


def test_centres_make_a_law_of_mean_0_and_variance_1():
    rng = np.random.default_rng(SEED)
    shares, shape = rng.dirichlet(np.ones(5), 3), 2 + 3 * rng.normal(size=5)
    centres = laws._centres(shares, shape, 0.6)
    assert np.allclose((shares * centres).sum(1), 0, atol=1e-12)
    assert np.allclose((shares * centres**2).sum(1) + 0.6**2, 1)
    # In the order and proportions of the shape.
    apart = np.diff(centres, axis=1) / np.diff(shape)
    assert np.allclose(apart, apart[:, :1]) and (apart > 0).all()
