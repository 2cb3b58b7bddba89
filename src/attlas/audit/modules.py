"""The Transformer of `attlas.sparse_variables` as a checkpoint in memory.

It has GPT-2's block, tensors and names, but attends to all tokens. Bits are the tokens 0 and 1 and
[CLS], at which it is read, is the token 2 behind them.
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from attlas.errors import InputError

TABLE: Mapping[str, Any] = {
    "extends": "GPT-2",
    "name": "one layer, read at [CLS]",
    "block": {"causal": False},
}


def is_module(source: Any) -> bool:
    """Whether it is such a Transformer; nothing is imported to find out."""
    owner = sys.modules.get("attlas.sparse_variables.model")
    return owner is not None and isinstance(source, owner.Transformer)


def read_module(model: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Its arrays by GPT-2's names, and the config that goes with them.

    Arguments:
        model: one Transformer, with an MLP and layer norms, without an axis of trials.
    """
    if np.ndim(model.tokens) != 2:
        raise InputError(
            f"the module has tokens of the shape {np.shape(model.tokens)}: it must be one model,"
            " without an axis of trials"
        )
    if model.norms is None or model.mlp is None:
        lacking = "layer norms" if model.norms is None else "MLP"
        raise InputError(
            f"the module has no {lacking}: an audit reads blocks with layer norms and an MLP"
        )
    d, heads, width = model.value.shape
    flat = [np.asarray(x).reshape(d, -1) for x in (model.query, model.key, model.value)]
    mlp, block = model.mlp, "h.0."
    found = {
        "wte.weight": model.tokens,
        "wpe.weight": model.positions,
        f"{block}attn.c_attn.weight": np.concatenate(flat, 1),
        f"{block}attn.c_attn.bias": np.zeros(3 * heads * width),
        f"{block}attn.c_proj.weight": np.asarray(model.out).reshape(-1, d),
        f"{block}attn.c_proj.bias": model.out_bias,
        f"{block}mlp.c_fc.weight": mlp.first,
        f"{block}mlp.c_fc.bias": mlp.first_bias,
        f"{block}mlp.c_proj.weight": mlp.second,
        f"{block}mlp.c_proj.bias": mlp.second_bias,
    }
    for name, norm in zip((f"{block}ln_1", f"{block}ln_2", "ln_f"), model.norms, strict=True):
        found |= {f"{name}.weight": norm.gain, f"{name}.bias": norm.shift}
    # It has a logit for each bit, and none for [CLS].
    found["lm_head.weight"] = np.pad(np.asarray(model.read).T, ((0, 1), (0, 0)))
    config = {"model_type": "gpt2", "n_embd": d, "n_head": heads, "n_layer": 1, "vocab_size": 3}
    config |= {"n_positions": model.positions.shape[0], "n_inner": mlp.first.shape[1]}
    return {name: np.asarray(x, np.float32) for name, x in found.items()}, config
