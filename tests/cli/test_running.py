import os
import signal
import subprocess
import sys
import time

import pytest

from attlas.cli.running import exit_code, interruptible


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
    assert exit_code(words) == code


def test_an_interrupt_that_was_swallowed_is_raised_at_the_next_check():
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as check:
        check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


DEAF = """
import hashlib
from attlas.claims import Agreement, Control, Map, Setting, product

test = Map("test", source="attlas")

@test.claim(
    kind="identity", reference="here", statement="$x = x$.", words="It is.", rule=Agreement(),
    control=Control("off by one", lambda e: {"predicted": e.predicted + 1}),
    quick=Setting(n=(1, 1_000_000_000)), cells=product("n"),
)
def deaf(cell, draws):
    hashlib.pbkdf2_hmac("sha256", b"", b"", cell.n)  # Python hears nothing meanwhile
    return {"predicted": 1.0, "measured": 1.0, "error": 0.0}
"""


def test_ctrl_c_ends_what_python_does_not_hear_it_in_and_keeps_finished_batches(tmp_path):
    (tmp_path / "deaf.py").write_text(DEAF)
    environment = {**os.environ, "ATTLAS_STORE": str(tmp_path / "store")}
    words = [sys.executable, "-m", "attlas.cli", "run", "test/deaf", "--claims", "deaf.py"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.rglob("*.nc")) and process.poll() is None:
        time.sleep(0.02)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip().endswith("attlas: Interrupted; finished batches are kept.")
    assert len(list(tmp_path.rglob("*.nc"))) == 1
