r"""Regression by attention over the training rows, with the whole law of the target.

`attlas.latent_posterior.regression.fit_regression` does the work; Zhang et al. 2022 is the theory
of the mean.
"""

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags, check_array
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from attlas.estimators.resampling import (
    checked_weight,
    distinct,
    few_threads,
    seed_of,
    warn_of_shares,
)
from attlas.estimators.saving import Saved
from attlas.kernels import METHODS, RBF, Linear
from attlas.latent_posterior.regression import Regression, fit_regression
from attlas.progress import aloud

KERNELS = {"rbf": RBF, "linear": Linear}


class ConditionalMeanRegressor(Saved, RegressorMixin, BaseEstimator):
    r"""Regression by attention over the training rows: the conditional mean, and the whole
    conditional law.

    The mean is CME attention, $g_q^\top(G + \text{ridge}\,I)^{-1}y$ on standardised features:
    kernel ridge regression, or the mean of a Gaussian process. The law around it is made of
    leave-one-out residuals by softmax attention: its scale varies with the features, and its shape
    may be skewed or have several modes, each only as far as the leave-one-out likelihood asks for
    it; else it is the Gaussian process.

    Where several features matter unequally, each has a bandwidth of its own, chosen by the evidence
    and kept if rows left out are likelier (`relevance_`).

    Do not use it with hundreds of features, for targets with jumps (a boosted forest has them), or
    far outside the training rows, where the mean returns to the mean of all targets and the law can
    only widen. The law is that of one target at a time.

    Parameters
    ----------
    attention : "cme" or "softmax"
        Softmax attention is Nadaraya-Watson regression: a weighted mean of training targets, which
        cannot leave their range.
    kernel : "rbf" or "linear", for "cme"
    temperature : float or None
        The squared bandwidth on standardised features; chosen if None.
    ridge : float or None
        The variance of the noise over that of the prior; chosen if None.
    relevance : bool
        Whether features may have bandwidths of their own, for "cme" with the "rbf" kernel where no
        temperature is given.
    select : "evidence" or "loo"
        What chooses them: the evidence, or the leave-one-out likelihood; softmax attention
        minimises the leave-one-out error.
    method, tol : how the system is solved, as in `attlas.kernels.fit_cme`
        "auto" is exact up to some 10,000 rows, and up to a million uses centres, within `tol`.
    random_state : of the choice of rows to look at where not all are, and of nothing else.
    verbose : bool
        Print a line after each part of a fit.

    Attributes
    ----------
    temperature_, ridge_ : as chosen; the temperature is that of the most relevant feature.
    relevance_ [features] : the least bandwidth over that of each feature, on standardised features:
        1 for the most relevant one, or for all.
    noise_, prior_ : standard deviations of the noise and of the mean, for "cme", before the law's
        scale.
    residuals_ : leave-one-out residuals, at most 1,024.
    regression_ : everything about the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from attlas.estimators import ConditionalMeanRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (200, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=200)
    >>> model = ConditionalMeanRegressor().fit(X, y)
    >>> bool(abs(model.predict([[0.5]])[0] - np.sin(0.5)) < 0.1)
    True
    >>> model.predict_quantile([[0.5]], [0.05, 0.95]).shape
    (1, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "attention": [StrOptions({"cme", "softmax"})],
        "kernel": [StrOptions(set(KERNELS))],
        "temperature": [None, Interval(Real, 0, None, closed="neither")],
        "ridge": [None, Interval(Real, 0, None, closed="neither")],
        "relevance": ["boolean"],
        "select": [StrOptions({"evidence", "loo"})],
        "method": [StrOptions(set(METHODS))],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        *,
        attention: str = "cme",
        kernel: str = "rbf",
        temperature: float | None = None,
        ridge: float | None = None,
        relevance: bool = True,
        select: str = "evidence",
        method: str = "auto",
        tol: float = 1e-3,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.attention = attention
        self.kernel = kernel
        self.temperature = temperature
        self.ridge = ridge
        self.relevance = relevance
        self.select = select
        self.method = method
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "ConditionalMeanRegressor":
        """Fit to rows with a target each.

        Parameters
        ----------
        X : array [n, features]
        y : array [n]
        sample_weight : array [n]
            A row of weight 2 counts as two; copies of a row are one row of more weight, and are
            left out together.
        """
        self._validate_params()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        y = y.astype(np.float64)
        weight, seed = checked_weight(sample_weight, X, "row"), seed_of(self.random_state)
        warn_of_shares(weight)
        rows, weight = distinct((line.tobytes() for line in np.column_stack([X, y])), weight, seed)
        self.rows_: Int[np.ndarray, " m"] = rows
        X, y = X[rows], y[rows]
        share = weight / weight.sum()
        self.mean_ = share @ X
        deviation = np.sqrt(share @ (X - self.mean_) ** 2)
        self.deviation_ = np.where(
            deviation > 1e-10 * np.maximum(1, abs(self.mean_)), deviation, 1.0
        )
        self.unit_ = float(np.sqrt(share @ (y - share @ y) ** 2)) or 1.0
        with few_threads(len(X)), aloud(type(self).__name__, self.verbose):
            self.regression_: Regression = fit_regression(
                self._scaled(X),
                y / self.unit_,
                weight=weight,
                attention=self.attention,
                select=self.select,
                kernel=KERNELS[self.kernel],
                temperature=self.temperature,
                ridge=self.ridge,
                relevance=self.relevance,
                method=self.method,
                tolerance=self.tol,
            )
        found = self.regression_
        self.temperature_, self.ridge_ = found.temperature, found.ridge
        self.relevance_: Float[np.ndarray, " d"] = 1 / found.lengths
        self.prior_ = self.unit_ * found.deviation
        self.noise_ = self.prior_ * found.ridge**0.5
        self.residuals_ = self.unit_ * found.aside
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "regression_")  # a fit that failed leaves other attributes behind

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        return (X - self.mean_) / self.deviation_

    def _queries(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._scaled(validate_data(self, X, reset=False, dtype=np.float64))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The conditional mean at each row of X [n, features]; with `return_std`, also the standard
        deviation of a target."""
        queries = self._queries(X)
        mean = self.unit_ * self.regression_.mean(queries)
        return (mean, self.unit_ * self.regression_.spread(queries)) if return_std else mean

    def predict_quantile(self, X: Any, levels: Any = (0.05, 0.5, 0.95)) -> Float[np.ndarray, "n k"]:
        """Quantiles of the target at each row of X [n, features], at `levels` [k] within (0, 1)."""
        queries, levels = self._queries(X), np.atleast_1d(np.asarray(levels, float))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"levels = {levels.tolist()}: they must lie between 0 and 1")
        return self.unit_ * self.regression_.quantile(queries, levels)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Float[np.ndarray, "n 2"]:
        """The interval that should hold a target with probability `coverage`: central in the
        law, at the level at which it holds that share of the training targets, each in a law
        that has not seen it. `predict_quantile` has the law's own level."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage = {coverage}: it must lie between 0 and 1")
        queries = self._queries(X)
        return self.unit_ * self.regression_.interval(queries, coverage)

    def log_density(self, X: Any, y: Any) -> Float[np.ndarray, " n"]:
        """The logarithm of the density of each target of y [n] at its row of X [n, features]."""
        queries, target = self._queries(X), self._target(y)
        check_consistent_length(queries, target)
        return self.regression_.log_density(queries, target) - np.log(self.unit_)

    def predict_density(self, X: Any, grid: Any) -> Float[np.ndarray, "n k"]:
        """The density at each row of targets on a `grid` [k] that all rows share."""
        queries, grid = self._queries(X), self._target(grid)
        columns = [self.regression_.log_density(queries, np.full(len(queries), y)) for y in grid]
        return np.exp(np.stack(columns, 1)) / self.unit_

    def cdf(self, X: Any, y: Any) -> Float[np.ndarray, " n"]:
        """The probability of a target no larger than y [n] at each row of X [n, features]; uniform
        on [0, 1] where the law is right."""
        queries, target = self._queries(X), self._target(y)
        check_consistent_length(queries, target)
        return self.regression_.distribution(queries, target)

    def sample(
        self, X: Any, n_samples: int = 1, random_state: Any = None
    ) -> Float[np.ndarray, "n k"]:
        """`n_samples` independent targets drawn at each row of X [n, features]."""
        if not isinstance(n_samples, Integral) or n_samples < 1:
            raise ValueError(f"n_samples = {n_samples!r}: it must be a whole number, at least 1")
        queries, rng = self._queries(X), np.random.default_rng(seed_of(random_state))
        return self.unit_ * self.regression_.draw(queries, int(n_samples), rng)

    def _target(self, y: Any) -> Float[np.ndarray, " n"]:
        check_is_fitted(self)
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        return column_or_1d(y) / self.unit_

    def speakers(
        self, X: Any, top: int = 5
    ) -> tuple[Int[np.ndarray, "n top"], Float[np.ndarray, "n top"]]:
        """The indices of the `top` training rows with the largest weights in each prediction at X
        [n, features], and the weights, both [n, top]. Copies of a row count together as the first
        of them. Weights of "cme" are signed; the largest are those of largest size."""
        queries = self._queries(X)
        weights = self.regression_.attention(queries)
        order = np.argsort(-abs(weights), axis=1)[:, :top]
        return self.rows_[order], np.take_along_axis(weights, order, 1)

    def explain(self) -> str:
        """What was found, in words: the kernel, how the mean is computed, and the law around it."""
        check_is_fitted(self)
        found, law = self.regression_, self.regression_.law
        width = found.temperature**0.5
        reach = "the linear kernel"
        if np.isfinite(width):
            reach = f"a bandwidth of {width:.2g} standard deviations of the features"
        lines = [
            f"{self.attention} attention over {len(found.keys):,} rows with {reach}"
            + (f" and the ridge {found.ridge:.2g}." if found.cme else ".")
        ]
        if self.relevance_.min() < 1:
            names = getattr(self, "feature_names_in_", None)
            if names is None:
                names = [f"feature {i}" for i in range(self.n_features_in_)]
            order = np.argsort(-self.relevance_, kind="stable")
            listed = ", ".join(f"{names[i]} ({self.relevance_[i]:.2g})" for i in order[:5])
            lines.append(f"That is of the most relevant feature. Relevance: {listed}.")
        if found.cme is not None:
            lines.append(f"The mean is {found.cme}.")
        if np.isinf(law.scale_temperature):
            lines.append("The noise is the same everywhere.")
        else:
            lines.append("The scale of the noise varies with the features.")
        if law.gaussian:
            lines.append("Its shape is Gaussian.")
        elif np.isinf(law.shape_temperature):
            lines.append("Its shape is not Gaussian, and the same everywhere.")
        else:
            lines.append("Its shape is not Gaussian, and another at other features.")
        return "\n".join(lines)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
