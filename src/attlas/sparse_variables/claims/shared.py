"""What the claims of this map share."""

from collections.abc import Collection

import numpy as np
from jaxtyping import Array, Float

from attlas.claims import Hypothesis, Setting
from attlas.gaussian import stream
from attlas.sparse_variables.task import FUNCTIONS, SparseBoolean

LENGTH, SAMPLES, SIZE = "length T", "samples m", "T = {length:,}, s = {sparsity}"

SHOWN = 10
"""Runs of which curves are drawn, as many as in the paper; all are counted."""


def one_of(name: str, allowed: Collection[str]) -> Hypothesis:
    """The parameter `name`, or each of the values that it lists, is `allowed`."""

    def holds(cell: Setting) -> bool:
        value = cell[name]
        return set(value if isinstance(value, tuple) else [value]) <= set(allowed)

    return Hypothesis(f"{name} is one of {', '.join(allowed)}", holds, defining=True)


SPARSE = Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True)
FUNCTION = one_of("function", FUNCTIONS)


def first_places(cell: Setting, function: str = "and") -> SparseBoolean:
    """A function of the first bits, where the support does not matter."""
    return SparseBoolean(cell.length, tuple(range(cell.sparsity)), function)


def unit_tokens(key: Array, *shape: int) -> Float[np.ndarray, "..."]:
    """Independent directions, uniform on the sphere of the last axis."""
    x = stream(key).standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def floored_error(values: Float[np.ndarray, "*n repeat"]) -> Float[np.ndarray, "*n"]:
    """Standard error of the mean; where no two values differ, that of the least difference that
    could have been seen."""
    repeats = values.shape[-1]
    return np.sqrt(np.maximum(values.var(-1, ddof=1), 1 / repeats) / repeats)
