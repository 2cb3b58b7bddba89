"""Figures of single-location regression, each drawn from the evidence of its claim."""

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
    log_floor,
    rule_at,
    table,
)


def zeta_curves(evidence: xr.Dataset) -> Any:
    theory = table(evidence, "predicted", "t", "s")
    points = table(evidence.sel(route="simulation"), "measured", "error", "t", "s", rows=400)
    points["low"], points["high"] = points["measured"] - 2 * points["error"], points["measured"] + 2 * points["error"]
    x, y = alt.X("t:Q", title="t"), alt.Y("predicted:Q", title="ζ(t, s)")
    hue = colour("s:N", "s")
    curves = alt.Chart(theory).mark_line(interpolate="monotone").encode(x=x, y=y, color=hue)
    base = alt.Chart(points)
    dots = base.mark_point(filled=True, size=28).encode(
        x=x, y="measured:Q", color=hue, tooltip=["t:Q", "s:Q", "measured:Q", "error:Q"]
    )
    chart = curves + error_bars(base, x, "low", "high", "ζ(t, s)", color=hue) + dots
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Mean square of a smoothed erf",
        "lines: Owen's T; points: simulation",
    )


def _route_curves(evidence: xr.Dataset, y: str) -> alt.LayerChart:
    frame = table(evidence, "predicted", "measured", "t")
    hue = colour("spread:N", "s")
    x = alt.X("t:Q", title="t")
    base = alt.Chart(frame)
    curves = base.mark_line(interpolate="monotone").encode(x=x, y=alt.Y("predicted:Q", title=y), color=hue)
    return curves + base.mark_point(filled=True, size=14).encode(x=x, y="measured:Q", color=hue)


def zeta_derivative_curves(evidence: xr.Dataset) -> Any:
    panels = [
        _route_curves(evidence.sel(order=order), name).properties(width=250, height=230)
        for order, name in ((1, "∂ζ/∂t"), (2, "∂²ζ/∂t²"), (3, "∂³ζ/∂t³"))
    ]
    return finish(alt.hconcat(*panels), "Derivatives of zeta", "lines: closed form; points: automatic differentiation")


def heat_curves(evidence: xr.Dataset) -> Any:
    chart = _route_curves(evidence, "∂ζ/∂s").properties(width=WIDTH, height=HEIGHT)
    return finish(chart, "The heat equation of zeta", "lines: s ∂²ζ/∂t²; points: ∂ζ/∂s by automatic differentiation")


def risk_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Closed-form risk against simulation", "dim", "d", "risk")


def symmetry_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Risk of a head and of its images", "symmetry", "image", "risk")


def gradient_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Gradient of the risk", "overlap", "partial derivative in", "derivative")


def quantile_agreement(evidence: xr.Dataset) -> Any:
    levels = np.linspace(0.005, 0.995, 67)
    both = evidence[["sample_a", "sample_b"]].isel(cell=-1).quantile(levels, "draw")
    frame = both.to_dataframe().reset_index()
    base = alt.Chart(frame).encode(
        x=alt.X("sample_a:Q", title="quantile, projections"), y=alt.Y("sample_b:Q", title="quantile, tokens")
    )
    diagonal = alt.Chart(frame).mark_line(color=THEORY, strokeWidth=1).encode(x="sample_a:Q", y="sample_a:Q")
    dots = base.mark_point(filled=True, size=14).encode(color=colour("head:N", "head"))
    panels = (
        (diagonal + dots).properties(width=220, height=180).facet(facet=alt.Facet("statistic:N", title=None), columns=2)
    )
    return finish(
        panels.resolve_scale(x="independent", y="independent"),
        "Losses drawn from projections and from tokens",
        f"quantiles from 0.5 % to 99.5 %, d = {int(evidence['dim'].values[-1])}",
    )


def path_agreement(evidence: xr.Dataset) -> Any:
    first = table(evidence[["predicted", "measured"]].isel(repeat=0), "predicted", "measured")
    base = alt.Chart(first)
    x, hue = alt.X("step:Q", title="step"), colour("overlap:N", "overlap")
    lines = base.mark_line().encode(x=x, y=alt.Y("predicted:Q", title="overlap"), color=hue)
    dots = base.mark_point(filled=True, size=16).encode(x=x, y="measured:Q", color=hue)
    panels = (lines + dots).properties(width=220, height=180).facet(facet=alt.Facet("dim:N", title="d"), columns=2)
    return finish(
        panels, "Descent in d dimensions and on five overlaps", "lines: five overlaps; points: vectors; one start each"
    )


def distance_curves(evidence: xr.Dataset) -> Any:
    largest = evidence["measured"].max("repeat")
    frame = log_floor(largest, 1e-20).to_dataset(name="distance").to_dataframe().reset_index()
    chart = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=14))
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("distance:Q", title="largest distance to the manifold", scale=alt.Scale(type="log", domain=[1e-20, 10]), axis=alt.Axis(format=".0e", values=[1e-20, 1e-16, 1e-12, 1e-8, 1e-4, 1])),
            color=colour("dim:N", "d"),
            strokeDash=alt.StrokeDash("route:N", title="route"),
        )
    )  # fmt: skip
    chart = (chart + rule_at(1e-12, "what the rule allows")).properties(width=WIDTH, height=HEIGHT)
    return finish(chart, "Starts on the manifold stay on it", "exact zeros are drawn at 1e-20")


def manifold_panels(evidence: xr.Dataset) -> Any:
    """The paper's Figure 3b: excess risk, alignments, distance to the manifold; median and 95 % band over runs."""
    one = evidence.isel(cell=0)
    floor = 1e-20

    def panel(names: dict[str, str], title: str, scale: alt.Scale, log: bool = False) -> alt.LayerChart:
        axis = alt.Axis(format=".0e", tickCount=6) if log else alt.Axis()
        parts = []
        for name, label in names.items():
            curve = log_floor(one[name], floor) if log else one[name]
            wide = curve.to_dataset("band").to_dataframe().reset_index()
            parts.append(wide.assign(curve=label))
        base = alt.Chart(pd.concat(parts)).encode(x=alt.X("step:Q", title="step"))
        hue = alt.Color(
            "curve:N",
            title=None,
            scale=alt.Scale(range=PALETTE),
            legend=alt.Legend(orient="top") if len(names) > 1 else None,
        )
        band = base.mark_area(opacity=0.25).encode(
            y=alt.Y("low:Q", scale=scale, title=title, axis=axis), y2="high:Q", color=hue
        )
        return band + base.mark_line().encode(y=alt.Y("median:Q", scale=scale, title=title, axis=axis), color=hue)

    risk = panel({"excess_risk": "excess risk"}, "excess risk", alt.Scale())
    risk = risk + rule_at(float(one["oracle"]), "oracle") + rule_at(float(one["origin"]), "saddle at the origin")
    aligned = panel(
        {"kappa_size": "|κ| = |⟨k, k*⟩|", "nu_size": "|ν| = |⟨v, v*⟩|"}, "alignment", alt.Scale(domain=[0, 1])
    )
    aligned = aligned + rule_at(0.95, "arrived")
    distance = panel(
        {"distance": "distance"}, "distance to the manifold", alt.Scale(type="log", domain=[floor, 10]), log=True
    )
    panels = (chart.properties(width=250, height=230) for chart in (risk, aligned, distance))
    runs = one.sizes["repeat"]
    return finish(
        alt.hconcat(*panels).resolve_scale(color="independent"),
        "Descent from the manifold",
        f"median and 95 % band of {runs} runs; {int(one['arrived'].sum())} arrive; a distance of 0 is drawn at 1e-20",
    )


def linear_risks(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "constant")
    frame["low"], frame["high"] = frame["measured"] - 2 * frame["error"], frame["measured"] + 2 * frame["error"]
    frame["task"] = [f"L={row.length:g}, γ={row.gamma:.2g}" for row in frame.itertuples()]
    base = alt.Chart(frame)
    x = alt.X("task:N", title=None, axis=alt.Axis(labelAngle=0))
    y = alt.Y("predicted:Q", title="risk")
    key = colour("what:N", None)
    theory = (
        base.transform_calculate(what="'Proposition 3'").mark_tick(thickness=2, size=70).encode(x=x, y=y, color=key)
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
    frame = table(evidence, "risk", "risk_error")
    # A risk made of events that the sample did not contain says nothing, not even its own error.
    frame = frame[frame["risk"] > 5 * frame["risk_error"]].assign(
        low=lambda f: f["risk"] - 2 * f["risk_error"], high=lambda f: f["risk"] + 2 * f["risk_error"]
    )
    formulas = pd.concat(
        [
            table(evidence, f"{name}_formula").rename(columns={f"{name}_formula": "risk"}).assign(predictor=name)
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
        "points: simulation on the same sequences, where it sees the risk; lines: closed forms",
    )


def ladder_rate(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "x", "measured", "error", "predicted", "limit", "tokens", "lam")
    x = alt.X("x:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s"))
    y = alt.Y("predicted:Q", title="excess risk of the oracle", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    base = alt.Chart(frame)
    key = colour("what:N", None)
    theory = base.transform_calculate(what="'closed form'").mark_line().encode(x=x, y=y, color=key)
    limit = (
        base.transform_calculate(what="'4/π √(L/d)'").mark_line(strokeDash=[5, 4]).encode(x=x, y="limit:Q", color=key)
    )
    dots = (
        base.transform_calculate(what="'simulation'")
        .mark_point(filled=True, size=50)
        .encode(x=x, y="measured:Q", color=key, tooltip=["x:Q", "tokens:Q", "lam:Q", "measured:Q", "error:Q"])
    )
    return finish(
        (theory + limit + dots).properties(width=WIDTH, height=HEIGHT), "The oracle becomes optimal", "L = d^¼, λ = (dL)^(−¼); two standard errors are smaller than a point"
    )  # fmt: skip


def bound_scatter(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "bound", "measured")
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
            y=alt.Y("measured:Q", title="excess risk of the oracle", scale=log, axis=alt.Axis(format="~g")),
            color=colour("found:N", "place chosen"),
        )
    )
    return finish(
        (dots + line).properties(width=WIDTH, height=HEIGHT),
        "The bound and what it bounds",
        "on the line the bound would be attained",
    )
