"""Order and folds depend on what rows hold, not on where they stand."""

import numpy as np

from attlas.estimators.resampling import balanced_folds, distinct

ROWS = [f"row {i % 7}".encode() for i in range(20)]


def test_repetition_is_weight_and_order_does_not_matter():
    rows, weight = distinct(ROWS, np.ones(20), 3)
    assert len(rows) == 7 and weight.sum() == 20
    shuffle = np.random.default_rng(0).permutation(20)
    again, weight_again = distinct([ROWS[i] for i in shuffle], np.ones(20), 3)
    assert [ROWS[i] for i in rows] == [ROWS[shuffle[i]] for i in again]
    np.testing.assert_array_equal(weight, weight_again)


def test_rows_without_weight_are_left_out_and_the_seed_changes_the_order():
    rows, _ = distinct(ROWS, (np.arange(20) % 7 > 0).astype(float), 3)
    assert {ROWS[i] for i in rows} == {f"row {i}".encode() for i in range(1, 7)}
    orders = {tuple(ROWS[i] for i in distinct(ROWS, np.ones(20), seed)[0]) for seed in range(8)}
    assert len(orders) > 4


def test_folds_are_balanced_within_strata():
    strata = list("aabbbbbbaaaaabbbba")
    folds = balanced_folds(strata, 5)
    for letter in "ab":
        counts = np.bincount(folds[np.array(strata) == letter], minlength=5)
        assert counts.max() - counts.min() <= 1
