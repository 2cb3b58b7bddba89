import json

import numpy as np
import pytest
import xarray as xr

from attlas.claims import Setting
from attlas.errors import InputError
from attlas.lab.grids import DONE, MISSING, Grid, align, expand, gather, parse_grid, parse_seeds
from attlas.lab.store import Address, Cell


def measure_all(grid, store, skip=()):
    for number in range(len(grid)):
        if number not in skip:
            setting, seed = grid.item(number)
            evidence = grid.claim.measure([setting], seed)
            store.save([Cell(Address.of(grid.claim, seed), setting)], evidence, {"seconds": 1.0})
    return np.array([MISSING if number in skip else DONE for number in range(len(grid))])


def test_lists_and_ranges():
    assert expand("x", "1, 2,4") == ["1", "2", "4"]
    assert expand("x", "0:4,9") == [0, 1, 2, 3, "9"]
    assert expand("x", "0:1:5") == [0, 0.25, 0.5, 0.75, 1]
    assert expand("x", "0.01:1:3log") == [0.01, 0.1, 1]
    assert expand("x", "1:0:3") == [1, 0.5, 0]
    assert expand("x", "a:b", words=True) == ["a:b"]
    assert expand("x", [1, (2, 3)]) == [1, (2, 3)] and expand("x", 7) == [7]


def test_a_range_in_equal_ratios_has_its_ends_and_few_digits():
    values = expand("lam", "0.05:1:20log")
    assert values[0] == 0.05 and values[-1] == 1 and len(values) == 20
    np.testing.assert_allclose(np.diff(np.log(values)), np.log(20) / 19, rtol=1e-9)
    assert all(len(repr(value)) <= 15 for value in values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("1:2:3:4", "a range is"),
        ("a:b", "a range is"),
        ("1:inf", "a range is"),
        ("0.5:3", "whole numbers"),
        ("3:1", "a < b"),
        ("1:2:1", "two or more"),
        ("2:2:3", "differs"),
        ("0:1:5log", "positive"),
        ("0:100000000", "at most"),
        ("0:1:100000000", "at most"),
    ],
)
def test_ranges_that_make_no_sense_are_told(text, says):
    with pytest.raises(InputError, match=says):
        expand("lam", text)


def test_seeds():
    assert parse_seeds("0:3,7") == (0, 1, 2, 7)
    assert parse_seeds(5) == (5,)
    assert parse_seeds(range(2)) == (0, 1)
    for bad in ("-1:2", "1.5", "x", True, 2**31, [1, 1], []):
        with pytest.raises(InputError, match="seed"):
            parse_seeds(bad)


def test_grids_as_texts():
    assert parse_grid(["dim=1,2", "lam = 0:1:3"]) == {"dim": "1,2", "lam": " 0:1:3"}
    with pytest.raises(InputError, match="name=values"):
        parse_grid(["dim"])
    with pytest.raises(InputError, match="twice"):
        parse_grid(["dim=1", "dim=2"])


def test_values_have_the_type_of_the_parameter(toy):
    grid = Grid.of(toy, toy.quick, {"dim": "10:1000:3log", "lam": "0:1:3", "word": "a,b:c"}, (0,))
    assert grid.axes == {"dim": (10, 100, 1000), "lam": (0.0, 0.5, 1.0), "word": ("a", "b:c")}
    assert len(grid) == 18 * 3
    assert grid.cells == 3
    assert grid.shape == {"dim": 3, "lam": 3, "word": 2, "cell": 3, "seed": 1}


def test_the_names_of_items_are_those_of_the_cells_that_run_would_measure(toy):
    grid = Grid.of(toy, toy.quick, {"n": [2, 3], "lam": [0.1, 0.2]}, (4, 9))
    assert [grid.item(i) for i in (0, 1, 2, 7)] == [
        (toy.quick.at(n=2, dim=10, lam=0.1), 4),
        (toy.quick.at(n=2, dim=10, lam=0.1), 9),
        (toy.quick.at(n=2, dim=10, lam=0.2), 4),
        (toy.quick.at(n=3, dim=10, lam=0.2), 9),
    ]
    (cell,) = toy.cells(toy.quick.replace(n=3, lam=0.2))
    assert grid.names[7] == Address.of(toy, 9).cell(cell)


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"dimm": [1]}, "unknown parameter 'dimm'. Did you mean dim"),
        ({"dim": "1.5"}, "dim = '1.5'"),
        ({"dim": "many"}, "dim = 'many'"),
        ({"lam": "x"}, "lam = 'x'"),
        ({"lam": [0.1, 0.1]}, "lam has the value 0.1 twice"),
        ({"dim": "1:3:9"}, "dim has the value"),
        ({"dim": []}, "dim is empty"),
        ({"lam": "0:1:10000", "dim": "1:10000"}, "at most"),
    ],
)
def test_grids_that_make_no_sense_are_told(toy, axes, says):
    with pytest.raises(InputError, match=says):
        Grid.of(toy, toy.quick, axes, (0,))


def test_a_whole_list_may_be_a_value(toy):
    grid = Grid.of(toy, toy.quick, {"fixed": [(1.0, 2.0), (3.0, 4.0)], "n": [1]}, (0,))
    assert grid.settings[1].fixed == (3.0, 4.0)
    assert grid.coordinates()["fixed"] == ("fixed", ["[1.0, 2.0]", "[3.0, 4.0]"])


def test_hypotheses_tell_the_broken_from_the_undefined(toy):
    grid = Grid.of(toy, toy.quick, {"n": [1, 5000], "lam": [0.5, 2.0]}, (0,))
    broken, undefined = grid.outside()
    assert broken == {1: "lam < 1"} and set(undefined) == {2, 3} and "n < 1000" in undefined[2]


def test_the_grid_becomes_named_axes(toy, store):
    grid = Grid.of(toy, toy.quick, {"n": [1, 3], "word": ["x", "y"]}, (0, 1))
    found = gather(grid, store, measure_all(grid, store), {})
    assert dict(found.sizes) == {"n": 2, "word": 2, "seed": 2, "repeat": 4, "mechanism": 2}
    assert found["measured"].dims == ("n", "word", "seed", "repeat")
    assert found["error"].dims == ("n", "word", "seed")
    assert found["mechanism"].dims == ("mechanism",)
    assert found["letter"].sel(n=3, word="y", seed=1).item() == "yyy"
    assert found["count"].dtype.kind == "i"
    expected = toy.measure([toy.quick.at(n=3, dim=10, word="y")], 1)["measured"].values[0]
    np.testing.assert_array_equal(found["measured"].sel(n=3, word="y", seed=1).values, expected)
    assert (found["status"] == "done").all()
    assert found["mechanism"].values.tolist() == ["plus", "minus"]
    assert json.loads(found.attrs["setting"])["lam"] == 0.5 and found.attrs["claim"] == "toy/square"


def test_what_is_missing_is_nan_and_says_why(toy, store):
    grid = Grid.of(toy, toy.quick, {"n": [1, 2, 3]}, (0,))
    status = measure_all(grid, store, skip=(1,))
    found = gather(grid, store, status, {1: "it rained"})
    assert found["status"].values[:, 0].tolist() == ["done", "missing", "done"]
    assert found["reason"].values[:, 0].tolist() == ["", "it rained", ""]
    for name in ("measured", "count", "arrived", "two"):
        assert np.isnan(found[name].isel(n=1)).all()
        assert not np.isnan(found[name].isel(n=[0, 2])).any()
    assert found["letter"].values[:, 0].tolist() == ["a", "", "aaa"]


def test_what_is_missing_costs_little_memory(toy, store):
    grid = Grid.of(toy, toy.quick, {"n": [1, 2, 3]}, (0,))
    found = gather(grid, store, measure_all(grid, store, skip=(1,)), {1: "r" * 1000})
    assert found["arrived"].dtype == np.float32 and found["count"].dtype == np.float64
    assert found["reason"].nbytes == 8 * len(grid) and found["reason"].values[1, 0] == "r" * 1000


def test_what_the_store_has_lost_is_missing(toy, store):
    grid = Grid.of(toy, toy.quick, {"n": [1, 2]}, (0,))
    status = measure_all(grid, store)
    store.find("toy/square", grid.names)[grid.names[1]].block.unlink()
    assert gather(grid, store, status, {})["status"].values[:, 0].tolist() == ["done", "missing"]


def test_evidence_with_the_name_of_an_axis_is_renamed(toy, store):
    grid = Grid.of(toy, toy.quick, {"lam": [0.1, 0.2], "n": [1]}, (0,))
    found = gather(grid, store, measure_all(grid, store), {})
    assert found["lam"].dims == ("lam",) and found["evidence_lam"].dims == ("lam", "n", "seed")


def test_longer_arrays_fill_shorter_ones_up(toy, store):
    grid = Grid.of(toy, toy.quick, {"repeats": [2, 5, 3], "n": [1]}, (0,))
    found = gather(grid, store, measure_all(grid, store), {})
    assert found.sizes["repeat"] == 5
    assert found["measured"].notnull().sum("repeat").values.ravel().tolist() == [2, 5, 3]
    assert found["arrived"].dtype == np.float32
    assert found["arrived"].dims == ("repeats", "n", "seed", "repeat")


def test_lists_that_are_not_on_an_axis_lie_along_cell(toy, store):
    grid = Grid.of(toy, toy.quick, {"dim": [10, 20]}, (0,))
    found = gather(grid, store, measure_all(grid, store), {})
    assert found["measured"].dims == ("dim", "cell", "seed", "repeat")
    assert found["n"].values.tolist() == [1, 2, 3]


def aligned(*blocks, items):
    """Blocks of evidence with the items that they are, along one axis."""
    return align([(dict(block.variables), at) for block, at in blocks], set(), {"i": items})


def test_evidence_whose_axes_differ_does_not_fit():
    plain = xr.Dataset({"x": ("cell", [1.0])})
    with pytest.raises(InputError, match="do not fit"):
        aligned((plain, [0]), (plain.expand_dims("point", axis=1), [1]), items=2)


def test_a_variable_that_only_some_cells_have_is_nan_elsewhere():
    first = xr.Dataset({"x": ("cell", [1, 2]), "one": 5.0})
    second = xr.Dataset({"x": ("cell", [3]), "one": 6.0, "other": ("cell", [7])})
    found = aligned((first, [1, 0]), (second, [2]), items=3)
    assert found["x"][1].tolist() == [2, 1, 3] and found["x"][1].dtype.kind == "i"
    assert found["one"][1].tolist() == [5, 5, 6]
    np.testing.assert_array_equal(found["other"][1], [np.nan, np.nan, 7])


def test_labels_that_differ_between_cells_become_a_variable():
    blocks = [
        (xr.Dataset({"x": (("cell", "learner"), [[1.0, 2.0]])}, {"learner": labels}), [i])
        for i, labels in enumerate((["a", "b"], ["c", "b"]))
    ]
    found = xr.Dataset(aligned(*blocks, items=2))
    assert found["learner_label"].values.tolist() == [["a", "b"], ["c", "b"]]
    assert "learner" not in found.coords


@pytest.mark.parametrize("kind", [int, bool, float])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_what_is_missing_is_nan_in_whatever_order_blocks_come(kind, order):
    blocks = [
        (xr.Dataset({"v": (("cell", "place"), np.ones((1, (2, 3, 2)[i]), kind))}), [i])
        for i in order
    ]
    np.testing.assert_array_equal(
        aligned(*blocks, items=3)["v"][1], [[1, 1, np.nan], [1, 1, 1], [1, 1, np.nan]]
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_what_some_blocks_share_is_nan_in_those_that_lack_it(order):
    blocks = []
    for i in order:
        shared = {} if i == 1 else {"x": ((), 5.0)}
        blocks.append((xr.Dataset({"v": ("cell", [1.0]), **shared}), [i]))
    np.testing.assert_array_equal(aligned(*blocks, items=3)["x"][1], [5, np.nan, 5])


def test_the_axis_of_the_cells_may_stand_anywhere():
    block = xr.Dataset({"x": (("place", "cell"), [[1.0, 2.0], [3.0, 4.0]])})
    dims, values = aligned((block, [1, 0]), items=2)["x"]
    assert dims == ("i", "place") and values.tolist() == [[2, 4], [1, 3]]


def test_some_rows_of_a_block_are_gathered(toy, store):
    whole = Grid.of(toy, toy.quick, {"n": [1, 2, 3]}, (0,))
    evidence = toy.measure(whole.settings, 0)
    store.save([Cell(Address.of(toy, 0), setting) for setting in whole.settings], evidence, {})
    grid = Grid.of(toy, toy.quick, {"n": [3, 1]}, (0,))
    found = gather(grid, store, np.array([DONE, DONE]), {})
    np.testing.assert_array_equal(found["measured"].values[:, 0], evidence["measured"][[2, 0]])


def test_names_that_a_sweep_needs_itself_are_refused(toy):
    with pytest.raises(InputError, match=r"'status'.*something else"):
        Grid.of(toy, Setting(status=1), {"status": [1, 2]}, (0,))
