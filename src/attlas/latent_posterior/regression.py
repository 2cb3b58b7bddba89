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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from attlas.errors import InputError, near
from attlas.kernels import CME, RBF, Kernel, Linear, fit_cme
from attlas.kernels.fit import kernel_matrix, pivoted_cholesky
from attlas.latent_posterior.laws import (
    CHOICE_ROWS,
    GRID,
    PARSIMONY,
    Law,
    attend,
    choose_law,
    median_square,
)
from attlas.latent_posterior.laws import spaced as _spaced
from attlas.latent_posterior.laws import squared_distances as _squares
from attlas.latent_posterior.relevance import fit_lengths
from attlas.progress import told

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
LAW_ROWS = 1024
"""Rows at most that the law is made of."""
MAX_FOLDED, FOLDS = 300, 5
"""Rows up to which the level of intervals comes from folds, and folds."""
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
    close: float | None = None,
) -> Choice:
    """Choose the temperature and the ridge, unless given, by the largest value of a criterion.

    Arguments:
    - `keys`, `target`, `weight`: the rows; `MAX_ROWS` of them are used.
    - `how`: "evidence", or "loo" for the leave-one-out likelihood.
    - `kernel`: a class; only `RBF` has a temperature to choose, around the median squared distance
      by factors of 4, then 2, then 1.4. Ridges go by quarters of a power of ten.
    - `close`: a temperature within a factor of 3 of which the best is known to lie.
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
    elif temperature is None and close is not None:
        temperature = _refined(close, lambda t: attempt(t)[0])
    elif temperature is None:
        few, least = MAX_ROWS if len(keys) <= MAX_SPECTRUM else ROUGH_ROWS, near_square(keys) / 2
        temperature = _least(
            keys,
            [k for k in range(-6, 3) if median_square(keys) * 4.0**k >= least] or [0],
            lambda t: attempt(t)[0] if t >= least else np.inf,
            lambda t: attempt(t, few)[0],
        )
    return attempt(float(temperature))[1]


def _least(
    keys: Keys,
    powers: Iterable[int],
    loss: Callable[[float], float],
    roughly: Callable[[float], float] | None = None,
) -> float:
    """The temperature of least loss around the median squared distance, by factors of 4, for which
    `roughly` the loss will do, then 2, then 1.4."""
    middle = median_square(keys)
    return _refined(min((middle * 4.0**k for k in powers), key=roughly or loss), loss)


def _refined(t: float, loss: Callable[[float], float]) -> float:
    """The temperature of least loss near one."""
    for factor in (2.0, 2**0.5):
        t = min((t / factor, t, t * factor), key=loss)
    return t


def near_square(keys: Keys) -> float:
    """The median, over at most 500 rows, of the squared distance to the nearest other row. A kernel
    that is much narrower says nothing of most new rows, however well it explains the few that are
    nearly repeated."""
    some = keys[_spaced(keys, 500)]
    squares = _squares(some, keys)
    # Itself is the nearest of all.
    return float(np.median(np.partition(squares, 1, axis=1)[:, 1])) if len(keys) > 1 else 0.0


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
class Regression:
    """Attention over rows as a regression of a number, with the law of the target at any query.

    Keys, those of the law too, are divided by `lengths`: a bandwidth for each feature, relative to
    the least, or 1 for all.
    """

    lengths: Float[np.ndarray, " d"]
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
    likelihood: float
    """The mean logarithm of the density of a target without its row."""

    def mean(self, queries: Queries) -> Answers:
        if self.cme is not None:
            return self.centre + self.cme.mean(_ones(queries / self.lengths))[:, 0]
        return _by_blocks(lambda q: self.attention(q) @ self.target, len(self.keys), queries)

    def attention(self, queries: Queries) -> Shares:
        """What each row counts for: the mean is the centre plus the sum of weight times target
        less centre. CME's weights are signed; those of softmax attention sum to 1."""
        queries = queries / self.lengths
        if self.cme is None:
            return attend(_squares(queries, self.keys), self.weight, self.temperature)
        root = np.sqrt(self.weight)
        return self.cme.weights(_ones(queries), np.column_stack([self.keys, root])) * root

    def spread(self, queries: Queries) -> Answers:
        """The standard deviation of a target."""
        queries = queries / self.lengths
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
        return self._of_law(self.law.log_density, queries, z) - np.log(spread)

    def distribution(self, queries: Queries, target: Answers) -> Answers:
        """The probability of a target no larger."""
        z = (np.asarray(target, float) - self.mean(queries)) / self.spread(queries)
        return self._of_law(self.law.distribution, queries, z)

    def quantile(self, queries: Queries, levels: Levels) -> Float[np.ndarray, "q k"]:
        """Quantiles of the target at each query."""
        columns = max(len(levels), len(GRID))
        z = self._of_law(lambda q: self.law.quantile(q, levels), queries, columns=columns)
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
        z = self._of_law(self.law.draw, queries, *numbers)
        return self.mean(queries)[:, None] + self.spread(queries)[:, None] * z

    def _of_law(
        self, function: Callable[..., Any], queries: Queries, *more: Any, columns: int = 1
    ) -> Any:
        """A function of the law, which knows scaled queries, by blocks."""
        return _by_blocks(function, columns * len(self.law.keys), queries / self.lengths, *more)


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
    relevance: bool = True,
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
    - `relevance`: whether each feature may have a bandwidth of its own, where the temperature is
      not given and the kernel of "cme" is `RBF`.
    - `method`, `tolerance`: of `fit_cme`.
    """
    keys, target = np.asarray(keys, float), np.asarray(target, float)
    weight = np.ones(len(keys)) if weight is None else np.asarray(weight, float)
    choice = {"how": select, "kernel": kernel, "ridge": ridge}
    solver = {"method": method, "tolerance": tolerance}
    options = (attention, temperature, relevance, choice, solver)
    found = told(_fit(keys, target, weight, *options), lambda x: f"all rows: {_summary(x)}")
    if not 2 * FOLDS <= len(keys) <= MAX_FOLDED:
        return found
    central, fold = np.empty(len(keys)), np.arange(len(keys)) % FOLDS
    for k in range(FOLDS):
        seen, new = fold != k, fold == k
        without = told(
            _fit(keys[seen], target[seen], weight[seen], *options),
            lambda x, k: f"without part {k + 1} of {FOLDS}, for intervals: {_summary(x)}",
            k,
        )
        central[new] = abs(2 * without.distribution(keys[new], target[new]) - 1)
    return replace(found, law=replace(found.law, central=central))


def _summary(found: Regression) -> str:
    return (
        f"temperature {found.temperature:.3g}, ridge {found.ridge:.3g}, mean log-likelihood of rows"
        f" left out {found.likelihood:.4g}"
    )


def _fit(
    keys: Keys,
    target: Column,
    weight: Column,
    attention: str,
    temperature: Any,
    relevance: bool,
    *given: Any,
) -> Regression:
    """`given` are the options of `choose_kernel` and of `fit_cme`. Whether features have bandwidths
    of their own is decided on `CHOICE_ROWS` where there are more than `MAX_SPECTRUM`."""
    one, rows = np.ones(keys.shape[1]), (keys, target, weight)
    fixed = not relevance or temperature is not None or keys.shape[1] < 2
    if fixed or attention != "cme" or given[0]["kernel"] is not RBF:
        return _fit_scaled(one, *rows, attention, temperature, None, *given)
    all_ = len(keys) <= MAX_SPECTRUM
    some = slice(None) if all_ else _spaced(keys, CHOICE_ROWS)
    part: Any = [x[some] for x in rows]
    found = _fit_scaled(one, *part, attention, None, None, *given)
    centred = part[1] - found.centre
    lengths = fit_lengths(part[0], centred, part[2], found.temperature, found.ridge)
    if lengths is not None:
        how = (attention, None, float(lengths.min()) ** 2, *given)
        lengths = lengths / lengths.min()
        other = told(
            _fit_scaled(lengths, *part, *how),
            lambda x: f"with a bandwidth for each feature: {_summary(x)}",
        )
        gained = (other.likelihood - found.likelihood) * part[2].sum()
        if gained > PARSIMONY + len(lengths):
            return other if all_ else _fit_scaled(lengths, *rows, *how)
    return found if all_ else _fit_scaled(one, *rows, attention, None, None, *given)


def _fit_scaled(
    lengths: np.ndarray,
    keys: Keys,
    target: Column,
    weight: Column,
    attention: str,
    temperature: Any,
    close: float | None,
    *given: Any,
) -> Regression:
    """On keys divided by `lengths`; `close` as in `choose_kernel`."""
    keys = keys / lengths
    centre = float(weight @ target / weight.sum())
    some = _spaced(keys, LAW_ROWS)
    if attention == "softmax":
        temperature = choose_softmax(keys, target, weight) if temperature is None else temperature
        squares = _squares(keys[some], keys[some])
        shares = attend(squares, weight[some], temperature, aside=True)
        left = target[some] - shares @ target[some]
        deviation = float(np.sqrt(weight[some] @ left**2 / weight[some].sum())) or 1.0
        spread, ridge, cme = np.full(len(some), deviation), float("nan"), None
    elif attention == "cme":
        choice, solver = given
        chosen = choose_kernel(
            keys, target - centre, weight, temperature=temperature, close=close, **choice
        )
        kernel, temperature, ridge, prior = chosen
        root, deviation = np.sqrt(weight), prior**0.5
        rooted, values = np.column_stack([keys, root]), (root * (target - centre))[:, None]
        cme = fit_cme(rooted, values, ridge=ridge, kernel=Weighted(kernel), **solver)
        spare = _variance(cme, keys[some]) - ridge
        leverage = np.clip(weight[some] * spare / ridge, 0, 1 - 1e-9)
        left = (target[some] - centre - cme.mean(_ones(keys[some]))[:, 0]) / (1 - leverage)
        variance = np.maximum(ridge + np.maximum(spare, 0) / (1 - leverage), 1e-300)
        spread = deviation * np.sqrt(variance)
    else:
        raise InputError(
            f"attention = {attention!r}: it must be cme or "
            f"softmax.{near(attention, ('cme', 'softmax'))}"
        )
    law = choose_law(keys[some], left / spread, weight[some])
    likelihood = law.likelihood - float(weight[some] @ np.log(spread) / weight[some].sum())
    return Regression(
        lengths,
        keys,
        target,
        weight,
        centre,
        float(temperature),
        float(ridge),
        deviation,
        cme,
        law,
        left,
        likelihood,
    )
