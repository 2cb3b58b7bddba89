import jax
import numpy as np
import pytest
import xarray as xr

from attlas.claims import catalogue
from attlas.lab.runner import run
from tests.conftest import HEAVY

CLAIMS = [
    pytest.param(id, marks=[pytest.mark.long] if id in HEAVY else [])
    for id, claim in catalogue().items()
    if claim.map == "single-location"
]


@pytest.mark.parametrize("id", CLAIMS)
def test_claim_is_confirmed_and_its_control_refuted(tested, id):
    result = tested(id)
    assert result.verdict.word == "confirmed", result.verdict.reason
    assert result.control.word == "refuted", result.control.reason
    assert result.first is None


@pytest.mark.parametrize("id", CLAIMS)
def test_measurements_moved_well_beyond_what_the_rule_allows_are_refuted(tested, id):
    claim, evidence = catalogue()[id], tested(id).evidence
    rule = type(claim.rule).__name__
    if rule == "Agreement":
        shift = 10 * evidence["error"] + 2 * claim.rule.rounding * np.maximum(1, abs(evidence["predicted"]))
        moved = evidence.assign(measured=evidence["predicted"] + shift)
    elif rule == "Approximation":
        scale = abs(evidence["predicted"]) if claim.rule.relative else 1
        moved = evidence.assign(measured=evidence["measured"] + 4 * claim.rule.margin * scale)
    elif rule == "Rate":
        moved = evidence.assign(measured=evidence["measured"] * evidence["x"] ** (3 * claim.rule.margin))
    elif rule == "Bound":
        moved = evidence.assign(measured=evidence["measured"] / evidence["measured"] * evidence["bound"] * 1.001)
    elif rule == "Order":
        moved = evidence.assign(lower=evidence["upper"], upper=evidence["lower"])
    elif rule == "Convergence":
        moved = evidence.assign(arrived=evidence["arrived"] & (evidence["arrived"].cumsum("repeat") % 8 == 1))
    else:
        moved = evidence.assign(sample_b=evidence["sample_b"] + 0.2 * evidence["sample_b"].std())
    assert claim.rule.judge(moved).word == "refuted"


@pytest.mark.parametrize("id", [id for id, claim in catalogue().items() if claim.shape is not None])
def test_numbers_do_not_depend_on_how_cells_are_batched(tested, id):
    claim = catalogue()[id]
    cells = claim.cells(claim.quick)
    with jax.enable_x64(True):
        alone = claim.measure([cells[-1]], 20_260).as_numpy()
    together = tested(id).evidence.isel(cell=[-1])
    for name in alone.data_vars:
        xr.testing.assert_identical(alone[name].variable, together[name].variable)


def test_a_start_off_the_manifold_is_outside_theorem_5(store):
    result = run("single-location/manifold-convergence", settings={"start": "sphere"}, store=store)
    assert result.verdict.word == "outside" and "manifold" in result.verdict.reason


def test_a_ladder_on_which_the_gate_stays_closed_is_outside_corollary_2(store):
    result = run("single-location/oracle-optimality", settings={"power": 0.6}, store=store)
    assert result.verdict.word == "outside" and "lam sqrt(d) grows" in result.verdict.reason


@pytest.mark.long
@pytest.mark.parametrize("id", CLAIMS)
def test_claim_is_confirmed_at_the_papers_scale(store, id):
    result = run(id, scale="paper", seed=20_261, store=store)
    assert result.verdict.word == "confirmed", result.verdict.reason
    assert result.control.word == "refuted", result.control.reason
