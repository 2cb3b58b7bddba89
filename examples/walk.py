"""A simulation of one's own, swept: how far softmax attention to random scores is from a hard
choice.

    attlas sweep examples/walk.py:walk --grid sharpness=0.1:10:9log --seeds 0:20 --at step=200
    --figure walk.svg

A simulation is a function whose parameters all have defaults, one of them `seed`, and which returns
a Dataset.
"""

import jax
import numpy as np
import xarray as xr


def walk(length: int = 100, sharpness: float = 1.0, steps: int = 200, seed: int = 0) -> xr.Dataset:
    """The largest weight that attention gives to one of `length` tokens, while their scores walk at
    random."""
    moves = jax.random.normal(jax.random.key(seed), (steps, length))
    scores = sharpness * moves.cumsum(0) / np.sqrt(np.arange(1, steps + 1))[:, None]
    return xr.Dataset(
        {"largest": ("step", np.asarray(jax.nn.softmax(scores).max(1)))},
        {"step": np.arange(1, steps + 1)},
    )
