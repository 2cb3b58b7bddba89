"""One way to draw: layers over Altair, in the house style, from stored evidence and nothing else.

    Figure(evidence, "Covers and packings", x="distance ε", y="nats", log="xy")
        .lines("eps", {"bound": "cover, bound", "measured": "packing, found"}, color="class")
        .rule(1, "trivial")

A layer names variables of the evidence. Several variables on one axis are a dict from variables to
what the legend calls them. A text with braces is a label made of a row's values, as in
`color="d = {dim}, γ = {gamma:.2g}"`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, Self

import pandas as pd
import xarray as xr

from attlas.errors import InputError, near
from attlas.figure_style import PALETTE, finish_chart, legible, names_axis, raised

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 460, 300
ROWS, DOTS = 2000, 700
"""A layer with more rows, or more dots, is thinned evenly to about so many."""

Names = str | Mapping[str, str]
"""A variable, or several with what a legend calls them."""

SERIES, VALUE = "series", "value"
"""The columns in which several variables are drawn on one axis."""

GREEK = {"kappa": "κ", "nu": "ν", "theta": "θ", "eta": "η", "rho": "ρ"}


class Figure:
    """Layers that share two axes; `chart()` makes an Altair chart of them.

    Arguments:
        data: evidence, or a table with one row a value.
        title, note: the heading, and a line below it.
        x, y: titles of the axes; by default the names of the first layer's variables.
        log: axes with a logarithmic scale: "x", "y" or "xy".
        zero: axes that must show 0, named as in `log`, or, as "-x", must not; else Vega decides.
        domain: the ends of an axis, by its name, as in `{"x": (0, 1)}`; or all words of a colour.
        format: the format of an axis' numbers, by its name, as in `{"y": "%"}`.
        legend: titles of legends by variable; None shows a legend without a title.
        width, height: of the drawing area, in pixels.

    >>> import xarray as xr
    >>> from attlas.figure import Figure, agreement, floored, greek, row
    >>> x = xr.DataArray([0.0, 1.0], dims="point", coords={"point": ["kappa", "nu"]})
    >>> data = greek(xr.Dataset(dict(predicted=x, measured=x, error=0 * x)), "point")
    >>> both = row(Figure(data).points("predicted", "measured"), agreement(data, ""), title="Equal")
    >>> print(len(both.chart().to_dict()["concat"]), floored(x, 0.1).values, data.point.values)
    2 [0.1 1. ] ['κ' 'ν']
    """

    def __init__(
        self,
        data: xr.Dataset | pd.DataFrame,
        title: str = "",
        note: str = "",
        *,
        x: str | None = None,
        y: str | None = None,
        log: str = "",
        zero: str = "",
        domain: Mapping[str, Sequence[Any]] | None = None,
        format: Mapping[str, str] | None = None,
        legend: Mapping[str, str | None] | None = None,
        width: int = WIDTH,
        height: int = HEIGHT,
    ) -> None:
        self.data, self.title, self.note = data, title, note
        self.titles = {"x": x, "y": y}
        self.log, self.zero = log, zero
        self.domain, self.format = dict(domain or {}), dict(format or {})
        self.legend = dict(legend or {})
        self.width, self.height = width, height
        self.layers: list[Callable[[], alt.Chart | alt.LayerChart]] = []
        self.facets: dict[str, Any] | None = None
        self.below: Figure | None = None
        self.facet_column: str | None = None

    # --- layers --------------------------------------------------------------------------------

    def lines(self, x: str, y: Names, *, points: bool = False, **channels: Any) -> Self:
        """Lines through the values of `y`, with dots if `points`. Arguments: as in `points`."""
        return self._marks("line", x, y, channels, point=points and {"size": 22})

    def points(self, x: str, y: Names, *, size: int = 36, **channels: Any) -> Self:
        """A dot for each value of `y`.

        Arguments:
            x, y: variables, or labels with braces as categories; `y` may be a dict from variables
                to what the legend calls them.
            channels: `color`, `shape`, `dash`, `detail` and `order` are variables or labels with
                braces; `error` is a variable of standard errors, drawn two to each side;
                `theory=True` draws in ink and dashes, `theory="solid"` in ink; `data` is other data
                than the figure's; `ink` is a colour for all; `opacity` a number.
        """
        return self._marks("point", x, y, channels, filled=True, size=size)

    def ticks(self, x: str, y: Names, *, size: int = 24, **channels: Any) -> Self:
        """A stroke for each value, as `theory` unless given. Arguments: as in `points`."""
        return self._marks("tick", x, y, {"theory": True, **channels}, size=size, thickness=2)

    def bars(self, x: str, y: Names, **channels: Any) -> Self:
        """Bars from 0 to each value; lying ones where `x` is the number and `y` the category."""
        return self._marks("bar", x, y, channels)

    def squares(self, x: str, y: str, color: str, *, text: str | None = None) -> Self:
        """A square for each pair of categories or steps, coloured by a number.

        Arguments: variables; `text` is one of words, which are written into the squares.
        """

        def layer() -> "alt.Chart | alt.LayerChart":
            import altair as alt

            names = [x, y, color, *([text] if text else [])]
            frame = self._frame({}, names, rows=10 * ROWS)
            shade = alt.Color(
                f"{color}:Q", title=self._legend_title(color), scale=alt.Scale(scheme="viridis")
            )
            axis = alt.Axis(labelOverlap=True, labelAngle=0)
            place = {
                name: kind(f"{column}:O", title=self.titles[name] or column, sort=None, axis=axis)
                for name, kind, column in (("x", alt.X, x), ("y", alt.Y, y))
            }
            made = _chart(frame).mark_rect().encode(**place, color=shade, tooltip=[x, y, color])
            if not text:
                return made
            middle = (frame[color].min() + frame[color].max()) / 2
            inks = alt.value("black"), alt.value("#ffffff")  # dark pages replace "white"
            ink = alt.condition(f"datum.{color} > {middle}", *inks)
            words = _chart(frame).mark_text(fontSize=11)
            return made + words.encode(**place, text=f"{text}:N", color=ink)

        self.layers.append(layer)
        return self

    def band(self, x: str, low: str, high: str, **channels: Any) -> Self:
        """The area between the variables `low` and `high`. Arguments: as in `points`."""
        return self._from_to("area", x, low, high, channels, opacity=0.25)

    def spans(self, x: str, low: str, high: str, *, width: float = 2, **channels: Any) -> Self:
        """A stroke, `width` pixels wide, from `low` to `high`. Arguments: as in `points`."""
        return self._from_to("rule", x, low, high, channels, strokeWidth=width)

    def _from_to(
        self, mark: str, x: str, low: str, high: str, channels: dict[str, Any], **options: Any
    ) -> Self:
        def layer() -> "alt.Chart":
            frame = self._frame(channels, [x, low, high]).dropna(subset=[low, high])
            encoding = self._encoding(frame, x, low, channels) | {"y2": f"{high}:Q"}
            made = getattr(_chart(frame), f"mark_{mark}")(**_style(channels), **options)
            return made.encode(**encoding)

        self.layers.append(layer)
        return self

    def rule(
        self,
        value: float,
        words: str = "",
        *,
        axis: str = "y",
        dash: bool = True,
        under: bool = False,
    ) -> Self:
        """A line of the theory across the figure at a value.

        Arguments:
            words: its name, written at its end, above it or, if `under`, below.
            axis: "y" for a horizontal line, "x" for a vertical one.
            dash: dashed, or solid if False.
        """

        def layer() -> "alt.LayerChart | alt.Chart":
            import altair as alt

            data = alt.Data(values=[{"level": value, "words": words}])
            style = "theory" if dash else "theory-solid"
            place = {axis: alt.Y("level:Q") if axis == "y" else alt.X("level:Q")}
            line = alt.Chart(data).mark_rule(style=style).encode(**place)
            if not words:
                return line
            side: dict[str, Any] = {"align": "left", "dx": 4}
            if axis == "y":
                side = {"align": "right", "dx": -4}
            text = alt.Chart(data).mark_text(style="note", dy=9 if under else -7, **side)
            end = {"x": alt.value("width")} if axis == "y" else {"y": alt.value(10)}
            return line + text.encode(**place, **end, text="words:N")

        self.layers.append(layer)
        return self

    def texts(self, x: str, y: str, text: str, *, dy: int = -8, **channels: Any) -> Self:
        """The words of a variable beside points, `dy` pixels lower. Arguments: as in `points`."""

        def layer() -> "alt.Chart":
            frame = self._frame(channels, [x, y, text])
            encoding = self._encoding(frame, x, y, channels)
            return _chart(frame).mark_text(style="note", dy=dy).encode(**encoding, text=f"{text}:N")

        self.layers.append(layer)
        return self

    def diagonal(self, x: str = "predicted", y: str = "measured") -> Self:
        """The line on which two variables are equal, over the range of `x`."""

        def layer() -> "alt.Chart":
            panels = ["panel"] if self.facet_column else []
            frame = self._frame({}, [x, y])
            ends = frame.groupby(panels, sort=False)[x] if panels else frame[x]
            span = pd.DataFrame(ends.agg(["min", "max"])).reset_index()
            if panels:
                span = span.melt(panels, ["min", "max"], value_name=x)
            span[y] = span[x]
            channels = {"theory": "solid"}
            return (
                _chart(span)
                .mark_line(**_style(channels), strokeWidth=1.2)
                .encode(**self._encoding(span, x, y, channels))
            )

        self.layers.append(layer)
        return self

    # --- arrangement ---------------------------------------------------------------------------

    def facet(
        self,
        by: str,
        title: str | None = None,
        *,
        columns: int = 2,
        independent: str = "",
        width: int = 215,
        height: int = 160,
    ) -> Self:
        """A panel for each value of `by`, a variable or a label with braces.

        Arguments:
            title: over all panels.
            columns: panels in a row.
            independent: axes that have a scale of their own in each panel: "x", "y" or "xy".
        """
        self.facets = {"title": title, "columns": columns, "independent": independent}
        self.facet_column, self.width, self.height = by, width, height
        return self

    def residuals(self, *, color: str | None = None) -> Self:
        """Below: what is left between `measured` and `predicted`.

        In standard errors where the measurement is sampled, in absolute terms where it is exact.
        """
        data = self.data
        assert isinstance(data, xr.Dataset)
        exact = not bool((data["error"] > 0).any())
        difference = data["measured"] - data["predicted"]
        left = difference if exact else difference / data["error"]
        title = "difference" if exact else "difference / error"
        self.below = (
            Figure(
                data.assign(residual=left),
                x=self.titles["x"],
                y=title,
                log=self.log.replace("y", ""),
                format={"y": ".1e" if exact else "g"},
                legend=self.legend,
                height=90,
            )
            .points("predicted", "residual", size=24, color=color)
            .rule(0)
        )
        said = "below: what is left between the two" + ("" if exact else ", in standard errors")
        self.note = self.note or said
        return self

    # --- the chart -----------------------------------------------------------------------------

    def chart(self, theme: Literal["light", "dark"] = "light") -> Any:
        """The figure as an Altair chart, with its title and style."""
        import altair as alt

        panel = self._panel()
        if self.below is not None:
            panel = alt.vconcat(panel, self.below._panel())
        return finish_chart(panel, self.title, self.note, theme)

    def _panel(self) -> Any:
        import altair as alt

        if not self.layers:
            raise InputError(f"the figure {self.title!r} has no layer")
        made = [layer() for layer in self.layers]
        if self.facets is None:
            chart = made[0] if len(made) == 1 else alt.layer(*made)
            return chart.properties(width=self.width, height=self.height)
        return self._facetted(made)

    def _facetted(self, made: list[Any]) -> Any:
        import altair as alt

        assert self.facets is not None
        # Points with errors are two layers with tables of their own; each must know its panel.
        made = [
            part for layer in made for part in (layer.layer if _has_own_tables(layer) else [layer])
        ]
        shared = self._shared_table(made)
        panel = alt.layer(*made, data=shared).properties(width=self.width, height=self.height)
        order = list(dict.fromkeys(shared["panel"]))  # Vega sorts facets by name otherwise
        header = alt.Facet("panel:N", title=self.facets["title"], sort=order)
        chart = panel.facet(facet=header, columns=self.facets["columns"])
        free: dict[str, Any] = dict.fromkeys(self.facets["independent"], "independent")
        return chart.resolve_scale(**free) if free else chart

    def _shared_table(self, made: list[Any]) -> pd.DataFrame:
        """One table for all layers, as Vega's facets need; a layer keeps its own rows of it."""
        tables = []
        for number, layer in enumerate(made):
            if not isinstance(layer.data, pd.DataFrame):  # a rule across all panels
                continue
            tables.append(layer.data.assign(layer=number))
            made[number] = layer.copy(deep=False)
            made[number].data = _undefined()
            made[number] = made[number].transform_filter(f"datum.layer == {number}")
        return pd.concat(tables, ignore_index=True)

    def _marks(self, mark: str, x: str, y: Names, channels: dict[str, Any], **options: Any) -> Self:
        self.layers.append(lambda: self._layer(mark, x, y, channels, options))
        return self

    def _layer(
        self, mark: str, x: str, y: Names, channels: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        error = channels.get("error")
        error = "error" if error is True else error
        names = [x, *(y if isinstance(y, Mapping) else [y]), *([error] if error else [])]
        frame = self._frame(channels, names, DOTS if mark == "point" else ROWS)
        x, y = _column(x), y if isinstance(y, Mapping) else _column(y)
        column = y if isinstance(y, str) else VALUE
        if isinstance(y, Mapping):
            kept = [name for name in frame if name not in y or name == x]
            frame = frame.melt(kept, list(y), SERIES, VALUE)
            frame[SERIES] = frame[SERIES].map(dict(y))
            free = "dash" if channels.get("color") else "color"
            channels = {free: SERIES, **channels}
        frame = frame.dropna(subset=[_column(x), column])
        encoding = self._encoding(frame, x, column, channels)
        base = _chart(frame)
        made = getattr(base, f"mark_{mark}")(**_style(channels), **options).encode(**encoding)
        return self._with_errors(frame, x, column, error, channels) + made if error else made

    def _with_errors(
        self, frame: pd.DataFrame, x: str, y: str, error: str, channels: dict[str, Any]
    ) -> Any:
        lying = not pd.api.types.is_numeric_dtype(frame[y])
        value = x if lying else y
        table = frame.assign(
            low=frame[value] - 2 * frame[error], high=frame[value] + 2 * frame[error]
        )
        if "x" in self.log if lying else "y" in self.log:
            table = table[table["low"] > 0]
        encoding = self._encoding(table, x, y, {k: v for k, v in channels.items() if k != "dash"})
        axis = "x" if lying else "y"
        encoding[axis].shorthand = "low:Q"
        encoding[f"{axis}2"] = "high:Q"
        encoding.pop("tooltip", None)
        encoding.pop("shape", None)
        return _chart(table).mark_rule(strokeWidth=1, opacity=0.7).encode(**encoding)

    def _frame(
        self, channels: Mapping[str, Any], names: Sequence[str], rows: int = ROWS
    ) -> pd.DataFrame:
        """The table of a layer: the variables `names`, the channels' columns and labels."""
        data = channels.get("data")
        data = self.data if data is None else data
        given = [channels.get(c) for c in ("color", "dash", "shape", "detail", "order")]
        wanted = [*names, *(str(name) for name in given if name and name != SERIES)]
        if self.facet_column:
            wanted.append(self.facet_column)
        labels = [name for name in wanted if "{" in name]
        plain = list(dict.fromkeys(name for name in wanted if "{" not in name))
        fields = [name for label in labels for _, name, _, _ in Formatter().parse(label) if name]
        whole = data if isinstance(data, pd.DataFrame) else _table(data, [*plain, *fields])
        missing = [name for name in (*plain, *fields) if name not in whole]
        if missing:
            known = list(
                map(str, data.columns if isinstance(data, pd.DataFrame) else data.variables)
            )
            raise InputError(
                f"the figure {self.title!r} draws {missing[0]!r}, which is not in the evidence."
                f"{near(missing[0], known)} There are: {', '.join(known)}."
            )
        frame = whole[plain].copy()
        for label in labels:
            frame[_column(label)] = [label.format(**row) for row in whole.to_dict("records")]
        if self.facet_column:
            column = _column(self.facet_column)
            frame["panel"] = frame[column]
            if wanted.count(self.facet_column) == 1 and self.facet_column in labels:
                frame = frame.drop(columns=column)
        return frame.iloc[:: max(1, -(-len(frame) // rows))]

    def _encoding(
        self, frame: pd.DataFrame, x: str, y: str, channels: Mapping[str, Any]
    ) -> dict[str, Any]:
        import altair as alt

        x, y = _column(x), _column(y)
        encoding: dict[str, Any] = {"x": self._axis("x", frame, x), "y": self._axis("y", frame, y)}
        shown = [name for name in (x, y, channels.get("error")) if isinstance(name, str)]
        kinds = {"color": alt.Color, "dash": alt.StrokeDash, "shape": alt.Shape}
        for channel, kind in kinds.items():
            name = channels.get(channel)
            if not name:
                continue
            column = _column(name)
            sort = list(dict.fromkeys(frame[column])) if frame[column].dtype == object else None
            made = kind(f"{column}:N", title=self._legend_title(name), sort=sort)
            if channel == "color":
                words = self.domain.get(name)
                made.scale = alt.Scale(range=PALETTE, domain=list(words) if words else _undefined())
            if channel == "dash":
                made.legend = alt.Legend(
                    symbolType="stroke", symbolSize=300, symbolFillColor="transparent"
                )
            if channels.get("legend") is False:
                made.legend = None
            encoding["strokeDash" if channel == "dash" else channel] = made
            shown.append(column)
        if channels.get("detail"):
            encoding["detail"] = f"{_column(channels['detail'])}:N"
        if channels.get("order"):
            encoding["order"] = f"{channels['order']}:Q"
        if "color" not in encoding and not channels.get("theory"):
            encoding["color"] = alt.value(channels.get("ink", PALETTE[0]))
        if channels.get("opacity") is not None:
            encoding["opacity"] = alt.value(channels["opacity"])
        numeric = {name for name in shown if pd.api.types.is_float_dtype(frame[name])}
        encoding["tooltip"] = [
            alt.Tooltip(f"{name}:Q", format=".5g") if name in numeric else alt.Tooltip(name)
            for name in dict.fromkeys(shown)
        ]
        return encoding

    def _axis(self, name: str, frame: pd.DataFrame, column: str) -> Any:
        import altair as alt

        kind = alt.X if name == "x" else alt.Y
        title = self.titles[name] if self.titles[name] is not None else column
        if not pd.api.types.is_numeric_dtype(frame[column]):
            axis, spaced = names_axis(frame[column], grouped=name == "y")
            return kind(f"{column}:N", title=title or None, sort=None, axis=axis, scale=spaced)
        scale: dict[str, Any] = {}
        if name in self.log:
            scale |= {"type": "log", "nice": False, "padding": 10}
        if name in self.zero:
            scale["zero"] = f"-{name}" not in self.zero
        if name in self.domain:
            scale["domain"] = list(self.domain[name])
        format = self.format.get(name, "~g" if name in self.log else None)
        options: dict[str, Any] = {"format": format} if format else {}
        if pd.api.types.is_integer_dtype(frame[column]):
            options["tickMinStep"] = 1
        axis = alt.Axis(**options) if options else _undefined()
        return kind(f"{column}:Q", title=title or None, scale=alt.Scale(**scale), axis=axis)

    def _legend_title(self, name: str) -> str | None:
        return self.legend.get(name, None if name == SERIES or "{" in name else name)


def agreement(
    evidence: xr.Dataset,
    title: str,
    note: str = "",
    *,
    what: str = "value",
    color: str | None = None,
    legend: Mapping[str, str | None] | None = None,
    log: bool | None = None,
) -> Figure:
    """Measured against predicted, the line of agreement, and below what is left between them.

    Arguments:
        evidence: with `predicted`, `measured` and `error`.
        what: what the two are, for the axes.
        color: a variable or a label with braces.
        log: logarithmic axes; by default where predictions are positive and span a factor of 30.
        title, note, legend: as in `Figure`.
    """
    predicted = evidence["predicted"]
    if log is None:
        least = float(predicted.min())
        log = least > 0 and float(predicted.max()) > 30 * least
    exact = not bool((evidence["error"] > 0).any())
    figure = Figure(
        evidence,
        title,
        note,
        x=f"{what}, closed form",
        y=f"{what}, {'second route' if exact else 'simulated'}",
        log="xy" if log else "",
        legend=legend,
    )
    figure.diagonal().points(
        "predicted", "measured", error=None if exact else "error", color=color, opacity=0.85
    )
    return figure.residuals(color=color)


def row(
    *panels: Figure, title: str, note: str = "", columns: int = 2, shared: str = ""
) -> "Panels":
    """Figures (`panels`) side by side under one `title`, `columns` in a row, with a `note` below
    it; `shared` is "color" if they share colours and dashes; by default each has its own."""
    return Panels(panels, title, note, columns, shared)


class Panels:
    """Figures under one title; made by `row`, with its arguments: `panels`, `title`, `note`,
    `columns` and `shared`."""

    def __init__(
        self, panels: Sequence[Figure], title: str, note: str, columns: int, shared: str
    ) -> None:
        self.panels, self.title, self.note = panels, title, note
        self.columns, self.shared = columns, shared

    def chart(self, theme: Literal["light", "dark"] = "light") -> Any:
        """The panels as one Altair chart."""
        import altair as alt

        made = [panel._panel() for panel in self.panels]
        for panel, chart in zip(self.panels, made, strict=True):
            if panel.title:
                chart.title = alt.TitleParams(legible(panel.title), fontSize=12, anchor="start")
        chart = alt.concat(*made, columns=self.columns)
        if "color" not in self.shared:
            chart = chart.resolve_scale(color="independent", strokeDash="independent")
        return finish_chart(chart, self.title, self.note, theme)


def _table(data: xr.Dataset, names: Sequence[str]) -> pd.DataFrame:
    """Variables of the evidence as a table with one row a value, with all that labels a row."""
    known = [name for name in names if name in data]
    table = data[known].to_dataframe().reset_index()
    texts = [name for name in table if name in data and data[name].dtype.kind == "U"]
    return table.assign(**{name: table[name].map(raised) for name in texts})


def _column(name: str) -> str:
    """The column that holds a variable, or a label: Vega reads dots and brackets in names."""
    return re.sub(r"\W+", "_", name) if "{" in name else name


def _chart(frame: pd.DataFrame) -> Any:
    import altair as alt

    return alt.Chart(frame)


def _has_own_tables(chart: Any) -> bool:
    """Whether it is made of layers each of which has a table."""
    return any(isinstance(part.data, pd.DataFrame) for part in getattr(chart, "layer", ()))


def _undefined() -> Any:
    import altair as alt

    return alt.Undefined


def _style(channels: Mapping[str, Any]) -> dict[str, str]:
    theory = channels.get("theory")
    return {"style": "theory" if theory is True else "theory-solid"} if theory else {}


def floored(values: xr.DataArray, floor: float) -> xr.DataArray:
    """`values` with those below `floor`, exact zeros among them, at the floor of a log axis."""
    return values.clip(min=floor)


def greek(evidence: xr.Dataset, axis: str) -> xr.Dataset:
    """With the symbols of the overlaps in place of their names along `axis`.

    Arguments:
        evidence: a Dataset.
    """
    values = evidence[axis].values
    names = [" ".join(GREEK.get(word, word) for word in str(name).split()) for name in values]
    return evidence.assign_coords({axis: names})
