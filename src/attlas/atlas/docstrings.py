"""Docstrings as the house writes them: prose with formulas, then arguments, what comes back and
examples.

    Arguments:
        task: the task. `lam`: the sharpness.
        start, steps: entries go on where they are indented.
        others: as in `descend`.

    Returns: a sentence.

    >>> 1 + 1
    2

Arguments may also be a list with "-", or the `Parameters` of numpydoc, which scikit-learn uses.
"""

import html
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from markupsafe import Markup

from attlas.atlas.formulas import mathml

_ALIKE = re.compile(r"(?:^|others:? )as (?:in|for) `([\w.]+)`", re.M)
_NAME = r"`?(\w+)(?:\([^)`]*\))?`?( \[[^\]]*\](?: or \[[^\]]*\])?)?"
_ENTRY = re.compile(rf"(?:^|(?<=[.;] )){_NAME}(?:, {_NAME})*:\s")


@dataclass(frozen=True)
class Docstring:
    """A docstring in its parts.

    Arguments:
        prose: paragraphs, lists and code that are none of the others.
        arguments: what is said of each.
        alike: the functions whose arguments the others are.
        returns: what comes back, or "".
        examples: sessions of the interpreter.
    """

    prose: tuple[str, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()
    returns: str = ""
    examples: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first sentence, or the first paragraph where a formula ends it."""
        first = " ".join(self.prose[0].split()) if self.prose else ""
        found = re.match(r"(?:[^$`.]|\$[^$]*\$|`[^`]*`|\.(?! ))*\.(?= |$)", first)
        return found[0] if found else first

    def mentions(self, name: str) -> bool:
        """Whether it speaks of an argument by its name or by its symbol."""
        symbol = rf"\$[^$]*\\{name}\b|\${name}\b" if name.isascii() else ""
        text = " ".join([*self.prose, *self.arguments.values(), self.returns])
        return re.search(rf"`[^`]*\b{name}\b[^`]*`|{symbol}", text) is not None


def parse_docstring(text: str | None) -> Docstring:
    """The parts of a docstring."""
    prose: list[str] = []
    returns, examples = "", ""
    listed: list[str] = []
    for heading, block in _blocks(inspect.cleandoc(text or "")):
        if heading in ("Arguments", "Parameters"):
            listed.append(block)
        elif heading == "Returns":
            returns = " ".join(block.split())
        elif block.lstrip().startswith(">>>"):
            examples += inspect.cleandoc(block) + "\n\n"
        elif heading:
            prose += [f"{heading}:", *_numpydoc(block)]
        else:
            prose.append(block)
    said = "\n".join(listed)
    return Docstring(
        tuple(prose),
        dict(_entries(said)),
        tuple(_ALIKE.findall(said)),
        returns,
        (examples.rstrip(),) if examples else (),
    )


def render_prose(prose: tuple[str, ...]) -> Markup:
    """HTML of paragraphs, lists and code."""
    return Markup("\n".join(_render(block) for block in prose))


def _render(block: str) -> str:
    if block.startswith("    "):
        return f"<pre><code>{html.escape(inspect.cleandoc(block))}</code></pre>"
    if block.startswith("- "):
        items = re.split(r"^- ", block, flags=re.M)[1:]
        return f"<ul>{''.join(f'<li>{_sentence(item)}</li>' for item in items)}</ul>"
    return f"<p>{_sentence(block)}</p>"


def _sentence(text: str) -> Markup:
    return mathml(" ".join(text.split()).replace("$$", "$"))


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Paragraphs, each with the heading that it stands under, if any."""
    heading = ""
    for block in re.split(r"\n\s*\n", text):
        below, started = heading, ""
        if found := re.match(r"(Arguments|Returns):(?=\s|$)[ \t]*", block):
            below, started, block = found[1], found[1], block[found.end() :].lstrip("\n")
            heading = below if found[1] == "Arguments" and not block.strip() else ""
        elif found := re.match(r"(\w+)\n-{3,}\n", block):
            below = heading = found[1]
            block = block[found.end() :]
        elif heading == "Arguments" and not re.match(r"[- ]", block):
            below = heading = ""
        if below == "Examples" or block.lstrip().startswith(">>>"):
            below = ""
        if block.strip() or started:
            yield below, block


def _numpydoc(block: str) -> list[str]:
    """Entries `name : type` with their indented text, as a list."""
    entries = re.split(r"^(?=\S)", block, flags=re.M)[1:]
    if not all("\n    " in entry for entry in entries):
        return [block]
    parts = (entry.split("\n", 1) for entry in entries)
    return ["\n".join(f"- `{head.strip()}`: {' '.join(rest.split())}" for head, rest in parts)]


def _entries(block: str) -> Iterator[tuple[str, str]]:
    """What is said of each argument."""
    for entry in _split(inspect.cleandoc(block)):
        if found := re.match(r"(\w+(?:, \w+)*) : (.*)\n?((?:.|\n)*)", entry):  # numpydoc
            for name in found[1].split(", "):
                yield name, " ".join(f"{found[2]}. {found[3]}".split())
            continue
        text = " ".join(entry.removeprefix("- ").split())
        starts = list(_ENTRY.finditer(text))
        if not starts:  # "- `queries` [*s q d], `keys` [*s n d]."
            for name, shape in re.findall(r"`(\w+)(?:\([^)`]*\))?`( \[[^\]]*\])?", text):
                yield name, shape.strip() or text
        for here, after in itertools.pairwise([*starts, None]):
            assert here  # only the last is None
            words = text[here.end() : after.start() if after else None].strip()
            for name, shape in re.findall(_NAME, here[0].rstrip().removesuffix(":")):
                yield name, f"{shape.strip()}: {words}" if shape else words


def _split(block: str) -> Iterator[str]:
    """Entries, each with the lines that are indented below it."""
    yield from (entry for entry in re.split(r"^(?=\S)", block, flags=re.M) if entry.strip())
