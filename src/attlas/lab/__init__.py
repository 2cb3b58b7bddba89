"""Where claims are measured: the store, the runner, workers and sweeps."""

import os
from importlib.metadata import version

# XLA takes the number of its threads from NPROC; its flag against threads changes last digits.
ONE_THREAD = {
    "NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""The environment of a process with one thread, which computes the same numbers everywhere."""

KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
"""Settings of the GNU allocator with which a process keeps what it has freed. Each step of a
training allocates some megabytes; given back and asked for again they cost a tenth of its time."""

QUICK_TO_COMPILE = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 "
    "--xla_cpu_parallel_codegen_split_count=1"
)
"""Flags of XLA that halve the time to compile programs of a second; they change last digits."""


def compile_quickly() -> None:
    """Have XLA optimise less, in a process that has imported neither JAX nor NumPy.

    XLA ends a process that gives it a flag it does not know, so only versions in which these were
    tried are given them. Flags of the user's come after, and win.
    """
    # Claims multiply small matrices by NumPy, whose threads would wait for XLA's cores, and spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if version("jaxlib").startswith("0.10.") and QUICK_TO_COMPILE not in flags:
        os.environ["XLA_FLAGS"] = f"{QUICK_TO_COMPILE} {flags}".strip()
