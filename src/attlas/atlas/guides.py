"""The guides in docs/, as pages."""

import itertools
import posixpath
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

import attlas
from attlas.atlas.formulas import code, mathml
from attlas.atlas.titles import title_of

ORDER = (
    "first-result",
    "check",
    "tour",
    "add-a-claim",
    "which-bound",
    "sharp-bits",
    "audit",
    "estimators",
    "scaling",
    "refute",
)
"""Guides in the order in which a reader wants them; others follow by name."""

SIGNS = r"([\\_*\[\]<&])"
"""What Markdown would take for its own within a formula."""


@dataclass(frozen=True)
class Guide:
    """A guide: its name, the first heading, the first sentence, and HTML of all of it."""

    slug: str
    title: str
    words: str
    body: Markup


def docs_folder() -> Path | None:
    """Where the guides are: in the package if it was installed from a wheel, else beside the
    sources."""
    package = Path(attlas.__file__).parent
    places = (package / "docs", package.parents[1] / "docs")
    return next((folder for folder in places if folder.is_dir()), None)


def read_guides() -> list[Guide]:
    """All guides, in order; none where the documents are not installed."""
    folder = docs_folder()
    order = {slug: place for place, slug in enumerate(ORDER)}
    files = {path.stem: path for path in folder.glob("*.md")} if folder else {}
    slugs = sorted(files, key=lambda slug: (order.get(slug, len(order)), slug))
    return [render_guide(slug, files[slug].read_text(encoding="utf-8")) for slug in slugs]


def render_guide(slug: str, text: str) -> Guide:
    """HTML of a guide in Markdown. Links between guides lead from page to page; links to other
    files become text."""
    reader = MarkdownIt("commonmark").enable("table")
    tokens = reader.parse(text)
    first = {  # of each kind of block, the text of the first
        token.type: inline.content for token, inline in reversed([*itertools.pairwise(tokens)])
    }
    for token in tokens:
        if token.type == "inline":
            token.children = list(_convert(token.children or []))
    body = reader.renderer.render(tokens, reader.options, {})
    body = body.replace("<table>", '<div class="scroll"><table>')
    body = body.replace("</table>", "</table></div>")
    body = re.sub(r"<h1>.*?</h1>\s*", "", body, count=1, flags=re.S)
    paragraph = _strip_markup(first.get("paragraph_open", "")).replace("\n", " ")
    sentence = re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]
    return Guide(slug, _strip_markup(first.get("heading_open", slug)), sentence, Markup(body))


def guard_formulas(text: str) -> str:
    """Markdown in which no sign of a formula is taken for Markdown's."""
    return re.sub(r"\$[^$\n]+\$", lambda tex: re.sub(SIGNS, r"\\\1", tex[0]), text)


def link_claims(body: str, known: Collection[str], root: str, titles: bool = False) -> Markup:
    """The text with a link from every id of a claim that has a page; with `titles` its title stands
    in place of the id."""

    def link(found: re.Match[str]) -> str:
        shown = title_of(found[1].partition("/")[2]) if titles else found[0]
        return f'<a href="{root}{found[1]}.html">{shown}</a>' if found[1] in known else found[0]

    return Markup(re.sub(r"<code>([a-z0-9-]+/[a-z0-9-]+)</code>", link, body))


def link_pages(body: str, here: str, pages: Collection[str]) -> Markup:
    """The text of the page `here`, without links to pages that are not among `pages`."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), found[1]))
        return found[0] if target in pages else found[2]

    return Markup(re.sub(r'<a href="([\w./-]+\.html)">(.*?)</a>', link, body))


def _strip_markup(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


def _convert(children: list[Token]) -> Iterator[Token]:
    """The tokens with formulas and code as HTML, and with links that lead to pages only."""
    dropped = 0
    for token in children:
        if token.type == "link_open":
            target = str(token.attrGet("href") or "")
            if re.fullmatch(r"[\w-]+\.md(#.*)?", target):
                token.attrSet("href", target.replace(".md", ".html"))
            elif not re.fullmatch(r"[\w./-]+\.html", target) and not target.startswith("#"):
                dropped += 1
                continue
        elif token.type == "text" and "$" in token.content:
            token = Token("html_inline", "", 0, content=str(mathml(token.content)))
        elif token.type == "code_inline":
            token = Token("html_inline", "", 0, content=code(token.content))
        elif token.type == "link_close" and dropped:
            dropped -= 1
            continue
        yield token
