from pathlib import Path

import numpy as np
import pytest
import vl_convert
import xarray as xr

from attlas.errors import InputError
from attlas.lab.diagrams import check_drawing, diagram, summary, write_table
from attlas.lab.sweeps import plan_grid, sweep


@pytest.fixture
def swept(toy, store):
    return sweep(
        toy,
        {"n": "1:6", "dim": [5, 10, 20, 40], "raises": [2.0]},
        seeds="0:3",
        store=store,
        retries=0,
    )


def rows(chart):
    return [row for data in chart.to_dict()["datasets"].values() for row in data]


def test_a_row_is_the_mean_over_seeds_and_repeats(swept):
    frame = summary(swept, "measured")
    numbers = ["mean", "error", "low", "high", "values"]
    assert list(frame.columns) == ["n", "dim", "raises", *numbers, "status"]
    assert len(frame) == 20
    row = frame[(frame.n == 3) & (frame.dim == 10)].iloc[0]
    values = swept["measured"].sel(n=3, dim=10).values
    assert row["mean"] == pytest.approx(values.mean())
    assert row["values"] == 12
    assert row["status"] == "done"
    assert row["error"] == pytest.approx(values.std(ddof=1) / np.sqrt(12))
    failed = frame[frame.n == 2]
    assert (failed.status == "failed").all()
    assert failed["mean"].isna().all()
    assert (failed["values"] == 0).all()


def test_labels_of_the_evidence_stay_apart_and_one_can_be_chosen(swept):
    frame = summary(swept, "two")
    assert frame.attrs["labelled"] == ["mechanism"] and len(frame) == 40
    one = summary(swept, "two", {"mechanism": "minus", "dim": "10"})
    assert one["mean"].dropna().tolist() == [-10.5, -30.5, -40.5, -50.5]


def test_two_long_axes_make_a_phase_diagram_and_one_makes_lines(swept):
    phase = diagram(swept, variable="measured")
    lines = diagram(swept, variable="measured", at={"dim": 20})
    for chart, mark in ((phase, "rect"), (lines, "area")):
        text = str(chart.to_dict())
        assert f"'type': '{mark}'" in text
        assert vl_convert.vegalite_to_svg(chart.to_dict()).count("<path") > 5
    assert len(rows(phase)) == 20 and len(rows(lines)) == 5
    assert "'type': 'line'" in str(diagram(swept, "lines", "measured").to_dict())


def test_a_third_axis_and_labels_become_panels(toy, store):
    found = sweep(toy, {"n": "1:6", "dim": [5, 10, 20, 40], "lam": [0.1, 0.2]}, store=store)
    spec = diagram(found, variable="two").to_dict()
    assert spec["facet"]["column"]["field"] == "lam"
    assert spec["facet"]["row"]["field"] == "mechanism"
    assert vl_convert.vegalite_to_svg(spec)


def test_the_variable_is_chosen_if_none_is_named(swept):
    assert summary(swept).attrs["variable"] == "arrived"
    assert summary(swept.drop_vars("arrived")).attrs["variable"] == "measured"


def test_lists_off_the_axes_are_named_by_their_values(toy, store):
    cells = summary(sweep(toy, {"dim": [5, 10]}, store=store))["cell"].tolist()
    assert cells[:2] == ["n = 1", "n = 2"]


def test_tables(swept, tmp_path):
    for name in ("a.csv", "a.md"):
        write_table(summary(swept, "count"), tmp_path / name)
    csv, markdown = ((tmp_path / name).read_text().splitlines() for name in ("a.csv", "a.md"))
    assert csv[0] == "n,dim,raises,mean,error,low,high,values,status"
    assert csv[1] == "1,5,2.0,1.0,0.0,1.0,1.0,3,done"
    assert markdown[2] == "| 1 | 5 | 2 | 1 | 0 | 1 | 1 | 3 | done |"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"variable": "measure"}, "no variable 'measure'.*Did you mean measured"),
        ({"variable": "letter"}, "no variable 'letter'"),
        ({"at": {"mechanizm": "plus"}}, "no axis 'mechanizm'.*Did you mean mechanism"),
        ({"at": {"mechanism": "times"}}, "it is one of plus, minus"),
        ({"at": {"n": 3, "dim": 5}}, "one point"),
        ({"kind": "phase", "at": {"n": 3}}, "two axes"),
    ],
)
def test_what_cannot_be_drawn_is_told(swept, options, says):
    with pytest.raises(InputError, match=says):
        diagram(swept, **options)


def test_nothing_done_is_nothing_to_draw(swept):
    with pytest.raises(InputError, match="no cell is done"):
        summary(swept[["status", "reason"]])
    assert isinstance(swept, xr.Dataset)


def test_values_that_agree_to_three_digits_have_places_of_their_own(toy, store):
    found = sweep(toy, {"lam": [0.5, 0.50001, 0.50002, 0.50003], "n": "1:5"}, store=store)
    spec = diagram(found, "phase", "measured").to_dict()
    assert len({row["lam "] for data in spec["datasets"].values() for row in data}) == 4


def test_one_value_has_no_error_and_a_crowd_of_lines_is_refused(toy, store):
    found = sweep(toy, {"n": "1:3"}, store=store).assign_coords(step=range(40))
    found["path"] = (("n", "step"), np.ones((2, 40)))
    assert summary(found, "path")["error"].isna().all()
    with pytest.raises(InputError, match="no room for the 40 values of step"):
        diagram(found, variable="path")
    assert diagram(found, variable="path", at={"step": 3}).to_dict()


def test_many_panels_make_several_rows(toy, store):
    found = sweep(toy, {"n": "1:5", "lam": "0.1:0.9:4", "repeats": "1:5"}, store=store)
    assert diagram(found, "phase", "count").to_dict()["columns"] == 2
    few = diagram(found.isel(repeats=slice(3)), "phase", "count").to_dict()
    assert "columns" not in few and set(few["facet"]) == {"column"}


def test_the_points_of_a_design_have_no_error(toy, store):
    found = sweep(toy, {"n": "1:4"}, seeds="0:2", store=store)
    values = np.arange(24.0).reshape(3, 2, 4)
    found = found.assign(
        path=(("n", "seed", "point"), values), exact=(("n", "point"), values[:, 0])
    )
    assert summary(found, "exact")["error"].isna().all()
    assert summary(found, "exact")["low"].isna().all()
    frame = summary(found, "path")  # two seeds, whose means over the points lie 4 apart
    assert frame["error"].tolist() == [2.0] * 3 and frame["values"].tolist() == [8] * 3
    said = diagram(found, "lines", "path").to_dict()["title"]["subtitle"]
    assert said == "path: mean over seed (2) and point (4) ± two standard errors"
    said = diagram(found, "lines", "exact").to_dict()["title"]["subtitle"]
    assert said == "exact: mean over point (4)"


def test_a_share_has_an_interval_within_0_and_1(toy, store):
    found = sweep(toy, {"n": "1:4"}, store=store)[["status"]]
    arrived = np.arange(16) < np.array([0, 8, 16])[:, None, None]
    found["arrived"] = (("n", "seed", "repeat"), arrived)
    frame = summary(found, "arrived")
    assert frame["mean"].tolist() == [0, 0.5, 1] and frame["low"][0] == 0 and frame["high"][2] == 1
    assert frame["high"][0] == pytest.approx(4 / 20) and frame["low"][2] == pytest.approx(16 / 20)
    assert frame["high"][1] - 0.5 == pytest.approx(0.5 - frame["low"][1])


def test_lines_reach_over_the_grid_and_mark_what_is_lacking(swept):
    spec = diagram(swept, "lines", "measured", {"dim": 20}).to_dict()
    (line,) = (layer for layer in spec["layer"] if layer.get("mark", {}).get("type") == "line")
    assert line["encoding"]["x"]["scale"]["domain"] == [1, 5]
    assert spec["title"]["subtitle"].endswith(", dim = 20; ×: failed")
    assert vl_convert.vegalite_to_svg(spec).count(">×<") == 1


def test_what_the_axes_exclude_is_told_before_work_starts(toy):
    begun = plan_grid(toy, {"n": "1:6", "dim": [5, 10, 20, 40]})
    check_drawing(begun, Path("a.csv"), None, {"n": "3", "dim": "5", "mechanism": "plus"})
    check_drawing(begun, Path("a.svg"), "phase", {"mechanism": "plus"})
    for kind, at, says in (
        ("phase", {"n": "3"}, "two axes"),
        (None, {"n": 3, "dim": 5}, "one point"),
        (None, {"dim": "75"}, "one of 5, 10, 20, 40"),
    ):
        with pytest.raises(InputError, match=says):
            check_drawing(begun, Path("a.svg"), kind, at)


def test_a_simulation_is_called_by_its_words_and_cells_by_theirs(toy, store):
    found = sweep(toy, {"dim": [5, 10], "lam": [0.1, 0.2, 0.3]}, store=store)
    found = found.assign_attrs(claim="simulation/file-walk", words="How far a `walk` goes.")
    spec = diagram(found, "phase", "count").to_dict()
    assert spec["title"]["text"] == "How far a walk goes"
    assert {row["cell"] for row in rows(diagram(found, "phase", "count"))} >= {"n = 1", "n = 2"}


def test_panels_that_leave_places_empty_have_axes_of_their_own(toy, store):
    found = sweep(toy, {"n": "1:7", "lam": "0.1:0.9:6", "repeats": "1:6"}, store=store)
    assert diagram(found, "phase", "count").to_dict()["resolve"]["axis"] == {"x": "independent"}
