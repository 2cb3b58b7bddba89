"""Arrays padded to few sizes, so that one compiled program serves many.

XLA compiles a program for each shape, in a second or so; most of ours run in milliseconds. So
lengths are rounded up to a `bucket` and the padding is cut off again. `map_chunks` is for functions
of single entries (points, rows, sequences), `padded_jit` for functions in which axes of several
arguments meet.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np


def bucket(size: int, least: int = 4) -> int:
    """The length to which an axis of `size` entries is padded.

    Arguments:
    - `size`: entries that there are.
    - `least`: the smallest bucket, a power of two.

    Returns the next power of two, or three quarters of it where that is enough: at most 1.5 times
    `size`, or `least`.
    """
    power = 1 << max(size - 1, least - 1).bit_length()
    return 3 * power // 4 if 4 * max(size, least) <= 3 * power else power


def pad_axis(x: Any, size: int, axis: int = 0, *, repeat: bool = False) -> np.ndarray:
    """`x` with zeros, or its last entry repeated, behind its end along an axis.

    Arguments:
    - `size`: the length of the axis afterwards, no less than it is.
    - `axis`: the one to pad.
    - `repeat`: repeat the last entry.
    """
    x = np.asarray(x)
    if x.shape[axis] == size:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return np.pad(x, widths, "edge" if repeat else "constant")


def map_chunks(function: Callable[..., Any], arrays: Sequence[Any], size: int) -> Any:
    """`function(*arrays)` by calls with exactly `size` entries each.

    Arguments:
    - `function`: what it returns for an entry depends on that entry alone. Any tree of arrays
      [size, ...].
    - `arrays`: of one length n > 0 along their first axis. The last chunk repeats their last entry.
    - `size`: entries of a chunk.

    Returns the tree with NumPy arrays [n, ...].
    """
    count = len(arrays[0])
    chunks = (
        [pad_axis(x[first : first + size], size, repeat=True) for x in arrays]
        for first in range(0, count, size)
    )
    parts = [function(*chunk) for chunk in chunks]
    return jax.tree.map(lambda *x: np.concatenate(x)[:count], *parts)


def padded_jit(
    axes: Mapping[str, str], result: str, *, least: int, zeros: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator like `jax.jit` for a function of NumPy arrays, compiled once for each bucket.

        @padded_jit({"x": "n", "y": "m"}, "nm", least=512)
        def matrix(kernel, x, y):
            return kernel(x, y)

    Arguments:
    - `axes`: for each array to pad, by the name of the parameter, a letter for each of its leading
      axes. Axes with one letter have one length. Other arguments are passed on as
      `equinox.filter_jit` does.
    - `result`: the letters of the leading axes of what the function returns, an array or a tree of
      them.
    - `least`: the smallest bucket.
    - `zeros`: arrays to pad with zeros, because the function sums over an axis. The others repeat
      their last entry, which no function is undefined at.

    Returns the decorated function: NumPy arrays, cut to the lengths that were passed.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled, signature = eqx.filter_jit(function), inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            lengths: dict[str, int] = {}
            for name, letters in axes.items():
                x = bound.arguments[name]
                for axis, letter in enumerate(letters):
                    lengths[letter] = x.shape[axis]
                    size = bucket(x.shape[axis], least)
                    x = pad_axis(x, size, axis, repeat=name not in zeros)
                bound.arguments[name] = x
            cut = tuple(slice(lengths[letter]) for letter in result)
            found = compiled(*bound.args, **bound.kwargs)
            return jax.tree.map(lambda x: np.asarray(x)[cut], found)

        return call

    return decorate
