"""What is saved is arrays and words, and what is loaded is this package's."""

import json
import warnings
import zipfile

import numpy as np
import pytest

from attlas.errors import InputError
from attlas.estimators import ConditionalMeanRegressor, SingleLocationRegressor, load_estimator
from attlas.estimators.saving import _decode, _encode
from attlas.kernels import RBF
from attlas.single_location.bags import Heads
from tests.memory import peak_memory


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        float("inf"),
        "word",
        [1, "a"],
        (1, (2.0, None)),
        {1.5: (1, 2), "x": [3]},
        np.float64(2.5),
    ],
)
def test_plain_values_come_back(value):
    arrays = {}
    skeleton = json.loads(json.dumps(_encode(value, "value", arrays)))
    back = _decode(skeleton, arrays)
    assert back == value and type(back) is type(value)


def test_arrays_words_and_records_come_back():
    arrays = {}
    value = Heads(
        np.arange(3.0), np.array(["a", "b"], object), RBF(2.0), np.eye(2, dtype=np.float32)
    )
    back = _decode(json.loads(json.dumps(_encode(value, "value", arrays))), arrays)
    assert isinstance(back, Heads) and back.norm.dtype == object and back.offset.dtype == np.float32
    np.testing.assert_array_equal(back.select, value.select)
    assert float(back.value.temperature) == 2


def test_what_needs_a_pickle_is_refused():
    with pytest.raises(InputError, match="cannot be saved without a pickle"):
        _encode(object(), "thing", {})
    with pytest.raises(InputError, match="not words"):
        _encode(np.array([object()]), "thing", {})


def test_only_records_of_this_package_are_loaded():
    with pytest.raises(InputError, match="only records of this package"):
        _decode({"object": "os:path", "parts": {}}, {})
    with pytest.raises(InputError, match="only records of this package"):
        _decode({"object": "attlas.errors:near", "parts": {}}, {})


def test_an_unfitted_estimator_is_saved_with_its_parameters(tmp_path):
    path = ConditionalMeanRegressor(ridge=0.1, select="loo").save(tmp_path / "a.npz")
    assert (
        load_estimator(path).get_params()
        == ConditionalMeanRegressor(ridge=0.1, select="loo").get_params()
    )
    assert all(name.endswith(".npy") for name in zipfile.ZipFile(path).namelist())


def test_other_files_are_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a saved estimator"):
        load_estimator(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.ones(3))
    with pytest.raises(InputError, match="not a saved estimator"):
        load_estimator(tmp_path / "b.npz")
    path = SingleLocationRegressor().save(tmp_path / "c.npz")
    with np.load(path) as file:
        content = json.loads(str(file["content"]))
    np.savez(path, content=np.array(json.dumps(content | {"class": "load_estimator"})))
    with pytest.raises(InputError, match="no such estimator"):
        load_estimator(path)


def forged(path, **changes):
    """A saved estimator with something else in its content."""
    with np.load(SingleLocationRegressor().save(path)) as file:
        content = json.loads(str(file["content"]))
    np.savez(path, content=np.array(json.dumps(content | changes)))
    return path


def test_no_module_that_runs_when_it_is_imported_is_imported(tmp_path):
    """`attlas.cli.__main__` calls the command line."""
    record = {"object": "attlas.cli.__main__:main", "parts": {}}
    with pytest.raises(InputError, match="only records of this package"):
        load_estimator(forged(tmp_path / "a.npz", fitted={"dict": [["x_", record]]}))


def test_an_array_that_claims_to_be_vast_takes_no_memory(tmp_path):
    path = ConditionalMeanRegressor().save(tmp_path / "a.npz")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }"
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("array0.npy", (header % 10**9).ljust(127) + b"\n" + bytes(800))
    with peak_memory() as peak, pytest.raises(InputError, match="another size"):
        load_estimator(path)
    assert peak.bytes < 2**25


def test_a_small_file_that_becomes_a_large_one_is_refused(tmp_path, monkeypatch):
    """Zeros pack a thousandfold: 5 MB of them would take 5 GB."""
    monkeypatch.setattr("attlas.estimators.saving._SMALL", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", content=np.array("{}"), array0=np.zeros(1 << 18))
    with pytest.raises(InputError, match="bytes would become 2,097"):
        load_estimator(tmp_path / "a.npz")


def test_what_packs_too_well_is_saved_unpacked(tmp_path, monkeypatch):
    X, y = np.zeros((200, 3)), np.arange(200.0)
    model = ConditionalMeanRegressor().fit(X, y)
    packed = model.save(tmp_path / "a.npz").stat().st_size
    for name, value in (("_SMALL", 1 << 12), ("_MAX_RATIO", 1)):
        monkeypatch.setattr(f"attlas.estimators.saving.{name}", value)
    assert model.save(tmp_path / "b.npz").stat().st_size > packed
    assert (load_estimator(tmp_path / "b.npz").predict(X) == model.predict(X)).all()


def test_words_are_words_and_an_array_is_named_once(tmp_path):
    def saved(fitted, **arrays):
        path = forged(tmp_path / "a.npz", fitted={"dict": fitted})
        with np.load(path) as file:
            np.savez(path, content=file["content"], **arrays)
        return path

    named = {"array": "array0", "words": True}
    path = saved([["seen_", named]], array0=np.array(["a", "b"]))
    assert load_estimator(path).seen_.tolist() == ["a", "b"]
    with pytest.raises(InputError, match="no words"):
        load_estimator(saved([["seen_", named]], array0=np.zeros(2)))
    with pytest.raises(InputError, match="'array0' is missing"):
        load_estimator(saved([["seen_", [named] * 2]], array0=np.array(["a", "b"])))


def test_damaged_files_are_named(tmp_path):
    path = ConditionalMeanRegressor().save(tmp_path / "a.npz")
    whole = path.read_bytes()
    with np.load(path) as file:
        content = json.loads(str(file["content"]))
    damaged = [whole[: len(whole) // 2], b""]
    without = {key: value for key, value in content.items() if key != "parameters"}
    for changed in (
        without,
        content | {"parameters": {"dict": [["colour", 1]]}},
        content | {"fitted": 3},
    ):
        np.savez(tmp_path / "b.npz", content=np.array(json.dumps(changed)))
        damaged.append((tmp_path / "b.npz").read_bytes())
    for held in damaged:
        path.write_bytes(held)
        with pytest.raises(InputError, match="not a saved estimator"):
            load_estimator(path)


def test_only_fitted_attributes_are_set(tmp_path):
    for name in ("fit", "penalty", "__class__", "_secret_", "selection_"):
        with pytest.raises(InputError, match="no fitted attribute"):
            load_estimator(forged(tmp_path / "a.npz", fitted={"dict": [[name, 1]]}))
    assert (
        load_estimator(forged(tmp_path / "a.npz", fitted={"dict": [["n_iter_", 1]]})).n_iter_ == 1
    )


def test_deep_content_is_refused_before_it_is_read(tmp_path):
    path = SingleLocationRegressor().save(tmp_path / "a.npz")
    for deep in ("[" * 100_000, '{"a":' * 500 + "1" + "}" * 500):
        np.savez(path, content=np.array(deep))
        with pytest.raises(InputError, match="deep"):
            load_estimator(path)
    words = json.dumps({"note": "[" * 1000})
    np.savez(path, content=np.array(words))
    with pytest.raises(InputError, match="'class' is missing"):  # brackets in a word are no depth
        load_estimator(path)


@pytest.mark.parametrize("name", ["../content.npy", "content.npy", "array0.npy/x", "other.npy"])
def test_odd_entries_are_refused(tmp_path, name):
    path = SingleLocationRegressor().save(tmp_path / "a.npz")
    with zipfile.ZipFile(path) as archive:
        held = archive.read("content.npy")
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of names that it has
        archive.writestr(name, held)
    with pytest.raises(InputError, match="an entry"):
        load_estimator(path)


def test_all_sizes_are_looked_at_before_the_first_array_is_made(tmp_path, monkeypatch):
    path = SingleLocationRegressor().save(tmp_path / "a.npz")
    monkeypatch.setattr("attlas.estimators.saving.available_memory", lambda: 100.0)
    with pytest.raises(InputError, match="more than there is"):
        load_estimator(path)
    monkeypatch.undo()
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("array0.npy", header.ljust(127) + b"\n" + bytes(8))
    with pytest.raises(InputError, match="numbers or words"):
        load_estimator(path)


def test_what_is_no_estimator_that_can_be_saved_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such estimator"):
        load_estimator(forged(tmp_path / "a.npz", **{"class": "InstanceTransformer"}))
