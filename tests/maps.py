"""What every claim of every map must satisfy. A map's `test_claims.py` says which map it is (`MAP`)
and takes these."""

import numpy as np
import pytest
import vl_convert
import xarray as xr

from attlas.claims import catalogue
from attlas.lab.measurement import measure_batch
from attlas.lab.runner import run


def test_claim_is_confirmed_and_its_control_refuted(tested, claim_id):
    result = tested(claim_id)
    assert result.verdict.word == "confirmed", result.verdict.reason
    assert result.control.word == "refuted", result.control.reason
    assert result.first is None


def test_a_control_on_the_evidence_depends_on_it(tested, claim_id):
    result = tested(claim_id)
    if result.claim.control.alter is not None:
        assert result.claim.control_can_pass(result.evidence)


FEW = 200
"""Repetitions below which a standard error is itself uncertain."""


def test_an_error_from_few_repetitions_says_on_how_many(tested, claim_id):
    claim, evidence = catalogue()[claim_id], tested(claim_id).evidence
    few = claim.budget is not None and claim.quick[claim.budget] < FEW
    if few and (evidence.get("error", np.zeros(1)) > 0).any():
        assert "repetitions" in evidence


def test_measurements_moved_well_beyond_what_the_rule_allows_are_refuted(tested, claim_id):
    claim, evidence = catalogue()[claim_id], tested(claim_id).evidence
    rule = type(claim.rule).__name__
    if rule == "Agreement":
        shift = 10 * evidence["error"] + 2 * claim.rule.rounding * np.maximum(
            1, abs(evidence["predicted"])
        )
        moved = evidence.assign(measured=evidence["predicted"] + shift)
    elif rule == "Approximation":
        scale = abs(evidence["predicted"]) if claim.rule.relative else 1
        moved = evidence.assign(measured=evidence["measured"] + 4 * claim.rule.margin * scale)
    elif rule == "Rate":
        moved = evidence.assign(
            measured=evidence["measured"] * evidence["x"] ** (3 * claim.rule.margin)
        )
    elif rule == "Bound":
        above = 1.001 * abs(evidence["bound"]) + 10 * evidence["error"]
        moved = evidence.assign(measured=xr.zeros_like(evidence["measured"]) + above)
    elif rule == "Order":
        moved = evidence.assign(lower=evidence["upper"], upper=evidence["lower"])
    elif rule == "Convergence":
        moved = evidence.assign(
            arrived=evidence["arrived"] & (evidence["arrived"].cumsum("repeat") == 1)
        )
    else:
        moved = evidence.assign(sample_b=evidence["sample_b"] + 0.2 * evidence["sample_b"].std())
    assert claim.rule.judge(moved).word == "refuted"


def test_numbers_do_not_depend_on_how_cells_are_batched(tested, batched_claim_id):
    claim = catalogue()[batched_claim_id]
    cells = claim.cells(claim.quick)
    alone, _ = measure_batch(claim, [cells[-1]], 20_260)
    together = tested(batched_claim_id).evidence.isel(cell=[-1])
    for name in alone.data_vars:
        xr.testing.assert_identical(alone[name].variable, together[name].variable)


def test_figure_is_drawn_from_the_evidence(tested, claim_id):
    spec = tested(claim_id).figure().to_dict()
    svg = vl_convert.vegalite_to_svg(spec)
    assert svg.count("<path") > 10
    rows = [row for data in spec["datasets"].values() for row in data]
    assert all(np.isfinite(v) for row in rows for v in row.values() if isinstance(v, float)), (
        "a value is not drawn"
    )
    assert spec["title"]["text"]


@pytest.mark.long
def test_claim_is_confirmed_at_the_papers_scale(store, claim_id):
    result = run(claim_id, scale="paper", seed=20_261, store=store)
    assert result.verdict.word == "confirmed", result.verdict.reason
    assert result.control.word == "refuted", result.control.reason
