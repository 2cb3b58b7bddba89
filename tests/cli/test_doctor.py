"""What the doctor says of an installation."""

import importlib.metadata
import json
from importlib.metadata import PackageNotFoundError

from attlas.cli import doctor


def test_it_names_versions_devices_and_folders(attlas, tmp_path):
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "a").write_bytes(b"x" * 2_000_000)
    found = json.loads(attlas("doctor", "--json", "--store", str(tmp_path)).stdout)
    assert found["store"] == f"{tmp_path} (2.0 MB)" and "compiled (2.0 MB)" in found["compiled"]
    assert "cpu" in found["devices"] and "jax" in found["packages"]
    assert "not there yet" in doctor.describe_installation(str(tmp_path / "none"))["store"]


def test_what_is_missing_comes_with_the_line_that_brings_it(monkeypatch):
    def version(name):
        if name in ("jax", "gguf"):
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(doctor, "version", version)
    packages, missing = doctor._packages()
    assert "jax" not in packages and "numpy" in packages
    assert packages["jaxlib"] == "1"
    assert "gguf, to read checkpoints: pip install 'attlas[audit]'" in missing
    assert any(line.startswith("needed: jax: pip install 'jax") for line in missing)


def test_every_extra_says_what_it_is_for():
    metadata = importlib.metadata.metadata("attlas")
    assert set(metadata.get_all("Provides-Extra")) == set(doctor.EXTRAS)
