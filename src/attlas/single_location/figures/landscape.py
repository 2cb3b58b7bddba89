"""Figures of the landscape: fixed points, stability, the swapped point, where descent ends."""

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
    agreement,
    colour,
    finish,
    greek,
    rule_at,
    table,
)


def _curves(
    frame: pd.DataFrame, x: str, y: str, by: str, titles: tuple[str, str, str], log: bool = True
) -> alt.Chart:
    scale = alt.Scale(type="log") if log else alt.Scale()
    return (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=18))
        .encode(
            x=alt.X(f"{x}:Q", title=titles[0], scale=scale, axis=alt.Axis(format="~g")),
            y=alt.Y(f"{y}:Q", title=titles[1]),
            color=colour(f"{by}:N", titles[2]),
        )
    )


def swapped_positions(evidence: xr.Dataset) -> Any:
    return agreement(
        greek(evidence, "overlap"),
        "The swapped attractor: formula and end of descent",
        "overlap",
        "overlap",
        "overlap",
    )


def swapped_spectrum(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "lower", "sharpness")
    chart = _curves(
        frame, "sharpness", "lower", "dim", ("λ", "largest real part of the spectrum", "d")
    )
    return finish(
        (chart + rule_at(0, "above this it would be unstable")).properties(
            width=WIDTH, height=HEIGHT
        ),
        "The swapped point is a minimum",
    )


def swapped_risks(evidence: xr.Dataset) -> Any:
    frame = evidence["curve"].isel(cell=[0, -1]).to_dataframe().reset_index()
    x = alt.X("sharpness:Q", title="λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    y = alt.Y("curve:Q", title="risk", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    lines = (
        alt.Chart(frame)
        .mark_line()
        .encode(
            x=x,
            y=y,
            color=colour("solution:N", "solution"),
            strokeDash=alt.StrokeDash("dim:N", title="d"),
        )
    )
    places = table(evidence, "lower", "upper")
    dots = (
        alt.Chart(places)
        .mark_rule(color=THEORY, strokeWidth=2)
        .encode(x=alt.X("lam:Q"), y=alt.Y("lower:Q"), y2="upper:Q")
    )
    return finish(
        (lines + dots).properties(width=WIDTH, height=HEIGHT),
        "Oracle and swapped solution",
        "bars: where the claim compares them",
    )


def failure_shares(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "lower", "upper", "error")
    frame["pair"] = [
        f"λ={r.than_lam:g}, d={r.than_dim} → λ={r.lam:g}, d={r.dim}" for r in frame.itertuples()
    ]
    y = alt.Y("pair:N", title=None, sort=None, axis=alt.Axis(labelLimit=240))
    base = alt.Chart(frame)
    line = base.mark_rule(strokeWidth=3, color="#ccc").encode(
        y=y, x=alt.X("lower:Q", title="share of starts on the swapped branch"), x2="upper:Q"
    )
    ends = base.transform_fold(["upper", "lower"], as_=["side", "share"]).transform_calculate(
        end="datum.side == 'upper' ? 'left of the arrow' : 'right of it'"
    )
    dots = ends.mark_point(filled=True, size=70).encode(
        y=y, x="share:Q", color=colour("end:N", None)
    )
    return finish(
        (line + dots).properties(width=WIDTH, height=150),
        "Failures fall with sharpness and with dimension",
    )


def basin_shares(evidence: xr.Dataset) -> Any:
    names = {
        "measured": "starts on the sphere",
        "predicted": "Gaussian overlaps",
        "leading_order": "leading order",
    }
    frame = table(evidence, *names).rename(columns=names)
    base = alt.Chart(frame).transform_fold(list(names.values()), as_=["what", "share"])
    chart = base.mark_point(filled=True, size=70).encode(
        x=alt.X("lam:N", title="λ", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("what:N", sort=list(names.values())),
        y=alt.Y("share:Q", title="share of failing starts", scale=alt.Scale(domain=[0, 0.6])),
        color=colour("what:N", None, sort=list(names.values())),
    )
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Failure is the measure of a basin",
        "simulated on the sphere, predicted from Gaussian overlaps; the leading-order law of the race is off",
    )


def basin_diagram(evidence: xr.Dataset) -> Any:
    ends = {
        "oracle": "oracle",
        "swapped": "swapped",
        "sliding": "on its way",
        "neither": "none of these",
    }
    left = ~(evidence["oracle"] | evidence["swapped"])
    rest = {"sliding": left & evidence["sliding"], "neither": left & ~evidence["sliding"]}
    evidence = evidence.assign(rest)
    shares = evidence[list(ends)].mean("repeat").rename(ends)
    frame = (
        shares.to_dataframe()
        .reset_index()
        .melt(["dim", "lam"], list(ends.values()), "end", "share")
    )
    bars = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("lam:O", title="λ", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("share:Q", title="share of starts", scale=alt.Scale(domain=[0, 1])),
            color=colour("end:N", "ends", sort=list(ends.values())),
            column=alt.Column("dim:N", title="d"),
        )
        .properties(width=max(90, 26 * frame["lam"].nunique()), height=170)
    )
    cell = int(np.argmin(abs(shares["oracle"] - 0.5).values))
    one = evidence.isel(cell=cell)
    starts = one[["nu_start", "eta_start", *ends]].to_dataframe().reset_index()
    starts["end"] = starts[list(ends)].idxmax(axis=1).map(ends)
    log = alt.Scale(type="log")
    dots = (
        alt.Chart(starts[["nu_start", "eta_start", "end"]].iloc[:400].round(6))
        .mark_point(filled=True, size=22)
        .encode(
            x=alt.X("nu_start:Q", title="|ν| at the start", scale=log, axis=alt.Axis(format="~g")),
            y=alt.Y("eta_start:Q", title="|η| at the start", scale=log, axis=alt.Axis(format="~g")),
            color=colour("end:N", "ends", sort=list(ends.values())),
        )
    )
    eta = np.geomspace(float(starts["eta_start"].min()), float(starts["eta_start"].max()), 40)
    race = pd.DataFrame({"eta_start": eta, "nu_start": eta ** float(one["race"])})
    line = (
        alt.Chart(race)
        .mark_line(color=THEORY, strokeDash=[5, 4], clip=True)
        .encode(x="nu_start:Q", y="eta_start:Q")
    )
    below = (line + dots).properties(
        width=360,
        height=240,
        title=alt.TitleParams(
            f"d = {int(one['dim'])}, λ = {float(one['lam']):g}: which starts end where",
            fontSize=12,
            subtitle="dashed: |ν| = |η|ʳ, the race from the origin to leading order",
        ),
    )
    return finish(alt.vconcat(bars, below), "Where descent at a constant sharpness ends")
