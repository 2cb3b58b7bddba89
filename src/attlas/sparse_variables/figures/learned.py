"""Figures of what training found, beside the constructions."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.drawing import HEIGHT, PALETTE, THEORY, WIDTH, colour, finish, table

LENGTH = alt.X("length:Q", title="length T", scale=alt.Scale(type="log", nice=False, padding=12))


def attention_against_length(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "mass").dropna()
    frame["label"] = frame["label"].map({0: "label 0", 1: "label 1"})
    built = table(evidence, "constructed")
    built["label"] = built["label"].map({0: "label 0", 1: "label 1"})
    lengths = sorted(frame["length"].unique())
    x = alt.X("length:O", title="length T", sort=lengths, axis=alt.Axis(labelAngle=0))
    y = alt.Y("mass:Q", title="attention on the support", scale=alt.Scale(domain=[0, 1]))
    # Runs side by side, in the order of their number.
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=28, opacity=0.7)
        .encode(
            x=x,
            xOffset="repeat:Q",
            y=y,
            color=alt.value(PALETTE[0]),
            tooltip=["length:N", "repeat:N", alt.Tooltip("mass:Q", format=".3f")],
        )
    )
    ticks = (
        alt.Chart(built)
        .mark_tick(thickness=2, size=50)
        .encode(
            x=x,
            y="constructed:Q",
            color=alt.Color(
                "head:N", title="constructed", scale=alt.Scale(range=[PALETTE[1], THEORY])
            ),
            tooltip=["head:N", alt.Tooltip("constructed:Q", format=".3f")],
        )
    )
    panels = [
        (
            points.transform_filter(alt.datum.label == label)
            + ticks.transform_filter(alt.datum.label == label)
        ).properties(
            width=300, height=HEIGHT, title=f"where the {label.replace('label', 'label is')}"
        )
        for label in ("label 0", "label 1")
    ]
    return finish(
        alt.hconcat(*panels),
        "Learned heads look at the support, and when",
        "the head of each run with most attention on the support at label 0; some look away at label 1, as the sink head does, some do not",
    )


def norms_against_length(evidence: xr.Dataset) -> Any:
    learned = table(evidence, "score_norm", "value_norm", "asked").pivot_table(
        index=["length"], columns="quantile", values=["score_norm", "value_norm", "asked"]
    )
    built = table(evidence, "score_norm_built", "value_norm_built")
    built = built.rename(
        columns={"score_norm_built": "score_norm", "value_norm_built": "value_norm"}
    )
    asked = [
        table(evidence, name).rename(columns={name: "asked"}).assign(head=head)
        for name, head in (("predicted", "threshold"), ("sink", "sink"))
    ]
    titles = {
        "score_norm": "|u| of the sharpest head",
        "value_norm": "sum of |v| over the margin",
        "asked": "samples, log10",
    }
    panels = []
    for name, title in titles.items():
        low, middle, high = (learned[name][q].to_numpy() for q in (0.1, 0.5, 0.9))
        ours = pd.DataFrame(
            {"length": learned.index, "value": middle, "low": low, "high": high, "head": "learned"}
        )
        theirs = (pd.concat(asked) if name == "asked" else built).rename(columns={name: "value"})
        both = pd.concat([ours, theirs[["length", "head", "value"]]])
        y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
        bars = (
            alt.Chart(ours)
            .mark_rule(color=PALETTE[0])
            .encode(x=LENGTH, y=alt.Y("low:Q", title=title), y2="high:Q")
        )
        lines = (
            alt.Chart(both[["length", "head", "value"]])
            .mark_line(point=True)
            .encode(
                x=LENGTH,
                y=y,
                color=colour("head:N", "head", sort=["learned", "threshold", "sink"]),
                tooltip=["head:N", "length:Q", alt.Tooltip("value:Q", format=".4g")],
            )
        )
        panels.append((bars + lines).properties(width=210, height=240))
    return finish(
        alt.hconcat(*panels),
        "Learned heads are as large as the constructed ones",
        "median of the runs that learned, with the middle four fifths; unit tokens; right: what the bound for these norms asks for",
    )


def certificates(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "bound", "measured", "uncounted", "noiseless")
    frame["labels"] = np.where(frame["coins"], "coins", "and")
    frame["where"] = [
        f"{kind}, T = {t}, m = {m:,}"
        for kind, t, m in zip(frame["labels"], frame["length"], frame["samples"], strict=True)
    ]
    names = {
        "bound": "noisy heads, certified",
        "measured": "noisy heads, measured",
        "uncounted": "heads as if given, certified",
        "noiseless": "heads, measured",
    }
    long = frame.melt(
        id_vars=["where", "trial"], value_vars=list(names), var_name="what", value_name="error"
    )
    long["what"] = long["what"].map(names)
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=45, opacity=0.8)
        .encode(
            x=alt.X("error:Q", title="error", scale=alt.Scale(domain=[0, 1])),
            y=alt.Y(
                "where:N",
                title=None,
                sort=list(dict.fromkeys(frame["where"])),
                axis=alt.Axis(labelLimit=220),
            ),
            yOffset="trial:N",
            color=colour("what:N", None, sort=list(names.values())),
            tooltip=["where:N", "what:N", "trial:N", alt.Tooltip("error:Q", format=".3f")],
        )
    )
    return finish(
        points.properties(width=WIDTH, height=90 * frame["where"].nunique()),
        "A certificate from the training set alone",
        "where labels are coins nothing can be learned: a bound that takes the heads as if they were given is broken",
    )


def ledger(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "samples")
    frame = frame[np.isfinite(frame["samples"])]
    order = list(evidence["row"].values)[::-1]
    colours = {"statistical floor": THEORY, "Occam's bound": PALETTE[6], "needed": PALETTE[1]}
    others = iter([PALETTE[0], PALETTE[5], PALETTE[2], PALETTE[3]])
    lines = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            x=LENGTH,
            y=alt.Y(
                "samples:Q",
                title="samples",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format=".0e", tickCount=8),
            ),
            color=alt.Color(
                "row:N",
                title=None,
                sort=order,
                scale=alt.Scale(
                    domain=order, range=[colours.get(name) or next(others) for name in order]
                ),
                legend=alt.Legend(labelLimit=220),
            ),
            strokeDash=alt.condition(
                "datum.row == 'statistical floor'", alt.value([5, 4]), alt.value([1, 0])
            ),
            tooltip=["row:N", "length:Q", alt.Tooltip("samples:Q", format=".3g")],
        )
    )
    return finish(
        lines.properties(width=WIDTH, height=HEIGHT + 80),
        "From what a bound asks for to what learning takes",
        "bounds: until the error is below a half; needed: until 80 % of runs are right on every validation sequence",
    )
