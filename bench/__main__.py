"""Run benchmarks, print one table of ratios, which describe and are never asserted, and keep it.

python -m bench                        # all of them
python -m bench '*descent*' risk       # those whose names match
python -m bench --list                 # their names

The atlas and the README show what is kept; rows that did not run stay as they were.
"""

import argparse
import datetime
import fnmatch
import json
import os
import platform
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from attlas.atlas.speed import SHIPPED, Measured, as_markdown, read_speed
from bench import (
    audit,
    capacity,
    descent,
    estimators,
    kernels,
    model,
    online,
    order_parameters,
    refute,
    sweeps,
)
from bench.timing import Row

BENCHMARKS = (
    descent.BENCHMARKS
    + online.BENCHMARKS
    + order_parameters.BENCHMARKS
    + capacity.BENCHMARKS
    + model.BENCHMARKS
    + kernels.BENCHMARKS
    + audit.BENCHMARKS
    + estimators.BENCHMARKS
    + sweeps.BENCHMARKS
    + refute.BENCHMARKS
)
README = Path(__file__).parent.parent / "README.md"
MARKS = ("<!-- speed: written by make bench -->\n", "\n<!-- end of speed -->")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.split("\n")[0])
    parser.add_argument("patterns", nargs="*", default=["*"], help="names, as in '*descent*'")
    parser.add_argument("--list", action="store_true", help="print the names, and end")
    options = parser.parse_args()
    named = {benchmark.__name__: benchmark for benchmark in BENCHMARKS}
    chosen = [n for n in named if any(fnmatch.fnmatch(n, p) for p in options.patterns)]
    if not chosen:
        parser.error(f"{' '.join(options.patterns)}: no benchmark has such a name; see --list")
    if options.list:
        print(*chosen, sep="\n")
        return
    progress = Console(stderr=True, highlight=False)
    rows: list[Row] = []
    for number, name in enumerate(chosen, 1):
        progress.print(f"{number} of {len(chosen)}: {name.replace('_', ' ')} ...", end=" ")
        begin = time.perf_counter()
        rows.append(named[name]())
        progress.print(f"{time.perf_counter() - begin:.0f} s")
        keep(name, rows[-1], list(named))
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table_of(rows))


def keep(name: str, row: Row, order: list[str]) -> None:
    """Put the row into the file that comes with the package, and its headlines into the README."""
    kept = {measured.name: measured for measured in read_speed()}
    kept[name] = Measured(
        name,
        row.what,
        float(f"{row.this:.3g}"),
        float(f"{row.against:.3g}"),
        row.cpu and float(f"{row.cpu:.3g}"),
        row.rounds,
        row.expected,
        datetime.date.today().isoformat(),
        f"{os.cpu_count()} cores, {_processor()}",
        round(os.getloadavg()[0], 1),
    )
    rows = [kept[name] for name in order if name in kept]
    text = json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)
    Path(str(SHIPPED)).write_text(text + "\n", encoding="utf-8")
    before, _, rest = README.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    README.write_text(before + MARKS[0] + as_markdown(rows) + MARKS[1] + after, encoding="utf-8")


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    except OSError:  # not Linux
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def table_of(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what")
    for heading in ("this (s)", "against (s)", "ratio", "of CPU", "rounds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("expected ratio")
    for row in rows:
        cpu = "" if row.cpu is None else _short(row.cpu)
        numbers = (f"{row.this:.3g}", f"{row.against:.3g}", _short(row.ratio), cpu, str(row.rounds))
        table.add_row(row.what, *numbers, row.expected)
    return table


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2f}"


if __name__ == "__main__":
    main()
