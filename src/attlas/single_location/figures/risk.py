"""Figures of the risk: zeta, closed forms against simulation."""

from typing import Any

import altair as alt
import numpy as np
import xarray as xr

from attlas.drawing import (
    HEIGHT,
    THEORY,
    WIDTH,
    agreement,
    colour,
    error_bars,
    finish,
    greek,
    table,
)


def zeta_curves(evidence: xr.Dataset) -> Any:
    theory = table(evidence, "predicted", "t", "s")
    points = table(evidence.sel(route="simulation"), "measured", "error", "t", "s", rows=400)
    points["low"], points["high"] = (
        points["measured"] - 2 * points["error"],
        points["measured"] + 2 * points["error"],
    )
    x, y = alt.X("t:Q", title="t"), alt.Y("predicted:Q", title="ζ(t, s)")
    hue = colour("s:N", "s")
    curves = alt.Chart(theory).mark_line(interpolate="monotone").encode(x=x, y=y, color=hue)
    base = alt.Chart(points)
    dots = base.mark_point(filled=True, size=28).encode(
        x=x, y="measured:Q", color=hue, tooltip=["t:Q", "s:Q", "measured:Q", "error:Q"]
    )
    chart = curves + error_bars(base, x, "low", "high", "ζ(t, s)", color=hue) + dots
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Mean square of a smoothed erf",
        "lines: Owen's T; points: simulation",
    )


def _route_curves(evidence: xr.Dataset, y: str) -> alt.LayerChart:
    frame = table(evidence, "predicted", "measured", "t")
    hue = colour("spread:N", "s")
    x = alt.X("t:Q", title="t")
    base = alt.Chart(frame)
    curves = base.mark_line(interpolate="monotone").encode(
        x=x, y=alt.Y("predicted:Q", title=y), color=hue
    )
    return curves + base.mark_point(filled=True, size=14).encode(x=x, y="measured:Q", color=hue)


def zeta_derivative_curves(evidence: xr.Dataset) -> Any:
    panels = [
        _route_curves(evidence.sel(order=order), name).properties(width=250, height=230)
        for order, name in ((1, "∂ζ/∂t"), (2, "∂²ζ/∂t²"), (3, "∂³ζ/∂t³"))
    ]
    return finish(
        alt.hconcat(*panels),
        "Derivatives of zeta",
        "lines: closed form; points: automatic differentiation",
    )


def heat_curves(evidence: xr.Dataset) -> Any:
    chart = _route_curves(evidence, "∂ζ/∂s").properties(width=WIDTH, height=HEIGHT)
    return finish(
        chart,
        "The heat equation of zeta",
        "lines: s ∂²ζ/∂t²; points: ∂ζ/∂s by automatic differentiation",
    )


def risk_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Closed-form risk against simulation", "dim", "d", "risk")


def symmetry_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Risk of a head and of its images", "symmetry", "image", "risk")


def gradient_agreement(evidence: xr.Dataset) -> Any:
    return agreement(
        greek(evidence, "overlap"),
        "Gradient of the risk",
        "overlap",
        "partial derivative in",
        "derivative",
    )


def quantile_agreement(evidence: xr.Dataset) -> Any:
    levels = np.linspace(0.005, 0.995, 67)
    both = evidence[["sample_a", "sample_b"]].isel(cell=-1).quantile(levels, "draw")
    frame = both.to_dataframe().reset_index()
    base = alt.Chart(frame).encode(
        x=alt.X("sample_a:Q", title="quantile, projections"),
        y=alt.Y("sample_b:Q", title="quantile, tokens"),
    )
    diagonal = (
        alt.Chart(frame)
        .mark_line(color=THEORY, strokeWidth=1)
        .encode(x="sample_a:Q", y="sample_a:Q")
    )
    dots = base.mark_point(filled=True, size=14).encode(color=colour("head:N", "head"))
    panels = (
        (diagonal + dots)
        .properties(width=220, height=180)
        .facet(facet=alt.Facet("statistic:N", title=None), columns=2)
    )
    return finish(
        panels.resolve_scale(x="independent", y="independent"),
        "Losses drawn from projections and from tokens",
        f"quantiles from 0.5 % to 99.5 %, d = {int(evidence['dim'].values[-1])}",
    )
