r"""Architectures: every transformer is read into the same few arrays.

    model = as_model("folder")                        # by the name table that fits, or `table=`
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
from collections.abc import Iterable, Iterator, Mapping
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(Names):
    """A checkpoint read by a table of names.

    `longest` is the longest sequence that the model admits, `frequencies` [width / 2] are those of
    its rotary positions.
    """

    block: Block
    dim: int
    hidden: int
    longest: int | None
    frequencies: np.ndarray | None = field(repr=False)

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

    def load(self, section: str, words: Iterable[str], layer: int = 0) -> dict[str, np.ndarray]:
        """Those of the tensors `words` that the model has, and their biases as `word_bias`."""
        weights = {}
        for word, part in product(words, ("weight", "bias")):
            tensor = self.tensor(section, word, part, layer)
            if tensor is not None:
                weights[word if part == "weight" else f"{word}_bias"] = tensor.load()
        return weights

    def layer(self, index: int) -> dict[str, np.ndarray]:
        """The weights of layer `index` by word, in the shapes of the module's docstring."""
        if not 0 <= index < self.layers:
            raise InputError(f"layer = {index}: {self.name} has the layers 0 to {self.layers - 1}")
        weights, block = self.load("layer", self.table["layer"], index), self.block
        if self.table["block"]["stored"] == "out-in":
            weights = {name: array.T for name, array in weights.items()}
        counts = {"query": block.heads, "key": block.groups, "value": block.groups}
        for suffix in ("", "_bias"):
            words = [f"{word}{suffix}" for word in counts]
            if f"qkv{suffix}" in weights:
                ends = np.cumsum([count * block.width for count in counts.values()])[:-1]
                parts = np.split(weights.pop(f"qkv{suffix}"), ends, axis=-1)
                weights |= dict(zip(words, parts, strict=True))
            for name, count in zip(words, counts.values(), strict=True):
                if name in weights:
                    shape = (*weights[name].shape[:-1], count, block.width)
                    weights[name] = weights[name].reshape(shape)
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
        return replace(self, checkpoint=random)


def as_model(
    source: str | Path | Mapping[str, Any] | Checkpoint | Model,
    config: Mapping[str, Any] | str | Path | None = None,
    table: Mapping[str, Any] | str | Path | None = None,
) -> Model:
    """The model in a folder, a file, a package, in memory, or already read.

    It is read by `table`, or by the first known table that fits: the checkpoint has its names, and
    its model types include the one that the config states, if it states one.

    Arguments:
        source, config: as for `read_checkpoint`.
        table: a table of names or its file, for an architecture that is not known.
    """
    if isinstance(source, Model):
        return source
    checkpoint = source if isinstance(source, Checkpoint) else read_checkpoint(source, config)
    given = read_table(table) if isinstance(table, str | Path) else table
    kind, known = checkpoint.config.get("model_type"), known_tables()
    tables = list(known.values()) if given is None else [complete_table(given, known)]
    for candidate in tables:
        of_its_type = kind is None or given is not None or kind in candidate["model_types"]
        for prefix in candidate["prefixes"] if of_its_type else ():
            names = Names(checkpoint, candidate, prefix)
            if names.find("layer", "out"):
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
    checkpoint, table, where = names.checkpoint, names.table, names.name
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
    first = names.tensor("layer", "up")
    shape = first.shape if first is not None else ()
    hidden = shape[0 if table["block"]["stored"] == "out-in" else 1] if len(shape) == 2 else None
    model = Model(
        checkpoint=checkpoint,
        table=table,
        prefix=names.prefix,
        layers=layers,
        shared=shared,
        block=block,
        dim=dim,
        hidden=names.count("hidden", hidden),
        longest=_longest_sequence(names),
        frequencies=rotary_frequencies(names, block.width),
    )
    _check_tensors(model)
    return model


def _longest_sequence(names: Names) -> int | None:
    """The number of learned positions, or what the config and its window allow."""
    limits = [names.count(word) for word in ("longest", "window") if names.setting(word)]
    positions = names.tensor("embedding", "positions")
    if positions is not None and "patches" not in names.table["embedding"]:
        rows = positions.shape[0] if positions.shape else 0
        if limits and limits[0] != rows:
            raise InputError(
                f"{names.name} has {rows} learned positions: its config says {limits[0]}"
            )
        limits.append(rows - names.table["embedding"].get("first_position", 0))
    return min(limits, default=None)


def _check_tensors(model: Model) -> None:
    """Every tensor that will be read is there, of real numbers, in the shape the config demands."""
    for section, word, layer, wanted in (*_layer_shapes(model), *_outer_shapes(model)):
        transposed = section == "layer" and model.table["block"]["stored"] == "in-out"
        shapes = {"weight": wanted[::-1] if transposed else wanted, "bias": wanted[:1]}
        for part, shape in shapes.items():
            name = model.find(section, word, part, layer)
            if name is None and part == "weight":
                of_layer = f"{word} of layer {layer}: " if section == "layer" else ""
                raise InputError(f"{model.name} lacks {of_layer}{model.base(section, word, layer)}")
            if name is not None and model.checkpoint.tensors[name].shape != shape:
                raise InputError(
                    f"{name} of {model.name} has the shape {model.checkpoint.tensors[name].shape}:"
                    f" by the config it should be {shape}"
                )
    for name in model.used:
        dtype = model.checkpoint.tensors[name].dtype
        if dtype.upper().startswith(("I", "U", "BOOL")) and not dtype.startswith("IQ"):
            raise InputError(
                f"{name} of {model.name} is stored as {dtype}: weights must be real numbers"
            )


Shape = tuple[str, str, int, tuple[int, ...]]
"""The section and word of a tensor, its layer, and the shape [out, in] that the config demands."""


def _layer_shapes(model: Model) -> Iterator[Shape]:
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
        yield "layer", word, layer, shapes[word]


def _outer_shapes(model: Model) -> Iterator[Shape]:
    """The same of what comes before and after the layers; embeddings have any number of rows."""
    table, width = model.table, model.dim
    tokens = model.tensor("embedding", "tokens")
    if tokens is None and "tokens" in table["embedding"]:
        raise InputError(f"{model.name} lacks its token embedding {table['embedding']['tokens']}")
    if tokens is not None:
        if len(tokens.shape) == 2 and model.find("embedding", "projection"):
            width = tokens.shape[-1]
        yield "embedding", "tokens", 0, (model.count("vocabulary", _row_count(tokens)), width)
        for word in ("positions", "types"):
            tensor = model.tensor("embedding", word)
            if tensor is not None:
                yield "embedding", word, 0, (_row_count(tensor), width)
        if model.find("final", "unembedding"):
            yield "final", "unembedding", 0, (_row_count(tokens), model.dim)
    for section, word, wanted in (
        ("embedding", "norm", (width,)),
        ("embedding", "projection", (model.dim, width)),
        ("final", "norm", (model.dim,)),
    ):
        if word in table[section]:
            yield section, word, 0, wanted


def _row_count(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.shape else 1
