"""What the claims of this map share."""

import numpy as np
from jaxtyping import Array, Float

from attlas.claims.compat import Hypothesis
from attlas.gaussian import stream

PAPER = "edelman2022"
FIGURES = "attlas.sparse_variables.figures"
LENGTH = "length T"

TOKENS = Hypothesis("length >= 2", lambda s: s.length >= 2, defining=True)


def unit_tokens(key: Array, *shape: int) -> Float[np.ndarray, "..."]:
    """Independent directions, uniform on the sphere of the last axis."""
    x = stream(key).standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
