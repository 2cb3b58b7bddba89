"""Files that outlive this process: written so that they last, and read without trust.

`write_whole` leaves the old file or the new one, through a loss of power too. What is read back is
checked before it is used: that it is a file, its checksum, and its form. Whatever is wrong with it
raises `Damaged`, in words; an `OSError` says that the disk did not answer, which may pass.
"""

import errno
import functools
import hashlib
import json
import math
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError)
"""What code may raise that is given a damaged file; RecursionError is among them."""

_SEALED = re.compile(rb'\{"checksum": "([0-9a-f]{64})",')
_DIGEST_BYTES = 32
_LARGE = 2**63


PASSING_ERRORS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN}
PAUSES = (0.1, 0.5, 2.0)
"""Seconds before a disk is asked again that has failed."""

P = ParamSpec("P")
R = TypeVar("R")


class Damaged(ValueError):
    """A file that must not be used; the message says why."""


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


@retried
def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, rename it, and flush the folder.

    When this returns the file lasts; if it does not, the old one is there or the new one.
    """
    with temporary_file(path.parent, ".part") as file:
        file.chmod(0o644)  # a temporary file is its owner's alone; a store may be shared
        with file.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(file, path)
    flush(path.parent)


@contextmanager
def temporary_file(folder: Path, suffix: str) -> Iterator[Path]:
    """An empty file in `folder`, to be written and renamed; removed if it is still there."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".under-way-", suffix=suffix)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@retried
def make_folder(folder: Path) -> None:
    """Make a folder, with those it lies in, so that it lasts."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush(folder.parent)


def flush(path: Path) -> None:
    """Write to the disk what a file holds, or a folder: without it a rename may not last."""
    if sys.platform == "win32" and path.is_dir():
        return  # there folders are not files
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_AS_IT_IS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
"""Not what a link leads to, not waiting for a pipe, and every byte; if the system has these."""


@retried
def read_whole(path: Path, most: float = math.inf) -> bytes:
    """The contents of a file of at most so many bytes; not of a link, which may lead elsewhere, a
    pipe or a folder."""
    try:
        handle = os.open(path, os.O_RDONLY | _AS_IT_IS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Damaged("it is not a file") from error
        raise
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise Damaged("it is not a file")
        if about.st_size > most:
            raise Damaged(f"it is larger than {most} bytes")
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def seal(content: bytes) -> bytes:
    """The content with its SHA-256 behind it."""
    return content + hashlib.sha256(content).digest()


def unseal(content: bytes) -> bytes:
    """What was sealed."""
    found, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(found).digest() != digest:
        raise Damaged("its contents do not match their checksum")
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object with at least one entry; its first is the SHA-256 of what follows."""
    make_folder(path.parent)
    body = json.dumps(content, indent=1)[1:].encode()
    write_whole(path, b'{"checksum": "%s",%s' % (hashlib.sha256(body).hexdigest().encode(), body))


def read_json(path: Path, form: Any) -> dict[str, Any]:
    """The object that `write_json` wrote, if it has the form (see `fits`)."""
    content = read_whole(path)
    sealed = _SEALED.match(content)
    body = content[sealed.end() :] if sealed else b""
    if sealed is None or hashlib.sha256(body).hexdigest().encode() != sealed[1]:
        raise Damaged("its contents do not match their checksum")
    return parse_json(b"{" + body, form)


def read_entries(path: Path) -> dict[str, Any]:
    """The entries of a JSON object by name; none where there is no sound file."""
    try:
        found: dict[str, Any] = parse_json(read_whole(path), {str: object})
    except (FileNotFoundError, Damaged):
        return {}
    return found


def add_entries(path: Path, new: Mapping[str, Any]) -> None:
    """Write entries beside the others of the file, in the order of their names."""
    content = dict(sorted({**read_entries(path), **new}.items()))
    write_whole(path, json.dumps(content, indent=1).encode())


def parse_json(content: bytes | str, form: Any) -> Any:
    """What JSON says, if it has the form."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"it is no JSON: {error}") from error
    if not fits(found, form):
        raise Damaged("its contents have another form")
    return found


def fits(value: Any, form: Any) -> bool:
    """Whether what was parsed from JSON has a form.

    A form is a type or a union of types, where numbers must be finite and below 2^63; `object`, for
    anything; a pattern, for a text as a whole; `[form]`, for a list; `(form, form)`, for a list of
    that length; or a dict of forms by key. A key that ends in `?` may be missing; the key `str`
    stands for all others.
    """
    if isinstance(form, re.Pattern):
        return isinstance(value, str) and form.fullmatch(value) is not None
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(item, form[0]) for item in value)
    if isinstance(form, tuple):
        alike = isinstance(value, list) and len(value) == len(form)
        return alike and all(map(fits, value, form))
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return False
        named = {key.removesuffix("?"): of for key, of in form.items() if key is not str}
        needed = {key for key in form if key is not str and not key.endswith("?")}
        others = form.get(str)
        return needed <= value.keys() and all(
            fits(item, named[key]) if key in named else others is not None and fits(item, others)
            for key, item in value.items()
        )
    if form is object:
        return True
    sound = not isinstance(value, int | float) or -_LARGE < value < _LARGE
    return sound and isinstance(value, form)
