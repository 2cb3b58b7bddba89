"""An audit as one page: self-contained HTML that opens from disk without a network."""

import base64
import json
import os
import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
import xarray as xr
from markupsafe import Markup, escape

import attlas
from attlas.audit.auditing import Audit, as_json, compare
from attlas.audit.quantities import (
    BOUNDS,
    COLUMNS,
    FROM_TEXT,
    FROM_WEIGHTS,
    GROUPS,
    NAMES,
    SHARES,
)
from attlas.content_policy import with_policy
from attlas.errors import InputError

WORDS = FROM_TEXT | FROM_WEIGHTS
DRAWN = (
    *("model", "facts", "heads", "layers", "references", "reference_layers"),
    *("probes", "reference_probes"),
)
"""The parts of `Audit.to_dict` that the script of the page draws."""


def write_page(audits: Sequence[Audit], path: Path, atlas: Path | None = None) -> Path:
    """Write the page of one audit, or of two side by side; an error leaves no part of it.

    Arguments: `atlas`, the folder of an atlas to link to.
    """
    folder = None if atlas is None else Path(os.path.relpath(atlas, path.parent)).as_posix() + "/"
    text = render_page(audits, folder and quote(folder))
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".under-way-", suffix=".html")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    return path


def render_page(
    audits: Sequence[Audit], atlas: str | None = None, pages: Collection[str] | None = None
) -> str:
    """The HTML of the page of one audit, or of two side by side.

    Arguments:
        atlas: the way from the page to the folder of an atlas, whose claims, guides and explorers
            are then linked; without one, their names and commands are given.
        pages: those that the atlas has, if not all.
    """
    loaders = [jinja2.PackageLoader("attlas.audit"), jinja2.PackageLoader("attlas")]
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["powers"] = raise_powers
    difference = compare(*audits) if len(audits) == 2 else None
    compared = difference is not None and difference.heads.data_vars
    data = {
        "audits": [_page_data(audit) for audit in audits],
        "difference": as_json(difference.heads) if difference is not None and compared else None,
        "groups": GROUPS,
        "words": WORDS,
        "names": NAMES,
        "shares": sorted(SHARES),
        "columns": COLUMNS,
    }
    # "<" is escaped so that no text of the data can end the script element that contains it.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = templates.get_template("audit.html").render(
        audits=audits,
        difference=difference,
        data=content,
        words=WORDS,
        names=NAMES,
        root=atlas,
        pages=pages,
        groups=GROUPS,
        covers=_cover_rows,
        version=attlas.__version__,
    )
    return with_policy(page)


def raise_powers(text: str) -> Markup:
    """The text with powers of ten raised."""
    return Markup(re.sub(r"10\^(-?[\d.]*\d)", r"10<sup>\1</sup>", str(escape(text))))


def _cover_rows(audit: Audit) -> list[dict[str, Any]]:
    """The rows of the table of bounds, each with what it depends on."""
    rows = []
    for name, words in BOUNDS.items():
        one = audit.bounds.sel(bound=name)
        nats = {
            "head": one.head_nats.median(("layer", "head")).values.tolist(),
            "model": one.model_nats.values.tolist(),
            "samples": float(one.samples),
        }
        rows.append({**words, **nats})
    return rows


def _page_data(audit: Audit) -> dict[str, Any]:
    """What the script draws: numbers of the JSON, and the attention of the example as bytes."""
    found = audit.to_dict()
    kept = {name: found[name] for name in DRAWN}
    kept["sorted"] = {name: _sort_values(found) for name, found in audit.references.items()}
    if audit.example is not None:
        weights = np.asarray(audit.example.attention, float)
        pixels = np.round(255 * np.clip(weights, 0, 1)).astype(np.uint8)
        kept["example"] = {
            "pieces": list(audit.example.pieces),
            "attention": base64.b64encode(pixels.tobytes()).decode("ascii"),
        }
    return kept


def _sort_values(reference: xr.Dataset) -> dict[str, list[float]]:
    """The sorted values of every quantity over heads, from which the page computes ranks."""
    values = {
        name: x.values.ravel() for name, x in reference.items() if x.dims == ("layer", "head")
    }
    return {str(name): as_json(np.sort(x[np.isfinite(x)])) for name, x in values.items()}
