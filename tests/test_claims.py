import dataclasses

import jax
import pytest
import xarray as xr

from attlas import claims
from attlas.claims import (
    Claim,
    Control,
    Hypothesis,
    Setting,
    catalogue,
    key_for,
    load_file,
    product,
    select,
    together,
)
from attlas.errors import InputError
from attlas.statistics import Agreement
from tests.conftest import needs_models

SETTING = Setting(dim=(10, 20), lam=0.1, steps=5, start="sphere", loud=False)


def made(**parts):
    whole = {
        "id": "a/b",
        "source": "attlas",
        "reference": "here",
        "statement": "s",
        "words": "w",
        "measure": lambda cells, seed: xr.Dataset(),
        "quick": SETTING,
        "paper": SETTING,
        "rule": Agreement(),
        "control": Control("c", lambda e: e),
    }
    return Claim(**{**whole, **parts})


@pytest.fixture
def registry(monkeypatch):
    catalogue()
    monkeypatch.setattr(claims, "_REGISTRY", dict(claims._REGISTRY))
    return claims._REGISTRY


def test_a_setting_reads_as_attributes_and_does_not_change():
    assert SETTING.lam == 0.1 and SETTING["start"] == "sphere"
    with pytest.raises(AttributeError):
        SETTING.lam = 2
    assert SETTING.replace(lam=1).lam == 1.0 and SETTING.lam == 0.1
    assert hash(SETTING) == hash(Setting(**dict(reversed(list(SETTING.items())))))


def test_text_becomes_a_value_of_the_right_type():
    changed = SETTING.parse(["dim=7,8", "lam=1e-2", "steps=1e3", "start=manifold", "loud=true"])
    assert dict(changed) == {
        "dim": (7, 8),
        "lam": 0.01,
        "steps": 1000,
        "start": "manifold",
        "loud": True,
    }
    assert isinstance(changed.steps, int)
    assert SETTING.parse(["dim=7"]).dim == (7,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lamb=1", "unknown parameter 'lamb'. Did you mean lam"),
        ("lam=much", "lam = 'much': it must be a finite number"),
        ("lam=nan", "it must be a finite number"),
        ("lam=1,2", "it must be a finite number"),
        ("steps=2.5", "steps = '2.5': it must be a whole number, at least 1"),
        ("steps=-5", "at least 1"),
        ("steps=0", "at least 1"),
        ("loud=perhaps", "it must be true or false"),
        ("dim=", "it needs at least one value"),
        ("dim=3,x", "dim = 'x': it must be a whole number"),
        ("dim", "a parameter is set as name=value"),
    ],
)
def test_bad_values_are_named(text, says):
    with pytest.raises(InputError) as error:
        SETTING.parse([text])
    assert says in str(error.value)


def test_cells_run_through_lists_together_or_in_all_combinations():
    setting = Setting(a=(1, 2), b=(3, 4), c=(5,))
    assert [(s.a, s.b, s.c) for s in together("a", "b", "c")(setting)] == [(1, 3, 5), (2, 4, 5)]
    assert [(s.a, s.b) for s in product("a", "b")(setting)] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    with pytest.raises(InputError, match="must have 1 or 3"):
        together("a", "b")(Setting(a=(1, 2), b=(1, 2, 3)))


def test_cells_of_one_shape_are_measured_together_up_to_the_batch():
    cells = [Setting(n=n, x=float(x)) for n in (1, 2) for x in range(3)]
    sizes = [
        [c.x for c in batch]
        for batch in made(quick=cells[0], paper=cells[0], shape=("n",), batch=2).batches(cells)
    ]
    assert sizes == [[0, 1], [2], [0, 1], [2]]
    assert len(made().batches(cells)) == 6


def test_a_broken_hypothesis_is_outside_and_a_broken_definition_is_bad_input():
    claim = made(
        hypotheses=(
            Hypothesis("lam < 1", lambda s: s.lam < 1),
            Hypothesis("steps >= 2", lambda s: s.steps >= 2, defining=True),
        )
    )
    assert claim.broken([SETTING]) == []
    assert claim.broken([SETTING, SETTING.replace(lam=3)]) == ["lam < 1"]
    with pytest.raises(InputError, match=r"steps = 1: a/b is defined only where steps >= 2"):
        claim.broken([SETTING.replace(steps=1)])


def test_every_claim_of_the_catalogue_is_complete():
    found = catalogue()
    assert len(found) >= 14
    for id, claim in found.items():
        assert claim.id == id and claim.figure is not None
        assert set(claim.needs) <= set(found), f"{id} rests on claims that do not exist"
        assert claim.words.endswith(".") and claim.statement.endswith(".")
        for setting in (claim.quick, claim.paper):
            assert needs_models(claim) or claim.broken(claim.cells(setting)) == []
            if claim.budget:
                assert isinstance(setting[claim.budget], int)


def test_every_rule_is_used_in_earnest():
    assert {type(claim.rule).__name__ for claim in catalogue().values()} == {
        "Agreement",
        "Approximation",
        "Bound",
        "Rate",
        "Convergence",
        "Order",
        "SameLaw",
    }


def test_patterns_select_by_id_map_and_glob():
    assert [c.slug for c in select(["single-location/zeta"])] == ["zeta"]
    maps = ["single-location", "sparse-variables", "latent-posterior"]
    assert (
        sum(len(select([name])) for name in maps)
        == len(select(maps))
        == len(select([]))
        == len(select(["*"]))
    )
    assert {c.slug for c in select(["*zeta*"])} >= {"zeta", "zeta-derivatives"}
    assert [c.slug for c in select(["zeta"])] == ["zeta"] and select(["single_location"]) == select(
        ["single-location"]
    )
    assert {c.source for c in select([], source="attlas")} == {"attlas"}


def test_a_misspelt_claim_gets_near_matches():
    with pytest.raises(InputError, match="Did you mean single-location/closed-form-risk"):
        select(["single-location/closed-from-risk"])
    with pytest.raises(InputError, match="Did you mean single-location/closed-form-risk"):
        select(["closed-from-risk"])
    with pytest.raises(InputError, match=r"no claim matches 'single-location/nope.'. `attlas"):
        select(["single-location/nope*"])
    with pytest.raises(InputError, match="no claim has the source 'marion'"):
        select([], source="marion")


CLAIM_FILE = """
from attlas.claims import Control, Setting, claim
from attlas.statistics import Agreement
from tests.conftest import needs_models
import xarray as xr

@claim("mine/{slug}", source="attlas", reference="here", statement="x.", words="x.", quick=Setting(n=1), paper=Setting(n=1),
       rule=Agreement(), control=Control("off by one", lambda e: e.assign(predicted=e["predicted"] + 1)))
def mine(cells, seed):
    one = ("cell", [1.0] * len(cells))
    return xr.Dataset({{"predicted": one, "measured": one, "error": 0.0}})
"""


def test_a_file_adds_its_claims_and_may_be_loaded_again(registry, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(CLAIM_FILE.format(slug="first"))
    assert [c.id for c in load_file(file)] == ["mine/first"]
    assert [c.id for c in load_file(file)] == ["mine/first"]
    assert "mine/first" in catalogue()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import attlas\n1 / 0\n", "line 2: ZeroDivisionError"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("x = 1\n", "defines no claim"),
        (CLAIM_FILE.format(slug="x").replace("mine/x", "single-location/zeta"), "exists already"),
        (CLAIM_FILE.format(slug="x").replace("mine/x", "nomap"), "map/slug"),
        (
            CLAIM_FILE.format(slug="x").replace("paper=Setting(n=1)", "paper=Setting(m=1)"),
            "different parameters",
        ),
        (CLAIM_FILE.format(slug="x").replace("words=", "wrods="), "TypeError"),
    ],
)
def test_a_file_with_an_error_adds_nothing(registry, tmp_path, text, says):
    file = tmp_path / "broken.py"
    file.write_text(text)
    before = set(registry)
    with pytest.raises(InputError) as error:
        load_file(file)
    assert says in str(error.value) and "broken.py" in str(error.value)
    assert set(catalogue()) == before


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone.py' does not exist"):
        load_file(tmp_path / "gone.py")


def test_the_code_of_a_claim_is_what_was_loaded(registry, tmp_path, monkeypatch):
    file, helper = tmp_path / "mine.py", tmp_path / "helper_of_mine.py"
    helper.write_text("x = 1\n")
    file.write_text("import helper_of_mine\n" + CLAIM_FILE.format(slug="first"))
    monkeypatch.syspath_prepend(tmp_path)
    (first,) = load_file(file)
    file.write_text(file.read_text() + "# changed\n")
    assert catalogue()["mine/first"].code == first.code
    (second,) = load_file(file)
    helper.write_text("x = 2 + 2\n")
    (third,) = load_file(file)
    assert len({first.code, second.code, third.code}) == 3


def test_the_code_of_a_map_is_its_sources_and_the_root_but_nothing_that_only_draws(
    tmp_path, monkeypatch
):
    read = []
    monkeypatch.setattr(claims, "_source_digest", lambda path, changed: read.append(path) or b"")
    claims._digest(catalogue()["single-location/zeta"].file)
    names = {path.name for path in read}
    assert {"gaussian.py", "statistics.py", "zeta.py", "descent.py"} <= names
    assert not {"cli.py", "drawing.py", "pages.py"} & names
    assert "figures" not in {path.parent.name for path in read}


def test_settings_that_differ_in_type_differ_and_methods_are_no_parameters():
    assert Setting(n=1) != Setting(n=1.0) and Setting(n=1) == Setting(n=1)
    with pytest.raises(InputError, match="cannot be called 'values'"):
        Setting(values=3)


def test_one_id_twice_in_a_file_is_a_clash(registry, tmp_path):
    file = tmp_path / "twice.py"
    file.write_text(CLAIM_FILE.format(slug="x") + CLAIM_FILE.format(slug="x"))
    with pytest.raises(InputError, match="exists already"):
        load_file(file)


def test_installed_packages_add_claims_by_entry_point(registry, monkeypatch, tmp_path):
    (tmp_path / "foreign_claims.py").write_text(CLAIM_FILE.format(slug="foreign"))
    (tmp_path / "foreign_broken.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    from importlib.metadata import EntryPoint

    point = EntryPoint("foreign", "foreign_claims", claims.GROUP)
    monkeypatch.setattr(claims, "entry_points", lambda group: [point])
    assert "mine/foreign" in catalogue()
    broken = EntryPoint("broken", "foreign_broken", claims.GROUP)
    monkeypatch.setattr(claims, "entry_points", lambda group: [broken])
    with pytest.raises(InputError, match="entry point 'broken'"):
        catalogue()


def test_keys_differ_by_seed_claim_and_purpose():
    keys = [
        key_for(*where)
        for where in ((0, "a/b", "x"), (1, "a/b", "x"), (0, "a/c", "x"), (0, "a/b", "y"))
    ]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 4
    assert (
        jax.random.key_data(key_for(0, "a/b", "x")).tolist()
        == jax.random.key_data(keys[0]).tolist()
    )


def test_claims_of_one_function_name_the_first_as_holder_of_the_evidence(registry):
    def measure(cells, seed):
        raise AssertionError("nothing is measured here")

    parts = {f.name: getattr(made(), f.name) for f in dataclasses.fields(claims.Claim)}
    for name in ("id", "measure", "code", "evidence"):
        del parts[name]
    first, second = (claims.claim(f"mine/{slug}", **parts)(measure) for slug in ("first", "second"))
    assert (first.evidence, second.evidence) == ("mine/first", "mine/first")
