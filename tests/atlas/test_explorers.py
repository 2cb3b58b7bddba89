"""Every formula of the explorers' script against the function whose twin it is, number by number."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from pytest import approx
from scipy import special

from attlas import gaussian
from attlas.atlas import explorers
from attlas.atlas.pages import write_atlas
from attlas.attention import softmax
from attlas.claims import catalogue
from attlas.kernels import Exponential, cme_attention, cme_weights
from attlas.single_location import SingleLocation, descend, risk
from attlas.single_location.claims.runs import outcomes
from attlas.single_location.landscape import (
    critical_lam,
    flow,
    stability,
    stable_step,
    swapped_point,
)
from attlas.single_location.population import ORACLE, Overlaps, risk_gradient
from attlas.sparse_variables.construction import threshold_head
from attlas.sparse_variables.task import SparseBoolean

pytestmark = pytest.mark.xdist_group("pages")
TASKS = [(0.1, 400, 10, 0.5**0.5), (0.9, 40, 3, 1.2), (0.02, 4, 2, 0.25), (3.0, 1600, 50, 2.0)]
"""(lam, dim, length, gamma): the defaults, something between, and two corners of the sliders."""


@pytest.fixture(scope="module")
def pages(tested, tmp_path_factory):
    return write_atlas(
        [tested("single-location/heat-identity")], tmp_path_factory.mktemp("explorers") / "atlas"
    ).parent


@pytest.fixture(scope="module")
def js(browser, pages):
    """A function of the script, given by an expression of the variable `x`, at every one of a list of points."""
    browser.open(pages / "explorers" / "portrait.html")

    def call(expression, points):
        return np.array(browser.run(f"{json.dumps(points)}.map(x => {expression})"))

    return call


def constants(task):
    lam, dim, length, gamma = task
    return f"attlas.constants({{lam: {lam!r}, dim: {dim}, length: {length}, gamma: {gamma!r}}})"


def heads(count=12):
    """Overlaps of random unit vectors [5, n], the first of them on the manifold."""
    k, v = np.random.default_rng(5).standard_normal((2, count, 5))
    k[:3, 1], v[:3, 0] = 0, 0
    k, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (k, v))
    return np.array(Overlaps(k[:, 0], v[:, 1], v[:, 0], k[:, 1], (k * v).sum(1)))


def test_erf_and_the_smoothed_squares(js, float64):
    x = np.concatenate([np.linspace(-7, 7, 141), [2.4999, 2.5, 1e-9, 5.9, 6.1, 40.0]])
    assert js("attlas.erf(x)", x.tolist()) == approx(special.erf(x), abs=2e-15)
    pairs = [(t, s) for t in np.linspace(-9, 9, 19) for s in (0.005, 0.1, 0.7, 6.0)]
    t, s = np.array(pairs).T
    assert js("attlas.zeta(...x)", pairs) == approx(np.asarray(gaussian.zeta(t, s)), abs=2e-15)
    assert js("attlas.zetas(...x)", pairs) == approx(
        np.stack(gaussian.zeta_derivatives(t, s), 1), abs=1e-13
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_risk_its_gradient_and_the_flow(js, task):
    lam, *sizes = task
    at, points, c = SingleLocation(*sizes), heads(), constants(task)
    x = Overlaps(*points)
    assert js(f"attlas.risk({c}, x)", points.T.tolist()) == approx(
        np.asarray(risk(at, x, lam)), rel=1e-11
    )
    for name, twin in (("gradient", risk_gradient), ("velocity", flow)):
        found = np.stack(np.broadcast_arrays(*twin(at, x, lam)), 1)
        assert js(f"attlas.{name}({c}, x)", points.T.tolist()) == approx(
            found, rel=1e-9, abs=1e-10 * abs(found).max()
        )


@pytest.mark.parametrize("task", TASKS[:3])
def test_descent_step_by_step(js, task):
    lam, *sizes = task
    points, c = heads(), constants(task)
    alpha = float(js(f"attlas.safeStep({c})", [0])[0])
    path = descend(
        SingleLocation(*sizes),
        Overlaps(*points),
        lam=lam,
        step_size=alpha,
        steps=300,
        record_every=1,
    )
    for steps, error in ((1, 1e-12), (300, 1e-7)):
        last = path.sel(step=steps)
        walk = f"(() => {{ const c = {c}; for (let i = 0; i < {steps}; i++) x = attlas.step(c, x, {alpha!r}); return x; }})()"
        assert js(walk, points.T.tolist()) == approx(
            np.stack([last[name] for name in Overlaps._fields], 1), abs=error
        )


def test_the_step_size_does_not_flip_anywhere_on_the_sliders(js):
    corners = [
        (lam, dim, length, gamma)
        for lam in (0.02, 0.1, 0.5)
        for dim in (15, 400, 1600)
        for length in (2, 10, 50)
        for gamma in (0.25, 0.5**0.5, 2.0)
    ]
    for task in corners:
        lam, *sizes = task
        at = SingleLocation(*sizes)
        if stability(at, ORACLE, lam)[-1] < 0:
            assert js(f"attlas.safeStep({constants(task)})", [0])[0] < stable_step(at, lam), task


@pytest.mark.parametrize("task", TASKS)
def test_points_and_levels_of_the_landscape(js, task):
    lam, *sizes = task
    at, c = SingleLocation(*sizes), constants(task)
    assert js(f"attlas.swapped({c})", [0])[0] == approx(np.stack(swapped_point(at, lam)), abs=1e-13)
    assert js(f"attlas.linearRisk({c})", [0])[0] == approx(at.linear_risk())
    if at.dim > 2 * at.gamma**2 * (at.length - 2):
        assert js(f"attlas.criticalLam({c})", [0])[0] == approx(critical_lam(at))


def test_starts_are_heads_and_ends_are_named_as_in_the_claims(js):
    places = [
        (kappa, nu, off)
        for kappa in (-0.98, 0.0, 0.6)
        for nu in (-0.5, 0.98)
        for off in (0.0, 0.3, 0.9)
    ]
    starts = js("attlas.start(...x)", places)
    Overlaps(*starts.T).checked()
    assert abs(starts[::3, 2:]).max() == 0, "without a share off it, the start is on the manifold"
    ends = np.vstack(
        [heads(40).T, [[0.95, 0.95, 0, 0, 0], [-0.95, -0.95, 0, 0, 0], [0, 0.01, 0.6, 0.99, 0]]]
    )
    path = xr.Dataset(
        {name: (("repeat", "step"), ends[:, [i]]) for i, name in enumerate(Overlaps._fields)}
    )
    named, told = js("attlas.ending(x)", ends.tolist()), outcomes(path)
    assert (np.isin(named, ("oracle", "mirror")) == told["oracle"].values).all()
    assert ((named == "swapped") == told["swapped"].values).all() and (
        named[-3:] == ["oracle", "mirror", "swapped"]
    ).all()


@pytest.mark.parametrize("task", [TASKS[0], (0.3, 100, 10, 1.0)])
def test_the_boundary_parts_the_two_basins(js, task):
    lam, *sizes = task
    curve = js(f"attlas.boundary({constants(task)})", [0])[0]
    inner = curve[20:-20:12]
    starts = np.concatenate([inner + 0.02, inner - 0.02])  # towards (1, 1), and towards (-1, -1)
    starts = starts.clip(-0.999, 0.999).T
    zero = np.zeros(starts.shape[1])
    at = SingleLocation(*sizes)
    alpha = 0.5 * stable_step(at, lam)
    path = descend(
        at,
        Overlaps(*starts, zero, zero, zero),
        lam=lam,
        step_size=alpha,
        steps=round(30 / alpha),
        record_every=10**6,
    )
    nu = path["nu"].isel(step=-1).values
    assert (nu[: len(inner)] > 0.9).all() and (nu[len(inner) :] < -0.9).all()


def test_the_table_of_gates_is_good_enough_for_pictures(js):
    for task in TASKS:
        c, points = constants(task), heads().T.tolist()
        exact = js(f"attlas.gradient({c}, x)", points)
        assert js(f"attlas.gradient(attlas.tabulated({c}), x)", points) == approx(
            exact, abs=3e-4 * abs(exact).max()
        )


def on_circle(angles):
    return jnp.stack([jnp.cos(jnp.asarray(angles)), jnp.sin(jnp.asarray(angles))], -1)


@pytest.mark.parametrize(
    ("temperature", "ridge"), [(0.1, 0.09), (0.003, 1e-4), (2.0, 10.0), (2.0, 1e-4)]
)
def test_one_row_of_attention(js, float64, temperature, ridge):
    keys = np.array(explorers.scattered_tokens()["keys"][:64])
    queries = [-3.1, -0.5, 0.0, 2.2]
    scores = on_circle(queries) @ on_circle(keys).T / temperature
    found = js(f"attlas.softmaxWeights(x, {keys.tolist()}, {temperature})", queries)
    assert found == approx(np.asarray(softmax(scores)), abs=1e-12)
    wanted = cme_weights(
        on_circle(queries), on_circle(keys), ridge=ridge, kernel=Exponential(temperature)
    )
    found = js(f"attlas.cmeWeights(x, {keys.tolist()}, {temperature}, {ridge})", queries)
    rounding = (
        1e-15 / temperature * len(keys) / ridge
    )  # of the exponent, times the condition number
    assert found == approx(np.asarray(wanted), abs=max(rounding, 1e-13))


def test_the_truth_is_a_draw_whose_posterior_mean_is_cme_attention(float64):
    delta = np.linspace(0, 3, 7)
    orders = np.arange(30)
    series = (
        np.where(orders == 0, 1, 2) * special.ive(orders, 10.0) @ np.cos(np.outer(orders, delta))
    )
    assert series == approx(np.exp((np.cos(delta) - 1) / 0.1), abs=1e-12)
    errors = []
    for seed in range(20):
        told = explorers.scattered_tokens(seed)
        keys, values, truth = (np.array(told[name]) for name in ("keys", "values", "truth"))
        assert len(keys) == max(explorers.TOKENS) and truth[0] == approx(truth[-1])
        at_keys = np.interp(keys, np.linspace(-np.pi, np.pi, 361), truth)
        assert np.std(values - at_keys) == approx(told["noise"], rel=0.25)
        angles = np.linspace(-np.pi, np.pi, 361)

        def mean_square(temperature, ridge, keys=keys, values=values, truth=truth, angles=angles):
            mean = cme_attention(
                on_circle(angles),
                on_circle(keys[:48]),
                jnp.asarray(values[:48, None]),
                ridge=ridge,
                kernel=Exponential(temperature),
            )
            return float(np.mean((np.asarray(mean)[:, 0] - truth) ** 2))

        errors.append(
            [
                mean_square(0.1, 0.09),
                mean_square(0.1, 1.0),
                mean_square(0.1, 0.001),
                mean_square(0.5, 0.09),
                mean_square(0.03, 0.09),
            ]
        )
    mean = np.mean(errors, 0)
    assert mean[0] < mean[1:].min(), "Bayes' temperature and ridge are the best on average"


@pytest.mark.parametrize(
    ("length", "support", "c", "name"),
    [
        (20, (1, 5, 9), 4.0, "majority"),
        (50, (0, 7), 1.5, "and"),
        (10, (2, 3, 4, 8), 128.0, "or"),
        (30, (6,), 0.5, "and"),
        (12, (0, 1), 0.7, "or"),
    ],
)
def test_the_sparse_head(browser, js, length, support, c, name):
    twin = threshold_head(SparseBoolean(length, support, name), sharpness=c)
    head = browser.run(f"attlas.head({length}, {len(support)}, {c}, '{name}')")
    bits = np.zeros((3, length), int)
    bits[1, list(support[:1])], bits[2] = 1, 1
    weights = twin.weights(bits)[0, :-1]
    assert weights[list(support)] == approx(head["each"]) and head["leak"] == approx(
        1 - len(support) * head["each"]
    )
    assert np.delete(weights, support) == approx(head["other"])
    assert head["margin"] == approx(twin.margin) and twin.worst_margin() == approx(twin.margin)
    assert head["scoreNorm"] == approx(twin.score_norm) and head["valueNorm"] == approx(
        twin._norm(twin.read @ twin.mix @ twin.out)
    )
    ones = bits[:, list(support)].sum(1)
    level = head["each"] * ones + head["leak"] * np.array([0, 0, 1])
    assert level - head["threshold"] == approx(twin(bits), abs=1e-12)


def test_the_stored_samples_are_those_of_the_bound():
    stored = json.loads(explorers._asset(explorers.STORED))
    f, t, s, c = 2, 3, 2, 7
    assert (stored["functions"][f], stored["places"][t], stored["sharpnesses"][c]) == (
        "majority",
        100,
        4.0,
    )
    assert stored["places"] == list(explorers.PLACES) and stored["sharpnesses"] == list(
        explorers.SHARPNESSES
    )
    head = threshold_head(SparseBoolean(100, (0, 1, 2), "majority"), sharpness=4.0)
    for kind, counted in (("norms", False), ("parameters", True)):
        asked = head.capacity(count_parameters=counted).log_samples_for(
            explorers.GAP, margin=head.margin, delta=explorers.DELTA
        )
        assert stored[kind][f][t][s][c] == approx(asked / math.log(10), abs=0.02)
    again = explorers.sample_tables(("or",), (1000,), (1, 5), (1.0, 2.0, 32.0))
    for kind in ("norms", "parameters"):
        rows = [[stored[kind][1][6][s][c] for c in (2, 5, 13)] for s in (0, 4)]
        assert again[kind][0][0][0][0] is None and rows[0][0] is None
        found = [row[1:] for row in again[kind][0][0]]
        assert np.array([row[1:] for row in rows]) == approx(np.array(found), abs=0.02)


def test_pages_are_small_and_link_to_claims_that_exist(pages):
    for explorer in explorers.EXPLORERS:
        assert (pages / explorer.path).stat().st_size < 500_000
        assert explorer.path in (pages / "index.html").read_text()
    assert {id for ids in explorers.RELATED for id in ids} <= set(catalogue())
