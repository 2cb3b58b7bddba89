import numpy as np
import pytest
from scipy import special

from attlas.errors import InputError
from attlas.order_parameters import Overlaps, risk
from attlas.several_locations.task import (
    attention_error,
    attention_threshold,
    bayes_losses,
    heads_problem,
    linear_threshold,
    random_starts,
)


def test_bayes_at_one_place_is_a_softmax_head():
    losses = bayes_losses(np.random.default_rng(0), 40_000, 5, 2.0)
    oracle = Overlaps(np.eye(2)[None], np.eye(2)[None])
    value, error = risk(heads_problem(5, 2.0, lam=2.0), oracle, points=1 << 15)
    assert abs(losses.mean() - value[0]) < 5 * np.hypot(error[0], losses.std() / 200)


def test_bayes_at_two_places_weighs_pairs_by_their_odds():
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, 2, 1, 4))
    keys[0, :, 0] += 2.0
    keys[1, :, 1] += 1.0
    odds = {
        (a, b): np.exp(2 * keys[0, 0, a] + keys[1, 0, b])
        for a in range(4)
        for b in range(4)
        if a != b
    }
    total = sum(odds.values())
    guess = sum(odd / total * (values[0, 0, a] + values[1, 0, b]) for (a, b), odd in odds.items())
    wanted = (guess - values[0, 0, 0] - values[1, 0, 1]) ** 2
    assert bayes_losses(np.random.default_rng(0), 1, 4, (2.0, 1.0))[0] == pytest.approx(wanted)
    with pytest.raises(InputError, match="one or two"):
        bayes_losses(rng, 1, 4, (1.0, 1.0, 1.0))


def test_the_largest_field_errs_as_often_as_the_formula_says():
    rng = np.random.default_rng(0)
    signal = attention_threshold(20)
    assert attention_error(signal, 20) == pytest.approx(0.1)
    labels = rng.choice([-1, 1], 40_000)
    fields = rng.standard_normal((40_000, 20))
    fields[:, 0] += labels * signal
    top = fields.max(1)
    errors = [((top > b) != (labels > 0)).mean() for b in np.linspace(1, 4, 61)]
    assert min(errors) == pytest.approx(0.1, abs=0.006)


def test_the_sum_of_fields_errs_as_often_as_its_threshold_says():
    assert special.ndtr(-linear_threshold(50) / np.sqrt(50)) == pytest.approx(0.1)


def test_starts_are_overlaps_of_vectors():
    start = random_starts(np.random.default_rng(0), 200, 4, 2, 50, 0.5).checked()
    assert start.q[:, 0, 0].mean() == pytest.approx(0.25, rel=0.1)
