"""The regressor keeps scikit-learn's contract, and its law is honest."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from attlas.estimators import ConditionalMeanRegressor, load_estimator
from tests.conftest import SEED


@parametrize_with_checks(
    [ConditionalMeanRegressor(), ConditionalMeanRegressor(attention="softmax")]
)
def test_the_contract(estimator, check):
    check(estimator)


def drawn(count=200, seed=SEED):
    """A curve with a noise that grows."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, (count, 1))
    return x, 100 + 30 * np.sin(x[:, 0]) + (0.5 + 2 * x[:, 0]) * rng.normal(size=count)


@pytest.fixture(scope="module")
def fitted():
    return ConditionalMeanRegressor().fit(*drawn())


def test_the_mean_is_that_of_a_gaussian_process():
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(150, 2))
    y = np.cos(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=150)
    ours = ConditionalMeanRegressor().fit(x, y)
    theirs = GaussianProcessRegressor(
        ConstantKernel() * RBF() + WhiteKernel(), normalize_y=True
    ).fit(StandardScaler().fit_transform(x), y)
    new = rng.normal(size=(50, 2)) / 2
    said, spread = ours.predict(new, return_std=True)
    mean, deviation = theirs.predict(StandardScaler().fit(x).transform(new), return_std=True)
    assert np.sqrt(np.mean((said - mean) ** 2)) < 0.05
    assert np.median(abs(np.log(spread / deviation))) < 0.25


def test_it_beats_a_homoscedastic_process_where_the_noise_grows(fitted):
    x, y = drawn(1000, SEED + 1)
    theirs = GaussianProcessRegressor(
        ConstantKernel() * RBF() + WhiteKernel(), normalize_y=True
    ).fit(*drawn())
    mean, deviation = theirs.predict(x, return_std=True)
    assert fitted.log_density(x, y).mean() > stats.norm.logpdf(y, mean, deviation).mean() + 0.1
    assert fitted.score(x, y) > 0.6
    where = (x[:, 0] < 3, x[:, 0] > 7)
    within = abs(y - mean) <= stats.norm.ppf(0.95) * deviation
    covered = []
    for seed in range(SEED, SEED + 8):  # in the mean over training sets
        low, high = (
            ConditionalMeanRegressor().fit(*drawn(seed=seed + 10)).predict_interval(x, 0.9).T
        )
        covered.append([((y >= low) & (y <= high))[part].mean() for part in where])
    ours, other = np.mean(covered, 0), np.array([within[part].mean() for part in where])
    assert (abs(ours - 0.9) < 0.7 * abs(other - 0.9)).all(), (ours, other)


def test_quantiles_densities_distribution_and_draws_belong_together(fitted):
    at = np.array([[2.0], [8.0]])
    quantiles = fitted.predict_quantile(at, [0.1, 0.5, 0.9])
    assert (np.diff(quantiles, axis=1) > 0).all()
    np.testing.assert_allclose(fitted.cdf(at, quantiles[:, 2]), 0.9, atol=1e-5)
    grid = np.linspace(0, 250, 2001)
    density = fitted.predict_density(at, grid)
    np.testing.assert_allclose(density.sum(1) * (grid[1] - grid[0]), 1, atol=0.01)
    np.testing.assert_allclose(
        np.log(density[:, 800]), fitted.log_density(at, np.full(2, grid[800])), rtol=1e-9
    )
    draws = fitted.sample(at, 3000, random_state=0)
    assert draws.shape == (2, 3000) and (fitted.sample(at, 3000, random_state=0) == draws).all()
    assert draws.std(1) == pytest.approx(fitted.predict(at, return_std=True)[1], rel=0.1)


def test_the_rows_that_speak_are_near(fitted):
    x, _ = drawn()
    rows, weights = fitted.speakers([[2.0]], top=4)
    assert (abs(x[rows[0], 0] - 2) < 1).all() and (np.diff(abs(weights[0])) <= 0).all()


def test_softmax_attention_stays_within_the_targets():
    x, y = drawn()
    model = ConditionalMeanRegressor(attention="softmax").fit(x, y)
    far = model.predict([[-50.0], [60.0]])
    assert (far >= y.min()).all() and (far <= y.max()).all() and model.score(x, y) > 0.5
    assert "softmax attention" in model.explain()


def test_words_of_explanation(fitted):
    told = fitted.explain()
    assert "varies with the features" in told and "solved exactly" in told


def test_features_that_matter_have_the_narrow_bandwidths():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(120, 8)), columns=list("abcdefgh"))
    y = np.sin(2 * x["c"]) + 0.1 * rng.normal(size=120)
    model = ConditionalMeanRegressor().fit(x, y)
    assert model.relevance_.argmax() == 2 and model.relevance_.max() == 1
    assert np.sort(model.relevance_)[-2] < 0.2 and "Relevance: c (1)" in model.explain()
    one = ConditionalMeanRegressor(relevance=False).fit(x, y)
    assert (one.relevance_ == 1).all() and "Relevance" not in one.explain()
    new = pd.DataFrame(rng.normal(size=(100, 8)), columns=list("abcdefgh"))
    assert model.score(new, np.sin(2 * new["c"])) > 0.9 > one.score(new, np.sin(2 * new["c"]))


def test_searches_pipelines_and_saving(fitted, tmp_path):
    x, y = drawn(80)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), ConditionalMeanRegressor()),
        {"conditionalmeanregressor__select": ["evidence", "loo"]},
        cv=3,
    )
    assert search.fit(pd.DataFrame(x, columns=["x"]), y).best_score_ > 0.4
    again = load_estimator(fitted.save(tmp_path / "model.npz"))
    at = np.array([[1.0], [9.0]])
    np.testing.assert_array_equal(again.predict_quantile(at), fitted.predict_quantile(at))
    np.testing.assert_array_equal(again.speakers(at)[0], fitted.speakers(at)[0])


def test_many_rows_are_served_by_centres():
    x, y = drawn(20_000)
    model = ConditionalMeanRegressor(random_state=0).fit(x, y)
    assert "Nystrom" in model.explain()
    at = np.linspace(0.5, 9.5, 10)[:, None]
    np.testing.assert_allclose(model.predict(at), 100 + 30 * np.sin(at[:, 0]), atol=3)


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda m: m.predict_quantile([[1.0]], [0.0, 0.5]), "levels"),
        (lambda m: m.predict_interval([[1.0]], 1.5), "coverage = 1.5"),
        (lambda m: m.sample([[1.0]], 0), "n_samples = 0"),
        (lambda m: m.predict([[np.nan]]), "NaN"),
        (lambda m: m.log_density([[1.0]], [1.0, 2.0]), "inconsistent numbers"),
        (lambda m: m.cdf([[1.0]], [np.nan]), "NaN"),
        (lambda m: m.predict([[1.0, 2.0]]), "2 features"),
    ],
)
def test_bad_input_is_said_in_a_sentence(fitted, use, sentence):
    with pytest.raises(ValueError, match=sentence):
        use(fitted)


def test_constant_targets_and_unfitted_use():
    for use in ("predict", "predict_quantile", "sample", "speakers", "predict_interval"):
        with pytest.raises(NotFittedError):
            getattr(ConditionalMeanRegressor(), use)([[1.0]])
    for use in ("log_density", "cdf", "predict_density"):
        with pytest.raises(NotFittedError):
            getattr(ConditionalMeanRegressor(), use)([[1.0]], [2.0])
    x, _ = drawn(30)
    model = ConditionalMeanRegressor()
    with pytest.raises(ValueError, match="zero"):
        model.fit(x, x[:, 0], sample_weight=np.zeros(30))
    with pytest.raises(NotFittedError):
        model.predict(x)
    model.fit(x, np.full(30, 4.0))
    assert model.predict(x) == pytest.approx(4) and np.isfinite(model.predict_interval(x)).all()


def test_copies_of_one_row_have_a_finite_law():
    model = ConditionalMeanRegressor(attention="softmax").fit([[1.0], [1.0]], [2.0, 2.0])
    assert np.isfinite(model.predict([[1.0]], return_std=True)).all()
    assert np.isfinite(model.predict_quantile([[1.0]], [0.1, 0.9])).all()


def test_weights_that_are_shares_are_warned_of():
    x = np.linspace(0, 1, 20)[:, None]
    with pytest.warns(UserWarning, match="sample_weight sums to 1"):
        ConditionalMeanRegressor().fit(x, x[:, 0], sample_weight=np.full(20, 1 / 20))


def test_a_verbose_fit_prints_a_line_after_each_part_and_changes_nothing(capsys):
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-3, 3, (60, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)
    quiet = ConditionalMeanRegressor().fit(X, y).predict(X)
    assert capsys.readouterr().out == ""
    aloud = ConditionalMeanRegressor(verbose=True).fit(X, y)
    np.testing.assert_allclose(aloud.predict(X), quiet, rtol=1e-9)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[ConditionalMeanRegressor] ") for line in lines)
    assert "with a bandwidth for each feature: temperature" in lines[0]
    assert f"all rows: temperature {aloud.regression_.temperature:.3g}, ridge" in "".join(lines)
