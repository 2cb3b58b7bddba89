"""The measurement of one batch of a claim's cells: precision, cost, checks and error messages."""

import contextlib
import functools
import platform
import threading
import time
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import xarray as xr

import attlas
from attlas.claims import Claim, Setting
from attlas.claims.setting import UnknownParameter
from attlas.errors import InputError
from attlas.lab.store import Store
from attlas.progress import silent

MAX_MEMORY_MAPS = 20_000
"""Memory maps of this process above which compiled programs are dropped."""


def measure_batch(
    claim: Claim, batch: list[Setting], seed: int
) -> tuple[xr.Dataset, dict[str, Any]]:
    """The evidence of a batch of cells, and facts about its measurement: where, when, seconds."""
    # JAX's programs that draw numbers compile three times faster with this form of its generator.
    # The choice is part of what a seed means.
    generator = jax.threefry_partitionable(False)
    with _clock() as costs, generator, silent(), jax.enable_x64(claim.precision == "float64"):
        evidence = _checked_evidence(claim, batch, seed)
    if costs["compile_seconds"]:
        drop_compiled_programs()
    return evidence, {**machine(), **costs, "when": now()}


def _checked_evidence(claim: Claim, batch: list[Setting], seed: int) -> xr.Dataset:
    try:
        evidence = claim.measure(batch, seed)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise InputError(f"{claim.id} does not fit into memory with {batch[0]}") from error
    for name, values in evidence.variables.items():
        words = values.dtype == object and all(isinstance(v, str) for v in values.values.ravel())
        if not (words or values.dtype.kind in "biufUSMm"):
            raise InputError(
                f"{claim.id} returned {name} of type {values.dtype}: "
                f"it must be numbers, truth values or words"
            )
    # NumPy from here on: outside the scoped precision JAX would compute in float32.
    return evidence.as_numpy()


@contextlib.contextmanager
def claim_errors_named(claim: Claim, part: str) -> Iterator[None]:
    """Turn an exception in `part` of a user's claim file into one sentence: file, line, claim.

    An exception in a claim of the package is a bug and passes, unless the claim reads a parameter
    that its setting lacks.
    """
    try:
        yield
    except InputError as error:
        if not claim.loaded or claim.id in str(error):
            raise
        raise InputError(f"{claim.where}: {error}") from error
    except (MemoryError, OverflowError) as error:
        raise InputError(
            f"{claim.id}, {part}: a number in its setting is too large "
            f"({type(error).__name__}: {' '.join(str(error).split())})"
        ) from error
    except Exception as error:
        if not (claim.loaded or isinstance(error, UnknownParameter)):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(claim.file)]
        where = f"{claim.file.name}, line {lines[-1]}: claim {claim.id!r}" if lines else claim.where
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"{where}, {part}: {message}") from error


def drop_compiled_programs() -> None:
    """Drop JAX's compiled programs if this process has more than `MAX_MEMORY_MAPS` memory maps.

    Each program takes a few maps. Linux allows a process 65,530, and XLA crashes at the last.
    """
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAX_MEMORY_MAPS:
        jax.clear_caches()


def keep_compiled(store: Store) -> None:
    """Let JAX keep compiled programs in the store, for other processes and later ones."""
    jax.config.update("jax_compilation_cache_dir", str(store.folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@functools.cache
def machine() -> dict[str, str]:
    """What numbers may depend on besides the code."""
    return {
        "attlas": attlas.__version__,
        "jax": version("jax"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": jax.devices()[0].device_kind,
    }


def now() -> str:
    """The time in UTC, as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


_CLOCKS = threading.local()
"""Of each thread, the facts of the clocks that run."""


@functools.cache
def _listen() -> None:
    """Let JAX report what it compiles, once: not every version can be asked to stop."""

    def add(event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            for facts in getattr(_CLOCKS, "running", ()):
                facts["compile_seconds"] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(add)


@contextlib.contextmanager
def _clock() -> Iterator[dict[str, float]]:
    """The seconds that pass inside it, known at its end, and those that JAX spends compiling."""
    _listen()
    facts, start = {"compile_seconds": 0.0}, time.perf_counter()
    before = getattr(_CLOCKS, "running", ())
    _CLOCKS.running = (*before, facts)
    try:
        yield facts
    finally:
        facts["seconds"] = time.perf_counter() - start
        _CLOCKS.running = before
