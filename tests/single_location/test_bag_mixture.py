"""Bags held out switch on what they need, and nothing else."""

import numpy as np
import pytest
from scipy import optimize, special

from attlas.single_location import bag_mixture
from attlas.single_location.bag_mixture import _stack, _weigh, fit_mixture
from tests.conftest import SEED
from tests.defaults import numbers_by_default

COUNT = 160
FOLD = np.arange(COUNT) % 5


def drawn(task, seed=SEED):
    """Bags of six instances: one with a large first feature decides by its second, linearly or by
    a cosine of it, or the mean of all decides by its square."""
    rng = np.random.default_rng(seed)
    dim = 3 if task == "cosine" else 8
    bags, place = rng.normal(size=(COUNT, 6, dim)), rng.integers(6, size=COUNT)
    i = np.arange(COUNT)
    bags[i, place, 0] += 5
    said = bags[i, place, 1]
    if task == "cosine":
        said = np.cos(2 * said)
    if task == "whole":
        said = np.sqrt(6) * bags.mean(1)[:, 1]
        said = said**2
    return list(bags), (said + 0.2 * rng.normal(size=COUNT))[:, None], place


def fitted(bags, y, **options):
    options = {"loss": "squared", "weight": np.ones(COUNT), "fold": FOLD} | options
    return fit_mixture(bags, y, **options)


def test_a_linear_task_stays_linear_without_a_companion():
    bags, y, place = drawn("linear")
    found = fitted(bags, y)
    assert found.features is None and found.whole is None
    assert found.shares[0] == pytest.approx(1, abs=0.02)
    assert np.mean([w[:, 0].argmax() for w in found.attention(bags)] == place) > 0.95


def test_a_deciding_instance_read_by_a_cosine_takes_features():
    bags, y, place = drawn("cosine")
    found, linear = fitted(bags, y), fitted(bags, y, features="linear")
    assert found.features is not None
    error, other = (np.mean((x.aside - y) ** 2) for x in (found, linear))
    assert error < 0.5 * other
    loud = [(w @ found.selection.loudness).argmax() for w in found.attention(bags)]
    assert np.mean(loud == place) > 0.8


def test_a_bag_that_counts_as_a_whole_takes_the_companion():
    bags, y, _ = drawn("whole")
    found, alone = fitted(bags, y), fitted(bags, y, whole=False)
    assert found.whole is not None and alone.whole is None
    assert found.sizes[1] > found.sizes[0]
    assert np.mean((found.aside - y) ** 2) < 0.7 * np.mean((alone.aside - y) ** 2)


def test_the_output_is_offset_and_shares_of_the_parts():
    bags, y, _ = drawn("cosine")
    found = fitted(bags, y, whole=True, features="kernel")
    head = found.selection.respond(found.features(bags))
    expected = found.offset + found.shares[0] * head + found.shares[1] * found.whole.respond(bags)
    np.testing.assert_allclose(found.respond(bags), expected)
    spoken = np.array([x.sum(0) for x in found.speak(bags)])
    assert np.ptp(spoken - found.shares[0] * head) < 1e-9, "but for the head's own offset"


def test_shares_minimise_the_weighted_loss_and_are_not_negative():
    rng = np.random.default_rng(SEED)
    said, weight = rng.normal(size=(2, 60, 1)), rng.uniform(0.5, 2, 60)
    y = 1e3 * (3 + 2 * said[0] - said[1] + rng.normal(size=(60, 1)))
    offset, shares = _weigh(said, y, weight, "squared")
    root, x = np.sqrt(weight)[:, None], np.column_stack([np.ones(60), said[0]])
    expected = np.linalg.lstsq(root * x, root * y, rcond=None)[0][:, 0]
    np.testing.assert_allclose([offset[0], shares[0]], expected, rtol=1e-4)
    assert shares[1] == 0, "what would be subtracted is left out"
    label = (rng.random((60, 1)) < special.expit(1 + 2 * said[0])).astype(float)
    offset, shares = _weigh(said[:1], label, weight, "logistic")
    unit = said[0].std()

    def lost(point):
        logit = point[0] + point[1] * said[0]
        loss = np.logaddexp(0, logit) - label * logit
        return weight @ loss[:, 0] + (point[1] * unit) ** 2 / 2

    np.testing.assert_allclose([offset[0], shares[0]], optimize.minimize(lost, [0, 1]).x, atol=1e-3)


def test_what_is_said_aside_is_weighed_without_the_fold():
    rng = np.random.default_rng(SEED)
    said, y, fold = rng.normal(size=(60, 1)), rng.normal(size=(60, 1)), np.arange(60) % 3
    found = _stack([said], y + said, np.ones(60), fold, "squared")
    offset, shares = _weigh(said[None, fold != 1], (y + said)[fold != 1], np.ones(40), "squared")
    np.testing.assert_allclose(found.aside[fold == 1], offset + shares * said[fold == 1])
    assert found.loss == pytest.approx(np.mean((found.aside - y - said) ** 2))


def test_few_bags_have_one_linear_head():
    bags, y, _ = drawn("cosine")
    found = fit_mixture(bags[:19], y[:19], loss="squared", weight=np.ones(19), fold=FOLD[:19])
    assert found.features is None and found.whole is None and found.shares.tolist() == [1]
    np.testing.assert_array_equal(found.respond(bags), found.selection.respond(bags))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(bag_mixture) == ["fit_mixture seed=0"]
