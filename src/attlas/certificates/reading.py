"""The text of a certificate, as plain data; it needs the standard library alone."""

import json
from typing import Any


def parse(text: str) -> Any:
    """What a JSON text holds; `ValueError` if a name stands twice in it, or it is no JSON."""
    try:
        return json.loads(text, object_pairs_hook=_named)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of names that each stand once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in it")
    return found
