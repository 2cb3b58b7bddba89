from attlas.cli.progress import claims_progress, stages, sweep_progress
from attlas.lab.sweeps import Tally


def test_progress_stays_off_stdout_and_is_silent_where_asked(capsys):
    for quiet in (False, True):
        with (
            stages(quiet) as tell,
            claims_progress(3, quiet) as (report, advance),
            sweep_progress(quiet) as log,
        ):
            tell("under way")
            log(Tally(10, done=2, seconds=1.0, processes=2, where="a scheduler"))
            report("map/claim", 1, 3)
            advance()
        told = capsys.readouterr()
        assert told.out == "" and ("under way" in told.err) == (not quiet) == (
            "2 workers" in told.err
        )
