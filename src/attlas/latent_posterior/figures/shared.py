"""What the figures of this map share."""

from typing import Any

import altair as alt
import pandas as pd
import xarray as xr

from attlas.drawing import HEIGHT, THEORY, WIDTH, colour, finish, table


def log_axis(name: str, title: str, form: str = "~e", **options: Any) -> alt.Y:
    return alt.Y(
        name,
        title=title,
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format=form, tickCount=6),
        **options,
    )


def against(evidence: xr.Dataset, title: str, what: str, names: dict[str, str], legend: str) -> Any:
    """Measured and control against predicted, with the line on which they agree."""
    frame = table(evidence, "predicted", *names, rows=300)
    long = frame.melt("predicted", list(names), "name")
    long[legend] = long["name"].map(names)
    span = [float(frame["predicted"].min()), float(frame["predicted"].max())]
    line = (
        alt.Chart(pd.DataFrame({"x": span}))
        .mark_line(color=THEORY, strokeWidth=1.2)
        .encode(x="x:Q", y="x:Q")
    )
    dots = (
        alt.Chart(long)
        .mark_point(filled=True, size=28, opacity=0.75)
        .encode(
            x=alt.X("predicted:Q", title=what),
            y=alt.Y("value:Q", title="the same, otherwise"),
            color=colour(f"{legend}:N", legend, sort=list(names.values())),
            tooltip=[alt.Tooltip(f"{n}:Q", format=".6g") for n in ("predicted", "value")],
        )
    )
    left = float(abs(evidence["measured"] - evidence["predicted"]).max())
    return finish(
        (line + dots).properties(width=WIDTH, height=HEIGHT),
        title,
        f"{names['measured']}: off by at most {left:.1e}",
    )
