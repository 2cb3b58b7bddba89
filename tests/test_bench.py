"""The benchmarks measure what they say: the plain loop is right, ratios are ratios, and the soak counts verdicts."""

import time

import jax
import numpy as np
import pytest
from bench import plain
from bench.soak import Outcome, soak, tally
from bench.timing import compare
from click.testing import CliRunner

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
    row = compare("naps", lambda: time.sleep(0.05), lambda: time.sleep(0.15), expected="6", scale=2, rounds=3)
    assert row.this >= 0.05
    assert row.against >= 2 * 0.15
    assert row.ratio == pytest.approx(6, rel=0.4)


def test_soak_names_the_claim_and_leaves_the_compilation_cache_as_it_was():
    before = jax.config.jax_compilation_cache_dir
    result = CliRunner().invoke(soak, ["--seeds", "1", "single-location/heat-identity"])
    assert result.exit_code == 0, result.output
    assert "single-location/heat-identity" in result.output
    assert "confirmed 100 %" in result.output
    assert jax.config.jax_compilation_cache_dir == before


def test_soak_tells_bad_input():
    result = CliRunner().invoke(soak, ["single-location/heat-identiti"])
    assert result.exit_code == 2
    assert "heat-identity" in result.output


def test_soak_fails_when_a_verdict_is_undecided(monkeypatch):
    odd = Outcome("undecided", "refuted", False, 1.0, 2.0)
    monkeypatch.setattr("bench.soak.outcome", lambda claim, seed, store: odd)
    assert CliRunner().invoke(soak, ["--seeds", "1", "single-location/zeta"]).exit_code == 1


def test_tally_gives_shares():
    good, bad = Outcome("confirmed", "refuted", False, 1.0, 2.0), Outcome("refuted", "refuted", True, 3.0, 2.0)
    assert tally([good, good, bad, good]) == ("confirmed 75 %, refuted 25 %", "refuted 100 %", "1 of 4")
