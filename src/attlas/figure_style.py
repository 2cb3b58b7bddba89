"""The house style of figures: palette, themes, and how numbers are written."""

import copy
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

# Okabe and Ito's palette, which colour-blind readers can tell apart; ink is kept for theory.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999"]

DARK = {
    "white": "#16181d",
    "#222222": "#e6e6e6",
    "#555555": "#b3b3b3",
    "#eeeeee": "#333333",
    "#dddddd": "#5c5c5c",
    "#0072B2": "#5cb8ee",
    "#D55E00": "#ff9a5c",
    "#009E73": "#3fcf9f",
    "#CC79A7": "#e39cc4",
    "#E69F00": "#f0b93a",
    "#56B4E9": "#9fd8ff",
    "#999999": "#a8a8a8",
}
"""Colours of a figure on a dark ground, by those on a light one."""

EXPONENT = str.maketrans({**dict(zip("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", strict=True)), "+": ""})
"""Digits and signs as they are written in an exponent."""

RAISED = str.maketrans("0123456789-−+/()s", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻⁺⁄⁽⁾ˢ")
"""What labels have in exponents."""


def legible(text: str) -> str:
    """The numbers of a text as a reader writes them: 3·10⁻¹⁴ for 3e-14, 10²⁰ for 10^20."""
    number = r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?\d+)(?!\w)"
    text = re.sub(number, lambda found: _power(float(found[0]), found[1], found[2]), text)
    text = re.sub(r"(?<!\w)10\^(-?\d+)", lambda found: "10" + found[1].translate(EXPONENT), text)
    return re.sub(r"(?<![\w)-])-(?=\.?\d)", "−", text)


def raised(text: str) -> str:
    """The powers of a label, set as such: L³⁄⁴ for L^¾, L⁻²⁄⁽ˢ⁺⁸⁾ for L^(−2/(s+8))."""
    text = text.replace("^¾", "^(3/4)")
    return re.sub(r"\^\(((?:[^()]|\([^()]*\))*)\)", lambda found: found[1].translate(RAISED), text)


def _power(value: float, mantissa: str, exponent: str) -> str:
    if value == 0 or 1e-3 <= value < 1e6:
        return f"{value:.6g}" if value < 1e5 else f"{value:,.0f}"
    start = "" if float(mantissa) == 1 else f"{mantissa}·"
    return start + "10" + str(int(exponent)).translate(EXPONENT)


def _tick_label() -> str:
    """Vega's expression for a tick: 10⁻⁸ for 1e-8 and 0.00000001, 2000 for 2e+3, else as it is."""
    mantissa, exponent = (f"split(format(datum.value, '~e'), 'e')[{part}]" for part in (0, 1))
    for sign, raised in EXPONENT.items():
        exponent = f"replace({exponent}, /[{chr(sign)}]/g, '{raised}')"
    power = f"replace({mantissa} + '·', /^(−?)1·$/, '$1') + '10' + {exponent}"
    size = "abs(datum.value)"
    number = "test(/^[−-]?[0-9.,]+(e[+-]?[0-9]+)?$/, datum.label)"
    plain = f"test(/e/, datum.label) || {size} < 1e-3 ? format(datum.value, ',~g') : datum.label"
    # Vega gives one SI prefix to all labels of an axis, even to 0.
    return (
        f"!{number} ? replace(datum.label, /^0[kMG]$/, '0') :"
        f" {size} > 0 && ({size} < 1e-3 || {size} >= 1e6) ? {power} : {plain}"
    )


def config(theme: str = "light") -> dict[str, Any]:
    """The house style. Themes differ here alone: marks of the theory name a style, not a colour."""
    shown = DARK if theme == "dark" else {colour: colour for colour in DARK}
    paper, ink, soft, grid, frame = list(shown.values())[:5]
    text = {"labelColor": ink, "titleColor": ink, "titleFontWeight": "normal"}
    return {
        "font": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif",
        "background": paper,
        "title": {
            "fontSize": 14,
            "fontWeight": 600,
            "color": ink,
            "subtitleColor": soft,
            "subtitleFontSize": 12,
        },
        "axis": {
            "labelFontSize": 11,
            "titleFontSize": 12,
            "gridColor": grid,
            "tickColor": frame,
            "domainColor": frame,
            "labelSeparation": 6,
            "labelExpr": _tick_label(),
            **text,
        },
        "legend": {
            "labelFontSize": 11,
            "titleFontSize": 11,
            "labelLimit": 260,
            "symbolStrokeWidth": 2,
            **text,
        },
        "header": {"labelFontSize": 11, "titleFontSize": 12, **text},
        "view": {"stroke": frame},
        "range": {"category": [shown[colour] for colour in PALETTE]},
        "style": {
            "theory": {"color": ink, "strokeDash": [5, 4]},
            "theory-solid": {"color": ink},
            "note": {"color": ink, "fontSize": 11},
        },
    }


def names_axis(names: Iterable[str], grouped: bool) -> "tuple[alt.Axis, alt.Scale]":
    """Axis and scale of names. Where all have the form "group: name", and are to be `grouped`, each
    group heads its names, which are shown without it."""
    import altair as alt

    pairs = [name.partition(": ")[::2] for name in dict.fromkeys(map(str, names))]
    groups = list(dict.fromkeys(group for group, _ in pairs))
    if not grouped or len(groups) == len(pairs) or not all(name for _, name in pairs):
        return alt.Axis(labelAngle=0, labelLimit=260), alt.Scale(padding=0.4)
    listed = [
        row
        for group in groups
        for row in (group, *(f"{group}: {name}" for of, name in pairs if of == group))
    ]
    head = "indexof(datum.value, ': ') < 0"
    axis = alt.Axis(
        labelAngle=0,
        labelLimit=260,
        labelExpr=f"{head} ? datum.label : split(datum.label, ': ')[1]",
        labelFontWeight={"condition": {"test": head, "value": "bold"}, "value": "normal"},
        ticks=False,
    )
    return axis, alt.Scale(padding=0.4, domain=listed)


def finish_chart(chart: Any, title: str, note: str = "", theme: str = "light") -> Any:
    """A copy of an Altair chart with its title and the house style, without a row limit; `note` is
    a line below the title, `theme` "light" or "dark"."""
    import altair as alt

    alt.data_transformers.disable_max_rows()
    chart = copy.copy(chart)
    chart.title = alt.TitleParams(
        legible(title), subtitle=legible(note) or alt.Undefined, anchor="start", offset=14
    )
    chart.config = config(theme)
    return chart
