"""The folder of an atlas: checked before it is written, and replaced whole."""

import ctypes
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from attlas.errors import InputError
from attlas.lab.files import Damaged, flush, make_folder, parse_json, read_whole

LIST = "claims.json"
"""The machine-readable list. It names every file of the atlas, so that a folder is known as one."""

FLUSHES = 16
"""Files that are written to the disk at a time."""


def check_folder(folder: Path) -> Path:
    """`folder`, if an atlas can be written there: it is new, empty, or an atlas already."""
    folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; name a folder with --out")
    if folder.is_dir():
        own = _listed_files(folder)
        folders = {str(parent) for name in own for parent in Path(name).parents}
        strangers = {str(path.relative_to(folder)) for path in folder.rglob("*")} - own - folders
        if strangers:
            raise InputError(
                f"the folder {str(folder)!r} holds other things ({min(strangers)}); "
                "name an empty or new one with --out"
            )
    with write_errors_named(folder):
        make_folder(folder.parent)
        tempfile.TemporaryFile(dir=folder.parent).close()
    return folder


@contextmanager
def write_errors_named(folder: Path) -> Iterator[None]:
    """An `OSError` inside becomes an `InputError` that names the folder."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"the folder {str(folder)!r} cannot be written: {reason}") from error


def _listed_files(folder: Path) -> set[str]:
    """The files that the list of the atlas in `folder` names; none where there is no atlas."""
    form = {"attlas": str, "files": [str], str: object}
    try:
        return set(parse_json(read_whole(folder / LIST), form)["files"])
    except (FileNotFoundError, Damaged):
        return set()


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `folder` once it is complete and on the disk.

    Where the system can exchange two folders there is no moment without one. What killed writers
    have left beside it is removed: who lives holds a lock.
    """
    prefix = f".{folder.name}-attlas-"
    with write_errors_named(folder):
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
    lock = _lock(fresh)
    try:
        yield fresh
        with write_errors_named(folder):
            fresh.chmod(0o755)
            with ThreadPoolExecutor(FLUSHES) as flushes:  # together they wait for the disk once
                list(flushes.map(flush, (*fresh.rglob("*"), fresh)))
            _swap(fresh, folder)
            flush(folder.parent)
        for left in folder.parent.glob(f"{glob.escape(prefix)}*"):
            if left != fresh and (other := _lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(other)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A handle that locks a folder as long as this process lives; None if another has it, or the
    disk has no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _swap(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder`, and that in the place of `fresh`, at one stroke.

    Where the system cannot, one rename follows another, and if that fails the old one is put back.
    """
    if not folder.exists():
        os.replace(fresh, folder)
    elif not _exchange(fresh, folder):
        older = fresh.with_name(f"{fresh.name}-older")
        os.replace(folder, older)
        try:
            os.replace(fresh, folder)
        except BaseException:
            os.replace(older, folder)
            raise
        shutil.rmtree(older, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders at one stroke; False if the system or the disk cannot (Linux can)."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and not rename(
        here, os.fsencode(one), here, os.fsencode(other), exchange
    )
