"""Which claim rests on which, drawn: layers from left to right, a mark and a link a claim."""

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attlas.claims.claim import KINDS

ROW, LINE, LETTER, GAP, MARGIN = 21.0, 11.0, 6.5, 34.0, 12.0
"""Pixels: height of a row and of each further line of a label, width of a letter, from a label to
the next layer, around everything."""
SCREEN, PHONE = 1040.0, 350.0
"""Pixels that a page has from side to side."""
SWEEPS = 4

# Form as well as colour tells the verdicts apart.
MARKS = {
    "confirmed": '<circle r="5"/>',
    "refuted": '<path d="M-5-5 5 5M-5 5 5-5" fill="none" stroke-width="2.6"/>',
    "undecided": '<path d="M0-6 6 5-6 5Z"/>',
    "outside": '<rect x="-4.5" y="-4.5" width="9" height="9" fill="none" stroke-width="2"/>',
    "not run": '<circle r="4.5" fill="none" stroke-width="2"/>',
}


def colour_of(kind: str) -> str:
    """The class of a kind of evidence, which has a colour on every page."""
    kinds = list(KINDS)
    return f"kind-{kinds.index(kind) + 1}" if kind in kinds else ""


@dataclass(frozen=True)
class Node:
    """A claim in the graph; its kind of evidence is its colour, and its verdict its form."""

    id: str
    label: str
    word: str
    link: str
    kind: str = ""

    letters: int = 60
    """Letters in a line of the label, if words allow it."""

    @property
    def lines(self) -> list[str]:
        return textwrap.wrap(self.label, self.letters, break_long_words=False)

    @property
    def width(self) -> float:
        return 10 + LETTER * max(map(len, self.lines), default=0)


def layers(needs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The ids in layers: each is further right than all that it rests on, and within its layer near
    what it is joined to.

    A circle of needs is cut where it closes. Ids that nothing joins are left out.
    """
    joined = {id for id, on in needs.items() if on} | {
        other for on in needs.values() for other in on
    }
    depth: dict[str, int] = {}

    def place(id: str, below: frozenset[str]) -> int:
        if id not in depth:
            known = [
                place(other, below | {id})
                for other in needs.get(id, ())
                if other not in below | {id}
            ]
            depth[id] = 1 + max(known, default=-1)
        return depth[id]

    for id in sorted(joined):
        place(id, frozenset())
    columns: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for id in sorted(depth):
        columns[depth[id]].append(id)
    after: dict[str, list[str]] = {id: [] for id in depth}
    for id in depth:
        for other in needs.get(id, ()):
            after[other].append(id)
    for sweep in range(SWEEPS):
        rank = {id: i / len(column) for column in columns for i, id in enumerate(column)}
        near = after if sweep % 2 else needs
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            column.sort(key=lambda id: _mean([rank[o] for o in near.get(id, ())], rank[id]))
            rank.update({id: i / len(column) for i, id in enumerate(column)})
    return columns


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def draw_graph(
    nodes: Mapping[str, Node], needs: Mapping[str, Sequence[str]], title: str, room: float = SCREEN
) -> str:
    """The graph as SVG, in the colours of the page it stands in, without ids not in `nodes`.

    Labels are broken into lines where it would otherwise be wider than `room` pixels.
    """
    needs = {
        id: [other for other in on if other in nodes] for id, on in needs.items() if id in nodes
    }
    columns = layers(needs)
    for letters in (60, 20, 15, 12, 9):
        nodes = {id: replace(node, letters=letters) for id, node in nodes.items()}
        widths = [max(nodes[id].width for id in column) for column in columns]
        if sum(widths) + GAP * (len(widths) - 1) + 2 * MARGIN <= room:
            break
    place: dict[str, tuple[float, float]] = {}
    x = MARGIN
    for column in columns:
        y = MARGIN
        for id in column:
            wished = _mean([place[o][1] for o in needs[id] if o in place], y)
            half = _half(nodes[id])
            y = max(y + half, min(wished, y + 4 * ROW))
            place[id] = (x, y)
            y += ROW + half
        x += max(nodes[id].width for id in column) + GAP
    width = x - GAP + MARGIN
    bottom = max((y + _half(nodes[id]) for id, (_, y) in place.items()), default=-ROW + MARGIN)
    alone = [id for id in nodes if id not in place]
    if alone:
        wide = max(nodes[id].width for id in alone) + GAP / 2
        row = ROW + LINE * (max(len(nodes[id].lines) for id in alone) - 1)
        across = max(1, int((max(width, min(room, 700)) - MARGIN) // wide))
        for i, id in enumerate(alone):
            place[id] = (MARGIN + wide * (i % across), bottom + (2 + i // across) * row)
        width = max(width, MARGIN + wide * min(across, len(alone)))
        bottom = max(y + _half(nodes[id]) for id, (_, y) in place.items())
    lines = [_line(nodes[other], id, place) for id, on in needs.items() for other in on]
    marks = [_mark(nodes[id], *place[id]) for id in place]
    height = bottom + MARGIN
    return (
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" role="group"'
        f' aria-label="{html.escape(title)}" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}">{"".join(lines)}{"".join(marks)}</svg>'
    )


def _half(node: Node) -> float:
    """By how much the lines of a label reach above and below those of a single one."""
    return LINE / 2 * (len(node.lines) - 1)


def _line(start: Node, end: str, place: Mapping[str, tuple[float, float]]) -> str:
    (x0, y0), (x1, y1) = place[start.id], place[end]
    x0 += start.width + 4
    x1 -= 8
    half = max(24.0, (x1 - x0) / 2)
    path = f"M{x0:.0f} {y0:.0f}C{x0 + half:.0f} {y0:.0f} {x1 - half:.0f} {y1:.0f} {x1:.0f} {y1:.0f}"
    ends = f'data-from="{html.escape(start.id)}" data-to="{html.escape(end)}"'
    return f'<path class="edge" {ends} d="{path}"/>'


def _mark(node: Node, x: float, y: float) -> str:
    name = html.escape(node.id)
    label = "".join(
        f'<text x="10" y="{4 - _half(node) + LINE * i:g}">{html.escape(line)}</text>'
        for i, line in enumerate(node.lines)
    )
    return (
        f'<a href="{html.escape(node.link)}" data-id="{name}" class="{colour_of(node.kind)}" '
        f'aria-label="{html.escape(node.label)}, {node.word}, {html.escape(node.kind)}">'
        f'<g transform="translate({x:.0f} {y:.0f})">'
        f"{MARKS[node.word]}{label}</g></a>"
    )
