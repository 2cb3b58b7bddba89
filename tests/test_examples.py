"""The worked examples run, and what their prose says is so."""

import importlib
import json
import random
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner

from attlas.atlas.notes import notes_of
from attlas.claims import catalogue
from tests.conftest import SEED

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    """The example as a module; it finds what it shares with the other beside itself, as a script
    does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def sentence():
    return load("sentence")


@pytest.fixture(scope="module")
def events():
    return load("events")


@pytest.fixture(scope="module")
def lesson(sentence):
    return sentence.learn(SEED, repeats=2)


@pytest.fixture(scope="module")
def written(sentence, events, lesson, tmp_path_factory):
    """What both commands write for the pages of the atlas."""
    folder, found = tmp_path_factory.mktemp("pages") / "new", {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence, "learn", lambda seed: lesson)
        for name, module in {"sentence": sentence, "events": events}.items():
            file = folder / f"{name}.json"
            told = CliRunner().invoke(module.main, ["--out", str(file), "--seed", str(SEED)])
            assert told.exit_code == 0, told.output
            assert "softmax head" in told.output and "±" in told.output
            found[name] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_the_softmax_head_finds_the_word_that_decides(lesson):
    softmax = lesson[0].sel(predictor="softmax head")
    assert softmax.error.max() < 0.1
    assert softmax.found.min() > 0.95


def test_a_linear_model_errs_unless_it_is_told_the_place(lesson):
    error = lesson[0].error
    assert error.sel(predictor=["linear", "linear, sum of tokens"]).min() > 0.5
    assert error.sel(predictor="linear, told the place").max() < 1e-6
    assert (error.sel(predictor="linear") > 10 * error.sel(predictor="softmax head")).all()


def test_the_erf_head_lies_between(lesson):
    erf, softmax, linear = (
        lesson[0].error.sel(predictor=name) for name in ("erf head", "softmax head", "linear")
    )
    assert (softmax < erf / 5).all() and (erf < linear).all()


def test_an_erf_gives_half_to_one_property_and_a_softmax_next_to_nothing(sentence, lesson):
    _, world, predictors = lesson
    (neither, second), (feeling, both) = sentence.mean_scores(
        world.vectors, predictors["softmax head"].k
    )
    assert neither < min(second, feeling) and np.exp(max(second, feeling) - both) < 0.05
    a, b = np.random.default_rng(SEED).exponential(size=(2, 1000))
    assert (jax.lax.erf(a + b) <= jax.lax.erf(a) + jax.lax.erf(b) + 1e-6).all()


def test_no_test_sentence_occurs_in_training_and_new_words_are_new(sentence):
    world = sentence.draw_world(SEED, 0, 300, 300)
    assert len(world.training.target) == 300
    adjectives = [sentence.KNOWN["adjective"], sentence.NEW["adjective"]]
    assert not set(adjectives[0]) & set(adjectives[1])
    words = [
        {w for texts in slots.values() for text in texts for w in text.split()}
        for slots in (sentence.KNOWN, sentence.NEW)
    ]
    assert words[0] & words[1] <= {"the"}
    rng = random.Random(SEED)
    seen = sentence.draw_sentences(rng, sentence.KNOWN, 2000)
    assert not set(seen) & set(sentence.draw_sentences(rng, sentence.KNOWN, 2000, avoid=set(seen)))


def test_the_place_of_the_word_that_decides_varies(sentence):
    drawn = sentence.draw_sentences(random.Random(SEED), sentence.KNOWN, 2000)
    counts = np.bincount([s.place for s in drawn])
    assert (counts > 0).sum() >= 10 and counts.max() < 0.25 * len(drawn)
    assert max(len(s.words) for s in drawn) == sentence.LENGTH
    for words, second, place in drawn:
        assert [l for l in range(second, len(words)) if words[l] in sentence.STRENGTH] == [place]
        assert sum(word in sentence.STRENGTH for word in words[:second]) == 1


CHOICES = [
    ("adjective last", {"verdict": "dirty", "colour": "blue", "adjective": "nice"}),
    (
        "adjective first",
        {"opening": "as everyone here knows", "adjective": "dreadful", "degree": "very"},
    ),
    (
        "adjective first",
        {"opening": "by the way", "animal": "eagle", "adjective": "foul", "verdict": "lovely"},
    ),
]


@pytest.fixture
def said(sentence, lesson):
    """Slots, order, and what Python makes of them: weights, head's and linear prediction, truth."""
    _, world, predictors = lesson
    cases = []
    for order, change in CHOICES:
        slots = {slot: texts[0] for slot, texts in sentence.KNOWN.items()} | change
        drawn = sentence.sentence(slots, order)
        tokens = sentence.tokenise([drawn], world.vectors)
        data = sentence.Data(
            tokens, tokens[0, [drawn.place], sentence.VALUE], np.array([drawn.place])
        )
        answers = [float(predictors[name](data)[0]) for name in ("softmax head", "linear")]
        weights = predictors["softmax head"].weights(data)[0, : len(drawn.words)]
        cases.append((slots, order, [*weights, *answers, float(data.target[0])]))
    return cases


def test_the_page_reads_what_was_trained(sentence, written, said):
    model = written["sentence"]
    for slots, order, expected in said:
        words, second, place = sentence.sentence(slots, order)
        tokens = np.array([model["vectors"][word] for word in words])
        tokens[second:, model["part"]] += model["mean"]
        weights = np.exp(tokens @ model["k"])
        weights /= weights.sum()
        linear = (tokens * np.array(model["linear"])[: len(words)]).sum() + model["constant"]
        said_here = [*weights, weights @ tokens @ model["v"], linear, tokens[place, model["value"]]]
        assert said_here == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", ["sentence", "events"])
def test_the_atlas_has_a_page_for_what_an_example_writes(written, name):
    notes = notes_of(catalogue().values())["single-location"]
    shown = next(explorer for explorer in notes.explorers if explorer.name == name).content
    assert shown.keys() == written[name].keys()
    assert [row[0] for row in shown["rows"]] == [row[0] for row in written[name]["rows"]]
    for ours, here in zip(shown["rows"], written[name]["rows"], strict=True):
        ours, here = (float(row[1].split(" ±")[0]) for row in (ours, here))
        assert ours == pytest.approx(here, rel=0.2, abs=0.02)


def test_the_head_on_events_is_near_the_best_possible_and_far_from_linear(events):
    measured, (k, _), _ = events.learn(SEED, repeats=3, count=3000)
    error = measured.error.mean("repeat")
    best, head, linear = (
        float(error.sel(predictor=name))
        for name in ("best possible", "softmax head", "linear regression")
    )
    assert best < head < 2 * best < linear / 5
    assert linear == pytest.approx(events.TASK.linear_risk(), abs=0.08)
    assert measured.found.sel(predictor="softmax head").min() > 0.95
    assert k @ events.K_STAR / np.linalg.norm(k) > 0.95


def test_the_events_are_the_papers_task(events):
    assert np.linalg.norm(events.K_STAR) == pytest.approx(1) and events.K_STAR @ events.V_STAR == 0
    records = events.draw_records(np.random.default_rng(SEED), 20_000)
    here = records.tokens[np.arange(20_000), records.place]
    assert (here @ events.K_STAR).mean() == pytest.approx(events.TASK.m, abs=0.05)
    assert (here @ events.V_STAR).std() == pytest.approx(1, abs=0.03)
    assert np.bincount(records.place, minlength=10) == pytest.approx(2000, abs=220)


@pytest.mark.parametrize("name", ["sentence", "events"])
@pytest.mark.parametrize(
    "words", [["--seed", "-1"], ["--seed", "one"], ["--out", "."], ["--out", "/dev/null/x.json"]]
)
def test_bad_input_is_one_sentence_and_exit_code_2(name, words):
    told = CliRunner().invoke(load(name).main, words)
    assert told.exit_code == 2 and "Invalid value" in told.output and "Traceback" not in told.output


def test_the_bound_says_what_its_prose_says():
    told = CliRunner().invoke(load("bound").main, ["--length", "500"])
    assert told.exit_code == 0, told.output
    assert "layer 3: query-key" in told.output and "vacuous" in told.output
    growth = {
        row[2:28].strip(): float(row.split("x ")[1])
        for row in told.output.splitlines()
        if " x " in row
    }
    assert (
        growth["no dimension"] < 1.3
        and growth["parameters, d = 12 ln T"] < 1.3
        and growth["Occam"] < 1.2
    )
    assert growth["parameters, d = T + 3"] > 1.9
    wrong = CliRunner().invoke(load("bound").main, ["--length", "2"])
    assert wrong.exit_code == 2 and "place 1 is repeated" in wrong.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("molecules", ("90 molecules", "Selects: feature", "Right on molecules")),
        ("recording", ("Selects: x", "Right on recordings", "it is sound 3")),
        ("eruptions", ("After 65 minutes", "Its shape is not Gaussian", "speak loudest")),
    ],
)
def test_the_estimators_tell_their_stories_on_made_up_data(
    name, words, tmp_path, capsys, unchecked
):
    model = load(name).main(tmp_path / "nothing.csv")
    told = capsys.readouterr().out
    for word in words:
        assert word in told
    assert getattr(model, "held_out_score_", 1) > 0.8


@pytest.mark.parametrize("name", ["molecules", "recording", "eruptions"])
def test_the_estimators_tell_their_stories_on_real_data(name, capsys):
    module = load(name)
    if not module.DATA.exists():
        pytest.skip(f"{module.DATA} is not there: `make data` fetches it")
    module.main()
    told = capsys.readouterr().out
    assert {"molecules": "92 molecules", "recording": "Right on", "eruptions": "After 65 minutes"}[
        name
    ] in told


def test_each_head_more_reads_more_of_three_tokens(capsys):
    left = load("three_tokens").main(points=256, trips=60)
    told = capsys.readouterr().out
    assert told.count("softmax heads leave") == 3
    assert 2.5 > left[0] > left[1] > left[2]
