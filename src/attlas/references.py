"""The papers, by key."""

import re
from importlib.resources import files

from attlas.errors import InputError, near


def bibtex(source: str) -> str:
    """The BibTeX entry of a source such as "marion2025"."""
    text = files("attlas").joinpath("references.bib").read_text(encoding="utf-8")
    found = {
        match[1]: match[0] for match in re.finditer(r"^@\w+\{([^,]+),.*?^\}$", text, re.M | re.S)
    }
    if source not in found:
        known = ", ".join(found)
        raise InputError(
            f"no reference has the key {source!r}.{near(source, found)} There are: {known}."
        )
    return found[source]
