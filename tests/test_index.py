import subprocess
import sys

from attlas.claims import catalogue
from attlas.claims.registry import entry_of
from attlas.index import matching, package_index


def test_an_entry_says_what_the_claim_says():
    known = package_index()
    for id, claim in catalogue().items():
        assert known[id] == entry_of(claim) if not claim.loaded else True


def test_the_index_needs_neither_jax_nor_a_map():
    code = (
        "import sys; from attlas.index import package_index; print(len(package_index()),"
        " [m for m in ('jax', 'numpy', 'xarray', 'attlas.claims') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, heavy = said.stdout.split(" ", 1)
    assert int(count) > 100 and heavy.strip() == "[]"


def test_ids_match_by_map_slug_and_glob():
    known = package_index()
    assert matching(["zeta"], known) == ["single-location/zeta"]
    assert matching(["single_location"], known) == [i for i in known if i.startswith("single")]
    assert matching([], known) == sorted(known)
