"""Sentences and tables for a paper."""

import re
from typing import Any

SIGNS = {"±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "<": "$<$", ">": "$>$", "|": "$|$"}
MAX_ROWS = 20
"""Rows of a table; a longer one says how many are left out."""


def escape(text: str) -> str:
    """Plain text as LaTeX."""
    text = re.sub(r"([%&_#${}])", r"\\\1", text.replace("\\", r"\textbackslash "))
    return "".join(SIGNS.get(sign, sign) for sign in text)


def escape_prose(text: str) -> str:
    """Text with formulas between `$` signs, which stay as they are."""
    parts = text.split("$")
    return "".join(f"${part}$" if i % 2 else escape(part) for i, part in enumerate(parts))


def tabular(frame: Any) -> str:
    """A pandas frame as a table with four digits; words to the left, numbers to the right."""
    columns = "".join("r" if frame[name].dtype.kind in "if" else "l" for name in frame)
    rows = [
        " & ".join(f"{v:.4g}" if isinstance(v, float) else escape(str(v)) for v in row)
        for row in frame.head(MAX_ROWS).itertuples(index=False)
    ]
    if len(frame) > MAX_ROWS:
        left = f"{len(frame) - MAX_ROWS:,} further rows"
        rows.append(rf"\multicolumn{{{len(columns)}}}{{l}}{{{left}}}")
    head = " & ".join(escape(str(name)) for name in frame)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", rf"{head} \\", r"\hline"]
    return "\n".join([*lines, *(rf"{row} \\" for row in rows), r"\hline", r"\end{tabular}"])
