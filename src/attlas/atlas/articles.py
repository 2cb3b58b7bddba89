"""Articles: what a map's claims say together, as a text with their figures and explorers in it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attlas.atlas.guides import SIGNS, Guide, guard_formulas, render_guide
from attlas.errors import InputError

_FIGURE = re.compile(
    r"^!\[(?P<words>(?:(?!\]\().)+)\]\((?P<kind>\w+):(?P<name>[\w-]+)(?P<state>#\S*)?\)$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Inset:
    """A figure in a text, with the words below it.

    `kind` is "claim" (the figure of a claim of the map), "figure" (the Vega-Lite specification
    `NAME.vl.json`) or "explorer", whose controls stand as in `state`, "#steps=10" or "".
    """

    kind: str
    name: str
    words: str
    state: str = ""


@dataclass(frozen=True)
class Article:
    """An article of a map: an entry `[[articles]]` of its notes.

    Its text is `NAME.md` in `folder`, Markdown whose first heading is the title. An image is a
    figure: `![words below it](claim:SLUG)`, `(figure:NAME)` or `(explorer:NAME#steps=10)`.
    """

    map: str
    folder: Path
    name: str

    @property
    def path(self) -> str:
        """Its page in the atlas."""
        return f"articles/{self.name}.html"

    @cached_property
    def text(self) -> str:
        """What is written, as Markdown."""
        try:
            return (self.folder / f"{self.name}.md").read_text("utf-8")
        except OSError as error:
            raise InputError(f"the article {self.name!r} cannot be read: {error}") from error

    @cached_property
    def parts(self) -> list[Guide | Inset]:
        """The text between figures, rendered, and the figures."""
        return list(_parts(self.name, self.text))

    @property
    def title(self) -> str:
        return self._opening.title

    @property
    def words(self) -> str:
        """Its first sentence, with formulas as they were written."""
        return re.sub(rf"\\{SIGNS}", r"\1", self._opening.words)

    @property
    def _opening(self) -> Guide:
        first = self.parts[0]
        if isinstance(first, Inset):
            raise InputError(f"the article {self.name!r} must begin with a title and a sentence")
        return first

    def insets(self, kind: str) -> list[str]:
        """Names of its figures of a kind, in order."""
        return [p.name for p in self.parts if isinstance(p, Inset) and p.kind == kind]

    @property
    def related(self) -> list[str]:
        """Ids of its claims."""
        return [f"{self.map}/{slug}" for slug in self.insets("claim")]

    def specification(self, name: str) -> dict[str, Any]:
        """The Vega-Lite specification of one of its figures that belong to no claim."""
        file = self.folder / f"{name}.vl.json"
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"the figure {str(file)!r} cannot be read: {error}") from error


def _parts(name: str, text: str) -> Iterator[Guide | Inset]:
    end = 0
    for found in _FIGURE.finditer(text):
        if found["kind"] not in ("claim", "figure", "explorer"):
            raise InputError(
                f"the article {name!r} shows {found['kind']}:{found['name']}:"
                " a figure is a claim:, a figure: or an explorer:"
            )
        yield from _rendered(name, text[end : found.start()])
        words = " ".join(found["words"].split())
        yield Inset(found["kind"], found["name"], words, found["state"] or "")
        end = found.end()
    yield from _rendered(name, text[end:])


def _rendered(name: str, text: str) -> Iterator[Guide]:
    """The text as HTML, unless it is empty."""
    if text.strip():
        yield render_guide(name, guard_formulas(text))
