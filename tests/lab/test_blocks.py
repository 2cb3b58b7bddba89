import numpy as np
import pytest
import xarray as xr

from attlas.lab.blocks import LAYOUT, read_block, write_block


def data(cells):
    rng = np.random.default_rng(cells)
    return xr.Dataset(
        {
            "measured": (("cell", "point"), rng.normal(size=(cells, 5)), {"unit": "nats"}),
            "arrived": (("cell", "repeat"), rng.random((cells, 700)) < 0.5),
            "count": ("cell", np.arange(cells, dtype=np.int32)),
            "word": ("cell", ["κ" * (1 + i % 3) for i in range(cells)]),
            "error": 0.0,
            "nothing": ("none", np.zeros(0)),
        },
        coords={
            "learner": ["attention", "MLP"],
            "place": ("point", np.linspace(0, 1, 5)),
            "s": ("cell", np.ones(cells)),
        },
        attrs={"claim": "map/claim", "cells": "x" * 100_000, "batch": 3},
    )


@pytest.mark.parametrize("cells", [1, 7])
def test_a_block_comes_back_as_it_was_and_xarray_reads_it_too(tmp_path, cells):
    path = tmp_path / "block.nc"
    write_block(path, data(cells))
    xr.testing.assert_identical(read_block(path.read_bytes()), data(cells))
    with xr.open_dataset(path, engine="h5netcdf") as opened:
        del opened.attrs[LAYOUT]
        xr.testing.assert_identical(opened.load(), data(cells))


def test_what_xarray_has_written_is_read(tmp_path):
    path = tmp_path / "block.nc"
    times = data(2).assign(when=("cell", np.array(["2026-01-01", "2026-01-02"], "datetime64[ns]")))
    times.attrs.pop("cells")
    write_block(path, times)
    xr.testing.assert_identical(read_block(path.read_bytes()), times)
