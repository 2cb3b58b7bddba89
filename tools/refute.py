"""A search of every claim for a setting at which it fails; what was found comes with the package.

What is measured stays in a store, and what was found of a claim is written when its search ends: an
interrupted call goes on where it stopped. Each claim has a process of its own, and this one alone
writes the file.
"""

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from attlas.lab import compile_quickly


def search(id: str, minutes: float, seed: int, store: str) -> tuple[str, float, dict[str, Any]]:
    """The search of one claim: its id, the seconds that passed, and what is kept of it."""
    compile_quickly()  # before JAX is imported

    from attlas.claims import select
    from attlas.errors import InputError
    from attlas.lab.measurement import keep_compiled
    from attlas.lab.refute import Search, find_violation
    from attlas.lab.searched import summary
    from attlas.lab.store import Store

    opened, start = Store(store), time.monotonic()
    keep_compiled(opened)
    (claim,) = select([id])
    found: Search | InputError
    try:
        found = find_violation(
            claim, minutes=minutes, seed=seed, store=opened, clock=time.process_time
        )
    except InputError as error:
        found = error
    return id, time.monotonic() - start, summary(claim, found)


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
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
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
    patterns: Sequence[str],
    minutes: float,
    seed: int,
    again: bool,
    jobs: int,
    store: str,
    file: Path | None,
) -> None:
    """Search the claims that match PATTERN (all of them, if there is none), those of which a cell
    is measured most quickly first.

    Exit code: 0 if nothing was refuted, 1 if something was, 2 for bad input.
    """
    compile_quickly()  # before JAX is imported

    from attlas.claims import Claim, select
    from attlas.errors import InputError
    from attlas.lab.searched import FILE, read_summary, write_summary
    from attlas.lab.store import Store

    path = file or FILE
    try:
        claims = select(patterns)
        Store(store)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    order = ("identity", "two routes", "simulation", "training", "real")
    claims.sort(key=lambda claim: (order.index(claim.kind), claim.id))
    known = read_summary(claims, path)

    def has_current(claim: Claim) -> bool:
        found = known.get(claim.id)
        return found is not None and not found.stale and found.seconds >= 60 * minutes

    # Those of which a current search is there, in another box than the default one, come last.
    claims.sort(key=has_current)
    searched = {c.id for c in claims if has_current(c) and known[c.id].covers(c)}
    wanted = [claim.id for claim in claims if again or claim.id not in searched]
    # A fresh process for each claim: the memory of compiled programs goes with it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        for done in as_completed(pool.submit(search, id, minutes, seed, store) for id in wanted):
            id, seconds, entry = done.result()
            write_summary({id: entry}, path)
            click.echo(
                f"{id}: {entry['word']}, {entry['settings']:,} settings,"
                f" {entry['seconds']:.0f} s of processor time in {seconds:.0f} s, nearest"
                f" {entry['nearness']} at {entry['at']}. {entry['reason']}"
            )
    words = Counter(entry.word for entry in read_summary(claims, path).values())
    click.echo(", ".join(f"{count} {word}" for word, count in words.most_common()))
    sys.exit(int(bool(words["refuted"])))


if __name__ == "__main__":
    refute()
