r"""Rotary positions: pair i of a query or key at position t is rotated by the angle $t f_i$.

Pairs are (i, i + width/2). Su et al. 2021, https://arxiv.org/abs/2104.09864.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attlas.audit.name_tables import Names, number_between
from attlas.errors import InputError


def rotate_pairs(x: Any, cosine: Any, sine: Any) -> Any:
    """Rotate the pairs (i, i + width/2) of `x` [..., width]; NumPy or JAX.

    `cosine` and `sine` of the angles broadcast against [..., width / 2].
    """
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    rotated = [a * cosine - b * sine, b * cosine + a * sine]
    return x.__array_namespace__().concat(rotated, axis=-1)


def rotary_frequencies(names: Names, width: int) -> np.ndarray | None:
    r"""The frequencies [width / 2] that a config describes; None for a model without them.

    $f_i = \text{base}^{-2i/\text{width}}$, divided by a factor if the config stretches them
    linearly, or as in Llama 3, where only low frequencies are divided.
    """
    if names.table["block"]["rotary"] == "none":
        return None
    where = names.name
    if width % 2 or names.count("rotated", width) != width:
        raise InputError(
            f"{where} turns a part of its heads of width {width} only: rotary positions turn the"
            " whole here"
        )
    frequencies = names.number("base", 1.0, 1e12) ** (-np.arange(0, width, 2) / width)
    frequencies = _stretch(names, frequencies)
    factors = names.tensor("embedding", "rotary_factors")
    if factors is None:
        return frequencies
    if factors.shape != frequencies.shape:
        raise InputError(
            f"{names.find('embedding', 'rotary_factors')} of {where} has the shape"
            f" {factors.shape}: it should be {frequencies.shape}"
        )
    return frequencies / factors.load()


def _stretch(names: Names, frequencies: np.ndarray) -> np.ndarray:
    where, scaling = names.name, names.setting("scaling", {})
    if isinstance(scaling, str):
        scaling = {"rope_type": scaling, "factor": names.setting("factor")}
    if not isinstance(scaling, Mapping):
        raise InputError(
            f"{where} has the rotary scaling {scaling!r}: it must be a section of names"
        )

    def parameter(word: str) -> float:
        return number_between(f"{where} has the rotary scaling {word}", scaling.get(word), 0.0, 1e9)

    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default" | "none" | None:
            return frequencies
        case "linear":
            return frequencies / parameter("factor")
        case "llama3":
            turns = parameter("original_max_position_embeddings") * frequencies / (2 * np.pi)
            low, high = parameter("low_freq_factor"), parameter("high_freq_factor")
            if low >= high:
                raise InputError(
                    f"{where} has the rotary factors {low:g} and {high:g}: the first must be the"
                    " smaller"
                )
            kept = np.clip((turns - low) / (high - low), 0, 1)
            return frequencies * (kept + (1 - kept) / parameter("factor"))
        case other:
            raise InputError(
                f"{where} stretches its rotary positions by {other!r}: known are default, linear"
                " and llama3"
            )
