"""Tasks of a sweep on Dask: processes of this machine, a running scheduler, or jobs of SLURM.

A worker writes each finished task into the store itself, so that the store's folder must be one that all of them see; what
travels is a few hundred bytes. Workers load the claim by its id, or from the same file, and must have the same sources as
this process.
"""

import contextlib
import functools
import hashlib
import logging
import math
import multiprocessing
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import attlas
from attlas.claims import Claim, catalogue, load_file, versions
from attlas.errors import InputError
from attlas.lab import ONE_THREAD
from attlas.lab.runner import keep_compiled
from attlas.lab.simulations import simulation
from attlas.lab.store import Store
from attlas.lab.sweeps import RETRIES, Batch, Outcome, Stopped, carry_out

PATIENCE = {"processes": 300, "scheduler": 60}
"""Seconds that processes of this machine have to start, and a running scheduler to show a worker, at the beginning and after
all have died. Jobs may stand in a queue."""

COUNT = 3.0
"""Seconds between two counts of the workers, and those that an answer may take."""


SETTINGS = {
    "scheduler.allowed-failures": 0,  # a death is counted by the sweep, and the first one is told to it
    "comm.timeouts.connect": "300s",  # on a busy machine a worker takes long to come back
    # A scheduler and two workers that watch themselves take a seventh of a core from the work.
    "worker.profile.enabled": False,
    "admin.system-monitor.interval": "5s",
    "admin.tick.interval": "500ms",
}
"""What a cluster that is started here has of its own in Dask's configuration."""


class Where(NamedTuple):
    """Where tasks are carried out: `kind` is local, processes, scheduler or slurm; `number` of processes or jobs."""

    kind: str
    number: int = 1
    address: str = ""


def parse_where(on: str) -> Where:
    if on == "local":
        return Where("local")
    if re.fullmatch(r"(tcp|tls|ucx|ws)://.+:\d{1,5}", on):
        return Where("scheduler", address=on)
    found = re.fullmatch(r"(local|slurm)(?::([1-9]\d*))?", on)
    if found is None:
        raise InputError(
            f"on = {on!r}: it must be local, local:N (processes), tcp://HOST:PORT, slurm or slurm:N (jobs)"
        )
    return Where("processes" if found[1] == "local" else "slurm", int(found[2] or 1))


# --- on a worker -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """What a worker needs to load a claim: its id and, if it is not in the catalogue, its file, with a `function` if it is
    a simulation; and what it must find."""

    id: str
    file: str | None
    function: str
    code: str
    evidence: str
    version: str
    fingerprint: str
    flags: str

    @classmethod
    def of(cls, claim: Claim) -> "Source":
        known = catalogue().get(claim.id) is claim and not claim.loaded
        if not known and (claim.measure.__module__ == "__main__" or not claim.file.is_file()):
            raise InputError(f"{claim.id} is defined in no file that other processes could load")
        file = None if known else str(claim.file)
        function = claim.measure.__qualname__ if claim.map == "simulation" else ""
        return cls(
            claim.id,
            file,
            function,
            claim.code,
            claim.evidence,
            attlas.__version__,
            fingerprint(file),
            _flags(),
        )

    def load(self) -> Claim:
        """The claim, if this process has the sources it was sent from."""
        return _loaded(self)


@functools.cache
def _loaded(source: Source) -> Claim:
    here = fingerprint(source.file)
    if here != source.fingerprint:
        raise InputError(
            f"a worker has Attlas {attlas.__version__} (sources {here[:8]}), and this process {source.version} "
            f"({source.fingerprint[:8]}): they must be the same, with the same jax, numpy and scipy"
        )
    if _flags() != source.flags:  # they change last digits
        raise InputError(
            f"a worker on {os.uname().nodename} compiles with XLA_FLAGS={_flags()!r}, and this process with "
            f"{source.flags!r}: they must be the same"
        )
    if source.function:
        claim: Claim | None = simulation(f"{source.file}:{source.function}")
    else:
        if source.file is not None:
            load_file(source.file)
        claim = catalogue().get(source.id)
    if claim is None:
        raise InputError(f"a worker does not find the claim {source.id}")
    return replace(claim, code=source.code, evidence=source.evidence)


def _flags() -> str:
    return os.environ.get("XLA_FLAGS", "")


def fingerprint(file: str | None) -> str:
    """Digest of all sources of the package, of a claim file, and of the versions of what computes."""
    package = Path(attlas.__file__).parent
    digest = hashlib.sha256(versions().encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(
            str(path.relative_to(package)).encode() + hashlib.sha256(path.read_bytes()).digest()
        )
    if file is not None:
        try:
            digest.update(Path(file).read_bytes())
        except OSError as error:
            raise InputError(
                f"the claim file {file!r} cannot be read: {error.strerror or error}"
            ) from error
    return digest.hexdigest()


def work(source: Source, folder: str, batches: Sequence[Batch]) -> Outcome:
    """Carry out one task."""
    _check_threads()
    return carry_out(source.load(), batches, _store(folder))


def _check_threads() -> None:
    """Last digits must not depend on who computes."""
    if os.environ.get("NPROC") != ONE_THREAD["NPROC"]:
        raise InputError(
            f"a worker on {os.uname().nodename} would compute with several threads: start it with NPROC=1 in its environment"
        )


@functools.cache
def _store(folder: str) -> Store:
    store = Store(folder)
    keep_compiled(store)
    return store


def pack(folder: str, claim: str) -> None:
    """Pack the small blocks of a claim: a few milliseconds each, which whoever hands out tasks does not have."""
    _store(folder).pack(claim)


def trial(source: Source, folder: str, token: str) -> str:
    """What is wrong with this worker, in a sentence, or nothing."""
    try:
        _check_threads()
        source.load()
        if not (Path(folder) / token).exists():
            return f"a worker on {os.uname().nodename} does not see the store {folder!r}: it must be on a shared disk"
        _store(folder)
    except InputError as error:
        return str(error)
    return ""


# --- in this process -------------------------------------------------------------------------------------------------


class Crew:
    """Workers of a Dask cluster."""

    def __init__(self, client: Any, source: Source, store: Store, kind: str) -> None:
        self.client, self.source, self.where = client, source, client.dashboard_link
        self._patience = PATIENCE.get(kind, math.inf)
        self.folder = str(store.folder.resolve())
        self._sweep = uuid.uuid4().hex
        self._processes, self._counted, self._alive = 1, -COUNT, time.monotonic()
        self._futures: dict[int, Any] = {}
        self._packing: Any = None
        self._killed_packers = 0
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def processes(self) -> int:
        """Workers by a count that is a few seconds old at most."""
        if time.monotonic() - self._counted > COUNT:
            with contextlib.suppress(OSError):  # a scheduler that is gone is told of by its tasks
                self._processes = len(self.client.nthreads())
            self._counted = time.monotonic()
            if self._processes:
                self._alive = self._counted
            elif self._counted - self._alive > self._patience:
                raise Stopped(
                    "All workers are gone. Finished cells are kept; the same command goes on."
                )
        return self._processes

    @property
    def slots(self) -> int:
        return max(4, 3 * self.processes)  # one under way and a spare one or two on each worker

    def submit(self, number: int, batches: Sequence[Batch]) -> None:
        key = f"attlas-{self._sweep}-{number}"  # of no other sweep on the same scheduler
        future = self.client.submit(
            work, self.source, self.folder, list(batches), key=key, pure=False
        )
        self._futures[number] = future
        future.add_done_callback(lambda _: self._done.put(number))

    def finished(self) -> list[tuple[int, Outcome]]:
        found = []
        try:
            found.append(self._done.get(timeout=1.0))
            while True:
                found.append(self._done.get_nowait())
        except queue.Empty:
            pass
        outcomes = [(number, self._outcome(number)) for number in found]
        return [(number, outcome) for number, outcome in outcomes if outcome is not None]

    def _outcome(self, number: int) -> Outcome | None:
        """The answer to a task; none yet, if it died with the worker that had it and another has to give it again."""
        from distributed import CancelledError, KilledWorker

        future = self._futures.pop(number)
        try:
            found = future.result(timeout=COUNT)
        except KilledWorker:
            found = Outcome(died="its worker died")
        except TimeoutError:
            self._futures[number] = future
            self._done.put(number)
            return None
        except (CancelledError, OSError) as error:
            raise Stopped(
                f"The scheduler is gone ({error}). Finished cells are kept; the same command goes on."
            ) from error
        future.release()
        return found

    def pack(self, folder: str) -> None:
        """One at a time, and no more once workers have died of it as often as of a cell: small blocks only take longer to
        read. What else goes wrong is raised, as in this process."""
        from distributed import CancelledError, KilledWorker

        if self._packing is not None:
            if not self._packing.done():
                return
            try:
                self._packing.result(timeout=COUNT)
            except KilledWorker:
                self._killed_packers += 1
            except (CancelledError, OSError):  # a scheduler that is gone is told of by its tasks
                return
        if self._killed_packers <= RETRIES:
            self._packing = self.client.submit(pack, self.folder, folder, pure=False)

    def examine(self) -> None:
        """Refuse workers that would compute other numbers or write elsewhere."""
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".seen-by-") as token:
            told = self.client.run(
                trial, self.source, self.folder, Path(token.name).name, on_error="return"
            )
        for address, sentence in told.items():
            if isinstance(sentence, BaseException):
                raise InputError(
                    f"the worker {address} cannot run Attlas {attlas.__version__}: {sentence}"
                )
            if sentence:
                raise InputError(f"{sentence} ({address})")

    def dismiss(self) -> None:
        for future in self._futures.values():
            future.cancel()


@contextmanager
def hired(where: Where, claim: Claim, store: Store) -> Iterator[Crew]:
    """The workers that `where` names, examined, for as long as the context lasts."""
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "sweeps beyond this process need Dask: pip install 'attlas[cluster]'"
        ) from error
    source = Source.of(claim)
    with _quiet(), _started(where) as cluster:
        try:
            client = distributed.Client(cluster, timeout=10, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"no scheduler answers at {where.address}: {error}") from error
        try:
            crew = Crew(client, source, store, where.kind)
            _wait(client, where)
            crew.examine()
            try:
                yield crew
            finally:
                crew.dismiss()
        finally:
            client.close(timeout=5)


def _wait(client: Any, where: Where) -> None:
    """For the first worker, or for all of our own processes."""
    count, patience = where.number if where.kind == "processes" else 1, PATIENCE.get(where.kind)
    try:
        client.wait_for_workers(count, timeout=patience)
    except TimeoutError as error:
        what = where.address or "this machine"
        raise InputError(
            f"the scheduler at {what} has no worker after {patience} seconds"
        ) from error


@contextmanager
def _started(where: Where) -> Iterator[Any]:
    """What a client connects to: an address, or a cluster that lives as long as the context."""
    import dask

    if where.kind == "scheduler":
        yield where.address
        return
    with dask.config.set({f"distributed.{name}": value for name, value in SETTINGS.items()}):
        cluster = _processes(where.number) if where.kind == "processes" else _jobs(where.number)
        try:
            yield cluster
        finally:
            with contextlib.suppress(TimeoutError):
                cluster.close(timeout=30)


def _processes(count: int) -> Any:
    from distributed import LocalCluster

    # A new process runs the script of its parent again, and would start processes in its turn. Python asks the same.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)
    options = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL, "env": ONE_THREAD}
    try:
        return LocalCluster(n_workers=count, threads_per_worker=1, **options)
    except RuntimeError as error:
        raise InputError(
            f"the processes of local:{count} did not start; in a script, sweep under `if __name__ == '__main__':`"
        ) from error


def _jobs(count: int) -> Any:
    """Jobs of SLURM as dask-jobqueue's own configuration file describes them, started again where they end too early."""
    import dask

    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise InputError(
            "sweeps on SLURM need dask-jobqueue: pip install 'attlas[cluster]'"
        ) from error
    if shutil.which("sbatch") is None:
        raise InputError("there is no SLURM here: the command sbatch is not found")
    prologue = dask.config.get("jobqueue.slurm.job-script-prologue", None) or []
    exports = [f'export {name}="{value}"' for name, value in ONE_THREAD.items()]
    try:
        cluster = SLURMCluster(job_script_prologue=[*prologue, *exports])
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        why = str(error).partition(", for example")[0]
        raise InputError(
            f"dask-jobqueue's configuration file (jobqueue.yaml) does not describe a job: {why}"
        ) from error
    refusal = _refusal(cluster.job_script())
    if refusal:
        cluster.close()
        raise InputError(f"SLURM refuses the job that jobqueue.yaml describes: {refusal}")
    cluster.adapt(minimum_jobs=count, maximum_jobs=count)
    return cluster


def _refusal(script: str) -> str:
    """Why SLURM would not take a job, or nothing: dask-jobqueue goes on submitting it in silence."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        told = subprocess.run(
            ["sbatch", "--test-only", file.name], capture_output=True, text=True, check=False
        )
    words = told.stderr.strip().splitlines() or [f"sbatch ends with {told.returncode}"]
    return words[-1].removeprefix("sbatch: error: ") if told.returncode else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask tells of every death in its log; the sweep tells of it in its own words."""
    noisy = ("distributed", "dask_jobqueue", "tornado")
    below = (
        name for name in logging.root.manager.loggerDict if name.partition(".")[0] in noisy
    )  # each has its own level
    loggers = [logging.getLogger(name) for name in {*noisy, *below}]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
