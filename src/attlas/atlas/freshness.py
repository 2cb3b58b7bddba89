"""Whether the pages in a folder are those that would be written again.

They follow from the package and the guides, what is installed, the environment, the options, and
the files of the store. All of it is compared with what it was when the pages were written, and so
are the pages themselves; nothing of it is imported.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attlas
from attlas.audit.checkpoints import kept_models
from attlas.lab.files import Damaged, make_folder, parse_json, read_whole, write_whole

DERIVED = ("drawings", "compiled")
"""Folders of a store that hold nothing but what is made from the rest."""
NAMES = ("ATTLAS_", "JAX_")
"""How the names of variables of the environment begin that pages may depend on."""
_FORM = {"inputs": str, "stored": str, "pages": str}


def inputs_digest(options: Mapping[str, Any]) -> str:
    """Everything but the store on which pages depend, by its contents."""
    package = Path(attlas.__file__).parent
    places = [package, package.parents[1] / "docs"]
    installed = {path.name for place in sys.path for path in Path(place).glob("*.dist-info")}
    chosen = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(NAMES)}
    facts = [sys.version, sorted(installed), chosen, sorted(options.items())]
    digest = hashlib.sha256(json.dumps(facts, default=str).encode())
    for path in (path for place in places for path in _files(place, ("__pycache__",))):
        digest.update(f"\0{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def stored_digest(store: Path) -> str:
    """What the store holds, and the folder of checkpoints, by the times of their files."""
    return _times_digest([store, kept_models()], DERIVED)


def remember(store: Path, folder: Path, inputs: str, stored: str) -> None:
    """Note that the pages in `folder` were written from these inputs."""
    noted = {"inputs": inputs, "stored": stored, "pages": _times_digest([folder])}
    place = _note(store, folder)
    with suppress(OSError):  # without the note the pages are written again next time
        make_folder(place.parent)
        write_whole(place, json.dumps(noted).encode())


def is_current(store: Path, folder: Path, inputs: str) -> bool:
    """Whether the pages in `folder` are as they were written, and would be written so again."""
    try:
        noted = parse_json(read_whole(_note(store, folder)), _FORM)
    except (OSError, Damaged):
        return False
    now = {"inputs": inputs, "stored": stored_digest(store), "pages": _times_digest([folder])}
    return bool(noted == now)


def _note(store: Path, folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    return store / "drawings" / f"pages-{name}.json"


def _times_digest(places: Iterable[Path], without: tuple[str, ...] = ()) -> str:
    digest = hashlib.sha256()
    for path in (path for place in places for path in _files(place.resolve(), without)):
        with suppress(FileNotFoundError):
            found = path.stat()
            digest.update(f"\0{path}\0{found.st_size}\0{found.st_mtime_ns}".encode())
    return digest.hexdigest()


def _files(place: Path, without: tuple[str, ...]) -> list[Path]:
    """All files below a folder, but none below folders of the names `without`."""
    found = []
    for folder, inner, names in os.walk(place):
        inner[:] = sorted(name for name in inner if name not in without)
        found += [Path(folder, name) for name in sorted(names)]
    return found
