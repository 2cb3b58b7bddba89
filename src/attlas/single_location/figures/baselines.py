"""Figures of what the head is measured against, and of asymptotic optimality."""

from typing import Any

import altair as alt
import pandas as pd
import xarray as xr

from attlas.drawing import HEIGHT, THEORY, WIDTH, colour, error_bars, finish, rule_at, table


def linear_risks(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "constant")
    frame["low"], frame["high"] = (
        frame["measured"] - 2 * frame["error"],
        frame["measured"] + 2 * frame["error"],
    )
    frame["task"] = [
        f"L={row.length:g}, γ={row.gamma:.2g}"
        + (f", ratio {row.ratio:g}" if row.ratio != 1 else "")
        for row in frame.itertuples()
    ]
    base = alt.Chart(frame)
    x = alt.X("task:N", title=None, axis=alt.Axis(labelAngle=0))
    y = alt.Y("predicted:Q", title="risk")
    key = colour("what:N", None)
    theory = (
        base.transform_calculate(what="'Proposition 3'")
        .mark_tick(thickness=2, size=70)
        .encode(x=x, y=y, color=key)
    )
    nothing = (
        base.transform_calculate(what="'predicting 0'")
        .mark_tick(thickness=2, size=70, strokeDash=[4, 3])
        .encode(x=x, y="constant:Q", color=key)
    )
    fitted = (
        base.transform_calculate(what="'least squares'")
        .mark_point(filled=True, size=50)
        .encode(x=x, y="measured:Q", color=key)
    )
    chart = theory + nothing + error_bars(base, x, "low", "high", "risk") + fitted
    return finish(chart.properties(width=WIDTH, height=HEIGHT), "The best linear predictor")


def ordered_risks(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "risk", "risk_error").replace({"predictor": {"bayes": "Bayes"}})
    frame["low"], frame["high"] = (
        frame["risk"] - 2 * frame["risk_error"],
        frame["risk"] + 2 * frame["risk_error"],
    )
    formulas = pd.concat(
        [
            table(evidence, f"{name}_formula")
            .rename(columns={f"{name}_formula": "risk"})
            .assign(predictor=name)
            for name in ("oracle", "linear")
        ]
    )
    x = alt.X("dim:Q", title="d", scale=alt.Scale(type="log"))
    y = alt.Y("risk:Q", title="risk", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    hue = colour("predictor:N", "predictor")
    base = alt.Chart(frame)
    bars = base.mark_rule().encode(x=x, y=alt.Y("low:Q", title="risk"), y2="high:Q", color=hue)
    lines = alt.Chart(formulas).mark_line().encode(x=x, y=y, color=hue)
    dots = base.mark_point(filled=True, size=50).encode(
        x=x, y=y, color=hue, tooltip=["predictor:N", "dim:Q", "risk:Q", "risk_error:Q"]
    )
    return finish(
        (lines + bars + dots).properties(width=WIDTH, height=HEIGHT),
        "Linear above oracle above Bayes",
        "points: simulation, tilted for the Bayes risk; lines: closed forms",
    )


def bayes_per_sequence(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "without_norms", rows=400)
    frame["task"] = [
        f"d={row.dim}, γ={row.gamma:.2g}" + (f", ratio {row.ratio:g}" if row.ratio != 1 else "")
        for row in frame.itertuples()
    ]
    names = {"measured": "with the norm term", "without_norms": "without it"}
    for name, words in names.items():
        frame[words] = frame[name] - frame["predicted"]
    long = frame.melt(["predicted", "task"], list(names.values()), "softmax")
    dots = (
        alt.Chart(long.round(5))
        .mark_point(filled=True, size=16, opacity=0.8)
        .encode(
            x=alt.X("predicted:Q", title="E[Y | X] from the densities"),
            y=alt.Y("value:Q", title="softmax less E[Y | X]"),
            color=colour("softmax:N", "softmax attention"),
        )
        .properties(width=215, height=150)
        .facet(facet=alt.Facet("task:N", title=None), columns=2)
    )
    return finish(dots, "Softmax attention is the Bayes predictor", "one point a sequence")


def gap_curves(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "measured", "error", "predicted", "erf")
    x = alt.X("dim:Q", title="d")
    y = alt.Y(
        "predicted:Q",
        title="excess risk",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format=".0e", tickCount=8),
    )
    base, key = alt.Chart(frame), colour("what:N", None)
    theory = (
        base.transform_calculate(what="'large-d formula'").mark_line().encode(x=x, y=y, color=key)
    )
    erf = base.transform_calculate(what="'erf attention, closed form'").mark_line(strokeDash=[5, 4])
    dots = base.transform_calculate(what="'tilted sampling'").mark_point(filled=True, size=50)
    chart = (
        theory
        + erf.encode(x=x, y="erf:Q", color=key)
        + dots.encode(
            x=x,
            y="measured:Q",
            color=key,
            tooltip=["dim:Q", "measured:Q", "error:Q", "predicted:Q"],
        )
    )
    ratio = base.transform_calculate(
        ratio="datum.measured / datum.predicted", spread="2 * datum.error / datum.predicted"
    )
    ratio = ratio.transform_calculate(
        low="datum.ratio - datum.spread", high="datum.ratio + datum.spread"
    )
    below = (
        ratio.mark_rule().encode(
            x=x, y=alt.Y("low:Q", title="ratio", scale=alt.Scale(zero=False)), y2="high:Q"
        )
        + ratio.mark_point(filled=True, size=30).encode(x=x, y="ratio:Q")
        + rule_at(1)
    )
    return finish(
        alt.vconcat(
            chart.properties(width=WIDTH, height=HEIGHT), below.properties(width=WIDTH, height=80)
        ),
        "An exponentially small gap",
        "below: sampled over formula; error bars of the points above are smaller than a point",
    )


def gap_ratios(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error")
    frame["ratio"], spread = (
        frame["measured"] / frame["predicted"],
        2 * frame["error"] / frame["predicted"],
    )
    frame["low"], frame["high"] = frame["ratio"] - spread, frame["ratio"] + spread
    frame["task"] = [
        f"{row.predictor}, γ={row.gamma:.2g}, L={row.length}" for row in frame.itertuples()
    ]
    x = alt.X("dim:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    base, hue = alt.Chart(frame), colour("task:N", None)
    scale = alt.Scale(domain=[0.88, 1.12])
    bars = base.mark_rule(opacity=0.7).encode(
        x=x, y=alt.Y("low:Q", title="sampled / formula", scale=scale), y2="high:Q", color=hue
    )
    dots = base.mark_line(point=alt.OverlayMarkDef(size=30)).encode(
        x=x, y=alt.Y("ratio:Q", scale=scale), color=hue
    )
    lines = rule_at(0.9, "the margin") + rule_at(1.0) + rule_at(1.1)
    return finish(
        (bars + dots + lines).properties(width=WIDTH, height=HEIGHT),
        "The gaps with their constants",
    )


def erf_gap_curve(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "lam")
    x = alt.X("dim:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s"))
    y = alt.Y(
        "predicted:Q",
        title="excess risk at the best λ",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~g"),
    )
    base, key = alt.Chart(frame), colour("what:N", None)
    theory = (
        base.transform_calculate(what="'closed form'")
        .mark_line(interpolate="monotone")
        .encode(x=x, y=y, color=key)
    )
    dots = base.transform_calculate(what="'simulation'").mark_point(filled=True, size=50)
    dots = dots.encode(
        x=x, y="measured:Q", color=key, tooltip=["dim:Q", "lam:Q", "measured:Q", "error:Q"]
    )
    return finish(
        (theory + dots).properties(width=WIDTH, height=HEIGHT),
        "How far erf attention is from perfect",
        "errors are smaller than a point",
    )


def ladder_rate(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "x", "measured", "error", "predicted", "limit", "tokens", "lam")
    x = alt.X("x:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s"))
    y = alt.Y(
        "predicted:Q",
        title="excess risk of the oracle",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~g"),
    )
    base = alt.Chart(frame)
    key = colour("what:N", None)
    theory = base.transform_calculate(what="'closed form'").mark_line().encode(x=x, y=y, color=key)
    limit = (
        base.transform_calculate(what="'4/π √(L/d)'")
        .mark_line(strokeDash=[5, 4])
        .encode(x=x, y="limit:Q", color=key)
    )
    dots = (
        base.transform_calculate(what="'simulation'")
        .mark_point(filled=True, size=50)
        .encode(
            x=x,
            y="measured:Q",
            color=key,
            tooltip=["x:Q", "tokens:Q", "lam:Q", "measured:Q", "error:Q"],
        )
    )
    return finish(
        (theory + limit + dots).properties(width=WIDTH, height=HEIGHT),
        "The oracle becomes optimal",
        "points: simulation, whose errors are smaller than a point",
    )


def ladder_order(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "lower", "upper", "error")
    x = alt.X(
        "dim:Q",
        title="d of the lower rung",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~s"),
    )
    base = alt.Chart(frame)
    y = alt.Y("lower:Q", title="excess risk of the oracle", scale=alt.Scale(zero=True))
    bars = base.mark_rule(color="#bbb", strokeWidth=2).encode(x=x, y=y, y2="upper:Q")
    ends = base.transform_fold(["upper", "lower"], as_=["side", "risk"]).transform_calculate(
        rung="datum.side == 'upper' ? 'at d' : 'at 4d'"
    )
    dots = ends.mark_point(filled=True, size=60).encode(
        x=x, y="risk:Q", color=colour("rung:N", None)
    )
    return finish(
        (bars + dots).properties(width=WIDTH, height=HEIGHT),
        "Rung by rung",
        "each bar: the excess risk at d and at 4d",
    )


def bound_scatter(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "bound", "measured", rows=900)
    ends = [float(frame["bound"].min()), float(frame["bound"].max())]
    log = alt.Scale(type="log")
    line = (
        alt.Chart(pd.DataFrame({"bound": ends}))
        .mark_line(color=THEORY)
        .encode(x=alt.X("bound:Q", scale=log), y=alt.Y("bound:Q", scale=log))
    )
    dots = (
        alt.Chart(frame)
        .mark_point(filled=True, size=16, opacity=0.6)
        .encode(
            x=alt.X("bound:Q", title="bound", scale=log, axis=alt.Axis(format="~g")),
            y=alt.Y(
                "measured:Q",
                title="excess risk of the oracle",
                scale=log,
                axis=alt.Axis(format="~g"),
            ),
            color=colour("part:N", "part"),
            shape=alt.Shape("found:N", title="place chosen"),
        )
    )
    return finish(
        (dots + line).properties(width=WIDTH, height=HEIGHT),
        "The bound and what it bounds",
        "on the line the bound would be attained",
    )
