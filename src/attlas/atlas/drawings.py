"""What a page of a claim offers to take away: its figure and its evidence, made once and kept beside the store."""

import hashlib
import json
import math
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert
import xarray as xr
from altair.utils.schemapi import debug_mode

import attlas
from attlas.lab.blocks import encode_block
from attlas.lab.runner import Result
from attlas.lab.store import temporary_file

ROWS = 5_000
"""A variable with more values is not in the table; the netCDF file has it."""

FORMATS = ("svg", "pdf", "nc", "csv")

WIDEST = 0.6
"""A letter's width over its size, on average, in the widest of the usual fonts (DejaVu Sans and Verdana)."""


@dataclass(frozen=True)
class Drawing:
    """A claim's figure as a Vega-Lite specification in JSON, and its files by their ending."""

    spec: str
    files: dict[str, bytes]

    @property
    def svg(self) -> str:
        return self.files["svg"].decode() if "svg" in self.files else ""


def drawing_of(result: Result, keep: Path | None = None) -> Drawing:
    """The drawing of a result, from the folder `keep` if it was made before by the same code."""
    if not result.evidence:
        return Drawing("", {})
    place = None if keep is None else keep / _key(result)
    kept = None if place is None else _read(place)
    if kept is not None:
        return kept
    made = _make(result)
    if place is not None:
        with suppress(OSError):  # what cannot be kept is made again next time
            _write(place, made)
    return made


def _make(result: Result) -> Drawing:
    files = {"nc": encode_block(_described(result)), "csv": _table(result.evidence).encode()}
    if result.claim.drawing is None:
        return Drawing("", files)
    with debug_mode(False):  # the tests validate
        chart = result.figure()
    spec, svg = drawn(chart)
    return Drawing(spec, {"svg": svg.encode(), "pdf": vl_convert.svg_to_pdf(svg), **files})


def drawn(chart: Any, keep: Path | None = None) -> tuple[str, str]:
    """A chart as a specification that may stand in a script element of HTML, and as SVG."""
    spec = json.dumps(chart.to_dict(validate=False), separators=(",", ":"))
    # "<" is written so that no text of the data can end the script element it stands in.
    return spec.replace("<", "\\u003c"), _svg(spec, keep)


def _svg(spec: str, keep: Path | None) -> str:
    name = (
        f"{hashlib.sha256(spec.encode()).hexdigest()[:24]}-{version('vl-convert-python')}-roomy.svg"
    )
    return _kept(keep, name, lambda: roomy(vl_convert.vegalite_to_svg(spec)))


def roomy(svg: str) -> str:
    """The figure in a frame that holds every text, also where the reader's letters are wider than those it was laid out with."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    left, right = 0.0, width
    for x, text in _level_texts(root, 0.0):
        reach = (
            WIDEST
            * float(text.attrib["font-size"].removesuffix("px"))
            * len("".join(text.itertext()))
        )
        share = {"middle": 0.5, "end": 1.0}.get(text.attrib.get("text-anchor", "start"), 0.0)
        left, right = min(left, x - share * reach), max(right, x + (1 - share) * reach)
    left, span = math.floor(left), math.ceil(right) - math.floor(left)
    frame = f'width="{span}" height="{height:g}" viewBox="{left} 0 {span} {height:g}"'
    svg = re.sub(r'width="[\d.]+" height="[\d.]+" viewBox="[^"]+"', frame, svg, count=1)
    return re.sub(r'<rect width="[\d.]+"', f'<rect x="{left}" width="{span}"', svg, count=1)


def _level_texts(
    node: ElementTree.Element, x: float
) -> Iterator[tuple[float, ElementTree.Element]]:
    """Texts that run from left to right, with the place at which they are anchored; upright ones need no room sideways."""
    move = node.attrib.get("transform", "")
    if "rotate" in move:
        return
    if found := re.match(r"translate\(([-\d.e]+)", move):
        x += float(found[1])
    if node.tag.endswith("}text"):
        yield x, node
    for child in node:
        yield from _level_texts(child, x)


def thumbnail(spec: str, keep: Path | None = None) -> str:
    """The SVG of a specification without title and legends, whose letters can be read at a third of the size."""
    small = json.loads(
        spec, object_hook=lambda part: part | ({"legend": None} if "legend" in part else {})
    )
    small.pop("title", None)
    axis = {"labelFontSize": 18, "titleFontSize": 20, "titlePadding": 14, "tickCount": 4}
    small["config"] |= {"legend": {"disable": True}, "axis": small["config"].get("axis", {}) | axis}
    return _svg(json.dumps(small, separators=(",", ":")), keep)


def script(keep: Path | None = None) -> str:
    """The script that draws specifications in a browser."""
    return _kept(keep, f"vega-{version('vl-convert-python')}.js", vl_convert.javascript_bundle)  # type: ignore[arg-type]


def _kept(keep: Path | None, name: str, make: Callable[[], str]) -> str:
    """A text from the folder `keep` if it was made before."""
    if keep is None:
        return make()
    place = keep / name
    if place.is_file():
        return place.read_text(encoding="utf-8")
    made = make()
    with suppress(OSError):  # what cannot be kept is made again next time
        _put(place, made.encode())
    return made


def _described(result: Result) -> xr.Dataset:
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


def _table(evidence: xr.Dataset) -> str:
    """One row a value: the variable, its place on each axis, and the value."""
    parts = []
    for name, values in evidence.data_vars.items():
        if values.size <= ROWS:
            plain = (
                values.reset_coords(drop=True)
                .rename("value")
                .expand_dims("only" if not values.dims else ())
            )
            parts.append(plain.to_dataframe().reset_index().assign(variable=name))
    if not parts:
        return "variable,value\n"
    table = pd.concat(parts, ignore_index=True)
    names = [name for name in table if name not in ("variable", "value", "only")]
    axes = {
        name: table[name].astype("Int64")
        for name in names
        if table[name].dropna().map(type).eq(int).all()
    }
    return table.assign(**axes)[["variable", *names, "value"]].to_csv(index=False)


def _key(result: Result) -> str:
    """What the drawing depends on: the evidence, by what it was computed from, and the code that draws."""
    claim = result.claim
    parts = [
        attlas.__version__,
        claim.id,
        claim.code,
        result.scale,
        result.setting.canonical(),
        str(result.seed),
    ]
    digest = hashlib.sha256(
        "\n".join([*parts, str(result.provenance.get("seed")), result.verdict.word]).encode()
    )
    for path in _drawers(result):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _drawers(result: Result) -> Iterator[Path]:
    package = Path(attlas.__file__).parent
    yield Path(__file__)
    yield package / "drawing.py"
    module = sys.modules.get(getattr(result.claim.drawing, "__module__", None) or "")
    home = Path(getattr(module, "__file__", None) or result.claim.file)
    yield from sorted((*home.parent.glob("*.py"),) if home.is_relative_to(package) else (home,))


def _read(place: Path) -> Drawing | None:
    try:
        content = json.loads((place / "drawing.json").read_text(encoding="utf-8"))
        return Drawing(
            content["spec"], {ending: (place / ending).read_bytes() for ending in content["files"]}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(place: Path, made: Drawing) -> None:
    """`drawing.json` comes last: a place that has it is whole."""
    content = json.dumps({"spec": made.spec, "files": list(made.files)}).encode()
    for name, data in {**made.files, "drawing.json": content}.items():
        _put(place / name, data)


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(path.parent, path.suffix) as file:
        file.write_bytes(data)
        os.replace(file, path)
