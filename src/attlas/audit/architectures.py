r"""Architectures: every transformer is read into the same few arrays.

    model = as_model("folder")                        # by the name table that fits, or `table=`
    model.layers, model.heads, model.groups, model.dim, model.width, model.hidden, model.block
    weights = model.layer(3)                          # one layer in memory, as float32:

| word | shape | what |
| --- | --- | --- |
| query, query_bias | [dim, heads, width], [heads, width] | $q = W_Q^\top x + b_Q$ |
| key, value (and _bias) | [dim, groups, width] | head i uses group i // (heads / groups) |
| query_norm, key_norm | [width], or [heads, width] | gains of norms of a head, or of all together |
| out, out_bias | [heads, width, dim], [dim] | back to the residual stream |
| attention_norm, mlp_norm (and _bias) | [dim] | gains of the norms before the two branches |
| attention_after, mlp_after (and _bias) | [dim] | the same of norms of what a branch returns |
| up, gate, down (and _bias) | [dim, hidden], [hidden, dim] | the position-wise map |
| router | [dim, experts] | up, gate and down then have a first axis of experts |
| cross_query, ..., cross_out | as query, ..., out | attention to the states of an encoder |
| position_query, position_key | as query, key | of relative positions |

What the model lacks is absent. Whatever the file has, here gains are whole (not 1 plus something),
scales of a branch are multiplied into `out` and `down`, and rotary pairs are (i, i + width/2),
those that are not rotated last. Scores are $\langle q, k\rangle$ over `model.block.temperature`;
`model.views` say what each layer makes of positions.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from attlas.audit.checkpoints import Checkpoint, read_checkpoint
from attlas.audit.model_checks import check_model
from attlas.audit.modules import TABLE, is_module, read_module
from attlas.audit.name_tables import (
    TENSOR_SECTIONS,
    Names,
    complete_table,
    known_tables,
    read_table,
)
from attlas.audit.positions import View, read_views
from attlas.audit.rotary import original_length, rotary_order, rotated_width
from attlas.audit.tensors import constant_tensor, normal_tensor
from attlas.errors import InputError
from attlas.escaping import printable

ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gated-gelu"), "gelu_tanh"),
    **dict.fromkeys(("silu", "swish", "gated-silu"), "silu"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
"""What a config may call an activation, and what it is."""
TERMS = ("c2p", "p2c")
"""The terms of positions in a disentangled attention: of content to position, and back."""
NORMS = ("norm", "_after")
"""The ends of the words for norms."""
MAX_LAYERS = 10_000
DEFAULT_INITIAL_SCALE = 0.02


@dataclass(frozen=True)
class Block:
    """What a compiled layer depends on besides its weights.

    Scores are inner products of queries and keys over `temperature`; with a `cap` c they become
    c tanh(score / c). `chosen` is the number of experts of a token, `terms` are those of positions
    in a disentangled attention.
    """

    heads: int
    groups: int
    width: int
    order: str
    parallel: bool
    norm: str
    eps: float
    activation: str
    causal: bool
    temperature: float
    cap: float | None = None
    chosen: int = 0
    terms: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(Names):
    """A checkpoint read by a table of names.

    `longest` is the longest sequence that the model admits, `views` say how each layer sees
    positions. `buckets` and `distance` are of relative positions. `encoder` is the other part of
    the same checkpoint, to whose states a decoder attends.
    """

    block: Block
    dim: int
    hidden: int
    experts: int
    longest: int | None
    buckets: int
    distance: int
    views: tuple[View, ...] = field(repr=False)
    encoder: "Model | None" = None

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

    @property
    def frequencies(self) -> np.ndarray | None:
        """The rotary frequencies [width / 2] of the first layer that has some."""
        rotations = (view.rotation for view in self.views)
        return next((each.frequencies for each in rotations if each is not None), None)

    @cached_property
    def used(self) -> dict[str, tuple[str, str]]:
        """Names of the tensors that the table mentions, each with its word and part."""
        found = {}
        for section in TENSOR_SECTIONS:
            for layer in range(self.layers) if section == "layer" else (0,):
                for word, part in product(self.table[section], ("weight", "bias")):
                    for expert in range(self.experts if self.has_experts(word) else 1):
                        name = self.find(section, word, part, layer, expert)
                        if name is not None:
                            found[name] = (word, part)
        return found

    def has_experts(self, word: str) -> bool:
        """Whether there is a tensor of [layer] that the table calls `word` for every expert."""
        return "{expert}" in str(self.table["layer"].get(word, ""))

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of the tensors that the table does not mention, such as heads for a task."""
        return tuple(name for name in self.checkpoint.tensors if name not in self.used)

    def load(self, section: str, words: Iterable[str], layer: int = 0) -> dict[str, np.ndarray]:
        """Those of the tensors `words` that the model has, and their biases as `word_bias`."""
        weights = {}
        for word, part in product(words, ("weight", "bias")):
            tensors = [
                self.checkpoint.tensors[name]
                for expert in range(self.experts if self.has_experts(word) else 1)
                if (name := self.find(section, word, part, layer, expert)) is not None
            ]
            if tensors:
                arrays = [tensor.load() for tensor in tensors]
                array = np.stack(arrays) if self.has_experts(word) else arrays[0]
                if self.adds_one(word) and part == "weight":
                    array = array + 1
                weights[word if part == "weight" else f"{word}_bias"] = array
        return weights

    def adds_one(self, word: str) -> bool:
        """Whether what the file calls the gain `word` is the gain less 1."""
        return self.table["block"]["gain"] == "one plus" and word.endswith(NORMS)

    def layer(self, index: int) -> dict[str, np.ndarray]:
        """The weights of layer `index` by word, in the shapes of the module's docstring."""
        if not 0 <= index < self.layers:
            raise InputError(f"layer = {index}: {self.name} has the layers 0 to {self.layers - 1}")
        weights, block = self.load("layer", self.table["layer"], index), self.block
        if self.table["block"]["stored"] == "out-in":
            matrices = {name for name, array in weights.items() if array.ndim > 1}
            weights |= {name: np.swapaxes(weights[name], -1, -2) for name in matrices}
        counts = {"query": block.heads, "key": block.groups, "value": block.groups}
        for suffix in ("", "_bias"):
            if f"qkv{suffix}" in weights:
                weights |= self._split_qkv(weights.pop(f"qkv{suffix}"), suffix)
            if f"gate_up{suffix}" in weights:
                halves = np.split(weights.pop(f"gate_up{suffix}"), 2, axis=-1)
                weights |= {f"gate{suffix}": halves[0], f"up{suffix}": halves[1]}
            for branch, count in counts.items():
                for name in (f"{kind}{branch}{suffix}" for kind in ("", "cross_", "position_")):
                    if name in weights:
                        shape = (*weights[name].shape[:-1], count, block.width)
                        weights[name] = weights[name].reshape(shape)
        for word in {"out", "cross_out"} & set(weights):
            weights[word] = weights[word].reshape(block.heads, block.width, self.dim)
        for scale, word in (("attention_scale", "out"), ("mlp_scale", "down")):
            if scale in weights:
                factors = weights.pop(scale)
                for name in {word, f"{word}_bias"} & set(weights):
                    weights[name] = weights[name] * factors
        for word in {"query_norm", "key_norm"} & set(weights):
            if weights[word].size != block.width:
                weights[word] = weights[word].reshape(-1, block.width)
        if self.frequencies is not None:
            rotated = rotated_width(self, block.width)
            interleaved = self.table["block"]["rotary"] == "interleaved"
            order = rotary_order(rotated, block.width, interleaved)
            turned = {"query", "key", "query_bias", "key_bias", "query_norm", "key_norm"}
            for word in turned & set(weights):
                weights[word] = weights[word][..., order]
        return weights

    def _split_qkv(self, fused: np.ndarray, suffix: str) -> dict[str, np.ndarray]:
        """Queries, keys and values, which lie side by side, or so for every group of heads."""
        block, size = self.block, self.heads // self.groups
        if self.table["block"]["qkv"] == "by group":
            parts = fused.reshape(*fused.shape[:-1], block.groups, size + 2, block.width)
            queries, keys, values = np.split(parts, [size, size + 1], axis=-2)
        else:
            ends = np.cumsum([block.heads, block.groups]) * block.width
            queries, keys, values = np.split(fused, ends, axis=-1)
        shape = fused.shape[:-1]
        return {
            f"query{suffix}": queries.reshape(*shape, -1),
            f"key{suffix}": keys.reshape(*shape, -1),
            f"value{suffix}": values.reshape(*shape, -1),
        }

    def reinitialised(self, seed: int = 0) -> "Model":
        """The same architecture with random weights, drawn when they are asked for.

        Matrices are normal with the config's `initializer_range` (0.02 without one), gains are 1
        and biases 0.
        """
        given = self.config.get("initializer_range")
        scale = given if isinstance(given, float) and 0 < given < 1 else DEFAULT_INITIAL_SCALE
        parts = [self] if self.encoder is None else [self, self.encoder]
        tensors = {}
        for part in parts:
            for name, (word, kind) in part.used.items():
                shape = self.checkpoint.tensors[name].shape
                constant = word.endswith((*NORMS, "_scale")) or word == "rotary_factors"
                if kind == "bias" or part.adds_one(word):
                    tensors[name] = constant_tensor(shape, 0.0)
                elif constant:
                    tensors[name] = constant_tensor(shape, 1.0)
                else:
                    tensors[name] = normal_tensor(shape, scale, seed, name)
        random = replace(self.checkpoint, name=f"{self.name}, random", tensors=tensors)
        other = None if self.encoder is None else replace(self.encoder, checkpoint=random)
        return replace(self, checkpoint=random, encoder=other)


def as_model(
    source: Any,
    config: Any = None,
    table: Mapping[str, Any] | str | Path | None = None,
) -> Model:
    """The model in a folder, a file, a package, in memory, or already read.

    It is read by `table`, or by the first known table that fits: the checkpoint has its names, its
    model types include the one that the config states, if it states one, and the config says what
    it requires.

    Arguments:
        source, config: as for `read_checkpoint`.
        table: a table of names or its file, for an architecture that is not known; or the name of a
            known table, for one part of a model of several.
    """
    if isinstance(source, Model):
        return source
    if is_module(source):
        arrays, stated = read_module(source)
        return as_model(arrays, config or stated, table or TABLE)
    checkpoint = source if isinstance(source, Checkpoint) else read_checkpoint(source, config)
    known = known_tables()
    if isinstance(table, str | Path):
        table = known[str(table)] if str(table) in known else read_table(table)
    given = None if table is None else complete_table(table, known)
    fitting = fitting_tables(checkpoint, list(known.values()) if given is None else [given], given)
    meeting = [names for names in fitting if meets(names)]
    if given is None and len(meeting) > 1 and "model_type" not in checkpoint.config:
        return _only_model(meeting)
    if meeting:
        return _build_model(meeting[0])
    if fitting:
        key, value = _unmet(fitting[0]) or ("", None)
        raise InputError(
            f"{checkpoint.name} has {key} = {printable(repr(fitting[0].config[key]))}:"
            f" {fitting[0].table['name']} is read with {value!r}"
        )
    found = sorted(checkpoint.tensors)
    examples = f" such as {', '.join(map(printable, found[:3]))}" if found else ""
    kind = printable(repr(checkpoint.config.get("model_type")))
    types = sorted({each for entry in known.values() for each in entry["model_types"]})
    raise InputError(
        f"{checkpoint.name} is of no known architecture: it calls itself {kind} and has"
        f" {len(found)} tensors{examples}; known are {', '.join(types)}; --map FILE supplies a"
        " table of names"
    )


def _only_model(tables: list[Names]) -> Model:
    """The model by the one of several tables that can read it; where more can, nobody knows."""
    found, refused = [], []
    for names in tables:
        try:
            found.append(_build_model(names))
        except InputError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    if len(found) > 1:
        titles = ", ".join(repr(model.table["name"]) for model in found)
        raise InputError(
            f"the config of {found[0].name} does not say its model_type, and it could be any of"
            f" {titles}: --map NAME says which"
        )
    return found[0]


def fitting_tables(
    checkpoint: Checkpoint, tables: Iterable[Mapping[str, Any]], given: Any = None
) -> list[Names]:
    """The tables whose names the checkpoint has, of its type; of any type for a table `given`."""
    found = []
    for table in tables:
        inside = checkpoint.config.get(table["inside"])
        parts = [checkpoint.config, inside if isinstance(inside, Mapping) else {}]
        kinds = [part["model_type"] for part in parts if part.get("model_type") is not None]
        known = any(kind in table["model_types"] for kind in kinds)
        of_its_type = given is not None or not kinds or known
        for prefix in table["prefixes"] if of_its_type else ():
            names = Names(checkpoint, table, prefix)
            if names.find("layer", "out"):
                found.append(names)
                break
    return found


def meets(names: Names) -> bool:
    """Whether the config says what the table requires."""
    return _unmet(names) is None


def _unmet(names: Names) -> tuple[str, Any] | None:
    """The first field of the config that is not as the table requires."""
    for key, value in names.table["requires"].items():
        stated = names.config.get(key)
        if stated is not None and stated != value:
            return key, value
    return None


def _build_model(names: Names) -> Model:
    """The model, after its config has been compared with the shapes of its tensors."""
    table, where, flags = names.table, names.name, names.table["block"]
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
            f"{where} has the activation {printable(repr(activation))}: known are"
            f" {', '.join(ACTIVATIONS)}"
        )
    terms = _position_terms(names)
    width = names.count("width", dim // heads or None)
    squared = float(width) * (1 + len(terms))
    if names.setting("temperature_squared") is not None:
        squared = names.number("temperature_squared", 0.0, 1e9)
    capped = names.setting("cap") is not None
    experts = names.count("experts") if "router" in table["layer"] else 0
    block = Block(
        heads=heads,
        groups=groups,
        width=width,
        order=flags["order"],
        parallel=flags["parallel"],
        norm=flags["norm"],
        eps=names.number("eps", 0.0, 1.0),
        activation=ACTIVATIONS[activation],
        causal=flags["causal"],
        temperature=math.sqrt(squared),
        cap=names.number("cap", 0.0, 1e9) if capped else None,
        chosen=names.count("chosen") if experts else 0,
        terms=terms,
    )
    if block.chosen > experts:
        raise InputError(f"{where} chooses {block.chosen} of {experts} experts")
    stored = names.tensor("layer", "down")
    shape = stored.shape if stored is not None else ()
    hidden = shape[1 if flags["stored"] == "out-in" else 0] if len(shape) == 2 else None
    buckets = names.setting("buckets", -1)
    distance = names.setting("distance", -1)
    model = Model(
        checkpoint=names.checkpoint,
        table=table,
        prefix=names.prefix,
        layers=layers,
        shared=shared,
        block=block,
        dim=dim,
        hidden=names.count("hidden", hidden),
        experts=experts,
        longest=_longest_sequence(names),
        buckets=0 if buckets == -1 else names.count("buckets"),
        distance=names.count("longest", 1) if distance == -1 else names.count("distance"),
        views=(),
    )
    check_model(model)
    # Nothing of a size that the config alone states is built before the tensors have been checked.
    model = replace(model, views=read_views(names, layers, width))
    if not table["encoder"]:
        return model
    other = replace(names, table=known_tables()[table["encoder"]])
    return replace(model, encoder=_build_model(other))


def _position_terms(names: Names) -> tuple[str, ...]:
    """The terms of a disentangled attention, a list in the config or words joined by |."""
    if names.table["block"]["bias"] != "disentangled":
        return ()
    stated = names.setting("terms", [])
    listed = stated.split("|") if isinstance(stated, str) else stated
    if not isinstance(listed, list) or not set(map(str, listed)) <= set(TERMS):
        raise InputError(
            f"{names.name} has terms of positions {printable(stated)}: known are {', '.join(TERMS)}"
        )
    return tuple(term for term in TERMS if term in listed)


def _longest_sequence(names: Names) -> int | None:
    """The number of learned positions, or what the config allows."""
    limits = [names.count("longest")] if names.setting("longest") else []
    positions = names.tensor("embedding", "positions")
    if positions is not None and names.table["block"]["takes"] == "texts":
        rows = positions.shape[0] if positions.shape else 0
        if limits and limits[0] != rows:
            raise InputError(
                f"{names.name} has {rows} learned positions: its config says {limits[0]}"
            )
        limits.append(rows - names.table["embedding"].get("first_position", 0))
    unstretched = original_length(names)
    return min([*limits, *([unstretched] if unstretched else [])], default=None)
