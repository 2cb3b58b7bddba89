"""Instances of bags: read from every form in which bags come, and transformed one by one, as a
pipeline for bags begins."""

from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags, _safe_indexing
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from attlas.errors import InputError


class SingleRowsWarning(UserWarning):
    """Rows without ids were taken as bags of one instance each."""


def read_bags(X: Any, ids: Any = None) -> tuple[np.ndarray, Int[np.ndarray, " n"]]:
    """All instances [N, d], bag after bag, and the length of each bag.

    Arguments:
        X: an array [bags, instances, features], a list of arrays [instances, features], or rows
            [N, features], each a bag, unless there are ids.
        ids: for each row the bag that it belongs to; bags are in the order in which they first
            occur.

    Returns: for rows without ids, X itself and no lengths.
    """
    if ids is not None:
        ids = column_or_1d(ids)
        check_consistent_length(X, ids)
        if (ids != ids).any():
            raise ValueError("bags contains NaN: every row must have an id")
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[inverse.ravel()]
        return _safe_indexing(X, np.argsort(rank, kind="stable")), np.bincount(rank)
    if isinstance(X, list | tuple) and not len(X):
        raise ValueError("X is an empty list: there must be bags")
    listed = isinstance(X, list | tuple) or (
        isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1
    )
    if listed and any(_is_table(bag) for bag in X):
        bags = [_table(i, bag) for i, bag in enumerate(X)]
        for i, bag in enumerate(bags):
            if bag.shape[1] != bags[0].shape[1]:
                raise ValueError(
                    f"bag {i} has {bag.shape[1]} features and bag 0 has {bags[0].shape[1]}: all "
                    "bags must have the same"
                )
        return np.concatenate(bags), np.array([len(bag) for bag in bags])
    if getattr(X, "ndim", 2) == 3:
        X = np.asarray(X)
        if 0 in X.shape:
            raise ValueError(
                f"X has the shape {X.shape}: there must be bags, instances and features"
            )
        return X.reshape(-1, X.shape[2]), np.full(len(X), X.shape[1])
    return X, np.array([])


def _is_table(bag: Any) -> bool:
    nested = isinstance(bag, list | tuple) and bag and np.ndim(bag[0]) == 1
    return getattr(bag, "ndim", 2 if nested else 0) == 2


def _table(i: int, bag: Any) -> np.ndarray:
    try:
        table = np.asarray(bag)
    except ValueError:
        raise InputError(
            f"bag {i} has rows of different lengths: it must be an array [instances, features]"
        ) from None
    if len(table) == 0:
        raise ValueError(f"bag {i} is empty: every bag must have at least one instance")
    if table.ndim != 2:
        raise InputError(
            f"bag {i} has the shape {table.shape}: it must be an array [instances, features]"
        )
    return table


def of_bags(name: str, values: Any, ids: Any, count: int) -> Any:
    """One value for each bag, of values for each row that are equal within a bag."""
    if ids is None or values is None or np.shape(values)[:1] == (count,) != np.shape(ids)[:1]:
        return values
    values, ids = np.asarray(values), np.asarray(ids)
    check_consistent_length(values, ids)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    bad = np.flatnonzero(values != values[first][inverse.ravel()])
    if bad.size:
        raise ValueError(
            f"{name} differs within the bag {ids.tolist()[bad[0]]!r}: all rows of a bag must have "
            "the same"
        )
    return values[np.sort(first)]


class TowardAClass:
    """A classifier of bags that says which instance speaks for a class."""

    classes_: np.ndarray

    def predict_location(
        self, X: Any, bags: Any = None, toward: Any = None
    ) -> Int[np.ndarray, " n"]:
        """Which instance of each bag decides, counted from 0 within the bag: the one with the
        largest share of attention, or, where a class is named, the one that adds most to its log
        odds, which finds more of the instances that make a bag one of that class.

        Parameters
        ----------
        X, bags : as in `fit`
        toward : one of `classes_`, or None
        """
        if toward is None:
            return super().predict_location(X, bags)  # type: ignore[misc]
        check_is_fitted(self)
        place = np.flatnonzero(self.classes_ == toward)
        if not place.size:
            raise InputError(f"toward = {toward!r}: the classes are {self.classes_.tolist()}")
        added = self.instance_scores(X, bags)  # type: ignore[attr-defined]
        if len(self.classes_) == 2:
            return np.array([int(np.argmax(x if place[0] else -x)) for x in added])
        return np.array([int(np.argmax(x[:, place[0]] - x.mean(1))) for x in added])


class InstanceTransformer(TransformerMixin, BaseEstimator):
    """A scikit-learn transformer for rows, applied to the instances of bags, which stay bags.

    It is fitted to all instances at once; every instance counts once. An array [bags, instances,
    features] becomes such an array, a list of arrays [instances, features] such a list, and rows
    stay rows, with their ids beside them. The estimators for bags scale features themselves: this
    is for other steps, such as principal components, or for scaling before a step of your own.

    Parameters
    ----------
    transformer : transformer or None
        `StandardScaler()` if None. Its parameters can be searched as `transformer__...`.

    Attributes
    ----------
    transformer_ : the fitted copy.

    Examples
    --------
    >>> import numpy as np
    >>> from attlas.estimators import InstanceTransformer, SingleLocationClassifier
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.pipeline import make_pipeline
    >>> rng = np.random.default_rng(0)
    >>> bags = [rng.normal(size=(rng.integers(2, 9), 3)) for _ in range(60)]
    >>> y = [bag[:, 0].max() > 1.2 for bag in bags]
    >>> model = make_pipeline(InstanceTransformer(PCA(2)), SingleLocationClassifier())
    >>> model.fit(bags, y).predict(bags).shape
    (60,)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"transformer": [None, BaseEstimator]}

    def __init__(self, transformer: Any = None) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> "InstanceTransformer":
        """Fit the transformer to all instances of the bags X; the targets y are not
        used."""
        self._validate_params()
        made = StandardScaler() if self.transformer is None else clone(self.transformer)
        self.transformer_ = made.fit(read_bags(X)[0])
        return self

    def transform(self, X: Any) -> Any:
        """The bags with transformed instances, in the form in which they came."""
        check_is_fitted(self)
        flat, lengths = read_bags(X)
        said = self.transformer_.transform(flat)
        if not len(lengths):
            return said
        said = np.asarray(said)
        if getattr(X, "ndim", 0) == 3:
            return said.reshape(len(lengths), -1, said.shape[1])
        return np.split(said, np.cumsum(lengths)[:-1])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
