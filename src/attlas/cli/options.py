"""Options that several verbs have, and how their values are checked."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attlas.errors import InputError

if TYPE_CHECKING:
    from attlas.claims import Claim
    from attlas.index import Entry
    from attlas.lab.store import Store

FIGURE_FORMATS = (".svg", ".pdf", ".png", ".html")
FILE, FOLDER = click.Path(dir_okay=False), click.Path(file_okay=False)

scale_option = click.option(
    "--scale",
    type=click.Choice(["quick", "paper"]),
    default="quick",
    show_default=True,
    help="Seconds, or the paper's own parameters.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Where all random numbers come from.",
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a parameter; lists as 1,2,3.",
)
store_option = click.option(
    "--store",
    type=FOLDER,
    help="Folder of stored evidence. [default: $ATTLAS_STORE or the user's cache]",
)
claims_option = click.option(
    "--claims", "files", multiple=True, type=FILE, help="A Python file with claims of yours."
)
fresh_option = click.option("--fresh", is_flag=True, help="Compute again what is stored.")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object and nothing else."
)


def load_files(files: Sequence[str]) -> None:
    """Add the claims of `files` to the catalogue."""
    from attlas.claims import load_file

    for file in files:
        load_file(file)


def select_claims(patterns: Sequence[str], files: Sequence[str]) -> "list[Claim]":
    """The claims that match, of the catalogue with the claims of `files` in it."""
    from attlas.claims import select

    load_files(files)
    return select(patterns)


def find_entries(
    patterns: Sequence[str], files: Sequence[str], source: str | None = None
) -> "list[Entry]":
    """What the index says about the claims that match; where it can, without importing them."""
    from attlas.index import foreign_points, matching, package_index

    known = package_index()
    if files or foreign_points():
        from attlas.claims.registry import entries

        known = entries(files)
    return [known[id] for id in matching(patterns, known, source)]


def find_entry(pattern: str, files: Sequence[str]) -> "Entry":
    """What the index says about the one claim that matches."""
    found = find_entries([pattern], files)
    if len(found) > 1:
        some = ", ".join(entry.id for entry in found[:5]) + (", ..." if len(found) > 5 else "")
        raise InputError(f"{pattern!r} matches {len(found)} claims; name one: {some}")
    return found[0]


def open_store(folder: str | None) -> "Store":
    """The store, with JAX's compilation cache in it."""
    from attlas.lab.measurement import keep_compiled
    from attlas.lab.store import Store

    store = Store(folder)
    keep_compiled(store)
    return store


def check_writable(option: str, file: str | None, suffixes: Sequence[str]) -> Path | None:
    """The path of the file that `option` names, if it may be written."""
    if file is None:
        return None
    path, folder = Path(file), Path(file).parent
    if path.suffix not in suffixes:
        allowed = f"{'one of ' * (len(suffixes) > 1)}{', '.join(suffixes)}"
        raise InputError(f"{option} {file!r}: its name must end in {allowed}")
    if not folder.is_dir():
        raise InputError(f"{option} {file!r}: the folder {str(folder)!r} does not exist")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option} {file!r}: the folder {str(folder)!r} cannot be written")
    return path
