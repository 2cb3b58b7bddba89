r"""Architectures: tables of names, so that every transformer here is read into the same few arrays.

    model = recognise(read_checkpoint("folder"))      # a table of tables/*.toml that fits, or `table=` of your own
    model.layers, model.heads, model.groups, model.dim, model.width, model.block
    weights = model.layer(3)                          # one layer in memory, as float32:

| word | shape | what |
| --- | --- | --- |
| query, query_bias | [dim, heads, width], [heads, width] | $q = W_Q^\top x + b_Q$ |
| key, value (and _bias) | [dim, groups, width] | head i uses group i // (heads / groups) |
| out, out_bias | [heads, width, dim], [dim] | back to the residual stream |
| attention_norm, mlp_norm (and _bias) | [dim] | gains of the norms |
| up, gate, down (and _bias) | [dim, hidden], [hidden, dim] | the position-wise map; gate only where there is one |

A bias that the model lacks is absent. The scores are $\langle q, k\rangle / \sqrt{\text{width}}$; rotary pairs are (i, i + width/2)
whatever the file's order.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from attlas.audit.checkpoints import Checkpoint, Tensor
from attlas.errors import InputError, near, whole

BLOCK = {
    "order": ("post", "pre"),
    "norm": ("layer", "rms"),
    "causal": (False, True),
    "stored": ("out-in", "in-out"),
    "rotary": ("none", "halves", "interleaved"),
}
"""What a table may say of a block; the first is meant where it is silent."""

WORDS = {
    "config": (
        *("layers", "heads", "groups", "dim", "hidden", "width", "eps", "activation", "longest", "window"),
        *("base", "scaling", "rotated", "shared"),
    ),
    "block": tuple(BLOCK),
    "embedding": (
        *("tokens", "positions", "first_position", "types", "norm", "projection"),
        *("patches", "class_token", "rotary_factors"),
    ),
    "layer": ("attention_norm", "query", "key", "value", "qkv", "out", "mlp_norm", "up", "gate", "down"),
    "final": ("norm", "unembedding"),
}
"""The words of each section of a table."""

ACTIVATIONS = {
    **dict.fromkeys(("gelu",), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}


@dataclass(frozen=True)
class Block:
    """What a compiled layer depends on besides its weights."""

    heads: int
    groups: int
    width: int
    order: str
    norm: str
    eps: float
    activation: str
    causal: bool
    rotary: bool

    @property
    def temperature(self) -> float:
        """Scores are inner products of queries and keys over this."""
        return math.sqrt(self.width)


@dataclass(frozen=True)
class Model:
    """A checkpoint that a table explains. `longest` is the longest sequence it admits, `frequencies` [width / 2] are those of
    its rotary positions, `unused` names the tensors that the table does not mention."""

    checkpoint: Checkpoint
    table: Mapping[str, Any]
    prefix: str
    block: Block
    layers: int
    dim: int
    hidden: int
    shared: int
    longest: int | None = None
    frequencies: np.ndarray | None = None
    unused: tuple[str, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def architecture(self) -> str:
        return self.table["name"]

    @property
    def heads(self) -> int:
        return self.block.heads

    @property
    def groups(self) -> int:
        return self.block.groups

    @property
    def width(self) -> int:
        return self.block.width

    def tensor(self, section: str, word: str, part: str = "weight", layer: int | None = None) -> Tensor | None:
        """The tensor that the table calls so, if the checkpoint has it."""
        name = _find(self.checkpoint, self.table, self.prefix, section, word, part, self._places(layer))
        return None if name is None else self.checkpoint.tensors[name]

    def _places(self, layer: int | None) -> dict[str, int]:
        return {} if layer is None else {"layer": layer, "group": layer * self.shared // self.layers}

    def layer(self, index: int) -> dict[str, np.ndarray]:
        """The weights of layer `index` in the shapes of the table above."""
        if not 0 <= index < self.layers:
            raise InputError(f"layer = {index}: {self.name} has the layers 0 to {self.layers - 1}")
        weights = {}
        for word in self.table["layer"]:
            for part in ("weight", "bias"):
                tensor = self.tensor("layer", word, part, index)
                if tensor is not None:
                    weights[word if part == "weight" else f"{word}_bias"] = self._oriented(tensor.load(), part)
        self._split(weights)
        b = self.block
        for word, heads in (("query", b.heads), ("key", b.groups), ("value", b.groups)):
            weights[word] = weights[word].reshape(self.dim, heads, b.width)
            if f"{word}_bias" in weights:
                weights[f"{word}_bias"] = weights[f"{word}_bias"].reshape(heads, b.width)
        weights["out"] = weights["out"].reshape(b.heads, b.width, self.dim)
        if self.table["block"]["rotary"] == "interleaved":
            order = np.concatenate([np.arange(0, b.width, 2), np.arange(1, b.width, 2)])
            for word in ("query", "key", "query_bias", "key_bias"):
                if word in weights:
                    weights[word] = weights[word][..., order]
        return weights

    def _oriented(self, array: np.ndarray, part: str) -> np.ndarray:
        """A matrix as [in, out]."""
        turn = part == "weight" and array.ndim == 2 and self.table["block"]["stored"] == "out-in"
        return array.T if turn else array

    def _split(self, weights: dict[str, np.ndarray]) -> None:
        """Queries, keys and values that lie side by side in one matrix, apart."""
        b = self.block
        ends = np.cumsum([b.heads * b.width, b.groups * b.width])
        for suffix in ("", "_bias"):
            if f"qkv{suffix}" in weights:
                parts = np.split(weights.pop(f"qkv{suffix}"), ends, axis=-1)
                weights |= dict(zip((f"query{suffix}", f"key{suffix}", f"value{suffix}"), parts, strict=True))


@cache
def known_tables() -> dict[str, Mapping[str, Any]]:
    """The tables of the package, by name."""
    files = sorted((resources.files("attlas.audit") / "tables").iterdir(), key=lambda file: file.name)
    raw = {table["name"]: table for table in (tomllib.loads(file.read_text("utf-8")) for file in files)}
    return {name: complete(table, raw) for name, table in raw.items()}


def complete(table: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A table with what it `extends` put under it, every word checked."""
    where = f"the table {table.get('name', '')!r}"
    base: Mapping[str, Any] = {}
    if "extends" in table:
        if table["extends"] not in known:
            raise InputError(f"{where} extends {table['extends']!r}: known are {', '.join(known)}")
        base = complete(known[table["extends"]], known)
    whole_table: dict[str, Any] = {"model_types": [], "prefixes": [""], **base, **table}
    for section, words in WORDS.items():
        given = table.get(section, {})
        if not isinstance(given, Mapping):
            raise InputError(f"{where} has {section} = {given!r}: it must be a section of names")
        for word in given:
            if word not in words:
                raise InputError(
                    f"{where} has {word!r} in [{section}]: known are {', '.join(words)}.{near(word, words)}"
                )
        whole_table[section] = {**base.get(section, {}), **given}
    whole_table["requires"] = {**base.get("requires", {}), **table.get("requires", {})}
    for word, allowed in BLOCK.items():
        value = whole_table["block"].setdefault(word, allowed[0])
        if value not in allowed:
            raise InputError(f"{where} has {word} = {value!r} in [block]: allowed are {', '.join(map(str, allowed))}")
    return whole_table


def recognise(checkpoint: Checkpoint, table: Mapping[str, Any] | None = None) -> Model:
    """The model that a checkpoint is, by the first table whose names it bears and whose model types include its own."""
    tables = known_tables().values() if table is None else [complete(table, known_tables())]
    kind = checkpoint.config.get("model_type")
    for candidate in tables:
        for prefix in candidate["prefixes"]:
            fits = _find(checkpoint, candidate, prefix, "layer", "out", "weight", {"layer": 0, "group": 0})
            if fits and (kind is None or table is not None or kind in candidate["model_types"]):
                return _model(checkpoint, candidate, prefix)
    names = sorted(checkpoint.tensors)
    known = ", ".join(f"{entry['name']} ({', '.join(entry['model_types'])})" for entry in known_tables().values())
    raise InputError(
        f"{checkpoint.name} is of no known architecture: it calls itself {kind!r} and has {len(names)} tensors such as"
        f" {', '.join(names[:3])}; known are {known}; --map FILE supplies a table of names"
    )


def _find(
    checkpoint: Checkpoint,
    table: Mapping[str, Any],
    prefix: str,
    section: str,
    word: str,
    part: str,
    places: Mapping[str, int],
) -> str | None:
    """The full name of a tensor. Norms were once called gamma and beta; a parameter without parts is its own weight."""
    base = table.get(section, {}).get(word)
    if base is None:
        return None
    for name, value in places.items():
        base = base.replace(f"{{{name}}}", str(value))
    suffixes = (".weight", ".gamma", "") if part == "weight" else (".bias", ".beta")
    names = (f"{start}{base}{suffix}" for start in dict.fromkeys((prefix, "")) for suffix in suffixes)
    return next((name for name in names if name in checkpoint.tensors), None)


def _setting(checkpoint: Checkpoint, table: Mapping[str, Any], word: str, default: Any = None) -> Any:
    """What the config says under any of the keys that the table gives for `word`."""
    keys = table["config"].get(word, ())
    for key in keys if isinstance(keys, list | tuple) else (keys,):
        if not isinstance(key, str):
            return key
        if key.startswith("="):
            return key[1:]
        value: Any = checkpoint.config.get(key)
        if value is None and "." in key:
            value = checkpoint.config
            for step in key.split("."):
                value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return default


def _model(checkpoint: Checkpoint, table: Mapping[str, Any], prefix: str) -> Model:
    """The model, after its config and the shapes in its headers have been held against each other."""

    def count(word: str, default: Any = None) -> int:
        value = _setting(checkpoint, table, word, default)
        if value is None:
            raise InputError(
                f"the config of {checkpoint.name} does not say {word}: {table['config'].get(word)!r} is missing"
            )
        return whole(f"{word} of {checkpoint.name}", value, 1)

    for key, value in table["requires"].items():
        if checkpoint.config.get(key, value) != value:
            raise InputError(
                f"{checkpoint.name} has {key} = {checkpoint.config[key]!r}: {table['name']} is read with {value!r}"
            )
    layers, heads, dim = count("layers"), count("heads"), count("dim")
    groups = count("groups", heads)
    if heads % groups:
        raise InputError(
            f"{checkpoint.name} has {heads} heads and {groups} groups of keys: the groups must divide the heads"
        )
    if _setting(checkpoint, table, "width") is None and dim % heads:
        raise InputError(f"{checkpoint.name} has {heads} heads and the dimension {dim}: the heads must divide it")
    width = count("width", dim // heads or None)
    activation = _setting(checkpoint, table, "activation")
    if activation not in ACTIVATIONS:
        raise InputError(f"{checkpoint.name} has the activation {activation!r}: known are {', '.join(ACTIVATIONS)}")
    eps = _setting(checkpoint, table, "eps")
    if not isinstance(eps, float | int) or not 0 < eps < 1:
        raise InputError(f"{checkpoint.name} has eps = {eps!r}: it must be a number between 0 and 1")
    rules = table["block"]
    block = Block(
        heads=heads,
        groups=groups,
        width=width,
        order=rules["order"],
        norm=rules["norm"],
        eps=float(eps),
        activation=ACTIVATIONS[activation],
        causal=rules["causal"],
        rotary=rules["rotary"] != "none",
    )
    longest = [_setting(checkpoint, table, word) for word in ("longest", "window")]
    model = Model(
        checkpoint=checkpoint,
        table=table,
        prefix=prefix,
        block=block,
        layers=layers,
        dim=dim,
        hidden=count("hidden", _hidden(checkpoint, table, prefix)),
        shared=count("shared", layers),
        longest=min((whole(f"longest of {checkpoint.name}", n, 1) for n in longest if n), default=None),
        frequencies=None,
    )
    return model


def _hidden(checkpoint: Checkpoint, table: Mapping[str, Any], prefix: str) -> int | None:
    """The width of the position-wise map, off its first matrix."""
    name = _find(checkpoint, table, prefix, "layer", "up", "weight", {"layer": 0, "group": 0})
    shape = checkpoint.tensors[name].shape if name else ()
    if len(shape) != 2:
        return None
    return shape[0 if table["block"]["stored"] == "out-in" else 1]
