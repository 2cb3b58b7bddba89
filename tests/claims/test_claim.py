import re

import numpy as np
import pytest
import xarray as xr

from attlas.claims import (
    Agreement,
    Claim,
    Control,
    Convergence,
    Hypothesis,
    Need,
    Order,
    Rate,
    Setting,
    catalogue,
)
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
        "kind": "identity",
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
    assert 100 <= len(found) <= 150
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


SAMPLED = xr.Dataset({"predicted": ("cell", [1.0, 2.0]), "measured": ("cell", [1.0, 2.0])}).assign(
    error=("cell", [0.01, 0.01])
)


def test_the_resolution_is_the_smallest_size_of_the_control_that_is_refuted():
    off = Control("{size:.0%} off", lambda e, size: {"predicted": (1 + size) * e.predicted}, size=1)
    claim = made(control=off)
    # Two comparisons at 1e-4 allow 4.06 errors, of 0.01 at a value of 2.
    smallest = 4.0556 * 0.01 / 2
    assert claim.resolution(SAMPLED) == pytest.approx(smallest, rel=0.04)
    assert claim.control.said() == "100% off" and claim.control.said(0.02) == "2% off"
    assert claim.control.said(0.00042) == "0.042% off"
    rough = SAMPLED.assign(error=10 * SAMPLED.error)
    assert claim.resolution(rough) == pytest.approx(10 * smallest, rel=0.04)


def test_the_resolution_depends_neither_on_the_noise_nor_on_its_sign():
    off = Control("{size:.0%} off", lambda e, size: {"predicted": (1 + size) * e.predicted}, size=1)
    found = [
        made(control=off).resolution(SAMPLED.assign(measured=SAMPLED.measured + noise))
        for noise in (-0.03, 0.0, 0.03)
    ]
    assert found == [pytest.approx(4.0556 * 0.01 / 2, rel=0.04)] * 3
    x = [1.0, 2.0, 4.0, 8.0, 16.0]
    steeper = Control("{size} steeper", lambda e, size: {"exponent": e.exponent - size}, size=1)
    for tilt in (-0.02, 0.02):
        values = [at ** (tilt - 1) for at in x]
        rate = xr.Dataset({"x": ("cell", x), "measured": ("cell", values)})
        rate = rate.assign(error=0.001 * rate.measured, exponent=-1.0)
        by_size = Control("{size} off", lambda e, size: {"predicted": e.predicted * e.x**-size})
        for claimed, control in (
            (rate, steeper),
            (rate.drop_vars("exponent").assign(predicted=1 / rate.x), by_size),
        ):
            found = made(rule=Rate(margin=0.1), control=control).resolution(claimed)
            error = 0.001 / (10**0.5 * np.log(2))
            assert found == pytest.approx(0.1 + 3.8906 * error, rel=0.04)


def test_every_size_from_the_resolution_on_is_refuted():
    # Near 0.1 the variant happens to be right again: what is refuted below that says nothing.
    shape = Control(
        "{size} off",
        lambda e, size: {"predicted": e.predicted + size * (abs(np.log10(size) + 1) > 0.3)},
    )
    assert made(control=shape).resolution(SAMPLED) == pytest.approx(10**-0.7, rel=0.04)


def test_without_a_size_of_its_own_the_size_is_the_share_of_the_way_to_the_variant():
    double = made(control=Control("twice", lambda e: {"predicted": 2 * e.predicted}))
    assert double.resolution(SAMPLED) == pytest.approx(4.0556 * 0.01 / 2, rel=0.04)
    assert double.control.said(0.5) == "0.5 of the way to the control"
    steeper = Control("steeper", lambda e: {"exponent": e.exponent - 1})
    rate = xr.Dataset({"x": ("cell", [1.0, 2.0, 4.0]), "measured": ("cell", [1.0, 0.5, 0.25])})
    rate = rate.assign(error=0.0, exponent=("cell", [-1.0, -1.0, -1.0]))
    found = made(rule=Rate(margin=0.1), control=steeper).resolution(rate)
    assert found == pytest.approx(0.1, rel=0.04)


def test_a_mechanism_and_a_count_have_no_resolution():
    assert made(control=Control("off", setting={"lam": 3})).resolution(SAMPLED) is None
    none = Control("none arrives", lambda e: {"arrived": e.arrived & False})
    runs = xr.Dataset({"arrived": (("cell", "repeat"), [[True] * 50])})
    assert made(rule=Convergence(share=0.5), control=none).resolution(runs) is None
    other = Control("other sizes", lambda e: e.isel(cell=[0]).assign(predicted=("cell", [3.0])))
    assert made(control=other).resolution(SAMPLED) is None


@pytest.mark.parametrize(
    ("words", "alter", "size", "message"),
    (
        ("off by {size}", lambda e: {}, 1.0, "goes with words that say {size}"),
        ("off", lambda e, size: {}, 1.0, "goes with words that say {size}"),
        ("off", lambda e: {}, 0.5, "goes with words that say {size}"),
        ("off", lambda e: {}, 0.0, "has the size 0.0: it must be a positive number"),
        ("{size} off", lambda e, size: {}, "big", "has the size 'big': it must be a positive"),
        ("{size:.0q} off", lambda e, size: {}, 0.5, "cannot say its size"),
        ("{size} off $x_{1}$", lambda e, size: {}, 0.5, "braces of TeX are doubled"),
    ),
)
def test_a_size_is_said_and_positive(words, alter, size, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Control(words, alter, size=size)


def test_a_control_that_no_evidence_lets_pass_is_known():
    good = Control("twice", lambda e: {"predicted": 2 * e.predicted})
    assert made(control=good).control_can_pass(SAMPLED)
    numbers = Control("fixed numbers", lambda e: {"predicted": 1.0, "measured": 3.0})
    assert not made(control=numbers).control_can_pass(SAMPLED)
    order = xr.Dataset({"lower": ("cell", [1.0]), "upper": ("cell", [2.0])}).assign(error=0.1)
    twice = Control("x > 2x", lambda e: {"lower": 2 * e.upper})
    assert not made(rule=Order(), control=twice).control_can_pass(order)
    third = Control("a third", lambda e: {"upper": e.upper / 3})
    assert made(rule=Order(), control=third).control_can_pass(order)
    # Undecided is not passed: a tie at best.
    tie = Control("the same twice", lambda e: {"lower": e.upper})
    assert not made(rule=Order(), control=tie).control_can_pass(order)


def test_evidence_on_which_a_control_passes_is_evidence_that_there_can_be():
    # A share of 28 runs is at most 1, so that no share is larger than another by 1.5.
    shares = xr.Dataset({"lower": ("cell", [0.0]), "upper": ("cell", [20 / 28])}).assign(error=0.08)
    less = Control("{size} less", lambda e, size: {"upper": e.upper - size}, size=1.5)
    assert not made(rule=Order(), control=less).control_can_pass(shares)
    assert made(rule=Order(), control=less).control_can_pass(
        shares.assign(upper=("cell", [0.7123]))
    )
    swapped = Control("reversed", lambda e: {"lower": e.upper, "upper": e.lower})
    assert made(rule=Order(), control=swapped).control_can_pass(shares)
    # More repetitions are no other evidence.
    few = shares.assign(error=0.2, repetitions=3)
    assert not made(rule=Order(), control=swapped).control_can_pass(few)
