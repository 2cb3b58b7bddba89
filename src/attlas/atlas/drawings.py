"""What a page of a claim offers to take away, its figure and its evidence as files: made once, and
kept beside the store."""

import hashlib
import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert
import xarray as xr
from altair.utils.schemapi import debug_mode

import attlas
from attlas.atlas.descriptions import describe_figure
from attlas.claims.digest import figure_digest
from attlas.figure_style import DARK
from attlas.lab.blocks import encode_block
from attlas.lab.files import Damaged, parse_json, read_whole, seal, temporary_file, unseal
from attlas.lab.runner import Result
from attlas.lab.store import Store

MAX_ROWS = 5_000
"""A variable with more values is not in the table; the netCDF file has it."""

FORMATS = ("svg", "nc", "csv", "thumbnail")
_LISTED = {"spec": str, "files": [re.compile("|".join(FORMATS))]}
"""The form of `drawing.json`."""

_DARKER = "".join(
    f'[{part}="{light}"] {{ {part}: {dark} }}'
    for light, dark in DARK.items()
    for part in ("fill", "stroke")
)
_DARKER = f"<style>@media (prefers-color-scheme: dark) {{ {_DARKER} }}</style>"
"""What gives an SVG the colours of a dark page, where its reader prefers one."""

LETTER_WIDTH = 0.6
"""A letter's width over its size, on average, in the widest usual fonts (DejaVu Sans, Verdana)."""


FEW = 250
"""Rows of a table that the smallest picture of a figure draws."""
DIGITS = 6
"""Significant digits of the numbers that a page draws; the files have all."""


@dataclass(frozen=True)
class Picture:
    """A figure as a Vega-Lite specification that may stand in a script element, and as SVG."""

    spec: str
    svg: str

    @cached_property
    def content(self) -> dict[str, Any]:
        return json.loads(self.spec)

    @property
    def packed(self) -> str:
        """The specification as a page holds it, with tables column by column."""
        tables = self.content.get("datasets", {})
        packed = {name: pack_table(rows) for name, rows in tables.items()}
        text = json.dumps({**self.content, "datasets": packed}, separators=(",", ":"))
        return text.replace("<", "\\u003c")

    @property
    def title(self) -> str:
        return self._heading.get("text", "")

    @property
    def note(self) -> str:
        """The line below the title."""
        return self._heading.get("subtitle", "")

    @property
    def _heading(self) -> dict[str, str]:
        title = self.content.get("title", {})
        return {"text": title} if isinstance(title, str) else title

    @property
    def single(self) -> bool:
        """Whether no two of its panels stand side by side."""
        return not {"concat", "hconcat", "facet"} & set(self.content)

    @property
    def words(self) -> list[str]:
        return describe_figure(self.content)


@dataclass(frozen=True)
class Drawing:
    """A claim's figure as a Vega-Lite specification in JSON, and its files by their ending."""

    spec: str
    files: dict[str, bytes]

    @property
    def picture(self) -> Picture:
        return Picture(self.spec, self.files.get("svg", b"").decode())


def drawings_folder(store: Store) -> Path:
    """Where drawings of the store's evidence are kept."""
    return store.folder / "drawings"


def drawing_of(result: Result, cache: Path | None = None) -> Drawing:
    """The drawing of a result, from the folder `cache` if it was made before by the same code."""
    if not result.evidence:
        return Drawing("", {})
    if cache is None:
        return _make(result)
    place = cache / _key(result)
    found = _read(place)
    if found is None:
        found = _make(result)
        with suppress(OSError):  # what cannot be kept is made again next time
            _write(place, found)
    return found


def _make(result: Result) -> Drawing:
    files = {"nc": encode_block(_describe(result)), "csv": evidence_table(result.evidence).encode()}
    if result.claim.drawing is None:
        return Drawing("", files)
    with debug_mode(False):  # the tests validate
        chart = result.figure()
    made = render_chart(chart)
    files["thumbnail"] = small_thumbnail(made.spec).encode()
    return Drawing(made.spec, {"svg": made.svg.encode(), **files})


def _describe(result: Result) -> xr.Dataset:
    """The evidence with what a reader of the file alone must know."""
    claim = result.claim
    facts = {
        "claim": claim.id,
        "statement": claim.statement,
        "reference": f"{claim.source}, {claim.reference}",
        "verdict": result.verdict.word,
        "scale": result.scale,
        "setting": result.setting.canonical(),
        **{name: str(value) for name, value in result.provenance.items()},
    }
    return result.evidence.assign_attrs({**result.evidence.attrs, **facts})


def evidence_table(evidence: xr.Dataset) -> str:
    """CSV with one row for each value: the variable, its place on each axis, and the value."""
    parts = []
    for name, values in evidence.data_vars.items():
        if values.size <= MAX_ROWS:
            plain = values.reset_coords(drop=True).rename("value")
            plain = plain if values.dims else plain.expand_dims("only")
            parts.append(plain.to_dataframe().reset_index().assign(variable=name))
    if not parts:
        return "variable,value\n"
    table = pd.concat(parts, ignore_index=True)
    axes = [name for name in table if name not in ("variable", "value", "only")]
    for name in axes:
        if table[name].dropna().map(type).eq(int).all():
            table[name] = table[name].astype("Int64")  # whole numbers stay so beside gaps
    return table[["variable", *axes, "value"]].to_csv(index=False)


def render_chart(chart: Any, cache: Path | None = None) -> Picture:
    """An Altair chart as a picture."""
    return render_specification(chart.to_dict(validate=False), cache)


def render_specification(content: dict[str, Any], cache: Path | None = None) -> Picture:
    """A Vega-Lite specification as a picture."""
    short = _shortened(content)
    tables = {
        name: [{k: v for k, v in row.items() if v is not None} for row in rows]
        for name, rows in short.get("datasets", {}).items()
    }
    spec = json.dumps(short | ({"datasets": tables} if tables else {}), separators=(",", ":"))
    # "<" is escaped, so that no text of the data can end the script element it stands in.
    return Picture(spec.replace("<", "\\u003c"), _render_svg(spec, cache))


def _shortened(value: Any) -> Any:
    """The specification without digits that nobody sees."""
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e9 else short
    if isinstance(value, dict):
        return {name: _shortened(part) for name, part in value.items()}
    return [_shortened(part) for part in value] if isinstance(value, list) else value


def pack_table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A table column by column, null where a row has no value; words, and what else repeats, as
    the list of all that occur and places in it. `unpacked` in figures.js is its inverse."""
    names = dict.fromkeys(name for row in rows for name in row)
    packed: dict[str, Any] = {}
    for name in names:
        column = [row.get(name) for row in rows]
        known = list(dict.fromkeys(column))
        place = {value: number for number, value in enumerate(known)}
        often = 4 * len(known) < len(column)
        packed[name] = {"of": known, "at": [place[v] for v in column]} if often else column
    return packed


def thumbnail(spec: str, cache: Path | None = None) -> str:
    """The SVG of a specification without title and legends, legible at a third of the size."""
    axis = {"labelFontSize": 18, "titleFontSize": 20, "titlePadding": 14, "tickCount": 4}
    return _render_svg(_bare(json.loads(spec), axis), cache)


def small_thumbnail(spec: str) -> str:
    """The SVG of a specification's first panel without words, to be recognised by."""
    content = json.loads(spec)
    panels = content.get("concat") or content.get("vconcat") or content.get("hconcat")
    if panels:
        kept = {name: content[name] for name in ("config", "datasets", "data") if name in content}
        content = kept | panels[0]
    content["datasets"] = {
        name: rows[:: max(1, len(rows) // FEW)]
        for name, rows in content.get("datasets", {}).items()
    }
    axis = {"labels": False, "ticks": False, "title": None, "domain": False}
    return vl_convert.vegalite_to_svg(_bare(content, axis)).replace("><", f">{_DARKER}<", 1)


def _bare(content: dict[str, Any], axis: dict[str, Any]) -> str:
    """A specification without title and legends, whose axes have the options `axis`."""

    def strip(part: dict[str, Any]) -> dict[str, Any]:
        part.pop("labelLimit", None)  # of letters of another size
        return part | {"legend": None} if "legend" in part else part

    content = json.loads(json.dumps(content), object_hook=strip)
    content.pop("title", None)
    axes = content["config"].get("axis", {}) | axis
    content["config"] |= {"legend": {"disable": True}, "axis": {"labelLimit": 500} | axes}
    if axis.get("labels") is False:
        content["config"]["header"] = {"labels": False, "title": None}
        content["config"]["axis"]["titleFontSize"] = 0
    return json.dumps(content, separators=(",", ":"))


def _render_svg(spec: str, cache: Path | None) -> str:
    digest = hashlib.sha256(spec.encode()).hexdigest()[:24]
    name = f"{digest}-{version('vl-convert-python')}-themed.svg"

    def make() -> str:
        return widen_frame(vl_convert.vegalite_to_svg(spec)).replace("><", f">{_DARKER}<", 1)

    return _read_or_make(cache, name, make)


def vega_script(cache: Path | None = None) -> str:
    """The script that draws specifications in a browser."""
    name = f"vega-{version('vl-convert-python')}.js"
    return _read_or_make(cache, name, vl_convert.javascript_bundle)  # type: ignore[arg-type]


def _read_or_make(cache: Path | None, name: str, make: Callable[[], str]) -> str:
    """A text from the folder `cache` if it was made before."""
    if cache is None:
        return make()
    place = cache / name
    with suppress(OSError, Damaged):
        return _take(place).decode()
    made = make()
    with suppress(OSError):  # what cannot be kept is made again next time
        _put(place, made.encode())
    return made


def widen_frame(svg: str) -> str:
    """The figure in a frame that holds every text, also where the reader's letters are wider than
    those it was laid out with."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    left, right = 0.0, width
    for x, text in _horizontal_texts(root, 0.0):
        letters = len("".join(text.itertext()))
        reach = LETTER_WIDTH * letters * float(text.attrib["font-size"].removesuffix("px"))
        share = {"middle": 0.5, "end": 1.0}.get(text.attrib.get("text-anchor", "start"), 0.0)
        left, right = min(left, x - share * reach), max(right, x + (1 - share) * reach)
    left, span = math.floor(left), math.ceil(right) - math.floor(left)
    frame = f'width="{span}" height="{height:g}" viewBox="{left} 0 {span} {height:g}"'
    svg = re.sub(r'width="[\d.]+" height="[\d.]+" viewBox="[^"]+"', frame, svg, count=1)
    return re.sub(r'<rect width="[\d.]+"', f'<rect x="{left}" width="{span}"', svg, count=1)


def _horizontal_texts(
    node: ElementTree.Element, x: float
) -> Iterator[tuple[float, ElementTree.Element]]:
    """Texts that run from left to right, with the x at which they are anchored."""
    move = node.attrib.get("transform", "")
    if "rotate" in move:
        return
    if found := re.match(r"translate\(([-\d.e]+)", move):
        x += float(found[1])
    if node.tag.endswith("}text"):
        yield x, node
    for child in node:
        yield from _horizontal_texts(child, x)


def _key(result: Result) -> str:
    """What the drawing depends on: the evidence, by what it was computed from, and the code that
    draws."""
    claim = result.claim
    parts = [
        attlas.__version__,
        version("altair"),
        version("vl-convert-python"),
        claim.id,
        claim.code,
        result.scale,
        result.setting.canonical(),
        str(result.seed),
        str(result.provenance.get("seed")),
        result.verdict.word,
        figure_digest(claim.drawing.__module__) if claim.drawing else "",
        Path(__file__).read_text(encoding="utf-8"),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _read(place: Path) -> Drawing | None:
    with suppress(OSError, Damaged):
        content = parse_json(_take(place / "drawing.json"), _LISTED)
        files = {ending: _take(place / ending) for ending in content["files"]}
        return Drawing(content["spec"], files)
    return None


def _write(place: Path, made: Drawing) -> None:
    """Write the files; `drawing.json` comes last, so that a folder that has it is complete."""
    content = json.dumps({"spec": made.spec, "files": list(made.files)}).encode()
    for name, data in {**made.files, "drawing.json": content}.items():
        _put(place / name, data)


def _put(path: Path, data: bytes) -> None:
    """Keep a file. It is not flushed: what a loss of power leaves of it is not taken again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(path.parent, path.suffix) as file:
        file.write_bytes(seal(data))
        os.replace(file, path)


def _take(path: Path) -> bytes:
    return unseal(read_whole(path))
