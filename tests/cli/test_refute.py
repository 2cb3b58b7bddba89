"""The verb `refute`: what it prints, its exit codes, and bad input in one sentence."""

import json


def test_a_violation_is_printed_with_the_command_that_shows_it(attlas, file):
    found = attlas("refute", "test/false", "--claims", file, "--minutes", "0.05")
    assert found.returncode == 1
    assert "refuted    test/false" in found.stdout
    assert "at the claim's own setting: The difference in standard errors is" in found.stdout
    command = next(line for line in found.stdout.splitlines() if "Again: attlas run" in line)
    words = command.split("Again: attlas ")[1].split()
    assert attlas(*words, "--claims", file).returncode == 1


def test_nothing_found_exits_with_0_and_says_how_near_it_came(attlas, file):
    options = ("--over", "n=1:40", "--over", "size=-1:5", "--minutes", "0.02")
    found = attlas("refute", "test/true", "--claims", file, *options)
    assert found.returncode == 0
    assert "not refuted test/true" in found.stdout and "Nearest: 0 of the way" in found.stdout
    assert "Searched: n = 1 to 40; size = -1 to 5." in found.stdout
    told = json.loads(attlas("refute", "test/true", "--claims", file, *options, "--json").stdout)
    assert told["refuted"] is False and told["violation"] is None
    assert told["over"] == {"n": [1, 40], "size": [-1, 5]} and told["settings"] > 30


def test_settings_that_cannot_be_measured_are_counted(attlas, file):
    found = attlas("refute", "test/bug", "--claims", file, "--minutes", "0.01", "--over", "n=1:3")
    assert found.returncode == 0
    assert "settings could not be measured, as n = 1: RuntimeError: broken inside." in found.stdout


def test_bad_input_is_one_sentence(attlas, file):
    for options, message in (
        (("--over", "n=5:2"), "n = '5:2': the range is empty; low is below high"),
        (("--over", "m=1:2"), "unknown parameter 'm'"),
        (("--over", "n"), "'n': a grid is given as name=values"),
        (("--minutes", "0"), "0"),
    ):
        found = attlas("refute", "test/true", "--claims", file, *options)
        assert found.returncode == 2 and message in found.stderr and found.stdout == ""
        assert found.stderr.count("\n") == 1


def test_the_domain_of_validity_is_told_and_drawn(attlas, file, tmp_path):
    options = ("--beyond", "--over", "n=1:3", "--over", "size=-1:2", "--figure", "domain.svg")
    found = attlas("refute", "test/true", "--claims", file, *options)
    assert found.returncode == 0
    assert "test/true over n and size: 39 confirmed." in found.stdout
    assert "Domain of validity" in (tmp_path / "domain.svg").read_text()
    told = json.loads(attlas("refute", "test/true", "--claims", file, *options, "--json").stdout)
    assert told["axes"] == ["n", "size"] and len(told["points"]) == 39
    alone = attlas("refute", "test/true", "--claims", file, "--figure", "domain.svg")
    assert alone.returncode == 2 and "--figure needs --beyond" in alone.stderr
