"""`.gguf`: metadata, a list of tensors, and their numbers, mostly in blocks of few bits.

The `gguf` package knows the encodings and undoes them. Its reader is not used: it takes seconds for a vocabulary, and a
header that lies about the length of an array keeps it busy for ever.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attlas.audit.tensors import PLAIN, Tensor, library, read_bytes, stored
from attlas.errors import InputError

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Types of metadata by their number, as `struct` calls them."""
STRING, ARRAY = 8, 9
MOST_AXES = 4


class Damaged(ValueError):
    """The file contradicts itself."""


class Cursor:
    """A place in a file; what would reach beyond the end is refused before it is read."""

    def __init__(self, data: mmap.mmap):
        self.data = data
        self.at = 0

    def take(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        start = self.skip(struct.calcsize(form))
        return struct.unpack_from(form, self.data, start)

    def skip(self, count: int) -> int:
        start = self.at
        if count > len(self.data) - start:
            raise Damaged(
                f"what begins at byte {start} should be {count} bytes long, beyond the end of the file"
            )
        self.at += count
        return start

    def text(self) -> str:
        (count,) = self.take("Q")
        start = self.skip(count)
        return self.data[start : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind in SCALARS:
            return self.take(SCALARS[kind])[0]
        if kind != ARRAY:
            raise Damaged(f"a value is of the type {kind}, which does not exist")
        kind, count = self.take("IQ")
        if kind == STRING:
            if 8 * count > len(self.data) - self.at:
                raise Damaged(f"an array should hold {count} strings, more than fit in the file")
            return [self.text() for _ in range(count)]
        if kind not in SCALARS:
            raise Damaged(f"an array holds values of the type {kind}, which is not known")
        form = np.dtype("<" + SCALARS[kind])
        start = self.skip(count * form.itemsize)
        return np.frombuffer(self.data[start : self.at], form).tolist()


def gguf_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a .gguf file.

    Keys of the model's own lose the name of its architecture, which becomes `model_type`.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            metadata, tensors = _read(path, Cursor(data))
    except (Damaged, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no whole .gguf file: {error}") from error
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as a .gguf file: {error}") from error
    kind = metadata.get("general.architecture")
    own = {key.removeprefix(f"{kind}."): value for key, value in metadata.items()}
    return {**own, "model_type": kind}, tensors


def _read(path: Path, cursor: Cursor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    magic, version, tensor_count, key_count = cursor.take("4sIQQ")
    if magic != b"GGUF":
        raise Damaged("it does not begin with GGUF")
    if version not in (2, 3):
        raise Damaged(
            f"it is of version {version} or of the other byte order; versions 2 and 3 are known"
        )
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        if key in metadata:
            raise Damaged(f"the key {key[:80]!r} appears twice")
        (kind,) = cursor.take("I")
        metadata[key] = cursor.value(kind)
    infos = [_info(cursor) for _ in range(_bounded(tensor_count, cursor))]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise Damaged(f"the alignment is {alignment!r}, not a power of two")
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    end = 0
    for name, shape, kind, offset in sorted(infos, key=lambda info: info[-1]):
        if name in tensors:
            raise Damaged(f"the tensor {name[:80]!r} appears twice")
        if offset < end or offset % alignment:
            raise Damaged(f"the tensor {name[:80]!r} begins inside another or off the alignment")
        tensors[name], size = _tensor(path, name, shape, kind, start + offset)
        end = offset + size
        if start + end > len(cursor.data):
            raise Damaged(
                f"the tensor {name[:80]!r} should reach byte {start + end}, beyond the end of the file"
            )
    return metadata, tensors


def _bounded(count: int, cursor: Cursor) -> int:
    if 24 * count > len(cursor.data):
        raise Damaged(f"it should hold {count} tensors, more than fit in the file")
    return count


def _info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.text()
    (axes,) = cursor.take("I")
    if axes > MOST_AXES:
        raise Damaged(f"the tensor {name[:80]!r} has {axes} axes: there are at most {MOST_AXES}")
    shape = cursor.take(f"{axes}Q")[::-1]  # the file counts axes from the fastest
    kind, offset = cursor.take("IQ")
    return name, shape, kind, offset


def _tensor(
    path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> tuple[Tensor, int]:
    """A tensor at `offset` of the file, and how many bytes it takes."""
    gguf = library("gguf")

    try:
        encoding = gguf.GGMLQuantizationType(kind)
        block, size = gguf.GGML_QUANT_SIZES[encoding]
    except (ValueError, KeyError) as error:
        raise Damaged(
            f"the tensor {name[:80]!r} is of the type {kind}, which is not known"
        ) from error
    count = math.prod(shape)
    if not shape or count == 0 or shape[-1] % block:
        raise Damaged(
            f"the tensor {name[:80]!r} has the shape {shape}: rows of {encoding.name} are multiples of {block} long"
        )
    length = count // block * size
    if encoding.name in PLAIN:
        return stored(path, offset, shape, encoding.name), length
    try:
        gguf.dequantize(np.zeros((1, size), np.uint8), encoding)
    except NotImplementedError as error:
        raise Damaged(
            f"the tensor {name[:80]!r} is of the type {encoding.name}, which is not known"
        ) from error
    row = shape[-1] // block * size
    width = length // shape[0]

    def fetch(start: int, stop: int) -> np.ndarray:
        # The entries of a vector share blocks: it is one row, read as a whole.
        first, end = (start * width, stop * width) if len(shape) > 1 else (0, row)
        blocks = read_bytes(path, offset + first, end - first).reshape(-1, row)
        with np.errstate(all="ignore"):
            numbers = gguf.dequantize(blocks, encoding).astype(np.float32, copy=False)
        return numbers.reshape(-1, *shape[1:]) if len(shape) > 1 else numbers[0, start:stop]

    return Tensor(shape, encoding.name, fetch), length


def words_of(metadata: Mapping[str, Any], key: str) -> list[str]:
    """A list of strings in the metadata; empty where there is none."""
    found = metadata.get(key)
    return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else []
