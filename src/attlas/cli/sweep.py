"""The verb `sweep`: a claim over a grid of settings."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from attlas.cli import options
from attlas.cli.printing import count_cells, print_estimate, print_sweep, stderr
from attlas.cli.progress import sweep_progress
from attlas.cli.running import interruptible, new_notes_printed, save_figure
from attlas.errors import InputError, WorkersLost

EXIT_INCOMPLETE = 1


@click.command("sweep")
@click.argument("claim")
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values of a parameter: 1,2,4 or 0.05:1:20log, 0:1:11, 10:20. Several grids make a"
    " product.",
)
@click.option("--seeds", default="0", show_default=True, metavar="SEEDS", help="As 0:100 or 3,5,8.")
@options.scale_option
@options.set_option
@click.option(
    "--on",
    default="local",
    show_default=True,
    metavar="WHERE",
    help="local (this process), local:N (processes), tcp://HOST:PORT (a Dask scheduler), slurm or"
    " slurm:N (jobs).",
)
@click.option("--out", type=options.FILE, help="Gather everything into one netCDF file (.nc).")
@click.option(
    "--figure",
    type=options.FILE,
    help=f"A phase diagram or lines ({', '.join(options.FIGURE_FORMATS)}), or a table (.csv, .md).",
)
@click.option(
    "--show",
    "variable",
    help="The variable that is drawn.  [default: arrived, measured, or the first]",
)
@click.option("--at", multiple=True, metavar="NAME=VALUE", help="Draw one value of an axis.")
@click.option(
    "--kind", type=click.Choice(["phase", "lines"]), help="How it is drawn.  [default: by the axes]"
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say how many cells there are, how many are stored and how long the rest would take.",
)
@click.option("--beyond", is_flag=True, help="Also run cells outside the claim's hypotheses.")
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="How often a cell that failed is tried again.",
)
@options.claims_option
@options.store_option
@options.fresh_option
@options.json_option
def sweep_claim(
    claim: str,
    grid: Sequence[str],
    seeds: str,
    scale: str,
    settings: Sequence[str],
    on: str,
    out: str | None,
    figure: str | None,
    variable: str | None,
    at: Sequence[str],
    kind: str | None,
    dry_run: bool,
    files: Sequence[str],
    store: str | None,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Measure CLAIM at every point of a grid of settings, here or on a cluster; stop and go on at
    any time.

    In place of a claim there may be a function that simulates, as FILE.py:FUNCTION. Exit code: 0
    all cells are done or outside the hypotheses, 1 a cell failed or is missing, 2 bad input, 130
    interrupted. Finished cells are kept, and the same command goes on where it stopped.
    """
    from attlas.lab import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before JAX starts
    from attlas.lab import cluster, sweeps
    from attlas.lab.grids import parse_grid

    where = cluster.parse_where(on)
    result = options.check_writable("out", out, (".nc",))
    drawing = options.check_writable("figure", figure, (*options.FIGURE_FORMATS, ".csv", ".md"))
    chosen = parse_grid(at)
    for option, given in (("--show", variable), ("--at", at), ("--kind", kind)):
        if given and not drawing:
            raise InputError(f"{option} needs --figure: it says what is drawn")
    options.load_files(files)
    opened = options.open_store(store)
    with (
        interruptible() as check,
        sweep_progress(as_json) as (say, report),
        new_notes_printed(opened.notes) as print_notes,
    ):
        say("Planning the grid")
        cells = sweeps.plan_grid(claim, grid, seeds, scale, settings)
        say(f"Looking for {count_cells(len(cells))} in the store")
        plan = sweeps.Sweep(cells, opened, **run_options)
        if drawing:
            from attlas.lab.diagrams import check_drawing

            check_drawing(plan.grid, drawing, kind, chosen)
        for note in plan.notes:
            stderr().print(note, markup=False)
        if dry_run:
            print_estimate(plan, where.number, as_json)
            return
        if where.kind != "local" and plan.tally.left and not as_json:
            stderr().print(f"Waiting for workers ({on}).")

        def progress(tally: sweeps.Tally) -> None:
            check()
            print_notes()
            report(tally)

        try:
            gathered = sweeps.complete_sweep(plan, on, progress)
        except WorkersLost as lost:
            stderr().print(str(lost))
            gathered = plan.gathered()
        if result:
            say(f"Writing {result}")
            sweeps.write_gathered(gathered, result)
    print_sweep(plan, result, as_json)
    incomplete = plan.tally.failed or plan.tally.left
    if drawing:
        try:
            _draw(gathered, drawing, kind, variable, chosen)
        except InputError as error:
            if not incomplete:
                raise
            stderr().print(f"No figure: {error}.")
    sys.exit(EXIT_INCOMPLETE if incomplete else 0)


def _draw(
    gathered: Any, path: Path, kind: str | None, variable: str | None, at: dict[str, str]
) -> None:
    from attlas.lab.diagrams import TABLE_SUFFIXES, diagram, summary, write_table

    if path.suffix in TABLE_SUFFIXES:
        write_table(summary(gathered, variable, at), path)
        stderr().print(f"Table: {path}")
    else:
        save_figure(diagram(gathered, kind, variable, at), path)
