"""Pages to play with, without a server.

What a slider moves is computed in the page, by a few formulas of its script, each the twin of a
function in Python, or read from a table that is written into the page.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

SHARED = ("explorers.js", "explorers.css")
"""Assets that all explorers use."""


@dataclass(frozen=True)
class Explorer:
    """An explorer of a map: an entry `[[explorers]]` of its notes.

    In `folder` are its template `NAME.html`, its script `NAME.js`, and `NAME.json` where it reads
    a table. `values` are what its sliders run through and other values that its template shows;
    `claims` names claims of the map about what it shows, and `uses` scripts in the folder, without
    their ending, that it shares with others.
    """

    map: str
    folder: Path
    name: str
    title: str
    words: str
    claims: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Its page in the atlas."""
        return f"explorers/{self.name}.html"

    @property
    def related(self) -> list[str]:
        """Ids of its claims."""
        return [f"{self.map}/{slug}" for slug in self.claims]

    @cached_property
    def template(self) -> str:
        return (self.folder / f"{self.name}.html").read_text(encoding="utf-8")

    @property
    def text(self) -> str:
        """Its words, with formulas as they are in TeX."""
        return self.template.replace("\\\\", "\\")

    @cached_property
    def script(self) -> str:
        return (self.folder / f"{self.name}.js").read_text(encoding="utf-8")

    def shared(self, name: str) -> str:
        """The text of a script that it uses."""
        return (self.folder / f"{name}.js").read_text(encoding="utf-8")

    @cached_property
    def data(self) -> str:
        """Its table, as JSON that may stand in a script element; empty where it has none."""
        file = self.folder / f"{self.name}.json"
        text = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
        return text.replace("<", "\\u003c")

    @cached_property
    def content(self) -> Any:
        """Its table, where the template shows parts of it."""
        return json.loads(self.data)
