"""Tables of names: how a family of models calls what every transformer has.

table = known_tables()["BERT"]                # from tables/*.toml
table = read_table("mine.toml")               # a user's own, which may extend a known one
names = Names(checkpoint, table, prefix="")   # tensors and settings by the words of the table
names.find("layer", "query", layer=3)         # the full name of a tensor, None if it is absent
names.count("heads")                          # a setting of the config
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from attlas.audit.checkpoints import MAX_JSON_BYTES, Checkpoint, read_json
from attlas.audit.tensors import Tensor, read_small_file
from attlas.errors import InputError, near, whole

BLOCK: dict[str, tuple[Any, ...]] = {
    "order": ("post", "pre"),
    "norm": ("layer", "rms"),
    "causal": (False, True),
    "stored": ("out-in", "in-out"),
    "rotary": ("none", "halves", "interleaved"),
}
"""What a table may say of a block; the first is the default."""

WORDS = {
    "config": (
        *("layers", "heads", "groups", "dim", "hidden", "width", "vocabulary", "longest"),
        *("window", "eps", "activation", "base", "scaling", "factor", "rotated", "shared"),
    ),
    "block": tuple(BLOCK),
    "embedding": (
        *("tokens", "positions", "first_position", "types", "norm", "projection"),
        *("patches", "class_token", "rotary_factors"),
    ),
    "layer": (
        *("attention_norm", "query", "key", "value", "qkv", "out"),
        *("mlp_norm", "up", "gate", "down"),
    ),
    "final": ("norm", "unembedding"),
}
"""The sections of a table and their words."""

TENSOR_SECTIONS = ("embedding", "layer", "final")
SUFFIXES = {"weight": (".weight", ".gamma", ""), "bias": (".bias", ".beta")}
"""What may follow the name of a tensor: norms were once called gamma and beta, and a parameter
without parts, such as a class token, has no suffix."""


@cache
def known_tables() -> dict[str, Mapping[str, Any]]:
    """The tables of the package, by name."""
    files = (resources.files("attlas.audit") / "tables").iterdir()
    texts = [file.read_text("utf-8") for file in sorted(files, key=lambda file: file.name)]
    tables = {table["name"]: table for table in map(tomllib.loads, texts)}
    return {name: complete_table(table, tables) for name, table in tables.items()}


def read_table(path: str | Path) -> dict[str, Any]:
    """A table of a user's own, as TOML or JSON, completed by what it extends."""
    path = Path(path)
    if path.suffix == ".json":
        return complete_table(read_json(path), known_tables())
    content = read_small_file(path, "table", MAX_JSON_BYTES)
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no TOML: {error}") from error
    return complete_table(table, known_tables())


def complete_table(
    table: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Check every section and word of a table, and fill in what it does not say.

    Arguments:
        table: sections of names; `extends` names a table whose entries it inherits.
        known: the tables that can be extended.
    """
    where = f"the table {table.get('name', '')!r}"
    sections = ("name", "extends", "model_types", "prefixes", "requires", *WORDS)
    for section in table:
        if section not in sections:
            raise InputError(
                f"{where} has {section!r}: known are {', '.join(sections)}."
                f"{near(section, sections)}"
            )
    base: Mapping[str, Any] = {}
    if "extends" in table:
        if not isinstance(table["extends"], str) or table["extends"] not in known:
            raise InputError(f"{where} extends {table['extends']!r}: known are {', '.join(known)}")
        base = complete_table(known[table["extends"]], known)
    defaults = {"name": "a table of yours", "model_types": [], "prefixes": [""]}
    full: dict[str, Any] = {**defaults, **base, **table}
    for word in ("model_types", "prefixes"):
        entries = full[word]
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"{where} has {word} = {entries!r}: it must be a list of strings")
    for section in ("requires", *WORDS):
        given = table.get(section, {})
        if not isinstance(given, Mapping):
            raise InputError(f"{where} has {section} = {given!r}: it must be a section of names")
        full[section] = {**base.get(section, {}), **given}
    for word, allowed in BLOCK.items():
        full["block"].setdefault(word, allowed[0])
    for section in WORDS:
        for word, value in full[section].items():
            _check_entry(where, section, word, value)
    return full


def _check_entry(where: str, section: str, word: str, value: Any) -> None:
    words = WORDS[section]
    if word not in words:
        raise InputError(
            f"{where} has {word!r} in [{section}]: known are {', '.join(words)}.{near(word, words)}"
        )
    if section == "block" and value not in BLOCK[word]:
        raise InputError(
            f"{where} has {word} = {value!r} in [block]: allowed are"
            f" {', '.join(map(str, BLOCK[word]))}"
        )
    kind = int if word == "first_position" else str
    if section in TENSOR_SECTIONS and not isinstance(value, kind):
        raise InputError(
            f"{where} has {word} = {value!r} in [{section}]: it must be the name of a tensor"
        )


@dataclass(frozen=True, eq=False)
class Names:
    """The tensors and settings of a checkpoint, by the words of a table.

    Of its `layers`, `shared` are distinct; both count only where the table says {group}.
    """

    checkpoint: Checkpoint
    table: Mapping[str, Any]
    prefix: str
    layers: int = 1
    shared: int = 1

    @property
    def name(self) -> str:
        return self.checkpoint.name

    def group(self, layer: int) -> int:
        """The distinct layer that `layer` repeats; `layer` itself where none are shared."""
        return layer * self.shared // self.layers

    def base(self, section: str, word: str, layer: int = 0) -> str | None:
        """What the table calls `word`, without prefix and suffix."""
        base = self.table[section].get(word)
        if not isinstance(base, str):
            return None
        return base.replace("{layer}", str(layer)).replace("{group}", str(self.group(layer)))

    def find(self, section: str, word: str, part: str = "weight", layer: int = 0) -> str | None:
        """The full name of the tensor that the table calls `word`, if the checkpoint has it.

        Arguments:
            section: of the table, one of `TENSOR_SECTIONS`.
            part: "weight" or "bias".
            layer: the number that stands for {layer}.
        """
        base = self.base(section, word, layer)
        prefixes = dict.fromkeys((self.prefix, "")) if base is not None else ()
        names = (f"{prefix}{base}{suffix}" for prefix in prefixes for suffix in SUFFIXES[part])
        return next((name for name in names if name in self.checkpoint.tensors), None)

    def tensor(
        self, section: str, word: str, part: str = "weight", layer: int = 0
    ) -> Tensor | None:
        """The tensor that the table calls `word`, if there is one. Arguments: as in `find`."""
        name = self.find(section, word, part, layer)
        return None if name is None else self.checkpoint.tensors[name]

    def setting(self, word: str, default: Any = None) -> Any:
        """The value of the first key of the table for `word` that the config has.

        An entry of the table that is no key is the value itself: a number, or "=word".
        """
        keys = self.table["config"].get(word, ())
        for key in keys if isinstance(keys, list) else (keys,):
            value = self._look_up(key) if isinstance(key, str) else key
            if value is not None and value != ():
                return value
        return default

    def _look_up(self, key: str) -> Any:
        if key.startswith("="):
            return key[1:]
        value: Any = self.checkpoint.config.get(key)
        if value is None and "." in key:
            value = self.checkpoint.config
            for step in key.split("."):
                value = value.get(step) if isinstance(value, Mapping) else None
        return value

    def count(self, word: str, default: int | None = None) -> int:
        """A setting that must be a whole number, at least 1."""
        value = self.setting(word, default)
        if value is None:
            keys = self.table["config"].get(word)
            raise InputError(
                f"the config of {self.name} does not say the number of {word}: it should have the"
                f" key {keys!r}"
            )
        return whole(f"{word} of {self.name}", value, 1)

    def number(self, word: str, low: float, high: float) -> float:
        """A setting that must be a number between `low` and `high`, both excluded."""
        return number_between(f"{self.name} has {word}", self.setting(word), low, high)


def number_between(what: str, value: Any, low: float, high: float) -> float:
    """`value` as a float, if it is a number (not a bool) strictly between `low` and `high`.

    Arguments: `what` names the value in the message of the `InputError`.
    """
    if not isinstance(value, float | int) or isinstance(value, bool) or not low < value < high:
        raise InputError(f"{what} = {value!r}: it must be a number between {low:g} and {high:g}")
    return float(value)
