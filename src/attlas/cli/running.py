"""Running claims: progress and notes meanwhile, interrupts, exit codes, figures."""

import contextlib
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attlas.cli.printing import stderr
from attlas.cli.progress import claims_progress

if TYPE_CHECKING:
    from attlas.claims import Claim
    from attlas.lab.runner import Result
    from attlas.lab.store import Store

EXIT_REFUTED, EXIT_UNDECIDED = 1, 3


def run_all(
    claims: "list[Claim]", store: "Store", quiet: bool, **options: Any
) -> "Generator[Result]":
    """Results in the order in which they are finished, with progress and notes on stderr."""
    from attlas.lab import runner

    printed = 0
    with interruptible() as check, claims_progress(len(claims), quiet) as (report, advance):

        def progress(claim: str, done: int, cells: int) -> None:
            check()
            report(claim, done, cells)

        results = runner.run_all(claims, store=store, progress=progress, **options)
        with contextlib.closing(results):
            for result in results:
                yield result
                advance()
                for note in store.notes[printed:]:
                    stderr().print(note, markup=False)
                printed = len(store.notes)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Remember Ctrl-C: raised inside one of JAX's callbacks it is swallowed, and the function that
    this yields raises it again."""
    pressed = False

    def press(*_: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def exit_code(results: "Sequence[Result]") -> int:
    words = {result.verdict.word for result in results}
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
