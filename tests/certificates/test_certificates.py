"""Certificates are made by bisection, in processes too, and shown by the command line."""

import importlib.util
import json

import pytest

from attlas import certificates
from attlas.certificates import checker, make_certificate, parse_box, said_box
from attlas.claims import select
from attlas.errors import InputError

FIVE = "single-location/manifold-fixed-points"
NARROW = {"lam": "0.1:0.12", "dim": "400", "length": "10", "gamma": "0.7"}


def box_of(claim, **sides):
    return parse_box(claim, sides, {})


def test_a_certificate_of_a_small_box_is_made_and_checked():
    shares = []
    made = make_certificate(FIVE, box_of(FIVE, **NARROW), progress=shares.append)
    assert checker.check(made)["fixed points"] == ["5", "5"] and shares == [1.0]
    assert said_box(made) == "lam = 0.1 to 0.12, dim = 400, length = 10, gamma = 0.7"


def test_processes_make_a_certificate_of_the_same_box():
    box = box_of(FIVE, **NARROW)
    alone, many = make_certificate(FIVE, box), make_certificate(FIVE, box, processes=2)
    assert checker.check(many) and many["box"] == alone["box"]
    assert many["tree"].count(".") >= 16


def test_what_is_false_is_not_certified(monkeypatch):
    swapped = "single-location/swapped-beats-oracle"
    monkeypatch.setattr(certificates, "MAX_LEAVES", 200)
    with pytest.raises(InputError, match=r"could not be proved on lam = .*it may be false there"):
        make_certificate(swapped, box_of(swapped, lam="0.09:0.12", dim="400", gamma="0.7"))
    with pytest.raises(InputError, match="could not be proved"):  # a point
        make_certificate(swapped, box_of(swapped, lam="0.12", dim="400", gamma="0.7"))


@pytest.mark.parametrize(
    "claim, sides, message",
    [
        ("single-location/basins", {}, "has no statement that intervals prove"),
        (FIVE, {"lan": "1:2"}, "unknown side 'lan'. Did you mean lam"),
        (FIVE, {"lam": "2:1"}, "lam = '2:1': the side is empty"),
        (FIVE, {"lam": "a:b"}, "lam = 'a:b': a side is given as low:high"),
        (FIVE, {"lam": "0.1:0.2"}, "the box lacks dim: say --box dim=low:high"),
    ],
)
def test_bad_boxes_are_refused_in_one_sentence(claim, sides, message):
    with pytest.raises(InputError, match=message):
        parse_box(claim, sides, {})


def test_a_box_on_which_nothing_is_defined_is_refused():
    box = box_of(FIVE, **NARROW | {"lam": "-1:1"})
    with pytest.raises(InputError, match="not defined on this box: lam must be above 0"):
        make_certificate(FIVE, box)


def test_sides_that_are_left_out_are_the_claims_own():
    (claim,) = select([FIVE])
    box = parse_box(FIVE, {"lam": "0.1:0.2"}, claim.quick)
    assert box["dim"] == ["400", "400"] and box["lam"] == ["0.1", "0.2"]


def test_without_flint_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setattr(certificates, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="python-flint, which is not installed: pip install"):
        make_certificate(FIVE, {})
    assert importlib.util.find_spec("flint") is not None


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "certificate.json"
    with pytest.raises(InputError, match="cannot be read"):
        certificates.read_certificate(path)
    path.write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        certificates.read_certificate(path)
    made = certificates.shipped_certificates("sparse-variables/threshold-margin")[0]
    assert certificates.refusal(made, made["claim"]) == ""
    assert certificates.refusal(made, FIVE) == "it is of sparse-variables/threshold-margin"
    path.write_text(json.dumps(made | {"tree": ".."}))
    assert "checksum" in certificates.refusal(certificates.read_certificate(path), made["claim"])
