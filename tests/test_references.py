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
