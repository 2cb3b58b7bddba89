"""Verbs on claims: `list`, `show`, `run`, `cite`."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attlas.cli import options, printing
from attlas.cli.running import exit_code, run_all, save_figure
from attlas.errors import InputError

if TYPE_CHECKING:
    from attlas.claims import Claim


@click.command("list")
@click.argument("pattern", required=False)
@click.option("--source", help="Only claims of this source, as in marion2025.")
@options.claims_option
@options.json_option
def list_claims(
    pattern: str | None, source: str | None, files: Sequence[str], as_json: bool
) -> None:
    """The catalogue of claims; PATTERN is an id, a map, or a glob such as '*risk*'."""
    found = options.find_entries([pattern] if pattern else [], files, source)
    if as_json:
        printing.print_json({"claims": [printing.describe_entry(entry) for entry in found]})
        return
    from rich.table import Table

    names = ("claim", "evidence", "reference", "in words")
    table = Table(*names, box=None, pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for entry in found:
        table.add_row(entry.id, entry.kind, f"{entry.source}, {entry.reference}", entry.words)
    printing.print_table(table)


@click.command("show")
@click.argument("claim")
@options.store_option
@options.claims_option
@options.json_option
def show_claim(claim: str, store: str | None, files: Sequence[str], as_json: bool) -> None:
    """Statement, hypotheses, parameters at both scales, and the last verdict on CLAIM."""
    from attlas.lab.records import Records

    found = options.find_entry(claim, files)
    records = Records(store)
    last = records.recorded(found.id)
    for note in records.notes:
        printing.stderr().print(note, markup=False)
    if as_json:
        printing.print_json({**printing.describe_entry(found), "last": last})
    else:
        printing.print_entry(found, last)


@click.command("run")
@click.argument("patterns", nargs=-1, required=True)
@options.scale_option
@options.set_option
@options.seed_option
@click.option(
    "--figure",
    type=options.FILE,
    help=f"Draw the claim's figure to a file: {', '.join(options.FIGURE_FORMATS)}.",
)
@options.claims_option
@options.store_option
@options.fresh_option
@options.json_option
def run_claims(
    patterns: Sequence[str],
    settings: Sequence[str],
    figure: str | None,
    files: Sequence[str],
    store: str | None,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Test the claims that match PATTERNS: evidence, verdict, and the verdict on each control.

    Exit code: 0 all confirmed (claims outside or not run are counted apart), 1 something
    refuted, 3 something undecided, 2 bad input, 75 no process could be started, 130 interrupted.
    """
    from attlas.lab import compile_quickly

    compile_quickly()
    found = options.select_claims(patterns, files)
    drawing = _check_figure(figure, found)
    run_options["settings"] = _distribute_settings(settings, found)
    results = []
    with contextlib.closing(
        run_all(found, options.open_store(store), as_json, **run_options)
    ) as finished:
        for result in finished:
            results.append(result)
            if not as_json:
                printing.print_result(result)
    results.sort(key=lambda result: found.index(result.claim))
    if drawing and results[0].evidence:
        save_figure(results[0].figure(), drawing)
    elif drawing:
        printing.stderr().print(f"No figure: {results[0].verdict.reason}")
    if as_json:
        printing.print_json({"claims": [result.to_dict() for result in results]})
    else:
        printing.print_counts(results)
    sys.exit(exit_code(results))


def _check_figure(figure: str | None, claims: "list[Claim]") -> Path | None:
    path = options.check_writable("figure", figure, options.FIGURE_FORMATS)
    if path and len(claims) > 1:
        raise InputError(f"--figure draws one claim, and {len(claims)} were selected")
    if path and claims[0].drawing is None:
        raise InputError(f"{claims[0].id} has no figure")
    return path


def _distribute_settings(settings: Sequence[str], claims: "list[Claim]") -> dict[str, list[str]]:
    """Which of `settings` each claim takes. Every name must be a parameter of at least one."""
    taken: dict[str, list[str]] = {claim.id: [] for claim in claims}
    for text in settings:
        name = text.partition("=")[0].strip()
        takers = [claim for claim in claims if name in claim.quick]
        for claim in takers or claims[:1]:  # where none takes it, the first says what there is
            claim.quick.parse([text])
            taken[claim.id].append(text)
        if others := len(claims) - len(takers):
            printing.stderr().print(
                f"{name} is a parameter of {len(takers)} of these claims; "
                f"the other {others} run without it."
            )
    return taken


@click.command("cite")
@click.argument("claims", nargs=-1)
@options.claims_option
@options.json_option
def cite_sources(claims: Sequence[str], files: Sequence[str], as_json: bool) -> None:
    """BibTeX of what CLAIMS rest on (all of them, if none is named), and of Attlas itself."""
    from attlas.references import bibtex

    sources = sorted({entry.source for entry in options.find_entries(claims, files)} | {"attlas"})
    entries = {source: bibtex(source, *map(Path, files)) for source in sources}
    if as_json:
        printing.print_json({"entries": entries})
    else:
        click.echo("\n\n".join(entries.values()))
