"""The law of standardised residuals by softmax attention over the rows: a local scale, and a local
shape of mean 0 and variance 1."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import special

Keys = Float[np.ndarray, "n d"]
Column = Float[np.ndarray, " n"]
Queries = Float[np.ndarray, "q d"]
Answers = Float[np.ndarray, " q"]
Levels = Float[np.ndarray, " k"]
Shares = Float[np.ndarray, "q n"]

CHOICE_ROWS = 600
"""Rows at most on which the law is chosen."""
SPREADS = (np.inf, 4.0, 1.0, 1 / 4, 1 / 16, 1 / 64, 1 / 256)
SMOOTHINGS = (0.7, 0.5, 0.35, 0.25, 0.15)
"""Temperatures of the law, in units of the median squared distance, and smoothings; 1 is the
Gaussian."""
PARSIMONY = 3.0
"""Log likelihood by which a law that is not Gaussian must be better to be chosen."""


def spaced(rows: np.ndarray, most: int) -> Int[np.ndarray, " m"]:
    """Places of at most so many of the rows, evenly spaced."""
    return np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)


def median_square(keys: Keys) -> float:
    """The median squared distance of two different rows, of at most 500."""
    some = keys[spaced(keys, 500)]
    squares = squared_distances(some, some)
    apart = squares[squares > 1e-12 * max(squares.max(), 1e-300)]
    return float(np.median(apart)) if apart.size else 1.0


def squared_distances(x: Keys, y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
    return np.maximum((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T, 0)


def attend(squares: Shares, weight: Column, temperature: float, aside: bool = False) -> Shares:
    r"""Softmax attention, $p_i \propto w_ie^{-|q - x_i|^2/2\,\text{temperature}}$.

    Arguments:
        squares: $|q - x_i|^2$, [q, n].
        weight: $w$ of the rows, [n].
        temperature: in the units of `squares`; infinite gives every row its share of the weight.
        aside: the queries are the rows, and each attends to the others, if there are any.

    Returns: shares [q, n] that sum to 1.
    """
    scores = np.log(weight) - squares / (2 * temperature)
    if aside and len(weight) > 1:  # a single row has no others
        np.fill_diagonal(scores, -np.inf)
    return special.softmax(scores, axis=1)


@dataclass(frozen=True)
class Law:
    """The law of a standardised residual at any query: a local scale, and a local shape of mean
    0 and variance 1."""

    keys: Keys
    squared: Column  # z_i²
    shape: Column  # r_i
    weight: Column
    scale_temperature: float
    shape_temperature: float
    smoothing: float
    central: Column  # |2u_i - 1|, of laws without row i
    likelihood: float
    """The mean logarithm of the density of a residual without its row."""

    @property
    def gaussian(self) -> bool:
        return self.smoothing == 1

    def scale(self, queries: Queries) -> Answers:
        """c(q)."""
        shares = attend(squared_distances(queries, self.keys), self.weight, self.scale_temperature)
        return _local_scale(shares, self.squared, self.weight)

    def mixture(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Weights and centres [q, m] of normal laws with the deviation `smoothing`."""
        shares = attend(squared_distances(queries, self.keys), self.weight, self.shape_temperature)
        return shares, _centres(shares, self.shape, self.smoothing)

    def log_density(self, queries: Queries, z: Answers) -> Answers:
        if self.gaussian:
            return -(z**2 + np.log(2 * np.pi)) / 2
        (shares, centres), h = self.mixture(queries), self.smoothing
        apart = (z[:, None] - centres) / h
        return special.logsumexp(-(apart**2) / 2, axis=1, b=shares) - np.log(h * np.sqrt(2 * np.pi))

    def distribution(self, queries: Queries, z: Answers) -> Answers:
        if self.gaussian:
            return special.ndtr(z)
        return _cumulated(*self.mixture(queries), self.smoothing, z[:, None])[:, 0]

    def quantile(self, queries: Queries, levels: Levels) -> Float[np.ndarray, "q k"]:
        if self.gaussian:
            return np.broadcast_to(special.ndtri(levels), (len(queries), len(levels)))
        return _inverted(*self.mixture(queries), self.smoothing, levels)

    def draw(self, queries: Queries, normal: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Residuals from normal and uniform numbers [q, count], the latter for the centres."""
        if self.gaussian:
            return normal
        shares, centres = self.mixture(queries)
        heights = np.cumsum(shares, 1)
        places = [np.searchsorted(h, u * h[-1]) for h, u in zip(heights, uniform, strict=True)]
        return np.take_along_axis(centres, np.array(places), 1) + self.smoothing * normal

    def level(self, coverage: float) -> float:
        """The t of the central interval that holds `coverage` of the targets left out: the
        quantile of `central` with ranks k / (n + 1), straight lines between them and to 0 and 1
        at the ends, so that few rows leave every interval finite."""
        order = np.argsort(self.central, kind="stable")
        weight = self.weight[order]
        last = np.cumsum(weight)
        first = last - weight + np.minimum(weight, 1)  # a row of weight w has w ranks
        ranks = np.column_stack([first, last]).ravel() / (last[-1] + 1)
        levels = [0, *np.repeat(self.central[order], 2), 1]
        return float(np.interp(coverage, [0, *ranks, 1], levels))


def _local_scale(shares: np.ndarray, squared: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The root of the local mean of squares, drawn towards the mean of all by one row's worth,
    on the scale of logarithms."""
    total = max(float(weight @ squared / weight.sum()), 1e-300)
    rows = 1 / np.maximum((shares**2).sum(1), 1e-300)
    local = np.log(np.maximum(shares @ squared, 1e-8 * total))
    return np.exp((rows * local + np.log(total)) / (rows + 1) / 2)


def _centres(shares: Shares, shape: Column, smoothing: float) -> Shares:
    mean = shares @ shape
    variance = np.maximum(shares @ shape**2 - mean**2, 1e-8)
    return (shape - mean[:, None]) * np.sqrt((1 - smoothing**2) / variance)[:, None]


def choose_law(keys: Keys, residual: Column, weight: Column) -> Law:
    """The law of standardised leave-one-out residuals that maximises their leave-one-out
    likelihood."""
    some = spaced(keys, CHOICE_ROWS)
    everywhere, middle = squared_distances(keys, keys), median_square(keys)
    squares, z, w = everywhere[np.ix_(some, some)], residual[some], weight[some]

    def scaled(spread: float) -> np.ndarray:
        return _local_scale(attend(squares, w, spread * middle, aside=True), z**2, w)

    def gaussian(spread: float) -> float:
        scale = scaled(spread)
        return float(w @ (np.log(scale) + (z / scale) ** 2 / 2))

    spread = min(SPREADS, key=gaussian)
    r = z / scaled(spread)
    best = (float(w @ (r**2 + np.log(2 * np.pi)) / 2) - PARSIMONY, np.inf, 1.0)
    for width in SPREADS[:5]:
        shares = attend(squares, w, width * middle, aside=True)
        for smoothing in SMOOTHINGS:
            apart = (r[:, None] - _centres(shares, r, smoothing)) / smoothing
            density = (shares * np.exp(-(apart**2) / 2)).sum(1) / (smoothing * np.sqrt(2 * np.pi))
            best = min(best, (float(-w @ np.log(np.maximum(density, 1e-30))), width, smoothing))
    lost, width, smoothing = best
    lost += PARSIMONY * (smoothing == 1)
    likelihood = -(lost + float(w @ np.log(scaled(spread)))) / w.sum()
    shares = attend(everywhere, weight, spread * middle, aside=True)
    r = residual / _local_scale(shares, residual**2, weight)
    if smoothing == 1:
        u = special.ndtr(r)
    else:
        shares = attend(everywhere, weight, width * middle, aside=True)
        u = _cumulated(shares, _centres(shares, r, smoothing), smoothing, r[:, None])[:, 0]
    temperatures = spread * middle, width * middle
    return Law(keys, residual**2, r, weight, *temperatures, smoothing, abs(2 * u - 1), likelihood)


GRID = np.linspace(0, 1, 321)
"""Where quantiles are tried for first, as shares of the range."""


def _cumulated(shares: Shares, centres: Shares, h: float, z: np.ndarray) -> np.ndarray:
    return np.einsum("qm,qkm->qk", shares, special.ndtr((z[:, :, None] - centres[:, None, :]) / h))


def _inverted(shares: Shares, centres: Shares, h: float, levels: Levels) -> np.ndarray:
    """Quantiles by a grid, which ends eight bandwidths outside the centres, and bisection in its
    step."""
    least, most = centres.min(1, keepdims=True) - 8 * h, centres.max(1, keepdims=True) + 8 * h
    grid = least + (most - least) * GRID
    on_grid = _cumulated(shares, centres, h, grid)
    place = np.array(
        [np.clip(np.searchsorted(row, levels) - 1, 0, len(GRID) - 2) for row in on_grid]
    )
    low, high = np.take_along_axis(grid, place, 1), np.take_along_axis(grid, place + 1, 1)
    for _ in range(30):  # the range is wide where tails are heavy
        middle = (low + high) / 2
        under = _cumulated(shares, centres, h, middle) < levels
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return (low + high) / 2
