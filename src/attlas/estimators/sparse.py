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
from attlas.sparse_variables.fitting import SparseFit, disagreement, fit_sparse
from attlas.sparse_variables.task import patterns


class SparseAttentionClassifier(Saved, SelectorMixin, ClassifierMixin, BaseEstimator):
    r"""Two classes as a function of a few of many bits: which bits, and the truth table.

    Heads of attention over the positions are trained on the examples, several times from other
    starts and on resampled examples; the places that they come to look at are candidates, and of
    all tables on a few of them those are kept that describe the labels most briefly. A column with
    two values is a bit; any other is split at its median.

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
    n_runs : int
        Runs of training; every second is on resampled examples.
    max_iter : int
        Steps of each run; they end earlier when all have settled.
    random_state : of starts and resampling.

    Attributes
    ----------
    support_ : the columns of the best table, in increasing order.
    table_ : for each pattern of them, the first column fastest, the probability of the second
        class.
    counts_ [patterns, 2] : the examples of each class with each pattern.
    stability_ : for each column, the share of resampled sets of examples in whose support it is,
        among the columns that attention found.
    attention_ : for each column, the largest share of attention that a head gives it, averaged over
        runs.
    contradictions_ : the share of examples that differ from most of those with the same pattern.
    n_iter_ : steps of training.
    sparse_ : whether the examples are consistent with so sparse a function; `explain()` gives the
        reasons.
    thresholds_ : a column is 1 above its threshold.

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
        "n_runs": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        sparsity: int | None = None,
        max_sparsity: int = 5,
        n_runs: int = 8,
        max_iter: int = 400,
        random_state: Any = None,
    ) -> None:
        self.sparsity = sparsity
        self.max_sparsity = max_sparsity
        self.n_runs = n_runs
        self.max_iter = max_iter
        self.random_state = random_state

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
        self.thresholds_ = np.array([_threshold(column, weight) for column in X.T])
        seed = seed_of(self.random_state)
        lines = np.column_stack([self._bits(X), label])
        rows, weight = distinct((line.tobytes() for line in lines), weight, seed)
        bits, label = lines[rows, :-1], lines[rows, -1]
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
        self.support_ = np.array(best.support)
        self.table_, self.counts_ = best.probability, best.counts
        self.stability_, self.attention_ = self.fit_.stability, self.fit_.attention
        self.contradictions_ = float(weight @ disagreement(best, bits, label) / weight.sum())
        self.doubts_: list[str] = self._found_doubts()
        self.sparse_ = not self.doubts_
        self.n_iter_ = max(1, self.fit_.steps)
        return self

    def _bits(self, X: np.ndarray) -> UInt8[np.ndarray, "n length"]:
        return (self.thresholds_ < X).astype(np.uint8)

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
        """For each pattern of the support: its bits, the class that most examples with it have
        (or None), and how many have each class."""
        check_is_fitted(self)
        rows = []
        for pattern, (zeros, ones) in zip(patterns(len(self.support_)), self.counts_, strict=True):
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
        for pattern, said, zeros, ones in self.truth_table():
            lines.append(
                f"  {' '.join(map(str, pattern))} -> {'not seen' if zeros == ones == 0 else said}  "
                f"({zeros} : {ones})"
            )
        lines.append(f"{self.contradictions_:.1%} of the examples contradict the table.")
        lines += [f"Doubt: {doubt}." for doubt in self.doubts_] or ["Nothing contradicts sparsity."]
        return "\n".join(lines)


def _threshold(
    column: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"] | None = None
) -> float:
    """Between the two values of a bit; else the median, or below it where nothing lies above. A
    value of weight 2 counts as two."""
    weight = np.ones(len(column)) if weight is None else weight
    values, where = np.unique(column[weight > 0], return_inverse=True)
    if len(values) == 1:
        return float(values[0])
    mass = np.cumsum(np.bincount(where, weight[weight > 0]))
    middle = [np.searchsorted(mass, mass[-1] / 2, side) for side in ("left", "right")]
    median = values[middle].sum() / 2
    above = values[values > median]
    below = values[values <= median] if len(above) else values[:-1]
    above = above if len(above) else values[-1:]
    return float((below[-1] + above[0]) / 2)
