"""Figures of attention that infers."""

from typing import Any

import altair as alt
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
    log_floor,
    table,
)
from attlas.latent_posterior.figures.shared import against, log_axis

FLOOR = 1e-16
"""Where what is only rounding stands on a logarithmic axis."""


def routes(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence, "CME attention is the posterior mean", by="by", by_title="route", what="mean"
    )


def variances(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence, "The predictive variance", by="by", by_title="route", what="variance"
    )


def smoother(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence,
        "Softmax attention is a local average",
        by="dim",
        by_title="dimension p",
        what="output",
    )


def kernels(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence, "Gaussian and exponential kernel", by="dim", by_title="dimension p", what="output"
    )


def masked(evidence: xr.Dataset) -> Any:
    return against(
        evidence,
        "Padded tokens leave no trace",
        "without the padded tokens",
        {"measured": "masked", "blanked": "values set to 0"},
        "padding",
    )


def linear_limit(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "x", "measured", "normalised").melt(
        ["length", "x"], ["measured", "normalised"], "name"
    )
    frame["limit"] = frame["name"].map(
        {"measured": "the sum, linear attention", "normalised": "the mean"}
    )
    x = alt.X(
        "x:Q", title="ridge λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~e", tickCount=6)
    )
    dots = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=40))
        .encode(
            x=x,
            y=log_axis("value:Q", "relative distance of λ CME to it"),
            color=colour("limit:N", None),
            strokeDash=alt.StrokeDash(
                "length:N",
                title="tokens L",
                legend=alt.Legend(
                    symbolType="stroke", symbolSize=300, symbolFillColor="transparent"
                ),
            ),
        )
    )
    return finish(
        dots.properties(width=WIDTH, height=HEIGHT),
        "A large ridge leaves linear attention",
        "the distance falls like 1/λ",
    )


def probes(evidence: xr.Dataset) -> Any:
    frame = table(evidence.assign(value=log_floor(evidence["measured"], FLOOR)), "value")
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=36, opacity=0.6)
        .encode(
            x=alt.X("probes:Q", title="probes H", scale=alt.Scale(zero=False)),
            y=log_axis("value:Q", "relative distance to the posterior mean"),
            color=alt.value(PALETTE[0]),
        )
    )
    threshold = (
        alt.Chart(pd.DataFrame({"D": [9]}))
        .mark_rule(color=THEORY, strokeDash=[5, 4])
        .encode(x="D:Q")
    )
    return finish(
        (dots + threshold).properties(width=WIDTH, height=HEIGHT),
        "The posterior mean, read by probes",
        "a latent of nine dimensions: dashed; each point is a context with probes of its own",
    )


def output_norms(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "measured", "bound")
    frame["ridge"] = "λ = " + frame["ridge"]
    x = alt.X("length:Q", title="tokens L", scale=alt.Scale(type="log", nice=False, padding=12))
    base = alt.Chart(frame)
    dots = base.mark_line(point=alt.OverlayMarkDef(filled=True, size=45)).encode(
        x=x,
        y=log_axis("measured:Q", "largest sum of |weights|"),
        color=colour("support:N", "keys on"),
    )
    line = base.mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y="bound:Q")
    return finish(
        (line + dots)
        .properties(width=190, height=150)
        .facet(alt.Facet("ridge:N", title=None), columns=2),
        "How far signed weights reach",
        "dashed: the bound, attained by equal keys at λ = L",
    )


def clipped(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "bound", "measured", rows=800)
    span = [float(frame["bound"].min()), float(frame["bound"].max())]
    line = (
        alt.Chart(pd.DataFrame({"x": span}))
        .mark_line(color=THEORY, strokeWidth=1.2)
        .encode(x="x:Q", y="x:Q")
    )
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=24, opacity=0.5)
        .encode(
            x=alt.X("bound:Q", title="error of the output"),
            y=alt.Y("measured:Q", title="error of the clipped output"),
            color=colour("length:N", "tokens L"),
        )
    )
    return finish(
        (line + dots).properties(width=WIDTH, height=HEIGHT),
        "Clipping never adds error",
        "keys on half of the sphere, queries on all of it; line: nothing clipped",
    )


def solvers(evidence: xr.Dataset) -> Any:
    off = abs(evidence["answer"] - evidence["exact"]).max("query")
    frame = table(evidence.assign(value=log_floor(off, FLOOR)), "value")
    frame["tokens"] = frame["length"].map(lambda n: f"{n:,}")
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("way:N", title=None, sort=None, axis=alt.Axis(labelAngle=-25)),
            y=log_axis("value:Q", "largest difference to the exact output"),
            color=colour("tokens:N", "tokens L"),
        )
    )
    return finish(
        dots.properties(width=WIDTH, height=HEIGHT),
        "Solvers for long contexts against the exact one",
        "the last two are asked for a tolerance of 10⁻⁹",
    )


def told_errors(evidence: xr.Dataset) -> Any:
    frame = table(evidence.assign(told=evidence["bound"] / 2), "told", "measured", "bound")
    x = alt.X(
        "told:Q",
        title="estimated error",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~e", tickCount=6),
    )
    base = alt.Chart(frame)
    line = base.mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y="bound:Q")
    dots = base.mark_point(filled=True, size=60).encode(
        x=x,
        y=log_axis("measured:Q", "true error at the keys"),
        color=colour("centres:N", None, sort=None),
    )
    return finish(
        (line + dots).properties(width=WIDTH, height=HEIGHT),
        "What Nystrom's method says of itself",
        "dashed: the bound, twice the estimate",
    )
