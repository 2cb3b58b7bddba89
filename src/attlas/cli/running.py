"""Running claims: progress and notes meanwhile, interrupts, exit codes, figures."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from attlas.cli.printing import stderr
from attlas.cli.progress import claims_progress

if TYPE_CHECKING:
    from attlas.claims import Claim
    from attlas.lab.runner import Result
    from attlas.lab.store import Store

EXIT_REFUTED, EXIT_UNDECIDED, EXIT_INTERRUPTED = 1, 3, 130

DEAF_SECONDS = 2.0
"""How long what is under way may go on after Ctrl-C."""


def run_all(
    claims: "list[Claim]", store: "Store", quiet: bool, **options: Any
) -> "Generator[Result]":
    """Results in the order in which they are finished, with progress and notes on stderr."""
    from attlas.lab import runner

    with (
        interruptible() as check,
        claims_progress(len(claims), quiet) as (report, advance),
        new_notes_printed(store.notes) as print_notes,
    ):

        def progress(claim: str, done: int, cells: int) -> None:
            check()
            report(claim, done, cells)

        results = runner.run_all(claims, store=store, progress=progress, **options)
        with contextlib.closing(results):
            for result in results:
                yield result
                advance()
                print_notes()


@contextlib.contextmanager
def new_notes_printed(notes: Sequence[str]) -> Iterator[Callable[[], None]]:
    """A function that prints the notes that have come since the last call; those of the end too."""
    printed = 0

    def print_notes() -> None:
        nonlocal printed
        for note in notes[printed:]:
            printed += 1
            stderr().print(note, markup=False)

    try:
        yield print_notes
    finally:
        print_notes()


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Remember Ctrl-C: raised inside one of JAX's callbacks it is swallowed, and the function that
    this yields raises it again.

    While XLA compiles Python does not hear of it, and a long measurement does not ask: a thread
    waits for this to be left, and then ends the process.
    """
    pressed, left = False, threading.Event()

    def press(*_: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    def watch() -> None:
        while signal.SIGINT in there.recv(1):
            if not left.wait(DEAF_SECONDS):
                end_interrupted()

    here, there = socket.socketpair()
    here.setblocking(False)
    before = signal.signal(signal.SIGINT, press)
    before_fd = signal.set_wakeup_fd(here.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield check
    finally:
        left.set()
        signal.set_wakeup_fd(before_fd)
        signal.signal(signal.SIGINT, before)
        here.close()


def end_interrupted() -> NoReturn:
    """End without clean-up: XLA's threads that still compile would crash an orderly exit."""
    cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    os.write(2, f"{cursor}attlas: Interrupted; finished batches are kept.\n".encode())
    os._exit(EXIT_INTERRUPTED)


def exit_code(verdicts: Iterable[str]) -> int:
    """From the words of verdicts."""
    words = set(verdicts)
    return EXIT_REFUTED if "refuted" in words else EXIT_UNDECIDED if "undecided" in words else 0


def save_figure(chart: Any, path: Path) -> None:
    """Write a chart in the format of the file's name, whole or not at all."""
    from attlas.lab.files import temporary_file

    formats: dict[str, dict[str, Any]] = {".html": {"inline": True}, ".png": {"ppi": 144}}
    with temporary_file(path.parent, path.suffix) as file:
        chart.save(str(file), **formats.get(path.suffix, {}))
        if path.suffix == ".svg":
            from attlas.atlas.drawings import widen_frame

            file.write_text(widen_frame(file.read_text(encoding="utf-8")), encoding="utf-8")
        file.chmod(0o644)
        file.replace(path)
    stderr().print(f"Figure: {path}")
