"""Figures of sweeps: a phase diagram over two axes, lines with bands over one, or a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from attlas.errors import InputError, near
from attlas.figure import HEIGHT, WIDTH, finish_chart
from attlas.figure_style import PALETTE
from attlas.lab.files import write_whole
from attlas.lab.grids import Grid

PREFERRED_VARIABLES = ("arrived", "measured", "threshold")
TABLE_SUFFIXES = (".csv", ".md")

REPEATED_AXES = ("seed", "repeat", "replicate", "run", "draw", "trial")
"""Axes along which the same thing is measured again with other random numbers."""

MIN_PHASE_VALUES = 4
"""An axis with so many values can be one of a phase diagram."""

MAX_PANELS_PER_ROW = 3
MAX_LINES = 12


def summary(
    data: xr.Dataset, variable: str | None = None, at: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """A table with one row for each point of the sweep.

    Its columns are the axes of the sweep but `seed`, the axes of the evidence that have labels, the
    mean of `variable` over all other axes, the number of values in it, and the point's status.
    `error` is the standard error over `REPEATED_AXES`, where there are any; `low` and `high` are
    two of them away, or Wilson's interval if the variable is true or false.
    """
    whole = data[_choose_variable(data, variable)]
    name = str(whole.name)
    data = _select_values(data, at or {})
    axes = [str(dim) for dim in data["status"].dims if dim != "seed"]
    values = data[name].astype(float)
    others = [str(dim) for dim in values.dims if dim not in (*axes, "seed")]
    labelled = [dim for dim in others if dim in data.coords]
    over = [str(dim) for dim in values.dims if dim not in (*axes, *labelled)]
    count = values.notnull().sum(over)
    mean = values.mean(over)
    runs = values.mean([dim for dim in over if dim not in REPEATED_AXES])
    repeated = [dim for dim in over if dim in REPEATED_AXES]
    times = runs.notnull().sum(repeated)
    # Points at which there are one or no values have no spread, which xarray would warn of.
    spread = runs.std(repeated, ddof=1) if repeated else xr.full_like(runs, np.nan)
    error = spread / np.sqrt(times.where(times > 1))
    low, high = mean - 2 * error, mean + 2 * error
    # A truth value that some cell lacks has become a number.
    binary = bool((whole.isnull() | whole.isin((0, 1))).all())
    share = bool(repeated) and runs.sizes == values.sizes and binary
    if share:
        n = times.where(times > 1)
        centre, half = (n * mean + 2) / (n + 4), 2 * np.sqrt(n * mean * (1 - mean) + 1) / (n + 4)
        low, high = (centre - half).clip(min=0), (centre + half).clip(max=1)
    status = data["status"]
    seeds = set(status.dims) & {"seed"}
    worst = xr.full_like(status.isel(dict.fromkeys(seeds, 0), drop=True), "done")
    for word in ("outside", "missing", "failed"):
        worst = xr.where((status == word).any(seeds), word, worst)
    columns = {"mean": mean, "error": error, "low": low, "high": high, "values": count}
    columns["status"] = worst
    frame = xr.Dataset(columns).to_dataframe().reset_index()
    if "cell" in axes:
        along = [str(n) for n, c in data.coords.items() if c.dims == ("cell",)]
        frame["cell"] = [
            ", ".join(f"{n} = {_short(row[n])}" for n in along) for _, row in frame.iterrows()
        ]
    frame = frame[[*axes, *labelled, *columns]]
    frame.attrs = {
        "variable": name,
        "axes": axes,
        "labelled": labelled,
        "title": data.attrs.get("claim", ""),
        "kind": "share" if share else "mean",
        "over": {dim: values.sizes[dim] for dim in over if values.sizes[dim] > 1},
        "at": dict(at or {}),
    }
    if frame.attrs["title"].startswith("simulation/"):  # which has no name but its file's
        frame.attrs["title"] = data.attrs["words"].rstrip(".").replace("`", "")
    return frame


def _select_values(data: xr.Dataset, at: Mapping[str, Any]) -> xr.Dataset:
    for name, value in at.items():
        if name not in data.dims or name not in data.coords:
            known = [str(dim) for dim in data.dims if dim in data.coords]
            raise InputError(
                f"there is no axis {name!r} to choose from.{near(name, known)} There are: "
                f"{', '.join(known)}."
            )
        labels = data[name].values
        wanted = next((i for i, label in enumerate(labels) if _equal(label, value)), None)
        if wanted is None:
            raise InputError(f"{name} = {value!r}: it is one of {', '.join(map(_short, labels))}")
        data = data.isel({name: wanted})
    return data


def _equal(label: Any, value: Any) -> bool:
    """Whether a label is the value, or the same number."""
    if str(label) == str(value):
        return True
    try:
        return bool(np.isclose(float(label), float(value), rtol=1e-9, atol=0))
    except (TypeError, ValueError):
        return False


def _choose_variable(data: xr.Dataset, variable: str | None) -> str:
    axes = set(data["status"].dims) - {"seed"}
    numbers = {str(n): v for n, v in data.data_vars.items() if v.dtype.kind in "fiub"}
    known = [name for name, values in numbers.items() if axes <= set(values.dims)]
    if variable is None:
        if not known:
            raise InputError("the sweep holds no number to draw: no cell is done")
        return next(name for name in (*PREFERRED_VARIABLES, *known) if name in known)
    if variable not in known:
        raise InputError(
            f"there is no variable {variable!r} to draw.{near(variable, known)} There are: "
            f"{', '.join(known)}."
        )
    return variable


def _short(value: Any, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float | np.floating) else str(value)


def _labels(values: pd.Series) -> list[str]:
    """Each value as briefly as tells it from the others."""
    for digits in range(3, 18):
        names = {value: _short(value, digits) for value in values.unique()}
        if len(set(names.values())) == len(names):
            break
    return [names[value] for value in values]


def check_drawing(grid: Grid, path: Path, kind: str | None, at: Mapping[str, Any]) -> None:
    """Refuse before work starts what the axes of a grid exclude.

    Arguments:
        path: of the figure, or of a table (.csv or .md), for which only `at` is checked.
        kind, at: as in `diagram`; a name in `at` that the grid lacks may be an axis of the
            evidence.
    """
    planned = xr.Dataset(coords=grid.coordinates())
    _select_values(planned, {name: value for name, value in at.items() if name in planned.dims})
    if path.suffix not in TABLE_SUFFIXES:
        free = {name: size for name, size in grid.shape.items() if name not in ("seed", *at)}
        _axes_to_draw(free, kind)


def _axes_to_draw(sizes: Mapping[str, int], kind: str | None) -> list[str]:
    """The axes that have several values, the longest first, if they are enough for a figure."""
    axes = sorted((name for name, size in sizes.items() if size > 1), key=lambda name: -sizes[name])
    if not axes:
        raise InputError("a sweep of one point has nothing to draw: a table holds it (.csv or .md)")
    if kind == "phase" and len(axes) < 2:
        raise InputError(
            f"a phase diagram needs two axes with several values, and there is {len(axes)}"
        )
    return axes


def diagram(
    data: xr.Dataset,
    kind: str | None = None,
    variable: str | None = None,
    at: Mapping[str, Any] | None = None,
) -> alt.Chart:
    """A phase diagram where two axes are long, else lines over the longest axis.

    Lines have bands where something was repeated.

    Arguments:
        data: a sweep's Dataset.
        kind: "phase" or "lines"; by default as above.
        variable: what is drawn; by default the first of `PREFERRED_VARIABLES` that is there, else
            of all numbers.
        at: for some axes the one value to draw.
    """
    frame = summary(data, variable, at)
    sizes = {str(name): frame[name].nunique() for name in frame.columns}
    axes = _axes_to_draw({name: sizes[name] for name in frame.attrs["axes"]}, kind)
    numeric = [name for name in axes if pd.api.types.is_numeric_dtype(frame[name])]
    long = sum(sizes[name] >= MIN_PHASE_VALUES for name in numeric)
    kind = kind or ("phase" if long >= 2 else "lines")
    labelled = frame.attrs["labelled"]
    first, *others = [*numeric, *(name for name in axes if name not in numeric)]
    beside = [*labelled, *others]
    rest = [*others[1:], *labelled] if kind == "phase" else beside[1:]
    crowded = next((name for name in labelled if sizes[name] > MAX_LINES), None)
    if crowded:
        raise InputError(
            f"a figure has no room for the {sizes[crowded]} values of {crowded}: choose one of "
            f"them with --at"
        )
    if len(rest) > 2:
        raise InputError(
            f"a figure has no room for {', '.join(rest[2:])}: choose one value of it with --at"
        )
    for name in rest:
        if name != "cell":  # which names itself
            frame[name] = [f"{name} = {label}" for label in _labels(frame[name])]
    phase = kind == "phase"
    chart: Any = _phase(frame, (first, others[0])) if phase else _lines(frame, first, beside[:1])
    panels = [alt.Facet(f"{name}:N", title=None, sort=_order(frame[name])) for name in rest]
    facets: dict[str, Any] = dict(zip(("column", "row"), panels, strict=False))
    count = sizes[rest[0]] if len(rest) == 1 else 0
    columns = 2 if count == 4 else MAX_PANELS_PER_ROW
    if count > MAX_PANELS_PER_ROW:
        facets = {"facet": panels[0], "columns": columns}
    if facets:
        chart = chart.properties(width=WIDTH // 2, height=HEIGHT // 2).facet(**facets)
    else:
        chart = chart.properties(width=WIDTH, height=HEIGHT)
    if count > MAX_PANELS_PER_ROW and count % columns:
        # A shared axis would be drawn below the empty places of the last row too.
        chart = chart.resolve_axis(x="independent")
    return finish_chart(chart, frame.attrs["title"], _describe_values(frame, kind))


def _describe_values(frame: pd.DataFrame, kind: str) -> str:
    """What is drawn at each point: a mean over what, its band, what was chosen, what is lacking."""
    attrs = frame.attrs
    words: str = attrs["variable"]
    if attrs["over"]:
        over = " and ".join(f"{dim} ({size:,})" for dim, size in attrs["over"].items())
        words += f": {attrs['kind']} over {over}"
    if kind == "lines" and frame["low"].notna().any():
        share = attrs["kind"] == "share"
        words += ", and its 95 % interval" if share else " ± two standard errors"
    words += "".join(f", {name} = {value}" for name, value in attrs["at"].items())
    names = {"done": "without a number", "outside": "outside the hypotheses"}
    lacking = _order(frame["status"][frame["mean"].isna()])
    crosses = " or ".join(names.get(status, status) for status in lacking)
    return f"{words}; ×: {crosses}" if lacking else words


def _order(values: pd.Series) -> list[Any]:
    return list(dict.fromkeys(values))


def _phase(frame: pd.DataFrame, axes: Sequence[str]) -> alt.LayerChart:
    shown = frame.assign(**{f"{name} ": _labels(frame[name]) for name in axes})
    x, y = axes
    across, up = (_order(shown.sort_values(name)[f"{name} "]) for name in axes)
    base = alt.Chart(shown).encode(
        x=alt.X(f"{x} :O", title=x, sort=across), y=alt.Y(f"{y} :O", title=y, sort=up[::-1])
    )
    scale = alt.Scale(scheme="viridis", type=_scale_type(frame["mean"].dropna()))
    done = base.transform_filter("isValid(datum.mean)").mark_rect()
    done = done.encode(
        color=alt.Color("mean:Q", title=frame.attrs["variable"], scale=scale),
        tooltip=[*axes, "mean:Q", "error:Q", "values", "status"],
    )
    return _crosses(base).encode(tooltip=[*axes, "status"]) + done


def _scale_type(numbers: Any) -> Literal["log", "linear"]:
    """Logarithmic where positive numbers span more than a factor of ten."""
    if len(numbers) and numbers.min() > 0 and numbers.max() > 10 * numbers.min():
        return "log"
    return "linear"


def _crosses(base: alt.Chart) -> alt.Chart:
    """Where there is nothing to show."""
    empty = base.transform_filter("!isValid(datum.mean)")
    return empty.mark_text(text="×", color="#999", fontSize=13)


def _lines(frame: pd.DataFrame, x: str, beside: Sequence[str]) -> alt.LayerChart:
    shown = frame.assign(**{name: _labels(frame[name]) for name in beside})
    place: Any = alt.X(f"{x}:N", sort=_order(frame[x]))
    if pd.api.types.is_numeric_dtype(frame[x]):
        # All of the grid, whether or not there is something to show.
        ends = [float(frame[x].min()), float(frame[x].max())]
        scale = alt.Scale(type=_scale_type(frame[x]), domain=ends, nice=False, padding=8)
        place = alt.X(f"{x}:Q", scale=scale)
    color: Any = alt.value(PALETTE[0])
    for name in beside:
        order = _order(shown[name])
        many = len(order) > len(PALETTE)
        color = alt.Color(f"{name}:{'O' if many else 'N'}", title=name, sort=order)
        color = color.legend(symbolOpacity=1)
        color = color.scale(scheme="viridis") if many else color
    title = frame.attrs["variable"]
    every = alt.Chart(shown).encode(x=place)
    base = every.transform_filter("isValid(datum.mean)").encode(color=color)
    numbers = [alt.Tooltip("mean:Q", format=".5g"), alt.Tooltip("error:Q", format=".2g")]
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False)),
        tooltip=[x, *beside, *numbers, "values:Q", "status:N"],
    )
    known = base.transform_filter("isValid(datum.low)")
    known = known.encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    # A point without neighbours has no band, but a bar.
    bands = known.mark_area(opacity=0.2) + known.mark_rule(opacity=0.4)
    crosses = _crosses(every).encode(
        y=alt.value("height"), yOffset=alt.value(-9), tooltip=[x, *beside, "status:N"]
    )
    return bands + line + crosses if frame["low"].notna().any() else line + crosses


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """The rows of a `summary` as .csv or .md."""
    if path.suffix == ".csv":
        text = frame.to_csv(index=False)
    else:
        rows = [list(frame.columns), ["---"] * len(frame.columns)]
        for row in frame.itertuples(index=False):
            rows.append([f"{v:.6g}" if isinstance(v, float) else str(v) for v in row])
        text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    write_whole(path, text.encode())
