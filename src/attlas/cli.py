"""The command line. Answers go to stdout, progress and notes to stderr; heavy imports happen inside the verbs."""

import contextlib
import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attlas import __version__
from attlas.errors import InputError
from attlas.terminal import (
    claims_progress,
    described,
    print_claim,
    print_counts,
    print_estimate,
    print_json,
    print_result,
    print_sweep,
    print_table,
    stages,
    stderr,
    sweep_progress,
)

if TYPE_CHECKING:
    from attlas.claims import Claim
    from attlas.lab.runner import Result
    from attlas.lab.store import Store

EXIT_REFUTED, EXIT_USAGE, EXIT_UNDECIDED, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 3, 70, 130
FIGURE_FORMATS = (".svg", ".pdf", ".png", ".html")

_scale = click.option(
    "--scale",
    type=click.Choice(["quick", "paper"]),
    default="quick",
    show_default=True,
    help="Seconds, or the paper's own parameters.",
)
_seed = click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Where all random numbers come from.",
)
_store = click.option(
    "--store",
    type=click.Path(file_okay=False),
    help="Folder of stored evidence. [default: $ATTLAS_STORE or the user's cache]",
)
_files = click.option(
    "--claims",
    "files",
    multiple=True,
    type=click.Path(dir_okay=False),
    help="A Python file with claims of yours.",
)
_fresh = click.option("--fresh", is_flag=True, help="Compute again what is stored.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object and nothing else.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="attlas")
def commands() -> None:
    """The atlas of attention theory that runs: every theorem a claim, checked against simulation, with a verdict."""


@commands.command("list")
@click.argument("pattern", required=False)
@click.option("--source", help="Only claims of this source, as in marion2025.")
@_files
@_json
def list_claims(
    pattern: str | None, source: str | None, files: Sequence[str], as_json: bool
) -> None:
    """The catalogue of claims; PATTERN is an id, a map, or a glob such as '*risk*'."""
    found = _select([pattern] if pattern else [], files, source)
    if as_json:
        print_json({"claims": [described(claim) for claim in found]})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "reference", "in words"):
        table.add_column(heading, no_wrap=heading == "claim")
    for claim in found:
        table.add_row(claim.id, f"{claim.source}, {claim.reference}", claim.words)
    print_table(table)


@commands.command()
@click.argument("claim")
@_store
@_files
@_json
def show(claim: str, store: str | None, files: Sequence[str], as_json: bool) -> None:
    """Statement, hypotheses, parameters at both scales, and the last verdict on CLAIM."""
    from attlas.lab.runner import find_one
    from attlas.lab.store import Store

    _select([], files)
    found = find_one(claim)
    last = Store(store, reading=True).recorded(found.id)
    if as_json:
        print_json({**described(found), "last": last})
        return
    print_claim(found, last)


@commands.command()
@click.argument("patterns", nargs=-1, required=True)
@_scale
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a parameter; lists as 1,2,3.",
)
@_seed
@click.option(
    "--figure",
    type=click.Path(dir_okay=False),
    help=f"Draw the claim's figure to a file: {', '.join(FIGURE_FORMATS)}.",
)
@_files
@_store
@_fresh
@_json
def run(
    patterns: Sequence[str],
    scale: str,
    settings: Sequence[str],
    seed: int,
    figure: str | None,
    files: Sequence[str],
    store: str | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Test the claims that match PATTERNS: evidence, verdict, and the verdict on each control.

    Exit code: 0 all confirmed (claims outside their hypotheses are counted apart), 1 something refuted,
    3 something undecided, 2 bad input, 130 interrupted.
    """
    from attlas.lab import compile_quickly

    compile_quickly()
    found = _select(patterns, files)
    _check_figure(figure, found)
    shared = _distribute(settings, found)
    opened = _open_store(store)
    results = []
    with contextlib.closing(
        _run_all(found, opened, as_json, scale=scale, seed=seed, fresh=fresh, settings=shared)
    ) as done:
        for result in done:
            results.append(result)
            if not as_json:
                print_result(result)
    results.sort(key=lambda result: found.index(result.claim))
    if figure:
        _draw(results[0], Path(figure))
    if as_json:
        print_json({"claims": [result.to_dict() for result in results]})
    else:
        print_counts(results)
    sys.exit(_exit_code(results))


@commands.command()
@click.argument("patterns", nargs=-1)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    default="atlas",
    show_default=True,
    help="Folder of the pages.",
)
@_scale
@_seed
@_files
@_store
@_fresh
@click.option("--strict", is_flag=True, help="Exit as `run` does, by the verdicts.")
@_json
def atlas(
    patterns: Sequence[str],
    out: str,
    scale: str,
    seed: int,
    files: Sequence[str],
    store: str | None,
    fresh: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Test every claim, or those that match PATTERNS, and write the atlas: pages that open from disk, without a network.

    Results at the other scale are shown too where the store holds them.
    """
    from attlas.lab import compile_quickly

    compile_quickly()

    from attlas.atlas import pages
    from attlas.atlas.drawings import drawing_of
    from attlas.atlas.showpieces import SHOWPIECES, real_data
    from attlas.lab.runner import recall

    folder = pages.check_folder(Path(out))
    found = _select(patterns, files)
    pages.check_prose(found)
    opened = _open_store(store)
    _tell_of_older(found, opened)
    keep = opened.folder / "drawings"
    results = []
    with contextlib.closing(
        _run_all(found, opened, as_json, scale=scale, seed=seed, fresh=fresh)
    ) as done:
        for result in done:
            results.append(result)
            drawing_of(result, keep)  # while others are measured
            if not (as_json or stderr().is_terminal):  # a log, which has no progress bar
                stderr().print(
                    f"{len(results)} of {len(found)}: {result.claim.id} {result.verdict.word}"
                )
    results.sort(key=lambda result: found.index(result.claim))
    known = {claim.id for claim in found}
    shown = [piece.shown(opened) for piece in SHOWPIECES if piece.claim in known]
    other = "quick" if scale == "paper" else "paper"
    recalled = {claim.id: recall(claim, scale=other, seed=seed, store=opened) for claim in found}
    with stages(as_json) as tell:
        index = pages.write_atlas(
            results,
            folder,
            shown,
            real_data(opened) if any(claim.map in pages.PACKAGE for claim in found) else None,
            others={id: result for id, result in recalled.items() if result is not None},
            keep=keep,
            tell=lambda done, of: (
                tell(f"Drawing page {done + 1} of {of} ...") if done % 25 == 0 else None
            ),
        )
    if as_json:
        print_json({"index": str(index), "claims": [result.to_dict() for result in results]})
    else:
        print_counts(results)
        click.echo(index)
    sys.exit(_exit_code(results) if strict else 0)


@commands.command("audit")
@click.argument("models", nargs=-1, required=True, metavar="MODEL [OTHER]")
@click.option(
    "--text",
    type=click.Path(dir_okay=False),
    help="A text to read to the model, one example a line. [default: a neutral one]",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False),
    help="Token ids instead, one example a line: for a model without tokenizer.",
)
@click.option(
    "--labels",
    type=click.Path(dir_okay=False),
    help="Texts to probe every layer on: a label, a tab and a text on each line.",
)
@click.option(
    "--probes",
    type=click.Choice(["none", "quick", "paper"]),
    default="quick",
    show_default=True,
    help="The sentences of Marion et al. 2025: none, some hundreds, or all.",
)
@click.option(
    "--map",
    "table",
    type=click.Path(dir_okay=False),
    help="A table of names (TOML or JSON) for an architecture that is not known.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="A config.json, where none lies beside the weights.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="The page to write. [default: audit.html, none with --json]",
)
@_seed
@_json
def audit_models(
    models: Sequence[str],
    text: str | None,
    tokens: str | None,
    labels: str | None,
    probes: str,
    table: str | None,
    config: str | None,
    out: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """The theory's quantities on a real checkpoint: a folder, a .safetensors, .gguf or .bin file, or package:NAME.

    With OTHER, another checkpoint of the same model, the two are compared, as before and after fine-tuning.
    """
    if len(models) > 2:
        raise InputError(
            f"{len(models)} models are named: an audit is of one, or of two to compare"
        )
    path = Path(out or "audit.html") if out or not as_json else None
    if path is not None and (path.suffix != ".html" or not path.parent.is_dir()):
        raise InputError(
            f"out = {str(path)!r}: it must be a file in an existing folder, and its name must end in .html"
        )
    from attlas.audit.auditing import audit_model, compare
    from attlas.audit.page import write_page
    from attlas.audit.texts import read_ids

    _open_store(None)  # for what it keeps compiled
    ids = None if tokens is None else read_ids(tokens)
    found = []
    with stages(as_json) as tell:
        for model in models:
            found.append(
                audit_model(
                    model,
                    config=config,
                    table=table,
                    texts=text,
                    tokens=ids,
                    labels=labels,
                    probes=probes,
                    seed=seed,
                    progress=lambda stage, model=model: tell(f"{model}: {stage}"),  # type: ignore[misc]
                )
            )
        difference = compare(*found) if len(found) == 2 else None
        if path is not None:
            tell(f"writing {path}")
            write_page(found, path)
    if as_json:
        content: dict[str, Any] = {"audits": [each.to_dict() for each in found]}
        print_json(content | ({} if difference is None else {"difference": difference.to_dict()}))
        return
    for each in found:
        click.echo("\n".join(f"- {sentence}" for sentence in each.summary))
        for reason in each.skipped:
            click.echo(f"- Left out: {reason}")
    if difference is not None:
        click.echo("\n".join(f"- {sentence}" for sentence in difference.summary))
    click.echo(path)


@commands.command()
@click.argument("claim")
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values of a parameter: 1,2,4 or 0.05:1:20log, 0:1:11, 10:20. Several grids make a product.",
)
@click.option("--seeds", default="0", show_default=True, metavar="SEEDS", help="As 0:100 or 3,5,8.")
@_scale
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a parameter for all cells.",
)
@click.option(
    "--on",
    default="local",
    show_default=True,
    metavar="WHERE",
    help="local (this process), local:N (processes), tcp://HOST:PORT (a Dask scheduler), slurm or slurm:N (jobs).",
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="Gather everything into one netCDF file (.nc)."
)
@click.option(
    "--figure",
    type=click.Path(dir_okay=False),
    help=f"A phase diagram or lines ({', '.join(FIGURE_FORMATS)}), or a table (.csv, .md).",
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
@_files
@_store
@_fresh
@_json
def sweep(
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
    beyond: bool,
    retries: int,
    files: Sequence[str],
    store: str | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Measure CLAIM at every point of a grid of settings, here or on a cluster; stop and go on at any time.

    In place of a claim there may be a function that simulates, as FILE.py:FUNCTION.
    Exit code: 0 all cells are done or outside the hypotheses, 1 a cell failed or is missing, 2 bad input,
    130 interrupted. Finished cells are kept, and the same command goes on where it stopped.
    """
    from attlas.lab import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before JAX starts
    from attlas.lab import cluster, sweeps
    from attlas.lab.grids import parse_grid

    where = cluster.parse_where(on)
    result = _writable("out", out, (".nc",))
    drawing = _writable("figure", figure, (*FIGURE_FORMATS, ".csv", ".md"))
    chosen = parse_grid(at)
    for option, given in (("--show", variable), ("--at", at), ("--kind", kind)):
        if given and not drawing:
            raise InputError(f"{option} needs --figure: it says what is drawn")
    _select([], files)
    plan = sweeps.plan_sweep(
        claim,
        grid,
        seeds,
        scale,
        settings,
        _open_store(store),
        fresh=fresh,
        beyond=beyond,
        retries=retries,
    )
    if drawing:
        from attlas.lab.diagrams import check_drawing

        check_drawing(plan.grid, drawing, kind, chosen)
    for note in plan.notes:
        stderr().print(note)
    if dry_run:
        print_estimate(plan, where.number, as_json)
        return
    if where.kind != "local" and plan.tally.left and not as_json:
        stderr().print(f"Waiting for workers ({on}).")
    try:
        with _interruptible() as check, sweep_progress(as_json) as tell:
            gathered = sweeps.complete_sweep(plan, on, lambda tally: (check(), tell(tally))[0])
    except sweeps.WorkersLost as lost:
        stderr().print(str(lost))
        gathered = plan.gathered()
    for note in plan.store.notes:
        stderr().print(note)
    if result:
        sweeps.write_gathered(gathered, result)
    print_sweep(plan, result, as_json)
    lacking = plan.tally.failed or plan.tally.left
    if drawing:
        try:
            _draw_sweep(gathered, drawing, kind, variable, chosen)
        except InputError as error:
            if not lacking:
                raise
            stderr().print(f"No figure: {error}.")
    sys.exit(EXIT_REFUTED if lacking else 0)


@commands.command()
@click.argument("claims", nargs=-1)
@_files
@_json
def cite(claims: Sequence[str], files: Sequence[str], as_json: bool) -> None:
    """BibTeX of what CLAIMS rest on (all of them, if none is named), and of Attlas itself."""
    from attlas.references import bibtex

    sources = sorted({claim.source for claim in _select(claims, files)} | {"attlas"})
    entries = {source: bibtex(source) for source in sources}
    if as_json:
        print_json({"entries": entries})
    else:
        click.echo("\n\n".join(entries.values()))


def _select(
    patterns: Sequence[str], files: Sequence[str], source: str | None = None
) -> "list[Claim]":
    from attlas.claims import load_file, select

    for file in files:
        load_file(file)
    return select(patterns, source)


def _tell_of_older(claims: "list[Claim]", store: "Store") -> None:
    """Say how many claims have a verdict of other sources than these, whose evidence does not count."""
    recorded = {claim: store.recorded(claim.id) for claim in claims}
    older = [
        c
        for c, last in recorded.items()
        if last and last.get("provenance", {}).get("code", c.code[:16]) != c.code[:16]
    ]
    if older:
        count = f"{len(older)} claim{'s' if len(older) > 1 else ''}"
        stderr().print(
            f"The store holds evidence of an older version for {count}, which is measured again."
        )


def _open_store(folder: str | None) -> "Store":
    """The store, with JAX's compilation cache in it."""
    from attlas.lab.measurement import keep_compiled
    from attlas.lab.store import Store

    store = Store(folder)
    keep_compiled(store)
    return store


def _distribute(settings: Sequence[str], claims: "list[Claim]") -> dict[str, list[str]]:
    """Which of `settings` each claim takes. Every name must be a parameter of at least one of them."""
    shared: dict[str, list[str]] = {claim.id: [] for claim in claims}
    for text in settings:
        name = text.partition("=")[0].strip()
        takers = [claim for claim in claims if name in claim.quick]
        if not takers:  # let the only claim, or the first of several, say which names there are
            claims[0].quick.parse([text])
        for claim in takers:
            claim.quick.parse([text])
            shared[claim.id].append(text)
        if len(takers) < len(claims):
            others = len(claims) - len(takers)
            stderr().print(
                f"{name} is a parameter of {len(takers)} of these claims; the other {others} run without it."
            )
    return shared


def _run_all(
    claims: "list[Claim]", store: "Store", quiet: bool, **options: Any
) -> "Generator[Result]":
    """Results as they come, with progress and notes."""
    from attlas.lab.runner import run_all

    told = 0
    with _interruptible() as check, claims_progress(len(claims), quiet) as (show_progress, advance):

        def progress(claim: str, done: int, cells: int) -> None:
            check()
            if show_progress is not None:
                show_progress(claim, done, cells)

        with contextlib.closing(
            run_all(claims, store=store, progress=progress, **options)
        ) as results:
            for result in results:
                yield result
                advance()
                for note in store.notes[told:]:
                    stderr().print(note)
                told = len(store.notes)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Remember Ctrl-C: raised inside one of JAX's callbacks it is swallowed, and must be raised again at the next check."""
    pressed = False

    def press(*_: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _draw_sweep(
    gathered: Any, path: Path, kind: str | None, variable: str | None, at: dict[str, str]
) -> None:
    from attlas.lab.diagrams import TABLE_SUFFIXES, diagram, summary, write_table

    if path.suffix in TABLE_SUFFIXES:
        write_table(summary(gathered, variable, at), path)
        stderr().print(f"Table: {path}")
    else:
        _save_figure(diagram(gathered, kind, variable, at), path)


def _writable(option: str, file: str | None, suffixes: Sequence[str]) -> Path | None:
    """The file that `option` names, if it may be written."""
    if file is None:
        return None
    path = Path(file)
    if path.suffix not in suffixes:
        raise InputError(
            f"{option} {file!r}: its name must end in {'one of ' * (len(suffixes) > 1)}{', '.join(suffixes)}"
        )
    if not path.parent.is_dir():
        raise InputError(f"{option} {file!r}: the folder {str(path.parent)!r} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {file!r}: the folder {str(path.parent)!r} cannot be written")
    return path


def _exit_code(results: "Sequence[Result]") -> int:
    words = {result.verdict.word for result in results}
    return EXIT_REFUTED if "refuted" in words else EXIT_UNDECIDED if "undecided" in words else 0


def _check_figure(figure: str | None, claims: "list[Claim]") -> None:
    if figure is None:
        return
    _writable("figure", figure, FIGURE_FORMATS)
    if len(claims) > 1:
        raise InputError(f"--figure draws one claim, and {len(claims)} were selected")
    if claims[0].drawing is None:
        raise InputError(f"{claims[0].id} has no figure")


def _draw(result: "Result", path: Path) -> None:
    if not result.evidence:
        stderr().print(f"No figure: {result.verdict.reason}")
        return
    _save_figure(result.figure(), path)


def _save_figure(chart: Any, path: Path) -> None:
    formats: dict[str, dict[str, Any]] = {".html": {"inline": True}, ".png": {"ppi": 144}}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".under-way-", suffix=path.suffix)
    os.close(handle)
    try:
        chart.save(name, **formats.get(path.suffix, {}))
        if path.suffix == ".svg":
            from attlas.atlas.drawings import roomy

            Path(name).write_text(roomy(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    stderr().print(f"Figure: {path}")


def main() -> None:
    """Run the command line, and turn what can go wrong into one sentence and an exit code."""
    try:
        commands.main(prog_name="attlas", standalone_mode=False)
    except InputError as error:
        _fail(str(error), EXIT_USAGE)
    except (
        click.exceptions.NoArgsIsHelpError
    ) as error:  # no verb: its message is the help, as it stands
        click.echo(error.format_message(), err=True)
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        _fail(error.format_message().replace("\n", " "), EXIT_USAGE)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("attlas: Interrupted; finished batches are kept.", err=True)
        _leave(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of our answers has gone, as in `attlas list | head`
        _leave(0)
    except Exception as error:  # noqa: BLE001 - the last stop: a bug is reported with its traceback in a file
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _fail("The disk is full.", EXIT_USAGE)
        with tempfile.NamedTemporaryFile(
            "w", prefix="attlas-", suffix=".log", delete=False
        ) as file:
            traceback.print_exception(error, file=file)
        what = f"{type(error).__name__}: {error}"
        _fail(
            f"A bug, in Attlas or in a claim file: {what}. The traceback is in {file.name}.",
            EXIT_BUG,
        )


def _fail(sentence: str, code: int) -> None:
    click.echo(f"attlas: {sentence}", err=True)
    sys.exit(code)


def _leave(code: int) -> None:
    """End at once: threads of XLA that still compile would crash an orderly exit, and a closed pipe spoil it."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
