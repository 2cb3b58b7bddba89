import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xarray as xr

from attlas.lab.blocks import LAYOUT, encode_block, join_blocks, join_key, read_block


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
def test_a_block_comes_back_as_it_was_and_xarray_reads_it_too(cells):
    content = encode_block(data(cells))
    xr.testing.assert_identical(read_block(content), data(cells))
    with xr.open_dataset(io.BytesIO(content), engine="h5netcdf") as opened:
        del opened.attrs[LAYOUT]
        xr.testing.assert_identical(opened.load(), data(cells))


def test_what_xarray_has_written_is_read():
    times = data(2).assign(when=("cell", np.array(["2026-01-01", "2026-01-02"], "datetime64[ns]")))
    times.attrs.pop("cells")
    xr.testing.assert_identical(read_block(encode_block(times)), times)


def test_evidence_of_one_form_is_joined_along_the_cells():
    parts = [data(7).isel(cell=some) for some in ([0, 1], [2], [3, 4, 5, 6])]
    assert len({join_key(part) for part in parts}) == 1
    xr.testing.assert_identical(join_blocks(parts), data(7))


def test_evidence_that_differs_in_what_all_cells_share_is_of_another_form():
    whole = data(2)
    others = [
        whole.assign(error=1.0),
        whole.assign_coords(learner=["a", "b"]),
        whole.isel(repeat=slice(3)),
        whole.drop_vars("word"),
    ]
    assert len({join_key(whole), *map(join_key, others)}) == 5
    assert join_key(whole.assign(error=float("nan"))) == join_key(whole.assign(error=float("nan")))


def test_threads_write_at_the_same_time():
    data = xr.Dataset({f"v{i}": ("cell", np.arange(1000.0)) for i in range(40)})
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(lambda _: encode_block(data), range(24)))
    assert len(set(contents)) == 1


def test_a_block_that_needs_more_memory_than_is_allowed_is_not_read():
    content = encode_block(data(7))
    assert read_block(content, 10**6).sizes["cell"] == 7
    with pytest.raises(ValueError, match="1,000 are allowed"):
        read_block(content, 1000)
    with pytest.raises(ValueError, match="1,000 are allowed"):
        read_block(bytes(data(7).to_netcdf(engine="h5netcdf")), 1000)
