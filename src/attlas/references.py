"""The papers, by key."""

import functools
import re
from importlib.resources import files
from pathlib import Path

from attlas.errors import InputError, near


def bibliography(beside: Path | None = None) -> dict[str, str]:
    """BibTeX entries by key: the package's, and those of `NAME.bib` beside a claim file
    `NAME.py`."""
    found = _entries(files("attlas").joinpath("references.bib").read_text(encoding="utf-8"))
    own = None if beside is None else beside.with_suffix(".bib")
    if own is None or not own.is_file():
        return found
    try:
        return {**found, **_entries(own.read_text(encoding="utf-8"))}
    except UnicodeDecodeError as error:
        raise InputError(f"the references {str(own)!r} are not text: {error}") from error


@functools.cache
def _entries(text: str) -> dict[str, str]:
    entries = [entry.strip() for entry in re.split(r"\n(?=@)", text)]
    return {match[1]: entry for entry in entries if (match := re.match(r"@\w+\{([^,]+),", entry))}


def bibtex(source: str, *beside: Path) -> str:
    """The BibTeX entry of a source such as "marion2025".

    Arguments:
        source: its key.
        beside: claim files; of each a file of the same name that ends in `.bib` is read too.
    """
    found = bibliography(*beside)
    if source not in found:
        raise InputError(
            f"no reference has the key {source!r}.{near(source, found)} There are:"
            f" {', '.join(found)}."
        )
    return found[source]
