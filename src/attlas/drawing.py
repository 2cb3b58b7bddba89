"""The house style of figures: Vega-Lite through Altair, drawn from stored evidence and nothing else."""

import re
from typing import Any

import altair as alt
import pandas as pd
import xarray as xr

# Okabe and Ito's palette, which colour-blind readers can tell apart; black is kept for theory.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999"]
THEORY = "#222222"
WIDTH, HEIGHT = 460, 300
RAISED = str.maketrans({**dict(zip("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", strict=True)), "+": ""})
"""Digits and signs as they are written in an exponent."""

alt.data_transformers.disable_max_rows()


def table(evidence: xr.Dataset, *names: str, rows: int = 2000) -> pd.DataFrame:
    """The variables `names` as a table with one row a value, thinned evenly to about `rows` rows."""
    frame = evidence[list(names)].to_dataframe().reset_index()
    return frame.iloc[:: max(1, -(-len(frame) // rows))]


def greek(evidence: xr.Dataset, axis: str) -> xr.Dataset:
    """With the symbols of the overlaps in place of their names along `axis`."""
    symbols = {"kappa": "κ", "nu": "ν", "theta": "θ", "eta": "η", "rho": "ρ"}
    names = [
        " ".join(symbols.get(word, word) for word in str(name).split())
        for name in evidence[axis].values
    ]
    return evidence.assign_coords({axis: names})


def legible(text: str) -> str:
    """The numbers of a text as a reader writes them: 3·10⁻¹⁴ for 3e-14, 2000 for 2e+03, 10²⁰ for 10^20, and a minus where there is one."""
    text = re.sub(
        r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?\d+)(?!\w)",
        lambda found: _power(float(found[0]), found[1], found[2]),
        text,
    )
    text = re.sub(r"(?<!\w)10\^(-?\d+)", lambda found: "10" + found[1].translate(RAISED), text)
    return re.sub(r"(?<![\w)-])-(?=\.?\d)", "−", text)


def _power(value: float, mantissa: str, exponent: str) -> str:
    if value == 0 or 1e-3 <= value < 1e6:
        return f"{value:.6g}" if value < 1e5 else f"{value:,.0f}"
    return (
        ("" if float(mantissa) == 1 else f"{mantissa}·")
        + "10"
        + str(int(exponent)).translate(RAISED)
    )


def _label() -> str:
    """Vega's expression for the label of a tick: 10⁻⁸ for 1e-8 and 0.00000001, 2000 for 2e+3, other labels as they are."""
    mantissa, exponent = (f"split(format(datum.value, '~e'), 'e')[{part}]" for part in (0, 1))
    for sign, raised in RAISED.items():
        exponent = f"replace({exponent}, /[{chr(sign)}]/g, '{raised}')"
    power = f"replace({mantissa} + '·', /^(−?)1·$/, '$1') + '10' + {exponent}"
    size = "abs(datum.value)"
    number = "test(/^[−-]?[0-9.,]+(e[+-]?[0-9]+)?$/, datum.label)"
    plain = f"test(/e/, datum.label) || {size} < 1e-3 ? format(datum.value, ',~g') : datum.label"
    # One prefix is given to all labels of an axis, even to 0.
    return f"!{number} ? replace(datum.label, /^0[kMG]$/, '0') : {size} > 0 && ({size} < 1e-3 || {size} >= 1e6) ? {power} : {plain}"


CONFIG: dict[str, Any] = {
    "font": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif",
    "background": "white",
    "title": {"fontSize": 14, "fontWeight": 600, "subtitleColor": "#555", "subtitleFontSize": 12},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "gridColor": "#eee",
        "labelSeparation": 6,
        "labelExpr": _label(),
    },
    "legend": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "symbolStrokeWidth": 2,
    },
    "header": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    "view": {"stroke": "#ddd"},
    "range": {"category": PALETTE},
}


def finish(chart: Any, title: str, subtitle: str = "") -> Any:
    """The chart with its title and the house style."""
    chart = chart.copy(deep=False)  # Altair's own way copies all the data, once for each setting
    chart.title = alt.TitleParams(
        legible(title), subtitle=legible(subtitle) or alt.Undefined, anchor="start", offset=14
    )
    chart.config = CONFIG
    return chart


def colour(field: str, title: str | None, **options: Any) -> alt.Color:
    return alt.Color(field, title=title, scale=alt.Scale(range=PALETTE), **options)


def error_bars(
    points: alt.Chart, x: Any, low: str, high: str, title: str, **options: Any
) -> alt.Chart:
    """Intervals of the shown columns `low` and `high`, under the points of the same chart."""
    return points.mark_rule(strokeWidth=1, opacity=0.7).encode(
        x=x, y=alt.Y(f"{low}:Q", title=title), y2=f"{high}:Q", **options
    )


def rule_at(
    value: float, words: str = "", dash: bool = True, under: bool = False
) -> alt.LayerChart | alt.Chart:
    """A horizontal line of the theory, with its name at the right, over or under it."""
    data = alt.Data(values=[{"level": value, "words": words}])
    line = (
        alt.Chart(data)
        .mark_rule(color=THEORY, strokeDash=[5, 4] if dash else [1, 0])
        .encode(y="level:Q")
    )
    if not words:
        return line
    text = alt.Chart(data).mark_text(
        align="right", dx=-4, dy=9 if under else -7, color=THEORY, fontSize=11
    )
    return line + text.encode(y="level:Q", x=alt.value("width"), text="words:N")


def agreement(
    evidence: xr.Dataset, title: str, by: str | None = None, by_title: str = "", what: str = "value"
) -> Any:
    """Measured against predicted with the line on which they agree, and below it what is left between them: in
    standard errors where the measurement is sampled, in absolute terms where it is exact."""
    frame = table(evidence, "predicted", "measured", "error", rows=400)
    exact = not (frame["error"] > 0).any()
    frame["low"], frame["high"] = (
        frame["measured"] - 2 * frame["error"],
        frame["measured"] + 2 * frame["error"],
    )
    difference = frame["measured"] - frame["predicted"]
    frame["residual"] = difference if exact else difference / frame["error"]
    span = [float(frame["predicted"].min()), float(frame["predicted"].max())]
    line = alt.Chart(pd.DataFrame({"predicted": span, "measured": span})).mark_line(
        color=THEORY, strokeWidth=1.2
    )
    groups = {"color": colour(f"{by}:N", by_title)} if by else {"color": alt.value(PALETTE[0])}
    base = alt.Chart(frame)
    wide = frame["predicted"].min() > 0 and frame["predicted"].max() > 30 * frame["predicted"].min()
    scale = alt.Scale(type="log") if wide else alt.Scale()
    x = alt.X("predicted:Q", title=f"{what}, closed form", scale=scale)
    points = base.mark_point(filled=True, size=36, opacity=0.85).encode(
        x=x,
        y=alt.Y(
            "measured:Q", title=f"{what}, {'second route' if exact else 'simulated'}", scale=scale
        ),
        tooltip=[
            alt.Tooltip(f"{name}:Q", format=".6g") for name in ("predicted", "measured", "error")
        ],
        **groups,
    )
    top = line.encode(x=x, y="measured:Q") + points
    if not exact:
        top = error_bars(base, x, "low", "high", f"{what}, simulated", **groups) + top
    bottom = base.mark_point(filled=True, size=24, opacity=0.85).encode(
        x=x,
        y=alt.Y(
            "residual:Q",
            title="difference" if exact else "difference / error",
            axis=alt.Axis(format=".1e" if exact else "g"),
        ),
        **groups,
    )
    return finish(
        alt.vconcat(
            top.properties(width=WIDTH, height=HEIGHT),
            (bottom + rule_at(0)).properties(width=WIDTH, height=90),
        ),
        title,
        "below: what is left between the two" + ("" if exact else ", in standard errors"),
    )


def log_floor(values: xr.DataArray, floor: float) -> xr.DataArray:
    """`values` with those below `floor`, exact zeros among them, shown at the floor of a logarithmic axis."""
    return values.clip(min=floor)
