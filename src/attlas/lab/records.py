"""Small records of a store, and its folder: what can be read without JAX."""

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs

from attlas.errors import InputError
from attlas.lab.files import Damaged, read_json, write_json

_CLAIM_ID = re.compile(r"[^./\\\0][^/\\\0]*/[^./\\\0][^/\\\0]*")
"""Ids that may name folders: two parts, neither of which leads out of the store."""

LAYOUT = "2"
"""The folder, within each kind of files, of those that are as this version writes them. Those of
earlier versions are beside it and stay as they are."""

PLAIN = str | int | float | None
VERDICT_WORD = re.compile("confirmed|refuted|undecided|outside|not run")
VERDICT = {
    "when": str,
    "scale": str,
    "seed": int,
    "setting": {str: object},
    "verdict": VERDICT_WORD,
    "reason": str,
    "strength?": str,
    "provenance?": {str: PLAIN},
    str: object,
}
"""The form of a recorded verdict, as far as it is used again."""


class Records:
    """The last verdict on each claim, and tables that benchmarks made.

    They are in `folder`, or `ATTLAS_STORE`, or the user's cache. `notes` are sentences about what
    was found damaged.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        chosen = folder or os.environ.get("ATTLAS_STORE") or platformdirs.user_cache_dir("attlas")
        self.folder = Path(chosen).expanduser()
        self.notes: list[str] = []

    def record(self, claim: str, verdict: Mapping[str, Any]) -> None:
        """Remember the last verdict on a claim."""
        with self.write_errors_named():
            write_json(self._verdict_path(claim), verdict)

    def recorded(self, claim: str) -> dict[str, Any] | None:
        """The last verdict on a claim, if there is one that can be read."""
        return self._read(self._verdict_path(claim), VERDICT, "verdict")

    def keep_table(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a table that a benchmark made, for the atlas to show."""
        with self.write_errors_named():
            write_json(self._table_path(name), content)

    def kept_table(self, name: str, form: Any) -> dict[str, Any] | None:
        """The table of that name, if there is one of that form (`attlas.lab.files.fits`)."""
        return self._read(self._table_path(name), form, "table")

    def _table_path(self, name: str) -> Path:
        return self.inside("tables", LAYOUT) / f"{name}.json"

    def _verdict_path(self, claim: str) -> Path:
        map, slug = checked_id(claim).split("/")
        return self.inside("verdicts", LAYOUT, map) / f"{slug}.json"

    def inside(self, *parts: str) -> Path:
        """A folder of the store. None below it may be a link: that could lead elsewhere."""
        path = self.folder
        for part in parts:
            path /= part
            if path.is_symlink():
                raise InputError(
                    f"{str(path)!r} is a link, which the store does not follow: move the whole "
                    f"store, and name its folder with --store or ATTLAS_STORE"
                )
        return path

    def _read(self, path: Path, form: Any, kind: str) -> dict[str, Any] | None:
        try:
            return read_json(path, form)
        except Damaged as error:
            self.set_aside(kind, str(error), path)
        except FileNotFoundError:  # it never was, or another process has moved it
            pass
        except OSError as error:
            self.note(f"The {kind} {path} cannot be read now: {error.strerror}. It is left alone.")
        return None

    def set_aside(self, kind: str, why: str, path: Path, *others: Path) -> None:
        """Rename what is damaged, so that nothing finds it again, and say so."""
        fate = "It was set aside as *.damaged and is computed again."
        for file in (*others, path):
            try:
                os.replace(file, f"{file}.{secrets.token_hex(4)}.damaged")
            except FileNotFoundError:
                if file == path:  # another process was quicker, and says it
                    return
            except OSError as error:
                fate = f"It stays there ({error.strerror}) and is not used."
        self.note(f"The {kind} {path} is damaged: {why}. {fate}")

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    @contextmanager
    def write_errors_named(self) -> Iterator[None]:
        """An `OSError` inside becomes an `InputError` that names the store."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the store {str(self.folder)!r} cannot be written: {error.strerror or error}"
            ) from error


def checked_id(claim: str) -> str:
    """A claim's id, if it may be the name of a folder."""
    if not _CLAIM_ID.fullmatch(claim):
        raise InputError(
            f"the claim id {claim!r} cannot name a folder of the store: it must be map/slug, and "
            f"neither may begin with a dot"
        )
    return claim
