"""Texts as token ids, by the tokenizer that comes with the weights.

tokens = encode(model, ["One example.", "Another."])     # Tokens: .ids .mask .types .positions [b, n], .pieces
tokens = tokens_of([[101, 2023, 102]])                   # where there is no tokenizer
tokens.split(8)                                          # batches of at most 8 texts, of one length
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int

from attlas.audit.architectures import Model
from attlas.audit.checkpoints import read_json
from attlas.audit.quantised import words_of
from attlas.audit.tensors import library
from attlas.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL = 3
"""The type of special tokens in a .gguf."""
WORDS_AND_NUMBERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama 3 and Qwen2 cut a text before pairs of bytes are merged."""


@dataclass(frozen=True)
class Tokens:
    """Token ids padded on the right. `pieces` are the tokens of each text as strings, without padding."""

    ids: Int[np.ndarray, "b n"]
    mask: Bool[np.ndarray, "b n"]
    types: Int[np.ndarray, "b n"]
    positions: Int[np.ndarray, "b n"]
    pieces: tuple[tuple[str, ...], ...]

    def split(self, size: int) -> "list[Tokens]":
        """Batches of at most `size` texts, all of the same length."""
        parts = (slice(i, i + size) for i in range(0, len(self.ids), size))
        return [
            Tokens(self.ids[p], self.mask[p], self.types[p], self.positions[p], self.pieces[p])
            for p in parts
        ]


def rows_of(ids: Any) -> list[list[int]]:
    """Token ids of several texts as lists, each checked."""
    try:
        rows = [list(row) for row in ids]
    except TypeError as error:
        raise InputError(
            f"the tokens are {str(ids)[:60]}: there must be a list of whole numbers for each text"
        ) from error
    if not all(rows) or not rows:
        raise InputError(
            "a text has no tokens: there must be a text, and at least one token in each"
        )
    for row in rows:
        for entry in row:
            if (
                isinstance(entry, bool)
                or not isinstance(entry, int | np.integer)
                or not 0 <= entry < 2**31
            ):
                raise InputError(f"{entry!r} is no token: tokens are whole numbers from 0 on")
    return rows


def tokens_of(
    ids: Sequence[Sequence[Any]],
    pieces: Sequence[Sequence[str]] | None = None,
    multiple: int = 8,
    most: int | None = None,
) -> Tokens:
    """Token ids of several texts, the first `most` of each, padded; the length is rounded up to a `multiple`, so that few shapes are compiled."""
    rows = [row[:most] for row in rows_of(ids)]
    length = -(-max(map(len, rows)) // multiple) * multiple
    padded = np.zeros((len(rows), length), np.int64)
    mask = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
        mask[i, : len(row)] = True
    words = (
        [list(map(str, row)) for row in rows]
        if pieces is None
        else [words[:most] for words in pieces]
    )
    return Tokens(
        padded, mask, np.zeros_like(padded), np.arange(length) * mask, tuple(map(tuple, words))
    )


def encode(model: Model, texts: Sequence[str], most: int | None = None) -> Tokens:
    """Texts as tokens of the model, with the special tokens that it expects around them. A text that is longer than the model takes is refused,
    or cut where `most` says how many tokens of each are wanted."""
    ids, pieces = spelled(model, texts)
    if most is not None:
        return tokens_of(ids, pieces, most=min(most, model.longest or most))
    for number, row in enumerate(ids, 1):
        if model.longest is not None and len(row) > model.longest:
            raise InputError(
                f"text {number} has {len(row)} tokens: {model.name} takes at most {model.longest}"
            )
    return tokens_of(ids, pieces)


def spelled(model: Model, texts: Sequence[str]) -> tuple[list[list[int]], list[list[str]]]:
    """Token ids of texts of any length, and the tokens as strings."""
    if not texts or not all(text.strip() for text in texts):
        raise InputError("the text is empty: there must be at least one example, and no blank ones")
    known = tokenizer(model)
    try:
        found = known.encode_batch(list(texts))
    except Exception as error:  # of a vocabulary that lacks what its own tokenizer asks for
        raise InputError(f"the tokenizer of {model.name} cannot cut the text: {error}") from error
    return [entry.ids for entry in found], [entry.tokens for entry in found]


def tokenizer(model: Model) -> "Tokenizer":
    """The tokenizer of the model: `tokenizer.json`, the metadata of a .gguf, or the vocabulary of an older model.

    Padding and truncation, which some files switch on, are off.
    """
    tokenizers = library("tokenizers")
    folder, config = model.checkpoint.folder, model.checkpoint.config
    try:
        if folder is not None and (folder / "tokenizer.json").is_file():
            found = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        elif "tokenizer.ggml.model" in config:
            found = _from_metadata(model.name, config)
        else:
            found = _from_vocabulary(model, folder)
        found.no_padding()
        found.no_truncation()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the tokenizer of {model.name} cannot be read: {error}") from error
    return found


def _from_metadata(name: str, metadata: Mapping[str, Any]) -> "Tokenizer":
    """Pairs of bytes merged in turn, as the metadata of a .gguf lists them."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    kind, cut = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "default")
    whole, parts = pre_tokenizers.ByteLevel(False), pre_tokenizers.ByteLevel(False, use_regex=False)

    def by_pattern(digits: str) -> list[Any]:
        return [
            pre_tokenizers.Split(Regex(WORDS_AND_NUMBERS.replace("DIGITS", digits)), "isolated"),
            parts,
        ]

    cuts: dict[str, list[Any]] = {
        "default": [whole],
        "gpt-2": [whole],
        "smollm": [pre_tokenizers.Digits(True), whole],
        "llama-bpe": by_pattern("{1,3}"),
        "qwen2": by_pattern(""),
    }
    if kind != "gpt2" or cut not in cuts:
        raise InputError(
            f"the tokenizer of {name} is {kind!r} cut by {cut!r}: known is 'gpt2' cut by {', '.join(cuts)};"
            " a tokenizer.json beside the file is read, and token ids can be given instead"
        )
    words = words_of(metadata, "tokenizer.ggml.tokens")
    merges = [_pair(line) for line in words_of(metadata, "tokenizer.ggml.merges")]
    found = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    found.pre_tokenizer = pre_tokenizers.Sequence(cuts[cut])
    found.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or []
    found.add_special_tokens(
        [
            AddedToken(word, special=True)
            for word, type in zip(words, types, strict=False)
            if type == CONTROL
        ]
    )
    first = metadata.get("tokenizer.ggml.bos_token_id")
    if (
        metadata.get("tokenizer.ggml.add_bos_token")
        and isinstance(first, int)
        and first < len(words)
    ):
        _frame(found, [words[first]], [])
    return found


def _from_vocabulary(model: Model, folder: Path | None) -> "Tokenizer":
    """The tokenizers of older folders: `vocab.txt` (also one folder up), or `vocab.json` with `merges.txt`."""
    for place in (folder, folder.parent) if folder is not None else ():
        if (place / "vocab.txt").is_file():
            words = (place / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
            if len(words) == model.vocabulary:
                return _word_pieces(words, place)
    if (
        folder is not None
        and (folder / "vocab.json").is_file()
        and (folder / "merges.txt").is_file()
    ):
        return _byte_pairs(folder)
    raise InputError(
        f"{model.name} has no tokenizer: looked for tokenizer.json, vocab.txt with {model.vocabulary} lines, and vocab.json with"
        " merges.txt; token ids can be given instead"
    )


def _word_pieces(words: Sequence[str], folder: Path) -> "Tokenizer":
    """Words cut into pieces, of which all but the first begin with ##. A vocabulary without such pieces is no vocabulary of words
    but of a notation, such as that of molecules or proteins: it is cut at its own entries, the longest first, a bracket counting
    as one."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {word.removesuffix("\r"): i for i, word in enumerate(words)}
    if any(word.startswith("##") for word in vocabulary):
        settings = folder / "tokenizer_config.json"
        lower = read_json(settings).get("do_lower_case", True) if settings.is_file() else True
        found = Tokenizer(
            models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
        )
        found.normalizer = normalizers.BertNormalizer(lowercase=bool(lower))
        found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        entries = sorted((word for word in vocabulary if word), key=len, reverse=True)
        brackets = [word for word in entries if word.startswith("[")]
        others = [word for word in entries if not word.startswith("[")]
        pattern = "|".join(
            [*map(_literal, brackets), r"\[[^\[\]]*\]", *map(_literal, others), r"\S"]
        )
        found = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        found.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.WhitespaceSplit(),
                pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
            ]
        )
    _frame(found, ["[CLS]"], ["[SEP]"])
    return found


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _literal(word: str) -> str:
    """A word as a pattern that matches it."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in word)


def _byte_pairs(folder: Path) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = read_json(folder / "vocab.json")
    lines = (folder / "merges.txt").read_text("utf-8").split("\n")
    merges = [_pair(line) for line in lines if line and not line.startswith("#version")]
    found = Tokenizer(models.BPE(vocabulary, merges))
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    _frame(found, ["<s>"], ["</s>"])
    return found


def _frame(tokenizer: "Tokenizer", before: list[str], after: list[str]) -> None:
    """Special tokens around each text, where the vocabulary has them."""
    from tokenizers import processors

    special = [(word, tokenizer.token_to_id(word)) for word in (*before, *after)]
    if all(number is not None for _, number in special):
        tokenizer.add_special_tokens([word for word, _ in special])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=special
        )
