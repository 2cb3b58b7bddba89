"""Values as a reader of a page would write them: the filters of the templates."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from attlas.atlas.conditions import with_formulas
from attlas.atlas.formulas import mathml
from attlas.atlas.notes import Notes
from attlas.atlas.symbols import shown_symbols
from attlas.claims import Claim
from attlas.figure_style import legible


def kind_of_evidence(kind: str) -> str:
    """A kind of evidence as the heading of a column."""
    return {"identity": "an identity", "real": "a real model or data"}.get(kind, kind)


def prose(text: str) -> Markup:
    """A sentence that was written for a terminal, as HTML."""
    return mathml(legible(text).replace(">=", "≥").replace("<=", "≤"))


GREEK = {
    "gamma": "γ",
    "eta": "η",
    "theta": "θ",
    "kappa": "κ",
    "lam": "λ",
    "lambda": "λ",
    "nu": "ν",
    "rho": "ρ",
    "zeta": "ζ",
}
"""Letters by the names that they have in words for a terminal."""
_GREEK = re.compile(rf"\b(?:{'|'.join(GREEK)})\b")


def told(text: str, claim: Claim, notes: Notes) -> Markup:
    """A hypothesis, or the reason of a verdict, with its conditions as mathematics."""
    letters = {s.parameter: s.tex for s in shown_symbols(claim, notes) if s.parameter}
    words = with_formulas(text, letters, claim.quick)
    return mathml(_with_greek(words.replace(">=", "≥").replace("<=", "≤")))


def _with_greek(text: str) -> str:
    """Names of Greek letters as these letters, outside formulas and code."""
    parts = re.split(r"(\$[^$]+\$|`[^`]+`)", text)
    return "".join(
        part if place % 2 else _GREEK.sub(lambda name: GREEK[name[0]], part)
        for place, part in enumerate(parts)
    )


def letter(name: str, claim: Claim, notes: Notes) -> Markup:
    """A parameter by its letter, or by its name where it has none."""
    letters = {s.parameter: s.tex for s in shown_symbols(claim, notes) if s.parameter}
    return mathml(f"${letters[name]}$" if name in letters else GREEK.get(name, name))


def shortened(number: str) -> str:
    """A number as it was written, to six digits if it has more."""
    return legible(f"{float(number):.6g}" if len(number) > 8 else number)


def significant(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else ""


def show_value(value: Any) -> str:
    """A parameter, or several."""
    if isinstance(value, tuple):
        return ", ".join(show_value(item) for item in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_numbers(number: float | Sequence[float] | None) -> str:
    """A measured number, several, or none."""
    return "" if number is None else " ".join(f"{x:.3f}" for x in np.atleast_1d(number))


def standing(ahead: Sequence[float] | None) -> str:
    """Where an interval [mean, low, high] of a difference puts the estimator."""
    if ahead is None:
        return ""
    _, low, high = ahead
    return "ahead" if low > 0 else "behind" if high < 0 else "level"


DATA_SETS = {
    "musk1": "Musk 1",
    "musk2": "Musk 2",
    "elephant": "images of elephants",
    "ucsb_breast_cancer": "UCSB breast cancer",
    "birds_brown_creeper": "birds (brown creeper)",
    "corel_dogs": "Corel dogs",
    "web_recommendation_1": "web recommendation 1",
    "dna": "DNA splices",
    "votes": "House votes",
    "monks": "MONK-2",
    "mcycle": "motorcycle accident",
    "faithful": "Old Faithful",
    "engel": "Engel food expenditure",
}
"""Names of data sets as readers know them, by those of their files."""


def data_name(text: str) -> str:
    """The name of a data set, and what is said of it after a comma, as a reader knows it."""
    name, comma, rest = text.partition(",")
    return f"{DATA_SETS.get(name, name.replace('_', ' '))}{comma}{rest}"


def data_named(text: str) -> str:
    """A sentence with the names of data sets as a reader knows them."""
    known = "|".join(name for name in DATA_SETS if "_" in name)
    return re.sub(rf"\b(?:{known})\b", lambda name: DATA_SETS[name[0]], text)


def size_of(svg: str) -> tuple[str, str]:
    """Width and height of a figure, so that a page keeps room for it."""
    found = re.search(r'<svg[^>]*?\bwidth="([\d.]+)"[^>]*?\bheight="([\d.]+)"', svg[:2000])
    return (found[1], found[2]) if found else ("460", "300")
