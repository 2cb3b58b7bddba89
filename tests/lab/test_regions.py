"""The settings that are searched: ranges, points, and lists that stay as they are."""

import pytest

from attlas.claims import select
from attlas.errors import InputError
from attlas.lab.regions import Range, Region, values_said


def test_points_and_settings_are_inverse_to_each_other():
    for side in (
        Range("x", 0.1, 30.0),
        Range("x", -1.0, 2.0),
        Range("n", 2, 50, whole=True),
        Range("w", words=("a", "b", "c")),
    ):
        for share in (0.0, 0.31, 0.77, 1.0):
            value = side.value(share)
            assert value in side and side.value(side.share(value)) == value


def test_a_list_that_the_statement_compares_is_not_searched():
    (rates,) = select(["latent-posterior/softmax-rate"])
    assert "length" not in {r.name for r in Region(rates).ranges}
    with pytest.raises(InputError, match="compares the values of this list"):
        Region(rates, {"length": "10:20"})


def test_a_claim_without_parameters_is_refused():
    (none,) = select(["several-locations/attention-ahead"])
    with pytest.raises(InputError, match=r"searched: lengths \(compared with each other\)$"):
        Region(none)


def test_default_ranges_are_around_the_claims_own_values():
    (risk,) = select(["single-location/closed-form-risk"])
    ends = {r.name: (r.low, r.high) for r in Region(risk).ranges}
    assert ends["lam"] == (0.025, 6.0) and ends["noise"] == (0, 2)
    assert ends["dim"] == (1, 800) and ends["length"] == (1, 48)  # four times the quick values
    assert "points" not in ends and "samples" not in ends  # which buy precision
    wider = {r.name: (r.low, r.high) for r in Region(risk, beyond=True).ranges}
    assert wider["lam"] == (0.0125, 12.0) and wider["dim"] == (1, 200)


def test_counts_of_training_and_of_enumerations_reach_down_only():
    (enumerated,) = select(["latent-posterior/optimisation-error"])
    assert {r.name: r.high for r in Region(enumerated).ranges}["vocabulary"] == 4
    (parting,) = select(["several-locations/heads-part"])
    ends = {r.name: (r.low, r.high) for r in Region(parting).ranges}
    assert ends["dim"] == (25, 100) and ends["signal"][1] == 4 * parting.quick.signal


def test_counts_are_not_all_large_at_once_unless_that_was_asked_for():
    (risk,) = select(["single-location/closed-form-risk"])
    region = Region(risk)
    assert region.admits(region.at({"dim": 800, "length": 2}))
    assert not region.admits(region.at({"dim": 800, "length": 40}))
    asked = Region(risk, {"dim": "10:900", "length": "2:60"})
    assert asked.admits(asked.at({"dim": 800, "length": 40}))
    assert region.size(region.at({"dim": 800, "length": 2})) == 4
    assert Region(risk).values(Region(risk).at({"lam": 2.0}))["lam"] == 2.0


def test_values_are_said():
    assert values_said({"lam": 0.1 + 0.2, "n": 3, "word": "a"}) == "lam = 0.3, n = 3, word = a"
