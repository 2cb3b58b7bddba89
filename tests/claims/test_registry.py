import pytest
from tools.index import FILE

from attlas.claims import catalogue, find_claim, load_file, select
from attlas.claims.registry import entries, index_text
from attlas.errors import InputError
from tests.claims.test_map import CLAIM_FILE, written  # noqa: F401


def test_the_index_is_that_of_the_claims():
    """`make index` writes it."""
    assert FILE.read_text(encoding="utf-8") == index_text(catalogue().values())


def test_patterns_select_by_id_map_and_glob():
    assert [c.slug for c in select(["single-location/zeta"])] == ["zeta"]
    maps = ["single-location", "several-locations", "sparse-variables", "latent-posterior"]
    counts = {len(select(maps)), len(select([])), len(select(["*"]))}
    assert counts == {sum(len(select([name])) for name in maps)}
    assert {c.slug for c in select(["*zeta*"])} >= {"zeta"}
    assert [c.slug for c in select(["zeta"])] == ["zeta"]
    assert select(["single_location"]) == select(["single-location"])
    assert {c.source for c in select([], source="attlas")} == {"attlas"}


def test_a_misspelt_claim_gets_near_matches():
    for pattern in ("single-location/closed-from-risk", "closed-from-risk"):
        with pytest.raises(InputError, match="Did you mean single-location/closed-form-risk"):
            select([pattern])
    with pytest.raises(InputError, match=r"no claim matches 'single-location/nope.'. `attlas"):
        select(["single-location/nope*"])
    with pytest.raises(InputError, match="no claim has the source 'marion'"):
        select([], source="marion")


def test_a_file_adds_its_claims_and_may_be_loaded_again(written):  # noqa: F811
    file = written(CLAIM_FILE)
    assert [c.id for c in load_file(file)] == ["mine/first"]
    assert [c.id for c in load_file(file)] == ["mine/first"]
    assert "mine/first" in catalogue() and find_claim("mine/first").loaded
    assert "mine/first" in entries()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import attlas\n1 / 0\n", "line 2: ZeroDivisionError"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("x = 1\n", "defines no claim"),
        (
            CLAIM_FILE.replace('"mine"', '"single-location"').replace("first", "zeta"),
            "exists already",
        ),
        (CLAIM_FILE + CLAIM_FILE, "exists already"),
        (
            CLAIM_FILE.replace('"off by one"', '"off by {size}"'),
            ", line 15, claim 'first': the control 'off by {size}'",
        ),
    ],
)
def test_a_file_with_an_error_adds_nothing(written, registry, text, says):  # noqa: F811
    file = written(text)
    before = set(registry)
    with pytest.raises(InputError) as error:
        load_file(file)
    assert says in str(error.value) and "mine.py" in str(error.value)
    assert set(registry) == before


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone.py' does not exist"):
        load_file(tmp_path / "gone.py")


def test_the_catalogue_is_a_table_of_what_matches():
    found = catalogue("*zeta*")
    assert list(found) == ["single-location/zeta"]
    assert found.frame().loc["single-location/zeta", "evidence"] == "two routes"
    assert "single-location/zeta" in found._repr_html_()
    with pytest.raises(InputError, match="zetaa"):
        catalogue("zetaa")
