import errno
import itertools
import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from attlas.atlas import folders
from attlas.atlas.folders import LIST, check_folder, replaced, write_errors_named
from attlas.errors import InputError
from tests.disk import Disk, FailingWrite

NAMES = ["index.html", "map/claim.html", "map/claim.svg"]


def write(folder, words, wait=None):
    """An atlas of a few files, written as the pages are."""
    with replaced(check_folder(folder)) as fresh, write_errors_named(folder):
        for name in NAMES:
            (fresh / name).parent.mkdir(exist_ok=True)
            (fresh / name).write_bytes(f"{words} {name}".encode())
        content = {"attlas": words, "files": [*NAMES, LIST]}
        (fresh / LIST).write_bytes(json.dumps(content).encode())
        if wait is not None:
            wait()


def whole(files):
    """Whose atlas these files are, all of them."""
    words = json.loads(files.pop(LIST))["attlas"]
    assert files == {name: f"{words} {name}".encode() for name in NAMES}
    return words


def found(folder):
    return whole(
        {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    )


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "atlas", "old")
    return tmp_path / "atlas"


@pytest.mark.parametrize("content", [None, '{"attlas": "0", "files": null}'])
def test_a_folder_with_an_empty_folder_in_it_is_left_alone(content, tmp_path):
    (tmp_path / "plans").mkdir()
    if content is not None:
        (tmp_path / "claims.json").write_text(content)
    with pytest.raises(InputError, match="holds other things"):
        check_folder(tmp_path)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for content in (
        None,
        "{}",
        '{"claims": []}',
        '{"attlas": "0", "files": ["claims.json"]}',
        "[]",
    ):
        if content is not None:
            (tmp_path / "claims.json").write_text(content)
        with pytest.raises(InputError, match="holds other things"):
            check_folder(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        check_folder(tmp_path / "thesis.tex")


@pytest.mark.parametrize(
    "text", ['{"attlas": "0", "files": [[1]]}', "[" * 10**5, "9" * 5000, "\xff"]
)
def test_a_list_that_is_damaged_makes_no_atlas(tmp_path, text):
    (tmp_path / "claims.json").write_text(text, "latin-1")
    with pytest.raises(InputError, match="holds other things"):
        check_folder(tmp_path)


def test_a_failed_swap_puts_the_old_pages_back(folder, monkeypatch):
    moves, replace = [], os.replace

    def second_fails(*paths):
        moves.append(paths)
        if len(moves) == 2:
            raise OSError("no")
        replace(*paths)

    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    monkeypatch.setattr("attlas.atlas.folders.os.replace", second_fails)
    with pytest.raises(InputError, match="cannot be written: no"):
        write(folder, "new")
    assert found(folder) == "old" and [p.name for p in folder.parent.iterdir()] == ["atlas"]


@pytest.mark.parametrize("exchange", [True, False])
def test_an_atlas_is_replaced_whole(folder, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    write(folder, "new")
    assert found(folder) == "new" and [p.name for p in folder.parent.iterdir()] == ["atlas"]


def test_there_is_no_moment_without_an_atlas(folder):
    """Somebody looks all the time, and sees the list of one atlas or of the next."""
    missed, looks, stop = [], [], threading.Event()

    def look():
        while not stop.is_set():
            try:
                json.loads((folder / LIST).read_bytes())
            except FileNotFoundError as error:
                missed.append(error)
            looks.append(1)

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(200):
        write(folder, str(number))
    stop.set()
    watcher.join()
    assert found(folder) == "199" and len(looks) > 200 and not missed


def _write_and_wait(folder, ready):
    def wait():
        ready.set()
        signal.pause()

    write(Path(folder), "killed", wait)


def test_what_killed_writers_have_left_is_removed_and_what_is_being_written_is_not(folder):
    spawn = multiprocessing.get_context("spawn")
    writers = []
    for _ in range(2):
        ready = spawn.Event()
        writers.append(spawn.Process(target=_write_and_wait, args=(folder, ready)))
        writers[-1].start()
        assert ready.wait(60)
    writers[0].kill()
    writers[0].join()
    stranger = folder.parent / ".atlas-notes"
    stranger.mkdir()
    write(folder, "new")
    assert len(list(folder.parent.glob(".atlas-attlas-*"))) == 1
    writers[1].kill()
    writers[1].join()
    write(folder, "newer")
    assert found(folder) == "newer"
    assert {p.name for p in folder.parent.iterdir()} == {"atlas", stranger.name}


@pytest.mark.parametrize("exchange", [True, False])
def test_a_loss_of_power_leaves_an_atlas(folder, monkeypatch, exchange):
    for words, before in (("new", "old"), ("newer", "new")):
        with monkeypatch.context() as patch:
            disk = Disk(folder.parent, patch)
            swap = folders._exchange if exchange else lambda *_: False
            patch.setattr(folders, "_exchange", disk.before(swap))
            write(folder, words)
            images = disk.close()
        for number, pair in enumerate(images):
            done = number == len(images) - 1
            for image in pair:
                atlas = {
                    name.removeprefix("atlas/"): data
                    for name, data in image.items()
                    if name.startswith("atlas/")
                }
                if not (atlas or exchange):  # between two renames
                    continue
                assert whole(atlas) in ({words} if done else {words, before}), number


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("exchange", [True, False])
def test_whichever_write_fails_there_is_an_atlas(folder, monkeypatch, code, exchange):
    for number in itertools.count(1):
        before = found(folder)
        with monkeypatch.context() as patch:
            if not exchange:
                patch.setattr(folders, "_exchange", lambda *_: False)
            failing = FailingWrite(number, code, patch)
            try:
                write(folder, f"{number}")
            except InputError as error:
                assert os.strerror(code) in str(error)
        assert found(folder) in {before, f"{number}"}
        if not failing.happened:
            break
    assert number > 15
    write(folder, "last")
    assert found(folder) == "last" and [p.name for p in folder.parent.iterdir()] == ["atlas"]
