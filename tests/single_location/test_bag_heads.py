"""Bags in rows give what bags one by one give."""

import jax.numpy as jnp
import numpy as np
from scipy import special

from attlas.padding import bucket
from attlas.single_location.bag_heads import (
    LOSSES,
    WIDTHS,
    Bags,
    Data,
    Heads,
    Scaling,
    logistic_loss,
    respond,
    squared_loss,
)
from tests.conftest import SEED


def ragged(rng, count=23, dim=5, longest=90):
    return [rng.normal(size=(rng.integers(1, longest), dim)) for _ in range(count)]


def test_rows_hold_every_instance_once_and_each_bag_counts_once():
    bags = ragged(np.random.default_rng(SEED))
    laid = Bags.of(bags)
    back = np.split(laid.tokens[laid.share > 0], np.cumsum(laid.lengths)[:-1])
    assert all(np.array_equal(a, b) for a, b in zip(back, bags, strict=True))
    shares = np.bincount(laid.bag, laid.share.sum(1))
    np.testing.assert_allclose(shares[: len(bags)], 1)


def test_rows_are_as_wide_as_costs_no_more_room():
    for bags in (ragged(np.random.default_rng(SEED)), [np.ones((12, 2))] * 16):
        cells = {w: w * bucket(sum(-(-len(bag) // w) for bag in bags)) for w in WIDTHS}
        width = max(w for w in WIDTHS if cells[w] == min(cells.values()))
        assert Bags.of(bags).share.shape == (cells[width] // width, width)
    assert width == 12


def test_the_heads_in_rows_are_the_heads_bag_by_bag(float64):
    rng = np.random.default_rng(SEED)
    bags = ragged(rng)
    laid = Bags.of(bags, dim=bucket(5))
    heads = Heads(*(rng.normal(size=s) for s in ((3, 2, 5), (3, 2), (3, 2, 5, 4), (3, 4))))
    square = (laid.tokens**2).sum(-1)
    padded = heads._replace(
        select=np.pad(heads.select, ((0, 0), (0, 0), (0, 1))),
        value=np.pad(heads.value, ((0, 0), (0, 0), (0, 1), (0, 0))),
    )
    data = Data(
        laid.tokens, square, laid.share > 0, laid.bag, np.zeros((bucket(24), 4)), None, None
    )
    said = np.asarray(respond(padded, data))
    for i, bag in enumerate(bags):
        scores = (
            np.einsum("ld,ahd->lah", bag, heads.select)
            + (bag**2).sum(1)[:, None, None] * heads.norm
        )
        p = special.softmax(scores, axis=0)
        np.testing.assert_allclose(
            said[i], heads.offset + np.einsum("lah,ld,ahdk->ak", p, bag, heads.value), atol=1e-10
        )


def test_scores_that_no_exponential_holds_are_mixed_as_others(float64):
    rng = np.random.default_rng(SEED)
    bags = ragged(rng)
    laid = Bags.of(bags)
    assert not (laid.share > 0).all()  # some rows have padding
    select, value = np.full((1, 1, 5), 400.0), rng.normal(size=(1, 1, 5, 1))
    heads = Heads(select, np.zeros((1, 1)), value, np.zeros((1, 1)))
    count = int(laid.bag.max()) + 1
    data = Data(
        *(laid.tokens, 0 * laid.share, laid.share > 0, laid.bag, np.zeros((count, 1)), None, None)
    )
    said = np.asarray(respond(heads, data))
    for i, bag in enumerate(bags):
        expected = special.softmax(400 * bag.sum(1)) @ bag @ value[0, 0]
        np.testing.assert_allclose(said[i, 0], expected, rtol=1e-9)


def test_a_large_constant_feature_becomes_0_whatever_rounding_says():
    bags = [np.array([[1e9 + 0.1, float(i)]] * (i + 3)) for i in range(5)]
    laid, _ = Scaling.of(bags, np.linspace(0.3, 1.7, 5))(bags, 2)
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
    laid, square = Scaling.of(bags, weight)(bags, 4)
    inside = laid.share > 0
    np.testing.assert_allclose(laid.tokens[inside], np.pad(flat, ((0, 0), (0, 1))), atol=1e-12)
    np.testing.assert_allclose(square[inside], standard((flat**2).sum(1)), atol=1e-12)
    assert not square[~inside].any() and not laid.tokens[~inside].any()


def test_losses_by_hand(float64):
    rng = np.random.default_rng(SEED)
    y, values = (jnp.asarray(rng.normal(size=size)) for size in ((6, 3, 4), (6, 4)))
    np.testing.assert_allclose(squared_loss(y, values), ((y - values[:, None]) ** 2).sum(-1))
    chosen = rng.integers(4, size=6)
    p = special.softmax(y, axis=-1)[np.arange(6), :, chosen]
    np.testing.assert_allclose(logistic_loss(y, jnp.eye(4)[chosen]), -np.log(p))
    said, yes = y[..., :1], jnp.array([1.0, 0, 0, 1, 1, 0])
    p = special.expit(np.where(yes[:, None] == 1, said[..., 0], -said[..., 0]))
    np.testing.assert_allclose(logistic_loss(said, yes[:, None]), -np.log(p))


def test_what_is_descended_is_the_weighted_loss_and_the_penalty(float64):
    rng = np.random.default_rng(SEED)
    bags = ragged(rng, count=9, dim=6)
    laid = Bags.of(bags)
    heads = Heads(*(rng.normal(size=s) for s in ((3, 2, 6), (3, 2), (3, 2, 6, 1), (3, 1))))
    count = int(laid.bag.max()) + 1
    data = Data(
        *(laid.tokens, (laid.tokens**2).sum(-1), laid.share > 0, laid.bag),
        *(jnp.asarray(rng.normal(size=(count, 1))), rng.uniform(size=(3, count))),
        np.array([0.3, 0.5, 0.7]),
    )
    loss = ((np.asarray(respond(heads, data))[..., 0] - data.target) ** 2 * data.weight.T).sum(0)
    sizes = [(x**2).reshape(3, -1).sum(1) for x in (heads.select, heads.norm, heads.value)]
    expected = loss + np.array([0.3, 0.5, 0.7]) * sum(sizes)
    np.testing.assert_allclose(LOSSES["squared"][1](heads, data), expected)
