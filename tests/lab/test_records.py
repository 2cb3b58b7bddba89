import subprocess
import sys

import pytest

from attlas.errors import InputError
from attlas.lab.files import write_json
from attlas.lab.records import Records

VERDICT = {
    "when": "now",
    "scale": "quick",
    "seed": 0,
    "setting": {},
    "verdict": "confirmed",
    "reason": "It is.",
}


WRONG = {
    "when": 1,
    "scale": None,
    "seed": "0",
    "setting": [],
    "verdict": "proven",
    "reason": ["It is."],
    "strength": 3,
    "provenance": {"code": {}},
}


def test_the_last_verdict_is_read_back(tmp_path):
    records = Records(tmp_path)
    assert records.recorded("map/claim") is None and records.notes == []
    records.record("map/claim", {**VERDICT, "provenance": {"code": "0"}, "more": [{}]})
    found = records.recorded("map/claim")
    assert found == {**VERDICT, "provenance": {"code": "0"}, "more": [{}]}


@pytest.mark.parametrize("text", ["{", "[]", '{"verdict": "confirmed"}', "[" * 10**5, "\xff", ""])
def test_a_damaged_verdict_is_named_and_set_aside(tmp_path, text):
    records = Records(tmp_path)
    records.record("map/claim", VERDICT)
    (file,) = tmp_path.rglob("claim.json")
    file.write_text(text, "latin-1")
    assert records.recorded("map/claim") is None and not file.exists()
    assert f"The verdict {file} is damaged" in records.notes[0]


@pytest.mark.parametrize("name", WRONG)
def test_a_verdict_of_another_form_is_named_and_set_aside(tmp_path, name):
    records = Records(tmp_path)
    records.record("map/claim", {**VERDICT, name: WRONG[name]})
    assert records.recorded("map/claim") is None and "have another form" in records.notes[0]


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_verdict_that_is_no_file_is_set_aside(tmp_path, kind):
    (tmp_path / "mine").write_text("mine")
    records = Records(tmp_path / "store")
    records.record("map/claim", VERDICT)
    (file,) = tmp_path.rglob("claim.json")
    file.unlink()
    if kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(tmp_path / "mine")
    assert records.recorded("map/claim") is None and "not a file" in records.notes[0]
    records.record("map/claim", VERDICT)
    assert records.recorded("map/claim") == VERDICT
    assert (tmp_path / "mine").read_text() == "mine"


def test_what_cannot_be_set_aside_is_ignored(tmp_path, monkeypatch):
    records = Records(tmp_path)
    records.record("map/claim", {**VERDICT, "seed": "0"})

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("attlas.lab.records.os.replace", refuse)
    for _ in range(2):
        assert records.recorded("map/claim") is None
        assert len(records.notes) == 1 and "stays there (Permission denied)" in records.notes[0]


def test_tables_are_kept_by_name(tmp_path):
    records, form = Records(tmp_path), {"rows": [int]}
    assert records.kept_table("real", form) is None
    records.keep_table("real", {"rows": [1, 2]})
    assert records.kept_table("real", form) == {"rows": [1, 2]}
    write_json(next(tmp_path.rglob("real.json")), {"rows": ["1"]})
    assert records.kept_table("real", form) is None and "table" in records.notes[0]


@pytest.mark.parametrize("claim", ["../out", "/etc/passwd", "map", "a/../../b", ".hidden/x"])
def test_an_id_that_leads_out_of_the_folder_is_refused(tmp_path, claim):
    with pytest.raises(InputError, match="cannot name a folder of the store"):
        Records(tmp_path / "store").record(claim, VERDICT)
    assert not list(tmp_path.rglob("*.json"))


def test_reading_a_verdict_needs_no_jax():
    code = "import sys, attlas.lab.records; print('jax' in sys.modules, 'xarray' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]
