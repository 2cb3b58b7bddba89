"""What the command line prints: answers on stdout, as text or one JSON object; notes on stderr."""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attlas.index import Entry
    from attlas.lab.sweeps import Sweep

STYLES = {
    "confirmed": "green",
    "certified": "green",
    "refuted": "red",
    "undecided": "yellow",
    "outside": "blue",
    "not run": "magenta",
}
MAX_FAILURES = 10
"""Failed cells of a sweep whose reasons are printed."""


def stdout() -> "Console":
    from rich.console import Console

    class Answers(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which means refuted

    return Answers(highlight=False, width=None if sys.stdout.isatty() else 200)


def stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False))


def print_table(table: "Table") -> None:
    """A table, without the spaces that fill the ends of its lines."""
    console = stdout()
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def describe_entry(entry: "Entry") -> dict[str, Any]:
    """A claim as plain data, for JSON."""
    return {name: value for name, value in asdict(entry).items() if name != "module"}


def print_entry(entry: "Entry", last: dict[str, Any] | None) -> None:
    """All about a claim, and its `last` verdict as the store recorded it, if there is one."""
    from rich.markup import escape
    from rich.table import Table

    console = stdout()
    source = f"{entry.source}, {escape(entry.reference)} ({entry.origin}; {entry.kind})"
    console.print(f"[bold]{entry.id}[/]   {source}\n")
    console.print(f"{escape(entry.statement)}\n\n{escape(entry.words)}\n")
    if entry.hypotheses:
        console.print(f"Holds for: {escape('; '.join(entry.hypotheses))}.")
    console.print(f"Rule: {escape(entry.rule)}")
    console.print(f"Control: {escape(entry.control)}.")
    if entry.needs:
        console.print(f"Rests on: {', '.join(entry.needs)}.")
    table = Table("parameter", "quick", "paper", box=None, pad_edge=False, header_style="bold")
    for name, value in entry.quick.items():
        table.add_row(name, _format_parameter(value), _format_parameter(entry.paper[name]))
    console.print()
    print_table(table)
    console.print()
    if files("attlas").joinpath("evidence", f"{entry.id}.nc").is_file():
        console.print(f"Evidence at the paper's scale is shipped: attlas verify {entry.id}")
    from attlas.certificates import said_box, shipped_certificates

    for certificate in shipped_certificates(entry.id):
        console.print(f"Certified on the box {escape(said_box(certificate))}:")
        console.print(f"{escape(certificate['words'])} (attlas certify {entry.id})")
    if last is None:
        console.print(f"No verdict in the store yet: attlas run {entry.id}")
        return
    usual = entry.paper if last["scale"] == "paper" else entry.quick
    usual = json.loads(json.dumps(usual))  # like the record, which has lists for tuples
    changes = [f", {name} = {v}" for name, v in last["setting"].items() if usual.get(name) != v]
    how = f"{last['when']}, scale {last['scale']}, seed {last['seed']}{''.join(changes)}"
    console.print(f"Last verdict, {escape(how)}:\n{last['verdict']}. {escape(last['reason'])}")
    if last.get("strength"):
        console.print(f"Strength: {escape(last['strength'])}.")


def _format_parameter(value: Any) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)


def print_verdict(word: str, id: str, kind: str, cost: str, said: Sequence[str]) -> None:
    """A verdict on a claim, what it cost, and sentences about it."""
    from rich.markup import escape

    console = stdout()
    console.print(f"[{STYLES[word]}]{word:<10}[/] [bold]{id}[/]  ({kind}; {cost})")
    for line in said:
        console.print(f"{11 * ' '}{escape(line)}", style="default")


def print_counts(verdicts: Iterable[tuple[str, str]]) -> None:
    """How many claims have each verdict, and how many of the confirmed each kind of evidence; from
    a word and a kind for each."""
    found = list(verdicts)
    words = Counter(word for word, _ in found)
    kinds = Counter(kind for word, kind in found if word == "confirmed")
    apart = f" ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))})" if kinds else ""
    counts = [f"{words[word]} {word}" for word in STYLES if words[word] and word != "confirmed"]
    click.echo(", ".join([f"{words['confirmed']} confirmed{apart}", *counts]))


def print_estimate(plan: "Sweep", processes: int, as_json: bool) -> None:
    """How many cells a sweep has, how many are stored, and how long the rest would take."""
    tally = plan.tally
    if not as_json:
        outside = f", {tally.outside:,} outside the hypotheses" if tally.outside else ""
        counts = f"{count_cells(tally.cells)}, {tally.stored:,} stored{outside}"
        click.echo(f"{counts}, {tally.left:,} to do.")
        if tally.left and not plan.store.costs(plan.folder):  # which may take long
            click.echo("No cell of this claim is stored: one is measured now, for an estimate.")
    estimate = plan.estimate(processes)
    if as_json:
        counted = {name: getattr(tally, name) for name in ("cells", "stored", "outside", "left")}
        seconds = [None if math.isnan(s) else s for s in (estimate.low, estimate.high)]
        print_json({**counted, "seconds": seconds, "basis": estimate.basis})
    elif math.isnan(estimate.low):
        click.echo(f"No estimate: it rests on {_join_lines(estimate.basis)}.")
    elif tally.left:
        low, high = format_duration(estimate.low), format_duration(estimate.high)
        about = low if low == high else f"{low} to {high}, as more or less is compiled again"
        click.echo(f"About {about}; by {estimate.basis}.")


def print_sweep(plan: "Sweep", out: Path | None, as_json: bool) -> None:
    """What became of the cells of a sweep, with the reasons of those that failed."""
    tally, failures = plan.tally, plan.failures()
    names = ("cells", "stored", "done", "failed", "outside", "left")
    counts = {name: getattr(tally, name) for name in names}
    if as_json:
        axes = {name: list(values) for name, values in plan.grid.axes.items()}
        claim = {"claim": plan.grid.claim.id, "scale": plan.grid.scale, "axes": axes}
        result = {"failures": failures, "out": str(out) if out else None}
        print_json({**claim, **counts, "seconds": round(tally.seconds, 3), **result})
        return
    for failure in failures[:MAX_FAILURES]:
        point = ", ".join(f"{name} = {value}" for name, value in failure["cell"].items())
        cell = f"{point or 'the cell'}, seed {failure['seed']}"
        stderr().print(f"Failed: {cell}: {_join_lines(failure['reason'])}", markup=False)
    if len(failures) > MAX_FAILURES:
        more = f"{len(failures) - MAX_FAILURES:,} more"
        stderr().print(f"... and {more}; --out tells the reason of each.")
    words = {
        "done": "done",
        "stored": "stored before",
        "failed": "failed",
        "outside": "outside",
        "left": "missing",
    }
    parts = [f"{counts[name]:,} {word}" for name, word in words.items() if counts[name]]
    click.echo(f"{count_cells(tally.cells)}: {', '.join(parts)}")
    if out:
        click.echo(out)


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def count_cells(number: int) -> str:
    return f"{number:,} cell{'s' if number != 1 else ''}"


def format_duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"
