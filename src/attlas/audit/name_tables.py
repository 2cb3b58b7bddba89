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
from attlas.errors import InputError, near
from attlas.escaping import printable

BLOCK: dict[str, tuple[Any, ...]] = {
    "takes": ("texts", "images", "sounds"),
    "order": ("post", "pre"),
    "parallel": (False, True),
    "norm": ("layer", "rms"),
    "gain": ("plain", "one plus"),
    "causal": (False, True),
    "stored": ("out-in", "in-out"),
    "qkv": ("side by side", "by group"),
    "rotary": ("none", "halves", "interleaved"),
    "bias": ("none", "alibi", "alibi over temperature", "buckets", "disentangled"),
    "full": ("last", "first"),
    "scale": ("one", "root of the dimension"),
    "projected": ("last", "first"),
}
"""What a table may say of a block; the first is the default."""

WORDS = {
    "config": (
        *("layers", "heads", "groups", "dim", "hidden", "width", "vocabulary", "longest"),
        *("eps", "activation", "shared", "attention_biased", "mlp_biased"),
        *("base", "local_base", "scaling", "factor", "rotated", "rotated_share"),
        *("rotates", "unrotated_every"),
        *("window", "windowed", "layer_types", "full_every", "full_below"),
        *("temperature_squared", "cap", "experts", "chosen", "buckets", "distance", "terms"),
    ),
    "block": tuple(BLOCK),
    "embedding": (
        *("tokens", "positions", "first_position", "types", "norm", "projection"),
        *("patches", "class_token", "convolution", "second_convolution", "rotary_factors"),
        *("relative", "relative_norm"),
    ),
    "layer": (
        *("attention_norm", "query", "key", "value", "qkv", "query_norm", "key_norm", "out"),
        *("attention_scale", "attention_after", "position_query", "position_key"),
        *("cross_norm", "cross_query", "cross_key", "cross_value", "cross_out"),
        *("mlp_norm", "up", "gate", "gate_up", "down", "mlp_scale", "mlp_after", "router"),
    ),
    "final": ("norm", "unembedding", "projection"),
}
"""The sections of a table and their words."""

LISTS = ("model_types", "prefixes", "not_first", "neutral")
"""What a table lists: the types of models and prefixes of names that it is for; words of [layer]
that all layers have but the first; fields of a config that do not change the forward pass."""
SECTIONS = ("requires", "present", "ignore")
"""Of fields of the config, with values that are taken for granted; of words that a model may lack,
with the field that switches them on ("not " before it: off); of names of tensors that are not used
(* stands for anything), with the reason."""
_ABSENT = object()
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
    sections = ("name", "extends", "inside", "encoder", *LISTS, *SECTIONS, *WORDS)
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
    defaults = {"name": "a table of yours", "inside": "", "encoder": "", "prefixes": [""]}
    full: dict[str, Any] = {word: [] for word in LISTS} | defaults | {**base, **table}
    full["neutral"] = [*base.get("neutral", []), *table.get("neutral", [])]
    for word in ("name", "inside", "encoder"):
        if not isinstance(full[word], str):
            raise InputError(f"{where} has {word} = {full[word]!r}: it must be a string")
    for word in LISTS:
        entries = full[word]
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise InputError(f"{where} has {word} = {entries!r}: it must be a list of strings")
    for section in (*SECTIONS, *WORDS):
        given = table.get(section, {})
        if not isinstance(given, Mapping):
            raise InputError(f"{where} has {section} = {given!r}: it must be a section of names")
        full[section] = {**base.get(section, {}), **given}
    for word, allowed in BLOCK.items():
        full["block"].setdefault(word, allowed[0])
    for section in WORDS:
        # An empty name takes a word of the extended table away.
        full[section] = {word: value for word, value in full[section].items() if value != ""}
        for word, value in full[section].items():
            _check_entry(where, section, word, value)
    full.pop("extends", None)  # it is complete, and may be extended itself
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
    names = value if isinstance(value, list) and value else [value]
    kind = int if word == "first_position" else str
    if section in TENSOR_SECTIONS and not all(isinstance(name, kind) for name in names):
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

    @property
    def config(self) -> Mapping[str, Any]:
        """The config, or the section of it that describes this part of the model."""
        part = self.checkpoint.config.get(self.table["inside"])
        return part if isinstance(part, Mapping) else self.checkpoint.config

    def group(self, layer: int) -> int:
        """The distinct layer that `layer` repeats; `layer` itself where none are shared."""
        return layer * self.shared // self.layers

    def bases(self, section: str, word: str, layer: int = 0, expert: int = 0) -> list[str]:
        """What the table may call `word`, without prefix and suffix."""
        given = self.table[section].get(word, [])
        names = given if isinstance(given, list) else [given]
        numbers = {"layer": layer, "group": self.group(layer), "expert": expert}
        found = []
        for name in (name for name in names if isinstance(name, str)):
            for key, number in numbers.items():
                name = name.replace(f"{{{key}}}", str(number))
            found.append(name)
        return found

    def find(
        self, section: str, word: str, part: str = "weight", layer: int = 0, expert: int = 0
    ) -> str | None:
        """The full name of the tensor that the table calls `word`, if the checkpoint has it.

        Arguments:
            section: of the table, one of `TENSOR_SECTIONS`.
            part: "weight" or "bias".
            layer, expert: the numbers that stand for {layer} and {expert}.
        """
        for base in self.bases(section, word, layer, expert):
            for prefix in dict.fromkeys((self.prefix, "")):
                for suffix in SUFFIXES[part]:
                    if f"{prefix}{base}{suffix}" in self.checkpoint.tensors:
                        return f"{prefix}{base}{suffix}"
        return None

    def tensor(
        self, section: str, word: str, part: str = "weight", layer: int = 0
    ) -> Tensor | None:
        """The tensor that the table calls `word`, if there is one. Arguments: as in `find`."""
        name = self.find(section, word, part, layer)
        return None if name is None else self.checkpoint.tensors[name]

    def setting(self, word: str, default: Any = None) -> Any:
        """The value of the first key of the table for `word` that the config has.

        An entry of the table that is no key is the value itself, a number or "=word", of a config
        that has none of the keys; `default` is that of one which says null.
        """
        stated = False
        for key in self.keys(word):
            if not isinstance(key, str) or key.startswith("="):
                return default if stated else key[1:] if isinstance(key, str) else key
            value = self._look_up(key)
            stated |= value is not _ABSENT
            if value is not _ABSENT and value is not None:
                return value
        return default

    def keys(self, word: str) -> list[Any]:
        """What the table says of a setting: keys of the config, and the value without them."""
        keys = self.table["config"].get(word, [])
        return keys if isinstance(keys, list) else [keys]

    def _look_up(self, key: str) -> Any:
        if key in self.config:
            return self.config[key]
        value: Any = self.config
        for step in key.split("."):
            value = value.get(step, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        return value

    def by_layer(self, word: str, kind: type) -> list[Any] | None:
        """A setting that lists an entry of type `kind` for every layer, if there is one."""
        value = self.setting(word)
        if value is None:
            return None
        layers = self.count("layers")
        entries = value if isinstance(value, list) else []
        if len(entries) != layers or not all(isinstance(entry, kind) for entry in entries):
            raise InputError(
                f"{self.name} has {word} = {printable(value)}: it must be a list with an entry for"
                f" each of the {layers} layers"
            )
        return entries

    def count(self, word: str, default: int | None = None) -> int:
        """A setting that must be a whole number, at least 1."""
        value = self.setting(word, default)
        if value is None:
            keys = self.table["config"].get(word)
            raise InputError(
                f"the config of {self.name} does not say the number of {word}: it should have the"
                f" key {keys!r}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"{word} of {self.name} = {printable(repr(value))}: it must be a whole number, at"
                " least 1"
            )
        return value

    def number(self, word: str, low: float, high: float) -> float:
        """A setting that must be a number between `low` and `high`, both excluded."""
        return number_between(f"{self.name} has {word}", self.setting(word), low, high)


def number_between(what: str, value: Any, low: float, high: float) -> float:
    """`value` as a float, if it is a number (not a bool) strictly between `low` and `high`.

    Arguments: `what` names the value in the message of the `InputError`.
    """
    if not isinstance(value, float | int) or isinstance(value, bool) or not low < value < high:
        raise InputError(
            f"{what} = {printable(repr(value))}: it must be a number between {low:g} and {high:g}"
        )
    return float(value)
