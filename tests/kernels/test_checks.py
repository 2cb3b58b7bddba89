import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas.errors import InputError
from attlas.kernels import (
    RBF,
    Exponential,
    Linear,
    Polynomial,
    cme_attention,
    fit_cme,
)
from tests.kernels.problems import (
    problem,
)

ONES = np.eye(3)
BAD = [
    (
        {"keys": np.ones((0, 3)), "values": np.ones((0, 2))},
        r"keys has the shape \(0, 3\): the context is empty",
    ),
    ({"mask": np.zeros(3, bool)}, "the mask admits no token"),
    ({"mask": np.ones(4, bool)}, r"the mask has the shape \(4,\)"),
    ({"values": np.ones((4, 2))}, "there are 4 values and 3 keys"),
    ({"ridge": -1.0}, "ridge = -1: it must be a number, 0 or more"),
    ({"ridge": np.nan}, "ridge = nan"),
    ({"ridge": 0.0, "keys": np.ones((3, 3))}, "ridge = 0: the Gram matrix of the keys is singular"),
    ({"keys": np.diag([1.0, np.nan, 1.0])}, "keys has a NaN or an infinity in row 1"),
    ({"values": np.full((3, 2), np.inf)}, "values has a NaN or an infinity in row 0"),
    ({"ridge": 0.1, "kernel": lambda x, y: -jnp.exp(x @ y.T)}, "not positive definite"),
]


@pytest.mark.parametrize(("change", "says"), BAD)
def test_bad_input_is_named(float64, change, says):
    good = {"keys": ONES, "values": np.ones((3, 2)), "ridge": 0.1, "kernel": RBF(0.5)}
    with pytest.raises(InputError, match=says):
        cme_attention(ONES, **(good | change))
    with pytest.raises(InputError, match=says):
        fit_cme(**(good | change))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RBF(0.0), "temperature = 0: it must be a positive number"),
        (lambda: Exponential(-1.0), "temperature = -1"),
        (lambda: Polynomial(0), "degree = 0"),
        (
            lambda: cme_attention(ONES[:, :2], ONES, ONES, ridge=1.0, kernel=Linear()),
            "queries have the width 2 and keys 3",
        ),
        (
            lambda: cme_attention(ONES, ONES[0], ONES, ridge=1.0, kernel=Linear()),
            r"keys has the shape \(3,\)",
        ),
        (
            lambda: cme_attention(ONES, ONES, ONES, ridge=1.0, kernel=Linear(), clip="hull"),
            "clip = 'hull'",
        ),
        (
            lambda: cme_attention(
                ONES, ONES, ONES, ridge=1.0, kernel=lambda x, y: jnp.ones((2, 2))
            ),
            "the kernel gives the shape",
        ),
        (
            lambda: cme_attention(
                np.ones((2, 3, 3)), np.ones((4, 3, 3)), ONES, ridge=1.0, kernel=Linear()
            ),
            "leading axes",
        ),
        (
            lambda: fit_cme(ONES, ONES, ridge=1.0, kernel=Linear(), method="nistrom"),
            "Did you mean nystrom",
        ),
        (
            lambda: fit_cme(ONES, ONES, ridge=0.0, kernel=Linear(), method="nystrom"),
            "ridge = 0: it must be a positive number",
        ),
        (
            lambda: fit_cme(ONES, ONES, ridge=1.0, kernel=Linear()).mean(np.ones((1, 2))),
            "rows of 3 numbers",
        ),
    ],
)
def test_other_bad_input_is_named(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_no_ridge_interpolates_where_the_gram_matrix_allows(float64):
    _, keys, values = problem(10)
    assert cme_attention(keys, keys, values, ridge=0.0, kernel=RBF(0.1)) == approx(values, abs=1e-8)
    assert fit_cme(keys, values, ridge=0.0, kernel=RBF(0.1)).mean(keys) == approx(values, abs=1e-8)


def test_nothing_is_checked_while_jax_traces(float64):
    queries, keys, values = problem(10)
    attend = jax.jit(
        lambda k, ridge, mask: cme_attention(
            queries, k, values, ridge=ridge, kernel=RBF(0.3), mask=mask
        )
    )
    assert not attend(keys, 0.1, jnp.zeros(10, bool)).any()
    assert np.isnan(attend(jnp.full_like(keys, jnp.nan), 0.1, jnp.ones(10, bool))).all()


@pytest.mark.parametrize("call", [cme_attention, None])
def test_masks_kernels_and_traced_contexts_that_mean_something_else_are_told(call):
    keys, values = np.eye(4), np.ones((4, 1))

    def solve(mask=None, values=values, **options):
        options = {"ridge": 0.1, "kernel": RBF(1.0), "mask": mask, **options}
        return call(keys, keys, values, **options) if call else fit_cme(keys, values, **options)

    with pytest.raises(InputError, match="mask == 0"):
        solve(mask=np.array([0, -np.inf, 0, 0]))
    with pytest.raises(InputError, match="a function of two sets of rows"):
        solve(kernel=RBF)
    if call is None:
        with pytest.raises(InputError, match="use cme_attention"):
            jax.grad(lambda v: solve(values=v).mean(keys).sum())(values)
        with pytest.raises(InputError, match="positive semi-definite"):
            fit_cme(keys, values, ridge=0.1, kernel=lambda x, y: -x @ y.T, method="nystrom")
        with pytest.raises(InputError, match="prior = -1"):
            solve().variance(keys, prior=-1.0)
        assert "array" not in repr(solve())
