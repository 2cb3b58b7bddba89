import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attlas.errors import InputError
from attlas.order_parameters import (
    Heads,
    Overlaps,
    Places,
    Problem,
    Tokens,
    ValueSum,
    best_overlaps,
    covariance_root,
    descend,
    descend_online,
    descend_online_vectors,
    fields,
    gradient,
    problem,
    risk,
)
from attlas.order_parameters.problem import State, as_problems, has_schedules
from attlas.schedules import InverseDecay
from tests.defaults import numbers_by_default

ONE = Problem(Places(4, [2.0]), ValueSum(), Heads("softmax"))
HERE = Overlaps(np.zeros((1, 2, 2)), np.eye(2)[None])


def test_overlaps_are_those_of_vectors_and_back():
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(9, 3)))[0]
    overlaps = Overlaps.of(rng.normal(size=(5, 9, 2)), directions).checked()
    m, c = overlaps.coordinates()
    np.testing.assert_allclose(m @ m.swapaxes(1, 2) + c @ c.swapaxes(1, 2), overlaps.q, atol=1e-12)


@pytest.mark.parametrize("correlated", [False, True])
def test_fields_have_the_mean_and_covariance_that_overlaps_say(correlated):
    """Tokens l and j: cov(T_l, H_j) = K_lj M^T and cov(H_l, H_j) = K_lj Q, around mu and mu M^T."""
    rng = np.random.default_rng(0)
    overlaps = Overlaps.of(rng.normal(size=(6, 2)), np.eye(6)[:, :3])
    covariance = np.array([[1.0, 0.3], [0.3, 0.5]]) if correlated else np.diag([1.0, 0.25])
    mean = rng.normal(size=(2, 3))
    root = jnp.asarray(covariance_root(covariance))
    tokens = Tokens(jnp.asarray(mean), root if correlated else jnp.diag(root), jnp.ones(2))
    state = State(*map(jnp.asarray, overlaps.coordinates()))
    normals = jnp.asarray(rng.standard_normal((40_000, 2, 5)))
    both = np.concatenate(jax.vmap(lambda z: fields(tokens, z, state))(normals), -1)
    wanted_mean = np.concatenate([mean, mean @ overlaps.m.T], 1)
    gram = np.block([[np.eye(3), overlaps.m.T], [overlaps.m, overlaps.q]])
    wanted = np.einsum("lj,ab->lajb", covariance, gram).reshape(10, 10)
    assert abs(both.mean(0) - wanted_mean).max() < 0.06
    assert abs(np.cov(both.reshape(-1, 10).T) - wanted).max() < 0.03 * abs(wanted).max()


def test_a_law_a_target_a_head_and_a_loss_may_be_plain_functions():
    def law(uniforms):
        return Tokens(jnp.zeros((3, 1)), jnp.ones(3), jnp.ones(3))

    problem = Problem(law, first_field, pooled, absolute, uniforms=1)
    value, error = risk(problem, Overlaps(np.ones((1, 1, 1)), np.ones((1, 1, 1))), points=1 << 14)
    # The other two tokens are left: the mean of |N(0, 2)| is 2 / sqrt(pi).
    assert abs(value[0] - 2 / np.sqrt(np.pi)) < 5 * error[0] < 0.02


def first_field(teacher, tokens, noise):
    return teacher[0, 0]


def pooled(student, present, parameters):
    return student.sum()


def absolute(prediction, target):
    return abs(prediction - target)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: risk(ONE, Overlaps(HERE.m + 1, HERE.q)), "belong to no vectors"),
        (lambda: risk(ONE, Overlaps(HERE.m * np.nan, HERE.q)), "not finite"),
        (lambda: risk(ONE, Overlaps(HERE.m, HERE.q + np.eye(2, k=1))), "not symmetric"),
        (lambda: risk(ONE, Overlaps(HERE.m[..., :1], HERE.q)), r"it must be \[L, 1\]"),
        (lambda: risk(ONE, Overlaps(HERE.m, HERE.q[:, :1])), "Q \\[repeat, p, p\\]"),
        (lambda: Overlaps.of(np.eye(4)[:, :2], 2 * np.eye(4)[:, :2]), "off orthonormal columns"),
        (lambda: Overlaps.of(np.eye(4)[:, :2], np.eye(5)[:, :2]), "one width"),
        (lambda: covariance_root([[1, 2], [2, 1]]), "eigenvalue -1: no tokens have it"),
        (lambda: covariance_root([[1, 2], [0, 1]]), "not symmetric"),
        (lambda: covariance_root([1.0, 2.0]), "square matrix"),
        (lambda: Places(4, [1.0], correlation=1.5), "no covariance of 4 tokens"),
        (lambda: Places(4, np.ones(5)), "places must fit"),
        (lambda: Heads("sofmax"), "Did you mean softmax"),
        (lambda: Problem(3, ValueSum(), Heads()), "not a function"),
        (
            lambda: risk(Problem(Places(4, [1.0], values=1), ValueSum(), Heads(values=2)), HERE),
            "cannot read fields",
        ),
        (
            lambda: risk(Problem(ONE.law, ONE.target, first_column), HERE),
            r"the shape \(4,\): the target has the shape \(\)",
        ),
        (lambda: risk(Problem(ONE.law, ONE.target, ONE.head, infinite), HERE), "one finite number"),
        (
            lambda: descend(
                ONE, Overlaps(HERE.m, 2 * HERE.q), step_size=1.0, steps=1, constraint="unit"
            ),
            "off unit columns",
        ),
        (lambda: descend(ONE, HERE, step_size=1.0, steps=1, constraint="round"), "one of none"),
        (lambda: descend(ONE, HERE, step_size=0.0, steps=1), "step_size = 0"),
        (
            lambda: descend_online_vectors(
                ONE, np.eye(3)[None, :, :2], np.eye(3)[:, :2], batch_size=1, step_size=1.0, steps=1
            ),
            "dim = 3: the span of 2 directions and 2 columns needs at least 4",
        ),
        (
            lambda: descend(Problem(ONE.law, ONE.target, first_column), HERE, step_size=1, steps=1),
            "the head's output has the shape",
        ),
        (
            lambda: best_overlaps(
                Problem(ONE.law, ONE.target, ONE.head, infinite), 2, directions=2, starts=1
            ),
            "one finite number",
        ),
        (lambda: descend(ONE, HERE, step_size=np.ones(3), steps=1), "one for each of 1 starts"),
        (
            lambda: descend_online(ONE, HERE, dim=3, batch_size=1, step_size=1.0, steps=1),
            "dim = 3: the span of 2 directions and 2 columns needs at least 4",
        ),
        (lambda: as_problems([ONE, ONE], 3), "2 problems for 3 starts"),
        (
            lambda: as_problems([ONE, Problem(Places(5, [2.0]), ValueSum(), Heads())], 2),
            "differ in their numbers only",
        ),
        (
            lambda: risk(ONE, HERE, {"scale": np.ones(3)}),
            "first axis is that of 1 starts",
        ),
        (
            lambda: gradient(ONE, Overlaps(np.eye(2)[None], np.eye(2)[None]), points=4),
            "singular",
        ),
    ],
)
def test_bad_input_is_one_sentence(run, says):
    with pytest.raises(InputError, match=says):
        run()


LAWS = {
    "a root of the wrong shape": lambda u: Tokens(jnp.zeros((3, 2)), jnp.ones(4), jnp.ones(3)),
    "a root that is not finite": lambda u: Tokens(jnp.zeros((3, 2)), jnp.nan * u, jnp.ones(3)),
    "a square root of the wrong size": lambda u: Tokens(
        jnp.zeros((3, 2)), jnp.ones((3, 2)), jnp.ones(3)
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_law_without_a_covariance_is_one_sentence(name):
    wrong = Problem(LAWS[name], no_target, ONE.head, uniforms=3)
    for run in (
        lambda: risk(wrong, HERE),
        lambda: descend(wrong, HERE, step_size=0.1, steps=1),
        lambda: descend_online(wrong, HERE, dim=9, batch_size=1, step_size=0.1, steps=1),
        lambda: best_overlaps(wrong, 2, directions=2),
    ):
        with pytest.raises(InputError, match="is a root of a covariance of 3 tokens"):
            run()


def no_target(teacher, tokens, noise):
    return noise[0]


@pytest.mark.parametrize("name", ["starts", "trips", "points", "columns", "directions"])
def test_a_search_needs_one_of_each(name):
    options = {"columns": 2, "directions": 2, "starts": 1, "trips": 1, "points": 8, name: 0}
    with pytest.raises(InputError, match=f"{name} = 0"):
        best_overlaps(ONE, **options)


def first_column(student, present, parameters):
    return student[:, 0]


def infinite(prediction, target):
    return jnp.inf * abs(prediction)


def test_schedules_are_found_in_pieces_of_a_problem():
    assert has_schedules((Places(4, [2.0]), ValueSum(InverseDecay(0.5))))
    assert not has_schedules((Places(4, [2.0]), ValueSum(0.5)))


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(problem) == ["Problem noises=1"]
