r"""Learning attention from sequences: the ledger of the excess risk, empirical risk minimisation,
and other lengths than that of training.

The excess risk of a trained predictor $f_T$ over the Bayes predictor $f^*$ is split with the
empirical minimiser $\hat f$ and the best of the class $f^\circ$, for the risk R and its empirical
form $R_n$. On topics every term is exact: a head sees a sequence only through the counts of its
words, so that both risks are finite sums (`Risk`), whatever the length and the number of samples.
On functions (`BayesianRegression`) mechanisms with learnt parameters are trained on contexts and
held against the exact predictive mean. Runs are an array axis, lanes, of one compiled program.
Zhang et al. 2022, whose analysis of training we know in outline only: the classes and formulas are
our reading.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from attlas.attention import linear_attention, softmax_attention
from attlas.errors import InputError, near, positive, whole
from attlas.gaussian import Real, float64, stream
from attlas.kernels import RBF
from attlas.latent_posterior.models import (
    BayesianRegression,
    Contexts,
    FiniteLatent,
    Gaussian,
    posterior_variance,
)
from attlas.scan import Trajectory, iterate
from attlas.surface import public


class Ledger(NamedTuple):
    r"""$R(f_T) - R(f^*)$, term by term; `generalisation` collects what a finite sample does, and
    `excess` = `generalisation` + `optimisation` + `approximation`."""

    overfitting: Real
    r"""$[R - R_n](f_T)$."""
    optimisation: Real
    r"""$R_n(f_T) - R_n(\hat f)$: 0 or more."""
    advantage: Real
    r"""$R_n(\hat f) - R_n(f^\circ)$: 0 or less."""
    chance: Real
    r"""$[R_n - R](f^\circ)$, of mean 0."""
    approximation: Real
    r"""$R(f^\circ) - R(f^*)$: 0 or more."""

    @property
    def generalisation(self) -> Real:
        """What a finite sample does: `overfitting`, `advantage` and `chance` together."""
        return self.overfitting + self.advantage + self.chance

    @property
    def excess(self) -> Real:
        """The excess risk, the sum of all terms."""
        return self.generalisation + self.optimisation + self.approximation


def ledger(
    risk: Callable[[Any], Real],
    empirical: Callable[[Any], Real],
    *,
    trained: Any,
    minimiser: Any,
    best: Any,
    bayes: Any,
) -> Ledger:
    r"""The excess risk of `trained` over `bayes`, split by the empirical `minimiser` and the
    `best` of the class. Both risks take a predictor, in whatever form the four come.

    Arguments:
        risk, empirical: of a predictor, on the population and on the sample.

    >>> from attlas.latent_posterior import ledger
    >>> split = ledger(lambda f: (f - 1) ** 2, lambda f: (f - 1.2) ** 2,
    ...                trained=1.1, minimiser=1.2, best=1.0, bayes=1.0)
    >>> print(f"{split.excess:.3f} = {split.generalisation:.3f} + {split.optimisation:.3f}")
    0.010 = 0.000 + 0.010
    """
    return Ledger(
        overfitting=risk(trained) - empirical(trained),
        optimisation=empirical(trained) - empirical(minimiser),
        advantage=empirical(minimiser) - empirical(best),
        chance=empirical(best) - risk(best),
        approximation=risk(best) - risk(bayes),
    )


class Risk(NamedTuple):
    r"""Mean square error as a finite sum, $R(f) = \sum_k w_k (f_k - t_k)^2 + \text{rest}$, over
    the counts k that a sequence can have: their law, the mean label at each, and the mean square
    of labels about those. The population's, or a sample's."""

    weight: Float[Any, "*n k"]
    target: Float[Any, "*n k"]
    rest: Float[Any, "*n"]

    def __call__(self, prediction: Float[Any, "*#n k"]) -> Float[Any, "*n"]:
        return (self.weight * (prediction - self.target) ** 2).sum(-1) + self.rest


class Topics(NamedTuple):
    """All `counts` of the words of a sequence, the risk of the population, in which `target` is
    the Bayes predictor, and the posterior."""

    counts: Float[np.ndarray, "k vocabulary"]
    risk: Risk
    posterior: Float[np.ndarray, "k m"]
    values: Float[np.ndarray, " m"]
    noise: float

    @float64
    @public
    def sample(self, key: Array, samples: int, repeats: int) -> Risk:
        """The empirical risks of `repeats` samples.

        Drawn by what they depend on, at a cost independent of `samples`: how often each count comes
        with each latent, the mean noise at each count, and the length of what is left of the noise,
        along the labels' own spread and across it.
        """
        rng = stream(key)
        joint = self.risk.weight[:, None] * self.posterior
        seen = rng.multinomial(samples, (joint / joint.sum()).ravel(), repeats)
        seen = seen.reshape(repeats, *joint.shape)
        number = seen.sum(-1)
        label = seen @ self.values / np.maximum(number, 1)
        spread = (seen * (self.values - label[..., None]) ** 2).sum((-1, -2))
        noise = rng.standard_normal(number.shape) / np.sqrt(np.maximum(number, 1))
        left = samples - (number > 0).sum(-1)
        along = np.sqrt(spread) + self.noise * rng.standard_normal(repeats) * (left > 0)
        across = rng.chisquare(np.maximum(left - 1, 1)) * (left > 1)
        rest = (along**2 + self.noise**2 * across) / samples
        return Risk(number / samples, label + self.noise * noise * (number > 0), rest)


@float64
def topics(model: FiniteLatent, length: int, noise: float) -> Topics:
    r"""Sequences of `length` words and labels $y = c_z + \text{noise}\,\varepsilon$, c the first
    of the model's `values`: exact, by all counts."""
    counts, law, posterior = model.counted(length)
    values = np.asarray(model.values)[:, 0]
    rest = law @ posterior_variance(posterior, values[:, None]) + noise**2
    return Topics(counts, Risk(law, posterior @ values, rest), posterior, values, noise)


class Heads(NamedTuple):
    r"""Softmax heads with a score and a value for each word: $f(X) = \sum_h \frac{\sum_w N_w
    e^{s_{hw}} v_{hw}}{\sum_w N_w e^{s_{hw}}}$ for the counts N."""

    scores: Float[Any, "*n h vocabulary"]
    values: Float[Any, "*n h vocabulary"]

    def predict(self, counts: Float[Any, "k vocabulary"]) -> Float[Any, "*n k"]:
        powers = self._powers()
        return ((powers * self.values) @ counts.T / (powers @ counts.T)).sum(-2)

    def features(self, counts: Float[Any, "k vocabulary"]) -> Float[Any, "*n k D"]:
        """What each word counts for in each head, the softmax over the tokens summed over those
        that are equal: the class is linear in the values, and these are what it is linear in."""
        shares = self._powers()[..., None, :, :] * counts[:, None, :]
        shares = shares / shares.sum(-1, keepdims=True)
        return shares.reshape(*shares.shape[:-2], -1)

    def _powers(self) -> Float[Any, "*n h vocabulary"]:
        if isinstance(self.scores, np.ndarray):
            return np.exp(self.scores - self.scores.max(-1, keepdims=True))
        return jnp.exp(self.scores - jax.lax.stop_gradient(self.scores.max(-1, keepdims=True)))


@public
def random_heads(key: Array, repeats: int, heads: int, vocabulary: int) -> Heads:
    """`repeats` sets of `heads` heads on `vocabulary` words: scores standard normal, values 0."""
    shape = (whole("repeats", repeats, 1), whole("heads", heads, 1), vocabulary)
    return Heads(stream(key).standard_normal(shape), np.zeros(shape))


def _optimiser(rate: Real, steps: Real) -> optax.GradientTransformation:
    return optax.adam(lambda t: rate * (1 + jnp.cos(jnp.pi * t / steps)) / 2, 0.9, 0.99, 1e-12)


@functools.cache
def _adam(loss: Callable[[Any, Any, Any], Array]) -> Callable[[Array, Any, Any], Any]:
    slope = jax.vmap(jax.grad(loss), (0, 0, None))

    def step(t: Array, state: Any, args: Any) -> Any:
        parameters, moments = state
        data, shared, rate, steps = args
        gradient = slope(parameters, data, shared)
        moves, moments = jax.vmap(_optimiser(rate, steps).update)(gradient, moments)
        return optax.apply_updates(parameters, moves), moments

    return step


def _parameters(t: Array, state: Any, args: Any) -> Any:
    return state[0]


def minimise(
    loss: Callable[[Any, Any, Any], Array],
    start: Any,
    data: Any,
    shared: Any = None,
    *,
    steps: int,
    rate: float,
    record_every: int | None = None,
) -> Trajectory:
    """Adam on `loss(parameters, data, shared)` in every lane, with a rate that falls to 0 as a
    cosine.

    Arguments:
    - `loss`: of one lane; a function that outlives the call, so that it is compiled once.
    - `start`, `data`: parameters and what a lane learns from, with a leading axis of lanes.
    - `shared`: what all lanes read.
    - `steps`, `rate`: their number, and the rate of the first.

    Returns the parameters, every `record_every` steps and at the last.
    """
    start = jax.tree.map(lambda leaf: np.asarray(leaf, float), start)
    steps, rate = whole("steps", steps, 1), float(positive("rate", rate))
    state = start, jax.vmap(_optimiser(rate, steps).init)(start)
    args = (data, shared, rate, steps)
    record_every = record_every or steps
    path = iterate(_adam(loss), _parameters, state, args, steps=steps, record_every=record_every)
    return path._replace(last=path.last[0])


class Linearised(NamedTuple):
    """Gradient descent in a class that is linear in its parameters: records [record, repeat] of
    the optimisation error, measured and by the spectrum, with the eigenvalues and the distances
    of the start to the minimiser along their axes [repeat, D], and the predictions of both."""

    steps: Any
    measured: Float[np.ndarray, "record repeat"]
    predicted: Float[np.ndarray, "record repeat"]
    eigenvalues: Float[np.ndarray, "repeat D"]
    distances: Float[np.ndarray, "repeat D"]
    predictions: Float[np.ndarray, "record repeat k"]
    minimiser: Float[np.ndarray, "repeat k"]


def optimisation_error(
    eigenvalues: Float[Any, "*n D"], distances: Float[Any, "*n D"], step_size: Real, steps: Real
) -> Float[Any, "..."]:
    r"""$R_n(\theta_T) - R_n(\hat\theta) = \sum_j w_j(1 - \eta w_j)^{2T}c_j^2$ of the descent
    $\theta \leftarrow \theta - \frac\eta2\nabla R_n$ in a linear class with the mean square
    error: w the `eigenvalues` of the covariance of its features, c the `distances`
    $U^\top(\theta_0 - \hat\theta)$ along its axes. Exact."""
    return (eigenvalues * (1 - step_size * eigenvalues) ** (2 * steps) * distances**2).sum(-1)


@float64
def descend_linearised(
    features: Float[Any, "repeat k D"],
    samples: Risk,
    *,
    step_size: float,
    steps: int,
    record_every: int | None = None,
) -> Linearised:
    r"""Descent from 0 on the empirical risks of linear predictors $\phi^\top\theta$ of `features`
    $\phi$ at each count; `step_size` is $\eta$ in units of the largest eigenvalue's inverse."""
    features = np.asarray(features, float)
    covariance = np.einsum("rk,rki,rkj->rij", samples.weight, features, features)
    moment = np.einsum("rk,rki->ri", samples.weight * samples.target, features)
    # Of the features themselves: their covariance has lost half of the digits of its small
    # eigenvalues.
    root = np.sqrt(samples.weight)[..., None]
    left, singular, axes = np.linalg.svd(root * features, full_matrices=False)
    axes, sizes = np.swapaxes(axes, -1, -2), singular**2
    known = singular > 1e-12 * singular[:, :1]
    along = np.einsum("rkj,rk->rj", left, root[..., 0] * samples.target)
    inside = np.where(known, along / np.where(known, singular, 1), 0)
    minimiser = np.einsum("rki,rij,rj->rk", features, axes, inside)
    eta = positive("step_size", step_size) / sizes[:, 0]
    start, args = (np.zeros_like(moment),), (covariance, moment, eta)
    record_every = record_every or steps
    path = iterate(_descend, _parameters, start, args, steps=steps, record_every=record_every)
    reached = np.einsum("rki,tri->trk", features, path.observed)
    measured = samples(reached) - samples(minimiser)
    predicted = optimisation_error(sizes, inside, eta[:, None], path.steps[:, None, None])
    return Linearised(path.steps, measured, predicted, sizes, inside, reached, minimiser)


def _descend(t: Array, state: tuple[Array], args: Any) -> tuple[Array]:
    (theta,), (covariance, moment, eta) = state, args
    return (theta - eta[:, None] * (jnp.einsum("rij,rj->ri", covariance, theta) - moment),)


class Parameters(NamedTuple):
    """What is learnt: logarithms of the temperature and of the ridge, and maps of queries and
    keys. A mechanism uses some of them."""

    temperature: Float[Any, "*n"]
    ridge: Float[Any, "*n"]
    query: Float[Any, "*n dim dim"]
    key: Float[Any, "*n dim dim"]


def _cme(p: Parameters, c: Contexts, factor: Real) -> Array:
    """CME attention, with the gradient of a linear solve, which is cheaper than that of the
    factor."""
    kernel, keys = RBF(jnp.exp(p.temperature)), jnp.asarray(c.keys)
    system = kernel(keys, keys) + factor * jnp.exp(p.ridge) * jnp.eye(keys.shape[-2])
    root = jnp.linalg.cholesky(jax.lax.stop_gradient(system))
    solved = jax.lax.custom_linear_solve(
        lambda x: system @ x,
        jnp.asarray(c.values),
        lambda _, y: cho_solve((root, True), y),
        symmetric=True,
    )
    return kernel(jnp.asarray(c.queries), keys) @ solved


def _softmax(p: Parameters, c: Contexts, factor: Real) -> Array:
    temperature = factor * jnp.exp(p.temperature)
    return softmax_attention(c.queries @ p.query, c.keys @ p.key, c.values, temperature=temperature)


def _linear(p: Parameters, c: Contexts, factor: Real) -> Array:
    temperature = factor * jnp.exp(p.temperature)
    return linear_attention(c.queries @ p.query, c.keys @ p.key, c.values, temperature=temperature)


class Mechanism(NamedTuple):
    """Attention whose temperature, or for CME whose ridge, is what is learnt times a power of the
    length: the exponent, or if it is None $-2/(s + 4)$ with s the dimension of the sphere."""

    attend: Callable[[Parameters, Contexts, Real], Array]
    exponent: float | None

    def factor(self, contexts: Contexts) -> float:
        length, dim = contexts.keys.shape[-2:]
        return length ** (-2 / (dim + 3) if self.exponent is None else self.exponent)

    def loss(
        self, parameters: Parameters, data: tuple[Contexts, Array], factor: Real
    ) -> Float[Array, ""]:
        """The mean square error at the targets of contexts, with their weights."""
        contexts, weight = data
        missed = self.attend(parameters, contexts, factor) - contexts.targets
        return weight @ (missed**2).sum(-1).mean(-1)


MECHANISMS: dict[str, Mechanism] = {
    "CME": Mechanism(_cme, 0.0),
    "CME, ridge in proportion to the length": Mechanism(_cme, 1.0),
    "softmax": Mechanism(_softmax, 0.0),
    "softmax, temperature by the length": Mechanism(_softmax, None),
    "linear, mean": Mechanism(_linear, 1.0),
    "linear, sum": Mechanism(_linear, 0.0),
}
"""Attention of queries over a context, with parameters that are learnt: CME with kernel and ridge;
softmax and linear attention with maps of queries and keys and a temperature. Two that differ by the
factor alone are one at the length of training (`absorbed`), and asked by one compiled program."""


def mechanism(name: str) -> Mechanism:
    if name not in MECHANISMS:
        raise InputError(
            f"mechanism {name!r}: there is none.{near(name, MECHANISMS)} There are: "
            f"{', '.join(MECHANISMS)}."
        )
    return MECHANISMS[name]


def begin(lanes: int, dim: int) -> Parameters:
    """Temperature and ridge 1, and maps that are the identity."""
    eye = np.broadcast_to(np.eye(dim), (whole("lanes", lanes, 1), dim, dim))
    return Parameters(np.zeros(lanes), np.zeros(lanes), eye, eye)


@public
def draw_training(
    model: BayesianRegression,
    key: Array,
    samples: Sequence[int],
    repeats: int,
    length: int,
    queries: int = 1,
) -> tuple[Contexts, Float[np.ndarray, "lane n"]]:
    """Contexts with noisy targets, and their weights [lane, n].

    A lane is a number of `samples` with a repeat, in this order. Its weights are 1/n on the first
    n contexts and 0 beyond, so that the samples of a repeat are nested. Contexts are `length` long
    and have `queries` queries each.
    """
    sizes = [whole("samples", n, 1) for n in samples]
    if not sizes:
        raise InputError("samples is empty: there must be at least one number of samples")
    most = max(sizes)
    contexts, noises = jax.random.split(key)
    drawn = model.sample(
        contexts, whole("repeats", repeats, 1) * most, whole("length", length, 1), queries
    )
    noise = model.noise * stream(noises).standard_normal(drawn.targets.shape)
    drawn = drawn._replace(targets=drawn.targets + noise)
    lanes = jax.tree.map(
        lambda x: np.tile(x.reshape(repeats, most, *x.shape[1:]), (len(sizes), *[1] * x.ndim)),
        drawn,
    )
    weight = np.repeat([(np.arange(most) < n) / n for n in sizes], repeats, 0)
    return lanes, weight


def train(
    name: str, data: tuple[Contexts, Float[Any, "lane n"]], *, steps: int = 100, rate: float = 0.1
) -> Parameters:
    """The parameters of the mechanism `name` after empirical risk minimisation in every lane, on
    contexts with their weights (`draw_training`)."""
    chosen, contexts = mechanism(name), data[0]
    start = begin(len(data[1]), contexts.keys.shape[-1])
    factor = chosen.factor(contexts)
    return minimise(chosen.loss, start, data, factor, steps=steps, rate=rate).last


def absorbed(name: str, other: str, parameters: Parameters, contexts: Contexts) -> Parameters:
    """The parameters with which `other`, a mechanism that differs from `name` by the factor
    alone, is the same on contexts of this length: what minimises the risk of the one there so
    minimises that of the other."""
    here, there = mechanism(name), mechanism(other)
    if here.attend is not there.attend:
        raise InputError(f"{name} and {other} differ by more than a power of the length")
    shift = np.log(here.factor(contexts) / there.factor(contexts))
    scaled = "ridge" if here.attend is _cme else "temperature"
    return parameters._replace(**{scaled: getattr(parameters, scaled) + shift})


class Comparison(NamedTuple):
    """A mechanism against the exact predictive mean on fresh contexts: its mean square distance
    to that mean for each lane and context, and the Bayes risk of each context."""

    excess: Float[np.ndarray, "lane n"]
    bayes: Float[np.ndarray, " n"]


def compare(
    name: str,
    parameters: Parameters,
    model: BayesianRegression,
    contexts: Contexts,
    exact: Gaussian | None = None,
) -> Comparison:
    """How far the trained mechanism `name` is from the Bayes predictor, the `exact` predictive law
    of the model. Its risk at a noiseless target is the sum of the two, because the predictive mean
    is a conditional mean."""
    mean, variance = map(np.asarray, exact or model.predictive(*contexts[:3]))
    chosen = mechanism(name)
    found = np.asarray(_attend(chosen.attend, parameters, contexts, chosen.factor(contexts)))
    excess = ((found - mean) ** 2).sum(-1).mean(-1)
    return Comparison(excess, model.outputs * (variance - model.noise**2).mean(-1))


@functools.partial(jax.jit, static_argnames="attend")
def _attend(attend: Any, parameters: Parameters, contexts: Contexts, factor: Real) -> Array:
    # Lane by lane, which keeps memory small and leaves one factorisation under way at a time.
    return jax.lax.map(lambda p: attend(p, contexts, factor), parameters)


@public
def length_curves(
    trained: Mapping[str, Parameters],
    model: BayesianRegression,
    lengths: Sequence[int],
    key: Array,
    *,
    contexts: int,
    queries: int = 4,
) -> dict[str, list[Comparison]]:
    """`compare` of every mechanism at every one of `lengths`, whatever length its parameters
    were learnt at; shorter contexts are the beginnings of longer ones."""
    sizes = [whole("length", length, 1) for length in lengths]
    drawn = model.sample(key, contexts, max(sizes), queries)
    curves: dict[str, list[Comparison]] = {name: [] for name in trained}
    for size in sizes:
        here = drawn._replace(keys=drawn.keys[:, :size], values=drawn.values[:, :size])
        exact = model.predictive(*here[:3])
        for name, found in trained.items():
            curves[name].append(compare(name, found, model, here, exact))
    return curves
