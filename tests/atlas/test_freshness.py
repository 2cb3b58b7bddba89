import os

import pytest

import attlas
from attlas.atlas import freshness


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A package with a guide, a store and an atlas that was written from them: their folders."""
    package, store, pages = (tmp_path / name for name in ("src/attlas", "store", "pages"))
    for folder in (package, package / "__pycache__", tmp_path / "docs", pages):
        folder.mkdir(parents=True)
    for place in ("blocks", "drawings", "compiled"):
        (store / place).mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "notes.toml").write_text("words")
    (tmp_path / "docs" / "guide.md").write_text("guide")
    (store / "blocks" / "1.nc").write_text("evidence")
    (pages / "index.html").write_text("page")
    monkeypatch.setattr(attlas, "__file__", str(package / "__init__.py"))
    inputs = freshness.inputs_digest({"seed": 0})
    freshness.remember(store, pages, inputs, freshness.stored_digest(store))
    return tmp_path


def current(written, **options):
    inputs = freshness.inputs_digest({"seed": 0, **options})
    return freshness.is_current(written / "store", written / "pages", inputs)


def test_pages_are_current_while_nothing_they_depend_on_changes(written, monkeypatch):
    assert current(written)
    (written / "src/attlas/__pycache__/x.pyc").write_text("bytecode")
    (written / "store/drawings/drawing.json").write_text("drawn")
    (written / "store/compiled/program").write_text("compiled")
    assert current(written)
    monkeypatch.chdir(written)
    assert freshness.is_current(
        written / "store", freshness.Path("pages"), freshness.inputs_digest({"seed": 0})
    )


@pytest.mark.parametrize(
    "path", ["src/attlas/notes.toml", "docs/guide.md", "store/blocks/1.nc", "pages/index.html"]
)
def test_a_changed_file_is_noticed_and_so_is_a_lost_or_a_new_one(written, path):
    file, before = written / path, (written / path).stat()
    text = file.read_text()
    file.write_text(text[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert not current(written)
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert current(written)
    file.with_name("new").write_text("")
    assert not current(written)
    file.with_name("new").unlink()
    file.unlink()
    assert not current(written)


def test_options_and_environment_count(written, monkeypatch):
    assert not current(written, seed=1)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert not current(written)


def test_checkpoints_that_were_fetched_count(written, monkeypatch, tmp_path):
    monkeypatch.setenv("ATTLAS_MODELS", str(tmp_path / "models"))
    before = freshness.stored_digest(written / "store")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights").write_text("")
    assert freshness.stored_digest(written / "store") != before


def test_a_damaged_or_missing_note_writes_the_pages_again(written):
    (note,) = (written / "store" / "drawings").iterdir()
    note.write_text("{")
    assert not current(written)
    note.unlink()
    assert not current(written)
