import itertools

import jax
import numpy as np
import pytest
import xarray as xr
from scipy import special

from attlas.claims import Bound, Order
from attlas.errors import InputError
from attlas.sparse_variables.claims import thresholds as claims
from attlas.sparse_variables.claims.shared import floored_error
from attlas.sparse_variables.rival_learners import screen_by_covariance
from attlas.sparse_variables.thresholds import (
    LAWS,
    LEVEL,
    ThresholdSearch,
    crossing,
    find_threshold,
    fit_law,
    sizes,
)
from attlas.sparse_variables.training_sets import draw_sets


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
    found = find_threshold(jax.random.key(3), 30, solve, trials=20, validation=10, most=4000)
    assert asked and len(set(asked)) == len(asked) < len(sizes(4000)) / 2
    share = dict(zip(found.samples, found.share, strict=True))
    for m, value in share.items():
        assert value == (least <= m).mean()
    threshold = np.exp(found.log_threshold)
    below, above = (
        max(m for m in share if share[m] < LEVEL),
        min(m for m in share if share[m] >= LEVEL),
    )
    assert above < 1.3 * below
    assert threshold == pytest.approx(np.quantile(least, LEVEL), rel=0.1)
    assert not found.censored


def test_a_threshold_beyond_the_largest_size_is_a_lower_limit():
    solve, _ = needing(np.full(8, 1000))
    found = find_threshold(jax.random.key(3), 30, solve, trials=8, validation=10, most=200)
    assert found.censored and np.exp(found.log_threshold) == pytest.approx(sizes(200)[-1])


def test_crossing_is_that_of_the_likeliest_rising_curve():
    samples = (20, 25, 30, 40, 60)
    # 0.5 and 0.4 are pooled to 0.45; 0.8 lies a third of the way from 0.7 to 1.
    assert crossing(samples, np.array([0.1, 0.5, 0.4, 0.7, 1.0])) == pytest.approx(
        np.log(40) + np.log(60 / 40) / 3
    )
    # 0.9 and 0.7 are pooled to 0.8, which is reached at the first of the two.
    assert crossing(samples, np.array([0.1, 0.2, 0.9, 0.7, 1.0])) == pytest.approx(np.log(30))


def test_crossing_of_a_sharp_step_lies_in_it_and_of_a_flat_line_at_an_end():
    samples = (20, 24, 29, 35)
    assert np.log(24) < crossing(samples, np.array([0.0, 0.0, 1.0, 1.0])) < np.log(29)
    assert crossing(samples, np.full((2, 4), 0.3)) == pytest.approx(np.log([35, 35]))
    assert crossing(samples, np.full(4, 0.9)) == pytest.approx(np.log(20))


def test_a_share_that_levels_off_does_not_move_the_crossing():
    """Sizes are looked at until 0.9 is seen; where the share stays below, they lie far above the
    threshold."""
    samples, share = (25, 30, 36, 43, 52, 62), np.array([0.4, 0.7, 0.85, 0.86, 0.86, 0.87])
    more = (*samples, 90, 155, 267), np.array([*share, 0.86, 0.87, 0.91])
    assert crossing(*more) == pytest.approx(crossing(samples, share))


def test_replicates_spread_as_the_quantile_of_the_trials_does():
    trials, sizes_seen = 100, tuple(np.unique(np.geomspace(20, 500, 60).astype(int)).tolist())
    spread = []
    for seed in range(30):
        least = np.exp(np.random.default_rng(seed).logistic(np.log(80), 0.17, trials))
        found = ThresholdSearch(10, sizes_seen, least[:, None] <= np.array(sizes_seen))
        spread.append((found.log_threshold, found.replicates().std()))
    thresholds, errors = np.array(spread).T
    assert thresholds.mean() == pytest.approx(np.log(80) + 0.17 * special.logit(LEVEL), abs=0.02)
    # Thirty thresholds have a standard deviation that is itself uncertain by an eighth.
    assert errors.mean() == pytest.approx(thresholds.std(), rel=0.4)


def test_an_outcome_does_not_depend_on_the_other_sizes():
    found = find_threshold(jax.random.key(3), 30, "screening", trials=6, validation=10, most=200)
    data, _ = jax.random.split(jax.random.fold_in(jax.random.key(3), 30))
    for column, m in enumerate(found.samples):
        alone = screen_by_covariance(draw_sets(data, 30, [m], 6, validation=10))
        np.testing.assert_array_equal(found.solved[:, column], alone)


def test_more_trials_begin_with_the_fewer():
    few, many = (
        find_threshold(jax.random.key(3), 30, "screening", trials=n, validation=10, most=200)
        for n in (4, 8)
    )
    shared = sorted(set(few.samples) & set(many.samples))
    assert shared
    for m in shared:
        a, b = (found.solved[:4, found.samples.index(m)] for found in (few, many))
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_fits_its_own_thresholds_and_the_other_does_not(law):
    lengths = np.array([25.0, 100.0, 400.0, 1600.0, 6400.0])
    logs = {
        "logarithm": np.log(-12 + 11.7 * np.log(lengths)),
        "power": np.log(4.0) + 0.5 * np.log(lengths),
    }[law]
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
        find_threshold(jax.random.key(3), 30, "MPL")


# --- what the claims make of thresholds --------------------------------------------------------


def found_at(lengths, *thresholds, error=0.05, censored=()):
    """Evidence of learners with these thresholds; `censored` lists (length number, learner
    number)."""
    logs = np.log(np.array(thresholds, float).T)
    flags = np.zeros(logs.shape, bool)
    for place in censored:
        flags[place] = True
    noise = np.random.default_rng(0).normal(0, error, (*logs.shape, 400))
    axes = ("cell", "learner")
    variables = {
        "log_threshold": (axes, logs),
        "log_error": (axes, np.full(logs.shape, error)),
        "censored": (axes, flags),
        "replicates": ((*axes, "replicate"), logs[..., None] + noise),
        "floor": ("cell", np.full(len(lengths), 20)),
    }
    names = ("log_threshold", "log_error", "censored")
    mlp = {f"mlp_{name}": ("cell", variables[name][1][:, -1]) for name in names}
    coords = {"length": lengths, "rival_length": np.full(len(lengths), 400)}
    return xr.Dataset(variables | mlp, {name: ("cell", x) for name, x in coords.items()})


LENGTHS = np.array([16, 80, 400])


def test_the_exponent_is_that_of_the_thresholds_and_its_error_shrinks_with_the_span():
    fitted = claims.samples_exponent.fit(found_at(LENGTHS, 20 * LENGTHS**0.2))
    assert float(fitted["measured"]) == pytest.approx(0.2)
    assert float(fitted["error"]) == pytest.approx(0.05 * np.sqrt(2) / np.log(25))
    control = claims.samples_exponent.control_evidence(fitted)
    assert float(control["bound"]) == pytest.approx(-0.25)


def test_a_threshold_that_is_only_known_to_be_larger_confirms_no_upper_bound():
    evidence = found_at(LENGTHS, [25, 40, 72], censored=[(2, 0)])
    for claim in (claims.samples_exponent, claims.samples_law):
        assert Bound().judge(claim.fit(evidence)).word == "undecided"


@pytest.mark.parametrize(
    ("censored", "word"),
    [([], "confirmed"), ([(2, 1)], "confirmed"), ([(0, 1)], "undecided"), ([(2, 0)], "undecided")],
)
def test_lower_limits_enter_the_comparison_where_they_make_it_harder(censored, word):
    evidence = found_at(LENGTHS, 20 * LENGTHS**0.2, 10.0 * LENGTHS, censored=censored)
    assert Order().judge(claims.mlp_exponent.fit(evidence)).word == word


def test_a_steep_power_is_no_logarithm():
    wide = np.array([25, 100, 400, 1600, 6400])
    logarithm, power = (
        claims.samples_law.fit(found_at(wide, y))
        for y in (-12 + 11.7 * np.log(wide), 2.0 * wide**0.7)
    )
    assert float(logarithm["measured"]) < 0.5 < 3 < float(power["measured"])
    assert float(claims.samples_law.control_evidence(logarithm)["measured"]) > 3


def test_the_error_of_paired_differences_is_not_0_where_all_agree():
    differences = np.array([[1.0, 0, 1, 0], [np.log(2)] * 4])
    error = floored_error(differences)
    np.testing.assert_allclose(error, [np.std([1, 0, 1, 0], ddof=1) / 2, 0.25])


def test_the_lead_is_a_ratio_of_movements():
    moved = np.full((5, 3), 2.0)
    moved[[1, 3]] = 6.0
    assert claims.lead_of_support(moved, (1, 3)) == pytest.approx(3)


def test_longer_contexts_get_more_steps():
    setting = claims.samples_exponent.paper
    assert [claims.steps_at(setting.at(length=t)) for t in (16, 800, 3200)] == [500, 500, 1000]
