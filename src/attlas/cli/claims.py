"""Verbs on claims: `list`, `show`, `run`, `cite`."""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attlas.cli import options, printing
from attlas.cli.running import exit_code, run_all, save_figure
from attlas.errors import InputError
from attlas.lab.files import fits

if TYPE_CHECKING:
    from attlas.claims import Claim

STORED = "stored, nothing was computed"


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
    if not (settings or figure or as_json or files or run_options["fresh"]):
        known = _recorded(patterns, store, run_options["scale"], run_options["seed"])
        if known:
            for record in known:
                said = (record["verdict"], record["id"], record["kind"], STORED, record["said"])
                printing.print_verdict(*said)
            printing.print_counts((record["verdict"], record["kind"]) for record in known)
            sys.exit(exit_code(record["verdict"] for record in known))
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
                cost = STORED if result.cached else f"{result.seconds:.1f} s"
                claim, word = result.claim, result.verdict.word
                printing.print_verdict(word, claim.id, claim.kind, cost, result.said)
    results.sort(key=lambda result: found.index(result.claim))
    if drawing and results[0].evidence:
        save_figure(results[0].figure(), drawing)
    elif drawing:
        printing.stderr().print(f"No figure: {results[0].verdict.reason}")
    if as_json:
        printing.print_json({"claims": [result.to_dict() for result in results]})
    else:
        printing.print_counts((r.verdict.word, r.claim.kind) for r in results)
    sys.exit(exit_code(result.verdict.word for result in results))


def _recorded(
    patterns: Sequence[str], store: str | None, scale: str, seed: int
) -> list[dict[str, Any]] | None:
    """The recorded verdicts on all claims that match, if the same package made them at their own
    settings: read without JAX, which takes longer to import than all the rest. Not on claims of
    other files, or of a real checkpoint, which may have changed since."""
    from attlas.index import package_index
    from attlas.lab.records import Records
    from attlas.provenance import package_digest

    records, found = Records(store), []
    for entry in options.find_entries(patterns, ()):
        record = records.recorded(entry.id)
        for note in records.notes:
            printing.stderr().print(note, markup=False)
        usual = json.loads(json.dumps(entry.paper if scale == "paper" else entry.quick))
        wanted = {"id": entry.id, "scale": scale, "seed": seed, "setting": usual}
        if (
            record is None
            or package_index().get(entry.id) != entry
            or entry.kind == "real"
            or any(record.get(name) != value for name, value in wanted.items())
            or record["verdict"] not in ("confirmed", "refuted", "undecided")
            or not fits(record, {"said": [str], "kind": str, "package": str, str: object})
            or record["package"] != package_digest()
        ):
            return None
        found.append(record)
    return found


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
