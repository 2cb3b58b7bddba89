"""Texts as token ids, padded into arrays.

tokens = encode(model, ["One example."])      # .ids .mask .positions [b, n], .pieces
tokens = pad_tokens([[101, 2023, 102]])       # from token ids, where there is no tokenizer
tokens.split(8)                               # batches of at most 8 texts, of one length
tokens, skipped = read_tokens(model, texts, ids)     # what an audit reads, and what it leaves
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from attlas.audit import tokenizer_files
from attlas.audit.architectures import Model
from attlas.audit.tensors import import_extra, read_small_file
from attlas.errors import InputError

MAX_TEXTS, MAX_TOKENS = 64, 128
"""An audit reads so many texts, and so many tokens of each."""
MAX_TEXT_BYTES = 16 * 2**20
MAX_DIGITS = 10
"""Of a token id in a file: Python refuses to convert very long numbers."""
MAX_UNKNOWN = 0.3
"""The default text is not read to a model to whom a larger share of its tokens is unknown."""
LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class Tokens:
    """Token ids padded on the right; `pieces` are the tokens as strings, without padding."""

    ids: Int[np.ndarray, "b n"]
    mask: Bool[np.ndarray, "b n"]
    positions: Int[np.ndarray, "b n"]
    pieces: tuple[tuple[str, ...], ...]

    def split(self, size: int) -> "list[Tokens]":
        """Batches of at most `size` texts, all padded to the same length."""
        return [self._take(slice(i, i + size)) for i in range(0, len(self.ids), size)]

    def first(self, count: int) -> "Tokens":
        """The first `count` texts, without padding that none of them needs."""
        return self._take(slice(count), _round_up(int(self.mask[:count].sum(1).max())))

    def _take(self, texts: slice, length: int | None = None) -> "Tokens":
        ids, mask, positions = (x[texts, :length] for x in (self.ids, self.mask, self.positions))
        return Tokens(ids, mask, positions, self.pieces[texts])


def _round_up(length: int, multiple: int = LENGTH_MULTIPLE) -> int:
    return -(-length // multiple) * multiple


def pad_tokens(
    ids: Sequence[Sequence[Any]],
    pieces: Sequence[Sequence[str]] | None = None,
    multiple: int = LENGTH_MULTIPLE,
    longest: int | None = None,
) -> Tokens:
    """Token ids of several texts as padded arrays.

    Arguments:
        pieces: the tokens as strings; the ids are used without them.
        multiple: the length is rounded up to a multiple of this, so that few shapes are compiled.
        longest: of each text so many tokens are kept; all of them unless given.
    """
    rows = [row[:longest] for row in check_token_ids(ids)]
    length = _round_up(max(map(len, rows)), multiple)
    places = np.arange(min(length, longest or length))
    mask = places < np.array([[len(row)] for row in rows])
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate(rows)
    words = [map(str, row) for row in rows] if pieces is None else [row[:longest] for row in pieces]
    return Tokens(padded, mask, places * mask, tuple(map(tuple, words)))


def check_token_ids(ids: Any) -> list[list[int]]:
    """Token ids of several texts as lists; anything else is an `InputError`."""
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
    for entry in (entry for row in rows for entry in row):
        whole = isinstance(entry, int | np.integer) and not isinstance(entry, bool)
        if not whole or not 0 <= entry < 2**31:
            raise InputError(f"{entry!r} is no token: tokens are whole numbers from 0 on")
    return rows


def encode(model: Model, texts: Sequence[str], longest: int | None = None) -> Tokens:
    """Texts as tokens of the model, with the special tokens that it expects around them.

    A text that is longer than the model takes is refused, unless `longest` says how many tokens of
    each text to keep.
    """
    ids, pieces = tokenise(model, texts)
    if longest is not None:
        return pad_tokens(ids, pieces, longest=min(longest, model.longest or longest))
    for number, row in enumerate(ids, 1):
        if model.longest is not None and len(row) > model.longest:
            raise InputError(
                f"text {number} has {len(row)} tokens: {model.name} takes at most {model.longest}"
            )
    return pad_tokens(ids, pieces)


def tokenise(model: Model, texts: Sequence[str]) -> tuple[list[list[int]], list[list[str]]]:
    """Token ids of texts of any length, and the tokens as strings."""
    if not texts or not all(text.strip() for text in texts):
        raise InputError("the text is empty: there must be at least one example, and no blank ones")
    import_extra("tokenizers")
    return tokenizer_files.tokenise(tokenizer_source(model), texts)


def tokenizer_source(model: Model) -> tokenizer_files.Source:
    """Where the tokenizer of a model comes from."""
    folder, config = model.checkpoint.folder, model.checkpoint.config
    metadata = {key: value for key, value in config.items() if key.startswith("tokenizer.")}
    place = None if folder is None else str(folder.resolve())
    return tokenizer_files.Source(model.name, place, model.vocabulary, metadata)


def read_tokens(model: Model, texts: Any, ids: Any) -> tuple[Tokens | None, list[str]]:
    """The tokens that an audit reads to a model, and what was left out and why.

    A text that was asked for and cannot be read is an error; the default text is left out then.

    Arguments:
        texts: lines of text, or a file of them; the default text without it and `ids`.
        ids: token ids in place of texts.
    """
    if model.vocabulary is None:
        if texts is not None or ids is not None:
            raise InputError(f"{model.name} takes images: there is nothing to read it a text with")
        return None, ["Everything that needs a text: this model takes images. Weights only."]
    if ids is not None:
        if texts is not None:
            raise InputError("texts and tokens are given: there must be one of them")
        return truncate(model, check_token_ids(ids))
    if texts is not None:
        lines = read_lines(texts) if isinstance(texts, str | Path) else texts
        lines = list(lines) if isinstance(lines, Iterable) else [lines]
        for text in lines:
            if not isinstance(text, str):
                raise InputError(
                    f"{text!r} is no text: texts are strings, or the path of a file of them"
                )
        return truncate(model, *tokenise(model, lines[:MAX_TEXTS]), total=len(lines))
    try:
        ids, pieces = tokenise(model, default_texts())
    except InputError as error:
        return None, [f"Everything that needs a text: {error}."]
    unknown = np.mean([piece in ("[UNK]", "<unk>") for row in pieces for piece in row])
    if unknown > MAX_UNKNOWN:
        return None, [
            f"Everything that needs a text: its tokenizer does not know {unknown:.0%} of the"
            " default English text; give one of its own with --text."
        ]
    return truncate(model, ids, pieces)


def truncate(
    model: Model,
    ids: Sequence[Sequence[int]],
    pieces: Sequence[Sequence[str]] | None = None,
    total: int | None = None,
) -> tuple[Tokens, list[str]]:
    """The first `MAX_TOKENS` tokens of the first `MAX_TEXTS` texts, or as many as the model admits.

    Arguments:
        ids: token ids of each text.
        pieces: the tokens as strings; the ids are used without them.
        total: texts that there were, `len(ids)` unless given.

    Returns: the tokens, and sentences that say what was left out.
    """
    total, kept, skipped = total or len(ids), ids[:MAX_TEXTS], []
    if total > MAX_TEXTS:
        skipped.append(f"{total - MAX_TEXTS} of {total} texts: the first {MAX_TEXTS} are read.")
    longest = min(MAX_TOKENS, model.longest or MAX_TOKENS)
    cut = sum(len(row) > longest for row in kept)
    if cut:
        skipped.append(f"The ends of {cut} texts: the first {longest} tokens are read.")
    return pad_tokens(kept, pieces and pieces[:MAX_TEXTS], longest=longest), skipped


@cache
def default_texts() -> tuple[str, ...]:
    """The 32 English sentences that an audit reads where no text is given."""
    file = resources.files("attlas.audit") / "default_text.txt"
    return tuple(file.read_text("utf-8").splitlines())


def read_lines(path: str | Path) -> list[str]:
    """The lines of a text file that are not blank."""
    path = Path(path)
    content = read_small_file(path, "text", MAX_TEXT_BYTES)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is no text in UTF-8: byte {error.start} is {content[error.start]:#x}"
        ) from error
    kept = [line for line in lines if line.strip()]
    if not kept:
        raise InputError(f"{path} is empty: there must be at least one line of text")
    return kept


def read_ids(path: str | Path) -> list[list[int]]:
    """Token ids from a file: one text a line, ids separated by blanks or commas."""
    found = []
    for number, line in enumerate(read_lines(path), 1):
        words = line.replace(",", " ").split()
        if not all(word.isdecimal() and len(word) <= MAX_DIGITS for word in words):
            raise InputError(
                f"line {number} of {path} is {line[:60]!r}: it must be token ids, whole numbers"
                f" from 0 on of at most {MAX_DIGITS} digits"
            )
        found.append([int(word) for word in words])
    return found
