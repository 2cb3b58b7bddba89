"""The verb `refute`: what it prints, its exit codes, and bad input in one sentence."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from attlas.claims import find_claim
from attlas.cli.options import load_files
from attlas.lab.refute import find_violation

ALONE = "from attlas import cli; cli.main()"


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
    assert "not refuted test/true" in found.stdout
    assert "Nearest: 0, where 1 is the threshold, at" in found.stdout
    assert "The relative difference is 0" in found.stdout or "standard errors is 0" in found.stdout
    assert "Searched: n = 1 to 40; size = -1 to 5." in found.stdout
    told = json.loads(attlas("refute", "test/true", "--claims", file, *options, "--json").stdout)
    assert told["refuted"] is False and told["violation"] is None
    assert told["over"] == {"n": [1, 40], "size": [-1, 5]} and told["settings"] > 30


def test_settings_that_cannot_be_measured_are_counted(attlas, file):
    options = ("--claims", file, "--minutes", "0.01", "--over", "wait=-0.001:0.001")
    found = attlas("refute", "test/true", *options)
    assert found.returncode == 0
    assert "settings could not be measured, as wait = -0.00" in found.stdout
    assert ": ValueError: sleep length must be non-negative." in found.stdout


def test_a_claim_that_can_be_measured_nowhere_is_refused_in_a_sentence(attlas, file):
    found = attlas("refute", "test/bug", "--claims", file, "--minutes", "0.01", "--over", "n=1:3")
    assert found.returncode == 2 and found.stdout == ""
    says = "test/bug could be measured at none of 3 settings in this range; at n = 1: RuntimeError:"
    assert f"{says} broken inside" in found.stderr and found.stderr.count("\n") == 1


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


def test_a_search_that_is_killed_goes_on_where_it_stopped(attlas, file, tmp_path):
    log = tmp_path / "log"
    told = f"print(cell, file=open({str(log)!r}, 'a')) or time.sleep(0.02)"
    file.write_text(file.read_text().replace("time.sleep(cell.wait)", told))
    options = ("refute", "test/true", "--claims", str(file), "--over", "size=0.5:5", "--seed", "3")
    log.touch()
    with subprocess.Popen([sys.executable, "-c", ALONE, *options, "--minutes", "5"]) as process:
        while len(log.read_text().splitlines()) < 150 and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    before = log.read_text().splitlines()
    load_files((str(file),))
    search = find_violation(
        find_claim("test/true"), over={"size": "0.5:5"}, seed=3, minutes=5, most=140
    )
    assert search.violation is None and search.settings >= 140
    again = log.read_text().splitlines()[len(before) :]
    # Only what was under way, and not yet kept, is measured a second time.
    assert again and len(set(again) & set(before)) < len(before) / 2
    assert len(set(again)) < 3 * search.settings  # of which a setting has three


@pytest.mark.long
def test_processes_find_the_violation_that_one_finds(attlas, file):
    options = ("refute", "test/false", "--claims", file, "--minutes", "0.05")
    alone, many = attlas(*options), attlas(*options, "--on", "local:2")
    assert many.returncode == alone.returncode == 1
    assert many.stdout.splitlines()[1:] == alone.stdout.splitlines()[1:]
