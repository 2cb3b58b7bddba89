import io
import json
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
import xarray as xr

from attlas.lab.blocks import LAYOUT, encode_block, join_blocks, join_key, read_block
from attlas.lab.files import Damaged
from tests.memory import peak_memory


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


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_come_back_and_xarray_reads_them_too(unit):
    when = np.array(["2026-01-01", "2026-01-02T03:04:05"], f"datetime64[{unit}]")
    times = data(2).assign(when=("cell", when), took=("cell", when - when[0]))
    content = encode_block(times)
    xr.testing.assert_identical(read_block(content), times)
    with xr.open_dataset(io.BytesIO(content), engine="h5netcdf", decode_timedelta=True) as opened:
        xr.testing.assert_equal(opened["when"].load().drop_vars("s"), times["when"].drop_vars("s"))
        xr.testing.assert_equal(opened["took"].load().drop_vars("s"), times["took"].drop_vars("s"))


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
        contents = set(pool.map(lambda _: encode_block(data), range(24)))
    assert all(read_block(content).identical(data) for content in contents)


def test_a_block_that_needs_more_memory_than_is_allowed_is_not_read():
    content = encode_block(data(7))
    assert read_block(content, 10**6).sizes["cell"] == 7
    with pytest.raises(Damaged, match="are allowed"):
        read_block(content, 1000)


def changed(change):
    """The contents of a block with something changed in HDF5."""
    buffer = io.BytesIO(encode_block(data(3)))
    with h5py.File(buffer, "r+") as file:
        change(file)
    return buffer.getvalue()


def replaced(name, *given, **options):
    def change(file):
        del file[name]
        file.create_dataset(name, *given, **options)

    return changed(change)


def linked(link):
    def change(file):
        del file["measured"]
        file["measured"] = link

    return changed(change)


def external(path):
    path.write_bytes(bytes(3 * 5 * 8))
    return replaced("measured", (3, 5), "f8", external=[(str(path), 0, 120)])


def virtual(file):
    layout = h5py.VirtualLayout((3, 5), "f8")
    layout[:] = h5py.VirtualSource("/elsewhere.nc", "x", (3, 5))
    del file["measured"]
    file.create_virtual_dataset("measured", layout)


HUGE = {
    "a shape": lambda: replaced("measured", (10**6, 10**6), "f8", chunks=(1000, 1000)),
    "a bomb": lambda: replaced(
        "measured", data=np.zeros((3, 10**7)), compression="gzip", compression_opts=9
    ),
    "many small ones": lambda: changed(
        lambda file: (
            [file.create_dataset(f"v{i}", (2**18,), "f8", chunks=(2**12,)) for i in range(1000)]
            and file.attrs.__setitem__(
                LAYOUT,
                json.dumps(
                    {
                        "variables": {f"v{i}": [["n"], [], "f"] for i in range(1000)},
                        "attrs": [],
                        "coords": [],
                    }
                ),
            )
        )
    ),
    "texts": lambda: replaced("word", (10**9,), "S9", chunks=(10**6,)),
    "long texts": lambda: replaced("word", (3,), "S1000000000", chunks=(1,)),
    "texts in a heap": lambda: replaced("word", data=["x" * 10**6] * 3, dtype=h5py.string_dtype()),
    "an attribute in a heap": lambda: changed(
        lambda file: file["measured"].attrs.create("unit", ["u"] * 4000, dtype=h5py.string_dtype())
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_memory_is_bounded_by_the_size_of_the_file(name):
    content = HUGE[name]()
    with peak_memory() as peak, pytest.raises(Damaged):
        read_block(content)
    assert peak.bytes < 2**25 + 4 * len(content)


LIES = {
    "no file": lambda _: b"",
    "cut": lambda _: encode_block(data(3))[:3000],
    "a text": lambda _: b"evidence",
    "no layout": lambda _: changed(lambda file: file.attrs.__delitem__(LAYOUT)),
    "a layout of numbers": lambda _: changed(lambda file: file.attrs.__setitem__(LAYOUT, 3)),
    "a deep layout": lambda _: changed(lambda file: file.attrs.__setitem__(LAYOUT, "[" * 9999)),
    "a variable less": lambda _: changed(lambda file: file.__delitem__("measured")),
    "another shape": lambda _: replaced("measured", data=np.zeros((4, 5))),
    "more axes": lambda _: replaced("measured", data=np.zeros((3, 5, 1))),
    "texts for numbers": lambda _: replaced("measured", data=["a", "b", "c"]),
    "numbers for texts": lambda _: replaced("word", data=[1, 2, 3]),
    "no text": lambda _: replaced("word", data=np.array([b"\xff"] * 3, "S1")),
    "a compound": lambda _: replaced("measured", (3, 5), [("a", "f4"), ("b", "f4")]),
    "a group": lambda _: changed(
        lambda file: (file.__delitem__("measured"), file.create_group("measured"))
    ),
    "a link to itself": lambda _: linked(h5py.SoftLink("/measured")),
    "a link to a variable": lambda _: linked(h5py.SoftLink("/count")),
    "a link elsewhere": lambda path: linked(h5py.ExternalLink(str(path / "x.nc"), "/x")),
    "data elsewhere": lambda path: external(path / "raw"),
    "data of another file": lambda _: changed(virtual),
    "another filter": lambda _: replaced("measured", data=np.zeros((3, 5)), scaleoffset=3),
}


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_is_no_block_is_damaged_and_leads_nowhere(name, tmp_path):
    with pytest.raises(Damaged):
        read_block(LIES[name](tmp_path))


def test_texts_of_any_kind_come_back():
    words = [["naïve", "", "κ" * 300], ["a", "b", "\U0001f600"]]
    texts = xr.Dataset(
        {
            "objects": (("cell", "j"), np.array(words, object)),
            "fixed": (("cell", "j"), np.array(words)),
            "one": np.array("one"),
            "none": ("k", np.array([], object)),
            "empty": ("j", np.array(["", "", ""])),
        },
        attrs={"empty": "", "long": "κ" * 10**5, "numbers": [1.5, 2.5]},
    )
    found = read_block(encode_block(texts))
    np.testing.assert_array_equal(found.attrs.pop("numbers"), texts.attrs.pop("numbers"))
    xr.testing.assert_identical(found, texts)
    assert {n: v.dtype.kind for n, v in found.items()} == {
        n: v.dtype.kind for n, v in texts.items()
    }
