"""A claim that costs nothing, loaded from its file by every process of a sweep.

It can wait, raise, and kill its process. It has a folder to itself, because the digest of a claim
file takes in the modules beside it that it imports.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from attlas.claims import Agreement, Control, Hypothesis, Map, Setting, product

QUICK = Setting(
    n=(1, 2, 3),
    dim=(10,),
    lam=0.5,
    repeats=4,
    word="a",
    wait=0.0,
    raises=0.0,
    kills=0.0,
    once="",
    fixed=(1.0, 2.0),
)


toy = Map("toy", source="attlas")


@toy.claim(
    kind="identity",
    reference="here",
    statement="$x = x$.",
    words="It is.",
    quick=QUICK,
    paper={"repeats": 8},
    rule=Agreement(),
    control=Control("off by one", lambda e: {"predicted": e.predicted + 1}),
    hypotheses=(
        Hypothesis("n < 1000", lambda s: s.n < 1000, defining=True),
        Hypothesis("lam < 1", lambda s: s.lam < 1),
    ),
    cells=product("n", "dim"),
    shape=("repeats",),
    batch=4,
)
def square(cells, draws):
    time.sleep(cells[0].wait * len(cells))
    for cell in cells:
        if cell.once and not Path(cell.once).exists():  # something goes wrong the first time only
            Path(cell.once).touch()
            raise RuntimeError("the first time")
        if cell.n == cell.raises:
            raise RuntimeError(f"{cell.n} is too much")
        if cell.n == cell.kills:
            os.kill(os.getpid(), signal.SIGKILL)
    # Cells share their random numbers.
    noise = np.random.default_rng(draws.seed).normal(size=cells[0].repeats)
    value = np.array([cell.n * cell.dim + cell.lam for cell in cells])
    runs = ("cell", "repeat")
    return {
        "measured": (runs, value[:, None] + noise),
        "predicted": (runs, value[:, None] + noise),
        "arrived": (runs, noise > np.array([[cell.lam] for cell in cells])),
        "count": ("cell", [cell.n for cell in cells]),
        "letter": ("cell", [cell.word * cell.n for cell in cells]),
        "lam": ("cell", [cell.lam for cell in cells]),
        "two": (("cell", "mechanism"), np.stack([value, -value], 1)),
        "mechanism": ["plus", "minus"],
        "error": 0.0,
    }
