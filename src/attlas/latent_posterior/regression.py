r"""CME attention as nonparametric regression: kernel and ridge in closed form, and the whole
conditional law.

With weights $W$ of the rows, $m(q) = g_q^\top(G + \text{ridge}\,W^{-1})^{-1}y$. The spectrum of
$W^{1/2}GW^{1/2}$ gives the evidence and every leave-one-out prediction at all ridges at once
(Rasmussen and Williams 2006, Sections 2.3 and 5.4), where a row of weight w counts as w rows.

The law of what is left: $y = m(q) + s(q)c(q)\,r$. The predictive deviation $s(q)$ is that of the
Gaussian process. Standardised leave-one-out residuals $z_i$ say what it misses: softmax attention
over the rows averages $z_i^2$ to the local scale $c(q)^2$, and attention with another temperature
mixes $r_i = z_i/c(x_i)$, brought to mean 0 and variance 1 and smoothed, to the local shape. Both
temperatures and the smoothing maximise the leave-one-out likelihood. Without heteroscedasticity,
skewness or several modes both temperatures are infinite and the smoothing is whole, and the law is
that of the Gaussian process. Softmax weights are a law; CME's are not, being signed.

An interval is a central one of that law, at a level t that its ranks ask for: with $u_i$ the
distribution function at $y_i$ of a law that has not seen row i, $|2u_i - 1| \le t$ says that the
interval between the levels $(1 \pm t)/2$ of that law holds the target, and t is the quantile of
these n numbers with ranks $k/(n + 1)$. For up to `MAX_FOLDED` rows the law is fitted, and all of it
chosen, without each of five folds: choosing on the rows that are left out, one by one, lets
intervals be some percent short. This is distributional conformal prediction (Chernozhukov et al.
2021) across folds: were t taken of laws that had seen neither row, coverage would be exact whatever
the truth; Barber et al. (2021) bound what is lost by folds in their place. Beyond, row i alone is
left out, in closed form.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int
from scipy import special

from attlas.errors import InputError, near
from attlas.kernels import CME, RBF, Kernel, Linear, fit_cme
from attlas.kernels.fit import kernel_matrix, pivoted_cholesky

Keys = Float[np.ndarray, "n d"]
Column = Float[np.ndarray, " n"]
Queries = Float[np.ndarray, "q d"]
Answers = Float[np.ndarray, " q"]
Levels = Float[np.ndarray, " k"]
Ridges = Float[np.ndarray, " k"]
Shares = Float[np.ndarray, "q n"]

RIDGES = tuple(10.0 ** np.arange(-6, 2.25, 0.25))
MAX_SPECTRUM = 800
"""Rows up to which the whole spectrum is computed; beyond, that of `FEATURES` features."""
FEATURES, MAX_ROWS = 400, 10_000
"""Features beyond `MAX_SPECTRUM` rows, and rows at most on which kernel and ridge are chosen."""
ROUGH_ROWS = 400
"""Of more than `MAX_SPECTRUM` rows, those on which temperatures a factor 4 apart are compared."""
LAW_ROWS, CHOICE_ROWS = 1024, 600
"""Rows at most that the law is made of, and on which it is chosen."""
SPREADS = (np.inf, 4.0, 1.0, 1 / 4, 1 / 16, 1 / 64, 1 / 256)
SMOOTHINGS = (0.7, 0.5, 0.35, 0.25, 0.15)
"""Temperatures of the law, in units of the median squared distance, and smoothings; 1 is the
Gaussian."""
MAX_FOLDED, FOLDS = 300, 5
"""Rows up to which the level of intervals comes from folds, and folds."""
PARSIMONY = 3.0
"""Log likelihood by which a law that is not Gaussian must be better to be chosen."""
BLOCK = 1 << 22
"""Numbers that are held at a time."""


class Weighted(eqx.Module):
    r"""$\sqrt{w}\,k(x, x')\sqrt{w'}$ of points whose last coordinate is $\sqrt w$: with values
    $\sqrt w\,v$, CME in which a row of weight w counts as w rows."""

    kernel: Any

    def __call__(self, x: Any, y: Any) -> Array:
        return x[..., :, None, -1] * self.kernel(x[..., :-1], y[..., :-1]) * y[..., None, :, -1]


class Spectrum(NamedTuple):
    r"""$W^{1/2}GW^{1/2} = Q\,\mathrm{diag}(\mu)\,Q^\top$, or its best known part, with the rows'
    weights."""

    values: Float[np.ndarray, " r"]
    vectors: Float[np.ndarray, "n r"]
    weight: Column


def spectrum(kernel: Kernel, keys: Keys, weight: Column) -> Spectrum:
    """Whole for up to `MAX_SPECTRUM` rows; beyond, of the `FEATURES` rows about which the others
    say least (Cholesky with pivots)."""
    root = np.sqrt(weight)[:, None]
    if len(keys) <= MAX_SPECTRUM:
        gram = root * _gram(kernel, keys, keys) * root.T
        values, vectors = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
        return Spectrum(np.maximum(values, 0), vectors, weight)
    pool = keys[_spaced(keys, 2 * FEATURES)]
    order, triangle = pivoted_cholesky(_gram(kernel, pool, pool), 1e-10)
    rank = min(len(order), FEATURES)
    cross = root * _gram(kernel, keys, pool[order[:rank]])
    features = scipy.linalg.solve_triangular(
        triangle[:rank, :rank], cross.T, lower=True, check_finite=False
    ).T
    values, turned = scipy.linalg.eigh(features.T @ features, driver="evd", check_finite=False)
    seen = values > 1e-12 * values[-1]
    return Spectrum(values[seen], features @ turned[:, seen] / np.sqrt(values[seen]), weight)


def _gram(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Without a compiled program for the kernels that the estimators have."""
    if isinstance(kernel, RBF):
        squares = _squares(x, y)
        squares *= -0.5 / float(kernel.temperature)
        return np.exp(squares, out=squares)
    if isinstance(kernel, Linear):
        return x @ y.T
    with jax.enable_x64(True):
        return kernel_matrix(kernel, x, y)


def _spaced(rows: np.ndarray, most: int) -> Int[np.ndarray, " m"]:
    """Places of at most so many of the rows, evenly spaced."""
    return np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)


def evidence(found: Spectrum, target: Column, ridges: Ridges) -> tuple[Ridges, Ridges]:
    r"""The log density of the targets at each ridge, with the prior variance $\tau^2$ at which
    it is largest, and that variance:
    $-\frac N2(\ln 2\pi\tau^2 + 1) - \frac12\ln\det(G + \text{ridge}\,I)$,
    $\tau^2 = \frac1N y^\top(G + \text{ridge}\,I)^{-1}y$, with N rows counted by weight."""
    total = found.weight.sum()
    y = np.sqrt(found.weight) * target
    parts = found.vectors.T @ y
    # What the spectrum does not reach has the eigenvalue 0.
    rest = max(float(y @ y - parts @ parts), 0.0)
    lifted = found.values + ridges[:, None]
    prior = np.maximum(((parts**2 / lifted).sum(1) + rest / ridges) / total, 1e-300)
    logdet = np.log(lifted).sum(1) + (total - len(found.values)) * np.log(ridges)
    return -total / 2 * (np.log(2 * np.pi * prior) + 1) - logdet / 2, prior


def leave_one_out(
    found: Spectrum, target: Column, ridges: Ridges
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k n"]]:
    r"""Target less prediction without its row, $(y_i - m_i)/(1 - h_i)$, and the variance of that
    over $\tau^2$, $\text{ridge} + p_i/(1 - h_i)$, at each ridge: with $h_i$ the row's leverage
    and $p_i = \text{ridge}\,h_i/w_i$ the variance of the mean."""
    root = np.sqrt(found.weight)
    share = found.values / (found.values + ridges[:, None])
    fitted = (share * (found.vectors.T @ (root * target))) @ found.vectors.T / root
    leverage = np.minimum(share @ (found.vectors**2).T, 1 - 1e-12)
    left = (target - fitted) / (1 - leverage)
    return left, ridges[:, None] * (1 + leverage / found.weight / (1 - leverage))


def leave_one_out_likelihood(
    found: Spectrum, target: Column, ridges: Ridges
) -> tuple[Ridges, Ridges]:
    """As `evidence`, for the likelihood of each target without its row, up to a constant."""
    left, variance = leave_one_out(found, target, ridges)
    total = found.weight.sum()
    prior = np.maximum((left**2 / variance) @ found.weight / total, 1e-300)
    return -(np.log(variance) @ found.weight + total * np.log(prior)) / 2, prior


CRITERIA = {"evidence": evidence, "loo": leave_one_out_likelihood}


class Choice(NamedTuple):
    """A kernel with its temperature and a ridge, and the prior variance that goes with them."""

    kernel: Kernel
    temperature: float
    ridge: float
    prior: float


def choose_kernel(
    keys: Keys,
    target: Column,
    weight: Column,
    *,
    how: str = "evidence",
    kernel: Any = RBF,
    temperature: float | None = None,
    ridge: float | None = None,
) -> Choice:
    """Choose the temperature and the ridge, unless given, by the largest value of a criterion.

    Arguments:
    - `keys`, `target`, `weight`: the rows; `MAX_ROWS` of them are used.
    - `how`: "evidence", or "loo" for the leave-one-out likelihood.
    - `kernel`: a class; only `RBF` has a temperature to choose, around the median squared distance
      by factors of 4, then 2, then 1.4. Ridges go by quarters of a power of ten.
    """
    if how not in CRITERIA:
        raise InputError(f"select = {how!r}: it must be evidence or loo.{near(how, CRITERIA)}")
    rows = _spaced(keys, MAX_ROWS)
    keys, target, weight = keys[rows], target[rows], weight[rows]
    ridges = np.array(RIDGES if ridge is None else [ridge])

    @functools.cache
    def attempt(t: float, most: int = MAX_ROWS) -> tuple[float, Choice]:
        made, some = kernel(t) if np.isfinite(t) else kernel(), _spaced(keys, most)
        found = spectrum(made, keys[some], weight[some])
        values, priors = CRITERIA[how](found, target[some], ridges)
        i = int(np.argmax(values))
        return -values[i], Choice(made, t, float(ridges[i]), float(priors[i]))

    if kernel is not RBF:
        temperature = float("nan")
    elif temperature is None:
        few = MAX_ROWS if len(keys) <= MAX_SPECTRUM else ROUGH_ROWS
        temperature = _least(
            keys, range(-6, 3), lambda t: attempt(t)[0], lambda t: attempt(t, few)[0]
        )
    return attempt(float(temperature))[1]


def _least(
    keys: Keys,
    powers: range,
    loss: Callable[[float], float],
    roughly: Callable[[float], float] | None = None,
) -> float:
    """The temperature of least loss around the median squared distance, by factors of 4, for which
    `roughly` the loss will do, then 2, then 1.4."""
    middle = median_square(keys)
    t = min((middle * 4.0**k for k in powers), key=roughly or loss)
    for factor in (2.0, 2**0.5):
        t = min((t / factor, t, t * factor), key=loss)
    return t


def median_square(keys: Keys) -> float:
    """The median squared distance of two different rows, of at most 500."""
    some = keys[_spaced(keys, 500)]
    squares = _squares(some, some)
    apart = squares[squares > 1e-12 * max(squares.max(), 1e-300)]
    return float(np.median(apart)) if apart.size else 1.0


def _squares(x: Keys, y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
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


def choose_softmax(keys: Keys, target: Column, weight: Column) -> float:
    """The temperature at which the squared leave-one-out error of softmax attention is least, of
    powers of the square root of 2 around the median squared distance."""
    rows = _spaced(keys, LAW_ROWS)
    keys, target, weight = keys[rows], target[rows], weight[rows]
    squares = _squares(keys, keys)

    @functools.cache
    def lost(t: float) -> float:
        return weight @ (target - attend(squares, weight, t, aside=True) @ target) ** 2

    return float(_least(keys, range(-8, 3), lost))


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

    @property
    def gaussian(self) -> bool:
        return self.smoothing == 1

    def scale(self, queries: Queries) -> Answers:
        """c(q)."""
        shares = attend(_squares(queries, self.keys), self.weight, self.scale_temperature)
        return _local_scale(shares, self.squared, self.weight)

    def mixture(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Weights and centres [q, m] of normal laws with the deviation `smoothing`."""
        shares = attend(_squares(queries, self.keys), self.weight, self.shape_temperature)
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
    some = _spaced(keys, CHOICE_ROWS)
    everywhere, middle = _squares(keys, keys), median_square(keys)
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
    _, width, smoothing = best
    shares = attend(everywhere, weight, spread * middle, aside=True)
    r = residual / _local_scale(shares, residual**2, weight)
    if smoothing == 1:
        u = special.ndtr(r)
    else:
        shares = attend(everywhere, weight, width * middle, aside=True)
        u = _cumulated(shares, _centres(shares, r, smoothing), smoothing, r[:, None])[:, 0]
    temperatures = spread * middle, width * middle
    return Law(keys, residual**2, r, weight, *temperatures, smoothing, abs(2 * u - 1))


@dataclass(frozen=True)
class Regression:
    """Attention over rows as a regression of a number, with the law of the target at any query."""

    keys: Keys
    target: Column
    weight: Column
    centre: float
    temperature: float
    ridge: float  # nan for softmax attention
    deviation: float  # the root of the prior variance, or of the mean squared residual
    cme: CME | None
    law: Law
    aside: Float[np.ndarray, " m"]
    """Leave-one-out residuals of the rows of the law."""

    def mean(self, queries: Queries) -> Answers:
        if self.cme is not None:
            return self.centre + self.cme.mean(_ones(queries))[:, 0]
        return _by_blocks(lambda q: self.attention(q) @ self.target, len(self.keys), queries)

    def attention(self, queries: Queries) -> Shares:
        """What each row counts for: the mean is the centre plus the sum of weight times target
        less centre. CME's weights are signed; those of softmax attention sum to 1."""
        if self.cme is None:
            return attend(_squares(queries, self.keys), self.weight, self.temperature)
        root = np.sqrt(self.weight)
        return self.cme.weights(_ones(queries), np.column_stack([self.keys, root])) * root

    def spread(self, queries: Queries) -> Answers:
        """The standard deviation of a target."""
        scale = _by_blocks(self.law.scale, len(self.law.keys), queries)
        if self.cme is None:
            return self.deviation * scale
        # The variance of the noise bounds it from below, whatever rounding gives.
        variance = np.maximum(_variance(self.cme, queries), self.ridge)
        return self.deviation * np.sqrt(variance) * scale

    def log_density(self, queries: Queries, target: Answers) -> Answers:
        """The logarithm of the density of a target at its query."""
        spread = self.spread(queries)
        z = (np.asarray(target, float) - self.mean(queries)) / spread
        return _by_blocks(self.law.log_density, len(self.law.keys), queries, z) - np.log(spread)

    def distribution(self, queries: Queries, target: Answers) -> Answers:
        """The probability of a target no larger."""
        z = (np.asarray(target, float) - self.mean(queries)) / self.spread(queries)
        return _by_blocks(self.law.distribution, len(self.law.keys), queries, z)

    def quantile(self, queries: Queries, levels: Levels) -> Float[np.ndarray, "q k"]:
        """Quantiles of the target at each query."""
        columns = max(len(levels), len(GRID)) * len(self.law.keys)
        z = _by_blocks(lambda q: self.law.quantile(q, levels), columns, queries)
        return self.mean(queries)[:, None] + self.spread(queries)[:, None] * z

    def interval(self, queries: Queries, coverage: float) -> Float[np.ndarray, "q 2"]:
        """The central interval at each query, at the level that held `coverage` of the rows left
        out."""
        level = self.law.level(coverage)
        return self.quantile(queries, np.array([1 - level, 1 + level]) / 2)

    def draw(
        self, queries: Queries, count: int, rng: np.random.Generator
    ) -> Float[np.ndarray, "q count"]:
        """Independent targets at each query."""
        shape = (len(queries), count)
        numbers = rng.normal(size=shape), rng.random(shape)
        z = _by_blocks(self.law.draw, len(self.law.keys), queries, *numbers)
        return self.mean(queries)[:, None] + self.spread(queries)[:, None] * z


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


def _by_blocks(function: Callable[..., np.ndarray], columns: int, *arrays: np.ndarray) -> Any:
    """`function(*arrays)` by blocks of rows, for each of which there are `columns` numbers."""
    size = max(1, BLOCK // max(columns, 1))
    starts = range(0, len(arrays[0]), size)
    return np.concatenate([function(*(x[i : i + size] for x in arrays)) for i in starts])


def _variance(cme: CME, queries: np.ndarray) -> np.ndarray:
    return _by_blocks(cme.variance, len(cme.basis), _ones(queries))


def _ones(queries: np.ndarray) -> np.ndarray:
    return np.column_stack([queries, np.ones(len(queries))])


def fit_regression(
    keys: Keys,
    target: Column,
    *,
    weight: Column | None = None,
    attention: str = "cme",
    select: str = "evidence",
    kernel: Any = RBF,
    temperature: float | None = None,
    ridge: float | None = None,
    method: str = "auto",
    tolerance: float = 1e-3,
) -> Regression:
    """Regression of targets on keys by attention, with the law of the residuals.

    Arguments:
    - `keys`, `target`, `weight`: a row of weight w counts as w rows. The order of rows must be
      without meaning: where not all can be used, they are taken evenly spaced.
    - `attention`: "cme" or "softmax".
    - `select`: "evidence" or "loo", what chooses the `temperature` and the `ridge` if they are
      None.
    - `kernel`: a class of kernels; only `RBF` has a temperature.
    - `method`, `tolerance`: of `fit_cme`.
    """
    keys, target = np.asarray(keys, float), np.asarray(target, float)
    weight = np.ones(len(keys)) if weight is None else np.asarray(weight, float)
    choice = {"how": select, "kernel": kernel, "ridge": ridge}
    options = (attention, temperature, choice, {"method": method, "tolerance": tolerance})
    found = _fit(keys, target, weight, *options)
    if not 2 * FOLDS <= len(keys) <= MAX_FOLDED:
        return found
    central, fold = np.empty(len(keys)), np.arange(len(keys)) % FOLDS
    for k in range(FOLDS):
        seen, new = fold != k, fold == k
        without = _fit(keys[seen], target[seen], weight[seen], *options)
        central[new] = abs(2 * without.distribution(keys[new], target[new]) - 1)
    return replace(found, law=replace(found.law, central=central))


def _fit(
    keys: Keys, target: Column, weight: Column, attention: str, temperature: Any, *given: Any
) -> Regression:
    """`given` are the options of `choose_kernel` and of `fit_cme`."""
    centre = float(weight @ target / weight.sum())
    some = _spaced(keys, LAW_ROWS)
    if attention == "softmax":
        temperature = choose_softmax(keys, target, weight) if temperature is None else temperature
        squares = _squares(keys[some], keys[some])
        shares = attend(squares, weight[some], temperature, aside=True)
        left = target[some] - shares @ target[some]
        deviation = float(np.sqrt(weight[some] @ left**2 / weight[some].sum())) or 1.0
        z, ridge, cme = left / deviation, float("nan"), None
    elif attention == "cme":
        choice, solver = given
        chosen = choose_kernel(keys, target - centre, weight, temperature=temperature, **choice)
        kernel, temperature, ridge, prior = chosen
        root, deviation = np.sqrt(weight), prior**0.5
        rooted, values = np.column_stack([keys, root]), (root * (target - centre))[:, None]
        cme = fit_cme(rooted, values, ridge=ridge, kernel=Weighted(kernel), **solver)
        spare = _variance(cme, keys[some]) - ridge
        leverage = np.clip(weight[some] * spare / ridge, 0, 1 - 1e-9)
        left = (target[some] - centre - cme.mean(_ones(keys[some]))[:, 0]) / (1 - leverage)
        variance = np.maximum(ridge + np.maximum(spare, 0) / (1 - leverage), 1e-300)
        z = left / (deviation * np.sqrt(variance))
    else:
        raise InputError(
            f"attention = {attention!r}: it must be cme or "
            f"softmax.{near(attention, ('cme', 'softmax'))}"
        )
    law = choose_law(keys[some], z, weight[some])
    return Regression(
        keys, target, weight, centre, float(temperature), float(ridge), deviation, cme, law, left
    )
