"""Features whose products are the kernel's."""

import numpy as np
import pytest

from attlas.single_location.bag_features import Features, similarity
from attlas.single_location.bag_heads import Scaling
from tests.conftest import SEED
from tests.single_location.test_bag_heads import ragged


def test_similarity_by_hand():
    rng = np.random.default_rng(SEED)
    x, z = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    expected = [[np.exp(-0.7 * ((a - b) ** 2).sum() / 3) for b in z] for a in x]
    np.testing.assert_allclose(similarity(x, z, 0.7), expected, rtol=1e-12)


def test_products_of_features_are_the_kernel_where_every_instance_is_a_centre():
    rng = np.random.default_rng(SEED)
    bags, weight = ragged(rng, count=6, dim=4, longest=6), rng.uniform(0.5, 2, 6)
    lift = Features.of(bags, weight, 1.3, count=1000)
    scaled, _ = Scaling.of(bags, weight)(bags)
    lifted = np.concatenate(lift(bags))
    gram = similarity(scaled.tokens, scaled.tokens, 1.3)
    np.testing.assert_allclose(lifted @ lifted.T, gram, atol=1e-6)
    assert [len(x) for x in lift(bags)] == [len(x) for x in bags]


def test_centres_are_instances_drawn_by_the_weight_of_their_bag():
    rng = np.random.default_rng(SEED)
    bags = [rng.normal(size=(50, 2)), rng.normal(size=(5, 2)) + 100, rng.normal(size=(9, 2)) - 100]
    weight = np.array([1.0, 1.0, 0.0])
    chosen = [Features.of(bags, weight, 1.0, seed, count=4) for seed in range(40)]
    back = np.concatenate([f.centres * f.scaling.deviation + f.scaling.mean for f in chosen])
    assert back.min() > -50, "a bag without weight has no centres"
    assert (back[:, 0] > 50).mean() == pytest.approx(0.4, abs=0.1)  # 1/2, less what runs out
    other = Features.of(bags, weight, 1.0, 1, count=4).centres
    assert not np.array_equal(chosen[0].centres, other)
