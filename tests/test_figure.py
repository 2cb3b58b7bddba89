import itertools

import numpy as np
import pandas as pd
import pytest
import vl_convert
import xarray as xr

from attlas.errors import InputError
from attlas.figure import DOTS, ROWS, Figure, agreement, floored, greek, row

LENGTHS = np.array([10.0, 20, 50, 100])


@pytest.fixture
def evidence():
    values = np.outer(LENGTHS**0.5, [1.0, 2.0])
    axes = ("cell", "function")
    return xr.Dataset(
        {"measured": (axes, values), "bound": (axes, 2 * values), "error": (axes, 0.1 * values)},
        {"function": ["and", "or"], "length": ("cell", LENGTHS), "dim": ("cell", [4, 4, 8, 8])},
    )


def spec_of(figure, theme="light"):
    made = figure.chart(theme).to_dict()
    assert vl_convert.vegalite_to_svg(made).count("<path") > 3
    return made


def rows_of(spec):
    return [row for data in spec["datasets"].values() for row in data]


def test_several_variables_are_series_of_one_legend(evidence):
    figure = Figure(evidence, "t", x="length T").lines(
        "length", {"measured": "found", "bound": "b"}
    )
    spec = spec_of(figure)
    assert {r["series"] for r in rows_of(spec)} == {"found", "b"}
    assert spec["encoding"]["color"]["field"] == "series"
    assert spec["encoding"]["x"]["title"] == "length T"


def test_beside_a_colour_the_series_are_told_by_dashes(evidence):
    figure = Figure(evidence, "t").lines(
        "length", {"measured": "m", "bound": "b"}, color="function"
    )
    encoding = spec_of(figure)["encoding"]
    assert encoding["color"]["field"] == "function" and encoding["strokeDash"]["field"] == "series"


def test_a_label_is_made_of_the_values_of_a_row(evidence):
    spec = spec_of(Figure(evidence, "t").points("length", "measured", color="d = {dim}"))
    column = spec["encoding"]["color"]["field"]
    assert {r[column] for r in rows_of(spec)} == {"d = 4", "d = 8"}


def test_a_label_may_be_a_place_on_an_axis(evidence):
    figure = Figure(evidence, "t", x="").points("T = {length:g}", {"measured": "m", "bound": "b"})
    place = spec_of(figure)["encoding"]["x"]
    assert place["type"] == "nominal"
    assert {r[place["field"]] for r in rows_of(spec_of(figure))} == {
        "T = 10",
        "T = 20",
        "T = 50",
        "T = 100",
    }


def test_words_are_written_into_squares(evidence):
    data = evidence.assign(word=evidence["bound"].astype(int).astype(str))
    squares, words = spec_of(Figure(data).squares("length", "function", "measured", text="word"))[
        "layer"
    ]
    assert squares["mark"]["type"] == "rect" and words["encoding"]["text"]["field"] == "word"


def test_what_is_not_there_has_no_span(evidence):
    gap = evidence.assign(measured=evidence["measured"].where(evidence["length"] > 10))
    spec = spec_of(Figure(gap).spans("length", "measured", "bound"))
    assert {r["length"] for r in rows_of(spec)} == {20, 50, 100}


def test_a_label_may_name_a_variable_of_the_evidence(evidence):
    data = evidence.assign(sphere=evidence["dim"] - 1)
    spec = spec_of(Figure(data, "t").points("length", "measured", color="s = {sphere}"))
    assert {r[spec["encoding"]["color"]["field"]] for r in rows_of(spec)} == {"s = 3", "s = 7"}
    with pytest.raises(InputError, match=r"draws 'sphre', which is not in the evidence. Did you"):
        Figure(data, "t").points("length", "measured", color="s = {sphre}").chart()


def test_errors_are_two_standard_errors_to_each_side(evidence):
    spec = spec_of(Figure(evidence, "t").points("length", "measured", error="error"))
    first = next(r for r in rows_of(spec) if "low" in r)
    assert first["high"] - first["low"] == pytest.approx(4 * first["error"])


def test_a_figure_names_what_the_evidence_lacks(evidence):
    with pytest.raises(InputError, match=r"the figure 't' draws 'mesured', which is not in the"):
        Figure(evidence, "t").points("length", "mesured").chart()
    with pytest.raises(InputError, match="has no layer"):
        Figure(evidence, "t").chart()


def test_long_tables_are_thinned_evenly():
    data = xr.Dataset({"y": ("n", np.arange(10.0 * ROWS)), "x": ("n", np.arange(10.0 * ROWS))})
    drawn = rows_of(spec_of(Figure(data, "t").lines("x", "y")))
    assert len(drawn) == ROWS and {b["x"] - a["x"] for a, b in itertools.pairwise(drawn)} == {10}
    dots = rows_of(spec_of(Figure(data, "t").points("x", "y")))
    assert 0.9 * DOTS < len(dots) <= DOTS


def test_facets_have_a_panel_for_each_label_and_rules_in_all(evidence):
    figure = Figure(evidence, "t").lines("length", "measured").rule(3, "three")
    spec = spec_of(figure.facet("f = {function}", "functions", independent="y"))
    assert {r["panel"] for r in rows_of(spec) if "panel" in r} == {"f = and", "f = or"}
    assert spec["resolve"]["scale"]["y"] == "independent" and spec["facet"]["title"] == "functions"


def test_panels_stand_in_the_order_of_the_data(evidence):
    figure = Figure(evidence, "t").lines("length", "measured").facet("T = {length:g}")
    assert spec_of(figure)["facet"]["sort"] == ["T = 10", "T = 20", "T = 50", "T = 100"]


def test_points_with_errors_stay_in_their_panel(evidence):
    figure = Figure(evidence, "t").points("length", "measured", error="error").rule(3, "three")
    spec = spec_of(figure.facet("function"))
    layers = spec["spec"]["layer"]
    filtered = [layer for layer in layers if "transform" in layer]
    assert {layer["mark"]["type"] for layer in filtered} == {"rule", "point"}
    assert all("data" not in layer for layer in filtered)
    assert all("panel" in r for r in rows_of(spec) if "length" in r)


def test_a_diagonal_spans_each_panel(evidence):
    figure = Figure(evidence, "t").diagonal("measured", "bound").points("measured", "bound")
    spec = spec_of(figure.facet("function"))
    ends = [r for r in rows_of(spec) if r.get("variable") in ("min", "max")]
    assert len(ends) == 4 and all(r["measured"] == r["bound"] for r in ends)


def test_themes_differ_in_the_style_alone(evidence):
    figure = Figure(evidence, "t").lines("length", "bound", theory=True).rule(1, "one")
    light, dark = spec_of(figure), spec_of(figure, "dark")
    assert light.pop("config") != dark.pop("config")
    assert light["layer"][0]["mark"] == dark["layer"][0]["mark"]
    assert "#222222" not in str(light)


def test_agreement_shows_errors_only_where_there_are_some():
    values = {"predicted": ("n", [1.0, 2.0]), "measured": ("n", [1.1, 2.0])}
    exact = agreement(xr.Dataset({**values, "error": 0.0}), "t").chart().to_dict()
    sampled = xr.Dataset({**values, "error": ("n", [0.1, 0.1])})
    sampled = agreement(sampled, "t").chart().to_dict()
    assert "standard errors" not in exact["title"]["subtitle"]
    assert "standard errors" in sampled["title"]["subtitle"]
    assert "'type': 'rule'" in str(sampled["vconcat"][0])
    assert "'type': 'rule'" not in str(exact["vconcat"][0])


def test_panels_share_a_title(evidence):
    one = Figure(evidence, "left").points("length", "measured")
    two = Figure(evidence.isel(cell=0), y="share", x="").bars("function", "measured", error="error")
    spec = spec_of(row(one, two, title="both", note="3e-14"))
    assert spec["title"]["text"] == "both" and spec["title"]["subtitle"] == "3·10⁻¹⁴"
    assert [panel.get("title", {}).get("text") for panel in spec["concat"]] == ["left", None]


def test_bands_spans_squares_ticks_and_texts_are_drawn(evidence):
    figure = Figure(evidence, "t", log="xy", domain={"y": (1, 100)})
    figure.band("length", "measured", "bound", color="function")
    figure.spans("length", "measured", "bound").ticks("length", "bound").texts(
        "length", "bound", "function"
    )
    marks = {layer["mark"]["type"] for layer in spec_of(figure)["layer"]}
    assert marks == {"area", "rule", "tick", "text"}
    squares = spec_of(Figure(evidence, "t").squares("length", "function", "measured"))
    assert squares["mark"]["type"] == "rect"


def test_a_table_can_be_drawn():
    frame = pd.DataFrame({"name": ["a", "b"], "share": [0.2, 0.5]})
    spec = spec_of(Figure(frame, "t", format={"x": "%"}).bars("share", "name"))
    assert (
        spec["encoding"]["y"]["type"] == "nominal"
        and spec["encoding"]["x"]["axis"]["format"] == "%"
    )


def test_zeros_are_drawn_at_the_floor():
    assert floored(xr.DataArray([0.0, 1e-30, 1.0]), 1e-20).values.tolist() == [1e-20, 1e-20, 1.0]


def test_overlaps_have_their_symbols():
    data = xr.Dataset(coords={"overlap": ["kappa", "in eta", "risk"]})
    assert greek(data, "overlap")["overlap"].values.tolist() == ["κ", "in η", "risk"]
