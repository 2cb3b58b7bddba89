"""Small JSON files of a store, and how files are written whole: what can be read without JAX."""

import errno
import functools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import platformdirs

from attlas.errors import InputError

_CLAIM_ID = re.compile(r"[^./\\\0][^/\\\0]*/[^./\\\0][^/\\\0]*")
"""Ids that may name folders: two parts, neither of which leads out of the store."""


PASSING_ERRORS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN}
PAUSES = (0.1, 0.5, 2.0)
"""Seconds before a disk is asked again that has failed."""

P = ParamSpec("P")
R = TypeVar("R")


class Records:
    """The last verdict on each claim, and tables that benchmarks made.

    They are in `folder`, or `ATTLAS_STORE`, or the user's cache.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        chosen = folder or os.environ.get("ATTLAS_STORE") or platformdirs.user_cache_dir("attlas")
        self.folder = Path(chosen).expanduser()

    def record(self, claim: str, verdict: Mapping[str, Any]) -> None:
        """Remember the last verdict on a claim."""
        with self.write_errors_named():
            write_json(self._verdict_path(claim), verdict)

    def recorded(self, claim: str) -> dict[str, Any] | None:
        """The last verdict on a claim, if there is one that can be read."""
        found = read_json(self._verdict_path(claim))
        needed = {"when", "scale", "seed", "setting", "verdict", "reason"}
        return found if found is not None and needed <= set(found) else None

    def keep_table(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a table that a benchmark made, for the atlas to show."""
        with self.write_errors_named():
            write_json(self._table_path(name), content)

    def kept_table(self, name: str) -> dict[str, Any] | None:
        """The table of that name, if there is one that can be read."""
        return read_json(self._table_path(name))

    def _table_path(self, name: str) -> Path:
        return self.folder / "tables" / f"{name}.json"

    def _verdict_path(self, claim: str) -> Path:
        return self.folder / "verdicts" / f"{checked_id(claim)}.json"

    @contextmanager
    def write_errors_named(self) -> Iterator[None]:
        """An `OSError` inside becomes an `InputError` that names the store."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the store {str(self.folder)!r} cannot be written: {error.strerror or error}"
            ) from error


def retried(function: Callable[P, R]) -> Callable[P, R]:
    """Call a function again after an error that passes, as a shared disk has now and then."""

    @functools.wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> R:
        for pause in PAUSES:
            try:
                return function(*args, **options)
            except OSError as error:
                if error.errno not in PASSING_ERRORS:
                    raise
                time.sleep(pause)
        return function(*args, **options)

    return called


def checked_id(claim: str) -> str:
    """A claim's id, if it may be the name of a folder."""
    if not _CLAIM_ID.fullmatch(claim):
        raise InputError(
            f"the claim id {claim!r} cannot name a folder of the store: it must be map/slug, and "
            f"neither may begin with a dot"
        )
    return claim


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, if there is one that can be read."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1).encode())


@retried
def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it."""
    with temporary_file(path.parent, ".part") as file:
        file.chmod(0o644)  # a temporary file is its owner's alone; a store may be shared
        with file.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(file, path)


@contextmanager
def temporary_file(folder: Path, suffix: str) -> Iterator[Path]:
    """An empty file in `folder`, to be written and renamed; removed if it is still there."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".under-way-", suffix=suffix)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
