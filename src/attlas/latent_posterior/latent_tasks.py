r"""Tasks of encoders: sequences whose latent has a known posterior, drawn inside compiled programs.

A task holds the parameters of all runs; each has `draw`, for one run, and `bayes`: the best
prediction of its target in double precision, for all runs. A target that is a whole number is one
of so many answers, and predicted by their probabilities (cross-entropy); a target of real numbers
is predicted by its mean (squared error).
"""

import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import special

from attlas.errors import positive, whole
from attlas.surface import public


class Data(NamedTuple):
    """Sequences with what is to be predicted of them.

    Arguments:
        counts: [*n, t], how often each token occurs; 0 is a mask.
        target: [*n], whole numbers, or [*n, o].
        tokens: [*n, t, dim]; None for words, whose tokens are one-hot.
        query: [*n, dim], the token at which an encoder is read; None for one that says nothing.
        latent: what they were drawn from, if it is not the target.
    """

    counts: Float[Any, "*n t"]
    target: Any
    tokens: Float[Any, "*n t dim"] | None = None
    query: Float[Any, "*n dim"] | None = None
    latent: Any = None


@runtime_checkable
class Task(Protocol):
    """What every task has; `draw` is of one run, whose parameters have no axis of runs."""

    @property
    def length(self) -> Int[Any, " run"]: ...

    @property
    def outputs(self) -> int:
        """How many answers there are, or how wide a target is."""
        ...

    def draw(self, key: Array, samples: int, longest: int) -> Data:
        """Sequences of one run: `samples` of them, with room for `longest` tokens, at least the
        run's `length` and the same for all runs of a program."""
        ...

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        """The best prediction of the targets: their law, or their posterior mean."""
        ...


class Topics(NamedTuple):
    """A latent z of law `prior`, `length` words of law `words`[z] and an answer of law
    `answers`[z], the next word or anything else that depends on the latent alone."""

    prior: Float[Any, "run m"]
    words: Float[Any, "run m vocabulary"]
    answers: Float[Any, "run m o"]
    length: Int[Any, " run"]

    @property
    def outputs(self) -> int:
        return self.answers.shape[-1]

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        keys = jax.random.split(key, 3)
        z = _quantile(jax.random.uniform(keys[0], (samples,)), self.prior)
        place = jax.random.uniform(keys[1], (samples, longest))
        words = _quantile(place, self.words[z][:, None])
        seen = jnp.arange(longest) < self.length
        one_hot = words[..., None] == jnp.arange(self.words.shape[-1])
        counts = (one_hot & seen[:, None]).sum(1).astype(place.dtype)
        answer = _quantile(jax.random.uniform(keys[2], (samples,)), self.answers[z])
        return Data(counts, answer, latent=z)

    def scores(self, seen: Data) -> Float[np.ndarray, "run n m"]:
        """The logarithm of the posterior of the latent, but for a constant of each sequence."""
        counts = np.asarray(seen.counts, float)
        return np.log(self.prior)[:, None] + counts @ np.log(self.words).swapaxes(1, 2)

    def posterior(self, seen: Data) -> Float[np.ndarray, "run n m"]:
        """The law of the latent given the words."""
        return special.softmax(self.scores(seen), -1)

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        return self.posterior(seen) @ self.answers


def _quantile(place: Float[Array, "*#n"], law: Float[Array, "*#n m"]) -> Int[Array, "*n"]:
    return (place[..., None] > jnp.cumsum(law, -1)[..., :-1]).sum(-1)


class Mixtures(NamedTuple):
    r"""A class z of law `prior`, the target, and tokens $N(\mu_z, \sigma^2 I)$ with
    $\mu$ `means` and $\sigma$ `noise`."""

    prior: Float[Any, "run m"]
    means: Float[Any, "run m dim"]
    noise: Float[Any, " run"]
    length: Int[Any, " run"]

    @property
    def outputs(self) -> int:
        return self.prior.shape[-1]

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        keys = jax.random.split(key)
        z = _quantile(jax.random.uniform(keys[0], (samples,)), self.prior)
        shape = (samples, longest, self.means.shape[-1])
        tokens = self.means[z][:, None] + self.noise * jax.random.normal(keys[1], shape)
        return Data(_seen(self, samples, longest), z, tokens)

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        r"""$\propto p_z\exp((\langle\mu_z, \sum_i x_i\rangle - L|\mu_z|^2/2)/\sigma^2)$."""
        total, length = _sum(seen)
        scores = total @ self.means.swapaxes(1, 2) - length * (self.means**2).sum(-1)[:, None] / 2
        noise = np.asarray(self.noise)[:, None, None]
        return special.softmax(np.log(self.prior)[:, None] + scores / noise**2, -1)


class Locations(NamedTuple):
    r"""A latent $z \sim N(c, \tau^2 I)$, the target, and tokens $N(z, \sigma^2 I)$, with c the
    `centre`, $\tau$ `scale` and $\sigma$ `noise`."""

    centre: Float[Any, "run dim"]
    scale: Float[Any, " run"]
    noise: Float[Any, " run"]
    length: Int[Any, " run"]

    @property
    def outputs(self) -> int:
        return self.centre.shape[-1]

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        shape = (samples, 1 + longest, self.centre.shape[-1])
        normal = jax.random.normal(key, shape)
        z = self.centre + self.scale * normal[:, 0]
        tokens = z[:, None] + self.noise * normal[:, 1:]
        return Data(_seen(self, samples, longest), z, tokens)

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        r"""$(\sigma^2 c + \tau^2\sum_i x_i)/(\sigma^2 + L\tau^2)$."""
        total, length = _sum(seen)
        ridge = (np.asarray(self.noise) / self.scale)[:, None, None] ** 2
        return (ridge * np.asarray(self.centre)[:, None] + total) / (ridge + length)


class Pairs(NamedTuple):
    r"""Bayesian regression: tokens are pairs of a key on the circle and a value $v = f(k) +
    \varepsilon$, with $\varepsilon \sim N(0, \sigma^2)$ and
    $f(\vartheta) = \sum_l \sqrt{p_l}\,(a_l\cos l\vartheta + b_l\sin l\vartheta)$ of normal a, b:
    a Gaussian process of kernel $\sum_l p_l\cos l(\vartheta - \vartheta')$.

    The target is f at the key of the query, whose own value is 0. `powers` are p, from degree 0,
    and `noise` is $\sigma$.
    """

    powers: Float[Any, "run degrees"]
    noise: Float[Any, " run"]
    length: Int[Any, " run"]

    @property
    def outputs(self) -> int:
        return 1

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        keys, shape = jax.random.split(key, 3), (samples, 1 + longest)
        angle = 2 * jnp.pi * jax.random.uniform(keys[0], shape)
        points = jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)
        z = jax.random.normal(keys[1], (samples, 2 * self.powers.shape[-1]))
        even, odd = jnp.split(z * jnp.sqrt(jnp.tile(self.powers, 2)), 2, -1)
        function = fourier_sum(points[..., 0], points[..., 1], even, odd)
        values = function[:, 1:] + self.noise * jax.random.normal(keys[2], (samples, longest))
        tokens = jnp.concatenate([points[:, 1:], values[..., None]], -1)
        query = jnp.pad(points[:, 0], ((0, 0), (0, 1)))
        return Data(_seen(self, samples, longest), function[:, :1], tokens, query)

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        r"""$\varphi(q)^\top(\Phi^\top\Phi + \sigma^2 I)^{-1}\Phi^\top V$ with the features
        $\varphi = \sqrt{p_l}\,(\cos l\vartheta, \sin l\vartheta)$."""
        names = (seen.tokens, seen.query, seen.counts, self.powers, self.noise)
        runs = zip(*(np.asarray(x, float) for x in names), strict=True)
        return np.stack([self._posterior_mean(*run) for run in runs])

    @staticmethod
    def _posterior_mean(tokens: Any, query: Any, counts: Any, powers: Any, noise: Any) -> Any:
        phi = harmonics(np.arctan2(tokens[..., 1], tokens[..., 0]), powers)
        asked = harmonics(np.arctan2(query[:, 1], query[:, 0]), powers)
        weighted = (phi * counts[..., None]).swapaxes(1, 2)
        system = weighted @ phi + noise**2 * np.eye(phi.shape[-1])
        z = np.linalg.solve(system, weighted @ tokens[..., 2:])
        return (asked[..., None] * z).sum(1)


def harmonics(angle: Float[Any, "*n"], powers: Float[Any, "*#n degrees"]) -> np.ndarray:
    r"""$\sqrt{p_l}\cos l\vartheta$ and $\sqrt{p_l}\sin l\vartheta$, [*n, 2 degrees]."""
    # Powers of one complex number cost a tenth of a sine and a cosine of every degree.
    turned = np.ones((*angle.shape, powers.shape[-1]), complex)
    turned[..., 1:] = np.exp(1j * angle)[..., None]
    turned = np.cumprod(turned, -1) * np.sqrt(powers)
    return np.concatenate([turned.real, turned.imag], -1)


def fourier_sum(
    cosine: Float[Array, "n t"],
    sine: Float[Array, "n t"],
    even: Float[Array, "n degrees"],
    odd: Float[Array, "n degrees"],
) -> Float[Array, "n t"]:
    r"""$\sum_l a_l\cos l\vartheta + b_l\sin l\vartheta$, a `even` and b `odd`, by Horner's rule: it
    is the real part of $\sum_l(a_l - ib_l)e^{il\vartheta}$. Sines of every degree would take more
    time than a step of training."""
    real = imaginary = jnp.zeros_like(cosine)
    for a, b in zip(even.T[::-1, :, None], odd.T[::-1, :, None], strict=True):
        real, imaginary = real * cosine - imaginary * sine + a, real * sine + imaginary * cosine - b
    return real


def rbf_powers(temperature: float, degrees: int) -> Float[np.ndarray, " degrees"]:
    r"""The powers of the Gaussian kernel on the circle, $e^{(\cos\vartheta - 1)/T} = \sum_l
    p_l\cos l\vartheta$: $p_l = (2 - 1_{l=0})\,e^{-1/T}I_l(1/T)$ with $I_l$ the Bessel function."""
    positive("temperature", temperature)
    degree = np.arange(whole("degrees", degrees, 1))
    return np.where(degree == 0, 1, 2) * special.ive(degree, 1 / temperature)


def _seen(task: Any, samples: int, longest: int) -> Float[Array, "n longest"]:
    return jnp.tile((jnp.arange(longest) < task.length).astype(float), (samples, 1))


def _sum(seen: Data) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the tokens of each sequence [run, n, dim], and their number [run, n, 1]."""
    counts = np.asarray(seen.counts, float)
    return (counts[..., None] * np.asarray(seen.tokens)).sum(-2), counts.sum(-1)[..., None]


def draw_runs(task: Any, keys: Array, samples: int) -> Data:
    """Sequences of every run [run, samples], at the length of each."""
    longest = int(np.max(task.length))
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), task)
    return _draw_runs(single, keys, samples, longest)


@functools.partial(jax.jit, static_argnames=("samples", "longest"))
def _draw_runs(task: Any, keys: Array, samples: int, longest: int) -> Data:
    return jax.vmap(lambda one, key: one.draw(key, samples, longest))(task, keys)
