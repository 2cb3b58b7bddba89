import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from scipy import optimize, special

from attlas.claims import Order
from attlas.errors import InputError
from attlas.sparse_variables import thresholds
from attlas.sparse_variables.claims import thresholds as claims
from attlas.sparse_variables.claims.shared import floored_error
from attlas.sparse_variables.rival_learners import screen_by_covariance
from attlas.sparse_variables.task import SparseBoolean
from attlas.sparse_variables.thresholds import (
    BLOCK,
    LEVEL,
    SEARCHED,
    find_threshold,
    fit_thresholds,
    sizes,
)
from tests.defaults import numbers_by_default

KEY = jax.random.key(3)


def rising(threshold, slope=4.0, seed=0):
    """A learner that solves a share of the trials that is `LEVEL` at `threshold` samples, and the
    sizes that it was asked for."""
    asked, draws = [], np.random.default_rng(seed)

    def solve(sets, key, steps):
        asked.append(sets.samples[0])
        logit = special.logit(LEVEL) + slope * np.log(sets.samples[0] / threshold)
        return draws.random(len(sets.tasks)) < special.expit(logit)

    return solve, asked


def test_sizes_rise_by_a_fifth_and_end_below_the_largest():
    grid = sizes(400)
    assert grid[0] == 10 and grid[-1] <= 400 < 1.2 * grid[-1] + 1
    assert all(1.1 < b / a < 1.3 for a, b in itertools.pairwise(grid))
    assert sizes(18) == [10, 12, 15, 18] and sizes(17) == [10, 12, 15]


@pytest.fixture
def without_data(monkeypatch):
    """Training sets that are numbers only: thousands of searches are then cheap."""
    empty = lambda key, length, samples, trials, **_: SimpleNamespace(  # noqa: E731
        samples=samples, tasks=range(trials)
    )
    monkeypatch.setattr(thresholds, "draw_sets", empty)


def test_blocks_go_to_the_sizes_around_the_threshold(without_data):
    solve, asked = rising(150.0)
    found = find_threshold(KEY, 30, solve, trials=96, most=4000, start=75)
    assert len(asked) == 96 // BLOCK and found.trials.sum() == 96
    assert asked[0] == 75 and found.samples == tuple(sorted(set(asked)))
    assert np.mean([100 < m < 225 for m in asked]) > 0.6
    assert abs(found.log_threshold - np.log(150)) < 3 * found.error < 0.6
    assert not found.censored


def test_a_threshold_beyond_the_largest_size_is_a_lower_limit(without_data):
    solve, _ = rising(1000.0, slope=9.0)
    found = find_threshold(KEY, 30, solve, trials=48, most=200)
    assert found.censored and found.threshold == pytest.approx(sizes(200)[-1])


def test_a_fit_is_where_the_curve_crosses_and_finite_where_it_is_a_step():
    logs = np.log([[20, 24, 29, 35, 42]])
    share = special.expit(special.logit(LEVEL) + 5 * (logs - np.log(30)))
    (place,), covariance = fit_thresholds(logs, np.full((1, 5), 10**6), 10**6 * share)
    assert place == pytest.approx(np.log(30), abs=1e-5)
    # Fisher's information of the place, where the slope is known: n b^2 p (1 - p) at each size.
    (known,), alone = fit_thresholds(logs, np.full((1, 5), 10**6), 10**6 * share, slope=5.0)
    assert known == pytest.approx(place, abs=1e-5)
    assert alone[0, 0] == pytest.approx(1 / (10**6 * 25 * (share * (1 - share)).sum()), rel=1e-4)
    assert covariance[0, 0] > alone[0, 0]
    (step,), spread = fit_thresholds(logs, np.full((1, 5), 8), np.array([[0, 0, 8, 8, 8]]))
    assert np.log(24) < step < np.log(32) and 0.01 < spread[0, 0] ** 0.5 < 0.3


@pytest.mark.parametrize("slope", [None, 3.0])
def test_a_fit_maximises_the_likelihood_with_firths_penalty(slope):
    logs = np.log([[20.0, 24, 29, 35], [33.0, 40, 48, 58]])
    trials = np.array([[8, 16, 8, 0], [0, 8, 8, 24]])
    solved = np.array([[3, 9, 7, 0], [0, 2, 5, 22]])

    def unpacked(x):
        return x[:2], slope or x[2]

    def share_of(x):
        places, rise = unpacked(x)
        return special.expit(special.logit(LEVEL) + rise * (logs - places[:, None]))

    def information(x):
        """In the intercepts and the slope, by the derivatives of the logit."""
        away = logs - np.average(logs, 1, weights=trials)[:, None]
        design = np.stack(
            [np.array([[1.0], [0]]) + 0 * logs, np.array([[0.0], [1]]) + 0 * logs, away]
        )
        design = design[: len(x)].reshape(len(x), -1)
        return (design * (trials * share_of(x) * (1 - share_of(x))).ravel()) @ design.T

    def loss(x):
        share = share_of(x)
        likelihood = solved * np.log(share) + (trials - solved) * np.log(1 - share)
        return -likelihood.sum() - np.linalg.slogdet(information(x))[1] / 2

    start = np.append(np.log([26.0, 43.0]), [4.0] if slope is None else [])
    best = optimize.minimize(
        loss, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}
    ).x
    found, covariance = fit_thresholds(logs, trials, solved, slope)
    np.testing.assert_allclose(found, best[:2], atol=1e-6)
    # By the rule for functions of what was fitted: place = middle + (level - intercept) / slope.
    places, rise = unpacked(best)
    middle = np.average(logs, 1, weights=trials)
    gradient = np.column_stack([-np.eye(2), -(places - middle)])[:, : len(best)] / rise
    expected = gradient @ np.linalg.inv(information(best)) @ gradient.T
    np.testing.assert_allclose(covariance, expected, rtol=1e-4)


def test_a_search_goes_where_fewest_trials_were_next_to_the_threshold(without_data):
    for threshold, start, most in ((60.0, None, 400), (300.0, 15, 400), (12.0, 200, 150)):
        solve, asked = rising(threshold, seed=5)
        find_threshold(KEY, 30, solve, trials=80, most=most, start=start)
        again, _ = rising(threshold, seed=5)
        grid, task = sizes(most), SparseBoolean(30, (0, 1, 2), "and")
        single = [task.unique_probability(m) > 0.02 for m in grid]
        bottom, top = single.index(True), len(grid) - 1
        first = start or 1.5 * task.floor()
        at = next((k for k, m in enumerate(grid) if m >= first), top)
        tried, solved = np.zeros((2, len(grid)))
        expected = []
        for _ in range(10):
            at = min(max(at, bottom), top)
            expected.append(grid[at])
            tried[at] += 8
            solved[at] += again(SimpleNamespace(samples=[grid[at]], tasks=range(8)), None, 0).sum()
            seen = [k for k in range(len(grid)) if tried[k]]
            (place,), _ = fit_thresholds(np.log([grid]), tried[None], solved[None], 2.0)
            least, largest = max(bottom, min(seen) - 2), min(top, max(seen) + 2)
            above = next((k for k, m in enumerate(grid) if np.log(m) >= place), len(grid))
            above = min(max(above, least), largest)
            near = [k for k in range(above - 3, above + 3) if least <= k <= largest]
            at = min(near, key=lambda k: (tried[k], abs(np.log(grid[k]) - place)))
        assert asked == expected


def test_a_trained_trial_is_solved_if_it_was_right_enough_and_is_finite(monkeypatch):
    drawn = thresholds.draw_sets(KEY, 10, [40], 4, validation=4)

    def train(sets, recipe, *, key, steps, enough):
        assert sets is drawn and recipe is thresholds.ADAM and key is KEY
        assert (steps, enough) == (7, 0.9)
        ends = {"best_accuracy": [[0.95, 0.9, 0.89, 0.95]], "status": [[*"abc", "diverged"]]}
        return xr.Dataset({name: (("samples", "trial"), x) for name, x in ends.items()})

    monkeypatch.setattr(thresholds, "train", train)
    solved = thresholds.trained_by(thresholds.ADAM, 0.9)(drawn, KEY, 7)
    assert solved.tolist() == [True, True, False, False]
    monkeypatch.setattr(thresholds, "l1_path", lambda sets: np.array([1.0, 0.99]))
    assert thresholds.LEARNERS["L1 logistic"](drawn, KEY, 7).tolist() == [True, False]


def test_shares_and_the_error_of_a_search():
    trials, solved = np.array([8, 16, 8]), np.array([2, 12, 8])
    found = thresholds.ThresholdSearch(30, (20, 24, 29), trials, solved, 100)
    np.testing.assert_allclose(found.share, [0.25, 0.75, 1])
    (place,), covariance = fit_thresholds(np.log([[20, 24, 29]]), trials[None], solved[None])
    assert found.log_threshold == place and found.threshold == pytest.approx(np.exp(place))
    assert found.error == pytest.approx(1.2 * covariance[0, 0] ** 0.5)


def test_lengths_without_trials_at_a_size_are_fitted_together_and_share_a_slope():
    logs = np.log([[20, 24, 29, 35], [40, 48, 58, 70]])
    places = np.log([[26.0], [50.0]])
    share = special.expit(special.logit(LEVEL) + 6 * (logs - places))
    trials = np.array([[10**6, 0, 10**6, 0], [0, 10**6, 0, 10**6]])
    found, covariance = fit_thresholds(logs, trials, trials * share)
    np.testing.assert_allclose(found, places[:, 0], atol=1e-5)
    assert covariance[0, 1] != 0


def test_the_error_of_an_exponent_covers_it(without_data):
    """Searches decide where to look by what they saw, which makes errors of a fit too small."""
    lengths, effort, alpha = np.array([16, 28, 52, 90, 160, 400]), (3, 1, 1, 1, 1, 3), 0.22
    grid = np.log(sizes(400))
    errors = []
    for seed in range(16):
        tried, solved = np.zeros((2, len(lengths), len(grid)), int)
        for i, (length, times) in enumerate(zip(lengths, effort, strict=True)):
            solve, _ = rising(31 * (length / 16) ** alpha, 3.6, seed=(seed, i))
            found = find_threshold(KEY, int(length), solve, trials=24 * times, most=400)
            places = np.searchsorted(grid, np.log(found.samples) - 1e-9)
            tried[i, places], solved[i, places] = found.trials, found.solved
        logs, covariance = fit_thresholds(np.tile(grid, (len(lengths), 1)), tried, solved)
        weight = np.log(lengths) - np.log(lengths).mean()
        weight = weight / (weight @ np.log(lengths))
        error = SEARCHED * np.sqrt(weight @ covariance @ weight)
        errors.append((weight @ logs - alpha) / error)
    # The mean of 16 is uncertain by a quarter, their standard deviation by a fifth.
    assert abs(np.mean(errors)) < 0.8
    assert 0.5 < np.std(errors) < 1.6


def test_more_trials_begin_with_the_fewer():
    asked = []

    def solve(sets, key, steps):
        asked.append((sets.samples[0], sets.bits.sum()))
        return screen_by_covariance(sets)

    for trials in (2 * BLOCK, 4 * BLOCK):
        find_threshold(KEY, 30, solve, trials=trials, validation=10, most=200)
    assert asked[:2] == asked[2:4] and len(set(asked)) == 4


def test_an_unknown_learner_is_named():
    with pytest.raises(InputError, match=r"MPL.*MLP"):
        find_threshold(KEY, 30, "MPL")


# --- what the claims make of thresholds --------------------------------------------------------


def found_at(lengths, *thresholds, censored=()):
    """Evidence of learners with these thresholds; `censored` lists (length number, learner
    number), for which the largest size is a half of it."""
    logs = np.log(np.array(thresholds, float).T)
    samples = np.unique(np.exp(logs[..., None] + np.linspace(-0.4, 0.4, 3)).ravel())
    share = special.expit(special.logit(LEVEL) + 4 * (np.log(samples) - logs[..., None]))
    tried = np.where(abs(np.log(samples) - logs[..., None]) < 0.5, 400, 0)
    most = np.full(logs.shape, 1e9)
    for place in censored:
        most[place] = np.exp(logs[place]) / 2
    axes = ("cell", "learner")
    variables = {
        "threshold": (axes, np.exp(logs)),
        "most_samples": (axes, most),
        "tried": ((*axes, "size"), tried),
        "solved": ((*axes, "size"), tried * share),
        "floor": ("cell", 8 * np.log(lengths)),
    }
    learner = ["attention", claims.RIVAL][: logs.shape[1]]
    coords = {"length": ("cell", lengths), "samples": ("size", samples), "learner": learner}
    return xr.Dataset(variables, coords)


LENGTHS = np.array([16, 80, 400])


def test_the_exponent_is_that_of_the_thresholds_and_its_error_shrinks_with_the_span():
    near, far = (
        claims.samples_exponent.fit(found_at(x, 20 * x**0.2)) for x in (LENGTHS, LENGTHS**2)
    )
    assert float(near["measured"]) == pytest.approx(0.2, abs=1e-3)
    assert float(far["error"]) < 0.7 * float(near["error"])
    assert float(near["repetitions"]) >= 400
    control = claims.samples_exponent.control_evidence(near)
    assert float(control["bound"]) == pytest.approx(-0.25)


def test_a_threshold_that_is_only_known_to_be_larger_confirms_no_upper_bound():
    evidence = found_at(LENGTHS, [25, 40, 72], censored=[(2, 0)])
    for claim in (claims.samples_exponent, claims.samples_law):
        assert claim.rule.judge(claim.fit(evidence)).word == "undecided"


@pytest.mark.parametrize(
    ("censored", "word"),
    [([], "confirmed"), ([(2, 1)], "confirmed"), ([(0, 1)], "undecided"), ([(2, 0)], "undecided")],
)
def test_lower_limits_enter_the_comparison_where_they_make_it_harder(censored, word):
    evidence = found_at(LENGTHS, 20 * LENGTHS**0.2, 10.0 * LENGTHS, censored=censored)
    assert Order().judge(claims.mlp_exponent.fit(evidence)).word == word


def test_a_root_is_no_logarithm():
    wide = np.array([16, 28, 52, 90, 160, 400])
    law = claims.samples_law
    logarithm, root = (law.fit(found_at(wide, y)) for y in (9 * np.log(wide), 5.0 * wide**0.6))
    # Least squares of ln ln T against ln T, all thresholds being known alike.
    slope = np.polyfit(np.log(wide), np.log(np.log(wide)), 1)[0]
    assert float(logarithm["predicted"]) == pytest.approx(slope, abs=0.02)
    assert law.rule.judge(logarithm).word == "confirmed"
    assert law.rule.judge(root).word == "refuted"
    assert law.rule.judge(law.control_evidence(logarithm)).word == "refuted"
    assert 0.25 < law.resolution(logarithm) < 0.5


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


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(thresholds) == [
        "trained_by accuracy=1",
        "find_threshold trials=40 most=2000 steps=500 sparsity=3 validation=10000",
    ]
