import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists
from pytest import approx

from attlas import covers
from attlas.covers import (
    best_split,
    column_norm,
    linear_entropy,
    matrix_entropy,
    spectral_norm,
    token_radius,
)
from attlas.errors import InputError
from tests.defaults import numbers_by_default


def test_the_column_norm_of_one_output_unit_is_its_length():
    w = np.zeros((4, 3))
    w[:, 1] = [3, 0, 4, 0]
    assert column_norm(w) == approx(5) == approx(spectral_norm(w))
    assert column_norm(w.T) == approx(7)


def test_token_radius_is_the_longest_token():
    assert token_radius([[[3.0, 4.0], [0.0, 1.0]]]) == approx(5)


def test_known_numbers():
    least, shares = best_split([7, 0.6])
    assert least == approx(83.49266722968959) and shares == approx([0.8372386, 0.1627614], abs=1e-7)
    assert matrix_entropy(4, 0.5, 1e5, 64, 64) == approx(64 * 64 * math.log(17))
    # 36 rho^2 A^2 / (1 - beta) eps^2 * ln(2N(... + 3.5)) + M ln(1 + d levels), by hand; the
    # ceiling of the lemma is below.
    assert linear_entropy(2, 0.5, 100) >= 36 * 16 * math.log(2 * math.ceil(18) * 100 + 1)
    square, stretch = 64.0, math.sqrt(1.1 / 0.9)
    levels = math.ceil(math.log(square / 0.1) / math.log(1.1))
    by_hand = 36 * 1.21 / 0.9 * square * math.log(
        2 * (4 * stretch * 8 + 3.5) * 1e5
    ) + 64 * math.log(1 + 64 * levels)
    assert matrix_entropy(4, 0.5, 1e5, 64) == approx(by_hand)
    assert linear_entropy(2, 0.5, 100) == approx(36 * 16 * math.log(2 * 19.5 * 100))


@given(size=floats(0.01, 50), eps=floats(0.01, 60), points=integers(1, 10**6), dim=integers(1, 50))
def test_entropies_fall_in_the_distance_and_grow_with_size_and_points(size, eps, points, dim):
    here = linear_entropy(size, eps, points, dim)
    assert here >= 0 and (here == 0) == (eps >= size)
    assert (
        linear_entropy(size, 1.1 * eps, points, dim)
        <= here
        <= linear_entropy(1.1 * size, eps, points, dim)
    )
    assert (
        here
        <= linear_entropy(size, eps, 2 * points, dim)
        <= dim * math.log(1 + 2 * size / eps) + 1e-9
    )
    assert here <= matrix_entropy(size, eps, points, 1 + dim, dim) or dim == 1


def test_on_a_line_the_cover_is_an_interval_cut_in_pieces():
    """In one dimension the least cover of [-A, A] has ceil(A/eps) members: what the parametric
    bound is off by is known."""
    for ratio in (2, 5, 50):
        assert (
            math.log(math.ceil(ratio))
            <= linear_entropy(ratio, 1, 1, 1)
            <= math.log(1 + 2 * ratio) + 1e-12
        )


@given(lists(floats(1e-3, 1e3), min_size=1, max_size=6))
def test_no_other_split_is_better(sizes):
    least, shares = best_split(sizes)
    a = np.asarray(sizes)
    assert (a**2 / shares**2).sum() == approx(least) and shares.sum() == approx(1)
    moved = shares * np.exp(0.1 * np.cos(np.arange(len(a))))
    moved /= moved.sum()
    assert (a**2 / moved**2).sum() >= least * (1 - 1e-12)


def test_few_columns_are_kept_where_they_are_long():
    """A matrix of many columns, of which no more than A^2/(beta eps^2) are longer than what may be
    left out."""
    by_hand = 36 * 1.21 / 0.9 * math.log(
        2 * (4 * math.sqrt(1.1 / 0.9) * 1.5 + 3.5) * 10
    ) * 2.25 + 22.5 * math.log(1 + 1000 * math.ceil(math.log(22.5) / math.log(1.1)))
    assert matrix_entropy(1.5, 1.0, 10, 1000) == approx(by_hand)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: column_norm(np.ones(3)), r"a matrix has the shape \(3,\)"),
        (lambda: spectral_norm([[np.nan]]), "an entry that is not finite"),
        (lambda: linear_entropy(1.0, 0.0, 10), "eps = 0: it must be a positive number"),
        (
            lambda: linear_entropy(1.0, 0.1, 10, -1),
            "dim = -1: it must be a positive number, or infinite",
        ),
        (lambda: linear_entropy("x", 0.1, 10), "size = 'x': it must be a number"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(covers) == [
        "between low=0 high=1",
        "linear_entropy dim=inf",
        "matrix_entropy inputs=inf",
    ]
