import pytest

from attlas.claims import catalogue
from attlas.errors import InputError
from attlas.references import bibtex


def test_every_source_of_a_claim_has_an_entry():
    for claim in catalogue().values():
        assert bibtex(claim.source).startswith("@")


def test_an_unknown_key_is_named():
    with pytest.raises(InputError, match=r"'marion2024'. Did you mean marion2025"):
        bibtex("marion2024")


def test_a_bibliography_beside_a_claim_file_is_read_too(tmp_path):
    (tmp_path / "mine.bib").write_text("@article{me2026, title = {Mine}}\n")
    assert bibtex("me2026", tmp_path / "mine.py").startswith("@article{me2026")
    assert bibtex("marion2025", tmp_path / "mine.py") == bibtex("marion2025")
    (tmp_path / "mine.bib").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="are not text"):
        bibtex("me2026", tmp_path / "mine.py")
