r"""A bandwidth for each feature, by the evidence (automatic relevance determination; Rasmussen and
Williams 2006, Section 5.1).

$$k(x, x') = \exp\Bigl(-\tfrac12\sum_j (x_j - x'_j)^2/\ell_j^2\Bigr).$$

With $K = W^{1/2}GW^{1/2} + \text{ridge}\,I$, rows of weight $w$ counted as $w$ rows and the
prior variance at its best, minus the log evidence is, up to a constant,
$\frac N2\ln y^\top W^{1/2}K^{-1}W^{1/2}y + \frac12\ln\det K + \frac{N - n}2\ln\text{ridge}$.
The logarithms of the lengths are drawn towards their mean, so that with few rows features keep one
bandwidth.
"""

import numpy as np
import scipy.linalg
from jaxtyping import Float
from scipy import optimize

from attlas.latent_posterior.laws import spaced

MAX_ROWS, TRIPS = 300, 25
"""Rows at most on which lengths are chosen, and steps at most."""
SPREAD = 0.5
"""Deviation of the logarithm of a length from that of the others, as the prior has it."""
REACH = 6.0
"""Farthest that the logarithm of a length or of the ridge goes."""
PARSIMONY = 3.0
"""Log evidence by which lengths of their own must be better than one for all."""


def fit_lengths(
    keys: Float[np.ndarray, "n d"],
    target: Float[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
    temperature: float,
    ridge: float,
) -> Float[np.ndarray, " d"] | None:
    """The lengths that maximise the evidence, or None where the one for all is as good.

    Arguments:
    - `keys`, `target`, `weight`: the rows, of which the first `MAX_ROWS` evenly spaced are used.
    - `temperature`, `ridge`: the squared length for all features, and the ridge, to begin with.
    """
    rows = spaced(keys, MAX_ROWS)
    keys, target, weight = keys[rows], target[rows], weight[rows]
    dim = keys.shape[1]
    if len(rows) < 2 * dim:
        return None
    start = np.append(np.full(dim, np.log(temperature) / 2), np.log(ridge)).clip(-REACH, REACH)
    found = optimize.minimize(
        lost,
        start,
        args=(keys, target, weight),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-REACH, REACH)] * (dim + 1),
        options={"maxiter": TRIPS},
    )
    worth = found.fun < lost(start, keys, target, weight)[0] - PARSIMONY
    return np.exp(found.x[:dim]) if worth else None


def lost(
    point: Float[np.ndarray, " p"],
    keys: Float[np.ndarray, "n d"],
    target: Float[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
) -> tuple[float, Float[np.ndarray, " p"]]:
    """Minus the log evidence and the prior at logarithms of lengths and ridge, and the slope."""
    logs, ridge, root, total = point[:-1], np.exp(point[-1]), np.sqrt(weight), weight.sum()
    x = keys * np.exp(-logs)
    squares = (x**2).sum(1)
    gram = np.exp(x @ x.T - squares[:, None] / 2 - squares / 2)
    gram *= root[:, None] * root
    factor = scipy.linalg.cholesky(
        gram + ridge * np.eye(len(x)), lower=True, overwrite_a=True, check_finite=False
    )
    inverse = scipy.linalg.lapack.dpotri(factor, lower=True)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    y = root * target
    alpha = inverse @ y
    size = max(float(y @ alpha), 1e-300)
    apart = logs - logs.mean()
    value = total / 2 * np.log(size) + np.log(np.diag(factor)).sum()
    value += (total - len(x)) / 2 * np.log(ridge) + apart @ apart / (2 * SPREAD**2)
    slope = inverse - total / size * np.outer(alpha, alpha)
    bent = slope * gram
    lengths = bent.sum(1) @ x**2 - ((bent @ x) * x).sum(0)
    by_ridge = ridge * np.trace(slope) / 2 + (total - len(x)) / 2
    return value, np.append(lengths + apart / SPREAD**2, by_ridge)
