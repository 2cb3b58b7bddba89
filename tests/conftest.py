"""Shapes and types are checked while the tests run, and only then: jaxtyping with beartype."""

from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

install_import_hook(["attlas.gaussian", "attlas.scan", "attlas.single_location"], "beartype.beartype")

# What one test run compiles the next need not.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / "build" / "compiled"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

SEED = 20_260
"""The seed of the tests; none of the settings was chosen while looking at it."""


HEAVY = {
    f"single-location/{slug}"
    for slug in (
        "basin-measure",
        "basins",
        "failure-falls",
        "heads-in-order",
        "large-lambda-stalls",
        "online-law",
        "online-run",
        "recommended-schedule",
        "schedule-run",
        "small-lambda-coin",
        "softmax-training",
        "trained-heads",
    )
}
"""Claims that take seconds even at quick scale: tested with the long tests."""


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def store(tmp_path):
    from attlas.lab.store import Store

    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def tested(tmp_path_factory):
    """Every claim of the catalogue, tested once at quick scale: a function from id to result, and their store."""
    from functools import cache

    from attlas.lab.runner import run
    from attlas.lab.store import Store

    shared = Store(tmp_path_factory.mktemp("tested"))
    result = cache(lambda id: run(id, seed=SEED, store=shared))
    result.store = shared
    return result
