import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from attlas.errors import InputError
from attlas.gaussian import float64
from attlas.order_parameters import (
    WEIGHTS,
    ChosenValue,
    Heads,
    Network,
    Overlaps,
    Places,
    Pooled,
    Problem,
    Readout,
    SignedPlace,
    Tokens,
    ValueSum,
    best_overlaps,
    gradient,
    label,
    logistic,
    pieces,
    population,
    risk,
    stability,
)
from attlas.order_parameters.population import (
    draw_points,
    keep,
    mean_loss,
    prepare,
    root,
    sequences,
    tangent,
)
from attlas.order_parameters.problem import Shape, State
from attlas.order_parameters.sampling import sampled_gradient
from attlas.single_location import Overlaps as Five
from attlas.single_location import SingleLocation
from attlas.single_location import risk as five_risk
from attlas.single_location.reduction import as_problem
from tests.defaults import numbers_by_default

TWO, ONE = Places(4, [1.5, 1.0], spread=0.7), Places(4, [1.5], spread=1.2)
PROBLEMS = {
    "two softmax heads": (Problem(TWO, ValueSum(0.1), Heads("softmax", 1.3)), 4, 4, 12),
    "softmax with a norm term": (Problem(ONE, ValueSum(), Heads("softmax", norm=0.5)), 2, 2, 8),
    "softmax-1": (Problem(ONE, ValueSum(), Heads("softmax-1", 2.0)), 2, 2, 8),
    "erf, tokens correlated": (
        Problem(Places(4, [1.5], spread=0.7, correlation=0.4), ValueSum(), Heads("erf", 0.8)),
        2,
        2,
        30,
    ),
    "tanh, random lengths": (
        Problem(Places(5, [1.5], shortest=2, shuffled=True), ValueSum(), Heads("tanh")),
        2,
        2,
        8,
    ),
    "linear attention, a background": (
        Problem(
            Places(4, [1.5], background=[0, 0, 0.8], extra=1), ValueSum(), Heads("linear", 0.3)
        ),
        2,
        3,
        8,
    ),
    "two values": (
        Problem(Places(4, [1.5], values=2), ValueSum(values=2), Heads(values=2)),
        3,
        3,
        60,
    ),
    "relu gates": (Problem(ONE, ValueSum(), Heads("relu", offset=0.3)), 2, 2, 8),
    "two sigmoid gates, random lengths": (
        Problem(Places(5, [1.5, 1.0], shortest=3), ValueSum(), Heads("sigmoid", 2.0)),
        4,
        4,
        16,
    ),
    "a place chosen by a softmax": (
        Problem(Places(4, 0.0), ChosenValue(2.0), Heads("softmax", 1.5)),
        2,
        2,
        8,
    ),
    "pooled": (Problem(ONE, ValueSum(), Pooled()), 1, 2, 8),
    "a network": (
        Problem(Places(3, [1.5], shuffled=True), ValueSum(), Network()),
        6,
        2,
        8,
    ),
    "a readout of three from two values": (
        Problem(Places(4, [1.5], values=3), ValueSum(values=3), Readout(Heads(values=2))),
        3,
        4,
        20,
    ),
    "a scaled linear head, tokens correlated": (
        Problem(Places(3, [1.0], correlation=0.3), ValueSum(0.2), Readout(Heads("linear"))),
        2,
        2,
        60,
    ),
    "classification": (Problem(SignedPlace(1.5, 4), label, Heads("softmax"), logistic), 2, 1, 8),
}


PARAMETERS = {
    "a network": {"bias": np.array([0.1, 0.2]), "readout": np.array([1.0, 0.5]), "constant": 0.3},
    "a readout of three from two values": {
        "scale": np.array([[1.0, 0.2], [0.3, -1.0], [0.5, 0.4]]),
        "constant": np.array([0.1, -0.2, 0.3]),
    },
    "a scaled linear head, tokens correlated": {"scale": 0.4, "constant": 0.2},
}
"""Of the heads that have some; others have none."""


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_is_that_of_the_risk_on_whole_tokens(name):
    problem, p, r, dim = PROBLEMS[name]
    parameters = PARAMETERS.get(name)
    rng = np.random.default_rng(3)
    directions = np.linalg.qr(rng.normal(size=(dim, r)))[0]
    vectors = rng.normal(size=(dim, p)) / np.sqrt(dim) + 0.3 * directions[:, [0] * p]
    overlaps = Overlaps.of(vectors[None], directions)
    one = jax.tree.map(lambda x: np.asarray(x)[None], parameters)
    many = [gradient(problem, overlaps, one, points=1 << 13, seed=seed) for seed in range(4)]
    own = [
        (found.of_vectors(vectors, directions)[0], jax.tree.map(lambda x: x[0], found.parameters))
        for found in many
    ]
    mean, error = sampled_gradient(problem, vectors, directions, parameters, samples=1 << 14)
    leaves = [jax.tree.leaves(tree) for tree in (mean, error)]
    found = list(zip(*map(jax.tree.leaves, own), strict=True))
    assert len(found) == 1 + len(parameters or ())
    for sets, wanted, spread in zip(found, *leaves, strict=True):
        off = np.hypot(spread, np.std(sets, axis=0, ddof=1) / 2)
        assert (abs(np.mean(sets, 0) - wanted) < 5 * off + 1e-9).all()
        assert (spread < 0.2 * abs(leaves[0][0]).max()).all()


def test_every_ready_head_law_and_target_has_its_gradient_tested():
    """By name: what `pieces` offers beside losses and helpers, and every kind of weights."""
    used = {id(type(piece)) for problem, *_ in PROBLEMS.values() for piece in pieces_of(problem)}
    ready = [x for x in vars(pieces).values() if isinstance(x, type) and issubclass(x, eqx.Module)]
    assert {id(x) for x in ready} <= used
    weights = {id(head.weights) for problem, *_ in PROBLEMS.values() if (head := heads_in(problem))}
    smooth = {name for name in WEIGHTS if name not in ("step", "identity")}  # linear is identity
    assert {id(WEIGHTS[name]) for name in smooth} <= weights
    assert {dim for *_, dim in PROBLEMS.values()} >= {8, 60}


def pieces_of(problem):
    inner = getattr(problem.head, "head", None)
    return [problem.law, problem.target, problem.head, *([inner] if inner else [])]


def heads_in(problem):
    head = getattr(problem.head, "head", problem.head)
    return head if isinstance(head, Heads) else None


def test_erf_on_one_place_has_the_risk_of_theorem_1():
    task = SingleLocation(dim=12, length=4, gamma=0.8, noise=0.2)
    rng = np.random.default_rng(1)
    k, v = rng.normal(size=(2, 3, 12))
    k, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (k, v))
    directions = np.stack([task.k_star, task.v_star], 1)
    overlaps = Overlaps.of(np.stack([k, v], -1), directions)
    law = Places(4, [task.m], spread=0.8)
    problem = Problem(law, ValueSum(0.2), Heads("erf", 0.7))
    value, error = risk(problem, overlaps, points=1 << 16)
    assert (abs(value - five_risk(task, Five.of(k, v, task), 0.7)) < 5 * error).all()
    plain, spread = risk(problem, overlaps, points=1 << 14, quasi=False)
    assert (abs(plain - value) < 5 * np.hypot(error, spread)).all() and (error < 0.05).all()


def test_roots_and_constraints():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 3, 2))
    s = x @ x.swapaxes(1, 2)  # of rank two
    with jax.enable_x64(True):
        lower = np.asarray(root(jnp.asarray(s)))
        np.testing.assert_allclose(lower @ lower.swapaxes(1, 2), s, atol=1e-6)
        assert (np.triu(lower, 1) == 0).all()
        state = State(jnp.asarray(rng.normal(size=(3, 2))), jnp.asarray(rng.normal(size=(3, 3))))
        np.testing.assert_allclose(np.diag(keep(state, "unit").q), 1)
        np.testing.assert_allclose(keep(state, "orthonormal").q, np.eye(3), atol=1e-12)


def test_the_best_linear_attention_has_the_least_risk_of_its_formula():
    problems = [
        Problem(Places(5, [signal]), ValueSum(), Readout(Heads("linear"))) for signal in (1.0, 3.0)
    ]
    start = {"scale": np.array(0.1), "constant": np.array(0.0)}
    best = best_overlaps(
        problems, 2, directions=2, starts=4, parameters=start, points=1 << 12, trips=60
    )
    wanted = np.array([5 / (5 + s**2) for s in (1.0, 3.0)])
    assert (abs(best.risk - wanted) < 0.02).all()
    assert (best.found.min("start") <= best.found).all()


def test_the_best_start_is_chosen_on_points_that_it_was_not_fitted_to():
    """Eight points are fitted by wide networks at once: only others tell which is the best."""
    problem = Problem(Places(2, [1.5], shuffled=True), ValueSum(), Network())
    start = {"bias": np.zeros(4), "readout": np.ones(4), "constant": np.array(0.0)}
    best = best_overlaps(
        problem, 8, directions=2, starts=6, parameters=start, points=8, trips=60, seed=2
    ).isel(problem=0)
    chosen = int(best.fresh.values.argmin())
    assert chosen != int(best.found.values.argmin()) and (best.found < best.fresh).all()
    np.testing.assert_array_equal(best.best_m, best.m[chosen])


def plain_law(uniforms):
    return Tokens(jnp.zeros((3, 1)), jnp.ones(3), jnp.ones(3))


def plain_target(teacher, tokens, noise):
    return teacher[0, 0]


def plain_head(student, present, parameters):
    return student[0, 0]


def test_best_overlaps_of_a_problem_without_numbers():
    """Four plain functions: the best column is the direction, and leaves nothing."""
    problem = Problem(plain_law, plain_target, plain_head)
    best = best_overlaps([problem, problem], 1, directions=1, starts=2, points=64, trips=40)
    assert best.sizes["problem"] == 2 and (best.risk < 1e-6).all()
    np.testing.assert_allclose(best.best_m, 1, atol=1e-3)


def test_the_error_of_a_gradient_is_the_spread_of_its_repetitions():
    problem = Problem(Places(4, [1.5]), ValueSum(0.5), Readout(Heads("softmax")))
    rng = np.random.default_rng(4)
    directions = np.eye(7)[:, :2]
    vectors = rng.normal(size=(7, 2)) / 2
    at = Overlaps.of(vectors[None], directions), {"scale": np.ones(1), "constant": np.zeros(1)}
    many = [gradient(problem, *at, points=256, seed=seed) for seed in range(40)]

    def off(own, errors):
        """Spread over seeds by the root of the mean of squared errors."""
        return np.std(own, axis=0, ddof=1) / np.sqrt((np.asarray(errors) ** 2).mean(0))

    pairs = [
        *zip(*(map(jax.tree.leaves, (found[:3], found.error[:3])) for found in many), strict=True)
    ]
    for own, errors in zip(*(zip(*side, strict=True) for side in pairs), strict=True):
        assert np.shape(own) == np.shape(errors)
        assert ((off(own, errors) > 0.5) & (off(own, errors) < 1.6)).all()
    of_vectors = [found.of_vectors(vectors, directions)[0] for found in many]
    sets = [found.sets.of_vectors(vectors, directions)[:, 0] for found in many]
    np.testing.assert_allclose(sets[0].mean(0), of_vectors[0], atol=1e-12)
    ratio = off(of_vectors, [x.std(0, ddof=1) / 4 for x in sets])
    assert ((ratio > 0.5) & (ratio < 1.6)).all()


def test_derivatives_of_a_closed_form_are_exact():
    problem = as_problem(SingleLocation(dim=12, length=4), 0.8)
    found = gradient(problem, Overlaps(0.4 * np.eye(2)[None], np.eye(2)[None]), points=1)
    assert found.sets is None and found.m.any()
    assert found.error.m.shape == (1, 2, 2) and not found.error.m.any()


def test_growth_rates_are_those_of_the_hessian_by_differences():
    """At (M, C) without constraint, in r + p + 1 dimensions: minus the second differences of the
    sampled risk along the modes, on the same points."""
    problem = Problem(Places(3, [1.5]), ValueSum(), Heads("erf", 0.8))
    m, q = np.array([[[0.5, 0.1], [-0.2, 0.6]]]), np.array([[[1.0, 0.2], [0.2, 0.9]]])
    found = stability(problem, Overlaps(m, q), points=1 << 8, seed=3)
    with jax.enable_x64(True):
        drawn = draw_points(problem, Shape(3, 2, 3), 1 << 8, 3)
        c = Overlaps(m, q).coordinates()[1][0]
        u = np.concatenate([m[0], c, np.zeros((2, 1))], 1)

        def at(x):
            return float(mean_loss(drawn, problem, State(x[:, :2], x[:, 2:])))

        for rate, mode in zip(found.rate[0].values, found.directions[0].values, strict=True):
            if np.isfinite(rate):
                second = (at(u + 1e-3 * mode) - 2 * at(u) + at(u - 1e-3 * mode)) / 1e-6
                assert second == pytest.approx(-rate, abs=2e-3)
                assert np.linalg.norm(mode) == pytest.approx(1)
        slope = jax.grad(lambda x: mean_loss(drawn, problem, State(x[:, :2], x[:, 2:])))(u)
    assert found.speed[0] == pytest.approx(float(np.linalg.norm(slope)))


def test_a_risk_is_the_mean_of_sixteen_sets_that_share_its_points():
    problem, p, r, _ = PROBLEMS["two softmax heads"]
    u = np.random.default_rng(1).normal(size=(1, 9, p)) / 3
    overlaps = Overlaps.of(u, np.eye(9)[:, :r])
    value, error = risk(problem, overlaps, points=100, seed=6)
    with jax.enable_x64(True):
        state = State(*(jnp.asarray(x[0]) for x in overlaps.coordinates()))
        sets = [
            float(mean_loss(draw_points(problem, Shape(4, r, p), 8, 6, place), problem, state))
            for place in range(16)
        ]
    assert value[0] == pytest.approx(np.mean(sets))
    assert error[0] == pytest.approx(np.std(sets, ddof=1) / 4)


def test_tangents_are_projections_along_their_constraints():
    rng = np.random.default_rng(2)
    u, g = np.linalg.qr(rng.normal(size=(5, 2)))[0].T, rng.normal(size=(2, 5))
    with jax.enable_x64(True):
        here = jnp.asarray(u), jnp.asarray(g)
        unit, frame, free = (
            np.asarray(tangent(*here, name)) for name in ("unit", "orthonormal", "none")
        )
    np.testing.assert_array_equal(free, g)
    np.testing.assert_allclose((unit * u).sum(1), 0, atol=1e-12)
    np.testing.assert_allclose(unit, g - (g * u).sum(1)[:, None] * u, atol=1e-12)
    # The nearest move that keeps a frame: what is taken away is a symmetric matrix times the frame.
    np.testing.assert_allclose(frame @ u.T + u @ frame.T, 0, atol=1e-12)
    taken = (g - frame) @ u.T
    np.testing.assert_allclose(taken, taken.T, atol=1e-12)
    np.testing.assert_allclose(g - frame, taken @ u, atol=1e-12)


def test_points_are_rounded_up_shared_out_in_blocks_and_never_infinite():
    problem = Problem(Places(3, [1.5], shuffled=True), ValueSum(0.5), Heads())
    shape = Shape(3, 2, 4)
    few = draw_points(problem, shape, 5, 0)
    assert few.normals.shape == (1, 6, 3, 8)
    assert few.uniforms.shape == (1, 4, 8) and few.noise.shape == (1, 1, 8)
    many = draw_points(problem, shape, 1 << 11, 0)
    assert many.normals.shape == (16, 6, 3, 128) and np.isfinite(many.normals).all()
    # In a scrambled net of 2^11 points every interval of length 2^-11 has one.
    for values in (special.ndtr(many.normals[:, 3, 1].ravel()), many.uniforms[:, 2].ravel()):
        assert sorted(np.floor(values * 2048)) == list(range(2048))
    # Beyond a block any number of blocks, each of them a net.
    between = draw_points(problem, shape, 1000, 0).uniforms
    assert between.shape == (8, 4, 128)
    for block in between:
        assert sorted(np.floor(block[2] * 128)) == list(range(128))
    assert (draw_points(problem, shape, 5, 0, 1).normals != few.normals).any()
    assert (draw_points(problem, shape, 5, 1).normals != few.normals).any()
    plain = draw_points(problem, shape, 1 << 13, 0, quasi=False)
    assert abs(plain.normals.std() - 1) < 0.02 and abs(plain.uniforms.mean() - 0.5) < 0.01
    assert plain.normals.shape == (64, 6, 3, 128)


def test_the_smallest_of_several_dimensions_must_do():
    problem = Problem(Places(4, [2.0]), ValueSum(), Heads("erf"))
    two = Overlaps(np.stack([0.5 * np.eye(2)] * 2), np.stack([np.eye(2)] * 2))
    with pytest.raises(InputError, match="dim = 3"):
        prepare(problem, two, dim=np.array([30, 3]))
    assert prepare(problem, two, dim=np.array([30, 4])).shape.p == 2


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(population) == [
        "draw_points place=0",
        "risk points=16384 seed=0",
        "gradient points=16384 seed=0",
        "best_overlaps starts=16 scale=1 points=4096 trips=300 seed=0",
    ]


@float64
def test_kept_sequences_hold_no_roots_and_have_the_losses_of_their_random_numbers():
    length = 12
    problem = Problem(Places(length, [3.0], correlation=0.3), ValueSum(0.5), Heads(lam=2.0))
    problems, states, shape = prepare(problem, Overlaps(0.6 * np.eye(2)[None], np.eye(2)[None]))
    one, state = jax.tree.map(lambda x: x[0], (problems, states))
    drawn = draw_points(problem, shape, 512, seed=3)
    kept = sequences(one, drawn)
    assert max(x.size for x in jax.tree.leaves(kept)) == 4 * length * 512
    assert float(mean_loss(kept, one, state)) == pytest.approx(
        float(mean_loss(drawn, one, state)), rel=1e-6
    )
