import pytest
import xarray as xr

from attlas.claims import Agreement, Claim, Control, Hypothesis, Need, Setting, catalogue
from attlas.errors import InputError

SETTING = Setting(dim=(10, 20), lam=0.1, steps=5)


def made(**parts):
    whole = {
        "id": "a/b",
        "source": "attlas",
        "reference": "here",
        "statement": "s",
        "words": "w",
        "function": lambda cell, draws: {"measured": cell.lam + draws.seed},
        "quick": SETTING,
        "paper": SETTING,
        "rule": Agreement(),
        "control": Control("c", lambda e: {}),
    }
    return Claim(**{**whole, **parts})


def test_cells_of_one_shape_are_measured_together_up_to_the_batch():
    cells = [Setting(n=n, x=float(x)) for n in (1, 2) for x in range(3)]
    batched = made(quick=cells[0], paper=cells[0], shape=("n",), batch=2)
    assert [[c.x for c in batch] for batch in batched.batches(cells)] == [[0, 1], [2], [0, 1], [2]]
    assert len(made().batches(cells)) == 6


def test_a_measurement_gets_one_cell_and_draws_that_know_claim_and_seed():
    assert made().measure([SETTING], 7)["measured"].values.tolist() == [7.1]
    with pytest.raises(InputError, match=r"claim 'a/b' returned float: a measurement returns"):
        made(function=lambda cell, draws: 1.0).measure([SETTING], 7)


def test_what_is_read_of_the_evidence_is_assigned():
    evidence = xr.Dataset({"a": ("cell", [1.0, 2.0])})
    read = made(read=lambda e: {"measured": e.a.mean()})
    assert read.fit(evidence)["measured"] == 1.5 and made().fit(evidence) is evidence


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


def test_an_unmet_need_says_what_brings_it():
    claim = made(requires=(Need("the model", lambda s: s.lam > 1, "make models"),))
    assert claim.unmet([SETTING]) == ["the model (make models)"]
    assert claim.unmet([SETTING.replace(lam=2)]) == []


def test_a_control_alters_the_evidence_or_the_setting():
    evidence = xr.Dataset({"predicted": 1.0})
    control = Control("off", lambda e: {"predicted": 2 * e.predicted})
    assert control.altered_evidence(evidence)["predicted"] == 2
    assert Control("off", setting={"lam": 3}).altered_setting(SETTING).lam == 3
    assert Control("off", setting=lambda s: {"lam": 2 * s.lam}).altered_setting(SETTING).lam == 0.2
    with pytest.raises(InputError, match="must alter either the evidence"):
        Control("off")


def test_a_figure_is_a_chart():
    claim = made()
    with pytest.raises(InputError, match="a/b has no figure"):
        claim.draw(xr.Dataset())

    @claim.figure
    def nothing(evidence):
        return 3

    with pytest.raises(InputError, match=r"claim 'a/b': its figure nothing returned int"):
        claim.draw(xr.Dataset())


def test_every_claim_of_the_catalogue_is_complete():
    found = catalogue()
    assert 100 <= len(found) <= 125
    for id, claim in found.items():
        assert claim.id == id and claim.drawing is not None
        assert set(claim.needs) <= set(found), f"{id} rests on claims that do not exist"
        assert claim.words.endswith(".") and claim.statement.endswith(".")
        for setting in (claim.quick, claim.paper):
            cells = claim.cells(setting)
            assert claim.unmet(cells) or claim.broken(cells) == []
            if claim.budget:
                assert isinstance(setting[claim.budget], int)


def test_every_rule_is_used_in_earnest():
    rules = {"Agreement", "Approximation", "Bound", "Rate", "Convergence", "Order", "SameLaw"}
    assert {type(claim.rule).__name__ for claim in catalogue().values()} == rules


def test_a_control_changes_what_the_rule_reads():
    evidence = xr.Dataset({"predicted": 1.0, "measured": 1.0, "error": 0.0})
    good = made(control=Control("c", lambda e: {"predicted": 2 * e.predicted}))
    assert good.control_evidence(evidence)["predicted"] == 2
    with pytest.raises(InputError, match="its control alters bond, which its rule does not read"):
        made(control=Control("c", lambda e: {"bond": 1.0})).control_evidence(evidence)
