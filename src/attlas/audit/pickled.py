"""`pytorch_model.bin`: a pickle that describes tensors, and their numbers beside it. Nothing of it is ever called.

A pickle is a program. Its opcodes are told apart by the standard library and interpreted here, by a machine that knows
dictionaries, tuples, numbers, strings and the handful of names that rebuild tensors, and stops at anything else. The
standard unpickler would do for honest files; for others it can be made to allocate or to run without end before it calls
anything (a memo index of 2^31, nested tuples as keys).
"""

import io
import math
import mmap
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from attlas.audit.tensors import Tensor, itemsize, read_bytes, stored, strided
from attlas.errors import InputError

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
KNOWN = {*STORAGES, DICTIONARY, *TENSORS, PARAMETER}
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MOST_OPCODES = 3_000_000


class Refused(ValueError):
    """The pickle is damaged, or would do something else than describe tensors."""


@dataclass(frozen=True)
class Name:
    """A global of the pickle, never looked up."""

    full: str


@dataclass(frozen=True)
class Storage:
    """A run of numbers that lies elsewhere in the file, under `key`."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class View:
    """A tensor as a pickle describes it: from `offset` of a storage on, with these strides."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


MARK = object()
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: MARK,
}
LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def interpret(file: Any, storages: dict[str, Storage]) -> Any:
    """What the pickle at the file's position describes; the position is then behind it, and `storages` are those it names."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop(count: int) -> list[Any]:
        if len(stack) < count:
            raise Refused("it takes more from its stack than there is")
        taken = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return taken

    def pop_to_mark() -> list[Any]:
        place = next((i for i in range(len(stack) - 1, -1, -1) if stack[i] is MARK), None)
        if place is None:
            raise Refused("a mark is missing")
        taken = stack[place + 1 :]
        del stack[place:]
        return taken

    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if count > MOST_OPCODES:
            raise Refused(f"it has more than {MOST_OPCODES} opcodes")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case name if name in LITERALS:
                stack.append(argument)
            case name if name in EMPTY:
                stack.append(EMPTY[name]())
            case name if name in LENGTHS:
                stack.append(tuple(pop(LENGTHS[name])))
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if argument is None else argument] = _top(stack)
            case "BINGET" | "LONG_BINGET":
                if argument not in memo:
                    raise Refused(f"it recalls {argument}, which it never noted")
                stack.append(memo[argument])
            case "SETITEM" | "SETITEMS":
                items = pop(2) if opcode.name == "SETITEM" else pop_to_mark()
                _set_items(_top(stack), items)
            case "APPEND" | "APPENDS":
                items = pop(1) if opcode.name == "APPEND" else pop_to_mark()
                if not isinstance(_top(stack), list):
                    raise Refused("it appends to what is no list")
                stack[-1].extend(items)
            case "GLOBAL":
                stack.append(_name(str(argument)))
            case "STACK_GLOBAL":
                parts = pop(2)
                # Anything else is not written out: lists that share lists can be longer than any memory.
                if not all(isinstance(part, str) for part in parts):
                    raise Refused("it asks for a name that is no text")
                stack.append(_name(" ".join(parts)))
            case "REDUCE":
                stack.append(_rebuilt(*pop(2)))
            case (
                "BUILD"
            ):  # the attributes of an ordered dictionary, such as versions of modules: not weights
                pop(1)
                if not isinstance(_top(stack), dict):
                    raise Refused("it sets the state of what is no dictionary")
            case "BINPERSID":
                storage = _storage(*pop(1))
                if storages.setdefault(storage.key, storage) != storage:
                    raise Refused(f"it describes the storage {storage.key[:40]!r} in two ways")
                stack.append(storage)
            case "STOP":
                return pop(1)[0]
            case other:
                raise Refused(f"its opcode {other} is not one that describes tensors")
    raise Refused("it has no end")


def _top(stack: list[Any]) -> Any:
    if not stack:
        raise Refused("it takes more from its stack than there is")
    return stack[-1]


def _name(full: str) -> Name:
    if full not in KNOWN:
        raise Refused(
            f"it asks for {full[:80].replace(' ', '.')}, which is not needed to rebuild tensors and was not looked up"
        )
    return Name(full)


def _set_items(target: Any, items: list[Any]) -> None:
    # Keys are strings or numbers: the hash of a nested tuple can take for ever.
    if (
        not isinstance(target, dict)
        or len(items) % 2
        or not all(isinstance(key, str | int) for key in items[::2])
    ):
        raise Refused("it fills what is no dictionary of names")
    target.update(zip(items[::2], items[1::2], strict=True))


def _rebuilt(function: Any, arguments: Any) -> Any:
    full = function.full if isinstance(function, Name) else None
    if full == DICTIONARY and arguments == ():
        return {}
    if (
        isinstance(arguments, tuple)
        and full == PARAMETER
        and arguments
        and isinstance(arguments[0], View)
    ):
        return arguments[0]
    if isinstance(arguments, tuple) and full in TENSORS and len(arguments) >= 4:
        return _view(*arguments[:4])
    raise Refused(f"it calls {full or 'what is no function'} in a way that rebuilds no tensor")


def _counts(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(n) is int and 0 <= n < 2**62 for n in values)


def _view(storage: Any, offset: Any, shape: Any, strides: Any) -> View:
    if (
        not isinstance(storage, Storage)
        or not _counts((offset,))
        or not _counts(shape)
        or not _counts(strides)
    ):
        raise Refused("it describes a tensor without a storage, an offset, a shape and strides")
    if len(shape) != len(strides) or len(shape) > 32:
        raise Refused(f"it describes a tensor with {len(shape)} axes and {len(strides)} strides")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    size = math.prod(shape)
    if size and (last >= storage.count or size > storage.count):
        raise Refused(
            f"it describes a tensor of shape {shape} in a storage of {storage.count} numbers"
        )
    return View(storage, offset, shape, strides)


def _storage(identity: Any) -> Storage:
    match identity:
        case ("storage", Name(full), str(key), str(), int(count)) if (
            full in STORAGES and 0 <= count < 2**62
        ):
            return Storage(key, STORAGES[full], count)
        case ("storage", Name(full), str(key), str(), int(count), None) if (
            full in STORAGES and 0 <= count < 2**62
        ):
            return Storage(key, STORAGES[full], count)
    raise Refused("it describes a storage without a type, a key and a size")


def torch_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save` wrote, in the zip format or the older one."""
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            described, places = _zipped(path, file) if zipped else _legacy(file)
        views = _views(described)
    except Refused as error:
        raise InputError(f"{path} is a pickle that is not read: {error}") from error
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, struct.error) as error:
        raise InputError(f"{path} is no whole file of torch.save: {error}") from error
    return {name: _tensor(path, view, places[view.storage.key]) for name, view in views.items()}


def _views(described: Any) -> Mapping[str, View]:
    """The tensors of a state dictionary, or of the one inside what a training script saved."""
    for key in (None, "state_dict", "model_state_dict", "model"):
        found = described.get(key) if key and isinstance(described, dict) else described
        if isinstance(found, dict):
            views = {
                name: value
                for name, value in found.items()
                if isinstance(value, View) and isinstance(name, str)
            }
            if views:
                return views
    raise Refused("it holds no tensors by name")


def _tensor(path: Path, view: View, start: int) -> Tensor:
    dtype = view.storage.dtype
    offset = start + view.offset * itemsize(dtype)
    dense = tuple(math.prod(view.shape[i + 1 :]) for i in range(len(view.shape)))
    if math.prod(view.shape) == 0 or all(
        n == 1 or a == b for n, a, b in zip(view.shape, view.strides, dense, strict=True)
    ):
        return stored(path, offset, view.shape, dtype)
    return strided(path, offset, view.shape, view.strides, dtype)


def _zipped(path: Path, file: BinaryIO) -> tuple[Any, dict[str, int]]:
    """What the pickle in the archive describes, and where each storage begins."""
    size = path.stat().st_size
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise Refused(f"the archive holds {len(pickles)} pickles named data.pkl, not one")
    root = pickles[0].removesuffix("data.pkl")

    def begin(entry: zipfile.ZipInfo) -> int:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise Refused(
                f"{entry.filename} is compressed or encrypted, which torch.save does not do"
            )
        signature, _, name, extra = struct.unpack(
            "<4s22sHH", read_bytes(path, entry.header_offset, 30).tobytes()
        )
        start = entry.header_offset + 30 + name + extra
        if signature != b"PK\x03\x04" or start + entry.file_size > size:
            raise Refused(f"{entry.filename} does not lie where the archive says")
        return start

    def content(entry: zipfile.ZipInfo) -> bytes:
        return read_bytes(path, begin(entry), entry.file_size).tobytes()

    order = entries.get(f"{root}byteorder")
    if order is not None and (order.file_size != 6 or content(order) != b"little"):
        raise Refused("its numbers are not little-endian")
    storages: dict[str, Storage] = {}
    described = interpret(io.BytesIO(content(entries[pickles[0]])), storages)
    places = {}
    for storage in storages.values():
        entry = entries.get(f"{root}data/{storage.key}")
        if entry is None or entry.file_size != storage.count * itemsize(storage.dtype):
            raise Refused(
                f"the storage {storage.key[:40]!r} of {storage.count} numbers is missing or has another size"
            )
        places[storage.key] = begin(entry)
    return described, places


def _legacy(file: BinaryIO) -> tuple[Any, dict[str, int]]:
    """The older format: pickles one after the other, then each storage behind its size."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        storages: dict[str, Storage] = {}
        if interpret(data, storages) != MAGIC or interpret(data, storages) != PROTOCOL:
            raise Refused("it does not begin as torch.save begins")
        system = interpret(data, storages)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise Refused("its numbers are not little-endian")
        described, keys = interpret(data, storages), interpret(data, storages)
        if (
            not isinstance(keys, list)
            or not all(isinstance(key, str) for key in keys)
            or set(keys) != set(storages)
        ):
            raise Refused("its list of storages is not the one of its tensors")
        return described, _places(data, keys, storages)


def _places(data: mmap.mmap, keys: list[str], storages: Mapping[str, Storage]) -> dict[str, int]:
    places = {}
    at = data.tell()
    for key in keys:
        storage = storages[key]
        (count,) = struct.unpack_from("<q", data, at) if at + 8 <= len(data) else (-1,)
        places[key], at = at + 8, at + 8 + storage.count * itemsize(storage.dtype)
        if count != storage.count or at > len(data):
            raise Refused(
                f"the storage {key[:40]!r} of {storage.count} numbers is truncated or has another size"
            )
    return places
