import json

import pytest

from attlas.claims import catalogue
from attlas.lab.runner import Result
from attlas.lab.sweeps import Tally
from attlas.statistics import Verdict
from attlas.terminal import (
    claims_progress,
    described,
    duration,
    print_claim,
    print_counts,
    print_result,
    stages,
    sweep_progress,
)


@pytest.fixture
def claim():
    return catalogue()["single-location/zeta"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.123, "0.12 s"), (89, "89 s"), (90, "1.5 min"), (7200, "2 h"), (3 * 86400, "3 d")],
)
def test_durations_are_told_in_their_own_unit(seconds, words):
    assert duration(seconds) == words


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
    assert json.loads(json.dumps(described(claim)))["id"] == claim.id


def test_progress_stays_off_stdout_and_is_silent_where_asked(capsys):
    for quiet in (False, True):
        with (
            stages(quiet) as tell,
            claims_progress(3, quiet) as (show, advance),
            sweep_progress(quiet) as log,
        ):
            tell("under way")
            log(Tally(10, done=2, seconds=1.0, processes=2, where="a scheduler"))
            advance()
            assert show is None
        told = capsys.readouterr()
        assert told.out == "" and ("under way" in told.err) == (not quiet) == (
            "2 workers" in told.err
        )
