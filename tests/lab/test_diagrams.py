import numpy as np
import pytest
import vl_convert
import xarray as xr

from attlas.errors import InputError
from attlas.lab.diagrams import diagram, summary, write_table
from attlas.lab.sweeps import sweep


@pytest.fixture
def swept(toy, store):
    return sweep(toy, {"n": "1:6", "dim": [5, 10, 20, 40], "raises": [2.0]}, seeds="0:3", store=store, retries=0)


def rows(chart):
    return [row for data in chart.to_dict()["datasets"].values() for row in data]


def test_a_row_is_the_mean_over_seeds_and_repeats(swept):
    frame = summary(swept, "measured")
    assert list(frame.columns) == ["n", "dim", "raises", "mean", "error", "values", "status"] and len(frame) == 20
    row = frame[(frame.n == 3) & (frame.dim == 10)].iloc[0]
    values = swept["measured"].sel(n=3, dim=10).values
    assert row["mean"] == pytest.approx(values.mean()) and row["values"] == 12 and row["status"] == "done"
    assert row["error"] == pytest.approx(values.std(ddof=1) / np.sqrt(12))
    failed = frame[frame.n == 2]
    assert (failed.status == "failed").all() and failed["mean"].isna().all() and (failed["values"] == 0).all()


def test_labels_of_the_evidence_stay_apart_and_one_can_be_chosen(swept):
    frame = summary(swept, "two")
    assert frame.attrs["labelled"] == ["mechanism"] and len(frame) == 40
    one = summary(swept, "two", {"mechanism": "minus", "dim": "10"})
    assert one["mean"].dropna().tolist() == [-10.5, -30.5, -40.5, -50.5]


def test_two_long_axes_make_a_phase_diagram_and_one_makes_lines(swept):
    phase, lines = diagram(swept, variable="measured"), diagram(swept, variable="measured", at={"dim": 20})
    for chart, mark in ((phase, "rect"), (lines, "area")):
        text = str(chart.to_dict())
        assert f"'type': '{mark}'" in text and vl_convert.vegalite_to_svg(chart.to_dict()).count("<path") > 5
    assert len(rows(phase)) == 20 and len(rows(lines)) == 5
    assert "'type': 'line'" in str(diagram(swept, "lines", "measured").to_dict())


def test_a_third_axis_and_labels_become_panels(toy, store):
    found = sweep(toy, {"n": "1:6", "dim": [5, 10, 20, 40], "lam": [0.1, 0.2]}, store=store)
    spec = diagram(found, variable="two").to_dict()
    assert spec["facet"]["column"]["field"] == "lam" and spec["facet"]["row"]["field"] == "mechanism"
    assert vl_convert.vegalite_to_svg(spec)


def test_the_variable_is_chosen_if_none_is_named(swept):
    assert (
        summary(swept).attrs["variable"] == "arrived"
        and summary(swept.drop_vars("arrived")).attrs["variable"] == "measured"
    )


def test_lists_off_the_axes_are_named_by_their_values(toy, store):
    assert summary(sweep(toy, {"dim": [5, 10]}, store=store))["cell"].tolist()[:2] == ["n = 1", "n = 2"]


def test_tables(swept, tmp_path):
    for name in ("a.csv", "a.md"):
        write_table(summary(swept, "count"), tmp_path / name)
    assert (tmp_path / "a.csv").read_text().startswith("n,dim,raises,mean,error,values,status\n1,5,2.0,1.0,0.0,3,done")
    assert (tmp_path / "a.md").read_text().splitlines()[2] == "| 1 | 5 | 2 | 1 | 0 | 3 | done |"


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
    found = (
        sweep(toy, {"n": "1:3"}, store=store)
        .assign(path=(("n", "step"), np.ones((2, 40))))
        .assign_coords(step=range(40))
    )
    assert summary(found, "path")["error"].isna().all()
    with pytest.raises(InputError, match="no room for the 40 values of step"):
        diagram(found, variable="path")
    assert diagram(found, variable="path", at={"step": 3}).to_dict()


def test_many_panels_make_several_rows(toy, store):
    found = sweep(toy, {"n": "1:5", "lam": "0.1:0.9:4", "repeats": "1:5"}, store=store)
    assert diagram(found, "phase", "count").to_dict()["columns"] == 3
    few = diagram(found.isel(repeats=slice(3)), "phase", "count").to_dict()
    assert "columns" not in few and set(few["facet"]) == {"column"}
