"""Tensors in untrusted files: described by their headers, read on request.

tensor.shape, tensor.dtype                    # from a header that was checked against the file
tensor.load()                                 # float32 (whole numbers as int64); nothing is cached
tensor.rows([3, 17])                          # some rows of the first axis, e.g. token embeddings
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attlas.errors import InputError

PLAIN = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
"""Encodings without blocks, and the NumPy type of their bits."""
RANDOM_BLOCK_ROWS = 1024
MAX_HEADER_BYTES = 64 * 2**20
"""Of what describes the tensors of a file: the JSON of a .safetensors, the pickle of a .bin, the
metadata and list of tensors of a .gguf."""


@dataclass(frozen=True)
class Tensor:
    """An array in a file; `fetch(start, stop)` reads rows of its first axis, one for a scalar."""

    shape: tuple[int, ...]
    dtype: str
    fetch: Callable[[int, int], np.ndarray] = field(repr=False)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def load(self) -> np.ndarray:
        return self.fetch(0, self.shape[0] if self.shape else 1).reshape(self.shape)

    def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows `indices` of the first axis; each is read once, neighbours in one go."""
        distinct, place = np.unique(np.asarray(indices), return_inverse=True)
        runs = np.split(distinct, np.flatnonzero(np.diff(distinct) > 1) + 1)
        return np.concatenate([self.fetch(int(run[0]), int(run[-1]) + 1) for run in runs])[place]


def import_extra(name: str) -> Any:
    """Import a package of the extra `audit`; an `InputError` says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this needs the package {name}: pip install 'attlas[audit]' brings it"
        ) from error


def itemsize(dtype: str) -> int:
    """Bytes of one number of a plain encoding."""
    return np.dtype(PLAIN[dtype]).itemsize


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes of a plain encoding as float32, or as int64 for whole numbers."""
    numbers = raw.view(PLAIN[dtype])
    if dtype == "BF16":  # the upper half of a float32
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # a float64 beyond the range of float32 becomes infinite
        return numbers.astype(np.float32 if dtype.startswith("F") else np.int64, copy=False)


def check_header(path: Path, size: int) -> None:
    """An `InputError` if what describes the tensors of a file has more bytes than is allowed."""
    if size > MAX_HEADER_BYTES:
        raise InputError(
            f"{path} has a header of {size} bytes: there are at most {MAX_HEADER_BYTES}"
        )


def read_small_file(path: Path, what: str, most: int) -> bytes:
    """The bytes of a file; `what` it holds has at most `most` of them."""
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(f"{path} has {size} bytes: a {what} has at most {most}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def read_bytes(path: Path, offset: int, count: int) -> np.ndarray:
    """`count` bytes of a file from `offset` on, as uint8; a shorter file is an `InputError`."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            raw = np.fromfile(file, np.uint8, count)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if raw.size < count:
        raise InputError(
            f"{path} ends at byte {offset + raw.size}: a tensor should reach byte {offset + count}"
        )
    return raw


def file_tensor(
    path: Path,
    offset: int,
    shape: tuple[int, ...],
    dtype: str,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """A tensor of a plain encoding in a file; numbers are read when rows are asked for.

    Of a tensor with strides that are not row-major, all that lies between the rows asked for is
    read.

    Arguments:
        offset: the byte at which it begins.
        dtype: its encoding, a name in `PLAIN`.
        strides: numbers between neighbours along each axis; row-major unless given.
    """
    dense = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    steps = (dense if strides is None else strides) or (1,)

    def fetch(start: int, stop: int) -> np.ndarray:
        rows = (stop - start, *shape[1:])
        span = 1 + sum((n - 1) * step for n, step in zip(rows, steps, strict=True))
        first, count = offset + start * steps[0] * itemsize(dtype), span if all(rows) else 0
        numbers = decode(read_bytes(path, first, count * itemsize(dtype)), dtype)
        in_bytes = tuple(numbers.itemsize * step for step in steps)
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(numbers, rows, in_bytes))

    return Tensor(shape, dtype, fetch)


def memory_tensor(array: np.ndarray) -> Tensor:
    """A tensor that is in memory already."""
    kind = np.int64 if array.dtype.kind in "iub" else np.float32
    rows = array if array.ndim else array[None]
    return Tensor(array.shape, str(array.dtype), lambda start, stop: rows[start:stop].astype(kind))


def torch_tensor(value: Any) -> Tensor:
    """A tensor of torch in memory, whatever its type and device; rows are copied when they are
    asked for, and torch is not imported."""
    shape = tuple(int(size) for size in value.shape)
    dtype = str(value.dtype).removeprefix("torch.")
    real = "float" in dtype

    def fetch(start: int, stop: int) -> np.ndarray:
        part = (value[start:stop] if shape else value.reshape(1)).detach().cpu()
        numbers = np.asarray(part.float() if real else part)
        return numbers.astype(np.float32 if real else np.int64)

    return Tensor(shape, dtype, fetch)


def constant_tensor(shape: tuple[int, ...], value: float) -> Tensor:
    """A tensor with one value everywhere."""
    return Tensor(
        shape, "F32", lambda start, stop: np.full((stop - start, *shape[1:]), value, np.float32)
    )


def normal_tensor(shape: tuple[int, ...], scale: float, seed: int, name: str) -> Tensor:
    """Independent normal numbers, drawn in blocks of rows with a key each: a row is the same
    whichever others are asked for.

    Arguments:
        scale: the standard deviation.
        seed, name: of the keys.
    """

    def fetch(start: int, stop: int) -> np.ndarray:
        parts = [np.zeros((0, *shape[1:]), np.float32)]
        for index in range(start // RANDOM_BLOCK_ROWS, (stop - 1) // RANDOM_BLOCK_ROWS + 1):
            first = index * RANDOM_BLOCK_ROWS
            block = _normal_block(shape, scale, seed, name, index)
            parts.append(block[max(start - first, 0) : stop - first])
        return np.concatenate(parts)

    return Tensor(shape, "F32", fetch)


@lru_cache(maxsize=1)  # the embedding asks for the rows of a text one run after the other
def _normal_block(
    shape: tuple[int, ...], scale: float, seed: int, name: str, index: int
) -> np.ndarray:
    rows = min(RANDOM_BLOCK_ROWS, shape[0] - index * RANDOM_BLOCK_ROWS)
    bits = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
    return scale * bits.standard_normal((rows, *shape[1:]), np.float32)
