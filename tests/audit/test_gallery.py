"""The audits that come with the package are whole, small, and never the model's own."""

import json
from importlib import resources

import numpy as np
import pytest
import xarray as xr
from pytest import approx

from attlas.audit import gallery
from attlas.audit.auditing import audit_model, kept_audit
from attlas.audit.page import render_page
from attlas.audit.quantities import FROM_TEXT, FROM_WEIGHTS
from tests.audit.conftest import DATA, IDS


def test_a_dataset_is_kept_with_its_axes_and_what_is_no_number():
    found = xr.Dataset(
        {"x": (("layer", "head"), [[1.23456, np.nan]]), "kind": ("head", ["sink", "mixed"])},
        {"head": [0, 1]},
        {"text": "a"},
    )
    again = gallery.thaw(json.loads(json.dumps(gallery.freeze(found), allow_nan=False)))
    assert again.x.dims == ("layer", "head") and again.attrs == {"text": "a"}
    assert again.x.values[0, 0] == 1.235 and np.isnan(again.x.values[0, 1])
    assert list(again.kind.values) == ["sink", "mixed"] and "head" in again.coords


def test_quantiles_stand_for_the_heads_of_a_random_model():
    found = xr.Dataset({"x": (("layer", "head"), np.arange(101.0).reshape(1, 101))})
    assert gallery.spread(found, 5).x.values[0] == approx([0, 25, 50, 75, 100])


@pytest.mark.parametrize("name", gallery.entries())
def test_every_audit_is_whole_and_makes_a_page(name):
    file = resources.files("attlas.audit") / "gallery" / f"{name}.json"
    assert len(file.read_bytes()) < 200_000
    stored = gallery.read(name)
    assert {*FROM_WEIGHTS, *FROM_TEXT} <= set(stored["heads"].data_vars)
    assert stored["licence"] in ("MIT", "Apache-2.0")
    found = kept_audit(name)
    assert len(found.answers) == 3 and found.summary
    text = render_page([found], "../")
    assert stored["title"].replace(",", ",") in text and 'href="../guides/audit.html"' in text
    assert "nan" not in " ".join(found.summary)


def test_the_gallery_has_encoders_and_a_decoder():
    assert {"minilm", "smollm2", "rxnmapper"} <= set(gallery.entries())
    families = {name: gallery.family_of(gallery.read(name)["facts"]) for name in gallery.entries()}
    assert families["minilm"] == families["rxnmapper"] == "encoder"
    assert families["smollm2"] == "decoder"


def test_a_model_stands_beside_one_of_its_family():
    titles = {
        name: set(audit_model(DATA / name, tokens=IDS, probes="none").references)
        for name in ("bert", "llama")
    }
    assert titles["bert"] == {"random", gallery.read("minilm")["title"]}
    assert titles["llama"] == {"random", gallery.read("smollm2")["title"]}
    assert set(audit_model(DATA / "vit", probes="none").references) == {"random"}


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_no_model_is_compared_with_itself(name):
    stored = gallery.read(name)
    assert gallery.reference_for(stored["facts"], stored["heads"]) is None
    nudged = stored["heads"].assign(qk_spectral=1.01 * stored["heads"].qk_spectral)
    assert gallery.reference_for(stored["facts"], nudged) is stored
    assert set(kept_audit(name).references) == {"random"}
