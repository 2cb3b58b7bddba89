"""Figures of learning: the ledger, optimisation, complexity against the length and the samples, and other lengths than that of training."""

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
    log_floor,
    rule_at,
    table,
)
from attlas.latent_posterior.figures.shared import log_axis

TERMS = ["generalisation", "optimisation", "approximation"]
DASHES = alt.StrokeDash("of:N", title=None)


def log_x(name: str, title: str) -> alt.X:
    return alt.X(name, title=title, scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=5))


def lines(frame: pd.DataFrame, x: alt.X, y: alt.Y, **encoding: Any) -> alt.Chart:
    return (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=40))
        .encode(x=x, y=y, **encoding)
    )


def ledger(evidence: xr.Dataset) -> Any:
    mean = evidence[TERMS].mean("repeat")
    frame = table(mean, *TERMS).melt(["step", "length", "samples"], TERMS, "term")
    frame["panel"] = "L = " + frame["length"].astype(str) + ", n = " + frame["samples"].astype(str)
    bars = (
        alt.Chart(frame)
        .mark_bar(opacity=0.9)
        .encode(
            x=alt.X("step:O", title="steps of training", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("value:Q", title="excess risk, term by term"),
            color=colour("term:N", None, sort=TERMS),
            order=alt.Order("term:N"),
        )
    )
    panels = bars.properties(width=190, height=130).facet(
        alt.Facet("panel:N", title=None, sort=list(dict.fromkeys(frame["panel"]))), columns=2
    )
    left = float(abs(evidence["measured"] - evidence["predicted"]).max())
    return finish(
        panels, "The ledger of the excess risk", f"means over repeats; each closes to {left:.0e}"
    )


def approximation(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "measured", "error", "predicted", "bayes")
    frame["low"], frame["high"] = (
        frame["measured"] + sign * 2 * frame["error"] for sign in (-1, 1)
    )
    x = log_x("length:Q", "tokens L")
    theory = frame.melt("length", ["predicted", "bayes"], "name")
    theory["of"] = theory["name"].map(
        {"predicted": "the best softmax head, to Bayes", "bayes": "Bayes, to the function"}
    )
    line = (
        alt.Chart(theory)
        .mark_line(color=THEORY)
        .encode(x=x, y=log_axis("value:Q", "root mean square distance"), strokeDash=DASHES)
    )
    bars = error_bars(
        alt.Chart(frame), x, "low", "high", "root mean square distance", color=alt.value(PALETTE[0])
    )
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=45, color=PALETTE[0])
        .encode(x=x, y="measured:Q")
    )
    return finish(
        (line + bars + dots).properties(width=WIDTH, height=HEIGHT),
        "What softmax heads cannot do",
        "points: measured; lines: the finite-length formulas",
    )


def optimisation(evidence: xr.Dataset) -> Any:
    wanted = evidence[["predicted", "measured"]].mean("repeat")
    frame = table(log_floor(wanted.to_array("name"), 1e-12).to_dataset(name="value"), "value")
    frame = frame[frame["step"] > 0]
    frame["by"] = frame["name"].map({"predicted": "spectrum", "measured": "descent"})
    base = alt.Chart(frame).encode(
        x=log_x("step:Q", "steps of descent"),
        y=log_axis("value:Q", "optimisation error"),
        color=colour("length:N", "tokens L"),
    )
    return finish(
        alt.layer(
            base.mark_line().transform_filter("datum.by == 'spectrum'"),
            base.mark_point(filled=True, size=36).transform_filter("datum.by == 'descent'"),
        ).properties(width=WIDTH, height=HEIGHT),
        "What training leaves undone",
        "lines: from the spectrum of the features; dots: by descent",
    )


def complexity_bound(evidence: xr.Dataset) -> Any:
    names = {
        "measured": "heads, certified from above",
        "concatenated": "linear maps of the sequence",
        "bound": "the bound",
    }
    frame = table(evidence, *names).melt(["length", "samples"], list(names), "name")
    frame["class"] = frame["name"].map(names)
    frame["panel"] = "n = " + frame["samples"].astype(str)
    chart = lines(
        frame,
        log_x("length:Q", "tokens L"),
        log_axis("value:Q", "Rademacher complexity"),
        color=alt.Color(
            "class:N",
            title=None,
            sort=list(names.values()),
            scale=alt.Scale(range=[*PALETTE[:2], THEORY]),
        ),
    )
    panels = chart.properties(width=200, height=200).facet(
        alt.Facet("panel:N", title=None, sort=list(dict.fromkeys(frame["panel"])))
    )
    return finish(panels, "A bound without the length", "heads in the plane, of query norm 2")


def complexity_in_samples(evidence: xr.Dataset) -> Any:
    return growth(
        evidence, "samples", "sequences n", "Complexity falls as the root of the samples", -0.5
    )


def complexity_in_length(evidence: xr.Dataset) -> Any:
    return growth(evidence, "length", "tokens L", "Complexity does not grow with the length", 0.0)


def growth(evidence: xr.Dataset, name: str, words: str, title: str, exponent: float) -> Any:
    names = {"heads": "heads", "concatenated": "linear maps of the sequence", "bound": "the bound"}
    frame = table(evidence, *names).melt([name], list(names), "name")
    frame["class"] = frame["name"].map(names)
    chart = lines(
        frame,
        log_x(f"{name}:Q", words),
        log_axis("value:Q", "Rademacher complexity"),
        color=alt.Color(
            "class:N",
            title=None,
            sort=list(names.values()),
            scale=alt.Scale(range=[*PALETTE[:2], THEORY]),
        ),
    )
    first = evidence.isel(cell=0)
    x = evidence[name].values.astype(float)
    guide = pd.DataFrame({name: x, "value": float(first["heads"]) * (x / x[0]) ** exponent})
    dashed = (
        alt.Chart(guide)
        .mark_line(color=THEORY, strokeDash=[5, 4])
        .encode(x=f"{name}:Q", y="value:Q")
    )
    return finish(
        (dashed + chart).properties(width=WIDTH, height=HEIGHT),
        title,
        f"dashed: the exponent {exponent:g}",
    )


def shift_bound(evidence: xr.Dataset) -> Any:
    return shifts(
        evidence.assign(value=evidence["distance"].max("chance")),
        "the worst chance of the two values",
    )


def shift_rate(evidence: xr.Dataset) -> Any:
    return shifts(evidence.assign(value=evidence["measured"]), "both values equally likely")


def shifts(evidence: xr.Dataset, words: str) -> Any:
    frame = table(evidence, "value", "bound")
    x = log_x("length:Q", "tokens L")
    base = alt.Chart(frame)
    line = base.mark_line(strokeDash=[5, 4]).encode(
        x=x, y="bound:Q", color=colour("norm:N", "query norm")
    )
    dots = lines(
        frame, x, log_axis("value:Q", "distance to the limit"), color=colour("norm:N", "query norm")
    )
    return finish(
        (line + dots).properties(width=WIDTH, height=HEIGHT),
        "A head settles as its context grows",
        f"{words}; dashed: the bound",
    )


def supervised(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "excess")
    mean = frame.assign(log=np.log(frame["excess"])).groupby("size")["log"].mean().reset_index()
    mean["excess"] = np.exp(mean["log"])
    mean["fast"] = mean["excess"].iloc[0] * mean["size"].iloc[0] / mean["size"]
    mean["slow"] = mean["excess"].iloc[0] * np.sqrt(mean["size"].iloc[0] / mean["size"])
    x = log_x("size:Q", "contexts n")
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=24, opacity=0.5)
        .encode(
            x=x,
            y=log_axis("excess:Q", "square distance to the Bayes predictor"),
            color=alt.value(PALETTE[0]),
        )
    )
    guides = [
        alt.Chart(mean).mark_line(color=THEORY, strokeDash=dash).encode(x=x, y=f"{name}:Q")
        for name, dash in (("fast", [5, 4]), ("slow", [1, 3]))
    ]
    ticks = (
        alt.Chart(mean)
        .mark_point(shape="diamond", size=120, filled=True, color=PALETTE[1])
        .encode(x=x, y="excess:Q")
    )
    return finish(
        alt.layer(*guides, dots, ticks).properties(width=WIDTH, height=HEIGHT),
        "Learning the temperature and the ridge",
        "a point is a training set, a diamond their geometric mean; dashed: 1/n, dotted: its root",
    )


def supervised_in_length(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "logarithm", "deviation")
    frame["excess"] = np.exp(frame["logarithm"])
    frame["low"], frame["high"] = (
        np.exp(frame["logarithm"] + sign * 2 * frame["deviation"]) for sign in (-1, 1)
    )
    x, what = log_x("length:Q", "tokens L"), "square distance to the Bayes predictor"
    shown = {
        "color": colour("learner:N", None, sort=None),
        "strokeDash": alt.StrokeDash("size:O", title="contexts n"),
    }
    chart = lines(frame, x, log_axis("excess:Q", what), **shown) + error_bars(
        alt.Chart(frame), x, "low", "high", what, color=shown["color"], detail="size:O"
    )
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Trained on longer contexts",
        "geometric means over training sets",
    )


def length_curve(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "ratio", "deviation")
    frame["low"], frame["high"] = (
        np.maximum(frame["ratio"] + sign * 2 * frame["deviation"], 1e-3) for sign in (-1, 1)
    )
    x = log_x("tokens:Q", "tokens of the test")
    shown = {
        "color": colour(
            "mechanism:N",
            None,
            sort=None,
            legend=alt.Legend(orient="bottom", columns=2, labelLimit=300),
        )
    }
    bars = error_bars(alt.Chart(frame), x, "low", "high", "risk over the Bayes risk", **shown)
    chart = lines(frame, x, log_axis("ratio:Q", "risk over the Bayes risk", "~g"), **shown)
    here = (
        alt.Chart(frame.iloc[:1]).mark_rule(color=THEORY, strokeDash=[1, 3]).encode(x="trained:Q")
    )
    return finish(
        (here + rule_at(1.0) + bars + chart).properties(width=WIDTH, height=HEIGHT),
        "Trained at one length, tested at others",
        "dotted: the length of training; dashed: the Bayes risk",
    )
