"""The evidence of some cells: how it is joined, and the file it is kept in.

A file is netCDF-4, which xarray opens too. It is written and read through h5py, in milliseconds
where xarray takes tens. The attribute `LAYOUT` repeats the dimensions of each variable and whether
it is a coordinate, because looking that up in HDF5 takes longer than reading the numbers.
"""

import io
import json
import math
import secrets
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import xarray as xr

LAYOUT = "attlas_layout"
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable.%10d"
_TEXT = h5py.string_dtype()
_DIRECT_KINDS = "fiubUO"
_HDF5_VERSIONS = ("v108", "latest")  # since 1.8 attributes may be larger than 64 kB
_UNCOMPRESSED_SIZE = 4096


def encode_block(data: xr.Dataset) -> bytes:
    """The contents of a netCDF-4 file: numbers, truth values and texts; xarray writes the rest."""
    if any(v.dtype.kind not in _DIRECT_KINDS for v in data.variables.values()):
        return bytes(data.to_netcdf(engine="h5netcdf"))
    # HDF5 knows files in memory by name too: two threads that write at once need two names.
    options = {"driver": "core", "backing_store": False, "libver": _HDF5_VERSIONS}
    with h5py.File(secrets.token_hex(8), "w", **options) as file:
        _fill(file, data)
        file.flush()
        return file.id.get_file_image()


def _fill(file: h5py.File, data: xr.Dataset) -> None:
    scales: dict[Any, h5py.Dataset] = {}
    for name, size in data.sizes.items():
        if name not in data.variables:
            scales[name] = file.create_dataset(str(name), (size,), ">f4")
            scales[name].make_scale(_NO_VARIABLE % size)
    for name in sorted(data.variables, key=lambda name: name not in data.sizes):
        variable = data.variables[name]
        written = file.create_dataset(str(name), **_stored(variable.values))
        written.attrs.update(variable.attrs | ({"dtype": "bool"} if variable.dtype == bool else {}))
        if name in data.sizes:
            written.make_scale(str(name))
            scales[name] = written
            continue
        for place, dim in enumerate(variable.dims):
            written.dims[place].attach_scale(scales[dim])
    aside = [str(name) for name in data.coords if name not in data.sizes]
    file.attrs.update(data.attrs | ({"coordinates": " ".join(aside)} if aside else {}))
    layout = {
        str(name): (v.dims, list(v.attrs), v.dtype.kind) for name, v in data.variables.items()
    }
    file.attrs[LAYOUT] = json.dumps(
        {"variables": layout, "attrs": list(data.attrs), "coords": list(data.coords)}
    )


def _stored(values: np.ndarray) -> dict[str, Any]:
    if values.dtype.kind in "UO":
        return {"data": values.astype(object), "dtype": _TEXT}
    small = values.size <= _UNCOMPRESSED_SIZE
    kept = values.view(np.int8) if values.dtype == bool else values
    return {"data": kept} if small else {"data": kept, "compression": "gzip", "compression_opts": 1}


def read_block(content: bytes, max_bytes: float = math.inf) -> xr.Dataset:
    """The data of a file that was written here or by xarray, from its contents; a `ValueError` if
    a variable needs more than `max_bytes` of memory."""
    with h5py.File(io.BytesIO(content), "r") as file:
        if LAYOUT in file.attrs:
            return _read(file, max_bytes)
        for stored in file.values() if max_bytes < math.inf else ():
            _check_size(stored, max_bytes)
    with xr.open_dataset(io.BytesIO(content), engine="h5netcdf") as data:
        return data.load()


def _check_size(stored: h5py.Dataset, max_bytes: float) -> None:
    if stored.nbytes > max_bytes:
        words = f"{stored.name} has {stored.nbytes:,} bytes, and {max_bytes:,} are allowed"
        raise ValueError(words)


def _read(file: h5py.File, max_bytes: float) -> xr.Dataset:
    layout = json.loads(file.attrs[LAYOUT])
    variables = {}
    for name, (dims, attrs, kind) in layout["variables"].items():
        stored = file[name]
        _check_size(stored, max_bytes)
        values = np.asarray(stored.asstr()[()] if kind in "UO" else stored[()])
        if kind == "b":
            values = values.view(bool)
        elif kind == "U":
            values = values.astype(str)
        variables[name] = (tuple(dims), values, {name: stored.attrs[name] for name in attrs})
    coords = {name: variables.pop(name) for name in layout["coords"]}
    return xr.Dataset(
        variables, coords, {name: _plain(file.attrs[name]) for name in layout["attrs"]}
    )


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
