"""An audit as one page: self-contained HTML that opens from disk and asks nothing of a network."""

import base64
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

import attlas
from attlas.audit import behaviour, heads
from attlas.audit.auditing import Audit, compare, plain
from attlas.errors import InputError

MEANING = behaviour.MEANING | heads.MEANING
GROUPS = {
    "Where attention lies": (
        "single_location",
        "reader_location",
        "content",
        "positional",
        "broad",
        "sink",
        "first",
        "entropy",
        "support",
        "largest",
        "best_offset",
        "best_offset_mass",
    ),
    "Single-location regression": ("query_free", "read_direction", "softmax_gate", "erf_gate"),
    "Regression of values on keys": (
        "cme_distance",
        "cme_ridge",
        "cme_temperature",
        "sphere_distance",
        "key_spread",
    ),
    "Query-key product": (
        "qk_spectral",
        "qk_frobenius",
        "qk_21",
        "qk_stable_rank",
        "qk_effective_rank",
        "qk_gate",
    ),
    "Output-value product": (
        "ov_spectral",
        "ov_frobenius",
        "ov_21",
        "ov_stable_rank",
        "ov_effective_rank",
    ),
    "Capacity": ("log10_lipschitz", "log10_nats", "qk_share"),
}
"""The quantities of a head, as the page offers them."""
SHARES = {
    *(
        "single_location",
        "reader_location",
        "content",
        "positional",
        "broad",
        "sink",
        "first",
        "entropy",
        "largest",
    ),
    *(
        "best_offset_mass",
        "query_free",
        "read_direction",
        "softmax_gate",
        "erf_gate",
        "qk_gate",
        "qk_share",
    ),
}
"""Those that lie between 0 and 1, and are drawn on that scale."""
COLUMNS = (
    *(
        "single_location",
        "content",
        "positional",
        "sink",
        "first",
        "largest",
        "best_offset",
        "support",
        "softmax_gate",
    ),
    *(
        "erf_gate",
        "cme_distance",
        "qk_spectral",
        "qk_effective_rank",
        "ov_spectral",
        "qk_share",
        "log10_lipschitz",
    ),
)
"""The columns of the table."""


def write_page(audits: Sequence[Audit], path: Path) -> Path:
    """Write the page of one audit, or of two side by side; whole, or not at all."""
    text = render(audits)
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


def render(audits: Sequence[Audit]) -> str:
    """The HTML of the page."""
    loaders = [jinja2.PackageLoader("attlas.audit"), jinja2.PackageLoader("attlas")]
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    templates.globals["version"] = attlas.__version__
    difference = (
        compare(*audits)
        if len(audits) == 2 and audits[0].heads.sizes == audits[1].heads.sizes
        else None
    )
    data = {
        "audits": [_data(audit) for audit in audits],
        "difference": None if difference is None else plain(difference.heads),
        "groups": GROUPS,
        "words": MEANING,
        "shares": sorted(SHARES),
        "columns": COLUMNS,
    }
    # "<" is written so that no text of the data can end the script element it stands in.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = templates.get_template("audit.html")
    return page.render(
        audits=audits, difference=difference, data=content, words=MEANING, groups=GROUPS
    )


def _data(audit: Audit) -> dict[str, Any]:
    """What the page's script draws from: the same numbers as the JSON, and the attention of the example as bytes."""
    found = audit.to_dict()
    kept = {
        name: found[name]
        for name in (
            "model",
            "facts",
            "heads",
            "layers",
            "references",
            "reference_layers",
            "probes",
            "reference_probes",
        )
    }
    kept["sorted"] = {name: _ranked(reference) for name, reference in audit.references.items()}
    if audit.example is not None:
        weights = np.asarray(audit.example.attention, float)
        pixels = np.round(255 * np.clip(weights, 0, 1)).astype(np.uint8)
        kept["example"] = {
            "pieces": list(audit.example.pieces),
            "attention": base64.b64encode(pixels.tobytes()).decode("ascii"),
        }
    return kept


def _ranked(reference: Any) -> dict[str, Any]:
    """The reference's values of every quantity in order, so that a head's rank among them can be told."""
    ranked = {}
    for name, values in reference.data_vars.items():
        numbers = np.asarray(values.values, float).ravel()
        if values.dims == ("layer", "head"):
            ranked[str(name)] = plain(np.sort(numbers[np.isfinite(numbers)]))
    return ranked
