"""The benchmarks measure what they say: the plain loop is right, and ratios are ratios."""

import time

import jax
import numpy as np
import pytest
from bench import plain, real
from bench.methods import LEVELS, Prediction, gated_locations, normal
from bench.timing import compare

from attlas.atlas.filters import format_numbers
from attlas.single_location.descent import descend
from attlas.single_location.population import Overlaps
from attlas.single_location.task import SingleLocation


def test_plain_loop_follows_the_descent():
    task = SingleLocation(dim=20, length=5, gamma=1.2, key=jax.random.key(1))
    k, v = np.random.default_rng(0).normal(size=(2, 20))
    k, v = k / np.linalg.norm(k), v / np.linalg.norm(v)
    start = Overlaps.of(k, v, task)
    assert start.distance > 0.1
    walked = plain.plain_descent(task, k, v, lam=0.7, step_size=1e-2, steps=8)
    path = descend(task, start, lam=0.7, step_size=1e-2, steps=8, record_every=1)
    reduced = np.stack([path[name].values[0] for name in Overlaps._fields], axis=-1)
    assert abs(reduced[-1] - reduced[0]).max() > 1e-2
    np.testing.assert_allclose(walked, reduced, rtol=0, atol=1e-9)


def test_ratio_is_that_of_the_times_and_counts_the_scale():
    row = compare(
        "naps", lambda: time.sleep(0.05), lambda: time.sleep(0.15), expected="6", scale=2, rounds=3
    )
    assert row.this >= 0.05
    assert row.against >= 2 * 0.15
    assert row.ratio == pytest.approx(6, rel=0.4)


def test_intervals_know_that_training_sets_overlap():
    ahead = np.random.default_rng(0).normal(0.5, 1, 30)
    mean, low, high = real.interval(ahead, 0.0)
    wide = real.interval(ahead, 1 / 9)
    assert low < mean < high and mean == pytest.approx(ahead.mean())
    assert (wide[2] - wide[1]) / (high - low) == pytest.approx((1 + 30 / 9) ** 0.5)


def test_scores_of_a_law_that_is_right():
    rng = np.random.default_rng(0)
    target = rng.normal(size=20_000)
    found = real.scores(normal(np.zeros(20_000), 1.0, target), target)
    assert found["NLPD"] == pytest.approx(0.5 * np.log(2 * np.pi) + 0.5, abs=0.02)
    assert found["inside"][0][0] / 20_000 == pytest.approx(0.9, abs=0.01)
    wrong = real.scores(normal(np.zeros(20_000), 1.5, target), target)
    assert found["CRPS"] < wrong["CRPS"] and found["RMSE"] == pytest.approx(1, abs=0.02)
    none = Prediction(np.zeros((3, len(LEVELS))), np.zeros(3), None)
    assert "NLPD" not in real.scores(none, np.zeros(3))


def test_a_summary_pairs_folds_and_says_who_is_ahead():
    runs = {
        "single location": {
            str(i): {"accuracy": 0.9 + 0.001 * i, "AUC": 0.9, "seconds": 1.0} for i in range(10)
        },
        "SVM on means": {
            str(i): {"accuracy": 0.8 + 0.001 * i, "AUC": 0.9, "seconds": 2.0} for i in range(10)
        },
    }
    found = real.summary({"bags": {"musk1": runs}})
    assert found["bags"]["musk1"]["SVM on means"]["accuracy, ours ahead by"] == pytest.approx(
        [0.1] * 3
    )
    page = real.for_the_atlas(found)
    assert [row["first"] for row in page["kinds"][0]["rows"]] == [True, False]
    assert (
        real.standing([0.1, 0.05, 0.15]) == "ahead" and real.standing([0.1, -0.05, 0.15]) == "level"
    )
    assert next(real.tables(found)).row_count == 2


def test_coverage_counts_rows_and_is_shown_by_thirds():
    target, third = np.zeros(30), np.repeat([0, 1, 2], 10)
    said = normal(np.where(np.arange(30) < 15, 0.0, 9.0), 1.0, target)
    runs = {
        "CME attention": {
            "0": real.scores(said, target, third) | {"seconds": 1.0},
            "1": real.scores(said, target, third) | {"seconds": 1.0},
        }
    }
    row = real.summary({"laws": {"mcycle": runs}})["laws"]["mcycle"]["CME attention"]
    assert row["coverage"] == 0.5 and row["by thirds"] == [1.0, 0.5, 0.0]
    assert (
        format_numbers(row["by thirds"]) == "1.000 0.500 0.000"
        and format_numbers(0.25) == "0.250"
        and format_numbers(None) == ""
    )
    own = said._replace(own=np.tile([-1.0, 1.0], (30, 1)))
    assert real.scores(own, target)["inside"] == [[30, 30]]


def test_training_rows_are_nested_and_tests_apart():
    y = (np.arange(3000) % 5 == 0).astype(float)
    small, rest = real.drawn(y, 20, 3)
    large, same = real.drawn(y, 400, 3)
    assert (large[:20] == small).all() and (rest == same).all() and not set(large) & set(rest)
    assert real.drawn(y[:200], 100, 0)[1].size == 50


def test_draws_of_a_small_table_overlap(monkeypatch):
    monkeypatch.setattr(real.data, "read_rows", lambda kind, name: (None, np.zeros(232)))
    assert real.drawn_overlap("votes, n = 100") == pytest.approx(100 / 132)
    runs = {
        method: {str(i): {"accuracy": 0.9 - i * step, "seconds": 1.0} for i in range(20)}
        for method, step in (("sparse attention", 0.001), ("forest", 0.002))
    }
    _, low, high = real.summary({"bits": {"votes, n = 100": runs}})["bits"]["votes, n = 100"][
        "forest"
    ]["accuracy, ours ahead by"]
    plain = real.interval(0.001 * np.arange(20), 0.0)
    assert (high - low) / (plain[2] - plain[1]) == pytest.approx((1 + 20 * 100 / 132) ** 0.5)


def test_a_positive_bag_holds_one_image_that_decides_at_its_place():
    kind = np.arange(400) % 10
    images = np.column_stack([kind, np.arange(400)])
    bags, labels, places = real.digit_bags(
        images, kind, {9}, np.arange(200), np.random.default_rng(0)
    )
    for bag, label, place in zip(bags, labels, places, strict=True):
        assert (np.flatnonzero(bag[:, 0] == 9) == [place][:label]).all() and bag[:, 1].max() < 200


def test_gated_attention_names_the_instance_that_adds_most():
    rng = np.random.default_rng(0)
    bags, y = [rng.normal(size=(4, 3)) for _ in range(60)], np.arange(60) % 2
    place = rng.integers(4, size=60)
    for bag, i, label in zip(bags, place, y, strict=True):
        bag[i, 0] += 6 * label
    said, found = gated_locations(bags, y)(bags)
    assert ((said > 0) == y).mean() > 0.9 and (found == place)[y == 1].mean() > 0.9
