r"""Other learners on the same training sets: they show where the samples suffice and attention
fails.

Screening by covariance and logistic regression with an L1 penalty assume that few positions matter;
an MLP on the bits and a Transformer with uniform attention do not. The last two are trained as the
Transformer is: `train(sets, MLP)` and `train(sets, UNIFORM)`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from attlas.errors import whole
from attlas.padding import bucket, pad_axis
from attlas.scan import iterate
from attlas.sparse_variables.model import CLASSES, Perceptron
from attlas.sparse_variables.training import RECIPE_R, Recipe, observe
from attlas.sparse_variables.training_sets import SMALLEST_SET, TrainingSets
from attlas.surface import public

PENALTIES = np.geomspace(0.7, 0.003, 12)
"""L1 penalties, as shares of the smallest with which all weights are 0."""

ITERATIONS = 400


def screen_by_covariance(sets: TrainingSets) -> Bool[np.ndarray, " trial"]:
    r"""Whether the s places with the largest $|\mathrm{cov}(b_t, y)|$ in a trial's largest training
    set are the support."""
    solved = []
    for task, bits, label in zip(sets.tasks, sets.bits, sets.label, strict=True):
        covariance = (label - label.mean()) @ bits.astype(float) / len(label)
        solved.append(leaders(abs(covariance), sets)[list(task.support)].all())
    return np.array(solved)


def leaders(
    size: Float[np.ndarray, "*n length"], sets: TrainingSets
) -> Bool[np.ndarray, "*n length"]:
    """The places with the s largest sizes; none of several that tie for the last rank."""
    s = sets.tasks[0].sparsity
    if s == size.shape[-1]:
        return np.ones(size.shape, bool)
    return size > np.sort(size, -1)[..., -s - 1, None]


class Iterate(NamedTuple):
    """Weights [trial, length + 1, penalty] with the intercept last, the point where the gradient
    is taken, and the momentum."""

    weights: Any
    ahead: Any
    momentum: Any  # [trial]


class Regression(NamedTuple):
    bits: Any  # [trial, m, length + 1], centred, with a column of ones
    sign: Any  # [trial, m]
    weight: Any  # [m], 1/m and 0 on padding
    penalty: Any  # [trial, length + 1, penalty]
    step_size: Any  # [trial]


def l1_path(sets: TrainingSets) -> Float[np.ndarray, " trial"]:
    r"""Logistic regression with the penalty $\lambda|w|_1$ for twelve $\lambda$, of which
    validation may choose: an oracle.

    By accelerated proximal gradient descent on centred bits, with a free intercept, on a trial's
    largest training set. Returns the best accuracy over the penalties, on as much of validation as
    it takes for each to make a mistake.
    """
    samples, bias = sets.samples[-1], np.float32(sets.tasks[0].bias)
    size = bucket(samples, SMALLEST_SET)
    bits = sets.bits.astype(np.float32) - bias
    bits = np.concatenate([bits, np.ones_like(bits[..., :1])], -1)
    label = sets.label.astype(np.float32)
    # With all weights 0 the intercept makes the mean right, and the gradient is the covariance.
    slope = np.einsum("nm,nmt->nt", label - label.mean(1, keepdims=True), bits[..., :-1]) / samples
    penalty = (
        abs(slope).max(1)[:, None, None] * PENALTIES * np.append(np.ones(sets.length), 0)[:, None]
    )
    step_size = 4 * samples / np.linalg.eigvalsh(bits @ bits.swapaxes(1, 2))[:, -1]
    args = Regression(
        pad_axis(bits, size, 1),
        pad_axis(2 * label - 1, size, 1),
        pad_axis(np.full(samples, 1 / samples, np.float32), size),
        penalty.astype(np.float32),
        step_size.astype(np.float32),
    )
    zero = np.zeros(penalty.shape, np.float32)
    start = Iterate(zero, zero, np.ones(len(bits), np.float32))
    with jax.enable_x64(False):
        path = iterate(descend_l1, observe, start, args, steps=ITERATIONS, record_every=ITERATIONS)
    weights, best = path.last.weights, np.zeros(len(bits))
    for trial, (slopes, level) in enumerate(zip(weights[:, :-1], weights[:, -1], strict=True)):
        used = np.flatnonzero(slopes.any(1))  # few, as that is what the penalty is for
        right, seen = np.zeros(len(level)), 0
        for batch in sets.validate(trial):
            scores = (batch.bits[:, used] - bias) @ slopes[used] + level
            right = right + ((scores > 0) == batch.label[:, None]).sum(0)
            seen += len(batch.label)
            if right.max() < seen:
                break
        best[trial] = right.max() / seen
    return best


def descend_l1(t: Array, state: Iterate, args: Regression) -> Iterate:
    """One step of FISTA (Beck and Teboulle 2009) in every trial and for every penalty."""
    margin = (args.bits @ state.ahead) * args.sign[..., None]
    pull = -(args.sign * args.weight)[..., None] * jax.nn.sigmoid(-margin)
    size = args.step_size[:, None, None]
    moved = state.ahead - size * (jnp.swapaxes(args.bits, 1, 2) @ pull)
    weights = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - size * args.penalty, 0)
    momentum = (1 + jnp.sqrt(1 + 4 * state.momentum**2)) / 2
    ahead = weights + ((state.momentum - 1) / momentum)[:, None, None] * (weights - state.weights)
    return Iterate(weights, ahead, momentum)


@dataclass(frozen=True)
class Dense:
    """An MLP on the bits as -1 and 1, with two hidden layers."""

    hidden: int = 64

    def __post_init__(self) -> None:
        whole("hidden", self.hidden, 1)

    @public
    def initialise(self, length: int, key: Array) -> "DenseNetwork":
        """Weights of variance 1 / (number of inputs), biases 0."""
        n = self.hidden
        shapes = ((length, n), (n, n), (n, CLASSES))
        first, second, third = (
            jax.random.normal(k, shape) / shape[0] ** 0.5
            for k, shape in zip(jax.random.split(key, 3), shapes, strict=True)
        )
        rest = Perceptron(second, jnp.zeros(n), third, jnp.zeros(CLASSES))
        return DenseNetwork(first, jnp.zeros(n), rest)


class DenseNetwork(eqx.Module):
    inner: Float[Array, "*n length hidden"]
    inner_bias: Float[Array, "*n hidden"]
    rest: Perceptron

    def logits(self, bits: ArrayLike, careful: bool = True) -> Float[Array, "*n m 2"]:
        """As `Transformer.logits`; `careful` has no effect."""
        signs = 2 * jnp.asarray(bits).astype(self.inner.dtype) - 1
        return self.rest(jax.nn.gelu(signs @ self.inner + self.inner_bias[..., None, :]))


MLP = Recipe(Dense())
"""Adam with the rate 1e-3, as for `ADAM`."""

UNIFORM = dataclasses.replace(
    RECIPE_R, architecture=dataclasses.replace(RECIPE_R.architecture, uniform=True)
)
"""`RECIPE_R` with attention that is uniform and stays so."""
