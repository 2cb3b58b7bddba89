"""Kill drivers, workers and schedulers of sweeps at random times, their start among them.

    python -m tools.kills [driver|worker|scheduler ...] [--times 100] [--seed 0]

It counts cells that were finished and are lost, cells that differ from those of an undisturbed
sweep, and sentences that are not true. All three should be 0, and the exit code is 0 then.

Drivers, schedulers and workers of Dask are forked from this process, which has imported everything
and started nothing, so that most kills do not meet an import. Workers of local:N start afresh.
"""

import argparse
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from attlas.lab import ONE_THREAD

os.environ.update(ONE_THREAD)

import distributed.cli.dask_scheduler
import distributed.cli.dask_worker

import attlas.cli
from attlas.claims import load_file
from attlas.lab import sweeps

TOY = Path(__file__).parents[1] / "tests" / "lab" / "toys" / "square.py"
GRID, SEEDS = {"n": "1:61", "dim": "5", "wait": "0.02"}, "0:3"

PROGRESS = (
    r"Waiting for workers \(.*\)\.",
    r"\d+ workers? \(.*\)",
    r"[\d,]+ of [\d,]+ cells, .*",
    r"(Starting|Planning the grid|Looking for .*), after .* s",
    r"180 cells: .*",
)
DEATHS = (
    r"A process was killed by SIGKILL as it started; another takes its place\.",
    r"The worker tcp://\S+ died before work started\.",
)
LOST = (
    r"4 processes in a row did not start: the last was killed by SIGKILL, as happens where memory"
    r" is short\. What is finished is kept; the same command goes on\.",
    r"All workers are gone\. What is finished is kept; the same command goes on\.",
    r"The workers died while they were asked what they compute with\. What is finished is kept; the"
    r" same command goes on\.",
)
NO_WORKER = r"attlas: the scheduler at tcp://\S+ has no worker after 60 seconds"
NO_SCHEDULER = (
    r"The scheduler was out of reach\.",
    r"The scheduler is gone\. What is finished is kept; the same command goes on\.",
    r"attlas: no scheduler answers at tcp://\S+: .*",
)


class Forked:
    """A function that runs in a process of its own; what it says is in the file `log`."""

    def __init__(self, work: Callable[[], None], log: Path) -> None:
        self.log, self.start = log, time.time()
        self.code: int | None = None
        with warnings.catch_warnings(action="ignore"):  # JAX's, whose threads have not begun
            self.pid = os.fork()
        if self.pid:
            return
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = 0
        try:
            work()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def ended(self, wait: bool = False) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def seconds(self) -> float:
        """From its start to its last word."""
        return self.log.stat().st_mtime - self.start

    def kill(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)


class Trial:
    """A sweep of the toy that is killed again and again, and what was counted meanwhile."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.counts = folder, random.Random(seed), Counter[str]()
        self.claim = load_file(TOY)[0]
        self._started: list[Forked] = []
        self.new_store()
        driver = self.driver("local:1")
        self.judge(driver, {0: ()})
        self.span = driver.seconds()
        plan = self.plan()
        self.undisturbed = plan.gathered()
        assert plan.tally.left == 0

    def new_store(self) -> None:
        self.kept: set[str] = set()
        self.store = self.folder / f"store-{self.counts['sweeps']}"
        self.counts["sweeps"] += 1

    def plan(self) -> sweeps.Sweep:
        return sweeps.Sweep(sweeps.plan_grid(self.claim, GRID, SEEDS), self.store)

    def start(self, work: Callable[[], None]) -> Forked:
        self._started.append(Forked(work, self.folder / f"{len(self._started)}.log"))
        return self._started[-1]

    def driver(self, on: str) -> Forked:
        """With short tasks, so that much is under way, and little patience with a scheduler."""
        grid = [word for name, values in GRID.items() for word in ("--grid", f"{name}={values}")]
        words = ["--claims", str(TOY), *grid, "--seeds", SEEDS, "--store", str(self.store)]

        def work() -> None:
            # Its workers need not import this module.
            sys.modules["__main__"] = types.ModuleType("__main__")
            sweeps.TASK_SECONDS, sweeps.RECONNECT_SECONDS = 0.3, 2
            sys.argv = ["attlas", "sweep", "toy/square", *words, "--on", on, "--retries", "1000"]
            attlas.cli.main()

        return self.start(work)

    def pause(self, until: float) -> None:
        time.sleep(self.random.uniform(0.0, until))

    def judge(self, driver: Forked, allowed: dict[int, tuple[str, ...]]) -> int:
        """Wait for a driver: its exit code and what it says must be `allowed`."""
        driver.ended(wait=True)
        code, told = driver.code or 0, driver.log.read_text()
        known = (*PROGRESS, *DEATHS, *allowed.get(code, ()))
        wrong = [t for t in told.splitlines() if not any(re.fullmatch(k, t) for k in known)]
        if wrong or code not in allowed:
            self.counts["wrong messages"] += 1
            print(f"WRONG: exit code {code}, {wrong or told}", flush=True)
        plan = self.plan()
        found = {plan.grid.names[item] for item in plan.status.nonzero()[0].tolist()}
        if lost := self.kept - found:
            self.counts["lost cells"] += len(lost)
            print(f"LOST: {len(lost)} cells", flush=True)
        self.kept |= found
        if plan.tally.left == 0 and hasattr(self, "undisturbed"):
            self.counts["other cells"] += not plan.gathered().identical(self.undisturbed)
        return code

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.ended(wait=True)


def kill_drivers(trial: Trial, times: int) -> None:
    """The process that hands out, here or with a worker; the next call goes on."""
    spans = {"local": trial.span / 2, "local:1": trial.span}
    while trial.counts["kills"] < times:
        trial.new_store()
        on = trial.random.choice(list(spans))
        for _ in range(min(4, times - trial.counts["kills"])):
            driver = trial.driver(on)
            trial.pause(spans[on])
            driver.kill()
            if trial.judge(driver, {0: (), -signal.SIGKILL: ()}) == 0:
                spans[on] = driver.seconds()
                break
            trial.counts["kills"] += 1
        trial.judge(trial.driver(on), {0: ()})


def kill_workers(trial: Trial, times: int) -> None:
    """Processes of this machine, or workers of Dask that are replaced."""
    killed = 0
    while killed < times:
        trial.new_store()
        if trial.random.random() < 0.5:
            address, victims = "local:2", []
        else:
            address, scheduler = start_scheduler(trial)
            victims = [start_worker(trial, address) for _ in range(2)]
        driver = trial.driver(address)
        for _ in range(min(10, times - killed)):
            trial.pause(trial.span / (2 if not victims else 8))
            if driver.ended():
                break
            if not victims:
                killed += kill_child(driver.pid, trial.random)
            else:
                place = trial.random.randrange(2)
                victims[place].kill()
                victims[place] = start_worker(trial, address)
                killed += 1
        while trial.judge(driver, {0: (), 1: LOST, 2: (NO_WORKER,)}):
            driver = trial.driver(address)
        for process in (scheduler, *victims) if victims else ():
            process.kill()
    trial.counts["kills"] += killed


def kill_schedulers(trial: Trial, times: int) -> None:
    span = trial.span / 2
    while trial.counts["kills"] < times:
        trial.new_store()
        address, scheduler = start_scheduler(trial)
        worker = start_worker(trial, address)
        if trial.random.random() < 0.8:
            wait_for(address)
        driver = trial.driver(address)
        trial.pause(span)
        if not driver.ended():
            trial.counts["kills"] += 1
        scheduler.kill()
        if trial.judge(driver, {0: (), 1: NO_SCHEDULER, 2: NO_SCHEDULER}) == 0:
            span = driver.seconds()
        worker.kill()
    trial.judge(trial.driver("local"), {0: ()})


def start_scheduler(trial: Trial) -> tuple[str, Forked]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    command = distributed.cli.dask_scheduler.main
    return f"tcp://127.0.0.1:{port}", trial.start(lambda: command.main(args=words))


def start_worker(trial: Trial, address: str) -> Forked:
    words = [address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--death-timeout", "30"]
    command = distributed.cli.dask_worker.main
    return trial.start(lambda: command.main(args=words))


def wait_for(address: str, seconds: float = 120) -> None:
    """Wait until something listens there."""
    place, deadline = ("127.0.0.1", int(address.rpartition(":")[2])), time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as caller:
            if caller.connect_ex(place) == 0:
                return
        time.sleep(0.05)


def kill_child(parent: int, draws: random.Random) -> bool:
    """Kill one of the processes that a process has started to work for it."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"spawn_main" in words:
            found.append(int(child))
    if found:
        os.kill(draws.choice(found), signal.SIGKILL)
    return bool(found)


COUNTED = ("kills", "sweeps", "lost cells", "other cells", "wrong messages")
KINDS = {"driver": kill_drivers, "worker": kill_workers, "scheduler": kill_schedulers}


def run(kind: str, times: int, seed: int) -> Counter[str]:
    """Kill so often; what was counted."""
    with tempfile.TemporaryDirectory(prefix="attlas-kills-") as folder:
        trial = Trial(Path(folder), seed)
        try:
            KINDS[kind](trial, times)
        finally:
            trial.close()
    return trial.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], default=[])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bad = 0
    for kind in given.kinds or KINDS:
        counts = run(kind, given.times, given.seed)
        print(f"{kind}: {', '.join(f'{counts[word]} {word}' for word in COUNTED)}", flush=True)
        bad += sum(counts[word] for word in COUNTED[2:])
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
