import json
import math

import jax.numpy as jnp
import numpy as np
from pytest import approx
from scipy import special
from tools import explorers

from attlas.kernels import Exponential, cme_attention
from attlas.sparse_variables.construction import threshold_head
from attlas.sparse_variables.task import SparseBoolean


def on_circle(angles):
    return jnp.stack([jnp.cos(jnp.asarray(angles)), jnp.sin(jnp.asarray(angles))], -1)


def test_the_stored_tokens_are_those_of_the_notes():
    explorer = explorers.find_explorer("estimator")
    values = explorer.values
    made = explorers.scattered_tokens(max(values["tokens"]), values["truth"], values["noise"])
    assert json.loads(explorer.data) == made


def test_the_truth_is_a_draw_whose_posterior_mean_is_cme_attention(float64):
    delta = np.linspace(0, 3, 7)
    orders = np.arange(30)
    series = (
        np.where(orders == 0, 1, 2) * special.ive(orders, 10.0) @ np.cos(np.outer(orders, delta))
    )
    assert series == approx(np.exp((np.cos(delta) - 1) / 0.1), abs=1e-12)
    errors = []
    for seed in range(20):
        told = explorers.scattered_tokens(200, 0.1, 0.3, seed)
        keys, values, truth = (np.array(told[name]) for name in ("keys", "values", "truth"))
        assert len(keys) == 200 and truth[0] == approx(truth[-1])
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


def test_the_stored_samples_are_those_of_the_bound():
    stored = json.loads(explorers.find_explorer("sparse").data)
    f, t, s, c = 2, 3, 2, 7
    assert (stored["functions"][f], stored["places"][t], stored["sharpnesses"][c]) == (
        "majority",
        100,
        4.0,
    )
    values = explorers.find_explorer("sparse").values
    for name in ("functions", "places", "sharpnesses"):
        assert stored[name] == values[name]
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
