import pytest
import xarray as xr

from attlas.errors import InputError
from attlas.lab.simulations import simulation
from attlas.lab.sweeps import sweep

FILE = '''
import numpy as np
import xarray as xr

def walk(steps: int = 10, drift: float = 0.5, name: str = "a", seed: int = 0):
    """A walk with a drift.

    More about it."""
    moves = drift + np.random.default_rng(seed).normal(size=steps)
    return xr.Dataset({"place": ("step", moves.cumsum())}, {"step": np.arange(1, steps + 1)})

def seedless(n=1):
    return xr.Dataset()

def bare(n, seed=0):
    return xr.Dataset()

def number(n=1, seed=0):
    return 1.0
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "walks.py"
    path.write_text(FILE)
    return path


def test_a_function_is_swept_over_its_parameters(file, store):
    found = sweep(f"{file}:walk", {"drift": "0:1:3"}, seeds="0:2", store=store)
    assert found["place"].dims == ("drift", "seed", "step")
    assert found.attrs["claim"] == "simulation/walks-walk"
    assert found.attrs["words"] == "A walk with a drift."
    gained = (found["place"].isel(drift=2) - found["place"].isel(drift=0)).isel(step=-1).values
    assert gained == pytest.approx(10)


def test_a_function_itself_will_do(store):
    found = sweep(stepping, {"n": [1, 2]}, store=store)
    assert found["x"].values.ravel().tolist() == [2.0, 4.0]


def stepping(n: int = 1, seed: int = 0) -> xr.Dataset:
    return xr.Dataset({"x": 2.0 * n + seed})


def test_a_whole_number_of_a_function_need_not_be_a_count(store):
    found = sweep(stepping, {"n": "-2:1"}, store=store)["x"]
    assert found.values.ravel().tolist() == [-4.0, -2.0, 0.0]
    with pytest.raises(InputError, match=r"n = 0.5: it must be a whole number$"):
        sweep(stepping, {"n": [0.5]}, store=store)


def test_a_file_without_its_function_is_told(file, store):
    with pytest.raises(InputError, match="name the function that simulates"):
        sweep(str(file), store=store)


def test_a_change_of_the_file_is_another_cell(file, store):
    first = simulation(f"{file}:walk").code
    file.write_text(FILE.replace("0.5", "0.6"))
    again = simulation(f"{file}:walk")
    assert first != again.code and again.quick.drift == 0.6


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wlak", "no function 'wlak'. Did you mean walk"),
        ("seedless", "no parameter seed"),
        ("bare", "the parameter n needs a default"),
    ],
)
def test_functions_that_cannot_be_swept_are_told(file, name, says):
    with pytest.raises(InputError, match=says):
        simulation(f"{file}:{name}")


def test_files_and_modules_that_cannot_be_loaded_are_told(file, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        simulation(f"{tmp_path}/gone.py:walk")
    with pytest.raises(InputError, match="no module"):
        simulation("no.such.module:walk")
    file.write_text("1 / 0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        simulation(f"{file}:walk")


def test_what_returns_no_dataset_fails(file, store):
    found = sweep(f"{file}:number", {"n": [1]}, store=store, retries=0)
    assert found["status"].item() == "failed" and "must return a Dataset" in found["reason"].item()
