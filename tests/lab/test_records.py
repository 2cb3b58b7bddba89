import subprocess
import sys

import pytest

from attlas.errors import InputError
from attlas.lab.records import Records, temporary_file, write_whole

VERDICT = {
    "when": "now",
    "scale": "quick",
    "seed": 0,
    "setting": {},
    "verdict": "confirmed",
    "reason": "It is.",
}


def test_the_last_verdict_is_read_back_and_a_damaged_one_is_none(tmp_path):
    records = Records(tmp_path)
    assert records.recorded("map/claim") is None
    records.record("map/claim", VERDICT)
    assert records.recorded("map/claim") == VERDICT
    (file,) = tmp_path.rglob("claim.json")
    for text in ("{", "[]", '{"verdict": "confirmed"}'):
        file.write_text(text)
        assert records.recorded("map/claim") is None


def test_tables_are_kept_by_name(tmp_path):
    records = Records(tmp_path)
    assert records.kept_table("real") is None
    records.keep_table("real", {"rows": [1, 2]})
    assert records.kept_table("real") == {"rows": [1, 2]}


@pytest.mark.parametrize("claim", ["../out", "/etc/passwd", "map", "a/../../b", ".hidden/x"])
def test_an_id_that_leads_out_of_the_folder_is_refused(tmp_path, claim):
    with pytest.raises(InputError, match="cannot name a folder of the store"):
        Records(tmp_path / "store").record(claim, VERDICT)
    assert not list(tmp_path.rglob("*.json"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), temporary_file(tmp_path, ".part") as file:
        file.write_bytes(b"half")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_reading_a_verdict_needs_no_jax():
    code = "import sys, attlas.lab.records; print('jax' in sys.modules, 'xarray' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]
