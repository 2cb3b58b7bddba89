"""Audits that come with the package: of real checkpoints, as JSON in `gallery/`.

entries()                       # what there is, by name
read("minilm")                  # one of them: facts, and Datasets by part
reference_for(facts, heads)     # the one that a model is set beside, by family

They are written by `python -m tools.gallery` from what `make models` fetches. Numbers have four
digits; of the same architecture at random, quantiles over heads are kept.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import xarray as xr

ORDER = (
    *("minilm", "smollm2", "rxnmapper", "rxnfp-pretrained", "rxnfp-ft", "rxnfp-ft-10k"),
    "antiberty",
)
"""The audits as a reader meets them."""
REFERENCES = {"encoder": "minilm", "decoder": "smollm2"}
"""The audit that models of a family are set beside: on the default text, as theirs. No package with
real weights of a model of images was found."""
PARTS = ("heads", "layers", "bounds", "random", "random_layers", "probes", "random_probes")
"""What is kept of an audit as Datasets."""


def freeze(found: xr.Dataset) -> dict[str, Any]:
    """A Dataset as JSON: axes and values of each variable, with four digits."""
    kept = {str(name): [list(x.dims), _rounded(x.values)] for name, x in found.variables.items()}
    return {"attributes": dict(found.attrs), "variables": kept}


def _rounded(values: np.ndarray) -> Any:
    if values.dtype.kind != "f":
        return values.tolist()
    digits = np.vectorize(lambda x: float(f"{x:.4g}") if np.isfinite(x) else None, otypes=[object])
    return digits(values).tolist() if values.size else []


def thaw(stored: Mapping[str, Any]) -> xr.Dataset:
    """The Dataset that `freeze` wrote; None becomes NaN."""
    variables = {
        name: (dims, np.array(values, float) if _has_numbers(values) else np.array(values))
        for name, (dims, values) in stored["variables"].items()
    }
    found = xr.Dataset(variables, attrs=stored["attributes"])
    return found.set_coords([name for name in variables if (name,) == found[name].dims])


def _has_numbers(values: Any) -> bool:
    flat = np.array(values, object).ravel()
    return any(isinstance(x, float) or x is None for x in flat)


def spread(found: xr.Dataset, count: int = 17) -> xr.Dataset:
    """Quantiles over heads of every quantity, as if of so many heads of one layer."""
    shares = np.linspace(0, 1, count)
    return xr.Dataset(
        {
            name: (("layer", "head"), np.nanquantile(x.values, shares)[None])
            for name, x in found.items()
            if x.dims == ("layer", "head") and x.dtype.kind == "f" and np.isfinite(x).any()
        }
    )


def entries() -> list[str]:
    """The names of the audits that there are, in order."""
    there = {
        file.name.removesuffix(".json")
        for file in (resources.files("attlas.audit") / "gallery").iterdir()
    }
    return [name for name in ORDER if name in there]


@cache
def read(name: str) -> dict[str, Any]:
    """An audit by its name: what was stored, with the parts of `PARTS` as Datasets."""
    file = resources.files("attlas.audit") / "gallery" / f"{name}.json"
    stored = json.loads(file.read_text("utf-8"))
    return stored | {part: thaw(stored[part]) for part in PARTS if part in stored}


def family_of(facts: Mapping[str, Any]) -> str:
    """encoder, decoder, or vision (and sound): a model that reads no text."""
    if not facts["reads_text"]:
        return "vision"
    return "decoder" if facts["causal"] else "encoder"


def reference_for(facts: Mapping[str, Any], heads: xr.Dataset) -> dict[str, Any] | None:
    """The audit beside which a model stands: that of its family, and never its own.

    None where there is no such audit.
    """
    name = REFERENCES.get(family_of(facts))
    if name is None or name not in entries():
        return None
    stored = read(name)
    theirs, own = stored["heads"].qk_spectral.values, heads.qk_spectral.values
    same = own.shape == theirs.shape and bool(np.allclose(own, theirs, rtol=2e-3))
    return None if same else stored
