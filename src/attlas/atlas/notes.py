"""What is said about a map beside its claims: questions, ideas of proofs, the papers item by item, findings.

A map of the package has the file `notes.toml` in its folder; a map in a file `NAME.py` outside has `NAME.toml` beside it,
if anything. Prose lives there, and not in the sources, because no number depends on it.
"""

import fnmatch
import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from attlas.claims import Claim
from attlas.errors import InputError

Part = TypeVar("Part")


@dataclass(frozen=True)
class Question:
    """What a reader may ask, the answer in a sentence or two, and patterns of the claims that say it."""

    ask: str
    answer: str
    claims: tuple[str, ...]

    def about(self, claim: Claim) -> bool:
        return any(fnmatch.fnmatchcase(claim.slug, pattern) for pattern in self.claims)


@dataclass(frozen=True)
class Item:
    """A definition, theorem, lemma or figure of the paper, with its claims, or why it has none."""

    name: str
    about: str
    claims: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """What is not in the paper."""

    title: str
    words: str
    claims: tuple[str, ...]


@dataclass(frozen=True)
class Symbol:
    """A letter of the map's formulas, in TeX; what it means; and the parameter that holds it, if one does. A letter that has
    its meaning in some claims alone names them."""

    tex: str
    means: str
    parameter: str = ""
    claims: tuple[str, ...] = ()

    def of(self, claim: Claim) -> bool:
        """Whether a reader of the claim's page meets the letter: in the statement, or as a parameter."""
        if self.claims:
            return claim.slug in self.claims
        return self.parameter in claim.quick or self.needed_by(claim.statement)

    def needed_by(self, sentence: str) -> bool:
        """Whether the letter occurs in one of the sentence's formulas, by itself or with a number as its index, and is not defined there."""
        formulas = re.sub(r"\\mathrm\{[^}]*\}", " ", " ".join(re.findall(r"\$(.+?)\$", sentence)))
        letter = ("" if self.tex.startswith("\\") else r"(?<![A-Za-z\\])") + re.escape(self.tex)
        defined = re.search(rf"{letter}(\^2 =| = \\langle)", formulas)
        return (
            not defined and re.search(rf"{letter}(?![A-Za-z(]|_[A-Za-z{{\\])", formulas) is not None
        )


@dataclass(frozen=True)
class Notes:
    """All notes of a map. `picture` names claims of which the first that is there gives the map's picture; `symbols` says what the
    letters of its formulas mean."""

    map: str
    title: str
    words: str = ""
    source: str = ""
    picture: tuple[str, ...] = ()
    remark: str = ""
    questions: tuple[Question, ...] = ()
    items: tuple[Item, ...] = ()
    findings: tuple[Finding, ...] = ()
    ideas: Mapping[str, str] = field(default_factory=dict)
    symbols: tuple[Symbol, ...] = ()


def notes_file(claim: Claim) -> Path:
    """Where the notes of the claim's map are, if there are any."""
    package = Path(__file__).parents[1]
    home = next((folder for folder in claim.file.parents if folder.parent == package), None)
    return claim.file.with_suffix(".toml") if home is None else home / "notes.toml"


def notes_of(claims: Iterable[Claim]) -> dict[str, Notes]:
    """The notes of every map among `claims`, in the order of the claims."""
    return {
        claim.map: read_notes(claim.map, notes_file(claim))
        for claim in {c.map: c for c in claims}.values()
    }


@functools.cache
def read_notes(name: str, file: Path) -> Notes:
    """The notes of the map `name`; a map without the file has a title and nothing else."""
    title = name.replace("-", " ").capitalize()
    if not file.is_file():
        return Notes(name, title)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the notes {str(file)!r} cannot be read: {error}") from error
    try:
        return Notes(
            name,
            content.get("title", title),
            content.get("words", ""),
            content.get("source", ""),
            tuple(content.get("picture", ())),
            content.get("remark", ""),
            tuple(_made(Question, entry) for entry in content.get("questions", ())),
            tuple(_made(Item, entry) for entry in content.get("items", ())),
            tuple(_made(Finding, entry) for entry in content.get("findings", ())),
            dict(content.get("ideas", {})),
            tuple(_made(Symbol, entry) for entry in content.get("symbols", ())),
        )
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"the notes {str(file)!r} have an entry that is not understood: {error}"
        ) from error


def _made(kind: type[Part], entry: Mapping[str, Any]) -> Part:
    if isinstance(entry.get("claims", ()), str):
        raise TypeError(f"claims = {entry['claims']!r} must be a list")
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in entry.items()
        }
    )
