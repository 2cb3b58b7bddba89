"""Progress of calls that take long: a line on the error stream, where somebody looks.

`watched` stands around what a loop runs over and `told` around what was found, and they change
nothing of it: digests of code (`attlas.claims.digest`) leave them out.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which a call counts as long, and speaks if it is not over within as many more."""

EVERY = 0.5
"""Seconds between two updates of the line."""


def spoken(seconds: float) -> str:
    """A duration in words: "8 s", "3 min", "2 h"."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


def watching() -> bool:
    """Whether progress would be seen: the error stream is a terminal, or this is a notebook.

    ATTLAS_PROGRESS=0 says no, and 1 yes.
    """
    wish = os.environ.get("ATTLAS_PROGRESS", "")
    if wish in ("0", "1"):
        return wish == "1"
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"


class Line:
    """A line that says what is done of `total`, once a call has proved long.

    The first time it says how long all of it will take, by the rounds that are done; the first of
    them, which compiles, counts only while there is no other.
    """

    def __init__(self, words: str, total: float, clock: Callable[[], float] = time.monotonic):
        self.words, self.total, self.clock = words, total, clock
        self.began = self.said = clock()
        self.first: tuple[float, float] | None = None
        self.shown = 0

    def at(self, done: float, total: float | None = None) -> None:
        """Say that so much of `total`, which may have changed, is done, unless it was said a moment
        ago."""
        now, self.total = self.clock(), self.total if total is None else total
        if done > 0 and self.first is None:
            self.first = now, done
        early = now - self.began < PATIENCE or (self.shown and now - self.said < EVERY)
        if self.first is None or early or not 0 < done < self.total:
            return
        since, before = self.first if done > self.first[1] else (self.began, 0.0)
        left = (now - since) / (done - before) * (self.total - done)
        if self.shown or (left > PATIENCE and watching()):
            self.said = now
            self._write(
                f"{self.words}: {done:g} of {self.total:g}, about {spoken(left)} to go of "
                f"{spoken(now - self.began + left)}"
            )

    def end(self) -> None:
        """Wipe the line."""
        if self.shown:
            self._write("")
            sys.stderr.write("\r")

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self.shown))
        sys.stderr.flush()
        self.shown = len(text)


_OPEN: list[Line] = []
"""Lines that are open: only the outermost is shown, one inside it would write over it."""


@contextmanager
def line_of(words: str, total: float = 0.0) -> Iterator[Callable[..., None]]:
    """A function to call with what is done, and with the total if it changes: it moves a `Line`.

    Arguments:
        words: what is counted, as in "cells".
    """
    line, outer = Line(words, total), not _OPEN
    _OPEN.append(line)
    try:
        yield line.at if outer else lambda *done: None
    finally:
        _OPEN.remove(line)
        line.end()


def silent() -> AbstractContextManager[Any]:
    """Within it nothing speaks: somebody else does."""
    return line_of("")


def watched(items: Iterable[T], words: str, total: int | None = None) -> Iterator[T]:
    """What `items` yields, with a line of progress where it takes long and somebody looks.

    Arguments:
        words: what an item is, as in "blocks of trials".
        total: how many items there are, where they have no length.
    """
    count = len(items) if isinstance(items, Sized) else total or 0
    with line_of(words, count) as at:
        for number, item in enumerate(items):
            at(number)
            yield item


_ALOUD: list[str] = []
"""Who is listened to: names of estimators that were asked to be verbose, the innermost last."""


@contextmanager
def aloud(name: str, wanted: bool | int = True) -> Iterator[None]:
    """Within it `told` prints its sentences after `[name]`, if that is `wanted`."""
    if not wanted:
        yield
        return
    _ALOUD.append(name)
    try:
        yield
    finally:
        _ALOUD.pop()


def told(value: T, words: Callable[..., str], *about: Any) -> T:
    """`value`; within `aloud`, `words(value, *about)` is printed."""
    if _ALOUD:
        print(f"[{_ALOUD[-1]}] {words(value, *about)}")
    return value
