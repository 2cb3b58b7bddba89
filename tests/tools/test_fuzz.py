"""The corpus of files that broke a reader once, or would; each is answered or refused."""

import pytest
from tools.fuzz import CORPUS, READERS, make_reader

from tests.memory import peak_memory

WHOLE = {"whole", "fitted", "zipped"}


def test_every_reader_has_a_corpus_of_small_files():
    assert set(READERS) == {path.name for path in CORPUS.iterdir()}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < 500_000


@pytest.mark.parametrize("name", READERS)
def test_files_of_the_corpus_are_answered_or_refused_and_take_little_memory(name, tmp_path):
    read, files = make_reader(name, tmp_path), sorted((CORPUS / name).iterdir())
    read(next(file for file in files if file.name in WHOLE).read_bytes())  # imports take memory
    for file in files:
        with peak_memory() as peak:
            read(file.read_bytes())
        assert peak.bytes < 2**25, file.name
