r"""Bags of instances laid out in rows, and softmax heads on them.

$$f(X) = b + \sum_h\sum_l p^h_l\,V_h^\top x_l, \qquad
p^h = \mathrm{softmax}_l(\langle x_l, u_h\rangle + q_h|x_l|^2),$$

the head of `SingleLocation.bayes_logits` with free weights: $u$ selects an instance, $V$ reads it.

Bags have any lengths. They are laid out as rows of equal width, a bag in one or more of them, so
that the work is one matrix product over all instances; every axis is padded to a `bucket`.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attlas.padding import bucket

Outputs = Float[Array, "bags lane k"]
Targets = Float[Array, "bags k"]
Losses = Float[Array, "bags lane"]

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Widths that a row may have."""


class Bags(NamedTuple):
    """n bags in rows of one width. Padding is 0, has no share, and padding rows have the bag id
    n."""

    tokens: Float[np.ndarray, "rows width dim"]
    share: Float[np.ndarray, "rows width"]
    bag: Any  # [rows]
    lengths: Any  # [n]

    @classmethod
    def of(cls, instances: Sequence[np.ndarray], dim: int | None = None) -> "Bags":
        """Bags from a list of arrays [length, d], with features padded to `dim`.

        `share` is 1 / length, so that each bag counts once.
        """
        lengths = np.array([len(x) for x in instances])
        width = min(WIDTHS, key=lambda w: (w * bucket(int(np.ceil(lengths / w).sum())), -w))
        rows = -(-lengths // width)
        total = bucket(int(rows.sum()))
        tokens = np.zeros((total * width, dim or instances[0].shape[1]))
        share = np.zeros(total * width)
        first = (np.cumsum(rows) - rows) * width
        places = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        flat = np.concatenate(instances)
        tokens[places, : flat.shape[1]], share[places] = flat, np.repeat(1 / lengths, lengths)
        bag = np.repeat(np.arange(len(lengths) + 1), np.append(rows, total - rows.sum()))
        return cls(tokens.reshape(total, width, -1), share.reshape(total, width), bag, lengths)


@dataclass(frozen=True)
class Scaling:
    """Means and deviations of the features, and of the square norm of a scaled instance.

    The instances of a bag count once together. A constant feature becomes 0.
    """

    mean: Float[np.ndarray, " dim"]
    deviation: Float[np.ndarray, " dim"]
    norm_mean: float
    norm_deviation: float

    @classmethod
    def of(cls, instances: Sequence[np.ndarray], weight: Float[np.ndarray, " n"]) -> "Scaling":
        flat = np.concatenate(instances)
        lengths = np.array([len(x) for x in instances])
        share = np.repeat(weight / lengths, lengths)
        share /= share.sum()
        mean, deviation = _mean_and_deviation(flat, share)
        square = (((flat - mean) / deviation) ** 2).sum(1)
        norm_mean, norm_deviation = _mean_and_deviation(square[:, None], share)
        return cls(mean, deviation, float(norm_mean[0]), float(norm_deviation[0]))

    def __call__(
        self, instances: Sequence[np.ndarray], dim: int
    ) -> tuple[Bags, Float[np.ndarray, "rows width"]]:
        """The scaled bags and their scaled square norms, with features padded to `dim`."""
        bags = Bags.of([(x - self.mean) / self.deviation for x in instances], dim)
        square = (bags.tokens**2).sum(-1)
        return bags, np.where(bags.share > 0, (square - self.norm_mean) / self.norm_deviation, 0)


def _mean_and_deviation(
    x: Float[np.ndarray, "N d"], share: Float[np.ndarray, " N"]
) -> tuple[np.ndarray, np.ndarray]:
    mean = share @ x
    deviation = np.sqrt(share @ (x - mean) ** 2)
    return mean, np.where(deviation > 1e-10 * np.maximum(1, abs(mean)), deviation, 1.0)


class Heads(NamedTuple):
    """The weights; in a fit, each has a leading axis of lanes."""

    select: Any  # [h, dim]
    norm: Any  # [h]
    value: Any  # [h, dim, k]
    offset: Any  # [k]


class Data(NamedTuple):
    """What heads are fitted to; every lane has its own weight for each bag and its own penalty."""

    tokens: Any  # [rows, width, dim]
    square: Any  # [rows, width]
    inside: Any  # [rows, width]
    bag: Any  # [rows]
    target: Any  # [bags, k]
    weight: Any  # [lane, bags]
    penalty: Any  # [lane]


def respond(heads: Heads, data: Data) -> Outputs:
    """The output of the heads of each lane for each bag.

    One product gives scores and values, and one sum over a bag both parts of its mean.
    """
    both = jnp.einsum(
        "rwd,ahdk->rwahk", data.tokens, jnp.concatenate([heads.select[..., None], heads.value], -1)
    )
    scores = both[..., 0] + data.square[..., None, None] * heads.norm
    inside, bags = data.inside[..., None, None], data.target.shape[0]
    top = jax.ops.segment_max(
        jnp.where(inside, scores, -jnp.inf).max(1), data.bag, bags, indices_are_sorted=True
    )
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    powers = jnp.where(inside, jnp.exp(scores - top[data.bag][:, None]), 0)[..., None]
    parts = jnp.concatenate([powers, powers * both[..., 1:]], -1).sum(1)
    sums = jax.ops.segment_sum(parts, data.bag, bags, indices_are_sorted=True)
    below = sums[..., :1]
    return heads.offset + (sums[..., 1:] / jnp.where(below > 0, below, 1)).sum(2)


def squared_loss(y: Outputs, target: Targets) -> Losses:
    return ((y - target[:, None]) ** 2).sum(-1)


def logistic_loss(y: Outputs, target: Targets) -> Losses:
    """Cross-entropy: of one logit with a target of 0 or 1, or of k logits with a one-hot target."""
    if y.shape[-1] == 1:
        return (jax.nn.softplus(y) - target[:, None] * y)[..., 0]
    return jax.nn.logsumexp(y, -1) - (target[:, None] * y).sum(-1)


def _penalised(loss: Any, heads: Heads, data: Data) -> Float[Array, " lane"]:
    fit = (loss(respond(heads, data), data.target) * data.weight.T).sum(0)
    size = sum(
        (x**2).reshape(x.shape[0], -1).sum(-1) for x in (heads.select, heads.norm, heads.value)
    )
    return fit + data.penalty * size


LOSSES: dict[str, tuple[Any, Any]] = {
    "squared": (squared_loss, functools.partial(_penalised, squared_loss)),
    "logistic": (logistic_loss, functools.partial(_penalised, logistic_loss)),
}
"""The loss of each bag, and the penalised objective of each lane."""
