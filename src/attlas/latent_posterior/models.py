r"""Models with a known posterior: tokens that are independent and alike given a latent z.

Each model (Zhang et al. 2022) draws sequences of any length and has the law of z given a sequence,
the law of what comes next, and the Bayes risk: the least mean square error of an estimate of the
latent from `length` tokens, noise of the target not included. That risk is exact (`bayes_risk`: a
closed form, a sum over counts or a quadrature, as each says) and has a sampled twin
(`sampled_bayes_risk`).

Models are pytrees: `jax.vmap` runs over their arrays, and what is computed follows the precision of
the context. Draws, sums over counts, likelihoods and posteriors of NumPy arrays are computed by
NumPy in double precision, so that only a caller's features or kernel are compiled.
"""

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import special

from attlas.attention import identity
from attlas.errors import InputError, positive, whole
from attlas.gaussian import BLOCK, Estimate, Real, float64, stream
from attlas.surface import as_key, public

MAX_TERMS = 2_000_000
"""The most terms that an exact sum may have."""
BATCH = 1 << 10
"""Contexts whose Gram matrices are factored at a time."""


Tokens = Float[Any, "*n length dim"]
Values = Float[Any, "*n length outputs"]
Queries = Float[Any, "*n queries dim"]


class Sequences(NamedTuple):
    """Sequences and the latents they were drawn from, which a learner does not see."""

    latent: Any  # [n, ...]
    tokens: Any  # [n, length, ...]


class Contexts(NamedTuple):
    """Pairs of keys and values, and queries with the noiseless values there."""

    keys: Float[Any, "n length dim"]  # where values were seen
    values: Float[Any, "n length outputs"]  # what was seen there
    queries: Float[Any, "n queries dim"]  # where a value is asked for
    targets: Float[Any, "n queries outputs"]  # the noiseless values there


class Gaussian(NamedTuple):
    """A Gaussian law: its mean, and the variance of each entry or the covariance of each column."""

    mean: Float[Any, "..."]  # of any shape
    variance: Float[Any, "..."]  # of each entry, or a covariance


class Mixture(NamedTuple):
    """Gaussian laws N(means_z, noise^2 I) with weights [*n, m]."""

    weights: Float[Any, "*n m"]  # of the parts
    means: Float[Any, "m dim"]  # of the parts
    noise: Real  # the parts' standard deviation

    def log_density(self, at: Float[Any, "*n dim"]) -> Float[Any, "*n"]:
        """The log density of the mixture at points."""
        densities = normal_log_density(at[..., None, :], self.means, self.noise)
        logsumexp = special.logsumexp if _is_numpy(densities) else jax.nn.logsumexp
        return logsumexp(densities, axis=-1, b=self.weights)


def _is_numpy(*arrays: Any) -> bool:
    """Whether none of them is a JAX array, so that NumPy can compute with them."""
    return not any(isinstance(x, jax.Array) for x in arrays)


def _library(*arrays: Any) -> Any:
    """NumPy, or JAX if one of them is a JAX array."""
    return np if _is_numpy(*arrays) else jnp


def normal_log_density(
    x: Float[Any, "*#s dim"], mean: Float[Any, "*#s dim"], noise: Real
) -> Float[Any, "*s"]:
    """Log density of N(mean, noise^2 I)."""
    log_scale = x.shape[-1] * _library(noise).log(math.sqrt(2 * math.pi) * noise)
    return -((x - mean) ** 2).sum(-1) / (2 * noise**2) - log_scale


class Model(eqx.Module):
    """What all models share: samples, and a Bayes risk that is exact and has a sampled twin."""

    @abstractmethod
    def sample(self, key: Array, samples: int, length: int) -> Any: ...

    @abstractmethod
    def squared_errors(self, drawn: Any) -> Float[Any, " n"]:
        """Squared distance of the posterior mean to the truth, for each of the drawn sequences."""

    @abstractmethod
    def bayes_risk(self, length: int) -> Real: ...

    def sampled_bayes_risk(self, length: int, key: Array, samples: int) -> Estimate:
        """`bayes_risk` by simulation."""
        return simulated_mean(
            lambda one, n: self.squared_errors(self.sample(one, n, length)), key, samples
        )


def simulated_mean(draw: Callable[[Array, int], Any], key: Array, samples: int) -> Estimate:
    """Mean over `samples` values of `draw(key, n)`, which returns n of them.

    Each block has a key of its own, so that a longer run begins with the numbers of a shorter one.
    """
    starts = range(0, whole("samples", samples, 1), BLOCK)
    values = np.concatenate(
        [draw(jax.random.fold_in(as_key(key), i), min(BLOCK, samples - i)) for i in starts]
    )
    return Estimate(values.mean(), values.std(ddof=1) / math.sqrt(samples))


class GaussianLocation(Model):
    r"""$x_i = z + \varepsilon_i$, $z \sim N(0, \tau^2 I)$, $\varepsilon_i \sim N(0, \sigma^2 I)$.

    The posterior depends on the sum of the tokens and on their number only.

    Arguments:
        dim: of tokens and latent.
        noise, scale: $\sigma$ and $\tau$.
    """

    dim: int = eqx.field(static=True)
    noise: Real = 1.0
    scale: Real = 1.0

    def __check_init__(self) -> None:
        whole("dim", self.dim, 1)
        positive("noise", self.noise)
        positive("scale", self.scale)

    def sample(self, key: Array, samples: int, length: int) -> Sequences:
        """Latents [n, dim] and tokens [n, length, dim]."""
        shape = (whole("samples", samples, 1), 1 + whole("length", length, 1), self.dim)
        drawn = stream(key).standard_normal(shape)
        z = self.scale * drawn[:, 0]
        return Sequences(z, z[:, None] + self.noise * drawn[:, 1:])

    def posterior(self, tokens: Tokens) -> Gaussian:
        r"""$N\big(\frac{\tau^2}{\sigma^2 + L\tau^2}\sum_i x_i,
        \frac{\sigma^2\tau^2}{\sigma^2 + L\tau^2} I\big)$."""
        variance = self._variance(tokens.shape[-2])
        return Gaussian(variance / self.noise**2 * tokens.sum(-2), variance)

    def predictive(self, tokens: Tokens) -> Gaussian:
        """The law of the next token."""
        mean, variance = self.posterior(tokens)
        return Gaussian(mean, variance + self.noise**2)

    def _variance(self, length: int) -> Real:
        return self.noise**2 * self.scale**2 / (self.noise**2 + length * self.scale**2)

    def bayes_risk(self, length: int) -> Real:
        r"""$d\,\frac{\sigma^2\tau^2}{\sigma^2 + L\tau^2}$, in closed form."""
        return self.dim * self._variance(whole("length", length, 1))

    def squared_errors(self, drawn: Sequences) -> Float[Any, " n"]:
        return ((self.posterior(drawn.tokens).mean - drawn.latent) ** 2).sum(-1)


def _as_pytree(kernel: Any) -> Any:
    """A kernel with parameters is a pytree of arrays; a function becomes one without any."""
    if kernel is None or isinstance(kernel, eqx.Module):
        return kernel
    return jax.tree_util.Partial(kernel)


class BayesianRegression(Model):
    r"""$v_i = z^\top\phi(k_i) + \varepsilon_i$: values that depend linearly on features of keys.

    $z$ has entries $N(0, \tau^2)$ and $\varepsilon \sim N(0, \sigma^2 I)$. With a `kernel` in place
    of `features` it is a Gaussian process of covariance $\tau^2 k(k, k')$. The ridge is
    $\lambda = \sigma^2/\tau^2$.

    Arguments:
        dim: of keys, which are uniform on the unit sphere unless `points` are given.
        features: from [..., dim] to [..., D]; must be hashable.
        kernel: from [..., i, dim] and [..., j, dim] to [..., i, j]; must be hashable.
        outputs: columns of the values.
        noise, scale: $\sigma$ and $\tau$.
        points: [points, dim], on whose rows keys are then uniform.
    """

    dim: int = eqx.field(static=True)
    features: Callable[[Array], Array] = eqx.field(static=True, default=identity)
    kernel: Callable[[Array, Array], Array] | None = eqx.field(converter=_as_pytree, default=None)
    outputs: int = eqx.field(static=True, default=1)
    noise: Real = 0.3
    scale: Real = 1.0
    points: Float[Any, "points dim"] | None = None

    def __check_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("outputs", self.outputs, 1)
        positive("noise", self.noise)
        positive("scale", self.scale)
        if self.kernel is not None and self.features is not identity:
            raise InputError(
                "features and kernel are both given: a regression has the one or the other"
            )
        if self.points is not None and self.points.shape[1:] != (self.dim,):
            raise InputError(
                f"points have the shape {self.points.shape}: they must be rows of width {self.dim}"
            )

    @property
    def ridge(self) -> Real:
        r"""$\lambda = \sigma^2/\tau^2$."""
        return self.noise**2 / self.scale**2

    def gram(
        self, a: Float[Any, "*#n i dim"], b: Float[Any, "*#n j dim"]
    ) -> Float[Array, "*n i j"]:
        r"""$\langle\phi(a_i), \phi(b_j)\rangle$."""
        if self.kernel is not None:
            return self.kernel(a, b)
        return self.features(a) @ jnp.swapaxes(self.features(b), -1, -2)

    def sample(self, key: Array, samples: int, length: int, queries: int = 1) -> Contexts:
        """Contexts with queries, each from a latent of its own.

        Arguments:
            samples: contexts, n.
            length: pairs of a key and a value in each.
            queries: fresh keys in each, with the noiseless values there as targets.
        """
        rng = stream(key)
        size = whole("length", length, 1) + whole("queries", queries, 1)
        shape = (whole("samples", samples, 1), size)
        if self.points is None:
            keys = rng.standard_normal((*shape, self.dim))
            keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        else:
            keys = np.asarray(self.points)[rng.integers(len(self.points), size=shape)]
        roots = np.concatenate([self._root(keys[i : i + BATCH]) for i in range(0, samples, BATCH)])
        latent = self.scale * rng.standard_normal((samples, roots.shape[-1], self.outputs))
        values, targets = np.split(roots @ latent, [length], axis=1)
        noise = self.noise * rng.standard_normal(values.shape)
        return Contexts(keys[:, :length], values + noise, keys[:, length:], targets)

    def _root(self, keys: Float[np.ndarray, "n size dim"]) -> Float[np.ndarray, "n size D"]:
        """R with the Gram matrix RR': the features, or a Cholesky factor."""
        if self.kernel is None:
            return _evaluated(self.features, keys)
        gram = _evaluated(self.gram, keys, keys)
        # Lifted by its rounding error, because a smooth kernel's matrix is singular to rounding.
        lift = 10 * np.finfo(float).eps * np.trace(gram, axis1=-2, axis2=-1)
        return np.linalg.cholesky(gram + lift[:, None, None] * np.eye(gram.shape[-1]))

    def posterior(self, keys: Tokens, values: Values) -> Gaussian:
        r"""Mean $(\Phi^\top\Phi + \lambda I)^{-1}\Phi^\top V$ [D, outputs], and the covariance
        $\sigma^2(\Phi^\top\Phi + \lambda I)^{-1}$ of every output.

        $\Phi^\top\Phi$ and $\Phi^\top V$ are all that is needed of the context.
        """
        if self.kernel is not None:
            raise InputError(
                "the latent of a kernel is a function: its posterior is the `predictive` law at"
                " queries"
            )
        phi = _evaluated(self.features, keys)
        transposed = phi.swapaxes(-1, -2)
        system = transposed @ phi + self.ridge * np.eye(phi.shape[-1])
        covariance = _library(system).linalg.inv(system)
        return Gaussian(covariance @ (transposed @ values), self.noise**2 * covariance)

    def predictive(self, keys: Tokens, values: Values, queries: Queries) -> Gaussian:
        r"""The law of a value at each query.

        Mean $g_q^\top(G + \lambda I)^{-1}V$ [queries, outputs], and the variance
        $\sigma^2 + \tau^2\,[k(q, q) - g_q^\top(G + \lambda I)^{-1}g_q]$ [queries] of every output.
        """
        library, length = _library(keys, values, queries), keys.shape[-2]
        points = library.concatenate([keys, queries], -2)
        every = _evaluated(self.gram, points, points)
        seen, cross = every[..., :length, :length], every[..., :length, length:]
        both = library.concatenate([cross, values], -1)
        solved = library.linalg.solve(seen + self.ridge * np.eye(length), both)
        known, white = library.split(solved, [queries.shape[-2]], -1)
        own = library.diagonal(every, axis1=-2, axis2=-1)[..., length:]
        variance = self.noise**2 + self.scale**2 * (own - (cross * known).sum(-2))
        return Gaussian(cross.swapaxes(-1, -2) @ white, variance)

    @float64
    def bayes_risk(self, length: int) -> Real:
        r"""Of the value at a fresh key, where keys are rows of `points`: exact.

        The sum over the counts $N$ of how often each point was seen, of
        $\mathrm{tr}\,(I + C N/\sigma^2)^{-1}C$ for the prior covariance $C$ of the function there.
        """
        if self.points is None:
            raise InputError(
                "keys on the sphere have no finite law to sum over: give points, or take"
                " sampled_bayes_risk"
            )
        counts = compositions(whole("length", length, 1), len(self.points))
        law = np.exp(log_multinomial(counts) - length * np.log(len(self.points)))
        prior = self.scale**2 * _evaluated(self.gram, self.points, self.points)
        seen = np.eye(len(prior)) + prior * counts[:, None, :] / self.noise**2
        covariance = np.linalg.solve(seen, np.broadcast_to(prior, seen.shape))
        return self.outputs * law @ np.trace(covariance, axis1=-2, axis2=-1) / len(prior)

    def squared_errors(self, drawn: Contexts) -> Float[Any, " n"]:
        """Squared distances of the predictive mean to the noiseless value, mean over queries."""
        mean = self.predictive(*drawn[:3]).mean
        return ((mean - drawn.targets) ** 2).sum(-1).mean(-1)


def _evaluated(function: Callable[..., Array], *points: Any) -> Any:
    """A caller's features or kernel: of NumPy arrays compiled, and in double precision."""
    return _compiled(function, *points) if _is_numpy(*points) else function(*points)


@float64
@eqx.filter_jit
def _compiled(function: Callable[..., Array], *points: Any) -> Any:
    return function(*points)


class FiniteModel(Model):
    """Models whose latent is one of m classes.

    Arguments:
        prior: the probabilities of the classes.
        values: what is to be estimated for each class; the class itself (one-hot) by default.
    """

    prior: Float[Any, " m"]
    values: Float[Any, "m o"]

    @abstractmethod
    def log_likelihood(self, tokens: Any) -> Float[Any, "*n m"]:
        """The log likelihood of the sequence given each latent."""

    def posterior(self, tokens: Any) -> Float[Any, "*n m"]:
        """The probability of each latent given the tokens [..., m]."""
        return posterior_of(self.prior, self.log_likelihood(tokens))

    def squared_errors(self, drawn: Sequences) -> Float[Any, " n"]:
        values = np.asarray(self.values)
        return ((self.posterior(drawn.tokens) @ values - values[drawn.latent]) ** 2).sum(-1)


def categorical_from_uniform(place: Float[Any, "*#n"], law: Float[Any, "*#n m"]) -> Int[Any, "*n"]:
    """Draws from a law on 0 to m - 1, as its quantiles at the uniform numbers `place`."""
    return (place[..., None] > np.asarray(law).cumsum(-1)[..., :-1]).sum(-1)


class FiniteLatent(FiniteModel):
    r"""A topic model: $z \in \{1, \dots, m\}$, tokens independent words of law `words`[z].

    The posterior given counts $N$, $\mathrm{softmax}(\ln p + (\ln P)N)$ for p the `prior` and P the
    `words` [m, vocabulary], depends on $(\ln P_z - \ln P_1)N$ only; `values` as in `FiniteModel`.
    """

    words: Float[Any, "m vocabulary"]

    def __init__(self, prior: Any, words: Any, values: Any = None) -> None:
        self.prior, self.values = _checked_classes(prior, values)
        self.words = checked_probabilities("words", words, (len(self.prior), None))

    @property
    def vocabulary(self) -> int:
        """The number of words."""
        return self.words.shape[1]

    def sample(self, key: Array, samples: int, length: int) -> Sequences:
        """Latents [n] and words [n, length], numbered from 0."""
        drawn = stream(key).random((whole("samples", samples, 1), 1 + whole("length", length, 1)))
        z = categorical_from_uniform(drawn[:, 0], self.prior)
        return Sequences(z, categorical_from_uniform(drawn[:, 1:], self.words[z][:, None]))

    @public
    def counts(self, tokens: Int[Any, "*n length"]) -> Float[Any, "*n vocabulary"]:
        """How often each word occurs [..., vocabulary]."""
        return (tokens[..., None] == np.arange(self.vocabulary)).sum(-2).astype(float)

    def log_likelihood(self, tokens: Int[Any, "*n length"]) -> Float[Any, "*n m"]:
        return self.log_likelihood_of_counts(self.counts(tokens))

    def log_likelihood_of_counts(self, counts: Float[Any, "*n vocabulary"]) -> Float[Any, "*n m"]:
        """`log_likelihood` of a sequence with these counts."""
        xlogy = special.xlogy if _is_numpy(counts, self.words) else jax.scipy.special.xlogy
        return xlogy(counts[..., None, :], self.words).sum(-1)

    def predictive(self, tokens: Int[Any, "*n length"]) -> Float[Any, "*n vocabulary"]:
        """The probability of each word to come next."""
        return self.posterior(tokens) @ self.words

    @float64
    def counted(self, length: int) -> "Counted":
        """All counts of the words of a sequence of `length`, exactly."""
        counts = compositions(whole("length", length, 1), self.vocabulary)
        likelihood = self.log_likelihood_of_counts(counts.astype(float))
        joint = _library(likelihood).exp(likelihood + log_multinomial(counts)[:, None])
        return Counted(
            counts.astype(float), joint @ self.prior, posterior_of(self.prior, likelihood)
        )

    @float64
    def bayes_risk(self, length: int) -> Real:
        """Exact, by the sum over the counts of the words."""
        _, law, posterior = self.counted(length)
        return law @ posterior_variance(posterior, self.values)


class Counted(NamedTuple):
    """Counts of the words of a sequence, with their law and the posterior at each."""

    counts: Float[np.ndarray, "k vocabulary"]
    law: Float[Any, " k"]
    posterior: Float[Any, "k m"]


def draw_counts(
    rng: np.random.Generator, law: Any, posterior: Any, samples: int, repeats: int
) -> tuple[Int[np.ndarray, "repeat n"], Int[np.ndarray, "repeat n"]]:
    """Draw the counts of sequences, and the latent of each given its counts.

    Arguments:
        law: of the counts, [k]; need not sum to 1.
        posterior: of the latent at each of the counts, [k, m].
        samples: sequences in each repeat, n.

    Returns: indices of counts and of latents, each [repeat, n].
    """
    shape = (whole("repeats", repeats, 1), whole("samples", samples, 1))
    k = rng.choice(len(law), shape, p=law / law.sum())
    return k, categorical_from_uniform(rng.random(shape), posterior[k])


def mean_by_count(
    k: Int[np.ndarray, "repeat n"], values: Float[np.ndarray, "repeat n *p"], counts: int
) -> tuple[Float[np.ndarray, "repeat k"], Float[np.ndarray, "repeat k *p"]]:
    """Shares of the counts in samples, and the mean of their `values` at each, 0 if not seen."""
    rows = np.arange(len(k))[:, None]
    seen, total = np.zeros((len(k), counts)), np.zeros((len(k), counts, *values.shape[2:]))
    np.add.at(seen, (rows, k), 1)
    np.add.at(total, (rows, k), values)
    number = np.maximum(seen, 1).reshape(*seen.shape, *[1] * (values.ndim - 2))
    return seen / k.shape[1], total / number


class GaussianMixture(FiniteModel):
    r"""$x_i \sim N(\mu_z, \sigma^2 I)$ with $z$ of law `prior` and `means` [m, dim].

    The posterior, $\mathrm{softmax}(\ln p_z + (\langle S, \mu_z\rangle - L|\mu_z|^2/2)/\sigma^2)$,
    depends on $S = \sum_i x_i$ only in the span of the differences of the means. `prior` and
    `values` are those of `FiniteModel`.

    Arguments:
        noise: $\sigma$.
    """

    means: Float[Any, "m dim"]
    noise: Real

    def __init__(self, prior: Any, means: Any, noise: Real = 1.0, values: Any = None) -> None:
        self.prior, self.values = _checked_classes(prior, values)
        self.means = _checked_matrix("means", means, (len(self.prior), None))
        self.noise = positive("noise", noise)

    def sample(self, key: Array, samples: int, length: int) -> Sequences:
        """Latents [n] and tokens [n, length, dim]."""
        rng = stream(key)
        z = categorical_from_uniform(rng.random(whole("samples", samples, 1)), self.prior)
        noise = rng.standard_normal((samples, whole("length", length, 1), self.means.shape[1]))
        return Sequences(z, np.asarray(self.means)[z][:, None] + self.noise * noise)

    def log_likelihood(self, tokens: Tokens) -> Float[Any, "*n m"]:
        return normal_log_density(tokens[..., None, :], self.means, self.noise).sum(-2)

    def predictive(self, tokens: Tokens) -> Mixture:
        """The law of the next token."""
        return Mixture(self.posterior(tokens), self.means, self.noise)

    @float64
    def bayes_risk(self, length: int) -> Real:
        r"""By the trapezoidal rule in the span of the differences of the means, to 1e-13.

        The standardised sum is $N(0, I)$ there. The posterior is analytic in it within a strip of
        $\pi/a$, where $a$ is the largest distance of two means in standard errors, so that the rule
        with step h errs by $e^{-\pi^2/(ah)}$ within half of that strip.
        """
        scale = math.sqrt(whole("length", length, 1)) / float(self.noise)
        centred = scale * (self.means - self.means[:1])
        _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
        means = centred @ axes[: np.sum(sizes > 1e-12 * max(sizes.max(), 1e-300))].T
        farthest = np.sqrt(((means[:, None] - means) ** 2).sum(-1)).max(initial=0)
        step = min(0.3, math.pi**2 / (32 * max(farthest, 1.0)))
        line = np.arange(-math.ceil(9 / step), math.ceil(9 / step) + 1) * step
        rank = means.shape[1]
        if len(self.prior) * float(len(line)) ** rank > 4 * MAX_TERMS:
            raise InputError(
                f"length = {length}: a quadrature in {rank} dimensions over means {farthest:.3g}"
                " standard errors apart has too many nodes; take sampled_bayes_risk"
            )
        grid = line[np.indices((len(line),) * rank).reshape(rank, len(line) ** rank).T]
        weight = np.exp(-(grid**2).sum(-1) / 2)
        weight /= weight.sum()
        risk = 0.0
        for p, mean in zip(self.prior, means, strict=True):
            posterior = posterior_of(self.prior, -((grid[:, None] + mean - means) ** 2).sum(-1) / 2)
            risk += p * weight @ posterior_variance(posterior, self.values)
        return risk


def posterior_of(prior: Float[Any, " m"], log_likelihood: Float[Any, "*n m"]) -> Float[Any, "*n m"]:
    r"""$\mathrm{softmax}(\ln p + \ell)$ for the log likelihood $\ell$ of each of m latents."""
    softmax = special.softmax if _is_numpy(prior, log_likelihood) else jax.nn.softmax
    return softmax(_library(prior).log(prior) + log_likelihood, axis=-1)


def posterior_variance(
    posterior: Float[Any, "*n m"], values: Float[Any, "m o"]
) -> Float[Any, "*n"]:
    r"""Mean squared distance of $c_z$ to its mean, as $\frac12\sum_{z, w}\pi_z\pi_w|c_z - c_w|^2$.

    In this form small values keep their digits.
    """
    distances = ((values[:, None] - values) ** 2).sum(-1)
    return ((posterior @ distances) * posterior).sum(-1) / 2


@functools.lru_cache(maxsize=16)
def compositions(total: int, parts: int) -> Int[np.ndarray, "n parts"]:
    """All ways to write `total` as an ordered sum of `parts` whole numbers, 0 among them."""
    number = math.comb(total + parts - 1, parts - 1)
    if number > MAX_TERMS:
        raise InputError(
            f"{total} tokens of {parts} kinds can be counted in {number:,} ways: at most"
            f" {MAX_TERMS:,} are summed over"
        )
    chosen = itertools.chain.from_iterable(
        itertools.combinations(range(total + parts - 1), parts - 1)
    )
    bars = np.fromiter(chosen, int, number * (parts - 1)).reshape(number, parts - 1)
    ends = np.column_stack([np.full(number, -1), bars, np.full(number, total + parts - 1)])
    return np.diff(ends, axis=1) - 1


def log_multinomial(counts: Int[np.ndarray, "n parts"]) -> Float[np.ndarray, " n"]:
    """Logarithm of the number of sequences with these counts (the multinomial coefficient)."""
    return special.gammaln(counts.sum(1) + 1) - special.gammaln(counts + 1).sum(1)


def _checked_matrix(name: str, value: Any, shape: tuple[int | None, ...]) -> Any:
    """`value` as real numbers of a shape in which None is any length; tracers are not read."""
    if not isinstance(value, jax.Array):
        try:
            value = np.asarray(value, float)
        except (TypeError, ValueError):
            raise InputError(f"{name} = {value!r}: it must be numbers") from None
    if len(value.shape) != len(shape) or any(
        n not in (None, k) or k == 0 for n, k in zip(shape, value.shape, strict=True)
    ):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InputError(f"{name} has the shape {value.shape}: it must be ({wanted})")
    if not isinstance(value, jax.core.Tracer) and not np.isfinite(np.asarray(value)).all():
        raise InputError(f"{name} has an entry that is not a finite number")
    return value


def checked_probabilities(name: str, value: Any, shape: tuple[int | None, ...]) -> Any:
    """`_checked_matrix`, if its rows are probabilities."""
    value = _checked_matrix(name, value, shape)
    if not isinstance(value, jax.core.Tracer):
        sums, least = np.asarray(value).sum(-1), float(np.min(value))
        if least < 0 or (abs(sums - 1) > 1e-6).any():
            worst = np.atleast_1d(sums)[np.argmax(abs(np.atleast_1d(sums) - 1))]
            raise InputError(
                f"{name} has the least entry {least:g} and a row with the sum {worst:g}: it must be"
                " probabilities"
            )
    return value


def _checked_classes(prior: Any, values: Any) -> tuple[Any, Any]:
    prior = checked_probabilities("prior", prior, (None,))
    if values is None:
        return prior, np.eye(len(prior))
    return prior, _checked_matrix("values", values, (len(prior), None))
