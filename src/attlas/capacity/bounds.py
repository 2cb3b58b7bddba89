"""Bounds from the entropy of a class: Rademacher complexity, risk, and samples."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax

from attlas.capacity.blocks import CONSTANTS, Block, Term
from attlas.covers import as_dimension, as_norm, as_numbers, between, log_entropy_at, log_of
from attlas.errors import InputError, positive
from attlas.gaussian import Real


class RiskBound(NamedTuple):
    r"""With probability $1 - \delta$, for every member of a class: the share of errors exceeds
    the share of margins below $\gamma$ on the sample by at most `value`
    $= 2R/\gamma + 3\sqrt{\ln(2/\delta)/2m}$, with $R$ the empirical Rademacher complexity on the m
    samples. At 1 or more it says nothing, and is `vacuous`.

    Arguments:
        complexity: $2R/\gamma$. `confidence`: the other term.
    """

    value: Real
    complexity: Real
    confidence: Real

    @property
    def vacuous(self) -> Any:
        """Whether it says nothing."""
        return self.value >= 1


RATIO, MAX_DISTANCES = 1.1, 2000
"""Dudley's integral evaluates the entropy at distances of this ratio, but at no more than so
many."""

ROUNDS = 60
"""Moves of the shares of the distance towards the best ones; Dudley's integral makes none."""


@dataclass(frozen=True)
class Capacity:
    """A bound on the entropy of a class on any m samples, as a sum of terms.

    - `log_reach`: bounds the logarithm of the functions' values.
    - `constant`: which Lipschitz constant of softmax was used.
    - `layers`: logarithms of the blocks' Lipschitz constants.

    Arguments:
        terms: one for each bounded weight.
    """

    terms: tuple[Term, ...]
    log_reach: Real
    constant: str = "paper"
    layers: tuple[Real, ...] = ()

    def log_entropies(self, eps: Real, samples: Real) -> tuple[Real, Real]:
        r"""Logarithm of the nats of each term at distance `eps`, and the terms' shares of the
        distance, both [..., term].

        Any shares $\beta_k$ give a bound; these make the sum least. Let $A_k$ be the size of term
        k, $n_k$ its points up to a factor, and $d_1 \times d_2$ its shape. The shares start at
        $\propto (A_k^2\ln n_k)^{1/3}$, best where entropies fall like
        $A_k^2\ln n_k/(\beta_k\epsilon)^2$, or at $\propto d_1d_2$, best where parameters are
        counted. They are then moved to where all terms' derivatives are equal: a minimum, perhaps
        a local one.
        """
        return self._log_entropies(log_of(positive("eps", eps)), _log_samples(samples))

    def log_entropy(self, eps: Real, samples: Real) -> Real:
        """Logarithm of the nats of a cover at distance `eps`: -inf where one function suffices."""
        return self._total(log_of(positive("eps", eps)), _log_samples(samples))

    def entropy(self, eps: Real, samples: Real) -> Real:
        """Nats of a cover at distance `eps`; infinite only where a float cannot hold it."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_entropy(eps, samples))

    def dimension_free(self) -> "Capacity":
        """The same bound without counting parameters: by covers that know norms and the number
        of points alone."""
        return replace(self, terms=tuple(term._replace(inputs=np.inf) for term in self.terms))

    def _stacked(self) -> tuple[np.ndarray, ...]:
        """Sizes, tokens, outputs and inputs of the terms, each [*settings, term]."""
        flat = [np.asarray(x, float) for term in self.terms for x in term[1:]]
        whole = np.broadcast_arrays(*flat)
        return tuple(np.stack(whole[i::4], -1) for i in range(4))

    def _shape(self, *others: Real) -> tuple[int, ...]:
        """The shape of the settings that this bound is for, with those of `others`."""
        return np.broadcast_shapes(
            np.shape(self.log_reach),
            self._stacked()[0].shape[:-1],
            *(np.shape(other) for other in others),
        )

    def _log_entropies(
        self, log_eps: Real, log_samples: Real, rounds: int = ROUNDS
    ) -> tuple[np.ndarray, np.ndarray]:
        sizes, tokens, outputs, inputs = self._stacked()
        sizes = np.maximum(sizes, -1e200)  # finite: a weight of size 0 needs no share
        ratio = sizes - np.asarray(log_eps)[..., None]
        log_points = np.asarray(log_samples)[..., None] + np.log(tokens)

        def cover(log_shares: np.ndarray) -> np.ndarray:
            return log_entropy_at(ratio - log_shares, log_points, outputs, inputs)

        inside = np.maximum(ratio, 0.0)
        shares = log_softmax((2 * sizes + np.log(log_points + math.log(8) + inside)) / 3, axis=-1)
        logs = cover(shares)
        if np.isfinite(inputs).all():
            counted = log_softmax(
                np.where(sizes > -1e199, np.log(outputs * inputs), -1e200), axis=-1
            )
            by_count = cover(counted)
            better = (_sum_last(by_count) < _sum_last(logs))[..., None]
            shares, logs = np.where(better, counted, shares), np.where(better, by_count, logs)
        for _ in range(rounds):
            # Equal derivatives mean shares in proportion to share * |derivative|; a third of the
            # way converges at once for a square.
            with np.errstate(invalid="ignore", divide="ignore"):
                slope = (logs - cover(shares + 1e-3)) / 1e-3
                ahead = (2 * shares + logs + np.log(np.maximum(slope, 1e-3))) / 3
                moved = log_softmax(np.where(np.isfinite(logs), ahead, shares), axis=-1)
            after = cover(moved)
            better = (_sum_last(after) < _sum_last(logs))[..., None]
            shares, logs = np.where(better, moved, shares), np.where(better, after, logs)
        return logs, np.exp(shares)

    def _total(self, log_eps: Real, log_samples: Real, rounds: int = ROUNDS) -> Real:
        total = _sum_last(self._log_entropies(log_eps, log_samples, rounds)[0])
        return np.where(log_eps >= self.log_reach, -np.inf, total)[()]

    def rademacher(self, samples: Real) -> Real:
        r"""Bound on the empirical Rademacher complexity by Dudley's integral,
        $\inf_a\{4a + \frac{12}{\sqrt m}\int_a^R\sqrt{H(\epsilon)}\,d\epsilon\}$, by an upper sum
        over a geometric grid of distances; and never more than the largest value R."""
        with np.errstate(over="ignore"):
            return np.exp(self._log_rademacher(_log_samples(samples)))

    def _log_rademacher(self, log_samples: Real) -> Real:
        log_samples = np.broadcast_to(log_samples, self._shape(log_samples))
        # The best a is about 3 sqrt(a^2 H(a) / m); below a hundredth of that nothing is gained.
        tenth = self._total(self.log_reach + math.log(0.1), log_samples, 0)
        lowest = math.log(0.003) + (tenth - log_samples) / 2
        lowest = float(np.min(lowest, where=np.isfinite(lowest), initial=math.log(0.1)))
        # The grid does not depend on m but for its end, so that the bound does not jump as m
        # changes; it is coarser only over absurd ranges.
        spacing = math.log(RATIO)
        spacing *= 2 ** max(0, math.ceil(math.log2(-lowest / (MAX_DISTANCES * spacing))))
        logs = -spacing * np.arange(math.ceil(-lowest / spacing), -1, -1.0)
        logs = logs.reshape(-1, *[1] * log_samples.ndim)
        # A few distances at a time stay in the processor's cache.
        count = 1 + logs.size * log_samples.size * len(self.terms) // (1 << 15)
        chunks = [chunk for chunk in np.array_split(logs[:-1], count) if len(chunk)]
        entropy = np.concatenate([self._total(self.log_reach + c, log_samples, 0) for c in chunks])
        entropy = np.minimum.accumulate(entropy - log_samples)  # it falls in the distance
        with np.errstate(divide="ignore"):
            pieces = entropy / 2 + logs[:-1] + np.log(np.expm1(np.diff(logs, axis=0)))
        tails = np.logaddexp.accumulate(pieces[::-1])[::-1]
        least = np.logaddexp(math.log(4) + logs[:-1], math.log(12) + tails).min(0)
        return self.log_reach + np.minimum(least, 0.0)

    def risk_bound(self, samples: Real, *, margin: Real, delta: Real = 0.05) -> RiskBound:
        r"""The margin bound for classification, which fails with probability $\delta$ at most.

        Arguments:
        - `samples`: m. `margin`: $\gamma$. `delta`: $\delta$; see `RiskBound` for the formula.
        """
        complexity = 2 * self.rademacher(samples) / positive("margin", margin)
        confidence = 3 * np.sqrt(
            np.log(2 / np.asarray(between("delta", delta))) / (2 * np.asarray(samples))
        )
        return RiskBound(complexity + confidence, complexity, confidence)

    def log_samples_for(self, gap: Real, *, margin: Real, delta: Real = 0.05) -> Real:
        """Logarithm of the number of samples from which on `risk_bound` is below `gap`, a number
        between 0 and 1, with the same `margin` and `delta`."""
        between("gap", gap), positive("margin", margin), between("delta", delta)
        log_samples = np.zeros(self._shape(gap, margin, delta))
        low, high = np.zeros_like(log_samples), np.full_like(log_samples, np.inf)
        for _ in range(500):
            log_complexity = math.log(2) + self._log_rademacher(log_samples) - log_of(margin)
            log_confidence = (
                np.log(3 * np.sqrt(np.log(2 / np.asarray(delta)) / 2)) - log_samples / 2
            )
            step = 2 * (np.logaddexp(log_complexity, log_confidence) - np.log(gap))
            low, high = np.where(step > 0, log_samples, low), np.where(step > 0, high, log_samples)
            if np.all((abs(step) < 1e-9) | (high - low < 1e-9)):
                break
            # The bound falls nearly like 1 / sqrt(m), so that this step contracts fast. Where
            # another cover becomes the smaller one it jumps, and the interval is halved.
            ahead = log_samples + step
            inside = (low < ahead) & (ahead < high)
            log_samples = np.where(inside, ahead, (low + np.minimum(high, 1e6)) / 2)
        return np.where(abs(step) < 1e-9, log_samples, high)[()]

    def samples_for(self, gap: Real, *, margin: Real, delta: Real = 0.05) -> Real:
        """The number of samples from which on `risk_bound` is below `gap`; infinite only where a
        float cannot hold it."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_samples_for(gap, margin=margin, delta=delta))

    def scaling(self, eps: Real, samples: Real) -> dict[str, Real]:
        """Exponents of the entropy at fixed norms: in the length, in the number of samples, in
        1/eps; and with `depth`, what a layer more multiplies it by, in nats (twice the mean
        logarithm of the layers' Lipschitz constants)."""
        log_eps, log_samples, h = log_of(positive("eps", eps)), _log_samples(samples), 1e-3
        if np.any(log_eps >= self.log_reach):
            raise InputError(
                f"eps = {eps!r}: it must be below the largest value of the class, "
                f"{np.exp(np.min(self.log_reach)):.4g}"
            )
        base = self._total(log_eps, log_samples)
        stretched = tuple(
            term._replace(tokens=term.tokens * math.exp(h)) if np.any(term.tokens != 1) else term
            for term in self.terms
        )
        longer = replace(self, terms=stretched)
        found = {
            "length": (longer._total(log_eps, log_samples) - base) / h,
            "samples": (self._total(log_eps, log_samples + h) - base) / h,
            "1/eps": (self._total(log_eps - h, log_samples) - base) / h,
        }
        return found | ({"depth": 2 * sum(self.layers) / len(self.layers)} if self.layers else {})

    def report(self, eps: float, samples: int) -> str:
        """The terms as a table: how far each weight moves the output, its share of the distance,
        its nats, and whether its cover goes by norms or by the number of parameters. Logarithms
        to base 10. For one setting, not for a grid."""
        if self._shape(eps, samples):
            raise InputError(
                "a report is for one setting: this bound, eps and samples have the shape "
                f"{self._shape(eps, samples)}"
            )
        scaling = self.scaling(eps, samples)
        logs, shares = self.log_entropies(eps, samples)
        sizes, tokens, outputs, _ = self._stacked()
        ratios = sizes - np.log(eps * np.maximum(shares, 1e-300))
        free = log_entropy_at(ratios, np.log(samples * tokens), outputs, np.inf)
        width = max(len(t.name) for t in self.terms)
        lines = [f"{'weight':{width}}  log10 size   share  log10 nats  cover"]
        for term, log, share, by_norms in zip(self.terms, logs, shares, free, strict=True):
            size, nats = (
                f"{float(x) / math.log(10):10.2f}" if np.isfinite(x) else "      none"
                for x in (term.log_size, log)
            )
            cover = "norms" if log >= by_norms - 1e-12 else "parameters"
            cover = cover if np.isfinite(log) else "-"
            lines.append(f"{term.name:{width}}  {size}  {share:6.3f}  {nats}  {cover}")
        total = self.log_entropy(eps, samples) / math.log(10)
        lines.append(f"{'all':{width}}  {'':10}  {'':6}  {total:10.2f}")
        exponents = ", ".join(f"{name} {value:.3g}" for name, value in scaling.items())
        lines.append(
            f"constant of softmax: {CONSTANTS[self.constant]:g} ({self.constant}); exponents: "
            f"{exponents}"
        )
        return "\n".join(lines)


def _sum_last(logs: np.ndarray) -> Real:
    return np.logaddexp.reduce(logs, -1)


def class_of(block: Block, radius: Real = 1.0) -> Capacity:
    """The capacity of a block on sequences of tokens in the ball of `radius`.

    Arguments:
        block: the block.
    """
    grown = block(log_of(positive("radius", radius)))
    return Capacity(grown.terms, grown.log_radius, grown.constant, grown.layers)


def read_out(block: Block, weight: Real, radius: Real = 1.0, *, out_dim: Real = np.inf) -> Capacity:
    r"""The capacity of $w^\top f(X)_{CLS}$ with $|w| \le$ `weight`: one further term, and every
    other $|w|$ times as large.

    Arguments:
        block: $f$.
        weight: the bound on $|w|$.
        radius: of the tokens.
        out_dim: the dimension of w.
    """
    grown = block(log_of(positive("radius", radius)))
    log_weight = log_of(as_norm("weight", weight))
    terms = tuple(term.scaled(log_weight) for term in grown.terms)
    reach = log_weight + grown.log_radius
    last = Term("read-out", reach, 1, 1, as_dimension("out_dim", out_dim))
    return Capacity((*terms, last), reach, grown.constant, grown.layers)


def occam_samples(log_hypotheses: Real, error: Real, delta: Real = 0.05) -> Real:
    r"""Samples after which every consistent hypothesis of a finite class errs with probability
    at most `error`, with probability $1 - \delta$:
    $(\ln|\mathcal{H}| + \ln\frac1\delta)/\text{error}$.

    Arguments:
        log_hypotheses: $\ln|\mathcal{H}|$. `delta`: $\delta$.

    >>> from attlas.capacity import occam_samples
    >>> print(round(occam_samples(log_hypotheses=100.0, error=0.1)))
    1030
    """
    return (as_norm("log_hypotheses", log_hypotheses) - np.log(between("delta", delta))) / between(
        "error", error
    )


def _log_samples(samples: Real) -> Real:
    if not (as_numbers("samples", positive("samples", samples)) >= 1).all():
        raise InputError(f"samples = {samples!r}: it must be at least 1")
    return log_of(samples)
