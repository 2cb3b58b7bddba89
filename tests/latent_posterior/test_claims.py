import jax
import numpy as np
import pytest
import xarray as xr

from attlas.claims.rules import Order
from attlas.errors import InputError
from attlas.lab.runner import run
from attlas.latent_posterior.claims.forward_pass import (
    CONTEXTS,
    best_average,
    local_average,
    posterior_risks,
)
from attlas.latent_posterior.claims.gaussian_latents import Changing, said_of_latent, scatter
from attlas.latent_posterior.claims.in_context import prefixes
from attlas.latent_posterior.claims.probes import explained_by_perceptron
from attlas.latent_posterior.claims.runs import finite_runs, or_failed, over_runs
from attlas.latent_posterior.claims.trained_transfer import (
    exact_number,
    masked_answers,
    slope_over_runs,
)
from attlas.latent_posterior.claims.variants import hardest
from attlas.latent_posterior.encoders import explained
from attlas.latent_posterior.latent_tasks import (
    Data,
    Locations,
    Pairs,
    draw_runs,
    harmonics,
    rbf_powers,
)
from tests.maps import *  # noqa: F403

MAP = "latent-posterior"


def test_keys_off_the_sphere_are_outside(store):
    result = run(
        "latent-posterior/softmax-is-nadaraya-watson",
        settings={"spread": 0.2, "dim": (3,)},
        store=store,
    )
    assert result.verdict.word == "outside" and "on the sphere" in result.verdict.reason


@pytest.mark.parametrize(
    ("claim", "settings", "why"),
    (
        ("cme-converges", {"temperature": 0.2}, "effective dimension"),
        ("bayes-ridge", {"noise": 2.0}, "noise <= 0.75"),
        ("probe-crossover", {"labels": 1000}, "5 dim"),
    ),
)
def test_where_a_statement_fails_it_is_outside(store, claim, settings, why):
    result = run(f"latent-posterior/{claim}", settings=settings, store=store)
    assert result.verdict.word == "outside" and why in result.verdict.reason


def test_too_few_draws_are_bad_input(store):
    with pytest.raises(InputError, match="draws >= 20"):
        run("latent-posterior/cme-error", settings={"draws": 5}, store=store)


@pytest.mark.parametrize(
    ("claim", "settings", "why"),
    (
        ("trained-predictor", {"latents": 1}, "latents >= 2"),
        ("trained-predictor", {"vocabulary": 1}, "vocabulary >= 2"),
        ("trained-predictor", {"smoothing": -1.0}, "smoothing >= 0"),
        ("trained-regret", {"labels": 1}, "labels >= 2"),
        ("order-is-lost", {"vocabulary": 1}, "vocabulary >= 2"),
        ("trained-beside-pooling", {"runs": 4}, "runs >= 8"),
    ),
)
def test_settings_that_leave_nothing_to_learn_are_bad_input(store, claim, settings, why):
    with pytest.raises(InputError, match=why):
        run(f"latent-posterior/{claim}", settings=settings, store=store)


def test_a_perceptron_reads_what_a_linear_probe_cannot():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 1200, 3))
    product = x[..., :1] * x[..., 1:2]
    assert (abs(explained(x, product)) < 0.1).all()
    assert (explained_by_perceptron(jax.random.key(0), 5 * x + 2, product) > 0.9).all()
    # Judged on the second half, where the inputs no longer say what they said on the first.
    product[:, 600:] = rng.permuted(product[:, 600:], axis=1)
    assert (explained_by_perceptron(jax.random.key(0), x, product) < 0).all()


def test_counts_of_prefixes_grow_by_a_word():
    words = np.array([[[0.2, 0.8], [1.0, 0.0]]])
    counts = prefixes(np.random.default_rng(0), words, 10, 400)
    assert counts.shape == (1, 2, 400, 10, 2)
    np.testing.assert_array_equal(counts.sum(-1)[0, 0, 0], np.arange(10))
    assert (np.diff(counts, axis=3) >= 0).all() and (counts[0, 1, ..., 1] == 0).all()
    assert abs(counts[0, 0, :, -1, 1].mean() / 9 - 0.8) < 0.03


@pytest.mark.parametrize("kappa", [1.0, 30.0, 1000.0])
def test_masked_answers_have_the_condition_number(kappa):
    answers = masked_answers(kappa)
    assert answers.min() > 0
    np.testing.assert_allclose(answers.sum(-1), 1)
    np.testing.assert_allclose(exact_number(kappa), kappa / 0.36, rtol=1e-9)


def test_a_slope_is_that_of_a_power():
    values = 3.0 * np.array([[1.0], [2.0], [8.0]]) ** -1.5 * np.ones((1, 6))
    np.testing.assert_allclose(slope_over_runs([1, 2, 8], values), [-1.5, 0], atol=1e-12)
    noisy = values * np.exp(0.1 * np.random.default_rng(0).normal(size=(3, 6)))
    slope, error = slope_over_runs([1, 2, 8], noisy)
    assert abs(slope + 1.5) < 4 * error and 0.005 < error < 0.1


def pairs_of(runs, length, longest=None):
    lengths = np.full(runs, length)
    lengths[0] = longest or length
    return Pairs(np.tile(rbf_powers(0.5, 12), (runs, 1)), np.full(runs, 0.3), lengths)


def test_the_best_local_average_has_the_distance_that_samples_have():
    task = pairs_of(2, 6, longest=9)
    seen = draw_runs(task, jax.random.split(jax.random.key(4), 2), CONTEXTS)
    least = best_average(task, seen, 1)
    errors = []
    for key in range(40):  # other functions and noise at the same keys
        rng = np.random.default_rng(key)
        tokens, query = np.asarray(seen.tokens, float)[1:, :, :6], np.asarray(seen.query, float)[1:]
        places = np.concatenate([tokens[..., :2], query[:, :, None, :2]], 2)
        phi = harmonics(np.arctan2(places[..., 1], places[..., 0]), task.powers[1])
        function = (phi * rng.normal(size=(1, CONTEXTS, 1, phi.shape[-1]))).sum(-1)
        tokens[..., 2] = function[..., :-1] + 0.3 * rng.normal(size=tokens.shape[:-1])
        drawn = Data(np.ones((1, CONTEXTS, 6)), None, tokens, query)
        one = jax.tree.map(lambda x: x[1:], task)
        said = local_average(drawn, np.array([least.temperature])) * least.factor
        errors.append(((said - one.bayes(drawn)) ** 2).mean())
    assert abs(np.mean(errors) / least.distance - 1) < 5 * np.std(errors) / 40**0.5 / least.distance
    assert np.std(errors) < 0.2 * least.distance


def test_the_posterior_variance_is_what_the_posterior_mean_errs_by():
    task = pairs_of(3, 5, longest=8)
    seen = draw_runs(task, jax.random.split(jax.random.key(5), 3), 20_000)
    square = ((task.bayes(seen) - np.asarray(seen.target)) ** 2).mean((1, 2))
    np.testing.assert_allclose(posterior_risks(task, seen), square, rtol=0.05)


def test_the_hardest_variant_is_the_only_one_that_changes():
    names = ["a", "b", "c"]
    evidence = xr.Dataset(
        {
            "lower": ("inequality", [0.0, 0.0, 0.0]),
            "upper": ("inequality", [1.0, 1.0, 1.0]),
            "error": ("inequality", [0.01, 0.01, 0.1]),
        },
        {"inequality": names},
    )
    variant = evidence["lower"] + xr.DataArray([9.0, 3.0, 4.0], {"inequality": names})
    changed = evidence.assign(hardest(evidence, lower=variant))  # by 800, 200 and 30 errors
    assert changed["lower"].values.tolist() == [0, 0, 4]
    assert changed["upper"].equals(evidence["upper"])
    assert Order().judge(evidence).word == "confirmed"
    assert Order().judge(changed).word == "refuted"
    easy = evidence["upper"] - xr.DataArray([9.0, 3.0, 0.5], {"inequality": names})
    assert Order().judge(evidence.assign(hardest(evidence, upper=easy))).word == "confirmed"


def _runs(*failed):
    values = np.arange(16.0).reshape(2, 8)
    values[1, list(failed)] = np.nan
    return xr.Dataset({"lost": (("depth", "run"), values), "average": ("run", np.ones(8))})


def test_runs_that_failed_are_left_out_of_all_that_is_compared():
    left = finite_runs(_runs(2, 5))
    assert left.sizes["run"] == 6
    np.testing.assert_array_equal(left["lost"].values[0], [0, 1, 3, 4, 6, 7])
    assert over_runs(left["lost"])["repetitions"].values.tolist() == [6, 6]


def test_nothing_is_decided_if_more_than_a_quarter_of_the_runs_failed():
    found = finite_runs(_runs(1, 2, 5))["lost"]
    values = {"lower": found.mean("run"), "upper": 1 + 0 * found.mean("run"), **over_runs(found)}
    verdict = Order().judge(xr.Dataset(values))
    assert verdict.word == "undecided" and "not finite" in verdict.reason


def test_values_of_runs_that_failed_are_not_numbers():
    found = or_failed(np.ones((2, 3)), np.array([True, False, True]))
    np.testing.assert_array_equal(np.isnan(found), [[False, True, False]] * 2)


def test_a_latent_that_changes_leaves_the_last_token_and_other_runs_alone():
    length = np.full(2, 6)
    task = Locations(np.zeros((2, 1)), np.full(2, 10.0), np.full(2, 0.1), length)
    seen = draw_runs(
        Changing(task, np.array([False, True])), jax.random.split(jax.random.key(1), 2), 400
    )
    far = abs(np.asarray(seen.tokens - seen.target[:, :, None]))[..., 0] > 1
    assert not far[0].any() and not far[1, :, -1].any()
    # The place of the change is uniform from 0 to 5: token i is of another latent if it is beyond.
    np.testing.assert_allclose(far[1].mean(0), np.arange(5, -1, -1) / 6, atol=0.08)


def test_the_scatter_of_gaussian_tokens_says_nothing_of_their_mean():
    length = np.full(1, 5)
    task = Locations(np.zeros((1, 2)), np.ones(1), np.full(1, 2.0), length)
    seen = draw_runs(task, jax.random.split(jax.random.key(3), 1), 4000)
    found = scatter(seen)
    np.testing.assert_allclose(found.mean((0, 1)), [16, 0, 16], atol=0.6)  # (L - 1) sigma^2
    shifted = seen._replace(tokens=seen.tokens + 7)
    np.testing.assert_allclose(scatter(shifted), found, rtol=1e-3, atol=1e-3)
    assert abs(explained(task.bayes(seen), found)[0]) < 0.02
    said = said_of_latent(task, task.bayes(seen))[0]
    assert abs(said / (2 * 5 / (5 + 4)) - 1) < 0.1  # tau^4 / (tau^2 + sigma^2 / L) each
