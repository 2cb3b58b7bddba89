"""Figures of how attention finds the conditional mean."""

from typing import Any

import altair as alt
import numpy as np
import xarray as xr

from attlas.drawing import (
    HEIGHT,
    THEORY,
    WIDTH,
    colour,
    error_bars,
    finish,
    log_floor,
    table,
)
from attlas.latent_posterior.figures.shared import log_axis

FLOOR = 1e-16
"""Where what is only rounding stands on a logarithmic axis."""


def _laws(evidence: xr.Dataset, name: str, y: str, title: str, subtitle: str) -> Any:
    draws = evidence[name]
    error = draws.std("draw", ddof=1) / np.sqrt(draws.sizes["draw"])
    mean = draws.mean("draw")
    frame = table(
        evidence.assign(value=mean, low=mean - 2 * error, high=mean + 2 * error),
        "value",
        "low",
        "high",
    )
    x = alt.X("length:Q", title="tokens L", scale=alt.Scale(type="log", nice=False, padding=12))
    base, key = alt.Chart(frame), colour("law:N", None, sort=None)
    dots = base.mark_line(point=alt.OverlayMarkDef(filled=True, size=45)).encode(
        x=x,
        y=alt.Y("value:Q", title=y, scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")),
        color=key,
    )
    chart = error_bars(base, x, "low", "high", y, color=key) + dots
    if name == "crps":
        theory = alt.Chart(table(evidence, "formula")).mark_line(color=THEORY, strokeDash=[5, 4])
        chart = theory.encode(x=x, y="formula:Q") + chart
    return finish(chart.properties(width=WIDTH, height=HEIGHT), title, subtitle)


def laws(evidence: xr.Dataset) -> Any:
    return _laws(
        evidence,
        "crps",
        "excess CRPS",
        "Attention as a forecast of a law",
        "dashed: the formula for softmax",
    )


def law_distances(evidence: xr.Dataset) -> Any:
    return _laws(
        evidence,
        "apart",
        "L1 distance to the true law",
        "Attention as a conditional law",
        "a letter of four, keys on the sphere of three dimensions",
    )


def broken_laws(evidence: xr.Dataset) -> Any:
    worst = log_floor(evidence["broken"].max("draw"), FLOOR)
    dots = (
        alt.Chart(table(evidence.assign(value=worst), "value"))
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("law:N", title=None, sort=None, axis=alt.Axis(labelAngle=0)),
            y=log_axis("value:Q", "worst negative mass, or sum off 1"),
            color=colour("length:N", "tokens L"),
        )
    )
    return finish(
        dots.properties(width=WIDTH, height=HEIGHT),
        "Which outputs are laws",
        "the worst over draws and queries",
    )
