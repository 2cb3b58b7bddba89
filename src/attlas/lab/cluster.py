"""Connections to Dask: a scheduler that is running, or jobs of SLURM that are started here."""

import contextlib
import logging
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from attlas.errors import InputError, SchedulerLost
from attlas.lab import ONE_THREAD

CONNECT_SECONDS, RECONNECT_SECONDS = 10, 30
"""Seconds that a scheduler has to answer, and in which it is called again after it was lost."""

WORKER_TIMEOUT = 60
"""Seconds that a running scheduler has to show a worker, at the start and after all have died.
Jobs of SLURM may wait in a queue without limit."""

DASK_SETTINGS = {
    "scheduler.allowed-failures": 0,  # the sweep counts deaths, and hears of the first
    "scheduler.worker-ttl": "2 minutes",  # one that hangs so long counts as dead
    "comm.timeouts.connect": "300s",  # on a busy machine a worker takes long to come back
    # A scheduler and two workers that profile themselves take a seventh of a core.
    "worker.profile.enabled": False,
    "admin.system-monitor.interval": "5s",
    "admin.tick.interval": "500ms",
}
"""Dask's configuration for a cluster that is started here."""


class NoScheduler(InputError):
    """Nobody answers at the address that was given."""


class Where(NamedTuple):
    """Where tasks run: `kind` is local, processes, scheduler or slurm; `number` of processes or
    jobs; `address` of a scheduler."""

    kind: str
    number: int = 1
    address: str = ""


def parse_where(on: str) -> Where:
    """From `"local"`, `"local:4"`, `"tcp://host:8786"`, `"slurm"` or `"slurm:40"`."""
    if on == "local":
        return Where("local")
    if re.fullmatch(r"(tcp|tls|ucx|ws)://.+:\d{1,5}", on):
        return Where("scheduler", address=on)
    found = re.fullmatch(r"(local|slurm)(?::([1-9]\d*))?", on)
    if found is None:
        raise InputError(
            f"on = {on!r}: it must be local, local:N (processes), tcp://HOST:PORT, slurm or "
            f"slurm:N (jobs)"
        )
    return Where("processes" if found[1] == "local" else "slurm", int(found[2] or 1))


@contextmanager
def connect(where: Where) -> Iterator[Any]:
    """A Dask client whose scheduler has a worker, for as long as the context lasts."""
    try:
        import distributed
    except ImportError as error:
        raise InputError("sweeps on a cluster need Dask: pip install 'attlas[cluster]'") from error
    scheduler = nullcontext(where.address) if where.kind == "scheduler" else _slurm(where.number)
    timeout = WORKER_TIMEOUT if where.kind == "scheduler" else math.inf
    with _dask_log_silenced(), scheduler as found:
        try:
            client = distributed.Client(found, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise NoScheduler(f"no scheduler answers at {where.address}: {error}") from error
        try:
            wait_for_worker(client, timeout)
            yield client
        except (
            distributed.CancelledError,
            distributed.client.ClosedClientError,
            distributed.comm.CommClosedError,
        ) as error:
            raise SchedulerLost from error
        finally:
            client.close(timeout=5)


def wait_for_worker(client: Any, seconds: float) -> None:
    """Wait until the scheduler has a worker."""
    try:
        client.wait_for_workers(1, timeout=seconds if math.isfinite(seconds) else None)
    except OSError as error:
        if not isinstance(error, TimeoutError):
            raise SchedulerLost from error
        raise InputError(
            f"the scheduler at {client.scheduler.address} has no worker after {seconds} seconds"
        ) from error


@contextmanager
def _slurm(count: int) -> Iterator[Any]:
    """Jobs of SLURM as jobqueue.yaml describes them; a job that ends too early is replaced."""
    try:
        import dask
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise InputError(
            "sweeps on SLURM need dask-jobqueue: pip install 'attlas[cluster]'"
        ) from error
    if shutil.which("sbatch") is None:
        raise InputError("there is no SLURM here: the command sbatch is not found")
    prologue = dask.config.get("jobqueue.slurm.job-script-prologue", None) or []
    exports = [f'export {name}="{value}"' for name, value in ONE_THREAD.items()]
    with dask.config.set({f"distributed.{name}": value for name, value in DASK_SETTINGS.items()}):
        try:
            cluster = SLURMCluster(job_script_prologue=[*prologue, *exports])
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            why = str(error).partition(", for example")[0]
            raise InputError(
                f"dask-jobqueue's configuration file (jobqueue.yaml) does not describe a job: {why}"
            ) from error
        try:
            _check_job(cluster.job_script())
            cluster.adapt(minimum_jobs=count, maximum_jobs=count)
            yield cluster
        finally:
            with contextlib.suppress(TimeoutError):
                cluster.close(timeout=30)


def _check_job(script: str) -> None:
    """Refuse a job that SLURM refuses; dask-jobqueue would submit it again and again."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        command = ["sbatch", "--test-only", file.name]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"sbatch ends with {answer.returncode}"]
        why = lines[-1].removeprefix("sbatch: error: ")
        raise InputError(f"SLURM refuses the job that jobqueue.yaml describes: {why}")


@contextmanager
def _dask_log_silenced() -> Iterator[None]:
    """Dask logs every death of a worker; the sweep reports it in its own words."""
    noisy = ("distributed", "dask_jobqueue", "tornado")
    known = list(logging.root.manager.loggerDict)  # each has a level of its own
    names = {*noisy, *(name for name in known if name.partition(".")[0] in noisy)}
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
