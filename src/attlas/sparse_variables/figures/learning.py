"""Figures of models while and after they learn."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.drawing import HEIGHT, PALETTE, THEORY, WIDTH, colour, finish, rule_at, table

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


RECIPES = {"adam": "Adam", "R": "one normaliser"}


def accuracy_curves(evidence: xr.Dataset) -> Any:
    """Figure 3, left: accuracy in training and on validation, above and below the threshold."""
    cell = evidence.isel(cell=0)
    names = {"accuracy_curve": "validation", "train_accuracy_curve": "training"}
    curves = table(cell.isel(repeat=slice(SHOWN)), *names, rows=20_000)
    long = curves.melt(
        ["recipe", "samples", "repeat", "step"], list(names), "on", "accuracy"
    ).dropna()
    long["on"] = long["on"].map(names)
    steps = alt.Scale(domain=[0, int(cell["step"].max())])
    rows = []
    for recipe in cell["recipe"].values.tolist():
        panels = []
        for samples in cell["samples"].values.tolist():
            here = long[(long["recipe"] == recipe) & (long["samples"] == samples)]
            overfit = int(cell["overfit"].sel(recipe=recipe, samples=samples).sum())
            lines = (
                alt.Chart(here)
                .mark_line(strokeWidth=1.3, opacity=0.7)
                .encode(
                    x=alt.X("step:Q", title="step", scale=steps),
                    y=alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(domain=[0.4, 1])),
                    color=colour("on:N", None, sort=["validation", "training"]),
                    detail="repeat:N",
                )
            )
            title = f"{RECIPES[recipe]}, m = {samples}: {overfit} of {cell.sizes['repeat']} overfit"
            panels.append(lines.properties(width=SIDE + 20, height=180, title=title))
        rows.append(alt.hconcat(*panels))
    return finish(
        alt.vconcat(*rows),
        f"Too few samples are learnt by heart, T = {int(cell['length'])}",
        f"{min(SHOWN, cell.sizes['repeat'])} trials on nested training sets; a curve ends when all of validation is right",
    )


def attention_map(evidence: xr.Dataset) -> Any:
    """Figure 3, right: what each place has of the head's attention in some sequences; and the mean weights of all trials."""
    cell = evidence.isel(cell=0)
    support = cell["places"].values.tolist()
    frame = table(cell, "weights", "bits", rows=100_000)
    frame["label"] = cell["bits"].isel(place=support).min("place").values[frame["example"]]
    place = alt.X(
        "place:O",
        title="place",
        axis=alt.Axis(values=sorted({*support, *range(0, cell.sizes["place"], 10)}), labelAngle=0),
    )
    row = alt.Y("example:O", title="sequence", axis=None)
    cells = (
        alt.Chart(frame)
        .mark_rect()
        .encode(
            x=place,
            y=row,
            color=alt.Color(
                "weights:Q",
                title="attention",
                scale=alt.Scale(range=["white", "#08306b"], domain=[0, 1]),
            ),
            tooltip=["place:O", "bits:N", "label:N", alt.Tooltip("weights:Q", format=".4f")],
        )
    )
    relevant = frame[frame["place"].isin(support)]
    digits = (
        alt.Chart(relevant)
        .mark_text(fontSize=8)
        .encode(
            x=place,
            y=row,
            text="bits:N",
            color=alt.condition("datum.weights > 0.5", alt.value("white"), alt.value(THEORY)),
        )
    )
    read = table(cell, "read")
    order = cell["quantity"].values.tolist()
    x = alt.X("quantity:N", title=None, sort=order, axis=alt.Axis(labelAngle=-30))
    dots = (
        alt.Chart(read)
        .mark_point(filled=True, size=18, opacity=0.6, color=PALETTE[0])
        .encode(
            x=x,
            y=alt.Y("read:Q", title="mean weight", scale=alt.Scale(domain=[0, 1])),
            tooltip=[alt.Tooltip("read:Q", format=".3f")],
        )
    )
    level = (
        alt.Chart(table(cell, "ideal"))
        .mark_tick(color=THEORY, thickness=2, size=34)
        .encode(x=x, y="ideal:Q")
    )
    tall = 12 * cell.sizes["example"]
    return finish(
        alt.hconcat(
            (cells + digits).properties(width=WIDTH + 60, height=tall),
            (dots + level).properties(width=110, height=tall),
        ),
        "The head looks at the zeros that make the function false",
        f"left: one trial, T = {cell.sizes['place']}, digits are the relevant bits, the upper half is false; right: {cell.sizes['repeat']} trials, dashes: attention to relevant zeros alone",
    )
