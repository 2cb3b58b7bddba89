"""What a setting larger than a claim's own would take, said before work starts.

Counts up to those of the claim's two scales are known to fit. Where one is far larger, the cells
are measured with small counts first, then with larger ones, until a run takes half a second.
Seconds and memory go on as powers of the counts, and what does not fit is refused.
"""

import functools
import itertools
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from attlas.claims import Claim, Setting, Value
from attlas.errors import InputError, check_memory
from attlas.lab.measurement import measure_batch

LEAST_RATIO = 4
"""Counts beyond the claim's own by less than this are not looked at beforehand."""

SMALL_SECONDS = 0.5
"""Small runs grow until one takes so long."""

LONG_SECONDS = 30.0
"""What takes longer is said."""

UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))

MAX_SECONDS = 86_400 * 365.0
"""A batch that takes longer is refused: nothing of it is kept before its end."""

SEEN_BYTES, LARGE_BYTES = 2**25, 2**30
"""Memory that differs by less between two runs is taken to be the same; a small run that takes more
is the last."""


class Forecast(NamedTuple):
    """What a batch would take, by a run in which its large counts were as in `basis`."""

    seconds: float
    bytes: float
    basis: str


def check_fits(
    claim: Claim, batches: Sequence[Sequence[Setting]], seed: int, processes: int = 1
) -> str:
    """How long batches take on so many processes, in words; nothing if that is short or unknown.

    An `InputError` if one of them does not fit into memory or into a year.
    """
    largest = max(batches, key=lambda batch: excess(claim, batch[0]), default=None)
    if largest is None or excess(claim, largest[0]) < LEAST_RATIO:
        return ""
    own = _own_counts(claim)
    names = [name for name in own if max(_counts(largest[0][name])) > own[name]]
    found = extrapolate(claim, largest, seed, names)
    if found is None:
        return ""
    what = f"{claim.id} with {_describe(largest[0], names)}"
    by = f"by a run with {found.basis}"
    check_memory(what, processes * found.bytes, f", {by}")
    if found.seconds > MAX_SECONDS:
        raise InputError(f"{what} would take some {found.seconds / MAX_SECONDS:,.2g} years, {by}")
    total = found.seconds * math.ceil(len(batches) / processes)
    if total < LONG_SECONDS:
        return ""
    unit, size = next((unit, size) for unit, size in UNITS if total >= 2 * size)
    return f"some {total / size:,.0f} {unit}, {by}"


def excess(claim: Claim, setting: Setting) -> float:
    """By how much the counts of a setting are beyond the claim's own, as a product."""
    own = _own_counts(claim).items()
    return math.prod(max(1.0, max(_counts(setting[name])) / most) for name, most in own)


def extrapolate(
    claim: Claim, batch: Sequence[Setting], seed: int, names: Sequence[str]
) -> Forecast | None:
    """What a batch takes whose counts `names` are large; None if smaller ones are not allowed."""
    small = {name: max(_counts(claim.quick[name])) for name in names}
    whole = max(max(_counts(batch[0][name])) / small[name] for name in names)
    growth, before, power, heavier = 1.0, (0.0, 0.0, 0.0), 1.0, 0.0
    while True:
        share = math.log(growth) / math.log(whole)
        twin = [cell.at(**{n: _shrink(cell[n], small[n], share) for n in names}) for cell in batch]
        try:
            if claim.broken(twin):
                return None
            seconds, size = _small_run(claim, twin, seed)
        except Exception:  # noqa: BLE001 - the measurement itself will say what is wrong
            return None
        if before[0]:
            step = math.log(growth / before[0])
            power = min(4.0, max(0.0, math.log(seconds / before[1]) / step))
            grown = size - before[2] > SEEN_BYTES
            heavier = min(4.0, math.log(size / max(1.0, before[2])) / step) if grown else 0.0
        room = (SMALL_SECONDS / seconds) ** (1 / max(power, 1.0))
        enough = seconds > 20 * SMALL_SECONDS or size > LARGE_BYTES
        if growth == whole or enough or (before[0] and room < 2):
            rest = whole / growth
            seen = _describe(twin[0], names)
            return Forecast(seconds * rest**power, size * rest**heavier, seen)
        before = (growth, seconds, size)
        growth = min(whole, growth * min(8.0, max(2.0, room)))


def _small_run(claim: Claim, batch: Sequence[Setting], seed: int) -> tuple[float, float]:
    """Processor seconds of a run that compiles nothing, and the bytes by which this process
    grew."""
    with suppress(OSError):  # Linux forgets the peak; elsewhere it only rises
        Path("/proc/self/clear_refs").write_text("5")
    before = _peak_bytes()
    for _ in range(2):  # the first run compiles
        start = time.process_time()
        measure_batch(claim, list(batch), seed)
        seconds = time.process_time() - start
        if seconds > 20 * SMALL_SECONDS:
            break
    return max(1e-3, seconds), _peak_bytes() - before


def _peak_bytes() -> float:
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    if sys.platform == "win32":  # nothing is known there
        return 0.0
    import resource

    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@functools.cache
def _own_counts(claim: Claim) -> dict[str, int]:
    """The largest value of every count at the claim's two scales."""
    pairs = (
        (name, (*_counts(claim.quick[name]), *_counts(claim.paper[name]))) for name in claim.quick
    )
    return {name: max(values) for name, values in pairs if values and max(values) > 0}


def _counts(value: Value) -> tuple[int, ...]:
    """The whole numbers of a value, which may be a list."""
    if isinstance(value, tuple):
        return tuple(itertools.chain(*map(_counts, value)))
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else ()


def _shrink(value: Value, small: int, share: float) -> Value:
    """A count, or those of a list, beyond `small`: that much of the way up from it, in ratio."""
    if isinstance(value, tuple):
        return tuple(_shrink(item, small, share) for item in value)
    if not isinstance(value, int) or value <= small:
        return value
    return round(small ** (1 - share) * value**share)


def _describe(cell: Setting, names: Sequence[str]) -> str:
    return ", ".join(f"{name} = {cell[name]}" for name in names)
