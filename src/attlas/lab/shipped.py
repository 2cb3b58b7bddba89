"""Evidence at the paper's scale that comes with the package: one small file a claim.

A file is a block (`attlas.lab.blocks`) and the SHA-256 of it behind, which readers of netCDF do not
see. It holds what the rule and the figure read, the verdict, and a digest of what made it: sources,
setting, rule and control. `make evidence` writes it, `attlas verify` measures it again.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import attlas
from attlas.claims import Claim, Order, Rate, Setting, Verdict
from attlas.errors import InputError
from attlas.lab.blocks import encode_block, read_block
from attlas.lab.files import (
    DAMAGE,
    Damaged,
    fits,
    make_folder,
    parse_json,
    read_whole,
    seal,
    unseal,
    write_whole,
)
from attlas.lab.judging import verdict_digest
from attlas.lab.measurement import now
from attlas.lab.records import PLAIN, VERDICT_WORD, checked_id
from attlas.lab.runner import Result
from attlas.provenance import versions

FOLDER = Path(attlas.__file__).with_name("evidence")
LIMIT = 80_000
"""Bytes of a file at most. What would be larger keeps what the rule reads, or quantiles of it."""
MAX_BYTES = 2**24
"""What a file may hold once it is decompressed."""
QUANTILES = 101

TOLERANCE, TRAINED_TOLERANCE = 1e-6, 1e-2
"""How far a value may lie from what was shipped, relative to it, and beside that 1e-9 of the
largest of its variable and 1e-12, which rounding leaves of what is zero: not where small values are
what a rule compares. Training enlarges last digits: where networks are trained, and in float32, it
is the mean of each variable, which may lie further, relative to its mean size."""
_SMALL = ("measured", "predicted", "lower", "upper")
"""What rates and orders compare, however small it is."""

EARLIER = "Measured by an earlier version of the code."
_NUMBER = int | float | None
_VERDICT = {
    "word": VERDICT_WORD,
    **dict.fromkeys(("statistic", "threshold", "deviation"), _NUMBER),
    **dict.fromkeys(("reason", "predicted", "measured", "detectable", "strength"), str),
    "points": int,
    "exact": bool,
}
_NAMES = ("claim", "code", "versions", "setting", "when", "result", "thinned")
_FACTS = {**dict.fromkeys(_NAMES, str), "seed": int, "seconds": int | float}
_JUDGED = {
    "verdict": _VERDICT,
    "control": object,
    "first": object,
    "resolution": _NUMBER,
    "provenance": {str: PLAIN},
}
"""The forms of what is shipped beside the evidence: facts, and what was judged."""


class Shipped(NamedTuple):
    """What a file holds; `stale` if other code, or another setting or rule, would be used today."""

    result: Result
    stale: bool
    thinned: str
    """Empty if all evidence is there, else "rule" or "quantiles": what is left of it."""


def shipped_path(claim: Claim, folder: Path | None = None) -> Path:
    """Where the evidence of a claim is, if it is there."""
    return (folder or FOLDER) / f"{checked_id(claim.id)}.nc"


def ship(result: Result, folder: Path | None = None) -> Path:
    """Write the evidence of a result; returns the file."""
    claim = result.claim
    if result.scale != "paper" or result.setting != claim.paper or not result.evidence:
        raise InputError(f"{claim.id} has no evidence at the paper's scale to ship")
    judged = {
        "verdict": result.verdict.to_dict(),
        "control": result.control and result.control.to_dict(),
        "first": result.first and result.first.to_dict(),
        "resolution": result.resolution,
        "provenance": result.provenance,
    }
    facts = {
        "claim": claim.id,
        "code": verdict_digest(claim, "paper"),
        "versions": versions(),
        "seed": result.seed,
        "setting": json.dumps(dict(result.setting)),
        "seconds": result.spent,
        "when": now(),
        "result": json.dumps(judged),
    }
    evidence = result.evidence.drop_attrs().assign_attrs(facts)
    for thinned in ("", "rule", "quantiles"):
        content = encode_block(_thin(evidence, claim, thinned).assign_attrs(thinned=thinned))
        content = seal(content)
        if len(content) <= LIMIT:
            break
    path = shipped_path(claim, folder)
    make_folder(path.parent)
    write_whole(path, content)
    return path


def read_shipped(claim: Claim, notes: list[str], folder: Path | None = None) -> Shipped | None:
    """What was shipped for a claim. A file that cannot be trusted is named in `notes` and left."""
    path = shipped_path(claim, folder)
    try:
        content = read_whole(path, LIMIT)
        return _parse(claim, read_block(unseal(content), MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, *DAMAGE) as error:
        why = str(error) if isinstance(error, Damaged) else f"{type(error).__name__}: {error}"
        notes.append(f"The shipped evidence {path} is ignored: {why}.")
        return None


def _thin(evidence: xr.Dataset, claim: Claim, thinned: str) -> xr.Dataset:
    if not thinned:
        return evidence
    optional = ("repetitions",) if "repetitions" in evidence else ()
    read = evidence[[*claim.rule.variables(evidence), *optional]]
    if thinned == "rule":
        return read
    places = np.linspace(0, 1, QUANTILES)
    found = {name: ("quantile", np.quantile(v.astype(float), places)) for name, v in read.items()}
    return xr.Dataset(found, attrs=evidence.attrs)


def _parse(claim: Claim, data: xr.Dataset) -> Shipped:
    facts, data.attrs = data.attrs, {}
    if not fits(facts, _FACTS):
        raise Damaged("its facts have another form")
    if facts["claim"] != claim.id:
        raise Damaged(f"it is of {facts['claim']}")
    judged = parse_json(facts["result"], _JUDGED)
    stale = facts["code"] != verdict_digest(claim, "paper")
    verdict = _verdict(judged["verdict"])
    control, first = (judged[name] and _verdict(judged[name]) for name in ("control", "first"))
    if not stale and facts["thinned"] != "quantiles":
        again = claim.rule.judge(data)
        toothless = control is not None and control.word != "refuted"
        if verdict.word != ("undecided" if toothless else again.word):
            raise Damaged("its verdict does not follow from its evidence")
        verdict = verdict if toothless else again
    values = parse_json(facts["setting"], {str: object}).items()
    setting = Setting(**{k: tuple(v) if isinstance(v, list) else v for k, v in values})
    result = Result(
        claim,
        "paper",
        setting,
        int(facts["seed"]),
        verdict,
        control=control,
        resolution=None if stale else judged["resolution"],
        evidence=data,
        first=first,
        spent=float(facts["seconds"]),
        cached=True,
        provenance={**judged["provenance"], "when": facts["when"]},
        notes=(f"It came with the package ({facts['when'][:10]}).", *([EARLIER] if stale else [])),
    )
    return Shipped(result, stale, str(facts["thinned"]))


def _verdict(found: Any) -> Verdict:
    """The inverse of `Verdict.to_dict`."""
    if not fits(found, _VERDICT):
        raise Damaged("its verdicts have another form")
    values: dict[str, Any] = {k: float("nan") if v is None else v for k, v in found.items()}
    return Verdict(**values)


def differences(known: Shipped, again: Result) -> list[str]:
    """In what a new measurement differs from what was shipped, in words: nothing if they agree."""
    claim, old = known.result.claim, known.result
    words = [(r.verdict.word, r.control.word if r.control else "none") for r in (old, again)]
    pairs = zip(("verdict", "control"), *words, strict=True)
    found = [f"the {name} was {was} and is {now}" for name, was, now in pairs if was != now]
    if not again.evidence:
        return found
    evidence = _thin(again.evidence, claim, known.thinned)
    loose = claim.kind == "training" or claim.precision == "float32"
    small = _SMALL if isinstance(claim.rule, Order | Rate) else ()
    for name, values in old.evidence.data_vars.items():
        if name not in evidence or evidence[name].shape != values.shape:
            found.append(f"{name} has another shape")
        elif gap := _gap(values.values, evidence[name].values, loose, name in small):
            found.append(f"{name} differs by {gap}")
    return found


def _gap(a: np.ndarray, b: np.ndarray, loose: bool, small: bool) -> str:
    """The difference of two arrays, in words, if it is beyond the tolerance."""
    if a.dtype.kind in "UO" or b.dtype.kind in "UO":
        return "" if (a == b).all() else "words"
    a, b = a.astype(float), b.astype(float)
    size = float(abs(a[np.isfinite(a)]).max(initial=0.0))
    allowed = 0.0 if small else 1e-9 * size + 1e-12
    if loose and (np.isfinite(a) == np.isfinite(b)).all() and np.isfinite(a).any():
        a, b = a[np.isfinite(a)], b[np.isfinite(b)]
        allowed = TRAINED_TOLERANCE * float(abs(a).mean())
        a, b = a.mean(keepdims=True), b.mean(keepdims=True)
    close = np.isclose(b, a, rtol=TOLERANCE, atol=allowed, equal_nan=True)
    return "" if close.all() else f"{abs(a - b)[~close].max():.2g}, of {size:.2g} at most"
