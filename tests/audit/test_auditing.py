"""An audit holds what was asked for, says what it left out, and refuses what it cannot do."""

import inspect
import json

import numpy as np
import pytest
from pytest import approx

import attlas
from attlas import InputError
from attlas.audit import gallery
from attlas.audit.auditing import as_json, audit_model, compare, quantiles
from attlas.audit.checkpoints import read_checkpoint
from attlas.audit.heads import measure_weights
from attlas.audit.quantities import FROM_TEXT, FROM_WEIGHTS
from tests.audit.conftest import DATA, IDS, arrays_of, changed, model_of


@pytest.fixture(scope="module")
def audited():
    return audit_model(DATA / "bert", tokens=IDS, probes="none")


def test_an_audit_holds_every_quantity_beside_its_references(audited):
    assert {*FROM_WEIGHTS, *FROM_TEXT} <= set(audited.heads.data_vars)
    assert dict(audited.heads.sizes)["layer"] == 2 and dict(audited.heads.sizes)["head"] == 4
    for name in (*FROM_WEIGHTS, *FROM_TEXT):
        assert name in audited.references["random"], name
    assert set(audited.layers) == set(audited.reference_layers["random"])
    assert "log10_nats" in audited.reference_layers["all-MiniLM-L6-v2"]
    for distance in audited.hypotheses:
        assert set(distance.beside) == {"random", "all-MiniLM-L6-v2"}, distance.hypothesis
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
    arrays = arrays_of(checkpoint)
    found = attlas.audit_model(arrays, config=checkpoint.config, tokens=IDS, probes="none")
    assert found.name == "in memory"
    assert found.heads.single_location.values == approx(audited.heads.single_location.values)
    with pytest.raises(InputError, match="config"):
        attlas.audit_model(arrays)


def test_a_model_of_images_has_its_weights_measured_and_reads_no_text(tmp_path):
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
        audit_model(DATA / "vit", text=["a"])


def test_a_model_without_tokenizer_has_its_weights_measured_unless_a_text_was_asked_for():
    found = audit_model(DATA / "gpt2")
    assert "no tokenizer" in found.skipped[0] and "content" not in found.heads
    with pytest.raises(InputError, match="no tokenizer"):
        audit_model(DATA / "gpt2", text=["a text"])


def test_comparing_an_audit_with_another(audited):
    other = audit_model(model_of("bert").reinitialised(3), tokens=IDS, probes="none")
    found = compare(audited, other)
    assert found.heads.qk_21.values == approx(other.heads.qk_21.values - audited.heads.qk_21.values)
    assert compare(audited, audited).heads.qk_21.values == approx(0)
    assert len(found.summary) == 3 and "single-location" in found.summary[2]
    json.dumps(found.to_dict(), allow_nan=False)
    apart = compare(audited, audit_model(DATA / "vit"))
    assert "different architectures" in apart.summary[0] and not apart.heads.data_vars


def test_a_head_of_zeros_is_a_defect_and_no_finding():
    name = "encoder.layer.1.attention.attention.query"
    empty = changed("vit", **{f"{name}.weight": np.zeros((16, 16)), f"{name}.bias": np.zeros(16)})
    found = audit_model(empty, probes="none")
    assert "A defect" in found.summary[1] and "(1, 0)" in found.summary[1]


@pytest.mark.parametrize("name", ["olmo2", "mixtral", "gemma3", "falcon", "deberta", "t5"])
def test_every_kind_of_architecture_is_audited(name, tmp_path):
    found = audit_model(DATA / name, tokens=IDS, probes="none")
    for quantity in (*FROM_WEIGHTS, *FROM_TEXT):
        assert np.isfinite(found.heads[quantity]).all(), quantity
    assert np.isfinite(found.layers.log10_nats).all()
    assert not any("defect" in sentence for sentence in found.summary)
    found.save(tmp_path / "page.html")
    parts = " ".join(found.skipped)
    assert ("projections" in parts) == (name in ("olmo2", "gemma3"))
    assert ("experts" in parts) == (name == "mixtral")
    assert ("T5 decoder" in parts) == (name == "t5")


def test_the_stored_reference_is_that_of_minilm():
    found, layers, probed = (gallery.read("minilm")[part] for part in ("heads", "layers", "probes"))
    assert dict(found.sizes) == {"layer": 6, "head": 12}
    assert {*FROM_WEIGHTS, *FROM_TEXT, "kind"} == set(found.data_vars)
    assert float(found.largest[0, 2]) > 0.99 and float(found.single_location[0, 2]) < 0.01
    assert {"apart", "token_overlap", "log10_nats", "log10_lipschitz_stretched"} <= set(
        layers.data_vars
    )
    assert (
        dict(probed.sizes) == {"pool": 2, "layer": 7, "set": 5, "block": 6, "head": 12}
        and float(probed.accuracy[0, -1, 0]) > 0.95
        and 0 < float(probed.certified.min()) < 0.3
    )


def test_the_stored_reference_is_what_an_audit_of_minilm_finds(minilm_behaviour):
    model, seen = minilm_behaviour
    found, stored = measure_weights(model).assign(seen.data_vars), gallery.read("minilm")["heads"]
    for name in ("qk_spectral", "ov_21", "log10_nats", "single_location", "content", "entropy"):
        assert found[name].values == approx(stored[name].values, rel=2e-3, abs=2e-4), name


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="probes = 'all'"):
        audit_model(DATA / "bert", probes="all")
    for seed in (-1, 2**33, True):
        with pytest.raises(InputError, match=f"seed = {seed}: it must be a whole number from 0"):
            audit_model(DATA / "bert", seed=seed)
    unchecked = inspect.unwrap(audit_model)  # without the type checker of the tests
    for texts in ([1, 2], 3, b"abc"):
        with pytest.raises(InputError, match="is no text"):
            unchecked(DATA / "bert", text=texts)
    for tokens in ([1, 2, 3], 4):
        with pytest.raises(InputError, match="a list of whole numbers for each text"):
            unchecked(DATA / "bert", tokens=tokens)
    with pytest.raises(InputError, match="none of the 61 tokens"):
        audit_model(DATA / "bert", tokens=[[1, 2, 3, 4, 5, 99]])


def test_what_is_not_a_number_is_none():
    assert as_json({"a": np.array([1.0, np.nan, np.inf]), "b": np.int64(3), "c": "word"}) == {
        "a": [1.0, None, None],
        "b": 3,
        "c": "word",
    }


def test_a_spread_is_of_the_numbers_that_there_are(audited):
    spread = quantiles(audited.heads[["qk_21"]])
    assert spread["qk_21"][2] == approx(float(audited.heads.qk_21.median()), rel=1e-5)
