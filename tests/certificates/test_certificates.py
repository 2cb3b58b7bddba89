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
        (FIVE, {"lam": ""}, "lam = '': a side is given as low:high"),
        (FIVE, {"lam": "1e-99999999:1"}, "between 1e-99 and 1e99"),
        (FIVE, {"lam": "1:2:3"}, "lam = '1:2:3': a side is given as low:high"),
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


CRITICAL = "single-location/critical-lambda"
HEAD, SHARP = "sparse-variables/threshold-margin", "sparse-variables/softmax-sharp"


@pytest.mark.parametrize(
    "claim, sides, message",
    [
        (FIVE, NARROW | {"length": "-5:0"}, "length must be 2 or more"),
        (CRITICAL, NARROW | {"length": "1"}, "length must be 2 or more"),
        (HEAD, {"sparsity": "0.1:2", "sharpness": "2"}, "sparsity must be 1 or more"),
        (SHARP, {"weight": "0:1.01", "distance": "1"}, "weight must be from 0 to 1"),
    ],
)
def test_boxes_of_tasks_that_do_not_exist_are_refused(claim, sides, message):
    with pytest.raises(InputError, match=message):
        make_certificate(claim, box_of(claim, **sides))


def test_a_box_may_end_where_the_statement_does():
    made = make_certificate(SHARP, box_of(SHARP, weight="0:0.99", distance="0.1:1"))
    assert checker.check(made)["rest"][0] == "0"


def test_no_critical_sharpness_is_certified_where_none_is_enclosed():
    point = {"dim": "400", "length": "10", "gamma": "0.7071067811865476"}
    # It is near 0.8925: beside it nothing says that the oracle repels, or that it attracts.
    for lam in ("0.885:0.8921", "0.8928:0.9"):
        with pytest.raises(InputError, match="not seen whether the oracle attracts at an end"):
            make_certificate(CRITICAL, box_of(CRITICAL, lam=lam, **point))
    for lam, above in (("0.5:0.51", "0"), ("1:1.01", "1")):
        made = make_certificate(CRITICAL, box_of(CRITICAL, lam=lam, **point))
        assert checker.check(made) == {"rates above 0 across the manifold": [above, above]}


def test_the_side_of_the_critical_sharpness_is_certified_on_boxes():
    sides = {"lam": "0.1:0.1001", "dim": "399:401", "length": "10", "gamma": "0.7:0.701"}
    made = make_certificate(CRITICAL, box_of(CRITICAL, **sides))
    assert checker.check(made) == {"rates above 0 across the manifold": ["0", "0"]}


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
    with pytest.raises(InputError, match="is no JSON of a certificate"):
        certificates.read_certificate(path)
    made = certificates.shipped_certificates("sparse-variables/threshold-margin")[0]
    assert certificates.refusal(made, made["claim"]) == ""
    assert certificates.refusal(made, FIVE) == "it is of sparse-variables/threshold-margin"
    path.write_text(json.dumps(made | {"tree": ".."}))
    assert "checksum" in certificates.refusal(certificates.read_certificate(path), made["claim"])
