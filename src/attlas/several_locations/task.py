r"""The task of this map: k informative tokens among L, and the rules that it is compared with.

Token $J_i$ is $N(s_ik^*_i, I)$, the others are $N(0, I)$, and $y = \sum_i\langle X_{J_i},
v^*_i\rangle$. All spreads are 1, so that a token's norm says nothing and a softmax can be Bayes'
rule.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

from attlas.errors import InputError, whole
from attlas.order_parameters import Heads, Overlaps, Places, Problem, ValueSum
from attlas.surface import public, refusing


@public
def heads_problem(length: int, signals: Any, weights: str = "softmax", lam: float = 1.0) -> Problem:
    """Heads of one kind on informative tokens with these signals.

    Arguments:
        length: tokens. `signals`: of the informative ones [k]. `weights`, `lam`: of `Heads`.

    >>> import numpy as np
    >>> from attlas.order_parameters import risk
    >>> from attlas.several_locations import heads_problem, random_starts
    >>> problem = heads_problem(6, [3.0, 3.0], lam=2.0)
    >>> starts = random_starts(
    ...     np.random.default_rng(0), 5, columns=4, directions=4, dim=100, size=1.0)
    >>> risk(problem, starts, points=256).mean.shape
    (5,)
    """
    return Problem(Places(length, signals), ValueSum(), Heads(weights, lam))


def _refuse_starts(repeats: Any, columns: Any, directions: Any, dim: Any, size: Any) -> None:
    whole("repeats", repeats, 1), whole("columns", columns, 1), whole("directions", directions, 1)
    if whole("dim", dim, 1) < directions:
        raise InputError(f"dim = {dim}: {directions} directions need as many dimensions")
    if not 0 <= size < np.inf:
        raise InputError(f"size = {size}: a length is finite and not negative")


@public
@refusing(_refuse_starts)
def random_starts(
    rng: np.random.Generator, repeats: int, columns: int, directions: int, dim: int, size: float
) -> Overlaps:
    """Overlaps of Gaussian vectors in `dim` dimensions, of squared length `size`^2 on average.

    Arguments:
        rng: NumPy's. `repeats`: starts. `columns`, `directions`: p and r.
    """
    u = size * rng.standard_normal((repeats, dim, columns)) / np.sqrt(dim)
    return Overlaps.of(u, np.eye(dim)[:, :directions])


def _refuse_sequences(samples: Any, length: Any, signals: Any) -> None:
    whole("samples", samples, 1)
    if whole("length", length, 1) < np.size(signals):
        raise InputError(f"length = {length}: {np.size(signals)} places need as many tokens")


@public
@refusing(_refuse_sequences)
def bayes_losses(
    rng: np.random.Generator, samples: int, length: int, signals: Any
) -> Float[np.ndarray, " samples"]:
    r"""Squared errors of Bayes' rule for one or two places, on `samples` sequences.

    The places have the posterior $\pi_{ab} \propto \exp(s_1\chi_{1a} + s_2\chi_{2b})$ over pairs
    $a \ne b$, with $\chi_{il} = \langle X_l, k^*_i\rangle$.

    Arguments:
        rng: NumPy's. `length`: tokens. `signals`: $s$, one or two.

    >>> import numpy as np
    >>> from attlas.several_locations import bayes_losses
    >>> losses = bayes_losses(np.random.default_rng(0), 1000, length=6, signals=[3.0, 3.0])
    >>> print(losses.shape, bool(losses.mean() < 1))
    (1000,) True
    """
    signals = np.atleast_1d(np.asarray(signals, float))
    if len(signals) not in (1, 2):
        raise InputError(f"{len(signals)} places: Bayes' rule is there for one or two")
    keys, values = rng.standard_normal((2, len(signals), samples, length))
    for i, signal in enumerate(signals):
        keys[i, :, i] += signal
    weights = special.softmax(signals[:, None, None] * keys, axis=-1)
    if len(signals) == 2:
        apart = weights * (1 - weights[::-1])
        weights = apart / apart.sum(-1, keepdims=True)
    target = sum(values[i, :, i] for i in range(len(signals)))
    return ((weights * values).sum((0, 2)) - target) ** 2


def attention_error(signal: float, length: int) -> float:
    r"""The least error of the rule that the largest field decides: label 1 if $\max_l a_l > b$.

    One of `length` fields is $N(\pm s, 1)$ by the label, the others $N(0, 1)$, with the label's
    odds even: $\frac12\min_b[\Phi^{L-1}(b)\Phi(b - s) + 1 - \Phi^{L-1}(b)\Phi(b + s)]$.
    """

    def error(b: float) -> float:
        others = special.ndtr(b) ** (length - 1)
        both = others * (special.ndtr(b - signal) - special.ndtr(b + signal))
        return float((1 + both) / 2)

    grid = np.linspace(-1, signal + 8, 200)
    near = grid[int(np.argmin([error(b) for b in grid]))]
    found = optimize.minimize_scalar(error, bounds=(near - 0.1, near + 0.1), method="bounded")
    return float(found.fun)


def _refuse_level(length: Any, level: float) -> None:
    whole("length", length, 2)
    if not 0 < level < 0.5:
        raise InputError(f"level = {level}: a share of errors lies between 0 and 0.5, guessing's")


@refusing(_refuse_level)
def attention_threshold(length: int, level: float = 0.1) -> float:
    """The signal at which `attention_error` is `level`.

    Arguments:
        length: tokens. `level`: the share of errors.

    >>> from attlas.several_locations import attention_threshold, linear_threshold
    >>> print(f"{attention_threshold(100):.2f} {linear_threshold(100):.2f}")
    4.26 12.82
    """
    most = 4 + np.sqrt(2 * np.log(length)) + special.ndtri(1 - level)
    return float(optimize.brentq(lambda s: attention_error(s, length) - level, 0.0, most))


@refusing(_refuse_level)
def linear_threshold(length: int, level: float = 0.1) -> float:
    r"""The signal $s$ at which the sign of the sum of all fields is wrong with probability `level`:
    $\Phi(-s/\sqrt L)$ = level.

    Arguments:
        length: $L$. `level`: the share of errors.
    """
    return float(special.ndtri(1 - level) * np.sqrt(length))
