r"""Blocks of a network by the norms of their weights, and how they compose.

A block maps the radius of the tokens to a `Growth`: the radius and the Lipschitz constant of what
comes out, and for each bounded weight a `Term`, how far the output moves over that weight's whole
ball and at how many points that must be controlled. Everything is kept in logarithms, so that
nothing overflows. Edelman et al. 2022, Sections 2 and 4, with explicit constants.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attlas.covers import as_dimension, as_norm, log_of
from attlas.errors import InputError, positive
from attlas.gaussian import Real

CONSTANTS = {"paper": 2.0, "sharp": 1.0}
r"""Lipschitz constants of softmax from $\ell_\infty$ to $\ell_1$: the paper's, and the least
there is."""


class Term(NamedTuple):
    r"""One bounded weight of a class.

    - `log_size`: $\ln A$, with A how far the output moves over the weight's whole ball.
    - `tokens`: points of a sample at which the output must be controlled.
    - `outputs`, `inputs`: the shape of a matrix; a vector has one output.
    """

    name: str
    log_size: Real
    tokens: Real = 1
    outputs: Real = 1
    inputs: Real = np.inf

    def scaled(self, log_factor: Real) -> "Term":
        return self._replace(log_size=self.log_size + log_factor)


class Growth(NamedTuple):
    r"""What a block makes of tokens in a ball.

    - `log_radius`, `log_lipschitz`: of what comes out, the latter in $\|\cdot\|_{2,\infty}$.
    - `terms`: of its weights, measured at the output.
    - `constant`: which Lipschitz constant of softmax was used.
    - `layers`: logarithms of the Lipschitz constants of stacked blocks.
    """

    log_radius: Real
    log_lipschitz: Real
    terms: tuple[Term, ...]
    constant: str
    layers: tuple[Real, ...] = ()


Block = Callable[[Real], Growth]
"""From the logarithm of the tokens' radius to the growth."""


class HeadNorms(NamedTuple):
    r"""Norms of $W_C^\top\sigma(W_V^\top X^\top\mathrm{softmax}(XW_KW_Q^\top z))$, numbers or
    arrays of one shape.

    - `value`, `query_key`, `out`: spectral norms of $W_V$, $W_{QK} = W_KW_Q^\top$ and $W_C$.
    - `value_21`, `query_key_21`, `out_21`: their 2,1-norms, sums over columns; for $W_{QK}$ over
      columns or rows, whichever is smaller.
    - `dim`, `width`, `out_dim`: $W_V$ is [dim, width], $W_C$ [width, out_dim].
    - `lipschitz`: the constant of $\sigma$. `project`: whether $\sigma$ reads the mixture on the
      unit ball.
    - `score`: $|W_{QK}x_{CLS}|$, for a head that is read at a fixed context.
    """

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


def softmax_constant(name: str) -> float:
    if name not in CONSTANTS:
        raise InputError(f"constant = {name!r}: it must be {' or '.join(CONSTANTS)}")
    return CONSTANTS[name]


def head_block(norms: HeadNorms, length: Real, constant: str = "paper") -> Block:
    r"""A head at every one of `length` tokens of radius B, or at one fixed context if `norms.score`
    is given. Its output moves by

    - $C L_\sigma B_C B_V B_{QK}^{21}B^3$ over the ball of $W_{QK}$ ($C L_\sigma B_C B_V |u| B^2$
      over that of $u = W_{QK}x_{CLS}$),
    - $L_\sigma B_C B_V^{21}B$ over that of $W_V$ and $B_C^{21}L_\sigma B_V B$ over that of $W_C$,

    and with the tokens by $L_\sigma B_C B_V(1 + 2C B_{QK}B^2)$ at most. Lemma 4.3, Corollary 4.5,
    Theorem 4.7.

    Arguments:
        norms: of the head's matrices.
        length: tokens of a sequence.
        constant: "paper" or "sharp", the Lipschitz constant C of softmax, here and in the other
            blocks.
    """
    c, length = softmax_constant(constant), positive("length", length)
    for name, value in norms._asdict().items():
        if name in ("dim", "width", "out_dim"):
            as_dimension(name, value)
        elif value is not None and name != "project":
            as_norm(name, value)

    def grow(log_radius: Real) -> Growth:
        gain = log_of(norms.lipschitz) + log_of(norms.out)
        log_mixture = log_of(norms.value) + log_radius
        seen = np.minimum(log_mixture, 0.0) if norms.project else log_mixture
        if norms.score is None:
            size = log_of(norms.query_key_21) + 2 * log_radius
            score = Term("query-key", size, length, norms.dim, norms.dim)
        else:
            score = Term("score", log_of(norms.score) + log_radius, length, 1, norms.dim)
        value = gain + log_of(norms.value_21) + log_radius
        out = log_of(norms.out_21) + log_of(norms.lipschitz) + seen
        out_tokens = length if norms.score is None else 1
        terms = (
            score.scaled(math.log(c) + gain + log_mixture),
            Term("value", value, length, norms.width, norms.dim),
            Term("out", out, out_tokens, norms.out_dim, norms.width),
        )
        attends = np.logaddexp(0.0, math.log(2 * c) + log_of(norms.query_key) + 2 * log_radius)
        log_lipschitz = gain + log_of(norms.value) + attends
        return Growth(gain + seen, log_lipschitz, terms, constant, (log_lipschitz,))

    return grow


def collapsed_head(
    score: Real, value: Real, length: Real, dim: Real = np.inf, constant: str = "paper"
) -> Block:
    r"""The scalar head $v^\top X^\top\mathrm{softmax}(Xu)$, what a linear read-out at [CLS] comes
    to.

    For tokens of radius B its output moves by $c|u||v|B^2$ over the ball of $u$ and by $|v|B$ over
    that of $v$, with c the constant of softmax; its Lipschitz constant is $|v|(1 + c|u|B)$.

    Arguments:
    - `score`, `value`: bounds on $|u|$ and $|v|$.
    - `length`, `dim`: of $X$; an infinite `dim` leaves out covers that count parameters.
    - `constant`: a name in `CONSTANTS`.

    >>> from attlas.capacity import class_of, collapsed_head
    >>> small = class_of(collapsed_head(score=2.0, value=1.0, length=100))
    >>> large = class_of(collapsed_head(score=2.0, value=1.0, length=10_000))
    >>> print(f"{large.entropy(0.5, 1000) / small.entropy(0.5, 1000):.2f} times the entropy")
    1.29 times the entropy
    """
    c, score, value = softmax_constant(constant), as_norm("score", score), as_norm("value", value)
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
    r"""Norms of $W_2^\top\sigma(W_1^\top x)$: spectral and 2,1-norms of $W_1$ (`up`) and $W_2$
    (`down`), the constant of $\sigma$, and the sizes; with those of $W_g$ (`gate`), of
    $W_2^\top(W_1^\top x \odot \sigma(W_g^\top x))$. For a $\sigma$ that vanishes at 0.

    Arguments:
        up, down, gate: spectral norms. `up_21`, `down_21`, `gate_21`: 2,1-norms.
        dim, hidden, out_dim: of the input, the units and the output. `lipschitz`: the constant of
            $\sigma$.
    """

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
    r"""A map of each of `length` tokens by itself. Over the ball of $W_1$ its output moves by
    $L_\sigma B_2 B_1^{21}B$, over that of $W_2$ by $B_2^{21}L_\sigma B_1 B$, and with a token by
    $L_\sigma B_2 B_1$ at most. A gate multiplies the size of what leaves by $B_g B$, and its
    Lipschitz constant by $2B_g B$: both factors move. `constant` is that of the heads beside it.

    Arguments:
        norms: of the map's matrices.

    >>> from attlas.capacity import (
    ...     HeadNorms, PositionNorms, class_of, head_block, multi_head, normalised, position_wise,
    ...     projected, read_out, residual, stacked)
    >>> head = head_block(HeadNorms(1, 2, 1, 2, 1, 2, dim=8, width=8, out_dim=8), length=50)
    >>> norms = PositionNorms(1, 2, 1, 2, dim=8, hidden=16, out_dim=8)
    >>> perceptron = normalised(projected(position_wise(norms, length=50)), radius=1)
    >>> layer = stacked(residual(multi_head(head, head)), perceptron)
    >>> capacity = read_out(layer, weight=1.0, out_dim=8)
    >>> print(capacity.risk_bound(10**8, margin=1.0).vacuous, len(class_of(layer).terms))
    False 8
    """
    softmax_constant(constant)
    length = positive("length", length)

    def grow(log_radius: Real) -> Growth:
        gain = log_of(as_norm("lipschitz", norms.lipschitz)) + log_radius
        up, down = log_of(as_norm("up", norms.up)), log_of(as_norm("down", norms.down))
        gated = norms.gate is not None
        gate: Real = log_of(as_norm("gate", norms.gate)) + log_radius if gated else 0.0
        size_up = gain + down + gate + log_of(norms.up_21)
        size_down = gain + up + gate + log_of(norms.down_21)
        terms = [
            Term("up", size_up, length, norms.hidden, norms.dim),
            Term("down", size_down, length, norms.out_dim, norms.hidden),
        ]
        log_lipschitz = gain - log_radius + up + down + gate
        if gated:
            size = gain + up + down + log_radius + log_of(norms.gate_21)
            terms.append(Term("gate", size, length, norms.hidden, norms.dim))
            log_lipschitz = log_lipschitz + math.log(2)
        size = gain + up + down + gate
        return Growth(size, log_lipschitz, tuple(terms), constant, (log_lipschitz,))

    return grow


def multi_head(*blocks: Block) -> Block:
    """The sum of blocks.

    Arguments:
        blocks: that read the same tokens.
    """
    if len(blocks) == 1:
        return blocks[0]

    def grow(log_radius: Real) -> Growth:
        grown = [block(log_radius) for block in blocks]
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
    r"""$sX + f(X)$: adds s, the `skip`, to the Lipschitz constant and s times the input's radius to
    the output's, and no term.

    Arguments:
        block: $f$.
    """
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
    """A block that reads its tokens through a norm: they lie in the ball of `radius` whatever
    came in, and the norm is `stretch`-Lipschitz (1: the paper's projection).

    Arguments:
        block: the block.
    """
    log_stretch = log_of(positive("stretch", stretch))

    def grow(log_radius: Real) -> Growth:
        inner = block(log_of(positive("radius", radius)))
        log_lipschitz = inner.log_lipschitz + log_stretch
        return inner._replace(log_lipschitz=log_lipschitz, layers=(log_lipschitz,))

    return grow


def projected(block: Block) -> Block:
    """Each row of the output on the unit ball.

    Arguments:
        block: the block.
    """

    def grow(log_radius: Real) -> Growth:
        inner = block(log_radius)
        return inner._replace(log_radius=np.minimum(inner.log_radius, 0.0))

    return grow


def stacked(*blocks: Block) -> Block:
    """One block after the other: an error made in a block is multiplied by the Lipschitz
    constants of those above it.

    Arguments:
        blocks: in the order in which they act.
    """

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
