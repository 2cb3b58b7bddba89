"""The tokenizer that comes with the weights, read or rebuilt from the files of a model.

Its library is no match for hostile files: it panics past every handler, aborts the process or
fills the memory. So it runs in a process of its own, which this module is when it is run:

    ids, pieces = tokenise(Source(name, folder, vocabulary, metadata), texts)

`MAX_BYTES` of memory and `MAX_SECONDS` limit that process; whatever ends it is an `InputError`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attlas.errors import InputError
from attlas.escaping import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_BYTES, MAX_SECONDS = 4 * 2**30, 60
"""Address space and time that the process of a tokenizer has."""
MAX_FILE_BYTES, MAX_PIECES = 64 * 2**20, 4_000_000
"""Of a file of a tokenizer, and of the tokens that it makes of all texts."""
CONTROL = 3
"""The type of special tokens in a .gguf."""
WORDS_AND_NUMBERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen2 split a text before byte pairs are merged."""
FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json")


class Source(NamedTuple):
    """Where a tokenizer comes from: the name of its model, the folder with its files, the number of
    tokens, and the metadata of a .gguf whose keys begin with tokenizer."""

    name: str
    folder: str | None
    vocabulary: int | None
    metadata: Mapping[str, Any]


def tokenise(source: Source, texts: Sequence[str]) -> tuple[list[list[int]], list[list[str]]]:
    """Token ids of texts, and the tokens as strings, by a process of its own."""
    stamps = []
    for place in (Path(source.folder), Path(source.folder).parent) if source.folder else ():
        files = (place / name for name in FILES)
        found = [file.stat() for file in files if file.is_file()]
        stamps += [(each.st_mtime_ns, each.st_size) for each in found]
    return _ask(json.dumps([source, list(texts)]), tuple(stamps))


@lru_cache(maxsize=4)  # an audit asks several times for the same
def _ask(question: str, stamps: tuple[tuple[int, int], ...]) -> Any:
    """The answer of the process to a question; files are the same as long as `stamps` are."""
    name = printable(json.loads(question)[0][0])
    settings = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
    try:
        ended = subprocess.run(
            # Without -P, a tokenizers.py in the current folder would be executed.
            [sys.executable, "-P", "-m", "attlas.audit.tokenizer_files"],
            input=question,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=MAX_SECONDS,
            env=os.environ | settings,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"the tokenizer of {name} takes more than {MAX_SECONDS} s: it was stopped"
        ) from error
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        said = printable((ended.stderr.strip().splitlines() or ["nothing was said"])[-1], 200)
        raise InputError(
            f"the tokenizer of {name} cannot be read: its process ended with"
            f" {ended.returncode} ({said})"
        )
    answer = json.loads(lines[-1])
    if "error" in answer:
        raise InputError(answer["error"])
    return answer["ids"], answer["pieces"]


def _answer() -> None:
    """What the process does: a question on stdin, an answer in JSON on stdout."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, texts = json.load(sys.stdin)
    answer: dict[str, Any]
    try:
        ids, pieces = _cut(Source(*source), texts)
        answer = {"ids": ids, "pieces": pieces}
    except InputError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


def _cut(source: Source, texts: Sequence[str]) -> tuple[list[list[int]], list[list[str]]]:
    tokenizer, name = read_tokenizer(source), printable(source.name)
    try:
        found = tokenizer.encode_batch(list(texts))
    except Exception as error:  # the bindings raise Exception itself
        said = printable(error, 200)
        raise InputError(f"the tokenizer of {name} cannot cut the text: {said}") from error
    if sum(len(entry.ids) for entry in found) > MAX_PIECES:
        raise InputError(f"the tokenizer of {name} cuts the text into over {MAX_PIECES} tokens")
    return [entry.ids for entry in found], [entry.tokens for entry in found]


def read_tokenizer(source: Source) -> "Tokenizer":
    """The tokenizer of a model, in this process.

    From `tokenizer.json`, the metadata of a .gguf, or the vocabulary of an older model, in this
    order. Padding and truncation, which some files switch on, are off.
    """
    from tokenizers import Tokenizer

    folder = None if source.folder is None else Path(source.folder)
    try:
        if folder is not None and (folder / "tokenizer.json").is_file():
            found = Tokenizer.from_str(_read_text(folder / "tokenizer.json"))
        elif "tokenizer.ggml.model" in source.metadata:
            found = _from_metadata(source.name, source.metadata)
        else:
            found = _from_vocabulary(source, folder)
        found.no_padding()
        found.no_truncation()
    except InputError:
        raise
    except Exception as error:  # the bindings raise Exception itself
        said, name = printable(error, 200), printable(source.name)
        raise InputError(f"the tokenizer of {name} cannot be read: {said}") from error
    return found


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path} has more than {MAX_FILE_BYTES} bytes")
    return path.read_bytes().decode("utf-8")


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


def _from_vocabulary(source: Source, folder: Path | None) -> "Tokenizer":
    """From `vocab.txt` (also one folder up), or `vocab.json` with `merges.txt`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    for place in (folder, folder.parent) if folder is not None else ():
        if (place / "vocab.txt").is_file():
            words = _read_text(place / "vocab.txt").removesuffix("\n").split("\n")
            if len(words) == source.vocabulary:
                return _word_pieces([word.removesuffix("\r") for word in words], place)
    pair = ("vocab.json", "merges.txt")
    if folder is not None and all((folder / name).is_file() for name in pair):
        vocabulary, lines = (_read_text(folder / name) for name in pair)
        pairs = [line.split(" ") for line in lines.splitlines() if not line.startswith("#version")]
        merges = [(words[0], words[1]) for words in pairs if len(words) == 2]
        found = Tokenizer(models.BPE(json.loads(vocabulary), merges))
        found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
        _add_special_tokens(found, ["<s>"], ["</s>"])
        return found
    raise InputError(
        f"{printable(source.name)} has no tokenizer: looked for tokenizer.json, vocab.txt with"
        f" {source.vocabulary} lines, and vocab.json with merges.txt; token ids can be given"
        " instead"
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
        stated = json.loads(_read_text(settings)) if settings.is_file() else {}
        lower = stated.get("do_lower_case", True) if isinstance(stated, dict) else True
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


if __name__ == "__main__":
    _answer()
