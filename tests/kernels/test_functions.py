import numpy as np
import pytest
from pytest import approx

from attlas.kernels import RBF, Exponential, Linear, Polynomial, functions
from tests.defaults import numbers_by_default
from tests.kernels.problems import problem


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        (Exponential(0.3), lambda x, y: np.exp((x @ y - 1) / 0.3)),
        (RBF(0.3), lambda x, y: np.exp(-((x - y) ** 2).sum() / 0.6)),
        (Linear(), lambda x, y: x @ y),
        (Polynomial(3, 0.5), lambda x, y: (x @ y + 0.5) ** 3),
    ],
)
def test_kernels_are_their_formulas(float64, kernel, formula):
    x, y, _ = problem(5, 4)
    assert kernel(x, y) == approx(np.array([[formula(a, b) for b in y] for a in x]), abs=1e-13)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(functions) == ["Polynomial degree=2 offset=1"]
