import numpy as np
import pytest
from scipy import special

from attlas.errors import InputError
from attlas.order_parameters import Overlaps, descend, risk, stability
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


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: attention_threshold(1), "length = 1"),
        (lambda: linear_threshold(10, level=0.5), "level = 0.5: a share of errors"),
        (lambda: bayes_losses(0, 0, 6, [2.0]), "samples = 0"),
        (lambda: bayes_losses(0, 9, 1, [2.0, 2.0]), "length = 1: 2 places need"),
        (lambda: random_starts(0, 3, 2, 4, 3, 1.0), "dim = 3: 4 directions need"),
        (lambda: random_starts(0, 3, 2, 4, 30, np.nan), "size = nan"),
        (lambda: random_starts(0, 0, 2, 4, 30, 1.0), "repeats = 0"),
    ],
)
def test_bad_input_is_one_sentence(run, says):
    with pytest.raises(InputError, match=says):
        run()


def test_heads_that_do_not_part_are_in_a_minimum_of_their_own():
    """Both keys along k1 + k2, reading v1 - v2 with opposite signs; both values along v1 + v2,
    reading k1 - k2: no saddle, all growth rates of the flow are negative."""
    problem = heads_problem(6, (4.0, 4.0))
    a, b = 0.5, 0.45
    m = np.array([[[a, b, a, -b], [b, a, -b, a], [a, -b, a, b], [-b, a, b, a]]])
    start = Overlaps(m, m @ m.swapaxes(1, 2) + 1e-6 * np.eye(4))
    end = descend(problem, start, step_size=0.02, steps=400, record_every=400, points=4096)
    there = Overlaps(end["m"].values[:, -1], end["q"].values[:, -1])
    assert abs(there.m - m).max() < 0.2 and 0.3 < float(end["risk"][0, -1]) < 0.45
    assert stability(problem, there, points=4096, seed=1)["rate"].max() < 0
