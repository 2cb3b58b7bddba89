"""The classifier keeps scikit-learn's contract, finds supports, and says when there is none."""

import numpy as np
import pandas as pd
import pytest
from bench.simulated import recovered
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from attlas.estimators import SparseAttentionClassifier, load_estimator
from attlas.estimators.sparse import _thresholds
from tests.conftest import SEED


@parametrize_with_checks([SparseAttentionClassifier(n_runs=2, max_iter=100)])
def test_the_contract(estimator, check):
    check(estimator)


def drawn(count=80, length=40, seed=SEED):
    X = (np.random.default_rng(seed).random((count, length)) < 0.7).astype(int)
    return X, np.where(X[:, 3] & X[:, 17], "yes", "no")


@pytest.fixture(scope="module")
def fitted():
    X, y = drawn()
    names = [f"gene {i}" for i in range(40)]
    return SparseAttentionClassifier(random_state=0, n_runs=4).fit(
        pd.DataFrame(X, columns=names), y
    )


def test_support_table_and_words(fitted):
    assert fitted.support_.tolist() == [3, 17] and fitted.sparse_ and fitted.contradictions_ == 0
    assert [said for _, said, _, _ in fitted.truth_table()] == ["no", "no", "no", "yes"]
    assert sum(zeros + ones for _, _, zeros, ones in fitted.truth_table()) == 80
    told = fitted.explain()
    assert "gene 3" in told and "1 1 -> yes" in told and "Nothing contradicts sparsity" in told
    X, y = drawn(500, seed=SEED + 1)
    frame = pd.DataFrame(X, columns=fitted.feature_names_in_)
    assert fitted.score(frame, y) > 0.99
    assert fitted.stability_[[3, 17]].min() > 0.8


@pytest.mark.long
def test_the_support_of_an_and_of_three_is_recovered_from_70_examples_of_300_bits():
    assert np.mean([recovered(300, 70, SEED + i) for i in range(50)]) >= 0.8


def test_it_selects_columns_with_their_names(fitted):
    X, _ = drawn()
    frame = pd.DataFrame(X, columns=fitted.feature_names_in_)
    chosen = fitted.set_output(transform="pandas").transform(frame)
    assert list(chosen.columns) == ["gene 3", "gene 17"]


def test_coins_are_doubted():
    rng = np.random.default_rng(SEED)
    X, y = rng.integers(0, 2, (100, 30)), rng.integers(0, 2, 100)
    model = SparseAttentionClassifier(random_state=0, n_runs=2, max_iter=50).fit(X, y)
    assert not model.sparse_ and "Doubt: no column tells enough" in model.explain()


def test_noise_is_counted():
    X, y = drawn(200)
    y = np.where(np.arange(200) % 20 == 0, np.where(y == "yes", "no", "yes"), y)
    model = SparseAttentionClassifier(random_state=0, n_runs=4).fit(X, y)
    assert model.support_.tolist() == [3, 17] and model.contradictions_ == pytest.approx(0.05)


def cuts(column, weight=None, count=1):
    column = np.asarray(column, float)
    weight = np.ones(len(column)) if weight is None else np.asarray(weight, float)
    return _thresholds(column, weight, count).tolist()


def test_numbers_are_split_at_the_median():
    assert cuts([5, 7, 7]) == [6] and cuts([1, 2, 3, 9]) == [2.5]
    assert cuts([1, 2, 3, 3, 3]) == [2.5] and cuts([4, 4]) == [4]
    column, weight = np.array([1.0, 2.0, 5.0, 7.0]), np.array([3, 0, 1, 2])
    assert cuts(column, weight) == cuts(np.repeat(column, weight))
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(150, 12))
    model = SparseAttentionClassifier(random_state=0, n_runs=2).fit(X, X[:, 4] > np.median(X[:, 4]))
    assert model.support_.tolist() == [4]
    assert model.splits_.tolist() == [[4.0, model.thresholds_[4]]]


def test_numbers_are_split_at_several_quantiles():
    assert cuts(range(1, 9), count=3) == [2.5, 4.5, 6.5]
    assert cuts([0, 1, 1, 0], count=3) == [0.5] and cuts([1, 2, 2, 2, 9], count=3) == [5.5]
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(400, 8))
    X[:, 0] = X[:, 0] > 0
    y = X[:, 5] > np.quantile(X[:, 5], 0.75)
    model = SparseAttentionClassifier(random_state=0, n_runs=2, n_thresholds=3).fit(X, y)
    assert model.columns_.tolist() == [0] + [i for i in range(1, 8) for _ in range(3)]
    assert model.support_.tolist() == [5] and model.get_support().tolist() == [False] * 5 + [
        True,
        False,
        False,
    ]
    ((column, cut),) = model.splits_
    assert column == 5 and cut == pytest.approx(np.quantile(X[:, 5], 0.75), abs=0.02)
    assert model.score(X, y) == 1 and len(model.stability_) == len(model.attention_) == 8
    assert f"The table has the bits column 5 > {cut:.4g}." in model.explain()
    halves = SparseAttentionClassifier(random_state=0, n_runs=2).fit(X, y)
    assert halves.score(X, y) < 0.8


def test_searches_pipelines_and_saving(fitted, tmp_path):
    X = (np.random.default_rng(SEED).random((60, 6)) < 0.7).astype(int)
    words = pd.DataFrame(np.where(X, "t", "f"), columns=list("abcdef"))
    y = np.where((words.b == "t") & (words.e == "t"), 1, 0)
    model = SparseAttentionClassifier(n_runs=2, max_iter=100, random_state=0)
    search = GridSearchCV(
        make_pipeline(OneHotEncoder(drop="if_binary", sparse_output=False), model),
        {"sparseattentionclassifier__sparsity": [1, 2]},
        cv=3,
    )
    assert search.fit(words, y).best_params_ == {"sparseattentionclassifier__sparsity": 2}
    again = load_estimator(fitted.save(tmp_path / "model.npz"))
    X, _ = drawn()
    frame = pd.DataFrame(X, columns=fitted.feature_names_in_)
    assert (
        again.predict(frame) == fitted.predict(frame)
    ).all() and again.explain() == fitted.explain()


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        ([1, 1, 1, 1], "one class"),
        ([0, 1, 2, 0], "Only binary"),
        ([0.3, 1.7, 2.2, 0.1], "Unknown label type"),
    ],
)
def test_bad_input_is_said_in_a_sentence(y, sentence):
    model = SparseAttentionClassifier()
    with pytest.raises(ValueError, match=sentence):
        model.fit(np.eye(4), y)
    for unfitted in (SparseAttentionClassifier(), model):
        with pytest.raises(NotFittedError):
            unfitted.predict(np.eye(4))


def test_weights_that_are_shares_are_warned_of():
    X = np.random.default_rng(SEED).integers(2, size=(12, 3))
    y = np.arange(12) % 2
    with pytest.warns(UserWarning, match="sample_weight sums to 0.4"):
        SparseAttentionClassifier(n_runs=2, max_iter=5, random_state=0).fit(
            X, y, sample_weight=np.full(12, 0.4 / 12)
        )


def test_a_verbose_fit_says_how_training_goes(capsys):
    X = np.random.default_rng(SEED).integers(0, 2, (80, 30))
    model = SparseAttentionClassifier(random_state=0, verbose=True).fit(X, X[:, 3] & X[:, 17])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"[SparseAttentionClassifier] after {model.n_iter_} steps: losses")
