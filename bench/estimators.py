"""Benchmarks of the estimators against scikit-learn's, each with its own choice of the penalty:
each returns one `Row`."""

from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from attlas.estimators import ConditionalMeanRegressor, SingleLocationClassifier
from bench.methods import means, svm
from bench.timing import Row, compare


def bags_against_svm() -> Row:
    bags, y = _bags(92, 166)
    return compare(
        "92 bags of 2 to 9 instances with 166 features, penalty by folds, against a support vector"
        " machine on their means with 16 settings by folds",
        lambda: SingleLocationClassifier(random_state=0).fit(bags, y),
        lambda: svm(means(bags), y),
        expected="0.3 or more",
        rounds=3,
    )


def many_bags_against_svm() -> Row:
    bags, y = _bags(1000, 20)
    return compare(
        "1,000 bags of 2 to 9 instances with 20 features, penalty by folds, against a support"
        " vector machine on their means with 16 settings by folds",
        lambda: SingleLocationClassifier(random_state=0).fit(bags, y),
        lambda: svm(means(bags), y),
        expected="0.3 or more",
        rounds=3,
    )


def law_against_gaussian_process() -> Row:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, (500, 1))
    y = np.sin(x[:, 0]) + 0.1 * x[:, 0] * rng.normal(size=500)
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    return compare(
        "500 rows, kernel, ridge and law of the residuals chosen, against a Gaussian process by"
        " its evidence",
        lambda: ConditionalMeanRegressor().fit(x, y),
        lambda: GaussianProcessRegressor(kernel, normalize_y=True).fit(x, y),
        expected="0.3 or more",
        rounds=3,
    )


def _bags(count: int, dim: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(rng.integers(2, 10), dim)) for _ in range(count)]
    for bag in bags[::2]:
        bag[rng.integers(len(bag)), :3] += 2
    return bags, np.arange(count) % 2


BENCHMARKS: tuple[Callable[[], Row], ...] = (
    bags_against_svm,
    many_bags_against_svm,
    law_against_gaussian_process,
)
