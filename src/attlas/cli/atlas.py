"""The verb `atlas`: every claim, as pages."""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from attlas.cli import options
from attlas.cli.printing import print_counts, print_json, stderr
from attlas.cli.progress import stages
from attlas.cli.running import exit_code, run_all
from attlas.index import foreign_points

if TYPE_CHECKING:
    from attlas.claims import Claim
    from attlas.lab.store import Store


@click.command("atlas")
@click.argument("patterns", nargs=-1)
@click.option(
    "--out", type=options.FOLDER, default="atlas", show_default=True, help="Folder of the pages."
)
@options.scale_option
@options.seed_option
@options.claims_option
@options.store_option
@options.fresh_option
@click.option("--strict", is_flag=True, help="Exit as `run` does, by the verdicts.")
@options.json_option
def write_pages(
    patterns: Sequence[str],
    out: str,
    files: Sequence[str],
    store: str | None,
    strict: bool,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Test every claim, or those that match PATTERNS, and write the atlas: pages that open from
    disk, without a network.

    Results at the other scale are shown too where the store holds them, or the package at the
    paper's scale. Pages that would be written as they are stay.
    """
    from attlas.atlas import freshness
    from attlas.lab import compile_quickly
    from attlas.lab.records import Records

    place = Records(store).folder
    foreign = files or foreign_points()  # whose sources may lie anywhere
    inputs = "" if foreign else freshness.inputs_digest({"patterns": patterns, **run_options})
    again = foreign or as_json or run_options["fresh"]
    if not again and freshness.is_current(place, Path(out), inputs):
        _print_kept(Path(out).resolve(), strict)
    compile_quickly()

    from attlas.atlas import folders, pages
    from attlas.atlas.contents import gather_atlas
    from attlas.atlas.drawings import drawing_of, drawings_folder
    from attlas.atlas.notebooks import notebook_files, read_notebook

    folder = folders.check_folder(Path(out))
    found = options.select_claims(patterns, files)
    pages.check_prose(found)
    opened = options.open_store(store)
    _note_older_evidence(found, opened)
    results = []
    with contextlib.closing(run_all(found, opened, as_json, **run_options)) as finished:
        for result in finished:
            results.append(result)
            drawing_of(result, drawings_folder(opened))  # while others are measured
            if not (as_json or stderr().is_terminal):  # a log, which has no progress bar
                count = f"{len(results)} of {len(found)}"
                stderr().print(f"{count}: {result.claim.id} {result.verdict.word}")
    results.sort(key=lambda result: found.index(result.claim))
    told = len(opened.notes)
    with stages(as_json) as report:
        for path in notebook_files():
            read_notebook(path, drawings_folder(opened))  # what it measures is stored
        stored = freshness.stored_digest(place)
        index = pages.write_atlas(gather_atlas(results, opened), folder, report)
    if not (foreign or opened.notes):  # what was told is told again
        freshness.remember(place, folder, inputs, stored)
    for note in opened.notes[told:]:
        stderr().print(note, markup=False)
    if as_json:
        print_json({"index": str(index), "claims": [result.to_dict() for result in results]})
    else:
        print_counts((r.verdict.word, r.claim.kind) for r in results)
        click.echo(index)
    sys.exit(exit_code(r.verdict.word for r in results) if strict else 0)


def _print_kept(folder: Path, strict: bool) -> NoReturn:
    """Say what the pages in `folder` say, and leave."""
    claims = json.loads((folder / "claims.json").read_text(encoding="utf-8"))["claims"]
    stderr().print("Nothing has changed since these pages were written.")
    print_counts((claim["verdict"], claim["kind"]) for claim in claims)
    click.echo(folder / "index.html")
    sys.exit(exit_code(claim["verdict"] for claim in claims) if strict else 0)


def _note_older_evidence(claims: "list[Claim]", store: "Store") -> None:
    """Say how many claims have a verdict that was computed by other sources than these."""

    def is_older(claim: "Claim") -> bool:
        last, code = store.recorded(claim.id), claim.code[:16]
        return last is not None and last.get("provenance", {}).get("code", code) != code

    if older := sum(map(is_older, claims)):
        count = f"{older} claim{'s' if older > 1 else ''}"
        stderr().print(
            f"The last verdict on {count} is of another version: what is not stored is measured."
        )
