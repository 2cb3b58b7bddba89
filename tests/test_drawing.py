import re

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert
import xarray as xr

from attlas.drawing import agreement, finish, greek, legible, log_floor, rule_at, table


def test_tables_are_thinned_evenly():
    data = xr.Dataset({"x": ("n", np.arange(10_000.0))})
    frame = table(data, "x", rows=100)
    assert len(frame) == 100 and set(np.diff(frame["x"])) == {100}


def test_zeros_are_drawn_at_the_floor():
    assert log_floor(xr.DataArray([0.0, 1e-30, 1.0]), 1e-20).values.tolist() == [1e-20, 1e-20, 1.0]


def test_agreement_shows_errors_only_where_there_are_some():
    values = {"predicted": ("n", [1.0, 2.0]), "measured": ("n", [1.1, 2.0])}
    exact = agreement(xr.Dataset({**values, "error": 0.0}), "t").to_dict()
    sampled = agreement(xr.Dataset({**values, "error": ("n", [0.1, 0.1])}), "t").to_dict()
    assert (
        "standard errors" not in exact["title"]["subtitle"]
        and "standard errors" in sampled["title"]["subtitle"]
    )
    assert "'type': 'rule'" in str(sampled["vconcat"][0]) and "'type': 'rule'" not in str(
        exact["vconcat"][0]
    )


def test_a_level_of_the_theory_is_named():
    assert "oracle" in rule_at(0.5, "oracle").to_json()


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
    chart = finish(alt.Chart(pd.DataFrame({"x": [low, high]})).mark_point().encode(x=axis), "t")
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
    drawn = vl_convert.vegalite_to_svg(finish(chart, "a title").to_dict())
    assert ">5k<" in drawn and ">0<" in drawn and ">0k<" not in drawn


def test_overlaps_have_their_symbols():
    named = xr.Dataset(coords={"overlap": ["kappa", "in eta", "risk"]})
    assert greek(named, "overlap")["overlap"].values.tolist() == ["κ", "in η", "risk"]
