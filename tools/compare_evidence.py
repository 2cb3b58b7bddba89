"""Compare the evidence of claims with that of a run before: `python -m tools.compare_evidence
ID...`.

The evidence before is read from the store `BASELINE` (a run of all claims at quick scale, seed 0).
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from attlas.claims import select
from attlas.lab.blocks import read_block
from attlas.lab.runner import run

BASELINE = Path(os.environ.get("BASELINE", "/tmp/base/store"))


def stored(claim: str) -> dict[str, list]:
    """Blocks of the baseline by canonical cell, seed 0."""
    found = {}
    for index in sorted((BASELINE / "blocks" / claim).glob("*.json")):
        about = json.loads(index.read_text())
        block = read_block((index.parent / about["data"]).read_bytes())
        seeds = json.loads(block.attrs["seed"])
        for i, cell in enumerate(json.loads(block.attrs["cells"])):
            if seeds[i] == 0:
                found[json.dumps(cell, sort_keys=True)] = block.isel(cell=i)
    return found


def main(patterns: list[str]) -> int:
    wrong = 0
    verdicts = {
        c["id"]: c for c in json.loads((BASELINE.parent / "run.json").read_text())["claims"]
    }
    for claim in select(patterns):
        if claim.id not in verdicts:
            print("new      ", claim.id)
            continue
        result = run(claim, store=os.environ.get("ATTLAS_STORE", "/tmp/compare-store"))
        before = stored(claim.evidence) or stored(claim.id)
        worst, notes = 0.0, []
        for i, cell in enumerate(claim.cells(claim.quick)):
            old = before.get(cell.canonical())
            if old is None:
                notes.append("no such cell before")
                continue
            new = (
                result.evidence.isel(cell=i) if "cell" in result.evidence.dims else result.evidence
            )
            for name in old.variables:
                other = {"predicted": "exponent"}.get(name, name) if name not in new else name
                if other not in new or name == "cell":
                    notes.append(f"lost {name}")
                    continue
                a, b = old[name].values, new[other].values
                if a.dtype.kind in "OUSb":
                    ok = a.shape == b.shape and (a == b).all()
                    worst = max(worst, 0.0 if ok else np.inf)
                    continue
                try:
                    a, b = np.broadcast_arrays(a.astype(float), b.astype(float))
                except ValueError:
                    axes = [d for d in old[name].dims if d in new[other].dims]
                    a, b = (
                        old[name].transpose(*axes, ...).values,
                        new[other].transpose(*axes, ...).values,
                    )
                    if a.shape != b.shape:
                        notes.append(f"{name}: shape {a.shape} -> {b.shape}")
                        continue
                with np.errstate(all="ignore"):
                    gap = abs(a - b) / np.maximum(1e-300, np.nanmax(abs(a)) if a.size else 1)
                gap = np.where(np.isnan(a) & np.isnan(b), 0, gap)
                if gap.size:
                    worst = max(worst, float(np.nanmax(gap)))
        now, then = result, verdicts[claim.id]
        same = now.verdict.word == then["verdict"] and (
            (now.control.word if now.control else None) == then["control"]
        )
        words = (
            "same     "
            if worst == 0 and same
            else "ROUNDING "
            if worst < 1e-10 and same
            else "DIFFERENT"
        )
        wrong += words == "DIFFERENT"
        verdict = (
            ""
            if same
            else f" VERDICT {then['verdict']}/{then['control']} ->"
            f" {now.verdict.word}/{now.control and now.control.word}"
        )
        print(words, claim.id, f"{worst:.2g}", "; ".join(sorted(set(notes))) + verdict)
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
