import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy import special
from tools import explorers

from attlas.kernels import Exponential, cme_attention
from attlas.sparse_variables.construction import threshold_head
from attlas.sparse_variables.task import SparseBoolean


def on_circle(angles):
    return jnp.stack([jnp.cos(jnp.asarray(angles)), jnp.sin(jnp.asarray(angles))], -1)


def test_the_stored_tokens_are_those_of_the_notes():
    explorer = explorers.find_explorer("estimator")
    values = explorer.values
    made = explorers.scattered_tokens(max(values["tokens"]), values["truth"], values["noise"])
    assert json.loads(explorer.data) == made


def test_the_truth_is_a_draw_whose_posterior_mean_is_cme_attention(float64):
    delta = np.linspace(0, 3, 7)
    orders = np.arange(30)
    series = (
        np.where(orders == 0, 1, 2) * special.ive(orders, 10.0) @ np.cos(np.outer(orders, delta))
    )
    assert series == approx(np.exp((np.cos(delta) - 1) / 0.1), abs=1e-12)
    errors = []
    for seed in range(20):
        told = explorers.scattered_tokens(200, 0.1, 0.3, seed)
        keys, values, truth = (np.array(told[name]) for name in ("keys", "values", "truth"))
        assert len(keys) == 200 and truth[0] == approx(truth[-1])
        at_keys = np.interp(keys, np.linspace(-np.pi, np.pi, 361), truth)
        assert np.std(values - at_keys) == approx(told["noise"], rel=0.25)
        angles = np.linspace(-np.pi, np.pi, 361)

        def mean_square(temperature, ridge, keys=keys, values=values, truth=truth, angles=angles):
            mean = cme_attention(
                on_circle(angles),
                on_circle(keys[:48]),
                jnp.asarray(values[:48, None]),
                ridge=ridge,
                kernel=Exponential(temperature),
            )
            return float(np.mean((np.asarray(mean)[:, 0] - truth) ** 2))

        errors.append(
            [
                mean_square(0.1, 0.09),
                mean_square(0.1, 1.0),
                mean_square(0.1, 0.001),
                mean_square(0.5, 0.09),
                mean_square(0.03, 0.09),
            ]
        )
    mean = np.mean(errors, 0)
    assert mean[0] < mean[1:].min(), "Bayes' temperature and ridge are the best on average"


def test_the_stored_samples_are_those_of_the_bound():
    stored = json.loads(explorers.find_explorer("sparse").data)
    f, t, s, c = 2, 3, 2, 7
    assert (stored["functions"][f], stored["places"][t], stored["sharpnesses"][c]) == (
        "majority",
        100,
        4.0,
    )
    values = explorers.find_explorer("sparse").values
    for name in ("functions", "places", "sharpnesses"):
        assert stored[name] == values[name]
    head = threshold_head(SparseBoolean(100, (0, 1, 2), "majority"), sharpness=4.0)
    for kind, counted in (("norms", False), ("parameters", True)):
        asked = head.capacity(count_parameters=counted).log_samples_for(
            explorers.GAP, margin=head.margin, delta=explorers.DELTA
        )
        assert stored[kind][f][t][s][c] == approx(asked / math.log(10), abs=0.02)
    again = explorers.sample_tables(("or",), (1000,), (1, 5), (1.0, 2.0, 32.0))
    for kind in ("norms", "parameters"):
        rows = [[stored[kind][1][6][s][c] for c in (2, 5, 13)] for s in (0, 4)]
        assert again[kind][0][0][0][0] is None and rows[0][0] is None
        found = [row[1:] for row in again[kind][0][0]]
        assert np.array([row[1:] for row in rows]) == approx(np.array(found), abs=0.02)


LETTERS = explorers.find_explorer("belief")
STORED = json.loads(LETTERS.data)


def distances(attention, trained, steps, length):
    """Mean distances from the posterior of what a stored network says, and of what its probe
    reads, over new sequences."""
    step = LETTERS.values["steps"].index(steps)
    encoder, probe = explorers.stored_encoder(STORED, attention, trained, step)
    rng = np.random.default_rng(explorers.JUDGED + 1)
    counts = explorers.draw_letters(LETTERS.values, rng, np.full(500, length)).counts
    exact = explorers.letter_posterior(LETTERS.values, counts)
    state = explorers.letter_states(encoder, counts)
    read = (np.c_[state, np.ones(len(state))] @ probe).clip(0)
    found = (explorers.beliefs(LETTERS.values, encoder, counts), read / read.sum(-1, keepdims=True))
    return [float(abs(exact - belief).sum(-1).mean() / 2) for belief in found]


@pytest.mark.parametrize("attention", explorers.ATTENTION)
def test_the_stored_networks_do_what_the_article_says(attention):
    for length in (2, 8, 24, 40):
        assert max(distances(attention, "every", 10_000, length)) < 0.05
    said, read = distances(attention, "every", 1000, 16)
    assert said > 0.15 and read < 0.07, "the state holds the posterior before predictions say it"
    assert distances(attention, "every", 10, 24)[0] > 0.5
    assert distances(attention, "one", 10_000, 16)[0] < 0.04
    assert distances(attention, "one", 10_000, 2)[0] > 0.2
    if attention == "softmax":
        assert distances(attention, "one", 10_000, 0)[0] > 0.2


def test_a_stored_network_is_not_minimal():
    encoder, _ = explorers.stored_encoder(STORED, "softmax", "every", -1)
    counts = np.array([[4.0, 1, 2, 1, 3, 2], [1, 4, 1, 2, 3, 2]])
    exact = explorers.letter_posterior(LETTERS.values, counts)
    said = explorers.beliefs(LETTERS.values, encoder, counts)
    assert exact[0] == approx(exact[1]) and 1e-3 < abs(said[0] - said[1]).max() < 0.2


def test_arrays_are_stored_to_sixteen_bits():
    rng = np.random.default_rng(0)
    first, probe = explorers.stored_encoder(STORED, "CME", "one", 2)
    arrays = explorers.named_arrays(first, probe)
    arrays = {name: x + 0.1 * rng.standard_normal(x.shape) for name, x in arrays.items()}
    packed = explorers.pack(arrays)
    again = explorers.stored_encoder(
        STORED | {"networks": {"CME": {"one": [packed]}}}, "CME", "one", 0
    )
    for (name, x), scale in zip(arrays.items(), packed["scales"], strict=True):
        assert explorers.named_arrays(*again)[name] == approx(x, abs=0.51 * scale + 1e-7), name
        assert scale <= abs(x).max() / 31_900


def test_letters_are_those_of_their_topics():
    seen = explorers.draw_letters(LETTERS.values, np.random.default_rng(1), np.full(40_000, 5))
    words, prior = np.array(LETTERS.values["words"]), np.array(LETTERS.values["prior"])
    assert (seen.counts.sum(-1) == 5).all()
    assert seen.counts.mean(0) / 5 == approx(prior @ words, abs=0.01)
    exact = explorers.letter_posterior(LETTERS.values, seen.counts)
    assert exact.mean(0) == approx(prior, abs=0.01)


@pytest.mark.long
def test_the_stored_networks_are_of_this_code():
    assert STORED["code"] == explorers.letters_digest(LETTERS.values), (
        "`python -m tools.explorers belief` trains them again"
    )
