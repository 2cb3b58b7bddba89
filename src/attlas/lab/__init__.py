"""Where claims are measured: the store, the runner, sweeps, clusters and pages."""

import os
from importlib.metadata import version

# XLA takes the number of its threads from NPROC; its flag against threads would also change last digits.
ONE_THREAD = {
    "NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""The environment of a process that computes with one thread: the same numbers everywhere, and a core for each worker."""

QUICK_TO_COMPILE = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"
"""Flags of XLA with which programs that run for a second compile in half the time; they change last digits."""


def compile_quickly() -> None:
    """Have XLA optimise less, and NumPy leave the cores to XLA's threads, in a process that has imported neither. A flag that XLA does not know would end the
    process, so that only versions in which these were tried are given them; flags of the user's come after, and win."""
    # Claims multiply small matrices by NumPy: its own threads would mostly wait for a core, and spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if version("jaxlib").startswith("0.10."):
        os.environ["XLA_FLAGS"] = f"{QUICK_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')}".strip()
