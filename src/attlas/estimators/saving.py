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
from attlas.errors import InputError

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
_DEFLATE_RATIO = 1032
"""Bytes that one byte can become, at most, when what was compressed is unpacked."""
_MODULE = re.compile(r"attlas(\.[a-z]\w*)+")
"""Modules whose records may be in a file; those that begin with __ run when they are imported."""


class Saved:
    """An estimator that can be saved: its parameters, and its fitted attributes, whose names end
    in an underscore."""

    def save(self, path: str | Path) -> Path:
        """Write parameters and fitted attributes to one file; `load_estimator` reads it."""
        arrays: dict[str, np.ndarray] = {}
        names = [name for name in vars(self) if name.endswith("_") or name.startswith("_fitted")]
        parameters = self.get_params(deep=False)  # type: ignore[attr-defined]
        content = {
            "format": FORMAT,
            "attlas": attlas.__version__,
            "class": type(self).__name__,
            "parameters": _encode(parameters, "parameters", arrays),
            "fitted": _encode({name: getattr(self, name) for name in names}, "fitted", arrays),
        }
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer, allow_pickle=False, content=np.array(json.dumps(content)), **arrays
        )
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
        content = json.loads(str(arrays.pop("content")))
        kind, version = content["class"], content["format"]
        if version != FORMAT:
            raise InputError(
                f"{str(path)!r} has the format {version}: this version reads format {FORMAT}"
            )
        if kind not in estimators.__all__ or not isinstance(getattr(estimators, kind), type):
            raise InputError(f"{str(path)!r} holds a {kind!r}: there is no such estimator")
        estimator = getattr(estimators, kind)(**_decode(content["parameters"], arrays))
        for name, value in _decode(content["fitted"], arrays).items():
            setattr(estimator, name, value)
    except (FileNotFoundError, InputError):
        raise
    except DAMAGE as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{str(path)!r} is not a saved estimator: {reason}") from error
    return estimator


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, none of which may be larger than what the file holds of it."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > _DEFLATE_RATIO * path.stat().st_size:
            raise ValueError("it claims to hold more than can be packed into its size")
        for entry in entries:
            data = io.BytesIO(archive.read(entry))
            if np.lib.format.read_magic(data) != (1, 0):
                raise ValueError(f"{entry.filename} is an array of another version")
            shape, _, dtype = np.lib.format.read_array_header_1_0(data)
            if math.prod(shape) * dtype.itemsize != entry.file_size - data.tell():
                raise ValueError(f"{entry.filename} has another size than its shape says")
            data.seek(0)
            found = np.lib.format.read_array(data, allow_pickle=False)
            arrays[entry.filename.removesuffix(".npy")] = found
    return arrays


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
        array = arrays[value["array"]]
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
