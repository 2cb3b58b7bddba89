"""Long calls speak, once, on the error stream, where somebody looks; short ones never."""

import sys
import types

import pytest

from attlas import progress
from attlas.progress import Line, aloud, line_of, silent, spoken, told, watched, watching


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    monkeypatch.setattr(Line.__init__, "__defaults__", (clock,))
    monkeypatch.setenv("ATTLAS_PROGRESS", "1")
    return clock


def rounds(clock, seconds, count=10, **options):
    for _ in watched(range(count), "blocks", **options):
        clock.now += seconds


def test_a_long_call_says_how_far_it_is_how_long_is_left_and_wipes_the_line(clock, capsys):
    rounds(clock, 3.0)
    said = capsys.readouterr()
    assert said.out == ""
    first, *others = said.err.strip("\r").split("\r")
    assert first.rstrip() == "blocks: 1 of 10, about 27 s to go of 30 s"
    assert "blocks: 9 of 10, about 3 s to go of 30 s" in others[-2]
    assert not others[-1].strip() and said.err.endswith("\r")


def test_the_first_round_which_compiles_does_not_count_once_there_is_another(clock, capsys):
    for number, _ in enumerate(watched(range(11), "trainings")):
        clock.now += 10.0 if number == 0 else 1.0
    assert "2 of 11, about 9 s to go of 20 s" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [0.1, 0.3])
def test_a_short_call_is_silent(clock, capsys, seconds):
    rounds(clock, seconds)
    assert capsys.readouterr().err == ""


def test_what_is_nearly_over_does_not_begin_to_speak(clock, capsys):
    rounds(clock, 1.1, count=3)
    assert capsys.readouterr().err == ""


def test_the_line_changes_at_most_twice_a_second(clock, capsys):
    rounds(clock, 0.1, count=100)
    said = capsys.readouterr().err
    assert 10 <= said.count("blocks:") <= 17


def test_nobody_looks_nobody_speaks(clock, capsys, monkeypatch):
    monkeypatch.setenv("ATTLAS_PROGRESS", "0")
    rounds(clock, 3.0)
    assert capsys.readouterr().err == ""


def test_only_the_outermost_speaks(clock, capsys):
    for _ in watched(range(3), "outer"):
        rounds(clock, 3.0)
    assert "blocks" not in (said := capsys.readouterr().err) and "outer: 1 of 3" in said
    with silent():
        rounds(clock, 3.0)
    assert capsys.readouterr().err == ""
    rounds(clock, 3.0)
    assert "blocks" in capsys.readouterr().err


def test_items_pass_untouched_and_an_error_or_an_early_end_closes_the_line(clock, capsys):
    items = [object() for _ in range(3)]
    assert [*watched(items, "items")] == items
    assert [*watched(iter(items), "items", total=3)] == items
    with pytest.raises(KeyError):
        for item in watched(items, "items"):
            raise KeyError(item)
    next(watched(items, "items"))
    rounds(clock, 3.0)
    assert "blocks" in capsys.readouterr().err


def test_the_total_may_be_known_late(clock, capsys):
    with line_of("cells") as line:
        line(0, 4)
        clock.now += 5.0
        line(1, 4)
    assert "cells: 1 of 4, about 15 s to go of 20 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (24.4, "24 s"), (89, "89 s"), (180, "3 min"), (7200, "2 h")],
)
def test_durations_are_said_in_one_unit(seconds, words):
    assert spoken(seconds) == words


class ZMQInteractiveShell:
    """The shell of a notebook, by its name."""


@pytest.mark.parametrize("shell", [None, ZMQInteractiveShell()])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_and_a_notebook_are_looked_at(monkeypatch, shell, terminal):
    monkeypatch.delenv("ATTLAS_PROGRESS", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert watching() == (terminal or shell is not None)


def test_what_is_told_is_printed_after_the_name_of_who_wants_it_and_passed_on(capsys):
    assert told(3, str) == 3
    with aloud("Law", False):
        told(3, str)
    with aloud("Law", True), aloud("Sparse"):
        assert told([1.5], lambda x, k: f"part {k}: {x[0]:.2f}", 7) == [1.5]
    told(3, str)
    assert capsys.readouterr().out == "[Sparse] part 7: 1.50\n"
