import jax
import numpy as np
import pytest
from scipy import stats

from attlas.order_parameters import (
    Heads,
    Network,
    Overlaps,
    Places,
    Pooled,
    Problem,
    SignedPlace,
    ValueSum,
    descend,
    descend_online,
    descend_online_vectors,
    descent,
    label,
    logistic,
)
from attlas.order_parameters.descent import Args, _draw_block, _inputs
from attlas.order_parameters.problem import Shape
from attlas.single_location import Overlaps as Five
from attlas.single_location import SingleLocation
from attlas.single_location import descend as descend_five
from attlas.single_location import descend_online as descend_five_online
from attlas.single_location.reduction import as_matrices, as_problem
from tests.defaults import numbers_by_default

TWO = Places(4, [1.5, 1.0], spread=0.7)
TRIPLES = {
    "two softmax heads, free": (Problem(TWO, ValueSum(0.1), Heads()), "none", 4, 4, (8, 20)),
    "two softmax-1 heads, unit": (
        Problem(TWO, ValueSum(), Heads("softmax-1", 1.5)), "unit", 4, 4, (8, 16)
    ),
    "softmax, correlated tokens, orthonormal": (
        Problem(Places(3, [1.0], correlation=0.5, spread=0.7), ValueSum(0.2), Heads(lam=2.0)),
        "orthonormal", 2, 2, (4, 12),
    ),
    "erf, correlated tokens, free": (
        Problem(Places(3, [1.0], correlation=0.5), ValueSum(), Heads("erf", 0.7)),
        "none", 2, 2, (4, 5),
    ),
    "linear, a background, unit": (
        Problem(Places(3, [1], background=[0, 0, 0.8], extra=1), ValueSum(), Heads("linear", 0.4)),
        "unit", 2, 3, (5, 10),
    ),
    "tanh, random lengths, free": (
        Problem(Places(4, [1.0], shortest=2, shuffled=True), ValueSum(), Heads("tanh")),
        "none", 2, 2, (4, 9),
    ),
    "classification, unit": (
        Problem(SignedPlace(1.0, 3), label, Heads("softmax"), logistic), "unit", 2, 1, (3, 8)
    ),
}  # fmt: skip
RUNS = 800


def starts(p, r, dim, constraint, seed=0):
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(dim, r)))[0]
    vectors = rng.normal(size=(dim, p)) / np.sqrt(dim) * 1.2
    if constraint == "unit":
        vectors /= np.linalg.norm(vectors, axis=0)
    if constraint == "orthonormal":
        vectors = np.linalg.qr(vectors)[0]
    return np.repeat(vectors[None], RUNS, 0), directions


def entries(data):
    m, q = data["m"].values[:, -1], data["q"].values[:, -1]
    i, j = np.triu_indices(q.shape[-1])
    return np.concatenate([m.reshape(len(m), -1), q[:, i, j]], 1)


def p_values(a, b):
    moves = np.ptp(b, axis=0) > 1e-5
    return np.array(
        [stats.ks_2samp(x, y).pvalue for x, y in zip(a.T[moves], b.T[moves], strict=True)]
    )


SMALLEST, LARGER = 0, 1
PLACES = {
    "two softmax heads, free": (SMALLEST, LARGER),
    "two softmax-1 heads, unit": (LARGER,),
    "softmax, correlated tokens, orthonormal": (SMALLEST, LARGER),
    "erf, correlated tokens, free": (LARGER,),
    "linear, a background, unit": (SMALLEST,),
    "tanh, random lengths, free": (LARGER,),
    "classification, unit": (SMALLEST,),
}
"""Every head and law in one dimension, every constraint in both; the rest are long tests."""


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(
            name,
            place,
            id=f"{name}, {said} d",
            marks=() if place in PLACES[name] else pytest.mark.long,
        )
        for name in TRIPLES
        for place, said in ((SMALLEST, "smallest"), (LARGER, "larger"))
    ],
)
def test_online_descent_has_the_law_of_descent_on_vectors(name, place):
    problem, constraint, p, r, dims = TRIPLES[name]
    dim = dims[place]
    assert place or dim == p + r
    vectors, directions = starts(p, r, dim, constraint)
    options = {"batch_size": 2, "step_size": 0.15, "steps": 6, "constraint": constraint}
    reduced = descend_online(
        problem, Overlaps.of(vectors, directions), dim=dim, points=0, seed=1, **options
    )
    walked = descend_online_vectors(problem, vectors, directions, seed=2, **options)
    found = p_values(entries(reduced), entries(walked))
    assert len(found) >= 3 and found.min() > 1e-4 / len(found)


def test_roots_outside_the_span_are_those_of_wishart_matrices():
    """Lower triangular; B = R R^T has mean n I and variances 2 n on the diagonal, n beside it; with
    fewer degrees of freedom than columns it has their rank."""
    problem, freedom = Problem(TWO, ValueSum(0.1), Heads()), np.array([2] * 8 + [9] * 8)
    raw = _draw_block(3, 0, 4000, 1, 4000, problem, Shape(4, 4, 3), freedom, 0)
    assert (raw.bartlett == np.tril(raw.bartlett)).all() and (np.diff(raw.time) == 1).all()
    b = raw.bartlett @ raw.bartlett.swapaxes(-1, -2)
    for n, lanes in ((2, slice(0, 8)), (9, slice(8, 16))):
        own = b[:, lanes].reshape(-1, 3, 3)
        assert np.linalg.matrix_rank(own[0]) == min(n, 3)
        wanted = n * (1 + np.eye(3))
        error = (wanted / len(own)) ** 0.5
        assert (abs(own.mean(0) - n * np.eye(3)) < 5 * error).all()
        assert (abs(own.var(0) / wanted - 1) < 0.1).all()


@pytest.mark.parametrize(("length", "batch"), [(3, 2), (11, 7), (900, 3)])
def test_fields_are_made_of_independent_normals(length, batch):
    """Also where a step has more of them than generators run side by side, and an odd number."""
    problem = Problem(Places(length, [1.0]), ValueSum(), Heads())
    size = 40 if length < 900 else 2
    raw = _draw_block(1, 0, size, batch, size, problem, Shape(length, 2, 2), np.full(16, 9), 0)
    assert np.prod(raw.seeds.shape[1:]) <= descent.WIDE
    columns = np.zeros((4, length), np.float32)
    normals = np.asarray(jax.jit(_inputs)(raw, Args(None, None, columns)).draw.normals)
    assert normals.shape == (size, 16, 4, length, batch) and normals.dtype == np.float32
    flat = normals.astype(float).ravel()
    assert stats.kstest(flat[:: max(1, len(flat) // 20_000)], "norm").pvalue > 1e-3
    wanted = -(2**23) * np.expm1(-flat.size / 2**23)  # different ones, of 2^23 that there are
    assert np.unique(normals).size == pytest.approx(wanted, rel=0.005)
    moments = [np.mean(flat**n) for n in (1, 2, 4)]
    assert abs(np.array(moments) - [0, 1, 3]).max() < 5 * np.sqrt(96 / len(flat))
    for axis in range(5):  # neighbours along each axis
        ahead = np.moveaxis(normals, axis, 0).astype(float)
        products = ahead[:-1] * ahead[1:]
        assert abs(products.mean()) < 5 / np.sqrt(products.size)


def test_one_degree_of_freedom_too_few_is_seen():
    # The loss is the sum of the fields, so that the gradient is a Gaussian vector of d dimensions.
    problem = Problem(Places(3, [1.0]), nothing, Pooled(), prediction_itself)
    vectors, directions = starts(1, 2, 5, "none")
    start = Overlaps.of(vectors, directions)
    options = {"batch_size": 1, "step_size": 1.0, "steps": 1}
    walked = entries(descend_online_vectors(problem, vectors, directions, seed=2, **options))
    worst = [
        p_values(
            entries(
                descend_online(
                    problem, start, dim=5, points=0, seed=1, extra_freedom=extra, **options
                )
            ),
            walked,
        ).min()
        for extra in (0, -1)
    ]
    assert worst[0] > 1e-4 and worst[1] < 1e-6


def nothing(teacher, tokens, noise):
    return 0 * noise[0]


def prediction_itself(prediction, target):
    return prediction


def test_parameters_of_a_network_descend_online_in_law_too():
    problem = Problem(Places(2, [1.5], shuffled=True), ValueSum(), Network())
    vectors, directions = starts(4, 2, 9, "none")
    parameters = {
        "bias": np.full((RUNS, 2), 0.1),
        "readout": np.tile([1.0, -0.5], (RUNS, 1)),
        "constant": np.zeros(RUNS),
    }
    options = {"batch_size": 2, "step_size": 0.1, "steps": 5, "parameters": parameters}
    reduced = descend_online(
        problem, Overlaps.of(vectors, directions), dim=9, points=0, seed=1, **options
    )
    walked = descend_online_vectors(problem, vectors, directions, seed=2, **options)
    for name in ("parameter_0", "parameter_1", "parameter_2"):
        a, b = (data[name].values[:, -1].reshape(RUNS, -1) for data in (reduced, walked))
        assert p_values(a, b).min() > 1e-4
    assert p_values(entries(reduced), entries(walked)).min() > 1e-5


@pytest.fixture(scope="module")
def erf():
    task = SingleLocation(dim=20, length=4, gamma=0.8, noise=0.1)
    k, v = np.random.default_rng(1).normal(size=(2, 5, 20))
    k, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (k, v))
    problem = as_problem(task, 0.8)
    directions = np.stack([task.k_star, task.v_star], 1)
    five = Five.of(k, v, task)
    overlaps = Overlaps.of(np.stack([k, v], -1), directions)
    for mine, its in zip(overlaps, as_matrices(five), strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-12)
    return task, five, problem, overlaps


def test_erf_on_one_place_descends_as_five_overlaps_do(erf):
    task, five, problem, overlaps = erf
    options = {"step_size": 0.02, "steps": 200, "record_every": 50}
    wanted = descend_five(task, five, lam=0.8, **options)
    given = descend(problem, overlaps, constraint="unit", **options)
    pairs = {
        "kappa": given.m[..., 0, 0], "nu": given.m[..., 1, 1], "theta": given.m[..., 1, 0],
        "eta": given.m[..., 0, 1], "rho": given.q[..., 0, 1], "risk": given.risk,
    }  # fmt: skip
    for name, values in pairs.items():
        np.testing.assert_allclose(values, wanted[name], atol=1e-10)
    assert abs(wanted.kappa[:, -1] - wanted.kappa[:, 0]).max() > 0.1


def test_erf_on_one_place_descends_online_in_the_law_of_five_overlaps(erf):
    task, five, problem, overlaps = erf
    some = Overlaps(*(np.repeat(x[:1], RUNS, 0) for x in overlaps))
    options = {"batch_size": 2, "step_size": 0.05, "steps": 12}
    a = descend_online(problem, some, dim=20, constraint="unit", points=0, seed=3, **options)
    b = descend_five_online(
        task,
        Five(*(np.repeat(x[:1], RUNS) for x in five)),
        lam=0.8,
        seed=4,
        record_every=12,
        **options,
    )
    last = b.isel(step=-1)
    wanted = np.stack([last[name] for name in ("kappa", "eta", "theta", "nu", "rho")], 1)
    assert p_values(entries(a)[:, [0, 1, 2, 3, 5]], wanted).min() > 1e-5


def test_flow_is_the_limit_of_small_steps(erf):
    _, _, problem, overlaps = erf
    options = {"constraint": "unit", "record_every": 10_000}
    flowed = descend(problem, overlaps, step_size=0.02, steps=50, flow=True, **options)
    off = [
        abs(
            descend(problem, overlaps, step_size=1 / n, steps=n, **options).m[:, -1]
            - flowed.m[:, -1]
        ).max()
        for n in (400, 800)
    ]
    assert off[0] < 0.02 and 1.7 < off[0] / off[1] < 2.3


def test_flow_is_of_the_fourth_order(erf):
    _, _, problem, overlaps = erf
    options = {"constraint": "unit", "flow": True, "record_every": 10_000}
    ends = [
        descend(problem, overlaps, step_size=0.5 / n, steps=n, **options).m[:, -1].values
        for n in (40, 80, 640)
    ]
    off = [abs(end - ends[-1]).max() for end in ends[:2]]
    assert off[0] > 1e-8 and 11 < off[0] / off[1] < 24


def test_steps_of_problems_with_and_without_shared_sequences_are_the_same():
    """One problem draws its sequences once, one for each start draws them at every step."""
    problem = Problem(Places(4, [2.0]), ValueSum(0.3), Heads("softmax", 1.5))
    start = Overlaps(np.full((2, 2, 2), 0.1), np.tile(np.eye(2), (2, 1, 1)))
    options = {"step_size": 0.1, "steps": 15, "points": 1 << 10, "seed": 4}
    shared, apart = (descend(x, start, **options) for x in (problem, [problem, problem]))
    np.testing.assert_allclose(shared.m, apart.m, atol=1e-9)
    np.testing.assert_allclose(shared.risk, apart.risk, atol=1e-6)


def test_problems_that_differ_in_numbers_run_in_one_program_and_alone_alike():
    problems = [
        Problem(Places(4, [s]), ValueSum(), Heads("softmax", lam)) for s, lam in ((1, 1), (3, 2))
    ]
    start = Overlaps(np.full((2, 2, 2), 0.1), np.tile(np.eye(2), (2, 1, 1)))
    options = {"step_size": 0.1, "steps": 20, "points": 256}
    both = descend(problems, start, **options)
    alone = descend(problems[1], Overlaps(*(x[1:] for x in start)), **options)
    np.testing.assert_allclose(both.m[1], alone.m[0], atol=1e-12)
    assert both.risk.dims == ("repeat", "step") and list(both.step) == [0, 20]
    online = descend_online(
        problems, start, dim=(10, 20), batch_size=2, step_size=(0.1, 0.05), steps=40, points=64
    )
    again = descend_online(
        problems, start, dim=(10, 20), batch_size=2, step_size=(0.1, 0.05), steps=20,
        record_every=10, points=64,
    )  # fmt: skip
    assert online.risk.shape == (2, 2) and np.isfinite(online.risk).all()
    assert list(again.step) == [0, 10, 20]


def test_short_runs_begin_as_long_ones_and_few_as_many():
    problem = Problem(Places(4, [1.0]), ValueSum(), Heads())
    start = Overlaps(np.full((20, 2, 2), 0.1), np.tile(np.eye(2), (20, 1, 1)))
    options = {"dim": 9, "batch_size": 1, "step_size": 0.1, "record_every": 4, "points": 0}
    long = descend_online(problem, start, steps=24, **options)
    short = descend_online(problem, Overlaps(*(x[:3] for x in start)), steps=8, **options)
    np.testing.assert_allclose(short.m, long.m[:3, :3], atol=1e-12)


def test_a_block_of_online_descent_keeps_to_its_room(monkeypatch):
    problem = Problem(Places(4, [1.0]), ValueSum(), Heads())
    start = Overlaps(np.full((1, 2, 2), 0.1), np.eye(2)[None])
    sizes = []

    def draw(*args):
        sizes.append(args[2])
        return _draw_block(*args)

    monkeypatch.setattr(descent, "_draw_block", draw)
    numbers = descent.LANES * 3 * 4 * 4  # of a step: three sequences of four tokens, r + p = 4
    options = {"dim": 9, "batch_size": 3, "step_size": 0.01, "points": 0}
    for room, wanted in ((1, 1), (20 * numbers + 1, 20), (10**9, 500)):
        monkeypatch.setattr(descent, "ROOM", room)
        sizes.clear()
        data = descend_online(problem, start, steps=30, **options)
        assert set(sizes) == {wanted} and len(sizes) == -(-30 // wanted)
        assert data.survived[0] == 30
    descend_online(problem, start, steps=16, **options)
    assert sizes[-1] == descent.SHORT == 16


def test_divergence_is_a_status_with_its_step():
    problem = Problem(Places(4, [1.0]), ValueSum(), Heads("linear"))
    start = Overlaps(np.full((2, 2, 2), 0.1), np.tile(np.eye(2), (2, 1, 1)))
    for run in (
        lambda: descend(problem, start, step_size=(0.01, 50.0), steps=30, points=64),
        lambda: descend_online(
            problem, start, dim=9, batch_size=1, step_size=(0.001, 50.0), steps=30, points=0
        ),
    ):
        found = run()
        assert list(found.status) == ["completed", "diverged"]
        assert found.survived[0] == 30 and found.survived[1] < 30


def test_progress_counts_all_steps():
    problem = Problem(Places(4, [1.0]), ValueSum(), Heads())
    start = Overlaps(np.full((2, 2, 2), 0.1), np.tile(np.eye(2), (2, 1, 1)))
    seen = []
    descend(problem, start, step_size=0.1, steps=5, points=8, progress=lambda *x: seen.append(x))
    assert seen[-1] == (5, 5)
    assert jax.config.jax_enable_x64 is False


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(descent) == [
        "descend points=4096 seed=0 record_every=100",
        "descend_online seed=0 record_every=100 points=512 extra_freedom=0",
        "descend_online_vectors seed=0 record_every=100",
    ]
