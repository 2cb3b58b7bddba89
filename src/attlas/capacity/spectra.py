r"""Covers that know neither the length of a sequence nor the number of samples.

A matrix that is near another in the operator norm is near it at every token of every sample at
once. So a cover of a set of *matrices* does what covers of their values at N points do, without
$\ln N$. Two such sets, each of which comes with its `Capacity`:

- by **entries**: $\|W\|_{1,1} = \sum_{ij}|W_{ij}| \le M$, the length-free bound of Trauger and
  Tewari 2023 (arXiv 2310.13088, Lemma 3.6);
- by the **spectrum**: $\|W\|_{op} \le \sigma_1$ and $\sum_i\sigma_i(W)^p \le S_p$ for an index p
  that may be chosen once the singular values are known, after Sakai and Imaizumi 2026 (arXiv
  2605.07297).

Both are our reading: of the first the words of the lemma were seen in a paper that uses it, of the
second the abstract and the public code, in which a weight adds
$S_p^{1/(p+2)}\alpha^{p/(p+2)}d^{(p+1)/(p+2)}$ to the leading factor, with $\alpha$ how far it moves
the output. The covers below are proved here, with explicit constants. That the index is chosen
after the fact costs a union over `INDICES`, some three nats a weight, which are not counted.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax, logsumexp

from attlas.capacity.bounds import ROUNDS, Capacity
from attlas.covers import as_dimension, as_matrix, as_norm, as_numbers, log_of
from attlas.errors import InputError, positive
from attlas.gaussian import Real

INDICES = tuple(float(p) for p in np.linspace(0, 2, 17))
"""The Schatten indices p among which the best is chosen; 0 counts the rank."""
SPARED = (0.0, 0.1, 0.25, 0.5, 0.75)
r"""Shares $\theta$ of the distance that may go to singular values that are left out."""


def entry_norm(w: Any) -> float:
    r"""$\|W\|_{1,1}$, the sum of the absolute entries of a matrix; it depends on the basis."""
    return float(np.abs(as_matrix(w)).sum())


def entries_entropy(size: Real, eps: Real, outputs: Real, inputs: Real) -> Real:
    r"""Bound on the entropy of $\{x \mapsto W^\top x : \|W\|_{1,1} \le M\}$ on all $|x| \le b$ at
    once: $\lceil A^2/\epsilon^2\rceil\ln(2d_1d_2 + 1)$ nats, and 0 where $\epsilon \ge A = Mb$.

    W lies in the convex hull of 0 and the $2d_1d_2$ matrices with one entry $\pm M$. By Maurey's
    argument a mean of k of them, drawn with the weights of the hull, is within $M/\sqrt k$ of W in
    the Frobenius norm, and there are at most $(2d_1d_2 + 1)^k$ such means.

    Arguments: $A$ and $\epsilon$; $d_1$ and $d_2$, the shape of W.
    """
    log_ratio = log_of(as_norm("size", size)) - log_of(positive("eps", eps))
    return np.exp(_log_by_entries(log_ratio, *_shape(outputs, inputs)))


def spectrum_entropy(
    spectrum: Float[Any, "*s r"], eps: Real, outputs: Real, inputs: Real, radius: Real = 1.0
) -> Real:
    r"""Bound on the entropy of $\{x \mapsto W^\top x : \|W\|_{op} \le \sigma_1,\
    \sum_i\sigma_i(W)^p \le S_p\}$ on all $|x| \le b$ at once, for the best p of `INDICES`, where
    $S_p = \sum_i\sigma_i^p$ is that of the `spectrum`; 0 where $\epsilon \ge \sigma_1b$.

    Singular values below $\theta\epsilon/b$ are left out, which moves $Wx$ by $\theta\epsilon$ at
    most and leaves $k \le S_p(b/\theta\epsilon)^p$ of them. A matrix of rank k is $AB^\top$ with
    $\|A\|^2, \|B\|^2 \le \sigma_1$; both are covered in the operator norm by volume, so that
    $k(d_1 + d_2)\ln\big(1 + \frac{4\sigma_1b}{(1 - \theta)\epsilon}\big)$ nats suffice; and never
    more than $d_1d_2\ln(1 + 2\sigma_1b/\epsilon)$.

    Arguments:
    - `spectrum`: singular values [..., r]; zeros are allowed. `radius`: b.
    - `eps`: $\epsilon$. `outputs`, `inputs`: the shape of W, $d_1$ and $d_2$.
    """
    values = np.asarray(as_norm("spectrum", spectrum), float)
    largest = values.max(-1)
    log_ratio = log_of(largest * as_norm("radius", radius)) - log_of(positive("eps", eps))
    powers = log_powers(values)
    return np.exp(_log_by_spectrum(log_ratio, powers, *_shape(outputs, inputs)))


def log_powers(spectrum: Float[np.ndarray, "*s r"]) -> Float[np.ndarray, "*s index"]:
    r"""$\ln\sum_i(\sigma_i/\sigma_1)^p$ for each p of `INDICES`; of p = 0 it is the logarithm of
    the number of singular values that are not 0."""
    largest = np.maximum(np.max(spectrum, -1, keepdims=True), np.finfo(float).tiny)
    logs = log_of(np.asarray(spectrum, float) / largest)[..., None, :]
    indices = np.array(INDICES)[:, None]
    with np.errstate(invalid="ignore"):  # 0 times -inf
        raised = np.where(np.isfinite(logs), indices * logs, -np.inf)
    return logsumexp(raised, axis=-1)


def _shape(outputs: Real, inputs: Real) -> tuple[Real, Real]:
    for name, value in (("outputs", outputs), ("inputs", inputs)):
        if not np.isfinite(as_numbers(name, as_dimension(name, value))).all():
            raise InputError(f"{name} = {value!r}: a cover of matrices needs a finite shape")
    return np.asarray(outputs, float), np.asarray(inputs, float)


def _log_by_entries(log_ratio: Real, outputs: Real, inputs: Real) -> Real:
    square = 2 * np.maximum(log_ratio, 0.0)
    # Beyond 2^50 a ceiling is no more than rounding.
    count = np.where(square < 34, np.log(np.ceil(np.exp(np.minimum(square, 34.0)))), square)
    logs = count + np.log(np.log(2.0 * np.asarray(outputs) * inputs + 1))
    return np.where(np.asarray(log_ratio) > 0, logs, -np.inf)[()]


def _log_by_spectrum(
    log_ratio: Real, powers: Float[np.ndarray, "*s index"], outputs: Real, inputs: Real
) -> Real:
    ratio = np.maximum(log_ratio, 0.0)
    best = np.log(outputs * inputs) + np.log(np.logaddexp(0.0, math.log(2) + ratio))
    for share in SPARED:
        if share:
            log_count = (powers + np.array(INDICES) * (ratio - math.log(share))[..., None]).min(-1)
        else:
            log_count = powers[..., 0]
        spent = np.log(np.logaddexp(0.0, math.log(4 / (1 - share)) + ratio))
        best = np.minimum(best, log_count + np.log(outputs + inputs) + spent)
    return np.where(np.asarray(log_ratio) > 0, best, -np.inf)[()]


class _OfMatrices(Capacity):
    """A capacity whose covers do not depend on tokens or samples; `_cover` gives the logarithm of
    the nats of each term at the logarithm of its size over its distance."""

    def _cover(self, log_ratio: np.ndarray, outputs: Real, inputs: Real) -> np.ndarray:
        raise NotImplementedError

    def _log_entropies(
        self, log_eps: Real, log_samples: Real, rounds: int = ROUNDS
    ) -> tuple[np.ndarray, np.ndarray]:
        sizes, _, outputs, inputs = self._stacked()
        sizes = np.maximum(sizes, -1e200)
        shape = np.broadcast_shapes(np.shape(log_eps), np.shape(log_samples), sizes.shape[:-1])
        ratio = np.broadcast_to(sizes - np.asarray(log_eps)[..., None], (*shape, sizes.shape[-1]))
        counted = np.where(sizes > -1e199, np.log(outputs + inputs), -1e200)
        starts = [log_softmax(start, axis=-1) for start in (2 * sizes / 3, counted)]
        covers = [self._cover(ratio - start, outputs, inputs) for start in starts]
        first = np.logaddexp.reduce(covers[0], -1) <= np.logaddexp.reduce(covers[1], -1)
        shares = np.where(first[..., None], *starts)
        logs = np.where(first[..., None], *covers)
        for _ in range(rounds):
            # As in `Capacity`: equal derivatives, a third of the way.
            with np.errstate(invalid="ignore", divide="ignore"):
                slope = (logs - self._cover(ratio - shares - 1e-2, outputs, inputs)) / 1e-2
                ahead = (2 * shares + logs + np.log(np.maximum(slope, 1e-3))) / 3
                moved = log_softmax(np.where(np.isfinite(logs), ahead, shares), axis=-1)
            after = self._cover(ratio - moved, outputs, inputs)
            better = np.logaddexp.reduce(after, -1) < np.logaddexp.reduce(logs, -1)
            shares = np.where(better[..., None], moved, shares)
            logs = np.where(better[..., None], after, logs)
        return logs, np.exp(shares)

    def report(self, eps: float, samples: int = 1) -> str:
        """The terms as a table: how far each weight moves the output, its share of the distance
        and its nats, in logarithms to base 10. For one setting, not for a grid."""
        logs, shares = self.log_entropies(eps, samples)
        width = max(len(term.name) for term in self.terms)
        lines = [f"{'weight':{width}}  log10 size   share  log10 nats"]
        for term, log, share in zip(self.terms, logs, shares, strict=True):
            size, nats = (float(x) / math.log(10) for x in (term.log_size, log))
            lines.append(f"{term.name:{width}}  {size:10.2f}  {share:6.3f}  {nats:10.2f}")
        return "\n".join(lines)


@dataclass(frozen=True)
class EntriesCapacity(_OfMatrices):
    r"""A `Capacity` by `entries_entropy`: the size of a term is how far the output moves over the
    ball of $\|W\|_{1,1}$."""

    def _cover(self, log_ratio: np.ndarray, outputs: Real, inputs: Real) -> np.ndarray:
        return np.asarray(_log_by_entries(log_ratio, outputs, inputs))


@dataclass(frozen=True)
class SpectrumCapacity(_OfMatrices):
    """A `Capacity` by `spectrum_entropy`: the size of a term is how far the output moves over the
    ball of the operator norm.

    - `powers`: `log_powers` of each term's spectrum, [..., term, index]; infinite where a power is
      not known.
    """

    powers: Any = None

    def _cover(self, log_ratio: np.ndarray, outputs: Real, inputs: Real) -> np.ndarray:
        return np.asarray(_log_by_spectrum(log_ratio, np.asarray(self.powers), outputs, inputs))
