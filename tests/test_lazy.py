import importlib
import subprocess
import sys

import pytest

import attlas


def run(code):
    """What a fresh process prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_dir_shows_what_is_public_and_all_of_it_is_there():
    shown = dir(attlas)
    assert {"run", "sweep", "catalogue", "audit_model", "InputError", "__version__"} <= set(shown)
    assert {"single_location", "sparse_variables", "latent_posterior", "kernels"} <= set(shown)
    assert not {"Any", "TYPE_CHECKING", "exports"} & set(shown)
    assert all(getattr(attlas, name) is not None for name in shown)


def test_a_submodule_is_imported_on_first_use_and_not_before():
    code = "import sys, attlas; dir(attlas); print('jax' in sys.modules, end=' '); "
    assert run(code + "print(attlas.kernels.__name__)") == "False attlas.kernels"


def test_what_is_not_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'attlas' has no attribute 'nothing'"):
        attlas.nothing  # noqa: B018


def test_any_module_can_export_what_others_define(tmp_path, monkeypatch):
    package = tmp_path / "lazily"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from attlas.lazy import exports\n"
        "__getattr__, __dir__ = exports(__name__, {'dumps': 'json'}, ('part',))\n"
    )
    (package / "part.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazily = importlib.import_module("lazily")
    assert dir(lazily) == ["dumps", "part"] and lazily.dumps(1) == "1" and lazily.part.value == 3
