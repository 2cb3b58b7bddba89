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


LEVELS = {"oracle_level": "oracle", "swapped_level": "swapped", "origin_level": "origin"}


def _bands(one: xr.Dataset, names: dict[str, str], title: str, scale: alt.Scale, log: bool = False) -> alt.LayerChart:
    """Mean and 95 % band over runs of the curves `names`, which maps variables to what a legend calls them."""
    parts = []
    for name, label in names.items():
        curve = log_floor(one[name], FLOOR) if log else one[name]
        parts.append(curve.to_dataset("band").to_dataframe().reset_index().assign(curve=label))
    axis = alt.Axis(format=".0e", tickCount=6) if log else alt.Axis()
    base = alt.Chart(pd.concat(parts)).encode(x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4, format="~s")))
    legend = alt.Legend(orient="top") if len(names) > 1 else None
    hue = alt.Color("curve:N", title=None, scale=alt.Scale(range=PALETTE), legend=legend)
    y = alt.Y("mean:Q", scale=scale, title=title, axis=axis)
    band = base.mark_area(opacity=0.25).encode(
        y=alt.Y("low:Q", scale=scale, title=title, axis=axis), y2="high:Q", color=hue
    )
    return band + base.mark_line().encode(y=y, color=hue)


FLOOR = 1e-20


def run_panels(evidence: xr.Dataset) -> Any:
    """The paper's panels of a population run: excess risk, alignments, trajectories, distance to the manifold."""
    one = evidence.isel(cell=0)
    top = float(max(one["excess_risk"].sel(band="high").max(), one["origin_level"].max()))
    curves = (
        {"excess_risk": "closed form", "test_risk": "test batch"} if "test_risk" in one else {"excess_risk": "runs"}
    )
    # Where a run is compared with a test batch, a logarithm shows its end.
    online = "test_risk" in one
    low = 0.5 * float(one["swapped_level"].min())
    scale = alt.Scale(type="log", domain=[low, 1.2 * top]) if online else alt.Scale(domain=[0, top], nice=True)
    risk = _bands(one.clip(min=low) if online else one, curves, "excess risk", scale)
    levels = one[list(LEVELS)].rename(LEVELS).to_dataframe().reset_index().melt("step", list(LEVELS.values()))
    dashes = alt.StrokeDash("variable:N", title=None, legend=alt.Legend(orient="top"))
    theory = (
        alt.Chart(levels)
        .mark_line(color=THEORY, strokeWidth=1.2, clip=True)
        .encode(x="step:Q", y="value:Q", strokeDash=dashes)
    )
    aligned = _bands(one, {"kappa_size": "|κ|", "nu_size": "|ν|"}, "alignment", alt.Scale(domain=[0, 1]))
    distance = _bands(
        one, {"distance": "distance"}, "distance to the manifold",
        alt.Scale(type="log", domain=[max(FLOOR, 0.3 * float(one["distance"].min())), 10]), log=True,
    )  # fmt: skip
    paths = one[["kappa_path", "nu_path"]].to_dataframe().reset_index()
    square = alt.Scale(domain=[-1, 1])
    trajectories = (
        alt.Chart(paths)
        .mark_line(opacity=0.7, strokeWidth=1.5)
        .encode(
            x=alt.X("kappa_path:Q", title="κ", scale=square),
            y=alt.Y("nu_path:Q", title="ν", scale=square),
            detail="run:N",
            order="step:Q",
            color=alt.value(PALETTE[0]),
        )
    )
    ends = pd.DataFrame({"kappa_path": [1, -1], "nu_path": [1, -1]})
    optima = alt.Chart(ends).mark_point(shape="cross", size=90, color=THEORY).encode(x="kappa_path:Q", y="nu_path:Q")
    rows = [[risk + theory, aligned + rule_at(0.9)], [trajectories + optima, distance]]
    chart = alt.vconcat(
        *(
            alt.hconcat(*(panel.properties(width=290, height=200) for panel in row)).resolve_scale(color="independent")
            for row in rows
        )
    )
    runs = int(one.sizes["repeat"])
    return finish(
        chart,
        "Online descent" if "test_risk" in one else "Descent of the population risk",
        f"mean and 95 % band of {runs} runs, {int(one['arrived'].sum())} of which do what is claimed, and paths of {one.sizes['run']}; black: theory",
    )


def schedule_comparison(evidence: xr.Dataset) -> Any:
    one = evidence.isel(cell=0)
    share, runs = one["failed"].mean("repeat"), one.sizes["repeat"]
    frame = share.to_dataframe("share").reset_index()
    spread = 2 * np.sqrt(frame["share"] * (1 - frame["share"]) / runs)
    frame["low"], frame["high"] = (frame["share"] - spread).clip(lower=0), frame["share"] + spread
    base = alt.Chart(frame)
    y = alt.Y("schedule:N", title=None)
    bars = base.mark_bar(size=22).encode(x=alt.X("share:Q", title="share of starts that take the swapped branch", axis=alt.Axis(format="%")), y=y, color=colour("schedule:N", None, legend=None))  # fmt: skip
    whiskers = base.mark_rule(color=THEORY).encode(x="low:Q", x2="high:Q", y=y)
    return finish(
        (bars + whiskers).properties(width=WIDTH, height=110),
        "Two schedules from the same starts",
        f"{runs:,} starts; lines: two standard errors",
    )


def fixed_point_rates(evidence: xr.Dataset) -> Any:
    rates = evidence.sel(quantity=["slow rate", "fast rate"])
    frame = table(rates, "predicted", "measured")
    frame["setting"] = [f"λ={r.lam:g}, d={r.dim}" for r in frame.itertuples()]
    base = alt.Chart(frame)
    x = alt.X("place:N", title="fixed point (κ, ν)", axis=alt.Axis(labelAngle=0))
    y = alt.Y("predicted:Q", title="rate of the flow", scale=alt.Scale(type="symlog", constant=0.1))
    closed = base.mark_tick(thickness=2, size=36, color=THEORY).encode(x=x, y=y)
    found = base.mark_point(filled=True, size=30).encode(x=x, y="measured:Q", color=colour("setting:N", "setting"))
    chart = (closed + found + rule_at(0)).properties(width=WIDTH, height=HEIGHT)
    return finish(
        chart, "Fixed points on the manifold", "ticks: closed form; points: automatic differentiation; below 0 attracts"
    )


def phase_portrait(evidence: xr.Dataset) -> Any:
    """The paper's Figure 5: field, fixed points by type, the stable curve of the saddle, the basins."""
    one = evidence.isel(cell=0)
    frame = one[["kappa", "nu", "velocity_kappa", "velocity_nu", "ends_up", "arrived"]].to_dataframe().reset_index()
    frame["basin"] = np.where(frame["ends_up"], "(1, 1)", "(−1, −1)")
    few = frame.iloc[:: max(1, len(frame) // 250)].copy()
    speed = np.hypot(few["velocity_kappa"], few["velocity_nu"])
    few["angle"] = np.degrees(np.arctan2(few["velocity_kappa"], few["velocity_nu"]))
    few["speed"] = speed
    few = few[["kappa", "nu", "angle", "speed"]].round(4)
    square = alt.Scale(domain=[-1, 1])
    x, y = alt.X("kappa:Q", title="κ = ⟨k, k*⟩", scale=square), alt.Y("nu:Q", title="ν = ⟨v, v*⟩", scale=square)
    basins = (
        alt.Chart(frame.iloc[:: max(1, len(frame) // 500)][["kappa", "nu", "basin"]].round(4))
        .mark_circle(size=150, opacity=0.25)
        .encode(x=x, y=y, color=colour("basin:N", "ends at"))
    )
    arrows = (
        alt.Chart(few)
        .mark_point(shape="wedge", filled=True, color=THEORY)
        .encode(
            x=x,
            y=y,
            angle=alt.Angle("angle:Q", scale=alt.Scale(domain=[0, 360], range=[0, 360])),
            size=alt.Size("speed:Q", title="speed", scale=alt.Scale(type="log", range=[30, 260])),
        )
    )
    curve = one[["curve_kappa", "curve_nu"]].to_dataframe().reset_index()
    line = (
        alt.Chart(curve)
        .mark_line(color=THEORY, strokeWidth=2)
        .encode(x="curve_kappa:Q", y="curve_nu:Q", order="curve_kappa:Q")
    )
    points = pd.DataFrame(
        {
            "kappa": [0, 1, -1, 1, -1],
            "nu": [0, 1, -1, -1, 1],
            "type": ["saddle", "minimum", "minimum", "maximum", "maximum"],
        }
    )
    marks = (
        alt.Chart(points)
        .mark_point(filled=True, size=160, stroke="white")
        .encode(x=x, y=y, shape=alt.Shape("type:N", title="fixed point"), color=alt.value(PALETTE[2]))
    )
    chart = (basins + arrows + line + marks).properties(width=420, height=420)
    return finish(chart, "The flow on the manifold", "line: the stable curve of the saddle, which separates the basins")


def _curves(frame: pd.DataFrame, x: str, y: str, by: str, titles: tuple[str, str, str], log: bool = True) -> alt.Chart:
    scale = alt.Scale(type="log") if log else alt.Scale()
    return alt.Chart(frame).mark_line(point=alt.OverlayMarkDef(size=18)).encode(
        x=alt.X(f"{x}:Q", title=titles[0], scale=scale, axis=alt.Axis(format="~g")), y=alt.Y(f"{y}:Q", title=titles[1]), color=colour(f"{by}:N", titles[2])
    )  # fmt: skip


def transverse_spectrum(evidence: xr.Dataset) -> Any:
    frame = table(evidence.isel(row=0), "rate")
    chart = _curves(frame, "lam", "rate", "place", ("λ", "slowest decay off the manifold", "(κ, ν)"))
    return finish(
        (chart + rule_at(0, "below this the manifold repels")).properties(width=WIDTH, height=HEIGHT),
        "Stability across the manifold",
    )


def critical_sharpness(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured")
    frame["task"] = [f"d={r.dim}, L={r.length}, γ={r.gamma:.2g}" for r in frame.itertuples()]
    base = alt.Chart(frame)
    y = alt.Y("task:N", title=None, sort=None)
    closed = base.mark_tick(thickness=2, size=18, color=THEORY).encode(
        x=alt.X("predicted:Q", title="critical λ", scale=alt.Scale(zero=False)), y=y
    )
    found = base.mark_point(filled=True, size=45).encode(x="measured:Q", y=y, color=alt.value(PALETTE[0]))
    limit = alt.Chart(alt.Data(values=[{"x": 3**0.5 / 2}])).mark_rule(strokeDash=[5, 4], color=THEORY).encode(x="x:Q")
    return finish(
        (closed + found + limit).properties(width=WIDTH, height=200),
        "Where the oracle stops to attract",
        "ticks: formula; points: zero of the smallest eigenvalue; dashed: √3/2",
    )


def swapped_positions(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "The swapped attractor: formula and end of descent", "overlap", "overlap", "overlap")


def swapped_spectrum(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "lower", "sharpness")
    chart = _curves(frame, "sharpness", "lower", "dim", ("λ", "largest real part of the spectrum", "d"))
    return finish(
        (chart + rule_at(0, "above this it would be unstable")).properties(width=WIDTH, height=HEIGHT),
        "The swapped point is a minimum",
    )


def swapped_risks(evidence: xr.Dataset) -> Any:
    frame = evidence["curve"].isel(cell=[0, -1]).to_dataframe().reset_index()
    x = alt.X("sharpness:Q", title="λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    y = alt.Y("curve:Q", title="risk", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    lines = (
        alt.Chart(frame)
        .mark_line()
        .encode(x=x, y=y, color=colour("solution:N", "solution"), strokeDash=alt.StrokeDash("dim:N", title="d"))
    )
    places = table(evidence, "lower", "upper")
    dots = (
        alt.Chart(places)
        .mark_rule(color=THEORY, strokeWidth=2)
        .encode(x=alt.X("lam:Q"), y=alt.Y("lower:Q"), y2="upper:Q")
    )
    return finish(
        (lines + dots).properties(width=WIDTH, height=HEIGHT),
        "Oracle and swapped solution",
        "bars: where the claim compares them",
    )


def corner_rates(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured")
    x = alt.X("lam:Q", title="λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    y = alt.Y("predicted:Q", title="rate of 1 − κ", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e"))
    base = alt.Chart(frame)
    chart = base.mark_line(color=THEORY).encode(x=x, y=y) + base.mark_point(
        filled=True, size=45, color=PALETTE[0]
    ).encode(x=x, y="measured:Q")
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "The last stretch slows down",
        "line: closed form; points: quadrature of the definition",
    )


def flips(evidence: xr.Dataset) -> Any:
    frame = evidence["rho_path"].isel(cell=0).to_dataframe().reset_index()
    chart = alt.Chart(frame).mark_line(point=alt.OverlayMarkDef(size=14)).encode(
        x=alt.X("step:Q", title="step", scale=alt.Scale(zero=False)), y=alt.Y("rho_path:Q", title="ρ = ⟨k, v⟩"), color=colour("run:N", "run")
    )  # fmt: skip
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Two states in turn",
        "the last sixty steps of four runs; on the manifold ρ = 0",
    )


def flow_limit(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "x", "measured")
    frame["first order"] = frame["measured"].iloc[-1] * frame["x"] / frame["x"].iloc[-1]
    x = alt.X("x:Q", title="step size α", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e"))
    y = alt.Y("first order:Q", title="distance to the flow", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e"))
    base = alt.Chart(frame)
    chart = base.mark_line(color=THEORY, strokeDash=[5, 4]).encode(x=x, y=y) + base.mark_point(
        filled=True, size=45, color=PALETTE[0]
    ).encode(x=x, y="measured:Q")
    return finish(chart.properties(width=WIDTH, height=HEIGHT), "Descent follows the flow", "dashed: proportional to α")


def failure_shares(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "lower", "upper", "error")
    frame["pair"] = [f"λ={r.than_lam:g}, d={r.than_dim} → λ={r.lam:g}, d={r.dim}" for r in frame.itertuples()]
    y = alt.Y("pair:N", title=None, sort=None, axis=alt.Axis(labelLimit=240))
    base = alt.Chart(frame)
    line = base.mark_rule(strokeWidth=3, color="#ccc").encode(
        y=y, x=alt.X("lower:Q", title="share of starts on the swapped branch"), x2="upper:Q"
    )
    ends = base.transform_fold(["upper", "lower"], as_=["side", "share"]).mark_point(filled=True, size=70)
    dots = ends.encode(y=y, x="share:Q", color=colour("side:N", None))
    return finish((line + dots).properties(width=WIDTH, height=150), "Failures fall with sharpness and with dimension")


def basin_shares(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "leading_order")
    base = alt.Chart(frame).transform_fold(["measured", "predicted", "leading_order"], as_=["what", "share"])
    chart = base.mark_point(filled=True, size=70).encode(
        x=alt.X("lam:N", title="λ", axis=alt.Axis(labelAngle=0)),
        xOffset="what:N",
        y=alt.Y("share:Q", title="share of failing starts", scale=alt.Scale(domain=[0, 0.6])),
        color=colour("what:N", None),
    )
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT),
        "Failure is the measure of a basin",
        "measured: on the sphere; predicted: Gaussian overlaps; the leading-order law is off",
    )


def linear_risks(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "constant")
    frame["low"], frame["high"] = frame["measured"] - 2 * frame["error"], frame["measured"] + 2 * frame["error"]
    frame["task"] = [
        f"L={row.length:g}, γ={row.gamma:.2g}" + (f", ratio {row.ratio:g}" if row.ratio != 1 else "")
        for row in frame.itertuples()
    ]
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
    frame["low"], frame["high"] = frame["risk"] - 2 * frame["risk_error"], frame["risk"] + 2 * frame["risk_error"]
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
    y = alt.Y("predicted:Q", title="excess risk", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e", tickCount=8))
    base, key = alt.Chart(frame), colour("what:N", None)
    theory = base.transform_calculate(what="'large-d formula'").mark_line().encode(x=x, y=y, color=key)
    erf = base.transform_calculate(what="'erf attention, closed form'").mark_line(strokeDash=[5, 4])
    dots = base.transform_calculate(what="'tilted sampling'").mark_point(filled=True, size=50)
    chart = (
        theory
        + erf.encode(x=x, y="erf:Q", color=key)
        + dots.encode(x=x, y="measured:Q", color=key, tooltip=["dim:Q", "measured:Q", "error:Q", "predicted:Q"])
    )
    ratio = base.transform_calculate(
        ratio="datum.measured / datum.predicted", spread="2 * datum.error / datum.predicted"
    )
    ratio = ratio.transform_calculate(low="datum.ratio - datum.spread", high="datum.ratio + datum.spread")
    below = (
        ratio.mark_rule().encode(x=x, y=alt.Y("low:Q", title="ratio", scale=alt.Scale(zero=False)), y2="high:Q")
        + ratio.mark_point(filled=True, size=30).encode(x=x, y="ratio:Q")
        + rule_at(1)
    )
    return finish(
        alt.vconcat(chart.properties(width=WIDTH, height=HEIGHT), below.properties(width=WIDTH, height=80)),
        "An exponentially small gap",
        "below: sampled over formula; error bars of the points above are smaller than a point",
    )


def gap_ratios(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error")
    frame["ratio"], spread = frame["measured"] / frame["predicted"], 2 * frame["error"] / frame["predicted"]
    frame["low"], frame["high"] = frame["ratio"] - spread, frame["ratio"] + spread
    frame["task"] = [f"{row.predictor}, γ={row.gamma:.2g}, L={row.length}" for row in frame.itertuples()]
    x = alt.X("dim:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    base, hue = alt.Chart(frame), colour("task:N", None)
    scale = alt.Scale(domain=[0.88, 1.12])
    bars = base.mark_rule(opacity=0.7).encode(
        x=x, y=alt.Y("low:Q", title="sampled / formula", scale=scale), y2="high:Q", color=hue
    )
    dots = base.mark_line(point=alt.OverlayMarkDef(size=30)).encode(x=x, y=alt.Y("ratio:Q", scale=scale), color=hue)
    lines = rule_at(0.9, "the margin") + rule_at(1.0) + rule_at(1.1)
    return finish((bars + dots + lines).properties(width=WIDTH, height=HEIGHT), "The gaps with their constants")


def erf_gap_curve(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "predicted", "measured", "error", "lam")
    x = alt.X("dim:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s"))
    y = alt.Y("predicted:Q", title="excess risk at the best λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    base, key = alt.Chart(frame), colour("what:N", None)
    theory = (
        base.transform_calculate(what="'closed form'").mark_line(interpolate="monotone").encode(x=x, y=y, color=key)
    )
    dots = base.transform_calculate(what="'simulation'").mark_point(filled=True, size=50)
    dots = dots.encode(x=x, y="measured:Q", color=key, tooltip=["dim:Q", "lam:Q", "measured:Q", "error:Q"])
    return finish(
        (theory + dots).properties(width=WIDTH, height=HEIGHT),
        "How far erf attention is from perfect",
        "errors are smaller than a point",
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
        (theory + limit + dots).properties(width=WIDTH, height=HEIGHT), "The oracle becomes optimal", "points: simulation, whose errors are smaller than a point"
    )  # fmt: skip


def ladder_order(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "lower", "upper", "error")
    x = alt.X("dim:Q", title="d of the lower rung", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s"))
    base = alt.Chart(frame)
    y = alt.Y("lower:Q", title="excess risk of the oracle", scale=alt.Scale(zero=True))
    bars = base.mark_rule(color="#bbb", strokeWidth=2).encode(x=x, y=y, y2="upper:Q")
    ends = base.transform_fold(["upper", "lower"], as_=["side", "risk"]).transform_calculate(
        rung="datum.side == 'upper' ? 'at d' : 'at 4d'"
    )
    dots = ends.mark_point(filled=True, size=60).encode(x=x, y="risk:Q", color=colour("rung:N", None))
    return finish(
        (bars + dots).properties(width=WIDTH, height=HEIGHT), "Rung by rung", "each bar: the excess risk at d and at 4d"
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
            y=alt.Y("measured:Q", title="excess risk of the oracle", scale=log, axis=alt.Axis(format="~g")),
            color=colour("part:N", "part"),
            shape=alt.Shape("found:N", title="place chosen"),
        )
    )
    return finish(
        (dots + line).properties(width=WIDTH, height=HEIGHT),
        "The bound and what it bounds",
        "on the line the bound would be attained",
    )


def law_quantiles(evidence: xr.Dataset) -> Any:
    levels = np.linspace(0.01, 0.99, 50)
    both = evidence[["sample_a", "sample_b", "without_complement"]].isel(cell=-1).quantile(levels, "draw")
    names = {"sample_a": "five overlaps", "without_complement": "without the complement"}
    frame = both.to_dataframe().reset_index().rename(columns=names)
    long = frame.melt(["statistic", "sample_b"], list(names.values()), "simulation")
    line = alt.Chart().mark_line(color=THEORY, strokeWidth=1).encode(x="sample_b:Q", y="sample_b:Q")
    dots = alt.Chart().mark_point(filled=True, size=12).encode(
        x=alt.X("sample_b:Q", title="quantile, vectors", axis=alt.Axis(tickCount=4)), y=alt.Y("value:Q", title="quantile, simulation", axis=alt.Axis(tickCount=4)),
        color=colour("simulation:N", None),
    )  # fmt: skip
    columns = ["statistic", "sample_b", "simulation", "value"]
    panels = alt.layer(line, dots, data=long[columns].round(5)).properties(width=150, height=120)
    one = evidence.isel(cell=-1)
    return finish(
        panels.facet(facet=alt.Facet("statistic:N", title=None), columns=4).resolve_scale(
            x="independent", y="independent"
        ),
        "Online descent on vectors and on five overlaps",
        f"quantiles from 1 % to 99 % after {int(one['steps'])} steps, d = {int(one['dim'])}, batches of {int(one['batch_size'])}",
    )


def online_risk_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Closed-form risk along online runs", "step", "step", "risk")


def quadrature_errors(evidence: xr.Dataset) -> Any:
    scale = np.maximum(1, abs(evidence["predicted"]))
    routes = {"measured": "graded panels", "hermite": "64 Gauss-Hermite nodes"}
    worst = {
        words: (abs(evidence[name] - evidence["predicted"]) / scale).max("point") for name, words in routes.items()
    }
    frame = log_floor(xr.Dataset(worst).to_dataarray("route", "off"), 1e-16).to_dataframe("off").reset_index()
    chart = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=20))
        .encode(
            x=alt.X("lam:Q", title="λ", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")),
            y=alt.Y("off:Q", title="largest difference from the closed form", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e", tickCount=8)),
            color=colour("quantity:N", None),
            strokeDash=alt.StrokeDash("route:N", title=None),
        )
    )  # fmt: skip
    return finish(
        (chart + rule_at(1e-8, "what the rule allows")).properties(width=WIDTH, height=HEIGHT),
        "Quadrature of the risk and its derivatives",
        "relative to max(1, closed form); differences below 1e-16 are drawn there",
    )


def gate_agreement(evidence: xr.Dataset) -> Any:
    return agreement(evidence, "Risk of other gates against simulation", "activation", "gate", "risk")


def swap_agreement(evidence: xr.Dataset) -> Any:
    pairs = {"linear attention": ("predicted", "measured"), "erf attention": ("erf", "erf_swapped")}
    frames = [
        table(evidence, *names, rows=400)
        .rename(columns=dict(zip(names, ("here", "swapped"), strict=True)))
        .assign(head=head)
        for head, names in pairs.items()
    ]
    frame = pd.concat(frames)[["here", "swapped", "head"]].round(5)
    log = alt.Scale(type="log")
    base = alt.Chart(frame)
    line = base.mark_line(color=THEORY, strokeWidth=1).encode(
        x=alt.X("here:Q", scale=log), y=alt.Y("here:Q", scale=log)
    )
    dots = base.mark_point(filled=True, size=20, opacity=0.8).encode(
        x=alt.X("here:Q", title="risk", scale=log, axis=alt.Axis(format="~g")),
        y=alt.Y("swapped:Q", title="risk with k and v exchanged", scale=log, axis=alt.Axis(format="~g")),
        color=colour("head:N", None),
    )
    return finish((line + dots).properties(width=WIDTH, height=HEIGHT), "Exchanging the two vectors of a head")


def best_gate_shape(evidence: xr.Dataset) -> Any:
    """The best gates themselves, with the two laws of the score that they tell apart."""
    rows = []
    for cell in evidence["cell"].values:
        one = evidence.sel(cell=cell)
        dim, length = int(one["dim"]), int(one["length"])
        m = np.sqrt(dim / 2)
        a = np.linspace(-3, m + 3, 90)
        gate = 1 / (1 + np.exp(-(m * a - m**2 / 2 - np.log(length - 1))))
        for name, y in (("gate", gate), ("other tokens", np.exp(-(a**2) / 2)), ("informative token", np.exp(-((a - m) ** 2) / 2))):  # fmt: skip
            rows.append(pd.DataFrame({"a": a, "y": y, "curve": name, "task": f"d={dim}, L={length}"}))
    frame = pd.concat(rows).round(4)
    chart = (
        alt.Chart(frame)
        .mark_line()
        .encode(
            x=alt.X("a:Q", title="⟨x, k*⟩"),
            y=alt.Y("y:Q", title=None),
            color=colour("curve:N", None),
            column=alt.Column("task:N", title=None, sort=None),
        )
        .properties(width=180, height=170)
        .resolve_scale(x="independent")
    )
    return finish(
        chart, "The best gate", "the laws of the score, each scaled to height 1, and the sigmoid between them"
    )


def _excess_lines(frame: pd.DataFrame, by: str, x: alt.X, floor: float) -> alt.LayerChart:
    frame = frame.assign(excess=frame["excess"].clip(lower=floor))
    y = alt.Y("excess:Q", title="excess risk", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e", tickCount=8))
    order = list(dict.fromkeys(frame[by]))
    base = alt.Chart(frame).encode(x=x, y=y, color=colour(f"{by}:N", None, sort=order))
    return base.mark_line() + base.mark_point(filled=True, size=30)


def gate_order(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "excess", "lam", "threshold").replace({"gate": {"identity": "linear attention"}})
    x = alt.X("dim:Q", title="d", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    return finish(
        _excess_lines(frame, "gate", x, 0.0).properties(width=WIDTH, height=HEIGHT),
        "Six gates at their best",
        "k = k*, v = v*",
    )


def heads_order(evidence: xr.Dataset) -> Any:
    frame = table(evidence, "excess")
    floor = float(frame["excess"].min()) / 10
    lengths, dims = frame["length"].mode()[0], frame["dim"].mode()[0]
    against_d = _excess_lines(
        frame[frame["length"] == lengths].sort_values(["dim"], kind="stable"), "head",
        alt.X("dim:Q", title=f"d, at L = {lengths}", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")), floor,
    )  # fmt: skip
    against_l = _excess_lines(
        frame[frame["dim"] == dims].sort_values(["length"], kind="stable"), "head",
        alt.X("length:Q", title=f"L, at d = {dims}", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")), floor,
    )  # fmt: skip
    return finish(
        alt.hconcat(against_d.properties(width=280, height=HEIGHT), against_l.properties(width=280, height=HEIGHT)),
        "What each head can do",
        "each at its best, with k = k* and v = v*",
    )


def trained_paths(evidence: xr.Dataset) -> Any:
    one = evidence.isel(cell=0)
    paths = one[["kappa", "nu"]].to_dataframe().reset_index()[["run", "step", "kappa", "nu"]].round(4)
    square = alt.Scale(domain=[-1, 1])
    lines = (
        alt.Chart(paths)
        .mark_line(opacity=0.7, strokeWidth=1.3)
        .encode(
            x=alt.X("kappa:Q", title="κ", scale=square), y=alt.Y("nu:Q", title="ν", scale=square),
            detail="run:N", order="step:Q", color=alt.value(PALETTE[0]),
        )
    )  # fmt: skip
    oracle = alt.Chart(pd.DataFrame({"kappa": [1], "nu": [1]})).mark_point(shape="cross", size=90, color=THEORY)
    bands = one["excess"].to_dataset("band").to_dataframe().reset_index()
    base = alt.Chart(bands).encode(x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4, format="~s")))
    y = alt.Y("low:Q", title="excess risk", scale=alt.Scale(type="log", clamp=True), axis=alt.Axis(format="~g"))
    risk = base.mark_area(opacity=0.25).encode(y=y, y2="high:Q") + base.mark_line().encode(y="mean:Q")
    return finish(
        alt.hconcat(
            (lines + oracle.encode(x="kappa:Q", y="nu:Q")).properties(width=290, height=HEIGHT),
            risk.properties(width=290, height=HEIGHT),
        ),
        "Training the softmax head",
        f"left: {one.sizes['run']} runs, first the value (ν) and then the place (κ); right: mean and 95 % band of all",
    )


def trained_risks(evidence: xr.Dataset) -> Any:
    frame = evidence["excess"].isel(cell=0).to_dataset("band").to_dataframe().reset_index()
    frame[["low", "mean", "high"]] = frame[["low", "mean", "high"]].clip(lower=1e-4)
    base = alt.Chart(frame).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=5, format="~s")), color=colour("head:N", None)
    )
    y = alt.Y("low:Q", title="excess risk", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g"))
    chart = base.mark_area(opacity=0.2).encode(y=y, y2="high:Q") + base.mark_line().encode(y="mean:Q")
    return finish(
        chart.properties(width=WIDTH, height=HEIGHT), "Three heads trained alike", "mean and 95 % band of the runs"
    )


def basin_diagram(evidence: xr.Dataset) -> Any:
    ends = {"oracle": "oracle", "swapped": "swapped", "sliding": "on its way"}
    rest = evidence["sliding"] & ~(evidence["oracle"] | evidence["swapped"])
    shares = evidence[["oracle", "swapped"]].assign(sliding=rest).mean("repeat").rename(ends)
    frame = shares.to_dataframe().reset_index().melt(["dim", "lam"], list(ends.values()), "end", "share")
    bars = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("lam:O", title="λ", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("share:Q", title="share of starts", scale=alt.Scale(domain=[0, 1])),
            color=colour("end:N", "ends", sort=list(ends.values())),
            column=alt.Column("dim:N", title="d"),
        )
        .properties(width=max(90, 26 * frame["lam"].nunique()), height=170)
    )
    cell = int(np.argmin(abs(shares["oracle"] - 0.5).values))
    one = evidence.isel(cell=cell)
    starts = one[["nu_start", "eta_start", "oracle", "swapped"]].to_dataframe().reset_index()
    starts["end"] = np.where(starts["oracle"], "oracle", np.where(starts["swapped"], "swapped", "on its way"))
    log = alt.Scale(type="log")
    dots = (
        alt.Chart(starts[["nu_start", "eta_start", "end"]].iloc[:400].round(6))
        .mark_point(filled=True, size=22)
        .encode(
            x=alt.X("nu_start:Q", title="|ν| at the start", scale=log, axis=alt.Axis(format="~g")),
            y=alt.Y("eta_start:Q", title="|η| at the start", scale=log, axis=alt.Axis(format="~g")),
            color=colour("end:N", "ends", sort=list(ends.values())),
        )
    )
    eta = np.geomspace(float(starts["eta_start"].min()), float(starts["eta_start"].max()), 40)
    race = pd.DataFrame({"eta_start": eta, "nu_start": eta ** float(one["race"])})
    line = alt.Chart(race).mark_line(color=THEORY, strokeDash=[5, 4], clip=True).encode(x="nu_start:Q", y="eta_start:Q")
    below = (line + dots).properties(
        width=360, height=240, title=alt.TitleParams(f"d = {int(one['dim'])}, λ = {float(one['lam']):g}: which starts end where", fontSize=12)
    )  # fmt: skip
    return finish(
        alt.vconcat(bars, below),
        "Where descent at a constant sharpness ends",
        "dashed: |ν| = |η|^r, the race from the origin to leading order",
    )
