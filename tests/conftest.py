"""Shapes and types are checked while the tests run, and only then: jaxtyping with beartype."""

from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

CHECKED = ["attlas.gaussian", "attlas.scan", "attlas.single_location"]
_hook = install_import_hook(CHECKED, "beartype.beartype")

# What one test run compiles the next need not.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / "build" / "compiled"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture
def store(tmp_path):
    from attlas.lab.store import Store

    return Store(tmp_path / "store")


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield
