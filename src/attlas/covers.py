r"""Norms, and covers of linear classes with explicit constants: what capacity bounds are made of.

A cover of a class on given points is a finite set of functions such that every member is within
$\epsilon$ of one of them at all the points; the logarithm of the least size is the class's entropy
$H(\epsilon)$, in nats. Edelman et al. 2022, Section 4; Zhang 2002.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from attlas.errors import InputError, positive
from attlas.gaussian import Real


def spectral_norm(w: Any) -> float:
    """The largest singular value of a matrix [rows, columns].

    Arguments:
        w: the matrix.
    """
    return float(np.linalg.norm(as_matrix(w), 2))


def column_norm(w: Any) -> float:
    r"""$\|W\|_{2,1}$ of a matrix [rows, columns], the sum of the lengths of its columns.

    For a map $x \mapsto W^\top x$ the columns are the output units; a matrix that is stored [out,
    in] and applied as $Wx$ has to be transposed first.

    Arguments:
        w: the matrix.

    >>> from attlas.covers import as_matrix, column_norm, spectral_norm, token_radius
    >>> w = as_matrix([[3.0, 0.0], [4.0, 1.0]])
    >>> print(*(round(float(norm(w)), 3) for norm in (column_norm, spectral_norm, token_radius)))
    6.0 5.064 4.123
    """
    return float(np.linalg.norm(as_matrix(w), axis=0).sum())


def token_radius(tokens: Any) -> float:
    r"""$\|X^\top\|_{2,\infty}$, the length of the longest of the tokens [..., length, dim].

    Arguments:
        tokens: an array.
    """
    return float(np.linalg.norm(np.asarray(tokens, float), axis=-1).max())


def as_matrix(w: Any) -> np.ndarray:
    """A matrix in double precision; an `InputError` if it is none.

    Arguments:
        w: whatever it was given as.
    """
    w = np.asarray(w, float)
    if w.ndim != 2:
        raise InputError(f"a matrix has the shape {w.shape}: it must have two axes")
    if not np.isfinite(w).all():
        raise InputError("a matrix has an entry that is not finite")
    return w


def as_norm(name: str, value: Real) -> Real:
    """`value`, if it is a norm: finite and 0 or larger.

    Arguments:
        name: what the message calls it.

    >>> from attlas.covers import as_dimension, as_norm, as_numbers, between, log_of
    >>> as_numbers("sizes", [1, 2]).tolist()
    [1.0, 2.0]
    >>> print(as_norm("size", 2.0), as_dimension("dim", 8), between("delta", 0.05), log_of(0.0))
    2.0 8 0.05 -inf
    >>> as_norm("size", -1)
    Traceback (most recent call last):
    attlas.errors.InputError: size = -1: a norm is a finite number, 0 or larger
    """
    numbers = as_numbers(name, value)
    wrong = numbers[~(np.isfinite(numbers) & (numbers >= 0))]
    if wrong.size:
        raise InputError(f"{name} = {wrong[0]:g}: a norm is a finite number, 0 or larger")
    return np.asarray(value, float)[()]


def between(name: str, value: Real, low: float = 0.0, high: float = 1.0) -> Real:
    """`value`, if it lies strictly between `low` and `high`; otherwise an `InputError`.

    Arguments:
        name: what the message calls it.
        value: a number or an array of them.
    """
    numbers = as_numbers(name, value)
    wrong = numbers[~((numbers > low) & (numbers < high))]
    if wrong.size:
        raise InputError(f"{name} = {wrong[0]:g}: it must lie between {low:g} and {high:g}")
    return value


def as_dimension(name: str, value: Real) -> Real:
    """`value`, if it is a positive number or infinite.

    Arguments:
        name: what the message calls it.
    """
    if not (as_numbers(name, value) > 0).all():
        raise InputError(f"{name} = {value!r}: it must be a positive number, or infinite")
    return value


def as_numbers(name: str, value: Any) -> np.ndarray:
    """Numbers as an array in double precision; an `InputError` if they are none.

    Arguments:
        name: what the message calls them. `value`: a number or an array of them.
    """
    try:
        return np.atleast_1d(np.asarray(value, float))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} = {value!r}: it must be a number") from error


def log_of(value: Real) -> Real:
    """The logarithm, -inf at 0 without a warning.

    Arguments:
        value: 0 or larger.
    """
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(value, float))[()]


ROUNDED, SPARED = 1.1, 0.1
r"""The ratio $\rho$ between the levels that columns' lengths are rounded up to, and the share
$\beta$ of $\epsilon^2$ given to columns that are left out: any values above 1 and in (0, 1) give
a cover."""


def linear_entropy(size: Real, eps: Real, points: Real, dim: Real = np.inf) -> Real:
    r"""Bound on the entropy of $\{x \mapsto \langle w, x\rangle : |w| \le a\}$ on n points
    $|x| \le b$: $\min\big\{36\frac{A^2}{\epsilon^2}\ln(2\lceil 4A/\epsilon +
    2\rceil n + 1),\ d\ln(1 + 2A/\epsilon)\big\}$ nats, and 0 where $\epsilon \ge A$.

    The first is Zhang's (2002, Theorem 4) and independent of the dimension, the second counts
    parameters. In the logarithm, $2n(4A/\epsilon + 3.5)$ is used for
    $2\lceil 4A/\epsilon + 2\rceil n + 1$, which it bounds.

    Arguments:
        size: $A = ab$.
        eps, points: $\epsilon$ and n.
        dim: d; an infinite one leaves out the second bound.

    >>> import numpy as np
    >>> from attlas.covers import linear_entropy, log_entropy_at, matrix_entropy
    >>> [round(float(linear_entropy(1.0, 0.1, points=1000, dim=dim))) for dim in (5, float("inf"))]
    [15, 40945]
    >>> nats = matrix_entropy(1.0, 0.1, points=1000, outputs=4, inputs=5)
    >>> print(f"{nats:.2f} {np.exp(log_entropy_at(np.log(10), np.log(1000), 4, 5)):.2f}")
    60.89 60.89
    """
    return matrix_entropy(size, eps, points, 1, as_dimension("dim", dim))


def matrix_entropy(
    size: Real, eps: Real, points: Real, outputs: Real, inputs: Real = np.inf
) -> Real:
    r"""Bound on the entropy of $\{x \mapsto W^\top x : \|W\|_{2,1} \le B\}$ on N points $|x| \le b$
    in the Euclidean distance, in nats; 0 where $\epsilon \ge A = Bb$.

    Columns shorter than $\tau = \beta\epsilon^2/(Bb^2)$ become 0, so that at most
    $M = \min(d_1, A^2/\beta\epsilon^2)$ are left; their lengths are rounded up to one of
    $\log_\rho(B/\tau)$ levels $B, B/\rho, \dots$ and each is covered as a linear class:
    $\frac{36\rho^2A^2}{(1-\beta)\epsilon^2}\ln\big(2\lceil\frac{4\sqrt\rho
    A}{\sqrt{1-\beta}\,\epsilon} + 2\rceil N + 1\big) + M\ln(1 +
    d_1\cdot\text{levels})$, or the parametric $d_1d_2\ln(1 + 2A/\epsilon)$ if it is smaller. Lemma
    4.6 with constants.

    Arguments:
        size: $A$.
        eps, points: $\epsilon$ and N.
        outputs, inputs: $d_1$ and $d_2$; infinite `inputs` leave out the parametric bound.
    """
    ratio = log_of(as_norm("size", size)) - log_of(positive("eps", eps))
    return np.exp(
        log_entropy_at(
            ratio,
            log_of(positive("points", points)),
            positive("outputs", outputs),
            as_dimension("inputs", inputs),
        )
    )


def log_entropy_at(log_ratio: Real, log_points: Real, outputs: Real, inputs: Real) -> Real:
    r"""The logarithm of `matrix_entropy`, of `linear_entropy` where there is one output; -inf where
    it is 0.

    Arguments:
        log_ratio: $\ln(A/\epsilon)$.
        log_points: the logarithm of the number of points.
        outputs, inputs: as in `matrix_entropy`.
    """
    one = np.asarray(outputs) == 1
    inside = np.maximum(log_ratio, 0.0)
    ratio = np.exp(np.minimum(inside, 600.0))
    beyond = np.maximum(inside - 600.0, 0.0)  # what a float could not hold
    stretch = np.where(one, 1.0, math.sqrt(ROUNDED / (1 - SPARED)))
    factor = np.where(one, math.log(36), math.log(36 * ROUNDED**2 / (1 - SPARED)))
    # 2 ceil(x + 2) n + 1 <= 2n(x + 3.5).
    count = math.log(2) + log_points + np.log(4 * stretch * ratio + 3.5) + beyond
    log_linear = factor + 2 * inside + np.log(count)
    if not one.all():
        kept = np.minimum(outputs, np.exp(np.minimum(2 * inside - math.log(SPARED), 700.0)))
        levels = np.ceil((2 * inside - math.log(SPARED)) / math.log(ROUNDED))
        chosen = np.log(kept) + np.log(np.log1p(outputs * levels))
        log_linear = np.where(one, log_linear, np.logaddexp(log_linear, chosen))
    if np.isfinite(inputs).any():
        log_linear = np.minimum(
            log_linear, np.log(outputs * np.asarray(inputs)) + np.log(np.log1p(2 * ratio) + beyond)
        )
    return np.where(log_ratio > 0, log_linear, -np.inf)[()]


def best_split(sizes: Any) -> tuple[Real, Float[np.ndarray, "*s k"]]:
    r"""The least $\sum_k A_k^2/\beta_k^2$ over shares $\beta_k \ge 0$ that sum to 1, which is
    $(\sum_k A_k^{2/3})^3$, and the shares $\beta_k \propto A_k^{2/3}$ at which it is attained;
    for `sizes` [..., term]. How Theorem 4.2 splits its distance.

    >>> from attlas.covers import best_split
    >>> least, shares = best_split([8.0, 1.0])
    >>> print(round(float(least), 6), shares.tolist())
    125.0 [0.8, 0.2]
    """
    sizes = np.atleast_1d(as_norm("sizes", sizes))
    largest = sizes.max(-1, keepdims=True)
    thirds = np.where(largest > 0, sizes / np.where(largest > 0, largest, 1), 1.0) ** (2 / 3)
    total = thirds.sum(-1, keepdims=True)
    return (total[..., 0] ** 3 * largest[..., 0] ** 2)[()], thirds / total
