"""Damaged copies of a file, and what every reader must do with them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from attlas import InputError
from tests.memory import peak_memory

MOST_BYTES, MOST_SECONDS = 30 * 2**20, 5
SEVERAL = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """The file with bytes changed, taken out, put in, repeated, or cut off."""
    place = st.integers(0, len(whole))
    header = st.integers(0, min(len(whole), 400))
    extreme = st.sampled_from(
        [b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", (2**40).to_bytes(8, "little"), b"\x7f"]
    )
    piece = st.one_of(extreme, st.binary(min_size=1, max_size=8))

    def change(at: int, new: bytes) -> bytes:
        return whole[:at] + new + whole[at + len(new) :]

    def twice(one: tuple[int, bytes], two: tuple[int, bytes]) -> bytes:
        first = change(*one)
        return first[: two[0]] + two[1] + first[two[0] + len(two[1]) :]

    at = st.one_of(place, header)
    return st.one_of(
        st.builds(change, at, piece),
        st.builds(lambda i: whole[:i], place),
        st.builds(lambda i, new: whole[:i] + new + whole[i:], at, piece),
        st.builds(lambda i, n: whole[:i] + whole[i + n :], at, st.integers(1, 64)),
        st.builds(twice, st.tuples(at, piece), st.tuples(at, piece)),
        st.binary(max_size=200),
    )


def refused_or_read(path: Path, data: bytes, read: Callable[[Path], Any]) -> None:
    """The reader gives tensors that load, or says why not; it never takes much memory or time."""
    path.write_bytes(data)
    start = time.process_time()
    with peak_memory() as peak:
        try:
            for tensor in read(path).values():
                array = tensor.load()
                assert array.shape == tensor.shape
                assert array.dtype in (np.float32, np.int64)
        except InputError as error:
            assert str(error)
    assert peak.bytes < MOST_BYTES
    assert time.process_time() - start < MOST_SECONDS
