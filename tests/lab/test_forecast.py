import pytest

from attlas.claims import load_file
from attlas.errors import InputError
from attlas.lab import forecast
from attlas.lab.forecast import check_fits
from attlas.lab.runner import run

CLAIMS = """
import numpy as np
from attlas.claims import Agreement, Control, Hypothesis, Map, Setting, product

big = Map("big", source="attlas")
PARTS = dict(
    kind="identity", reference="here", statement="$x = x$.", words="It is.", rule=Agreement(),
    control=Control("off by one", lambda e: {"predicted": e.predicted + 1}),
)

@big.claim(quick=Setting(samples=1000), paper={"samples": 10_000}, **PARTS)
def slow(cell, draws):
    x = sum(range(cell.samples)) * 0.0
    return {"predicted": x, "measured": x, "error": 0.0}

@big.claim(quick=Setting(length=(10, 1000)), cells=product("length"), **PARTS)
def large(cell, draws):
    x = float(np.zeros(100 * cell.length).std())
    return {"predicted": x, "measured": x, "error": 0.0}

@big.claim(
    quick=Setting(n=10), hypotheses=(Hypothesis("n > 99", lambda s: s.n > 99, defining=True),),
    **PARTS,
)
def narrow(cell, draws):
    return {"predicted": 1.0, "measured": 1.0, "error": 0.0}

@big.claim(quick=Setting(n=10), **PARTS)
def overflows(cell, draws):
    x = 10.0 ** cell.n
    return {"predicted": x, "measured": x, "error": 0.0}
"""


@pytest.fixture
def claims(tmp_path, registry):
    path = tmp_path / "claims.py"
    path.write_text(CLAIMS)
    return {claim.slug: claim for claim in load_file(path)}


def fits(claim, **setting):
    changed = claim.quick.replace(**setting)
    return check_fits(claim, claim.batches(claim.cells(changed)), 0)


def test_what_is_within_the_claims_own_scales_is_not_tried_beforehand(claims, monkeypatch):
    monkeypatch.setattr(forecast, "measure_batch", None)
    assert fits(claims["slow"], samples=10_000) == fits(claims["slow"], samples=39_000) == ""


def test_the_time_of_a_long_run_is_told_by_small_ones(claims):
    assert fits(claims["slow"], samples=10**6) == ""
    found = forecast.extrapolate(
        claims["slow"], [claims["slow"].quick.replace(samples=10**10)], 0, ["samples"]
    )
    (per_sample,) = (
        forecast._small_run(claims["slow"], [claims["slow"].quick.replace(samples=10**7)], 0)[0]
        / 10**7,
    )
    assert found.seconds == pytest.approx(10**10 * per_sample, rel=0.9)
    assert fits(claims["slow"], samples=10**11).startswith("some ")


def test_what_takes_years_is_refused(claims):
    with pytest.raises(InputError, match=r"samples = 1000000000000000000 would take .* years"):
        fits(claims["slow"], samples=10**18)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_tried(claims):
    with pytest.raises(InputError, match=r"length = 10000000000 would take [\d,]+ GB of memory"):
        fits(claims["large"], length=(10, 10**10))


def test_a_claim_that_takes_no_smaller_counts_is_not_forecast(claims, store):
    assert fits(claims["narrow"], n=1000) == ""
    assert run(claims["narrow"], settings={"n": 1000}, store=store).verdict.word == "confirmed"


def test_a_number_that_overflows_is_one_sentence(claims, store):
    with pytest.raises(InputError, match="big/overflows, its measurement: a number in its setting"):
        run(claims["overflows"], settings={"n": 1000}, store=store)
    with pytest.raises(InputError, match="it must be a whole number"):
        claims["overflows"].quick.replace(n=10**400)


def test_a_sweep_that_does_not_fit_is_refused_and_one_that_is_long_says_so(claims, store):
    from attlas.lab.sweeps import Sweep, plan_grid, sweep

    with pytest.raises(InputError, match="GB of memory"):
        sweep(claims["large"], {"length": [10, 10**10]}, store=store)
    plan = Sweep(plan_grid(claims["slow"], {"samples": [10, 10**11]}), store)
    plan.check_fits(1)
    assert store.notes[0].startswith("The sweep takes some ")


def test_a_grid_of_more_cells_than_memory_holds_is_refused(toy, store, monkeypatch):
    from attlas.lab.sweeps import plan_grid

    monkeypatch.setattr("attlas.errors.available_memory", lambda: 1e6)
    with pytest.raises(InputError, match=r"a sweep of 10,000 cells would take 0 GB of memory"):
        plan_grid(toy, {"n": "1:101", "dim": "1:101"})
