import jax.numpy as jnp
import numpy as np

from attlas.order_parameters import Problem, Tokens, sampling
from attlas.order_parameters.sampling import sampled_gradient
from tests.defaults import numbers_by_default


def one_token(uniforms):
    return Tokens(jnp.zeros((1, 1)), 0.5 * jnp.ones(1), jnp.ones(1))


def field_of_the_teacher(teacher, tokens, noise):
    return teacher[0, 0]


def field_of_the_student(student, present, parameters):
    return student[0, 0]


def test_the_gradient_of_least_squares_is_that_of_its_formula():
    """One token of spread 1/2: the risk is |u - w|^2 / 4."""
    problem = Problem(one_token, field_of_the_teacher, field_of_the_student)
    rng = np.random.default_rng(5)
    u, w = rng.normal(size=(6, 1)), np.eye(6)[:, :1]
    (mean, _), (error, _) = sampled_gradient(problem, u, w, samples=1 << 14)
    assert (abs(mean - (u - w) / 2) < 5 * error).all() and (error > 0).all()
    assert error.max() < 0.05


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(sampling) == ["sampled_gradient seed=0"]
