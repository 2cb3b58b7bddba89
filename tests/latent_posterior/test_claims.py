import numpy as np
import pytest

from attlas.errors import InputError
from attlas.lab.runner import run
from attlas.latent_posterior.claims.in_context import prefixes
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
        ("bayes-ridge", {"noise": 2.0}, "noise <= 1"),
        ("probe-crossover", {"labels": 1000}, "5 dim"),
    ),
)
def test_where_a_statement_fails_it_is_outside(store, claim, settings, why):
    result = run(f"latent-posterior/{claim}", settings=settings, store=store)
    assert result.verdict.word == "outside" and why in result.verdict.reason


def test_too_few_draws_are_bad_input(store):
    with pytest.raises(InputError, match="draws >= 20"):
        run("latent-posterior/cme-error", settings={"draws": 5}, store=store)


def test_counts_of_prefixes_grow_by_a_word():
    words = np.array([[[0.2, 0.8], [1.0, 0.0]]])
    counts = prefixes(np.random.default_rng(0), words, 10, 400)
    assert counts.shape == (1, 2, 400, 10, 2)
    np.testing.assert_array_equal(counts.sum(-1)[0, 0, 0], np.arange(10))
    assert (np.diff(counts, axis=3) >= 0).all() and (counts[0, 1, ..., 1] == 0).all()
    assert abs(counts[0, 0, :, -1, 1].mean() / 9 - 0.8) < 0.03
