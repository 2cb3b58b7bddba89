"""Figures of heads and layers, and of how much they can change."""

from typing import Any

import altair as alt
import pandas as pd
import xarray as xr

from attlas.drawing import HEIGHT, PALETTE, THEORY, WIDTH, agreement, colour, finish, rule_at, table

LENGTH = "length T"


def head_layer_scalar(evidence: xr.Dataset) -> Any:
    """Figure 1: what one head attends to, at one context, at every token, and at [CLS]."""
    cell = evidence.isel(cell=0)
    square = table(cell, "weights", rows=10_000)
    one = square[square["context"] == 0]
    cls = table(cell, "cls_weights", "cls_values")
    side = 250
    token = alt.X("token:O", title="token t", axis=alt.Axis(labelOverlap=True, labelAngle=0))
    scale = alt.Scale(scheme="blues", domainMin=0)
    bars = (
        alt.Chart(one)
        .mark_bar(color=PALETTE[0])
        .encode(
            x=token,
            y=alt.Y("weights:Q", title="attention"),
            tooltip=[alt.Tooltip("weights:Q", format=".3f")],
        )
    )
    map_ = (
        alt.Chart(square)
        .mark_rect()
        .encode(
            x=token,
            y=alt.Y("context:O", title="context z", axis=alt.Axis(labelOverlap=True)),
            color=alt.Color("weights:Q", title="attention", scale=scale),
            tooltip=["context:O", "token:O", alt.Tooltip("weights:Q", format=".3f")],
        )
    )
    cls["contribution"] = cls["cls_weights"] * cls["cls_values"]
    long = cls.melt(id_vars="token", value_vars=["cls_weights", "contribution"], var_name="what")
    long["what"] = long["what"].map(
        {"cls_weights": "attention", "contribution": "attention times value"}
    )
    read = (
        alt.Chart(long)
        .mark_bar(opacity=0.75)
        .encode(
            x=token,
            y=alt.Y("value:Q", title="at [CLS]", stack=None),
            color=colour("what:N", None),
            tooltip=["what:N", alt.Tooltip("value:Q", format=".3f")],
        )
    )
    panels = [
        bars.properties(width=side, height=side, title="head: one context"),
        map_.properties(width=side, height=side, title="layer: every token is a context"),
        read.properties(width=side, height=side, title="scalar: the context is [CLS]"),
    ]
    return finish(
        alt.hconcat(*panels).resolve_scale(color="independent"),
        "Head, layer and scalar read-out of one random head",
        "weights are those of softmax; on the right, what each token adds to the output as well",
    )


def jacobian_agreement(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence, "The Jacobian of softmax", by="length", by_title=LENGTH, what="sum of |J|"
    )


def table_agreement(evidence: xr.Dataset) -> Any:
    what = "logit, or derivative in a direction"
    return agreement(
        evidence, "The table form is the whole Transformer", by="form", by_title="", what=what
    )


def softmax_moves(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "distance", "measured", rows=2000)
    grid = [8 * i / 160 for i in range(161)]
    curves = pd.DataFrame(
        [
            {"distance": d, "measured": y, "what": what}
            for d in grid
            for what, y in bounds_at(d).items()
            if y < 2.2
        ]
    )
    x = alt.X("distance:Q", title="largest move of a score")
    lines = (
        alt.Chart(curves)
        .mark_line(color=THEORY, strokeWidth=1.3)
        .encode(
            x=x,
            y=alt.Y("measured:Q", title="move of the attention, sum over tokens"),
            strokeDash=alt.StrokeDash("what:N", title="bound"),
        )
    )
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=30, opacity=0.8)
        .encode(
            x=x,
            y="measured:Q",
            color=colour("length:N", LENGTH),
            tooltip=["length:N", "distance:Q", "measured:Q"],
        )
    )
    return finish(
        (lines + points).properties(width=WIDTH, height=HEIGHT),
        "How far softmax can move",
        "each point is the worst pair that an ascent found",
    )


def bounds_at(distance: float) -> dict[str, float]:
    from math import tanh

    return {"2 d (paper)": 2 * distance, "d": distance, "2 tanh(d/2)": 2 * tanh(distance / 2)}


def length_free(evidence: xr.Dataset) -> Any:
    frame = evidence[["measured", "unnormalised"]] / evidence["bound"]
    return ratio_chart(
        frame, "length:N", LENGTH, "A head's move, over its bound", "linear attention"
    )


def depth_constants(evidence: xr.Dataset) -> Any:
    frame = evidence[["measured", "unnormalised"]] / evidence["bound"]
    label = [
        f"{kind}, {depth}"
        for kind, depth in zip(evidence["kind"].values, evidence["depth"].values, strict=True)
    ]
    frame = frame.assign_coords(stack=("cell", label))
    return ratio_chart(
        frame,
        "stack:N",
        "layers and their number",
        "A stack's move, over its Lipschitz constant",
        "linear attention",
    )


def ratio_chart(ratios: xr.Dataset, x: str, x_title: str, title: str, other: str) -> Any:
    """Ratios to a bound, of what it is for and of what it is not for."""
    frame = table(ratios, "measured", "unnormalised")
    long = frame.melt(
        id_vars=[c for c in frame if c not in ("measured", "unnormalised")],
        var_name="what",
        value_name="ratio",
    )
    long["what"] = long["what"].map({"measured": "softmax", "unnormalised": other})
    long = long[long["ratio"] > 1e-9]
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=30, opacity=0.7)
        .encode(
            x=alt.X(x, title=x_title, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("ratio:Q", title="measured / bound", scale=alt.Scale(type="log")),
            color=colour("what:N", "weights"),
            xOffset="what:N",
            tooltip=["what:N", alt.Tooltip("ratio:Q", format=".4g")],
        )
    )
    return finish(
        (points + rule_at(1, "bound")).properties(width=WIDTH, height=HEIGHT),
        title,
        "each point is the worst case that an ascent found for softmax, and the same input without a normaliser",
    )
