import errno
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import signal
import time

import h5py
import numpy as np
import pytest
import xarray as xr

from attlas.claims import Setting
from attlas.errors import InputError
from attlas.lab import store as module
from attlas.lab.blocks import encode_block
from attlas.lab.files import write_json
from attlas.lab.store import SMALL_BLOCK_CELLS as SMALL
from attlas.lab.store import Address, Cell, Store
from tests.disk import Disk, FailingWrite, restore

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


def change(index, **entries):
    """Change entries of an index and give it the right checksum, as a liar would."""
    content = json.loads(index.read_text())
    del content["checksum"]
    write_json(index, {**content, **entries})


def forge(index, content):
    """Give a block other data, with the right checksums."""
    index.with_suffix(".nc").write_bytes(content)
    change(index, sha256=hashlib.sha256(content).hexdigest())


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
    data = index.with_suffix(".nc")
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


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", ["{ half", "", "[1]", '{"a": 1}', DEEP, "\0", "\udc80"])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_damaged_index_is_set_aside(store, text, sealed):
    save(store)
    path, data = index_of(store, CELLS[0]), text.encode("utf-8", "surrogateescape")
    if sealed:
        data = b'{"checksum": "%s",' % hashlib.sha256(data).hexdigest().encode() + data
    path.write_bytes(data)
    store = Store(store.folder)
    assert read(store) == {} and "index cannot be read" in store.notes[0]
    assert not path.exists() and len(list(path.parent.glob(f"{path.name}.*.damaged"))) == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"cells": "ab"},
        {"cells": [[]]},
        {"cells": [[1]]},
        {"cells": ["../x"]},
        {"cells": []},
        {"data": 5},
        {"data": "/etc/passwd"},
        {"numbers": [[0, 5]]},
        {"numbers": [[0, -5], [0, 8]]},
        {"numbers": [[1, 10**9], [1, 3 - 10**9]]},
        {"numbers": 3},
        {"numbers": []},
        {"numbers": [["1", 3]]},
        {"facts": []},
        {"facts": None},
        {"facts": {"seconds": "long"}},
        {"facts": {"seconds": 10**400}},
        {"facts": {"seconds": float("nan")}},
        {"facts": {"deep": [[[]]]}},
        {"bytes": "many"},
        {"form": 3},
        {"sha256": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("then", ["read", "pack", "costs", "save"])
def test_an_index_with_one_wrong_entry_is_set_aside(store, damage, then):
    save(store)
    save(store, [Setting(n=9)])
    path = index_of(store, CELLS[0])
    change(path, **damage)
    store = Store(store.folder)
    {
        "read": lambda: read(store),
        "pack": lambda: store.pack("map/claim"),
        "costs": lambda: store.costs("map/claim"),
        "save": lambda: save(store),
    }[then]()
    assert set(read(store)) == (set(CELLS) if then == "save" else set())
    assert not path.exists()
    assert then == "save" or "index cannot be read" in store.notes[0]


def test_an_integer_of_five_thousand_digits_is_damage(store):
    save(store)
    path = index_of(store, CELLS[0])
    body = path.read_bytes().partition(b",")[2].replace(b'"bytes": ', b'"bytes": ' + b"9" * 5000)
    seal = b'{"checksum": "%s",' % hashlib.sha256(body).hexdigest().encode()
    path.write_bytes(seal + body)
    store = Store(store.folder)
    assert read(store) == {} and "index cannot be read" in store.notes[0]


def test_every_flipped_bit_of_an_index_is_noticed(store):
    save(store, CELLS[:1])
    path = index_of(store, CELLS[0])
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    names = range(whole.index(b'"cells"'), whole.index(b'"facts"'))
    for place in [*names, *rng.integers(0, len(whole), 60).tolist()]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        other = Store(store.folder)
        assert other.costs("map/claim") == [] and len(other.notes) == 1, place
    path.write_bytes(whole)
    assert read(Store(store.folder), CELLS[:1])


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize("which", [".json", ".nc"])
def test_what_is_no_file_is_set_aside(store, tmp_path, kind, which):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    save(store)
    path = index_of(store, CELLS[0]).with_suffix(which)
    path.unlink()
    if kind == "folder":
        path.mkdir()
        (path / "file").write_text("")
    elif kind == "link":
        path.symlink_to(victim)
    else:
        os.mkfifo(path)
    for _ in range(2):
        store = Store(store.folder)
        assert read(store) == {} and len(store.notes) == (1 if not _ else 0)
    save(store)
    assert set(read(store)) == set(CELLS) and victim.read_bytes() == b"mine"


@pytest.mark.parametrize("link", ["blocks", "blocks/2", "blocks/2/map", "blocks/2/map/claim"])
def test_no_link_leads_out_of_the_store(store, tmp_path, link):
    save(store)
    elsewhere, here = tmp_path / "elsewhere", store.folder / link
    here.rename(elsewhere)
    here.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    for use in (lambda: save(store), lambda: read(store), lambda: store.pack("map/claim")):
        with pytest.raises(InputError, match="is a link"):
            use()
    assert before == {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}


def test_files_of_others_are_neither_read_nor_removed(store):
    save(store)
    folder = index_of(store, CELLS[0]).parent
    others = [folder / name for name in ("notes.json", "0.nc", ".under-way-.part", "a.part")]
    for path in others:
        path.write_text("mine")
        os.utime(path, (0, 0))
    save(store, shift=1.0)
    store.pack("map/claim")
    assert all(path.read_text() == "mine" for path in others) and store.notes == []


def test_a_disk_that_does_not_answer_costs_no_block(store, monkeypatch):
    """A block is set aside if it is damaged; not if its file could not be read this time."""
    save(store)

    def fail(path, *_):
        raise OSError(5, "Input/output error")

    for name in ("read_whole", "read_json"):
        other = Store(store.folder)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            assert read(other) == {} and "cannot be read now: Input/output error" in other.notes[0]
        assert set(read(Store(store.folder))) == set(CELLS)


def block(some=CELLS, **changes):
    attrs = {
        "claim": "map/claim",
        "precision": "float64",
        "code": "code",
        "seed": json.dumps([7] * len(some)),
        "cells": json.dumps([dict(cell) for cell in some]),
        **changes,
    }
    attrs = {name: value for name, value in attrs.items() if value is not None}
    return encode_block(evidence(some).assign_attrs(attrs))


def hdf5(change):
    """A block with something changed in HDF5."""
    buffer = io.BytesIO(block())
    with h5py.File(buffer, "r+") as file:
        change(file)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no HDF5",
        block()[:2000],
        block(CELLS[:2]),
        block(seed=None),
        block(seed="[1, 2]"),
        block(cells="{"),
        block(cells="[[1], [2], [3]]"),
        block(claim="map/other"),
        hdf5(lambda file: file.attrs.__delitem__("attlas_layout")),
        hdf5(lambda file: file.attrs.__setitem__("attlas_layout", "[" * 10_000)),
        hdf5(lambda file: file.__delitem__("measured")),
    ],
    ids=range(12),
)
@pytest.mark.parametrize("then", ["read", "pack"])
def test_a_block_whose_checksum_fits_but_not_its_contents_is_set_aside(store, content, then):
    for cells in (CELLS, [Setting(n=9)], [Setting(n=10)]):
        save(store, cells)
    path = index_of(store, CELLS[0])
    forge(path, content)
    store = Store(store.folder)
    if then == "read":
        assert read(store) == {}
    else:
        assert store.pack("map/claim") == 0 and store.pack("map/claim") == 2
    assert len(store.notes) == 1 and str(path) in store.notes[0] and not path.exists()
    save(store)
    assert set(read(store)) == set(CELLS)


def test_a_newer_block_wins_whatever_the_clocks_say(store):
    """The files of the older one are from the future, as if its machine had a wrong clock."""
    save(store)
    for path in index_of(store, CELLS[0]).parent.iterdir():
        os.utime(path, (2**32, 2**32))
    save(store, CELLS[:2], shift=1.0)
    for path in index_of(store, CELLS[0]).parent.iterdir():
        os.utime(path, (10, 10) if path.stat().st_mtime < 2**32 else (2**32, 2**32))
    for _ in range(2):
        assert [value(Store(store.folder), cell) for cell in CELLS] == [1.0, 1.0, 0.0]
        assert store.costs("map/claim")[-1].cells == (2 if not _ else 5)
        store.pack("map/claim")


def test_a_block_that_is_being_written_is_not_removed_because_another_is_from_the_future(store):
    save(store)
    save(store, [Setting(n=9)])
    folder = index_of(store, CELLS[0]).parent
    for path in folder.iterdir():
        os.utime(path, (2**32, 2**32))
    data = folder / f"{'0' * 32}.{'0' * 16}.{'0' * 16}.nc"
    data.write_bytes(b"its index follows")
    store.pack("map/claim")
    assert data.exists()


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
    assert len(seen) >= 4 and not any(seen[:-1])
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
    folder = store.folder / "blocks" / "2" / "map" / "claim"
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
    folder = store.folder / "blocks" / "2" / "map" / "claim"
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
    folder = store.folder / "blocks" / "2" / "map" / "claim"
    names = [f"{'0' * 32}.{'0' * 16}.{i:016}.nc" for i in range(2)]
    left = [folder / names[0], folder / ".under-way-killed.part"]
    busy = [folder / names[1], folder / ".under-way-alive.part"]
    for path in left + busy:
        path.write_bytes(b"half")
    save(store, [Setting(n=n) for n in range(SMALL)])
    large = index_of(store, Setting(n=SMALL - 1))
    for path in [*left, large, large.with_suffix(".nc")]:
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
    save(store, cells, shift=1.0)  # one block, which is not small
    assert store.pack("map/claim") == SMALL
    assert {value(Store(store.folder), cell) for cell in cells} == {1.0}


@pytest.mark.parametrize("when", ["read", "packed"])
def test_what_is_measured_again_while_it_is_packed_stays(store, monkeypatch, when):
    """It may come before the packed block is written, or before the old ones are removed."""
    for cell in CELLS:
        save(store, [cell])
    place = {"read": (module, "join_blocks"), "packed": (store, "_remove")}[when]
    then = getattr(*place)

    def again(*given):
        monkeypatch.setattr(*place, then)
        save(store, CELLS[:1], shift=1.0)
        return then(*given)

    monkeypatch.setattr(*place, again)
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


def save_first(store):
    save(store, CELLS[:2])


def save_again(store):
    save(store, shift=1.0)


def pack(store):
    store.pack("map/claim")


def prepare(store, change):
    """A store before the change; the values of each cell that are right after it, or on the way."""
    if change is save_first:
        return {cell: ({None, 0.0}, {0.0}) for cell in CELLS[:2]}
    save(store, CELLS[:1])
    save(store)
    save(store, CELLS[1:2], shift=0.5)
    if change is pack:
        return {cell: ({shift}, {shift}) for cell, shift in zip(CELLS, (0, 0.5, 0), strict=True)}
    return {cell: ({shift, 1.0}, {1.0}) for cell, shift in zip(CELLS, (0, 0.5, 0), strict=True)}


def seen(folder, cells):
    store = Store(folder)
    found = read(store, cells)
    assert store.notes == []
    return [float(found[c]["measured"][0, 0]) - c.n if c in found else None for c in cells]


@pytest.mark.parametrize("change", [save_first, save_again, pack])
def test_a_loss_of_power_loses_nothing_that_was_saved(store, tmp_path, monkeypatch, change):
    right = prepare(store, change)
    with monkeypatch.context() as patch:
        disk = Disk(store.folder.parent, patch)
        change(store)
        images = disk.close()
    assert len(images) > 8
    for number, pair in enumerate(images):
        done = number == len(images) - 1
        for kind, image in zip(("flushed", "listed"), pair, strict=True):
            folder = tmp_path / f"{kind}-{number}"
            restore({name: data for name, data in image.items() if "store/" in name}, folder)
            values = seen(folder / "store", list(right))
            for value, (under_way, after) in zip(values, right.values(), strict=True):
                assert value in (after if done else under_way), (number, kind)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("change", [save_first, save_again, pack])
def test_whichever_write_fails_nothing_that_was_saved_is_lost(tmp_path, monkeypatch, change, code):
    for number in itertools.count(1):
        store = Store(tmp_path / str(number))
        right = prepare(store, change)
        with monkeypatch.context() as patch:
            failing = FailingWrite(number, code, patch)
            try:
                change(store)
            except InputError as error:
                assert "cannot be written" in str(error) and os.strerror(code) in str(error)
        for value, (under_way, _) in zip(
            seen(store.folder, list(right)), right.values(), strict=True
        ):
            assert value in under_way, number
        change(store)
        for value, (_, after) in zip(seen(store.folder, list(right)), right.values(), strict=True):
            assert value in after, number
        if not failing.happened:
            break
    assert number > 8
