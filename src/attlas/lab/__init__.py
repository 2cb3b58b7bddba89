"""Where claims are measured: the store, the runner, sweeps, clusters and pages."""

# XLA takes the number of its threads from NPROC; its flag against threads would also change last digits.
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The environment of a process that computes with one thread: the same numbers everywhere, and a core for each worker."""
