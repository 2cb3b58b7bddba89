import dataclasses
import hashlib
import io
import json

import h5py
import numpy as np
import pytest
import xarray as xr

from attlas.claims import Agreement, Rate, catalogue
from attlas.errors import InputError
from attlas.lab import domain, judging, searched, shipped, soak
from attlas.lab.blocks import encode_block, read_block
from attlas.lab.runner import run
from attlas.lab.shipped import EARLIER, differences, read_shipped, ship, shipped_path


@pytest.fixture
def result(toy, store):
    return run(toy, scale="paper", seed=3, store=store)


@pytest.fixture
def folder(result, tmp_path):
    """Where the evidence of the toy is shipped."""
    ship(result, tmp_path / "files")
    return tmp_path / "files"


def sealed(block):
    return block + hashlib.sha256(block).digest()


def test_what_is_shipped_comes_back_with_its_verdict(result, folder):
    notes = []
    found = read_shipped(result.claim, notes, folder)
    assert not notes and not found.stale and found.thinned == ""
    xr.testing.assert_identical(found.result.evidence, result.evidence)
    for name in ("verdict", "control", "resolution", "setting", "seed", "scale", "first"):
        assert repr(getattr(found.result, name)) == repr(getattr(result, name)), name
    assert found.result.spent == result.spent and found.result.provenance["when"]
    assert EARLIER not in found.result.notes and found.result.to_dict()["cached"]
    assert differences(found, result) == []


def test_a_file_is_netcdf_and_says_what_made_it(result, folder):
    path = shipped_path(result.claim, folder)
    with xr.open_dataset(path, engine="h5netcdf") as data:
        assert data.attrs["claim"] == "toy/square" and data.attrs["seed"] == 3
        assert len(data.attrs["code"]) == 64 and data.attrs["versions"] and data.attrs["when"]
        assert '"repeats": 8' in data.attrs["setting"] and data.attrs["seconds"] >= 0
    assert [file for file in folder.rglob("*") if file.is_file()] == [path]


PARTS = ["sources", "setting", "rule", "the control's function", "what is read"]


@pytest.mark.parametrize("part", PARTS)
def test_what_other_code_has_measured_is_shown_as_such(result, folder, part, monkeypatch):
    claim = result.claim
    if part == "sources":
        monkeypatch.setattr(judging, "source_digest", lambda module: "other")
    changed = {
        "sources": {},
        "setting": {"paper": claim.paper.replace(lam=0.25)},
        "rule": {"rule": Agreement(rounding=1e-3)},
        "the control's function": {
            "control": dataclasses.replace(claim.control, alter=lambda e: {"predicted": e.measured})
        },
        "what is read": {"read": lambda e: {}},
    }
    notes = []
    found = read_shipped(dataclasses.replace(claim, **changed[part]), notes, folder)
    assert found.stale and EARLIER in found.result.notes and not notes
    assert found.result.verdict == result.verdict and found.result.setting == claim.paper


def test_other_versions_of_what_computes_do_not_make_it_stale(result, folder):
    claim = dataclasses.replace(result.claim, code="made by another NumPy")
    assert not read_shipped(claim, [], folder).stale


def altered(block, change):
    data = read_block(block)
    return sealed(encode_block(change(data)))


def vast(block):
    """A file of some bytes whose data would be terabytes."""
    file = io.BytesIO(block)
    with h5py.File(file, "a") as opened:
        del opened["measured"]
        opened.create_dataset("measured", (10**12,), "f8", chunks=(10**6,))
    return sealed(file.getvalue())


FORGERIES = {
    "a byte is another": lambda b: b[:999] + bytes([b[999] ^ 1]) + b[1000:],
    "cut": lambda b: b[: len(b) // 2],
    "one byte less": lambda b: b[:-1],
    "empty": lambda b: b"",
    "a text": lambda b: b"evidence",
    "too large": lambda b: b + bytes(shipped.LIMIT),
    "a sealed text": lambda b: sealed(b"evidence"),
    "sealed, cut": lambda b: sealed(b[:2000]),
    "vast": lambda b: vast(b[:-32]),
    "as xarray writes it": lambda b: sealed(bytes(read_block(b).to_netcdf(engine="h5netcdf"))),
    "no facts": lambda b: altered(b[:-32], lambda e: e.drop_attrs()),
    "of another claim": lambda b: altered(b[:-32], lambda e: e.assign_attrs(claim="toy/cube")),
    "a verdict that is none": lambda b: altered(
        b[:-32], lambda e: e.assign_attrs(result='{"verdict": [1], "control": 0, "first": 0}')
    ),
    "a setting that is none": lambda b: altered(b[:-32], lambda e: e.assign_attrs(setting="[]")),
    "a setting of any depth": lambda b: altered(
        b[:-32], lambda e: e.assign_attrs(setting="[" * 20_000)
    ),
    "a seed that is none": lambda b: altered(b[:-32], lambda e: e.assign_attrs(seed="one")),
    "no time": lambda b: altered(b[:-32], lambda e: e.assign_attrs(when=3)),
    "other numbers": lambda b: altered(b[:-32], lambda e: e.assign(measured=e.measured + 1)),
    "less evidence": lambda b: altered(b[:-32], lambda e: e.drop_vars("measured")),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_damaged_or_forged_file_is_named_and_left(result, folder, name):
    path = shipped_path(result.claim, folder)
    content = FORGERIES[name](path.read_bytes())
    path.write_bytes(content)
    notes = []
    assert read_shipped(result.claim, notes, folder) is None
    (note,) = notes
    assert ("another shape" in note) == (name == "vast")
    assert str(path) in note and "ignored" in note and "\n" not in note
    assert path.read_bytes() == content and list(path.parent.iterdir()) == [path]


def test_a_claim_without_a_file_has_none(toy, tmp_path):
    notes = []
    assert read_shipped(toy, notes, tmp_path / "nowhere") is None and not notes
    assert list(tmp_path.iterdir()) == []


def test_large_evidence_is_thinned(result, tmp_path, monkeypatch):
    size = ship(result, tmp_path).stat().st_size
    for thinned in ("rule", "quantiles"):
        monkeypatch.setattr(shipped, "LIMIT", size - 1)
        size = ship(result, tmp_path).stat().st_size
        monkeypatch.setattr(shipped, "LIMIT", 10**6)
        found = read_shipped(result.claim, [], tmp_path)
        assert found.thinned == thinned and found.result.verdict == result.verdict
        assert set(found.result.evidence.data_vars) == {"predicted", "measured", "error"}
        assert differences(found, result) == []
        moved = result.evidence.assign(measured=result.evidence.measured + 1e-3)
        again = dataclasses.replace(result, evidence=moved)
        assert "measured differs by 0.001" in differences(found, again)[0]


def test_only_the_papers_scale_is_shipped(toy, store, tmp_path):
    for options in ({}, {"scale": "paper", "settings": {"lam": 0.25}}):
        with pytest.raises(InputError, match="paper's scale"):
            ship(run(toy, store=store, **options), tmp_path)
    assert not (tmp_path / "toy").exists()


def test_a_changed_value_verdict_or_shape_is_a_difference(result, folder):
    found = read_shipped(result.claim, [], folder)
    evidence = result.evidence

    def told(**changes):
        return differences(found, dataclasses.replace(result, **changes))

    assert told(evidence=evidence.assign(measured=evidence.measured * (1 + 1e-7))) == []
    moved = evidence.measured.copy(data=evidence.measured.values + 0.0)
    moved.values[1, 2] += 1e-3
    assert told(evidence=evidence.assign(measured=moved))[0].startswith("measured differs by 0.001")
    assert told(evidence=evidence.assign(letter=("cell", ["a", "b", "c"])))
    assert told(evidence=evidence.drop_vars("letter")) == ["letter has another shape"]
    assert told(evidence=evidence.assign(arrived=~evidence.arrived))
    assert told(evidence=evidence.assign(measured=evidence.measured * np.nan))
    verdict = dataclasses.replace(result.verdict, word="undecided")
    assert told(verdict=verdict) == ["the verdict was confirmed and is undecided"]
    assert told(control=None) == ["the control was refuted and is none"]


def test_small_values_are_compared_where_a_rule_compares_them(result, folder):
    evidence = result.evidence.assign(measured=result.evidence.measured * 1e-20)
    again = dataclasses.replace(result, evidence=evidence.assign(measured=evidence.measured * 2))
    for rule, differ in ((Agreement(), False), (Rate(margin=0.1), True)):
        claim = dataclasses.replace(result.claim, rule=rule)
        known = shipped.Shipped(dataclasses.replace(result, claim=claim, evidence=evidence), 0, "")
        told = " ".join(differences(known, dataclasses.replace(again, claim=claim)))
        assert ("measured" in told) == differ


def test_trained_networks_are_compared_by_their_means(result, folder):
    claim = dataclasses.replace(result.claim, kind="training")
    found = read_shipped(claim, [], folder)
    size = abs(result.evidence.measured).mean()
    for share, differ in ((0.009, False), (0.011, True)):
        moved = result.evidence.assign(measured=result.evidence.measured + share * size)
        assert bool(differences(found, dataclasses.replace(result, evidence=moved))) == differ


def test_the_evidence_of_the_package_is_sound_and_of_its_claims(registry):
    claims, notes = catalogue(), []
    for path in set(shipped.FOLDER.rglob("*.*")) - {soak.FILE, searched.FILE, domain.FILE}:
        assert f"{path.parent.name}/{path.stem}" in claims and path.suffix == ".nc", path
        read_shipped(claims[f"{path.parent.name}/{path.stem}"], notes)
    assert notes == []
    assert set(json.loads(soak.FILE.read_text())) == set(soak.read_soak(claims.values()))
    found = searched.read_summary(claims.values())
    assert set(json.loads(searched.FILE.read_text())) == set(found)
    assert not any(search.word == "refuted" for search in found.values())
    assert set(json.loads(domain.FILE.read_text())) <= set(claims)


def test_the_cheapest_of_the_package_is_measured_again_and_agrees(registry, store):
    found = [read_shipped(claim, []) for claim in catalogue().values()]
    current = [each for each in found if each and not each.stale and not each.result.claim.requires]
    if not current:
        pytest.skip("no evidence of the package is current: make evidence")
    for known in sorted(current, key=lambda each: each.result.spent)[:2]:
        again = run(known.result.claim, scale="paper", seed=known.result.seed, store=store)
        assert differences(known, again) == [], known.result.claim.id
