r"""What a bag says as a whole: kernel ridge regression on a summary of it.

$$f(X) = \sum_i\beta_i\,(1 + e^{-\gamma|s(X) - s_i|^2/d}),$$

with $s$ the mean of the instances, their least and largest of each feature, or all three, scaled:
the usual way with bags in which no single instance decides, and the companion of a head that
selects. Which summary, $\gamma$ and the ridge are those with the least squared error on folds
left out, all of which follow from one spectrum: with $H$ the matrix that fits, the residuals of a
fold $S$ without it are $(I - H_{SS})^{-1}(y - Hy)_S$.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from attlas.single_location.bag_features import similarity
from attlas.single_location.bag_heads import Bags, mean_and_deviation
from attlas.single_location.bags import mean_outside

Targets = Float[np.ndarray, "n k"]
Column = Float[np.ndarray, " n"]

SHARPNESSES = (0.1, 0.3, 1.0, 3.0)
RIDGES = 10.0 ** np.arange(-4, 3)
MAX_REFERENCES = 400
"""Bags at most whose summaries the function is a sum over."""


def _mean(bags: Bags) -> Float[np.ndarray, "n d"]:
    return np.add.reduceat(bags.tokens, bags.first) / bags.lengths[:, None]


def _extremes(bags: Bags) -> Float[np.ndarray, "n e"]:
    least, most = (f.reduceat(bags.tokens, bags.first) for f in (np.minimum, np.maximum))
    return np.hstack([least, most])


SUMMARIES: dict[str, Callable[[Bags], np.ndarray]] = {
    "mean": _mean,
    "extremes": _extremes,
    "mean and extremes": lambda bags: np.hstack([_mean(bags), _extremes(bags)]),
}


@dataclass(frozen=True)
class Whole:
    """A function of summaries, fitted by `fit_whole`.

    - `summary`: a name among `SUMMARIES`. `sharpness`, `ridge`: as chosen.
    - `mean`, `deviation`: by which summaries are scaled.
    - `references` [m, e]: scaled summaries. `weights` [m, k]: $\\beta$.
    - `centre` [k]: the mean of the target.
    - `aside` [n, k]: the output for each bag without its fold.
    - `unswayed` [fold, n, k]: outputs of what would be chosen without that fold, of functions that
      have seen neither it nor the bag's own.
    """

    summary: str
    sharpness: float
    ridge: float
    mean: Float[np.ndarray, " e"]
    deviation: Float[np.ndarray, " e"]
    references: Float[np.ndarray, "m e"]
    weights: Float[np.ndarray, "m k"]
    centre: Float[np.ndarray, " k"]
    aside: Targets
    unswayed: Float[np.ndarray, "fold n k"]

    def respond(self, instances: Sequence[np.ndarray]) -> Targets:
        """The fitted function of each bag, in the units of the target."""
        summaries = SUMMARIES[self.summary](Bags.of(instances))
        x = (summaries - self.mean) / self.deviation
        return self.centre + _kernel(x, self.references, self.sharpness) @ self.weights


def _kernel(x: np.ndarray, y: np.ndarray, sharpness: float) -> np.ndarray:
    return 1 + similarity(x, y, sharpness)


class _Spectrum(NamedTuple):
    r"""$W^{1/2}KW^{1/2} = U\,\mathrm{diag}(\mu)\,U^\top$ and what makes weights of the references
    from $U^\top W^{1/2}y / (\mu + \rho)$."""

    values: Float[np.ndarray, " r"]
    vectors: Float[np.ndarray, "n r"]
    back: Float[np.ndarray, "m r"]


def _spectrum(x: np.ndarray, references: np.ndarray, root: Column, sharpness: float) -> _Spectrum:
    """Of all bags, or of Nystrom's features where the references are fewer."""
    cross = root[:, None] * _kernel(x, references, sharpness)
    if len(references) == len(x):
        values, vectors = scipy.linalg.eigh(cross * root, driver="evd", check_finite=False)
        return _Spectrum(np.maximum(values, 0), vectors, root[:, None] * vectors)
    inner = _kernel(references, references, sharpness)
    values, turned = scipy.linalg.eigh(inner, driver="evd", check_finite=False)
    seen = values > 1e-10 * values[-1]
    whiten = turned[:, seen] / np.sqrt(values[seen])
    features = cross @ whiten
    values, turned = scipy.linalg.eigh(features.T @ features, driver="evd", check_finite=False)
    seen = values > 1e-10 * values[-1]
    turned, size = turned[:, seen], np.sqrt(values[seen])
    return _Spectrum(values[seen], features @ turned / size, whiten @ turned * size)


def fit_whole(
    instances: Sequence[np.ndarray], target: Targets, weight: Column, fold: np.ndarray
) -> Whole:
    """Fit a function of summaries to bags.

    Arguments:
    - `instances`: for each bag an array [length, dim].
    - `target` [n, k], `weight` [n], `fold` [n]: of each bag.
    """
    bags, share = Bags.of(instances), weight / weight.sum()
    root = np.sqrt(share * len(share))
    centre = share @ target
    y = root[:, None] * (target - centre)
    some = np.linspace(0, len(y) - 1, min(len(y), MAX_REFERENCES)).astype(int)
    outside, folds = mean_outside(weight, fold) > 0, np.unique(fold)
    best, kept = np.inf, None
    best_outside = np.full(len(outside), np.inf)
    unswayed = np.zeros((len(outside), *y.shape))
    for name, summarise in SUMMARIES.items():
        summaries = summarise(bags)
        mean, deviation = mean_and_deviation(summaries, share)
        x = (summaries - mean) / deviation
        for sharpness in SHARPNESSES:
            found = _spectrum(x, x[some], root, sharpness)
            parts = found.vectors.T @ y
            for ridge in RIDGES:
                shrunk = found.values / (found.values + ridge * len(y))
                left, both = _aside(found.vectors, shrunk, y, fold, folds)
                lost = float((left**2).sum())
                if lost < best:
                    weights = found.back @ (parts / (found.values + ridge * len(y))[:, None])
                    choice = (name, sharpness, float(ridge), mean, deviation, x[some])
                    best, kept = lost, (*choice, weights, centre, target - left / root[:, None])
                for k, own in enumerate(folds):
                    less = float(((both[k] ** 2).sum(1) * outside[own]).sum())
                    if less < best_outside[own]:
                        best_outside[own] = less
                        unswayed[own] = target - both[k] / root[:, None]
    if kept is None:
        raise FloatingPointError("no function of the summaries has a finite error")
    return Whole(*kept, unswayed)


def _aside(
    vectors: np.ndarray, shrunk: np.ndarray, y: np.ndarray, fold: np.ndarray, folds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""What is left of each target without its fold, [n, k], and for each of `folds` without that
    one and its own, [folds, n, k]: with $H_{ST}$ the share of fold T in fold S, the solution $a_S$
    of $(I - H_{SS})a_S - H_{ST}a_T = (y - Hy)_S$ and the same for T, after one step of Jacobi."""
    rest, left = y - vectors @ (shrunk[:, None] * (vectors.T @ y)), np.empty_like(y)
    rows = [np.flatnonzero(fold == k) for k in folds]
    inverse = []
    for own in rows:
        inverse.append(np.linalg.inv(np.eye(len(own)) - (vectors[own] * shrunk) @ vectors[own].T))
        left[own] = inverse[-1] @ rest[own]
    both = np.empty((len(folds), *y.shape))
    for k, others in enumerate(rows):
        added = vectors @ (shrunk[:, None] * (vectors[others].T @ left[others]))
        for own, solve in zip(rows, inverse, strict=True):
            both[k, own] = left[own] + solve @ added[own]
        both[k, others] = left[others]
    return left, both
