"""Checkpoints: tensors that lie in files nobody vouches for, each read when it is asked for.

    checkpoint = read_checkpoint("folder")        # a folder, a file, package:NAME, a Hugging Face cache folder, or a dict of arrays
    checkpoint.config                             # config.json, or the metadata of a .gguf
    tensor = checkpoint.tensors["encoder.layer.0.attention.self.query.weight"]
    tensor.shape, tensor.dtype                    # known from headers, which were checked against the file
    tensor.load()                                 # float32 (whole numbers as int64); nothing is kept
    tensor.rows([3, 17])                          # some rows of the first axis, such as the tokens of a text

A file that is truncated, contradicts itself or would have to be executed is an `InputError`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
    """An array in a file: its shape and encoding are known, its numbers are read when asked for.

    `fetch(start, stop)` reads rows of the first axis.
    """

    shape: tuple[int, ...]
    dtype: str
    fetch: Callable[[int, int], np.ndarray] = field(repr=False)

    def load(self) -> np.ndarray:
        return self.fetch(0, self.shape[0] if self.shape else 1).reshape(self.shape)

    def rows(self, indices: Iterable[int]) -> np.ndarray:
        """Rows `indices` of the first axis, each read once; a run of neighbours is read together."""
        distinct, place = np.unique(np.asarray(indices), return_inverse=True)
        runs = np.split(distinct, np.flatnonzero(np.diff(distinct) > 1) + 1)
        return np.concatenate([self.fetch(int(run[0]), int(run[-1]) + 1) for run in runs])[place]


@dataclass(frozen=True)
class Checkpoint:
    """A model as its file describes it. `folder` is where a tokenizer may lie, `bytes` the size of the weights on disk."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    folder: Path | None = None
    bytes: int = 0


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes as numbers: float32, or int64 for whole numbers."""
    numbers = raw.view(PLAIN[dtype])
    if dtype == "BF16":  # the upper half of a float32
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32 if dtype.startswith("F") else np.int64, copy=False)


def stored(path: Path, offset: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor that lies row by row at `offset` of a file."""
    width = int(np.prod(shape[1:], dtype=np.int64)) * np.dtype(PLAIN[dtype]).itemsize

    def fetch(start: int, stop: int) -> np.ndarray:
        raw = read_bytes(path, offset + start * width, (stop - start) * width)
        return decode(raw, dtype).reshape(stop - start, *shape[1:])

    return Tensor(shape, dtype, fetch)


def read_bytes(path: Path, offset: int, count: int) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(offset)
        raw = np.fromfile(file, np.uint8, count)
    if raw.size < count:
        raise InputError(f"{path} ends at byte {offset + raw.size}: a tensor should reach byte {offset + count}")
    return raw


def read_checkpoint(source: str | Path) -> Checkpoint:
    """The checkpoint at `source`."""
    path = Path(source)
    file = path / "model.safetensors"
    return Checkpoint(
        name=path.name,
        config=json.loads((path / "config.json").read_text("utf-8")),
        tensors=safetensors_file(file),
        folder=path,
        bytes=file.stat().st_size,
    )


def safetensors_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file. The library checks the header: tensors lie end to end and fill the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names = file.offset_keys()
            slices = {name: file.get_slice(name) for name in names}
            found = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except SafetensorError as error:
        raise InputError(f"{path} is no whole .safetensors file: {error}") from error
    for name, (_, dtype) in found.items():
        if dtype not in PLAIN:
            raise InputError(f"the tensor {name} of {path} is stored as {dtype}: known are {', '.join(PLAIN)}")
    sizes = {
        name: int(np.prod(shape, dtype=np.int64)) * np.dtype(PLAIN[dtype]).itemsize
        for name, (shape, dtype) in found.items()
    }
    offset = path.stat().st_size - sum(sizes.values())
    tensors = {}
    for name, (shape, dtype) in found.items():
        tensors[name] = stored(path, offset, shape, dtype)
        offset += sizes[name]
    return tensors
