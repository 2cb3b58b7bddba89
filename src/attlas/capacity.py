r"""How large a class of functions is: heads and layers by their norms, Dudley's integral, bounds on the risk.

A `Capacity` bounds the entropy of a class (see `attlas.covers`) by a sum of terms, one for each bounded weight: how far the output moves
over that weight's whole ball, and at how many points that must be controlled.

Blocks compose as modules do (`head_block`, `position_wise`, `multi_head`, `residual`, `normalised`, `projected`, `stacked`), and `capacity_of` measures those of
`attlas.attention`. Everything is kept in logarithms, so that nothing overflows, and broadcasts, so that a grid of settings is
one call. Edelman et al. 2022, Sections 2 and 4, with explicit constants.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float
from scipy.special import log_softmax

from attlas import attention
from attlas.covers import (
    as_dimension,
    as_matrix,
    as_norm,
    as_numbers,
    between,
    column_norm,
    log_entropy_at,
    log_of,
    spectral_norm,
)
from attlas.errors import InputError, positive, whole
from attlas.gaussian import Real

CONSTANTS = {"paper": 2.0, "sharp": 1.0}
r"""Lipschitz constants of softmax from $\ell_\infty$ to $\ell_1$: the paper's, and the least there is."""


# --- classes -------------------------------------------------------------------------------------------------------


class Term(NamedTuple):
    r"""One bounded weight of a class: `log_size` is $\ln A$, with A how far the output moves over the weight's whole ball; `tokens`
    is at how many points a sample; a matrix has `outputs` and `inputs`, a vector one output."""

    name: str
    log_size: Real
    tokens: Real = 1
    outputs: Real = 1
    inputs: Real = np.inf

    def scaled(self, log_factor: Real) -> "Term":
        return self._replace(log_size=self.log_size + log_factor)


class Growth(NamedTuple):
    r"""What a block makes of tokens in a ball: logarithms of the radius of what comes out and of its Lipschitz constant in
    $\|\cdot\|_{2,\infty}$, the terms of its weights, measured at the output, and which constant of softmax was used."""

    log_radius: Real
    log_lipschitz: Real
    terms: tuple[Term, ...]
    constant: str
    layers: tuple[Real, ...] = ()


Block = Callable[[Real], Growth]
"""From the logarithm of the tokens' radius to what becomes of them."""


class HeadNorms(NamedTuple):
    r"""Norms of $W_C^\top\sigma(W_V^\top X^\top\mathrm{softmax}(XW_KW_Q^\top z))$: spectral norms of $W_V$, $W_{QK} = W_KW_Q^\top$ and $W_C$, their 2,1-norms (sums
    over columns; for $W_{QK}$ columns or rows, whichever is smaller), the constant of $\sigma$, and the sizes. `score` is $|W_{QK}x_{CLS}|$,
    for a head that is read at a fixed context. Values may be arrays of one shape."""

    value: Real
    value_21: Real
    query_key: Real
    query_key_21: Real
    out: Real
    out_21: Real
    dim: Real
    width: Real
    out_dim: Real
    lipschitz: Real = 1.0
    score: Real | None = None
    project: bool = False

    def checked(self) -> "HeadNorms":
        for name in (
            "value",
            "value_21",
            "query_key",
            "query_key_21",
            "out",
            "out_21",
            "lipschitz",
        ):
            as_norm(name, getattr(self, name))
        if self.score is not None:
            as_norm("score", self.score)
        for name in ("dim", "width", "out_dim"):
            as_dimension(name, getattr(self, name))
        return self


def _constant(name: str) -> float:
    if name not in CONSTANTS:
        raise InputError(f"constant = {name!r}: it must be {' or '.join(CONSTANTS)}")
    return CONSTANTS[name]


def head_block(norms: HeadNorms, length: Real, constant: str = "paper") -> Block:
    r"""A head at every one of `length` tokens of radius B, or at one fixed context if `norms.score` is given. Its output moves by

    - $C L_\sigma B_C B_V B_{QK}^{21}B^3$ over the ball of $W_{QK}$ ($C L_\sigma B_C B_V |u| B^2$ over that of $u = W_{QK}x_{CLS}$),
    - $L_\sigma B_C B_V^{21}B$ over that of $W_V$ and $B_C^{21}L_\sigma B_V B$ over that of $W_C$,

    and with the tokens by $L_\sigma B_C B_V(1 + 2C B_{QK}B^2)$ at most. Lemma 4.3, Corollary 4.5, Theorem 4.7.
    """
    norms, c = norms.checked(), _constant(constant)
    length = positive("length", length)

    def grow(log_radius: Real) -> Growth:
        gain = log_of(norms.lipschitz) + log_of(norms.out)
        log_mixture = log_of(norms.value) + log_radius
        seen = np.minimum(log_mixture, 0.0) if norms.project else log_mixture
        if norms.score is None:
            score = Term(
                "query-key",
                log_of(norms.query_key_21) + 2 * log_radius,
                length,
                norms.dim,
                norms.dim,
            )
            out_tokens: Real = length
        else:
            score = Term("score", log_of(norms.score) + log_radius, length, 1, norms.dim)
            out_tokens = 1
        terms = (
            score.scaled(math.log(c) + gain + log_mixture),
            Term(
                "value", gain + log_of(norms.value_21) + log_radius, length, norms.width, norms.dim
            ),
            Term(
                "out",
                log_of(norms.out_21) + log_of(norms.lipschitz) + seen,
                out_tokens,
                norms.out_dim,
                norms.width,
            ),
        )
        attends = np.logaddexp(0.0, math.log(2 * c) + log_of(norms.query_key) + 2 * log_radius)
        log_lipschitz = gain + log_of(norms.value) + attends
        return Growth(gain + seen, log_lipschitz, terms, constant, (log_lipschitz,))

    return grow


def collapsed_head(
    score: Real, value: Real, length: Real, dim: Real = np.inf, constant: str = "paper"
) -> Block:
    r"""The scalar head $v^\top X^\top\mathrm{softmax}(Xu)$, $|u| \le$ `score`, $|v| \le$ `value`: what a linear read-out at [CLS] comes to."""
    c, score, value = _constant(constant), as_norm("score", score), as_norm("value", value)
    length, dim = positive("length", length), as_dimension("dim", dim)

    def grow(log_radius: Real) -> Growth:
        log_value = log_of(value) + log_radius
        terms = (
            Term("score", math.log(c) + log_of(score) + log_value + log_radius, length, 1, dim),
            Term("value", log_value, length, 1, dim),
        )
        log_lipschitz = log_value - log_radius + np.log1p(c * score * np.exp(log_radius))
        return Growth(log_value, log_lipschitz, terms, constant)

    return grow


class PositionNorms(NamedTuple):
    r"""Norms of $W_2^\top\sigma(W_1^\top x)$: spectral and 2,1-norms of $W_1$ (`up`) and $W_2$ (`down`), the constant of $\sigma$, and the sizes; with
    those of $W_g$ (`gate`), of $W_2^\top(W_1^\top x \odot \sigma(W_g^\top x))$. For a $\sigma$ that vanishes at 0."""

    up: Real
    up_21: Real
    down: Real
    down_21: Real
    dim: Real
    hidden: Real
    out_dim: Real
    lipschitz: Real = 1.0
    gate: Real | None = None
    gate_21: Real = 0.0


def position_wise(norms: PositionNorms, length: Real, constant: str = "paper") -> Block:
    r"""A map of each of `length` tokens by itself. Over the ball of $W_1$ its output moves by $L_\sigma B_2 B_1^{21}B$, over that of $W_2$ by
    $B_2^{21}L_\sigma B_1 B$, and with a token by $L_\sigma B_2 B_1$ at most. A gate multiplies the size of what leaves by $B_g B$, and its Lipschitz
    constant by $2B_g B$: both factors move. `constant` is that of the heads beside it."""
    _constant(constant)
    length = positive("length", length)

    def grow(log_radius: Real) -> Growth:
        gain = log_of(as_norm("lipschitz", norms.lipschitz)) + log_radius
        up, down = log_of(as_norm("up", norms.up)), log_of(as_norm("down", norms.down))
        gate: Real = 0.0
        if norms.gate is not None:
            gate = log_of(as_norm("gate", norms.gate)) + log_radius
        terms = [
            Term("up", gain + down + gate + log_of(norms.up_21), length, norms.hidden, norms.dim),
            Term(
                "down",
                gain + up + gate + log_of(norms.down_21),
                length,
                norms.out_dim,
                norms.hidden,
            ),
        ]
        log_lipschitz = gain - log_radius + up + down + gate
        if norms.gate is not None:
            size = gain + up + down + log_radius + log_of(norms.gate_21)
            terms.append(Term("gate", size, length, norms.hidden, norms.dim))
            log_lipschitz = log_lipschitz + math.log(2)
        return Growth(
            gain + up + down + gate, log_lipschitz, tuple(terms), constant, (log_lipschitz,)
        )

    return grow


def multi_head(*blocks: Block) -> Block:
    """The sum of blocks."""

    def grow(log_radius: Real) -> Growth:
        grown = [block(log_radius) for block in blocks]
        if len(grown) == 1:
            return grown[0]
        terms = [
            term._replace(name=f"head {h + 1}: {term.name}")
            for h, growth in enumerate(grown)
            for term in growth.terms
        ]
        log_lipschitz = _sum_of_logs([growth.log_lipschitz for growth in grown])
        log_sum = _sum_of_logs([growth.log_radius for growth in grown])
        return Growth(log_sum, log_lipschitz, tuple(terms), grown[0].constant, (log_lipschitz,))

    return grow


def residual(block: Block, skip: Real = 1.0) -> Block:
    r"""$sX + f(X)$: s, the `skip`, more in the Lipschitz constant, s times the input's radius more in the output's, no further term."""
    log_skip = log_of(as_norm("skip", skip))

    def grow(log_radius: Real) -> Growth:
        inner = block(log_radius)
        log_lipschitz = np.logaddexp(inner.log_lipschitz, log_skip)
        return inner._replace(
            log_radius=np.logaddexp(inner.log_radius, log_skip + log_radius),
            log_lipschitz=log_lipschitz,
            layers=(log_lipschitz,),
        )

    return grow


def normalised(block: Block, radius: Real, stretch: Real = 1.0) -> Block:
    """A block that reads its tokens through a norm: they lie in the ball of `radius` whatever came in, and the norm is
    `stretch`-Lipschitz (1: the paper's projection)."""
    log_stretch = log_of(positive("stretch", stretch))

    def grow(log_radius: Real) -> Growth:
        inner = block(log_of(positive("radius", radius)))
        log_lipschitz = inner.log_lipschitz + log_stretch
        return inner._replace(log_lipschitz=log_lipschitz, layers=(log_lipschitz,))

    return grow


def projected(block: Block) -> Block:
    """Each row of the output on the unit ball."""

    def grow(log_radius: Real) -> Growth:
        inner = block(log_radius)
        return inner._replace(log_radius=np.minimum(inner.log_radius, 0.0))

    return grow


def stacked(*blocks: Block) -> Block:
    """One block after the other: an error made in a block is multiplied by the Lipschitz constants of those above it."""

    def grow(log_radius: Real) -> Growth:
        terms: list[Term] = []
        layers: list[Real] = []
        total: Real = 0.0
        for i, block in enumerate(blocks):
            step = block(log_radius)
            own = [
                t._replace(name=f"layer {i + 1}: {t.name}") if len(blocks) > 1 else t
                for t in step.terms
            ]
            terms = [term.scaled(step.log_lipschitz) for term in terms] + own
            layers.append(step.log_lipschitz)
            log_radius, total = step.log_radius, total + step.log_lipschitz
        return Growth(log_radius, total, tuple(terms), step.constant, tuple(layers))

    return grow


def _sum_of_logs(logs: list[Real]) -> Real:
    return np.logaddexp.reduce(np.stack(np.broadcast_arrays(*logs)))[()]


def _samples(value: Real) -> Real:
    if not (as_numbers("samples", positive("samples", value)) >= 1).all():
        raise InputError(f"samples = {value!r}: it must be at least 1")
    return value


# --- bounds --------------------------------------------------------------------------------------------------------


class RiskBound(NamedTuple):
    r"""With probability $1 - \delta$, for every member of a class: the share of errors exceeds the share of margins below $\gamma$ on the
    sample by at most `value` $= 2R/\gamma + 3\sqrt{\ln(2/\delta)/2m}$. From 1 on it says nothing, and is `vacuous`."""

    value: Real
    complexity: Real
    confidence: Real

    @property
    def vacuous(self) -> Any:
        return self.value >= 1


RATIO, MOST = 1.1, 2000
"""Dudley's integral looks at the entropy at distances of this ratio to each other, but at no more than so many."""


@dataclass(frozen=True)
class Capacity:
    """A bound on the entropy of a class on any m samples of `length` tokens, by terms; `log_reach` bounds the functions' values,
    `layers` are the logarithms of the blocks' Lipschitz constants, `constant` says which one of softmax was used."""

    terms: tuple[Term, ...]
    log_reach: Real
    constant: str = "paper"
    layers: tuple[Real, ...] = ()

    def log_entropies(self, eps: Real, samples: Real, *, exact: bool = True) -> tuple[Real, Real]:
        r"""Logarithm of the nats of each term at distance `eps`, and the terms' shares of the distance, both [..., term].

        Shares are those at which the sum is least. Where entropies fall like $A_k^2\ln n_k/(\beta_k\epsilon)^2$ they are $\propto (A_k^2\ln n_k)^{1/3}$,
        where parameters are counted $\propto d_1d_2$; of the two the better is taken, and then followed to where all terms'
        derivatives are equal, a minimum but perhaps a local one, unless `exact` is off (any shares give a bound)."""
        return self._log_entropies(
            log_of(positive("eps", eps)), log_of(_samples(samples)), 60 if exact else 0
        )

    def log_entropy(self, eps: Real, samples: Real) -> Real:
        """Logarithm of the nats of a cover at distance `eps`: -inf where one function suffices."""
        return self._total(log_of(positive("eps", eps)), log_of(_samples(samples)), 60)

    def entropy(self, eps: Real, samples: Real) -> Real:
        """Nats of a cover at distance `eps`; infinite only where a float cannot hold it."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_entropy(eps, samples))

    def dimension_free(self) -> "Capacity":
        """The same bound without counting parameters: by covers that know norms and the number of points alone."""
        return replace(self, terms=tuple(term._replace(inputs=np.inf) for term in self.terms))

    def _stacked(self) -> tuple[np.ndarray, ...]:
        """Sizes, tokens, outputs and inputs of the terms, each [*settings, term]."""
        flat = [
            x
            for term in self.terms
            for x in (term.log_size, term.tokens, term.outputs, term.inputs)
        ]
        whole = np.broadcast_arrays(*(np.asarray(x, float) for x in flat))
        return tuple(np.stack(whole[i::4], -1) for i in range(4))

    def _shape(self, *others: Real) -> tuple[int, ...]:
        """The shape of the settings that this bound is for, with those of `others`."""
        return np.broadcast_shapes(
            np.shape(self.log_reach),
            self._stacked()[0].shape[:-1],
            *(np.shape(other) for other in others),
        )

    def _log_entropies(
        self, log_eps: Real, log_samples: Real, rounds: int
    ) -> tuple[np.ndarray, np.ndarray]:
        sizes, tokens, outputs, inputs = self._stacked()
        sizes = np.maximum(
            sizes, -1e200
        )  # a weight that is 0, kept finite: it gets no share and needs none
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
            # Equal derivatives mean shares in proportion to share * |derivative|; a third of the way converges at once for a square.
            with np.errstate(invalid="ignore", divide="ignore"):
                slope = (logs - cover(shares + 1e-3)) / 1e-3
                moved = log_softmax(
                    np.where(
                        np.isfinite(logs),
                        (2 * shares + logs + np.log(np.maximum(slope, 1e-3))) / 3,
                        shares,
                    ),
                    axis=-1,
                )
            after = cover(moved)
            better = (_sum_last(after) < _sum_last(logs))[..., None]
            shares, logs = np.where(better, moved, shares), np.where(better, after, logs)
        return logs, np.exp(shares)

    def _total(self, log_eps: Real, log_samples: Real, rounds: int) -> Real:
        total = _sum_last(self._log_entropies(log_eps, log_samples, rounds)[0])
        return np.where(log_eps >= self.log_reach, -np.inf, total)[()]

    def log_rademacher(self, samples: Real) -> Real:
        return self._log_rademacher(log_of(_samples(samples)))

    def rademacher(self, samples: Real) -> Real:
        r"""Bound on the empirical Rademacher complexity by Dudley's integral, $\inf_a\{4a + \frac{12}{\sqrt m}\int_a^R\sqrt{H(\epsilon)}\,d\epsilon\}$, by an
        upper sum over a geometric grid of distances; and never more than the largest value R."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_rademacher(samples))

    def _log_rademacher(self, log_samples: Real) -> Real:
        log_samples = np.broadcast_to(log_samples, self._shape(log_samples))
        # The best a is about 3 sqrt(a^2 H(a) / m); below a hundredth of that nothing is gained.
        tenth = self._total(self.log_reach + math.log(0.1), log_samples, 0)
        lowest = math.log(0.003) + (tenth - log_samples) / 2
        lowest = float(np.min(lowest, where=np.isfinite(lowest), initial=math.log(0.1)))
        # Always the same ladder, further down or not, so that the bound does not jump as m changes; coarser only over absurd ranges.
        rung = math.log(RATIO) * 2 ** max(
            0, math.ceil(math.log2(-lowest / (MOST * math.log(RATIO))))
        )
        logs = -rung * np.arange(math.ceil(-lowest / rung), -1, -1.0).reshape(
            -1, *[1] * log_samples.ndim
        )
        # A few distances at a time, so that what is worked on stays in the processor's cache.
        chunks = np.array_split(
            logs[:-1], 1 + logs.size * log_samples.size * len(self.terms) // (1 << 15)
        )
        entropy = np.concatenate(
            [self._total(self.log_reach + c, log_samples, 0) for c in chunks if len(c)]
        )
        entropy = np.minimum.accumulate(entropy - log_samples)  # it falls in the distance
        with np.errstate(divide="ignore"):
            pieces = entropy / 2 + logs[:-1] + np.log(np.expm1(np.diff(logs, axis=0)))
        tails = np.logaddexp.accumulate(pieces[::-1])[::-1]
        least = np.logaddexp(math.log(4) + logs[:-1], math.log(12) + tails).min(0)
        return self.log_reach + np.minimum(least, 0.0)

    def risk_bound(self, samples: Real, *, margin: Real, delta: Real = 0.05) -> RiskBound:
        """The margin bound for classification from m samples; see `RiskBound`."""
        complexity = 2 * self.rademacher(samples) / positive("margin", margin)
        confidence = 3 * np.sqrt(
            np.log(2 / np.asarray(between("delta", delta))) / (2 * np.asarray(samples))
        )
        return RiskBound(complexity + confidence, complexity, confidence)

    def log_samples_for(self, gap: Real, *, margin: Real, delta: Real = 0.05) -> Real:
        """Logarithm of the number of samples from which on `risk_bound` is below `gap`."""
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
            # The bound falls like one over the root of m, nearly, so that this step contracts fast; but it may fall by leaps, where
            # another cover becomes the smaller one, and there an interval is halved.
            ahead = log_samples + step
            inside = (low < ahead) & (ahead < high)
            log_samples = np.where(inside, ahead, (low + np.minimum(high, 1e6)) / 2)
        return np.where(abs(step) < 1e-9, log_samples, high)[()]

    def samples_for(self, gap: Real, *, margin: Real, delta: Real = 0.05) -> Real:
        """The number of samples from which on `risk_bound` is below `gap`; infinite only where a float cannot hold it."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_samples_for(gap, margin=margin, delta=delta))

    def scaling(self, eps: Real, samples: Real) -> dict[str, Real]:
        """Exponents of the entropy at fixed norms: in the length, in the number of samples, in 1/eps; and with `depth`, what a layer
        more multiplies it by, in nats (twice the mean logarithm of the layers' Lipschitz constants)."""
        log_eps, log_samples, h = log_of(positive("eps", eps)), log_of(_samples(samples)), 1e-3
        if np.any(log_eps >= self.log_reach):
            raise InputError(
                f"eps = {eps!r}: it must be below the largest value of the class, {np.exp(np.min(self.log_reach)):.4g}"
            )
        base = self._total(log_eps, log_samples, 60)
        stretched = [
            term._replace(tokens=term.tokens * math.exp(h)) if np.any(term.tokens != 1) else term
            for term in self.terms
        ]
        found = {
            "length": (
                replace(self, terms=tuple(stretched))._total(log_eps, log_samples, 60) - base
            )
            / h,
            "samples": (self._total(log_eps, log_samples + h, 60) - base) / h,
            "1/eps": (self._total(log_eps - h, log_samples, 60) - base) / h,
        }
        return found | ({"depth": 2 * sum(self.layers) / len(self.layers)} if self.layers else {})

    def report(self, eps: float, samples: int) -> str:
        """The terms as a table: how far each weight moves the output, its share of the distance, its nats, and whether its cover goes by
        norms or by the number of parameters. Logarithms to base 10. For one setting, not for a grid."""
        if self._shape(eps, samples):
            raise InputError(
                f"a report is for one setting: this bound, eps and samples have the shape {self._shape(eps, samples)}"
            )
        scaling = self.scaling(eps, samples)
        logs, shares = self.log_entropies(eps, samples)
        sizes, tokens, outputs, _ = self._stacked()
        free = log_entropy_at(
            sizes - np.log(eps * np.maximum(shares, 1e-300)),
            np.log(samples * tokens),
            outputs,
            np.inf,
        )
        width = max(len(t.name) for t in self.terms)
        lines = [f"{'weight':{width}}  log10 size   share  log10 nats  cover"]
        for term, log, share, by_norms in zip(self.terms, logs, shares, free, strict=True):
            nats = f"{log / math.log(10):10.2f}" if np.isfinite(log) else "      none"
            size = (
                f"{float(term.log_size) / math.log(10):10.2f}"
                if np.isfinite(term.log_size)
                else "      none"
            )
            cover = (
                "-"
                if not np.isfinite(log)
                else "norms"
                if log >= by_norms - 1e-12
                else "parameters"
            )
            lines.append(f"{term.name:{width}}  {size}  {share:6.3f}  {nats}  {cover}")
        total = self.log_entropy(eps, samples) / math.log(10)
        lines.append(f"{'all':{width}}  {'':10}  {'':6}  {total:10.2f}")
        exponents = ", ".join(f"{name} {value:.3g}" for name, value in scaling.items())
        lines.append(
            f"constant of softmax: {CONSTANTS[self.constant]:g} ({self.constant}); exponents: {exponents}"
        )
        return "\n".join(lines)


def _sum_last(logs: np.ndarray) -> Real:
    return np.logaddexp.reduce(logs, -1)


def class_of(block: Block, radius: Real = 1.0) -> Capacity:
    """The capacity of a block on tokens in the ball of `radius`."""
    grown = block(log_of(positive("radius", radius)))
    return Capacity(grown.terms, grown.log_radius, grown.constant, grown.layers)


def read_out(block: Block, weight: Real, radius: Real = 1.0, *, out_dim: Real = np.inf) -> Capacity:
    r"""The capacity of $w^\top f(X)_{CLS}$ with $|w| \le$ `weight`: one further term, and every other $|w|$ times as large."""
    grown = block(log_of(positive("radius", radius)))
    log_weight = log_of(as_norm("weight", weight))
    terms = tuple(term.scaled(log_weight) for term in grown.terms)
    reach = log_weight + grown.log_radius
    last = Term("read-out", reach, 1, 1, as_dimension("out_dim", out_dim))
    return Capacity((*terms, last), reach, grown.constant, grown.layers)


def occam_samples(log_hypotheses: Real, error: Real, delta: Real = 0.05) -> Real:
    r"""Samples after which every consistent hypothesis of a finite class errs with probability at most `error`, with probability
    $1 - \delta$: $(\ln|\mathcal{H}| + \ln\frac1\delta)/\text{error}$."""
    return (as_norm("log_hypotheses", log_hypotheses) - np.log(between("delta", delta))) / between(
        "error", error
    )


# --- modules -------------------------------------------------------------------------------------------------------


def head_norms(
    head: attention.TransformerHead, context: Float[ArrayLike, " dim"] | None = None
) -> HeadNorms:
    """The norms of a head's weights, at a fixed `context` if there is one. The product of query and key is never formed: its
    norms come through triangular factors of its thin ones."""
    _check_activation(head)
    key, query, value, out = (as_matrix(w) for w in (head.key, head.query, head.value, head.out))
    by_key, by_query = np.linalg.qr(key)[1], np.linalg.qr(query)[1]
    columns = float(np.linalg.norm(by_key @ query.T, axis=0).sum())
    rows = float(np.linalg.norm(by_query @ key.T, axis=0).sum())
    return HeadNorms(
        value=spectral_norm(value),
        value_21=column_norm(value),
        query_key=spectral_norm(by_key @ by_query.T),
        query_key_21=min(columns, rows),
        out=spectral_norm(out),
        out_21=column_norm(out),
        dim=key.shape[0],
        width=value.shape[1],
        out_dim=out.shape[1],
        lipschitz=head.lipschitz,
        score=None
        if context is None
        else float(np.linalg.norm(key @ (query.T @ np.asarray(context, float)))),
        project=head.project,
    )


def _check_activation(head: attention.TransformerHead) -> None:
    """The bounds hold for an activation that vanishes at 0 and has the Lipschitz constant that the head says."""
    x = np.linspace(-8, 8, 3201)
    y = np.asarray(head.activation(jnp.asarray(x)), float)
    if abs(y[1600]) > 1e-6:
        raise InputError(
            f"activation is {y[1600]:g} at 0: the bounds are for one that vanishes there"
        )
    steepest = float(abs(np.diff(y) / np.diff(x)).max())
    if steepest > 1.001 * head.lipschitz:
        raise InputError(
            f"lipschitz = {head.lipschitz:g}: the activation has a slope of {steepest:.4g}; say so with lipschitz="
        )


def block_of(module: Any, length: int, *, constant: str = "paper") -> Block:
    """The block that a module of `attlas.attention` is, with the norms of its weights."""
    match module:
        case attention.TransformerHead():
            return head_block(head_norms(module), length, constant)
        case attention.MultiHead():
            return multi_head(*(block_of(head, length, constant=constant) for head in module.heads))
        case attention.Layer():
            return block_of(module.head, length, constant=constant)
        case attention.Residual():
            return residual(block_of(module.block, length, constant=constant))
        case attention.Projected():
            return projected(block_of(module.block, length, constant=constant))
        case attention.Stack():
            return stacked(*(block_of(block, length, constant=constant) for block in module.blocks))
    raise _unknown(module)


def _unknown(module: Any) -> InputError:
    return InputError(
        f"{type(module).__name__} has no known norms: a bound is known for TransformerHead, MultiHead, Layer, Residual, Projected,"
        " Stack and ReadOut"
    )


def capacity_of(
    module: Any,
    length: int,
    *,
    radius: float = 1.0,
    constant: str = "paper",
    count_parameters: bool = True,
) -> Capacity:
    r"""The capacity of all modules built like this one whose weights have its norms, on sequences of `length` tokens in the ball of
    `radius` (make it `token_radius` of your data, [CLS] included).

    A read-out of one layer has a fixed context, so that its score is linear in the tokens; with linear heads without
    projection, $W_V$, $W_C$ and $w$ are one vector. Without `count_parameters`, covers know norms and points alone, as in the paper:
    larger in most models, but with the length in them.
    """
    whole("length", length, 1), _constant(constant)
    _check_fit(module, positive("radius", radius))
    capacity = _capacity_of(module, length, radius, constant)
    return capacity if count_parameters else capacity.dimension_free()


def _check_fit(module: Any, radius: float) -> None:
    """Shapes fit, and [CLS] lies in the ball of the tokens where it is one of them."""
    if isinstance(module, attention.ReadOut):
        dim = len(module.context)
        size = float(np.linalg.norm(np.asarray(module.context, float)))
        if size > (1 + 1e-6) * radius and (
            module.attend or not isinstance(module.block, attention.Layer)
        ):
            raise InputError(
                f"radius = {radius:g}: [CLS] is a token too, and has the length {size:.4g}"
            )
        arguments: tuple[Any, ...] = (jnp.zeros((2, dim)),)
    else:
        head = next((x for x in _parts(module) if isinstance(x, attention.TransformerHead)), None)
        dim = 1 if head is None else head.key.shape[0]
        arguments = (jnp.zeros((2, dim)),)
        if isinstance(module, attention.Head | attention.MultiHead):
            arguments = (*arguments, jnp.zeros(dim))
        elif not isinstance(module, attention.Block):
            raise _unknown(module)
    try:
        with jax.enable_x64(True):  # weights may be in double precision
            jax.eval_shape(module, *arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the weights of this {type(module).__name__} do not fit each other: {str(error).splitlines()[0]}"
        ) from error


def _parts(module: Any) -> list[Any]:
    return jax.tree.leaves(module, is_leaf=lambda x: isinstance(x, attention.TransformerHead))


def _capacity_of(module: Any, length: int, radius: float, constant: str) -> Capacity:
    if not isinstance(module, attention.ReadOut):
        return class_of(block_of(module, length, constant=constant), radius)
    tokens = length + module.attend
    weight = np.asarray(module.weight, float)
    if not isinstance(module.block, attention.Layer):
        block = block_of(module.block, length + 1, constant=constant)
        return read_out(block, float(np.linalg.norm(weight)), radius, out_dim=weight.size)
    inner = module.block.head
    heads = inner.heads if isinstance(inner, attention.MultiHead) else (inner,)
    known = []
    for head in heads:
        if not isinstance(head, attention.TransformerHead):
            raise _unknown(head)
        known.append(head)
    cls = np.asarray(module.context, float)
    norms = [head_norms(head, cls) for head in known]
    if all(head.activation is attention.identity and not head.project for head in known):
        values = [
            float(np.linalg.norm(as_matrix(head.value) @ (as_matrix(head.out) @ weight)))
            for head in known
        ]
        each = [
            collapsed_head(n.score, v, tokens, n.dim, constant)
            for n, v in zip(norms, values, strict=True)
        ]
        return class_of(multi_head(*each), radius)
    block = multi_head(*(head_block(n, tokens, constant) for n in norms))
    return read_out(block, float(np.linalg.norm(weight)), radius, out_dim=weight.size)
