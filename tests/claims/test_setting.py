import pytest

from attlas.claims import Setting, product, together, whole
from attlas.claims.setting import UnknownParameter
from attlas.errors import InputError

SETTING = Setting(dim=(10, 20), lam=0.1, steps=5, start="sphere", loud=False)


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


def test_settings_that_differ_in_type_differ_and_methods_are_no_parameters():
    assert Setting(n=1) != Setting(n=1.0) and Setting(n=1) == Setting(n=1)
    with pytest.raises(InputError, match="cannot be called 'values'"):
        Setting(values=3)


def test_an_unknown_parameter_gets_near_matches():
    with pytest.raises(UnknownParameter, match=r"no parameter 'stesp'. Did you mean steps"):
        SETTING.stesp  # noqa: B018


def test_a_setting_may_be_one_cell_with_its_lists():
    assert whole(SETTING) == [SETTING]
