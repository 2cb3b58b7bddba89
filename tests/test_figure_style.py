import re

import altair as alt
import pandas as pd
import pytest
import vl_convert

from attlas.figure import Figure
from attlas.figure_style import config, legible, names_axis, raised


def finish(chart):
    chart.config = config()
    return chart


@pytest.mark.parametrize(
    ("low", "high", "form", "some"),
    [
        (1e-12, 1.0, ".0e", ["10⁻¹²", "10⁻⁴", "0.01", "1"]),
        (1.0, 1e8, "", ["1", "100,000", "10⁶", "10⁸"]),
        (20.0, 3000.0, ".0e", ["20", "2,000"]),
        (1e2, 1e5, "~s", ["100", "100k"]),
    ],
)
def test_ticks_are_written_as_powers_of_ten_where_they_are_far_from_1(low, high, form, some):
    axis = alt.X(
        "x:Q", scale=alt.Scale(type="log"), axis=alt.Axis(format=form) if form else alt.Axis()
    )
    chart = finish(alt.Chart(pd.DataFrame({"x": [low, high]})).mark_point().encode(x=axis))
    labels = re.findall(r">([^<>]+)</text>", vl_convert.vegalite_to_svg(chart.to_dict()))
    assert set(some) <= set(labels) and not any("e" in label for label in labels)


@pytest.mark.parametrize(
    ("terse", "written"),
    [
        ("off by 3.2e-14", "off by 3.2·10⁻¹⁴"),
        ("1e-12 of it", "10⁻¹² of it"),
        ("1.6e+02 or 1.1e+06", "160 or 1.1·10⁶"),
        ("exponent -0.5", "exponent −0.5"),
        ("10^20", "10²⁰"),
        ("2026-11-17, 3-sparse, d-1", "2026-11-17, 3-sparse, d-1"),
    ],
)
def test_numbers_are_written_as_readers_write_them(terse, written):
    assert legible(terse) == written


def test_nothing_has_no_unit():
    axis = alt.Axis(format="~s", values=[0, 5000, 10000])
    chart = (
        alt.Chart(pd.DataFrame({"x": [0, 10000]})).mark_point().encode(x=alt.X("x:Q", axis=axis))
    )
    drawn = vl_convert.vegalite_to_svg(finish(chart).to_dict())
    assert ">5k<" in drawn and ">0<" in drawn and ">0k<" not in drawn


def test_a_label_with_a_unit_is_left_as_it_is():
    spec = Figure(pd.DataFrame({"x": [0, 1], "y": [1, 2]}), "t").points("x", "y").chart().to_dict()
    assert spec["config"]["axis"]["labelExpr"].startswith("!test(")


def test_powers_of_labels_are_raised():
    assert raised("CME, λ = L^¾, linear mean") == "CME, λ = L³⁄⁴, linear mean"
    assert raised("γ ~ L^(−2/(s+8))") == "γ ~ L⁻²⁄⁽ˢ⁺⁸⁾"
    assert raised("(a) x^y, 2 (b)") == "(a) x^y, 2 (b)"


def test_names_of_groups_stand_under_their_group():
    axis, scale = names_axis(["a: one", "a: two", "b: one"], grouped=True)
    assert scale.domain == ["a", "a: one", "a: two", "b", "b: one"]
    assert "split(datum.label" in axis.labelExpr
    for names, grouped in ((["a: one", "a: two", "b"], True), (["a: one", "b: one"], True)):
        _, scale = names_axis(names, grouped=grouped)
        assert "domain" not in scale.to_dict()
