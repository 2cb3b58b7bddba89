import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from scipy import stats

from attlas.errors import InputError
from attlas.single_location import (
    Constant,
    InverseDecay,
    Overlaps,
    SingleLocation,
    descend,
    descend_vectors,
    descent,
    manifold_start,
    risk,
    sphere_start,
)
from tests.defaults import numbers_by_default


def random_vectors(seed, repeats, dim):
    pairs = np.random.default_rng(seed).normal(size=(2, repeats, dim))
    return pairs / np.linalg.norm(pairs, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("sizes", "seed", "lam", "step_size"),
    [
        ((4, 3, 1.2), 1, 0.7, 1e-2),
        ((5, 5, 0.5), 2, 1.5, 1e-2),
        ((400,), None, InverseDecay(1.0), 1e-3),
    ],
)
def test_descent_closes_on_the_five_overlaps(sizes, seed, lam, step_size):
    task = SingleLocation(*sizes, key=None if seed is None else jax.random.key(seed))
    k, v = random_vectors(3, 4, task.dim)
    options = {"lam": lam, "step_size": step_size, "steps": 500, "record_every": 50}
    vectors = descend_vectors(task, k, v, **options)
    overlaps = descend(task, Overlaps.of(k, v, task), **options)
    for name in (*Overlaps._fields, "risk", "distance"):
        assert overlaps[name].values == approx(vectors[name].values, abs=1e-11)


def test_everything_recorded_belongs_to_the_same_step():
    task = SingleLocation(50)
    path = descend(
        task,
        sphere_start(task, jax.random.key(0), 3),
        lam=InverseDecay(0.5, 0.01),
        step_size=1e-3,
        steps=100,
    )
    for t in (0, 100):
        here = path.sel(step=t)
        overlaps = Overlaps(*(here[name].values for name in Overlaps._fields))
        assert here["risk"].values == approx(
            np.asarray(risk(task, overlaps, 0.5 / (1 + 0.01 * t))), abs=1e-14
        )
        assert here["distance"].values == approx(np.asarray(overlaps.distance), abs=1e-15)


def test_the_penalty_pulls_by_its_own_gradient():
    """That of c (m theta / L)^2, on the sphere: -2c (m / L)^2 theta (I - vv')k* beside the risk's,
    of which theta and nu show (1 - theta^2) and -theta nu."""
    task = SingleLocation(9, 4, 0.8)
    start = Overlaps.of(*random_vectors(5, 3, 9), task)
    options = {"lam": 0.5, "step_size": 1e-7, "steps": 1}
    bare, pulled = (descend(task, start, penalty=c, **options).isel(step=-1) for c in (0.0, 0.7))
    pull = -2 * 0.7 * (task.m / 4) ** 2 * start.theta
    for name, share in (("theta", 1 - start.theta**2), ("nu", -start.theta * start.nu)):
        moved = (pulled[name] - bare[name]).values / 1e-7
        assert moved == approx(np.asarray(pull * share), rel=1e-4, abs=1e-6)
    for name in ("kappa", "eta"):
        assert pulled[name].values == approx(bare[name].values, abs=1e-13)


def test_the_manifold_keeps_its_exact_zeros():
    task = SingleLocation()
    path = descend(
        task, manifold_start(task, jax.random.key(5), 8), lam=0.1, step_size=4e-3, steps=5000
    )
    assert path["distance"].values.max() == 0


def test_descent_from_the_manifold_reaches_the_oracle_as_in_figure_3b():
    task = SingleLocation()
    last = descend(
        task, manifold_start(task, jax.random.key(6), 30), lam=0.1, step_size=4e-3, steps=20_000
    ).isel(step=-1)
    assert (last["kappa"] * last["nu"] > 0).all()
    assert abs(last["kappa"]).min() > 0.97 and abs(last["nu"]).min() > 0.999
    assert last["risk"].values == approx(0.11369, abs=1e-4)


def test_plain_functions_are_schedules():
    task = SingleLocation(30)
    start = sphere_start(task, jax.random.key(1), 2)
    options = {"step_size": 1e-3, "steps": 50}
    mine = descend(task, start, lam=lambda t: 0.5 / (1 + 1e-4 * t), **options)
    assert np.array_equal(
        mine["risk"], descend(task, start, lam=InverseDecay(0.5), **options)["risk"]
    )
    assert np.array_equal(
        descend(task, start, lam=0.5, **options)["risk"],
        descend(task, start, lam=Constant(0.5), **options)["risk"],
    )


def test_a_repeat_does_not_depend_on_how_many_there_are():
    task = SingleLocation(80)
    few, many = (sphere_start(task, jax.random.key(2), n) for n in (3, 10))
    assert all(np.array_equal(a, b[:3]) for a, b in zip(few, many, strict=True))


def test_divergence_is_a_status():
    task = SingleLocation(20)
    start = sphere_start(task, jax.random.key(3), 2)
    path = descend(task, start, lam=0.5, step_size=np.array([1e-3, 1e200]), steps=20)
    assert path["status"].values.tolist() == ["completed", "diverged"]
    assert path["survived"].values[0] == 20 and path["survived"].values[1] < 20


@pytest.mark.parametrize("dim", [4, 40])
def test_starts_on_the_sphere_have_the_law_of_uniform_vectors(dim):
    task = SingleLocation(dim)
    drawn = sphere_start(task, jax.random.key(7), 4000)
    k, v = random_vectors(8, 4000, dim)
    for mine, its in zip(drawn, Overlaps.of(k, v, task), strict=True):
        assert stats.ks_2samp(np.asarray(mine), np.asarray(its)).pvalue > 1e-4
    joint = [
        np.asarray(x.kappa) * np.asarray(x.theta) * np.asarray(x.rho)
        for x in (drawn, Overlaps.of(k, v, task))
    ]
    assert stats.ks_2samp(*joint).pvalue > 1e-4


def test_starts_on_the_manifold_have_the_papers_law():
    dim, repeats = 6, 4000
    task = SingleLocation(dim)
    drawn = manifold_start(task, jax.random.key(9), repeats)
    rng = np.random.default_rng(10)
    k, v = rng.normal(size=(2, repeats, dim))
    k[:, 1] = 0
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    rest = k.copy()
    rest[:, 0] = 0
    rest /= np.linalg.norm(rest, axis=1, keepdims=True)
    v[:, 0] = 0
    v -= (v * rest).sum(1, keepdims=True) * rest
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    assert stats.ks_2samp(np.asarray(drawn.kappa), k[:, 0]).pvalue > 1e-4
    assert stats.ks_2samp(np.asarray(drawn.nu), v[:, 1]).pvalue > 1e-4
    assert np.all(np.asarray(drawn.distance) == 0)


def test_signs_of_gradients_leave_the_manifold():
    task = SingleLocation(20, key=jax.random.key(4))
    k, v = random_vectors(11, 2, 20)
    k -= (k @ task.v_star)[:, None] * task.v_star
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    v -= (v @ task.k_star)[:, None] * task.k_star
    along = k - (k @ task.k_star)[:, None] * task.k_star
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    v -= (v * along).sum(1, keepdims=True) * along
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    options = {"lam": 0.1, "step_size": 4e-3, "steps": 50}
    assert descend_vectors(task, k, v, **options)["distance"].max() < 1e-13
    assert descend_vectors(task, k, v, **options, direction="sign")["distance"].max() > 1e-2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": -1}, "steps = -1"),
        ({"record_every": 0}, "record_every = 0"),
        ({"lam": -0.5}, "lam = -0.5"),
        ({"step_size": 0.0}, "step_size = 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_computed(options, says):
    task = SingleLocation(20)
    start = sphere_start(task, jax.random.key(0), 1)
    with pytest.raises(InputError, match=says):
        descend(task, start, **{"lam": 0.1, "step_size": 1e-3, "steps": 10, **options})


def test_impossible_starts_and_widths_are_refused():
    task = SingleLocation(20)
    with pytest.raises(InputError, match="belong to no unit vectors"):
        descend(task, Overlaps(1.0, 1.0, 1.0, 0.0, 0.0), lam=0.1, step_size=1e-3, steps=1)
    k, v = random_vectors(0, 1, 21)
    with pytest.raises(InputError, match="along dim it must have 20, as the task has"):
        descend_vectors(task, jnp.asarray(k), jnp.asarray(v), lam=0.1, step_size=1e-3, steps=1)
    k, v = random_vectors(0, 1, 20)
    with pytest.raises(InputError, match="direction = 'down'"):
        descend_vectors(task, k, v, lam=0.1, step_size=1e-3, steps=1, direction="down")


def test_records_say_what_they_are_and_xarray_plots_them():
    task = SingleLocation(20)
    data = descend(task, sphere_start(task, 0, 2), lam=0.1, step_size=1e-3, steps=4, record_every=2)
    assert all("long_name" in data[name].attrs for name in data.variables)
    matplotlib = pytest.importorskip("matplotlib", reason="pip install 'attlas[notebook]'")
    matplotlib.use("agg")
    line, _ = data["risk"].plot.line(x="step")
    assert line.axes.get_xlabel() == "steps done" and "risk" in line.axes.get_ylabel()


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(descent) == [
        "descend record_every=100 penalty=0",
        "descend_vectors record_every=100",
        "tangents penalty=0",
    ]
