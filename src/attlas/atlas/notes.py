"""What is said about a map beside its claims: questions, ideas of proofs, the papers item by item,
findings, articles, explorers, showpieces.

A map of the package has the file `notes.toml` in its folder; a map in a file `NAME.py` outside has
`NAME.toml` beside it, if anything. Prose lives there, and not in the sources, because no number
depends on it. What articles, explorers and showpieces read is in the folder `pages` beside the
notes.
"""

import fnmatch
import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attlas.atlas.articles import Article
from attlas.atlas.explorers import Explorer
from attlas.atlas.showpieces import Showpiece
from attlas.claims import Claim
from attlas.errors import InputError


@dataclass(frozen=True)
class Question:
    """A question of a reader, the answer in a sentence or two, and patterns of slugs of claims that
    say it."""

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
    """A letter of the map's formulas, in TeX, and what it means.

    `parameter` is the parameter that holds it, if one does. A letter that has this meaning in some
    claims alone names them in `claims`.
    """

    tex: str
    means: str
    parameter: str = ""
    claims: tuple[str, ...] = ()

    def occurs_in(self, claim: Claim) -> bool:
        """Whether the letter is in the claim's statement, or one of its parameters."""
        if self.claims:
            return claim.slug in self.claims
        return self.parameter in claim.quick or self.needed_by(claim.statement)

    def needed_by(self, sentence: str) -> bool:
        """Whether the letter occurs in a formula of the sentence, by itself or with a number as its
        index, and is not defined there."""
        formulas = re.sub(r"\\mathrm\{[^}]*\}", " ", " ".join(re.findall(r"\$(.+?)\$", sentence)))
        letter = ("" if self.tex.startswith("\\") else r"(?<![A-Za-z\\])") + re.escape(self.tex)
        if re.search(rf"{letter}(\^2 =| = \\langle)", formulas):
            return False
        return re.search(rf"{letter}(?![A-Za-z(]|_[A-Za-z{{\\])", formulas) is not None


@dataclass(frozen=True)
class Term:
    """A word of the map's claims, the other `forms` in which it occurs, and what it means."""

    word: str
    means: str
    forms: tuple[str, ...] = ()

    def occurs_in(self, text: str) -> bool:
        every = "|".join(map(re.escape, (self.word, *self.forms)))
        return re.search(rf"(?<!\w)(?:{every})(?!\w)", text, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Notes:
    """All notes of a map. `picture` names claims; the figure of the first that is there is the
    map's picture on the index, and `teaser` the sentence below it. `thresholds` names claims whose
    bound is a threshold of ours for acceptance. `ideas` are ideas of proofs, by the slug of the
    claim; `formulas` are lines of TeX that its page displays, and `published` the paper's own
    numbers."""

    map: str
    title: str
    words: str = ""
    teaser: str = ""
    source: str = ""
    thresholds: tuple[str, ...] = ()
    picture: tuple[str, ...] = ()
    remark: str = ""
    questions: tuple[Question, ...] = ()
    items: tuple[Item, ...] = ()
    findings: tuple[Finding, ...] = ()
    ideas: Mapping[str, str] = field(default_factory=dict)
    formulas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    symbols: tuple[Symbol, ...] = ()
    terms: tuple[Term, ...] = ()
    articles: tuple[Article, ...] = ()
    explorers: tuple[Explorer, ...] = ()
    showpieces: tuple[Showpiece, ...] = ()

    @property
    def text(self) -> str:
        """What is said of the paper's items and of findings."""
        items = (part for item in self.items for part in (item.about, item.why))
        findings = (finding.words for finding in self.findings)
        return " ".join((self.remark, *items, *findings, *self.published.values()))


ENTRIES = {
    "questions": Question,
    "items": Item,
    "findings": Finding,
    "symbols": Symbol,
    "terms": Term,
    "articles": Article,
    "explorers": Explorer,
    "showpieces": Showpiece,
}
"""Lists of tables in a file of notes, and the class of their entries."""
WITH_FILES = (Article, Explorer, Showpiece)
"""Classes of entries that have files in the folder `pages` beside the notes."""


def notes_file(claim: Claim) -> Path:
    """Where the notes of the claim's map are, if there are any."""
    package = Path(__file__).parents[1]
    home = next((folder for folder in claim.file.parents if folder.parent == package), None)
    return claim.file.with_suffix(".toml") if home is None else home / "notes.toml"


def notes_of(claims: Iterable[Claim]) -> dict[str, Notes]:
    """The notes of every map among `claims`, in the order of the claims."""
    last = {claim.map: claim for claim in claims}
    return {name: read_notes(name, notes_file(claim)) for name, claim in last.items()}


@functools.cache
def read_notes(name: str, file: Path) -> Notes:
    """The notes of the map `name`; a map without the file has a title and nothing else."""
    notes = Notes(name, name.replace("-", " ").capitalize())
    if not file.is_file():
        return notes
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the notes {str(file)!r} cannot be read: {error}") from error
    try:
        for part, kind in ENTRIES.items():
            home = {"map": name, "folder": file.parent / "pages"} if kind in WITH_FILES else {}
            content[part] = [
                _make_entry(kind, {**entry, **home}) for entry in content.get(part, ())
            ]
        for part in ("ideas", "published"):
            content[part] = dict(content.get(part, {}))
        content["formulas"] = _freeze_lists(content.get("formulas", {}))
        return replace(notes, **_freeze_lists(content))
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"the notes {str(file)!r} have an entry that is not understood: {error}"
        ) from error


def _make_entry(kind: type, entry: Mapping[str, Any]) -> Any:
    if isinstance(entry.get("claims", ()), str):
        raise TypeError(f"claims = {entry['claims']!r} must be a list")
    return kind(**_freeze_lists(entry))


def _freeze_lists(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in entry.items()}
