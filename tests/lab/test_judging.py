import dataclasses

from attlas.claims import catalogue
from attlas.claims.rules import Approximation
from attlas.lab import judging
from attlas.lab.judging import judging_digest, verdict_digest

CLAIM = catalogue()["single-location/zeta"]


def test_a_verdict_depends_on_scale_rule_and_control():
    other = {
        "rule": Approximation(margin=0.5),
        "control": dataclasses.replace(CLAIM.control, size=0.5),
    }
    changed = [dataclasses.replace(CLAIM, **{name: part}) for name, part in other.items()]
    digests = [verdict_digest(claim, "quick") for claim in (CLAIM, *changed)]
    assert len({*digests, verdict_digest(CLAIM, "paper")}) == 4
    assert verdict_digest(CLAIM, "quick") == digests[0]


def test_words_of_a_control_count_for_nothing():
    words = dataclasses.replace(CLAIM.control, words=f"{CLAIM.control.words}, or so")
    reworded = dataclasses.replace(CLAIM, control=words)
    assert verdict_digest(reworded, "quick") == verdict_digest(CLAIM, "quick")
    assert reworded.control.said() != CLAIM.control.said()


def test_judging_knows_the_code_of_rules(monkeypatch):
    before, known = judging_digest(CLAIM, "quick"), judging.source_digest
    changed = {"attlas.claims.rules": "other"}
    monkeypatch.setattr(judging, "source_digest", lambda name: changed.get(name) or known(name))
    assert judging_digest(CLAIM, "quick")[:32] == before[:32] != judging_digest(CLAIM, "quick")
