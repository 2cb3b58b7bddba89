"""Figures of sample sizes: how many examples each learner needs, against the length."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.drawing import (
    HEIGHT,
    PALETTE,
    THEORY,
    WIDTH,
    colour,
    error_bars,
    finish,
    rule_at,
    table,
)

LENGTH = alt.X("length:Q", title="length T", scale=alt.Scale(type="log", nice=False, padding=12))
ASKED = "samples for 80 % of trials"


def threshold_table(evidence: xr.Dataset) -> pd.DataFrame:
    """One row a length and learner: its threshold with two standard errors."""
    frame = table(evidence, "log_threshold", "log_error", "censored")
    frame["threshold"] = np.exp(frame["log_threshold"])
    for name, sign in (("low", -2), ("high", 2)):
        frame[name] = np.exp(frame["log_threshold"] + sign * frame["log_error"])
    frame["kind"] = np.where(frame["censored"].astype(bool), "lower limit", "threshold")
    return frame


def curves(frame: pd.DataFrame, y: alt.Y) -> alt.LayerChart:
    group = {"color": colour("learner:N", None, sort=list(dict.fromkeys(frame["learner"])))}
    base = alt.Chart(frame)
    points = base.mark_point(filled=True, size=55).encode(
        x=LENGTH,
        y=y,
        shape=alt.Shape(
            "kind:N",
            legend=None,
            scale=alt.Scale(domain=["threshold", "lower limit"], range=["circle", "triangle-up"]),
        ),
        tooltip=[
            "learner:N",
            "length:Q",
            "kind:N",
            *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ("threshold", "low", "high")),
        ],
        **group,
    )
    return (
        error_bars(base, LENGTH, "low", "high", ASKED, **group)
        + base.mark_line().encode(x=LENGTH, y=y, **group)
        + points
    )


def success(evidence: xr.Dataset) -> Any:
    """The share of trials that are solved against the number of samples, a line for each length."""
    frame = table(evidence.isel(learner=0), "share", "samples").dropna(subset="share")
    lines = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "samples:Q", title="samples m", scale=alt.Scale(type="log", nice=False, padding=12)
            ),
            y=alt.Y("share:Q", title="share of trials solved", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("length:O", title="length T", scale=alt.Scale(scheme="viridis")),
            tooltip=["length:O", "samples:Q", alt.Tooltip("share:Q", format=".3f")],
        )
    )
    return (lines + rule_at(0.8, "80 %")).properties(width=300, height=HEIGHT)


def floor_line(evidence: xr.Dataset) -> alt.LayerChart:
    frame = table(evidence, "floor")
    line = alt.Chart(frame).mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=LENGTH, y="floor:Q")
    text = alt.Chart(frame.tail(1)).mark_text(
        align="right", dy=14, color=THEORY, fontSize=11, text="statistical floor"
    )
    return line + text.encode(x=LENGTH, y="floor:Q")


def threshold_curve(evidence: xr.Dataset) -> Any:
    y = alt.Y("threshold:Q", title=ASKED)
    left = curves(threshold_table(evidence), y) + floor_line(evidence)
    slope, error = float(evidence["measured"]), float(evidence["error"])
    most = np.nanmax(evidence["uniform"].values, initial=-1)
    uniform = (
        ""
        if most < 0
        else f"uniform attention solves {f'up to {most:.0%}' if most else 'none'} with as many samples; "
    )
    power = f"T to the power {slope:.2f} ± {2 * error:.2f}; " if np.isfinite(slope) else ""
    words = f"{task_in_words(evidence)}: {power}{uniform}bars: two standard errors; triangles: lower limits"
    return finish(
        alt.hconcat(left.properties(width=WIDTH, height=HEIGHT), success(evidence)).resolve_scale(
            color="independent"
        ),
        "Samples that training needs, against the length",
        words,
    )


def task_in_words(evidence: xr.Dataset) -> str:
    first = evidence.isel(cell=0)
    return f"{first['function'].item()} of {first['sparsity'].item()} bits, {first['trials'].item()} trials a point"


def above_floor(evidence: xr.Dataset) -> Any:
    frame = threshold_table(evidence.isel(learner=[0]))
    chart = curves(
        frame, alt.Y("threshold:Q", title=ASKED, scale=alt.Scale(zero=True))
    ) + floor_line(evidence)
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Training and the statistical floor",
        f"{task_in_words(evidence)}; bars: two standard errors",
    )


def laws_compared(evidence: xr.Dataset) -> Any:
    frame = threshold_table(evidence.isel(learner=[0]))
    fits = table(evidence, "log_curve")
    fits["threshold"] = np.exp(fits["log_curve"])
    fits["law"] = fits["law"].map({"logarithm": "a + b ln T", "power": "c Tᵅ"})
    y = alt.Y("threshold:Q", title=ASKED)
    lines = (
        alt.Chart(fits)
        .mark_line()
        .encode(
            x=LENGTH, y=y, strokeDash=alt.StrokeDash("law:N", title=None), color=alt.value(THEORY)
        )
    )
    behind, error = float(evidence["measured"]), float(evidence["error"])
    better = "behind" if behind > 0 else "ahead of"
    return finish(
        (lines + curves(frame, y)).properties(width=WIDTH, height=HEIGHT),
        "A logarithm or a power of the length",
        f"{task_in_words(evidence)}: the logarithm's log-likelihood is {abs(behind):.2g} {better} the power's (standard error {error:.2g})",
    )


def rivals(evidence: xr.Dataset) -> Any:
    y = alt.Y("threshold:Q", title=ASKED, scale=alt.Scale(type="log"))
    slopes = zip(
        evidence["learner"].values,
        evidence["exponent"].values,
        evidence["exponent_error"].values,
        strict=True,
    )
    words = ", ".join(f"{name} {slope:.2f} ± {2 * error:.2f}" for name, slope, error in slopes)
    return finish(
        curves(threshold_table(evidence), y).properties(width=WIDTH, height=HEIGHT),
        "A network without attention pays for the length",
        f"to 99 % of validation; exponents: {words}; triangles: lower limits",
    )


def normalisers(evidence: xr.Dataset) -> Any:
    shares = evidence["solved"].astype(float)
    frame = table(xr.Dataset({"share": shares.mean("repeat")}), "share")
    recipes = list(evidence["recipe"].values)
    lines = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=60))
        .encode(
            x=alt.X("samples:Q", title="samples m", scale=alt.Scale(zero=False)),
            y=alt.Y("share:Q", title="share of trials solved", scale=alt.Scale(domain=[0, 1])),
            color=colour("recipe:N", None, sort=recipes),
            tooltip=["recipe:N", "samples:Q", alt.Tooltip("share:Q", format=".3f")],
        )
    )
    leads = table(evidence.isel(cell=[0]), "lead")
    ticks = (
        alt.Chart(leads)
        .mark_tick(thickness=1.5, opacity=0.6)
        .encode(
            x=alt.X(
                "lead:Q",
                title="relevant over irrelevant movement, 25 steps",
                scale=alt.Scale(type="log"),
            ),
            y=alt.Y("recipe:N", title=None, sort=recipes),
            color=alt.Color("recipe:N", legend=None, sort=recipes, scale=alt.Scale(range=PALETTE)),
        )
    )
    return finish(
        alt.hconcat(
            lines.properties(width=340, height=HEIGHT), ticks.properties(width=300, height=HEIGHT)
        ),
        "One normaliser for the position table",
        f"T = {int(evidence['length'].values.flat[0])}, the same training sets; a tick is a trial",
    )
