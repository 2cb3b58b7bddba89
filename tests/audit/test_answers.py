"""Each theory answers in a word and says by what; the scales are those of the quantities."""

from dataclasses import replace

import numpy as np
import pytest

from attlas.atlas.notes import notes_of
from attlas.audit.answers import find_answers
from attlas.audit.auditing import audit_model
from attlas.claims import catalogue
from attlas.index import package_index
from tests.audit.conftest import DATA, IDS


@pytest.fixture(scope="module")
def audited():
    return audit_model(DATA / "bert", tokens=IDS, probes="none")


def with_score(audit, score):
    heads = audit.heads.copy(deep=True)
    heads.single_location.values[1, 2] = score
    return replace(audit, heads=heads)


@pytest.mark.parametrize(
    ("score", "word"),
    [(0.81, "applies to some heads"), (0.79, "nearly applies"), (0.41, "nearly applies")],
)
def test_the_best_head_decides_whether_there_is_a_single_location(audited, score, word):
    found = find_answers(with_score(audited, score))[0]
    assert found.word == word
    assert f"{score:.2f} in the best head, (1, 2)" in found.because
    assert "looks at" in " ".join(found.details)


def test_without_such_a_head_the_theory_does_not_apply(audited):
    heads = audited.heads.copy(deep=True)
    heads.single_location.values[:] = 0.39
    assert find_answers(replace(audited, heads=heads))[0].word == "does not apply"


def test_the_factor_by_which_a_bound_is_vacuous_is_that_of_the_samples(audited):
    found = find_answers(audited)[1]
    factor = float(audited.bounds.sel(bound="spectrum").samples) - 4
    assert found.word == f"vacuous by a factor of 10^{factor:.1f} for its smallest head"
    bounds = audited.bounds.copy(deep=True)
    bounds.samples.values[:] = 3.0
    assert (
        find_answers(replace(audited, bounds=bounds))[1].word
        == "says something of its smallest head"
    )
    assert "matrix of" in found.details[0]


@pytest.mark.parametrize(
    ("together", "apart", "word"),
    [
        (1e-6, 0.04, "tokens are exchangeable to the network"),
        (1e-6, 0.6, "exchangeable to the network only as pairs of token and position"),
        (0.3, 0.6, "not exchangeable to the network"),
    ],
)
def test_shuffles_decide_what_is_exchangeable(audited, together, apart, word):
    layers = audited.layers.copy(deep=True)
    layers.together.values[-1], layers.apart.values[-1] = together, apart
    found = find_answers(replace(audited, layers=layers))[2]
    assert found.word == word and f"{apart:.2f}" in found.because


def test_a_model_that_reads_no_text_has_its_weights_answered_for():
    words = [found.word for found in audit_model(DATA / "vit").answers]
    assert words[0] == words[2] == "not measured" and words[1].startswith("vacuous")


def test_the_example_is_no_sink(audited):
    weights = np.zeros_like(audited.example.attention)
    weights[..., 0] = 1
    example = replace(audited.example, attention=weights)
    assert "looks at" not in str(find_answers(replace(audited, example=example))[0])


def test_answers_lead_to_claims_and_explorers_that_there_are(audited):
    known = set(package_index())
    for found in find_answers(audited):
        assert set(found.claims) <= known
        notes = notes_of([catalogue()[found.claims[1]]])[found.map]
        assert found.explorer in {explorer.name for explorer in notes.explorers}
