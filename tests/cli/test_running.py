import os
import signal
from types import SimpleNamespace

import pytest

from attlas.cli.running import exit_code, interruptible


def results(*words):
    return [SimpleNamespace(verdict=SimpleNamespace(word=word)) for word in words]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 0),
        (("confirmed", "outside"), 0),
        (("confirmed", "undecided"), 3),
        (("undecided", "refuted"), 1),
    ],
)
def test_a_refutation_counts_more_than_what_is_undecided(words, code):
    assert exit_code(results(*words)) == code


def test_an_interrupt_that_was_swallowed_is_raised_at_the_next_check():
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as check:
        check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before
