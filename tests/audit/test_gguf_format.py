"""GGUF files are read as the package `gguf` reads them, and not where they lie."""

import struct
import time

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attlas import InputError
from attlas.audit.gguf_format import gguf_file
from tests.audit.fuzz import SEVERAL, damaged, refused_or_read

BITS = np.random.default_rng(0)
ENCODINGS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K")


def written(path, encodings=ENCODINGS, width=256):
    """A file of every kind of metadata, and a tensor of each encoding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_bool("flag", True)
    writer.add_array("words", ["a", "naïve", ""])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("reals", [0.5, 1.5])
    for name in encodings:
        kind = gguf.GGMLQuantizationType[name]
        array = BITS.standard_normal((2, width)).astype(np.float32)
        if name.endswith("_K"):  # the package cannot make these: any bytes are blocks of them
            _, size = gguf.GGML_QUANT_SIZES[kind]
            raw = BITS.integers(0, 60, (2, width // 256 * size), np.uint8)
        else:
            raw = gguf.quantize(array, kind)
        writer.add_tensor(name, raw, raw_dtype=None if name in ("F32", "F16") else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_are_those_that_the_package_reads(tmp_path):
    path = written(tmp_path / "m.gguf")
    config, tensors = gguf_file(path)
    assert config["model_type"] == "llama"
    assert config["block_count"] == 2
    assert config["rope.freq_base"] == 1e4
    assert config["flag"] is True
    assert config["words"] == ["a", "naïve", ""]
    assert config["numbers"] == [1, -2, 3]
    assert config["reals"] == [0.5, 1.5]
    reader = gguf.GGUFReader(path)
    assert set(tensors) == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(tensors[tensor.name].load(), expected, err_msg=tensor.name)
        np.testing.assert_array_equal(tensors[tensor.name].rows([1]), expected[1:])
        assert tensors[tensor.name].dtype == tensor.tensor_type.name


def test_a_vector_in_blocks_is_read(tmp_path):
    numbers = BITS.standard_normal(96).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    raw = gguf.quantize(numbers, kind)
    (tmp_path / "m.gguf").write_bytes(tensor(shape=(96,), kind=int(kind), data=0) + raw.tobytes())
    _, tensors = gguf_file(tmp_path / "m.gguf")
    np.testing.assert_array_equal(tensors["w"].load(), gguf.dequantize(raw, kind))
    np.testing.assert_array_equal(tensors["w"].rows([70, 3]), gguf.dequantize(raw, kind)[[70, 3]])


def array(kind, count):
    """The beginning of a file with one array of `count` values."""
    return (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + struct.pack("<Q", 1)
        + b"a"
        + struct.pack("<IIQ", 9, kind, count)
    )


def tensor(name=b"w", shape=(32,), kind=0, offset=0, data=128, alignment=None):
    """A file with one tensor, as its header describes it."""
    keys = (
        b""
        if alignment is None
        else struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, alignment)
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, int(alignment is not None)) + keys
    head += (
        struct.pack("<Q", len(name))
        + name
        + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    )
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


def test_the_header_written_by_hand_is_read(tmp_path):
    (tmp_path / "m.gguf").write_bytes(tensor())
    _, tensors = gguf_file(tmp_path / "m.gguf")
    assert tensors["w"].load().shape == (32,)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read"),
        (b"GGUF", "beyond the end"),
        (b"GGML" + bytes(20), "GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "beyond the end"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "more than fit"),
        (array(0, 2**63), "beyond the end"),
        (array(8, 2**63), "more than fit"),
        (array(9, 2**63), "type 9"),
        (array(77, 1), "type 77"),
        (tensor(shape=(2**32, 2**32)), "beyond the end"),
        (tensor(shape=(2**63, 2)), "beyond the end"),
        (tensor(shape=(0,)), "shape"),
        (tensor(shape=()), "shape"),
        (tensor(shape=(1,) * 5), "5 axes"),
        (tensor(shape=(33,)), "beyond the end"),
        (tensor(offset=32), "beyond the end"),
        (tensor(offset=4), "alignment"),
        (tensor(offset=2**63), "beyond the end"),
        (tensor(kind=99), "type 99"),
        (tensor(kind=2, shape=(31,)), "multiples of 32"),
        (tensor(alignment=3), "power of two"),
        (tensor(alignment=0), "power of two"),
        (tensor(name=b"\xff\xff"), "no whole"),
    ],
)
def test_headers_that_lie_are_refused_at_once(tmp_path, data, words):
    (tmp_path / "m.gguf").write_bytes(data)
    start = time.process_time()
    with pytest.raises(InputError, match=words):
        gguf_file(tmp_path / "m.gguf")
    assert time.process_time() - start < 5


def test_tensors_that_overlap_and_names_that_repeat_are_refused(tmp_path):
    def info(name, offset):
        return struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 32, 0, offset)

    for first, second, words in ((b"a", b"a", "twice"), (b"a", b"b", "inside another")):
        head = (
            b"GGUF"
            + struct.pack("<IQQ", 3, 2, 0)
            + info(first, 0)
            + info(second, 128 if words == "twice" else 64)
        )
        (tmp_path / "m.gguf").write_bytes(head + bytes(500))
        with pytest.raises(InputError, match=words):
            gguf_file(tmp_path / "m.gguf")


def test_fuzz(tmp_path):
    whole = written(tmp_path / "whole.gguf", ("F32", "F16", "Q4_1"), 32).read_bytes()

    @SEVERAL
    @given(damaged(whole))
    def check(data):
        refused_or_read(tmp_path / "m.gguf", data, lambda path: gguf_file(path)[1])

    check()


def as_the_package_reads(path):
    """Metadata and arrays by the reader of the package."""
    reader = gguf.GGUFReader(path)
    metadata = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    with np.errstate(all="ignore"):
        arrays = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    return metadata, {t.name: arrays[t.name].reshape(t.shape[::-1]) for t in reader.tensors}


def agree(path):
    """Whether both read the file; then they read the same."""
    try:
        config, tensors = gguf_file(path)
        ours = {name: tensor.load() for name, tensor in tensors.items()}
    except InputError:
        return False
    metadata, theirs = as_the_package_reads(path)
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array.astype(np.float32), err_msg=name)
    kind = metadata.get("general.architecture")
    for name, value in metadata.items():
        np.testing.assert_equal(config[name.removeprefix(f"{kind}.")], value, err_msg=name)
    return True


@st.composite
def whole_files(draw):
    """Some metadata of each kind, and tensors of some shapes and encodings."""
    texts, numbers = st.text(max_size=5), st.integers(-(2**31), 2**31 - 1)
    values = st.one_of(
        texts, numbers, st.booleans(), st.floats(width=32), st.lists(texts, min_size=1, max_size=3)
    )
    names = st.text("abc.", min_size=1, max_size=6)
    metadata = draw(st.dictionaries(names, values, max_size=4))
    shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    kinds = st.sampled_from([name for name in ENCODINGS if not name.endswith("_K")])
    return metadata, draw(st.dictionaries(names, st.tuples(shapes, kinds), min_size=1, max_size=3))


def test_what_the_package_writes_both_read_alike(tmp_path):
    @SEVERAL
    @given(whole_files())
    def check(content):
        metadata, tensors = content
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        for name, value in metadata.items():
            kind = {bool: "bool", int: "int64", float: "float32", str: "string", list: "array"}
            getattr(writer, f"add_{kind[type(value)]}")(f"x.{name}", value)
        for name, (shape, encoding) in tensors.items():
            kind = gguf.GGMLQuantizationType[encoding]
            raw = gguf.quantize(np.ones((*shape, 32), np.float32), kind)
            writer.add_tensor(name, raw, raw_dtype=None if encoding in ("F32", "F16") else kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert agree(tmp_path / "m.gguf")

    check()


def test_what_is_read_of_a_damaged_file_the_package_reads_too(tmp_path):
    whole, read = written(tmp_path / "whole.gguf", ("F32", "Q8_0"), 32).read_bytes(), []

    @SEVERAL
    @given(damaged(whole))
    def check(data):
        (tmp_path / "m.gguf").write_bytes(data)
        read.append(agree(tmp_path / "m.gguf"))

    check()
    assert any(read) and not all(read)
