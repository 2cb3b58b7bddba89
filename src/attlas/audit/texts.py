"""Texts as token ids, padded into batches.

tokens = encode(model, ["One example.", "Another."])     # Tokens: .ids .mask .types .positions [b, n], .pieces
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int

from attlas.audit.architectures import Model
from attlas.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Tokens:
    """Token ids padded on the right. `pieces` are the tokens as strings, without padding."""

    ids: Int[np.ndarray, "b n"]
    mask: Bool[np.ndarray, "b n"]
    types: Int[np.ndarray, "b n"]
    positions: Int[np.ndarray, "b n"]
    pieces: tuple[tuple[str, ...], ...] = ()


def tokens_of(ids: Sequence[Sequence[int]], pieces: Sequence[Sequence[str]] = (), multiple: int = 8) -> Tokens:
    """Token ids of several texts as one padded batch; the length is rounded up to a `multiple`, so that few shapes are compiled."""
    if not ids or not all(len(row) for row in ids):
        raise InputError("a text has no tokens: every text must have at least one")
    length = -(-max(map(len, ids)) // multiple) * multiple
    padded = np.zeros((len(ids), length), np.int64)
    mask = np.zeros((len(ids), length), bool)
    for i, row in enumerate(ids):
        padded[i, : len(row)] = row
        mask[i, : len(row)] = True
    positions = np.broadcast_to(np.arange(length), padded.shape) * mask
    return Tokens(padded, mask, np.zeros_like(padded), positions, tuple(map(tuple, pieces)))


def encode(model: Model, texts: Sequence[str]) -> Tokens:
    """Texts as tokens of the model, special tokens included."""
    found = tokenizer(model).encode_batch(list(texts))
    return tokens_of([entry.ids for entry in found], [entry.tokens for entry in found])


def tokenizer(model: Model) -> "Tokenizer":
    """The tokenizer that lies beside the weights, with padding and truncation switched off."""
    from tokenizers import Tokenizer

    folder = model.checkpoint.folder
    assert folder is not None
    found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found.no_padding()
    found.no_truncation()
    return found
