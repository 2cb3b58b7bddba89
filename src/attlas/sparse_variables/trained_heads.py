r"""What training found, in the terms of the constructions: scores and values on their own tokens,
and what certifies them.

A trained layer without MLP and layer norms, read at [CLS], is a sum of linear heads: the context c
never changes, so that head h scores a token by $\langle x, W_K^hW_Q^{h\top}c\rangle/\sqrt k$ and
adds $\langle x, W_V^hW_O^h(w_1 - w_0)\rangle$ to the difference of the logits. Its embeddings are
learned too, and a bound for given tokens does not cover them. But a token is a place plus a bit, so
the scores, and the values, of all 2T + 1 tokens are T + 3 numbers: products with the places, the
two bits and [CLS]. These are the weights of a head on the orthonormal tokens
$(v_t + e_{b_t})/\sqrt2$, which are given, and on which the constructions live. `Heads` holds them.

Two bounds are applied to them: that of `attlas.capacity` for the class of their norms, and a
PAC-Bayes bound for heads with Gaussian noise on every weight, relative to the heads with which
training began. Edelman et al. 2022, Sections 4 and 5; McAllester 1999; Maurer 2004.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8
from scipy import special

from attlas.capacity import Capacity, class_of, collapsed_head, multi_head
from attlas.covers import between
from attlas.errors import InputError, whole
from attlas.gaussian import Real, stream
from attlas.sparse_variables.construction import Construction
from attlas.sparse_variables.embedding import SPECIAL
from attlas.sparse_variables.model import Transformer
from attlas.sparse_variables.task import Batch, SparseBoolean
from attlas.surface import public

SPREADS = tuple(2 ** (i / 2) for i in range(-1, 4))
"""Standard deviations of the noise that a PAC-Bayes bound chooses from, for scores and for
values: 0.7 to 2.8."""

NOISY_BATCH = 64
"""Noisy heads that are evaluated at once."""
PILOT = 16
"""Draws of the noise by which it is chosen; the error is measured with others."""


class Heads(NamedTuple):
    r"""$\sum_h\sum_t p^h_t\,\text{value}_h(x_t)$, with $p^h$ the softmax of the scores: products
    of each head's two weights with the T places, the two bits and [CLS]. The sign is the label.

    Arguments:
        score, value: the products [..., h, T + 3].
    """

    score: Float[Any, "*n h columns"]
    value: Float[Any, "*n h columns"]

    @classmethod
    def of(cls, model: Transformer) -> "Heads":
        """The heads that a trained layer is; what it adds to every sequence is in the first
        one's values of the bits and of [CLS]."""
        if model.mlp is not None or model.norms is not None or model.architecture.uniform:
            raise InputError(
                "the model has an MLP, layer norms or uniform attention: only a layer without them "
                "is a sum of linear heads"
            )
        model = jax.tree.map(lambda x: np.asarray(x, float), model)
        cls_token = model.tokens[2] + model.positions[-1]
        embedding = np.concatenate([model.positions[:-1], model.tokens[:2], cls_token[None]])
        read = model.read[:, 1] - model.read[:, 0]
        query = np.einsum("d,dhk->hk", cls_token, model.query) / model.query.shape[-1] ** 0.5
        score = np.einsum("cd,dhk,hk->hc", embedding, model.key, query)
        value = np.einsum(
            "cd,dhk,hke,e->hc", embedding, model.value, model.out, read, optimize=True
        )
        value[0, -SPECIAL:] += (cls_token + model.out_bias) @ read
        return cls(score, value)

    @classmethod
    def of_construction(cls, head: Construction) -> "Heads":
        """The weights of a linear construction in which [CLS] is a key, as it is in the trained
        layer."""
        if head.relu or not head.attend:
            raise InputError(
                f"{head.builder.__name__} has a ReLU, or [CLS] is no key: only the others are sums "
                "of linear heads"
            )
        columns = np.column_stack([head.score, head.read @ head.mix @ head.out])
        score, value = head.embedding.products(head.task.support, columns).T
        return cls(score[None], value[None])

    @classmethod
    def stacked(cls, heads: Iterable["Heads"]) -> "Heads":
        """Several networks along a leading axis."""
        return cls(*(np.stack(x) for x in zip(*heads, strict=True)))

    def each(self) -> Iterator["Heads"]:
        """The networks one by one."""
        return (Heads(*weights) for weights in zip(self.score, self.value, strict=True))

    @property
    def length(self) -> int:
        """$T$."""
        return self.score.shape[-1] - SPECIAL

    def __call__(self, bits: UInt8[np.ndarray, "*b m length"]) -> Float[np.ndarray, "*n m"]:
        """The outputs for sequences of bits: two sums over the 2T + 1 tokens for each head, as in
        `mixture`, where in double precision one offset serves all sequences whose scores differ by
        less than 1,300."""
        own = np.ones((*bits.shape[:-1], 1), bool)
        chosen = np.concatenate([bits == 0, bits == 1, own], -1).astype(float)
        scores, values = (_rows(np.asarray(x, float)) for x in self)
        powers = np.exp(scores - scores.max(-1, keepdims=True) + 600)
        columns = np.stack([powers * values, powers], -3)
        *n, two, h, rows = columns.shape
        # Networks that share their sequences are one product.
        flat = columns.reshape(-1, rows) if chosen.ndim == 2 else columns.reshape(*n, two * h, rows)
        above, below = np.moveaxis(
            (flat @ np.swapaxes(chosen, -1, -2)).reshape(*n, two, h, -1), -3, 0
        )
        return (above / below).sum(-2)

    def weights(self, bits: UInt8[np.ndarray, "m length"]) -> Float[np.ndarray, "m h places"]:
        """The attention of one network's heads on each place, and last on [CLS]."""
        places, (zero, one, own) = self.score[:, :-SPECIAL], self.score[:, -SPECIAL:].T[..., None]
        scores = np.where(bits[:, None] == 1, places + one, places + zero)
        own = np.broadcast_to(own, (*scores.shape[:-1], 1))
        return special.softmax(np.concatenate([scores, own], -1), axis=-1)

    def nearest(self, other: "Heads | None" = None) -> "Heads":
        r"""The same function, by the weights nearest to those of `other`, or to 0.

        A number may go from the bits to the places, and softmax does not see what all scores share;
        what all values of a head share may go to another head. That leaves 2 directions of scores
        free for each head, and 2h - 1 of values for all together.
        """
        heads, columns = self.score.shape
        places = np.append(np.ones(columns - SPECIAL), [0.0, 0.0, 1.0])
        bits = np.append(np.zeros(columns - SPECIAL), np.ones(SPECIAL))
        each = np.eye(heads)
        shared = np.kron(each[1:] - each[0], bits)
        zero = Heads(np.zeros_like(self.score), np.zeros_like(self.value))
        other = zero if other is None else other
        score = _without(self.score - other.score, np.stack([places, bits]))
        value = _without(
            (self.value - other.value).reshape(1, -1),
            np.concatenate([np.kron(each, places - bits), shared]),
        )
        return Heads(other.score + score, other.value + value.reshape(heads, columns))

    def norms(self) -> tuple[Float[np.ndarray, "*n h"], Float[np.ndarray, "*n h"]]:
        r"""$|u_h|$ and $|v_h|$, for tokens of unit length."""
        score, value = (np.sqrt(2) * np.linalg.norm(x, axis=-1) for x in self)
        return score, value

    def capacity(self, constant: str = "sharp", *, count_parameters: bool = False) -> Capacity:
        """The bound for all heads of these norms on unit tokens, for one network or several."""
        score, value = (np.moveaxis(x, -1, 0) for x in self.norms())
        dim = self.length + SPECIAL if count_parameters else np.inf
        each = [
            collapsed_head(u, v, self.length + 1, dim, constant)
            for u, v in zip(score, value, strict=True)
        ]
        return class_of(multi_head(*each))


def _rows(x: Float[np.ndarray, "*n columns"]) -> Float[np.ndarray, "*n rows"]:
    """Products with the tokens: bit 0 at each place, bit 1 at each place, [CLS]."""
    places, bits, own = x[..., :-SPECIAL], x[..., -SPECIAL:-1], x[..., -1:]
    return np.concatenate([places + bits[..., :1], places + bits[..., 1:], own], -1)


def _without(
    x: Float[np.ndarray, "n c"], free: Float[np.ndarray, "k c"]
) -> Float[np.ndarray, "n c"]:
    """`x` without its part in the span of `free`."""
    return x - np.linalg.lstsq(free.T, x.T, rcond=None)[0].T @ free


def support_mass(
    weights: Float[np.ndarray, "m h places"], batch: Batch, task: SparseBoolean
) -> Float[np.ndarray, "2 h"]:
    """The share of each head's attention on the support, where the label is 0 and where it is 1."""
    mean = np.stack([weights[batch.label == y].mean(0) for y in (0, 1)])
    return mean[..., list(task.support)].sum(-1)


def binary_kl(q: Real, p: Real) -> Real:
    r"""$q\ln\frac qp + (1-q)\ln\frac{1-q}{1-p}$."""
    q, p = np.asarray(q, float), np.asarray(p, float)
    return (special.rel_entr(q, p) + special.rel_entr(1 - q, 1 - p))[()]


def kl_inverse(q: Real, nats: Real) -> Real:
    r"""The largest p with $\mathrm{kl}(q \| p) \le$ `nats`, from above: by halving an interval,
    to rounding."""
    low, high = np.broadcast_arrays(np.asarray(q, float), np.ones(np.shape(nats)))
    for _ in range(60):
        middle = (low + high) / 2
        inside = binary_kl(q, middle) <= nats
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return high[()]


def pac_bayes(empirical: Real, nats: Real, samples: Real, delta: Real = 0.05) -> Real:
    r"""With probability $1 - \delta$ over m samples, for every posterior at once: the error of
    its random member is at most $\mathrm{kl}^{-1}\big(\hat e, \frac1m(\mathrm{KL} +
    \ln\frac{2\sqrt m}\delta)\big)$ (Maurer 2004).

    Arguments:
        empirical: $\hat e$, the error of the posterior's random member on the samples.
        nats: KL of the posterior from the prior.
        samples, delta: m and $\delta$. All broadcast.
    """
    samples = np.asarray(samples, float)
    log_count = np.log(2 * np.sqrt(samples) / between("delta", delta))
    return kl_inverse(empirical, (np.asarray(nats) + log_count) / samples)


def pac_bayes_samples(empirical: Real, nats: Real, error: Real, delta: Real = 0.05) -> Real:
    """The samples from which on `pac_bayes` is at most `error`, at the same empirical error;
    infinite where the empirical error is not below it.

    Arguments: as in `pac_bayes`, and the `error` to certify.
    """
    empirical = np.asarray(empirical, float)
    with np.errstate(divide="ignore"):
        rate = np.where(empirical < between("error", error), binary_kl(empirical, error), 0.0)
        samples = np.full(np.broadcast_shapes(empirical.shape, np.shape(nats)), 1.0)
        for _ in range(200):  # m -> (KL + ln(2 sqrt(m) / delta)) / kl contracts above 1 / (2 kl)
            samples = np.maximum(
                (np.asarray(nats) + np.log(2 * np.sqrt(samples) / delta)) / rate, 1.0
            )
    return samples[()]


class Certificate(NamedTuple):
    """A PAC-Bayes bound for noisy heads: standard deviations of the noise on scores and values,
    nats from the prior, the error of a noisy head on the training set (an upper limit), what is
    certified by it, and the samples that would do for `gap`.

    Arguments:
        spread: of scores and values [n, 2]. `nats`: from the prior [n].
        empirical: on the training set [n]. `error`: what is certified [n]. `samples`: that would do
            [n].
    """

    spread: Float[np.ndarray, "n 2"]
    nats: Float[np.ndarray, " n"]
    empirical: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    samples: Float[np.ndarray, " n"]


@public
def certify(
    heads: Heads,
    start: Heads,
    batch: Batch,
    key: Array,
    *,
    gap: float = 0.5,
    delta: float = 0.05,
    draws: int = 1000,
) -> Certificate:
    r"""PAC-Bayes certificates of n networks, each with its training set.

    Posterior: independent normal noise around the heads, with one standard deviation for all scores
    and one for all values. Prior: the same noise around the heads with which training began,
    $\mathrm{KL} = |u - u_0|^2/2\sigma_u^2 + |v - v_0|^2/2\sigma_v^2$. Both deviations are from
    `SPREADS`, which a union bound over all pairs pays for; those are taken at which the fewest
    samples would do, by `PILOT` draws. The error on the training set is then measured with `draws`
    others, and its upper limit used. Half of $\delta$ is for the samples and half for the draws.

    Arguments:
        heads, start: weights [n, h, T + 3] after training and before it.
        batch: training sets, bits [n, m, T] and labels [n, m].
        key: of the noise.
        gap: the error for which the samples that would do are counted.
        delta: the probability that a certificate is wrong, at most.
        draws: of noisy heads, for the error on the training set.

    >>> import jax
    >>> import numpy as np
    >>> from attlas.sparse_variables import Batch, Heads, SparseBoolean, certify, sink_head
    >>> task = SparseBoolean(8, (0, 1))
    >>> trained = Heads.stacked([Heads.of_construction(sink_head(task))])
    >>> batch = Batch(*(np.asarray(x)[None] for x in task.sample(jax.random.key(0), 500)))
    >>> start = Heads(0 * trained.score, 0 * trained.value)
    >>> found = certify(trained, start, batch, jax.random.key(1), draws=200)
    >>> print(found.error.shape)
    (1,)
    """
    whole("draws", draws, 1)
    heads = Heads.stacked(w.nearest(w0) for w, w0 in zip(heads.each(), start.each(), strict=True))
    moved = np.stack(
        [((x - x0) ** 2).sum((-1, -2)) for x, x0 in zip(heads, start, strict=True)], -1
    )
    pairs = np.array([(u, v) for u in SPREADS for v in SPREADS])
    share = delta / 2 / len(pairs)
    pilot, final = jax.random.split(key)
    every = np.broadcast_to(pairs, (len(moved), *pairs.shape))
    nats = (moved[:, None] / (2 * pairs**2)).sum(-1)
    rough = noisy_errors(heads, batch, every, pilot, PILOT).mean(-1)
    best = pac_bayes_samples(np.minimum(rough + 1 / PILOT, 1.0), nats, gap, share).argmin(-1)
    spread, nats = pairs[best], nats[np.arange(len(best)), best]
    error = noisy_errors(heads, batch, spread[:, None], final, draws)[:, 0].mean(-1)
    empirical = kl_inverse(error, math.log(2 / delta) / draws)
    samples = np.shape(batch.label)[-1]
    return Certificate(
        spread,
        nats,
        empirical,
        pac_bayes(empirical, nats, samples, share),
        pac_bayes_samples(empirical, nats, gap, share),
    )


@public
def noisy_errors(
    heads: Heads, batch: Batch, spread: Float[np.ndarray, "n g 2"], key: Array, draws: int
) -> Float[np.ndarray, "n g draws"]:
    """The share of errors of networks with normal noise on scores and values, each on its batch.

    Arguments:
        heads: weights [n, h, T + 3].
        batch: bits [n, m, T] and labels [n, m].
        spread: standard deviations on scores and values, g pairs for each network, [n, g, 2].
        key: of the noise; all networks and pairs have the same draws.

    Returns: [n, g, draws].
    """
    noise = stream(key).standard_normal((draws, 2, *heads.score.shape[1:]))
    errors = np.empty((*spread.shape[:2], draws))
    for n, (own, bits, label) in enumerate(zip(heads.each(), batch.bits, batch.label, strict=True)):
        for g, (u, v) in enumerate(spread[n]):
            for first in range(0, draws, NOISY_BATCH):
                some = noise[first : first + NOISY_BATCH]
                noisy = Heads(own.score + u * some[:, 0], own.value + v * some[:, 1])
                errors[n, g, first : first + NOISY_BATCH] = ((noisy(bits) > 0) != label).mean(-1)
    return errors
