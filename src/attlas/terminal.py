"""What the command line shows: answers on stdout, progress and notes on stderr."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attlas.claims import Claim
    from attlas.lab.runner import Progress, Result
    from attlas.lab.sweeps import Sweep, Tally

STYLES = {
    "confirmed": "green",
    "refuted": "red",
    "undecided": "yellow",
    "outside": "blue",
    "not run": "magenta",
}


def stdout() -> "Console":
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_table(table: "Table") -> None:
    """A table, without the spaces that fill the ends of its lines."""
    console = stdout()
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False))


@contextlib.contextmanager
def stages(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Say on stderr what is under way: one line that changes on a terminal, nothing with --json elsewhere."""
    console = stderr()
    if console.is_terminal:
        with console.status("") as status:
            yield status.update
    else:
        yield lambda words: None if quiet else console.print(words)


@contextlib.contextmanager
def claims_progress(claims: int, quiet: bool) -> Iterator[tuple["Progress | None", Any]]:
    """A progress bar on a terminal, nothing elsewhere."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield None, lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=claims)

        def tell(claim: str, done: int, cells: int) -> None:
            bar.update(task, description=f"{claim}, cell {min(done + 1, cells)} of {cells}")

        yield tell, lambda: bar.advance(task)


@contextlib.contextmanager
def sweep_progress(quiet: bool) -> "Iterator[Callable[[Tally], None]]":
    """A bar on a terminal, a line every ten seconds elsewhere: cells done and failed, rate, time left, where."""
    console = stderr()
    if quiet:
        yield lambda tally: None
        return
    if not console.is_terminal:
        last = time.monotonic()
        told = False

        def log(tally: "Tally") -> None:
            nonlocal last, told
            if tally.where != "this process" and not told:
                told = True
                console.print(
                    f"{tally.processes} worker{'s' if tally.processes > 1 else ''}; {tally.where}"
                )
            if time.monotonic() - last > 10:
                last = time.monotonic()
                console.print(_how_far(tally))

        yield log
        return
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        BarColumn(), TextColumn("{task.description}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=None)

        def show_bar(tally: "Tally") -> None:
            where = (
                ""
                if tally.where == "this process"
                else f", {tally.processes} workers ({tally.where})"
            )
            done = tally.cells - tally.left
            bar.update(
                task, total=tally.cells, completed=done, description=f"{_how_far(tally)}{where}"
            )

        yield show_bar


def _how_far(tally: "Tally") -> str:
    left = f", {duration(tally.seconds_left)} left" if tally.done and tally.left else ""
    failed = f", {tally.failed:,} failed" if tally.failed else ""
    return f"{tally.stored + tally.done:,} of {tally.cells - tally.outside:,} cells{failed}, {tally.rate:.3g} a second{left}"


def duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"


def print_estimate(plan: "Sweep", processes: int, as_json: bool) -> None:
    tally = plan.tally
    if not as_json:
        outside = f", {tally.outside:,} outside the hypotheses" if tally.outside else ""
        click.echo(
            f"{_cells(tally.cells)}, {tally.stored:,} stored{outside}, {tally.left:,} to do."
        )
        if tally.left and not plan.store.costs(plan.folder):  # which may take long
            click.echo("No cell of this claim is stored: one is measured now, for an estimate.")
    estimate = plan.estimate(processes)
    if as_json:
        counts = {
            "cells": tally.cells,
            "stored": tally.stored,
            "outside": tally.outside,
            "left": tally.left,
        }
        seconds = [None if s != s else s for s in (estimate.low, estimate.high)]
        print_json({**counts, "seconds": seconds, "basis": estimate.basis})
    elif estimate.low != estimate.low:
        click.echo(f"No estimate: it rests on {_line(estimate.basis)}.")
    elif tally.left:
        low, high = duration(estimate.low), duration(estimate.high)
        about = low if low == high else f"{low} to {high}, as more or less is compiled again"
        click.echo(f"About {about}; by {estimate.basis}.")


def _line(text: str) -> str:
    """What an exception said, in one line."""
    return " ".join(text.split())


def _cells(number: int) -> str:
    return f"{number:,} cell{'s' if number != 1 else ''}"


def print_sweep(plan: "Sweep", out: Path | None, as_json: bool) -> None:
    tally, failures = plan.tally, plan.failures()
    counts = {
        name: getattr(tally, name)
        for name in ("cells", "stored", "done", "failed", "outside", "left")
    }
    if as_json:
        axes = {name: list(values) for name, values in plan.grid.axes.items()}
        more = {
            "seconds": round(tally.seconds, 3),
            "failures": failures,
            "out": str(out) if out else None,
        }
        print_json(
            {"claim": plan.grid.claim.id, "scale": plan.grid.scale, "axes": axes, **counts, **more}
        )
        return
    for failure in failures[:10]:
        point = ", ".join(f"{name} = {value}" for name, value in failure["cell"].items())
        said = _line(failure["reason"])
        stderr().print(
            f"Failed: {point or 'the cell'}, seed {failure['seed']}: {said}", markup=False
        )
    if len(failures) > 10:
        stderr().print(f"... and {len(failures) - 10:,} more; --out tells the reason of each.")
    words = [
        f"{tally.done:,} done",
        f"{tally.stored:,} stored before",
        f"{tally.failed:,} failed",
        f"{tally.outside:,} outside",
        f"{tally.left:,} missing",
    ]
    numbers = (tally.done, tally.stored, tally.failed, tally.outside, tally.left)
    click.echo(
        f"{_cells(tally.cells)}: " + ", ".join(w for w, n in zip(words, numbers, strict=True) if n)
    )
    if out:
        click.echo(out)


def print_result(result: "Result") -> None:
    from rich.markup import escape

    verdict, control = result.verdict, result.control
    cost = "stored, nothing was computed" if result.cached else f"{result.seconds:.1f} s"
    console = stdout()
    style = STYLES[verdict.word]
    console.print(f"[{style}]{verdict.word:<10}[/] [bold]{result.claim.id}[/]  ({cost})")
    console.print(f"           {escape(verdict.reason)}", style="default")
    if result.first:
        console.print(
            f"           At first sight refuted: {escape(result.first.reason)} Repeated with a fresh seed{' and four times the budget' if result.claim.budget else ''}."
        )
    if control:
        console.print(f"           control {control.word}: {escape(result.claim.control.words)}.")


def print_counts(results: "Sequence[Result]") -> None:
    counts = {word: sum(r.verdict.word == word for r in results) for word in STYLES}
    click.echo(", ".join(f"{n} {word}" for word, n in counts.items() if n or word == "confirmed"))


def described(claim: "Claim") -> dict[str, Any]:
    return {
        "id": claim.id,
        "source": claim.source,
        "reference": claim.reference,
        "origin": claim.origin,
        "statement": claim.statement,
        "words": claim.words,
        "hypotheses": [hypothesis.words for hypothesis in claim.hypotheses],
        "rule": str(claim.rule),
        "control": claim.control.words,
        "needs": list(claim.needs),
        "quick": dict(claim.quick),
        "paper": dict(claim.paper),
    }


def _plain(value: Any) -> Any:
    """A parameter as JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def print_claim(claim: "Claim", last: dict[str, Any] | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    console = stdout()
    console.print(
        f"[bold]{claim.id}[/]   {claim.source}, {escape(claim.reference)} ({claim.origin})\n"
    )
    console.print(f"{escape(claim.statement)}\n\n{escape(claim.words)}\n")
    if claim.hypotheses:
        console.print(
            "Holds for: " + "; ".join(hypothesis.words for hypothesis in claim.hypotheses) + "."
        )
    console.print(f"Rule: {escape(str(claim.rule))}")
    console.print(f"Control: {escape(claim.control.words)}.")
    if claim.needs:
        console.print(f"Rests on: {', '.join(claim.needs)}.")
    table = Table("parameter", "quick", "paper", box=None, pad_edge=False, header_style="bold")
    for name in claim.quick:
        table.add_row(
            name,
            *(
                ", ".join(
                    f"{v:g}" if isinstance(v, float) else str(v)
                    for v in (x if isinstance(x, tuple) else (x,))
                )
                for x in (claim.quick[name], claim.paper[name])
            ),
        )
    console.print()
    print_table(table)
    console.print()
    if last is None:
        console.print(f"No verdict yet: attlas run {claim.id}")
    else:
        changed = {
            name: value
            for name, value in last["setting"].items()
            if name not in claim.quick or value != _plain(claim.setting(last["scale"])[name])
        }
        with_changes = "".join(f", {name} = {value}" for name, value in changed.items())
        console.print(
            f"Last verdict, {last['when']}, scale {last['scale']}, seed {last['seed']}{with_changes}:"
        )
        console.print(f"{last['verdict']}. {escape(last['reason'])}")
