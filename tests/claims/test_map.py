"""Mistakes in a claim file are answered in one sentence that names file, line and claim."""

import pytest

from attlas.claims import Map, Setting, load_file
from attlas.errors import InputError

CLAIM_FILE = r"""
from attlas.claims import Agreement, Control, Hypothesis, Map, Setting, together

mine = Map("mine", source="attlas", domain=("length >= 2",))


@mine.claim(
    kind="identity",
    reference="here",
    statement=r"$\frac{1}{L} = x$.",
    words="It is.",
    quick=Setting(length=3, temperature=1.0),
    paper=dict(length=9),
    rule=Agreement(),
    control=Control("off by one", lambda e: {"predicted": e.predicted + 1}),
    hypotheses=(Hypothesis("temperature < 9", lambda s: s.temperature < 9),),
)
def first(cell, draws):
    return {"predicted": cell.length, "measured": cell.length, "error": 0.0}
"""


@pytest.fixture
def written(registry, tmp_path):
    def write(text, **others):
        file = tmp_path / "mine.py"
        file.write_text(text)
        for name, content in others.items():
            (tmp_path / name.replace("_", ".")).write_text(content)
        return file

    return write


def test_a_claim_has_the_id_of_its_function_and_what_its_map_shares(written):
    (claim,) = load_file(written(CLAIM_FILE))
    assert claim.id == "mine/first" and claim.source == "attlas"
    assert dict(claim.paper) == {"length": 9, "temperature": 1.0}
    assert [h.words for h in claim.hypotheses] == ["length >= 2", "temperature < 9"]
    with pytest.raises(InputError, match="length = 1: mine/first is defined only where length >="):
        claim.broken([claim.quick.replace(length=1)])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("temperature=1.0", "temperature=(1.0, 2.0)", "temperature is a list: say cells=together"),
        ("rule=Agreement()", "rule=Agreement", "its rule is 'Agreement': it must be an object"),
        ("    rule=Agreement(),\n", "", "its rule is missing: it must be an object such as"),
        (
            'Hypothesis("temperature < 9", lambda s: s.temperature < 9)',
            '"temperature < 9"',
            "'temperature < 9' is among its hypotheses: write Hypothesis(",
        ),
        (
            'Control("off by one", lambda e: {"predicted": e.predicted + 1})',
            "len",
            "its control is 'len': it must be Control(",
        ),
        ("    reference=", "    origin='papers', reference=", "Did you mean paper"),
        ('kind="identity"', 'kind="simulated"', "kind = 'simulated'. Did you mean simulation"),
        ('    kind="identity",\n', "", "kind = None. It must be one of identity, two routes"),
        ("    reference=", "    needs=('zeta',), reference=", "needs 'mine/zeta', which is no"),
        (r"\frac{1}{L}", r"\frac{1}{L", "has a brace that is not closed"),
        ("= x$.", "= x.", "has a $ that is not closed"),
        ('words="It is.",', "", "has no words: say words="),
        ("words=", "wrods=", "there is no argument 'wrods'. Did you mean words"),
        ("paper=dict(length", "paper=dict(lenght", "unknown parameter 'lenght'. Did you mean"),
        ("    reference=", "    budget='draws', reference=", "draws is no parameter"),
        ("    reference=", "    source='me2026', reference=", "no reference has the key 'me2026'"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_claim(written, registry, old, new, says):
    assert old in CLAIM_FILE
    before = set(registry)
    with pytest.raises(InputError) as error:
        load_file(written(CLAIM_FILE.replace(old, new)))
    said = str(error.value)
    assert says in said and "mine.py, line 7: claim 'mine/first'" in said and "\n" not in said
    assert set(registry) == before


def test_a_bibliography_beside_the_file_is_read(written):
    text = CLAIM_FILE.replace('source="attlas"', 'source="me2026"')
    (claim,) = load_file(written(text, mine_bib="@article{me2026, title = {Mine}}"))
    assert claim.source == "me2026"


def test_claims_read_from_one_measurement_share_its_evidence(registry):
    toy = Map("toy-shared", source="attlas")

    @toy.measurement("first-read", quick=Setting(n=2), paper=dict(n=4), budget="n")
    def counts(cell, draws):
        return {"count": cell.n}

    from attlas.claims import Bound, Control

    parts = dict(
        kind="identity",
        reference="here",
        statement="s.",
        words="w.",
        rule=Bound(),
        control=Control("c", lambda e: {"bound": -1.0}),
        measured_by=counts,
    )

    @toy.claim(**parts)
    def first_read(evidence):
        return {"bound": 9.0, "measured": evidence["count"], "error": 0.0}

    @toy.claim(**parts, quick=dict(n=3))
    def second_read(evidence):
        return {"bound": 9.0, "measured": 2 * evidence["count"], "error": 0.0}

    assert first_read.evidence == second_read.evidence == "toy-shared/first-read"
    assert (first_read.quick.n, second_read.quick.n, second_read.paper.n) == (2, 3, 4)
    assert second_read.budget == "n"
    found = second_read.fit(second_read.measure([second_read.quick], 0))
    assert second_read.rule.judge(found).word == "confirmed"


@pytest.mark.parametrize("name", ["Mine", "my map", ""])
def test_the_name_of_a_map_is_plain(name):
    with pytest.raises(InputError, match="lower-case"):
        Map(name, source="attlas")


def test_a_domain_is_a_comparison_of_one_parameter():
    with pytest.raises(InputError, match="written as 'name >= number'"):
        Map("mine", source="attlas", domain=("length is large",))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "hypotheses=(Hypothesis",
            "needs='zeta', hypotheses=(Hypothesis",
            "its needs is 'zeta': it",
        ),
        ("lambda s: s.temperature < 9),),", "lambda s: s.temperature < 9)),", "it must be a list"),
        ("rule=Agreement()", "cells='length', rule=Agreement()", "say cells=together('length')"),
        ("quick=Setting(", "quick=dict(", "quick is a dict: say quick=Setting(...)"),
    ],
)
def test_a_list_that_is_none_is_named_too(written, old, new, says):
    assert old in CLAIM_FILE
    with pytest.raises(InputError) as error:
        load_file(written(CLAIM_FILE.replace(old, new)))
    assert says in str(error.value) and "line 7: claim 'mine/first'" in str(error.value)
