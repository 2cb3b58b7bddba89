"""Write the index of the package's claims, which `attlas list` and `attlas show` read."""

from pathlib import Path

import attlas
from attlas.claims.registry import catalogue, index_text

FILE = Path(attlas.__file__).with_name("index.json")

if __name__ == "__main__":
    FILE.write_text(index_text(catalogue().values()), encoding="utf-8")
