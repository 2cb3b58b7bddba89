"""Figures in words: what each layer of a Vega-Lite specification shows, with its numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attlas.figure_style import legible

MANY = 12
"""Series of one layer that are told one by one; more are told together."""
_SERIES = ("color", "strokeDash", "shape")


def describe_figure(spec: Mapping[str, Any]) -> list[str]:
    """A sentence for each series of each layer: its axes, how many values, where it begins and
    ends, and between which numbers it stays."""
    told = [line for view, rows in _units(spec, spec, None) for line in _describe(view, rows)]
    return list(dict.fromkeys(told))


def _units(
    spec: Mapping[str, Any], view: Mapping[str, Any], inherited: Any
) -> Iterator[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]:
    """The views that have a mark, with the rows that they draw."""
    data = view.get("data") or inherited
    if "mark" in view:
        rows = _rows(spec, data)
        for step in view.get("transform", ()):
            rows = [row for row in rows if _passes(step.get("filter"), row)]
        yield view, rows
        return
    inner = [view["spec"]] if "spec" in view else ()
    for part in view.get("concat") or view.get("vconcat") or view.get("layer") or inner:
        yield from _units(spec, part, data)


def _rows(spec: Mapping[str, Any], data: Any) -> Sequence[Mapping[str, Any]]:
    if not data:
        return []
    return data["values"] if "values" in data else spec.get("datasets", {}).get(data["name"], [])


def _passes(condition: Any, row: Mapping[str, Any]) -> bool:
    """Whether a row is one of a layer's own, where layers share a table."""
    if isinstance(condition, str) and condition.startswith("datum.layer == "):
        return row.get("layer") == int(condition.rpartition(" ")[2])
    return True


def _describe(view: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    encoding = view.get("encoding", {})
    if "text" in encoding:
        return
    x, y = (encoding.get(axis, {}) for axis in ("x", "y"))
    if not x.get("field") or not y.get("field"):
        for axis, name in ((x, "vertical line at"), (y, "horizontal line at")):
            for row in rows if axis.get("field") else ():
                words = f" ({row['words']})" if row.get("words") else ""
                yield legible(f"A {name} {_number(row[axis['field']])}{words}.")
        return
    fields = [encoding[name]["field"] for name in _SERIES if encoding.get(name, {}).get("field")]
    fields = list(dict.fromkeys([*(("panel",) if rows and "panel" in rows[0] else ()), *fields]))
    series: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get(x["field"]) is not None and row.get(y["field"]) is not None:
            series.setdefault(tuple(row.get(name) for name in fields), []).append(row)
    if len(series) > MANY:
        series = {(f"{len(series)} series",): [row for part in series.values() for row in part]}
    for names, part in series.items():
        named = ", ".join(_number(name) for name in names if name is not None)
        yield legible(f"{_axes(x, y)}{f', {named}' if named else ''}: {_values(x, y, part)}.")


def _axes(x: Mapping[str, Any], y: Mapping[str, Any]) -> str:
    across, up = (axis.get("title") or axis["field"] for axis in (x, y))
    text = f"{up} against {across}"
    return text[:1].upper() + text[1:]


def _values(x: Mapping[str, Any], y: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    pairs = [(row[x["field"]], row[y["field"]]) for row in rows]
    numeric = [
        all(isinstance(v, int | float) for v in column) for column in zip(*pairs, strict=True)
    ]
    if len(pairs) <= MANY and not all(numeric):
        return ", ".join(f"{_number(a)}: {_number(b)}" for a, b in pairs)
    if len(pairs) == 1:
        return f"{_number(pairs[0][1])} at {_number(pairs[0][0])}"
    if not all(numeric):
        values = [v for pair in pairs for v in pair if isinstance(v, int | float)]
        between = f" between {_number(min(values))} and {_number(max(values))}" if values else ""
        return f"{len(pairs)} values{between}"
    pairs.sort()
    low, high = min(b for _, b in pairs), max(b for _, b in pairs)
    (a0, b0), (a1, b1) = pairs[0], pairs[-1]
    return (
        f"{len(pairs)} values, {_number(b0)} at {_number(a0)}, {_number(b1)} at {_number(a1)},"
        f" all between {_number(low)} and {_number(high)}"
    )


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
