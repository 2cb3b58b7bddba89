"""Who carries out tasks: this process, processes of this machine, or a Dask cluster.

A task is a claim and a job, which says what to do with the claim. Whoever carries it out writes
evidence into the store itself, so that a few hundred bytes travel. Outcomes come back in the order
in which tasks finish; the task of a worker that died comes back as `WorkerDied`.
"""

import contextlib
import functools
import hashlib
import math
import multiprocessing
import os
import pickle
import platform
import queue
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import attlas
from attlas.claims import Claim, find_claim, load_file
from attlas.errors import InputError, SchedulerLost, WorkersLost
from attlas.lab import KEEP_MEMORY, ONE_THREAD, cluster
from attlas.lab.measurement import keep_compiled
from attlas.lab.simulations import simulation
from attlas.lab.store import Store
from attlas.provenance import package_digest

SECONDS_BETWEEN_COUNTS = 3.0
"""Between two counts of a cluster's workers, and what one of its answers may take."""

STARTS = 4
"""How many workers in a row may die before one starts."""

STOPPED_SECONDS = 30.0
"""How long a process may be stopped, as by SIGSTOP, before another takes its place."""

UNGUARDED = 97
"""The exit code of a process that runs its parent's script and would start processes too."""

Progress = Callable[[str, int, int], None]
"""Called with a claim's id, the cells done and the cells to do."""


class Job(Protocol):
    """What is to be done with a claim. It travels to other processes: it can be pickled."""

    def carry_out(self, claim: Claim, store: Store, progress: Progress | None) -> Any:
        """The outcome, which can be pickled too."""


@dataclass(frozen=True)
class WorkerDied:
    """The outcome of a task whose worker died."""

    reason: str = "its worker died"


class Workers(Protocol):
    """Workers that carry out tasks.

    `where` says in words where they are, `processes` how many there are, and `slots` how many tasks
    should be submitted and not finished, so that none waits for work.
    """

    where: str

    @property
    def processes(self) -> int: ...

    @property
    def slots(self) -> int: ...

    def submit(self, number: int, claim: Claim, job: Job, group: str = "") -> None:
        """Queue a task: `job` is carried out with `claim`.

        Arguments:
        - `number`: under which `finished` gives the outcome.
        - `group`: tasks of one group in a row go to one worker, in their order.
        """

    def finished(self) -> list[tuple[int, Any]]:
        """Wait a second at most; numbers and outcomes of tasks that have finished.

        What a task raised is raised here.
        """


@contextmanager
def open_workers(where: cluster.Where, claim: Claim, store: Store) -> Iterator[Workers]:
    """The workers that `where` names, each of one thread unless it is this process."""
    if where.kind == "local":
        yield InProcess(store)
    elif where.kind == "processes":
        with Processes(where.number, store) as processes:
            yield processes
    else:
        source = ClaimSource.of(claim)
        with cluster.connect(where) as client:
            limit = cluster.WORKER_TIMEOUT if where.kind == "scheduler" else math.inf
            workers = DaskWorkers(client, store, limit)
            workers.refuse_unlike(source)
            yield workers  # the scheduler forgets what a client that leaves has not waited for


class InProcess:
    """This process. A task is carried out when its outcome is asked for."""

    where = "this process"
    slots = processes = 1

    def __init__(self, store: Store, progress: Progress | None = None) -> None:
        self.store, self.progress = store, progress
        self._waiting: deque[tuple[int, Claim, Job]] = deque()

    def submit(self, number: int, claim: Claim, job: Job, group: str = "") -> None:
        self._waiting.append((number, claim, job))

    def finished(self) -> list[tuple[int, Any]]:
        if not self._waiting:
            return []
        number, claim, job = self._waiting.popleft()
        return [(number, job.carry_out(claim, self.store, self.progress))]


@dataclass(frozen=True)
class ClaimSource:
    """What another process needs to load a claim, and what it must find.

    `file` is None for claims of the catalogue; `function` is empty but for simulations.
    """

    id: str
    file: str | None
    function: str
    code: str
    version: str
    fingerprint: str
    flags: str

    @classmethod
    @functools.cache  # a claim is as its file was when it was loaded
    def of(cls, claim: Claim) -> "ClaimSource":
        if claim.module == "__main__" or not claim.file.is_file():
            raise InputError(f"{claim.id} is defined in no file that other processes could load")
        simulates = claim.map == "simulation"
        file = str(claim.file) if claim.loaded or simulates else None
        return cls(
            id=claim.id,
            file=file,
            function=claim.function.__qualname__ if simulates else "",
            code=claim.code,
            version=attlas.__version__,
            fingerprint=fingerprint(file),
            flags=_xla_flags(),
        )


@functools.cache
def load_claim(source: ClaimSource) -> Claim:
    """The claim, if this process has the sources and flags of the one that sent it."""
    here = fingerprint(source.file)
    if here != source.fingerprint:
        raise InputError(
            f"a worker has Attlas {attlas.__version__} (sources {here[:8]}), and this process "
            f"{source.version} ({source.fingerprint[:8]}): they must be the same, with the same "
            f"jax, numpy and scipy; if sources changed after the command began, call it again"
        )
    if _xla_flags() != source.flags:  # they change last digits
        raise InputError(
            f"a worker on {platform.node()} compiles with XLA_FLAGS={_xla_flags()!r}, and this "
            f"process with {source.flags!r}: they must be the same"
        )
    if source.function:
        claim = simulation(f"{source.file}:{source.function}")
    else:
        if source.file is not None:
            _load_file_once(source.file, source.fingerprint)
        try:
            claim = find_claim(source.id)
        except KeyError as error:
            raise InputError(f"a worker does not find the claim {source.id}") from error
    # Its evidence is stored under the code that the sender has: that of a simulation depends on the
    # name under which its module was imported.
    return replace(claim, code=source.code)


@functools.cache
def _load_file_once(file: str, fingerprint: str) -> None:
    load_file(file)


def _xla_flags() -> str:
    return os.environ.get("XLA_FLAGS", "")


def fingerprint(file: str | None) -> str:
    """Digest of the package's sources, of a claim file, and of the versions of what computes."""
    digest = hashlib.sha256(package_digest().encode())
    if file is not None:
        try:
            digest.update(Path(file).read_bytes())
        except OSError as error:
            raise InputError(
                f"the claim file {file!r} cannot be read: {error.strerror or error}"
            ) from error
    return digest.hexdigest()


@functools.cache
def _open_store(folder: str) -> Store:
    store = Store(folder)
    keep_compiled(store)
    return store


class _Task(NamedTuple):
    number: int
    source: ClaimSource
    job: Job
    group: str


_Group = deque[_Task]
"""Tasks that one process carries out, in their order."""


class _Process:
    """A process, seen from here, and the groups that it was given."""

    def __init__(self, place: int, folder: str, environment: Mapping[str, str]) -> None:
        # A new process runs the script of its parent again, and would start processes in its turn.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            sys.exit(UNGUARDED)
        context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, folder), daemon=True)
        with _changed_environment(environment), _interrupts_blocked():
            self.process.start()
        there.close()  # so that its death is seen here
        self.place, self.ready, self.groups = place, False, deque[_Group]()
        self._stat = Path(f"/proc/{self.process.pid}/stat")
        self._stopped_since = math.inf

    def give(self, group: _Group) -> None:
        self.groups.append(group)
        with contextlib.suppress(ConnectionError):  # its death is seen when it should answer
            for task in group:
                self.pipe.send((task.source, task.job))

    def take_first_task(self) -> int:
        """Forget the task that is under way; its number."""
        number = self.groups[0].popleft().number
        if not self.groups[0]:
            self.groups.popleft()
        return number

    def kill_if_stopped(self) -> bool:
        """Kill it if it has been stopped for long; nothing is known where there is no /proc."""
        try:
            stopped = self._stat.read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            stopped = False
        now = time.monotonic()
        self._stopped_since = min(self._stopped_since, now) if stopped else math.inf
        if now - self._stopped_since < STOPPED_SECONDS:
            return False
        self.process.kill()
        return True

    def end(self, seconds: float = 0.0) -> int:
        """Its exit code, that of a kill if it does not end by itself within `seconds`."""
        self.pipe.close()
        self.process.join(seconds)
        self.process.kill()  # one that is stopped would not hear of SIGTERM
        self.process.join()
        return self.process.exitcode or 0


class Processes(contextlib.AbstractContextManager["Processes"]):
    """Processes of this machine, each of `threads` threads. One that dies is replaced.

    A process is given up to `groups_each` groups of tasks. Every second one takes them from the end
    of the queue: neighbouring tasks share compiled programs.
    """

    where = "processes of this machine"

    def __init__(
        self,
        count: int,
        store: Store,
        *,
        threads: int = 1,
        groups_each: int = 1,
        progress: Progress | None = None,
    ) -> None:
        self.processes, self.slots = count, 2 * count
        self.progress, self.groups_each, self._notes = progress, groups_each, store.notes
        self._deaths_at_start = 0
        self._folder = str(store.folder.resolve())
        self._environment = {**ONE_THREAD, **KEEP_MEMORY, "NPROC": str(threads)}
        self._waiting: deque[_Group] = deque()
        self._running: dict[int, _Process] = {}

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.end()

    def submit(self, number: int, claim: Claim, job: Job, group: str = "") -> None:
        if not (group and self._waiting and self._waiting[-1][-1].group == group):
            self._waiting.append(deque())
        self._waiting[-1].append(_Task(number, ClaimSource.of(claim), job, group))

    def finished(self) -> list[tuple[int, Any]]:
        self._hand_out()
        busy: dict[Any, _Process] = {p.pipe: p for p in self._running.values() if p.groups}
        if sum(process.kill_if_stopped() for process in busy.values()):
            self._notes.append(
                "A process that had been stopped was ended; another takes its place."
            )
        return [answer for pipe in wait(busy, timeout=1.0) for answer in self._receive(busy[pipe])]

    def _hand_out(self) -> None:
        for count in range(1, self.groups_each + 1):
            for place in range(self.processes):
                if self._waiting and place not in self._running:
                    self._running[place] = _Process(place, self._folder, self._environment)
                if self._waiting and len(self._running[place].groups) < count:
                    group = self._waiting.pop() if place % 2 else self._waiting.popleft()
                    self._running[place].give(group)

    def _receive(self, process: _Process) -> list[tuple[int, Any]]:
        try:
            kind, content = process.pipe.recv()
        except (EOFError, OSError):
            return self._requeue_after_death(process)
        if kind == "ready":
            process.ready, self._deaths_at_start = True, 0
            return []
        if kind == "progress":
            if self.progress is not None:
                self.progress(*content)
            return []
        number = process.take_first_task()
        if kind == "raised":
            raise content
        return [(number, content)]

    def _requeue_after_death(self, process: _Process) -> list[tuple[int, Any]]:
        del self._running[process.place]
        code = process.end(seconds=5.0)
        if not process.ready:
            self._judge_death_at_start(code)
            self._waiting.extendleft(reversed(process.groups))
            return []
        number = process.take_first_task()
        self._waiting.extendleft(reversed(process.groups))
        return [(number, WorkerDied())]

    def _judge_death_at_start(self, code: int) -> None:
        """Refuse a script's mistake; note a kill, which says nothing about the next process."""
        if code == UNGUARDED:
            raise InputError(
                f"the processes of local:{self.processes} did not start; in a script, sweep under "
                f"`if __name__ == '__main__':`"
            )
        if code >= 0:
            raise InputError(
                f"a process of local:{self.processes} ended with code {code} as it started; what "
                f"it says is above"
            )
        how = f"was killed by {_signal_name(-code)}"
        self._deaths_at_start += 1
        if self._deaths_at_start == STARTS:
            memory = ", as happens where memory is short" if code == -9 else ""
            raise WorkersLost(f"{STARTS} processes in a row did not start: the last {how}{memory}")
        self._notes.append(f"A process {how} as it started; another takes its place.")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one for real time
        return f"signal {number}"


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process that starts inside never sees Ctrl-C, which is for this one."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Any, folder: str) -> None:
    """Carry out what comes through the pipe until it is closed."""
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send(("ready", None))
        while True:
            message = pipe.recv_bytes()
            try:
                source, job = pickle.loads(message)
                outcome = job.carry_out(
                    load_claim(source),
                    _open_store(folder),
                    lambda *done: pipe.send(("progress", done)),
                )
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - it is raised again at the other end
                pipe.send(("raised", _picklable_error(error)))
            else:
                pipe.send(("done", outcome))


def _picklable_error(error: Exception) -> Exception:
    """The error with its traceback as a note; a RuntimeError in its place if it has no pickle."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever the class of that error does
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        substitute.add_note(traceback.format_exc())
        return substitute
    return error


def carry_out_on_dask(source: ClaimSource, folder: str, job: Job) -> Any:
    """Carry out one task on a worker of Dask."""
    return job.carry_out(_load_on_dask(source), _open_store(folder), None)


def _load_on_dask(source: ClaimSource) -> Claim:
    """The claim, on a worker that computes the same last digits as others."""
    if os.environ.get("NPROC") != ONE_THREAD["NPROC"]:
        raise InputError(
            f"a worker on {platform.node()} would compute with several threads: start it with "
            f"NPROC=1 in its environment"
        )
    return load_claim(source)


def check_worker(source: ClaimSource, folder: str, token: str) -> None:
    """Refuse to work where numbers would be other ones, or written elsewhere."""
    _load_on_dask(source)
    if not (Path(folder) / token).exists():
        raise InputError(
            f"a worker on {platform.node()} does not see the store {folder!r}: it must be on a "
            f"shared disk"
        )
    _open_store(folder)


class DaskWorkers:
    """Workers of a Dask cluster. `patience`: seconds that it may be without any."""

    def __init__(self, client: Any, store: Store, patience: float = math.inf) -> None:
        self.client, self.where, self.patience = client, client.dashboard_link, patience
        self.folder, self._notes = str(store.folder.resolve()), store.notes
        self._name = uuid.uuid4().hex
        self._processes, self._counted = 1, -math.inf
        self._last_alive = time.monotonic()
        self._futures: dict[int, Any] = {}
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def processes(self) -> int:
        """Workers, by a count that is a few seconds old at most."""
        if time.monotonic() - self._counted > SECONDS_BETWEEN_COUNTS:
            with contextlib.suppress(OSError):  # a scheduler that is gone is seen by its tasks
                self._processes = len(self.client.nthreads())
            self._counted = time.monotonic()
            if self._processes:
                self._last_alive = self._counted
            elif self._counted - self._last_alive > self.patience:
                raise WorkersLost("All workers are gone")
        return self._processes

    @property
    def slots(self) -> int:
        return max(4, 3 * self.processes)  # one under way and a spare one or two on each worker

    def submit(self, number: int, claim: Claim, job: Job, group: str = "") -> None:
        key = f"attlas-{self._name}-{number}"  # of no other sweep on the same scheduler
        arguments = (ClaimSource.of(claim), self.folder, job)
        future = self.client.submit(carry_out_on_dask, *arguments, key=key, pure=False)
        self._futures[number] = future
        future.add_done_callback(lambda _: self._done.put(number))

    def finished(self) -> list[tuple[int, Any]]:
        numbers = []
        with contextlib.suppress(queue.Empty):
            numbers.append(self._done.get(timeout=1.0))
            while True:
                numbers.append(self._done.get_nowait())
        return [answer for number in numbers for answer in self._outcome(number)]

    def _outcome(self, number: int) -> list[tuple[int, Any]]:
        """A task's number and outcome; nothing yet if the worker that has the outcome died."""
        from distributed import KilledWorker

        future = self._futures.pop(number)
        if future.status == "error":  # its own, or its worker's
            error = future.exception()
            if not isinstance(error, KilledWorker):
                raise error
            outcome = WorkerDied()
        else:
            try:
                outcome = future.result(timeout=SECONDS_BETWEEN_COUNTS)
            except TimeoutError:  # another worker computes it again
                self._futures[number] = future
                self._done.put(number)
                return []
            except OSError as error:
                raise SchedulerLost from error
        future.release()
        return [(number, outcome)]

    def refuse_unlike(self, source: ClaimSource) -> None:
        """Refuse workers that would compute other numbers or write elsewhere.

        Those that die meanwhile have not answered; at least one must.
        """
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".seen-by-") as token:
            arguments = (source, self.folder, Path(token.name).name)
            for _ in range(STARTS):
                cluster.wait_for_worker(self.client, self.patience)
                try:
                    answers = self.client.run(check_worker, *arguments, on_error="return")
                except OSError as error:
                    raise SchedulerLost from error
                if self._has_sound_worker(answers):
                    return
        raise WorkersLost("The workers died while they were asked what they compute with")

    def _has_sound_worker(self, answers: Mapping[str, Any]) -> bool:
        died = []
        for address, error in answers.items():
            if isinstance(error, InputError):
                raise InputError(f"{error} ({address})")
            if isinstance(error, OSError):  # of the connection
                died.append(address)
            elif isinstance(error, BaseException):
                raise InputError(
                    f"the worker {address} cannot run Attlas {attlas.__version__}: {error}"
                )
        self._notes += [f"The worker {address} died before work started." for address in died]
        return len(answers) > len(died)
