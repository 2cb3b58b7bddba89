"""An audit holds what was asked for, says what it left out and why, and refuses what it cannot do."""

import inspect
import json

import numpy as np
import pytest
from pytest import approx

import attlas
from attlas import InputError
from attlas.audit import behaviour, heads
from attlas.audit.auditing import (
    MOST_TEXTS,
    as_model,
    audit_model,
    compare,
    cut,
    minilm,
    neutral,
    plain,
    read_ids,
    read_lines,
    read_tokens,
    spread_of,
)
from attlas.audit.checkpoints import read_checkpoint
from tests.audit.conftest import DATA

IDS = np.random.default_rng(0).integers(3, 60, (6, 12)).tolist()


@pytest.fixture(scope="module")
def audited():
    return audit_model(DATA / "bert", tokens=IDS, probes="none")


def test_an_audit_holds_every_quantity_beside_its_references(audited):
    assert set(heads.MEANING) | set(behaviour.MEANING) <= set(audited.heads.data_vars)
    assert dict(audited.heads.sizes)["layer"] == 2 and dict(audited.heads.sizes)["head"] == 4
    for name in (*heads.MEANING, *behaviour.MEANING):
        assert name in audited.references["random"], name
    assert (
        set(audited.layers)
        == set(audited.reference_layers["random"])
        == set(audited.reference_layers["MiniLM"])
    )
    for distance in audited.hypotheses:
        assert set(distance.beside) == {"random", "MiniLM"}, distance.hypothesis
    assert audited.example.attention.shape == (2, 4, 12, 12)
    assert audited.example.attention.astype(float).sum(-1) == approx(1, abs=1e-2)
    assert {
        "log10_lipschitz",
        "token_spread",
        "together",
        "apart",
        "log10_lipschitz_stretched",
    } <= set(audited.layers)
    assert audited.capacity["log10_lipschitz_stretched"] == approx(
        float(audited.layers.log10_lipschitz_stretched.sum())
    )
    assert any("not asked for" in reason for reason in audited.skipped)


def test_the_same_numbers_as_json(audited):
    found = json.loads(json.dumps(audited.to_dict(), allow_nan=False))
    assert found["heads"]["qk_spectral"][1][3] == approx(
        float(audited.heads.qk_spectral[1, 3]), rel=1e-5
    )
    assert found["heads"]["kind"][0][0] in ("sink", "positional", "content", "broad", "mixed")
    assert len(found["references"]["random"]["qk_21"]) == 5
    assert found["facts"]["text"] == {"default": False, "texts": 6, "tokens": 72, "longest": 12}
    assert found["summary"] == audited.summary


def test_weights_in_memory_are_audited_as_those_on_disk(audited):
    checkpoint = read_checkpoint(DATA / "bert")
    arrays = {name: tensor.load() for name, tensor in checkpoint.tensors.items()}
    found = attlas.audit_model(arrays, config=checkpoint.config, tokens=IDS, probes="none")
    assert found.name == "in memory"
    assert found.heads.single_location.values == approx(audited.heads.single_location.values)
    with pytest.raises(InputError, match="config"):
        attlas.audit_model(arrays)


def test_a_model_of_images_is_weighed_and_not_read(tmp_path):
    found = audit_model(DATA / "vit")
    assert "qk_spectral" in found.heads and "content" not in found.heads and found.example is None
    assert (
        "takes images" in found.skipped[0]
        and "same reason" in found.skipped[1]
        and not found.probes
    )
    assert "No text was read" in found.summary[0]
    assert (tmp_path / "page.html") == found.save(tmp_path / "page.html")
    with pytest.raises(InputError, match="takes images"):
        audit_model(DATA / "vit", texts=["a"])


def test_a_model_without_tokenizer_is_weighed_unless_a_text_was_asked_for():
    found = audit_model(DATA / "gpt2")
    assert "no tokenizer" in found.skipped[0] and "content" not in found.heads
    with pytest.raises(InputError, match="no tokenizer"):
        audit_model(DATA / "gpt2", texts=["a text"])


def test_what_is_too_long_is_cut_and_said():
    model = as_model(DATA / "llama")
    found, skipped = cut(model, [[1] * 80] + [[2, 3]] * MOST_TEXTS)
    assert found.ids.shape == (MOST_TEXTS, 64) and len(found.pieces[0]) == 64
    assert skipped == [
        "1 of 65 texts: the first 64 are read.",
        "The ends of 1 texts: the first 64 tokens are read.",
    ]


def test_long_lines_are_cut_and_not_refused(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((DATA / "bert" / name).read_bytes())
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(57)), "##x"])
    )
    found, skipped = read_tokens(as_model(tmp_path), ["w1 " * 300] * 2 + ["w2"] * MOST_TEXTS, None)
    assert found.ids.shape == (MOST_TEXTS, 20) and len(found.pieces[0]) == 20
    assert skipped == [
        "2 of 66 texts: the first 64 are read.",
        "The ends of 2 texts: the first 20 tokens are read.",
    ]


def test_comparing_an_audit_with_another(audited):
    other = audit_model(as_model(DATA / "bert").reinitialised(3), tokens=IDS, probes="none")
    found = compare(audited, other)
    assert found.heads.qk_21.values == approx(other.heads.qk_21.values - audited.heads.qk_21.values)
    assert compare(audited, audited).heads.qk_21.values == approx(0)
    assert len(found.summary) == 3 and "single-location" in found.summary[2]
    json.dumps(found.to_dict(), allow_nan=False)
    apart = compare(audited, audit_model(DATA / "vit"))
    assert "different numbers" in apart.summary[0] or apart.heads.data_vars


def test_the_neutral_text_is_english_in_short_lines():
    assert len(neutral()) == 32 and all(20 < len(line) < 100 for line in neutral())


def test_the_stored_reference_is_that_of_minilm():
    found = minilm()["MiniLM"]
    assert dict(found.sizes) == {"layer": 6, "head": 12}
    assert set(heads.MEANING) | set(behaviour.MEANING) == set(found.data_vars)
    assert float(found.largest[0, 2]) > 0.99 and float(found.single_location[0, 2]) < 0.01
    layers, probed = minilm("layers")["MiniLM"], minilm("probes")["MiniLM"]
    assert {"apart", "token_overlap", "log10_nats", "log10_lipschitz_stretched"} <= set(
        layers.data_vars
    )
    assert (
        dict(probed.sizes) == {"pool": 2, "layer": 7, "set": 5}
        and float(probed.accuracy[0, 1, 0]) > 0.95
    )


def test_the_stored_reference_is_what_an_audit_of_minilm_finds(watched_minilm):
    model, seen = watched_minilm
    found, stored = heads.weigh(model).assign(seen.data_vars), minilm()["MiniLM"]
    for name in ("qk_spectral", "ov_21", "log10_nats", "single_location", "content", "entropy"):
        assert found[name].values == approx(stored[name].values, rel=2e-3, abs=2e-4), name


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"\n  \n", "is empty"), (b"caf\xe9 au lait", "UTF-8")],
)
def test_texts_that_cannot_be_read_are_refused(tmp_path, content, words):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(InputError, match=words):
        audit_model(DATA / "bert", texts=tmp_path / "text.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_lines(tmp_path / "nothing.txt")


def test_token_ids_are_read_from_a_file(tmp_path):
    (tmp_path / "ids.txt").write_text("1 2 3\n\n4, 5\n")
    assert read_ids(tmp_path / "ids.txt") == [[1, 2, 3], [4, 5]]
    (tmp_path / "ids.txt").write_text("1 2\n3 -4\n")
    with pytest.raises(InputError, match="line 2"):
        read_ids(tmp_path / "ids.txt")
    (tmp_path / "ids.txt").write_text(
        "1 2\n" + "7" * 5000
    )  # longer than Python turns into a number
    with pytest.raises(InputError, match=r"line 2 .* at most 10 digits"):
        read_ids(tmp_path / "ids.txt")
    with pytest.raises(InputError, match="none of the 61 tokens"):
        audit_model(DATA / "bert", tokens=[[1, 2, 3, 4, 5, 99]])


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="probes = 'all'"):
        audit_model(DATA / "bert", probes="all")
    for seed in (-1, 2**33, True):
        with pytest.raises(InputError, match=f"seed = {seed}: it must be a whole number from 0"):
            audit_model(DATA / "bert", seed=seed)
    unchecked = inspect.unwrap(audit_model)  # without the type checker of the tests
    for texts in ([1, 2], 3, b"abc"):
        with pytest.raises(InputError, match="is no text"):
            unchecked(DATA / "bert", texts=texts)
    for tokens in ([1, 2, 3], 4):
        with pytest.raises(InputError, match="a list of whole numbers for each text"):
            unchecked(DATA / "bert", tokens=tokens)
    with pytest.raises(InputError, match="one of them"):
        read_tokens(as_model(DATA / "bert"), ["a"], IDS)


def test_what_is_not_a_number_is_none():
    assert plain({"a": np.array([1.0, np.nan, np.inf]), "b": np.int64(3), "c": "word"}) == {
        "a": [1.0, None, None],
        "b": 3,
        "c": "word",
    }


def test_a_spread_is_of_the_numbers_that_there_are(audited):
    spread = spread_of(audited.heads[["qk_21"]])
    assert spread["qk_21"][2] == approx(float(audited.heads.qk_21.median()), rel=1e-5)
