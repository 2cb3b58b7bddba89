import json
import os
import re

import pytest

from attlas.lab.files import (
    Damaged,
    fits,
    parse_json,
    read_json,
    read_whole,
    seal,
    temporary_file,
    unseal,
    write_json,
    write_whole,
)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), temporary_file(tmp_path, ".part") as file:
        file.write_bytes(b"half")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (1, int),
        (1, int | None),
        (None, int | None),
        (1.5, int | float),
        ("ab", re.compile("[a-c]+")),
        ([], [int]),
        ([1, 2], [int]),
        ([1, "a"], (int, str)),
        ({"a": 1}, {"a": int, "b?": str}),
        ({"a": 1, "b": "x", "c": [[]]}, {"a": int, "b?": str, str: object}),
        (10**30, object),
    ],
)
def test_what_fits(value, form):
    assert fits(value, form) and parse_json(json.dumps(value), form) == value


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("1", int),
        (None, int),
        (2**63, int),
        (float("nan"), int | float),
        (float("inf"), float),
        ("abd", re.compile("[a-c]+")),
        (["a"], re.compile("[a-c]+")),
        ({}, [int]),
        ([1, "2"], [int]),
        ([1], (int, str)),
        ([1, 2], (int, str)),
        ([], {}),
        ({}, {"a": int}),
        ({"a": 1, "b": 1}, {"a": int}),
        ({"a": 1, "b": 1}, {"a": int, "b?": str}),
        ({"a": 1, "z": 1}, {"a": int, str: str}),
    ],
)
def test_what_does_not_fit(value, form):
    assert not fits(value, form)
    with pytest.raises(Damaged, match="another form"):
        parse_json(json.dumps(value), form)


@pytest.mark.parametrize("content", [b"{", b"[" * 10**5, b"9" * 5000, b"\xff", b""])
def test_what_is_no_json(content):
    with pytest.raises(Damaged, match="no JSON"):
        parse_json(content, object)


def test_every_flipped_bit_is_noticed(tmp_path):
    write_json(tmp_path / "a", {"name": "a", "numbers": [1, 2]})
    assert read_json(tmp_path / "a", {"name": str, "numbers": [int]})["numbers"] == [1, 2]
    whole, sealed = (tmp_path / "a").read_bytes(), seal(b"abc")
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "b").write_bytes(flipped)
        with pytest.raises(Damaged):
            read_json(tmp_path / "b", {str: object})
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            unseal(flipped)
    assert unseal(sealed) == b"abc"
    with pytest.raises(Damaged):
        unseal(b"")


def test_only_files_are_read_and_no_more_than_is_allowed(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert read_whole(tmp_path / "file", 4) == b"1234"
    for name in ("link", "folder", "pipe"):
        with pytest.raises(Damaged, match="not a file"):
            read_whole(tmp_path / name)
    with pytest.raises(Damaged, match="larger than 3 bytes"):
        read_whole(tmp_path / "file", 3)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "nothing")
