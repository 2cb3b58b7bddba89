"""Tensors that lie in files nobody vouches for: known by their headers, read when asked for.

tensor.shape, tensor.dtype                    # from a header that was checked against the file
tensor.load()                                 # float32 (whole numbers as int64); nothing is kept
tensor.rows([3, 17])                          # some rows of the first axis, such as the tokens of a text
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
"""Encodings of one number after the other, and how NumPy reads their bits."""


@dataclass(frozen=True)
class Tensor:
    """An array in a file. `fetch(start, stop)` reads rows of the first axis; a number has one row."""

    shape: tuple[int, ...]
    dtype: str
    fetch: Callable[[int, int], np.ndarray] = field(repr=False)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def load(self) -> np.ndarray:
        return self.fetch(0, self.shape[0] if self.shape else 1).reshape(self.shape)

    def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows `indices` of the first axis, each read once; a run of neighbours is read together."""
        distinct, place = np.unique(np.asarray(indices), return_inverse=True)
        runs = np.split(distinct, np.flatnonzero(np.diff(distinct) > 1) + 1)
        return np.concatenate([self.fetch(int(run[0]), int(run[-1]) + 1) for run in runs])[place]


def library(name: str) -> Any:
    """A library of the extra `audit`, imported when a file needs it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this needs the package {name}: pip install 'attlas[audit]' brings it"
        ) from error


def itemsize(dtype: str) -> int:
    return np.dtype(PLAIN[dtype]).itemsize


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes as numbers: float32, or int64 for whole numbers."""
    numbers = raw.view(PLAIN[dtype])
    if dtype == "BF16":  # the upper half of a float32
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # a float64 beyond float32 is infinite
        return numbers.astype(np.float32 if dtype.startswith("F") else np.int64, copy=False)


def read_bytes(path: Path, offset: int, count: int) -> np.ndarray:
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


def stored(path: Path, offset: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor that lies row by row at `offset` of a file."""
    width = math.prod(shape[1:]) * itemsize(dtype)

    def fetch(start: int, stop: int) -> np.ndarray:
        raw = read_bytes(path, offset + start * width, (stop - start) * width)
        return decode(raw, dtype).reshape(stop - start, *shape[1:])

    return Tensor(shape, dtype, fetch)


def strided(
    path: Path, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str
) -> Tensor:
    """A tensor whose numbers lie `strides` apart; it is read as a whole."""
    size = itemsize(dtype)
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))

    def fetch(start: int, stop: int) -> np.ndarray:
        numbers = decode(read_bytes(path, offset, span * size), dtype)
        steps = tuple(numbers.itemsize * stride for stride in strides)
        return np.lib.stride_tricks.as_strided(numbers, shape, steps)[start:stop].copy()

    return Tensor(shape, dtype, fetch)


def held(array: np.ndarray) -> Tensor:
    """A tensor that is in memory already."""
    kind = np.int64 if array.dtype.kind in "iub" else np.float32
    rows = array if array.ndim else array[None]
    return Tensor(array.shape, str(array.dtype), lambda start, stop: rows[start:stop].astype(kind))
