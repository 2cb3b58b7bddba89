"""Figures of models while and after they learn."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.drawing import HEIGHT, THEORY, WIDTH, colour, finish, rule_at, table

SHOWN = 10
"""Runs that are drawn, as many as in the paper; all are counted."""

SIDE = 250


def named(evidence: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """Each cell with the name of its length and sparsity."""
    cells = [evidence.isel(cell=i) for i in range(evidence.sizes["cell"])]
    return [(f"T = {int(cell['length'])}, s = {int(cell['sparsity'])}", cell) for cell in cells]


def parity_runs(evidence: xr.Dataset) -> Any:
    """Figure 4: loss and accuracy of each run, and when every sequence was right for the first time."""
    columns = []
    for name, cell in named(evidence):
        some = cell.isel(repeat=slice(SHOWN))
        curves = table(some, "loss", "accuracy", rows=10_000).dropna()
        arrivals = some["arrival"].to_dataframe().reset_index().dropna().assign(one=1.0, nought=0.0)
        x = alt.X("step:Q", title="step")
        hue = colour("repeat:N", None, legend=None)
        lines = alt.Chart(curves).mark_line(strokeWidth=1.2, opacity=0.8)
        ends = alt.Chart(arrivals).mark_point(filled=True, size=45, opacity=1)
        loss = lines.encode(
            x=x, y=alt.Y("loss:Q", title="loss on validation"), color=hue, detail="repeat:N"
        )
        accuracy = lines.encode(
            x=x,
            y=alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(domain=[0.4, 1])),
            color=hue,
        )
        tip = [
            alt.Tooltip("arrival:Q", title="arrival, step"),
            alt.Tooltip("repeat:N", title="run"),
        ]
        marks = ends.encode(x="arrival:Q", color=hue, tooltip=tip)
        arrived = int(cell["arrived"].sum())
        columns.append(
            alt.vconcat(
                (
                    loss + marks.encode(y="nought:Q") + rule_at(float(np.log(2)), "chance, ln 2")
                ).properties(
                    width=SIDE + 40,
                    height=170,
                    title=f"{name}: {arrived} of {cell.sizes['repeat']} runs arrive",
                ),
                (accuracy + marks.encode(y="one:Q")).properties(width=SIDE + 40, height=170),
            )
        )
    return finish(
        alt.hconcat(*columns),
        "Parity is learnt at once, after a long time at chance",
        f"{min(SHOWN, evidence.sizes['repeat'])} runs; points: the first evaluation at which every sequence is right",
    )


def parity_plateaus(evidence: xr.Dataset) -> Any:
    """The loss, with each run's time measured by when it had learnt; and how long each run was at chance."""
    evidence = evidence.assign(
        time=evidence["step"] / evidence["learnt"], part=evidence["left"] / evidence["learnt"]
    )
    cells = named(evidence)
    order = [name for name, _ in cells]
    some = [
        table(cell.isel(repeat=slice(SHOWN)), "loss", "time", rows=10_000).assign(size=name)
        for name, cell in cells
    ]
    curves = pd.concat(some).dropna()
    parts = pd.concat(
        [cell["part"].to_dataframe().reset_index().assign(size=name) for name, cell in cells]
    ).dropna()
    hue = colour("size:N", None, sort=order)
    lines = (
        alt.Chart(curves[curves["time"] <= 1.5])
        .mark_line(strokeWidth=1, opacity=0.7)
        .encode(
            x=alt.X("time:Q", title="step / step at which the function is learnt"),
            y=alt.Y("loss:Q", title="loss on validation"),
            color=hue,
            detail=["repeat:N"],
        )
    )
    dots = (
        alt.Chart(parts)
        .mark_tick(thickness=1.5, size=24)
        .encode(
            x=alt.X(
                "part:Q",
                title="part of that time with a loss above 0.6",
                scale=alt.Scale(domain=[0, 1]),
            ),
            y=alt.Y("size:N", title=None, sort=order),
            color=hue,
            tooltip=[alt.Tooltip("part:Q", format=".3f")],
        )
    )
    wall = (
        alt.Chart(pd.DataFrame({"part": [0.5]}))
        .mark_rule(color=THEORY, strokeDash=[5, 4])
        .encode(x="part:Q")
    )
    top = (lines + rule_at(float(np.log(2)), "chance, ln 2")).properties(
        width=WIDTH, height=HEIGHT - 60
    )
    return finish(
        alt.vconcat(top, (dots + wall).properties(width=WIDTH, height=34 * len(cells))),
        "Nothing, and then everything",
        f"above: {min(SHOWN, evidence.sizes['repeat'])} runs a length; below: all runs, and the half that is claimed",
    )
