"""Texts become the tokens that the model was trained on, and a text that cannot is said so."""

import numpy as np
import pytest

from attlas import InputError
from attlas.audit.texts import (
    MAX_TEXTS,
    check_token_ids,
    default_texts,
    encode,
    pad_tokens,
    read_ids,
    read_lines,
    read_tokens,
    truncate,
)
from tests.audit.conftest import IDS, WORDS, bert_with, model_of, vocabulary


def test_tokens_are_padded_on_the_right_and_split_into_batches():
    tokens = pad_tokens([[5, 6, 7], [8], [9, 10]])
    assert tokens.ids.shape == (3, 8)
    np.testing.assert_array_equal(tokens.mask.sum(1), [3, 1, 2])
    np.testing.assert_array_equal(tokens.positions[0, :4], [0, 1, 2, 0])
    assert tokens.pieces[0] == ("5", "6", "7")
    parts = tokens.split(2)
    assert [part.ids.shape for part in parts] == [(2, 8), (1, 8)]
    assert parts[1].pieces == (("9", "10"),)


@pytest.mark.parametrize("ids", [[], [[]], [[1], []], [[-1]], [["a"]], [[True]], [[2**40]]])
def test_token_ids_that_are_none_are_refused(ids):
    with pytest.raises(InputError, match="token"):
        pad_tokens(ids)
    for wrong in ([1, 2], 3):
        with pytest.raises(InputError, match="a list of whole numbers for each text"):
            check_token_ids(wrong)


def test_empty_and_overlong_texts_are_refused(tmp_path):
    model = bert_with(tmp_path, vocab_txt=vocabulary(WORDS))
    for texts in ([], [""], ["cat", " \n"]):
        with pytest.raises(InputError, match="empty"):
            encode(model, texts)
    with pytest.raises(InputError, match=r"text 2 has 22 tokens: .* at most 20"):
        encode(model, ["cat", "cat " * 20])


def test_long_texts_are_cut_where_that_is_asked_for(tmp_path):
    model = bert_with(tmp_path, vocab_txt=vocabulary(WORDS))
    for most, kept in ((5, 5), (50, 20)):  # the model takes 20
        tokens = encode(model, ["cat", "cat " * 30], most)
        assert tokens.mask.sum(1).tolist() == [3, kept] and len(tokens.pieces[1]) == kept


def test_what_is_too_long_is_cut_and_said():
    model = model_of("llama")
    found, skipped = truncate(model, [[1] * 80] + [[2, 3]] * MAX_TEXTS)
    assert found.ids.shape == (MAX_TEXTS, 64) and len(found.pieces[0]) == 64
    assert skipped == [
        "1 of 65 texts: the first 64 are read.",
        "The ends of 1 texts: the first 64 tokens are read.",
    ]


def test_long_lines_are_cut_and_not_refused(tmp_path):
    words = ["[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(57)), "##x"]
    model = bert_with(tmp_path, vocab_txt="\n".join(words))
    found, skipped = read_tokens(model, ["w1 " * 300] * 2 + ["w2"] * MAX_TEXTS, None)
    assert found.ids.shape == (MAX_TEXTS, 20) and len(found.pieces[0]) == 20
    assert skipped == [
        "2 of 66 texts: the first 64 are read.",
        "The ends of 2 texts: the first 20 tokens are read.",
    ]


def test_the_default_text_is_english_in_short_lines():
    assert len(default_texts()) == 32 and all(20 < len(line) < 100 for line in default_texts())


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"\n  \n", "is empty"), (b"caf\xe9 au lait", "UTF-8")],
)
def test_texts_that_cannot_be_read_are_refused(tmp_path, content, words):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_tokens(model_of("bert"), tmp_path / "text.txt", None)
    with pytest.raises(InputError, match="cannot be read"):
        read_lines(tmp_path / "nothing.txt")


def test_token_ids_are_read_from_a_file(tmp_path):
    (tmp_path / "ids.txt").write_text("1 2 3\n\n4, 5\n")
    assert read_ids(tmp_path / "ids.txt") == [[1, 2, 3], [4, 5]]
    (tmp_path / "ids.txt").write_text("1 2\n3 -4\n")
    with pytest.raises(InputError, match="line 2"):
        read_ids(tmp_path / "ids.txt")
    # Python does not convert numbers of so many digits.
    (tmp_path / "ids.txt").write_text("1 2\n" + "7" * 5000)
    with pytest.raises(InputError, match=r"line 2 .* at most 10 digits"):
        read_ids(tmp_path / "ids.txt")


def test_texts_and_tokens_exclude_each_other():
    with pytest.raises(InputError, match="one of them"):
        read_tokens(model_of("bert"), ["a"], IDS)
