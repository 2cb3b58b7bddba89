"""The guides in docs/, as pages."""

import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

import attlas
from attlas.atlas.formulas import code, mathml

# In the order in which a reader wants them; others follow by name.
ORDER = (
    "first-result",
    "add-a-claim",
    "which-bound",
    "sharp-bits",
    "audit",
    "estimators",
    "scaling",
)


@dataclass(frozen=True)
class Guide:
    """A guide: its name, the first heading, the first sentence, and HTML of all of it."""

    slug: str
    title: str
    words: str
    body: Markup


def docs_folder() -> Path | None:
    """Where the guides are: in the package if it was installed from a wheel, else beside the sources."""
    package = Path(attlas.__file__).parent
    return next(
        (folder for folder in (package / "docs", package.parents[1] / "docs") if folder.is_dir()),
        None,
    )


def read_guides() -> list[Guide]:
    """All guides, in order; none where the documents are not installed."""
    folder = docs_folder()
    files = (
        sorted(folder.glob("*.md"), key=lambda path: (_place(path.stem), path.stem))
        if folder
        else []
    )
    return [render_guide(path.stem, path.read_text(encoding="utf-8")) for path in files]


def _place(slug: str) -> int:
    return ORDER.index(slug) if slug in ORDER else len(ORDER)


def render_guide(slug: str, text: str) -> Guide:
    """HTML of a guide in Markdown. Links between guides lead from page to page; links to other files become text."""
    reader = MarkdownIt("commonmark").enable("table")
    tokens = reader.parse(text)
    heads = [inline.content for token, inline in _pairs(tokens) if token.type == "heading_open"]
    first = next(
        (inline.content for token, inline in _pairs(tokens) if token.type == "paragraph_open"), ""
    )
    for token in tokens:
        if token.type == "inline":
            token.children = list(_linked(token.children or []))
    body = reader.renderer.render(tokens, reader.options, {})
    body = body.replace("<table>", '<div class="scroll"><table>').replace(
        "</table>", "</table></div>"
    )
    body = re.sub(r"<h1>.*?</h1>\s*", "", body, count=1, flags=re.S)
    sentence = re.split(r"(?<=\.)\s", _plain(first).replace("\n", " "), maxsplit=1)[0]
    return Guide(slug, _plain(heads[0]) if heads else slug, sentence, Markup(body))


def linked(body: str, known: Collection[str], root: str) -> Markup:
    """The text with every id of a claim that has a page leading there."""

    def link(found: re.Match[str]) -> str:
        return f'<a href="{root}{found[1]}.html">{found[0]}</a>' if found[1] in known else found[0]

    return Markup(re.sub(r"<code>([a-z0-9-]+/[a-z0-9-]+)</code>", link, body))


def _pairs(tokens: list[Token]) -> Iterator[tuple[Token, Token]]:
    return itertools.pairwise(tokens)


def _plain(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


def _linked(children: list[Token]) -> Iterator[Token]:
    dropped = 0
    for token in children:
        if token.type == "link_open":
            target = str(token.attrGet("href") or "")
            if re.fullmatch(r"[\w-]+\.md(#.*)?", target):
                token.attrSet("href", target.replace(".md", ".html"))
            elif not target.startswith("#"):
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
