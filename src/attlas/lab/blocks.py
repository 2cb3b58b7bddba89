"""The evidence of some cells: how it is joined, and the file it is kept in.

A file is netCDF-4, which xarray opens too. It is written and read through h5py, in milliseconds
where xarray takes tens. The attribute `LAYOUT` repeats the dimensions of each variable and whether
it is a coordinate, because looking that up in HDF5 takes longer than reading the numbers.

A file is not trusted: what it claims is held against its size before anything is read. Texts have a
fixed length: those of any length are in a heap, in which a damaged file lets HDF5 loop forever.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np
import xarray as xr

from attlas.lab.files import DAMAGE, Damaged, parse_json

LAYOUT = "attlas_layout"
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable.%10d"
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_LAYOUT_FORM = {"variables": {str: ([str], [str], str)}, "attrs": [str], "coords": [str]}
_HDF5_VERSIONS = ("v108", "latest")  # since 1.8 attributes may be larger than 64 kB
_UNCOMPRESSED_SIZE = 4096
_DEFLATE_RATIO = 1032
"""Bytes that one byte can become, at most, when what was compressed is unpacked."""
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


def encode_block(data: xr.Dataset) -> bytes:
    """The contents of a netCDF-4 file: numbers, truth values, times and texts."""
    content = io.BytesIO()
    with h5py.File(content, "w", libver=_HDF5_VERSIONS) as file:
        _fill(file, data)
    return content.getvalue()


def _fill(file: h5py.File, data: xr.Dataset) -> None:
    scales: dict[Any, h5py.Dataset] = {}
    for name, size in data.sizes.items():
        if name not in data.variables:
            scales[name] = file.create_dataset(str(name), (size,), ">f4")
            scales[name].make_scale(_NO_VARIABLE % size)
    for name in sorted(data.variables, key=lambda name: name not in data.sizes):
        variable = data.variables[name]
        written = file.create_dataset(str(name), **_stored(variable.values))
        _put_attributes(written, variable.attrs | _decoding(variable.dtype))
        if name in data.sizes:
            written.make_scale(str(name))
            scales[name] = written
            continue
        for place, dim in enumerate(variable.dims):
            written.dims[place].attach_scale(scales[dim])
    aside = [str(name) for name in data.coords if name not in data.sizes]
    _put_attributes(file, data.attrs | ({"coordinates": " ".join(aside)} if aside else {}))
    layout = {
        str(name): (v.dims, list(v.attrs), v.dtype.str if v.dtype.kind in "mM" else v.dtype.kind)
        for name, v in data.variables.items()
    }
    listed = {"variables": layout, "attrs": list(data.attrs), "coords": list(data.coords)}
    _put_attributes(file, {LAYOUT: json.dumps(listed)})


def _put_attributes(of: h5py.HLObject, values: Mapping[Any, Any]) -> None:
    for name, value in values.items():
        text = isinstance(value, str)
        of.attrs[name] = _fixed(np.array(value)) if text else value


def _fixed(texts: np.ndarray) -> np.ndarray:
    """Texts as UTF-8, all of the length of the longest."""
    encoded = np.char.encode(texts.astype(str), "utf-8")
    return encoded.astype(h5py.string_dtype("utf-8", max(1, encoded.dtype.itemsize)))


def _stored(values: np.ndarray) -> dict[str, Any]:
    if values.dtype.kind in "UO":
        values = _fixed(values)
    small = values.size <= _UNCOMPRESSED_SIZE
    kept = values.view({"b": "i1", "m": "i8", "M": "i8"}.get(values.dtype.kind, values.dtype))
    return {"data": kept} if small else {"data": kept, "compression": "gzip", "compression_opts": 1}


def _decoding(dtype: np.dtype) -> dict[str, str]:
    """Attributes from which xarray knows what whole numbers stand for."""
    if dtype.kind == "b":
        return {"dtype": "bool"}
    if dtype.kind in "UO":
        return {"_Encoding": "utf-8"}
    if dtype.kind not in "mM":
        return {}
    unit = _UNITS[np.datetime_data(dtype)[0]]
    return {"units": unit if dtype.kind == "m" else f"{unit} since 1970-01-01"}


def read_block(content: bytes, max_bytes: float = math.inf) -> xr.Dataset:
    """The data of a file that was written here, from its contents.

    `Damaged` if it is none, or needs more than `max_bytes` of memory, or more than can have been
    packed into a file of its size.
    """
    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            return _Reader(file, len(content), max_bytes).read()
    except Damaged:
        raise
    except (OSError, MemoryError, *DAMAGE) as error:
        words = " ".join(str(error).split())
        raise Damaged(f"HDF5 cannot read it ({type(error).__name__}: {words})") from error


class _Reader:
    """An open file of `size` bytes, and how many bytes of memory are left for what it holds."""

    def __init__(self, file: h5py.File, size: int, max_bytes: float) -> None:
        self.file, self.size = file, size
        self.room = min(max_bytes, _DEFLATE_RATIO * size)

    def read(self) -> xr.Dataset:
        layout = parse_json(self._attribute(self.file, LAYOUT), _LAYOUT_FORM)
        variables, sizes = {}, dict[str, int]()
        opened = {name: self._dataset(name) for name in layout["variables"]}
        for name, stored in opened.items():  # all of them, before any is read
            dims = layout["variables"][name][0]
            alike = len(dims) == stored.ndim
            if not alike or any(
                sizes.setdefault(*at) != at[1] for at in zip(dims, stored.shape, strict=True)
            ):
                raise Damaged(f"{name} has another shape than its axes")
            self._take(name, stored.nbytes)
        for name, (dims, attrs, kind) in layout["variables"].items():
            stored = opened[name]
            values = _read_texts(stored, kind) if kind in "UO" else _read_numbers(stored, kind)
            kept = {name: self._attribute(stored, name) for name in attrs}
            variables[name] = (tuple(dims), values, kept)
        coords = {name: variables.pop(name) for name in layout["coords"]}
        kept = {name: _plain(self._attribute(self.file, name)) for name in layout["attrs"]}
        return xr.Dataset(variables, coords, kept)

    def _take(self, name: str, count: float) -> None:
        if count > self.room:
            raise Damaged(f"{name} has {count:,} bytes, and {self.room:,} are allowed")
        self.room -= count

    def _dataset(self, name: str) -> h5py.Dataset:
        """A variable whose numbers are in this file and nowhere else."""
        if not isinstance(self.file.get(name, getlink=True), h5py.HardLink):
            raise Damaged(f"{name} leads out of the file")
        stored = self.file[name]
        plan = stored.id.get_create_plist()
        filters = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}
        if stored.is_virtual or plan.get_external_count() or not filters <= _FILTERS:
            raise Damaged(f"{name} leads out of the file")
        return stored

    def _attribute(self, of: h5py.HLObject, name: str) -> Any:
        found = of.attrs.get_id(name)
        if found.dtype.kind not in "fiuSb" or found.get_storage_size() > self.size:
            raise Damaged(f"the attribute {name} is larger than the file, or of another kind")
        value = of.attrs[name]
        return value.decode() if isinstance(value, bytes) else value


def _read_numbers(stored: h5py.Dataset, kind: str) -> np.ndarray:
    if stored.dtype.kind != (kind if kind in "fiuS" else "i"):
        raise Damaged(f"{stored.name} is of the type {stored.dtype}, not {kind}")
    values = np.asarray(stored[()])
    return values if kind in "fiuS" else values.astype(bool) if kind == "b" else values.view(kind)


def _read_texts(stored: h5py.Dataset, kind: str) -> np.ndarray:
    if stored.dtype.kind != "S":
        raise Damaged(f"{stored.name} is of the type {stored.dtype}, not text of a fixed length")
    texts: np.ndarray = np.char.decode(np.asarray(stored[()]), "utf-8")
    return texts.astype(object) if kind == "O" else texts


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def join_key(evidence: xr.Dataset) -> tuple[Any, ...]:
    """A key that is equal where evidence can be joined along `cell` without loss.

    Variables then agree in name, axes, sizes and type, and in value if they lack that axis.
    """
    found = []
    for name, variable in sorted(evidence.variables.items(), key=lambda item: str(item[0])):
        sizes = tuple((dim, size) for dim, size in variable.sizes.items() if dim != "cell")
        texts = variable.dtype.kind in "OU"
        kind = "text" if texts else variable.dtype.str
        shared: Any = None
        if "cell" not in variable.dims:
            shared = tuple(variable.values.ravel().tolist()) if texts else variable.values.tobytes()
        found.append((name, variable.dims, sizes, kind, shared))
    return tuple(found)


def join_blocks(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """Evidence of one `join_key` along one axis `cell`, with the attributes of the first."""
    return xr.concat(
        parts,
        "cell",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
