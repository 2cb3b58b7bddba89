"""Every claim at quick scale on seeds that no test uses: how often each verdict falls.

A claim that is confirmed on the seed it was written with may have been lucky. What is measured
stays in a store: an interrupted soak goes on where it stopped, and after a change of a rule or a
control everything is judged again without being measured.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attlas.lab import compile_quickly

if TYPE_CHECKING:
    from attlas.claims import Claim
    from attlas.lab.soak import Soaked

FIRST, SEEDS = 3_000_000, 40


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=SEEDS, show_default=True)
@click.option("--first", type=click.IntRange(0, 2**31 - 10_001), default=FIRST, show_default=True)
@click.option(
    "--store",
    type=click.Path(file_okay=False),
    default="build/soak",
    show_default=True,
    help="Folder of stored evidence.",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the counts go. [default: the package]",
)
def soak(patterns: Sequence[str], seeds: int, first: int, store: str, file: Path | None) -> None:
    """Run the claims that match PATTERN (all of them, if there is none) on many seeds.

    Exit code: 0 if nothing was refuted or undecided, 1 if something was, 2 for bad input.
    """
    compile_quickly()  # before JAX is imported, and not in the processes that import this file

    from attlas.claims import select
    from attlas.errors import InputError
    from attlas.lab.measurement import keep_compiled
    from attlas.lab.soak import FILE, Soaked, run_seeds, soak_digest, write_soak
    from attlas.lab.store import Store

    try:
        claims, opened = select(patterns), Store(store)
        keep_compiled(opened)
        found = {claim: Soaked(soak_digest(claim)) for claim in claims}
        for done, result in enumerate(run_seeds(claims, range(first, first + seeds), opened), 1):
            found[result.claim].add(result)
            if result.verdict.word != "confirmed" or done % 100 == 0:
                where = f"{done} of {len(claims) * seeds}: {result.claim.id}, seed {result.seed}"
                click.echo(f"{where}, {result.verdict.word}", err=True)
        write_soak(found.items(), file or FILE)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    click.echo("\n".join(table_lines(found)))
    words = total(soaked.verdicts for soaked in found.values())
    sys.exit(int(bool(words["refuted"] or words["undecided"])))


def table_lines(found: "dict[Claim, Soaked]") -> list[str]:
    """A line a claim, and the sum of all."""
    lines = [
        f"{claim.id}: {shares(counts.verdicts)}; control {shares(counts.controls)};"
        f" refuted at first sight {counts.repeated}"
        for claim, counts in found.items()
    ]
    all_of_them = found.values()
    words = shares(total(soaked.verdicts for soaked in all_of_them))
    controls = shares(total(soaked.controls for soaked in all_of_them))
    return [*lines, f"all: {words}; controls {controls}"]


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counts, Counter())


def shares(words: Counter[str]) -> str:
    """How often each word fell: "confirmed 39 of 40, undecided 1 of 40"."""
    return ", ".join(f"{word} {n} of {words.total()}" for word, n in words.most_common())


if __name__ == "__main__":
    soak()
