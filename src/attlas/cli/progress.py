"""What is under way, on stderr: a bar or a line that changes on a terminal, else some lines."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attlas.cli.printing import count_cells, format_duration, stderr

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from attlas.lab.sweeps import Tally

LOG_SECONDS = 10
"""Between two lines of a log."""


@contextlib.contextmanager
def stages(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that says what is under way: a line that changes on a terminal, a new line
    elsewhere, or nothing with `quiet`."""
    console = stderr()
    if console.is_terminal:
        with console.status("") as status:
            yield status.update
    else:
        yield lambda words: None if quiet else console.print(words)


@contextlib.contextmanager
def claims_progress(
    claims: int, quiet: bool
) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[], None]]]:
    """Functions to call with (claim, cells done, cells), and after each claim: they move a progress
    bar on a terminal, and do nothing elsewhere."""
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    with _open_bar(quiet, MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=claims)

        def report(claim: str, done: int, cells: int) -> None:
            bar.update(task, description=f"{claim}, cell {min(done + 1, cells)} of {cells}")

        yield report, lambda: bar.advance(task)


def _open_bar(quiet: bool, *columns: "ProgressColumn") -> "Progress":
    """A progress bar that is seen on a terminal, unless `quiet`."""
    from rich.progress import BarColumn, Progress, TextColumn

    console, words = stderr(), TextColumn("{task.description}")
    hidden = quiet or not console.is_terminal
    return Progress(words, BarColumn(), *columns, console=console, transient=True, disable=hidden)


@contextlib.contextmanager
def sweep_progress(quiet: bool) -> "Iterator[Callable[[Tally], None]]":
    """A function to call with the tally of a sweep: it moves a bar on a terminal, and prints a line
    every ten seconds elsewhere."""
    console = stderr()
    logs = not (quiet or console.is_terminal)
    last, workers_shown = time.monotonic(), False
    with _open_bar(quiet) as bar:
        task = bar.add_task("", total=None)

        def show(tally: "Tally") -> None:
            nonlocal last, workers_shown
            words, workers = _describe(tally), _describe_workers(tally)
            done = tally.cells - tally.left
            text = ", ".join([words, *workers])
            bar.update(task, total=tally.cells, completed=done, description=text)
            if logs and workers and not workers_shown:
                workers_shown = True
                console.print(*workers)
            if logs and time.monotonic() - last > LOG_SECONDS:
                last = time.monotonic()
                console.print(words)

        yield show


def _describe_workers(tally: "Tally") -> list[str]:
    """How many work, and where; nothing where only this process does."""
    if tally.where == "this process":
        return []
    return [f"{tally.processes} worker{'s' if tally.processes > 1 else ''} ({tally.where})"]


def _describe(tally: "Tally") -> str:
    """Cells done and failed, cells a second, and the time left."""
    done = tally.stored + tally.done
    words = [f"{done:,} of {count_cells(tally.cells - tally.outside)}"]
    if tally.failed:
        words.append(f"{tally.failed:,} failed")
    words.append(f"{tally.rate:.3g} a second")
    if tally.done and tally.left:
        words.append(f"{format_duration(tally.seconds_left)} left")
    return ", ".join(words)
