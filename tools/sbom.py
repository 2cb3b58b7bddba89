"""What a release is made of, as CycloneDX: every package of the lock with its hashes and licence.

`required` is what Attlas imports, `optional` what its extras add, `excluded` what only developers
need.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attlas

ROOT = Path(__file__).parents[1]
FONT = ROOT / "src" / "attlas" / "atlas" / "assets" / "math.woff2"


def bill() -> dict[str, Any]:
    """The bill of materials of the lock, for the installed version of Attlas."""
    required = _closure(_needs("attlas", {""}))
    optional = _closure(_needs("attlas", {"audit", "cluster"})) - required
    scopes = dict.fromkeys(required, "required") | dict.fromkeys(optional, "optional")
    pinned = re.findall(r"^([\w.-]+)==(\S+)(.*(?:\n +--hash.*)+)", _lock(), re.MULTILINE)
    packages = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "scope": scopes.get(canonicalize_name(name), "excluded"),
            "hashes": _hashes(re.findall("sha256:([0-9a-f]{64})", rest)),
            "licenses": _licences(name),
        }
        for name, version, rest in pinned
    ]
    font = {
        "type": "file",
        "name": f"STIX Two Math, a part of it ({FONT.name})",
        "hashes": _hashes([hashlib.sha256(FONT.read_bytes()).hexdigest()]),
        "licenses": [{"license": {"id": "OFL-1.1"}}],
    }
    whole = {"type": "library", "name": "attlas", "version": attlas.__version__}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**whole, "licenses": [{"license": {"id": "MIT"}}]}},
        "components": [*packages, font],
    }


def _lock() -> str:
    return (ROOT / "requirements.lock").read_text(encoding="utf-8")


def _hashes(found: Iterable[str]) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest} for digest in found]


def _needs(name: str, extras: set[str]) -> set[str]:
    """The packages that one asks for by itself, or for its extras."""
    try:
        wanted = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        return set()
    return {
        canonicalize_name(each.name)
        for each in wanted
        for extra in extras
        if each.marker is None or each.marker.evaluate({"extra": extra})
    }


def _closure(names: set[str]) -> set[str]:
    """With all that these ask for."""
    known: set[str] = set()
    while names:
        known |= names
        names = set().union(*(_needs(name, {""}) for name in names)) - known
    return known


def _licences(name: str) -> list[dict[str, Any]]:
    """As the installed package declares them; a package for other systems is not installed."""
    try:
        about: dict[str, Any] = distribution(name).metadata.json
    except PackageNotFoundError:
        return []
    if "license_expression" in about:
        return [{"expression": about["license_expression"]}]
    kinds = [kind for kind in about.get("classifier", ()) if kind.startswith("License ::")]
    declared = about.get("license", "").splitlines()[:1]
    names = [kind.rpartition(" :: ")[2] for kind in kinds] or declared
    return [{"license": {"name": name}} for name in names]


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
