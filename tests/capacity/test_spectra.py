"""Covers of matrices agree with their formulas by hand, and really bound."""

import itertools
import math

import jax
import numpy as np
import pytest
from pytest import approx

from attlas import InputError
from attlas.capacity import class_of, collapsed_head
from attlas.capacity.blocks import Term
from attlas.capacity.spectra import (
    INDICES,
    SPARED,
    EntriesCapacity,
    SpectrumCapacity,
    entries_entropy,
    entry_norm,
    log_powers,
    spectrum_entropy,
)
from attlas.rademacher import draw_signs, planar_complexity

SPECTRUM = np.array([3.0, 1.0, 0.5, 0.01])


def test_the_sum_of_absolute_entries():
    assert entry_norm([[1.0, -2.0], [0.5, 3.0]]) == 6.5


def test_a_cover_by_entries_is_the_formula_by_hand():
    # A / eps = 12, so that 144 matrices of 2 * 4 * 7 + 1 are chosen.
    assert entries_entropy(6.0, 0.5, 4, 7) == approx(144 * math.log(57))
    assert entries_entropy(6.1, 0.5, 4, 7) == approx(149 * math.log(57))  # 148.84, rounded up
    assert entries_entropy(0.5, 0.5, 4, 7) == 0
    assert entries_entropy(1e30, 1e-9, 4, 7) == approx(1e78 * math.log(57))


def test_a_cover_by_the_spectrum_is_the_formula_by_hand():
    eps, radius, outputs, inputs = 0.7, 2.0, 200, 300
    spectrum = 3.0 * 0.3 ** np.arange(30)
    ratio = 3.0 * radius / eps
    options = [outputs * inputs * math.log(1 + 2 * ratio)]
    for share, p in itertools.product(SPARED, INDICES):
        if share == 0 and p:
            continue
        threshold = share * eps / radius
        count = (spectrum**p).sum() / threshold**p if share else len(spectrum)
        options.append(count * (outputs + inputs) * math.log(1 + 4 * ratio / (1 - share)))
    assert spectrum_entropy(spectrum, eps, outputs, inputs, radius) == approx(min(options))
    # Leaving out small singular values is cheaper than counting the rank, or all entries.
    assert min(options) < min(options[:2]) - 1


def test_a_cover_by_the_spectrum_counts_the_rank_at_small_distances_and_nothing_at_large_ones():
    nats = spectrum_entropy(np.append(SPECTRUM, 0.0), 1e-9, 20, 30)
    assert nats == approx(4 * 50 * math.log(1 + 4 * 3 / 1e-9))
    assert spectrum_entropy(SPECTRUM, 3.0, 20, 30) == 0
    # A square matrix of full rank is cheaper by its entries.
    flat = spectrum_entropy(np.ones(5), 1e-6, 5, 5)
    assert flat == approx(25 * math.log(1 + 2e6))


def test_powers_are_relative_to_the_largest_value_and_zeros_have_no_rank():
    powers = log_powers(np.array([2.0, 1.0, 0.0]))
    expected = [math.log(2.0), *(math.log(1 + 0.5**p) for p in INDICES[1:])]
    np.testing.assert_allclose(powers, expected)


def test_a_shape_that_is_not_finite_is_refused():
    with pytest.raises(InputError, match=r"outputs = inf: a cover of matrices needs a finite"):
        entries_entropy(1.0, 0.1, np.inf, 3)


def test_maurey_means_of_so_many_matrices_come_as_near_as_the_cover_says():
    """The draws of the proof: the best of some is within eps in the Frobenius norm."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((4, 5)) * rng.uniform(size=(4, 5)) ** 3
    total, eps = np.abs(w).sum(), 0.8
    count = math.ceil((total / eps) ** 2)
    picked = rng.choice(w.size, (200, count), p=np.abs(w).ravel() / total)
    sums = np.stack([np.bincount(row, minlength=w.size) for row in picked]).reshape(-1, *w.shape)
    means = total / count * sums * np.sign(w)
    distance = np.linalg.norm(means - w, axis=(1, 2))
    assert distance.min() <= eps
    assert (distance**2).mean() <= eps**2


def test_truncation_leaves_as_many_singular_values_as_the_powers_say_and_moves_by_the_threshold():
    rng = np.random.default_rng(4)
    w = rng.standard_normal((6, 8)) @ np.diag(0.6 ** np.arange(8))
    u, s, v = np.linalg.svd(w, full_matrices=False)
    for threshold, p in itertools.product((0.1, 0.4, 1.0), INDICES[1:]):
        kept = s > threshold
        assert kept.sum() <= (s**p).sum() / threshold**p
        assert np.linalg.norm(w - (u * np.where(kept, s, 0)) @ v, 2) <= threshold


def linear(capacity, terms=1, **fields):
    """The class x -> <w, x>, |w| <= 1.5, on |x| <= 2, in dimension 3."""
    size = math.log(3.0 * math.sqrt(3) if capacity is EntriesCapacity else 3.0)
    each = tuple(Term(f"w{i}", size, 1, 1, 3) for i in range(terms))
    return capacity(each, math.log(3.0 * terms), **fields)


def test_the_rademacher_complexity_of_linear_functions_is_below_both_bounds():
    """Of the class |w| <= 1.5 the supremum is 1.5 |mean of signs times x|; its 1,1 norms reach
    sqrt(3) times that."""
    rng = np.random.default_rng(5)
    samples = 40_000
    x = rng.standard_normal((samples, 3))
    x *= 2 / np.linalg.norm(x, axis=1, keepdims=True)
    signs = draw_signs(jax.random.key(1), 50, samples)
    measured = 1.5 * np.linalg.norm(signs @ x / samples, axis=1).mean()
    powers = log_powers(np.array([1.5]))[None]
    for bound in (linear(EntriesCapacity), linear(SpectrumCapacity, powers=powers)):
        assert measured <= bound.rademacher(samples) < 3.0
        assert bound.rademacher(100 * samples) < bound.rademacher(samples) / 5


def test_the_complexity_of_attention_heads_is_below_both_bounds():
    """v' X' softmax(Xu) by a search over u, with |u| <= 2 and |v| <= 1.5 in the plane."""

    rng = np.random.default_rng(6)
    tokens = rng.standard_normal((300, 6, 2))
    tokens /= np.maximum(np.linalg.norm(tokens, axis=-1, keepdims=True), 1)
    radius = np.linalg.norm(tokens, axis=-1).max()
    measured = planar_complexity(
        tokens, draw_signs(jax.random.key(2), 20, 300), query_norm=2.0, value_norm=1.5, rings=24
    )
    block = collapsed_head(2.0, 1.5, 6, 2)
    plain = class_of(block, radius)
    entries = tuple(term.scaled(math.log(math.sqrt(2))) for term in plain.terms)
    powers = np.zeros((2, len(INDICES)))  # vectors: one singular value each
    for bound in (
        EntriesCapacity(entries, plain.log_reach),
        SpectrumCapacity(plain.terms, plain.log_reach, powers=powers),
    ):
        assert measured.upper.mean() <= bound.rademacher(300)
        assert measured.upper.mean() <= bound.rademacher(100_000_000) * math.sqrt(1e8 / 300)


def test_neither_bound_knows_the_length_or_the_samples():
    terms = tuple(Term("w", 2.0, tokens, 5, 7) for tokens in (1, 1))
    long = tuple(term._replace(tokens=1000) for term in terms)
    powers = np.tile(log_powers(SPECTRUM), (2, 1))
    for make in (
        lambda t: EntriesCapacity(t, 3.0),
        lambda t: SpectrumCapacity(t, 3.0, powers=powers),
    ):
        assert make(terms).entropy(0.1, 10) == make(long).entropy(0.1, 10_000)
        assert make(terms).scaling(0.1, 10)["length"] == approx(0)


def test_the_split_of_the_distance_is_where_no_other_is_better():
    terms = (Term("a", 3.0, 1, 4, 6), Term("b", 1.0, 1, 9, 11), Term("c", -400.0, 1, 9, 11))
    powers = np.stack(
        [log_powers(SPECTRUM), log_powers(np.array([1.0, 0.9, 0.8])), log_powers(SPECTRUM)]
    )
    rng = np.random.default_rng(7)
    for bound in (EntriesCapacity(terms, 4.0), SpectrumCapacity(terms, 4.0, powers=powers)):
        logs, shares = bound.log_entropies(0.05, 1)
        assert shares.sum() == approx(1) and not np.isfinite(logs[2])
        sizes, _, outputs, inputs = bound._stacked()
        best = np.logaddexp.reduce(logs)
        for _ in range(40):
            other = shares * np.exp(0.3 * rng.standard_normal(3))
            ratio = sizes - np.log(0.05 * other / other.sum())
            assert np.logaddexp.reduce(bound._cover(ratio, outputs, inputs)) >= best - 2e-3


def test_a_report_has_a_line_for_every_weight():
    report = EntriesCapacity(
        (Term("query-key", 2.0, 1, 4, 6), Term("v", 1.0, 1, 4, 6)), 2.0
    ).report(0.1)
    assert len(report.splitlines()) == 3 and "query-key" in report
