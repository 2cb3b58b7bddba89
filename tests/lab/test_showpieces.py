import json
from dataclasses import replace

import numpy as np
import pytest
import vl_convert
import xarray as xr

from attlas.lab.runner import measured
from attlas.lab.showpieces import REAL_DATA, SHOWPIECES, Showpiece, Size, real_data
from attlas.lab.sweeps import sweep

PIECES = {piece.slug: piece for piece in SHOWPIECES}


@pytest.mark.parametrize("piece", SHOWPIECES, ids=PIECES)
def test_what_is_shipped_is_what_its_command_makes(piece):
    shipped, grid = piece.shipped(), piece.cells(piece.small)
    assert shipped.attrs["claim"] == piece.claim and dict(shipped["status"].sizes) == grid.shape
    for name, labels in grid.coordinates().items():
        assert shipped[name].values.tolist() == list(labels[1])
    settled = grid.base.replace(**dict(text.split("=") for text in piece.small.settings))
    fixed = {name: list(value) if isinstance(value, tuple) else value for name, value in settled.items()}
    assert json.loads(shipped.attrs["setting"]) == {name: fixed[name] for name in fixed if name not in shipped.coords}
    assert set(shipped["status"].values.ravel()) <= {"done", "outside"}


@pytest.mark.parametrize("piece", SHOWPIECES, ids=PIECES)
def test_it_is_drawn_from_what_is_shipped_where_the_store_has_nothing(piece, store):
    shown = piece.shown(store)
    assert shown.size == piece.small and shown.seconds is None and 0 < shown.done <= shown.cells
    chart = shown.figure().to_dict()
    assert chart["title"]["text"] == piece.title and vl_convert.vegalite_to_svg(chart).count("<path") > 30


def test_a_cell_that_is_shipped_is_what_is_measured_now():
    piece = PIECES["exponents"]
    grid, shipped = piece.cells(piece.small), piece.shipped()
    setting, seed = grid.item(3)
    now, _ = measured(grid.claim, [setting], seed)
    then = shipped[piece.show].isel(dim=3, seed=0)
    np.testing.assert_allclose(now[piece.show].isel(cell=0).values, then.values, rtol=1e-6)


@pytest.fixture
def piece():
    full, small = (Size({"spread": f"0.1:0.9:{n}"}, "quick") for n in (5, 2))
    return Showpiece(
        "toy", "A toy", "Words.", "single-location/heat-identity", full, small, "measured", "value", "lines"
    )


def test_half_of_the_full_one_in_the_store_is_shown_instead(piece, store, monkeypatch):
    monkeypatch.setattr(Showpiece, "shipped", lambda self: xr.Dataset({"status": ("spread", ["done"])}))
    sweep(piece.claim, {"spread": "0.1,0.3"}, store=store)
    assert piece.shown(store).seconds is None
    sweep(piece.claim, {"spread": "0.5"}, store=store)
    shown = piece.shown(store)
    assert (shown.done, shown.cells) == (3, 5) and shown.seconds > 0
    assert piece.command(piece.full) == (
        "attlas sweep single-location/heat-identity --scale quick --grid spread=0.1:0.9:5 --show measured --kind lines"
        " --out toy.nc --figure toy.svg"
    )
    assert shown.figure().to_dict()["title"]["text"] == "A toy"
    # A part of it is no better than all of it, where that is what came with the package.
    assert replace(piece, small=piece.full).shown(store).seconds is None
    sweep(piece.claim, piece.full.grid, store=store)
    assert replace(piece, small=piece.full).shown(store).done == 5


def test_what_was_measured_on_real_data_here_is_shown_before_what_is_shipped(store):
    shipped = real_data(store)
    assert {"Conditional laws"} <= {kind["title"] for kind in shipped["kinds"]}
    assert all(row["folds"] >= 10 for kind in shipped["kinds"] for row in kind["rows"])
    store.keep_table(REAL_DATA, {"kinds": []})
    assert real_data(store) == {"kinds": []}
