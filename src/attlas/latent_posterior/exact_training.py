r"""Encoders trained on the exact risk of a law of topics, or of n labelled sequences from it.

A network sees a sequence through the counts of its words, and both risks are finite sums over
counts (`trained_attention.Risk`): so the best of a class is found by training on the population
itself, the empirical minimiser by training on the sample itself, and what a network's risk is needs
no fresh sequences. Sequences are as in `trained_attention.topics`, labels are real numbers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import linalg

from attlas.gaussian import float64, stream
from attlas.latent_posterior.encoders import Encoder, Form
from attlas.latent_posterior.latent_tasks import Data
from attlas.latent_posterior.trained_attention import Risk, Topics, minimise
from attlas.scan import Trajectory

ROWS = 128
"""Numbers of counts are filled up to a multiple of this, where a program is compiled for it."""
NULL = 1e-6
"""Singular values of a tangent space that are 0, in units of its largest."""


def _outputs(encoder: Encoder, counts: Float[Any, "k vocabulary"]) -> Float[Array, " k"]:
    states = jax.vmap(lambda one: encoder.states(Data(one, None))[-1])(counts)
    return (states @ encoder.read)[:, 0]


@functools.cache
def _risk_of(form: Form) -> Any:
    def risk(weights: Array, data: tuple[Array, Array], counts: Array) -> Array:
        weight, target = data
        return (weight * (_outputs(form.encoders(weights), counts) - target) ** 2).sum()

    return risk


def train_on_risk(
    encoders: Encoder,
    risk: Risk,
    counts: Float[Any, "k vocabulary"],
    *,
    steps: int,
    rate: float,
    record_every: int,
    lanes: int | None = None,
) -> Trajectory:
    """Minimise each run's risk by Adam, all runs in one program; returns their weights.

    Arguments:
        encoders: with one output and a leading axis of runs.
        risk: [run, k] weights and targets at the `counts` [k, vocabulary] that there are.
        steps, rate: of Adam, whose rate falls to 0 as a cosine.
        record_every: steps between two records of the weights.
        lanes: runs that are trained at a time, which does not change them; all unless given.
    """
    form, start = Form.of(encoders)
    data = tuple(np.asarray(x, np.float32) for x in risk[:2])
    shared = np.asarray(counts, np.float32)
    how: dict[str, Any] = {"steps": steps, "rate": rate, "record_every": record_every}
    paths = [
        minimise(_risk_of(form), start[rows], tuple(x[rows] for x in data), shared, **how)
        for rows in _groups(len(start), lanes)
    ]
    observed = np.concatenate([path.observed for path in paths], 1)
    last, survived = (np.concatenate([path[i] for path in paths]) for i in (2, 3))
    return Trajectory(paths[0].steps, form.encoders(observed), form.encoders(last), survived)


def _groups(runs: int, lanes: int | None) -> list[slice]:
    size = lanes or runs
    return [slice(first, first + size) for first in range(0, runs, size)]


def predictions(
    encoders: Encoder, counts: Float[Any, "k vocabulary"], *, lanes: int | None = None
) -> Float[np.ndarray, "run k"]:
    """What encoders of one output say at each count; `lanes` of them at a time."""
    runs, filled = len(jax.tree.leaves(encoders)[0]), _filled(counts)
    parts = [
        _predictions(jax.tree.map(lambda x, rows=rows: x[rows], encoders), filled)
        for rows in _groups(runs, lanes)
    ]
    return np.concatenate([np.asarray(part, float) for part in parts])[:, : len(counts)]


def _filled(counts: Float[Any, "k vocabulary"]) -> Float[np.ndarray, "rows vocabulary"]:
    return np.pad(np.asarray(counts, float), ((0, -len(counts) % ROWS), (0, 0)), mode="edge")


@jax.jit
def _predictions(encoders: Encoder, counts: Float[Any, "k vocabulary"]) -> Float[Array, "run k"]:
    return jax.vmap(_outputs, (0, None))(encoders, counts)


@float64
def tangent_price(
    encoders: Encoder,
    counts: Float[Any, "k vocabulary"],
    weight: Float[Any, "run k"],
    square: Float[Any, "run k"],
) -> tuple[Float[np.ndarray, " run"], Float[np.ndarray, " run"]]:
    r"""$n\,E[R(\hat f) - R(f^\circ)]$ to first order in $\frac1n$, and the dimension of the space
    that it is of.

    $\mathrm{tr}(\Sigma^+E[e^2\phi\phi^\top])$ with $\phi = \nabla_\theta f^\circ$ the tangents at
    the best of the class, $\Sigma = E[\phi\phi^\top]$ and $e = y - f^\circ$: the part of the noise
    that lies in the tangent space. Directions of the weights that leave the function as it is do
    not enter.

    Arguments:
        encoders: the best of their class.
        counts, weight: all counts [k, vocabulary], and their law [run, k].
        square: $E[e^2]$ at each count.
    """
    slopes = _tangents(jax.tree.map(lambda x: np.asarray(x, float), encoders), _filled(counts))
    root = np.sqrt(np.asarray(weight, float))[..., None]
    tangents = np.asarray(slopes)[:, : len(counts)]
    left, sizes, _ = np.linalg.svd(root * tangents, full_matrices=False)
    inside = left**2 * (sizes > NULL * sizes[:, :1])[:, None]
    return (inside.sum(-1) * square).sum(-1), inside.sum((1, 2))


@jax.jit
def _tangents(encoders: Encoder, counts: Any) -> Float[Array, "run k p"]:
    def one(encoder: Encoder) -> Array:
        slopes = jax.jacrev(_outputs)(encoder, jnp.asarray(counts, float))
        leaves = [leaf.reshape(len(counts), -1) for leaf in jax.tree.leaves(slopes)]
        return jnp.concatenate(leaves, 1)

    return jax.vmap(one)(encoders)


def excess_by_place(
    key: Array, population: Topics, words: Float[Any, "m vocabulary"], samples: int
) -> float:
    r"""$R(\hat f) - R(f^\circ)$ of least squares on n sequences with a weight for each word at
    each place, whose number of parameters grows with the length; exact but for the sample.

    Arguments:
        key: of the sample.
        population: the topics, whose latents have these `words`.
        samples: n.
    """
    rng, (m, v) = stream(key), np.shape(words)
    length = int(population.counts[0].sum())
    prior = population.risk.weight @ population.posterior
    z = rng.choice(m, samples, p=prior / prior.sum())
    place = rng.random((samples, length, 1))
    drawn = (place > np.cumsum(words, -1)[z][:, None, :-1]).sum(-1)
    x = np.eye(v)[drawn][..., 1:].reshape(samples, -1)  # the first word is what others differ from
    y = population.values[z] + population.noise * rng.standard_normal(samples)
    laws, means = np.asarray(words)[:, 1:], prior @ np.asarray(words)[:, 1:]
    across = np.einsum("z,za,zb->ab", prior, laws, laws) - np.outer(means, means)
    own = np.diag(means) - np.outer(means, means)
    covariance = np.kron(np.ones((length, length)), across)
    covariance += np.kron(np.eye(length), own - across)
    label = (prior * (population.values - prior @ population.values)) @ laws
    best = linalg.solve(covariance, np.tile(label, length), assume_a="pos")
    centre = np.tile(means, length)
    design = np.column_stack([x - centre, np.ones(samples)])
    # Covariances are well-conditioned: every word has a chance at every place.
    moment = design.T @ (y - prior @ population.values)
    fitted = linalg.solve(design.T @ design, moment, assume_a="pos")
    off = fitted[:-1] - best
    return float(off @ covariance @ off + fitted[-1] ** 2)
