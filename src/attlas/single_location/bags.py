"""Softmax heads fitted to bags of instances of which one decides; which one is not observed.

`bag_heads` has the model, `bag_starts` the starts of the fit. Every start is followed by L-BFGS in
lanes, one for each fold that is left out and one for all bags, so that the held-out loss can choose
the penalty and the number of heads.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attlas.errors import InputError, near
from attlas.single_location.bag_descent import minimise_lanes
from attlas.single_location.bag_heads import (
    LOSSES,
    Bags,
    Data,
    Heads,
    Scaling,
    attend,
    penalised,
    respond,
    speak,
)
from attlas.single_location.bag_starts import Moments, moments, start_pairs

Output = Float[np.ndarray, "lane n k"]
Targets = Float[np.ndarray, "n k"]

PENALTIES = tuple(10.0 ** np.arange(1, -6, -0.5))
FIRST_PENALTY = 5
"""Index of the penalty that is tried first, and at which starts are compared."""
FOLDS = 5
MAX_STARTS = 3
"""Starts that are followed at every penalty, unless more heads are asked for."""
HASTE = 3
"""While penalties are compared: how many times fewer evaluations, and how many times the
tolerance."""
SAME_FUNCTION = 0.999
"""Correlation of their outputs from which on two starts have found the same function."""
SHUFFLES = 9
"""Shuffled residuals, for the size that a moment has by chance."""
MIN_GAIN = 0.02
"""Share of the held-out loss by which a further head must lower it."""
RESIDUAL = "what the others leave"
"""The name of the start of a head that is fitted together with others."""
MAX_HEADS = 4
"""Heads that are fitted together, unless more are asked for."""

Pairs = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each head of a lane, the directions (u, v) from which it begins."""


@dataclass(frozen=True)
class Selection:
    """Heads fitted to bags by `fit_selection`, and how that went.

    - `heads`, `scaling`, `centre`, `spread`: the model; scaled targets are (target - centre) /
      spread.
    - `penalty`: as chosen. `loss`: the mean loss of bags that were held out.
    - `held_out`: that loss for one head and for several averaged, at each penalty that was tried.
    - `starts`: the penalised loss that each start came to on all bags.
    - `alike`: the correlation of the outputs found from "moments" and from "swapped".
    - `chosen`: the starts that became heads.
    - `settled`: whether L-BFGS converged; `steps`: its steps.
    - `aside` [n, k]: the output for each bag of heads that were fitted without its fold.
    - `unswayed` [fold, n, k]: outputs of what would be chosen without that fold: for its bags, of
      heads fitted without them; for others, about what heads would say that had seen neither.
    """

    heads: Heads
    scaling: Scaling
    centre: Float[np.ndarray, " k"]
    spread: float
    penalty: float
    loss: float
    held_out: dict[float, tuple[float, float]]
    starts: dict[str, float]
    alike: float
    chosen: tuple[str, ...]
    settled: bool
    steps: int
    aside: Targets
    unswayed: Float[np.ndarray, "fold n k"]

    @property
    def together(self) -> bool:
        """Whether several heads were fitted together, not one, or several one by one and
        averaged."""
        return RESIDUAL in self.chosen

    @property
    def loudness(self) -> Float[np.ndarray, " h"]:
        """The share of each head in the output: the relative norm of its value."""
        size = np.linalg.norm(self.heads.value, axis=(1, 2))
        return size / size.sum() if size.any() else np.full(len(size), 1 / len(size))

    def attention(self, instances: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Weights [length, h] of the instances of each bag; those of a head sum to 1."""
        bags, square = self.scaling(instances)
        return np.split(attend(self._lane, bags, square)[:, 0], bags.first[1:])

    def respond(self, instances: Sequence[np.ndarray]) -> Targets:
        """The fitted function of each bag, in the units of the target."""
        return self.centre + self.spread * respond(self._lane, *self.scaling(instances))[:, 0]

    def speak(self, instances: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What each instance [length, k] adds to the fitted function of its bag."""
        bags, square = self.scaling(instances)
        return np.split(self.spread * speak(self._lane, bags, square)[:, 0], bags.first[1:])

    @property
    def _lane(self) -> Heads:
        return Heads(*(x[None] for x in self.heads))


def fit_selection(
    instances: Sequence[np.ndarray],
    target: Targets,
    *,
    loss: str = "squared",
    weight: Float[np.ndarray, " n"] | None = None,
    fold: Any = None,
    penalty: float | None = None,
    heads: int | None = None,
    norm: bool = True,
    together: bool = False,
    grow: bool = True,
    trips: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Selection:
    """Fit heads to bags.

    1. Every start is followed on all bags at one penalty, and dropped if it finds the function of a
       better one.
    2. The best starts are followed on all bags and without each fold, at penalties downhill in the
      held-out loss, hastily, each from where the penalty beside it ended; then to the end at the
      best. The held-out loss chooses between the head that fits its own bags best and the average
      of all.
    3. As long as the residuals of held-out bags have a larger moment than chance would give, each
      start gets a further head that begins on them, and all heads are fitted together; they are
      kept if that lowers the held-out loss by `MIN_GAIN`.

    Arguments:
    - `instances`: for each bag an array [length, dim].
    - `target`: for the "logistic" `loss` one column of 0 and 1, or k one-hot columns.
    - `weight` [n]: of each bag. `fold` [n]: 0 to 4; in turn if None.
    - `penalty`: of squared weights; chosen if None.
    - `heads`: at most; if None, 3 averaged and 4 together.
    - `norm`: whether the square norm of an instance enters its score.
    - `together`: whether features are scaled together, not one by one.
    - `grow`: whether further heads may begin on what the others leave.
    - `trips`, `tolerance`: of `minimise`. `seed`: of random starts and shuffles.
    """
    target = np.asarray(target, float)
    weight = np.ones(len(target)) if weight is None else np.asarray(weight, float)
    fold = np.arange(len(target)) % FOLDS if fold is None else np.asarray(fold)
    task = _Task(instances, target, loss, weight, fold, norm, trips, tolerance, together)
    # Each lane starts from moments of its own bags. With more features than bags the end depends on
    # the start, and shared starts would leak the targets of the fold.
    pairs = [start_pairs(found, np.random.default_rng(seed)) for found in task.moments]
    names = list(pairs[-1])
    grid = PENALTIES if penalty is None else (penalty,)
    middle = min(FIRST_PENALTY, len(grid) - 1)
    first = task.descend(
        task.heads_at([[pairs[-1][name]] for name in names]), [weight] * len(names), grid[middle]
    )
    kept = [names[j] for j in _distinct(first.value, first.output)[: heads or MAX_STARTS]]
    lanes: list[list[Pairs]] = [[[lane[name]] for lane in pairs] for name in kept]

    at, tried = _search_penalties(task, [task.heads_at(start) for start in lanes], middle, grid)
    runs, averaged = tried[at].runs, tried[at].several < tried[at].one
    best = runs if averaged else [_best_lanes(runs)]
    ended = task.descend_all([run.heads for run in best], grid[at])
    final = np.mean([run.output for run in ended], 0)
    lost = task.held_out_loss(final)
    rivals = {(j, i): x for j, trial in tried.items() for i, x in enumerate(trial.outputs)}
    unswayed = task.unswayed(
        [*rivals.values()], [*(rivals | {(at, int(averaged)): final}).values()]
    )
    grown, origin = _best_lanes(ended), kept[_best_run(runs)[-1]]
    for _ in range(1, (MAX_HEADS if heads is None else heads) if grow else 1):
        if not task.residual_has_moment(grown.output, seed):
            break
        lanes = [
            task.add_residual_pair(start, run.output)
            for start, run in zip(lanes, runs, strict=True)
        ]
        runs = task.descend_all([task.heads_at(start) for start in lanes], grid[at])
        chosen = _best_run(runs)
        start = task.heads_at([lanes[b][k] for k, b in enumerate(chosen)])
        nearby, more, outputs = task.descend_at_best_penalty(start, at, grid)
        less = task.held_out_loss(more.output)
        rival = task.unswayed(outputs)
        better = task.losses_outside(rival) <= (1 - MIN_GAIN) * task.losses_outside(unswayed)
        unswayed = np.where(better[:, None, None], rival, unswayed)
        if less > (1 - MIN_GAIN) * lost:
            break
        grown, at, lost, origin = more, nearby, less, kept[chosen[-1]]
    added = grown.heads.norm.shape[1] - 1
    runs, members = ([grown], [origin]) if added or not averaged else (ended, kept)
    correlations = _correlations(first.output)
    return Selection(
        task.merge_heads(runs),
        task.scaling,
        task.centre,
        task.spread,
        float(grid[at]),
        lost,
        {float(grid[j]): (tried[j].one, tried[j].several) for j in sorted(tried)},
        dict(zip(names, first.value.tolist(), strict=True)),
        float(correlations[names.index("moments"), names.index("swapped")]),
        (*members, *[RESIDUAL] * added),
        all(bool(run.settled[-1]) for run in runs),
        max(int(run.steps[-1]) for run in runs),
        task.centre + task.spread * task.own_lane(np.mean([run.output for run in runs], 0)),
        task.centre + task.spread * unswayed,
    )


def mean_outside(weight: Float[np.ndarray, " n"], fold: Any) -> Float[np.ndarray, "fold n"]:
    """For each fold the weights of a mean over the bags outside it; of all, if it has them all."""
    outside = weight * (np.arange(FOLDS)[:, None] != fold)
    outside = np.where(outside.any(1, keepdims=True), outside, weight)
    return outside / outside.sum(1, keepdims=True)


def own_fold(outputs: Float[np.ndarray, "fold n k"], fold: Any) -> Targets:
    """For each bag what is said of it for its own fold."""
    return outputs[fold, np.arange(len(fold))]


def _search_penalties(
    task: "_Task", starts: list[Heads], middle: int, grid: Sequence[float]
) -> tuple[int, dict[int, "_Trial"]]:
    """The penalty near the middle one with the least held-out loss, and all that were tried."""
    tried: dict[int, _Trial] = {}

    def attempt(i: int) -> float:
        if i not in tried:
            beside = [tried[j].runs for j in (i - 1, i + 1) if j in tried]
            here = [run.heads for run in beside[0]] if beside else starts
            runs = task.descend_all(here, grid[i], HASTE)
            one, several = _best_lanes(runs).output, np.mean([run.output for run in runs], 0)
            losses = task.held_out_loss(one), task.held_out_loss(several)
            tried[i] = _Trial(runs, *losses, (one, several))
        return min(tried[i].one, tried[i].several)

    return _descend_grid(attempt, middle, len(grid)), tried


def _descend_grid(loss: Callable[[int], float], i: int, size: int) -> int:
    """A local minimum among 0, ..., size - 1, downhill from i, which is evaluated first."""
    before = -1
    while i != before:
        before, i = i, min((j for j in (i, i - 1, i + 1) if 0 <= j < size), key=loss)
    return i


def linear_aside(
    instances: Sequence[np.ndarray], target: Targets, weight: Float[np.ndarray, " n"], fold: Any
) -> Targets:
    """The best linear prediction for each bag without its fold.

    Ridge regression on the mean of a bag's scaled instances, with the one of 13 penalties that has
    the least weighted squared error on the bags left out of the other folds.

    Arguments:
        instances: n bags, each [length, d].
        target: [n, k].
        weight: of each bag, [n].
        fold: the number of each bag's fold, [n].

    Returns: predictions [n, k], in the units of the target.
    """
    scaling = Scaling.of(instances, weight)
    x = np.stack([((bag - scaling.mean) / scaling.deviation).mean(0) for bag in instances])
    grid = np.geomspace(1e-3, 1e3, 13) * len(x)
    said = np.empty((len(grid), *target.shape))
    for k in np.unique(fold):
        w = np.where(fold == k, 0, weight) if (weight * (fold != k)).any() else weight
        share, root = w / w.sum(), np.sqrt(w)[:, None]
        centre, middle = share @ x, share @ target
        left, sizes, right = np.linalg.svd(root * (x - centre), full_matrices=False)
        shrunk = sizes / (sizes**2 + grid[:, None])
        slope = np.einsum("ja,ij,jk->iak", right, shrunk, left.T @ (root * (target - middle)))
        said[:, fold == k] = middle + np.einsum("nd,idk->ink", x[fold == k] - centre, slope)
    errors = mean_outside(weight, fold) @ ((said - target) ** 2).sum(2).T
    return said[np.argmin(errors, 1)[fold], np.arange(len(target))]


class _Run(NamedTuple):
    """Where the lanes from one start ended, and their outputs for every bag."""

    heads: Heads
    value: Float[np.ndarray, " lane"]
    settled: Any  # [lane]
    steps: Any  # [lane]
    output: Output


class _Trial(NamedTuple):
    """All starts at one penalty, and the held-out losses and the outputs of the best run in each
    lane and of the average of all runs."""

    runs: list[_Run]
    one: float
    several: float
    outputs: tuple[Output, Output]


def _best_run(runs: Sequence[_Run]) -> list[int]:
    """In each lane the run with the least penalised loss on the bags of that lane."""
    return np.argmin([run.value for run in runs], 0).tolist()


def _best_lanes(runs: Sequence[_Run]) -> _Run:
    """Each lane of the run that is best in it."""
    best = _best_run(runs)

    def picked(*of_runs: np.ndarray) -> np.ndarray:
        return np.stack([of_runs[b][k] for k, b in enumerate(best)])

    heads, *rest = zip(*runs, strict=True)
    return _Run(Heads(*map(picked, *heads)), *(picked(*x) for x in rest))


def _distinct(value: np.ndarray, output: Output) -> list[int]:
    """The lanes in order of their value, without those whose output is that of a better one."""
    same = _correlations(output) > SAME_FUNCTION
    kept: list[int] = []
    for lane in np.argsort(np.where(np.isfinite(value), value, np.inf), kind="stable").tolist():
        if not same[lane, kept].any():
            kept.append(lane)
    return kept


def _correlations(output: Output) -> Float[np.ndarray, "lane lane"]:
    rows = output.reshape(len(output), -1)
    centred = rows - rows.mean(1, keepdims=True)
    size = np.maximum(np.linalg.norm(centred, axis=1), 1e-150)
    return centred @ centred.T / np.outer(size, size)


class _Task:
    """Scaled bags with their scaled targets."""

    def __init__(
        self,
        instances: Sequence[np.ndarray],
        target: np.ndarray,
        loss: str,
        weight: np.ndarray,
        fold: np.ndarray,
        norm: bool,
        trips: int,
        tolerance: float,
        together: bool = False,
    ) -> None:
        if loss not in LOSSES:
            raise InputError(
                f"loss = {loss!r}: it must be {' or '.join(LOSSES)}.{near(loss, LOSSES)}"
            )
        self.loss = LOSSES[loss]
        self.weight, self.fold, self.trips, self.tolerance = weight, fold, trips, tolerance
        self.scaling = Scaling.of(instances, weight, together)
        self.bags, square = self.scaling(instances)
        self.square = square if norm else 0 * square
        self.centre, self.spread = np.zeros(target.shape[1]), 1.0
        if loss == "squared":
            share = weight / weight.sum()
            self.centre = share @ target
            self.spread = float(np.sqrt(share @ ((target - self.centre) ** 2).sum(1))) or 1.0
        self.target = (target - self.centre) / self.spread

    @functools.cached_property
    def direction(self) -> Float[np.ndarray, " k"]:
        """The combination of targets that varies most."""
        share = self.weight / self.weight.sum()
        centred = self.target - share @ self.target
        return np.linalg.eigh((share[:, None] * centred).T @ centred)[1][:, -1]

    @functools.cached_property
    def moments(self) -> list[Moments]:
        """Of the bags of each lane."""
        return [moments(self.bags, self.target @ self.direction, share) for share in self.shares]

    @functools.cached_property
    def shares(self) -> list[np.ndarray]:
        """The weights of the lanes: without each fold, and last with all bags."""
        rest = [np.where(self.fold == k, 0, self.weight) for k in range(FOLDS)]
        return [w if w.any() else self.weight for w in (*rest, self.weight)]

    @functools.cached_property
    def single(self) -> tuple[Bags, np.ndarray, np.ndarray]:
        """Bags, square norms and targets in single precision."""
        bags = Bags(self.bags.tokens.astype(np.float32), self.bags.lengths)
        return bags, self.square.astype(np.float32), self.target.astype(np.float32)

    def heads_at(self, lanes: Sequence[Pairs]) -> Heads:
        """In each lane a head for each of its pairs (u, v)."""
        select = np.array([[u for u, _ in pairs] for pairs in lanes], np.float32)
        value = [[v[:, None] * self.direction for _, v in pairs] for pairs in lanes]
        norm = np.zeros(select.shape[:2], np.float32)
        offset = np.zeros((len(lanes), self.target.shape[1]), np.float32)
        return Heads(select, norm, 0.3 * np.array(value, np.float32), offset)

    def residual(self, output: Targets) -> Float[np.ndarray, " n"]:
        """The negative slope of the loss in the output, along the direction of most variation."""
        return -self.loss(output[:, None], self.target)[1][:, 0] @ self.direction

    def residual_has_moment(self, output: Output, seed: int) -> bool:
        """Whether the residual of held-out bags has a larger moment than any of its shuffles."""
        if self.bags.lengths.max() == 1:
            return False
        rng, left = np.random.default_rng(seed), self.residual(self.own_lane(output))
        size = moments(self.bags, left, self.weight).size
        return all(
            moments(self.bags, rng.permutation(left), self.weight).size < size
            for _ in range(SHUFFLES)
        )

    def add_residual_pair(self, lanes: Sequence[Pairs], output: Output) -> list[Pairs]:
        """The pairs of each lane, and one more from the moments of the lane's own residual."""
        extended: list[Pairs] = []
        for k, (pairs, share) in enumerate(zip(lanes, self.shares, strict=True)):
            found = moments(self.bags, self.residual(output[k]), share)
            starts = start_pairs(found, np.random.default_rng(0))
            extended.append([*pairs, starts["moments"]])
        return extended

    def descend(
        self, start: Heads, weights: Sequence[np.ndarray], penalty: float, haste: int = 1
    ) -> _Run:
        """Each lane from its start, with its own weights; `haste` divides the evaluations and
        multiplies the tolerance."""
        bags, square, target = self.single
        shares = np.array([w / w.sum() for w in weights], np.float32)
        penalties = np.full(len(weights), penalty, np.float32)

        def objective(point: np.ndarray, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            data = Data(bags, square, target, shares[lanes], penalties[lanes])
            value, gradient = penalised(self.loss, start.like(point), data)
            return value, gradient.flat()

        found = minimise_lanes(
            objective,
            start.flat(),
            trips=-(-self.trips // haste),
            tolerance=self.tolerance * haste,
        )
        heads = start.like(found.point)
        output = respond(heads, bags, square).astype(float)
        return _Run(heads, found.value, found.settled, found.steps, np.moveaxis(output, 1, 0))

    def descend_all(self, starts: Sequence[Heads], penalty: float, haste: int = 1) -> list[_Run]:
        """From each of several starts a run of its own, all of them at once."""
        together = Heads(*(np.concatenate(x) for x in zip(*starts, strict=True)))
        run = self.descend(together, self.shares * len(starts), penalty, haste)
        count = len(self.shares)
        parts = [slice(i * count, (i + 1) * count) for i in range(len(starts))]
        return [
            _Run(Heads(*(x[part] for x in run.heads)), *(x[part] for x in run[1:]))
            for part in parts
        ]

    def descend_at_best_penalty(
        self, start: Heads, i: int, grid: Sequence[float]
    ) -> tuple[int, _Run, list[Output]]:
        """The penalty near grid[i] with the least held-out loss: its index, the run, and the
        outputs at every penalty that was tried."""
        runs: dict[int, _Run] = {}

        def attempt(j: int) -> float:
            if j not in runs:
                runs[j] = self.descend(start, self.shares, grid[j])
            return self.held_out_loss(runs[j].output)

        j = _descend_grid(attempt, i, len(grid))
        return j, runs[j], [run.output for run in runs.values()]

    def held_out_loss(self, output: Output) -> float:
        """The mean loss of each bag in the lane that leaves out its fold."""
        losses = self.loss(self.own_lane(output)[:, None], self.target)[0][:, 0]
        return float(self.weight @ losses / self.weight.sum())

    def without_both(self, output: Output) -> Float[np.ndarray, "fold n k"]:
        """For each fold and bag the output without that fold and the bag's own: what neither says,
        to first order in what a fold adds."""
        without, own = output[:FOLDS], self.own_lane(output)
        same = (np.arange(FOLDS)[:, None] == self.fold)[:, :, None]
        return np.where(same, own, own + without - output[FOLDS])

    def losses_outside(self, unswayed: np.ndarray) -> Float[np.ndarray, " fold"]:
        """Of outputs [fold, n, k] the mean loss of the bags outside each fold."""
        losses = [self.loss(said[:, None], self.target)[0][:, 0] for said in unswayed]
        return (mean_outside(self.weight, self.fold) * losses).sum(1)

    def unswayed(self, rivals: Sequence[Output], shown: Sequence[Output] | None = None) -> Any:
        """For each fold the outputs [fold, n, k] of the rival with the least loss outside it, or
        those `shown` in its stead."""
        losses = [self.losses_outside(self.without_both(x)) for x in rivals]
        shown = rivals if shown is None else shown
        return np.stack(
            [self.without_both(shown[i])[k] for k, i in enumerate(np.argmin(losses, 0))]
        )

    def own_lane(self, output: Output) -> Targets:
        """The output for each bag in the lane without its fold."""
        return own_fold(output, self.fold)

    def merge_heads(self, runs: Sequence[_Run]) -> Heads:
        """One model: the heads of all runs in the lane of all bags, averaged."""
        parts = [Heads(*(np.asarray(x[-1], float) for x in run.heads)) for run in runs]
        select, norm, value = (
            np.concatenate(x) for x in zip(*(part[:3] for part in parts), strict=True)
        )
        return Heads(select, norm, value / len(runs), np.mean([part.offset for part in parts], 0))
