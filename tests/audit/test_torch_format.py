"""Pickles of tensors are read as torch reads them, and no other pickle is read, let alone run."""

import hashlib
import io
import json
import pickle
import struct
import time
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given

from attlas import InputError
from attlas.audit.torch_format import MAGIC, PROTOCOL, torch_file
from tests.audit.conftest import DATA
from tests.audit.fuzz import SEVERAL, damaged, refused_or_read


@pytest.mark.parametrize("file", ["zipped.bin", "legacy.bin"])
def test_both_formats_are_read_as_torch_reads_them(file):
    tensors = torch_file(DATA / file)
    expected = np.load(DATA / "pickles.npz")
    for name in set(expected.files) - {"allow_pickle"}:
        np.testing.assert_array_equal(tensors[name].load(), expected[name], err_msg=name)
    assert tensors["brain"].dtype == "BF16"
    assert tensors["turned"].shape == (4, 5)
    np.testing.assert_array_equal(tensors["turned"].rows([2, 0]), expected["turned"][[2, 0]])


@pytest.mark.parametrize("place", json.loads((DATA / "digests.json").read_text()))
def test_real_checkpoints_are_bit_equal_to_torch(real, place):
    folder = real(place.split("/")[0]).parent / place
    digest = hashlib.sha256()
    for name, tensor in sorted(torch_file(folder / "pytorch_model.bin").items()):
        digest.update(name.encode() + tensor.load().tobytes())
    assert digest.hexdigest() == json.loads((DATA / "digests.json").read_text())[place]


class Caller:
    """What a hostile pickle does when it is opened by the standard library."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def zipped(path, program: bytes):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
    return path


def legacy(path, program: bytes):
    head = b"".join(pickle.dumps(x, 2) for x in (MAGIC, PROTOCOL, {"little_endian": True}))
    path.write_bytes(head + program + pickle.dumps([], 2))
    return path


@pytest.mark.parametrize("write", [zipped, legacy])
@pytest.mark.parametrize(
    "call",
    [
        (eval, "open('ran', 'w')"),
        (exec, "1"),
        (open, "ran", "w"),
        (print, "ran"),
        (OrderedDict, [("a", 1)]),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_calls_anything_is_refused_and_not_run(
    tmp_path, monkeypatch, write, call, protocol
):
    monkeypatch.chdir(tmp_path)
    program = pickle.dumps({"weight": Caller(*call)}, protocol)
    with pytest.raises(InputError, match="not read"):
        torch_file(write(tmp_path / "model.bin", program))
    assert not (tmp_path / "ran").exists()


def text(word):
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def number(n):
    return b"\x8a\x08" + struct.pack("<q", n)


def many(*parts):
    return b"(" + b"".join(parts) + b"t"


def state(
    shape=(2,), strides=(1,), offset=0, count=2, kind="FloatStorage", function="_rebuild_tensor_v2"
):
    """The program that describes one tensor."""
    storage = (
        many(text("storage"), f"ctorch\n{kind}\n".encode(), text("0"), text("cpu"), number(count))
        + b"Q"
    )
    sizes = many(*map(number, shape)), many(*map(number, strides))
    view = many(storage, number(offset), *sizes, b"\x89", b"ccollections\nOrderedDict\n)R")
    return b"\x80\x02}" + text("w") + f"ctorch._utils\n{function}\n".encode() + view + b"Rs."


def archived(path, program, numbers=b"\x00" * 8, name="archive/data/0", **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr(name, numbers)
    return path


def test_a_program_written_by_hand_is_read(tmp_path):
    numbers = np.array([3, 4], "<f4")
    tensors = torch_file(archived(tmp_path / "m.bin", state(), numbers.tobytes()))
    np.testing.assert_array_equal(tensors["w"].load(), numbers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": (3,)}, "shape"),
        ({"offset": 1}, "shape"),
        ({"shape": (2**40,), "strides": (0,)}, "shape"),
        ({"shape": (2**40, 2**40), "strides": (0, 0)}, "shape"),
        ({"strides": (2,)}, "shape"),
        ({"strides": (1, 1)}, "axes"),
        ({"shape": (-1,)}, "without"),
        ({"offset": -1}, "without"),
        ({"count": 2**50}, "another size"),
        ({"count": 1, "shape": (1,)}, "another size"),
        ({"kind": "ComplexFloatStorage"}, "ComplexFloatStorage"),
        ({"kind": "nn.Linear"}, "nn.Linear"),
        ({"function": "_rebuild_parameter"}, "calls"),
        ({"function": "_load_global_deps"}, "_load_global_deps"),
    ],
)
def test_a_description_that_does_not_fit_the_file_is_refused(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        torch_file(archived(tmp_path / "m.bin", state(**change)))


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02" + b"r\xff\xff\xff\x7f.",  # a note under the number 2^31
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x02)" + b"0(" * 10,
        b"\x80\x02}"
        + b"("
        + b")q\x00"
        + b"h\x00h\x00\x86q\x00" * 60
        + b"h\x00K\x01u.",  # nested pairs as a key
        b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.",  # an array of 2^62 bytes
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",  # a string of so many
        b"\x80\x02(" + b"I1\n" * 10,
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02]" + b"q\x00h\x00a" * 10_000 + b".",  # a list inside itself
        b"\x80\x02cos\nsystem\n" + many(text("touch ran")) + b"R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04]" + b"]" * 100_000 + b"a" * 100_000 + b"]\x93.",  # a name of nested lists
        b"\x80\x04]\x94"
        + b"".join(b"](h%ch%ce\x94" % (i, i) for i in range(40))
        + b"]\x93.",  # one of 2^40 letters
        b"\x80\x02(cos\nsystem\no.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02}}b}b.",
        b"\x80\x02K\x01}b.",
        b"\x80\x02K\x01Q.",
        b"u.",
        b"0.",
        b".",
        b"",
    ],
)
@pytest.mark.parametrize("write", [zipped, legacy])
def test_programs_that_are_no_descriptions_are_refused_at_once(tmp_path, write, program):
    path = write(tmp_path / "m.bin", program)
    start = time.process_time()
    with pytest.raises(InputError):
        torch_file(path)
    assert time.process_time() - start < 5


def test_archives_that_are_not_of_torch_are_refused(tmp_path):
    with pytest.raises(InputError, match="compressed"):
        torch_file(archived(tmp_path / "a.bin", state(), compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(InputError, match="missing"):
        torch_file(archived(tmp_path / "b.bin", state(), name="archive/data/1"))
    with pytest.raises(InputError, match="little-endian"):
        torch_file(archived(tmp_path / "c.bin", state(), b"big   ", name="archive/byteorder"))
    with pytest.raises(InputError, match="no tensors"):
        torch_file(zipped(tmp_path / "d.bin", pickle.dumps({"a": 1}, 2)))
    with pytest.raises(InputError, match="no tensors"):
        torch_file(zipped(tmp_path / "e.bin", pickle.dumps([1, 2], 2)))
    with pytest.raises(InputError, match="0 pickles"):
        with zipfile.ZipFile(tmp_path / "f.bin", "w") as archive:
            archive.writestr("other", b"")
        torch_file(tmp_path / "f.bin")
    with pytest.raises(InputError, match="no whole file"):
        (tmp_path / "g.bin").write_bytes(b"")
        torch_file(tmp_path / "g.bin")


@pytest.mark.parametrize("file", ["zipped.bin", "legacy.bin"])
def test_fuzz(tmp_path, file):
    whole = (DATA / file).read_bytes()

    @SEVERAL
    @given(damaged(whole))
    def check(data):
        refused_or_read(tmp_path / "m.bin", data, torch_file)

    check()


def test_fuzzed_programs(tmp_path):
    """The program alone, so that its archive is always whole."""

    @SEVERAL
    @given(damaged(state()))
    def check(program):
        buffer = io.BytesIO()
        refused_or_read(tmp_path / "m.bin", archived(buffer, program).getvalue(), torch_file)

    check()
