import time

import pytest

from attlas.cli import progress
from attlas.cli.progress import claims_progress, stages, sweep_progress
from attlas.lab.sweeps import Tally


def test_progress_stays_off_stdout_and_is_silent_where_asked(capsys):
    for quiet in (False, True):
        with (
            stages(quiet) as tell,
            claims_progress(3, quiet) as (report, advance),
            sweep_progress(quiet) as (_, log),
        ):
            tell("under way")
            log(Tally(10, done=2, seconds=1.0, processes=2, where="a scheduler"))
            report("map/claim", 1, 3)
            advance()
        told = capsys.readouterr()
        assert told.out == "" and ("under way" in told.err) == (not quiet) == (
            "2 workers" in told.err
        )


@pytest.mark.parametrize("quiet", [False, True])
def test_a_log_goes_on_while_nothing_is_reported(capsys, monkeypatch, quiet):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.02)
    with claims_progress(1, quiet) as (report, _):
        report("map/claim (some 90 s)", 0, 3)
        time.sleep(0.3)
    with sweep_progress(quiet) as (say, _):
        say("Planning the grid")
        time.sleep(0.3)
    told = capsys.readouterr().err
    for words in ("map/claim (some 90 s), cell 1 of 3, after 0.", "Planning the grid, after 0."):
        assert (told.count(words) > 1) == (not quiet)


def test_lines_of_a_log_are_at_most_five_seconds_apart():
    assert progress.LOG_SECONDS < 5
