import dataclasses
import json

import numpy as np
import pytest
import vl_convert
import xarray as xr
from bench import real

from attlas.atlas.notes import notes_of
from attlas.atlas.showpieces import REAL_DATA, Showpiece, real_data
from attlas.claims import catalogue
from attlas.claims.digest import code_digest
from attlas.errors import InputError
from attlas.lab.blocks import encode_block
from attlas.lab.measurement import measure_batch
from attlas.lab.sweeps import sweep

NOTES = notes_of(catalogue().values()).values()
PIECES = {piece.slug: piece for notes in NOTES for piece in notes.showpieces}


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_what_is_shipped_is_what_its_command_makes(piece):
    shipped, grid = piece.shipped(), piece.cells
    assert shipped.attrs["claim"] == piece.claim_id and dict(shipped["status"].sizes) == grid.shape
    for name, labels in grid.coordinates().items():
        assert shipped[name].values.tolist() == list(labels[1])
    settled = grid.base.replace(**dict(text.split("=") for text in piece.settings))
    fixed = {
        name: list(value) if isinstance(value, tuple) else value for name, value in settled.items()
    }
    assert json.loads(shipped.attrs["setting"]) == {
        name: fixed[name] for name in fixed if name not in shipped.coords
    }
    status = shipped["status"].values.ravel().tolist()
    assert set(status) <= {"done", "outside", "missing"} and status.count("missing") <= 0.02 * len(
        status
    )


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_it_is_drawn_from_what_is_shipped_where_the_store_has_nothing(piece, store):
    loaded = piece.load(store)
    assert loaded.seconds is None and loaded.done > 0
    chart = loaded.figure().to_dict()
    assert (
        chart["title"]["text"] == piece.title
        and vl_convert.vegalite_to_svg(chart).count("<path") > 30
    )


def test_what_other_code_made_says_so(store):
    loaded = PIECES["exponents"].load(store)
    code = code_digest(loaded.piece.cells.claim.module)
    for known, earlier in ((code, False), ("", True)):
        shown = dataclasses.replace(loaded, evidence=loaded.evidence.assign_attrs(code=known))
        assert shown.earlier is earlier


def test_a_cell_that_is_shipped_is_what_is_measured_now():
    piece = PIECES["exponents"]
    grid, shipped = piece.cells, piece.shipped()
    setting, seed = grid.item(3)
    now, _ = measure_batch(grid.claim, [setting], seed)
    then = shipped[piece.show].isel(dim=3, seed=0)
    np.testing.assert_allclose(now[piece.show].isel(cell=0).values, then.values, rtol=1e-6)


def test_all_of_it_in_the_store_is_shown_instead(store, tmp_path, monkeypatch):
    piece = Showpiece(
        "single-location",
        tmp_path,
        "toy",
        "A toy",
        "Words.",
        "zeta",
        {"spread": "0.1:0.9:5"},
        "measured",
        "value",
        "lines",
        scale="quick",
    )
    monkeypatch.setattr(
        Showpiece, "shipped", lambda self: xr.Dataset({"status": ("spread", ["done"])})
    )
    sweep(piece.claim_id, {"spread": "0.1,0.3,0.5,0.7"}, store=store)
    assert (piece.load(store).done, piece.load(store).seconds) == (1, None)
    sweep(piece.claim_id, piece.grid, store=store)
    loaded = piece.load(store)
    assert loaded.done == 5 and loaded.seconds > 0
    assert piece.command == (
        "attlas sweep single-location/zeta --scale quick --grid spread=0.1:0.9:5"
        " --show measured --kind lines --out toy.nc --figure toy.svg"
    )
    assert loaded.figure().to_dict()["title"]["text"] == "A toy"


def test_what_was_measured_on_real_data_here_is_shown_before_what_is_shipped(store):
    shipped = real_data(store)
    assert {"Conditional laws"} <= {kind["title"] for kind in shipped["kinds"]}
    drawn = "Which instance decides"
    for kind in shipped["kinds"]:
        least = real.DIGIT_DRAWS if kind["title"] == drawn else 10
        assert all(row["folds"] >= least for row in kind["rows"])
    store.keep_table(REAL_DATA, shipped | {"words": "here"})
    assert real_data(store)["words"] == "here" and not store.notes
    store.keep_table(REAL_DATA, {"words": "here", "kinds": []})
    assert real_data(store) == {"words": "here", "kinds": []}
    row = {**shipped["kinds"][0]["rows"][0], "ahead": None}
    kind = {**shipped["kinds"][0], "rows": [row]}
    store.keep_table(REAL_DATA, {"words": "ours alone", "kinds": [kind]})
    assert real_data(store) == shipped and not store.notes
    store.keep_table(REAL_DATA, {"words": "here", "kinds": [{"rows": 3}]})
    assert real_data(store) == shipped and "another form" in store.notes[0]


def test_a_showpiece_whose_file_is_damaged_is_named(tmp_path):
    piece = Showpiece("map", tmp_path, "slug", "", "", "claim", {}, "measured", "", "lines")
    with pytest.raises(InputError, match=r"slug\.nc' cannot be read"):
        piece.shipped()
    for content in (b"", encode_block(xr.Dataset({"measured": 1.0}))):
        (tmp_path / "slug.nc").write_bytes(content)
        with pytest.raises(InputError, match=r"slug\.nc' (cannot be read|has no status)"):
            piece.shipped()
