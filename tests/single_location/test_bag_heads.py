"""Bags in one matrix give what bags one by one give, and their gradient is the gradient."""

import numpy as np
import pytest
from scipy import special

from attlas.single_location.bag_heads import (
    LOSSES,
    Bags,
    Data,
    Heads,
    Scaling,
    attend,
    logistic_loss,
    penalised,
    respond,
    squared_loss,
)
from tests.conftest import SEED


def ragged(rng, count=23, dim=5, longest=90):
    return [rng.normal(size=(rng.integers(1, longest), dim)) for _ in range(count)]


def drawn_heads(rng, lanes, heads, dim, k):
    sizes = ((lanes, heads, dim), (lanes, heads), (lanes, heads, dim, k), (lanes, k))
    return Heads(*(rng.normal(size=s) for s in sizes))


def test_bags_hold_every_instance_once_in_order():
    bags = ragged(np.random.default_rng(SEED))
    laid = Bags.of(bags)
    for i, bag in enumerate(bags):
        np.testing.assert_array_equal(laid.tokens[laid.bag == i], bag)
        np.testing.assert_array_equal(laid.tokens[laid.first[i]], bag[0])


def test_the_heads_in_one_matrix_are_the_heads_bag_by_bag():
    rng = np.random.default_rng(SEED)
    bags = ragged(rng)
    laid, heads = Bags.of(bags), drawn_heads(rng, 3, 2, 5, 4)
    square = (laid.tokens**2).sum(-1)
    said, shares = respond(heads, laid, square), attend(heads, laid, square)
    for i, bag in enumerate(bags):
        scores = (
            np.einsum("ld,ahd->lah", bag, heads.select)
            + (bag**2).sum(1)[:, None, None] * heads.norm
        )
        p = special.softmax(scores, axis=0)
        np.testing.assert_allclose(shares[laid.bag == i], p, atol=1e-12)
        np.testing.assert_allclose(
            said[i], heads.offset + np.einsum("lah,ld,ahdk->ak", p, bag, heads.value), atol=1e-10
        )


def test_scores_that_no_exponential_holds_are_mixed_as_others():
    rng = np.random.default_rng(SEED)
    bags = ragged(rng)
    laid = Bags.of(bags)
    heads = drawn_heads(rng, 1, 1, 5, 1)
    heads = heads._replace(select=np.full((1, 1, 5), 400.0), norm=0 * heads.norm)
    said = respond(heads, laid, np.ones(len(laid.tokens)))
    for i, bag in enumerate(bags):
        expected = special.softmax(400 * bag.sum(1)) @ bag @ heads.value[0, 0] + heads.offset[0]
        np.testing.assert_allclose(said[i, 0], expected, rtol=1e-9)


def test_a_large_constant_feature_becomes_0_whatever_rounding_says():
    bags = [np.array([[1e9 + 0.1, float(i)]] * (i + 3)) for i in range(5)]
    laid, _ = Scaling.of(bags, np.linspace(0.3, 1.7, 5))(bags)
    np.testing.assert_allclose(laid.tokens[..., 0], 0, atol=1e-5)


def test_scaling_counts_bags_and_leaves_constant_features_alone():
    bags = [np.array([[0.0, 3.0]] * 9), np.array([[2.0, 3.0]])]
    scaling = Scaling.of(bags, np.ones(2))
    np.testing.assert_allclose(scaling.mean, [1, 3])
    np.testing.assert_allclose(scaling.deviation, [1, 1])


def test_bags_and_their_square_norms_are_scaled_by_the_weighted_moments():
    rng = np.random.default_rng(SEED)
    bags, weight = ragged(rng, count=7, dim=3), rng.uniform(0.5, 2, 7)
    share = np.concatenate(
        [np.full(len(bag), w / len(bag)) for bag, w in zip(bags, weight, strict=True)]
    )

    def standard(x):
        mean = np.average(x, axis=0, weights=share)
        return (x - mean) / np.sqrt(np.average((x - mean) ** 2, axis=0, weights=share))

    flat = standard(np.concatenate(bags))
    laid, square = Scaling.of(bags, weight)(bags)
    np.testing.assert_allclose(laid.tokens, flat, atol=1e-12)
    np.testing.assert_allclose(square, standard((flat**2).sum(1)), atol=1e-12)


def test_losses_by_hand():
    rng = np.random.default_rng(SEED)
    y, values = (rng.normal(size=size) for size in ((6, 3, 4), (6, 4)))
    np.testing.assert_allclose(squared_loss(y, values)[0], ((y - values[:, None]) ** 2).sum(-1))
    chosen = rng.integers(4, size=6)
    p = special.softmax(y, axis=-1)[np.arange(6), :, chosen]
    np.testing.assert_allclose(logistic_loss(y, np.eye(4)[chosen])[0], -np.log(p))
    said, yes = y[..., :1], np.array([1.0, 0, 0, 1, 1, 0])
    p = special.expit(np.where(yes[:, None] == 1, said[..., 0], -said[..., 0]))
    np.testing.assert_allclose(logistic_loss(said, yes[:, None])[0], -np.log(p))
    far = np.array([[[800.0]], [[-800.0]]])
    np.testing.assert_allclose(logistic_loss(far, np.array([[0.0], [1.0]]))[0], 800)


def drawn_data(rng, k):
    laid = Bags.of(ragged(rng, count=9, dim=6, longest=7))
    target = np.eye(3)[rng.integers(3, size=9)] if k == 3 else rng.integers(2, size=(9, 1)) + 0.0
    square = (laid.tokens**2).sum(-1) / 6
    return Data(laid, square, target, rng.uniform(size=(3, 9)), np.array([0.3, 0.5, 0.7]))


def test_what_is_descended_is_the_weighted_loss_and_the_penalty():
    rng = np.random.default_rng(SEED)
    data, heads = drawn_data(rng, 1), drawn_heads(rng, 3, 2, 6, 1)
    said = respond(heads, data.bags, data.square)[..., 0]
    loss = ((said - data.target) ** 2 * data.weight.T).sum(0)
    sizes = [(x**2).reshape(3, -1).sum(1) for x in (heads.select, heads.norm, heads.value)]
    expected = loss + np.array([0.3, 0.5, 0.7]) * sum(sizes)
    np.testing.assert_allclose(penalised(squared_loss, heads, data)[0], expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("k", [1, 3])
def test_the_gradient_is_that_of_differences(loss, k):
    rng = np.random.default_rng(SEED)
    data, heads = drawn_data(rng, k), drawn_heads(rng, 3, 2, 6, k)
    _, gradient = penalised(LOSSES[loss], heads, data)
    point, step = heads.flat(), 1e-6
    for j in range(point.shape[1]):
        moved = [point + sign * step * np.eye(point.shape[1])[j] for sign in (1, -1)]
        up, down = (penalised(LOSSES[loss], heads.like(x), data)[0] for x in moved)
        np.testing.assert_allclose(gradient.flat()[:, j], (up - down) / 2 / step, atol=1e-6)


def test_weights_one_after_the_other_are_put_back():
    heads = drawn_heads(np.random.default_rng(SEED), 3, 2, 6, 4)
    for x, y in zip(heads, heads.like(heads.flat()), strict=True):
        np.testing.assert_array_equal(x, y)
