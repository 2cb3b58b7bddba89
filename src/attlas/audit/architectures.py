r"""Architectures: tables of names, so that every transformer here is read into the same few arrays.

    model = recognise(read_checkpoint("folder"))      # by the table of tables/*.toml that fits, or `table=read_table(FILE)`
    model.layers, model.heads, model.groups, model.dim, model.width, model.hidden, model.block
    weights = model.layer(3)                          # one layer in memory, as float32:

| word | shape | what |
| --- | --- | --- |
| query, query_bias | [dim, heads, width], [heads, width] | $q = W_Q^\top x + b_Q$ |
| key, value (and _bias) | [dim, groups, width] | head i uses group i // (heads / groups) |
| out, out_bias | [heads, width, dim], [dim] | back to the residual stream |
| attention_norm, mlp_norm (and _bias) | [dim] | gains of the norms |
| up, gate, down (and _bias) | [dim, hidden], [hidden, dim] | the position-wise map; gate only where there is one |

A bias that the model lacks is absent. Scores are $\langle q, k\rangle / \sqrt{\text{width}}$ (`model.block.temperature`); rotary
pairs are (i, i + width/2) whatever the file's order, turned by `model.frequencies`. `model.reinitialised(seed)` is the same
architecture with random weights.
"""

import math
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from attlas.audit.checkpoints import Checkpoint, read_json
from attlas.audit.tensors import Tensor
from attlas.errors import InputError, near, whole

BLOCK: dict[str, tuple[Any, ...]] = {
    "order": ("post", "pre"),
    "norm": ("layer", "rms"),
    "causal": (False, True),
    "stored": ("out-in", "in-out"),
    "rotary": ("none", "halves", "interleaved"),
}
"""What a table may say of a block; the first is meant where it is silent."""

WORDS = {
    "config": (
        *(
            "layers",
            "heads",
            "groups",
            "dim",
            "hidden",
            "width",
            "vocabulary",
            "longest",
            "window",
            "eps",
            "activation",
        ),
        *("base", "scaling", "factor", "rotated", "shared"),
    ),
    "block": tuple(BLOCK),
    "embedding": (
        *("tokens", "positions", "first_position", "types", "norm", "projection"),
        *("patches", "class_token", "rotary_factors"),
    ),
    "layer": (
        "attention_norm",
        "query",
        "key",
        "value",
        "qkv",
        "out",
        "mlp_norm",
        "up",
        "gate",
        "down",
    ),
    "final": ("norm", "unembedding"),
}
"""The sections of a table and their words."""

NEEDED = ("out", "up", "down", "attention_norm", "mlp_norm")
ACTIVATIONS = {
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
"""What a config may call an activation, and what it is."""
DRAWN_ROWS = 1024
MOST_LAYERS = 10_000


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

    @property
    def temperature(self) -> float:
        """Scores are inner products of queries and keys over this."""
        return math.sqrt(self.width)


@dataclass(frozen=True, eq=False)
class Names:
    """The tensors and settings of a checkpoint, by the words of a table."""

    checkpoint: Checkpoint
    table: Mapping[str, Any]
    prefix: str

    def find(self, section: str, word: str, part: str = "weight", **places: int) -> str | None:
        """The full name of a tensor. Norms were once called gamma and beta; a parameter without parts is its own weight."""
        base = self.base(section, word, **places)
        if base is None:
            return None
        suffixes = (".weight", ".gamma", "") if part == "weight" else (".bias", ".beta")
        names = (
            f"{start}{base}{suffix}"
            for start in dict.fromkeys((self.prefix, ""))
            for suffix in suffixes
        )
        return next((name for name in names if name in self.checkpoint.tensors), None)

    def base(self, section: str, word: str, **places: int) -> str | None:
        """What the table calls `word`, without prefix and part."""
        base = self.table[section].get(word)
        for name, value in places.items() if base else ():
            base = base.replace(f"{{{name}}}", str(value))
        return base

    def setting(self, word: str, default: Any = None) -> Any:
        """What the config says under the first key that it has of those the table gives for `word`."""
        keys = self.table["config"].get(word, ())
        for key in keys if isinstance(keys, list) else (keys,):
            value = self._looked_up(key) if isinstance(key, str) else key
            if value is not None and value != ():
                return value
        return default

    def _looked_up(self, key: str) -> Any:
        if key.startswith("="):
            return key[1:]
        value: Any = self.checkpoint.config.get(key)
        if value is None and "." in key:
            value = self.checkpoint.config
            for step in key.split("."):
                value = value.get(step) if isinstance(value, Mapping) else None
        return value

    def count(self, word: str, default: int | None = None) -> int:
        value = self.setting(word, default)
        if value is None:
            keys = self.table["config"].get(word)
            raise InputError(
                f"the config of {self.checkpoint.name} does not say the number of {word}: it should have the key {keys!r}"
            )
        return whole(f"{word} of {self.checkpoint.name}", value, 1)

    def number(self, word: str, low: float, high: float) -> float:
        value = self.setting(word)
        if isinstance(value, bool) or not isinstance(value, float | int) or not low < value < high:
            raise InputError(
                f"{self.checkpoint.name} has {word} = {value!r}: it must be a number between {low:g} and {high:g}"
            )
        return float(value)


@dataclass(frozen=True, eq=False)
class Model:
    """A checkpoint that a table explains. `shared` counts its distinct layers, `longest` is the longest sequence that it
    admits, `frequencies` [width / 2] are those of its rotary positions."""

    names: Names
    block: Block
    layers: int
    dim: int
    hidden: int
    shared: int
    longest: int | None
    frequencies: np.ndarray | None = field(repr=False)

    @property
    def checkpoint(self) -> Checkpoint:
        return self.names.checkpoint

    @property
    def table(self) -> Mapping[str, Any]:
        return self.names.table

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

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are; none for images."""
        tensor = self.tensor("embedding", "tokens")
        return None if tensor is None else tensor.shape[0]

    def tensor(
        self, section: str, word: str, part: str = "weight", layer: int | None = None
    ) -> Tensor | None:
        """The tensor that the table calls so, if the checkpoint has it."""
        places = {} if layer is None else {"layer": layer, "group": self.group(layer)}
        name = self.names.find(section, word, part, **places)
        return None if name is None else self.checkpoint.tensors[name]

    def group(self, layer: int) -> int:
        """The distinct layer that `layer` repeats, where layers share their weights; else the layer itself."""
        return layer * self.shared // self.layers

    @cached_property
    def used(self) -> dict[str, tuple[str, str]]:
        """Names of the tensors that the table mentions, with word and part; `checkpoint.tensors` may hold others, such as heads
        for a task."""
        found = {}
        for section in ("embedding", "layer", "final"):
            for layer in range(self.layers) if section == "layer" else (0,):
                for word in self.table[section]:
                    for part in ("weight", "bias"):
                        places = (
                            {"layer": layer, "group": self.group(layer)}
                            if section == "layer"
                            else {}
                        )
                        name = (
                            self.names.find(section, word, part, **places)
                            if word != "first_position"
                            else None
                        )
                        if name is not None:
                            found[name] = (word, part)
        return found

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of the tensors that the table does not mention."""
        return tuple(name for name in self.checkpoint.tensors if name not in self.used)

    def layer(self, index: int) -> dict[str, np.ndarray]:
        """The weights of layer `index`, in the shapes of the module's docstring."""
        if not 0 <= index < self.layers:
            raise InputError(f"layer = {index}: {self.name} has the layers 0 to {self.layers - 1}")
        turn = self.table["block"]["stored"] == "out-in"
        weights = {}
        for word in self.table["layer"]:
            for part, name in (("weight", word), ("bias", f"{word}_bias")):
                tensor = self.tensor("layer", word, part, index)
                if tensor is not None:
                    array = tensor.load()
                    weights[name] = array.T if turn and array.ndim == 2 else array
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

    def _split(self, weights: dict[str, np.ndarray]) -> None:
        """Queries, keys and values that lie side by side in one matrix, apart."""
        b = self.block
        ends = np.cumsum([b.heads * b.width, b.groups * b.width])
        for suffix in ("", "_bias"):
            if f"qkv{suffix}" in weights:
                parts = np.split(weights.pop(f"qkv{suffix}"), ends, axis=-1)
                weights |= dict(
                    zip((f"query{suffix}", f"key{suffix}", f"value{suffix}"), parts, strict=True)
                )

    def reinitialised(self, seed: int = 0) -> "Model":
        """The same architecture at random initialisation: normal weights of the config's `initializer_range` (.02 where it is
        silent), gains 1, biases 0."""
        spread = self.checkpoint.config.get("initializer_range")
        scale = spread if isinstance(spread, float) and 0 < spread < 1 else 0.02
        tensors = {}
        for name, (word, part) in self.used.items():
            shape = self.checkpoint.tensors[name].shape
            if word.endswith("norm") or part == "bias" or word == "rotary_factors":
                tensors[name] = Tensor(shape, "F32", _constant(shape, float(part == "weight")))
            else:
                tensors[name] = Tensor(shape, "F32", _drawn(shape, scale, seed, name))
        drawn = replace(self.checkpoint, name=f"{self.name}, random", tensors=tensors)
        return replace(self, names=replace(self.names, checkpoint=drawn))


def _constant(shape: tuple[int, ...], value: float) -> Callable[[int, int], np.ndarray]:
    return lambda start, stop: np.full((stop - start, *shape[1:]), value, np.float32)


def _drawn(
    shape: tuple[int, ...], scale: float, seed: int, name: str
) -> Callable[[int, int], np.ndarray]:
    """Normal rows that do not depend on which others are asked for: they are drawn in blocks, each with its own key."""

    def fetch(start: int, stop: int) -> np.ndarray:
        blocks = range(start // DRAWN_ROWS, (stop - 1) // DRAWN_ROWS + 1)
        starts = [index * DRAWN_ROWS for index in blocks]
        return np.concatenate(
            [
                _drawn_block(shape, scale, seed, name, index)[max(start - first, 0) : stop - first]
                for index, first in zip(blocks, starts, strict=True)
            ]
        )

    return fetch


@lru_cache(maxsize=1)  # rows of a text are asked for one by one
def _drawn_block(
    shape: tuple[int, ...], scale: float, seed: int, name: str, index: int
) -> np.ndarray:
    rows = min(DRAWN_ROWS, shape[0] - index * DRAWN_ROWS)
    bits = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
    return scale * bits.standard_normal((rows, *shape[1:]), np.float32)


@cache
def known_tables() -> dict[str, Mapping[str, Any]]:
    """The tables of the package, by name."""
    files = sorted(
        (resources.files("attlas.audit") / "tables").iterdir(), key=lambda file: file.name
    )
    raw = {
        table["name"]: table for table in (tomllib.loads(file.read_text("utf-8")) for file in files)
    }
    return {name: complete(table, raw) for name, table in raw.items()}


def read_table(path: str | Path) -> dict[str, Any]:
    """A table of a user's own, as TOML or JSON, with what it extends put under it."""
    path = Path(path)
    if path.suffix == ".json":
        return complete(read_json(path), known_tables())
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no TOML: {error}") from error
    return complete(table, known_tables())


def complete(table: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A table with what it `extends` put under it, every section and word checked."""
    where = f"the table {table.get('name', '')!r}"
    heads = ("name", "extends", "model_types", "prefixes", "requires", *WORDS)
    for section in table:
        if section not in heads:
            raise InputError(
                f"{where} has {section!r}: known are {', '.join(heads)}.{near(section, heads)}"
            )
    base: Mapping[str, Any] = {}
    if "extends" in table:
        if not isinstance(table["extends"], str) or table["extends"] not in known:
            raise InputError(f"{where} extends {table['extends']!r}: known are {', '.join(known)}")
        base = complete(known[table["extends"]], known)
    full: dict[str, Any] = {
        "name": "a table of yours",
        "model_types": [],
        "prefixes": [""],
        **base,
        **table,
    }
    for word in ("model_types", "prefixes"):
        if not isinstance(full[word], list) or not all(
            isinstance(entry, str) for entry in full[word]
        ):
            raise InputError(f"{where} has {word} = {full[word]!r}: it must be a list of strings")
    for section in ("requires", *WORDS):
        given = table.get(section, {})
        if not isinstance(given, Mapping):
            raise InputError(f"{where} has {section} = {given!r}: it must be a section of names")
        full[section] = {**base.get(section, {}), **given}
    for section, words in WORDS.items():
        for word, value in full[section].items():
            if word not in words:
                raise InputError(
                    f"{where} has {word!r} in [{section}]: known are {', '.join(words)}.{near(word, words)}"
                )
            if section in ("embedding", "layer", "final") and not isinstance(
                value, int if word == "first_position" else str
            ):
                raise InputError(
                    f"{where} has {word} = {value!r} in [{section}]: it must be the name of a tensor"
                )
    for word, allowed in BLOCK.items():
        value = full["block"].setdefault(word, allowed[0])
        if value not in allowed:
            raise InputError(
                f"{where} has {word} = {value!r} in [block]: allowed are {', '.join(map(str, allowed))}"
            )
    return full


def recognise(checkpoint: Checkpoint, table: Mapping[str, Any] | None = None) -> Model:
    """The model that a checkpoint is: by the first table whose names it bears, and whose model types include its own if it
    states one; or by `table`."""
    kind = checkpoint.config.get("model_type")
    tables = list(known_tables().values()) if table is None else [complete(table, known_tables())]
    for candidate in tables:
        for prefix in candidate["prefixes"]:
            names = Names(checkpoint, candidate, prefix)
            fits = names.find("layer", "out", layer=0, group=0)
            if fits and (kind is None or table is not None or kind in candidate["model_types"]):
                return _model(names)
    found = sorted(checkpoint.tensors)
    known = ", ".join(f"{entry['name']} ({', '.join(entry['model_types'])})" for entry in tables)
    raise InputError(
        f"{checkpoint.name} is of no known architecture: it calls itself {kind!r} and has {len(found)} tensors"
        f"{' such as ' + ', '.join(found[:3]) if found else ''}; known are {known}; --map FILE supplies a table of names"
    )


def _model(names: Names) -> Model:
    """The model, after its config and the shapes in its headers have been held against each other."""
    checkpoint, table = names.checkpoint, names.table
    for key, value in table["requires"].items():
        if checkpoint.config.get(key, value) != value:
            raise InputError(
                f"{checkpoint.name} has {key} = {checkpoint.config[key]!r}: {table['name']} is read with {value!r}"
            )
    layers, heads, dim = names.count("layers"), names.count("heads"), names.count("dim")
    groups, shared = names.count("groups", heads), names.count("shared", layers)
    if layers > MOST_LAYERS or shared > layers:
        raise InputError(
            f"{checkpoint.name} has {layers} layers, {shared} of them distinct groups: at most {MOST_LAYERS} layers are read"
        )
    if heads % groups or (names.setting("width") is None and dim % heads):
        raise InputError(
            f"{checkpoint.name} has {heads} heads, {groups} groups of keys and the dimension {dim}:"
            " the groups must divide the heads, and the heads the dimension"
        )
    activation = names.setting("activation")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise InputError(
            f"{checkpoint.name} has the activation {activation!r}: known are {', '.join(ACTIVATIONS)}"
        )
    block = Block(
        heads=heads,
        groups=groups,
        width=names.count("width", dim // heads or None),
        order=table["block"]["order"],
        norm=table["block"]["norm"],
        eps=names.number("eps", 0.0, 1.0),
        activation=ACTIVATIONS[activation],
        causal=table["block"]["causal"],
    )
    model = Model(
        names=names,
        block=block,
        layers=layers,
        dim=dim,
        hidden=names.count("hidden", _hidden(names)),
        shared=shared,
        longest=_longest(names),
        frequencies=_frequencies(names, block.width),
    )
    _check(model)
    return model


def _hidden(names: Names) -> int | None:
    """The width of the position-wise map, off its first matrix."""
    name = names.find("layer", "up", layer=0, group=0)
    shape = names.checkpoint.tensors[name].shape if name else ()
    return (
        shape[0 if names.table["block"]["stored"] == "out-in" else 1] if len(shape) == 2 else None
    )


def _longest(names: Names) -> int | None:
    """The longest sequence: as many as there are learned positions, or as the config and its window allow."""
    limits = [names.count(word) for word in ("longest", "window") if names.setting(word)]
    name = names.find("embedding", "positions")
    if name is not None and "patches" not in names.table["embedding"]:
        rows = (
            names.checkpoint.tensors[name].shape[0] if names.checkpoint.tensors[name].shape else 0
        )
        if limits and limits[0] != rows:
            raise InputError(
                f"{names.checkpoint.name} has {rows} learned positions: its config says {limits[0]}"
            )
        limits.append(rows - names.table["embedding"].get("first_position", 0))
    return min(limits, default=None)


def _frequencies(names: Names, width: int) -> np.ndarray | None:
    r"""Rotary positions turn pair i at position t by $t f_i$, with $f_i = \text{base}^{-2i/\text{width}}$, stretched as the config
    says: linearly, or as Llama 3 does (slow turns only)."""
    if names.table["block"]["rotary"] == "none":
        return None
    where = names.checkpoint.name
    if width % 2 or names.count("rotated", width) != width:
        raise InputError(
            f"{where} turns a part of its heads of width {width} only: rotary positions turn the whole here"
        )
    frequencies = names.number("base", 1.0, 1e12) ** (-np.arange(0, width, 2) / width)
    given = names.setting("scaling", {})
    scaling = (
        {"rope_type": given, "factor": names.setting("factor")} if isinstance(given, str) else given
    )
    if not isinstance(scaling, Mapping):
        raise InputError(
            f"{where} has the rotary scaling {scaling!r}: it must be a section of names"
        )

    def parameter(word: str) -> float:
        value = scaling.get(word)
        if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1e9:
            raise InputError(
                f"{where} has {word} = {value!r} in its rotary scaling: it must be a positive number"
            )
        return float(value)

    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default" | "none" | None:
            pass
        case "linear":
            frequencies = frequencies / parameter("factor")
        case "llama3":
            turns = parameter("original_max_position_embeddings") * frequencies / (2 * np.pi)
            low, high = parameter("low_freq_factor"), parameter("high_freq_factor")
            if low >= high:
                raise InputError(
                    f"{where} has the rotary factors {low:g} and {high:g}: the first must be the smaller"
                )
            kept = np.clip((turns - low) / (high - low), 0, 1)
            frequencies = frequencies * (kept + (1 - kept) / parameter("factor"))
        case other:
            raise InputError(
                f"{where} stretches its rotary positions by {other!r}: known are default, linear and llama3"
            )
    factors = names.find("embedding", "rotary_factors")
    if factors is not None:
        tensor = names.checkpoint.tensors[factors]
        if tensor.shape != frequencies.shape:
            raise InputError(
                f"{factors} of {where} has the shape {tensor.shape}: it should be {frequencies.shape}"
            )
        frequencies = frequencies / tensor.load()
    return frequencies


def _check(model: Model) -> None:
    """Every tensor that will be read is there, of numbers, and of the shape that the config demands."""
    for name, wanted in _demanded(model):
        tensor = model.checkpoint.tensors[name]
        if tensor.shape != wanted:
            raise InputError(
                f"{name} of {model.name} has the shape {tensor.shape}: by the config it should be {wanted}"
            )
    for name in model.used:
        dtype = model.checkpoint.tensors[name].dtype
        if dtype.upper().startswith(("I", "U", "BOOL")) and not dtype.startswith("IQ"):
            raise InputError(
                f"{name} of {model.name} is stored as {dtype}: weights must be real numbers"
            )


def _demanded(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of tensors with the shapes that the config demands."""
    b, table, find = model.block, model.table, model.names.find
    queries, keys = b.heads * b.width, b.groups * b.width
    shapes = {
        "query": (queries, model.dim),
        "key": (keys, model.dim),
        "value": (keys, model.dim),
        "qkv": (queries + 2 * keys, model.dim),
        "out": (model.dim, queries),
        "up": (model.hidden, model.dim),
        "gate": (model.hidden, model.dim),
        "down": (model.dim, model.hidden),
        "attention_norm": (model.dim,),
        "mlp_norm": (model.dim,),
    }
    needed = {*NEEDED, *(("qkv",) if "qkv" in table["layer"] else ("query", "key", "value"))}
    for word in sorted(needed - set(table["layer"])):
        raise InputError(f"the table {table['name']!r} does not name {word} in [layer]")
    for layer in range(model.layers):
        for word in table["layer"]:
            places = {"layer": layer, "group": model.group(layer)}
            weight, bias = (find("layer", word, part, **places) for part in ("weight", "bias"))
            if weight is None:
                raise InputError(
                    f"{model.name} lacks {word} of layer {layer}: {model.names.base('layer', word, **places)}"
                )
            yield (
                weight,
                shapes[word] if table["block"]["stored"] == "out-in" else shapes[word][::-1],
            )
            if bias is not None:
                yield bias, shapes[word][:1]
    yield from _demanded_around(model)


def _demanded_around(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same for what comes before and after the layers."""
    find, tensors = model.names.find, model.checkpoint.tensors
    tokens = find("embedding", "tokens")
    width = model.dim
    if tokens is not None:
        shape = tensors[tokens].shape
        width = shape[-1] if len(shape) == 2 and find("embedding", "projection") else model.dim
        yield tokens, (model.names.count("vocabulary", shape[0] if shape else 1), width)
        for word in ("positions", "types"):
            name = find("embedding", word)
            if name is not None:
                yield name, (tensors[name].shape[0] if tensors[name].shape else 1, width)
        unembedding = find("final", "unembedding")
        if unembedding is not None:
            yield unembedding, (shape[0], model.dim)
    elif "tokens" in model.table["embedding"]:
        raise InputError(
            f"{model.name} lacks its token embedding {model.table['embedding']['tokens']}"
        )
    for section, word, wanted in (
        ("embedding", "norm", (width,)),
        ("embedding", "projection", (model.dim, width)),
        ("final", "norm", (model.dim,)),
    ):
        if word in model.table[section]:
            weight, bias = find(section, word), find(section, word, "bias")
            if weight is None:
                raise InputError(f"{model.name} lacks {model.table[section][word]}")
            yield weight, wanted
            if bias is not None:
                yield bias, wanted[:1]
