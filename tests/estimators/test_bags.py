"""The estimators for bags keep scikit-learn's contract, take bags in every form, and say what they
found."""

import warnings

import numpy as np
import pandas as pd
import pytest
from bench.simulated import mean_located
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from attlas.errors import InputError
from attlas.estimators import SingleLocationClassifier, SingleLocationRegressor, load_estimator
from attlas.estimators.bags import WeakMomentsWarning
from attlas.estimators.instances import SingleRowsWarning, read_bags
from tests.conftest import SEED

# Of one fit the types are checked, which is `fitted`, and in the tests of the functions it calls.
pytestmark = pytest.mark.usefixtures("unchecked")

KINDS = (SingleLocationRegressor, SingleLocationClassifier)
FIXED = {"penalty": 0.1, "n_heads": 1, "features": "linear", "whole": False}
"""One fit of one head, where nothing is chosen by folds."""


@parametrize_with_checks([kind(**FIXED) for kind in KINDS])
def test_the_contract(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks([kind() for kind in KINDS])
def test_the_contract_by_default(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_fit2d_1feature,
        estimator_checks.check_fit2d_1sample,
        estimator_checks.check_fit_idempotent,
        estimator_checks.check_methods_subset_invariance,
        estimator_checks.check_n_features_in,
    ],
)
def test_what_is_chosen_by_folds_keeps_the_contract(kind, check):
    check(kind.__name__, kind())


def drawn(count=200, length=5, dim=4, seed=SEED):
    """Bags in which the instance with a large first feature decides by its second."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, length, dim))
    place = rng.integers(length, size=count)
    X[np.arange(count), place, 0] += 5
    return X, X[np.arange(count), place, 1], place


@pytest.fixture(scope="module")
def fitted():
    X, y, place = drawn()
    return SingleLocationRegressor(random_state=0).fit(X, y), X, y, place


def test_the_deciding_instance_is_found_and_its_direction_named(fitted):
    model, X, y, place = fitted
    assert (model.predict_location(X) == place).mean() > 0.95
    assert model.score(X, y) > 0.9
    assert abs(model.selector_[0]).argmax() == 0 and abs(model.value_[0, :, 0]).argmax() == 1
    assert model.attention_.shape == (200, 5)
    np.testing.assert_allclose(model.attention_.sum(1), 1)
    assert model.held_out_score_ > 0.85 and model.linear_score_ < 0.4
    told = model.explain()
    assert "Selects: feature 0" in told and "Speaks: feature 1" in told and "not swapped" in told


def test_every_form_of_bags_gives_the_same_fit(fitted):
    model, X, y, _ = fitted
    rows, ids = X.reshape(-1, 4), np.repeat(np.arange(200), 5)
    frame = pd.DataFrame(rows, columns=list("abcd"))
    forms = {
        "a list": SingleLocationRegressor(random_state=0).fit(list(X), y).predict(list(X)),
        "rows with ids": SingleLocationRegressor(random_state=0)
        .fit(rows, y, bags=ids)
        .predict(rows, bags=ids),
        "a frame with words": SingleLocationRegressor(random_state=0)
        .fit(frame, np.repeat(y, 5), bags=[f"b{i}" for i in ids])
        .predict(frame, bags=ids),
    }
    for name, said in forms.items():
        np.testing.assert_allclose(said, model.predict(X), rtol=1e-9, err_msg=name)


def test_interleaved_rows_are_put_together_in_the_order_of_first_occurrence(fitted):
    model, X, _, _ = fitted
    rows, ids = X[:3].transpose(1, 0, 2).reshape(-1, 4), np.tile(["z", "a", "m"], 5)
    np.testing.assert_allclose(model.predict(rows, bags=ids), model.predict(X[:3]))


def test_two_instances_that_decide_take_two_heads():
    rng = np.random.default_rng(SEED)
    X, i = rng.normal(size=(200, 5, 4)), np.arange(200)
    one, other = np.argsort(rng.random((200, 5)), axis=1)[:, :2].T
    X[i, one, 0] += 5
    X[i, other, 2] += 5
    y = X[i, one, 1] + X[i, other, 3]
    model = SingleLocationRegressor(random_state=0, n_heads=2).fit(X, y)
    assert model.selection_.together and model.held_out_score_ > 0.9
    assert "2 heads fitted together" in model.explain() and "Head 2: Speaks" in model.explain()
    loudest = np.sort(np.argsort(-model.attention_, axis=1)[:, :2], axis=1)
    assert (loudest == np.sort(np.stack([one, other], 1), axis=1)).all(1).mean() > 0.9


@pytest.mark.long
@pytest.mark.parametrize(("dim", "bar", "times"), [(20, 0.025, 15), (80, 0.01, 20)])
def test_excess_risk_on_the_papers_task(dim, bar, times):
    mean = mean_located(dim, 1000, range(SEED, SEED + 20))
    assert mean.excess <= bar and mean.found >= 0.94 and mean.linear > times * mean.excess


def test_shuffling_bags_changes_nothing(fitted):
    model, X, y, _ = fitted
    order = np.random.default_rng(1).permutation(200)
    np.testing.assert_array_equal(
        SingleLocationRegressor(random_state=0).fit(X[order], y[order]).predict(X), model.predict(X)
    )


def test_classes_of_ragged_bags_pipelines_and_searches():
    rng = np.random.default_rng(SEED)
    bags = [rng.normal(size=(rng.integers(2, 9), 3)) for _ in range(120)]
    y = np.array(["no", "yes"])[[int(bag[:, 0].max() > 1.4) for bag in bags]]
    shift = FunctionTransformer(lambda bags: [bag + 1 for bag in bags])
    search = GridSearchCV(
        make_pipeline(shift, SingleLocationClassifier(random_state=0)),
        {"singlelocationclassifier__penalty": [1e-3, 1e-2]},
        cv=3,
    )
    search.fit(bags, y)
    assert search.best_score_ > 0.75
    model = search.best_estimator_[-1]
    assert isinstance(model.attention_, list) and set(model.classes_) == {"no", "yes"}
    proba = search.predict_proba(bags[:5])
    np.testing.assert_allclose(proba.sum(1), 1)
    assert (
        cross_val_score(SingleLocationClassifier(penalty=0.01, n_heads=1), bags, y, cv=3).mean()
        > 0.75
    )


def test_three_classes():
    X, _, place = drawn(150)
    kind = X[np.arange(150), place, 1:].argmax(1)
    model = SingleLocationClassifier(random_state=0, penalty=1e-3).fit(X, kind)
    assert model.score(X, kind) > 0.8 and model.predict_proba(X).shape == (150, 3)


def test_the_instance_that_makes_a_bag_one_of_a_class():
    X, _, place = drawn(length=4)
    rng = np.random.default_rng(SEED)
    other = (place + rng.integers(1, 4, 200)) % 4  # of each bag another that stands out, for no
    X[np.arange(200), other, 0] += 5
    X[np.arange(200), place, 1], X[np.arange(200), other, 1] = 2, -2
    y = rng.integers(0, 2, 200)
    X[np.arange(200), np.where(y, other, place), 0] -= 5
    model = SingleLocationClassifier(features="linear", whole=False, random_state=0).fit(X, y)
    for kind, right in ((1, place), (0, other)):
        assert (model.predict_location(X, toward=kind) == right)[y == kind].mean() > 0.9
    assert (model.predict_location(X) == model.attention(X).argmax(1)).all()
    with pytest.raises(InputError, match="toward = 'yes': the classes are"):
        model.predict_location(X, toward="yes")


def test_set_output_and_a_bag_as_one_instance(fitted):
    model, X, y, place = fitted
    chosen = model.transform(X)
    assert np.abs(chosen - X[np.arange(200), place]).mean() < 0.2
    rows = pd.DataFrame(X[:, 0], columns=list("abcd"))
    pipeline = make_pipeline(StandardScaler(), SingleLocationRegressor(random_state=0)).set_output(
        transform="pandas"
    )
    assert list(pipeline.fit(rows, y)[:-1].transform(rows).columns) == list("abcd")
    assert list(pipeline.transform(rows).columns) == list("abcd")


def test_saved_and_loaded_without_a_pickle(fitted, tmp_path):
    model, X, _, _ = fitted
    again = load_estimator(model.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.explain() == model.explain() and again.get_params() == model.get_params()


def test_repr_and_clone(fitted):
    model = fitted[0]
    assert "SingleLocationRegressor" in model._repr_html_() and not hasattr(
        clone(model), "selection_"
    )


def test_metadata_routing():
    X, y, _ = drawn(60)
    rows, ids = X.reshape(-1, 4), np.repeat(np.arange(60), 5)
    from sklearn.model_selection import GroupKFold

    with config_context(enable_metadata_routing=True):
        model = SingleLocationRegressor(penalty=1e-3, n_heads=1, random_state=0)
        model.set_fit_request(bags=True).set_score_request(bags=True)
        scores = cross_val_score(
            model, rows, np.repeat(y, 5), cv=GroupKFold(3), params={"groups": ids, "bags": ids}
        )
    assert scores.mean() > 0.5


def test_noise_is_told():
    rng = np.random.default_rng(SEED)
    with pytest.warns(WeakMomentsWarning, match="more bags would help"):
        for seed in range(5):  # shuffled targets are as large by luck, sometimes
            X = rng.normal(size=(30, 6, 20))
            SingleLocationRegressor(penalty=0.1, n_heads=1, random_state=seed).fit(
                X, rng.normal(size=30)
            )
    X, y, _ = drawn()
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakMomentsWarning)
        SingleLocationRegressor(penalty=1e-3, n_heads=1).fit(X, y)


def test_the_held_out_accuracy_of_noise_is_a_half():
    """Though many penalties, starts and summaries of the bag are tried on the same folds: the
    accuracy at which they chose is some five points higher."""
    said = []
    for seed in range(8_100, 8_140):
        rng = np.random.default_rng(seed)
        bags, y = [rng.normal(size=(rng.integers(2, 7), 5)) for _ in range(40)], np.arange(40) % 2
        model = SingleLocationClassifier(features="linear", random_state=seed).fit(bags, y)
        said.append(model.held_out_score_)
    error = np.std(said) / len(said) ** 0.5
    assert error < 0.02 and abs(np.mean(said) - 0.5) < 3 * error


def test_a_search_over_noise_warns_once():
    rng = np.random.default_rng(SEED)
    bags, y = list(rng.normal(size=(30, 6, 20))), rng.normal(size=30)
    model = SingleLocationRegressor(n_heads=1, features="linear", random_state=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        GridSearchCV(model, {"penalty": [0.1, 1.0]}, cv=3).fit(bags, y)
    assert sum(issubclass(w.category, WeakMomentsWarning) for w in said) <= 1


def test_rows_without_ids_are_said_to_be_bags_of_one():
    rng = np.random.default_rng(SEED)
    rows, ids = rng.normal(size=(40, 3)), np.repeat(np.arange(10), 4)
    quick = {"penalty": 0.1, "n_heads": 1, "features": "linear", "whole": False}
    with pytest.warns(SingleRowsWarning, match="40 rows is taken as a bag of one instance"):
        SingleLocationRegressor(**quick).fit(rows, rows[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", SingleRowsWarning)
        SingleLocationRegressor(**quick).fit(rows, np.repeat(np.arange(10.0), 4), bags=ids)
        SingleLocationRegressor(**quick).fit(rows.reshape(10, 4, 3), np.arange(10.0))


def test_several_targets_count_alike_whatever_their_units():
    X, y, place = drawn(120)
    both = np.stack([y, 1000 * X[np.arange(120), place, 2] + 7], 1)
    model = SingleLocationRegressor(random_state=0, features="linear").fit(X, both)
    said = model.predict(X)
    assert said.shape == (120, 2) and model.instance_scores(X).shape == (120, 5, 2)
    for k in range(2):
        assert np.corrcoef(said[:, k], both[:, k])[0, 1] > 0.97
    assert (model.predict_location(X) == place).mean() > 0.9


def test_what_instances_add_is_what_the_head_says(fitted):
    model, X, _, place = fitted
    scores = model.instance_scores(X)
    head = model.mixture_.shares[0] * model.selection_.respond(list(X))[:, 0]
    assert np.ptp(scores.sum(1) - head) < 1e-9
    assert (abs(scores).argmax(1) == place).mean() > 0.9
    ragged = [bag[: 2 + i % 3] for i, bag in enumerate(X[:6])]
    assert [len(x) for x in model.instance_scores(ragged)] == [2, 3, 4, 2, 3, 4]


def test_balanced_classes_find_more_of_the_rare_one():
    X, y, _ = drawn(200)
    rare = (y + np.random.default_rng(SEED).normal(size=200) > 1.6).astype(int)
    plain, even = (
        SingleLocationClassifier(random_state=0, features="linear", class_weight=weight)
        .fit(X, rare)
        .predict(X)
        for weight in (None, "balanced")
    )
    assert rare.mean() < 0.25
    assert even[rare == 1].mean() > plain[rare == 1].mean()
    with pytest.raises(ValueError, match="class_weight"):
        SingleLocationClassifier(class_weight="even").fit(X, rare)


def test_probabilities_are_those_of_bags_held_out():
    """Labels are noisy: of bags with a probability of about 80 %, about 80 % are positive."""
    rng = np.random.default_rng(SEED)
    X, y, _ = drawn(1200, dim=3)
    label = (rng.random(1200) < 1 / (1 + np.exp(-2 * y))).astype(int)
    model = SingleLocationClassifier(random_state=0, features="linear", whole=False)
    p = model.fit(X[:300], label[:300]).predict_proba(X[300:])[:, 1]
    for low, high in ((0.1, 0.4), (0.6, 0.9)):
        some = (p > low) & (p < high)
        error = np.sqrt(0.25 / some.sum())
        assert label[300:][some].mean() == pytest.approx(p[some].mean(), abs=3 * error + 0.03)


def test_the_whole_speaks_where_it_counts_and_is_told(capsys):
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(120, 5, 3))
    y = (np.abs(X.mean(1)[:, 0]) > 0.3).astype(int)
    model = SingleLocationClassifier(random_state=0, features="linear", verbose=True).fit(X, y)
    assert model.mixture_.whole is not None and model.held_out_score_ > 0.8
    told = model.explain()
    assert "of the whole bag, by its" in told and "the whole counts more" in told
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[SingleLocationClassifier] linear: held-out loss")
    assert len(lines) == 2


def test_similarities_are_chosen_told_and_saved(tmp_path):
    X, y, place = drawn(160, dim=3)
    model = SingleLocationRegressor(random_state=0).fit(X, np.cos(2 * y))
    assert model.mixture_.features is not None
    assert "by similarity to 128 instances" in model.explain()
    again = load_estimator(model.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.instance_scores(X), model.instance_scores(X))
    assert (model.predict_location(X) == place).mean() > 0.7


GOOD = [np.ones((2, 3)), np.zeros((1, 3))]


@pytest.mark.parametrize(
    ("X", "y", "bags", "sentence"),
    [
        ([np.ones((2, 3)), np.zeros((0, 3))], [0, 1], None, "bag 1 is empty"),
        ([np.ones((2, 3)), np.zeros((2, 4))], [0, 1], None, "bag 1 has 4 features and bag 0 has 3"),
        ([np.ones((2, 3)), np.full((2, 3), np.nan)], [0, 1], None, "NaN"),
        (GOOD, [0, 1, 2], None, "inconsistent numbers of samples"),
        (np.ones((1, 4, 3)), [1], None, "1 sample"),
        (np.ones((0, 4, 3)), [], None, "there must be bags"),
        (np.ones((4, 3)), [0, 1, 1, 1], [0, 0, 1, 1], "y differs within the bag 0"),
        (np.ones((4, 3)), [0, 1], [0, 0, 1], "inconsistent numbers of samples"),
        (GOOD, None, None, "requires y to be passed"),
        ([], [], None, "there must be bags"),
        (np.ones((4, 3)), [0, 1], [0, 0, np.nan, 1], "bags contains NaN"),
        (np.ones((4, 3)), [0, 1], np.zeros((4, 2)), "1d array"),
    ],
)
def test_bad_input_is_said_in_a_sentence(X, y, bags, sentence):
    with pytest.raises(ValueError, match=sentence):
        SingleLocationRegressor().fit(X, y, bags=bags)


def test_one_class_constant_targets_and_unfitted_use():
    model = SingleLocationClassifier()
    with pytest.raises(ValueError, match="one class, 1:"):
        model.fit(GOOD, [1, 1])
    for unfitted in (SingleLocationClassifier(), model):
        with pytest.raises(NotFittedError):
            unfitted.predict(GOOD)
    X, _, _ = drawn(40)
    with pytest.warns(UserWarning, match="every bag has the same target"):
        same = SingleLocationRegressor().fit(X, np.full(40, 3.0))
    assert same.predict(X) == pytest.approx(3, abs=1e-3)


def test_more_than_fits_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("attlas.errors.available_memory", lambda: 1e6)
    with pytest.raises(ValueError, match="reduce the features first"):
        SingleLocationRegressor().fit(np.ones((100, 5, 400)), np.arange(100))


@pytest.mark.parametrize(
    ("bags", "sentence"),
    [
        ([np.ones((2, 3)), []], "bag 1 is empty"),
        ([np.ones((2, 3)), np.ones(3)], r"bag 1 has the shape \(3,\)"),
        ([[[1, 2], [3]], [[1, 2]]], "bag 0 has rows of different lengths"),
    ],
)
def test_a_bag_that_is_no_table_is_named(bags, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_bags(bags)


def test_an_object_array_of_bags_is_a_list_of_them():
    held = np.empty(2, object)
    held[:] = [np.zeros((2, 3)), np.ones((4, 3))]
    flat, lengths = read_bags(held)
    assert flat.shape == (6, 3) and lengths.tolist() == [2, 4]


def test_a_frame_of_bags_has_their_ids_as_index(fitted):
    model, X, _, _ = fitted
    rows, ids = X[:3].transpose(1, 0, 2).reshape(-1, 4), np.tile(["z", "a", "m"], 5)
    shown = clone(model).set_output(transform="pandas")
    frame = pd.DataFrame(rows, columns=list("abcd"))
    told = shown.fit_transform(frame, np.tile([0.0, 1.0, 2.0], 5), bags=ids)
    assert told.index.tolist() == ["z", "a", "m"] and told.shape == (3, 4)
    pd.testing.assert_frame_equal(shown.transform(frame, bags=ids), told)
    assert shown.get_feature_names_out().tolist() == told.columns.tolist()
