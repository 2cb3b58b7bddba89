"""Errors of the caller, said in one sentence, and the checks that raise them."""

import difflib
import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """Bad input: one sentence that names the thing, its value and what is allowed.

    The command line turns this, and only this, into exit code 2.

    >>> import attlas
    >>> attlas.run("single-location/zeta", scale="large")
    Traceback (most recent call last):
    attlas.errors.InputError: scale 'large': it must be quick or paper
    """


class WorkersLost(Exception):
    """All processes that were to compute, or their scheduler, are gone: `what` happened."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. What is finished is kept; the same command goes on.")


class SchedulerLost(WorkersLost):
    """The scheduler of a cluster is gone, or out of reach."""

    def __init__(self) -> None:
        super().__init__("The scheduler is gone")


def near(name: str, known: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """`" Did you mean x or y?"` for the known names closest to a misspelt one, else nothing.

    `shown` turns a name into what the sentence says.
    """
    matches = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(shown, matches))}?" if matches else ""


def whole(name: str, value: Any, least: int) -> int:
    """`value`, if it is a whole number and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{name} = {value!r}: it must be a whole number, at least {least}")
    return int(value)


def positive(name: str, value: Any) -> Any:
    """`value`, if it is a finite number above 0, or an array of such; tracers are not checked."""
    # Imported here, because `attlas --help` imports this module.
    import numpy as np
    from jax.core import Tracer

    if not isinstance(value, Tracer):
        try:
            numbers = np.atleast_1d(np.asarray(value, float))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} = {value!r}: it must be a positive number") from error
        wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
        if wrong.size:
            raise InputError(f"{name} = {wrong[0]:g}: it must be a positive number")
    return value


def check_memory(what: str, size: float, advice: str = "") -> None:
    """Bad input if `what` takes more bytes than are free; unknown on some systems."""
    free = available_memory()
    if size > free:
        raise InputError(
            f"{what} would take {size / 1e9:,.0f} GB of memory, and {free / 1e9:,.0f} GB are free"
            + advice
        )


def available_memory() -> float:
    """Bytes that are free for this process: of the machine and, in a container, of that."""
    free = math.inf
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024.0 * int(line.split()[1]) for line in lines if "MemAvailable" in line)
    with suppress(OSError, ValueError):  # there is no such file, or no limit in it
        group = Path("/sys/fs/cgroup")
        most = float((group / "memory.max").read_text())
        free = min(free, most - float((group / "memory.current").read_text()))
    if math.isinf(free) and hasattr(os, "sysconf"):
        free = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return free
