import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
import pytest
import xarray as xr

from attlas.claims import Setting
from attlas.errors import InputError
from attlas.lab.store import SMALL_BLOCK_CELLS as SMALL
from attlas.lab.store import Address, Cell, Store

ADDRESS = Address("map/claim", 7, "float64", "code")
CELLS = [Setting(n=n) for n in (1, 2, 3)]


def evidence(cells, shift=0.0):
    values = np.array([[cell.n + shift + i / 10 for i in range(5)] for cell in cells])
    return xr.Dataset(
        {"measured": (("cell", "point"), values), "error": 0.0},
        coords={"word": ("point", list("abcde"))},
    )


def save(store, cells=CELLS, facts=None, shift=0.0, address=ADDRESS):
    store.save([Cell(address, cell) for cell in cells], evidence(cells, shift), facts or {})


def read(store, cells=CELLS, address=ADDRESS):
    names = {address.cell(cell): cell for cell in cells}
    return {names[name]: found for name, found in store.load(address.claim, names).items()}


def index_of(store, cell, address=ADDRESS):
    return store.find(address.claim, [address.cell(cell)])[address.cell(cell)].block


def test_what_is_saved_is_found_by_cell(store):
    save(store, CELLS[:2], {"seconds": 1.5})
    found = read(store)
    assert set(found) == set(CELLS[:2])
    xr.testing.assert_equal(found[CELLS[1]], evidence(CELLS[1:2]))
    assert json.loads(found[CELLS[0]].attrs["facts"]) == {"seconds": 1.5}


def test_a_change_of_seed_code_precision_or_setting_is_another_block(store):
    save(store)
    for other in (
        Address("map/claim", 8, "float64", "code"),
        Address("map/claim", 7, "float32", "code"),
        Address("map/claim", 7, "float64", "new"),
    ):
        assert read(store, address=other) == {}
    assert read(store, [Setting(n=4)]) == {}


def test_a_newer_block_replaces_an_older_one(store):
    save(store)
    save(store, shift=1.0)
    assert float(read(store)[CELLS[0]]["measured"][0, 0]) == 2.0


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "remove"])
def test_damaged_data_are_named_set_aside_and_left_out(store, damage):
    save(store, CELLS[:1])
    save(store, CELLS[1:])
    index = index_of(store, CELLS[0])
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
    save(store, CELLS[:1])
    assert set(read(store)) == set(CELLS)


@pytest.mark.parametrize("text", ["{ half", "", "[1]", '{"a": 1}'])
def test_a_damaged_index_is_set_aside(store, text):
    save(store)
    index_of(store, CELLS[0]).write_text(text)
    assert read(store) == {} and "index cannot be read" in store.notes[0]


@pytest.mark.parametrize("way", ["absolute", "relative"])
@pytest.mark.parametrize("then", ["read", "replace", "pack"])
def test_an_index_that_names_a_file_elsewhere_does_no_harm_to_it(store, tmp_path, way, then):
    victim = tmp_path / "victim.nc"
    victim.write_bytes(b"mine")
    for cell in CELLS:
        save(store, [cell])
    path = index_of(store, CELLS[0])
    index = json.loads(path.read_text())
    for damage in ({}, {"sha256": hashlib.sha256(b"mine").hexdigest()}):
        name = str(victim) if way == "absolute" else os.path.relpath(victim, path.parent)
        path.write_text(json.dumps({**index, **damage, "data": name}))
        if then == "read":
            assert set(read(store)) == set(CELLS[1:])
        elif then == "replace":
            save(store, CELLS[:1])
        else:
            store.pack("map/claim")
        assert victim.read_bytes() == b"mine" and not victim.with_name("victim.nc.damaged").exists()
        assert "index cannot be read" in store.notes[-1]


@pytest.mark.parametrize(
    "damage",
    [
        {"data": "0.nc"},
        {"data": 1},
        {"cells": "ab"},
        {"cells": [[]]},
        {"cells": ["../x"]},
        {"times": [[0, 5]]},
        {"times": 3},
        {"facts": []},
        {"facts": {"seconds": "long"}},
        {"bytes": "many"},
        {"sha256": None},
    ],
)
def test_an_index_with_one_wrong_entry_is_set_aside(store, damage):
    save(store)
    path = index_of(store, CELLS[0])
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    assert read(store) == {} and "index cannot be read" in store.notes[0]


@pytest.mark.parametrize("id", ["../x", "map/..", "/tmp/x", "map/../../x", "x", "", "a\\b/c"])
def test_an_id_that_leads_out_of_the_store_is_refused(store, id):
    address = Address(id, 7, "float64", "code")
    for use in (
        lambda: save(store, address=address),
        lambda: store.find(id, ["name"]),
        lambda: store.pack(id),
        lambda: store.record(id, {}),
        lambda: store.recorded(id),
    ):
        with pytest.raises(InputError, match="cannot name a folder of the store"):
            use()


def _write_many(folder, start):
    store = Store(folder)
    for i in range(start, start + 30):
        save(store, [Setting(n=i)], {"who": start})
        save(store, [Setting(n=1000 + i % 5)], {"who": start})


def test_an_index_under_way_is_not_taken_for_a_finished_or_a_damaged_one(store, monkeypatch):
    """A reader that set it aside would take it from whoever writes it."""
    flush, seen = os.fsync, []

    def look(handle):
        other = Store(store.folder)
        found = other.find(ADDRESS.claim, [ADDRESS.cell(cell) for cell in CELLS])
        seen.append(len(found) + len(other.notes))
        flush(handle)

    monkeypatch.setattr(os, "fsync", look)
    save(store)
    assert seen == [0, 0]
    assert set(read(store)) == set(CELLS)
    assert not list(store.folder.rglob("*.damaged"))


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


def test_the_newest_of_several_blocks_that_hold_a_cell_is_read(store):
    for cells, shift in ((CELLS, 0.0), (CELLS[1:2], 1.0), (CELLS[:2], 2.0)):
        save(store, cells, shift=shift)
        time.sleep(0.01)
    found = read(store)
    assert [float(found[cell]["measured"][0, 0]) for cell in CELLS] == [3.0, 4.0, 3.0]


def test_a_block_may_mix_seeds(store):
    other = Address("map/claim", 8, "float64", "code")
    store.save(
        [Cell(ADDRESS, CELLS[0]), Cell(other, CELLS[0])], evidence(CELLS[:2]), {"seconds": 3.0}
    )
    assert float(read(store, address=other)[CELLS[0]]["measured"][0, 0]) == 2.0
    assert json.loads(read(store)[CELLS[0]].attrs["seed"]) == [7, 8]
    assert store.find("map/claim", [other.cell(CELLS[0])])[other.cell(CELLS[0])].seconds == 1.5


def test_small_blocks_are_packed_without_a_loss(store):
    cells = [Setting(n=n) for n in range(1, 41)]
    for cell in cells:
        save(store, [cell], {"seconds": 0.5, "compile_seconds": 0.1})
    before = read(store, cells)
    other = [Setting(n=n) for n in (100, 101)]
    for cell, error in zip(
        other, (1.0, 2.0), strict=True
    ):  # what has no axis `cell` differs: these are not joined
        store.save([Cell(ADDRESS, cell)], evidence([cell]).assign(error=error), {})
    assert store.pack("map/claim") == 40 and store.pack("map/claim") == 0
    folder = store.folder / "blocks" / "map" / "claim"
    assert len(list(folder.glob("*.json"))) == len(list(folder.glob("*.nc"))) == 3
    after = read(store, cells + other)
    for cell in cells:
        xr.testing.assert_identical(before[cell].drop_attrs(), after[cell].drop_attrs())
    assert [float(after[cell]["error"]) for cell in other] == [1.0, 2.0] and store.notes == []
    assert json.loads(after[cells[3]].attrs["cells"])[3] == {"n": 4}
    assert max(store.costs("map/claim")) == (40, pytest.approx(20.0), pytest.approx(4.0))


def test_a_large_block_is_not_packed(store):
    for first in (0, SMALL):
        save(store, [Setting(n=1 + first + n) for n in range(SMALL)])
    assert store.pack("map/claim") == 0


def test_packing_reads_and_writes_some_bytes_at_a_time(store, monkeypatch):
    """What packing holds in memory does not grow with the number of small blocks."""
    monkeypatch.setattr("attlas.lab.store.PACKED_BLOCK_BYTES", 4 * evidence(CELLS[:1]).nbytes)
    cells = [Setting(n=n) for n in range(1, 21)]
    for cell in cells:
        save(store, [cell])
    store.save([Cell(ADDRESS, Setting(n=100))], evidence(CELLS[:1]).assign(error=1.0), {})
    events = []
    for name in ("_read_block", "_save"):
        done = getattr(store, name)
        monkeypatch.setattr(
            store, name, lambda *given, name=name, done=done: (events.append(name), done(*given))[1]
        )
    assert store.pack("map/claim") == 20
    assert events == 5 * (4 * ["_read_block"] + ["_save"])
    assert set(read(Store(store.folder), cells)) == set(cells)


def test_blocks_that_are_gone_are_forgotten(store):
    for cell in CELLS:
        save(store, [cell])
    store.pack("map/claim")
    store.find("map/claim", [])
    assert sum(map(len, store._seen.values())) == 1


def test_what_killed_writers_have_left_is_removed_a_day_later(store):
    for cell in CELLS:
        save(store, [cell])
    folder = store.folder / "blocks" / "map" / "claim"
    block = index_of(store, CELLS[0]).stem
    left = [folder / f"{block}.0123.nc", folder / ".under-way-killed.part"]
    busy = [folder / f"{block}.4567.nc", folder / ".under-way-alive.part"]
    for path in left + busy:
        path.write_bytes(b"half")
    save(store, [Setting(n=n) for n in range(SMALL)])
    large = index_of(store, Setting(n=SMALL - 1))
    old = [*left, large, large.parent / json.loads(large.read_text())["data"]]
    for path in old:
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 2 * 86_400 * 10**9))
    store.pack("map/claim")
    assert not any(path.exists() for path in left) and all(path.exists() for path in busy)
    assert len(read(Store(store.folder), [Setting(n=n) for n in range(SMALL)])) == SMALL


def value(store, cell):
    return float(read(store, [cell])[cell]["measured"][0, 0]) - cell.n


def test_packing_does_not_bring_back_what_was_measured_again(store):
    cells = [Setting(n=n) for n in range(1, SMALL + 1)]
    for cell in cells:
        save(store, [cell])
    time.sleep(0.01)
    save(store, cells, shift=1.0)  # one block, which is not small
    assert store.pack("map/claim") == SMALL
    assert {value(Store(store.folder), cell) for cell in cells} == {1.0}


@pytest.mark.parametrize("when", ["read", "packed"])
def test_what_is_measured_again_while_it_is_packed_stays(store, monkeypatch, when):
    """It may come before the packed block is written, or before the old ones are removed."""
    for cell in CELLS:
        save(store, [cell])
    place = {"read": "attlas.lab.store.join_blocks", "packed": "attlas.lab.store._flush_folder"}[
        when
    ]
    module, _, name = place.rpartition(".")
    then = getattr(sys.modules[module], name)

    def again(*given):
        monkeypatch.setattr(place, then)
        time.sleep(0.01)
        save(store, CELLS[:1], shift=1.0)
        return then(*given)

    monkeypatch.setattr(place, again)
    store.pack("map/claim")
    assert [value(Store(store.folder), cell) for cell in CELLS] == [1.0, 0.0, 0.0]
    store.pack("map/claim")
    assert [value(Store(store.folder), cell) for cell in CELLS] == [1.0, 0.0, 0.0]


def _pack_often(folder):
    store = Store(folder)
    for _ in range(12):
        store.pack("map/claim")
        time.sleep(0.02)


def test_packing_beside_writers_and_readers_loses_nothing(store):
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=_write_many, args=(store.folder, start)) for start in (0, 100)]
    others += [spawn.Process(target=_pack_often, args=(store.folder,)) for _ in range(2)]
    for other in others:
        other.start()
    cells, seen = [Setting(n=n) for n in (*range(30), *range(100, 130), *range(1000, 1005))], set()
    while any(other.is_alive() for other in others):
        found = set(read(store, cells))
        assert seen <= found
        seen = found
    assert all(other.exitcode == 0 for other in others)
    assert set(read(store, cells)) == set(cells) and store.notes == []


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
