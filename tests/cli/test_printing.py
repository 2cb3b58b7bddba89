import json

import pytest

from attlas.claims import Verdict, find_claim
from attlas.cli.printing import (
    describe_entry,
    format_duration,
    print_counts,
    print_entry,
    print_verdict,
)
from attlas.index import package_index
from attlas.lab.runner import Result


@pytest.fixture
def claim():
    return find_claim("single-location/zeta")


@pytest.fixture
def entry():
    return package_index()["single-location/zeta"]


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
    print_verdict("refuted", claim.id, claim.kind, "1.2 s", result.said)
    told = capsys.readouterr().out
    assert told.startswith("refuted") and f"({claim.kind}; 1.2 s)" in told
    assert "It is [far] off." in told
    assert "At first sight refuted" in told and f"control refuted: {claim.control.said()}" in told
    print_counts(2 * [("refuted", claim.kind)])
    assert capsys.readouterr().out == "0 confirmed, 2 refuted\n"


def test_a_claim_is_shown_with_what_was_changed_at_its_last_verdict(entry, capsys):
    print_entry(entry, None)
    assert "No verdict in the store yet" in capsys.readouterr().out
    name = next(name for name, value in entry.quick.items() if isinstance(value, int))
    last = {
        "when": "today",
        "scale": "quick",
        "seed": 3,
        "setting": json.loads(json.dumps(entry.quick | {name: entry.quick[name] + 1})),
        "verdict": "confirmed",
        "reason": "So.",
    }
    print_entry(entry, last)
    assert f"seed 3, {name} = {entry.quick[name] + 1}:" in capsys.readouterr().out


def test_a_described_claim_is_plain_data(entry):
    assert json.loads(json.dumps(describe_entry(entry)))["id"] == entry.id
