r"""Softmax heads on bags of instances, with their gradient.

$$f(X) = b + \sum_h\sum_l p^h_l\,V_h^\top x_l, \qquad
p^h = \mathrm{softmax}_l(\langle x_l, u_h\rangle + q_h|x_l|^2),$$

the head of `SingleLocation.bayes_logits` with free weights: $u$ selects an instance, $V$ reads it.

Bags have any lengths; all their instances are the rows of one matrix, so that the work is one
product for the output and one for the gradient. NumPy does it: such fits are small, and a compiled
program would take longer to make than they take to run.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special

Outputs = Float[np.ndarray, "bags lane k"]
Targets = Float[np.ndarray, "bags k"]
Losses = Float[np.ndarray, "bags lane"]


@dataclass(frozen=True)
class Bags:
    """n bags, their instances one after the other."""

    tokens: Float[np.ndarray, "N dim"]
    lengths: Int[np.ndarray, " n"]

    @classmethod
    def of(cls, instances: Sequence[np.ndarray]) -> "Bags":
        """Bags from a list of arrays [length, dim]."""
        # In one order in memory, so that sums are rounded alike however the bags came.
        flat = np.ascontiguousarray(np.concatenate(instances))
        return cls(flat, np.array([len(x) for x in instances]))

    @functools.cached_property
    def first(self) -> Int[np.ndarray, " n"]:
        """The row of the first instance of each bag."""
        return np.cumsum(self.lengths) - self.lengths

    @functools.cached_property
    def bag(self) -> Int[np.ndarray, " N"]:
        """The bag of each row."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


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
    def of(
        cls,
        instances: Sequence[np.ndarray],
        weight: Float[np.ndarray, " n"],
        together: bool = False,
    ) -> "Scaling":
        """Of bags with a weight each; `together` gives all features one deviation, the root of
        their mean variance."""
        laid = Bags.of(instances)
        flat, lengths = laid.tokens, laid.lengths
        share = np.repeat(weight / lengths, lengths)
        share /= share.sum()
        mean, deviation = mean_and_deviation(flat, share)
        if together:
            variance = share @ (flat - mean) ** 2
            deviation = np.full(len(mean), np.sqrt(variance.mean()) or 1.0)
        square = (((flat - mean) / deviation) ** 2).sum(1)
        norm_mean, norm_deviation = mean_and_deviation(square[:, None], share)
        return cls(mean, deviation, float(norm_mean[0]), float(norm_deviation[0]))

    def __call__(self, instances: Sequence[np.ndarray]) -> tuple[Bags, Float[np.ndarray, " N"]]:
        """The scaled bags and the scaled square norms of their instances."""
        bags = Bags.of(instances)
        scaled = (bags.tokens - self.mean) / self.deviation
        square = ((scaled**2).sum(1) - self.norm_mean) / self.norm_deviation
        return Bags(scaled, bags.lengths), square


def mean_and_deviation(
    x: Float[np.ndarray, "N d"], share: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Of each column, with shares of the rows that sum to 1; the deviation of a constant is 1."""
    mean = share @ x
    deviation = np.sqrt(share @ (x - mean) ** 2)
    return mean, np.where(deviation > 1e-10 * np.maximum(1, abs(mean)), deviation, 1.0)


class Heads(NamedTuple):
    """The weights; in a fit, each has a leading axis of lanes."""

    select: Any  # [h, dim]
    norm: Any  # [h]
    value: Any  # [h, dim, k]
    offset: Any  # [k]

    def flat(self) -> Float[np.ndarray, "lane p"]:
        """The weights of each lane, one after the other."""
        return np.concatenate([x.reshape(len(x), -1) for x in self], 1)

    def like(self, flat: Float[np.ndarray, "lane p"]) -> "Heads":
        """Weights of these shapes, one after the other in `flat`."""
        ends = np.cumsum([x[0].size for x in self])[:-1]
        parts = np.split(flat, ends, axis=1)
        return Heads(
            *(part.reshape(len(flat), *x.shape[1:]) for part, x in zip(parts, self, strict=True))
        )


class Data(NamedTuple):
    """What heads are fitted to; every lane has its own weight for each bag and its own penalty."""

    bags: Bags
    square: Float[np.ndarray, " N"]
    target: Targets
    weight: Float[np.ndarray, "lane bags"]
    penalty: Float[np.ndarray, " lane"]


class _Pass(NamedTuple):
    """What the gradient needs of the way to the output."""

    output: Outputs
    shares: Float[np.ndarray, "N lane h"]
    values: Float[np.ndarray, "N lane h k"]
    mixed: Float[np.ndarray, "bags lane h k"]


def _forward(heads: Heads, bags: Bags, square: Float[np.ndarray, " N"]) -> _Pass:
    lanes, count, dim, k = heads.value.shape
    weights = np.concatenate([heads.select[..., None], heads.value], -1)
    both = bags.tokens @ np.moveaxis(weights, 2, 0).reshape(dim, -1)
    both = both.reshape(-1, lanes * count, 1 + k)
    scores = both[..., 0] + square[:, None] * heads.norm.reshape(-1)
    powers = np.exp(scores - np.maximum.reduceat(scores, bags.first)[bags.bag])
    shares = powers / np.add.reduceat(powers, bags.first)[bags.bag]
    spoken = (shares[..., None] * both[..., 1:]).reshape(-1, lanes * count * k)
    mixed = np.add.reduceat(spoken, bags.first).reshape(-1, lanes, count, k)
    values = both[..., 1:].reshape(-1, lanes, count, k)
    return _Pass(heads.offset + mixed.sum(2), shares.reshape(-1, lanes, count), values, mixed)


def attend(heads: Heads, bags: Bags, square: Float[np.ndarray, " N"]) -> Any:
    """The share of each instance in its bag for each head of each lane, [N, lane, h]."""
    return _forward(heads, bags, square).shares


def respond(heads: Heads, bags: Bags, square: Float[np.ndarray, " N"]) -> Outputs:
    """The output of the heads of each lane for each bag."""
    return _forward(heads, bags, square).output


def speak(heads: Heads, bags: Bags, square: Float[np.ndarray, " N"]) -> Any:
    """What each instance adds to the output of its bag, [N, lane, k]."""
    way = _forward(heads, bags, square)
    return (way.shares[..., None] * way.values).sum(2)


def squared_loss(y: Outputs, target: Targets) -> tuple[Losses, Outputs]:
    """The squared distance, and its slope in the output."""
    apart = y - target[:, None]
    return (apart**2).sum(-1), 2 * apart


def logistic_loss(y: Outputs, target: Targets) -> tuple[Losses, Outputs]:
    """Cross-entropy, of one logit with a target of 0 or 1, or of k logits with a one-hot target,
    and its slope in the output."""
    if y.shape[-1] == 1:
        said = y[..., 0]
        return np.logaddexp(0, said) - target * said, special.expit(y) - target[:, None]
    top = y.max(-1, keepdims=True)
    powers = np.exp(y - top)
    below = powers.sum(-1, keepdims=True)
    losses = (np.log(below) + top)[..., 0] - (target[:, None] * y).sum(-1)
    return losses, powers / below - target[:, None]


Loss = Callable[[Outputs, Targets], tuple[Losses, Outputs]]
LOSSES: dict[str, Loss] = {"squared": squared_loss, "logistic": logistic_loss}
"""The loss of each bag and its slope."""


def penalised(loss: Loss, heads: Heads, data: Data) -> tuple[Float[np.ndarray, " lane"], Heads]:
    """The weighted loss of each lane with its penalty of squared weights, and the gradient."""
    output, shares, values, mixed = _forward(heads, data.bags, data.square)
    losses, slope = loss(output, data.target)
    slope = slope * data.weight.T[..., None]
    spread = slope[data.bags.bag][:, :, None]
    scores = shares * ((values - mixed[data.bags.bag]) * spread).sum(-1)
    both = np.concatenate([scores[..., None], shares[..., None] * spread], -1)
    back = (data.bags.tokens.T @ both.reshape(len(both), -1)).reshape(-1, *both.shape[1:])
    back = np.moveaxis(back, 0, 2)
    norm = np.tensordot(data.square, scores, 1)
    free = Heads(back[..., 0], norm, back[..., 1:], slope.sum(0))
    value = (losses * data.weight.T).sum(0)
    kept = heads._replace(offset=0 * heads.offset)
    size = sum((x**2).reshape(len(x), -1).sum(1) for x in kept)
    gradient = free.flat() + 2 * data.penalty[:, None] * kept.flat()
    return value + data.penalty * size, heads.like(gradient)
