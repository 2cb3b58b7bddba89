"""Figures of heads that compute sparse functions."""

from typing import Any

import altair as alt
import pandas as pd
import xarray as xr

from attlas.drawing import HEIGHT, PALETTE, THEORY, WIDTH, agreement, colour, finish, rule_at, table

LENGTH = "length T"


def size_label(evidence: xr.Dataset) -> xr.Dataset:
    """With a coordinate that names each cell by its length and sparsity."""
    names = [
        f"T = {t:,}, s = {s}"
        for t, s in zip(evidence["length"].values, evidence["sparsity"].values, strict=True)
    ]
    return evidence.assign_coords(size=("cell", names))


def threshold_levels(evidence: xr.Dataset) -> Any:
    """The range of the level at each number of ones, over all fillings of the irrelevant places."""
    labelled = size_label(evidence)
    frame = table(labelled, "lowest", "highest").dropna()
    order = list(dict.fromkeys(labelled["size"].values.tolist()))
    bars = (
        alt.Chart(frame)
        .mark_bar(size=9, color=PALETTE[0])
        .encode(
            x=alt.X("ones:O", title="relevant ones", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("lowest:Q", title="level that the head reads"),
            y2="highest:Q",
            tooltip=[
                "ones:O",
                alt.Tooltip("lowest:Q", format=".4f"),
                alt.Tooltip("highest:Q", format=".4f"),
            ],
        )
    )
    chart = bars.properties(width=150, height=220).facet(
        column=alt.Column("size:N", title=None, sort=order)
    )
    return finish(
        chart,
        "Levels of the threshold head do not overlap",
        "from the worst to the best filling of all irrelevant places; a threshold between two levels is a function",
    )


def tight_margins(evidence: xr.Dataset) -> Any:
    frame = table(size_label(evidence), "margin")
    points = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            x=alt.X("ladder:Q", title="c, with β = ln c(T − s)", scale=alt.Scale(type="log")),
            y=alt.Y("margin:Q", title="worst margin over all inputs"),
            color=colour("size:N", None, sort=list(dict.fromkeys(frame["size"]))),
            tooltip=["size:N", "ladder:Q", alt.Tooltip("margin:Q", format=".5f")],
        )
    )
    wall = (
        alt.Chart(pd.DataFrame({"c": [1.0]}))
        .mark_rule(color=THEORY, strokeDash=[5, 4])
        .encode(x="c:Q")
    )
    return finish(
        (points + wall + rule_at(0)).properties(width=WIDTH, height=HEIGHT),
        "The attention must be sharper than ln(T − s), and no more",
        "majority; below c = 1 some filling of the irrelevant places fools the head",
    )


def permutation_agreement(evidence: xr.Dataset) -> Any:
    return agreement(
        size_label(evidence), "Any support does as well", by="size", by_title="", what="output"
    )


def random_embeddings(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "score_norm", "dimension", "basis_norm").dropna()
    share = {
        int(t): f"{int(a.sum())} of {a.size}"
        for t, a in zip(evidence["length"].values, evidence["arrived"].values, strict=True)
    }
    frame["size"] = [
        f"T = {t:,}, d = {d:.0f}|{share[t]}"
        for t, d in zip(frame["length"], frame["dimension"], strict=True)
    ]
    x = alt.X(
        "size:N",
        title=None,
        sort=list(dict.fromkeys(frame["size"])),
        axis=alt.Axis(labelAngle=0, labelExpr="split(datum.label, '|')"),
    )
    points = (
        alt.Chart(frame)
        .mark_boxplot(color=PALETTE[0], size=24, outliers={"size": 12})
        .encode(
            x=x,
            y=alt.Y("score_norm:Q", title="norm of the scores, |u|", scale=alt.Scale(type="log")),
        )
    )
    single = frame.groupby("size", as_index=False).first()
    basis = (
        alt.Chart(single)
        .mark_tick(color=THEORY, thickness=2, size=34)
        .encode(x=x, y="basis_norm:Q")
    )
    return finish(
        (points + basis).properties(width=WIDTH, height=HEIGHT),
        "Random directions in place of a basis",
        "boxes: draws of the embedding in dimension d, and how many of them gave a head; dashes: orthonormal, dimension T + 3",
    )


def sink_margins(evidence: xr.Dataset) -> Any:
    labelled = size_label(evidence)
    frame = table(labelled, "measured", "threshold")
    long = frame.melt(
        id_vars=["size", "function"],
        value_vars=["measured", "threshold"],
        var_name="head",
        value_name="margin",
    )
    long["head"] = long["head"].map({"measured": "sink at [CLS]", "threshold": "threshold"})
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X(
                "size:N",
                title=None,
                sort=list(dict.fromkeys(frame["size"])),
                axis=alt.Axis(labelAngle=0),
            ),
            y=alt.Y(
                "margin:Q", title="worst margin over all inputs", scale=alt.Scale(domain=[0, 1])
            ),
            color=colour("head:N", "head"),
            shape=alt.Shape("function:N", title="function"),
            tooltip=["head:N", "function:N", alt.Tooltip("margin:Q", format=".6f")],
        )
    )
    level = float(evidence["predicted"].values.flat[0])
    return finish(
        (points + rule_at(level, "(c − 1)/(c + 1)")).properties(width=WIDTH, height=HEIGHT),
        "A sink keeps the margin",
        "AND and OR; the threshold head's margin falls with the number of relevant bits",
    )


def symmetric_norms(evidence: xr.Dataset) -> Any:
    return _norms(evidence, "What symmetric functions cost", ["parity", "another"])


def table_norms(evidence: xr.Dataset) -> Any:
    return _norms(evidence, "What arbitrary functions cost", ["a table", "another"])


def _norms(evidence: xr.Dataset, title: str, functions: list[str]) -> Any:
    names = {"score_norm": "scores", "value_norm": "values, 2,1-norm", "out_norm": "read-out"}
    both = [f"{name}, {kind}" for kind in ("orthonormal", "random") for name in functions]
    frame = table(size_label(evidence).assign_coords(function=both), *names)
    long = frame.melt(
        id_vars=["size", "function"], value_vars=list(names), var_name="weights", value_name="norm"
    )
    long["weights"] = long["weights"].map(names)
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X(
                "size:N",
                title=None,
                sort=list(dict.fromkeys(frame["size"])),
                axis=alt.Axis(labelAngle=0),
            ),
            y=alt.Y("norm:Q", title="norm, unit tokens", scale=alt.Scale(type="log")),
            color=colour("weights:N", "weights"),
            shape=alt.Shape("function:N", title="function"),
            tooltip=["weights:N", "function:N", alt.Tooltip("norm:Q", format=".4g")],
        )
    )
    worst = float(evidence["measured"].max())
    return finish(
        points.properties(width=WIDTH, height=HEIGHT),
        title,
        f"outputs are ±1 on every input; the worst is off by {worst:.1e}"
        if worst < 1e-6
        else f"the worst output is off by {worst:.2g}",
    )


def norm_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Norms of the constructions", by="norm", by_title="", what="norm")
