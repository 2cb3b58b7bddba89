"""Figures of the landscape: fixed points, stability, the swapped point, where descent ends."""

from typing import Any

import altair as alt
import xarray as xr

from attlas.drawing import (
    HEIGHT,
    PALETTE,
    THEORY,
    WIDTH,
    colour,
    finish,
    table,
)


def corner_rates(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured")
    x = alt.X("lam:Q", title="λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    y = alt.Y(
        "predicted:Q",
        title="rate of 1 − κ",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format=".0e"),
    )
    base = alt.Chart(frame)
    chart = base.mark_line(color=THEORY).encode(x=x, y=y) + base.mark_point(
        filled=True, size=45, color=PALETTE[0]
    ).encode(x=x, y="measured:Q")
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "The last stretch slows down",
        "line: closed form; points: quadrature of the definition",
    )


def flips(evidence: xr.Dataset) -> Any:
    frame = evidence["rho_path"].isel(cell=0).to_dataframe().reset_index()
    chart = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=14))
        .encode(
            x=alt.X("step:Q", title="step", scale=alt.Scale(zero=False)),
            y=alt.Y("rho_path:Q", title="ρ = ⟨k, v⟩"),
            color=colour("run:N", "run"),
        )
    )
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Two states in turn",
        "the last sixty steps of four runs; on the manifold ρ = 0",
    )


def flow_limit(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "x", "measured")
    frame["first order"] = frame["measured"].iloc[-1] * frame["x"] / frame["x"].iloc[-1]
    x = alt.X("x:Q", title="step size α", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e"))
    y = alt.Y(
        "first order:Q",
        title="distance to the flow",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format=".0e"),
    )
    base = alt.Chart(frame)
    chart = base.mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y=y) + base.mark_point(
        filled=True, size=45, color=PALETTE[0]
    ).encode(x=x, y="measured:Q")
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Descent follows the flow",
        "dashed: proportional to α",
    )
