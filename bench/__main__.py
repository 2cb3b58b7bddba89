"""Run benchmarks and print one table of ratios, which describe and are never asserted.

python -m bench                        # all of them
python -m bench '*descent*' risk       # those whose names match
python -m bench --list                 # their names
"""

import argparse
import fnmatch
import sys

from rich.console import Console
from rich.table import Table

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
    rows = []
    for number, name in enumerate(chosen, 1):
        progress.print(f"{number} of {len(chosen)}: {name.replace('_', ' ')} ...")
        rows.append(named[name]())
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table_of(rows))


def table_of(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what")
    for heading in ("this (s)", "against (s)", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("expected ratio")
    for row in rows:
        ratio = f"{row.ratio:,.0f}" if row.ratio >= 100 else f"{row.ratio:.2f}"
        table.add_row(row.what, f"{row.this:.3g}", f"{row.against:.3g}", ratio, row.expected)
    return table


if __name__ == "__main__":
    main()
