"""The atlas as pages: self-contained HTML that opens from disk and asks nothing of a network."""

import base64
import hashlib
import inspect
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

import attlas
from attlas.atlas.drawings import drawing_of, drawn, script, thumbnail
from attlas.atlas.explorers import EXPLORERS, write_explorers
from attlas.atlas.formulas import mathml
from attlas.atlas.graphs import Node, draw_graph
from attlas.atlas.guides import linked, read_guides
from attlas.atlas.notes import Notes, Symbol, notes_of
from attlas.atlas.showpieces import Shown
from attlas.claims import Bound, Claim
from attlas.drawing import legible
from attlas.errors import InputError
from attlas.lab.runner import Result
from attlas.references import bibtex

LIST = "claims.json"
"""The machine-readable list beside the index. It names every file of the atlas, by which a folder is known as one."""
SCHEMA = "claims.schema.json"
FONT = "math.woff2"
"""A subset of STIX Two Math, without which browsers on many machines set formulas badly; `LICENCE` is its licence."""
LICENCE = "math.OFL.txt"
PACKAGE = ("single-location", "sparse-variables", "latent-posterior")
"""The maps of the package, as claims name them."""


def check_folder(folder: Path) -> Path:
    """`folder`, if an atlas may be written there: it can be, and it is new, empty, or an atlas already."""
    folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; name a folder with --out")
    if folder.is_dir():
        own = _files_of(folder)
        rooms = {str(parent) for name in own for parent in Path(name).parents}
        strangers = {str(path.relative_to(folder)) for path in folder.rglob("*")} - own - rooms
        if strangers:
            raise InputError(
                f"the folder {str(folder)!r} holds other things ({min(strangers)}); name an empty or new one with --out"
            )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        raise InputError(
            f"the folder {str(folder)!r} cannot be written: {error.strerror or error}"
        ) from error
    return folder


def check_prose(claims: Sequence[Claim]) -> None:
    """Read what the pages will say of `claims`, before anything is measured."""
    notes_of(claims)
    for claim in claims:
        mathml(claim.statement)
        mathml(claim.control.words)


def _files_of(folder: Path) -> set[str]:
    """The files that the atlas in `folder` says are its own; none where there is no atlas."""
    try:
        content = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return set()
    whole = (
        isinstance(content, dict) and "attlas" in content and isinstance(content.get("files"), list)
    )
    return set(content["files"]) if whole else set()


@dataclass(frozen=True)
class Link:
    """A page that the index offers: where it is, its title, and what one finds there."""

    path: str
    title: str
    words: str


@dataclass(frozen=True)
class Atlas:
    """Everything that the pages show.

    `others` holds results at the scale that was not asked for, by id; `shown` the showpieces that can be shown; `measured` what
    `make bench-data` measured on real data. Figures are kept in `keep` and drawn once.
    """

    results: Sequence[Result]
    others: Mapping[str, Result] = field(default_factory=dict)
    shown: Sequence[Shown] = ()
    measured: Mapping[str, Any] | None = None
    keep: Path | None = None
    tell: Callable[[int, int], None] = lambda done, of: None

    @cached_property
    def by_id(self) -> dict[str, Result]:
        return {result.claim.id: result for result in self.results}

    @cached_property
    def of_the_package(self) -> bool:
        """Whether claims of the package are among them; an atlas of somebody else's map speaks of that map alone."""
        return any(result.claim.map in PACKAGE for result in self.results)

    @cached_property
    def notes(self) -> dict[str, Notes]:
        return notes_of(result.claim for result in self.results)

    @cached_property
    def used_by(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for result in self.results:
            for id in result.claim.needs:
                found.setdefault(id, []).append(result.claim.id)
        return found

    def questions(self, claim: Claim) -> list[str]:
        return [
            question.ask for question in self.notes[claim.map].questions if question.about(claim)
        ]

    def idea(self, claim: Claim) -> str:
        return self.notes[claim.map].ideas.get(claim.slug, "")


def write_atlas(
    results: Sequence[Result],
    folder: Path,
    shown: Sequence[Shown] = (),
    measured: Mapping[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write all pages of an `Atlas` and return the index. An older atlas in `folder` stays until the new one is complete."""
    folder = check_folder(folder)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        _Writer(Atlas(_in_order(results), shown=shown, measured=measured, **more), fresh).write()
        fresh.chmod(0o755)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder / "index.html"


def environment() -> jinja2.Environment:
    """The templates with their filters."""
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("attlas.atlas"), jinja2.PackageLoader("attlas")]
        ),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "mathml": mathml,
        "size": size_of,
        "linked": linked,
        "value": show_value,
        "as_title": title_of,
        "significant": significant,
        "legible": legible,
        "prose": prose,
        "symbols": symbols_of,
    }
    templates.globals |= {"version": attlas.__version__, "root": "", "menu": ()}
    return templates


class _Writer:
    """One atlas being written into one folder."""

    def __init__(self, atlas: Atlas, folder: Path) -> None:
        self.atlas, self.folder, self.guides = atlas, folder, read_guides()
        self.templates = environment()
        self.templates.globals["menu"] = self._menu()

    def write(self) -> None:
        self._save("vega.js", script(self.atlas.keep))
        self._save("atlas.js", self._source("atlas.js"))
        self._save("math.css", _font_face())
        self._save(LICENCE, _asset(LICENCE))
        listed = [self._claim(result) for result in self._counted()]
        for one in self.atlas.shown:
            spec, svg = drawn(one.figure(), self.atlas.keep)
            self._page(
                f"showpieces/{one.piece.slug}.html",
                "showpiece.html",
                shown=one,
                piece=one.piece,
                spec=spec,
                svg=svg,
            )
        if self.atlas.measured:
            self._page(
                "real-data.html",
                "real_data.html",
                measured=self.atlas.measured,
                standing=standing,
                told=told,
            )
        if self.atlas.of_the_package:
            write_explorers(self.folder, self.templates, self.atlas.by_id)
        for guide in self.guides:
            self._page(f"guides/{guide.slug}.html", "guide.html", guide=guide)
        self._page("papers.html", "papers.html")
        self._page("tightness.html", "tightness.html", rows=tightness(self.atlas.results))
        self._page("beyond.html", "beyond.html")
        self._page("index.html", "index.html", **self._index())
        self._list(listed)

    def _counted(self) -> Iterator[Result]:
        for done, result in enumerate(self.atlas.results):
            self.atlas.tell(done, len(self.atlas.results))
            yield result

    def _menu(self) -> list[Link]:
        links = [
            Link(
                "papers.html",
                "Papers at a glance",
                "Every definition, theorem, lemma and figure, and what became of it.",
            ),
            Link("tightness.html", "Tightness", "How near each bound is to what it bounds."),
            Link(
                "beyond.html",
                "Beyond the papers",
                "What was found here, and where a paper had to be read with care.",
            ),
        ]
        links += [
            Link(f"guides/{guide.slug}.html", guide.title, guide.words) for guide in self.guides
        ]
        links += [
            Link(f"showpieces/{one.piece.slug}.html", one.piece.title, one.piece.words)
            for one in self.atlas.shown
        ]
        if self.atlas.measured:
            links.append(
                Link(
                    "real-data.html",
                    "Real data",
                    "The estimators beside other methods on the same folds.",
                )
            )
        return links

    def _page(self, path: str, template: str, **context: Any) -> None:
        atlas = self.atlas
        context |= {
            "root": "../" * path.count("/"),
            "here": path,
            "atlas": atlas,
            "known": atlas.by_id,
        }
        self._save(path, self.templates.get_template(template).render(**context))

    def _save(self, path: str, content: str | bytes) -> None:
        place = self.folder / path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    def _source(self, name: str) -> str:
        assert self.templates.loader is not None
        return self.templates.loader.get_source(self.templates, name)[0]

    def _claim(self, result: Result) -> dict[str, Any]:
        """Write the page of a claim and the files it offers; its entry in the list."""
        claim = result.claim
        drawing = drawing_of(result, self.atlas.keep)
        for ending, content in drawing.files.items():
            self._save(f"{claim.id}.{ending}", content)
        self._page(
            f"{claim.id}.html",
            "claim.html",
            claim=claim,
            result=result,
            results=sorted(
                (r for r in (result, self.atlas.others.get(claim.id)) if r),
                key=lambda r: r.scale != "quick",
            ),
            drawing=drawing,
            source=source_line(claim),
            outside=not claim.file.is_relative_to(Path(attlas.__file__).parent),
            bibtex=bibtex_of(result),
            idea=self.atlas.idea(claim),
            notes=self.atlas.notes[claim.map],
        )
        return entry(result, self.atlas, drawing.files.get("nc"))

    def _index(self) -> dict[str, Any]:
        atlas = self.atlas
        by_map = _groups(atlas.results)
        pictures = {
            name: next(
                filter(
                    self._drawn,
                    [
                        *(f"{name}/{slug}" for slug in atlas.notes[name].picture),
                        *(r.claim.id for r in results),
                    ],
                ),
                None,
            )
            for name, results in by_map.items()
        }
        return {
            "by_map": by_map,
            "counts": _counts(atlas.results),
            "explorers": EXPLORERS if atlas.of_the_package else (),
            "pictures": {
                name: (id, self._picture(name, id)) for name, id in pictures.items() if id
            },
            "asked": _asked(atlas),
            "graphs": {name: Markup(_graph(name, results)) for name, results in by_map.items()},
        }

    def _drawn(self, id: str) -> bool:
        return (self.folder / f"{id}.svg").is_file()

    def _picture(self, name: str, id: str) -> tuple[str, str]:
        """Write the picture of a map, the figure of a claim as a small panel shows it; its width and height."""
        svg = thumbnail(drawing_of(self.atlas.by_id[id], self.atlas.keep).spec, self.atlas.keep)
        self._save(f"pictures/{name}.svg", svg)
        return size_of(svg)

    def _list(self, claims: list[dict[str, Any]]) -> None:
        self._save(SCHEMA, self._source(SCHEMA))
        files = sorted(
            [
                LIST,
                *(
                    str(path.relative_to(self.folder))
                    for path in self.folder.rglob("*")
                    if path.is_file()
                ),
            ]
        )
        content = {
            "$schema": SCHEMA,
            "attlas": attlas.__version__,
            "files": files,
            "claims": claims,
        }
        self._save(LIST, json.dumps(content, indent=1, allow_nan=False))


def _font_face() -> str:
    """The font within a style sheet: pages that are opened from disk may not load it from a file, and jump while they try."""
    data = base64.b64encode(_asset(FONT)).decode()
    return f'@font-face {{ font-family: "Attlas Math"; src: url(data:font/woff2;base64,{data}) format("woff2"); }}\n'


def _asset(name: str) -> bytes:
    return (files("attlas.atlas") / "assets" / name).read_bytes()


def entry(result: Result, atlas: Atlas, data: bytes | None) -> dict[str, Any]:
    """A claim in the machine-readable list; `claims.schema.json` describes it."""
    claim, other = result.claim, atlas.others.get(result.claim.id)
    return {
        "map": claim.map,
        "source": claim.source,
        "reference": claim.reference,
        "origin": claim.origin,
        "statement": claim.statement,
        "words": claim.words,
        "idea": atlas.idea(claim),
        "questions": atlas.questions(claim),
        "hypotheses": [hypothesis.words for hypothesis in claim.hypotheses],
        "rule": str(claim.rule),
        "control_words": claim.control.words,
        "needs": list(claim.needs),
        "code": claim.code,
        "data": None
        if data is None
        else {"file": f"{claim.id}.nc", "sha256": hashlib.sha256(data).hexdigest()},
        **result.to_dict(),
        "other_scale": None if other is None else other.to_dict(),
    }


def size_of(svg: str) -> tuple[str, str]:
    """Width and height of a figure, so that a page keeps room for it."""
    found = re.search(r'<svg[^>]*?\bwidth="([\d.]+)"[^>]*?\bheight="([\d.]+)"', svg[:2000])
    return (found[1], found[2]) if found else ("460", "300")


def tightness(results: Sequence[Result]) -> list[Result]:
    """Results on bounds, the tightest first; those that hold come before those that do not."""
    bounds = [
        result
        for result in results
        if isinstance(result.claim.rule, Bound) and np.isfinite(result.verdict.statistic)
    ]
    return sorted(
        bounds, key=lambda result: (result.verdict.word != "confirmed", -result.verdict.statistic)
    )


def source_line(claim: Claim) -> str:
    """File and line at which the measurement is defined, from the top of the repository where it is in the package."""
    code = inspect.unwrap(claim.measure).__code__
    file, top = Path(code.co_filename), Path(attlas.__file__).parents[2]
    return (
        f"{file.relative_to(top) if file.is_relative_to(top) else file.name}:{code.co_firstlineno}"
    )


def _asked(atlas: Atlas) -> dict[str, tuple[str, list[Result]]]:
    """Every question with its answer and the results that bear on it; a question that several maps ask is one."""
    asked: dict[str, tuple[str, list[Result]]] = {}
    for name, notes in atlas.notes.items():
        for question in notes.questions:
            answer, found = asked.get(question.ask, ("", []))
            about = [r for r in atlas.results if r.claim.map == name and question.about(r.claim)]
            if about:
                asked[question.ask] = (f"{answer} {question.answer}".strip(), [*found, *about])
    return asked


def _graph(name: str, results: Sequence[Result]) -> str:
    nodes = {
        r.claim.id: Node(r.claim.id, title_of(r.claim.slug), r.verdict.word, f"{r.claim.id}.html")
        for r in results
    }
    return draw_graph(
        nodes, {r.claim.id: r.claim.needs for r in results}, f"Which claim of {name} rests on which"
    )


def _swap(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder`; if that fails the old one is put back."""
    if not folder.exists():
        os.replace(fresh, folder)
        return
    older = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    os.replace(folder, older)
    try:
        os.replace(fresh, folder)
    except BaseException:
        os.replace(older, folder)
        raise
    shutil.rmtree(older, ignore_errors=True)


def bibtex_of(result: Result) -> str:
    """BibTeX of the claim's source; empty for a claim of somebody else's whose source we do not know."""
    try:
        return bibtex(result.claim.source)
    except InputError:
        return ""


def _in_order(results: Iterable[Result]) -> list[Result]:
    """The package's maps in their order, and then others."""
    order = {name: place for place, name in enumerate(PACKAGE)}
    return sorted(
        results, key=lambda result: (order.get(result.claim.map, len(order)), result.claim.id)
    )


def _groups(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.claim.map, []).append(result)
    return groups


def _counts(results: Sequence[Result]) -> dict[str, int]:
    words = [result.verdict.word for result in results]
    known = ("confirmed", "refuted", "undecided", "outside", "not run")
    return {word: words.count(word) for word in known}


def standing(ahead: Sequence[float] | None) -> str:
    """Where an interval [mean, low, high] of a difference puts the estimator: ahead, behind or level."""
    return (
        "" if ahead is None else "ahead" if ahead[1] > 0 else "behind" if ahead[2] < 0 else "level"
    )


def told(number: float | Sequence[float] | None) -> str:
    """A measured number, several, or none."""
    return "" if number is None else " ".join(f"{x:.3f}" for x in np.atleast_1d(number))


_NAMES = {
    "bayes": "Bayes",
    "cme": "CME",
    "crps": "CRPS",
    "finetti": "Finetti",
    "lipschitz": "Lipschitz",
    "mlp": "MLP",
    "nadaraya": "Nadaraya",
    "watson": "Watson",
}


def title_of(slug: str) -> str:
    """A slug as a reader would write it."""
    words = " ".join(_NAMES.get(word, word) for word in slug.split("-"))
    return words[:1].upper() + words[1:]


def prose(text: str) -> Markup:
    """A sentence that was written for a terminal as a page shows it."""
    return mathml(legible(text).replace(">=", "≥").replace("<=", "≤"))


def symbols_of(claim: Claim, notes: Notes) -> list[Symbol]:
    """The letters that a reader of the claim's page meets; what one means in this claim goes before what it means elsewhere."""
    met = [symbol for symbol in notes.symbols if symbol.of(claim)]
    own = {symbol.tex for symbol in met if symbol.claims}
    return [symbol for symbol in met if symbol.claims or symbol.tex not in own]


def significant(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.4g}"


def show_value(value: Any) -> str:
    """A parameter as a reader would write it."""
    if isinstance(value, tuple):
        return ", ".join(show_value(item) for item in value)
    return (
        f"{value:.6g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
