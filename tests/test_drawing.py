import numpy as np
import xarray as xr

from attlas.drawing import agreement, log_floor, rule_at, table


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
    assert "standard errors" not in exact["title"]["subtitle"] and "standard errors" in sampled["title"]["subtitle"]
    assert "'type': 'rule'" in str(sampled["vconcat"][0]) and "'type': 'rule'" not in str(exact["vconcat"][0])


def test_a_level_of_the_theory_is_named():
    assert "oracle" in rule_at(0.5, "oracle").to_json()
