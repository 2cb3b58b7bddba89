r"""Softmax heads fitted to bags of instances of which one decides, when nobody says which.

$$f(X) = b + \sum_h\sum_l p^h_l\,V_h^\top x_l, \qquad p^h = \mathrm{softmax}_l(\langle x_l, u_h\rangle + q_h|x_l|^2),$$

the head of `SingleLocation.bayes_logits` with free weights: $u$ selects, $V$ speaks. Its loss is not convex, and a start comes from
moments: with centred $Y$, $E[Y\sum_l X_lX_l^\top] = m\gamma^2(k^*v^{*\top} + v^*k^{*\top})$, whose eigenvectors are $(k^* \pm v^*)/\sqrt2$, at the
cost of one product (the task is that of Marion et al. 2025; the moment is ours).

Bags have any lengths. They are laid out as rows of equal width, a bag in one or more of them, so that the work is one matrix product over
all instances; every axis is padded to few sizes, so that few programs serve all data.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse.linalg import LinearOperator, eigsh

from attlas.errors import InputError, near
from attlas.quasi_newton import minimise

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Widths that a row may have."""
SHARPNESS = 1.5
"""Size of the selecting weight at the start."""
WIDE = 400
"""Dimensions up to which all eigenvectors of the moment are computed at once."""


def bucket(size: int, least: int = 4) -> int:
    """The size to which an axis is padded: a power of two, or three halves of one."""
    power = 1 << max(size - 1, least - 1).bit_length()
    return 3 * power // 4 if 4 * max(size, least) <= 3 * power else power


# --- bags ------------------------------------------------------------------------------------------------------------


class Bags(NamedTuple):
    """n bags in rows of one width. What is padded is 0, has no share, and lies in the bag n."""

    tokens: Float[np.ndarray, "rows width dim"]
    share: Float[np.ndarray, "rows width"]
    bag: Any  # [rows]
    lengths: Any  # [n]

    @classmethod
    def of(cls, instances: Sequence[np.ndarray], dim: int | None = None) -> "Bags":
        """Bags from a list of arrays [length, dim]; `share` is 1 / length, so that each bag counts once."""
        lengths = np.array([len(x) for x in instances])
        width = min(WIDTHS, key=lambda w: (w * bucket(int(np.ceil(lengths / w).sum())), -w))
        rows = -(-lengths // width)
        total = bucket(int(rows.sum()))
        tokens = np.zeros((total * width, dim or instances[0].shape[1]))
        share = np.zeros(total * width)
        first = (np.cumsum(rows) - rows) * width
        places = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        flat = np.concatenate(instances)
        tokens[places, : flat.shape[1]], share[places] = flat, np.repeat(1 / lengths, lengths)
        bag = np.repeat(np.arange(len(lengths) + 1), np.append(rows, total - rows.sum()))
        return cls(tokens.reshape(total, width, -1), share.reshape(total, width), bag, lengths)

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """What was computed for each place, [rows, width, ...], as one array for each bag."""
        flat = x.reshape(-1, *x.shape[2:])[self.share.ravel() > 0]
        return np.split(flat, np.cumsum(self.lengths)[:-1])


@dataclass(frozen=True)
class Scaling:
    """One mean and one deviation for each feature, over instances of which those of a bag count once together; likewise for the square norm
    that is left. A constant feature stays 0."""

    mean: Float[np.ndarray, " dim"]
    deviation: Float[np.ndarray, " dim"]
    norm_mean: float
    norm_deviation: float

    @classmethod
    def of(cls, instances: Sequence[np.ndarray], weight: Float[np.ndarray, " n"]) -> "Scaling":
        flat = np.concatenate(instances)
        lengths = np.array([len(x) for x in instances])
        share = np.repeat(weight / lengths, lengths)
        share /= share.sum()
        mean, deviation = _spread(flat, share)
        square = (((flat - mean) / deviation) ** 2).sum(1)
        return cls(mean, deviation, *(float(x[0]) for x in _spread(square[:, None], share)))

    def __call__(
        self, instances: Sequence[np.ndarray], dim: int
    ) -> tuple[Bags, Float[np.ndarray, "rows width"]]:
        """The bags scaled, with their scaled square norms."""
        bags = Bags.of([(x - self.mean) / self.deviation for x in instances], dim)
        square = (bags.tokens**2).sum(-1)
        return bags, np.where(bags.share > 0, (square - self.norm_mean) / self.norm_deviation, 0)


def _spread(
    x: Float[np.ndarray, "N d"], share: Float[np.ndarray, " N"]
) -> tuple[np.ndarray, np.ndarray]:
    mean = share @ x
    deviation = np.sqrt(share @ (x - mean) ** 2)
    return mean, np.where(deviation > 1e-10 * np.maximum(1, abs(mean)), deviation, 1.0)


# --- the model -------------------------------------------------------------------------------------------------------


class Heads(NamedTuple):
    """The weights; in a fit, each has a leading axis of lanes."""

    select: Any  # [h, dim]
    norm: Any  # [h]
    value: Any  # [h, dim, k]
    offset: Any  # [k]


class Data(NamedTuple):
    """What heads are fitted to; every lane has its own weight for each bag and its own penalty."""

    tokens: Any  # [rows, width, dim]
    square: Any  # [rows, width]
    inside: Any  # [rows, width]
    bag: Any  # [rows]
    target: Any  # [bags, k]
    weight: Any  # [lane, bags]
    penalty: Any  # [lane]


def respond(heads: Heads, data: Data) -> Float[Array, "bags lane k"]:
    """What the heads say of each bag; scores and values come of one product, and one sum over a bag holds both parts of its mean."""
    both = jnp.einsum(
        "rwd,ahdk->rwahk", data.tokens, jnp.concatenate([heads.select[..., None], heads.value], -1)
    )
    scores = both[..., 0] + data.square[..., None, None] * heads.norm
    inside, bags = data.inside[..., None, None], data.target.shape[0]
    top = jax.ops.segment_max(
        jnp.where(inside, scores, -jnp.inf).max(1), data.bag, bags, indices_are_sorted=True
    )
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    powers = jnp.where(inside, jnp.exp(scores - top[data.bag][:, None]), 0)[..., None]
    parts = jnp.concatenate([powers, powers * both[..., 1:]], -1).sum(1)
    sums = jax.ops.segment_sum(parts, data.bag, bags, indices_are_sorted=True)
    below = sums[..., :1]
    return heads.offset + (sums[..., 1:] / jnp.where(below > 0, below, 1)).sum(2)


def squared_loss(
    y: Float[Array, "bags lane k"], target: Float[Array, "bags k"]
) -> Float[Array, "bags lane"]:
    return ((y - target[:, None]) ** 2).sum(-1)


def logistic_loss(
    y: Float[Array, "bags lane k"], target: Float[Array, "bags k"]
) -> Float[Array, "bags lane"]:
    """Cross-entropy: of one logit with a target of 0 or 1, or of k logits with a target that is 1 in one place."""
    if y.shape[-1] == 1:
        return (jax.nn.softplus(y) - target[:, None] * y)[..., 0]
    return jax.nn.logsumexp(y, -1) - (target[:, None] * y).sum(-1)


def squared_objective(heads: Heads, data: Data) -> Float[Array, " lane"]:
    return _penalised(squared_loss, heads, data)


def logistic_objective(heads: Heads, data: Data) -> Float[Array, " lane"]:
    return _penalised(logistic_loss, heads, data)


def _penalised(loss: Any, heads: Heads, data: Data) -> Array:
    fit = (loss(respond(heads, data), data.target) * data.weight.T).sum(0)
    size = sum(
        (x**2).reshape(x.shape[0], -1).sum(-1) for x in (heads.select, heads.norm, heads.value)
    )
    return fit + data.penalty * size


# --- starts ----------------------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """`first` is the mean of target times instance; `low` and `high` are the eigenvectors at the ends of the spectrum of the mean of target times
    squared instance, `size` the larger of their eigenvalues, and `product` that matrix times a vector."""

    first: Float[np.ndarray, " dim"]
    low: Float[np.ndarray, " dim"]
    high: Float[np.ndarray, " dim"]
    size: float
    product: Callable[[np.ndarray], np.ndarray]


def moments(
    bags: Bags, target: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> Moments:
    r"""$E[Y\bar X]$ and $E[Y\,\overline{XX^\top}]$, with bars for means over the instances of a bag and Y centred."""
    tokens = bags.tokens.reshape(-1, bags.tokens.shape[-1])
    centred = target - weight @ target / weight.sum()
    counts = (np.append(weight * centred, 0)[bags.bag][:, None] * bags.share).ravel() / weight.sum()
    if tokens.shape[1] <= WIDE:
        matrix = (tokens * counts[:, None]).T @ tokens
        values, vectors = np.linalg.eigh(matrix)
        return Moments(
            tokens.T @ counts,
            vectors[:, 0],
            vectors[:, -1],
            float(abs(values).max()),
            lambda x: matrix @ x,
        )

    def product(x: np.ndarray) -> np.ndarray:
        return tokens.T @ (counts * (tokens @ x))

    operator = LinearOperator((tokens.shape[1],) * 2, matvec=product, dtype=float)
    values, vectors = eigsh(operator, 2, which="BE", v0=np.ones(tokens.shape[1]), tol=1e-6)
    return Moments(
        tokens.T @ counts, vectors[:, 0], vectors[:, -1], float(abs(values).max()), product
    )


def start_pairs(
    found: Moments, rng: np.random.Generator, dim: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    r"""Pairs (u, v) from which to begin. "moments": of the eigenvectors $(k \pm v)/\sqrt2$, v is the sum or difference nearer to the first moment; "swapped":
    the same with u and v exchanged, the solution that a gate without a sign would not tell apart; "same direction": what selects is what speaks, as
    where the largest instance decides; "all alike": the mean of the bag; and two at random, of which the first `dim` coordinates are not 0."""
    first = _unit(found.first)
    one, other = _unit(found.high + found.low), _unit(found.high - found.low)
    v, k = (one, other) if abs(one @ first) >= abs(other @ first) else (other, one)
    v = v if v @ first >= 0 else -v
    k = k if k @ found.product(v) >= 0 else -k
    drawn = [_unit(np.pad(rng.normal(size=dim), (0, len(first) - dim))) for _ in range(4)]
    pairs = {
        "moments": (k, v),
        "swapped": (v, k),
        "same direction": (first, first),
        "all alike": (0 * first, first),
        "first at random": (drawn[0], drawn[1]),
        "second at random": (drawn[2], drawn[3]),
    }
    return {name: (SHARPNESS * u, v) for name, (u, v) in pairs.items()}


def _unit(x: np.ndarray) -> np.ndarray:
    return x / max(float(np.linalg.norm(x)), 1e-300)


# --- the fit ---------------------------------------------------------------------------------------------------------

PENALTIES = tuple(10.0 ** np.arange(1, -6, -0.5))
MIDDLE = 5
"""The penalty that is looked at first, and at which starts are compared."""
FOLDS = 5
KEPT = 3
"""Starts at most that are followed at every penalty, unless more are asked for."""
ROUGH = 3
"""How many times fewer trips, and how many times the tolerance, a penalty has to be judged."""
CLOSE = 0.999
"""Correlation of the outputs from which on two starts have found the same function."""
SHUFFLES = 9
"""Shuffled targets by which it is judged how large a moment is without any reason."""
GAIN = 0.02
"""Share of the held-out loss by which a further head must lower it."""
REST = "what the others leave"
"""The start of a head that is fitted together with others."""
MOST = 4
"""Heads that are fitted together, unless more are asked for."""


@dataclass(frozen=True)
class Selection:
    """Heads fitted to bags, and how that went: `loss` is the mean loss of bags that were held out, `held_out` that for one head and for
    several at each penalty looked at, `starts` the penalised loss that each start came to on all bags, `alike` the correlation of what was found from
    the moments with what was found from them with exchanged roles, `chosen` the starts that became heads, and `aside` what is said of each bag by heads
    that were fitted without its fold."""

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
    aside: Float[np.ndarray, "n k"]

    @property
    def together(self) -> bool:
        """Whether several heads were fitted together, rather than one, or several one by one and averaged."""
        return REST in self.chosen

    @property
    def loudness(self) -> Float[np.ndarray, " h"]:
        """The share of each head in what is said: the size of its value."""
        size = np.linalg.norm(self.heads.value, axis=(1, 2))
        return size / size.sum() if size.any() else np.full(len(size), 1 / len(size))

    def attention(self, instances: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Weights [length, h] of the instances of each bag; those of a head sum to 1."""
        x, first = self._scaled(instances)
        return np.split(self._weights(x, first), first[1:])

    def respond(self, instances: Sequence[np.ndarray]) -> Float[np.ndarray, "n k"]:
        """The fitted function of each bag, in the units of the target."""
        x, first = self._scaled(instances)
        values = np.einsum("nd,hdk->nhk", x, self.heads.value)
        mixed = np.add.reduceat((self._weights(x, first)[..., None] * values).sum(1), first)
        return self.centre + self.spread * (self.heads.offset + mixed)

    def _scaled(self, instances: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.array([len(x) for x in instances])
        flat = np.concatenate(instances)
        return (flat - self.scaling.mean) / self.scaling.deviation, np.cumsum(lengths) - lengths

    def _weights(self, x: Float[np.ndarray, "N d"], first: np.ndarray) -> Float[np.ndarray, "N h"]:
        square = ((x**2).sum(1) - self.scaling.norm_mean) / self.scaling.norm_deviation
        scores = x @ self.heads.select.T + square[:, None] * self.heads.norm
        lengths = np.diff(np.append(first, len(x)))
        powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, first), lengths, 0))
        return powers / np.repeat(np.add.reduceat(powers, first), lengths, 0)


def fit_selection(
    instances: Sequence[np.ndarray],
    target: Float[np.ndarray, "n k"],
    *,
    loss: str = "squared",
    weight: Float[np.ndarray, " n"] | None = None,
    fold: Any = None,
    penalty: float | None = None,
    heads: int | None = None,
    norm: bool = True,
    trips: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Selection:
    """Fit heads to bags [length, dim]; for the "logistic" loss a target is one column of 0 and 1, or k columns of which one is 1.

    Every start is followed on all bags at one penalty, and dropped if it finds the function that a better one has found. The best that are left
    are followed, at every penalty looked at, on all bags and on all but those of a `fold` [n] (0 to 4), for each fold, which begins from moments of
    its own bags; penalties are gone through from the middle one in the direction in which less is lost on the bags held out, in haste and each from where the
    one before ended, and the chosen one to the end. One head is the one that fits best the bags that it is fitted to; the average of all is one model with so
    many heads. Where what one head leaves of the bags held out has a larger moment than chance would give it, every start that is left gets a second head
    that begins on what it leaves, both are fitted together, and so on. The bags held out decide between one, the average and those fitted together, of at
    most `heads` (3 averaged and 4 together if not given). Without `norm` the square norm of an instance does not enter.
    """
    target = np.asarray(target, float)
    weight = np.ones(len(target)) if weight is None else np.asarray(weight, float)
    fold = np.arange(len(target)) % FOLDS if fold is None else np.asarray(fold)
    task = _Task.of(instances, target, loss, weight, fold, norm, trips, tolerance)
    # Every lane has starts of its own: with more features than bags a descent does not forget where it began, and a fold would know its targets.
    pairs = [
        start_pairs(found, np.random.default_rng(seed), instances[0].shape[1])
        for found in task.moments
    ]
    names = list(pairs[-1])
    grid = PENALTIES if penalty is None else (penalty,)
    middle = min(MIDDLE, len(grid) - 1)
    first = task.follow(
        task.begun([[pairs[-1][name]] for name in names]), [weight] * len(names), grid[middle]
    )
    kept = [names[j] for j in _distinct(first.value, first.output)[: heads or KEPT]]
    begin = [[[lane[name]] for lane in pairs] for name in kept]

    seen: dict[int, _Look] = {}

    def look(i: int) -> _Look:
        if i not in seen:
            # Each lane goes on from where it came to at the penalty beside, if that was looked at: it is most often near.
            beside = [seen[j].runs for j in (i - 1, i + 1) if j in seen]
            starts = (
                [run.heads for run in beside[0]]
                if beside
                else [task.begun(pairs) for pairs in begin]
            )
            seen[i] = task.look(
                [task.follow(start, task.shares, grid[i], ROUGH) for start in starts]
            )
        return seen[i]

    i = _lowest(lambda j: look(j).loss, middle, len(grid))
    found = look(i)
    # What was judged in haste is brought to an end.
    ended = [
        task.follow(run.heads, task.shares, grid[i])
        for run in (found.runs if found.averaged else [found.single])
    ]
    lost = task.held_out(np.mean([run.output for run in ended], 0))
    grown, at, origin = _picked(ended, _fittest(ended)), i, kept[found.best[-1]]
    lanes, runs = begin, found.runs
    for _ in range(1, MOST if heads is None else heads):
        if not task.leaves_more(grown.output, seed):
            break
        lanes = [task.extended(pairs, run.output) for pairs, run in zip(lanes, runs, strict=True)]
        runs = [task.follow(task.begun(pairs), task.shares, grid[at]) for pairs in lanes]
        best = _fittest(runs)
        j, more, less = task.descend(
            task.begun([lanes[b][k] for k, b in enumerate(best)]), at, grid
        )
        if less > (1 - GAIN) * lost:
            break
        grown, at, lost, origin = more, j, less, kept[best[-1]]
    added = grown.heads.norm.shape[1] - 1
    runs, members = ([grown], [origin]) if added or not found.averaged else (ended, kept)
    outputs = np.moveaxis(first.output, 1, 0).reshape(len(names), -1)
    return Selection(
        task.joined(runs),
        task.scaling,
        task.centre,
        task.spread,
        float(grid[at]),
        lost,
        {float(grid[j]): (seen[j].one, seen[j].several) for j in sorted(seen)},
        dict(zip(names, first.value.tolist(), strict=True)),
        float(_correlations(outputs)[names.index("moments"), names.index("swapped")]),
        (*members, *[REST] * added),
        all(bool(run.settled[-1]) for run in runs),
        max(int(run.steps[-1]) for run in runs),
        task.centre + task.spread * task.aside(np.mean([run.output for run in runs], 0)),
    )


def _lowest(loss: Callable[[int], float], i: int, size: int) -> int:
    """Downhill from i, which is looked at first, among 0, ..., size - 1."""
    before = -1
    while i != before:
        before, i = i, min((j for j in (i, i - 1, i + 1) if 0 <= j < size), key=loss)
    return i


def linear_aside(
    instances: Sequence[np.ndarray],
    target: Float[np.ndarray, "n k"],
    weight: Float[np.ndarray, " n"],
    fold: Any,
) -> Float[np.ndarray, "n k"]:
    """What the best linear predictor says of each bag without its fold: ridge regression on the mean of the bag, with the penalty at which the
    squared error is least."""
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
    errors = np.einsum("n,ink->i", weight, (said - target) ** 2)
    return said[int(np.argmin(errors))]


class _Run(NamedTuple):
    """Where the lanes from one start came to, and what they say of every bag."""

    heads: Heads
    value: Float[np.ndarray, " lane"]
    settled: Any  # [lane]
    steps: Any  # [lane]
    output: Float[np.ndarray, "n lane k"]


class _Look(NamedTuple):
    """All starts at one penalty: which fits best in each lane, those lanes together, and what is lost on bags held out by them and by the average."""

    runs: list[_Run]
    best: list[int]
    single: _Run
    one: float
    several: float

    @property
    def loss(self) -> float:
        return min(self.one, self.several)

    @property
    def averaged(self) -> bool:
        return self.several < self.one


def _fittest(runs: Sequence[_Run]) -> list[int]:
    """In each lane the run that fits best: a lane knows its own bags only."""
    return np.argmin([run.value for run in runs], 0).tolist()


def _picked(runs: Sequence[_Run], best: Sequence[int]) -> _Run:
    """Each lane of the run that is best in it."""
    taken = [(runs[b], k) for k, b in enumerate(best)]
    return _Run(
        jax.tree.map(
            lambda *x: np.stack([x[b][k] for k, b in enumerate(best)]), *(run.heads for run in runs)
        ),
        np.array([run.value[k] for run, k in taken]),
        np.array([run.settled[k] for run, k in taken]),
        np.array([run.steps[k] for run, k in taken]),
        np.stack([run.output[:, k] for run, k in taken], 1),
    )


def _distinct(value: np.ndarray, output: Float[np.ndarray, "n lane k"]) -> list[int]:
    """The lanes in order of their value, without those whose output is nearly that of one before."""
    alike = _correlations(np.moveaxis(output, 1, 0).reshape(len(value), -1)) > CLOSE
    kept: list[int] = []
    for lane in np.argsort(np.where(np.isfinite(value), value, np.inf), kind="stable").tolist():
        if not alike[lane, kept].any():
            kept.append(lane)
    return kept


def _correlations(rows: Float[np.ndarray, "lane n"]) -> Float[np.ndarray, "lane lane"]:
    centred = rows - rows.mean(1, keepdims=True)
    size = np.maximum(np.linalg.norm(centred, axis=1), 1e-150)
    return centred @ centred.T / np.outer(size, size)


def moment_ratio(
    bags: Bags,
    target: Float[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
    seed: int,
    shuffles: int = SHUFFLES,
) -> float:
    """The moment's largest eigenvalue over the largest for shuffled targets; without limit where every bag has one instance."""
    if bags.lengths.max() == 1 or len(target) < 3:
        return float("inf")
    if not np.ptp(target):
        return 0.0
    rng = np.random.default_rng(seed)
    chance = [moments(bags, rng.permutation(target), weight).size for _ in range(shuffles)]
    return moments(bags, target, weight).size / max(*chance, 1e-300)


@dataclass(frozen=True)
class _Task:
    """Scaled and padded bags with their targets."""

    scaling: Scaling
    bags: Bags
    square: np.ndarray
    target: Float[np.ndarray, "n k"]  # scaled
    centre: np.ndarray
    spread: float
    loss: str
    weight: np.ndarray
    fold: np.ndarray
    trips: int
    tolerance: float

    @classmethod
    def of(
        cls,
        instances: Any,
        target: np.ndarray,
        loss: str,
        weight: np.ndarray,
        fold: np.ndarray,
        norm: bool,
        trips: int,
        tolerance: float,
    ) -> "_Task":
        if loss not in LOSSES:
            raise InputError(
                f"loss = {loss!r}: it must be {' or '.join(LOSSES)}.{near(loss, LOSSES)}"
            )
        scaling = Scaling.of(instances, weight)
        bags, square = scaling(instances, bucket(instances[0].shape[1]))
        centre, spread = np.zeros(target.shape[1]), 1.0
        if loss == "squared":
            share = weight / weight.sum()
            centre = share @ target
            spread = float(np.sqrt(share @ ((target - centre) ** 2).sum(1))) or 1.0
        return cls(
            scaling,
            bags,
            square if norm else 0 * square,
            (target - centre) / spread,
            centre,
            spread,
            loss,
            weight,
            fold,
            trips,
            tolerance,
        )

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
        """Weights without each fold, and with all bags."""
        rest = [np.where(self.fold == k, 0, self.weight) for k in range(FOLDS)]
        return [w if w.any() else self.weight for w in (*rest, self.weight)]

    @functools.cached_property
    def padded(self) -> Data:
        """In single precision, without weights and penalties."""
        size = bucket(len(self.target) + 1) - len(self.target)
        target = np.pad(self.target, ((0, size), (0, 0)))
        with jax.enable_x64(False):
            tokens, square, bag, padded = map(
                jnp.asarray, (self.bags.tokens, self.square, self.bags.bag, target)
            )
        return Data(tokens, square, self.bags.share > 0, bag, padded, None, None)

    def begun(self, lanes: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]]) -> Heads:
        """In each lane a head for each of its pairs (u, v)."""
        return Heads(
            np.array([[u for u, _ in pairs] for pairs in lanes], np.float32),
            np.zeros((len(lanes), len(lanes[0])), np.float32),
            0.3
            * np.array(
                [[v[:, None] * self.direction for _, v in pairs] for pairs in lanes], np.float32
            ),
            np.zeros((len(lanes), self.target.shape[1]), np.float32),
        )

    def left(self, output: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
        """What the output leaves of the targets: the slope down which the loss falls."""
        with jax.enable_x64(True):
            target = jnp.asarray(self.target)
            slope = jax.grad(lambda y: LOSSES[self.loss][0](y[:, None], target).sum())(
                jnp.asarray(output)
            )
        return -np.asarray(slope) @ self.direction

    def leaves_more(self, output: Float[np.ndarray, "n lane k"], seed: int) -> bool:
        """Whether what is left of the bags held out has a larger moment than chance would give it."""
        if self.bags.lengths.max() == 1:
            return False
        rng, left = np.random.default_rng(seed), self.left(self.aside(output))
        size = moments(self.bags, left, self.weight).size
        return all(
            moments(self.bags, rng.permutation(left), self.weight).size < size
            for _ in range(SHUFFLES)
        )

    def extended(
        self, lanes: Sequence[list[Any]], output: Float[np.ndarray, "n lane k"]
    ) -> list[list[Any]]:
        """The pairs of each lane, and one more from which to begin on what the lane leaves of its own bags."""
        found = [
            moments(self.bags, self.left(output[:, k]), share)
            for k, share in enumerate(self.shares)
        ]
        rest = [
            start_pairs(m, np.random.default_rng(0), len(self.scaling.mean))["moments"]
            for m in found
        ]
        return [[*pairs, pair] for pairs, pair in zip(lanes, rest, strict=True)]

    def follow(
        self, start: Heads, weights: Sequence[np.ndarray], penalty: float, haste: int = 1
    ) -> _Run:
        """Each lane from its start, with its own weights; in haste, with fewer trips and a larger tolerance by that factor."""
        n, size = len(self.target), len(self.padded.target) - len(self.target)
        data = self.padded._replace(
            weight=np.pad([w / w.sum() for w in weights], ((0, 0), (0, size))).astype(np.float32),
            penalty=np.full(len(weights), penalty, np.float32),
        )
        with jax.enable_x64(False):
            found = minimise(
                LOSSES[self.loss][1],
                start,
                data,
                trips=-(-self.trips // haste),
                tolerance=self.tolerance * haste,
            )
            output = np.asarray(_respond(found.point, data), float)[:n]
        return _Run(found.point, found.value, found.settled, found.steps, output)

    def descend(self, start: Heads, i: int, grid: Sequence[float]) -> tuple[int, _Run, float]:
        """Without each fold and with all bags, at the penalty near grid[i] at which least is lost on the bags held out."""
        runs = functools.cache(lambda j: self.follow(start, self.shares, grid[j]))
        j = _lowest(lambda j: self.held_out(runs(j).output), i, len(grid))
        return j, runs(j), self.held_out(runs(j).output)

    def look(self, runs: list[_Run]) -> _Look:
        best = _fittest(runs)
        one = _picked(runs, best)
        return _Look(
            runs,
            best,
            one,
            self.held_out(one.output),
            self.held_out(np.mean([r.output for r in runs], 0)),
        )

    def held_out(self, output: Float[np.ndarray, "n lane k"]) -> float:
        """The mean loss of each bag in the lane of its fold."""
        with jax.enable_x64(True):
            losses = np.asarray(LOSSES[self.loss][0](jnp.asarray(output), jnp.asarray(self.target)))
        return float(self.weight @ self.aside(losses) / self.weight.sum())

    def aside(self, x: np.ndarray) -> np.ndarray:
        """Of each bag what the lane without its fold has: [n, ...] of [n, lane, ...]."""
        return x[np.arange(len(x)), self.fold]

    def joined(self, runs: Sequence[_Run]) -> Heads:
        """One model of the heads that were fitted to all bags, runs averaged, without the padding."""
        dim = len(self.scaling.mean)
        parts = [jax.tree.map(lambda x: np.asarray(x[-1], float), run.heads) for run in runs]
        select, norm, value = (
            np.concatenate(x) for x in zip(*(part[:3] for part in parts), strict=True)
        )
        return Heads(
            select[:, :dim],
            norm,
            value[:, :dim] / len(runs),
            np.mean([part.offset for part in parts], 0),
        )


LOSSES: dict[str, tuple[Any, Any]] = {
    "squared": (squared_loss, squared_objective),
    "logistic": (logistic_loss, logistic_objective),
}
_respond = jax.jit(respond)
