"""The papers, by key."""

import re
from importlib.resources import files

from attlas.errors import InputError, near


def bibtex(source: str) -> str:
    """The BibTeX entry of a source such as "marion2025"."""
    entries = re.split(
        r"\n(?=@)", files("attlas").joinpath("references.bib").read_text(encoding="utf-8")
    )
    found = {
        match[1]: entry.strip()
        for entry in entries
        if (match := re.match(r"@\w+\{([^,]+),", entry.strip()))
    }
    if source not in found:
        raise InputError(
            f"no reference has the key {source!r}.{near(source, found)} There are: {', '.join(found)}."
        )
    return found[source]
