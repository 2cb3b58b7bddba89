"""What is under way, on stderr: a bar or a line that changes on a terminal, else some lines."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from attlas.cli.printing import count_cells, format_duration, stderr

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from attlas.lab.refute import Search
    from attlas.lab.sweeps import Tally

LOG_SECONDS = 4.5
"""Between two lines of a log: a reader never waits for more than five seconds."""


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
    bar on a terminal, and change what a log says elsewhere."""
    from rich.progress import MofNCompleteColumn

    with _open_bar(quiet, MofNCompleteColumn()) as bar, _log(quiet) as log:
        task = bar.add_task("", total=claims)

        def report(claim: str, done: int, cells: int) -> None:
            words = f"{claim}, cell {min(done + 1, cells)} of {cells}"
            log(words)
            bar.update(task, description=words)

        yield report, lambda: bar.advance(task)


def _open_bar(quiet: bool, *columns: "ProgressColumn") -> "Progress":
    """A progress bar with a clock that is seen on a terminal, unless `quiet`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console, words = stderr(), TextColumn("{task.description}", markup=False)
    hidden = quiet or not console.is_terminal
    shown = (words, BarColumn(), *columns, TimeElapsedColumn())
    return Progress(*shown, console=console, transient=True, disable=hidden)


@contextlib.contextmanager
def _log(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function to call with what is under way. Where there is no terminal it is printed every
    `LOG_SECONDS`, with the time since the start, unless `quiet`."""
    console, start, words = stderr(), time.monotonic(), "Starting"
    ended = threading.Event()

    def say(new: str) -> None:
        nonlocal words
        words = new

    def repeat() -> None:
        while not ended.wait(LOG_SECONDS):
            since = format_duration(time.monotonic() - start)
            console.print(f"{words}, after {since}", markup=False)

    thread = threading.Thread(target=repeat, daemon=True)
    if not (quiet or console.is_terminal):
        thread.start()
    try:
        yield say
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


@contextlib.contextmanager
def sweep_progress(
    quiet: bool,
) -> "Iterator[tuple[Callable[[str], None], Callable[[Tally], None]]]":
    """Functions to call with what is under way, and with the tally of a sweep: they change a bar on
    a terminal, and what a log says elsewhere."""
    console = stderr()
    workers_shown = quiet or console.is_terminal
    with _open_bar(quiet) as bar, _log(quiet) as log:
        task = bar.add_task("", total=None)

        def say(words: str, **done: Any) -> None:
            log(words)
            bar.update(task, description=words, **done)

        def show(tally: "Tally") -> None:
            nonlocal workers_shown
            workers = _describe_workers(tally)
            words = ", ".join([_describe(tally), *workers])
            say(words, total=tally.cells, completed=tally.cells - tally.left)
            if workers and not workers_shown:
                workers_shown = True
                console.print(*workers)

        yield say, show


@contextlib.contextmanager
def search_progress(quiet: bool) -> "Iterator[Callable[[Search], None]]":
    """A function to call with a search for a violation: how much it has looked at, and how near it
    came."""
    with _open_bar(quiet) as bar, _log(quiet) as log:
        task = bar.add_task("", total=None)

        def show(search: "Search") -> None:
            words = f"{search.settings:,} settings"
            if search.nearest:
                words += f", nearness {search.nearest.nearness:.2g} of 1"
            log(words)
            bar.update(task, description=words)

        yield show


@contextlib.contextmanager
def share_progress(quiet: bool) -> Iterator[Callable[[float], None]]:
    """A function to call with the share of a box that is proved."""
    with _open_bar(quiet) as bar, _log(quiet) as log:
        task = bar.add_task("proving", total=1.0)

        def show(share: float) -> None:
            log(f"{share:.0%} of the box is proved")
            bar.update(task, completed=share)

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
