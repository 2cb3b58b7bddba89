"""A transformer of rows, applied to the instances of bags: what a pipeline for bags begins with."""

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from attlas.estimators.bags import read_bags


class InstanceTransformer(TransformerMixin, BaseEstimator):
    """A scikit-learn transformer for rows, applied to the instances of bags, which stay bags.

    It is fitted to all instances at once; every instance counts once. An array [bags, instances,
    features] becomes such an array, a list of arrays [instances, features] such a list, and rows
    stay rows, with their ids beside them. The estimators for bags scale features themselves: this
    is for other steps, as principal components, or for scaling before a step of your own.

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
        """Fit the transformer to all instances of the bags X; targets are those of bags, and are
        not looked at."""
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
