"""The verb `refute`: a search for settings at which a claim fails."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from attlas.cli import options
from attlas.cli.printing import STYLES, print_json, stdout
from attlas.cli.progress import search_progress
from attlas.cli.running import EXIT_REFUTED, interruptible, new_notes_printed, save_figure
from attlas.errors import InputError

if TYPE_CHECKING:
    from attlas.lab.domain import Domain
    from attlas.lab.refute import Search, Violation


@click.command("refute")
@click.argument("claim")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="How long to search. What was found is confirmed and made simpler after.",
)
@click.option(
    "--over",
    multiple=True,
    metavar="NAME=LOW:HIGH",
    help="Search this parameter, between these ends, or among words as in kind=a,b; without it all"
    " that the statement speaks of, around the claim's own values.",
)
@click.option(
    "--beyond",
    is_flag=True,
    help="Map the domain of validity over two parameters, outside the hypotheses too; it ends when"
    " it is done.",
)
@click.option(
    "--figure",
    type=options.FILE,
    help=f"Draw the domain to a file: {', '.join(options.FIGURE_FORMATS)}.",
)
@options.seed_option
@click.option(
    "--on",
    default="local",
    show_default=True,
    metavar="WHERE",
    help="Where cells are measured: local, local:N (processes), tcp://HOST:PORT or slurm.",
)
@options.claims_option
@options.store_option
@options.json_option
def refute_claim(
    claim: str,
    minutes: float,
    over: Sequence[str],
    beyond: bool,
    figure: str | None,
    seed: int,
    on: str,
    files: Sequence[str],
    store: str | None,
    as_json: bool,
) -> None:
    """Search the settings of which CLAIM speaks for one at which it fails.

    A violation is confirmed on fresh seeds with four times the budget, then made simpler: fewer
    changed parameters, round numbers. Cells are kept, and the same command goes on where it
    stopped. Exit code: 0 nothing was found, 1 a violation was, 2 bad input, 130 interrupted.
    """
    from attlas.lab import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before JAX starts
    from attlas.lab.grids import parse_grid
    from attlas.lab.refute import Search, find_violation
    from attlas.lab.runner import find_one

    drawing = options.check_writable("figure", figure, options.FIGURE_FORMATS)
    if drawing and not beyond:
        raise InputError("--figure needs --beyond: it draws the domain of validity")
    options.load_files(files)
    found = find_one(claim)
    opened = options.open_store(store)
    with (
        interruptible() as check,
        search_progress(as_json) as report,
        new_notes_printed(opened.notes) as print_notes,
    ):

        def progress(search: Search) -> None:
            check()
            print_notes()
            report(search)

        common: dict[str, Any] = {"seed": seed, "store": opened, "on": on, "progress": progress}
        ranges = parse_grid(over)
        if beyond:
            from attlas.lab.domain import map_domain

            domain = map_domain(found, ranges, **common)
        else:
            search = find_violation(found, minutes=minutes, over=ranges, **common)
    if beyond:
        print_domain(domain, as_json)
        if drawing:
            save_figure(domain.figure(), drawing)
        return
    if as_json:
        print_json(search.to_dict())
    else:
        print_search(search, files)
    sys.exit(EXIT_REFUTED if search.violation else 0)


def print_domain(domain: "Domain", as_json: bool) -> None:
    """How many points have each verdict, and between which values the boundary lies."""
    if as_json:
        print_json({"claim": domain.claim.id, **domain.to_dict()})
        return
    console, indent = stdout(), 11 * " "
    counts = ", ".join(f"{n} {word}" for word, n in domain.counts().items() if n)
    console.print(f"[bold]{domain.claim.id}[/] over {' and '.join(domain.axes)}: {counts}.")
    for edge in domain.edges.itertuples():
        other = domain.axes[1] if edge.axis == domain.axes[0] else domain.axes[0]
        between = f"between {edge.low:.6g} and {edge.high:.6g}"
        console.print(f"{indent}{edge.axis}, at {other} = {edge.at:.6g}: {between}", markup=False)


def print_search(search: "Search", files: Sequence[str] = ()) -> None:
    """What a search found, or how near it came."""
    from rich.markup import escape

    from attlas.lab.regions import values_said

    console, indent = stdout(), 11 * " "
    claim, violation = search.region.claim, search.violation
    looked = (
        f"{search.settings:,} settings, {search.cells:,} cells, {search.seconds:.0f} s, seed"
        f" {search.seed}"
    )
    if violation:
        _print_violation(violation, claim.id, looked, files)
    else:
        console.print(f"[{STYLES['confirmed']}]not refuted[/] [bold]{claim.id}[/]  ({looked})")
        if search.nearest:
            at = values_said(search.region.values(search.nearest.setting))
            near = f"{search.nearest.nearness:.3g}, where 1 is the threshold"
            console.print(f"{indent}Nearest: {near}, at {escape(at)}.")
            if search.nearest.verdict:
                console.print(f"{indent}{escape(search.nearest.verdict.reason)}")
        if search.refuted_at_first:
            count = f"{search.refuted_at_first:,} refuted at first sight"
            console.print(f"{indent}{count}, and not on a fresh seed with four times the budget.")
    console.print(f"{indent}Searched: {escape('; '.join(map(str, search.region.ranges)))}.")
    if search.too_large:
        count = f"{search.too_large:,} setting{'s' if search.too_large > 1 else ''}"
        console.print(f"{indent}{count} would have taken too long; --over, or more minutes, look.")
    if search.failed:
        point, reason = next(iter(search.failed.items()))
        settings = "setting" if len(search.failed) == 1 else "settings"
        count = f"{len(search.failed):,} {settings} could not be measured"
        why = " ".join(reason.split()).removesuffix(".")
        console.print(f"{indent}{count}, as {escape(point)}: {escape(why)}.")


def _print_violation(violation: "Violation", id: str, looked: str, files: Sequence[str]) -> None:
    from rich.markup import escape

    from attlas.lab.refute import command
    from attlas.lab.regions import values_said

    console, indent, last = stdout(), 11 * " ", violation.last
    assert last.verdict is not None
    console.print(f"[{STYLES['refuted']}]refuted[/]    [bold]{id}[/]  ({looked})")
    where = values_said(violation.changed) or "the claim's own setting"
    console.print(f"{indent}at {escape(where)}: {escape(last.verdict.reason)}")
    console.print(f"{indent}Again: {escape(command(id, violation, files))}")
