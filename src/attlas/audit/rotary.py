r"""Rotary positions: pair i of a query or key at position t is rotated by the angle $t f_i$.

Pairs are (i, i + width/2). Su et al. 2021, https://arxiv.org/abs/2104.09864.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attlas.audit.name_tables import Names, number_between
from attlas.errors import InputError
from attlas.escaping import printable


def rotate_pairs(x: Any, cosine: Any, sine: Any) -> Any:
    """Rotate the pairs (i, i + width/2) of `x` [..., width]; NumPy or JAX.

    `cosine` and `sine` of the angles broadcast against [..., width / 2].
    """
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    rotated = [a * cosine - b * sine, b * cosine + a * sine]
    return x.__array_namespace__().concat(rotated, axis=-1)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Frequencies of the pairs of a head, and factors by which pairs are stretched, [width / 2].

    Pairs that are not rotated come last, with the frequency 0 and the factor 1.
    """

    frequencies: np.ndarray
    factors: np.ndarray

    def turn(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines at `positions` [...], times the factors; [..., width / 2]."""
        angles = positions[..., None] * self.frequencies
        return self.factors * np.cos(angles), self.factors * np.sin(angles)


def rotated_width(names: Names, width: int) -> int:
    """How many of the `width` coordinates of a head are rotated."""
    rotated = names.count("rotated", width)
    if names.setting("rotated_share") is not None:
        rotated = int(width * names.number("rotated_share", 0.0, 1.0 + 1e-9))
    if width % 2 or rotated % 2 or not 0 < rotated <= width:
        raise InputError(
            f"{names.name} rotates {rotated} coordinates of its heads of width {width}: both must"
            " be even, and the first at most the second"
        )
    return rotated


def rotary_order(rotated: int, width: int, interleaved: bool) -> np.ndarray:
    """The coordinates of a head in an order in which pairs are (i, i + width/2).

    Arguments:
        rotated: of the coordinates the first so many are rotated.
        interleaved: pairs are neighbours in the file; else (i, i + rotated/2).
    """
    first = np.arange(rotated).reshape((-1, 2) if interleaved else (2, -1))
    first = first.T if interleaved else first
    return np.concatenate([first, np.arange(rotated, width).reshape(2, -1)], 1).ravel()


def read_rotation(names: Names, width: int, kind: str) -> Rotation:
    r"""The rotation that a config describes, of layers of a kind.

    Frequencies are $f_i = \text{base}^{-2i/r}$ of the $r$ coordinates that are rotated, stretched
    as the config says: divided by a factor (linear), in part (llama3, yarn), or each by its own
    (longrope, of which the factors for short texts are used).

    Arguments:
        kind: "full_attention" or "sliding_attention"; layers of the second kind may have a base of
            their own, and are then not stretched.
    """
    where, scaling = names.name, names.setting("scaling", {})
    if isinstance(scaling, str):
        scaling = {"rope_type": scaling, "factor": names.setting("factor")}
    if not isinstance(scaling, Mapping):
        raise InputError(
            f"{where} has the rotary scaling {printable(scaling)}: it must be a section of names"
        )
    local = kind == "sliding_attention" and names.keys("local_base")
    base = None
    if isinstance(scaling.get(kind), Mapping):
        scaling = scaling[kind]
        base = scaling.get("rope_theta")
    elif local:
        scaling = {}
    if base is None:
        base = names.setting("local_base" if local else "base")
    base = number_between(f"{where} has base", base, 1.0, 1e12)
    rotated = rotated_width(names, width)
    plain = base ** (-np.arange(0, rotated, 2) / rotated)
    frequencies, factor = _stretch(names, scaling, plain, base)
    stored = names.tensor("embedding", "rotary_factors")
    if stored is not None:
        if stored.shape != frequencies.shape:
            raise InputError(
                f"{names.find('embedding', 'rotary_factors')} of {where} has the shape"
                f" {stored.shape}: it should be {frequencies.shape}"
            )
        frequencies = frequencies / stored.load()
    rest = (width - rotated) // 2
    return Rotation(
        np.concatenate([frequencies, np.zeros(rest)]),
        np.concatenate([np.full(len(frequencies), factor), np.ones(rest)]),
    )


def original_length(names: Names) -> int | None:
    """The length up to which frequencies do not depend on the text, where the config says so."""
    scaling = names.setting("scaling", {})
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    if kind not in ("longrope", "su", "dynamic"):
        return None
    stated = names.config.get("original_max_position_embeddings")
    stated = scaling.get("original_max_position_embeddings", stated)
    return stated if isinstance(stated, int) and stated > 0 else None


def _stretch(
    names: Names, scaling: Mapping[str, Any], frequencies: np.ndarray, base: float
) -> tuple[np.ndarray, float]:
    """The stretched frequencies, and the factor of cosines and sines."""
    where = names.name

    def parameter(word: str, default: float | None = None) -> float:
        value = scaling.get(word)
        stated = default if value is None else value
        return number_between(f"{where} has the rotary scaling {word}", stated, 0.0, 1e9)

    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "finetuned"}
    known |= {"original_max_position_embeddings", "attention_factor", "short_factor"}
    known |= {"long_factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"}
    known |= {"mscale", "mscale_all_dim", "truncate", "full_attention", "sliding_attention"}
    unknown = [word for word, value in scaling.items() if word not in known and value is not None]
    if unknown:
        raise InputError(
            f"{where} has the rotary scaling {printable(unknown[0])}, which is not known"
        )
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default" | "none" | "dynamic" | None:  # dynamic: of texts beyond the original length
            return frequencies, 1.0
        case "linear":
            return frequencies / parameter("factor"), 1.0
        case "llama3":
            turns = parameter("original_max_position_embeddings") * frequencies / (2 * np.pi)
            low, high = parameter("low_freq_factor"), parameter("high_freq_factor")
            if low >= high:
                raise InputError(
                    f"{where} has the rotary factors {low:g} and {high:g}: the first must be the"
                    " smaller"
                )
            kept = np.clip((turns - low) / (high - low), 0, 1)
            return frequencies * (kept + (1 - kept) / parameter("factor")), 1.0
        case "yarn":
            length, factor = parameter("original_max_position_embeddings"), parameter("factor")
            size = 2 * len(frequencies)
            ends = [
                size * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(base))
                for turns in (parameter("beta_fast", 32.0), parameter("beta_slow", 1.0))
            ]
            if scaling.get("truncate") is not False:
                ends = [np.floor(ends[0]), np.ceil(ends[1])]
            low, high = max(ends[0], 0), min(ends[1], size - 1)
            high += 0.001 * (low == high)
            divided = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0, 1)
            scales = [scaling.get(word) or 1.0 for word in ("mscale", "mscale_all_dim")]
            grown = [0.1 * scale * np.log(max(factor, 1.0)) + 1 for scale in scales]
            both = scaling.get("mscale") and scaling.get("mscale_all_dim")
            usual = grown[0] / grown[1] if both else 0.1 * np.log(max(factor, 1.0)) + 1
            stretched = frequencies * (1 - divided + divided / factor)
            return stretched, parameter("attention_factor", float(usual))
        case "longrope" | "su":
            factors = np.asarray(scaling.get("short_factor"), object)
            if factors.shape != frequencies.shape:
                raise InputError(
                    f"{where} has a short_factor of the shape {factors.shape}: it should be"
                    f" {frequencies.shape}"
                )
            length = original_length(names) or names.count("longest")
            factor = parameter("factor", names.count("longest") / length)
            usual = np.sqrt(1 + np.log(max(factor, 1.0)) / np.log(max(length, 2)))
            shares = [number_between(f"{where} has short_factor", x, 0.0, 1e9) for x in factors]
            return frequencies / np.array(shares), parameter("attention_factor", float(usual))
        case other:
            raise InputError(
                f"{where} stretches its rotary positions by {printable(repr(other))}: known are"
                " default, linear, dynamic, llama3, yarn and longrope"
            )
