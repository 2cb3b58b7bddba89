import itertools

import jax
import numpy as np
import pytest
from scipy import optimize, special

from attlas.errors import InputError
from attlas.sparse_variables.learners import screen_by_covariance
from attlas.sparse_variables.thresholds import (
    LAWS,
    LEVEL,
    Sweep,
    crossing,
    fit_law,
    learner,
    sizes,
    sweep,
)
from attlas.sparse_variables.training import draw_sets

KEY = jax.random.key(3)


def needing(least):
    """A learner that solves trial i from least[i] samples on."""
    asked = []

    def solve(sets, key, steps):
        asked.append(sets.samples[0])
        return sets.samples[0] >= np.asarray(least)

    return solve, asked


def test_sizes_rise_by_a_fifth_and_end_below_the_largest():
    grid = sizes(400)
    assert grid[0] == 10 and grid[-1] <= 400 < 1.2 * grid[-1] + 1
    assert all(1.1 < b / a < 1.3 for a, b in itertools.pairwise(grid))


def test_the_threshold_of_a_known_learner_is_enclosed_by_neighbours_without_looking_everywhere():
    least = np.geomspace(40, 400, 20)
    solve, asked = needing(least)
    found = sweep(KEY, 30, solve, trials=20, validation=10, most=4000)
    assert asked and len(set(asked)) == len(asked) < len(sizes(4000)) / 2
    share = dict(zip(found.samples, found.share, strict=True))
    for m, value in share.items():
        assert value == (least <= m).mean()
    threshold = np.exp(found.log_threshold)
    below, above = max(m for m in share if share[m] < LEVEL), min(m for m in share if share[m] >= LEVEL)
    assert above < 1.3 * below
    assert threshold == pytest.approx(np.quantile(least, LEVEL), rel=0.1)
    assert not found.censored


def test_a_threshold_beyond_the_largest_size_is_a_lower_limit():
    solve, _ = needing(np.full(8, 1000))
    found = sweep(KEY, 30, solve, trials=8, validation=10, most=200)
    assert found.censored and np.exp(found.log_threshold) == pytest.approx(sizes(200)[-1])


def test_crossing_is_that_of_the_likeliest_logistic_curve():
    samples, share, trials = (20, 25, 30, 40, 60), np.array([0.1, 0.5, 0.4, 0.8, 0.95]), 40

    def negative(p):
        q = special.expit(p[0] + p[1] * np.log(samples))
        return -trials * (share * np.log(q) + (1 - share) * np.log1p(-q)).sum()

    a, b = optimize.minimize(
        negative, [-10, 3], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 5000}
    ).x
    assert crossing(samples, share, trials) == pytest.approx((special.logit(LEVEL) - a) / b, abs=2e-3)


def test_crossing_of_a_sharp_step_lies_in_it_and_of_a_flat_line_beyond_the_sizes():
    samples = (20, 24, 29, 35)
    assert np.log(24) < crossing(samples, np.array([0.0, 0.0, 1.0, 1.0]), 40) < np.log(29)
    assert crossing(samples, np.full(4, 0.3), 40) == pytest.approx(np.log(35 * 1.2))


def test_replicates_spread_as_the_quantile_of_the_trials_does():
    trials, sizes_seen = 100, tuple(np.unique(np.geomspace(20, 500, 60).astype(int)).tolist())
    spread = []
    for seed in range(30):
        least = np.exp(np.random.default_rng(seed).logistic(np.log(80), 0.17, trials))
        found = Sweep(10, sizes_seen, least[:, None] <= np.array(sizes_seen))
        spread.append((found.log_threshold, found.replicates().std()))
    thresholds, errors = np.array(spread).T
    assert thresholds.mean() == pytest.approx(np.log(80) + 0.17 * special.logit(LEVEL), abs=0.02)
    # Thirty thresholds have a standard deviation that is itself uncertain by an eighth.
    assert errors.mean() == pytest.approx(thresholds.std(), rel=0.4)


def test_an_outcome_does_not_depend_on_the_other_sizes():
    found = sweep(KEY, 30, "screening", trials=6, validation=10, most=200)
    data, _ = jax.random.split(jax.random.fold_in(KEY, 30))
    for column, m in enumerate(found.samples):
        alone = screen_by_covariance(draw_sets(data, 30, [m], 6, validation=10))["solved"].values[:, 0]
        np.testing.assert_array_equal(found.solved[:, column], alone)


def test_more_trials_begin_with_the_fewer():
    few, many = (sweep(KEY, 30, "screening", trials=n, validation=10, most=200) for n in (4, 8))
    shared = sorted(set(few.samples) & set(many.samples))
    assert shared
    for m in shared:
        a, b = (found.solved[:4, found.samples.index(m)] for found in (few, many))
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_fits_its_own_thresholds_and_the_other_does_not(law):
    lengths = np.array([25.0, 100.0, 400.0, 1600.0, 6400.0])
    logs = {"logarithm": np.log(-12 + 11.7 * np.log(lengths)), "power": np.log(4.0) + 0.5 * np.log(lengths)}[law]
    misfits = {name: fit_law(name, lengths, logs, np.full(5, 0.03))[0] for name in LAWS}
    (other,) = set(LAWS) - {law}
    assert misfits[law] < 0.1 < 3 < misfits[other]


def test_fits_of_many_curves_are_those_of_each():
    lengths, errors = np.array([25.0, 100.0, 400.0]), np.array([0.1, 0.05, 0.2])
    logs = np.random.default_rng(0).normal(4, 0.2, (7, 3))
    misfit, curve = fit_law("power", lengths, logs, errors)
    for i, row in enumerate(logs):
        slope, level = np.polyfit(np.log(lengths), row, 1, w=1 / errors)
        if -0.5 < slope < 2:
            np.testing.assert_allclose(curve[i], level + slope * np.log(lengths), atol=0.02)
        assert misfit[i] == pytest.approx((((row - curve[i]) / errors) ** 2).sum())


def test_an_unknown_learner_is_named():
    with pytest.raises(InputError, match=r"MPL.*MLP"):
        learner("MPL")
