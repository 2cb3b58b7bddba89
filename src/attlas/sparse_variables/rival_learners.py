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
import xarray as xr
from jaxtyping import Array, ArrayLike, Bool, Float

from attlas.errors import whole
from attlas.padding import bucket, pad_axis
from attlas.scan import iterate
from attlas.sparse_variables.model import CLASSES, Perceptron
from attlas.sparse_variables.training import RECIPE_R, Recipe, observe
from attlas.sparse_variables.training_sets import SMALLEST_SET, TrainingSets

PENALTIES = np.geomspace(0.7, 0.003, 12)
"""L1 penalties, as shares of the smallest with which all weights are 0."""

ITERATIONS = 400


def screen_by_covariance(sets: TrainingSets) -> xr.Dataset:
    r"""Whether the s places with the largest $|\mathrm{cov}(b_t, y)|$ in the training set are
    the support: `solved` over (trial, samples)."""
    solved = np.array(
        [[_screened(sets, trial, m) for m in sets.samples] for trial in range(len(sets.tasks))]
    )
    return xr.Dataset(
        {"solved": (("trial", "samples"), solved)}, coords={"samples": list(sets.samples)}
    )


def _screened(sets: TrainingSets, trial: int, samples: int) -> bool:
    bits, label = (
        sets.bits[trial, :samples].astype(float),
        sets.label[trial, :samples].astype(float),
    )
    covariance = (label - label.mean()) @ bits / samples
    return bool(leaders(abs(covariance), sets)[list(sets.tasks[trial].support)].all())


def leaders(
    size: Float[np.ndarray, "*n length"], sets: TrainingSets
) -> Bool[np.ndarray, "*n length"]:
    """The places with the s largest sizes; none of several that tie for the last rank."""
    s = sets.tasks[0].sparsity
    if s == size.shape[-1]:
        return np.ones(size.shape, bool)
    return size > np.sort(size, -1)[..., -s - 1, None]


def l1_path(sets: TrainingSets, iterations: int = ITERATIONS) -> xr.Dataset:
    r"""Logistic regression with the penalty $\lambda|w|_1$ for twelve $\lambda$, of which
    validation may choose: an oracle.

    Over (trial, samples): `best_accuracy` on validation, `solved` if that is 1, and `support_found`
    if for some penalty the s largest weights are the support. Accelerated proximal gradient descent
    on centred bits, with a free intercept.
    """
    iterations = whole("iterations", iterations, 1)
    with jax.enable_x64(False):
        found = [_l1_path(sets, m, iterations) for m in sets.samples]
    accuracy, support = (np.stack(x, -1) for x in zip(*found, strict=True))
    variables = {"best_accuracy": accuracy, "solved": accuracy == 1, "support_found": support}
    coords = {"samples": list(sets.samples)}
    return xr.Dataset(
        {name: (("trial", "samples"), x) for name, x in variables.items()}, coords=coords
    )


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


def _l1_path(sets: TrainingSets, samples: int, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    bias = sets.tasks[0].bias
    size = bucket(sets.samples[-1], SMALLEST_SET)  # one program for all
    bits = sets.bits[:, :samples].astype(np.float32) - np.float32(bias)
    bits = np.concatenate([bits, np.ones_like(bits[..., :1])], -1)
    label = sets.label[:, :samples].astype(np.float32)
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
    weights = iterate(
        descend_l1, observe, start, args, steps=iterations, record_every=iterations
    ).last.weights

    support = np.zeros((len(bits), sets.length), bool)
    for trial, task in enumerate(sets.tasks):
        support[trial, list(task.support)] = True
    alike = (leaders(abs(weights[:, :-1].swapaxes(1, 2)), sets) == support[:, None]).all(-1).any(-1)
    return _oracle_accuracy(sets, weights, bias), alike


def _oracle_accuracy(
    sets: TrainingSets, weights: Float[np.ndarray, "trial rows penalty"], bias: float
) -> np.ndarray:
    """The best accuracy over the penalties, on as much of validation as it takes for each to
    make a mistake."""
    best = np.zeros(len(weights))
    for trial, (slopes, level) in enumerate(zip(weights[:, :-1], weights[:, -1], strict=True)):
        used = np.flatnonzero(slopes.any(1))  # few, as that is what the penalty is for
        right, seen = np.zeros(len(level)), 0
        for bits, label in sets.validate(trial):
            scores = (bits[:, used] - np.float32(bias)) @ slopes[used] + level
            right, seen = right + ((scores > 0) == label[:, None]).sum(0), seen + len(label)
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

    def logits(
        self, bits: ArrayLike, key: Array | None = None, careful: bool = True
    ) -> Float[Array, "*n m 2"]:
        """As `Transformer.logits`; there is no dropout, and nothing to care about."""
        signs = 2 * jnp.asarray(bits).astype(self.inner.dtype) - 1
        return self.rest(jax.nn.gelu(signs @ self.inner + self.inner_bias[..., None, :]))


MLP = Recipe(Dense())
"""Adam with the rate 1e-3, as for `ADAM`."""

UNIFORM = dataclasses.replace(
    RECIPE_R, architecture=dataclasses.replace(RECIPE_R.architecture, uniform=True)
)
"""`RECIPE_R` with attention that is uniform and stays so."""
