import os

import pytest

from attlas.cli.options import check_writable, select_claims
from attlas.errors import InputError


def test_a_file_that_may_be_written_is_a_path(tmp_path):
    assert check_writable("out", None, (".nc",)) is None
    assert check_writable("out", str(tmp_path / "a.nc"), (".nc",)) == tmp_path / "a.nc"


def test_a_file_that_may_not_be_written_is_said_with_its_option(tmp_path, monkeypatch):
    for name, sentence in (("a.txt", "must end in .nc"), ("no/a.nc", "does not exist")):
        with pytest.raises(InputError, match=f"out '.*{name}'.*{sentence}"):
            check_writable("out", str(tmp_path / name), (".nc",))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="cannot be written"):
        check_writable("out", str(tmp_path / "a.nc"), (".nc", ".txt"))


def test_claims_of_a_file_are_among_those_that_are_selected(file, attlas):
    assert [claim.id for claim in select_claims(["test/true"], [str(file)])] == ["test/true"]
