"""`pytorch_model.bin`: a pickle that describes tensors, and their numbers beside it.

A pickle is a program. Nothing of it is executed: `pickletools` separates its opcodes, and a small
interpreter evaluates those that build dictionaries, tuples, numbers, strings and tensors, and
refuses every other. A restricted `pickle.Unpickler` would not do: before it resolves any name, a
hostile file can make it allocate without bound (a memo index of 2^31) or run for ever (the hash of
nested tuples used as a key).
"""

import io
import math
import mmap
import pickletools
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from attlas.audit.tensors import MAX_HEADER_BYTES, Tensor, file_tensor, itemsize, read_bytes
from attlas.errors import InputError
from attlas.escaping import printable

STORAGES = {
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
}
DICTIONARY = "collections OrderedDict"
TENSORS = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor")
PARAMETER = "torch._utils _rebuild_parameter"
GLOBALS = {*STORAGES, DICTIONARY, *TENSORS, PARAMETER}
"""The names that a pickle may mention; none of them is imported."""
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MAX_OPCODES, MAX_AXES, MAX_COUNT = 3_000_000, 32, 2**62


class RefusedPickle(ValueError):
    """The pickle is damaged, or does something other than describe tensors."""


@dataclass(frozen=True)
class Global:
    """A name that the pickle refers to, as "module name"."""

    name: str


@dataclass(frozen=True)
class Storage:
    """A run of `count` numbers that lies elsewhere in the file, under `key`."""

    key: str
    dtype: str
    count: int

    def __str__(self) -> str:
        return f"the storage {self.key[:40]!r} of {self.count} numbers"


@dataclass(frozen=True)
class View:
    """A tensor as a pickle describes it: from `offset` of a storage on, with these strides."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


MARK = object()
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": MARK}
LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
EMPTY: dict[str, type] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Stack(list[Any]):
    """The stack of the interpreter; taking more than there is refuses the pickle."""

    @property
    def top(self) -> Any:
        if not self:
            raise RefusedPickle("it takes more from its stack than there is")
        return self[-1]

    def take(self, count: int) -> list[Any]:
        if len(self) < count:
            raise RefusedPickle("it takes more from its stack than there is")
        taken = self[len(self) - count :]
        del self[len(self) - count :]
        return taken

    def take_to_mark(self) -> list[Any]:
        place = next((i for i in range(len(self) - 1, -1, -1) if self[i] is MARK), None)
        if place is None:
            raise RefusedPickle("a mark is missing")
        taken = self[place + 1 :]
        del self[place:]
        return taken


def interpret_pickle(file: Any, storages: dict[str, Storage]) -> Any:
    """What the pickle at the position of `file` describes.

    The position is behind the pickle afterwards. The storages that it mentions are added to
    `storages`, by key.
    """
    stack, memo = Stack(), dict[int, Any]()
    for count, (opcode, argument, at) in enumerate(pickletools.genops(file)):
        if (at or 0) > MAX_HEADER_BYTES:
            raise RefusedPickle(f"it has more than {MAX_HEADER_BYTES} bytes")
        if count > MAX_OPCODES:
            raise RefusedPickle(f"it has more than {MAX_OPCODES} opcodes")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case name if name in LITERALS:
                stack.append(argument)
            case name if name in EMPTY:
                stack.append(EMPTY[name]())
            case name if name in TUPLES:
                stack.append(tuple(stack.take(TUPLES[name])))
            case "TUPLE":
                stack.append(tuple(stack.take_to_mark()))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack.top
            case "BINGET" | "LONG_BINGET":
                if argument not in memo:
                    raise RefusedPickle(f"it recalls {argument}, which it never noted")
                stack.append(memo[argument])
            case "SETITEM" | "SETITEMS":
                items = stack.take(2) if opcode.name == "SETITEM" else stack.take_to_mark()
                _set_items(stack.top, items)
            case "APPEND" | "APPENDS":
                items = stack.take(1) if opcode.name == "APPEND" else stack.take_to_mark()
                if not isinstance(stack.top, list):
                    raise RefusedPickle("it appends to what is no list")
                stack.top.extend(items)
            case "GLOBAL":
                stack.append(_check_global(str(argument)))
            case "STACK_GLOBAL":
                parts = stack.take(2)
                # Other types are not printed: lists that share lists can exceed any memory.
                if not all(isinstance(part, str) for part in parts):
                    raise RefusedPickle("it asks for a name that is no text")
                stack.append(_check_global(" ".join(parts)))
            case "REDUCE":
                stack.append(_rebuild(*stack.take(2)))
            case "BUILD":  # attributes of an ordered dictionary, such as versions of modules
                stack.take(1)
                if not isinstance(stack.top, dict):
                    raise RefusedPickle("it sets the state of what is no dictionary")
            case "BINPERSID":
                storage = _parse_storage(*stack.take(1))
                if storages.setdefault(storage.key, storage) != storage:
                    raise RefusedPickle(f"it describes {storage} in two ways")
                stack.append(storage)
            case "STOP":
                return stack.take(1)[0]
            case other:
                raise RefusedPickle(f"its opcode {other} is not one that describes tensors")
    raise RefusedPickle("it has no end")


def _check_global(name: str) -> Global:
    if name not in GLOBALS:
        raise RefusedPickle(
            f"it asks for {name[:80].replace(' ', '.')}, which is not needed to rebuild tensors"
            " and was not looked up"
        )
    return Global(name)


def _set_items(target: Any, items: list[Any]) -> None:
    keys, values = items[::2], items[1::2]
    # Keys are strings or numbers: hashing a nested tuple can take exponential time.
    named = all(isinstance(key, str | int) for key in keys)
    if not isinstance(target, dict) or len(keys) != len(values) or not named:
        raise RefusedPickle("it fills what is no dictionary of names")
    target.update(zip(keys, values, strict=True))


def _rebuild(function: Any, arguments: Any) -> Any:
    match function, arguments:
        case Global(name), () if name == DICTIONARY:
            return {}
        case Global(name), (View() as view, *_) if name == PARAMETER:
            return view
        case Global(name), (storage, offset, shape, strides, *_) if name in TENSORS:
            return _check_view(storage, offset, shape, strides)
    name = function.name if isinstance(function, Global) else "what is no function"
    raise RefusedPickle(f"it calls {name} in a way that rebuilds no tensor")


def _are_counts(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(n) is int and 0 <= n < MAX_COUNT for n in values)


def _check_view(storage: Any, offset: Any, shape: Any, strides: Any) -> View:
    if not isinstance(storage, Storage) or not all(map(_are_counts, ((offset,), shape, strides))):
        raise RefusedPickle(
            "it describes a tensor without a storage, an offset, a shape and strides"
        )
    if len(shape) != len(strides) or len(shape) > MAX_AXES:
        raise RefusedPickle(
            f"it describes a tensor with {len(shape)} axes and {len(strides)} strides"
        )
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    size = math.prod(shape)
    if size and (last >= storage.count or size > storage.count):
        raise RefusedPickle(
            f"it describes a tensor of shape {shape} in a storage of {storage.count} numbers"
        )
    return View(storage, offset, shape, strides)


def _parse_storage(identity: Any) -> Storage:
    match identity:
        case ("storage", Global(name), str(key), str(), int(count), *rest):
            if name in STORAGES and 0 <= count < MAX_COUNT and rest in ([], [None]):
                return Storage(key, STORAGES[name], count)
    raise RefusedPickle("it describes a storage without a type, a key and a size")


def torch_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save` wrote, by name; the zip format or the older one."""
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            described, starts = _read_archive(path, file) if zipped else _read_legacy(file)
        views = _find_views(described)
    except RefusedPickle as error:
        said = printable(error, 300)
        raise InputError(f"{path} is a pickle that is not read: {said}") from error
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, struct.error) as error:
        said = printable(error, 300)
        raise InputError(f"{path} is no whole file of torch.save: {said}") from error
    tensors = {}
    for name, view in views.items():
        dtype = view.storage.dtype
        offset = starts[view.storage.key] + view.offset * itemsize(dtype)
        tensors[name] = file_tensor(path, offset, view.shape, dtype, view.strides)
    return tensors


def _find_views(described: Any) -> dict[str, View]:
    """The tensors of a state dictionary, or of the one inside what a training script saved."""
    inside = described if isinstance(described, dict) else {}
    for found in (described, *map(inside.get, ("state_dict", "model_state_dict", "model"))):
        pairs = found.items() if isinstance(found, dict) else ()
        views = {k: v for k, v in pairs if isinstance(k, str) and isinstance(v, View)}
        if views:
            return views
    raise RefusedPickle("it holds no tensors by name")


def _read_archive(path: Path, file: BinaryIO) -> tuple[Any, dict[str, int]]:
    """What the pickle in the archive describes, and the byte at which each storage begins."""
    size = path.stat().st_size
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise RefusedPickle(f"the archive holds {len(pickles)} pickles named data.pkl, not one")
    if entries[pickles[0]].file_size > MAX_HEADER_BYTES:
        raise RefusedPickle(f"it has more than {MAX_HEADER_BYTES} bytes")
    root = pickles[0].removesuffix("data.pkl")

    def find_start(entry: zipfile.ZipInfo) -> int:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise RefusedPickle(
                f"{entry.filename} is compressed or encrypted, which torch.save does not do"
            )
        header = read_bytes(path, entry.header_offset, 30).tobytes()
        signature, _, name, extra = struct.unpack("<4s22sHH", header)
        start = entry.header_offset + 30 + name + extra
        if signature != b"PK\x03\x04" or start + entry.file_size > size:
            raise RefusedPickle(f"{entry.filename} does not lie where the archive says")
        return start

    def read_entry(entry: zipfile.ZipInfo) -> bytes:
        return read_bytes(path, find_start(entry), entry.file_size).tobytes()

    order = entries.get(f"{root}byteorder")
    if order is not None and (order.file_size != 6 or read_entry(order) != b"little"):
        raise RefusedPickle("its numbers are not little-endian")
    storages: dict[str, Storage] = {}
    described = interpret_pickle(io.BytesIO(read_entry(entries[pickles[0]])), storages)
    starts = {}
    for key, storage in storages.items():
        entry = entries.get(f"{root}data/{key}")
        if entry is None or entry.file_size != storage.count * itemsize(storage.dtype):
            raise RefusedPickle(f"{storage} is missing or has another size")
        starts[key] = find_start(entry)
    return described, starts


def _read_legacy(file: BinaryIO) -> tuple[Any, dict[str, int]]:
    """The same for the older format: pickles end to end, then each storage behind its size."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        storages: dict[str, Storage] = {}
        for beginning in (MAGIC, PROTOCOL):
            if interpret_pickle(data, storages) != beginning:
                raise RefusedPickle("it does not begin as torch.save begins")
        system = interpret_pickle(data, storages)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise RefusedPickle("its numbers are not little-endian")
        described, keys = interpret_pickle(data, storages), interpret_pickle(data, storages)
        named = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
        if not named or set(keys) != set(storages):
            raise RefusedPickle("its list of storages is not the one of its tensors")
        starts, at = {}, data.tell()
        for key in keys:
            storage = storages[key]
            (count,) = struct.unpack_from("<q", data, at) if at + 8 <= len(data) else (-1,)
            starts[key], at = at + 8, at + 8 + storage.count * itemsize(storage.dtype)
            if count != storage.count or at > len(data):
                raise RefusedPickle(f"{storage} is truncated or has another size")
        return described, starts
