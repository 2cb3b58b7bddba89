"""The atlas as pages: self-contained HTML that opens from disk and asks nothing of a network."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import attlas
from attlas.atlas import explorers, filters, overviews
from attlas.atlas.articles import Article
from attlas.atlas.contents import (
    PACKAGE,
    Atlas,
    arxiv_of,
    bibtex_of,
    citation_of,
    list_entry,
    source_line,
)
from attlas.atlas.docstrings import render_prose
from attlas.atlas.drawings import (
    drawing_of,
    render_chart,
    render_specification,
    thumbnail,
    vega_script,
)
from attlas.atlas.explorers import Explorer
from attlas.atlas.folders import LIST, check_folder, replaced, write_errors_named
from attlas.atlas.formulas import display, mathml, stated
from attlas.atlas.graphs import PHONE, SCREEN, Node, colour_of, draw_graph
from attlas.atlas.guides import link_claims, link_pages, read_guides
from attlas.atlas.notebooks import Notebook, notebook_files, read_notebook
from attlas.atlas.notes import Notes, notes_of
from attlas.atlas.reference import read_reference
from attlas.atlas.speed import read_speed, short
from attlas.atlas.symbols import lines_of, shown_symbols, shown_terms, symbols_in, unexplained
from attlas.atlas.titles import title_of
from attlas.audit import gallery
from attlas.audit.auditing import kept_audit
from attlas.audit.page import raise_powers, render_page
from attlas.certificates import shipped_certificates
from attlas.claims import Claim
from attlas.claims.claim import KINDS
from attlas.errors import InputError
from attlas.figure_style import DARK, legible
from attlas.lab.runner import Result

SCHEMA = "claims.schema.json"
FONT = "math.woff2"
"""A subset of STIX Two Math, without which browsers on many machines set formulas badly."""
LICENCE = "math.OFL.txt"
"""The licence of the font."""
TAKEN_AWAY = {"svg": "figure (SVG)", "csv": "data (CSV)", "nc": "all evidence (netCDF)"}
"""Files that a claim's page offers, by their ending."""
SHOWN_MODEL = "minilm"
"""The real model whose heads are the picture of the audit."""
REPORT_EVERY = 25
"""Pages of claims between two reports of progress."""


def check_prose(claims: Sequence[Claim]) -> None:
    """Read what the pages will say of `claims`: mistakes should show before they are measured."""
    for notes in notes_of(claims).values():
        known = {explorer.name for explorer in notes.explorers}
        for article in notes.articles:
            if strange := set(article.insets("explorer")) - known:
                raise InputError(
                    f"the article {article.name!r} shows {min(strange)!r}, an unknown explorer"
                )
    every = notes_of(claims)
    for claim in claims:
        mathml(claim.statement)
        mathml(claim.control.said())
        _check_letters(claim, every[claim.map])


def _check_letters(claim: Claim, notes: Notes, lines: Sequence[str] = ()) -> None:
    """Refuse a claim of the package with a letter, in its statement or in `lines` of its figure,
    that its page would not explain."""
    if claim.map in PACKAGE and (strange := unexplained(claim, notes, lines)):
        raise InputError(
            f"the page of {claim.id} has {', '.join(sorted(strange))}, which neither its statement"
            " nor the notes of its map explain"
        )


def write_atlas(
    atlas: Atlas, folder: Path, report: Callable[[str], None] = lambda words: None
) -> Path:
    """Write all pages and return the index.

    An older atlas in `folder` stays until the new one is complete. `report` is told now and then
    how far it is.
    """
    folder = check_folder(folder)
    with replaced(folder) as fresh:
        _Writer(atlas, fresh, report).write()
    return folder / "index.html"


def environment() -> jinja2.Environment:
    """The templates with their filters."""
    loaders = [jinja2.PackageLoader("attlas.atlas"), jinja2.PackageLoader("attlas")]
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "colour": colour_of,
        "display": display,
        "as_title": title_of,
        "kind": filters.kind_of_evidence,
        "letter": filters.letter,
        "legible": legible,
        "linked": link_claims,
        "mathml": mathml,
        "numbers": filters.format_numbers,
        "paged": link_pages,
        "powers": raise_powers,
        "prose": filters.prose,
        "render_prose": render_prose,
        "shortened": filters.shortened,
        "significant": filters.significant,
        "size": filters.size_of,
        "standing": filters.standing,
        "data_name": filters.data_name,
        "data_named": filters.data_named,
        "stated": stated,
        "told": filters.told,
        "value": filters.show_value,
    }
    templates.globals |= {"version": attlas.__version__, "root": "", "menu": (), "kinds": KINDS}
    shown = {"shown_symbols": shown_symbols, "shown_terms": shown_terms, "symbols_in": symbols_in}
    templates.globals |= shown
    return templates


@dataclass(frozen=True)
class Link:
    """A page that the index offers: where it is, its title, and what one finds there."""

    path: str
    title: str
    words: str


TIGHTNESS = Link("tightness.html", "Tightness", "How near each bound is to what it bounds.")
SPEED = Link("speed.html", "How fast", "Ratios of times, measured side by side.")
PAGES = (
    Link(
        "papers.html",
        "Papers",
        "Every definition, theorem, lemma and figure, and what became of it.",
    ),
    TIGHTNESS,
    Link("seeds.html", "On other seeds", "How often each claim would have said something else."),
    SPEED,
    Link("gallery.html", "Real models", "What the theories say of checkpoints that people use."),
    Link(
        "beyond.html",
        "Beyond the papers",
        "What was found here, and where a paper had to be read with care.",
    ),
)
REFERENCE = Link(
    "reference/index.html",
    "Reference",
    "Every function and class, with an example, and which module answers which question.",
)
REAL_DATA = Link(
    "real-data.html", "Real data", "The estimators beside other methods on the same folds."
)


class _Writer:
    """One atlas being written into one folder."""

    def __init__(self, atlas: Atlas, folder: Path, report: Callable[[str], None]) -> None:
        self.atlas, self.folder, self.report = atlas, folder, report
        self.guides = read_guides()
        self.notebooks = [read_notebook(path, atlas.cache) for path in notebook_files()]
        self.thumbnails: set[str] = set()
        self.templates = environment()
        self.templates.globals |= {"atlas": atlas, "known": atlas.by_id, "menu": self._menu()}
        self.templates.globals["gallery"] = [gallery.read(name) for name in gallery.entries()]

    def _menu(self) -> list[Link]:
        guides = [
            Link(f"guides/{guide.slug}.html", guide.title, guide.words) for guide in self.guides
        ]
        guides += [Link(book.page, book.title, book.words) for book in self.notebooks]
        pieces = [loaded.piece for loaded in self.atlas.showpieces]
        shown = [Link(piece.path, piece.title, piece.words) for piece in pieces]
        return [REFERENCE, *PAGES, *guides, *shown, *([REAL_DATA] if self.atlas.measured else [])]

    def write(self) -> None:
        self._save("vega.js", vega_script(self.atlas.cache))
        for script in ("atlas.js", "doors.js", "search.js"):
            self._save(script, self._source(script))
        self._save("figures.js", f"const DARK = {json.dumps(DARK)};\n{self._source('figures.js')}")
        self._save("page.css", self._source("page.css"))
        self._save("math.css", _font_face())
        self._save(LICENCE, _asset(LICENCE))
        listed = []
        for done, result in enumerate(self.atlas.results):
            if done % REPORT_EVERY == 0:
                self.report(f"Drawing page {done + 1} of {len(self.atlas.results)} ...")
            listed.append(self._write_claim(result))
        for loaded in self.atlas.showpieces:
            drawn = render_chart(loaded.figure(), self.atlas.cache)
            self._save(loaded.piece.path.replace(".html", ".svg"), drawn.svg)
            content = {"shown": loaded, "piece": loaded.piece, "drawn": drawn}
            self._write_page(loaded.piece.path, "showpiece.html", **content)
        for article in self.atlas.articles:
            self._write_article(article)
        for explorer in self.atlas.explorers:
            template = self.templates.from_string(explorer.template)
            self._write_page(explorer.path, template, explorer=explorer, **explorer.values)
            self._save(explorer.path.replace(".html", ".js"), explorer.script)
            for name in explorer.uses:
                self._save(f"explorers/{name}.js", explorer.shared(name))
        for name in explorers.SHARED if self.atlas.explorers else ():
            self._save(f"explorers/{name}", _asset(name))
        for guide in self.guides:
            self._write_page(f"guides/{guide.slug}.html", "guide.html", guide=guide)
        for notebook in self.notebooks:
            self._write_notebook(notebook)
        self._write_reference()
        for page in PAGES:
            self._write_page(page.path, page.path, **self._overview(page.path))
        for name, notes in self.atlas.notes.items():
            if notes.items:
                numbers = (arxiv_of(result.claim) for result in self.atlas.by_map[name])
                content = {"name": name, "notes": notes, "arxiv": next(filter(None, numbers), "")}
                self._write_page(f"papers/{name}.html", "paper.html", **content)
        for name in gallery.entries():
            text = render_page([kept_audit(name)], "../", self._linked())
            self._save(f"gallery/{name}.html", text)
        if self.atlas.measured:
            self._write_real_data(self.atlas.measured)
        self._write_page("index.html", "index.html", **self._index())
        self._write_list(listed)

    def _linked(self) -> set[str]:
        """The pages to which those of real models may lead."""
        claims = {f"{id}.html" for id in self.atlas.by_id}
        return (
            claims
            | {explorer.path for explorer in self.atlas.explorers}
            | {f"guides/{guide.slug}.html" for guide in self.guides}
        )

    def _write_page(self, path: str, template: str | jinja2.Template, **content: Any) -> None:
        place = {"root": "../" * path.count("/"), "here": path}
        self._save(path, self.templates.get_template(template).render(**content, **place))

    def _save(self, path: str, content: str | bytes) -> None:
        place = self.folder / path
        with write_errors_named(self.folder):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)

    def _source(self, name: str) -> str:
        assert self.templates.loader is not None
        return self.templates.loader.get_source(self.templates, name)[0]

    def _write_claim(self, result: Result) -> dict[str, Any]:
        """Write the page of a claim and the files that it offers; returns its entry in the list."""
        claim = result.claim
        drawing = drawing_of(result, self.atlas.cache)
        for ending in TAKEN_AWAY:
            if ending in drawing.files:
                self._save(f"{claim.id}.{ending}", drawing.files[ending])
        if drawing.spec:
            self._save(f"thumbnails/{claim.id}.svg", drawing.files["thumbnail"])
            self.thumbnails.add(claim.id)
        lines = lines_of(drawing.picture.content) if drawing.spec else []
        _check_letters(claim, self.atlas.notes[claim.map], lines)
        domain = self.atlas.domains.get(claim.id)
        drawn = domain and render_specification(domain.figure().to_dict(), self.atlas.cache)
        if drawn:
            self._save(f"{claim.id}.domain.svg", drawn.svg)
        self._write_page(
            f"{claim.id}.html",
            "claim.html",
            claim=claim,
            result=result,
            results=self.atlas.both_scales(result),
            drawing=drawing,
            certificates=shipped_certificates(claim.id),
            domain=drawn,
            files=[
                (f"{claim.slug}.{ending}", words)
                for ending, words in TAKEN_AWAY.items()
                if ending in drawing.files
            ],
            source=source_line(claim),
            outside=not claim.file.is_relative_to(Path(attlas.__file__).parent),
            bibtex=bibtex_of(claim),
            citation=citation_of(result),
            arxiv=arxiv_of(claim),
            neighbours=self._neighbours(claim),
            before=self._turn(claim, -1),
            after=self._turn(claim, 1),
            linked=self._linked(),
            lines=lines,
            idea=self.atlas.idea(claim),
            notes=self.atlas.notes[claim.map],
        )
        return list_entry(result, self.atlas, drawing.files.get("nc"))

    def _turn(self, claim: Claim, by: int) -> Claim | None:
        """The claim of the same map that stands before (-1) or after (1) this one."""
        claims = [result.claim for result in self.atlas.by_map[claim.map]]
        place = claims.index(claim) + by
        return claims[place] if 0 <= place < len(claims) else None

    def _neighbours(self, claim: Claim) -> Markup:
        """What the claim rests on and what rests on it, drawn; empty if there is neither."""
        ids = {*claim.needs, claim.id, *self.atlas.used_by.get(claim.id, ())} & set(
            self.atlas.by_id
        )
        if len(ids) < 2:
            return Markup("")
        near = [self.atlas.by_id[id] for id in sorted(ids)]
        return Markup(_graph(title_of(claim.slug), near, root="../", centre=claim.id))

    def _write_article(self, article: Article) -> None:
        """Write an article, and its figures that belong to no claim."""
        drawn = {}
        for slug, id in zip(article.insets("claim"), article.related, strict=True):
            drawn[slug] = drawing_of(self.atlas.by_id[id], self.atlas.cache).picture
        for name in article.insets("figure"):
            drawn[name] = render_specification(article.specification(name), self.atlas.cache)
            self._save(f"articles/{name}.svg", drawn[name].svg)
        articles = {other.path for other in self.atlas.articles}
        pages = self._linked() | articles | {page.path for page in PAGES}
        self._write_page(article.path, "article.html", article=article, drawn=drawn, pages=pages)

    def _write_notebook(self, notebook: Notebook) -> None:
        """Write a notebook, its script and its figures."""
        drawn = {}
        for number, part in enumerate(notebook.parts, 1):
            for kind, shown in part.shown:
                if kind == "chart":
                    drawn[number] = render_specification(json.loads(shown), self.atlas.cache)
                    self._save(f"notebooks/{notebook.slug}-{number}.svg", drawn[number].svg)
        self._save(f"notebooks/{notebook.slug}.py", notebook.source)
        self._write_page(notebook.page, "notebook.html", notebook=notebook, drawn=drawn)

    def _overview(self, path: str) -> dict[str, Any]:
        """What a page beside the claims shows that is drawn or was measured."""
        if path == SPEED.path:
            return {"speed": read_speed(), "short": short}
        if path != TIGHTNESS.path or not self.atlas.tightness:
            return {}
        drawn = render_chart(
            overviews.bounds_figure(self.atlas.tightness).chart(), self.atlas.cache
        )
        self._save("pictures/tightness.svg", drawn.svg)
        return {"drawn": drawn}

    def _write_real_data(self, measured: Mapping[str, Any]) -> None:
        drawn = []
        for number, kind in enumerate(measured["kinds"], 1):
            picture = render_chart(overviews.forest_figure(kind).chart(), self.atlas.cache)
            self._save(f"pictures/real-data-{number}.svg", picture.svg)
            drawn.append((kind, picture, overviews.summary_of(kind)))
        self._write_page(REAL_DATA.path, "real_data.html", measured=measured, drawn=drawn)

    def _write_reference(self) -> None:
        reference = read_reference()
        self._write_page(REFERENCE.path, "reference.html", reference=reference)
        for section in reference.sections:
            content = {"reference": reference, "section": section}
            self._write_page(section.page, "reference_module.html", **content)

    def _index(self) -> dict[str, Any]:
        by_map = self.atlas.by_map
        pictures = {name: id for name in by_map if (id := self._choose_picture(name))}
        cache = self.atlas.cache
        for door, figure in self._doors():
            self._save(f"pictures/{door}.svg", thumbnail(render_chart(figure, cache).spec, cache))
        return {
            "pictures": {
                name: (id, self._write_picture(name, id)) for name, id in pictures.items()
            },
            "thumbnails": self.thumbnails,
            "searched_pages": self._searched_pages(),
            "graphs": {name: Markup(_graph(name, results)) for name, results in by_map.items()},
        }

    def _searched_pages(self) -> list[dict[str, str]]:
        """What the search offers beside claims."""
        found: list[tuple[str, Article | Explorer | Link]] = [
            *(("article", article) for article in self.atlas.articles),
            *(("explorer", explorer) for explorer in self.atlas.explorers),
            *(("page", link) for link in self._menu()),
        ]
        return [
            {"kind": kind, "path": page.path, "title": page.title, "words": page.words}
            for kind, page in found
        ]

    def _doors(self) -> Iterator[tuple[str, Any]]:
        """Figures of the doors that lead to no map."""
        if self.atlas.of_the_package:
            yield "audit", overviews.heads_figure(SHOWN_MODEL).chart()
        if self.atlas.measured:
            kind = self.atlas.measured["kinds"][0]
            yield "estimators", overviews.forest_figure(kind, rows=5).chart()

    def _choose_picture(self, name: str) -> str | None:
        """The claim whose figure is the picture of a map, among those that have one."""
        preferred = [f"{name}/{slug}" for slug in self.atlas.notes[name].picture]
        ids = [*preferred, *(result.claim.id for result in self.atlas.by_map[name])]
        return next((id for id in ids if (self.folder / f"{id}.svg").is_file()), None)

    def _write_picture(self, name: str, id: str) -> tuple[str, str]:
        """Write a claim's figure as a small panel shows it; returns its width and height."""
        cache = self.atlas.cache
        svg = thumbnail(drawing_of(self.atlas.by_id[id], cache).spec, cache)
        self._save(f"pictures/{name}.svg", svg)
        return filters.size_of(svg)

    def _write_list(self, claims: list[dict[str, Any]]) -> None:
        self._save(SCHEMA, self._source(SCHEMA))
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        content = {
            "$schema": SCHEMA,
            "attlas": attlas.__version__,
            "files": sorted([LIST, *(str(path.relative_to(self.folder)) for path in paths)]),
            "claims": claims,
        }
        self._save(LIST, json.dumps(content, indent=1, allow_nan=False))


def _font_face() -> str:
    """The font within a style sheet: pages that are opened from disk may not load it from a file,
    and jump while they try."""
    data = base64.b64encode(_asset(FONT)).decode()
    source = f'url(data:font/woff2;base64,{data}) format("woff2")'
    return f'@font-face {{ font-family: "Attlas Math"; src: {source}; }}\n'


def _asset(name: str) -> bytes:
    return (files("attlas.atlas") / "assets" / name).read_bytes()


def _graph(name: str, results: Sequence[Result], root: str = "", centre: str = "") -> str:
    """Which claim rests on which, as SVG; with a `centre` only what touches it."""
    nodes = {
        claim.id: Node(claim.id, title_of(claim.slug), word, f"{root}{claim.id}.html", claim.kind)
        for claim, word in ((result.claim, result.verdict.word) for result in results)
    }
    needs = {
        id: [other for other in claim.needs if centre in ("", id, other)]
        for id, claim in ((result.claim.id, result.claim) for result in results)
    }
    room = PHONE if centre else SCREEN
    return draw_graph(nodes, needs, f"Which claim of {name} rests on which", room)
