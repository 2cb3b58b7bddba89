"""What the claims of this map share."""

import numpy as np
from jaxtyping import Array, Float

from attlas.claims import Hypothesis, Setting
from attlas.gaussian import stream
from attlas.sparse_variables.task import FUNCTIONS, SparseBoolean

LENGTH = "length T"

SPARSE = Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True)
FUNCTION = Hypothesis(
    f"function is one of {', '.join(FUNCTIONS)}", lambda s: s.function in FUNCTIONS, defining=True
)


def first_places(cell: Setting, function: str = "and") -> SparseBoolean:
    """A function of the first bits, where the support does not matter."""
    return SparseBoolean(cell.length, tuple(range(cell.sparsity)), function)


def unit_tokens(key: Array, *shape: int) -> Float[np.ndarray, "..."]:
    """Independent directions, uniform on the sphere of the last axis."""
    x = stream(key).standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
