"""Notebooks: scripts in docs/notebooks whose cells begin with `# %%` (jupytext's percent format),
run from the first cell to the last and shown with what they display.

What cells display is kept until the script, the package or what computes changes.
"""

import ast
import contextlib
import functools
import hashlib
import html
import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attlas
from attlas.atlas.guides import Guide, docs_folder, guard_formulas, render_guide
from attlas.lab.files import Damaged, read_json, write_json
from attlas.provenance import versions

ORDER = (
    "check-a-formula",
    "landscape",
    "how-many-samples",
    "what-a-head-estimates",
    "choose-an-estimator",
    "audit",
)
"""Notebooks in the order in which a reader wants them."""

Outputs = list[list[tuple[str, str]]]
"""For each cell what it displays: pairs of "html" or "chart", and its HTML or specification."""

_KEPT = {"outputs": [[[str]]]}
"""The form of the file with outputs: for each cell pairs of a kind and a text."""


@dataclass(frozen=True)
class Cell:
    """Markdown ("text") or Python ("code")."""

    kind: str
    source: str


@dataclass(frozen=True)
class Part:
    """A cell as a page shows it: `text` rendered, or `code` with what it displayed, pairs of "html"
    or "chart" and its HTML or Vega-Lite specification."""

    text: Guide | None
    code: str
    shown: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Notebook:
    """A notebook that was run; `title` and `words` are its first heading and sentence."""

    slug: str
    source: str
    parts: tuple[Part, ...]

    @property
    def page(self) -> str:
        """Its page in the atlas."""
        return f"notebooks/{self.slug}.html"

    @property
    def title(self) -> str:
        return self._opening.title

    @property
    def words(self) -> str:
        return self._opening.words

    @property
    def _opening(self) -> Guide:
        return next(part.text for part in self.parts if part.text)


def notebook_files() -> list[Path]:
    """The scripts, in order; none where the documents are not installed."""
    folder = docs_folder()
    files = {path.stem: path for path in (folder / "notebooks").glob("*.py")} if folder else {}
    place = {slug: number for number, slug in enumerate(ORDER)}
    return [files[slug] for slug in sorted(files, key=lambda s: (place.get(s, len(ORDER)), s))]


def read_notebook(path: Path, cache: Path | None = None) -> Notebook:
    """A notebook with what it displays: kept in the folder `cache`, or run."""
    source = path.read_text(encoding="utf-8")
    cells = parse_notebook(source)
    outputs = _recall(source, cache)
    parts = (
        Part(render_guide(path.stem, guard_formulas(cell.source)), "", ())
        if cell.kind == "text"
        else Part(None, cell.source, tuple((kind, text) for kind, text in shown))
        for cell, shown in zip(cells, outputs, strict=True)
    )
    return Notebook(path.stem, source, tuple(parts))


def parse_notebook(source: str) -> list[Cell]:
    """The cells of a script; what stands before the first is its header."""
    cells = []
    for kind, text in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n?)*)", source, re.M):
        if "[markdown]" in kind:
            cells.append(Cell("text", re.sub(r"^# ?", "", text, flags=re.M).strip() + "\n"))
        elif text.strip():
            cells.append(Cell("code", text.strip()))
    return cells


def run_notebook(cells: list[Cell], name: str = "notebook") -> Outputs:
    """What each cell displays: what it prints, and the value of its last line."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return [
        list(_run_cell(cell.source, namespace, name)) if cell.kind == "code" else []
        for cell in cells
    ]


def _run_cell(source: str, namespace: dict[str, Any], name: str) -> Iterator[tuple[str, str]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    if said := printed.getvalue().strip():
        yield "html", f"<pre>{html.escape(said)}</pre>"
    if value is not None:
        yield _display(value)


def _display(value: Any) -> tuple[str, str]:
    """A chart as its specification, another value as the HTML that it displays as."""
    value = value.chart() if hasattr(value, "chart") else value
    if hasattr(value, "to_dict") and hasattr(value, "mark") | hasattr(value, "layer"):
        return "chart", json.dumps(value.to_dict(validate=False))
    if not hasattr(value, "_repr_html_"):
        return "html", f"<pre>{html.escape(repr(value))}</pre>"
    # The words stand beside a figure; a reader that cannot see it need not hear its every mark.
    told = re.sub(r"<style scoped>.*?</style>", "", value._repr_html_(), flags=re.S)
    shown = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", told)
    return "html", shown.replace("<svg ", '<svg aria-hidden="true" ')


def _recall(source: str, cache: Path | None) -> Outputs:
    if cache is None:
        return _run(source)
    place = cache / "notebooks" / f"{_digest(source)}.json"
    with suppress(OSError, Damaged):
        kept = read_json(place, _KEPT)["outputs"]
        return [[(kind, text) for kind, text in cell] for cell in kept]
    outputs = _run(source)
    with suppress(OSError):  # what cannot be kept is run again next time
        write_json(place, {"outputs": outputs})
    return outputs


@functools.cache
def _run(source: str) -> Outputs:
    """What a script displays, which is run once in a process."""
    return run_notebook(parse_notebook(source))


def _digest(source: str) -> str:
    """Of the script, all sources of the package, and what computes."""
    digest = hashlib.sha256(f"{versions()}\n{source}".encode())
    root = Path(attlas.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
