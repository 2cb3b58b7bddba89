"""How fast it is: the ratios that `make bench` measured before the package was made."""

import json
from dataclasses import dataclass
from importlib.resources import files

SHIPPED = files("attlas.atlas") / "shipped" / "speed.json"

HEADLINES = (
    "whole_first_paper",
    "figure_4",
    "against_plain_loop",
    "against_vectors",
    "zeta_against_quadrature",
    "against_full_attention",
    "against_kernel_ridge",
    "hundred_thousand",
    "million",
)
"""Rows that the README shows."""


@dataclass(frozen=True)
class Measured:
    """A row of `make bench`.

    Arguments:
        name: of the benchmark. `what`: this and what it is measured against.
        this, against: seconds on the clock. `cpu`: ratio of the seconds of all cores, if taken.
        rounds: how often it was made, in turn. `expected`: ratio, in words.
        date, machine, load: when, on what, and how many processes wanted to run.
    """

    name: str
    what: str
    this: float
    against: float
    cpu: float | None
    rounds: int
    expected: str
    date: str
    machine: str
    load: float

    @property
    def times(self) -> str:
        """How many times as fast: by the seconds of all cores, or on the clock."""
        return short(self.cpu or self.against / self.this)


def short(number: float) -> str:
    """Three digits of it."""
    return f"{number:,.0f}" if number >= 20 else f"{number:.3g}"


def read_speed() -> list[Measured]:
    """What comes with the package."""
    return [Measured(**row) for row in json.loads(SHIPPED.read_text(encoding="utf-8"))]


def as_markdown(rows: list[Measured]) -> str:
    """The table of the README."""
    lines = ["| this, against that | times as fast | measured |", "| --- | --- | --- |"]
    shown = {row.name: row for row in rows}
    for row in (shown[name] for name in HEADLINES if name in shown):
        lines.append(f"| {row.what} | {row.times} | {row.date}, load {row.load:.0f} |")
    return "\n".join(lines)
