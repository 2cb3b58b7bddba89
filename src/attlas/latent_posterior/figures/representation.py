"""Figures of what a sequence says."""

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
    error_bars,
    finish,
    log_floor,
    table,
)
from attlas.latent_posterior.figures.shared import against, log_axis

FLOOR = 1e-18
"""Where an exact 0 stands on a logarithmic axis."""


def asymmetries(evidence: xr.Dataset) -> Any:
    frame = pd.concat(
        [
            table(evidence.assign(value=log_floor(evidence["measured"], FLOOR)), "value"),
            table(evidence.assign(value=evidence["chain"]), "value").assign(law="a chain"),
        ]
    )
    points = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=60))
        .encode(
            x=alt.X("length:O", title="tokens L", axis=alt.Axis(labelAngle=0)),
            y=log_axis("value:Q", "total variation when two tokens are exchanged"),
            color=colour("law:N", None),
            tooltip=["law:N", "length:O", alt.Tooltip("value:Q", format=".2e")],
        )
    )
    return finish(
        points.properties(width=WIDTH, height=HEIGHT),
        "Exchangeable laws, and a chain",
        f"over all sequences; values below {FLOOR:g}, exact zeros among them, stand there",
    )


def shuffles(evidence: xr.Dataset) -> Any:
    names = {"measured": "with their positions", "apart": "without"}
    frame = table(evidence.assign(measured=log_floor(evidence["measured"], FLOOR)), *names)
    frame = frame.melt(["layer"], list(names), "name")
    frame["tokens are shuffled"] = frame["name"].map(names)
    lines = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=60))
        .encode(
            x=alt.X("layer:O", axis=alt.Axis(labelAngle=0)),
            y=log_axis("value:Q", "relative change of the states"),
            color=colour("tokens are shuffled:N", "tokens are shuffled", sort=list(names.values())),
            tooltip=["tokens are shuffled:N", "layer:O", alt.Tooltip("value:Q", format=".2e")],
        )
    )
    title = f"What {evidence['model'].values[0]} makes of shuffled sentences"
    return finish(
        lines.properties(width=WIDTH, height=HEIGHT),
        title,
        "root mean square over tokens, after each layer",
    )


def order_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Attention sees a set", by="mechanism", what="output")


def urn_agreement(evidence: xr.Dataset) -> Any:
    return agreement(
        evidence,
        "Polya's urn is a mixture of coins",
        by="length",
        by_title="draws",
        what="log probability",
    )


def urn_distances(evidence: xr.Dataset) -> Any:
    names = {
        "measured": "the worst urn",
        "even": "an even urn",
        "bound": "bound 2ck/N",
        "chain": "a chain, at least",
    }
    frame = table(evidence, *names).melt(["balls", "letters"], list(names), "name")
    frame["what"] = frame["name"].map(names)
    frame["letters"] = frame["letters"].map(lambda c: f"{c} letters")
    lines = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=45))
        .encode(
            x=alt.X("balls:Q", title="tokens in all, N", scale=alt.Scale(type="log")),
            y=log_axis("value:Q", "total variation"),
            color=colour("what:N", None, sort=list(names.values())),
            strokeDash=alt.StrokeDash("letters:N", title=None),
            tooltip=["what:N", "balls:Q", alt.Tooltip("value:Q", format=".3g")],
        )
    )
    k = int(evidence["draws"].values.flat[0])
    return finish(
        lines.properties(width=WIDTH, height=HEIGHT),
        "A finite exchangeable sequence is nearly a mixture",
        f"the first {k} of N draws without replacement against draws with it, exactly",
    )


def covariances(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "lower", "polya", "formula")
    frame["without replacement, −"], frame["Polya's urn, +"] = -frame["lower"], frame["polya"]
    long = frame.melt(["balls"], ["without replacement, −", "Polya's urn, +"], "urn")
    x = alt.X("balls:Q", title="balls N, half of them white", scale=alt.Scale(type="log"))
    dots = (
        alt.Chart(long)
        .mark_point(filled=True, size=70)
        .encode(
            x=x,
            y=log_axis("value:Q", "covariance of two draws, its size"),
            color=colour("urn:N", "urn, and sign"),
            tooltip=["urn:N", "balls:Q", alt.Tooltip("value:Q", format=".3g")],
        )
    )
    theory = alt.Chart(frame).mark_line(color=THEORY, strokeWidth=1.2).encode(x=x, y="formula:Q")
    return finish(
        (theory + dots).properties(width=WIDTH, height=HEIGHT),
        "Draws without replacement are no mixture",
        "line: 1/4(N − 1); given a latent two draws cannot be negatively correlated",
    )


def _strips(frame: pd.DataFrame, x: str, hue: str, title: str, order: list[str]) -> alt.Chart:
    return (
        alt.Chart(frame)
        .mark_point(filled=True, size=40, opacity=0.8)
        .encode(
            x=alt.X(f"{x}:N", title=None, sort=order, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset(f"{hue}:N"),
            y=log_axis("value:Q", title),
            color=colour(f"{hue}:N", "tokens L"),
            tooltip=[alt.Tooltip("value:Q", format=".2e")],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )


def information(evidence: xr.Dataset) -> Any:
    parts = []
    for name, axis in (("measured", "statistic"), ("coarse", "coarser")):
        values = evidence.assign(value=log_floor(evidence[name], FLOOR))
        parts.append(table(values, "value").rename(columns={axis: "S"}))
    frame = pd.concat(parts)[["S", "length", "value"]]
    order = ["posterior", "counts", "most probable latent", "first token"]
    return finish(
        _strips(frame, "S", "length", "I(y; X | S), nats", order),
        "The posterior is sufficient, less is not",
        f"random topic models and labels, by enumeration; values below {FLOOR:g} stand there",
    )


def task_information(evidence: xr.Dataset) -> Any:
    parts = []
    for name, words in (("measured", "label of the family"), ("latent", "the whole latent")):
        values = evidence.assign(value=log_floor(evidence[name], FLOOR))
        parts.append(table(values, "value").assign(label=words))
    frame = pd.concat(parts)[["label", "length", "value"]]
    return finish(
        _strips(
            frame,
            "label",
            "length",
            "I(label; X | Bπ), nats",
            ["label of the family", "the whole latent"],
        ),
        "What a family of tasks needs",
        f"Bπ is the posterior of half of the latent; values below {FLOOR:g} stand there",
    )


def class_counts(evidence: xr.Dataset) -> Any:
    names = {
        "predicted": "with a constant likelihood ratio",
        "measured": "with equal posteriors",
        "counts": "with equal counts",
    }
    frame = table(evidence, *names).melt(["length", "model"], list(names), "name")
    frame["pairs"] = frame["name"].map(names)
    points = (
        alt.Chart(frame)
        .mark_point(size=80, strokeWidth=2)
        .encode(
            x=alt.X("length:O", title="tokens L", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("pairs:N", sort=list(names.values())),
            y=alt.Y("value:Q", title="pairs of counts", scale=alt.Scale(type="log")),
            color=colour("pairs:N", "pairs", sort=list(names.values())),
            shape=alt.Shape("pairs:N", sort=list(names.values()), legend=None),
            tooltip=["pairs:N", "value:Q"],
        )
    )
    return finish(
        points.properties(width=WIDTH, height=HEIGHT),
        "Equal posteriors, constant likelihood ratios",
        "random topic models in which two words say the same about the latent",
    )


def moved_posteriors(evidence: xr.Dataset) -> Any:
    return against(
        evidence,
        "Counts moved where no contrast sees it",
        "probability of a latent",
        {"measured": "in the null space", "elsewhere": "elsewhere, as far"},
        "moved",
    )


def averaged_evidence(evidence: xr.Dataset) -> Any:
    return against(
        evidence,
        "The posterior from attention's average",
        "probability of a latent",
        {"measured": "times the length", "average": "as it is"},
        "average log likelihood",
    )


def rotated_contexts(evidence: xr.Dataset) -> Any:
    return against(
        evidence,
        "Contexts with equal statistics",
        "mean or variance at a query",
        {"measured": "keys and values", "apart": "keys alone"},
        "rotated",
    )


def predictive_densities(evidence: xr.Dataset) -> Any:
    return against(
        evidence,
        "Prediction is the average over the posterior",
        "log probability of the next token, average over the posterior",
        {"measured": "ratio of joint laws", "plugged": "most probable latent"},
        "route",
    )


def bayes_risks(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Bayes risks", by="model", what="risk")


def pooling_curve(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "leading", "bayes")
    frame["low"], frame["high"] = (
        frame["measured"] - 2 * frame["error"],
        frame["measured"] + 2 * frame["error"],
    )
    x = alt.X("length:Q", title="tokens L", scale=alt.Scale(type="log"))
    base, key = alt.Chart(frame), colour("what:N", None)

    def line(field: str, words: str, dash: list[int]) -> alt.Chart:
        return (
            base.transform_calculate(what=f"'{words}'")
            .mark_line(strokeDash=dash)
            .encode(x=x, y=log_axis(f"{field}:Q", "mean square error"), color=key)
        )

    lines = line("bayes", "posterior mean", [1, 0]) + line(
        "predicted", "excess of the mean, formula", [1, 0]
    )
    lines += line("leading", "its leading order", [5, 4])
    dots = base.transform_calculate(what="'excess of the mean, simulated'").mark_point(
        filled=True, size=50
    )
    bars = error_bars(base, x, "low", "high", "mean square error", color=alt.value(PALETTE[0]))
    return finish(
        (lines + bars + dots.encode(x=x, y="measured:Q", color=key)).properties(
            width=WIDTH, height=HEIGHT
        ),
        "What averaging tokens costs",
        "a Gaussian location: the excess falls like 1/L², the error itself like 1/L",
    )
