import numpy as np
import pytest
import xarray as xr

from attlas.claims.evidence import as_evidence, on, read_as
from attlas.errors import InputError
from attlas.gaussian import Estimate


def test_every_variable_of_one_cell_gets_the_axis_cell():
    made = as_evidence(
        {**on("point", predicted=np.arange(3.0)), "error": 0.0, "point": ["a", "b", "c"]}, 1, False
    )
    assert made["predicted"].dims == ("cell", "point") and made["error"].dims == ("cell",)
    assert made["point"].values.tolist() == ["a", "b", "c"] and made.sizes["cell"] == 1


def test_an_estimate_brings_its_error():
    values = on("point", measured=Estimate(np.ones(2), np.full(2, 0.1)))
    made = as_evidence({**values, "loss": Estimate(1.0, 0.2)}, 1, False)
    assert made["error"].values.tolist() == [[0.1, 0.1]] and made["error"].dims == ("cell", "point")
    assert made["loss_error"].item() == 0.2


def test_a_batch_keeps_its_cells_and_shares_what_has_none():
    made = as_evidence({**on("part cell", measured=np.ones((2, 3))), "error": 0.0}, 3, True)
    assert made["measured"].dims == ("cell", "part") and made["error"].shape == (3,)
    with pytest.raises(InputError, match="3 cells were measured and 2 came back"):
        as_evidence(on("cell", measured=np.ones(2)), 3, True)


def test_arrays_name_their_axes():
    with pytest.raises(InputError, match=r"measured is an array of shape \(2,\) whose axes have"):
        as_evidence({"measured": np.ones(2)}, 1, False)
    with pytest.raises(InputError, match=r"measured has 1 axes of sizes \(2,\), and 2 names"):
        as_evidence(on("a b", measured=np.ones(2)), 1, False)


def test_an_array_with_names_of_its_own_stays_as_it_is():
    values = xr.DataArray([1.0, 2.0], dims="draw", coords={"draw": ["x", "y"]})
    made = as_evidence({"sample_a": values}, 1, False)
    assert made["sample_a"].dims == ("cell", "draw") and "draw" in made.coords


def test_what_is_read_is_assigned_or_taken_whole():
    evidence = xr.Dataset({"a": 1.0})
    assert set(read_as(evidence, {"b": 2.0})) == {"a", "b"}
    assert set(read_as(evidence, xr.Dataset({"b": 2.0}))) == {"b"}


def test_the_axis_cell_is_not_one_cells_own():
    with pytest.raises(InputError, match="the axis 'cell' is added"):
        as_evidence(on("cell", measured=np.ones(3)), 1, False)
