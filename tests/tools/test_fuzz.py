"""The corpus of files that broke a reader once, or would; each is answered or refused."""

import subprocess
import sys

import pytest
from tools.fuzz import CORPUS, READERS, make_reader

FILES = [(name, path.name) for name in READERS for path in sorted((CORPUS / name).iterdir())]
MOST_MEGABYTES = 64


def test_every_reader_has_a_corpus_of_small_files():
    assert {name for name, _ in FILES} == set(READERS) == {p.name for p in CORPUS.iterdir()}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < 500_000


@pytest.mark.parametrize(("name", "file"), FILES)
def test_a_file_of_the_corpus_is_answered_or_refused(name, file, tmp_path):
    make_reader(name, tmp_path)((CORPUS / name / file).read_bytes())


@pytest.mark.parametrize("name", READERS)
def test_no_file_of_the_corpus_takes_much_memory(name, tmp_path):
    """As the system sees it, in a process of its own: much is taken by libraries in C and Rust."""
    code = """if True:
        import resource, sys
        from pathlib import Path
        from tools.fuzz import CORPUS, make_reader
        name, folder = sys.argv[1], Path(sys.argv[2])
        read, files = make_reader(name, folder), sorted((CORPUS / name).iterdir())
        whole = {"estimator": "fitted", "torch": "zipped"}.get(name, "whole")
        read((CORPUS / name / whole).read_bytes())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for file in files:
            read(file.read_bytes())
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    said = subprocess.run(
        [sys.executable, "-c", code, name, tmp_path],
        cwd=CORPUS.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(said.stdout) < 1024 * MOST_MEGABYTES
