import json

import pytest

from attlas.claims import catalogue
from attlas.cli.printing import (
    describe_claim,
    format_duration,
    print_claim,
    print_counts,
    print_result,
)
from attlas.lab.runner import Result
from attlas.statistics import Verdict


@pytest.fixture
def claim():
    return catalogue()["single-location/zeta"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.123, "0.12 s"), (89, "89 s"), (90, "1.5 min"), (7200, "2 h"), (3 * 86400, "3 d")],
)
def test_durations_are_told_in_their_own_unit(seconds, words):
    assert format_duration(seconds) == words


def test_a_result_is_told_with_its_control_and_its_cost(claim, capsys):
    refuted = Verdict("refuted", "It is [far] off.")
    result = Result(
        claim, "quick", claim.quick, 0, refuted, control=refuted, first=refuted, seconds=1.25
    )
    print_result(result)
    told = capsys.readouterr().out
    assert told.startswith("refuted") and "(1.2 s)" in told and "It is [far] off." in told
    assert "At first sight refuted" in told and f"control refuted: {claim.control.words}" in told
    print_counts([result, result])
    assert capsys.readouterr().out == "0 confirmed, 2 refuted\n"


def test_a_claim_is_shown_with_what_was_changed_at_its_last_verdict(claim, capsys):
    print_claim(claim, None)
    assert "No verdict yet" in capsys.readouterr().out
    name = next(name for name, value in claim.quick.items() if isinstance(value, int))
    setting = json.loads(claim.quick.replace(**{name: claim.quick[name] + 1}).canonical())
    last = {
        "when": "today",
        "scale": "quick",
        "seed": 3,
        "setting": setting,
        "verdict": "confirmed",
        "reason": "So.",
    }
    print_claim(claim, last)
    assert f"seed 3, {name} = {claim.quick[name] + 1}:" in capsys.readouterr().out


def test_a_described_claim_is_plain_data(claim):
    assert json.loads(json.dumps(describe_claim(claim)))["id"] == claim.id
