import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy import stats

from attlas.errors import InputError
from attlas.schedules import Constant
from attlas.single_location import (
    Gate,
    InverseDecay,
    Overlaps,
    SingleLocation,
    descend,
    descend_online,
    descend_online_vectors,
    online,
    risk,
    sphere_start,
)
from attlas.single_location.gates import as_head
from attlas.single_location.online import batch_risk, gaussian_pairs, sequences, simulate
from attlas.single_location.population import heads_with
from attlas.single_location.responses import gate_sums, softmax_sums
from tests.defaults import numbers_by_default
from tests.sampling import of_sample

TASK = SingleLocation(dim=20, length=4, noise=0.1)
RUN = {"batch_size": 3, "lam": 1.0, "step_size": 0.01, "record_every": 50}


def starts(task, repeats, seed=0):
    return sphere_start(task, jax.random.key(seed), repeats)


def test_gaussian_pairs_are_gaussian_and_independent():
    words = np.random.default_rng(0).integers(0, 2**32, (2, 400_000), dtype=np.uint32)
    a, b = (np.asarray(x, float) for x in gaussian_pairs(*map(jnp.asarray, words)))
    for x in (a, b):
        assert stats.kstest(x, "norm").pvalue > 1e-4
        assert x.var() == approx(1, abs=0.01) and (x**4).mean() == approx(3, abs=0.1)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.007 and abs(np.corrcoef(a**2, b**2)[0, 1]) < 0.007
    # The polynomials are the circle functions to single precision.
    angle = np.arange(0, 2**32, 2**20, dtype=np.uint32)
    c, s = (
        np.asarray(x, float)
        for x in gaussian_pairs(jnp.asarray(angle), jnp.full_like(angle, 2**31))
    )
    assert np.hypot(c, s) == approx(np.full(len(angle), np.sqrt(2 * np.log(2))), rel=1e-6)
    within = (angle << 2).astype(np.int32) * (np.pi / 2 / 2**32)
    turn = (angle >> 30) * np.pi / 2 + within
    assert c == approx(np.sqrt(2 * np.log(2)) * np.cos(turn), abs=3e-7)
    assert s == approx(np.sqrt(2 * np.log(2)) * np.sin(turn), abs=3e-7)
    radius = np.array([0, 1, 77, 2**20, 2**31, 3 * 2**30], np.uint32)
    c, s = (np.asarray(x, float) for x in gaussian_pairs(*map(jnp.asarray, (0 * radius, radius))))
    assert c == approx(np.sqrt(-2 * np.log((radius + 0.5) / 2**32)), rel=1e-3) and not s.any()


@functools.cache
def made(head, chunks, length=6, examples=100, lam=1.3, seed=0):
    """What `sequences` makes in chunks of ten steps, [example, sum], and the same sums over tokens
    of NumPy's ziggurat."""
    lanes, n = 10 * examples, 10 * chunks * examples
    seeds = np.random.SFC64(seed).random_raw(3 * lanes // 2).view(np.uint32).reshape(3, lanes)
    lams = jnp.full((chunks, 10, 1), lam, jnp.float32)
    fast = jax.jit(sequences, static_argnums=(1, 2))(head, length, examples, seeds, lams)
    z1, z2 = np.random.default_rng(seed).standard_normal((2, length, n), np.float32)
    others = jnp.asarray(z1[1:]), jnp.asarray(z2[1:]), jnp.float32(lam)
    sums = softmax_sums(*others) if head is None else gate_sums(head, *others)
    slow = np.stack([z1[0], z2[0], *map(np.asarray, sums)], 1)
    return np.moveaxis(np.asarray(fast), 2, -1).reshape(n, -1), slow


def apart(fast, slow):
    """By how many standard errors means and mean squares differ, at most."""
    found = []
    for one, other in ((fast, slow), (fast**2, slow**2)):
        error = np.hypot(one.std(), other.std()) / np.sqrt(len(one))
        found.append(abs(one.mean() - other.mean()) / error)
    return max(found)


def sums_have_one_law(head, chunks):
    fast, slow = made(head, chunks)
    assert fast.shape == slow.shape and np.isfinite(fast).all()
    for one, other in zip(fast.T.astype(float), slow.T.astype(float), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 1e-4
        assert apart(one, other) < 5
    assert np.corrcoef(fast.T) == approx(np.corrcoef(slow.T), abs=12 / np.sqrt(len(fast)))


ERF, SIGMOID = Gate("erf", np.float32(0)), Gate("sigmoid", np.float32(1))


@pytest.mark.parametrize("head", [ERF, None], ids=["erf", "softmax"])
def test_sums_made_from_seeds_have_the_law_of_sums_of_drawn_tokens(head):
    sums_have_one_law(head, 10)


@pytest.mark.long
@pytest.mark.parametrize("head", [ERF, SIGMOID, None], ids=["erf", "sigmoid", "softmax"])
def test_a_hundred_thousand_sums_made_from_seeds_have_the_law_of_sums_of_drawn_tokens(head):
    sums_have_one_law(head, 100)


def test_what_a_hundred_thousand_draws_can_tell_apart():
    # At level 1e-4 a statistic of .00995 is seen; a scale off by s moves the law by .242 s. Second
    # moments see less: five standard errors of them are 3.2 % of variance.
    fast, slow = (x[:, 0].astype(float) for x in made(ERF, 100))
    assert stats.ks_2samp(1.06 * fast, slow).pvalue < 1e-4
    assert apart(1.02 * fast, slow) > 5 > apart(fast, slow)


def test_results_do_not_depend_on_how_many_repeats_or_steps_are_run_or_how_it_is_recorded():
    start = starts(TASK, 40)
    whole = descend_online(TASK, start, steps=1100, seed=5, **RUN)
    few = descend_online(TASK, Overlaps(*(x[:7] for x in start)), steps=1100, seed=5, **RUN)
    short = descend_online(TASK, start, steps=50, seed=5, **RUN)
    sparse = descend_online(TASK, start, steps=1100, seed=5, **{**RUN, "record_every": 1100})
    for name in Overlaps._fields:
        np.testing.assert_array_equal(whole[name][:7], few[name])
        np.testing.assert_array_equal(whole[name].sel(step=50), short[name].sel(step=50))
        np.testing.assert_array_equal(whole[name].sel(step=1100), sparse[name].sel(step=1100))
    assert not np.array_equal(
        whole["kappa"], descend_online(TASK, start, steps=1100, seed=6, **RUN)["kappa"]
    )
    assert (whole["status"] == "completed").all() and (whole["survived"] == 1100).all()


def test_overlaps_stay_those_of_unit_vectors():
    path = descend_online(TASK, starts(TASK, 16), steps=2000, seed=1, **{**RUN, "step_size": 0.05})
    states = Overlaps(*(path[name].values for name in Overlaps._fields))
    assert np.linalg.eigvalsh(states.gram()).min() > -1e-5


def test_the_expected_step_is_that_of_the_population_gradient():
    # A step so short that the normalisation does not matter: its mean over batches is the
    # gradient's.
    task = SingleLocation(dim=12, length=3, noise=0.3)
    one = Overlaps(*(np.asarray(x) for x in starts(task, 1, 3)))
    many = Overlaps(*(np.repeat(x, 20_000) for x in one))
    alpha = 1e-3
    args = {"lam": 0.8, "step_size": alpha, "steps": 1, "record_every": 1}
    noisy = descend_online(task, many, batch_size=4, seed=2, **args)
    exact = descend(task, one, **args)
    for name in ("kappa", "nu", "theta", "eta"):
        moves = (noisy[name][:, 1] - noisy[name][:, 0]).values / alpha
        expected = float(exact[name][0, 1] - exact[name][0, 0]) / alpha
        mean, error = of_sample(moves)
        assert error < 0.02 and abs(mean - expected) < 5 * error + 0.02 * abs(expected) + 0.01


@pytest.mark.parametrize(
    ("dim", "length", "batch_size", "step_size", "steps", "activation"),
    [
        (4, 2, 1, 0.5, 1, "erf"),
        (7, 3, 2, 6.0, 1, "erf"),  # so long that products of the two moves decide
        (5, 3, 1, 0.2, 8, "tanh"),
        (12, 4, 2, 0.05, 16, "softmax"),
        (10, 3, 6, 0.05, 16, Gate("sigmoid", 1.0)),
    ],
)
def test_same_law_as_descent_on_vectors(dim, length, batch_size, step_size, steps, activation):
    overlaps_have_one_law(4000, dim, length, batch_size, step_size, steps, activation)


@pytest.mark.long
@pytest.mark.parametrize(
    ("dim", "length", "batch_size", "step_size", "steps", "activation"),
    [
        (4, 2, 1, 0.5, 1, "erf"),
        (7, 3, 2, 0.1, 3, "erf"),
        (12, 4, 2, 0.05, 1, "softmax"),
    ],
)
def test_same_law_at_a_hundred_thousand_draws(
    dim, length, batch_size, step_size, steps, activation
):
    overlaps_have_one_law(100_000, dim, length, batch_size, step_size, steps, activation)


def overlaps_have_one_law(n, dim, length, batch_size, step_size, steps, activation):
    task = SingleLocation(dim, length, gamma=0.6, noise=0.2)
    k, v = (x / np.linalg.norm(x) for x in np.random.default_rng(dim).normal(size=(2, dim)))
    k, v = np.tile(k, (n, 1)), np.tile(v, (n, 1))
    options = {
        "batch_size": batch_size,
        "lam": 1.0,
        "step_size": step_size,
        "steps": steps,
        "record_every": steps,
    }
    here = descend_online(
        task, Overlaps.of(k, v, task), seed=1, activation=activation, **options
    ).isel(step=-1)
    there = descend_online_vectors(task, k, v, seed=2, activation=activation, **options).isel(
        step=-1
    )
    for name in Overlaps._fields:
        assert stats.ks_2samp(here[name], there[name]).pvalue > 1e-4


def test_the_law_is_wrong_without_what_the_target_tells_of_the_third_direction():
    # In four dimensions, one example a step: no average hides a wrong direction.
    task, n = SingleLocation(4, 2, gamma=1.0, noise=0.2), 20_000
    k, v = (x / np.linalg.norm(x) for x in np.random.default_rng(4).normal(size=(2, 4)))
    k, v = np.tile(k, (n, 1)), np.tile(v, (n, 1))
    options = {"batch_size": 1, "lam": 1.0, "step_size": 0.5, "steps": 1, "record_every": 1}
    there = descend_online_vectors(task, k, v, seed=2, **options).isel(step=-1)
    exact = descend_online(task, Overlaps.of(k, v, task), seed=3, **options).isel(step=-1)
    deaf = SingleLocation(4, 2, gamma=1.0, noise=20.0)  # noise drowns what the target tells
    wrong = descend_online(deaf, Overlaps.of(k, v, task), seed=3, **options).isel(step=-1)
    assert min(stats.ks_2samp(exact[x], there[x]).pvalue for x in Overlaps._fields) > 1e-4
    assert min(stats.ks_2samp(wrong[x], there[x]).pvalue for x in Overlaps._fields) < 1e-9


def test_what_rounding_leaves_too_large_is_clipped():
    found = online._within(jnp.array([2.0, -2.0, 0.1, 0.1]), jnp.array([0.25, 0.25, 0.25, -1e-9]))
    np.testing.assert_allclose(found, [0.5, -0.5, 0.1, 0.0])


def test_without_the_complement_the_law_is_another():
    start = Overlaps(*(np.repeat(np.asarray(x), 2000) for x in starts(TASK, 1)))
    schedules = (Constant(1.0), Constant(0.05))
    whole, without = (
        simulate(TASK, start, as_head("erf"), schedules, 3, 16, 1, 16, complement=complement).last
        for complement in (True, False)
    )
    assert min(stats.ks_2samp(a, b).pvalue for a, b in zip(whole, without, strict=True)) < 1e-12


@pytest.mark.parametrize(
    ("angle", "place"), [(2e-4, "k = v"), (1e-5, "k = v"), (1e-4, "v = v*"), (1e-6, "v = v*")]
)
def test_nearly_degenerate_starts_move_as_vectors_do(angle, place):
    task, n = SingleLocation(dim=12, length=3, noise=0.1), 3000
    rng = np.random.default_rng(1)
    k, other = (x / np.linalg.norm(x) for x in rng.normal(size=(2, 12)))
    base = k if place == "k = v" else task.v_star
    other = other - (other @ base) * base
    v = np.cos(angle) * base + np.sin(angle) * other / np.linalg.norm(other)
    k, v = np.tile(k, (n, 1)), np.tile(v, (n, 1))
    options = {"batch_size": 2, "lam": 1.0, "step_size": 0.02, "steps": 1, "record_every": 1}
    here = descend_online(task, Overlaps.of(k, v, task), seed=1, **options).isel(step=-1)
    there = descend_online_vectors(task, k, v, seed=2, **options).isel(step=-1)
    for name in Overlaps._fields:
        assert stats.ks_2samp(here[name].round(5), there[name].round(5)).pvalue > 1e-5


@pytest.mark.parametrize(
    "place",
    [
        (1, 1, 0, 0, 0),
        (0, 0, 1, 1, 0),
        (0.6, 0.0, 0.6, 0.0, 1),
        (0.6, 0.0, -0.6, 0.0, -1),
        (1, 0, 1, 0, 1),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_degenerate_starts_stay_finite(place, noise):
    task = SingleLocation(dim=12, length=3, noise=noise)
    start = Overlaps(*(np.full(4, float(x)) for x in place))
    path = descend_online(task, start, steps=16, seed=1, **{**RUN, "record_every": 1})
    states = Overlaps(*(path[name].values for name in Overlaps._fields))
    assert np.isfinite(np.stack(states)).all() and np.linalg.eigvalsh(states.gram()).min() > -1e-5


def test_the_reported_risk_is_that_of_the_state():
    path = descend_online(
        TASK, starts(TASK, 3), steps=100, seed=1, **{**RUN, "lam": InverseDecay(2.0, 1e-2)}
    )
    states = Overlaps(*(path[name].values for name in Overlaps._fields))
    lams = 2.0 / (1 + 1e-2 * path["step"].values)
    assert path["risk"].values == approx(risk(TASK, states, lams), rel=1e-6)
    batch = batch_risk(
        TASK, Overlaps(*(x.T for x in states)), lams[:, None], jax.random.key(3), 100_000
    )
    assert approx(path["risk"].values, rel=0.05) == batch.T


def test_softmax_is_learnt_without_a_schedule():
    task = SingleLocation(dim=40, length=5, noise=0.1)
    path = descend_online(
        task,
        starts(task, 16),
        batch_size=5,
        lam=1.5,
        step_size=1e-2,
        steps=4000,
        record_every=4000,
        activation="softmax",
    ).isel(step=-1)
    assert (path["kappa"] > 0.9).all() and (path["nu"] > 0.9).all()
    assert (path["risk"] < 0.1).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": 0}, "batch_size = 0"),
        ({"lam": -1.0}, "lam = -1"),
        ({"lam": np.ones(3)}, "one value for all starts"),
        ({"step_size": 0.0}, "step_size = 0"),
        ({"activation": "step"}, "it has no derivative"),
        ({"activation": Gate("tanh", np.ones(3))}, "offset has the shape"),
        ({"lam": lambda t: jnp.ones(3) + 0 * t}, "one value for all starts"),
        ({"activation": "sofmax"}, "unknown activation 'sofmax'. Did you mean softmax"),
        ({"seed": -1}, "seed = -1"),
        ({"record_every": 0}, "record_every = 0"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_computed(change, says):
    with pytest.raises(InputError, match=says):
        descend_online(TASK, starts(TASK, 3), steps=100, **{**RUN, **change})


def test_vectors_of_another_width_are_refused():
    k, v = heads_with(starts(TASK, 2), 21)
    with pytest.raises(InputError, match="along dim it must have 20, as the task has"):
        descend_online_vectors(TASK, k, v, steps=1, **RUN)


def test_progress_counts_the_steps_of_all_groups():
    seen = []
    descend_online(
        TASK,
        starts(TASK, 40),
        steps=600,
        progress=lambda done, total: seen.append((done, total)),
        **RUN,
    )
    assert seen[-1] == (1200, 1200) and len(seen) == 6
    assert jnp.zeros(()).dtype == jnp.float32


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(online) == [
        "descend_online seed=0 record_every=100",
        "descend_online_vectors seed=0 record_every=100",
    ]


def test_each_length_of_the_complement_moves_its_own_heads():
    r"""Of the Wishart factor [[a, 0], [z, b]], a step takes a for k, and for v both: with z = 0 the
    squares of v's complement are $l_{21}^2a^2 + l_{22}^2b^2$."""
    lanes, batch = online.LANES, 3
    head = Gate("erf", np.float32(0.0))
    with jax.enable_x64(True):
        seeds = np.random.default_rng(3).integers(2**32, size=(3, batch * lanes), dtype=np.uint32)
        one = jnp.ones((1, 1, 1), jnp.float32)
        sums = sequences(head, TASK.length, batch * lanes, jnp.asarray(seeds), one)
        examples = sums[0, 0].reshape(-1, batch, lanes)
        zy = np.zeros((batch, lanes), np.float32)
        args = online.Args(
            online.Constants(*(float(x) for x in TASK.constants)),
            np.zeros((TASK.length, batch), np.float32),
            head,
            np.float32(1.0),
        )

        state, step = starts(TASK, lanes), jax.jit(online.step)

        def squares(a, b, z):
            """What scales k and v, up to a factor that does not depend on a, b and z."""
            z5 = np.zeros((5, lanes))
            z5[4] = z
            chi = np.stack([np.full(lanes, a), np.full(lanes, b)])
            inputs = online.Inputs(examples, zy, z5, chi, np.float32(1.0), 0.7)
            moved = step(state, inputs, args)
            return np.asarray(moved.kappa) ** -2.0, np.asarray(moved.nu) ** -2.0

        (k0, v0), (ka, va), (kb, vb) = squares(0, 0, 0), squares(2, 0, 0), squares(0, 2, 0)
        np.testing.assert_allclose(kb, k0)
        for name, one, less in (("k, a", ka, k0), ("v, a", va, v0), ("v, b", vb, v0)):
            assert (one > less * (1 + 1e-9)).all(), name
        twice = squares(4, 0, 0)
        np.testing.assert_allclose(twice[0] - k0, 4 * (ka - k0), rtol=1e-6)
        np.testing.assert_allclose(twice[1] - v0, 4 * (va - v0), rtol=1e-6)
        np.testing.assert_allclose(squares(0, 4, 0)[1] - v0, 4 * (vb - v0), rtol=1e-6)
        both = squares(2, 2, 0)
        np.testing.assert_allclose(both[0], ka)
        np.testing.assert_allclose(both[1] - v0, va - v0 + vb - v0, rtol=1e-6)
        # z is turned towards v by its own factor, as b is.
        np.testing.assert_allclose(squares(0, 0, 2)[1] - v0, vb - v0, rtol=1e-6)
