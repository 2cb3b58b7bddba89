"""The theorems as tools for people with data: scikit-learn estimators."""

from attlas.estimators.bags import SingleLocationClassifier, SingleLocationRegressor
from attlas.estimators.conditional import ConditionalMeanRegressor
from attlas.estimators.instances import InstanceTransformer
from attlas.estimators.saving import load_estimator
from attlas.estimators.sparse import SparseAttentionClassifier

__all__ = [
    "ConditionalMeanRegressor",
    "InstanceTransformer",
    "SingleLocationClassifier",
    "SingleLocationRegressor",
    "SparseAttentionClassifier",
    "load_estimator",
]
