"""The rules that read samples and counts: agreement, convergence, one law."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import kolmogi
from scipy.stats import beta, binom, ks_2samp, norm

from attlas import InputError
from attlas.claims.rules import (
    LEVEL,
    POWER,
    Agreement,
    Convergence,
    SameLaw,
)
from tests.claims.worlds import (
    CLAIMS,
    COMPARISONS,
    RAISED,
    RUNS,
    agreeing,
    arrivals,
    at_least,
    at_most,
    compared,
    count,
    evidence,
    quantile,
    samples,
)

# Agreement


@pytest.mark.parametrize(("comparisons", "claims"), [(1, CLAIMS // 2), (20, 2 * CLAIMS)])
def test_agreement_attains_its_joint_level_and_no_more(comparisons, claims):
    rng = np.random.default_rng(7)
    words = count(
        Agreement(level=RAISED), (agreeing(rng, np.zeros(comparisons)) for _ in range(claims))
    )
    assert at_most(words["refuted"], claims, RAISED)
    assert at_least(words["refuted"], claims, 1 - (1 - RAISED / comparisons) ** comparisons)
    assert words["undecided"] == 0


def test_agreement_holds_its_level_where_all_comparisons_share_one_error():
    rng, claims = np.random.default_rng(8), CLAIMS // 2
    shared = (
        compared(np.ones(COMPARISONS), np.full(COMPARISONS, 1 + g), 1.0)
        for g in rng.normal(size=claims)
    )
    assert at_most(count(Agreement(level=RAISED), shared)["refuted"], claims, RAISED / COMPARISONS)


def test_one_difference_of_the_detectable_size_refutes_agreement_with_the_stated_power():
    rng, claims = np.random.default_rng(9), CLAIMS
    shift = np.zeros(COMPARISONS)
    shift[2] = -(quantile(RAISED, COMPARISONS, 2) + norm.ppf(POWER))
    words = count(Agreement(level=RAISED), (agreeing(rng, shift) for _ in range(claims)))
    # The other five, which agree, refute a few more by chance.
    chance = 1 - (1 - POWER) * (1 - RAISED / COMPARISONS) ** (COMPARISONS - 1)
    assert at_least(words["refuted"], claims, POWER)
    assert at_most(words["refuted"], claims, chance)


@settings(derandomize=True, max_examples=10, deadline=None)
@given(shifts=st.lists(st.floats(-9, 9), min_size=1, max_size=12), error=st.floats(1e-3, 1e3))
def test_agreement_is_decided_by_the_largest_difference_in_standard_errors(shifts, error):
    z = quantile(LEVEL, len(shifts), 2)
    shift = np.array([s + 1e-6 * (abs(abs(s) - z) < 1e-6) for s in shifts])
    verdict = Agreement().judge(compared(np.ones(shift.size), 1 + error * shift, error))
    assert verdict.word == ("refuted" if np.abs(shift).max() > z else "confirmed")
    assert verdict.statistic == pytest.approx(np.abs(shift).max(), abs=1e-6)
    assert verdict.threshold == pytest.approx(z)


@pytest.mark.parametrize("predicted", [0.0, 1.0, -3.0, 1e-5, 1e200])
def test_exact_values_agree_to_rounding(predicted):
    for off, word in (
        (0, "confirmed"),
        (0.9, "confirmed"),
        (-0.9, "confirmed"),
        (1.1, "refuted"),
        (-1.1, "refuted"),
    ):
        measured = predicted + off * 1e-12 * max(1, abs(predicted))
        assert Agreement().judge(compared([predicted], [measured], [0.0])).word == word


def test_an_exact_comparison_among_sampled_ones_is_held_to_rounding():
    predicted, error = np.ones(3), np.array([0.0, 0.1, 0.1])
    assert (
        Agreement().judge(compared(predicted, [1 + 0.9e-12, 1.2, 0.9], error)).word == "confirmed"
    )
    assert Agreement().judge(compared(predicted, [1 + 1.1e-12, 1.2, 0.9], error)).word == "refuted"


# Convergence


def test_convergence_names_the_cell_in_which_the_fewest_arrive():
    cells = arrivals(RUNS, RUNS - 5, RUNS).assign_coords(
        dim=("cell", [10, 20, 40]), lam=("cell", [0.1] * 3)
    )
    assert (
        f"{RUNS - 5} of {RUNS} runs arrived in the worst of 3 cells (dim = 20): "
        in Convergence(0.5).judge(cells).reason
    )
    assert f"{RUNS} of {RUNS} runs arrived: " in Convergence(0.5).judge(arrivals(RUNS)).reason


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("cells", [1, 4])
def test_convergence_decides_at_the_counts_that_an_exact_binomial_test_rejects(share, cells):
    rule = Convergence(share, level=RAISED)
    words = [rule.judge(arrivals(k, *[RUNS] * (cells - 1))).word for k in range(RUNS + 1)]
    refuting, confirming = words.count("refuted"), words.count("confirmed")
    assert (
        words
        == ["refuted"] * refuting
        + ["undecided"] * (RUNS + 1 - refuting - confirming)
        + ["confirmed"] * confirming
    )
    # At a true share equal to the claimed one neither word comes more often than its level
    # allows, and one run more
    # or less would exceed it: the rule gives nothing away.
    assert binom.cdf(refuting - 1, RUNS, share) < RAISED / cells < binom.cdf(refuting, RUNS, share)
    assert (
        binom.sf(RUNS - confirming, RUNS, share)
        < RAISED / cells
        < binom.sf(RUNS - confirming - 1, RUNS, share)
    )


def test_convergence_at_the_claimed_share_is_refuted_no_more_often_than_the_joint_level():
    rng, claims, share = np.random.default_rng(10), 2 * CLAIMS, 0.7
    rule = Convergence(share, level=RAISED)
    words = count(rule, (arrivals(*rng.binomial(RUNS, share, COMPARISONS)) for _ in range(claims)))
    assert at_most(words["refuted"], claims, RAISED)
    assert at_least(words["undecided"], claims, 1 - RAISED)


def test_a_share_of_the_detectable_size_is_refuted_with_the_stated_power():
    rng, claims, share = np.random.default_rng(11), CLAIMS, 0.7
    rule = Convergence(share, level=RAISED)
    most = max(k for k in range(RUNS) if binom.cdf(k, RUNS, share) < RAISED / COMPARISONS)
    detectable = beta.ppf(1 - POWER, most + 1, RUNS - most)
    others = [RUNS] * (COMPARISONS - 1)
    words = count(rule, (arrivals(k, *others) for k in rng.binomial(RUNS, detectable, claims)))
    assert at_least(words["refuted"], claims, POWER)
    assert at_most(words["refuted"], claims, POWER)


def test_too_few_runs_decide_nothing():
    rule = Convergence(0.5)
    assert {rule.judge(arrivals(k, runs=10)).word for k in range(11)} == {"undecided"}


def test_one_run_that_stays_away_refutes_that_all_arrive_and_no_number_confirms_it():
    assert Convergence(1.0).judge(arrivals(RUNS - 1)).word == "refuted"
    assert Convergence(1.0).judge(arrivals(RUNS)).word == "undecided"


def test_convergence_counts_along_the_repeats():
    with pytest.raises(InputError, match="repeat"):
        Convergence(0.5).judge(evidence(arrived=np.ones(5)))


# SameLaw


def test_two_samples_of_one_law_are_told_apart_no_more_often_than_the_joint_level():
    rng, claims, statistics, draws = np.random.default_rng(12), CLAIMS, 2, 120
    rule = SameLaw(level=RAISED)
    words = count(rule, (samples(*rng.normal(size=(2, draws, statistics))) for _ in range(claims)))
    assert at_most(words["refuted"], claims, RAISED)
    assert at_least(words["refuted"], claims, RAISED / 2)


def test_the_level_is_shared_over_the_statistics():
    a, b = np.random.default_rng(23).normal([[[0.0]], [[0.3]]], size=(2, 100, 1))
    p = SameLaw().judge(samples(a, b)).statistic
    for statistics in (1, 2, 5):
        seen = samples(np.hstack([a, *[b] * (statistics - 1)]), np.hstack([b] * statistics))
        assert SameLaw(level=0.9 * statistics * p).judge(seen).word == "confirmed"
        assert SameLaw(level=1.1 * statistics * p).judge(seen).word == "refuted"


@pytest.mark.parametrize("draws", [30, 100, 400])
def test_p_values_are_scipys_exact_ones_or_where_they_are_small_somewhat_larger(draws):
    rng = np.random.default_rng(31)
    for shift in np.linspace(0, 8, 9) / np.sqrt(draws):
        a, b = rng.normal([[[0.0]], [[shift]]], size=(2, draws, 1))
        exact = ks_2samp(a[:, 0], b[:, 0], method="exact")
        p = SameLaw().judge(samples(a, b)).statistic
        assert (
            p == pytest.approx(exact.pvalue, rel=0.1) if exact.pvalue > 0.1 else p >= exact.pvalue
        )
        assert exact.pvalue < LEVEL or p < 2 * exact.pvalue


def test_two_laws_a_stated_distance_apart_in_one_of_several_statistics_are_told_apart():
    rng, claims, statistics, draws = np.random.default_rng(13), CLAIMS // 2, 2, 400
    rule = SameLaw(level=RAISED)
    # The critical distance, and what the empirical difference may fall short by at one point
    # (a variance <= 1/2n).
    gap = (kolmogi(RAISED / statistics) + norm.ppf(POWER) / 2) * np.sqrt(2 / draws)
    shift = np.array([2 * norm.ppf((1 + gap) / 2), 0])
    words = count(
        rule, (samples(g[0] + shift, g[1]) for g in rng.normal(size=(claims, 2, draws, statistics)))
    )
    assert at_least(words["refuted"], claims, POWER)


def test_a_law_is_told_from_one_with_the_same_mean_and_variance():
    rng = np.random.default_rng(14)
    normal, two_points = rng.normal(size=(2000, 1)), rng.choice([-1.0, 1.0], size=(2000, 1))
    assert SameLaw().judge(samples(normal, rng.normal(size=(2000, 1)))).word == "confirmed"
    assert SameLaw().judge(samples(normal, two_points)).word == "refuted"


@settings(derandomize=True, max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(0, 0.5))
def test_one_law_is_judged_alike_in_any_increasing_scale(seed, shift):
    a, b = np.random.default_rng(seed).normal(size=(2, 200, 2))
    verdict = SameLaw(level=RAISED).judge(samples(a, b + shift))
    assert SameLaw(level=RAISED).judge(samples(np.exp(a), np.exp(b + shift))) == verdict
    assert SameLaw(level=RAISED).judge(samples(b + shift, a)) == verdict


def test_samples_are_compared_along_their_draws():
    with pytest.raises(InputError, match="draw"):
        SameLaw().judge(evidence("repeat", sample_a=np.ones(5), sample_b=np.ones(5)))
    drawn_elsewhere = evidence("repeat", sample_a=np.arange(50.0), sample_b=np.arange(50.0))
    assert SameLaw(along="repeat").judge(drawn_elsewhere).word == "confirmed"
