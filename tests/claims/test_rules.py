"""The rules, tested for themselves on synthetic evidence whose truth is known.

For the rules with an interval a *world* makes evidence at a stated place: `distance` standard
errors beyond the border between true and false, one entry a comparison, so that 0 is the least
favourable true case and the least favourable false one. Shares are held against their level by an
exact binomial tail.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from math import comb

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import kolmogi
from scipy.stats import beta, binom, binomtest, ks_2samp, norm

from attlas import InputError
from attlas.claims.rules import (
    LEVEL,
    POWER,
    Agreement,
    Approximation,
    Bound,
    Convergence,
    Order,
    Rate,
    Rule,
    SameLaw,
)
from attlas.claims.strength import student_reach
from attlas.statistics import student_quantile

RAISED = 0.1
"""A level at which a hundred claims or two show whether it holds."""
CLAIMS = 100
"""How many: a verdict costs two or three milliseconds."""
COMPARISONS = 6
DEEP = -15.0
"""A distance, in standard errors, at which a statement is true beyond doubt."""
SIZES = np.geomspace(4, 256, 7)
MARGIN = 0.1

World = Callable[..., xr.Dataset]


def evidence(dims: str | tuple[str, ...] = "cell", **values: object) -> xr.Dataset:
    """A Dataset in which a variable with m axes has the first m of `dims`."""
    dims = (dims,) if isinstance(dims, str) else dims
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return xr.Dataset({name: (dims[: array.ndim], array) for name, array in arrays.items()})


def compared(predicted, measured, error) -> xr.Dataset:
    return evidence(predicted=predicted, measured=measured, error=error)


def count(rule: Rule, claims: Iterable[xr.Dataset]) -> Counter[str]:
    return Counter(rule.judge(claim).word for claim in claims)


def at_most(hits: int, trials: int, share: float) -> bool:
    return binomtest(hits, trials, share, alternative="greater").pvalue > 1e-4


def at_least(hits: int, trials: int, share: float) -> bool:
    return binomtest(hits, trials, share, alternative="less").pvalue > 1e-4


def noise(rng: np.random.Generator | None, *shape: int) -> np.ndarray:
    return np.zeros(shape) if rng is None else rng.normal(size=shape)


def signs(n: int) -> np.ndarray:
    return (-1.0) ** np.arange(n)


def around_a_prediction(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n = distance.size
    predicted = -signs(n) * 10.0 ** (np.arange(n) % 7 - 3)
    error = np.abs(predicted) * MARGIN / (40 + np.arange(n))
    away = signs(n // 2 + 1).repeat(2)[:n] * (
        MARGIN * np.abs(predicted) + error * (distance + noise(rng, n))
    )
    return compared(predicted, predicted + away, error)


def around_a_bound(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n = distance.size
    bound = 10.0 ** (np.arange(n) % 7 - 3)
    error = bound / (20 + np.arange(n))
    return evidence(bound=bound, measured=bound + error * (distance + noise(rng, n)), error=error)


def around_a_tie(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n = distance.size
    lower = signs(n) * 10.0 ** (np.arange(n) % 7 - 3)
    error = np.abs(lower) / (20 + np.arange(n))
    return evidence(lower=lower, upper=lower - error * (distance + noise(rng, n)), error=error)


def around_an_exponent(distance: np.ndarray, rng: np.random.Generator | None = None) -> xr.Dataset:
    n, relative, x = distance.size, 0.003, SIZES[:, None]
    slope_error = relative / np.sqrt(((np.log(x) - np.log(x).mean()) ** 2).sum())
    predicted = -0.5 * np.arange(n)
    true = x ** (predicted + signs(n) * (MARGIN + slope_error * distance))
    measured = true * (1 + relative * noise(rng, SIZES.size, n))
    both = ("cell", "series")
    values = {"measured": (both, measured), "error": (both, relative * true)}
    return xr.Dataset({"x": ("cell", SIZES), "predicted": ("series", predicted), **values})


# Rule at a level, its world, and the tails that its quantile is shared over.
INTERVALS: dict[str, tuple[Callable[[float], Rule], World, int]] = {
    "approximation": (lambda level: Approximation(MARGIN, level=level), around_a_prediction, 2),
    "bound": (lambda level: Bound(level=level), around_a_bound, 1),
    "order": (lambda level: Order(level=level), around_a_tie, 2),
    "rate": (lambda level: Rate(MARGIN, level=level), around_an_exponent, 2),
}
with_an_interval = pytest.mark.parametrize(
    ("make", "world", "sides"), INTERVALS.values(), ids=INTERVALS
)


def quantile(level: float, comparisons: int, sides: int) -> float:
    return float(norm.isf(level / (sides * comparisons)))


def places(*distances: float, deep: int = 0) -> np.ndarray:
    return np.array([*distances, *[DEEP] * deep])


# Intervals: Approximation, Bound, Order, Rate


@with_an_interval
def test_a_true_statement_at_its_border_is_refuted_no_more_often_than_the_joint_level(
    make, world, sides
):
    rng, claims = np.random.default_rng(1), CLAIMS
    words = count(make(RAISED), (world(np.zeros(COMPARISONS), rng) for _ in range(claims)))
    assert at_most(words["refuted"], claims, RAISED)
    # What is left of the level where both tails are paid for and one is used; less would be
    # power thrown away.
    assert at_least(words["refuted"], claims, 0.9 * RAISED / sides)
    assert at_least(words["undecided"], claims, 1 - RAISED)


@with_an_interval
def test_a_false_statement_at_its_border_is_confirmed_no_more_often_than_the_level(
    make, world, sides
):
    rng, claims = np.random.default_rng(2), CLAIMS // 2
    words = count(make(RAISED), (world(places(1e-6), rng) for _ in range(claims)))
    assert at_most(words["confirmed"], claims, RAISED)


@with_an_interval
def test_one_deviation_of_the_detectable_size_is_refuted_with_the_stated_power(make, world, sides):
    rng, claims = np.random.default_rng(4), CLAIMS // 2
    detectable = quantile(RAISED, COMPARISONS, sides) + norm.ppf(POWER)
    distance = places(detectable, deep=COMPARISONS - 1)
    words = count(make(RAISED), (world(rng.permutation(distance), rng) for _ in range(claims)))
    assert at_least(words["refuted"], claims, POWER)


@with_an_interval
def test_a_statement_true_beyond_doubt_is_confirmed(make, world, sides):
    rng = np.random.default_rng(5)
    assert count(make(LEVEL), (world(places(deep=COMPARISONS), rng) for _ in range(15))) == {
        "confirmed": 15
    }


@with_an_interval
@pytest.mark.parametrize("level", [0.5, RAISED, LEVEL])
@settings(derandomize=True, max_examples=6, deadline=None)
@given(distances=st.lists(st.floats(-8, 8), min_size=1, max_size=9))
def test_the_word_is_decided_by_the_distance_from_the_border_in_standard_errors(
    make, world, sides, level, distances
):
    z = quantile(level, len(distances), sides)
    # The border itself belongs to rounding.
    distance = np.array([d + 1e-6 * (abs(abs(d) - z) < 1e-6) for d in distances])
    expected = (
        "refuted" if (distance > z).any() else "confirmed" if (distance < -z).all() else "undecided"
    )
    assert make(level).judge(world(distance)).word == expected


@with_an_interval
@settings(derandomize=True, max_examples=8, deadline=None)
@given(distances=st.lists(st.floats(-8, 8), min_size=1, max_size=6), shrink=st.floats(0, 1))
def test_a_decision_stays_as_the_error_shrinks(make, world, sides, distances, shrink):
    before = world(np.array(distances))
    after = before.assign(error=before["error"] * shrink)
    word = make(LEVEL).judge(before).word
    assert word in ("undecided", make(LEVEL).judge(after).word)


@with_an_interval
def test_repeating_one_comparison_takes_nothing_from_the_level_and_costs_power(make, world, sides):
    one, many = quantile(RAISED, 1, sides), quantile(RAISED, COMPARISONS, sides)
    between = (one + many) / 2
    assert make(RAISED).judge(world(places(between))).word == "refuted"
    assert make(RAISED).judge(world(np.full(COMPARISONS, between))).word == "undecided"


def test_a_refutation_shows_the_comparison_that_refutes_not_a_vaguer_one_further_off():
    verdict = Approximation(MARGIN).judge(compared([1.0, 1.0], [9.0, 1.5], [5.0, 0.01]))
    assert (verdict.word, verdict.statistic) == ("refuted", 0.5)
    verdict = Order().judge(evidence(lower=[9.0, 1.5], upper=[1.0, 1.0], error=[5.0, 0.01]))
    assert (verdict.word, verdict.statistic) == ("refuted", -0.5)
    measured = SIZES[:, None] ** [3, 1]
    seen = evidence(("cell", "series"), x=SIZES, measured=measured, error=measured * [0.02, 1e-4])
    verdict = Rate(2.99).judge(seen.assign(predicted=("series", [0.0, -1.995])))
    assert (verdict.word, verdict.statistic) == ("refuted", pytest.approx(2.995))


def test_a_rate_without_a_margin_is_never_confirmed_and_attains_its_level():
    rng, claims, relative = np.random.default_rng(6), CLAIMS // 2, 0.01
    rule = Rate(0.0, level=RAISED)
    power_law = SIZES**-1.5
    words = count(
        rule,
        (
            evidence(
                x=SIZES,
                measured=power_law * (1 + relative * rng.normal(size=SIZES.size)),
                error=relative * power_law,
                predicted=-1.5,
            )
            for _ in range(claims)
        ),
    )
    assert words["confirmed"] == 0
    # Without a margin both tails are used, and the level is attained.
    assert at_most(words["refuted"], claims, RAISED)
    assert at_least(words["refuted"], claims, 0.9 * RAISED)


# Agreement


def agreeing(rng: np.random.Generator, shift: np.ndarray) -> xr.Dataset:
    """Predictions of several magnitudes and measurements `shift` standard errors away, and normal
    errors."""
    n = shift.size
    predicted = signs(n) * 10.0 ** (np.arange(n) % 7 - 3)
    error = np.abs(predicted) / (10 + np.arange(n))
    return compared(predicted, predicted + error * (shift + rng.normal(size=n)), error)


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

RUNS = 40


def arrivals(*arrived: int, runs: int = RUNS) -> xr.Dataset:
    """Cells in which so many of the runs arrive."""
    return evidence(("repeat", "cell"), arrived=np.arange(runs)[:, None] < np.array(arrived))


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


def samples(a: np.ndarray, b: np.ndarray) -> xr.Dataset:
    return evidence(("draw", "statistic"), sample_a=a, sample_b=b)


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


# Exact evidence


def test_a_bound_that_is_attained_exactly_is_confirmed_and_one_exceeded_is_refuted():
    bound = np.array([1e-6, 1.0, 3e5])
    assert Bound().judge(evidence(bound=bound, measured=bound, error=0.0)).word == "confirmed"
    verdict = Bound().judge(evidence(bound=bound, measured=bound / 4, error=0.0))
    assert (verdict.word, verdict.statistic) == ("confirmed", 0.25)
    assert (
        Bound()
        .judge(evidence(bound=bound, measured=bound * np.array([1, 1 + 1e-9, 1]), error=0.0))
        .word
        == "refuted"
    )


def test_exact_quantities_are_in_order_only_where_they_differ():
    def word(lower, upper):
        return Order().judge(evidence(lower=lower, upper=upper, error=0.0)).word

    assert word([1.0, 2.0], [1.0, 2.0]) == "undecided"
    assert word([1.0, 2.0], [1.0, 3.0]) == "undecided"
    assert word([1.0, 2.0], [1.5, 3.0]) == "confirmed"
    assert word([1.0, 2.0], [0.5, 3.0]) == "refuted"


@pytest.mark.parametrize(("relative", "word"), [(True, "confirmed"), (False, "refuted")])
def test_a_margin_is_relative_to_the_prediction_or_absolute(relative, word):
    assert (
        Approximation(0.05, relative=relative).judge(compared([10.0], [10.4], [0.0])).word == word
    )


def test_a_margin_relative_to_zero_decides_nothing():
    assert (
        Approximation(0.05).judge(compared([0.0, 1.0], [0.0, 1.0], [0.0, 0.0])).word == "undecided"
    )
    assert (
        Approximation(0.05, relative=False).judge(compared([0.0, 1.0], [0.04, 1.0], 0.0)).word
        == "confirmed"
    )


@pytest.mark.parametrize(
    ("exponent", "word"), [(-1.5, "confirmed"), (-1.59, "confirmed"), (-1.61, "refuted")]
)
def test_the_exponent_of_exact_values_is_decided_without_an_interval(exponent, word):
    verdict = Rate(MARGIN).judge(
        evidence(x=SIZES, measured=7 * SIZES**exponent, error=0.0, predicted=-1.5)
    )
    assert verdict.word == word
    assert verdict.statistic == pytest.approx(abs(exponent + 1.5), abs=1e-12)


# Rate


def test_a_finite_size_prediction_confirms_where_the_exponent_alone_is_refuted():
    finite = (1 + 3 / SIZES) / SIZES
    rng = np.random.default_rng(15)
    measured = finite * (1 + 1e-3 * rng.normal(size=SIZES.size))
    seen = evidence(x=SIZES, measured=measured, error=1e-3 * finite)
    assert Rate(0.02).judge(seen.assign(predicted=-1.0)).word == "refuted"
    assert Rate(0.02).judge(seen.assign(predicted=("cell", finite))).word == "confirmed"
    assert Rate(0.02).judge(seen.assign(predicted=("cell", finite * SIZES**0.05))).word == "refuted"


def test_a_finite_size_prediction_holds_whatever_its_constant():
    finite = (1 + 3 / SIZES) / SIZES
    seen = evidence(x=SIZES, measured=finite, error=1e-4 * finite, predicted=17 * finite)
    assert Rate(0.02).judge(seen).word == "confirmed"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("size", "word"), [(8, "confirmed"), (2, "confirmed"), (1, "undecided")])
def test_a_rate_needs_two_sizes(size, word):
    x = 2.0 ** np.arange(size)
    assert Rate(MARGIN).judge(evidence(x=x, measured=x, error=0 * x, predicted=1.0)).word == word


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "value"), [("measured", 0.03), ("measured", -1.0), ("x", 0.0), ("predicted", 0.0)]
)
def test_what_is_not_positive_beyond_its_error_has_no_exponent(name, value):
    values = {"x": SIZES, "measured": SIZES, "predicted": SIZES**3}
    assert Rate(MARGIN).judge(evidence(**values, error=0.01)).word == "refuted"
    values[name] = np.array([value, *values[name][1:]])
    assert Rate(MARGIN).judge(evidence(**values, error=0.01)).word == "undecided"


def test_a_rate_runs_along_the_axis_it_names():
    measured = np.stack([SIZES, SIZES**2])
    seen = evidence(("kind", "length"), measured=measured, error=1e-3 * measured)
    seen = seen.assign(x=("length", SIZES), predicted=("kind", [1.0, 2.0]))
    assert Rate(MARGIN, along="length").judge(seen).word == "confirmed"
    assert (
        Rate(MARGIN, along="length").judge(seen.assign(predicted=("kind", [1.0, 1.0]))).word
        == "refuted"
    )
    assert Rate(MARGIN).judge(seen).word == "undecided"
    with_axis = seen.drop_vars("predicted").assign(
        exponent=(("length", "kind"), np.tile([1.0, 2.0], (SIZES.size, 1)))
    )
    assert Rate(MARGIN, along="length").judge(with_axis).word == "confirmed"
    assert Rate(MARGIN, along="length").judge(with_axis * 1.2).word == "refuted"
    seen["x"] = seen["x"] * xr.DataArray([1.0, 3.0], dims="kind").rename("x")
    assert Rate(MARGIN, along="length").judge(seen.transpose("kind", "length")).word == "confirmed"


# Every rule

EVERY = {
    "agreement": (Agreement(), agreeing(np.random.default_rng(16), np.zeros(4))),
    **{
        name: (make(LEVEL), world(DEEP - np.arange(4)))
        for name, (make, world, _) in INTERVALS.items()
    },
    "convergence": (Convergence(0.8), arrivals(400, 395, runs=400)),
    "same law": (SameLaw(), samples(*np.random.default_rng(17).normal(size=(2, 300, 2)))),
}
VIVIDLY_FALSE = {
    "agreement": compared([1.0, 2.0], [1.0, 2.1], 0.01),
    **{name: world(places(8, deep=3)) for name, (_, world, _) in INTERVALS.items()},
    "convergence": arrivals(400, 200, runs=400),
    "same law": samples(*np.random.default_rng(18).normal([[[0, 0]], [[0, 1]]], size=(2, 300, 2))),
}
READ = [(name, variable) for name, (rule, _) in EVERY.items() for variable in rule.reads]
by_every_rule = pytest.mark.parametrize("name", EVERY)
by_every_rule_and_variable = pytest.mark.parametrize(("name", "variable"), READ)


@by_every_rule
def test_at_the_default_level_the_vividly_true_is_confirmed_and_the_vividly_false_refuted(name):
    rule, true = EVERY[name]
    assert rule.level == LEVEL == 1e-4
    assert rule.judge(true).word == "confirmed"
    assert rule.judge(VIVIDLY_FALSE[name]).word == "refuted"


@by_every_rule
def test_nothing_measured_confirms_nothing(name):
    rule, true = EVERY[name]
    empty = true.isel({dim: slice(0, 0) for dim in true.dims})
    assert rule.judge(empty).word == "undecided"
    for dim in true.dims:
        assert rule.judge(true.isel({dim: slice(0, 0)})).word == "undecided"


@by_every_rule_and_variable
def test_what_is_not_finite_confirms_nothing(name, variable):
    rule, true = EVERY[name]
    broken = true.astype(float).copy(deep=True)
    for value in (np.nan, np.inf, -np.inf):
        broken[variable].values.flat[-1] = value
        verdict = rule.judge(broken)
        assert verdict.word == "undecided"
        assert verdict.reason == "1 value of the evidence is not finite."


@by_every_rule_and_variable
def test_evidence_that_lacks_a_variable_is_bad_input_that_names_it(name, variable):
    rule, true = EVERY[name]
    with pytest.raises(InputError, match=rf"lacks {variable}:.*{type(rule).__name__}"):
        rule.judge(true.drop_vars(variable))


@pytest.mark.parametrize(
    "name", [name for name, (rule, _) in EVERY.items() if "error" in rule.reads]
)
def test_a_negative_error_is_bad_input(name):
    rule, true = EVERY[name]
    with pytest.raises(InputError, match="negative error"):
        rule.judge(true.assign(error=true["error"] - true["error"].mean()))


@by_every_rule
@settings(derandomize=True, max_examples=3, deadline=None)
@given(data=st.data())
def test_a_verdict_does_not_depend_on_the_order_of_the_evidence(name, data):
    rule, true = EVERY[name]
    for seen in (true, VIVIDLY_FALSE[name]):
        order = {dim: data.draw(st.permutations(range(size))) for dim, size in seen.sizes.items()}
        before, after = rule.judge(seen), rule.judge(seen.isel(order))
        assert after.word == before.word
        assert after.statistic == pytest.approx(before.statistic)


@by_every_rule
def test_a_verdict_does_not_depend_on_how_the_axes_are_laid_out(name):
    rule, true = EVERY[name]
    assert rule.judge(true.transpose(*reversed(list(true.dims)))) == rule.judge(true)


@pytest.mark.parametrize("name", ["agreement", "approximation", "bound", "order"])
def test_a_verdict_does_not_depend_on_how_many_axes_the_comparisons_have(name):
    rule, true = EVERY[name]
    table = true.assign_coords(row=("cell", [0, 0, 1, 1]), column=("cell", [0, 1, 0, 1]))
    assert rule.judge(table.set_index(cell=["row", "column"]).unstack("cell")) == rule.judge(true)


@pytest.mark.parametrize("name", ["approximation", "order"])
@settings(derandomize=True, max_examples=10, deadline=None)
@given(distances=st.lists(st.floats(-8, 8), min_size=1, max_size=6), power=st.integers(-300, 300))
def test_units_do_not_enter_a_relative_margin_or_an_order(name, distances, power):
    make, world, _ = INTERVALS[name]
    seen = world(np.array(distances))
    scaled = make(LEVEL).judge(seen * 2.0**power)
    assert scaled.word == make(LEVEL).judge(seen).word
    if name == "approximation":
        assert scaled.statistic == make(LEVEL).judge(seen).statistic


@settings(derandomize=True, max_examples=10, deadline=None)
@given(distance=st.floats(-8, 8), of_x=st.floats(1e-6, 1e6), of_y=st.floats(1e-6, 1e6))
def test_units_do_not_enter_an_exponent(distance, of_x, of_y):
    seen = around_an_exponent(np.array([distance]))
    scaled = seen.assign(
        x=seen["x"] * of_x, measured=seen["measured"] * of_y, error=seen["error"] * of_y
    )
    assert Rate(MARGIN).judge(scaled).statistic == pytest.approx(
        Rate(MARGIN).judge(seen).statistic, abs=1e-9
    )


@by_every_rule
def test_a_verdict_is_plain_data_that_json_can_hold(name):
    rule, true = EVERY[name]
    nothing = true.isel({dim: slice(0, 0) for dim in true.dims})
    for seen in (true, VIVIDLY_FALSE[name], nothing):
        verdict = rule.judge(seen)
        plain = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
        assert plain["word"] == verdict.word == str(verdict)
        assert plain["reason"] == verdict.reason
        assert all(plain[key] is not None for key in ("statistic", "threshold")) or seen is nothing


@by_every_rule
def test_a_rule_says_itself_in_a_sentence_with_its_level(name):
    rule, _ = EVERY[name]
    assert str(rule).startswith(type(rule).__name__ + ": ")
    assert "0.0001" in str(rule)


# Quantiles, limits, slopes


@pytest.mark.parametrize("rule", [Agreement(), Approximation(0.1), Order(), Bound()])
def test_evidence_that_rests_on_few_repetitions_decides_less(rule):
    # 4.5 standard errors: enough if they are known, too few for Student's quantile with 19
    # degrees of freedom.
    sure = xr.Dataset(
        {
            "predicted": 1.0,
            "measured": 1.145,
            "bound": 1.0,
            "lower": 1.145,
            "upper": 1.0,
            "error": 0.01,
        }
    )
    if isinstance(rule, Agreement | Order | Bound):
        sure = sure.assign(measured=1.045, lower=1.045)
    assert rule.judge(sure).word == "refuted"
    assert rule.judge(sure.assign(repetitions=20)).word != "refuted"
    # What is detectable grows by the power that few repetitions cost, beside the quantile.
    deviations = [rule.judge(sure.assign(repetitions=n)).detectable for n in (20, 10**6)]
    few, many = (float(re.search(r"[\d.]+", words)[0]) for words in deviations)
    reaches = [
        student_reach(student_quantile(LEVEL, sides=sides, count=n), n)
        for sides in (1 if isinstance(rule, Bound) else 2,)
        for n in (20, 10**6)
    ]
    margin = 0.1 if isinstance(rule, Approximation) else 0.0
    assert (few - margin) / (many - margin) == pytest.approx(reaches[0] / reaches[1], rel=0.2)
    with pytest.raises(InputError, match="two repetitions"):
        rule.judge(sure.assign(repetitions=1))


# Edges: where rounding, few draws, noise or bad values could mislead a rule.


@pytest.mark.parametrize("draws", [1, 2, 4, 8])
def test_samples_that_lie_apart_by_chance_more_often_than_the_level_are_not_told_apart(draws):
    apart = samples(np.arange(draws)[:, None], draws + np.arange(draws)[:, None])
    assert 2 / comb(2 * draws, draws) > LEVEL
    assert SameLaw().judge(apart).word != "refuted"


def test_samples_are_paired_by_the_names_of_their_axes():
    rng = np.random.default_rng(20)
    a, b = rng.normal(np.arange(4.0).reshape(2, 2, 1), size=(2, 2, 2, 300))
    seen = xr.Dataset(
        {"sample_a": (("row", "column", "draw"), a), "sample_b": (("row", "column", "draw"), b)}
    )
    assert SameLaw().judge(seen).word == "confirmed"
    seen["sample_b"] = seen["sample_b"].transpose("column", "row", "draw")
    assert SameLaw().judge(seen).word == "confirmed"


def test_one_sample_is_compared_with_each_of_several():
    one, several = np.random.default_rng(21).normal(size=(2, 300, 3))
    assert SameLaw().judge(samples(one[:, 0], several)).word == "confirmed"


def test_two_laws_at_the_distance_called_detectable_are_told_apart_with_the_stated_power():
    rng, claims, draws = np.random.default_rng(22), CLAIMS, 400
    distance = (kolmogi(RAISED) + norm.ppf(POWER) / 2) * np.sqrt(2 / draws)
    shift = 2 * norm.ppf((1 + distance) / 2)
    words = count(
        SameLaw(level=RAISED),
        (samples(g[0] + shift, g[1]) for g in rng.normal(size=(claims, 2, draws, 1))),
    )
    assert at_least(words["refuted"], claims, POWER)


@pytest.mark.parametrize("relative", [0.05, 0.2])
def test_a_rate_holds_its_level_where_one_size_is_measured_badly(relative):
    x, error = np.array([1.0, 2.0, 4.0]), np.array([0, 0, relative])

    def refuted(g):
        measured = x**MARGIN * (1 + error * np.array([0, 0, g]))
        return (
            Rate(MARGIN)
            .judge(evidence(x=x, measured=measured, error=error * x**MARGIN, predicted=0.0))
            .word
            == "refuted"
        )

    # The true exponent is at the margin and the noise is one normal variable: the chance is
    # the tail beyond `high`.
    low, high = 0.0, 8.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    assert norm.sf(high) <= LEVEL


def test_agreement_without_rounding_sees_every_difference():
    assert Agreement(rounding=0).judge(compared([1.0, 2.0], [1.0, 3.0], 0.0)).word == "refuted"


def test_numbers_far_below_one_are_held_to_their_own_scale():
    assert Agreement().judge(compared([1e-14], [2e-13], [1e-16])).word == "refuted"
    assert Bound().judge(evidence(bound=[1e-14], measured=[5e-13], error=[1e-16])).word == "refuted"


@pytest.mark.parametrize("margin", [0.05, 0.1])
def test_an_exact_deviation_equal_to_the_margin_is_not_refuted(margin):
    assert Approximation(margin).judge(compared([1.0], [1 + margin], [0.0])).word != "refuted"


def test_rounding_puts_nothing_in_order():
    assert Order().judge(evidence(lower=[0.3], upper=[0.1 + 0.2], error=[0.0])).word == "undecided"


def test_the_statistic_of_a_refuted_bound_exceeds_its_threshold():
    verdict = Bound().judge(evidence(bound=[-1.0, 10.0], measured=[0.0, 5.0], error=0.0))
    assert verdict.word == "refuted"
    assert verdict.statistic > verdict.threshold


def test_a_run_arrives_or_does_not():
    with pytest.raises(InputError, match="arrived"):
        Convergence(0.9).judge(evidence("repeat", arrived=np.repeat([0.0, 2.0], 500)))


def test_what_is_not_real_confirms_nothing():
    with pytest.raises(InputError, match="measured"):
        Agreement().judge(compared([1.0], [1 + 5j], [0.0]))


def test_a_bound_says_in_words_how_near_it_is():
    def reason(measured):
        return (
            Bound()
            .judge(xr.Dataset({"bound": 2.0, "measured": ("n", [measured]), "error": 0.0}))
            .reason
        )

    assert "reaches 0.5 of the bound" in reason(1.0) and "reaches 1 of the bound" in reason(2.0)
    assert "is 1.5 times the bound" in reason(3.0) and "of the other sign" in reason(-1.0)


def test_an_order_shows_the_digits_that_tell_its_sides_apart():
    found = Order().judge(
        xr.Dataset({"lower": ("n", [1.000001]), "upper": ("n", [1.000002]), "error": 0.0})
    )
    assert found.predicted == "1.000001 < 1.000002" and found.measured.startswith(
        "difference 1e-06"
    )
    assert found.detectable == "any inversion"


def test_a_rate_has_one_exponent():
    seen = evidence(
        "cell", measured=SIZES, error=1e-3 * SIZES, x=SIZES, exponent=np.ones(SIZES.size)
    )
    assert Rate(MARGIN).judge(seen).word == "confirmed"
    with pytest.raises(InputError, match="exponent varies along 'cell'"):
        Rate(MARGIN).judge(seen.assign(exponent=("cell", SIZES)))


@pytest.mark.parametrize(
    ("rule", "data", "deviation", "strength"),
    (
        (
            Agreement(),
            compared([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], [0.02, 0.02, 0.02]),
            (norm.isf(LEVEL / 6) + norm.ppf(POWER)) * 0.01,
            "fair: 3 comparisons; in half of them a deviation of 0.058 of the prediction",
        ),
        (Agreement(), compared([1.0, 2.0], [1.0, 2.0], [0.0, 0.0]), 1e-12, "fine: 2 comparisons"),
        (
            Agreement(),  # rounding is of max(1, |predicted|); a prediction of 0 has no share
            compared([0.0, 1e-9, 1e-9], [0.0, 1e-9, 1e-9], [0.0, 0.0, 0.0]),
            1e-3,
            "fine: 3 comparisons; in half of them a deviation of 0.001 of the prediction",
        ),
        (
            Agreement(),
            compared([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
            1e-12,
            "fine: 2 comparisons; in half of them a deviation of 1e-12 from 0 would have been seen",
        ),
        (
            Approximation(margin=0.2),
            compared([2.0], [2.1], [0.0]),
            0.2,
            "coarse: 1 comparison; a deviation of 0.2 of the prediction",
        ),
        (
            Approximation(margin=1.0, relative=False),  # as of logarithms, which any unit shifts
            compared([12.0, 14.0], [12.1, 14.1], [0.0, 0.0]),
            1.0,
            "coarse: 2 comparisons; in half of them a deviation of 1 would have been seen",
        ),
        (
            Bound(),
            evidence(bound=[1.0, 2.0], measured=[0.25, 1.9], error=[0.0, 0.0]),
            0.05,
            "fair: 2 comparisons; a bound smaller by 0.05 of it would have been broken",
        ),
        (
            Bound(),
            evidence(bound=[1.0], measured=[-0.5], error=[0.0]),
            1.0,
            "coarse: 1 comparison; no smaller bound would have been broken",
        ),
        (
            Order(),
            evidence(lower=[1.0], upper=[2.0], error=[0.1]),
            (norm.isf(LEVEL / 2) + norm.ppf(POWER)) / 10,
            "coarse: 1 comparison; a gap of 0.55 of the measured one would have been told from 0",
        ),
    ),
)
def test_strength_says_how_small_a_deviation_would_have_been_seen(rule, data, deviation, strength):
    verdict = rule.judge(data)
    assert verdict.deviation == pytest.approx(deviation, rel=1e-3)
    assert verdict.strength.startswith(strength)


@pytest.mark.parametrize(("sizes", "grade"), ((4, "coarse"), (5, "fair")))
def test_an_exponent_from_fewer_than_five_sizes_is_coarse(sizes, grade):
    x = 2.0 ** np.arange(sizes)
    found = Rate(margin=0.05).judge(evidence(x=x, measured=1 / x, error=0 * x, exponent=-1.0))
    assert found.word == "confirmed" and found.points == sizes
    assert found.strength == (
        f"{grade}: {sizes} sizes; an exponent off by 0.05 would have been seen"
    )


def test_what_is_not_confirmed_has_no_strength():
    refuted = Bound().judge(evidence(bound=[1.0], measured=[2.0], error=[0.0]))
    assert refuted.word == "refuted" and refuted.strength == ""


def test_runs_that_could_refute_nothing_have_no_strength():
    few = Convergence(share=0.5).judge(evidence(("cell", "repeat"), arrived=[[True] * 5]))
    assert few.strength == "" and np.isnan(few.deviation)
    many = Convergence(share=0.5).judge(evidence(("cell", "repeat"), arrived=[[True] * 2000]))
    assert many.strength.startswith("fair: 2,000 runs; a share of runs that is 0.0")
