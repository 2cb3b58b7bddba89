"""A search of every claim for a setting at which it fails; what was found comes with the package.

What is measured stays in a store, and what was found of a claim is written when its search ends: an
interrupted call goes on where it stopped.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from attlas.lab import compile_quickly


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--minutes",
    type=float,
    default=1.0,
    show_default=True,
    help="Of processor time, for each claim.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=5_000_000, show_default=True)
@click.option("--again", is_flag=True, help="Also claims of which the file has a current search.")
@click.option(
    "--store",
    type=click.Path(file_okay=False),
    default="build/refute",
    show_default=True,
    help="Folder of stored evidence.",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the summary goes. [default: the package]",
)
def refute(
    patterns: Sequence[str], minutes: float, seed: int, again: bool, store: str, file: Path | None
) -> None:
    """Search the claims that match PATTERN (all of them, if there is none), those of which a cell
    is measured most quickly first.

    Exit code: 0 if nothing was refuted, 1 if something was, 2 for bad input.
    """
    compile_quickly()  # before JAX is imported

    from attlas.claims import select
    from attlas.errors import InputError
    from attlas.lab.measurement import keep_compiled
    from attlas.lab.refute import FILE, Search, find_violation, read_summary, summary, write_summary
    from attlas.lab.store import Store

    path = file or FILE
    try:
        claims, opened = select(patterns), Store(store)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    keep_compiled(opened)
    order = ("identity", "two routes", "simulation", "training", "real")
    claims.sort(key=lambda claim: (order.index(claim.kind), claim.id))
    for claim in claims:
        known = read_summary([claim], path).get(claim.id)
        if known and not known.stale and known.seconds >= 60 * minutes and not again:
            continue
        start = time.monotonic()
        found: Search | InputError
        try:
            found = find_violation(
                claim, minutes=minutes, seed=seed, store=opened, clock=time.process_time
            )
        except InputError as error:
            found = error
        entry = summary(claim, found)
        write_summary({claim.id: entry}, path)
        click.echo(
            f"{claim.id}: {entry['word']}, {entry['settings']:,} settings,"
            f" {time.monotonic() - start:.0f} s, nearest {entry['nearness']} at {entry['at']}."
            f" {entry['reason']}"
        )
    words = Counter(entry.word for entry in read_summary(claims, path).values())
    click.echo(", ".join(f"{count} {word}" for word, count in words.most_common()))
    sys.exit(int(bool(words["refuted"])))


if __name__ == "__main__":
    refute()
