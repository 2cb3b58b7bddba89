r"""Architectures: every transformer is read into the same few arrays.

    model = recognise(read_checkpoint("folder"))      # by the name table that fits, or `table=`
    model.layers, model.heads, model.groups, model.dim, model.width, model.hidden, model.block
    weights = model.layer(3)                          # one layer in memory, as float32:

| word | shape | what |
| --- | --- | --- |
| query, query_bias | [dim, heads, width], [heads, width] | $q = W_Q^\top x + b_Q$ |
| key, value (and _bias) | [dim, groups, width] | head i uses group i // (heads / groups) |
| out, out_bias | [heads, width, dim], [dim] | back to the residual stream |
| attention_norm, mlp_norm (and _bias) | [dim] | gains of the norms |
| up, gate, down (and _bias) | [dim, hidden], [hidden, dim] | the position-wise map |

`gate`, and a bias that the model lacks, are absent. Scores are $\langle q, k\rangle /
\sqrt{\text{width}}$ (`model.block.temperature`). Rotary pairs are (i, i + width/2) whatever the
order in the file, with `model.frequencies`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from attlas.audit.checkpoints import Checkpoint, read_checkpoint
from attlas.audit.name_tables import (
    TENSOR_SECTIONS,
    Names,
    complete_table,
    known_tables,
    read_table,
)
from attlas.audit.rotary import rotary_frequencies
from attlas.audit.tensors import Tensor, constant_tensor, normal_tensor
from attlas.errors import InputError

NEEDED = {"out", "up", "down", "attention_norm", "mlp_norm"}
"""The words that every table must name in [layer], besides query, key and value, or qkv."""
ACTIVATIONS = {
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
"""What a config may call an activation, and what it is."""
MAX_LAYERS = 10_000
DEFAULT_INITIAL_SCALE = 0.02


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
        """Scores are inner products of queries and keys divided by this."""
        return math.sqrt(self.width)


@dataclass(frozen=True, eq=False)
class Model:
    """A checkpoint read by a table of names.

    `shared` counts the distinct layers, `longest` is the longest sequence that the model admits,
    `frequencies` [width / 2] are those of its rotary positions.
    """

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
        """The number of tokens; None for a model of images."""
        tensor = self.tensor("embedding", "tokens")
        return None if tensor is None else tensor.shape[0]

    def group(self, layer: int) -> int:
        """The distinct layer that `layer` repeats; `layer` itself where none are shared."""
        return layer * self.shared // self.layers

    def find(self, section: str, word: str, part: str = "weight", layer: int = 0) -> str | None:
        """The full name of the tensor that the table calls `word`, if the checkpoint has it."""
        return self.names.find(section, word, part, layer, self.group(layer))

    def tensor(
        self, section: str, word: str, part: str = "weight", layer: int = 0
    ) -> Tensor | None:
        """The tensor that the table calls `word`, if the checkpoint has it."""
        name = self.find(section, word, part, layer)
        return None if name is None else self.checkpoint.tensors[name]

    @cached_property
    def used(self) -> dict[str, tuple[str, str]]:
        """Names of the tensors that the table mentions, each with its word and part."""
        found = {}
        for section in TENSOR_SECTIONS:
            for layer in range(self.layers) if section == "layer" else (0,):
                for word, part in product(self.table[section], ("weight", "bias")):
                    name = self.find(section, word, part, layer)
                    if name is not None:
                        found[name] = (word, part)
        return found

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of the tensors that the table does not mention, such as heads for a task."""
        return tuple(name for name in self.checkpoint.tensors if name not in self.used)

    def layer(self, index: int) -> dict[str, np.ndarray]:
        """The weights of layer `index` by word, in the shapes of the module's docstring."""
        if not 0 <= index < self.layers:
            raise InputError(f"layer = {index}: {self.name} has the layers 0 to {self.layers - 1}")
        transpose = self.table["block"]["stored"] == "out-in"
        weights = {}
        for word in self.table["layer"]:
            for part, name in (("weight", word), ("bias", f"{word}_bias")):
                tensor = self.tensor("layer", word, part, index)
                if tensor is not None:
                    array = tensor.load()
                    weights[name] = array.T if transpose and array.ndim == 2 else array
        block = self.block
        ends = np.cumsum([block.heads * block.width, block.groups * block.width])
        for suffix in ("", "_bias"):
            if f"qkv{suffix}" in weights:
                parts = np.split(weights.pop(f"qkv{suffix}"), ends, axis=-1)
                words = (f"query{suffix}", f"key{suffix}", f"value{suffix}")
                weights |= dict(zip(words, parts, strict=True))
        counts = {"query": block.heads, "key": block.groups, "value": block.groups}
        for word, heads in counts.items():
            weights[word] = weights[word].reshape(self.dim, heads, block.width)
            if f"{word}_bias" in weights:
                weights[f"{word}_bias"] = weights[f"{word}_bias"].reshape(heads, block.width)
        weights["out"] = weights["out"].reshape(block.heads, block.width, self.dim)
        if self.table["block"]["rotary"] == "interleaved":
            order = np.concatenate([np.arange(0, block.width, 2), np.arange(1, block.width, 2)])
            for word in {"query", "key", "query_bias", "key_bias"} & set(weights):
                weights[word] = weights[word][..., order]
        return weights

    def reinitialised(self, seed: int = 0) -> "Model":
        """The same architecture with random weights, drawn when they are asked for.

        Matrices are normal with the config's `initializer_range` (0.02 without one), gains are 1
        and biases 0.
        """
        given = self.checkpoint.config.get("initializer_range")
        scale = given if isinstance(given, float) and 0 < given < 1 else DEFAULT_INITIAL_SCALE
        tensors = {}
        for name, (word, part) in self.used.items():
            shape = self.checkpoint.tensors[name].shape
            if word.endswith("norm") or part == "bias" or word == "rotary_factors":
                tensors[name] = constant_tensor(shape, float(part == "weight"))
            else:
                tensors[name] = normal_tensor(shape, scale, seed, name)
        random = replace(self.checkpoint, name=f"{self.name}, random", tensors=tensors)
        return replace(self, names=replace(self.names, checkpoint=random))


def as_model(
    source: str | Path | Mapping[str, Any] | Checkpoint | Model,
    config: Mapping[str, Any] | str | Path | None = None,
    table: Mapping[str, Any] | str | Path | None = None,
) -> Model:
    """The model in a folder, a file, a package, in memory, or already read.

    Arguments:
        source, config: as for `read_checkpoint`.
        table: a table of names or its file, for an architecture that is not known.
    """
    if isinstance(source, Model):
        return source
    checkpoint = source if isinstance(source, Checkpoint) else read_checkpoint(source, config)
    return recognise(checkpoint, read_table(table) if isinstance(table, str | Path) else table)


def recognise(checkpoint: Checkpoint, table: Mapping[str, Any] | None = None) -> Model:
    """The model that a checkpoint is, by the first known table that fits, or by `table`.

    A table fits if the checkpoint has its names, and its model types include the one that the
    config states, if it states one.
    """
    kind = checkpoint.config.get("model_type")
    known = known_tables()
    tables = list(known.values()) if table is None else [complete_table(table, known)]
    for candidate in tables:
        for prefix in candidate["prefixes"]:
            names = Names(checkpoint, candidate, prefix)
            of_its_type = kind is None or table is not None or kind in candidate["model_types"]
            if of_its_type and names.find("layer", "out"):
                return _build_model(names)
    found = sorted(checkpoint.tensors)
    examples = f" such as {', '.join(found[:3])}" if found else ""
    listed = ", ".join(f"{entry['name']} ({', '.join(entry['model_types'])})" for entry in tables)
    raise InputError(
        f"{checkpoint.name} is of no known architecture: it calls itself {kind!r} and has"
        f" {len(found)} tensors{examples}; known are {listed}; --map FILE supplies a table of names"
    )


def _build_model(names: Names) -> Model:
    """The model, after its config has been compared with the shapes of its tensors."""
    checkpoint, table = names.checkpoint, names.table
    where = checkpoint.name
    for key, value in table["requires"].items():
        if checkpoint.config.get(key, value) != value:
            raise InputError(
                f"{where} has {key} = {checkpoint.config[key]!r}: {table['name']} is read with"
                f" {value!r}"
            )
    layers, heads, dim = names.count("layers"), names.count("heads"), names.count("dim")
    groups, shared = names.count("groups", heads), names.count("shared", layers)
    if layers > MAX_LAYERS or shared > layers:
        raise InputError(
            f"{where} has {layers} layers, {shared} of them distinct groups: at most"
            f" {MAX_LAYERS} layers are read"
        )
    if heads % groups or (names.setting("width") is None and dim % heads):
        raise InputError(
            f"{where} has {heads} heads, {groups} groups of keys and the dimension {dim}:"
            " the groups must divide the heads, and the heads the dimension"
        )
    activation = names.setting("activation")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise InputError(
            f"{where} has the activation {activation!r}: known are {', '.join(ACTIVATIONS)}"
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
        hidden=names.count("hidden", _hidden_width(names)),
        shared=shared,
        longest=_longest_sequence(names),
        frequencies=rotary_frequencies(names, block.width),
    )
    _check_tensors(model)
    return model


def _hidden_width(names: Names) -> int | None:
    """The width of the position-wise map, from the shape of its first matrix."""
    name = names.find("layer", "up")
    shape = names.checkpoint.tensors[name].shape if name else ()
    axis = 0 if names.table["block"]["stored"] == "out-in" else 1
    return shape[axis] if len(shape) == 2 else None


def _longest_sequence(names: Names) -> int | None:
    """The number of learned positions, or what the config and its window allow."""
    limits = [names.count(word) for word in ("longest", "window") if names.setting(word)]
    name = names.find("embedding", "positions")
    if name is not None and "patches" not in names.table["embedding"]:
        rows = _row_count(names.checkpoint.tensors[name], 0)
        if limits and limits[0] != rows:
            raise InputError(
                f"{names.checkpoint.name} has {rows} learned positions: its config says {limits[0]}"
            )
        limits.append(rows - names.table["embedding"].get("first_position", 0))
    return min(limits, default=None)


def _row_count(tensor: Tensor, of_scalar: int = 1) -> int:
    return tensor.shape[0] if tensor.shape else of_scalar


def _check_tensors(model: Model) -> None:
    """Every tensor that will be read is there, of real numbers, in the shape the config demands."""
    for name, wanted in (*_layer_shapes(model), *_outer_shapes(model)):
        shape = model.checkpoint.tensors[name].shape
        if shape != wanted:
            raise InputError(
                f"{name} of {model.name} has the shape {shape}: by the config it should be {wanted}"
            )
    for name in model.used:
        dtype = model.checkpoint.tensors[name].dtype
        if dtype.upper().startswith(("I", "U", "BOOL")) and not dtype.startswith("IQ"):
            raise InputError(
                f"{name} of {model.name} is stored as {dtype}: weights must be real numbers"
            )


def _layer_shapes(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of the tensors of the layers, with the shapes that the config demands."""
    b, table = model.block, model.table
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
    needed = NEEDED | ({"qkv"} if "qkv" in table["layer"] else {"query", "key", "value"})
    for word in sorted(needed - set(table["layer"])):
        raise InputError(f"the table {table['name']!r} does not name {word} in [layer]")
    for layer, word in product(range(model.layers), table["layer"]):
        weight, bias = (model.find("layer", word, part, layer) for part in ("weight", "bias"))
        if weight is None:
            base = model.names.base("layer", word, layer, model.group(layer))
            raise InputError(f"{model.name} lacks {word} of layer {layer}: {base}")
        yield weight, shapes[word][:: 1 if table["block"]["stored"] == "out-in" else -1]
        if bias is not None:
            yield bias, shapes[word][:1]


def _outer_shapes(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same for the tensors before and after the layers."""
    tensors, table = model.checkpoint.tensors, model.table
    tokens, width = model.find("embedding", "tokens"), model.dim
    if tokens is not None:
        shape = tensors[tokens].shape
        if len(shape) == 2 and model.find("embedding", "projection"):
            width = shape[-1]
        yield tokens, (model.names.count("vocabulary", _row_count(tensors[tokens])), width)
        for word in ("positions", "types"):
            name = model.find("embedding", word)
            if name is not None:
                yield name, (_row_count(tensors[name]), width)
        unembedding = model.find("final", "unembedding")
        if unembedding is not None:
            yield unembedding, (shape[0], model.dim)
    elif "tokens" in table["embedding"]:
        raise InputError(f"{model.name} lacks its token embedding {table['embedding']['tokens']}")
    for section, word, wanted in (
        ("embedding", "norm", (width,)),
        ("embedding", "projection", (model.dim, width)),
        ("final", "norm", (model.dim,)),
    ):
        if word in table[section]:
            weight, bias = (model.find(section, word, part) for part in ("weight", "bias"))
            if weight is None:
                raise InputError(f"{model.name} lacks {table[section][word]}")
            yield weight, wanted
            if bias is not None:
                yield bias, wanted[:1]
