"""Figures of how attention finds the conditional mean."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.drawing import (
    HEIGHT,
    THEORY,
    WIDTH,
    agreement,
    colour,
    error_bars,
    finish,
    log_floor,
    table,
)
from attlas.latent_posterior.figures.shared import log_axis
from attlas.latent_posterior.rates import funk_hecke, mercer

FLOOR = 1e-16
"""Where what is only rounding stands on a logarithmic axis."""


def _with_roots(evidence: xr.Dataset) -> pd.DataFrame:
    """Errors of every mechanism with intervals of two standard errors, and the formula's."""
    squares = evidence["square"]
    mean = squares.mean("draw")
    error = squares.std("draw", ddof=1) / np.sqrt(squares.sizes["draw"])
    low, high = (np.sqrt((mean + sign * 2 * error).clip(min=1e-300)) for sign in (-1, 1))
    frame = table(
        evidence.assign(rmse=np.sqrt(mean), low=low, high=high), "rmse", "low", "high", "formula"
    )
    return frame.assign(panel=[f"s = {s}" for s in frame["s"]])


def _curves(
    frame: pd.DataFrame, title: str, subtitle: str, y: str = "root mean square error"
) -> Any:
    x = alt.X(
        "length:Q",
        title="tokens L",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(format="~s", tickCount=4),
    )
    base, key = alt.Chart(frame), colour("mechanism:N", None, sort=None)
    axis = alt.Axis(format="~g", tickCount=5)
    line = base.mark_line(strokeWidth=1.5).encode(
        x=x, y=alt.Y("formula:Q", title=y, scale=alt.Scale(type="log"), axis=axis), color=key
    )
    bars = error_bars(base, x, "low", "high", y, color=key)
    dots = base.mark_point(filled=True, size=36).encode(
        x=x,
        y="rmse:Q",
        color=key,
        tooltip=["mechanism:N", "length:Q", alt.Tooltip("rmse:Q", format=".4g")],
    )
    panels = (
        (line + bars + dots)
        .properties(width=200, height=260)
        .facet(column=alt.Column("panel:N", title=None))
    )
    return finish(panels, title, subtitle)


def errors(evidence: xr.Dataset) -> Any:
    return _curves(
        _with_roots(evidence),
        "Attention and the conditional mean",
        "points: simulated; lines: the formulas; uniform keys on a sphere of dimension s",
    )


def apart(evidence: xr.Dataset) -> Any:
    return _curves(
        _with_roots(evidence),
        "Softmax and CME attention agree",
        "their difference and the errors of both; lines: the formulas",
    )


def head_errors(evidence: xr.Dataset) -> Any:
    return _curves(
        _with_roots(evidence),
        "Softmax attention on long contexts",
        "points: simulated; lines: the formula; s is the sphere's dimension",
    )


def proof_schedule(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "measured", "error", "bound")
    frame["panel"] = [f"s = {s}" for s in frame["s"]]
    frame["low"], frame["high"] = (
        frame["measured"] - 2 * frame["error"],
        frame["measured"] + 2 * frame["error"],
    )
    x = alt.X(
        "length:Q",
        title="tokens L",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(format="~s", tickCount=4),
    )
    base, key = alt.Chart(frame), colour("panel:N", None)
    line = base.mark_line(strokeDash=[5, 4]).encode(
        x=x, y=log_axis("bound:Q", "root mean square error"), color=key
    )
    dots = base.mark_line(point=alt.OverlayMarkDef(filled=True, size=45)).encode(
        x=x, y="measured:Q", color=key
    )
    return finish(
        (
            line + error_bars(base, x, "low", "high", "root mean square error", color=key) + dots
        ).properties(width=WIDTH, height=HEIGHT),
        "The ridge of the proof",
        "dashed: the bound, which falls like L⁻⁰·²⁵",
    )


def exponents(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "local").rename(columns={"every": "mechanism"})
    frame["panel"] = [f"s = {s}" for s in frame["s"]]
    frame["L"] = 10.0 ** frame["place"]
    goal = table(evidence, "predicted")
    goal["panel"] = [f"s = {s}" for s in goal["s"]]
    key = colour("mechanism:N", None, sort=None)
    line = (
        alt.Chart(frame)
        .mark_line()
        .encode(
            x=alt.X(
                "L:Q",
                title="tokens L",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format="~e", tickCount=4),
            ),
            y=alt.Y("local:Q", title="local exponent of the error"),
            color=key,
        )
    )
    level = alt.Chart(goal).mark_rule(strokeDash=[5, 4]).encode(y="predicted:Q", color=key)
    merged = pd.concat([frame, goal])  # one table, because a facet has one
    layers = (line + level).properties(width=200, height=260, data=merged)
    for layer in layers.layer:
        layer.data = alt.Undefined
    return finish(
        layers.facet(column=alt.Column("panel:N", title=None)),
        "Rates are reached late",
        "lines: slopes of the formulas; dashed: what they tend to",
    )


def spectrum(evidence: xr.Dataset) -> pd.DataFrame:
    """What each mechanism keeps of a harmonic of each degree."""
    dim, fixed = (evidence[name].values[0].item() for name in ("dim", "fixed"))
    length = [64, 1024, 16_384]
    degrees = np.arange(13)
    mu = mercer(degrees, 0.5, dim)
    rows = [
        {"degree": d, "kept": k, "mechanism": f"CME, L = {n:,}"}
        for n in length
        for d, k in zip(degrees, mu / (mu + 0.25 / n), strict=True)
    ]
    rows += [
        {"degree": d, "kept": k, "mechanism": f"softmax, γ = {fixed:g}"}
        for d, k in zip(degrees, funk_hecke(degrees, fixed, dim), strict=True)
    ]
    return pd.DataFrame(rows).assign(
        degree=lambda f: f["degree"].astype(int), kept=lambda f: f["kept"].astype(float)
    )


def floor_and_spectrum(evidence: xr.Dataset) -> Any:
    lines = (
        alt.Chart(spectrum(evidence))
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=25))
        .encode(
            x=alt.X("degree:Q", title="degree l", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("kept:Q", title="share of it that is kept"),
            color=colour("mechanism:N", None, sort=None),
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    frame = table(evidence, "predicted", "measured", "error")
    frame["panel"] = [f"s = {s}" for s in frame["s"]]
    frame["low"], frame["high"] = (
        frame["measured"] - 2 * frame["error"],
        frame["measured"] + 2 * frame["error"],
    )
    x = alt.X("panel:N", title=None, axis=alt.Axis(labelAngle=0))
    base = alt.Chart(frame)
    ticks = base.mark_tick(color=THEORY, thickness=2, width=40).encode(
        x=x, y=alt.Y("predicted:Q", title="error that stays")
    )
    dots = base.mark_point(filled=True, size=50).encode(x=x, y="measured:Q")
    floors = (ticks + error_bars(base, x, "low", "high", "error that stays") + dots).properties(
        width=160, height=HEIGHT
    )
    return finish(
        alt.hconcat(lines, floors),
        "What attention keeps of a harmonic",
        "softmax has a fixed cut, CME attention's moves with the length; right: simulated (points) and Funk-Hecke's floor (bars)",
    )


def constants(evidence: xr.Dataset) -> Any:
    single = evidence["measured"].sel(number="residual", drop=True)
    parts = [
        table(evidence.assign(value=log_floor(single, FLOOR)), "value").assign(
            case=lambda f: [f"degree {d}" for d in f["degree"]]
        ),
        table(evidence.assign(value=log_floor(evidence["other"], FLOOR)), "value"),
    ]
    frame = pd.concat(parts)[["case", "dim", "value"]]
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("case:N", title="conditional mean", sort=None, axis=alt.Axis(labelAngle=-20)),
            y=log_axis("value:Q", "share left by the best constant"),
            color=colour("dim:N", "dimension p"),
        )
    )
    return finish(
        dots.properties(width=WIDTH, height=HEIGHT),
        "One constant, for one degree",
        "between the limits of CME and softmax attention at a fixed temperature",
    )


def value_constants(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence,
        "The constant of a sphere of values",
        by="dim",
        by_title="dimension d",
        what="constant",
    )
