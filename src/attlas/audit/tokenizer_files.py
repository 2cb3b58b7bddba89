"""The tokenizer that comes with the weights, read or rebuilt from the files of a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attlas.audit.architectures import Model
from attlas.audit.checkpoints import read_json
from attlas.audit.tensors import import_extra
from attlas.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL = 3
"""The type of special tokens in a .gguf."""
WORDS_AND_NUMBERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen2 split a text before byte pairs are merged."""


def read_tokenizer(model: Model) -> "Tokenizer":
    """The tokenizer of a model.

    From `tokenizer.json`, the metadata of a .gguf, or the vocabulary of an older model, in this
    order. Padding and truncation, which some files switch on, are off.
    """
    tokenizers = import_extra("tokenizers")
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
    except Exception as error:  # the bindings raise Exception itself
        raise InputError(f"the tokenizer of {model.name} cannot be read: {error}") from error
    return found


def _from_metadata(name: str, metadata: Mapping[str, Any]) -> "Tokenizer":
    """Byte-pair encoding, as the metadata of a .gguf describes it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    kind, cut = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "default")
    words = pre_tokenizers.ByteLevel(False)
    letters = pre_tokenizers.ByteLevel(False, use_regex=False)

    def split_by_pattern(digits: str) -> list[Any]:
        pattern = Regex(WORDS_AND_NUMBERS.replace("DIGITS", digits))
        return [pre_tokenizers.Split(pattern, "isolated"), letters]

    cuts: dict[str, list[Any]] = {
        "default": [words],
        "gpt-2": [words],
        "smollm": [pre_tokenizers.Digits(True), words],
        "llama-bpe": split_by_pattern("{1,3}"),
        "qwen2": split_by_pattern(""),
    }
    if kind != "gpt2" or cut not in cuts:
        raise InputError(
            f"the tokenizer of {name} is {kind!r} cut by {cut!r}: known is 'gpt2' cut by"
            f" {', '.join(cuts)}; a tokenizer.json beside the file is read, and token ids can be"
            " given instead"
        )
    vocabulary = _strings(metadata.get("tokenizer.ggml.tokens"))
    lines = _strings(metadata.get("tokenizer.ggml.merges"))
    merges = [line.partition(" ")[::2] for line in lines]
    found = Tokenizer(models.BPE({word: i for i, word in enumerate(vocabulary)}, merges))
    found.pre_tokenizer = pre_tokenizers.Sequence(cuts[cut])
    found.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or []
    special = [word for word, type in zip(vocabulary, types, strict=False) if type == CONTROL]
    found.add_special_tokens([AddedToken(word, special=True) for word in special])
    first: Any = metadata.get("tokenizer.ggml.bos_token_id")
    known = isinstance(first, int) and first < len(vocabulary)
    if known and metadata.get("tokenizer.ggml.add_bos_token"):
        _add_special_tokens(found, [vocabulary[first]], [])
    return found


def _strings(values: Any) -> list[str]:
    """A list of strings of the metadata; empty where it is none."""
    valid = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return values if valid else []


def _from_vocabulary(model: Model, folder: Path | None) -> "Tokenizer":
    """From `vocab.txt` (also one folder up), or `vocab.json` with `merges.txt`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    for place in (folder, folder.parent) if folder is not None else ():
        if (place / "vocab.txt").is_file():
            words = (place / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
            if len(words) == model.vocabulary:
                return _word_pieces([word.removesuffix("\r") for word in words], place)
    pair = ("vocab.json", "merges.txt")
    if folder is not None and all((folder / name).is_file() for name in pair):
        found = Tokenizer(models.BPE.from_file(*(str(folder / name) for name in pair)))
        found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
        _add_special_tokens(found, ["<s>"], ["</s>"])
        return found
    raise InputError(
        f"{model.name} has no tokenizer: looked for tokenizer.json, vocab.txt with"
        f" {model.vocabulary} lines, and vocab.json with merges.txt; token ids can be given instead"
    )


def _word_pieces(words: Sequence[str], folder: Path) -> "Tokenizer":
    """Words split into pieces, of which all but the first begin with ##.

    A vocabulary without such pieces is that of a notation, such as molecules or proteins: texts are
    split at its entries, the longest first, where a bracket counts as one.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(words)}
    if any(word.startswith("##") for word in vocabulary):
        settings = folder / "tokenizer_config.json"
        lower = read_json(settings).get("do_lower_case", True) if settings.is_file() else True
        found = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        found.normalizer = normalizers.BertNormalizer(lowercase=bool(lower))
        found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        entries = sorted((word for word in vocabulary if word), key=len, reverse=True)
        brackets = [_literal(word) for word in entries if word.startswith("[")]
        others = [_literal(word) for word in entries if not word.startswith("[")]
        pattern = Regex("|".join([*brackets, r"\[[^\[\]]*\]", *others, r"\S"]))
        found = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        by_pattern = pre_tokenizers.Split(pattern, "removed", invert=True)
        found.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), by_pattern]
        )
    _add_special_tokens(found, ["[CLS]"], ["[SEP]"])
    return found


def _literal(word: str) -> str:
    """A regular expression that matches `word` alone."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in word)


def _add_special_tokens(tokenizer: "Tokenizer", before: list[str], after: list[str]) -> None:
    """Put special tokens around each text, if the vocabulary has them."""
    from tokenizers import processors

    special = [(word, tokenizer.token_to_id(word)) for word in (*before, *after)]
    if all(number is not None for _, number in special):
        tokenizer.add_special_tokens([word for word, _ in special])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=special
        )
