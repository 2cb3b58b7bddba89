"""Many operations on few numbers, compiled as one piece.

On a CPU XLA makes a kernel of almost every square root, division or sum, and starting it takes some
.3 microseconds: more than the work on a few hundred numbers. A step of a long loop is tens of them.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 1 << 14
"""Numbers in an array of a function for `one_kernel`. XLA splits larger ones among threads, which
it cannot do within a kernel: from 60,000 on it refuses to compile (JAX 0.10)."""


def one_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as one kernel of a larger compiled program; the same numbers to rounding.

    On other devices than CPUs it stays as it is.

    Arguments:
    - `function`: of arrays of at most `LARGEST` numbers each, made of elementwise operations and
      slices alone: XLA does not compile every reduction within a kernel.
    """
    compiled = jax.jit(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.default_backend() != "cpu":
            return function(*args, **kwargs)
        with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
            return compiled(*args, **kwargs)

    return call
