"""Finished batches on disk: written whole or not at all, found again by what they hold.

A block is a netCDF file with the evidence of some cells, and a small JSON index beside it that
lists the names of the cells and the checksum of the file. The index is written last, under a
temporary name, and renamed: what has an index is finished. Processes may share a store without
locks, because no two writes share a data file. Many small blocks are packed into a large one, which
is finished before they are removed.
"""

import hashlib
import json
import math
import os
import re
import secrets
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from attlas.claims import Claim, Setting
from attlas.lab.blocks import encode_block, join_blocks, join_key, read_block
from attlas.lab.records import Records, checked_id, retried, write_json, write_whole

SMALL_BLOCK_CELLS = 64
"""Blocks with fewer cells are packed."""

PACKED_BLOCK_CELLS, PACKED_BLOCK_BYTES = 4096, 2**25
"""What a packed block holds at most, in cells and in bytes. Packing needs four times the memory."""

ABANDONED_AFTER_NS = 86_400 * 10**9
"""Nanoseconds after which a file without an index was left behind: indices follow in seconds."""

MAX_LISTINGS = 5
"""How often a folder is listed again, where another process moves blocks at the same time."""

_HEX_NAME = re.compile(r"[0-9a-f]{32,64}(\.[0-9a-f]{16}\.nc)?")
"""Every name in an index: a data file beside it, a checksum, or a cell. None leads elsewhere."""


def _sha(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
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
        """The name of a cell in the store."""
        return self.named(setting.canonical())

    def named(self, canonical: str) -> str:
        """The name of the cell with the canonical setting."""
        return _sha(self.claim, str(self.seed), self.precision, self.code, canonical)


class Cell(NamedTuple):
    """One setting of a claim, with all that its evidence depends on."""

    address: Address
    setting: Setting

    @property
    def name(self) -> str:
        return self.address.cell(self.setting)


class Place(NamedTuple):
    """Where a cell's evidence is: an index file and the cell's number in its block; the seconds it
    took, and when it was saved, by the clock of the disk."""

    block: Path
    number: int
    seconds: float
    time: int


class Cost(NamedTuple):
    """Seconds that a block took for all of its cells, and those of them spent compiling."""

    cells: int
    seconds: float
    compiling: float


class _Index(NamedTuple):
    """What an index file says: a data file beside it, its checksum, its cells and their times."""

    data: str
    sha256: str
    cells: list[str]
    times: list[int]
    facts: dict[str, Any]
    cost: Cost
    join_key: str | None
    bytes: int


def _parse_index(text: str, modified: int) -> _Index | None:
    """The index that `text` holds, or None if it is damaged.

    Its cells were saved when the file was `modified`, unless it lists times, each with the number
    of cells that were saved then.
    """
    try:
        found = json.loads(text)
        data, sha256, cells = found["data"], found["sha256"], found["cells"]
        facts, saved = found.get("facts", {}), found.get("times", [[modified, len(cells)]])
        seconds = (float(facts.get(name, 0.0)) for name in ("seconds", "compile_seconds"))
        cost = Cost(len(cells), *seconds)
        sound = (
            all(map(_HEX_NAME.fullmatch, (data, sha256, *cells)))
            and data.endswith(".nc")
            and all(map(math.isfinite, cost))
            and sum(count for _, count in saved) == len(cells)
        )
        size = int(found.get("bytes", 0))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not sound:
        return None
    times = [time for time, count in saved for _ in range(count)]
    return _Index(data, sha256, cells, times, facts, cost, found.get("form"), size)


class Store(Records):
    """A folder of blocks: `folder`, or `ATTLAS_STORE`, or the user's cache.

    `notes` are sentences about what was found damaged.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        self.notes: list[str] = []
        self._seen: dict[str, dict[Path, tuple[tuple[int, int], _Index]]] = {}
        with self.write_errors_named():
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()

    def find(self, claim: str, names: Collection[str]) -> dict[str, Place]:
        """The places of those of `names`, cells of a claim, that are stored; the newest of each."""
        wanted = names if isinstance(names, set | frozenset | dict) else set(names)
        found: dict[str, Place] = {}
        for path, index in self._indices(claim):
            seconds = index.cost.seconds / max(1, len(index.cells))
            for number, (name, time) in enumerate(zip(index.cells, index.times, strict=True)):
                if name in wanted and not (name in found and found[name].time > time):
                    found[name] = Place(path, number, seconds, time)
        return found

    def read(
        self, claim: str, names: Collection[str]
    ) -> Iterator[tuple[xr.Dataset, dict[str, int]]]:
        """The evidence of those of `names` that are stored, each name once.

        Comes as the evidence of a block with the numbers in it of the wanted cells, by name. A
        damaged block is named in `notes`, set aside and left out.
        """
        left, seen = set(names), set[str]()
        for listing in range(MAX_LISTINGS):
            blocks: dict[Path, dict[str, int]] = {}
            for name, place in self.find(claim, left).items():
                blocks.setdefault(place.block, {})[name] = place.number
                seen.add(name)
            for path, numbers in blocks.items():
                block = self._read_block(path)
                if block is not None:
                    left -= set(numbers)
                    yield block[1], numbers
            # A listing of the folder may miss what is moved meanwhile.
            if not left or (listing > 0 and not left & seen):
                return

    def load(self, claim: str, names: Collection[str]) -> dict[str, xr.Dataset]:
        """The evidence of those of `names` that are stored; its axis `cell` has length one."""
        return {
            name: evidence.isel({"cell": [number]})
            for evidence, numbers in self.read(claim, names)
            for name, number in numbers.items()
        }

    def save(self, cells: Sequence[Cell], evidence: xr.Dataset, facts: Mapping[str, Any]) -> None:
        """Write the evidence of some finished cells of one claim as a block."""
        address = cells[0].address
        about = {
            "claim": address.claim,
            "precision": address.precision,
            "code": address.code,
            "seed": json.dumps([cell.address.seed for cell in cells]),
            "cells": json.dumps([dict(cell.setting) for cell in cells]),
        }
        names = [cell.name for cell in cells]
        self._save(address.claim, names, evidence.assign_attrs(about), facts)

    def _save(
        self,
        claim: str,
        names: Sequence[str],
        evidence: xr.Dataset,
        facts: Mapping[str, Any],
        times: Sequence[int] = (),
    ) -> None:
        """Write a block. Its cells were saved at `times`, if that was not now."""
        folder = self._claim_folder(claim)
        path = folder / f"{_sha(*names, *map(str, times))[:32]}.json"
        data = folder / f"{path.stem}.{secrets.token_hex(8)}.nc"
        with self.write_errors_named():
            folder.mkdir(parents=True, exist_ok=True)
            content = encode_block(evidence.assign_attrs(facts=json.dumps(dict(facts))))
            write_whole(data, content)
            kind = (evidence.attrs["precision"], evidence.attrs["code"], repr(join_key(evidence)))
            index = {
                "claim": claim,
                "data": data.name,
                "sha256": hashlib.sha256(content).hexdigest(),
                "cells": list(names),
                "facts": dict(facts),
                "form": _sha(*kind),
                "bytes": evidence.nbytes,
            }
            if times:
                index["times"] = [[time, len(list(same))] for time, same in groupby(times)]
            older = self._read_index(path)
            write_json(path, index)
            if older is not None:
                (folder / older.data).unlink(missing_ok=True)

    def costs(self, claim: str) -> list[Cost]:
        """What the blocks of a claim took, the oldest first."""
        return [index.cost for _, index in self._indices(claim)]

    def pack(self, claim: str) -> int:
        """Copy small blocks that can be joined into large ones and remove them; their number.

        What killed writers have left behind is removed too.
        """
        groups: dict[str, list[list[Path]]] = {}
        room: dict[str, tuple[int, int]] = {}
        for path, index in self._indices(claim):
            cells, key = len(index.cells), index.join_key
            if key is None or cells >= SMALL_BLOCK_CELLS:
                continue
            left = room.get(key, (0, 0))
            if cells > left[0] or index.bytes > left[1]:
                groups.setdefault(key, []).append([])
                left = (PACKED_BLOCK_CELLS, PACKED_BLOCK_BYTES)
            groups[key][-1].append(path)
            room[key] = (left[0] - cells, left[1] - index.bytes)
        some = (paths for group in groups.values() for paths in group if len(paths) > 1)
        with self.write_errors_named():
            packed = sum(len(paths) for paths in some if self._pack(claim, paths))
            self._remove_abandoned(claim)
        return packed

    def _pack(self, claim: str, paths: list[Path]) -> bool:
        """Each cell keeps the time it was saved at, so that evidence which was newer remains so."""
        blocks = []
        for path in paths:
            block = self._read_block(path)
            if block is None:  # another process packs them
                return False
            blocks.append((path, *block))
        names = [name for _, index, _ in blocks for name in index.cells]
        times = [time for _, index, _ in blocks for time in index.times]
        evidence = join_blocks([evidence for *_, evidence in blocks])
        for name in ("seed", "cells"):
            lists = (json.loads(block.attrs[name]) for *_, block in blocks)
            evidence.attrs[name] = json.dumps([item for items in lists for item in items])
        _, seconds, compiling = map(sum, zip(*(index.cost for _, index, _ in blocks), strict=True))
        costs = {"seconds": seconds, "compile_seconds": compiling, "blocks": len(blocks)}
        self._save(claim, names, evidence, {**blocks[-1][1].facts, **costs}, times)
        _flush_folder(self._claim_folder(claim))
        for path, index, _ in blocks:
            if self._read_index(path) == index:  # else it was measured again meanwhile
                path.unlink(missing_ok=True)
                (path.parent / index.data).unlink(missing_ok=True)
        return True

    def _claim_folder(self, claim: str) -> Path:
        return self.folder / "blocks" / checked_id(claim)

    def _indices(self, claim: str) -> list[tuple[Path, _Index]]:
        """All indices of a claim, the oldest first. Those that are unchanged are not read again."""
        seen = self._seen.get(claim, {})
        for _ in range(MAX_LISTINGS):
            files = self._files(claim, ".json")
            listed = [(path, (stat.st_mtime_ns, stat.st_ino)) for path, stat in files]
            found = {}
            for path, changed in sorted(listed, key=lambda item: (item[1][0], item[0].name)):
                known = seen.get(path)
                if known is None or known[0] != changed:
                    index = self._read_index(path)
                    if index is None:
                        continue
                    known = (changed, index)
                found[path] = known
            self._seen[claim] = seen = found
            if len(found) == len(listed):
                break
        return [(path, index) for path, (_, index) in found.items()]

    @retried
    def _files(self, claim: str, *endings: str) -> list[tuple[Path, os.stat_result]]:
        folder, found = self._claim_folder(claim), []
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(endings):
                    with suppress(FileNotFoundError):
                        found.append((folder / entry.name, entry.stat()))
        return found

    def _remove_abandoned(self, claim: str) -> None:
        """Remove unfinished files and data without an index that are old beside the newest data."""
        files = [(path, stat.st_mtime_ns) for path, stat in self._files(claim, ".nc", ".part")]
        in_use = {index.data for _, index in self._indices(claim)}
        newest = max((time for _, time in files), default=0)
        for path, time in files:
            if path.name not in in_use and newest - time > ABANDONED_AFTER_NS:
                path.unlink(missing_ok=True)

    @retried
    def _read_index(self, path: Path) -> _Index | None:
        try:
            with path.open() as file:
                modified, text = os.fstat(file.fileno()).st_mtime_ns, file.read()
        except FileNotFoundError:  # it never was, or another process has moved it
            return None
        except UnicodeDecodeError:
            modified, text = 0, ""
        index = _parse_index(text, modified)
        if index is None:
            self._set_aside(path, "its index cannot be read")
        return index

    @retried
    def _read_block(self, path: Path) -> tuple[_Index, xr.Dataset] | None:
        """A block's index and evidence."""
        # Twice, because another process may replace the block between the two reads.
        for _ in range(2):
            index = self._read_index(path)
            if index is None:
                return None
            data = path.parent / index.data
            try:
                content = data.read_bytes()
            except FileNotFoundError:
                continue
            if hashlib.sha256(content).hexdigest() != index.sha256:
                self._set_aside(path, "its contents do not match their checksum", data)
                return None
            return index, read_block(content)
        if path.exists():
            self._set_aside(path, "its data file is missing")
        return None

    def _set_aside(self, index: Path, why: str, *others: Path) -> None:
        for path in (index, *others):
            with suppress(FileNotFoundError):  # another process was quicker
                os.replace(path, path.with_name(path.name + ".damaged"))
        fate = "It was set aside as *.damaged and is computed again."
        self.notes.append(f"The block {index} is damaged: {why}. {fate}")


def _flush_folder(folder: Path) -> None:
    """Write the names of a folder's files to the disk, before others are removed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
