"""Figures of covers, complexities and samples: what a bound says, and what is."""

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
    error_bars,
    finish,
    legible,
    rule_at,
    table,
)

LENGTH = "length T"
STROKES = alt.Legend(symbolType="stroke", symbolSize=300, symbolFillColor="transparent")


def split_agreement(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence, "The best split of the distance", by="terms", by_title="terms", what="least sum"
    )


def packings(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "bound", "measured")
    long = frame.melt(
        id_vars=["eps", "class"],
        value_vars=["bound", "measured"],
        var_name="what",
        value_name="nats",
    )
    long["what"] = long["what"].map({"bound": "cover, bound", "measured": "packing, found"})
    lines = (
        alt.Chart(long)
        .mark_line(point=True)
        .encode(
            x=alt.X("eps:Q", title="distance ε", scale=alt.Scale(type="log")),
            y=alt.Y("nats:Q", title="nats", scale=alt.Scale(type="log")),
            color=colour("class:N", "class", legend=alt.Legend(labelLimit=260)),
            strokeDash=alt.StrokeDash("what:N", title=None, legend=STROKES),
            tooltip=["class:N", "what:N", "eps:Q", alt.Tooltip("nats:Q", format=".4g")],
        )
    )
    return finish(
        lines.properties(width=WIDTH, height=HEIGHT),
        "Covers of linear classes, and packings",
        "no cover can be smaller than the packing; what lies between is slack of the bound",
    )


def composed_covers(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "measured", "coarse", "nats_built", "nats_bound")
    long = frame.melt(
        id_vars="eps", value_vars=["measured", "coarse"], var_name="net", value_name="distance"
    )
    long["net"] = long["net"].map(
        {"measured": "as the theorem says", "coarse": "scores four times as coarse"}
    )
    x = alt.X("eps:Q", title="distance ε asked for", scale=alt.Scale(zero=False))
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=70)
        .encode(
            x=x,
            y=alt.Y("distance:Q", title="distance of the worst head found"),
            color=colour("net:N", "net"),
            tooltip=["net:N", "distance:Q"],
        )
    )
    line = alt.Chart(frame).mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y="eps:Q")
    sizes = frame.melt(
        id_vars="eps", value_vars=["nats_built", "nats_bound"], var_name="what", value_name="nats"
    )
    sizes["what"] = sizes["what"].map({"nats_built": "net that was built", "nats_bound": "bound"})
    right = (
        alt.Chart(sizes)
        .mark_line(point=True)
        .encode(
            x=x,
            y=alt.Y("nats:Q", title="nats of the product net"),
            strokeDash=alt.StrokeDash("what:N", title=None, legend=STROKES),
            color=alt.value(PALETTE[0]),
        )
    )
    return finish(
        alt.hconcat(
            (line + points).properties(width=300, height=260),
            right.properties(width=300, height=260),
        ),
        "A net of scores times a net of values covers the heads",
        "dashed: the distance that must not be exceeded",
    )


def certificate(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "starts", "upper")
    frame["where"] = [
        f"T = {t}, |u| ≤ {b:g}" for t, b in zip(frame["length"], frame["query_norm"], strict=True)
    ]
    x = alt.X("where:N", title=None, sort=list(frame["where"]), axis=alt.Axis(labelAngle=0))
    enclosure = (
        alt.Chart(frame)
        .mark_rule(strokeWidth=6, opacity=0.3, color=THEORY)
        .encode(
            x=x,
            y=alt.Y("predicted:Q", title="Rademacher complexity", scale=alt.Scale(zero=False)),
            y2="upper:Q",
        )
    )
    long = frame.melt(
        id_vars="where", value_vars=["measured", "starts"], var_name="how", value_name="value"
    )
    long["how"] = long["how"].map({"measured": "ascent", "starts": "starts alone"})
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=60)
        .encode(
            x=x,
            y="value:Q",
            color=colour("how:N", None),
            tooltip=["how:N", alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return finish(
        (enclosure + points).properties(width=WIDTH, height=HEIGHT),
        "Ascent finds the complexity where one can look everywhere",
        "grey: enclosure by a polar grid, from its best node up to what the Lipschitz constant allows between nodes",
    )


def complexity_bound(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "bound", "measured", "lower", "concatenated")
    names = {
        "bound": "bound",
        "measured": "head, from above (slack of the grid included)",
        "lower": "head, from below",
        "concatenated": "linear map of the sequence",
    }
    long = frame.melt(
        id_vars=["length", "query_norm"],
        value_vars=list(names),
        var_name="what",
        value_name="value",
    )
    long["what"] = long["what"].map(names)
    lines = (
        alt.Chart(long)
        .mark_line(point=True)
        .encode(
            x=alt.X("length:Q", title=LENGTH, scale=alt.Scale(type="log")),
            y=alt.Y("value:Q", title="Rademacher complexity", scale=alt.Scale(type="log")),
            color=colour("what:N", None, sort=list(names.values())),
            detail="query_norm:N",
            tooltip=["what:N", "length:Q", "query_norm:N", alt.Tooltip("value:Q", format=".4g")],
        )
    )
    return finish(
        (lines + rule_at(1, "trivial")).properties(width=WIDTH, height=HEIGHT),
        "Complexity of heads in the plane, and its bound",
        f"m = {int(evidence['samples'].values.flat[0]):,} sequences; the linear map breaks the bound of the heads",
    )


def growth_with_norms(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "small", "upper", "uniform")
    names = {"uniform": "|u| = 0", "small": "|u| ≤ 1/2", "upper": "|u| ≤ 8"}
    long = frame.melt(id_vars="length", value_vars=list(names), var_name="ball", value_name="value")
    long["ball"] = long["ball"].map(names)
    lines = (
        alt.Chart(long)
        .mark_line(point=True)
        .encode(
            x=alt.X("length:Q", title=LENGTH, scale=alt.Scale(type="log")),
            y=alt.Y("value:Q", title="Rademacher complexity", scale=alt.Scale(zero=True)),
            color=colour("ball:N", "scores", sort=list(names.values())),
            tooltip=["ball:N", "length:Q", alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return finish(
        lines.properties(width=WIDTH, height=HEIGHT),
        "A head that may be sharper is richer",
        "random directions in the plane; claimed: the uppermost line is at least 1.5 times the one below it",
    )


def growth_with_length(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "tokens", "complexity", "complexity_error", "concatenated")
    frame["low"], frame["high"] = (
        frame["complexity"] - 2 * frame["complexity_error"],
        frame["complexity"] + 2 * frame["complexity_error"],
    )
    first = frame.iloc[0]
    reference = frame.assign(
        root=first["complexity"] * np.sqrt(np.log(frame["tokens"]) / np.log(first["tokens"]))
    )
    x = alt.X("tokens:Q", title=LENGTH, scale=alt.Scale(type="log"))
    y = alt.Y("value:Q", title="Rademacher complexity", scale=alt.Scale(type="log"))
    long = pd.concat(
        [
            frame.assign(value=frame["complexity"], what="head"),
            frame.assign(value=frame["concatenated"], what="linear map of the sequence"),
        ]
    )
    lines = (
        alt.Chart(long)
        .mark_line(point=True)
        .encode(x=x, y=y, color=colour("what:N", None), tooltip=["what:N", "tokens:Q", "value:Q"])
    )
    bars = error_bars(
        alt.Chart(frame), x, "low", "high", "Rademacher complexity", color=alt.value(PALETTE[0])
    )
    theory = alt.Chart(reference).mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y="root:Q")
    exponent, other = (
        float(evidence["measured"].values.flat[0]),
        float(evidence["concatenated_exponent"].values.flat[0]),
    )
    return finish(
        (theory + bars + lines).properties(width=WIDTH, height=HEIGHT),
        "A longer context makes a head hardly richer",
        f"exponents {exponent:.3f} and {other:.3f}; dashed: the root of ln T through the first point",
    )


def samples_asked_for(evidence: xr.Dataset) -> Any:
    cell = evidence.isel(cell=0)
    rows = []
    tokens = cell["log_tokens"].values / np.log(10)
    for head in cell["head"].values:
        for constant in cell["constant"].values:
            logs = cell["log_samples"].sel(head=head, constant=constant).values
            rows += [
                {
                    "log10 T": t,
                    "log10 m": v / np.log(10),
                    "what": f"{head} head",
                    "constant": constant,
                }
                for t, v in zip(tokens, logs, strict=True)
            ]
    for name, what in (
        ("log_parameters", "threshold head, parameters counted"),
        ("log_concatenated", "linear map of the sequence"),
        ("log_occam", "Occam, finite class"),
        ("log_floor", "statistical floor"),
    ):
        rows += [
            {"log10 T": t, "log10 m": v / np.log(10), "what": what, "constant": "sharp"}
            for t, v in zip(tokens, cell[name].values, strict=True)
        ]
    lines = (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(point=alt.OverlayMarkDef(size=24))
        .encode(
            x=alt.X("log10 T:Q", title="length T, log10", scale=alt.Scale(type="log")),
            y=alt.Y(
                "log10 m:Q", title="samples, log10", scale=alt.Scale(domain=[0, 30], clamp=True)
            ),
            color=colour(
                "what:N",
                None,
                sort=list(dict.fromkeys(row["what"] for row in rows)),
                legend=alt.Legend(labelLimit=260),
            ),
            strokeDash=alt.StrokeDash(
                "constant:N", title="constant of softmax", sort=["sharp", "paper"], legend=STROKES
            ),
            tooltip=["what:N", "constant:N", "log10 T:Q", alt.Tooltip("log10 m:Q", format=".2f")],
        )
    )
    return finish(
        lines.properties(width=WIDTH, height=HEIGHT + 40),
        "Samples for the AND of three bits",
        "until the bound on the excess error is a half; the shape is the theorem, the constants are not meant to be used",
    )


def unique_support(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "independent", "measured", "error")
    frame["low"], frame["high"] = (
        frame["measured"] + sign * 2 * frame["error"] for sign in (-1, 1)
    )
    x = alt.X("samples:Q", title="samples m", scale=alt.Scale(zero=False))
    groups = {"color": colour("length:N", LENGTH)}
    long = frame.melt(
        id_vars=["samples", "length"],
        value_vars=["predicted", "independent"],
        var_name="formula",
        value_name="value",
    )
    long["formula"] = long["formula"].map(
        {"predicted": "given the relevant bits", "independent": "rivals independent"}
    )
    lines = (
        alt.Chart(long)
        .mark_line()
        .encode(
            x=x,
            y=alt.Y(
                "value:Q", title="probability of a unique support", scale=alt.Scale(zero=False)
            ),
            strokeDash=alt.StrokeDash("formula:N", title="formula", legend=STROKES),
            **groups,
        )
    )
    base = alt.Chart(frame)
    points = base.mark_point(filled=True, size=50).encode(
        x=x, y="measured:Q", tooltip=["length:N", "samples:Q", "measured:Q"], **groups
    )
    bars = error_bars(base, x, "low", "high", "probability of a unique support", **groups)
    return finish(
        (lines + bars + points).properties(width=WIDTH, height=HEIGHT),
        "When the data single out the support",
        "AND of three bits; points: simulated, two standard errors",
    )


def tightness_ledger(evidence: xr.Dataset) -> Any:
    """Bound over measured for every quantity of the ledger, at every point of the grid."""
    frame = table(evidence, "bound", "measured")
    frame["slack"] = frame["bound"] / frame["measured"]
    order = list(evidence["quantity"].values)
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x=alt.X("slack:Q", title="bound / measured", scale=alt.Scale(type="log")),
            y=alt.Y("quantity:N", title=None, sort=order, axis=alt.Axis(labelLimit=260)),
            color=colour("length:N", LENGTH),
            shape=alt.Shape("norm:N", title="norm"),
            yOffset="samples:N",
            tooltip=[
                "quantity:N",
                "length:N",
                "samples:N",
                "norm:N",
                alt.Tooltip("bound:Q", format=".4g"),
                alt.Tooltip("measured:Q", format=".4g"),
                alt.Tooltip("slack:Q", format=".4g"),
            ],
        )
    )
    worst = frame.groupby("quantity")["slack"].agg(["min", "max"]).loc[order].reset_index()
    worst["range"] = [
        legible(f"{a:.3g} to {b:.3g}") for a, b in zip(worst["min"], worst["max"], strict=True)
    ]
    text = (
        alt.Chart(worst)
        .mark_text(align="left", color="#555", fontSize=11)
        .encode(y=alt.Y("quantity:N", sort=order, axis=None), text="range:N")
    )
    one = (
        alt.Chart(pd.DataFrame({"x": [1.0]}))
        .mark_rule(color=THEORY, strokeDash=[5, 4])
        .encode(x="x:Q")
    )
    height = 34 * len(order)
    return finish(
        alt.hconcat(
            (one + points).properties(width=WIDTH, height=height),
            text.properties(
                width=120, height=height, title="range", view=alt.ViewBackground(stroke=None)
            ),
            spacing=8,
        ),
        "How loose each bound is",
        "1: attained; two rows a quantity where samples differ; a complexity capped at the trivial value 1 has that slack",
    )
