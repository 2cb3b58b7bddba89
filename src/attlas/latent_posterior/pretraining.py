r"""Masked pretraining: hidden tokens are predicted from the others, and a task with few labels
reads the representation that was learnt.

The best prediction of a hidden token is a linear image of the posterior, $E[v \mid X] = T\pi_X$.
Two models have every excess risk in closed form once the coefficients are fitted. `LinearGaussian`
has a posterior mean that is linear in the tokens; `Masked` topics have finitely many counts.
Everything is NumPy's, in double precision, with repeats as an axis. Zhang et al. 2022; the models
are ours.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from attlas.errors import InputError, positive, whole
from attlas.gaussian import float64, stream
from attlas.latent_posterior.models import (
    FiniteLatent,
    categorical_from_uniform,
    draw_counts,
    mean_by_count,
)
from attlas.latent_posterior.trained_attention import minimise
from attlas.surface import public


@public
def masked_operator(
    model: FiniteLatent, embedding: Float[Any, "p vocabulary"] | None = None
) -> Float[np.ndarray, "p m"]:
    r"""$T = EP^\top$ [p, m]: the best prediction of a hidden word's embedding is $T\pi$ for the
    posterior $\pi$ of the topic given the words that are left, however many are hidden.

    Arguments:
        model: with m topics, whose `words` are $P$ [m, vocabulary].
        embedding: $E$ [p, vocabulary], a column for each word; the identity unless given.
    """
    words = np.asarray(model.words, float).T
    if embedding is None:
        return words
    embedding = np.asarray(embedding, float)
    if embedding.shape[-1:] != words.shape[:1]:
        raise InputError(
            f"embedding has the shape {embedding.shape}: it must have a column for each of"
            f" {len(words)} words"
        )
    return embedding @ words


def least_squares(
    features: Float[Any, "*r n d"], targets: Float[Any, "*r rows p"]
) -> Float[np.ndarray, "*r d p"]:
    """Coefficients of a linear probe, for every repeat."""
    x, y = np.asarray(features, float), np.asarray(targets, float)
    if x.shape[:-1] != y.shape[:-1]:
        raise InputError(
            f"there are {y.shape[-2]} labels and {x.shape[-2]} rows of features: there must be one"
            f" label for each"
        )
    if x.shape[-2] < x.shape[-1]:
        raise InputError(
            f"there are {x.shape[-2]} labels for {x.shape[-1]} features: a probe needs at least"
            f" one for each feature"
        )
    unit = x / np.maximum(np.linalg.norm(x, axis=-2, keepdims=True), 1e-300)
    if np.any(np.linalg.eigvalsh(np.swapaxes(unit, -1, -2) @ unit) < 1e-12):
        raise InputError(
            "the features are collinear: a probe needs features none of which is a combination of"
            " the others"
        )
    transposed = np.swapaxes(x, -1, -2)
    return np.linalg.solve(transposed @ x, transposed @ y)


OPERATORS = ("mixing", "masked", "task")


class Fitted(NamedTuple):
    """What pretraining learnt from n sequences, for every repeat: `coefficients` that predict the
    hidden value, and the exact excess risks of that prediction and of the task that reads the
    representation made of it."""

    coefficients: Float[np.ndarray, "repeat p d"]
    pretraining: Float[np.ndarray, " repeat"]
    downstream: Float[np.ndarray, " repeat"]


@dataclass(frozen=True)
class LinearGaussian:
    r"""Tokens $x_i = Cz + \sigma e_i$ with $z \sim N(0, I_r)$; each of h hidden ones shows $v_j =
    Az + s\,e'_j$, and the task asks for $Bz$.

    The mean $\bar x$ of the L tokens that are left is sufficient, the posterior mean is $\mu =
    K\bar x$ with $K = C^\top S^{-1}$, $S = CC^\top + \frac{\sigma^2}{L}I$, and the covariance $I -
    KC$. `mixing` is C [d, r], `masked` A [p, r], `task` B [q, r]. The masked risk, a mean over
    hidden tokens, has the minimiser of least squares on their mean $\bar v$, whose noise is
    $s^2/h$.

    Arguments:
        length: $L$. `noise`: $\sigma$. `target_noise`: $s$. `hidden`: $h$.

    >>> import numpy as np
    >>> from attlas.latent_posterior import LinearGaussian
    >>> model = LinearGaussian(mixing=np.eye(2), masked=np.eye(2), task=np.eye(2)[:1], length=10)
    >>> print(*(f"{risk:.4f}" for risk in model.expected(100)))
    0.0141 0.0070
    """

    mixing: Any
    masked: Any
    task: Any
    length: int
    noise: float = 1.0
    target_noise: float = 0.5
    hidden: int = 1

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        whole("hidden", self.hidden, 1)
        positive("noise", self.noise)
        operators = {name: np.asarray(getattr(self, name), float) for name in OPERATORS}
        for name, operator in operators.items():
            object.__setattr__(self, name, operator)
        shapes = [operator.shape for operator in operators.values()]
        if any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
            told = ", ".join(f"{name} {operator.shape}" for name, operator in operators.items())
            raise InputError(
                f"the shapes are {told}: they must be matrices with a column for each latent"
                f" coordinate"
            )

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """$S$, of the mean of the tokens."""
        c = self.mixing
        return c @ c.T + self.noise**2 / self.length * np.eye(len(c))

    @property
    def gain(self) -> Float[np.ndarray, "r d"]:
        r"""$K$, with which the posterior mean is $K\bar x$."""
        return np.linalg.solve(self.covariance, self.mixing).T

    @property
    def spread(self) -> Float[np.ndarray, "r r"]:
        """Covariance of the posterior."""
        return np.eye(self.mixing.shape[1]) - self.gain @ self.mixing

    @public
    def draw(self, key: Array, samples: int, repeats: int) -> tuple[np.ndarray, np.ndarray]:
        """Latents [repeat, n, r] and means of the tokens [repeat, n, d]."""
        shape = (whole("repeats", repeats, 1), whole("samples", samples, 1), sum(self.mixing.shape))
        z, e = np.split(stream(key).standard_normal(shape), [self.mixing.shape[1]], -1)
        return z, z @ self.mixing.T + self.noise / np.sqrt(self.length) * e

    def excess(self, coefficients: Float[np.ndarray, "*r p d"], operator: Any) -> Float[Any, "*r"]:
        r"""$E|G\bar x - O\mu|^2$ of predictions with coefficients G of $Oz$."""
        off = coefficients - operator @ self.gain
        return np.einsum("...pd,de,...pe->...", off, self.covariance, off)

    @public
    def pretrain(self, key: Array, samples: int, repeats: int) -> Fitted:
        r"""Least squares of the hidden values on $\bar x$; the representation is $\hat\mu = A^+\hat
        G\bar x$, read by the task as $B\hat\mu$."""
        data, noises = jax.random.split(key)
        z, x = self.draw(data, samples, repeats)
        a, shape = self.masked, (repeats, samples, self.hidden, len(self.masked))
        v = z @ a.T + self.target_noise * stream(noises).standard_normal(shape).mean(-2)
        fitted = np.swapaxes(least_squares(x, v), -1, -2)
        read = self.task @ np.linalg.pinv(a, rcond=1e-10)
        return Fitted(fitted, self.excess(fitted, a), self.excess(read @ fitted, self.task))

    def expected(self, samples: int) -> tuple[float, float]:
        r"""The mean of both excess risks over the sample, exact for $n > d + 1$:
        $\frac{d}{n-d-1}\mathrm{tr}\,M\Sigma M^\top$ with $\Sigma = A(I - KC)A^\top +
        \frac{s^2}{h}I$, M the identity for pretraining and $BA^+$ for the task, which adds what the
        representation cannot hold of it, $E|B(I - A^+A)\mu|^2$."""
        a, b, d = self.masked, self.task, len(self.mixing)
        if samples <= d + 1:
            raise InputError(
                f"samples = {samples}: with {d} features the mean is finite for more than {d + 1}"
            )
        inverse = np.linalg.pinv(a, rcond=1e-10)
        sigma = a @ self.spread @ a.T + self.target_noise**2 / self.hidden * np.eye(len(a))
        read, factor = b @ inverse, d / (samples - d - 1)
        lost = b @ (np.eye(a.shape[1]) - inverse @ a) @ self.gain
        blind = np.trace(lost @ self.covariance @ lost.T)
        downstream = factor * np.trace(read @ sigma @ read.T) + blind
        return float(factor * np.trace(sigma)), float(downstream)

    @public
    def probe(
        self,
        coefficients: Float[np.ndarray, "*r p d"] | None,
        key: Array,
        labels: int,
        repeats: int,
        label_noise: float,
    ) -> Float[np.ndarray, " repeat"]:
        r"""The task's excess risk with few labels $Bz + \text{noise}$, by least squares on $\hat
        G\bar x$.

        Arguments:
            coefficients: the pretrained $\hat G$ [*r, p, d]; None learns from scratch, on $\bar x$.
            key: of the labelled sequences, which do not depend on `coefficients`.
            labels: labelled sequences in each repeat, at least one a feature.
            label_noise: standard deviation of the noise.

        Returns: exact excess risks of the fitted probes, [repeat].
        """
        data, noises = jax.random.split(key)
        z, x = self.draw(data, labels, repeats)
        b, g = self.task, np.eye(x.shape[-1]) if coefficients is None else coefficients
        y = z @ b.T + label_noise * stream(noises).standard_normal((repeats, labels, len(b)))
        w = least_squares(x @ np.swapaxes(g, -1, -2), y)
        return self.excess(np.swapaxes(w, -1, -2) @ g, b)

    def expected_probe(
        self, coefficients: Float[np.ndarray, "*r p d"] | None, labels: int, label_noise: float
    ) -> Float[Any, "*r"]:
        r"""The mean of `probe` over the labels, given the `coefficients`: $v_G - v +
        \frac{p\,v_G}{n-p-1}$ for p features and n labels, where $v_G$ and v are the variances that
        are left of a label given the features and given $\bar x$, over all outputs. Exact, because
        all is Gaussian; with fixed features it would be $\frac{p\,v_G}{n}$."""
        b, s = self.task, self.covariance
        g = np.eye(len(s)) if coefficients is None else coefficients
        p = g.shape[-2]
        if whole("labels", labels, 1) <= p + 1:
            raise InputError(
                f"labels = {labels}: with {p} features the mean is finite for more than {p + 1}"
            )
        across = g @ self.mixing @ b.T
        seen = np.swapaxes(across, -1, -2) @ np.linalg.solve(g @ s @ np.swapaxes(g, -1, -2), across)
        left = len(b) * label_noise**2 + (b**2).sum() - np.trace(seen, axis1=-2, axis2=-1)
        best = len(b) * label_noise**2 + np.trace(b @ self.spread @ b.T)
        return left - best + p * left / (labels - p - 1)


def tangent(m: int) -> Float[np.ndarray, "m others"]:
    """Orthonormal directions that sum to 0, in which two probability vectors can differ."""
    return np.linalg.svd(np.ones((1, m)))[2][1:].T


class Masked(NamedTuple):
    """Topics with hidden words: all counts of the words that are left, their law and posterior, and
    the operator that a hidden word's embedding reads the posterior with."""

    counts: Float[np.ndarray, "k vocabulary"]
    law: Float[np.ndarray, " k"]
    posterior: Float[np.ndarray, "k m"]
    operator: Float[np.ndarray, "p m"]
    embedding: Float[np.ndarray, "p vocabulary"]
    noise: float
    hidden: int = 1

    @public
    def sample(
        self, key: Array, samples: int, repeats: int, words: Float[Any, "m vocabulary"]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw sequences, and average the hidden words by the counts of the words that are left.

        The masked risk, a mean over the hidden words, has the same minimiser with their mean.

        Arguments:
            samples: sequences in each repeat.
            words: probabilities of the words given the latent, [m, vocabulary].

        Returns: the share of each of the counts among the sequences [repeat, k], and the mean
        embedding of the hidden words at each, noise included, [repeat, k, p]; 0 at counts that were
        not drawn.
        """
        rng = stream(key)
        k, z = draw_counts(rng, self.law, self.posterior, samples, repeats)
        # All hidden words come from one latent: given the words that are left they are
        # not independent.
        w = categorical_from_uniform(rng.random((self.hidden, *z.shape)), np.asarray(words)[z])
        v = self.embedding.T[w] + self.noise * rng.standard_normal((*w.shape, len(self.embedding)))
        return mean_by_count(k, v.mean(0), len(self.law))

    def excess(
        self, error: Float[np.ndarray, "*r k m"], operator: Float[np.ndarray, "q m"]
    ) -> Float[Any, "*r"]:
        r"""$E|O\delta_X|^2$ of the error $\delta$ of a representation."""
        return ((error @ operator.T) ** 2).sum(-1) @ self.law


def masked_topics(
    model: FiniteLatent, length: int, sizes: Any, noise: float, hidden: int = 1
) -> Masked:
    r"""Topics with hidden words, whose embedding is chosen so that $T$ has given singular values.

    On directions that sum to 0 (`tangent` $U$), $TU = \mathrm{diag}(\text{sizes})$, by
    $E = \mathrm{diag}(\text{sizes})(P^\top U)^+$.

    Arguments:
        length: words of a sequence; `hidden` of them are hidden.
        sizes: singular values [m - 1].
        noise: standard deviation of the normal noise on a hidden word's embedding.
    """
    u = tangent(len(model.prior))
    words = np.asarray(model.words, float)
    embedding = np.diag(np.asarray(sizes, float)) @ np.linalg.pinv(words.T @ u)
    if whole("length", length, 2) <= whole("hidden", hidden, 1):
        raise InputError(f"hidden = {hidden} of {length} words: at least one word must be left")
    operator = masked_operator(model, embedding)
    return Masked(*model.counted(length - hidden), operator, embedding, noise, hidden)


@float64
def on_simplex(
    masked: Masked,
    share: Float[np.ndarray, "repeat k"],
    target: Float[np.ndarray, "repeat k p"],
    *,
    steps: int = 300,
) -> Float[np.ndarray, "repeat k m"]:
    r"""The representation $\hat\pi = \mathrm{softmax}(W N + b)$ of the counts N that predicts the
    hidden word best as $T\hat\pi$. The class holds the true posterior, and stays in the simplex.

    Arguments:
        share, target: as `Masked.sample` gives them.
        steps: of the minimiser, from W = 0 and b = 0.

    Returns: $\hat\pi$ at each of the counts, [repeat, k, m].
    """
    m, vocabulary = masked.posterior.shape[1], masked.counts.shape[1]
    start = (np.zeros((len(share), vocabulary, m)), np.zeros((len(share), m)))
    shared = (masked.counts, masked.operator)
    path = minimise(_masked_loss, start, (share, target), shared, steps=steps, rate=0.1)
    weights, shift = path.last
    return special.softmax(masked.counts @ weights + shift[:, None], -1)


def _masked_loss(parameters: Any, data: Any, shared: Any) -> Array:
    (weights, shift), (share, target), (counts, operator) = parameters, data, shared
    predicted = jax.nn.softmax(counts @ weights + shift, -1) @ operator.T
    return share @ ((predicted - target) ** 2).sum(-1)


def unconstrained(
    masked: Masked, share: Float[np.ndarray, "repeat k"], target: Float[np.ndarray, "repeat k p"]
) -> Float[np.ndarray, "repeat k m"]:
    r"""The representation $T^+\hat G\pi$ of the prediction that is linear in the posterior, by
    least squares, on the plane of vectors that sum to 1 but not in the simplex: it holds the true
    posterior too."""
    phi = masked.posterior
    gram = np.einsum("rk,ki,kj->rij", share, phi, phi)
    fitted = np.linalg.solve(gram, np.einsum("rk,ki,rkp->rip", share, phi, target))
    m = phi.shape[1]
    u = tangent(m)
    centre = masked.operator @ np.full(m, 1 / m)
    return 1 / m + (phi @ fitted - centre) @ np.linalg.pinv(masked.operator @ u).T @ u.T
