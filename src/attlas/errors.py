"""What a caller may have done wrong."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: one sentence that names the thing, its value and what is allowed.

    The command line turns this, and only this, into exit code 2.
    """


def near(name: str, known: Iterable[str]) -> str:
    """`" Did you mean x or y?"` for the known names closest to a misspelt one, else nothing."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""
