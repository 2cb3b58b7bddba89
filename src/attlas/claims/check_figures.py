"""How a check displays: a figure for each rule, and a table for notebooks."""

import html
from typing import Any

import numpy as np
import xarray as xr

from attlas.claims.checks import Check
from attlas.claims.evidence import CELL
from attlas.claims.rules import Agreement, Approximation, Bound, Convergence, Order, SameLaw
from attlas.figure import Figure, agreement

ROWS = 40
"""Rows of a table that a notebook shows."""


def draw_check(check: Check) -> Figure:
    """The evidence of a check, in the way that its rule reads it."""
    evidence, rule, names = check.evidence, check.form.rule, list(check.grid)
    changing = [name for name in names if len(set(check.grid[name])) > 1]
    title = check.verdict.word.capitalize()
    if isinstance(rule, Agreement | Approximation):
        return agreement(evidence, title, color=_label(changing))
    if isinstance(rule, SameLaw):
        levels = np.linspace(0.005, 0.995, 100)
        pairs = (evidence[name].quantile(levels, "draw") for name in rule.reads)
        shown = xr.Dataset(dict(zip(("predicted", "measured"), pairs, strict=True)))
        figure = Figure(shown, title, x="quantiles of the first", y="quantiles of the second")
        return figure.diagonal().points("predicted", "measured", size=16, color=_label(changing))
    if along := check.form.along:
        predicted = evidence["x"] ** evidence["exponent"]
        middle = xr.DataArray(np.log(evidence["measured"] / predicted)).mean(along)
        shown = evidence.assign(power=predicted * np.exp(middle))
        figure = Figure(shown, title, x=along, y="mean", log="xy")
        figure.lines("x", "power", color=_label(changing), theory=True)
        return figure.points("x", "measured", error="error", color=_label(changing))
    numbers = [name for name in changing if evidence[name].dtype.kind in "if"]
    x, *others = [*numbers, *(name for name in changing if name not in numbers)] or [CELL]
    shown = evidence.assign_coords({CELL: np.arange(evidence.sizes[CELL])})
    color = _label(others)
    if isinstance(rule, Convergence):
        shown = shown.assign(arrived_share=shown["arrived"].astype(float).mean(dim="repeat"))
        figure = Figure(shown, title, x=x, y="share of runs that arrive", domain={"y": (0, 1)})
        return figure.points(x, "arrived_share", color=color).rule(rule.share, "claimed")
    figure = Figure(shown, title, x=x, y="mean")
    if isinstance(rule, Bound):
        figure.lines(x, "bound", color=color, theory=True)
        return figure.points(x, "measured", error="error", color=color)
    assert isinstance(rule, Order)
    return figure.points(x, {"lower": "lower side", "upper": "upper side"}, shape=color)


def _label(names: list[str]) -> str | None:
    return ", ".join(f"{name} = {{{name}}}" for name in names) or None


def check_html(check: Check) -> str:
    """The sentence, the table and the figure of a check, for a notebook."""
    import vl_convert

    table: Any = check.table()
    shown = table.head(ROWS).to_html(index=False, float_format=lambda v: f"{v:.5g}", border=0)
    more = f"<p>{len(table) - ROWS:,} more rows: <code>.table()</code></p>"
    svg = vl_convert.vegalite_to_svg(check.figure().to_dict())
    left = more if len(table) > ROWS else ""
    return f"<p>{html.escape(check.sentence)}</p>{shown}{left}{svg}"
