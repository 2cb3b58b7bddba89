"""Saving a fitted estimator and loading it again: one .npz file of arrays and a JSON skeleton,
never a pickle."""

import dataclasses
import importlib
import io
import json
import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import attlas
from attlas.errors import InputError, available_memory

FORMAT = 1
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a file that is cut, changed or of another kind may raise."""
_MODULE = re.compile(r"attlas(\.[a-z]\w*)+")
"""Modules whose records may be in a file; those that begin with __ run when they are imported."""


_FITTED = re.compile(r"[a-z]\w*[a-z0-9]_(in_|out_)?")
"""Names of what a fit sets."""
_MAX_CONTENT, _MAX_DEPTH = 1 << 24, 40
"""Bytes of the skeleton, and brackets within each other in it, at most."""
_MAX_BYTES = 1 << 33
"""Bytes of all arrays of a file, at most."""
_SMALL, _MAX_RATIO = 1 << 27, 100
"""Bytes of arrays that a file may have however well it is packed, and, beyond, how many times its
own size they may be: `save` does not pack what packs better."""


class Saved:
    """An estimator that can be saved: its parameters, and its fitted attributes, whose names end
    in an underscore and begin without one."""

    def save(self, path: str | Path) -> Path:
        """Write parameters and fitted attributes to one file; `load_estimator` reads it."""
        arrays: dict[str, np.ndarray] = {}
        names = [name for name in vars(self) if _FITTED.fullmatch(name)]
        parameters = self.get_params(deep=False)  # type: ignore[attr-defined]
        content = {
            "format": FORMAT,
            "attlas": attlas.__version__,
            "class": type(self).__name__,
            "parameters": _encode(parameters, "parameters", arrays),
            "fitted": _encode({name: getattr(self, name) for name in names}, "fitted", arrays),
        }
        arrays["content"] = np.array(json.dumps(content))
        buffer, size = io.BytesIO(), sum(array.nbytes for array in arrays.values())
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        if size > _SMALL // 2 and size > _MAX_RATIO // 2 * buffer.tell():
            buffer = io.BytesIO()
            np.savez(buffer, allow_pickle=False, **arrays)
        path = Path(path)
        path.write_bytes(buffer.getvalue())
        return path


def load_estimator(path: str | Path) -> Any:
    """The estimator that `save` wrote. Nothing in the file is executed: it holds arrays, and the
    names of classes of this package.

    Arguments:
        path: of the file.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from attlas.estimators import ConditionalMeanRegressor, load_estimator
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = ConditionalMeanRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = model.save(pathlib.Path(folder) / "model.npz")
    ...     again = load_estimator(pathlib.Path(folder) / "model.npz")
    >>> bool(np.allclose(again.predict(X), model.predict(X)))
    True
    """
    from attlas import estimators

    try:
        arrays = _read_arrays(Path(path))
        content = _read_content(arrays.pop("content"))
        kind, version = content["class"], content["format"]
        if version != FORMAT:
            raise InputError(
                f"{str(path)!r} has the format {version}: this version reads format {FORMAT}"
            )
        made = getattr(estimators, kind) if kind in estimators.__all__ else None
        if not isinstance(made, type) or not issubclass(made, Saved):
            raise InputError(f"{str(path)!r} holds a {kind!r}: there is no such estimator")
        estimator = made(**_decode(content["parameters"], arrays))
        for name, value in _decode(content["fitted"], arrays).items():
            if not isinstance(name, str) or not _FITTED.fullmatch(name) or hasattr(made, name):
                raise ValueError(f"{name!r} is no fitted attribute")
            setattr(estimator, name, value)
    except (FileNotFoundError, InputError):
        raise
    except DAMAGE as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{str(path)!r} is not a saved estimator: {reason}") from error
    return estimator


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, none of which may be larger than what the file holds of it. All
    sizes are looked at before the first array is made."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        total = sum(entry.file_size for entry in entries)
        if total > max(_SMALL, _MAX_RATIO * path.stat().st_size):
            raise ValueError(f"its {path.stat().st_size:,} bytes would become {total:,}")
        if total > min(_MAX_BYTES, available_memory() / 2):
            raise ValueError(f"it would take {total / 1e9:.1f} GB, which is more than there is")
        odd = [entry.filename for entry in entries if not _ENTRY.fullmatch(entry.filename)]
        if odd or len({entry.filename for entry in entries}) < len(entries):
            raise ValueError(f"it has an entry {odd[0]!r}" if odd else "it has an entry twice")
        if any(entry.flag_bits & 1 or entry.compress_type not in (0, 8) for entry in entries):
            raise ValueError("an entry is encrypted or packed in another way")
        for entry in entries:
            with archive.open(entry) as head:
                _check_header(entry, head)
        for entry in entries:
            data = io.BytesIO(archive.read(entry))
            found = np.lib.format.read_array(data, allow_pickle=False)
            arrays[entry.filename.removesuffix(".npy")] = found
    return arrays


_ENTRY = re.compile(r"(content|array\d+)\.npy")


def _check_header(entry: zipfile.ZipInfo, head: Any) -> None:
    """The shape of an array must be that of the bytes that follow it."""
    if np.lib.format.read_magic(head) != (1, 0):
        raise ValueError(f"{entry.filename} is an array of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    if dtype.kind not in "biufU":
        raise ValueError(f"{entry.filename} holds {dtype}: it may hold numbers or words")
    if math.prod(shape) * dtype.itemsize != entry.file_size - head.tell():
        raise ValueError(f"{entry.filename} has another size than its shape says")


def _read_content(words: np.ndarray) -> dict[str, Any]:
    """The skeleton, which is neither long nor deep."""
    if words.ndim or words.dtype.kind != "U" or words.nbytes > _MAX_CONTENT:
        raise ValueError("its content is no short text")
    depth = most = 0
    for bracket in re.findall(r"[\[{\]}]", re.sub(r'"(\\.|[^"\\])*"', "", str(words))):
        depth += 1 if bracket in "[{" else -1
        most = max(most, depth)
    if most > _MAX_DEPTH:
        raise ValueError(f"its content has brackets {most} deep")
    content = json.loads(str(words))
    if not isinstance(content, dict):
        raise ValueError("its content is no dictionary")
    return content


def _encode(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.generic):  # first: a NumPy double is a float too
        value = np.asarray(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        words = value.dtype == object
        if words and not all(isinstance(x, str) for x in value.ravel()):
            raise InputError(
                f"{name} holds objects that are not words: they cannot be saved without a pickle"
            )
        key = f"array{len(arrays)}"
        arrays[key] = value.astype(str) if words else value
        return {"array": key, "words": words}
    if isinstance(value, dict):
        return {
            "dict": [
                [_encode(k, name, arrays), _encode(v, f"{name}.{k}", arrays)]
                for k, v in value.items()
            ]
        }
    fields = _fields(value)
    if fields is not None and type(value).__module__.startswith("attlas."):
        parts = {
            field: _encode(getattr(value, field), f"{name}.{field}", arrays) for field in fields
        }
        return {"object": f"{type(value).__module__}:{type(value).__qualname__}", "parts": parts}
    if isinstance(value, list | tuple):
        items = [_encode(x, name, arrays) for x in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise InputError(
        f"{name} = {value!r}: a {type(value).__name__} cannot be saved without a pickle"
    )


def _fields(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value._fields
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value) if field.init)
    return None


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_decode(x, arrays) for x in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays.pop(value["array"])  # each is named once
        if value["words"] and array.dtype.kind != "U":
            raise ValueError(f"{value['array']} holds no words")
        return array.astype(object) if value["words"] else array[()] if array.ndim == 0 else array
    if "dict" in value:
        return {_decode(k, arrays): _decode(v, arrays) for k, v in value["dict"]}
    if "tuple" in value:
        return tuple(_decode(x, arrays) for x in value["tuple"])
    module, _, name = value["object"].partition(":")
    kind = (
        getattr(importlib.import_module(module), name, None) if _MODULE.fullmatch(module) else None
    )
    if not isinstance(kind, type) or not (
        dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    ):
        raise InputError(
            f"the file names {value['object']!r}: only records of this package can be loaded"
        )
    return kind(**{field: _decode(part, arrays) for field, part in value["parts"].items()})
