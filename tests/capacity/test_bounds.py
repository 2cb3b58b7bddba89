import math
from dataclasses import replace

import numpy as np
from pytest import approx

from attlas.capacity import (
    HeadNorms,
    bounds,
    class_of,
    collapsed_head,
    head_block,
    occam_samples,
    read_out,
    residual,
    stacked,
)
from attlas.capacity.blocks import Term
from attlas.capacity.bounds import MAX_DISTANCES, Capacity
from attlas.covers import log_entropy_at
from tests.defaults import numbers_by_default

NORMS = HeadNorms(
    value=2.0,
    value_21=3.0,
    query_key=1.5,
    query_key_21=2.5,
    out=0.5,
    out_21=0.7,
    dim=8,
    width=4,
    out_dim=8,
)


def test_the_split_of_a_capacity_is_where_no_other_is_better():
    for capacity in (
        class_of(collapsed_head(9.0, 1.2, 50)),
        class_of(collapsed_head(9.0, 1.2, 50, 7)),
        class_of(head_block(NORMS, 30)),
    ):
        logs, shares = capacity.log_entropies(0.05, 1000)
        best = np.logaddexp.reduce(logs)
        assert shares.sum() == approx(1)
        sizes, tokens, outputs, inputs = capacity._stacked()
        rng = np.random.default_rng(0)
        for _ in range(50):
            other = shares * np.exp(0.3 * rng.standard_normal(len(shares)))
            other /= other.sum()
            worse = np.logaddexp.reduce(
                log_entropy_at(sizes - np.log(0.05 * other), np.log(1000 * tokens), outputs, inputs)
            )
            assert worse >= best - 1e-6


def test_parameters_that_are_counted_share_the_distance_with_norms_as_the_derivatives_say():
    """Of 600 ln(1 + 2A/(b eps)) and a square: by a search over the share b."""
    terms = (Term("counted", math.log(3.0), 50, 1, 600), Term("square", math.log(0.06), 50))
    total = Capacity(terms, 1.0).entropy(0.05, 1000)
    shares = np.linspace(0, 1, 200_001)[1:-1]
    square = np.exp(log_entropy_at(np.log(1.2 / (1 - shares)), math.log(50_000), 1, np.inf))
    assert total == approx((600 * np.log1p(120 / shares) + square).min(), rel=1e-6)


def test_a_report_says_which_cover_is_the_smaller_one():
    """800 parameters, of 1,287 nats at a distance of half the size; by norms 551 for two points,
    and 2,540 for two tokens in each of a million samples."""
    report = Capacity((Term("few", 0.0, 2, 1, 800),), 1.0).report(0.5, 10**6)
    assert "parameters" in report and "norms" not in report
    assert "parameters" not in Capacity((Term("few", 0.0, 2, 1, 2000),), 1.0).report(0.5, 10**6)


def test_dudley_takes_no_more_distances_than_it_says(monkeypatch):
    seen, total = [], Capacity._total
    monkeypatch.setattr(
        Capacity, "_total", lambda self, *args: seen.append(np.size(args[0])) or total(self, *args)
    )
    Capacity((Term("far", 0.0, 50),), 0.0)._log_rademacher(2000.0)
    assert MAX_DISTANCES / 2 < sum(seen) <= MAX_DISTANCES + 2


def test_the_first_shares_by_hand():
    """Without counting parameters in proportion to (A^2 ln(8 n A / eps))^(1/3), n the tokens of all
    samples; with it in proportion to the parameters, where that is less."""
    sizes, tokens, eps, samples = np.array([9.0, 0.4]), np.array([50, 3]), 0.05, 1000
    terms = [Term(str(a), math.log(a), n) for a, n in zip(sizes, tokens, strict=True)]
    _, shares = Capacity((*terms,), 1.0)._log_entropies(math.log(eps), math.log(samples), rounds=0)
    expected = (sizes**2 * np.log(8 * tokens * samples * sizes / eps)) ** (1 / 3)
    assert shares == approx(expected / expected.sum())
    counted = (terms[0]._replace(inputs=3), terms[1]._replace(outputs=2, inputs=6))
    _, shares = Capacity(counted, 1.0)._log_entropies(math.log(eps), math.log(samples), rounds=0)
    assert shares == approx([3 / 15, 12 / 15])


def test_a_weight_of_size_0_costs_nothing():
    some = (Term("one", 1.0, 5, 1, 3), Term("two", 0.5, 5, 2, 6))
    none = Term("none", -np.inf, 5, 4, 4)
    for rounds in (0, 60):
        without, found = (
            Capacity(terms, 1.0)._total(-3.0, 6.0, rounds) for terms in (some, (*some, none))
        )
        assert found == approx(without)


def test_dudley_is_near_its_closed_form_where_the_entropy_is_a_square():
    """With H = C/eps^2: a = 3 sqrt(C/m) and R = 12 sqrt(C/m)(1 + ln(A/a)); ours has the logarithm
    of the points in it and an upper sum."""
    capacity = class_of(collapsed_head(0.0, 1.0, 1))
    m = 1e9
    c = 36 * math.log(2 * 7 * m + 1)
    root = math.sqrt(c / m)
    closed = 12 * root * (1 + math.log(1 / (3 * root)))
    assert closed <= capacity.rademacher(m) <= 1.4 * closed


def test_dudley_is_the_integral_and_is_capped():
    capacity = class_of(collapsed_head(3.0, 2.0, 40, 5))
    m = 50_000
    eps = np.geomspace(1e-7, 2, 4000)
    roots = np.sqrt(capacity.entropy(eps, m))
    tails = np.cumsum((np.diff(eps) * (roots[1:] + roots[:-1]) / 2)[::-1])[::-1]
    integral = (4 * eps[:-1] + 12 / math.sqrt(m) * tails).min()
    assert integral <= capacity.rademacher(m) <= 1.1 * integral < 2
    assert capacity.rademacher(10) == approx(2.0) and capacity.risk_bound(10, margin=0.1).vacuous


def test_samples_for_is_where_the_bound_reaches_the_gap():
    for capacity in (
        class_of(collapsed_head(9.0, 1.2, 50)),
        class_of(collapsed_head(9.0, 1.2, 50, 4, "sharp")),
    ):
        samples = capacity.samples_for(0.5, margin=0.1)
        assert capacity.risk_bound(samples, margin=0.1).value == approx(0.5, rel=1e-6)
        assert (
            capacity.risk_bound(2 * samples, margin=0.1).value
            < 0.5
            < capacity.risk_bound(samples / 2, margin=0.1).value
        )


def test_samples_for_is_where_a_bound_that_jumps_passes_the_gap():
    capacity = class_of(collapsed_head(9.0, 0.5, 50, 1, "sharp"))
    samples = capacity.samples_for(0.5, margin=0.1)
    before, after = (
        capacity.risk_bound(samples * x, margin=0.1).value for x in (1 - 1e-8, 1 + 1e-8)
    )
    assert after < 0.49996 and before > 0.5


def test_samples_for_holds_far_out_too():
    """Tiny gaps and margins, and stacks whose values may be astronomically larger than the
    margin."""
    for gap, margin in ((1e-4, 1e-4), (0.5, 1e-9), (1e-9, 1.0)):
        capacity = class_of(collapsed_head(2.0, 1.0, 30, 6))
        samples = capacity.samples_for(gap, margin=margin)
        assert capacity.risk_bound(samples, margin=margin).value == approx(gap, rel=1e-6)
    deep = read_out(stacked(*[residual(head_block(NORMS, 20))] * 8), 1.0)
    assert deep.risk_bound(deep.samples_for(0.5, margin=0.1), margin=0.1).value == approx(
        0.5, rel=1e-6
    )


def test_a_grid_of_settings_is_the_settings_one_by_one():
    lengths, norms = np.array([10.0, 100.0, 1e6])[:, None], np.array([0.5, 8.0])
    grid = class_of(collapsed_head(norms, 1.0, lengths, constant="sharp"))
    found, samples = grid.rademacher(1e9), grid.samples_for(0.3, margin=0.2)
    for i, j in np.ndindex(3, 2):
        one = class_of(collapsed_head(norms[j], 1.0, lengths[i, 0], constant="sharp"))
        # The grid of distances is as fine as the hardest setting needs: others have it
        # finer than by themselves.
        assert found[i, j] == approx(one.rademacher(1e9), rel=0.02)
        assert samples[i, j] == approx(one.samples_for(0.3, margin=0.2), rel=0.04)


def test_the_risk_bound_by_hand():
    capacity = class_of(collapsed_head(0.5, 1.0, 9, 2, "sharp"))
    bound = capacity.risk_bound(20_000, margin=0.4, delta=0.1)
    assert bound.complexity == approx(2 * capacity.rademacher(20_000) / 0.4)
    assert bound.confidence == approx(3 * math.sqrt(math.log(20) / 40_000))
    assert (
        bound.value == approx(bound.complexity + bound.confidence) and capacity.constant == "sharp"
    )
    wide = class_of(
        collapsed_head(3.0, 1.0, 100)
    )  # a margin so large that the trivial bound decides
    assert wide.risk_bound(wide.samples_for(0.25, margin=10.0), margin=10.0).value == approx(0.25)


def test_the_length_enters_by_a_logarithm():
    scaling = class_of(collapsed_head(5.0, 1.0, 1000)).scaling(0.05, 1000)
    assert 0 < scaling["length"] < 0.1 and scaling["length"] == approx(scaling["samples"], rel=0.05)
    assert scaling["1/eps"] == approx(2, abs=0.15)


def test_a_grid_of_lengths_scales_as_each_length_does():
    """Also where the grid begins with a term that a length of 1 does not multiply."""
    capacities = [
        Capacity((Term("square", math.log(0.9), tokens),), 1.0) for tokens in (50.0, [1.0, 50.0])
    ]
    alone, grid = (
        replace(each, terms=tuple(t._replace(tokens=np.asarray(t.tokens)) for t in each.terms))
        for each in capacities
    )
    found = grid.scaling(0.05, 1000)["length"]
    assert found[1] == approx(float(alone.scaling(0.05, 1000)["length"]), rel=1e-6) and found[1] > 0


def test_a_layer_more_multiplies_the_entropy_by_the_square_of_its_lipschitz_constant():
    layers = (math.log(3.0), math.log(12.0))
    capacity = replace(class_of(collapsed_head(5.0, 1.0, 1000)), layers=layers)
    assert capacity.scaling(0.05, 1000)["depth"] == approx(math.log(3.0 * 12.0))


def test_occam():
    assert occam_samples(math.log(1000), 0.1, 0.05) == approx((math.log(1000) + math.log(20)) / 0.1)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(bounds) == [
        "Capacity.risk_bound delta=0.05",
        "Capacity.log_samples_for delta=0.05",
        "Capacity.samples_for delta=0.05",
        "class_of radius=1",
        "read_out radius=1 out_dim=inf",
        "occam_samples delta=0.05",
    ]
