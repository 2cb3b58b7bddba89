"""Finished batches on disk: written whole or not at all, found again by what they hold.

A block is a netCDF file with the evidence of some cells, and a small JSON index of the same name
that lists the names of the cells and the checksum of the file. The index is written last, under a
temporary name, and renamed: what has an index is finished, and never changes. Processes may share a
store without locks, because no two writes share a name. Many small blocks are packed into a large
one, which is finished before they are removed.

Which of two blocks with a cell is newer is not left to clocks: each has a number above those of all
blocks that its writer saw, and cells that are packed keep theirs.
"""

import hashlib
import json
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
from attlas.errors import InputError
from attlas.lab.blocks import encode_block, join_blocks, join_key, read_block
from attlas.lab.files import (
    Damaged,
    make_folder,
    parse_json,
    read_json,
    read_whole,
    retried,
    write_json,
    write_whole,
)
from attlas.lab.records import LAYOUT, PLAIN, Records, checked_id

SMALL_BLOCK_CELLS = 64
"""Blocks with fewer cells are packed."""

PACKED_BLOCK_CELLS, PACKED_BLOCK_BYTES = 4096, 2**25
"""What a packed block holds at most, in cells and in bytes. Packing needs four times the memory."""

ABANDONED_AFTER_NS = 86_400 * 10**9
"""Nanoseconds after which a file without an index was left behind: indices follow in seconds."""

MAX_LISTINGS = 5
"""How often a folder is listed again, where another process moves blocks at the same time."""

_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{16})\.[0-9a-f]{16}\.(?:json|nc)")
"""Files of blocks: a digest of the names of the cells, the number of the block, a random part."""
_UNFINISHED = re.compile(r"\.under-way-\w+\.part")
"""Files that are being written. What has another name is neither read nor removed."""
_SHA = re.compile("[0-9a-f]{64}")
_INDEX = {
    "claim": str,
    "sha256": _SHA,
    "cells": [_SHA],
    "numbers": [(int, int)],
    "facts": {"seconds?": int | float, "compile_seconds?": int | float, str: PLAIN},
    "form": _SHA,
    "bytes": int,
}
"""The form of an index. `numbers` has the numbers of the cells, each with how many have it."""
_LISTS = {"seed": [int], "cells": [{str: object}]}
"""Attributes of evidence: the seeds and the settings of its cells."""


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
    """Where a cell's evidence is: an index file and the cell's place in its block; the seconds it
    took, and its number, which is larger in newer blocks."""

    block: Path
    place: int
    seconds: float
    number: int


class Cost(NamedTuple):
    """Seconds that a block took for all of its cells, and those of them spent compiling."""

    cells: int
    seconds: float
    compiling: float


class _Index(NamedTuple):
    """What an index file says: its data file, the checksum of that, its cells and their numbers."""

    data: Path
    sha256: str
    cells: list[str]
    numbers: list[int]
    facts: dict[str, Any]
    cost: Cost
    join_key: str
    bytes: int


def _parse_index(path: Path) -> _Index:
    """The index in a file."""
    found = read_json(path, _INDEX)
    cells, runs, facts = found["cells"], found["numbers"], found["facts"]
    counts = [count for _, count in runs]
    if not cells or min(counts, default=0) < 1 or sum(counts) != len(cells):
        raise Damaged("it lists other numbers than cells")
    return _Index(
        path.with_suffix(".nc"),
        found["sha256"],
        cells,
        [number for number, count in runs for _ in range(count)],
        facts,
        Cost(len(cells), *(facts.get(name, 0.0) for name in ("seconds", "compile_seconds"))),
        found["form"],
        found["bytes"],
    )


class Store(Records):
    """A folder of blocks: `folder`, or `ATTLAS_STORE`, or the user's cache."""

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        self._seen: dict[str, dict[Path, _Index]] = {}
        with self.write_errors_named():
            make_folder(self.folder)
            tempfile.TemporaryFile(dir=self.folder).close()

    def find(self, claim: str, names: Collection[str]) -> dict[str, Place]:
        """The places of those of `names`, cells of a claim, that are stored; the newest of each."""
        wanted = names if isinstance(names, set | frozenset | dict) else set(names)
        found: dict[str, Place] = {}
        for path, index in self._indices(claim):
            seconds = index.cost.seconds / max(1, len(index.cells))
            for place, (name, number) in enumerate(zip(index.cells, index.numbers, strict=True)):
                if name in wanted and not (name in found and found[name].number > number):
                    found[name] = Place(path, place, seconds, number)
        return found

    def read(
        self, claim: str, names: Collection[str]
    ) -> Iterator[tuple[xr.Dataset, dict[str, int]]]:
        """The evidence of those of `names` that are stored, each name once.

        Comes as the evidence of a block with the places in it of the wanted cells, by name. A
        damaged block is named in `notes`, set aside and left out.
        """
        left, seen = set(names), set[str]()
        for listing in range(MAX_LISTINGS):
            blocks: dict[Path, dict[str, int]] = {}
            for name, place in self.find(claim, left).items():
                blocks.setdefault(place.block, {})[name] = place.place
                seen.add(name)
            for path, places in blocks.items():
                block = self._read_block(claim, path)
                if block is not None:
                    left -= set(places)
                    yield block[1], places
            # A listing of the folder may miss what is moved meanwhile.
            if not left or (listing > 2 and not left & seen):
                return

    def load(self, claim: str, names: Collection[str]) -> dict[str, xr.Dataset]:
        """The evidence of those of `names` that are stored; its axis `cell` has length one."""
        return {
            name: evidence.isel({"cell": [place]})
            for evidence, places in self.read(claim, names)
            for name, place in places.items()
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
        numbers: Sequence[int] = (),
    ) -> None:
        """Write a block. Its cells have their own `numbers` if it is packed from others; else it
        takes the place of blocks with the same cells."""
        folder, same = self._claim_folder(claim), _sha(*names)[:32]
        with self.write_errors_named():
            listed = self._files(claim, ".json")
            newest = max((int(match[2], 16) for match in listed.values()), default=0)
            number = min(newest + 1, 16**16 - 1)
            path = folder / f"{same}.{number:016x}.{secrets.token_hex(8)}.json"
            make_folder(folder)
            content = encode_block(evidence.assign_attrs(facts=json.dumps(dict(facts))))
            write_whole(path.with_suffix(".nc"), content)
            kind = (evidence.attrs["precision"], evidence.attrs["code"], repr(join_key(evidence)))
            runs = groupby(numbers or [number] * len(names))
            index = {
                "claim": claim,
                "sha256": hashlib.sha256(content).hexdigest(),
                "cells": list(names),
                "numbers": [[number, len(list(run))] for number, run in runs],
                "facts": dict(facts),
                "form": _sha(*kind),
                "bytes": evidence.nbytes,
            }
            write_json(path, index)
            if not numbers:
                self._remove([path for path, match in listed.items() if match[1] == same])

    def _remove(self, paths: Sequence[Path]) -> None:
        """Remove blocks whose cells are in another."""
        for path in paths:
            path.unlink(missing_ok=True)
            path.with_suffix(".nc").unlink(missing_ok=True)

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
        """Each cell keeps its number, so that evidence which was newer remains so."""
        blocks = []
        for path in paths:
            block = self._read_block(claim, path)
            if block is None:  # another process packs them, or it was damaged
                return False
            blocks.append(block)
        if len({join_key(evidence) for _, evidence in blocks}) > 1:  # another than its index says
            return False
        names = [name for index, _ in blocks for name in index.cells]
        numbers = [number for index, _ in blocks for number in index.numbers]
        evidence = join_blocks([evidence for _, evidence in blocks])
        for name in _LISTS:
            lists = (json.loads(block.attrs[name]) for _, block in blocks)
            evidence.attrs[name] = json.dumps([item for items in lists for item in items])
        _, seconds, compiling = map(sum, zip(*(index.cost for index, _ in blocks), strict=True))
        costs = {"seconds": seconds, "compile_seconds": compiling, "blocks": len(blocks)}
        self._save(claim, names, evidence, {**blocks[-1][0].facts, **costs}, numbers)
        self._remove(paths)
        return True

    def _claim_folder(self, claim: str) -> Path:
        return self.inside("blocks", LAYOUT, *checked_id(claim).split("/"))

    def _indices(self, claim: str) -> list[tuple[Path, _Index]]:
        """All indices of a claim, the oldest first. Those that were read are not read again."""
        seen = self._seen.get(claim, {})
        for _ in range(MAX_LISTINGS):
            listed, found = self._files(claim, ".json"), {}
            for path in listed:
                index = seen.get(path) or self._read_index(path)
                if index is not None:
                    found[path] = index
            self._seen[claim] = seen = found
            if len(found) == len(listed):
                break
        return sorted(found.items(), key=lambda item: (max(item[1].numbers), item[0].name))

    @retried
    def _files(self, claim: str, *endings: str) -> dict[Path, re.Match[str]]:
        """The files of a claim's blocks with one of these endings."""
        folder, found = self._claim_folder(claim), {}
        try:
            listed = os.listdir(folder)
        except FileNotFoundError:
            return {}
        except NotADirectoryError as error:
            raise InputError(
                f"{str(folder)!r} is no folder of the store, or lies in a file: move that away"
            ) from error
        for file in listed:
            match = _NAME.fullmatch(file) or _UNFINISHED.fullmatch(file)
            if match is not None and file.endswith(endings):
                found[folder / file] = match
        return found

    def _remove_abandoned(self, claim: str) -> None:
        """Remove unfinished files and data without an index that are old by the disk's clock."""
        files = self._files(claim, ".nc", ".part")
        # Of indices that cannot be read just now too: their data may be sound.
        in_use = {path.with_suffix(".nc") for path in self._files(claim, ".json")}
        with tempfile.TemporaryFile(dir=self.folder) as file:
            now = os.fstat(file.fileno()).st_mtime_ns
        for path in files.keys() - in_use:
            with suppress(FileNotFoundError):
                if now - path.lstat().st_mtime_ns > ABANDONED_AFTER_NS:
                    path.unlink()

    def _read_index(self, path: Path) -> _Index | None:
        try:
            return _parse_index(path)
        except Damaged as error:
            self.set_aside("block", f"its index cannot be read: {error}", path)
        except FileNotFoundError:  # it never was, or another process has moved it
            pass
        except OSError as error:
            self._note_unread(path, error)
        return None

    def _note_unread(self, path: Path, error: OSError) -> None:
        reason = error.strerror or error
        self.note(f"The block {path} cannot be read now: {reason}. It is left and not used.")

    def _read_block(self, claim: str, path: Path) -> tuple[_Index, xr.Dataset] | None:
        """A block's index and evidence."""
        index = self._read_index(path)
        if index is None:
            return None
        try:
            content = read_whole(index.data)
            if hashlib.sha256(content).hexdigest() != index.sha256:
                raise Damaged("its contents do not match their checksum")
            evidence = read_block(content)
            lists = [
                parse_json(evidence.attrs.get(name, ""), form) for name, form in _LISTS.items()
            ]
            sizes = {evidence.sizes.get("cell"), len(index.cells), *map(len, lists)}
            if len(sizes) > 1 or evidence.attrs.get("claim") != claim:
                raise Damaged("its evidence is not of the cells that its index lists")
            return index, evidence
        except Damaged as error:
            self.set_aside("block", str(error), path, index.data)
        except FileNotFoundError:
            if path.exists():
                self.set_aside("block", "its data file is missing", path)
        except OSError as error:
            self._note_unread(path, error)
        return None
