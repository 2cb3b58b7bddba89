"""Measure at the paper's scale what the package does not hold yet, or what other code has measured.

Each claim is written when it is done: an interruption loses the claims under way, of which the
store keeps the finished batches.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attlas.lab import compile_quickly

if TYPE_CHECKING:
    from attlas.claims import Claim


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--store", type=click.Path(file_okay=False), help="Folder of stored evidence.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files go. [default: the package]",
)
def evidence(patterns: Sequence[str], seed: int, store: str | None, folder: Path | None) -> None:
    """Ship the evidence of the claims that match PATTERN (all of them, if there is none)."""
    compile_quickly()  # before JAX is imported, and not in the processes that import this file

    from attlas.claims import select
    from attlas.errors import InputError
    from attlas.lab.measurement import keep_compiled
    from attlas.lab.runner import run_all
    from attlas.lab.shipped import FOLDER, ship
    from attlas.lab.store import Store

    folder = folder or FOLDER
    try:
        claims, opened = select(patterns), Store(store)
        keep_compiled(opened)
        if not patterns:
            _remove_strangers(claims, folder)
        missing = [claim for claim in claims if _is_missing(claim, folder)]
        click.echo(f"{len(claims) - len(missing)} of {len(claims)} are there and current.")
        written = size = 0
        results = run_all(missing, scale="paper", seed=seed, store=opened, min_for_processes=2)
        for done, result in enumerate(results, 1):
            told = f"{done} of {len(missing)}: {result.claim.id} {result.verdict.word}"
            if result.evidence:
                path = ship(result, folder)
                written, size = written + 1, size + path.stat().st_size
                told += f", {result.spent:.1f} s, {path.stat().st_size / 1e3:.0f} kB"
            click.echo(f"{told}. {result.verdict.reason}")
    except InputError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{written} written, {size / 1e3:.0f} kB.")


def _is_missing(claim: "Claim", folder: Path) -> bool:
    """Whether no file, or none that is sound and current, is there; says why."""
    from attlas.lab.shipped import read_shipped

    notes: list[str] = []
    found = read_shipped(claim, notes, folder)
    for note in notes:
        click.echo(note)
    if found is not None and found.stale:
        click.echo(f"{claim.id} was measured by other code.")
    return found is None or found.stale


def _remove_strangers(claims: "Sequence[Claim]", folder: Path) -> None:
    """Remove evidence of claims that are no more."""
    from attlas.lab.shipped import shipped_path

    known = {shipped_path(claim, folder) for claim in claims}
    for path in sorted(set(folder.glob("*/*.nc")) - known):
        path.unlink()
        click.echo(f"{path.parent.name}/{path.stem} is no claim any more: removed.")


if __name__ == "__main__":
    sys.exit(evidence())
