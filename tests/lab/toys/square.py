"""A claim that costs nothing, loaded from its file by every process of a sweep. It can wait, raise, and kill its process.

It has a folder to itself, because the digest of a claim file takes in the modules beside it that are loaded.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import xarray as xr

from attlas.claims import Control, Hypothesis, Setting, claim, product
from attlas.statistics import Agreement

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


@claim(
    "toy/square",
    source="attlas",
    reference="here",
    statement="$x = x$.",
    words="It is.",
    quick=QUICK,
    paper=QUICK.replace(repeats=8),
    rule=Agreement(),
    control=Control("off by one", lambda e: e.assign(predicted=e["predicted"] + 1)),
    hypotheses=(
        Hypothesis("n < 1000", lambda s: s.n < 1000, defining=True),
        Hypothesis("lam < 1", lambda s: s.lam < 1),
    ),
    cells=product("n", "dim"),
    shape=("repeats",),
    batch=4,
)
def square(cells, seed):
    time.sleep(cells[0].wait * len(cells))
    for cell in cells:
        if cell.once and not Path(cell.once).exists():  # something goes wrong the first time only
            Path(cell.once).touch()
            raise RuntimeError("the first time")
        if cell.n == cell.raises:
            raise RuntimeError(f"{cell.n} is too much")
        if cell.n == cell.kills:
            os.kill(os.getpid(), signal.SIGKILL)
    draws = np.random.default_rng(seed).normal(
        size=cells[0].repeats
    )  # cells share their random numbers
    value = np.array([cell.n * cell.dim + cell.lam for cell in cells])
    runs = ("cell", "repeat")
    return xr.Dataset(
        {
            "measured": (runs, value[:, None] + draws),
            "predicted": (runs, value[:, None] + draws),
            "arrived": (runs, draws > np.array([[cell.lam] for cell in cells])),
            "count": ("cell", [cell.n for cell in cells]),
            "letter": ("cell", [cell.word * cell.n for cell in cells]),
            "lam": ("cell", [cell.lam for cell in cells]),
            "two": (("cell", "mechanism"), np.stack([value, -value], 1)),
            "error": 0.0,
        },
        coords={"mechanism": ["plus", "minus"], "place": ("repeat", np.arange(cells[0].repeats))},
    )
