"""Finished batches on disk: written whole or not at all, found again by what they hold.

A block is a netCDF file with the evidence of some cells, and a small JSON index beside it that lists the names of the
cells and the checksum of the file it belongs to. The index is written last, under a temporary name, and renamed: what has
an index is finished. Processes may share a store without locks, because no two writes share a data
file. Many small blocks are packed into a large one, which is finished before they are removed.
"""

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
import xarray as xr

from attlas.claims import Claim, Setting
from attlas.errors import InputError
from attlas.lab.blocks import encoded, form, joined, read_block

SMALL, PACKED, BYTES = 64, 4096, 2**25
"""A block with fewer cells than the first is small; a packed one holds up to the second, and up to so many bytes in memory,
of which packing needs some four times as many."""

DAY = 86_400 * 10**9
"""Nanoseconds after which a file that no index names has been left behind: whoever writes one names it in seconds."""

LOOKS = 5
"""How often blocks are looked for again, where another process moves them at the same time."""


def _parse_index(text: str) -> dict[str, Any] | None:
    """The index that `text` holds, or None where it holds something else."""
    try:
        index = json.loads(text)
    except json.JSONDecodeError:
        return None
    whole = (
        isinstance(index, dict)
        and {"data", "sha256", "cells"} <= set(index)
        and isinstance(index["cells"], list)
    )
    return index if whole else None


def _sha(*parts: str) -> "hashlib._Hash":
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest


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
        data, digest = canonical.encode(), self._digest.copy()
        digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    @cached_property
    def _digest(self) -> "hashlib._Hash":
        return _sha(self.claim, str(self.seed), self.precision, self.code)


class Cell(NamedTuple):
    """One setting of a claim, with all that its evidence depends on."""

    address: Address
    setting: Setting

    @property
    def name(self) -> str:
        return self.address.cell(self.setting)


class Place(NamedTuple):
    """Where a cell's evidence lies: an index file, the number of the cell in its block, the seconds it took, and when it
    was saved, by the clock of the disk."""

    block: Path
    number: int
    seconds: float
    time: int


class Cost(NamedTuple):
    """What a block took: seconds for all of its cells, and those of them that went into compiling."""

    cells: int
    seconds: float
    compiling: float


class Part(NamedTuple):
    """A block's evidence and which of the wanted cells it holds: the number of each in the block, by name."""

    evidence: xr.Dataset
    numbers: dict[str, int]


class Store:
    """A folder of blocks, made if need be and found writable unless it is only for `reading`. `notes` collects
    sentences about what was found damaged and set aside."""

    def __init__(self, folder: str | Path | None = None, *, reading: bool = False) -> None:
        chosen = folder or os.environ.get("ATTLAS_STORE") or platformdirs.user_cache_dir("attlas")
        self.folder = Path(chosen).expanduser()
        self.notes: list[str] = []
        self._seen: dict[str, dict[Path, tuple[tuple[int, int], dict[str, Any]]]] = {}
        if reading:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise InputError(
                f"the store {str(self.folder)!r} cannot be written: {error.strerror or error}"
            ) from error

    def find(self, claim: str, names: Collection[str]) -> dict[str, Place]:
        """The places of those of `names`, cells of a claim, that are stored; the newest, where there are several."""
        wanted = names if isinstance(names, set | frozenset | dict) else set(names)
        found: dict[str, Place] = {}
        for path, index in self._indices(claim):
            seconds = index.get("facts", {}).get("seconds", 0.0) / max(1, len(index["cells"]))
            for number, (name, time) in enumerate(zip(index["cells"], index["times"], strict=True)):
                if name in wanted and not (name in found and found[name].time > time):
                    found[name] = Place(path, number, seconds, time)
        return found

    def read(self, claim: str, names: Collection[str]) -> Iterator[Part]:
        """The evidence of those of `names` that are stored, block by block, each name once. A damaged block is named in
        `notes`, set aside and left out."""
        left, seen = set(names), set[str]()
        for look in range(LOOKS):
            blocks: dict[Path, dict[str, int]] = {}
            for name, place in self.find(claim, left).items():
                blocks.setdefault(place.block, {})[name] = place.number
                seen.add(name)
            for path, numbers in blocks.items():
                block = self._read_block(path)
                if block is not None:
                    left -= set(numbers)
                    yield Part(block[1], numbers)
            # A listing of the folder may miss what is moved meanwhile.
            if not left or (look > 0 and not left & seen):
                return

    def load(self, claim: str, names: Collection[str]) -> dict[str, xr.Dataset]:
        """The evidence of those of `names` that are stored, each with a `cell` axis of length one."""
        parts = self.read(claim, names)
        return {
            name: part.evidence.isel({"cell": [n]})
            for part in parts
            for name, n in part.numbers.items()
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
        self._save(
            address.claim, [cell.name for cell in cells], evidence.assign_attrs(about), facts
        )

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
        path = folder / f"{_sha(*names, *map(str, times)).hexdigest()[:32]}.json"
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            content = encoded(evidence.assign_attrs(facts=json.dumps(dict(facts))))
            checksum = hashlib.sha256(content).hexdigest()
            data = folder / f"{path.stem}.{secrets.token_hex(8)}.nc"
            write_whole(data, content)
            index = {
                "claim": claim,
                "data": data.name,
                "sha256": checksum,
                "cells": list(names),
                "facts": dict(facts),
                "form": _sha(
                    evidence.attrs["precision"], evidence.attrs["code"], repr(form(evidence))
                ).hexdigest(),
                "bytes": evidence.nbytes,
                **(
                    {"times": [[time, len(list(some))] for time, some in groupby(times)]}
                    if times
                    else {}
                ),
            }
            older = self._read_index(path)
            self._write_json(path, index)
            if older is not None:
                (folder / older["data"]).unlink(missing_ok=True)

    def costs(self, claim: str) -> list[Cost]:
        """What the blocks of a claim took, the oldest first."""
        return [
            Cost(len(index["cells"]), facts.get("seconds", 0.0), facts.get("compile_seconds", 0.0))
            for _, index in self._indices(claim)
            if (facts := index.get("facts", {}))
        ]

    def pack(self, claim: str) -> int:
        """Copy small blocks whose evidence is of one form into large ones, remove them, and say how many there were. What
        writers that were killed have left behind is removed too."""
        groups: dict[str, list[list[Path]]] = {}
        room: dict[str, tuple[int, int]] = {}
        for path, index in self._indices(claim):
            cells, kind = len(index["cells"]), index.get("form")
            if kind is None or cells >= SMALL:
                continue
            left = room.get(kind, (0, 0))
            if cells > left[0] or index["bytes"] > left[1]:
                groups.setdefault(kind, []).append([])
                left = (PACKED, BYTES)
            groups[kind][-1].append(path)
            room[kind] = (left[0] - cells, left[1] - index["bytes"])
        some = (paths for group in groups.values() for paths in group if len(paths) > 1)
        with self._told():
            packed = sum(len(paths) for paths in some if self._pack(claim, paths))
            self._tidy(claim)
        return packed

    def _pack(self, claim: str, paths: list[Path]) -> bool:
        """Each cell keeps the time it was saved at, so that evidence which was newer remains so."""
        blocks = []
        for path in paths:
            block = self._read_block(path)
            if block is None:  # another process packs them
                return False
            blocks.append((path, *block))
        names, times = (
            [item for _, index, _ in blocks for item in index[key]] for key in ("cells", "times")
        )
        evidence = joined([evidence for *_, evidence in blocks])
        for name in ("seed", "cells"):
            lists = (json.loads(block.attrs[name]) for *_, block in blocks)
            evidence.attrs[name] = json.dumps([item for items in lists for item in items])
        facts = [index["facts"] for _, index, _ in blocks]
        total = {
            name: sum(f.get(name, 0.0) for f in facts) for name in ("seconds", "compile_seconds")
        }
        self._save(claim, names, evidence, {**facts[-1], **total, "blocks": len(facts)}, times)
        _settle(self._claim_folder(claim))
        for path, index, _ in blocks:
            if self._read_index(path) == index:  # else it was measured again meanwhile
                path.unlink(missing_ok=True)
                (path.parent / index["data"]).unlink(missing_ok=True)
        return True

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
        known = isinstance(found, dict) and {
            "when",
            "scale",
            "seed",
            "setting",
            "verdict",
            "reason",
        } <= set(found)
        return found if known else None

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
        write_whole(path, json.dumps(content, indent=1).encode())

    def _indices(self, claim: str) -> list[tuple[Path, dict[str, Any]]]:
        """All indices of a claim, the oldest first; those that have not changed since they were read are not read again."""
        seen = self._seen.get(claim, {})
        for _ in range(LOOKS):
            listed = [
                (path, (stat.st_mtime_ns, stat.st_ino))
                for path, stat in self._files(claim, ".json")
            ]
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

    def _files(self, claim: str, *endings: str) -> list[tuple[Path, os.stat_result]]:
        folder, found = self._claim_folder(claim), []
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(endings):
                    with suppress(FileNotFoundError):
                        found.append((folder / entry.name, entry.stat()))
        return found

    def _tidy(self, claim: str) -> None:
        """Remove unfinished files and data that no index names, where they are a day older than the newest data."""
        files = [(path, stat.st_mtime_ns) for path, stat in self._files(claim, ".nc", ".part")]
        named = {index["data"] for _, index in self._indices(claim)}
        newest = max((time for _, time in files), default=0)
        for path, time in files:
            if path.name not in named and newest - time > DAY:
                path.unlink(missing_ok=True)

    def _read_index(self, path: Path) -> dict[str, Any] | None:
        """An index, with the `times` of its cells: the file's own, unless it says when how many of them were saved."""
        try:
            with path.open() as file:
                time, text = os.fstat(file.fileno()).st_mtime_ns, file.read()
        except FileNotFoundError:  # it never was, or another process has moved it
            return None
        except UnicodeDecodeError:
            text = ""
        index = _parse_index(text)
        if index is None:
            self._set_aside(path, "its index cannot be read")
            return None
        saved = index.get("times", [[time, len(index["cells"])]])
        return {**index, "times": [time for time, count in saved for _ in range(count)]}

    def _read_block(self, path: Path) -> tuple[dict[str, Any], xr.Dataset] | None:
        """A block's index and evidence."""
        for _ in range(
            2
        ):  # twice, because another process may replace the block between the two reads
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
            return index, read_block(content)
        if path.exists():
            self._set_aside(path, "its data file is missing")
        return None

    def _set_aside(self, index: Path, why: str, *others: Path) -> None:
        for path in (index, *others):
            with suppress(FileNotFoundError):  # another process was quicker
                os.replace(path, path.with_name(path.name + ".damaged"))
        self.notes.append(
            f"The block {index} is damaged: {why}. It was set aside as *.damaged and is computed again."
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the store {str(self.folder)!r} cannot be written: {error.strerror or error}"
            ) from error


@contextmanager
def under_way(folder: Path, suffix: str) -> Iterator[Path]:
    """A name in `folder` for a file under way; whatever is left under it is removed."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".under-way-", suffix=suffix)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Have the names of a folder's files on the disk, before others are removed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, which nobody takes for a finished one, flush it to the disk, and give it its name."""
    with under_way(path.parent, ".part") as file:
        file.chmod(0o644)  # a temporary file is its owner's alone; a store may be shared
        with file.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(file, path)
