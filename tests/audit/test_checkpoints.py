"""Models are found wherever they are kept, and a place without one is said to be so."""

import json
import shutil
import struct
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from attlas import InputError
from attlas.audit.checkpoints import read_checkpoint, read_json, safetensors_file
from attlas.audit.tensors import PLAIN
from tests.audit.conftest import DATA
from tests.audit.fuzz import SEVERAL, damaged, refused_or_read

ARRAYS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.int64),
}


def loaded(checkpoint):
    return {name: tensor.load() for name, tensor in checkpoint.tensors.items()}


def assert_arrays(checkpoint):
    found = loaded(checkpoint)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def folder_with(path, file="model.safetensors", config=None):
    path.mkdir(parents=True, exist_ok=True)
    save_file(ARRAYS, path / file)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_folder_and_its_file_are_the_same_checkpoint(tmp_path):
    folder = folder_with(tmp_path / "mine", config={"model_type": "x"})
    for source in (folder, str(folder), folder / "model.safetensors"):
        checkpoint = read_checkpoint(source)
        assert_arrays(checkpoint)
        assert checkpoint.config == {"model_type": "x"}
        assert checkpoint.folder == folder
        assert checkpoint.bytes == (folder / "model.safetensors").stat().st_size
    assert read_checkpoint(folder).name == "mine"


def test_a_config_can_be_given(tmp_path):
    folder = folder_with(tmp_path / "mine", "weights.safetensors")
    assert read_checkpoint(folder).config == {}
    assert read_checkpoint(folder, config={"a": 1}).config == {"a": 1}
    (tmp_path / "other.json").write_text('{"a": 2}')
    assert read_checkpoint(folder, config=tmp_path / "other.json").config == {"a": 2}


def test_shards_are_put_together(tmp_path):
    save_file({"a.weight": ARRAYS["a.weight"]}, tmp_path / "one.safetensors")
    save_file({"b": ARRAYS["b"]}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a.weight": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_arrays(read_checkpoint(tmp_path))
    for change, words in (
        ({"b": "three.safetensors"}, "three.safetensors"),
        ({"b": "../two.safetensors"}, "beside"),
        ({"c": "two.safetensors"}, "does not hold it"),
        ({"b": 3}, "weight_map"),
    ):
        changed = {"weight_map": index["weight_map"] | change}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=words):
            read_checkpoint(tmp_path)


def test_a_hugging_face_cache_leads_to_its_current_snapshot(tmp_path):
    cache = tmp_path / "models--org--name"
    for revision in ("aaa", "bbb"):
        folder_with(cache / "snapshots" / revision, config={"revision": revision})
    with pytest.raises(InputError, match="2 snapshots"):
        read_checkpoint(cache)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("bbb\n")
    checkpoint = read_checkpoint(cache)
    assert checkpoint.name == "org/name"
    assert checkpoint.config == {"revision": "bbb"}
    shutil.rmtree(cache / "snapshots" / "bbb")
    assert read_checkpoint(cache).config == {"revision": "aaa"}


def test_a_package_is_found_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "some_model"
    folder_with(package / "data" / "one")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert_arrays(read_checkpoint("package:some-model"))
    assert_arrays(read_checkpoint("package:some_model/data/one"))
    folder_with(package / "data" / "two")
    with pytest.raises(InputError, match="2 models, name one of its folders: data/one, data/two"):
        read_checkpoint("package:some-model")
    for source, words in (
        ("package:not-there-at-all", "not installed"),
        ("package:", "names no package"),
        ("package:a.b", "names no package"),
        ("package:some-model/../..", "leaves"),
        ("package:some-model/three", "there is no"),
    ):
        with pytest.raises(InputError, match=words):
            read_checkpoint(source)


def test_arrays_in_memory_are_a_checkpoint():
    checkpoint = read_checkpoint(ARRAYS, config={"a": 1})
    assert_arrays(checkpoint)
    assert checkpoint.bytes == 24 + 32
    brain = read_checkpoint({"w": jnp.ones((2, 2), jnp.bfloat16)}, config={}).tensors["w"]
    assert brain.load().dtype == np.float32
    with pytest.raises(InputError, match="config="):
        read_checkpoint(ARRAYS)
    for wrong in ("text", None, [[1], [2, 3]], {"a": 1}):
        with pytest.raises(InputError, match="w is of the type"):
            read_checkpoint({"w": wrong}, config={})


def test_places_without_a_model_are_said_to_be_so(tmp_path):
    (tmp_path / "notes.md").write_text("nothing")
    for source, words in (
        (tmp_path, "holds no model"),
        (tmp_path / "nots.md", "Did you mean notes.md"),
        (tmp_path / "notes.md", "no weights file"),
        (tmp_path / "gone" / "deep", "there is no"),
        ("nul\0", "there is no"),
        ("~nobody-at-all/model", "there is no"),
        ("x" * 5000, "cannot be read"),
    ):
        with pytest.raises(InputError, match=words):
            read_checkpoint(source)
    for name in ("a", "b"):
        save_file(ARRAYS, tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match=r"2 files \*.safetensors"):
        read_checkpoint(tmp_path)


def test_a_config_that_is_no_object_is_refused(tmp_path):
    for text, words in (
        ("[1]", "list"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("\ud800", "no JSON"),
        ("", "no JSON"),
    ):
        (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(InputError, match=words):
            read_json(tmp_path / "config.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path)


def lying(header, data=b"\0" * 64, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(4, 4), offsets=(0, 64)):
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        lying(entry(), length=2**62),
        lying(entry(), length=2**31),
        lying(entry(), b""),
        lying(entry(), bytes(63)),
        lying(entry(), bytes(65)),
        lying(entry(shape=(4, 5))),
        lying(entry(shape=(2**40, 2**40))),
        lying(entry(offsets=(0, 2**63))),
        lying(entry(offsets=(64, 0))),
        lying(entry(offsets=(4, 68)), bytes(68)),
        lying(entry() | {"v": entry()["w"]}),
        lying(entry(dtype="F33")),
        lying(entry(shape=(-4, -4))),
        lying(b"{" * 1000),
        lying(b"[]"),
        lying(b"\xff\xfe"),
    ],
)
def test_safetensors_headers_that_lie_are_refused(tmp_path, data):
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="safetensors"):
        safetensors_file(tmp_path / "m.safetensors")


def test_encodings_that_are_not_known_are_named(tmp_path):
    (tmp_path / "m.safetensors").write_bytes(lying(entry("F8_E4M3", (64,))))
    with pytest.raises(InputError, match="F8_E4M3: known are F64"):
        safetensors_file(tmp_path / "m.safetensors")


def test_an_honest_header_is_read(tmp_path):
    numbers = np.arange(16, dtype=np.float32)
    (tmp_path / "m.safetensors").write_bytes(lying(entry(), numbers.tobytes()))
    np.testing.assert_array_equal(
        safetensors_file(tmp_path / "m.safetensors")["w"].load(), numbers.reshape(4, 4)
    )


def test_fuzz(tmp_path):
    save_file(ARRAYS | {"half": np.ones((3, 2), np.float16)}, tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()

    @SEVERAL
    @given(damaged(whole))
    def check(data):
        refused_or_read(tmp_path / "m.safetensors", data, safetensors_file)

    check()


@pytest.mark.parametrize("whole", [False, True])
def test_safetensors_are_read_where_the_library_reads_them_and_alike(tmp_path, whole):
    """Files as the library writes them, and damaged ones."""
    kinds = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U8", "BOOL")
    rng, path = np.random.default_rng(0), tmp_path / "m.safetensors"
    arrays = {kind: np.ones((40, 3), np.dtype(PLAIN[kind])) for kind in kinds}
    read = []

    def compare(data):
        path.write_bytes(data)
        try:
            theirs = safetensors.numpy.load(data)
        except (safetensors.SafetensorError, ValueError, KeyError, UnicodeDecodeError):
            theirs = None
        try:
            ours = {name: tensor.load() for name, tensor in safetensors_file(path).items()}
        except InputError as error:
            assert theirs is None or "known are" in str(error)
            read.append(False)
            return
        assert theirs is not None and set(ours) == set(theirs)
        for name, array in theirs.items():
            kind = np.int64 if array.dtype.kind in "iub" else np.float32
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(ours[name], array.astype(kind), err_msg=name)
        read.append(True)

    @SEVERAL
    @given(st.dictionaries(st.text(max_size=5), st.sampled_from(kinds)))
    def compare_whole(names):
        some = {name: arrays[kind][: rng.integers(3)] for name, kind in names.items()}
        compare(safetensors.numpy.save(some))

    @SEVERAL
    @given(damaged(safetensors.numpy.save(arrays)))
    def compare_damaged(data):
        compare(data)

    (compare_whole if whole else compare_damaged)()
    assert any(read) and (all(read) or not whole)


def test_importing_the_package_imports_no_reader():
    readers = ("safetensors", "tokenizers", "gguf", "jax")
    code = f"import attlas.audit, sys; print([m for m in {readers} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_stored_models_are_read():
    assert set(read_checkpoint(DATA / "gpt2").tensors) > {"transformer.wte.weight"}


def test_a_header_beyond_the_limit_is_refused_before_it_is_read(tmp_path):
    from attlas.audit.tensors import MAX_HEADER_BYTES

    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}")
    with pytest.raises(InputError, match=f"there are at most {MAX_HEADER_BYTES}"):
        read_checkpoint(tmp_path / "m.safetensors")
    with (tmp_path / "m.gguf").open("wb") as file:  # one string of 65 MiB, which takes no disk
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 65 * 2**20))
        file.truncate(70 * 2**20)
    with pytest.raises(InputError, match=f"more than {MAX_HEADER_BYTES}"):
        read_checkpoint(tmp_path / "m.gguf")


def test_names_in_messages_are_cut_and_escaped():
    name = "\x1b[2J\u202e" + "x" * 10_000
    with pytest.raises(InputError) as refused:
        read_checkpoint({name: "words"}, config={})
    assert "\x1b" not in str(refused.value) and r"\x1b[2J\u202e" in str(refused.value)
    assert len(str(refused.value)) < 300


class LikeTorch:
    """What a tensor of torch offers, in bfloat16, which NumPy cannot hold."""

    dtype = "torch.bfloat16"

    def __init__(self, array):
        self.array, self.shape = np.asarray(array, np.float32), np.shape(array)

    def detach(self):
        return self

    cpu = detach

    def element_size(self):
        return 2

    def numel(self):
        return self.array.size

    def __getitem__(self, rows):
        return LikeTorch(self.array[rows])

    def float(self):
        return self.array

    def __array__(self, *args, **kwargs):
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_a_module_with_its_config_is_read_where_it_is(tmp_path):
    from attlas.audit.architectures import as_model

    kept = read_checkpoint(DATA / "bert")

    class Config:
        def to_dict(self):
            return dict(kept.config) | {"_name_or_path": str(tmp_path)}

    class Module:
        config = Config()

        def state_dict(self):
            return {name: LikeTorch(tensor.load()) for name, tensor in kept.tensors.items()}

    model = as_model(Module())
    np.testing.assert_array_equal(model.layer(1)["query"], as_model(kept).layer(1)["query"])
    assert model.checkpoint.folder == tmp_path  # where its tokenizer would lie
    as_model(Module().state_dict(), config=Config())
    with pytest.raises(InputError, match="the config is a int"):
        read_checkpoint(Module(), config=3)
    with pytest.raises(InputError, match="int is no model"):
        read_checkpoint(3)


def test_a_name_on_the_hub_is_looked_for_in_the_cache_and_never_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="Nothing is downloaded: `hf download org/name`"):
        read_checkpoint("org/name")
    place = tmp_path / "models--org--name" / "snapshots" / "abc"
    place.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (place / name).write_bytes((DATA / "bert" / name).read_bytes())
    assert read_checkpoint("org/name").name == "org/name"
