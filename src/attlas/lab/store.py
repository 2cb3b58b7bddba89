"""Finished batches on disk: written whole or not at all, found again by what they hold.

A block is a netCDF file with the evidence of one batch of cells, and a small JSON index beside it that lists the cells
and the checksum of the file it belongs to. The index is written last, under a temporary name, and renamed: what has an
index is finished. Processes may share a store without locks, because a block's data file carries its own checksum in
its name and is never written twice with different contents.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import xarray as xr

from attlas.claims import Claim, Setting
from attlas.errors import InputError


def _parse_index(text: str) -> dict[str, Any] | None:
    """The index that `text` holds, or None where it holds something else."""
    try:
        index = json.loads(text)
    except json.JSONDecodeError:
        return None
    whole = isinstance(index, dict) and {"data", "sha256", "cells"} <= set(index) and isinstance(index["cells"], list)
    return index if whole else None


def _sha(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Address:
    """What the evidence of a claim depends on besides its cells."""

    claim: str
    seed: int
    precision: str
    code: str

    @classmethod
    def of(cls, claim: Claim, seed: int) -> "Address":
        return cls(claim.evidence or claim.id, seed, claim.precision, claim.code)

    def cell(self, setting: Setting) -> str:
        return _sha(self.claim, str(self.seed), self.precision, self.code, setting.canonical())

    def block(self, cells: Sequence[Setting]) -> str:
        return _sha(*(self.cell(cell) for cell in cells))[:32]


@dataclass(frozen=True)
class Place:
    """Where a cell's evidence lies: an index file and the number of the cell in its block."""

    index: Path
    number: int


class Store:
    """A folder of blocks, made if need be and found writable unless it is only for `reading`. `notes` collects
    sentences about what was found damaged and set aside."""

    def __init__(self, folder: str | Path | None = None, *, reading: bool = False) -> None:
        chosen = folder or os.environ.get("ATTLAS_STORE") or platformdirs.user_cache_dir("attlas")
        self.folder = Path(chosen).expanduser()
        self.notes: list[str] = []
        if reading:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise InputError(f"the store {str(self.folder)!r} cannot be written: {error.strerror or error}") from error

    def find(self, address: Address, cells: Sequence[Setting]) -> dict[Setting, Place]:
        """The places of those of `cells` that are stored."""
        wanted = {address.cell(cell): cell for cell in cells}
        found = {}
        for path in sorted(self._claim_folder(address.claim).glob("*.json")):
            index = self._read_index(path)
            for number, name in enumerate(index["cells"] if index else ()):
                if name in wanted:
                    found[wanted[name]] = Place(path, number)
        return found

    def load(self, places: Mapping[Setting, Place]) -> dict[Setting, xr.Dataset]:
        """The evidence at `places`, each with a `cell` axis of length one. A damaged block is named in `notes`, set
        aside and left out."""
        loaded: dict[Setting, xr.Dataset] = {}
        for path in {place.index for place in places.values()}:
            block = self._read_block(path)
            if block is None:
                continue
            for setting, place in places.items():
                if place.index == path:
                    loaded[setting] = block.isel({"cell": [place.number]})
        return loaded

    def save(self, address: Address, cells: Sequence[Setting], evidence: xr.Dataset, facts: Mapping[str, Any]) -> None:
        """Write one finished batch."""
        folder = self._claim_folder(address.claim)
        name = address.block(cells)
        kept = evidence.assign_attrs(
            claim=address.claim, seed=address.seed, precision=address.precision, code=address.code
        )
        kept.attrs["cells"] = json.dumps([dict(cell) for cell in cells])
        kept.attrs["facts"] = json.dumps(dict(facts))
        kept.attrs["batch"] = len(cells)
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            with _temporary(folder, ".nc") as temporary:
                kept.to_netcdf(temporary, engine="h5netcdf", encoding=_compressed(kept))
                checksum = hashlib.sha256(temporary.read_bytes()).hexdigest()
                data = folder / f"{name}.{checksum[:16]}.nc"
                _flush(temporary)
                os.replace(temporary, data)
            index = {
                "claim": address.claim,
                "data": data.name,
                "sha256": checksum,
                "cells": [address.cell(cell) for cell in cells],
                "facts": dict(facts),
            }
            path = folder / f"{name}.json"
            older = self._read_index(path)
            self._write_json(path, index)
            if older is not None and older["data"] != data.name:
                (folder / older["data"]).unlink(missing_ok=True)

    def record(self, claim: str, verdict: Mapping[str, Any]) -> None:
        """Remember the last verdict on a claim."""
        with self._told():
            self._write_json(self._verdict_path(claim), verdict)

    def recorded(self, claim: str) -> dict[str, Any] | None:
        """The last verdict on a claim, if there is one that can be read."""
        try:
            found = json.loads(self._verdict_path(claim).read_text())
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def keep_table(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a table that a benchmark made, for the atlas to show."""
        with self._told():
            self._write_json(self._table_path(name), content)

    def kept_table(self, name: str) -> dict[str, Any] | None:
        """The table of that name, if there is one that can be read."""
        try:
            found = json.loads(self._table_path(name).read_text())
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def _table_path(self, name: str) -> Path:
        return self.folder / "tables" / f"{name}.json"

    def _claim_folder(self, claim: str) -> Path:
        return self.folder / "blocks" / claim

    def _verdict_path(self, claim: str) -> Path:
        return self.folder / "verdicts" / f"{claim}.json"

    def _write_json(self, path: Path, content: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path.parent, ".tmp") as temporary:
            temporary.write_text(json.dumps(content, indent=1))
            _flush(temporary)
            os.replace(temporary, path)

    def _read_index(self, path: Path) -> dict[str, Any] | None:
        try:
            text = path.read_text()
        except FileNotFoundError:  # it never was, or another process has set it aside
            return None
        except UnicodeDecodeError:
            text = ""
        index = _parse_index(text)
        if index is None:
            self._set_aside(path, "its index cannot be read")
        return index

    def _read_block(self, path: Path) -> xr.Dataset | None:
        for _ in range(2):  # twice, because another process may replace the block between the two reads
            index = self._read_index(path)
            if index is None:
                return None
            data = path.parent / index["data"]
            try:
                content = data.read_bytes()
            except FileNotFoundError:
                continue
            if hashlib.sha256(content).hexdigest() != index["sha256"]:
                self._set_aside(path, "its contents do not match their checksum", data)
                return None
            with xr.open_dataset(io.BytesIO(content), engine="h5netcdf") as block:
                return block.load()
        self._set_aside(path, "its data file is missing")
        return None

    def _set_aside(self, index: Path, why: str, *others: Path) -> None:
        for path in (index, *others):
            with suppress(FileNotFoundError):  # another process was quicker
                os.replace(path, path.with_name(path.name + ".damaged"))
        self.notes.append(f"The block {index} is damaged: {why}. It was set aside as *.damaged and is computed again.")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"the store {str(self.folder)!r} cannot be written: {error.strerror or error}") from error


@contextmanager
def _temporary(folder: Path, suffix: str) -> Iterator[Path]:
    """A name in `folder` for a file under way; whatever is left under it is removed."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".under-way-", suffix=suffix)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _flush(path: Path) -> None:
    path.chmod(0o644)  # a temporary file is its owner's alone; a store may be shared
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _compressed(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    large = (name for name, v in data.data_vars.items() if v.size > 4096 and np.issubdtype(v.dtype, np.number))
    return {str(name): {"zlib": True, "complevel": 1} for name in large}
