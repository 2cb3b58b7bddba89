"""Figures of pretraining and transfer: the masked minimiser, the condition number, blindness, probes and coverage."""

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
    table,
)
from attlas.latent_posterior.figures.learning import lines, log_x
from attlas.latent_posterior.figures.shared import against, log_axis


def masked(evidence: xr.Dataset) -> Any:
    swapped = evidence.assign(predicted=evidence["measured"], measured=evidence["predicted"])
    return against(
        swapped,
        "The best guess of a hidden word",
        "by enumeration",
        {"measured": "image of the posterior", "uniform": "with a uniform prior"},
        "posterior",
    )


def below(
    evidence: xr.Dataset,
    title: str,
    subtitle: str,
    x_title: str,
    y_title: str,
    by: str,
    legend: str,
) -> Any:
    """Measured values under their bounds, with the line on which the two are equal."""
    frame = table(evidence, "bound", "measured", rows=1200)
    span = [float(frame["bound"].min()), float(frame["bound"].max())]
    line = (
        alt.Chart(pd.DataFrame({"x": span}))
        .mark_line(color=THEORY, strokeWidth=1.2)
        .encode(x="x:Q", y="x:Q")
    )
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=22, opacity=0.5)
        .encode(
            x=log_x("bound:Q", x_title),
            y=log_axis("measured:Q", y_title),
            color=colour(f"{by}:N", legend),
        )
    )
    return finish((line + dots).properties(width=WIDTH, height=HEIGHT), title, subtitle)


def inequality(evidence: xr.Dataset) -> Any:
    first = evidence.isel(direction=slice(0, 8))
    return below(
        first,
        "What the task sees of pretraining's errors",
        "on the line: the witnesses",
        "κ times the pretraining excess",
        "downstream excess",
        "dim",
        "dimension",
    )


def coverage(evidence: xr.Dataset) -> Any:
    return below(
        evidence,
        "A task with other sequences",
        "on the line: a loss at the sequence that it favours most",
        "coverage number times the loss in pretraining",
        "loss in the task",
        "length",
        "tokens L",
    )


def price(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "allowed")
    frame["low"], frame["high"] = (
        frame["measured"] + sign * 2 * frame["error"] for sign in (-1, 1)
    )
    x, shown = log_x("kappa:Q", "condition number κ"), {"color": colour("risk:N", "excess of")}
    base = alt.Chart(frame)
    theory = base.mark_line().encode(x=x, y=log_axis("predicted:Q", "mean excess risk"), **shown)
    dots = base.mark_point(filled=True, size=46).encode(x=x, y="measured:Q", **shown)
    bars = error_bars(base, x, "low", "high", "mean excess risk", **shown)
    bound = base.mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y="allowed:Q")
    return finish(
        (bound + theory + bars + dots).properties(width=WIDTH, height=HEIGHT),
        "The price of a dimly seen direction",
        "lines: closed form; dots: least squares; dashed: κ times the pretraining excess",
    )


def share(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "independent")
    frame["low"], frame["high"] = (
        frame["measured"] + sign * 2 * frame["error"] for sign in (-1, 1)
    )
    x = alt.X("hidden:Q", title=f"tokens hidden of {int(evidence['length'].max())}")
    shown, base = {"color": colour("risk:N", "excess of")}, alt.Chart(frame)
    theory = base.mark_line().encode(x=x, y=log_axis("predicted:Q", "mean excess risk"), **shown)
    wrong = base.mark_line(strokeDash=[5, 4]).encode(x=x, y="independent:Q", **shown)
    dots = base.mark_point(filled=True, size=46).encode(x=x, y="measured:Q", **shown)
    bars = error_bars(base, x, "low", "high", "mean excess risk", **shown)
    return finish(
        (wrong + theory + bars + dots).properties(width=WIDTH, height=HEIGHT),
        "How many tokens to hide",
        "lines: closed form; dots: least squares; dashed: if hidden tokens were independent",
    )


def blind(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "measured", "seen").melt(
        ["samples", "risk"], ["measured", "seen"], "name"
    )
    frame["sees"] = frame["name"].map({"measured": "not at all", "seen": "faintly"})
    chart = lines(
        frame,
        log_x("samples:Q", "sequences of pretraining n"),
        log_axis("value:Q", "mean excess risk"),
        color=colour("risk:N", "excess of"),
        strokeDash=alt.StrokeDash(
            "sees:N", title="the direction is seen", sort=["not at all", "faintly"]
        ),
    )
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Blind pretraining",
        evidence.attrs.get("reason", ""),
    )


def crossover(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "excess", "spread", "theory")
    frame["low"], frame["high"] = (frame["excess"] + sign * 2 * frame["spread"] for sign in (-1, 1))
    x, shown = log_x("number:Q", "condition number κ"), {"color": colour("way:N", None, sort=None)}
    what = "excess risk of the task"
    line = alt.Chart(frame).mark_line().encode(x=x, y=log_axis("theory:Q", what), **shown)
    dots = alt.Chart(frame).mark_point(filled=True, size=45).encode(x=x, y="excess:Q", **shown)
    layers = [line, error_bars(alt.Chart(frame), x, "low", "high", what, **shown), dots]
    numbers = evidence["number"].values
    probe, scratch = evidence["theory"].isel(cell=0).values
    gap = np.log(probe / scratch)
    words = "lines: in mean; the probe loses at no κ shown"
    if gap[0] < 0 < gap[-1]:
        after = int((gap > 0).argmax())
        place = float(
            np.exp(np.interp(0, gap[after - 1 : after + 1], np.log(numbers[after - 1 : after + 1])))
        )
        cross = alt.Chart(pd.DataFrame({"number": [place]})).mark_rule(
            color=THEORY, strokeDash=[5, 4]
        )
        layers.insert(0, cross.encode(x=x))
        words = f"lines: in mean; they cross near κ = {place:.2g}, dashed"
    return finish(
        alt.layer(*layers).properties(width=WIDTH, height=HEIGHT),
        "A probe against training from scratch",
        words,
    )


def runs(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "largest", "bound")
    x, y = (
        log_x("kappa:Q", "condition number κ"),
        log_axis("largest:Q", "downstream excess over pretraining excess"),
    )
    line = alt.Chart(frame).mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y="bound:Q")
    return finish(
        (line + lines(frame, x, y)).properties(width=WIDTH, height=HEIGHT),
        "No run exceeds the condition number",
        "the largest ratio of all runs; dashed: κ",
    )


def probe_price(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "What a probe costs", by="way", by_title="", what="mean excess risk")


def simplex(evidence: xr.Dataset) -> Any:
    names = {"measured": "softmax over latents", "free": "linear", "condition": "κ"}
    frame = table(evidence, *names).melt(["kappa"], list(names), "name")
    frame["representation"] = frame["name"].map(names)
    chart = lines(
        frame,
        log_x("kappa:Q", "condition number κ"),
        log_axis("value:Q", "downstream excess over pretraining excess"),
        color=alt.Color(
            "representation:N",
            title="representation",
            sort=list(names.values()),
            scale=alt.Scale(range=[*PALETTE[:2], THEORY]),
        ),
    )
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "The simplex shows the root of the condition number, at most",
        "κ itself is the largest possible ratio",
    )
