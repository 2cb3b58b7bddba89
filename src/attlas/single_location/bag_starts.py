r"""Starts for heads on bags, from moments.

The loss of a head is not convex. But with a centred target $Y$ of the single-location task,
$E[Y\sum_l X_lX_l^\top] = m\gamma^2(k^*v^{*\top} + v^*k^{*\top})$, whose eigenvectors are
$(k^* \pm v^*)/\sqrt2$, at the cost of one product. The task is that of Marion et al. 2025; the
moment is ours.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, eigsh

from attlas.single_location.bag_heads import Bags

Vector = Float[np.ndarray, " dim"]
Column = Float[np.ndarray, " n"]

SHARPNESS = 1.5
"""Norm of the selecting weight at the start."""
MAX_DENSE = 400
"""Dimensions up to which all eigenvectors of the moment are computed."""


class Moments(NamedTuple):
    """Moments of a target with the instances of bags.

    - `first`: the mean of target times instance.
    - `low`, `high`: eigenvectors at the ends of the spectrum of the second moment, the mean of
      target times squared instance; `size`: the larger of the absolute eigenvalues.
    - `product`: the second moment times a vector.
    """

    first: Vector
    low: Vector
    high: Vector
    size: float
    product: Callable[[np.ndarray], np.ndarray]


def moments(bags: Bags, target: Column, weight: Column) -> Moments:
    r"""$E[Y\bar X]$ and $E[Y\,\overline{XX^\top}]$, with bars for means over a bag and Y
    centred."""
    tokens, centred = bags.tokens, target - weight @ target / weight.sum()
    counts = np.repeat(weight * centred / weight.sum() / bags.lengths, bags.lengths)
    if tokens.shape[1] <= MAX_DENSE:
        matrix = (tokens * counts[:, None]).T @ tokens
        product = matrix.__matmul__
        values, vectors = np.linalg.eigh(matrix)
    else:

        def product(x: np.ndarray) -> np.ndarray:
            return tokens.T @ (counts * (tokens @ x))

        operator = LinearOperator((tokens.shape[1],) * 2, matvec=product, dtype=float)
        values, vectors = eigsh(operator, 2, which="BE", v0=np.ones(tokens.shape[1]), tol=1e-6)
    size = float(abs(values).max())
    return Moments(tokens.T @ counts, vectors[:, 0], vectors[:, -1], size, product)


def start_pairs(
    found: Moments, rng: np.random.Generator
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    r"""Pairs (u, v) of directions from which to begin, by name.

    - "moments": v is the sum or the difference of the two eigenvectors, whichever is nearer to the
      first moment, and u the other.
    - "swapped": u and v exchanged, the solution for a gate without a sign.
    - "same direction": both are the first moment, for bags whose largest instance decides.
    - "all alike": u = 0, the mean of the bag.
    - "first at random", "second at random".
    """
    first = _unit(found.first)
    one, other = _unit(found.high + found.low), _unit(found.high - found.low)
    v, k = (one, other) if abs(one @ first) >= abs(other @ first) else (other, one)
    v = v if v @ first >= 0 else -v
    k = k if k @ found.product(v) >= 0 else -k
    random = [_unit(rng.normal(size=len(first))) for _ in range(4)]
    pairs = {
        "moments": (k, v),
        "swapped": (v, k),
        "same direction": (first, first),
        "all alike": (0 * first, first),
        "first at random": (random[0], random[1]),
        "second at random": (random[2], random[3]),
    }
    return {name: (SHARPNESS * u, v) for name, (u, v) in pairs.items()}


def _unit(x: np.ndarray) -> np.ndarray:
    return x / max(float(np.linalg.norm(x)), 1e-300)


def moment_ratio(bags: Bags, target: Column, weight: Column, seed: int) -> float:
    r"""Size of the second moment over the largest size that four shuffles of the target give.

    A size is the largest absolute eigenvalue of $E[Y\,\overline{XX^\top}]$, as in `moments`. The
    ratio is infinite where every bag has one instance or there are fewer than three bags, and 0 for
    a constant target.

    Arguments:
        bags: n bags in rows.
        target: $Y$ of each bag, [n].
        weight: of each bag in the means, [n].
        seed: of the shuffles.
    """
    if bags.lengths.max() == 1 or len(target) < 3:
        return float("inf")
    if not np.ptp(target):
        return 0.0
    rng = np.random.default_rng(seed)
    chance = [moments(bags, rng.permutation(target), weight).size for _ in range(4)]
    return moments(bags, target, weight).size / max(*chance, 1e-300)
