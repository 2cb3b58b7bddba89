"""What tests share. Shapes and types are checked while they run, by jaxtyping with beartype.

Tests that need what `make test` does not fetch are skipped where it is missing. The reason of the
skip holds the command that fetches it, and the last lines of the run count them.
"""

import os
import re
from collections import Counter
from pathlib import Path

import jax
import jaxtyping
import pytest

from attlas.lab import compile_quickly

compile_quickly()

CHECKED = (
    "attention",
    "audit",
    "capacity",
    "covers",
    "gaussian",
    "kernels",
    "latent_posterior",
    "order_parameters",
    "rademacher",
    "scan",
    "search",
    "several_locations",
    "single_location",
    "sparse_variables",
)
jaxtyping.install_import_hook([f"attlas.{name}" for name in CHECKED], "beartype.beartype")

# What one test run compiles the next need not.
jax.config.update(
    "jax_compilation_cache_dir", str(Path(__file__).parents[1] / "build" / "compiled")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

SEED = 20_260
"""The seed of the tests; none of the settings was chosen while looking at it."""


TRAINED = {
    f"latent-posterior/{slug}"
    for slug in (
        "cme-layer-is-bayes",
        "error-by-layer",
        "gaussian-latents-held",
        "gaussian-latents-told",
        "gaussian-scatter-kept",
        "generalisation-in-length",
        "heads-by-length",
        "order-is-lost",
        "positions-restore",
        "softmax-head-gap",
        "trained-beside-pooling",
        "trained-ledger",
        "trained-not-minimal",
        "trained-predictor",
        "trained-price",
        "trained-probe-gains",
        "trained-probe-saturates",
        "trained-regret",
        "trained-serves-others",
        "trained-sufficient",
        "wrong-labels",
    )
}
"""Claims about networks that are trained to tell a latent."""


HEAVY = {
    f"{name}/{slug}"
    for name, slugs in {
        "latent-posterior": (
            "approximation",
            "bayes-ridge",
            "cme-converges",
            "cme-error",
            "cme-is-posterior-mean",
            "complexity-in-length",
            "complexity-in-samples",
            "difference-vanishes",
            "head-complexity-bound",
            "law-crps",
            "ledger",
            "length-failures",
            "length-generalisation",
            "proof-schedule",
            "simplex-hides",
            "softmax-cme-difference",
            "softmax-floor",
            "softmax-rate",
            "supervised-fast-rate",
            "supervised-in-length",
            "temperature-pairs",
        ),
        "several-locations": (
            "head-apart-keeps-half",
            "heads-part",
            "network-without-attention",
            "one-head-through-its-key",
            "other-lengths",
            "reduction-law",
            "shifted-background",
            "softmax-from-sphere",
            "stronger-first",
            "two-heads-suffice",
            "vector-targets",
        ),
        "single-location": (
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
        ),
        "sparse-variables": (
            "complexity-bound",
            "complexity-length",
            "falsifying-zeros",
            "layer-lipschitz",
            "learned-certificate",
            "learned-head",
            "learned-ledger",
            "learned-norms",
            "mlp-exponent",
            "one-normaliser",
            "overfits-below",
            "parity-arrives",
            "parity-plateau",
            "plain-adam",
            "samples-exponent",
            "samples-law",
        ),
    }.items()
    for slug in slugs
} | TRAINED
"""Claims that take seconds even at quick scale: tested with the long tests."""


VAST = (
    {id for id in HEAVY if id.startswith("sparse-variables/")}
    - {
        f"sparse-variables/{slug}"
        for slug in (
            "complexity-bound",
            "complexity-length",
            "layer-lipschitz",
        )
    }
    | {
        f"latent-posterior/{slug}"
        for slug in (
            "approximation",
            "difference-vanishes",
            "law-crps",
            "ledger",
            "length-failures",
            "length-generalisation",
            "softmax-cme-difference",
            "supervised-fast-rate",
            "supervised-in-length",
        )
    }
    | TRAINED
)
"""Claims that train networks, or factor many large matrices: a minute or many at the paper's scale,
where no test runs them; `attlas run CLAIM --scale paper` does."""

FETCHED = {
    "make models SMALL=1": "real checkpoints",
    "make models": "larger real checkpoints",
    "make browser": "Chromium and axe-core",
    "make data": "real data",
}
"""What tests may need, by the command that fetches it."""
FIXTURES = {"real": "models", "browser": "browser"}
"""Fixtures that need something fetched, and the marker of tests that use them."""


LONGEST = (
    "estimators/test_bags",
    "lab/test_cluster",
    "lab/test_kills",
    "lab/test_workers",
    "latent_posterior/test_encoders",
    "order_parameters/test_descent",
    "order_parameters/test_population",
    "single_location/test_gates",
    "sparse_variables/test_online",
    "sparse_variables/test_model",
    "sparse_variables/test_training",
    "test_documents",
    "test_examples",
    "single_location/test_online",
    "atlas/test_pages",
    "atlas/test_explorers",
    "atlas/test_articles",
    "audit/test_auditing",
    "estimators/test_conditional",
    "lab/test_store",
)
"""Files of tests that take longest: they begin first, so that no process waits for another at the
end."""


def needs_models(claim):
    """Whether a claim is about a real checkpoint."""
    return bool(claim.requires) or claim.file.parent.name == "audit"


def pytest_collection_modifyitems(items):
    for item in items:
        for name in FIXTURES.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(FIXTURES[name])
        if item.get_closest_marker("xdist_group") is None:
            # Tests of a file share fixtures and compiled programs: one process makes them, once.
            item.add_marker(pytest.mark.xdist_group(file_of(item)))
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(file_of(item), len(order)))


def file_of(item):
    """The file of a test, as in "lab/test_cluster"."""
    return item.path.relative_to(Path(__file__).parent).with_suffix("").as_posix()


def pytest_terminal_summary(terminalreporter):
    """One line for each thing that was not fetched, with the number of tests that were skipped."""
    skips = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = [skip[2] if isinstance(skip, tuple) else str(skip) for skip in skips]
    found = [re.search(r"`(make [^`]+)`", reason) for reason in reasons]
    for command, count in Counter(match[1] for match in found if match).items():
        tests = "1 test needs" if count == 1 else f"{count} tests need"
        what = FETCHED.get(command, "what is not there")
        terminalreporter.write_line(f"{tests} {what}: {command}")


def pytest_generate_tests(metafunc):
    """`claim_id` runs through the claims of the map that the module names, `batched_claim_id`
    through those whose cells are measured together; heavy ones are tested with the long tests."""
    name = next(
        (name for name in ("claim_id", "batched_claim_id") if name in metafunc.fixturenames), None
    )
    if name is None:
        return
    from attlas.claims import catalogue

    claims = [claim for claim in catalogue().values() if claim.map == metafunc.module.MAP]
    ids = [claim.id for claim in claims if name == "claim_id" or claim.shape is not None]
    if "papers_scale" in metafunc.function.__name__:
        # A claim about a real model is outside its hypotheses where `make models` was not run.
        outside = {claim.id for claim in claims if claim.broken(claim.cells(claim.paper))}
        ids = [id for id in ids if id not in VAST | outside]
    together = {
        claim.id: pytest.mark.xdist_group(claim.evidence) for claim in claims
    }  # one process measures, once
    real = {claim.id for claim in claims if needs_models(claim)}

    def marks(id):
        yield together[id]
        if id in HEAVY:
            yield pytest.mark.long
        if id in real:
            yield pytest.mark.models

    metafunc.parametrize(name, [pytest.param(id, marks=[*marks(id)]) for id in ids])


@pytest.fixture(autouse=True)
def room():
    """A process of tests compiles thousands of programs."""
    from attlas.lab.measurement import drop_compiled_programs

    drop_compiled_programs()


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
    """A function from the id of a claim to its result at quick scale, measured once, and their
    store."""
    from functools import cache

    from attlas.lab.runner import run
    from attlas.lab.store import Store

    # Processes of one run share what they measured; mutants, which are tried without, must not.
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    of_run = tmp_path_factory.getbasetemp().parent / "tested"
    shared = Store(of_run if parallel else tmp_path_factory.mktemp("tested"))

    @cache
    def result(id):
        found = run(id, seed=SEED, store=shared)
        if needs_models(found.claim) and found.verdict.word in ("outside", "not run"):
            pytest.skip(f"{id} is about a real checkpoint: `make models SMALL=1` fetches it")
        return found

    result.store = shared
    return result


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium; what needs it is skipped where it is not installed."""
    from tools.browser import Browser, chromium

    if chromium() is None:
        pytest.skip("Chromium is not installed: `make browser` installs it")
    with Browser() as browser:
        yield browser


@pytest.fixture
def unchecked():
    """Types are not checked where the same functions are called thousands of times more."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def registry():
    """The claims that are registered, which are afterwards as they were."""
    from attlas.claims import catalogue
    from attlas.claims.map import REGISTRY

    kept = catalogue()
    yield REGISTRY
    REGISTRY.clear()
    REGISTRY.update(kept)


@pytest.fixture
def toy(registry):
    """The claim of `tests/lab/toys/square.py`, in a catalogue that forgets it again."""
    from attlas.claims import load_file

    return load_file(Path(__file__).parent / "lab" / "toys" / "square.py")[0]
