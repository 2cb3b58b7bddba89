"""Figures of gates and heads: which can do what, and what training makes of them."""

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
    log_floor,
    rule_at,
    table,
)


def quadrature_errors(evidence: xr.Dataset) -> Any:
    evidence = greek(evidence, "quantity")
    scale = np.maximum(1, abs(evidence["predicted"]))
    routes = {"measured": "graded panels", "hermite": "64 Gauss-Hermite nodes"}
    worst = {
        words: (abs(evidence[name] - evidence["predicted"]) / scale).max("point")
        for name, words in routes.items()
    }
    frame = (
        log_floor(xr.Dataset(worst).to_dataarray("route", "off"), 1e-16)
        .to_dataframe("off")
        .reset_index()
    )
    chart = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=20))
        .encode(
            x=alt.X("lam:Q", title="λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")),
            y=alt.Y(
                "off:Q",
                title="largest difference from the closed form",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format=".0e", tickCount=8),
            ),
            color=colour("quantity:N", None),
            strokeDash=alt.StrokeDash("route:N", title=None),
        )
    )
    return finish(
        (chart + rule_at(1e-8, "what the rule allows")).properties(width=WIDTH, height=HEIGHT),
        "Quadrature of the risk and its derivatives",
        "relative to max(1, closed form); differences below 10⁻¹⁶ are drawn there",
    )


def gate_agreement(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence, "Risk of other gates against simulation", "activation", "gate", "risk"
    )


def swap_agreement(evidence: xr.Dataset) -> Any:
    pairs = {"linear attention": ("predicted", "measured"), "erf attention": ("erf", "erf_swapped")}
    frames = [
        table(evidence, *names, rows=400)
        .rename(columns=dict(zip(names, ("here", "swapped"), strict=True)))
        .assign(head=head)
        for head, names in pairs.items()
    ]
    frame = pd.concat(frames)[["here", "swapped", "head"]].round(5)
    log = alt.Scale(type="log")
    base = alt.Chart(frame)
    line = base.mark_line(color=THEORY, strokeWidth=1).encode(
        x=alt.X("here:Q", scale=log), y=alt.Y("here:Q", scale=log)
    )
    dots = base.mark_point(filled=True, size=20, opacity=0.8).encode(
        x=alt.X("here:Q", title="risk", scale=log, axis=alt.Axis(format="~g")),
        y=alt.Y(
            "swapped:Q", title="risk with k and v exchanged", scale=log, axis=alt.Axis(format="~g")
        ),
        color=colour("head:N", None),
    )
    return finish(
        (line + dots).properties(width=WIDTH, height=HEIGHT), "Exchanging the two vectors of a head"
    )


def best_gate_shape(evidence: xr.Dataset) -> Any:
    frame = evidence[["score", "height"]].to_dataframe().reset_index()
    frame["task"] = [f"d={row.dim}, L={row.length}" for row in frame.itertuples()]
    frame = frame[["score", "height", "curve", "task"]].round(4)
    chart = (
        alt.Chart(frame)
        .mark_line()
        .encode(
            x=alt.X("score:Q", title="⟨x, k*⟩"),
            y=alt.Y("height:Q", title="height"),
            color=colour("curve:N", None),
            column=alt.Column("task:N", title=None, sort=None),
        )
        .properties(width=180, height=170)
        .resolve_scale(x="independent")
    )
    return finish(
        chart,
        "The best gate",
        "the laws of the score, each scaled to height 1, and the sigmoid between them",
    )


def _excess_lines(frame: pd.DataFrame, by: str, x: alt.X, floor: float) -> alt.LayerChart:
    frame = frame.assign(excess=frame["excess"].clip(lower=floor))
    y = alt.Y(
        "excess:Q",
        title="excess risk",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format=".0e", tickCount=8),
    )
    order = list(dict.fromkeys(frame[by]))
    base = alt.Chart(frame).encode(x=x, y=y, color=colour(f"{by}:N", None, sort=order))
    return base.mark_line() + base.mark_point(filled=True, size=30)


def gate_order(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "excess", "lam", "threshold").replace(
        {"gate": {"identity": "linear attention"}}
    )
    x = alt.X("dim:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    return finish(
        _excess_lines(frame, "gate", x, 0.0).properties(width=WIDTH, height=HEIGHT),
        "Six gates at their best",
        "k = k*, v = v*",
    )


def heads_order(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "excess")
    floor = float(frame["excess"].min()) / 10
    lengths, dims = frame["length"].mode()[0], frame["dim"].mode()[0]
    against_d = _excess_lines(
        frame[frame["length"] == lengths].sort_values(["dim"], kind="stable"),
        "head",
        alt.X(
            "dim:Q",
            title=f"d, at L = {lengths}",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format="~g"),
        ),
        floor,
    )
    against_l = _excess_lines(
        frame[frame["dim"] == dims].sort_values(["length"], kind="stable"),
        "head",
        alt.X(
            "length:Q",
            title=f"L, at d = {dims}",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format="~g"),
        ),
        floor,
    )
    return finish(
        alt.hconcat(
            against_d.properties(width=280, height=HEIGHT),
            against_l.properties(width=280, height=HEIGHT),
        ),
        "What each head can do",
        "each at its best, with k = k* and v = v*",
    )


def trained_paths(evidence: xr.Dataset) -> Any:
    one = evidence.isel(cell=0)
    paths = (
        one[["kappa", "nu"]].to_dataframe().reset_index()[["run", "step", "kappa", "nu"]].round(4)
    )
    square = alt.Scale(domain=[-1, 1])
    lines = (
        alt.Chart(paths)
        .mark_line(opacity=0.7, strokeWidth=1.3)
        .encode(
            x=alt.X("kappa:Q", title="κ", scale=square),
            y=alt.Y("nu:Q", title="ν", scale=square),
            detail="run:N",
            order="step:Q",
            color=alt.value(PALETTE[0]),
        )
    )
    oracle = alt.Chart(pd.DataFrame({"kappa": [1], "nu": [1]})).mark_point(
        shape="cross", size=90, color=THEORY
    )
    bands = one["excess"].to_dataset("band").to_dataframe().reset_index()
    base = alt.Chart(bands).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4, format="~s"))
    )
    y = alt.Y(
        "low:Q",
        title="excess risk",
        scale=alt.Scale(type="log", clamp=True),
        axis=alt.Axis(format="~g"),
    )
    risk = base.mark_area(opacity=0.25).encode(y=y, y2="high:Q") + base.mark_line().encode(
        y="mean:Q"
    )
    return finish(
        alt.hconcat(
            (lines + oracle.encode(x="kappa:Q", y="nu:Q")).properties(width=290, height=HEIGHT),
            risk.properties(width=290, height=HEIGHT),
        ),
        "Training the softmax head",
        f"left: {one.sizes['run']} runs, first the value (ν) and then the place (κ); right: mean and 95 % band of all",
    )


def trained_risks(evidence: xr.Dataset) -> Any:
    frame = evidence["excess"].isel(cell=0).to_dataset("band").to_dataframe().reset_index()
    frame[["low", "mean", "high"]] = frame[["low", "mean", "high"]].clip(lower=1e-4)
    base = alt.Chart(frame).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=5, format="~s")),
        color=colour("head:N", None),
    )
    y = alt.Y("low:Q", title="excess risk", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    chart = base.mark_area(opacity=0.2).encode(y=y, y2="high:Q") + base.mark_line().encode(
        y="mean:Q"
    )
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Three heads trained alike",
        "mean and 95 % band of the runs",
    )
