"""A checkpoint is read as its config and its table say, or refused: nothing is silently left out.

check_model(model)      # shapes, presence, numbers; tensors and fields that nothing knows
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from attlas.audit.name_tables import TENSOR_SECTIONS
from attlas.audit.tensors import Tensor
from attlas.errors import InputError
from attlas.escaping import printable

if TYPE_CHECKING:
    from attlas.audit.architectures import Model

PARTS = ("weight", "bias")
OFF: tuple[Any, ...] = (None, False, "none", [], {}, 0)
"""Values of a field by which a config switches something off."""
MAY_CHANGE = re.compile(
    "attn|attention|rope|rotary|alibi|position|window|sliding|layer_type|norm|bias|scal|multipl"
    "|cap|temper|expert|router|moe|parallel|cross|relative|qk|gate|kernel|conv|act$|activation"
    "|logit|chunk|sparse|local|global|pattern|residual|embed|quant|adapter|lora|prun|share|linear"
)
"""What the name of a field of a config may contain that changes the forward pass."""
NEUTRAL = re.compile(
    "drop|^init|^temperature$|token_id"
    "|^summary|^classifier|^pooler|^output_|^use_cache|^return_|dtype"
    "|attn_implementation|^_|^general[.]|^tokenizer[.]|chunk_size_feed_forward|aux_loss|^mask_"
    "|^tie_|vocab|^encoder_no_repeat|pretraining_tp|^problem|2label|label2|^task_|^out_|^stage"
)
"""What it may contain, and does not: training, generation, what stands after the layers."""


def check_model(model: "Model") -> None:
    """An `InputError` unless the checkpoint holds what config and table say, and no more."""
    _check_shapes(model)
    _check_presence(model)
    _check_numbers(model)
    _check_unused(model)
    _check_fields(model)


def _check_shapes(model: "Model") -> None:
    """Every tensor that will be read is there, of real numbers, in the shape the config demands."""
    for section, word, layer, expert, wanted in chain(_layer_shapes(model), _outer_shapes(model)):
        transposed = section == "layer" and model.table["block"]["stored"] == "in-out"
        shapes = {"weight": wanted[::-1] if transposed else wanted, "bias": wanted[:1]}
        for part, shape in shapes.items():
            name = model.find(section, word, part, layer, expert)
            if name is None and part == "weight":
                of_layer = f"{word} of layer {layer}: " if section == "layer" else ""
                called = " or ".join(model.bases(section, word, layer, expert))
                raise InputError(f"{model.name} lacks {of_layer}{called}")
            if name is not None and model.checkpoint.tensors[name].shape != shape:
                raise InputError(
                    f"{printable(name)} of {model.name} has the shape"
                    f" {model.checkpoint.tensors[name].shape}: by the config it should be {shape}"
                )


def _check_presence(model: "Model") -> None:
    """What one layer has, all have; and what the config switches on or off is there or not."""
    layers = [
        {
            (word, part)
            for word, part in product(model.table["layer"], PARTS)
            if model.find("layer", word, part, layer)
        }
        for layer in range(model.layers)
    ]
    late = set(product(model.table["not_first"], PARTS))
    for layer, found in enumerate(layers):
        for word, part in sorted((found ^ layers[-1]) - (set() if layer else late)):
            raise InputError(
                f"{model.name} has the {part} of {word} in some layers and not in others: layers"
                f" {layer} and {model.layers - 1} differ"
            )
    for word, rule in model.table["present"].items():
        negated, key = rule.startswith("not "), rule.removeprefix("not ")
        if key in model.config:
            wanted = (model.config[key] not in OFF) != negated
            section = "layer" if word in model.table["layer"] else "embedding"
            if wanted != (model.find(section, word, layer=model.layers - 1) is not None):
                raise InputError(
                    f"{model.name} {'lacks' if wanted else 'has'} {word}: its config says"
                    f" {key} = {printable(repr(model.config[key]))}"
                )
    for flag, word in (("attention_biased", "out"), ("mlp_biased", "up")):
        stated = model.setting(flag) is True and word in model.table["layer"]
        if stated and model.find("layer", word, "bias") is None:
            raise InputError(f"{model.name} lacks the bias of {word}, which its config states")
    if str(model.setting("activation")).startswith("gated") and not model.find("layer", "gate"):
        raise InputError(f"{model.name} lacks gate, which its activation needs")


def _check_numbers(model: "Model") -> None:
    for name in model.used:
        tensor = model.checkpoint.tensors[name]
        dtype = tensor.dtype
        if dtype.upper().startswith(("I", "U", "BOOL")) and not dtype.startswith("IQ"):
            raise InputError(
                f"{printable(name)} of {model.name} is stored as {dtype}: weights must be real"
                " numbers"
            )
        if not tensor.size:
            raise InputError(
                f"{printable(name)} of {model.name} has the shape {tensor.shape}: it is empty"
            )


def _check_unused(model: "Model") -> None:
    """A tensor that stands among those of the layers or the embedding is read, or listed in the
    table as one to ignore."""
    bases = [
        base
        for section in TENSOR_SECTIONS
        for word in model.table[section]
        for base in model.bases(section, word)
    ]
    roots = {base.split(".")[0] for base in bases}
    for name in model.unused:
        own = name.removeprefix(model.prefix)
        listed = any(fnmatch(own, pattern) for pattern in model.table["ignore"])
        if own.split(".")[0] in roots and not listed:
            raise InputError(
                f"{model.name} has the tensor {printable(name)}, which the table"
                f" {model.table['name']!r} does not use: a forward pass without it could be wrong"
                " (a table of one's own may list it under [ignore], with the reason)"
            )


def _check_fields(model: "Model") -> None:
    """A field of the config that may change the forward pass is one that the table knows."""
    keys = {str(key).split(".")[0] for word in model.table["config"] for key in model.keys(word)}
    keys |= {str(key) for word in model.table["config"] for key in model.keys(word)}
    keys |= {*model.table["requires"], *model.table["neutral"]}
    for key, value in model.config.items():
        off = value is None or value is False or value in ("none", [], {})
        if key in keys or off or NEUTRAL.search(key) or not MAY_CHANGE.search(key):
            continue
        raise InputError(
            f"{model.name} has {printable(key)} = {printable(repr(value))} in its config: it may"
            f" change the forward pass, and the table {model.table['name']!r} does not know it"
            " (a table of one's own may list it as neutral)"
        )


Shape = tuple[str, str, int, int, tuple[int, ...]]
"""The section and word of a tensor, its layer and expert, and the shape [out, in] that the config
demands."""


def _layer_shapes(model: "Model") -> Iterator[Shape]:
    b, table = model.block, model.table
    queries, keys, hidden, dim = b.heads * b.width, b.groups * b.width, model.hidden, model.dim
    sizes = {"query": queries, "key": keys, "value": keys}
    shapes: dict[str, tuple[int, ...]] = {
        f"{kind}{word}": (size, dim)
        for kind in ("", "cross_", "position_")
        for word, size in sizes.items()
    }
    shapes |= {
        "qkv": (queries + 2 * keys, dim),
        **dict.fromkeys(("out", "cross_out"), (dim, queries)),
        **dict.fromkeys(("up", "gate"), (hidden, dim)),
        "gate_up": (2 * hidden, dim),
        "down": (dim, hidden),
        "router": (model.experts, dim),
    }
    needed = {"out", "down"}
    needed |= {"gate_up"} if "gate_up" in table["layer"] else {"up"}
    needed |= {"qkv"} if "qkv" in table["layer"] else {"query", "key", "value"}
    if "attention_after" not in table["layer"]:
        needed |= {"attention_norm"} | (set() if b.parallel else {"mlp_norm"})
    for word in sorted(needed - set(table["layer"])):
        raise InputError(f"the table {table['name']!r} does not name {word} in [layer]")
    for layer, word in product(range(model.layers), table["layer"]):
        shape = shapes.get(word, (dim,))
        if word in ("query_norm", "key_norm"):  # of one head, or of all
            tensor = model.tensor("layer", word, layer=layer)
            whole = (sizes[word.removesuffix("_norm")],)
            shape = whole if tensor is not None and tensor.shape == whole else (b.width,)
        if word in table["not_first"] and layer == 0:
            continue
        if word in table["present"] and model.find("layer", word, layer=layer) is None:
            continue
        for expert in range(model.experts if model.has_experts(word) else 1):
            yield "layer", word, layer, expert, shape


def _outer_shapes(model: "Model") -> Iterator[Shape]:
    """The same of what comes before and after the layers; embeddings have any number of rows."""
    table, dim = model.table, model.dim
    tokens = model.tensor("embedding", "tokens")
    if tokens is None and "tokens" in table["embedding"]:
        raise InputError(f"{model.name} lacks its token embedding {table['embedding']['tokens']}")
    width = dim
    if tokens is not None:
        if len(tokens.shape) == 2 and model.find("embedding", "projection"):
            width = tokens.shape[-1]
        yield "embedding", "tokens", 0, 0, (model.count("vocabulary", _row_count(tokens)), width)
        projected_first = table["block"]["projected"] == "first"
        for word in ("positions", "types"):
            tensor = model.tensor("embedding", word)
            if word in table["embedding"] and (tensor is not None or word not in table["present"]):
                size = dim if projected_first else width
                yield "embedding", word, 0, 0, (_row_count(tensor), size)
        if model.find("final", "unembedding"):
            yield "final", "unembedding", 0, 0, (_row_count(tokens), width)
    disentangled = table["block"]["bias"] == "disentangled"
    rows = 2 * (model.buckets or model.distance) if disentangled else model.buckets
    columns = dim if disentangled else model.heads
    for section, word, wanted, needed in (
        ("embedding", "norm", (width,), True),
        ("embedding", "projection", (dim, width), width != dim),
        ("embedding", "relative", (rows, columns), True),
        ("embedding", "relative_norm", (dim,), False),
        ("final", "norm", (dim,), True),
        ("final", "projection", (width, dim), False),
    ):
        present = word in table[section] and model.find(section, word) is not None
        if word in table[section] and (needed or present):
            yield section, word, 0, 0, wanted


def _row_count(tensor: Tensor | None) -> int:
    return tensor.shape[0] if tensor is not None and tensor.shape else 1
