"""Words one after the other: prefixes of any length, chains by the forward filter, bags by summing
over orders, what the order says."""

import itertools

import jax
import numpy as np
import pytest

from attlas.latent_posterior.latent_tasks import Data, Topics, draw_runs
from attlas.latent_posterior.sequential import (
    Bags,
    Chains,
    Prefixes,
    enumerated,
    order_information,
)


@pytest.fixture
def chains():
    rng = np.random.default_rng(4)
    start, moves, words = (rng.dirichlet(np.ones(3), s) for s in (2, (2, 3), (2, 3)))
    return Chains(start, moves, words, np.full(2, 4))


def by_hand(chains, run, words):
    """The probability of the words, summed over all paths of the hidden state."""
    total = 0.0
    for path in itertools.product(range(3), repeat=len(words)):
        chance = chains.start[run, path[0]]
        for a, b in itertools.pairwise(path):
            chance *= chains.moves[run, a, b]
        total += chance * np.prod(
            [chains.words[run, z, w] for z, w in zip(path, words, strict=True)]
        )
    return total


def test_the_forward_filter_sums_over_all_paths(chains):
    some = np.array([[0, 2, 1, 1], [1, 1, 0, 2]])
    law, following = chains.filtered(some)
    for run, (row, words) in itertools.product(range(2), enumerate(some)):
        np.testing.assert_allclose(law[run, row], by_hand(chains, run, words), rtol=1e-12)
        longer = [by_hand(chains, run, [*words, w]) for w in range(3)]
        np.testing.assert_allclose(following[run, row], np.array(longer) / law[run, row])


def test_draws_of_chains_follow_the_filter(chains):
    drawn = draw_runs(chains, jax.random.split(jax.random.key(1), 2), 20_000)
    assert drawn.counts.shape == (2, 20_000, 12)
    words = np.asarray(drawn.counts).reshape(2, 20_000, 4, 3).argmax(-1)
    _, law, following = enumerated(chains)
    for run in range(2):
        number = words[run] @ 3 ** np.arange(3, -1, -1)
        seen = np.bincount(number, minlength=81) / 20_000
        assert abs(seen - law[run]).sum() < 3 * np.sqrt(81 / 20_000)
        next_word = np.bincount(np.asarray(drawn.target)[run], minlength=3) / 20_000
        assert abs(next_word - law[run] @ following[run]).max() < 0.02
    np.testing.assert_allclose(
        chains.bayes(jax.tree.map(lambda x: x[:, :5], drawn))[1],
        chains.filtered(words[1, :5])[1][1],
    )


def test_a_bag_is_the_mean_over_its_orders(chains):
    bags = Bags(chains)
    found = bags.bayes(Data(np.array([[[2.0, 1, 1]], [[0.0, 4, 0]]]), None))
    orders = np.array(sorted(set(itertools.permutations([0, 0, 1, 2]))))
    law, following = chains.filtered(orders)
    np.testing.assert_allclose(found[0, 0], law[0] @ following[0] / law[0].sum(), rtol=1e-12)
    np.testing.assert_allclose(found[1, 0], chains.filtered(np.ones((1, 4), int))[1][1, 0])
    drawn = draw_runs(bags, jax.random.split(jax.random.key(1), 2), 7)
    assert drawn.counts.shape == (2, 7, 3) and (np.asarray(drawn.counts).sum(-1) == 4).all()


def test_order_says_nothing_where_the_latent_stays_and_much_in_a_chain(chains):
    still = chains._replace(moves=np.tile(np.eye(3), (2, 1, 1)))
    np.testing.assert_allclose(order_information(still), 0, atol=1e-12)
    words = np.tile(np.eye(3), (2, 1, 1))
    chain = chains._replace(words=words)
    assert (order_information(chain) > 0.01).all()
    every, _, following = enumerated(chain)  # only the last word counts in a chain
    np.testing.assert_allclose(following[0], chain.moves[0][every[:, -1]], rtol=1e-12)


def test_prefixes_have_any_length_and_one_latent():
    words = np.array([[[1.0, 0, 0], [0, 0.5, 0.5]]])
    topics = Topics(np.array([[0.3, 0.7]]), words, words, np.array([5]))
    drawn = draw_runs(Prefixes(topics), jax.random.split(jax.random.key(2), 1), 5000)
    counts, latent = np.asarray(drawn.counts)[0], np.asarray(drawn.latent)[0]
    shares = np.bincount(counts.sum(-1).astype(int), minlength=5) / 5000
    assert shares.shape == (5,) and abs(shares - 0.2).max() < 0.03
    assert (counts[latent == 0][:, 1:] == 0).all() and (counts[latent == 1][:, 0] == 0).all()
    assert ((np.asarray(drawn.target)[0] == 0) == (latent == 0)).all()
    empty = Data(np.zeros((1, 1, 3)), None)
    mixed = topics._replace(words=(words + 0.1) / 1.3)
    np.testing.assert_allclose(Prefixes(mixed).bayes(empty)[0, 0], mixed.prior[0] @ words[0])
