r"""A head that selects, a companion that reads the whole bag, and what is said by both.

$$f(X) = b + c_1 f_{\text{select}}(X) + c_2 f_{\text{whole}}(X), \qquad c_1, c_2 \ge 0.$$

Bags that are held out decide three things: whether the head sees instances as they are
(`bags.fit_selection`) or through similarities (`bag_features`), and at which sharpness; whether the
companion (`bag_wholes`) is switched on; and $b$ and $c$, fitted to outputs for bags that the parts
have not seen, by which logits are calibrated (stacking, Wolpert 1992; for one part of two classes
it is the scaling of Platt 1999). What is simpler stays unless the other loses `MIN_GAIN` less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize

from attlas.progress import told
from attlas.single_location.bag_features import Features
from attlas.single_location.bag_heads import LOSSES
from attlas.single_location.bag_wholes import Whole, fit_whole
from attlas.single_location.bags import (
    FOLDS,
    HASTE,
    MIN_GAIN,
    Selection,
    fit_selection,
    mean_outside,
    own_fold,
)

Targets = Float[np.ndarray, "n k"]
Column = Float[np.ndarray, " n"]

SHARPNESSES = (0.3, 1.0, 3.0)
"""Of the similarities that are tried."""
NEAR, FAR = 1.2, 1.5
"""Similarities are fitted to the end if they come within so many times the loss that they should
have, and at a further sharpness if those before come within so many."""
FEW_BAGS = 4 * FOLDS
"""Below so many there is the head alone, on instances as they are, and nothing is rescaled."""
SHRINKAGE = {"squared": 0.0, "logistic": 1.0}
"""Penalty of the squared sizes of the parts, in bags; without it, logits of bags that part exactly
would grow for ever."""


@dataclass(frozen=True)
class Mixture:
    """Parts fitted to bags by `fit_mixture`.

    - `selection`: the head. `features`: through which it sees instances, or None.
    - `whole`: the companion, or None.
    - `offset` [k], `shares` [1 or 2]: $b$ and $c$.
    - `sizes`: the deviation of each part's held-out output times its share.
    - `tried`: the held-out loss of everything that was tried, by name.
    - `aside` [n, k]: the output for each bag of parts and shares fitted without its fold, where
      everything among `tried`, penalties and heads were chosen by the losses of other folds. What
      the folds chose looks better on them than on bags of another day; this does not (Tsamardinos
      et al. 2018 have it for resampled rows).
    """

    selection: Selection
    features: Features | None
    whole: Whole | None
    offset: Float[np.ndarray, " k"]
    shares: Float[np.ndarray, " parts"]
    sizes: Float[np.ndarray, " parts"]
    tried: dict[str, float]
    aside: Targets

    def lifted(self, instances: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Instances as the head sees them."""
        return instances if self.features is None else self.features(instances)

    def respond(self, instances: Sequence[np.ndarray]) -> Targets:
        """The output for each bag."""
        said = self.offset + self.shares[0] * self.selection.respond(self.lifted(instances))
        if self.whole is not None:
            said = said + self.shares[1] * self.whole.respond(instances)
        return said

    def attention(self, instances: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Weights [length, h] of the instances of each bag; those of a head sum to 1."""
        return self.selection.attention(self.lifted(instances))

    def speak(self, instances: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What each instance [length, k] adds to the output through the head."""
        spoken = self.selection.speak(self.lifted(instances))
        return [self.shares[0] * x for x in spoken]


def fit_mixture(
    instances: Sequence[np.ndarray],
    target: Targets,
    *,
    loss: str,
    weight: Column,
    fold: np.ndarray,
    features: str = "auto",
    whole: bool | str = "auto",
    seed: int = 0,
    **options: Any,
) -> Mixture:
    """Fit the parts, and choose among them by the loss of bags held out.

    Arguments:
    - `instances`: for each bag an array [length, dim].
    - `target` [n, k], `weight` [n], `fold` [n], `loss`: as in `fit_selection`.
    - `features`: "linear", "kernel", or "auto" for the better.
    - `whole`: whether there is a companion; "auto" for the better.
    - `options`: of `fit_selection`.
    """
    lone = len(instances) < FEW_BAGS
    tried: dict[str, float] = {}

    def attempt(name: str, seen: Sequence[np.ndarray], **how: Any) -> Selection:
        asked = {"loss": loss, "weight": weight, "fold": fold, "seed": seed, **options, **how}
        found = told(
            fit_selection(seen, target, **asked), lambda x: f"{name}: held-out loss {x.loss:.4g}"
        )
        tried[name] = found.loss
        return found

    outside = mean_outside(weight, fold)

    def losses_outside(unswayed: np.ndarray) -> np.ndarray:
        """Of each fold's outputs [fold, n, k] the mean loss of bags outside that fold."""
        losses = [LOSSES[loss](said[:, None], target)[0][:, 0] for said in unswayed]
        return (outside * losses).sum(1)

    selection: Selection | None = None
    lift: Features | None = None
    least = np.inf
    unswayed, least_outside = np.zeros((FOLDS, *target.shape)), np.full(FOLDS, np.inf)
    if features != "kernel" or lone:
        selection = attempt("linear", instances)
        least = (1 - MIN_GAIN) * selection.loss
        unswayed = selection.unswayed
        least_outside = (1 - MIN_GAIN) * losses_outside(unswayed)
    if features != "linear" and not lone:
        aim, best = least, (np.inf, SHARPNESSES[0])

        def attempt_at(sharpness: float, name: str, **how: Any) -> None:
            nonlocal selection, lift, least, best, unswayed, least_outside
            seen = Features.of(instances, weight, sharpness, seed)
            found = attempt(name, seen(instances), together=True, grow=False, **how)
            best = min(best, (found.loss, sharpness))
            if found.loss < least:
                selection, lift, least = found, seen, found.loss
            losses = losses_outside(found.unswayed)
            better = losses < least_outside
            unswayed = np.where(better[:, None, None], found.unswayed, unswayed)
            least_outside = np.minimum(losses, least_outside)

        # Stopped early at each sharpness, then to the end at the best: on so many features either
        # may lose less on bags held out.
        early = {"trips": 100 // HASTE, "tolerance": 1e-3 * HASTE}
        for sharpness in SHARPNESSES:
            if tried.keys() <= {"linear"} or best[0] < FAR * aim:
                attempt_at(sharpness, f"similarities of sharpness {sharpness:g}, early", **early)
        if best[0] < NEAR * aim:
            attempt_at(best[1], f"similarities of sharpness {best[1]:g}")
    assert selection is not None
    if lone:
        k, one = target.shape[1], np.ones(1)
        size, aside = selection.aside.std(0).mean(keepdims=True), own_fold(unswayed, fold)
        return Mixture(selection, None, None, np.zeros(k), one, size, tried, aside)
    stacked = _stack([selection.aside], target, weight, fold, loss)
    companion, parts = None, [unswayed]
    if whole == "auto" or whole is True:
        found = fit_whole(instances, target, weight, fold)
        parts.append(found.unswayed)
        both = told(
            _stack([selection.aside, found.aside], target, weight, fold, loss),
            lambda x: f"with {found.summary} of the bag: held-out loss {x.loss:.4g}",
        )
        tried |= {"without the whole": stacked.loss, "with the whole": both.loss}
        if whole is True or both.loss < (1 - MIN_GAIN) * stacked.loss:
            companion, stacked = found, both
    outputs = [selection.aside] if companion is None else [selection.aside, companion.aside]
    sizes = stacked.shares * np.array([x.std(0).mean() for x in outputs])
    aside = _unswayed_stack(parts, target, weight, fold, loss, always=whole is True)
    return Mixture(selection, lift, companion, stacked.offset, stacked.shares, sizes, tried, aside)


def _unswayed_stack(
    parts: Sequence[np.ndarray],
    target: Targets,
    weight: Column,
    fold: np.ndarray,
    loss: str,
    always: bool,
) -> Targets:
    """What is said of each bag where the bags outside its fold choose whether the second of the
    parts [fold, n, k] is used, and by how much."""
    aside = np.empty_like(target)
    for k in np.unique(fold):
        own = fold == k
        rest = weight * ~own if (weight * ~own).any() else weight
        kept = rest > 0
        outputs, y = np.stack([part[k] for part in parts]), target[kept]

        def lost(some: slice, *task: Any, outputs: Any = outputs, kept: Any = kept) -> float:
            return _stack(list(outputs[some][:, kept]), *task).loss

        used = slice(None)
        if len(parts) > 1 and not always:
            task = y, weight[kept], fold[kept], loss
            if lost(slice(None), *task) >= (1 - MIN_GAIN) * lost(slice(1), *task):
                used = slice(1)
        offset, shares = _weigh(outputs[used][:, kept], y, weight[kept], loss)
        aside[own] = offset + np.einsum("j,jnk->nk", shares, outputs[used][:, own])
    return aside


class _Stack(NamedTuple):
    offset: Float[np.ndarray, " k"]
    shares: Float[np.ndarray, " parts"]
    aside: Targets
    loss: float


def _stack(
    outputs: Sequence[Targets], target: Targets, weight: Column, fold: np.ndarray, loss: str
) -> _Stack:
    """Offset and shares of outputs for bags that were held out, with what is said of each bag by
    those fitted without its fold, and the loss of that."""
    said = np.stack(outputs)
    aside = np.empty_like(target)
    for k in np.unique(fold):
        own = fold == k
        offset, shares = _weigh(said[:, ~own], target[~own], weight[~own], loss)
        aside[own] = offset + np.einsum("j,jnk->nk", shares, said[:, own])
    losses = LOSSES[loss](aside[:, None], target)[0][:, 0]
    return _Stack(*_weigh(said, target, weight, loss), aside, float(weight @ losses / weight.sum()))


def _weigh(
    said: Float[np.ndarray, "parts n k"], target: Targets, weight: Column, loss: str
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " parts"]]:
    """The offset [k] and the shares, 0 or larger, of least loss."""
    parts, _, k = said.shape
    middle = said.mean(1)
    unit = np.maximum((said - middle[:, None]).std((1, 2)), 1e-100)
    x, share = (said - middle[:, None]) / unit[:, None, None], weight / weight.sum()
    size, shrinkage = 1.0, SHRINKAGE[loss] / weight.sum()
    if loss == "squared":
        size = float(np.sqrt(share @ ((target - share @ target) ** 2).sum(1))) or 1.0
        target = target / size

    def lost(point: np.ndarray) -> tuple[float, np.ndarray]:
        b, c = point[:k], point[k:]
        losses, slope = LOSSES[loss]((b + np.einsum("j,jnk->nk", c, x))[:, None], target)
        slope = share[:, None] * slope[:, 0]
        value = float(share @ losses[:, 0] + shrinkage / 2 * c @ c)
        return value, np.append(slope.sum(0), np.einsum("jnk,nk->j", x, slope) + shrinkage * c)

    free, positive = [(None, None)] * k, [(0, None)] * parts
    start = np.append(share @ target if loss == "squared" else np.zeros(k), unit / parts / size)
    found = optimize.minimize(lost, start, jac=True, bounds=free + positive, method="L-BFGS-B")
    shares = size * found.x[k:] / unit
    return size * found.x[:k] - shares @ middle, shares
