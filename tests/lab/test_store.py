import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import xarray as xr

from attlas.claims import Setting
from attlas.errors import InputError
from attlas.lab.store import Address, Store

ADDRESS = Address("map/claim", 7, "float64", "code")
CELLS = [Setting(n=n) for n in (1, 2, 3)]


def evidence(cells, shift=0.0):
    values = np.array([[cell.n + shift + i / 10 for i in range(5)] for cell in cells])
    return xr.Dataset(
        {"measured": (("cell", "point"), values), "error": 0.0}, coords={"word": ("point", list("abcde"))}
    )


def read(store, cells=CELLS, address=ADDRESS):
    return store.load(store.find(address, cells))


def test_what_is_saved_is_found_by_cell(store):
    store.save(ADDRESS, CELLS[:2], evidence(CELLS[:2]), {"seconds": 1.5})
    found = read(store)
    assert set(found) == set(CELLS[:2])
    xr.testing.assert_equal(found[CELLS[1]], evidence(CELLS[1:2]))
    assert json.loads(found[CELLS[0]].attrs["facts"]) == {"seconds": 1.5}


def test_a_change_of_seed_code_precision_or_setting_is_another_block(store):
    store.save(ADDRESS, CELLS, evidence(CELLS), {})
    for other in (
        Address("map/claim", 8, "float64", "code"),
        Address("map/claim", 7, "float32", "code"),
        Address("map/claim", 7, "float64", "new"),
    ):
        assert read(store, address=other) == {}
    assert read(store, [Setting(n=4)]) == {}


def test_a_newer_block_replaces_an_older_one(store):
    store.save(ADDRESS, CELLS, evidence(CELLS), {})
    store.save(ADDRESS, CELLS, evidence(CELLS, shift=1.0), {})
    assert float(read(store)[CELLS[0]]["measured"][0, 0]) == 2.0


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "remove"])
def test_damaged_data_are_named_set_aside_and_left_out(store, damage):
    store.save(ADDRESS, CELLS[:1], evidence(CELLS[:1]), {})
    store.save(ADDRESS, CELLS[1:], evidence(CELLS[1:]), {})
    index = store.find(ADDRESS, CELLS[:1])[CELLS[0]].index
    data = index.parent / json.loads(index.read_text())["data"]
    content = bytearray(data.read_bytes())
    if damage == "truncate":
        data.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif damage == "empty":
        data.write_bytes(b"")
    else:
        data.unlink()
    assert set(read(store)) == set(CELLS[1:])
    assert len(store.notes) == 1 and str(index) in store.notes[0] and "damaged" in store.notes[0]
    assert read(store, CELLS[:1]) == {} and len(store.notes) == 1
    store.save(ADDRESS, CELLS[:1], evidence(CELLS[:1]), {})
    assert set(read(store)) == set(CELLS)


@pytest.mark.parametrize("text", ["{ half", "", "[1]", '{"a": 1}'])
def test_a_damaged_index_is_set_aside(store, text):
    store.save(ADDRESS, CELLS, evidence(CELLS), {})
    store.find(ADDRESS, CELLS)[CELLS[0]].index.write_text(text)
    assert read(store) == {} and "index cannot be read" in store.notes[0]


def _write_many(folder, start):
    store = Store(folder)
    for i in range(start, start + 30):
        cells = [Setting(n=i)]
        store.save(ADDRESS, cells, evidence(cells), {"who": start})
        shared = [Setting(n=1000 + i % 5)]
        store.save(ADDRESS, shared, evidence(shared), {"who": start})


def test_two_processes_on_one_store_lose_nothing(store):
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_many, args=(store.folder, start)) for start in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    cells = [Setting(n=n) for n in (*range(30), *range(100, 130), *range(1000, 1005))]
    assert set(read(store, cells)) == set(cells) and store.notes == []


def test_a_writer_that_is_killed_leaves_finished_blocks_and_no_broken_one(store):
    spawn = multiprocessing.get_context("spawn")
    writer = spawn.Process(target=_write_many, args=(store.folder, 0))
    writer.start()
    folder = store.folder / "blocks" / "map" / "claim"
    while len(list(folder.glob("*.json"))) < 3 and writer.is_alive():
        time.sleep(0.005)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    cells = [Setting(n=n) for n in (*range(30), *range(1000, 1005))]
    found = read(store, cells)
    assert len(found) >= 3 and store.notes == []


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Store(file / "store")
    with pytest.raises(InputError, match="cannot be written"):
        Store("/proc/nowhere")


def test_the_store_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTLAS_STORE", str(tmp_path / "there"))
    assert Store().folder == tmp_path / "there"
    assert Store(tmp_path / "here").folder == tmp_path / "here"


def test_the_last_verdict_is_remembered(store):
    assert store.recorded("map/claim") is None
    store.record("map/claim", {"verdict": "confirmed"})
    assert store.recorded("map/claim") == {"verdict": "confirmed"}


def test_a_table_is_kept_and_found_again(store):
    assert store.kept_table("real-data") is None
    store.keep_table("real-data", {"kinds": [1]})
    assert store.kept_table("real-data") == {"kinds": [1]}
