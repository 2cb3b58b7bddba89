"""Kill drivers, workers and schedulers of sweeps at random times, their start among them.

    python -m tools.kills [driver|worker|scheduler ...] [--times 100] [--seed 0]

It counts cells that were finished and are lost, cells that differ from those of an undisturbed
sweep, and sentences that are not true. All three should be 0, and the exit code is 0 then.
"""

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import xarray as xr

from attlas.claims import load_file
from attlas.lab import ONE_THREAD
from attlas.lab.sweeps import Sweep, plan_grid, sweep

TOY = Path(__file__).parents[1] / "tests" / "lab" / "toys" / "square.py"
GRID, SEEDS = {"n": "1:61", "dim": "5", "wait": "0.02"}, "0:3"

DRIVER = """
import sys
from attlas.lab import sweeps
sweeps.TASK_SECONDS, sweeps.RECONNECT_SECONDS = 0.3, 2
if __name__ == "__main__":
    from attlas.cli import main
    main()
"""
"""Short tasks, so that much is under way, and little patience with a dead scheduler."""

PROGRESS = (
    r"Waiting for workers \(.*\)\.",
    r"\d+ workers? \(.*\)",
    r"[\d,]+ of [\d,]+ cells, .*",
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
NO_SCHEDULER = (
    r"The scheduler was out of reach\.",
    r"The scheduler is gone\. What is finished is kept; the same command goes on\.",
    r"attlas: no scheduler answers at tcp://\S+: .*",
)


class Trial:
    """A sweep of the toy that is killed again and again, and what was counted meanwhile."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.counts = folder, random.Random(seed), Counter[str]()
        (folder / "driver.py").write_text(DRIVER)
        self.claim = load_file(TOY)[0]
        self.undisturbed = sweep(self.claim, GRID, seeds=SEEDS, store=folder / "undisturbed")
        self.kept: set[str] = set()
        self.span = 8.0  # seconds from the start of a driver to its end
        self._started: list[subprocess.Popen[str]] = []

    def new_store(self) -> None:
        self.kept, self.store = set(), self.folder / f"store-{self.counts['sweeps']}"
        self.counts["sweeps"] += 1

    def start(self, *words: str, pipe: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        environment = {**os.environ, **ONE_THREAD, "JAX_PLATFORMS": "cpu"}
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        self._started.append(process)
        return process

    def driver(self, on: str) -> "subprocess.Popen[str]":
        grid = [word for name, values in GRID.items() for word in ("--grid", f"{name}={values}")]
        words = ["--claims", str(TOY), *grid, "--seeds", SEEDS, "--store", str(self.store)]
        limits = ["--on", on, "--retries", "1000"]
        given = ("sweep", "toy/square", *words, *limits)
        return self.start("driver.py", *given, pipe=subprocess.PIPE)

    def pause(self, until: float) -> None:
        time.sleep(self.random.uniform(0.0, until))

    def judge(self, driver: "subprocess.Popen[str]", allowed: dict[int, tuple[str, ...]]) -> int:
        """Wait for a driver: its exit code and what it says must be `allowed`."""
        out, told = driver.communicate(timeout=600)
        code = driver.returncode
        known = (*PROGRESS, *DEATHS, *allowed.get(code, ()))
        wrong = [t for t in told.splitlines() if not any(re.fullmatch(k, t) for k in known)]
        if wrong or code not in allowed:
            self.counts["wrong messages"] += 1
            print(f"WRONG: exit code {code}, {out!r}, {wrong or told}", flush=True)
        self.check()
        return code

    def check(self) -> None:
        """Count what was finished once and is not there; compare what is complete."""
        plan = Sweep(plan_grid(self.claim, GRID, SEEDS), self.store)
        found = {plan.grid.names[item] for item in plan.status.nonzero()[0].tolist()}
        self.counts["lost cells"] += len(self.kept - found)
        self.kept |= found
        if plan.tally.left == 0:
            gathered = plan.gathered()
            if not gathered.identical(self.undisturbed):
                same = xr.where(gathered["measured"] == self.undisturbed["measured"], 0, 1)
                self.counts["other cells"] += max(1, int(same.sum()))

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def kill_drivers(trial: Trial, times: int) -> None:
    """The process that hands out, here or with a worker; the next call goes on."""
    killed = 0
    while killed < times:
        trial.new_store()
        on = trial.random.choice(("local", "local:1"))
        while killed < times:
            start, driver = time.monotonic(), trial.driver(on)
            trial.pause(trial.span)
            finished = driver.poll() is not None
            driver.kill()
            if trial.judge(driver, {0: (), -signal.SIGKILL: ()}) == 0 or finished:
                trial.span = 1.1 * (time.monotonic() - start)
                break
            killed += 1
        trial.judge(trial.driver(on), {0: ()})
    trial.counts["kills"] += killed


def kill_workers(trial: Trial, times: int) -> None:
    """Processes of this machine, or workers of Dask that are replaced."""
    killed = 0
    while killed < times:
        trial.new_store()
        if trial.random.random() < 0.5:
            driver, victims, close = trial.driver("local:2"), None, lambda: None
        else:
            address, scheduler = start_scheduler(trial)
            victims = [start_worker(trial, address) for _ in range(2)]
            driver, close = trial.driver(address), scheduler.kill
        for _ in range(min(10, times - killed)):
            trial.pause(trial.span / 2)
            if driver.poll() is not None:
                break
            if victims is None:
                killed += kill_child(driver.pid, trial.random)
            else:
                place = trial.random.randrange(2)
                victims[place].kill()
                victims[place] = start_worker(trial, address)
                killed += 1
        while trial.judge(driver, {0: (), 1: LOST, 2: (NO_WORKER,)}):
            driver = trial.driver("local:2" if victims is None else address)
        close()
    trial.counts["kills"] += killed


NO_WORKER = r"attlas: the scheduler at tcp://\S+ has no worker after 60 seconds"


def kill_schedulers(trial: Trial, times: int) -> None:
    for _ in range(times):
        trial.new_store()
        address, scheduler = start_scheduler(trial)
        start_worker(trial, address)
        if trial.random.random() < 0.8:
            wait_for(address)
        start, driver = time.monotonic(), trial.driver(address)
        trial.pause(trial.span)
        finished = driver.poll() is not None
        scheduler.kill()
        if trial.judge(driver, {0: (), 1: NO_SCHEDULER, 2: NO_SCHEDULER}) == 0 and finished:
            trial.span = 1.1 * (time.monotonic() - start)
        trial.counts["kills"] += 1
    trial.judge(trial.driver("local"), {0: ()})


def start_scheduler(trial: Trial) -> tuple[str, "subprocess.Popen[str]"]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ("--host", "127.0.0.1", "--port", port, "--no-dashboard")
    return f"tcp://127.0.0.1:{port}", trial.start("-m", "distributed.cli.dask_scheduler", *words)


def start_worker(trial: Trial, address: str) -> "subprocess.Popen[str]":
    words = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--death-timeout", "30")
    return trial.start("-m", "distributed.cli.dask_worker", address, *words)


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
        words = ("kills", "sweeps", "lost cells", "other cells", "wrong messages")
        print(f"{kind}: {', '.join(f'{counts[word]} {word}' for word in words)}", flush=True)
        bad += sum(counts[word] for word in words[2:])
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
