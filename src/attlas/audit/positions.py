r"""What a layer makes of positions: whom its tokens see, how pairs rotate, what scores gain.

views = read_views(names, layers, width)      # a `View` of every layer, shared by like layers
admitted_pairs(view, causal, mask, positions)     # [b, q, k]
score_bias(model, positions)                  # [b, heads, q, k]: ALiBi, or relative buckets
relative_index(model, positions)              # [b, q, k]: rows of the relative embedding
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from attlas.audit.name_tables import Names
from attlas.audit.rotary import Rotation, read_rotation
from attlas.errors import InputError
from attlas.escaping import printable

if TYPE_CHECKING:
    from attlas.audit.architectures import Model

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, eq=False)
class View:
    """How the tokens of a layer see each other.

    A query sees keys less than `window` tokens back, in models that are not causal at most half of
    it to either side; all without one. `rotation` is None without rotary positions.
    """

    window: int | None
    rotation: Rotation | None


def read_views(names: Names, layers: int, width: int) -> tuple[View, ...]:
    """The view of every layer, as the config describes it."""
    kinds = _kinds_of_layers(names, layers)
    window = names.count("window") if SLIDING in kinds else None
    rotates = names.by_layer("rotates", int)
    if rotates is None:
        every = names.setting("unrotated_every")
        step = names.count("unrotated_every") if every is not None else layers + 1
        rotates = [(layer + 1) % step for layer in range(layers)]
    rotary = names.table["block"]["rotary"] != "none"
    views: dict[tuple[str, bool], View] = {}
    found = []
    for kind, rotated in zip(kinds, rotates, strict=True):
        key = kind, rotary and bool(rotated)
        if key not in views:
            rotation = read_rotation(names, width, kind) if key[1] else None
            views[key] = View(window if kind == SLIDING else None, rotation)
        found.append(views[key])
    return tuple(found)


def _kinds_of_layers(names: Names, layers: int) -> list[str]:
    """Whether each layer sees all tokens or those in a window."""
    windowed = names.setting("window") is not None and names.setting("windowed", True) is not False
    known, listed = [FULL, SLIDING] if windowed else [FULL], names.by_layer("layer_types", str)
    if listed is not None:
        unknown = [kind for kind in listed if kind not in known]
        if unknown:
            raise InputError(
                f"{names.name} has layers of the type {printable(unknown[0])!r}: known of a model"
                f" {'with' if windowed else 'without'} a window are {' and '.join(known)}"
            )
        return listed
    if not windowed:
        return [FULL] * layers
    if names.setting("full_every") is not None:
        every, first = names.count("full_every"), names.table["block"]["full"] == "first"
        return [SLIDING if (i + (not first)) % every else FULL for i in range(layers)]
    below = names.count("full_below") if names.setting("full_below") else 0
    return [FULL if layer < below else SLIDING for layer in range(layers)]


def admitted_pairs(
    view: View, causal: bool, mask: Bool[np.ndarray, "b n"], positions: Int[np.ndarray, "b n"]
) -> Bool[np.ndarray, "b q k"]:
    """Which query may attend to which key; `mask` is False on padding."""
    admitted = np.broadcast_to(mask[:, None, :], (*mask.shape, mask.shape[1]))
    back = positions[:, :, None] - positions[:, None, :]
    if causal:
        admitted = admitted & (back >= 0)
    if view.window is not None:
        admitted = admitted & (back < view.window if causal else np.abs(back) <= view.window // 2)
    return admitted


# --- what scores gain by position ----------------------------------------------------------------


def alibi_slopes(heads: int) -> Float[np.ndarray, " heads"]:
    r"""$2^{-8i/n}$ for $i = 1, \dots, n$ with $n$ the largest power of 2 up to `heads`; for the
    heads beyond it every second of the slopes of $2n$. Press et al. 2021,
    https://arxiv.org/abs/2108.12409."""
    power = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4 * np.arange(1, 2 * power, 2) / power)
    return np.concatenate([slopes, between])[:heads]


def relative_bucket(
    ahead: Int[np.ndarray, "..."], buckets: int, distance: int, causal: bool
) -> Int[np.ndarray, "..."]:
    """The bucket of a key that is so many tokens `ahead` of the query: one for each small distance,
    then logarithmic up to `distance`, where not `causal` half of them for keys ahead. Raffel et al.
    2020, https://arxiv.org/abs/1910.10683."""
    first, far = np.zeros_like(ahead), -np.minimum(ahead, 0)
    if not causal:
        buckets //= 2
        first, far = (ahead > 0) * buckets, np.abs(ahead)
    exact = buckets // 2
    # In float32, as those who trained the models have it: at the edge of a bucket it matters.
    logs = np.log(np.maximum(far, 1).astype(np.float32) / exact) / np.log(distance / exact)
    large = exact + (logs * (buckets - exact)).astype(int)
    return first + np.where(far < exact, far, np.minimum(large, buckets - 1))


def score_bias(
    model: "Model", positions: Int[np.ndarray, "b n"]
) -> Float[np.ndarray, "b heads q k"] | None:
    """What is added to the scores of all layers; None for models without such."""
    kind = model.table["block"]["bias"]
    if kind.startswith("alibi"):
        slopes = alibi_slopes(model.heads)[:, None, None]
        scale = model.block.temperature if kind == "alibi over temperature" else 1.0
        ahead = positions[:, None, :] - positions[:, :, None]
        return slopes * ahead[:, None] / scale
    if kind != "buckets":
        return None
    ahead = positions[:, None, :] - positions[:, :, None]
    table = model.load("embedding", ("relative",))["relative"]
    bucket = relative_bucket(ahead, len(table), model.distance, model.block.causal)
    return np.moveaxis(table[bucket], -1, 1)


def relative_index(
    model: "Model", positions: Int[np.ndarray, "b n"]
) -> Int[np.ndarray, "b q k"] | None:
    """The row of the relative embedding for each query and key of a disentangled attention; None
    for other models. He et al. 2021, https://arxiv.org/abs/2006.03654."""
    if model.table["block"]["bias"] != "disentangled":
        return None
    tensor = model.tensor("embedding", "relative")
    span = tensor.shape[0] // 2 if tensor is not None else 0
    back = positions[:, :, None] - positions[:, None, :]
    if model.buckets:
        half = model.buckets // 2
        near = np.abs(back) < half
        far = np.where(near, half - 1, np.abs(back)).astype(np.float32)
        with np.errstate(divide="ignore"):  # half may be 1
            logs = np.log(far / half) / np.log(np.float32((model.distance - 1) / half))
        log_bucket = np.ceil(logs * (half - 1)) + half
        back = np.where(far <= half, back, log_bucket * np.sign(back)).astype(int)
    return np.clip(back + span, 0, 2 * span - 1)
