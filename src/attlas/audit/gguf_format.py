"""`.gguf`: metadata, a list of tensors, and their numbers, mostly quantised in blocks.

The package `gguf` knows the encodings and dequantises them. Its `GGUFReader` is not used: it takes
seconds for a vocabulary, and a header with a false array length keeps it busy without end.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from attlas.audit.tensors import (
    MAX_HEADER_BYTES,
    PLAIN,
    Tensor,
    file_tensor,
    import_extra,
    read_bytes,
)
from attlas.errors import InputError
from attlas.escaping import printable

SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Types of metadata by their number, as `struct` calls them."""
STRING, ARRAY = 8, 9
MAX_AXES = 4
SMALLEST_TENSOR_INFO = 24
"""Bytes of the description of a tensor without a name and axes."""


class DamagedFile(ValueError):
    """The file contradicts itself."""


class Cursor:
    """A position in a file; reading past the end raises before anything is allocated."""

    def __init__(self, data: mmap.mmap):
        self.data = data
        self.at = 0

    def take(self, form: str) -> tuple[Any, ...]:
        """Unpack a `struct` format, little-endian."""
        start = self.skip(struct.calcsize(f"<{form}"))
        return struct.unpack_from(f"<{form}", self.data, start)

    def skip(self, count: int) -> int:
        """Move on by `count` bytes; returns where they begin."""
        start = self.at
        if start + count > MAX_HEADER_BYTES and count <= len(self.data) - start:
            raise DamagedFile(f"its header has more than {MAX_HEADER_BYTES} bytes")
        if count > len(self.data) - start:
            raise DamagedFile(
                f"what begins at byte {start} should be {count} bytes long, beyond the end of the"
                " file"
            )
        self.at += count
        return start

    def text(self) -> str:
        (count,) = self.take("Q")
        start = self.skip(count)
        return self.data[start : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        """A value of metadata of the type `kind`."""
        if kind == STRING:
            return self.text()
        if kind in SCALARS:
            return self.take(SCALARS[kind])[0]
        if kind != ARRAY:
            raise DamagedFile(f"a value is of the type {kind}, which does not exist")
        kind, count = self.take("IQ")
        if kind == STRING:
            if 8 * count > len(self.data) - self.at:
                raise DamagedFile(
                    f"an array should hold {count} strings, more than fit in the file"
                )
            return [self.text() for _ in range(count)]
        if kind not in SCALARS:
            raise DamagedFile(f"an array holds values of the type {kind}, which is not known")
        form = np.dtype("<" + SCALARS[kind])
        start = self.skip(count * form.itemsize)
        return np.frombuffer(self.data[start : self.at], form).tolist()


def gguf_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a .gguf file, by name.

    Keys such as "llama.block_count" lose the name of the architecture, which becomes "model_type".
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            metadata, tensors = _read_file(path, Cursor(data))
    except (DamagedFile, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no whole .gguf file: {printable(error, 300)}") from error
    except InputError:
        raise
    except (ValueError, OSError) as error:
        said = printable(error, 300)
        raise InputError(f"{path} cannot be read as a .gguf file: {said}") from error
    kind = metadata.get("general.architecture")
    own = {key.removeprefix(f"{kind}."): value for key, value in metadata.items()}
    return {**own, "model_type": kind}, tensors


def _read_file(path: Path, cursor: Cursor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    magic, version, tensor_count, key_count = cursor.take("4sIQQ")
    if magic != b"GGUF":
        raise DamagedFile("it does not begin with GGUF")
    if version not in (2, 3):
        raise DamagedFile(
            f"it is of version {version} or of the other byte order; versions 2 and 3 are known"
        )
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        if key in metadata:
            raise DamagedFile(f"the key {key[:80]!r} appears twice")
        (kind,) = cursor.take("I")
        metadata[key] = cursor.value(kind)
    if SMALLEST_TENSOR_INFO * tensor_count > len(cursor.data):
        raise DamagedFile(f"it should hold {tensor_count} tensors, more than fit in the file")
    infos = [_read_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise DamagedFile(f"the alignment is {alignment!r}, not a power of two")
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    end = 0
    for name, shape, kind, offset in sorted(infos, key=lambda info: info[-1]):
        where = f"the tensor {name[:80]!r}"
        if name in tensors:
            raise DamagedFile(f"{where} appears twice")
        if offset < end or offset % alignment:
            raise DamagedFile(f"{where} begins inside another or off the alignment")
        tensors[name], size = _make_tensor(path, where, shape, kind, start + offset)
        end = offset + size
        if start + end > len(cursor.data):
            raise DamagedFile(
                f"{where} should reach byte {start + end}, beyond the end of the file"
            )
    return metadata, tensors


def _read_info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset of a tensor."""
    name = cursor.text()
    (axes,) = cursor.take("I")
    if axes > MAX_AXES:
        raise DamagedFile(f"the tensor {name[:80]!r} has {axes} axes: there are at most {MAX_AXES}")
    shape = cursor.take(f"{axes}Q")[::-1]  # the file lists the fastest axis first
    kind, offset = cursor.take("IQ")
    return name, shape, kind, offset


def _make_tensor(
    path: Path, where: str, shape: tuple[int, ...], kind: int, offset: int
) -> tuple[Tensor, int]:
    """A tensor at `offset` of the file, and how many bytes it takes."""
    gguf = import_extra("gguf")
    try:
        encoding = gguf.GGMLQuantizationType(kind)
        block, size = gguf.GGML_QUANT_SIZES[encoding]
    except (ValueError, KeyError) as error:
        raise DamagedFile(f"{where} is of the type {kind}, which is not known") from error
    count = math.prod(shape)
    if not shape or count == 0 or shape[-1] % block:
        raise DamagedFile(
            f"{where} has the shape {shape}: rows of {encoding.name} are multiples of {block} long"
        )
    length = count // block * size
    if encoding.name in PLAIN:
        return file_tensor(path, offset, shape, encoding.name), length
    try:
        gguf.dequantize(np.zeros((1, size), np.uint8), encoding)
    except NotImplementedError as error:
        raise DamagedFile(f"{where} is of the type {encoding.name}, which is not known") from error
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
