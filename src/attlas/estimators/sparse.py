r"""A function of a few of many bits, learnt from few examples.

`attlas.sparse_variables.fitting.fit_sparse` does the work; Edelman et al. 2022 is the theory: the
examples that a head of attention needs grow as the logarithm of the number of bits.
"""

from numbers import Integral
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Bool, Float, UInt8
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from attlas.estimators.resampling import distinct, seed_of, warn_of_shares
from attlas.estimators.saving import Saved
from attlas.progress import aloud
from attlas.sparse_variables.fitting import SparseFit, disagreement, fit_sparse
from attlas.sparse_variables.task import patterns


class SparseAttentionClassifier(Saved, SelectorMixin, ClassifierMixin, BaseEstimator):
    r"""Two classes as a function of a few of many bits: which bits, and the truth table.

    Heads of attention over the positions are trained on the examples, several times from other
    starts and on resampled examples; the places that they come to look at are candidates. Of all
    tables on a few candidates, those with the shortest description of the labels are kept. A
    column with two values is a bit; any other is split at its median, or at several of its
    quantiles.

    Do not use it where many columns each add a little (logistic regression does that), where
    columns are numbers whose size matters (a forest finds its own thresholds), for parities of more
    than two or three of many bits, which no such training finds, or for more than two classes,
    unless through `OneVsRestClassifier`. `explain()` says when the examples contradict sparsity.

    Parameters
    ----------
    sparsity : int or None
        The number of columns in the table; the shortest description decides if None.
    max_sparsity : int
        The largest number of columns that is tried.
    n_thresholds : int
        The quantiles at which a column of numbers is split, a bit for each: 1 is the median.
    n_runs : int
        Runs of training; every second is on resampled examples.
    max_iter : int
        Steps of each run; they end earlier when all have settled.
    random_state : of starts and resampling.
    verbose : bool
        Print a line after each part of a fit.

    Attributes
    ----------
    support_ : the columns of the best table, in increasing order.
    splits_ [bits, 2] : the bits of that table, each a column and the threshold above which it is 1.
    table_ : for each pattern of them, the first bit fastest, the probability of the second class.
    counts_ [patterns, 2] : the examples of each class with each pattern.
    stability_ : for each column, the share of resampled sets of examples in whose support it is,
        among the columns that attention found; of a column with several bits, the largest.
    attention_ : for each column, the largest share of attention that a head gives it, averaged over
        runs; of a column with several bits, the largest.
    contradictions_ : the share of examples that differ from most of those with the same pattern.
    n_iter_ : steps of training.
    sparse_ : whether the examples are consistent with so sparse a function; `explain()` gives the
        reasons.
    columns_, thresholds_ [bits] : bit i is whether column `columns_[i]` is above `thresholds_[i]`.

    Examples
    --------
    >>> import numpy as np
    >>> from attlas.estimators import SparseAttentionClassifier
    >>> X = np.random.default_rng(0).integers(0, 2, (80, 40))
    >>> y = X[:, 3] & X[:, 17]
    >>> model = SparseAttentionClassifier(random_state=0).fit(X, y)
    >>> model.support_.tolist()
    [3, 17]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "sparsity": [None, Interval(Integral, 1, 10, closed="both")],
        "max_sparsity": [Interval(Integral, 1, 10, closed="both")],
        "n_thresholds": [Interval(Integral, 1, 255, closed="both")],
        "n_runs": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        *,
        sparsity: int | None = None,
        max_sparsity: int = 5,
        n_thresholds: int = 1,
        n_runs: int = 8,
        max_iter: int = 400,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.sparsity = sparsity
        self.max_sparsity = max_sparsity
        self.n_thresholds = n_thresholds
        self.n_runs = n_runs
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_")  # a fit that failed leaves other attributes behind

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SparseAttentionClassifier":
        """Fit to rows with labels of two classes.

        Parameters
        ----------
        X : array [n, length]
        y : array [n], of any two values
        sample_weight : array [n]
            A row of weight 2 counts as two.
        """
        self._validate_params()
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}."
            )
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self.classes_ = np.unique(y)
        seen = np.unique(y[weight > 0])
        if len(seen) < 2:
            raise ValueError(
                f"y holds one class{'' if not len(seen) else f', {seen.tolist()[0]!r}'}: a "
                "classifier needs at least 2 classes"
            )
        warn_of_shares(weight)
        label = (y == self.classes_[1]).astype(np.uint8)
        cuts = [_thresholds(column, weight, self.n_thresholds) for column in X.T]
        self.columns_ = np.repeat(np.arange(X.shape[1]), [len(cut) for cut in cuts])
        self.thresholds_ = np.concatenate(cuts)
        seed = seed_of(self.random_state)
        lines = np.column_stack([self._bits(X), label])
        rows, weight = distinct((line.tobytes() for line in lines), weight, seed)
        bits, label = lines[rows, :-1], lines[rows, -1]
        with aloud(type(self).__name__, self.verbose):
            self.fit_: SparseFit = fit_sparse(
                bits,
                label,
                weight=weight,
                most=self.max_sparsity,
                sparsity=self.sparsity,
                runs=self.n_runs,
                steps=self.max_iter,
                key=jax.random.key(seed),
            )
        best = self.fit_.best
        chosen = np.array(best.support)
        self.support_ = np.unique(self.columns_[chosen])
        self.splits_ = np.column_stack([self.columns_[chosen], self.thresholds_[chosen]])
        self.table_, self.counts_ = best.probability, best.counts
        first = np.searchsorted(self.columns_, np.arange(X.shape[1]))
        self.stability_ = np.maximum.reduceat(self.fit_.stability, first)
        self.attention_ = np.maximum.reduceat(self.fit_.attention, first)
        self.contradictions_ = float(weight @ disagreement(best, bits, label) / weight.sum())
        self.doubts_: list[str] = self._found_doubts()
        self.sparse_ = not self.doubts_
        self.n_iter_ = max(1, self.fit_.steps)
        return self

    def _bits(self, X: np.ndarray) -> UInt8[np.ndarray, "n bits"]:
        return (self.thresholds_ < X[:, self.columns_]).astype(np.uint8)

    def _said(self, X: Any) -> Float[np.ndarray, " n"]:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.clip(self.fit_.probability(self._bits(X)), 1e-12, 1 - 1e-12)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n 2"]:
        """The probability of each class at rows of X [n, length], averaged over the tables that are
        about as short."""
        p = self._said(X)
        return np.stack([1 - p, p], 1)

    def decision_function(self, X: Any) -> Float[np.ndarray, " n"]:
        """The log odds of the second class."""
        p = self._said(X)
        return np.log(p) - np.log1p(-p)

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row."""
        chosen = (self._said(X) > 0.5).astype(int)  # which says so where it is not fitted
        return self.classes_[chosen]

    def _get_support_mask(self) -> Bool[np.ndarray, " length"]:
        check_is_fitted(self)
        mask = np.zeros(self.n_features_in_, bool)
        mask[self.support_] = True
        return mask

    def truth_table(self) -> list[tuple[tuple[int, ...], Any, int, int]]:
        """For each pattern of `splits_`: its bits, the class that most examples with it have
        (or None), and how many have each class."""
        check_is_fitted(self)
        rows = []
        for pattern, (zeros, ones) in zip(patterns(len(self.splits_)), self.counts_, strict=True):
            said = None if zeros == ones else self.classes_[int(ones > zeros)]
            rows.append((tuple(pattern.tolist()), said, round(zeros), round(ones)))
        return rows

    def _found_doubts(self) -> list[str]:
        found, best = self.fit_, self.fit_.best
        doubts = []
        if best.nats >= found.empty_nats:
            doubts.append(
                "no column tells enough of the label to be worth naming: a constant describes it "
                "as briefly"
            )
        largest = max(found.by_size)
        if self.sparsity is None and len(best.support) == largest == self.max_sparsity:
            doubts.append(
                f"the largest table that was looked at, of {largest} columns, is the best: the "
                "function may need more"
            )
        if self.contradictions_ > 0.1:
            doubts.append(
                f"{self.contradictions_:.0%} of the examples differ from most of those with the "
                "same pattern: noise, or columns that are missing from the table"
            )
        weak = [i for i in self.support_ if self.stability_[i] < 0.5]
        if weak:
            doubts.append(
                f"{'columns' if len(weak) > 1 else 'column'} {', '.join(map(str, weak))} would "
                "leave the support in most resampled sets of examples"
            )
        return doubts

    def explain(self) -> str:
        """What was found, in words: the columns, the table, and what speaks against it."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        names = [f"column {i}" for i in range(self.n_features_in_)] if names is None else names
        columns = ", ".join(
            f"{names[i]} (in {self.stability_[i]:.0%} of resampled supports)" for i in self.support_
        )
        lines = [f"The label is read off {columns}."]
        if self.n_thresholds > 1:
            bits = (f"{names[int(column)]} > {cut:.4g}" for column, cut in self.splits_)
            lines.append(f"The table has the bits {', '.join(bits)}.")
        for pattern, said, zeros, ones in self.truth_table():
            lines.append(
                f"  {' '.join(map(str, pattern))} -> {'not seen' if zeros == ones == 0 else said}  "
                f"({zeros} : {ones})"
            )
        lines.append(f"{self.contradictions_:.1%} of the examples contradict the table.")
        lines += [f"Doubt: {doubt}." for doubt in self.doubts_] or ["Nothing contradicts sparsity."]
        return "\n".join(lines)


def _thresholds(
    column: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"], count: int
) -> Float[np.ndarray, " at_most_count"]:
    """Between the two values of a bit; else at quantiles 1/(count + 1), ..., each once, or below
    where nothing lies above. A value of weight 2 counts as two."""
    values, where = np.unique(column[weight > 0], return_inverse=True)
    if len(values) == 1:
        return values
    mass = np.cumsum(np.bincount(where, weight[weight > 0]))
    cuts = []
    for share in np.arange(1, count + 1) / (count + 1):
        near = [np.searchsorted(mass, mass[-1] * share, side) for side in ("left", "right")]
        quantile = values[near].sum() / 2
        above = values[values > quantile]
        below = values[values <= quantile] if len(above) else values[:-1]
        above = above if len(above) else values[-1:]
        cuts.append((below[-1] + above[0]) / 2)
    return np.unique(cuts)
