import itertools
import math

import numpy as np
import pytest
from pytest import approx
from scipy import integrate, stats

from attlas.errors import InputError
from attlas.latent_posterior import FiniteLatent, inference
from attlas.latent_posterior.inference import (
    asymmetry,
    beta_coins,
    chain_law,
    classes,
    conditional_information,
    likelihoods,
    mixture_law,
    sequences,
    urn_distance,
    urn_law,
)
from tests.defaults import numbers_by_default

RNG = np.random.default_rng(8)
TOPICS = FiniteLatent([0.5, 0.3, 0.2], RNG.dirichlet(np.ones(4), 3))


def test_all_sequences_are_listed_in_the_order_of_the_law():
    assert sequences(3, 2).tolist() == [list(p) for p in itertools.product(range(3), repeat=2)]
    law = mixture_law(TOPICS, 3)
    assert law.shape == (4, 4, 4) and law.sum() == approx(1)
    assert law[1, 3, 2] == approx(
        (np.array(TOPICS.prior) * TOPICS.words[:, [1, 3, 2]].prod(1)).sum()
    )


def test_polyas_urn_is_scipys_beta_binomial():
    law = urn_law([3.5, 2.0], 6)
    by_ones = [law.reshape(-1)[sequences(2, 6).sum(1) == k].sum() for k in range(7)]
    np.testing.assert_allclose(by_ones, stats.betabinom.pmf(range(7), 6, 2.0, 3.5), atol=1e-14)


def test_an_urn_without_replacement_is_hypergeometric():
    law = urn_law([4, 3], 5, -1)
    by_ones = [law.reshape(-1)[sequences(2, 5).sum(1) == k].sum() for k in range(6)]
    np.testing.assert_allclose(by_ones, stats.hypergeom.pmf(range(6), 7, 3, 5), atol=1e-14)
    np.testing.assert_allclose(
        urn_law([4, 3], 5, 0), mixture_law(FiniteLatent([1.0], [[4 / 7, 3 / 7]]), 5), atol=1e-15
    )


@pytest.mark.parametrize("length", [1, 2, 3, 6, 9])
def test_a_few_coins_are_the_whole_mixture_at_their_length(length):
    coins = beta_coins(2.0, 3.5, length)
    assert len(coins.prior) == length // 2 + 1
    np.testing.assert_allclose(mixture_law(coins, length), urn_law([3.5, 2.0], length), atol=1e-14)
    ones = length // 2

    def integrand(p):
        return p**ones * (1 - p) ** (length - ones) * stats.beta.pdf(p, 2.0, 3.5)

    row = (1,) * ones + (0,) * (length - ones)
    assert mixture_law(coins, length)[row] == approx(integrate.quad(integrand, 0, 1)[0], rel=1e-9)


def test_coins_for_a_shorter_length_do_not_do_for_a_longer_one():
    assert abs(mixture_law(beta_coins(2.0, 3.5, 3), 4) - urn_law([3.5, 2.0], 4)).max() > 1e-4


def test_asymmetry_looks_at_every_pair_of_neighbours():
    """One letter 1, at a given place of three: exchanged with a neighbour it is another law."""
    for place in range(3):
        law = np.zeros((2, 2, 2))
        law[tuple(np.eye(3, dtype=int)[place])] = 1
        assert asymmetry(law) == 1
    last = np.einsum("a,bc->abc", [0.5, 0.5], [[0.1, 0.6], [0.2, 0.1]])
    assert asymmetry(last) >= 0.4 - 1e-15  # which only the last two letters show fully
    first_two = np.einsum("ab,c->abc", [[0.1, 0.6], [0.2, 0.1]], [0.5, 0.5])
    assert asymmetry(first_two) == approx(asymmetry(last))


def test_asymmetry_is_zero_for_exchangeable_laws_alone():
    for law in (mixture_law(TOPICS, 4), urn_law([2, 1, 5], 4), urn_law([5, 3], 4, -1)):
        assert asymmetry(law) < 1e-15
        assert (
            max(abs(law - law.transpose(order)).max() for order in itertools.permutations(range(4)))
            < 1e-15
        )
    assert asymmetry(chain_law(0.7, 4)) > 0.1 and asymmetry(chain_law(0.5, 4)) < 1e-15
    assert chain_law(0.7, 5).sum() == approx(1)


def test_the_distance_of_an_urn_is_the_distance_of_the_laws_of_sequences():
    for balls in ([6, 4], [3, 3, 4], [9, 1]):
        exact = abs(urn_law(balls, 4, -1) - urn_law(balls, 4, 0)).sum() / 2
        assert urn_distance(balls, 4) == approx(exact, abs=1e-13)
    assert urn_distance([50, 50], 10) == approx(0.0259, abs=5e-5)
    # For long sequences k E|1 - G^2| / 4N, with E|1 - G^2| = 4 phi(1).
    assert urn_distance([5e6, 5e6], 400) == approx(400 * stats.norm.pdf(1) / 1e7, rel=0.01)


def test_information_is_the_definition():
    joint = RNG.dirichlet(np.ones(12)).reshape(6, 2)
    partition = np.array([0, 1, 0, 2, 1, 0])
    total = 0.0
    for s in range(3):
        block = joint[partition == s]
        mass = block.sum()
        law = block / mass
        independent = np.outer(law.sum(1), law.sum(0))
        total += mass * (law * np.log(law / independent)).sum()
    assert conditional_information(joint, partition) == approx(total, abs=1e-14)


def test_the_posterior_is_sufficient_and_less_is_not():
    tokens = sequences(4, 3)
    joint = likelihoods(TOPICS, 3) * np.array(TOPICS.prior)
    posterior = joint / joint.sum(1, keepdims=True)
    for label in (np.eye(3), RNG.dirichlet(np.ones(2), 3)):
        assert conditional_information(joint @ label, classes(posterior)) < 1e-15
        assert conditional_information(joint @ label, classes(tokens[:, :1])) > 1e-4
        everything = conditional_information(joint @ label, np.zeros(64, int))
        prior = np.array(TOPICS.prior) @ label
        law = joint @ label
        mutual = (law * np.log(law / (law.sum(1, keepdims=True) * prior))).sum()
        assert everything == approx(mutual, abs=1e-14)


def test_classes_ignore_rounding_and_nothing_else():
    statistic = np.array([[0.1 + 0.2, 1.0], [0.3, 1.0], [0.3, 1.1], [-np.inf, 0.0], [-np.inf, 0.0]])
    found = classes(statistic)
    assert found[0] == found[1] != found[2] and found[3] == found[4]
    assert len(set(found.tolist())) == 3


@pytest.mark.parametrize("balls", [2, 10, 100])
def test_two_draws_without_replacement_have_a_covariance_that_no_mixture_has(balls):
    without, polya = (urn_law([balls / 2] * 2, 2, added) for added in (-1, 1))
    covariance = without[1, 1] - without[1].sum() * without[:, 1].sum()
    assert covariance == approx(-1 / (4 * (balls - 1)), abs=1e-15)
    assert polya[1, 1] > polya[1].sum() * polya[:, 1].sum()


def test_labels_that_read_half_of_the_latent_need_that_half_of_the_posterior():
    first, second = (FiniteLatent([0.4, 0.6], RNG.dirichlet(np.ones(n), 2)) for n in (3, 2))
    pair = FiniteLatent(np.kron(first.prior, second.prior), np.kron(first.words, second.words))
    halves = np.kron(np.eye(2), np.ones(2))  # which first half each latent has
    partition = classes(pair.posterior(sequences(6, 3)) @ halves.T)
    joint = likelihoods(pair, 3) * pair.prior
    label = RNG.dirichlet(np.ones(3), 2)
    assert conditional_information(joint @ halves.T @ label, partition) < 1e-14
    assert conditional_information(joint, partition) > 1e-4


def test_bad_input_is_told_in_a_sentence():
    with pytest.raises(InputError, match="too many to list"):
        sequences(10, 12)
    with pytest.raises(InputError, match="the urn holds 5 balls"):
        urn_distance([2, 3], 6)
    with pytest.raises(InputError, match="length = 0"):
        beta_coins(1.0, 1.0, 0)
    assert math.isfinite(urn_distance([2, 3], 5))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(inference) == [
        "urn_law added=1",
        "urn_log_probability added=1",
        "classes tolerance=1e-09",
    ]
