"""Benchmarks of the estimators against scikit-learn's, each with its own choice of the penalty:
each returns one `Row`."""

import subprocess
import sys
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


FITS = {
    "bags": "from bench.estimators import _bags; from attlas.estimators import"
    " SingleLocationClassifier as made; x, y = _bags(92, 166); model = made(random_state=0)",
    "SVC": "from bench.estimators import _bags; from bench.methods import means; from sklearn.svm"
    " import SVC as made; x, y = _bags(92, 166); x = means(x); model = made()",
    "law": "from sklearn.datasets import load_diabetes; from attlas.estimators import"
    " ConditionalMeanRegressor as made; x, y = load_diabetes(return_X_y=True); model = made()",
    "process": "from sklearn.datasets import load_diabetes; from sklearn.gaussian_process import"
    " GaussianProcessRegressor as made; from sklearn.gaussian_process.kernels import *;"
    " x, y = load_diabetes(return_X_y=True); model = made(ConstantKernel() *"
    " RBF(np.ones(10)) + WhiteKernel(), normalize_y=True)",
    "many": "from bench.estimators import _rows; from attlas.estimators import"
    " ConditionalMeanRegressor as made; x, y = _rows(5000); model = made()",
    "boosting of many": "from bench.estimators import _rows; from sklearn.ensemble import"
    " HistGradientBoostingRegressor as made; x, y = _rows(5000); model = made()",
    "boosting": "from sklearn.datasets import load_diabetes; from sklearn.ensemble import"
    " HistGradientBoostingRegressor as made; x, y = load_diabetes(return_X_y=True); model = made()",
}
"""Data and an estimator, imported and made but not fitted."""


def first_bag_fit_against_svc() -> Row:
    return first_fit(
        "92 bags of 2 to 9 instances with 166 features, everything chosen by folds",
        "bags",
        "one support vector machine on their means without any choice",
        "SVC",
    )


def first_law_fit_against_gaussian_process() -> Row:
    return first_fit(
        "442 rows of diabetes, the whole law",
        "law",
        "a Gaussian process with a bandwidth for each feature",
        "process",
    )


def first_law_fit_against_boosting() -> Row:
    return first_fit(
        "442 rows of diabetes, the whole law",
        "law",
        "the mean by histogram boosting with 100 trees",
        "boosting",
    )


def first_law_fit_of_many_rows() -> Row:
    return first_fit(
        "5,000 rows of 8 features, the whole law",
        "many",
        "the mean by histogram boosting with 100 trees",
        "boosting of many",
    )


def first_fit(this: str, ours: str, against: str, other: str) -> Row:
    """The first fits of two processes, after imports; the second ones are said in words."""
    mine, theirs = first_and_second(ours), first_and_second(other)
    words = f"{this}, first fit in a process, against {against}; second {mine[1]:.2g} s against"
    return Row(f"{words} {theirs[1]:.2g} s", mine[0], theirs[0], expected="")


def first_and_second(name: str) -> list[float]:
    """Processor seconds of two fits in a process of their own."""
    code = f"import time, warnings, numpy as np; warnings.simplefilter('ignore'); {FITS[name]}"
    for _ in range(2):
        code += "; start = time.process_time(); model.fit(x, y); print(time.process_time() - start)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line) for line in run.stdout.split()]


def _rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 8))
    noise = 0.3 * rng.normal(size=count) * (1 + 0.3 * abs(x[:, 0]))
    return x, np.sin(x[:, 0]) + x[:, 1] / 2 + noise


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
    first_bag_fit_against_svc,
    first_law_fit_against_gaussian_process,
    first_law_fit_against_boosting,
    first_law_fit_of_many_rows,
)
