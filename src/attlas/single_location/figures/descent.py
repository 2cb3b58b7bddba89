"""Figures of descent: paths, the panels of a run, schedules, online runs."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.drawing import (
    PALETTE,
    THEORY,
    agreement,
    colour,
    finish,
    log_floor,
    rule_at,
)

LEVELS = {"oracle_level": "oracle", "swapped_level": "swapped", "origin_level": "origin"}


def _bands(
    one: xr.Dataset, names: dict[str, str], title: str, scale: alt.Scale, log: bool = False
) -> alt.LayerChart:
    """Mean and 95 % band over runs of the curves `names`, which maps variables to what a legend calls them."""
    parts = []
    for name, label in names.items():
        curve = log_floor(one[name], FLOOR) if log else one[name]
        parts.append(curve.to_dataset("band").to_dataframe().reset_index().assign(curve=label))
    axis = alt.Axis(format=".0e", tickCount=6) if log else alt.Axis()
    base = alt.Chart(pd.concat(parts)).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4, format="~s"))
    )
    legend = alt.Legend(orient="top") if len(names) > 1 else None
    hue = alt.Color("curve:N", title=None, scale=alt.Scale(range=PALETTE), legend=legend)
    y = alt.Y("mean:Q", scale=scale, title=title, axis=axis)
    band = base.mark_area(opacity=0.25).encode(
        y=alt.Y("low:Q", scale=scale, title=title, axis=axis), y2="high:Q", color=hue
    )
    return band + base.mark_line().encode(y=y, color=hue)


FLOOR = 1e-20


def run_panels(evidence: xr.Dataset, level: float = 0.9, told: str = "oracle: both above") -> Any:
    """The paper's panels of a population run: excess risk, alignments, trajectories, distance to the manifold. `level` is
    that of the alignments by which the claim tells where a run has ended, and `told` what it says of it."""
    one = evidence.isel(cell=0)
    top = float(max(one["excess_risk"].sel(band="high").max(), one["origin_level"].max()))
    curves = (
        {"excess_risk": "closed form", "test_risk": "test batch"}
        if "test_risk" in one
        else {"excess_risk": "runs"}
    )
    # Where a run is compared with a test batch, a logarithm shows its end.
    online = "test_risk" in one
    low = 0.5 * float(one["swapped_level"].min())
    scale = (
        alt.Scale(type="log", domain=[low, 1.2 * top])
        if online
        else alt.Scale(domain=[0, top], nice=True)
    )
    risk = _bands(one.clip(min=low) if online else one, curves, "excess risk", scale)
    levels = (
        one[list(LEVELS)]
        .rename(LEVELS)
        .to_dataframe()
        .reset_index()
        .melt("step", list(LEVELS.values()))
    )
    dashes = alt.StrokeDash("variable:N", title=None, legend=alt.Legend(orient="top"))
    theory = (
        alt.Chart(levels)
        .mark_line(color=THEORY, strokeWidth=1.2, clip=True)
        .encode(x="step:Q", y="value:Q", strokeDash=dashes)
    )
    aligned = _bands(
        one, {"kappa_size": "|κ|", "nu_size": "|ν|"}, "alignment", alt.Scale(domain=[0, 1])
    )
    floor = " (floor: 10⁻²⁰)" if float(one["distance"].min()) < FLOOR else ""
    distance = _bands(
        one,
        {"distance": "distance"},
        f"distance to the manifold{floor}",
        alt.Scale(type="log", domain=[max(FLOOR, 0.3 * float(one["distance"].min())), 10]),
        log=True,
    )
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
    optima = (
        alt.Chart(ends)
        .mark_point(shape="cross", size=90, color=THEORY)
        .encode(x="kappa_path:Q", y="nu_path:Q")
    )
    rows = [
        [risk + theory, aligned + rule_at(level, f"{told} {level:g}", under=True)],
        [trajectories + optima, distance],
    ]
    chart = alt.vconcat(
        *(
            alt.hconcat(*(panel.properties(width=290, height=200) for panel in row)).resolve_scale(
                color="independent"
            )
            for row in rows
        )
    )
    runs = int(one.sizes["repeat"])
    return finish(
        chart,
        "Online descent" if "test_risk" in one else "Descent of the population risk",
        f"mean and 95 % band of {runs} runs, {int(one['arrived'].sum())} of which do what is claimed, and paths of {one.sizes['run']}; thin lines and crosses: theory",
    )


def law_quantiles(evidence: xr.Dataset) -> Any:
    levels = np.linspace(0.01, 0.99, 50)
    both = (
        evidence[["sample_a", "sample_b", "without_complement"]]
        .isel(cell=-1)
        .quantile(levels, "draw")
    )
    names = {"sample_a": "five overlaps", "without_complement": "without the complement"}
    frame = both.to_dataframe().reset_index().rename(columns=names)
    long = frame.melt(["statistic", "sample_b"], list(names.values()), "simulation")
    line = alt.Chart().mark_line(color=THEORY, strokeWidth=1).encode(x="sample_b:Q", y="sample_b:Q")
    dots = (
        alt.Chart()
        .mark_point(filled=True, size=12)
        .encode(
            x=alt.X("sample_b:Q", title="quantile, vectors", axis=alt.Axis(tickCount=4)),
            y=alt.Y("value:Q", title="quantile, simulation", axis=alt.Axis(tickCount=4)),
            color=colour("simulation:N", None),
        )
    )
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
