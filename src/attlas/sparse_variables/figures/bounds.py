"""Figures of covers, complexities and samples: what a bound says, and what is."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.drawing import (
    HEIGHT,
    THEORY,
    WIDTH,
    colour,
    error_bars,
    finish,
    legible,
    table,
)

LENGTH = "length T"
STROKES = alt.Legend(symbolType="stroke", symbolSize=300, symbolFillColor="transparent")


def samples_asked_for(evidence: xr.Dataset) -> Any:
    cell = evidence.isel(cell=0)
    rows = []
    tokens = cell["log_tokens"].values / np.log(10)
    for head in cell["head"].values:
        for constant in cell["constant"].values:
            logs = cell["log_samples"].sel(head=head, constant=constant).values
            rows += [
                {
                    "log10 T": t,
                    "log10 m": v / np.log(10),
                    "what": f"{head} head",
                    "constant": constant,
                }
                for t, v in zip(tokens, logs, strict=True)
            ]
    for name, what in (
        ("log_parameters", "threshold head, parameters counted"),
        ("log_concatenated", "linear map of the sequence"),
        ("log_occam", "Occam, finite class"),
        ("log_floor", "statistical floor"),
    ):
        rows += [
            {"log10 T": t, "log10 m": v / np.log(10), "what": what, "constant": "sharp"}
            for t, v in zip(tokens, cell[name].values, strict=True)
        ]
    lines = (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(point=alt.OverlayMarkDef(size=24))
        .encode(
            x=alt.X("log10 T:Q", title="length T, log10", scale=alt.Scale(type="log")),
            y=alt.Y(
                "log10 m:Q", title="samples, log10", scale=alt.Scale(domain=[0, 30], clamp=True)
            ),
            color=colour(
                "what:N",
                None,
                sort=list(dict.fromkeys(row["what"] for row in rows)),
                legend=alt.Legend(labelLimit=260),
            ),
            strokeDash=alt.StrokeDash(
                "constant:N", title="constant of softmax", sort=["sharp", "paper"], legend=STROKES
            ),
            tooltip=["what:N", "constant:N", "log10 T:Q", alt.Tooltip("log10 m:Q", format=".2f")],
        )
    )
    return finish(
        lines.properties(width=WIDTH, height=HEIGHT + 40),
        "Samples for the AND of three bits",
        "until the bound on the excess error is a half; the shape is the theorem, the constants are not meant to be used",
    )


def unique_support(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "independent", "measured", "error")
    frame["low"], frame["high"] = (
        frame["measured"] + sign * 2 * frame["error"] for sign in (-1, 1)
    )
    x = alt.X("samples:Q", title="samples m", scale=alt.Scale(zero=False))
    groups = {"color": colour("length:N", LENGTH)}
    long = frame.melt(
        id_vars=["samples", "length"],
        value_vars=["predicted", "independent"],
        var_name="formula",
        value_name="value",
    )
    long["formula"] = long["formula"].map(
        {"predicted": "given the relevant bits", "independent": "rivals independent"}
    )
    lines = (
        alt.Chart(long)
        .mark_line()
        .encode(
            x=x,
            y=alt.Y(
                "value:Q", title="probability of a unique support", scale=alt.Scale(zero=False)
            ),
            strokeDash=alt.StrokeDash("formula:N", title="formula", legend=STROKES),
            **groups,
        )
    )
    base = alt.Chart(frame)
    points = base.mark_point(filled=True, size=50).encode(
        x=x, y="measured:Q", tooltip=["length:N", "samples:Q", "measured:Q"], **groups
    )
    bars = error_bars(base, x, "low", "high", "probability of a unique support", **groups)
    return finish(
        (lines + bars + points).properties(width=WIDTH, height=HEIGHT),
        "When the data single out the support",
        "AND of three bits; points: simulated, two standard errors",
    )


def tightness_ledger(evidence: xr.Dataset) -> Any:
    """Bound over measured for every quantity of the ledger, at every point of the grid."""
    frame = table(evidence, "bound", "measured")
    frame["slack"] = frame["bound"] / frame["measured"]
    order = list(evidence["quantity"].values)
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x=alt.X("slack:Q", title="bound / measured", scale=alt.Scale(type="log")),
            y=alt.Y("quantity:N", title=None, sort=order, axis=alt.Axis(labelLimit=260)),
            color=colour("length:N", LENGTH),
            shape=alt.Shape("norm:N", title="norm"),
            yOffset="samples:N",
            tooltip=[
                "quantity:N",
                "length:N",
                "samples:N",
                "norm:N",
                alt.Tooltip("bound:Q", format=".4g"),
                alt.Tooltip("measured:Q", format=".4g"),
                alt.Tooltip("slack:Q", format=".4g"),
            ],
        )
    )
    worst = frame.groupby("quantity")["slack"].agg(["min", "max"]).loc[order].reset_index()
    worst["range"] = [
        legible(f"{a:.3g} to {b:.3g}") for a, b in zip(worst["min"], worst["max"], strict=True)
    ]
    text = (
        alt.Chart(worst)
        .mark_text(align="left", color="#555", fontSize=11)
        .encode(y=alt.Y("quantity:N", sort=order, axis=None), text="range:N")
    )
    one = (
        alt.Chart(pd.DataFrame({"x": [1.0]}))
        .mark_rule(color=THEORY, strokeDash=[5, 4])
        .encode(x="x:Q")
    )
    height = 34 * len(order)
    return finish(
        alt.hconcat(
            (one + points).properties(width=WIDTH, height=height),
            text.properties(
                width=120, height=height, title="range", view=alt.ViewBackground(stroke=None)
            ),
            spacing=8,
        ),
        "How loose each bound is",
        "1: attained; two rows a quantity where samples differ; a complexity capped at the trivial value 1 has that slack",
    )
