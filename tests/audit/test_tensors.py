"""Tensors in files are read as they lie there, whole or by rows."""

import numpy as np
import pytest

from attlas import InputError
from attlas.audit.tensors import PLAIN, decode, file_tensor, import_extra, memory_tensor

BITS = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", PLAIN)
def test_every_plain_encoding_gives_float32_or_int64(tmp_path, dtype):
    form = np.dtype(PLAIN[dtype])
    numbers = (BITS.integers(0, 2, 12) if dtype == "BOOL" else BITS.integers(0, 100, 12)).astype(
        form
    )
    (tmp_path / "f").write_bytes(b"abc" + numbers.tobytes())
    array = file_tensor(tmp_path / "f", 3, (4, 3), dtype).load()
    assert array.dtype == (np.float32 if dtype in ("F64", "F32", "F16", "BF16") else np.int64)
    if dtype != "BF16":
        np.testing.assert_array_equal(array.ravel(), numbers.astype(array.dtype))


def test_bfloat16_is_the_upper_half_of_float32():
    numbers = np.array([1.0, -2.5, 3.140625, np.inf, 0.0], np.float32)
    upper = (numbers.view(np.uint32) >> 16).astype("<u2")
    np.testing.assert_array_equal(decode(upper.view(np.uint8), "BF16"), numbers)


def test_rows_come_in_the_order_asked_for(tmp_path):
    array = BITS.standard_normal((50, 3)).astype(np.float32)
    (tmp_path / "f").write_bytes(array.tobytes())
    tensor = file_tensor(tmp_path / "f", 0, array.shape, "F32")
    indices = [7, 3, 3, 4, 49, 0, 5]
    np.testing.assert_array_equal(tensor.rows(indices), array[indices])
    np.testing.assert_array_equal(memory_tensor(array).rows(indices), array[indices])


def test_strides_are_followed(tmp_path):
    array = BITS.standard_normal((4, 6)).astype(np.float32)
    (tmp_path / "f").write_bytes(array.tobytes())
    tensor = file_tensor(tmp_path / "f", 4, (5, 4), "F32", strides=(1, 6))
    np.testing.assert_array_equal(tensor.load(), array[:, 1:].T)
    np.testing.assert_array_equal(tensor.rows([3, 1]), array[:, 1:].T[[3, 1]])


def test_a_file_that_has_become_shorter_is_said_so(tmp_path):
    (tmp_path / "f").write_bytes(b"1234")
    with pytest.raises(InputError, match="ends at byte 4"):
        file_tensor(tmp_path / "f", 0, (2,), "F32").load()
    with pytest.raises(InputError, match="cannot be read"):
        file_tensor(tmp_path / "gone", 0, (2,), "F32").load()


def test_a_library_that_is_not_installed_is_named():
    with pytest.raises(InputError, match=r"package no_such_library: pip install 'attlas\[audit\]'"):
        import_extra("no_such_library")
