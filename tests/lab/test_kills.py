"""Some kills; `python -m tools.kills` makes a hundred of each kind."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytestmark = pytest.mark.xdist_group("cluster")
TOP = Path(__file__).parents[2]
LONG = pytest.mark.long


@pytest.mark.parametrize(
    "kind", ["driver", pytest.param("worker", marks=LONG), pytest.param("scheduler", marks=LONG)]
)
def test_kills_at_random_times_lose_no_cell_and_are_told_for_what_they_are(kind):
    words = [sys.executable, "-m", "tools.kills", kind, "--times", "2", "--seed", "4"]
    told = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    counts = told.stdout.splitlines()[-1]
    assert counts.startswith(f"{kind}: 2 kills, ")
    assert counts.endswith(" 0 lost cells, 0 other cells, 0 wrong messages")
