"""The companion is kernel ridge regression on summaries, held out as if it were fitted again."""

import numpy as np
import pytest

from attlas.single_location import bag_wholes
from attlas.single_location.bag_features import similarity
from attlas.single_location.bag_heads import Bags
from attlas.single_location.bag_wholes import SUMMARIES, fit_whole
from tests.conftest import SEED
from tests.single_location.test_bag_heads import ragged


def drawn(count=40):
    rng = np.random.default_rng(SEED)
    bags, weight = ragged(rng, count=count, dim=3, longest=6), rng.uniform(0.5, 2, count)
    y = np.stack([[np.sin(2 * bag.mean(0)[0]), bag.max(0)[1]] for bag in bags])
    return bags, y, weight, np.arange(count) % 5


def test_summaries_by_hand():
    bags = ragged(np.random.default_rng(SEED), count=7, dim=3, longest=6)
    mean, low, high = (
        np.stack([f(bag, axis=0) for bag in bags]) for f in (np.mean, np.min, np.max)
    )
    laid = Bags.of(bags)
    np.testing.assert_allclose(SUMMARIES["mean"](laid), mean, atol=1e-12)
    np.testing.assert_array_equal(SUMMARIES["extremes"](laid), np.hstack([low, high]))
    everything = np.hstack([mean, low, high])
    np.testing.assert_allclose(SUMMARIES["mean and extremes"](laid), everything, atol=1e-12)


def ridge_by_hand(found, bags, y, weight, kept):
    """Weighted kernel ridge regression on the bags `kept`, with the scaling of all of them."""
    x = (SUMMARIES[found.summary](Bags.of(bags)) - found.mean) / found.deviation
    kernel = 1 + similarity(x, x, found.sharpness)
    share = weight / weight.mean()
    noise = np.diag(found.ridge * len(y) / share[kept])
    inner = np.linalg.solve(kernel[np.ix_(kept, kept)] + noise, y[kept] - found.centre)
    return found.centre + kernel[:, kept] @ inner


@pytest.mark.parametrize("most", [400, 41])
def test_what_is_held_out_is_a_fit_without_the_fold(monkeypatch, most):
    """Also where every bag but the fold's is a reference of Nystrom's features."""
    monkeypatch.setattr(bag_wholes, "MAX_REFERENCES", most)
    bags, y, weight, fold = drawn()
    found = fit_whole(bags, y, weight, fold)
    everywhere = ridge_by_hand(found, bags, y, weight, np.arange(40))
    np.testing.assert_allclose(found.respond(bags), everywhere, atol=1e-8)
    for k in range(5):
        said = ridge_by_hand(found, bags, y, weight, np.flatnonzero(fold != k))
        np.testing.assert_allclose(found.aside[fold == k], said[fold == k], atol=1e-8)


def test_what_two_folds_do_not_say(monkeypatch):
    """Of one function, without a fold and the bag's own: exact in the fold, and of other bags near
    a fit that has seen neither."""
    name = "mean"
    monkeypatch.setattr(bag_wholes, "SUMMARIES", {name: SUMMARIES[name]})
    monkeypatch.setattr(bag_wholes, "SHARPNESSES", (0.3,))
    monkeypatch.setattr(bag_wholes, "RIDGES", (0.1,))
    bags, y, weight, fold = drawn()
    found = fit_whole(bags, y, weight, fold)
    off, between = 0.0, 0.0
    for k in range(5):
        own = fold == k
        np.testing.assert_allclose(found.unswayed[k][own], found.aside[own], atol=1e-12)
        for j in set(range(5)) - {k}:
            rest = np.flatnonzero((fold != k) & (fold != j))
            exact = ridge_by_hand(found, bags, y, weight, rest)[fold == j]
            off += ((found.unswayed[k][fold == j] - exact) ** 2).sum()
            between += ((found.aside[fold == j] - exact) ** 2).sum()
    assert off < 0.1 * between


def test_fewer_references_than_bags_come_near(monkeypatch):
    bags, y, weight, fold = drawn(120)
    whole = fit_whole(bags, y, weight, fold)
    monkeypatch.setattr(bag_wholes, "MAX_REFERENCES", 90)
    near = fit_whole(bags, y, weight, fold)
    assert len(near.references) == 90
    lost = [float(weight @ ((x.aside - y) ** 2).sum(1)) for x in (whole, near)]
    assert lost[1] < 1.2 * lost[0]
    left = np.mean((near.respond(bags) - y) ** 2)
    assert left < 1.5 * np.mean((near.aside - y) ** 2)


def test_the_choice_is_the_one_of_least_held_out_error(monkeypatch):
    bags, y, weight, fold = drawn()
    chosen = fit_whole(bags, y, weight, fold)
    least = weight @ ((chosen.aside - y) ** 2).sum(1)
    for name in SUMMARIES:
        for sharpness in bag_wholes.SHARPNESSES:
            monkeypatch.setattr(bag_wholes, "SUMMARIES", {name: SUMMARIES[name]})
            monkeypatch.setattr(bag_wholes, "SHARPNESSES", (sharpness,))
            one = fit_whole(bags, y, weight, fold)
            assert weight @ ((one.aside - y) ** 2).sum(1) >= least * (1 - 1e-9)
    assert np.mean((chosen.aside - y) ** 2) < 0.5 * y.var(0).mean()
