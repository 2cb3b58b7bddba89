"""Every claim at quick scale on seeds that no test uses: how often each verdict falls, and how near
the statistic came.

A claim that is confirmed on the seed it was written with may have been lucky; one confirmed on all
of these hardly was.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click
import jax
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from rich.console import Console
from rich.table import Table

import attlas
from attlas.claims import select
from attlas.lab.store import Store

FIRST = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """What one seed gave; `repeated` if the claim was refuted at first sight."""

    verdict: str
    control: str
    repeated: bool
    statistic: float
    threshold: float


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--seeds", type=click.IntRange(1), default=20, show_default=True, help="How many seeds."
)
@click.option(
    "--first",
    type=click.IntRange(0, 2**31 - 1),
    default=FIRST,
    show_default=True,
    help="The first of them.",
)
def soak(patterns: Sequence[str], seeds: int, first: int) -> None:
    """Run the claims that match PATTERN (all of them, if there is none) on many seeds.

    Exit code: 0 if nothing was refuted or undecided, 1 if something was, 2 for bad input.
    """
    progress = Console(stderr=True, highlight=False)
    outcomes: dict[str, list[Outcome]] = {}
    try:
        claims = select(patterns)
        with temporary_store() as store:
            for number, claim in enumerate(claims, 1):
                progress.print(f"{number} of {len(claims)}: {claim.id} ...")
                outcomes[claim.id] = [
                    outcome(claim.id, seed, store) for seed in range(first, first + seeds)
                ]
    except attlas.InputError as error:
        raise click.UsageError(str(error)) from error
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table_of(outcomes))
    sys.exit(
        int(
            any(o.verdict in ("refuted", "undecided") for found in outcomes.values() for o in found)
        )
    )


@contextmanager
def temporary_store() -> Iterator[Store]:
    """A store that is deleted at the end, with JAX's compiled programs kept in it as long as it
    lives."""
    with tempfile.TemporaryDirectory(prefix="attlas-soak-") as folder:
        settings = {
            "jax_compilation_cache_dir": f"{folder}/compiled",
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }
        before = {name: getattr(jax.config, name) for name in settings}
        try:
            _configure(settings)
            yield Store(f"{folder}/store")
        finally:
            _configure(before)


def _configure(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()  # JAX looks at its cache's folder once, at the first program it compiles


def outcome(claim: str, seed: int, store: Store) -> Outcome:
    result = attlas.run(claim, seed=seed, store=store)
    verdict, control = result.verdict, result.control
    return Outcome(
        verdict.word,
        control.word if control else "none",
        result.first is not None,
        verdict.statistic,
        verdict.threshold,
    )


def table_of(outcomes: dict[str, list[Outcome]]) -> Table:
    table = Table("claim", "verdict", "control", box=None, pad_edge=False, header_style="bold")
    table.add_column("refuted at first sight", justify="right")
    table.add_column("statistic", no_wrap=True)
    table.add_column("held against", no_wrap=True)
    for claim, found in outcomes.items():
        table.add_row(
            claim,
            *tally(found),
            span([o.statistic for o in found]),
            span([o.threshold for o in found]),
        )
    everything = [o for found in outcomes.values() for o in found]
    table.add_section()
    table.add_row(f"total: {len(everything)} runs", *tally(everything), style="bold")
    return table


def tally(outcomes: Sequence[Outcome]) -> tuple[str, str, str]:
    """Shares of the verdicts, shares of the verdicts on the control, and how many were refuted at
    first sight."""
    return (
        shares([o.verdict for o in outcomes]),
        shares([o.control for o in outcomes]),
        f"{sum(o.repeated for o in outcomes)} of {len(outcomes)}",
    )


def shares(words: Sequence[str]) -> str:
    return ", ".join(
        f"{word} {100 * count / len(words):.3g} %" for word, count in Counter(words).most_common()
    )


def span(values: Sequence[float]) -> str:
    """The range of those values that are numbers."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "none"
    low, high = f"{min(finite):.3g}", f"{max(finite):.3g}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    soak()
